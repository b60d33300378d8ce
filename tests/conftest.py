"""What several test files share.

Import paths: the project's modules and the helpers next to this file can be imported from any
test, wherever pytest is started. One thread: the models of the tests are so small that several
threads only wait for each other, most of all on a busy machine.

Fixtures:

    small_text     a text of 80 short documents, and a folder for its token ids
    run_program    calls a main() in this process: (exit code, standard output, standard error)
    start_program  starts a program in another process
    serve          a web server of this machine
"""

import http.server
import os
import random
import signal
import subprocess
import sys
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
    """run_program(pretrain.main, "--steps", 5) -> Outcome(code, out, error).

    It does what `python pretrain.py --steps 5` does, without starting another Python. The arguments
    may be strings, numbers and paths.
    """

    def call(main, *arguments):
        # Imported here: this file must set the number of threads before torch is imported.
        from support.commands import run_command

        with pytest.raises(SystemExit) as stop:
            run_command(lambda: main([str(argument) for argument in arguments]))
        out, error = capsys.readouterr()
        # As Python does when it ends: a text is printed, and the exit code is 1.
        code = stop.value.code
        if isinstance(code, str):
            return Outcome(1, out, error + code + "\n")
        return Outcome(code or 0, out, error)

    return call


# --- A program in another process -----------------------------------------------------------------


class Program:
    """A program that was started by `start_program`."""

    def __init__(self, process):
        self.process = process

    def is_running(self):
        return self.process.poll() is None

    def send_signal(self, number):
        """Send it a signal. If it has ended already, nothing happens."""
        self.process.send_signal(number)

    def wait(self):
        """Wait until it ends: its Outcome."""
        out, error = self.process.communicate()
        return Outcome(self.process.returncode, out, error)


@pytest.fixture
def start_program():
    """start_program("pretrain.py", "--steps", 5) -> Program, which is running.

    The program may also be the path of a Python file of the test. It is killed with the test.
    """
    started = []

    def start(program, *arguments):
        command = [sys.executable, str(program), *(str(argument) for argument in arguments)]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return Program(process)

    yield start
    for process in started:
        process.kill()
        process.communicate()


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
