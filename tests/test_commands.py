"""support/commands.py: exit codes, errors as one line, signals, and types of arguments."""

import argparse
import os
import signal

import pytest

from support.commands import (
    TrainingFailed,
    UserError,
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

    assert run_program(main, "one", 2) == (code, "one 2\n", "")


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
    outcome = run_program(raising(error))
    assert outcome.code == code and not outcome.out
    assert outcome.error.startswith("a.py: ") and words in outcome.error
    assert outcome.error.count("\n") == 1


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


# --- Signals --------------------------------------------------------------------------------------


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


# --- Types of arguments ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1", "17", "007"])
def test_positive_int_reads_whole_numbers(text):
    assert positive_int(text) == int(text)


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "", "ten", "1e3", " 1", "\u00b2", "\u0661"])
def test_positive_int_refuses_everything_else(text):
    with pytest.raises(argparse.ArgumentTypeError, match="not a whole number above 0"):
        positive_int(text)
