"""Every table of README.md and docs/, made from the records in results/.

    python -m lab.report                                 print all tables
    python -m lab.report english english-order           print these tables
    python -m lab.report --write                         put the tables into README.md and docs/*.md
    python -m lab.report collect RUN ... --out results/english.jsonl

`collect` reads finished runs (folders that pretrain.py wrote, with the results of glue.py and
lab.pairs if there are any) and keeps one line of each in a file of records: see lab/record.py. A
run that is already in the file is replaced.

In a document, a table is between two markers. A test compares it with what this program prints.

    <!-- table: english -->
    <!-- end -->

A cell "a +- b" is mean and standard error over the runs of a variant, which differ in their seed. A
cell with fewer seeds than the others says how many it has. An empty cell is not measured yet.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import functools
import itertools
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.pairs import (
    accuracy_table,
    check_same_pairs,
    compare_variants,
    mean_accuracy,
    p_value_count,
)
from lab.record import (
    add_records,
    identity_of_run,
    losses_of_variants,
    read_length_records,
    read_run_records,
    record_of_run,
)
from support.commands import UserError, run_command
from support.files import write_text
from support.glue_table import (
    NOTES,
    Run,
    differences_on_shared_seeds,
    note_line,
    notes_of,
    phenomenon_cells,
    result_lines,
    task_cells,
)
from support.runs import each_run_once
from support.statistics import chance_note, check_comparable, compare, mean_and_standard_error

ROOT = Path(__file__).parent.parent

# [C]: none < absolute < fixed < dynamic <= composite
ORDER = ("none", "absolute", "fixed", "dynamic", "composite")

# The relative positions beyond the paper (docs/family.md). They have their own tables with a column
# per variant, because one table of all variants would be too wide.
FAMILY = ("t5", "alibi", "fire", "xl", "rotary", "deberta", "canon")

# Comparisons (first, second) of variants: each variant with the one before it in ORDER, and each
# one of the family, or with a convolution, with `absolute`.
ORDER_COMPARISONS = [(higher, lower) for lower, higher in itertools.pairwise(ORDER)]
FAMILY_COMPARISONS = [(variant, "absolute") for variant in FAMILY]
CONVOLUTIONS = ("depthwise", "convbert", "lightconv", "dynamicconv", "dynamicconv-hybrid")
CONVOLUTION_COMPARISONS = [(variant, "absolute") for variant in CONVOLUTIONS]

NOT_MEASURED = "(not measured yet)"
PAIRED = "Runs with the same seed are compared. p: paired t-test over seeds."
INTERVALS = (
    "[low, high]: 95 % interval of the bootstrap over seeds and pairs; docs/results.md says how "
    "far to trust it."
)


# --- What is measured of a run --------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A number that a record of a run may have.

    Attributes:
        title: in the head of a table.
        digits: after the point.
        value: function from a record to the number, or to None if it was not measured.
        column: of the GLUE table, whose marks the cells get; None: no marks.
        data: the name of the minimal pairs, if the measure is the accuracy on them by the score
            "pll": then its differences get an interval. None for all other measures.
        lower_is_better: as for a loss.
    """

    title: str
    digits: int
    value: Callable
    column: str | None = None
    data: str | None = None
    lower_is_better: bool = False

    def marks(self, record):
        """The marks of the fine-tuning results behind the number, such as {"*"}."""
        if self.column is None:
            return set()
        cells = task_cells([glue_run(record)])
        if self.column not in cells:
            return set()
        return cells[self.column].marks


def loss_of(record):
    """Held-out loss in nats."""
    return record["result"]["loss"]


def accuracy_of(record):
    """Accuracy on the masked tokens of held-out text, in per cent."""
    return 100 * record["result"]["accuracy"]


def pairs_of(record, data, score="pll"):
    """Accuracy on minimal pairs in per cent, the mean of all paradigms; None if not measured.

    Args:
        data: the name of the pairs, such as "blimp".
        score: "pll" or "whole_word".
    """
    lines = record["pairs"].get(data, [])
    if not lines:
        return None
    return mean_accuracy(record, data, [line["paradigm"] for line in lines], score)


def glue_run(record):
    """The Run of support/glue_table.py from the record of a run."""
    return Run(record["run"], record["settings"], record["glue"])


def glue_score_of(record, column):
    """Score in a column of the GLUE table, the mean over the fine-tuning seeds of the run.

    None if it was not measured.
    """
    cells = task_cells([glue_run(record)])
    if column not in cells:
        return None
    (score,) = cells[column].means().values()  # of one pre-training seed
    return score


def measure_of_pairs(title, data, score="pll"):
    value = functools.partial(pairs_of, data=data, score=score)
    # a measure with `data` gets an interval, which only the differences of pll have
    if score == "pll":
        return Measure(title, 1, value, data=data)
    return Measure(title, 1, value)


def measure_of_glue(title, column):
    value = functools.partial(glue_score_of, column=column)
    return Measure(title, 1, value, column=column)


LOSS = Measure("held-out loss", 3, loss_of, lower_is_better=True)
ACCURACY = Measure("accuracy (%)", 2, accuracy_of)
TOY_PAIRS = measure_of_pairs("minimal pairs (%)", "toy")
BLIMP = measure_of_pairs("BLiMP (%)", "blimp")
BLIMP_WORDS = measure_of_pairs("BLiMP, whole words (%)", "blimp", "whole_word")
TOY_GLUE = measure_of_glue("toy GLUE", "GLUE")
COLA = measure_of_glue("CoLA", "CoLA")
SST = measure_of_glue("SST-2", "SST")


# --- The runs of a variant ------------------------------------------------------------------------


def checked(records):
    """The records, which may stand in one table.

    Raises:
        UserError: there are no runs, or two of one variant differ in more than the seed, or in
            nothing, or they were not tested on the same minimal pairs.
    """
    if not records:
        raise UserError("a file of records is empty: collect runs into it")
    check_comparable(records)

    # the mean of fewer paradigms would be another number
    names = {}
    for record in records:
        names |= dict.fromkeys(record["pairs"])
    for data in names:
        check_same_pairs(with_pairs(records, data), data)
    return records


def with_pairs(records, data):
    """The records that have results on these minimal pairs."""
    return [record for record in records if data in record["pairs"]]


def variants_of(records):
    """The variants that have runs, in the order of the records."""
    return list(dict.fromkeys(record["settings"]["variant"] for record in records))


def runs_of(records, variant):
    """The records of a variant."""
    return [record for record in records if record["settings"]["variant"] == variant]


def seeds_of(records, variant):
    """The set of the pre-training seeds of a variant."""
    return {record["settings"]["seed"] for record in runs_of(records, variant)}


def values_by_seed(records, variant, measure):
    """{pre-training seed: value} of the runs of a variant that have the measure."""
    values = {}
    for record in runs_of(records, variant):
        value = measure.value(record)
        if value is not None:
            values[record["settings"]["seed"]] = value
    return values


def most_runs(records):
    """The number of runs of the variant that has most of them."""
    names = [record["settings"]["variant"] for record in records]
    return max(names.count(name) for name in names)


def cell(values, digits, usual):
    """A cell of a table: mean and standard error, "5.897 +- 0.009"; "" without values.

    usual: the number of seeds of the table. A cell with fewer says so: "5.897 +- 0.009 (2 seeds)".
    """
    if not values:
        return ""
    text = mean_and_standard_error(values, digits)
    if len(values) == usual:
        return text
    return f"{text} ({counted(len(values), 'seed')})"


def counted(number, noun):
    """A number of things as text: "1 seed", "3 seeds"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}s"


# --- Tables of runs -------------------------------------------------------------------------------


def markdown(header, rows):
    """The lines of a table in Markdown. header, rows: lists of cells, which are strings."""
    rule = ["---"] * len(header)
    lines = [markdown_line(header), "|" + "|".join(rule) + "|"]
    for row in rows:
        lines.append(markdown_line(row))
    return lines


def markdown_line(cells):
    """["fixed", "", "0.842"] -> "| fixed | | 0.842 |"."""
    line = "|"
    for text in cells:
        if text:
            line += f" {text}"
        line += " |"
    return line


def conditions(records):
    """What holds for all runs of a table, as a line below it."""
    settings = records[0]["settings"]
    seeds = sorted({record["settings"]["seed"] for record in records})
    listed_seeds = f"seeds {', '.join(str(seed) for seed in seeds)}"
    if len(seeds) == 1:
        listed_seeds = f"seed {seeds[0]}"

    # "1.2 to 2.3 minutes"
    minutes = [f"{record['result']['seconds'] / 60:.1f}" for record in records]
    shortest = min(minutes, key=float)
    longest = max(minutes, key=float)
    duration = f"{shortest} to {longest}"
    if shortest == longest:
        duration = shortest

    # what computed it: the training, also where a run was continued, and then the evaluations
    origins = []
    for record in records:
        origins += [record["made_by"], *record.get("continued", [])]
    for record in records:
        for results in (record["glue"], *record["pairs"].values()):
            origins += [result.get("made_by") for result in results]
    origins = [origin for origin in origins if origin]  # early records have none
    machines = [machine_of(origin) for origin in origins]

    parts = [
        f"{counted(len(records), 'run')} with the {listed_seeds}",
        f"{settings['steps']:,} steps of {settings['batch_size']} pairs, {settings['dtype']}",
        *dict.fromkeys(machines),
        f"{duration} minutes of training per run",
        *dates_and_codes(origins),
    ]
    return "; ".join(parts) + "."


def dates_and_codes(origins):
    """When the results were made, and by how many versions of the code if it is more than one.

    Args:
        origins: the made_by of each result.
    Returns:
        parts of a line: ["2026-11-21 to 2026-11-23", "2 versions of the code"].
    """
    # the first and the last date, or the only one
    parts = []
    dates = sorted({origin["date"] for origin in origins})
    if dates:
        parts.append(" to ".join(dict.fromkeys([dates[0], dates[-1]])))

    # the digests of the code
    codes = {origin.get("code") for origin in origins}
    if len(codes) > 1:
        parts.append(f"{len(codes)} versions of the code")
    return parts


def machine_of(made_by):
    """The machine of a run and the version of torch, as text."""
    threads = f"{made_by['threads']} threads"
    if made_by["threads"] == 1:
        threads = "one thread"
    return f"{made_by['device']}, {threads}, torch {made_by['torch']}"


def measure_table(records, measures):
    """One row per variant, one column per measure."""
    records = checked(records)

    rows = []
    all_marks = set()
    for variant in variants_of(records):
        runs = runs_of(records, variant)
        row = [variant, f"{runs[0]['result']['parameters']:,}"]
        for measure in measures:
            text, marks = measured_cell(records, variant, measure)
            row.append(text)
            all_marks |= marks
        rows.append(row)

    # the table, its conditions, and what its marks mean
    header = ["variant", "parameters", *[measure.title for measure in measures]]
    return [*markdown(header, rows), "", conditions(records), *notes_of_marks(all_marks)]


def measured_cell(records, variant, measure):
    """(the cell of a variant: mean, standard error and marks; the set of its marks)."""
    values = list(values_by_seed(records, variant, measure).values())
    marks = set()
    for run in runs_of(records, variant):
        marks |= measure.marks(run)
    text = cell(values, measure.digits, most_runs(records))
    return text + "".join(sorted(marks)), marks


def notes_of_marks(marks):
    """The lines below a table that say what its marks mean."""
    lines = []
    for mark in sorted(marks):
        lines += ["", note_line(f"{mark} {NOTES[mark]}")]
    return lines


def differences_table(records, measures, comparisons):
    """Differences between variants: one row per comparison, one column per measure.

    Args:
        records: of runs.
        measures: list of Measure.
        comparisons: list of (first, second); the row is first - second.
    """
    records = checked(records)

    # one row per comparison, one cell per measure
    rows = []
    p_values = 0
    for first, second in comparisons:
        row = [f"{first} - {second}"]
        for measure in measures:
            comparison = comparison_of(records, first, second, measure)
            if comparison is None:
                row.append("")
                continue
            row.append(difference_cell(records, first, second, measure, comparison))
            if not math.isnan(comparison.p):
                p_values += 1
        rows.append(row)

    header = ["difference"]
    for measure in measures:
        title = measure.title
        if measure.lower_is_better:
            title += ", lower is better"
        header.append(title)

    # what the cells mean; only minimal pairs have intervals
    note = PAIRED
    if any(measure.data is not None for measure in measures):
        note += f" {INTERVALS}"
    return [*markdown(header, rows), "", below_differences(note, p_values)]


def below_differences(text, p_values):
    """The line below a table of differences. p_values: how many of them have one."""
    chance = chance_note(p_values)
    if chance:
        text += f" {chance}"
    return text


def comparison_of(records, first, second, measure):
    """The paired t-test of first - second; None if there is no seed that both have."""
    values = values_by_seed(records, first, measure)
    other_values = values_by_seed(records, second, measure)
    if not values.keys() & other_values.keys():
        return None

    # of GLUE: the fine-tuning seeds that both have, and an error if their settings differ
    if measure.column is not None:
        runs = [glue_run(record) for record in records]
        difference = differences_on_shared_seeds(runs, first, second).get(measure.column)
        if difference is None:
            return None
        return difference.comparison
    return compare(values, other_values)


def difference_cell(records, first, second, measure, comparison):
    """The cell of a difference first - second; of minimal pairs, with the bootstrap's interval.

    comparison: from `comparison_of`.
    """
    text = comparison.text(measure.digits)
    if measure.data is None:
        return text
    mean = differences_on_pairs(records, measure.data, first, second)[-1]
    return f"{text}, {interval_text(mean)}"


def differences_on_pairs(records, data, first, second):
    """first - second on minimal pairs: a list of lab.pairs.PairDifference, the mean is the last."""
    return compare_variants(with_pairs(records, data), data, first, second)


def interval_text(difference):
    """The 95 % interval of a lab.pairs.PairDifference: "[1.2, 3.4]"."""
    interval = f"[{difference.low:z.1f}, {difference.high:z.1f}]"
    return interval + difference.interval_notice()


def phenomena_table(records, data, paradigms=(), of_family=False):
    """Accuracy on minimal pairs in per cent: one row per phenomenon, one column per variant.

    Args:
        records: of runs.
        data: the name of the minimal pairs.
        paradigms: names. If there are any, each of them has a row, in place of the phenomena.
        of_family: True for the variants of FAMILY, False for all others.
    """
    runs = []
    for run in with_pairs(checked(records), data):
        if (run["settings"]["variant"] in FAMILY) == of_family:
            runs.append(run)
    if not runs:
        return [NOT_MEASURED]
    header, *rows = accuracy_table(runs, data, paradigms)
    return markdown(header, rows)


def phenomena_order_table(records, data):
    """The paper's order on minimal pairs, by phenomenon: one column per comparison.

    A comparison is a variant minus the one before it in ORDER.
    """
    runs = with_pairs(checked(records), data)
    if not runs:
        return [NOT_MEASURED]

    # one column for each comparison that has runs with a common seed
    header = ["phenomenon"]
    rows = {}
    p_values = 0
    for higher, lower in ORDER_COMPARISONS:
        if not seeds_of(runs, higher) & seeds_of(runs, lower):
            continue
        differences = differences_on_pairs(runs, data, higher, lower)
        count = differences[-1].comparison.seeds
        header.append(f"{higher} - {lower} ({counted(count, 'seed')})")
        p_values += p_value_count(differences)
        for difference in differences:
            text = f"{difference.comparison.mean:z.1f} {interval_text(difference)}"
            if difference.comparison.seeds > 1:
                text += f", {difference.comparison.test_text()}"

            # the first cell of a row is its name
            if difference.name not in rows:
                rows[difference.name] = [difference.name]
            rows[difference.name].append(text)
    if not rows:
        return [NOT_MEASURED]
    note = below_differences(f"{PAIRED} {INTERVALS}", p_values)
    return [*markdown(header, rows.values()), "", note]


def glue_lines(records, cells_of=task_cells):
    """The table of `python glue.py table`, and the notes below it.

    cells_of: task_cells, or phenomenon_cells for the toy CoLA sentences by phenomenon.
    """
    runs = [glue_run(record) for record in checked(records) if record["glue"]]
    if not runs:
        return [NOT_MEASURED]
    header, *rows = result_lines(runs, cells_of)
    lines = markdown(header, rows)
    for note in notes_of([header, *rows], runs):
        lines += ["", note_line(note)]
    return lines


EARLIER_TASKS = "Measured on the toy tasks of an earlier version."


def batches_table(sorted_records, random_records):
    """Scores of fine-tuning with batches sorted by length, and with random batches.

    Each result of the first file must also be in the second one, whose other results are not used.
    """
    # of each run and task: fine-tuning seeds, scores before, scores after
    rows = {}
    for record, before, after in paired_results(sorted_records, random_records, "random batches"):
        settings = record["settings"]
        key = (settings["variant"], settings["seed"], before["task"])
        seeds, scores_before, scores_after = rows.setdefault(key, ([], [], []))
        seeds.append(str(before["seed"]))
        scores_before.append(f"{before['result']['score']:.1f}")
        scores_after.append(f"{after['result']['score']:.1f}")

    # one row per run and task
    lines = []
    for (variant, seed, task), columns in rows.items():
        lines.append([task, variant, str(seed), *[", ".join(column) for column in columns]])
    header = ["task", "variant", "pre-training seed", "fine-tuning seeds"]
    header += ["batches sorted by length", "random batches"]
    return [*markdown(header, lines), "", EARLIER_TASKS]


def paired_results(records, others, what):
    """Fine-tuning results and those of the same runs elsewhere: a list of (record, result, other).

    Args:
        records: of runs. Each of their results must also be in `others`.
        others: of runs. Their other results are not used.
        what: the others, for the message: "random batches".
    Raises:
        UserError: a result is missing, or the two are not of the same model and the same rows.
    """
    # the others, to look them up
    other_results = {}
    for record in others:
        for result in record["glue"]:
            other_results[record["run"], result["task"], result["seed"]] = result

    # each result with its other one, which must be of the same model and the same rows
    pairs = []
    for record in records:
        for result in record["glue"]:
            name = f"{record['run']}, {result['task']}, seed {result['seed']}"
            other = other_results.get((record["run"], result["task"], result["seed"]))
            if other is None:
                raise UserError(f"{name} has no {what}")
            for setting in ("model", "data"):
                if result["settings"].get(setting) != other["settings"].get(setting):
                    raise UserError(f"{name}: the {setting} is not the same")
            pairs.append((record, result, other))
    return pairs


def adam_eps_table(ours, released):
    """Toy GLUE after fine-tuning with Adam's eps of this project, and with that of [C]'s code.

    Each run of the second file must also be in the first one, whose other runs are not used. The
    settings in a record do not contain eps. Only the file and the digest of the code tell it.
    """
    # the same models, fine-tuned on the same rows
    pairs = paired_results(released, ours, "result with our eps")
    runs = {record["run"] for record, _, _ in pairs}

    # The runs differ in eps and not in the variant: eps takes its place in the table.
    records = []
    for eps, group in (("eps 1e-6", ours), ("eps 1e-8", released)):
        for record in group:
            if record["run"] in runs:
                settings = {**record["settings"], "variant": eps}
                records.append({**record, "settings": settings})

    # the means, and below them the difference
    lines = measure_table(records, (TOY_GLUE,))
    difference = differences_table(records, (TOY_GLUE,), [("eps 1e-6", "eps 1e-8")])
    return [*lines, "", *difference]


def settings_table(records, english):
    """Single runs of `absolute` with different settings: one row per run, without means.

    Args:
        records: of the runs behind the choice of settings.
        english: of the runs with the chosen settings. Those of other variants are left out.
    """
    measures = (LOSS, BLIMP, COLA, SST)
    rows = []
    for record in [*records, *runs_of(english, "absolute")]:
        # what differs between the runs
        settings = record["settings"]
        row = [
            record["run"],
            f"{record['result']['parameters']:,}",
            f"{settings['lr']:g}",
            f"{settings['steps']:,}",
            str(settings["seed"]),
        ]

        # what was measured
        for measure in measures:
            value = measure.value(record)
            text = ""
            if value is not None:
                text = f"{value:.{measure.digits}f}"
            row.append(text)
        rows.append(row)

    header = ["run", "parameters", "learning rate", "steps", "seed"]
    return markdown(header + [measure.title for measure in measures], rows)


def summary_table(toy, english):
    """The small table of README.md: a row per measure, a column per variant of the order."""
    # of each text, the measures that at least one of the variants has
    texts = [
        ("toy language", toy, (LOSS, TOY_PAIRS, TOY_GLUE)),
        ("English", english, (LOSS, BLIMP, COLA, SST)),
    ]
    rows = []
    all_marks = set()
    for text, records, measures in texts:
        records = checked(records)
        steps = records[0]["settings"]["steps"]
        for measure in measures:
            row = [f"{text}, {steps:,} steps: {measure.title}"]
            for variant in ORDER:
                cell_text, marks = measured_cell(records, variant, measure)
                row.append(cell_text)
                all_marks |= marks
            if any(row[1:]):
                rows.append(row)
    return [*markdown(["", *ORDER], rows), *notes_of_marks(all_marks)]


def first_command_table(records):
    """What the first command of README.md costs and reaches: one row per run."""
    rows = []
    for record in records:
        result = record["result"]

        # 85 seconds are 1:25
        minutes, seconds = divmod(round(result["seconds"]), 60)
        rows.append(
            [
                machine_of(record["made_by"]),
                record["settings"]["dtype"],
                f"{minutes}:{seconds:02d}",
                f"{result['tokens_per_second']:,.0f}",
                f"{result['loss']:.3f}",
                f"{100 * result['accuracy']:.1f} %",
            ]
        )
    header = ["hardware", "precision", "training (min:s)", "tokens/s", "held-out loss", "accuracy"]
    return markdown(header, rows)


def processes_table(records):
    """Speed by the number of processes and of threads in each: the mean of equal runs."""
    # {(processes, threads): [tokens per second]}; a run of one process does not say so
    speeds = {}
    for record in records:
        made_by = record["made_by"]
        key = (made_by.get("processes", 1), made_by["threads"])
        speeds.setdefault(key, []).append(record["result"]["tokens_per_second"])

    # the first row is that to which the others are compared
    rows = []
    first = None
    for (processes, threads), values in speeds.items():
        mean = sum(values) / len(values)
        if first is None:
            first = mean
        per_run = ", ".join(f"{value:,.0f}" for value in values)
        rows.append([str(processes), str(threads), per_run, f"{mean / first:.2f}"])
    header = ["processes", "threads in each", "tokens/s of each run", "ratio"]

    # what all runs have in common
    settings = records[0]["settings"]
    note = (
        f"`{settings['variant']}`, {settings['size']}, {settings['steps']:,} steps, "
        f"{settings['dtype']}; {records[0]['made_by']['device']}; {records[0]['made_by']['date']}."
    )
    return [*markdown(header, rows), "", note]


# --- Tables of benchmarks -------------------------------------------------------------------------


def memory_cell(mib):
    """Memory in MiB as text; "?" if the system could not measure it."""
    if mib is None:
        return "?"
    return f"{mib:,.0f}"


def steps_table(record):
    """Training steps of all variants, from `python -m lab.bench steps`."""
    # one row per variant
    rows = []
    for row in record["rows"]:
        rows.append(
            [
                row["variant"],
                f"{row['full_ms']:,.0f} ms",
                f"{row['full_ratio']:.2f}",
                f"{row['corpus_tokens_per_second']:,.0f} tok/s",
                f"{row['corpus_ratio']:.2f}",
                f"{memory_cell(row['peak_mib'])} MiB",
            ]
        )
    header = ["variant", "full rows", "x absolute", "text", "x absolute", "peak memory"]
    return markdown(header, rows)


def padding_table(*records):
    """Ways of making batches, from `python -m lab.bench padding`, one record per precision."""
    rows = []
    for record in records:
        by_name = {row["batches"]: row for row in record["rows"]}

        # one row per way; the speed is also compared with that of equally many pairs per batch
        for name, row in by_name.items():
            to_equal_pairs = row["tokens_per_second"] / by_name["equal-pairs"]["tokens_per_second"]
            rows.append(
                [
                    record["settings"]["dtype"],
                    name,
                    f"{row['tokens_per_second']:,.0f}",
                    f"{row['ratio']:.2f}",
                    f"{to_equal_pairs:.2f}",
                    f"{row['tokens_per_step']:,.0f}",
                    f"{row['deviation']:,.0f}",
                    f"{row['filled']:.0f} %",
                ]
            )
    header = ["precision", "batches", "real tokens/s", "x padded", "x equal-pairs"]
    header += ["real tokens per step", "standard deviation", "positions filled"]
    return markdown(header, rows)


def attention_table(record):
    """Attention alone in six ways, from `python -m lab.bench attention`."""
    by_length = {}
    for row in record["rows"]:
        by_length.setdefault(row["N"], {})[row["path"]] = row

    # of the first method the time, of the others the ratio; then the memory of all
    paths = list(next(iter(by_length.values())))
    rows = []
    for length, methods in by_length.items():
        times = [f"{methods[paths[0]]['ms']:.1f} ms"]
        times += [f"{methods[path]['ratio']:.2f}" for path in paths[1:]]
        memory = [memory_cell(methods[path]["peak_mib"]) for path in paths]
        rows.append([str(length), *times, ", ".join(memory)])
    return markdown(["N", *paths, f"peak MiB: {', '.join(paths)}"], rows)


def lengths_table(record):
    """Cost against length, from `python -m lab.bench lengths`."""
    # {N: {variant: its four numbers}}
    by_length = {}
    for row in record["rows"]:
        activations = None if row["kib"] is None else row["kib"] / 1024
        text = (
            f"{row['ms']:.1f} ms, {row['gflop']:.1f} GFLOP, {memory_cell(activations)} MiB, "
            f"{memory_cell(row['model_peak_mib'])} MiB"
        )
        by_length.setdefault(row["N"], {})[row["variant"]] = text

    variants = list(next(iter(by_length.values())))
    rows = []
    for length, cells in by_length.items():
        rows.append([str(length), *[cells[variant] for variant in variants]])
    return markdown(["N", *variants], rows)


# --- Losses by length -----------------------------------------------------------------------------


def length_losses_table(records):
    """The loss of each variant in rows of N tokens, from `python -m lab.lengths`."""
    if not records:
        return [NOT_MEASURED]
    check_comparable(records)

    # the largest number of seeds; a cell with fewer says so
    losses = losses_of_variants(records)
    usual = 0
    for by_length in losses.values():
        for seeds in by_length.values():
            usual = max(usual, len(seeds))

    # one row per variant, one column per length
    measured = records[0]["measured"]
    lengths = measured["lengths"]
    rows = []
    for variant, by_length in losses.items():
        values = [list(by_length.get(N, {}).values()) for N in lengths]
        rows.append([variant, *[cell(each, 3, usual) or "-" for each in values]])
    header = ["variant", *[f"{N:,} tokens" for N in lengths]]

    # what holds for all cells
    origins = [record["made_by"] for record in records]
    parts = [
        f"The same {measured['scored']:,} tokens of one text for all lengths and runs: "
        "the errors cover the seeds, not the choice of the text",
        measured["dtype"],
        *dict.fromkeys(machine_of(origin) for origin in origins),
        *dates_and_codes(origins),
    ]
    return [*markdown(header, rows), "", "; ".join(parts) + "."]


def length_changes_table(records):
    """How much the loss changes from rows of the training's --seq_len to longer ones.

    All runs of the records have the same --seq_len.
    """
    if not records:
        return [NOT_MEASURED]
    check_comparable(records)
    trained_at = records[0]["settings"]["seq_len"]
    lengths = records[0]["measured"]["lengths"]
    if trained_at not in lengths:
        raise UserError(f"the loss at {trained_at} tokens, the training's --seq_len, is missing")
    longer = [N for N in lengths if N > trained_at]

    # one row per variant, one column per longer length
    rows = []
    p_values = 0
    for variant, by_length in losses_of_variants(records).items():
        row = [variant]
        for N in longer:
            if N not in by_length:
                row.append("-")
                continue
            comparison = compare(by_length[N], by_length[trained_at])
            row.append(comparison.text())
            if not math.isnan(comparison.p):
                p_values += 1
        rows.append(row)

    header = ["variant", *[f"{N:,} - {trained_at}" for N in longer]]
    note = (
        "Each run is compared with itself, on the same tokens of one text. p: paired t-test over "
        "seeds; it does not cover the choice of the text."
    )
    return [*markdown(header, rows), "", below_differences(note, p_values)]


# --- All tables -----------------------------------------------------------------------------------


def read_records(path):
    """The content of a file of records. UserError if it is missing or damaged.

    For a .jsonl file this is the list of its records of runs, for a .json file its value.
    """
    if path.suffix == ".jsonl":
        return read_run_records(path)
    if not path.is_file():
        raise UserError(f"{path} is not there: lab.bench with --out makes it")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error})") from None


@dataclass(frozen=True)
class Table:
    """A table of the documents.

    Attributes:
        files: the names of its records in results/.
        make: function from the contents of these files to the lines of the table.
        options: further arguments of the function.
        read: function from the path of a file to its content: read_length_records for losses by
            length, read_records for all others.
    """

    files: tuple
    make: Callable
    options: tuple = ()
    read: Callable = read_records


TOY = ("toy.jsonl",)
LESSON = ("lesson.jsonl",)
ENGLISH = ("english.jsonl",)

# agreement across 1 to 12 tokens, in toy/pairs.py
DISTANCES = tuple(f"distance_{distance:02}" for distance in range(1, 13))

# fmt: off
TABLES = {
    # README.md
    "first-command":           Table(("first-command.jsonl",), first_command_table),
    "summary":                 Table((*TOY, *ENGLISH), summary_table),
    # docs/results.md
    "toy-language":            Table(TOY, measure_table, ((LOSS, ACCURACY, TOY_PAIRS, TOY_GLUE),)),
    "toy-order":               Table(TOY, differences_table,
                                     ((LOSS, ACCURACY, TOY_PAIRS, TOY_GLUE), ORDER_COMPARISONS)),
    "toy-family":              Table(TOY, differences_table,
                                     ((LOSS, ACCURACY, TOY_PAIRS, TOY_GLUE), FAMILY_COMPARISONS)),
    "toy-phenomena":           Table(TOY, phenomena_table, ("toy",)),
    "toy-distances":           Table(TOY, phenomena_table, ("toy", DISTANCES)),
    "toy-family-phenomena":    Table(TOY, phenomena_table, ("toy", (), True)),
    "toy-family-distances":    Table(TOY, phenomena_table, ("toy", DISTANCES, True)),
    "toy-phenomena-order":     Table(TOY, phenomena_order_table, ("toy",)),
    "toy-glue":                Table(TOY, glue_lines),
    "toy-cola":                Table(TOY, glue_lines, (phenomenon_cells,)),
    "lesson":                  Table(LESSON, measure_table, ((LOSS, ACCURACY, TOY_PAIRS),)),
    "lesson-order":            Table(LESSON, differences_table,
                                     ((LOSS, TOY_PAIRS), ORDER_COMPARISONS)),
    "toy-batches":             Table(("toy-sorted.jsonl", "toy-random.jsonl"), batches_table),
    "english-settings":        Table(("english-settings.jsonl", *ENGLISH), settings_table),
    "english":                 Table(ENGLISH, measure_table,
                                     ((LOSS, ACCURACY, BLIMP, BLIMP_WORDS, COLA, SST),)),
    "english-order":           Table(ENGLISH, differences_table,
                                     ((LOSS, BLIMP, COLA, SST), ORDER_COMPARISONS)),
    "english-convolutions":    Table(ENGLISH, differences_table,
                                     ((LOSS, BLIMP, COLA, SST), CONVOLUTION_COMPARISONS)),
    "english-family":          Table(ENGLISH, differences_table,
                                     ((LOSS, BLIMP, COLA, SST), FAMILY_COMPARISONS)),
    "english-phenomena":       Table(ENGLISH, phenomena_table, ("blimp",)),
    "english-family-phenomena": Table(ENGLISH, phenomena_table, ("blimp", (), True)),
    "english-phenomena-order": Table(ENGLISH, phenomena_order_table, ("blimp",)),
    "english-lengths":         Table(("english-lengths.jsonl",), length_losses_table,
                                     read=read_length_records),
    "english-lengths-divided": Table(("english-lengths-divided.jsonl",), length_losses_table,
                                     read=read_length_records),
    "english-length-changes":  Table(("english-lengths.jsonl",), length_changes_table,
                                     read=read_length_records),
    "toy-lengths":             Table(("toy-lengths.jsonl",), length_losses_table,
                                     read=read_length_records),
    # docs/differences.md
    "convbert":                Table(("convbert.jsonl",), measure_table,
                                     ((LOSS, ACCURACY, TOY_PAIRS, TOY_GLUE),)),
    "convbert-released":       Table(("convbert.jsonl",), differences_table,
                                     ((LOSS, ACCURACY, TOY_PAIRS, TOY_GLUE),
                                      [("convbert", "convbert-released")])),
    "adam-eps":                Table(("convbert.jsonl", "adam-eps.jsonl"), adam_eps_table),
    # docs/speed.md
    "speed-steps":             Table(("bench-steps-bf16.json",), steps_table),
    "speed-family":            Table(("bench-steps-family.json",), steps_table),
    "speed-padding":           Table(("bench-padding-fp32.json", "bench-padding-bf16.json"),
                                     padding_table),
    "speed-attention":         Table(("bench-attention.json",), attention_table),
    "speed-lengths":           Table(("bench-lengths.json",), lengths_table),
    # docs/distributed.md
    "processes":               Table(("processes.jsonl",), processes_table),
}
# fmt: on


def lines_of(name, results):
    """The lines of a table, in Markdown.

    Args:
        name: of the table.
        results: the folder of the records.
    Raises:
        UserError: there is no such table, or its records are missing, damaged or do not fit
            together.
    """
    if name not in TABLES:
        raise UserError(f"there is no table {name!r}; the tables are: {', '.join(TABLES)}")
    table = TABLES[name]
    contents = [table.read(results / file) for file in table.files]

    # the rows of a record may lack what the table reads
    try:
        return table.make(*contents, *table.options)
    except (KeyError, IndexError, TypeError, AttributeError, StopIteration) as error:
        files = " or ".join(str(results / file) for file in table.files)
        raise UserError(f"{files} is damaged or was made by another version ({error!r})") from None


def print_tables(names, results):
    """Print tables, each below its name; without names all, also those that have no records yet."""
    for name in names or TABLES:
        missing = []
        if not names:
            missing = [file for file in TABLES[name].files if not (results / file).is_file()]
        lines = [f"(no records yet: {', '.join(missing)})"]
        if not missing:
            lines = lines_of(name, results)
        print("\n".join([name, "", *lines, ""]))


# --- Tables in documents --------------------------------------------------------------------------

BEGIN = "<!-- table: "
END = "<!-- end -->"


def with_tables(text, results):
    """The text of a document, with every table between its markers made again.

    Args:
        text: of the document. A marker is a line of its own.
        results: the folder of the records.
    Raises:
        UserError: a marker is not closed or not opened, or a table cannot be made.
    """
    kept = []
    table = None  # the name of the table that the line is in
    for line in text.split("\n"):
        is_begin = line.startswith(BEGIN)
        is_end = line == END
        if is_begin and table is not None:
            raise UserError(f"{line} is inside the table {table}")
        if is_end and table is None:
            raise UserError(f"there is {END} without a table")

        # of what is between two markers, nothing is kept
        if is_end:
            table = None
        if table is None:
            kept.append(line)
        if is_begin:
            table = line.removeprefix(BEGIN).removesuffix("-->").strip()
            kept += lines_of(table, results)
    if table is not None:
        raise UserError(f"the table {table} has no {END}")
    return "\n".join(kept)


def documents_of(root):
    """README.md and the files of docs/."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def write_documents(root):
    """Put all tables into the documents. They are written only if every table can be made."""
    changed = {}
    for path in documents_of(root):
        text = path.read_text(encoding="utf-8")
        try:
            with_new_tables = with_tables(text, root / "results")
        except ValueError as error:
            raise UserError(f"{path.name}: {error}") from None
        if with_new_tables != text:
            changed[path] = with_new_tables

    for path, text in changed.items():
        write_text(path, text)
        print(f"{path.relative_to(root)} written")
    if not changed:
        print("every table is up to date")


# --- The command line -----------------------------------------------------------------------------

USAGE = """
    python -m lab.report [-h] [TABLE ...]
    python -m lab.report --write
    python -m lab.report collect RUN ... --out FILE"""


def collect_command(args):
    """Add the records of runs to a file."""
    folders = each_run_once(args.run)
    records = [record_of_run(folder) for folder in folders]

    # of two folders with one name, the second would replace the first
    identities = [identity_of_run(record) for record in records]
    for folder, identity in zip(folders, identities, strict=True):
        if identities.count(identity) > 1:
            raise UserError(f"{folder}: there is another run with this name; rename one of them")

    add_records(args.out, records)
    print(f"{args.out}: {counted(len(records), 'run')} added or replaced")


def tables_command(args):
    """Print tables, or put them into the documents."""
    if args.write:
        write_documents(ROOT)
    else:
        print_tables(args.table, ROOT / "results")


def parse_arguments(arguments=None):
    """The command line's values; .command is the function of what is asked for."""
    if arguments is None:
        arguments = sys.argv[1:]
    if arguments[:1] == ["collect"]:
        return parse_collect(arguments[1:])
    return parse_tables(arguments)


def parse_collect(arguments):
    """The values of `collect RUN ... --out FILE`. arguments: those after `collect`."""
    parser = argparse.ArgumentParser(prog="python -m lab.report collect")
    parser.add_argument("run", nargs="+", metavar="RUN", type=Path, help="folder of a finished run")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, required=True, help="results/NAME.jsonl"
    )
    parser.set_defaults(command=collect_command)
    return parser.parse_args(arguments)


def parse_tables(arguments):
    """The values of `[TABLE ...]` and of `--write`."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.report",
        usage=USAGE,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "table", nargs="*", metavar="TABLE", help=f"(default: all) {', '.join(TABLES)}"
    )
    parser.add_argument("--write", action="store_true", help="write all tables into the documents")
    parser.set_defaults(command=tables_command)
    args = parser.parse_args(arguments)
    if args.write and args.table:
        parser.error("--write is for all tables; give no names")
    return args


def main(arguments=None):
    """Collect runs, or print or write tables. Returns the exit code."""
    args = parse_arguments(arguments)
    args.command(args)
    return 0


if __name__ == "__main__":
    run_command("lab.report", main)
