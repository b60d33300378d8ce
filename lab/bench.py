"""What a training step costs.

    python -m lab.bench                                              README's command: tiny, toy
    python -m lab.bench --size small --variant all --mode eager      what each variant costs

The command prints a table for each kind of batches, as soon as it is measured. With --out FILE.json
it also writes the rows so far to a file, together with the options and the machine. The most
important tables come first.

A row is a variant in a mode (MODES). In place of a variant it may be BERT of transformers in the
same size (LIBRARIES), by the same Trainer, not recorded. (Its embeddings have C numbers, as its
code wants it.)

    batches         "full": sequences of full length, without padding; "text": batches of the text,
                    as in training
    first_s         what the first time through the batches takes longer than the next one:
                    recording and compiling each of their shapes
    shapes_s        on CUDA: compiling all shapes of the text at once, before that
    ms              a step
    ratio           time / time of the first row of the same batches
    tokens_per_s    tokens per second, without padding

The rows take turns in one process: each round measures every one of them once. Times are medians
over the rounds. For a ratio, each time is divided by the time of the first row in the same round;
the ratio is the median of these quotients. So a busy machine changes a ratio less than a time.

The last tables say where the time of a step goes: the longest operations, and what each takes
without those that it calls. Letters as in attention.py.
"""

import argparse
import itertools
import json
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.profiler import profile

from attention import VARIANTS
from data import prepare_corpus
from model import SIZES, BertConfig, BertForMaskedLM, masked_lm_loss, masked_tokens
from pretrain import make_trainer, recipe_for, train_step, update
from support.commands import import_optional, positive_int, run_command
from support.compiling import compile_run
from support.devices import choose_device, made_by
from support.files import write_text
from support.options import add_device, add_dtype, add_text, add_vocabulary
from support.tables import print_table
from support.tokenizer import SPECIAL_TOKENS

MODES = (
    "eager",
    "recorded",  # on CUDA, as training is by default (RecordedStep in support/devices.py)
    "compiled",  # as with --compile, and on CUDA recorded, too
    # Compiled in another way, which is in no program: one of full batches on a GPU decides.
    "combo",  # the compiler joins loops that do not depend on each other (combo_kernels)
    "embeddings",  # the embeddings, too, in which the type of all tokens is simply 0
)

# in place of a variant: BERT of transformers, with (this attention, logits of all tokens)
LIBRARIES = {
    "transformers": ("sdpa", False),
    "transformers-released": ("eager", True),  # as the released code of Chang et al.
}

# A GPU works behind the CPU, which meanwhile prepares the next batches. To see only the GPU's time,
# or only what the CPU is too slow for, a row does so many steps in its turn before one waits.
STEPS_PER_TURN = 10

LONGEST = 12  # operations of a profile


# --- Measuring ------------------------------------------------------------------------------------


def measure(calls, turns, device):
    """Time functions that take turns.

    Args:
        calls: {name: function}; a name is a tuple, such as ("composite", "eager").
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


def longest_operations(call, device):
    """The operations of steps that take the most time themselves: a row for each, and for all."""
    with profile() as found:
        call(range(STEPS_PER_TURN))
    kind = "cpu" if device.type == "cpu" else "device"
    times = {x.key: getattr(x, f"self_{kind}_time_total") for x in found.key_averages()}  # us
    longest = sorted(times, key=times.get, reverse=True)[:LONGEST]
    times["all"] = sum(times.values())
    milliseconds = 1 / STEPS_PER_TURN / 1000
    return [{"operation": x, "ms": round(milliseconds * times[x], 2)} for x in ["all", *longest]]


# --- Training steps -------------------------------------------------------------------------------


@dataclass
class FullSequences:
    """Random sequences without padding: the most work that a batch of this shape can need."""

    vocab_size: int
    seq_len: int

    def batch(self, seed, step, batch_size):
        """(B, N) token ids without special tokens."""
        shape = (batch_size, self.seq_len)
        return torch.randint(len(SPECIAL_TOKENS), self.vocab_size, shape)


def new_trainer(size, variant, mode, settings, vocab_size, device, dtype):
    """The Trainer of a row."""
    # the model: the library's, or ours
    is_library = variant in LIBRARIES
    if is_library:
        model = OfLibrary(variant, size, settings, vocab_size)
        if mode == "compiled":
            model.loss = torch.compile(model.loss)
    else:
        config = BertConfig.from_size(
            size, variant, vocab_size, max_length=settings["seq_len"], dropout=settings["dropout"]
        )
        model = BertForMaskedLM(config)

    # In pre-training all token types are 0: one vector is added, and its gradient is a sum.
    if mode == "embeddings":
        embeddings = model.bert.embeddings
        embeddings.token_type.forward = lambda ids: embeddings.token_type.weight[0]
        embeddings.compile(dynamic=False)

    # how its steps are started
    is_eager = mode == "eager" or is_library
    compiles = mode not in ("eager", "recorded") and not is_library
    return make_trainer(model, settings, device, dtype, is_eager=is_eager, compiles=compiles)


class OfLibrary(nn.Module):
    """One of LIBRARIES, in a size and with the loss of ours."""

    def __init__(self, name, size, settings, vocab_size):
        super().__init__()
        transformers = import_optional("transformers")
        attention, self.all_logits = LIBRARIES[name]

        # our sizes, under its names
        sizes = SIZES[size]
        self.config = transformers.BertConfig(
            vocab_size=vocab_size,
            hidden_size=sizes["hidden_size"],
            num_hidden_layers=sizes["layers"],
            num_attention_heads=sizes["heads"],
            intermediate_size=sizes["ffn_size"],
            max_position_embeddings=settings["seq_len"],
            hidden_dropout_prob=settings["dropout"],
            attention_probs_dropout_prob=settings["dropout"],
            attn_implementation=attention,
        )
        self.config.causal, self.config.variant = False, "absolute"  # train_step and Trainer ask
        self.bert = transformers.BertForMaskedLM(self.config)

    def loss(self, input_ids, attention_mask, labels, count, M):
        hidden = self.bert.bert(input_ids, attention_mask.long()).last_hidden_state
        if self.all_logits:
            hidden, labels = hidden.flatten(0, 1), labels.flatten()
        else:
            hidden, labels = masked_tokens(hidden, labels, M)
        return masked_lm_loss(self.bert.cls(hidden), labels, count)


def do_steps(trainer, mode, source, steps):
    """The training steps with these numbers."""
    with torch._inductor.config.patch(combo_kernels=mode == "combo"):
        for step in steps:
            trainer.step = step
            train_step(trainer, source)
    trainer.losses.clear()
    trainer.norms.clear()


def tables(args, device, dtype):
    """The tables, each a list of rows."""
    recipe = recipe_for(args)
    settings = {**asdict(recipe), "seed": 0}
    corpus = prepare_corpus(args.corpus, args.cache_dir, recipe.seq_len, args.vocab_size)
    sources = {"full": FullSequences(corpus.vocab_size, recipe.seq_len), "text": corpus}

    # one Trainer for each variant and mode
    trainers = {}
    for variant, mode in itertools.product(args.variant, args.mode):
        if variant not in LIBRARIES or mode in ("eager", "compiled"):
            trainers[variant, mode] = new_trainer(
                args.size, variant, mode, settings, corpus.vocab_size, device, dtype
            )

    # on CUDA, as before a run with --compile: all shapes of the text at once
    shapes_s = dict.fromkeys(trainers, 0.0)
    for (variant, mode), trainer in trainers.items():
        if mode == "compiled":
            compiling = partial(compile_run, trainer, make_trainer, update)
            shapes_s[variant, mode] = seconds_of(compiling, corpus.batches_by_width, device)

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
        for (variant, mode), trainer in trainers.items():
            trainer.tokens = 0
            # Where compile_run does nothing, to compile each shape of a text would take too long.
            is_quick = mode in MODES[:2] or (mode == "compiled" and variant in VARIANTS)
            if batches == "full" or is_quick:
                calls[variant, mode] = partial(do_steps, trainer, mode, source)

        for (variant, mode), row in measure(calls, turns, device).items():
            row["shapes_s"] = round(shapes_s[variant, mode], 1)
            row["ms"] = round(row["ms"] / size, 2)
            steps = 2 * args.rounds * size  # each one is done twice
            tokens = int(trainers[variant, mode].tokens) / steps
            row["tokens_per_s"] = round(1000 * tokens / row["ms"])
            rows.append({"variant": variant, "mode": mode, "batches": batches, **row})
        yield rows

    # where the time goes, in steps of the text
    for (variant, mode), call in calls.items():
        rows = longest_operations(call, device)
        yield [{"variant": variant, "mode": mode, **row} for row in rows]


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
        choices=[*VARIANTS, "all", *LIBRARIES],
        default=["absolute", "composite"],
        metavar="VARIANT",
        help=f"also: all, {', '.join(LIBRARIES)} (default: absolute, composite)",
    )
    add("--mode", nargs="+", choices=MODES, help="(default: all that this machine has)")

    # on which text and machine, how often, and where the numbers go
    add_text(add)
    add_vocabulary(add)
    add_device(add)
    add_dtype(add)
    add("--batch_size", type=positive_int, help="sequences of a step (default: the recipe's)")
    add("--rounds", type=positive_int, default=8, help="(default: 8)")
    add("--out", type=Path, help="also write the rows to this JSON file")
    parser.set_defaults(warmup_steps=None)  # recipe_for reads it
    return parser.parse_args(arguments)


def main(arguments=None):
    """Run the benchmark."""
    args = parse_arguments(arguments)
    device, dtype = choose_device(args.device, args.dtype)
    if "all" in args.variant:
        args.variant = list(VARIANTS)
    if args.mode is None:
        args.mode = MODES if device.type == "cuda" else ("eager", "compiled")

    settings = {**vars(args), "dtype": str(dtype)}
    record = {**made_by(device), "settings": settings, "rows": []}
    for rows in tables(args, device, dtype):
        print_table([list(rows[0]), *[list(map(str, row.values())) for row in rows]])
        record["rows"] += rows
        if args.out is not None:
            write_text(args.out, json.dumps(record, indent=2, default=str) + "\n")


if __name__ == "__main__":
    run_command(main)
