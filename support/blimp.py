"""Minimal pairs in the format of BLiMP: its published archive, or a folder of such files.

BLiMP (Warstadt et al. 2020) has 67 paradigms of 1,000 English pairs. A file NAME.jsonl has one
paradigm; each line is a JSON object with at least

    sentence_good, sentence_bad    the pair
    UID                            the name of the paradigm
    linguistics_term               its phenomenon

The files name 13 phenomena, the paper 12: it counts "s-selection" as "argument_structure".
"""

import json
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from support.commands import UserError
from support.downloads import download

COMMIT = "3e56b06fcabca9b30822fc66435fca6b1aa40bb1"
URL = f"https://github.com/alexwarstadt/blimp/raw/{COMMIT}/BLiMP.zip"
SIZE = 2_354_164  # bytes
SHA256 = "172a1a714d72e72a89e8384dd531483f3d0f8a9aee3d33dccaf7992d8cecbb73"

KEYS = ("sentence_good", "sentence_bad", "UID", "linguistics_term")


class Paradigm(NamedTuple):
    """Minimal pairs of one kind."""

    name: str
    phenomenon: str
    pairs: list  # of (context, good, bad); the context is "" if there is none


def read_blimp(cache_dir):
    """The 67 paradigms of BLiMP, a list of Paradigm. The archive is downloaded once.

    Raises:
        OSError: the download failed.
        UserError: the archive that is already there is not the published one.
    """
    path = download([URL], Path(cache_dir, "downloads", "BLiMP.zip"), SIZE, SHA256)

    # Its files are data/NAME.jsonl. The archive also has a folder __MACOSX that nobody needs.
    texts = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.startswith("data/") and name.endswith(".jsonl"):
                    texts[f"{path}, {name}"] = archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"cannot unpack {path}: {error}") from None
    return group_by_paradigm(texts)


def read_folder(folder):
    """The paradigms of all files *.jsonl in a folder, a list of Paradigm.

    Raises:
        UserError: there are no such files, or a line is damaged.
    """
    texts = {}
    for path in sorted(Path(folder).glob("*.jsonl")):
        # On a disk in the format of another system, macOS writes a file ._NAME beside each file.
        if not path.name.startswith("._"):
            texts[str(path)] = path.read_bytes()
    if not texts:
        raise UserError(
            f"{str(folder)!r} has no files *.jsonl: --data is toy, blimp, or a folder of files in "
            "the format of BLiMP"
        )
    return group_by_paradigm(texts)


def group_by_paradigm(texts):
    """Read files and group their pairs.

    Args:
        texts: {name of a file, for messages: its bytes}.
    Returns:
        list of Paradigm, sorted by phenomenon, then by name.
    Raises:
        UserError: a line is damaged. The message names it.
    """
    paradigms = {}
    for source, content in texts.items():
        for number, line in enumerate(content.splitlines(), 1):
            if not line.strip():
                continue
            row = read_line(line, f"{source}, line {number}")

            # the first pair of a paradigm says its phenomenon
            name = row["UID"]
            phenomenon = row["linguistics_term"]
            if name not in paradigms:
                paradigms[name] = Paradigm(name, phenomenon, [])
            if paradigms[name].phenomenon != phenomenon:
                raise UserError(
                    f"{source}, line {number}: the phenomenon of {name} is {phenomenon!r} here, "
                    f"but it was {paradigms[name].phenomenon!r} before"
                )
            paradigms[name].pairs.append(("", row["sentence_good"], row["sentence_bad"]))

    if not paradigms:
        raise UserError(f"{', '.join(texts)}: there is no pair in these files")
    return sorted(paradigms.values(), key=lambda paradigm: (paradigm.phenomenon, paradigm.name))


def read_line(line, place):
    """One line, bytes, as a dictionary in which all KEYS are texts.

    Raises UserError, which names the place, if it is damaged.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is damaged: {error}") from None
    if not isinstance(row, dict):
        raise UserError(f"{place} is damaged: it is not a JSON object")

    for key in KEYS:
        if key not in row:
            raise UserError(f"{place} has no {key!r}")
        if not isinstance(row[key], str) or not row[key].strip():
            raise UserError(f"{place}: {key!r} is not a text, or it is empty")
    return row
