"""kernels.py: the bias matrix, its reverse, the hot loop and convolutions equal plain loops.

The drawings in the docstrings are tests, too.
"""

import pytest
import torch

import attention
import kernels
import references
from helpers import (
    assert_near,
    assert_same_with_gradients,
    draw,
    drawn,
)
from kernels import BEYOND, Positions, bias_matrix, sum_by_offset

every_beyond = pytest.mark.parametrize("beyond", BEYOND)
every_width = pytest.mark.parametrize("K", [1, 3, 7, 21])
LENGTHS = (1, 2, 3, 5, 8, 17, 40)

# --- From a bias to its matrix, and back ----------------------------------------------------------


@every_beyond
@every_width
def test_the_gradient_of_the_hot_loop_equals_that_of_the_loops(monkeypatch, K, beyond):
    """BiasMatrix joins two functions. Here they are loops: mistakes there do not fail this test."""
    monkeypatch.setattr(kernels, "bias_matrix", references.relative_scores)
    monkeypatch.setattr(kernels, "sum_by_offset", references.sum_by_offset)
    for N in LENGTHS:
        bias = draw(2, N, K, seed=N).requires_grad_()
        got = kernels.BiasMatrix.apply(bias, N, beyond)
        expected = references.relative_scores(bias, N, beyond)
        assert_same_with_gradients(got, expected, [bias])


def test_a_bias_may_have_any_order_in_memory():
    """Also one that all queries share: its gradient is the sum over them."""
    one = draw(3, 5).requires_grad_()  # (H, K)
    shared = one[None, :, None].expand(2, 3, 8, 5)  # (H, K) -> (B, H, N, K), strides of 0
    permuted = draw(5, 8, 3, 2).permute(3, 2, 1, 0)  # (B, H, N, K), not contiguous anywhere
    for beyond in BEYOND:
        expected = references.relative_scores(permuted, 8, beyond)
        assert torch.equal(bias_matrix(permuted, 8, beyond), expected)
        expected = references.relative_scores(shared, 8, beyond)
        assert_same_with_gradients(bias_matrix(shared, 8, beyond), expected, [one])


def test_the_drawing_of_bias_matrix_is_what_it_computes():
    bias = drawn(bias_matrix, "a0 b0 c0\n a1 b1 c1\n a2 b2 c2")
    clip = drawn(bias_matrix, "b0 c0 c0\n a1 b1 c1\n a2 a2 b2")
    zero = drawn(bias_matrix, "b0 c0 0\n a1 b1 c1\n 0 a2 b2")
    assert torch.equal(bias_matrix(bias, 3), clip)
    assert torch.equal(bias_matrix(bias, 3, "zero"), zero)


def test_the_drawing_of_sum_by_offset_is_what_it_computes():
    """x01+x02 and x20+x21 are sums of two cells; the other cells are drawn as they are."""
    x = drawn(sum_by_offset, "x00 x01 x02\n x10 x11 x12\n x20 x21 x22")
    zero = drawn(sum_by_offset, "0 x00 x01\n x10 x11 x12\n x21 x22 0")
    clip = zero.clone()
    clip[0, 2] += x[0, 2]
    clip[2, 0] += x[2, 0]
    for drawing in ("0 x00 x01+x02", "x20+x21 x22 0"):
        assert drawing in " ".join(sum_by_offset.__doc__.split())
    assert torch.equal(sum_by_offset(x, 3), clip)
    assert torch.equal(sum_by_offset(x, 3, "zero"), zero)


def test_a_wider_bias_has_the_columns_that_are_drawn():
    bias = drawn(attention.widen, "a b c")
    assert torch.equal(attention.widen(bias, 7), drawn(attention.widen, "a a a b c c c"))
    assert torch.equal(attention.widen(bias, 7, "zero"), drawn(attention.widen, "0 0 a b c 0 0"))


@every_beyond
def test_a_wider_bias_says_the_same_at_every_offset(beyond):
    for K in (1, 3, 5):
        bias = draw(2, 3, K).requires_grad_()
        for extra in (0, 1, 4):
            got = attention.widen(bias, K + 2 * extra, beyond)
            expected = []
            for r in range(-(K // 2) - extra, K // 2 + extra + 1):
                t = references.column(r, K, beyond)
                expected.append(torch.zeros(2, 3) if t is None else bias[..., t])
            assert_same_with_gradients(got, torch.stack(expected, dim=-1).double(), [bias])


def test_skew_moves_the_rows_as_drawn():
    """skew copies nothing."""
    drawing = " ".join(kernels.skew.__doc__.split())
    before = ["a a a 0 0 0", "b b b 0 0 0", "c c c - - -"]
    after = ["a a a 0 0", "0 b b b 0", "0 0 c c c"]
    for line in (
        f"{before[0]} {after[0]}",
        f"{before[1]} -> {after[1]}",
        f"{before[2]} {after[2]}",
    ):
        assert line in drawing

    def numbers(rows):
        values = {"a": 1.0, "b": 2.0, "c": 3.0, "0": 0.0, "-": 0.0}
        return torch.tensor([[values[letter] for letter in row.split()] for row in rows])

    x = numbers(before)
    skewed = kernels.skew(x)
    assert skewed.data_ptr() == x.data_ptr()
    assert torch.equal(skewed, numbers(after))
    assert kernels.skew(torch.arange(18.0).view(3, 6)).flatten().tolist() == list(range(15))


def test_the_matrix_of_the_keys_is_drawn_at_key_dynamic():
    """Queries and keys change places, and the matrix is transposed."""
    bias = drawn(attention.KeyDynamic, "a0 b0 c0\n a1 b1 c1\n a2 b2 c2")
    expected = drawn(attention.KeyDynamic, "b0 a1 a2\n c0 b1 a2\n c0 c1 b2")
    assert torch.equal(kernels.add_bias(torch.zeros(3, 3), bias.float()).t(), expected)


# --- The hot loop: scores, biases and padding to weights ------------------------------------------


@every_beyond
def test_scores_with_a_bias_equal_the_loops(beyond):
    """Values and both gradients, for a bias per query and sequence, per query, and for all."""
    for N in (9, 70):
        for shape in ((2, 3, N, 7), (3, N, 7), (3, 1, 7)):
            scores = draw(2, 3, N, N).requires_grad_()
            bias = draw(*shape, seed=1).requires_grad_()
            got = kernels.add_bias(scores, bias, beyond)
            expected = scores + references.relative_scores(bias, N, beyond)
            assert_same_with_gradients(got, expected, [scores, bias])


@every_beyond
def test_banded_softmax_equals_its_loops(monkeypatch, beyond):
    """Values and gradients, with padding, with and without biases, and with one for all queries."""
    # loops in place of the matrix: mistakes there do not fail this test
    monkeypatch.setattr(kernels, "add_bias", references.add_bias)
    N = 7
    scores = draw(2, 3, N, N).requires_grad_()
    of_query, of_key = (draw(2, 3, N, 5, seed=seed).requires_grad_() for seed in (1, 2))
    of_all = draw(3, 1, 5).requires_grad_()
    padding = attention.lowest_at_padding(torch.arange(N)[None, :] < N - 1, torch.float64)
    for biases in ([], [of_query], [None, of_key], [of_all, of_all], [of_query, of_key]):
        positions = Positions(*biases, beyond=beyond)
        got = kernels.banded_softmax(scores, padding, positions)
        expected = references.banded_softmax(scores, padding, positions)
        assert_same_with_gradients(got, expected, [scores, *filter(torch.is_tensor, biases)])


# --- Relative values, and convolutions ------------------------------------------------------------


def test_the_drawing_of_convolve_is_what_it_computes():
    """The block of the queries 1 and 2, which see the values 0 to 3."""
    matrix = drawn(kernels.convolve, "a0 b0 c0 0\n 0 a1 b1 c1")
    weights = torch.zeros(1, 1, 4, 3, dtype=torch.float64)
    weights[0, 0, 1] = matrix[0, 0:3]
    weights[0, 0, 2] = matrix[1, 1:4]
    value = draw(1, 1, 4, 2)
    z = kernels.convolve(weights, value)
    assert_near(z[0, 0, 1:3], matrix @ value[0, 0], 1e-10)
