"""lab/report.py: from finished runs to records, and from records to the tables of the documents."""

import json
import math

import pytest

import pretrain
from lab import report
from support.files import load_checkpoint, sha256_of

SETTINGS = {"variant": "none", "corpus": "abc", "steps": 40, "batch_size": 8, "seed": 0}
MADE_BY = {"date": "2026-11-21", "device": "cpu", "torch": "2.13.0", "threads": 1, "code": "c0de"}


# --- Invented runs and records --------------------------------------------------------------------


def pair_entries(accuracies):
    """Entries of minimal pairs. accuracies: {paradigm: accuracy}."""
    entries = []
    for paradigm, accuracy in accuracies.items():
        scores = {"pll": {"accuracy": accuracy, "ties": 0}}
        entries.append({"paradigm": paradigm, "phenomenon": "p", "pairs": 200, "scores": scores})
    return entries


def glue_record(score, seed=42, lr=3e-4, model="m"):
    """A result of fine-tuning on CoLA."""
    result = {
        "score": score,
        "scores": {"dev": {"score": score}},
        "constant_prediction": score == 0,
        "partial": False,
    }
    settings = {"task": "cola", "seed": seed, "lr": lr, "model": model}
    return {"task": "cola", "seed": seed, "result": result, "settings": settings}


def run_record(variant="none", seed=0, loss=2.0, glue=(), pairs=None, **settings):
    """The record of a run."""
    return {
        "run": f"{variant}-seed{seed}",
        "settings": {**SETTINGS, "variant": variant, "seed": seed, **settings},
        "made_by": MADE_BY,
        "result": {"loss": loss},
        "glue": list(glue),
        "pairs": pairs or {},
    }


def write_lines(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")


@pytest.fixture(scope="module")
def trained(small_text, tmp_path_factory):
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    arguments = ["--corpus", small_text.file, "--cache_dir", small_text.cache, "--device", "cpu"]
    arguments += ["--variant", "fixed", "--steps", 2, "--batch_size", 4, "--seq_len", 16]
    pretrain.main([str(argument) for argument in [*arguments, "--out_dir", folder]])
    return folder


@pytest.fixture
def run_report(run_program):
    """run_report("collect", RUN, ...) runs the command line: (exit code, output, error)."""

    def call(*arguments):
        return run_program(report.main, *arguments)

    return call


# --- The record of a run --------------------------------------------------------------------------


def test_the_record_of_a_run_has_what_pretraining_finetuning_and_pairs_found(
    trained, tmp_path, run_report
):
    digest = sha256_of(trained / "model.pt")[:12]
    write_lines(trained / "glue/results.jsonl", [glue_record(10.0, model=digest)])
    entries = pair_entries({"a": 60.0})
    write_lines(trained / "pairs/toy.json", [{"model": digest, "paradigms": entries}])
    out = tmp_path / "a.jsonl"
    assert run_report("collect", trained, "--out", out).code == 0

    (kept,) = report.read_records(out)
    state = load_checkpoint(trained / "train_state.pt")
    assert kept["run"] == "run"
    assert kept["settings"] == state["settings"]
    for name in ("loss", "accuracy", "parameters"):
        assert kept["result"][name] == state["result"][name]
    assert kept["result"]["tokens_per_second"] == state["tokens"] / kept["result"]["seconds"]
    assert kept["curve"][-1] == [2, kept["result"]["loss"], kept["result"]["accuracy"]]
    assert kept["training"][-1][0] == 2
    assert [result["result"]["score"] for result in kept["glue"]] == [10.0]
    assert kept["pairs"] == {"toy": entries}


def test_a_run_is_collected_once_and_runs_are_sorted_by_variant_and_seed(
    trained, tmp_path, run_report
):
    out = tmp_path / "a.jsonl"
    others = [("composite", 0), ("fixed", 10), ("fixed", 2), ("none", 1)]
    write_lines(out, [run_record(variant, seed) for variant, seed in others])
    for _ in range(2):
        assert run_report("collect", trained, "--out", out).code == 0
    names = [record["run"] for record in report.read_records(out)]
    assert names == ["none-seed1", "run", "fixed-seed2", "fixed-seed10", "composite-seed0"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["collect", "{run}"],
        ["collect", "{run}/nothing", "--out", "{out}"],
        ["collect", "{stopped}", "--out", "{out}"],
        ["collect", "{run}", "{retrained}", "--out", "{out}"],
        ["no-such-table"],
    ],
)
def test_a_mistake_of_the_user_gets_one_line_and_the_file_of_records_stays(
    arguments, trained, tmp_path, run_report
):
    out = tmp_path / "a.jsonl"
    write_lines(out, [run_record()])
    before = out.read_bytes()
    folders = {name: tmp_path / name for name in ("stopped", "retrained")}
    for folder in folders.values():
        folder.mkdir()
        for name in ("config.json", "tokenizer.json", "model.pt", "log.jsonl"):
            (folder / name).write_bytes((trained / name).read_bytes())
    write_lines(folders["stopped"] / "log.jsonl", report.read_records(trained / "log.jsonl")[:-1])
    write_lines(folders["retrained"] / "pairs/toy.json", [{"model": "before", "paradigms": []}])

    words = [word.format(run=trained, out=out, **folders) for word in arguments]
    outcome = run_report(*words)
    assert outcome.code == 2
    assert outcome.error.startswith("lab.report: ")
    assert outcome.error.count("\n") == 1
    assert out.read_bytes() == before


# --- Tables ---------------------------------------------------------------------------------------


def test_a_cell_is_mean_and_standard_error_over_seeds_and_says_if_seeds_are_missing():
    losses = [1.0, 2.0, 6.0]  # mean 3, standard error sqrt(7 / 3)
    records = [run_record(seed=seed, loss=loss) for seed, loss in enumerate(losses)]
    records += [run_record("fixed", 0, 1.0), run_record("fixed", 1, 2.0)]
    lines = report.measure_table(records, [report.LOSS])
    assert lines[2] == "| none | 3.000 +- 1.528 |"
    assert lines[3] == "| fixed | 1.500 +- 0.500 (2 seeds) |"


def test_finetuning_seeds_are_averaged_before_the_error_over_pretraining_seeds():
    """10 and 30 are one value, 20; 24 is the other one. The 0 is a constant answer."""
    records = [
        run_record(seed=0, glue=[glue_record(10.0), glue_record(30.0, seed=43)]),
        run_record(seed=1, glue=[glue_record(48.0), glue_record(0.0, seed=43)]),
    ]
    lines = report.measure_table(records, [report.COLA])
    assert lines[2] == "| none | 22.0 +- 2.0* |"
    assert "the same answer for all rows" in lines[-1]


def test_minimal_pairs_are_the_mean_of_their_paradigms():
    records = [run_record(pairs={"toy": pair_entries({"a": 60.0, "b": 70.0})})]
    one = report.pairs_measure("a", "toy", "a")
    assert report.measure_table(records, [report.TOY_PAIRS, one])[2] == "| none | 65.0 | 60.0 |"


def test_a_difference_is_that_of_runs_with_the_same_seed():
    """Differences -1, -2, -3: mean -2, standard error 1 / sqrt(3), t = 2 sqrt(3)."""
    t = 2 * math.sqrt(3)
    p = 1 - t / math.sqrt(2 + t * t)  # two degrees of freedom
    records = [run_record("none", seed, loss) for seed, loss in enumerate([11.0, 22.0, 13.0])]
    records += [run_record("fixed", seed, loss) for seed, loss in enumerate([10.0, 20.0, 10.0])]
    lines = report.differences_table(records, [report.LOSS], [("fixed", "none")])
    assert lines[2] == f"| fixed - none | -2.000 +- 0.577 (p = {p:.2g}, 3 seeds) |"


@pytest.mark.parametrize(
    "other",
    [
        run_record("fixed", steps=80),
        run_record("fixed", corpus="def"),
        run_record("none", 1, kernel_size=9),
        run_record("none", 0),
        run_record("fixed", glue=[glue_record(10.0, lr=1e-3)]),
        run_record("fixed", pairs={"toy": pair_entries({"b": 60.0})}),
    ],
)
def test_runs_that_cannot_be_compared_are_refused_in_one_table(other):
    first = run_record(glue=[glue_record(10.0)], pairs={"toy": pair_entries({"a": 60.0})})
    with pytest.raises(report.UserError):
        report.measure_table([first, other], [report.LOSS])


@pytest.mark.parametrize("path", report.DOCUMENTS, ids=lambda path: path.name)
def test_the_tables_of_a_document_are_those_that_the_program_makes(path):
    text = path.read_text(encoding="utf-8")
    assert report.with_tables(text) == text


def test_every_table_is_in_a_document():
    text = "".join(path.read_text(encoding="utf-8") for path in report.DOCUMENTS)
    for name in report.TABLES:
        assert text.count(f"<!-- table: {name} -->\n") == 1
