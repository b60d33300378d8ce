"""support/glue_table.py and glue.py table: rows, errors, marks, published rows, comparisons."""

import csv
import io
import json
import re

import numpy as np
import pytest

import glue
from attention import VARIANTS
from glue_helpers import error_of, failure, run_glue
from model import BertConfig
from support.glue_format import FORMATS
from support.glue_table import (
    PUBLISHED,
    Run,
    compare_variants,
    comparison_lines,
    group_runs,
    notes_of,
    pooled_rows,
    published_rows,
    row_texts,
)

# --- Made results ---------------------------------------------------------------------------------


def made_records(scores_by_task, settings=None, **changes):
    """Records of results.jsonl.

    Args:
        scores_by_task: {task: [score of each seed]}.
        settings: of every record.
        changes: {task with "_" for "-": values that are changed in its results}.
    """
    records = []
    for name, values in scores_by_task.items():
        for seed, value in zip(glue.SEEDS, values, strict=False):
            # the second development split of MNLI is better by 1
            scores = {}
            for index, split in enumerate(FORMATS[name].dev_splits):
                scores[split] = {"score": value + index}
            result = {
                "score": value,
                "scores": scores,
                "constant_prediction": False,
                "partial": False,
            }
            result |= changes.get(name.replace("-", "_"), {})
            record = {"task": name, "seed": seed, "result": result}
            records.append(record | {"settings": {"seed": seed, **(settings or {})}})
    return records


def make_run(folder, scores_by_task, variant="composite", settings=None, log=None, **changes):
    """A run with a results.jsonl. log: the settings of its pre-training, if it has a log."""
    (folder / "glue").mkdir(parents=True)
    config = BertConfig.from_size("tiny", variant, 300)
    (folder / "config.json").write_text(json.dumps(vars(config)), encoding="utf-8")
    if log is not None:
        line = json.dumps({"settings": {"variant": variant, **log}})
        (folder / "log.jsonl").write_text(line + "\n", encoding="utf-8")

    records = made_records(scores_by_task, settings, **changes)
    lines = [json.dumps(record) + "\n" for record in records]
    (folder / "glue" / "results.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def made_run(variant, seed, scores_by_task, **settings):
    """A Run of plain values; `settings` are those of its pre-training."""
    settings = {"variant": variant, "steps": 300, **settings, "seed": seed}
    return Run(f"{variant}-seed{seed}", settings, made_records(scores_by_task))


ALL = {
    "cola": [10, 20, 30],
    "mnli": [70, 70, 70],
    "mrpc": [80, 80, 80],
    "qnli": [80, 80, 80],
    "qqp": [80, 80, 80],
    "rte": [60, 60, 60],
    "sst-2": [80, 80, 80],
    "sts-b": [80, 80, 80],
    "wnli": [50, 50, 50],
}


def table(run_program, *arguments):
    """What `glue.py table` prints."""
    outcome = run_glue(run_program, "table", *arguments)
    assert outcome.code == 0, outcome.error
    return outcome.out


# --- The cells of a row ---------------------------------------------------------------------------


def test_the_table_has_means_standard_errors_and_the_glue_score_of_each_seed(tmp_path, run_program):
    """CoLA 10, 20, 30: 20 +- 10 / sqrt(3).

    GLUE: (CoLA + 70 + 71 + 4 x 80 + 60 + 80) / 9 for each seed. WNLI is left out.
    """
    folder = make_run(tmp_path / "a", ALL)
    header, row, *_ = table(run_program, folder).splitlines()
    columns = "variant runs seeds CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST STS GLUE WNLI"
    assert " ".join(header.split()) == columns
    cells = "1^ 3 20.0+-5.8 70.0+-0.0 71.0+-0.0 80.0+-0.0 80.0+-0.0 80.0+-0.0 60.0+-0.0"
    cells = f"composite ({folder}) {cells} 80.0+-0.0 80.0+-0.0 69.0+-0.6 50.0+-0.0"
    assert " ".join(row.split()) == cells


def test_wnli_is_printed_but_is_not_part_of_the_glue_mean(tmp_path, run_program):
    note = "WNLI is not part of the GLUE mean"
    one = make_run(tmp_path / "a", ALL)
    other = make_run(tmp_path / "b", ALL | {"wnli": [10, 20, 30]})
    output = table(run_program, one, other)
    rows = [line.split() for line in output.splitlines()[1:3]]
    assert [row[-1] for row in rows] == ["50.0+-0.0", "20.0+-5.8"]
    assert [row[-2] for row in rows] == ["69.0+-0.6", "69.0+-0.6"]
    assert note in output

    without = {name: scores for name, scores in ALL.items() if name != "wnli"}
    output = table(run_program, make_run(tmp_path / "c", without))
    assert "69.0+-0.6" in output
    assert "WNLI" not in output


def test_the_glue_score_takes_only_seeds_with_every_task(tmp_path, run_program):
    folder = make_run(tmp_path / "a", ALL | {"rte": [60]})
    row = table(run_program, folder, "--format", "csv").splitlines()[1]
    assert row.endswith(",60.0,80.0+-0.0,80.0+-0.0,67.9,50.0+-0.0")

    other = make_run(tmp_path / "b", {name: ALL[name] for name in ("cola", "rte")})
    assert "GLUE" not in table(run_program, other)


def test_columns_with_different_numbers_of_seeds_show_the_smallest_and_the_largest(
    tmp_path, run_program
):
    folder = make_run(tmp_path / "a", {"cola": [10, 20, 30], "rte": [60]})
    row = table(run_program, folder, "--format", "csv").splitlines()[1]
    assert row == f"composite ({folder}),1^,1-3,20.0+-5.8,60.0"


# --- Which runs share a row -----------------------------------------------------------------------


def test_runs_that_differ_in_the_seed_alone_share_a_row_with_the_error_over_pretraining_seeds():
    """Means over the fine-tuning seeds: 15, 35, 40. Their mean is 30, their error sqrt(175 / 3)."""
    runs = [
        made_run("composite", 0, {"cola": [10, 20]}),
        made_run("none", 0, {"cola": [3]}),
        made_run("composite", 1, {"cola": [30, 40]}),
        made_run("composite", 2, {"cola": [40, 40]}),
    ]
    rows = pooled_rows(runs)
    assert list(rows) == ["composite", "none"]
    cell = rows["composite"]["CoLA"]
    assert cell.means() == {0: 15, 1: 35, 2: 40}
    assert np.std([15, 35, 40], ddof=1) / np.sqrt(3) == pytest.approx(7.638, abs=1e-3)
    assert cell.text() == "30.0+-7.6"
    assert rows["none"]["CoLA"].text() == "3.0"


def test_the_table_says_how_many_pretraining_seeds_and_marks_the_rows_with_one(
    tmp_path, run_program
):
    folders = []
    for seed in (0, 1):
        log = {"seed": seed, "steps": 300}
        folders.append(make_run(tmp_path / f"c{seed}", {"cola": [10, 20]}, log=log))
    folders.append(make_run(tmp_path / "n", {"cola": [10, 20]}, "none", log=log))
    header, pooled, single, *notes = table(run_program, *folders).splitlines()
    assert header.split() == ["variant", "runs", "seeds", "CoLA"]
    assert pooled.split() == ["composite", "2", "2", "15.0+-0.0"]
    assert single.split() == ["none", "1^", "2", "15.0+-5.0"]
    assert notes == ["^ one pre-trained model: the error is over its fine-tuning seeds"]


def test_one_finetuning_seed_of_one_model_has_no_error_and_no_mark():
    cells = pooled_rows([made_run("none", 0, {"cola": [3]})])["none"]
    assert cells["CoLA"].text() == "3.0"
    assert row_texts(cells)["runs"] == "1"


def test_the_published_rows_are_marked_as_those_of_one_model():
    assert published_rows(["none"])["[C] BERT-small none"]["runs"] == "1^"


def test_the_glue_score_of_a_pooled_row_is_the_mean_over_the_pretraining_seeds():
    """GLUE scores: 67.9, 69.0, 70.1 and 70.1, 71.2, 72.3; their means are 69.0 and 71.2."""
    better = ALL | {"sst-2": [100, 100, 100]}
    runs = [made_run("none", 0, ALL), made_run("none", 1, better)]
    cell = pooled_rows(runs)["none"]["GLUE"]
    assert cell.means() == {0: pytest.approx(69.0), 1: pytest.approx(69 + 20 / 9)}
    assert cell.text() == "70.1+-1.1"


def test_a_column_that_not_every_seed_has_is_the_mean_of_those_that_have_it():
    runs = [made_run("none", 0, {"cola": [1], "rte": [60, 70]}), made_run("none", 1, {"cola": [3]})]
    row = pooled_rows(runs)["none"]
    assert row["CoLA"].text() == "2.0+-1.0"
    assert row["RTE"].text() == "65.0"  # one pre-training seed has no error here


def test_runs_that_differ_in_more_than_the_seed_have_rows_of_their_own_that_say_in_what():
    scores = {"cola": [1]}
    runs = [
        made_run("none", 0, scores, lr=0.1),
        made_run("none", 1, scores, steps=2000, lr=0.1),
        made_run("none", 2, scores, steps=2000, lr=0.2),
        made_run("none", 3, scores, lr=0.1),
        made_run("absolute", 0, scores, lr=0.3),
    ]
    groups = group_runs(runs)
    labels = ["none, steps 300", "none, steps 2000, lr 0.1", "none, steps 2000, lr 0.2", "absolute"]
    assert list(groups) == labels
    assert [run.seed for run in groups["none, steps 300"]] == [0, 3]


def test_models_of_two_sizes_or_texts_are_not_pooled():
    runs = [
        made_run("none", 0, {"cola": [1]}, size="tiny", corpus="one"),
        made_run("none", 1, {"cola": [2]}, size="small", corpus="one"),
        made_run("none", 2, {"cola": [3]}, size="small", corpus="two"),
    ]
    labels = ["none, size tiny", "none, size small, corpus one", "none, size small, corpus two"]
    assert list(group_runs(runs)) == labels


def test_runs_finetuned_with_other_settings_are_not_pooled():
    runs = [made_run("none", seed, {"cola": [1]}) for seed in (0, 1)]
    runs[1].records[0]["settings"]["epochs"] = 1
    assert list(group_runs(runs)) == ["none (none-seed0)", "none (none-seed1)"]

    # the model differs between pre-training seeds
    runs = [made_run("none", seed, {"cola": [1]}) for seed in (0, 1)]
    for run in runs:
        run.records[0]["settings"]["model"] = run.label
    assert list(group_runs(runs)) == ["none"]


def test_the_same_seed_twice_and_a_run_without_a_log_are_not_pooled():
    runs = [made_run("none", seed, {"cola": [1]}) for seed in (0, 0, 1)]
    runs.append(Run("runs/x", {"variant": "none"}, made_records({"cola": [5]})))
    runs[1] = runs[1]._replace(label="copy")
    groups = group_runs(runs)
    assert list(groups) == ["none (none-seed0)", "none (copy)", "none (runs/x)"]
    assert len(groups["none (none-seed0)"]) == 2


# --- Marks ----------------------------------------------------------------------------------------


def test_partial_and_constant_runs_are_marked_and_the_marks_explained(tmp_path, run_program):
    constant = {"constant_prediction": True}
    folder = make_run(tmp_path / "a", ALL, cola=constant, qqp={"partial": True})
    output = table(run_program, folder)
    assert "20.0+-5.8* " in output  # and no other mark
    assert output.count("80.0+-0.0~") == 1  # QQP; other columns have the same numbers
    assert re.search(r"69\.0\+-0\.6[~*]{2}", output)
    assert "not a GLUE score" in output
    assert "the same answer for all rows" in output

    other = make_run(tmp_path / "b", ALL)
    assert "not a GLUE score" not in table(run_program, other)


def test_results_with_other_settings_than_the_published_ones_are_marked(tmp_path, run_program):
    folder = make_run(tmp_path / "a", ALL)
    path = folder / "glue" / "results.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for record in records:
        if record["task"] == "cola":
            record["settings"]["changed"] = ["lr", "epochs"]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    output = table(run_program, folder)
    assert "20.0+-5.8!" in output
    assert "69.0+-0.6!" in output
    assert output.count("80.0+-0.0!") == 0
    note = "! fine-tuned with other settings than the published ones: lr, epochs"
    assert note in output.splitlines()
    assert note not in table(run_program, make_run(tmp_path / "b", ALL))


def test_what_starts_from_a_task_with_other_settings_is_marked():
    run = made_run("none", 0, {"mnli": [70], "rte": [60], "mrpc": [50]})
    mnli, rte, _ = run.records
    mnli["settings"]["changed"] = ["epochs"]
    rte["settings"]["start"] = "mnli"
    row = pooled_rows([run])["none"]
    assert [row[column].text() for column in ("MNLI-m", "RTE", "MRPC")] == [
        "70.0!",
        "60.0!",
        "50.0",
    ]


# --- The paper's rows -----------------------------------------------------------------------------


def test_published_rows_are_below_name_their_size_and_agree_with_their_glue_score(
    tmp_path, run_program
):
    folders = []
    for variant in ("none", "composite"):
        folders.append(make_run(tmp_path / variant, {"cola": [1, 2]}, variant))
    lines = table(run_program, *folders, "--published").splitlines()
    assert [line.split()[-1] for line in lines[3:6]] == ["69.3+-0.3", "76.9+-0.1", "81.2+-0.2"]
    labels = ["[C] BERT-small none", "[C] BERT-small composite", "[C] BERT-base composite"]
    assert [line.partition("  ")[0] for line in lines[3:6]] == labels

    assert len([line for line in lines if line.startswith("[C]")]) == 3

    # the last number of each row is the mean of the others, which are rounded; for BERT-base the
    # paper prints a smaller one
    for size, tolerance in (("small", 0.11), ("base", 0.4)):
        for name, (means, _) in PUBLISHED[size].items():
            scores = [float(mean) for mean in means.split()]
            assert len(scores) == 10
            assert abs(np.mean(scores[:9]) - scores[9]) < tolerance, name


@pytest.mark.parametrize(
    "label, row",
    [
        (
            "[C] BERT-small none",
            "7.0+-2.4 73.0+-0.1 73.0+-0.1 80.9+-0.4 80.1+-0.2 84.4+-0.1 61.0+-0.5 80.9+-0.9 "
            "83.7+-0.1 69.3+-0.3",
        ),
        (
            "[C] BERT-small convbert",
            "33.3+-1.5 76.7+-0.1 76.8+-0.1 83.9+-0.5 77.1+-0.8 85.1+-0.1 64.6+-0.5 86.3+-0.3 "
            "84.0+-0.2 74.2+-0.3",
        ),
        (
            "[C] BERT-base composite",
            "58.5+-0.5 81.9+-0.1 81.6+-0.1 86.0+-1.2 85.0+-0.3 88.7+-0.0 71.0+-0.7 90.5+-0.1 "
            "88.4+-0.1 81.2+-0.2",
        ),
    ],
)
def test_published_rows_have_the_standard_error_of_every_column(label, row):
    found = published_rows([label.split()[-1]])[label]
    assert " ".join(list(found.values())[2:]) == row


@pytest.mark.parametrize(
    "size, means, errors",
    [
        (
            "small",
            "525.2 1151.9 1152.5 1264.7 1224.2 1293.4 968.2 1295.2 1275.3 1127.6",
            "12.9 1.3 1.5 5.8 2.7 0.6 10.7 3.6 1.7 2.1",
        ),
        (
            "base",
            "233.4 327.6 326.9 348.8 341.5 354.9 282.4 362.8 352.6 324.6",
            "2.1 0.4 0.4 2.1 0.9 0.0 2.5 0.4 0.6 0.8",
        ),
    ],
)
def test_the_columns_of_the_published_rows_have_the_sums_of_those_in_the_paper(size, means, errors):
    """All numbers were compared with the text of [C] table 6. A wrong one changes a sum."""
    for index, sums in enumerate((means, errors)):
        rows = [row[index].split() for row in PUBLISHED[size].values()]
        columns = np.array(rows, dtype=float).sum(axis=0)
        np.testing.assert_allclose(columns, np.array(sums.split(), dtype=float), atol=1e-6)


def test_published_rows_are_there_for_every_variant_of_the_paper():
    assert set(PUBLISHED["small"]) <= set(VARIANTS)
    assert len(PUBLISHED["small"]) == 15
    assert list(PUBLISHED["base"]) == ["absolute", "fixed", "dynamic", "composite"]


def test_toy_results_are_named_and_never_in_one_table_with_published_rows(tmp_path, run_program):
    toy = make_run(tmp_path / "toy", ALL, settings={"toy": True})
    real = make_run(tmp_path / "real", ALL)
    assert "of the toy tasks" in table(run_program, toy)
    assert "of the toy tasks" not in table(run_program, real)
    for folders in ([toy], [real, toy]):
        assert "results of the toy tasks" in failure(run_program, "table", *folders, "--published")


# --- Two variants compared ------------------------------------------------------------------------


def test_two_variants_are_compared_pair_by_pair_on_the_seeds_that_both_have():
    """Pairs: 10 - 8 = 2, 20 - 14 = 6, 30 - 26 = 4. The mean is 4, the error 2 / sqrt(3).

    t = 4 / 1.1547 = 3.4641 with 2 degrees of freedom: p = 1 - t / sqrt(t^2 + 2) = 0.0742.
    """
    first = {0: 10, 1: 20, 2: 30, 7: 99}
    second = {2: 26, 0: 8, 1: 14, 8: 1}
    runs = [made_run("composite", seed, {"cola": [score]}) for seed, score in first.items()]
    runs += [made_run("none", seed, {"cola": [score]}) for seed, score in second.items()]
    difference = compare_variants(runs, "composite", "none")["CoLA"]
    comparison = difference.comparison
    assert comparison.seeds == 3
    assert comparison.mean == pytest.approx(4)
    assert comparison.standard_error == pytest.approx(2 / np.sqrt(3))
    assert comparison.p == pytest.approx(1 - 12**0.5 / 14**0.5, abs=1e-6)
    assert (difference.first.text(), difference.second.text()) == ("20.0+-5.8", "16.0+-5.3")

    turned = compare_variants(runs, "none", "composite")["CoLA"].comparison
    assert (turned.mean, turned.p) == (-comparison.mean, comparison.p)


def test_equal_finetuning_seeds_are_averaged_in_each_pair():
    """Seeds 42 and 97 are in both: (10 + 20) / 2 - (1 + 3) / 2 = 13."""
    runs = [made_run("composite", 0, {"cola": [10, 20]}), made_run("none", 0, {"cola": [1, 3, 90]})]
    comparison = compare_variants(runs, "composite", "none")["CoLA"].comparison
    assert (comparison.mean, comparison.seeds) == (13, 1)
    assert np.isnan(comparison.p)


def test_a_comparison_and_the_glue_mean_have_only_the_marks_of_the_scores_in_them():
    # a second fine-tuning seed of composite, which `none` does not have, saw part of the data
    runs = [made_run("composite", 0, {"cola": [10, 20]}), made_run("none", 0, {"cola": [1]})]
    runs[0].records[1]["result"]["partial"] = True
    difference = compare_variants(runs, "composite", "none")["CoLA"]
    assert (difference.first.text(), difference.second.text()) == ("10.0", "1.0")
    assert pooled_rows(runs)["composite"]["CoLA"].text().endswith("~")

    # a score of a seed that has no other task
    run = made_run("composite", 0, {name: scores[:1] for name, scores in ALL.items()})
    run.records.extend(made_records({"cola": [10, 20]})[1:])
    run.records[-1]["result"]["partial"] = True
    cells = pooled_rows([run])["composite"]
    assert cells["CoLA"].text().endswith("~")
    assert not cells["GLUE"].text().endswith("~")


def test_the_glue_scores_are_compared_too_and_columns_of_one_variant_left_out():
    without = {name: scores for name, scores in ALL.items() if name != "wnli"}
    runs = [made_run("composite", seed, ALL | {"cola": [20 + seed]}) for seed in (0, 1)]
    runs += [made_run("none", seed, without | {"cola": [2]}) for seed in (0, 1)]
    differences = compare_variants(runs, "composite", "none")
    assert " ".join(differences) == "CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST STS GLUE"
    assert differences["GLUE"].comparison.mean == pytest.approx(18.5 / 9)


def test_compare_prints_both_means_the_difference_its_error_and_p(tmp_path, run_program):
    folders = []
    for variant, scores in (("composite", (10, 20, 30)), ("none", (8, 14, 26))):
        for seed, score in enumerate(scores):
            folder = tmp_path / f"{variant}-seed{seed}"
            settings = {"toy": True}
            folders.append(make_run(folder, {"cola": [score]}, variant, settings, {"seed": seed}))
    lines = table(run_program, *folders, "--compare", "composite", "none").splitlines()
    assert lines[0].split() == ["composite", "none", "composite", "-", "none", "p", "seeds"]
    assert lines[1].split() == ["CoLA", "20.0+-5.8", "16.0+-5.3", "4.0+-1.2", "0.074", "3"]
    assert lines[2:] == ["results of the toy tasks: no GLUE scores"]

    # one pair has neither error nor p
    options = ["--compare", "composite", "none", "--format", "csv"]
    one_pair = table(run_program, folders[1], folders[4], *options).splitlines()
    assert one_pair[1] == "CoLA,20.0,14.0,6.0,,1"


def test_the_notes_below_a_comparison_are_about_its_two_variants(tmp_path, run_program):
    """The results of the third variant are those of the toy tasks."""
    folders = []
    for variant, settings in (("composite", {}), ("none", {}), ("fixed", {"toy": True})):
        log = {"seed": 0, "steps": 300}
        folder = tmp_path / variant
        folders.append(make_run(folder, {"cola": [10, 20]}, variant, settings, log))
    assert "results of the toy tasks" in table(run_program, *folders)
    assert "toy" not in table(run_program, *folders, "--compare", "composite", "none")


def test_variants_without_a_common_seed_are_not_compared(tmp_path, run_program):
    one = make_run(tmp_path / "a", {"cola": [1]}, log={"seed": 0})
    other = make_run(tmp_path / "b", {"cola": [1]}, "none", log={"seed": 1})
    unknown = make_run(tmp_path / "c", {"cola": [1]}, "none")
    error = failure(run_program, "table", one, other, "--compare", "composite", "none")
    assert "composite and none cannot be compared" in error
    assert "(pre-training seeds 0 and 1)" in error
    error = failure(run_program, "table", one, unknown, "--compare", "composite", "none")
    assert "(pre-training seeds 0 and unknown)" in error


def test_variants_that_are_not_there_or_not_trained_in_the_same_way_are_not_compared():
    scores = {"cola": [1]}
    runs = [made_run("composite", 0, scores), made_run("none", 0, scores, steps=2000)]
    message = error_of(compare_variants, runs, "composite", "fixed")
    assert "there is no run of 'fixed' among these runs of: composite, none" in message
    message = error_of(compare_variants, runs, "composite", "none")
    assert "not trained in the same way (steps: 300 and 2000)" in message

    runs += [made_run("none", 1, scores)]
    message = error_of(compare_variants, runs, "composite", "none")
    assert "of one kind (none, steps 2000; none, steps 300)" in message


def test_results_that_name_no_tokenizer_are_compared_with_those_that_do():
    runs = [made_run("composite", 0, {"cola": [3]}), made_run("none", 0, {"cola": [1]})]
    runs[0].records[0]["settings"]["tokenizer"] = "abc"
    assert compare_variants(runs, "composite", "none")["CoLA"].comparison.mean == 2

    runs[1].records[0]["settings"]["tokenizer"] = "def"
    message = error_of(compare_variants, runs, "composite", "none")
    assert "cola tokenizer: abc and def" in message


def test_variants_that_were_not_finetuned_in_the_same_way_are_not_compared():
    """Every run counts: here seed 1 has MRPC with other epochs, and seed 0 has no MRPC."""
    runs = []
    for variant, epochs in (("composite", 10), ("none", 5)):
        runs.append(made_run(variant, 0, {"cola": [1]}))
        runs.append(made_run(variant, 1, {"cola": [1], "mrpc": [80]}))
        runs[-1].records[1]["settings"]["epochs"] = epochs
    message = error_of(compare_variants, runs, "composite", "none")
    assert "composite-seed1 and none-seed1 were not trained in the same way" in message
    assert "(mrpc epochs: 10 and 5)" in message

    runs[-1].records[1]["settings"]["epochs"] = 10
    assert list(compare_variants(runs, "composite", "none")) == ["CoLA", "MRPC"]


def test_a_comparison_with_several_p_values_says_how_many_are_small_by_chance():
    """CoLA and MRPC have a p-value; the differences in RTE are equal, SST-2 has one seed."""
    composite = [{"cola": [1], "mrpc": [8], "rte": [5], "sst-2": [9]}, {"cola": [3], "mrpc": [7]}]
    none = [{"cola": [0], "mrpc": [1], "rte": [4], "sst-2": [8]}, {"cola": [0], "mrpc": [1]}]
    composite[1]["rte"] = [6]
    none[1]["rte"] = [5]
    runs = []
    for seed in (0, 1):
        runs.append(made_run("composite", seed, composite[seed]))
        runs.append(made_run("none", seed, none[seed]))
    lines = comparison_lines(runs, "composite", "none")
    p_cells = {line[0]: line[4] for line in lines[1:]}
    assert p_cells["RTE"] == "all differences are equal"
    assert p_cells["SST"] == ""
    notes = notes_of(lines, runs)
    assert notes == ["2 comparisons: without any true difference, about 0.1 would have p < 0.05."]


def test_variants_may_differ_in_their_kernels():
    runs = [made_run("composite", 0, {"cola": [3]}, kernel_size=17)]
    runs += [made_run("none", 0, {"cola": [1]}, kernel_size=None)]
    assert compare_variants(runs, "composite", "none")["CoLA"].comparison.mean == 2


# --- Forms of the table ---------------------------------------------------------------------------


def test_the_columns_are_in_the_order_of_the_paper_whatever_the_first_row_has(
    tmp_path, run_program
):
    few = make_run(tmp_path / "few", {"wnli": [50], "rte": [60]}, "none")
    more = make_run(tmp_path / "more", {"mnli": [70], "cola": [10]}, "composite")
    header = table(run_program, few, more).splitlines()[0]
    names = ["variant", "runs", "seeds", "CoLA", "MNLI-m", "MNLI-mm", "RTE", "WNLI"]
    assert header.split() == names


def test_a_note_of_a_markdown_table_is_a_paragraph_that_keeps_its_mark(tmp_path, run_program):
    """A line that begins with "* " would be an item of a list."""
    changes = {"constant_prediction": True, "partial": True}
    folder = make_run(tmp_path / "a", {"cola": [1]}, cola=changes)
    lines = table(run_program, folder, "--format", "markdown").splitlines()
    _, *notes = "\n".join(lines).split("\n\n")
    assert len(notes) == 2
    assert notes[0].startswith("~ ") or notes[1].startswith("~ ")
    assert notes[0].startswith("\\* ") or notes[1].startswith("\\* ")


def test_markdown_and_csv_hold_the_same_cells(tmp_path, run_program):
    folder = make_run(tmp_path / "a", ALL, cola={"constant_prediction": True})
    output = table(run_program, folder, "--format", "markdown")
    markdown = []
    for line in output.splitlines():
        if line.startswith("|"):
            markdown.append([cell.strip() for cell in line.strip("|").split("|")])
    rule = markdown.pop(1)
    assert set("".join(rule)) == {"-"}

    output = table(run_program, folder, "--format", "csv")
    assert list(csv.reader(io.StringIO(output))) == markdown


def test_by_phenomenon_prints_the_accuracy_on_each_phenomenon(tmp_path, run_program):
    by_phenomenon = {"by_phenomenon": {"agreement": 75.0, "order": 50.0}}
    folder = make_run(tmp_path / "a", {"cola": [1, 2]}, cola=by_phenomenon)
    header, row, _ = table(run_program, folder, "--by_phenomenon").splitlines()
    assert header.split()[3:] == ["agreement", "order"]
    assert row.split()[-2:] == ["75.0+-0.0", "50.0+-0.0"]


def test_by_phenomenon_without_results_of_cola_is_refused(tmp_path, run_program):
    folder = make_run(tmp_path / "a", {"sst-2": [1]})
    assert "--by_phenomenon is about cola" in failure(
        run_program, "table", folder, "--by_phenomenon"
    )


def test_a_table_without_results_names_the_command_that_makes_them(tmp_path, run_program):
    folder = make_run(tmp_path / "a", ALL)
    (folder / "glue" / "results.jsonl").unlink()
    hint = f"python glue.py finetune {folder} --name"
    assert f"{hint} glue makes them" in failure(run_program, "table", folder)
    assert f"{hint} mine makes them" in failure(run_program, "table", folder, "--name", "mine")


DAMAGED = [
    '{"task": "cola", "seed": 1, "result": {"score": 5\n',
    "[1, 2]\n",
    '{"task": "cola", "seed": 1, "result": {}}\n',
    "\udcff",
]


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_results_are_named_and_left_alone(tmp_path, run_program, text):
    folder = make_run(tmp_path / "a", {"cola": [1]})
    path = folder / "glue" / "results.jsonl"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    before = path.read_bytes()
    assert f"{path} is damaged" in failure(run_program, "table", folder)
    assert path.read_bytes() == before


def test_a_line_that_was_cut_is_named_and_left_out_and_the_file_left_alone(tmp_path, run_program):
    folder = make_run(tmp_path / "a", {"cola": [1, 2]})
    path = folder / "glue" / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    before = path.read_bytes()
    outcome = run_glue(run_program, "table", folder)
    assert outcome.error == f"{path}: line 2 was only half written, left out\n"
    assert outcome.out.splitlines()[1].split()[-1] == "1.0"
    assert path.read_bytes() == before


def test_of_two_lines_of_one_task_and_seed_the_last_one_counts(tmp_path, run_program):
    folder = make_run(tmp_path / "a", {"cola": [1]})
    path = folder / "glue" / "results.jsonl"
    line = path.read_text(encoding="utf-8")
    path.write_text(line + line.replace(": 1", ": 7"), encoding="utf-8")
    assert table(run_program, folder).splitlines()[1].split()[-1] == "7.0"
