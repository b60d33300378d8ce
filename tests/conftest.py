"""What several test files share.

Import paths: the project's modules and the helpers next to this file can be imported from any
test, wherever pytest is started. One thread: the models of the tests are so small that several
threads only wait for each other, most of all on a busy machine.

Fixtures:

    small_text     a text of 960 short sentences, and a folder for its token ids
    on_small_text  the options of a command line that takes this text, on the CPU
    short_run      the command line of a short pretrain.py on this text, whose model is tiny
    start          calls it: what it prints
    run_program    calls a main() in this process: (exit code, standard output, standard error)
    refused        the same for a mistake of the user: returns the one line of the error
"""

import gc
import json
import multiprocessing
import os
import random
import shlex
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

# Read when torch is first imported, here and in the programs that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
sys.path.insert(0, str(TESTS))
sys.path.insert(0, str(ROOT))


def pytest_configure(config):
    """`python -m pytest -m compiled` runs the tests that compile every variant; others do not.

    At the end, a line says why tests were skipped: which package is missing, or that CUDA is.
    """
    config.addinivalue_line("markers", "compiled: compiles every variant (slow)")
    config.addinivalue_line("markers", "cuda: needs an NVIDIA GPU")
    config.option.markexpr = config.option.markexpr or "not compiled"
    config.option.reportchars += "s"


def pytest_collection_finish():
    """What is imported stays, so the garbage collector need not look at it in each of its rounds.

    There are about a million objects, most of them of torch: half a second in a round.
    """
    gc.collect()
    gc.freeze()


# --- A small text ---------------------------------------------------------------------------------


class SmallText(NamedTuple):
    file: Path  # 960 short sentences about five people
    cache: Path  # an empty folder, for the token ids

    def corpus(self, seq_len):
        # imported here, as in run_program
        from data import prepare_corpus

        return prepare_corpus([str(self.file)], self.cache, seq_len)


@pytest.fixture(scope="session")
def small_text(tmp_path_factory):
    """A SmallText, the same for all tests of a session: it is prepared only once."""
    folder = tmp_path_factory.mktemp("small_text")
    pick = random.Random(0).choice
    names = ["ann", "ben", "cleo", "dan", "eve"]
    verbs = ["sees", "hears", "finds", "asks", "thanks"]

    lines = []
    for _ in range(480):
        lines.append(
            f"{pick(names).title()} {pick(verbs)} {pick(names)}. "
            f"{pick(names).title()} {pick(verbs)} {pick(names)} too."
        )

    file = folder / "corpus.txt"
    file.write_text("\n".join(lines), "utf-8")
    return SmallText(file, folder / "cache")


@pytest.fixture(scope="session")
def on_small_text(small_text):
    """The words of a command line: this text, on the CPU."""
    return words_of("--device cpu --corpus", small_text.file, "--cache_dir", small_text.cache)


def write(path, content):
    """Write a text, or bytes, to a file. Its folder is made. Returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    return path


def log_of(folder):
    """The records of a run's log; the first one holds its settings."""
    text = (folder / "log.jsonl").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def rows_of(table):
    """The cells of a table that is written as text, one row per line."""
    return [line.split() for line in table.strip().splitlines()]


def content_of(folder):
    """{name: bytes} of the files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_same_weights(path, expected, tolerance=0.0):
    """Two files of weights are equal: to the bit, or up to a tolerance."""
    # imported here, as in run_program
    from support.files import load_checkpoint

    weights = load_checkpoint(path)
    for name, weight in load_checkpoint(expected).items():
        assert (weights[name] - weight).abs().max() <= tolerance, (path, name)


def assert_same_run(out_dir, expected, tolerance=0.0):
    """The number of tokens, all evaluations, and the weights of two runs are equal."""
    folders = [folder / "corpus-composite" for folder in (out_dir, expected)]
    results = []
    for folder in folders:
        records = log_of(folder)
        # the tokens of the last steps; their evaluation comes after them
        evaluations = [record for record in records if "held_out_loss" in record]
        results.append([records[-2]["tokens"], *evaluations])
    for one, other in zip(*results, strict=True):
        assert one == pytest.approx(other, rel=0, abs=tolerance)
    assert_same_weights(*(folder / "model.pt" for folder in folders), tolerance)


@contextmanager
def killed_before_its_log(monkeypatch):
    """In this block a run of pretrain.py ends between its last checkpoint and its log."""
    # imported here, as in run_program
    import pretrain
    from support.commands import UserError

    def killed(*arguments, **named):
        raise UserError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(pretrain, "save_run", killed)
        yield


# --- A program in another process, and in this one ------------------------------------------------

needs_signals = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals and forks")


def start_process(function, *arguments):
    """Call a function in another process: a fork of a server that has imported the project once."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["glue", "pytest", "torch._dynamo"])
    process = forks.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def kill(process, number, begun, pause):
    """Send a signal to a process: when it has begun, and at most `pause` seconds later.

    begun: function without arguments. Returns the exit code.
    """
    while process.is_alive() and not begun():
        time.sleep(0.01)
    time.sleep(random.uniform(0, pause))
    if process.is_alive():
        os.kill(process.pid, number)
    process.join(60)
    return process.exitcode


def words_of(*parts):
    """The words of a command line. A part that begins with "--" may be several words."""
    words = []
    for part in map(str, parts):
        words += part.split() if part.startswith("--") else [part]
    return words


class Killed(BaseException):
    """What a kill is to the program: nothing runs after it."""


class Outcome(NamedTuple):
    code: int  # exit code
    out: str  # standard output
    error: str  # standard error


@pytest.fixture
def run_program(capsys):
    """run_program(pretrain.main, "--steps 5") -> Outcome(code, out, error).

    It does what `python pretrain.py --steps 5` does, without starting another Python.
    """

    def call(main, *arguments):
        # Imported here: this file must set the number of threads before torch is imported.
        from support.commands import run_command

        with pytest.raises(SystemExit) as stop:
            run_command(lambda: main(words_of(*arguments)))
        out, error = capsys.readouterr()
        # As Python does when it ends: a text is printed, and the exit code is 1.
        code = stop.value.code
        if isinstance(code, str):
            return Outcome(1, out, error + code + "\n")
        return Outcome(code or 0, out, error)

    return call


@pytest.fixture
def refused(run_program):
    """refused(main, *arguments): the program refuses them. Returns the line that says why.

    Or refused(main, "table RUN --name x", RUN=path): a command line, with a path for each name.
    """

    def call(main, *arguments, **paths):
        if paths:
            arguments = [paths.get(word, word) for word in shlex.split(*arguments)]
        outcome = run_program(main, *arguments)
        *usage, line = outcome.error.splitlines()
        if outcome.code == 2:  # argparse: the usage comes first
            assert usage[0].startswith("usage: ") and ": error: " in line
        else:
            assert outcome.code == 1 and not usage and line.startswith("error: ")
        return line

    return call


# --- An edit of the code, and a short pre-training ------------------------------------------------


def be_edited(patch, edited):
    """From now on, these files have other digests: {file: {name: digest}}, which may grow."""
    # imported here, as in run_program
    from support import code

    digests_of = code.digests_of
    patch.setattr(code, "digests_of", lambda file: edited.get(file) or digests_of(file))


def be_pretrain(words):
    """What another process does: pretrain.py with these words."""
    # imported here, as in run_program
    import pretrain
    from model import SIZES
    from model_helpers import TINIER
    from support.commands import run_command

    SIZES["tiny"] = TINIER
    run_command(lambda: pretrain.main(words))


@pytest.fixture
def short_run(on_small_text, tmp_path, monkeypatch):
    """short_run("--lr 0.5") -> the words of a command; what is given last, counts."""
    # imported here, as in run_program
    from model import SIZES
    from model_helpers import TINIER

    monkeypatch.setitem(SIZES, "tiny", TINIER)
    training = "--steps 4 --batch_size 8 --seq_len 32 --lr 0.001 --dtype fp32 --out_dir"
    return lambda *more: words_of(*on_small_text, training, tmp_path, *more)


@pytest.fixture
def start(short_run, run_program):
    """start("--lr 0.5") -> what this pretrain.py prints. code: that with which it must end."""
    # imported here, as in run_program
    import pretrain
    from support.commands import say_once

    say_once.cache_clear()

    def call(*more, code=0):
        outcome = run_program(pretrain.main, *short_run(*more))
        assert outcome.code == code, outcome.error
        say_once.cache_clear()
        return outcome.out + outcome.error

    return call
