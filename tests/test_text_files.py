"""Text from .txt, .gz, .xz and WikiText's archive, with any line ends."""

import gzip
import itertools
import lzma
import zipfile

import pytest

from data import prepare_corpus
from support.text_files import read_paragraphs

TEXT = "One two.\nThree four.\n\nFive six.\nSeven caf\u00e9.\n"


def write(path, content):
    """Write bytes to a file, make its folder if needed, and return the path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


def prepare(folder, *names):
    """The corpus of some text files and folders."""
    return prepare_corpus([str(name) for name in names], folder / "cache", 32)


def sentences_of(corpus):
    """All sentences of a corpus, decoded from its token ids."""
    found = []
    for begin, end in itertools.pairwise(corpus.sentence_starts):
        found.append(corpus.tokenizer.decode(corpus.tokens[begin:end].tolist()))
    return found


def test_a_folder_of_plain_gz_and_xz_is_read_in_the_order_of_its_paths(tmp_path):
    files = [
        write(tmp_path / "t/a/z.gz", gzip.compress(b"First.\nSecond.")),
        write(tmp_path / "t/b.txt", b"Third.\nFourth.\n\nFifth."),
        write(tmp_path / "t/c.xz", lzma.compress(b"Sixth.\nSeventh.")),
    ]
    write(tmp_path / "t/ignored.pdf", b"\0")
    corpus = prepare(tmp_path, tmp_path / "t")
    expected = ["first.", "second.", "third.", "fourth.", "fifth.", "sixth.", "seventh."]
    assert sentences_of(corpus) == expected
    assert corpus.counts["documents"] == 4
    assert prepare(tmp_path, *files).fingerprint == corpus.fingerprint

    # a file that is named twice is read once
    assert prepare(tmp_path, tmp_path / "t", files[1]).fingerprint == corpus.fingerprint


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + TEXT.encode(),  # a byte order mark
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\r").encode(),
        TEXT.replace("\n", " \n\t").encode(),
    ],
)
def test_marks_line_ends_and_spaces_do_not_change_the_corpus(tmp_path, content):
    plain = prepare(tmp_path, write(tmp_path / "plain.txt", TEXT.encode()))
    other = prepare(tmp_path, write(tmp_path / "other.txt", content))
    assert other.fingerprint == plain.fingerprint
    assert plain.counts["documents"] == 2


def test_bytes_that_are_not_utf8_become_the_replacement_character(tmp_path):
    corpus = prepare(tmp_path, write(tmp_path / "t.txt", b"one\nb\xffad\n" * 2))
    assert sentences_of(corpus) == ["one", "b\ufffdad"] * 2


WIKITEXT_LINES = (
    " \n = Valkyria = \n \n"
    ' The role @-@ playing game cost $ 5 @,@ 000 ( about 3 @.@ 5 % ) ; it \'s " new " . \n'
    " = = Story = = \n \n It didn 't sell : why ? \n \n = Other = \n \n Second one . \n"
)


class Bar:
    """Takes the place of a progress bar."""

    def update(self, count):
        assert count >= 0


def test_wikitext_is_respelled_and_its_top_headings_begin_documents(tmp_path):
    archive = tmp_path / "wikitext-2.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("wikitext-2-raw/wiki.test.raw", "Never read.\n")
        file.writestr("wikitext-2-raw/wiki.train.raw", WIKITEXT_LINES)
    assert list(read_paragraphs(archive, Bar(), print)) == [
        "",
        'The role-playing game cost $5,000 (about 3.5%); it\'s "new".',
        "It didn't sell: why?",
        "",
        "Second one.",
        "",
    ]
