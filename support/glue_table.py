"""GLUE's table: which runs share a row, means and errors, the paper's rows, two variants compared.

Everything here takes plain values, so that results may come from the folders of runs or from
records that were kept somewhere else:

    runs = [Run("runs/none-seed0", {"variant": "none", "seed": 0, "steps": 2000}, records), ...]
    pooled_rows(runs)["none"]["CoLA"].text()                    "20.0+-5.8"
    compare_variants(runs, "composite", "none")["CoLA"]         a Difference, with its p-value

There are two kinds of seeds. The pre-training seed determines the pre-trained model. The
fine-tuning seed determines how this model is fine-tuned. Runs that differ only in the pre-training
seed share a row of the table. First the fine-tuning seeds of each run are averaged. Then the error
of the row is taken over these means, one mean per run. If a row has only one pre-trained model, its
error is over the fine-tuning seeds, as in [C]. Such an error does not include the noise of
pre-training: the row is marked with ^.

[C] is Chang, Xu, Xu, Tu 2021.
"""

import csv
import itertools
import sys
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from support.commands import UserError
from support.glue_results import score_on
from support.statistics import (
    ALL_EQUAL,
    SETTINGS_OF_VARIANT,
    Comparison,
    chance_note,
    compare,
    different_settings,
    mean_and_standard_error,
)

# column of the GLUE score: (task, split), in the order of [C] table 6
COLUMNS = {
    "CoLA": ("cola", "dev"),
    "MNLI-m": ("mnli", "dev_matched"),
    "MNLI-mm": ("mnli", "dev_mismatched"),
    "MRPC": ("mrpc", "dev"),
    "QNLI": ("qnli", "dev"),
    "QQP": ("qqp", "dev"),
    "RTE": ("rte", "dev"),
    "SST": ("sst-2", "dev"),
    "STS": ("sts-b", "dev"),
}
# printed after the GLUE score and not part of it; [C] leave it out
OUTSIDE = {"WNLI": ("wnli", "dev")}

# [C] table 6, development scores: means over ten fine-tuning seeds of one model, and below them the
# standard errors. The order is that of COLUMNS, then GLUE. The GLUE scores of BERT-base are 0.1 to
# 0.4 below the means of their columns: they are copied as [C] prints them.
# fmt: off
PUBLISHED = {
    "small": {
        "none": (
            " 7.0 73.0 73.0 80.9 80.1 84.4 61.0 80.9 83.7 69.3",
            " 2.4  0.1  0.1  0.4  0.2  0.1  0.5  0.9  0.1  0.3",
        ),
        "absolute": (
            "33.5 75.8 76.1 83.3 78.2 84.9 64.4 85.0 82.4 73.7",
            " 0.4  0.1  0.1  0.4  0.3  0.0  0.5  0.2  0.1  0.1",
        ),
        "fixed": (
            "38.3 77.2 77.2 84.0 82.1 86.2 64.7 86.9 85.2 75.7",
            " 0.8  0.1  0.1  0.5  0.1  0.0  0.9  0.2  0.1  0.2",
        ),
        "dynamic": (
            "38.4 77.9 77.6 85.6 82.8 87.2 65.1 86.8 85.6 76.3",
            " 0.7  0.1  0.1  0.5  0.1  0.0  0.9  0.2  0.1  0.1",
        ),
        "composite": (
            "40.9 77.9 78.0 86.2 83.0 87.3 66.1 86.9 85.9 76.9",
            " 0.7  0.1  0.1  0.3  0.1  0.0  0.7  0.1  0.1  0.1",
        ),
        "composite-key": (
            "40.0 77.9 77.7 86.3 83.3 87.4 66.3 86.5 86.1 76.8",
            " 0.6  0.1  0.1  0.3  0.1  0.0  0.4  0.3  0.2  0.1",
        ),
        "depthwise": (
            "38.0 76.9 76.8 82.8 81.9 86.1 64.2 87.2 84.4 75.4",
            " 0.6  0.0  0.1  0.5  0.1  0.1  0.7  0.2  0.1  0.1",
        ),
        "composite-depthwise": (
            "40.4 77.2 77.4 85.0 83.3 87.3 63.5 87.1 86.1 76.4",
            " 0.7  0.1  0.1  0.3  0.1  0.0  0.8  0.2  0.1  0.1",
        ),
        "conv-qk": (
            "33.4 76.3 76.4 83.3 81.3 85.1 63.0 86.1 84.5 74.4",
            " 0.4  0.1  0.1  0.2  0.2  0.1  1.0  0.2  0.1  0.1",
        ),
        "conv-v": (
            "34.7 76.2 76.6 83.4 82.4 86.6 65.2 87.2 85.0 75.2",
            " 0.9  0.0  0.1  0.4  0.1  0.0  0.7  0.3  0.1  0.1",
        ),
        "conv-qkv": (
            "31.9 76.3 76.3 83.7 80.4 84.6 66.1 86.4 84.4 74.4",
            " 0.7  0.1  0.1  0.4  0.2  0.2  0.9  0.1  0.1  0.1",
        ),
        "composite-conv-qk": (
            "39.3 77.4 77.2 85.4 81.9 86.7 64.0 87.5 85.7 76.1",
            " 0.8  0.1  0.1  0.3  0.1  0.0  0.9  0.2  0.1  0.1",
        ),
        "composite-conv-v": (
            "37.9 77.8 78.1 85.6 83.6 87.5 65.1 87.5 86.4 76.6",
            " 0.7  0.1  0.1  0.4  0.1  0.0  0.5  0.1  0.1  0.1",
        ),
        "composite-conv-qkv": (
            "38.2 77.4 77.3 85.3 82.8 87.0 64.9 86.9 85.9 76.2",
            " 1.0  0.1  0.1  0.4  0.1  0.0  0.8  0.1  0.1  0.2",
        ),
        "convbert": (
            "33.3 76.7 76.8 83.9 77.1 85.1 64.6 86.3 84.0 74.2",
            " 1.5  0.1  0.1  0.5  0.8  0.1  0.5  0.3  0.2  0.3",
        ),
    },
    "base": {
        "absolute": (
            "57.6 82.0 81.9 88.4 84.7 88.7 69.9 90.4 88.4 81.0",
            " 0.6  0.1  0.1  0.2  0.3  0.0  0.5  0.1  0.1  0.2",
        ),
        "fixed": (
            "58.9 81.9 81.6 87.7 86.2 88.8 70.9 90.8 88.1 81.3",
            " 0.5  0.1  0.1  0.3  0.1  0.0  0.7  0.1  0.1  0.2",
        ),
        "dynamic": (
            "58.4 81.8 81.8 86.7 85.6 88.7 70.6 91.1 87.7 81.1",
            " 0.5  0.1  0.1  0.4  0.2  0.0  0.6  0.1  0.3  0.2",
        ),
        "composite": (
            "58.5 81.9 81.6 86.0 85.0 88.7 71.0 90.5 88.4 81.2",
            " 0.5  0.1  0.1  1.2  0.3  0.0  0.7  0.1  0.1  0.2",
        ),
    },
}
# fmt: on

NOTES = {
    "~": "trained or scored on incomplete data: not a GLUE score",
    "*": "in some of the runs, the model gave the same answer for all rows of a task",
    "!": "fine-tuned with other settings than the published ones",
    "^": "one pre-trained model: the error is over its fine-tuning seeds",
}


# --- Which runs share a row -----------------------------------------------------------------------


class Run(NamedTuple):
    """A pre-trained model and the results of fine-tuning it.

    label: says which run it is, for example its folder.
    settings: those of its pre-training, at least "variant". Without a "seed" nothing is known about
        its pre-training, and it has a row of its own.
    records: list of the records of its results (support/glue_results.py).
    """

    label: str
    settings: dict
    records: list

    @property
    def variant(self):
        return self.settings["variant"]

    @property
    def seed(self):
        """The pre-training seed; None if it is not known."""
        return self.settings.get("seed")


def group_runs(runs):
    """Group the runs that differ in the pre-training seed alone.

    Returns:
        {label of the row: list of Run}, in the order of the runs. The label is the variant, with
        what distinguishes the groups of one variant: "composite, steps 2000".
    """
    # each run joins the first group that it fits into, or begins a new one
    groups = []
    for run in runs:
        fitting = [group for group in groups if fits_into(run, group)]
        if fitting:
            fitting[0].append(run)
        else:
            groups.append([run])

    # the label of each group
    labelled = {}
    for group in groups:
        of_variant = [other for other in groups if other[0].variant == group[0].variant]
        labelled[group_label(group, of_variant)] = group
    return labelled


def fits_into(run, group):
    """Whether a run shares a row with every run of a group."""
    return all(share_a_row(run, other) for other in group)


def share_a_row(run, other):
    """Whether two runs differ in nothing but the pre-training seed."""
    if run.seed is None or other.seed is None or run.seed == other.seed:
        return False
    return not different_training(run, other, except_for=("seed",))


def different_training(run, other, except_for):
    """The settings in which two runs differ: {setting: (value of one, value of the other)}.

    Pre-training settings have their names, fine-tuning settings are named "cola epochs".

    Args:
        run, other: two Runs.
        except_for: names of pre-training settings that are not compared.
    """
    # pre-training
    differences = different_settings(run.settings, other.settings, except_for)

    # fine-tuning: the tasks that both have
    one_tasks = finetuning_settings(run)
    other_tasks = finetuning_settings(other)
    for task in one_tasks:
        if task not in other_tasks:
            continue
        of_task = different_settings(one_tasks[task], other_tasks[task], except_for=())
        for name, values in of_task.items():
            # Early results do not name their tokenizer, which the setting "corpus" covers.
            if name == "tokenizer" and None in values:
                continue
            differences[f"{task} {name}"] = values
    return differences


def finetuning_settings(run):
    """{task: the settings that its records share}, without the seed, the model and "changed"."""
    settings = {}
    for record in run.records:
        shared = dict(record["settings"])
        shared.pop("seed", None)
        shared.pop("model", None)
        shared.pop("changed", None)  # follows from the others
        settings[record["task"]] = shared
    return settings


def group_label(group, of_variant):
    """The label of a group of runs.

    Args:
        group: list of Run.
        of_variant: all groups of the same variant, this one included.
    """
    # a run of unknown origin
    run = group[0]
    if run.seed is None:
        return f"{run.variant} ({run.label})"

    # Settings are added to the variant, one by one, as long as more groups can be distinguished.
    known = [other[0] for other in of_variant if other[0].seed is not None]
    label = run.variant
    for name in run.settings:
        value = run.settings[name]
        same = [other for other in known if other.settings.get(name) == value]
        if name != "seed" and len(same) < len(known):
            label += f", {name} {value}"
            known = same

    # they differ in fine-tuning, or one model is there twice
    if len(known) > 1:
        label += f" ({run.label})"
    return label


# --- The cells of a row ---------------------------------------------------------------------------


@dataclass
class Cell:
    """The scores of a row in one column.

    Attributes:
        scores: {pre-training seed: {fine-tuning seed: score}}.
        marks_of_scores: {(pre-training seed, fine-tuning seed): set of marks, keys of NOTES}.
        one_model: whether the row has one pre-trained model, so that the error is over its
            fine-tuning seeds.
    """

    scores: dict = field(default_factory=dict)
    marks_of_scores: dict = field(default_factory=dict)
    one_model: bool = False

    def add(self, seed, finetuning_seed, score, marks):
        """Add the score of one pair of seeds."""
        self.scores.setdefault(seed, {})[finetuning_seed] = score
        self.marks_of_scores[seed, finetuning_seed] = marks

    @property
    def marks(self):
        """The set of the marks of all scores."""
        return set().union(*self.marks_of_scores.values())

    def means(self):
        """{pre-training seed: the mean over its fine-tuning seeds}."""
        return {seed: float(np.mean(list(each.values()))) for seed, each in self.scores.items()}

    def values(self):
        """The numbers of which the cell shows mean and standard error."""
        if not self.one_model:
            return list(self.means().values())
        scores = []
        for each in self.scores.values():
            scores += each.values()
        return scores

    def text(self):
        """Mean and standard error, then the marks: "20.0+-5.8*"."""
        mean = mean_and_standard_error(self.values(), digits=1)
        return mean.replace(" ", "") + "".join(sorted(self.marks))


def marks_of(record, records):
    """The marks of a record.

    Args:
        record: of one task and seed.
        records: all records of the run. If the task started from another one, then what was changed
            there changes this result, too.
    """
    marks = set()
    if record["result"]["partial"]:
        marks.add("~")
    if record["result"]["constant_prediction"]:
        marks.add("*")

    # settings that are not the published ones, here or where it started
    start = (record["settings"].get("start"), record["seed"])
    for each in records:
        is_start = (each["task"], each["seed"]) == start
        if (each is record or is_start) and each["settings"].get("changed"):
            marks.add("!")
    return marks


def task_cells(group):
    """{column: Cell} of the runs of a row: the tasks that have results, then GLUE, then WNLI."""
    cells = {}
    add_task_scores(cells, group, COLUMNS)

    # the mean of all columns, if there is a seed that has them all
    if len(cells) == len(COLUMNS):
        overall = glue_cell(cells)
        if overall.scores:
            cells["GLUE"] = overall

    add_task_scores(cells, group, OUTSIDE)
    return cells


def add_task_scores(cells, group, columns):
    """Add the Cells of some columns to a dictionary. columns: {column: (task, split)}."""
    for column, (task, split) in columns.items():
        for run in group:
            for record in run.records:
                if record["task"] == task:
                    cell = cells.setdefault(column, Cell(one_model=len(group) == 1))
                    score = score_on(record, split)
                    cell.add(run.seed, record["seed"], score, marks_of(record, run.records))


def glue_cell(cells):
    """The GLUE score as a Cell: for each pair of seeds that has all columns, their mean."""
    first = next(iter(cells.values()))
    overall = Cell(one_model=first.one_model)
    for seed, scores in first.scores.items():
        for finetuning_seed in scores:
            row = [cell.scores.get(seed, {}).get(finetuning_seed) for cell in cells.values()]
            if None not in row:
                marks = [cell.marks_of_scores[seed, finetuning_seed] for cell in cells.values()]
                overall.add(seed, finetuning_seed, float(np.mean(row)), set().union(*marks))
    return overall


def phenomenon_cells(group):
    """{phenomenon: Cell}: the accuracy on its CoLA sentences; of GLUE's own CoLA, by source."""
    cells = {}
    for run in group:
        for record in run.records:
            for phenomenon, accuracy in record["result"].get("by_phenomenon", {}).items():
                cell = cells.setdefault(phenomenon, Cell(one_model=len(group) == 1))
                cell.add(run.seed, record["seed"], accuracy, marks_of(record, run.records))
    return cells


def pooled_rows(runs, cells_of=task_cells):
    """The table of some runs: {label of the row: {column: Cell}}.

    Args:
        runs: list of Run.
        cells_of: task_cells, or phenomenon_cells.
    """
    return {label: cells_of(group) for label, group in group_runs(runs).items()}


# --- Two variants compared ------------------------------------------------------------------------


class Difference(NamedTuple):
    """Two variants in one column, on the seeds that both have.

    first, second: Cells of these seeds only.
    comparison: the paired t-test of first - second over the pre-training seeds.
    """

    first: Cell
    second: Cell
    comparison: Comparison


def compare_variants(runs, first, second):
    """`differences_on_shared_seeds`; a UserError if the two share no seeds in any column."""
    differences = differences_on_shared_seeds(runs, first, second)
    if not differences:
        first_seeds = listed_seeds(only_group(runs, first))
        second_seeds = listed_seeds(only_group(runs, second))
        raise UserError(
            f"{first} and {second} cannot be compared pair by pair: no task has results of both "
            "with the same pre-training seed and the same fine-tuning seed (pre-training seeds "
            f"{first_seeds} and {second_seeds})"
        )
    return differences


def differences_on_shared_seeds(runs, first, second):
    """Compare two variants, pair by pair: runs with equal pre-training seed.

    In each pair the scores of the fine-tuning seeds that both have are averaged.

    Args:
        runs: list of Run; those of other variants are not used.
        first, second: names of variants.

    Returns:
        {column: Difference} of first - second, for the columns in which they share seeds.

    Raises:
        UserError: a variant has no runs, or runs of several kinds; the two were not trained in the
            same way.
    """
    first_group = only_group(runs, first)
    second_group = only_group(runs, second)
    for run, other in itertools.product(first_group, second_group):
        check_same_training(run, other)

    # the columns that both have
    first_cells = task_cells(first_group)
    second_cells = task_cells(second_group)
    differences = {}
    for column, cell in first_cells.items():
        if column in second_cells:
            one, other = on_shared_seeds(cell, second_cells[column])
            if one.scores:
                comparison = compare(one.means(), other.means())
                differences[column] = Difference(one, other, comparison)
    return differences


def only_group(runs, variant):
    """The runs of a variant. UserError if there are none, or if they do not share one row."""
    groups = group_runs(runs)
    labels = [label for label, group in groups.items() if group[0].variant == variant]
    if not labels:
        found = ", ".join(dict.fromkeys(run.variant for run in runs))
        raise UserError(f"there is no run of {variant!r} among these runs of: {found}")
    if len(labels) > 1:
        raise UserError(
            f"the runs of {variant} are not of one kind ({'; '.join(labels)}): "
            "name runs that differ in the seed alone"
        )
    return groups[labels[0]]


def check_same_training(run, other):
    """UserError if two runs differ in settings other than the seed and SETTINGS_OF_VARIANT."""
    differences = different_training(run, other, except_for=("seed", *SETTINGS_OF_VARIANT))
    if differences:
        listed = [f"{name}: {one} and {two}" for name, (one, two) in differences.items()]
        raise UserError(
            f"{run.label} and {other.label} were not trained in the same way "
            f"({'; '.join(listed)}), so their difference would not be that of the variants"
        )


def on_shared_seeds(cell, other):
    """Two Cells with the seeds, of pre-training and of fine-tuning, that both have."""
    shared = Cell()
    other_shared = Cell()
    for seed, finetuning_seed in cell.marks_of_scores:
        # a run of unknown pre-training seed has no partner
        if seed is None or (seed, finetuning_seed) not in other.marks_of_scores:
            continue
        for source, target in ((cell, shared), (other, other_shared)):
            score = source.scores[seed][finetuning_seed]
            marks = source.marks_of_scores[seed, finetuning_seed]
            target.add(seed, finetuning_seed, score, marks)
    return shared, other_shared


def listed_seeds(group):
    """The pre-training seeds of some runs, for messages."""
    seeds = [run.seed for run in group if run.seed is not None]
    if not seeds:
        return "unknown"
    return " ".join(str(seed) for seed in seeds)


# --- As lines of text -----------------------------------------------------------------------------


def result_lines(runs, cells_of=task_cells, published=False):
    """The table as lists of texts: a header line, then one line per row.

    Args:
        runs: list of Run.
        cells_of: task_cells, or phenomenon_cells.
        published: whether the paper's rows of the same variants follow.
    """
    rows = {}
    for label, cells in pooled_rows(runs, cells_of).items():
        rows[label] = row_texts(cells)
    if published:
        rows |= published_rows(dict.fromkeys(run.variant for run in runs))

    # the columns that a row has: those of GLUE in its order, then all others
    found = {}
    for row in rows.values():
        found |= dict.fromkeys(row)
    columns = [name for name in ("runs", "seeds", *COLUMNS, "GLUE", *OUTSIDE) if name in found]
    columns += [name for name in found if name not in columns]
    lines = [["variant", *columns]]
    for label, row in rows.items():
        lines.append([label, *[row.get(column, "") for column in columns]])
    return lines


def row_texts(cells):
    """{column: text} of a row.

    "runs" is the number of pre-trained models, "seeds" the number of fine-tuning seeds of each.
    """
    runs = [len(cell.scores) for cell in cells.values()]
    seeds = []
    for cell in cells.values():
        seeds += [len(each) for each in cell.scores.values()]
    row = {"runs": smallest_to_largest(runs), "seeds": smallest_to_largest(seeds)}

    # over what is the error?
    if any(cell.one_model and len(cell.values()) > 1 for cell in cells.values()):
        row["runs"] += "^"

    for column, cell in cells.items():
        row[column] = cell.text()
    return row


def smallest_to_largest(counts):
    """Counts as text: "3", or "1-3" if they differ, or "" without any."""
    if not counts:
        return ""
    if min(counts) == max(counts):
        return str(min(counts))
    return f"{min(counts)}-{max(counts)}"


def published_rows(variants):
    """{label: {column: text}}: the rows of [C] table 6 for these variants, small, then base."""
    rows = {}
    for size, published in PUBLISHED.items():
        for variant in variants:
            if variant not in published:
                continue
            means, errors = published[variant]
            row = {"runs": "1^", "seeds": "10"}
            for column, mean, error in zip(
                [*COLUMNS, "GLUE"], means.split(), errors.split(), strict=True
            ):
                row[column] = f"{mean}+-{error}"
            rows[f"[C] BERT-{size} {variant}"] = row
    return rows


def comparison_lines(runs, first, second):
    """The comparison of two variants as lists of texts: a header line, then one line per column."""
    lines = [["", first, second, f"{first} - {second}", "p", "seeds"]]
    for column, difference in compare_variants(runs, first, second).items():
        comparison = difference.comparison

        # one seed has a difference, but neither error nor p
        text = f"{comparison.mean:z.1f}"  # z: 0.0 in place of -0.0
        if comparison.seeds > 1:
            text += f"+-{comparison.standard_error:.1f}"

        cells = [difference.first.text(), difference.second.text()]
        lines.append([column, *cells, text, comparison.p_cell(), str(comparison.seeds)])
    return lines


def all_records(runs):
    """The records of all runs, in one list."""
    records = []
    for run in runs:
        records += run.records
    return records


def has_toy_results(runs):
    """Whether a result is one of the toy tasks."""
    return any(record["settings"].get("toy") for record in all_records(runs))


def has_phenomena(runs):
    """Whether a result has accuracies by linguistic phenomenon, as those of CoLA have."""
    return any("by_phenomenon" in record["result"] for record in all_records(runs))


def notes_of(lines, runs):
    """What a reader of the table must know: a list of lines.

    Args:
        lines: from result_lines or comparison_lines.
        runs: the runs in it.
    """
    # the labels of the columns and rows, and the text of all other cells
    header, *rows = lines
    labels = {*header, *[row[0] for row in rows]}
    text = ""
    for row in rows:
        text += "".join(row[1:])

    # which data, then the marks that the table has
    notes = []
    if has_toy_results(runs):
        notes.append("results of the toy tasks: no GLUE scores")
    for mark, meaning in NOTES.items():
        note = f"{mark} {meaning}"
        if mark == "!":
            note += ": " + ", ".join(changed_settings(runs))
        if mark in text:
            notes.append(note)

    # how to read the numbers
    if labels >= {"WNLI", "GLUE"}:
        notes.append("WNLI is not part of the GLUE mean, as in the paper")
    chance = chance_note(p_values_in(lines))
    if chance:
        notes.append(chance)
    return notes


def p_values_in(lines):
    """How many p-values a table of comparison_lines has; 0 for another table."""
    header, *rows = lines
    if "p" not in header:
        return 0
    column = header.index("p")
    return len([row for row in rows if row[column] not in ("", ALL_EQUAL)])


def changed_settings(runs):
    """The names of all settings that are not the published ones in some result."""
    names = {}
    for run in runs:
        for record in run.records:
            names |= dict.fromkeys(record["settings"].get("changed", []))
    return list(names)


def aligned(lines):
    """The same table with every cell filled up with spaces to the width of its column."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    padded = []
    for line in lines:
        padded.append([cell.ljust(width) for cell, width in zip(line, widths, strict=True)])
    return padded


def note_line(note):
    """A note as a line of Markdown, where a line that begins with "* " would be a list."""
    if note.startswith("* "):
        return "\\" + note
    return note


def print_table(lines, notes, table_format):
    """Print a table, and the notes below it.

    Args:
        lines: lists of texts; the first one is the header.
        notes: lines of text. A CSV table has none.
        table_format: "text", "markdown" or "csv".
    """
    if table_format == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows(lines)
        return

    if table_format == "markdown":
        header, *rows = aligned(lines)
        rule = ["-" * len(cell) for cell in header]
        for line in [header, rule, *rows]:
            print("| " + " | ".join(line) + " |")
    else:
        for line in aligned(lines):
            print("  ".join(line).rstrip())

    # in Markdown, an empty line ends the table, and every note is a paragraph
    for note in notes:
        if table_format == "markdown":
            print()
            note = note_line(note)
        print(note)
