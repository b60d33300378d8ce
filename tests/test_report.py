"""lab/report.py: from finished runs to records, and from records to the tables of the documents."""

import json

import pytest

import pretrain
from lab import report
from support.files import sha256_of

SETTINGS = {"variant": "none", "corpus": "abc", "steps": 40, "seed": 0}
MADE_BY = {"device": "cpu", "torch": "2.13.0", "threads": 1, "commit": "c0"}


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
    result = {"score": score}
    settings = {"task": "cola", "seed": seed, "lr": lr, "model": model, "start": None}
    return {"result": result, "settings": {**settings, "changed": []}, "made_by": MADE_BY}


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


# --- The record of a run --------------------------------------------------------------------------


@pytest.fixture
def trained(on_small_text, tmp_path):
    """A run of two steps, with a result of glue.py and one of lab.pairs."""
    options = [*on_small_text, "--variant", "fixed", "--steps", 2]
    pretrain.main([str(word) for word in [*options, "--seq_len", 16, "--out_dir", tmp_path]])
    folder = tmp_path / "corpus-fixed"
    digest = sha256_of(folder / "model.pt")[:12]
    results = {
        "glue/cola-seed42.json": {**glue_record(10.0, model=digest), "log": []},
        "pairs/toy.json": {"model": digest, "paradigms": pair_entries({"a": 60.0})},
    }
    for name, result in results.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(json.dumps(result))
    return folder


def test_the_record_of_a_run_has_what_pretraining_finetuning_and_pairs_found(
    trained, tmp_path, run_program
):
    out = tmp_path / "a.jsonl"
    report.write_records(out, [run_record()])
    for _ in range(2):  # the second record takes the place of the first one
        assert run_program(report.main, "collect", trained, "--out", out).code == 0
    _, record = report.read_records(out)

    first, *_, last_steps, evaluation = report.read_records(trained / "log.jsonl")
    assert record["settings"] == first["settings"]
    assert record["result"]["loss"] == evaluation["held_out_loss"]
    assert record["result"]["accuracy"] == evaluation["held_out_accuracy"]
    assert record["result"]["tokens_per_second"] == last_steps["tokens"] / last_steps["seconds"]
    assert record["glue"][0]["result"]["score"] == 10.0
    assert record["pairs"] == {"toy": pair_entries({"a": 60.0})}

    # it can be put into a table, with the mean of two fine-tuning seeds
    record["glue"].append(glue_record(20.0, seed=43))
    table = report.measure_table([record], [report.LOSS, report.COLA, report.TOY_PAIRS])
    assert table[2] == f"| fixed | {evaluation['held_out_loss']:.3f} | 15.0 | 60.0 |"


@pytest.mark.parametrize("mistake", ["no run", "unfinished", "other model", "no table"])
def test_a_mistake_of_the_user_is_one_line_and_the_file_of_records_stays(
    mistake, trained, tmp_path, refused
):
    out = tmp_path / "a.jsonl"
    report.write_records(out, [run_record()])
    words = ["collect", trained, "--out", out]
    if mistake == "no run":
        words[1] = tmp_path / "nowhere"
    elif mistake == "no table":
        words = ["no-such-table"]
    elif mistake == "unfinished":
        log = (trained / "log.jsonl").read_text().splitlines()
        (trained / "log.jsonl").write_text("\n".join(log[:2]))
    else:
        (trained / "pairs/toy.json").write_text('{"model": "before", "paradigms": []}')
    before = out.read_bytes()
    assert refused(report.main, *words).startswith("error: ")
    assert out.read_bytes() == before


# --- Tables ---------------------------------------------------------------------------------------


def test_a_cell_is_mean_and_standard_error_over_seeds_and_says_if_seeds_are_missing():
    losses = [1.0, 2.0, 6.0]  # mean 3, standard error sqrt(7 / 3)
    records = [run_record(seed=seed, loss=loss) for seed, loss in enumerate(losses)]
    records += [run_record("fixed", 0, 1.0), run_record("fixed", 1, 2.0)]
    lines = report.measure_table(records, [report.LOSS])
    assert lines[2] == "| none | 3.000 +- 1.528 |"
    assert lines[3] == "| fixed | 1.500 +- 0.500 (2 seeds) |"


def test_the_tests_of_the_plan_are_corrected_and_other_differences_have_an_interval():
    """scipy's Welch test: p = 0.0705 and 0.63. Holm: the smaller one times 2."""
    losses = {"none": [13.0, 14.0, 12.0], "fixed": [11.0, 12.0, 10.0], "dynamic": [12, 15, 9.0]}
    records = []
    for variant, values in losses.items():
        records += [run_record(variant, 3 + seed, loss) for seed, loss in enumerate(values)]
    records.append(run_record("none", 0, 99.0))  # another seed
    steps = [("fixed", "none"), ("dynamic", "fixed"), ("dynamic", "none")]
    tests = [(step, report.LOSS) for step in steps[:2]]
    arguments = range(3, 6), [report.LOSS], steps, tests

    table = report.plan_table(records[:5], records[5:], *arguments)
    assert table[2] == "| fixed - none | -2.000 (-4.267 to 0.267), p = 0.14 |"
    assert table[4] == "| dynamic - none | -1.000 (-7.645 to 5.645) |"
    assert "(tests: 2). Differences with p < 0.05: 0 positive, 0 negative." in table[-1]


def test_the_noise_of_seeds_is_within_a_variant_and_that_of_processors_between_equal_runs():
    records, again = [
        [run_record(seed=seed, loss=loss) for seed, loss in enumerate(losses)]
        for losses in ([1.0, 3.0], [2.0, 6.0])
    ]
    # variances between seeds: 2 and 8, mean 5; between processors: 0.5 and 4.5, mean 2.5
    lines = report.noise_table(records, again, [report.LOSS], ["none"])
    assert lines[2] == "| none | 2.236 / 1.581 |"


def test_the_table_of_end_weights_has_the_share_of_the_rise_that_each_division_removes():
    """H4 of docs/plan.md. The rise from 128 to 2,048 tokens is 1 without a division."""
    records = []
    for ends, last_losses in ((None, [3.0, 3.0, 3.0]), ("both", [2.1, 2.2, 2.6])):
        for last in last_losses:
            losses = [[N, 2.0] for N in (64, 128, 256, 512, 1024)] + [[2048, last]]
            records.append({"measured": {"divide_end_weights": ends}, "losses": losses})
    lines = report.ends_table(records)
    assert lines[2].startswith("| nothing | 0.0 | 0.0 | 0.0 | 2.000 |")
    assert lines[3].startswith("| both | 90.0 | 80.0 | 40.0 | 2.000 |")
    assert lines[3].endswith("| 2.300 |")


@pytest.mark.parametrize(
    "other",
    [
        run_record("fixed", steps=80),
        run_record("fixed", corpus="def"),
        run_record("none", 1, kernel_size=9),
        run_record("none", 0),
        run_record("fixed", glue=[glue_record(10.0, lr=1e-3)]),
        run_record("fixed", glue=[glue_record(10.0), glue_record(10.0, seed=43)]),
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
