"""support/glue_format.py: GLUE's files are read and written column by column, and checked."""

from dataclasses import replace

import pytest

from glue_helpers import (
    error_of,
    ignore_log,
    no_log,
    with_equal_rows,
    with_rows,
    write_lines,
)
from support.glue_format import (
    FORMATS,
    MissingFile,
    check_data,
    file_path,
    has_labels,
    named_tasks,
    read_task,
    write_split,
)

# The published files, written down a second time, independently of support/glue_format.py: header
# lines with "|" for a tab (train and dev, test), and the positions of the columns that are read.
MNLI_HEADER = (
    "index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|"
    "sentence1_parse|sentence2_parse|sentence1|sentence2"
)
STS_B_HEADER = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
PAIR_HEADER = "index|sentence1|sentence2"
MRPC_HEADER = "#1 ID|#2 ID|#1 String|#2 String"
QQP_HEADER = "id|qid1|qid2|question1|question2|is_duplicate"
QNLI_HEADER = "index|question|sentence"

# fmt: off
HEADERS = {
    "cola": (None, "index|sentence"),
    "sst-2": ("sentence|label", "index|sentence"),
    "mrpc": ("Quality|" + MRPC_HEADER, "index|" + MRPC_HEADER),
    "qqp": (QQP_HEADER, "id|question1|question2"),
    "sts-b": (STS_B_HEADER + "|score", STS_B_HEADER),
    "mnli": (MNLI_HEADER + "|label1|gold_label", MNLI_HEADER),
    "qnli": (QNLI_HEADER + "|label", QNLI_HEADER),
    "rte": (PAIR_HEADER + "|label", PAIR_HEADER),
    "wnli": (PAIR_HEADER + "|label", PAIR_HEADER),
}
POSITIONS = {  # texts and label in train and dev; texts in test
    "cola": ([3], 1, [1]),
    "sst-2": ([0], 1, [1]),
    "mrpc": ([3, 4], 0, [3, 4]),
    "qqp": ([3, 4], 5, [1, 2]),
    "sts-b": ([7, 8], 9, [7, 8]),
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
# fmt: on

ALL_SPLITS = [(name, split) for name, task in FORMATS.items() for split in task.rows]


def header_line(name, split):
    """The published first line of a split's file; None if it has none."""
    if split == "diagnostic":
        header = PAIR_HEADER
    elif has_labels(split):
        header = HEADERS[name][0]
    else:
        header = HEADERS[name][1]
    if header is None:
        return None
    return header.replace("|", "\t")


def text_positions(name, split):
    """The published positions of the sentences in a row of a split's file."""
    if split == "diagnostic":
        return [1, 2]
    if has_labels(split):
        return POSITIONS[name][0]
    return POSITIONS[name][2]


def label_word(task, number):
    """A label of row `number`, as it is written in a file."""
    if task.classes is None:
        return str(number / 2)
    return task.classes[number % len(task.classes)]


def published_lines(task, split, rows):
    """The lines of a published file: sentences and labels at their positions, noise elsewhere."""
    header = header_line(task.name, split)
    lines = []
    columns = 4
    if header is not None:
        lines.append(header)
        columns = len(header.split("\t"))

    for number in range(rows):
        fields = [f"noise {column}" for column in range(columns)]
        for position, letter in zip(text_positions(task.name, split), "ab", strict=False):
            fields[position] = f"{split} {letter}{number}"
        if has_labels(split):
            fields[POSITIONS[task.name][1]] = label_word(task, number)
        lines.append("\t".join(fields))
    return lines


def rte(folder, *rows, **options):
    """Write RTE/train.tsv with these rows; returns its path."""
    header = header_line("rte", "train")
    return write_lines(folder / "RTE" / "train.tsv", header, *rows, **options)


# --- the table ---


def test_row_counts_are_the_published_ones():
    assert {name: tuple(task.rows.values()) for name, task in FORMATS.items()} == ROWS


def test_an_unknown_task_is_answered_with_the_list():
    message = error_of(named_tasks, ["rte", "snli"])
    assert "'snli'" in message
    assert all(name in message for name in (*FORMATS, "all"))
    assert named_tasks(["RTE"]) == ["rte"]
    assert named_tasks(["all", "cola"]) == list(FORMATS)


# --- reading ---


@pytest.mark.parametrize("name", FORMATS)
def test_published_columns_are_read_in_every_split(tmp_path, name):
    task = with_equal_rows(name, 5)
    for split in task.rows:
        lines = published_lines(task, split, 5)
        write_lines(file_path(task, tmp_path, split), *lines, bom=name == "mrpc")

    for split in task.rows:
        examples = read_task(task, tmp_path, split, log=no_log)
        assert examples.a == [f"{split} a{number}" for number in range(5)]
        if len(task.texts) == 2:
            assert examples.b == [f"{split} b{number}" for number in range(5)]
        else:
            assert examples.b is None
        if not has_labels(split):
            assert examples.labels is None
        elif task.classes is None:
            assert examples.labels == [number / 2 for number in range(5)]
        else:
            assert examples.labels == [number % len(task.classes) for number in range(5)]
        assert not examples.partial
        assert examples.skipped == ()


def test_the_diagnostic_file_has_a_folder_of_its_own_and_the_others_have_their_task_s(tmp_path):
    mnli = FORMATS["mnli"]
    assert file_path(mnli, tmp_path, "diagnostic") == tmp_path / "diagnostic" / "diagnostic.tsv"
    assert file_path(mnli, tmp_path, "dev_matched") == tmp_path / "MNLI" / "dev_matched.tsv"


def test_the_source_of_cola_s_sentences_is_read_where_it_is_published(tmp_path):
    task = with_equal_rows("cola", 2)
    write_lines(tmp_path / "CoLA" / "dev.tsv", "gj04\t1\t\tA.", "bc01\t0\t*\tB.")
    write_lines(tmp_path / "CoLA" / "test.tsv", "index\tsentence", "0\tA.", "1\tB.")
    assert read_task(task, tmp_path, "dev").phenomena == ["gj04", "bc01"]
    assert read_task(task, tmp_path, "test").phenomena is None


def test_quotes_are_literal_and_blanks_are_kept(tmp_path):
    rte(tmp_path, '0\t"open\tclosed" \tentailment', '1\t""\t\'\tnot_entailment')
    examples = read_task(with_rows("rte", train=2), tmp_path, "train")
    assert examples.a == ['"open', '""']
    assert examples.b == ['closed" ', "'"]
    assert examples.labels == [0, 1]


def test_unicode_line_separators_inside_a_sentence_do_not_end_the_row(tmp_path):
    rte(tmp_path, "0\ta\u2028b\x0c\x1cc\td\x85e\tentailment")
    examples = read_task(with_rows("rte", train=1), tmp_path, "train")
    assert examples.a == ["a\u2028b\x0c\x1cc"]
    assert examples.b == ["d\x85e"]


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_byte_order_mark_and_foreign_line_ends_do_not_matter(tmp_path, end):
    rte(tmp_path, "0\ta\tb\tentailment", "1\tc\td\tnot_entailment", end=end, bom=True)
    cola_path = tmp_path / "CoLA" / "train.tsv"
    write_lines(cola_path, "gj04\t1\t\tA.", "gj04\t0\t*\tB.", end=end, bom=True)

    examples = read_task(with_rows("rte", train=2), tmp_path, "train")
    assert (examples.a, examples.b, examples.labels) == (["a", "c"], ["b", "d"], [0, 1])
    cola = read_task(with_rows("cola", train=2), tmp_path, "train")
    assert (cola.a, cola.b, cola.labels) == (["A.", "B."], None, [1, 0])


def test_a_file_without_a_last_line_end_and_one_with_empty_lines_give_the_same(tmp_path):
    path = rte(tmp_path, "0\ta\tb\tentailment", "", "1\tc\td\tentailment", "")
    task = with_rows("rte", train=2)
    with_empty_lines = read_task(task, tmp_path, "train", log=no_log)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    without_end = read_task(task, tmp_path, "train", log=no_log)
    assert with_empty_lines == without_end
    assert without_end.a == ["a", "c"]


@pytest.mark.parametrize("rows", [3, 5])
def test_another_number_of_rows_than_published_is_refused_with_file_and_counts(tmp_path, rows):
    path = rte(tmp_path, *[f"{number}\ta\tb\tentailment" for number in range(rows)])
    message = error_of(read_task, with_rows("rte", train=4), tmp_path, "train")
    assert str(path) in message
    assert f"{rows} rows; 4 were published" in message
    assert f"python glue.py download rte --data_dir {tmp_path}" in message
    assert "with --allow_partial" in message


def test_the_published_row_counts_apply_unless_others_are_given(tmp_path):
    rte(tmp_path, "0\ta\tb\tentailment")
    message = error_of(read_task, FORMATS["rte"], tmp_path, "train")
    assert "1 rows; 2,490 were published" in message
    one_row = replace(FORMATS["rte"], rows={"train": 1})
    assert not read_task(one_row, tmp_path, "train", log=no_log).partial


def test_allow_partial_reads_what_is_there_says_so_and_marks_it(tmp_path):
    path = rte(tmp_path, "0\ta\tb\tentailment")
    lines = []
    task = FORMATS["rte"]
    examples = read_task(task, tmp_path, "train", allow_partial=True, log=lines.append)
    assert examples.partial
    assert examples.a == ["a"]
    [line] = lines
    assert str(path) in line
    assert "2,490" in line
    assert "PARTIAL" in line


def test_a_file_cut_within_a_row_is_refused_naming_the_line(tmp_path):
    path = rte(tmp_path, "0\ta\tb\tentailment", "1\tc\td\tentailment")
    path.write_bytes(path.read_bytes()[: -len("d\tentailment\n")])
    task = with_rows("rte", train=2)
    message = error_of(read_task, task, tmp_path, "train")
    assert "1 rows; 2 were published" in message
    assert "broken rows: 1, in lines 3" in message

    examples = read_task(task, tmp_path, "train", allow_partial=True, log=ignore_log)
    assert examples.partial
    assert examples.a == ["a"]
    assert examples.skipped == (3,)


def test_a_broken_row_in_addition_to_the_right_number_of_good_ones_is_refused(tmp_path):
    rte(tmp_path, "0\ta\tb\tentailment", "1\tc")
    message = error_of(read_task, with_rows("rte", train=1), tmp_path, "train")
    assert "in lines 3" in message


def test_a_file_without_rows_is_refused(tmp_path):
    path = rte(tmp_path)
    message = error_of(read_task, FORMATS["rte"], tmp_path, "train", allow_partial=True)
    assert f"{path} has no rows" in message
    assert f"python glue.py download rte --data_dir {tmp_path}" in message


def test_the_broken_rows_of_qqp_are_skipped_counted_and_named(tmp_path):
    header = header_line("qqp", "train")
    path = tmp_path / "QQP" / "train.tsv"
    lines = []
    good = "0\t1\t2\ta\tb\t1"
    write_lines(path, header, good, "1\t3\t4\tc", '"\td\t0', "2\t5\t6\te\tf\t0")
    examples = read_task(with_rows("qqp", train=2), tmp_path, "train", log=lines.append)
    assert examples.a == ["a", "e"]
    assert examples.b == ["b", "f"]
    assert examples.labels == [1, 0]
    assert not examples.partial
    assert examples.skipped == (3, 4)
    assert len(lines) == 1
    assert str(path) in lines[0]
    assert "broken rows: 2, in lines 3, 4. They are skipped" in lines[0]

    # of many, the first ten are named
    write_lines(path, header, good, *["short"] * 12)
    read_task(with_rows("qqp", train=1), tmp_path, "train", log=lines.append)
    assert "broken rows: 12, in lines 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, ...." in lines[1]


def sts_b_line(score):
    return "1\tg\tf\ty\to\ts\ts\ta\tb\t" + score


@pytest.mark.parametrize(
    "name, line, problem",
    [
        ("rte", "1\ta\tb\tneutral", "'neutral' is not one of: entailment, not_entailment"),
        ("wnli", "1\ta\tb\t2", "'2' is not one of: 0, 1"),
        ("wnli", "1\ta\tb\t", "'' is not one of: 0, 1"),
        ("sts-b", sts_b_line("5.01"), "'5.01' is not a number from 0 to 5"),
        ("sts-b", sts_b_line("-0.1"), "'-0.1' is not a number from 0 to 5"),
        ("sts-b", sts_b_line("nan"), "'nan' is not a number from 0 to 5"),
        ("sts-b", sts_b_line("high"), "'high' is not a number from 0 to 5"),
        ("sts-b", sts_b_line("٣"), "'٣' is not a number from 0 to 5"),
        ("sts-b", sts_b_line("０.５"), "'０.５' is not a number from 0 to 5"),
        ("sts-b", sts_b_line("0_1"), "'0_1' is not a number from 0 to 5"),
        ("sts-b", sts_b_line("inf"), "'inf' is not a number from 0 to 5"),
        ("sts-b", sts_b_line("1" + "0" * 400), "'1" + "0" * 49 + "' is not a number"),
    ],
)
def test_a_label_outside_the_set_is_named_with_file_and_line(tmp_path, name, line, problem):
    task = with_rows(name, train=2)
    good_label = "5.000" if task.classes is None else task.classes[0]
    good_line = line.rpartition("\t")[0] + "\t" + good_label
    path = file_path(task, tmp_path, "train")
    write_lines(path, header_line(name, "train"), good_line, line)
    assert f"{path}, line 3: label {problem}" in error_of(read_task, task, tmp_path, "train")


def test_a_row_of_cola_with_a_tab_in_its_sentence_is_broken(tmp_path):
    path = tmp_path / "CoLA" / "dev.tsv"
    write_lines(path, "gj04\t1\t\tA.", "gj04\t0\t*\tA sentence\tin two parts.")
    task = with_rows("cola", dev=2)
    message = error_of(read_task, task, tmp_path, "dev")
    assert f"{path}: dev has 1 rows" in message
    assert "broken rows: 1, in lines 2" in message
    examples = read_task(task, tmp_path, "dev", allow_partial=True, log=ignore_log)
    assert (examples.a, examples.partial, examples.skipped) == (["A."], True, (2,))


def test_rows_with_more_columns_than_the_header_line_names_are_named(tmp_path):
    path = tmp_path / "CoLA" / "test.tsv"
    write_lines(path, "index\tsentence", "0\tA.", "1\tA sentence\tin two parts.")
    lines = []
    examples = read_task(with_rows("cola", test=2), tmp_path, "test", log=lines.append)
    assert (examples.a, examples.partial) == (["A.", "A sentence"], False)
    [line] = lines
    assert str(path) in line
    assert "rows with more columns than are named: 1, in lines 3" in line


def test_a_header_line_where_none_is_published_is_an_error_in_line_1(tmp_path):
    path = tmp_path / "CoLA" / "dev.tsv"
    write_lines(path, "source\tlabel\tmark\tsentence", "gj04\t1\t\tA.")
    message = error_of(read_task, with_rows("cola", dev=2), tmp_path, "dev")
    assert f"{path}, line 1: label 'label'" in message


def test_a_file_with_other_columns_is_named_with_the_missing_one(tmp_path):
    path = tmp_path / "RTE" / "train.tsv"
    write_lines(path, "index\tpremise\tsentence2\tlabel", "0\ta\tb\tentailment")
    message = error_of(read_task, with_rows("rte", train=1), tmp_path, "train")
    assert f"{path} has no column 'sentence1'" in message
    assert "premise" in message


def test_a_file_that_is_not_utf8_is_named(tmp_path):
    path = rte(tmp_path, "0\ta\tb\tentailment")
    path.write_bytes(path.read_bytes().replace(b"a\tb", b"\xff\xfe\tb"))
    message = error_of(read_task, with_rows("rte", train=1), tmp_path, "train")
    assert f"{path} is not UTF-8" in message


@pytest.mark.parametrize("name, split", ALL_SPLITS)
def test_a_missing_file_names_the_command_that_downloads_it(tmp_path, name, split):
    message = error_of(read_task, FORMATS[name], tmp_path, split, kind=MissingFile)
    assert f"is missing: run python glue.py download {name} --data_dir {tmp_path}" in message


def test_an_unknown_split_is_answered_with_the_list(tmp_path):
    message = error_of(read_task, FORMATS["mnli"], tmp_path, "dev")
    assert "train, dev_matched, dev_mismatched" in message


# --- MRPC, which is published as texts and a list of ids ---


def mrpc_texts(folder, **options):
    """MRPC as published: five pairs, the second and fourth of which are dev, and two test pairs."""
    header = header_line("mrpc", "train")
    rows = []
    for number in range(5):
        # rows 0 and 1 share the second id, rows 3 and 4 the first one
        ids = f"{min(number, 3)}\t{max(number, 1) + 10}"
        rows.append(f'{number % 2}\t{ids}\t"a{number}\tb{number}')
    mrpc = folder / "MRPC"
    write_lines(mrpc / "msr_paraphrase_train.txt", header, *rows, bom=True, **options)
    test_rows = ["1\t7\t8\ta\tb", "0\t8\t7\tc\td"]
    write_lines(mrpc / "msr_paraphrase_test.txt", header, *test_rows, bom=True, **options)
    write_lines(mrpc / "dev_ids.tsv", "3\t13", "1\t11", "0\t12", **options)
    return with_rows("mrpc", train=3, dev=2, test=2)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_mrpc_is_built_from_its_texts_and_dev_ids_in_the_order_of_the_texts(tmp_path, end):
    task = mrpc_texts(tmp_path, end=end)

    train = read_task(task, tmp_path, "train", log=no_log)
    assert train.a == ['"a0', '"a2', '"a4']
    assert train.b == ["b0", "b2", "b4"]
    assert train.labels == [0, 0, 0]

    dev = read_task(task, tmp_path, "dev", log=no_log)
    assert (dev.a, dev.b, dev.labels) == (['"a1', '"a3'], ["b1", "b3"], [1, 1])

    test = read_task(task, tmp_path, "test", log=no_log)
    assert (test.a, test.b, test.labels) == (["a", "c"], ["b", "d"], None)


def test_mrpc_with_fewer_dev_ids_is_refused_and_without_them_is_missing(tmp_path):
    task = mrpc_texts(tmp_path)
    ids = write_lines(tmp_path / "MRPC" / "dev_ids.tsv", "3\t13")
    message = error_of(read_task, task, tmp_path, "dev")
    assert "dev has 1 rows; 2 were published" in message
    message = error_of(read_task, task, tmp_path, "train")
    assert "train has 4 rows; 3 were published" in message

    ids.unlink()
    assert str(ids) in error_of(read_task, task, tmp_path, "train", kind=MissingFile)
    assert read_task(task, tmp_path, "test").a == ["a", "c"]


def test_ready_made_tables_of_mrpc_are_read_in_place_of_its_texts(tmp_path):
    task = mrpc_texts(tmp_path)
    rows = ["1\t9\t9\tmade\tready", "0\t9\t9\tx\ty"]
    dev_path = tmp_path / "MRPC" / "dev.tsv"
    write_lines(dev_path, header_line("mrpc", "dev"), *rows, bom=True)
    assert read_task(task, tmp_path, "dev").a == ["made", "x"]
    assert read_task(task, tmp_path, "train").a[0] == '"a0'


# --- writing ---


@pytest.mark.parametrize("name, split", ALL_SPLITS)
def test_a_written_file_has_the_published_columns_and_is_read_back(tmp_path, name, split):
    task = with_equal_rows(name, 3)
    rows = []
    for number in range(3):
        row = {task.label: label_word(task, number)}
        for column, letter in zip(task.texts, "ab", strict=False):
            row[column] = f"{letter}{number}"
        rows.append(row)
    write_split(tmp_path, task, split, rows)

    # the header line is the published one
    lines = file_path(task, tmp_path, split).read_text(encoding="utf-8").splitlines()
    header = header_line(name, split)
    if header is not None:
        assert lines.pop(0) == header
    assert len(lines) == 3

    # texts and labels are at their positions; everything else is the row's number
    for number, line in enumerate(lines):
        expected = {}
        for position, letter in zip(text_positions(name, split), "ab", strict=False):
            expected[position] = f"{letter}{number}"
        if has_labels(split):
            expected[POSITIONS[name][1]] = label_word(task, number)
        for position, field in enumerate(line.split("\t")):
            assert field == expected.get(position, str(number))

    # the reader finds the same
    examples = read_task(task, tmp_path, split, log=no_log)
    assert examples.a == ["a0", "a1", "a2"]


def test_a_written_file_has_the_same_bytes_on_every_system(tmp_path):
    task = FORMATS["cola"]
    row = {"source": "agreement", "label": "0", "mark": "*", "sentence": "the café were open."}
    write_split(tmp_path, task, "dev", [row, row | {"label": "1", "mark": ""}])
    assert (tmp_path / "CoLA" / "dev.tsv").read_bytes() == (
        b"agreement\t0\t*\tthe caf\xc3\xa9 were open.\nagreement\t1\t\tthe caf\xc3\xa9 were open.\n"
    )


def test_a_column_that_no_file_of_the_task_has_is_an_error(tmp_path):
    message = error_of(write_split, tmp_path, FORMATS["rte"], "train", [{"premise": "a"}])
    assert "RTE has no column 'premise'" in message


# --- counting the rows of all files ---


def test_check_data_prints_rows_found_and_published_and_whether_all_are_there(tmp_path, capsys):
    rte(tmp_path, "0\ta\tb\tentailment")
    content = (tmp_path / "RTE" / "train.tsv").read_bytes()
    (tmp_path / "RTE" / "dev.tsv").write_bytes(content)
    check_data({"rte": with_rows("rte", train=2, dev=1)}, tmp_path)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["RTE", "train", "1", "of", "2", "rows", "partial"],
        ["RTE", "dev", "1", "of", "1", "rows", "complete"],
        ["RTE", "test", "no", "of", "3,000", "rows", "missing"],
    ]


def test_check_data_counts_the_broken_rows_that_are_skipped(tmp_path, capsys):
    path = tmp_path / "QQP" / "train.tsv"
    write_lines(path, header_line("qqp", "train"), "0\t1\t2\ta\tb\t1", "short")
    check_data({"qqp": with_rows("qqp", train=1)}, tmp_path)
    first_line = capsys.readouterr().out.splitlines()[0]
    assert first_line.endswith("1 of       1 rows   complete, 1 broken rows skipped")
