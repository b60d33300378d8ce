"""lab/report.py: from runs to records and tables; the tables of the documents, from the records."""

import itertools
import json
import re
from functools import cache, partial

import numpy as np
import pytest

import pretrain
from conftest import ROOT, words_of, write
from lab import report
from support.files import sha256_of
from support.statistics import mean_and_standard_error

SETTINGS = {"variant": "none", "corpus": "abc", "steps": 40, "seed": 0}
MADE_BY = {"device": "cpu", "torch": "2.13.0", "threads": 1, "commit": "c0"}


# --- Invented runs and records --------------------------------------------------------------------


def pair_entries(accuracies):
    """Entries of minimal pairs. accuracies: {paradigm: accuracy}."""
    return [
        {
            "paradigm": paradigm,
            "phenomenon": "p",
            "pairs": 200,
            "scores": {"pll": {"accuracy": accuracy, "ties": 0}},
        }
        for paradigm, accuracy in accuracies.items()
    ]


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
    options = "--variant fixed --steps 2 --seq_len 16 --out_dir"
    pretrain.main(words_of(*on_small_text, options, tmp_path))
    folder = tmp_path / "corpus-fixed"
    digest = sha256_of(folder / "model.pt")[:12]
    results = {
        "glue/cola-seed42.json": {**glue_record(10.0, model=digest), "log": []},
        "pairs/toy.json": {"model": digest, "paradigms": pair_entries({"a": 60.0})},
    }
    for name, result in results.items():
        write(folder / name, json.dumps(result))
    return folder


def test_the_record_of_a_run_has_what_pretraining_finetuning_and_pairs_found(
    trained, tmp_path, run_program
):
    out = tmp_path / "a.jsonl"
    assert run_program(report.main, trained, "--out", out).code == 0
    [record] = report.read_records(out)

    first, *_, last_steps, evaluation = report.read_records(trained / "log.jsonl")
    assert record["settings"] == first["settings"]
    assert record["result"]["loss"] == evaluation["held_out_loss"]
    assert record["result"]["accuracy"] == evaluation["held_out_accuracy"]
    assert record["result"]["tokens_per_second"] == last_steps["tokens"] / last_steps["seconds"]
    assert record["glue"][0]["result"]["score"] == 10.0
    assert record["pairs"] == {"toy": pair_entries({"a": 60.0})}

    # the program prints it, with the mean of two fine-tuning seeds
    record["glue"].append(glue_record(20.0, seed=43))
    report.write_records(out, [record])
    result = record["result"]
    cells = f"{result['parameters']:,} | {result['loss']:.3f} | {100 * result['accuracy']:.2f}"
    assert f"| fixed | {cells} | 60.0 | 15.0 |" in run_program(report.main, out).out


@pytest.mark.parametrize(
    "file, content",
    [
        ("log.jsonl", '{"settings": {"steps": 2}}\n{"step": 1}'),  # unfinished
        ("pairs/toy.json", '{"model": "before", "paradigms": []}'),  # of another model
    ],
)
def test_a_run_that_gives_no_record_is_refused_and_the_file_of_records_stays(
    file, content, trained, tmp_path, refused
):
    out = tmp_path / "a.jsonl"
    report.write_records(out, [run_record()])
    before = out.read_bytes()
    refused(report.main, trained, "--out", out)  # it is there already
    (trained / file).write_text(content)
    refused(report.main, trained, "--out", tmp_path / "b.jsonl")
    refused(report.main, tmp_path / "nowhere", "--out", tmp_path / "b.jsonl")
    assert out.read_bytes() == before
    assert not (tmp_path / "b.jsonl").exists()


# --- Tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        run_record("fixed", steps=80),
        run_record("none", 0),
        run_record("fixed", glue=[glue_record(10.0, lr=1e-3)]),
        run_record("fixed", pairs={"toy": pair_entries({"b": 60.0})}),
    ],
)
def test_runs_that_cannot_be_compared_are_refused_in_one_table(other):
    first = run_record(glue=[glue_record(10.0)], pairs={"toy": pair_entries({"a": 60.0})})
    with pytest.raises(report.UserError):
        report.table_rows([first, other], [report.LOSS])


# --- The tables of the documents, computed again from the records in results/ --------------------

ORDER = ("none", "absolute", "fixed", "dynamic", "composite")
ORDER_STEPS = [(higher, lower) for lower, higher in itertools.pairwise(ORDER)]
WITH_TEXT = ("dynamic", "composite", "rotary", "deberta")
WITHOUT_TEXT = ("fixed", "t5", "alibi", "fire")
TEXT_STEPS = list(itertools.product(WITH_TEXT, WITHOUT_TEXT))

LOSS, ACCURACY, PAIRS = report.LOSS, report.ACCURACY, report.TOY_PAIRS
SCORE = report.glue_measure("toy score")
TOY = (LOSS, PAIRS, SCORE)
ORDER_TESTS = list(itertools.product(ORDER_STEPS[:-1], TOY[1:]))
LENGTHS = [report.length_measure(N) for N in (128, 512, 2048)]
TASKS = [report.glue_measure(task, task) for task in ("cola", "sst-2")]


@cache
def records_of(*files):
    return [x for file in files for x in report.read_records(ROOT / f"results/{file}.jsonl")]


def json_of(name):
    return json.loads((ROOT / f"results/{name}.json").read_text("utf-8"))


def means(files, measures, variants=None):
    records = records_of(*files)
    if variants:
        records = report.of_variants(records, variants)
    return report.table_rows(records, measures)[1:]


def holm(p_values):
    """The p-values of a family of tests, corrected for their number by Holm's method (1979).

    If no test of the family has a true difference, the probability that any corrected p is below
    0.05 is at most 0.05. The smallest of m p-values is multiplied by m, the next one by m - 1, ...;
    none becomes smaller than the one before it, or larger than 1. Example:

        p            0.01   0.03   0.04
        multiplied   0.03   0.06   0.04
        corrected    0.03   0.06   0.06
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p_values)):
        factor = len(p_values) - rank
        largest = max(largest, min(factor * p_values[index], 1.0))
        corrected[index] = largest
    return corrected


def test_holm_s_correction_is_that_of_statsmodels():
    """statsmodels 0.15.0: multipletests(p, method="holm")."""
    p_values = [0.04, 0.01, 0.0002, 0.03, 0.9, 0.03]
    assert holm(p_values) == pytest.approx([0.12, 0.05, 0.0012, 0.12, 0.9, 0.12])


def plan(files, seeds, measures, comparisons, tests):
    """Differences; those of docs/plan.md have a p-value, corrected by Holm's method."""
    records = [x for x in records_of(*files) if x["settings"]["seed"] in seeds]
    report.check(records)
    rows = [report.difference_row(records, measures, each) for each in comparisons]
    p_values = holm([report.difference_of(records, *test).p for test in tests])
    for (comparison, measure), p in zip(tests, p_values, strict=True):
        rows[comparisons.index(comparison)][1 + measures.index(measure)] += f", p = {p:.2g}"
    return rows


def text_terms():
    """H1: a line per variant that looks at the text, a column per variant that does not."""
    tests = [(step, SCORE) for step in TEXT_STEPS]
    cells = [row[1] for row in plan(ALL_TOY, range(3, 8), [SCORE], TEXT_STEPS, tests)]
    return [[name, *cells[4 * i : 4 * i + 4]] for i, name in enumerate(WITH_TEXT)]


def order():
    """H2: all eight runs, and the five new ones alone."""
    tables = [
        plan(ALL_TOY, seeds, TOY, ORDER_STEPS, ORDER_TESTS) for seeds in (range(8), range(3, 8))
    ]
    return [
        [f"{measure.title}: {lines[0][0]}", *(line[column] for line in lines)]
        for column, measure in ((2, PAIRS), (3, SCORE))  # of TOY
        for lines in zip(*tables, strict=True)
    ]


def ends():
    """H4: the share of the rise from 128 to 2,048 tokens that goes away, and the mean losses."""
    records = records_of("plan-ends")
    losses = np.array([[loss for _, loss in x["losses"]] for x in records]).reshape(-1, 3, 6)
    rises = losses[:, :, -1] - losses[:, :, 1]  # (divisions, runs)
    numbers = [
        [", ".join(f"{x:.1f}" for x in share), *(f"{x:.3f}" for x in loss)]
        for share, loss in zip(100 - 100 * rises / rises[0], losses.mean(axis=1), strict=True)
    ]
    names = [x["measured"]["divide_end_weights"] or "nothing" for x in records[::3]]
    return [[name, *row] for name, row in zip(names, numbers, strict=True)]


def means_across(lines, variants):
    """A line for each (its name, files, seeds, measure), with the mean of each variant."""
    rows = []
    for name, files, seeds, measure in lines:
        records = [x for x in records_of(*files) if x["settings"]["seed"] in seeds]
        values = [np.mean(report.values_of(records, variant, measure)) for variant in variants]
        digits = 2 if measure is LOSS else 1
        rows.append([name, *(f"{x:.{digits}f}" for x in values)])
    return rows


def rises():
    """docs/length.md: losses at 128 and 2,048 tokens, sorted by their difference."""
    lines = []
    for variant in ("none", *ORDER[2:], "t5", "alibi", "fire", "xl", "rotary", "deberta", "canon"):
        values = [report.values_of(records_of("english-lengths"), variant, N) for N in LENGTHS]
        short, _, long = [np.mean(x) for x in values]
        lines.append((long - short, [variant, *(f"{x:.2f}" for x in (short, long, long - short))]))
    return [cells for _, cells in sorted(lines)]


def all_runs():
    """The means of the toy language beside those of English."""
    rows = {row[0]: row[1:] for row in means(["toy"], TOY)}
    english = {row[0]: row[1:] for row in means(["english"], (LOSS, report.BLIMP, *TASKS))}
    names = dict.fromkeys([*rows, *english])
    return [[name, *rows.get(name, [""] * 3), *english.get(name, [""] * 4)] for name in names]


def english_small():
    """Of seed 0 the losses on the way, of seed 1 the last one and BLiMP."""
    rows = {}
    for x in records_of("english-small"):
        cells = rows.setdefault(x["settings"]["variant"], [])
        losses = [f"{loss:.3f}" for step, loss, _ in x["curve"] if step % 500 == 0]
        cells += losses[-1:] if cells else losses
        if "pairs" in x:
            cells.append(f"{report.BLIMP.value(x):.1f}")
    return [[variant, *cells] for variant, cells in rows.items()]


def translations(data, steps):
    """{(variant, with spans): its runs} of the runs on this data with so many steps."""
    runs = {}
    for x in records_of("translation"):
        settings = x["settings"]
        if settings["data"].startswith(data) and settings["steps"] == steps:
            key = settings["variant"], settings["pretrain"] is not None
            runs.setdefault(key, []).append(x)
    return runs


def translation():
    """Multi30k, without spans."""
    ratios = {x["variant"]: x["ratio"] for x in json_of("bench-translation")["rows"]}
    rows = []
    for (variant, _), records in translations("multi30k", 1000).items():
        parameters = f"{records[0]['result']['parameters']:,}"
        row = [variant, str(len(records)), parameters, f"{ratios[variant]:.2f}"]
        tests = [x["test"] for x in records]
        row.append(mean_and_standard_error([x["val"]["loss"] for x in tests], 2))
        for search in ("greedy", "beam"):
            row.append(mean_and_standard_error([x["BLEU"][search] for x in tests], 1))
        rows.append(row)
    return rows


def spans():
    """Of each variant, without and with spans, the runs with the best rate of seed 0."""
    rows = {}
    for (variant, _), records in translations("toy", 500).items():
        first = [x for x in records if x["settings"]["seed"] == 0]
        rate = min(first, key=lambda x: x["test"]["dev"]["loss"])["settings"]["lr"]
        best = [x["test"] for x in records if x["settings"]["lr"] == rate]
        exact = mean_and_standard_error([x["dev"]["exact"] for x in best], 1)
        right = mean_and_standard_error([x["deep"]["tokens"] for x in best], 1)
        rows.setdefault(variant, []).extend([exact, right])
    return [[variant, *cells] for variant, cells in rows.items()]


def convbert():
    """docs/differences.md: convbert, its released version, and their difference."""
    records = records_of("convbert")
    pair = ("convbert", "convbert-released")
    return report.table_rows(records, TOY, pair)[1:]


def against_others():
    kept, plain = [x["rows"] for x in json_of("bench-others")]  # two allocators
    return [
        [a["what"], f"{a['ms']:,.0f} ms", f"{a['ratio']:.2f}", f"{b['ratio']:.2f}"]
        for a, b in zip(kept, plain, strict=True)
    ]


def steps():
    rows = {x["variant"]: x for x in json_of("bench-steps-bf16")["rows"]}
    return [
        [name, f"{rows[name]['full_ratio']:.2f}", f"{rows[name]['corpus_ratio']:.2f}"]
        for name in MEASURED
    ]


def gpu_steps():
    """Means of the time of a step, measured twice; of the GPU's time in it; and its operations."""
    rows = []
    for x in json_of("bench-gpu")["steps"]["rows"]:
        if x["unit"] == "eager":
            row = [x["variant"], f"{np.mean(x['ms']):.1f} ms", f"{x['gpu_ms']:.1f} ms"]
            row += [f"{x['operations']:,}", f"{np.mean(x['english_ms']):.1f} ms"]
            rows.append([*row, f"{x['english_gpu_ms']:.1f} ms"])
    return rows


def lengths():
    """Attention alone, in sequences of N tokens on a CPU."""
    return [
        [f"{x['B']} of {x['N']:,} tokens", f"{x['ms']:,.0f} ms", f"{x['peak_mib']:,} MiB"]
        for x in json_of("bench-lengths")["rows"]
    ]


ALL_TOY = ("toy", "plan-toy")
OLDER_AND_NEWER = ("english", "plan-plateau")
PLATEAU = ("dynamic", "absolute")
LONG = ("none", "fixed", "dynamic", "alibi", "rotary", "dynamicconv")
ORDER_MEANS = [
    ("English: loss (3 runs)", ["english"], range(3), LOSS),
    ("toy language: minimal pairs (%) (8 runs)", ALL_TOY, range(8), PAIRS),
    ("toy language: toy score (8 runs)", ALL_TOY, range(8), SCORE),
]
TEXT_MEANS = [("", ALL_TOY, range(3, 8), SCORE)]
MEASURED = ("absolute", "dynamic", "composite", "composite-conv-qkv", "lightconv", "dynamicconv")
TABLES = {
    "lesson": partial(means, ["lesson"], (report.PARAMETERS, LOSS, ACCURACY, PAIRS)),
    "order-means": partial(means_across, ORDER_MEANS, ORDER),
    "text-means": lambda: [means_across(TEXT_MEANS, WITH_TEXT + WITHOUT_TEXT)[0][1:]],
    "all-runs": all_runs,
    "english-small": english_small,
    "english-lengths": partial(means, ["english-lengths"], LENGTHS, LONG),
    "causal": partial(means, ["causal"], (LOSS, PAIRS)),
    "translation": translation,
    "spans": spans,
    "plan-text": text_terms,
    "plan-order": order,
    "plan-plateau-test": partial(
        plan, OLDER_AND_NEWER, range(4, 7), [LOSS], [PLATEAU], [(PLATEAU, LOSS)]
    ),
    "plan-ends": ends,
    "rises": rises,
    "convbert": convbert,
    "against-others": against_others,
    "steps": steps,
    "gpu-steps": gpu_steps,
    "lengths": lengths,
}


def test_the_tables_of_the_documents_are_those_of_the_records():
    """Every row of every table between <!-- table: name --> and <!-- end -->, to the character."""
    found = set()
    for path in (ROOT / "README.md", *ROOT.glob("docs/*.md")):
        text = path.read_text("utf-8")
        for name, table in re.findall(r"<!-- table: (\S+) -->(.*?)<!-- end -->", text, re.DOTALL):
            lines = [line for line in table.splitlines() if line.startswith("| ")]
            _, *rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]
            assert rows and rows == TABLES[name](), name
            found.add(name)
    assert found == set(TABLES)
