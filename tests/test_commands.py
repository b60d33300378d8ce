"""support/commands.py: exit codes, errors as one line, signals, and types of arguments."""

import argparse
import io
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from support.commands import (
    TrainingFailed,
    UserError,
    command_line,
    fraction,
    positive_int,
    run_command,
)
from support.signals import StopSignals

no_signals = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send")


def raising(error):
    """A main() that raises the error."""

    def main(arguments):
        raise error

    return main


# --- Exit codes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3, 130])
def test_the_exit_code_is_what_the_function_returns(run_program, code):
    def main(arguments):
        print(*arguments)
        return code

    assert run_program("a.py", main, "one", 2) == (code, "one 2\n", "")


@pytest.mark.parametrize(
    "error, code, words",
    [
        (TrainingFailed("the loss is nan at step 3"), 1, "the loss is nan at step 3"),
        (UserError("--lr must be above 0"), 2, "--lr must be above 0"),
        (FileNotFoundError(2, "No such file", "x.txt"), 2, "No such file"),
        (OSError(28, "No space left on device", "model.pt"), 2, "'model.pt'"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_expected_error_is_one_line_and_an_exit_code(run_program, error, code, words):
    outcome = run_program("a.py", raising(error))
    assert outcome.code == code and not outcome.out
    assert outcome.error.startswith("a.py: ") and words in outcome.error
    assert outcome.error.count("\n") == 1


@pytest.mark.parametrize(
    "system, text",
    [("posix", "python glue.py 'my runs/a' --n 1"), ("nt", 'python glue.py "my runs/a" --n 1')],
)
def test_a_command_in_a_message_can_be_pasted(monkeypatch, system, text):
    words = ["python", "glue.py", Path("my runs/a"), "--n", 1]
    monkeypatch.setattr(os, "name", system)
    line = command_line(words)
    monkeypatch.undo()
    assert line == text


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes do not match"),
        MemoryError(),
        ValueError("not enough values to unpack"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start"),
        OSError("an error of a library"),
        KeyError("step"),
    ],
)
def test_our_own_mistakes_keep_their_traceback(error):
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(type(error)):
            run_command("a.py", raising(error), [])
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_exit_inside_the_function_keeps_its_code(run_program):
    outcome = run_program("a.py", raising(SystemExit(2)))
    assert outcome.code == 2 and not outcome.error


def test_a_console_that_cannot_show_a_character_prints_a_question_mark(monkeypatch, run_program):
    console = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", console)

    def main(arguments):
        print("t\u00fcr \u2581")
        return 0

    assert run_program("a.py", main).code == 0
    console.flush()
    assert console.buffer.getvalue() == b"t?r ?\n"


# --- Signals --------------------------------------------------------------------------------------


@no_signals
def test_sigterm_ends_the_program_and_runs_its_clean_up(run_program):
    cleaned = []

    def main(arguments):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            return 0
        finally:
            cleaned.append(True)

    assert run_program("a.py", main).code == 128 + signal.SIGTERM and cleaned


@no_signals
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_becomes_a_number(number):
    before = signal.getsignal(number)
    with StopSignals() as stop:
        assert stop.number == 0
        os.kill(os.getpid(), number)
        assert stop.number == number
    assert signal.getsignal(number) == before


@no_signals
def test_a_second_stop_signal_of_the_same_kind_acts_at_once():
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_stop_signals_restore_the_handlers_after_an_error():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(ValueError), StopSignals():
        raise ValueError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


# --- Types of arguments ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1", "17", "007"])
def test_positive_int_reads_whole_numbers(text):
    assert positive_int(text) == int(text)


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "", "ten", "1e3", " 1", "\u00b2", "\u0661"])
def test_positive_int_refuses_everything_else(text):
    with pytest.raises(argparse.ArgumentTypeError, match="not a whole number above 0"):
        positive_int(text)


@pytest.mark.parametrize("text", [str(2**31), "1" + "0" * 30, "9" * 5_000])
def test_positive_int_refuses_numbers_that_are_too_large(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is above 2,147,483,647") as refused:
        positive_int(text)
    assert len(str(refused.value)) < 100


def test_positive_int_reads_the_largest_number():
    assert positive_int("0" * 5_000 + str(2**31 - 1)) == 2**31 - 1


@pytest.mark.parametrize("text, value", [("0", 0.0), ("0.1", 0.1), ("1e-3", 0.001)])
def test_fraction_reads_numbers_from_0_to_below_1(text, value):
    assert fraction(text) == value


@pytest.mark.parametrize("text", ["1", "-0.1", "nan", "inf", "1.5", "much"])
def test_fraction_refuses_other_texts(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number from 0 to below 1"):
        fraction(text)


def test_argparse_answers_a_text_that_is_no_fraction_in_one_line(capsys):
    parser = argparse.ArgumentParser()
    parser.add_argument("--share", type=fraction)
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(["--share", "much"])
    assert stop.value.code == 2 and "--share" in capsys.readouterr().err.splitlines()[-1]


# --- A program of its own -------------------------------------------------------------------------


def test_a_program_ends_with_one_line_and_its_exit_code():
    """The same without pytest around it."""
    code = (
        "from support.commands import run_command\n"
        "def main():\n"
        "    raise ValueError('no such corpus')\n"
        "run_command('a.py', main)\n"
    )
    program = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
    )
    assert (program.returncode, program.stdout) == (2, "")
    assert program.stderr == "a.py: no such corpus\n"


def test_a_program_whose_output_was_closed_before_its_start_still_runs(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit) as stop:
        run_command("program.py", lambda: 7)
    assert stop.value.code == 7


PRINT = """
import sys
from support.commands import run_command
def main():
    for line in range(100_000):
        print("line", line)
    return 0
run_command("a.py", main)
"""


def test_a_reader_of_the_output_that_ends_early_is_one_line():
    command = [sys.executable, "-c", PRINT]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout.readline() == "line 0\n"
        program.stdout.close()
        error = program.stderr.read()
    assert program.returncode == 2
    assert error == "a.py: stopped, because nobody reads the output any more\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a file that is always full")
@pytest.mark.parametrize("text", ["x", "x" * 100_000])
def test_an_output_on_a_full_disk_is_one_line(text):
    code = (
        "from support.commands import run_command\n"
        "def main():\n"
        f"    print({text!r})\n"
        "    return 0\n"
        "run_command('a.py', main)\n"
    )
    with open("/dev/full", "w") as full:
        program = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert program.returncode == 2
    assert program.stderr == "a.py: [Errno 28] No space left on device\n"


@no_signals
def test_a_program_that_ignores_ctrl_c_ignores_it_after_quiet_start(tmp_path):
    (tmp_path / "support").mkdir()
    shutil.copy(ROOT / "support" / "quiet_start.py", tmp_path / "support")
    path = tmp_path / "pretrain.py"
    path.write_text(
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "import support.quiet_start\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print('still running')\n"
    )
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "still running\n")


@no_signals
def test_run_command_leaves_an_ignored_ctrl_c_ignored():
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from support.commands import run_command\n"
        "run_command('a.py', lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    )
    program = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (program.returncode, program.stderr) == (0, "")


@no_signals
@pytest.mark.parametrize(
    "program, quiet",
    [
        ("project/pretrain.py", True),
        ("project/glue.py", True),
        ("project/model.py", True),
        ("project/lab/pairs.py", True),
        ("project/toy/__main__.py", True),
        ("project/course/__main__.py", True),
        ("project/course/figures.py", True),
        ("project/mine.py", False),
        ("mine.py", False),
    ],
)
def test_ctrl_c_during_the_imports_is_quiet_in_our_programs_only(tmp_path, program, quiet):
    # a copy of the project with this module alone
    project = tmp_path / "project"
    (project / "support").mkdir(parents=True)
    for folder in ("lab", "toy", "course"):
        (project / folder).mkdir()
    shutil.copy(ROOT / "support" / "quiet_start.py", project / "support")

    # a program of the project, or one of somebody else
    path = tmp_path / program
    path.write_text(
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(project)!r})\n"
        "import support.quiet_start\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "import time; time.sleep(5)\n"
    )
    ended = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGINT
    assert ("KeyboardInterrupt" in ended.stderr) == (not quiet)
    assert (ended.stderr == "") == quiet


@no_signals
def test_ctrl_c_after_the_imports_is_one_line():
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "from support.commands import run_command\n"
        "run_command('a.py', lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    )
    program = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert program.returncode == 130
    assert program.stderr == "a.py: interrupted; the files that were written are complete\n"
