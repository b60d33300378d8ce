"""Minimal pairs: does a pre-trained model prefer the correct sentence? Nothing is fine-tuned.

    python -m lab.pairs RUN ...                               the toy language's own pairs
    python -m lab.pairs RUN ... --data blimp                  BLiMP (downloaded once, 2.4 MB)
    python -m lab.pairs RUN ... --data FOLDER                 files in the format of BLiMP
    python -m lab.pairs RUN ... --table                       a table of finished results
    python -m lab.pairs RUN ... --compare composite fixed     composite - fixed, by phenomenon
    python -m lab.pairs RUN ... --compare composite fixed none     composite - fixed, fixed - none

RUN is a folder that pretrain.py wrote. The results are written to RUN/pairs/NAME.jsonl, one line
per paradigm (support/pair_results.py). NAME is toy, blimp or the name of FOLDER. A paradigm is
scored again only if its pairs or the model have changed.

A pair is right if the good sentence has the higher score. A tie counts one half. Two scores:

    pll           Pseudo-log-likelihood (Salazar et al. 2020): the sum of log p(piece) over all
                  pieces of the sentence. p is what the model predicts for this piece from all
                  others, with this piece masked.
    whole_word    The same, from left to right within a word (Kauf and Ivanova 2023): the pieces to
                  the right in the same word are masked, too. Otherwise each piece of a rare word
                  is easy to predict from its other pieces.

A sentence without a context is read as [CLS] sentence [SEP]. Pre-training never saw such a row: its
rows have two sentences. All variants have this disadvantage; how much it costs is not measured. If
a pair has a context, the model reads it as the first sentence, before the good or the bad one, and
only the pieces of the second sentence are scored.

The scores are computed in float32 on every device. bf16 has only 8 bits of precision: it would turn
some small differences into ties, and some ties into differences.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import itertools
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

import toy.pairs
from model import load_config, load_run
from support import blimp
from support.blimp import Paradigm
from support.commands import UserError, command_line, run_command
from support.devices import choose_device
from support.glue_table import print_table
from support.pair_results import (
    SCORES,
    add_result,
    credit_per_pair,
    digest_of_pairs,
    keep_results,
    read_results,
    results_lock,
    score_record,
)
from support.provenance import made_by
from support.runs import (
    added_to_errors,
    each_run_once,
    model_digest,
    pretraining_settings,
    say_if_unfinished,
)
from support.statistics import (
    SETTINGS_OF_VARIANT,
    Comparison,
    chance_note,
    check_comparable,
    check_same_settings,
    compare,
    group_by_variant,
    mean_and_standard_error,
)

# Two scores that differ by less than this, in nats, count as equal. Scores that should be equal
# differ by about 1e-6 if their batches have different shapes, because float32 rounds each sum.
TIE = 1e-4

# How many tokens a batch has. On a CPU, small batches are faster: they stay in its cache.
TOKENS_PER_BATCH = {"cpu": 2048, "cuda": 65_536, "mps": 16_384}

BUILT_IN = ("toy", "blimp")  # names of data that are no folders

RESAMPLES = 2_000  # of the bootstrap

# Without noise of pairs, the interval of three seeds goes from the smallest to the largest of the
# three differences: a resample takes the smallest one three times with probability 1 / 27 = 3.7 %,
# which is more than 2.5 %. All three are on one side of the true difference with probability 2 / 8.
# The same is true of two seeds, with probabilities of 1 / 4 and 2 / 4.
COVERAGE = (
    "The intervals include the choice of the pairs, p does not. But with few seeds, these "
    "intervals are too short: if most of the noise is between seeds, they contain the true "
    "difference in about three of four experiments with three seeds, and in one of two with two "
    "seeds. So trust a difference only if p is small and 0 is outside the interval."
)


# --- What the model reads -------------------------------------------------------------------------


class ModelInput(NamedTuple):
    """A sentence as the model reads it.

    [CLS] sentence [SEP], or with a context [CLS] context [SEP] sentence [SEP].

    Attributes:
        ids: token ids of the row.
        start: the index of the sentence's first piece in the row.
        words: for each piece of the sentence, the number of its word.
    """

    ids: tuple
    start: int
    words: tuple


def make_row(tokenizer, context, sentence):
    """The ModelInput of a sentence; context "" is none.

    The tokenizer first divides a sentence into words: sequences of letters, of digits or of other
    symbols. Example of the pieces of a sentence and their words:

        the dog's unhappiness.    ▁the  ▁dog  '  s  ▁un  happi  ness  .
                                     0     1  2  3    4      4     4  5
    """
    cls = tokenizer.token_to_id("[CLS]")
    sep = tokenizer.token_to_id("[SEP]")
    encoding = tokenizer.encode(sentence, add_special_tokens=False)

    before = [cls]
    if context:
        before += [*tokenizer.encode(context, add_special_tokens=False).ids, sep]
    ids = (*before, *encoding.ids, sep)
    return ModelInput(ids, len(before), tuple(encoding.word_ids))


def check_lengths(rows, longest):
    """UserError if a row is longer than what the model takes."""
    for (context, sentence), row in rows.items():
        if len(row.ids) > longest:
            text = f"{context} {sentence}".strip()
            raise UserError(f"{text!r} has {len(row.ids)} tokens, the model takes {longest}")


# --- Copies: rows with a piece masked -------------------------------------------------------------
#
# For each piece there is one copy of its row in which it is masked. Example with the pieces
# un happi ness of one word, and M for [MASK]:
#
#     piece     copy for pll        copy for whole_word
#     un        M  happi ness       M  M  M
#     happi     un M  ness          un M  M
#     ness      un happi M          un happi M
#
# The last piece of a word has one copy for both scores. So has every word of one piece.


class Copy(NamedTuple):
    """A row in which one or more pieces are masked, to predict one of them.

    Attributes:
        ids: token ids.
        position: the index of the piece to predict.
        target: its id.
        row: the number of the row.
        for_score: for each of SCORES, whether log p of this piece belongs to it.
    """

    ids: tuple
    position: int
    target: int
    row: int
    for_score: tuple


def copies_of(row, number, mask):
    """The copies of a row: a list of Copy.

    Args:
        row: a ModelInput.
        number: of the row.
        mask: the id of [MASK].
    """
    copies = []
    for index in range(len(row.words)):
        position = row.start + index
        end = row.start + last_of_word(row.words, index)
        target = row.ids[position]

        # one copy for both scores, or one for each
        if position == end:
            ids = masked(row.ids, position, end, mask)
            copies.append(Copy(ids, position, target, number, (True, True)))
        else:
            ids = masked(row.ids, position, position, mask)
            copies.append(Copy(ids, position, target, number, (True, False)))
            ids = masked(row.ids, position, end, mask)
            copies.append(Copy(ids, position, target, number, (False, True)))
    return copies


def last_of_word(words, index):
    """The index of the last piece of the word that piece `index` belongs to."""
    while index + 1 < len(words) and words[index + 1] == words[index]:
        index += 1
    return index


def masked(ids, start, end, mask):
    """Token ids with [MASK] from index `start` to index `end`."""
    masks = (mask,) * (end - start + 1)
    return ids[:start] + masks + ids[end + 1 :]


def length_of(copy):
    return len(copy.ids)


def batches_of(copies, tokens_per_batch):
    """Cut a list of copies, sorted by length, into batches: yields lists.

    All copies of a batch have the same length, so there is no padding. A batch has at most
    tokens_per_batch tokens, but at least one copy.
    """
    for length, group in itertools.groupby(copies, length_of):
        group = list(group)
        size = max(tokens_per_batch // length, 1)
        for start in range(0, len(group), size):
            yield group[start : start + size]


# --- Scores ---------------------------------------------------------------------------------------


def hidden_at(bert, input_ids, positions):
    """bert(input_ids) at one position of each row: (M, C).

    The mixer of the last layer needs all tokens. The feed-forward network after it is needed at one
    position only, which saves a sixth of the work of a model with 4 layers.

    Args:
        bert: a model.Bert in evaluation mode, so there is no dropout.
        input_ids: (M, N), without padding.
        positions: (M,).
    """
    last = bert.layers[-1]
    attention_mask = torch.ones_like(input_ids, dtype=torch.bool)  # (M, N)

    # as in model.Bert, but without the last layer
    x = bert.embeddings(input_ids, torch.zeros_like(input_ids))  # (M, N, C)
    for layer in bert.layers[:-1]:
        x = layer(x, attention_mask)  # (M, N, C)

    # as in model.Layer
    x = x + last.mixer(x, attention_mask)  # (M, N, C)
    own_row = torch.arange(len(x), device=x.device)
    x = last.mixer_norm(x[own_row, positions])  # (M, N, C) -> (M, C)
    return last.ffn_norm(x + last.ffn(x))


@torch.inference_mode()
def score_rows(model, rows, mask, tokens_per_batch):
    """The scores of a list of rows: (rows, 2) float64, in nats; the columns are SCORES.

    Args:
        model: a BertForMaskedLM in evaluation mode, in float32.
        rows: list of ModelInput.
        mask: the id of [MASK].
        tokens_per_batch: the largest number of tokens in a batch.
    """
    device = model.bias.device
    copies = []
    for number, row in enumerate(rows):
        copies.extend(copies_of(row, number, mask))
    copies.sort(key=length_of)

    sums = np.zeros((len(rows), len(SCORES)))
    for batch in batches_of(copies, tokens_per_batch):
        ids = torch.tensor([copy.ids for copy in batch], device=device)  # (M, N)
        positions = torch.tensor([copy.position for copy in batch], device=device)  # (M,)
        targets = torch.tensor([copy.target for copy in batch], device=device)  # (M,)

        # log p of each masked piece; the head is needed at its position only
        logits = model.head(hidden_at(model.bert, ids, positions))  # (M, C) -> (M, V)
        loss = F.cross_entropy(logits, targets, reduction="none")  # (M,)

        # Add it to the scores that it belongs to, in float64, which Apple's GPU does not have.
        log_p = -loss.cpu().double().numpy()[:, None]  # (M, 1)
        terms = np.where([copy.for_score for copy in batch], log_p, 0.0)  # (M, 2)
        np.add.at(sums, [copy.row for copy in batch], terms)
    return sums


def score_pairs(model, tokenizer, pairs, tokens_per_batch):
    """{score: (good, bad)}, two arrays (pairs,) of the scores of the sentences, in nats.

    Args:
        model: a BertForMaskedLM in evaluation mode, in float32.
        tokenizer: of the model.
        pairs: list of (context, good, bad).
        tokens_per_batch: the largest number of tokens in a batch.
    """
    # each different sentence once
    sentences = {}
    for context, good, bad in pairs:
        for sentence in (good, bad):
            if (context, sentence) not in sentences:
                sentences[context, sentence] = make_row(tokenizer, context, sentence)
    check_lengths(sentences, model.config.max_length)

    rows = list(sentences.values())
    mask = tokenizer.token_to_id("[MASK]")
    sums = score_rows(model, rows, mask, tokens_per_batch)  # (rows, 2)

    # back to pairs
    number_of = {key: number for number, key in enumerate(sentences)}
    good_rows = [number_of[context, good] for context, good, _ in pairs]
    bad_rows = [number_of[context, bad] for context, _, bad in pairs]
    scores = {}
    for column, name in enumerate(SCORES):
        scores[name] = (sums[good_rows, column], sums[bad_rows, column])
    return scores


def judge(good, bad):
    """The record of one score from the scores of the sentences, two arrays (pairs,)."""
    ties = np.abs(good - bad) < TIE
    wins = (good > bad) & ~ties
    return score_record(wins, ties)


# --- The pairs ------------------------------------------------------------------------------------


def read_paradigms(data, cache_dir):
    """The list of Paradigm of "toy", "blimp" or a folder."""
    if data == "toy":
        paradigms = []
        for name, (phenomenon, _) in toy.pairs.PARADIGMS.items():
            pairs = toy.pairs.zero_shot_pairs(name)
            paradigms.append(Paradigm(name, phenomenon, pairs))
        return paradigms
    if data == "blimp":
        return blimp.read_blimp(cache_dir)
    return blimp.read_folder(data)


def data_name(data):
    """The name under which results are kept: "toy", "blimp", or the name of the folder.

    A folder may be named "blimp", because it often holds BLiMP. Pairs that differ from those that
    were scored before are scored again. Two folders of one name share a file of results: scoring
    one of them without --paradigms deletes the results of paradigms that only the other one has,
    and main prints their names. Raises UserError for a folder named "toy".
    """
    if data in BUILT_IN:
        return data
    name = Path(os.path.realpath(data)).name
    if name == "toy":
        raise UserError(
            f"{data}: results on toy are those of the built-in pairs; give the folder another name"
        )
    return name


def chosen_paradigms(paradigms, names):
    """Those with one of these names; all if no names are given. UserError for an unknown name."""
    if not names:
        return paradigms
    known = [paradigm.name for paradigm in paradigms]
    for name in names:
        if name not in known:
            raise UserError(f"unknown paradigm {name!r}; the paradigms are: {', '.join(known)}")
    return [paradigm for paradigm in paradigms if paradigm.name in names]


# --- A run ----------------------------------------------------------------------------------------


def evaluate(folder, data, paradigms, device):
    """Score the paradigms that a run has not been scored on yet, and write each result.

    Args:
        folder: of the run.
        data: the name under which the results are kept.
        paradigms: list of Paradigm.
        device: torch.device.
    Returns:
        list of records, one per paradigm.
    """
    # what is already there, of this model and of these pairs
    say_if_unfinished(folder)
    digest = model_digest(folder)
    digests = {paradigm.name: digest_of_pairs(paradigm.pairs) for paradigm in paradigms}
    finished = {}
    for name, record in read_results(folder, data).items():
        if record["model"] == digest and record["pairs_sha256"] == digests.get(name):
            finished[name] = record
    missing = [paradigm for paradigm in paradigms if paradigm.name not in finished]
    print(f"{folder}: paradigms of {data}: {len(missing)} to score, {len(finished)} finished")

    # score the others
    if missing:
        model, tokenizer = load_run(folder)
        model = model.to(device)
        tokens_per_batch = TOKENS_PER_BATCH[device.type]
        origin = made_by(device)
        for paradigm in tqdm(missing, desc=f"{Path(folder).name}", unit="paradigm", disable=None):
            started = time.perf_counter()
            advice = f"to leave out {paradigm.name}, give the other paradigms to --paradigms"
            with added_to_errors(advice, UserError):
                scores = score_pairs(model, tokenizer, paradigm.pairs, tokens_per_batch)
            record = {
                "data": data,
                "paradigm": paradigm.name,
                "phenomenon": paradigm.phenomenon,
                "pairs": len(paradigm.pairs),
                "pairs_sha256": digests[paradigm.name],
                "model": digest,
                "scores": {name: judge(good, bad) for name, (good, bad) in scores.items()},
                "made_by": origin,
                "seconds": round(time.perf_counter() - started, 3),
            }
            add_result(folder, record)
            finished[paradigm.name] = record
    return [finished[paradigm.name] for paradigm in paradigms]


def read_run(folder, data):
    """A run with its results, for the tables: {"run", "settings", "pairs": {data: records}}.

    Raises UserError if it has no results on these data, or if they are of an earlier model.
    """
    # its results, of the model that it has now
    say_if_unfinished(folder)
    records = list(read_results(folder, data_name(data)).values())
    command = command_line(["python", "-m", "lab.pairs", folder, "--data", data])
    if not records:
        raise UserError(f"{folder} has no results on {data} yet: {command} makes them")
    # read_results returns records of one model only
    if records[0]["model"] != model_digest(folder):
        raise UserError(
            f"the results of {folder} are of an earlier model: {command} makes new ones"
        )

    # what was trained
    settings = pretraining_settings(folder)
    if "variant" not in settings or "seed" not in settings:
        raise UserError(f"{folder} has no log.jsonl, so its variant and its seed are unknown")
    return {"run": str(folder), "settings": settings, "pairs": {data_name(data): records}}


# --- Tables ---------------------------------------------------------------------------------------
#
# These functions take runs as plain dictionaries, as `read_run` returns them:
# {"run": name or path, "settings": {"variant", "seed", ...}, "pairs": {data: list of records}}.


def records_of(run, data):
    """{paradigm: record} of a run. Raises UserError if it has no results on these data."""
    records = run["pairs"].get(data, [])
    if not records:
        raise UserError(f"{run['run']} has no results on {data}")
    return {record["paradigm"]: record for record in records}


def check_same_pairs(runs, data):
    """UserError if the runs were not all scored on the same pairs."""
    first = records_of(runs[0], data)
    for run in runs[1:]:
        records = records_of(run, data)

        # both have results, but of other pairs
        for paradigm in sorted(first.keys() & records.keys()):
            if first[paradigm]["pairs_sha256"] != records[paradigm]["pairs_sha256"]:
                raise UserError(
                    f"{runs[0]['run']} and {run['run']} were not scored on the same pairs of "
                    f"{data} ({paradigm}): score both of them again"
                )

        # only one of them has a result, perhaps because the other one was interrupted
        missing = sorted(first.keys() ^ records.keys())
        if missing:
            without = runs[0]
            if missing[0] in first:
                without = run
            raise UserError(
                f"{without['run']} has no result on {missing[0]} of {data}: score it again, "
                "and only what is missing is done"
            )


def with_paradigms(run, data, paradigms):
    """The run with its results on these paradigms only; the run itself if none are named.

    Raises UserError if it has no results on one of them.
    """
    if not paradigms:
        return run
    records = records_of(run, data)
    for name in paradigms:
        if name not in records:
            raise UserError(
                f"{run['run']} has no results on {name!r}; the paradigms are: {', '.join(records)}"
            )
    return {**run, "pairs": {data: [records[name] for name in paradigms]}}


def groups_of(run, data, paradigms=()):
    """The rows of a table: {name of a row: list of paradigms whose mean it is}.

    One row per phenomenon, and last the mean of all paradigms. If paradigms are given, one row for
    each of them instead.
    """
    records = records_of(run, data)
    if paradigms:
        return {name: [name] for name in paradigms}

    groups = {}
    for record in records.values():
        groups.setdefault(record["phenomenon"], []).append(record["paradigm"])
    groups[name_of_mean(len(records))] = list(records)
    return groups


def name_of_mean(count):
    """The name of the mean of all paradigms that were scored. It says how many they are."""
    if count == 1:
        return "mean of 1 paradigm"
    return f"mean of {count} paradigms"


def mean_accuracy(run, data, paradigms, score="pll"):
    """The mean accuracy of a run on some paradigms, in percent."""
    records = records_of(run, data)
    return float(np.mean([records[name]["scores"][score]["accuracy"] for name in paradigms]))


def accuracy_table(runs, data, paradigms=()):
    """Accuracy by phenomenon and variant, in percent: mean +- standard error over the seeds.

    Args:
        runs: list of runs.
        data: name of the data.
        paradigms: names. If there are any, each of them has a row, in place of the phenomena.
    Returns:
        list of rows, each a list of cells (texts); the first row is the header. The last rows are
        the mean of the paradigms for each score, and how many pairs are ties.
    """
    check_comparable(runs)
    runs = [with_paradigms(run, data, paradigms) for run in runs]
    check_same_pairs(runs, data)
    variants = group_by_variant(runs)
    groups = groups_of(runs[0], data, paradigms)

    # the header: "composite (3)" are three seeds
    header = [f"{data}, % (seeds)"]
    for variant, seeds in variants.items():
        header.append(f"{variant} ({len(seeds)})")
    table = [header]

    # one row per phenomenon, then the mean
    for name, members in groups.items():
        table.append([name, *accuracy_cells(variants, data, members, "pll")])
    if not paradigms:
        mean = list(groups)[-1]  # the last row
        cells = accuracy_cells(variants, data, groups[mean], "whole_word")
        table.append([f"{mean}, whole_word", *cells])
        table.append(["ties", *tie_cells(variants, data)])
    return table


def accuracy_cells(variants, data, paradigms, score):
    """One cell per variant: mean +- standard error over its seeds."""
    cells = []
    for seeds in variants.values():
        values = [mean_accuracy(run, data, paradigms, score) for run in seeds.values()]
        cells.append(mean_and_standard_error(values, digits=1))
    return cells


def tie_cells(variants, data):
    """One cell per variant: how many of its pairs are ties, on average over its seeds."""
    cells = []
    for seeds in variants.values():
        counts = []
        for run in seeds.values():
            records = records_of(run, data).values()
            counts.append(sum(record["scores"]["pll"]["ties"] for record in records))
        cells.append(f"{np.mean(counts):,.0f}")
    return cells


class PairDifference(NamedTuple):
    """The difference between two variants on some paradigms, in percentage points.

    Attributes:
        name: of the row.
        comparison: the paired t-test over seeds.
        low, high: the 95 % interval of the bootstrap over seeds and pairs; see COVERAGE.
    """

    name: str
    comparison: Comparison
    low: float
    high: float

    def interval_notice(self):
        """What a reader must know about the interval, after it; "" with several seeds."""
        if self.comparison.seeds == 1:
            return " (pairs only)"
        return ""


def compare_variants(runs, data, first, second, paradigms=()):
    """Differences first - second of the score pll: by phenomenon, and last of the mean.

    Args:
        runs: list of runs; only those of these two variants are used.
        data: name of the data.
        first, second: names of variants.
        paradigms: names. If there are any, each of them has a row, in place of the phenomena.
    Returns:
        list of PairDifference.
    Raises:
        UserError: a variant has no runs, there is no seed that both have, or the runs were not
            trained in the same way or not scored on the same pairs.
    """
    variants = group_by_variant(runs)
    for name in (first, second):
        if name not in variants:
            raise UserError(f"there is no run of {name}; the runs are of: {', '.join(variants)}")

    # pairs of runs with the same seed
    seeds = [seed for seed in variants[first] if seed in variants[second]]
    if not seeds:
        raise UserError(f"there is no seed that both {first} and {second} have")
    first_runs = {}
    second_runs = {}
    for seed in seeds:
        first_runs[seed] = with_paradigms(variants[first][seed], data, paradigms)
        second_runs[seed] = with_paradigms(variants[second][seed], data, paradigms)
    check_same_pairs([*first_runs.values(), *second_runs.values()], data)

    # Within a variant all settings except the seed are equal, so one run of each is enough here.
    one_run = first_runs[seeds[0]]
    check_same_settings(one_run, second_runs[seeds[0]], ("seed", *SETTINGS_OF_VARIANT))

    # the t-test and the bootstrap of each row
    drawn = bootstrap(pair_differences(first_runs, second_runs, data))
    rows = []
    for name, members in groups_of(one_run, data, paradigms).items():
        first_values = accuracy_by_seed(first_runs, data, members)
        second_values = accuracy_by_seed(second_runs, data, members)
        low, high = interval_of_mean(drawn, members)
        rows.append(PairDifference(name, compare(first_values, second_values), low, high))
    return rows


def accuracy_by_seed(runs, data, paradigms):
    """{seed: the mean accuracy on some paradigms}. runs: {seed: run}."""
    return {seed: mean_accuracy(run, data, paradigms) for seed, run in runs.items()}


def interval_of_mean(drawn, paradigms):
    """The 95 % interval, (low, high), of the mean of some paradigms. drawn: from `bootstrap`."""
    means = np.mean([drawn[name] for name in paradigms], axis=0)  # (resamples,)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def pair_differences(first_runs, second_runs, data):
    """{paradigm: (seeds, pairs) credit of the first minus credit of the second, 100 per pair}.

    first_runs, second_runs: {seed: run}, with the same seeds.
    """
    differences = {}
    for seed in first_runs:
        first = records_of(first_runs[seed], data)
        second = records_of(second_runs[seed], data)
        for name, record in first.items():
            credit = credit_per_pair(record["scores"]["pll"], record["pairs"])
            other_credit = credit_per_pair(second[name]["scores"]["pll"], record["pairs"])
            differences.setdefault(name, []).append(100 * (credit - other_credit))
    return {name: np.stack(rows) for name, rows in differences.items()}


def bootstrap(differences, resamples=RESAMPLES):
    """Mean differences in resampled experiments: with other seeds and other pairs.

    Each resample draws, with replacement, as many seeds as there are. These are the same for all
    paradigms. In each paradigm it also draws, with replacement, as many pairs as there are. These
    are the same for all seeds.

    The pairs are drawn one by one, as if they were independent. The twins among the toy pairs
    (toy/pairs.py) are not: a model that does not see the order of words is right in exactly one of
    the two. So for the toy pairs the interval is approximate.

    Args:
        differences: {paradigm: (seeds, pairs)}.
        resamples: how many.
    Returns:
        {paradigm: (resamples,)}
    """
    random = np.random.default_rng(0)
    seeds = len(next(iter(differences.values())))

    # how often each resample draws each seed, as a share
    equal = np.full(seeds, 1 / seeds)
    seed_shares = random.multinomial(seeds, equal, size=resamples) / seeds  # (resamples, seeds)

    drawn = {}
    for name, values in differences.items():
        # Pairs with the same differences in all seeds are exchangeable. So it is enough to draw how
        # often each kind of pair comes: with three seeds there are some 20 kinds, not 1,000 pairs.
        kinds, counts = np.unique(values, axis=1, return_counts=True)  # (seeds, kinds), (kinds,)
        pairs = counts.sum()
        pair_counts = random.multinomial(pairs, counts / pairs, size=resamples)

        # the mean over the drawn pairs, then over the drawn seeds
        by_seed = pair_counts @ kinds.T / pairs  # (resamples, kinds) (kinds, seeds)
        drawn[name] = (seed_shares * by_seed).sum(axis=1)  # (resamples,)
    return drawn


def comparison_table(title, differences):
    """The rows of a table, each a list of cells (texts).

    Args:
        title: of the first column.
        differences: list of PairDifference.
    """
    # the header, then one row per difference
    header = [title, "difference", "95 % interval", "p (paired t-test)", "seeds"]
    table = [header]
    for difference in differences:
        comparison = difference.comparison
        interval = f"{difference.low:+z.1f} to {difference.high:+z.1f}"  # z: +0.0, never -0.0
        table.append(
            [
                difference.name,
                f"{comparison.mean:+z.1f}",
                interval + difference.interval_notice(),
                comparison.p_cell(),
                str(comparison.seeds),
            ]
        )
    return table


def order_differences(runs, data, variants):
    """Each variant minus the next one, on the mean of all paradigms.

    For the variants a, b, c: a - b, then b - c.

    Returns:
        (name of the mean, list of PairDifference).
    """
    differences = []
    names = []
    for first, second in itertools.pairwise(variants):
        mean = compare_variants(runs, data, first, second)[-1]
        differences.append(mean._replace(name=f"{first} - {second}"))
        names.append(mean.name)

    # all of these are means of the same paradigms
    check_same_pairs([run for run in runs if run["settings"]["variant"] in variants], data)
    return names[0], differences


def comparison_notes(differences):
    """The lines below a table of a list of PairDifference."""
    notes = [
        f"pll, percentage points; intervals: bootstrap over seeds and pairs, {RESAMPLES:,} "
        "resamples.",
        COVERAGE,
    ]
    chance = chance_note(p_value_count(differences))
    if chance:
        notes.append(chance)
    return notes


def p_value_count(differences):
    """How many differences of a list of PairDifference have a p-value."""
    return len([each for each in differences if not math.isnan(each.comparison.p)])


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m lab.pairs",
        description="Minimal pairs: does a pre-trained model prefer the correct sentence?",
    )
    add = parser.add_argument

    # what to score, and where
    add("runs", nargs="+", metavar="RUN", help="folder that pretrain.py wrote")
    add(
        "--data", default="toy", help="toy, blimp, or a folder of files in its format (%(default)s)"
    )
    add(
        "--paradigms",
        nargs="+",
        default=(),
        metavar="NAME",
        help="only these; in tables, one row each",
    )
    add("--cache_dir", type=Path, default="cache", help="for the download (%(default)s)")
    add("--device", default="auto", help="auto, cpu, cuda, ... (%(default)s)")

    # print instead of scoring
    add("--table", action="store_true", help="print finished results by phenomenon and variant")
    add(
        "--compare",
        nargs="+",
        metavar="VARIANT",
        help="two variants A B: print A - B by phenomenon; more, A B C: A - B and B - C, on the "
        "mean of all paradigms",
    )
    args = parser.parse_args(arguments)
    if args.compare and len(args.compare) == 1:
        parser.error("--compare needs two or more variants")
    if args.compare and len(args.compare) > 2 and args.paradigms:
        parser.error("--compare with more than two variants uses all paradigms; omit --paradigms")
    return args


def print_finished(args):
    """--table and --compare: from the results of the runs, without computing any."""
    data = data_name(args.data)
    runs = [read_run(folder, args.data) for folder in each_run_once(args.runs)]

    if args.table:
        print_table(accuracy_table(runs, data, args.paradigms), (), "text")
    if args.table and args.compare:
        print()
    if args.compare:
        print_comparison(runs, data, args.compare, args.paradigms)


def print_comparison(runs, data, variants, paradigms):
    """--compare: A - B for two variants; A - B and B - C for the variants A, B, C."""
    if len(variants) == 2:
        first, second = variants
        title = f"{first} - {second}"
        differences = compare_variants(runs, data, first, second, paradigms)
    else:
        title, differences = order_differences(runs, data, variants)
    table = comparison_table(title, differences)
    print_table(table, comparison_notes(differences), "text")


def print_scores(records):
    """The results of one run: a line per phenomenon."""
    groups = {}
    for record in records:
        groups.setdefault(record["phenomenon"], []).append(record)
    groups[name_of_mean(len(records))] = records

    table = [["", *SCORES, "pairs", "ties"]]
    for name, members in groups.items():
        cells = [name]
        for score in SCORES:
            mean = np.mean([record["scores"][score]["accuracy"] for record in members])
            cells.append(f"{mean:.1f}")
        cells.append(f"{sum(record['pairs'] for record in members):,}")
        cells.append(f"{sum(record['scores']['pll']['ties'] for record in members):,}")
        table.append(cells)
    print_table(table, (), "text")


def main(arguments=None):
    """Score the runs, or print tables. Returns the exit code."""
    args = parse_arguments(arguments)
    if args.table or args.compare:
        print_finished(args)
        return 0

    # What can be checked quickly is checked before the first run is scored.
    device, _, _ = choose_device(args.device, "fp32")
    folders = each_run_once(args.runs)
    for folder in folders:
        load_config(folder)
    data = data_name(args.data)
    paradigms = read_paradigms(args.data, args.cache_dir)
    paradigms = chosen_paradigms(paradigms, args.paradigms)

    for folder in folders:
        with results_lock(folder, data):
            records = evaluate(folder, data, paradigms, device)
            print_scores(records)

            # Paradigms that the data do not have any more must not be part of the mean.
            if not args.paradigms:
                names = [paradigm.name for paradigm in paradigms]
                deleted = keep_results(folder, data, names)
                if deleted:
                    names = ", ".join(deleted)
                    print(f"{folder}: deleted the results on {names}, which {data} does not have")
    return 0


if __name__ == "__main__":
    run_command("lab.pairs", main)
