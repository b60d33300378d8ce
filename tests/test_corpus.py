"""support/corpus.py: what was read is what was meant, or a line says what was left out."""

import gzip
import json
import lzma
import textwrap

import pytest

import data
from conftest import write
from data import prepare_corpus
from support.commands import UserError
from support.corpus import find_text_files, read_lines, read_paragraphs, sentences_of
from support.tokenizer import LONGEST_WORD, count_forms, sample_text, untrained_tokenizer


def sentences(path):
    """The documents of a file: lists of sentences, without the spaces after them."""
    documents = [[]]
    for sentence in sentences_of(read_paragraphs(path)):
        if sentence is None:
            documents.append([])
        else:
            documents[-1].append(sentence.strip())
    return [document for document in documents if document]


def text_file(folder, content, name="a.txt"):
    return write(folder / name, content)


# --- Encodings and formats ------------------------------------------------------------------------

CAFE = "caf\u00e9 \u201cyes\u201d"


@pytest.mark.parametrize(
    "content, said",
    [
        (CAFE.encode(), ""),
        (CAFE.encode("utf-8-sig"), ""),
        (CAFE.encode("utf-16"), ""),
        (b"\xfe\xff" + CAFE.encode("utf-16-be"), ""),
        (CAFE.encode("cp1252"), "Windows-1252"),
        (gzip.compress(CAFE.encode(), mtime=0), ""),
        (lzma.compress(CAFE.encode()), ""),
    ],
)
def test_a_text_is_read_by_its_mark_as_utf8_or_as_windows_1252(content, said, tmp_path, capsys):
    assert list(read_lines(text_file(tmp_path, content))) == [CAFE]
    assert said in capsys.readouterr().out


def test_a_record_ends_at_a_line_feed_only(tmp_path):
    path = text_file(tmp_path, "one\u2028 \x0b \x85 record\r\ntwo\n\nthree")
    assert list(read_lines(path)) == ["one\u2028 \x0b \x85 record", "two", "", "three"]


@pytest.mark.parametrize(
    "content, message",
    [
        (CAFE.encode() * 3 + b"\xff\x81", "2 places are damaged"),
        (b"PK\x03\x04....", "a zip archive"),
        (b"PAR1....", "a Parquet table"),
        (b"\x28\xb5\x2f\xfd..", "packed by zstd"),
        (b"<!doctype html><p>", "a web page"),
        (b"a.txt" + bytes(252) + b"ustar", "a tar archive"),
        (b"a" * 1000 + b"\0b", "a binary file"),
        (gzip.compress(b"text", mtime=0)[:-5], "is damaged"),
        ("\u201c".encode() * 9 + b"\xe2\x80", "1 places are damaged"),  # the file was cut
        (CAFE.encode("utf-16")[:-1], "is damaged"),
    ],
)
def test_what_is_no_text_is_refused_in_one_line_that_says_what_it_is(content, message, tmp_path):
    with pytest.raises(UserError, match=message):
        list(read_paragraphs(text_file(tmp_path, content)))


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.jsonl", '{"text": "One. Two.\\n\\nThree.", "id": "7"}\n\n{"text": "Four."}\n'),
        ("a.jsonl", '{"body": "One. Two. Three.", "id": 7}\n{"body": "Four.", "id": 8}\n'),
        ("a.json", '[{"text": "One. Two. Three."},\n {"text": "Four."}]'),
        ("a.json", '["One. Two. Three.", "Four."]'),
        ("a.jsonl.gz", gzip.compress(b'"One. Two. Three."\n"Four."', mtime=0)),
    ],
)
def test_the_records_of_json_are_documents(name, content, tmp_path):
    path = text_file(tmp_path, content, name)
    assert sentences(path) == [["One.", "Two.", "Three."], ["Four."]]


@pytest.mark.parametrize(
    "content",
    ['{"a": "x", "b": "y"}', '{"text": 5}', "[1]", '{"text": "cut', '{"text": "\\ud83d"}'],
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
    tmp_path, capsys
):
    plain = sentences(text_file(tmp_path, "\n".join(PARAGRAPHS)))
    assert len(plain) == 1 and len(plain[0]) == 90
    assert sentences(text_file(tmp_path, wrapped(PARAGRAPHS))) == plain
    assert "lines are joined" in capsys.readouterr().out

    # several empty lines: a chapter
    chapters = wrapped(PARAGRAPHS[:20]) + "\n\n\n" + wrapped(PARAGRAPHS[20:])
    path = text_file(tmp_path, chapters)
    assert sentences(path) == [plain[0][:60], plain[0][60:]]


def test_empty_lines_between_all_paragraphs_are_not_documents(tmp_path, capsys):
    path = text_file(tmp_path, "\n\n".join(PARAGRAPHS))
    assert [len(document) for document in sentences(path)] == [90]
    assert "an empty line ends a paragraph" in capsys.readouterr().out


def test_wikiextractor_s_marks_end_documents_and_are_no_sentences(tmp_path):
    text = '<doc id="1" url="x" title="A">\nA\n\nOne. Two.\n</doc>\n<doc id="2">\nThree.\n</doc>\n'
    assert sentences(text_file(tmp_path, text)) == [["A"], ["One.", "Two."], ["Three."]]

    # also if empty lines end paragraphs
    spaced = "".join(f'<doc id="{i}">\n\nOne.\n\nTwo.\n\n</doc>\n\n' for i in range(20))
    assert sentences(text_file(tmp_path, spaced)) == 20 * [["One.", "Two."]]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("你好。他说：“好！”我们走吧？好", ["你好。", "他说：“好！”", "我们走吧？", "好"]),
        ("यह एक है। वह दो है।", ["यह एक है।", "वह दो है।"]),
        ("کیا؟ ہاں۔ نہیں۔", ["کیا؟", "ہاں۔", "نہیں۔"]),
        ("等等…好", ["等等…", "好"]),
        ("He said 你好。And he left. Yes. No.", ["He said 你好。And he left.", "Yes.", "No."]),
    ],
)
def test_sentences_end_at_the_marks_of_other_scripts(text, expected, tmp_path):
    """In a text with mostly Latin marks, only these count."""
    assert sentences(text_file(tmp_path, text)) == [expected]


# --- Long lines and words -------------------------------------------------------------------------


def test_a_text_in_one_line_is_sampled_and_cut_into_sentences(tmp_path):
    words = " ".join(f"w{i % 500}" for i in range(60_000))
    for path in (
        text_file(tmp_path, words),
        text_file(tmp_path, json.dumps({"text": words}), "a.jsonl"),
    ):
        assert max(map(len, read_paragraphs(path))) <= 100_000
        assert " ".join(sample_text(read_paragraphs(path))) == words
        [document] = sentences(path)
        assert " ".join(document) == words
        assert max(map(len, document)) <= 250


# --- Which files ----------------------------------------------------------------------------------


def test_hidden_files_are_skipped_links_followed_and_a_folder_may_be_called_x_txt(tmp_path, capsys):
    folder = tmp_path / "books"
    for name in ("x.txt/a.txt", ".ipynb_checkpoints/a.txt", "._a.txt", "b.txt", "b.txt.gz"):
        write(folder / name, "One.")
    write(tmp_path / "other/c.txt", "Two.")
    (folder / "link").symlink_to(tmp_path / "other", target_is_directory=True)
    found = [path.relative_to(folder).as_posix() for path in find_text_files(str(folder))]
    assert found == ["b.txt", "b.txt.gz", "link/c.txt", "x.txt/a.txt"]
    assert "b.txt and a packed file of the same name are both read" in capsys.readouterr().out


# --- How much of it is used -----------------------------------------------------------------------


def test_the_share_of_the_tokens_that_training_uses_is_said(tmp_path, capsys):
    """Documents of one sentence are not used: here 400 of 1,200 tokens."""
    text = "A b c. D e f.\n\n\n" * 100 + "G h i.\n\n\n" * 100
    prepare_corpus([str(text_file(tmp_path, text))], tmp_path / "cache", 32)
    out = capsys.readouterr().out
    assert "1,200 tokens; 67 % of them are in sentence pairs that are used; [UNK] 0.0 %" in out
    assert "warning: the rest is in documents of one sentence" in out


def test_a_text_of_which_most_words_are_unknown_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "sample_text", lambda paragraphs: ["x y z"])
    with pytest.raises(UserError, match=r"are \[UNK\]"):
        prepare_corpus([str(text_file(tmp_path, "One two. Three.\n" * 9))], tmp_path / "cache", 32)


def test_words_beyond_the_limit_are_cut_where_they_are_the_text(tmp_path):
    tokenizer = untrained_tokenizer()
    chinese = "\u4e00" * (LONGEST_WORD + 7)
    assert sum(map(len, count_forms(tokenizer, [chinese]))) >= LONGEST_WORD
    address = "x" * (LONGEST_WORD + 1)
    assert "x" not in "".join(count_forms(tokenizer, ["the dog slept. " * 1000 + address]))
