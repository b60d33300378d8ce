"""Tables of runs: a row per label, means with their errors, differences with intervals.

A run is a dictionary. Tables read these entries of it, the last ones only where they are needed:

    run         its folder
    settings    what its pre-training depends on: {"variant": "none", "seed": 0, "steps": 2000, ...}
    result      of pre-training: {"loss": 2.392, "accuracy": 0.423, "parameters": 849584}
    glue        the results of fine-tuning, records of glue.py
    code        {name: digest} of the code that pre-trained it; some records of results/ have none
    scored      {data: settings and code} of minimal pairs
    label       of its row, if that is not the name of the folder without the seed

A Measure says what a table shows of a run. The runs of a label share a row: they differ in their
seed alone. Rows may differ in anything, and a line below the table says in what.
table_rows(runs, [PARAMETERS, LOSS]) of three runs of none and three of fixed:

    run            runs   parameters   held-out loss
    none           3      849,584      2.321 +- 0.039            mean and standard error
    fixed          3      849,856      0.843 +- 0.019

With compared=("none", "fixed") there are two rows more:

    none - fixed                       1.478 (1.339 to 1.617)    difference and its 95 % interval
    p (Holm)                           7.3e-05                   its p-value

There are two kinds of seeds. The pre-training seed determines the pre-trained model. The
fine-tuning seed determines how this model is fine-tuned. First the fine-tuning seeds of each run
are averaged. Then the error of the row is taken over these means, one mean per run. If a row has
only one pre-trained model, its error is over the fine-tuning seeds, as in Chang. Such an error does
not include the noise of pre-training: the row is marked with ^.

"Chang" is Chang, Xu, Xu, Tu 2021.
"""

import math
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np

from support.commands import UserError, say_once
from support.options import OF_SOME_VARIANTS
from support.runs import changed, label_of

# settings that belong to a run or follow from others; two are digests of its files
OF_RUN = ("seed", "model", "tokenizer", "changed")

# what a reader must know of several differences that were not planned, as a line below a table
INTERVAL_NOTE = (
    "In brackets: 95 % interval of the difference (Welch's t-test over runs): if nothing differs, "
    "about one of 20 such intervals does not contain 0. The p of this test are Holm-corrected for "
    "the number of differences in this table."
)

INTERVALS = 10_000  # in which the area under a curve is divided
ROUNDING = 1e-9  # A smaller standard error comes from rounding: all values are equal.


# --- What is measured of a run --------------------------------------------------------------------


class Measure(NamedTuple):
    """A column of a table.

    Attributes:
        title: in the head of the table.
        digits: after the point; None for a number that all runs of a row share.
        values: function from a run to a list of numbers: none if it was not measured, several if
            the run was fine-tuned with several seeds.
        tasks: of GLUE, from whose results it is computed: the cell has their marks (NOTES).
    """

    title: str
    digits: int | None
    values: Callable
    tasks: tuple = ()


PARAMETERS = Measure("parameters", None, lambda run: [run["result"]["parameters"]])
LOSS = Measure("held-out loss", 3, lambda run: [run["result"]["loss"]])
ACCURACY = Measure("accuracy (%)", 2, lambda run: [100 * run["result"]["accuracy"]])


def values_of(group, measure):
    """A list with one value for each run of a group that has the measure: its mean."""
    values = [measure.values(run) for run in group]
    return [float(np.mean(of_run)) for of_run in values if of_run]


# --- The runs of a row ----------------------------------------------------------------------------


def label_in_table(run):
    """The label of a run: the runs of a row have the same."""
    return run.get("label") or label_of(run["run"])


def groups_of(runs, labels=None):
    """{label: its runs}, of all labels or of some. UserError if they do not belong together."""
    groups = {}
    for run in runs:
        groups.setdefault(label_in_table(run), []).append(run)
    for label in labels or ():
        if label not in groups:
            raise UserError(f"there is no run of {label}: the labels are {', '.join(groups)}")
    return {label: runs_of_row(label, groups[label]) for label in labels or groups}


def runs_of_row(label, group):
    """The runs of a label, one for each seed. UserError if their settings or code differ."""
    # each pair: the first one may lack a task in which two others differ
    for one, other in combinations(group, 2):
        names = differing(one, other)
        if names:
            raise UserError(
                f"{other['run']} would be averaged with {one['run']} as {label}, but they differ "
                f"in {', '.join(names)}: rename a folder, or use --name, to keep them apart"
            )

    of_seed = {}
    for run in group:
        first = of_seed.setdefault(run["settings"]["seed"], run)
        if first is not run:
            say_once(f"{run['run']} is left out: {first['run']} has the same seed")
    return list(of_seed.values())


def differing(one, other):
    """The names of the settings and parts of the code in which two runs differ, but for the seed.

    What only one of them has does not count.
    """
    names = [name for name, _ in changed(made_from(one), made_from(other))]
    return list(dict.fromkeys(names))


def made_from(run):
    """{(name, of what): value}: what made a run, and what was measured with it."""
    parts = [("", "", run)]
    parts += [(" in fine-tuning", each["settings"]["task"], each) for each in run.get("glue", [])]
    scored = run.get("scored", {})
    parts += [(" in pairs", data, {"settings": scored[data]}) for data in scored]

    made = {}
    for where, what, part in parts:
        for name, value in {**part["settings"], **part.get("code", {})}.items():
            # an option that the variant does not use is None, which is no difference
            is_unused = name in OF_SOME_VARIANTS and value is None
            if name not in OF_RUN and not is_unused:
                made[name + where, what] = value
    return made


def differences_note(runs, labels=None):
    """A line below a table: in what its rows differ from the first one; "" if in nothing."""
    (first, *_), *others = groups_of(runs, labels).values()
    parts = []
    for run, *_ in others:
        label = label_in_table(run)
        names = differing(first, run)
        # another variant has another entry; its label names it
        if "variant" in names and run["settings"]["variant"] in label:
            of_variant = ("variant", "entry in VARIANTS")
            names = [name for name in names if not name.startswith(of_variant)]
        if names:
            parts.append(f"{label}: {', '.join(names)}")
    return f"What differs from {label_in_table(first)}: {'; '.join(parts)}." if parts else ""


# --- Rows -----------------------------------------------------------------------------------------


def table_rows(runs, measures, compared=None):
    """The header of a table and its rows, lists of texts: a row per label, a column per measure.

    compared: two labels. Then the table has only these, and their difference.
    """
    # the header, and a row for each label
    groups = groups_of(runs, compared)
    rows = [["run", "runs", *[measure.title for measure in measures]]]
    for label, group in groups.items():
        rows.append([label, run_count(group, measures)])
        rows[-1] += [cell(group, measure) for measure in measures]

    # the difference of the two
    if compared:
        rows += difference_rows(groups, measures)
    return rows


def difference_rows(groups, measures):
    """Two rows for two labels: their differences, and the p-values of these.

    groups: {label: its runs}.
    """
    found = [difference_of(*groups.values(), measure) for measure in measures]
    if not any(found):
        raise UserError(f"{' and '.join(groups)} share nothing that was measured of both")
    cells = []
    for each, measure in zip(found, measures, strict=True):
        cells.append(each.text(measure.digits) if each else "")

    # the p-values of those that have one
    tested = [i for i, each in enumerate(found) if each and not math.isnan(each.p)]
    p_cells = [""] * len(measures)
    for i, p in zip(tested, holm([found[i].p for i in tested]), strict=True):
        p_cells[i] = f"{p:.2g}"
    return [[" - ".join(groups), "", *cells], ["p (Holm)", "", *p_cells]]


def run_count(group, measures):
    """How many runs a row has: "3", or "1^" with several fine-tuning seeds of one run."""
    first, *others = group
    seeds = max(len(measure.values(first)) for measure in measures)
    return f"1^ ({seeds} seeds)" if seeds > 1 and not others else str(len(group))


def cell(group, measure):
    """Mean, standard error and marks of a row's runs, "55.2 +- 2.1*"; "" if it was not measured.

    If only some of the runs have it, the cell says so: "55.2 +- 2.1 (2 of 3 runs)".
    """
    values = values_of(group, measure)
    if not values:
        return ""
    if measure.digits is None:
        return f"{values[0]:,.0f}"

    some = f" ({len(values)} of {len(group)} runs)" if len(values) < len(group) else ""
    if len(group) == 1:
        values = measure.values(group[0])  # of its fine-tuning seeds
    text = mean_and_standard_error(values, measure.digits)
    return text + marks_of(group, measure.tasks) + some


def difference_of(first, second, measure):
    """The Difference of two rows; None if they do not both have the measure."""
    first, second = values_of(first, measure), values_of(second, measure)
    if measure.digits is None or not first or not second:
        return None
    return difference(first, second)


# --- As text --------------------------------------------------------------------------------------


def without_empty_columns(rows):
    """The rows without the columns that have nothing below their title."""
    return transposed([column for column in transposed(rows) if any(column[1:])])


def transposed(rows):
    """Each row becomes a column."""
    return [list(column) for column in zip(*rows, strict=True)]


def print_table(rows, *notes):
    """Print a Markdown table, and below it what its reader must know."""
    # each column is as wide as its longest cell
    header, *rest = rows
    widths = [max(map(len, column)) for column in transposed(rows)]
    for row in (header, ["-" * width for width in widths], *rest):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print(f"| {' | '.join(cells)} |")
    for note in filter(None, notes):
        print(f"\n{note}")


# --- Means and errors -----------------------------------------------------------------------------


def standard_error(values):
    """Standard error of the mean; nan for a single value, for which it is not defined."""
    if len(values) == 1:
        return math.nan
    return np.std(values, ddof=1) / math.sqrt(len(values))


def mean_and_standard_error(values, digits=3):
    """Mean and standard error of the mean as text, "5.897 +- 0.009"; of one value, the value."""
    mean = f"{np.mean(values):z.{digits}f}"  # z: 0.000 in place of -0.000
    if len(values) == 1:
        return mean
    return f"{mean} +- {standard_error(values):.{digits}f}"


# --- Welch's t-test: is a difference more than the noise between runs? ----------------------------


class Difference(NamedTuple):
    """The difference of two means, and what Welch's t-test says about it.

    Attributes:
        mean: the difference.
        low, high: the ends of its 95 % interval.
        p: the two-sided p-value: the probability of a difference at least as large in units of its
            standard error, if the true means were equal and the values had normal distributions.

    low, high and p are nan if the noise is not known: if there is only one value on one side, or if
    all values of each side are equal.
    """

    mean: float
    low: float
    high: float
    p: float

    def text(self, digits):
        """The difference and its interval as text: "0.052 (0.021 to 0.083)"."""
        mean = f"{self.mean:z.{digits}f}"  # z: 0.000 in place of -0.000
        if math.isnan(self.p):
            return f"{mean} (no interval)"
        return f"{mean} ({self.low:z.{digits}f} to {self.high:z.{digits}f})"


def difference(first, second):
    """The Difference mean(first) - mean(second) of two lists of values, by Welch's t-test.

    The values of the two lists need not have the same variance, and they are not paired: a run and
    the run of another variant with the same seed see the same batches and masks, but rounding on
    another processor changes a run as much as another seed does.
    """
    mean = float(np.mean(first) - np.mean(second))

    # The variances of the two means add up to that of their difference.
    first_variance = standard_error(first) ** 2
    second_variance = standard_error(second) ** 2
    error = math.sqrt(first_variance + second_variance)
    if math.isnan(error) or error < ROUNDING:
        return Difference(mean, math.nan, math.nan, math.nan)

    # the degrees of freedom (Welch 1947), not always a whole number
    n = error**4 / (first_variance**2 / (len(first) - 1) + second_variance**2 / (len(second) - 1))
    half = critical_t(n) * error
    return Difference(mean, mean - half, mean + half, two_sided_p(mean / error, n))


def holm(p_values):
    """The p-values of a family of tests, corrected for their number by Holm's method (1979).

    If no test of the family has a true difference, the probability that any corrected p is below
    0.05 is at most 0.05. The smallest of m p-values is multiplied by m, the next one by m - 1, ...;
    none becomes smaller than the one before it, or larger than 1. Example:

        p            0.01   0.03   0.04
        multiplied   0.03   0.06   0.04
        corrected    0.03   0.06   0.06
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p_values)):
        factor = len(p_values) - rank
        largest = max(largest, min(factor * p_values[index], 1.0))
        corrected[index] = largest
    return corrected


def critical_t(n, p=0.05):
    """The t whose two-sided p-value is p, for n >= 1 degrees of freedom, by bisection."""
    low, high = 0.0, 1 / p  # n = 1 has the largest critical t: 2 / (pi p), for a small p
    for _ in range(50):
        t = (low + high) / 2
        if two_sided_p(t, n) > p:
            low = t
        else:
            high = t
    return t


def two_sided_p(t, n):
    """The probability that Student's t with n degrees of freedom is at least |t| from 0.

    The density of t is proportional to (1 + t^2 / n)^(-(n + 1) / 2). With the substitution
    t = sqrt(n) * tan(a) the range from -infinity to infinity becomes the range of angles from -pi/2
    to pi/2, and the density becomes cos(a)^(n - 1). The probability is the share of the area beyond
    the angle of |t|. (Neither torch nor numpy has Student's distribution.)
    """

    def area(low, high):
        """The area under cos(a)^(n - 1) between two angles, by the midpoint rule."""
        middles = np.linspace(low, high, 2 * INTERVALS + 1)[1::2]  # (INTERVALS,)
        return float(np.mean(np.cos(middles) ** (n - 1))) * (high - low)

    # the density is symmetric, so one half of it is enough
    angle = math.atan(abs(t) / math.sqrt(n))
    return area(angle, math.pi / 2) / area(0, math.pi / 2)


# --- GLUE's table ---------------------------------------------------------------------------------

# column of the GLUE score: (task, split), in the order of Chang table 6
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


SCORES = (
    "Scores on the development examples, times 100. CoLA: Matthews correlation; STS: mean of "
    "Pearson and Spearman; MRPC and QQP: mean of accuracy and F1; the others: accuracy."
)
NOTES = {
    "*": "in some of the runs, the model gave the same answer for all examples of a task",
    "!": "fine-tuned with other settings than the default ones",
    "^": "one pre-trained model: the error is over its fine-tuning seeds",
}


def results_of(run, task):
    """The results of a task."""
    return [result for result in run.get("glue", []) if result["settings"]["task"] == task]


def scores_of(run, task, split):
    """The scores of a run on a development split: {fine-tuning seed: score}."""
    return {
        result["settings"]["seed"]: result["result"]["scores"][split]["score"]
        for result in results_of(run, task)
    }


def glue_scores(run):
    """GLUE, the mean of COLUMNS, for each fine-tuning seed that has all of them: a list."""
    columns = [scores_of(run, *part) for part in COLUMNS.values()]
    seeds = [seed for seed in columns[0] if all(seed in column for column in columns)]
    return [float(np.mean([column[seed] for column in columns])) for seed in seeds]


def split_measure(title, task, split):
    """A Measure: the scores on a development split."""
    return Measure(title, 1, lambda run: list(scores_of(run, task, split).values()), (task,))


GLUE_MEASURES = (
    *[split_measure(title, *part) for title, part in COLUMNS.items()],
    Measure("GLUE", 1, glue_scores, tuple(task for task, _ in COLUMNS.values())),
    split_measure("WNLI", "wnli", "dev"),  # not part of the GLUE score; Chang et al. leave it out
)


def marks_of(runs, tasks):
    """The marks of a cell: constant answers, and settings that are not the default ones."""
    marks = set()
    for run in runs:
        for task in tasks:
            for result in results_of(run, task):
                if result["result"]["constant_prediction"]:
                    marks.add("*")
                # here, or where it started
                starts = results_of(run, result["settings"]["start"])
                if any(each["settings"].get("changed") for each in [result, *starts]):
                    marks.add("!")
    return "".join(sorted(marks))


def glue_rows(runs, compared=None):
    """GLUE's table: a row per label."""
    return without_empty_columns(table_rows(runs, GLUE_MEASURES, compared))


def print_glue_table(runs, compared=None):
    """Print GLUE's table; of two labels compared, with a row per task."""
    rows = glue_rows(runs, compared)
    notes = [*glue_notes(rows, runs), differences_note(runs, compared)]
    if compared:
        print_table(transposed(rows), *notes, INTERVAL_NOTE)
    else:
        print_table(rows, *notes)


def glue_notes(rows, runs):
    """Yield what must be known about the numbers, the runs, the marks in the cells, the columns."""
    yield SCORES
    results = [result for run in runs for result in run["glue"]]
    if any(result["settings"]["data"].startswith("toy") for result in results):
        yield "results of the toy tasks: no GLUE scores"
    yield from meanings_of_marks(rows)
    if {"GLUE", "WNLI"} <= set(rows[0]):
        yield "WNLI is not part of the GLUE mean, as in the paper"


def meanings_of_marks(rows):
    """Yield what each mark in the cells means."""
    text = "".join("".join(row[1:]) for row in rows[1:])
    for mark, meaning in NOTES.items():
        if mark in text:
            yield f"`{mark}` {meaning}"
