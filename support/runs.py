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

place_for returns the folder whose log has the settings and the code of a command, or a new one. So
results of fine-tuning and of minimal pairs are found, too, in RUN/glue and RUN/pairs.
"""

import argparse
import datetime
import json
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

import torch
from torch import nn

import attention  # the one file above that support/ reads: its tables, and the layers it has
from support.code import READ, ROOT, digest_of, read_code
from support.commands import UserError, say_once
from support.files import lock, write_text
from support.tokenizer import unknown_words

LOG = "log.jsonl"
LONGEST_NAME = 80  # characters in the name of a run that stand for its texts


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
    """The records of a run's log, a list; [] without a log, if pretrain.py did not make the run."""
    path = Path(folder, LOG)
    return read_records(path) if path.exists() else []


def run_settings(folder):
    """What a run depends on, from the first line of its log."""
    log = read_log(folder)
    if not log:
        raise UserError(f"{folder} has no {LOG}: its variant and its seed are unknown")
    return log[0]["settings"]


# --- What made a result ---------------------------------------------------------------------------


def made_by(device):
    """When, where and by what something was computed: kept with every result."""
    return {
        "date": datetime.date.today().isoformat(),
        "device": f"{device.type} ({device_name(device)})",
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "commit": commit(),
    }


def device_name(device):
    """The model of the GPU or of the CPU: another one rounds differently."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)

    # Linux says it in a file: "model name : AMD EPYC 9R14 96-Core Processor".
    if Path("/proc/cpuinfo").exists():
        model = re.search("model name.*: (.*)", Path("/proc/cpuinfo").read_text())
        if model:
            return model[1]
    return platform.processor() or platform.machine()


@cache
def commit():
    """The git commit of the code, with "-dirty" if files were changed since; None without git.

    It is read once, as the code itself is (support/code.py). A copy of the project inside another
    repository has no .git of its own: None, too.
    """
    try:
        command = "git --git-dir=.git describe --always --dirty"
        done = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def changed(there, here):
    """The names of what two dictionaries both have, and that differs."""
    return [name for name in there if name in here and there[name] != here[name]]


def code_changes(there, here, since):
    """What changed between the code of two results, as text; "" if nothing did.

    "model.py, Dynamic in attention.py have changed since runs/composite"
    """
    names = changed(there, here)
    have = "has" if len(names) == 1 else "have"
    return f"{', '.join(names)} {have} changed since {since}" if names else ""


def code_now(variant):
    """{name: digest} of all code that is loaded, and of the entry of a variant."""
    read_code()
    digests = {}
    for of_file in READ.values():
        digests |= of_file

    # what the tables hold for the variant; hybrids also use `none`, which has no terms
    entries = [attention.VARIANTS.get(name) for name in ("none", variant)]
    terms = [attention.TERMS[name] for name in getattr(entries[1], "terms", ())]
    return digests | {f"{variant} in attention.py": digest_of([*entries, *terms])}


def code_of(model):
    """{name: digest} of the code that a result of this model depends on.

    Of the terms, mixers and other layers in attention.py, those count of which the model holds an
    object, and the classes that they extend. So to edit Rotary changes nothing for dynamic.
    """
    used = set()
    for module in model.modules():
        used.update(type(module).__mro__)

    digests = code_now(model.config.variant)
    for name, value in vars(attention).items():
        if isinstance(value, type) and issubclass(value, nn.Module) and value not in used:
            digests.pop(f"{name} in attention.py", None)
    return digests


# --- The folder of a run is found by what made it -------------------------------------------------
#
#     python pretrain.py                runs/composite
#     python pretrain.py --lr 1e-3      runs/composite-2     lr is 0.001, not 0.002
#     (Dynamic is edited)
#     python pretrain.py                runs/composite-3     Dynamic in attention.py has changed
#     (and edited back)
#     python pretrain.py                runs/composite       finished before
#
# A label is a folder's name without its seed: composite-3 of composite-3-seed0 and -seed1. All runs
# of a label have the same settings, but for the seed, and the same code: tables take their means.


def label_of(folder):
    """What the runs of all seeds share: the name of the folder without "-seed1"."""
    return re.sub(r"-seed\d+$", "", Path(folder).name)


def place_for(base, made):
    """The folder of a run: base, base-2, ... If it is not base, a line says why.

    It is the one that these settings and this code have made; if there is none, the first one that
    is free and whose label has no other runs. A new run claims its folder: before any work begins,
    what makes it is written as the first line of the log.

    A log may grow: fine-tuning adds the settings of each new task. Only what both have must be
    equal.

    base: a Path. made: {"settings", "code"}.
    """
    # another command may want the same folder at the same moment
    with lock(base.parent / ".lock", timeout=-1):
        folder, why = find_place(base, made)
        log = read_log(folder)
        if not log:
            write_records(folder / LOG, [made])
        elif not made["settings"].items() <= log[0]["settings"].items():
            log[0]["settings"] |= made["settings"]
            write_records(folder / LOG, log)
    if folder != base:
        say_once(f"{why}: {folder}")
    return folder


def find_place(base, made):
    """(folder, why it is not another one)."""
    runs = {}  # {label: its runs}
    for log in sorted(base.parent.glob(f"*/{LOG}")):
        runs.setdefault(label_of(log.parent), []).append(log.parent)

    free = None
    reasons = []
    for folder in numbered(base):
        others = {run: differences(run, made, folder) for run in runs.get(label_of(folder), [])}
        if others.get(folder) == []:
            free = folder  # it is there already
            break
        differing = [texts for texts in others.values() if texts]
        if free is None and not differing and is_free(folder):
            free = folder
        reasons += differing
    # of several runs the most similar one is named: the fewest things differ from it
    fewest = min(reasons, key=len, default=[f"{base} is not free"])
    return free, "; ".join(fewest[:2])


def differences(run, made, folder):
    """How what made a run differs from what shall make a folder: texts, of code and settings.

    Of a run in another folder, the seed does not count.
    """
    there = read_log(run)[0]
    code = code_changes(there["code"], made["code"], run)
    texts = [code] if code else []
    old, new = there["settings"], made["settings"]
    for name in changed(old, new):
        if name != "seed" or run == folder:
            texts.append(f"{name} is {new[name]}, not {old[name]} as in {run}")
    return texts


def numbered(base):
    """Yield base, base-2, ... and composite-seed0, composite-2-seed0, which runs/*-seed? finds."""
    label = label_of(base)
    seed = base.name.removeprefix(label)
    yield base
    for number in range(2, 1_000):
        yield base.parent / f"{label}-{number}{seed}"


def places(base):
    """Those of the folders base, base-2, ... that have a log."""
    return [folder for folder in numbered(base) if (folder / LOG).exists()]


def is_free(folder):
    """Whether a folder holds no log, no result and no weights."""
    return not any(path.suffix in (".json", ".jsonl", ".pt") for path in folder.glob("*"))


def folder_name(text):
    """An argparse type: the name of one folder, without a seed."""
    if text in ("", ".", "..") or Path(text).name != text or label_of(text) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a name without / and without -seed0")
    return text


def run_folder(args, variant, seed):
    """The folder of a run, without what is the default: runs/small-books-composite-seed1.

    With --name runs/NAME-seed1, and with several variants runs/NAME-composite-seed1. Further runs
    that differ in anything else, such as --lr, get a number: place_for.
    """
    if args.name:
        parts = [args.name]
        if len(args.variant) > 1:
            parts.append(variant)
    else:
        parts = [args.size] if args.size != "tiny" else []
        texts = "-".join(Path(name).resolve().stem for name in args.corpus if name != "toy")
        if texts:
            parts.append(texts[:LONGEST_NAME])
        parts.append(variant)
        if args.causal:
            parts.append("causal")
    if args.seed != [0]:
        parts.append(f"seed{seed}")
    return args.out_dir / "-".join(parts)


# --- A run that a program opens -------------------------------------------------------------------


def warn_about_run(folder):
    """Warn if other code has trained a run, or if it is not finished.

    It needs no model, so a program can call it first: what an edit breaks, it breaks afterwards.
    """
    log = read_log(folder)
    if not log:  # another program made it
        return
    settings = log[0]["settings"]
    code = code_now(settings["variant"])
    say_once(code_changes(log[0]["code"], code, f"{folder} was trained"))
    step = log[-1].get("step", 0)
    if step < settings["steps"]:
        say_once(f"{folder} is not finished: step {step:,} of {settings['steps']:,}")


def is_imported(folder):
    """Whether another program made the run at first: it has no log, or began with one without."""
    log = read_log(folder)
    return not log or log[0].get("imported", False)


def variant_of(folder):
    """The variant of a run, also of an imported one."""
    return read_records(Path(folder, "config.json"))["variant"]


def training_of(folder):
    """What made a run, the first line of its log.

    An imported run has no log, and no seed: its folder tells it from others.
    """
    log = read_log(folder)
    if log:
        return log[0]
    return {"settings": {"variant": variant_of(folder), "seed": str(folder)}, "code": {}}


def unseen_pieces(folder):
    """The ids of the pieces that do not occur in the text of a run; none if its log has no such."""
    log = read_log(folder)
    return log[0].get("unseen", []) if log else []


def say_unknown_words(folder, tokenizer, text):
    """Print a line for each word and mark that the model of a run has not learned."""
    for word in unknown_words(tokenizer, text, unseen_pieces(folder)):
        print(f'"{word}" is unknown to {folder}, so its answer may mean little')
