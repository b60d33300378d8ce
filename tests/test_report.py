"""lab/report.py: from runs to records and tables."""

import json
import re

import pytest

from conftest import ROOT, write
from lab import report
from support.commands import UserError
from support.files import sha256_of

README = (ROOT / "README.md").read_text("utf-8").replace("\n  ", " ").replace("\n", " ")
MADE_BY = {"device": "cpu", "torch": "2.13.0", "threads": 1, "commit": "c0"}


def glue_record(score, seed=42, model="m"):
    """A result of fine-tuning on CoLA."""
    settings = {"task": "cola", "seed": seed, "lr": 3e-4, "model": model, "start": None}
    settings["changed"] = []
    result = {"score": score, "constant_prediction": False}
    return {"result": result, "settings": settings, "made_by": MADE_BY}


# --- The record of a run --------------------------------------------------------------------------


@pytest.fixture
def trained(start, tmp_path):
    """A run of two steps, with a result of glue.py and one of lab.pairs."""
    start("--variant fixed --steps 2 --seq_len 16")
    folder = tmp_path / "corpus-fixed"
    digest = sha256_of(folder / "model.pt")[:12]
    made = {"settings": {"model": digest}, "code": {}}
    results = {
        "glue/log.jsonl": made,
        "glue/cola-seed42.json": {**glue_record(10.0, model=digest), "log": []},
        "pairs/log.jsonl": made,
        "pairs/toy.json": {"paradigms": {"a": [120.0, 200]}},
        # by other code than the training: left out
        "pairs-2/log.jsonl": {**made, "code": {"model.py": "other"}},
        "pairs-2/toy.json": {"paradigms": {"a": [20.0, 200]}},
        # of the model before: left out
        "pairs-3/log.jsonl": {**made, "settings": {"model": "before"}},
        "pairs-3/toy.json": {"paradigms": {"a": [30.0, 200]}},
        "glue-2/log.jsonl": {**made, "settings": {"model": "before"}},
        "glue-2/cola-seed42.json": {**glue_record(70.0, model="before"), "log": []},
    }
    for name, result in results.items():
        write(folder / name, json.dumps(result))
    return folder


def test_the_record_of_a_run_has_what_pretraining_finetuning_and_pairs_found(
    trained, tmp_path, run_program
):
    out = tmp_path / "a.jsonl"
    outcome = run_program(report.main, trained, "--out", out)
    assert outcome.code == 0 and "pairs-2 is left out: model.py has changed" in outcome.out
    [record] = report.read_records(out)

    first, *_, last_steps, evaluation = report.read_records(trained / "log.jsonl")
    assert record["settings"] == first["settings"]
    assert record["result"]["loss"] == evaluation["held_out_loss"]
    assert record["result"]["accuracy"] == evaluation["held_out_accuracy"]
    assert record["result"]["tokens_per_second"] == last_steps["tokens"] / last_steps["seconds"]
    assert record["glue"][0]["result"]["score"] == 10.0
    assert record["pairs"] == {"toy": {"a": [120.0, 200]}}

    # the program prints it, with the mean of two fine-tuning seeds
    record["glue"].append(glue_record(20.0, seed=43))
    record["pairs"]["mine"] = {"b": [1.0, 2]}
    report.write_records(out, [record])
    result = record["result"]
    cells = f"{result['parameters']:,} | {result['loss']:.3f} | {100 * result['accuracy']:.2f}"
    printed = re.sub(" +", " ", run_program(report.main, out).out)
    assert f"| corpus-fixed | 1 | {cells} | 60.0 | 50.0 | 15.0 |" in printed
    assert record["code"] == first["code"]

    # an older record lacks what was not measured, and has a row, too
    older = {name: record[name] for name in ("settings", "result", "made_by")}
    report.write_records(out, [{**older, "run": "older"}, record])
    printed = re.sub(" +", " ", run_program(report.main, out).out)
    assert f"| older | 1 | {cells} | | | |" in printed


def test_an_unfinished_run_is_refused_and_nothing_is_written(trained, tmp_path, refused):
    first = (trained / "log.jsonl").read_text().splitlines()[0]
    (trained / "log.jsonl").write_text(f'{first}\n{{"step": 1}}')
    assert "is not finished" in refused(report.main, trained, "--out", tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl").exists()


def test_runs_that_were_scored_on_other_pairs_are_in_no_table(trained):
    """Other settings: test_tables.py."""
    one = report.record_of_run(trained)
    other = {**one, "run": "another", "pairs": {"toy": {"b": [120.0, 200]}}}
    with pytest.raises(UserError, match="other parts of toy"):
        report.rows_of([one, other], [report.LOSS])
