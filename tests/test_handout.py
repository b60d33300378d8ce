"""course/: the worked example, and the points of the handout."""

import doctest
import re
import textwrap

import numpy as np
import torch

from attention import attention
from conftest import ROOT
from course.assignment import FUNCTIONS, GRADED
from kernels import Positions, bias_matrix, convolve
from lab.report import LOSS, pairs_measure, read_records
from support.tables import critical_t, difference, values_of

ANSWERS = (ROOT / "course/answers.md").read_text("utf-8")
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
    assert sum(int(row[3]) for row in table) == 100

    optional = HANDOUT.partition("## Optional functions")[2]
    names = {line.name.partition(".")[2] for line in FUNCTIONS if not line.points}
    assert set(re.findall(r"### `([\w.]+)`\n", optional)) == names


def test_the_examples_of_the_handout_are_what_the_code_computes():
    found = doctest.testfile(str(ROOT / "course/handout.md"), module_relative=False)
    assert found.attempted > 70 and found.failed == 0


# --- The experiment: which effects can be seen ----------------------------------------------------


FAR = [f"distance_{words:02}" for words in range(8, 13)]
MEASURES = {"loss": LOSS._replace(digits=2), "far agreement": pairs_measure("", "toy", FAR)}


def recorded(*names):
    """The runs of these files of records."""
    return [run for name in names for run in read_records(ROOT / f"results/{name}.jsonl")]


def test_the_expected_numbers_of_the_answers_are_those_of_the_records():
    runs = recorded("toy", "plan-toy")
    for variant, count, loss, agreement, *_ in rows_after("expected", ANSWERS):
        values = [values_of(runs, variant, measure) for measure in MEASURES.values()]
        assert [loss, agreement] == [f"{np.mean(values[0]):.2f}", f"{np.mean(values[1]):.1f}"]
        assert all(len(of_measure) == int(count) for of_measure in values)


def test_the_ablations_of_the_answers_are_those_of_the_record():
    record = (ROOT / "results/ablation.txt").read_text("utf-8")
    trained = dict(re.findall(r"^(\S+): step 2,000 .* held-out loss (\S+)", record, re.M))
    ablated = dict(re.findall(r"^runs/(\S+?), .*: held-out loss (\S+)", record, re.M))
    printed = {row[0]: row[4:] for row in rows_after("expected", ANSWERS)}
    assert set(trained) == set(ablated) == {"fixed", "dynamic", "lightconv-hybrid"}
    for variant, losses in printed.items():
        assert losses == [trained.get(variant, "-"), ablated.get(variant, "-")]
    assert f"a loss of {ablated['dynamic']} in place of {trained['dynamic']}" in ANSWERS


def test_the_table_of_the_sample_report_is_that_of_its_runs():
    none, dynamic = (values_of(recorded("toy"), name, LOSS) for name in ("none", "dynamic"))
    *means, last = rows_after("sample", ANSWERS)
    for values, row in zip((none, dynamic), means, strict=True):
        mean = np.mean(values)
        half = critical_t(len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
        interval = f"{mean - half:.2f} to {mean + half:.2f}"
        assert row[1:] == [str(len(values)), f"{mean:.2f}", interval]
    assert f"{last[2]} ({last[3]})" == difference(dynamic, none).text(2)

    # the smallest difference that three runs can show, with the SD of all runs on record
    runs = recorded("toy", "plan-toy")
    none, dynamic = (values_of(runs, name, LOSS) for name in ("none", "dynamic"))
    deviation = np.sqrt((np.var(none, ddof=1) + np.var(dynamic, ddof=1)) / 2)
    error, t = deviation * np.sqrt(2 / 3), critical_t(4)
    way = f"{t * error:.2f} (s = {deviation:.3f} of the eight runs on record, SE = {error:.3f}, "
    assert len(none) == len(dynamic) == 8
    assert f"{way}t = {t:.2f})" in " ".join(ANSWERS.split())


def test_the_smallest_effects_of_the_handout_follow_from_the_records():
    runs = recorded("toy", "plan-toy")
    for question, name, *printed in rows_after("power", HANDOUT):
        measure = MEASURES[name]
        one, other = (values_of(runs, variant, measure) for variant in question.split(" against "))
        count = 3 if "lightconv" in question else 8
        assert len(one) == len(other) == count
        deviation = np.sqrt((np.var(one, ddof=1) + np.var(other, ddof=1)) / 2)
        errors = {n: deviation * np.sqrt(2 / n) for n in (3, 5, 8)}
        smallest = [critical_t(2 * n - 2) * error for n, error in errors.items()]

        numbers = [deviation, errors[3], *smallest]
        deviation, error, *smallest = (f"{x:.{measure.digits}f}" for x in numbers)
        assert printed == [deviation, error, ", ".join(smallest)]
