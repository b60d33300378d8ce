"""GLUE's files: which columns each of them has, how they are read and how they are written.

The table FORMATS states every column that is used once, for the reader and for the writer. The
files are UTF-8 text, one row per line, with a tab between two columns. There is no quoting: a
quotation mark is an ordinary character.

    task = FORMATS["rte"]
    examples = read_task(task, "glue_data", "dev")
    examples.a[0], examples.b[0], examples.labels[0]  # first sentence, second sentence, class id

    row = {"sentence1": "the dog slept.", "sentence2": "the dog ran.", "label": "not_entailment"}
    write_split("my_data", task, "train", [row])

The tasks: Wang et al. 2019.
"""

from dataclasses import dataclass
from pathlib import Path

from support.commands import UserError, command_line


class MissingFile(UserError):
    """A file of a task is not there. The message names the command that downloads it."""


@dataclass(frozen=True)
class TaskFormat:
    """What the files of one task look like.

    Attributes:
        folder: name of the task's folder, and of the task in tables.
        rows: {split: number of rows that were published}. A split is one file.
        columns: names of the columns in the train and dev files, from left to right.
        test_columns: the same for the test files. They have no column for the label.
        texts: the columns of the first sentence and, for a task on pairs, of the second sentence.
        label: the column of the label.
        classes: label words, in the order of their class ids; None if a label is a number from 0 to
            5.
        header: whether the first line of the train and dev files names the columns. Test files
            always have that line.
        phenomenon: the column that says where a sentence comes from (in the toy tasks: which
            phenomenon it tests).
        short_rows: whether the published files contain rows with columns missing, which have to be
            skipped.
    """

    folder: str
    rows: dict
    columns: tuple
    test_columns: tuple
    texts: tuple
    label: str
    classes: tuple | None
    header: bool = True
    phenomenon: str | None = None
    short_rows: bool = False

    @property
    def name(self):
        """The task's name on the command line: its folder's name in small letters."""
        return self.folder.lower()

    @property
    def dev_splits(self):
        """The splits on which a task is scored: one, and for MNLI two."""
        return [split for split in self.rows if split.startswith("dev")]

    def columns_of(self, split):
        """Names of the columns in the file of a split, from left to right."""
        if split == "diagnostic":
            return DIAGNOSTIC_COLUMNS
        if has_labels(split):
            return self.columns
        return self.test_columns

    def has_header(self, split):
        """Whether the first line of a split's file names the columns."""
        return self.header or not has_labels(split)


# --- The columns of every file --------------------------------------------------------------------

DIAGNOSTIC_COLUMNS = ("index", "sentence1", "sentence2")

MNLI_COLUMNS = (
    "index",
    "promptID",
    "pairID",
    "genre",
    "sentence1_binary_parse",
    "sentence2_binary_parse",
    "sentence1_parse",
    "sentence2_parse",
    "sentence1",
    "sentence2",
)

STS_B_COLUMNS = (
    "index",
    "genre",
    "filename",
    "year",
    "old_index",
    "source1",
    "source2",
    "sentence1",
    "sentence2",
)

FORMATS = {
    "cola": TaskFormat(
        folder="CoLA",
        rows={"train": 8551, "dev": 1043, "test": 1063},
        columns=("source", "label", "mark", "sentence"),
        test_columns=("index", "sentence"),
        texts=("sentence",),
        label="label",
        classes=("0", "1"),
        header=False,
        phenomenon="source",
    ),
    "sst-2": TaskFormat(
        folder="SST-2",
        rows={"train": 67349, "dev": 872, "test": 1821},
        columns=("sentence", "label"),
        test_columns=("index", "sentence"),
        texts=("sentence",),
        label="label",
        classes=("0", "1"),
    ),
    "mrpc": TaskFormat(
        folder="MRPC",
        rows={"train": 3668, "dev": 408, "test": 1725},
        columns=("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
        test_columns=("index", "#1 ID", "#2 ID", "#1 String", "#2 String"),
        texts=("#1 String", "#2 String"),
        label="Quality",
        classes=("0", "1"),
    ),
    "sts-b": TaskFormat(
        folder="STS-B",
        rows={"train": 5749, "dev": 1500, "test": 1379},
        columns=STS_B_COLUMNS + ("score",),
        test_columns=STS_B_COLUMNS,
        texts=("sentence1", "sentence2"),
        label="score",
        classes=None,
    ),
    "qqp": TaskFormat(
        folder="QQP",
        rows={"train": 363846, "dev": 40430, "test": 390965},
        columns=("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
        test_columns=("id", "question1", "question2"),
        texts=("question1", "question2"),
        label="is_duplicate",
        classes=("0", "1"),
        short_rows=True,
    ),
    "mnli": TaskFormat(
        folder="MNLI",
        rows={
            "train": 392702,
            "dev_matched": 9815,
            "dev_mismatched": 9832,
            "test_matched": 9796,
            "test_mismatched": 9847,
            "diagnostic": 1104,
        },
        # The published dev files also have label2 to label5. The reader finds columns by name.
        columns=MNLI_COLUMNS + ("label1", "gold_label"),
        test_columns=MNLI_COLUMNS,
        texts=("sentence1", "sentence2"),
        label="gold_label",
        classes=("contradiction", "entailment", "neutral"),
    ),
    "qnli": TaskFormat(
        folder="QNLI",
        rows={"train": 104743, "dev": 5463, "test": 5463},
        columns=("index", "question", "sentence", "label"),
        test_columns=("index", "question", "sentence"),
        texts=("question", "sentence"),
        label="label",
        classes=("entailment", "not_entailment"),
    ),
    "rte": TaskFormat(
        folder="RTE",
        rows={"train": 2490, "dev": 277, "test": 3000},
        columns=("index", "sentence1", "sentence2", "label"),
        test_columns=("index", "sentence1", "sentence2"),
        texts=("sentence1", "sentence2"),
        label="label",
        classes=("entailment", "not_entailment"),
    ),
    "wnli": TaskFormat(
        folder="WNLI",
        rows={"train": 635, "dev": 71, "test": 146},
        columns=("index", "sentence1", "sentence2", "label"),
        test_columns=("index", "sentence1", "sentence2"),
        texts=("sentence1", "sentence2"),
        label="label",
        classes=("0", "1"),
    ),
}


def named_tasks(words):
    """Names of the tasks that the words on a command line mean, each one once.

    A word is the name of a task, or "all". Raises UserError, with a list of the tasks, for any
    other word.
    """
    names = []
    for word in words:
        name = word.lower()
        if name == "all":
            names += FORMATS
        elif name in FORMATS:
            names.append(name)
        else:
            raise UserError(f"unknown task {name!r}; the tasks are: {', '.join(FORMATS)}; or all")
    return list(dict.fromkeys(names))


def has_labels(split):
    """Whether labels were published for a split: those of test and diagnostic files were not."""
    return not split.startswith(("test", "diagnostic"))


def file_path(task, data_dir, split):
    """The file of a split. The diagnostic sentences have a folder of their own."""
    if split == "diagnostic":
        return Path(data_dir, "diagnostic", "diagnostic.tsv")
    return Path(data_dir, task.folder, f"{split}.tsv")


def download_command(task, data_dir):
    """The command that downloads a task's files to `data_dir`, for messages."""
    return command_line(["python", "glue.py", "download", task.name, "--data_dir", data_dir])


# --- Writing --------------------------------------------------------------------------------------


def write_split(data_dir, task, split, rows):
    """Write the file of one split in GLUE's own format.

    Args:
        data_dir: the folder that contains the tasks' folders; what is missing is made.
        task: a TaskFormat.
        split: a key of task.rows.
        rows: list of {column name: text}. A column that is not given gets the row's number, counted
            from 0. A column that the task has in other files but not in this one (the label, in a
            test file) is left out.

    Raises:
        UserError: no file of the task has a column of that name.
    """
    columns = task.columns_of(split)
    known = {*task.columns, *task.test_columns}
    lines = []

    # the first line names the columns
    if task.has_header(split):
        lines.append("\t".join(columns))

    # one line per row
    for number, row in enumerate(rows):
        for name in row:
            if name not in known:
                raise UserError(f"{task.folder} has no column {name!r}")
        lines.append("\t".join(row.get(name, str(number)) for name in columns))

    # "\n" at every line's end gives the same bytes on every system
    path = file_path(task, data_dir, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(line + "\n" for line in lines)
    path.write_text(text, encoding="utf-8", newline="\n")


# --- Reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Examples:
    """One split of a task, as it was read.

    Attributes:
        task: the TaskFormat.
        split: a key of task.rows.
        a: first sentences, one str per row.
        b: second sentences; None for a task on single sentences.
        labels: class ids, or numbers for STS-B; None if no labels were published.
        phenomena: one str per row of CoLA's train and dev files (see TaskFormat.phenomenon);
            otherwise None.
        partial: rows are missing or were added, so that scores on this split are not GLUE scores.
        skipped: line numbers of the rows that were skipped because they have too few or too many
            columns.
    """

    task: TaskFormat
    split: str
    a: list
    b: list | None
    labels: list | None
    phenomena: list | None
    partial: bool
    skipped: tuple


def read_task(task, data_dir, split, allow_partial=False, log=print):
    """Read one split of a task from GLUE's files.

    A file with more or fewer rows than were published, or with broken rows, is refused. With
    `allow_partial` its good rows are read and marked as partial. Only QQP was published with broken
    rows; they are skipped.

    Args:
        task: a TaskFormat; its `rows` say how many rows each file must have.
        data_dir: the folder that contains the tasks' folders.
        split: a key of task.rows.
        allow_partial: whether to read files whose rows do not agree with task.rows.
        log: gets one line about what was skipped or is missing.

    Returns:
        Examples

    Raises:
        MissingFile: a file is missing; the message names the command that downloads it.
        UserError: the file is refused, or a label is not one of the task's.
    """
    # does the task have this split?
    if split not in task.rows:
        raise UserError(f"{task.folder} has no split {split!r}; it has: {', '.join(task.rows)}")

    # MRPC was published as texts and a list of ids. If somebody made train.tsv, dev.tsv and
    # test.tsv from them, these are read.
    path = file_path(task, data_dir, split)
    if task.name == "mrpc" and not path.exists():
        table = read_mrpc_texts(task, data_dir, split)
    else:
        require_file(path, task, data_dir)
        table = read_split(path, task, split)

    # are all rows there?
    partial = check_rows(table, task, data_dir, split, allow_partial, log)

    # sentences
    a = [row.values[task.texts[0]] for row in table.rows]
    b = None
    if len(task.texts) == 2:
        b = [row.values[task.texts[1]] for row in table.rows]

    # labels and phenomena, where the file has them
    labels = None
    phenomena = None
    if has_labels(split):
        labels = read_labels(table, task)
        if task.phenomenon is not None:
            phenomena = [row.values[task.phenomenon] for row in table.rows]

    return Examples(task, split, a, b, labels, phenomena, partial, tuple(table.broken_lines))


@dataclass(frozen=True)
class Row:
    """One row of a file: the number of its line, counted from 1, and {column name: text}."""

    line: int
    values: dict


@dataclass(frozen=True)
class Table:
    """What was read from a file.

    Attributes:
        path: the file.
        rows: list of Row.
        broken_lines: the numbers of the lines that are no rows: they have too few columns, or, in
            a file without a header line, too many.
        long_lines: the numbers of the rows that have more columns than the header line names. The
            columns at their end are not read.
    """

    path: Path
    rows: list
    broken_lines: list
    long_lines: list


def read_split(path, task, split, extra_columns=()):
    """Read the columns of a split's file that an Examples needs, and the extra ones: a Table."""
    # the columns to read
    names = [*task.texts, *extra_columns]
    if has_labels(split):
        names.append(task.label)
        if task.phenomenon is not None:
            names.append(task.phenomenon)

    # without a header line, the table at the top of this module says which columns there are
    header = None
    if not task.has_header(split):
        header = task.columns_of(split)
    return read_columns(path, names, header)


def read_columns(path, names, header=None):
    """Read some columns of a tab-separated file. Empty lines are skipped.

    Args:
        path: the file.
        names: the columns to read.
        header: names of all columns, for a file without a header line; None: its first line names
            them.

    Returns:
        Table

    Raises:
        UserError: a column is missing, or the file is not UTF-8 text.
    """
    rows = []
    broken_lines = []
    long_lines = []

    # Without a header line, only the number of columns shows that a tab is in the wrong place.
    may_be_long = header is None
    try:
        # "utf-8-sig" skips the byte order mark that some of the published files begin with
        with open(path, encoding="utf-8-sig") as file:
            # which columns does the file have?
            first_line = 1
            if header is None:
                header = file.readline().rstrip("\n").split("\t")
                first_line = 2
            indices = find_columns(path, names, header)

            # one row per line
            for number, line in enumerate(file, first_line):
                line = line.rstrip("\n")
                fields = line.split("\t")
                is_long = len(fields) > len(header)
                if len(fields) == len(header) or (is_long and may_be_long):
                    values = {name: fields[index] for name, index in indices.items()}
                    rows.append(Row(number, values))
                    if is_long:
                        long_lines.append(number)
                elif line != "":
                    broken_lines.append(number)
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text, so it is not GLUE's file") from None
    return Table(path, rows, broken_lines, long_lines)


def find_columns(path, names, header):
    """{column name: its position in a row, counted from 0}. UserError: a column is missing."""
    indices = {}
    for name in names:
        if name not in header:
            found = ", ".join(header)[:200]
            raise UserError(f"{path} has no column {name!r}; its first line names: {found}")
        indices[name] = header.index(name)
    return indices


def read_mrpc_texts(task, data_dir, split):
    """Read a split of MRPC from its files as they were published.

    msr_paraphrase_train.txt holds the rows of train and of dev. dev_ids.tsv has no header line; it
    names the rows of dev by the ids of both sentences.
    """
    folder = Path(data_dir, task.folder)
    id_columns = ("#1 ID", "#2 ID")

    # the test file is complete by itself
    if not has_labels(split):
        path = folder / "msr_paraphrase_test.txt"
        require_file(path, task, data_dir)
        return read_split(path, task, split)

    # train and dev share a file; another one has the ids of dev
    path = folder / "msr_paraphrase_train.txt"
    ids_path = folder / "dev_ids.tsv"
    require_file(path, task, data_dir)
    require_file(ids_path, task, data_dir)
    table = read_split(path, task, split, id_columns)
    id_table = read_columns(ids_path, id_columns, header=id_columns)

    # keep the rows of this split, in the order of the text
    dev_ids = {(row.values["#1 ID"], row.values["#2 ID"]) for row in id_table.rows}
    kept = []
    for row in table.rows:
        is_dev = (row.values["#1 ID"], row.values["#2 ID"]) in dev_ids
        if is_dev == (split == "dev"):
            kept.append(row)
    return Table(path, kept, table.broken_lines, table.long_lines)


def require_file(path, task, data_dir):
    """MissingFile, with the command that downloads the file, if it is missing."""
    if not path.is_file():
        raise MissingFile(f"{path} is missing: run {download_command(task, data_dir)}")


def check_rows(table, task, data_dir, split, allow_partial, log):
    """Compare the rows of a file with the published number; log what is skipped or missing.

    Returns whether the split is partial. Raises UserError if it is and `allow_partial` is False.
    """
    again = f"delete {table.path.parent} and run {download_command(task, data_dir)}"
    if not table.rows:
        raise UserError(f"{table.path} has no rows of {split}: {again}")

    # partial: another number of rows than published, or broken rows in a file published without any
    published = task.rows[split]
    partial = len(table.rows) != published
    if table.broken_lines and not task.short_rows:
        partial = True

    # say what was found
    found = f"{table.path}: {split} has {len(table.rows):,} rows; {published:,} were published"
    if table.broken_lines:
        found += f"; broken rows: {named_lines(table.broken_lines)}"
    if table.long_lines:
        found += f"; rows with more columns than are named: {named_lines(table.long_lines)}"

    if partial and not allow_partial:
        raise UserError(
            f"{found}. The file is incomplete or was edited: {again}, "
            "or read what it has with --allow_partial"
        )
    if partial:
        log(f"{found}. PARTIAL: scores on these rows are not GLUE scores")
    elif table.broken_lines:
        log(f"{found}. They are skipped")
    elif table.long_lines:
        log(f"{found}. What follows the last named column is not read")
    return partial


def named_lines(numbers):
    """Some line numbers as text; of many, the first ten: "12, in lines 3, 4, ..."."""
    text = ", ".join(str(number) for number in numbers[:10])
    if len(numbers) > 10:
        text += ", ..."
    return f"{len(numbers):,}, in lines {text}"


def read_labels(table, task):
    """Class ids or numbers, one per row. UserError names the first label that is not allowed."""
    labels = []
    for row in table.rows:
        text = row.values[task.label]
        label = read_label(text, task)
        if label is None:
            allowed = allowed_labels(task)
            raise UserError(f"{table.path}, line {row.line}: label {text[:50]!r} is not {allowed}")
        labels.append(label)
    return labels


def read_label(text, task):
    """Return a label's class id, or its number for STS-B; None if the label is not allowed."""
    # a word
    if task.classes is not None:
        if text in task.classes:
            return task.classes.index(text)
        return None

    # A number from 0 to 5. Python also reads digits of other scripts, and 1_0 as 10.
    if not set(text) <= set(" 0123456789.eE+-"):
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    if 0 <= number <= 5:
        return number
    return None


def allowed_labels(task):
    """The task's labels in words, for messages."""
    if task.classes is None:
        return "a number from 0 to 5"
    return "one of: " + ", ".join(task.classes)


def check_data(formats, data_dir):
    """Print, for every file of every task, how many rows it has and how many were published.

    Args:
        formats: {name: TaskFormat}.
        data_dir: the folder that contains the tasks' folders.

    Raises:
        UserError: there is no file at all, or one cannot be read.
    """

    files = 0
    for task in formats.values():
        for split, published in task.rows.items():
            # read the file, if there is one
            try:
                examples = read_task(task, data_dir, split, True, log=lambda line: None)
            except MissingFile:
                rows = "no"
                state = "missing"
            else:
                files += 1
                rows = f"{len(examples.a):,}"
                state = "complete"
                if examples.partial:
                    state = "partial"
                if examples.skipped:
                    state += f", {len(examples.skipped):,} broken rows skipped"

            print(f"{task.folder:<7}{split:<16}{rows:>8} of {published:>7,} rows   {state}")

    if files == 0:
        command = command_line(["python", "glue.py", "download", "all", "--data_dir", data_dir])
        raise UserError(f"there are no GLUE files in {data_dir}: run {command}")
