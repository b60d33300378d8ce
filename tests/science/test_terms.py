"""The function `attention` and every term equal their equations.

From top to bottom: the paper in one function; the function `attention`; no Python loop over the
positions; the terms of the score and of the values.
"""

import doctest
import itertools
import math
import re

import pytest
import torch
from torch import nn

import attention
import kernels
import references
from attention import TERMS, VARIANTS, Variant
from helpers import (
    C,
    H,
    K,
    assert_equals_loops,
    assert_near,
    assert_same_with_gradients,
    attend,
    attention_inputs,
    d,
    draw,
    every_beyond,
    every_variant,
    lines_run,
    mixer_config,
    random_mixer,
    randomise,
    results,
)

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


def numbers_below(heading, function):
    """The four lines of numbers below a heading in the docstring of a function."""
    text = function.__doc__.partition(f"{heading}\n")[2]
    return [[int(number) for number in line.split()] for line in text.splitlines()[:4]]


def test_the_matrices_of_the_growing_example_are_those_that_its_docstrings_draw():
    """Side by side in three docstrings."""
    q, k = torch.tensor([[1, -1, 0, 2]]).t(), torch.tensor([[0, 1, 0, 1]])
    w, beta = torch.tensor([[-1, 0, 1]]), torch.tensor([[1, 0, 2]])
    r = torch.tensor([[j - i for j in range(4)] for i in range(4)])
    column = r.clamp(-1, 1) + 1
    dynamic = references.relative_scores(q @ w, 4, "clip")
    fixed = references.relative_scores(beta.expand(4, 3), 4, "clip")

    lines = numbers_below("column      beta_(j-i)", attention.fixed_attention)
    assert torch.cat([r, column, fixed], dim=1).tolist() == lines
    lines = numbers_below("column      q_i . w_(j-i)", attention.dynamic_attention)
    assert torch.cat([q @ w, column, dynamic], dim=1).tolist() == lines
    lines = numbers_below("the sum a_ij", attention.composite_attention)
    assert torch.cat([q @ k, dynamic, fixed, q @ k + dynamic + fixed], dim=1).tolist() == lines


def test_attention_with_the_sum_of_both_biases_equals_composite_attention():
    """The general form, as its docstring says."""
    for N in (1, 9, 20):
        q, k, v = (draw(2, N, C, seed=seed).requires_grad_() for seed in range(3))
        w, beta = draw(d, K).requires_grad_(), draw(H, K, seed=1).requires_grad_()
        expected = attention.composite_attention(q, k, v, w, beta)

        by_head = [attention.split_heads(x, H) for x in (q, k, v)]  # (B, H, N, d) each
        query_bias = by_head[0] @ w / math.sqrt(d) + beta[:, None]  # (B, H, N, K)
        mask = torch.ones(2, N, dtype=torch.bool)
        z = attention.attention(*by_head, mask, kernels.Positions(query_bias))
        assert_same_with_gradients(attention.merge_heads(z), expected, [q, k, v, w, beta], 1e-12)


# --- The attention function -----------------------------------------------------------------------


@every_beyond
@pytest.mark.parametrize("N", [7, 70])
def test_attention_with_its_bias_matrices_equals_the_loops(N, beyond):
    """Values and all gradients, with padding and all terms, together with kernels.py."""
    inputs = attention_inputs(N, 7, B=1)
    expected = results(attend, inputs, by=references.attention, beyond=beyond)
    assert_near(results(attend, inputs, beyond=beyond), expected, 1e-10)


@pytest.mark.parametrize("N", [40, 70])
def test_in_bf16_attention_is_near_to_float64_and_returns_bf16(N):
    """Values and gradients, without autocast and with it: within four steps of bf16."""
    inputs = attention_inputs(N, 9, dtype=torch.bfloat16, B=1)
    exact_inputs = dict(inputs)
    for name, x in inputs.items():
        if x.dtype == torch.bfloat16:
            exact_inputs[name] = x.detach().double().requires_grad_()
    exact = results(attend, exact_inputs)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            got = results(attend, inputs)
        for name in got:
            assert got[name].dtype == torch.bfloat16
            error = (got[name] - exact[name]).abs().max()
            assert error <= 4 * 2**-8 * exact[name].abs().max(), name


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


def test_heads_are_neighbouring_channels():
    x = draw(2, 5, 12)
    by_head = attention.split_heads(x, 3)  # (B, H, N, d)
    assert by_head.shape == (2, 3, 5, 4)
    for h in range(3):
        assert torch.equal(by_head[:, h], x[:, :, 4 * h : 4 * h + 4])


def test_merged_heads_are_neighbouring_channels():
    by_head = draw(2, 3, 5, 4)  # (B, H, N, d)
    x = attention.merge_heads(by_head)
    assert x.shape == (2, 5, 12)
    for h in range(3):
        assert torch.equal(x[:, :, 4 * h : 4 * h + 4], by_head[:, h])


# --- No Python loop over the positions ------------------------------------------------------------


@every_variant
def test_no_python_loop_over_the_positions_of_a_mixer(variant):
    """More tokens do not run more lines."""
    mixer = random_mixer(variant)

    def lines_for(N):
        return lines_run(mixer, draw(1, N, C), torch.ones(1, N, dtype=torch.bool))

    assert lines_for(34) == lines_for(60)


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
        ("alibi", dict(query_bias=(4, 1, 5)), "query_bias returned (4, 1, 5), expected (H, 1, 31)"),
        (
            "fixed",
            dict(query_bias=(4, 1, 31)),
            "query_bias returned (4, 1, 31), expected (H, 1, 5)",
        ),
        ("fixed", dict(query_bias=(4, 5)), "query_bias returned (4, 5), expected (H, 1, 5)"),
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


@pytest.mark.parametrize("shape", [(H, 1, K), (H, 16, K), (2, H, 1, K), (2, H, 16, K)], ids=str)
def test_a_term_may_return_a_bias_for_all_for_each_query_or_for_each_sequence(monkeypatch, shape):
    monkeypatch.setitem(TERMS, "mine", returned("fixed", query_bias=shape))
    monkeypatch.setitem(VARIANTS, "mine", Variant(terms=("mine",)))
    mixer = random_mixer("mine", kernel_size=K)
    assert mixer(draw(2, 16, C)).shape == (2, 16, C)


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


def test_t5s_buckets_are_those_of_its_docstring():
    """Read off a bias whose table holds the number of each bucket."""
    term = TERMS["t5"](mixer_config("t5"))
    with torch.no_grad():
        term.beta.copy_(torch.arange(32.0))
    bias = term.query_bias(torch.zeros(1, H, 300, d))[0, 0].tolist()
    buckets = dict(zip(range(-299, 300), bias, strict=True))
    for r, bucket in buckets.items():
        assert bucket == references.t5_bucket(r), r

    # where the wide buckets begin, and the last distance of each
    table = " ".join(attention.T5.__doc__.split())
    assert "8-11 12-15 16-22 23-31 32-45 46-63 64-90 91 and more" in table
    for bucket, first in enumerate((8, 12, 16, 23, 32, 46, 64, 91), start=8):
        assert (buckets[-first], buckets[1 - first]) == (bucket, bucket - 1)


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
