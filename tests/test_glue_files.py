"""GLUE's files: formats, MRPC's split, checked downloads, and the numbers of a submission."""

import hashlib
import http.server
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from support import glue_downloads
from support.commands import UserError
from support.glue_downloads import SOURCES, download_tasks
from support.glue_format import FORMATS, file_path, has_labels, read_task, write_split
from support.glue_submission import SUBMISSION, submission_text

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
POSITIONS = {  # texts and label in train and dev; texts in test
    "cola": ([3], 1, [1]),
    "sst-2": ([0], 1, [1]),
    "mrpc": ([3, 4], 0, [3, 4]),
    "sts-b": ([7, 8], 9, [7, 8]),
    "qqp": ([3, 4], 5, [1, 2]),
    "mnli": ([8, 9], 11, [8, 9]),
    "qnli": ([1, 2], 3, [1, 2]),
    "rte": ([1, 2], 3, [1, 2]),
    "wnli": ([1, 2], 3, [1, 2]),
}
ROWS = {
    "cola": (8551, 1043, 1063),
    "sst-2": (67349, 872, 1821),
    "mrpc": (3668, 408, 1725),
    "sts-b": (5749, 1500, 1379),
    "qqp": (363846, 40430, 390965),
    "mnli": (392702, 9815, 9832, 9796, 9847, 1104),
    "qnli": (104743, 5463, 5463),
    "rte": (2490, 277, 3000),
    "wnli": (635, 71, 146),
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
    positions = POSITIONS[name][0 if has_labels(split) else 2]
    if split == "diagnostic":
        header, positions = PAIR, [1, 2]
    lines = [] if header is None else [header.replace("|", "\t")]
    columns = 4 if header is None else len(header.split("|"))
    for row in range(rows):
        fields = [str(row)] * columns
        for letter, position in zip("ab", positions, strict=False):
            fields[position] = f"{letter}{row}"
        if has_labels(split):
            fields[POSITIONS[name][1]] = label_of(name, row)[0]
        lines.append("\t".join(fields))
    return "\n".join(lines) + "\n"


def test_row_counts_are_the_published_ones():
    assert {name: tuple(task.rows.values()) for name, task in FORMATS.items()} == ROWS


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


def write_rte(folder, *rows):
    path = folder / "RTE" / "train.tsv"
    path.parent.mkdir()
    lines = ["index\tsentence1\tsentence2\tlabel", *rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig", newline="")


def test_quotes_are_text_and_only_a_line_feed_ends_a_row(tmp_path):
    """The file begins with a byte order mark, as some published ones do."""
    write_rte(
        tmp_path, '0\t"open\tclosed" \tentailment', '1\ta\u2028b\x0c\x1cc\t""\tnot_entailment'
    )
    examples = read_task(with_rows("rte", train=2), tmp_path, "train")
    assert examples.a == ['"open', "a\u2028b\x0c\x1cc"]
    assert examples.b == ['closed" ', '""']
    assert examples.labels == [0, 1]


@pytest.mark.parametrize(
    "last_row", ["1\tc\td\tneutral", "1\tc", "1\tc\td\tentailment\n2\te\tf\tentailment"]
)
def test_a_wrong_label_a_broken_row_and_another_number_of_rows_are_refused(tmp_path, last_row):
    write_rte(tmp_path, "0\ta\tb\tentailment", last_row)
    with pytest.raises(UserError, match="train.tsv"):
        read_task(with_rows("rte", train=2), tmp_path, "train")


def test_the_broken_rows_of_qqp_are_skipped(tmp_path):
    task = with_rows("qqp", train=2)
    good = published_file("qqp", "train", 2).splitlines()
    path = file_path(task, tmp_path, "train")
    path.parent.mkdir()
    path.write_text("\n".join([*good[:2], "1\t3\t4\tc", '"\td\t0', good[2], ""]), encoding="utf-8")
    examples = read_task(task, tmp_path, "train")
    assert (examples.a, examples.b, examples.labels) == (["a0", "a1"], ["b0", "b1"], [0, 1])


# --- Downloads ------------------------------------------------------------------------------------


class Server(http.server.BaseHTTPRequestHandler):
    """Serves server.files by their names."""

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        self.server.asked.append(name)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.files[name])))
        self.end_headers()
        self.wfile.write(self.server.files[name])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(serve, monkeypatch):
    """A server that has RTE and MRPC, with few rows; what it has counts as published."""
    rows = [f'{n % 2}\t{min(n, 3)}\t{max(n, 1) + 10}\t"a{n}\tb{n}' for n in range(5)]
    header = HEADERS["mrpc"][0].replace("|", "\t")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for split in FORMATS["rte"].rows:
            file.writestr(f"RTE/{split}.tsv", published_file("rte", split, 5))
    server = serve(Server)
    server.files = {
        "RTE.zip": archive.getvalue(),
        "msr_paraphrase_train.txt": "\n".join([header, *rows, ""]).encode("utf-8-sig"),
        "msr_paraphrase_test.txt": published_file("mrpc", "test", 2).encode("utf-8-sig"),
        "mrpc_dev_ids.tsv": b"3\t13\n1\t11\n0\t12\n",
    }
    sources = []
    for source in SOURCES:
        name = source.url.rpartition("/")[2]
        if name in server.files:
            url = f"http://127.0.0.1:{server.server_port}/{name}"
            size = len(server.files[name])
            sha256 = hashlib.sha256(server.files[name]).hexdigest()
            sources.append(replace(source, url=url, size=size, sha256=sha256))
    monkeypatch.setattr(glue_downloads, "SOURCES", tuple(sources))
    return server


def test_files_are_downloaded_once_unpacked_and_mrpc_is_split_by_its_dev_ids(server, tmp_path):
    """Rows 1 and 3 have both ids of a line of the dev ids; rows 0 and 4 have one of them."""
    download_tasks(["rte", "mrpc"], tmp_path)
    download_tasks(["rte", "mrpc"], tmp_path)
    assert sorted(server.asked) == sorted(server.files)

    assert len(read_task(with_rows("rte", dev=5), tmp_path, "dev").a) == 5
    task = with_rows("mrpc", train=3, dev=2, test=2)
    train = read_task(task, tmp_path, "train")
    assert (train.a, train.b, train.labels) == (['"a0', '"a2', '"a4'], ["b0", "b2", "b4"], [0] * 3)
    dev = read_task(task, tmp_path, "dev")
    assert (dev.a, dev.b, dev.labels) == (['"a1', '"a3'], ["b1", "b3"], [1, 1])
    assert read_task(task, tmp_path, "test").a == ["a0", "a1"]


@pytest.mark.parametrize("change", ["one byte", "shorter"])
def test_a_download_with_another_size_or_sha_256_is_refused_and_not_kept(server, tmp_path, change):
    content = server.files["RTE.zip"]
    other = {"one byte": content[:99] + b"?" + content[100:], "shorter": content[:-1]}
    server.files["RTE.zip"] = other[change]
    with pytest.raises(UserError, match="RTE.zip"):
        download_tasks(["rte"], tmp_path)
    assert not list(Path(tmp_path).rglob("*.zip")) and not (tmp_path / "RTE").exists()


# --- The submission -------------------------------------------------------------------------------


def test_each_file_of_a_submission_belongs_to_the_task_and_split_of_its_name():
    """The format of its files is tested with glue.py predict."""
    halves = {
        "MNLI-m.tsv": ("mnli", "test_matched"),
        "MNLI-mm.tsv": ("mnli", "test_mismatched"),
        "AX.tsv": ("mnli", "diagnostic"),
    }
    for file, (name, split, *_) in SUBMISSION.items():
        expected = halves.get(file, (file.removesuffix(".tsv").lower(), "test"))
        assert (name, split) == expected


def test_numbers_are_written_with_three_decimals_between_0_and_5():
    text = submission_text([2.0, -0.3, 5.2, 1.23456], FORMATS["sts-b"])
    assert text == "index\tprediction\n0\t2.000\n1\t0.000\n2\t5.000\n3\t1.235\n"
