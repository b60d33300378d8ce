"""For whoever changes the code: a mistake shows its line; a run is found by what made it."""

import importlib
import re
import shutil
import subprocess
import sys
import traceback
from dataclasses import dataclass

import pytest

import attention
import model
import pretrain
from conftest import (
    ROOT,
    assert_same_run,
    assert_same_weights,
    be_edited,
    be_pretrain,
    content_of,
    killed_before_its_log,
    log_of,
    needs_signals,
    start_process,
    write,
)
from lab import pairs, report
from support import code, runs
from support.commands import say_once

read_now = code.digests_of.__wrapped__  # without its memory

PAIR = '{"linguistics_term": "p", "UID": "u", "sentence_good": "Ann.", "sentence_bad": "Ben."}\n'

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


@dataclass(frozen=True)
class ScaledVariant(attention.Variant):
    """A Variant with a field that a mixer of its user reads."""

    scale: float = 1.0


@pytest.fixture
def digests_of(monkeypatch, tmp_path):
    """digests_of("attention.py", "A = 1") -> {name: digest} of a file with this text."""

    def call(file, text):
        write(tmp_path / "digests" / file, text)
        with monkeypatch.context() as patch:
            patch.setattr(code, "ROOT", tmp_path / "digests")
            return read_now(file)

    return call


@pytest.mark.parametrize(
    "text", ["A = 1", "A: float = 1", "A, B = 1, 2", "A = B = 1", "from m1 import A, B"]
)
def test_every_constant_and_import_of_attention_py_counts(text, digests_of):
    before = digests_of("attention.py", text)
    assert "A in attention.py" in before
    assert before != digests_of("attention.py", text.replace("1", "3"))


@pytest.mark.parametrize(
    "statement, counts", [("Fixed.d = 1", True), ("use(1)", True), ('VARIANTS["mine"] = 1', False)]
)
def test_a_statement_without_a_name_counts_but_not_an_entry_of_a_table(
    statement, counts, digests_of
):
    before = digests_of("attention.py", "A = 1")
    after = digests_of("attention.py", f"A = 1\n{statement}")
    assert before.keys() == after.keys()
    assert (before != after) == counts


@pytest.mark.parametrize("start", ["{}/pretrain.py", "{}/../{}/pretrain.py", "link/pretrain.py"])
def test_the_started_program_counts_by_whatever_path_it_is_started(start, tmp_path):
    """Of a copy of support/code.py with a program of two lines, in a folder named as Python's."""
    tmp_path = tmp_path / code.LIBRARY
    for name in ("code.py", "__init__.py"):
        write(tmp_path / "project/support" / name, (ROOT / "support" / name).read_text("utf-8"))
    program = "from support.code import code_now\nprint(*code_now())\n"
    write(tmp_path / "project/pretrain.py", program)
    (tmp_path / "link").symlink_to(tmp_path / "project", target_is_directory=True)
    command = [sys.executable, start.replace("{}", "project")]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "pretrain.py" in printed.stdout.split()


@pytest.mark.parametrize(
    "right, wrong, kind",
    [
        ("B, N, C = x.shape", "B, N = x.shape", ValueError),
        ("1 / N)", "value=1 / N)", TypeError),
        ("torch.full((N, N), 1 / N)", "np.ones(N).reshape(N, N)", ValueError),
    ],
)
def test_a_mistake_in_a_new_mixer_shows_its_file_and_line(
    right, wrong, kind, short_run, run_program, tmp_path, monkeypatch
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
        run_program(pretrain.main, *short_run("--variant mean"))
    frames = traceback.extract_tb(caught.tb)
    lines = [frame.line for frame in frames if frame.filename == str(file)]
    assert any(wrong in line for line in lines)

    # nothing was saved, so after the mistake is mended the folder is free
    assert not (tmp_path / "corpus-mean").exists()


# --- A run is found by what made it ---------------------------------------------------------------


@pytest.fixture
def edit(monkeypatch, digests_of):
    """edit(file, old, new): the programs are as they are if they start after this edit."""
    texts = {}
    edited = {}

    def call(file, old, new):
        text = texts.get(file) or (ROOT / file).read_text("utf-8")
        assert old in text
        texts[file] = text.replace(old, new, 1)
        edited[file] = digests_of(file, texts[file])

    be_edited(monkeypatch, edited)
    say_once.cache_clear()
    return call


def runs_in(folder):
    return sorted(path.name for path in folder.glob("corpus-*"))


DYNAMIC = "return q @ (self.w / math.sqrt(d))"
FIRST = "attention.py", DYNAMIC, "return 2 * q @ (self.w / math.sqrt(d))"
BACK = "attention.py", FIRST[2], DYNAMIC
NEW_VARIANT = """
import numpy as np
from kernels import read

def my_mean(x):
    return np.sum(x)


class Mine(Mixer):
    mean = my_mean


VARIANTS["mine"] = Variant(mixer=Mine)


def make_mixer("""


def test_a_run_is_found_by_its_code_whatever_happened_in_between(
    edit, start, tmp_path, monkeypatch
):
    start()
    first = tmp_path / "corpus-composite"
    before = content_of(first)

    # other comments, a new variant with all that belongs to it, a term of others: the same run
    edit("attention.py", DYNAMIC, DYNAMIC + "  # another comment")
    edit("attention.py", '"""', '"""Another sentence. ')
    edit("attention.py", "\ndef make_mixer(", NEW_VARIANT)
    edit("attention.py", "    BEYOND,", "    BEYOND,\n    read,")
    edit("attention.py", "R_i q_i", "R_i  q_i")
    assert "finished before" in start()
    assert runs_in(tmp_path) == ["corpus-composite"]

    # a term of this variant: a new run, in one line; `none` does not have it
    edit(*FIRST)
    out = start()
    line = f"class Dynamic in attention.py has changed since {first}: {first}-2"
    assert out.splitlines().count(line) == 1 and "finished before" not in out
    assert "finished before" in start()  # and it is found again

    # taken back: the first run
    edit(*BACK)
    out = start()
    assert "finished before" in out and f"folder {first}\n" in out and "changed" not in out

    # what no program lists
    edit("support/tokenizer.py", "def unknown_words(", "def unknown_words_of(")
    assert f"support/tokenizer.py has changed since {first}: {first}-3" in start()
    assert content_of(first) == before

    # another entry of the table, also in a field that somebody adds
    monkeypatch.setitem(attention.VARIANTS, "composite", attention.Variant(terms=("fixed",)))
    assert "entry in VARIANTS" in start()
    for scale in (1.0, 2.0):
        entry = ScaledVariant(terms=("fixed",), scale=scale)
        monkeypatch.setitem(attention.VARIANTS, "composite", entry)
        assert "entry in VARIANTS" in start()


def test_a_name_is_that_of_the_folders_and_all_seeds_of_a_label_have_one_code(
    edit, start, run_program, tmp_path
):
    start("--seed 0 1")
    edit(*FIRST)
    start("--seed 1")  # and later the others
    start("--seed 0 1 2")
    start("--seed 0 1 --name mine")
    start("--seed 0 --variant none fixed --name mine")
    label = "corpus-composite"
    folders = sorted(path.parent for path in tmp_path.glob("*/log.jsonl"))
    assert {folder.name for folder in folders} == {
        *(f"{label}-seed0", f"{label}-seed1"),
        *(f"{label}-2-seed0", f"{label}-2-seed1", f"{label}-2-seed2"),
        *("mine-seed0", "mine-seed1", "mine-none", "mine-fixed"),
    }

    # a row each, and what differs between them
    out = run_program(report.main, *folders).out
    rows = {line.split()[1]: line.split()[3] for line in out.splitlines() if line[:1] == "|"}
    assert rows | {label: "2", f"{label}-2": "3", "mine": "2", "mine-none": "1"} == rows
    compared = run_program(report.main, *folders, "--compare mine", label).out
    assert f"What differs from mine: {label}: class Dynamic in attention.py." in compared

    # other code under the name of a row
    (tmp_path / f"{label}-seed1").rename(tmp_path / "mine-seed7")
    outcome = run_program(report.main, *tmp_path.glob("mine-seed?"))
    assert "Dynamic in attention.py: rename" in outcome.error


def test_a_stopped_run_is_continued_to_the_bit_after_an_edit_was_taken_back(
    edit, start, tmp_path, monkeypatch
):
    start("--eval_every 2 --out_dir", tmp_path / "whole")
    with killed_before_its_log(monkeypatch):
        start("--eval_every 2", code=1)
    assert (tmp_path / "corpus-composite/train_state.pt").exists()

    edit(*FIRST)
    assert "corpus-composite-2" in start("--eval_every 2")
    edit(*BACK)
    assert "finished before" not in start("--eval_every 2")
    assert_same_run(tmp_path, tmp_path / "whole")


def test_other_options_are_other_runs_each_found_again_and_a_gap_is_filled(start, tmp_path):
    base = tmp_path / "corpus-composite"
    start()
    assert f"lr is 0.002, not 0.001 as in {base}: {base}-2" in start("--lr 0.002")
    assert f"{base}-3" in start("--lr 0.003")
    shutil.rmtree(f"{base}-2")
    assert f"{base}-2" in start("--lr 0.004")
    for lr, number in ((0.001, ""), (0.003, "-3"), (0.004, "-2")):
        assert "finished before" in start("--lr", lr)
        assert log_of(tmp_path / f"corpus-composite{number}")[0]["settings"]["lr"] == lr


def test_an_imported_model_keeps_its_folder(start, tmp_path):
    """An imported model has no log."""
    base = tmp_path / "corpus-composite"
    write(base / "model.pt", "an imported model")
    write(tmp_path / "corpus-composite-2/process0.lock", "")
    before = content_of(base)
    assert f"{base} is an imported model: {base}-2" in start()
    assert content_of(base) == before


@needs_signals
def test_commands_that_start_at_once_get_a_folder_each_and_the_same_one_is_refused(
    short_run, tmp_path, start
):
    start("--lr 0.1 --name first")  # the text is prepared
    rates = ["0.001", "0.002", "0.003"]
    processes = []
    for lr in rates:
        processes.append(start_process(be_pretrain, short_run("--lr", lr)))
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    shutil.rmtree(tmp_path / "first")
    logs = [log_of(tmp_path / name) for name in runs_in(tmp_path)]
    assert sorted(str(log[0]["settings"]["lr"]) for log in logs) == rates
    assert all(log[-1]["step"] == 4 for log in logs)


def test_while_a_run_is_trained_its_command_is_refused_and_others_take_the_next_number(
    short_run, start, run_program, tmp_path, monkeypatch
):
    """The first one has claimed its folder, and has saved nothing yet."""
    true_step = pretrain.train_step
    outcomes = []

    def step(*arguments):
        monkeypatch.setattr(pretrain, "train_step", true_step)
        if not outcomes:
            outcomes.append(run_program(pretrain.main, *short_run()))
            outcomes.append(run_program(pretrain.main, *short_run("--lr 0.5")))
        true_step(*arguments)

    monkeypatch.setattr(pretrain, "train_step", step)
    start()
    same, other = outcomes
    assert same.code == 1 and "in use by another process" in same.error
    assert other.code == 0 and "corpus-composite-2" in other.out
    assert [log_of(tmp_path / name)[-1]["step"] for name in runs_in(tmp_path)] == [4, 4]


# --- What a program says of a run that other code has trained -------------------------------------


def test_a_run_of_other_code_is_named_and_keeps_no_result_under_the_old_name(
    edit, start, run_program, tmp_path
):
    start()
    run = tmp_path / "corpus-composite"
    one = write(tmp_path / "one/u.jsonl", PAIR).parent
    scored = [pairs.main, run, "--device cpu --data", one]
    assert "changed" not in run_program(*scored).out
    assert "changed" not in run_program(model.main, run, "Ann [MASK].").out

    edit(*FIRST)
    say_once.cache_clear()
    changed = "Dynamic in attention.py has changed since"
    out = run_program(model.main, run, "Ann [MASK].").out
    assert out.count(f"{changed} {run} was trained") == 1
    edit(*BACK)
    edit("lab/pairs.py", "TIE = 1e-4", "TIE = 1e9")
    assert f"lab/pairs.py has changed since {run}/pairs: {run}/pairs-2" in run_program(*scored).out
    assert (run / "pairs/one.json").exists() and (run / "pairs-2/one.json").exists()


def test_what_an_edit_breaks_is_said_before_the_one_line_about_weights_that_do_not_fit(
    edit, start, run_program, tmp_path, monkeypatch
):
    start()
    edit(*FIRST)
    monkeypatch.setattr(model.Layer, "__init__", layer_with_one_norm)
    say_once.cache_clear()
    outcome = run_program(model.main, tmp_path / "corpus-composite", "Ann [MASK].")
    assert "Dynamic in attention.py has changed" in outcome.out
    [line] = outcome.error.splitlines()
    assert "missing: none; not used: bert.layers.*.ffn_norm.bias" in line


def layer_with_one_norm(self, *arguments, init=model.Layer.__init__):
    init(self, *arguments)
    del self.ffn_norm


# --- A run that begins with the weights of another one --------------------------------------------


def test_a_run_begins_with_the_weights_of_another_one_as_far_as_they_fit(start, tmp_path):
    first = tmp_path / "corpus-composite"
    start("--seq_len 16")
    again = f"--seq_len 16 --init {first} --lr 1e-12"  # nothing is learned
    out = start(again)
    assert "new: none; not used: none" in out and "init is" in out and f"{first}-2" in out
    assert_same_weights(tmp_path / "corpus-composite-2/model.pt", first / "model.pt", 1e-8)
    assert "finished before" in start(again)

    # absolute positions are left over, the terms of composite are new
    start("--seq_len 16 --variant absolute")
    out = start("--seq_len 16 --variant composite --name from --init", tmp_path / "corpus-absolute")
    [(new, left)] = re.findall("new: (.*); not used: (.*)", out)
    assert "bert.layers.*.mixer.terms.fixed.beta" in new
    assert left == "bert.embeddings.position.weight"


def test_an_import_that_was_trained_further_is_still_an_import_for_its_fine_tuning(start, tmp_path):
    """So glue.py has the low rate of published models by default."""
    start()
    imported = shutil.copytree(tmp_path / "corpus-composite", tmp_path / "imported")
    (imported / "log.jsonl").unlink()
    start("--name further --init", imported)
    start("--name longer --init", tmp_path / "further")
    assert runs.is_imported(tmp_path / "longer")
    assert not runs.is_imported(tmp_path / "corpus-composite")
