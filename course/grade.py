"""Grading: tests/science is the grader.

Only the bodies of the graded functions are read from a submission. Each function is graded in a
fresh copy of the project, in which its body is the student's and everything else is ours. There the
tests of this function run; its points are multiplied by the share of its tests that pass, and
halved if it loops over the positions in Python. A wrong function costs only its own points.

To save time, all bodies of a submission are first put into one copy, and all tests run once. Only
the functions whose tests have failures there are graded alone.

The student's code is executed as it is: run this in a container (course/instructor.md).
"""

import ast
import csv
import json
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from course.assignment import GRADED, NO_LOOP, pytest_command
from course.blank import ROOT, body_of, copy_project, file_of, find
from support.commands import UserError

TIMEOUT = 120  # seconds that pytest may take; all tests of a complete submission take about 10


class Grade(NamedTuple):
    """What a student gets for one function."""

    points: float
    output: str  # for the student: which tests fail, and why


def grade_command(args):
    """`python -m course grade`. Returns the exit code."""
    for folder in args.submissions:
        if not Path(folder).is_dir():
            raise UserError(f"{folder} is not a folder")
    if args.gradescope is not None and len(args.submissions) > 1:
        raise UserError("--gradescope is for one submission; --csv takes several")

    # {submission: its grades}
    all_grades = {}
    for folder in args.submissions:
        grades = grade(Path(folder))
        all_grades[folder] = grades
        print(f"{folder}\n{details(grades)}\n", flush=True)

    # a table of several submissions, and the files; the last grades are those of the only one
    if len(all_grades) > 1:
        for folder, of_one in all_grades.items():
            print(f"{total(of_one):>7.2f} of 100   {folder}")
    if args.csv is not None:
        write_csv(Path(args.csv), all_grades)
    if args.gradescope is not None:
        write_gradescope(Path(args.gradescope), grades)
    return 0


def tests_command(args):
    """`python -m course test`: the tests of one function, in this folder. pytest's exit code."""
    found = [line for line in GRADED if line.name.endswith("." + args.function)]
    if not found:
        raise UserError(f"{args.function} is not a function of course/handout.md")
    command = [*pytest_command(found), "--tb=short"]
    return subprocess.run(command, cwd=ROOT).returncode


# --- One submission -------------------------------------------------------------------------------


def grade(folder):
    """Grade a submission. Returns {name of a function: its Grade}, in the order of the table."""
    grades = {}
    bodies = {}
    for function in GRADED:
        try:
            bodies[function.name] = students_body(folder, function.name)
        except UserError as error:
            grades[function.name] = Grade(0.0, str(error))

    # all functions at once
    written = [function for function in GRADED if function.name in bodies]
    results = {}
    if written:
        results = run_tests(bodies, written)
    for function in written:
        own = results_of(function, results)

        # A failure may be due to another function of the student: grade this one alone.
        if not own or any(own.values()):
            alone = run_tests({function.name: bodies[function.name]}, [function])
            own = results_of(function, alone)
        grades[function.name] = grade_of(function, own)
    return {function.name: grades[function.name] for function in GRADED}


def students_body(folder, name):
    """The body of a function in a submission, as text. UserError if there is none."""
    file = file_of(name)
    try:
        tree = ast.parse((folder / file).read_bytes())
    except FileNotFoundError:
        raise UserError(f"there is no {file}") from None
    except SyntaxError as error:
        raise UserError(f"{file} is not valid Python: {error}") from None

    node = find(tree, name)
    if node is None:
        raise UserError(f"{file} does not have this function")
    body = "\n".join(ast.unparse(statement) for statement in body_of(node))
    if not body or body.startswith("raise NotImplementedError"):
        raise UserError("still blank")
    return body


def run_tests(bodies, functions):
    """Run the tests of these functions in a copy of the project with these bodies.

    Returns {(file, name of a test): the first line of its error, "" if it passed}. It is empty if
    Python crashed or the time was over.
    """
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "project"
        report = Path(temporary) / "report.xml"
        copy_project(copy, bodies)

        # The tests are so small that several threads would only wait for each other.
        command = [*pytest_command(functions), "-p", "no:cacheprovider", f"--junitxml={report}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                cwd=copy,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=TIMEOUT,
            )
        if not report.exists():
            return {}
        return read_report(report)


def read_report(path):
    """The results in a file that pytest wrote with --junitxml, as `run_tests` returns them."""
    results = {}
    for test in ElementTree.parse(path).iter("testcase"):
        file = test.get("classname").split(".")[-1] + ".py"
        errors = [child.get("message") for child in test if child.tag in ("failure", "error")]
        message = ""
        if errors:
            message = errors[0].partition("\n")[0] or "it failed"
        results[file, test.get("name")] = message
    return results


def results_of(function, results):
    """{name of a test: its error} of one function."""
    own = {}
    for (file, test), message in results.items():
        if file in function.files and any(word in test for word in function.words):
            own[test] = message
    return own


def grade_of(function, own):
    """The Grade of a function, from {name of a test: its error}."""
    if not own:
        return Grade(0.0, f"no test ended: Python crashed, or {TIMEOUT} seconds were not enough")
    failed = [f"{test}: {message}" for test, message in own.items() if message]

    # the share of the tests of its numbers
    messages = [message for test, message in own.items() if NO_LOOP not in test]
    passed = messages.count("")
    points = function.points * passed / len(messages)
    summary = f"{passed} of {len(messages)} tests pass"

    # the condition
    if any(NO_LOOP in test and message for test, message in own.items()):
        points /= 2
        summary += "; halved: it must not loop over the positions"
    return Grade(points, "\n".join([summary, *failed]))


# --- Tables ---------------------------------------------------------------------------------------


def total(grades):
    return sum(grade.points for grade in grades.values())


def details(grades):
    """All functions of a submission, with points and reasons."""
    lines = []
    for function in GRADED:
        grade = grades[function.name]
        first, *rest = grade.output.splitlines()
        points = f"{grade.points:>5.2f} of {function.points}"
        lines.append(f"part {function.part}  {function.name:<34}{points}   {first}")
        lines += [f"            {line}" for line in rest]
    lines.append(f"total  {total(grades):.2f} of 100")
    return "\n".join(lines)


def write_csv(path, all_grades):
    """A line for each submission, a column for each function."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["submission", *(function.name for function in GRADED), "total"])
        for folder, grades in all_grades.items():
            points = [round(grade.points, 2) for grade in grades.values()]
            writer.writerow([folder, *points, round(total(grades), 2)])


def write_gradescope(path, grades):
    """results.json of Gradescope: one test for each function."""
    tests = []
    for function in GRADED:
        grade = grades[function.name]
        tests.append(
            {
                "name": f"part {function.part}: {function.name}",
                "score": round(grade.points, 2),
                "max_score": function.points,
                "output": grade.output,
            }
        )
    path.write_text(json.dumps({"tests": tests}, indent=2) + "\n", encoding="utf-8")
