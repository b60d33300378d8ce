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
from support import tables
from support.files import sha256_of

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
    printed = re.sub(" +", " ", run_program(report.main, out).out)
    assert f"| fixed | 1 | {cells} | 60.0 | 15.0 |" in printed


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
        report.rows_of([first, other], [report.LOSS])


# --- The tables of the documents, computed again from the records in results/ --------------------

LOSS, PAIRS = report.LOSS, report.TOY_PAIRS
SCORE = report.glue_measure("toy score")
TOY = (LOSS, PAIRS, SCORE)
ENGLISH = (LOSS, report.BLIMP, *[report.glue_measure(task, task) for task in ("cola", "sst-2")])
LENGTHS = [report.length_measure(N) for N in (128, 512, 2048)]
ALL_TOY = ("toy", "plan-toy")
PLATEAU = ("dynamic", "absolute")
ORDER = ("none", "absolute", "fixed", "dynamic", "composite")
WITH_TEXT = ("dynamic", "composite", "rotary", "deberta")
WITHOUT_TEXT = ("fixed", "t5", "alibi", "fire")
LONG = ("none", "fixed", "dynamic", "alibi", "rotary", "dynamicconv")
RISING = ("none", *ORDER[2:], "t5", "alibi", "fire", "xl", "rotary", "deberta", "canon")
MEASURED = ("absolute", "dynamic", "composite", "composite-conv-qkv", "lightconv", "dynamicconv")


@cache
def records_of(*files):
    return [x for file in files for x in report.read_records(ROOT / f"results/{file}.jsonl")]


def json_of(name):
    return json.loads((ROOT / f"results/{name}.json").read_text("utf-8"))


def with_seeds(files, seeds):
    return [x for x in records_of(*files) if x["settings"]["seed"] in seeds]


def table(file, measures, variants=None, compared=None):
    """The rows of a table, without the numbers of runs. variants: if not all of the file."""
    records = records_of(file)
    if variants:
        records = tables.of_variants(records, variants)
    rows = report.rows_of(records, measures, compared)[1:]
    return [[variant, *cells] for variant, _, *cells in rows]


def means(records, variants, measure):
    return [np.mean(tables.values_of(records, variant, measure)) for variant in variants]


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


def plan(records, measures, comparisons, untested=()):
    """docs/plan.md: {(measure, comparison): the difference}, with p, corrected, if it is tested."""
    tables.check_comparable(records)
    found = {}
    for measure, (first, second) in itertools.product(measures, comparisons):
        values = [tables.values_of(records, variant, measure) for variant in (first, second)]
        found[measure, (first, second)] = tables.difference(*values)

    texts = {key: each.text(key[0].digits) for key, each in found.items()}
    tested = [key for key in found if key[1] not in untested]
    for key, p in zip(tested, holm([found[key].p for key in tested]), strict=True):
        texts[key] += f", p = {p:.2g}"
    return texts


def plan_text():
    """H1: a line per variant that looks at the text, a column per variant that does not."""
    comparisons = list(itertools.product(WITH_TEXT, WITHOUT_TEXT))
    texts = list(plan(with_seeds(ALL_TOY, range(3, 8)), [SCORE], comparisons).values())
    return [[name, *texts[4 * i : 4 * i + 4]] for i, name in enumerate(WITH_TEXT)]


def plan_order():
    """H2: all eight runs, and the five new ones alone. The last step is not tested."""
    steps = [(higher, lower) for lower, higher in itertools.pairwise(ORDER)]
    every, new = [
        plan(with_seeds(ALL_TOY, seeds), (PAIRS, SCORE), steps, untested=steps[-1:])
        for seeds in (range(8), range(3, 8))
    ]
    return [[f"{key[0].title}: {' - '.join(key[1])}", every[key], new[key]] for key in every]


def plan_plateau():
    records = with_seeds(("english", "plan-plateau"), range(4, 7))
    return [[" - ".join(PLATEAU), *plan(records, [LOSS], [PLATEAU]).values()]]


def plan_ends():
    """H4: the share of the rise from 128 to 2,048 tokens that goes away, and the mean losses."""
    records = records_of("plan-ends")
    losses = np.array([[loss for _, loss in x["losses"]] for x in records]).reshape(-1, 3, 6)
    rises = losses[:, :, -1] - losses[:, :, 1]  # (divisions, runs)
    removed = 100 - 100 * rises / rises[0]
    rows = []
    for x, shares, of_runs in zip(records[::3], removed, losses, strict=True):
        name = x["measured"]["divide_end_weights"] or "nothing"
        shares = ", ".join(f"{share:.1f}" for share in shares)
        rows.append([name, shares, *[f"{loss:.3f}" for loss in of_runs.mean(axis=0)]])
    return rows


def order_means():
    english = means(records_of("english"), ORDER, LOSS)
    rows = [["English: loss (3 runs)", *[f"{loss:.2f}" for loss in english]]]
    for measure in (PAIRS, SCORE):
        name = f"toy language: {measure.title} (8 runs)"
        toy = means(with_seeds(ALL_TOY, range(8)), ORDER, measure)
        rows.append([name, *[f"{mean:.1f}" for mean in toy]])
    return rows


def text_means():
    scores = means(with_seeds(ALL_TOY, range(3, 8)), WITH_TEXT + WITHOUT_TEXT, SCORE)
    return [[f"{score:.1f}" for score in scores]]


def rises():
    """docs/length.md: losses at 128 and 2,048 tokens, sorted by their difference."""
    short, _, long = [means(records_of("english-lengths"), RISING, N) for N in LENGTHS]
    rows = sorted((b - a, a, b, variant) for a, b, variant in zip(short, long, RISING, strict=True))
    return [[variant, f"{a:.2f}", f"{b:.2f}", f"{rise:.2f}"] for rise, a, b, variant in rows]


def all_runs():
    """The means of the toy language beside those of English."""
    toy = {variant: cells for variant, *cells in table("toy", TOY)}
    english = {variant: cells for variant, *cells in table("english", ENGLISH)}
    names = dict.fromkeys([*toy, *english])
    return [[name, *toy.get(name, [""] * 3), *english.get(name, [""] * 4)] for name in names]


def english_small():
    """Of seed 0 the losses on the way, of seed 1 the last one and BLiMP."""
    rows = {}
    for x in records_of("english-small"):
        cells = rows.setdefault(x["settings"]["variant"], [])
        losses = [f"{loss:.3f}" for step, loss, _ in x["curve"] if step % 500 == 0]
        cells += losses[-1:] if cells else losses
        if "pairs" in x:
            cells += [f"{accuracy:.1f}" for accuracy in report.BLIMP.values(x)]
    return [[variant, *cells] for variant, cells in rows.items()]


def of_test(title, digits, part, name):
    """A Measure of the test of a translation."""
    return tables.Measure(title, digits, lambda x: [x["test"][part][name]])


def translations(data, steps):
    """The runs on this data with so many steps."""
    settings = [(x, x["settings"]) for x in records_of("translation")]
    return [x for x, s in settings if s["data"].startswith(data) and s["steps"] == steps]


def translation():
    """Multi30k, without spans."""
    measures = [report.PARAMETERS, of_test("loss", 2, "val", "loss")]
    measures += [of_test(search, 1, "BLEU", search) for search in ("greedy", "beam")]
    rows = tables.table_rows(translations("multi30k", 1000), measures)[1:]
    ratios = {x["variant"]: f"{x['ratio']:.2f}" for x in json_of("bench-translation")["rows"]}
    return [[*row[:3], ratios[row[0]], *row[3:]] for row in rows]


def spans():
    """Of each variant, without and with spans, the runs with the best rate of seed 0."""
    measures = [of_test("exact", 1, "dev", "exact"), of_test("right", 1, "deep", "tokens")]
    groups = {}
    for x in translations("toy", 500):
        settings = x["settings"]
        groups.setdefault((settings["variant"], settings["pretrain"] is None), []).append(x)
    rows = {}
    for (variant, _), records in groups.items():
        first = [x for x in records if x["settings"]["seed"] == 0]
        rate = min(first, key=lambda x: x["test"]["dev"]["loss"])["settings"]["lr"]
        best = [x for x in records if x["settings"]["lr"] == rate]
        rows.setdefault(variant, []).extend(tables.table_rows(best, measures)[1][2:])
    return [[variant, *cells] for variant, cells in rows.items()]


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
        rows.append(
            [
                x["variant"] + (", compiled" if x["unit"] == "layer" else ""),
                f"{np.mean(x['ms']):.1f} ms",
                f"{x['gpu_ms']:.1f} ms",
                f"{x['operations']:,}",
                f"{np.mean(x['english_ms']):.1f} ms",
                f"{x['english_gpu_ms']:.1f} ms",
            ]
        )
    return rows


def units():
    rows = []
    for name in ("tiny-bf16", "tiny-fp32", "small-bf16"):
        row = [name.replace("-", ", ")]
        _, *compiled = json_of(f"bench-units-{name}")["rows"]  # the first is eager
        for x in compiled:
            row += [f"{x['full_ratio']:.2f}", f"{x['corpus_ratio']:.2f}"]
            row.append(f"{x['first_steps_s']:.0f} s")
        rows.append(row)
    return rows


TABLES = {
    "lesson": lambda: report.rows_of(records_of("lesson"), report.MEASURES[:4])[1:],
    "order-means": order_means,
    "text-means": text_means,
    "all-runs": all_runs,
    "english-small": english_small,
    "english-lengths": partial(table, "english-lengths", LENGTHS, LONG),
    "causal": partial(table, "causal", (LOSS, PAIRS)),
    "translation": translation,
    "spans": spans,
    "plan-text": plan_text,
    "plan-order": plan_order,
    "plan-plateau-test": plan_plateau,
    "plan-ends": plan_ends,
    "rises": rises,
    "convbert": partial(table, "convbert", TOY, compared=("convbert", "convbert-released")),
    "against-others": against_others,
    "steps": steps,
    "gpu-steps": gpu_steps,
    "units": units,
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
