"""lab/bench.py: what is computed and compared. How long anything takes is never tested."""

import math

import pytest
import torch

import references
from lab import bench


def test_ratios_are_medians_of_the_ratios_of_each_round():
    """In the second round the machine was ten times slower; the ratio does not notice it."""
    assert bench.median_ratio([2.0, 20.0, 6.0], [1.0, 10.0, 1.0]) == 2.0


@pytest.mark.parametrize("name", bench.METHODS)
@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_each_method_of_attention_computes_the_plain_definition_and_its_gradients(name):
    inputs, mask, grad_output = bench.make_inputs(2, 24, torch.device("cpu"), torch.float64)
    found = bench.forward_backward(bench.METHODS[name], inputs, mask, grad_output)

    q, k, v, rows = inputs
    scores = q @ k.transpose(-1, -2) / math.sqrt(64)
    if name != "plain":
        scores = scores + references.relative_scores(rows, 24, "clip")
    p = scores.masked_fill(~mask[:, None, None], -math.inf).softmax(dim=-1)
    z = p @ v
    expected = [z, *torch.autograd.grad(z, inputs, grad_output, allow_unused=True)]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
