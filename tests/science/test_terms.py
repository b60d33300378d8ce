"""The function `attention` and every term equal their equations.

From top to bottom: the paper in one function; the precision of `attention` (its equation:
test_cases.py); the terms of the score and of the values.
"""

import doctest
import itertools
import math
import re

import pytest
import torch
from torch import nn

import attention
import references
from attention import TERMS, VARIANTS, Variant
from helpers import (
    C,
    H,
    K,
    assert_equals_loops,
    assert_near,
    assert_same_with_gradients,
    d,
    draw,
    every_beyond,
    generator,
    mixer_config,
    random_mixer,
    randomise,
    upstream_for,
)
from kernels import Positions

# --- The paper in one function --------------------------------------------------------------------


def test_the_growing_example_prints_what_the_four_docstrings_say():
    """One example: each docstring goes on from those before it."""
    functions = (
        attention.plain_attention,
        attention.fixed_attention,
        attention.dynamic_attention,
        attention.composite_attention,
    )
    text = "\n".join(function.__doc__ for function in functions)
    example = doctest.DocTestParser().get_doctest(text, vars(attention), "attention", None, 0)
    assert text.count("_attention(q") == len(functions)
    assert doctest.DocTestRunner().run(example).failed == 0


# --- The attention function -----------------------------------------------------------------------


@pytest.mark.parametrize("N", [40, 70])
def test_in_bf16_attention_is_near_to_float64_and_returns_bf16(N):
    """z and all gradients, without autocast and with it: within four steps of bf16."""
    mask = torch.ones(1, N, dtype=torch.bool)
    shapes = 3 * [(1, 2, N, 5)] + 2 * [(1, 2, N, 9)] + [(5, 9)]  # q, k, v; biases; values
    numbers = generator(100 * N + 9)
    given = [torch.randn(shape, generator=numbers, dtype=torch.float64) for shape in shapes]

    def z_and_gradients(dtype):
        q, k, v, *others = leaves = [x.bfloat16().to(dtype).requires_grad_() for x in given]
        z = attention.attention(q, k, v, mask, Positions(*others))
        return z, *torch.autograd.grad(z, leaves, upstream_for(z))

    exact = z_and_gradients(torch.float64)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found = z_and_gradients(torch.bfloat16)
        for x, expected in zip(found, exact, strict=True):
            assert x.dtype == torch.bfloat16
            assert (x - expected).abs().max() <= 4 * 2**-8 * expected.abs().max()


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_the_lowest_score_at_padding_cannot_overflow(dtype):
    """Not even if half of the lowest number is added to it, and its softmax is 0."""
    mask = torch.tensor([[True, True, False]])
    lowest = attention.lowest_at_padding(mask, dtype)
    assert lowest.shape == (1, 1, 1, 3)
    assert lowest.dtype == dtype
    assert lowest[..., :2].eq(0).all()
    assert torch.isfinite(lowest + torch.finfo(dtype).min / 2).all()

    p = (torch.tensor([-100.0, 100.0, 20000.0], dtype=dtype) + lowest).softmax(dim=-1)
    assert p[..., 2].eq(0).all()


# --- Terms ----------------------------------------------------------------------------------------


def scores_of_term(term, q, k, beyond):
    """What a term adds to the scores (B, H, N, N), from its biases and its content."""
    N = q.shape[-2]
    own_q, own_k = term.queries_and_keys(q, k)
    scores = (own_q @ own_k.transpose(-1, -2) - q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    query_bias, key_bias = term.query_bias(q), term.key_bias(k)
    if query_bias is not None:
        scores = scores + references.relative_scores(query_bias, N, beyond)
    if key_bias is not None:
        scores = scores + references.key_scores(key_bias, N, beyond)
    return scores


@every_beyond
@pytest.mark.parametrize("name", [name for name in TERMS if name not in references.VALUE_TERMS])
def test_a_term_adds_what_its_loop_adds(name, beyond):
    """Values, and the gradients of the queries, the keys and the parameters of the term.

    FIRE's L is below N in the last round, and above it in the others.
    """
    config = mixer_config(VARIANTS_OF_TERMS[name], heads=2, hidden_size=12, beyond=beyond)
    config.kernel_size = K
    for N, log_L in ((1, 0.0), (7, 0.0), (7, -6.0)):
        term = randomise(TERMS[name](config).double(), 0.5)
        if name == "fire":
            nn.init.constant_(term.log_L, log_L)
        parameters = {f"terms.{name}.{key}": x for key, x in term.named_parameters()}
        q, k = draw(2, 2, N, 6).requires_grad_(), draw(2, 2, N, 6, seed=1).requires_grad_()

        expected = []
        for b, h, i, j in itertools.product(range(2), range(2), range(N), range(N)):
            given = (parameters, q[b, h, i], k[b, h, j], i, j, h, config, N)
            score = references.SCORE_TERMS[name](*given)
            expected.append(torch.as_tensor(score, dtype=torch.float64))
        expected = torch.stack(expected).reshape(2, 2, N, N)
        got = scores_of_term(term, q, k, beyond).expand(2, 2, N, N)
        if expected.requires_grad:
            assert_same_with_gradients(got, expected, [q, k, *parameters.values()])
        assert_near(got, expected, 1e-10)


# a variant with the term: the first one, which for a new term is the term alone
VARIANTS_OF_TERMS = {term: name for name in reversed(VARIANTS) for term in VARIANTS[name].terms}


def returned(term, **shapes):
    """A Fixed or an Alibi whose methods return zeros of other shapes."""
    methods = {
        method: lambda self, *given, shape=shape: torch.zeros(shape)
        for method, shape in shapes.items()
    }
    return type("Mine", (TERMS[term],), methods)


@pytest.mark.parametrize(
    "term, shapes, message",
    [
        (
            "alibi",
            dict(query_bias=(31, 1, 4)),
            "query_bias returned (31, 1, 4), expected (H, 1, 31)",
        ),
        ("fixed", dict(key_bias=(1, 1, 5)), "key_bias returned (1, 1, 5), expected (H, 1, 5)"),
        (
            "fixed",
            dict(value_table=(5, 2)),
            "value_table returned (5, 2), expected (d, K) = (2, 5)",
        ),
    ],
)
def test_a_term_that_returns_a_wrong_shape_is_named_with_the_shape_that_is_right(
    monkeypatch, term, shapes, message
):
    """H = 4, d = 2, N = 16 and K = 5, so a bias has 5 columns, or 31 without a window."""
    monkeypatch.setitem(TERMS, "mine", returned(term, **shapes))
    monkeypatch.setitem(VARIANTS, "mine", Variant(terms=("mine",)))
    mixer = random_mixer("mine", kernel_size=K)
    with pytest.raises(ValueError, match=re.escape(f"Mine.{message}")):
        mixer(draw(1, 16, C))


NARROW_AND_WIDE = {
    "fixed-alibi": ("fixed", "alibi"),
    "dynamic-t5": ("dynamic", "t5"),
    "fixed-dynamic-xl": ("fixed", "dynamic", "xl"),
    "rotary-key-fire": ("rotary", "key_dynamic", "fire"),
}


@every_beyond
@pytest.mark.parametrize("name", NARROW_AND_WIDE)
def test_the_terms_of_a_variant_are_added_whatever_their_widths(monkeypatch, name, beyond):
    """K below and above the 2N - 1 columns of a term without a window."""
    monkeypatch.setitem(VARIANTS, name, Variant(terms=NARROW_AND_WIDE[name]))
    for N, kernel_size in ((2, 13), (5, 1), (6, 3), (6, 11)):
        assert_equals_loops(name, N, beyond, kernel_size=kernel_size)


def test_t5s_buckets_are_those_of_the_loops():
    """Read off a bias whose table holds the number of each bucket."""
    term = TERMS["t5"](mixer_config("t5"))
    with torch.no_grad():
        term.beta.copy_(torch.arange(32.0))
    bias = term.query_bias(torch.zeros(1, H, 300, d))[0, 0].tolist()
    buckets = dict(zip(range(-299, 300), bias, strict=True))
    for r, bucket in buckets.items():
        assert bucket == references.t5_bucket(r), r


def test_fire_starts_with_the_papers_c_and_L():
    term = TERMS["fire"](mixer_config("fire"))
    assert 0.1 * term.log_c.exp() == 0.1
    assert 512 * term.log_L.exp() == 512


@pytest.mark.parametrize("name", [name for name in TERMS if not TERMS[name].has_window])
def test_in_bf16_far_positions_are_still_told_apart(name):
    """Angles and distances are computed in float32: bf16 has only every second number above 256."""
    mixer = random_mixer(VARIANTS_OF_TERMS[name]).float()
    q = draw(1, H, 600, d).bfloat16()  # as a linear layer gives it under autocast
    exact_q, _, exact = mixer.double().apply_terms(q.double(), q.double())
    mixer.float()
    with torch.autocast("cpu", torch.bfloat16):
        turned, _, positions = mixer.apply_terms(q, q)

    if exact.query_bias is not None:
        allowed = 1e-6
        if name in ("fire", "xl"):
            allowed = 0.02  # their matrix products are in bf16
        error = (positions.query_bias - exact.query_bias).abs().max()
        assert error < allowed * exact.query_bias.abs().max()
    assert (turned - exact_q).abs().max() < 0.02 * exact_q.abs().max()


def test_the_first_layer_of_fire_is_the_same_under_autocast_with_queries_in_bf16():
    """bf16 would round its distances, and 600 of them would become 407."""
    term = randomise(TERMS["fire"](mixer_config("fire")), 0.5)
    seen = []
    term.output.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    term.query_bias(torch.zeros(1, H, 600, d))
    with torch.autocast("cpu", torch.bfloat16):
        # as a linear layer gives them
        term.query_bias(torch.zeros(1, H, 600, d, dtype=torch.bfloat16))
    assert torch.equal(*seen)


@pytest.mark.parametrize(
    "variant, heads, hidden_size, message",
    [
        ("rotary", 4, 12, "rotates pairs of channels: the channels of a head must be even, not 3"),
        ("xl", 3, 9, "as many sines as cosines: hidden_size must be even, not 9"),
        ("conv-v", 3, 12, "half of the heads are convolutions: heads must be even, not 3"),
    ],
)
def test_an_odd_number_where_a_variant_needs_an_even_one_is_a_mistake_of_the_user(
    variant, heads, hidden_size, message
):
    with pytest.raises(ValueError, match=message):
        random_mixer(variant, hidden_size=hidden_size, heads=heads)
