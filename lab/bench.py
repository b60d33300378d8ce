"""What a training step costs, what attention costs, and how costs grow with the sequence length.

    python -m lab.bench steps --size small    training steps of all variants
    python -m lab.bench padding --size small  training steps on batches that are made in four ways
    python -m lab.bench lengths --size small  one mixer per variant, for 64 to 8,192 tokens
    python -m lab.bench attention             attention alone, computed in six ways

Each command prints a table. With --out FILE.json it also writes the numbers to a file, together
with the settings and the machine; `python -m lab.figures lengths` draws the file of `lengths`.

The variants (or methods) take turns in one process: each round measures every one of them once.
Times are medians over the rounds. For a ratio, each time is divided by the time of the first
variant (or method) in the same round; the ratio is the median of these quotients, so a busy machine
changes it less than the times. Only `padding` compares sums over all rounds, because its batches
differ in size; its ratio is the speed divided by the speed of the first method. Letters as in
attention.py.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import functools
import math
import statistics
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

from attention import LONGEST_WHOLE, VARIANTS, attention, lowest_at_padding, make_mixer
from data import BATCHES_PER_BUCKET, PAD, SPECIAL_TOKENS, BatchSource, draw_epoch, prepare_corpus
from kernels import (
    BEYOND,
    attention_in_blocks,
    band_scores,
    gather_scores,
    relative_scores,
)
from lab import measure
from lab.record import Column, Record, without_folder
from model import SIZES, BertConfig, BertForMaskedLM, masked_lm_loss
from pretrain import (
    RECIPES,
    TrainingFailed,
    check_options,
    config_for,
    new_trainer,
    recipe_for,
    settings_for,
    train_step,
    wants_compile,
)
from support.commands import UserError, positive_int, run_command
from support.devices import autocast, choose_device, compile_encoder, dtype_name, synchronize
from support.memory import keep_freed_memory

LENGTH_VARIANTS = ("none", "composite", "lightconv", "dynamicconv", "dilated")


# --- steps: training steps of the variants --------------------------------------------------------

STEP_COLUMNS = (
    Column("variant", "variant", 19, align="<"),
    Column("full_ms", "full rows, ms", 13, ",.0f"),
    Column("full_ratio", "x absolute", 10, ".2f"),
    Column("corpus_tokens_per_second", "corpus, tokens/s", 16, ",.0f"),
    Column("corpus_ratio", "x absolute", 10, ".2f"),
    Column("first_step_s", "first step, s", 13, ".1f"),
    Column("peak_mib", "peak, MiB", 9, ",.0f"),
)


class FullRows(BatchSource):
    """Random rows without padding: the most work that a batch of this shape can need."""

    def __init__(self, vocab_size, seq_len, count=1024):
        self.vocab_size = vocab_size
        self.seq_len = seq_len
        self.lengths = np.full(count, seq_len)  # (rows,)
        self.train = np.arange(count)  # (rows,)

        # All rows are drawn now: a step that is timed must not wait for random numbers.
        random = np.random.default_rng(0)
        self.table = random.integers(len(SPECIAL_TOKENS), vocab_size, (count, seq_len))

    def rows(self, indices):
        """(B,) -> (B, N). A row depends on its index alone. It has no special tokens."""
        return self.table[indices]


@dataclass(frozen=True)
class Setup:
    """Everything from which a process makes the trainer of one variant."""

    config: BertConfig
    settings: dict  # of pretrain.Trainer
    device: torch.device
    dtype: torch.dtype
    compile: bool

    def full_rows(self):
        return FullRows(self.config.vocab_size, self.settings["seq_len"])


def make_trainer(setup):
    """(a Trainer, whether its encoder is compiled). It is never saved, so its folder is unused."""
    trainer = new_trainer(setup.config, setup.settings, Path(), setup.device, setup.dtype)
    compiled = False
    if setup.compile:
        input_ids = setup.full_rows().batch(0, 0, setup.settings["batch_size"])  # (B, N)
        precision = autocast(setup.device, setup.dtype)
        compiled = compile_encoder(trainer.model.bert, input_ids.to(setup.device), precision)

        # If a width that occurs later cannot be compiled, compile_encoder lets it run uncompiled.
        # Such a step must not be timed as a compiled one, so here the error stops the benchmark.
        torch._dynamo.config.suppress_errors = False
    return trainer, compiled


@dataclass
class StepTimes:
    """What was measured of the steps of one variant. Keys of times and tokens: "full", "corpus"."""

    first_step: float  # seconds
    compiled: bool
    times: dict[str, list[float]]  # seconds of each step
    tokens: dict[str, list[int]]  # real tokens of each step


def measure_steps(setups, corpus, rounds):
    """Time the training steps of variants on full rows and on the corpus.

    Args:
        setups: {variant: Setup}.
        corpus: a data.Corpus.
        rounds: the number of steps to time.
    Returns:
        {variant: StepTimes}
    """
    sources = {"full": FullRows(corpus.vocab_size, corpus.seq_len), "corpus": corpus}

    # The first step of each variant: make the model, compile it, train on one batch.
    trainers = {}
    measured = {}
    for name, setup in setups.items():
        started = time.perf_counter()
        trainer, compiled = make_trainer(setup)
        train_step(trainer, sources["full"])
        synchronize(setup.device)
        first_step = time.perf_counter() - started

        trainers[name] = trainer
        measured[name] = StepTimes(
            first_step,
            compiled,
            times={"full": [], "corpus": []},
            tokens={"full": [], "corpus": []},
        )

    # Compiling the model of one variant discards what was compiled for the variant before it.
    # So, after all models are compiled, the steps are run once without being timed. All variants
    # share the code of a layer, so its compiled versions are counted together.
    if any(steps.compiled for steps in measured.values()):
        torch._dynamo.config.recompile_limit = 10_000
        torch._dynamo.config.accumulated_recompile_limit = 10_000
    for name, trainer in trainers.items():
        steps = rounds if measured[name].compiled else 1
        warm_up(trainer, sources, steps)

    # The variants take turns. A batch is a function of the step, so all get the same batches.
    for step in tqdm(range(1, rounds + 1), desc="rounds", disable=None):
        for name, setup in setups.items():
            trainer = trainers[name]
            for kind, source in sources.items():
                trainer.step = step
                trainer.tokens = 0
                run = functools.partial(train_step, trainer, source)
                measured[name].times[kind].append(measure.seconds(run, setup.device))
                measured[name].tokens[kind].append(trainer.tokens)

    for trainer in trainers.values():
        check_finite(trainer)
    return measured


def check_finite(trainer):
    """TrainingFailed if a loss or a gradient norm of the steps so far is not finite."""
    losses, norms = trainer.read_losses()
    if not all(math.isfinite(number) for number in losses + norms):
        variant = trainer.settings["variant"]
        raise TrainingFailed(f"{variant}: a loss or a gradient norm is not finite")


def warm_up(trainer, sources, steps):
    """Train on the first batches of each source. torch.compile compiles each new width."""
    for source in sources.values():
        for step in range(1, steps + 1):
            trainer.step = step
            train_step(trainer, source)


def step_rows(measured, setups):
    """Yield the rows of the table. The peak memory of each is measured in a fresh process."""
    baseline = next(iter(measured.values()))
    for name, steps in measured.items():
        speeds = np.divide(steps.tokens["corpus"], steps.times["corpus"])
        yield {
            "variant": name,
            "full_ms": 1000 * statistics.median(steps.times["full"]),
            "full_ratio": measure.median_ratio(steps.times["full"], baseline.times["full"]),
            "corpus_tokens_per_second": float(np.median(speeds)),
            "corpus_ratio": measure.median_ratio(steps.times["corpus"], baseline.times["corpus"]),
            "first_step_s": steps.first_step,
            "peak_mib": measure.in_new_process(step_peak, setups[name]),
            "compiled": steps.compiled,
        }


def step_note(steps, corpus, batch_size):
    """What padding and making a batch cost `absolute`, as a sentence. steps: its StepTimes."""
    rounds = len(steps.times["corpus"])

    # How fast would it be if every batch of the corpus were padded to full rows?
    real_tokens = statistics.mean(steps.tokens["corpus"])
    padded_speed = real_tokens / statistics.median(steps.times["full"])

    # Which part of a step is making its batch?
    started = time.perf_counter()
    for step in range(1, rounds + 1):
        corpus.batch(0, step, batch_size)
    share = (time.perf_counter() - started) / sum(steps.times["corpus"])

    return (
        f"{rounds} rounds, medians. x absolute: the time of a step divided by the time of absolute "
        f"on the same batch. Full rows: {batch_size} x {corpus.seq_len} tokens. A batch of the "
        f"corpus has {real_tokens:,.0f} real tokens on average; padded to full rows, absolute "
        f"would train on {padded_speed:,.0f} real tokens/s. Making a batch takes "
        f"{100 * share:.2f} % of a step."
    )


def step_peak(setup):
    """The peak memory in MiB of this process after three training steps on full rows."""
    keep_freed_memory()  # as run_command does for pretrain.py; this is a fresh process
    trainer, _ = make_trainer(setup)
    full_rows = setup.full_rows()
    for _ in range(3):
        train_step(trainer, full_rows)
    check_finite(trainer)
    return measure.peak_of_process(setup.device)


def run_steps(args, arguments):
    """python -m lab.bench steps"""
    device, dtype, line = choose_device(args.device, args.dtype)
    print(line)

    # The options of the models are checked before the text is prepared.
    args.variant = chosen_variants(args.variant, list(VARIANTS), baseline="absolute")
    check_options(args)
    recipe = recipe_for(args)
    configs = {name: config_for(args, recipe, name) for name in args.variant}
    corpus = prepare_corpus(args.corpus, args.cache_dir, recipe.seq_len)

    # a model and an optimizer for each variant
    compile_encoders = wants_compile(args.compile, device)
    setups = {}
    for name, config in configs.items():
        config = replace(config, vocab_size=corpus.vocab_size)
        settings = settings_for(config, recipe, args.size, 0, corpus, dtype)
        setups[name] = Setup(config, settings, device, dtype, compile_encoders)

    # measure, print and record
    record_settings = {
        "size": args.size,
        "variants": args.variant,
        "batch_size": recipe.batch_size,
        "seq_len": recipe.seq_len,
        "dropout": recipe.dropout,
        "corpus": [without_folder(name) for name in args.corpus],
        "fingerprint": corpus.fingerprint,
        "kernel_size": args.kernel_size,
        "beyond": args.beyond,
        "dtype": dtype_name(dtype),
        "compile": compile_encoders,
        "rounds": args.rounds,
    }
    record = Record(arguments, record_settings, device, args.out)
    measured = measure_steps(setups, corpus, args.rounds)
    record.add_table(STEP_COLUMNS, step_rows(measured, setups))
    record.add_note(step_note(measured["absolute"], corpus, recipe.batch_size))
    return 0


def chosen_variants(names, allowed, baseline):
    """The variants to measure, without repetition: the baseline, then those in `names`.

    Args:
        names: from the command line; "all" means all allowed ones.
        allowed: the variants that can be measured.
        baseline: the variant that the others are compared with.
    """
    for name in names:
        if name not in allowed and name != "all":
            raise UserError(
                f"--variant {name!r} cannot be measured here; the variants are: "
                f"{', '.join(allowed)}"
            )
    if "all" in names:
        names = allowed
    return list(dict.fromkeys([baseline, *names]))


# --- padding: training steps on batches that are made in different ways ---------------------------

PADDING_COLUMNS = (
    Column("batches", "batches", 12, align="<"),
    Column("tokens_per_second", "real tokens/s", 13, ",.0f"),
    Column("ratio", "x padded", 8, ".2f"),
    Column("filled", "filled, %", 9, ".0f"),
    Column("tokens_per_step", "tokens/step", 11, ",.0f"),
    Column("deviation", "std", 6, ",.0f"),
)


class RandomBatches(BatchSource):
    """The pairs of a corpus in random batches, each padded to its own longest pair."""

    def __init__(self, corpus):
        self.corpus = corpus
        self.vocab_size = corpus.vocab_size
        self.seq_len = corpus.seq_len
        self.lengths = corpus.lengths  # (rows,)
        self.train = corpus.train  # (training rows,)

    def rows(self, indices):
        return self.corpus.rows(indices)


class PaddedBatches(RandomBatches):
    """Random batches, each padded to the full length: as in the released code of [C]."""

    def rows(self, indices):
        input_ids = self.corpus.rows(indices)  # (B, N)
        missing = self.seq_len - input_ids.shape[1]
        return np.pad(input_ids, ((0, 0), (0, missing)), constant_values=PAD)  # (B, seq_len)


class SortedBatches(RandomBatches):
    """Batches of equally many pairs, sorted by length in the buckets of data.py.

    They need the least padding, but change the objective: a token of a short pair weighs more.
    """

    def epoch_batches(self, seed, epoch, batch_size):
        batches = draw_epoch(self.train, seed, epoch, batch_size)  # (batches, B)
        in_order = []
        for start in range(0, len(batches), BATCHES_PER_BUCKET):
            rows = batches[start : start + BATCHES_PER_BUCKET].ravel()
            rows = rows[np.argsort(self.lengths[rows], kind="stable")]
            in_order.append(rows.reshape(-1, batch_size))  # (batches of the bucket, B)

        # all batches in random order, drawn as in data.py
        random = np.random.default_rng([seed, epoch, 1])
        return random.permutation(np.concatenate(in_order))


def measure_padding(trainer, sources, rounds):
    """Yield a row for each way of making batches.

    Args:
        trainer: a Trainer; all sources train the same model.
        sources: {name: BatchSource}; the first one is what the others are compared with.
        rounds: the number of steps to time, for each source.
    """
    times = {name: [] for name in sources}
    tokens = {name: [] for name in sources}
    positions = {name: [] for name in sources}

    # The sources take turns, in the same order in every round. Round 0 warms up.
    for step in tqdm(range(rounds + 1), desc="rounds", disable=None):
        for name, source in sources.items():
            trainer.step = step
            trainer.tokens = 0
            run = functools.partial(train_step, trainer, source)
            elapsed = measure.seconds(run, trainer.device)
            if step > 0:
                batch = source.batch(0, step, trainer.settings["batch_size"])  # (B, N)
                times[name].append(elapsed)
                tokens[name].append(trainer.tokens)
                positions[name].append(batch.numel())
    check_finite(trainer)

    # Batches have different numbers of tokens: compare the sums over all rounds.
    speeds = {name: sum(tokens[name]) / sum(times[name]) for name in sources}
    baseline = next(iter(speeds.values()))
    for name, speed in speeds.items():
        yield {
            "batches": name,
            "tokens_per_second": speed,
            "ratio": speed / baseline,
            "filled": 100 * sum(tokens[name]) / sum(positions[name]),
            "tokens_per_step": statistics.mean(tokens[name]),
            "deviation": float(np.std(tokens[name])),
        }


def run_padding(args, arguments):
    """python -m lab.bench padding"""
    device, dtype, line = choose_device(args.device, args.dtype)
    print(line)

    # one model
    recipe = recipe_for(args)
    config = config_for(args, recipe, args.variant)
    corpus = prepare_corpus(args.corpus, args.cache_dir, recipe.seq_len)
    config = replace(config, vocab_size=corpus.vocab_size)
    settings = settings_for(config, recipe, args.size, 0, corpus, dtype)
    trainer = new_trainer(config, settings, Path(), device, dtype)

    record_settings = {
        "size": args.size,
        "variant": args.variant,
        "batch_size": recipe.batch_size,
        "seq_len": recipe.seq_len,
        "corpus": [without_folder(name) for name in args.corpus],
        "fingerprint": corpus.fingerprint,
        "dtype": dtype_name(dtype),
        "dropout": recipe.dropout,
        "rounds": args.rounds,
    }
    record = Record(arguments, record_settings, device, args.out)

    print(
        "padded: random batches, padded to the full length; random: padded to their longest pair; "
        "equal-pairs, equal-tokens: sorted by length, with equally many pairs or tokens per batch"
    )
    sources = {
        "padded": PaddedBatches(corpus),
        "random": RandomBatches(corpus),
        "equal-pairs": SortedBatches(corpus),
        "equal-tokens": corpus,
    }
    record.add_table(PADDING_COLUMNS, measure_padding(trainer, sources, args.rounds))

    rows = {row["batches"]: row for row in record.content["rows"]}
    ours = rows["equal-tokens"]["tokens_per_second"]
    other = rows["equal-pairs"]["tokens_per_second"]
    record.add_note(
        f"{args.rounds} rounds. Pre-training uses equal-tokens, where all tokens weigh the same: "
        f"{ours / other:.2f} times the speed of equal-pairs."
    )
    return 0


# --- lengths: cost against the length of the sequences --------------------------------------------

LENGTH_COLUMNS = (
    Column("N", "N", 5),
    Column("variant", "variant", 12, align="<"),
    Column("ms", "ms", 9, ",.2f"),
    Column("ratio", "x none", 8, ".2f"),
    Column("gflop", "GFLOP", 9, ",.3f"),
    Column("kib", "KiB", 9, ",.0f"),
    Column("model_peak_mib", "model, MiB", 10, ",.0f"),
)


def measure_lengths(names, size, device, dtype, lengths, rounds, dropout):
    """Yield a row for each length and variant.

    Time, FLOPs and memory are those of one mixer, forward and backward, per 1,000 tokens. All
    batches have as many tokens as the longest sequence. The peak memory is that of a process which
    runs a complete model, forward and backward, on one sequence.

    Args:
        names: variants; the first one is what the others are compared with. No hybrids: their two
            mixers are measured as `none` and as the variant without "-hybrid".
    """
    tokens = max(lengths)
    for N in lengths:
        configs = {}
        for name in names:
            configs[name] = BertConfig.from_size(size, name, max_length=N, dropout=dropout)
        with length_in_errors(N):
            yield from measure_length(configs, N, tokens // N, device, dtype, rounds)


def measure_length(configs, N, B, device, dtype, rounds):
    """The rows of one length. configs: {variant: BertConfig}; a batch has B sequences."""
    # one mixer of each variant; its FLOPs and memory
    runs = {}
    flops = {}
    memory = {}
    for name, config in configs.items():
        runs[name] = make_mixer_run(config, B, N, device, dtype)
        runs[name]()  # the first time takes longer
        flops[name] = measure.count_flops(runs[name])
        _, memory[name] = measure.peak_increase(runs[name], device)

    # its time, and the memory of a model
    times = measure.take_turns(runs, device, rounds)
    baseline = next(iter(configs))
    per_thousand = 1000 / (B * N)  # tokens
    for name, config in configs.items():
        peak = measure.in_new_process(model_peak, config, device, dtype)
        yield {
            "N": N,
            "variant": name,
            "ms": 1000 * statistics.median(times[name]) * per_thousand,
            "ratio": measure.median_ratio(times[name], times[baseline]),
            "gflop": flops[name] * per_thousand / 1e9,
            "kib": 1024 * memory[name] * per_thousand,
            "model_peak_mib": peak,
        }


@contextmanager
def length_in_errors(N):
    """An error of the device or of torch in the `with` block becomes a UserError that names N."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # The first line says enough; a MemoryError has none.
        lines = str(error).splitlines() or [type(error).__name__]
        raise UserError(f"N = {N} cannot be measured here: {lines[0]}") from None


def make_mixer_run(config, B, N, device, dtype):
    """A function without arguments: forward and backward of one mixer on (B, N, C)."""
    # The mixer of the fourth layer: there, a dilated convolution reaches farthest.
    torch.manual_seed(0)
    mixer = make_mixer(config, layer=3).to(device)
    x = torch.randn(B, N, config.hidden_size, device=device, requires_grad=True)  # (B, N, C)
    attention_mask = torch.ones(B, N, dtype=torch.bool, device=device)

    def run():
        with autocast(device, dtype):
            y = mixer(x, attention_mask)  # (B, N, C)
        y.float().square().mean().backward()
        x.grad = None
        mixer.zero_grad()

    return run


def model_peak(config, device, dtype):
    """The peak memory in MiB of this process after a model's forward and backward pass.

    The model reads one sequence of config.max_length tokens and predicts about 15 % of them.
    """
    torch.manual_seed(0)
    model = BertForMaskedLM(config).to(device)

    # one full row, and the tokens to predict
    input_ids = FullRows(config.vocab_size, config.max_length, count=1).batch(0, 0, 1).to(device)
    is_masked = torch.rand(input_ids.shape, device=device) < 0.15  # (1, N)
    labels = input_ids.where(is_masked, -100)  # (1, N)

    with autocast(device, dtype):
        hidden = model.bert(input_ids)  # (1, N, C)
        logits, targets = model.masked_logits(hidden, labels)  # (M, V), (M,)
        loss = masked_lm_loss(logits, targets)
    loss.backward()
    return measure.peak_of_process(device)


def crossover(rows, name, baseline):
    """From which length on a variant is faster than the baseline, as a sentence."""
    ratios = {(row["variant"], row["N"]): row["ratio"] for row in rows}  # 1 for the baseline
    lengths = sorted({row["N"] for row in rows})

    # Go from the longest length to shorter ones, as long as the variant is faster.
    faster_from = None
    for length in reversed(lengths):
        if ratios[name, length] >= 1:
            break
        faster_from = length

    if faster_from is None:
        return f"{name}: not faster than {baseline}"
    return f"{name}: faster than {baseline} from N = {faster_from:,} on"


def run_lengths(args, arguments):
    """python -m lab.bench lengths"""
    device, dtype, line = choose_device(args.device, args.dtype)
    print(line)

    # what to measure
    without_hybrids = [name for name in VARIANTS if not VARIANTS[name].hybrid]
    names = chosen_variants(args.variant, without_hybrids, baseline="none")
    lengths = doubled_lengths(args.max_length)
    dropout = RECIPES[args.size].dropout
    settings = {
        "size": args.size,
        "variants": names,
        "lengths": lengths,
        "tokens": max(lengths),
        "dropout": dropout,
        "dtype": dtype_name(dtype),
        "rounds": args.rounds,
    }
    record = Record(arguments, settings, device, args.out)

    # the table
    print(
        f"ms, GFLOP, KiB: one mixer of BERT-{args.size}, forward and backward, per 1,000 tokens; "
        f"{max(lengths):,} tokens in sequences of N"
    )
    print(
        f"model: the peak memory of a process that runs a complete BERT-{args.size}, forward and "
        "backward, on one sequence of N"
    )
    rows = measure_lengths(names, args.size, device, dtype, lengths, args.rounds, dropout)
    record.add_table(LENGTH_COLUMNS, rows)

    # the notes below it
    if max(lengths) > LONGEST_WHOLE:
        record.add_note(
            f"above {LONGEST_WHOLE:,} tokens attention is computed in blocks, and the backward "
            "pass computes each block again, which is counted"
        )
    for name in names[1:]:
        record.add_note(crossover(record.content["rows"], name, names[0]))
    return 0


def doubled_lengths(longest):
    """[64, 128, 256, ...] up to `longest`."""
    if longest < 64:
        raise UserError(f"--max_length must be 64 or more, not {longest}")
    lengths = [64]
    while 2 * lengths[-1] <= longest:
        lengths.append(2 * lengths[-1])
    return lengths


# --- attention: attention alone, by every method --------------------------------------------------

ATTENTION_COLUMNS = (
    Column("N", "N", 5),
    Column("B", "B", 4),
    Column("path", "method", 9, align="<"),  # the records in results/ have this key
    Column("ms", "ms", 10, ",.2f"),
    Column("ratio", "x plain", 8, ".2f"),
    Column("peak_mib", "peak, MiB", 9, ",.0f"),
    Column("value_error", "error of z", 10, ".1e"),
    Column("gradient_error", "of gradients", 12, ".1e"),
)

# a layer of BERT-small
HEADS = 4
HEAD_SIZE = 64  # d
KERNEL_SIZE = 17  # K


def definition(query, key, value, attention_mask, rows=None, scores_of=None):
    """Attention term by term. `scores_of` turns the rows into a map; without rows, no map is added.

    Args:
        query, key, value: (B, H, N, d).
        attention_mask: (B, N) bool.
        rows: (B, H, N, K), or None.
        scores_of: gather_scores or relative_scores of kernels.py.
    Returns:
        (B, H, N, d).
    """
    # content
    N, d = query.shape[-2:]
    scores = (query / math.sqrt(d)) @ key.transpose(-1, -2)  # (B, H, N, N)

    # relative positions
    if rows is not None:
        scores = scores + scores_of(rows.to(scores.dtype), N)

    # padding
    scores = scores + lowest_at_padding(attention_mask, scores.dtype)

    p = scores.softmax(dim=-1)  # (B, H, N, N)
    return p.to(value.dtype) @ value  # (B, H, N, d)


def plain(query, key, value, attention_mask, rows):
    """Attention without positions."""
    return definition(query, key, value, attention_mask)


def gather(query, key, value, attention_mask, rows):
    """The map by an index of N x N numbers."""
    return definition(query, key, value, attention_mask, rows, gather_scores)


def reference(query, key, value, attention_mask, rows):
    """The map by shifted rows; autograd makes the backward pass."""
    return definition(query, key, value, attention_mask, rows, relative_scores)


def blocks(query, key, value, attention_mask, rows):
    """What models run, in blocks of queries at every length."""
    return attention_in_blocks(attention, query, key, value, attention_mask, rows)


def fused(query, key, value, attention_mask, rows):
    """torch's own attention, with the map as its bias."""
    bias = band_scores(rows, key.shape[-2])  # (B, H, N, N)
    bias = bias + lowest_at_padding(attention_mask, bias.dtype)
    return F.scaled_dot_product_attention(query, key, value, bias)


# The first one is what the others are compared with.
METHODS = {
    "plain": plain,
    "gather": gather,
    "reference": reference,
    "band": attention,  # what models run
    "blocks": blocks,
    "fused": fused,
}


def measure_attention(methods, lengths, tokens, device, dtype):
    """Yield a row for each length and each method of attention, forward and backward.

    Args:
        methods: {name: function of (query, key, value, attention_mask, rows)}.
        tokens: per batch, approximately: there are max(1, tokens // N) sequences of N.
    Raises:
        UserError: there is not enough memory, or the device cannot compute this, or torch.compile
            does not work.
    """
    for N in lengths:
        with length_in_errors(N):
            yield from measure_attention_at(methods, N, max(1, tokens // N), device, dtype)


def measure_attention_at(methods, N, B, device, dtype):
    """The rows of one length."""
    inputs, grad_output = make_inputs(B, N, device, dtype)

    # The exact results, in float64: `plain` has no positions, all others have them.
    exact_inputs = [in_float64(x) for x in inputs]
    exact_grad_output = grad_output.cpu().double()  # Apple's GPU has no float64
    exact_plain = forward_backward(plain, exact_inputs, exact_grad_output)
    exact_relative = forward_backward(gather, exact_inputs, exact_grad_output)

    # the memory and the errors of each
    runs = {}
    memory = {}
    errors = {}
    for name, function in methods.items():
        runs[name] = functools.partial(forward_backward, function, inputs, grad_output)
        runs[name]()  # the first time takes longer
        results, memory[name] = measure.peak_increase(runs[name], device)
        exact = exact_plain if name == "plain" else exact_relative
        errors[name] = relative_errors(results, exact)
        del results

    # Their times. Those of short sequences vary more, and cost less.
    rounds = 9 if N <= 512 else 3
    times = measure.take_turns(runs, device, rounds)
    for name in methods:
        value_error, gradient_error = errors[name]
        yield {
            "N": N,
            "B": B,
            "path": name,
            "rounds": rounds,
            "ms": 1000 * statistics.median(times[name]),
            "ratio": measure.median_ratio(times[name], times["plain"]),
            "peak_mib": memory[name],
            "value_error": value_error,
            "gradient_error": gradient_error,
        }


def make_inputs(B, N, device, dtype):
    """((query, key, value, attention_mask, rows), grad_output), random, for one layer."""
    generator = torch.Generator().manual_seed(N)
    numbers = torch.randn(4, B, HEADS, N, HEAD_SIZE, generator=generator)  # (4, B, H, N, d)
    query, key, value, grad_output = numbers.to(device, dtype)
    rows = torch.randn(B, HEADS, N, KERNEL_SIZE, generator=generator).to(device, dtype)
    for x in (query, key, value, rows):
        x.requires_grad_()

    # an eighth of every sequence is padding
    attention_mask = (torch.arange(N) < N - N // 8).expand(B, N).to(device)  # (B, N)
    return (query, key, value, attention_mask, rows), grad_output


def in_float64(x):
    """A copy on the CPU in float64, which needs a gradient; masks stay as they are."""
    x = x.detach().cpu()
    if x.dtype == torch.bool:
        return x
    return x.double().requires_grad_()


def forward_backward(function, inputs, grad_output):
    """[z, then the gradient of sum(z * grad_output) for each input]; None for unused inputs."""
    precision = torch.autocast(
        grad_output.device.type, torch.bfloat16, enabled=grad_output.dtype == torch.bfloat16
    )
    with precision:
        z = function(*inputs)  # (B, H, N, d)
    wanted = [x for x in inputs if x.requires_grad]
    gradients = torch.autograd.grad(z, wanted, grad_output, allow_unused=True)
    return [z.detach(), *gradients]


def relative_errors(results, exact):
    """(error of the values, largest error of a gradient).

    An error is the largest absolute difference, divided by the largest absolute value of the exact
    result.
    """
    errors = []
    for result, expected in zip(results, exact, strict=True):
        if expected is not None:
            difference = (result.cpu().double() - expected).abs().max()
            errors.append((difference / expected.abs().max()).item())
    return errors[0], max(errors[1:])


def run_attention(args, arguments):
    """python -m lab.bench attention"""
    device, dtype, line = choose_device(args.device, args.dtype)
    print(line)

    # what to measure
    lengths = doubled_lengths(args.max_length)
    methods = dict(METHODS)
    if args.compile:
        # Each length is compiled separately.
        methods["compiled"] = torch.compile(attention, dynamic=False)
    settings = {
        "heads": HEADS,
        "head_size": HEAD_SIZE,
        "kernel_size": KERNEL_SIZE,
        "lengths": lengths,
        "tokens": args.tokens,
        "dtype": dtype_name(dtype),
    }
    record = Record(arguments, settings, device, args.out)

    # the table, and the note below it
    print(
        f"forward and backward of attention, {HEADS} heads of {HEAD_SIZE} channels, "
        f"K = {KERNEL_SIZE}; errors against float64, divided by the largest exact value"
    )
    rows = measure_attention(methods, lengths, args.tokens, device, dtype)
    record.add_table(ATTENTION_COLUMNS, rows)
    if max(lengths) > LONGEST_WHOLE:
        note = f"above {LONGEST_WHOLE:,} tokens band is computed in blocks, too, as in the models"
        if args.compile:
            note += "; so is compiled, whose blocks are not compiled"
        record.add_note(note)
    return 0


# --- The command line -----------------------------------------------------------------------------

# recipe_for and config_for of pretrain.py read these options. None means their default there.
OF_PRETRAINING = {
    "steps": None,
    "lr": None,
    "warmup_steps": None,
    "dropout": None,
    "attention_layer": None,
}


def parse_arguments(arguments=None):
    """The command line's values; .run is the function of the subcommand."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench",
        description="What training steps, mixers and attention cost.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add_steps_command(commands)
    add_padding_command(commands)
    add_lengths_command(commands)
    add_attention_command(commands)
    return parser.parse_args(arguments)


def add_steps_command(commands):
    parser = commands.add_parser("steps", help="training steps of the variants")
    add = parser.add_argument

    # what to train
    add_model_options(parser, default_variants=["all"])
    add("--kernel_size", type=positive_int, help="K, odd (default: the variant's own, mostly 17)")
    add(
        "--beyond",
        choices=BEYOND,
        default="clip",
        help="beyond the kernel: its end weight, or 0 (default: clip)",
    )

    add_corpus_options(parser)

    # on what machine, and how often
    add_machine_options(parser, dtypes=("auto", "fp32", "bf16"))
    add("--compile", action=argparse.BooleanOptionalAction, help="torch.compile (default: on CUDA)")
    add("--rounds", type=positive_int, default=8, help="steps of each variant (default: 8)")

    # the training that pretrain.py has by default
    parser.set_defaults(run=run_steps, **OF_PRETRAINING)


def add_padding_command(commands):
    parser = commands.add_parser("padding", help="training steps on batches made in four ways")
    add_size(parser)
    parser.add_argument(
        "--variant",
        choices=VARIANTS,
        metavar="VARIANT",
        default="composite",
        help="name of one variant (default: composite)",
    )
    add_corpus_options(parser)
    add_machine_options(parser, dtypes=("auto", "fp32", "bf16"))
    parser.add_argument(
        "--rounds",
        type=positive_int,
        default=50,
        help="steps of each way (default: 50)",
    )

    # the model and the training that pretrain.py has by default
    parser.set_defaults(run=run_padding, kernel_size=None, beyond="clip", **OF_PRETRAINING)


def add_lengths_command(commands):
    parser = commands.add_parser("lengths", help="one mixer per variant against sequence length")
    add_model_options(parser, default_variants=list(LENGTH_VARIANTS))
    add_longest(parser, default=8192)
    add_machine_options(parser, dtypes=("auto", "fp32", "bf16"))
    parser.add_argument(
        "--rounds", type=positive_int, default=5, help="calls of each mixer (default: 5)"
    )
    parser.set_defaults(run=run_lengths)


def add_attention_command(commands):
    parser = commands.add_parser("attention", help="attention alone, computed in six ways")
    add_longest(parser, default=4096)
    parser.add_argument(
        "--tokens", type=positive_int, default=2048, help="tokens per batch (default: 2048)"
    )
    parser.add_argument(
        "--compile", action="store_true", help="also measure band with torch.compile"
    )
    add_machine_options(parser, dtypes=("fp32", "bf16"))
    parser.set_defaults(run=run_attention)


def add_size(parser):
    parser.add_argument("--size", choices=SIZES, default="tiny", help="(default: tiny)")


def add_model_options(parser, default_variants):
    add_size(parser)
    parser.add_argument(
        "--variant",
        nargs="+",
        default=default_variants,
        help=f"names of variants, or all (default: {' '.join(default_variants)})",
    )


def add_corpus_options(parser):
    """Options for which batches to train on."""
    add = parser.add_argument
    add("--batch_size", type=positive_int, help="pairs of sentences (default: as pretrain.py)")
    add("--seq_len", type=positive_int, help="tokens per pair, at most (default: as pretrain.py)")
    add("--corpus", nargs="+", default=["toy"], help="as for pretrain.py (default: toy)")
    add("--cache_dir", type=Path, default="cache", help="downloads and token ids (default: cache)")


def add_longest(parser, default):
    parser.add_argument(
        "--max_length",
        type=positive_int,
        default=default,
        help=f"lengths are 64, 128, ... up to this (default: {default})",
    )


def add_machine_options(parser, dtypes):
    """Options of every benchmark; the first of the dtypes is the default."""
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ... (default: auto)")
    parser.add_argument(
        "--dtype",
        choices=dtypes,
        default=dtypes[0],
        help=f"precision of matrix products (default: {dtypes[0]})",
    )
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")


def main(arguments=None):
    """Run one benchmark. Returns the exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    args = parse_arguments(arguments)
    return args.run(args, arguments)


if __name__ == "__main__":
    run_command("lab.bench", main)
