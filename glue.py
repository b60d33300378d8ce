"""The GLUE protocol: its nine tasks as data, their files, downloads, metrics.

    python glue.py --download all --data_dir glue_data      the published files: size, SHA-256, unpacked
    python glue.py --check_data --data_dir glue_data        rows found in every file, beside the published number

Tasks and settings: Wang et al. 2019 (GLUE); [C] = Chang et al. 2021, table 5, A.1, A.2, and the code they released.
"""

import argparse
import os
import shutil
import stat
import sys
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data import download

# --- Tasks -----------------------------------------------------------------------------------------------------------
SEEDS = (42, 97, 834, 622, 329, 75, 213, 101, 123, 57)  # of the ten runs a task, in the released code
LEARNING_RATES = {"tiny": 3e-4, "small": 3e-4, "base": 1e-4}  # peak, by size of the model; tiny is this project's
WARMUP_SHARE = 0.1  # of the steps; then linear to 0
WEIGHT_DECAY, DROPOUT, SEQ_LEN = 0.0, 0.1, 128
HIGHEST_SCORE = 5.0  # STS-B: similarity from 0 to 5


@dataclass(frozen=True)
class Task:
    """A task's files as published, what is measured, and how [C] fine-tune on it."""

    folder: str
    rows: dict  # split: published rows; None: any number. SPLIT.tsv is the file; "diagnostic" has its own folder
    texts: tuple  # names of the columns of sentence a and, where there is one, b
    label: str  # name of the label's column; "test" and "diagnostic" files have none
    classes: tuple | None  # label words in the order of their ids; None: a number from 0 to HIGHEST_SCORE
    metrics: tuple  # names in METRICS; a task's score is their mean
    epochs: int
    released_steps: int  # what the released code sets; epochs over the rows come within a few per cent of it
    batch_size: int = 32
    lr: float | None = None  # peak; None: LEARNING_RATES
    start: str | None = None  # the task whose fine-tuned encoder this one starts from; None: the pre-trained one
    no_header: tuple = ()  # the columns' names, where train and dev have no header line
    short_rows: bool = False  # whether the published files have broken rows, to be skipped

    @property
    def name(self):
        return self.folder.lower()


ENTAILMENT, PAIR = ("entailment", "not_entailment"), ("sentence1", "sentence2")


def splits(train, dev, test):
    return {"train": train, "dev": dev, "test": test}


TASKS = {task.name: task for task in (
    Task("CoLA", splits(8551, 1043, 1063), ("sentence",), "label", ("0", "1"), ("matthews",), 3, 851,
         no_header=("source", "label", "mark", "sentence")),
    Task("SST-2", splits(67349, 872, 1821), ("sentence",), "label", ("0", "1"), ("accuracy",), 3, 6409),
    Task("MRPC", splits(3668, 408, 1725), ("#1 String", "#2 String"), "Quality", ("0", "1"), ("accuracy", "f1"), 3, 343,
         start="mnli"),
    Task("STS-B", splits(5749, 1500, 1379), PAIR, "score", None, ("pearson", "spearman"), 10, 1836, start="mnli"),
    Task("QQP", splits(363846, 40430, 390965), ("question1", "question2"), "is_duplicate", ("0", "1"),
         ("accuracy", "f1"), 4, 11200, batch_size=128, short_rows=True),
    Task("MNLI", {"train": 392702, "dev_matched": 9815, "dev_mismatched": 9832, "test_matched": 9796,
                  "test_mismatched": 9847, "diagnostic": 1104},
         PAIR, "gold_label", ("contradiction", "entailment", "neutral"), ("accuracy",), 4, 12121, batch_size=128),
    Task("QNLI", splits(104743, 5463, 5463), ("question", "sentence"), "label", ENTAILMENT, ("accuracy",), 3, 9835,
         lr=1e-4),
    Task("RTE", splits(2490, 277, 3000), PAIR, "label", ENTAILMENT, ("accuracy",), 10, 777, start="mnli"),
    Task("WNLI", splits(635, 71, 146), PAIR, "label", ("0", "1"), ("accuracy",), 5, 100),
)}


def find_task(name):
    """The Task of this name, in any case. ValueError: none; the line lists them."""
    if name.lower() not in TASKS:
        raise ValueError(f"unknown task {name!r}; the tasks are: {', '.join(TASKS)}; or all")
    return TASKS[name.lower()]


def find_tasks(name):
    return list(TASKS.values()) if name == "all" else [find_task(name)]


# --- Files -----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Examples:
    """One split of a task. `labels` are class ids, numbers (STS-B), or None where none are published."""

    task: Task
    split: str
    a: list  # of str, one a row
    b: list | None  # the second sentences
    labels: list | None
    partial: bool  # rows are missing or were added: scores here are not GLUE scores
    skipped: tuple  # line numbers of broken rows

    def __len__(self):
        return len(self.a)


def has_labels(split):
    return not split.startswith(("test", "diagnostic"))


def find_files(task, data_dir, split):
    """The file that holds a split, whether it is there or not; of MRPC as published also the ids that tell dev from
    train, else None. MRPC's ready-made {train,dev,test}.tsv are taken where they are there.
    """
    folder = Path(data_dir, "diagnostic" if split == "diagnostic" else task.folder)
    path = folder / f"{split}.tsv"
    if task.folder != "MRPC" or path.exists():
        return path, None
    if split == "test":
        return folder / "msr_paraphrase_test.txt", None
    return folder / "msr_paraphrase_train.txt", folder / "dev_ids.tsv"


def read_columns(path, names, header=()):
    """The columns `names` of a tab-separated file -> (rows, short): rows of (line number, fields), and the numbers of
    lines with fewer fields than `header`, which is the file's first line where none is given.

    Quotes are literal: no field is quoted. A byte order mark, any kind of line end and empty lines are passed over.
    """
    rows, short = [], []
    try:
        with open(path, encoding="utf-8-sig") as file:
            first = 1 if header else 2
            header = header or file.readline().rstrip("\n").split("\t")
            for name in names:
                if name not in header:
                    raise ValueError(f"{path} has no column {name!r}; its first line names: {', '.join(header)[:200]}")
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


def read_label(text, task, path, number):
    """A class id, or STS-B's number. ValueError: the label is outside the set; the line names file and line."""
    if task.classes is not None:
        if text in task.classes:
            return task.classes.index(text)
        raise ValueError(f"{path}, line {number}: label {text!r} is none of: {', '.join(task.classes)}")
    try:
        score = float(text)
    except ValueError:
        score = float("nan")
    if not 0 <= score <= HIGHEST_SCORE:
        raise ValueError(f"{path}, line {number}: label {text!r} is not a number from 0 to {HIGHEST_SCORE:g}")
    return score


def lines_text(numbers, most=10):
    return f"line{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:most]))}{', ...' * (len(numbers) > most)}"


def read_task(task, data_dir, split, allow_partial=False, log=print):
    """The Examples of one split of a task (a name or a Task) from GLUE's files in `data_dir`.

    A file with another number of rows than published, or with broken rows where none are published, is refused; with
    `allow_partial` it is taken without the broken ones, `log` is told, and the Examples are marked partial. QQP's
    published broken rows are skipped, counted and named. Raises FileNotFoundError (the line says which command brings
    the file) and ValueError (refused; a label outside the set; no such split), one line each.
    """
    task = find_task(task) if isinstance(task, str) else task
    if split not in task.rows:
        raise ValueError(f"{task.folder} has no split {split!r}; it has: {', '.join(task.rows)}")
    path, ids_path = find_files(task, data_dir, split)
    fetch = f"python glue.py --download {task.name} --data_dir {data_dir}"
    for file in filter(None, (path, ids_path)):
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing: {fetch} brings it")

    labelled, pair = has_labels(split), ("#1 ID", "#2 ID")
    names = [*task.texts, *([task.label] if labelled else []), *(pair if ids_path else [])]
    rows, short = read_columns(path, names, task.no_header if labelled else ())
    if ids_path:
        dev_ids = {tuple(ids) for _, ids in read_columns(ids_path, pair, pair)[0]}
        rows = [(number, fields) for number, fields in rows if (tuple(fields[-2:]) in dev_ids) == (split == "dev")]

    published = len(rows) if task.rows[split] is None else task.rows[split]
    partial = len(rows) != published or bool(short and not task.short_rows)
    if partial:
        broken = f" and {len(short):,} broken ({lines_text(short)})" if short else ""
        found = f"{path}: {split} has {len(rows):,} rows{broken}, published are {published:,}"
        if not allow_partial:
            raise ValueError(f"{found}: cut short or edited; delete {path.parent} and fetch it anew ({fetch}), or take "
                             "what is there with --allow_partial")
        log(f"{found}: PARTIAL, scores on it are not GLUE scores")
    elif short:
        log(f"{path}: {len(short):,} broken rows skipped, as is usual: {lines_text(short)}")

    labels = [read_label(fields[len(task.texts)], task, path, number) for number, fields in rows] if labelled else None
    a, b = [fields[0] for _, fields in rows], [fields[1] for _, fields in rows] if len(task.texts) > 1 else None
    return Examples(task, split, a, b, labels, partial, tuple(short))


def check_data(data_dir):
    """Print, for every file of every task, the rows found and published. ValueError: no file at all, or unreadable."""
    found, unreadable = 0, 0
    print(f"{'task':<7}{'split':<17}{'rows':>9}{'published':>11}")
    for task in TASKS.values():
        for split, published in task.rows.items():
            rows, notes = "-", []
            try:
                examples = read_task(task, data_dir, split, allow_partial=True, log=lambda line: None)
                rows, state = f"{len(examples):,}", "partial" if examples.partial else "complete"
                notes = [f"{len(examples.skipped):,} broken rows skipped"] if examples.skipped else []
                found += 1
            except FileNotFoundError:
                state = "missing"
            except (ValueError, OSError) as error:
                state, unreadable = f"unreadable: {error}", unreadable + 1
            print(f"{task.folder:<7}{split:<17}{rows:>9}{published:>11,}   {', '.join([state, *notes])}")
    if unreadable:
        raise ValueError(f"{unreadable} of the files in {data_dir} cannot be read, as said above")
    if not found:
        raise ValueError(f"{data_dir} has no GLUE files: python glue.py --download all --data_dir {data_dir} brings them")


# --- Downloads -------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Source:
    """A published file, and where it is put under the data folder; archives go to downloads/ and are unpacked."""

    url: str
    size: int  # bytes
    sha256: str
    path: str


def glue_file(name, size, sha256, path=None):
    return Source(f"https://dl.fbaipublicfiles.com/glue/data/{name}", size, sha256, path or f"downloads/{name}")


def mrpc_file(name, size, sha256):
    return Source(f"https://dl.fbaipublicfiles.com/senteval/senteval_data/{name}", size, sha256, f"MRPC/{name}")


DOWNLOADS = {
    "cola": [glue_file("CoLA.zip", 376_971, "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff")],
    "sst-2": [glue_file("SST-2.zip", 7_439_277, "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa")],
    "mrpc": [
        mrpc_file("msr_paraphrase_train.txt", 1_047_044,
                  "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89"),
        mrpc_file("msr_paraphrase_test.txt", 441_275,
                  "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784"),
        glue_file("mrpc_dev_ids.tsv", 6_222, "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7",
                  path="MRPC/dev_ids.tsv")],
    "sts-b": [glue_file("STS-B.zip", 802_872, "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85")],
    "qqp": [glue_file("QQP-clean.zip", 41_696_084, "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0")],
    "mnli": [glue_file("MNLI.zip", 312_783_507, "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"),
             glue_file("AX.tsv", 222_257, "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd",
                       path="diagnostic/diagnostic.tsv")],
    "qnli": [glue_file("QNLIv2.zip", 10_627_589, "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5")],
    "rte": [glue_file("RTE.zip", 697_150, "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee")],
    "wnli": [glue_file("WNLI.zip", 28_999, "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46")],
}


def unpack(archive, folder, names):
    """Take the files `names` out of the zip's folder of the same name as `folder`, which appears whole or not at all.

    Nothing else is taken, so no path or link in an archive can lead anywhere. ValueError: a file is missing, is a link,
    or the archive is damaged.
    """
    folder = Path(folder)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=folder.name, ignore_cleanup_errors=True) as temporary:
        new = Path(temporary, folder.name)
        new.mkdir()
        try:
            with zipfile.ZipFile(archive) as files:
                for name in names:
                    member = files.getinfo(f"{folder.name}/{name}")
                    if stat.S_ISLNK(member.external_attr >> 16):  # the high half holds Unix's file mode
                        raise ValueError(f"{archive}: {member.filename} is a link, not a file")
                    with files.open(member) as source, open(new / name, "wb") as target:
                        shutil.copyfileobj(source, target)
        except KeyError:
            raise ValueError(f"{archive} has no file {folder.name}/{name}") from None
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{archive} is damaged: {error}") from None
        os.replace(new, folder)


def missing_sources(task, data_dir):
    """The Sources still needed for a task's files. ValueError: its folder is there, but without all of an archive's."""
    missing, folder = [], Path(data_dir, task.folder)
    for source in DOWNLOADS[task.name]:
        if source.path.startswith("downloads/"):
            absent = [name for name in archived(task) if not (folder / name).exists()]
            if absent and folder.exists():
                raise ValueError(f"{folder} is there, but has no {', '.join(absent)}: move it away or delete it, then "
                                 "start again")
            missing += [source] if absent else []
        elif not Path(data_dir, source.path).exists():
            missing.append(source)
    if task.folder == "MRPC" and all((folder / f"{split}.tsv").exists() for split in task.rows):
        return []
    return missing


def archived(task):
    return [f"{split}.tsv" for split in task.rows if split != "diagnostic"]


def download_tasks(tasks, data_dir, log=print):
    """Bring the published files of these Tasks to `data_dir`; what is there is left as it is. Each file's size and
    SHA-256 are checked, broken downloads go on, an archive's folder appears whole. Raises OSError, naming every file
    still missing, its address and where to put it by hand, and ValueError (what is there is in the way, or is wrong).
    """
    wanted = []
    for task in tasks:
        missing = missing_sources(task, data_dir)
        wanted += [(task, source) for source in missing]
        if not missing:
            log(f"{task.folder}: there")
    for number, (task, source) in enumerate(wanted):
        try:
            path = download([source.url], Path(data_dir, source.path), source.size, source.sha256)
        except OSError as error:
            rest = ", ".join(f"{later.url} to {Path(data_dir, later.path)}" for _, later in wanted[number + 1:])
            raise OSError(f"{error}{'; also missing: ' * bool(rest)}{rest}") from None
        if source.path.startswith("downloads/"):
            unpack(path, Path(data_dir, task.folder), archived(task))
        log(f"{task.folder}: {source.url} ({source.size:,} bytes, SHA-256 agrees)")


# --- Metrics ---------------------------------------------------------------------------------------------------------
# predictions and labels: (n,) numbers or class ids, n > 0, else ValueError. All are values from -1 or 0 to 1.

def paired(predictions, labels):
    x, y = np.asarray(predictions, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"one prediction a label is needed, not predictions {x.shape} and labels {y.shape}")
    if not len(x):
        raise ValueError("there are no predictions to score")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("predictions and labels must be finite numbers")
    return x, y


def confusion(predictions, labels):
    """(TP, FP, FN, TN): how often class 1 was rightly and wrongly predicted, wrongly and rightly not."""
    x, y = paired(predictions, labels)
    return tuple(int(np.sum(cell)) for cell in ((x == 1) & (y == 1), (x == 1) & (y != 1),
                                                (x != 1) & (y == 1), (x != 1) & (y != 1)))


def accuracy(predictions, labels):
    """The share of predictions that equal their label."""
    x, y = paired(predictions, labels)
    return float(np.mean(x == y))


def f1(predictions, labels):
    """Harmonic mean of precision and recall of class 1: 2 TP / (2 TP + FP + FN). 0 where TP is 0, however defined."""
    tp, fp, fn, _ = confusion(predictions, labels)
    return 2 * tp / (2 * tp + fp + fn) if tp else 0.0


def matthews(predictions, labels):
    """Matthews 1975: (TP TN - FP FN) / sqrt((TP + FP)(TP + FN)(TN + FP)(TN + FN)). 0 where predictions or labels are
    all alike: there is no correlation with a constant.
    """
    tp, fp, fn, tn = confusion(predictions, labels)
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / product ** 0.5 if product else 0.0


def pearson(predictions, labels):
    """Pearson's r: cov(x, y) / (sd(x) sd(y)). 0 where predictions or labels are all alike."""
    x, y = paired(predictions, labels)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def average_ranks(values):
    """Ranks from 1 on, (n,); equal values share the mean of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def spearman(predictions, labels):
    """Spearman's rho: Pearson's r of the average ranks. 0 where predictions or labels are all alike."""
    x, y = paired(predictions, labels)
    return pearson(average_ranks(x), average_ranks(y))


METRICS = {"accuracy": accuracy, "f1": f1, "matthews": matthews, "pearson": pearson, "spearman": spearman}


def scores(predictions, examples):
    """{metric: value, ..., "score": their mean}, times 100. ValueError: the split has no published labels."""
    task = examples.task
    if examples.labels is None:
        raise ValueError(f"{task.folder}'s {examples.split} set has no published labels, so it cannot be scored here")
    values = {name: 100 * METRICS[name](predictions, examples.labels) for name in task.metrics}
    return values | {"score": float(np.mean(list(values.values())))}


# --- Command line ----------------------------------------------------------------------------------------------------

def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--data_dir", type=Path, default=Path("glue_data"), help="folder of GLUE's files")
    add("--download", metavar="TASK", help=f"fetch a task's files: {', '.join(TASKS)}; or all")
    add("--check_data", action="store_true", help="print the rows found in every file, beside the published number")
    args = parser.parse_args(argv)
    if not (args.download or args.check_data):
        parser.error("nothing to do: give --download or --check_data")
    return args


def main(argv=None):
    args = parse_arguments(argv)
    try:
        if args.download:
            download_tasks(find_tasks(args.download), args.data_dir)
        if args.check_data:
            check_data(args.data_dir)
    except (ValueError, OSError) as error:
        print(f"glue.py: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("glue.py: interrupted; the same command goes on from there", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
