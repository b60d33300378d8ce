"""GLUE's files: their formats, MRPC's split, and the numbers of a submission."""

import zipfile

import pytest

from conftest import write
from support import glue_files
from support.commands import UserError
from support.glue_files import (
    FORMATS,
    SUBMISSION,
    download_tasks,
    file_path,
    has_labels,
    read_task,
    write_zip,
)

# The published files, written down a second time, with "|" for a tab: train and dev, then test. The
# label ids of the three rows are 0, 1, 0; in MNLI 0, 1, 2; and in STS-B they are the numbers.
FILES = {
    "cola": (
        """
0|0|0|a0
1|1|1|a1
2|0|2|a2
""",
        """
index|sentence
0|a0
1|a1
2|a2
""",
    ),
    "sst-2": (
        """
sentence|label
a0|0
a1|1
a2|0
""",
        """
index|sentence
0|a0
1|a1
2|a2
""",
    ),
    "mrpc": (
        """
Quality|#1 ID|#2 ID|#1 String|#2 String
0|0|0|a0|b0
1|1|1|a1|b1
0|2|2|a2|b2
""",
        """
index|#1 ID|#2 ID|#1 String|#2 String
0|0|0|a0|b0
1|1|1|a1|b1
2|2|2|a2|b2
""",
    ),
    "sts-b": (
        """
index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score
0|0|0|0|0|0|0|a0|b0|0.0
1|1|1|1|1|1|1|a1|b1|0.5
2|2|2|2|2|2|2|a2|b2|5.0
""",
        """
index|genre|filename|year|old_index|source1|source2|sentence1|sentence2
0|0|0|0|0|0|0|a0|b0
1|1|1|1|1|1|1|a1|b1
2|2|2|2|2|2|2|a2|b2
""",
    ),
    "qqp": (
        """
id|qid1|qid2|question1|question2|is_duplicate
0|0|0|a0|b0|0
1|1|1|a1|b1|1
2|2|2|a2|b2|0
""",
        """
id|question1|question2
0|a0|b0
1|a1|b1
2|a2|b2
""",
    ),
    "mnli": (
        """
index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|\
sentence2_parse|sentence1|sentence2|label1|gold_label
0|0|0|0|0|0|0|0|a0|b0|0|contradiction
1|1|1|1|1|1|1|1|a1|b1|1|entailment
2|2|2|2|2|2|2|2|a2|b2|2|neutral
""",
        """
index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|\
sentence2_parse|sentence1|sentence2
0|0|0|0|0|0|0|0|a0|b0
1|1|1|1|1|1|1|1|a1|b1
2|2|2|2|2|2|2|2|a2|b2
""",
    ),
    "qnli": (
        """
index|question|sentence|label
0|a0|b0|entailment
1|a1|b1|not_entailment
2|a2|b2|entailment
""",
        """
index|question|sentence
0|a0|b0
1|a1|b1
2|a2|b2
""",
    ),
    "rte": (
        """
index|sentence1|sentence2|label
0|a0|b0|entailment
1|a1|b1|not_entailment
2|a2|b2|entailment
""",
        """
index|sentence1|sentence2
0|a0|b0
1|a1|b1
2|a2|b2
""",
    ),
    "wnli": (
        """
index|sentence1|sentence2|label
0|a0|b0|0
1|a1|b1|1
2|a2|b2|0
""",
        """
index|sentence1|sentence2
0|a0|b0
1|a1|b1
2|a2|b2
""",
    ),
}
LABELS = dict.fromkeys(FILES, [0, 1, 0]) | {"mnli": [0, 1, 2], "sts-b": [0, 0.5, 5]}


def published_file(name, split):
    """A file as it was published, with three rows: sentences "a0", "b0", other columns 0, 1, 2."""
    text = FILES[name][0 if has_labels(split) else 1]
    if split == "diagnostic":
        text = FILES["rte"][1]  # the same columns
    return text.lstrip().replace("|", "\t")


@pytest.mark.parametrize("name", FORMATS)
def test_published_files_are_read(tmp_path, name):
    task = FORMATS[name]
    for split in task.splits:
        write(file_path(task, tmp_path, split), published_file(name, split))
        second = None if name in ("cola", "sst-2") else ["b0", "b1", "b2"]
        labels = LABELS[name] if has_labels(split) else None
        assert read_task(task, tmp_path, split) == (["a0", "a1", "a2"], second, labels)


def test_quotes_are_text_and_only_a_line_feed_ends_a_row(tmp_path):
    text = (
        "index\tsentence1\tsentence2\tlabel\n"
        '0\t"open\tclosed" \tentailment\n'
        '1\ta\u2028b\x0c\x1cc\t""\tnot_entailment\n'
    )
    write(tmp_path / "RTE/train.tsv", text.encode("utf-8-sig"))  # with a byte order mark
    examples = read_task(FORMATS["rte"], tmp_path, "train")
    assert examples.a == ['"open', "a\u2028b\x0c\x1cc"]
    assert examples.b == ['closed" ', '""']
    assert examples.labels == [0, 1]


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("rte", "not_entailment", "neutral"),
        ("sts-b", "\t0.5\n", "\tnan\n"),
        ("sts-b", "\t0.5\n", "\t6e3\n"),
        ("sts-b", "\t0.5\n", "\tfive\n"),
    ],
)
def test_a_wrong_label_is_refused(tmp_path, name, old, new):
    task = FORMATS[name]
    text = published_file(name, "dev")
    assert old in text
    write(file_path(task, tmp_path, "dev"), text.replace(old, new))
    with pytest.raises(UserError, match="dev.tsv"):
        read_task(task, tmp_path, "dev")


def test_the_broken_rows_of_qqp_are_left_out_as_a_line_says(tmp_path, capsys):
    text = published_file("qqp", "train").replace("\n1\t", "\n1\t3\t4\tc\n1\t")
    write(tmp_path / "QQP/train.tsv", text)
    assert read_task(FORMATS["qqp"], tmp_path, "train").a == ["a0", "a1", "a2"]
    assert "1 lines have too few columns" in capsys.readouterr().out


# --- Downloads ------------------------------------------------------------------------------------


def test_archives_are_unpacked_once_and_mrpc_is_split_by_its_dev_ids(tmp_path, monkeypatch):
    """MRPC: rows 1 and 3 have both ids of a line of the dev ids; rows 0 and 4 have one of them."""
    asked = []

    def download(url, path, sha256):
        asked.append(path.name)
        if path.suffix == ".zip":
            path.parent.mkdir(exist_ok=True)
            with zipfile.ZipFile(path, "w") as archive:
                for split in FORMATS["rte"].splits:
                    archive.writestr(f"RTE/{split}.tsv", published_file("rte", split))
        else:
            write(path, texts[path.name].encode("utf-8-sig"))
        return path

    rows = [f'{n % 2}\t{min(n, 3)}\t{max(n, 1) + 10}\t"a{n}\tb{n}' for n in range(5)]
    header = published_file("mrpc", "train").splitlines()[0]
    texts = {
        "msr_paraphrase_train.txt": "\n".join([header, *rows, ""]),
        "test.tsv": published_file("mrpc", "test"),
        "dev_ids.tsv": "3\t13\n1\t11\n0\t12\n",
    }
    monkeypatch.setattr(glue_files, "download", download)
    for _ in range(2):
        download_tasks(["rte", "mrpc"], tmp_path)
    assert asked.count("RTE.zip") == 1

    assert len(read_task(FORMATS["rte"], tmp_path, "dev").a) == 3
    task = FORMATS["mrpc"]
    rows = {split: read_task(task, tmp_path, split).a for split in task.splits}
    assert rows == {
        "train": ['"a0', '"a2', '"a4'],
        "dev": ['"a1', '"a3'],
        "test": ["a0", "a1", "a2"],
    }


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
