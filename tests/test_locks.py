"""support/locks.py: one process at a time, and nothing left by a killed one."""

import os
import signal
import subprocess
import sys

import pytest

from conftest import ROOT
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


def test_of_three_processes_one_at_a_time_is_in_the_block(tmp_path):
    (tmp_path / "counter").write_text("0")
    processes = [start(COUNT, tmp_path) for _ in range(3)]
    for process in processes:
        assert process.wait(60) == 0
        process.stdout.close()
    assert (tmp_path / "counter").read_text() == "300"
