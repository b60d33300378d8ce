"""course/: the worked example, and the points of the handout."""

import doctest
import re
import textwrap

import torch

from attention import attention
from conftest import ROOT
from course.assignment import GRADED, YOURS
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


def test_the_lines_of_the_worked_example_return_its_result():
    """The lines are run as printed. Then the weights of barks, with the beta of the page."""
    names = {}
    lines = re.search(r"^    import torch\n.*?^    beta = .*?\n", EXAMPLE, re.DOTALL | re.M)[0]
    exec(textwrap.dedent(lines), names)
    [call] = re.findall(r"^    print\((composite_attention\(.*)\)$", EXAMPLE, re.M)
    result = eval(call, names)
    assert_printed("result", result)
    assert textwrap.indent(str(result), "    ") in EXAMPLE

    # with the identity as values, the result is the attention matrix: one head, d = 2, 4 tokens
    q, k, w = names["q"], names["k"], names["w"]
    beta = torch.tensor([[1.0, 0, 2]])
    positions = Positions((q @ w / ROOT_OF_D + beta)[None, None])
    value = torch.eye(4)[None, None]
    mask = torch.ones(1, 4, dtype=torch.bool)
    p = attention(q[None, None], k[None, None], value, mask, positions)[0, 0]
    bias = positions.query_bias[0, 0, 2, [0, 0, 1, 2]]  # of barks: its row of the bias matrix
    content = (q @ k.t())[2] / ROOT_OF_D
    scores = bias + content
    assert_printed("beta", torch.stack([bias, content, scores, scores.exp(), p[2]]))


def test_the_page_prints_every_function_with_its_points_and_100_in_all():
    table = rows_after("points", HANDOUT)
    for part in range(1, 5):
        functions = [function for function in GRADED if function.part == part]
        text = re.search(rf"\n## Part {part}:.*?(?=\n## )", HANDOUT, flags=re.DOTALL)[0]
        named = dict(re.findall(r"### `([\w.]+)` \((\d+)", text))
        assert named == {line.name.partition(".")[2]: str(line.points) for line in functions}
        row = table[part - 1]
        points = sum(line.points for line in functions)
        assert (row[0], row[2], row[3]) == (str(part), str(len(functions)), str(points))
    assert sum(int(row[3]) for row in table if "+" not in row[3]) == 100
    assert sum(int(row[3]) for row in table[4:]) == sum(YOURS.values())


def test_the_examples_of_the_handout_are_what_the_code_computes():
    page = ROOT / "course/handout.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted == page.read_text("utf-8").count(">>> ") and found.failed == 0
