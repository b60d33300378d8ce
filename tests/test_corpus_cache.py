"""support/corpus_cache.py: what is open, and what is in the place of the cache.

What a prepared corpus holds, and what happens if it is damaged, is tested in test_data.py.
"""

import re

import pytest

from data import prepare_corpus
from support import corpus_cache
from support.commands import UserError


def ignore(line):
    """A log whose lines do not matter."""


@pytest.fixture
def opened(monkeypatch):
    """A list that gets every TokenFile."""
    token_files = []

    class Noted(corpus_cache.TokenFile):
        def __init__(self, path):
            token_files.append(self)
            super().__init__(path)

    monkeypatch.setattr(corpus_cache, "TokenFile", Noted)
    return token_files


@pytest.fixture
def prepared(tmp_path):
    """(a text, the cache in which it is prepared, the folder of the corpus there)."""
    text = tmp_path / "text.txt"
    text.write_text("The dog barks. The cat sleeps.\n\n" * 40, encoding="utf-8")
    cache = tmp_path / "cache"
    prepare_corpus([str(text)], cache, 16, 60, log=ignore)
    (folder,) = [path for path in cache.iterdir() if path.is_dir()]
    return text, cache, folder


def test_a_corpus_in_order_keeps_its_token_file_open(prepared, opened):
    text, cache, _ = prepared
    corpus = prepare_corpus([str(text)], cache, 16, 60, log=ignore)
    (token_file,) = opened
    assert not token_file.file.closed
    assert len(corpus.tokens) == corpus.counts["tokens"]


@pytest.mark.parametrize("name", ["tokens.bin", "sentences.bin", "tokenizer.json", "meta.json"])
def test_no_file_of_a_damaged_corpus_is_open_when_it_is_deleted(
    prepared, opened, monkeypatch, name
):
    """Windows cannot delete an open file."""
    text, cache, folder = prepared
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    still_open = []
    remove = corpus_cache.remove

    def note_open_files(damaged):
        still_open.extend(each.path for each in opened if not each.file.closed)
        remove(damaged)

    monkeypatch.setattr(corpus_cache, "remove", note_open_files)
    lines = []
    prepare_corpus([str(text)], cache, 16, 60, log=lines.append)
    assert "is damaged" in lines[0] and lines[0].endswith("it is prepared again")
    assert not still_open
    assert not opened[-1].file.closed  # that of the corpus in use


@pytest.mark.parametrize("cache", ["file", "file/cache", "link"])
def test_what_is_in_the_place_of_the_cache_is_named_in_one_line(tmp_path, cache):
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    (tmp_path / "link").symlink_to("nowhere")
    text = tmp_path / "text.txt"
    text.write_text("The dog barks. The cat sleeps.\n", encoding="utf-8")

    name = re.escape(str(tmp_path / cache.partition("/")[0]))
    message = f"^{name} is not a folder: delete it, or name another folder$"
    with pytest.raises(UserError, match=message):
        prepare_corpus([str(text)], tmp_path / cache, 16, 60, log=ignore)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"
