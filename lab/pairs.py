"""Minimal pairs: does a pre-trained model prefer the correct sentence? Nothing is fine-tuned.

    python -m lab.pairs RUN ...                               the toy language's own pairs
    python -m lab.pairs RUN ... --data blimp                  BLiMP (downloaded once, 2.4 MB)
    python -m lab.pairs RUN ... --data FOLDER                 files in the format of BLiMP
    python -m lab.pairs RUN ... --compare composite fixed     composite - fixed, by phenomenon

RUN is a folder that pretrain.py wrote. The command scores the runs that were not scored before, and
prints the accuracy of each label by phenomenon.

A pair is right if the good sentence has the higher score. A tie counts one half. The score is the
pseudo-log-likelihood (pll, Salazar et al. 2020): the sum of log p(piece) over all pieces of the
sentence, where p is what the model predicts for this piece from all others, with this piece masked.
A causal model masks nothing: the score is the log-probability of the sentence, the sum of
log p(piece) given what is before it, with the [SEP] at the end.

A sentence without a context is read as [CLS] sentence [SEP]. Pre-training never saw such a
sequence: its sequences have two sentences. If a pair has a context, the model reads it as the first
sentence, before the good or the bad one, and only the pieces of the second sentence are scored.

The scores are computed in float32 on every device. bf16 has only 8 bits of precision: it would turn
some small differences into ties, and some ties into differences.

The result of a run is one file, RUN/pairs/NAME.json. NAME is toy, blimp or the name of FOLDER:

    made_by      the machine, the version of torch and the commit of the code
    paradigms    {name: [how many pairs are right, how many it has]}

RUN/pairs/log.jsonl says for which model and pairs, and by which code. Results of others are in
RUN/pairs-2 and so on.

A paradigm is a set of pairs of one kind; several paradigms test one phenomenon.
"""

import argparse
import json
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

from data import next_tokens
from lab.report import pairs_measure, rows_of
from model import load_config, load_run, model_without_weights
from support.code import ROOT, code_of, digest_of
from support.commands import UserError, run_command
from support.corpus import read_lines
from support.devices import choose_device, made_by
from support.files import download, sha256_of, write_text
from support.options import add_columns, add_device
from support.runs import (
    find_place,
    label_of,
    place_for,
    read_log,
    read_records,
    unseen_pieces,
    warn_about_run,
)
from support.tables import INTERVAL_NOTE, differences_note, print_table, transposed
from support.tokenizer import CLS, IGNORED, MASK, SEP, ids_of, unknown_words

# Two scores that differ by less than this, in nats, count as equal. Scores that should be equal
# differ by about 1e-6 if their batches have different shapes, because float32 rounds each sum.
TIE = 1e-4

# How many tokens a batch has. On a CPU, small batches are faster: they stay in its cache.
TOKENS_PER_BATCH = {"cpu": 2048, "cuda": 65_536, "mps": 16_384}

# BLiMP (Warstadt et al. 2020): 67 paradigms of 1,000 English pairs. The files name 13 phenomena,
# the paper 12: it counts "s-selection" as "argument_structure".
BLIMP_COMMIT = "3e56b06fcabca9b30822fc66435fca6b1aa40bb1"
BLIMP_URL = f"https://github.com/alexwarstadt/blimp/raw/{BLIMP_COMMIT}/BLiMP.zip"
BLIMP_SHA256 = "172a1a714d72e72a89e8384dd531483f3d0f8a9aee3d33dccaf7992d8cecbb73"


# --- The pairs ------------------------------------------------------------------------------------


class Paradigm(NamedTuple):
    """Minimal pairs of one kind."""

    name: str
    phenomenon: str
    pairs: list  # of (context, good, bad); the context is "" if there is none


def read_data(data, cache_dir):
    """What --data names: (the name under which results are kept, a digest, a list of Paradigm).

    data: "toy", "blimp" or a folder.
    """
    folder = Path(data).resolve()
    name = folder.name
    if data == "toy":
        folder = ROOT / "toy" / "pairs"
    elif data == "blimp":  # in the archive, the files are in a folder
        path = download(BLIMP_URL, Path(cache_dir, "downloads", "BLiMP.zip"), BLIMP_SHA256)
        folder = zipfile.Path(path, "data/")
    elif not folder.is_dir():
        raise UserError(f"--data {data} is not toy, not blimp, and not a folder")
    paradigms = read_folder(folder)
    return name, digest_of(paradigms), paradigms


FIELDS = ("linguistics_term", "UID", "sentence_good", "sentence_bad")


def read_folder(folder):
    """The paradigms of all files *.jsonl in a folder: list of Paradigm, sorted by phenomenon.

    Each line of a file is a JSON object with the paradigm (UID), its phenomenon (linguistics_term),
    and the pair (sentence_good, sentence_bad). Empty lines and hidden files are skipped.

    folder: a pathlib.Path, or a zipfile.Path, which is the same for an archive.
    """
    paradigms = {}  # {UID: Paradigm}
    for path in sorted(folder.iterdir(), key=str):
        if path.name.startswith(".") or ".jsonl" not in path.suffixes:
            continue
        for number, line in enumerate(read_lines(path), 1):
            if not line.strip():
                continue
            # a line that is not as described above is the user's wrong file
            try:
                row = json.loads(line)
                phenomenon, name, good, bad = texts = [row[field] for field in FIELDS]
                pair = (row.get("context", ""), good, bad)
                "".join([*texts, *pair]).encode()  # an error if one is no text
            except (ValueError, KeyError, TypeError):
                texts = [""]
            if not all(text.strip() for text in texts):
                raise UserError(f"{path}, line {number} is not a pair in BLiMP's format")
            paradigm = paradigms.setdefault(name, Paradigm(name, phenomenon, []))
            if paradigm.phenomenon != phenomenon:
                raise UserError(f"{folder}: {name} (UID) has two phenomena (linguistics_term)")
            paradigm.pairs.append(pair)
    if not paradigms:
        raise UserError(f"{folder} has no pairs in files *.jsonl")
    return sorted(paradigms.values(), key=lambda paradigm: (paradigm.phenomenon, paradigm.name))


# --- Scores ---------------------------------------------------------------------------------------


def sequences_to_score(tokenizer, context, sentence, causal):
    """(ids, labels), (n, N) each: for each piece of a sentence, the sequence in which it is masked.

    A sequence is [CLS] sentence [SEP], or with a context [CLS] context [SEP] sentence [SEP].
    Example with the pieces "the dog slept", and M for [MASK]:

        ids                           labels (.: -100)
        [CLS] M   dog slept [SEP]     .  the  .    .    .
        [CLS] the M   slept [SEP]     .   .  dog   .    .
        [CLS] the dog M     [SEP]     .   .   .  slept  .

    causal: one sequence without a mask. Each piece, and [SEP], is predicted from the one before it:

        [CLS] the dog slept [SEP]     the dog slept [SEP] .
    """
    before = [CLS]
    if context:
        before += [*ids_of(tokenizer, context), SEP]
    pieces = ids_of(tokenizer, sentence)
    ids = torch.tensor([[*before, *pieces, SEP]])  # (1, N)

    # the first label is that of the token before the sentence
    if causal:
        labels = next_tokens(ids)  # (1, N)
        labels[:, : len(before) - 1] = IGNORED
        return ids, labels

    # a sequence for each piece of the sentence: its line of the identity is True at its place
    is_masked = torch.eye(ids.shape[1], dtype=torch.bool)[len(before) : -1]  # (n, N)
    return ids.masked_fill(is_masked, MASK), ids.masked_fill(~is_masked, IGNORED)


@torch.inference_mode()
def score_pairs(model, tokenizer, pairs, tokens_per_batch):
    """The scores of the good and of the bad sentences in nats: (pairs, 2) float64.

    Args:
        model: a BertForMaskedLM in evaluation mode, in float32.
        tokenizer: of the model.
        pairs: list of (context, good, bad).
        tokens_per_batch: the largest number of tokens in a batch; it has at least one sequence.
    """
    # The sequences of all sentences, by their length N: so there is no padding. The sentences of
    # pair i have the numbers 2 i and 2 i + 1.
    by_length = {}
    for pair, (context, *good_and_bad) in enumerate(pairs):
        for number, sentence in enumerate(good_and_bad, 2 * pair):
            ids, labels = sequences_to_score(tokenizer, context, sentence, model.config.causal)
            n, N = ids.shape
            if N > model.config.max_length:
                raise UserError(
                    f"the pair {good_and_bad[0]!r} is longer than {model.config.max_length} tokens"
                )
            by_length.setdefault(N, []).append((ids, labels, torch.full((n,), number)))

    device = model.bias.device
    sums = torch.zeros(2 * len(pairs), dtype=torch.float64)
    for N, parts in sorted(by_length.items()):
        size = max(tokens_per_batch // N, 1)
        ids, labels, numbers = [
            torch.cat(tensors).split(size) for tensors in zip(*parts, strict=True)
        ]
        for batch_ids, batch_labels, sentences in zip(ids, labels, numbers, strict=True):
            # log p of the M pieces to predict
            logits, targets = model.masked_logits(
                batch_ids.to(device), None, batch_labels.to(device)
            )  # (M, V), (M,)
            loss = F.cross_entropy(logits, targets, reduction="none")  # (M,)

            # Add it to its sentence, in float64, which Apple's GPU does not have.
            predicted = (batch_labels != IGNORED).sum(dim=1)  # (B,)
            sentences = sentences.repeat_interleave(predicted)  # (B,) -> (M,)
            sums.index_add_(0, sentences, -loss.cpu().double())
    return sums.view(-1, 2).numpy()  # (2 * pairs,) -> (pairs, 2)


def count_right(scores):
    """How many pairs are right, of the scores (pairs, 2) of good and bad; a tie counts one half."""
    if not np.isfinite(scores).all():
        raise UserError("a score is not finite: the weights are too large")
    differences = scores[:, 0] - scores[:, 1]  # (pairs,) good - bad
    ties = int((np.abs(differences) < TIE).sum())
    wins = int((differences >= TIE).sum())
    return wins + ties / 2


# --- The result of a run --------------------------------------------------------------------------


def score_run(folder, paradigms, device):
    """Score a run on a list of Paradigm. Yields (name, [right pairs, pairs]) of each."""
    model, tokenizer = load_run(folder)
    tokenizer.encode_special_tokens = True  # "[MASK]" in a pair is text, as in all texts (Encoder)
    model.to(device)
    tokens_per_batch = TOKENS_PER_BATCH.get(device.type, 2048)
    paradigms = pairs_that_differ(folder, tokenizer, paradigms)

    # without a terminal, a line each minute
    seconds = 0.1 if sys.stderr.isatty() else 60
    for name, _, pairs in tqdm(paradigms, str(folder), unit="paradigm", mininterval=seconds):
        scores = score_pairs(model, tokenizer, pairs, tokens_per_batch)
        yield name, [count_right(scores), len(pairs)]


def pairs_that_differ(folder, tokenizer, paradigms):
    """The paradigms without the pairs whose sentences have the same ids: nothing tells them apart.

    A line says in how many pairs the run does not know a word. A paradigm of which nothing is left
    is left out.
    """
    # keep the pairs with different ids, and count those with an unknown word
    unseen = unseen_pieces(folder)
    unknown = 0
    kept = []
    for paradigm in paradigms:
        different = []
        for pair in paradigm.pairs:
            _, good, bad = (ids_of(tokenizer, text) for text in pair)
            if good != bad:
                different.append(pair)
            unknown += any(unknown_words(tokenizer, text, unseen) for text in pair)
        if different:
            kept.append(paradigm._replace(pairs=different))

    # what a reader of the scores must know
    if unknown:
        print(f"{unknown:,} of {count_pairs(paradigms):,} pairs have a word unknown to {folder}")
    if not kept:
        raise UserError(f"{folder}: the sentences of all pairs have equal tokens")
    return kept


def count_pairs(paradigms):
    """How many pairs some paradigms have."""
    return sum(len(paradigm.pairs) for paradigm in paradigms)


def result_of(folder, name, digest, paradigms, device):
    """The result of a run as a record, of which lab/report.py makes tables.

    A run that was not scored before is scored; other code scores it in RUN/pairs-2 (place_for).
    name, digest, paradigms: what read_data returns.
    """
    # where its result is, or will be
    warn_about_run(folder)
    settings = {"model": sha256_of(folder / "model.pt")[:12], f"pairs {name}": digest}
    made = {"settings": settings, "code": code_of(model_without_weights(folder))}
    place, _ = find_place(folder / "pairs", made)

    # scored only once; the folder is claimed when there is something to write
    if not (place / f"{name}.json").exists():
        result = {
            "made_by": made_by(device),
            "paradigms": dict(score_run(folder, paradigms, device)),
        }
        place = place_for(folder / "pairs", made)
        write_text(place / f"{name}.json", json.dumps(result, indent=2) + "\n")
    result = read_records(place / f"{name}.json")

    # what was left out
    total = count_pairs(paradigms)
    scored = sum(pairs for _, pairs in result["paradigms"].values())
    if scored < total:
        print(f"{total - scored:,} of {total:,} pairs are left out: equal tokens in {folder}")

    trained = read_log(folder)[0]
    return {
        "run": folder,
        "settings": trained["settings"],
        "code": trained["code"],
        "pairs": {name: result["paradigms"]},
        "scored": {name: {"pairs": digest, **made["code"]}},
    }


def print_tables(records, data, paradigms, compared):
    """Accuracy in per cent by phenomenon: of each label, or of two labels and their difference.

    paradigms: a list of Paradigm. compared: two labels, or None.
    """
    # all runs were scored on the same paradigms, or rows_of refuses them
    scored = records[0]["pairs"][data]
    names = {}  # {phenomenon: the names of its paradigms}
    for name, phenomenon, _ in paradigms:
        if name in scored:
            names.setdefault(phenomenon, []).append(name)
    measures = [pairs_measure(phenomenon, data, names[phenomenon]) for phenomenon in names]

    # not the mean of the phenomena, which have different numbers of paradigms
    measures.append(pairs_measure(f"mean of {len(scored)} paradigms", data))

    # a row per phenomenon, a column per label
    rows = transposed(rows_of(records, measures, compared))
    note = "accuracy in per cent, mean and standard error over the runs of a label"
    print_table(rows, INTERVAL_NOTE if compared else note, differences_note(records, compared))


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        description="Minimal pairs: does a pre-trained model prefer the correct sentence?"
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder that pretrain.py wrote")
    add("--data", default="toy", help="toy, blimp, or a folder (%(default)s)")
    add("--cache_dir", type=Path, default="cache", help="for the download (%(default)s)")
    add_device(add)
    add_columns(add)
    return parser.parse_args(arguments)


def main(arguments=None):
    """Score the runs that were not scored before, and print the table of all."""
    args = parse_arguments(arguments)
    device, _ = choose_device(args.device, "fp32")

    # a wrong folder, or label, is found before the first run is scored
    labels = [label_of(folder) for folder in args.runs if load_config(folder)]
    if not set(args.compare or ()) <= set(labels):
        raise UserError(f"--compare: the labels of the runs are {', '.join(labels)}")
    name, digest, paradigms = read_data(args.data, args.cache_dir)

    records = [result_of(folder, name, digest, paradigms, device) for folder in args.runs]
    print_tables(records, name, paradigms, args.compare)


if __name__ == "__main__":
    run_command(main)
