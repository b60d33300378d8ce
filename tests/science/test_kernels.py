"""kernels.py: the hot loop equals plain loops.

The bias matrix, its reverse and convolutions by themselves: test_cases.py.
"""

import torch

import attention
import kernels
import references
from helpers import assert_same_with_gradients, draw, every_beyond
from kernels import Positions

# --- From a bias to its matrix, and back ----------------------------------------------------------


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
