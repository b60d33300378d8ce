"""Grading: cases in, answers out.

The grader has the inputs and the answers of all cases (course/cases.py) before anything of a
student runs. A process of its own (course/worker.py) gets the student's files and the inputs, and
gives tensors back. Here they are compared. So a student may write whatever they like: what is
printed, patched or raised in that process does not reach this one.

The rule: all points of a function if all of its cases pass; otherwise half of them, times the share
of its cases that pass.

A mistake costs once. A function that fails beside others is tried again with the project's other
functions in place of the student's, and the better of the two results counts.
"""

import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import NamedTuple
from zipfile import ZipFile

import torch

from course.assignment import COLUMNS, GRADED
from course.source import ROOT, blank_body, change_body, file_of
from support.commands import UserError

PUBLIC = ROOT / "course/cases.pt"  # of a students' copy: the cases of seed 0

STUDENTS = ("attention.py", "kernels.py", "data.py", "pretrain.py")

SECONDS = 120  # for all functions, on the clock
CASE_SECONDS = 10  # for a case, of computing
FILE_SIZE, OUTPUT_SIZE = 2**20, 2**26  # bytes
LEFT_OUT = (".", "__MACOSX", "site-packages")
LONGEST = 400  # characters of a message

# cases that a function passes which does nothing
NOT_CHANGED, NO_LOOP = "inputs_are_not_changed", "no_loop_over_the_positions"


class Case(NamedTuple):
    """One thing that a function must do."""

    function: str  # "kernels.bias_matrix"
    name: str  # what it shows
    inputs: dict  # tensors and plain values, for the worker
    expected: dict  # {output: tensor}: only these are compared
    axes: str  # what the axes of the result are called


def load_cases(seed):
    if PUBLIC.exists():
        return [Case(*case) for case in torch.load(PUBLIC, weights_only=True)]
    from course.cases import make_cases

    return make_cases(seed)


# --- Commands -------------------------------------------------------------------------------------


def test_command(args):
    """`python -m course test`: the cases of one function, in this folder."""
    cases = [case for case in load_cases(0) if case.function.endswith("." + args.function)]
    if not cases:
        raise UserError(f"{args.function} is not a function of course/handout.md")
    # Fixed and Dynamic have a query_bias each
    failed = 0
    for messages in run_cases(read_submission(ROOT), cases).values():
        for name, message in messages.items():
            print(f"{name}: {message or 'passes'}")
            failed += bool(message)
    return failed


def grade_command(args):
    """`python -m course grade`. Returns the exit code."""
    places = [Path(path) for path in args.submissions]
    for path in places:
        if not path.is_dir() and path.suffix != ".zip":
            raise UserError(f"there is nothing to grade in {path}: it is no folder and no zip")
    cases = load_cases(args.seed)

    # The table is written as we go: a batch that is stopped has those that are done.
    with (
        open(args.csv or os.devnull, "w", encoding="utf-8", newline="") as file,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        table = csv.writer(file)
        table.writerow(["student", *COLUMNS])
        results = pool.map(lambda path: grade(path, cases, args.user), places)
        for path, grades in zip(places, results, strict=True):
            print(path)
            for function, points, reason in grades:
                text = reason.replace("\n", "\n    ")
                print(f"{function.name:<34}{points:>5.2f} of {function.points}   {text}")
            print(f"code  {sum(points for _, points, _ in grades):.2f} of 40\n", flush=True)
            table.writerow([path, *(round(points, 2) for _, points, _ in grades)])
            file.flush()
    return 0


# --- Points ---------------------------------------------------------------------------------------


def grade(submission, cases, user=None):
    """[(function, points, reason)]. What goes wrong costs this student's points alone."""
    try:
        said = messages_of(read_submission(submission), cases, user)
    except Exception as error:
        why = str(error) if isinstance(error, UserError) else f"the grader failed: {error!r}"
        said = {function.name: {"": why} for function in GRADED}
    return [(function, *points_of(function, said.get(function.name, {}))) for function in GRADED]


def messages_of(files, cases, user):
    """{function: {case: what differs, or ""}}."""
    said = run_cases(files, cases, user)

    # once more, with the project's other functions; a students' copy does not have them
    failed = [name for name, messages in said.items() if any(messages.values())]
    for name in failed if len(failed) > 1 and not PUBLIC.exists() else []:
        is_blank = f"NotImplementedError: {name}" in str(said[name])
        if not is_blank and file_of(name) in files:
            own = [case for case in cases if case.function == name]
            again = run_cases(alone(files, name), own, user)
            said[name] = min(
                said[name], again[name], key=lambda them: sum(map(bool, them.values()))
            )
    return said


def points_of(function, messages):
    """The points of a function, and the reason."""
    failed = {case: message for case, message in messages.items() if message}
    if not failed:
        return function.points, f"all {len(messages)} cases pass"
    passed = messages.keys() - failed
    if passed <= {NOT_CHANGED, NO_LOOP}:
        passed = ()
    lines = [f"{case}: {message}" for case, message in failed.items()]
    lines = [f"{len(passed)} of {len(messages)} cases pass", *lines]
    if len({*messages.values()}) == 1:
        lines = failed.popitem()[1:]  # such as "NotImplementedError"
    return function.points / 2 * len(passed) / len(messages), "\n".join(lines)


# --- The student's files --------------------------------------------------------------------------


def read_submission(place):
    """{path: bytes} of the Python files of a folder or a zip, seen from the folder that has ours.

    What is hidden, installed, a link, or no file at all is left out.
    """
    if place.suffix == ".zip":
        with tempfile.TemporaryDirectory() as folder, ZipFile(place) as archive:
            small = [info for info in archive.infolist() if info.file_size <= FILE_SIZE]
            archive.extractall(folder, [i for i in small if i.filename.endswith(".py")])
            return read_submission(Path(folder))

    files = {}
    for path in place.rglob("*.py"):
        own = path.relative_to(place)
        regular = path.is_file() and not path.is_symlink() and path.stat().st_size <= FILE_SIZE
        if regular and not any(part.startswith(LEFT_OUT) for part in own.parts):
            files[own] = path.read_bytes()

    # the folder that has ours
    ours = sorted(own for own in files if own.name in STUDENTS)
    if not ours:
        raise UserError(f"none of {', '.join(STUDENTS)} is there")
    top = ours[0].parent
    if any(own.parent != top for own in ours):
        raise UserError(f"choose one folder: there are {', '.join(map(str, ours))}")
    return {str(own.relative_to(top)): x for own, x in files.items() if own.is_relative_to(top)}


def alone(files, name):
    """Files in which a function of the student calls right ones: the others are the project's.

    In its own file, they are put in place of the student's at the end. given.py, where they come
    from, is the project's file without this function.
    """
    file = file_of(name)
    others = [
        f.name.removeprefix(file[:-2]) for f in GRADED if f.name != name and file_of(f.name) == file
    ]
    lines = ["", "import given", *(f"{other} = given.{other}" for other in others)]
    given = changed_files(name, lambda body: blank_body(name))[file]
    own = files[file] + "\n".join(lines).encode()
    return {**files, **right_files(), file: own, "given.py": given}


def right_files():
    """{name: bytes} of the project's files that a student writes in."""
    return {file: (ROOT / file).read_bytes() for file in STUDENTS}


def changed_files(name, change):
    """right_files() with another body of a function, change(body)."""
    files, file = right_files(), file_of(name)
    files[file] = change_body(files[file].decode(), name, change).encode()
    return files


# --- The worker -----------------------------------------------------------------------------------


def run_cases(files, cases, user=None):
    """{function: {case: what differs, or "" if nothing does}}.

    In a temporary folder are the worker, and code/ with the student's files and what is ours.
    """
    deadline = time.monotonic() + SECONDS
    requests = [(case.function, case.inputs) for case in cases]
    answers = []
    with tempfile.TemporaryDirectory() as temporary:
        # the worker, in a folder that another user may read
        folder = Path(temporary)
        folder.chmod(0o755)
        shutil.copy(ROOT / "course/worker.py", folder)

        # the student's files, then what is ours: it cannot be replaced
        for name, text in files.items():
            path = folder / "code" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        shutil.copy(ROOT / "model.py", folder / "code")
        shutil.copytree(ROOT / "support", folder / "code/support", dirs_exist_ok=True)

        # a worker that ends too early is followed by another one
        while len(answers) < len(requests):
            answers += ask_worker(folder, requests[len(answers) :], deadline, user)

    # compared here, where the answers are known
    said = {}
    for case, answer in zip(cases, answers, strict=True):
        said.setdefault(case.function, {})[case.name] = difference(case, answer)[:LONGEST]
    return said


def ask_worker(folder, requests, deadline, user):
    """The answers of one process. If it ends too early, the function where it did has no more."""
    torch.save(requests, folder / "requests.pt")
    process = start_worker(folder, user)

    # not here: a process that the worker has started may keep its output open
    got = []
    reader = Thread(target=lambda: got.append(process.stdout.read(OUTPUT_SIZE)), daemon=True)
    reader.start()
    reader.join(max(0.0, deadline - time.monotonic()))
    end(process)
    reader.join(1)

    # {output: tensor} each; an error, of what is no such thing, costs all points
    stream = BytesIO(got[0] if got else b"")
    answers = []
    while len(answers) < len(requests) and (size := int.from_bytes(stream.read(8), "big")):
        frame = stream.read(size)
        if len(frame) < size:
            break  # it ended while it wrote
        answers.append(torch.load(BytesIO(frame), weights_only=True, map_location="cpu"))

    stuck = requests[len(answers) :]
    why = f"it ended Python, or computes for more than {CASE_SECONDS} seconds"
    if time.monotonic() > deadline:
        why = f"all functions together take more than {SECONDS} seconds"
    else:
        stuck = [request for request in stuck if request[0] == stuck[0][0]]
    return answers + [{"error": why}] * len(stuck)


def start_worker(folder, user):
    """Start the worker, without an environment that says where the project is. A Popen.

    user: the system's user that it runs as; None: this one.
    """
    # another user has a group of its own, and no further ones
    as_user = {}
    if user:
        import pwd

        as_user = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}

    # in a session of its own, so that end() can kill all that it starts
    environment = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT") if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-B", "../worker.py", "../requests.pt", str(CASE_SECONDS)],
        cwd=folder / "code",
        env={**environment, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **as_user,
    )


def end(process):
    """The worker, and what it has started. (Windows has no groups.)"""
    process.kill()
    if hasattr(os, "killpg"):
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# --- Comparisons ----------------------------------------------------------------------------------


def difference(case, answer):
    """What is wrong with an answer, as a sentence; "" if nothing is."""
    if "error" in answer:
        return str(answer["error"])
    for name, expected in case.expected.items():
        # the shape
        which = "" if name == "result" else f"{name}: "
        got = answer[name].double()
        if got.shape != expected.shape:
            return f"{which}its shape is {tuple(got.shape)}, and should be {tuple(expected.shape)}"

        # the numbers, and the first that differs
        tolerance = 1e-10 if answer[name].dtype == torch.float64 else 1e-5
        near = (got - expected).abs() <= tolerance * (1 + expected.abs())  # False at NaN
        if not near.all():
            index = tuple((~near).nonzero()[0].tolist())
            axes = "" if name.startswith("gradient") else f"({case.axes}) = "
            where = f"differs first at {axes}{index}: " if index else ""
            one, other = got[index].item(), expected[index].item()
            digits = 3 if abs(one - other) > 0.01 else 10
            return f"{which}{where}it is {one:.{digits}g}, and should be {other:.{digits}g}"
    return ""
