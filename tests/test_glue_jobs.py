"""support/glue_jobs.py: jobs are shared between processes, and what a kill leaves is removed."""

import subprocess
import sys

import pytest

from conftest import ROOT
from glue_helpers import error_of
from support.glue_jobs import (
    Job,
    check_batch_size,
    lock_path,
    missing_jobs,
    next_job,
    prepare_folder,
    waiting_line,
)
from support.glue_results import add_result, encoder_path


def job(out, task, seed=42, start=None):
    settings = {"task": task, "seed": seed, "start": start}
    return Job(out, settings, 1, gives_encoder=task == "mnli")


def add_record(out, task, seed=42, **settings):
    """Add a finished run."""
    splits = ["dev_matched", "dev_mismatched"] if task == "mnli" else ["dev"]
    result = {
        "score": 1.0,
        "scores": {split: {"score": 1.0} for split in splits},
        "constant_prediction": False,
        "partial": False,
    }
    settings = {"task": task, "seed": seed, "start": None, **settings}
    add_result(out, {"task": task, "seed": seed, "result": result, "settings": settings})


HOLD = """
import sys, time
from pathlib import Path
from support.locks import lock
with lock(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def hold():
    """hold(job): another process that does this job, until it is killed."""
    processes = []

    def start(held):
        command = [sys.executable, "-c", HOLD, str(lock_path(held.running))]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def taken(missing):
    """The job that `next_job` gives."""
    with next_job(missing) as found:
        return found


# --- What is missing ------------------------------------------------------------------------------


def test_a_job_is_done_if_its_result_is_there_and_the_encoder_that_others_need(tmp_path):
    jobs = [job(tmp_path, "mnli"), job(tmp_path, "rte", start="mnli"), job(tmp_path, "cola")]
    assert missing_jobs(jobs) == jobs
    add_record(tmp_path, "mnli")
    add_record(tmp_path, "cola")
    assert missing_jobs(jobs) == jobs[:2]
    encoder_path(tmp_path, "mnli", 42).touch()
    assert missing_jobs(jobs) == jobs[1:2]


def test_results_that_appear_with_other_settings_are_refused(tmp_path):
    jobs = [job(tmp_path, "rte", start="mnli")]
    add_record(tmp_path, "rte", seed=97, start=None)
    message = error_of(missing_jobs, jobs)
    assert "has rte, seed 97, with other settings (start is None there and mnli here)" in message


# --- Who does what --------------------------------------------------------------------------------


def test_the_first_job_that_nobody_does_is_given(tmp_path, hold):
    first, second = job(tmp_path, "cola"), job(tmp_path, "rte")
    assert taken([first, second]) == first
    hold(first)
    assert taken([first, second]) == second
    hold(second)
    assert taken([first, second]) is None


def test_while_a_job_is_done_its_lock_is_held(tmp_path):
    first, second = job(tmp_path, "cola"), job(tmp_path, "rte")
    with next_job([first, second]) as one, next_job([first, second]) as other:
        assert (one, other) == (first, second)
    assert not list(tmp_path.iterdir())


def test_a_job_waits_for_the_encoder_of_its_own_run_and_seed(tmp_path):
    rte = job(tmp_path, "rte", start="mnli")
    assert taken([rte, job(tmp_path, "mnli")]) == job(tmp_path, "mnli")
    assert taken([rte, job(tmp_path, "mnli", seed=97)]) == rte
    other = tmp_path / "other"
    other.mkdir()
    assert taken([rte, job(other, "mnli")]) == rte


def test_a_job_that_was_done_meanwhile_is_not_given(tmp_path):
    missing = [job(tmp_path, "cola"), job(tmp_path, "rte")]
    add_record(tmp_path, "cola")
    assert taken(missing) == missing[1]
    add_record(tmp_path, "rte")
    assert taken(missing) is None


def test_the_job_of_a_killed_process_is_given_at_once_without_its_half_written_files(
    tmp_path, hold
):
    cola = job(tmp_path, "cola")
    process = hold(cola)
    cola.running.mkdir()
    (cola.running / "train_state.pt").touch()
    (cola.running / "train_state.pt.77.part").touch()
    assert taken([cola]) is None
    process.kill()
    process.wait()
    assert taken([cola]) == cola
    assert [path.name for path in cola.running.iterdir()] == ["train_state.pt"]


def test_the_line_of_a_waiting_process_names_who_does_what(tmp_path, hold):
    out = tmp_path / "none-seed0" / "glue"
    out.mkdir(parents=True)
    jobs = [job(out, "cola"), job(out, "sst-2"), job(out, "rte")]
    process = hold(jobs[1])
    lock_path(jobs[2].running).touch()  # of a killed process
    line = waiting_line(jobs)
    assert "waiting, 3 jobs are not done: none-seed0 sst-2 seed 42 is in use by" in line
    assert f"process {process.pid} on " in line
    assert "cola" not in line and "rte" not in line and "\n" not in line


# --- What a kill leaves ---------------------------------------------------------------------------


def test_leftovers_of_finished_jobs_are_removed_and_what_can_be_continued_is_kept(tmp_path, hold):
    out = tmp_path / "glue"
    prepare_folder(out, {"mnli"})
    assert not list(out.iterdir())

    # cola and mnli are done, but the encoder of mnli is missing; rte was stopped; sst-2 is running
    done, stopped, running = job(out, "cola"), job(out, "rte"), job(out, "sst-2")
    without_encoder, never_begun = job(out, "mnli"), job(out, "qqp")
    add_record(out, "cola")
    add_record(out, "sst-2")
    add_record(out, "mnli")
    for each in (done, stopped, running, without_encoder, never_begun):
        each.running.mkdir()
        if each != never_begun:
            (each.running / "train_state.pt").touch()
        (each.running / "train_state.pt.77.part").touch()
    hold(running)
    lock_path(stopped.running).touch()
    for name in ("best-cola.pt.77.part", "best-cola.pt", "running-mine", "running-x-seedy.lock"):
        (out / name).touch()

    prepare_folder(out, {"mnli"})
    found = {path.relative_to(out).as_posix() for path in out.rglob("*")}
    assert found == {
        "results.jsonl",
        "best-cola.pt",
        "running-mine",
        "running-x-seedy.lock",
        "running-mnli-seed42",
        "running-mnli-seed42/train_state.pt",
        "running-rte-seed42",
        "running-rte-seed42/train_state.pt",
        "running-sst-2-seed42",
        "running-sst-2-seed42.lock",
        "running-sst-2-seed42/train_state.pt",
        "running-sst-2-seed42/train_state.pt.77.part",
    }


def test_files_that_another_process_is_writing_are_left_alone(tmp_path, hold):
    """It holds the lock of the results while it writes them."""
    part = tmp_path / "best-cola.pt.77.part"
    part.touch()
    code = HOLD.replace("time.sleep(60)", "time.sleep(0.3); Path(sys.argv[2]).rename(sys.argv[3])")
    command = [sys.executable, "-c", code, tmp_path / "results.lock", part, tmp_path / "kept"]
    with subprocess.Popen(
        [str(word) for word in command], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        prepare_folder(tmp_path, set())
        assert process.wait(10) == 0
    assert (tmp_path / "kept").exists()


def test_a_lock_of_the_results_is_gone_afterwards(tmp_path):
    prepare_folder(tmp_path, set())
    assert not list(tmp_path.iterdir())


def test_a_batch_that_is_larger_than_the_training_data_is_refused():
    check_batch_size("wnli", None, 10)
    check_batch_size("wnli", 10, 10)
    with pytest.raises(ValueError, match="2,000,000,000 is above the 10 training rows of wnli"):
        check_batch_size("wnli", 2_000_000_000, 10)
