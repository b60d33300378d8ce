"""The results of fine-tuning on disk: where they lie, which are missing, and what is made of them.

RUN/glue/ has a log, and for each task and seed that is finished three files:

    cola-seed42.json    its settings, its scores, the curve of its loss, and what made it
    cola-seed42.tsv     each development example: its split, its label, what was predicted
    cola-seed42.pt      its weights; only the best seed keeps them (of MNLI, all do)
    log.jsonl           one line: the settings of all its tasks, and the code

For example (the toy task CoLA, --epochs 1; digests and numbers are cut):

    {"settings": {"lr": 0.0003, "epochs": 1, "batch_size": 32, "seq_len": 64, "steps": 125,
                  "warmup_steps": 13, "weight_decay": 0.0, "dropout": 0.1, "start": null,
                  "task": "cola", "data": "toy b9e0", "model": "d3c6", "tokenizer": "4e68",
                  "dtype": "bfloat16", "changed": ["epochs"], "seed": 42},
     "code": {"model.py": "72ea", ...},  "made_by": {"date": "2026-11-24", ...},
     "result": {"scores": {"dev": {"matthews": 0.0, "score": 0.0}},
                "constant_prediction": true, "score": 0.0},
     "seconds": 9.5,  "log": [{"step": 1, "loss": 0.683, "lr": 2.3e-05, ...}, ...]}

A task and seed is done if its .json exists. So the same command, started again, does what is
missing. All results in a folder are of the same model and code, those of a task also of the same
settings. Others, and those by other code, are in RUN/glue-2 and so on (support.runs.place_for).
"""

import json
import shutil
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from support.code import code_now, digest_of
from support.commands import UserError, say_once
from support.files import finite, load_checkpoint, lock, save_checkpoint, sha256_of, write_text
from support.glue_files import SUBMISSION, write_zip
from support.runs import (
    code_changes,
    find_place,
    give_up,
    is_run,
    label_of,
    numbered,
    read_log,
    read_records,
    warn_about_run,
)
from support.tables import print_glue_table
from support.training import CHECKPOINT

RESULTS = "glue"  # the folder of results in a run; further ones are glue-2 and so on


# --- One result -----------------------------------------------------------------------------------


class NewResult(NamedTuple):
    """The files of a result that is being made."""

    path: Path  # of the result; the weights get the same name with .pt
    checkpoint: Path  # from which it is resumed

    def write(self, trainer, scores, answers):
        """Write the weights and the answers, then the result, which says that it is done.

        answers: {split: (examples, 2) labels and predictions}; a class is its number.
        """
        lines = ["split\tlabel\tprediction\n"]
        for split, pairs in answers.items():
            lines += [f"{split}\t{label:g}\t{prediction:g}\n" for label, prediction in pairs]
        write_text(self.path.with_suffix(".tsv"), "".join(lines))

        first, *log = trainer.records  # settings, code and machine; then the curve of the loss
        record = {**first, "result": scores, "seconds": round(trainer.seconds, 3), "log": log}
        save_checkpoint(self.path.with_suffix(".pt"), trainer.model.state_dict())
        write_text(self.path, json.dumps(record, indent=1) + "\n")


@contextmanager
def new_result(out, name, seed, keeps_all):
    """Give the `with` block a NewResult; None if another command has made it meanwhile.

    Then weights that nobody needs any more are deleted. keeps_all: other tasks start from them.
    """
    path = path_of(out, name, seed)
    running = out / f"running-{path.stem}"
    # with the lock, no other command does the same
    with lock(running / "process.lock"):
        try:
            yield None if path.exists() else NewResult(path, running / CHECKPOINT)
        finally:
            # only what can be continued stays
            if path.exists() or not (running / CHECKPOINT).exists():
                shutil.rmtree(running, ignore_errors=True)
            give_up(out)
    if not keeps_all:
        remove_worse_weights(out, name)


def path_of(out, name, seed, kind="json"):
    """The file of a task and seed: its result (json) or its weights (pt)."""
    return out / f"{name}-seed{seed}.{kind}"


def read_results(out, name="*", seed="*"):
    """The records of what is finished, of a task and seed or of all, in the order of the files."""
    return [read_records(path) for path in sorted(out.glob(f"{name}-seed{seed}.json"))]


def load_weights(out, name, seed):
    """The weights of a result, {name: tensor}."""
    path = path_of(out, name, seed, "pt")
    return finite(load_checkpoint(path), path)


def say_result(out, name, seed, metrics, left):
    """Print the score of a new result."""
    [record] = read_results(out, name, seed)
    print(
        f"{out} {name} seed {seed}: dev {' and '.join(metrics)} {record['result']['score']:.1f} "
        f"in {record['seconds']:.0f} s; {left} left"
    )


def best_result(records, split):
    """The record with the best score on a development split; of equal ones, the first."""
    return max(records, key=lambda record: record["result"]["scores"][split]["score"])


def remove_worse_weights(out, name):
    """Delete the weights of a task that `predict` cannot need: it takes the best of each split.

    Several processes may do this at once: a result that is worse than another one stays worse.
    """
    records = read_results(out, name)
    best = [best_result(records, split) for split in records[0]["result"]["scores"]]
    for record in records:
        if record not in best:
            path_of(out, name, record["settings"]["seed"], "pt").unlink(missing_ok=True)


# --- The folder of results ------------------------------------------------------------------------


def made_from(folder, tasks, code):
    """What makes the results of a run with these settings, {task: settings}, and this code.

    It is the one line of the log.jsonl beside them:

        {"settings": {"model": "d3c6", "tokenizer": "4e68", "mnli lr": 0.0003, "mnli epochs": 4, ...
                      "cola lr": 0.0003, "cola epochs": 1, ...}, "code": {...}}
    """
    settings = files_of(folder)
    for name, of_task in tasks.items():
        # "changed" only repeats which of the others are not the published ones
        settings |= {f"{name} {key}": value for key, value in of_task.items() if key != "changed"}
    return {"settings": settings, "code": code}


def fullest_results(folder):
    """The results of a run that a table shows, (folder, records).

    If there are several folders (glue, glue-2, ...), it is the one with the most tasks; if some
    have equally many, the newest of them.

    runs/fixed/glue with 9 tasks, glue-2 with one (by other code) and glue-3 with 9: it is glue-3.
    """
    found = {out: read_results(out) for out in places_of_model(folder, RESULTS)}
    tasks = {out: len({record["settings"]["task"] for record in found[out]}) for out in found}
    # max takes the first of those that are equal, so the newest comes first
    out = max(reversed(found), key=tasks.get, default=folder / RESULTS)
    if len(found) > 1:
        say_once(f"{folder} has results in {', '.join(map(str, found))}; shown are those in {out}")
    return out, found.get(out, [])


def places_of_model(folder, name):
    """The folders RUN/name, RUN/name-2, ... with results of the model that is there now."""
    model = files_of(folder)["model"]
    found = filter(is_run, numbered(folder / name))
    return [each for each in found if read_log(each)[0]["settings"]["model"] == model]


def missing_results(folder, seeds, tasks, code):
    """What a run lacks: for each task (run, what makes its results, settings, the missing seeds).

    No folder is claimed yet: the command may still be refused.

    tasks: {name: settings}. code: the digests of the code.
    """
    made = made_from(folder, tasks, code)
    out, _ = find_place(folder / RESULTS, made)
    found = []
    for name, settings in tasks.items():
        start = settings["start"]
        missing = [seed for seed in seeds if not path_of(out, name, seed).exists()]
        for seed in missing:
            if start and start not in tasks and not path_of(out, start, seed).exists():
                raise UserError(f"{name} starts from {start}: add {start} to --task")
        if missing:
            found.append((folder, made, settings, missing))
    return found


def origin_of(folder, splits, is_toy):
    """Digests of the files from which fine-tuning starts. splits: {split: Examples} of a task."""
    kind = "toy" if is_toy else "GLUE"
    return {"data": f"{kind} {digest_of(splits)}", **files_of(folder)}


def files_of(folder):
    """Digests of the files of a run from which fine-tuning starts."""
    return {
        "model": sha256_of(folder / "model.pt")[:12],
        "tokenizer": sha256_of(folder / "tokenizer.json")[:12],
    }


# --- What is made of results ----------------------------------------------------------------------


def write_submission(folder, tasks, answers, is_toy):
    """Write RUN/glue/submission.zip: of each of these tasks by the best seed.

    answers: function of (task, split, settings, weights) that returns the answers to a test split.
    """
    out, _ = fullest_results(folder)
    predictions = {}
    files = {file: parts for file, parts in SUBMISSION.items() if parts[0] in tasks}
    for file, (name, split, dev_split) in files.items():
        records = read_results(out, name)
        if not records:
            raise UserError(f"{out} has no result of {name}: glue.py finetune makes it")

        # the best seed on the development examples, and whether it is what is asked for
        record = best_result(records, dev_split)
        settings = record["settings"]
        if is_toy != settings["data"].startswith("toy"):
            raise UserError(f"{out} has results of other tasks than those of --data_dir")
        say_once(code_changes(record["code"], code_now(), f"{out} was made"))

        # its answers
        weights = load_weights(out, name, settings["seed"])
        predictions[file] = answers(name, split, settings, weights)
    write_zip(out / "submission.zip", predictions)
    print(f"wrote {out / 'submission.zip'}")


def run_for_table(path):
    """A run and its results, for the table (support/tables.py).

    path: a run, or one of its folders of results, such as RUN/glue-2, with a row of its own.
    """
    if "model" in read_log(path)[0]["settings"]:  # the log of results names their model
        folder = path.resolve().parent
        label = f"{label_of(folder)}/{path.name}"
        records = read_results(path)
    else:
        folder = path
        label = label_of(path)
        records = fullest_results(path)[1]

    warn_about_run(folder)
    if not records:
        raise UserError(f"{folder} has no results: python glue.py finetune {quote(str(folder))}")
    return {**read_log(folder)[0], "run": folder, "label": label, "glue": records}


def table_command(args):
    """Print the results of the runs: a row per label, or two labels compared."""
    runs = [run_for_table(folder) for folder in args.runs]
    print_glue_table(runs, args.compare)
