"""support/glue_submission.py: what is written is a submission, and each mistake in one is named."""

import zipfile
from pathlib import Path

import pytest

from glue_helpers import error_of, with_equal_rows
from support.glue_format import FORMATS
from support.glue_submission import (
    CHOSEN_ON,
    SUBMISSION,
    check_submission,
    submission_text,
    write_zip,
)


@pytest.fixture(scope="module")
def submission(tmp_path_factory):
    """A zip of made predictions with the published row counts."""
    path = tmp_path_factory.mktemp("zip") / "submission.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, (name, split) in SUBMISSION.items():
            task = FORMATS[name]
            word = "2.500" if task.classes is None else task.classes[0]
            lines = [f"{index}\t{word}\n" for index in range(task.rows[split])]
            archive.writestr(file, "index\tprediction\n" + "".join(lines))
    return path


def problems_of(path, formats=FORMATS):
    """The lines of the message that refuses a zip, without the first one, which names the zip."""
    with pytest.raises(ValueError) as caught:
        check_submission(path, formats)
    first, *problems = str(caught.value).splitlines()
    assert str(path) in first
    return problems


# --- writing ---


def test_the_eleven_files_are_glue_s():
    names = "CoLA.tsv SST-2.tsv MRPC.tsv STS-B.tsv MNLI-m.tsv MNLI-mm.tsv QNLI.tsv QQP.tsv RTE.tsv"
    assert " ".join(SUBMISSION) == names + " WNLI.tsv AX.tsv"

    # each one belongs to the task of its name
    for file, (name, split) in SUBMISSION.items():
        if split == "test":
            assert file == f"{FORMATS[name].folder}.tsv"
    assert SUBMISSION["MNLI-m.tsv"] == ("mnli", "test_matched")
    assert SUBMISSION["MNLI-mm.tsv"] == ("mnli", "test_mismatched")
    assert SUBMISSION["AX.tsv"] == ("mnli", "diagnostic")


def test_every_file_has_a_development_split_that_chooses_its_run_and_each_half_of_mnli_its_own():
    chosen = {}
    for file, (name, split) in SUBMISSION.items():
        assert CHOSEN_ON[split] in FORMATS[name].dev_splits
        chosen[file] = CHOSEN_ON[split]
    assert chosen["MNLI-m.tsv"] == chosen["AX.tsv"] == "dev_matched"
    assert chosen["MNLI-mm.tsv"] == "dev_mismatched"


def test_class_ids_are_written_as_label_words():
    text = submission_text([1, 0, 1], FORMATS["rte"])
    assert text == "index\tprediction\n0\tnot_entailment\n1\tentailment\n2\tnot_entailment\n"


def test_numbers_are_written_with_three_decimals_between_0_and_5():
    text = submission_text([2.0, -0.3, 5.2, 1.23456], FORMATS["sts-b"])
    assert text == "index\tprediction\n0\t2.000\n1\t0.000\n2\t5.000\n3\t1.235\n"


def test_a_written_zip_is_a_submission(tmp_path, capsys):
    formats = {name: with_equal_rows(name, 4) for name in FORMATS}
    folder = tmp_path / "files"
    folder.mkdir()
    for file, (name, _) in SUBMISSION.items():
        text = submission_text([0, 1, 1, 0], formats[name])
        (folder / file).write_text(text, encoding="utf-8", newline="\n")
    write_zip(tmp_path / "submission.zip", folder)
    check_submission(tmp_path / "submission.zip", formats)
    assert "11 files" in capsys.readouterr().out


# --- checking ---


def test_the_checker_accepts_a_submission_of_the_published_sizes(submission, capsys):
    check_submission(submission, FORMATS)
    assert "11 files" in capsys.readouterr().out


def test_predictions_that_are_all_equal_are_named_but_allowed(tmp_path, capsys):
    path = tmp_path / "submission.zip"
    formats = {name: with_equal_rows(name, 3) for name in FORMATS}
    with zipfile.ZipFile(path, "w") as archive:
        for file, (name, _) in SUBMISSION.items():
            predictions = [1, 1, 1] if file in ("RTE.tsv", "STS-B.tsv") else [0, 1, 0]
            archive.writestr(file, submission_text(predictions, formats[name]))
    check_submission(path, formats)
    lines = capsys.readouterr().out.splitlines()
    assert "11 files" in lines[0]
    assert [line.split("):")[0] for line in lines[1:]] == [
        "STS-B.tsv: all predictions are equal (1.000",
        "RTE.tsv: all predictions are equal (not_entailment",
    ]


def remove_file(lines):
    return None


def add_a_line(lines):
    return [*lines, "3000\tentailment"]


def drop_the_last_line(lines):
    return lines[:-1]


def other_header(lines):
    return ["id\tprediction", *lines[1:]]


def exchange_two_lines(lines):
    return [*lines[:5], lines[6], lines[5], *lines[7:]]


def predict(label):
    """A change that makes `label` the prediction of the fifth row, which is line 6."""

    def change(lines):
        return [*lines[:5], f"4\t{label}", *lines[6:]]

    return change


@pytest.mark.parametrize(
    "file, change, message",
    [
        ("RTE.tsv", remove_file, "RTE.tsv is missing"),
        ("RTE.tsv", add_a_line, "RTE.tsv has 3,001 predictions, not 3,000"),
        ("RTE.tsv", drop_the_last_line, "RTE.tsv has 2,999 predictions, not 3,000"),
        (
            "RTE.tsv",
            predict("yes"),
            "RTE.tsv, line 6: prediction 'yes' is not one of: entailment",
        ),
        ("AX.tsv", predict("1"), "AX.tsv, line 6: prediction '1' is not one of: contradiction"),
        ("CoLA.tsv", predict("2"), "CoLA.tsv, line 6: prediction '2' is not one of: 0, 1"),
        ("STS-B.tsv", predict("5.001"), "STS-B.tsv, line 6: prediction '5.001' is not a number"),
        ("STS-B.tsv", predict("nan"), "STS-B.tsv, line 6: prediction 'nan' is not a number"),
        ("WNLI.tsv", other_header, "WNLI.tsv: its first line is 'id\\tprediction'"),
        ("QNLI.tsv", exchange_two_lines, "QNLI.tsv, line 6: index '5', not 4"),
    ],
)
def test_each_way_of_breaking_a_submission_is_named(submission, tmp_path, file, change, message):
    path = tmp_path / "broken.zip"
    with zipfile.ZipFile(submission) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            lines = source.read(name).decode().splitlines()
            if name == file:
                lines = change(lines)
            if lines is not None:
                target.writestr(name, "\n".join(lines) + "\n")
    [problem] = problems_of(path)
    assert message in problem


def test_nested_and_foreign_and_doubled_files_are_named(submission, tmp_path):
    path = tmp_path / "broken.zip"
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(submission) as source,
        zipfile.ZipFile(path, "w") as target,
    ):
        for name in source.namelist():
            new_name = "mine/RTE.tsv" if name == "RTE.tsv" else name
            target.writestr(new_name, source.read(name))
        target.writestr("notes.txt", "hello")
        target.writestr("QQP.tsv", source.read("QQP.tsv"))

    problems = "\n".join(problems_of(path))
    assert "mine/RTE.tsv is in a folder" in problems
    assert "  RTE.tsv is missing" in problems
    assert "notes.txt is not a file of a submission" in problems
    assert "QQP.tsv is there 2 times" in problems


def test_a_file_too_large_for_a_submission_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("QQP.tsv", bytes(70_000_000))

    def read(archive, info):
        raise AssertionError("it was unpacked")

    monkeypatch.setattr(zipfile.ZipFile, "read", read)
    assert "70,000,000 bytes" in error_of(check_submission, path, FORMATS)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip"])
def test_a_file_that_is_no_zip_is_one_line(tmp_path, content):
    path = tmp_path / "submission.zip"
    path.write_bytes(content)
    assert str(path) in error_of(check_submission, path, FORMATS)


def test_a_missing_zip_is_one_line(tmp_path):
    path = Path(tmp_path, "submission.zip")
    assert str(path) in error_of(check_submission, path, FORMATS, kind=FileNotFoundError)
