"""Grading: tests/science/test_assignment.py is the grader.

Only the bodies of the graded functions are read from a submission. They are put into a fresh copy
of the project, in which everything else is ours. There the tests of a function run; its points are
multiplied by the share of its tests that pass; they are at most half if the handout's example does
not come out, and halved if it loops over the positions in Python. All tests are expected that
pytest collects, which is before anything that the student wrote has run: so a test that was
skipped, or never ended, has not passed.

To save time, all bodies of a submission are first put into one copy. Functions whose tests do not
all pass there are graded again, each alone: so a wrong function costs only its own points.

The student's code is executed as it is: run this in a container (course/instructor.md).
"""

import ast
import builtins
import csv
import dis
import json
import os
import re
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from course.assignment import (
    EXAMPLE,
    FUNCTIONS,
    GRADED,
    NO_LOOP,
    Function,
    class_of,
    pytest_command,
)
from course.blank import NAMES, ROOT, body_of, copy_project, file_of, find, names_outside
from support.commands import UserError

# Seconds of computing for the tests of a function; all tests of a right submission take about 5.
# On the clock, a busy machine or a function that sleeps may take ten times as long.
TIMEOUT = 30

# How a body would reach for the tests, for the complete project, or for the list of what has
# passed: imports of anything else than numbers, names in a text, files, the end of the program, and
# attributes such as __globals__. course/handout.md lists them.
NUMBERS = r"(?:torch|math|numpy|itertools|functools)\b[\w. ]*"
REACHING = re.compile(
    rf"^\s*from (?!{NUMBERS}).*|^\s*import (?!{NUMBERS}(?:, {NUMBERS})*$).*"
    r"|\b(?:exec|eval|globals|locals|vars|getattr|setattr|sys|os|importlib|builtins)\b"
    r"|\b(?:open|exit|quit|SystemExit|KeyboardInterrupt)\b"
    r"|\.(?:modules|hub|load|loadtxt|genfromtxt|fromfile|from_file|memmap|open_memmap)\b"
    r"|\.(?:save|savetxt|savez|savez_compressed|tofile|dump|dumps)\b|__\w+",
    flags=re.M,
)

# What the other functions are made of: functions, classes and tables of these files.
OURS = {"TERMS", "VARIANTS"}
for file in ("attention.py", "kernels.py"):
    OURS |= set(re.findall(r"^(?:def|class) (\w+)", (ROOT / file).read_text("utf-8"), flags=re.M))


class Body(NamedTuple):
    """What a student wrote for a function."""

    text: str
    lines: dict  # {line of the text, from 1: line of the student's file}


class Grade(NamedTuple):
    """What a student gets for one function."""

    function: Function
    points: float
    output: str  # for the student: which tests fail, and why


def grade_command(args):
    """`python -m course grade`. Returns the exit code."""
    folders = [path for path in args.submissions if Path(path).is_dir()]
    for path in args.submissions:
        if path not in folders:
            print(f"{path} is not a folder, and is left out")
    if not folders:
        raise UserError("there is nothing to grade: a submission is a folder")
    if args.gradescope is not None and len(folders) > 1:
        raise UserError("--gradescope is for one submission; --csv takes several")

    # tables are written as we go: a batch that is stopped has those that are done
    with open(args.csv or os.devnull, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["student", "function", "points", "of", "reason"])

        # Each thread waits for processes of its own. map keeps the order.
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            all_grades = threads.map(grade_any, folders)
            for folder, grades in zip(folders, all_grades, strict=True):
                print(f"{folder}\n{details(grades)}\n", flush=True)
                table.writerows(rows_of(Path(folder).resolve().name, grades))
                file.flush()
    if args.gradescope is not None:
        write_gradescope(Path(args.gradescope), grades)
    return 0


def tests_command(args):
    """`python -m course test`: the tests of one function, in this folder. pytest's exit code."""
    found = [line for line in FUNCTIONS if line.name.endswith("." + args.function)]
    if not found:
        raise UserError(f"{args.function} is not a function of course/handout.md")
    return subprocess.run(pytest_command(found, "--tb=short"), cwd=ROOT).returncode


# --- One submission -------------------------------------------------------------------------------


def grade_any(folder):
    """`grade`, for any submission: an odd one gets no points, and the others are graded."""
    try:
        return grade(Path(folder))
    except Exception as error:
        return [Grade(function, 0.0, f"the grader failed: {error!r}") for function in GRADED]


def grade(folder):
    """Grade a submission. Returns a Grade for each function of the table."""
    bodies = {}
    reasons = {}
    for function in GRADED:
        try:
            bodies[function] = students_body(folder, function)
        except UserError as error:
            reasons[function] = str(error)

    # all functions at once
    texts = {function.name: body.text for function, body in bodies.items()}
    outcomes = run_tests(texts, bodies) if bodies else {}
    grades = []
    for function in GRADED:
        if function in bodies:
            grades.append(grade_function(function, bodies[function], outcomes))
        else:
            grades.append(Grade(function, 0.0, reasons[function]))
    return grades


def students_body(folder, function):
    """The Body of a function in a submission. UserError if there is none that can be graded."""
    name = function.name
    file = file_of(name)
    ours = find(ast.parse((ROOT / file).read_bytes()), name)
    try:
        node = find(ast.parse((folder / file).read_bytes()), name)
        text = "\n".join(ast.unparse(statement) for statement in body_of(node or ours))
        used = names_read(compile(ast.Module([node or ours], []), file, "exec"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{file} cannot be read as Python: {error!r}") from None

    if node is None:
        raise UserError(f"{file} does not have this function")
    if not text or text.startswith("raise NotImplementedError"):
        raise UserError("still blank")
    if names_of(node) != names_of(ours):
        raise UserError(f"its arguments are {names_of(node)}, and must be {names_of(ours)}")

    # the same tree twice: what was in which line of the file, and is now in which of the text
    pairs = zip(walk(body_of(node)), walk(ast.parse(text).body), strict=False)
    lines = {new.lineno: old.lineno for old, new in pairs if hasattr(new, "lineno")}

    reach = REACHING.search(text)
    if reach:
        line = lines.get(text.count("\n", 0, reach.end()) + 1)
        raise UserError(f"line {line}: a body must not use {reach[0].strip()}")

    # The other functions are right where this one is graded: it must not be made of them.
    allowed = function.may_call.split()
    others = (used & OURS).difference(allowed)
    if others:
        allowed = ", ".join(allowed) or "nothing"
        raise UserError(f"it uses {min(others)}, and of the project it may use {allowed}")

    # what the student has defined or imported outside of the bodies is not read
    unknown = used.difference(names_given(file), dir(builtins))
    if unknown:
        raise UserError(
            f"it uses {min(unknown)}, which is not in the project's {file}: "
            "define or import it inside the body"
        )
    return Body(text, lines)


def names_given(file):
    """The names outside of the functions of a file, as students got it."""
    kept = ROOT / NAMES
    if kept.exists():
        return json.loads(kept.read_text("utf-8"))[file]
    return names_outside(file)


def names_of(node):
    """The names of the arguments of a function."""
    return [x.arg for x in ast.walk(node.args) if isinstance(x, ast.arg)]


def names_read(code):
    """The names outside of a function that it reads, also in functions inside of it."""
    read = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return read.union(*map(names_read, inner))


def walk(statements):
    return (node for statement in statements for node in ast.walk(statement))


def grade_function(function, body, outcomes):
    """The Grade of a function, from the outcomes of all functions at once."""
    prefix = class_of(function) + "::"
    own = {test: outcome for test, outcome in outcomes.items() if test.startswith(prefix)}

    # A failure may be due to another function of the student: grade this one alone. Without any
    # outcome, the file could not even be imported.
    if set(own.values()) != {PASSED}:
        own = run_tests({function.name: body.text}, [function]) or {"::import": NOT_ENDED}
    messages = {test: message_of(outcome, function, body) for test, outcome in own.items()}

    # the share of the tests of its numbers
    passed = [not message for test, message in messages.items() if NO_LOOP not in test]
    points = function.points * sum(passed) / len(passed)
    lines = [f"{sum(passed)} of {len(passed)} tests pass"]
    fails_example = any(message and EXAMPLE in test for test, message in messages.items())
    if fails_example and points > function.points / 2:
        points = function.points / 2
        lines[0] += "; half, because the handout's example does not come out"

    # the condition, and what went wrong; of tests with equal messages, the first
    for test, message in messages.items():
        if message and NO_LOOP in test:
            points /= 2
            lines[0] += f"; halved: {message}"
        elif not lines[-1].endswith(message):
            lines.append(f"{test.partition('::')[2]}: {message}")
    return Grade(function, points, "\n".join(lines))


def message_of(outcome, function, body):
    """What a student reads of a test; "" if it passed."""
    message, line = outcome
    if message is None:
        return f"the tests did not end: Python stopped, or {TIMEOUT} seconds were not enough"
    if line is None:
        return message

    # from the line after `def`, in our file, to that of the student
    file = file_of(function.name)
    ours = find(ast.parse((ROOT / file).read_bytes()), function.name)
    first = body_of(ours)[0].lineno - ours.lineno
    return f"{message}, line {body.lines.get(line - first + 1)} of your {file}"


# --- Running tests --------------------------------------------------------------------------------

PASSED = ("", None)
NOT_ENDED = (None, None)


def environment(outcomes):
    """The environment of the tests: ours, without options or plugins of pytest.

    The tests are so small that several threads would only wait for each other.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "COURSE_OUTCOMES": str(outcomes),
        "COURSE_SECONDS": str(TIMEOUT),
    }


def run_tests(bodies, functions):
    """Run the tests of these functions in a copy of the project with these bodies.

    Returns {name of a test: PASSED, or (message, the line of a crash or None)}. If they do not come
    to their end, it is NOT_ENDED for all. The list of what has passed is not beside the copy, where
    the student's code could guess its place.
    """
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryDirectory() as elsewhere:
        copy = Path(temporary)
        outcomes = Path(elsewhere) / "outcomes.jsonl"
        outcomes.touch()
        copy_project(copy, bodies)

        # In a session of its own: what the student's code has started is ended with it.
        process = subprocess.Popen(
            pytest_command(functions, "-p", "no:cacheprovider", "-p", "course.outcomes"),
            cwd=copy,
            env=environment(outcomes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10 * TIMEOUT)
        finally:
            end(process)
        found = map(json.loads, outcomes.read_text("utf-8").splitlines())
        outcome_of = {test: (message, line) for test, message, line in found}
        if process.returncode not in (0, 1):  # pytest: all passed, or some failed
            return dict.fromkeys(outcome_of, NOT_ENDED)
        return outcome_of


def end(process):
    """End a process and what it has started; on Windows the process alone."""
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


# --- Tables ---------------------------------------------------------------------------------------

# Lines of the table for points that the instructor gives.
YOURS = {"by hand": 8, "find the bug": 6, "five questions": 10, "talk": 6, "experiment": 30}


def details(grades):
    """All functions of a submission, with points and reasons."""
    lines = []
    for function, points, output in grades:
        output = output.replace("\n", "\n            ")
        name = f"part {function.part}  {function.name:<34}"
        lines.append(f"{name}{points:>5.2f} of {function.points}   {output}")
    total = sum(grade.points for grade in grades)
    lines.append(f"code  {round(total, 2)} of 40")
    return "\n".join(lines)


def rows_of(student, grades):
    """A line for each function, and those to be filled in."""
    rows = [
        [student, function.name, round(points, 2), function.points, output]
        for function, points, output in grades
    ]
    for what, of in YOURS.items():
        rows.append([student, what, "", of, ""])
    return rows


def write_gradescope(path, grades):
    """results.json of Gradescope: one test for each function."""
    tests = [
        {
            "name": f"part {function.part}: {function.name}",
            "score": round(points, 2),
            "max_score": function.points,
            "output": output,
        }
        for function, points, output in grades
    ]
    path.write_text(json.dumps({"tests": tests}, indent=2) + "\n", encoding="utf-8")
