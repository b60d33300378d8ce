"""Tools of lab/attacks.py: victims, the moments at which something happens to them, their files.

A victim is a program of this project in a process of its own. Importing torch takes seconds, so a
victim is a fork of this process, which has imported torch already: a copy that starts within
hundredths of a second. The copy then runs the program's file from its first line, as Python does.
Windows has no forks.
"""

import itertools
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from support.commands import run_command

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT = 90  # seconds after which a victim counts as hung; the slowest one takes about ten
POLL_SECONDS = 0.002  # between two checks whether a victim has ended

# The possible results of an attack.
REFUSED = "refused"  # it ended with one line of message, or as lab/attacks.py says
EQUAL = "equal"  # the files or the run were repaired: equal to the bit to those without the attack
HARMLESS = "harmless"  # the attack changed nothing that anybody reads
LOST = "lost"  # the same command does not continue after a kill, or leaves temporary files
SILENT = "silent"  # another result, and no message
CRASH = "crash"  # a traceback, an abort, or more than one line of message
HANG = "hang"  # it does not end
VERDICTS = (REFUSED, EQUAL, HARMLESS, LOST, SILENT, CRASH, HANG)
FAULTS = (LOST, SILENT, CRASH, HANG)

STOPPED = (130, 143)  # exit codes after SIGINT and SIGTERM; the message is on standard output


class Result(NamedTuple):
    """What came out of an attack: one of VERDICTS, and a line about it."""

    verdict: str
    note: str = ""


# --- Before the first victim ----------------------------------------------------------------------


def prepare_to_fork():
    """Prepare this process to be forked at any time. Call it before the first victim."""
    # A fork copies only the thread that calls it. So this process must have only one thread.
    torch.set_num_threads(1)
    tqdm.monitor_interval = 0

    # All copies of a process share the lock of tqdm. If a victim was killed while it had the lock,
    # then this process and all later victims would wait for it forever. Each copy of a process gets
    # its own copy of a threading.RLock, so no process can block another one.
    tqdm.set_lock(threading.RLock())


# --- Victims --------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """How a victim ended."""

    code: int  # exit code; -9 if signal 9 killed it
    out: str  # what it printed to standard output
    error: str  # and to standard error
    hung: bool  # it did not end in time, and was killed

    def fault(self):
        """The fault of a program that should have ended by itself: a Result, or None."""
        # no end, or a signal of the operating system
        if self.hung:
            return Result(HANG, "it did not end in time")
        if self.code < 0:
            name = signal.Signals(-self.code).name
            return Result(CRASH, f"ended by {name}: {self.last_line()}")

        # an error that nobody expected
        for sign in ("Traceback", "panicked at", "Exception ignored", "Fatal Python error"):
            if sign in self.error:
                return Result(CRASH, f"{sign}: {self.last_line()}")

        # an expected error has one line of message
        messages = self.messages()
        if self.code != 0 and len(messages) > 1:
            return Result(CRASH, f"{len(messages)} lines of message: {messages}")
        if self.code not in (0, *STOPPED) and not messages:
            return Result(CRASH, f"exit code {self.code} without a message")
        return None

    def messages(self):
        """The lines of standard error, without argparse's usage and without notes."""
        lines = []
        for line in self.error.splitlines():
            is_usage = line.startswith(("usage:", " "))
            is_note = line.endswith("was only half written, left out")
            if line and not is_usage and not is_note:
                lines.append(line)
        return lines

    def last_line(self):
        """The last line of standard error, or ""."""
        return self.error.rstrip("\n").rpartition("\n")[2]


class Victim:
    """A program that runs in a fork of this process.

    Args:
        folder: its working directory.
        program: "pretrain.py"; "lab.pairs", which means python -m lab.pairs; or a function of this
            program, which is then called with the arguments.
        arguments: of its command line.
        hook: an object whose method install() is called in the new process before the program
            starts: an AtCall, or a FullAt.
    """

    numbers = itertools.count()
    running = set()  # all Victims that have not ended, as far as this process knows

    def __init__(self, folder, program, arguments, hook=None):
        # files for what it prints
        number = next(self.numbers)
        self.out = Path(folder, f"victim-{number}.out")
        self.error = Path(folder, f"victim-{number}.error")
        self.out.touch()
        self.error.touch()
        self.code = None

        # flush first: otherwise both processes would write what is still in the buffers
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self.become(folder, program, arguments, hook)
        self.running.add(self)

    def become(self, folder, program, arguments, hook):
        """In the new process: run the program, and end with its exit code."""
        code = 1
        try:
            # standard input, output and error, and the working directory
            os.setsid()
            os.chdir(folder)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, path in ((1, self.out), (2, self.error)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115

            # a new Python has these handlers
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if hook is not None:
                hook.install()
            code = exit_code(program, arguments)
        except BaseException:
            traceback.print_exc()

        # Whatever happens, the new process must end here. It must not continue its parent's code.
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def is_running(self):
        """Whether it has not ended yet."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid != 0:
                self.code = os.waitstatus_to_exitcode(status)
                self.running.discard(self)
        return self.code is None

    def kill(self):
        """Kill it, if it is running."""
        if self.is_running():
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds=TIMEOUT):
        """Wait until it has ended: its Outcome. It is killed if it takes longer than `seconds`."""
        end = time.perf_counter() + seconds
        hung = False
        while self.is_running():
            time.sleep(POLL_SECONDS)
            if time.perf_counter() > end and not hung:
                hung = True
                self.kill()

        # what it printed
        out = self.out.read_text(encoding="utf-8", errors="replace")
        error = self.error.read_text(encoding="utf-8", errors="replace")
        return Outcome(self.code, out, error, hung)

    def kill_after(self, seconds):
        """Kill it after this time, unless it has ended before: its Outcome."""
        end = time.perf_counter() + seconds
        while self.is_running() and time.perf_counter() < end:
            time.sleep(POLL_SECONDS)
        self.kill()
        return self.wait()


def exit_code(program, arguments):
    """Run a program in this process: its exit code."""
    sys.argv = [str(program), *map(str, arguments)]
    try:
        if callable(program):
            run_command("attack", program, *arguments)
        elif program.endswith(".py"):
            runpy.run_path(str(ROOT / program), run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        if isinstance(stop.code, int):
            return stop.code
    return 0


def kill_victims():
    """Kill the victims that an interrupted attack has left running."""
    for victim in list(Victim.running):
        victim.kill()
        victim.wait()


def run(folder, program, arguments, hook=None, seconds=TIMEOUT):
    """Run a program to its end: its Outcome. It hangs if it takes longer than `seconds`."""
    return Victim(folder, program, arguments, hook).wait(seconds)


def start_python(folder, program, arguments, stdout, closed=False):
    """Start a program in a new Python.

    Args:
        folder, program, arguments: as for a Victim.
        stdout: its standard output, as for subprocess.Popen.
        closed: whether it is started without any standard output.
    Returns:
        A Popen.
    """
    # python pretrain.py ..., or python -m lab.pairs ...
    words = [sys.executable, "-m", program]
    if program.endswith(".py"):
        words = [sys.executable, str(ROOT / program)]
    words += [str(argument) for argument in arguments]

    # the shell closes the output and then turns into this Python
    if closed:
        words = ["sh", "-c", 'exec "$@" >&-', "sh", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )


def communicate(process):
    """Wait until a Popen has ended: its Outcome."""
    hung = False
    try:
        out, error = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        hung = True
        process.kill()
        out, error = process.communicate()

    # without a pipe for its standard output, `out` is None
    return Outcome(process.returncode, out or "", error, hung)


# --- Moments --------------------------------------------------------------------------------------

# The functions by which Python programs change the disk or wait until the change is there.
DISK_CALLS = ("open", "write", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir")


class AtCall:
    """Calls action() right before or after the n-th call; all DISK_CALLS count together.

    Args:
        number: n, from 1; 0 for never.
        action: a function without arguments.
        after: do the action after the call, not before it.
        tally: a file that gets one byte per call, so that the calls can be counted.
    """

    def __init__(self, number, action=None, after=False, tally=None):
        self.number = number
        self.action = action
        self.after = after
        self.tally = tally
        self.count = 0

    def install(self):
        if self.tally is not None:
            self.tally = open(self.tally, "wb", buffering=0)  # noqa: SIM115
        for name in DISK_CALLS:
            setattr(os, name, self.watched(getattr(os, name)))

    def watched(self, function):
        """A function that does the same, counts its calls and does the action at its moment."""

        def call(*arguments, **options):
            self.count += 1
            is_moment = self.count == self.number
            if self.tally is not None:
                self.tally.write(b".")
            if is_moment and not self.after:
                self.action()
            result = function(*arguments, **options)
            if is_moment and self.after:
                self.action()
            return result

        return call


class FullAt:
    """Kills a process in the middle of a write: when a file gets longer than `size` bytes."""

    def __init__(self, size):
        self.size = size

    def install(self):
        import resource  # Windows does not have it

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.size))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def kill_me():
    """End this process as a power failure would: without any clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def start_and_kill(random, folder, program, arguments, usual):
    """Start a program and kill it at a random moment. Returns its Outcome.

    The moment is a random time, a call that changes the disk, or the middle of a write.

    Args:
        usual: the Usual of this program without an attack.
    """
    if random.random() < 1 / 3:
        victim = Victim(folder, program, arguments)
        return victim.kill_after(random.uniform(0, usual.seconds))
    return run(folder, program, arguments, random_hook(random, usual))


def random_hook(random, usual):
    """A hook that kills a victim at a call that changes the disk, or in the middle of a write."""
    if random.random() < 0.5:
        number = random.randint(1, usual.calls)
        return AtCall(number, kill_me, after=random.random() < 0.5)
    return FullAt(int(10 ** random.uniform(1, 7)))  # 10 bytes to 10 MB


def was_killed(outcome):
    """Whether a victim ended by one of the kills of this file, and not because it hung."""
    return not outcome.hung and outcome.code in (-signal.SIGKILL, -signal.SIGXFSZ)


class Usual(NamedTuple):
    """What a program does without an attack."""

    outcome: Outcome
    seconds: float  # how long it takes
    calls: int  # how many calls of DISK_CALLS it makes


def usual_run(folder, program, arguments, seconds=TIMEOUT):
    """Run a program without an attack: a Usual. RuntimeError if it does not work."""
    # count its calls, and measure its time
    tally = Path(folder, "calls")
    started = time.perf_counter()
    outcome = run(folder, program, arguments, AtCall(0, tally=tally), seconds)
    taken = time.perf_counter() - started
    if outcome.code != 0:
        raise RuntimeError(f"{program} does not work without an attack:\n{outcome.error}")
    calls = tally.stat().st_size
    tally.unlink()
    return Usual(outcome, taken, calls)
