"""Runs on disk: the log of a run, and what made it.

The folder of a run holds

    config.json        sizes and variant of the model (model.BertConfig)
    tokenizer.json     the tokenizer, in the format of the library "tokenizers"
    model.pt           the weights
    log.jsonl          one JSON object per line
    train_state.pt     what resuming needs; only until the run is finished
    process0.lock      empty; locked while a program works on the run

The first line of the log holds what the run depends on and what made it: "settings", "code"
(support/code.py) and "made_by" (machine, versions, commit; of a training also whether its steps
were recorded and compiled). Each further line holds the number of the step ("step"), and a
loss, an evaluation, or what made the steps after it.

place_for returns the folder whose log has the settings and the code of a command, or a new one.
Fine-tuning (RUN/glue) and minimal pairs (RUN/pairs) use it, too.
"""

import json
import re
import shutil
from pathlib import Path

from support.code import code_now
from support.commands import say_once
from support.files import lock, write_text
from support.tokenizer import unknown_words

LOG = "log.jsonl"
LONGEST_TEXTS = 80  # characters in the name of a run that stand for its texts


# --- The log of a run -----------------------------------------------------------------------------


def write_records(path, records):
    """Write a .jsonl file: one line per record."""
    write_text(path, "".join(json.dumps(record) + "\n" for record in records))


def read_records(path):
    """The records of a .jsonl file, a list; of a .json file, its value."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    return [json.loads(line) for line in text.splitlines()]


def read_log(folder):
    """The records of a run's log, a list.

    An imported run has no log, and no seed: its folder tells it from others.
    """
    if is_run(folder):
        return read_records(Path(folder, LOG))
    variant = read_records(Path(folder, "config.json")).get("variant")
    settings = {"variant": variant, "seed": str(folder)}
    return [{"settings": settings, "code": {}, "imported": True}]


def is_run(folder):
    """Whether a folder has a log: a run that this program has trained, or its results."""
    return Path(folder, LOG).exists()


# --- What made a result ---------------------------------------------------------------------------


def changed(there, here):
    """The names of what two dictionaries both have, and that differs."""
    return [name for name in there if name in here and there[name] != here[name]]


def code_changes(there, here, since):
    """What changed between the code of two results, as text; "" if nothing did.

    "model.py, class Dynamic in attention.py have changed since runs/composite"
    """
    names = changed(there, here)
    have = "has" if len(names) == 1 else "have"
    return f"{', '.join(names)} {have} changed since {since}" if names else ""


def differences(run, made, with_seed):
    """How the code and the settings of a run differ from those that made something: texts."""
    there = read_log(run)[0]
    old, new = there["settings"], made["settings"]
    texts = [code_changes(there["code"], made["code"], run)]
    for name in changed(old, new):
        if name != "seed" or with_seed:
            texts.append(f"{name} is {new[name]}, not {old[name]} as in {run}")
    return list(filter(None, texts))


# --- The folder of a run is found by what made it -------------------------------------------------
#
#     python pretrain.py                runs/composite
#     python pretrain.py --lr 1e-3      runs/composite-2     lr is 0.001, not 0.002
#     (Dynamic is edited)
#     python pretrain.py                runs/composite-3     class Dynamic in attention.py has ...
#     (and edited back)
#     python pretrain.py                runs/composite       finished before
#
# A label is a folder's name without its seed: composite-3 of composite-3-seed0 and -seed1. All runs
# of a label have the same settings, but for the seed, and the same code: tables take their means.


def label_of(folder):
    """What the runs of all seeds share: the name of the folder without "-seed1"."""
    return re.sub(r"-seed\d+$", "", Path(folder).name)


def place_for(base, made):
    """The folder of a run: base, base-2, ... If others have made base, a line says what differs.

    It is the one that these settings and this code have made; if there is none, the first one that
    is free and whose label has no other runs. A new run claims its folder: before any work begins,
    what makes it is written as the first line of the log (give_up undoes it).

    A log may grow: fine-tuning adds the settings of each new task. Only what both have must be
    equal.

    base: a Path. made: {"settings", "code"}.
    """
    # another command may want the same folder at the same moment
    with lock(base.parent / ".lock", timeout=-1):
        folder, why = find_place(base, made)
        first, *lines = read_log(folder) if is_run(folder) else [{"settings": {}}]
        settings = {**first["settings"], **made["settings"]}
        if settings != first["settings"]:
            # a new log gets all of `made`; an old one keeps its code and gets new settings
            write_records(folder / LOG, [{**made, **first, "settings": settings}, *lines])
    say_once(why and f"{why}: {folder}")
    return folder


def find_place(base, made):
    """(folder, why it is not base)."""
    # what is there: the folders with a log, and those of imported models
    runs = sorted(path.parent for path in base.parent.glob(f"*/{LOG}"))
    imported = {path.parent for path in base.parent.glob("*/model.pt")} - set(runs)

    # the runs of each label
    of_label = {}
    for run in runs:
        of_label.setdefault(label_of(run), []).append(run)

    def against(folder):
        """What speaks against a folder: the first of its label's runs that others have made."""
        for run in of_label.get(label_of(folder), []):
            texts = differences(run, made, with_seed=run == folder)
            if texts:
                return "; ".join(texts[:2])
        return f"{folder} is an imported model" if folder in imported else ""

    # of base, base-2, ... those that nothing speaks against; better one that was made before
    fitting = [folder for folder in numbered(base) if not against(folder)]
    made_before = [folder for folder in fitting if folder in runs]
    return (made_before or fitting)[0], against(base)


def numbered(base):
    """Yield base, base-2, ... and composite-seed0, composite-2-seed0, which runs/*-seed? finds."""
    label = label_of(base)
    seed = base.name.removeprefix(label)
    yield base
    for number in range(2, 1_000):
        yield base.parent / f"{label}-{number}{seed}"


def give_up(folder):
    """Remove a folder that was claimed and got nothing: the next try gets the same name."""
    if all(path.name.endswith((LOG, ".lock")) for path in folder.glob("*")):
        shutil.rmtree(folder, ignore_errors=True)


def run_folder(args, variant, seed):
    """The folder of a run, without what is the default: runs/small-books-composite-seed1.

    With --name runs/NAME-seed1, and with several variants runs/NAME-composite-seed1. Further runs
    that differ in anything else, such as --lr, get a number: place_for.
    """
    texts = "-".join(Path(name).resolve().stem for name in args.corpus if name != "toy")
    size = args.size.replace("tiny", "")
    parts = [size, texts[:LONGEST_TEXTS], variant, "causal" if args.causal else ""]
    if args.name:
        parts = [args.name, variant if len(args.variant) > 1 else ""]
    if args.seed != [0]:
        parts.append(f"seed{seed}")
    return args.out_dir / "-".join(filter(None, parts))


# --- A run that a program opens -------------------------------------------------------------------


def warn_about_run(folder):
    """Warn if other code has trained a run, or if it is not finished.

    It needs no model, so it is called before the weights are read, which may not fit other code.
    """
    made, *lines = read_log(folder)
    say_once(code_changes(made["code"], code_now(), f"{folder} was trained"))
    step = lines[-1]["step"] if lines else 0
    steps = made["settings"].get("steps", 0)
    if step < steps:
        say_once(f"{folder} is not finished: step {step:,} of {steps:,}")


def is_imported(folder):
    """Whether another program made the run at first: it has no log, or began with one without."""
    return read_log(folder)[0].get("imported")


def unseen_pieces(folder):
    """The ids of the pieces that do not occur in the text of a run; none if its log has no such."""
    return read_log(folder)[0].get("unseen", [])


def say_unknown_words(folder, tokenizer, text):
    """Print a line for each word and mark that the model of a run has not learned."""
    for word in unknown_words(tokenizer, text, unseen_pieces(folder)):
        print(f'"{word}" is unknown to {folder}, so its answer may mean little')
