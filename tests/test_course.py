"""course/: the students' copy, the grader, sheets, marks and runs."""

import csv
import json
import re
import shutil
import sys
import zipfile

import pytest
import torch

import attention
from conftest import ROOT, write
from course import grade
from course.__main__ import main
from course.assignment import GRADED
from course.cases import make_cases
from course.mistakes import BANK, LIST, read_blocks, read_mistakes
from course.personal import EXPONENTIALS, draw, exponents, seeds_of
from course.source import body_text, file_of, replace_body

CASES = make_cases(seed=1)


def submission(folder, bodies=None, **added):
    """The right files, with other bodies and with what is added at the end of a file."""
    folder.mkdir()
    for file in grade.STUDENTS:
        shutil.copy(ROOT / file, folder)
    for name, body in (bodies or {}).items():
        text = (folder / file_of(name)).read_text("utf-8")
        write(folder / file_of(name), replace_body(text, name, body))
    for file, text in added.items():
        with open(folder / f"{file}.py", "a", encoding="utf-8") as opened:
            opened.write(text)
    return folder


def graded(folder, *functions):
    """{function: (share of its points, what is said)} of these functions; the others are right."""
    names = [f.name for f in GRADED if f.name in functions]
    cases = [case for case in CASES if case.function in names]
    grades = grade.grade(folder, cases)
    return {f.name: (points / f.points, said) for f, points, said in grades if f.name in names}


# --- The students' copy ---------------------------------------------------------------------------


def test_a_copy_has_blanks_and_cases_but_no_equation_and_its_grader_gives_the_same(
    tmp_path, monkeypatch
):
    out = tmp_path / "out"
    assert main(["blank", str(out)]) == 0
    texts = [path.read_text("utf-8") for path in (out / "README.md", *out.rglob("*.py"))]
    for name in (function.name for function in GRADED):
        for line in body_text(name).splitlines():
            code = line.partition("  #")[0].strip()
            if len(code) > 40 and not code.startswith("#"):
                assert not any(code in text for text in texts), (name, code)
    for page in out.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#\s:]+)[)#]", page.read_text("utf-8")):
            assert (page.parent / link).exists(), (page.name, link)
    for name in ("answers.md", "mistakes.diff", "cases.py", "bank", "instructor.py", "../tests"):
        assert not (out / "course" / name).exists()

    # the grader of the copy: no points, and with the project's bodies all of them
    monkeypatch.setattr(grade, "PUBLIC", out / "course/cases.pt")
    for folder, points in ((out, 0), (submission(tmp_path / "right"), 40)):
        table = tmp_path / "table.csv"
        assert main(["grade", str(folder), "--csv", str(table)]) == 0
        assert sum(points_of(table).values()) == points


def points_of(table):
    """{student: points} of a table of the grader."""
    points = {}
    for row in csv.DictReader(table.open()):
        points[row["student"]] = points.get(row["student"], 0) + float(row["points"] or 0)
    return points


# --- The grader -----------------------------------------------------------------------------------


def test_helpers_files_prints_and_a_design_of_ones_own_cost_nothing(tmp_path):
    folder = submission(
        tmp_path / "anna",
        {
            "kernels.convolve": "print(1)\nfrom mine.bands import of\nreturn of(kernels, value)",
            "attention.lowest_at_padding": "return _low(attention_mask).to(dtype)",
            "attention.Fixed.query_bias": "return BETA(self)",
        },
        attention="\n\ndef _low(mask):\n    return (mask.float() - 1)[:, None, None] * 1e38\n"
        "\n\nBETA = lambda term: term.beta.unsqueeze(1)\n",
    )
    (folder / "mine").mkdir()
    write(
        folder / "mine/bands.py",
        "import kernels\n\ndef of(w, v):\n"
        "    return kernels.bias_matrix(w, v.shape[-2], 'zero') @ v\n",
    )
    names = ("kernels.convolve", "attention.lowest_at_padding", "attention.Fixed.query_bias")
    assert [share for share, _ in graded(folder, *names).values()] == [1, 1, 1]


@pytest.mark.parametrize(
    "body, message",
    [
        ("raise SystemExit", "SystemExit: "),
        ("import os\nos._exit(0)", "it ended Python"),
        ("while True:\n    pass", "or computes for more than 10 seconds"),
        ("return torch.zeros(2**32)", "can't allocate memory"),
        ("raise BaseException('x' * 10**6)", "BaseException: xxx"),
        ("with open('x', 'w') as file:\n    file.write('1')", "File too large"),
        ("# two\n\nreturn self.beta.rows", "no attribute 'rows', line LINE of attention.py"),
        ("return 1", "TypeError: it returns int, not a tensor"),
        ("return self.beta", "its shape is (2, 3), and should be (2, 1, 3)"),
        ("return self.beta[:, None].half()", "its dtype is torch.float16, and should be torch.fl"),
    ],
)
def test_a_reason_is_given_and_other_functions_keep_their_points(tmp_path, body, message):
    if sys.platform != "linux" and ("allocate" in message or "large" in message):
        pytest.skip("limits of memory and files: Linux alone")
    folder = submission(tmp_path / "anna", {"attention.Fixed.query_bias": body})
    found = graded(folder, "attention.Fixed.query_bias", "attention.Dynamic.query_bias")
    lines = (folder / "attention.py").read_text("utf-8").splitlines()
    line = lines.index(" " * 8 + "# two") + 3 if "two" in body else 0
    share, said = found["attention.Fixed.query_bias"]
    assert share == 0 and message.replace("LINE", str(line)) in said
    assert max(map(len, said.splitlines())) < 500
    assert found["attention.Dynamic.query_bias"][0] == 1


WRONG = [  # what a student wrote, and the case that says so
    ("kernels.sum_by_offset", "x[..., 0, 0] = 0\nRIGHT", "inputs_are_not_changed: x: differs"),
    (
        "attention.relative_values",
        "sums = sum_by_offset(p, table.shape[-1], beyond)\n"
        "return torch.stack([sums[..., i, :] @ table.t() for i in range(p.shape[-1])], dim=-2)",
        "no_loop_over_the_positions",
    ),
    ("attention.Dynamic.query_bias", "return q @ self.w", "it_is_divided_by_sqrt_d: differs first"),
    ("kernels.bias_matrix", "RIGHT", ""),
]


@pytest.mark.parametrize("name, body, case", WRONG, ids=[name for name, *_ in WRONG])
def test_one_mistake_leaves_less_than_half_of_the_points(tmp_path, name, body, case):
    body = body.replace("RIGHT", body_text(name))
    share, said = graded(submission(tmp_path / "anna", {name: body}), name)[name]
    assert case in said and (0 < share < 0.5 if case else share == 1)


def test_a_function_that_does_nothing_has_no_points(tmp_path):
    folder = submission(tmp_path / "anna", {"attention.relative_values": "return p"})
    assert graded(folder, "attention.relative_values")["attention.relative_values"][0] == 0


def test_a_mistake_that_spreads_costs_once(tmp_path):
    """`attention` and `relative_values` call functions that are wrong here, in two files."""
    wrong = {
        "kernels.sum_by_offset": "return x[..., :K]",
        "attention.lowest_at_padding": "return torch.zeros(len(attention_mask), 1, 1, 1)",
    }
    names = (*wrong, "attention.attention", "attention.relative_values")
    shares = {n: x for n, (x, _) in graded(submission(tmp_path / "anna", wrong), *names).items()}
    assert shares["attention.attention"] == shares["attention.relative_values"] == 1
    assert max(shares[name] for name in wrong) < 0.5


def test_a_syntax_error_names_its_line_and_costs_its_file_alone(tmp_path):
    folder = submission(tmp_path / "anna", kernels="\n\ndef f(:\n    pass\n")
    found = graded(folder, "kernels.convolve", "kernels.bias_matrix", "attention.attention")
    line = len((ROOT / "kernels.py").read_text("utf-8").splitlines()) + 3
    assert f"SyntaxError: invalid syntax (kernels.py, line {line})" in found["kernels.convolve"][1]
    assert [share for share, _ in found.values()] == [0, 0, 1]


FORGED = """

import os, pickle, sys, torch
torch.Tensor.abs = torch.zeros_like
torch.allclose = torch.equal = lambda *args, **kwargs: True
for fd in range(3, 20):
    for data in (pickle.dumps(print), b"", b"x" * 10**6):
        try:
            os.write(fd, len(data).to_bytes(8, "big") + data)
        except OSError:
            break
"""
STEAL = """
import sys
def found(frame):
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            if isinstance(value, dict) and "expected" in value:
                return value["expected"]["result"]
        frame = frame.f_back
from tests import references
return found(sys._getframe()) or references.relative_scores(bias, N, beyond)
"""


@pytest.mark.parametrize("at_the_end, body", [(FORGED, "return bias"), ("", STEAL)])
def test_forged_and_stolen_answers_get_nothing(tmp_path, at_the_end, body):
    folder = submission(tmp_path / "anna", {"kernels.bias_matrix": body}, kernels=at_the_end)
    assert graded(folder, "kernels.bias_matrix")["kernels.bias_matrix"][0] == 0


def test_odd_submissions_get_nothing_and_cost_nobody_else_points(tmp_path):
    """Links, no zip, none of the files."""
    linked, zero, right = (tmp_path / name for name in ("linked", "zero", "right"))
    linked.mkdir()
    for file in grade.STUDENTS:
        (linked / file).symlink_to(ROOT / file)
    zero.mkdir()
    (zero / "kernels.py").symlink_to("/dev/zero")
    (tmp_path / "notes.zip").write_bytes(b"no zip")
    names = [linked, zero, tmp_path / "notes.zip", submission(right)]
    table = tmp_path / "table.csv"
    assert main(["grade", *map(str, names), "--csv", str(table), "--seed", "1"]) == 0
    assert points_of(table) == {path.stem: 40 * (path == right) for path in names}


def test_a_zip_is_unpacked_with_folders_and_two_files_of_one_name_are_named(tmp_path):
    for name, places in {"anna": ["work/"], "bert": ["a/", "b/"]}.items():
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            for place in places:
                archive.write(ROOT / "kernels.py", f"{place}kernels.py")
            archive.writestr("work/helpers/one.py", "")
            archive.writestr("__MACOSX/work/._kernels.py", "")
            archive.writestr("work/.venv/lib/data.py", "")
    files = grade.read_submission(tmp_path / "anna.zip")
    assert {str(path) for path in files} == {"kernels.py", "helpers/one.py"}
    with pytest.raises(grade.UserError, match="a/kernels.py, b/kernels.py"):
        grade.read_submission(tmp_path / "bert.zip")


def test_students_of_one_name_have_lines_of_their_own(tmp_path):
    for group in ("one", "two"):
        (tmp_path / group).mkdir()
        submission(tmp_path / group / "anna", {f.name: "return" for f in GRADED})
    table = tmp_path / "table.csv"
    folders = [str(tmp_path / group / "anna") for group in ("one", "two")]
    assert main(["grade", *folders, "--csv", str(table)]) == 0
    assert [*points_of(table)] == folders


# --- Mistakes -------------------------------------------------------------------------------------


def test_every_mistake_changes_one_piece_of_a_function_and_names_one_of_its_cases():
    bugs = read_mistakes(BANK / "bugs.diff")
    mistakes = read_mistakes(LIST) + bugs
    assert {mistake.function for mistake in mistakes} == {line.name for line in GRADED}
    cases = {(case.function, case.name) for case in CASES}
    for mistake in mistakes:
        assert body_text(mistake.function).count(mistake.old) == 1, mistake
        assert mistake.old != mistake.new
        assert (mistake.function, mistake.case) in cases, mistake

    # the rubric has the bugs under the names that answers.txt prints
    rubric = (ROOT / "course/answers.md").read_text("utf-8")
    for bug in bugs:
        assert f"| {bug.what} | N = " in rubric


def test_check_runs_a_mistake_and_finds_it(capsys):
    assert main(["check", "Fixed"]) == 0
    assert "3 of 3 mistakes fail the case that says so" in capsys.readouterr().out


# --- Sheets, marks and runs -----------------------------------------------------------------------


def test_sheets_hold_a_task_and_one_bug_and_only_the_instructor_has_the_answers(tmp_path):
    write(tmp_path / "class.txt", "\ufeffanna\n\nbert\n")
    out = tmp_path / "sheets"
    assert main(["sheets", str(tmp_path / "class.txt"), str(out), "--secret", "tulip"]) == 0
    answers = (out / "answers.txt").read_text("utf-8")
    questions = [" ".join(block) for block in read_blocks(BANK / "questions.txt")]
    assert sum(question in answers for question in questions) == 2
    for name in ("anna", "bert"):
        sheet, code = sorted((out / name).iterdir(), key=lambda path: path.suffix, reverse=True)
        own = sheet.read_text("utf-8")
        assert "tulip" not in own and f"q = {draw(f'{name}, tulip')['q']}" in own
        assert "tulip" not in answers

        # one function differs from the right file, by a bug of the bank
        text, right = (path.read_text("utf-8") for path in (code, ROOT / code.name))
        assert 0 < len(set(text.splitlines()) - set(right.splitlines())) < 3
        [bug] = re.findall(rf"## {name}\n\n(\S+, .*?): ", answers)
        assert bug in {f"{bug.function}, {bug.what}" for bug in read_mistakes(BANK / "bugs.diff")}


def test_all_tasks_are_equally_long_and_show_what_they_shall_show():
    for n in range(100):
        drawn = draw(f"student {n}")
        q, k, v, w, beta = (torch.tensor(rows).float() for rows in drawn.values())
        assert q.any(dim=1).all() and len(q.unique(dim=0)) == 3
        rows = exponents(drawn["q"], drawn["k"], drawn["w"], drawn["beta"][0])
        assert len({pair for row in rows for pair in row}) == EXPONENTIALS

        # no weight (the result, with unit vectors as values) is near 1
        weights = attention.composite_attention(q[None], k[None], torch.eye(3)[None], w, beta)
        assert weights.max() <= 0.95


def test_the_answers_of_a_task_are_those_of_the_code_and_wrong_numbers_are_carried_on(capsys):
    one, again, other = draw("anna"), draw("anna"), draw("bert")
    assert one == again != other

    # not before the task was tried
    assert main(["by_hand", "anna"]) == 0
    assert "5. z\n[[" not in capsys.readouterr().out

    def printed(*arguments):
        assert main(["by_hand", "anna", "--answers", *arguments]) == 0
        section = capsys.readouterr().out.partition("5. z\n[[")[2].partition("]]")[0]
        return [float(x) for x in section.replace("[", " ").replace("]", " ").split()]

    q, k, v, w, beta = (torch.tensor(rows).float() for rows in one.values())
    z = attention.composite_attention(q[None], k[None], v[None], w, beta)[0]
    assert printed() == pytest.approx(z.flatten().tolist(), abs=6e-4)

    # a student who forgot beta in step 1
    z = attention.composite_attention(q[None], k[None], v[None], w, 0 * beta)[0]
    wrong = " ".join(str(x) for x in (q @ w / 2**0.5).flatten().tolist())
    assert printed("--wrong", "1", wrong) == pytest.approx(z.flatten().tolist(), abs=6e-4)


def test_marks_of_a_table_that_a_spreadsheet_has_saved(tmp_path, capsys):
    table = "student;what;points;of;reason\n"
    for student, talk in (("anna", "6"), ("b/anna", "1,5")):
        for function in GRADED:
            table += f"{student};{function.name};{function.points};{function.points};\n"
        table += f"{student};by hand;7,5;8;\n{student};talk;{talk};6;\n"
        for what in ("find the bug", "five questions", "experiment", "open end"):
            table += f"{student};{what};;;\n"
    (tmp_path / "marks.csv").write_bytes(b"\xef\xbb\xbf" + table.encode())
    assert main(["marks", str(tmp_path / "marks.csv")]) == 0
    # code counts at most ten times the points of the talk
    assert capsys.readouterr().out.split() == ["anna", "53.5", "b/anna", "24.0"]


def test_runs_of_others_and_other_seeds_are_named(tmp_path, capsys):
    def record(name, seed, loss):
        run = {"run": f"fixed-seed{seed}", "settings": {"seed": seed}, "curve": [[1, loss, 0.5]]}
        write(tmp_path / f"{name}.jsonl", json.dumps(run) + "\n")
        return str(tmp_path / f"{name}.jsonl")

    assert main(["seeds", "anna"]) == 0
    anna, bert = seeds_of("anna"), seeds_of("bert")
    assert capsys.readouterr().out.split() == [str(seed) for seed in anna]
    assert not {*anna} & {*bert}

    assert main(["check_runs", record("anna", anna[0], 1.0), record("bert", bert[0], 2.0)]) == 0
    capsys.readouterr()
    assert main(["check_runs", record("anna", anna[0], 1.0), record("bert", anna[0], 1.0)]) == 1
    printed = capsys.readouterr().out
    assert f"bert: fixed-seed{anna[0]} has the seed {anna[0]}, which is not theirs" in printed
    assert f"bert: fixed-seed{anna[0]} has the losses of a run of anna" in printed
