"""Records of runs, and their tables: means, standard errors and differences.

    python -m lab.report RUN ...                            a row per label
    python -m lab.report RUN ... --compare composite none   composite - none, with 95 % intervals
    python -m lab.report RUN ... --out mine.jsonl           their records, in a new file

RUN is a finished run, a folder that pretrain.py wrote, with the results of glue.py and lab.pairs if
there are any. A file of records may stand in place of runs. Each line of it is one run, a JSON
object:

    run         the name of its folder
    settings    everything that the run depends on: variant, seed, steps, ...
    code        digests of the code that trained it; records before they were kept have none
    made_by     the machine, the versions and the commit of the code that began it
    continued   a list: the same for each continuation
    curve       [[step, held-out loss, held-out accuracy], ...]
    result      {"loss", "accuracy", "parameters", "tokens_per_second", "seconds"}, of the last step
    glue        the results of fine-tuning
    pairs       minimal pairs: {name of the data: {paradigm: [right pairs, pairs]}}
    scored      {name of the data: digests of the pairs and of the code that scored them}

A label is the name of a folder without its seed: composite-2 of runs/composite-2-seed0. The runs of
a label differ in their seed alone. A cell "a +- b" is their mean and its standard error. A cell
"a (b to c)" is a difference and its 95 % interval. An empty cell was not measured. A line below the
table says in which settings, and in which code, its rows differ.

The files in results/ hold such records, behind the tables of docs/.
"""

import argparse
from pathlib import Path

import numpy as np

from model import model_without_weights, parameter_count
from support.commands import UserError, run_command
from support.glue_files import FORMATS
from support.glue_results import fullest_results, places_of_model
from support.options import add_columns
from support.runs import (
    code_changes,
    read_log,
    read_records,
    write_records,
)
from support.tables import (
    ACCURACY,
    INTERVAL_NOTE,
    LOSS,
    PARAMETERS,
    Measure,
    differences_note,
    groups_of,
    meanings_of_marks,
    print_table,
    table_rows,
    without_empty_columns,
)

# --- From a run to its record ---------------------------------------------------------------------


def record_of_run(folder):
    """The record of a finished run."""
    first, *lines = read_log(folder)
    settings = first["settings"]
    if not lines or lines[-1]["step"] < settings["steps"]:
        raise UserError(f"{folder} is not finished: the command that started it continues it")
    steps, last = lines[-2:]  # the last steps, and the evaluation after them

    # what was measured with the trained model
    _, glue = fullest_results(folder)
    for result in glue:
        del result["log"]  # the curve of its loss
    pairs = {}
    scored = {}
    for place in places_of_model(folder, "pairs"):
        made = read_log(place)[0]
        different = code_changes(of_model(first["code"]), of_model(made["code"]), "the training")
        if different:
            print(f"{place} is left out: {different}")
            continue
        for path in sorted(place.glob("*.json")):
            pairs[path.stem] = read_records(path)["paradigms"]
            scored[path.stem] = {
                "pairs": made["settings"].get(f"pairs {path.stem}"),
                **made["code"],
            }

    return {
        "run": folder.resolve().name,
        "settings": settings,
        "code": first["code"],
        "made_by": first["made_by"],
        "continued": [line["made_by"] for line in lines if "made_by" in line],
        "curve": [
            [line["step"], line["held_out_loss"], line["held_out_accuracy"]]
            for line in lines
            if "held_out_loss" in line
        ],
        "result": {
            "loss": last["held_out_loss"],
            "accuracy": last["held_out_accuracy"],
            "parameters": parameter_count(model_without_weights(folder)),
            "tokens_per_second": steps["tokens"] / steps["seconds"],
            "seconds": steps["seconds"],
        },
        "glue": glue,
        "pairs": pairs,
        "scored": scored,
    }


def of_model(code):
    """Of {name: digest}, the code that a model computes with: its pairs must be of the same."""
    files = ("attention.py", "kernels.py", "model.py")
    return {name: digest for name, digest in code.items() if name.split()[-1] in files}


# --- What is measured of a run --------------------------------------------------------------------


def pairs_measure(title, data, paradigms=None):
    """A Measure: accuracy on minimal pairs in per cent, the mean of some paradigms.

    Args:
        data: the name of the pairs: "toy", "blimp" or that of a folder (lab.pairs --data).
        paradigms: the names of some; None for all.
    """

    def accuracy(record):
        accuracies = []
        for paradigm, (right, pairs) in record.get("pairs", {}).get(data, {}).items():
            if paradigms is None or paradigm in paradigms:
                accuracies.append(100 * right / pairs)
        return mean_of(accuracies)

    return Measure(title, 1, accuracy)


def glue_score(record):
    """The score after fine-tuning, the mean over its results.

    There is one result for each task and fine-tuning seed. The score of a task is the mean of its
    metrics, and for MNLI of its two halves.
    """
    return mean_of([result["result"]["score"] for result in record.get("glue", [])])


def mean_of(values):
    """A list with their mean; empty without values: not measured."""
    return [float(np.mean(values))] if values else []


def length_measure(N):
    """A Measure: the loss in sequences of N tokens (lab.lengths), if the model can read so many."""

    def loss(record):
        return [loss for length, loss in record["losses"] if length == N]

    return Measure(f"{N:,} tokens", 3, loss)


FINE_TUNED = Measure("fine-tuned", 1, glue_score, tuple(FORMATS))
PAIRS = {"toy": "minimal pairs (%)", "blimp": "BLiMP (%)"}  # the titles of built-in pairs


def measures_of(records):
    """The columns of the table: of pre-training, of each set of minimal pairs, and of GLUE."""
    names = dict.fromkeys(name for record in records for name in record.get("pairs", {}))
    pairs = [pairs_measure(PAIRS.get(name, f"{name} (%)"), name) for name in names]
    return [PARAMETERS, LOSS, ACCURACY, *pairs, FINE_TUNED]


# --- The runs of a table --------------------------------------------------------------------------


def rows_of(records, measures, compared=None):
    """The rows of `table_rows`. UserError if two runs were not scored on the same data."""
    records = sum(groups_of(records, compared).values(), [])

    # the mean of other paradigms or tasks would be another number
    first = {}
    for record in records:
        for data, parts in scored_on(record).items():
            if first.setdefault(data, parts) != parts:
                raise UserError(f"{record['run']} was scored on other parts of {data}: score again")
    return table_rows(records, measures, compared)


def scored_on(record):
    """{data: its parts}: the paradigms of each set of minimal pairs, and the tasks of GLUE."""
    parts = {}
    for data, paradigms in record.get("pairs", {}).items():
        parts[data] = {paradigm: pairs for paradigm, (_, pairs) in paradigms.items()}
    if record.get("glue"):
        parts["GLUE"] = sorted(result["settings"]["task"] for result in record.get("glue", []))
    return parts


def tasks_note(records):
    """Over which tasks the scores after fine-tuning are means, as a line below a table."""
    tasks = dict.fromkeys(
        result["settings"]["task"] for record in records for result in record.get("glue", [])
    )
    return f"fine-tuned: the mean over {', '.join(tasks)}" if tasks else ""


def origin(records):
    """Where and by which code the numbers of a table were made, as a line below it."""
    origins = []
    for record in records:
        origins += [record["made_by"], *record.get("continued", [])]
        origins += [result["made_by"] for result in record.get("glue", [])]
    machines = sorted({"{device}, threads: {threads}, torch {torch}".format(**x) for x in origins})
    codes = {made_by.get("commit", made_by.get("code")) for made_by in origins}
    return f"{len(records)} runs; {'; '.join(machines)}; versions of the code: {len(codes)}."


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments):
    """The command line's values."""
    parser = argparse.ArgumentParser(description="A table of runs, or their records.")
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="finished runs, or files of records")
    add_columns(add)
    add("--out", metavar="FILE.jsonl", type=Path, help="write the records to this new file")
    return parser.parse_args(arguments)


def check_new(path):
    """UserError if --out names a file that is there. None: it was not given."""
    if path is not None and path.exists():
        raise UserError(f"{path} is there already: name a new file")


def main(arguments=None):
    """Print a table of runs, or write their records."""
    args = parse_arguments(arguments)
    check_new(args.out)
    records = []
    for path in args.runs:
        records += [record_of_run(path)] if path.is_dir() else read_records(path)

    if args.out is not None:
        write_records(args.out, records)
        return

    rows = without_empty_columns(rows_of(records, measures_of(records), args.compare))
    note = INTERVAL_NOTE if args.compare else origin(records)
    notes = [tasks_note(records), *meanings_of_marks(rows)]
    print_table(rows, *notes, differences_note(records, args.compare), note)


if __name__ == "__main__":
    run_command(main)
