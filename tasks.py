"""GLUE's nine tasks as data: their files, where they come from and how they are read, metrics, submissions.

What is fine-tuned on them, and how, is in glue.py. Tasks and settings: Wang et al. 2019 (GLUE); [C] = Chang et al.
2021, table 5, A.1, A.2, and the code they released.
"""

import contextlib
import lzma
import os
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

import numpy as np

from data import download

# --- Tasks ------------------------------------------------------------------------------------------------------------
SEEDS = (42, 97, 834, 622, 329, 75, 213, 101, 123, 57)  # of the ten runs a task, in the released code
LEARNING_RATES = {"tiny": 3e-4, "small": 3e-4, "base": 1e-4}  # peak, by size of the model; tiny is this project's
WARMUP_SHARE, WEIGHT_DECAY, DROPOUT, SEQ_LEN = 0.1, 0.0, 0.1, 128  # the first: of the steps; then linear to 0


@dataclass(frozen=True)
class Task:
    """A task's files as published, what is measured, and how [C] fine-tune on it."""

    folder: str
    rows: dict  # split: published rows; None: any number. SPLIT.tsv is the file; "diagnostic" has its own folder
    texts: tuple  # names of the columns of sentence a and, where there is one, b
    label: str  # name of the label's column; "test" and "diagnostic" files have none
    classes: tuple | None  # label words in the order of their ids; None: a number from 0 to 5
    metrics: tuple  # names in METRICS; a task's score is their mean
    epochs: int
    released_steps: int  # what the released code sets; epochs over the rows come within a few per cent of it
    batch_size: int = 32
    lr: float | None = None  # peak; None: LEARNING_RATES
    start: str | None = None  # the task whose fine-tuned encoder this one starts from; None: the pre-trained one
    no_header: tuple = ()  # the columns' names, where train and dev have no header line
    short_rows: bool = False  # whether the published files have broken rows, to be skipped


ENTAILMENT, PAIR = ("entailment", "not_entailment"), ("sentence1", "sentence2")
TASKS = {task.folder.lower(): task for task in (
    Task("CoLA", dict(train=8551, dev=1043, test=1063), ("sentence",), "label", ("0", "1"), ("matthews",), 3, 851,
         no_header=("source", "label", "mark", "sentence")),
    Task("SST-2", dict(train=67349, dev=872, test=1821), ("sentence",), "label", ("0", "1"), ("accuracy",), 3, 6409),
    Task("MRPC", dict(train=3668, dev=408, test=1725), ("#1 String", "#2 String"), "Quality", ("0", "1"),
         ("accuracy", "f1"), 3, 343, start="mnli"),
    Task("STS-B", dict(train=5749, dev=1500, test=1379), PAIR, "score", None, ("pearson", "spearman"), 10, 1836,
         start="mnli"),
    Task("QQP", dict(train=363846, dev=40430, test=390965), ("question1", "question2"), "is_duplicate", ("0", "1"),
         ("accuracy", "f1"), 4, 11200, batch_size=128, short_rows=True),
    Task("MNLI", dict(train=392702, dev_matched=9815, dev_mismatched=9832, test_matched=9796, test_mismatched=9847,
                      diagnostic=1104), PAIR, "gold_label", ("contradiction", "entailment", "neutral"), ("accuracy",),
         4, 12121, batch_size=128),
    Task("QNLI", dict(train=104743, dev=5463, test=5463), ("question", "sentence"), "label", ENTAILMENT, ("accuracy",),
         3, 9835, lr=1e-4),
    Task("RTE", dict(train=2490, dev=277, test=3000), PAIR, "label", ENTAILMENT, ("accuracy",), 10, 777, start="mnli"),
    Task("WNLI", dict(train=635, dev=71, test=146), PAIR, "label", ("0", "1"), ("accuracy",), 5, 100),
)}


def find_tasks(name):
    """The names of the tasks that "all" or a task's name, in any case, stands for. ValueError: no such task."""
    if name.lower() not in (*TASKS, "all"):
        raise ValueError(f"unknown task {name!r}; the tasks are: {', '.join(TASKS)}; or all")
    return list(TASKS) if name.lower() == "all" else [name.lower()]


# --- Files ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Examples:
    """One split of a task. `labels` are class ids, numbers (STS-B), or None where none are published."""

    task: Task
    split: str
    a: list  # of str, one a row
    b: list | None  # the second sentences
    labels: list | None
    kinds: list | None  # of CoLA: where a sentence comes from, or in the toy tasks which phenomenon it tests
    partial: bool  # rows are missing or were added: scores here are not GLUE scores
    skipped: tuple  # line numbers of broken rows


def read_columns(path, names, header=None):
    """(rows, short) of a tab-separated file: rows of (line number, the fields of the columns `names`), and the numbers
    of lines with fewer fields than `header` (None: the first line). Quotes are literal, empty lines passed over.
    """
    rows, short, first = [], [], 1 if header else 2
    try:
        with open(path, encoding="utf-8-sig") as file:
            header = header or file.readline().rstrip("\n").split("\t")
            absent = [name for name in names if name not in header]
            if absent:
                raise ValueError(f"{path} has no column {absent[0]!r}; its first line names: {', '.join(header)[:200]}")
            places = [header.index(name) for name in names]
            for number, line in enumerate(file, first):
                fields = line.rstrip("\n").split("\t")
                if len(fields) >= len(header):
                    rows.append((number, [fields[place] for place in places]))
                elif fields != [""]:
                    short.append(number)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text, so it is not GLUE's file") from None
    return rows, short


def read_label(text, task):
    """A class id, or STS-B's number; None: outside the set."""
    try:
        return task.classes.index(text) if task.classes else float(text) if 0 <= float(text) <= 5 else None
    except ValueError:
        return None


def read_task(task, data_dir, split, allow_partial=False, log=print):
    """The Examples of one split of a task (a name or a Task), from GLUE's files in `data_dir`.

    A file with more or fewer rows than published, or broken ones, is refused, or with `allow_partial` read without the
    broken ones and marked partial; `log` is told. QQP's broken rows are skipped, counted and named. FileNotFoundError:
    the line says which command brings the file. ValueError: refused, or a label is outside the set.
    """
    task = TASKS[find_tasks(task)[0]] if isinstance(task, str) else task
    if split not in task.rows:
        raise ValueError(f"{task.folder} has no split {split!r}; it has: {', '.join(task.rows)}")
    folder = Path(data_dir, "diagnostic" if split == "diagnostic" else task.folder)
    path, labelled, ids = folder / f"{split}.tsv", not split.startswith(("test", "diagnostic")), ()
    if task.folder == "MRPC" and not path.exists():  # then the texts as published, train and dev in one
        path = folder / f"msr_paraphrase_{'train' if labelled else 'test'}.txt"
        ids = ("#1 ID", "#2 ID") if labelled else ()
    fetch = f"python glue.py --download {task.folder.lower()} --data_dir {data_dir}"
    for file in [path] + [folder / "dev_ids.tsv"] * bool(ids):
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing: {fetch} brings it")

    header = task.no_header if labelled else ()
    names = task.texts + (task.label,) * labelled + header[:1] + ids
    rows, short = read_columns(path, names, header)
    if ids:
        dev_ids = [pair for _, pair in read_columns(folder / "dev_ids.tsv", ids, ids)[0]]
        rows = [(number, fields) for number, fields in rows if (fields[-2:] in dev_ids) == (split == "dev")]

    if not rows:
        raise ValueError(f"{path} has no rows: delete {folder} and fetch it anew ({fetch})")
    published = len(rows) if task.rows[split] is None else task.rows[split]
    partial = len(rows) != published or bool(short) and not task.short_rows
    found = f"{path}: {split} has {len(rows):,} rows, published are {published:,}"
    if short:
        found += f"; {len(short):,} broken, lines {', '.join(map(str, short[:10]))}{', ...' * (len(short) > 10)}"
    if partial and not allow_partial:
        raise ValueError(f"{found}: cut short or edited; delete {folder} and fetch it anew ({fetch}), or take what is "
                         "there with --allow_partial")
    if partial or short:
        log(found + (": PARTIAL, scores on it are not GLUE scores" if partial else ": the broken ones are skipped"))

    labels = [read_label(fields[len(task.texts)], task) for _, fields in rows] if labelled else None
    if labelled and None in labels:
        number, fields = rows[labels.index(None)]
        raise ValueError(f"{path}, line {number}: label {fields[len(task.texts)]!r} is not "
                         + ("one of: " + ", ".join(task.classes) if task.classes else "a number from 0 to 5"))
    a, b = ([fields[i] for _, fields in rows] if i < len(task.texts) else None for i in (0, 1))
    kinds = [fields[-1] for _, fields in rows] if header else None
    return Examples(task, split, a, b, labels, kinds, partial, tuple(short))


def check_data(tasks, data_dir):
    """Print, for every file of every task, the rows found and published. ValueError: no file, or an unreadable one."""
    found = 0
    for task, split in [(task, split) for task in tasks.values() for split in task.rows]:
        rows, state = "no", "missing"
        with contextlib.suppress(FileNotFoundError):
            examples = read_task(task, data_dir, split, allow_partial=True, log=lambda line: None)
            rows, state = f"{len(examples.a):,}", "partial" if examples.partial else "complete"
            state += f", {len(examples.skipped):,} broken rows skipped" * bool(examples.skipped)
            found += 1
        print(f"{task.folder:<7}{split:<16}{rows:>8} of {task.rows[split]:>7,} rows   {state}")
    if not found:
        raise ValueError(f"no files in {data_dir}: python glue.py --download all --data_dir {data_dir} fetches them")


# --- Downloads --------------------------------------------------------------------------------------------------------
GLUE_URL = "https://dl.fbaipublicfiles.com/glue/data/"
MSR_URL = "https://dl.fbaipublicfiles.com/senteval/senteval_data/msr_paraphrase_"
# Task, name (under GLUE_URL, or a whole URL), bytes, SHA-256. Archives are kept in downloads/ and unpacked into the
# task's folder; other files go there as they are, or where PLACES says.
PLACES = {"mrpc_dev_ids.tsv": "MRPC/dev_ids.tsv", "AX.tsv": "diagnostic/diagnostic.tsv"}
SOURCES = (
    ("cola", "CoLA.zip", 376_971, "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"),
    ("sst-2", "SST-2.zip", 7_439_277, "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"),
    ("mrpc", MSR_URL + "train.txt", 1_047_044, "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89"),
    ("mrpc", MSR_URL + "test.txt", 441_275, "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784"),
    ("mrpc", "mrpc_dev_ids.tsv", 6_222, "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7"),
    ("sts-b", "STS-B.zip", 802_872, "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85"),
    ("qqp", "QQP-clean.zip", 41_696_084, "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0"),
    ("mnli", "MNLI.zip", 312_783_507, "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"),
    ("mnli", "AX.tsv", 222_257, "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd"),
    ("qnli", "QNLIv2.zip", 10_627_589, "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5"),
    ("rte", "RTE.zip", 697_150, "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee"),
    ("wnli", "WNLI.zip", 28_999, "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46"),
)


def unpack(archive, folder, names):
    """Make `folder`, whole or not at all, of the files `names` in the zip's folder of that name. Nothing else is taken,
    so that no path or link of an archive leads anywhere. ValueError: it is damaged, or a file is not in it.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=folder.name, ignore_cleanup_errors=True) as temporary:
        new = Path(temporary, folder.name)
        new.mkdir()
        try:
            with zipfile.ZipFile(archive) as files:
                for name in names:
                    (new / name).write_bytes(files.read(f"{folder.name}/{name}"))
        except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"cannot unpack {archive}: {error}") from None
        os.replace(new, folder)


def download_tasks(names, data_dir, log=print):
    """Bring the published files of the tasks `names` to `data_dir`, size and SHA-256 checked; what is there stays.
    OSError: the line names every file still missing, its address and its place. ValueError: what is there is wrong.
    """
    missing = []  # (url, path, size, sha256, (folder, files) to unpack or None)
    for task, name, size, sha256 in SOURCES:
        folder, url = Path(data_dir, TASKS[task].folder), urljoin(GLUE_URL, name)
        tables = [f"{split}.tsv" for split in TASKS[task].rows if split != "diagnostic"]
        absent = [table for table in tables if not (folder / table).exists()]
        if task not in names or (task == "mrpc" and not absent):  # MRPC's texts are not needed beside its tables
            continue
        if not name.endswith(".zip"):
            path = Path(data_dir, PLACES.get(name, f"{folder.name}/{url.rpartition('/')[2]}"))
            missing += [] if path.exists() else [(url, path, size, sha256, None)]
        elif absent and folder.exists():
            raise ValueError(f"{folder} is there, but without {', '.join(absent)}: delete it or move it away")
        elif absent:
            missing.append((url, Path(data_dir, "downloads", name), size, sha256, (folder, tables)))
    log("nothing to download: all files are there" if not missing else f"files to download: {len(missing)}")
    for number, (url, path, size, sha256, unpacked) in enumerate(missing, 1):
        try:
            download([url], path, size, sha256)
        except OSError as error:
            rest = ", ".join(f"{url} to {path}" for url, path, *_ in missing[number:])
            raise OSError(f"{error}{'; also missing: ' * bool(rest)}{rest}") from None
        if unpacked:
            unpack(path, *unpacked)
        log(f"{url}: {size:,} bytes, SHA-256 agrees")


# --- Metrics ----------------------------------------------------------------------------------------------------------
# predictions and labels: (n,) numbers or class ids, n > 0, else ValueError. Undefined cases: f1 is 0 where nothing is
# rightly found; matthews, pearson and spearman are 0 where predictions or labels are all alike.

def paired(predictions, labels):
    x, y = (np.asarray(values, dtype=np.float64) for values in (predictions, labels))
    if x.ndim != 1 or x.shape != y.shape or not x.size or not np.isfinite([x, y]).all():
        raise ValueError(f"scores need one finite prediction for each of one or more labels; got {x.shape}, {y.shape}")
    return x, y


def accuracy(predictions, labels):
    """The share of predictions that equal their label."""
    return float(np.mean(np.equal(*paired(predictions, labels))))


def f1(predictions, labels):
    """Harmonic mean of precision and recall of class 1: 2 TP / (2 TP + FP + FN)."""
    x, y = (values == 1 for values in paired(predictions, labels))
    return float(2 * np.sum(x & y) / (x.sum() + y.sum())) if (x & y).any() else 0.0


def matthews(predictions, labels):
    """Matthews 1975: (TP TN - FP FN) / sqrt((TP + FP)(TP + FN)(TN + FP)(TN + FN)); Pearson's r of two-valued x, y."""
    return pearson(*(values == 1 for values in paired(predictions, labels)))


def pearson(predictions, labels):
    """Pearson's r: cov(x, y) / (sd(x) sd(y))."""
    x, y = paired(predictions, labels)
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) > 0 and np.ptp(y) > 0 else 0.0


def spearman(predictions, labels):
    """Spearman's rho: Pearson's r of the ranks; equal values share the mean of theirs."""
    counted = (np.unique(values, return_inverse=True, return_counts=True) for values in paired(predictions, labels))
    return pearson(*((np.cumsum(counts) - (counts - 1) / 2)[places] for _, places, counts in counted))


METRICS = {"accuracy": accuracy, "f1": f1, "matthews": matthews, "pearson": pearson, "spearman": spearman}


def scores(predictions, examples):
    """{metric: value, ..., "score": their mean}, times 100. ValueError: the split has no published labels."""
    if examples.labels is None:
        raise ValueError(f"{examples.task.folder} {examples.split} has no published labels: it cannot be scored here")
    values = {name: 100 * METRICS[name](predictions, examples.labels) for name in examples.task.metrics}
    return values | {"score": float(np.mean(list(values.values())))}


# --- Submissions ------------------------------------------------------------------------------------------------------
SUBMISSION = {"CoLA": ("cola", "test"), "SST-2": ("sst-2", "test"), "MRPC": ("mrpc", "test"),
              "STS-B": ("sts-b", "test"), "MNLI-m": ("mnli", "test_matched"), "MNLI-mm": ("mnli", "test_mismatched"),
              "QNLI": ("qnli", "test"), "QQP": ("qqp", "test"), "RTE": ("rte", "test"), "WNLI": ("wnli", "test"),
              "AX": ("mnli", "diagnostic")}


def check_submission(path, tasks):
    """Names, headers, row counts, labels and ranges of any submission. ValueError: all that is wrong, a line each."""
    wrong = []
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            texts = {}
            for info in archive.infolist():
                if info.filename in {f"{file}.tsv" for file in SUBMISSION}:
                    if info.file_size > 1 << 26:  # QQP's, the largest, has 4 MB
                        raise ValueError(f"{info.filename} has {info.file_size:,} bytes")
                    texts[info.filename] = archive.read(info)
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is not a whole zip archive: {error}") from None
    wrong += [f"{name} is " + ("in a folder, the files belong at the top" if "/" in name else "no file of a submission")
              for name in names if name not in texts]
    wrong += [f"{name} is there {names.count(name)} times" for name in texts if names.count(name) > 1]
    for file, (name, split) in SUBMISSION.items():
        task, data = tasks[name], texts.get(f"{file}.tsv")
        if data is None:
            wrong.append(f"{file}.tsv is missing")
            continue
        lines = data.decode("utf-8", "replace").splitlines() or [""]
        if lines[0] != "index\tprediction":
            wrong.append(f"{file}.tsv: its first line is {lines[0][:50]!r}, not 'index\\tprediction'")
        if len(lines) - 1 != task.rows[split]:
            wrong.append(f"{file}.tsv has {len(lines) - 1:,} predictions, not {task.rows[split]:,}")
        for index, line in enumerate(lines[1:]):
            place, _, label = line.partition("\t")
            if place != str(index):
                wrong.append(f"{file}.tsv, line {index + 2}: index {place[:20]!r}, not {index}")
                break
            if read_label(label, task) is None:
                wrong.append(f"{file}.tsv, line {index + 2}: prediction {label[:20]!r} is not "
                             + ("one of: " + ", ".join(task.classes) if task.classes else "a number from 0 to 5"))
                break
    if wrong:
        raise ValueError(f"{path} is not a submission to GLUE:\n  " + "\n  ".join(wrong))
    print(f"{path}: {len(SUBMISSION)} files, names, headers, indices, row counts and predictions as GLUE asks")
