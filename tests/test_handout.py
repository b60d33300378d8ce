"""course/: the worked example, and the points of the handout."""

import doctest
import re

import pytest
import torch

from attention import attention
from conftest import ROOT
from course.assignment import GRADED
from kernels import Positions, bias_matrix, convolve

HANDOUT = (ROOT / "course/handout.md").read_text("utf-8")
EXAMPLE = (ROOT / "course/by_hand.md").read_text("utf-8")
ROOT_OF_D = 2**0.5  # d = 2 in the worked example


def rows_after(marker, text=EXAMPLE):
    """The cells of the table between <!-- marker --> and <!-- end -->, without its header."""
    table = text.split(f"<!-- {marker} -->\n")[1].split("<!-- end -->")[0]
    return [line.strip("| ").split(" | ") for line in table.strip().splitlines()[2:]]


def numbers_after(marker):
    """The numbers of an example's table, without the names of its rows."""
    rows = rows_after(f"example: {marker}")
    return torch.tensor([[float(x) for x in row[1:]] for row in rows]).double()


def assert_printed(marker, computed):
    """Each printed number is the computed one, rounded to the digits that are printed."""
    printed = [row[1:] for row in rows_after(f"example: {marker}")]
    for text_row, row in zip(printed, computed.tolist(), strict=True):
        for text, number in zip(text_row, row, strict=True):
            digits = len(text.partition(".")[2])
            assert abs(float(text) - number) <= 0.5 * 10**-digits + 1e-9, (marker, text, number)


def test_the_worked_example_is_what_the_code_computes():
    """Every table follows from the vectors and from w."""
    q, k, v = numbers_after("vectors").split(2, dim=1)  # (N, d) each
    w = numbers_after("w")  # (d, K)

    # the bias matrix, the content, and their sum
    bias = q @ w  # (N, K)
    matrix = bias_matrix(bias, 4)  # (N, N)
    content = q @ k.t()  # (N, N)
    assert_printed("bias", bias)
    assert_printed("matrix", matrix)
    assert_printed("content", content)
    assert_printed("total", matrix + content)
    assert_printed("exponentials", (torch.arange(-3, 4) / ROOT_OF_D).exp()[None])

    # attention; with the identity as values, the result is the attention matrix
    def attend(value):
        mask = torch.ones(1, 4, dtype=torch.bool)
        positions = Positions(bias[None, None] / ROOT_OF_D)
        return attention(q[None, None], k[None, None], value, mask, positions)

    assert_printed("weights", attend(torch.eye(4).double()[None, None])[0, 0])
    assert_printed("result", attend(v[None, None])[0, 0])

    # the convolution: its kernels are the softmax of the same biases
    kernels = (bias / ROOT_OF_D).softmax(dim=-1)  # (N, K)
    convolved = convolve(kernels[None, None], v[None, None])[0, 0]  # (N, d)
    assert_printed("kernels", torch.cat([kernels, convolved], dim=1))


@pytest.mark.parametrize("part", range(1, 6))
def test_each_part_prints_its_functions_with_their_points(part):
    functions = [function for function in GRADED if function.part == part]
    assert sum(function.points for function in functions) == 20
    text = re.search(rf"\n## Part {part}:.*?(?=\n## )", HANDOUT, flags=re.DOTALL)[0]
    named = dict(re.findall(r"`([\w.]+)`\s\((\d+)", text))
    assert named == {line.name.partition(".")[2]: str(line.points) for line in functions}
    row = rows_after("points", HANDOUT)[part - 1]
    assert (row[0], row[2], row[3]) == (str(part), str(len(functions)), "20")


def test_the_examples_of_the_handout_are_what_the_code_computes():
    found = doctest.testfile(str(ROOT / "course/handout.md"), module_relative=False)
    assert found.attempted == 79 and found.failed == 0
