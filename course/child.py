"""The process in which a student's function runs: it computes the outputs of cases, no more.

    python -I -B FOLDER/course/child.py

FOLDER is a copy of the project in which one file holds the student's function instead of the
original one. The current folder holds job.json; the outputs are written to outputs.pt there. The
outputs are compared in another process.

There are four safeguards, in addition to course/rules.py: limits of the operating system on memory,
time, the size of files and the number of processes; a hook in Python that refuses to open files and
to start processes; a torch.save that refuses paths; and strict types for what a function returns.
Even so, it is not a sandbox.
"""

import contextlib
import importlib
import io
import json
import math
import os
import sys
import traceback
import types
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows has no limits of this kind: there only the time is limited
    resource = None

FOLDER = Path(__file__).resolve().parent.parent
PROJECT = ("kernels", "attention", "model", "data", "pretrain", "glue")
GIB = 2**30
LARGEST_FILE = 2**25  # bytes, of the outputs too
FORBIDDEN_EVENTS = ("os.", "shutil.", "subprocess.", "socket.", "ctypes.", "pty.", "signal.")
HARMLESS_EVENTS = ("os.listdir", "os.scandir", "os.putenv", "os.unsetenv")  # an import needs these


class Project:
    """The modules of the project as attributes, each imported when it is first used."""

    def __getattr__(self, name):
        return importlib.import_module(name)


def main():
    """Run the jobs in job.json, and write a list of {case: outputs or error} to outputs.pt."""
    job = json.loads(Path("job.json").read_text(encoding="utf-8"))
    sys.path.insert(0, str(FOLDER))
    from course import cases

    # Open this file now: after the safeguards have started, no file can be opened.
    with open("outputs.pt", "wb") as file:
        if not job["trusted"]:
            import_libraries(job["jobs"][0]["module"])
            limit_resources(job["seconds"], job["memory"])
            sys.addaudithook(make_hook())
            torch._C.PyTorchFileWriter = writer_without_paths(torch._C.PyTorchFileWriter)

        # torch must not open a file itself, so it writes the outputs to memory first
        results = [run_job(each, cases) for each in job["jobs"]]
        buffer = io.BytesIO()
        torch.save(results, buffer)
        file.write(buffer.getvalue())
        file.flush()

    # End at once: functions that a student's body may have registered with atexit are not called.
    os._exit(0)


# --- Safeguards -----------------------------------------------------------------------------------


def import_libraries(module):
    """Import what the cases of a module need.

    Some libraries look for a temporary folder when they are imported, which the hook would refuse.
    """
    needed = "pretrain"
    if module in ("attention", "kernels"):
        needed = "model"
    importlib.import_module(needed)


def limit_resources(seconds, memory):
    """Limit this process, for good: CPU seconds, and GiB of memory on top of what it has now."""
    if resource is None:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits = [
        ("RLIMIT_CPU", int(used.ru_utime + used.ru_stime) + seconds),
        ("RLIMIT_AS", address_space() + int(memory * GIB)),
        ("RLIMIT_FSIZE", LARGEST_FILE),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_NPROC", 0),  # no new process or thread; root is not limited by this
    ]
    for name, value in limits:
        number = getattr(resource, name, None)
        if number is not None:
            # macOS refuses some of them
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(number, (value, value))


def address_space():
    """How many bytes this process has mapped; 64 GiB if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 64 * GIB
    return pages * resource.getpagesize()


def make_hook():
    """A hook that Python calls before it opens a file, starts a process and the like.

    It cannot be removed. Only files of Python, its packages and this copy of the project can be
    read, because torch imports some of its parts late.
    """
    readable = tuple(os.path.realpath(folder) + os.sep for folder in sys.path)
    realpath = os.path.realpath
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def hook(event, arguments):
        if event == "open":
            path, mode, flags = arguments
            is_readable = isinstance(path, str) and realpath(path).startswith(readable)
            if not is_readable or flags & writing:
                raise PermissionError(f"a graded function may not open files such as {path!r}")
        elif event.startswith(FORBIDDEN_EVENTS) and event not in HARMLESS_EVENTS:
            raise PermissionError(f"a graded function may not call {event}")

    return hook


def writer_without_paths(writer):
    """torch.save opens files without Python's knowledge, so the hook does not see them."""

    def write(target, *arguments, **options):
        if isinstance(target, (str, bytes, os.PathLike)):
            raise PermissionError(f"a graded function may not open files such as {target!r}")
        return writer(target, *arguments, **options)

    return write


# --- Jobs -----------------------------------------------------------------------------------------


def run_job(job, cases):
    """{name of the case: {"outputs": ...} or {"error": ...}} for the cases of some functions.

    job: "functions", whose cases are run; "module" and "source", the text of one of the files, or
    None if all files are those of FOLDER; "plain": whether to compute the expected outputs.
    """
    results = {}
    try:
        load_project(job["module"], job["source"])
    except BaseException as error:
        for case in cases.cases_of(job["functions"]):
            results[case.key] = {"error": message_of(error, job)}
        return results

    for case in cases.cases_of(job["functions"]):
        try:
            results[case.key] = {"outputs": run_case(case, cases, job["plain"])}
        except BaseException as error:  # SystemExit and the like, too
            results[case.key] = {"error": message_of(error, job)}
    return results


def load_project(module, source):
    """Forget the modules of the project, and make one of them from another text."""
    for name in PROJECT:
        sys.modules.pop(name, None)
    if source is None:
        return
    new = types.ModuleType(module)
    new.__file__ = str(FOLDER / f"{module}.py")
    new.__dict__.update(torch=torch, math=math, nn=torch.nn, F=torch.nn.functional)
    sys.modules[module] = new
    exec(compile(source, new.__file__, "exec"), new.__dict__)


def run_case(case, cases, plain):
    """The outputs of one case, as tensors and plain values."""
    # what an earlier case may have changed
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.nn.functional.dropout = cases.dropout_by_shape
    torch.manual_seed(0)

    compute = case.compute
    if plain and case.expected is not None:
        compute = getattr(importlib.import_module("course.plain"), case.expected)
    return plain_values(compute(Project()))


def plain_values(value):
    """The same value as plain tensors, numbers and texts. Raises TypeError for anything else."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        is_plain = value.layout == torch.strided and value.device.type == "cpu"
        if not is_plain or value.numel() > 2**20:
            raise TypeError("the result is not an ordinary tensor of ordinary size")
        return value.detach().clone().contiguous()
    if type(value) in (bool, int, float, str, type(None)):
        return value
    if type(value) in (list, tuple) and len(value) < 1000:
        return [plain_values(element) for element in value]
    if type(value) is dict and len(value) < 1000:
        return {str(name): plain_values(element) for name, element in value.items()}
    raise TypeError(f"the result is of type {type(value).__name__}, not an ordinary tensor")


def message_of(error, job):
    """An error as one sentence, with the line of the graded file in which it happened."""
    kind = f"{type(error).__name__}: "
    if kind == "WrongResult: ":
        kind = ""  # of cases.py: a sentence already
    try:
        text = str(error).strip().split("\n")[0][:200]
    except BaseException:
        text = ""

    # the last line of the graded file; its line numbers are not those of the student's file
    line = ""
    if job["source"] is not None:
        lines = job["source"].splitlines()
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(FOLDER / f"{job['module']}.py"):
                line = f" in the line `{lines[frame.lineno - 1].strip()[:100]}`"
    return f"{kind}{text}{line}"


if __name__ == "__main__":
    main()
