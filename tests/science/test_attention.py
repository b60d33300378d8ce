"""attention.py: attention, convolutions and every mixer equal their equations.

A test that is `alone` uses stand-ins for the other functions (helpers.py, stand_ins.py), so that
a mistake in one function fails the tests of this function. The tests without it show that the
functions fit together.

From top to bottom: the attention function; convolutions; every mixer against the plain loops of
tests/references.py; padding; properties that follow from the equations; the initial weights;
the kernels for figures; the table VARIANTS with the paper's parameter counts; a new variant.
"""

import math
import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attention
import kernels
import references
import stand_ins
from attention import TERMS, VARIANTS, DepthwiseConvolution, Mixer, Term, Variant, make_mixer
from helpers import (
    B,
    C,
    H,
    K,
    alone,
    assert_near,
    assert_same_bits,
    attention_inputs,
    d,
    draw,
    generator,
    loss_of,
    mixer_config,
    padded_batch,
    random_mixer,
    random_tokens,
    randomise,
    results,
    small_model,
    upstream_for,
)
from kernels import BEYOND
from model import Bert, BertConfig, BertForClassification, BertForMaskedLM, parameter_count

HAS_COMPILER = shutil.which("g++") is not None or shutil.which("clang++") is not None

# --- The attention function -----------------------------------------------------------------------


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_attention_equals_its_definition(beyond, dtype, tolerance):
    """Values and all gradients, with padding, with all terms and the same dropout."""
    for N in (1, 2, 3, 7, 20, 127, 128, 129):
        for kernel_size in (1, 5, 33):
            inputs = attention_inputs(N, kernel_size, dtype)
            for dropout in (0.0, 0.3):
                expected = results(stand_ins.attention_function, inputs, beyond, dropout)
                got = results(attention.attention, inputs, beyond, dropout)
                assert_near(got, expected, tolerance)


@alone("attention")
def test_attention_alone_equals_its_definition():
    """The same with stand-ins for the functions that it calls, for one block of queries, too."""
    *inputs, query_rows, key_rows, table = attention_inputs(9, 5)
    for beyond in BEYOND:
        for dropout in (0.0, 0.3):
            given = (*inputs, query_rows, key_rows, table)
            expected = results(stand_ins.attention_function, given, beyond, dropout)
            assert_near(results(attention.attention, given, beyond, dropout), expected, 1e-10)

        # the queries 3 .. 6
        query, *rest = inputs
        block = (query[:, :, 3:7], *rest, query_rows[:, :, 3:7], key_rows, table, beyond, 0.3, 3)
        got = attention.attention(*block, generator(5))
        assert_near(got, stand_ins.attention_function(*block, generator(5)), 1e-10)


def test_the_gradient_of_one_row_for_all_queries_is_summed_in_a_fixed_order():
    """First over the sequences, then over the queries: to the bit, in float32."""
    one_row = torch.randn(4, 1, 17, generator=generator(0), requires_grad=True)  # (H, 1, K)
    rows = torch.randn(3, 4, 50, 17, generator=generator(1))  # (B, H, N, K)
    upstream = torch.randn(3, 4, 50, 17, generator=generator(2))
    expected = upstream.sum(0).sum(1, keepdim=True)  # (H, 1, K)

    for total in (
        attention.add_rows(one_row, rows, "clip"),
        attention.add_rows(rows, one_row, "clip"),
    ):
        (gradient,) = torch.autograd.grad(total, one_row, upstream)
        assert torch.equal(gradient, expected)


@alone("attention")
def test_scores_are_divided_by_sqrt_d():
    """Plain loops for the equation a_ij = q_i . k_j / sqrt(d), with d = 9, where it is 3."""
    query, key = draw(1, 1, 4, 9), draw(1, 1, 4, 9, seed=1)
    identity = torch.eye(4, dtype=torch.float64)[None, None]  # as values: z is the map of weights
    mask = torch.ones(1, 4, dtype=torch.bool)
    p = attention.attention(query, key, identity, mask)
    for i in range(4):
        scores = [sum(query[0, 0, i] * key[0, 0, j]) / 3 for j in range(4)]
        assert_near(p[0, 0, i], torch.stack(references.softmax(scores)), name=f"row {i}")


@pytest.mark.parametrize("term, table", [("dynamic", "w"), ("key_dynamic", "u")])
@alone("Dynamic.forward", "KeyDynamic.forward")
def test_rows_of_the_dynamic_terms_are_divided_by_sqrt_d(term, table):
    """One row per head and token, x_i . w_r / sqrt(d), from one table for all heads."""
    config = mixer_config("composite-key", hidden_size=27, heads=3)
    term = TERMS[term](config).double()
    x = draw(2, 3, 4, 9)  # (B, H, N, d)
    rows = term(x)
    for b in range(2):
        for h in range(3):
            for i in range(4):
                for t in range(K):  # the column of r = t - k
                    expected = sum(x[b, h, i] * getattr(term, table)[:, t]) / 3
                    assert abs(rows[b, h, i, t] - expected) < 1e-12, (b, h, i, t)


@alone("Fixed.forward")
def test_rows_of_the_fixed_term_are_beta_for_every_query():
    """Not divided by sqrt(d), and one row per head."""
    term = TERMS["fixed"](mixer_config("fixed")).double()
    with torch.no_grad():
        term.beta.copy_(draw(H, K))
    rows = term(draw(2, H, 7, d)).expand(H, 7, K)
    for i in range(7):
        assert torch.equal(rows[:, i], term.beta)


def weights_with_dropout(dropout, numbers=None):
    """The weights of attention with all terms, before and after dropout.

    Returns (p, dropped, found, s): the map of weights, the map after dropout, (B, H, N, N) each;
    what relative_value adds to z, (B, H, N, 4); and its table (4, K). The first 40 channels of the
    values are the identity, so the first 40 channels of z are the map. The last 4 channels of the
    values are 0, so what is found there comes from relative_value.
    """
    query, key, _, mask, query_rows, key_rows, table = attention_inputs(40, 5)
    value = torch.cat([torch.eye(40), torch.zeros(40, 4)], dim=-1).double().expand(2, 2, 40, 44)
    table = torch.cat([torch.zeros(40, 5).double(), table.detach()])  # (44, K)
    given = (query, key, value, mask, query_rows, key_rows, table, "clip")
    p = attention.attention(*given)[..., :40]
    torch.manual_seed(0)
    z = attention.attention(*given, dropout, 0, numbers)
    return p, z[..., :40], z[..., 40:], table[40:]


@pytest.mark.parametrize("seed", [None, 1])
@alone("attention", "drop")
def test_dropout_of_the_weights_scales_up_those_that_are_left(seed):
    numbers = None
    if seed is not None:
        numbers = generator(seed)
    p, dropped, _, _ = weights_with_dropout(0.3, numbers)
    real = p > 0
    kept = dropped > 0
    assert_near(dropped[kept], p[kept] / 0.7)
    assert abs(kept[real].double().mean() - 0.7) < 0.05


@alone("attention")
def test_relative_values_are_multiplied_by_the_weights_after_dropout():
    """sum_j p_ij s_(j-i): a weight that is dropped takes its relative value with it."""
    _, dropped, found, s = weights_with_dropout(0.3)
    sums = stand_ins.sums_of_map(dropped, 5)  # (B, H, N, K)
    assert_near(found, sums @ s.t())


@alone("attention")
def test_attention_without_terms_is_that_of_torch():
    query, key, value, mask, *_ = attention_inputs(9, 5)
    got = attention.attention(query, key, value, mask)
    expected = F.scaled_dot_product_attention(query, key, value, mask[:, None, None, :])
    assert_near(got, expected, 1e-12)


def in_blocks(*inputs):
    return kernels.attention_in_blocks(attention.attention, *inputs)


@pytest.mark.parametrize("function", [attention.attention, in_blocks])
@alone("attention")
def test_in_bf16_attention_is_as_near_to_float64_as_the_definition(function):
    inputs = attention_inputs(40, 9, torch.bfloat16)
    exact_inputs = []
    for x in inputs:
        if x.dtype != torch.bool:
            x = x.detach().double().requires_grad_()
        exact_inputs.append(x)
    exact = results(stand_ins.attention_function, exact_inputs)

    with torch.autocast("cpu", torch.bfloat16):
        expected = results(stand_ins.attention_function, inputs)
        got = results(function, inputs)
    for name in got:
        assert got[name].dtype == torch.bfloat16
        allowed = 1.2 * (expected[name] - exact[name]).abs().max()
        assert (got[name] - exact[name]).abs().max() <= allowed, name


@alone("attention")
def test_attention_with_the_same_seed_is_the_same_to_the_bit():
    """Values and gradients, with dropout."""
    inputs = attention_inputs(150, 17, torch.float32)
    first = results(attention.attention, inputs, "clip", 0.2)
    second = results(attention.attention, inputs, "clip", 0.2)
    assert_same_bits(first, second)


@alone("attention")
def test_padding_gets_no_attention_and_no_gradient():
    got = results(attention.attention, attention_inputs(9, 3))
    for name in ("key", "value", "key_rows"):
        assert got[name][1, :, 5:].eq(0).all(), name
        assert got[name][1, :, :5].ne(0).any(), name


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


def test_dropout_sets_its_share_of_numbers_to_0_and_scales_up_the_others():
    p = torch.ones(100_000, dtype=torch.float64)
    for numbers in (None, generator(1)):
        dropped = attention.drop(p, 0.3, numbers)
        assert set(dropped.tolist()) == {0.0, 1 / 0.7}
        assert abs(dropped.eq(0).double().mean() - 0.3) < 0.01
        assert torch.equal(attention.drop(p, 0.0, numbers), p)


def test_dropout_from_a_generator_does_not_use_the_global_random_state():
    p = torch.ones(50)
    before = torch.get_rng_state()
    first = attention.drop(p, 0.5, generator(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, attention.drop(p, 0.5, generator(1)))
    assert not torch.equal(first, attention.drop(p, 0.5, generator(2)))


def test_heads_are_neighbouring_channels():
    x = draw(2, 5, 12)
    by_head = attention.split_heads(x, 3)  # (B, H, N, d)
    assert by_head.shape == (2, 3, 5, 4)
    for h in range(3):
        assert torch.equal(by_head[:, h], x[:, :, 4 * h : 4 * h + 4])
    assert torch.equal(attention.merge_heads(by_head), x)


@alone("attention")
def test_attention_goes_in_blocks_exactly_above_longest_whole_queries(monkeypatch):
    calls = []

    def record(*arguments):
        calls.append(arguments)

    monkeypatch.setattr(attention, "attention_in_blocks", record)
    assert attention.LONGEST_WHOLE == 1024

    for queries, keys, expected in ((1, 1, 0), (1024, 1024, 0), (3, 1025, 0), (1025, 3, 1)):
        calls.clear()
        query = torch.zeros(1, 1, queries, 1)
        key = torch.zeros(1, 1, keys, 1)
        mask = torch.ones(1, keys, dtype=torch.bool)
        attention.attention(query, key, key, mask)
        assert len(calls) == expected, f"{queries} queries, {keys} keys"


@alone("attention")
def test_blocks_get_all_arguments_of_attention(monkeypatch):
    monkeypatch.setattr(attention, "LONGEST_WHOLE", 8)
    monkeypatch.setattr(kernels, "BLOCK", 4)
    inputs = attention_inputs(11, 5)
    for beyond in BEYOND:
        expected = results(stand_ins.attention_function, inputs, beyond)
        assert_near(results(attention.attention, inputs, beyond), expected, 1e-10)

    # dropout arrives, too: 40 queries, four at a time
    p, dropped, _, _ = weights_with_dropout(0.4)
    kept = dropped > 0
    assert_near(dropped[kept], p[kept] / 0.6)
    assert abs(kept[p > 0].double().mean() - 0.6) < 0.05


@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler here")
def test_compiled_attention_equals_the_uncompiled():
    """Values, all gradients and their bits, with one dropout in the forward and backward pass.

    The first 11 channels of the values are the identity, and have no relative values. So the first
    11 channels of z are the map of weights, and its zeros are the dropout of the compiled code.
    """
    query, key, value, mask, query_rows, key_rows, table = attention_inputs(11, 5, torch.float32)
    identity = torch.eye(11).expand(2, 2, 11, 11)
    value = torch.cat([identity, value.detach()], dim=-1).requires_grad_()  # (B, H, N, 11 + d)
    table = torch.cat([torch.zeros(11, 5), table.detach()]).requires_grad_()  # (11 + d, K)
    inputs = (query, key, value, mask, query_rows, key_rows, table)

    compiled = torch.compile(attention.attention, dynamic=False)
    got = results(compiled, inputs, "clip", 0.4)
    kept = got["z"][..., :11].ne(0).float() / 0.6  # (B, H, N, N)
    assert 0.4 < kept[0].ne(0).float().mean() < 0.8

    # attention that is not compiled, with the same zeros
    def uncompiled(*inputs):
        return stand_ins.attention_function(*inputs, kept=kept)

    assert_near(got, results(uncompiled, inputs, "clip"), 1e-5)

    # the same bits again
    assert_same_bits(results(compiled, inputs, "clip", 0.4), got)


@alone("attention")
def test_attention_in_blocks_takes_more_queries_than_keys(monkeypatch):
    """The result has a row per query, in the dtype of the values, however many keys there are."""
    query, key, value, mask, *_ = attention_inputs(10, K)
    expected = attention.attention(query, key[:, :, :6], value[:, :, :6], mask[:, :6])
    monkeypatch.setattr(attention, "LONGEST_WHOLE", 4)
    monkeypatch.setattr(kernels, "BLOCK", 4)
    in_blocks = attention.attention(query, key[:, :, :6], value[:, :, :6], mask[:, :6])
    assert_near(in_blocks, expected, 1e-12)


def test_a_compiled_encoder_takes_long_sequences(monkeypatch):
    monkeypatch.setattr(attention, "LONGEST_WHOLE", 8)
    monkeypatch.setattr(kernels, "BLOCK", 4)
    model = small_model("composite")
    ids = random_tokens(2, 11)
    expected = model(ids)
    called = []

    def note_and_run(graph, example_inputs):
        called.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    model.bert.compile(backend=note_and_run, dynamic=False)
    assert_near(model(ids), expected, 1e-12)

    # the blocks are not compiled: the loop over them would become one long graph
    assert called
    assert not [name for name in called if "softmax" in name]


# --- Convolutions ---------------------------------------------------------------------------------


@alone("DepthwiseConvolution.forward")
def test_depthwise_convolution_starts_and_computes_like_torchs():
    torch.manual_seed(0)
    ours = DepthwiseConvolution(6, 5)
    torch.manual_seed(0)
    torchs = nn.Conv1d(6, 6, 5, padding=2, groups=6)
    for name, parameter in ours.state_dict().items():
        assert torch.equal(parameter, torchs.state_dict()[name])

    x = torch.randn(2, 9, 6, generator=generator(1)).requires_grad_()  # (B, N, C)
    y = ours(x)
    expected = torchs(x.transpose(1, 2)).transpose(1, 2)
    assert_near(y, expected, 1e-6)

    got = torch.autograd.grad(y.pow(2).sum(), (x, ours.weight, ours.bias))
    expected = torch.autograd.grad(expected.pow(2).sum(), (x, torchs.weight, torchs.bias))
    assert_near(got, expected, 1e-5)


@pytest.mark.parametrize("dilation", [1, 2, 3, 8])
def test_depthwise_convolution_is_a_sum_over_dilated_positions(dilation):
    for N, kernel_size in (
        (1, 3),
        (2, 5),
        (8, 3),
        (9, 5),
        (16, 3),
        (17, 1),
        (19, 3),
        (6, 9),
        (6, 13),
    ):
        x = draw(2, N, 6)
        weight = draw(6, kernel_size, seed=1)
        bias = draw(6, seed=2)

        expected = bias.repeat(2, N, 1)  # (B, N, C)
        for i in range(N):
            for t in range(kernel_size):
                j = i + (t - kernel_size // 2) * dilation
                if 0 <= j < N:
                    expected[:, i] += weight[:, t] * x[:, j]

        got = attention.depthwise_convolution(x, weight, bias, dilation)
        assert_near(got, expected, 1e-12)
        got = attention.depthwise_convolution(x, weight, None, dilation)
        assert_near(got, expected - bias, 1e-12)


def test_the_drawing_of_depthwise_convolution_is_what_token_3_sees():
    """N = 8, dilation 3, three weights: the column 0 3 6 of the drawn image."""
    x = draw(1, 8, 1).requires_grad_()
    weight = torch.ones(1, 3, dtype=torch.float64)
    y = attention.depthwise_convolution(x, weight, dilation=3)
    seen = torch.autograd.grad(y[0, 3, 0], x)[0][0, :, 0].nonzero().flatten()
    assert seen.tolist() == [0, 3, 6]


def test_zero_padding_keeps_real_tokens_and_nothing_else():
    x = torch.full((1, 3, 2), float("nan"))
    x[0, 1] = 5.0
    zeroed = attention.zero_padding(x, torch.tensor([[False, True, False]]))
    assert zeroed.tolist() == [[[0, 0], [5, 5], [0, 0]]]


@pytest.mark.parametrize("variant", ["conv-v", "composite-conv-qk", "convbert"])
@alone("half_of_the_heads")
def test_half_convolutional_variants_refuse_an_odd_number_of_heads(variant):
    with pytest.raises(ValueError, match="even"):
        random_mixer(variant, hidden_size=9, heads=3)


# --- Every mixer against the plain loops ----------------------------------------------------------


def assert_equals_loops(variant, N, beyond="clip", layer=0, **settings):
    """The output at real tokens, and the gradients of the input and of every parameter."""
    mixer = random_mixer(variant, layer, beyond=beyond, **settings)
    config = mixer_config(variant, beyond=beyond, **settings)
    names = [name for name, _ in mixer.named_parameters()]
    parameters = list(mixer.parameters())
    x, mask = padded_batch(N)
    x.requires_grad_()

    # values
    got = mixer(x, mask)[mask]  # (real tokens, C)
    weights = dict(zip(names, parameters, strict=True))
    expected = references.mixer(x, mask, weights, config, layer)[mask]
    difference = (got - expected).abs().max()
    assert difference < 1e-10, f"{variant}: the output differs from the loops by {difference:.1e}"

    # gradients
    upstream = upstream_for(got)
    got = torch.autograd.grad(got, (x, *parameters), upstream)
    expected = torch.autograd.grad(expected, (x, *parameters), upstream)
    for name, one, other in zip(("x", *names), got, expected, strict=True):
        difference = (one - other).abs().max()
        assert difference < 1e-10, f"{variant}: the gradient of {name} differs by {difference:.1e}"


# Variants for which `beyond` changes nothing: they get "zero" in one test only.
WITHOUT_BEYOND = [name for name, variant in VARIANTS.items() if not variant.uses_beyond]
WITH_BEYOND = [(name, "clip") for name in VARIANTS]
WITH_BEYOND += [(name, "zero") for name, variant in VARIANTS.items() if variant.uses_beyond]


@pytest.mark.parametrize("N", [1, 2, 3, 6, 11])  # shorter and longer than the kernel, odd and even
@pytest.mark.parametrize("variant, beyond", WITH_BEYOND)
def test_mixer_equals_its_loops_in_values_and_gradients(variant, beyond, N):
    assert_equals_loops(variant, N, beyond)


@pytest.mark.parametrize("variant", WITHOUT_BEYOND)
def test_mixer_that_does_not_use_beyond_equals_its_loops_whatever_it_is(variant):
    assert_equals_loops(variant, 6, "zero")


@pytest.mark.parametrize("variant", VARIANTS)
def test_beyond_changes_the_output_only_of_variants_that_use_it(variant):
    """Of two mixers with the same weights. N = 11 is longer than the window."""
    clip = random_mixer(variant, beyond="clip")
    zero = random_mixer(variant, beyond="zero")
    zero.load_state_dict(clip.state_dict())
    x, mask = padded_batch(11)
    is_equal = torch.equal(clip(x, mask)[mask], zero(x, mask)[mask])
    assert is_equal == (not VARIANTS[variant].uses_beyond)


@pytest.mark.parametrize("kernel_size", [1, 3, 9, 13])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if VARIANTS[name].has_kernel])
@alone()
def test_mixer_equals_its_loops_at_other_kernel_sizes(variant, kernel_size):
    assert_equals_loops(variant, 6, kernel_size=kernel_size)


@pytest.mark.parametrize("variant, beyond", WITH_BEYOND)
def test_mixer_equals_its_loops_in_blocks(monkeypatch, variant, beyond):
    monkeypatch.setattr(attention, "LONGEST_WHOLE", 6)
    monkeypatch.setattr(kernels, "BLOCK", 3)
    assert_equals_loops(variant, 7, beyond)


# --- Rows of a wrong shape ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "belongs_to, uses_kernel_size, shape, message",
    [
        ("query", True, (H, 5, K), "the term odd has made rows of shape"),
        ("key", True, (H, 1, K), "the term odd has made rows of shape"),
        ("query", True, (K,), "the term odd has made rows of shape"),
        ("query", True, (6, K), "the term odd has made rows of shape"),
        ("query", True, (H + 1, 1, K), "the term odd has made rows of shape"),
        ("query", True, (B, H, 1, K), "the term odd has made rows of shape"),
        ("query", True, (1, B, H, 6, K), "the term odd has made rows of shape"),
        ("query", True, (), "the term odd has made rows of shape"),
        ("query", True, None, "forward of the term odd must return a tensor, not a NoneType"),
        ("query", True, "pair", "forward of the term odd must return a tensor, not a tuple"),
        ("query", True, (H, 1, 8), "the rows of odd have 8 columns, which is not an odd number"),
        ("query", False, (H, 1, 6), "the rows of odd have 6 columns, not 2N - 1 = 11"),
        ("query", False, (H, 1, 12), "the rows of odd have 12 columns, not 2N - 1 = 11"),
    ],
)
def test_a_term_with_rows_of_a_wrong_shape_is_refused_in_one_line(
    monkeypatch, belongs_to, uses_kernel_size, shape, message
):
    class Odd(Term):
        def forward(self, x):
            if shape is None:
                return None
            if shape == "pair":
                return x, x
            return torch.zeros(shape, dtype=x.dtype)

    Odd.belongs_to = belongs_to
    Odd.uses_kernel_size = uses_kernel_size
    monkeypatch.setitem(TERMS, "odd", Odd)
    monkeypatch.setitem(VARIANTS, "odd", Variant("", terms=("odd",)))
    x, mask = padded_batch(6)
    with pytest.raises(ValueError, match=message) as refused:
        random_mixer("odd")(x, mask)
    assert "\n" not in str(refused.value)


def test_a_term_that_belongs_to_nothing_is_refused_in_one_line(monkeypatch):
    class Misspelled(Term):
        belongs_to = "keys"

    monkeypatch.setitem(TERMS, "misspelled", Misspelled)
    with pytest.raises(ValueError, match="belongs_to of the term misspelled is 'keys'") as refused:
        Variant("", terms=("misspelled",))
    assert "\n" not in str(refused.value)


# --- Terms without a window -----------------------------------------------------------------------

NARROW_AND_WIDE = {
    "fixed-alibi": ("fixed", "alibi"),
    "dynamic-t5": ("dynamic", "t5"),
    "fixed-dynamic-xl": ("fixed", "dynamic", "xl"),
    "rotary-key-fire": ("rotary", "key_dynamic", "fire"),
}


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("name", NARROW_AND_WIDE)
def test_terms_with_and_without_a_window_equal_the_loops_together(monkeypatch, name, beyond):
    """K below and above the 2N - 1 columns of a term without a window, and in blocks."""
    monkeypatch.setitem(VARIANTS, name, Variant("", terms=NARROW_AND_WIDE[name]))
    for N, kernel_size in ((2, 13), (5, 1), (6, 3), (6, 11)):
        assert_equals_loops(name, N, beyond, kernel_size=kernel_size)

    monkeypatch.setattr(attention, "LONGEST_WHOLE", 4)
    monkeypatch.setattr(kernels, "BLOCK", 2)
    assert_equals_loops(name, 5, beyond, kernel_size=3)


def test_terms_without_a_window_give_one_row_for_all_queries():
    """(H, 1, 2N - 1), so that their gradient never has N rows; xl needs a row per query."""
    for name in ("t5", "alibi", "fire"):
        rows = TERMS[name](mixer_config(name)).double()(draw(2, H, 9, d))
        assert rows.shape == (H, 1, 17)
        assert rows.dtype == torch.float64
    assert TERMS["xl"](mixer_config("xl")).double()(draw(2, H, 9, d)).shape == (2, H, 9, 17)


def test_t5s_buckets_are_those_of_its_docstring():
    """Read off a row whose table holds the number of each bucket."""
    term = TERMS["t5"](mixer_config("t5"))
    with torch.no_grad():
        term.beta.copy_(torch.arange(32.0))
    row = term(torch.zeros(1, H, 300, d))[0, 0].tolist()
    buckets = dict(zip(range(-299, 300), row, strict=True))
    for r, bucket in buckets.items():
        assert bucket == references.t5_bucket(r), r

    drawing = [line.split() for line in attention.T5.__doc__.splitlines()]
    _, _, _, _, *numbers = next(words for words in drawing if words[:1] == ["bucket"])
    _, _, _, _, *ranges = next(words for words in drawing if words[:1] == ["abs(r)"])
    for number, distances in zip(numbers, ranges, strict=False):
        first, _, last = distances.partition("-")
        assert buckets[-int(first)] == buckets[-int(last or 299)] == int(number)
        assert buckets[int(first)] == buckets[int(last or 299)] == int(number) + 16
    assert [buckets[-r] for r in range(8)] == list(range(8))


@pytest.mark.parametrize(
    "slopes",
    # The last slope is 1/256, whatever the number of heads, and each is the same part of the one
    # before: a quarter with four heads, a sixteenth with two.
    [(1 / 4, 1 / 16, 1 / 64, 1 / 256), (1 / 16, 1 / 256)],
    ids=["four heads", "two heads"],
)
def test_alibis_slopes_are_those_of_its_docstring(slopes):
    rows = TERMS["alibi"]()(torch.zeros(1, len(slopes), 3, 2))  # (H, 1, 5)
    for row, slope in zip(rows, slopes, strict=True):
        assert row[0].tolist() == [-2 * slope, -slope, 0, -slope, -2 * slope]


@pytest.mark.parametrize("log_L", [-6.0, -0.5])
def test_fire_measures_distances_by_L_or_by_a_longer_sequence(log_L):
    """L = 512 exp(-6) = 1.3, below N = 7; and 311. Values and all gradients."""
    term = randomise(TERMS["fire"](mixer_config("fire")).double(), 0.5)
    with torch.no_grad():
        term.log_L.fill_(log_L)
    weights = {f"terms.fire.{name}": x for name, x in term.named_parameters()}
    expected = []
    for h in range(H):
        scores = []
        for r in range(-6, 7):
            i, j = max(0, -r), max(0, r)
            given = (weights, None, None, i, j, h, mixer_config("fire"), 7)
            scores.append(references.fire_score(*given))
        expected.append(torch.stack(scores))
    expected = torch.stack(expected)[:, None]  # (H, 1, 2N - 1)
    got = term(draw(2, H, 7, d))
    assert_near(got, expected, 1e-10)

    # L gets a gradient only if it measures
    upstream = upstream_for(got)
    parameters = list(term.parameters())
    got = torch.autograd.grad(got, parameters, upstream)
    expected = torch.autograd.grad(expected, parameters, upstream, materialize_grads=True)
    assert_near(got, expected, 1e-10)


def test_fire_starts_with_the_papers_c_and_L():
    term = TERMS["fire"](mixer_config("fire"))
    assert 0.1 * term.log_c.exp() == 0.1
    assert 512 * term.log_L.exp() == 512


@pytest.mark.parametrize("variant", ["t5", "alibi", "fire", "xl", "rotary"])
def test_in_bf16_far_positions_are_still_told_apart(variant):
    """Angles and distances are computed in float32: bf16 has only every second number above 256."""
    mixer = random_mixer(variant).float()
    q = draw(1, H, 600, d).bfloat16()  # as a linear layer gives it under autocast
    exact_rows = mixer.double().sum_of_rows("query", q.double())
    exact_q, _ = mixer.content(q.double(), q.double())
    mixer.float()
    with torch.autocast("cpu", torch.bfloat16):
        rows = mixer.sum_of_rows("query", q)
        turned, _ = mixer.content(q, q)

    if exact_rows is not None:
        allowed = 0.02  # fire and xl have bf16 products
        if variant in ("t5", "alibi"):
            allowed = 1e-6
        assert (rows - exact_rows).abs().max() < allowed * exact_rows.abs().max()
    assert (turned - exact_q).abs().max() < 0.02 * exact_q.abs().max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_mixer_converted_to_bf16_takes_and_gives_bf16(variant):
    x, mask = padded_batch(6)
    mixer = random_mixer(variant).to(torch.bfloat16)
    assert mixer(x.bfloat16(), mask).dtype == torch.bfloat16


def test_the_first_layer_of_fire_is_the_same_under_autocast_with_queries_in_bf16():
    """bf16 would round its distances, and 600 of them would become 407."""
    term = randomise(TERMS["fire"](mixer_config("fire")), 0.5)
    seen = []
    term.output.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    term(torch.zeros(1, H, 600, d))
    with torch.autocast("cpu", torch.bfloat16):
        term(torch.zeros(1, H, 600, d, dtype=torch.bfloat16))  # as a linear layer gives them
    assert torch.equal(*seen)


@pytest.mark.parametrize(
    "variant, hidden_size, message",
    [
        ("rotary", 12, "pairs of channels: a head cannot have 3"),
        ("xl", 9, "as many sines as cosines: hidden_size cannot be 9"),
    ],
)
def test_an_odd_number_of_channels_is_refused_in_one_line(variant, hidden_size, message):
    with pytest.raises(ValueError, match=message) as refused:
        random_mixer(variant, hidden_size=hidden_size, heads=hidden_size // 3)
    assert "\n" not in str(refused.value)


# --- Convolutions in place of attention -----------------------------------------------------------

CONVOLUTIONS = [
    "lightconv",
    "dynamicconv",
    "dilated",
    "lightconv-hybrid",
    "dynamicconv-hybrid",
    "dilated-hybrid",
]


# Without dilation all layers are the same, except layer 1 of a hybrid.
LAYERS = []
for name in CONVOLUTIONS:
    layers = 5 if name.startswith("dilated") else 2
    LAYERS += [(name, layer) for layer in range(layers)]


@pytest.mark.parametrize("variant, layer", LAYERS)
@alone()
def test_every_layer_of_a_convolution_equals_its_loops(variant, layer):
    """Dilations 1, 2, 4, 8 and 1 again, whose reach ends within the sentence and beyond it.

    Layer 1 of a hybrid, its second one, is self-attention.
    """
    for N in (1, 5, 16, 19):
        assert_equals_loops(variant, N, layer=layer, kernel_size=3)


@pytest.mark.parametrize("variant", CONVOLUTIONS)
def test_neighbouring_weights_are_1_2_4_8_tokens_apart_in_dilated_layers(variant):
    """The loops read the dilations from the table of variants, so they cannot tell."""
    expected = [1, 1, 1, 1, 1]
    if variant.startswith("dilated"):
        expected = [1, 2, 4, 8, 1]
    for layer, dilation in enumerate(expected):
        mixer = random_mixer(variant, layer=layer, attention_layer=6)
        if variant.startswith("dynamic"):
            assert not hasattr(mixer, "dilation")
        else:
            assert mixer.dilation == dilation


@pytest.mark.parametrize("variant", CONVOLUTIONS)
@alone()
def test_hybrids_have_one_layer_of_self_attention_at_attention_layer(variant):
    """By default it is the last layer."""
    is_hybrid = variant.endswith("hybrid")
    for given, place in ((None, 5), (1, 1), (3, 3)):
        settings = dict(layers=5, vocab_size=30)
        if is_hybrid:
            settings["attention_layer"] = given
        config = BertConfig.from_size("tiny", variant, **settings)
        model = BertForMaskedLM(config)
        mixers = [type(layer.mixer).__name__ for layer in model.bert.layers]

        expected = ["LightConv"] * 5
        if variant.startswith("dynamic"):
            expected = ["DynamicConv"] * 5
        if is_hybrid:
            expected[place - 1] = "SelfAttention"
        assert mixers == expected


@pytest.mark.parametrize(
    "variant, layer, message",
    [
        ("lightconv", 1, "hybrid"),
        ("composite", 1, "hybrid"),
        ("dilated-hybrid", 5, "4 layers"),
        ("dilated-hybrid", 0, "attention_layer must be a whole number"),
    ],
)
def test_an_attention_layer_that_does_not_exist_is_refused_in_one_line(variant, layer, message):
    with pytest.raises(ValueError, match=message) as refused:
        BertConfig.from_size("tiny", variant, attention_layer=layer)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("N", [1, 5, 19])
@alone("GatedConvolution.gate")
def test_the_gate_alone_equals_its_loops(N):
    """g = a * sigmoid(b), and 0 at padding: values, and the gradients of x and of input."""
    mixer = random_mixer("lightconv")
    x, mask = padded_batch(N)
    weights = dict(mixer.named_parameters())
    inputs = (x.requires_grad_(), weights["input.weight"], weights["input.bias"])
    expected = references.gate(x, mask, weights)  # (B, N, C)
    got = mixer.gate(x, mask)
    assert_near(got, expected, 1e-10)

    upstream = upstream_for(got)
    got = torch.autograd.grad(got, inputs, upstream)
    assert_near(got, torch.autograd.grad(expected, inputs, upstream), 1e-10)


@pytest.mark.parametrize("N", [1, 2, 6, 11])
@alone("HalfConvolution.forward")
def test_half_convolution_alone_equals_its_loops(N):
    """Values, and the gradients of x and of all weights, without padding."""
    mixer = random_mixer("conv-v")
    x, mask = padded_batch(N)
    x.requires_grad_()
    mask = torch.ones_like(mask)
    weights = dict(mixer.named_parameters())
    own = [x, *(weight for name, weight in weights.items() if name.startswith("value."))]
    expected = references.half_convolution(x, mask, weights, "value")  # (B, N, C)
    got = mixer.value(x)
    assert_near(got, expected, 1e-10)

    upstream = upstream_for(got)
    got = torch.autograd.grad(got, own, upstream)
    assert_near(got, torch.autograd.grad(expected, own, upstream), 1e-10)


@alone()
def test_dropconnect_drops_weights_of_the_kernel_and_scales_the_others_up():
    """If g = 1 everywhere, z is the sum of the kernel's weights far from the ends.

    The sum is 1 without dropout, and otherwise the sum of the weights that are left.
    """
    mixer = random_mixer("lightconv", dropout=0.25, kernel_size=3).train()
    with torch.no_grad():
        mixer.weight.copy_(torch.tensor([0.1, 0.2, 0.7]).log().expand(H, 3))
    sums = [0, 0.1, 0.2, 0.3, 0.7, 0.8, 0.9, 1]
    possible = torch.tensor(sums, dtype=torch.float64) / 0.75

    g = torch.ones(2, 9, C, dtype=torch.float64)
    seen = set()
    for seed in range(40):
        torch.manual_seed(seed)
        z = mixer.convolution(g)[:, 1:-1]  # (2, 7, C)

        # one kernel for every position and sentence, and for every channel of a head
        assert torch.equal(z, z[:1, :1].expand_as(z))
        by_head = z[0, 0].view(H, d)
        assert torch.equal(by_head, by_head[:, :1].expand_as(by_head))

        # one of the possible sums
        distance = (by_head[:, :1] - possible).abs()  # (H, 8)
        assert distance.min(dim=1).values.max() < 1e-6
        seen.update(distance.argmin(dim=1).tolist())
    assert len(seen) >= 6

    z = mixer.eval().convolution(g)[:, 1:-1]
    assert_near(z, torch.ones_like(z), 1e-6)


def assert_drops_are_independent(kept):
    """Each sentence, token and head draws its own dropped weights.

    Args:
        kept: (B, N, heads), how many weights of a kernel are left.
    """
    assert not torch.equal(kept[0], kept[1])  # two sentences
    assert not torch.equal(kept[:, 0], kept[:, 1])  # two tokens
    assert not torch.equal(kept[..., 0], kept[..., 1])  # two heads


@alone()
def test_convbert_drops_weights_of_its_kernel_and_scales_the_others_up():
    """If all kernel weights are 1/3 and all values are 1, a convolution head gives the sum of the
    weights that are left: 0, 1, 2 or 3 times (1/3) / 0.75, another sum for each token and head.
    """
    mixer = random_mixer("convbert", dropout=0.25, kernel_size=3).train()
    with torch.no_grad():
        mixer.kernel.weight.zero_()
        mixer.kernel.bias.zero_()
        mixer.value.weight.zero_()
        mixer.value.bias.fill_(1.0)
        mixer.output.weight.copy_(torch.eye(C))
        mixer.output.bias.zero_()
    mask = torch.ones(4, 50, dtype=torch.bool)
    torch.manual_seed(0)
    x = torch.randn(4, 50, C, dtype=torch.float64)

    # far from the ends, where all three weights fall on tokens; the second half of the channels
    z = mixer(x, mask)[:, 1:-1, C // 2 :]  # (4, 48, C/2)
    by_head = z.unflatten(-1, (H // 2, d))  # (4, 48, H/2, d)
    assert torch.equal(by_head, by_head[..., :1].expand_as(by_head))
    kept = by_head[..., 0] * 3 * 0.75  # (4, 48, H/2)
    assert_near(kept, kept.round(), 1e-6)
    assert sorted(set(kept.round().flatten().tolist())) == [0, 1, 2, 3]
    assert_drops_are_independent(kept)

    # three of four weights stay; 4 * 48 * H/2 sums of three weights, 4 standard deviations
    share = kept.mean().item() / 3
    deviation = (0.75 * 0.25 / (3 * kept.numel())) ** 0.5
    assert abs(share - 0.75) < 4 * deviation

    z = mixer.eval()(x, mask)[:, 1:-1, C // 2 :]
    assert_near(z, torch.ones_like(z), 1e-6)


@alone()
def test_dynamicconv_drops_weights_of_its_kernels_and_scales_the_others_up():
    """As above: all kernel weights are 1/3 and g = 1, so z is the sum of the weights that are left.

    Dropout before the softmax would leave a sum of 1.
    """
    mixer = random_mixer("dynamicconv", dropout=0.25, kernel_size=3).train()
    nn.init.zeros_(mixer.kernel.weight)
    torch.manual_seed(0)
    z = mixer.convolution(torch.ones(4, 50, C, dtype=torch.float64))[:, 1:-1]  # (4, 48, C)
    by_head = z.unflatten(-1, (H, d))  # (4, 48, H, d)
    assert torch.equal(by_head, by_head[..., :1].expand_as(by_head))
    kept = by_head[..., 0] * 3 * 0.75  # (4, 48, H)
    assert_near(kept, kept.round(), 1e-6)
    assert sorted(set(kept.round().flatten().tolist())) == [0, 1, 2, 3]
    assert_drops_are_independent(kept)

    z = mixer.eval().convolution(torch.ones(4, 50, C, dtype=torch.float64))[:, 1:-1]
    assert_near(z, torch.ones_like(z), 1e-6)


@pytest.mark.parametrize("variant", ["none", "composite-conv-qk", "shaw", "convbert"])
@alone()
def test_attention_gets_the_dropout_of_the_config_in_training_and_none_otherwise(variant):
    given = []
    reference = attention.attention

    def note(*arguments, dropout=0.0, **options):
        given.append(dropout)
        return reference(*arguments, dropout=dropout, **options)

    mixer = random_mixer(variant, dropout=0.25)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "attention", note)
        mixer.train()(*padded_batch(5))
        mixer.eval()(*padded_batch(5))
    assert given == [0.25, 0.0]


@alone()
def test_terms_in_any_order_give_the_same_mixer(monkeypatch):
    """The same bits: initial values, names of the weights and output."""
    terms = ("fixed", "dynamic", "key_dynamic", "relative_value")
    monkeypatch.setitem(VARIANTS, "forwards", Variant("", terms=terms))
    monkeypatch.setitem(VARIANTS, "backwards", Variant("", terms=terms[::-1]))
    x, mask = padded_batch(9)

    torch.manual_seed(0)
    one = attention.make_mixer(mixer_config("forwards"), 0)
    torch.manual_seed(0)
    other = attention.make_mixer(mixer_config("backwards"), 0)
    assert list(one.state_dict()) == list(other.state_dict())
    for name, parameter in one.state_dict().items():
        assert torch.equal(parameter, other.state_dict()[name])
    assert torch.equal(one(x.float(), mask), other(x.float(), mask))


@pytest.mark.parametrize("variant", VARIANTS)
@alone()
def test_every_parameter_learns_except_key_biases_that_cannot(variant):
    """q_i . (k_j + b) adds one constant to all scores of query i, which the softmax ignores.

    So b, the bias of the key projection, learns only if keys enter the score in another way. Such
    constants are also the last bias of FIRE's function and that of Primer's convolution of the
    keys.
    """
    owners = [TERMS[name].belongs_to for name in VARIANTS[variant].terms]
    keys_make_a_term = any(owner not in ("query", "value") for owner in owners)
    # DeBERTa's positions see the bias; Primer's convolution of the keys sees where they end
    keys_make_a_term |= VARIANTS[variant].mixer.__name__ in ("Deberta", "Primer")
    model = small_model(variant)
    loss_of(model, random_tokens(2, 9)).backward()

    for name, parameter in model.named_parameters():
        largest = parameter.grad.abs().max()
        is_key_bias = ".key." in name and name.endswith("bias")
        is_constant = name.endswith(("terms.fire.output.bias", "mixer.convolutions.1.bias"))
        if is_constant or (is_key_bias and not keys_make_a_term):
            assert largest < 1e-13, f"{name} has a gradient"
        else:
            assert largest > 1e-9, f"{name} has no gradient"


# --- Padding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant, beyond", WITH_BEYOND)
@alone()
def test_neither_content_nor_amount_of_padding_changes_a_real_token(variant, beyond):
    model = small_model(variant, beyond=beyond)
    sentence = random_tokens(1, 7)
    alone = model(sentence)  # (1, 7, V)

    for amount in (1, 2, 9, 33):
        mask = torch.ones(1, 7 + amount, dtype=torch.bool)
        mask[:, 7:] = False
        for seed in (1, 2):
            padded = torch.cat([sentence, random_tokens(1, amount, seed=seed)], dim=1)
            got = model(padded, mask)[:, :7]
            assert_near(got, alone, 1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@alone()
def test_no_gradient_reaches_the_hidden_states_of_padding(variant):
    mixer = random_mixer(variant)
    x, mask = padded_batch(9)
    x.requires_grad_()
    mixer(x, mask)[mask].square().sum().backward()
    assert x.grad[~mask].eq(0).all()
    assert x.grad[mask].ne(0).any(-1).all()


# --- Properties that follow from the equations ----------------------------------------------------


QUERY_TABLES = {"fixed": "beta", "dynamic": "w"}  # the terms of the queries, and their tables
WITH_QUERY_TABLES = [
    (variant, term, table)
    for variant in VARIANTS
    for term, table in QUERY_TABLES.items()
    if term in VARIANTS[variant].terms
]


@pytest.mark.parametrize("variant, term, table", WITH_QUERY_TABLES)
@alone()
def test_gradients_of_relative_weights_sum_to_zero_with_clip(variant, term, table):
    """The softmax ignores a constant that is added to a row, so the K gradients of a query's row
    sum to 0. So do those of beta, in each head, and those of w over its K columns.

    With "zero" the keys beyond the window do not get this constant.
    """
    for beyond in BEYOND:
        mixer = random_mixer(variant, beyond=beyond)
        x, mask = padded_batch(10)
        mixer(x, mask)[mask].pow(3).sum().backward()
        gradient = getattr(mixer.terms[term], table).grad  # (H, K) or (d, K)
        ratio = gradient.sum(-1).abs() / gradient.abs().sum(-1)  # (H,) or (d,)
        if beyond == "clip":
            assert ratio.max() < 1e-12
        else:
            assert ratio.min() > 1e-9


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "fixed" in VARIANTS[name].terms])
@alone()
def test_a_constant_added_to_beta_changes_nothing_with_clip(variant):
    for beyond in BEYOND:
        mixer = random_mixer(variant, beyond=beyond)
        x, mask = padded_batch(10)
        before = mixer(x, mask)[mask]
        with torch.no_grad():
            per_head = torch.tensor([1.0, -2.0, 3.0, 0.5])
            mixer.terms["fixed"].beta += per_head[:, None]
        change = (mixer(x, mask)[mask] - before).abs().max()
        if beyond == "clip":
            assert change < 1e-12
        else:
            assert change > 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
@alone()
def test_only_none_ignores_word_order(variant):
    """In other words, only `none` commutes with permutations of the tokens."""
    model = small_model(variant)
    sentence = random_tokens(1, 12)
    order = torch.arange(12).roll(5).flip(0)
    difference = (model(sentence[:, order]) - model(sentence)[:, order]).abs().max()
    if variant == "none":
        assert difference < 1e-12
    else:
        assert difference > 1e-3, f"word order does not change the output of {variant}"


@pytest.mark.parametrize("variant", VARIANTS)
@alone()
def test_only_absolute_positions_know_where_a_sentence_begins(variant):
    """Behind padding, a sentence gives the same output: all other terms depend on j - i alone.

    FIRE's also depends on N, but only if N > L = 512.
    """
    model = small_model(variant)
    sentence = random_tokens(1, 8)
    alone = model(sentence)  # (1, 8, V)

    for shift in (1, 6, 30):
        before = random_tokens(1, shift, seed=1)
        after = random_tokens(1, 2, seed=2)
        shifted = torch.cat([before, sentence, after], dim=1)
        mask = torch.zeros(1, shift + 10, dtype=torch.bool)
        mask[:, shift : shift + 8] = True
        got = model(shifted, mask)[:, shift : shift + 8]

        difference = (got - alone).abs().max()
        if VARIANTS[variant].absolute:
            assert difference > 1e-3
        else:
            assert difference < 1e-12


@pytest.mark.parametrize("variant", VARIANTS)
@alone()
def test_dropout_acts_only_in_training(variant):
    x, mask = padded_batch(9)
    mixer = random_mixer(variant, dropout=0.5).eval()
    without = mixer(x, mask)
    assert torch.equal(without, mixer(x, mask))
    assert torch.equal(without, random_mixer(variant, dropout=0.0).train()(x, mask))

    first = mixer.train()(x, mask)
    second = mixer(x, mask)
    assert not torch.equal(first, second), f"dropout does not change the output of {variant}"


# --- The initial weights --------------------------------------------------------------------------


def new_model(variant):
    """A model of two layers with C = 64, with the weights that pre-training starts from."""
    config = BertConfig.from_size(
        "tiny", variant, vocab_size=30, layers=2, hidden_size=64, ffn_size=64, embedding_size=64
    )
    return BertForMaskedLM(config)


@pytest.mark.parametrize("variant", VARIANTS)
@alone("Mixer.initialise", "SelfAttention.initialise")
def test_the_linear_layers_of_our_mixers_have_berts_initial_weights(variant):
    """Weights normal(0, 0.02), biases 0. torch's own would have a deviation of 0.07 here."""
    torch.manual_seed(0)
    ours = [attention.SelfAttention, attention.ConvBert, attention.LightConv, attention.DynamicConv]
    ours += [attention.Canon, attention.Deberta]
    for layer in new_model(variant).bert.layers:
        if type(layer.mixer) not in ours:
            continue  # a new mixer may start as it likes
        for name, part in layer.mixer.named_modules():
            if isinstance(part, nn.Linear) and not name.startswith("terms.fire"):
                assert abs(part.weight.mean()) < 0.002, name
                assert abs(part.weight.std() - 0.02) < 0.002, name
                assert part.bias is None or part.bias.eq(0).all(), name


def test_t5_xl_deberta_and_fire_start_as_their_docstrings_say():
    torch.manual_seed(0)
    for layer in new_model("t5").bert.layers:
        assert layer.mixer.terms["t5"].beta.eq(0).all()
    for layer in new_model("xl").bert.layers:
        assert layer.mixer.terms["xl"].u.eq(0).all()
        assert layer.mixer.terms["xl"].v.eq(0).all()

    # normal(0, 0.02), within five standard errors
    P = new_model("deberta").bert.layers[0].mixer.P
    assert abs(P.mean()) < 5 * 0.02 / P.numel() ** 0.5
    assert abs(P.std() - 0.02) < 5 * 0.02 / (2 * P.numel()) ** 0.5

    # torch's initial values: within 1 and 1 / sqrt(32)
    for layer in new_model("fire").bert.layers:
        fire = layer.mixer.terms["fire"]
        assert 0.5 < fire.hidden.weight.abs().max() <= 1
        assert 0.1 < fire.output.weight.abs().max() <= 32**-0.5
        assert fire.hidden.bias.ne(0).all() and fire.output.bias.ne(0).all()


def check_initial_weights(model):
    """Linear and embedding weights normal(0, 0.02), biases 0, LayerNorms 1 and 0.

    Depthwise convolutions start as in PyTorch.
    """
    for name, module in model.named_modules():
        if ".terms.fire." in name:
            continue  # it initialises its weights itself
        if isinstance(module, (nn.Linear, nn.Embedding)):
            weight = module.weight
            # one standard error of a standard deviation is sigma / sqrt(2n): allow five
            error = 0.02 / (2 * weight.numel()) ** 0.5
            assert abs(weight.std().item() - 0.02) < 5 * error, name
            assert abs(weight.mean().item()) < 5 * 0.02 / weight.numel() ** 0.5, name
        if isinstance(module, nn.Linear) and module.bias is not None:
            assert (module.bias == 0).all(), name
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all() and (module.bias == 0).all(), name
        if isinstance(module, DepthwiseConvolution):
            # PyTorch's own initial values: uniform in +-1/sqrt(K)
            limit = module.weight.shape[-1] ** -0.5
            assert_uniform(module.weight, limit)
            assert_uniform(module.bias, limit)


@pytest.mark.parametrize("variant", VARIANTS)
def test_initial_weights_have_the_published_spread(variant):
    torch.manual_seed(0)
    check_initial_weights(BertForMaskedLM(BertConfig.from_size("tiny", variant, 2000)))


def test_initial_weights_of_the_composite_model_are_known_without_exception():
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig.from_size("tiny", vocab_size=2000))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif name.endswith(".beta"):
            assert (parameter == 0).all(), name
        elif name.endswith(".w"):
            # kaiming_uniform(a = sqrt 5) of a table (d, K): uniform up to 1 / sqrt(K)
            bound = 17**-0.5
            assert 0.9 * bound < parameter.abs().max() <= bound, name
        else:
            sigma = parameter.std().item()
            assert abs(sigma - 0.02) < 5 * 0.02 / (2 * parameter.numel()) ** 0.5, name
    assert (model.bert.layers[0].mixer.terms["fixed"].beta == 0).all()


def test_initial_weights_of_the_classifier_have_the_published_spread():
    torch.manual_seed(0)
    model = BertForClassification(BertConfig.from_size("tiny", vocab_size=2000), num_labels=3)
    check_initial_weights(model)


class Plain(Mixer):
    """A mixer that only has what Mixer gives it."""


class OwnInitialisation(Mixer):
    """A mixer that initialises its weights itself."""

    def __init__(self, config, variant, layer):
        super().__init__()
        self.linear = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, attention_mask):
        return self.linear(x)

    def initialise(self):
        nn.init.constant_(self.linear.weight, 3)
        nn.init.constant_(self.linear.bias, 4)


class NoInitialise(Mixer):
    """A mixer that does not initialise its weights itself."""

    def __init__(self, config, variant, layer):
        super().__init__()
        self.linear = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, attention_mask):
        return self.linear(x)


def test_a_mixers_own_initial_weights_are_kept_in_a_model(monkeypatch):
    monkeypatch.setitem(VARIANTS, "own-initialisation", Variant("", mixer=OwnInitialisation))
    for layer in new_model("own-initialisation").bert.layers:
        assert layer.mixer.linear.weight.eq(3).all()
        assert layer.mixer.linear.bias.eq(4).all()


def test_a_mixer_without_initialise_has_berts_initial_weights(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setitem(VARIANTS, "no-initialise", Variant("", mixer=NoInitialise))
    for layer in new_model("no-initialise").bert.layers:
        assert abs(layer.mixer.linear.weight.std() - 0.02) < 0.002
        assert layer.mixer.linear.bias.eq(0).all()


def test_the_parameters_of_composite_have_the_order_of_saved_optimizers():
    """A saved optimizer numbers the parameters in this order."""
    mixer = make_mixer(mixer_config("composite"), 0)
    assert [name for name, _ in mixer.named_parameters()] == [
        "terms.fixed.beta",
        "terms.dynamic.w",
        "query.weight",
        "query.bias",
        "key.weight",
        "key.bias",
        "value.weight",
        "value.bias",
        "output.weight",
        "output.bias",
    ]


@alone()
def test_x_is_projected_to_value_query_and_key_in_this_order():
    """The gradients of x are added in the reverse order, so another order changes their bits.

    (Only the place of value matters: the other two are added first, and their order is free.)
    """
    mixer = random_mixer("composite")
    called = []
    for name in ("query", "key", "value"):
        projection = getattr(mixer, name)
        projection.register_forward_hook(lambda *_, name=name: called.append(name))
    mixer(*padded_batch(3))
    assert called == ["value", "query", "key"]


def test_weights_are_drawn_layer_by_layer():
    """So the first layer of a model does not depend on how many layers there are."""
    first_layers = []
    for layers in (1, 2):
        torch.manual_seed(0)
        model = Bert(BertConfig.from_size("tiny", "depthwise", vocab_size=40, layers=layers))
        first_layers.append(model.layers[0].state_dict())
    one, two = first_layers
    for name, x in one.items():
        assert torch.equal(x, two[name]), name


def assert_uniform(numbers, limit):
    """All within +-limit, and with the spread of a uniform distribution and not of another one."""
    assert numbers.abs().max() <= limit
    assert numbers.abs().max() > 0.9 * limit

    # a uniform distribution has the variance limit^2 / 3; the variance of a square is 4/45 limit^4
    n = numbers.numel()
    assert abs(numbers.mean()) < 5 * limit / math.sqrt(3 * n)
    assert abs((numbers**2).mean() - limit**2 / 3) < 5 * limit**2 * math.sqrt(4 / 45 / n)


def test_beta_starts_at_0():
    for layer in new_model("composite").bert.layers:
        assert layer.mixer.terms["fixed"].beta.eq(0).all()


@pytest.mark.parametrize(
    "variant, term, table",
    [
        ("composite", "dynamic", "w"),
        ("composite-key", "dynamic", "w"),
        ("composite-key", "key_dynamic", "u"),
        ("shaw", "dynamic", "w"),
        ("shaw", "relative_value", "s"),
    ],
)
@alone("relative_table")
def test_the_tables_w_u_and_s_start_uniform_within_1_over_sqrt_K(variant, term, table):
    """K = 17. As kaiming_uniform_(a=sqrt(5)) has it; not normal, and not at 0."""
    torch.manual_seed(0)
    for layer in new_model(variant).bert.layers:
        assert_uniform(getattr(layer.mixer.terms[term], table), 1 / math.sqrt(17))


@alone()
def test_the_kernel_of_lightconv_starts_with_xaviers_range():
    """The authors' weight is (H, 1, K): its range is sqrt(6 / (K + H * K)), and not 0."""
    torch.manual_seed(0)
    config = mixer_config("lightconv", hidden_size=32, heads=16, kernel_size=17)
    weight = attention.make_mixer(config, 0).weight  # (H, K)
    assert_uniform(weight, math.sqrt(6 / (17 + 16 * 17)))


# --- Kernels, for figures -------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@alone()
def test_kernels_have_the_shapes_that_mixer_promises(variant):
    mixer = random_mixer(variant)
    for name, kernel in mixer.kernels().items():
        assert name == "fixed" or name.startswith("depthwise")
        if name == "fixed":
            assert kernel.shape == (H, K)
        else:
            assert kernel.shape == (C, K)

    x, mask = padded_batch(9)
    rows = mixer.token_kernels(x, mask)
    if rows is not None:
        heads = H
        if VARIANTS[variant].mixer is attention.ConvBert:
            heads = H // 2  # its convolution heads
        assert rows.shape == (B, heads, 9, K)


@alone()
def test_the_fixed_kernel_is_what_lightconv_does_to_a_single_token():
    """If only g_i is 1, z_(i-r) is the weight of r."""
    for variant in ("lightconv", "dilated", "lightconv-hybrid"):
        mixer = random_mixer(variant)
        p = mixer.kernels()["fixed"].softmax(-1)  # (H, K)
        g = torch.zeros(1, 2 * K + 1, C, dtype=torch.float64)
        g[:, K] = 1
        z = mixer.convolution(g)  # (1, N, C)
        for r in range(-(K // 2), K // 2 + 1):
            by_head = z[0, K - r].view(H, d)[:, 0]
            assert_near(by_head, p[:, r + K // 2], 1e-12)


@alone()
def test_the_kernel_of_canon_is_the_weight_of_its_convolution_of_the_input():
    mixer = random_mixer("canon")
    found = mixer.kernels()
    assert set(found) == {"depthwise, of the input"}
    assert torch.equal(found["depthwise, of the input"], mixer.canon.weight[:, 0])


@alone()
def test_the_kernel_of_convbert_is_the_weight_of_its_depthwise_convolution():
    mixer = random_mixer("convbert")
    found = mixer.kernels()
    assert set(found) == {"depthwise, of the input"}
    assert torch.equal(found["depthwise, of the input"], mixer.depthwise.weight[:, 0])


@alone()
def test_kernels_and_tables_of_two_terms_are_added(monkeypatch):
    """A second fixed term and a second table of values are not lost."""

    class SecondFixed(attention.Fixed):
        pass

    class SecondTable(attention.RelativeValue):
        pass

    monkeypatch.setitem(TERMS, "second_fixed", SecondFixed)
    monkeypatch.setitem(TERMS, "second_table", SecondTable)
    names = ("fixed", "second_fixed", "relative_value", "second_table")
    monkeypatch.setitem(VARIANTS, "twice", Variant("", terms=names))
    mixer = random_mixer("twice")

    terms = mixer.terms
    beta = terms["fixed"].beta + terms["second_fixed"].beta  # (H, K)
    assert_near(mixer.kernels()["fixed"], beta, 1e-12)
    s = terms["relative_value"].s + terms["second_table"].s  # (d, K)
    assert_near(mixer.sum_of_tables(), s, 1e-12)


@alone()
def test_token_kernels_of_two_terms_of_different_widths_are_added(monkeypatch):
    """The narrower one, with 3 columns, adds its end weights beyond r = -1 and r = 1."""

    class Narrow(attention.Dynamic):
        def forward(self, q):
            return super().forward(q)[..., K // 2 - 1 : K // 2 + 2]  # (B, H, N, 3)

    monkeypatch.setitem(TERMS, "narrow", Narrow)
    monkeypatch.setitem(VARIANTS, "two", Variant("", terms=("dynamic", "narrow")))
    mixer = random_mixer("two")
    x, mask = padded_batch(6)
    q = attention.split_heads(mixer.project(x, mask)[0], H)

    near = mixer.terms["narrow"](q)  # columns r = -1, 0, 1
    columns = [max(0, min(2, t - K // 2 + 1)) for t in range(K)]
    expected = mixer.terms["dynamic"](q) + near[..., columns]
    assert_near(mixer.token_kernels(x, mask), expected, 1e-12)


def test_a_mixer_has_no_kernels_if_it_does_not_say_so():
    mixer = Plain()
    assert mixer.kernels() == {}
    assert mixer.token_kernels(*padded_batch(3)) is None


@pytest.mark.parametrize("variant", ["none", "fixed", "conv-qk", "lightconv"])
@alone()
def test_without_a_dynamic_term_or_convolution_tokens_make_no_kernels(variant):
    assert random_mixer(variant).token_kernels(*padded_batch(3)) is None


def assert_token_kernels(variant, expected_at):
    """expected_at(x, mask, weights) gives the kernels (B, heads, N, K) at all real tokens."""
    mixer = random_mixer(variant)
    x, mask = padded_batch(7)
    got = mixer.token_kernels(x, mask).transpose(1, 2)  # (B, N, heads, K)
    expected = expected_at(x, mask, mixer.state_dict()).transpose(1, 2)
    assert_near(got[mask], expected[mask], 1e-12)


@pytest.mark.parametrize(
    "variant", ["dynamic", "composite", "composite-key", "shaw", "composite-conv-qk"]
)
@alone()
def test_token_kernels_of_the_dynamic_term_are_its_scores(variant):
    """q_i . w_r / sqrt(d), and nothing of the other terms."""

    def expected_at(x, mask, weights):
        q = references.projection(x, mask, weights, "query", VARIANTS[variant])  # (B, N, C)
        w = weights["terms.dynamic.w"]  # (d, K)
        kernels = torch.zeros(B, H, x.shape[1], K, dtype=torch.float64)
        for h in range(H):
            for t in range(K):  # the column of r = t - k
                for b in range(B):
                    for i in range(x.shape[1]):
                        q_i = q[b, i, h * d : (h + 1) * d]
                        kernels[b, h, i, t] = q_i @ w[:, t] / math.sqrt(d)
        return kernels

    assert_token_kernels(variant, expected_at)


@alone()
def test_token_kernels_of_convbert_are_its_linear_layer():
    def expected_at(x, mask, weights):
        rows = references.convbert_kernels(x, mask, weights)  # (B, N, H/2 * K)
        return rows.view(B, -1, H // 2, K).transpose(1, 2)

    assert_token_kernels("convbert", expected_at)


@alone()
def test_token_kernels_of_dynamicconv_are_its_linear_layer():
    def expected_at(x, mask, weights):
        g = references.gate(x, mask, weights)
        rows = references.linear(g, weights, "kernel")  # (B, N, H * K)
        return rows.view(B, -1, H, K).transpose(1, 2)

    assert_token_kernels("dynamicconv", expected_at)


# --- The table of variants ------------------------------------------------------------------------

COMPOSITE = {"fixed", "dynamic"}
QK = {"query.depthwise", "key.depthwise"}
V = {"value.depthwise"}

# The paper's variants: the terms, and the depthwise convolutions by the names of their weights.
HOLDS = {
    "none": (set(), set()),
    "absolute": (set(), set()),
    "fixed": ({"fixed"}, set()),
    "dynamic": ({"dynamic"}, set()),
    "composite": (COMPOSITE, set()),
    "composite-key": (COMPOSITE | {"key_dynamic"}, set()),
    "depthwise": (set(), {"depthwise"}),
    "composite-depthwise": (COMPOSITE, {"depthwise"}),
    "conv-qk": (set(), QK),
    "conv-v": (set(), V),
    "conv-qkv": (set(), QK | V),
    "composite-conv-qk": (COMPOSITE, QK),
    "composite-conv-v": (COMPOSITE, V),
    "composite-conv-qkv": (COMPOSITE, QK | V),
}

# What `kernels()` calls these convolutions.
NAMES_IN_KERNELS = {
    "depthwise": "depthwise, of the values",
    "query.depthwise": "depthwise, for the query",
    "key.depthwise": "depthwise, for the key",
    "value.depthwise": "depthwise, for the value",
}

# Parameters of BERT-small: C = 256, d = 64, H = 4, E = 128, 12 layers, a vocabulary of
# 30004, 128 positions, k = 8.
SMALL = {
    "none": 13_414_324,
    "absolute": 13_430_708,
    "fixed": 13_415_140,
    "dynamic": 13_427_380,
    "composite": 13_428_196,
    "composite-key": 13_441_252,
    "depthwise": 13_469_620,
    "composite-depthwise": 13_483_492,
    "conv-qk": 13_524_916,
    "conv-v": 13_469_620,
    "conv-qkv": 13_580_212,
    "composite-conv-qk": 13_538_788,
    "composite-conv-v": 13_483_492,
    "composite-conv-qkv": 13_594_084,
    "convbert": 13_094_540,
}

# What the paper prints of these. It also prints 13.53M for conv-qk, where this table has 13.52M.
PRINTED = {
    "none": "13.41M",
    "absolute": "13.43M",
    "fixed": "13.42M",
    "dynamic": "13.43M",
    "composite": "13.43M",
    "composite-key": "13.44M",
    "depthwise": "13.47M",
    "composite-depthwise": "13.48M",
    "conv-v": "13.47M",
    "conv-qkv": "13.58M",
    "composite-conv-qk": "13.54M",
    "composite-conv-v": "13.48M",
    "composite-conv-qkv": "13.59M",
    "convbert": "13.09M",
}

# The variants of other papers. A mixer of `none` has 4 (C^2 + C) = 263,168 parameters.
#   shaw         none, and two tables d * K per layer: + 12 * 2 * 64 * 17
#   lightconv    C -> 2C and C -> C with biases, 3 (C^2 + C), and H * K weights:
#                - 12 * (65,792 - 68)
#   dynamicconv  the same with a matrix C * H * K in place of the weights:
#                - 12 * (65,792 - 17,408)
#   dilated      as lightconv
#   hybrids      11 such layers and one of none
OTHERS = {
    "shaw": 13_440_436,
    "lightconv": 12_625_636,
    "dynamicconv": 12_833_716,
    "dilated": 12_625_636,
    "lightconv-hybrid": 12_691_360,
    "dynamicconv-hybrid": 12_882_100,
    "dilated-hybrid": 12_691_360,
}

# Further relative positions, counted from none.
#   t5           H * 32 scalars per layer: + 12 * 4 * 32
#   alibi        nothing to learn; nor has rotary
#   fire         layers 1 -> 32 and 32 -> H with biases, and c and L: + 12 * (64 + 132 + 2)
#   xl           W: C -> C without bias, and u and v, H * d each: + 12 * (65,536 + 2 * 256)
#   deberta      one table K * C for all layers: + 17 * 256
#   canon        a kernel of 5 and a bias per channel: + 12 * 6 * 256
FAMILY = {
    "t5": 13_415_860,
    "alibi": 13_414_324,
    "fire": 13_416_700,
    "xl": 14_206_900,
    "rotary": 13_414_324,
    "deberta": 13_418_676,
    "canon": 13_432_756,
}

# Parameters of BERT-base: C = E = 768, H = 12, d = 64, a feed-forward size of 3072.
#   embeddings  30004 * 768 tokens + 2 * 768 types + 2 * 768 norm                       23,046,144
#   per layer   4 (768^2 + 768) + (768 * 3072 + 3072) + (3072 * 768 + 768) + 4 * 768     7,087,872
#   12 layers                                                                           85,054,464
#   head        768^2 + 768 + 2 * 768 norm + 30004 biases; the decoder is tied             622,132
#   none        the sum                                                                108,722,740
#   absolute    + 128 * 768
#   fixed       + 12 layers * 12 heads * 17
#   dynamic     + 12 layers * 64 * 17
BASE = {
    "absolute": (108_821_044, "108.82M"),
    "fixed": (108_725_188, "108.73M"),
    "dynamic": (108_735_796, "108.74M"),
    "composite": (108_738_244, "108.74M"),
}


def count(size, variant):
    """The parameters of a model; on the device "meta" it has shapes without numbers."""
    with torch.device("meta"):
        model = BertForMaskedLM(BertConfig.from_size(size, variant, vocab_size=30004))
    return parameter_count(model)


@pytest.mark.parametrize("variant", HOLDS)
@alone()
def test_a_variant_has_the_terms_and_convolutions_of_the_paper_and_no_others(variant):
    terms, convolutions = HOLDS[variant]
    weights = random_mixer(variant).state_dict()

    # tables: beta has one row per head, the others have d
    tables = {name.split(".")[1]: x for name, x in weights.items() if name.startswith("terms.")}
    assert set(tables) == terms
    for name, table in tables.items():
        if name == "fixed":
            assert table.shape == (H, K)
        else:
            assert table.shape == (d, K)

    # convolutions
    found = [name for name in weights if name.endswith("depthwise.weight")]
    assert {name.removesuffix(".weight") for name in found} == convolutions


@pytest.mark.parametrize("variant", HOLDS)
@alone()
def test_kernels_are_the_weights_of_these_terms_and_convolutions(variant):
    terms, convolutions = HOLDS[variant]
    mixer = random_mixer(variant)
    weights = mixer.state_dict()

    expected = {}
    if "fixed" in terms:
        expected["fixed"] = weights["terms.fixed.beta"]
    for name in convolutions:
        expected[NAMES_IN_KERNELS[name]] = weights[f"{name}.weight"][:, 0]  # (C, 1, K) -> (C, K)

    found = mixer.kernels()
    assert set(found) == set(expected)
    for name, kernel in found.items():
        assert torch.equal(kernel, expected[name]), name


@pytest.mark.parametrize("variant", SMALL)
@alone()
def test_small_has_the_parameters_of_the_table_and_of_the_paper_where_it_prints_them(variant):
    assert count("small", variant) == SMALL[variant]
    if variant in PRINTED:
        assert f"{SMALL[variant] / 1e6:.2f}M" == PRINTED[variant]


@pytest.mark.parametrize("variant", OTHERS | FAMILY)
@alone()
def test_small_has_the_parameters_derived_above(variant):
    assert count("small", variant) == (OTHERS | FAMILY)[variant]


@pytest.mark.parametrize("variant", BASE)
@alone()
def test_base_has_the_parameters_of_the_paper(variant):
    parameters, printed = BASE[variant]
    assert count("base", variant) == parameters
    assert f"{parameters / 1e6:.2f}M" == printed


def test_the_table_has_the_fifteen_variants_of_the_paper_and_those_of_the_others():
    assert set(SMALL) | set(OTHERS) | set(FAMILY) <= set(VARIANTS)
    assert len(SMALL) == 15
    assert set(HOLDS) == set(SMALL) - {"convbert"}
    assert {name for name in SMALL if VARIANTS[name].absolute} == {"absolute", "convbert"}


def test_exactly_none_and_absolute_and_terms_without_a_window_have_no_kernel():
    ours = [*SMALL, *OTHERS, *FAMILY]
    without = {name for name in ours if not VARIANTS[name].has_kernel}
    assert without == {"none", "absolute", "t5", "alibi", "fire", "xl", "rotary"}


def test_a_mixer_or_term_that_does_not_use_the_kernel_size_has_no_kernel(monkeypatch):
    class Everywhere(Plain):
        uses_kernel_size = False

    class Slope(attention.Term):
        uses_kernel_size = False

    monkeypatch.setitem(TERMS, "slope", Slope)
    assert Variant("", mixer=Plain).has_kernel
    assert not Variant("", mixer=Everywhere).has_kernel
    assert not Variant("", terms=("slope",)).has_kernel
    assert Variant("", terms=("slope", "fixed")).has_kernel


@pytest.mark.parametrize("variant", ["none", "absolute"])
def test_a_variant_without_kernel_refuses_a_kernel_size(variant):
    assert BertConfig.from_size("tiny", variant).kernel_size is None
    with pytest.raises(ValueError, match=f"{variant} has no kernel") as refused:
        BertConfig.from_size("tiny", variant, kernel_size=5)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(terms=("fixed", "fixd")), "unknown term 'fixd'.*fixed, dynamic, key_dynamic"),
        (dict(convolutional=("values",)), "unknown projection 'values'.*query, key, value"),
        (dict(mixer=attention.ConvBert, terms=("fixed",)), "ConvBert does not use terms"),
        (dict(mixer=attention.LightConv, terms=("fixed",)), "LightConv does not use terms"),
        (dict(mixer=attention.DynamicConv, depthwise=True), "DynamicConv does not use depthwise"),
        (
            dict(mixer=attention.ConvBert, convolutional=("query",)),
            "ConvBert does not use convolutional",
        ),
        (
            dict(mixer=attention.DynamicConv, dilations=(1, 2)),
            "DynamicConv does not use dilations",
        ),
        (dict(dilations=(1, 2)), "SelfAttention does not use dilations"),
        (dict(mixer=Plain, terms=("fixed",)), "Plain does not use terms"),
        (dict(mixer=attention.Deberta, terms=("fixed",)), "Deberta does not use terms"),
        (dict(mixer=nn.Linear), "subclass of Mixer"),
        (dict(mixer=mixer_config), "subclass of Mixer"),
        (dict(mixer="SelfAttention"), "subclass of Mixer"),
        (dict(terms="fixed"), r"write \('fixed',\) with a comma"),
        (dict(convolutional="value"), r"write \('value',\) with a comma"),
        (dict(terms=("fixed", "dynamic", "fixed")), "'fixed' is named more than once"),
        (dict(terms=None), "the terms of a variant are a tuple, not None"),
        (dict(kernel_size=4), "kernel_size must be odd, not 4"),
        (dict(kernel_size="17"), "kernel_size must be a whole number, not '17'"),
        (dict(kernel_size=None), "kernel_size must be a whole number, not None"),
        (dict(kernel_size=-3), "kernel_size must be a whole number, not -3"),
        (dict(mixer=attention.LightConv, dilations=()), "dilations are whole numbers above 0"),
        (dict(mixer=attention.LightConv, dilations=(1, 0)), "dilations are whole numbers above 0"),
        (
            dict(mixer=attention.LightConv, dilations=(2)),
            r"in a tuple, such as .* or \(2,\), not 2",
        ),
    ],
)
def test_a_variant_whose_parts_do_not_go_together_is_refused_when_it_is_made(fields, message):
    with pytest.raises(ValueError, match=message) as refused:
        Variant("an equation", **fields)
    assert "\n" not in str(refused.value)


# --- A new variant --------------------------------------------------------------------------------


@pytest.mark.parametrize("beyond", BEYOND)
@alone()
def test_a_new_variant_of_existing_terms_is_one_line(monkeypatch, beyond):
    variant = Variant("content + beta_r + k_j.u_(i-j)", terms=("fixed", "key_dynamic"))
    monkeypatch.setitem(VARIANTS, "fixed-key", variant)
    assert_equals_loops("fixed-key", 9, beyond)

    # a model with it trains, and its masked logits are its logits
    model = small_model("fixed-key", beyond=beyond)
    ids = random_tokens(2, 9)
    logits, targets = model.masked_logits(model.bert(ids), ids)
    F.cross_entropy(logits, targets).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert logits.shape == (18, 30)
    assert_near(logits.view(2, 9, 30), model(ids), 1e-12)

    # per layer: H * K for beta, d * K for u
    assert count("small", "fixed-key") == SMALL["none"] + 12 * (4 * 17 + 64 * 17)


class Mean(Mixer):
    """z_i = the mean of x_j over the real tokens j, then a linear layer."""

    def __init__(self, config, variant, layer):
        super().__init__()
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, attention_mask):
        total = attention.zero_padding(x, attention_mask).sum(dim=1, keepdim=True)  # (B, 1, C)
        number = attention_mask.sum(dim=1)[:, None, None]  # (B, 1, 1)
        return self.output(total / number).expand_as(x)


@alone()
def test_a_new_variant_with_a_new_mixer_gives_every_parameter_a_gradient(monkeypatch):
    monkeypatch.setitem(VARIANTS, "mean", Variant("z_i = mean_j x_j", mixer=Mean))
    model = small_model("mean")
    loss_of(model, random_tokens(2, 9)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


class NewTerm(attention.Term):
    """A term without parameters, which no loop describes yet: + |r| per relative position."""

    def __init__(self, config):
        super().__init__()
        self.kernel_size = config.kernel_size

    def forward(self, q):
        k = self.kernel_size // 2
        row = torch.arange(-k, k + 1, dtype=q.dtype).abs()  # (K,)
        return row.expand(q.shape[1], q.shape[2], -1)  # (H, N, K)


def new_term_in_loops(weights, q_i, k_j, i, j, h, config, N):
    t = references.column(j - i, config.kernel_size, config.beyond)
    if t is None:
        return 0
    return abs(t - config.kernel_size // 2)


@pytest.mark.parametrize("belongs_to", ["query", "key"])
@alone()
def test_a_new_term_without_parameters_is_one_class_and_one_entry_in_the_loops(
    monkeypatch, belongs_to
):
    """It adds |r|, which is the same number as seen from the query and from the key."""
    monkeypatch.setattr(NewTerm, "belongs_to", belongs_to)
    monkeypatch.setitem(TERMS, "new-term", NewTerm)
    monkeypatch.setitem(VARIANTS, "new", Variant("", terms=("dynamic", "new-term")))
    monkeypatch.setitem(references.SCORE_TERMS, "new-term", new_term_in_loops)
    for beyond in BEYOND:
        assert_equals_loops("new", 9, beyond)


@alone()
def test_a_term_or_mixer_without_loops_fails_with_a_sentence_that_says_so(monkeypatch):
    monkeypatch.setitem(TERMS, "new-term", NewTerm)
    monkeypatch.setitem(VARIANTS, "new", Variant("", terms=("new-term",)))
    message = (
        "tests/references.py has no loop reference of the term 'new-term': "
        "add it to SCORE_TERMS or VALUE_TERMS"
    )
    with pytest.raises(NotImplementedError, match=message):
        assert_equals_loops("new", 3)

    monkeypatch.setitem(VARIANTS, "mean", Variant("z_i = mean_j x_j", mixer=Mean))
    message = "tests/references.py has no loop reference of the mixer Mean: add it to MIXERS"
    with pytest.raises(NotImplementedError, match=message):
        assert_equals_loops("mean", 3)
