"""The rule of the house: which part may import which."""

import re
import sys

from conftest import ROOT

# What each part of the project may import of the others. A part is a folder, or a file of the
# top level without ".py".
SIX = "attention kernels model data pretrain glue"
MAY_IMPORT = {
    "support": "",
    "kernels": "",
    "attention": "kernels",
    "model": "attention kernels support",
    "data": "support",
    "pretrain": "attention data kernels model support",
    "glue": "attention data kernels model pretrain support",
    "lab": f"{SIX} support",
    "course": f"{SIX} support tests",  # tests/references.py
}


def imported_names(path):
    """The first name of every module that a file imports, at its top or inside a function.

    That of a relative import is ".".
    """
    names = re.findall(r"^ *(?:import|from) (\w+|\.)", path.read_text("utf-8"), flags=re.M)
    return set(names)


def test_attention_and_kernels_can_be_copied_into_another_project():
    """They import torch, each other, and Python's own library."""
    for name in ("attention", "kernels"):
        names = imported_names(ROOT / f"{name}.py")
        assert names - sys.stdlib_module_names == {"torch"} | ({"kernels"} & names)


def test_imports_point_downwards_only():
    for part, allowed in MAY_IMPORT.items():
        # one of the six, or a folder
        files = [ROOT / f"{part}.py"] if part in SIX.split() else [*(ROOT / part).rglob("*.py")]
        assert files, part
        for path in files:
            may = {part, *allowed.split()}
            upwards = imported_names(path) & {*MAY_IMPORT, "tests", "."} - may
            assert not upwards, f"{path} imports {upwards}"
