"""The tables of README.md and docs/, made from the records in results/.

    python -m lab.report                                 print all tables
    python -m lab.report english english-order           print these tables
    python -m lab.report --write                         put the tables into README.md and docs/*.md
    python -m lab.report collect RUN ... --out results/english.jsonl

`collect` reads finished runs (folders that pretrain.py wrote, with the results of glue.py and
lab.pairs if there are any) into a file of records. A run that is already in the file is replaced.
Each line is one run, a JSON object:

    run         the name of its folder
    settings    everything that the run depends on: variant, seed, steps, ...
    made_by     the machine, the versions and the commit of the code that began it
    continued   a list: the same for each continuation
    curve       [[step, held-out loss, held-out accuracy], ...]
    result      {"loss", "accuracy", "parameters", "tokens_per_second", "seconds"}, of the last step
    glue        the results of fine-tuning
    pairs       {name of the data: a list, one entry per paradigm of minimal pairs}

In a document, a table is between two markers. A test compares it with what this program prints.

    <!-- table: english -->
    <!-- end -->

A cell "a +- b" is mean and standard error over the runs of a variant, which differ in their seed. A
cell "a (b to c)" is a difference and its 95 % interval. An empty cell was not measured. Only runs
with the same settings may be in one table. Only differences that docs/plan.md names have a p-value.
"""

import argparse
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from glue import read_results
from model import BertForMaskedLM, load_config, parameter_count
from support.commands import UserError, run_command
from support.files import sha256_of, write_text
from support.runs import Run, group_runs, read_log, read_records, write_records
from support.statistics import difference, holm, mean_and_standard_error

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# [C]: none < absolute < fixed < dynamic <= composite
ORDER = ("none", "absolute", "fixed", "dynamic", "composite")


# --- From a run to its record ---------------------------------------------------------------------


def collect(folders, out):
    """Add the records of runs to a file. An old record of the same run is replaced."""
    records = read_records(out) if out.exists() else []
    records += [record_of_run(Path(folder)) for folder in folders]
    last_of_each = {identity(record): record for record in records}
    write_records(out, last_of_each.values())
    print(f"{out}: {len(last_of_each)} runs")


def identity(record):
    """What distinguishes two runs: their names and settings."""
    return record["run"], json.dumps(record["settings"], sort_keys=True)


def record_of_run(folder):
    """The record of a finished run."""
    config = load_config(folder)
    first, *lines = read_log(folder)
    steps = [line for line in lines if "tokens" in line]
    evaluations = [line for line in lines if "held_out_loss" in line]
    if lines[-1]["step"] < first["settings"]["steps"]:
        raise UserError(f"{folder} is not finished: the command that started it continues it")

    # what was measured with the trained model
    glue = read_results(folder / "glue")
    models = [result["settings"]["model"] for result in glue]
    for result in glue:
        del result["log"]  # the curve of its loss
    pairs = {}
    for path in sorted((folder / "pairs").glob("*.json")):
        result = read_records(path)
        models.append(result["model"])
        pairs[path.stem] = result["paradigms"]
    if set(models) - {sha256_of(folder / "model.pt")[:12]}:
        raise UserError(f"{folder} has results of an earlier model in glue/ or pairs/: delete them")

    # On the device "meta", a model has shapes but no numbers: enough to count its parameters.
    with torch.device("meta"):
        parameters = parameter_count(BertForMaskedLM(config))

    seconds = steps[-1]["seconds"]
    return {
        "run": folder.resolve().name,
        "settings": first["settings"],
        "made_by": first["made_by"],
        "continued": [line["made_by"] for line in lines if "made_by" in line],
        "curve": [
            [line["step"], line["held_out_loss"], line["held_out_accuracy"]] for line in evaluations
        ],
        "result": {
            "loss": evaluations[-1]["held_out_loss"],
            "accuracy": evaluations[-1]["held_out_accuracy"],
            "parameters": parameters,
            "tokens_per_second": steps[-1]["tokens"] / seconds,
            "seconds": seconds,
        },
        "glue": glue,
        "pairs": pairs,
    }


# --- What is measured of a run --------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A column of a table.

    Attributes:
        title: in the head of the table.
        digits: after the point; None for a number that all runs of a variant share.
        value: function from a record to the number, or to None if it was not measured.
    """

    title: str
    digits: int | None
    value: Callable


def pairs_measure(title, data, name=None):
    """The Measure of `pairs_accuracy`."""
    return Measure(title, 1, partial(pairs_accuracy, data=data, name=name))


def pairs_accuracy(record, data, name):
    """Accuracy on minimal pairs in per cent, the mean of some paradigms; None if not measured.

    Args:
        data: "toy" or "blimp".
        name: of one paradigm, or of a phenomenon with several; None for all paradigms.
    """
    accuracies = []
    for entry in record["pairs"].get(data, []):
        if name in (None, entry["phenomenon"], entry["paradigm"]):
            accuracies.append(entry["scores"]["pll"]["accuracy"])
    if not accuracies:
        return None
    return float(np.mean(accuracies))


def glue_measure(title, task=None):
    """The Measure of `glue_score`."""
    return Measure(title, 1, partial(glue_score, task=task))


def glue_score(record, task):
    """The score after fine-tuning, the mean over its results; None if not measured.

    There is one result for each task and fine-tuning seed. The score of a task is the mean of its
    metrics, and for MNLI of its two halves.

    task: the name of one task; None for all.
    """
    scores = []
    for result in record["glue"]:
        if task in (None, result["settings"]["task"]):
            scores.append(result["result"]["score"])
    return float(np.mean(scores)) if scores else None


def length_measures(lengths):
    """The loss in sequences of N tokens, which lab.lengths measures, for each N."""
    return [Measure(f"{N:,} tokens", 3, partial(loss_at, N=N)) for N in lengths]


def loss_at(record, N):
    """The loss in sequences of N tokens; None if the model cannot read so many."""
    return dict(record["losses"]).get(N)


PARAMETERS = Measure("parameters", None, lambda record: record["result"]["parameters"])
LOSS = Measure("held-out loss", 3, lambda record: record["result"]["loss"])
ACCURACY = Measure("accuracy (%)", 2, lambda record: 100 * record["result"]["accuracy"])
TOY_PAIRS = pairs_measure("minimal pairs (%)", "toy")
BLIMP = pairs_measure("BLiMP (%)", "blimp")
TOY_SCORE = glue_measure("toy score")  # the mean over nine tasks, as in docs/plan.md
COLA = glue_measure("CoLA", "cola")
SST = glue_measure("SST-2", "sst-2")
TOY_MEASURES = (LOSS, TOY_PAIRS, TOY_SCORE)
ENGLISH_MEASURES = (LOSS, BLIMP, COLA, SST)


# --- The runs of a table --------------------------------------------------------------------------


def check(records):
    """UserError if two runs were not trained in the same way, or not scored on the same data."""
    group_runs(
        [Run(record["run"], record["settings"], record.get("glue", [])) for record in records]
    )

    # the mean of other paradigms or tasks would be another number
    first = {}
    for record in records:
        for data, parts in scored_on(record).items():
            if first.setdefault(data, parts) != parts:
                raise UserError(f"{record['run']} was scored on other parts of {data}: score again")


def scored_on(record):
    """{data: its parts}: the paradigms of each set of minimal pairs, and the tasks of GLUE."""
    parts = {}
    for data, entries in record.get("pairs", {}).items():
        parts[data] = sorted((entry["paradigm"], entry["pairs"]) for entry in entries)
    if record.get("glue"):
        parts["GLUE"] = sorted(result["settings"]["task"] for result in record["glue"])
    return parts


def values_of(records, variant, measure):
    """The values of all runs of a variant that have the measure, a list."""
    values = [measure.value(record) for record in of_variants(records, [variant])]
    return [value for value in values if value is not None]


def difference_of(records, comparison, measure):
    """The Difference of two variants in a measure. comparison: (first, second)."""
    first, second = [values_of(records, variant, measure) for variant in comparison]
    if not first or not second:
        raise UserError(f"{' and '.join(comparison)} do not both have {measure.title}")
    return difference(first, second)


def cell(records, variant, measure):
    """Mean and standard error, "55.2 +- 2.1"; "" if no run has the measure.

    A cell with fewer seeds than the table says so: "5.897 +- 0.009 (2 seeds)".
    """
    values = values_of(records, variant, measure)
    if not values:
        return ""
    if measure.digits is None:
        return f"{values[0]:,}"
    text = mean_and_standard_error(values, measure.digits)
    if len(values) < len({record["settings"]["seed"] for record in records}):
        text += f" ({len(values)} seeds)"
    return text


# --- Tables of runs -------------------------------------------------------------------------------


def markdown(header, rows):
    """The lines of a table in Markdown. header, rows: lists of cells, which are strings."""
    lines = [f"| {' | '.join(row)} |" for row in [header, *rows]]
    return [lines[0], "|" + "---|" * len(header), *lines[1:]]


def measure_table(records, measures, variants=None):
    """One row per variant, one column per measure. variants: their names; None for all."""
    if variants is not None:
        records = of_variants(records, variants)
    return [*markdown(*measure_rows(records, measures)), "", origin(records)]


def of_variants(records, variants):
    """The records of some variants, in the order of the variants."""
    found = []
    for variant in variants:
        found += [record for record in records if record["settings"]["variant"] == variant]
    return found


def range_table(records, measure):
    """The table of one measure, and the lowest and the highest value of each variant."""
    header, rows = measure_rows(records, [measure])
    for row in rows:
        values = values_of(records, row[0], measure)
        row.append(f"{min(values):.1f} to {max(values):.1f}")
    return [*markdown([*header, "range"], rows), "", origin(records)]


def measure_rows(records, measures):
    """The header and the rows of `measure_table`, as lists of cells."""
    check(records)
    rows = []
    for variant in dict.fromkeys(record["settings"]["variant"] for record in records):
        rows.append([variant, *[cell(records, variant, measure) for measure in measures]])
    return ["variant", *[measure.title for measure in measures]], rows


def origin(records):
    """Where and by which code the numbers of a table were made, as a line below it."""
    origins = []
    for record in records:
        origins += [record["made_by"], *record.get("continued", [])]
        origins += [result["made_by"] for result in record.get("glue", [])]
    machines = dict.fromkeys(machine(made_by) for made_by in origins)
    codes = {made_by.get("commit", made_by.get("code")) for made_by in origins}
    return f"{len(records)} runs; {'; '.join(machines)}; versions of the code: {len(codes)}."


def machine(made_by):
    """The machine of a run and the version of torch, as text."""
    return f"{made_by['device']}, threads: {made_by['threads']}, torch {made_by['torch']}"


def difference_rows(records, measures, comparisons, p_values=()):
    """Differences between variants: a header, then one row per comparison, one column per measure.

    Args:
        comparisons: list of (first, second); the row is first - second.
        p_values: {(comparison, measure): p}, where there are any.
    """
    check(records)
    rows = []
    for comparison in comparisons:
        row = [" - ".join(comparison)]
        for measure in measures:
            text = difference_of(records, comparison, measure).text(measure.digits)
            if (comparison, measure) in p_values:
                text += f", p = {p_values[comparison, measure]:.2g}"
            row.append(text)
        rows.append(row)
    return ["difference", *[measure.title for measure in measures]], rows


def plan_table(before, plan, seeds, measures, comparisons, tests):
    """The differences of a hypothesis of docs/plan.md.

    Args:
        before, plan: records of runs made before the plan and for it; those of `seeds` are used.
        measures, comparisons: as of `difference_rows`.
        tests: list of (comparison, measure), one family. Other differences have no p-value.
    """
    records = [record for record in [*before, *plan] if record["settings"]["seed"] in seeds]
    differences = [difference_of(records, *test) for test in tests]
    p_values = dict(zip(tests, holm([each.p for each in differences]), strict=True))
    header, rows = difference_rows(records, measures, comparisons, p_values)

    # the answers: the signs of the differences with p < 0.05
    shown = [
        each.mean > 0 for each, p in zip(differences, p_values.values(), strict=True) if p < 0.05
    ]
    note = (
        f"{len(seeds)} runs of each variant. In brackets: 95 % interval, not corrected. p: Welch's "
        f"t-test, corrected by Holm's method (tests: {len(tests)}). Differences with p < 0.05: "
        f"{shown.count(True)} positive, {shown.count(False)} negative."
    )
    return [*markdown(header, rows), "", note]


def plateau_table(records):
    """H3 of docs/plan.md: a row per run, with the first evaluation that is off the plateau.

    This is a loss below 5.675, 0.2 below the final loss of `none`.
    """
    rows = []
    for record in records:
        below = [step for step, loss, _ in record["curve"] if loss < 5.675] or ["never"]
        rows.append([record["run"], str(below[0]), f"{record['result']['loss']:.3f}"])
    return markdown(["run", "below 5.675 at step", "held-out loss"], rows)


def ends_table(records):
    """H4 of docs/plan.md: a row without a division of the end weights, then one for each division.

    The share of the rise that disappears is printed for each run; the losses are means over runs.
    """
    losses = np.array([[loss for _, loss in record["losses"]] for record in records])
    losses = losses.reshape(-1, 3, 6)  # (divisions, runs, lengths)
    rises = losses[:, :, -1] - losses[:, :, 1]  # from 128 to 2,048 tokens
    shares = 100 - 100 * rises / rises[0]

    # a row per division, which three records have: the first of them names it
    rows = []
    for record, share, loss in zip(records[::3], shares, losses.mean(axis=1), strict=True):
        rows.append(
            [
                record["measured"]["divide_end_weights"] or "nothing",
                *[f"{x:.1f}" for x in share],
                *[f"{x:.3f}" for x in loss],
            ]
        )
    seeds = ("seed 3 (%)", "seed 4 (%)", "seed 5 (%)")
    return markdown(["divided", *seeds, *[measure.title for measure in LENGTHS]], rows)


def summary_table(toy_before, toy_plan, english):
    """The small table of README.md: a row per measure, a column per variant of the order."""
    rows = []
    for text, records, measures in (
        ("toy language", [*toy_before, *toy_plan], TOY_MEASURES),
        ("English", english, (LOSS, BLIMP)),
    ):
        check(records)
        for measure in measures:
            cells = [cell(records, variant, measure) for variant in ORDER]
            rows.append([f"{text}: {measure.title}", *cells])
    return markdown(["", *ORDER], rows)


def noise_table(records, again, measures, variants):
    """The noise between seeds and between processors: two standard deviations, "0.058 / 0.037".

    The first is of the runs of a variant on one kind of processor, the second of two runs with the
    same seed. Each is the root of the mean variance.

    again: records of the same runs of these variants, in the same order, on another kind of
        processor.
    """
    rows = []
    for variant in variants:
        row = [variant]
        for measure in measures:
            values = [values_of(each, variant, measure) for each in (records, again)]  # (2, seeds)

            # the mean variance along each axis: between seeds, then between processors
            noise = [np.sqrt(np.var(values, axis=axis, ddof=1).mean()) for axis in (1, 0)]
            row.append(" / ".join(f"{x:.{measure.digits}f}" for x in noise))
        rows.append(row)
    return markdown(["variant", *[measure.title for measure in measures]], rows)


def first_command_table(records):
    """What the first command of README.md costs and reaches: one row per run."""
    rows = []
    for record in records:
        result = record["result"]
        minutes, seconds = divmod(round(result["seconds"]), 60)

        # where and how it ran, how long, and what it reached
        rows.append(
            [
                machine(record["made_by"]),
                record["settings"]["dtype"],
                f"{minutes}:{seconds:02d}",
                f"{result['tokens_per_second']:,.0f}",
                f"{result['loss']:.3f}",
                f"{100 * result['accuracy']:.1f} %",
            ]
        )
    header = ["hardware", "precision", "training (min:s)", "tokens/s", "held-out loss", "accuracy"]
    return markdown(header, rows)


# --- Tables of benchmarks -------------------------------------------------------------------------


def steps_table(record):
    """Training steps of all variants, from `python -m lab.bench`."""
    rows = []
    for row in record["rows"]:
        rows.append(
            [
                row["variant"],
                f"{row['full_ms']:,.0f} ms",
                f"{row['full_ratio']:.2f}",
                f"{row['corpus_tokens_per_second']:,.0f} tok/s",
                f"{row['corpus_ratio']:.2f}",
                f"{row['peak_mib']:,.0f} MiB",
            ]
        )
    header = ["variant", "full sequences", "x absolute", "text", "x absolute", "peak memory"]
    return markdown(header, rows)


# --- All tables -----------------------------------------------------------------------------------

# agreement across 1 to 12 tokens, in toy/pairs.py
DISTANCES = [pairs_measure(f"{N}", "toy", f"distance_{N:02}") for N in range(1, 13)]

WITH_DISTANCES = (*ORDER[1:], "fire", "xl", "rotary", "lightconv", "dynamicconv", "dilated")

LENGTHS = length_measures((64, 128, 256, 512, 1024, 2048))

# the runs on the toy language: those made before docs/plan.md, and those made for it
ALL_TOY = ["toy.jsonl", "plan-toy.jsonl"]

# docs/plan.md: measures, comparisons and tests of its hypotheses
# H1: the position terms of the first four look at the text, those of the others do not
WITH_TEXT = ("dynamic", "composite", "rotary", "deberta")
WITHOUT_TEXT = ("fixed", "t5", "alibi", "fire")
TEXT_STEPS = list(itertools.product(WITH_TEXT, WITHOUT_TEXT))
PLAN_TEXT = [TOY_SCORE], TEXT_STEPS, [(step, TOY_SCORE) for step in TEXT_STEPS]

# H2: each variant against the one before it; `composite - dynamic` is not tested
ORDER_STEPS = [(higher, lower) for lower, higher in itertools.pairwise(ORDER)]
ORDER_TESTS = list(itertools.product(ORDER_STEPS[:-1], [TOY_PAIRS, TOY_SCORE]))
PLAN_ORDER = TOY_MEASURES, ORDER_STEPS, ORDER_TESTS

# H3: one test
PLATEAU_STEP = ("dynamic", "absolute")

# fmt: off
# {name: (function, the files in results/ whose contents it gets, further arguments)}
TABLES = {
    # README.md
    "first-command":     (first_command_table, ["first-command.jsonl"]),
    "summary":           (summary_table, [*ALL_TOY, "english.jsonl"]),
    # docs/tour.md
    "neighbours":        (range_table, ["neighbours.jsonl"], ACCURACY),
    "lesson":            (measure_table, ["lesson.jsonl"], (PARAMETERS, LOSS, ACCURACY, TOY_PAIRS)),
    # docs/results.md
    "toy-language":      (measure_table, ["toy.jsonl"],
                          (PARAMETERS, LOSS, ACCURACY, TOY_PAIRS, TOY_SCORE)),
    "plan-text":         (plan_table, ALL_TOY, range(3, 8), *PLAN_TEXT),
    "plan-order":        (plan_table, ALL_TOY, range(8), *PLAN_ORDER),
    "plan-order-new":    (plan_table, ALL_TOY, range(3, 8), *PLAN_ORDER),
    "plan-order-again":  (plan_table, ["toy-again.jsonl", "plan-toy.jsonl"], range(8), *PLAN_ORDER),
    "plan-plateau":      (plateau_table, ["plan-plateau.jsonl"]),
    "plan-plateau-test": (plan_table, ["english.jsonl", "plan-plateau.jsonl"], range(4, 7),
                          [LOSS], [PLATEAU_STEP], [(PLATEAU_STEP, LOSS)]),
    "plan-ends":         (ends_table, ["plan-ends.jsonl"]),
    "toy-distances":     (measure_table, ["toy.jsonl"], DISTANCES, WITH_DISTANCES),
    "english":           (measure_table, ["english.jsonl"],
                          (PARAMETERS, LOSS, ACCURACY, BLIMP, COLA, SST)),
    "english-lengths":   (measure_table, ["english-lengths.jsonl"], LENGTHS),
    "noise":             (noise_table, ["toy.jsonl", "toy-again.jsonl"], TOY_MEASURES, ORDER),
    # docs/speed.md
    "speed-steps":       (steps_table, ["bench-steps-bf16.json"]),
}
# fmt: on


def lines_of(name):
    """The lines of a table, in Markdown."""
    if name not in TABLES:
        raise UserError(f"there is no table {name!r}; the tables are: {', '.join(TABLES)}")
    make, files, *arguments = TABLES[name]
    return make(*[read_records(ROOT / "results" / file) for file in files], *arguments)


def with_tables(text):
    """The text of a document, with every table between its markers made again."""

    def table(match):
        lines = [match["begin"], *lines_of(match["name"]), match["end"]]
        return "\n".join(lines)

    markers = r"(?P<begin><!-- table: (?P<name>\S+) -->)\n.*?(?P<end><!-- end -->)"
    return re.sub(markers, table, text, flags=re.DOTALL)


def write_tables():
    """Put all tables into the documents. They are written only if every table can be made."""
    texts = {path: with_tables(path.read_text(encoding="utf-8")) for path in DOCUMENTS}
    for path, text in texts.items():
        write_text(path, text)


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments=None):
    """The command line's values."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [TABLE ... | --write | collect RUN ... --out FILE]",
        description="Collect runs, and print or write the tables of the documents.",
    )
    parser.add_argument("words", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--write", action="store_true", help="write all tables into the documents")
    parser.add_argument("--out", metavar="FILE", type=Path, help="of collect: results/NAME.jsonl")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Collect runs, or print or write tables."""
    args = parse_arguments(arguments)
    if args.words[:1] == ["collect"]:
        if args.out is None:
            raise UserError("collect needs --out FILE")
        collect(args.words[1:], args.out)
    elif args.write:
        write_tables()
    else:
        for name in args.words or TABLES:
            print(name, "", *lines_of(name), "", sep="\n")


if __name__ == "__main__":
    run_command(main)
