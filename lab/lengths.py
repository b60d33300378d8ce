"""Held-out loss by length: how well does a model predict in rows longer than those of its training?

    python -m lab.lengths RUN [RUN ...] --corpus english.txt --out results/english-lengths.jsonl
    python -m lab.lengths RUN [RUN ...] --corpus english.txt --figure docs/loss-by-length

RUN is a folder that pretrain.py wrote, and --corpus names the text that the run was trained on: its
tokenizer and its held-out pairs are used. If the run was trained with --vocab_size, give the same
value here. A run that was trained on another corpus is refused.

--out writes one line per run to a file (lab/record.py), as soon as the run is measured. Runs that
the file has already stay there, and the printed table and the figure show them, too. A run is not
measured again unless its model has changed, so the same command continues after an interruption.

The text. A pair of sentences is hardly ever 2,048 tokens long, so the rows are not pairs. They are
made from all held-out sentences, in the order of the corpus, with a [SEP] after each one:

    the text       s1 [SEP] s2 [SEP] s3 [SEP] ...      with masks, drawn once from seed 0
    stretches      the text in parts of L - 1 tokens, where L is the longest of --lengths; what is
                   left over is not used
    rows of N      [CLS] and the next N - 1 tokens of a stretch; what does not fill a row at the end
                   of the stretch is not used

Held-out sentences come in blocks of up to 64 consecutive ones, from all parts of the corpus. For
English a block has about 2,000 tokens. So nearly every row of 2,048 tokens, and about half of those
of 1,024, hold passages that do not belong together. Rows also cross the borders of documents.

What is compared. At every length the same tokens are hidden, and the same ones are scored: those
that are at least 8 places from both ends of their row at every length (scored_positions; a quarter
of the shortest row if it has fewer than 32 tokens). Otherwise shorter rows, which cut more
sentences at their ends, would be at a disadvantage. So the losses of one run at two lengths can be
compared, and so can those of two runs at one length. The losses of two commands can be compared if
--corpus, --vocab_size, --lengths, --divide_end_weights and the precision are the same (--dtype auto
chooses it by the machine): a file of --out refuses others. The loss is not the held-out loss of
pretrain.py, whose rows are pairs of sentences.

A model with a vector per position (absolute, convbert) cannot read rows that are longer than its
table of vectors: these lengths are left out, and one line says so. All other models read every
length.

End weights. The end weights of a fixed kernel (--beyond clip) hold for all tokens at k positions
and farther. A token of a row of N has (N - k)(N - k + 1) / N such tokens on average: with k = 8,
113 in a row of 128, and 2,033 in a row of 2,048. So, before the softmax divides by the sum, these
tokens together count 18 times as much. In rows of N > S tokens, where S is the --seq_len of the
training (here 128), --divide_end_weights divides the end weights by N / S. This cancels nearly all
of it:

    python -m lab.lengths RUN [RUN ...] --corpus english.txt --divide_end_weights

The figure shows, for each variant, the mean over its runs and the standard error; a dotted line is
at the --seq_len of the training. Drawing needs matplotlib. Letters as in attention.py; a batch has
M scored tokens, and the vocabulary V.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import copy
import hashlib
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

from attention import VARIANTS
from data import CLS, SEP, VOCABULARY_SIZE, mask_tokens, prepare_corpus
from lab.figures import figure_path, load_pyplot, save, style_of_line
from lab.record import add_records, identity_of_run, losses_of_variants, read_length_records
from model import IGNORED, load_config, load_run
from support.commands import UserError, positive_int, run_command
from support.devices import autocast, choose_device, dtype_name
from support.pair_results import DIGITS
from support.provenance import made_by
from support.runs import (
    added_to_errors,
    each_run_once,
    model_digest,
    pretraining_settings,
    progress_of_unfinished,
    say_if_unfinished,
)
from support.statistics import (
    check_comparable,
    different_settings,
    mean_and_standard_error,
    standard_error,
)

LENGTHS = (64, 128, 256, 512, 1024, 2048)
TOKENS_PER_BATCH = 4096
MARGIN = 8  # tokens between a scored token and the ends of its row: the window of K = 17


# --- The text -------------------------------------------------------------------------------------


class HeldOutText(NamedTuple):
    """Stretches of held-out text with masks; a tensor has a row per stretch."""

    masked_ids: torch.Tensor  # (stretches, longest - 1), what the model gets
    labels: torch.Tensor  # the hidden tokens that are scored, -100 elsewhere


def held_out_stretches(corpus, longest):
    """The held-out sentences of a data.Corpus: (stretches, longest - 1) token ids.

    Raises UserError if they are shorter than one row of `longest` tokens.
    """
    # the sentences in the order of the corpus, each with a [SEP]
    parts = []
    for pair in np.sort(corpus.held_out):
        first = corpus.first_sentences[pair]
        begin, middle, end = corpus.sentence_starts[first : first + 3].tolist()
        parts += [corpus.tokens[begin:middle], [SEP], corpus.tokens[middle:end], [SEP]]
    tokens = torch.from_numpy(np.concatenate(parts).astype(np.int64))

    # stretches of equal length; what is left over is not used
    width = longest - 1  # [CLS] takes one place
    stretches = len(tokens) // width
    if stretches == 0:
        raise UserError(
            f"the held-out text has {len(tokens):,} tokens, too few for a row of {longest:,}: "
            "give smaller --lengths"
        )
    return tokens[: stretches * width].view(stretches, width)


def held_out_text(corpus, lengths):
    """The HeldOutText of a data.Corpus for rows of these lengths.

    Raises UserError if it is too short, or if no token is scored at all lengths.
    """
    text = held_out_stretches(corpus, max(lengths))

    # the masks: the same for every length and every run
    generator = torch.Generator().manual_seed(0)
    masked_ids, labels = mask_tokens(text, corpus.vocab_size, generator)

    # the hidden tokens that are scored: the same, too
    labels = labels.masked_fill(~scored_positions(text.shape[1], lengths), IGNORED)
    if (labels == IGNORED).all():
        raise UserError("no token is far enough from the ends of its rows: give longer --lengths")
    return HeldOutText(masked_ids, labels)


def scored_positions(width, lengths, margin=MARGIN):
    """Which tokens of a stretch are scored: (width,) bool.

    Those that have at least `margin` tokens of the text on both sides in their row, at every
    length. If the shortest rows have fewer than 4 * margin tokens, the margin is a quarter of them.
    A row that is not full, at the end of a stretch, is not scored.

    Example: a stretch of 12 tokens, lengths 5 and 7 ([CLS] is one of the tokens), margin 1.

        token of the stretch     0  1  2  3  4  5  6  7  8  9 10 11
        rows of 5                .  x  x  . |.  x  x  . |.  x  x  .
        rows of 7                .  x  x  x  x  . |.  x  x  x  x  .
        scored                   .  x  x  .  .  .  .  .  .  x  x  .
    """
    margin = min(margin, min(lengths) // 4)
    token = torch.arange(width)  # the tokens of the stretch, numbered
    scored = torch.ones(width, dtype=torch.bool)
    for N in lengths:
        row_width = N - 1  # tokens of the text in a row, without [CLS]

        # far enough from both ends of its row
        place = token % row_width  # in the row
        is_inside = (place >= margin) & (place < row_width - margin)

        # not in the last row, if that is not full
        full_rows = width // row_width
        is_in_full_row = token < full_rows * row_width

        scored &= is_inside & is_in_full_row
    return scored


def rows_of_length(text, N):
    """The text in rows of N tokens: (masked_ids, labels), (rows, N) each.

    Example: a stretch of 8 tokens in rows of N = 4. The last two tokens do not fill a row.

        t0 t1 t2 t3 t4 t5 t6 t7   ->   [CLS] t0 t1 t2
                                       [CLS] t3 t4 t5
    """
    # the tokens that fill rows: no other token is scored
    row_width = N - 1  # tokens of the text in a row, without [CLS]
    width = text.labels.shape[1]
    used = width - width % row_width
    masked_ids = text.masked_ids[:, :used].reshape(-1, row_width)  # (rows, N - 1)
    labels = text.labels[:, :used].reshape(-1, row_width)  # (rows, N - 1)

    # [CLS] in front of every row
    return F.pad(masked_ids, (1, 0), value=CLS), F.pad(labels, (1, 0), value=IGNORED)


# --- The loss -------------------------------------------------------------------------------------


@torch.inference_mode()
def loss_at(model, text, N, device, dtype, bar):
    """The mean loss in nats over all scored tokens, in rows of N tokens."""
    masked_ids, labels = rows_of_length(text, N)
    batch_size = max(1, TOKENS_PER_BATCH // N)
    total = 0.0
    count = 0
    batches = zip(masked_ids.split(batch_size), labels.split(batch_size), strict=True)
    for batch_ids, batch_labels in batches:
        batch_ids = batch_ids.to(device)  # (B, N)
        batch_labels = batch_labels.to(device)  # (B, N)
        with autocast(device, dtype):
            hidden = model.bert(batch_ids)  # (B, N, C)
            logits, targets = model.masked_logits(hidden, batch_labels)  # (M, V), (M,)
        total += F.cross_entropy(logits.float(), targets, reduction="sum").item()
        count += len(targets)
        bar.update(batch_ids.numel())
    return total / count


def possible_lengths(folder, config, lengths):
    """The lengths that a model can read. What is left out is said in one line."""
    if not VARIANTS[config.variant].absolute:
        return list(lengths)

    possible = [N for N in lengths if N <= config.max_length]
    refused = [f"{N:,}" for N in lengths if N > config.max_length]
    if refused:
        tqdm.write(
            f"{folder}: {config.variant} has vectors for {config.max_length:,} positions, "
            f"so it cannot read {', '.join(refused)} tokens"
        )
    return possible


@torch.no_grad()
def with_divided_end_weights(model, N):
    """A copy of a model, in which the end weights of every fixed kernel are divided.

    The divisor is N / max_length, or 1 if N is not larger than max_length. The weights are
    exp(beta), so log(N / max_length) is subtracted from beta.
    """
    changed = copy.deepcopy(model)
    divisor = max(1, N / model.config.max_length)
    for layer in changed.bert.layers:
        beta = layer.mixer.terms["fixed"].beta  # (H, K)
        beta[:, 0] -= math.log(divisor)
        beta[:, -1] -= math.log(divisor)
    return changed


def check_end_weights(folder, config):
    """UserError if a model has no weights that --divide_end_weights could divide."""
    if "fixed" not in VARIANTS[config.variant].terms or config.beyond != "clip":
        raise UserError(
            f"{folder}: --divide_end_weights is for variants with a fixed term and --beyond clip, "
            f"not for {config.variant} with --beyond {config.beyond}"
        )


def measurement(text, lengths, dtype, divide):
    """How the losses are measured: what must be the same for two runs to be compared.

    Args:
        text: a HeldOutText.
        lengths: in tokens.
        dtype: torch.dtype of the matrix products.
        divide: whether to divide the end weights.
    Returns:
        a dictionary, "measured" of a record (lab/record.py).
    """
    # one digest of what the models read and what they must predict
    content = text.masked_ids.numpy().tobytes() + text.labels.numpy().tobytes()
    return {
        "lengths": list(lengths),
        "text_sha256": hashlib.sha256(content).hexdigest()[:DIGITS],
        "scored": int((text.labels != IGNORED).sum()),
        "divide_end_weights": divide,
        "dtype": dtype_name(dtype),
    }


def readable_lengths(folders, lengths):
    """{folder: the lengths that its model can read}, of the runs that can read any of them.

    Raises UserError if no run can.
    """
    readable = {}
    for folder in folders:
        possible = possible_lengths(folder, load_config(folder), lengths)
        if possible:
            readable[folder] = possible
    if folders and not readable:
        raise UserError("no run can read rows of these --lengths")
    return readable


def measure_runs(readable, text, measured, device, dtype):
    """Yield a record of each run (lab/record.py).

    Args:
        readable: from `readable_lengths`.
        text: a HeldOutText.
        measured: from `measurement`.
        device, dtype: of the matrix products.
    """
    origin = made_by(device)  # once: the files of the code may change during the work

    # the bar counts the tokens that the models read
    total = 0
    for lengths in readable.values():
        total += sum(rows_of_length(text, N)[0].numel() for N in lengths)

    with tqdm(total=total, unit="token", unit_scale=True, disable=None, leave=False) as bar:
        for folder, lengths in readable.items():
            bar.set_description(Path(folder).name)
            digest = model_digest(folder)
            divide = measured["divide_end_weights"]
            yield {
                **run_of(folder),
                "made_by": origin,
                "model": digest,
                "measured": measured,
                "losses": losses_of_run(folder, lengths, text, divide, device, dtype, bar),
            }


def losses_of_run(folder, lengths, text, divide, device, dtype, bar):
    """[[N, loss], ...] of a run. divide: whether to divide its end weights."""
    model, _ = load_run(folder)
    model = model.to(device)

    losses = []
    for N in lengths:
        model_for_N = model
        if divide:
            model_for_N = with_divided_end_weights(model, N)
        loss = loss_at(model_for_N, text, N, device, dtype, bar)
        if not math.isfinite(loss):
            raise UserError(f"{folder}: the loss at {N:,} tokens is {loss}")
        losses.append([N, loss])
    return losses


def check_runs(folders, corpus):
    """UserError if runs cannot be compared, or were trained on another corpus.

    Runs of one variant, whose mean is taken, may differ in the seed only.
    """
    for folder in folders:
        if pretraining_settings(folder).get("corpus") != corpus.fingerprint:
            raise UserError(
                f"{folder} was not trained on this --corpus with this --vocab_size; "
                "give both as for its training"
            )
        say_if_unfinished(folder)

    # Their settings. Two runs of different folders may have the same name, so an error gives the
    # whole path.
    runs = []
    for folder in folders:
        runs.append({**run_of(folder), "run": str(folder)})
    check_comparable(runs)


def run_of(folder):
    """The name and the settings of a run: what check_comparable and identity_of_run need."""
    return {"run": Path(folder).resolve().name, "settings": pretraining_settings(folder)}


def records_of_file(path):
    """{identity of a run: its record} of the file of --out; {} if it is not there yet."""
    if not path.exists():
        return {}
    return {identity_of_run(record): record for record in read_length_records(path)}


def check_out(path, kept, folders, measured):
    """UserError, before the work, if the file of --out cannot take these runs.

    kept: from `records_of_file`.
    """
    # all of them are finished; nothing in a record would show that one is not
    for folder in folders:
        progress = progress_of_unfinished(folder)
        if progress is not None:
            raise UserError(f"--out is for finished runs: {folder} is at {progress}")

    # the runs in the file were measured in the same way, so one of them is enough here
    if kept:
        first = next(iter(kept.values()))
        differences = different_settings(first["measured"], measured, except_for=())
        if differences:
            raise UserError(
                f"--out: the losses in {path} were measured in another way (other "
                f"{', '.join(differences)}); choose another file"
            )

    # they can be compared with the new ones, which replace records of the same run
    runs = dict(kept)
    for folder in folders:
        run = run_of(folder)
        runs[identity_of_run(run)] = run
    with added_to_errors(f"{path} has runs already: delete their lines, or choose another file"):
        check_comparable(list(runs.values()))


def not_in_file(path, kept, folders):
    """The runs whose losses are not in the file of --out, or are those of another model."""
    missing = []
    for folder in folders:
        record = kept.get(identity_of_run(run_of(folder)))
        if record is not None and record["model"] == model_digest(folder):
            print(f"{folder}: its losses are in {path} already")
        else:
            missing.append(folder)
    return missing


# --- Table and figure -----------------------------------------------------------------------------


def print_losses(record):
    """The losses of one run, in a line."""
    losses = [f"{N:,}: {loss:.4f}" for N, loss in record["losses"]]
    tqdm.write(f"{record['run']:<28}  {'   '.join(losses)}")
    sys.stdout.flush()  # show it now, also if the output goes to a file


def print_table(records, lengths):
    """One line per variant: mean and standard error over its runs at each length."""
    print("\n" + "variant".ljust(20) + "".join(f"{N:>18,}" for N in lengths))
    for variant, by_length in losses_of_variants(records).items():
        cells = []
        for N in lengths:
            losses = list(by_length.get(N, {}).values())
            cells.append(mean_and_standard_error(losses) if losses else "-")
        print(variant.ljust(20) + "".join(f"{cell:>18}" for cell in cells))


def draw_losses(records):
    """Loss against length, a line per variant. records: of losses by length (lab/record.py)."""
    pyplot = load_pyplot()
    losses_by_variant = losses_of_variants(records)

    # the legend has four variants in a line
    legend_height = 0.15 * math.ceil(len(losses_by_variant) / 4)  # inches
    figure, axis = pyplot.subplots(figsize=(6.3, 3.4 + legend_height))
    for number, (variant, by_length) in enumerate(losses_by_variant.items()):
        losses_of_lengths = [list(seeds.values()) for seeds in by_length.values()]
        means = [np.mean(losses) for losses in losses_of_lengths]
        errors = [standard_error(losses) for losses in losses_of_lengths]
        axis.errorbar(
            list(by_length),
            means,
            yerr=errors,
            marker="o",
            markersize=2.5,
            label=f"{variant} ({len(losses_of_lengths[0])})",
            **style_of_line(number),
        )

    # the --seq_len of the training
    trained_at = records[0]["settings"]["seq_len"]
    axis.axvline(trained_at, color="0.4", linewidth=0.8, linestyle=":")

    # a logarithmic axis of lengths, with the lengths themselves
    lengths = records[0]["measured"]["lengths"]
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [f"{N:,}" for N in lengths])
    axis.set_xlabel("N (tokens in a row; dotted: --seq_len of the training)")
    axis.set_ylabel("loss (nats) of the same tokens:\nmean, standard error, (number of runs)")
    # handles of 4 font sizes, long enough to show whether a line is solid, dashed or dotted
    figure.legend(loc="outside upper center", ncols=4, handlelength=4)
    return figure


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m lab.lengths",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder that pretrain.py wrote")
    add("--corpus", nargs="+", required=True, help="as for pretrain.py: the text of the runs")
    add(
        "--vocab_size",
        type=positive_int,
        default=VOCABULARY_SIZE,
        help="also as for pretrain.py (%(default)s)",
    )
    add("--cache_dir", type=Path, default="cache", help="downloads and token ids (%(default)s)")
    add(
        "--lengths",
        nargs="+",
        type=positive_int,
        default=list(LENGTHS),
        help="tokens in a row, at least 2 (64 to 2,048)",
    )
    add(
        "--divide_end_weights",
        action="store_true",
        help="of fixed kernels, in rows longer than the --seq_len of the training: divide the end "
        "weights by N / --seq_len",
    )
    add("--device", default="auto", help="auto, cpu, cuda, ... (%(default)s)")
    add("--dtype", choices=("auto", "fp32", "bf16"), default="auto", help="of matrix products")
    add("--out", type=Path, metavar="FILE.jsonl", help="also keep the numbers in this file")
    add(
        "--figure",
        type=figure_path,
        metavar="PATH",
        help="also draw them: a path without suffix, or a folder",
    )
    args = parser.parse_args(arguments)
    if min(args.lengths) < 2:
        parser.error("--lengths: a row has [CLS] and at least one token more")

    # a length or run that is given twice is one
    args.lengths = sorted(set(args.lengths))
    args.runs = each_run_once(args.runs)
    return args


def main(arguments=None):
    """Measure every run at every length. Returns the exit code."""
    args = parse_arguments(arguments)
    device, dtype, line = choose_device(args.device, args.dtype)
    print(line)
    if args.figure is not None:
        load_pyplot()  # a missing library is named before the work

    # the runs, and the text of their held-out pairs
    for folder in args.runs:
        config = load_config(folder)
        if args.divide_end_weights:
            check_end_weights(folder, config)
    seq_len = 8  # the smallest allowed; it only affects batches of pairs, which are not used here
    corpus = prepare_corpus(args.corpus, args.cache_dir, seq_len, args.vocab_size)
    check_runs(args.runs, corpus)
    text = held_out_text(corpus, args.lengths)
    measured = measurement(text, args.lengths, dtype, args.divide_end_weights)

    # what is left to measure
    missing = args.runs
    if args.out is not None:
        kept = records_of_file(args.out)
        check_out(args.out, kept, args.runs, measured)
        missing = not_in_file(args.out, kept, args.runs)
    readable = readable_lengths(missing, args.lengths)

    # write the file now, perhaps without a line, so that a wrong path fails before the work
    if args.out is not None:
        add_records(args.out, [], read_length_records)

    # measure; each run is kept as soon as it is finished
    print(f"the loss of the same {measured['scored']:,} tokens in rows of N tokens, as N: loss")
    records = []
    for record in measure_runs(readable, text, measured, device, dtype):
        print_losses(record)
        records.append(record)
        if args.out is not None:
            add_records(args.out, records, read_length_records)

    # with --out: also the runs of earlier commands
    if args.out is not None:
        records = read_length_records(args.out)
    print_table(records, args.lengths)
    if args.figure is not None:
        save(draw_losses(records), args.figure, args.figure.parent, "loss-by-length")
    return 0


if __name__ == "__main__":
    run_command("lab.lengths", main)
