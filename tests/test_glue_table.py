"""GLUE's table: means and errors over seeds, marks, the paper's rows, two variants compared."""

import numpy as np
import pytest

import glue
from support.commands import UserError
from support.glue_files import FORMATS
from support.glue_table import PUBLISHED, changed_files, comparison_lines, result_lines
from support.runs import Run

# {task: the score of each seed}
ALL = dict.fromkeys(glue.TASKS, [80, 80, 80])
ALL |= {"cola": [10, 20, 30], "mnli": [70, 70, 70], "rte": [60, 60, 60], "wnli": [50, 50, 50]}


# --- Made-up results ------------------------------------------------------------------------------


def made_record(task, seed, score):
    """A result. The second development split of MNLI is better by 1."""
    splits = [split for split in FORMATS[task].rows if split.startswith("dev")]
    scores = {split: {"score": score + index} for index, split in enumerate(splits)}
    result = {"scores": scores, "constant_prediction": False}
    settings = {"task": task, "seed": seed, "epochs": 3, "start": glue.TASKS[task].start}
    settings |= {"data": "GLUE 0123", "changed": []}
    return {"result": result, "settings": settings, "code": {"attention.py": "a", "glue.py": "g"}}


def made_run(variant, seed, scores_by_task, **settings):
    """A Run; scores_by_task: {task: [score of each fine-tuning seed]}."""
    records = []
    for task, scores in scores_by_task.items():
        for finetuning_seed, score in zip(glue.SEEDS, scores, strict=False):
            records.append(made_record(task, finetuning_seed, score))
    settings = {"variant": variant, "steps": 300, **settings, "seed": seed}
    return Run(f"{variant}-seed{seed}", settings, records, {"attention.py": "a"})


def cells_of(runs, published=False):
    """The table: {first cell of a row: {column: text}}."""
    (_, *columns), *rows = result_lines(runs, published=published)
    return {first: dict(zip(columns, cells, strict=True)) for first, *cells in rows}


# --- Means and errors -----------------------------------------------------------------------------


def test_one_model_has_means_and_standard_errors_over_its_fine_tuning_seeds():
    """CoLA 10, 20, 30: 20 +- 10 / sqrt(3).

    GLUE: (CoLA + 70 + 71 + 4 x 80 + 60 + 80) / 9 for each seed. WNLI is not part of it.
    """
    row = cells_of([made_run("none", 0, ALL)])["none"]
    assert (row.pop("runs"), row.pop("results")) == ("1^", "3")
    cells = "20.0+-5.8 70.0+-0.0 71.0+-0.0 80.0+-0.0 80.0+-0.0 80.0+-0.0 60.0+-0.0 80.0+-0.0"
    assert " ".join(row.values()) == f"{cells} 80.0+-0.0 69.0+-0.6 50.0+-0.0"
    assert " ".join(row) == "CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST STS GLUE WNLI"

    # seeds that lack a task have no GLUE score, and one seed has no error
    row = cells_of([made_run("none", 0, ALL | {"rte": [60]})])["none"]
    assert (row["RTE"], row["GLUE"], row["results"]) == ("60.0", "67.9", "1-3")


def test_several_models_have_the_error_over_their_pretraining_seeds():
    """Means over the fine-tuning seeds: 15 and 35. Their mean is 25, their error 10."""
    runs = [made_run("none", 0, {"cola": [10, 20]}), made_run("none", 1, {"cola": [30, 40]})]
    row = cells_of(runs)["none"]
    assert (row["CoLA"], row["runs"]) == ("25.0+-10.0", "2")


# --- What does not belong together ----------------------------------------------------------------


def other_steps(run):
    run.settings["steps"] = 2000


def other_epochs(run):
    """Of one task, in fine-tuning."""
    run.records[-1]["settings"]["epochs"] = 10


def same_seed(run):
    run.settings["seed"] = 0


@pytest.mark.parametrize("change", [other_steps, other_epochs, same_seed])
def test_what_was_not_made_in_the_same_way_is_put_into_no_table(change):
    scores = {"cola": [1], "mrpc": [80]}
    runs = [made_run("none", 0, scores), made_run("none", 1, scores)]
    runs.append(made_run("composite", 1, scores, kernel_size=17))
    assert len(cells_of(runs)) == 2
    comparison_lines(runs, "composite", "none")
    change(runs[1])
    with pytest.raises(UserError):
        result_lines(runs)
    with pytest.raises(UserError):
        comparison_lines(runs, "composite", "none")


def test_a_table_names_the_code_that_changed_between_its_rows():
    runs = [made_run("none", 0, {"cola": [1]}), made_run("composite", 0, {"cola": [2]})]
    assert changed_files(runs) == []
    runs[0].records[0]["code"]["glue.py"] = "of fine-tuning"
    runs[1].code["attention.py"] = "of pre-training"
    assert sorted(changed_files(runs)) == ["attention.py", "glue.py"]


def test_constant_answers_and_changed_settings_are_marked_also_in_what_starts_there():
    run = made_run("none", 0, {task: scores[:1] for task, scores in ALL.items()})
    for record in run.records:
        if record["settings"]["task"] == "cola":
            record["result"]["constant_prediction"] = True
        if record["settings"]["task"] == "mnli":
            record["settings"]["changed"] = ["lr"]
    row = cells_of([run])["none"]
    assert (row["CoLA"], row["MNLI-m"], row["RTE"]) == ("10.0*", "70.0!", "60.0!")
    assert (row["QNLI"], row["WNLI"]) == ("80.0", "50.0")
    assert set(row["GLUE"].removeprefix("67.9")) == {"*", "!"}


# --- The paper's rows: Chang table 6 --------------------------------------------------------------


def test_the_table_has_the_paper_s_rows_of_a_variant():
    rows = cells_of([made_run("composite", 0, {"cola": [1, 2]})], published=True)
    row = rows["Chang BERT-base composite"]
    assert (row["CoLA"], row["STS"], row["GLUE"]) == ("58.5+-0.5", "88.4+-0.1", "81.2+-0.2")
    assert (row["runs"], row["results"]) == ("1^", "10")
    assert rows["Chang BERT-small composite"]["GLUE"] == "76.9+-0.1"


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
    for index, sums in enumerate((means, errors)):
        rows = [row[index] for row in PUBLISHED[size].values()]
        columns = np.array(rows, dtype=float).sum(axis=0)
        np.testing.assert_allclose(columns, np.array(sums.split(), dtype=float), atol=1e-6)
    for row, _ in PUBLISHED[size].values():
        *columns, overall = [float(mean) for mean in row]
        assert abs(np.mean(columns) - overall) < tolerance


# --- Two variants compared ------------------------------------------------------------------------


def test_two_variants_are_compared_by_the_means_of_their_runs():
    """Runs of composite: 10, 20, 30; of none: 8, 14. scipy: -12.5 to 30.5 (Welch's t-test)."""
    runs = [made_run("composite", seed, {"cola": [10 * (seed + 1)]}) for seed in (0, 1, 2)]
    runs += [made_run("none", 0, {"cola": [7, 9]}), made_run("none", 7, {"cola": [14]})]
    lines = comparison_lines(runs, "composite", "none")
    assert lines[1:] == [["CoLA", "20.0+-5.8", "11.0+-3.0", "9.0 (-12.5 to 30.5)", "3, 2"]]
