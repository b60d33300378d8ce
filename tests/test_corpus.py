"""support/corpus.py: what was read is what was meant, or a line says what was left out."""

import bz2
import errno
import gzip
import json
import lzma
import os
import textwrap
from pathlib import Path

import pytest

from conftest import write
from data import prepare_corpus
from model import with_end_mark
from support import corpus, files, prepared
from support.commands import UserError, say_once
from support.corpus import find_text_files, read_lines, read_paragraphs, sentences_of
from support.tokenizer import (
    LONGEST_WORD,
    Encoder,
    count_forms,
    ids_of,
    sample_text,
    train_tokenizer,
    untrained_tokenizer,
)


def sentences(path):
    """The sentences of a file, without the spaces after them."""
    return [sentence.strip() for sentence in sentences_of(read_paragraphs(path))]


def text_file(folder, content, name="a.txt"):
    return write(folder / name, content)


# --- Encodings and formats ------------------------------------------------------------------------

CAFE = "caf\u00e9 \u201cyes\u201d"


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.txt", CAFE.encode()),
        ("a.txt", CAFE.encode("utf-8-sig")),  # with a byte order mark
        ("a.txt.gz", gzip.compress(CAFE.encode(), mtime=0)),
        ("a.txt.xz", lzma.compress(CAFE.encode())),
        ("a.txt.BZ2", bz2.compress(CAFE.encode())),
    ],
)
def test_utf8_is_read_with_and_without_its_mark_and_packed(name, content, tmp_path):
    assert list(read_lines(text_file(tmp_path, content, name))) == [CAFE]


def test_a_record_ends_at_a_line_feed_only(tmp_path):
    path = text_file(tmp_path, "one\u2028 \x0b \x85 record\r\ntwo\n\nthree")
    assert list(read_lines(path)) == ["one\u2028 \x0b \x85 record", "two", "", "three"]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", CAFE.encode("cp1252"), "iconv -f WINDOWS-1252 -t UTF-8"),
        ("a.txt", CAFE.encode("utf-16"), "iconv"),
        ("a.zip", b"PK\3\4\0\0", "docs/text.md"),
        ("a.txt", CAFE.encode() * 3 + b"\xff\x81", "not text in UTF-8"),
        ("a.txt", CAFE.encode()[:-1], "not text in UTF-8"),  # the file was cut
        ("a.txt", b"a" * 1000 + b"\0b", "a binary file"),
        ("a.txt.gz", gzip.compress(b"text", mtime=0)[:-5], "is damaged"),
        ("a.txt.gz", b"text", "is damaged"),
        ("a.txt.xz", lzma.compress(b"text")[:-5], "is damaged"),
        ("a.txt.bz2", bz2.compress(b"text")[:-5], "is damaged"),
        ("a.txt.bz2", b"text", "is damaged"),
    ],
)
def test_what_is_not_utf8_binary_or_damaged_is_refused_in_one_line(
    name, content, message, tmp_path
):
    with pytest.raises(UserError, match=f"^[^\n]*{message}[^\n]*$"):
        list(read_paragraphs(text_file(tmp_path, content, name)))


@pytest.mark.parametrize(
    "name",
    ["a.csv", "a.tsv.gz", "a.json", "a.ipynb", "a.HTML", "a.htm.xz", "dump.xml.bz2", "a.pdf"],
)
def test_a_named_file_that_is_no_text_is_refused_in_one_line_with_the_page_that_says_how(
    name, tmp_path
):
    path = text_file(tmp_path, "id,text\n1,One. Two. Three. Four.\n", name)
    with pytest.raises(UserError, match="^[^\n]*UTF-8 text or JSON Lines[^\n]*docs/text.md[^\n]*$"):
        prepare_corpus([str(path)], tmp_path / "cache", 32)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "name, pack", [("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.jsonl.bz2", bz2.compress)]
)
def test_the_texts_of_json_lines_are_read(name, pack, tmp_path):
    records = b'{"text": "One. Two.\\n\\nThree.", "id": "7"}\n\n{"text": "Four."}\n'
    path = text_file(tmp_path, pack(records), name)
    assert sentences(path) == ["One.", "Two.", "Three.", "Four."]


@pytest.mark.parametrize(
    "content",
    [
        '{"a": "x"}',
        '{"text": 5}',
        '["text"]',
        '"text"',
        "5",
        '{"text": "cut',
        '{"text": "\\ud83d"}',
    ],
)
def test_other_json_is_refused_with_its_line(content, tmp_path):
    with pytest.raises(UserError, match="a.jsonl, line 2"):
        list(read_paragraphs(text_file(tmp_path, '{"text": "One."}\n' + content, "a.jsonl")))


# --- Layouts --------------------------------------------------------------------------------------


PARAGRAPHS = [
    f"This is paragraph {i}, which is long enough to need more than one line of the book. "
    f"It has a second sentence with other words, as most paragraphs of books have. And a third one."
    for i in range(30)
]


def wrapped(paragraphs):
    """The text of a book with lines of at most 70 characters."""
    return "\n\n".join(textwrap.fill(paragraph, 70) for paragraph in paragraphs) + "\n"


def test_a_book_with_wrapped_lines_gives_the_sentences_of_the_book_with_one_paragraph_a_line(
    tmp_path,
):
    plain = sentences(text_file(tmp_path, "\n".join(PARAGRAPHS)))
    assert len(plain) == 90
    assert sentences(text_file(tmp_path, wrapped(PARAGRAPHS))) == plain


def test_a_paragraph_is_joined_also_where_the_lines_end_from_which_the_layout_is_found(
    tmp_path, monkeypatch
):
    plain = sentences(text_file(tmp_path, "\n".join(PARAGRAPHS)))
    path = text_file(tmp_path, wrapped(PARAGRAPHS))
    for lines in range(100, 104):  # 4 lines a paragraph, with the empty one
        monkeypatch.setattr(corpus, "LAYOUT_LINES", lines)
        assert sentences(path) == plain


def test_empty_lines_change_nothing_in_a_text_with_one_paragraph_a_line(tmp_path):
    plain = sentences(text_file(tmp_path, "\n".join(PARAGRAPHS)))
    assert sentences(text_file(tmp_path, "\n\n".join(PARAGRAPHS))) == plain
    assert sentences(text_file(tmp_path, "\n\n\n".join(PARAGRAPHS))) == plain


def test_the_layouts_of_all_files_are_said_in_words(tmp_path, capsys):
    text_file(tmp_path, wrapped(PARAGRAPHS), "t/a.txt")
    text_file(tmp_path, "\n".join(PARAGRAPHS), "t/b.txt")
    text_file(tmp_path, wrapped(PARAGRAPHS), "t/c")
    text_file(tmp_path, '{"text": "One."}\n', "t/d.jsonl")
    prepare_corpus([str(tmp_path / "t")], tmp_path / "cache", 32)
    lines = capsys.readouterr().out.splitlines()
    folder = tmp_path / "t"
    assert f"{folder}/a.txt (and 1 more): an empty line ends a paragraph" in lines
    assert f"{folder}/b.txt: each line is a paragraph" in lines
    assert f"{folder}/d.jsonl: each line of a record's text is a paragraph" in lines


@pytest.mark.parametrize(
    "text, expected",
    [
        ("你好。他说：“好！”我们走吧？好", ["你好。", "他说：“好！”", "我们走吧？", "好"]),
        ("यह एक है। वह दो है।", ["यह एक है।", "वह दो है।"]),
        ("کیا؟ ہاں۔ نہیں۔", ["کیا؟", "ہاں۔", "نہیں۔"]),
        ("他说：“好。。”", ["他说：“好。。”"]),
        ("He said 你好。And he left. Yes.", ["He said 你好。", "And he left.", "Yes."]),
    ],
)
def test_sentences_end_at_the_marks_of_other_scripts(text, expected, tmp_path):
    assert sentences(text_file(tmp_path, text)) == expected


@pytest.mark.parametrize(
    "text, is_complete",
    [
        ("Is it? \n", True),
        ("\u201cIs it?\u201d", True),
        ("\u732b\u5417\uff1f", True),
        ("\u4ed6\u8bf4\uff1a\u201c\u597d\u3002\u201d", True),
        ("\u300c\u306f\u3044\u3002\u300d", True),
        ("\u0939\u0948\u0964", True),
        ("\u06c1\u0627\u06ba\u06d4", True),
        ("(Yes!)", True),
        ("\u201eGeh!\u201c", True),
        ("\u00ab Oui. \u00bb", True),
        ("Well\u2026", True),
        ("It barks.[1]", True),
        ("it is 3.5", False),
        ("is [MASK]", False),
        ("\u201cis\u201d", False),
    ],
)
def test_a_text_is_complete_after_any_end_mark_and_closing_quotes(text, is_complete):
    assert bool(corpus.LAST_END.search(text)) is is_complete
    assert (with_end_mark(text) == text.rstrip()) is is_complete


# --- Long lines and words -------------------------------------------------------------------------


def test_a_text_in_one_line_is_sampled_and_cut_into_sentences(tmp_path):
    words = " ".join(f"w{i % 500}" for i in range(60_000))
    for path in (
        text_file(tmp_path, words),
        text_file(tmp_path, json.dumps({"text": words}), "a.jsonl"),
    ):
        assert max(map(len, read_paragraphs(path))) <= 100_000
        assert " ".join(sample_text(read_paragraphs(path))) == words
        assert " ".join(sentences(path)) == words
        assert max(map(len, sentences(path))) <= 250


# --- Which files ----------------------------------------------------------------------------------


def test_hidden_files_are_skipped_links_followed_and_a_folder_may_be_called_x_txt(tmp_path):
    folder = tmp_path / "books"
    for name in ("x.txt/a.txt", ".ipynb_checkpoints/a.txt", "._a.txt", "b.txt", "b.txt.gz"):
        write(folder / name, "One.")
    write(tmp_path / "other/c.txt", "Two.")
    (folder / "link").symlink_to(tmp_path / "other", target_is_directory=True)
    (folder / "x.txt/back").symlink_to(folder, target_is_directory=True)  # is read once
    found = [path.relative_to(folder).as_posix() for path in find_text_files(str(folder))]
    assert found == ["b.txt", "b.txt.gz", "link/c.txt", "x.txt/a.txt"]


def test_in_a_folder_what_is_no_text_is_left_out_and_a_line_says_so(tmp_path, capsys):
    for name in ("a.jsonl", "b.txt.bz2", "c.csv", "d.csv.gz", "e.json", "f.md.gz"):
        write(tmp_path / "t" / name, "One.")
    found = [path.name for path in find_text_files(str(tmp_path / "t"))]
    assert found == ["a.jsonl", "b.txt.bz2"]
    assert "4 files are left out" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["book", "chapter one", "wiki_00.gz", "book.XZ"])
def test_a_file_without_an_ending_is_read_in_a_folder_as_it_is_by_its_name(name, tmp_path):
    path = text_file(tmp_path / "t", "One.", name)
    assert find_text_files(str(tmp_path / "t")) == find_text_files(str(path)) == [path]


@pytest.mark.parametrize(
    "text",
    [
        '{"text": "One."}',
        '{ "text": "One."}',
        '\n\n{"text": "One."}',
        '\ufeff{"text": "One."}',
        '[{"text": "One."},\n{"text": "Two."}]',
        '{\n  "text": "One."\n}',
        '[\n"One."\n]',
        '["One.", "Two."]',
        "{'text': 'One.'}",
    ],
)
@pytest.mark.parametrize("name", ["wiki_00", "a.txt", "a.txt.gz"])
def test_json_whose_name_does_not_say_so_is_refused_in_one_line(text, name, tmp_path):
    content = gzip.compress(text.encode()) if name.endswith(".gz") else text
    path = text_file(tmp_path / "wiki", content, name)
    for given in (path, path.parent):
        with pytest.raises(UserError, match=f"^[^\n]*{name} seems to be JSON[^\n]*jsonl file$"):
            prepare_corpus([str(given)], tmp_path / "cache", 32)


@pytest.mark.parametrize(
    "text", ["[Illustration]", "[1] A note.", "{a} is a set.", "[... and so on"]
)
def test_a_text_that_begins_with_a_bracket_is_a_text(text, tmp_path):
    assert sentences(text_file(tmp_path, text)) == [text]


def test_a_folder_that_cannot_be_listed_is_an_error_that_names_it(tmp_path, monkeypatch):
    write(tmp_path / "t/open/a.txt", "One.")
    closed = write(tmp_path / "t/closed/b.txt", "Two.").parent
    scandir = os.scandir

    def refusing(folder):
        if Path(folder) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(PermissionError, match="closed"):
        find_text_files(str(tmp_path / "t"))


@pytest.mark.parametrize("name", ["b.txt", "b", "b.txt.gz"])
def test_a_link_that_leads_nowhere_is_an_error_that_names_it(name, tmp_path):
    write(tmp_path / "t/a.txt", "One.")
    (tmp_path / "t" / name).symlink_to(tmp_path / "gone.txt")
    with pytest.raises(UserError, match=f"{name} is a link that leads nowhere"):
        find_text_files(str(tmp_path / "t"))


def other_names(kind, folder):
    """Names that together name the file folder/a.txt twice."""
    file = folder / "a.txt"
    if kind == "folder and file":
        return [folder, file]
    if kind == "dots":
        return [folder, folder / ".." / folder.name]
    if kind == "link to the folder":
        (folder.parent / "link").symlink_to(folder, target_is_directory=True)
        return [folder, folder.parent / "link"]
    if kind == "link in the folder":  # as in the cache of Hugging Face
        (folder / "b.txt").symlink_to(file)
        return [folder]
    os.link(file, folder / "b.txt")  # a hard link
    return [folder]


@pytest.mark.parametrize(
    "kind",
    ["folder and file", "dots", "link to the folder", "link in the folder", "hard link"],
)
def test_a_text_under_two_names_is_read_once_and_a_line_says_so(kind, tmp_path, capsys):
    write(tmp_path / "t/a.txt", "One.\nTwo.\nThree.\nFour.\nFive.")
    names = list(map(str, other_names(kind, tmp_path / "t")))
    corpus = prepare_corpus(names, tmp_path / "cache", 32)
    assert corpus.counts["sentences"] == 5
    assert "a.txt is read once" in capsys.readouterr().out


# --- The folder of a prepared corpus --------------------------------------------------------------


@pytest.mark.parametrize("name", ["tokens.bin", "sentences.bin", "tokenizer.json", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "zeros", "gone"])
def test_a_damaged_corpus_is_named_and_prepared_again(name, damage, tmp_path, capsys):
    text = str(text_file(tmp_path, "The dog barks.\nA cat runs.\nYes.\nNo.\n" * 9))
    prepare_corpus([text], tmp_path / "cache", 32)
    (file,) = (tmp_path / "cache").glob(f"*/{name}")
    whole = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        half = len(whole) // 16 * 8
        file.write_bytes(whole[:half] + (b"" if damage == "cut" else bytes(len(whole) - half)))

    say_once.cache_clear()
    capsys.readouterr()
    prepare_corpus([text], tmp_path / "cache", 32)
    named = "meta.json" if damage == "gone" else name
    assert f"{named} is damaged: the text is prepared again" in capsys.readouterr().out
    assert file.read_bytes() == whole


def test_a_prepared_corpus_is_opened_without_a_lock_or_a_write(tmp_path, monkeypatch):
    text = str(text_file(tmp_path, "One.\nTwo.\nThree.\nFour.\n"))
    first = prepare_corpus([text], tmp_path / "cache", 32)
    monkeypatch.setattr(files, "lock", None)
    assert prepare_corpus([text], tmp_path / "cache", 32).fingerprint == first.fingerprint


def test_a_full_disk_is_named_and_leaves_no_corpus(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prepared, "write_arrays", full)
    text = str(text_file(tmp_path, "One.\nTwo.\nThree.\nFour.\n"))
    with pytest.raises(OSError, match=r"No space left on device: '.*cache.*'"):
        prepare_corpus([text], tmp_path / "cache", 32)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix == ""]


def test_a_text_that_grows_while_it_is_read_is_said_in_a_line(tmp_path, monkeypatch, capsys):
    path = text_file(tmp_path, "One.\nTwo.\nThree.\nFour.\n")

    def growing(sample, vocab_size):
        with open(path, "a") as text:
            text.write("Five.\n")
        return train_tokenizer(sample, vocab_size)

    monkeypatch.setattr(prepared, "train_tokenizer", growing)
    prepare_corpus([str(path)], tmp_path / "cache", 32)
    assert f"{path} has changed while it was read" in capsys.readouterr().out


# --- How much of it is used -----------------------------------------------------------------------


def test_little_use_of_a_text_is_said_in_a_line_of_its_own(tmp_path, capsys):
    """A pair of 2 * 20 tokens is cut to 32, with [CLS] and two [SEP]: 29 of 40 are used."""
    text = ("a " * 20 + "\n") * 200
    prepare_corpus([str(text_file(tmp_path, text))], tmp_path / "cache", 32)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("warning: 72 % of the tokens are used") for line in lines)


def test_words_beyond_the_limit_are_cut_where_they_are_the_text(tmp_path):
    tokenizer = untrained_tokenizer()
    chinese = "\u4e00" * (LONGEST_WORD + 7)
    assert sum(map(len, count_forms(tokenizer, [chinese]))) >= LONGEST_WORD
    address = "x" * (LONGEST_WORD + 1)
    assert "x" not in "".join(count_forms(tokenizer, ["the dog slept. " * 1000 + address]))


@pytest.mark.parametrize("mark", ["\u00ad", "\u200b", "\u2060", "\ufeff"])
def test_marks_that_nobody_sees_change_no_token(mark):
    text = "the dog barks"
    tokenizer = train_tokenizer([text] * 3, 1_000)
    hidden = f"{mark}the {mark}do{mark}g {mark} barks{mark}"
    encode = Encoder(tokenizer)
    assert list(encode(hidden)) == list(encode(text)) == ids_of(tokenizer, hidden)
    assert sorted(count_forms(tokenizer, [hidden])) == sorted(count_forms(tokenizer, [text]))
