"""Minimal pairs: does a pre-trained model prefer the correct sentence? Nothing is fine-tuned.

    python -m lab.pairs RUN ...                               the toy language's own pairs
    python -m lab.pairs RUN ... --data blimp                  BLiMP (downloaded once, 2.4 MB)
    python -m lab.pairs RUN ... --data FOLDER                 files in the format of BLiMP
    python -m lab.pairs RUN ... --table                       a table of finished results
    python -m lab.pairs RUN ... --compare composite fixed     composite - fixed, by phenomenon

RUN is a folder that pretrain.py wrote. A pair is right if the good sentence has the higher score. A
tie counts one half. The score is the pseudo-log-likelihood (pll, Salazar et al. 2020): the sum of
log p(piece) over all pieces of the sentence, where p is what the model predicts for this piece from
all others, with this piece masked.

A sentence without a context is read as [CLS] sentence [SEP]. Pre-training never saw such a row: its
rows have two sentences. All variants have this disadvantage; how much it costs is not measured. If
a pair has a context, the model reads it as the first sentence, before the good or the bad one, and
only the pieces of the second sentence are scored.

The scores are computed in float32 on every device. bf16 has only 8 bits of precision: it would turn
some small differences into ties, and some ties into differences.

The result of a run is one file, RUN/pairs/NAME.json. NAME is toy, blimp or the name of FOLDER:

    data         NAME
    model        12 hexadecimal digits of the SHA-256 of the run's model.pt
    made_by      the machine, the version of torch and the code
    paradigms    a list of {"paradigm", "phenomenon", "pairs": how many pairs it has,
                 "scores": {"pll": {"accuracy": in per cent, "ties": how many}}}

A paradigm is a set of pairs of one kind; several paradigms test one phenomenon.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import itertools
import json
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

import toy.pairs
from model import load_config, load_run
from support.commands import UserError, run_command
from support.devices import choose_device
from support.downloads import download
from support.files import write_text
from support.provenance import made_by
from support.runs import model_digest, pretraining_settings, say_if_unfinished
from support.statistics import (
    chance_note,
    check_comparable,
    compare,
    group_by_variant,
    mean_and_standard_error,
)

# Two scores that differ by less than this, in nats, count as equal. Scores that should be equal
# differ by about 1e-6 if their batches have different shapes, because float32 rounds each sum.
TIE = 1e-4

# How many tokens a batch has. On a CPU, small batches are faster: they stay in its cache.
TOKENS_PER_BATCH = {"cpu": 2048, "cuda": 65_536, "mps": 16_384}

# BLiMP (Warstadt et al. 2020): 67 paradigms of 1,000 English pairs. The files name 13 phenomena,
# the paper 12: it counts "s-selection" as "argument_structure".
BLIMP_COMMIT = "3e56b06fcabca9b30822fc66435fca6b1aa40bb1"
BLIMP_URL = f"https://github.com/alexwarstadt/blimp/raw/{BLIMP_COMMIT}/BLiMP.zip"
BLIMP_SIZE = 2_354_164  # bytes
BLIMP_SHA256 = "172a1a714d72e72a89e8384dd531483f3d0f8a9aee3d33dccaf7992d8cecbb73"

# What each line of a file must have: the paradigm, its phenomenon, and the pair.
KEYS = ("UID", "linguistics_term", "sentence_good", "sentence_bad")


# --- The pairs ------------------------------------------------------------------------------------


class Paradigm(NamedTuple):
    """Minimal pairs of one kind."""

    name: str
    phenomenon: str
    pairs: list  # of (context, good, bad); the context is "" if there is none


def read_paradigms(data, cache_dir):
    """The list of Paradigm of "toy", "blimp" or a folder. UserError if a file cannot be used."""
    if data == "toy":
        paradigms = []
        for name, (phenomenon, _) in toy.pairs.PARADIGMS.items():
            paradigms.append(Paradigm(name, phenomenon, toy.pairs.zero_shot_pairs(name)))
        return paradigms

    # In the archive of BLiMP, the files are in a folder.
    if data == "blimp":
        path = Path(cache_dir, "downloads", "BLiMP.zip")
        download([BLIMP_URL], path, BLIMP_SIZE, BLIMP_SHA256)
        return read_folder(zipfile.Path(path, "data/"))
    return read_folder(Path(data))


def read_folder(folder):
    """The paradigms of all files *.jsonl in a folder: list of Paradigm, sorted by phenomenon.

    Each line of a file is a JSON object, which has at least KEYS.

    Args:
        folder: a pathlib.Path, or a zipfile.Path, which is the same for an archive.
    Raises:
        UserError: there are no such files, or a line is damaged.
    """
    pairs = {}  # {(phenomenon, name of the paradigm): list of pairs}
    for path in sorted(folder.iterdir(), key=str):
        # On a disk in the format of another system, macOS writes a file ._NAME beside each file.
        if path.suffix != ".jsonl" or path.name.startswith("._"):
            continue
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    name, phenomenon, good, bad = read_line(line, f"{path}, line {number}")
                    pairs.setdefault((phenomenon, name), []).append(("", good, bad))

    if not pairs:
        raise UserError(f"{folder} has no pairs in files *.jsonl")
    paradigms = []
    for phenomenon, name in sorted(pairs):
        paradigms.append(Paradigm(name, phenomenon, pairs[phenomenon, name]))
    return paradigms


def read_line(line, place):
    """The values of KEYS in one line, bytes. UserError, which names the place, without one."""
    try:
        row = json.loads(line)
        values = [row[key] for key in KEYS]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        values = [None]
    for value in values:
        if not isinstance(value, str) or not value.strip():
            raise UserError(f"{place} is not a JSON object with texts for {', '.join(KEYS)}")
    return values


def data_name(data):
    """The name under which results are kept: "toy", "blimp", or the name of the folder.

    Raises UserError if there is no such folder, or if its results would mix with the built-in ones.
    """
    if data in ("toy", "blimp"):
        return data
    name = Path(data).resolve().name
    if not Path(data).is_dir():
        raise UserError(f"--data {data} is not toy, not blimp, and not a folder")
    if name in ("toy", "blimp"):
        raise UserError(f"{data} has the name of built-in pairs: give the folder another name")
    return name


# --- Scores ---------------------------------------------------------------------------------------


class Copy(NamedTuple):
    """A row of token ids in which one piece is masked."""

    ids: tuple
    position: int  # of the masked piece
    target: int  # its id
    sentence: int  # the number of the sentence


def masked_copies(tokenizer, context, sentence, number):
    """A list of Copy: for each piece of a sentence, the row in which it is masked.

    A row is [CLS] sentence [SEP], or with a context [CLS] context [SEP] sentence [SEP]. Example
    with the pieces "the dog slept", and M for [MASK]:

        [CLS] M   dog slept [SEP]      position 1, target "the"
        [CLS] the M   slept [SEP]      position 2, target "dog"
        [CLS] the dog M     [SEP]      position 3, target "slept"

    Args:
        tokenizer: of the model.
        context: a text, "" for none.
        sentence: a text.
        number: of the sentence.
    """
    cls, sep, mask = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]", "[MASK]"))

    # the row
    before = [cls]
    if context:
        before += [*tokenizer.encode(context, add_special_tokens=False).ids, sep]
    pieces = tokenizer.encode(sentence, add_special_tokens=False).ids
    row = (*before, *pieces, sep)

    # a copy for each piece of the sentence
    copies = []
    for position, target in enumerate(pieces, len(before)):
        ids = (*row[:position], mask, *row[position + 1 :])
        copies.append(Copy(ids, position, target, number))
    return copies


def length_of(copy):
    return len(copy.ids)


def batches_of(copies, tokens_per_batch):
    """Yield the copies in batches (lists) of equal length, so there is no padding.

    A batch has at most tokens_per_batch tokens, but at least one copy.
    """
    for length, group in itertools.groupby(sorted(copies, key=length_of), length_of):
        group = list(group)
        size = max(tokens_per_batch // length, 1)
        for start in range(0, len(group), size):
            yield group[start : start + size]


@torch.inference_mode()
def score_pairs(model, tokenizer, pairs, tokens_per_batch):
    """The pll of the good and of the bad sentences in nats: (pairs, 2) float64.

    Args:
        model: a BertForMaskedLM in evaluation mode, in float32.
        tokenizer: of the model.
        pairs: list of (context, good, bad).
        tokens_per_batch: the largest number of tokens in a batch.
    Raises:
        UserError: a row is longer than those that the model was trained for.
    """
    # the copies of all sentences; those of pair i have the numbers 2 i and 2 i + 1
    copies = []
    for number, (context, good, bad) in enumerate(pairs):
        copies += masked_copies(tokenizer, context, good, 2 * number)
        copies += masked_copies(tokenizer, context, bad, 2 * number + 1)
    longest = max(copies, key=length_of)
    if length_of(longest) > model.config.max_length:
        _, good, _ = pairs[longest.sentence // 2]
        raise UserError(f"the pair {good!r} is longer than {model.config.max_length} tokens")

    device = model.bias.device
    sums = torch.zeros(2 * len(pairs), dtype=torch.float64)
    for batch in batches_of(copies, tokens_per_batch):
        ids = torch.tensor([copy.ids for copy in batch], device=device)  # (M, N)
        positions = torch.tensor([copy.position for copy in batch], device=device)  # (M,)
        targets = torch.tensor([copy.target for copy in batch], device=device)  # (M,)

        # log p of each masked piece; the head is needed at its position only
        own_row = torch.arange(len(batch), device=device)
        hidden = model.bert(ids)[own_row, positions]  # (M, N, C) -> (M, C)
        loss = F.cross_entropy(model.head(hidden), targets, reduction="none")  # (M,)

        # Add it to its sentence, in float64, which Apple's GPU does not have.
        sentences = torch.tensor([copy.sentence for copy in batch])  # (M,)
        sums.index_add_(0, sentences, -loss.cpu().double())
    return sums.view(-1, 2).numpy()  # (2 * pairs,) -> (pairs, 2)


def judge(scores):
    """{"accuracy": in per cent, "ties": their number} of the scores (pairs, 2) of good and bad."""
    differences = scores[:, 0] - scores[:, 1]  # (pairs,) good - bad
    ties = int((np.abs(differences) < TIE).sum())
    wins = int((differences >= TIE).sum())
    return {"accuracy": 100 * (wins + ties / 2) / len(scores), "ties": ties}


# --- The result of a run --------------------------------------------------------------------------


def result_path(folder, data):
    return Path(folder, "pairs", f"{data}.json")


def score_run(folder, data, paradigms, device):
    """Score a run on a list of Paradigm. Returns the dictionary that its file has."""
    say_if_unfinished(folder)
    model, tokenizer = load_run(folder)
    model = model.to(device)
    tokens_per_batch = TOKENS_PER_BATCH[device.type]

    results = []
    for name, phenomenon, pairs in tqdm(paradigms, desc=str(folder), unit="paradigm", disable=None):
        scores = score_pairs(model, tokenizer, pairs, tokens_per_batch)
        results.append(
            {
                "paradigm": name,
                "phenomenon": phenomenon,
                "pairs": len(pairs),
                "scores": {"pll": judge(scores)},
            }
        )
    return {
        "data": data,
        "model": model_digest(folder),
        "made_by": made_by(device),
        "paradigms": results,
    }


def read_result(folder, data):
    """The dictionary in the file of a run. UserError if another model has made it."""
    path = result_path(folder, data)
    result = json.loads(path.read_text(encoding="utf-8"))
    if result["model"] != model_digest(folder):
        raise UserError(f"{path} is of another model than {folder}/model.pt: delete it")
    return result


def read_run(folder, data):
    """A run as the tables take it: {"run", "settings", "pairs": {data: its paradigms}}.

    Raises UserError if it has no result.
    """
    load_config(folder)
    settings = pretraining_settings(folder)
    if not settings:
        raise UserError(f"{folder} has no log.jsonl, so its variant and its seed are unknown")
    if not result_path(folder, data).exists():
        raise UserError(f"{folder} has no result on {data}: omit --table and --compare first")
    paradigms = read_result(folder, data)["paradigms"]
    return {"run": str(folder), "settings": settings, "pairs": {data: paradigms}}


# --- Tables ---------------------------------------------------------------------------------------
#
# These functions take runs as plain dictionaries, as `read_run` returns them. Those in results/ are
# the same.


def accuracies(run, data):
    """{row of a table: accuracy in per cent}: the mean of each phenomenon, then that of all."""
    paradigms = run["pairs"][data]
    groups = {}
    for paradigm in paradigms:
        accuracy = paradigm["scores"]["pll"]["accuracy"]
        groups.setdefault(paradigm["phenomenon"], []).append(accuracy)
    rows = {name: float(np.mean(values)) for name, values in groups.items()}

    # not the mean of the phenomena, which have different numbers of paradigms
    every = [paradigm["scores"]["pll"]["accuracy"] for paradigm in paradigms]
    rows[f"mean of {len(every)} paradigms"] = float(np.mean(every))
    return rows


def accuracies_by_variant(runs, data):
    """{variant: {seed: accuracies}}. UserError if the runs cannot be compared."""
    check_comparable(runs)
    check_same_pairs(runs, data)
    variants = {}
    for variant, seeds in group_by_variant(runs).items():
        variants[variant] = {seed: accuracies(run, data) for seed, run in seeds.items()}
    return variants


def check_same_pairs(runs, data):
    """UserError if the runs were not scored on the same paradigms, with as many pairs each."""
    scored = {}
    for run in runs:
        pairs = {each["paradigm"]: each["pairs"] for each in run["pairs"][data]}
        scored.setdefault(tuple(sorted(pairs.items())), run["run"])
    if len(scored) > 1:
        raise UserError(f"{' and '.join(scored.values())} were scored on other pairs of {data}")


def accuracy_table(runs, data):
    """Accuracy by phenomenon and variant, in per cent: mean +- standard error over the seeds.

    Returns a list of rows, each a list of texts; the first row is the header.
    """
    variants = accuracies_by_variant(runs, data)
    header = [f"{data}, % (seeds)"]
    for variant, seeds in variants.items():
        header.append(f"{variant} ({len(seeds)})")

    table = [header]
    for name in accuracies(runs[0], data):
        row = [name]
        for seeds in variants.values():
            values = [rows[name] for rows in seeds.values()]
            row.append(mean_and_standard_error(values, digits=1))
        table.append(row)
    return table


def compare_variants(runs, data, first, second):
    """Differences first - second over the seeds that both have, in percentage points.

    Returns:
        {row of the table: support.statistics.Comparison}, as in `accuracies`.
    Raises:
        UserError: a variant has no runs, there is no seed that both have, or the runs were not
            trained in the same way or not scored on the same pairs.
    """
    runs = [run for run in runs if run["settings"]["variant"] in (first, second)]
    variants = accuracies_by_variant(runs, data)
    for name in (first, second):
        if name not in variants:
            raise UserError(f"there is no run of {name}")

    comparisons = {}
    for name in accuracies(runs[0], data):
        first_values = {seed: rows[name] for seed, rows in variants[first].items()}
        second_values = {seed: rows[name] for seed, rows in variants[second].items()}
        comparisons[name] = compare(first_values, second_values)
    return comparisons


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m lab.pairs",
        description="Minimal pairs: does a pre-trained model prefer the correct sentence?",
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="folder that pretrain.py wrote")
    add("--data", default="toy", help="toy, blimp, or a folder (%(default)s)")
    add("--cache_dir", type=Path, default="cache", help="for the download (%(default)s)")
    add("--device", default="auto", help="auto, cpu, cuda, ... (%(default)s)")
    add("--table", action="store_true", help="print finished results by phenomenon and variant")
    add("--compare", nargs=2, metavar=("A", "B"), help="print A - B, two variants, by phenomenon")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Score the runs, or print tables. Returns the exit code."""
    args = parse_arguments(arguments)
    data = data_name(args.data)

    # tables of finished results
    runs = []
    if args.table or args.compare:
        runs = [read_run(folder, data) for folder in args.runs]
    if args.table:
        for name, *cells in accuracy_table(runs, data):
            print(name.ljust(28) + "".join(cell.rjust(28) for cell in cells))
    if args.compare:
        comparisons = compare_variants(runs, data, *args.compare)
        print(f"{' - '.join(args.compare)} on {data}, pll, percentage points")
        for name, comparison in comparisons.items():
            print(name.ljust(28) + comparison.text(digits=1))
        print(chance_note(len(comparisons)))
    if runs:
        return 0

    # What can be checked quickly is checked before the first run is scored.
    device, _, line = choose_device(args.device, "fp32")
    print(line)
    for folder in args.runs:
        load_config(folder)
    paradigms = read_paradigms(args.data, args.cache_dir)

    for folder in args.runs:
        path = result_path(folder, data)
        if path.exists():
            read_result(folder, data)
            print(f"{folder} was scored before: {path}")
            continue
        result = score_run(folder, data, paradigms, device)
        path.parent.mkdir(exist_ok=True)
        write_text(path, json.dumps(result, indent=2) + "\n")
        print(f"{folder}: {path}, the table is printed by --table")
    return 0


if __name__ == "__main__":
    run_command("lab.pairs", main)
