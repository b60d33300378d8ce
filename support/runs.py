"""A run's folder on disk: config.json, tokenizer.json and model.pt (the weights)."""

import json
from pathlib import Path

from tokenizers import Tokenizer

from support.files import load_checkpoint, save_checkpoint, write_text


def write_run(folder, config, weights, tokenizer):
    """Write the three files. config: a dictionary of plain values; weights: a state_dict."""
    folder = Path(folder)
    write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")
    write_text(folder / "tokenizer.json", tokenizer.to_str())
    save_checkpoint(folder / "model.pt", weights)


def read_config(folder):
    """The dictionary in config.json. Raises ValueError if the folder is not a run."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a run: it has no config.json (pretrain.py makes runs)")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} is damaged or belongs to another project")
    return config


def pretraining_settings(folder):
    """The settings with which pretrain.py trained the run: the first line of its log.

    {} if the run has no log, such as a run that another program made.
    """
    path = Path(folder) / "log.jsonl"
    if not path.is_file():
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            return dict(json.loads(file.readline())["settings"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{path} is damaged: its first line holds no settings") from None


def read_weights(folder):
    """The state_dict in model.pt. Raises ValueError if it is missing or damaged."""
    return load_checkpoint(existing_file(folder, "model.pt"))


def read_tokenizer(folder, vocab_size):
    """The tokenizer of a run. Raises ValueError if it does not fit a model of `vocab_size`."""
    path = existing_file(folder, "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises a plain Exception
        raise ValueError(f"{path} is damaged: {error}") from None

    # it must have the special tokens, and as many tokens as the model has embeddings
    for token in ("[CLS]", "[SEP]", "[MASK]"):
        if tokenizer.token_to_id(token) is None:
            raise ValueError(f"{path}: the tokenizer has no {token}")
    found = tokenizer.get_vocab_size()
    if found != vocab_size:
        raise ValueError(
            f"{folder}: the tokenizer has {found} vocabulary items; "
            f"the model was trained with {vocab_size}"
        )
    return tokenizer


def existing_file(folder, name):
    """The path of a file of a run. Raises ValueError if it is missing."""
    path = Path(folder) / name
    if not path.is_file():
        raise ValueError(f"{folder} is not a complete run: it has no {name}")
    return path


def load_weights(model, weights, path, **options):
    """model.load_state_dict; `path` names the file in the message if the weights do not fit."""
    try:
        model.load_state_dict(weights, **options)
    except (RuntimeError, TypeError, AttributeError):
        config = model.config
        raise ValueError(
            f"{path} holds the weights of another model than {config.variant} with "
            f"{config.layers} layers, hidden size {config.hidden_size} and "
            f"{config.vocab_size} vocabulary items"
        ) from None
