"""The rules of the house: which part may import which, and how far main is from attention."""

import ast
import traceback
from pathlib import Path

import attention
import pretrain
from conftest import ROOT

# What each part of the project may import of the project. A part is a folder, or a file of the
# top level without ".py".
SIX = {"attention", "kernels", "model", "data", "pretrain", "glue"}
MAY_IMPORT = {
    "support": {"support"},
    "toy": {"toy", "support"},
    "kernels": set(),
    "attention": {"kernels", "support"},
    "model": {"attention", "kernels", "support"},
    "data": {"toy", "support"},
    "pretrain": {"attention", "data", "kernels", "model", "support"},
    "glue": {"attention", "data", "kernels", "model", "pretrain", "toy", "support"},
    "lab": SIX | {"toy", "support", "lab"},
    "course": SIX | {"toy", "support", "lab", "course"},
}


def files_of(part):
    """The Python files of a part."""
    if part in SIX:
        return [ROOT / f"{part}.py"]
    return sorted((ROOT / part).rglob("*.py"))


def imported_names(path):
    """The first name of every module that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names.add(node.module.split(".")[0])
    return names


def test_imports_point_downwards_only():
    for part, allowed in MAY_IMPORT.items():
        files = files_of(part)
        assert files, part
        for path in files:
            upwards = imported_names(path) & {*MAY_IMPORT, "tests"} - allowed
            assert not upwards, f"{path} imports {upwards}"


def calls_of_the_project():
    """The names of the project's functions that are running now, the outermost first; no tests."""
    files = {path for part in MAY_IMPORT for path in files_of(part)}
    frames = traceback.extract_stack()
    return [frame.name for frame in frames if Path(frame.filename) in files]


def test_from_main_to_attention_there_are_at_most_seven_calls(small_text, tmp_path, monkeypatch):
    """In a training step of composite."""
    stacks = []
    true_attention = attention.attention

    def note_and_attend(*arguments, **options):
        stacks.append([*calls_of_the_project(), "attention"])
        return true_attention(*arguments, **options)

    monkeypatch.setattr(attention, "attention", note_and_attend)
    arguments = ["--corpus", small_text.file, "--cache_dir", small_text.cache, "--device", "cpu"]
    arguments += ["--steps", 1, "--batch_size", 2, "--seq_len", 16, "--out_dir", tmp_path]
    pretrain.main([str(argument) for argument in arguments])

    training = [stack for stack in stacks if "train_step" in stack]
    assert len(training) == 4  # one for each layer
    for stack in training:
        assert stack[0] == "main"
        calls = len(stack) - 1
        assert calls <= 7, f"{calls} calls: " + " > ".join(stack)
