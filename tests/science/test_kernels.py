"""kernels.py: every way to compute the map of scores equals plain loops, values and gradients.

The first part tests the map itself, then the sums that lead back from it, the rows of the keys,
`convolve`, and finally attention in blocks. The drawings in the docstrings are tests, too.
"""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attention
import kernels
import references
import stand_ins
from helpers import (
    assert_near,
    assert_same_bits,
    attention_inputs,
    draw,
    drawn,
    results,
    upstream_for,
)
from kernels import BEYOND, band_scores, gather_scores, relative_scores

LENGTHS = range(1, 41)
KERNEL_SIZES = (1, 3, 5, 9, 17, 33)
PATHS = [gather_scores, relative_scores, band_scores]


def values_and_gradients(function, rows, beyond, upstream):
    """The map of scores, and the gradient of sum(scores * upstream) with respect to the rows."""
    rows = rows.detach().clone().requires_grad_()
    scores = function(rows, rows.shape[2], beyond)  # (B, H, N, N)
    gradient = torch.autograd.grad((scores * upstream).sum(), rows)[0]
    return scores.detach(), gradient


# --- From rows to the map of scores ---------------------------------------------------------------


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("K", [1, 3, 9])
def test_one_row_for_all_queries_adds_what_n_equal_rows_add(K, beyond):
    """Values, gradients and bits; the gradient of the one row is the sum over the queries."""
    upstream = draw(2, 3, 70, 70, seed=1)
    row = draw(3, 1, K).requires_grad_()  # (H, 1, K)
    rows = row.detach().expand(-1, 70, -1).clone().requires_grad_()  # (H, N, K)

    scores = kernels.add_band(draw(2, 3, 70, 70), row, beyond)
    expected = kernels.add_band(draw(2, 3, 70, 70), rows, beyond)
    assert torch.equal(scores, expected)
    (got,) = torch.autograd.grad(scores, row, upstream)
    (expected,) = torch.autograd.grad(expected, rows, upstream)
    assert torch.equal(got, expected.sum(dim=1, keepdim=True))

    loops = draw(2, 3, 70, 70) + stand_ins.map_of_rows(rows, 70, beyond)
    assert_near(scores, loops, 1e-12)
    (expected,) = torch.autograd.grad(loops, rows, upstream)
    assert_near(got, expected.sum(dim=1, keepdim=True), 1e-10)


def test_the_gradient_of_one_row_is_summed_in_its_own_dtype():
    """The sum of 70 gradients in bf16, one per query: added in bf16, it would lose small parts."""
    upstream = draw(1, 1, 70, 70).bfloat16()
    row = torch.zeros(1, 1, 3, requires_grad=True)
    scores = kernels.add_band(torch.zeros(1, 1, 70, 70, dtype=torch.bfloat16), row)
    (got,) = torch.autograd.grad(scores, row, upstream)
    assert got.dtype == torch.float32
    by_query = kernels.sum_bands(upstream, 3).float()  # (B, H, n, K)
    assert_near(got, by_query.sum(dim=2), 1e-4)


def test_rows_that_learn_nothing_get_no_sums(monkeypatch):
    """The backward pass of ALiBi leaves out what no parameter needs."""
    monkeypatch.setattr(kernels, "sum_bands", None)
    scores = draw(1, 1, 5, 5).requires_grad_()
    added = kernels.add_band(scores * 1, draw(1, 1, 9))
    upstream = draw(1, 1, 5, 5, seed=1)
    assert torch.equal(torch.autograd.grad(added, scores, upstream)[0], upstream)


def test_the_drawings_of_rows_that_cover_every_r_are_what_they_compute():
    rows = drawn(
        kernels.scores_of_covering_rows,
        """
        a0 b0 c0 d0 e0
        a1 b1 c1 d1 e1
        a2 b2 c2 d2 e2
        """,
    )
    scores = drawn(kernels.scores_of_covering_rows, "c0 d0 e0\n b1 c1 d1\n a2 b2 c2")
    assert torch.equal(kernels.scores_of_covering_rows(rows, 3), scores)

    scores = drawn(kernels.bands_of_strip, "s00 s01 s02\n s10 s11 s12\n s20 s21 s22")
    bands = drawn(kernels.bands_of_strip, "0 0 s00 s01 s02\n 0 s10 s11 s12 0\n s20 s21 s22 0 0")
    assert torch.equal(kernels.bands_of_strip(scores, 5, 0), bands)


def test_rows_that_cover_every_r_go_the_shorter_way_to_the_same_map_and_sums():
    """At every place of a block; the ways through `extra_columns` are the references."""
    for N in (1, 2, 5, 8):
        for first in range(N):
            for n in range(1, N - first + 1):
                for K in (2 * N - 1, 2 * N + 1, 2 * N + 5):
                    if K == 1:
                        continue
                    assert kernels.covers_every_r(n, N, K, first)
                    rows = draw(2, n, K)
                    got = kernels.scores_of_covering_rows(rows, N, first)
                    assert torch.equal(got, relative_scores(rows, N, "clip", first))
                    scores = draw(2, n, N)
                    got = kernels.bands_of_strip(scores, K, first)
                    expected = kernels.sum_bands_of_strip(scores, K, "clip", first)
                    assert torch.equal(got, expected)
    assert not kernels.covers_every_r(3, 3, 3, 0)
    assert kernels.covers_every_r(1, 3, 3, 1)


def test_the_drawing_of_widen_is_what_it_computes():
    rows = drawn(kernels.widen, "a0 b0 c0\n a1 b1 c1")
    clip = drawn(kernels.widen, "a0 a0 b0 c0 c0\n a1 a1 b1 c1 c1")
    zero = drawn(kernels.widen, "0 a0 b0 c0 0\n 0 a1 b1 c1 0")
    assert torch.equal(kernels.widen(rows, 5, "clip"), clip)
    assert torch.equal(kernels.widen(rows, 5, "zero"), zero)


@pytest.mark.parametrize("beyond", BEYOND)
def test_wide_rows_say_the_same_at_every_relative_position(beyond):
    """Values and gradients, against a loop over the columns."""
    for K in (1, 3, 5):
        for width in (K, K + 2, K + 8):
            rows = draw(2, 3, K).requires_grad_()
            expected = torch.zeros(2, 3, width, dtype=torch.float64)
            for r in range(-(width // 2), width // 2 + 1):
                t = references.column(r, K, beyond)
                if t is not None:
                    expected[..., r + width // 2] += rows[..., t]

            got = kernels.widen(rows, width, beyond)
            assert_near(got, expected, 1e-12)
            upstream = upstream_for(got)
            got = torch.autograd.grad(got, rows, upstream)
            assert_near(got, torch.autograd.grad(expected, rows, upstream), 1e-12)


@pytest.mark.parametrize(
    "K, beyond, message",
    [
        (4, "clip", "a row must have an odd number of columns, not 4"),
        (3, "Zero", "beyond must be one of clip, zero, not 'Zero'"),
    ],
)
def test_rows_without_a_middle_and_an_unknown_beyond_are_refused_in_one_line(K, beyond, message):
    rows, scores = draw(1, 2, 5, K), draw(1, 2, 5, 5)
    for refused in (
        lambda: kernels.band_scores(rows, 5, beyond),
        lambda: kernels.key_scores(rows, 5, beyond),
        lambda: kernels.add_band(scores, rows, beyond),
        lambda: kernels.band_sums(scores, K, beyond),
    ):
        with pytest.raises(ValueError) as error:
            refused()
        assert str(error.value) == message
    if K % 2 == 0:
        with pytest.raises(ValueError, match=message):
            kernels.convolve(rows, draw(1, 2, 5, 3))


@pytest.mark.parametrize("K", KERNEL_SIZES)
@pytest.mark.parametrize("beyond", BEYOND)
def test_all_paths_equal_the_loops_in_values_and_gradients_at_every_length(beyond, K):
    """Values are only moved; gradients are sums of up to N numbers, so they get more tolerance."""
    for N in LENGTHS:
        rows = draw(1, 2, N, K, seed=N)
        upstream = draw(1, 2, N, N, seed=100 + N)
        loops = values_and_gradients(references.relative_scores, rows, beyond, upstream)

        for function in PATHS:
            scores, gradient = values_and_gradients(function, rows, beyond, upstream)
            assert_near(scores, loops[0], 1e-12)
            assert_near(gradient, loops[1], 1e-10)

            scores, gradient = values_and_gradients(
                function, rows.float(), beyond, upstream.float()
            )
            assert scores.dtype == gradient.dtype == torch.float32
            assert_near(scores.double(), loops[0], 1e-6)
            assert_near(gradient.double(), loops[1], 1e-5)


@pytest.mark.parametrize("function", PATHS)
def test_all_paths_equal_the_loops_on_rows_shared_by_all_queries(function):
    """The rows of the fixed term are one table for all queries: its gradient is a sum over them."""
    beta = draw(3, 5).requires_grad_()  # (H, K)
    upstream = draw(2, 3, 8, 8, seed=1)
    rows = beta[None, :, None].expand(2, 3, 8, 5)  # (H, K) -> (B, H, N, K), strides of 0

    for beyond in BEYOND:
        got = function(rows, 8, beyond)
        expected = references.relative_scores(rows, 8, beyond)
        assert_near(got, expected, 1e-12)

        got = torch.autograd.grad((got * upstream).sum(), beta)[0]
        expected = torch.autograd.grad((expected * upstream).sum(), beta)[0]
        assert_near(got, expected, 1e-10)


@pytest.mark.parametrize("function", PATHS)
def test_all_paths_take_rows_in_any_memory_order(function):
    rows = draw(5, 7, 2, 3).permute(3, 2, 1, 0)  # (B, H, N, K), not contiguous anywhere
    for beyond in BEYOND:
        expected = references.relative_scores(rows, 7, beyond)
        assert torch.equal(function(rows, 7, beyond), expected)


@pytest.mark.parametrize("function", PATHS)
@pytest.mark.parametrize("K", KERNEL_SIZES)
@pytest.mark.parametrize("N", [1, 2, 7, 8, 16, 17, 18, 40])
def test_the_gradient_of_a_weight_counts_the_keys_that_took_it(function, N, K):
    """The upstream gradient is 1 everywhere, so the gradient of a weight is a number of keys.

    Within the window a weight meets key i + r, if this key exists. With "clip" the end weights also
    meet all keys farther away, so that every key takes one weight.
    """
    k = K // 2
    for beyond in BEYOND:
        rows = torch.zeros(1, 1, N, K)
        _, counts = values_and_gradients(function, rows, beyond, torch.ones(1, 1, N, N))

        for i in range(N):
            expected = [float(0 <= i + r < N) for r in range(-k, k + 1)]
            if beyond == "clip" and k > 0:
                expected[0] = max(0, i - k + 1)
                expected[-1] = max(0, N - i - k)
            elif beyond == "clip":
                expected[0] = N  # K = 1: one weight for all keys
            assert counts[0, 0, i].tolist() == expected, (beyond, i)

        if beyond == "clip":
            assert counts.sum(-1).eq(N).all()


@pytest.mark.parametrize("function", PATHS)
def test_a_row_reaches_only_the_scores_of_its_own_query(function):
    """A row of NaN makes NaN of its query's scores, and nothing in other sentences and heads."""
    j = torch.arange(9)
    for beyond in BEYOND:
        for i in (0, 4, 8):
            rows = torch.zeros(2, 2, 9, 5)
            rows[1, 0, i] = float("nan")
            touched = function(rows, 9, beyond).isnan()  # (B, H, N, N)

            reached = torch.ones(9, dtype=torch.bool)
            if beyond == "zero":
                reached = (j - i).abs() <= 2
            assert torch.equal(touched[1, 0, i], reached)
            assert touched.sum() == reached.sum()


def test_scores_depend_only_on_the_relative_position():
    """If all queries have the same row, scores[i + s, j + s] = scores[i, j]."""
    rows = draw(1, 2, 1, 5).expand(1, 2, 12, 5)
    for beyond in BEYOND:
        scores = band_scores(rows, 12, beyond)
        for s in range(1, 11):
            assert torch.equal(scores[..., s:, s:], scores[..., :-s, :-s])


def test_the_gradient_of_the_map_has_a_gradient():
    rows = draw(1, 2, 6, 5).requires_grad_()
    for beyond in BEYOND:

        def squared_map(rows, beyond=beyond):
            return band_scores(rows, 6, beyond) ** 2

        assert torch.autograd.gradgradcheck(squared_map, rows)


@pytest.mark.parametrize("function", PATHS)
@pytest.mark.parametrize("beyond", BEYOND)
def test_scores_of_some_of_the_queries_are_these_rows_of_the_map(function, beyond):
    rows = draw(1, 2, 12, 7)
    upstream = draw(1, 2, 12, 12, seed=1)
    scores, gradient = values_and_gradients(stand_ins.map_of_rows, rows, beyond, upstream)

    for first, last in ((0, 1), (0, 5), (3, 4), (4, 9), (11, 12), (6, 12)):

        def some_queries(rows, length, beyond, first=first):
            return function(rows, 12, beyond, first)

        some_scores, some_gradient = values_and_gradients(
            some_queries, rows[:, :, first:last], beyond, upstream[:, :, first:last]
        )
        assert torch.equal(some_scores, scores[:, :, first:last])
        assert_near(some_gradient, gradient[:, :, first:last], 1e-12)


@pytest.mark.parametrize("function", PATHS)
def test_the_drawing_of_relative_scores_is_what_the_paths_compute(function):
    rows = drawn(
        relative_scores,
        """
        a0 b0 c0
        a1 b1 c1
        a2 b2 c2
        """,
    )
    expected = drawn(
        relative_scores,
        """
        b0 c0 c0
        a1 b1 c1
        a2 a2 b2
        """,
    )
    assert torch.equal(function(rows[None, None], 3, "clip")[0, 0], expected)


def test_the_view_that_relative_scores_draws_is_the_map():
    """Row length 3, step 5, from the first number of query 0 on."""
    wide = drawn(
        relative_scores,
        """
        a0 a0 b0 c0 c0 c0
        a1 a1 b1 c1 c1 c1
        a2 a2 b2 c2 c2 c2
        """,
    )
    rows = wide[:, 1:4]
    view = wide.flatten()[2:].unfold(0, 3, 5)[:3]
    assert torch.equal(view, references.relative_scores(rows[None, None], 3, "clip")[0, 0])


# --- The map added to a map -----------------------------------------------------------------------


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("K", KERNEL_SIZES)
def test_the_band_equals_the_reference_around_a_strip_of_queries(beyond, K):
    """Strips have 64 queries: less than one, exactly one, the first query of the next ones."""
    assert kernels.STRIP == 64, "choose the lengths of this test around the new STRIP"
    for N in (63, 64, 65, 127, 128, 129, 130):
        rows = draw(1, 2, N, K)
        upstream = draw(1, 2, N, N, seed=1)
        expected = values_and_gradients(stand_ins.map_of_rows, rows, beyond, upstream)
        scores, gradient = values_and_gradients(band_scores, rows, beyond, upstream)
        assert torch.equal(scores, expected[0])
        assert_near(gradient, expected[1], 1e-10)

        # the same map, added to one that is given
        content = draw(1, 2, N, N, seed=2)
        added = kernels.add_band(content.clone(), rows, beyond)
        assert_near(added, content + expected[0], 1e-12)

        # and its gradients
        leaf = rows.clone().requires_grad_()
        got = torch.autograd.grad(kernels.add_band(content.clone(), leaf, beyond), leaf, upstream)
        assert_near(got[0], expected[1], 1e-10)


def test_add_band_overwrites_the_scores_and_has_both_gradients():
    rows = draw(1, 2, 9, 5).requires_grad_()
    content = draw(1, 2, 9, 9, seed=1).requires_grad_()
    upstream = draw(1, 2, 9, 9, seed=2)
    for beyond in BEYOND:
        scores = content.clone()
        added = kernels.add_band(scores, rows, beyond)
        assert added.data_ptr() == scores.data_ptr()

        expected = content + references.relative_scores(rows, 9, beyond)
        expected = torch.autograd.grad(expected, (content, rows), upstream)
        # `scores` is now the sum, too
        for total in (added, scores):
            got = torch.autograd.grad(total, (content, rows), upstream, retain_graph=True)
            assert_near(got, expected, 1e-12)


# --- And back: sums per relative position ---------------------------------------------------------


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("strip", [1, 5, 64])
def test_band_sums_are_the_adjoint_of_the_map_of_scores(monkeypatch, beyond, strip):
    """<map(rows), M> = <rows, sums(M)> for all rows and M, so the sums are the map's gradient."""
    monkeypatch.setattr(kernels, "STRIP", strip)
    for N, K in ((1, 3), (4, 9), (11, 5), (12, 3)):
        rows = draw(1, 2, N, K).requires_grad_()
        M = draw(1, 2, N, N, seed=1)
        scores = references.relative_scores(rows, N, beyond)
        expected = torch.autograd.grad(scores, rows, M)[0]

        # all queries
        sums = kernels.band_sums(M, K, beyond)
        assert_near(sums, expected, 1e-12)

        # three queries at a time
        parts = []
        for first in range(0, N, 3):
            parts.append(kernels.band_sums(M[:, :, first : first + 3], K, beyond, first))
        assert_near(torch.cat(parts, dim=2), expected, 1e-12)

        # and their own gradient
        def sums_of(M, K=K):
            return kernels.band_sums(M, K, beyond)

        assert torch.autograd.gradcheck(sums_of, M[:, :1].requires_grad_())


def test_the_drawing_of_sum_bands_is_what_it_computes():
    padded = drawn(
        kernels.sum_bands_of_strip,
        """
        0 0 s00 s01 s02 0 0
        0 0 s10 s11 s12 0 0
        0 0 s20 s21 s22 0 0
        """,
    )
    diagonals = drawn(
        kernels.sum_bands_of_strip,
        """
        0   0   s00 s01 s02
        0   s10 s11 s12 0
        s20 s21 s22 0   0
        """,
    )

    # row i of the padded map from its column i on: rows of 5 numbers that start 8 numbers apart
    assert torch.equal(padded.flatten().unfold(0, 5, 8), diagonals)

    # the columns -1, 0, 1; with "clip" the columns -2 and 2 are added to them
    scores = padded[None, None, :, 2:5]
    zero = kernels.sum_bands_of_strip(scores, 3, "zero", 0)[0, 0]
    assert torch.equal(zero, diagonals[:, 1:4])

    expected = diagonals[:, 1:4].clone()
    expected[:, 0] += diagonals[:, 0]
    expected[:, 2] += diagonals[:, 4]
    clip = kernels.sum_bands_of_strip(scores, 3, "clip", 0)[0, 0]
    assert torch.equal(clip, expected)


@pytest.mark.parametrize("beyond", BEYOND)
def test_the_stand_in_for_the_map_equals_its_loops(beyond):
    """With its table of indices: the other tests use it for longer sequences."""
    for N, K in ((1, 3), (6, 1), (6, 5), (4, 17)):
        rows = draw(2, 3, N, K)
        expected = references.relative_scores(rows, N, beyond)
        assert torch.equal(stand_ins.map_of_rows(rows, N, beyond), expected)


# --- Rows that are made by the keys ---------------------------------------------------------------


@pytest.mark.parametrize("beyond", BEYOND)
def test_key_scores_are_the_map_with_queries_and_keys_exchanged(beyond):
    """For all queries and for some of them, with keys near them and far from them.

    The rows are (B, H, N, K), or (H, N, K) for all sequences.
    """
    sizes = ((1, 3), (12, 1), (12, 5), (5, 17))
    for (N, K), leading in itertools.product(sizes, ((2, 3), (3,))):
        rows = draw(*leading, N, K).requires_grad_()
        upstream = draw(*leading, N, N, seed=1)
        by_sequence = rows.reshape(-1, 3, N, K)  # (B, H, N, K), with B = 2 or 1
        expected = references.relative_scores(by_sequence, N, beyond).reshape(*leading, N, N)
        expected = expected.transpose(-1, -2)  # (..., N, N)

        for first, last in ((0, N), (0, 1), (N // 2, N), (N // 2, N // 2 + 1)):
            got = kernels.key_scores(rows, last - first, beyond, first)
            some = expected[..., first:last, :]
            assert_near(got, some, 1e-12)

            some_upstream = upstream[..., first:last, :]
            got = torch.autograd.grad(got, rows, some_upstream)
            some = torch.autograd.grad(some, rows, some_upstream, retain_graph=True)
            assert_near(got, some, 1e-12)


def test_the_drawing_of_key_scores_is_what_it_computes():
    rows = drawn(
        kernels.key_scores,
        """
        a0 b0 c0
        a1 b1 c1
        a2 b2 c2
        """,
    )
    by_key = drawn(
        kernels.key_scores,
        """
        b0 c0 c0
        a1 b1 c1
        a2 a2 b2
        """,
    )
    expected = drawn(
        kernels.key_scores,
        """
        b0 a1 a2
        c0 b1 a2
        c0 c1 b2
        """,
    )
    assert torch.equal(by_key.t(), expected)
    assert torch.equal(kernels.key_scores(rows[None, None], 3, "clip")[0, 0], expected)


# --- Convolutions with a kernel per query ---------------------------------------------------------


@pytest.mark.parametrize("block", [1, 3, 64])
def test_convolve_is_a_sum_over_the_window(monkeypatch, block):
    monkeypatch.setattr(kernels, "CONVOLVE_BLOCK", block)
    for N, K in ((1, 3), (3, 9), (10, 3), (12, 9), (6, 1), (6, 13)):
        rows = draw(2, 2, N, K).requires_grad_()
        value = draw(2, 2, N, 4, seed=1).requires_grad_()
        expected = references.relative_scores(rows, N, "zero") @ value
        got = kernels.convolve(rows, value)
        assert_near(got, expected, 1e-12)

        upstream = upstream_for(got)
        got = torch.autograd.grad(got, (rows, value), upstream)
        expected = torch.autograd.grad(expected, (rows, value), upstream)
        assert_near(got, expected, 1e-12)


def test_the_drawing_of_convolve_is_what_it_computes():
    """The block of the queries 1 and 2, which see the values 0 to 3."""
    matrix = drawn(
        kernels.convolve,
        """
        a0 b0 c0 0
        0 a1 b1 c1
        """,
    )
    rows = torch.zeros(1, 1, 4, 3, dtype=torch.float64)
    rows[0, 0, 1] = matrix[0, 0:3]
    rows[0, 0, 2] = matrix[1, 1:4]
    value = draw(1, 1, 4, 2)
    z = kernels.convolve(rows, value)
    assert_near(z[0, 0, 1:3], matrix @ value[0, 0], 1e-10)


# --- Long sequences -------------------------------------------------------------------------------


def blocks(*inputs):
    """Attention in blocks; what is done with each block is the reference."""
    return kernels.attention_in_blocks(stand_ins.attention_function, *inputs)


HALF_PRECISIONS = (torch.bfloat16, torch.float16)


def blocks_of_the_project(*inputs):
    return kernels.attention_in_blocks(attention.attention, *inputs)


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize(
    "block, N, K",
    [
        (4, 12, 5),  # three full blocks
        (4, 13, 17),  # blocks smaller than the reach; the last one has a single query
        (7, 30, 3),  # blocks larger than the reach
        (16, 7, 5),  # one block, not full
        (1, 5, 3),  # one query per block
    ],
)
def test_blocks_equal_attention_without_blocks(monkeypatch, beyond, block, N, K):
    monkeypatch.setattr(kernels, "BLOCK", block)
    *qkv_and_mask, query_rows, key_rows, relative_value = attention_inputs(N, K)
    shared = query_rows[0].detach().requires_grad_()  # (H, N, K), as of the fixed term alone
    shared_keys = key_rows[0].detach().requires_grad_()  # (H, N, K)

    for terms in (
        (query_rows, key_rows, relative_value),
        (query_rows, None, None),
        (None, key_rows, None),
        (None, None, relative_value),
        (None, None, None),
        (shared, None, None),
        (None, shared_keys, None),
    ):
        inputs = (*qkv_and_mask, *terms)
        expected = results(stand_ins.attention_function, inputs, beyond)
        assert_near(results(blocks, inputs, beyond), expected, 1e-10)


def test_rows_that_learn_nothing_get_no_gradient_in_blocks(monkeypatch):
    """As those of ALiBi: sum_bands, their backward pass, is not called."""
    query, key, value, mask, query_rows, _, _ = attention_inputs(11, 5)
    inputs = (query, key, value, mask, query_rows.detach(), None, None)
    expected = results(stand_ins.attention_function, inputs)
    monkeypatch.setattr(kernels, "BLOCK", 4)
    monkeypatch.setattr(kernels, "sum_bands", None)
    assert_near(results(blocks_of_the_project, inputs), expected, 1e-10)


def test_the_backward_pass_of_blocks_has_the_dropout_of_the_forward_pass(monkeypatch):
    """With the identity as values, z is the map of weights: its zeros are the dropout.

    Put into attention without blocks and without dropout, they must give the same values and
    gradients.
    """
    monkeypatch.setattr(kernels, "BLOCK", 4)
    query, key, _, mask, query_rows, key_rows, _ = attention_inputs(11, 5)
    identity = torch.eye(11, dtype=torch.float64).expand(2, 2, 11, 11)
    inputs = (query, key, identity, mask, query_rows, key_rows, None)
    got = results(blocks, inputs, "clip", 0.4)

    # every block of four queries has zeros of its own
    kept = got["z"].ne(0).double() / 0.6  # (B, H, N, N)
    assert 0.4 < kept[0].ne(0).double().mean() < 0.8
    assert not torch.equal(kept[0, :, :4], kept[0, :, 4:8]), "two blocks have the same dropout"

    # attention without blocks, with these zeros
    def with_these_zeros(*inputs):
        p = stand_ins.attention_function(*inputs)  # (B, H, N, N)
        return p * kept

    assert_near(got, results(with_these_zeros, inputs), 1e-10)


def test_dropout_in_blocks_is_the_same_for_the_same_seed():
    """Values and gradients, to the bit."""
    inputs = attention_inputs(150, 17, torch.float32)
    first = results(blocks_of_the_project, inputs, "clip", 0.2)
    second = results(blocks_of_the_project, inputs, "clip", 0.2)
    assert_same_bits(first, second)


def test_dropout_in_blocks_is_another_one_in_every_call():
    inputs = attention_inputs(11, 5)
    torch.manual_seed(0)
    first = blocks(*inputs, "clip", 0.4)
    assert not torch.equal(first, blocks(*inputs, "clip", 0.4))
    torch.manual_seed(1)
    assert not torch.equal(first, blocks(*inputs, "clip", 0.4))


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("dtype, other", list(itertools.permutations(HALF_PRECISIONS)))
def test_the_backward_pass_of_blocks_has_the_precision_of_the_forward_pass(
    monkeypatch, enabled, dtype, other
):
    monkeypatch.setattr(kernels, "BLOCK", 4)
    seen = []

    def note(*arguments):
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return stand_ins.attention_function(*arguments)

    inputs = attention_inputs(11, 5, dtype)
    with torch.autocast("cpu", dtype, enabled=enabled):
        z = kernels.attention_in_blocks(note, *inputs)
    with torch.autocast("cpu", other, enabled=not enabled):
        z.sum().backward()
    assert seen == [(enabled, dtype)] * 6  # three blocks, forward and backward


def test_the_backward_pass_of_blocks_does_not_change_the_random_state():
    z = blocks(*attention_inputs(6, 3), "clip", 0.5).sum()
    before = torch.get_rng_state()
    z.backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_blocks_have_no_second_derivative_and_say_so():
    query, *others = attention_inputs(6, 3)
    z = blocks(query, *others)
    (gradient,) = torch.autograd.grad(z.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_in_blocks_padding_gets_no_attention_and_no_gradient(monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK", 4)
    got = results(blocks_of_the_project, attention_inputs(9, 3))
    for name in ("key", "value", "key_rows"):
        assert got[name][1, :, 5:].eq(0).all(), name
        assert got[name][1, :, :5].ne(0).any(), name


def test_gradients_of_blocks_are_summed_in_float32_and_not_in_bf16(monkeypatch):
    """1024 blocks of one query. Each gives every value a gradient of 1/4, so the sum is 256.

    bf16 has 8 bits: a sum in bf16 would stop growing at 64, where 1/4 is too small to be added.
    """
    monkeypatch.setattr(kernels, "BLOCK", 1)
    query = torch.zeros(1, 1, 1024, 1, dtype=torch.bfloat16)
    key = torch.zeros(1, 1, 4, 1, dtype=torch.bfloat16)
    value = torch.zeros(1, 1, 4, 1, dtype=torch.bfloat16, requires_grad=True)
    mask = torch.ones(1, 4, dtype=torch.bool)
    blocks(query, key, value, mask).sum().backward()
    assert value.grad.dtype == torch.bfloat16
    assert value.grad.flatten().tolist() == [256.0] * 4


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returns, also in the backward."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = result
        if not isinstance(result, (tuple, list)):
            tensors = [result]
        for x in tensors:
            if isinstance(x, torch.Tensor):
                self.size = max(self.size, x.untyped_storage().nbytes() // x.element_size())
        return result


def test_no_tensor_of_a_long_sequence_has_the_size_of_the_map(monkeypatch):
    monkeypatch.setattr(attention, "LONGEST_WHOLE", 100)
    monkeypatch.setattr(kernels, "BLOCK", 10)
    B, H = 2, 2
    for N in (200, 400):
        inputs = attention_inputs(N, 5)
        with LargestTensor() as largest:
            results(attention.attention, inputs)
        assert largest.size <= B * H * 12 * (N + 20)  # about one block, and not N x N


def test_in_blocks_one_row_for_all_queries_gets_the_gradients_of_all_blocks():
    """Its gradient is the sum of those of equal rows, and no larger than the row itself."""
    query, key, value, mask, *_ = attention_inputs(300, 5)
    row = draw(2, 1, 599).requires_grad_()  # (H, 1, 2N - 1)
    rows = row.detach().expand(-1, 300, -1).clone().requires_grad_()  # (H, N, 2N - 1)
    one = kernels.attention_in_blocks(attention.attention, query, key, value, mask, row)
    each = stand_ins.attention_function(query, key, value, mask, rows)
    assert_near(one, each, 1e-10)

    upstream = upstream_for(one)
    got = torch.autograd.grad(one, (row, query), upstream)
    expected = torch.autograd.grad(each, (rows, query), upstream)
    assert_near(got[0], expected[0].sum(dim=1, keepdim=True), 1e-10)
    assert_near(got[1], expected[1], 1e-10)
