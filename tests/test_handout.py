"""course/handout.md and course/instructor.md: their numbers, their commands and their links."""

import ast
import functools
import re
import shlex

import pytest
import torch

import attention
import course.__main__
import glue
import kernels
import model
import pretrain
from attention import Variant, lowest_at_padding
from conftest import ROOT
from course import figures
from course.mistakes import MISTAKES
from course.parts import GRADED, PARTS
from kernels import gather_scores
from lab import explore, pairs
from lab import figures as lab_figures
from lab.record import read_run_records

HANDOUT = (ROOT / "course/handout.md").read_text(encoding="utf-8")
INSTRUCTOR = (ROOT / "course/instructor.md").read_text(encoding="utf-8")
DOCUMENTS = {"handout.md": HANDOUT, "instructor.md": INSTRUCTOR}
ROOT_OF_D = 2**0.5  # d = 2 in the worked example


# --- Reading the documents ------------------------------------------------------------------------


def rows_after(marker, text=HANDOUT):
    """The cells of the table between <!-- marker --> and <!-- end -->, without its header."""
    table = text.split(f"<!-- {marker} -->\n")[1].split("<!-- end -->")[0]
    lines = table.strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def numbers_after(marker):
    """The printed numbers of a table of the worked example, as texts; the first column is words."""
    return [row[1:] for row in rows_after(f"example: {marker}")]


def section(text, title):
    """The part of a document from a heading to the next one of the same level."""
    level = title.split(" ")[0]
    start = text.index(f"\n{title}") + 1
    end = text.find(f"\n{level} ", start)
    return text[start:] if end < 0 else text[start:end]


def assert_printed(printed, computed):
    """Each printed number is the computed one, rounded to the digits that are printed."""
    computed = torch.as_tensor(computed, dtype=torch.float64).tolist()
    assert [len(row) for row in printed] == [len(row) for row in computed]
    for text_row, row in zip(printed, computed, strict=True):
        for text, number in zip(text_row, row, strict=True):
            digits = len(text.partition(".")[2])
            assert abs(float(text) - number) <= 0.5 * 10**-digits + 1e-9, (text, number)


def text_of(numbers):
    """Numbers as the answers print them: "0.106, 0.434, 0.434, 0.026"."""
    return ", ".join(f"{float(number):.3f}" for number in numbers)


# --- The worked example ---------------------------------------------------------------------------


def test_the_vectors_of_the_worked_example_are_those_of_the_program():
    vectors = zip(figures.QUERY, figures.KEY, figures.VALUE, strict=True)
    assert_printed(numbers_after("vectors"), [q + k + v for q, k, v in vectors])
    assert_printed(numbers_after("w"), figures.W)
    for marker in ("vectors", "rows", "position", "content", "total", "weights", "result"):
        tokens = tuple(row[0] for row in rows_after(f"example: {marker}"))
        assert tokens == figures.TOKENS


@pytest.mark.parametrize(
    "step", ["rows", "position", "content", "total", "weights", "result", "kernels"]
)
def test_the_steps_of_the_worked_example_are_what_the_code_computes(step):
    example = figures.compute_example()
    computed = getattr(example, step)
    if step == "kernels":
        computed = torch.cat([example.kernels, example.convolved], dim=1)
    assert_printed(numbers_after(step), computed)


def test_the_exponentials_of_the_worked_example():
    n = torch.arange(-3, 4, dtype=torch.float64)
    assert_printed(numbers_after("exponentials"), (n / ROOT_OF_D).exp()[None])


def test_the_worked_example_follows_from_its_own_printed_numbers():
    """By hand: every step from the tables of the step before, without the project's code."""

    def table(marker):
        return torch.tensor([[float(cell) for cell in row] for row in numbers_after(marker)])

    vectors = table("vectors")
    q, k, v = vectors[:, 0:2], vectors[:, 2:4], vectors[:, 4:6]
    rows = table("rows")
    assert torch.equal(q @ table("w"), rows)
    for i in range(4):
        for j in range(4):
            assert table("position")[i, j] == rows[i, min(max(j - i, -1), 1) + 1]
    assert torch.equal(q @ k.T, table("content"))
    assert torch.equal(table("position") + table("content"), table("total"))

    # each power of the table of exponentials, divided by the sum of the row
    powers = table("exponentials")[0]
    exponentials = powers[table("total").long() + 3]
    weights = exponentials / exponentials.sum(1, keepdim=True)
    torch.testing.assert_close(weights, table("weights"), atol=6e-4, rtol=0)
    torch.testing.assert_close(table("weights") @ v, table("result"), atol=2e-3, rtol=0)


def test_the_figure_of_the_worked_example_is_drawn():
    pytest.importorskip("matplotlib")
    pyplot = lab_figures.load_pyplot()
    figure = figures.draw_example(pyplot)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts.count("barks") == 1 + 4
    assert "0.67" in texts and "\u22123" in texts and "\u22120" not in texts

    curves = figures.draw_curves(pyplot).axes[0].get_lines()
    assert [line.get_label() for line in curves] == [
        row[0] for row in rows_after("table: toy-language", INSTRUCTOR)
    ]
    for line, row in zip(curves, rows_after("table: toy-language", INSTRUCTOR), strict=True):
        assert f"{line.get_ydata()[-1]:.3f}" == row[2].split(" ")[0]
    pyplot.close("all")


# --- Answers --------------------------------------------------------------------------------------


def answers(part):
    return section(INSTRUCTOR, f"### Part {part}")


def weights_of(scores):
    """The weights of one query, from whole numbers that are divided by sqrt(2)."""
    return (torch.tensor(scores, dtype=torch.float64) / ROOT_OF_D).softmax(0)


def test_the_answers_about_padding_are_what_the_code_computes():
    total = figures.compute_example().total[2]  # barks
    mask = torch.tensor([[True, True, True, False]])
    masked = total / ROOT_OF_D + lowest_at_padding(mask, torch.float64)[0, 0, 0]
    assert torch.equal(masked.softmax(0), torch.tensor([1, 1, 1, 0]).double() / 3)
    assert text_of(weights_of([3, 3, 3, 0])) in answers(1)


def test_the_answers_about_beyond_and_beta_are_what_the_code_computes():
    example = figures.compute_example()
    zero = gather_scores(example.rows, 4, "zero")[2]  # barks
    total = zero + example.content[2]
    assert ", ".join(f"{number:.0f}" for number in zero) in answers(2)
    assert ", ".join(f"{number:.0f}" for number in total) in answers(2)
    assert text_of((total / ROOT_OF_D).softmax(0)) in answers(2)

    # beta is added without a division
    beta = torch.tensor([0, 2, 0]).log().nan_to_num(neginf=0).double()
    with_beta = gather_scores(example.rows / ROOT_OF_D + beta, 4) + example.content / ROOT_OF_D
    assert text_of(with_beta[1].softmax(0)) in answers(2)  # dog


def test_the_answers_about_the_band_matrix_are_what_the_code_computes():
    example = figures.compute_example()
    band = gather_scores(example.kernels, 4, "zero")
    printed = re.findall(r"^       ((?:[\d.]+ *){4})$", answers(3), flags=re.MULTILINE)
    assert_printed([row.split() for row in printed], band)
    assert "(0.424, 0.716)" in answers(3)
    torch.testing.assert_close(band @ torch.tensor(figures.VALUE).double(), example.convolved)

    # without content, within k positions: equal inside, different at the ends
    is_far = gather_scores(torch.ones(4, 3), 4, "zero") == 0
    attended = (example.position / ROOT_OF_D).masked_fill(is_far, -torch.inf).softmax(1)
    assert torch.allclose(attended[1:3], band[1:3])
    assert not torch.allclose(attended[0], band[0]) and not torch.allclose(attended[3], band[3])
    assert " and ".join(f"{number:.3f}" for number in attended[0, :2]) in answers(3)


def test_the_answers_about_numbers_of_weights_and_learning_rates():
    C, H, K = 128, 4, 17
    counts = (C * C * K, C * K, H * K, C * H * K, C // 2 * (H // 2) * K)
    found = re.findall(r"[\d,]*\d", answers(4).split("\n1. ")[1].split("\n2. ")[0])
    assert [int(number.replace(",", "")) for number in found] == list(counts)

    rates = [pretrain.learning_rate(step, 10, 4, 0.001) for step in (0, 3, 4, 9)]
    found = answers(5).split("\n2. ")[1].split(" (")[0].replace(" and ", " ").rstrip(".")
    assert [float(number.rstrip(",")) for number in found.split()] == pytest.approx(rates, abs=1e-6)


# --- Points and records ---------------------------------------------------------------------------


def test_the_table_of_points_is_that_of_the_course():
    rows = rows_after("points")
    assert [(int(row[0]), row[1]) for row in rows] == list(PARTS.items())
    for part, row in zip(PARTS, rows, strict=True):
        points = [function.points for function in GRADED if function.part == part]
        assert (int(row[2]), int(row[3])) == (len(points), sum(points))
    assert sum(int(row[3]) + int(row[4]) for row in rows) == 150


@pytest.mark.parametrize("part", range(1, 6))
def test_each_part_names_its_functions_with_their_points_and_four_questions(part):
    text = section(HANDOUT, f"## Part {part}:")
    named = dict(re.findall(r"`([\w.]+)`\s\((\d+)", text))
    functions = [function for function in GRADED if function.part == part]
    assert named == {line.name.partition(".")[2]: str(line.points) for line in functions}
    assert re.findall(r"^\d\. \(1\W", text, flags=re.MULTILINE) == [
        f"{n}. (1)" for n in range(1, 5)
    ]
    assert re.findall(r"^(\d)\. ", answers(part), flags=re.MULTILINE) == ["1", "2", "3", "4"]


def test_the_rubric_of_part_6_has_the_points_of_the_table():
    text = section(HANDOUT, "## Part 6:")
    points = [int(number) for number in re.findall(r"\| (\d+) \|$", text, flags=re.MULTILINE)]
    assert sum(points) == int(rows_after("points")[-1][4]) == 30


def test_the_output_of_the_reference_has_all_functions_and_points():
    printed = INSTRUCTOR.split("<!-- reference -->")[1].split("<!-- end -->")[0]
    for function in GRADED:
        line = f"    {function.name:<40}{function.points:>7.2f} of {function.points}\n"
        assert line in printed
    assert "total                                        100.00 of 100" in printed


def test_the_numbers_of_training_runs_are_those_of_the_records():
    results = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    rows = rows_after("table: toy-language", INSTRUCTOR)
    of_results = results.split("<!-- table: toy-language -->")[1].split("<!-- end -->")[0]
    assert len(rows) == 5
    for row in rows:
        assert f"| {' | '.join(row)} |" in of_results

    # how long training and minimal pairs of these five variants took
    variants = [row[0] for row in rows]
    records = read_run_records(ROOT / "results/toy.jsonl")
    records = [record for record in records if record["settings"]["variant"] in variants]
    minutes = [record["result"]["seconds"] / 60 for record in records]
    assert f"{min(minutes):.1f} to {max(minutes):.1f}" == "1.6 to 3.3"
    assert "1.6 to 3.3 minutes of training\nper run" in INSTRUCTOR
    seconds = [sum(pair["seconds"] for pair in record["pairs"]["toy"]) for record in records]
    assert f"{min(seconds):.0f} to {max(seconds):.0f} seconds" in INSTRUCTOR

    # the ranges of two variants
    losses = {}
    for record in records:
        losses.setdefault(record["settings"]["variant"], []).append(record["result"]["loss"])
    for variant in ("composite", "none"):
        low, high = min(losses[variant]), max(losses[variant])
        assert f"between {low:.3f} and {high:.3f}" in INSTRUCTOR


def test_the_sentence_that_the_handout_quotes_is_one_of_a_known_mistake():
    quoted = re.findall(r"This is what comes out if (.+?)\.[`\n]", HANDOUT + INSTRUCTOR)
    assert len(quoted) == 2
    assert set(quoted) <= {mistake.sentence for mistake in MISTAKES}


# --- Commands -------------------------------------------------------------------------------------


def commands_of(text):
    """The commands of a document that run a program of this project, each a list of words."""
    commands = []
    for line in text.replace("\\\n", " ").splitlines():
        for command in [line.strip(), *re.findall(r"`(python .+?)`", line)]:
            if re.match(r"python (\w+\.py|-m (lab|course|pytest)\b)", command):
                commands.append(shlex.split(command, comments=True)[1:])
    return commands


COMMANDS = [
    pytest.param(command, id=f"{name}: {' '.join(command[:6])}")
    for name, text in DOCUMENTS.items()
    for command in commands_of(text)
]
PARSERS = {
    "pretrain.py": pretrain.parse_arguments,
    "glue.py": glue.parse_arguments,
    "lab.explore": explore.parse_arguments,
    "lab.figures": lab_figures.parse_arguments,
    "lab.pairs": pairs.parse_arguments,
}


def returned(name, args):
    return name


@pytest.fixture
def quiet_course(monkeypatch):
    """The commands of `python -m course` only return which one they are."""
    for name in ("blank", "grade", "check", "attacks"):
        monkeypatch.setattr(course.__main__, f"{name}_command", functools.partial(returned, name))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_documents_is_understood_by_its_program(
    command, quiet_course, monkeypatch
):
    """The parser ends the test with SystemExit if it does not know an option."""
    # the README's example of a new variant, which the handout uses
    monkeypatch.setitem(attention.VARIANTS, "fixed-key", Variant("", terms=("fixed",)))

    program, *arguments = [word for word in command if word != "-m"]
    if program == "model.py":
        assert len(arguments) == 2 and "[MASK]" in arguments[1]
        assert callable(model.main)
    elif program == "course":
        assert course.__main__.main(arguments) == arguments[0]
    elif program == "course.figures":
        assert arguments == [] and callable(figures.main)
    elif program == "pytest":
        check_pytest(arguments)
    else:
        PARSERS[program](arguments)


def check_pytest(arguments):
    """The files are there, and each word after -k is in the name of a test, or names a variant."""
    arguments = list(arguments)
    words = set()
    if "-k" in arguments:
        at = arguments.index("-k")
        words = set(re.findall(r"[\w-]+", arguments[at + 1])) - {"and", "or", "not"}
        del arguments[at : at + 2]

    tests = set()
    for path in arguments:
        if path != "-q":
            files = [ROOT / path] if path.endswith(".py") else (ROOT / path).glob("test_*.py")
            for file in files:
                tree = ast.parse(file.read_text(encoding="utf-8"))
                tests |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert tests
    for word in words:
        is_parameter = word in attention.VARIANTS or hasattr(kernels, word)
        assert is_parameter or any(word in test for test in tests), word


def test_the_documents_show_every_command_of_the_course():
    shown = {command[2] for command in commands_of(HANDOUT + INSTRUCTOR) if command[1] == "course"}
    assert shown == {"blank", "grade", "check", "attacks"}


# --- Links ----------------------------------------------------------------------------------------


def anchors(text):
    """The anchors that GitHub makes of the headings."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        found.add(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_pictures_of_the_documents_exist(name):
    for target in re.findall(r"\]\(([^)]+)\)", DOCUMENTS[name]):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        text = DOCUMENTS[name]
        if path:
            assert (ROOT / "course" / path).is_file(), target
        if path.endswith(".md"):
            text = (ROOT / "course" / path).read_text(encoding="utf-8")
        if anchor:
            assert anchor in anchors(text), target
