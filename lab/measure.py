"""Measure a piece of code: seconds, memory, FLOPs."""

import math
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from support.devices import synchronize
from support.memory import is_out_of_memory, process_memory, reset_peak

MIB = 2**20  # bytes

# --- Time -----------------------------------------------------------------------------------------


def seconds(run, device):
    """Call run(), and return how many seconds it took."""
    synchronize(device)
    started = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - started


def take_turns(runs, device, rounds):
    """Measure functions in turn: every round calls each of them once.

    Args:
        runs: {name: function without arguments}.
    Returns:
        {name: [seconds in each round]}
    """
    times = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            times[name].append(seconds(run, device))
    return times


def median_ratio(times, reference):
    """The median over the rounds of time / time of the reference in the same round.

    If a machine is busy during a whole round, all its times are longer and their ratios stay equal.
    """
    ratios = [mine / other for mine, other in zip(times, reference, strict=True)]
    return statistics.median(ratios)


# --- Memory ---------------------------------------------------------------------------------------


def peak_increase(run, device):
    """Call run(). Returns (its result, how many MiB more than before it used at its peak).

    On CUDA this is the memory of tensors, without what torch keeps for later and the CUDA context.
    The peak is nan if the system does not say it.
    """
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        result = run()
        return result, (torch.cuda.max_memory_allocated(device) - before) / MIB

    if not reset_peak():
        return run(), math.nan
    before = process_memory("VmRSS")
    result = run()
    return result, (process_memory("VmHWM") - before) / MIB


def peak_of_process(device):
    """The most MiB that this process has held on the device since it started; nan if unknown.

    On CUDA as in `peak_increase`.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    if device.type != "cpu":
        return math.nan  # torch does not say it

    # On Linux, `resource` (below) would include the memory of the parent process.
    if Path("/proc/self/status").exists():
        return process_memory("VmHWM") / MIB

    try:
        import resource  # Windows does not have it
    except ImportError:
        return math.nan
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB  # macOS counts bytes


def in_new_process(function, *arguments):
    """function(*arguments), a number, computed in a fresh process: nothing else uses its memory.

    Returns nan if the memory is full: the system kills the process, or torch gets no more memory.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            return math.nan
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return math.nan


# --- FLOPs ----------------------------------------------------------------------------------------


def convolution_backward_flops(gradient, x, weight, *rest, **options):
    """FLOPs of the gradients of a convolution: of x and of the weight, each as many as forward.

    Each number of the output is a sum of (input channels of a group) * (kernel size) products,
    2 FLOPs each. torch's own formula counts a depthwise convolution as if every output channel
    used all C input channels: C times too many for the gradient of the weight.

    Args:
        gradient: shape of the gradient of the output.
        x: shape of the input.
        weight: shape (output channels, input channels of a group, kernel size ...).
    """
    forward = 2 * math.prod(gradient) * math.prod(weight[1:])
    return 2 * forward


CORRECTED_FLOPS = {torch.ops.aten.convolution_backward: convolution_backward_flops}


def count_flops(run):
    """The number of floating-point operations of run(): matrix products and convolutions."""
    with FlopCounterMode(display=False, custom_mapping=CORRECTED_FLOPS) as counter:
        run()
    return counter.get_total_flops()
