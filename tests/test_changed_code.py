"""For whoever changes the code: a mistake shows its line, and no old result passes for a new one.

The mixer that is changed here stands in a file of its own, or in a copy of the project.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
import traceback

import pytest

import attention
import pretrain
from conftest import ROOT
from support.provenance import code_digests, differing_files

MIXER = '''"""A new mixer, with a mistake."""
import numpy as np
import torch
from torch import nn

from attention import Mixer


class Mean(Mixer):
    def __init__(self, config, variant, layer):
        super().__init__()
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, attention_mask):
        B, N, C = x.shape
        p = torch.full((N, N), 1 / N)
        return p @ self.value(x)
'''

# A right line, what a student writes in its place, and the line that fails because of it.
MISTAKES = {
    "a wrong unpacking": ("B, N, C = x.shape", "B, N = x.shape", "B, N = x.shape"),
    "a shape that does not fit": (
        "torch.full((N, N)",
        "torch.full((N + 1, N + 1)",
        "p @ self.value",
    ),
    "a name that is not there": ("p @ self", "weights @ self", "weights @ self"),
    "a wrong keyword": ("1 / N)", "value=1 / N)", "value=1 / N)"),
    "a ValueError of numpy": ("torch.full((N, N), 1 / N)", "np.ones(N).reshape(N, N)", "np.ones"),
    "super().__init__ forgotten": ("super().__init__()", "pass", "self.value = "),
}


@pytest.fixture
def options(small_text):
    """A short run on a small text."""
    text = ["--corpus", small_text.file, "--cache_dir", small_text.cache, "--vocab_size", 60]
    return [*text, "--steps", 4, "--no-compile", "--dtype", "fp32"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_new_mixer_shows_its_file_and_line(
    mistake, options, tmp_path, run_program, monkeypatch
):
    # the mixer, with the mistake
    right, wrong, failing = MISTAKES[mistake]
    file = tmp_path / "my_mixer.py"
    file.write_text(MIXER.replace(right, wrong), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("my_mixer", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(attention.VARIANTS, "mean", attention.Variant("mean", mixer=module.Mean))

    # The error is no SystemExit with one line: it leaves the program, and Python prints it.
    run = tmp_path / "run"
    with pytest.raises(Exception) as caught:  # noqa: B017 (each mistake has its own kind)
        run_program(pretrain.main, *options, "--variant", "mean", "--out_dir", run)
    frames = traceback.extract_tb(caught.tb)
    shown = [frame.line for frame in frames if frame.filename == str(file)]
    assert any(failing in line for line in shown)

    # nothing was saved, so nothing is resumed after the mistake is mended
    assert not list(run.glob("*"))


def start(folder, options):
    """Start pretrain.py of a copy of the project. Returns (exit code, output, error)."""
    command = [sys.executable, "pretrain.py", *(str(option) for option in options)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def replace_in(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_after_an_edit_a_run_is_neither_continued_nor_shown_as_a_result(options, tmp_path):
    copy = tmp_path / "project"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "runs", "cache", "results"))
    code, out, error = start(copy, options)
    assert code == 0, error

    # another comment or docstring changes nothing: the finished run is shown
    attention_file = copy / "attention.py"
    replace_in(attention_file, '"""', '"""Another sentence. ')
    code, out, error = start(copy, options)
    assert code == 0 and "finished before" in out, error

    # another statement does: one line names the file and says what to do
    attention_file.write_text(attention_file.read_text(encoding="utf-8") + "\nEDITED = 1\n")
    code, out, error = start(copy, options)
    assert code == 2 and "finished before" not in out
    assert error.count("\n") == 1 and "attention.py" in error and "delete the folder" in error


def test_after_an_edit_an_unfinished_run_is_not_continued(
    options, tmp_path, run_program, monkeypatch
):
    options += ["--save_every", 1, "--out_dir", tmp_path]

    # the run is interrupted in its third step
    train_step = pretrain.train_step

    def interrupted(trainer, corpus):
        if trainer.step == 2:
            raise KeyboardInterrupt
        train_step(trainer, corpus)

    with monkeypatch.context() as patch:
        patch.setattr(pretrain, "train_step", interrupted)
        assert run_program(pretrain.main, *options).code == 130
    saved = (tmp_path / "train_state.pt").read_bytes()

    # other code refuses it, and leaves it as it was
    edited = {**pretrain.CODE, "model.py": "another"}
    with monkeypatch.context() as patch:
        patch.setattr(pretrain, "CODE", edited)
        patch.setattr(pretrain.Trainer.__init__, "__defaults__", (edited,))
        outcome = run_program(pretrain.main, *options)
    assert outcome.code == 2 and "model.py" in outcome.error
    assert (tmp_path / "train_state.pt").read_bytes() == saved

    # the code that made it continues it
    outcome = run_program(pretrain.main, *options)
    assert outcome.code == 0 and "resumed at step 2" in outcome.out
    lines = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[0])["code"] == pretrain.CODE


def test_a_digest_changes_with_the_code_only(tmp_path):
    def digest(text):
        (tmp_path / "a.py").write_text(text, encoding="utf-8")
        return code_digests("a.py", root=tmp_path)["a.py"]

    first = digest('"""One."""\n\n\ndef f(x):\n    """Two."""\n    return x + 1  # three\n')
    assert digest("def f(x):\n    # another comment\n    return (x\n        + 1)\n") == first
    assert digest("def f(x):\n    return x + 2\n") != first


def test_files_that_differ_between_results_are_named():
    codes = [{"a.py": "1", "b.py": "1"}, {"a.py": "2", "b.py": "1"}, {}]
    assert differing_files(codes) == ["a.py"]
