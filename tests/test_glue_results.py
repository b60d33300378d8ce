"""support/glue_results.py: records are added one by one, read back, and refused if incomplete."""

import math

import pytest

from glue_helpers import error_of
from support.glue_results import add_result, read_results, results_path


def record(task="cola", seed=42, **changes):
    """A complete record, with changes to its result."""
    result = {
        "score": 1.0,
        "scores": {"dev": {"score": 1.0}},
        "constant_prediction": False,
        "partial": False,
    }
    return {"task": task, "seed": seed, "result": result | changes, "settings": {}}


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
        {"scores": {"test": {"score": 1.0}}},
        {"by_phenomenon": {"agreement": math.inf}},
        {"partial": 0},
        {"constant_prediction": None},
    ],
)
def test_an_incomplete_record_is_named_with_its_file(tmp_path, changes):
    add_result(tmp_path, record(**changes))
    message = error_of(read_results, tmp_path)
    assert f"{results_path(tmp_path)} is damaged" in message
