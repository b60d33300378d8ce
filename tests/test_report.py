"""lab/report.py and the records of runs in lab/record.py: from a run to a table of a document."""

import json
import math
import os

import numpy as np
import pytest

import pretrain
from attention import VARIANTS
from conftest import ROOT
from lab import record, report
from lab.pairs import COVERAGE
from model import BertConfig, BertForMaskedLM, parameter_count
from support.files import load_checkpoint, sha256_of
from support.locks import InUse, lock
from support.pair_results import score_record

SETTINGS = {
    "variant": "none",
    "size": "tiny",
    "corpus": "abc",
    "steps": 40,
    "batch_size": 8,
    "kernel_size": None,
    "attention_layer": None,
    "beyond": "clip",
    "seed": 0,
    "dtype": "float32",
}
MADE_BY = {
    "date": "2026-11-21",
    "device": "cpu (model)",
    "torch": "2.13.0",
    "threads": 1,
    "code": "c0de",
}


# --- Invented runs and records --------------------------------------------------------------------


def pair_lines(accuracies, model="m", digest="d"):
    """Lines of minimal pairs, 100 of each paradigm. By whole words, one more pair is right.

    accuracies: {(phenomenon, paradigm): accuracy}.
    """
    lines = []
    no_ties = np.zeros(100, dtype=bool)
    for (phenomenon, paradigm), accuracy in accuracies.items():
        lines.append(
            {
                "data": "blimp",
                "paradigm": paradigm,
                "phenomenon": phenomenon,
                "pairs": 100,
                "pairs_sha256": digest,
                "model": model,
                "scores": {
                    "pll": score_record(np.arange(100) < accuracy, no_ties),
                    "whole_word": score_record(np.arange(100) < accuracy + 1, no_ties),
                },
                "made_by": MADE_BY,
                "seconds": 1.0,
            }
        )
    return lines


def glue_record(task, seed, score, **changes):
    """A result of fine-tuning. changes: of its result."""
    result = {
        "score": score,
        "scores": {"dev": {"score": score}},
        "constant_prediction": False,
        "partial": False,
        **changes,
    }
    settings = {"model": "m", "data": "rows"}
    return {"task": task, "seed": seed, "result": result, "settings": settings}


def run_record(variant="none", seed=0, loss=2.0, glue=(), pairs=None, **settings):
    """The record of a run."""
    return {
        "run": f"{variant}-seed{seed}",
        "settings": {**SETTINGS, "variant": variant, "seed": seed, **settings},
        "made_by": MADE_BY,
        "curve": [[40, loss, 0.5]],
        "training": [[40, loss]],
        "result": {
            "loss": loss,
            "accuracy": loss / 10,
            "parameters": 12345,
            "tokens_per_second": 1000.4,
            "seconds": 90.0,
        },
        "glue": list(glue),
        "pairs": pairs or {},
    }


def write_records(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    return path


def write_run(folder, variant="none", seed=0, last_step=40):
    """The folder of a run: what `collect` reads of it, without weights."""
    folder.mkdir(parents=True)
    config = BertConfig.from_size("tiny", variant, 300)
    (folder / "config.json").write_text(json.dumps(vars(config)), encoding="utf-8")
    (folder / "model.pt").write_bytes(b"weights")

    lines = [{"settings": {**SETTINGS, "variant": variant, "seed": seed}, "made_by": MADE_BY}]
    for step in range(1, last_step + 1):
        lines.append({"step": step, "loss": 9 / step, "tokens": 10 * step, "seconds": step / 8})
        if step % 20 == 0:
            lines.append({"step": step, "held_out_loss": 5 / step, "held_out_accuracy": 0.25})
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return folder


@pytest.fixture
def run_report(run_program):
    """run_report("collect", RUN, ...) runs the command line: (exit code, output, error)."""

    def call(*arguments):
        return run_program("lab.report", report.main, *arguments)

    return call


def assert_is_one_line(outcome, *messages):
    assert outcome.code == 2
    assert outcome.error.startswith("lab.report: ") and outcome.error.count("\n") == 1
    for message in messages:
        assert message in outcome.error


# --- The record of a run --------------------------------------------------------------------------


def test_the_record_of_a_run_has_the_result_that_pretraining_kept(small_text, tmp_path, run_report):
    run = tmp_path / "run"
    arguments = ["--corpus", small_text.file, "--cache_dir", small_text.cache, "--device", "cpu"]
    arguments += ["--variant", "lightconv-hybrid", "--steps", 2, "--batch_size", 4]
    arguments += ["--seq_len", 16, "--out_dir", run]
    assert pretrain.main([str(argument) for argument in arguments]) == 0
    assert run_report("collect", run, "--out", tmp_path / "results/a.jsonl").code == 0

    (kept,) = record.read_run_records(tmp_path / "results/a.jsonl")
    state = load_checkpoint(run / "train_state.pt")
    assert kept["settings"] == state["settings"]
    assert kept["made_by"] == state["records"][0]["made_by"]
    for name in ("loss", "accuracy", "parameters"):
        assert kept["result"][name] == state["result"][name]
    # the log rounds seconds to a thousandth
    assert abs(kept["result"]["seconds"] - state["result"]["seconds"]) < 0.001
    assert kept["result"]["tokens_per_second"] == state["tokens"] / kept["result"]["seconds"]
    assert kept["run"] == "run"
    assert str(tmp_path) not in json.dumps(kept)


def test_the_record_has_the_evaluations_and_about_twenty_training_losses(tmp_path):
    kept = record.record_of_run(write_run(tmp_path / "run"))
    assert kept["curve"] == [[20, 0.25, 0.25], [40, 0.125, 0.25]]
    assert [step for step, _ in kept["training"]] == list(range(2, 41, 2))
    assert kept["training"][-1] == [40, 9 / 40]
    assert kept["result"]["seconds"] == 5
    assert kept["result"]["tokens_per_second"] == 80
    model = BertForMaskedLM(BertConfig.from_size("tiny", "none", 300))
    assert kept["result"]["parameters"] == parameter_count(model)


def test_the_record_has_the_results_of_finetuning_and_of_minimal_pairs(tmp_path):
    run = write_run(tmp_path / "run")
    digest = sha256_of(run / "model.pt")[:12]
    result = glue_record("cola", 42, 10.0)
    result["settings"]["model"] = digest
    write_records(run / "glue/results.jsonl", [result])
    lines = pair_lines({("a", "a1"): 60.0}, model=digest)
    write_records(run / "pairs/blimp.jsonl", lines)
    kept = record.record_of_run(run)
    assert kept["glue"] == [result]
    assert kept["pairs"] == {"blimp": lines}


def test_collect_adds_and_replaces_runs_and_sorts_them_by_variant_and_seed(tmp_path, run_report):
    out = tmp_path / "results/toy.jsonl"
    names = [("composite", 1), ("none", 10), ("none", 2), ("absolute", 0)]
    runs = [write_run(tmp_path / f"{name}-seed{seed}", name, seed) for name, seed in names]
    assert run_report("collect", *runs[:2], "--out", out).code == 0
    assert run_report("collect", *runs[1:], "--out", out).code == 0
    kept = [each["run"] for each in record.read_run_records(out)]
    assert kept == ["none-seed2", "none-seed10", "absolute-seed0", "composite-seed1"]

    # the same run, trained longer
    log = runs[0] / "log.jsonl"
    text = log.read_text().replace('"steps": 40', '"steps": 60')
    text += '\n{"step": 60, "held_out_loss": 1.5, "held_out_accuracy": 0.5}'
    log.write_text(text)
    assert run_report("collect", runs[0], "--out", out).code == 0
    last = record.read_run_records(out)[-1]
    assert (last["run"], last["result"]["loss"]) == ("composite-seed1", 1.5)
    assert len(record.read_run_records(out)) == 4


def test_the_same_hybrid_with_another_attention_layer_is_another_run(tmp_path, run_report):
    out = tmp_path / "layers.jsonl"
    for layer in (3, 1):
        run = write_run(tmp_path / f"layer{layer}/hybrid", "lightconv-hybrid")
        text = (run / "log.jsonl").read_text()
        text = text.replace('"attention_layer": null', f'"attention_layer": {layer}')
        (run / "log.jsonl").write_text(text)
        assert run_report("collect", run, "--out", out).code == 0
    layers = [each["settings"]["attention_layer"] for each in record.read_run_records(out)]
    assert layers == [1, 3]


def damage(run, kind):
    """Damage a run, or what it holds, in one of several ways."""
    log = run / "log.jsonl"
    lines = log.read_text().splitlines()
    logs = {
        "unfinished": lines[:-2],
        "never evaluated": lines[:5],
        "not evaluated at the end": lines[:-1],
        "half a line": [*lines[:-1], lines[-1][:-9]],
        "no settings": lines[1:],
        "empty log": [],
        "a loss is nan": [*lines, '{"step": 41, "held_out_loss": NaN}'],
    }
    missing = {"no log": "log.jsonl", "no config": "config.json", "no model": "model.pt"}
    results = {
        "damaged glue": ("glue/results.jsonl", [{"task": "cola"}]),
        "damaged pairs": ("pairs/blimp.jsonl", [{"paradigm": "a"}]),
        "glue of another model": ("glue/results.jsonl", [glue_record("cola", 42, 10.0)]),
        "pairs of another model": ("pairs/blimp.jsonl", pair_lines({("a", "a1"): 60.0})),
    }
    if kind in logs:
        log.write_text("\n".join(logs[kind]))
    elif kind in missing:
        (run / missing[kind]).unlink()
    else:
        name, records = results[kind]
        write_records(run / name, records)


@pytest.mark.parametrize(
    "kind, message",
    [
        ("no log", "it has no log.jsonl"),
        ("no config", "is not a run"),
        ("no model", "it has no model.pt"),
        ("unfinished", "is not finished (step 39 of 40)"),
        ("never evaluated", "is not finished (step 4 of 40)"),
        ("not evaluated at the end", "is not finished (its log has no result)"),
        ("half a line", "log.jsonl is damaged"),
        ("no settings", "log.jsonl is damaged"),
        ("empty log", "log.jsonl is damaged"),
        ("a loss is nan", "log.jsonl is damaged"),
        ("damaged glue", "results.jsonl is damaged"),
        ("damaged pairs", "blimp.jsonl is damaged"),
        ("glue of another model", "results of an earlier model"),
        ("pairs of another model", "results of an earlier model"),
    ],
)
def test_a_run_that_cannot_be_collected_gets_one_line_and_the_file_stays(
    kind, message, tmp_path, run_report
):
    out = write_records(tmp_path / "toy.jsonl", [run_record()])
    before = out.read_bytes()
    good = write_run(tmp_path / "good", "absolute")
    bad = write_run(tmp_path / "bad", "composite")
    damage(bad, kind)
    assert_is_one_line(run_report("collect", good, bad, "--out", out), "bad", message)
    assert out.read_bytes() == before


def test_a_file_of_records_is_complete_or_unchanged(tmp_path, run_report, monkeypatch):
    out = write_records(tmp_path / "toy.jsonl", [run_record()])
    before = out.read_bytes()
    run = write_run(tmp_path / "run", "composite")

    def fail(source, target):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    assert_is_one_line(run_report("collect", run, "--out", out), "the disk is full")
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "toy.jsonl"]


@pytest.mark.parametrize("setting", ["corpus", "size", "kernel_size", "attention_layer", "beyond"])
def test_a_run_of_the_same_name_with_another_setting_does_not_replace_a_record(tmp_path, setting):
    out = tmp_path / "toy.jsonl"
    record.add_records(out, [run_record(), run_record("fixed")])
    record.add_records(out, [run_record(loss=1.0, **{setting: 3})])
    assert len(record.read_run_records(out)) == 3
    record.add_records(out, [run_record(loss=1.5, **{setting: 3}, steps=80)])
    assert len(record.read_run_records(out)) == 3


def test_a_file_of_records_is_read_and_written_under_a_lock(tmp_path):
    """Otherwise two processes could read the same lines, and the later one would win."""
    out = tmp_path / "toy.jsonl"
    record.add_records(out, [run_record()])

    def read(path):
        with pytest.raises(InUse), lock(tmp_path / "toy.jsonl.lock", "toy.jsonl"):
            pass
        return record.read_run_records(path)

    record.add_records(out, [run_record("fixed")], read)
    assert len(record.read_run_records(out)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["toy.jsonl"]


def test_a_run_that_is_named_twice_is_collected_once(tmp_path, run_report):
    run = write_run(tmp_path / "run")
    out = tmp_path / "toy.jsonl"
    assert run_report("collect", run, tmp_path / "." / "run", "--out", out).code == 0
    assert len(record.read_run_records(out)) == 1


def test_two_runs_of_one_name_are_refused(tmp_path, run_report):
    first = write_run(tmp_path / "a/run")
    second = write_run(tmp_path / "b/run")
    outcome = run_report("collect", first, second, "--out", tmp_path / "toy.jsonl")
    assert_is_one_line(outcome, "another run with this name")
    assert not (tmp_path / "toy.jsonl").exists()


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        json.dumps({**run_record(), "result": {"loss": 1.0}}),
        json.dumps({**run_record(), "glue": [{}]}),
        json.dumps({**run_record(), "pairs": {"blimp": [{}]}}),
        json.dumps({**run_record(), "pairs": []}),
        json.dumps(run_record(pairs={"blimp": pair_lines({("a", "a1"): 60.0})})).replace(
            '"accuracy": 60.0', '"accuracy": 61.0'
        ),
        json.dumps({**run_record(), "settings": {"variant": 3, "seed": 0}}),
        json.dumps(run_record(loss=math.nan)),
    ],
)
def test_a_damaged_line_of_a_file_of_records_is_named(line, tmp_path, run_report):
    out = write_records(tmp_path / "toy.jsonl", [run_record()])
    out.write_text(out.read_text() + line + "\n")
    run = write_run(tmp_path / "run", "composite")
    outcome = run_report("collect", run, "--out", out)
    assert_is_one_line(outcome, "toy.jsonl is damaged (line 2: ")


# --- Tables of runs -------------------------------------------------------------------------------


def test_a_cell_is_mean_and_standard_error_over_seeds(tmp_path):
    """Losses 1, 2, 6: mean 3, error sqrt(7 / 3). Accuracy: a tenth of them, in per cent."""
    records = [run_record("none", seed, loss) for seed, loss in enumerate((1.0, 2.0, 6.0))]
    lines = report.measure_table(records, (report.LOSS, report.ACCURACY))
    assert lines[0] == "| variant | parameters | held-out loss | accuracy (%) |"
    assert lines[2] == "| none | 12,345 | 3.000 +- 1.528 | 30.00 +- 15.28 |"
    assert lines[-1] == (
        "3 runs with the seeds 0, 1, 2; 40 steps of 8 pairs, float32; cpu (model), one thread, "
        "torch 2.13.0; 1.5 minutes of training per run; 2026-11-21."
    )


def test_a_cell_with_fewer_seeds_says_so_and_what_is_not_measured_is_empty():
    pairs = {"blimp": pair_lines({("a", "a1"): 60.0})}
    records = [run_record("none", seed, 2.0) for seed in (0, 1, 2)]
    records += [run_record("fixed", 0, 1.0, pairs=pairs), run_record("fixed", 1, 1.0)]
    _, _, none, fixed, *_ = report.measure_table(records, (report.LOSS, report.BLIMP))
    assert none == "| none | 12,345 | 2.000 +- 0.000 | |"
    assert fixed == "| fixed | 12,345 | 1.000 +- 0.000 (2 seeds) | 60.0 (1 seed) |"


def test_finetuning_seeds_are_averaged_before_the_error_over_pretraining_seeds():
    """CoLA 10 and 30 of one model, 40 of the other: 20 and 40, so 30 +- 10."""
    first = [glue_record("cola", 42, 10.0), glue_record("cola", 97, 30.0)]
    second = [glue_record("cola", 42, 40.0, constant_prediction=True)]
    records = [run_record("none", 0, glue=first), run_record("none", 1, glue=second)]
    lines = report.measure_table(records, (report.COLA, report.SST))
    assert lines[2] == "| none | 12,345 | 30.0 +- 10.0* | |"
    # the backslash: without it, Markdown would make a list of the line
    note = "in some of the runs, the model gave the same answer for all rows of a task"
    assert lines[-1] == f"\\* {note}"


def test_the_table_of_glue_is_that_of_glue_py():
    records = [run_record("none", 0, glue=[glue_record("cola", 42, 10.0)])]
    records += [run_record("none", 1, glue=[glue_record("cola", 42, 30.0)])]
    lines = report.glue_lines(records)
    assert lines[0] == "| variant | runs | seeds | CoLA |"
    assert lines[2] == "| none | 2 | 1 | 20.0+-10.0 |"


def test_accuracy_by_phenomenon_is_that_of_the_table_of_lab_pairs():
    """Phenomenon a: (60 + 70) / 2 and (64 + 70) / 2; all paradigms: 60 and 61."""
    records = [run_record("fixed", 0)]
    for seed, accuracy in ((0, 60), (1, 64)):
        accuracies = {("a", "a1"): accuracy, ("a", "a2"): 70, ("c", "c1"): 50 - seed}
        pairs = {"blimp": pair_lines(accuracies)}
        records.append(run_record("none", seed, pairs=pairs))
    lines = report.phenomena_table(records, "blimp")
    assert lines[0] == "| blimp, % (seeds) | none (2) |"
    assert lines[2:6] == [
        "| a | 66.0 +- 1.0 |",
        "| c | 49.5 +- 0.5 |",
        "| mean of 3 paradigms | 60.5 +- 0.5 |",
        "| mean of 3 paradigms, whole_word | 61.5 +- 0.5 |",
    ]
    lines = report.measure_table(records, (report.BLIMP, report.BLIMP_WORDS))
    assert lines[3] == "| none | 12,345 | 60.5 +- 0.5 | 61.5 +- 0.5 |"


def test_the_family_of_relative_positions_has_its_own_table_of_phenomena():
    records = []
    for variant, accuracy in (("none", 60), ("alibi", 70), ("fixed", 80)):
        pairs = {"blimp": pair_lines({("a", "a1"): accuracy})}
        records.append(run_record(variant, 0, pairs=pairs))

    lines = report.phenomena_table(records, "blimp")
    assert lines[0] == "| blimp, % (seeds) | none (1) | fixed (1) |"
    assert lines[2] == "| a | 60.0 | 80.0 |"

    lines = report.phenomena_table(records, "blimp", of_family=True)
    assert lines[0] == "| blimp, % (seeds) | alibi (1) |"
    assert lines[2] == "| a | 70.0 |"


def test_the_differences_of_the_family_are_those_to_absolute():
    """alibi - absolute: 3 - 1 and 5 - 2."""
    records = []
    for variant, losses in (("absolute", (1.0, 2.0)), ("alibi", (3.0, 5.0)), ("fixed", (4.0, 4.0))):
        for seed, loss in enumerate(losses):
            records.append(run_record(variant, seed, loss=loss))
    lines = report.differences_table(records, (report.LOSS,), report.FAMILY_COMPARISONS)
    assert len(lines) == 2 + len(report.FAMILY) + 2
    assert lines[2] == "| t5 - absolute | |"
    assert lines[3].startswith("| alibi - absolute | 2.500 +- 0.500 (p = ")


def test_every_variant_of_the_family_exists():
    assert set(report.FAMILY) <= set(VARIANTS)


def test_a_run_that_was_not_scored_on_all_paradigms_is_named():
    complete = {"blimp": pair_lines({("a", "a1"): 60, ("a", "a2"): 70})}
    unfinished = {"blimp": pair_lines({("a", "a1"): 90})}
    records = [run_record("none", 0, pairs=complete), run_record("none", 1, pairs=unfinished)]
    with pytest.raises(ValueError, match="none-seed1 has no result on a2 of blimp: score it again"):
        report.phenomena_table(records, "blimp")


def test_differences_on_minimal_pairs_have_the_interval_of_the_bootstrap():
    """Both runs are right in the same pairs, except ten. Each of the 100 pairs counts 0 or 100.

    The share of ten pairs of 100 has a standard error of 3, so the interval is about 10 +- 6. The
    differences of both seeds are equal.
    """
    records = []
    for variant, accuracy in (("none", 60), ("absolute", 70)):
        for seed in (0, 1):
            pairs = {"blimp": pair_lines({("a_b", "a1"): accuracy})}
            records.append(run_record(variant, seed, pairs=pairs))

    lines = report.differences_table(records, (report.BLIMP,), report.ORDER_COMPARISONS)
    start = "| absolute - none | 10.0 +- 0.0 (all differences are equal, 2 seeds), ["
    assert lines[2].startswith(start)
    low, high = lines[2].removeprefix(start).removesuffix("] |").split(", ")
    assert 3 <= float(low) <= 5
    assert 15 <= float(high) <= 17

    lines = report.phenomena_order_table(records, "blimp")
    assert lines[0] == "| phenomenon | absolute - none (2 seeds) |"
    assert lines[2:] == [
        f"| a_b | 10.0 [{low}, {high}], all differences are equal |",
        f"| mean of 1 paradigm | 10.0 [{low}, {high}], all differences are equal |",
        "",
        f"{report.PAIRED} {report.INTERVALS}",
    ]


def test_the_page_of_results_says_how_far_to_trust_an_interval():
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    assert COVERAGE in " ".join(text.split())


def test_none_has_only_ties_in_12_of_the_67_paradigms_of_blimp():
    """docs/results.md says so: both sentences have the same words, and `none` sees no order."""
    runs = record.read_run_records(ROOT / "results/english.jsonl")
    runs = [run for run in runs if run["settings"]["variant"] == "none"]
    assert len(runs) == 3
    for run in runs:
        ties = [line["scores"]["pll"]["ties"] for line in run["pairs"]["blimp"]]
        assert len(ties) == 67 and ties.count(1000) == 12


def test_the_tables_of_differences_say_how_many_p_values_there_are_and_what_one_seed_means():
    """Two seeds for absolute - none, one seed for fixed - absolute."""
    accuracies = {"none": (60, 61), "absolute": (70, 80), "fixed": (90,)}
    records = []
    for variant, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            pairs = {"blimp": pair_lines({("a_b", "a1"): accuracy, ("c", "c1"): accuracy + 1})}
            records.append(run_record(variant, seed, loss=seed + accuracy / 50, pairs=pairs))

    lines = report.differences_table(records, (report.LOSS, report.BLIMP), report.ORDER_COMPARISONS)
    note = "2 comparisons: without any true difference, about 0.1 would have p < 0.05."
    assert lines[-1] == f"{report.PAIRED} {report.INTERVALS} {note}"
    assert "seeds), [" in lines[2]
    assert "| 20.0 (one seed), [" in lines[3]
    assert lines[3].endswith("] (pairs only) |")

    lines = report.phenomena_order_table(records, "blimp")
    note = "3 comparisons: without any true difference, about 0.1 would have p < 0.05."
    assert lines[-1] == f"{report.PAIRED} {report.INTERVALS} {note}"
    _, name, first, second, _ = lines[2].split("|")
    assert name == " a_b "
    assert "], p = 0." in first
    assert second.endswith("] (pairs only) ")


def test_the_steps_of_the_order_are_paired_differences():
    """Losses of absolute - none: -1, -2, -3: mean -2, error 1 / sqrt(3), t = -2 sqrt(3)."""
    records = [run_record("none", seed, loss) for seed, loss in enumerate((5.0, 5.5, 6.0))]
    records += [run_record("absolute", seed, loss) for seed, loss in ((0, 4.0), (1, 3.5), (2, 3.0))]
    records += [run_record("fixed", 2, 2.5)]
    lines = report.differences_table(records, (report.LOSS, report.BLIMP), report.ORDER_COMPARISONS)
    t = 2 * math.sqrt(3)
    p = 1 - t / math.sqrt(2 + t * t)
    assert lines == [
        "| difference | held-out loss, lower is better | BLiMP (%) |",
        "|---|---|---|",
        f"| absolute - none | -2.000 +- 0.577 (p = {p:.2g}, 3 seeds) | |",
        "| fixed - absolute | -0.500 (one seed) | |",
        "| dynamic - fixed | | |",
        "| composite - dynamic | | |",
        "",
        f"{report.PAIRED} {report.INTERVALS}",
    ]


def test_a_table_of_differences_without_minimal_pairs_does_not_explain_intervals():
    records = [run_record("none", 0, 5.0), run_record("absolute", 0, 4.0)]
    lines = report.differences_table(records, (report.LOSS,), report.ORDER_COMPARISONS)
    assert lines[-1] == report.PAIRED


def test_runs_that_cannot_be_compared_are_refused():
    def refused(*records):
        with pytest.raises(ValueError) as error:
            report.measure_table(list(records), (report.LOSS,))
        return str(error.value)

    assert "differ in steps (40 and 80)" in refused(run_record(), run_record("fixed", steps=80))
    assert "both none with seed 0" in refused(run_record(), {**run_record(), "run": "again"})
    kernels = [run_record("fixed", seed, kernel_size=size) for seed, size in ((0, 17), (1, 9))]
    assert "differ in kernel_size (17 and 9)" in refused(*kernels)
    other = {"blimp": pair_lines({("a", "a1"): 60.0}, digest="other")}
    pairs = {"blimp": pair_lines({("a", "a1"): 60.0})}
    message = refused(run_record(pairs=pairs), run_record("fixed", pairs=other))
    assert "were not scored on the same pairs of blimp (a1)" in message
    assert "is empty" in refused()


def test_variants_may_have_settings_of_their_own():
    records = [run_record(), run_record("fixed", kernel_size=17)]
    assert len(report.measure_table(records, (report.LOSS,))) == 6


def test_batches_before_and_after_are_shown_side_by_side():
    before = run_record("lightconv", 0, glue=[glue_record("sst-2", 42, 33.34)])
    before["glue"].append(glue_record("sst-2", 97, 35.66))
    after = run_record("lightconv", 0, glue=[glue_record("sst-2", 97, 65.1)])
    after["glue"].append(glue_record("sst-2", 42, 65.2))
    lines = report.batches_table([before], [after])
    assert lines[2:] == [
        "| sst-2 | lightconv | 0 | 42, 97 | 33.3, 35.7 | 65.2, 65.1 |",
        "",
        "Measured on the toy tasks of an earlier version.",
    ]

    after["glue"][0]["settings"]["data"] = "other rows"
    with pytest.raises(ValueError, match="lightconv-seed0, sst-2, seed 97: the data is not"):
        report.batches_table([before], [after])
    with pytest.raises(ValueError, match="seed 42 has no random batches"):
        report.batches_table([before], [])


def glue_of_all_tasks(score):
    """Results of the eight tasks that the mean GLUE score is made of, all with one score."""
    records = []
    for task in ("cola", "sst-2", "mrpc", "sts-b", "qqp", "qnli", "rte"):
        records.append(glue_record(task, 1, score))
    both = {"dev_matched": {"score": score}, "dev_mismatched": {"score": score}}
    return [*records, glue_record("mnli", 1, score, scores=both)]


def test_fine_tuning_with_two_eps_is_compared_on_the_same_models():
    ours, released = [], []
    for seed, score in ((0, 60.0), (1, 70.0)):
        ours.append(run_record("convbert", seed, glue=glue_of_all_tasks(score)))
        released.append(run_record("convbert", seed, glue=glue_of_all_tasks(score - 1)))
    ours.append(run_record("none", 0))
    lines = report.adam_eps_table(ours, released)
    assert "| eps 1e-6 | 12,345 | 65.0 +- 5.0 |" in lines
    assert "| eps 1e-8 | 12,345 | 64.0 +- 5.0 |" in lines
    assert "| eps 1e-6 - eps 1e-8 | 1.0 +- 0.0 (all differences are equal, 2 seeds) |" in lines
    assert "none" not in "".join(lines)

    released[1]["glue"][0]["settings"]["data"] = "other rows"
    with pytest.raises(ValueError, match="convbert-seed1, cola, seed 1: the data is not"):
        report.adam_eps_table(ours, released)
    with pytest.raises(ValueError, match="convbert-seed0, cola, seed 1 has no result with our"):
        report.adam_eps_table([], released)


def test_runs_with_different_settings_have_a_row_each_and_what_was_not_measured_is_empty():
    scored = run_record(glue=[glue_record("sst-2", 42, 80.25)], lr=0.001)
    english = [run_record("absolute", 1, lr=0.001), run_record("fixed", lr=0.001)]
    tried = [scored, run_record(lr=0.002, steps=80)]
    header, _, *rows = report.settings_table(tried, english)
    assert header.endswith("| held-out loss | BLiMP (%) | CoLA | SST-2 |")
    assert [row.split(" | ")[2:5] for row in rows[:2]] == [
        ["0.001", "40", "0"],
        ["0.002", "80", "0"],
    ]
    assert len(rows) == 3 and rows[2].startswith("| absolute-seed1 |")
    assert rows[0].endswith("| | | 80.2 |")
    assert rows[1].endswith("| | | |")


def records_of_lengths():
    """As lab.lengths writes them: two seeds of alibi at three lengths, absolute up to its 128."""
    records = []
    for variant, seed, losses in (
        ("alibi", 0, {64: 4.0, 128: 3.0, 256: 3.5}),
        ("alibi", 1, {64: 6.0, 128: 5.0, 256: 5.7}),
        ("absolute", 0, {64: 4.25, 128: 4.0}),
    ):
        records.append(
            {
                "run": f"{variant}-seed{seed}",
                "settings": {"variant": variant, "seed": seed, "seq_len": 128},
                "made_by": {**MADE_BY, "date": f"2026-01-0{seed + 2}", "code": f"code {seed}"},
                "measured": {"lengths": [64, 128, 256], "scored": 1234, "dtype": "float32"},
                "losses": [[N, loss] for N, loss in losses.items()],
            }
        )
    return records


def test_losses_by_length_have_a_column_per_length_and_say_how_many_seeds_there_are():
    assert report.length_losses_table(records_of_lengths()) == [
        "| variant | 64 tokens | 128 tokens | 256 tokens |",
        "|---|---|---|---|",
        "| alibi | 5.000 +- 1.000 | 4.000 +- 1.000 | 4.600 +- 1.100 |",
        "| absolute | 4.250 (1 seed) | 4.000 (1 seed) | - |",
        "",
        "The same 1,234 tokens of one text for all lengths and runs: the errors cover the seeds, "
        "not the choice of the text; float32; cpu (model), one thread, torch 2.13.0; "
        "2026-01-02 to 2026-01-03; 2 versions of the code.",
    ]


def test_changes_from_the_length_of_the_training_are_those_of_each_run():
    assert report.length_changes_table(records_of_lengths()) == [
        "| variant | 256 - 128 |",
        "|---|---|",
        "| alibi | 0.600 +- 0.100 (p = 0.11, 2 seeds) |",
        "| absolute | - |",
        "",
        "Each run is compared with itself, on the same tokens of one text. p: paired t-test over "
        "seeds; it does not cover the choice of the text.",
    ]


def test_a_table_names_every_machine_the_dates_and_how_many_versions_of_the_code(tmp_path):
    run = write_run(tmp_path / "none-seed0")
    log = run / "log.jsonl"
    other = {**MADE_BY, "date": "2026-11-23", "device": "cuda (model)", "code": "beef"}
    lines = log.read_text(encoding="utf-8").splitlines()
    lines.insert(22, json.dumps({"step": 20, "made_by": other}))  # after the lines of step 20
    log.write_text("\n".join(lines), encoding="utf-8")
    kept = record.record_of_run(run)
    assert kept["continued"] == [other]
    assert report.conditions([kept]) == (
        "1 run with the seed 0; 40 steps of 8 pairs, float32; "
        "cpu (model), one thread, torch 2.13.0; cuda (model), one thread, torch 2.13.0; "
        "0.1 minutes of training per run; 2026-11-21 to 2026-11-23; 2 versions of the code."
    )


def test_the_machines_and_the_code_of_the_evaluations_are_named_too():
    pairs = {"blimp": pair_lines({("a", "a1"): 60})}
    pairs["blimp"][0]["made_by"] = {**MADE_BY, "date": "2026-11-24", "code": "beef"}
    glue = {**glue_record("cola", 42, 10.0), "made_by": {**MADE_BY, "device": "cuda (model)"}}
    text = report.conditions([run_record(glue=[glue], pairs=pairs)])
    assert "cpu (model), one thread, torch 2.13.0; cuda (model), one thread, torch 2.13.0" in text
    assert text.endswith("; 2026-11-21 to 2026-11-24; 2 versions of the code.")


def test_a_difference_on_glue_is_that_of_the_finetuning_seeds_that_both_have():
    """Seed 42 is in both: 40 - 10. The mean of none over its two seeds is 20."""
    first = [glue_record("cola", 42, 10.0), glue_record("cola", 97, 30.0)]
    second = [glue_record("cola", 42, 40.0)]
    records = [run_record("none", glue=first), run_record("absolute", glue=second)]
    lines = report.differences_table(records, (report.COLA,), report.ORDER_COMPARISONS)
    assert lines[2] == "| absolute - none | 30.0 (one seed) |"


def test_a_measurement_of_lengths_that_is_not_complete_is_said():
    records = records_of_lengths()
    records[0]["measured"]["lengths"] = [256]
    with pytest.raises(ValueError, match="the loss at 128 tokens, the training.s --seq_len, is"):
        report.length_changes_table(records)
    assert report.length_changes_table([]) == [report.NOT_MEASURED]
    assert report.length_losses_table([]) == [report.NOT_MEASURED]


@pytest.mark.parametrize("table", [report.length_losses_table, report.length_changes_table])
def test_losses_by_length_of_runs_with_other_steps_are_refused(table):
    records = records_of_lengths()
    records[0]["settings"]["steps"] = 7
    with pytest.raises(ValueError, match="steps"):
        table(records)


def test_a_file_of_other_records_is_not_said_to_be_repaired_by_deleting_its_lines(tmp_path):
    runs = tmp_path / "runs.jsonl"
    lengths = tmp_path / "lengths.jsonl"
    record.add_records(runs, [run_record()])
    record.add_records(lengths, records_of_lengths(), record.read_length_records)
    with pytest.raises(ValueError, match="if lab.lengths made it, delete the line"):
        record.read_length_records(runs)
    with pytest.raises(ValueError, match="if lab.report collect made it, delete the line"):
        record.read_run_records(lengths)


def test_the_table_of_the_first_command_has_a_row_per_run():
    lines = report.first_command_table([run_record("composite", loss=0.92)])
    machine = "cpu (model), one thread, torch 2.13.0"
    assert lines[2:] == [f"| {machine} | float32 | 1:30 | 1,000 | 0.920 | 9.2 % |"]


def test_the_summary_has_rows_for_what_was_measured():
    toy = [run_record("none", 0, 2.0), run_record("composite", 0, 1.0)]
    pairs = {"blimp": pair_lines({("a", "a1"): 60.0})}
    english = [run_record("fixed", 0, 5.0, steps=8000, pairs=pairs)]
    assert report.summary_table(toy, english)[2:] == [
        "| toy language, 40 steps: held-out loss | 2.000 | | | | 1.000 |",
        "| English, 8,000 steps: held-out loss | | | 5.000 | | |",
        "| English, 8,000 steps: BLiMP (%) | | | 60.0 | | |",
    ]


def test_the_summary_explains_the_marks_of_its_cells():
    glue = [glue_record("cola", 42, 0.0, constant_prediction=True)]
    lines = report.summary_table([run_record("fixed")], [run_record("fixed", glue=glue)])
    assert "| English, 40 steps: CoLA | | | 0.0* | | |" in lines
    # the backslash: without it, Markdown would make a list of the line
    assert lines[-2:] == ["", f"\\* {report.NOTES['*']}"]


def test_an_order_without_a_common_finetuning_seed_has_an_empty_cell():
    """The seeds of CoLA are the same, those of SST-2 are not."""
    records = []
    for variant, seed in (("none", 42), ("absolute", 97)):
        glue = [glue_record("cola", 42, 10.0), glue_record("sst-2", seed, 20.0)]
        records.append(run_record(variant, 0, glue=glue))
    lines = report.differences_table(records, (report.COLA, report.SST), report.ORDER_COMPARISONS)
    assert lines[2] == "| absolute - none | 0.0 (one seed) | |"

    # with SST-2 alone, nothing can be compared
    for run in records:
        del run["glue"][0]
    lines = report.differences_table(records, (report.LOSS, report.SST), report.ORDER_COMPARISONS)
    assert lines[2] == "| absolute - none | 0.000 (one seed) | |"


# --- Tables of benchmarks -------------------------------------------------------------------------


def test_memory_that_could_not_be_measured_is_a_question_mark():
    row = {"variant": "none", "full_ms": 1.0, "full_ratio": 1.5, "corpus_ratio": 2.5}
    row |= {"corpus_tokens_per_second": 5.0, "peak_mib": None}
    lines = report.steps_table({"rows": [row]})
    assert lines[2] == "| none | 1 ms | 1.50 | 5 tok/s | 2.50 | ? MiB |"

    row = {"N": 64, "variant": "none", "ms": 1.0, "gflop": 2.0}
    row |= {"kib": None, "model_peak_mib": None}
    lines = report.lengths_table({"rows": [row]})
    assert lines[2] == "| 64 | 1.0 ms, 2.0 GFLOP, ? MiB, ? MiB |"


def test_kib_are_shown_as_mib():
    row = {"N": 64, "variant": "none", "ms": 1.0, "gflop": 2.0}
    row |= {"kib": 3 * 1024, "model_peak_mib": 40.0}
    lines = report.lengths_table({"rows": [row]})
    assert lines[2] == "| 64 | 1.0 ms, 2.0 GFLOP, 3 MiB, 40 MiB |"


def test_processes_are_compared_by_the_mean_speed_of_equal_runs():
    """One process: 100 and 200 tokens/s. Two processes: 300."""
    records = []
    for processes, speed in ((1, 100.0), (1, 200.0), (2, 300.0)):
        run = run_record("none")
        run["made_by"] = {**MADE_BY, "processes": processes}
        run["result"]["tokens_per_second"] = speed
        records.append(run)
    lines = report.processes_table(records)
    assert lines[2:4] == ["| 1 | 1 | 100, 200 | 1.00 |", "| 2 | 1 | 300 | 2.00 |"]


def test_ways_of_making_batches_are_compared_with_padded_and_equal_pairs():
    rows = []
    for name, speed in (("padded", 100.0), ("equal-pairs", 250.0), ("equal-tokens", 200.0)):
        row = {"batches": name, "tokens_per_second": speed, "ratio": speed / 100}
        rows.append({**row, "filled": 81.6, "tokens_per_step": 1234.5, "deviation": 67.8})
    lines = report.padding_table({"settings": {"dtype": "bfloat16"}, "rows": rows})
    assert lines[0].endswith("| real tokens per step | standard deviation | positions filled |")
    assert lines[-1] == "| bfloat16 | equal-tokens | 200 | 2.00 | 0.80 | 1,234 | 68 | 82 % |"


@pytest.mark.parametrize("name", ["speed-steps", "speed-attention", "speed-lengths"])
def test_the_table_of_a_benchmark_has_a_row_for_each_thing_that_was_measured(name):
    """From the records of the repository."""
    (file,) = report.TABLES[name].files
    rows = json.loads((ROOT / "results" / file).read_text(encoding="utf-8"))["rows"]
    key = "variant" if name == "speed-steps" else "N"
    measured = list(dict.fromkeys(str(row[key]) for row in rows))
    lines = report.lines_of(name, ROOT / "results")
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == measured
    assert len({line.count(" |") for line in [lines[0], *lines[2:]]}) == 1


# --- Documents ------------------------------------------------------------------------------------

DOCUMENT = """# Title

before
<!-- table: toy-language -->
old | table
<!-- end -->
after <!-- end --> of a line\x0c
<!-- table: toy-order -->
<!-- end -->

last"""


def project(tmp_path, document=DOCUMENT):
    """A folder with README.md, docs/ and one file of records."""
    write_records(tmp_path / "results/toy.jsonl", [run_record()])
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_bytes(document.encode())
    (tmp_path / "README.md").write_bytes(b"no tables\n")
    return tmp_path


def test_write_changes_what_is_between_the_markers_and_nothing_else(
    tmp_path, run_report, monkeypatch
):
    monkeypatch.setattr(report, "ROOT", project(tmp_path))
    assert run_report("--write").out == f"{os.path.join('docs', 'a.md')} written\n"

    language = "\n".join(report.lines_of("toy-language", tmp_path / "results"))
    order = "\n".join(report.lines_of("toy-order", tmp_path / "results"))
    expected = DOCUMENT.replace("old | table", language)
    expected = expected.replace("toy-order -->", f"toy-order -->\n{order}")
    assert (tmp_path / "docs/a.md").read_bytes() == expected.encode()
    assert (tmp_path / "README.md").read_bytes() == b"no tables\n"

    # a second time there is nothing to do
    assert run_report("--write").out == "every table is up to date\n"
    assert (tmp_path / "docs/a.md").read_bytes() == expected.encode()


@pytest.mark.parametrize(
    "text, message",
    [
        ("<!-- table: toy-language -->\nx", "a.md: the table toy-language has no <!-- end -->"),
        ("<!-- end -->", "a.md: there is <!-- end --> without a table"),
        (
            "<!-- table: toy-language -->\n<!-- table: toy-order -->\n<!-- end -->",
            "is inside the table toy-language",
        ),
        ("<!-- table: toy-langage -->\n<!-- end -->", "there is no table 'toy-langage'"),
        ("<!-- table: english -->\n<!-- end -->", "english.jsonl is not there"),
    ],
)
def test_if_a_table_cannot_be_made_no_document_is_written(
    text, message, tmp_path, run_report, monkeypatch
):
    monkeypatch.setattr(report, "ROOT", project(tmp_path, DOCUMENT + "\n" + text))
    before = (tmp_path / "docs/a.md").read_bytes()
    (tmp_path / "README.md").write_text("<!-- table: toy-language -->\n<!-- end -->\n")
    assert_is_one_line(run_report("--write"), message)
    assert (tmp_path / "docs/a.md").read_bytes() == before
    assert len((tmp_path / "README.md").read_text().splitlines()) == 2


@pytest.mark.parametrize("path", report.documents_of(ROOT), ids=lambda path: path.name)
def test_the_tables_of_the_documents_are_those_that_the_program_prints(path):
    """If this fails: python -m lab.report --write."""
    text = path.read_text(encoding="utf-8")
    assert report.with_tables(text, ROOT / "results") == text


# --- The command line -----------------------------------------------------------------------------


def test_named_tables_are_printed_without_names_all(tmp_path, run_report, monkeypatch):
    monkeypatch.setattr(report, "ROOT", project(tmp_path))
    code, out, _ = run_report("toy-order", "toy-language")
    assert code == 0
    order = "\n".join(report.lines_of("toy-order", tmp_path / "results"))
    assert out.startswith(f"toy-order\n\n{order}\n\ntoy-language\n\n| variant")

    # tables without records are named, too
    code, out, _ = run_report()
    assert code == 0
    for name in report.TABLES:
        assert f"{name}\n\n" in out
    assert "english\n\n(no records yet: english.jsonl)\n" in out
    assert f"toy-phenomena\n\n{report.NOT_MEASURED}\n" in out


def test_every_error_of_the_user_gets_one_line(tmp_path, run_report, monkeypatch):
    monkeypatch.setattr(report, "ROOT", project(tmp_path))
    assert_is_one_line(run_report("toys"), "there is no table 'toys'", "toy-language")
    assert_is_one_line(run_report("english"), "english.jsonl is not there", "collect")
    assert_is_one_line(run_report("speed-steps"), "bench-steps-bf16.json is not there")

    steps = tmp_path / "results/bench-steps-bf16.json"
    for content in ("{", "[]", '{"rows": [{}]}', '{"rows": 3}'):
        steps.write_text(content)
        assert_is_one_line(run_report("speed-steps"), "bench-steps-bf16.json is damaged")
    (tmp_path / "results/toy.jsonl").write_text("")
    assert_is_one_line(run_report("toy-language"), "is empty")


def test_the_help_lists_every_form_of_the_command(capsys):
    with pytest.raises(SystemExit):
        report.parse_arguments(["--help"])
    usage = capsys.readouterr().out.partition("\n\n")[0]
    for form in ("[TABLE ...]", "--write", "collect RUN ... --out FILE"):
        assert form in usage


@pytest.mark.parametrize("arguments", [["--write", "english"], ["collect"], ["collect", "RUN"]])
def test_options_that_do_not_fit_are_refused(arguments, run_report):
    code, _, error = run_report(*arguments)
    assert code == 2
    assert ": error: " in error
