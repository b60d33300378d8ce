"""The wrong inputs of lab/attacks.py: for each command wrong values, paths, names and files.

In the arguments, {run} is the folder of a small run with fine-tuning results of one seed, {text}
and {cache} are its text and its prepared corpus, {data} are GLUE files of a few rows, and {folder}
is the folder of the trial, which holds the copies of the run and the cache.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch

from lab.attack_files import FINE_TUNING, PRETRAINING, SENTENCE, replace_file
from support.commands import LARGEST_INT
from support.files import load_checkpoint


class WrongInput(NamedTuple):
    """A command with something wrong in it.

    program: "glue.py", or "lab.pairs" for python -m lab.pairs.
    arguments: of its command line.
    name: what is wrong, if the command line does not show it.
    prepare: called with the folder of the trial before the command is started.
    """

    program: str
    arguments: list
    name: str = ""
    prepare: Callable | None = None


# --- Commands that work ---------------------------------------------------------------------------

PRETRAIN = ["--corpus", "{text}", "--cache_dir", "{cache}", "--out_dir", "{folder}/new"]
PRETRAIN += [str(value) for value in PRETRAINING] + ["--steps", "2"]
RESUME = ["--corpus", "{text}", "--cache_dir", "{cache}", "--out_dir", "{run}"]
RESUME += [str(value) for value in PRETRAINING]
FINETUNE = ["finetune", "{run}", "--data_dir", "{data}", "--task", "wnli"]
FINETUNE += [str(value) for value in FINE_TUNING]
PREDICT = ["predict", "{run}", "--data_dir", "{data}", "--allow_partial", "--device", "cpu"]
FIXED = ["fixed", "{run}", "--describe"]
DYNAMIC = ["dynamic", "{run}", "the dog barks.", "--out", "{folder}/dynamic"]
ATTENTION = ["attention", "--max_length", "64", "--tokens", "64", "--device", "cpu"]
LENGTHS = ["lengths", "--max_length", "64", "--rounds", "1", "--device", "cpu"]
COLLECT = ["collect", "{run}", "--out", "{folder}/results.jsonl"]

# commands that read a run: (program, arguments)
READ_MODEL = ("model.py", ["{run}", SENTENCE])
READ_FINETUNE = ("glue.py", FINETUNE)
READ_TABLE = ("glue.py", ["table", "{run}"])
READ_PREDICT = ("glue.py", PREDICT)
READ_PAIRS = ("lab.pairs", ["{run}", "--paradigms", "order_of_adjectives", "--device", "cpu"])
READ_PAIRS_TABLE = ("lab.pairs", ["{run}", "--table"])
READ_FIXED = ("lab.figures", FIXED)
READ_LOSS = ("lab.figures", ["loss", "{run}", "--out", "{folder}/loss"])
READ_COLLECT = ("lab.report", COLLECT)
READERS = [
    READ_MODEL,
    READ_FINETUNE,
    READ_TABLE,
    READ_PREDICT,
    READ_PAIRS,
    READ_PAIRS_TABLE,
    READ_FIXED,
    READ_LOSS,
    READ_COLLECT,
]


# These commands must work as they are. Otherwise a wrong input would be refused for another reason.
# Two are not among them: READ_PREDICT, whose last step refuses predictions for files of so few
# rows, and READ_PAIRS_TABLE, because no pairs were scored. Of these only crashes are noticed.
WORKING = [
    READ_MODEL,
    READ_FINETUNE,
    ("pretrain.py", PRETRAIN),
    ("pretrain.py", RESUME),
    READ_TABLE,
    READ_FIXED,
    READ_LOSS,
    READ_COLLECT,
    ("lab.figures", DYNAMIC),
    ("toy", []),
    ("lab.bench", ATTENTION),
    ("lab.bench", LENGTHS),
    READ_PAIRS,
]


# --- Wrong values on a command line ---------------------------------------------------------------

LARGE = str(10**30)
LARGEST = str(LARGEST_INT)  # a number that the command line accepts
NO_NUMBER = ["", "x", "nan", "1.5", 5000 * "9"]
COUNTS = ["0", "-1", "1e400", "\u0661", *NO_NUMBER]  # \u0661 is the digit one of another script
RATES = ["0", "-1", "nan", "inf", "1e400", "", "x"]
SHARES = ["-1", "1", "nan", "inf", "1e400", "", "x"]

# (program, a command that works, options whose value is a number, wrong values). LARGEST is among
# the wrong values only if the option refuses it: a run of 2 ** 31 - 1 steps, for example, is fine.
NUMBERS = [
    ("pretrain.py", PRETRAIN, ["kernel_size", "vocab_size"], [*COUNTS, LARGE, LARGEST]),
    ("pretrain.py", PRETRAIN, ["steps", "seq_len"], [*COUNTS, LARGE]),
    ("pretrain.py", PRETRAIN, ["batch_size", "warmup_steps"], [*COUNTS, LARGE, LARGEST]),
    ("pretrain.py", PRETRAIN, ["attention_layer"], [*COUNTS, LARGE, LARGEST]),
    ("pretrain.py", PRETRAIN, ["save_every", "eval_every"], COUNTS),
    ("pretrain.py", PRETRAIN, ["seed"], ["-1", *NO_NUMBER]),
    ("pretrain.py", PRETRAIN, ["lr"], RATES),
    ("pretrain.py", PRETRAIN, ["dropout"], SHARES),
    ("glue.py", FINETUNE, ["epochs"], [*COUNTS, LARGE]),
    ("glue.py", FINETUNE, ["batch_size"], [*COUNTS, LARGE, LARGEST]),
    ("glue.py", FINETUNE, ["seq_len", "seeds"], COUNTS),
    ("glue.py", FINETUNE, ["lr"], RATES),
    ("glue.py", FINETUNE, ["dropout", "weight_decay", "warmup_share"], SHARES),
    ("lab.figures", DYNAMIC, ["layer", "head"], [*COUNTS, LARGE, LARGEST]),
    ("lab.bench", ATTENTION, ["tokens"], [*COUNTS, LARGE, LARGEST]),
    ("lab.bench", ATTENTION, ["max_length"], [*COUNTS, LARGE]),
    ("lab.bench", LENGTHS, ["rounds"], COUNTS),
    ("toy", [], ["sentences", "seed"], NO_NUMBER),
]

NO_NAME = ["", "x", "\udcff", 300 * "x", "../x", "/x", "composite\nnone"]
OUTSIDE = ["", ".", "..", "../other", "a/../..", "{folder}/outside", 300 * "x", "\udcff"]

# the same for options whose value is a name
NAMES = [
    ("pretrain.py", PRETRAIN, ["variant", "size", "beyond", "dtype", "resume"], NO_NAME),
    ("pretrain.py", PRETRAIN, ["device"], [*NO_NAME, "cuda:99", "cpu:7", "meta"]),
    ("glue.py", FINETUNE, ["task", "device", "dtype"], NO_NAME),
    ("glue.py", FINETUNE, ["name"], OUTSIDE),
    ("glue.py", ["table", "{run}"], ["name"], OUTSIDE),
    ("glue.py", ["table", "{run}"], ["format"], NO_NAME),
    ("glue.py", PREDICT, ["name"], OUTSIDE),
    ("lab.pairs", READ_PAIRS[1], ["data", "paradigms", "device", "compare"], NO_NAME),
    ("lab.bench", LENGTHS, ["variant"], NO_NAME),
]

# commands without an option: (program, arguments)
OTHERS = [
    ("glue.py", ["download", "x"]),
    ("glue.py", ["download", "wnli", "--data_dir", "toy"]),
    ("glue.py", ["table", "{run}", "--compare", "composite", "none"]),
    ("glue.py", ["table", "{run}", "--by_phenomenon", "--published"]),
    ("glue.py", ["x"]),
    ("glue.py", []),
    ("model.py", ["{run}"]),
    ("model.py", ["{run}", ""]),
    ("model.py", ["{run}", "no blank"]),
    ("model.py", ["{run}", 100 * "the dog [MASK] "]),
    ("lab.report", ["x"]),
    ("lab.report", ["collect"]),
    ("lab.figures", ["x"]),
    ("lab.figures", []),
    ("lab.bench", []),
    ("toy", ["--x"]),
]


def wrong_values():
    """Every option with every wrong value."""
    inputs = [WrongInput(program, arguments) for program, arguments in OTHERS]
    for program, arguments, options, values in [*NUMBERS, *NAMES]:
        for option in options:
            for value in values:
                # "=", because a value may begin with a dash
                inputs.append(WrongInput(program, [*arguments, f"--{option}={value}"]))
    return inputs


# --- Wrong paths ----------------------------------------------------------------------------------


def make_odd_paths(folder):
    """Things that are neither a run nor a text."""
    (folder / "empty").mkdir()
    (folder / "file.txt").write_bytes(b"")
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 8)
    (folder / "no.gz").write_bytes(b"not compressed")
    (folder / "cut.xz").write_bytes(b"\xfd7zXZ\x00\x00\x04")
    (folder / "no.zip").write_bytes(b"PK\x03\x04")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")


NOWHERE = ["", "{folder}/missing", "{folder}/loop", "{folder}/pipe", "/dev/null", 5000 * "x"]
NO_FOLDER = [*NOWHERE, "{folder}/file.txt", "{folder}/file.txt/x", "\udcff"]
NO_RUN = [*NO_FOLDER, "{folder}/empty"]
NO_TEXT = [*NOWHERE, "{folder}/file.txt", "{folder}/file.txt/x", "{folder}/binary.txt"]
NO_TEXT += ["{folder}/no.gz", "{folder}/cut.xz", "{folder}/empty", "/dev/zero"]
NO_PARENT = ["{folder}/file.txt/x", "{folder}/loop/x", "/proc/x", "/dev/full/x", 5000 * "x"]
NO_NEW_FOLDER = [*NO_PARENT, "{folder}/loop", "{folder}/pipe", "/dev/null", "{folder}/file.txt"]

# (program, a command that works, options whose value is a path, wrong paths)
PATHS = [
    ("pretrain.py", PRETRAIN, ["corpus"], NO_TEXT),
    ("pretrain.py", PRETRAIN, ["out_dir", "cache_dir"], NO_NEW_FOLDER),
    ("glue.py", FINETUNE, ["data_dir"], NO_FOLDER),
    ("glue.py", ["data"], ["data_dir"], NO_FOLDER),
    ("lab.bench", ATTENTION, ["out"], NO_PARENT),
    ("lab.report", COLLECT, ["out"], NO_PARENT),
    ("lab.figures", ["loss", "{run}"], ["out"], NO_PARENT),
    ("toy", [], ["glue"], NO_NEW_FOLDER),
]


def wrong_paths():
    """Commands that read a run, with something that is not a run; and options with wrong paths."""
    inputs = []
    for program, arguments in READERS:
        for path in NO_RUN:
            replaced = [path if argument == "{run}" else argument for argument in arguments]
            inputs.append(WrongInput(program, replaced, prepare=make_odd_paths))
    for path in [*NO_FOLDER, "{folder}/no.zip", "{folder}/empty"]:
        inputs.append(WrongInput("glue.py", ["check", path], prepare=make_odd_paths))
    for program, arguments, options, paths in PATHS:
        for option in options:
            for path in paths:
                replaced = [*arguments, f"--{option}", path]
                inputs.append(WrongInput(program, replaced, prepare=make_odd_paths))
    return inputs


# --- Damaged files of a run -----------------------------------------------------------------------

DEEP = b"[" * 100_000
NO_JSON = [b"", b"[]", b"{}", b"3", b'"x"', b"\xff\xfe", DEEP, b'{"a": ', b"9" * 5000]

# values of config.json, one of which is wrong
CONFIGS = [
    {"layers": 100_000},
    {"layers": 10**30},
    {"layers": True},
    {"layers": -1},
    {"hidden_size": 10**12},
    {"heads": 3},
    {"dropout": float("nan")},
    {"dropout": "0.1"},
    {"vocab_size": 0},
    {"variant": "x"},
    {"variant": []},
    {"max_length": 10**12},
    {"kernel_size": 4},
    {"kernel_size": 10**30 + 1},
    {"x": 1},
]

# values of a line of results.jsonl, one of which is wrong
RESULTS = [
    {"result": None},
    {"result": {}},
    {"seed": "42"},
    {"seed": None},
    {"task": "x"},
    {"task": ["rte"]},
    {"settings": []},
]
SCORES = ["NaN", "Infinity", "1e400", "-1e400", 400 * "9", 5000 * "9", '"50"', "null", "[]", "1000"]


def text_file(name, content):
    """A function that gives a file of the run this content."""

    def prepare(folder):
        replace_file(folder / "run" / name, content)

    return prepare


def changed_config(values):
    """A function that changes values in the run's config.json."""

    def prepare(folder):
        path = folder / "run" / "config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(config | values), encoding="utf-8")

    return prepare


def changed_result(values):
    """A function that changes values in the last line of the run's results.jsonl."""

    def prepare(folder):
        path = folder / "run" / "glue" / "results.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()
        lines[-1] = json.dumps(json.loads(lines[-1]) | values)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    return prepare


def changed_score(text):
    """A function that writes a text in place of the scores in the last line of results.jsonl."""

    def prepare(folder):
        path = folder / "run" / "glue" / "results.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines()
        record = json.loads(lines[-1])
        record["result"]["score"] = "HERE"
        for split in record["result"]["scores"].values():
            split["score"] = "HERE"
        lines[-1] = json.dumps(record).replace('"HERE"', text)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    return prepare


def changed_checkpoint(name, change):
    """A function that replaces the value in a checkpoint of the run by change(value)."""

    def prepare(folder):
        path = folder / "run" / name
        value = change(load_checkpoint(path))
        path.unlink()
        torch.save(value, path)

    return prepare


def bare_tensor(value):
    """Instead of the checkpoint, a tensor."""
    return torch.zeros(3)


def empty_dict(value):
    """Instead of the checkpoint, a dictionary without anything."""
    return {}


def own_class(value):
    """Instead of the checkpoint, an object that torch.load refuses."""
    return {"x": Path("x")}


def first_tensor(function):
    """Return a function that applies `function` to the first tensor of a state_dict."""

    def change(weights):
        name = next(iter(weights))
        return weights | {name: function(weights[name])}

    change.__name__ = function.__name__
    return change


def not_finite(tensor):
    return tensor / 0


def complex_numbers(tensor):
    return tensor.to(torch.complex64)


def meta(tensor):
    return tensor.to("meta")


def sparse(tensor):
    return tensor.to_sparse()


def integers(tensor):
    return tensor.to(torch.int64)


def other_shape(tensor):
    return tensor.flatten()[:3]


def text(tensor):
    return "weights"


TENSORS = [not_finite, complex_numbers, meta, sparse, integers, other_shape, text]


def without(key):
    """Return a function that removes a key from a state."""

    def change(state):
        return {name: value for name, value in state.items() if name != key}

    change.__name__ = f"without {key}"
    return change


def with_value(key, value):
    """Return a function that replaces a value of a state by a wrong one."""

    def change(state):
        return state | {key: value}

    change.__name__ = f"{key} = {value!r:.30}"
    return change


KEYS = ("settings", "step", "losses", "tokens", "seconds", "records", "result")
STATES = [bare_tensor, empty_dict, own_class]
STATES += [without(key) for key in KEYS]
STATES += [with_value(key, "x") for key in KEYS]
STATES += [with_value(key, float("nan")) for key in KEYS]
STATES += [with_value("step", 10**30), with_value("records", []), with_value("result", {})]


def damaged_files():
    """Every damaged file, with commands that read it."""
    inputs = []

    def add(readers, name, prepare):
        for program, arguments in readers:
            inputs.append(WrongInput(program, arguments, name, prepare))

    # files with a content that is not what they should hold
    readers_of_file = {
        "config.json": [
            READ_MODEL,
            READ_FINETUNE,
            READ_TABLE,
            READ_PREDICT,
            READ_PAIRS,
            READ_FIXED,
        ],
        "tokenizer.json": [READ_MODEL, READ_FINETUNE, READ_FIXED],
        "log.jsonl": [READ_LOSS, READ_COLLECT, READ_TABLE],
        "model.pt": [READ_MODEL, READ_FINETUNE],
    }
    for file, readers in readers_of_file.items():
        for content in NO_JSON:
            add(readers, f"{file} {content[:9]}", text_file(file, content))

    # values in config.json
    for values in CONFIGS:
        readers = [READ_MODEL, READ_FINETUNE, READ_FIXED]
        add(readers, f"config.json {values}", changed_config(values))

    # weights and states
    for change in [*map(first_tensor, TENSORS), bare_tensor, empty_dict, own_class]:
        prepare = changed_checkpoint("model.pt", change)
        add([READ_MODEL, READ_FINETUNE], f"model.pt {change.__name__}", prepare)
    for change in STATES:
        prepare = changed_checkpoint("train_state.pt", change)
        add([("pretrain.py", RESUME)], f"train_state.pt {change.__name__}", prepare)

    # results of fine-tuning
    for values in RESULTS:
        readers = [READ_FINETUNE, READ_TABLE, READ_PREDICT]
        add(readers, f"results.jsonl {values}", changed_result(values))
    for score in SCORES:
        name = f"results.jsonl score {score[:9]}"
        add([READ_FINETUNE, READ_TABLE], name, changed_score(score))
    return inputs


def wrong_inputs():
    """All wrong inputs, in a random order, so that the first ones are of many kinds."""
    inputs = [*wrong_values(), *wrong_paths(), *damaged_files()]
    Random(0).shuffle(inputs)
    return inputs
