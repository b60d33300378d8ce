"""What several test files share.

Import paths: the project's modules and the helpers next to this file can be imported from any
test, wherever pytest is started. One thread: the models of the tests are so small that several
threads only wait for each other, most of all on a busy machine.

When all tests are run, the files BESIDE run in a second pytest process beside the others: two cores
take less time than one. tests/test_beside.py waits for it and fails if one of its tests failed.

Fixtures:

    beside         how the second process ended
    small_text     a text of 80 short documents, and a folder for its token ids
    run_program    calls a main() in this process: (exit code, standard output, standard error)
    start_program  starts a program in another process, without importing torch again
    serve          a web server of this machine
"""

import http.server
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

# Read when torch is first imported, here and in the programs that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell starts background jobs so that they ignore Ctrl-C, and their children ignore it, too. But
# some tests send it to this process or to programs that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
sys.path.insert(0, str(TESTS))
sys.path.insert(0, str(ROOT))


# --- A second process for some of the tests -------------------------------------------------------

# These files of this folder take about half of the time of all tests.
BESIDE = (
    "test_attacks.py",
    "test_course.py",
    "test_distributed.py",
    "test_exchange.py",
    "test_figures.py",
    "test_glue.py",
    "test_pairs.py",
    "test_readme.py",
    "test_report.py",
    "test_toy_glue.py",
)


class SecondProcess(NamedTuple):
    """The second pytest process, which is running."""

    process: subprocess.Popen
    printed: Path  # the file that it writes to


SECOND = pytest.StashKey[SecondProcess]()


@pytest.hookimpl(trylast=True)  # after pytest's own choice, by -k for example
def pytest_collection_modifyitems(config, items):
    """Start the second process if test_beside.py was chosen, and leave its tests out here."""
    # the tests of the second process, the one that waits for it, and the others
    beside = []
    waiting = []
    others = []
    for item in items:
        # a file in another folder, such as science/, may have the same name
        name = None
        if item.path.parent == TESTS:
            name = item.path.name

        if name in BESIDE:
            beside.append(item)
        elif name == "test_beside.py":
            waiting.append(item)
        else:
            others.append(item)

    if config.option.collectonly or not waiting:
        return

    # It prints into a file: a pipe that nobody reads would stop it when it is full.
    files = [str(TESTS / name) for name in BESIDE]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    with tempfile.NamedTemporaryFile(suffix=".txt", delete=False) as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
    config.stash[SECOND] = SecondProcess(process, Path(file.name))

    # Here the other files run, and test_beside.py last. pytest takes the tests from this list, so
    # its contents are replaced.
    config.hook.pytest_deselected(items=beside)
    items[:] = others + waiting


@pytest.fixture
def beside(request):
    """How the second process ended: (exit code, what it printed)."""
    process, printed = request.config.stash[SECOND]
    code = process.wait()
    return code, printed.read_text(encoding="utf-8")


def pytest_terminal_summary(terminalreporter, config):
    """Add the last line of the second process: how many tests it ran."""
    second = config.stash.get(SECOND, None)
    if second is not None and second.process.poll() is not None:
        # "4420 passed, 29 skipped in 180 s"
        lines = second.printed.read_text(encoding="utf-8").splitlines()
        terminalreporter.write_line(f"in the second process: {lines[-1]}")


def pytest_unconfigure(config):
    """End the second process if it is still running: the session was interrupted."""
    second = config.stash.get(SECOND, None)
    if second is not None:
        second.process.terminate()
        second.process.wait(timeout=60)
        second.printed.unlink()


# --- A small text ---------------------------------------------------------------------------------


class SmallText(NamedTuple):
    file: Path  # 80 documents of 12 short sentences about five people
    cache: Path  # an empty folder, for the token ids


@pytest.fixture(scope="session")
def small_text(tmp_path_factory):
    """A SmallText, the same for all tests of a session: it is prepared only once."""
    folder = tmp_path_factory.mktemp("small_text")
    pick = random.Random(0).choice
    names = ["ann", "ben", "cleo", "dan", "eve"]
    verbs = ["sees", "hears", "finds", "asks", "thanks"]

    lines = []
    for _ in range(80):
        for _ in range(6):
            first = f"{pick(names).title()} {pick(verbs)} {pick(names)}."
            second = f"{pick(names).title()} {pick(verbs)} {pick(names)} too."
            lines.append(f"{first} {second}")
        lines.append("")  # the end of a document

    file = folder / "corpus.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    return SmallText(file, folder / "cache")


# --- A program in this process --------------------------------------------------------------------


class Outcome(NamedTuple):
    code: int  # exit code
    out: str  # standard output
    error: str  # standard error


@pytest.fixture
def run_program(capsys):
    """run_program("pretrain.py", pretrain.main, "--steps", 5) -> Outcome(code, out, error).

    It does what `python pretrain.py --steps 5` does, without starting another Python. The arguments
    may be strings, numbers and paths.
    """
    before = signal.getsignal(signal.SIGTERM)

    def call(program, main, *arguments):
        # Imported here: this file must set the number of threads before torch is imported.
        from support.commands import run_command

        with pytest.raises(SystemExit) as stop:
            run_command(program, main, [str(argument) for argument in arguments])
        out, error = capsys.readouterr()
        return Outcome(stop.value.code, out, error)

    yield call
    # run_command installs a handler that ends the program.
    signal.signal(signal.SIGTERM, before)


# --- A program in another process -----------------------------------------------------------------


class ForkServer:
    """Sends requests to tests/fork_server.py. It is started with the first request."""

    def __init__(self):
        self.server = None

    def ask(self, *request):
        """Send a request, and return the answer."""
        if self.server is None:
            self.server = subprocess.Popen(
                [sys.executable, str(TESTS / "fork_server.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
        print(json.dumps(request), file=self.server.stdin, flush=True)
        return json.loads(self.server.stdout.readline())

    def close(self):
        """End the server: it ends when its input ends."""
        if self.server is not None:
            self.server.communicate(timeout=60)


class Program:
    """A program that was started by `start_program`."""

    def __init__(self, server, pid):
        self.server = server
        self.pid = pid

    def is_running(self):
        return self.server.ask("is running", self.pid)

    def send_signal(self, number):
        """Send it a signal. If it has ended already, nothing happens."""
        # Its number is not given to another process before is_running() or wait() was called.
        os.kill(self.pid, number)

    def wait(self):
        """Wait until it ends: its Outcome."""
        return Outcome(*self.server.ask("wait", self.pid))


@pytest.fixture(scope="session")
def fork_server():
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def start_program(fork_server, tmp_path_factory):
    """start_program("pretrain.py", "--steps", 5) -> Program, which is running.

    The program may also be the path of a Python file of the test. Only for systems with os.fork.
    """
    folder = tmp_path_factory.mktemp("printed")

    def start(program, *arguments):
        words = [str(argument) for argument in arguments]
        return Program(fork_server, fork_server.ask("start", str(folder), str(program), words))

    return start


# --- A web server ---------------------------------------------------------------------------------


@pytest.fixture
def serve(monkeypatch):
    """serve(Handler) starts a web server of this machine; it ends with the test.

    Its handler may add requests to the list `server.asked`, and may stall until the end of the test
    by waiting for the event `server.released`.
    """
    monkeypatch.setenv("no_proxy", "*")
    started = []

    def start(handler):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.asked = []
        server.released = threading.Event()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
