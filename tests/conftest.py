"""What several test files share.

Import paths: the project's modules and the helpers next to this file can be imported from any
test, wherever pytest is started. One thread: the models of the tests are so small that several
threads only wait for each other, most of all on a busy machine.

Fixtures:

    small_text     a text of 80 short documents, and a folder for its token ids
    run_program    calls a main() in this process: (exit code, standard output, standard error)
"""

import os
import random
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

# Read when torch is first imported, here and in the programs that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

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
