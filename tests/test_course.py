"""course/: the students' copy, the grader, sheets, marks and runs."""

import csv
import json
import re
import sys
import zipfile

import pytest
import torch

import attention
from conftest import ROOT, write
from course import grade, instructor
from course.__main__ import main
from course.assignment import COLUMNS, GRADED, YOURS
from course.cases import make_cases
from course.mistakes import LIST, read_blocks, read_mistakes
from course.personal import EXPONENTIALS, draw, seeds_of
from course.source import change_body, file_of
from kernels import bias_matrix

BANK = ROOT / "course/bank"
CASES = make_cases(seed=1)


def cases_of(*functions):
    return [case for case in CASES if case.function in functions]


def body_of(name):
    """The body of a function of the project."""
    bodies = []
    grade.changed_files(name, lambda body: bodies.append(body) or "pass")
    return bodies[0]


def files_with(bodies):
    """The right files with other bodies."""
    files = grade.right_files()
    for name, body in bodies.items():
        text = files[file_of(name)].decode()
        files[file_of(name)] = change_body(text, name, lambda _, body=body: body).encode()
    return files


# --- The students' copy ---------------------------------------------------------------------------


def test_a_copy_has_blanks_but_no_equation_and_its_grader_gives_own_designs_all_points(
    tmp_path, monkeypatch
):
    out = tmp_path / "out"
    assert main(["blank", str(out)]) == 0
    texts = [path.read_text("utf-8") for path in (out / "README.md", *out.rglob("*.py"))]
    for name in (function.name for function in GRADED):
        for line in body_of(name).splitlines():
            code = line.partition("  #")[0].strip()
            if len(code) > 40 and not code.startswith("#"):
                assert not any(code in text for text in texts), (name, code)
    for page in out.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#\s:]+)[)#]", page.read_text("utf-8")):
            assert (page.parent / link).exists(), (page.name, link)
    for name in ("answers.md", "mistakes.diff", "cases.py", "bank", "instructor.py", "../tests"):
        assert not (out / "course" / name).exists()

    # the grader of the copy: no points
    monkeypatch.setattr(grade, "PUBLIC", out / "course/cases.pt")
    table = tmp_path / "table.csv"
    (tmp_path / "own").mkdir()
    own = own_design(tmp_path / "own")
    assert main(["grade", str(out), str(own), "--csv", str(table)]) == 0
    assert points_of(table) == {str(out): 0, str(own): 40}


def own_design(folder):
    """A right submission, with prints, helpers, a file and a design of one's own."""
    files = files_with(
        {
            "kernels.convolve": "print(1)\nfrom mine.bands import of\nreturn of(kernels, value)",
            "attention.lowest_at_padding": "return _low(attention_mask.to(dtype))",
            "attention.Fixed.query_bias": "return BETA(self)",
        }
    )
    files["attention.py"] += b"""
def _low(mask):
    return (mask - 1)[:, None, None] * torch.finfo(mask.dtype).max / 2
BETA = lambda term: term.beta.unsqueeze(1)
"""
    files["mine/bands.py"] = b"""
import kernels
def of(w, v):
    return kernels.bias_matrix(w, v.shape[-2], 'zero') @ v
"""
    return submission(folder, files)


def submission(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text)
    return folder


def points_of(table):
    """{student: points} of a table of the grader."""
    points = {}
    for row in csv.DictReader(table.open()):
        points[row["student"]] = sum(float(row[function.name]) for function in GRADED)
    return points


# --- The grader -----------------------------------------------------------------------------------


REASONS = {  # what a student wrote, and what is said
    "attention.composite_attention": ("raise SystemExit", "SystemExit: "),
    "kernels.bias_matrix": ("import os\nos._exit(0)", "it ended Python"),
    "kernels.sum_by_offset": ("while True:\n    pass", "or computes for more than 6 seconds"),
    "kernels.convolve": ("return torch.zeros(2**32)", "can't allocate memory"),
    "attention.depthwise_convolution": ("raise BaseException('x' * 10**6)", "BaseException: xxx"),
    "attention.attention": ("return v.sum()", "its shape is (), and should be (2, 2, 7, 4)"),
    "attention.Fixed.query_bias": ("open('x', 'w').write('1' * 10**6)", "File too large"),
    "attention.Dynamic.query_bias": ("# 2\n\nreturn q.rows", "no attribute 'rows', line LINE of"),
    "attention.relative_values": ("return 1", "TypeError: it returns int, not a tensor"),
    "data.mask_tokens": ("return input_ids, input_ids", "(sequence, i) = (0, 0): it is"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory and files: Linux alone")
def test_a_reason_is_given_and_other_functions_keep_their_points(monkeypatch):
    files = files_with({name: body for name, (body, _) in REASONS.items()})
    lines = files["attention.py"].decode().splitlines()
    first = {case.function: case for case in reversed(CASES)}
    monkeypatch.setattr(grade, "CASE_SECONDS", 6)
    said = grade.run_cases(files, list(first.values()))
    assert {name for name, messages in said.items() if any(messages.values())} == {*REASONS}
    for name, (_, reason) in REASONS.items():
        [message] = said[name].values()
        assert reason.replace("LINE", str(lines.index(" " * 8 + "# 2") + 3)) in message
        assert len(message) <= grade.LONGEST


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
WRONG = {  # what a student wrote, and a case that says so
    "attention.Dynamic.query_bias": (
        "q /= math.sqrt(q.shape[-1])\nreturn q @ self.w",
        "inputs_are_not_changed: q after the call: differs first at",
    ),
    "attention.relative_values": (
        "sums = sum_by_offset(p, table.shape[-1], beyond)\n"
        "return torch.stack([sums[..., i, :] @ table.t() for i in range(p.shape[-1])], dim=-2)",
        "no_loop_over_the_positions: lines of Python that more tokens add: it is",
    ),
    "kernels.convolve": ("return value", "0 of 9 cases pass"),
    "kernels.bias_matrix": (STEAL, "No module named 'tests'"),
}


def test_one_mistake_leaves_less_than_half_of_the_points_and_doing_nothing_none():
    files = files_with({name: body for name, (body, _) in WRONG.items()})
    said = grade.run_cases(files, cases_of(*WRONG))
    for function in GRADED:
        if function.name in WRONG:
            points, reason = grade.points_of(function, said[function.name])
            assert WRONG[function.name][1] in reason
            assert points < function.points / 2
            assert (points == 0) == function.name.startswith("kernels.")


def graded(folder, files, *functions):
    """{function: (share of its points, reason)} of what the grader gives to files."""
    grades = grade.grade(submission(folder, files), cases_of(*functions))
    return {f.name: (points / f.points, reason) for f, points, reason in grades}


def test_a_mistake_that_spreads_and_a_syntax_error_cost_only_where_they_are(tmp_path):
    """`attention` calls a function that is wrong, and imports a file that is no Python."""
    files = files_with({"attention.lowest_at_padding": "return 0 * attention_mask"})
    line = len(files["kernels.py"].splitlines()) + 1
    files["kernels.py"] += b"def f(:\n"
    found = graded(tmp_path, files, "attention.attention", "kernels.convolve")
    assert found["attention.attention"] == (1, "all 15 cases pass")
    syntax_error = f"SyntaxError: invalid syntax (kernels.py, line {line})"
    assert found["kernels.convolve"] == (0, syntax_error)


FORGED = b"""
import os, pickle, torch
torch.Tensor.abs = torch.zeros_like
torch.allclose = torch.equal = lambda *args, **kwargs: True
for fd in range(3, 20):
    for data in (pickle.dumps(print, 2), b"", b"x" * 10**6):
        try:
            os.write(fd, len(data).to_bytes(8, "big") + data)
        except OSError:
            break
"""


def test_forged_answers_and_a_patched_torch_get_nothing(tmp_path):
    files = files_with({"kernels.bias_matrix": "return bias"})
    files["kernels.py"] += FORGED
    assert graded(tmp_path, files, "kernels.bias_matrix")["kernels.bias_matrix"][0] == 0


def test_odd_submissions_get_nothing_and_do_not_end_the_batch(tmp_path):
    """Links, no zip."""
    linked, zero, notes = (tmp_path / name for name in ("linked", "zero", "notes.zip"))
    linked.mkdir()
    for file in grade.STUDENTS:
        (linked / file).symlink_to(ROOT / file)
    zero.mkdir()
    (zero / "kernels.py").symlink_to("/dev/zero")
    notes.write_bytes(b"no zip")
    table = tmp_path / "table.csv"
    names = [str(linked), str(zero), str(notes)]
    assert main(["grade", *names, "--csv", str(table), "--seed", "1"]) == 0
    assert points_of(table) == dict.fromkeys(names, 0)


def test_a_zip_is_unpacked_with_folders_and_two_files_of_one_name_are_named(tmp_path):
    for name, places in {"anna": ["work/"], "bert": ["a/", "b/"]}.items():
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            for place in places:
                archive.write(ROOT / "kernels.py", f"{place}kernels.py")
            archive.writestr("work/helpers/one.py", "")
            archive.writestr("__MACOSX/work/._kernels.py", "")
            archive.writestr("work/.venv/lib/data.py", "")
    files = grade.read_submission(tmp_path / "anna.zip")
    assert {*files} == {"kernels.py", "helpers/one.py"}
    with pytest.raises(grade.UserError, match="a/kernels.py, b/kernels.py"):
        grade.read_submission(tmp_path / "bert.zip")


# --- Mistakes -------------------------------------------------------------------------------------


def test_every_mistake_changes_one_piece_of_a_function_and_names_one_of_its_cases():
    bugs = read_mistakes(BANK / "bugs.diff")
    mistakes = read_mistakes(LIST) + bugs
    assert {mistake.function for mistake in mistakes} == {line.name for line in GRADED}
    cases = {(case.function, case.name) for case in CASES}
    for mistake in mistakes:
        assert body_of(mistake.function).count(mistake.old) == 1, mistake
        assert mistake.old != mistake.new
        assert (mistake.function, mistake.case) in cases, mistake

    # the rubric has the bugs under the names that answers.txt prints
    rubric = (ROOT / "course/answers.md").read_text("utf-8")
    for bug in bugs:
        assert f"| {bug.what} | N = " in rubric


def test_check_says_which_mistakes_are_noticed(tmp_path, monkeypatch, capsys):
    what = "@@ attention.Fixed.query_bias\n\n{}\n! column_r_of_beta_is_column_r_of_the_bias\n"
    write(tmp_path / "list.diff", what.format("mirrored") + "- beta\n+ beta.flip(-1)\n")
    write(tmp_path / "bugs.diff", what.format("the same") + "- beta\n+ beta.clone()\n")
    monkeypatch.setattr(instructor, "LIST", tmp_path / "list.diff")
    assert main(["check", "--bank", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "column_r_of_beta_is_column_r_of_the_bias: NOT NOTICED" in printed
    assert "1 of 2 mistakes fail the case that says so" in printed


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
        assert "tulip" not in own and f"q = {draw(f'{name}, tulip')['q'].int().tolist()}" in own
        assert "tulip" not in answers

        # one function differs from the right file, by a bug of the bank
        text, right = (path.read_text("utf-8") for path in (code, ROOT / code.name))
        assert 0 < len(set(text.splitlines()) - set(right.splitlines())) < 3
        [bug] = re.findall(rf"## {name}\n\n(\S+, .*?): ", answers)
        assert bug in {f"{bug.function}, {bug.what}" for bug in read_mistakes(BANK / "bugs.diff")}


def test_all_tasks_are_equally_long_and_show_what_they_shall_show():
    for n in range(5):
        q, k, v, w, beta = draw(f"student {n}").values()
        assert q.any(dim=1).all() and len(q.unique(dim=0)) == 3
        assert v.std(dim=0).all() and beta.std()
        bias = q @ w / 2**0.5 + beta
        scores = q @ k.t() / 2**0.5 + bias_matrix(bias, 3)
        exponentials = torch.cat([bias, scores]).flatten().tolist()
        assert len({round(x, 5) for x in exponentials}) == EXPONENTIALS
        assert scores.softmax(dim=-1).max() <= 0.95


def test_the_answers_of_a_task_are_those_of_the_code_and_wrong_numbers_are_carried_on(capsys):
    q, k, v, w, beta = draw("anna").values()
    assert main(["by_hand", "anna"]) == 0
    printed = capsys.readouterr().out
    assert f"q = {q.int().tolist()}" in printed and f"beta = {beta.int().tolist()}" in printed

    def z_of(*arguments):
        assert main(["answers", "anna", *arguments]) == 0
        section = capsys.readouterr().out.partition("5. z\n[[")[2].partition("]]")[0]
        return [float(x) for x in section.replace("[", " ").replace("]", " ").split()]

    z = attention.composite_attention(q[None], k[None], v[None], w, beta)[0]
    assert z_of() == pytest.approx(z.flatten().tolist(), abs=6e-4)

    # a student who forgot beta in step 1
    z = attention.composite_attention(q[None], k[None], v[None], w, 0 * beta)[0]
    wrong = " ".join(str(x) for x in (q @ w / 2**0.5).flatten().tolist())
    assert z_of("--wrong", "1", wrong) == pytest.approx(z.flatten().tolist(), abs=6e-4)


def test_marks_of_a_table_that_a_spreadsheet_has_saved(tmp_path, capsys):
    table = ";".join(["student", *COLUMNS]) + "\n"
    code = [str(function.points) for function in GRADED]
    for student, talk in (("anna", "6"), ("b/anna", "1,5"), ("bert", "")):
        row = {"by hand": "7,5", "talk": talk, "experiment": "20,5"}
        table += ";".join([student, *code, *(row.get(what, "") for what in YOURS)]) + "\n"
    (tmp_path / "marks.csv").write_bytes(b"\xef\xbb\xbf" + table.encode())
    assert main(["marks", str(tmp_path / "marks.csv")]) == 0
    # what was done at home, here 40 + 20.5, counts at most 20 times the points of the talk
    marks = ["anna", "74.0", "b/anna", "39.0", "bert", "7.5"]
    assert capsys.readouterr().out.split() == marks


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
