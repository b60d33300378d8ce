"""How far a command with many jobs is, and how long it will still take."""

import time

from tqdm import tqdm

PROGRESS_EVERY = 30  # seconds between two lines where there is no terminal


class Progress:
    """How far a command is, and how long it will still take.

    In a terminal it is a bar, otherwise a line every PROGRESS_EVERY seconds. Jobs take very
    different times, so each one counts as much as it costs (Job.cost).

    Args:
        missing: the jobs to be done, list of Job (support/glue_jobs.py).
        total: the number of all jobs, those included that were done before.
    """

    def __init__(self, missing, total):
        self.total = total
        self.worked = 0.0  # the cost of all steps since the start
        self.update(missing)
        self.name = ""  # of the job that is running
        self.step_cost = 0.0

        # the bar shows nothing if there is no terminal; smoothing 0: the speed since the start
        self.started = time.perf_counter()
        self.printed = self.started
        self.bar = tqdm(
            total=self.left,
            bar_format="{percentage:3.0f}% |{bar:20}| {elapsed}<{remaining}  {desc}",
            smoothing=0,
            leave=False,
            disable=None,
            dynamic_ncols=True,
        )

    def update(self, missing):
        """Count the jobs that are missing now. Other processes may have done some of them."""
        self.done = self.total - len(missing)
        self.left = float(sum(job.cost for job in missing))  # the cost of all steps to come

    def begin(self, job, step):
        """A job begins, or continues from the step of its checkpoint."""
        self.name = job.title
        self.step_cost = job.cost / job.settings["steps"]
        self.left -= step * self.step_cost

    def wait(self, seconds):
        """Sleep. This time does not count as work."""
        time.sleep(seconds)
        self.started += seconds
        if not self.bar.disable:
            self.bar.start_t += seconds

    def advance(self, trainer):
        """A step was done."""
        self.worked += self.step_cost
        self.left = max(0.0, self.left - self.step_cost)  # never below 0 by rounding

        # a bar draws itself ten times per second at most
        if not self.bar.disable:
            self.bar.total = self.worked + self.left
            self.bar.set_description_str(self.line(trainer), refresh=False)
            self.bar.update(self.step_cost)
            return

        # without a terminal
        now = time.perf_counter()
        if now - self.printed >= PROGRESS_EVERY:
            self.printed = now
            seconds = (now - self.started) / self.worked * self.left
            print(f"{self.line(trainer)}, ETA {tqdm.format_interval(seconds)}", flush=True)

    def line(self, trainer):
        """What is being done: "none-seed0 rte seed 42: step 300 of 770; all: 7 of 45 done"."""
        steps = trainer.settings["steps"]
        return (
            f"{self.name}: step {trainer.step:,} of {steps:,}{last_loss(trainer)}; "
            f"all: {self.done} of {self.total} done"
        )


def last_loss(trainer):
    """The training loss in the last line of the log as text: ", loss 0.312"."""
    if "loss" not in trainer.records[-1]:
        return ""
    return f", loss {trainer.records[-1]['loss']:.3f}"
