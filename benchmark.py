"""What a training step costs: time, real tokens, memory, and how they grow with the length of the sequences.

    python pretrain.py --benchmark --variant all --size small     whole steps of every variant, beside `absolute`
    python pretrain.py --benchmark --lengths                      one mixer of five variants, for 64 to 8192 tokens

pretrain.py reads the command line and calls this. The variants take turns on the same input and what is printed are
medians, so that the ratios hold on a busy machine. kernels.py times attention by itself.
"""

import functools
import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm

import kernels
from attention import make_mixer
from data import SPECIAL, prepare_corpus
from model import BertConfig, BertForMaskedLM

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)  # tokens in a sequence; as many sequences as make 8192 tokens
LENGTH_VARIANTS = ("none", "composite", "lightconv", "dynamicconv", "dilated")


class FullBatches:
    """Batches with a token at every position, drawn at random: the most work that a step of this shape can be."""

    def __init__(self, vocab_size, seq_len):
        self.vocab_size, self.seq_len = vocab_size, seq_len

    def batch(self, seed, step, batch_size):
        draw = np.random.default_rng([seed, step])
        return torch.from_numpy(draw.integers(len(SPECIAL), self.vocab_size, (batch_size, self.seq_len)))  # (B, N)


def whole_peak(device):
    """MiB that the GPU or this process has held at its highest since it began; nan where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2 ** 20
    if Path("/proc/self/status").exists():  # Linux, where the other way tells of the parent process too
        return kernels.memory_now("VmHWM")
    try:
        import resource  # not on Windows
    except ImportError:
        return float("nan")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2 ** 20


def in_a_new_process(function, *arguments):
    """The number function(*arguments), run where nothing else has used any memory; nan where that process is killed."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        try:
            return fresh.submit(function, *arguments).result()
        except BrokenProcessPool:  # most likely for want of memory
            return math.nan


# --- Whole steps ------------------------------------------------------------------------------------------------------


def steps_peak(make_run, name, vocab_size, seq_len, device):
    """MiB at the most while three whole steps are trained."""
    run = make_run(name, FullBatches(vocab_size, seq_len))
    for _ in range(3):
        run.train_step()
    run.collect(0.0)
    return whole_peak(device)


def time_steps(runs, rounds):
    """(seconds, real tokens) of every step of every run, the runs taking turns: two dicts of lists."""
    times, tokens = {key: [] for key in runs}, {key: [] for key in runs}
    for _ in tqdm(range(rounds), desc="rounds", disable=None):
        for key, run in runs.items():
            run.interval["tokens"], start = 0, time.perf_counter()
            run.train_step()
            run.collect(0.0)  # waits for the device
            times[key].append(time.perf_counter() - start)
            tokens[key].append(run.interval["tokens"])
    return times, tokens


def benchmark_steps(names, make_run, corpus, batch_size, seq_len, device, rounds=8):
    """Print what a whole training step of each variant costs: on batches without padding, and on those of the corpus.

    make_run(name, batches) is a pretrain.Run of the variant `name`, ready to train; names[0] is what others are
    compared with.
    """
    runs, first = {}, {}
    for name in names:
        for kind, batches in (("full", FullBatches(corpus.vocab_size, seq_len)), ("text", corpus)):
            start, run = time.perf_counter(), make_run(name, batches)
            run.train_step()
            run.collect(0.0)
            first[name, kind], runs[name, kind] = time.perf_counter() - start, run
            run.meet_widths(rounds)
    times, tokens = time_steps(runs, rounds)
    peaks = {name: in_a_new_process(steps_peak, make_run, name, corpus.vocab_size, seq_len, device) for name in names}
    to = "x " + names[0]  # times, as ratios
    print(f"\n{'':<20} {'full rows':>10} {to:>12} {'corpus':>14} {to:>12} {'first step':>11} {'peak':>10}")
    for name in names:
        ratios = [np.median(np.divide(times[name, kind], times[names[0], kind])) for kind in ("full", "text")]
        speed = np.median(np.divide(tokens[name, "text"], times[name, "text"]))
        print(f"{name:<20} {1000 * np.median(times[name, 'full']):>7,.0f} ms {ratios[0]:>12.2f} {speed:>7,.0f} tok/s "
              f"{ratios[1]:>12.2f} {first[name, 'full']:>9.1f} s {peaks[name]:>6,.0f} MiB")
    real = np.mean(tokens[names[0], "text"])
    start = time.perf_counter()
    for step in range(1, rounds + 1):
        corpus.batch(0, step, batch_size)
    waiting = (time.perf_counter() - start) / sum(times[names[0], "text"])
    padded = real / np.median(times[names[0], "full"])
    print(f"{rounds} rounds; medians; x {names[0]}: the time of a step over that of {names[0]} on the same batch. "
          f"Full rows: {batch_size} x {seq_len} tokens, of which a batch of the corpus fills "
          f"{real:,.0f}: padded to them, {names[0]} would train on {padded:,.0f} real tokens/s. "
          f"Making a batch takes {100 * waiting:.2f} % of a step")


# --- Cost against length ----------------------------------------------------------------------------------------------


def convolution_backward_flops(gradient, x, weight, *rest, **more):
    """FLOPs of both gradients of a convolution, from shapes: as many each as the forward's.

    torch's own formula takes the gradient of a depthwise convolution's weights for a dense one's, C times as many.
    """
    return 2 * 2 * math.prod(gradient) * math.prod(weight[1:])


FLOPS = {torch.ops.aten.convolution_backward: convolution_backward_flops}


def forward_backward(mixer, x, padding_mask, precision):
    """Loss and all gradients of one mixer. x (B, N, C), padding_mask (B, N)"""
    with precision:
        y = mixer(x, padding_mask)  # (B, N, C)
    y.float().square().mean().backward()
    x.grad = None
    mixer.zero_grad()


def model_peak(config, length, precision, device):
    """MiB at the most in forward and backward of a whole model, of one sequence."""
    torch.manual_seed(0)
    model = BertForMaskedLM(config).to(device)
    ids = FullBatches(config.vocab_size, length).batch(0, 0, 1).to(device)  # (1, N)
    with precision:
        loss = model.loss(ids, ids.where(torch.rand(ids.shape, device=device) < 0.15, -100))
    loss.backward()
    return whole_peak(device)


def benchmark_lengths(names, size, device, precision, lengths=LENGTHS, rounds=5, **settings):
    """Print time, FLOPs and memory of one mixer, forward and backward, and a whole model's memory, for each length.

    settings are further fields of BertConfig. Hybrids have two kinds of mixers: ask for each by its own name.
    Returns {(name, length): (milliseconds, FLOPs, KiB)}, all per 1,000 tokens.
    """
    cost, tokens = {}, max(lengths)
    print(f"one mixer of BERT-{size}, forward and backward, {tokens:,} tokens in sequences of N, per 1,000 tokens; "
          f"and the peak of a whole BERT-{size}, forward and backward, on one sequence of N")
    print(f"{'N':>6}  {'variant':<20} {'ms':>9} {'to ' + names[0]:>12} {'GFLOP':>9} {'KiB':>9} {'model MiB':>10}")
    for length in lengths:
        runs, times = {}, {name: [] for name in names}
        for name in names:
            config = BertConfig.from_size(size, name, max_length=length, **settings)
            torch.manual_seed(0)
            mixer = make_mixer(config, 3).to(device)  # of the fourth layer: a dilated convolution's widest
            shape = tokens // length, length, config.hidden_size  # (B, N, C)
            x = torch.randn(shape, device=device, requires_grad=True)
            mask = torch.ones(shape[:2], dtype=torch.bool, device=device)
            runs[name] = functools.partial(forward_backward, mixer, x, mask, precision)
            runs[name]()  # the first time is not like the others
            with FlopCounterMode(display=False, custom_mapping=FLOPS) as counter:
                runs[name]()
            _, memory = kernels.peak_memory(runs[name], device)
            cost[name, length] = [0.0, counter.get_total_flops() * 1000 / tokens, memory * 1024 * 1000 / tokens]
        for _ in range(rounds):
            for name, run in runs.items():
                times[name].append(kernels.seconds(run, device))
        for name in names:
            cost[name, length][0] = 1000 * np.median(times[name]) * 1000 / tokens
            ratio = np.median(np.divide(times[name], times[names[0]]))
            milliseconds, flops, memory = cost[name, length]
            config = BertConfig.from_size(size, name, max_length=length, **settings)
            peak = in_a_new_process(model_peak, config, length, precision, device)
            print(f"{length:>6}  {name:<20} {milliseconds:>9.2f} {ratio:>12.2f} {flops / 1e9:>9.3f} {memory:>9,.0f} "
                  f"{peak:>10,.0f}", flush=True)
    print(f"above {kernels.LONGEST_WHOLE:,} tokens attention goes in blocks and computes them again in its backward, "
          "which is counted")
    for name in names[1:]:
        faster = [length for length in lengths if cost[name, length][0] < cost[names[0], length][0]]
        always = [length for length in faster if all(longer in faster for longer in lengths if longer > length)]
        verdict = f"faster than {names[0]} from N = {min(always):,} on" if always else f"not faster than {names[0]}"
        print(f"{name}: {verdict}")
    return cost


def benchmark(args, recipe, make_run, device, dtype):
    """pretrain.py --benchmark: whole steps of the variants beside absolute's, or with --lengths one mixer of each."""
    names = list(dict.fromkeys(["none" if args.lengths else "absolute", *args.variant]))  # the first is compared with
    if args.lengths:
        settings = dict(kernel_size=args.kernel_size, window=args.window, dropout=recipe["dropout"])
        benchmark_lengths(names, args.size, device, kernels.autocast(device, dtype), **settings)
        return
    corpus = prepare_corpus(args.corpus, args.cache_dir, recipe["seq_len"])
    benchmark_steps(names, make_run, corpus, recipe["batch_size"], recipe["seq_len"], device)
