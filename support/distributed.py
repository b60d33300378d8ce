"""Several processes that work together, as torchrun starts them.

    torchrun --standalone --nproc_per_node 2 pretrain.py --variant composite

torchrun starts the command twice and gives each process a number, its rank: 0 and 1. The process of
rank 0 is the first one. It writes the files and prints.

    first process    its checks, let_others_begin() ... together ... the end
    other processes  wait for let_others_begin(), then run the same code without printing

So an error in the command line is reported only once, and a text is prepared by only one process.
Without torchrun there is one process. Then all functions here return immediately, and
torch.distributed is not used. docs/distributed.md describes how the processes share a step.
"""

import itertools
import math
import os
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from datetime import timedelta

import torch
from torch import distributed
from tqdm import tqdm

from support.commands import TrainingFailed
from support.memory import is_out_of_memory

TIMEOUT = timedelta(minutes=10)  # a process that waits longer for the others ends the run
POLL_SECONDS = 0.1  # between two checks whether the first process has called let_others_begin()

# What the processes write into the store, a table of short texts that all of them can read.
OTHERS = "others"  # what the other processes do: RUN, or END without having begun
RUN, END = b"run", b"end"
FAILURES = "failures"  # how many processes have failed

_store = None  # the store, while several processes work together


# --- Which process this is ------------------------------------------------------------------------


def rank():
    """The number of this process, from 0."""
    if _store is None:
        return 0
    return distributed.get_rank()


def process_count():
    """The number of processes, on all machines."""
    if _store is None:
        return 1
    return distributed.get_world_size()


def rows_at_once(rows, micro_batch=None):
    """How many rows of a batch a process computes at once, at most.

    Args:
        rows: of the batch, which is divided among the processes.
        micro_batch: rows at once, at most; None for no limit.
    """
    own_rows = math.ceil(rows / process_count())
    return min(own_rows, micro_batch or own_rows)


def is_first():
    """Whether this process is the one that writes and prints."""
    return rank() == 0


def local_rank():
    """The number of this process among those of its machine, from 0."""
    if _store is None:
        return 0
    return int(os.environ["LOCAL_RANK"])


def local_count():
    """The number of processes on this machine."""
    if _store is None:
        return 1
    return int(os.environ["LOCAL_WORLD_SIZE"])


# --- From start to end ----------------------------------------------------------------------------


def run_together(function, *arguments):
    """Call function(*arguments) in each process that torchrun has started.

    The other processes begin when the first process has called `let_others_begin`. If the first
    process ends before that, they do not begin. If a process fails, its error is raised in that
    process. The others lose the connection to it, so they fail, too, but without a message.

    Returns:
        What the function returns; 0 in a process that did not begin.
    Raises:
        TrainingFailed: another process has ended, and has not said why.
    """
    started_by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    if not started_by_torchrun or os.environ["WORLD_SIZE"] == "1":
        return function(*arguments)

    connect()
    try:
        if is_first():
            result = run_first(function, *arguments)
        else:
            result = run_after_first(function, *arguments)
    except Exception as error:
        # When a process has ended, torchrun sends SIGTERM to the others. Ignore it, so that this
        # process can still report its error.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

        # Only the first process that fails says why.
        if not is_first_failure():
            sys.exit(1)
        if is_lost_connection(error):
            reason = str(error).partition("\n")[0][:200]
            raise TrainingFailed(
                "another process of this run has ended, or cannot be reached: so all end; the same "
                f"command continues from the last checkpoint ({reason})"
            ) from error
        raise
    disconnect()
    return result


def connect():
    """Connect the processes, with NCCL for tensors on GPUs and gloo for tensors on CPUs."""
    global _store
    backend = "gloo"
    if torch.cuda.is_available() and distributed.is_nccl_available():  # not on Windows
        backend = "cpu:gloo,cuda:nccl"

    # torchrun says in environment variables where the store is
    store, number, count = next(distributed.rendezvous("env://", timeout=TIMEOUT))
    distributed.init_process_group(
        backend, store=store, rank=number, world_size=count, timeout=TIMEOUT
    )
    _store = store


def disconnect():
    """End the connection."""
    global _store
    distributed.destroy_process_group()
    _store = None


def run_first(function, *arguments):
    """Call the function in the first process."""
    try:
        result = function(*arguments)
        sys.stdout.flush()
        return result
    finally:
        # It may end before let_others_begin(), for example after --help: then the others end, too.
        # If the store has ended, so have the others, and an error of `function` is what counts.
        with suppress(RuntimeError):
            if not _store.check([OTHERS]):
                _store.set(OTHERS, END)


def run_after_first(function, *arguments):
    """Call the function in another process, after the first one has called `let_others_begin`."""
    # a loop, and not one long call, so that a signal ends it
    while not _store.check([OTHERS]):
        time.sleep(POLL_SECONDS)
    if _store.get(OTHERS) == END:
        return 0

    # what it prints is lost, and it has no terminal, so it shows no progress bars
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        return function(*arguments)


def let_others_begin():
    """Let the other processes begin: the first process has checked everything."""
    if _store is not None and is_first():
        _store.set(OTHERS, RUN)


def is_first_failure():
    """Whether no other process has failed before this one."""
    try:
        return _store.add(FAILURES, 1) == 1
    except RuntimeError:  # torchrun has ended, and the store with it
        return True


def is_lost_connection(error):
    """Whether an error says that another process cannot be reached."""
    if not isinstance(error, RuntimeError) or is_out_of_memory(error):
        return False
    text = str(error).lower()
    return isinstance(error, distributed.DistError) or "gloo" in text or "nccl" in text


def print_from_any(line):
    """Print a line from this process, even if it is not the first one."""
    if is_first():
        tqdm.write(line)
        return

    # the first process may have drawn a bar into this line of the terminal: delete it
    output = sys.__stdout__
    if output.isatty():
        line = "\r\033[K" + line
    print(line, file=output, flush=True)


# --- What the processes give to each other --------------------------------------------------------


def wait_for_all():
    """Wait until all processes have called this."""
    max_over_processes(0)


def max_over_processes(number):
    """The largest of the numbers (integers) that the processes give."""
    if _store is None:
        return number
    number = torch.tensor(number)
    distributed.all_reduce(number, distributed.ReduceOp.MAX)
    return int(number)


def sum_over_processes(numbers):
    """The sums of the numbers that the processes give: a list, one sum for each of the numbers."""
    if _store is None:
        return numbers
    numbers = torch.tensor(numbers, dtype=torch.float64)
    distributed.all_reduce(numbers)
    return numbers.tolist()


def value_of_first(value):
    """The value that the first process gives, such as a number or a list of texts."""
    if _store is None:
        return value
    values = [value]
    distributed.broadcast_object_list(values)
    return values[0]


def own_share(values):
    """The values that this process works on: with two processes, every second one."""
    return itertools.islice(values, rank(), None, process_count())
