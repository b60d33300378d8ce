"""data.py: text in any wrapping, sentences, tokenizer, the cache, pairs, batches, masks, and answers to bad input."""

import errno
import functools
import gzip
import hashlib
import itertools
import lzma
import math
import os
import random
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import data
import toy
from data import CLS, MASK, PAD, SEP, SPECIAL, mask_tokens, prepare_corpus

ROOT = Path(__file__).parent.parent


def numbered(documents):
    """A text in which every sentence is known by its two numbers: document d holds documents[d] sentences."""
    return "\n\n".join("\n".join(f"here d{d} s{s} " + "ends " * (s % 5) for s in range(count))
                       for d, count in enumerate(documents))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return str(path)


def corpus_of(folder, text, seq_len=32, log=lambda line: None, **settings):
    return prepare_corpus([write(folder / "text.txt", text)], folder / "cache", seq_len, log=log, **settings)


class Bar:
    """Stands in for tqdm's."""

    def update(self, count):
        assert count >= 0


def paragraphs_of(names, log=lambda line: None):
    return [paragraph for source in data.find_sources(names) for paragraph in data.read_paragraphs(source, Bar(), log)]


def sentences_of(corpus, row):
    """The two sentences of a row of token ids, as words."""
    first, second, end = corpus.tokenizer.decode(row[row != PAD].tolist(), skip_special_tokens=False).split("[SEP]")
    assert end == "" and first.startswith("[CLS]")
    return first.removeprefix("[CLS]").strip(), second.strip()


def text_of_many_words(words=1500, sentences=3000):
    """Random sentences of invented words, enough of them that a vocabulary is trained."""
    pick = random.Random(0)
    stems = ["".join(pick.choice("bdgklmnrst") + pick.choice("aeiou") for _ in range(pick.randint(1, 3)))
             for _ in range(words)]
    return "\n".join(" ".join(pick.choice(stems) + pick.choice(["", "", "ing", "ed", "s"]) for _ in range(8)) + "."
                     for _ in range(sentences))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """300 documents of 3 sentences each, 12 documents of 20: 420 pairs, all different."""
    return corpus_of(tmp_path_factory.mktemp("small"), numbered([3] * 300 + [20] * 12))


@pytest.fixture
def short_toy(monkeypatch):
    monkeypatch.setattr(toy, "documents", functools.partial(toy.documents, sentences=2000))


# --- Text -------------------------------------------------------------------------------------------------------------

def test_text_reads_alike_from_plain_gz_xz_and_folders_in_the_order_of_their_paths(tmp_path):
    write(tmp_path / "t/b.txt", "Second.\n\nThird.")
    write(tmp_path / "t/a/z.gz", gzip.compress(b"First."))
    write(tmp_path / "t/c.xz", lzma.compress("Fourth, caf\u00e9.".encode()))
    write(tmp_path / "t/ignored.pdf", b"\0")
    expected = ["First.", "", "Second.", "", "Third.", "", "Fourth, caf\u00e9.", ""]
    assert paragraphs_of([str(tmp_path / "t")]) == expected
    assert paragraphs_of([str(tmp_path / "t" / name) for name in ("a/z.gz", "b.txt", "c.xz")]) == expected


def test_byte_order_mark_and_carriage_returns_are_dropped(tmp_path):
    assert paragraphs_of([write(tmp_path / "t.txt", b"\xef\xbb\xbfOne.\r\n\r\nTwo.\r\n")]) == ["One.", "", "Two.", ""]


def test_bytes_that_are_not_utf8_are_named_once_a_file_counted_and_replaced(tmp_path):
    path, lines = write(tmp_path / "t.txt", b"good\nb\xffad\ngood \xc3\xa9\n\xe9\xe8\n"), []
    assert paragraphs_of([path], lines.append) == ["good", "b\ufffdad", "good \u00e9", "\ufffd\ufffd", ""]
    assert len(lines) == 2 and f"{path}, line 2:" in lines[0] and lines[1].endswith(" 2")


def test_a_line_longer_than_the_limit_is_read_in_pieces_and_lines_are_still_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "LINE", 10)
    path, lines = write(tmp_path / "t.txt", "\u00e9" * 25 + "\nshort\n"), []
    assert paragraphs_of([path]) == ["\u00e9" * 10, "\u00e9" * 10, "\u00e9" * 5, "short", ""]
    path = write(tmp_path / "u.txt", b"x" * 25 + b"\n\xff\n")
    paragraphs_of([path], lines.append)
    assert "line 2:" in lines[0]


def test_wikitext_is_respelled_and_its_top_headings_begin_documents(tmp_path, monkeypatch):
    text = (" \n = Valkyria = \n \n"
            " The role @-@ playing game cost $ 5 @,@ 000 ( about 3 @.@ 5 % ) ; it 's \" new \" . \n"
            " = = Story = = \n \n It didn 't sell : why ? \n \n = Other = \n \n Second one . \n")
    archive = tmp_path / "cache" / "downloads" / "wikitext-2.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for part in ("test", "train", "valid"):
            file.writestr(f"wikitext-2-raw/wiki.{part}.raw", text if part == "train" else "Never read.\n")
    assert list(data.read_paragraphs(archive, Bar(), print)) == [
        "", "The role-playing game cost $5,000 (about 3.5%); it's \"new\".", "It didn't sell: why?",
        "", "Second one.", ""]

    content = archive.read_bytes()
    published = dict(urls=("http://127.0.0.1:9/none",), size=len(content), sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(data.WIKITEXT, "wikitext-2", published)
    with pytest.raises(ValueError, match="pairs"):  # read whole, without a download: three sentences, one pair
        prepare_corpus(["wikitext-2"], tmp_path / "cache", 32, log=print)
    archive.write_bytes(content[:-1])
    with pytest.raises(ValueError, match="not the published file"):
        prepare_corpus(["wikitext-2"], tmp_path / "cache", 32, log=print)


def test_wikitext_is_pinned_to_the_published_sizes_and_checksums():
    pins = {name: (pin["size"], pin["sha256"][:8], len(pin["urls"])) for name, pin in data.WIKITEXT.items()}
    assert pins == {"wikitext-2": (4721645, "ef7edb56", 1), "wikitext-103": (191984949, "91c00ae2", 2)}


@pytest.mark.parametrize("paragraph, sentences", [
    ("One. Two! Three? Four", 4),
    ('He said "Go." Then he left. (It rained.) "So?" She knew.', 5),
    ("Dr. J. R. Smith of the U.S. Army met Mrs. Jones vs. Co. at St. Paul.", 1),
    ("See e.g. Figure 2, No. 5 and vol. 3. It costs 3.5 dollars... or not.", 2),
    ("He said no. Nobody heard it.", 2),
    ("the cat slept . it was tired .", 1),
    ("It costs 3.5. Then it rose.", 2),
])
def test_sentences_end_at_full_stops_but_not_at_abbreviations(paragraph, sentences):
    split = data.split_sentences(paragraph)
    assert "".join(split) == paragraph and len(split) == sentences


# --- Tokenizer --------------------------------------------------------------------------------------------------------

def test_every_toy_word_is_one_token_and_a_typed_mask_is_the_mask(tmp_path, short_toy):
    corpus = prepare_corpus(["toy"], tmp_path, 32, log=lambda line: None)
    written = []
    for document in itertools.islice(toy.documents(), 100):
        for sentence in document:
            typed = sentence.replace(" .", ".").replace(" ?", "?").replace(" ,", ",")  # as people spell it
            written += (ids := corpus.tokenizer.encode(typed).ids)
            assert len(ids) == len(sentence.split()) and min(ids) >= len(SPECIAL)
    assert corpus.tokens[:len(written)].tolist() == written
    words = [corpus.tokenizer.id_to_token(i) for i in corpus.tokenizer.encode("The cat [MASK] the [MASK].").ids]
    assert words == ["\u2581the", "\u2581cat", "[MASK]", "\u2581the", "[MASK]", "."]
    assert corpus.tokenizer.encode("the [MASK] [MASK]cat ").ids == corpus.tokenizer.encode("the[MASK][MASK]cat").ids
    assert corpus.tokenizer.encode("[MASK] cat").ids == [MASK, corpus.tokenizer.token_to_id("\u2581cat")]
    assert [corpus.tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def trained():
    """A sample and the tokenizer of 800 tokens trained on it."""
    odd = "Na\u00efve \ufb01x, \u00bd \u00b4 (e.g. 3.5km) \u65e5\u672c [MASK]"
    sample = text_of_many_words().splitlines() + [odd] * 3
    return sample, data.train_tokenizer(sample, 800, lambda line: None)


def test_the_trained_vocabulary_has_the_size_asked_for_and_whole_words(trained):
    sample, tokenizer = trained
    assert tokenizer.get_vocab_size() == 800
    pieces = [tokenizer.id_to_token(i) for i in range(len(SPECIAL), 800)]
    assert not any("\u2581" in piece[1:] for piece in pieces)
    assert all(piece.strip("\u2581").isalpha() or not any(map(str.isalpha, piece)) for piece in pieces)
    words = [word for sentence in sample for word in sentence.lower().rstrip(".").split()]
    for word, _ in Counter(words).most_common(20):
        assert len(tokenizer.encode(word).ids) == 1, word


def test_training_twice_gives_the_same_tokenizer_in_another_process_and_with_one_thread(trained, tmp_path):
    sample, tokenizer = trained
    write(tmp_path / "sample.txt", "\n".join(sample))
    program = (f"import sys; sys.path.insert(0, {str(ROOT)!r}); import data\n"
               "sample = open(sys.argv[1], encoding='utf-8').read().split('\\n')\n"
               "sys.stdout.buffer.write(data.train_tokenizer(sample, 800, lambda line: None).to_str().encode())")
    output = subprocess.run([sys.executable, "-c", program, tmp_path / "sample.txt"], capture_output=True, check=True,
                            env=os.environ | {"RAYON_NUM_THREADS": "1"}).stdout.decode()
    assert output == tokenizer.to_str()


def test_text_comes_back_from_its_ids_lower_case_and_normalised(trained):
    sample, tokenizer = trained
    for sentence in sample[:200]:
        assert tokenizer.decode(tokenizer.encode(sentence).ids) == sentence
    odd = "Na\u00efve  \ufb01x,\t(e.g. 3.5km) "
    assert tokenizer.decode(tokenizer.encode(odd).ids) == "na\u00efve fix, (e.g. 3.5km)"


def test_ids_of_single_words_joined_are_the_ids_of_the_sentence(trained):
    sample, tokenizer = trained
    for sentence in sample[-40:]:
        text = sentence.replace("[MASK]", "")
        assert sum((tokenizer.encode(word).ids for word in text.split()), []) == tokenizer.encode(text).ids


def test_marks_written_in_a_text_are_text(tmp_path):
    corpus = corpus_of(tmp_path, "one [SEP] two\nthree [MASK] [PAD]\n" * 4)
    assert not set(corpus.tokens.tolist()) & set(range(len(SPECIAL)))


def test_a_text_with_fewer_pieces_than_asked_for_gives_what_it_has_and_says_so():
    lines = []
    tokenizer = data.train_tokenizer(text_of_many_words(sentences=400).splitlines(), 20_000, lines.append)
    assert 1000 < tokenizer.get_vocab_size() < 20_000 and "no more" in lines[-1]


def test_a_vocabulary_smaller_than_the_alphabet_is_refused():
    with pytest.raises(ValueError, match="vocabulary of 10 is too small: the text has 14 characters"):
        data.train_tokenizer(["abcdefg hijklm"], 10, print)


def test_the_sample_is_bounded_and_comes_from_all_over_the_text(monkeypatch):
    monkeypatch.setattr(data, "SAMPLE", 5000)
    sample = data.sample_text(f"{number:05d}" for number in range(20_000))
    assert 2000 < sum(map(len, sample)) <= 5000
    quarters = np.bincount([int(paragraph) // 5000 for paragraph in sample], minlength=4)
    # n paragraphs, each in any quarter with probability 1/4: within 4 sigmas
    assert abs(quarters - len(sample) / 4).max() < 4 * math.sqrt(len(sample) * 3 / 16), quarters


# --- Cache ------------------------------------------------------------------------------------------------------------

def test_the_second_call_reads_the_cache_and_a_changed_text_does_not(tmp_path, monkeypatch):
    first = corpus_of(tmp_path, numbered([4] * 9))
    path = tmp_path / "text.txt"
    with monkeypatch.context() as patch:
        patch.setattr(data, "prepare", lambda *_: pytest.fail("prepared again"))
        again = prepare_corpus([path], tmp_path / "cache", 16, log=print)
    assert again.fingerprint == first.fingerprint and np.array_equal(again.tokens, first.tokens)
    copy = corpus_of(tmp_path / "copy", numbered([4] * 9))
    assert copy.fingerprint == first.fingerprint
    changed = corpus_of(tmp_path, numbered([4] * 9) + " more")
    assert changed.fingerprint != first.fingerprint


@pytest.mark.parametrize("way", ["killed", "interrupted", "disk full"])
def test_a_preparation_that_breaks_off_leaves_nothing_that_looks_finished(tmp_path, monkeypatch, way):
    text, whole = numbered([4] * 9), data.write_ids
    if way == "killed":
        path = write(tmp_path / "text.txt", text)
        program = (f"import sys, os; sys.path.insert(0, {str(ROOT)!r}); import data; whole = data.write_ids\n"
                   "data.write_ids = lambda *given: (whole(*given), os._exit(9))\n"
                   "data.prepare_corpus([sys.argv[1]], sys.argv[2], 32)")
        command = [sys.executable, "-c", program, path, tmp_path / "cache"]
        assert subprocess.run(command, capture_output=True).returncode == 9
    else:
        def broken(*given):
            whole(*given)
            raise KeyboardInterrupt if way == "interrupted" else OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(data, "write_ids", broken)
        with pytest.raises(KeyboardInterrupt if way == "interrupted" else OSError, match="^$|No space left") as caught:
            corpus_of(tmp_path, text)
        assert "\n" not in str(caught.value) and list((tmp_path / "cache").iterdir()) == []
        monkeypatch.undo()
    corpus = corpus_of(tmp_path, text)
    assert corpus.counts["sentences"] == 36 and corpus.fingerprint == corpus_of(tmp_path / "other", text).fingerprint


def test_two_preparations_at_once_both_end_well(tmp_path, monkeypatch):
    text, whole, inner = numbered([4] * 9), data.write_ids, []

    def overtaken(*given):
        monkeypatch.setattr(data, "write_ids", whole)
        inner.append(prepare_corpus([tmp_path / "text.txt"], tmp_path / "cache", 32, log=print))
        return whole(*given)

    monkeypatch.setattr(data, "write_ids", overtaken)
    outer = corpus_of(tmp_path, text)
    assert outer.fingerprint == inner[0].fingerprint and len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("name", ["tokens.bin", "sentences.bin", "documents.bin", "tokenizer.json", "meta.json"])
def test_a_damaged_cache_is_told_with_its_folder(tmp_path, name):
    corpus_of(tmp_path, numbered([4] * 9))
    file, = (tmp_path / "cache").glob(f"*/{name}")
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match="damaged: delete this folder") as caught:
        prepare_corpus([tmp_path / "text.txt"], tmp_path / "cache", 32, log=print)
    assert str(file.parent) in str(caught.value) and "\n" not in str(caught.value)


def test_a_cache_folder_that_cannot_be_made_is_an_os_error_of_one_line(tmp_path):
    write(tmp_path / "cache", "a file")
    with pytest.raises(OSError) as caught:
        corpus_of(tmp_path, numbered([4] * 9))
    assert "\n" not in str(caught.value) and "cache" in str(caught.value)


@pytest.mark.parametrize("name, content, message", [
    ("absent.txt", None, "no such file or folder; built in are toy, wikitext-2, wikitext-103"),
    ("wikitext-3", None, "no such file or folder; built in are toy, wikitext-2, wikitext-103"),
    ("empty.txt", b"", "0 sentences"),
    ("blank.txt", b" \n\n \t\n", "0 sentences"),
    ("one.txt", b"Only one sentence here.", "1 sentences, 0 pairs"),
    ("apart.txt", b"One.\n\nTwo.\n\nThree.\n\nFour.", "4 sentences, 0 pairs"),
    ("pair.txt", b"One.\nTwo.\nThree.", "1 pairs"),
    ("unbroken.txt", b"a" * 500 + b"\n" + b"b" * 500, "blanks between its words"),
    ("binary.txt", b"text\nelf\0\1\2", "binary file (zero byte in line 2)"),
    ("short.gz", gzip.compress(random.Random(0).randbytes(5000).hex().encode())[:-900], "damaged or cut short"),
    ("short.xz", lzma.compress(random.Random(0).randbytes(5000).hex().encode())[:-900], "damaged or cut short"),
    ("not.gz", b"plain text", "damaged or cut short"),
    ("not.xz", b"plain text", "damaged or cut short"),
    ("some.zip", b"PK", "unpack it"),
    ("folder/readme.md", b"text", "no text in the folder"),
])
def test_a_corpus_that_cannot_serve_is_refused_in_one_line_and_leaves_no_cache(tmp_path, name, content, message):
    path = str(tmp_path / name)
    if content is not None:
        write(Path(path), content)
    path = str(Path(path).parent) if name.startswith("folder") else path
    with pytest.raises(ValueError) as caught:
        prepare_corpus([path], tmp_path / "cache", 32, log=lambda line: None)
    assert message in str(caught.value) and path in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("settings, message", [
    (dict(seq_len=7), "too short"), (dict(vocab_size=5), "not 5"), (dict(vocab_size=70_000), "65,536")])
def test_impossible_lengths_and_vocabularies_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        corpus_of(tmp_path, numbered([4] * 9), **settings)


# --- Pairs and batches ------------------------------------------------------------------------------------------------

def test_pairs_are_neighbours_within_a_document_and_share_no_sentence(small):
    pairs = [sentences_of(small, row) for row in small.rows(np.arange(420))]
    expected = [(f"here d{d} s{s}" + " ends" * (s % 5), f"here d{d} s{s + 1}" + " ends" * ((s + 1) % 5))
                for d, count in enumerate([3] * 300 + [20] * 12) for s in range(0, count - 1, 2)]
    assert pairs == expected


def test_lengths_are_cut_like_token_by_token_from_the_longer():
    for a, b, room in itertools.product(range(9), range(9), range(2, 18)):
        kept = [a, b]
        while sum(kept) > room:
            kept[0 if kept[0] > kept[1] else 1] -= 1
        assert data.kept_lengths(a, b, room) == tuple(kept), (a, b, room)


def test_rows_hold_both_sentences_marks_and_padding_and_are_cut_to_the_length():
    a, b = list(range(10, 16)), list(range(20, 23))
    rows = data.pad_pairs([(a, b), (b, None), (a + a, a)], 14)
    assert rows.dtype == np.int64 and rows.tolist() == [
        [CLS, *a, SEP, *b, SEP, PAD, PAD], [CLS, *b, SEP] + [PAD] * 9, [CLS, *a, SEP, *a[:5], SEP]]
    assert data.pad_pairs([(a + a, None)], 8).tolist() == [[CLS, *a, SEP]]


def test_batches_are_as_wide_as_a_multiple_of_eight_but_never_wider_than_the_limit(tmp_path, small):
    widths = {small.batch(0, step, 8).shape[1] for step in range(50)}
    assert widths == {16, 24}
    narrow = corpus_of(tmp_path, numbered([20] * 12), seq_len=13)
    widths = {narrow.batch(0, step, 8).shape[1] for step in range(14)}
    assert widths == {13}
    assert all((narrow.batch(0, step, 8) == SEP).sum(dim=1).eq(2).all() for step in range(14))


def test_a_batch_is_the_same_in_any_order_of_asking_and_from_a_fresh_corpus(tmp_path):
    text = numbered([6] * 40)
    asked = [(seed, step) for seed in (0, 1) for step in range(30)]
    corpus = corpus_of(tmp_path, text)
    first = {key: corpus.batch(*key, 16) for key in asked}
    random.Random(0).shuffle(asked)
    fresh = prepare_corpus([tmp_path / "text.txt"], tmp_path / "cache", 32, log=print)
    for key in asked:
        assert torch.equal(first[key], fresh.batch(*key, 16)), key
    assert not torch.equal(first[0, 0], first[1, 0]) and first[0, 0].dtype == torch.int64


def test_an_epoch_holds_every_training_pair_once_but_for_a_remainder_that_changes(small):
    count, left = len(small.train), []
    for epoch in range(2):
        batches = count // 16
        steps = range(epoch * batches, (epoch + 1) * batches)
        seen = [sentences_of(small, row) for step in steps for row in small.batch(3, step, 16)]
        training = {sentences_of(small, row) for row in small.rows(small.train)}
        assert len(seen) == len(set(seen)) == batches * 16 and set(seen) <= training and count - len(seen) < 16
        left.append(training - set(seen))
    assert left[0] != left[1] and all(left)


def test_batches_hold_pairs_of_like_length_in_an_order_that_length_does_not_tell(small):
    order = small.epoch_order(0, 0, 16)  # (batches, 16)
    spread = np.ptp(small.lengths[order], axis=1).mean()
    shuffled = np.random.default_rng(0).permutation(order.ravel()).reshape(order.shape)
    assert spread < 0.3 * np.ptp(small.lengths[shuffled], axis=1).mean()
    longest = small.lengths[order].max(axis=1)
    assert (np.diff(longest) > 0).any() and (np.diff(longest) < 0).any()


def test_fewer_pairs_than_a_batch_are_repeated_to_fill_it(tmp_path):
    corpus = corpus_of(tmp_path, numbered([2] * 4))
    rows = [sentences_of(corpus, row) for row in corpus.batch(0, 5, 8)]
    assert len(rows) == 8 and len(set(rows)) == len(corpus.train) == 3


@pytest.mark.parametrize("count", [2, 3, 49, 100, 1000, 100_000, 1_000_000])
def test_held_out_and_training_pairs_share_none_and_leave_none_out(count):
    train, held_out = data.split_pairs(count)
    assert np.array_equal(np.sort(np.concatenate([train, held_out])), np.arange(count))
    assert len(train) and 1 <= len(held_out) <= 2048
    assert len(held_out) == pytest.approx(min(2048, 0.02 * count), rel=0.1, abs=1)
    if count >= 100_000:  # from all over the text: every eighth of it holds some
        assert len(np.unique(held_out * 8 // count)) == 8


def test_held_out_pairs_come_from_one_long_document_too(tmp_path):
    corpus = corpus_of(tmp_path, numbered([400]))
    assert len(corpus.held_out) == 4 and len(corpus.train) == 196


def test_held_out_batches_hold_every_held_out_pair_with_masks_that_no_setting_changes(tmp_path):
    def answers(batch_size):
        corpus, rows = corpus_of(tmp_path, numbered([3] * 300 + [20] * 12)), {}
        for input_ids, labels in corpus.held_out_batches(batch_size):
            assert len(input_ids) <= batch_size and input_ids.shape == labels.shape
            whole = torch.where(labels != -100, labels, input_ids)
            for row, ids, label in zip(whole, input_ids, labels):
                rows[sentences_of(corpus, row)] = ids[row != PAD].tolist(), label[row != PAD].tolist()
        assert set(rows) == {sentences_of(corpus, row) for row in corpus.rows(corpus.held_out)}
        return rows

    torch.manual_seed(1)
    first = answers(3)
    torch.manual_seed(2)
    assert first == answers(100)
    assert any(label != -100 for _, labels in first.values() for label in labels)


def test_the_smallest_corpus_has_something_to_predict(tmp_path):
    corpus = corpus_of(tmp_path, "a\nb\nc\nd")
    assert sum((labels != -100).sum() for _, labels in corpus.held_out_batches(4)) > 0


def test_the_commonest_token_is_found(tmp_path):
    corpus = corpus_of(tmp_path, "the cat saw the dog\nthe dog saw a cat\n" * 4)
    assert corpus.tokenizer.id_to_token(corpus.commonest_token()) == "\u2581the"


# --- Masks ------------------------------------------------------------------------------------------------------------

VOCABULARY, TOKENS = 1000, 100_000


@pytest.fixture(scope="module")
def masked():
    """(rows, masked rows, labels) of 1,000 rows with 100 ordinary tokens each, among special ones and padding."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(len(SPECIAL), VOCABULARY, (1000, 100), generator=generator)
    rows = torch.cat([torch.tensor([[CLS, SEP, SEP, MASK, data.UNK] + [PAD] * 10]).repeat(1000, 1), words], dim=1)
    return rows, *mask_tokens(rows, VOCABULARY, generator)


def test_masking_rates_are_15_percent_and_80_10_10(masked):
    rows, masked_ids, labels = masked
    chosen = labels != -100

    def within_5_sigmas(count, total, rate):  # of a binomial count: one chance in 1.7 million to fail by accident
        return abs(count - total * rate) < 5 * math.sqrt(total * rate * (1 - rate))

    count = int(chosen.sum())
    assert within_5_sigmas(count, TOKENS, 0.15)
    coincidence = 0.1 / (VOCABULARY - len(SPECIAL))  # a random token may be the original one
    same, mask = (masked_ids == rows) & chosen, masked_ids == MASK
    assert within_5_sigmas(int((mask & chosen).sum()), count, 0.8)
    assert within_5_sigmas(int(same.sum()), count, 0.1 + coincidence)
    assert within_5_sigmas(int((chosen & ~mask & ~same).sum()), count, 0.1 - coincidence)
    neighbours = chosen[:, -99:] & chosen[:, -100:-1]  # independent: both of two neighbours with 0.15 squared
    assert within_5_sigmas(int(neighbours.sum()), 99_000, 0.15 ** 2)


def test_special_tokens_are_never_chosen_and_labels_are_the_originals(masked):
    rows, masked_ids, labels = masked
    chosen = labels != -100
    assert not chosen[rows < len(SPECIAL)].any() and torch.equal(labels[chosen], rows[chosen])
    assert torch.equal(masked_ids[~chosen], rows[~chosen])


def test_random_tokens_are_drawn_from_all_ordinary_ids(masked):
    rows, masked_ids, labels = masked
    drawn = masked_ids[(labels != -100) & (masked_ids != MASK) & (masked_ids != rows)]
    assert drawn.min() >= len(SPECIAL) and drawn.max() < VOCABULARY
    tenths = torch.bincount((drawn - len(SPECIAL)) * 10 // (VOCABULARY - len(SPECIAL)), minlength=10)
    assert (tenths - len(drawn) / 10).abs().max() < 5 * math.sqrt(len(drawn) * 0.09), tenths  # 5 sigmas


def test_masks_follow_the_generator_alone(masked):
    rows = masked[0]
    torch.manual_seed(0)
    first = mask_tokens(rows, VOCABULARY, torch.Generator().manual_seed(5))
    torch.manual_seed(1)
    again = mask_tokens(rows, VOCABULARY, torch.Generator().manual_seed(5))
    other = mask_tokens(rows, VOCABULARY, torch.Generator().manual_seed(6))
    assert all(map(torch.equal, first, again)) and not torch.equal(first[1], other[1])
