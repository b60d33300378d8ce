"""The claims of the papers in docs/results.md: numbers of records, verdicts by the plan's rules.

The rules are in results/PLANS.md, written before the runs that decide.
"""

import itertools
import json
import re
from functools import cache

import numpy as np
import pytest

from conftest import ROOT
from lab import report
from support import tables

ORDER = ("none", "absolute", "fixed", "dynamic", "composite")
TOY_PAIR_TASKS = ("mnli", "qnli", "qqp", "rte")

LOSS = report.LOSS
SST = report.glue_measure("SST-2", "sst-2")
COLA = report.glue_measure("CoLA", "cola")
BLEU = tables.Measure("BLEU", 1, lambda record: [record["test"]["BLEU"]["greedy"]])


def pair_tasks_of(record):
    """The mean of the toy tasks that compare two sentences."""
    results = record["glue"]
    scores = [x["result"]["score"] for x in results if x["settings"]["task"] in TOY_PAIR_TASKS]
    return [float(np.mean(scores))]


PAIR_TASKS = tables.Measure("pairs", 1, pair_tasks_of)


@cache
def records_of(name):
    return report.read_records(ROOT / f"results/{name}.jsonl")


def mean(records, variant, measure):
    return np.mean(tables.values_of(records, variant, measure))


def means(records, variants, measure, digits=1):
    """The means of a measure as text: "79.4, 79.5, 82.2"."""
    return ", ".join(f"{mean(records, variant, measure):.{digits}f}" for variant in variants)


# --- Rules ----------------------------------------------------------------------------------------


def verdict(agrees, disagrees):
    if agrees:
        return "agrees"
    return "disagrees" if disagrees else "open"


def verdict_of_few_seeds(agrees, disagrees, seeds):
    """With so few runs, agreement only means: no difference larger than the rule allows."""
    found = verdict(agrees, disagrees)
    number = "1 seed" if seeds == 1 else f"{seeds} seeds"
    return f"no difference seen ({number})" if found == "agrees" else found


def difference(records, first, second, measure):
    values = [tables.values_of(records, variant, measure) for variant in (first, second)]
    return tables.difference(*values)


def side(difference):
    """On which side of 0 the whole 95 % interval is: 1 above, -1 below, 0 if it contains 0."""
    if difference.low > 0:
        return 1
    return -1 if difference.high < 0 else 0


def test_an_interval_without_noise_decides_nothing():
    assert side(tables.difference([2.0, 2.1], [1.0, 1.1])) == 1
    assert side(tables.difference([1.0, 1.1], [2.0, 2.1])) == -1
    assert side(tables.difference([1.0, 1.1], [1.05, 1.1])) == 0
    assert side(tables.difference([2.0], [1.0, 1.1])) == 0


def order_of(records, measure, better):
    """better: 1 if a higher value is better, -1 if a lower one is."""
    sides = []
    for lower, higher in itertools.pairwise(ORDER):
        sides.append(better * side(difference(records, higher, lower, measure)))
    *steps, last = sides
    return verdict(all(each == 1 for each in steps) and last != -1, -1 in sides)


# --- The claims: what was found, and the verdict --------------------------------------------------


def chang_order():
    records = records_of("english")
    tasks = [order_of(records, measure, 1) for measure in (SST, COLA)]
    fine_tuning = verdict(tasks == ["agrees"] * 2, "disagrees" in tasks)
    found = f"loss {means(records, ORDER, LOSS, 2)}; SST-2 {means(records, ORDER, SST)}"
    found += f"; CoLA {means(records, ORDER, COLA)}"
    return found, f"loss: {order_of(records, LOSS, -1)}; fine-tuning: {fine_tuning}"


def chang_depthwise():
    records = records_of("english")
    found = difference(records, "depthwise", "absolute", SST)
    first, second = means(records, ("depthwise", "absolute"), SST).split(", ")
    beats = side(found)
    return (
        f"SST-2: {first} against {second}, difference {found.text(1)}",
        verdict(beats == 1, beats == -1),
    )


def multi30k():
    """The runs of 1,000 steps of 128 pairs."""
    runs = []
    for record in records_of("translation"):
        settings = record["settings"]
        if settings["data"].startswith("multi30k") and settings["steps"] == 1000:
            runs.append(record)
    return runs


@cache
def shaw_scores():
    """{(variant, K): (mean BLEU over its seeds, how many they are)} of the short Multi30k runs."""
    runs = {}
    for record in records_of("shaw"):
        settings = record["settings"]
        score = BLEU.values(record)[0]
        runs.setdefault((settings["variant"], settings["kernel_size"]), []).append(score)
    return {name: (float(np.mean(scores)), len(scores)) for name, scores in runs.items()}


def shaw_clipping():
    measured = {K // 2: score for (variant, K), score in shaw_scores().items() if variant == "shaw"}
    distances = sorted(measured)
    near = [measured[k][0] for k in distances if k >= 2]
    spread = max(near) - min(near)
    share = measured[0][0] / np.mean(near)
    enough = {2, 4, 64} <= {*distances}
    seeds = min(count for _, count in measured.values())
    same = verdict_of_few_seeds(enough and spread <= 1.5, spread > 3, seeds)
    half = verdict(share <= 0.6, share >= 0.75)
    scores = ", ".join(f"{measured[k][0]:.1f}" for k in distances)
    found = f"k = {', '.join(map(str, distances))}: {scores}"
    return found, f"k >= 2: {same}; k = 0: {half}"


def shaw_keys():
    measured = {
        "keys and values": shaw_scores()["shaw", 5],
        "keys": shaw_scores()["dynamic", 5],
        "values": shaw_scores()["shaw-values", 5],
        "neither": shaw_scores()["shaw", 1],
    }
    both, keys, values, _ = (score for score, _ in measured.values())
    seeds = min(count for _, count in measured.values())
    found = [f"{name} {score:.1f}" for name, (score, _) in measured.items()]
    agrees = keys >= both - 1 and values <= both
    return ", ".join(found), verdict_of_few_seeds(agrees, keys < both - 2, seeds)


def shaw_beats_absolute():
    found = difference(multi30k(), "shaw", "absolute", BLEU)
    first, second = means(multi30k(), ("shaw", "absolute"), BLEU).split(", ")
    text = f"`shaw` {first}, `absolute` {second}, difference {found.text(1)}"
    return text, verdict(side(found) == 1, side(found) == -1)


def wu_dynamic():
    found = difference(multi30k(), "dynamicconv", "absolute", BLEU)
    first, second = means(multi30k(), ("dynamicconv", "absolute"), BLEU).split(", ")
    rows = json.loads((ROOT / "results/bench-translation.json").read_text("utf-8"))["rows"]
    [time] = [row["ratio"] for row in rows if row["variant"] == "dynamicconv"]
    quality = verdict(found.low > -2, side(found) == -1)
    return (
        f"`dynamicconv` {first}, `absolute` {second}, difference {found.text(1)};"
        f" {time:.2f} of the time of a step",
        f"BLEU: {quality}; speed: {verdict(time <= 0.85, time >= 1)}",
    )


def tay_pretraining():
    texts = []
    gains = {}
    for variant in ("absolute", "lightconv", "dynamicconv"):
        untrained = tables.values_of(records_of("untrained"), variant, SST)
        if untrained:
            pretrained = mean(records_of("english"), variant, SST)
            gains[variant] = pretrained - np.mean(untrained)
            texts.append(f"`{variant}` {np.mean(untrained):.1f}, pre-trained {pretrained:.1f}")

    # without an untrained `absolute` there is nothing to compare with
    agrees = "absolute" in gains and len(gains) > 1 and min(gains.values()) >= 2
    disagrees = gains.get("absolute", 0) >= 2 and min(gains.values()) <= 0
    return f"SST-2: {'; '.join(texts)}", verdict(agrees, disagrees)


def tay_pairs():
    records = records_of("toy")
    texts = []
    for_each = []
    for variant in ("dilated", "dynamicconv"):
        hybrid = f"{variant}-hybrid"
        behind = difference(records, variant, "absolute", PAIR_TASKS)
        gap = mean(records, variant, SST) - mean(records, "absolute", SST)
        repair = difference(records, hybrid, variant, PAIR_TASKS)
        for_each.append(
            verdict(
                side(behind) == -1 and behind.mean < gap and side(repair) == 1,
                side(behind) == 1 or side(repair) == -1,
            )
        )
        alone, repaired = means(records, (variant, hybrid), PAIR_TASKS).split(", ")
        of_alone, of_repaired = means(records, (variant, hybrid), SST).split(", ")
        text = f"`{variant}` {alone} (SST-2 {of_alone})"
        texts.append(f"{text}, with attention {repaired} ({of_repaired})")
    pairs, single = [means(records, ("absolute",), measure) for measure in (PAIR_TASKS, SST)]
    found = f"pairs: `absolute` {pairs} (SST-2 {single}), {', '.join(texts)}"
    return found, verdict(for_each == ["agrees"] * 2, "disagrees" in for_each)


CLAIMS = {
    1: chang_order,
    2: chang_depthwise,
    3: shaw_clipping,
    4: shaw_keys,
    5: shaw_beats_absolute,
    6: wu_dynamic,
    7: tay_pretraining,
    8: tay_pairs,
}


def test_what_is_left_without_positions_is_that_of_the_record():
    """With all runs, and with seed 0 alone, as it was planned."""
    page = (ROOT / "docs/results.md").read_text("utf-8").replace("\n ", "")
    near = [shaw_scores()["shaw", 2 * k + 1][0] for k in (2, 4, 16, 64)]
    share = shaw_scores()["shaw", 1][0] / np.mean(near)
    assert f"k = 0 has {share:.3f} of the mean" in page

    planned = {}
    for record in records_of("shaw"):
        settings = record["settings"]
        if (settings["variant"], settings["seed"]) == ("shaw", 0):
            planned[settings["kernel_size"]] = BLEU.values(record)[0]
    share = planned[1] / np.mean([planned[2 * k + 1] for k in (2, 4, 16, 64)])
    assert f"by the planned seed alone it would be {share:.3f}" in page


@pytest.mark.parametrize("number", CLAIMS)
def test_a_claim_has_the_numbers_of_its_records_and_the_verdict_of_its_rule(number):
    page = (ROOT / "docs/results.md").read_text("utf-8")
    [row] = re.findall(rf"^\| {number} \| (.*) \|$", page, flags=re.M)
    _, _, found, verdict = row.replace("<br>", " ").split(" | ")
    assert (found, verdict) == CLAIMS[number]()
