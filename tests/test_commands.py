"""support/commands.py: a user's mistake is one line, a programmer's mistake keeps its traceback."""

import os
import signal

import pytest

from support.commands import StopSignals, UserError, run_command


def raising(error):
    """A main() that raises the error."""

    def main(arguments=None):
        raise error

    return main


@pytest.mark.parametrize(
    "error", [UserError("--lr must be above 0"), FileNotFoundError(2, "No such file", "x.txt")]
)
def test_a_mistake_of_the_user_is_one_line(run_program, error):
    outcome = run_program(raising(error))
    assert outcome == (1, "", f"error: {error}\n")


@pytest.mark.parametrize(
    "error", [ValueError("not enough values to unpack"), OSError("of a library"), KeyError("step")]
)
def test_a_mistake_in_the_code_keeps_its_traceback(error):
    with pytest.raises(type(error)) as caught:
        run_command(raising(error))
    assert caught.traceback[-1].name == "main"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send")
def test_the_first_stop_signal_is_remembered_and_the_second_one_acts_at_once():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), StopSignals() as stop:
        assert stop.number == 0
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.number == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.signal(signal.SIGINT, before) == signal.default_int_handler
