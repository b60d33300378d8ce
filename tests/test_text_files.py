"""support/text_files.py: text from .txt, .gz, .xz and WikiText's archive, with any line ends."""

import gzip
import hashlib
import lzma
import zipfile

import pytest

from data import BUILT_IN, prepare_corpus
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
    for path in find_sources(names, BUILT_IN):
        paragraphs += read_paragraphs(path, Bar(), log)
    return paragraphs


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
        find_sources([name], BUILT_IN)


def test_built_in_names_and_files_can_be_mixed(tmp_path):
    path = write(tmp_path / "t.txt", b"Text.")
    sources = find_sources(["toy", path, "wikitext-2"], BUILT_IN)
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
    with pytest.raises(ValueError, match="pairs"):
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
