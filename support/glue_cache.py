"""A folder of files that a program makes once and keeps in the cache: the toy tasks."""

import json
import os
from contextlib import suppress

from support.files import (
    PART,
    delete,
    make_folder,
    rename,
    sha256_of,
    write_folder_to_disk,
    write_to_disk,
)
from support.locks import lock

DIGESTS = "sha256.json"  # {file of the folder: its SHA-256}


def build_once(folder, build, log=print):
    """Make a folder unless it is there. If it is damaged, it is made again.

    Two processes do not make it at the same time: the second one waits for the first one.

    Args:
        folder: Path; the folder in which it is (the cache) is made, too.
        build: function of a path: it makes a folder there and writes files into it.
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

        # a killed process may have left this folder
        new = folder.with_name(folder.name + PART)
        delete(new)

        # The folder gets its name when it is complete and on the disk.
        try:
            build(new)
            write_digests(new)
            rename(new, folder)
        except BaseException:
            with suppress(OSError):
                delete(new)
            raise
        write_folder_to_disk(folder.parent)


def write_digests(folder):
    """Write the file of the digests of a new folder, and wait until all is on the disk."""
    digests = digests_of_files(folder)
    (folder / DIGESTS).write_text(json.dumps(digests, indent=1), encoding="utf-8")
    for name in [*digests, DIGESTS]:
        write_to_disk(folder / name)


def is_intact(folder):
    """Whether a folder is there with the files that were written."""
    try:
        digests = json.loads((folder / DIGESTS).read_text(encoding="utf-8"))
        return digests == digests_of_files(folder)
    except (OSError, ValueError, RecursionError):
        return False


def digests_of_files(folder):
    """{file: its SHA-256} of all files below a folder, except the file of the digests itself."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != DIGESTS:
            digests[name] = sha256_of(path)
    return digests
