"""GLUE's files: their formats, MRPC's split, and the numbers of a submission."""

import zipfile
from dataclasses import replace

import pytest

from conftest import rows_of, write
from support import glue_files
from support.commands import UserError
from support.glue_files import (
    FORMATS,
    SUBMISSION,
    download_tasks,
    file_path,
    has_labels,
    read_task,
    write_split,
    write_zip,
)

# The published files, written down a second time, independently of the code: header lines with "|"
# for a tab (train and dev, test), and the positions of the columns that are read.
MNLI = (
    "index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|"
    "sentence1_parse|sentence2_parse|sentence1|sentence2"
)
STS_B = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
PAIR = "index|sentence1|sentence2"
MRPC = "#1 ID|#2 ID|#1 String|#2 String"
QQP = "id|qid1|qid2|question1|question2|is_duplicate"
QNLI = "index|question|sentence"

# fmt: off
HEADERS = {
    "cola": (None, "index|sentence"),
    "sst-2": ("sentence|label", "index|sentence"),
    "mrpc": ("Quality|" + MRPC, "index|" + MRPC),
    "sts-b": (STS_B + "|score", STS_B),
    "qqp": (QQP, "id|question1|question2"),
    "mnli": (MNLI + "|label1|gold_label", MNLI),
    "qnli": (QNLI + "|label", QNLI),
    "rte": (PAIR + "|label", PAIR),
    "wnli": (PAIR + "|label", PAIR),
}
# the rows of each split; the columns of texts and label in train and dev, and of texts in test
FILES = """
    cola   8551,1043,1063                     3    1   1
    sst-2  67349,872,1821                     0    1   1
    mrpc   3668,408,1725                      3,4  0   3,4
    sts-b  5749,1500,1379                     7,8  9   7,8
    qqp    363846,40430,390965                3,4  5   1,2
    mnli   392702,9815,9832,9796,9847,1104    8,9  11  8,9
    qnli   104743,5463,5463                   1,2  3   1,2
    rte    2490,277,3000                      1,2  3   1,2
    wnli   635,71,146                         1,2  3   1,2
"""
FILES = {
    name: [[int(number) for number in cell.split(",")] for cell in cells]
    for name, *cells in rows_of(FILES)
}
WORDS = {  # the labels in the order of their ids; STS-B has numbers
    "mnli": ("contradiction", "entailment", "neutral"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
}
# fmt: on


def with_rows(name, **rows):
    """The format of a task with other row counts than the published ones."""
    return replace(FORMATS[name], rows=FORMATS[name].rows | rows)


def label_of(name, row):
    """(the label of a row, as it is written; as it is read)."""
    if name == "sts-b":
        return str(row / 2), row / 2
    words = WORDS.get(name, ("0", "1"))
    return words[row % len(words)], row % len(words)


def published_file(name, split, rows):
    """A file as it was published. Sentences are "a0", "b0"; other columns have the row's number."""
    header = HEADERS[name][0 if has_labels(split) else 1]
    _, with_label, [label], without = FILES[name]
    positions = with_label if has_labels(split) else without
    if split == "diagnostic":
        header, positions = PAIR, [1, 2]
    lines = [] if header is None else [header.replace("|", "\t")]
    columns = 4 if header is None else len(header.split("|"))
    for row in range(rows):
        fields = [str(row)] * columns
        for letter, position in zip("ab", positions, strict=False):
            fields[position] = f"{letter}{row}"
        if has_labels(split):
            fields[label] = label_of(name, row)[0]
        lines.append("\t".join(fields))
    return "\n".join(lines) + "\n"


def test_row_counts_are_the_published_ones():
    expected = {name: rows for name, (rows, *_) in FILES.items()}
    assert {name: [*task.rows.values()] for name, task in FORMATS.items()} == expected


@pytest.mark.parametrize("name", FORMATS)
def test_files_are_written_and_read_in_the_published_format(tmp_path, name):
    task = with_rows(name, **dict.fromkeys(FORMATS[name].rows, 5))
    rows = []
    for row in range(5):
        texts = dict(zip(task.texts, (f"a{row}", f"b{row}"), strict=False))
        rows.append({**texts, task.label: label_of(name, row)[0]})
    for split in task.rows:
        write_split(tmp_path, task, split, rows)
        path = file_path(task, tmp_path, split)
        assert path.read_bytes().decode() == published_file(name, split, 5)

        examples = read_task(task, tmp_path, split)
        assert examples.a == [f"a{row}" for row in range(5)]
        if name in ("cola", "sst-2"):
            assert examples.b is None
        else:
            assert examples.b == [f"b{row}" for row in range(5)]
        if has_labels(split):
            assert examples.labels == [label_of(name, row)[1] for row in range(5)]
        else:
            assert examples.labels is None


def test_quotes_are_text_and_only_a_line_feed_ends_a_row(tmp_path):
    text = (
        "index\tsentence1\tsentence2\tlabel\n"
        '0\t"open\tclosed" \tentailment\n'
        '1\ta\u2028b\x0c\x1cc\t""\tnot_entailment\n'
    )
    write(tmp_path / "RTE/train.tsv", text.encode("utf-8-sig"))  # with a byte order mark
    examples = read_task(with_rows("rte", train=2), tmp_path, "train")
    assert examples.a == ['"open', "a\u2028b\x0c\x1cc"]
    assert examples.b == ['closed" ', '""']
    assert examples.labels == [0, 1]


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("rte", "not_entailment", "neutral"),
        ("rte", "\tb1", ""),
        ("rte", "\n1\t", "\n7\ta7\tb7\tentailment\n1\t"),  # three rows in place of two
        ("sts-b", "\t0.5\n", "\tnan\n"),
        ("sts-b", "\t0.5\n", "\t6e3\n"),
        ("sts-b", "\t0.5\n", "\tfive\n"),
    ],
)
def test_a_wrong_label_a_broken_row_and_another_number_of_rows_are_refused(
    tmp_path, name, old, new
):
    task = with_rows(name, dev=2)
    text = published_file(name, "dev", 2)
    assert old in text
    write(file_path(task, tmp_path, "dev"), text.replace(old, new))
    with pytest.raises(UserError, match="dev.tsv"):
        read_task(task, tmp_path, "dev")


def test_the_broken_rows_of_qqp_are_skipped(tmp_path):
    header, first, second = published_file("qqp", "train", 2).splitlines()
    write(tmp_path / "QQP/train.tsv", "\n".join([header, first, "1\t3\t4\tc", second]))
    assert read_task(with_rows("qqp", train=2), tmp_path, "train").a == ["a0", "a1"]


# --- Downloads ------------------------------------------------------------------------------------


def test_archives_are_unpacked_once_and_mrpc_is_split_by_its_dev_ids(tmp_path, monkeypatch):
    """MRPC: rows 1 and 3 have both ids of a line of the dev ids; rows 0 and 4 have one of them."""
    asked = []

    def download(url, path, sha256):
        asked.append(path.name)
        if path.suffix == ".zip":
            path.parent.mkdir(exist_ok=True)
            with zipfile.ZipFile(path, "w") as archive:
                for split in FORMATS["rte"].rows:
                    archive.writestr(f"RTE/{split}.tsv", published_file("rte", split, 5))
        else:
            write(path, texts[path.name].encode("utf-8-sig"))
        return path

    rows = [f'{n % 2}\t{min(n, 3)}\t{max(n, 1) + 10}\t"a{n}\tb{n}' for n in range(5)]
    header = HEADERS["mrpc"][0].replace("|", "\t")
    texts = {
        "msr_paraphrase_train.txt": "\n".join([header, *rows, ""]),
        "test.tsv": published_file("mrpc", "test", 2),
        "dev_ids.tsv": "3\t13\n1\t11\n0\t12\n",
    }
    monkeypatch.setattr(glue_files, "download", download)
    for _ in range(2):
        download_tasks(["rte", "mrpc"], tmp_path)
    assert asked.count("RTE.zip") == 1

    assert len(read_task(with_rows("rte", dev=5), tmp_path, "dev").a) == 5
    task = with_rows("mrpc", train=3, dev=2, test=2)
    rows = {split: read_task(task, tmp_path, split).a for split in task.rows}
    assert rows == {"train": ['"a0', '"a2', '"a4'], "dev": ['"a1', '"a3'], "test": ["a0", "a1"]}


# --- The submission -------------------------------------------------------------------------------


def test_each_file_of_a_submission_belongs_to_the_task_and_split_of_its_name():
    """The format of its files is tested with glue.py predict."""
    names = "CoLA SST-2 MRPC STS-B QNLI QQP RTE WNLI"
    expected = {f"{name}.tsv": (name.lower(), "test") for name in names.split()}
    expected["MNLI-m.tsv"] = ("mnli", "test_matched")
    expected["MNLI-mm.tsv"] = ("mnli", "test_mismatched")
    expected["AX.tsv"] = ("mnli", "diagnostic")
    assert {file: (task, split) for file, (task, split, _) in SUBMISSION.items()} == expected


def test_a_submission_has_words_for_classes_and_numbers_between_0_and_5(tmp_path):
    answers = {"STS-B.tsv": [2.0, -0.3, 5.2, 1.23456], "RTE.tsv": [1.0, 0.0]}
    write_zip(tmp_path / "zip", answers)
    with zipfile.ZipFile(tmp_path / "zip") as archive:
        numbers = archive.read("STS-B.tsv").decode()
        words = archive.read("RTE.tsv").decode()
    assert numbers == "index\tprediction\n0\t2.000\n1\t0.000\n2\t5.000\n3\t1.235\n"
    assert words == "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
