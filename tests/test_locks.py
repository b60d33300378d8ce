"""support/locks.py: one process at a time, and nothing left by a killed one."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from conftest import ROOT
from support import locks
from support.commands import UserError
from support.locks import InUse, lock

needs_kill = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")

HOLD = """
import sys, time
from support.locks import lock
with lock(sys.argv[1], "it"):
    print("held", flush=True)
    time.sleep(60)
"""

COUNT = """
import sys
from pathlib import Path
from support import locks
locks.POLL_SECONDS = 0.001
counter = Path(sys.argv[1], "counter")
for _ in range(100):
    with locks.lock(Path(sys.argv[1], "counter.lock"), "it", wait=True):
        counter.write_text(str(int(counter.read_text()) + 1))
"""


def start(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_another_process_is_refused_in_one_line_that_names_the_owner(tmp_path):
    path = tmp_path / "run.lock"
    with start(HOLD, path) as other:
        assert other.stdout.readline() == "held\n"
        refusal = f"^RUN is in use by process {other.pid} on "
        with pytest.raises(InUse, match=refusal), lock(path, "RUN"):
            pytest.fail("two processes hold the lock")
        with pytest.raises(InUse, match="; come back$"), lock(path, "RUN", advice="come back"):
            pytest.fail("two processes hold the lock")
        other.kill()


@needs_kill
def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path):
    path = tmp_path / "run.lock"
    with start(HOLD, path) as other:
        assert other.stdout.readline() == "held\n"
        other.send_signal(signal.SIGKILL)
        other.wait()
    with lock(path, "RUN"):
        assert str(os.getpid()) in path.read_text()


def test_a_lock_leaves_no_file(tmp_path):
    with lock(tmp_path / "run.lock", "RUN"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_lock_is_free_after_an_error(tmp_path):
    path = tmp_path / "run.lock"
    with pytest.raises(KeyError), lock(path, "RUN"):
        raise KeyError
    with lock(path, "RUN"):
        pass


def test_the_same_process_cannot_take_a_lock_twice(tmp_path):
    path = tmp_path / "run.lock"
    with lock(path, "RUN"), pytest.raises(InUse), lock(path, "RUN"):
        pytest.fail("the lock was taken twice")


def test_of_three_processes_one_at_a_time_is_in_the_block(tmp_path):
    (tmp_path / "counter").write_text("0")
    processes = [start(COUNT, tmp_path) for _ in range(3)]
    for process in processes:
        assert process.wait(60) == 0
        process.stdout.close()
    assert (tmp_path / "counter").read_text() == "300"


def test_waiting_ends_when_the_lock_is_free(tmp_path):
    path = tmp_path / "run.lock"
    leaving = tmp_path / "leaving"
    code = HOLD.replace("time.sleep(60)", "time.sleep(0.3); open(sys.argv[2], 'w').close()")
    with start(code, path, leaving) as other:
        assert other.stdout.readline() == "held\n"
        with lock(path, "RUN", wait=True):
            assert leaving.exists()  # the other process has come to the end of its block
            other.wait(10)
    assert other.returncode == 0


def test_a_file_of_another_program_is_not_taken_for_a_lock(tmp_path):
    path = tmp_path / "poetry.lock"
    path.write_text("name = 'torch'\n")
    with pytest.raises(ValueError, match="is not a lock of this project"), lock(path, "RUN"):
        pytest.fail("the file of another program was locked")
    assert path.read_text() == "name = 'torch'\n"


@needs_kill
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_named_and_the_block_runs(
    tmp_path, monkeypatch, capsys, number
):
    def refuse(file, operation):
        raise OSError(number, "no locks")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with lock(tmp_path / "run.lock", "RUN"):
        error = capsys.readouterr().err
    assert error.count("\n") == 1 and "this file system has no locks" in error

    # once for each folder
    with lock(tmp_path / "other.lock", "RUN"):
        assert capsys.readouterr().err == ""
    (tmp_path / "another").mkdir()
    with lock(tmp_path / "another" / "run.lock", "RUN"):
        assert "this file system has no locks" in capsys.readouterr().err


@needs_kill
def test_any_other_error_of_a_lock_names_its_file(tmp_path, monkeypatch):
    def fail(file, operation):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(locks.fcntl, "flock", fail)
    message = r"cannot lock .*run\.lock \(input/output error\)"
    with pytest.raises(UserError, match=message), lock(tmp_path / "run.lock", "RUN"):
        pytest.fail("the block runs without its lock")


def test_on_windows_a_lock_does_not_need_the_number_of_its_file(tmp_path, monkeypatch):
    """Some network drives give a file another number at each look."""
    monkeypatch.setattr(os.path, "samestat", lambda one, other: False)
    monkeypatch.setattr(os, "name", "nt")
    assert locks.is_file_at(0, tmp_path / "run.lock")


def test_a_lock_that_cannot_be_opened_is_one_line_that_says_what_to_do(tmp_path):
    (tmp_path / "run.lock").mkdir()
    message = r"cannot lock .*run\.lock \(.*\): if no other process works there, delete it"
    with pytest.raises(UserError, match=message), lock(tmp_path / "run.lock", "RUN"):
        pytest.fail("a folder was locked")
