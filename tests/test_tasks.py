"""tasks.py: tasks and settings, readers of GLUE's files, downloads from our own server, metrics."""

import functools
import hashlib
import http.server
import io
import itertools
import math
import random
import re
import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tasks
from tasks import TASKS, read_task

MNLI_HEADER = ("index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|"
               "sentence2_parse|sentence1|sentence2")
STS_B_HEADER = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
HEADERS = {name: [header and header.replace("|", "\t") for header in pair] for name, pair in {  # train, test
    "CoLA": (None, "index|sentence"),
    "SST-2": ("sentence|label", "index|sentence"),
    "MRPC": ("Quality|#1 ID|#2 ID|#1 String|#2 String", "index|#1 ID|#2 ID|#1 String|#2 String"),
    "QQP": ("id|qid1|qid2|question1|question2|is_duplicate", "id|question1|question2"),
    "STS-B": (STS_B_HEADER + "|score", STS_B_HEADER),
    "MNLI": (MNLI_HEADER + "|label1|gold_label", MNLI_HEADER),
    "QNLI": ("index|question|sentence|label", "index|question|sentence"),
    "RTE": ("index|sentence1|sentence2|label", "index|sentence1|sentence2"),
    "WNLI": ("index|sentence1|sentence2|label", "index|sentence1|sentence2"),
}.items()}
COLUMNS = {  # published places: texts and label in train and dev, texts in test
    "CoLA": ([3], 1, [1]), "SST-2": ([0], 1, [1]), "MRPC": ([3, 4], 0, [3, 4]), "QQP": ([3, 4], 5, [1, 2]),
    "STS-B": ([7, 8], 9, [7, 8]), "MNLI": ([8, 9], 11, [8, 9]), "QNLI": ([1, 2], 3, [1, 2]), "RTE": ([1, 2], 3, [1, 2]),
    "WNLI": ([1, 2], 3, [1, 2]),
}
DIAGNOSTIC = ("index\tsentence1\tsentence2", [1, 2])


def write(path, *lines, end="\n", bom=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + "".join(line + end for line in lines).encode())
    return path


def small(name, **rows):
    """The task with these published row counts in place of its own."""
    return replace(TASKS[name], rows=TASKS[name].rows | rows)


def quiet(line):
    raise AssertionError(f"unexpected: {line}")


def error_of(call, *arguments, kind=ValueError, **named):
    with pytest.raises(kind) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rte(folder, *rows, **options):
    return write(folder / "RTE" / "train.tsv", "index\tsentence1\tsentence2\tlabel", *rows, **options)


# --- tasks ---

def test_settings_are_those_of_the_paper():
    table = {  # rows; metrics; epochs, batch size, learning rate (small, base), start, released steps
        "cola": (8551, 1043, 1063, "matthews", 3, 32, 3e-4, 1e-4, None, 851),
        "sst-2": (67349, 872, 1821, "accuracy", 3, 32, 3e-4, 1e-4, None, 6409),
        "mrpc": (3668, 408, 1725, "accuracy f1", 3, 32, 3e-4, 1e-4, "mnli", 343),
        "sts-b": (5749, 1500, 1379, "pearson spearman", 10, 32, 3e-4, 1e-4, "mnli", 1836),
        "qqp": (363846, 40430, 390965, "accuracy f1", 4, 128, 3e-4, 1e-4, None, 11200),
        "mnli": (392702, 9815, 9832, 9796, 9847, 1104, "accuracy", 4, 128, 3e-4, 1e-4, None, 12121),
        "qnli": (104743, 5463, 5463, "accuracy", 3, 32, 1e-4, 1e-4, None, 9835),
        "rte": (2490, 277, 3000, "accuracy", 10, 32, 3e-4, 1e-4, "mnli", 777),
        "wnli": (635, 71, 146, "accuracy", 5, 32, 3e-4, 1e-4, None, 100),
    }
    rates = [tasks.LEARNING_RATES[size] for size in ("small", "base")]
    assert {name: (*task.rows.values(), " ".join(task.metrics), task.epochs, task.batch_size,
                   *(task.lr or rate for rate in rates), task.start, task.released_steps)
            for name, task in TASKS.items()} == table
    assert tasks.SEEDS == (42, 97, 834, 622, 329, 75, 213, 101, 123, 57)
    assert (tasks.WARMUP_SHARE, tasks.WEIGHT_DECAY, tasks.DROPOUT, tasks.SEQ_LEN) == (0.1, 0.0, 0.1, 128)


def test_released_steps_come_near_the_epochs_of_each_task():
    for task in TASKS.values():
        steps = task.epochs * (task.rows["train"] // task.batch_size)
        assert abs(steps / task.released_steps - 1) < 0.06, task.folder


def test_an_unknown_task_is_answered_with_the_list():
    message = error_of(tasks.find_tasks, "snli")
    assert "'snli'" in message and all(name in message for name in (*TASKS, "all"))
    assert tasks.find_tasks("RTE") == ["rte"] and tasks.find_tasks("all") == list(TASKS)


# --- readers ---

def published_lines(task, split, rows):
    """The lines of a published file: what is to be read stands at the published places, noise everywhere else."""
    test = split.startswith(("test", "diagnostic"))
    header, texts = HEADERS[task.folder][test], COLUMNS[task.folder][2 if test else 0]
    if split == "diagnostic":
        header, texts = DIAGNOSTIC
    lines = [header] if header else []
    for number in range(rows):
        fields = [f"noise {i}" for i in range(header.count("\t") + 1 if header else 4)]
        for place, letter in zip(texts, "ab"):
            fields[place] = f"{split} {letter}{number}"
        if not test:
            label = task.classes[number % len(task.classes)] if task.classes else str(number / 2)
            fields[COLUMNS[task.folder][1]] = label
        lines.append("\t".join(fields))
    return lines


@pytest.mark.parametrize("name", TASKS)
def test_published_columns_are_read_in_every_split(tmp_path, name):
    task = replace(TASKS[name], rows=dict.fromkeys(TASKS[name].rows, 5))
    for split in task.rows:
        write(tmp_path / ("diagnostic" if split == "diagnostic" else task.folder) / f"{split}.tsv",
              *published_lines(task, split, 5), bom=name == "mrpc")
    for split in task.rows:
        examples = read_task(task, tmp_path, split, log=quiet)
        assert examples.a == [f"{split} a{number}" for number in range(5)]
        assert examples.b == ([f"{split} b{number}" for number in range(5)] if len(task.texts) == 2 else None)
        labels = [number % len(task.classes) if task.classes else number / 2 for number in range(5)]
        assert examples.labels == (None if split.startswith(("test", "diagnostic")) else labels)
        assert not examples.partial and examples.skipped == ()


def test_quotes_are_literal_and_blanks_are_kept(tmp_path):
    rte(tmp_path, '0\t"open\tclosed" \tentailment', '1\t""\t\'\tnot_entailment')
    examples = read_task(small("rte", train=2), tmp_path, "train")
    assert (examples.a, examples.b, examples.labels) == (['"open', '""'], ['closed" ', "'"], [0, 1])


def test_unicode_line_separators_inside_a_sentence_do_not_end_the_row(tmp_path):
    rte(tmp_path, "0\ta\u2028b\x0c\x1cc\td\x85e\tentailment")
    examples = read_task(small("rte", train=1), tmp_path, "train")
    assert (examples.a, examples.b) == (["a\u2028b\x0c\x1cc"], ["d\x85e"])


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_byte_order_mark_and_foreign_line_ends_do_not_matter(tmp_path, end):
    rte(tmp_path, "0\ta\tb\tentailment", "1\tc\td\tnot_entailment", end=end, bom=True)
    write(tmp_path / "CoLA" / "train.tsv", "gj04\t1\t\tA.", "gj04\t0\t*\tB.", end=end, bom=True)
    examples, cola = (read_task(small(name, train=2), tmp_path, "train") for name in ("rte", "cola"))
    assert (examples.a, examples.b, examples.labels) == (["a", "c"], ["b", "d"], [0, 1])
    assert (cola.a, cola.b, cola.labels) == (["A.", "B."], None, [1, 0])


def test_a_file_without_a_last_line_end_and_one_with_empty_lines_read_alike(tmp_path):
    path = rte(tmp_path, "0\ta\tb\tentailment", "", "1\tc\td\tentailment", "")
    task = small("rte", train=2)
    one = read_task(task, tmp_path, "train", log=quiet)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert one == read_task(task, tmp_path, "train", log=quiet) and one.a == ["a", "c"]


@pytest.mark.parametrize("rows", [3, 5])
def test_another_number_of_rows_than_published_is_refused_with_file_and_counts(tmp_path, rows):
    path = rte(tmp_path, *(f"{number}\ta\tb\tentailment" for number in range(rows)))
    message = error_of(read_task, small("rte", train=4), tmp_path, "train")
    assert str(path) in message and f"{rows} rows" in message and "published are 4" in message
    assert f"--download rte --data_dir {tmp_path}" in message and "with --allow_partial" in message


def test_published_counts_hold_where_none_are_given(tmp_path):
    rte(tmp_path, "0\ta\tb\tentailment")
    assert "1 rows, published are 2,490" in error_of(read_task, "rte", tmp_path, "train")
    assert not read_task(replace(TASKS["rte"], rows={"train": None}), tmp_path, "train", log=quiet).partial


def test_allow_partial_reads_what_is_there_says_so_and_marks_it(tmp_path):
    path, lines = rte(tmp_path, "0\ta\tb\tentailment"), []
    examples = read_task("rte", tmp_path, "train", allow_partial=True, log=lines.append)
    assert examples.partial and examples.a == ["a"]
    [line] = lines
    assert str(path) in line and "2,490" in line and "PARTIAL" in line


def test_a_file_cut_within_a_row_is_refused_naming_the_line(tmp_path):
    path = rte(tmp_path, "0\ta\tb\tentailment", "1\tc\td\tentailment")
    path.write_bytes(path.read_bytes()[:-len("d\tentailment\n")])
    message = error_of(read_task, small("rte", train=2), tmp_path, "train")
    assert "1 rows, published are 2" in message and "1 broken, lines 3" in message
    examples = read_task(small("rte", train=2), tmp_path, "train", allow_partial=True, log=lambda line: None)
    assert examples.partial and examples.a == ["a"] and examples.skipped == (3,)


def test_a_broken_row_beside_the_right_number_of_whole_ones_is_refused(tmp_path):
    rte(tmp_path, "0\ta\tb\tentailment", "1\tc")
    assert "lines 3" in error_of(read_task, small("rte", train=1), tmp_path, "train")


def test_the_broken_rows_of_qqp_are_skipped_counted_and_named(tmp_path):
    header = HEADERS["QQP"][0]
    path, lines = tmp_path / "QQP" / "train.tsv", []
    write(path, header, "0\t1\t2\ta\tb\t1", "1\t3\t4\tc", '"\td\t0', "2\t5\t6\te\tf\t0")
    examples = read_task(small("qqp", train=2), tmp_path, "train", log=lines.append)
    assert (examples.a, examples.b, examples.labels) == (["a", "e"], ["b", "f"], [1, 0])
    assert not examples.partial and examples.skipped == (3, 4)
    assert len(lines) == 1 and str(path) in lines[0] and "2 broken, lines 3, 4: " in lines[0]
    write(path, header, "0\t1\t2\ta\tb\t1", *["short"] * 12)
    read_task(small("qqp", train=1), tmp_path, "train", log=lines.append)
    assert "12 broken, lines 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, ...:" in lines[1]


@pytest.mark.parametrize("name, line, label", [
    ("rte", "1\ta\tb\tneutral", "'neutral' is not one of: entailment, not_entailment"),
    ("wnli", "1\ta\tb\t2", "'2' is not one of: 0, 1"), ("wnli", "1\ta\tb\t", "'' is not one of: 0, 1"),
    *(("sts-b", "1\tg\tf\ty\to\ts\ts\ta\tb\t" + score, f"'{score}' is not a number from 0 to 5")
      for score in ("5.01", "-0.1", "nan", "high"))])
def test_a_label_outside_the_set_is_named_with_file_and_line(tmp_path, name, line, label):
    task = small(name, train=2)
    good = line.rpartition("\t")[0] + "\t" + (task.classes[0] if task.classes else "5.000")
    path = write(tmp_path / task.folder / "train.tsv", HEADERS[task.folder][0], good, line)
    assert f"{path}, line 3: label {label}" in error_of(read_task, task, tmp_path, "train")


def test_a_header_line_where_none_is_published_is_an_error_in_line_1(tmp_path):
    path = write(tmp_path / "CoLA" / "dev.tsv", "source\tlabel\tmark\tsentence", "gj04\t1\t\tA.")
    assert f"{path}, line 1: label 'label'" in error_of(read_task, small("cola", dev=2), tmp_path, "dev")


def test_a_file_with_other_columns_is_named_with_the_missing_one(tmp_path):
    path = write(tmp_path / "RTE" / "train.tsv", "index\tpremise\tsentence2\tlabel", "0\ta\tb\tentailment")
    message = error_of(read_task, small("rte", train=1), tmp_path, "train")
    assert f"{path} has no column 'sentence1'" in message and "premise" in message


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    path = rte(tmp_path, "0\ta\tb\tentailment")
    path.write_bytes(path.read_bytes().replace(b"a\tb", b"\xff\xfe\tb"))
    assert f"{path} is not UTF-8" in error_of(read_task, small("rte", train=1), tmp_path, "train")


@pytest.mark.parametrize("name, split", [(name, split) for name, task in TASKS.items() for split in task.rows])
def test_a_missing_file_names_the_command_that_fetches_it(tmp_path, name, split):
    message = error_of(read_task, name, tmp_path, split, kind=FileNotFoundError)
    assert f"python glue.py --download {name} --data_dir {tmp_path}" in message and "is missing" in message


def test_an_unknown_split_is_answered_with_the_list(tmp_path):
    assert "train, dev_matched, dev_mismatched" in error_of(read_task, "mnli", tmp_path, "dev")


def mrpc_texts(folder, **options):
    """MRPC as published: five pairs, of which the second and fourth are dev, and two test pairs."""
    header = HEADERS["MRPC"][0]
    rows = [f'{number % 2}\t{number}\t{number + 10}\t"a{number}\tb{number}' for number in range(5)]
    write(folder / "MRPC" / "msr_paraphrase_train.txt", header, *rows, bom=True, **options)
    write(folder / "MRPC" / "msr_paraphrase_test.txt", header, "1\t7\t8\ta\tb", "0\t8\t7\tc\td", bom=True, **options)
    write(folder / "MRPC" / "dev_ids.tsv", "3\t13", "1\t11", "0\t12", **options)
    return small("mrpc", train=3, dev=2, test=2)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_mrpc_is_built_from_its_texts_and_dev_ids_in_the_order_of_the_texts(tmp_path, end):
    task = mrpc_texts(tmp_path, end=end)
    train, dev, test = (read_task(task, tmp_path, split, log=quiet) for split in ("train", "dev", "test"))
    assert (train.a, train.b, train.labels) == (['"a0', '"a2', '"a4'], ["b0", "b2", "b4"], [0, 0, 0])
    assert (dev.a, dev.b, dev.labels) == (['"a1', '"a3'], ["b1", "b3"], [1, 1])
    assert (test.a, test.b, test.labels) == (["a", "c"], ["b", "d"], None)


def test_mrpc_with_fewer_dev_ids_is_refused_and_without_them_is_missing(tmp_path):
    task = mrpc_texts(tmp_path)
    ids = write(tmp_path / "MRPC" / "dev_ids.tsv", "3\t13")
    assert "dev has 1 rows, published are 2" in error_of(read_task, task, tmp_path, "dev")
    assert "train has 4 rows, published are 3" in error_of(read_task, task, tmp_path, "train")
    ids.unlink()
    assert str(ids) in error_of(read_task, task, tmp_path, "train", kind=FileNotFoundError)
    assert read_task(task, tmp_path, "test").a == ["a", "c"]


def test_ready_made_tables_of_mrpc_are_taken_before_its_texts(tmp_path):
    task = mrpc_texts(tmp_path)
    write(tmp_path / "MRPC" / "dev.tsv", HEADERS["MRPC"][0],
          "1\t9\t9\tmade\tready", "0\t9\t9\tx\ty", bom=True)
    assert read_task(task, tmp_path, "dev").a == ["made", "x"] and read_task(task, tmp_path, "train").a[0] == '"a0'


# --- downloads ---

class Handler(http.server.BaseHTTPRequestHandler):
    """Serves server.files by name; the first words of server.ways say how the next answers fail."""

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        self.server.asked.append(name)
        way = self.server.ways.pop(0) if self.server.ways else "good"
        if way == "absent" or name not in self.server.files:
            return self.send_error(404)
        content = self.server.files[name]
        start = int(re.search(r"\d+", self.headers.get("Range", "0"))[0])
        body = content[start:-1] + bytes([content[-1] ^ 1]) if way == "corrupts" else content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:len(body) // 2] if way in ("truncates", "stalls") else body)
        if way == "stalls":
            self.server.released.wait(20)
        self.close_connection = True

    def log_message(self, *_):
        pass


def archive(*members):
    """The bytes of a zip of (name, content) pairs; content None: a link to /etc/passwd."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            if content is None:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            made.writestr(info, content or b"/etc/passwd")
    return file.getvalue()


def tables(folder):
    return [(f"{folder}/{split}.tsv", f"{folder} {split}\n".encode()) for split in ("train", "dev", "test")]


@pytest.fixture
def server(monkeypatch, serve):
    """Serves every file of tasks.SOURCES, with contents of our own; tasks.py asks it and waits 0.3 s at most."""
    server = serve(Handler)
    server.ways = []
    url = f"http://127.0.0.1:{server.server_port}/"
    names = [name.rpartition("/")[2] for _, name, _, _ in tasks.SOURCES]
    server.files = {name: f"the content of {name}\n".encode() for name in names}
    for task, name, _, _ in tasks.SOURCES:
        if name.endswith(".zip"):
            members = [(f"{TASKS[task].folder}/{split}.tsv", split.encode())
                       for split in TASKS[task].rows if split != "diagnostic"]
            server.files[name] = archive(*members, (f"{TASKS[task].folder}/original/more.txt", b"not wanted"))

    def publish():
        monkeypatch.setattr(tasks, "SOURCES", tuple(
            (task, url + name, len(content), hashlib.sha256(content).hexdigest()) if not name.endswith(".zip") else
            (task, name, len(content), hashlib.sha256(content).hexdigest())
            for (task, *_), name in zip(sources, names) for content in [server.files[name]]))

    sources = tasks.SOURCES
    server.publish = publish
    publish()
    monkeypatch.setattr(tasks, "GLUE_URL", url)
    monkeypatch.setattr(tasks, "PLACES", {url + name: place for name, place in tasks.PLACES.items()})
    monkeypatch.setattr(tasks, "download", functools.partial(tasks.download, timeout=0.3))
    return server


def files_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_every_published_file_has_its_size_and_checksum():
    assert {(task, name.rpartition("/")[2], size) for task, name, size, _ in tasks.SOURCES} == {
        ("cola", "CoLA.zip", 376971), ("sst-2", "SST-2.zip", 7439277), ("qqp", "QQP-clean.zip", 41696084),
        ("sts-b", "STS-B.zip", 802872), ("mnli", "MNLI.zip", 312783507), ("qnli", "QNLIv2.zip", 10627589),
        ("rte", "RTE.zip", 697150), ("wnli", "WNLI.zip", 28999), ("mnli", "AX.tsv", 222257),
        ("mrpc", "mrpc_dev_ids.tsv", 6222), ("mrpc", "msr_paraphrase_train.txt", 1047044),
        ("mrpc", "msr_paraphrase_test.txt", 441275)}
    assert all(re.fullmatch("[0-9a-f]{64}", sha256) for *_, sha256 in tasks.SOURCES)
    assert len({sha256 for *_, sha256 in tasks.SOURCES}) == 12


def test_all_files_come_to_where_the_readers_look_for_them(server, tmp_path):
    lines = []
    tasks.download_tasks(list(TASKS), tmp_path, lines.append)
    wanted = [f"{task.folder}/{split}.tsv" for name, task in TASKS.items() if name != "mrpc"
              for split in task.rows if split != "diagnostic"]
    texts = ["diagnostic/diagnostic.tsv", "MRPC/msr_paraphrase_train.txt", "MRPC/msr_paraphrase_test.txt",
             "MRPC/dev_ids.tsv"]
    assert files_in(tmp_path) == sorted([*wanted, *texts, *(f"downloads/{n}" for n in server.files if ".zip" in n)])
    assert (tmp_path / "MNLI" / "dev_matched.tsv").read_bytes() == b"dev_matched"
    assert (tmp_path / "diagnostic" / "diagnostic.tsv").read_bytes() == b"the content of AX.tsv\n"
    assert (tmp_path / "MRPC" / "dev_ids.tsv").read_bytes() == b"the content of mrpc_dev_ids.tsv\n"
    assert len(server.asked) == 12 and len(lines) == 13


def test_what_is_there_is_not_asked_for_again(server, tmp_path):
    tasks.download_tasks(["rte", "mrpc"], tmp_path, len)
    server.asked.clear()
    (tmp_path / "MRPC" / "dev_ids.tsv").unlink()
    tasks.download_tasks(["rte", "mrpc"], tmp_path, len)
    assert server.asked == ["mrpc_dev_ids.tsv"]


def test_ready_made_tables_of_mrpc_need_no_download(server, tmp_path):
    for split in TASKS["mrpc"].rows:
        write(tmp_path / "MRPC" / f"{split}.tsv", "")
    tasks.download_tasks(["mrpc"], tmp_path, len)
    assert server.asked == []


def test_a_broken_download_goes_on_and_a_stalled_one_too(server, tmp_path):
    server.ways = ["truncates", "stalls"]
    tasks.download_tasks(["rte"], tmp_path, len)
    assert server.asked == ["RTE.zip"] * 3 and (tmp_path / "RTE" / "dev.tsv").read_bytes() == b"dev"


@pytest.mark.parametrize("way, reason", [("corrupts", "wrong SHA-256"), ("absent", "404")])
def test_a_failed_download_leaves_no_folder_and_lists_all_that_is_missing(server, tmp_path, way, reason):
    server.ways = ["good", way]
    message = error_of(tasks.download_tasks, ["cola", "rte", "wnli", "mnli"], tmp_path, len, kind=OSError)
    assert files_in(tmp_path) == sorted(["downloads/CoLA.zip", *(name for name, _ in tables("CoLA"))])
    assert reason in message and "by hand" in message
    for name, place in [("MNLI.zip", "downloads"), ("AX.tsv", "diagnostic"), ("RTE.zip", ""), ("WNLI.zip", "")]:
        assert f"/{name}" in message and str(tmp_path / (place or "downloads")) in message


def test_a_file_put_by_hand_is_unpacked_when_right_and_named_when_wrong(server, tmp_path):
    path = tmp_path / "downloads" / "RTE.zip"
    path.parent.mkdir()
    path.write_bytes(b"something else")
    assert f"{path} is not the published file" in error_of(tasks.download_tasks, ["rte"], tmp_path, len)
    path.write_bytes(server.files["RTE.zip"])
    tasks.download_tasks(["rte"], tmp_path, len)
    assert server.asked == [] and (tmp_path / "RTE" / "test.tsv").exists()


def test_a_folder_without_all_of_its_files_is_not_touched(server, tmp_path):
    own = write(tmp_path / "RTE" / "train.tsv", "mine")
    message = error_of(tasks.download_tasks, ["rte"], tmp_path, len)
    assert str(own.parent) in message and "without dev.tsv, test.tsv" in message
    assert files_in(tmp_path) == ["RTE/train.tsv"] and own.read_text() == "mine\n" and server.asked == []


def test_nothing_but_the_tables_is_unpacked_wherever_an_archive_points(server, tmp_path):
    server.files["RTE.zip"] = archive(
        *tables("RTE"), ("../escaped", b"x"), (f"{tmp_path.as_posix()}/absolute", b"x"), ("RTE/../../escaped", b"x"),
        ("RTE/link", None), ("RTE/link/escaped", b"x"))
    server.publish()
    tasks.download_tasks(["rte"], tmp_path / "data", len)
    assert files_in(tmp_path) == sorted(["data/downloads/RTE.zip", *(f"data/{name}" for name, _ in tables("RTE"))])


def test_a_link_in_the_place_of_a_table_is_not_followed(server, tmp_path):
    server.files["RTE.zip"] = archive(*tables("RTE")[1:], ("RTE/train.tsv", None))
    server.publish()
    tasks.download_tasks(["rte"], tmp_path, len)
    path = tmp_path / "RTE" / "train.tsv"
    assert not path.is_symlink() and path.read_bytes() == b"/etc/passwd"
    error_of(read_task, "rte", tmp_path, "train")


@pytest.mark.parametrize("damage", ["absent", "not a zip", "bad content"])
def test_an_archive_that_cannot_be_unpacked_leaves_nothing_behind(tmp_path, damage):
    path, members = tmp_path / "RTE.zip", tables("RTE")
    content = archive(*members[:2] if damage == "absent" else members)
    damaged = {"absent": content, "not a zip": b"<html>", "bad content": content.replace(b"RTE dev\n", b"RTE eve\n")}
    path.write_bytes(damaged[damage])
    assert str(path) in error_of(tasks.unpack, path, tmp_path / "RTE", ["train.tsv", "dev.tsv", "test.tsv"])
    assert files_in(tmp_path) == ["RTE.zip"] and len(list(tmp_path.iterdir())) == 1


# --- metrics ---

def pairs(values, length=5):
    return itertools.product(itertools.product(values, repeat=length), repeat=2)


def test_accuracy_is_the_share_of_equal_labels():
    assert tasks.accuracy([2, 0, 1, 1], [2, 1, 1, 0]) == 0.5 and tasks.accuracy([0], [1]) == 0.0
    for x, y in pairs((0, 1), 4):
        assert tasks.accuracy(x, y) == sum(a == b for a, b in zip(x, y)) / 4


# Eight cats (1) and four dogs (0): six cats and three dogs are recognised. TP 6, FN 2, FP 1, TN 3.
CATS, GUESSES = [1] * 8 + [0] * 4, [1] * 6 + [0] * 2 + [1] + [0] * 3


def test_f1_of_a_counted_example():
    assert tasks.f1(GUESSES, CATS) == 12 / 15  # precision 6/7, recall 6/8
    assert tasks.f1([1, 1, 0], [1, 0, 0]) == pytest.approx(2 / 3, abs=1e-15)


def test_f1_is_the_harmonic_mean_of_precision_and_recall():
    for x, y in pairs((0, 1)):
        right = sum(a == b == 1 for a, b in zip(x, y))
        precision, recall = right / (sum(x) or 1), right / (sum(y) or 1)
        expected = 2 * precision * recall / (precision + recall) if right else 0.0
        assert tasks.f1(x, y) == pytest.approx(expected, abs=1e-15)


def test_matthews_of_a_counted_example():
    assert tasks.matthews(GUESSES, CATS) == pytest.approx((6 * 3 - 1 * 2) / math.sqrt(7 * 8 * 4 * 5), abs=1e-15)
    assert tasks.matthews(GUESSES, CATS) == pytest.approx(0.478, abs=5e-4)
    assert tasks.matthews([1, 0, 1, 0], [0, 1, 0, 1]) == pytest.approx(-1, abs=1e-15)


def test_matthews_is_its_formula_over_the_four_cells():
    for x, y in pairs((0, 1)):
        cells = {(a, b): 0 for a in (0, 1) for b in (0, 1)}
        for a, b in zip(x, y):
            cells[a, b] += 1
        tp, fp, fn, tn = cells[1, 1], cells[1, 0], cells[0, 1], cells[0, 0]
        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        expected = (tp * tn - fp * fn) / math.sqrt(product) if product else 0.0
        assert tasks.matthews(x, y) == pytest.approx(expected, abs=1e-14)


ANSCOMBE = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]


def test_pearson_of_anscombes_data():
    """Anscombe 1973: four sets of one correlation, 0.816; here the first two."""
    for y in ([8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68],
              [9.14, 8.14, 8.74, 8.77, 9.26, 8.10, 6.13, 3.10, 9.13, 7.26, 4.74]):
        assert tasks.pearson(ANSCOMBE, y) == pytest.approx(0.816, abs=5e-4)
    assert tasks.pearson([1, 2, 3], [1, 3, 2]) == pytest.approx(0.5, abs=1e-15)  # deviations -1 0 1 and -1 1 0: 1 / 2


def loop_pearson(x, y):
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    cov = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y))
    var_x, var_y = sum((a - mean_x) ** 2 for a in x), sum((b - mean_y) ** 2 for b in y)
    return cov / math.sqrt(var_x * var_y) if len(set(x)) > 1 and len(set(y)) > 1 else 0.0


def test_pearson_is_covariance_over_both_deviations():
    generator = random.Random(0)
    for length in range(1, 40):
        x, y = ([generator.uniform(-3, 5) for _ in range(length)] for _ in range(2))
        assert tasks.pearson(x, y) == pytest.approx(loop_pearson(x, y), abs=1e-12)
        assert tasks.pearson([3 * a - 1 for a in x], y) == pytest.approx(tasks.pearson(x, y), abs=1e-12)


def test_spearman_of_a_textbook_example():
    """Ten people's intelligence and hours of television: no ties, squared rank differences add to 194."""
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert tasks.spearman(iq, hours) == pytest.approx(1 - 6 * 194 / (10 * 99), abs=1e-14)
    assert tasks.spearman(iq, hours) == pytest.approx(-29 / 165, abs=1e-14)


def test_spearman_gives_ties_their_average_rank():
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5
    assert tasks.spearman([0, 7, 7, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5), abs=1e-15)
    for x, y in pairs((0, 1, 2), 4):
        ranks = [[sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
                  for value in values] for values in (x, y)]
        assert tasks.spearman(x, y) == pytest.approx(loop_pearson(*ranks), abs=1e-14)


@pytest.mark.parametrize("name", ["f1", "matthews", "pearson", "spearman"])
def test_constant_predictions_or_labels_score_zero(name):
    metric, varied = tasks.METRICS[name], [0, 1, 0, 0]
    assert metric([0] * 4, varied) == metric(varied, [0] * 4) == metric([0] * 4, [0] * 4) == 0.0
    if name != "f1":
        assert metric([1] * 4, varied) == metric([0.1] * 4, varied) == metric(varied, [1] * 4) == 0.0


@pytest.mark.parametrize("name", tasks.METRICS)
def test_no_predictions_unequal_numbers_and_nan_are_errors(name):
    for x, y in (([], []), ([1, 0], [1]), ([1.0, math.nan], [1, 0]), ([1, 0], [1, math.inf]), ([[1, 0]], [[1, 0]])):
        assert "one finite prediction" in error_of(tasks.METRICS[name], x, y)


def examples(name, split, labels):
    rows = ["x"] * 4
    return tasks.Examples(TASKS[name], split, rows, None, labels, None, False, ())


def test_scores_are_the_metrics_of_the_task_and_their_mean_times_100():
    got = tasks.scores(np.array([1, 1, 0, 0]), examples("mrpc", "dev", [1, 1, 1, 0]))
    assert got == {"accuracy": 75.0, "f1": pytest.approx(80), "score": pytest.approx(77.5)}
    assert tasks.scores([2, 0, 1, 1], examples("mnli", "dev_matched", [2, 0, 0, 0])) == {"accuracy": 50.0, "score": 50.0}
    got = tasks.scores([1, 2, 3, 4], examples("sts-b", "dev", [0.0, 1.0, 4.0, 5.0]))
    assert got["spearman"] == pytest.approx(100) and got["score"] == pytest.approx((got["pearson"] + 100) / 2)


@pytest.mark.parametrize("split", ["test_matched", "diagnostic"])
def test_scores_of_a_set_without_labels_are_an_error(split):
    assert "no published labels" in error_of(tasks.scores, [0] * 4, examples("mnli", split, None))
