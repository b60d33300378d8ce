"""glue.py table: means, standard errors, the GLUE score, marks, published rows, formats."""

import csv
import io
import json
import re

import numpy as np
import pytest

import glue
from attention import VARIANTS
from glue_helpers import failure, run_glue
from model import BertConfig
from support.glue_format import FORMATS


def make_run(folder, scores_by_task, variant="composite", settings=None, **changes):
    """A run with a results.jsonl.

    Args:
        folder: the run's folder.
        scores_by_task: {task: [score of each seed]}.
        variant: of the model.
        settings: of every record.
        changes: {task with "_" for "-": values that are changed in its results}.
    """
    (folder / "glue").mkdir(parents=True)
    config = BertConfig.from_size("tiny", variant, 300)
    (folder / "config.json").write_text(json.dumps(vars(config)), encoding="utf-8")

    lines = []
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
            record = {"task": name, "seed": seed, "result": result, "settings": settings or {}}
            lines.append(json.dumps(record) + "\n")
    (folder / "glue" / "results.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


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


def test_the_table_has_means_standard_errors_and_the_glue_score_of_each_seed(tmp_path, run_program):
    """CoLA 10, 20, 30: 20 +- 10 / sqrt(3).

    GLUE: (CoLA + 70 + 71 + 4 x 80 + 60 + 80) / 9 for each seed. WNLI is left out.
    """
    folder = make_run(tmp_path / "a", ALL)
    header, row = table(run_program, folder).splitlines()
    columns = "run variant runs CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST STS GLUE"
    assert " ".join(header.split()) == columns
    cells = "composite 3 20.0+-5.8 70.0+-0.0 71.0+-0.0 80.0+-0.0 80.0+-0.0 80.0+-0.0 60.0+-0.0"
    assert " ".join(row.split()) == f"{folder} {cells} 80.0+-0.0 80.0+-0.0 69.0+-0.6"


def test_the_glue_score_takes_only_seeds_with_every_task(tmp_path, run_program):
    folder = make_run(tmp_path / "a", ALL | {"rte": [60]})
    row = table(run_program, folder, "--format", "csv").splitlines()[1]
    assert row.endswith(",60.0,80.0+-0.0,80.0+-0.0,67.9")

    other = make_run(tmp_path / "b", {name: ALL[name] for name in ("cola", "rte")})
    assert "GLUE" not in table(run_program, other)


def test_columns_with_different_numbers_of_seeds_show_the_smallest_and_the_largest(
    tmp_path, run_program
):
    folder = make_run(tmp_path / "a", {"cola": [10, 20, 30], "rte": [60]})
    row = table(run_program, folder, "--format", "csv").splitlines()[1]
    assert row == f"{folder},composite,1-3,20.0+-5.8,60.0"


def test_partial_and_constant_runs_are_marked_and_the_marks_explained(tmp_path, run_program):
    constant = {"constant_prediction": True}
    folder = make_run(tmp_path / "a", ALL, cola=constant, qqp={"partial": True})
    output = table(run_program, folder)
    assert "20.0+-5.8*" in output
    assert "80.0+-0.0~" in output
    assert re.search(r"69\.0\+-0\.6[~*]{2}", output)
    assert "not a GLUE score" in output
    assert "the same answer for all rows" in output

    other = make_run(tmp_path / "b", ALL)
    assert "not a GLUE score" not in table(run_program, other)


def test_published_rows_are_below_and_agree_with_their_glue_score(tmp_path, run_program):
    folders = []
    for variant in ("none", "composite"):
        folders.append(make_run(tmp_path / variant, {"cola": [1, 2]}, variant))
    lines = table(run_program, *folders, "--published").splitlines()
    assert [line.split()[-1] for line in lines[-2:]] == ["69.3+-0.3", "76.9+-0.1"]
    assert len(lines) == 5

    # the last number of each row is the mean of the others, which are rounded
    for name, row in glue.PUBLISHED.items():
        scores = [float(cell.partition("+-")[0]) for cell in row.split()]
        assert len(scores) == 10
        assert abs(np.mean(scores[:9]) - scores[9]) < 0.11, name


def test_toy_results_are_named_and_never_in_one_table_with_published_rows(tmp_path, run_program):
    toy = make_run(tmp_path / "toy", ALL, settings={"toy": True})
    real = make_run(tmp_path / "real", ALL)
    assert "of the toy tasks" in table(run_program, toy)
    assert "of the toy tasks" not in table(run_program, real)
    for folders in ([toy], [real, toy]):
        assert "results of the toy tasks" in failure(run_program, "table", *folders, "--published")


def test_published_rows_are_there_for_every_variant_of_the_paper():
    assert set(glue.PUBLISHED) <= set(VARIANTS)
    assert len(glue.PUBLISHED) == 15


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
    header, row = table(run_program, folder, "--by_phenomenon").splitlines()
    assert header.split()[3:] == ["agreement", "order"]
    assert row.split()[3:] == ["75.0+-0.0", "50.0+-0.0"]


def test_a_table_without_results_names_the_command_that_makes_them(tmp_path, run_program):
    folder = make_run(tmp_path / "a", ALL)
    (folder / "glue" / "results.jsonl").unlink()
    assert f"python glue.py finetune {folder}" in failure(run_program, "table", folder)


DAMAGED = [
    '{"task": "cola", "seed": 1, "result": {"score": 5',
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


def test_cut_results_are_named_and_left_alone(tmp_path, run_program):
    folder = make_run(tmp_path / "a", {"cola": [1]})
    path = folder / "glue" / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    before = path.read_bytes()
    assert f"{path} is damaged" in failure(run_program, "table", folder)
    assert path.read_bytes() == before
