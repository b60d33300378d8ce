"""course/: the blanks, and the grader, which runs tests/science on a submission."""

import ast
import csv
import json

import pytest

from conftest import ROOT
from course.__main__ import main
from course.assignment import GRADED
from course.blank import blank_body, copy_project, file_of, find
from course.grade import grade, results_of, run_tests

BLANKS = {function.name: blank_body(function) for function in GRADED}


def test_every_part_has_20_points():
    for part in range(1, 6):
        assert sum(function.points for function in GRADED if function.part == part) == 20


def test_a_blank_copy_keeps_what_is_not_a_body_and_holds_no_answers(tmp_path):
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
    assert not (out / "course/instructor.md").exists()

    # and it has no points
    assert sum(result.points for result in grade(out).values()) == 0


def test_all_tests_of_blank_functions_fail():
    """For some functions whose tests do not need each other."""
    names = ("kernels.scores_by_index", "kernels.scores_by_skew", "data.mask_tokens")
    functions = [function for function in GRADED if function.name in names]
    results = run_tests({name: BLANKS[name] for name in names}, functions)
    for function in functions:
        own = results_of(function, results)
        assert own and all(own.values()), function.name


def test_a_wrong_function_costs_only_its_own_points(tmp_path, capsys):
    """Two are written; skew moves no row. In this submission convolve uses it."""
    anna, bert = tmp_path / "anna", tmp_path / "bert"
    names = ("kernels.skew", "kernels.convolve")
    bodies = {name: body for name, body in BLANKS.items() if name not in names}
    bodies["kernels.skew"] = "return x[..., :-1]"
    copy_project(anna, bodies)

    # in the second submission no function can be found
    bert.mkdir()
    (bert / "attention.py").write_text("def (")
    (bert / "kernels.py").write_text("x = 1")

    table = tmp_path / "table.csv"
    assert main(["grade", str(anna), str(bert), "--csv", str(table)]) == 0
    rows = list(csv.DictReader(table.open()))
    assert [float(rows[0][name]) for name in names] == [2, 5]  # 1 of 2 tests passes
    assert [float(row["total"]) for row in rows] == [7, 0]
    printed = capsys.readouterr().out
    for reason in ("still blank", "attention.py is not valid Python", "there is no data.py"):
        assert reason in printed


def test_gradescope_gets_a_test_for_each_function(tmp_path):
    submission = tmp_path / "empty"
    submission.mkdir()
    out = tmp_path / "results.json"
    assert main(["grade", str(submission), "--gradescope", str(out)]) == 0
    tests = json.loads(out.read_text())["tests"]
    assert sum(test["max_score"] for test in tests) == 100
    assert all(test["score"] == 0 and test["output"] for test in tests)


@pytest.mark.parametrize(
    "arguments",
    [
        ["blank", str(ROOT)],
        ["blank", str(ROOT / "lab/out")],
        ["grade", "no-such-folder"],
        ["grade", str(ROOT / "README.md")],
        ["grade", str(ROOT), str(ROOT / "lab"), "--gradescope", "out.json"],
    ],
)
def test_a_wrong_input_ends_in_one_line(arguments, run_program):
    outcome = run_program(main, *arguments)
    assert outcome.code != 0
    assert len(outcome.error.splitlines()) == 1
