"""kernels.py: relative-position scores equal the loops to the bit in values, and within rounding in gradients."""

import pytest
import torch

import references
from kernels import WINDOWS, gather_scores, relative_scores

LENGTHS = range(1, 41)
KERNEL_SIZES = (1, 3, 5, 9, 17, 33)


def values_and_gradients(function, rows, window, upstream):
    """Scores, and the gradient of sum(scores * upstream) at the rows. upstream (B, H, N, N)"""
    rows = rows.detach().clone().requires_grad_()
    scores = function(rows, rows.shape[2], window)  # (B, H, N, N)
    return scores.detach(), torch.autograd.grad((scores * upstream).sum(), rows)[0]


@pytest.mark.parametrize("K", KERNEL_SIZES)
@pytest.mark.parametrize("window", WINDOWS)
def test_both_paths_equal_the_loops_in_values_and_gradients_at_every_length(window, K):
    """Values are only moved, so float64 holds 1e-12 and float32 1e-6; gradients are sums of up to N numbers."""
    generator = torch.Generator().manual_seed(K)
    for N in LENGTHS:
        rows = torch.randn(1, 2, N, K, generator=generator, dtype=torch.float64)
        upstream = torch.randn(1, 2, N, N, generator=generator, dtype=torch.float64)
        expected, expected_gradient = values_and_gradients(references.relative_scores, rows, window, upstream)
        for function in (gather_scores, relative_scores):
            for dtype, near, near_gradient in ((torch.float64, 1e-12, 1e-10), (torch.float32, 1e-6, 1e-5)):
                scores, gradient = values_and_gradients(function, rows.to(dtype), window, upstream.to(dtype))
                assert scores.dtype == gradient.dtype == dtype
                torch.testing.assert_close(scores.double(), expected, atol=near, rtol=near)
                torch.testing.assert_close(gradient.double(), expected_gradient, atol=near_gradient, rtol=near_gradient)


@pytest.mark.parametrize("function", [gather_scores, relative_scores])
def test_paths_equal_the_loops_on_rows_shared_by_all_queries(function):
    """A fixed kernel's rows are one table seen by every sentence and query: strides of 0, gradient summed into it."""
    beta = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)  # (H, K)
    upstream = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    rows = beta[None, :, None].expand(2, 3, 8, 5)  # (B, H, N, K)
    for window in WINDOWS:
        got, expected = function(rows, 8, window), references.relative_scores(rows, 8, window)
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
        got, expected = (torch.autograd.grad((s * upstream).sum(), beta, retain_graph=True)[0] for s in (got, expected))
        torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("function", [gather_scores, relative_scores])
def test_paths_take_rows_in_any_memory_order(function):
    rows = torch.randn(5, 7, 2, 3, dtype=torch.float64).permute(3, 2, 1, 0)  # (B, H, N, K), nowhere contiguous
    for window in WINDOWS:
        assert torch.equal(function(rows, 7, window), references.relative_scores(rows, 7, window))


@pytest.mark.parametrize("function", [gather_scores, relative_scores])
@pytest.mark.parametrize("K", KERNEL_SIZES)
@pytest.mark.parametrize("N", [1, 2, 7, 8, 16, 17, 18, 40])
def test_each_weight_serves_as_many_keys_as_stand_there(function, N, K):
    """The gradient of sum(scores) counts, for query i and relative position r, the keys that took the weight: in the
    window one if i + r exists; at the ends of "clip" all keys there or farther: "clip" uses every key once."""
    k = K // 2
    for window in WINDOWS:
        rows, ones = torch.zeros(1, 1, N, K), torch.ones(1, 1, N, N)
        _, counts = values_and_gradients(function, rows, window, ones)
        for i in range(N):
            expected = [float(0 <= i + r < N) for r in range(-k, k + 1)]
            if window == "clip" and k > 0:
                expected[0], expected[-1] = max(0, i - k + 1), max(0, N - i - k)
            elif window == "clip":
                expected[0] = N  # one weight for all keys
            assert counts[0, 0, i].tolist() == expected, (window, i)
        if window == "clip":
            assert counts.sum(-1).eq(N).all()


@pytest.mark.parametrize("function", [gather_scores, relative_scores])
def test_a_query_s_row_reaches_its_own_scores_alone(function):
    """No leak between sentences, heads or queries: a row of NaN makes NaN of its query's scores and of nothing else."""
    for window in WINDOWS:
        for i in (0, 4, 8):
            rows = torch.zeros(2, 2, 9, 5)
            rows[1, 0, i] = float("nan")
            touched = function(rows, 9, window).isnan()  # (B, H, N, N)
            j = torch.arange(9)
            reached = torch.ones(9, dtype=torch.bool) if window == "clip" else (j - i).abs() <= 2
            assert torch.equal(touched[1, 0, i], reached)
            assert touched.sum() == reached.sum()


def test_scores_depend_on_the_relative_position_alone():
    """Two queries with the same row see the same scores, shifted: out[i + s, j + s] = out[i, j]."""
    rows = torch.randn(1, 2, 1, 5).expand(1, 2, 12, 5)
    for window in WINDOWS:
        scores = relative_scores(rows, 12, window)
        for s in range(1, 11):
            assert torch.equal(scores[..., s:, s:], scores[..., :-s, :-s])


def test_gradient_is_the_same_to_the_bit_every_time():
    generator = torch.Generator().manual_seed(0)
    rows, upstream = torch.randn(4, 4, 64, 17, generator=generator), torch.randn(4, 4, 64, 64, generator=generator)
    first, second = (values_and_gradients(relative_scores, rows, "clip", upstream)[1] for _ in range(2))
    assert torch.equal(first, second)


def test_the_gradient_has_a_gradient():
    rows = torch.randn(1, 2, 6, 5, dtype=torch.float64, requires_grad=True)
    for window in WINDOWS:
        assert torch.autograd.gradgradcheck(lambda rows: relative_scores(rows, 6, window) ** 2, rows)
