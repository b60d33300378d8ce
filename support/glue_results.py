"""The results of fine-tuning on disk: RUN/NAME, the folder of a run's results.

    results.jsonl         one line per finished (task, seed); lines are only ever added
    best-cola.pt          the weights of a task's best run on a development split
    best-mnli_matched.pt  MNLI has two of them, one for each half
    mnli-seed42.pt        an encoder from which other tasks start

A line of results.jsonl is a JSON object, the record. If there are two lines of one task and seed,
the last one counts:

    task, seed   which run it was
    result       {"score": ..., "scores": {dev split: {metric: ..., "score": ...}},
                  "constant_prediction": ..., "partial": ...}
                 and, for CoLA, "by_phenomenon": {phenomenon: accuracy}
    settings     all that the result depends on; "changed" lists the names of those that are not
                 the published ones, if there are any
    made_by      the machine, the version of torch and the code that made it (support/provenance.py)
    seconds      how long the training steps took, without scoring and saving

A file of weights holds task, seed, settings and result, too. So weights that do not belong to their
line are noticed, whatever happened to one of the files.

Several processes may add results to one folder: each one holds the folder's lock while it writes.
"""

import argparse
import sys
from pathlib import Path

from support.commands import LARGEST_INT, UserError
from support.devices import advice_on_precision
from support.files import load_checkpoint, save_checkpoint, sha256_of
from support.glue_format import FORMATS
from support.json_lines import append_json_line, read_json_lines
from support.locks import lock
from support.runs import model_digest
from support.signals import delayed_signals
from support.statistics import listed_differences

DTYPES = ("float32", "bfloat16")

# Scored by a correlation, from -100 to 100. The scores of the other tasks begin at 0.
CORRELATIONS = ("cola", "sts-b")


# --- The lines of results.jsonl -------------------------------------------------------------------


def results_path(folder):
    """The file of the results in a folder."""
    return Path(folder, "results.jsonl")


def results_lock(folder):
    """Held while results are read and written. It waits until no other process does this."""
    return lock(Path(folder, "results.lock"), str(folder), wait=True)


def read_results(folder):
    """{(task, seed): record} of a folder's results, in the order of the file; {} without a file.

    Raises UserError if a line is damaged.
    """
    path = results_path(folder)
    if not path.exists():
        return {}
    records = read_json_lines(path, check_record, "repair or delete the line")
    return {(record["task"], record["seed"]): record for record in records}


def add_result(folder, record):
    """Add a record at the end of the file."""
    append_json_line(results_path(folder), record)


def check_record(record):
    """Raises one of json_lines.DAMAGE if a record is not complete."""
    # which run it is
    task, seed, result = record["task"], record["seed"], record["result"]
    if task not in FORMATS:
        raise UserError(f"the task is {task!r}")
    check_int("seed", seed, 1)

    # its scores
    lowest = 0
    if task in CORRELATIONS:
        lowest = -100
    check_number("a score", result["score"], lowest, 100)
    for split in FORMATS[task].dev_splits:
        check_number(f"the score on {split}", result["scores"][split]["score"], lowest, 100)
        for metric, value in result["scores"][split].items():
            check_number(metric, value, lowest, 100)
    for phenomenon, value in result.get("by_phenomenon", {}).items():
        check_number(f"the accuracy on {phenomenon}", value, 0, 100)

    # what its marks in a table depend on
    for name in ("constant_prediction", "partial"):
        if not isinstance(result[name], bool):
            raise UserError(f"{name} is {short(result[name])}")

    check_settings_of(record)


def check_settings_of(record):
    """Raises an error if the settings of a record cannot be those of its run."""
    settings = record["settings"]
    if not isinstance(settings, dict):
        raise UserError(f"settings is {short(settings)}")

    # An earlier version of this program did not write all of them.
    is_complete = "tokenizer" in settings
    for name, (check, *arguments) in SETTINGS.items():
        if name in settings or is_complete:
            check(name, settings[name], *arguments)

    # which of them were changed
    changed = settings.get("changed", [])
    if not isinstance(changed, list) or not all(isinstance(name, str) for name in changed):
        raise UserError(f"changed is {short(changed)}")

    # task and seed are in the record and again in its settings
    for name in ("task", "seed"):
        if settings.get(name, record[name]) != record[name]:
            raise UserError(f"{name} is {short(record[name])}, and {settings[name]} in settings")


def check_number(name, value, lowest, highest):
    """UserError if a value is not a number from `lowest` to `highest`."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not lowest <= value <= highest:
        raise UserError(f"{name} is {short(value)}, not a number from {lowest} to {highest}")


def check_int(name, value, lowest, highest=LARGEST_INT):
    """UserError if a value is not a whole number from `lowest` to `highest`."""
    check_number(name, value, lowest, highest)
    if not isinstance(value, int):
        raise UserError(f"{name} is {value}, not a whole number")


def check_word(name, value, words):
    """UserError if a value is none of these."""
    if value not in words:
        raise UserError(f"{name} is {short(value)}")


def check_text(name, value):
    """UserError if a value is not a text."""
    if not isinstance(value, str):
        raise UserError(f"{name} is {short(value)}")


def short(value):
    """A value as text for a message, however long it is."""
    # Python does not write numbers of more than 4,300 digits.
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        return "a huge number"
    text = repr(value)
    if len(text) > 40:
        text = text[:40] + "..."
    return text


# What a complete record must have among its settings: name: (the check, its limits)
SETTINGS = {
    "lr": (check_number, 0, sys.float_info.max),
    "epochs": (check_int, 1),
    "batch_size": (check_int, 1),
    "dropout": (check_number, 0, 1),
    "weight_decay": (check_number, 0, 1),
    "warmup_share": (check_number, 0, 1),
    "seq_len": (check_int, 5, 2**20),
    "start": (check_word, (None, *FORMATS)),
    "steps": (check_int, 1),
    "warmup_steps": (check_int, 0),
    "task": (check_word, tuple(FORMATS)),
    "seed": (check_int, 1),
    "data": (check_text,),
    "batches": (check_text,),
    "dtype": (check_word, DTYPES),
    "model": (check_text,),
    "tokenizer": (check_text,),
}


# --- Which results fit together -------------------------------------------------------------------


class OtherSettings(UserError):
    """There are results with other settings."""


def digests_of(folder):
    """The settings that say from which pre-trained model a run started: {"model", "tokenizer"}."""
    return {
        "model": model_digest(folder),
        "tokenizer": sha256_of(folder / "tokenizer.json")[:12],
    }


def check_settings(out, records, settings):
    """OtherSettings if there are results of the same task with other settings, for any seed.

    Means over seeds, and best runs, are only meaningful for runs of one kind.

    Args:
        out: the folder of the results.
        records: its {(task, seed): record}.
        settings: of a run that is planned or finished.
    """
    for (name, seed), record in records.items():
        if name != settings["task"]:
            continue

        # which settings differ, apart from the seed?
        differences = listed_differences(record["settings"], settings, ("seed", "changed"))
        if differences:
            raise OtherSettings(
                f"{out} has {name}, seed {seed}, with other settings ({differences}); "
                f"{advice_on_precision(record['settings'], settings)}choose another --name"
            )


def settings_of_encoder(records, settings):
    """The settings with which a task is trained only to give an encoder to others.

    If there are results of this task from the same model, tokenizer and data, with the same kind of
    batches, then their settings are returned. All other settings may differ, because the encoder
    can be used in any case. If there are no such results, `settings` is returned.
    """
    for record in records.values():
        saved = record["settings"]
        keys = ("task", "model", "tokenizer", "data", "batches")
        if all(saved.get(key) == settings[key] for key in keys):
            return {**saved, "seed": settings["seed"]}
    return settings


def score_on(record, split):
    """The score of a record on a development split."""
    return record["result"]["scores"][split]["score"]


def best_record(records, name, split):
    """The record of a task with the best score on a development split; of equal ones the first."""
    of_task = [record for (task, _), record in records.items() if task == name]
    return max(of_task, key=lambda record: score_on(record, split))


# --- The files of weights -------------------------------------------------------------------------


def best_path(out, name, split):
    """The file of the weights of a task's best run on a development split.

    best-cola.pt for "dev", best-mnli_matched.pt for "dev_matched".
    """
    half = split.removeprefix("dev")
    return out / f"best-{name}{half}.pt"


def encoder_path(out, name, seed):
    """The file of an encoder from which other tasks start."""
    return out / f"{name}-seed{seed}.pt"


TIE = ("task", "seed", "settings", "result")  # what a file of weights and its record share


def save_weights(path, record, weights):
    """Write weights, together with what ties them to their record."""
    tie = {key: record[key] for key in TIE}
    save_checkpoint(path, {**tie, "weights": weights})


def load_weights_of(path, record, advice):
    """The weights in a file, a state_dict.

    Args:
        path: of the file.
        record: the one that they must belong to.
        advice: what the user can do about a wrong file, for the message.

    Raises:
        UserError: the file is missing or damaged, or it belongs to another record.
    """
    if not path.is_file():
        raise UserError(f"{path} is missing: {advice}")
    try:
        saved = load_checkpoint(path)
    except UserError as error:
        raise UserError(f"{error}: {advice}") from None

    # an earlier version of this program wrote the weights alone
    if not isinstance(saved, dict) or not {*TIE, "weights"} <= set(saved):
        raise UserError(
            f"{path} is from an earlier version of this program, or is damaged: {advice}"
        )
    for key in TIE:
        if not is_same(saved[key], record[key]):
            raise UserError(
                f"{path} does not belong to {record['task']}, seed {record['seed']}, in "
                f"{results_path(path.parent)} (another {key}): {advice}"
            )
    if not isinstance(saved["weights"], dict):
        raise UserError(f"{path} is damaged: it holds no weights: {advice}")
    return saved["weights"]


def is_same(saved, expected):
    """Whether two plain values are equal. What is not a plain value is equal to nothing."""
    try:
        return bool(saved == expected)
    except (RuntimeError, TypeError, ValueError):  # tensors
        return False


# --- Add a finished run ---------------------------------------------------------------------------


def keep_run(out, record, weights, gives_encoder):
    """Add a finished run to a folder: its encoder, its weights if they are the best, its line.

    Args:
        out: the folder of the results.
        record: of the run. If it started from a partial run, its result is marked as partial, too.
        weights: the state_dict of its model.
        gives_encoder: whether other tasks start from its encoder.

    Raises:
        OtherSettings: there are results of the task with other settings. Nothing is written.
    """
    name, seed, settings = record["task"], record["seed"], record["settings"]
    with results_lock(out):
        # What is there now decides. Another process may have added results since this run began.
        records = read_results(out)
        check_settings(out, records, settings)

        # a run that starts from a partial one is partial, too
        start = records.get((settings["start"], seed))
        if start is not None and start["result"]["partial"]:
            record["result"]["partial"] = True

        # Ctrl-C and SIGTERM wait until all files are written. Between two of them, the best
        # weights would be those of a run that has no line yet.
        with delayed_signals():
            # the encoder and its pooler, if other tasks start from them
            if gives_encoder:
                save_weights(encoder_path(out, name, seed), record, without_classifier(weights))

            # all weights, if it is the best run of the task so far; MNLI has one for each half
            records[name, seed] = record
            for split in FORMATS[name].dev_splits:
                if best_record(records, name, split) is record:
                    save_weights(best_path(out, name, split), record, weights)

            # the line of results.jsonl comes last: it says that everything else is there
            add_result(out, record)


def without_classifier(weights):
    """A state_dict of a classifier without its last layer: the encoder and the pooler."""
    return {key: value for key, value in weights.items() if not key.startswith("classifier")}


# --- The name of the folder -----------------------------------------------------------------------


def folder_name(text):
    """argparse type: the plain name of a folder inside a run."""
    is_plain = text.isprintable() and not set(text) & set("/\\:")
    is_taken = text in ("pairs", "figures")  # by lab/
    if not is_plain or is_taken or text.strip(". ") == "":
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the name of a folder inside the run, such as glue or lr-2"
        )
    return text
