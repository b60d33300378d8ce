"""lab/report.py: from runs to records and tables; the tables of the documents, from the records."""

import itertools
import json
import re
from functools import cache, partial

import numpy as np
import pytest

from conftest import ROOT, write
from lab import report
from lab.bench import LIBRARY, MODES
from support import tables
from support.commands import UserError
from support.files import sha256_of
from lab.pairs import read_data

README = (ROOT / "README.md").read_text("utf-8").replace("\n  ", " ").replace("\n", " ")
MADE_BY = {"device": "cpu", "torch": "2.13.0", "threads": 1, "commit": "c0"}


def glue_record(score, seed=42, model="m"):
    """A result of fine-tuning on CoLA."""
    settings = {"task": "cola", "seed": seed, "lr": 3e-4, "model": model, "start": None}
    settings["changed"] = []
    return {"result": {"score": score}, "settings": settings, "made_by": MADE_BY}


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
    report.write_records(out, [record])
    result = record["result"]
    cells = f"{result['parameters']:,} | {result['loss']:.3f} | {100 * result['accuracy']:.2f}"
    printed = re.sub(" +", " ", run_program(report.main, out).out)
    assert f"| fixed | 1 | {cells} | 60.0 | 15.0 |" in printed


def test_an_unfinished_run_is_refused_and_nothing_is_written(trained, tmp_path, refused):
    first = (trained / "log.jsonl").read_text().splitlines()[0]
    (trained / "log.jsonl").write_text(f'{first}\n{{"step": 1}}')
    assert "is not finished" in refused(report.main, trained, "--out", tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl").exists()


def test_runs_that_were_scored_on_other_pairs_are_in_no_table(trained):
    """Other settings: test_tables.py."""
    one = report.record_of_run(trained)
    other = {**one, "pairs": {"toy": {"b": [120.0, 200]}}}
    with pytest.raises(UserError, match="other parts of toy"):
        report.rows_of([one, other], [report.LOSS])


# --- The tables of the documents, computed again from the records in results/ --------------------

LOSS, PAIRS = report.LOSS, report.TOY_PAIRS
SCORE = report.glue_measure("toy score")
TOY = (LOSS, PAIRS, SCORE)
ENGLISH = (LOSS, report.BLIMP, *[report.glue_measure(task, task) for task in ("cola", "sst-2")])
LENGTHS = [report.length_measure(N) for N in (128, 512, 2048)]
ORDER = ("none", "absolute", "fixed", "dynamic", "composite")
STEPS = [(higher, lower) for lower, higher in itertools.pairwise(ORDER)]
RECIPES = {
    "`--steps 4500 --batch_size 128 --lr 0.003 --warmup_steps 400 --dropout 0.2` (default)": 4500,
    "`--steps 8000 --batch_size 256 --lr 0.005 --warmup_steps 2000 --dropout 0.3`": 8000,
}
WITH_TEXT = ("dynamic", "composite", "rotary", "deberta")
WITHOUT_TEXT = ("fixed", "t5", "alibi", "fire")
CONVOLUTIONS = ("absolute", "dynamic", "lightconv", "lightconv-hybrid", "dynamicconv")
CONVOLUTIONS += ("dynamicconv-hybrid", "dilated", "dilated-hybrid")
SMALL_STEPS = (500, 1000, 2000, 2500)
SMALL_SCHEDULES = {
    "english-small": "`--steps 2500 --lr 1e-3 --warmup_steps 250`",
    "english-25000": "`--steps 25000`",
}
RISING = ("none", *ORDER[2:], "t5", "alibi", "fire", "xl", "rotary", "deberta", "canon")
RISING += ("lightconv", "dynamicconv")


@cache
def records_of(*files):
    return [x for file in files for x in report.read_records(ROOT / f"results/{file}.jsonl")]


def json_of(name):
    return json.loads((ROOT / f"results/{name}.json").read_text("utf-8"))


def toy_runs(*seeds):
    """The runs on the toy language with seeds in this range."""
    records = records_of("toy", "plan-toy")
    return [x for x in records if x["settings"]["seed"] in range(*seeds)]


def means(records, variants, measure, digits=1):
    """The means of a measure: a text for each variant."""
    values = [np.mean(tables.values_of(records, variant, measure)) for variant in variants]
    return [f"{mean:.{digits}f}" for mean in values]


def rows_of(file, measures, variants=None, compared=None):
    """The rows of a table, without the numbers of runs. variants: if not all of the file."""
    records = records_of(file)
    if variants:
        records = tables.of_variants(records, variants)
    rows = report.rows_of(records, measures, compared)[1:]
    return [[variant, *cells] for variant, _, *cells in rows]


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
    """results/PLANS.md: rows of differences, with a p-value, corrected by Holm's method."""
    rows = [report.rows_of(records, measures, each)[-1] for each in comparisons]
    tests = [each for each in itertools.product(comparisons, measures) if each[0] not in untested]
    p_values = []
    for comparison, measure in tests:
        values = [tables.values_of(records, variant, measure) for variant in comparison]
        p_values.append(tables.difference(*values).p)
    for (comparison, measure), p in zip(tests, holm(p_values), strict=True):
        rows[comparisons.index(comparison)][2 + measures.index(measure)] += f", p = {p:.2g}"
    return rows


def plan_text():
    """H1: a line per variant that looks at the text, a column per variant that does not."""
    rows = plan(toy_runs(3, 8), [SCORE], list(itertools.product(WITH_TEXT, WITHOUT_TEXT)))
    cells = [row[-1] for row in rows]
    return [[name, *cells[4 * i : 4 * i + 4]] for i, name in enumerate(WITH_TEXT)]


def plan_order():
    """H2: all eight runs, and the five new ones alone. The last step is not tested."""
    every, new = [plan(toy_runs(*x), (PAIRS, SCORE), STEPS, STEPS[-1:]) for x in ((8,), (3, 8))]
    rows = []
    for column, measure in enumerate((PAIRS, SCORE), 2):
        for a, b in zip(every, new, strict=True):
            rows.append([f"{measure.title}: {a[0]}", a[column], b[column]])
    return rows


def plan_plateau():
    """H3: the runs of seeds 4 to 6."""
    records = [x for x in records_of("english", "plan-plateau") if 4 <= x["settings"]["seed"] < 7]
    [[name, _, cell]] = plan(records, [LOSS], [("dynamic", "absolute")])
    return [[name, cell]]


def english_steps():
    """docs/text.md: mean losses on the way to 8,000 steps on English."""
    rows = []
    for step in (1600, 2400, 4000, 6400, 8000):
        losses = {}
        for record in records_of("english"):
            curve = {done: loss for done, loss, _ in record["curve"]}
            losses.setdefault(record["settings"]["variant"], []).append(curve[step])
        means_of = [np.mean(losses[name]) for name in ("none", "absolute", "dynamic")]
        rows.append([f"{step:,}", *[f"{mean:.2f}" for mean in means_of]])
    return rows


def rates():
    """docs/text.md: losses on English by peak rate and warm-up, seed 3."""
    losses = {}
    for record in records_of("plan-plateau", "plan-rates"):
        settings = record["settings"]
        if settings["seed"] == 3:
            key = settings["lr"], settings["warmup_steps"], settings["variant"]
            losses[key] = f"{record['result']['loss']:.2f}"
    rows = []
    for lr, warmup, variant in sorted(losses):
        if variant == "absolute":
            pair = [losses[lr, warmup, name] for name in ("absolute", "dynamic")]
            rows.append([f"{lr:.0e}".replace("e-0", "e-"), str(warmup), *pair])
    return rows


def small_schedules():
    """docs/text.md: losses of BERT-small after two schedules, seed 0."""
    rows = []
    for name, schedule in SMALL_SCHEDULES.items():
        losses = {
            x["settings"]["variant"]: f"{x['result']['loss']:.2f}"
            for x in records_of(name)
            if x["settings"]["seed"] == 0
        }
        cells = [losses.get(variant, "-") for variant in ("absolute", "dynamic", "composite")]
        rows.append([schedule, *cells])
    return rows


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
        mean = np.delete(of_runs.mean(axis=0), 2)  # without 256 tokens
        rows.append([name, shares, *[f"{loss:.3f}" for loss in mean]])
    return rows


def order_toy():
    rows = [["held-out loss", *means(toy_runs(8), ORDER, LOSS, 2)]]
    return rows + [
        [measure.title, *means(toy_runs(8), ORDER, measure)] for measure in (PAIRS, SCORE)
    ]


def text_means():
    rows = []
    groups = (
        ("yes", WITH_TEXT),
        ("no", WITHOUT_TEXT),
        ("in q and k", ORDER[1:2]),
        ("-", ORDER[:1]),
    )
    for answer, variants in groups:
        for variant in variants:
            scores = tables.values_of(toy_runs(3, 8), variant, SCORE)
            each = ", ".join(f"{score:.0f}" for score in sorted(scores))
            rows.append([variant, answer, tables.mean_and_standard_error(scores, 1), each])
    return rows


def agreement():
    """Agreement over few and many tokens."""
    few = report.pairs_measure("", "toy", [f"distance_{n:02}" for n in range(1, 4)])
    many = report.pairs_measure("", "toy", [f"distance_{n:02}" for n in range(8, 13)])
    return rows_of("toy", (few, many), CONVOLUTIONS)


def rises():
    """Losses by length, sorted by the rise from 128 to 2,048 tokens."""
    rows = []
    for variant in RISING:
        values = [tables.values_of(records_of("english-lengths"), variant, N) for N in LENGTHS]
        short, middle, long = np.mean(values, axis=1)
        rows.append([variant, *[f"{x:z.2f}" for x in (short, middle, long, long - short)]])
    return sorted(rows, key=lambda row: float(row[-1]))


def test_the_rises_that_the_family_explains_are_those_of_the_records():
    """docs/family.md: the last cell of each row, in the order of the rises."""
    page = (ROOT / "docs/family.md").read_text("utf-8")
    table = page.split("| what is new beyond 128 tokens |")[1].split("\n\n")[0]
    printed = re.findall(r"^\| (\w+) \|.*\| ([\d.]+) \|$", table, flags=re.M)
    assert printed == [(variant, rise) for variant, *_, rise in rises()]


def english_small():
    """Of seed 0 the losses on the way, of seed 1 the last one and BLiMP."""
    rows = {}
    for x in records_of("english-small"):
        cells = rows.setdefault(x["settings"]["variant"], [])
        losses = [f"{loss:.3f}" for step, loss, _ in x["curve"] if step in SMALL_STEPS]
        cells += losses[-1:] if cells else losses
        if "pairs" in x:
            cells.append(f"{report.BLIMP.values(x)[0]:.1f}")
    return [[variant, *cells] for variant, cells in rows.items()]


def english_25000():
    """The losses on the way, BLiMP, and the scores of two tasks."""
    measures = (report.BLIMP, report.glue_measure("", "cola"), report.glue_measure("", "sst-2"))
    rows = []
    for x in records_of("english-25000"):
        losses = {step: f"{loss:.3f}" for step, loss, _ in x["curve"]}
        cells = [losses[step] for step in (2500, 5000, 7500, 15_000, 25_000)]
        cells += [f"{measure.values(x)[0]:.1f}" for measure in measures]
        rows.append([x["settings"]["variant"], *cells])
    return rows


def sst_rates():
    """SST-2 of BERT-small, seed 42: {variant: its scores with the rates 3e-4 and 1e-4}."""
    scores = {
        (x["settings"]["variant"], result["settings"]["lr"]): result["result"]["score"]
        for x in [*records_of("sst-rates"), *records_of("english-25000")]
        for result in x["glue"]
        if (result["settings"]["task"], result["settings"]["seed"]) == ("sst-2", 42)
    }
    return {name: [scores[name, lr] for lr in (3e-4, 1e-4)] for name in ("absolute", "composite")}


def cola_rates():
    """CoLA of BERT-small by the rate of fine-tuning, seed 42: the default's on a GPU."""
    scores = {}
    for x in [*records_of("cola-rates"), *records_of("english-25000")]:
        for result in x["glue"]:
            settings = result["settings"]
            if (settings["task"], settings["seed"]) == ("cola", 42):
                key = x["settings"]["variant"], settings["lr"]
                scores[key] = f"{result['result']['score']:.1f}"
    variants = ("absolute", "composite")
    return [[name, *[scores[name, lr] for lr in (3e-4, 1e-4, 3e-5)]] for name in variants]


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
        row.append(tables.mean_and_standard_error([x["val"]["loss"] for x in tests], 2))
        for search in ("greedy", "beam"):
            row.append(tables.mean_and_standard_error([x["BLEU"][search] for x in tests], 1))
        rows.append(row)
    return rows


def recipes():
    """docs/translation.md: BLEU of `absolute` in long runs, seed 0, without what is published."""
    rows = []
    for name, steps in RECIPES.items():
        [record] = translations("multi30k", steps)["absolute", False]
        rows.append([name, *[f"{record['test']['BLEU'][x]:.1f}" for x in ("greedy", "beam")]])
    return [
        *rows,
        ["published ([Revisit-MMT](https://github.com/LividWo/Revisit-MMT))", "", "41.0"],
    ]


def best_translations():
    """{variant: the test results without spans and with them, at the best rate of seed 0}."""
    found = {}
    for (variant, _), records in translations("toy", 500).items():
        first = [x for x in records if x["settings"]["seed"] == 0]
        rate = min(first, key=lambda x: x["test"]["dev"]["loss"])["settings"]["lr"]
        best = [x["test"] for x in records if x["settings"]["lr"] == rate]
        found.setdefault(variant, []).append(best)
    return found


def spans():
    """Of each variant, exact and right tokens, without and with spans."""
    rows = []
    for variant, (without, with_spans) in best_translations().items():
        cells = []
        for best in (without, with_spans):
            exact = tables.mean_and_standard_error([x["dev"]["exact"] for x in best], 1)
            right = tables.mean_and_standard_error([x["deep"]["tokens"] for x in best], 1)
            cells += [exact, right]
        rows.append([variant, *cells])
    return rows


def cpu_steps():
    """Whole steps on a CPU, in the newer of two measurements: full batches and English ones."""
    rows = {}
    for x in json_of("bench-cpu")[1]["rows"]:
        name = x["variant"].replace(LIBRARY, f"BERT of {LIBRARY}")
        rows.setdefault(name, []).append(f"{x['ratio']:.2f}")
    return [[name, *cells] for name, cells in rows.items()]


MODE_NAMES = {"compiled": "recorded and compiled"}


def gpu_steps():
    """Whole steps on a GPU in each mode: full batches and English ones."""
    rows = {}
    for x in json_of("bench-h100")["steps"]["rows"]:
        rows.setdefault((x["variant"], x["mode"]), {})[x["batches"]] = x
    lines = []
    for (variant, mode), batches in rows.items():
        name = [variant, MODE_NAMES.get(mode, mode)]
        if variant == LIBRARY:
            name = [f"BERT of {LIBRARY}", mode]
        full = batches["full"]
        cells = [f"{full['ms']:.1f} ms", f"{full['peak_mib'] / 1024:.1f} GiB", "-", "-"]
        if "text" in batches:
            text = batches["text"]
            cells[2:] = [f"{text['ms']:.1f} ms", f"{round(text['tokens_per_s'], -3):,}"]
        lines.append(name + cells)
    return lines


def gpu_work():
    """What a GPU computes in a step, in three modes."""
    profiles = {(x["variant"], x["mode"]): x for x in json_of("bench-h100")["profiles"]["rows"]}
    rows = []
    for variant, mode in itertools.product(("absolute", "composite"), MODES):
        x = profiles[variant, mode]
        name = MODE_NAMES.get(mode, mode)
        rows.append([variant, name, f"{x['operations']:,}", f"{x['gpu_ms']:.1f} ms"])
    return rows


def gpu_lengths():
    """Attention alone on a GPU, in two ways, in sequences of N tokens."""
    rows = {}
    for x in json_of("bench-h100")["lengths"]["rows"]:
        name = f"{x['B']} of {x['N']:,} tokens"
        rows.setdefault(name, []).append(f"{x['ms']:.1f} ms, {x['peak_mib']:,} MiB")
    return [[name, *cells] for name, cells in rows.items()]


def lengths():
    """Attention alone, in sequences of N tokens on a CPU."""
    return [
        [f"{x['B']} of {x['N']:,} tokens", f"{x['ms']:,.0f} ms", f"{x['peak_mib']:,} MiB"]
        for x in json_of("bench-lengths")["rows"]
    ]


def text_sizes():
    """The losses after the default number of steps on so much text."""
    rows = []
    for size in ("1", "10", "100"):
        names = f"english-{size}mb-"
        runs = [run for run in records_of("text-sizes") if run["run"].startswith(names)]
        rows.append([f"{size} MB", *means(runs, ("absolute", "dynamic"), LOSS, 2)])
    return rows


TABLES = {
    "kerple": partial(rows_of, "kerple", (LOSS,), ("alibi", "kerple", "fixed")),
    "mirror": partial(rows_of, "kerple", (LOSS,), ("kerple", "mirror", "fixed")),
    "lesson": lambda: report.rows_of(records_of("lesson"), report.MEASURES[:4])[1:],
    "order-toy": order_toy,
    "text-means": text_means,
    "all-english": partial(rows_of, "english", ENGLISH),
    "all-toy": partial(rows_of, "toy", TOY),
    "agreement": agreement,
    "english-small": english_small,
    "english-25000": english_25000,
    "cola-rates": cola_rates,
    "causal": partial(rows_of, "causal", (LOSS, PAIRS)),
    "translation": translation,
    "recipes": recipes,
    "spans": spans,
    "plan-text": plan_text,
    "plan-order": plan_order,
    "plan-plateau-test": plan_plateau,
    "plan-ends": plan_ends,
    "english-steps": english_steps,
    "rates": rates,
    "small-schedules": small_schedules,
    "text-sizes": text_sizes,
    "rises": rises,
    "convbert": partial(rows_of, "convbert", TOY, compared=("convbert", "convbert-released")),
    "cpu-steps": cpu_steps,
    "gpu-steps": gpu_steps,
    "gpu-work": gpu_work,
    "gpu-lengths": gpu_lengths,
    "lengths": lengths,
}


def test_the_tables_of_the_documents_are_those_of_the_records():
    """Every row of every table between <!-- table: name --> and <!-- end -->, to the character."""
    found = set()
    for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"), ROOT / "results/PLANS.md"):
        text = path.read_text("utf-8")
        for name, table in re.findall(r"<!-- table: (\S+) -->(.*?)<!-- end -->", text, re.DOTALL):
            lines = [line for line in table.splitlines() if line.startswith("| ")]
            _, *rows = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]
            assert rows and rows == TABLES[name](), name
            found.add(name)
    assert found == set(TABLES)


def test_the_first_experiment_says_what_kerple_has_learned():
    """docs/extend.md."""
    slopes = [x["learned"][each] for x in records_of("kerple") if "learned" in x for each in "ab"]
    assert 0.7 < np.min(slopes) < np.max(slopes) < 1.7
    page = (ROOT / "docs/extend.md").read_text("utf-8").replace("\n", " ")
    assert "all of them are still between 0.7 and 1.7" in page


def test_the_second_experiment_says_how_much_the_side_makes():
    """docs/extend.md."""
    variants = ("kerple", "mirror", "fixed")
    kerple, mirror, fixed = [
        np.mean(tables.values_of(records_of("kerple"), variant, LOSS)) for variant in variants
    ]
    page = (ROOT / "docs/extend.md").read_text("utf-8").replace("\n", " ")
    assert f"{mirror - fixed:.2f} of the {kerple - fixed:.2f} from `kerple` to `fixed`" in page


def test_the_picture_of_a_step_has_the_numbers_of_its_record():
    picture = (ROOT / "docs/step.svg").read_text("utf-8")
    rows = json_of("bench-h100")["profiles"]["rows"]
    for row in [row for row in rows if row["mode"] != "eager"]:
        kinds = row["longest"]
        products = sum(ms for ms, _, name in kinds if re.search("nvjet|cutlass|cublas", name))
        for number in (products, row["gpu_ms"] - products, row["gpu_ms"]):
            assert f">{number:.1f} ms<" in picture


def costs_of_training(log):
    """Seconds of a step, tokens per second, and [(step, seconds of compiling after it), ...]."""
    steps, tokens, seconds = (np.diff(column, prepend=0) for column in np.transpose(log))
    step = np.median(seconds / steps)  # most lines have no compiling in them
    extra = zip(np.cumsum(steps) - steps, seconds - step * steps, strict=True)
    compiling = [(first, more) for first, more in extra if more > 1]
    return step, np.median(tokens / seconds), compiling


def test_the_costs_of_a_pre_training_on_a_gpu_are_those_of_the_record():
    """docs/speed.md: steps, tokens and compiling of two runs on an H100."""
    page = (ROOT / "docs/speed.md").read_text("utf-8").replace("\n", " ")
    logs = {x["variant"]: x["log"] for x in json_of("bench-h100")["pretraining"]["rows"]}
    step, rate, compiling = costs_of_training(logs["composite"])
    seconds = sum(more for _, more in compiling)
    assert f"the GPU reads {rate / 1000:.0f},000 tokens of text a second" in page
    assert f"of which {seconds:.0f} s were compiling" in page
    assert f"A step takes {1000 * step:.1f} ms then" in page
    step, _, of_absolute = costs_of_training(logs["absolute"])
    assert f"at {1000 * step:.1f} ms a step" in page

    # the last shape, in no cache, comes after step 4,500
    [new] = [more for first, more in compiling if first == 4500]
    assert f"{new:.0f} s in `composite`" in page
    [new] = [more for first, more in of_absolute if first == 4500]
    known = sum(more for first, more in of_absolute if first < 4500)
    assert f"and {new:.0f} s in `absolute`" in page
    assert f"eleven shapes of `absolute` took {known:.0f} s together" in page


def test_the_ratios_of_steps_on_a_gpu_are_those_of_the_record():
    page = (ROOT / "docs/speed.md").read_text("utf-8").replace("\n", " ")
    bench = json_of("bench-h100")
    full = {(x["variant"], x["mode"]): x["ms"] for x in bench["steps"]["rows"][:8]}
    recorded = full[LIBRARY, "eager"] / full["absolute", "recorded"]
    compiled = full[LIBRARY, "compiled"] / full["absolute", "compiled"]
    first = (
        f"`absolute` is {recorded:.1f} times as fast as BERT of transformers when it is recorded"
    )
    assert first in page
    assert f"{compiled:.1f} times as fast when both are compiled" in page

    # q, k and v as three products or one
    ms = {(x["batches"], x["products"]): x["ms"] for x in bench["one_product"]["rows"]}
    assert f"{100 * (1 - ms['full', 'one'] / ms['full', 'three']):.0f} % faster" in page


def test_the_sentences_about_a_gpu_have_the_numbers_of_the_records():
    page = (ROOT / "docs/speed.md").read_text("utf-8").replace("\n", " ")
    wall = {x["variant"]: x["wall_s"] for x in json_of("bench-h100")["pretraining"]["rows"]}
    assert f": {wall['composite']} s with ten evaluations" in page
    assert f"`absolute` took {wall['absolute']} s" in page

    # attention without a bias, torch's own and ours: in 12 layers
    rows = json_of("bench-h200")["attention"]["rows"]
    ms = {x["way"]: x["ms"] for x in rows if x["N"] == 128}
    assert f"about {12 * (ms['plain'] - ms['fused plain']):.0f} of the 21 ms" in page

    # compiling all shapes beside 20 other programs
    seconds = {}
    for x in json_of("bench-h100")["compiling"]["rows"]:
        seconds[x["variant"]] = seconds.get(x["variant"], 0) + x["seconds"]
    assert f"took up to {max(seconds.values()) / 60:.0f} minutes" in page

    # on a CPU: a step of `absolute`, and two measurements
    first, second = [
        {(x["variant"], x["batches"]): x for x in record["rows"]} for record in json_of("bench-cpu")
    ]
    full, text = [second["absolute", batches]["ms"] for batches in ("full", "text")]
    assert f"({full:.0f} ms for full sequences, {text:.0f} ms for English)" in page
    apart = max(abs(first[name]["ratio"] - second[name]["ratio"]) for name in first)
    assert f"differed by up to {apart:.2f}" in page
    ratios = {}
    for rows in (first, second):
        for (variant, _), x in rows.items():
            ratios.setdefault(variant, []).append(100 * x["ratio"] - 100)
    more = ratios["dynamic"] + ratios["composite"]
    less = ratios["lightconv"] + ratios["dynamicconv"]
    assert f"cost {min(more):.0f} to {max(more):.0f} % more time than `absolute`" in page
    assert f"in place of attention {-max(less):.0f} to {-min(less):.0f} % less" in page
    theirs = [1 + x / 100 for x in ratios[LIBRARY]]
    assert f"takes {min(theirs):.1f} to {max(theirs):.1f} times as long" in page

    # on a CPU, with the logits of all tokens
    plain = {x["what"]: x["ratio"] for x in json_of("bench-others")[0]["rows"]}
    ours, theirs = f"{plain['ours, logits of all tokens']:.2f}", f"{plain['transformers']:.2f}"
    assert f"an older version of ours took {ours} times as long" in page
    assert f"transformers, with eager attention, {theirs} times" in page


def test_spans_lower_the_exact_translations_significantly_where_the_page_says_so():
    lower = []
    for variant, results in best_translations().items():
        without, with_spans = [[x["dev"]["exact"] for x in best] for best in results]
        difference = tables.difference(without, with_spans)
        assert difference.mean > 0
        if difference.low > 0:
            lower.append(f"`{variant}`")
    page = (ROOT / "docs/results.md").read_text("utf-8").replace("\n", " ")
    assert f"are lower**, in {' and '.join(lower)} significantly" in page


def test_the_sentences_about_25000_steps_have_the_numbers_of_the_record():
    page = (ROOT / "docs/results.md").read_text("utf-8").replace("\n", " ")
    runs = {x["settings"]["variant"]: x for x in records_of("english-25000")}
    curves = {name: {step: loss for step, loss, _ in x["curve"]} for name, x in runs.items()}
    early, late = [curves["absolute"][n] - curves["composite"][n] for n in (7500, 25_000)]
    blimp = {name: report.BLIMP.values(x)[0] for name, x in runs.items()}
    assert f"is {early:.2f} ahead after 7,500 steps, and {late:.2f} after 25,000" in page
    gaps = {n: loss - curves["composite"][n] for n, loss in curves["absolute"].items()}
    headline = f"ahead by {gaps[2500]:.2f} after 2,500 steps, by {gaps[15_000]:.2f} after 15,000"
    assert f"{headline} and still by {late:.2f} after 25,000" in page
    assert curves["composite"][17_500] < curves["absolute"][25_000] < curves["composite"][15_000]
    assert f"{blimp['composite'] - blimp['absolute']:.1f} points more of BLiMP" in page
    for run in runs.values():
        scores = [x["result"]["score"] for x in run["glue"] if x["settings"]["task"] == "sst-2"]
        assert f"{np.ptp(scores):.1f}" in page.split("On SST-2 two")[1][:60]
    assert f"`composite` is {gaps[2500]:.2f} ahead of `absolute`" in README
    assert f"and still {late:.2f} after 25,000" in README

    # a lower rate of fine-tuning, and the default's on a CPU
    [default] = [
        result["result"]["score"]
        for run in records_of("cola-rates")
        for result in run["glue"]
        if result["settings"]["lr"] == 3e-4
    ]
    assert f"on a CPU, `composite` had {default:.1f}" in page
    gains = [round(float(row[2]) - float(row[1])) for row in cola_rates()]
    text = (ROOT / "docs/text.md").read_text("utf-8").replace("\n", " ")
    assert f"better by {gains[0]} and {gains[1]} points" in text

    # the same for SST-2, with its rule of 3 points
    text = page.replace("\n", " ")
    sst = sst_rates()
    old, new = sst["absolute"]
    assert f"`absolute` has {new:.1f} in place of {old:.1f}" in text
    gains = [new - old]
    old, new = sst["composite"]
    assert f"`composite` {new:.1f} in place of {old:.1f}" in text
    assert f"`composite` has [{new:.1f}](" in text
    gains.append(new - old)
    assert min(gains) > 3
    plans = (ROOT / "results/PLANS.md").read_text("utf-8").replace("\n", " ")
    assert "for both models, by {:.1f} and {:.1f} points".format(*gains) in plans

    # schedules beyond the grid
    rows = {(rate, warmup): losses for rate, warmup, *losses in rates()}
    assert "worse for both ({} and {})".format(*rows["4e-3", "1500"]) in page
    pairs = zip(rows["2e-3", "3000"], rows["2e-3", "1500"], strict=True)
    for longer, shorter in pairs:
        assert f"({longer} in place of {shorter}" in page
    best = [
        min(
            x["result"]["loss"]
            for x in records_of("plan-plateau", "plan-rates")
            if (x["settings"]["variant"], x["settings"]["seed"]) == (variant, 3)
        )
        for variant in ("absolute", "dynamic")
    ]
    assert f"they are {best[0] - best[1]:.2f} apart" in page


def test_the_sentences_about_the_toy_language_have_the_numbers_of_the_records():
    page = (ROOT / "docs/results.md").read_text("utf-8").replace("\n", " ")
    losses = [tables.values_of(toy_runs(8), name, LOSS) for name in ("dynamic", "fixed")]
    assert f"is higher by {tables.difference(*losses).text(2)}." in page

    # of fixed, three runs do not learn MNLI, and give one answer in MRPC
    assert "In three runs of `fixed`, MNLI stays at 67 %, MRPC gets one answer" in page
    assert "is 72 to 74; the other two have 82 and 100 % in MNLI and score 88 and 97" in page
    mnli, mrpc, rte, wnli = [
        report.glue_measure(task, task) for task in ("mnli", "mrpc", "rte", "wnli")
    ]
    runs = [x for x in toy_runs(3, 8) if x["settings"]["variant"] == "fixed"]
    found = sorted((round(mnli.values(x)[0]), round(SCORE.values(x)[0])) for x in runs)
    assert found == [(67, 72), (67, 74), (67, 74), (82, 88), (100, 97)]
    for run in runs:
        assert constant_in(run, "mrpc") == (mnli.values(run)[0] < 70)

    # no run of t5 does, and then it answers all pairs of two tasks alike
    runs = [x for x in toy_runs(3, 8) if x["settings"]["variant"] == "t5"]
    assert max(round(mnli.values(x)[0]) for x in runs) == 67
    assert len(runs) == 5
    assert all(constant_in(run, task) for run in runs for task in ("mrpc", "rte"))

    # one run of dynamic does not learn MNLI either, and solves both; WNLI by the seed
    runs = [x for x in toy_runs(3, 8) if x["settings"]["variant"] == "dynamic"]
    [run] = [x for x in runs if round(mnli.values(x)[0]) == 67]
    assert mrpc.values(run)[0] == rte.values(run)[0] == 100
    scores = [wnli.values(x)[0] for x in runs]
    assert (round(min(scores)), max(scores), round(np.ptp(scores) / 9)) == (50, 100, 6)


def constant_in(run, task):
    """Whether a run gave one answer to all examples of a task."""
    [result] = [x["result"] for x in run["glue"] if x["settings"]["task"] == task]
    return result["constant_prediction"]


def test_the_sentences_about_convolutions_and_the_order_have_the_numbers_of_the_records():
    page = (ROOT / "docs/results.md").read_text("utf-8").replace("\n", " ")

    def minus(file, first, second, measure):
        values = [tables.values_of(records_of(file), name, measure) for name in (first, second)]
        return tables.difference(*values)

    # SST-2 on English: one step of the order, and convolutions behind dynamic
    sst, cola = [report.glue_measure(task, task) for task in ("sst-2", "cola")]
    found = {pair: minus("english", *pair, sst) for pair in STEPS}
    assert [pair for pair in STEPS if found[pair].low > 0] == [("fixed", "absolute")]
    assert f"`fixed` from `absolute` by {found['fixed', 'absolute'].text(1)}" in page
    assert all(minus("english", *pair, cola).low < 0 for pair in STEPS)
    behind = [minus("english", "dynamic", name, sst) for name in ("lightconv", "dynamicconv")]
    first, second = [x.text(1) for x in behind]
    assert f"`lightconv` by {first} and `dynamicconv` by {second}" in page

    # agreement over many tokens: what one layer of attention adds
    many = report.pairs_measure("", "toy", [f"distance_{n:02}" for n in range(8, 13)])
    names = ("lightconv", "dynamicconv", "dilated")
    gains = [minus("toy", f"{name}-hybrid", name, many) for name in names]
    assert [gain.low > 0 for gain in gains] == [True, True, False]
    right = [np.mean(tables.values_of(records_of("toy"), f"{x}-hybrid", many)) for x in names]
    assert f"raises the right verbs to {min(right):.0f} to {max(right):.0f} %" in page

    # left to right
    below = minus("causal", "none", "rotary", PAIRS)
    assert f"below `none` by {below.text(1)}" in page


def test_the_sentences_about_a_translation_have_the_numbers_of_the_records():
    page = (ROOT / "docs/translation.md").read_text("utf-8").replace("\n", " ")
    seconds = [x["ms"] / 1000 for x in json_of("bench-translation")["rows"]]
    assert f"[{min(seconds):.1f} to {max(seconds):.1f} seconds]" in page
    hours = {round(4500 * x / 3600) for x in seconds}
    assert hours == {2} and "about two hours on one CPU core: 4,500 steps" in page

    # the long run, and the published value
    [record] = translations("multi30k", 8000)["absolute", False]
    assert f"comes within {41.0 - record['test']['BLEU']['beam']:.1f} of it" in page

    # 1,000 steps on a GPU
    minutes = {}
    for (variant, _), records in translations("multi30k", 1000).items():
        minutes[variant] = [x["result"]["seconds"] / 60 for x in records]
    slow = minutes.pop("lightconv")
    assert [round(x) for x in sorted(slow)] == [2, 3]
    assert "about a minute" in page and "with `lightconv` two to three." in page
    assert {round(x) for x in itertools.chain(*minutes.values())} == {1}


def test_the_lesson_has_the_agreement_of_its_record():
    page = (ROOT / "docs/tour.md").read_text("utf-8").replace("\n", " ")
    names = [x.name for x in read_data("toy", None)[2] if x.phenomenon == "agreement"]
    measure = report.pairs_measure("", "toy", names)
    for variant in ("absolute", "dynamic", "composite", "fixed"):
        value = np.mean(tables.values_of(records_of("lesson"), variant, measure))
        assert re.search(rf"`{variant}` (has )?{value:.1f}", page)

    # after 2,000 steps
    for variant in ("absolute", "dynamic", "composite"):
        assert abs(np.mean(tables.values_of(toy_runs(8), variant, measure)) - 90) < 1
    assert "After 2,000 steps, `absolute`, `dynamic` and `composite` have about 90" in page
    fixed = tables.values_of(toy_runs(8), "fixed", measure)
    low, high = min(fixed), max(fixed)
    assert f"and `fixed` {np.mean(fixed):.0f} (from {low:.0f} to {high:.0f})" in page

    # the differences in the loss
    losses = {x: tables.values_of(records_of("lesson"), x, LOSS) for x in ("absolute", "fixed")}
    dynamic = tables.values_of(records_of("lesson"), "dynamic", LOSS)
    found = {x: tables.difference(values, dynamic) for x, values in losses.items()}
    low, high = f"{found['absolute'].low:.2f}", f"{found['absolute'].high:.2f}"
    assert f"(the 95 % interval is from {low} to {high})" in page
    for variant, words in (("absolute", "below `absolute`"), ("fixed", "below `fixed`")):
        assert f"{found[variant].mean:.2f} {words}" in page
    assert found["fixed"].text(2).split(" ", 1)[1] in page


def test_the_order_after_2000_steps_is_that_of_the_records():
    """docs/tour.md."""
    page = (ROOT / "docs/tour.md").read_text("utf-8").replace("\n", " ")
    losses = dict(zip(ORDER, means(toy_runs(8), ORDER, LOSS, 2), strict=True))
    assert sorted(ORDER, key=losses.get)[:3] == ["fixed", "composite", "dynamic"]
    assert f"`fixed` has the lowest loss of the five, {losses['fixed']}, before" in page
    assert f"`composite` with {losses['composite']} and `dynamic` with {losses['dynamic']}" in page
    assert f"{losses['fixed']} and {losses['dynamic']} (eight models of each)" in README


def test_the_findings_of_readme_have_the_numbers_of_the_records():
    losses = means(records_of("english"), ORDER, LOSS, 2)
    assert losses[3] == losses[4]
    numbers = (
        "From worst to best: `none` {}, `absolute` {}, `fixed` {}, `dynamic` and `composite` {}"
    )
    assert numbers.format(*losses) in README

    # the toy score, and the runs of fixed
    dynamic, fixed = means(toy_runs(3, 8), ("dynamic", "fixed"), SCORE, 0)
    assert f"`dynamic` has {dynamic} of 100 and `fixed` {fixed}" in README
    of_fixed = tables.values_of(toy_runs(3, 8), "fixed", SCORE)
    assert len(of_fixed) == 5
    assert f"single models of `fixed` have {min(of_fixed):.0f} to {max(of_fixed):.0f}" in README

    # long texts, and the repair
    [rise] = [row[-1] for row in rises() if row[0] == "fixed"]
    assert f"rises by {float(rise):.1f}" in README
    [shares] = [row[1] for row in plan_ends() if row[0] == "both"]
    assert {round(float(share)) for share in shares.split(", ")} == {97}
    assert "97 % of this rise" in README and "in three tiny models" in README


def test_the_share_of_text_in_batches_is_that_of_the_record():
    rows = [row for row in json_of("batches")["rows"] if row["text"] == "English"]
    page = (ROOT / "docs/speed.md").read_text("utf-8")
    for row in rows:
        assert f"one of {row['shapes']} widths, and {row['text_percent']:.0f} % is text" in page
