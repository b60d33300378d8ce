"""The short form of lab/attacks.py, and whether it would notice a fault."""

import json
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
from lab import attack_files, attack_inputs, attack_tools, attacks, report
from lab.attack_tools import (
    CRASH,
    EQUAL,
    FAULTS,
    HANG,
    LOST,
    REFUSED,
    SILENT,
    VERDICTS,
    AtCall,
    FullAt,
    Outcome,
    Result,
    Victim,
    kill_victims,
    run,
)
from support.files import save_checkpoint

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the attacks need forks")


# --- The attacks ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short_form():
    """What the short form of all attacks prints: (exit code, text)."""
    done = subprocess.run(
        [sys.executable, "-m", "lab.attacks", "--short"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        timeout=300,
    )
    return done.returncode, done.stdout


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
    assert Outcome(code, "", error, hung=False).fault().verdict == CRASH


def test_a_hang_is_noticed(tmp_path):
    outcome = Victim(tmp_path, time.sleep, [60]).wait(seconds=0.1)
    assert outcome.hung and outcome.fault().verdict == HANG
    assert not attack_tools.was_killed(outcome)


def test_victims_of_an_interrupted_attack_are_killed(tmp_path):
    victims = [Victim(tmp_path, time.sleep, [60]) for _ in range(2)]
    kill_victims()
    assert [victim.code for victim in victims] == 2 * [-signal.SIGKILL]
    assert not Victim.running


# A victim that is killed while it has the lock of tqdm. Afterwards, another victim and this process
# need the lock.
KILLED_WITH_LOCK = """
import os, signal, sys
from tqdm import tqdm
from lab.attack_tools import Victim, prepare_to_fork, run

prepare_to_fork()
with tqdm(total=1, disable=None):
    pass

def take_lock_and_die():
    tqdm.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)

def show_bar():
    with tqdm(total=1, disable=None):
        return 0

print(run(sys.argv[1], take_lock_and_die, []).code)
print(Victim(sys.argv[1], show_bar, []).wait(20).code)
print(show_bar())
"""


def test_a_victim_killed_with_the_lock_of_a_progress_bar_stops_nobody(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WITH_LOCK, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == [str(-signal.SIGKILL), "0", "0"], done.stderr


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


def test_a_fault_counts_without_a_kill_and_every_kill_counts():
    equal = Result(EQUAL)
    silent = Result(SILENT, "differ: model.pt")
    assert attacks.one_per_kill(equal, 3) == [equal, equal, equal]
    assert attacks.one_per_kill(silent, 2) == [silent, silent]
    assert attacks.one_per_kill(equal, 0) == []
    assert attacks.one_per_kill(silent, 0) == [silent]


def test_two_processes_share_seeds_in_three_ways():
    seeds = [1, 2, 3, 4, 5]
    assert attacks.divide_seeds(seeds, 0) == ([1, 2], [3, 4, 5])
    assert attacks.divide_seeds(seeds, 1) == (seeds, seeds)
    assert attacks.divide_seeds(seeds, 5) == (seeds, [5, 4, 3, 2, 1])


def test_a_lost_or_doubled_result_of_two_processes_is_noticed(tmp_path):
    def outcomes(*texts):
        return [Outcome(0, text, "", hung=False) for text in texts]

    one = "sst-2  seed 1000  50.0\n"
    other = "sst-2  seed 1001  50.0\n"
    for texts in ((one, ""), (one, one), (one + other, other)):
        result = attacks.after_sharing(outcomes(*texts), [1000, 1001], tmp_path, tmp_path)
        assert result.verdict == SILENT and "results of" in result.note

    refused = [Outcome(0, one, "", hung=False), Outcome(2, "", "glue.py: no\n", hung=False)]
    result = attacks.after_sharing(refused, [1000], tmp_path, tmp_path)
    assert result == Result(LOST, "glue.py: no")


def with_results(monkeypatch, *results):
    """Make "flips" an attack that has these results in turn, each a list, and then no more."""
    waiting = list(results)

    def function(trial):
        if waiting:
            return waiting.pop(0)
        return []

    attack = attacks.Attack("flipped bits", function, full=4, short=2)
    monkeypatch.setitem(attacks.ATTACKS, "flips", attack)


def test_a_fault_is_printed_with_its_trial_and_gives_exit_code_1(monkeypatch, run_program):
    silent = Result(SILENT, "another loss")
    with_results(monkeypatch, [Result(REFUSED)], [silent, silent])
    outcome = run_program("lab.attacks", attacks.main, "flips", "--count", 3)
    assert outcome.code == 1
    assert outcome.out.count("flips --trial 1: silent: another loss") == 1
    assert re.search(r"^flips +3 +1 +0 +0 +0 +2 +0 +0$", outcome.out, re.MULTILINE)


def test_trials_without_results_do_not_go_on_without_end(monkeypatch, run_program):
    with_results(monkeypatch, [Result(REFUSED)])
    with pytest.raises(RuntimeError, match="flips: 50 trials in a row have no result"):
        attacks.main(["flips", "--count", "2"])


def test_the_counts_are_kept_in_a_file_attack_by_attack(monkeypatch, tmp_path, run_program):
    path = tmp_path / "results" / "attacks.json"
    other = {"what": "damages", "tried": 9, "verdicts": {}, "seconds": 1.0, "made_by": {}}
    path.parent.mkdir()
    path.write_text(json.dumps({"cache": other}), encoding="utf-8")

    # the other attack keeps what it has
    with_results(monkeypatch, [Result(REFUSED), Result(EQUAL)])
    arguments = ["flips", "--short", "--out", path]
    assert run_program("lab.attacks", attacks.main, *arguments).code == 0
    record = json.loads(path.read_text(encoding="utf-8"))
    assert list(record) == ["flips", "cache"]
    assert record["cache"] == other
    assert record["flips"]["tried"] == 2
    assert record["flips"]["verdicts"] == {
        **dict.fromkeys(VERDICTS, 0),
        REFUSED: 1,
        EQUAL: 1,
    }
    assert record["flips"]["made_by"].keys() >= {"date", "device", "code"}

    # what is no such file is refused before the work
    for text in ("{", "[]", '{"x": 1}'):
        path.write_text(text, encoding="utf-8")
        outcome = run_program("lab.attacks", attacks.main, *arguments)
        assert outcome.code == 2 and outcome.error.startswith(f"lab.attacks: {path} is ")


def test_the_table_of_attacks_counts_faults_and_says_when_and_where():
    none = dict.fromkeys(VERDICTS, 0)
    made_by = {"date": "2026-11-22", "device": "cpu (model)"}
    record = {
        "flips": {
            "what": "flipped bits",
            "tried": 1200,
            "verdicts": none | {REFUSED: 1190, SILENT: 3, HANG: 7},
            "seconds": 240.0,
            "made_by": made_by,
        },
        "cache": {
            "what": "damages",
            "tried": 5,
            "verdicts": none | {EQUAL: 5},
            "seconds": 60.0,
            "made_by": made_by,
        },
    }
    head, _, *rows, empty, note = report.attacks_table(record)
    assert head == "| attack | tried | refused | equal | harmless | faults |"
    assert rows == [
        "| flipped bits | 1,200 | 1,190 | 0 | 0 | 10 |",
        "| damages | 5 | 0 | 5 | 0 | 0 |",
    ]
    assert (empty, note) == ("", "2026-11-22, 5 minutes, on cpu (model).")


def test_what_is_no_fault_in_the_table_is_none_for_the_exit_code():
    assert sorted([*report.UNHARMED, *FAULTS]) == sorted(VERDICTS)


def test_there_are_wrong_inputs_for_every_command():
    inputs = attack_inputs.wrong_inputs()
    assert len(inputs) == attacks.ATTACKS["inputs"].full >= 300
    programs = {wrong.program for wrong in inputs}
    assert programs == {
        *("pretrain.py", "glue.py", "model.py", "toy"),
        *("lab.pairs", "lab.report", "lab.figures", "lab.bench"),
    }
    words = {
        wrong.arguments[0] for wrong in inputs if wrong.program == "glue.py" and wrong.arguments
    }
    assert {"finetune", "table", "predict", "check", "download", "data"} <= words

    # the largest number that the command line accepts, and a larger one
    values = {argument.partition("=")[2] for wrong in inputs for argument in wrong.arguments}
    assert {str(2**31 - 1), str(10**30)} <= values


def test_every_reader_of_a_run_also_gets_an_undamaged_one():
    """Two commands are exceptions: the comment at WORKING says why."""
    without = [attack_inputs.READ_PREDICT, attack_inputs.READ_PAIRS_TABLE]
    for reader in attack_inputs.READERS:
        assert (reader in attack_inputs.WORKING) == (reader not in without)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["x"], "unknown attack 'x'"),
        (["--trial", 3], "--trial needs the NAME of one attack"),
        (["flips", "--trial", 3, "--out", "x.json"], "--out keeps the counts of attacks"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(run_program, arguments, message):
    outcome = run_program("lab.attacks", attacks.main, *arguments)
    assert outcome.code == 2 and message in outcome.error
