"""attention.py: attention, convolutions and every mixer equal their equations.

From top to bottom: the paper in ten lines; the attention function; the terms; convolutions; every
mixer against the plain loops of tests/references.py; padding; properties that follow from the
equations; the initial weights; the kernels for figures; the table VARIANTS with the paper's
parameter counts; a new variant.
"""

import doctest
import inspect
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attention
import references
from attention import TERMS, VARIANTS, DepthwiseConvolution, Mixer, Term, Variant
from helpers import (
    B,
    C,
    H,
    K,
    assert_near,
    assert_same_with_gradients,
    attention_inputs,
    d,
    draw,
    go_in_blocks,
    lines_run,
    loss_of,
    mixer_config,
    padded_batch,
    random_mixer,
    random_tokens,
    randomise,
    results,
    small_model,
)
from kernels import BEYOND
from model import Bert, BertConfig, BertForClassification, BertForMaskedLM, parameter_count
from support.commands import UserError

# --- The paper in ten lines -----------------------------------------------------------------------


@pytest.mark.parametrize("N", [1, 2, 9, 70])
def test_the_ten_lines_equal_the_mixer_composite(N):
    """Values, and the gradients of the input and of every parameter."""
    mixer = random_mixer("composite")
    x = draw(2, N, C).requires_grad_()
    z = attention.composite_attention(
        mixer.query(x),
        mixer.key(x),
        mixer.value(x),
        mixer.terms["dynamic"].w,
        mixer.terms["fixed"].beta,
    )
    got = mixer(x, torch.ones(2, N, dtype=torch.bool))
    inputs = [x, *mixer.parameters()]
    assert_same_with_gradients(got, mixer.output(z), inputs, 1e-12)


def test_the_example_of_the_ten_lines_prints_what_its_docstring_says():
    failed, tried = doctest.testmod(attention)
    assert tried > 0 and failed == 0


def test_the_maps_of_the_ten_lines_are_those_that_their_docstring_draws():
    """q_i . k_j, q_i . w_(j-i), beta_(j-i) and the sum, one entry at a time."""
    q, k, w, beta = [1, -1, 0, 2], [0, 1, 0, 1], [-1, 0, 1], [1, 0, 2]
    lines = attention.composite_attention.__doc__.splitlines()
    start = next(number for number, line in enumerate(lines) if line.split()[:2] == ["q_i", "."])
    for i in range(4):
        drawn = [int(number) for number in lines[start + 1 + i].split()]
        for j in range(4):
            t = references.column(j - i, 3, "clip")
            parts = [q[i] * k[j], q[i] * w[t], beta[t]]
            assert [drawn[j], drawn[4 + j], drawn[8 + j], drawn[12 + j]] == [*parts, sum(parts)]


# --- The attention function -----------------------------------------------------------------------


@pytest.fixture
def maps_of_loops(monkeypatch):
    """attention() with loops in place of kernels.py: mistakes there do not fail its tests."""

    def add(scores, rows, beyond="clip", first=0):
        n, N = scores.shape[-2:]
        rows = rows.expand(*rows.shape[:-2], n, -1)  # 1 row or n rows -> n rows
        return scores + references.relative_scores(rows, N, beyond, first)

    monkeypatch.setattr(attention, "add_relative_scores", add)
    monkeypatch.setattr(attention, "relative_values", references.relative_values)


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize(
    "n, first, N, K",
    [
        (1, 0, 1, 3),
        (7, 0, 7, 1),
        (7, 0, 7, 5),
        (9, 0, 9, 33),
        (4, 3, 9, 5),  # a block of queries
        (2, 0, 10, 7),  # the kernel reaches beyond one end only
        (2, 8, 10, 7),
    ],
)
def test_attention_alone_equals_its_loops(maps_of_loops, n, first, N, K, beyond):
    """Values and all gradients, with padding and all terms, and without any."""
    inputs = attention_inputs(N, K, n)
    options = dict(beyond=beyond, first=first)
    expected = results(references.attention, inputs, **options)
    assert_near(results(attention.attention, inputs, **options), expected, 1e-10)

    inputs |= dict.fromkeys(("query_rows", "key_rows", "value_table"))
    expected = results(references.attention, inputs)
    assert_near(results(attention.attention, inputs), expected, 1e-10)


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("n, first, N", [(7, 0, 7), (2, 0, 10), (65, 0, 65), (66, 3, 70)])
def test_attention_with_its_maps_equals_the_loops(n, first, N, beyond):
    """Together with kernels.py, up to 64 tokens and above; and with one row for all tokens."""
    inputs = attention_inputs(N, 7, n, B=1)
    options = dict(beyond=beyond, first=first)
    expected = results(references.attention, inputs, **options)
    assert_near(results(attention.attention, inputs, **options), expected, 1e-10)

    for name in ("query_rows", "key_rows"):
        inputs[name] = inputs[name][0, :, :1].detach().requires_grad_()  # (H, 1, K)
    expected = results(references.attention, inputs, **options)
    assert_near(results(attention.attention, inputs, **options), expected, 1e-10)


@pytest.mark.parametrize("blocks", [False, True])
def test_the_weights_are_dropped_and_their_relative_values_with_them(monkeypatch, blocks):
    """The weights that are left are scaled up, whether in blocks of queries or not.

    The first 40 channels of the values are the identity, so these channels of z are the map of
    weights. The last 4 channels of the values are 0: there is what relative_value adds.
    """
    inputs = attention_inputs(40, 5)
    identity = torch.cat([torch.eye(40), torch.zeros(40, 4)], dim=-1).double()  # (N, 44)
    s = draw(4, 5)
    inputs["v"] = identity.expand(2, 2, 40, 44)
    inputs["value_table"] = torch.cat([torch.zeros(40, 5).double(), s])  # (44, K)
    p = attention.attention(**inputs)[..., :40]
    if blocks:
        go_in_blocks(monkeypatch, 8, 4)
    torch.manual_seed(0)
    z = attention.attention(**inputs, dropout=0.3)
    dropped = z[..., :40]

    kept = dropped > 0
    assert_near(dropped[kept], p[kept] / 0.7)
    assert abs(kept[p > 0].double().mean() - 0.7) < 0.05
    assert_near(z[..., 40:], references.relative_values(dropped, s, "clip"))


def test_attention_without_terms_is_that_of_torch():
    inputs = attention_inputs(9, 5)
    q, k, v, mask = (inputs[name] for name in ("q", "k", "v", "attention_mask"))
    expected = F.scaled_dot_product_attention(q, k, v, mask[:, None, None, :])
    assert_near(attention.attention(q, k, v, mask), expected, 1e-12)


@pytest.mark.parametrize("N", [40, 70])
def test_in_bf16_attention_is_near_to_float64_and_returns_bf16(N):
    """Values and gradients, without autocast and with it: within four steps of bf16."""
    inputs = attention_inputs(N, 9, dtype=torch.bfloat16, B=1)
    exact_inputs = dict(inputs)
    for name, x in inputs.items():
        if x.dtype == torch.bfloat16:
            exact_inputs[name] = x.detach().double().requires_grad_()
    exact = results(attention.attention, exact_inputs)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            got = results(attention.attention, inputs)
        for name in got:
            assert got[name].dtype == torch.bfloat16
            error = (got[name] - exact[name]).abs().max()
            assert error <= 4 * 2**-8 * exact[name].abs().max(), name


@pytest.mark.parametrize("N", [40, 150])
def test_attention_with_the_same_seed_is_the_same_to_the_bit(N):
    """Values and gradients, with dropout."""
    inputs = attention_inputs(N, 17, dtype=torch.float32)
    first = results(attention.attention, inputs, dropout=0.2)
    second = results(attention.attention, inputs, dropout=0.2)
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("blocks", [False, True])
def test_padding_gets_no_attention_and_no_gradient(monkeypatch, maps_of_loops, blocks):
    if blocks:
        go_in_blocks(monkeypatch, 4, 4)
    got = results(attention.attention, attention_inputs(9, 3))
    for name in ("k", "v", "key_rows"):
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


def test_attention_goes_in_blocks_exactly_above_longest_whole_queries(monkeypatch):
    """However many keys there are."""
    calls = []
    monkeypatch.setattr(attention, "attention_in_blocks", lambda *given: calls.append(given))
    assert attention.LONGEST_WHOLE == 1024
    for queries, keys, expected in ((1, 1, 0), (1024, 1024, 0), (3, 1025, 0), (1025, 3, 1)):
        calls.clear()
        q, k = torch.zeros(1, 1, queries, 1), torch.zeros(1, 1, keys, 1)
        attention.attention(q, k, k, torch.ones(1, keys, dtype=torch.bool))
        assert len(calls) == expected, f"{queries} queries, {keys} keys"


@pytest.mark.parametrize("N", [11, 70])
def test_compiled_attention_equals_the_uncompiled(N):
    """Values and all gradients: torch.compile's tracing, without its machine code."""
    inputs = attention_inputs(N, 5)
    compiled = torch.compile(attention.attention, backend="aot_eager", fullgraph=True)
    assert_near(results(compiled, inputs), results(attention.attention, inputs), 1e-12)
    torch._dynamo.reset()


def test_a_compiled_encoder_takes_long_sequences(monkeypatch):
    """The blocks are not compiled: the loop over them would become one long graph."""
    go_in_blocks(monkeypatch, 8, 4)
    model = small_model("composite")
    ids = random_tokens(2, 11)
    expected = model(ids)
    called = []

    def note_and_run(graph, example_inputs):
        called.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    model.bert.compile(backend=note_and_run, dynamic=False)
    assert_near(model(ids), expected, 1e-12)
    assert called
    assert not [name for name in called if "softmax" in name]


# --- No Python loop over the positions ------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_no_python_loop_over_the_positions_of_a_mixer(name):
    """More tokens do not run more lines."""
    mixer = random_mixer(name)

    def lines_for(N):
        return lines_run(mixer, draw(1, N, C), torch.ones(1, N, dtype=torch.bool))

    assert lines_for(34) == lines_for(60)


@pytest.mark.parametrize(
    "name",
    [
        "composite_attention",
        "split_heads",
        "merge_heads",
        "lowest_at_padding",
        "attention",
        "depthwise_convolution",
    ],
)
def test_no_python_loop_over_the_positions(maps_of_loops, name):
    def lines_for(N):
        by_head, rows, x = draw(1, H, N, d), draw(1, H, N, K), draw(1, N, C)
        mask, table = torch.ones(1, N, dtype=torch.bool), draw(d, K)
        arguments = {
            "composite_attention": (x, x, x, table, draw(H, K)),
            "split_heads": (x, H),
            "merge_heads": (by_head,),
            "lowest_at_padding": (mask, torch.float32),
            "attention": (by_head, by_head, by_head, mask, rows, rows, table),
            "depthwise_convolution": (x, draw(C, K)),
        }
        return lines_run(getattr(attention, name), *arguments[name])

    assert lines_for(34) == lines_for(60)


# --- Terms ----------------------------------------------------------------------------------------


def scores_of_term(term, q, k, beyond):
    """What a term adds to the scores (B, H, N, N), from its rows and its content."""
    N = q.shape[-2]
    own_q, own_k = term.queries_and_keys(q, k)
    scores = (own_q @ own_k.transpose(-1, -2) - q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    query_rows, key_rows = term.query_rows(q), term.key_rows(k)
    if query_rows is not None:
        query_rows = query_rows.expand(*query_rows.shape[:-2], N, -1)
        scores = scores + references.relative_scores(query_rows, N, beyond)
    if key_rows is not None:
        scores = scores + references.key_scores(key_rows, N, beyond)
    return scores


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("name", [name for name in TERMS if name in references.SCORE_TERMS])
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
        for b, h, i, j in torch.cartesian_prod(*(torch.arange(s) for s in (2, 2, N, N))).tolist():
            given = (parameters, q[b, h, i], k[b, h, j], i, j, h, config, N)
            score = references.SCORE_TERMS[name](*given)
            expected.append(torch.as_tensor(score, dtype=torch.float64))
        expected = torch.stack(expected).reshape(2, 2, N, N)
        got = scores_of_term(term, q, k, beyond).expand(2, 2, N, N)
        if expected.requires_grad:
            assert_same_with_gradients(got, expected, [q, k, *parameters.values()])
        assert_near(got, expected, 1e-10)


# any variant with the term
VARIANTS_OF_TERMS = {term: name for name in VARIANTS for term in VARIANTS[name].terms}


NARROW_AND_WIDE = {
    "fixed-alibi": ("fixed", "alibi"),
    "dynamic-t5": ("dynamic", "t5"),
    "fixed-dynamic-xl": ("fixed", "dynamic", "xl"),
    "rotary-key-fire": ("rotary", "key_dynamic", "fire"),
}


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("name", NARROW_AND_WIDE)
def test_the_terms_of_a_variant_are_added_whatever_their_widths(monkeypatch, name, beyond):
    """K below and above the 2N - 1 columns of a term without a window, and in blocks."""
    monkeypatch.setitem(VARIANTS, name, Variant("", terms=NARROW_AND_WIDE[name]))
    for N, kernel_size in ((2, 13), (5, 1), (6, 3), (6, 11)):
        assert_equals_loops(name, N, beyond, kernel_size=kernel_size)

    go_in_blocks(monkeypatch, 4, 2)
    assert_equals_loops(name, 5, beyond, kernel_size=3)


def test_rows_that_all_queries_share_are_one_row():
    """(H, 1, K) or (H, 1, 2N - 1), so that their gradient never has N rows."""
    for name, columns in (("fixed", K), ("t5", 17), ("alibi", 17), ("fire", 17)):
        config = mixer_config("fixed")
        assert TERMS[name](config).query_rows(draw(2, H, 9, d)).shape == (H, 1, columns)


def test_t5s_buckets_are_those_of_its_docstring():
    """Read off a row whose table holds the number of each bucket."""
    term = TERMS["t5"](mixer_config("t5"))
    with torch.no_grad():
        term.beta.copy_(torch.arange(32.0))
    row = term.query_rows(torch.zeros(1, H, 300, d))[0, 0].tolist()
    buckets = dict(zip(range(-299, 300), row, strict=True))
    for r, bucket in buckets.items():
        assert bucket == references.t5_bucket(r), r

    # where the wide buckets begin, and the last distance of each
    table = " ".join(attention.T5.__doc__.split())
    assert "8-11 12-15 16-22 23-31 32-45 46-63 64-90 91 and more" in table
    for bucket, first in enumerate((8, 12, 16, 23, 32, 46, 64, 91), start=8):
        assert (buckets[-first], buckets[1 - first]) == (bucket, bucket - 1)


@pytest.mark.parametrize(
    "slopes",
    # The last slope is 1/256, whatever the number of heads, and each is the same part of the one
    # before: a quarter with four heads, a sixteenth with two.
    [(1 / 4, 1 / 16, 1 / 64, 1 / 256), (1 / 16, 1 / 256)],
    ids=["four heads", "two heads"],
)
def test_alibis_slopes_are_those_of_its_docstring(slopes):
    rows = TERMS["alibi"]().query_rows(torch.zeros(1, len(slopes), 3, 2))  # (H, 1, 5)
    for row, slope in zip(rows, slopes, strict=True):
        assert row[0].tolist() == [-2 * slope, -slope, 0, -slope, -2 * slope]


def test_fire_starts_with_the_papers_c_and_L():
    term = TERMS["fire"](mixer_config("fire"))
    assert 0.1 * term.log_c.exp() == 0.1
    assert 512 * term.log_L.exp() == 512


@pytest.mark.parametrize("variant", ["t5", "alibi", "fire", "xl", "rotary"])
def test_in_bf16_far_positions_are_still_told_apart(variant):
    """Angles and distances are computed in float32: bf16 has only every second number above 256."""
    mixer = random_mixer(variant).float()
    q = draw(1, H, 600, d).bfloat16()  # as a linear layer gives it under autocast
    exact_q, _, exact_rows, _, _ = mixer.double().apply_terms(q.double(), q.double())
    mixer.float()
    with torch.autocast("cpu", torch.bfloat16):
        turned, _, rows, _, _ = mixer.apply_terms(q, q)

    if exact_rows is not None:
        allowed = 0.02  # fire and xl have bf16 products
        if variant in ("t5", "alibi"):
            allowed = 1e-6
        assert (rows - exact_rows).abs().max() < allowed * exact_rows.abs().max()
    assert (turned - exact_q).abs().max() < 0.02 * exact_q.abs().max()


def test_the_first_layer_of_fire_is_the_same_under_autocast_with_queries_in_bf16():
    """bf16 would round its distances, and 600 of them would become 407."""
    term = randomise(TERMS["fire"](mixer_config("fire")), 0.5)
    seen = []
    term.output.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    term.query_rows(torch.zeros(1, H, 600, d))
    with torch.autocast("cpu", torch.bfloat16):
        term.query_rows(
            torch.zeros(1, H, 600, d, dtype=torch.bfloat16)
        )  # as a linear layer gives them
    assert torch.equal(*seen)


@pytest.mark.parametrize(
    "variant, heads, hidden_size, message",
    [
        ("rotary", 4, 12, "rotates pairs of channels: the channels of a head must be even, not 3"),
        ("xl", 3, 9, "as many sines as cosines: hidden_size must be even, not 9"),
        ("conv-v", 3, 12, "half of the heads are convolutions: heads must be even, not 3"),
        ("composite-conv-qk", 3, 12, "heads must be even, not 3"),
        ("convbert", 3, 12, "heads must be even, not 3"),
    ],
)
def test_an_odd_number_where_a_variant_needs_an_even_one_is_a_mistake_of_the_user(
    variant, heads, hidden_size, message
):
    with pytest.raises(UserError, match=message) as refused:
        random_mixer(variant, hidden_size=hidden_size, heads=heads)
    assert "\n" not in str(refused.value)


# --- Convolutions ---------------------------------------------------------------------------------


def test_depthwise_convolution_starts_and_computes_like_torchs():
    torch.manual_seed(0)
    ours = DepthwiseConvolution(6, 5).double()
    torch.manual_seed(0)
    torchs = nn.Conv1d(6, 6, 5, padding=2, groups=6).double()
    x = draw(2, 9, 6).requires_grad_()  # (B, N, C)
    y = torchs(x.transpose(1, 2)).transpose(1, 2)
    assert_near(ours(x), y)

    got = torch.autograd.grad(ours(x).pow(2).sum(), (x, ours.weight, ours.bias))
    assert_near(got, torch.autograd.grad(y.pow(2).sum(), (x, torchs.weight, torchs.bias)), 1e-10)


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


@pytest.mark.parametrize("N", [1, 5, 19])
def test_the_gate_alone_equals_its_loops(N):
    """g = a * sigmoid(b), and 0 at padding. In training, too: dropout is for the kernels alone."""
    mixer = random_mixer("lightconv", dropout=0.5).train()
    x, mask = padded_batch(N)
    weights = dict(mixer.named_parameters())
    inputs = [x.requires_grad_(), weights["input.weight"], weights["input.bias"]]
    expected = references.gate(x, mask, weights)  # (B, N, C)
    assert_same_with_gradients(mixer.gate(x, mask), expected, inputs)


@pytest.mark.parametrize("N", [1, 2, 6, 11])
def test_half_convolution_alone_equals_its_loops(N):
    """Values, and the gradients of x and of all weights, without padding."""
    mixer = random_mixer("conv-v")
    x, mask = padded_batch(N)
    weights = dict(mixer.named_parameters())
    own = [weight for name, weight in weights.items() if name.startswith("value.")]
    everywhere = torch.ones_like(mask)
    expected = references.half_convolution(x.requires_grad_(), everywhere, weights, "value")
    assert_same_with_gradients(mixer.value(x), expected, [x, *own])


def assert_kernels_are_dropped(z, heads, is_training):
    """z (B, N, heads * d): sums of kernels of three weights 1/3, each dropped with p = 0.25.

    So z is 0, 1, 2 or 3 times (1/3) / 0.75, another sum for each sentence, token and head, and the
    same for the channels of a head. Dropout before the softmax would leave a sum of 1.
    """
    by_head = z.unflatten(-1, (heads, -1))  # (B, N, heads, d)
    assert torch.equal(by_head, by_head[..., :1].expand_as(by_head))
    if not is_training:
        assert_near(z, torch.ones_like(z), 1e-6)
        return
    kept = by_head[..., 0] * 3 * 0.75  # (B, N, heads)
    assert_near(kept, kept.round(), 1e-6)
    assert sorted(set(kept.round().flatten().tolist())) == [0, 1, 2, 3]
    assert not torch.equal(kept[0], kept[1])  # two sentences
    assert not torch.equal(kept[:, 0], kept[:, 1])  # two tokens
    assert not torch.equal(kept[..., 0], kept[..., 1])  # two heads

    # three of four weights stay, within 4 standard deviations
    deviation = (0.75 * 0.25 / (3 * kept.numel())) ** 0.5
    assert abs(kept.mean().item() / 3 - 0.75) < 4 * deviation


@pytest.mark.parametrize("is_training", [True, False])
def test_convbert_drops_weights_of_its_kernels_and_scales_the_others_up(is_training):
    """All kernels are 1/3, and all values 1. Far from the ends, all three weights meet tokens."""
    mixer = random_mixer("convbert", dropout=0.25, kernel_size=3).train(is_training)
    for part in (mixer.kernel, mixer.value, mixer.output):
        nn.init.zeros_(part.weight)
        nn.init.zeros_(part.bias)
    nn.init.ones_(mixer.value.bias)
    nn.init.eye_(mixer.output.weight)
    torch.manual_seed(0)
    z = mixer(draw(4, 50, C), torch.ones(4, 50, dtype=torch.bool))[:, 1:-1]
    assert_kernels_are_dropped(z[..., C // 2 :], H // 2, is_training)  # the convolution heads


def test_lightconv_drops_weights_of_its_kernel_and_scales_the_others_up():
    """DropConnect: one kernel per head, the same at every position and in every sentence."""
    mixer = random_mixer("lightconv", dropout=0.25, kernel_size=3).train()
    nn.init.zeros_(mixer.weight)
    ones = torch.ones(2, 9, C, dtype=torch.float64)
    seen = []
    for seed in range(40):
        torch.manual_seed(seed)
        z = mixer.convolution(ones)[:, 1:-1]
        assert torch.equal(z, z[:1, :1].expand_as(z))
        seen.append(z[0, 0])
    assert_kernels_are_dropped(torch.stack(seen).view(2, 20, C), H, is_training=True)
    assert_kernels_are_dropped(mixer.eval().convolution(ones)[:, 1:-1], H, is_training=False)


@pytest.mark.parametrize("is_training", [True, False])
def test_dynamicconv_drops_weights_of_its_kernels_and_scales_the_others_up(is_training):
    mixer = random_mixer("dynamicconv", dropout=0.25, kernel_size=3).train(is_training)
    nn.init.zeros_(mixer.kernel.weight)
    torch.manual_seed(0)
    z = mixer.convolution(torch.ones(4, 50, C, dtype=torch.float64))[:, 1:-1]
    assert_kernels_are_dropped(z, H, is_training)


@pytest.mark.parametrize("variant", ["none", "composite-conv-qk", "shaw", "convbert"])
def test_attention_gets_the_dropout_of_the_config_in_training_and_none_otherwise(
    monkeypatch, variant
):
    given = []
    reference = attention.attention

    signature = inspect.signature(reference)

    def note(*arguments, **options):
        bound = signature.bind(*arguments, **options)
        given.append(bound.arguments["dropout"])
        return reference(*arguments, **options)

    mixer = random_mixer(variant, dropout=0.25)
    monkeypatch.setattr(attention, "attention", note)
    mixer.train()(*padded_batch(5))
    mixer.eval()(*padded_batch(5))
    assert given == [0.25, 0.0]


# --- Every mixer against the plain loops ----------------------------------------------------------


def assert_equals_loops(variant, N, beyond="clip", layer=0, **settings):
    """The output at real tokens, and the gradients of the input and of every parameter."""
    mixer = random_mixer(variant, layer, beyond=beyond, **settings)
    config = mixer_config(variant, beyond=beyond, **settings)
    weights = dict(mixer.named_parameters())
    x, mask = padded_batch(N)
    x.requires_grad_()
    expected = references.mixer(x, mask, weights, config, layer)[mask]  # (real tokens, C)
    assert_same_with_gradients(mixer(x, mask)[mask], expected, [x, *weights.values()])


WITH_BEYOND = [(name, "clip") for name in VARIANTS]
WITH_BEYOND += [(name, "zero") for name, variant in VARIANTS.items() if variant.uses_beyond]


# N shorter and longer than the kernel, odd and even; K smaller and larger than the sequence
@pytest.mark.parametrize("N, kernel_size", [(1, 5), (2, 13), (3, 1), (6, 3), (11, 5)])
@pytest.mark.parametrize("variant, beyond", WITH_BEYOND)
def test_mixer_equals_its_loops_in_values_and_gradients(variant, beyond, N, kernel_size):
    if VARIANTS[variant].has_kernel:
        assert_equals_loops(variant, N, beyond, kernel_size=kernel_size)
    else:
        assert_equals_loops(variant, N, beyond)


@pytest.mark.parametrize("variant, beyond", WITH_BEYOND)
def test_mixer_equals_its_loops_in_blocks(monkeypatch, variant, beyond):
    go_in_blocks(monkeypatch, 6, 3)
    assert_equals_loops(variant, 7, beyond)


@pytest.mark.parametrize("variant", VARIANTS)
def test_beyond_changes_the_output_only_of_variants_that_use_it(variant):
    """Of two mixers with the same weights. N = 11 is longer than the window."""
    clip = random_mixer(variant, beyond="clip")
    zero = random_mixer(variant, beyond="zero")
    x, mask = padded_batch(11)
    is_equal = torch.equal(clip(x, mask)[mask], zero(x, mask)[mask])
    assert is_equal == (not VARIANTS[variant].uses_beyond)


# --- Convolutions in place of attention -----------------------------------------------------------

CONVOLUTIONS = ["lightconv", "dynamicconv", "dilated"]
CONVOLUTIONS += [f"{name}-hybrid" for name in CONVOLUTIONS]

# Without dilation all layers are the same, except layer 1 of a hybrid.
LAYERS = []
for name in CONVOLUTIONS:
    layers = 5 if name.startswith("dilated") else 2
    LAYERS += [(name, layer) for layer in range(layers)]


@pytest.mark.parametrize("variant, layer", LAYERS)
def test_every_layer_of_a_convolution_equals_its_loops(variant, layer):
    """Dilations 1, 2, 4, 8 and 1 again, whose reach ends within the sentence and beyond it.

    Layer 1 of a hybrid, its second one, is self-attention.
    """
    for N in (1, 5, 19):
        assert_equals_loops(variant, N, layer=layer, kernel_size=3)


def test_neighbouring_weights_are_1_2_4_8_tokens_apart_in_dilated_layers():
    """The loops read the dilations from the table of variants, so they cannot tell."""
    for variant, expected in (("dilated", [1, 2, 4, 8, 1]), ("lightconv", [1, 1, 1, 1, 1])):
        found = [random_mixer(variant, layer=layer).dilation for layer in range(5)]
        assert found == expected


@pytest.mark.parametrize("variant", CONVOLUTIONS)
def test_hybrids_have_one_layer_of_self_attention_at_attention_layer(variant):
    """Counted from 1; by default it is the last layer."""
    ours = "DynamicConv" if variant.startswith("dynamic") else "LightConv"
    for given, place in ((None, 5), (1, 1), (3, 3)):
        expected = [ours] * 5
        settings = dict(layers=5, vocab_size=30)
        if variant.endswith("hybrid"):
            settings["attention_layer"] = given
            expected[place - 1] = "SelfAttention"
        model = BertForMaskedLM(BertConfig.from_size("tiny", variant, **settings))
        assert [type(layer.mixer).__name__ for layer in model.bert.layers] == expected


ONLY_CONTENT = ("SelfAttention", "Canon", "ConvBert", "ReleasedConvBert")
ONLY_CONTENT += ("LightConv", "DynamicConv")


def key_bias_learns(variant):
    """Whether the bias of the keys learns. None: a term or mixer that this test does not know."""
    terms = VARIANTS[variant].terms
    mixer = VARIANTS[variant].mixer.__name__
    # DeBERTa's positions see the bias; Primer's convolution of the keys sees where they end
    if "key_dynamic" in terms or "rotary" in terms or mixer in ("Deberta", "Primer"):
        return True
    for name in terms:
        changes_keys = TERMS[name].queries_and_keys is not Term.queries_and_keys
        if TERMS[name].key_rows is not Term.key_rows or (changes_keys and name != "xl"):
            return None
    return False if mixer in ONLY_CONTENT else None


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_learns_except_key_biases_that_cannot(variant):
    """q_i . (k_j + b) adds one constant to all scores of query i, which the softmax ignores.

    So b, the bias of the key projection, learns only if keys enter the score in another way. Such
    constants are also the last bias of FIRE's function and that of Primer's convolution of the
    keys. Whether b learns in a term or mixer of your own is not asked.
    """
    learns = key_bias_learns(variant)
    model = small_model(variant)
    loss_of(model, random_tokens(2, 9)).backward()

    for name, parameter in model.named_parameters():
        largest = parameter.grad.abs().max()
        is_key_bias = ".key." in name and name.endswith("bias")
        is_constant = name.endswith(("terms.fire.output.bias", "mixer.convolutions.1.bias"))
        if is_constant or (is_key_bias and learns is False):
            assert largest < 1e-13, f"{name} has a gradient"
        elif not is_key_bias or learns:
            assert largest > 1e-9, f"{name} has no gradient"


# --- Padding --------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant, beyond", WITH_BEYOND)
def test_neither_content_nor_amount_of_padding_changes_a_real_token(variant, beyond):
    model = small_model(variant, beyond=beyond)
    sentence = random_tokens(1, 7)
    alone = model(sentence)  # (1, 7, V)

    for amount in (1, 9, 33):
        mask = torch.ones(1, 7 + amount, dtype=torch.bool)
        mask[:, 7:] = False
        for seed in (1, 2):
            padded = torch.cat([sentence, random_tokens(1, amount, seed=seed)], dim=1)
            got = model(padded, mask)[:, :7]
            assert_near(got, alone, 1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_gradient_reaches_the_hidden_states_of_padding(variant):
    mixer = random_mixer(variant)
    x, mask = padded_batch(9)
    x.requires_grad_()
    mixer(x, mask)[mask].square().sum().backward()
    assert x.grad[~mask].eq(0).all()
    assert x.grad[mask].ne(0).any(-1).all()


# --- Properties that follow from the equations ----------------------------------------------------


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "fixed" in VARIANTS[name].terms])
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
def test_only_absolute_positions_know_where_a_sentence_begins(variant):
    """Behind padding, a sentence gives the same output: all other terms depend on j - i alone.

    FIRE's also depends on N, but only if N > L = 512.
    """
    model = small_model(variant)
    sentence = random_tokens(1, 8)
    alone = model(sentence)  # (1, 8, V)

    for shift in (1, 30):
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


def test_fixed_t5_xl_deberta_and_fire_start_as_their_docstrings_say():
    torch.manual_seed(0)
    for layer in new_model("fixed").bert.layers:
        assert layer.mixer.terms["fixed"].beta.eq(0).all()
    for layer in new_model("t5").bert.layers:
        assert layer.mixer.terms["t5"].beta.eq(0).all()
    for layer in new_model("xl").bert.layers:
        assert layer.mixer.terms["xl"].b_c.eq(0).all()
        assert layer.mixer.terms["xl"].b_p.eq(0).all()

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


def test_initial_weights_of_the_classifier_have_the_published_spread():
    torch.manual_seed(0)
    model = BertForClassification(BertConfig.from_size("tiny", vocab_size=2000), num_labels=3)
    check_initial_weights(model)


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


class NoInitialise(OwnInitialisation):
    """A mixer that does not initialise its weights itself."""

    initialise = Mixer.initialise


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
def test_the_tables_w_u_and_s_start_uniform_within_1_over_sqrt_K(variant, term, table):
    """K = 17. As kaiming_uniform_(a=sqrt(5)) has it; not normal, and not at 0."""
    torch.manual_seed(0)
    for layer in new_model(variant).bert.layers:
        assert_uniform(getattr(layer.mixer.terms[term], table), 1 / math.sqrt(17))


def test_the_kernel_of_lightconv_starts_with_xaviers_range():
    """The authors' weight is (H, 1, K): its range is sqrt(6 / (K + H * K)), and not 0."""
    torch.manual_seed(0)
    config = mixer_config("lightconv", hidden_size=32, heads=16, kernel_size=17)
    weight = attention.mixer_of_layer(config, 0).weight  # (H, K)
    assert_uniform(weight, math.sqrt(6 / (17 + 16 * 17)))


# --- Rows and kernels, for figures ----------------------------------------------------------------


@pytest.mark.parametrize("variant", ["canon", "convbert"])
def test_the_kernel_of_canon_and_convbert_is_the_weight_of_their_convolution_of_the_input(variant):
    mixer = random_mixer(variant)
    convolution = mixer.canon if variant == "canon" else mixer.depthwise
    kernels = mixer.depthwise_kernels()
    assert set(kernels) == {"of the input"}
    assert torch.equal(kernels["of the input"], convolution.weight[:, 0])


def test_the_fixed_kernel_of_lightconv_is_the_softmax_of_its_weight():
    """The mixer equals the loops of references.py, in which this is the kernel."""
    mixer = random_mixer("lightconv")
    assert mixer.depthwise_kernels() == {}
    assert torch.equal(mixer.fixed_rows(), mixer.weight)


@pytest.mark.parametrize("variant", ["none", "fixed", "t5", "conv-qk", "lightconv"])
def test_without_a_dynamic_term_or_convolution_tokens_make_no_rows(variant):
    assert random_mixer(variant).token_rows(*padded_batch(3)) is None


def assert_token_rows(variant, expected_at):
    """expected_at(x, mask, weights) gives the rows (B, heads, N, K) at all real tokens."""
    mixer = random_mixer(variant)
    x, mask = padded_batch(7)
    got = mixer.token_rows(x, mask).transpose(1, 2)  # (B, N, heads, K)
    expected = expected_at(x, mask, mixer.state_dict()).transpose(1, 2)
    assert_near(got[mask], expected[mask], 1e-12)


def test_token_rows_of_convbert_are_its_linear_layer():
    def expected_at(x, mask, weights):
        rows = references.convbert_rows(x, mask, weights)  # (B, N, H/2 * K)
        return rows.view(B, -1, H // 2, K).transpose(1, 2)

    assert_token_rows("convbert", expected_at)


def test_token_rows_of_dynamicconv_are_its_linear_layer():
    def expected_at(x, mask, weights):
        g = references.gate(x, mask, weights)
        rows = references.linear(g, weights, "kernel")  # (B, N, H * K)
        return rows.view(B, -1, H, K).transpose(1, 2)

    assert_token_rows("dynamicconv", expected_at)


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

# What `depthwise_kernels()` calls these convolutions.
NAMES_IN_KERNELS = {
    "depthwise": "of the values",
    "query.depthwise": "for the query",
    "key.depthwise": "for the key",
    "value.depthwise": "for the value",
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
#   xl           W: C -> C without bias, and b_c and b_p, H * d each: + 12 * (65,536 + 2 * 256)
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
def test_a_variant_has_the_terms_and_convolutions_of_the_paper_and_no_others(variant):
    """And fixed_rows() returns beta, depthwise_kernels() the weights of these convolutions."""
    terms, convolutions = HOLDS[variant]
    mixer = random_mixer(variant)
    weights = mixer.state_dict()
    kernels = {}

    # tables: beta has one row per head, the others have d
    tables = {name.split(".")[1]: x for name, x in weights.items() if name.startswith("terms.")}
    assert set(tables) == terms
    for name, table in tables.items():
        assert table.shape == ((H, K) if name == "fixed" else (d, K))

    # convolutions
    found = {name.removesuffix(".weight") for name in weights if "depthwise.weight" in name}
    assert found == convolutions
    for name in found:
        kernels[NAMES_IN_KERNELS[name]] = weights[f"{name}.weight"][:, 0]  # (C, K)
    assert_near(mixer.depthwise_kernels(), kernels, 0)
    assert mixer.fixed_rows() is (mixer.terms["fixed"].beta if "fixed" in terms else None)


@pytest.mark.parametrize("variant", SMALL)
def test_small_has_the_parameters_of_the_table_and_of_the_paper_where_it_prints_them(variant):
    assert count("small", variant) == SMALL[variant]
    if variant in PRINTED:
        assert f"{SMALL[variant] / 1e6:.2f}M" == PRINTED[variant]


@pytest.mark.parametrize("variant", OTHERS | FAMILY)
def test_small_has_the_parameters_derived_above(variant):
    assert count("small", variant) == (OTHERS | FAMILY)[variant]


@pytest.mark.parametrize("variant", BASE)
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


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(terms=("fixed", "fixd")), "unknown term 'fixd'; the terms are: fixed, dynamic, key_"),
        (dict(terms="fixed"), "unknown term 'f'"),
        (dict(convolutional=("values",)), "unknown projection 'values'; they are: query, key, val"),
    ],
)
def test_an_unknown_name_in_a_variant_is_refused_in_one_line(fields, message):
    with pytest.raises(UserError, match=message) as refused:
        Variant("an equation", **fields)
    assert "\n" not in str(refused.value)


# --- A new variant --------------------------------------------------------------------------------


@pytest.mark.parametrize("beyond", BEYOND)
def test_a_new_variant_of_existing_terms_is_one_line(monkeypatch, beyond):
    variant = Variant("content + beta_r + k_j.u_(i-j)", terms=("fixed", "key_dynamic"))
    monkeypatch.setitem(VARIANTS, "fixed-key", variant)
    assert_equals_loops("fixed-key", 9, beyond)

    # a model with it trains
    model = small_model("fixed-key", beyond=beyond)
    loss_of(model, random_tokens(2, 9)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())

    # per layer: H * K for beta, d * K for u
    assert count("small", "fixed-key") == SMALL["none"] + 12 * (4 * 17 + 64 * 17)


class NewTerm(Term):
    """A term without parameters, which no loop describes yet: + |r| per relative position."""

    def query_rows(self, q):
        row = torch.arange(-(K // 2), K // 2 + 1, dtype=q.dtype).abs()  # (K,)
        return row.expand(q.shape[1], q.shape[2], -1)  # (H, N, K)


class NewKeyTerm(Term):
    """The same number for each r, from the keys."""

    def key_rows(self, k):
        return NewTerm.query_rows(self, k)


def new_term_in_loops(weights, q_i, k_j, i, j, h, config, N):
    t = references.column(j - i, config.kernel_size, config.beyond)
    if t is None:
        return 0
    return abs(t - config.kernel_size // 2)


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("term", [NewTerm, NewKeyTerm])
def test_a_new_term_without_parameters_is_one_class_and_one_entry_in_the_loops(
    monkeypatch, term, beyond
):
    monkeypatch.setitem(TERMS, "new-term", term)
    monkeypatch.setitem(VARIANTS, "new", Variant("", terms=("dynamic", "new-term")))
    monkeypatch.setitem(references.SCORE_TERMS, "new-term", new_term_in_loops)
    assert_equals_loops("new", 9, beyond)
