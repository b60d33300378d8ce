"""The options of the command lines, in groups. add: the add_argument of a parser."""

import argparse
from pathlib import Path

from support.commands import UserError, given_options, number, positive_int


class Different(argparse.Action):
    """For several values of one option: the same one twice would be the same run twice."""

    def __call__(self, parser, args, values, option=None):
        for value in values:
            if values.count(value) > 1:
                parser.error(f"argument {option}: {value} is given twice")
        setattr(args, self.dest, values)


# Options that only some variants use, and the attribute of a Variant that says whether it does. The
# BertConfig of the others resets them.
OF_SOME_VARIANTS = {
    "kernel_size": "has_kernel",
    "beyond": "uses_beyond",
}


def check_options(args, variants):
    """UserError if an option is given that none of the variants uses. variants: the VARIANTS."""
    for option in given_options(args, OF_SOME_VARIANTS):
        uses = [getattr(variants[name], OF_SOME_VARIANTS[option]) for name in args.variant]
        if not any(uses):
            raise UserError(f"--{option} has no use: none of the variants can use it")


def add_model(variants, sizes, add):
    # which model
    names = ", ".join(variants)
    add(
        "--variant",
        nargs="+",
        action=Different,
        choices=[*variants, "all"],
        metavar="NAME",
        help=f"one or more of: {names}; or all (default: composite, or that of --init)",
    )
    add("--size", choices=sizes, help="size of the model (default: tiny, or that of --init)")
    add(
        "--init",
        type=Path,
        metavar="RUN",
        help="begin with the weights, the tokenizer and the size of this run",
    )

    # what only some variants use
    add("--kernel_size", type=positive_int, help="K, odd (default: the variant's own, mostly 17)")
    add(
        "--beyond",
        choices=("clip", "zero"),
        help="what is added to the score of a token beyond the window: the first or last number of "
        "the bias (clip) or 0 (zero); ignored by variants without a window (default: clip)",
    )
    add(
        "--causal",
        action="store_true",
        help="left to right: a token sees what is before it, and the model predicts the next one",
    )


def add_text(add):
    add(
        "--corpus",
        nargs="+",
        default=["toy"],
        help="toy, wikitext-2, wikitext-103, or text files and folders in UTF-8 "
        "(.txt .jsonl, also .gz .xz .bz2; default: toy)",
    )
    add("--cache_dir", type=Path, default="cache", help="downloads and token ids (default: cache)")


def add_vocabulary(add):
    add(
        "--vocab_size",
        type=positive_int,
        help="tokens, at most (default: 30,004; 8,192 of a text below 50 MB)",
    )


def add_training(add):
    # the fields of a Recipe
    by_size = "default: the recipe for such a run"
    add("--steps", type=positive_int, help=f"updates of the weights; {by_size}")
    add("--batch_size", type=positive_int, help=f"pairs per step, on average; {by_size}")
    add("--seq_len", type=number(int, 8, 65_536), help=f"tokens of a sequence, at most; {by_size}")
    add("--lr", type=number(float, 1e-12), help=f"peak learning rate; {by_size}")
    add("--warmup_steps", type=positive_int, help=f"steps with a rising learning rate; {by_size}")
    add("--dropout", type=number(float, 0, 1), help=f"probability; {by_size}")

    # how many runs, and where
    add(
        "--seed",
        nargs="+",
        action=Different,
        type=number(int, 0),
        default=[0],
        help="of weights, batches, masks and dropout: one run per seed (default: 0)",
    )
    add("--out_dir", type=Path, default="runs", help="folder of the runs (default: runs)")
    add("--name", help="of the run's folder in it (default: what was trained)")
    add("--eval_every", type=positive_int, help="steps (default: a tenth of all)")


def add_device(add):
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")


def add_dtype(add):
    add(
        "--dtype",
        choices=("auto", "fp32", "bf16"),
        default="auto",
        help="of matrix products (default: auto, bf16 if the hardware has it)",
    )


def add_machine(add):
    add_device(add)
    add_dtype(add)
    add(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="compile the layers (default: pretrain.py on a GPU, if it pays)",
    )
    add_eager(add)


def add_eager(add):
    add("--eager", action="store_true", help="for debugging on a GPU: do not record the steps")


def add_micro_batch(add):
    add(
        "--micro_batch",
        type=positive_int,
        help="pairs that are computed at once, at most: less memory, and the same result up to "
        "rounding and dropout (default: all)",
    )


# --- Of glue.py -----------------------------------------------------------------------------------


def add_runs(add):
    add("runs", nargs="+", type=Path, metavar="RUN", help="folders that pretrain.py wrote")


def add_data(add):
    add(
        "--data_dir",
        type=Path,
        default=Path("glue_data"),
        help="folder of GLUE's files, or toy for the built-in tasks (default: glue_data)",
    )
    add("--cache_dir", type=Path, default=Path("cache"), help="for the toy tasks (default: cache)")


def add_tasks(tasks, add):
    add(
        "--task",
        nargs="+",
        action=Different,
        default=list(tasks),
        choices=tasks,
        metavar="TASK",
        help=f"one or more of {', '.join(tasks)} (default: all)",
    )


def add_settings(seeds, add):
    add(
        "--seeds",
        nargs="+",
        action=Different,
        type=number(int, 0),
        default=seeds,
        help="of classifier, batches and dropout: one result per seed (default: the ten published)",
    )

    # those of glue.published_settings; without a default: None means that it was not given
    by_task = "default: the published value of the task"
    add("--lr", type=number(float, 1e-12), help=f"peak learning rate; {by_task}")
    add("--epochs", type=positive_int, help=by_task)
    add("--batch_size", type=positive_int, help=f"examples per step; {by_task}")
    add(
        "--seq_len",
        type=number(int, 8),
        help="tokens per sequence, never more than in pre-training (default: at most 128)",
    )
    add(
        "--start",
        choices=["pretrained"],
        help="RTE, MRPC and STS-B start from the pre-trained model, too (default: from MNLI's)",
    )


def add_columns(add):
    add(
        "--compare",
        nargs=2,
        action=Different,
        metavar=("A", "B"),
        help="two labels, and their difference A - B, with 95 %% intervals",
    )
