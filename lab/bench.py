"""What a training step costs.

    python -m lab.bench --size small                                         all variants
    python -m lab.bench --variant composite --unit eager layer               compiled (kernels.py)

The command prints a table. With --out FILE.json it also writes the numbers to a file, together with
the options and the machine.

The rows take turns in one process: each round measures every one of them once. Times are medians
over the rounds. For a ratio, each time is divided by the time of the first row in the same round;
the ratio is the median of these quotients. So a busy machine changes a ratio less than a time. The
first row is `absolute`, or with several units the first of them. Letters as in attention.py.
"""

import argparse
import itertools
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from attention import VARIANTS
from data import prepare_corpus
from kernels import compile_model
from model import SIZES, BertConfig, BertForMaskedLM
from pretrain import RECIPES, Trainer, add_device, add_text, train_step
from support.commands import positive_int, run_command
from support.devices import choose_device
from support.files import write_text
from support.runs import made_by
from support.tokenizer import PAD, SPECIAL_TOKENS

UNITS = ("eager", "layer")  # what is compiled: nothing, or the layers (kernels.py)


# --- Measuring ------------------------------------------------------------------------------------


def median_ratio(values, others):
    """The median over the rounds of value / other value of the same round.

    If a machine is busy during a whole round, all its times are longer and their ratios stay equal.
    """
    return round(float(np.median(np.divide(values, others))), 3)


# --- Training steps of the variants ---------------------------------------------------------------


@dataclass
class FullSequences:
    """Random sequences without padding: the most work that a batch of this shape can need."""

    vocab_size: int
    seq_len: int

    def batch(self, seed, step, batch_size):
        """(B, N) token ids without special tokens. They depend on the step alone."""
        generator = torch.Generator().manual_seed(step)
        shape = (batch_size, self.seq_len)
        return torch.randint(len(SPECIAL_TOKENS), self.vocab_size, shape, generator=generator)


def start_training(config, settings, full_sequences, device, dtype, unit):
    """A Trainer after three steps on full sequences, which are not timed: the warm-up."""
    # its checkpoint is never written
    trainer = Trainer(BertForMaskedLM(config), settings, Path(), device, dtype)
    if unit != "eager":
        compile_model(trainer.model, device)
    for _ in range(3):
        train_step(trainer, full_sequences)
    return trainer


def times_of_steps(trainers, source, rounds, device):
    """{row: [seconds of each step]}. All train on the same batches, of the steps 0, 1, ..."""
    # A GPU works on after a call has returned: wait until it has finished. A CPU does not wait.
    synchronize = torch.get_device_module(device).synchronize
    for trainer in trainers.values():
        trainer.step = 0

    # every round has one step of each
    times = {row: [] for row in trainers}
    for _ in range(rounds):
        for row, trainer in trainers.items():
            synchronize()
            started = time.perf_counter()
            train_step(trainer, source)
            synchronize()
            times[row].append(time.perf_counter() - started)
    return times


def step_rows(args, device, dtype):
    """Yield the rows of the table."""
    # what they train on, as in pretrain.py
    recipe = RECIPES[args.size]
    settings = {**asdict(recipe), "batch_size": args.batch_size, "seed": 0}
    corpus = prepare_corpus(args.corpus, args.cache_dir, recipe.seq_len, args.vocab_size)
    full_sequences = FullSequences(corpus.vocab_size, recipe.seq_len)

    # what is compared
    variants = args.variant
    if len(args.unit) == 1:
        variants = dict.fromkeys(["absolute", *variants])
    rows = list(itertools.product(variants, args.unit))

    # the first steps of each row
    trainers = {}
    first_seconds = {}
    for row in rows:
        variant, unit = row
        config = BertConfig.from_size(
            args.size,
            variant,
            corpus.vocab_size,
            max_length=recipe.seq_len,
            dropout=recipe.dropout,
        )
        started = time.perf_counter()
        trainers[row] = start_training(config, settings, full_sequences, device, dtype, unit)
        first_seconds[row] = time.perf_counter() - started

    # The first batches of the corpus are a warm-up: they have widths that have not occurred before.
    times_of_steps(trainers, corpus, 2, device)
    corpus_times = times_of_steps(trainers, corpus, args.rounds, device)
    full_times = times_of_steps(trainers, full_sequences, args.rounds, device)

    # the real tokens of the same batches of the corpus
    steps = range(args.rounds)
    tokens = [(corpus.batch(0, step, args.batch_size) != PAD).sum() for step in steps]

    for row in rows:
        variant, unit = row
        yield {
            "variant": variant,
            "unit": unit,
            "first_steps_s": round(first_seconds[row], 1),
            "full_ms": round(1000 * float(np.median(full_times[row])), 2),
            "full_ratio": median_ratio(full_times[row], full_times[rows[0]]),
            "corpus_tokens_per_second": median_ratio(tokens, corpus_times[row]),
            "corpus_ratio": median_ratio(corpus_times[row], corpus_times[rows[0]]),
        }


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments):
    """The command line's values."""
    parser = argparse.ArgumentParser(description="What a training step costs.")
    add = parser.add_argument
    add("--size", choices=SIZES, default="tiny", help="(default: tiny)")
    add("--variant", nargs="+", choices=VARIANTS, metavar="VARIANT", default=list(VARIANTS))
    add("--unit", nargs="+", choices=UNITS, default=["eager"], help="(default: eager)")
    add("--batch_size", type=positive_int, default=16, help="pairs of sentences (default: 16)")
    add_text(add)
    add_device(add)
    add("--dtype", choices=("fp32", "bf16"), default="fp32", help="(default: fp32)")
    add("--rounds", type=positive_int, default=8, help="(default: 8)")
    add("--out", type=Path, help="also write the numbers to this JSON file")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Run the benchmark."""
    args = parse_arguments(arguments)
    device, dtype = choose_device(args.device, args.dtype)
    rows = []
    for row in step_rows(args, device, dtype):
        print(row)
        rows.append(row)
    if args.out is not None:
        record = {**made_by(device), "settings": vars(args), "rows": rows}
        write_text(args.out, json.dumps(record, indent=2, default=str) + "\n")


if __name__ == "__main__":
    run_command(main)
