"""toy/: the files are those that its page describes."""

import hashlib
import lzma
import re
import zipfile
from collections import Counter

import pytest

from conftest import ROOT
from support.glue_files import FORMATS, file_path, has_labels, read_rows

TOY = ROOT / "toy"
PAGE = (TOY / "README.md").read_text("utf-8")
HASHES = dict(re.findall(r"^\| `(\S+)` \| `(\w{64})` \|$", PAGE, flags=re.M))
# of each task: its name, the rows of its train, dev and test files, and its labels
TASKS = re.findall(r"^\| (\S+) \| ([\d,]+) \| (\d+).* \| (\d+).* \| (.+) \|$", PAGE, flags=re.M)


def unpacked(path):
    """The bytes that the hash is of."""
    if path.suffix == ".xz":
        return lzma.decompress(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        names = sorted(archive.namelist())
        return b"".join(name.encode() + b"\0" + archive.read(name) for name in names)


def test_the_files_have_the_hashes_of_their_page():
    assert len(HASHES) == 4
    for name, digest in HASHES.items():
        assert hashlib.sha256(unpacked(TOY / name)).hexdigest() == digest, name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The unpacked tasks."""
    folder = tmp_path_factory.mktemp("tasks")
    zipfile.ZipFile(TOY / "glue.zip").extractall(folder)
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_the_tasks_have_the_rows_of_their_page_and_its_labels_in_equal_parts(folder, name):
    (_, train, dev, test, labels), *others = (row for row in TASKS if row[0].lower() == name)
    assert not others
    count = {"train": train.replace(",", ""), "dev": dev, "test": test, "diagnostic": "300"}

    task = FORMATS[name]
    for split in task.splits:
        is_labelled = has_labels(split)
        names = [*task.texts, task.label] if is_labelled else task.texts
        header = task.columns if is_labelled else None
        rows = list(read_rows(file_path(task, folder, split), names, header))
        assert len(rows) == int(count[split.split("_")[0]]), split

        # the last column is the label
        if is_labelled:
            found = Counter(row[-1] for row in rows)
            assert set(found) == set(labels.split(", "))
            assert max(found.values()) - min(found.values()) <= 1
