"""The short form of lab/attacks.py, and whether it would notice a fault."""

import os
import re
import signal
import subprocess
import sys
import time
from random import Random

import pytest
import torch

from conftest import ROOT
from lab import attack_files, attack_inputs, attacks
from lab.attack_tools import CRASH, FAULTS, HANG, VERDICTS, AtCall, FullAt, Outcome, Victim, run
from support.files import save_checkpoint

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the attacks need forks")


# --- The attacks ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short_form():
    """What the short form of all attacks prints: (exit code, text)."""
    program = subprocess.run(
        [sys.executable, "-m", "lab.attacks", "--short"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=150,
    )
    return program.returncode, program.stdout + program.stderr


@pytest.mark.parametrize("name", attacks.ATTACKS)
def test_an_attack_is_refused_or_repaired_and_never_silent(short_form, name):
    _, text = short_form
    row = re.search(rf"^{name} +(\d.*)$", text, re.MULTILINE)
    assert row, text
    tried, *counts = map(int, row[1].split())
    assert tried >= attacks.ATTACKS[name].short
    faults = sum(
        count for verdict, count in zip(VERDICTS, counts, strict=True) if verdict in FAULTS
    )
    assert faults == 0, text


def test_without_faults_the_exit_code_is_0(short_form):
    code, text = short_form
    assert code == 0, text


# --- Would a fault be noticed? --------------------------------------------------------------------


def test_a_program_that_ends_well_or_with_one_line_has_no_fault():
    assert Outcome(0, "a line\nand one more\n", "", hung=False).fault() is None
    assert Outcome(2, "", "a.py: no such file\n", hung=False).fault() is None
    usage = "usage: a.py [-h]\n            [--steps STEPS]\na.py: error: no number\n"
    assert Outcome(2, "", usage, hung=False).fault() is None


@pytest.mark.parametrize(
    "code, error",
    [
        (1, "Traceback (most recent call last):\nValueError: x\n"),
        (2, "thread '<unnamed>' panicked at src/lib.rs:1:1:\n"),
        (2, "a.py: one line\na.py: and one more\n"),
        (2, ""),
        (-signal.SIGSEGV, ""),
        (-signal.SIGABRT, "terminate called\n"),
    ],
)
def test_a_crash_is_noticed(code, error):
    assert Outcome(code, "", error, hung=False).fault()[0] == CRASH


def test_a_hang_is_noticed(tmp_path):
    outcome = Victim(tmp_path, time.sleep, [60]).wait(seconds=0.1)
    assert outcome.hung and outcome.fault()[0] == HANG


def test_a_victim_prints_to_its_own_files_and_ends_with_its_own_exit_code(tmp_path):
    def program(text):
        print(text)
        raise ValueError("no")

    outcome = run(tmp_path, program, ["hello"])
    assert outcome == Outcome(2, "hello\n", "attack: no\n", hung=False)


def make_three_folders(folder):
    for name in ("a", "b", "c"):
        (folder / name).mkdir()
    return 0


@pytest.mark.parametrize("after, names", [(False, ["a"]), (True, ["a", "b"])])
def test_a_victim_can_be_killed_at_a_call_that_changes_the_disk(tmp_path, after, names):
    folder = tmp_path / "folder"
    folder.mkdir()
    hook = AtCall(2, lambda: os.kill(os.getpid(), signal.SIGKILL), after)
    outcome = run(tmp_path, make_three_folders, [folder], hook)
    assert outcome.code == -signal.SIGKILL
    assert sorted(path.name for path in folder.iterdir()) == names


def test_a_victim_can_be_killed_in_the_middle_of_a_write(tmp_path):
    path = tmp_path / "file"
    outcome = run(tmp_path, lambda: path.write_bytes(bytes(100)), [], FullAt(40))
    assert outcome.code == -signal.SIGXFSZ
    assert path.stat().st_size == 40


def test_a_changed_bit_of_a_checkpoint_is_another_value(tmp_path):
    values = {"weights": torch.zeros(3), "losses": [0.5], "step": torch.tensor(1.0)}
    assert attack_files.equal_values(values, {**values, "weights": torch.zeros(3)})
    assert not attack_files.equal_values(values, {**values, "weights": -torch.zeros(3)})
    assert not attack_files.equal_values(values, {**values, "weights": torch.zeros(3, 1)})
    assert not attack_files.equal_values(values, {**values, "losses": [0.25]})
    assert not attack_files.equal_values(values, {"losses": [0.5]})

    for name, value in (("a", values), ("b", {**values, "step": torch.tensor(2.0)})):
        save_checkpoint(tmp_path / name, value)
    assert attack_files.same_values(tmp_path / "a", tmp_path / "a") == 0
    assert attack_files.same_values(tmp_path / "a", tmp_path / "b") == 1


def test_differing_doubled_and_left_files_are_found(tmp_path):
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "same").write_text("x", encoding="utf-8")
        (folder / "other").write_text(name, encoding="utf-8")
    (tmp_path / "b" / "model.pt.17.part").write_text("x", encoding="utf-8")
    differing = attack_files.differing_files(tmp_path / "a", tmp_path / "b")
    assert differing == ["model.pt.17.part", "other"]
    assert attack_files.leftovers(tmp_path) == ["b/model.pt.17.part"]

    line = '{"task": "rte", "seed": 42, "seconds": 1}\n'
    (tmp_path / "results.jsonl").write_text(2 * line, encoding="utf-8")
    assert attack_files.doubled_results(tmp_path) == ["rte seed 42 twice"]


@pytest.mark.parametrize("damage", attack_files.DAMAGES)
def test_a_damage_is_a_function_of_its_random_numbers_and_changes_bytes(damage):
    content = b"numbers 1 2 3 and letters" * 300
    results = [damage(Random(seed), content) for seed in range(8)]
    assert results == [damage(Random(seed), content) for seed in range(8)]
    assert any(result != content for result in results)


def test_there_are_wrong_inputs_for_every_command():
    inputs = attack_inputs.wrong_inputs()
    assert len(inputs) >= attacks.ATTACKS["inputs"].full >= 300
    programs = {wrong.program for wrong in inputs}
    assert programs == {
        *("pretrain.py", "glue.py", "model.py", "toy"),
        *("lab.pairs", "lab.report", "lab.figures", "lab.bench"),
    }
    words = {
        wrong.arguments[0] for wrong in inputs if wrong.program == "glue.py" and wrong.arguments
    }
    assert {"finetune", "table", "predict", "check", "download", "data"} <= words


def test_an_unknown_attack_is_refused(run_program):
    outcome = run_program("lab.attacks", attacks.main, "x")
    assert outcome.code == 2 and "unknown attack 'x'" in outcome.error
