"""Held-out loss by length: how well does a model predict in longer sequences than in its training?

    python -m lab.lengths RUN [RUN ...] --corpus english.txt
    python -m lab.lengths RUN [RUN ...] --corpus english.txt --out lengths.jsonl

RUN is a folder that pretrain.py wrote, and --corpus (default: toy) names the text that the run was
trained on: its held-out pairs are used, and the tokenizer of the run. A run that was trained on
another corpus is refused.

The losses are printed as a table: for each label, the mean over its runs and the standard error.
--out also writes them to a new file, one line per run:

    run, settings    the name of its folder, and everything that its training depends on
    code             digests of the code that trained it
    made_by          the machine, the version of torch and the commit of the code
    measured         how: {"lengths", "scored"}
    losses           [[N, loss in nats], ...]; lengths that the model cannot read are left out

The text. A pair of sentences is hardly ever 2,048 tokens long, so the sequences are not pairs. They
are made from all held-out sentences, in the order of the corpus, with a [SEP] after each one:

    the text           s1 [SEP] s2 [SEP] s3 [SEP] ...      with masks, drawn once from seed 0
    stretches          the text in parts of L - 1 tokens, where L is the longest of --lengths; what
                       is left over is not used
    sequences of N     [CLS] and the next N - 1 tokens of a stretch; what is left over at the end of
                       the stretch is not used

Held-out sentences come in blocks of up to 64 consecutive ones, from all parts of the corpus. For
English a block has about 2,000 tokens. So nearly every sequence of 2,048 tokens, and about half of
those of 1,024, hold passages that do not belong together. Sequences also cross the borders of
documents.

What is compared. At every length the same tokens are masked, and the same ones are scored: those
that are at least 8 places from both ends of their sequence at every length (scored_positions; a
quarter of the shortest sequence if it has fewer than 32 tokens). Otherwise shorter sequences, which
cut more sentences at their ends, would be at a disadvantage. So the losses of one run at two
lengths can be compared, and so can those of two runs at one length. The losses of two commands can
be compared if their --corpus and --lengths are the same. The loss is not the held-out loss of
pretrain.py, whose sequences are pairs of sentences. In causal models nothing is masked: the token
after each of these places is predicted.

A model with a vector per position (absolute, convbert) cannot read sequences that are longer than
its table of vectors: these lengths are left out, and a line says so. All other models read every
length. The losses are computed in float32 on every device.

Letters as in attention.py.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional as F

from attention import VARIANTS
from data import mask_tokens, next_tokens, prepare_corpus
from lab.report import check_new, length_measure, origin
from model import load_config, load_run
from pretrain import evaluate
from support.commands import UserError, number, run_command
from support.devices import choose_device, made_by
from support.options import add_device, add_text
from support.runs import read_log, write_records
from support.tables import differences_note, groups_of, print_table, table_rows
from support.tokenizer import CLS, IGNORED, SEP

LENGTHS = (64, 128, 256, 512, 1024, 2048)
TOKENS_PER_BATCH = 4096
MARGIN = 8  # tokens between a scored token and the ends of its sequence: the window of K = 17


# --- The text -------------------------------------------------------------------------------------


class HeldOutText(NamedTuple):
    """Held-out text with masks; a line of a tensor is a stretch, or a sequence of N tokens."""

    masked_ids: torch.Tensor  # (stretches, longest - 1) or (sequences, N), what the model gets
    labels: torch.Tensor  # the masked tokens that are scored, -100 elsewhere

    def held_out_batches(self, batch_size, causal):
        """(masked_ids, labels), (B, N) each, for pretrain.evaluate; the labels know `causal`."""
        parts = self.masked_ids.split(batch_size), self.labels.split(batch_size)
        return zip(*parts, strict=True)


def held_out_stretches(corpus, longest):
    """The held-out sentences of a data.Corpus: (stretches, longest - 1) token ids."""
    # the sentences in the order of the corpus, each with a [SEP]
    parts = []
    for pair in np.sort(corpus.held_out):
        begin, middle, end = corpus.sentence_starts[2 * pair : 2 * pair + 3].tolist()
        parts += [corpus.tokens[begin:middle], [SEP], corpus.tokens[middle:end], [SEP]]
    tokens = torch.from_numpy(np.concatenate(parts).astype(np.int64))

    # stretches of equal length; what is left over is not used
    width = longest - 1  # [CLS] takes one place
    stretches = len(tokens) // width
    if stretches == 0:
        raise UserError(
            f"the held-out text has {len(tokens):,} tokens, too few for a sequence of {longest:,}: "
            "give smaller --lengths"
        )
    return tokens[: stretches * width].view(stretches, width)


def held_out_text(corpus, lengths, causal=False):
    """The HeldOutText of a data.Corpus for sequences of these lengths.

    causal: nothing is masked, and the labels are the next tokens.
    """
    text = held_out_stretches(corpus, max(lengths))

    # the masks: the same for every length and every run; a causal model needs none
    if causal:
        masked_ids, labels = text, next_tokens(text)
    else:
        generator = torch.Generator().manual_seed(0)
        masked_ids, labels = mask_tokens(text, corpus.vocab_size, generator)

    # the masked tokens that are scored: the same, too
    labels = labels.masked_fill(~scored_positions(text.shape[1], lengths), IGNORED)
    if (labels == IGNORED).all():
        raise UserError(
            "no token is far enough from the ends of its sequences: give longer --lengths"
        )
    return HeldOutText(masked_ids, labels)


def scored_positions(width, lengths):
    """Which tokens of a stretch are scored: (width,) bool.

    Those that have at least MARGIN tokens of the text on both sides in their sequence, at every
    length. If the shortest sequences have fewer than 4 * MARGIN tokens, the margin is a quarter of
    them. A sequence that is not full, at the end of a stretch, is not scored.

    Example: a stretch of 12 tokens, lengths 5 and 7 ([CLS] is one of the tokens), margin 1.

        token of the stretch     0  1  2  3  4  5  6  7  8  9 10 11
        sequences of 5           .  x  x  . |.  x  x  . |.  x  x  .
        sequences of 7           .  x  x  x  x  . |.  x  x  x  x  .
        scored                   .  x  x  .  .  .  .  .  .  x  x  .
    """
    margin = min(MARGIN, min(lengths) // 4)
    token = torch.arange(width)  # the tokens of the stretch, numbered
    scored = torch.ones(width, dtype=torch.bool)
    for N in lengths:
        text_width = N - 1  # tokens of the text in a sequence, without [CLS]

        # far enough from both ends of its sequence
        place = token % text_width  # in the sequence
        is_inside = (place >= margin) & (place < text_width - margin)

        # not in the last sequence, if that is not full
        full_sequences = width // text_width
        is_in_full_sequence = token < full_sequences * text_width

        scored &= is_inside & is_in_full_sequence
    return scored


def sequences_of_length(text, N):
    """The text in sequences of N tokens, as a HeldOutText.

    Example: a stretch of 8 tokens in sequences of N = 4. The last two tokens do not fill a
    sequence.

        t0 t1 t2 t3 t4 t5 t6 t7   ->   [CLS] t0 t1 t2
                                       [CLS] t3 t4 t5
    """
    # unfold leaves out the tokens that do not fill a sequence: none of them is scored
    text_width = N - 1  # tokens of the text in a sequence, without [CLS]
    masked_ids = text.masked_ids.unfold(1, text_width, text_width)  # (stretches, parts, N - 1)
    labels = text.labels.unfold(1, text_width, text_width)  # (stretches, parts, N - 1)
    masked_ids = masked_ids.flatten(0, 1)  # (sequences, N - 1)
    labels = labels.flatten(0, 1)  # (sequences, N - 1)

    # [CLS] in front of every sequence
    return HeldOutText(F.pad(masked_ids, (1, 0), value=CLS), F.pad(labels, (1, 0), value=IGNORED))


# --- The loss -------------------------------------------------------------------------------------


def loss_of_text(model, text, N, device):
    """The mean loss in nats over all scored tokens, in sequences of N tokens."""
    sequences = sequences_of_length(text, N)
    batch_size = max(1, TOKENS_PER_BATCH // N)
    loss, _ = evaluate(model, sequences, batch_size, device, torch.float32)
    return loss


def measure_run(folder, text, lengths, device):
    """Yield [N, loss] of a run at all lengths that it can read."""
    model, _ = load_run(folder)
    model.to(device)
    config = model.config
    for N in lengths:
        if VARIANTS[config.variant].absolute and N > config.max_length:
            print(f"{folder} cannot read {N:,} tokens: it has {config.max_length} positions")
        else:
            yield [N, loss_of_text(model, text, N, device)]


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description="Held-out loss by length: how well does a model predict in longer sequences?"
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder that pretrain.py wrote")
    add_text(add)
    add("--lengths", nargs="+", type=number(int, 2), default=LENGTHS, help="64 to 2,048")
    add_device(add)
    add("--out", type=Path, metavar="FILE.jsonl", help="also write the losses to a new file")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Measure every run at every length."""
    args = parse_arguments(arguments)
    lengths = sorted(set(args.lengths))
    device, _ = choose_device(args.device, "fp32")

    # What can be wrong is checked before the work.
    check_new(args.out)
    seq_len = max(load_config(folder).max_length for folder in args.runs)
    tokenizer = Tokenizer.from_str((args.runs[0] / "tokenizer.json").read_text(encoding="utf-8"))
    corpus = prepare_corpus(args.corpus, args.cache_dir, seq_len, tokenizer=tokenizer)
    records = []
    for folder in args.runs:
        made = read_log(folder)[0]
        if made["settings"].get("corpus") != corpus.fingerprint:
            raise UserError(f"{folder} was not trained on this --corpus")
        record = {name: made[name] for name in ("settings", "code")}
        records.append({"run": folder.resolve().name, **record, "made_by": made_by(device)})
    groups_of(records)

    # how the losses are measured
    text = held_out_text(corpus, lengths, records[0]["settings"]["causal"])
    measured = {"lengths": lengths, "scored": int((text.labels != IGNORED).sum())}
    print(f"[N, loss of the same {measured['scored']:,} tokens in sequences of N tokens]")

    for folder, record in zip(args.runs, records, strict=True):
        record["measured"] = measured
        record["losses"] = list(measure_run(folder, text, lengths, device))
        print(f"{folder}  {record['losses']}", flush=True)
    rows = table_rows(records, [length_measure(N) for N in lengths])
    print_table(rows, differences_note(records), origin(records))
    if args.out is not None:
        write_records(args.out, records)


if __name__ == "__main__":
    run_command(main)
