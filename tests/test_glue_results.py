"""support/glue_results.py: lines are added, read back and checked; weights belong to their line."""

import argparse
import json
import math
import signal
from pathlib import Path

import pytest
import torch

from glue_helpers import error_of
from support import glue_results
from support.files import save_checkpoint
from support.glue_results import (
    add_result,
    best_path,
    check_settings,
    encoder_path,
    folder_name,
    keep_run,
    load_weights_of,
    read_results,
    results_path,
    save_weights,
    settings_of_encoder,
)
from support.locks import InUse, lock


def record(task="cola", seed=42, **changes):
    """A complete record, with changes to its result."""
    result = {
        "score": 1.0,
        "scores": {"dev": {"score": 1.0}},
        "constant_prediction": False,
        "partial": False,
    }
    return {"task": task, "seed": seed, "result": result | changes, "settings": {}}


def full_settings(task="cola", seed=42, **changes):
    """All settings of a run."""
    settings = {
        "lr": 3e-4,
        "epochs": 3,
        "batch_size": 32,
        "dropout": 0.1,
        "weight_decay": 0.0,
        "warmup_share": 0.1,
        "seq_len": 64,
        "start": None,
        "steps": 30,
        "warmup_steps": 3,
        "task": task,
        "seed": seed,
        "data": "rows",
        "batches": "random",
        "dtype": "float32",
        "model": "m",
        "tokenizer": "t",
    }
    return settings | changes


def finished(task="cola", seed=42, score=1.0, **settings):
    """A record with all settings, and its score on every development split."""
    made = record(task, seed, score=score)
    splits = ["dev_matched", "dev_mismatched"] if task == "mnli" else ["dev"]
    made["result"]["scores"] = {split: {"score": score} for split in splits}
    made["settings"] = full_settings(task, seed, **settings)
    return made


def write_line(folder, value):
    """Write a results.jsonl of one good line and one made of `value`."""
    lines = [json.dumps(record("rte")), json.dumps(value)]
    results_path(folder).write_text("\n".join(lines) + "\n", encoding="utf-8")


# --- Lines ----------------------------------------------------------------------------------------


def test_a_folder_without_results_has_none(tmp_path):
    assert read_results(tmp_path) == {}


def test_records_are_read_back_in_the_order_in_which_they_were_added(tmp_path):
    records = [record("rte", 97), record("cola", 97), record("cola", 42)]
    for each in records:
        add_result(tmp_path, each)
    found = read_results(tmp_path)
    assert list(found) == [("rte", 97), ("cola", 97), ("cola", 42)]
    assert list(found.values()) == records
    assert len(results_path(tmp_path).read_text(encoding="utf-8").splitlines()) == 3


def test_a_record_of_the_same_task_and_seed_is_replaced(tmp_path):
    add_result(tmp_path, record("cola", 42))
    add_result(tmp_path, record("rte", 42))
    newer = record("cola", 42, score=2.0)
    add_result(tmp_path, newer)
    found = read_results(tmp_path)
    assert list(found) == [("cola", 42), ("rte", 42)]
    assert found["cola", 42] == newer


def test_a_record_is_added_at_the_end_and_no_byte_before_it_changes(tmp_path):
    add_result(tmp_path, record("cola", 42))
    before = results_path(tmp_path).read_bytes()
    add_result(tmp_path, record("cola", 42, score=2.0))
    assert results_path(tmp_path).read_bytes().startswith(before)


def test_settings_and_maker_of_a_record_are_kept(tmp_path):
    added = record() | {"made_by": {"code": "0" * 12}}
    added["settings"] = {"lr": 0.1, "changed": ["lr"]}
    add_result(tmp_path, added)
    assert read_results(tmp_path)["cola", 42] == added


@pytest.mark.parametrize(
    "changes",
    [
        {"score": math.nan},
        {"score": "high"},
        {"score": True},
        {"score": 100.001},
        {"score": -100.5},
        {"score": 10**400},
        {"score": None},
        {"scores": {"test": {"score": 1.0}}},
        {"scores": {"dev": {"score": 1.0, "matthews": 101}}},
        {"scores": {"dev": {"score": [1.0]}}},
        {"scores": [1.0]},
        {"by_phenomenon": {"agreement": math.inf}},
        {"by_phenomenon": {"agreement": -1}},
        {"by_phenomenon": [1]},
        {"partial": 0},
        {"constant_prediction": None},
    ],
)
def test_an_incomplete_record_is_named_with_its_file(tmp_path, changes):
    write_line(tmp_path, record(**changes))
    message = error_of(read_results, tmp_path)
    assert f"{results_path(tmp_path)} is damaged (line 2: " in message
    assert len(message) < 300


@pytest.mark.parametrize(
    "changes",
    [
        {"seq_len": "64"},
        {"seq_len": 64.0},
        {"seq_len": True},
        {"seq_len": 10**9},
        {"seq_len": 1},
        {"dtype": "int8"},
        {"dtype": ["float32"]},
        {"dtype": "load"},  # torch.load is no type of numbers
        {"lr": math.inf},
        {"lr": 10**400},
        {"epochs": 0},
        {"start": "squad"},
        {"model": 7},
        {"changed": "lr"},
        {"changed": [1]},
    ],
)
def test_settings_that_cannot_be_are_named(tmp_path, changes):
    write_line(tmp_path, finished(**changes))
    assert "is damaged (line 2: " in error_of(read_results, tmp_path)


@pytest.mark.parametrize("changes", [{"task": "rte"}, {"seed": 97}])
def test_settings_of_another_run_are_named(tmp_path, changes):
    made = finished()
    made["settings"] |= changes
    write_line(tmp_path, made)
    assert "is damaged (line 2: " in error_of(read_results, tmp_path)


@pytest.mark.parametrize("missing", full_settings())
def test_settings_are_all_there_or_those_of_an_earlier_version(tmp_path, missing):
    made = finished()
    del made["settings"][missing]
    write_line(tmp_path, made)
    if missing == "tokenizer":
        assert ("cola", 42) in read_results(tmp_path)
    else:
        assert "is damaged (line 2: " in error_of(read_results, tmp_path)


@pytest.mark.parametrize("changes", [{"task": "snli"}, {"seed": "42"}, {"seed": True}, {"seed": 0}])
def test_a_run_that_cannot_be_is_named(tmp_path, changes):
    write_line(tmp_path, record() | changes)
    assert "is damaged (line 2: " in error_of(read_results, tmp_path)


@pytest.mark.parametrize("task, lowest", [("cola", -100), ("sts-b", -100), ("sst-2", 0)])
def test_only_correlations_may_be_below_0(tmp_path, task, lowest):
    write_line(tmp_path, finished(task, score=lowest))
    assert read_results(tmp_path)[task, 42]["result"]["score"] == lowest
    write_line(tmp_path, finished(task, score=lowest - 0.1))
    assert f"not a number from {lowest} to 100" in error_of(read_results, tmp_path)


# --- Settings -------------------------------------------------------------------------------------


def test_other_settings_of_any_seed_are_refused_and_those_that_are_missing_too():
    records = {("cola", 42): finished()}
    check_settings("out", records, full_settings(seed=97))
    check_settings("out", records, full_settings("rte", lr=1.0))
    message = error_of(check_settings, "out", records, full_settings(seed=97, lr=1.0))
    assert "lr is 0.0003 there and 1.0 here" in message
    message = error_of(check_settings, "out", records, full_settings(tokenizer="u"))
    assert "tokenizer is t there and u here" in message
    records["cola", 42]["settings"]["toy"] = True
    assert "toy is True there" in error_of(check_settings, "out", records, full_settings())


def test_an_encoder_keeps_the_settings_of_its_task_if_model_and_data_are_the_same():
    records = {("mnli", 42): finished("mnli", epochs=1)}
    wanted = full_settings("mnli", 97, epochs=4)
    assert settings_of_encoder(records, wanted) == full_settings("mnli", 97, epochs=1)
    for key in ("model", "tokenizer", "data", "batches"):
        other = wanted | {key: "other"}
        assert settings_of_encoder(records, other) == other


# --- Weights --------------------------------------------------------------------------------------

WEIGHTS = {"bert.x": torch.arange(3.0), "classifier.bias": torch.ones(2)}
ADVICE = "delete it"


def test_weights_are_read_back_for_their_record(tmp_path):
    made = finished()
    save_weights(tmp_path / "best.pt", made, WEIGHTS)
    read = json.loads(json.dumps(made))  # as it comes from results.jsonl
    found = load_weights_of(tmp_path / "best.pt", read, ADVICE)
    assert all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)


@pytest.mark.parametrize(
    "other, reason",
    [
        (finished(seed=97), "(another seed)"),
        (finished(lr=1.0), "(another settings)"),
        (finished(score=1.5), "(another result)"),
        (finished("rte"), "(another task)"),
    ],
)
def test_weights_of_another_record_are_refused(tmp_path, other, reason):
    path = tmp_path / "best.pt"
    save_weights(path, finished(), WEIGHTS)
    message = error_of(load_weights_of, path, other, ADVICE)
    assert str(path) in message and reason in message and message.endswith(ADVICE)


@pytest.mark.parametrize(
    "content, reason",
    [
        (WEIGHTS, "earlier version"),
        (torch.ones(3), "earlier version"),
        ([1, 2], "earlier version"),
        ({**finished(), "weights": torch.ones(3)}, "holds no weights"),
        ({**finished(), "weights": None}, "holds no weights"),
        ({**finished(), "weights": {}, "settings": torch.ones(3)}, "another settings"),
        ({**finished(), "weights": {}, "task": torch.ones(3)}, "another task"),
    ],
)
def test_files_that_hold_something_else_are_refused(tmp_path, content, reason):
    path = tmp_path / "best.pt"
    save_checkpoint(path, content)
    message = error_of(load_weights_of, path, finished(), ADVICE)
    assert str(path) in message and reason in message and message.endswith(ADVICE)


def test_missing_and_cut_weights_are_refused_with_the_advice(tmp_path):
    path = tmp_path / "best.pt"
    assert error_of(load_weights_of, path, finished(), ADVICE) == f"{path} is missing: {ADVICE}"
    save_weights(path, finished(), WEIGHTS)
    path.write_bytes(path.read_bytes()[:-30])
    message = error_of(load_weights_of, path, finished(), ADVICE)
    assert f"{path} is damaged" in message and message.endswith(ADVICE)


# --- A finished run -------------------------------------------------------------------------------


def best_seed(folder, name="cola", split="dev"):
    return torch.load(best_path(folder, name, split), weights_only=True)["seed"]


def test_the_weights_of_the_best_run_are_kept_of_equal_ones_the_first(tmp_path):
    for seed, score, best in ((42, 5.0, 42), (97, 3.0, 42), (834, 5.0, 42), (622, 6.0, 622)):
        keep_run(tmp_path, finished(seed=seed, score=score), WEIGHTS, gives_encoder=False)
        assert best_seed(tmp_path) == best
        record_of_best = read_results(tmp_path)["cola", best]
        load_weights_of(best_path(tmp_path, "cola", "dev"), record_of_best, ADVICE)
    assert not list(tmp_path.glob("*-seed*"))
    assert not list(tmp_path.glob("*.lock"))


def test_a_run_that_is_done_again_replaces_its_own_weights(tmp_path):
    keep_run(tmp_path, finished(seed=42, score=5.0), WEIGHTS, False)
    keep_run(tmp_path, finished(seed=97, score=5.0), WEIGHTS, False)
    again = finished(seed=42, score=5.0)
    again["result"]["partial"] = True
    keep_run(tmp_path, again, WEIGHTS, False)
    load_weights_of(best_path(tmp_path, "cola", "dev"), again, ADVICE)


def test_an_encoder_is_kept_without_its_classifier(tmp_path):
    made = finished("mnli")
    keep_run(tmp_path, made, WEIGHTS, gives_encoder=True)
    assert list(load_weights_of(encoder_path(tmp_path, "mnli", 42), made, "")) == ["bert.x"]


def test_of_two_runs_with_other_settings_the_second_one_writes_nothing(tmp_path):
    keep_run(tmp_path, finished("mnli", 42), WEIGHTS, True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    second = finished("mnli", 97, score=50.0, lr=1.0)
    message = error_of(keep_run, tmp_path, second, WEIGHTS, True)
    assert "lr is 0.0003 there and 1.0 here" in message
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_is_kept_under_the_lock_in_the_order_encoder_best_weights_line(tmp_path, monkeypatch):
    events = []

    def noted(name):
        function = getattr(glue_results, name)

        def call(first, *arguments):
            with pytest.raises(InUse), lock(tmp_path / "results.lock", "results"):
                pass
            events.append(Path(first).name)
            return function(first, *arguments)

        monkeypatch.setattr(glue_results, name, call)

    noted("save_weights")
    noted("add_result")
    keep_run(tmp_path, finished("mnli"), WEIGHTS, gives_encoder=True)
    encoder, *best, line = events
    assert encoder == encoder_path(tmp_path, "mnli", 42).name
    assert best == ["best-mnli_matched.pt", "best-mnli_mismatched.pt"]
    assert line == tmp_path.name


def test_ctrl_c_between_two_files_of_a_run_acts_when_all_are_written(tmp_path, monkeypatch):
    """Otherwise the weights of the earlier best run would be lost without a line for the new."""
    keep_run(tmp_path, finished(seed=42, score=5.0), WEIGHTS, gives_encoder=False)

    def save_and_interrupt(path, record, weights):
        save_weights(path, record, weights)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(glue_results, "save_weights", save_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        keep_run(tmp_path, finished(seed=97, score=6.0), WEIGHTS, gives_encoder=False)
    record_of_best = read_results(tmp_path)["cola", 97]
    load_weights_of(best_path(tmp_path, "cola", "dev"), record_of_best, ADVICE)


def test_a_run_that_starts_from_a_partial_one_is_partial(tmp_path):
    start = finished("mnli")
    start["result"]["partial"] = True
    keep_run(tmp_path, start, WEIGHTS, True)
    keep_run(tmp_path, finished("rte", start="mnli"), WEIGHTS, False)
    assert read_results(tmp_path)["rte", 42]["result"]["partial"]


# --- The name of the folder -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", ".", "..", "...", " ", "a/b", "/a", "../a", "a/", "a\\b", "C:", "a\nb", "a\0b"]
)
def test_what_is_no_plain_name_is_refused(name):
    with pytest.raises(argparse.ArgumentTypeError, match="not the name of a folder inside the run"):
        folder_name(name)


@pytest.mark.parametrize("name", ["glue", "lr-2", "a.b", "été", ".hidden", "a b"])
def test_plain_names_are_accepted(name):
    assert folder_name(name) == name
