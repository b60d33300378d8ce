"""Which jobs of fine-tuning are left, and which process does them.

A job is one task and one seed of one pre-trained model. Several processes may do the jobs of one
run: each job has a lock, and the process that does the job holds it. The lock of a killed process
is free at once, so another process continues its job from the last checkpoint.

    RUN/NAME/running-cola-seed42         the folder of the checkpoint, until the job is done
    RUN/NAME/running-cola-seed42.lock    held by the process that does the job
"""

import re
import shutil
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from support.commands import UserError
from support.files import remove_parts
from support.glue_results import check_settings, encoder_path, read_results, results_lock
from support.locks import InUse, lock

POLL_SECONDS = 1.0  # between two checks of the jobs of other processes


class Job(NamedTuple):
    """One task and one seed of one pre-trained model.

    out: the folder of its results.
    settings: all that the result depends on.
    cost: how much work it is, compared with other jobs: the length of the text that it reads.
    gives_encoder: whether other tasks start from the encoder that it makes.
    """

    out: Path
    settings: dict
    cost: int
    gives_encoder: bool = False

    @property
    def task(self):
        return self.settings["task"]

    @property
    def seed(self):
        return self.settings["seed"]

    @property
    def title(self):
        """Its name in messages: "none-seed0 rte seed 42"."""
        return f"{self.out.parent.name} {self.task} seed {self.seed}"

    @property
    def running(self):
        """The folder of its checkpoint while it is unfinished."""
        return self.out / f"running-{self.task}-seed{self.seed}"


def check_batch_size(task, batch_size, rows):
    """UserError if a batch that the user asks for (or None) is larger than the training data."""
    if batch_size is not None and batch_size > rows:
        raise UserError(
            f"--batch_size {batch_size:,} is above the {rows:,} training rows of {task}"
        )


def missing_jobs(jobs):
    """The jobs that are not done yet, in the same order.

    Raises UserError if there are results with other settings: another process has written them
    since these jobs were planned.
    """
    # the results of each folder are read once
    records = {}
    for job in jobs:
        if job.out not in records:
            records[job.out] = read_results(job.out)

    missing = []
    for job in jobs:
        check_settings(job.out, records[job.out], job.settings)
        if not is_done(job, records[job.out]):
            missing.append(job)
    return missing


def is_done(job, records):
    """Whether the result is there, and the encoder if other tasks start from it."""
    if (job.task, job.seed) not in records:
        return False
    return not job.gives_encoder or encoder_path(job.out, job.task, job.seed).is_file()


@contextmanager
def next_job(missing):
    """Give the `with` block a job that can be done now; no other process begins it meanwhile.

    It is the first job that no other process is doing. If this job starts from the encoder of
    another job, then the other job must be done. None if there is no such job.

    Args:
        missing: the jobs that are not done. If a job starts from the encoder of another job that is
            not done, then the other job must be in the list, too.
    """
    awaited = {(job.out, job.task, job.seed) for job in missing}
    with ExitStack() as stack:
        found = None
        for job in missing:
            if (job.out, job.settings["start"], job.seed) in awaited:
                continue
            try:
                stack.enter_context(lock(lock_path(job.running), job.title))
            except InUse:
                continue

            # it may have been done after `missing` was made
            if not missing_jobs([job]):
                stack.close()
                continue
            remove_parts(job.running)
            found = job
            break
        yield found


def lock_path(running):
    """The lock of a job, from the folder of its checkpoint."""
    return running.with_name(f"{running.name}.lock")


def waiting_line(missing):
    """The line about the jobs that other processes are doing. Locks of killed ones are removed."""
    doing = []
    for job in missing:
        path = lock_path(job.running)
        try:
            if path.exists():
                with lock(path, job.title):
                    pass  # the lock of a killed process
        except InUse as error:
            doing.append(str(error))
    text = ", ".join(doing) or "another process has just ended"
    return f"waiting, {len(missing)} jobs are not done: {text}"


def prepare_folder(out, encoder_tasks):
    """Make the folder of the results, and remove what killed processes have left there.

    The checkpoint of an unfinished job is kept, even if this command does not need the job: another
    command can continue it.

    Args:
        out: the folder.
        encoder_tasks: names of the tasks from whose encoders others start.
    """
    # Taking the lock makes a file, so a folder without write permission shows before any work.
    out.mkdir(exist_ok=True)
    with results_lock(out):
        remove_parts(out)
        records = read_results(out)

    for path in sorted(out.glob("running-*")):
        # running-sts-b-seed42, or its lock
        match = re.fullmatch(r"running-(.+)-seed([0-9]+)(\.lock)?", path.name)
        if match is None:
            continue
        task, seed = match[1], int(match[2])
        job = Job(out, {"task": task, "seed": seed}, 0, task in encoder_tasks)
        running = job.running

        # what another process is doing now is left alone
        with suppress(InUse), lock(lock_path(running), job.title):
            remove_parts(running)
            if is_done(job, records) or is_empty(running):
                shutil.rmtree(running, ignore_errors=True)


def is_empty(folder):
    """Whether a folder is there and holds nothing."""
    return folder.is_dir() and not any(folder.iterdir())
