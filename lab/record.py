"""Records in results/: what a benchmark printed, or the settings and the results of runs.

A benchmark writes one JSON file. For runs of pretrain.py, a file NAME.jsonl has one line per run, a
JSON object:

    run        the name of its folder
    settings   everything that the run depends on: variant, seed, steps, ...
    made_by    the machine, the versions and the code that began it (support/provenance.py)
    continued  a list: the same for each continuation on another machine, with other code, or
               divided among another number of processes
    curve      [[step, held-out loss, held-out accuracy], ...]
    training   [[step, training loss], ...], at most 20 of them
    result     {"loss", "accuracy", "parameters", "tokens_per_second", "seconds"}, as in pretrain.py
    glue       the results of fine-tuning: the records of RUN/glue/results.jsonl
    pairs      {name of the data: the lines of RUN/pairs/NAME.jsonl}, the minimal pairs

A file of losses by length (lab/lengths.py) has one line per run, too:

    run        the name of its folder
    settings   everything that the run depends on, as above
    made_by    the machine, the versions and the code that measured the losses
    model      12 hexadecimal digits of the SHA-256 of the run's model.pt
    measured   how: {"lengths", "text_sha256", "scored", "divide_end_weights", "dtype"}, the same in
               all lines of a file; text_sha256 is that of the text and of its masks
    losses     [[N, loss in nats], ...]; lengths that the model cannot read are left out

No record has a path: of a folder or a file, only the last part is kept.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from attention import VARIANTS
from model import BertForMaskedLM, load_config, parameter_count
from support.commands import UserError
from support.files import write_text
from support.glue_results import check_record as check_glue_record
from support.glue_results import read_results as read_glue_results
from support.json_lines import DAMAGE, read_json_lines
from support.locks import lock
from support.pair_results import check_record as check_pairs_record
from support.pair_results import read_results as read_pair_results
from support.provenance import made_by
from support.runs import model_digest, progress_of_unfinished

# --- A benchmark ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of a printed table. A row of the table is a dictionary."""

    key: str  # of the value in the row
    title: str
    width: int
    format: str = ""  # of the value, as in Python's format()
    align: str = ">"

    def cell(self, text):
        return f"{text:{self.align}{self.width}}"


class Record:
    """The results of one benchmark, on the screen and in a JSON file.

    The file has the command, when and on what machine it ran, its settings, and what was printed:
    rows and notes. Of a path, it has only the last part.

    Args:
        arguments: the command line's arguments, as they were typed.
        settings: a dictionary of everything that the result depends on.
        device: torch.device.
        out: Path of the file; None if there is to be no file.
    """

    def __init__(self, arguments, settings, device, out):
        words = ["python -m lab.bench"]
        words += [without_folder(argument) for argument in arguments]
        self.content = {
            "command": " ".join(words),
            **made_by(device),
            "settings": settings,
            "rows": [],
            "notes": [],
        }
        self.out = out
        if out is not None and out.is_dir():
            raise UserError(f"--out: {out} is a folder, not a file")

        # Write a new file now, so that a wrong path fails before anything is measured. An existing
        # file is kept as it is until the first new row.
        if out is None or not out.exists():
            self.write()

    def add_table(self, columns, rows):
        """Print rows as soon as they are measured, and keep them.

        The file is written after every row: if a later row fails, the earlier ones are not lost.

        Args:
            columns: the Columns to print; a row may have more values.
            rows: yields one dictionary per row.
        """
        print("  ".join(column.cell(column.title) for column in columns))
        for row in rows:
            cells = []
            for column in columns:
                text = format(row[column.key], column.format)
                cells.append(column.cell(text))
            print("  ".join(cells), flush=True)

            self.content["rows"].append(row)
            self.write()

    def add_note(self, note):
        """Print a line below the table, and keep it."""
        print(note)
        self.content["notes"].append(note)
        self.write()

    def write(self):
        if self.out is None:
            return
        rows = [without_nan(row) for row in self.content["rows"]]
        text = json.dumps({**self.content, "rows": rows}, indent=2)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.out, text + "\n")


def without_nan(row):
    """The row with None in place of nan, which JSON does not have: it could not be measured."""
    clean = {}
    for key, value in row.items():
        is_nan = isinstance(value, float) and math.isnan(value)
        clean[key] = None if is_nan else value
    return clean


def without_folder(argument):
    """An argument of the command line; of a path, only the last part.

    "--corpus=/data/english.txt" becomes "--corpus=english.txt".
    """
    option, equals, value = argument.rpartition("=")
    return option + equals + Path(value).name


# --- A run ----------------------------------------------------------------------------------------

TRAINING_LOSSES = 20  # kept of a run, at most


def record_of_run(folder):
    """The record of a finished run, a dictionary as in the docstring of this file.

    Args:
        folder: of the run, as pretrain.py wrote it; perhaps with results of glue.py and lab.pairs.
    Raises:
        UserError: it is not a run, the run is not finished, or one of its files is damaged.
    """
    folder = Path(folder)
    config = load_config(folder)
    first, training, evaluations, continued = read_log(folder)

    # a run that was stopped has no result yet
    progress = progress_of_unfinished(folder)
    steps = first["settings"]["steps"]
    is_evaluated = evaluations != [] and evaluations[-1]["step"] == steps
    if progress is None and not (training and is_evaluated):
        progress = "its log has no result"
    if progress is not None:
        raise UserError(
            f"{folder} is not finished ({progress}): "
            "the pretrain.py command that started it continues it"
        )

    # On the device "meta" a model has shapes but no numbers: enough to count its parameters.
    with torch.device("meta"):
        parameters = parameter_count(BertForMaskedLM(config))

    record = {
        "run": folder.resolve().name,
        "settings": first["settings"],
        "made_by": first.get("made_by", {}),
        "continued": [line["made_by"] for line in continued],
        "curve": [],
        "training": [],
        "result": {
            "loss": evaluations[-1]["held_out_loss"],
            "accuracy": evaluations[-1]["held_out_accuracy"],
            "parameters": parameters,
            "tokens_per_second": training[-1]["tokens"] / training[-1]["seconds"],
            "seconds": training[-1]["seconds"],
        },
        "glue": list(read_glue_results(folder / "glue").values()),
        "pairs": read_pairs(folder),
    }
    check_model(folder, record)

    # the curves; of n training losses, every (n / 20)th one, counted from the last
    for line in evaluations:
        record["curve"].append([line["step"], line["held_out_loss"], line["held_out_accuracy"]])
    every = math.ceil(len(training) / TRAINING_LOSSES)
    for index, line in enumerate(training, 1):
        if (len(training) - index) % every == 0:
            record["training"].append([line["step"], line["loss"]])
    return record


def read_log(folder):
    """The log of a run.

    Returns:
        its first line, the lines of training, those of evaluations, and those that say from which
        step on another machine or another version of the code continued.

    Raises UserError if there is no log or if it is damaged.
    """
    path = folder / "log.jsonl"
    if not path.is_file():
        raise UserError(f"{folder} is not a run of pretrain.py: it has no log.jsonl")

    try:
        first, *lines = read_lines(path)
        training = [line for line in lines if "loss" in line]
        evaluations = [line for line in lines if "held_out_loss" in line]
        continued = [line for line in lines if "made_by" in line]

        # everything that is read later is there
        settings = first["settings"]
        check_numbers(settings["steps"], settings["seed"])
        for line in training:
            check_numbers(line["step"], line["loss"], line["tokens"], line["seconds"])
            if line["seconds"] <= 0:
                raise UserError(f"seconds are {line['seconds']}")
        for line in evaluations:
            check_numbers(line["step"], line["held_out_loss"], line["held_out_accuracy"])
    except DAMAGE as error:
        raise UserError(f"{path} is damaged ({error})") from None
    return first, training, evaluations, continued


def read_pairs(folder):
    """{name of the data: its lines} of all results of minimal pairs of a run; {} without any."""
    pairs = {}
    for path in sorted((folder / "pairs").glob("*.jsonl")):
        pairs[path.stem] = list(read_pair_results(folder, path.stem).values())
    return pairs


def check_model(folder, record):
    """UserError if the record of a run has results of an earlier model in the same folder."""
    digest = model_digest(folder)
    for result in record["glue"]:
        if result["settings"].get("model", digest) != digest:
            raise UserError(
                f"{folder}/glue has results of an earlier model of this folder: "
                "delete it and run glue.py again"
            )
    for data, lines in record["pairs"].items():
        if any(line["model"] != digest for line in lines):
            raise UserError(
                f"{folder}/pairs/{data}.jsonl has results of an earlier model of this folder: "
                "delete it and run lab.pairs again"
            )


def read_lines(path):
    """The JSON values of a file, one per line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check_numbers(*values):
    """UserError if a value is not a finite number."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"{value!r} is not a number")
        if not math.isfinite(value):
            raise UserError(f"a number is {value}")


def check_run_record(record):
    """An error (one of DAMAGE) if a record of a run is not what the tables read."""
    settings = record["settings"]
    names = (record["run"], settings["variant"])
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"{names} are not names")
    check_numbers(settings["seed"], settings["steps"])
    for name in ("loss", "accuracy", "parameters", "tokens_per_second", "seconds"):
        check_numbers(record["result"][name])
    for result in record["glue"]:
        check_glue_record(result)
    for lines in record["pairs"].values():
        for line in lines:
            check_pairs_record(line)


def read_run_records(path):
    """The records of a file results/NAME.jsonl. UserError if it is missing or damaged."""
    check_is_file(path, "python -m lab.report collect")
    advice = (
        "if lab.report collect made it, delete the line and collect the run again; "
        "otherwise name another file"
    )
    return read_json_lines(Path(path), check_run_record, advice)


def check_is_file(path, program):
    """UserError if there is no file of records. program: the command that makes it."""
    if Path(path).is_dir():
        raise UserError(f"{path} is a folder, not a file of records")
    if not Path(path).is_file():
        raise UserError(f"{path} is not there: {program} RUN ... --out {path} makes it")


def add_records(path, added, read=read_run_records):
    """Add records of runs to a file. A record of the same run is replaced.

    The lines are sorted by `place_of_run`. The file is written atomically. Two processes may add
    records to the same file: the second one waits for the first one.

    Args:
        path: of the file.
        added: list of records.
        read: function that reads the file, read_run_records or read_length_records.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock(path.with_name(f"{path.name}.lock"), str(path), wait=True):
        # the records of the file, and then the new ones, which replace those of the same runs
        records = {}
        if path.exists():
            records = {identity_of_run(record): record for record in read(path)}
        records |= {identity_of_run(record): record for record in added}

        lines = []
        for record in sorted(records.values(), key=place_of_run):
            lines.append(json.dumps(record) + "\n")
        write_text(path, "".join(lines))


def identity_of_run(record):
    """What distinguishes the runs of a file. A run that is trained longer is still the same run."""
    settings = record["settings"]
    names = ("corpus", "size", "variant", "kernel_size", "attention_layer", "beyond", "seed")
    return record["run"], *[settings.get(name) for name in names]


def place_of_run(record):
    """By what records are sorted: variant (as in VARIANTS), attention layer, seed, name."""
    settings = record["settings"]
    layer = settings.get("attention_layer") or 0
    return place_of_variant(settings["variant"]), layer, settings["seed"], record["run"]


def place_of_variant(name):
    """0, 1, 2, ... in the order of VARIANTS; variants that it does not have come last."""
    if name in VARIANTS:
        return list(VARIANTS).index(name)
    return len(VARIANTS)


# --- Losses by length -----------------------------------------------------------------------------


def check_length_record(record):
    """An error (one of DAMAGE) if a record of losses by length is not what the tables read."""
    settings = record["settings"]
    names = (record["run"], settings["variant"], record["measured"]["dtype"])
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"{names} are not names")
    check_numbers(settings["seed"], settings["seq_len"])
    check_numbers(record["measured"]["scored"], *record["measured"]["lengths"])
    if not record["losses"]:
        raise UserError("it has no losses")
    for N, loss in record["losses"]:
        check_numbers(N, loss)


def read_length_records(path):
    """The records of a file of losses by length. UserError if it is missing or damaged.

    Also if its lines were not measured in the same way: such losses cannot be compared.
    """
    check_is_file(path, "python -m lab.lengths")
    # the lines, each complete by itself
    repair = "delete the line and measure the run again"
    advice = f"if lab.lengths made it, {repair}; otherwise name another file"
    records = read_json_lines(Path(path), check_length_record, advice)

    # all lines together
    for record in records:
        if record["measured"] != records[0]["measured"]:
            raise UserError(
                f"{path}: {record['run']} was measured in another way than the first run: {repair}"
            )
    return records


def losses_of_variants(records):
    """{variant: {N: {seed: loss}}} from the records of losses by length."""
    table = {}
    for record in records:
        settings = record["settings"]
        by_length = table.setdefault(settings["variant"], {})
        for N, loss in record["losses"]:
            by_length.setdefault(N, {})[settings["seed"]] = loss
    return table
