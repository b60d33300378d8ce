"""What a training step costs.

    python -m lab.bench --size small                                 on this machine, in each mode
    python -m lab.bench --size small --variant all --mode eager      what each variant costs

The command prints a table for each kind of batches, as soon as it is measured. With --out FILE.json
it also writes the rows so far to a file, together with the options and the machine.

A row is a variant in a mode: "eager"; "recorded", on CUDA, as training is by default (RecordedStep
in support/devices.py); or "compiled", as with --compile, and on CUDA recorded, too. The variant
"transformers" is that library's BERT of the same size, if it is installed: by the same Trainer, not
recorded, with the logits of all tokens. (Its embeddings have C numbers, as its code wants it.)

    batches         "full": sequences of full length, without padding; "text": batches of the text,
                    as in training
    first_s         what the first time through the batches takes longer than the next one:
                    recording and compiling each of their shapes
    ms              a step
    ratio           time / time of the first row of the same batches
    tokens_per_s    tokens per second, without padding

The rows take turns in one process: each round measures every one of them once. Times are medians
over the rounds. For a ratio, each time is divided by the time of the first row in the same round;
the ratio is the median of these quotients. So a busy machine changes a ratio less than a time.
Letters as in attention.py.
"""

import argparse
import importlib.util
import itertools
import json
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from attention import VARIANTS
from data import prepare_corpus
from model import SIZES, BertConfig, BertForMaskedLM
from pretrain import RECIPES, make_trainer, train_step
from support.commands import UserError, positive_int, run_command
from support.devices import choose_device, made_by
from support.files import write_text
from support.options import add_device, add_dtype, add_text, add_vocabulary
from support.tables import print_table
from support.tokenizer import SPECIAL_TOKENS

MODES = ("eager", "recorded", "compiled")
LIBRARY = "transformers"  # in place of a variant

# A GPU works behind the CPU, which meanwhile prepares the next batches. To see only the GPU's time,
# or only what the CPU is too slow for, a row does so many steps in its turn before one waits.
STEPS_PER_TURN = 10

ON_A_CPU = 16  # sequences of a step, in place of the recipe's: 128 take seconds


# --- Measuring ------------------------------------------------------------------------------------


def measure(calls, turns, device):
    """Time functions that take turns.

    Args:
        calls: {name: function}; a name is a tuple, such as ("composite", "eager", "text").
        turns: the argument of the functions in each round, a list.
    Returns:
        {name: {"first_s", "ms", "ratio"}}. "ms" is the time of a turn.
    """
    # the first time through, in which shapes are recorded and compiled
    first = {}
    for name, call in calls.items():
        first[name] = sum(seconds_of(call, turn, device) for turn in turns)
        print(f"{', '.join(map(str, name))}: first {first[name]:.1f} s", flush=True)

    # then every round has a turn of each
    times = {name: [] for name in calls}
    for turn in turns:
        for name, call in calls.items():
            times[name].append(seconds_of(call, turn, device))

    # If a machine is busy during a whole round, all its times are longer and the ratios stay equal.
    of_first_row = next(iter(times.values()))
    rows = {}
    for name, seconds in times.items():
        rows[name] = {
            "first_s": round(max(0.0, first[name] - sum(seconds)), 1),
            "ms": round(1000 * float(np.median(seconds)), 2),
            "ratio": round(float(np.median(np.divide(seconds, of_first_row))), 3),
        }
    return rows


def seconds_of(call, turn, device):
    """How long call(turn) takes."""
    # A GPU works on after a call has returned: wait until it has finished. A CPU does not wait.
    synchronize = torch.get_device_module(device).synchronize
    synchronize()
    started = time.perf_counter()
    call(turn)
    synchronize()
    return time.perf_counter() - started


# --- Training steps -------------------------------------------------------------------------------


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


def new_trainer(size, variant, mode, settings, vocab_size, device, dtype):
    """The Trainer of a row."""
    if variant == LIBRARY:
        model = model_of_library(size, settings, vocab_size)
        if mode == "compiled":
            model.bert.compile()
    else:
        config = BertConfig.from_size(
            size, variant, vocab_size, max_length=settings["seq_len"], dropout=settings["dropout"]
        )
        model = BertForMaskedLM(config)
    is_eager = mode == "eager" or variant == LIBRARY
    compiles = mode == "compiled" and variant != LIBRARY
    return make_trainer(model, settings, device, dtype, is_eager=is_eager, compiles=compiles)


class OfLibrary(nn.Module):
    """BERT of transformers, with the loss that the library computes, under the name of ours."""

    def __init__(self, config):
        super().__init__()
        import transformers

        self.config = config
        self.bert = transformers.BertForMaskedLM(config)

    def loss(self, input_ids, attention_mask, labels, count, M):
        return self.bert(input_ids, attention_mask=attention_mask.long(), labels=labels).loss


def model_of_library(size, settings, vocab_size):
    """BERT of transformers, in this size, with torch's scaled_dot_product_attention."""
    import transformers

    # our sizes, under its names
    sizes = SIZES[size]
    config = transformers.BertConfig(
        vocab_size=vocab_size,
        hidden_size=sizes["hidden_size"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        intermediate_size=sizes["ffn_size"],
        max_position_embeddings=settings["seq_len"],
        hidden_dropout_prob=settings["dropout"],
        attention_probs_dropout_prob=settings["dropout"],
        attn_implementation="sdpa",
    )
    config.causal, config.variant = False, "absolute"  # train_step and Trainer ask
    return OfLibrary(config)


def do_steps(trainer, source, steps):
    """The training steps with these numbers."""
    for step in steps:
        trainer.step = step
        train_step(trainer, source)
    trainer.losses.clear()
    trainer.norms.clear()


def step_rows(args, device, dtype):
    """The rows of the tables of training steps: for each kind of batches, a list."""
    # the recipe of the size, also for the toy language, which pretrain.py trains on shorter pairs
    recipe = RECIPES[args.size]
    settings = {**asdict(recipe), "seed": 0}
    if device.type == "cpu":
        settings["batch_size"] = ON_A_CPU
    corpus = prepare_corpus(args.corpus, args.cache_dir, recipe.seq_len, args.vocab_size)
    sources = {"full": FullSequences(corpus.vocab_size, recipe.seq_len), "text": corpus}

    # one Trainer for each variant and mode
    trainers = {}
    for variant, mode in itertools.product(args.variant, args.mode):
        if (variant, mode) != (LIBRARY, "recorded"):
            trainers[variant, mode] = new_trainer(
                args.size, variant, mode, settings, corpus.vocab_size, device, dtype
            )

    # The recordings of all rows share their memory, as those of one Trainer do: one runs at a time.
    if device.type == "cuda":
        pool = torch.cuda.graph_pool_handle()
        for trainer in trainers.values():
            trainer.recorded.pool = pool

    # the steps of each round
    size = STEPS_PER_TURN if device.type == "cuda" else 1
    turns = [range(i * size, (i + 1) * size) for i in range(args.rounds)]

    for batches, source in sources.items():
        rows = []
        calls = {}
        for name, trainer in trainers.items():
            trainer.tokens = 0
            # The library's model is compiled as a whole: too long for each shape of a text.
            if (batches, *name) != ("text", LIBRARY, "compiled"):
                calls[*name, batches] = partial(do_steps, trainer, source)

        for (variant, mode, _), row in measure(calls, turns, device).items():
            row["ms"] = round(row["ms"] / size, 2)
            steps = 2 * args.rounds * size  # each one is done twice
            tokens = int(trainers[variant, mode].tokens) / steps
            row["tokens_per_s"] = round(1000 * tokens / row["ms"])
            rows.append({"variant": variant, "mode": mode, "batches": batches, **row})
        yield rows


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments):
    """The command line's values."""
    parser = argparse.ArgumentParser(description="What a training step costs.")
    add = parser.add_argument

    # what is measured
    add("--size", choices=SIZES, default="tiny", help="(default: tiny)")
    add(
        "--variant",
        nargs="+",
        choices=[*VARIANTS, "all", LIBRARY],
        default=["absolute", "composite", *has_library()],
        metavar="VARIANT",
        help=f"also: all, {LIBRARY} (default: absolute, composite and, if installed, {LIBRARY})",
    )
    add("--mode", nargs="+", choices=MODES, help="(default: all that this machine has)")

    # on which text and machine, how often, and where the numbers go
    add_text(add)
    add_vocabulary(add)
    add_device(add)
    add_dtype(add)
    add("--rounds", type=positive_int, default=8, help="(default: 8)")
    add("--out", type=Path, help="also write the rows to this JSON file")
    return parser.parse_args(arguments)


def has_library():
    """[LIBRARY] if it is installed, otherwise []."""
    return [LIBRARY] if importlib.util.find_spec(LIBRARY) else []


def fill_in(args, device):
    """What the command line does not say, by the machine. UserError if it lacks what is asked."""
    is_cuda = device.type == "cuda"
    if "all" in args.variant:
        args.variant = [*VARIANTS, *[name for name in args.variant if name == LIBRARY]]
    if LIBRARY in args.variant and not has_library():
        raise UserError(f"{LIBRARY} is not installed: pip install {LIBRARY}")
    if args.mode is None:
        args.mode = list(MODES) if is_cuda else ["eager", "compiled"]
    if "recorded" in args.mode and not is_cuda:
        raise UserError("--mode recorded: steps are recorded on CUDA alone")


def main(arguments=None):
    """Run the benchmark."""
    args = parse_arguments(arguments)
    device, dtype = choose_device(args.device, args.dtype)
    fill_in(args, device)
    settings = {**vars(args), "dtype": str(dtype)}
    record = {**made_by(device), "settings": settings, "rows": []}
    for rows in step_rows(args, device, dtype):
        print_table([list(rows[0]), *[list(map(str, row.values())) for row in rows]])
        record["rows"] += rows
        if args.out is not None:
            write_text(args.out, json.dumps(record, indent=2, default=str) + "\n")


if __name__ == "__main__":
    run_command(main)
