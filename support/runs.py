"""A run's folder on disk: config.json, tokenizer.json and model.pt (the weights).

pretrain.py adds log.jsonl and train_state.pt.
"""

import glob
import hashlib
import json
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

from tokenizers import Tokenizer

from support.checkpoints import check_tensor, damaged
from support.commands import UserError
from support.files import (
    DESKTOP_FILES,
    OWN_PART,
    load_checkpoint,
    make_folder,
    remove_parts,
    save_checkpoint,
    sha256_of,
    write_text,
)
from support.json_lines import refuse_constant
from support.locks import lock

LOCK = "run.lock"  # held by the process that works on a run

# The entry of config.json that ties the tokenizer to the run: the SHA-256 of tokenizer.json. Runs
# of other programs need not have it.
TOKENIZER = "tokenizer_sha256"

# The tokens that data.py, model.py and glue.py count on, in the order of their ids.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


# --- The folder -----------------------------------------------------------------------------------


@contextmanager
def own_folder(folder):
    """Make a run's folder, and let no other process work on it during a `with` block.

    Raises UserError if another process works on it.
    """
    make_folder(folder)
    advice = "wait until it has finished, or choose another --out_dir"
    with lock(folder / LOCK, folder, advice=advice):
        remove_parts(folder)
        yield


def each_run_once(folders):
    """Each folder once: one that was named before, by another path or a link, is left out.

    A name with wildcards stands for all folders that it matches.
    """
    different = {}
    for name in folders:
        for folder in matching_folders(name):
            different.setdefault(os.path.realpath(folder), folder)
    return list(different.values())


def matching_folders(name):
    """The folders that a name with wildcards, such as runs/*-seed?, matches, in alphabetical order.

    Most shells replace such a name before the program sees it, but those of Windows do not. A name
    without wildcards, or one that matches no folder, is returned as it is: [name].
    """
    # a folder may really have such a name
    if os.path.lexists(name):
        return [name]

    found = [Path(path) for path in sorted(glob.glob(str(name))) if os.path.isdir(path)]
    return found or [name]


def check_not_in_use(folder):
    """UserError if another process works on a run's folder.

    What killed processes left in the folder is deleted.
    """
    # Without a lock nobody works there. A killed process leaves one that nobody holds.
    if (folder / LOCK).exists():
        with own_folder(folder):
            pass


@contextmanager
def added_to_errors(advice, kind=(UserError, OSError)):
    """Errors of this kind in the `with` block become UserErrors with `advice` at their end."""
    try:
        yield
    except kind as error:
        raise UserError(f"{error}; {advice}") from None


def holds_files(folder):
    """Whether a folder holds anything but the lock and the temporary files of killed processes.

    What the desktop of macOS or Windows writes into each folder that it shows does not count.
    """
    if not folder.exists():
        return False
    names = {path.name for path in folder.iterdir()} - {LOCK, *DESKTOP_FILES}
    return any(not OWN_PART.fullmatch(name) for name in names)


def write_run(folder, config, weights, tokenizer):
    """Write the three files. config: a dictionary of plain values; weights: a state_dict."""
    folder = Path(folder)
    text = tokenizer.to_str()
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    write_text(folder / "config.json", json.dumps({**config, TOKENIZER: digest}, indent=2) + "\n")
    write_text(folder / "tokenizer.json", text)
    save_checkpoint(folder / "model.pt", weights)


# --- The config and the settings ------------------------------------------------------------------


def read_config(folder):
    """The fields of the model's config. Raises UserError if the folder is not a run."""
    config = read_config_file(folder)
    config.pop(TOKENIZER, None)
    for name in config:
        if not name.isidentifier():
            raise UserError(f"{folder}/config.json is damaged: {name!r} is not a setting")
    return config


def read_config_file(folder):
    """The dictionary in config.json. Raises UserError if the folder is not a run."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} is not a run: it has no config.json (pretrain.py makes runs)")
    try:
        config = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} is damaged or belongs to another project")
    return config


def first_record(folder):
    """The first line of a run's log: {"settings", "code", "made_by"}.

    None if the run has no log, such as a run that another program made.
    """
    path = Path(folder) / "log.jsonl"
    if not path.is_file():
        return None
    with open(path, encoding="utf-8") as file:
        return json.loads(file.readline())


def pretraining_settings(folder):
    """The settings with which pretrain.py trained the run; {} if it has no log."""
    record = first_record(folder)
    if record is None:
        return {}
    return record["settings"]


def say_if_unfinished(folder):
    """Tell the user if model.pt is not the model of the last step of pre-training.

    Such a run has the same settings as a finished one, so its results would look like the others.
    """
    progress = progress_of_unfinished(folder)
    if progress is not None:
        print(f"{folder} is not finished: {progress}", file=sys.stderr)


def progress_of_unfinished(folder):
    """How far a run is that is not finished, such as "step 400 of 2,000"; None if it is finished.

    This is the last step in the log: model.pt may be some steps later. Also None if the log does
    not say how many steps there are. UserError if the log is damaged.
    """
    steps = pretraining_settings(folder).get("steps")
    if not isinstance(steps, int):
        return None

    # Every line after the first one is about a step. The log is written directly after model.pt.
    path = Path(folder) / "log.jsonl"
    try:
        last_line = path.read_text(encoding="utf-8").splitlines()[-1]
        step = json.loads(last_line).get("step", 0)
        is_finished = step >= steps
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} is damaged: its last line is not complete") from None
    if is_finished:
        return None
    return f"step {step:,} of {steps:,}"


# --- The tokenizer --------------------------------------------------------------------------------


def read_tokenizer(folder, vocab_size):
    """The tokenizer of a run. Raises UserError if it does not fit a model of `vocab_size`."""
    path = existing_file(folder, "tokenizer.json")

    # It must be the file with which the model was trained. This is checked before the library reads
    # it.
    digest = read_config_file(folder).get(TOKENIZER)
    if digest is not None and sha256_of(path) != digest:
        raise UserError(
            f"{path} is damaged or is not the tokenizer of this run: config.json names another one"
        )
    tokenizer = parse_tokenizer(path)

    # the special tokens must have the numbers that the programs use
    for number, token in enumerate(SPECIAL_TOKENS):
        found = tokenizer.token_to_id(token)
        if found is None:
            raise UserError(f"{path}: the tokenizer has no {token}")
        if found != number:
            raise UserError(f"{path}: {token} is token {found}; here it must be token {number}")

    # there must be as many tokens as the model has embeddings
    found = tokenizer.get_vocab_size()
    if found != vocab_size:
        raise UserError(
            f"{folder}: the tokenizer has {found} vocabulary items; "
            f"the model was trained with {vocab_size}"
        )
    if max(tokenizer.get_vocab().values()) >= vocab_size:
        raise UserError(f"{path} is damaged: a token has a number above {vocab_size - 1}")
    return tokenizer


def parse_tokenizer(path):
    """Read a tokenizer and try it. Raises UserError if the tokenizers library cannot use it."""
    try:
        # The library itself opens only paths that are valid UTF-8, so it gets the text of the file.
        text = Path(path).read_text(encoding="utf-8")
        with no_library_messages():
            tokenizer = Tokenizer.from_str(text)
            # The programs cut and pad by themselves.
            tokenizer.no_truncation()
            tokenizer.no_padding()
            tokenizer.encode("the [MASK] \N{SNOWMAN}.", add_special_tokens=False)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # the library's PanicException is not a subclass of Exception
        raise UserError(f"{path} is damaged: {error}") from None
    return tokenizer


@contextmanager
def no_library_messages():
    """Suppress what libraries written in Rust or C print to the error output.

    The tokenizers library prints a report of many lines when it panics, and then raises an error.
    """
    with suppress(AttributeError, OSError):  # no error output, or one that is closed
        sys.stderr.flush()
    kept = None
    with suppress(OSError):
        kept = os.dup(2)  # file 2 is the error output of the process
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)
    try:
        yield
    finally:
        if kept is not None:
            os.dup2(kept, 2)
            os.close(kept)


# --- The weights ----------------------------------------------------------------------------------


def read_weights(folder):
    """The state_dict in model.pt. Raises UserError if it is missing or damaged."""
    return load_checkpoint(existing_file(folder, "model.pt"))


def model_digest(folder):
    """12 hexadecimal digits that change if model.pt changes: which model a result belongs to.

    Raises UserError if the run has no model.pt.
    """
    return sha256_of(existing_file(folder, "model.pt"))[:12]


def existing_file(folder, name):
    """The path of a file of a run. Raises UserError if it is missing."""
    path = Path(folder) / name
    if not path.is_file():
        raise UserError(f"{folder} is not a complete run: it has no {name}")
    return path


def load_weights(model, weights, path, **options):
    """model.load_state_dict, after a check of the values. `path` names the file in the message.

    Raises UserError if the weights are not finite numbers of the model's dtype, or do not fit.
    """
    # the numbers of those weights that have the right shape
    try:
        for name, own in model.state_dict().items():
            tensor = weights.get(name)
            if tensor is not None and tensor.shape == own.shape:
                check_tensor(name, tensor, own)
    except UserError as error:
        raise damaged(path, error) from None
    except (RuntimeError, TypeError, AttributeError):
        pass  # not tensors: load_state_dict refuses them, too

    # names and shapes
    try:
        model.load_state_dict(weights, **options)
    except (RuntimeError, TypeError, AttributeError, KeyError):
        config = model.config
        raise UserError(
            f"{path} holds the weights of another model than {config.variant} with "
            f"{config.layers} layers, hidden size {config.hidden_size} and "
            f"{config.vocab_size} vocabulary items"
        ) from None
