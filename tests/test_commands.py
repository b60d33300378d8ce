"""support/commands.py: a user's mistake is one line, a programmer's mistake keeps its traceback."""

import os
import signal

import pytest

from conftest import needs_signals
from support import runs
from support.commands import StopSignals, UserError, run_command
from support.devices import is_of_torchrun


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


def test_the_digest_of_code_is_the_same_in_every_python_and_without_comments(tmp_path, monkeypatch):
    """That of Python 3.11 to 3.13: an f-string, a generic function, a match, a decorator."""
    code = """
@cache
def f(x: int = 1, /, *rest, y=2.5, **more) -> str:
    "A docstring."
    match x:
        case [1, *_]:
            return f"{x!r:>8} and {more['a']}"
    return b"bytes" if rest else [i async for i in rest]  # a comment
"""
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    for text in (code, code.replace("A docstring.", "Another.").replace("  # a comment", "")):
        (tmp_path / "a.py").write_text(text)
        assert runs.code_digests(runs.read_code("a.py")) == {"a.py": "afdf7cb153b0"}
    (tmp_path / "a.py").write_text(code.replace("2.5", "2.6"))
    assert runs.code_digests(runs.read_code("a.py")) != {"a.py": "afdf7cb153b0"}


@needs_signals
def test_the_first_stop_signal_is_remembered_and_the_second_one_acts_at_once():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), StopSignals() as stop:
        assert stop.number == 0
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.number == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.signal(signal.SIGINT, before) == signal.default_int_handler


def test_rank_alone_in_the_environment_is_a_mistake_of_the_user(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UserError, match="WORLD_SIZE"):
        is_of_torchrun()
