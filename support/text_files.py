"""Find text files, open them and read their paragraphs: .txt, .gz, .xz, and WikiText's archive.

A text file holds one paragraph per line and a blank line between two documents. The functions
below yield its paragraphs one by one. Between two documents they yield at least one ""; there may
be more, also before the first document.
"""

import gzip
import io
import lzma
import os
import re
import zipfile
import zlib
from pathlib import Path

from support.commands import UserError
from support.downloads import download

TEXT_SUFFIXES = (".txt", ".gz", ".xz")
LONGEST_LINE = 1 << 20  # characters; a longer line is read as several lines

# Bytes that are not UTF-8 are read as these characters (Python's "surrogateescape").
NOT_UTF8 = re.compile("[\udc80-\udcff]")

# The published files of WikiText (Merity et al. 2016): mirrors, size in bytes and SHA-256.
WIKITEXT = {
    "wikitext-2": {
        "urls": ("https://wikitext.smerity.com/wikitext-2-raw-v1.zip",),
        "size": 4_721_645,
        "sha256": "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11",
    },
    "wikitext-103": {
        "urls": (
            "https://huggingface.co/datasets/mattdangerw/wikitext-103-raw/resolve/"
            "3555105b17ae31cc619a136fac72dbe2865c3738/wikitext-103-raw-v1.zip",
            "https://wikitext.smerity.com/wikitext-103-raw-v1.zip",
        ),
        "size": 191_984_949,
        "sha256": "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
    },
}

BUILT_IN = ("toy", *WIKITEXT)  # corpora that need no files from the user


# --- Find -----------------------------------------------------------------------------------------


def find_sources(names, log):
    """Turn the names of corpora into sources: names of built-in corpora and Paths of text files.

    Args:
        names: those of BUILT_IN, text files and folders.
        log: called with one line of text for everything that is left out or was not expected.

    Returns:
        A list. Built-in names stay as they are; a folder becomes its text files, sorted by path.
        No source is in it twice.

    Raises:
        UserError: there is no such corpus, it is not a text file, or a folder has no text files.
        OSError: a file or folder cannot be read.
    """
    sources = []
    for name in names:
        if name in BUILT_IN:
            sources.append(name)
        else:
            sources += find_text_files(name, log)
    return without_repetitions(sources, log)


def without_repetitions(sources, log):
    """Each source once. `log` gets a line about each source that was named before."""
    kept = {}
    for source in sources:
        # All paths and links to a file have the same file number.
        key = source
        if source not in BUILT_IN:
            key = file_identity(source)

        if key not in kept:
            kept[key] = source
        elif kept[key] == source:
            log(f"{source} is named twice: it is read once")
        else:
            log(f"{source} is the same file as {kept[key]}: it is read once")
    return list(kept.values())


def file_identity(path):
    """A key for a file or folder: all paths that lead to it have the same key."""
    status = path.stat()

    # some network drives of Windows do not number their files
    if status.st_ino == 0:
        return os.path.normcase(path.resolve())
    return status.st_dev, status.st_ino


def find_text_files(name, log):
    """The Paths of the text files that a name means: one file, or all those of a folder."""
    path = Path(name)

    # An empty name would be the current folder, which is not what the user meant.
    is_empty = not str(name).strip()
    if is_empty or not path.exists():
        raise UserError(
            f"no corpus {str(name)!r}: no such file or folder; built in are {', '.join(BUILT_IN)}"
        )

    if path.is_dir():
        return text_files_in_folder(path, log)
    if path.suffix.lower() == ".zip":
        raise UserError(f"{path} is an archive: unpack it and name its folder")

    # A pipe could only be read once, and a device may never end.
    if not path.is_file():
        raise UserError(f"{path} is {kind_of_file(path)}, not a file: write its text to a file")
    return [path]


def kind_of_file(path):
    """What a path is that is neither a file nor a folder."""
    if path.is_fifo():
        return "a pipe"
    if path.is_socket():
        return "a socket"
    return "a device"


def text_files_in_folder(folder, log):
    """The Paths of all text files in a folder and its subfolders, sorted by path.

    Links are followed, but no folder is read twice.

    Args:
        folder: a Path. If it cannot be read, that is an OSError.
        log: called with a line for each linked subfolder, and for everything that is left out.
    """
    files = []
    seen = {}  # the number of each folder that was read, and its path
    waiting = [folder]
    while waiting:
        # Look into one folder. An unreadable subfolder is named.
        subfolder = waiting.pop()
        try:
            if not is_new_folder(subfolder, folder, seen, log):
                continue
            seen[file_identity(subfolder)] = subfolder
            subfolders, links, texts = look_into(subfolder, log)
        except OSError as error:
            if subfolder == folder:
                raise
            log(f"{subfolder} cannot be read ({error.strerror}): it is left out")
            continue

        # The last folder of the list is next. Links come after all other subfolders.
        waiting = links + waiting + subfolders
        files += texts

    if not files:
        raise UserError(
            f"no text in the folder {folder}: no file's name ends in {', '.join(TEXT_SUFFIXES)}"
        )

    # Sort by the path with "/" between folders, so that the order is the same on every system.
    return sorted(files, key=lambda file: file.relative_to(folder).as_posix())


def look_into(folder, log):
    """What a folder holds: (subfolders, links to folders, text files), three lists of Paths."""
    subfolders = []
    links = []
    texts = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.is_symlink():
            links.append(path)
        elif path.is_dir():
            subfolders.append(path)
        elif is_text_file(path, log):
            texts.append(path)
    return subfolders, links, texts


def is_new_folder(subfolder, folder, seen, log):
    """Whether a subfolder is to be read. `log` gets a line about each link.

    Args:
        subfolder: the folder that the user named, one of its subfolders, or a link to a folder.
        folder: the folder that the user named. It may be a link.
        seen: {file_identity: path} of the folders that were read before.
    """
    first_path = seen.get(file_identity(subfolder))
    if first_path is not None:
        log(f"{subfolder} is the same folder as {first_path}: it is read once")
        return False

    if subfolder != folder and subfolder.is_symlink():
        # A link to a folder that contains the corpus would lead back to the corpus, or to all other
        # files of the disk.
        target = subfolder.resolve()
        if folder.resolve().is_relative_to(target):
            log(f"{subfolder} is a link to {target}, which contains the corpus: it is left out")
            return False
        log(f"{subfolder} is a link to the folder {target}: its text is read, too")
    return True


def is_text_file(path, log):
    """Whether a path in a folder is a text file. `log` gets a line if only its name says so."""
    if path.suffix.lower() not in TEXT_SUFFIXES:
        return False
    # "._a.txt" is what macOS writes beside a.txt on the disk of another system
    if path.name.startswith("._"):
        return False
    if path.is_file():
        return True

    if path.exists():
        log(f"{path} is {kind_of_file(path)}, not a file: it is left out")
    else:
        log(f"{path} is a link to a file that does not exist: it is left out")
    return False


def download_wikitext(name, folder):
    """Download WikiText's archive, unless it is there. Returns its Path."""
    return download(path=folder / f"{name}.zip", **WIKITEXT[name])


# --- Read -----------------------------------------------------------------------------------------


def read_paragraphs(path, bar, log):
    """Yield the paragraphs of a text file or of WikiText's archive, and "" after each document.

    Args:
        path: a text file, or an archive from `download_wikitext`.
        bar: its method update(n) is called with the number of bytes that were read from disk.
        log: called with one line of text if the file has bytes that are not UTF-8.

    Raises:
        UserError: the file is binary or damaged.
    """
    lines = read_lines(path, bar, log)
    if path.suffix == ".zip":
        yield from wikitext_paragraphs(lines)
    else:
        for line in lines:
            yield line.strip()

    # The end of the file ends its last document.
    yield ""


def read_lines(path, bar, log):
    """Yield the lines of a text file, without line ends and without a byte order mark.

    Raises UserError if the file is binary or damaged.
    """
    try:
        with (
            open(path, "rb") as file,
            decompress(path, file) as stream,
            io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape") as text,
        ):
            lines = lines_with_progress(text, file, bar)
            yield from checked_lines(lines, path, log)
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged or cut short: {error}") from None


def lines_with_progress(text, file, bar):
    """Yield the lines of `text`, with their ends, and move the bar by what is read from `file`."""
    bytes_read = 0
    while True:
        line = text.readline(LONGEST_LINE)
        if not line:
            return

        # A compressed file moves the bar by its compressed bytes.
        bar.update(file.tell() - bytes_read)
        bytes_read = file.tell()
        yield line


def checked_lines(lines, path, log):
    """Yield the lines without their ends. Refuse binary files, replace what is not UTF-8.

    Bytes that are not UTF-8 become U+FFFD, the replacement character. `log` gets the number of the
    first line with such bytes, and at the end how many such lines there were.
    """
    line_number = 1
    damaged_lines = 0
    is_cut = False  # whether the last piece was not the end of its line
    for line in lines:
        # A zero byte never occurs in text.
        if "\0" in line:
            raise UserError(
                f"{path} is a binary file (zero byte in line {line_number}); a corpus is UTF-8 text"
            )

        # Replace bytes that are not UTF-8. The first condition is fast and usually enough.
        if not line.isascii() and NOT_UTF8.search(line):
            if damaged_lines == 0:
                log(f"{path}, line {line_number}: not UTF-8; unreadable bytes become U+FFFD")
            damaged_lines += 1
            line = NOT_UTF8.sub("\ufffd", line)

        # A line without an end is a piece of a very long line, or the last line of the file. If
        # only the end of a long line is left, or spaces before it, this is not an empty line.
        is_only_end = is_cut and not line.strip()
        is_cut = not line.endswith("\n")
        if not is_cut:
            line_number += 1
        if not is_only_end:
            yield line.rstrip("\n")

    if damaged_lines > 0:
        log(f"{path}: lines with bytes that are not UTF-8: {damaged_lines:,}")


def decompress(path, file):
    """The decompressed bytes of the open binary file, as another binary file."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.open(file)
    if suffix == ".xz":
        return lzma.open(file)
    if suffix == ".zip":
        return open_wikitext(file)
    return file


# --- WikiText -------------------------------------------------------------------------------------

# " = Title = " is the title of an article, " = = Section = = " the title of a section.
# Group 1 is "=" for an article, "= =" for a section, "= = =" for a subsection.
HEADING = re.compile(r"\s*(=(?: =)*) \S.* \1\s*")


def open_wikitext(file):
    """The training part of WikiText's archive, as a binary file.

    Its validation and test parts are not read: what is held out is chosen as for any corpus.
    """
    archive = zipfile.ZipFile(file)
    for name in archive.namelist():
        if name.endswith("/wiki.train.raw"):
            return archive.open(name)
    raise UserError("WikiText's archive has no file wiki.train.raw")


def wikitext_paragraphs(lines):
    """Yield WikiText's paragraphs in ordinary spelling, and "" before each article.

    Headings are left out.
    """
    for line in lines:
        heading = HEADING.fullmatch(line)
        if heading is None:
            if line.strip():
                yield undo_wikitext(line)
        elif heading[1] == "=":
            yield ""


def undo_wikitext(line):
    """Turn WikiText's spelling into the ordinary one.

    " the role @-@ playing game , $ 5 @,@ 000 ( it 's new ) " becomes
    "the role-playing game, $5,000 (it's new)".
    """
    # " @-@ ", " @,@ " and " @.@ " are a hyphen, a comma and a point inside a word or number.
    line = re.sub(r" @([-,.])@ ", r"\1", line)

    # No spaces inside a pair of quotation marks.
    line = re.sub(r'" ([^"]*) "', r'"\1"', line)

    # No space before punctuation, and none before 's, 't, 'd, 'm, 'll, 're, 've.
    line = re.sub(r" ([,.;:!?%)\]]|'(?:s|t|d|m|ll|re|ve)\b)", r"\1", line)

    # No space after an opening bracket or a currency sign.
    line = re.sub(r"([(\[$£]) ", r"\1", line)
    return line.strip()
