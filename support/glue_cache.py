"""A folder of files that a program makes once and keeps in the cache: the toy tasks."""

import json
import os

from support.files import DESKTOP_FILES, delete, make_folder, new_folder, sha256_of
from support.locks import lock

DIGESTS = "sha256.json"  # {file of the folder: its SHA-256}


def build_once(folder, build, log=print):
    """Make a folder unless it is there. If it is damaged, it is made again.

    Two processes do not make it at the same time: the second one waits for the first one.

    Args:
        folder: the Path to make. Its parent folder (the cache) is made, too.
        build: function of a Path: it writes files into this empty folder.
        log: gets a line if the folder was damaged.
    Raises:
        OSError: something that is not a folder is in the place of the cache, or the disk is full.
    """
    if is_intact(folder):
        return

    make_folder(folder.parent)
    with lock(folder.with_name(f"{folder.name}.lock"), str(folder), wait=True):
        # another process may have made it meanwhile
        if is_intact(folder):
            return
        # a broken link is damaged, too
        if os.path.lexists(folder):
            log(f"{folder} is damaged or from an earlier version: it is made again")
            delete(folder)

        # The folder gets its name when it is complete and on the disk.
        with new_folder(folder) as new:
            build(new)
            digests = json.dumps(digests_of_files(new), indent=1)
            (new / DIGESTS).write_text(digests, encoding="utf-8")


def is_intact(folder):
    """Whether a folder is there with the files that were written."""
    try:
        digests = json.loads((folder / DIGESTS).read_text(encoding="utf-8"))
        return digests == digests_of_files(folder)
    except (OSError, ValueError, RecursionError):
        return False


def digests_of_files(folder):
    """{file: its SHA-256} of all files below a folder, except the digests and DESKTOP_FILES."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != DIGESTS and path.name not in DESKTOP_FILES:
            digests[name] = sha256_of(path)
    return digests
