"""Files that a kill cannot damage: each is written under a temporary name and then renamed."""

import hashlib
import os
from pathlib import Path

import torch


def write_atomically(path, write):
    """Call `write(temporary_path)`, then rename that file to `path`.

    After a kill or a full disk, `path` is either the old file or the complete new one.
    """
    path = Path(path)
    temporary = path.with_name(path.name + ".part")
    try:
        write(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path, text):
    """Write `text` to `path` atomically, as UTF-8 with the same bytes on every system."""

    def write(temporary):
        temporary.write_text(text, encoding="utf-8", newline="\n")

    write_atomically(path, write)


def save_checkpoint(path, value):
    """torch.save `value` to `path` atomically. Raises OSError if the disk is full."""

    def write(temporary):
        # Give torch an open file: with a path, it reports a full disk as a RuntimeError.
        with open(temporary, "wb") as file:
            torch.save(value, file)

    try:
        write_atomically(path, write)
    except RuntimeError as error:
        reason = error.__context__ or "is the disk full?"
        raise OSError(f"could not write {path}: {reason}") from None


def load_checkpoint(path):
    """Read what `save_checkpoint` wrote: tensors and plain values only, so no code is executed.

    Raises ValueError if the file is damaged or is not a checkpoint.
    """
    with open(path, "rb") as file:
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds of errors for the same cause
            kind = type(error).__name__
            raise ValueError(
                f"{path} is damaged or is not a checkpoint of this project ({kind})"
            ) from None


def sha256_of(path):
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
