"""course/: the blanks, the grader, and the tasks with numbers of one's own."""

import ast
import csv
import json
import re

import pytest
import torch

import attention
from conftest import ROOT, write
from course import grade
from course.__main__ import main
from course.assignment import FUNCTIONS, GRADED, class_of
from course.blank import COPIED, blank_body, body_text, copy_project, file_of, find, replace_body
from course.grade import NOT_ENDED, PASSED, run_tests, students_body
from course.mistakes import BUGS, MISTAKES
from course.personal import draw
from support.commands import UserError

BLANKS = {function.name: blank_body(function) for function in GRADED}
BY_NAME = {function.name: function for function in FUNCTIONS}


@pytest.fixture(autouse=True)
def time_on_a_busy_machine(monkeypatch):
    monkeypatch.setattr(grade, "TIMEOUT", 300)


def test_a_blank_copy_keeps_what_is_not_a_body_holds_no_answers_and_has_no_points(tmp_path):
    out = tmp_path / "out"
    assert main(["blank", str(out)]) == 0
    for function in GRADED:
        file = file_of(function.name)
        blank = find(ast.parse((out / file).read_text("utf-8")), function.name)
        original = find(ast.parse((ROOT / file).read_text("utf-8")), function.name)
        assert ast.get_docstring(blank) == ast.get_docstring(original)
        assert ast.unparse(blank.body[-1]) == ast.unparse(ast.parse(BLANKS[function.name]))

        # with the original's body it is the original again: arguments, decorators, docstring
        blank.body = original.body
        assert ast.dump(blank) == ast.dump(original)
    readme = (out / "README.md").read_text("utf-8")
    assert "def composite_attention" not in readme and "pytest -q\n" not in readme
    assert "This is all of it" not in readme and "few minutes" not in readme
    # nothing but the project, whatever lies in its folder
    assert {path.name for path in out.iterdir()} <= set(COPIED)
    for name in ("instructor.md", "answers.md", "mistakes.py", "mistakes.diff", "instructor.py"):
        assert not (out / "course" / name).exists()
    assert "runs/" in (out / ".gitignore").read_text("utf-8")
    for page in out.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#\s:]+)[)#]", page.read_text("utf-8")):
            assert (page.parent / link).exists(), (page.name, link)

    # Gradescope gets 40 points to earn, and none that is earned
    report = tmp_path / "results.json"
    assert main(["grade", str(out), "--gradescope", str(report)]) == 0
    tests = json.loads(report.read_text())["tests"]
    assert sum(test["max_score"] for test in tests) == 40
    assert all((test["score"], test["output"]) == (0, "still blank") for test in tests)


# --- The grader -----------------------------------------------------------------------------------


def test_a_wrong_function_costs_only_its_own_points_and_the_reason_is_given(
    tmp_path, capsys, monkeypatch
):
    """Whatever the environment says, and however odd the other submissions are."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x --deselect tests")
    anna, bert, carl = tmp_path / "anna", tmp_path / "bert", tmp_path / "carl"
    copy_project(
        anna,
        {
            # right, but with a loop
            "kernels.convolve": "reach = kernels.shape[-1] // 2\n"
            "matrix = skew(F.pad(kernels, (0, value.shape[-2])))  # (B, H, N, N + 2k)\n"
            "z = matrix @ F.pad(value, (0, 0, reach, reach))\n"
            "return torch.stack([z_i for z_i in z.unbind(-2)], dim=-2)",
            "attention.Fixed.query_bias": "# two\n\n\nreturn self.beta.rows",
            # half of its points at most: the example does not come out
            "attention.lowest_at_padding": body_text("attention.lowest_at_padding").replace(
                "finfo(dtype).min / 2", "tensor(0.0)"
            ),
            "data.mask_tokens": "from tests.references import mask_tokens\nreturn mask_tokens",
        },
    )

    # odd submissions: nothing can be found in them
    bert.mkdir()
    (bert / "attention.py").mkdir()
    write(bert / "kernels.py", "x = " + "(" * 5000)
    write(bert / "data.py", "x = 1".encode("utf-16"))
    write(carl / "attention.py", "x = 1")

    table = tmp_path / "table.csv"
    submissions = map(str, (anna, tmp_path / "notes.zip", bert, carl))
    assert main(["grade", *submissions, "--csv", str(table)]) == 0
    points = {}
    for row in csv.DictReader(table.open()):
        points[row["student"], row["function"]] = row["points"]
    names = list(BLANKS)
    lost = {"attention.Fixed.query_bias": 1, "data.mask_tokens": 3, "kernels.convolve": 2}
    for function in GRADED:
        found = float(points["anna", function.name])
        if function.name == "attention.lowest_at_padding":
            assert 0 < found <= 1
            lost[function.name] = 2 - found
        assert found == function.points - lost.get(function.name, 0), function.name
        assert float(points["bert", function.name]) == float(points["carl", names[0]]) == 0

    printed = capsys.readouterr().out
    total = float(re.search(r"code  (\S+) of 40", printed)[1])
    assert total == pytest.approx(40 - sum(lost.values()), abs=0.01)
    line = (anna / "attention.py").read_text("utf-8").splitlines().index(" " * 8 + "# two") + 4
    for reason in (
        "it crashed: AttributeError: 'Parameter' object has no attribute 'rows', "
        f"line {line} of your attention.py",
        "must not use from tests.references",
        "it loops over the positions",
        "notes.zip is not a folder",
        "attention.py cannot be read as Python: IsADirectoryError",
        "attention.py does not have this function",
    ):
        assert reason in printed, reason


@pytest.mark.parametrize(
    "body, reason",
    [
        ("import tests.references\nreturn x", "line 2: a body must not use import tests"),
        ("return __import__('tests')", "__import__"),
        ("return importlib.import_module('tests')", "importlib"),
        ("import numpy, tests.references\nreturn numpy", "import numpy, tests"),
        ("return open('tests/references.py')", "open"),
        ("import numpy as np\nnp.savetxt('../outcomes.jsonl', [])", "savetxt"),
        ("table.numpy().tofile('x')", "tofile"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("exit(0)", "exit"),
        ("return torch.sys.modules['tests']", "sys"),
        ("return split_heads.__globals__", "__globals__"),
        ("import pytest\npytest.skip()", "import pytest"),
        ("", "still blank"),
    ],
)
def test_a_body_that_reaches_for_the_answers_has_no_points(tmp_path, body, reason):
    lines = ["def relative_values(p, table, beyond):", *(body or "''").splitlines()]
    write(tmp_path / "attention.py", "\n    ".join(lines))
    with pytest.raises(UserError, match=reason):
        students_body(tmp_path, BY_NAME["attention.relative_values"])


@pytest.mark.parametrize(
    "name, body",
    [
        ("attention.composite_attention", "return attention(q, k, v, None)"),
        ("attention.composite_attention", "return banded_softmax(q, 0, w) @ v"),
        ("kernels.bias_matrix", "return add_bias(torch.zeros(N, N), bias, beyond)"),
        ("kernels.bias_matrix", "sums = sum_by_offset(torch.ones(N, N), 3)\nreturn sums"),
        ("kernels.sum_by_offset", "one = x\nreturn bias_matrix(one, 3)"),
        ("attention.attention", "return composite_attention(q, k, v, 0, 0)"),
        ("attention.Dynamic.query_bias", "return VARIANTS['composite']"),
    ],
)
def test_a_function_that_is_made_of_another_one_has_no_points(tmp_path, name, body):
    put_body(tmp_path, name, body)
    with pytest.raises(UserError, match="it uses .* of the project it may use"):
        students_body(tmp_path, BY_NAME[name])


def test_a_body_may_use_what_its_hint_names_and_call_a_variable_as_it_likes(tmp_path):
    for name, body in (
        ("kernels.convolve", "return bias_matrix(kernels, value.shape[-2], 'zero') @ value"),
        ("attention.composite_attention", "attention = q @ k.mT\nreturn attention.softmax(-1)"),
        ("attention.relative_values", "def skew(x):\n    return x\nreturn skew(p)"),
    ):
        put_body(tmp_path, name, body)
        students_body(tmp_path, BY_NAME[name])
    for name in BLANKS:  # and every body of the project
        students_body(ROOT, BY_NAME[name])


def test_what_is_added_outside_of_the_bodies_is_missed_in_a_students_copy_too(
    tmp_path, monkeypatch
):
    """There, the project is what the student has changed."""
    name = "attention.relative_values"
    copy = tmp_path / "copy"
    assert main(["blank", str(copy)]) == 0
    put_body(copy, name, "return p @ (HALF * table)")
    with open(copy / "attention.py", "a", encoding="utf-8") as file:
        file.write("\n\nHALF = 0.5\n")
    for root in (ROOT, copy):
        monkeypatch.setattr(grade, "ROOT", root)
        with pytest.raises(
            UserError, match="it uses HALF, which is not in the project's attention"
        ):
            students_body(copy, BY_NAME[name])


def put_body(folder, name, body):
    """A submission with this body of one function."""
    text = (ROOT / file_of(name)).read_text("utf-8")
    write(folder / file_of(name), replace_body(text, name, body))


@pytest.mark.parametrize("body", ["raise KeyboardInterrupt", "while True:\n    pass"])
def test_nothing_has_passed_if_the_tests_do_not_come_to_their_end(body, monkeypatch):
    """Whatever a list says that the student's code may have written, and also on a busy machine."""
    monkeypatch.setattr(grade, "TIMEOUT", 5)
    name = "attention.lowest_at_padding"
    assert set(run_tests({name: body}, [BY_NAME[name]]).values()) <= {NOT_ENDED}


def test_the_names_of_the_arguments_are_checked_and_its_own_imports_allowed(tmp_path):
    write(tmp_path / "attention.py", "def relative_values(weights, table, beyond):\n    return 1")
    with pytest.raises(UserError, match="and must be .'p', 'table', 'beyond'"):
        students_body(tmp_path, BY_NAME["attention.relative_values"])
    write(
        tmp_path / "attention.py",
        "def relative_values(p, table, beyond):\n    import math\n\n    return math.pi",
    )
    body = students_body(tmp_path, BY_NAME["attention.relative_values"])
    assert body.text == "import math\nreturn math.pi" and body.lines == {1: 2, 2: 4}


def test_every_function_has_three_tests_that_can_fail_apart_and_the_project_passes_all():
    outcomes = run_tests({}, FUNCTIONS)
    assert set(outcomes.values()) == {PASSED}
    names = {test.partition("[")[0] for test in outcomes}
    for function in FUNCTIONS:
        own = [name for name in names if name.startswith(f"{class_of(function)}::")]
        assert len(own) >= 4, function.name  # and the example of the handout


# --- Mistakes, and numbers of one's own -----------------------------------------------------------


def test_every_mistake_changes_one_piece_of_a_function():
    assert {mistake.function for mistake in MISTAKES} == {line.name for line in FUNCTIONS}
    bodies = {function.name: body_text(function.name) for function in FUNCTIONS}
    for mistake in MISTAKES:
        assert bodies[mistake.function].count(mistake.old) == 1, mistake
        assert mistake.old != mistake.new

    # the rubric has the bugs under the names that answers.txt prints
    rubric = (ROOT / "course/answers.md").read_text("utf-8")
    for bug in BUGS:
        assert f"| {bug.what.removeprefix('bug: ')} | N = " in rubric


def test_sheets_hold_a_task_and_one_bug_and_only_the_instructor_has_the_answers(tmp_path):
    write(tmp_path / "class.txt", "anna\n\nbert\n")
    out = tmp_path / "sheets"
    assert main(["sheets", str(tmp_path / "class.txt"), str(out), "--secret", "tulip"]) == 0
    answers = (out / "answers.txt").read_text("utf-8")
    for name in ("anna", "bert"):
        sheet, code = sorted((out / name).iterdir(), key=lambda path: path.suffix, reverse=True)
        own = sheet.read_text("utf-8")
        assert "tulip" not in own and f"q = {draw(f'{name}, tulip')['q']}" in own
        assert "tulip" not in answers

        # one function differs from the right file, by a bug that the rubric explains
        text, right = (path.read_text("utf-8") for path in (code, ROOT / code.name))
        assert 0 < len(set(text.splitlines()) - set(right.splitlines())) < 3
        [bug] = re.findall(rf"## {name}\n\n(\S+), (bug: .*?): ", answers)
        assert bug in {(mistake.function, mistake.what) for mistake in BUGS}


def test_as_many_students_as_there_are_bugs_get_different_ones(tmp_path):
    names = [f"student {n}" for n in range(2 * len(BUGS))]
    write(tmp_path / "class.txt", "\n".join(names))
    out = tmp_path / "sheets"
    assert main(["sheets", str(tmp_path / "class.txt"), str(out), "--secret", "tulip"]) == 0
    found = re.findall(r"(\S+, bug: .*?): ", (out / "answers.txt").read_text("utf-8"))
    assert found[: len(BUGS)] == found[len(BUGS) :] and len(set(found)) == len(BUGS)


def test_the_numbers_of_a_task_show_what_they_shall_show():
    for n in range(200):
        numbers = draw(f"student {n}").values()
        q, k, v, w, beta = (torch.tensor(rows).float() for rows in numbers)
        assert len(q.unique(dim=0)) == 3
        assert (v != v[0]).any(dim=0).all() and (beta != beta[:, :1]).any()

        # no weight of attention (its result, with unit vectors as values) or of a kernel is near 1
        unit = torch.eye(3)[None]
        weights = attention.composite_attention(q[None], k[None], unit, w, beta)
        kernels = (q @ w / 2**0.5 + beta).softmax(dim=-1)
        assert max(weights.max(), kernels.max()) <= 0.95


def test_a_task_by_hand_belongs_to_its_name_and_its_answers_are_those_of_the_code(capsys):
    one, again, other = draw("anna"), draw("anna"), draw("bert")
    assert one == again != other

    # not before the task was tried
    assert main(["by_hand", "anna"]) == 0
    assert "5. z\n[[" not in capsys.readouterr().out

    assert main(["by_hand", "anna", "--answers"]) == 0
    printed = capsys.readouterr().out
    q, k, v, w, beta = (torch.tensor(rows).float() for rows in one.values())
    z = attention.composite_attention(q[None], k[None], v[None], w, beta)[0]
    section = printed.partition("5. z\n[[")[2].partition("]]")[0]
    numbers = [float(x) for x in section.replace("[", " ").replace("]", " ").split()]
    assert numbers == pytest.approx(z.flatten().tolist(), abs=6e-4)
