"""Runs on disk: the log of a run, and what made it.

The folder of a run holds

    config.json        sizes and variant of the model (model.BertConfig)
    tokenizer.json     the tokenizer, in the format of the library "tokenizers"
    model.pt           the weights
    log.jsonl          one JSON object per line
    train_state.pt     what resuming needs; only until the run is finished
    process0.lock      empty; locked while a program works on the run

The first line of the log holds what the run depends on and what made it: "settings", "code"
(digests of the files) and "made_by" (machine, versions, commit). Each further line holds the number
of the step ("step"), and a loss, an evaluation, or what made the steps after it.
"""

import ast
import datetime
import hashlib
import json
import platform
import re
import subprocess
from pathlib import Path

import torch

from support.commands import UserError
from support.files import write_text

ROOT = Path(__file__).parent.parent
LOG = "log.jsonl"

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


def say_if_unfinished(folder):
    """Print a line if model.pt is not the model of the last step of pre-training."""
    log = read_log(folder)
    if not log:
        return
    steps = log[0]["settings"]["steps"]
    step = log[-1]["step"]
    if step < steps:
        print(f"{folder} is not finished: step {step:,} of {steps:,}")


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


def commit():
    """The git commit of the code, with "-dirty" if files were changed since; None without git.

    A copy of the project inside another repository has no .git of its own: None, too.
    """
    try:
        command = "git --git-dir=.git describe --always --dirty"
        done = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def code_digests(*names):
    """{file: a digest of its code}. Comments, docstrings and the layout of lines do not count."""
    digests = {}
    for name in names:
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            has_docstring = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            if has_docstring and ast.get_docstring(node) is not None:
                del node.body[0]
        digests[name] = hashlib.sha256(repr(plain_tree(tree)).encode()).hexdigest()[:12]
    return digests


def plain_tree(node):
    """A syntax tree as lists: the name of each node, and its fields that are not empty.

    Every version of Python makes the same of the same code: a new version adds fields to its nodes,
    which are empty in code for older ones. (ast.dump prints these, and ast.unparse writes f-strings
    with other quotes.)
    """
    if isinstance(node, list):
        return [plain_tree(each) for each in node]
    if not isinstance(node, ast.AST):
        return node
    fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
    return [type(node).__name__, *[(name, plain_tree(value)) for name, value in fields]]


def check_same(folder, saved, here):
    """UserError if what is saved in a folder was made with other settings or by other code.

    saved, here: {"settings": {name: value}, "code": {file: digest}}.
    """
    advice = "choose another --out_dir (pretrain.py) or --name (glue.py); this one stays as it is"
    different = differences(saved["settings"], here["settings"])
    if different:
        raise UserError(f"{folder} belongs to another run ({different}): {advice}")

    changed = [name for name in here["code"] if saved["code"].get(name) != here["code"][name]]
    if changed:
        raise UserError(f"{folder} was trained before {', '.join(changed)} was changed: {advice}")


def differences(there, here, except_for=()):
    """Where two dictionaries of settings differ, as text: "lr 0.1 there, 0.2 here; ..."."""
    texts = []
    for name in {**there, **here}:
        if name not in except_for and there.get(name) != here.get(name):
            texts.append(f"{name} {there.get(name)} there, {here.get(name)} here")
    return "; ".join(texts)
