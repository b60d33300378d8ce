"""What several test files share.

Import paths: the project's modules and the helpers next to this file can be imported from any
test, wherever pytest is started. One thread: the models of the tests are so small that several
threads only wait for each other, most of all on a busy machine.

The attacks of lab/attacks.py take 16 seconds of one core and need nothing from any test. They are
started when all tests have been collected, and run beside the first tests.

Fixtures:

    short_form     what the short form of all attacks prints
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


# --- The attacks, beside the other tests ----------------------------------------------------------


class Attacks(NamedTuple):
    """`python -m lab.attacks --short`, which is running."""

    program: subprocess.Popen
    printed: Path  # the file that it writes to


ATTACKS = pytest.StashKey[Attacks]()


def pytest_collection_finish(session):
    """Start the attacks if a test of this session needs them. They need forks."""
    fixtures = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if "short_form" not in fixtures or session.config.option.collectonly:
        return
    if not hasattr(os, "fork"):
        return

    # They print into a file: a pipe that nobody reads would stop them when it is full.
    with tempfile.NamedTemporaryFile(suffix=".txt", delete=False) as file:
        program = subprocess.Popen(
            [sys.executable, "-m", "lab.attacks", "--short"],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    session.config.stash[ATTACKS] = Attacks(program, Path(file.name))


def pytest_unconfigure(config):
    """End the attacks if they are still running: the session was interrupted."""
    attacks = config.stash.get(ATTACKS, None)
    if attacks is not None:
        attacks.program.terminate()
        attacks.program.wait(timeout=60)
        attacks.printed.unlink()


@pytest.fixture(scope="session")
def short_form(request):
    """What the short form of all attacks prints: (exit code, text)."""
    program, printed = request.config.stash[ATTACKS]
    code = program.wait(timeout=150)
    return code, printed.read_text(encoding="utf-8")


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
