"""Tables of runs: means and errors over seeds, differences, GLUE's marks, the paper's rows.

The statistics equal published values.
"""

import math

import numpy as np
import pytest

import glue
from conftest import ROOT, rows_of
from support.commands import UserError
from support.glue_files import FORMATS
from support.tables import (
    critical_t,
    difference,
    differences_note,
    glue_rows,
    holm,
    mean_and_standard_error,
    two_sided_p,
)

# --- Statistics -----------------------------------------------------------------------------------

# two-sided critical values from printed tables: t, n, p
PRINTED = """
    12.706 1      0.05
    4.303  2      0.05
    9.925  2      0.01
    2.776  4      0.05
    2.262  9      0.05
    3.250  9      0.01
    1.960  100000 0.05
"""


@pytest.mark.parametrize("t, n, p", rows_of(PRINTED))
def test_p_values_are_those_of_printed_tables(t, n, p):
    t, n, p = float(t), int(n), float(p)
    assert two_sided_p(t, n) == pytest.approx(p, rel=5e-4)
    assert two_sided_p(-t, n) == pytest.approx(p, rel=5e-4)
    assert critical_t(n, p) == pytest.approx(t, rel=5e-4)


@pytest.mark.parametrize(
    ("first", "second", "mean", "low", "high", "p"),
    [
        # scipy 1.17.1: ttest_ind(first, second, equal_var=False), and its confidence_interval()
        (
            [27.5, 21.0, 19.0, 23.6, 17.0],
            [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8],
            *(-2.0942857, -7.0862815, 2.8977100, 0.33880895),
        ),
        ([1.0, 2.0, 6.0], [1.0, 1.5], 1.75, -4.5999164, 8.0999164, 0.37052072),
        ([3.0, 3.0, 3.0], [10.0, 20.0, 60.0, 11.0], -22.25, -59.801406, 15.301406, 0.15581993),
    ],
)
def test_a_difference_is_that_of_welch_s_test_by_scipy(first, second, mean, low, high, p):
    """Of runs that are not paired: their numbers and variances differ."""
    found = difference(first, second)
    assert (found.mean, found.low, found.high) == pytest.approx((mean, low, high), rel=1e-6)
    assert found.p == pytest.approx(p, rel=1e-6)


@pytest.mark.parametrize("second", [[1.5], [1.5, 1.5]])
def test_without_known_noise_a_difference_has_neither_interval_nor_p(second):
    """One value on a side, or no variance on both sides."""
    found = difference([2.0, 2.0, 2.0], second)
    assert math.isnan(found.p)
    assert found.text(1) == "0.5 (no interval)"


def test_holm_s_correction_is_that_of_statsmodels():
    """statsmodels 0.15.0: multipletests(p, method="holm")."""
    p_values = [0.04, 0.01, 0.0002, 0.03, 0.9, 0.03]
    assert holm(p_values) == pytest.approx([0.12, 0.05, 0.0012, 0.12, 0.9, 0.12])
    assert holm([]) == []


def test_mean_and_standard_error():
    assert mean_and_standard_error([1.0, 2.0, 6.0]) == "3.000 +- 1.528"  # sqrt(7 / 3)
    assert mean_and_standard_error([1.5]) == "1.500"


def test_p_of_two_degrees_of_freedom_is_the_closed_form():
    for t in (0.0, 0.1, 1.0, 3.0, 50.0):
        assert two_sided_p(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-9)


# --- Made-up results ------------------------------------------------------------------------------

# {task: the score of each seed}
ALL = dict.fromkeys(glue.TASKS, [80, 80, 80])
ALL |= {"cola": [10, 20, 30], "mnli": [70, 70, 70], "rte": [60, 60, 60], "wnli": [50, 50, 50]}


def made_record(task, seed, score):
    """A result. The second development split of MNLI is better by 1."""
    splits = [split for split in FORMATS[task].splits if split.startswith("dev")]
    scores = {split: {"score": score + index} for index, split in enumerate(splits)}
    result = {"scores": scores, "constant_prediction": False}
    settings = {"task": task, "seed": seed, "epochs": 3, "start": glue.TASKS[task].start}
    settings |= {"data": "GLUE 0123", "changed": []}
    return {"result": result, "settings": settings, "code": {"attention.py": "a", "glue.py": "g"}}


def made_run(variant, seed, scores_by_task, **settings):
    """A run; scores_by_task: {task: [score of each fine-tuning seed]}."""
    records = []
    for task, scores in scores_by_task.items():
        for finetuning_seed, score in zip(glue.SEEDS, scores, strict=False):
            records.append(made_record(task, finetuning_seed, score))
    settings = {"variant": variant, "steps": 300, **settings, "seed": seed}
    code = {"attention.py": "a"}
    return {"run": f"{variant}-seed{seed}", "settings": settings, "glue": records, "code": code}


def cells_of(runs):
    """The table: {first cell of a row: {column: text}}."""
    (_, *columns), *rows = glue_rows(runs)
    return {first: dict(zip(columns, cells, strict=True)) for first, *cells in rows}


# --- Two kinds of seeds ---------------------------------------------------------------------------


def test_one_model_has_means_and_standard_errors_over_its_fine_tuning_seeds():
    """CoLA 10, 20, 30: 20 +- 10 / sqrt(3).

    GLUE: (CoLA + 70 + 71 + 4 x 80 + 60 + 80) / 9 for each seed. WNLI is not part of it.
    """
    row = cells_of([made_run("none", 0, ALL)])["none"]
    assert row.pop("runs") == "1^ (3 seeds)"
    means = "20.0 70.0 71.0 80.0 80.0 80.0 60.0 80.0 80.0 69.0 50.0"
    errors = "5.8 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.6 0.0"
    cells = zip(means.split(), errors.split(), strict=True)
    assert [*row.values()] == [f"{mean} +- {error}" for mean, error in cells]
    assert " ".join(row) == "CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST STS GLUE WNLI"

    # seeds that lack a task have no GLUE score, and one seed has no error
    row = cells_of([made_run("none", 0, ALL | {"rte": [60]})])["none"]
    assert (row["RTE"], row["GLUE"]) == ("60.0", "67.9")


def test_several_models_have_the_error_over_their_pretraining_seeds():
    """Means over the fine-tuning seeds: 15 and 35. Their mean is 25, their error 10."""
    runs = [made_run("none", 0, {"cola": [10, 20]}), made_run("none", 1, {"cola": [30, 40]})]
    row = cells_of(runs)["none"]
    assert (row["CoLA"], row["runs"]) == ("25.0 +- 10.0", "2")

    # a run without this task
    row = cells_of([*runs, made_run("none", 2, {"rte": [60]})])["none"]
    assert (row["CoLA"], row["runs"]) == ("25.0 +- 10.0 (2 of 3 runs)", "3")


# --- What does not belong together ----------------------------------------------------------------


def other_steps(run):
    run["settings"]["steps"] = 2000


def other_epochs(run):
    """Of one task, in fine-tuning."""
    run["glue"][-1]["settings"]["epochs"] = 10


def other_start(run):
    """From the pre-trained model, and not from that of MNLI."""
    run["glue"][-1]["settings"]["start"] = None


def begun_with_weights(run):
    run["settings"]["init"] = "5d1e"


def other_code(run):
    run["code"]["model.py"] = "another one"


@pytest.mark.parametrize(
    "change, name",
    [
        (other_steps, "steps"),
        (other_epochs, "epochs in fine-tuning"),
        (other_start, "start in fine-tuning"),
        (begun_with_weights, "init"),
        (other_code, "model.py"),
    ],
)
def test_a_row_has_one_way_of_training_and_a_line_says_in_what_rows_differ(change, name):
    scores = {"cola": [1], "mrpc": [80]}
    runs = [made_run("none", 0, scores), made_run("none", 1, scores)]
    runs.append(made_run("composite", 1, scores, kernel_size=17))
    for run in runs:
        run["code"]["model.py"] = "one"
        run["settings"]["init"] = None
        run["glue"][-1]["settings"]["start"] = "mnli"
        run["code"]["entry in VARIANTS"] = run["settings"]["variant"]
    # the label says the variant, and this its layers
    assert differences_note(runs) == ""

    # the other row, then one run of the same row
    change(runs[2])
    assert differences_note(runs) == f"What differs from none: composite: {name}."
    change(runs[1])
    for compared in (None, ("composite", "none")):
        with pytest.raises(UserError, match=f"differ in {name}: rename"):
            glue_rows(runs, compared)


def test_two_runs_that_differ_in_a_task_which_the_first_one_lacks_are_not_averaged():
    runs = [made_run("none", seed, {"wnli": [60]}) for seed in (1, 2)]
    other_epochs(runs[1])
    with pytest.raises(UserError, match="none-seed2 would be averaged with [^ ]*none-seed1"):
        glue_rows([made_run("none", 0, {"cola": [1]}), *runs])


def test_of_two_runs_with_one_seed_one_counts(capsys):
    """composite and composite-seed0, as runs/* finds them."""
    runs = [made_run("none", 0, {"cola": [1]}), made_run("none", 0, {"cola": [1]})]
    runs[0]["run"] = "none"
    assert cells_of(runs)["none"]["runs"] == "1"
    assert "none-seed0 is left out" in capsys.readouterr().out


def test_constant_answers_and_changed_settings_are_marked_also_in_what_starts_there():
    run = made_run("none", 0, {task: scores[:1] for task, scores in ALL.items()})
    for record in run["glue"]:
        if record["settings"]["task"] == "cola":
            record["result"]["constant_prediction"] = True
        if record["settings"]["task"] == "mnli":
            record["settings"]["changed"] = ["lr"]
    row = cells_of([run])["none"]
    assert (row["CoLA"], row["MNLI-m"], row["RTE"]) == ("10.0*", "70.0!", "60.0!")
    assert (row["QNLI"], row["WNLI"]) == ("80.0", "50.0")
    assert set(row["GLUE"].removeprefix("67.9")) == {"*", "!"}


# --- The paper's rows: Chang table 6 --------------------------------------------------------------


def published_rows(size):
    """(means, errors) of a size: a list of numbers, as texts, for each variant."""
    lines = (ROOT / "results/chang-table6.txt").read_text().splitlines()
    rows = [line.split() for line in lines if not line.startswith("#")]
    pairs = zip(rows[::2], rows[1::2], strict=True)
    chosen = [(means[2:], errors) for means, errors in pairs if means[0] == size]
    return [means for means, _ in chosen], [errors for _, errors in chosen]


@pytest.mark.parametrize(
    "size, tolerance, means, errors",
    [
        (
            "small",
            0.11,
            "525.2 1151.9 1152.5 1264.7 1224.2 1293.4 968.2 1295.2 1275.3 1127.6",
            "12.9 1.3 1.5 5.8 2.7 0.6 10.7 3.6 1.7 2.1",
        ),
        (
            "base",
            0.4,
            "233.4 327.6 326.9 348.8 341.5 354.9 282.4 362.8 352.6 324.6",
            "2.1 0.4 0.4 2.1 0.9 0.0 2.5 0.4 0.6 0.8",
        ),
    ],
)
def test_the_paper_s_columns_have_the_sums_of_its_table_and_glue_is_the_mean(
    size, tolerance, means, errors
):
    """All numbers were compared with the text of Chang table 6. A wrong one changes a sum.

    The columns are rounded, so their mean may differ from GLUE; for BERT-base the paper prints a
    smaller one.
    """
    rows_of_means, rows_of_errors = published_rows(size)
    for rows, sums in ((rows_of_means, means), (rows_of_errors, errors)):
        columns = np.array(rows, dtype=float).sum(axis=0)
        np.testing.assert_allclose(columns, np.array(sums.split(), dtype=float), atol=1e-6)
    for row in rows_of_means:
        *columns, overall = [float(mean) for mean in row]
        assert abs(np.mean(columns) - overall) < tolerance


# --- Two variants compared ------------------------------------------------------------------------


def test_two_variants_are_compared_by_the_means_of_their_runs():
    """Runs of composite: 10, 20, 30; of none: 8, 14. scipy: -12.5 to 30.5 (Welch's t-test)."""
    runs = [made_run("composite", seed, {"cola": [10 * (seed + 1)]}) for seed in (0, 1, 2)]
    runs += [made_run("none", 0, {"cola": [7, 9]}), made_run("none", 7, {"cola": [14]})]
    assert glue_rows(runs, ("composite", "none")) == [
        ["run", "runs", "CoLA"],
        ["composite", "3", "20.0 +- 5.8"],
        ["none", "2", "11.0 +- 3.0"],
        ["composite - none", "", "9.0 (-12.5 to 30.5)"],
        ["p (Holm)", "", "0.27"],
    ]
