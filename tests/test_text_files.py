"""support/text_files.py: text from .txt, .gz, .xz and WikiText's archive, with any line ends."""

import contextlib
import errno
import gzip
import hashlib
import lzma
import os
import socket
import zipfile
from pathlib import Path

import pytest

from data import prepare_corpus
from support import text_files
from support.text_files import WIKITEXT, find_sources, read_paragraphs


class Bar:
    """Takes the place of a progress bar."""

    def update(self, count):
        assert count >= 0


def write(path, content):
    """Write bytes to a file, make its folder if needed, and return the path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


def silent(message):
    """A `log` that prints nothing."""


def paragraphs_of(names, log=silent):
    """All paragraphs of the text files and folders with these names."""
    paragraphs = []
    for path in find_sources(names, log):
        paragraphs += read_paragraphs(path, Bar(), log)
    return paragraphs


# --- Files and folders ----------------------------------------------------------------------------


def sources_and_lines(*names):
    """What find_sources returns, and the lines that it prints."""
    lines = []
    sources = find_sources([str(name) for name in names], lines.append)
    assert not any("\n" in line for line in lines)
    return sources, lines


def test_a_corpus_that_is_named_twice_is_read_once_with_a_line(tmp_path):
    file = Path(write(tmp_path / "t.txt", b"Text."))
    sources, lines = sources_and_lines("toy", file, "toy", file)
    assert sources == ["toy", file]
    assert lines == [
        "toy is named twice: it is read once",
        f"{file} is named twice: it is read once",
    ]


def test_a_file_to_which_two_paths_lead_is_read_once_with_a_line(tmp_path, monkeypatch):
    file = Path(write(tmp_path / "t.txt", b"Text."))
    folder = tmp_path / "folder"
    folder.mkdir()
    soft = folder / "soft.txt"
    soft.symlink_to(file)
    hard = folder / "hard.txt"
    hard.hardlink_to(file)
    monkeypatch.chdir(tmp_path)

    for other in (Path("t.txt"), tmp_path / "folder" / ".." / "t.txt", soft, hard):
        sources, lines = sources_and_lines(file, other)
        assert sources == [file]
        assert lines == [f"{other} is the same file as {file}: it is read once"]

    # A folder and a file in it. The first of all paths is used.
    sources, lines = sources_and_lines(folder, file)
    assert sources == [hard]
    assert len(lines) == 2


def test_files_of_a_drive_without_file_numbers_are_different_files(tmp_path, monkeypatch):
    """As on some network drives of Windows: every file has the number 0."""
    first = Path(write(tmp_path / "a.txt", b"A."))
    second = Path(write(tmp_path / "b.txt", b"B."))
    stat = Path.stat

    def without_number(path, **options):
        mode, _, *others = stat(path, **options)
        return os.stat_result((mode, 0, *others))

    monkeypatch.setattr(Path, "stat", without_number)
    sources, lines = sources_and_lines(first, second, tmp_path / "." / "a.txt")
    assert sources == [first, second]
    assert len(lines) == 1


def test_what_macos_writes_beside_a_file_on_a_foreign_disk_is_no_text(tmp_path):
    text = Path(write(tmp_path / "t/a.txt", b"Text."))
    write(tmp_path / "t/._a.txt", b"\0\5\26\7")
    sources, lines = sources_and_lines(tmp_path / "t")
    assert sources == [text]
    assert not lines


def test_a_folder_that_is_named_twice_gives_the_corpus_of_one(tmp_path):
    text = b"One two.\nThree four.\n\nFive six.\nSeven eight.\n"
    write(tmp_path / "t/a.txt", text)
    names = [tmp_path / "t", tmp_path / "t" / "a.txt", tmp_path / "t"]
    once = prepare_corpus(names[:1], tmp_path / "cache", 32, log=silent)
    twice = prepare_corpus(names, tmp_path / "cache", 32, log=silent)
    assert twice.counts == once.counts
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_linked_subfolder_is_read_once_and_named(tmp_path):
    write(tmp_path / "elsewhere/x.txt", b"X.")
    inside = Path(write(tmp_path / "t/z/inside.txt", b"Inside."))
    links = {"a": tmp_path / "elsewhere", "b": tmp_path / "elsewhere", "c": inside.parent}
    for name, target in links.items():
        (tmp_path / "t" / name).symlink_to(target)

    # A link to a folder that is in the corpus anyway is not followed.
    sources, lines = sources_and_lines(tmp_path / "t")
    assert len(sources) == 2
    assert inside in sources
    assert sorted(path.name for path in sources) == ["inside.txt", "x.txt"]
    followed = [line for line in lines if "its text is read, too" in line]
    once = [line for line in lines if "is the same folder as" in line]
    assert len(followed) == 1 and str(tmp_path / "elsewhere") in followed[0]
    assert len(once) == 2
    assert len(lines) == 3


def test_links_that_go_round_in_a_circle_end_with_a_line(tmp_path):
    folder = tmp_path / "around" / "t"
    file = Path(write(folder / "sub/x.txt", b"X."))
    write(tmp_path / "around/never.txt", b"Never read.")
    (folder / "sub" / "here").symlink_to(folder / "sub")
    (folder / "sub" / "top").symlink_to(folder)
    (folder / "sub" / "out").symlink_to(tmp_path / "around")
    (folder / "self").symlink_to(folder / "self")

    sources, lines = sources_and_lines(folder)
    assert sources == [file]
    assert sum("is the same folder as" in line for line in lines) == 2
    assert sum("which contains the corpus: it is left out" in line for line in lines) == 1
    assert len(lines) == 3


def test_a_named_link_to_a_folder_is_read_without_a_line(tmp_path):
    write(tmp_path / "t/x.txt", b"X.")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "t")
    assert sources_and_lines(link) == ([link / "x.txt"], [])


def test_broken_links_to_text_files_are_named(tmp_path):
    file = Path(write(tmp_path / "t/x.txt", b"X."))
    for name in ("gone.txt", "gone.pdf", "gone"):
        (tmp_path / "t" / name).symlink_to(tmp_path / "nothing")
    (tmp_path / "t" / "self.gz").symlink_to("self.gz")

    sources, lines = sources_and_lines(tmp_path / "t")
    assert sources == [file]
    link = tmp_path / "t" / "gone.txt"
    assert lines[0] == f"{link} is a link to a file that does not exist: it is left out"
    assert len(lines) == 2


def unreadable(monkeypatch, name):
    """Make a folder of this name unreadable; a real one would still be readable for root."""
    original = Path.iterdir

    def iterdir(path):
        if path.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)


def test_a_subfolder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    file = Path(write(tmp_path / "t/x.txt", b"X."))
    write(tmp_path / "t/private/y.txt", b"Y.")
    unreadable(monkeypatch, "private")
    sources, lines = sources_and_lines(tmp_path / "t")
    assert sources == [file]
    private = tmp_path / "t" / "private"
    assert lines == [f"{private} cannot be read (Permission denied): it is left out"]

    # If it is the folder that the user named, nothing is left.
    with pytest.raises(OSError, match="Permission denied.*private"):
        sources_and_lines(private)


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    # The name of a socket must be short: go to its folder.
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def make_link_to_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")
@pytest.mark.parametrize(
    "make, kind",
    [(make_pipe, "a pipe"), (make_socket, "a socket"), (make_link_to_device, "a device")],
)
def test_pipes_sockets_and_devices_are_refused_or_left_out_without_opening_them(
    tmp_path, make, kind
):
    file = Path(write(tmp_path / "t/x.txt", b"X."))
    special = tmp_path / "t" / "special.txt"
    make(special)
    make(tmp_path / "t" / "special")  # by its name, this is no text file

    # Named by the user it is refused; in a folder it is left out.
    with pytest.raises(ValueError, match=f"special.txt is {kind}, not a file") as caught:
        sources_and_lines(special)
    assert "\n" not in str(caught.value)
    sources, lines = sources_and_lines(tmp_path / "t")
    assert sources == [file]
    assert lines == [f"{special} is {kind}, not a file: it is left out"]


# --- Text files -----------------------------------------------------------------------------------


def test_plain_gz_and_xz_give_the_same_text_and_folders_are_read_in_the_order_of_their_paths(
    tmp_path,
):
    write(tmp_path / "t/b.txt", b"Second.\n\nThird.")
    write(tmp_path / "t/a/z.gz", gzip.compress(b"First."))
    write(tmp_path / "t/c.xz", lzma.compress("Fourth, caf\u00e9.".encode()))
    write(tmp_path / "t/ignored.pdf", b"\0")

    expected = ["First.", "", "Second.", "", "Third.", "", "Fourth, caf\u00e9.", ""]
    assert paragraphs_of([str(tmp_path / "t")]) == expected

    files = [str(tmp_path / "t" / name) for name in ("a/z.gz", "b.txt", "c.xz")]
    assert paragraphs_of(files) == expected


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_not_the_current_folder(name, tmp_path, monkeypatch):
    write(tmp_path / "t.txt", b"Text.")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no such file or folder"):
        find_sources([name], silent)


def test_built_in_names_and_files_can_be_mixed(tmp_path):
    path = write(tmp_path / "t.txt", b"Text.")
    sources = find_sources(["toy", path, "wikitext-2"], silent)
    assert sources == ["toy", tmp_path / "t.txt", "wikitext-2"]


def test_byte_order_mark_and_carriage_returns_are_dropped(tmp_path):
    path = write(tmp_path / "t.txt", b"\xef\xbb\xbfOne.\r\n\r\nTwo.\r\n")
    assert paragraphs_of([path]) == ["One.", "", "Two.", ""]


def test_bytes_that_are_not_utf8_are_reported_once_per_file_counted_and_replaced(tmp_path):
    path = write(tmp_path / "t.txt", b"good\nb\xffad\ngood \xc3\xa9\n\xe9\xe8\n")
    lines = []
    paragraphs = paragraphs_of([path], lines.append)
    assert paragraphs == ["good", "b\ufffdad", "good \u00e9", "\ufffd\ufffd", ""]

    assert len(lines) == 2
    assert f"{path}, line 2:" in lines[0]
    assert lines[1].endswith(" 2")


def test_a_line_longer_than_the_limit_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 10)
    path = write(tmp_path / "t.txt", ("\u00e9" * 25 + "\nshort\n").encode())
    assert paragraphs_of([path]) == ["\u00e9" * 10, "\u00e9" * 10, "\u00e9" * 5, "short", ""]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"  \n"])
def test_a_line_as_long_as_the_limit_is_not_followed_by_an_empty_line(tmp_path, monkeypatch, end):
    """An empty line would end the document."""
    monkeypatch.setattr(text_files, "LONGEST_LINE", 10)
    path = write(tmp_path / "t.txt", b"x" * 20 + end + b"short" + end + end + b"other" + end)
    assert paragraphs_of([path]) == ["x" * 10, "x" * 10, "short", "", "other", ""]


def test_a_line_longer_than_the_limit_is_counted_as_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "LONGEST_LINE", 10)
    path = write(tmp_path / "t.txt", b"x" * 25 + b"\n\xff\n")
    lines = []
    paragraphs_of([path], lines.append)
    assert "line 2:" in lines[0]


# --- WikiText -------------------------------------------------------------------------------------

WIKITEXT_LINES = (
    " \n = Valkyria = \n \n"
    ' The role @-@ playing game cost $ 5 @,@ 000 ( about 3 @.@ 5 % ) ; it \'s " new " . \n'
    " = = Story = = \n \n It didn 't sell : why ? \n \n = Other = \n \n Second one . \n"
)


@pytest.fixture
def archive(tmp_path):
    """A small archive like WikiText's, in the place to which it is downloaded."""
    path = tmp_path / "cache" / "downloads" / "wikitext-2.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("wikitext-2-raw/wiki.test.raw", "Never read.\n")
        file.writestr("wikitext-2-raw/wiki.train.raw", WIKITEXT_LINES)
        file.writestr("wikitext-2-raw/wiki.valid.raw", "Never read.\n")
    return path


@pytest.fixture
def published(archive, monkeypatch):
    """Make size and SHA-256 of the small archive the published ones; its address does not exist."""
    content = archive.read_bytes()
    pin = {
        "urls": ("http://127.0.0.1:9/none",),
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    monkeypatch.setitem(WIKITEXT, "wikitext-2", pin)
    return archive


def test_wikitext_is_respelled_and_its_top_headings_begin_documents(archive):
    assert list(read_paragraphs(archive, Bar(), print)) == [
        "",
        'The role-playing game cost $5,000 (about 3.5%); it\'s "new".',
        "It didn't sell: why?",
        "",
        "Second one.",
        "",
    ]


def test_wikitext_that_was_downloaded_before_is_read_without_a_network(published, tmp_path):
    # It is read to its end: three sentences, of which two are a pair, are too few.
    with pytest.raises(ValueError, match="3 sentences, 1 pairs"):
        prepare_corpus(["wikitext-2"], tmp_path / "cache", 32, log=print)


def test_an_archive_that_is_not_the_published_one_is_refused(published, tmp_path):
    published.write_bytes(published.read_bytes()[:-1])
    with pytest.raises(ValueError, match="not the published file"):
        prepare_corpus(["wikitext-2"], tmp_path / "cache", 32, log=print)


def test_wikitext_is_pinned_to_the_published_sizes_and_checksums():
    pins = {}
    for name, pin in WIKITEXT.items():
        pins[name] = (pin["size"], pin["sha256"][:8], len(pin["urls"]))
    assert pins == {
        "wikitext-2": (4721645, "ef7edb56", 1),
        "wikitext-103": (191984949, "91c00ae2", 2),
    }
