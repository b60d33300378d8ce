"""course/: the blanks, and the grader, which runs tests/science on a submission."""

import ast
import csv
import json

from conftest import ROOT
from course.__main__ import main
from course.assignment import GRADED
from course.blank import blank_body, body_text, copy_project, file_of, find
from course.mistakes import MISTAKES

BLANKS = {function.name: blank_body(function) for function in GRADED}


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
    assert "def composite_attention" not in (out / "README.md").read_text("utf-8")
    for name in ("instructor.md", "answers.md", "mistakes.py"):
        assert not (out / "course" / name).exists()

    # Gradescope gets 100 points to earn, and none that is earned
    report = tmp_path / "results.json"
    assert main(["grade", str(out), "--gradescope", str(report)]) == 0
    tests = json.loads(report.read_text())["tests"]
    assert sum(test["max_score"] for test in tests) == 100
    assert all((test["score"], test["output"]) == (0, "still blank") for test in tests)


def test_a_wrong_function_costs_only_its_own_points(tmp_path, capsys):
    """skew returns nothing: all its tests fail. convolve uses it and is right, but has a loop."""
    anna, bert = tmp_path / "anna", tmp_path / "bert"
    names = ("kernels.skew", "kernels.convolve")
    bodies = {name: body for name, body in BLANKS.items() if name not in names}
    bodies["kernels.skew"] = "return None"
    bodies["kernels.convolve"] = (
        "reach = kernels.shape[-1] // 2\n"
        "matrix = skew(F.pad(kernels, (0, value.shape[-2])))  # (B, H, N, N + 2k)\n"
        "z = matrix @ F.pad(value, (0, 0, reach, reach))\n"
        "return torch.stack([z_i for z_i in z.unbind(-2)], dim=-2)"
    )
    copy_project(anna, bodies)

    # in the second submission no function can be found
    bert.mkdir()
    (bert / "attention.py").write_text("def (")
    (bert / "kernels.py").write_text("x = 1")

    table = tmp_path / "table.csv"
    assert main(["grade", str(anna), str(bert), "--csv", str(table)]) == 0
    rows = list(csv.DictReader(table.open()))
    assert [float(rows[0][name]) for name in names] == [0, 2.5]
    assert [float(row["total"]) for row in rows] == [2.5, 0]
    printed = capsys.readouterr().out
    for reason in ("still blank", "attention.py is not valid Python", "there is no data.py"):
        assert reason in printed


def test_every_mistake_changes_one_piece_of_a_graded_function():
    assert {mistake.function for mistake in MISTAKES} == set(BLANKS)
    for mistake in MISTAKES:
        assert body_text(mistake.function).count(mistake.old) == 1, mistake
        assert mistake.old != mistake.new
