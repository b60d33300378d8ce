"""For whoever changes the code: a mistake shows its line; no old result passes for a new one."""

import importlib
import shutil
import sys
import traceback

import pytest

import attention
import pretrain
from conftest import ROOT, content_of, killed_before_its_log, log_of
from support import runs

MIXER = '''"""A new mixer."""
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


@pytest.fixture
def options(on_small_text, tmp_path):
    """A short run on a small text."""
    return [*on_small_text, "--vocab_size 60 --steps 4 --dtype fp32 --out_dir", tmp_path]


@pytest.mark.parametrize(
    "right, wrong, kind",
    [
        ("B, N, C = x.shape", "B, N = x.shape", ValueError),
        ("1 / N)", "value=1 / N)", TypeError),
        ("torch.full((N, N), 1 / N)", "np.ones(N).reshape(N, N)", ValueError),
    ],
)
def test_a_mistake_in_a_new_mixer_shows_its_file_and_line(
    right, wrong, kind, options, run_program, tmp_path, monkeypatch
):
    """A wrong unpacking is a ValueError, as a UserError is."""
    file = tmp_path / "my_mixer.py"
    assert right in MIXER
    file.write_text(MIXER.replace(right, wrong), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_mixer", raising=False)
    importlib.invalidate_caches()
    mixer = importlib.import_module("my_mixer").Mean
    monkeypatch.setitem(attention.VARIANTS, "mean", attention.Variant(mixer=mixer))

    # the error is no SystemExit with one line: it leaves the program, and Python prints it
    with pytest.raises(kind) as caught:
        run_program(pretrain.main, *options, "--variant mean")
    frames = traceback.extract_tb(caught.tb)
    lines = [frame.line for frame in frames if frame.filename == str(file)]
    assert any(wrong in line for line in lines)

    # nothing was saved, so nothing is resumed after the mistake is mended
    left = {path.suffix for path in (tmp_path / "corpus-mean").glob("*")}
    assert left <= {".lock"}  # which is empty


# --- A run knows its code -------------------------------------------------------------------------


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """edit(old, new): pretrain.py as it is if attention.py was edited before it is started."""
    copies = tmp_path / "copies"
    copies.mkdir()
    for name in pretrain.CODE:
        shutil.copy(ROOT / name, copies)

    def call(old, new):
        text = (copies / "attention.py").read_text("utf-8")
        assert old in text
        (copies / "attention.py").write_text(text.replace(old, new, 1), "utf-8")
        monkeypatch.setattr(runs, "ROOT", copies)
        code = runs.code_digests(*pretrain.CODE)
        monkeypatch.setattr(pretrain.Trainer.__init__, "__defaults__", (code, None))

    return call


@pytest.mark.parametrize("finished", [True, False])
def test_after_an_edit_a_run_is_neither_continued_nor_shown_as_a_result(
    finished, options, tmp_path, edit, run_program, monkeypatch
):
    if finished:
        assert run_program(pretrain.main, *options).code == 0
    else:
        with killed_before_its_log(monkeypatch):
            assert run_program(pretrain.main, *options).code == 1
    run = tmp_path / "corpus-composite"
    before = content_of(run)
    assert ("train_state.pt" in before) is not finished

    # another statement: one line names the file and says what to do, and nothing is changed
    edit("import math", "import math as math")
    outcome = run_program(pretrain.main, *options)
    assert outcome.code == 1 and "finished before" not in outcome.out
    assert outcome.error.count("\n") == 1
    assert "attention.py was changed" in outcome.error and "--out_dir" in outcome.error
    assert content_of(run) == before

    # another comment or docstring: the run is shown or continued
    edit("import math as math", "import math  # another comment")
    edit('"""', '"""Another sentence. ')
    outcome = run_program(pretrain.main, *options)
    assert outcome.code == 0 and ("finished before" in outcome.out) is finished
    assert log_of(run)[0]["code"] == pretrain.CODE
    assert (content_of(run) == before) is finished
