"""The rules of the house: imports, long lines, comments, and the number of calls to attention."""

import ast
import traceback
from pathlib import Path

import pytest

import attention
import pretrain
from conftest import ROOT

# What each part of the project may import of the project. A part is a folder, or a file of the
# top level without ".py".
MAY_IMPORT = {
    "support": {"support"},
    "toy": {"toy", "support"},
    "kernels": set(),
    "attention": {"kernels", "support"},
    "model": {"attention", "kernels", "support"},
    "data": {"toy", "support"},
    "pretrain": {"attention", "data", "kernels", "model", "support"},
    "glue": {"attention", "data", "kernels", "model", "pretrain", "toy", "support"},
}
SIX = {"attention", "kernels", "model", "data", "pretrain", "glue"}
MAY_IMPORT["lab"] = SIX | {"toy", "support", "lab"}
MAY_IMPORT["course"] = SIX | {"toy", "support", "lab", "course"}


def python_files():
    """Every .py file of the project, relative to its root.

    Hidden folders are left out, and so are installed packages.
    """
    files = []
    for path in ROOT.rglob("*.py"):
        path = path.relative_to(ROOT)
        is_hidden = any(part.startswith(".") for part in path.parts)
        if not is_hidden and "site-packages" not in path.parts:
            files.append(path)
    return sorted(files)


FILES = python_files()
SOURCES = [path for path in FILES if path.parts[0] != "tests"]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def part_of(path):
    """The part of the project that a file belongs to: "support" for support/files.py."""
    return path.parts[0].removesuffix(".py")


# --- Imports --------------------------------------------------------------------------------------


def imported_names(tree):
    """The first name of every module that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_imports_point_downwards_only(path):
    part = part_of(path)
    assert part in MAY_IMPORT, f"{path} is in no part of the project: add it to MAY_IMPORT"
    parts = {part_of(file) for file in FILES}
    of_the_project = imported_names(ast.parse(read(path))) & parts
    assert of_the_project <= MAY_IMPORT[part]


# --- The way to attention -------------------------------------------------------------------------


def frames_of_the_project():
    """The names of the project's functions that are running now, the outermost first; no tests."""
    names = []
    for frame in traceback.extract_stack():
        path = Path(frame.filename)
        # a virtual environment may be in the project's folder: its files are not the project's
        if path.is_relative_to(ROOT) and path.relative_to(ROOT) in SOURCES:
            names.append(frame.name)
    return names


def test_from_main_to_attention_there_are_at_most_seven_calls(
    small_text, tmp_path, monkeypatch, capsys
):
    """The frames of our own code, from `main` to `attention`, in a training step of composite."""
    stacks = []
    add_band = attention.add_band

    def note_and_add(*arguments, **options):
        stacks.append(frames_of_the_project())
        return add_band(*arguments, **options)

    monkeypatch.setattr(attention, "add_band", note_and_add)
    arguments = ["--corpus", small_text.file, "--cache_dir", small_text.cache, "--device", "cpu"]
    arguments += ["--variant", "composite", "--steps", 1, "--batch_size", 2, "--seq_len", 16]
    arguments += ["--out_dir", tmp_path / "run"]
    assert pretrain.main([str(argument) for argument in arguments]) == 0

    training = [stack for stack in stacks if "train_step" in stack]
    assert len(training) == 4  # one for each layer
    for stack in training:
        assert stack[0] == "main" and stack[-1] == "attention"
        assert len(stack) <= 7, " > ".join(stack)
