"""The zip file of predictions that GLUE's server scores: how it is written and checked."""

import lzma
import zipfile
import zlib
from pathlib import Path

from support.commands import UserError
from support.files import write_atomically
from support.glue_format import allowed_labels, read_label

# file of the submission: (task, split)
SUBMISSION = {
    "CoLA.tsv": ("cola", "test"),
    "SST-2.tsv": ("sst-2", "test"),
    "MRPC.tsv": ("mrpc", "test"),
    "STS-B.tsv": ("sts-b", "test"),
    "MNLI-m.tsv": ("mnli", "test_matched"),
    "MNLI-mm.tsv": ("mnli", "test_mismatched"),
    "QNLI.tsv": ("qnli", "test"),
    "QQP.tsv": ("qqp", "test"),
    "RTE.tsv": ("rte", "test"),
    "WNLI.tsv": ("wnli", "test"),
    "AX.tsv": ("mnli", "diagnostic"),
}
# test split: the development split that decides which run of the task is the best. Each half of
# MNLI has its own, as in the released code of Chang et al. 2021. The diagnostic sentences have
# none: the best run on the matched half predicts them.
CHOSEN_ON = {
    "test": "dev",
    "test_matched": "dev_matched",
    "test_mismatched": "dev_mismatched",
    "diagnostic": "dev_matched",
}
HEADER = "index\tprediction"
LARGEST_FILE = 64 * 2**20  # bytes; the largest file, QQP.tsv, has about 4 MB


# --- Writing --------------------------------------------------------------------------------------


def submission_text(predictions, task):
    """The text of one file: a header line, then one line per prediction.

    Args:
        predictions: (n,) class ids, or numbers for STS-B.
        task: the TaskFormat.
    """
    lines = [HEADER]
    for index, value in enumerate(predictions):
        lines.append(f"{index}\t{prediction_text(value, task)}")
    return "\n".join(lines) + "\n"


def prediction_text(value, task):
    """The label word of a class id; of STS-B, the number within [0, 5], with three decimals."""
    if task.classes is not None:
        return task.classes[int(value)]
    clamped = min(max(value, 0), 5)
    return f"{clamped:.3f}"


def write_zip(path, folder):
    """Put the eleven files of `folder` into the zip `path`, atomically."""

    def write(temporary):
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in SUBMISSION:
                archive.write(folder / name, name)

    write_atomically(path, write)


# --- Checking -------------------------------------------------------------------------------------


def check_submission(path, formats):
    """Check any zip: names, header lines, indices, numbers of rows, labels and ranges.

    A file whose predictions are all equal is named in a line.

    Args:
        path: the zip file.
        formats: {name: TaskFormat}; their `rows` say how many predictions each file must have.

    Raises:
        UserError: it is not a submission. The message lists all that is wrong, one line each.
    """
    names, contents = read_zip(path)
    problems = check_names(names)
    for file, (name, split) in SUBMISSION.items():
        if file not in contents:
            problems.append(f"{file} is missing")
        else:
            problems += check_file(file, contents[file], formats[name], split)

    if problems:
        raise UserError(f"{path} is not a GLUE submission:\n  " + "\n  ".join(problems))
    print(
        f"{path}: a complete submission of {len(SUBMISSION)} files; "
        "names, header lines, indices, row counts and predictions are right"
    )

    # allowed, but no good model does it
    for file in SUBMISSION:
        predictions = {line.partition("\t")[2] for line in lines_of(contents[file])[1:]}
        if len(predictions) == 1:
            print(f"{file}: all predictions are equal ({predictions.pop()}): did the model learn?")


def read_zip(path):
    """(names of all files in a zip, {name: content} of the files of a submission).

    Raises UserError if it is not a zip, or if a file is far too large to be a submission's.
    """
    # reading a pipe would never end
    if Path(path).exists() and not Path(path).is_file():
        raise UserError(f"{path} is not a file")

    names = []
    contents = {}
    too_large = []
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                names.append(info.filename)

                # nothing else is unpacked
                if info.filename not in SUBMISSION:
                    continue
                if info.file_size > LARGEST_FILE:
                    too_large.append(info)
                else:
                    contents[info.filename] = archive.read(info)
    except (
        ValueError,
        RuntimeError,  # encrypted
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
    ) as error:
        raise UserError(f"{path} cannot be read as a zip archive: {error}") from None

    if too_large:
        info = too_large[0]
        raise UserError(
            f"{path}: {info.filename} has {info.file_size:,} bytes, more than {LARGEST_FILE:,}"
        )
    return names, contents


def check_names(names):
    """Problems with the names of the files in a zip, one line each."""
    # files that do not belong there
    problems = []
    for name in names:
        if name in SUBMISSION:
            continue
        if "/" in name:
            problems.append(f"{name} is in a folder; the files must be at the top level")
        else:
            problems.append(f"{name} is not a file of a submission")

    # a zip can contain two files of one name
    for name in SUBMISSION:
        if names.count(name) > 1:
            problems.append(f"{name} is there {names.count(name)} times")
    return problems


def check_file(file, content, task, split):
    """Problems with one file of predictions, one line each.

    Args:
        file: its name.
        content: its bytes.
        task: the TaskFormat.
        split: the split that was predicted.
    """
    problems = []
    lines = lines_of(content)
    header = lines[0] if lines else ""
    predictions = lines[1:]

    # the first line
    if header != HEADER:
        problems.append(f"{file}: its first line is {header[:50]!r}, not {HEADER!r}")

    # the number of predictions
    if len(predictions) != task.rows[split]:
        problems.append(f"{file} has {len(predictions):,} predictions, not {task.rows[split]:,}")

    # of the predictions themselves, the first problem is enough
    for index, line in enumerate(predictions):
        found_index, _, label = line.partition("\t")
        where = f"{file}, line {index + 2}"
        if found_index != str(index):
            problems.append(f"{where}: index {found_index[:20]!r}, not {index}")
            break
        if read_label(label, task) is None:
            problems.append(f"{where}: prediction {label[:20]!r} is not {allowed_labels(task)}")
            break
    return problems


def lines_of(content):
    """The lines of a file of predictions. content: its bytes."""
    return content.decode("utf-8", "replace").splitlines()
