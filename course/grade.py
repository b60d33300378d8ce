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
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import NamedTuple
from zipfile import ZipFile

import torch

from course.assignment import GRADED, YOURS
from course.source import ROOT, blank_body, file_of, replace_body
from support.commands import UserError

PUBLIC = ROOT / "course/cases.pt"  # of a students' copy: the cases of seed 0

STUDENTS = ("attention.py", "kernels.py", "data.py", "pretrain.py")
OURS = ("model.py", "support")  # what these import

SECONDS = 100  # for a submission, on the clock; for a case it is the worker's
FILE_SIZE, OUTPUT_SIZE = 2**20, 2**26  # bytes
LONGEST = 400  # characters of a message


class Case(NamedTuple):
    """One thing that a function must do."""

    function: str  # "kernels.bias_matrix"
    name: str  # what it shows
    inputs: dict  # tensors and plain values, for the worker
    expected: dict  # {output: tensor}: only these are compared
    axes: str
    ask: str = ""  # also "gradients", "inputs" (after the call), "lines" (does it loop?)
    measure: str = ""  # what is compared is measured of the outputs: MEASURES
    tolerance: float = 1e-5


def load_cases(seed):
    if PUBLIC.exists():
        return [Case(**case) for case in torch.load(PUBLIC, weights_only=True)]
    from course.cases import make_cases

    return make_cases(seed)


# --- Commands -------------------------------------------------------------------------------------


def test_command(args):
    """`python -m course test`: the cases of one function, in this folder."""
    cases = [case for case in load_cases(0) if case.function.endswith("." + args.function)]
    if not cases:
        raise UserError(f"{args.function} is not a function of course/handout.md")
    with code_folder(read_submission(ROOT)) as folder:
        messages = run_cases(folder, cases)
    for case, message in zip(cases, messages, strict=True):
        print(f"{case.name}: {message or 'passes'}")
    return int(any(messages))


def grade_command(args):
    """`python -m course grade`. Returns the exit code."""
    places = []
    for path in map(Path, args.submissions):
        if not path.is_symlink() and (path.is_dir() or path.suffix == ".zip"):
            places.append(path)
        else:
            print(f"{path} is no folder and no zip, and is left out")
    if not places:
        raise UserError("there is nothing to grade: a submission is a folder or a zip")
    cases = load_cases(args.seed)

    # The table is written as we go: a batch that is stopped has those that are done. Two students
    # of one name are told apart by their folders.
    names = [path.resolve().name.removesuffix(".zip") for path in places]
    with (
        open(args.csv or os.devnull, "w", encoding="utf-8", newline="") as file,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        table = csv.writer(file)
        table.writerow(["student", "what", "points", "of", "reason"])
        results = pool.map(lambda path: grade(path, cases, args.user), places)
        for path, name, grades in zip(places, names, results, strict=True):
            name = name if names.count(name) == 1 else str(path)
            print(name)
            for function, points, output in grades:
                text = output.replace("\n", "\n    ")
                print(f"{function.name:<34}{points:>5.2f} of {function.points}   {text}")
                table.writerow([name, function.name, round(points, 2), function.points, output])
            print(f"code  {sum(points for _, points, _ in grades):.2f} of 40\n", flush=True)
            table.writerows([name, what, "", of, ""] for what, of in YOURS.items())
            file.flush()
    return 0


# --- Points ---------------------------------------------------------------------------------------


def grade(submission, cases, user=None):
    """[(function, points, what is said)]. What goes wrong costs this student's points alone."""
    try:
        messages = messages_of(submission, cases, user)
    except Exception as error:
        why = str(error) if isinstance(error, UserError) else f"the grader failed: {error!r}"
        messages = {f.name: [why] * len(cases_of(cases, f.name)) for f in GRADED}
    return [grade_of(f, cases_of(cases, f.name), messages[f.name]) for f in GRADED]


def messages_of(submission, cases, user):
    """{function: for each of its cases what differs, or ""}."""
    files = read_submission(submission)
    deadline = time.monotonic() + SECONDS
    with code_folder(files) as folder:
        found = iter(run_cases(folder, cases, deadline, user))
    messages = {f.name: [next(found) for _ in cases_of(cases, f.name)] for f in GRADED}

    # once more, with the project's other functions; a students' copy does not have them
    failed = [function for function in GRADED if any(messages[function.name])]
    for function in failed if len(failed) > 1 and not PUBLIC.exists() else []:
        name = function.name
        if function.title in messages[name][0]:
            continue  # it is blank
        if PurePosixPath(file_of(name)) not in files:
            messages[name] = [f"{file_of(name)} is missing"] * len(messages[name])
            continue
        with code_folder(files, function) as folder:
            again = run_cases(folder, cases_of(cases, name), deadline, user, others_of(name))
        messages[name] = min(messages[name], again, key=lambda them: sum(map(bool, them)))
    return messages


def cases_of(cases, name):
    return [case for case in cases if case.function == name]


def others_of(name):
    """The other graded functions of a file."""
    return [f.name for f in GRADED if f.name != name and file_of(f.name) == file_of(name)]


def grade_of(function, cases, messages):
    failed = [f"{c.name}: {m}" for c, m in zip(cases, messages, strict=True) if m]
    if not failed:
        return function, function.points, f"all {len(cases)} cases pass"

    # what changes nothing and does not loop is worth something only if some numbers are right
    passed = len(cases) - len(failed)
    if all(m for c, m in zip(cases, messages, strict=True) if c.ask not in ("inputs", "lines")):
        passed = 0
    lines = [f"{passed} of {len(cases)} cases pass", *failed]
    if len(set(messages)) == 1:
        lines = messages[:1]  # such as "NotImplementedError"
    return function, function.points / 2 * passed / len(cases), "\n".join(lines)


# --- The student's files --------------------------------------------------------------------------


def read_submission(place):
    """{path: bytes} of the Python files of a folder or a zip, seen from the folder that has ours.

    What is hidden, installed, a link, or no file at all is left out.
    """
    files = {}
    if place.is_dir():
        for path in place.rglob("*.py"):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= FILE_SIZE:
                files[PurePosixPath(path.relative_to(place).as_posix())] = path.read_bytes()
    else:
        with ZipFile(place) as archive:
            for info in archive.infolist():
                if info.filename.endswith(".py") and info.file_size <= FILE_SIZE:
                    files[PurePosixPath(info.filename)] = archive.open(info).read(FILE_SIZE)
    left_out = {"__MACOSX", "site-packages", ".."}
    for path in [*files]:
        if any(part.startswith(".") or part in left_out for part in path.parts):
            del files[path]

    # the folder that is nearest to the top
    ours = [path for path in files if path.name in STUDENTS]
    if not ours:
        raise UserError(f"none of {', '.join(STUDENTS)} is there")
    depth = min(len(path.parts) for path in ours)
    ours = sorted(str(path) for path in ours if len(path.parts) == depth)
    [top, *more] = {PurePosixPath(path).parent for path in ours}
    if more:
        raise UserError(f"files are in several folders, and one must be chosen: {', '.join(ours)}")
    return {p.relative_to(top): text for p, text in files.items() if p.is_relative_to(top)}


@contextmanager
def code_folder(files, function=None):
    """A temporary folder: code/ with the student's files and what is ours, and the worker.

    Of a student's files only that of `function` counts, if it is given, and helpers; the others are
    the project's, and so is given.py, the same file without this function.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        code = folder / "code"
        code.mkdir()
        folder.chmod(0o755)
        shutil.copy(ROOT / "course/worker.py", folder)

        # of one function alone: the other files are ours, and this one without it is given.py
        ours = list(OURS)
        if function:
            own = file_of(function.name)
            ours += [file for file in STUDENTS if file != own]
            text = (ROOT / own).read_text(encoding="utf-8")
            text = replace_body(text, function.name, blank_body(function))
            (code / "given.py").write_text(text, encoding="utf-8")

        # what is ours, then what is the student's
        for name in ours:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, code / name, ignore=ignored)
            else:
                shutil.copy(ROOT / name, code)
        for path, text in files.items():
            if path.parts[0] not in (*ours, "given.py"):
                (code / path).parent.mkdir(parents=True, exist_ok=True)
                (code / path).write_bytes(text)
        yield folder


# --- The worker -----------------------------------------------------------------------------------


def run_cases(folder, cases, deadline=None, user=None, given=()):
    """For each case what differs, or "" if nothing does. given: functions that are ours."""
    deadline = deadline or time.monotonic() + SECONDS
    requests = [
        {"function": c.function, "ask": c.ask, "inputs": c.inputs, "given": list(given)}
        for c in cases
    ]
    answers = []
    while len(answers) < len(requests):
        answers += ask_worker(folder, requests[len(answers) :], deadline, user)
    return [difference(case, answer)[:LONGEST] for case, answer in zip(cases, answers, strict=True)]


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

    stream = BytesIO(got[0] if got else b"")
    answers = []
    while len(answers) < len(requests) and (header := stream.read(8)):
        answers.append(read_answer(stream.read(int.from_bytes(header, "big"))))

    stuck = requests[len(answers) :]
    why = "it ended Python, or computes for more than 10 seconds"
    if time.monotonic() > deadline:
        why = f"all functions together take more than {SECONDS} seconds"
    else:
        stuck = [r for r in stuck if r["function"] == stuck[0]["function"]]
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
        [sys.executable, "-B", str(folder / "worker.py"), str(folder / "requests.pt")],
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


def read_answer(frame):
    """What the worker sent; it may be anything."""
    warnings.simplefilter("ignore")  # of torch.load, about what is no tensor
    try:
        answer = torch.load(BytesIO(frame), weights_only=True, map_location="cpu")
        if "error" in answer:
            return {"error": str(answer["error"])}
        return {str(name): x for name, x in answer.items() if type(x) is torch.Tensor}
    except Exception:
        return {"error": "its answer cannot be read"}


# --- Comparisons ----------------------------------------------------------------------------------


def difference(case, answer):
    """What is wrong with an answer, as a sentence; "" if nothing is."""
    if "error" in answer:
        return answer["error"]
    try:
        if case.measure:
            answer = MEASURES[case.measure](case.inputs, answer)
        for name, expected in case.expected.items():
            message = difference_of(answer.get(name), expected, case)
            if message:
                return message if name == "result" else f"{name}: {message}"
    except Exception as error:
        return f"it cannot be compared: {error!r}"
    return ""


def difference_of(got, expected, case):
    if got is None:
        return "it is missing"
    if got.shape != expected.shape:
        if case.measure and got.numel() < 20:
            return f"it is {got.tolist()}, and should be {expected.tolist()}"
        return f"its shape is {tuple(got.shape)}, and should be {tuple(expected.shape)}"

    # the dtype is that of the inputs
    dtypes = {x.dtype for x in case.inputs.values() if torch.is_tensor(x) and x.is_floating_point()}
    if dtypes and not case.measure and got.is_floating_point() and got.dtype not in dtypes:
        return f"its dtype is {got.dtype}, and should be {dtypes.pop()}"

    got, expected = got.double(), expected.double()
    near = (got - expected).abs() <= case.tolerance * (1 + expected.abs())  # False at NaN
    if near.all():
        return ""
    if not expected.dim():
        return f"it is {got.item():.6g}, and should be {expected.item():.6g}"
    index = tuple((~near).nonzero()[0].tolist())
    one, other = got[index].item(), expected[index].item()
    digits = 3 if abs(one - other) > 0.01 else 10
    return (
        f"differs first at ({case.axes}) = {index}: it is {one:.{digits}g}, "
        f"the equation gives {other:.{digits}g}"
    )


def measure_padding(inputs, answer):
    """lowest_at_padding: every number that gives the weight 0 is right."""
    lowest = answer["result"]
    return {
        "shape": torch.tensor(lowest.shape),
        "is 0": (lowest == 0).double(),
        "weights": (lowest.double() + inputs["scores"]).to(lowest.dtype).softmax(dim=-1),
        "dtype": torch.tensor(lowest.dtype == getattr(torch, inputs["dtype"])),
    }


def measure_dropout(inputs, answer):
    """The weights, times the number of keys: 0 or 1 / (1 - dropout)."""
    left = answer["result"].double() * 40 * (1 - inputs["dropout"])
    return {"left": left.round(decimals=4).unique(), "share": (left > 0).double().mean()}


def measure_masks(inputs, answer):
    ids, masked_ids, labels = inputs["input_ids"], answer["masked_ids"], answer["labels"]
    ordinary = ids >= 5
    predicted = ordinary & (labels != -100)
    count = predicted.sum().clamp(min=1)
    again = [
        torch.equal(answer[name], answer[f"{name} again"]) for name in ("masked_ids", "labels")
    ]
    return {
        "share chosen": predicted.sum() / ordinary.sum(),
        "share of mask": (masked_ids == 4)[predicted].sum() / count,
        "share that stays": (masked_ids == ids)[predicted].sum() / count,
        "drawn": masked_ids[masked_ids != 4].unique(),
        "same again": torch.tensor(all(again)),
    }


MEASURES = {"padding": measure_padding, "dropout": measure_dropout, "masks": measure_masks}
