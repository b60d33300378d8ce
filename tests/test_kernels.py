"""kernels.py: the scores that every model runs equal the index and the loops, values and gradients."""

import pytest
import torch

import references
from kernels import WINDOWS, gather_scores, relative_scores


def values_and_gradients(function, rows, window, direction):
    """Scores of `rows`, and the gradient of their product with a fixed random `direction`."""
    rows = rows.clone().requires_grad_()
    scores = function(rows, rows.shape[2], window)
    return scores.detach(), torch.autograd.grad((scores * direction).sum(), rows)[0]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("function", [relative_scores, gather_scores])
def test_scores_equal_the_loops_in_values_and_gradients(function, window):
    torch.manual_seed(0)
    for N, K in [(1, 1), (1, 5), (2, 17), (4, 9), (5, 3), (8, 17), (9, 17), (11, 5)]:
        rows, direction = torch.randn(2, 2, N, K).double(), torch.randn(2, 2, N, N).double()
        for got, expected in zip(values_and_gradients(function, rows, window, direction),
                                 values_and_gradients(references.relative_scores, rows, window, direction)):
            assert torch.allclose(got, expected, atol=1e-12, rtol=0), (N, K)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("K", [1, 3, 5, 9, 17, 33])
def test_run_path_equals_the_index_at_every_length(K, window, dtype, tolerance):
    torch.manual_seed(K)
    for N in [*range(1, 41), 127, 128, 129]:
        rows, direction = torch.randn(1, 2, N, K, dtype=dtype), torch.randn(1, 2, N, N, dtype=dtype)
        scores, gradient = values_and_gradients(relative_scores, rows, window, direction)
        expected, expected_gradient = values_and_gradients(gather_scores, rows, window, direction)
        assert torch.equal(scores, expected), N  # weights are only moved
        assert torch.allclose(gradient, expected_gradient, atol=tolerance * N**0.5, rtol=0), N  # sums of up to N numbers


def test_every_score_beyond_the_window_is_zero_or_the_end_weight():
    rows = torch.randn(1, 1, 9, 5)
    for i in range(9):
        for j in range(9):
            if abs(j - i) > 2:
                assert relative_scores(rows, 9, "zero")[0, 0, i, j] == 0
                assert relative_scores(rows, 9, "clip")[0, 0, i, j] == rows[0, 0, i, 0 if j < i else 4]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="sums differ from run to run on a GPU alone")
def test_two_backward_passes_are_bitwise_equal_on_a_gpu():
    rows, direction = torch.randn(4, 4, 64, 17, device="cuda"), torch.randn(4, 4, 64, 64, device="cuda")
    first, second = (values_and_gradients(relative_scores, rows, "clip", direction)[1] for _ in range(2))
    assert torch.equal(first, second)


def test_scores_of_one_shift_are_equal_when_all_queries_share_a_row():
    scores = relative_scores(torch.randn(1, 1, 1, 7).expand(1, 1, 12, 7), 12, "clip")[0, 0]
    for r in range(-11, 12):
        assert len(set(scores.diagonal(r).tolist())) == 1
