"""support/text_files.py: text from .txt, .gz, .xz and WikiText's archive, with any line ends."""

import gzip
import lzma
import zipfile

import pytest

from data import prepare_corpus
from support.text_files import find_sources, read_paragraphs


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


def test_a_folder_that_is_named_twice_gives_the_corpus_of_one(tmp_path):
    text = b"One two.\nThree four.\n\nFive six.\nSeven eight.\n"
    write(tmp_path / "t/a.txt", text)
    names = [tmp_path / "t", tmp_path / "t" / "a.txt", tmp_path / "t"]
    once = prepare_corpus(names[:1], tmp_path / "cache", 32, log=silent)
    twice = prepare_corpus(names, tmp_path / "cache", 32, log=silent)
    assert twice.counts == once.counts
    assert len(list((tmp_path / "cache").iterdir())) == 1


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


def test_byte_order_mark_and_carriage_returns_are_dropped(tmp_path):
    path = write(tmp_path / "t.txt", b"\xef\xbb\xbfOne.\r\n\r\nTwo.\r\n")
    assert paragraphs_of([path]) == ["One.", "", "Two.", ""]


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


def test_wikitext_is_respelled_and_its_top_headings_begin_documents(archive):
    assert list(read_paragraphs(archive, Bar(), print)) == [
        "",
        'The role-playing game cost $5,000 (about 3.5%); it\'s "new".',
        "It didn't sell: why?",
        "",
        "Second one.",
        "",
    ]
