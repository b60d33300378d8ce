"""data.py: sentences, tokenizer, the cache, pairs, batches, and answers to bad input."""

import functools
import gzip
import hashlib
import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import data
import toy.language
from data import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, prepare_corpus
from support.commands import UserError

ROOT = Path(data.__file__).parent
SHA256_OF_TOY_IDS = (
    "8fd1e54501264d46456dae9b1b52ed485f97b49ccec9478f15fa730a280f71a5"  # of 2,000 sentences
)


def write(path, content):
    """Write a text or bytes to a file, make its folder if needed, and return the path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        content = content.encode("utf-8")
    path.write_bytes(content)
    return str(path)


def corpus_of(folder, text, seq_len=32, **settings):
    """Prepare a corpus of one text file."""
    path = write(folder / "text.txt", text)
    return prepare_corpus([path], folder / "cache", seq_len, **settings)


def sentence_with_numbers(document, sentence):
    """A sentence that occurs once in the text; its length depends on its number."""
    words = [f"here d{document} s{sentence}"] + ["ends"] * (sentence % 5)
    return " ".join(words)


def numbered_text(sentence_counts):
    """A text with one document per count, in which each sentence is different."""
    documents = []
    for document, count in enumerate(sentence_counts):
        lines = [sentence_with_numbers(document, sentence) for sentence in range(count)]
        documents.append("\n".join(lines))
    return "\n\n".join(documents)


def text_of_many_words(words=1500, sentences=3000):
    """Random sentences of invented words, so many different ones that a vocabulary is trained."""
    pick = random.Random(0)
    stems = []
    for _ in range(words):
        syllables = pick.randint(1, 3)
        stem = ""
        for _ in range(syllables):
            stem += pick.choice("bdgklmnrst") + pick.choice("aeiou")
        stems.append(stem)

    lines = []
    for _ in range(sentences):
        line = []
        for _ in range(8):
            line.append(pick.choice(stems) + pick.choice(["", "", "ing", "ed", "s"]))
        lines.append(" ".join(line) + ".")
    return "\n".join(lines)


def sentences_of(corpus, row):
    """The two sentences of a row of token ids, as text."""
    ids = row[row != PAD].tolist()
    text = corpus.tokenizer.decode(ids, skip_special_tokens=False)
    first, second, end = text.split("[SEP]")
    assert first.startswith("[CLS]")
    assert end == ""
    return first.removeprefix("[CLS]").strip(), second.strip()


SMALL_COUNTS = [3] * 300 + [20] * 12  # sentences per document: 300 + 120 pairs, all different


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return corpus_of(tmp_path_factory.mktemp("small"), numbered_text(SMALL_COUNTS))


@pytest.fixture
def short_toy(monkeypatch):
    """Make the built-in language short enough for a test."""
    short = functools.partial(toy.language.documents, sentences=2000)
    monkeypatch.setattr(toy.language, "documents", short)


# --- Sentences ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sentences",
    [
        ["One. ", "Two! ", "Three? ", "Four"],
        ['He said "Go." ', "Then he left. ", "(It rained.) ", '"So?" ', "She knew."],
        ["Dr. J. R. Smith of the U.S. Army met Mrs. Jones vs. Co. at St. Paul."],
        ["See e.g. Figure 2, No. 5 and vol. 3. ", "It costs 3.5 dollars... or not."],
        ["He said no. ", "Nobody heard it."],
        ["the cat slept . it was tired ."],
        ["It costs 3.5. ", "Then it rose."],
        ["Dr. Lee saw it. ", "Who?"],  # the example of the docstring
        ['"Dr. Lee saw it. ', 'Who?"'],
        ["(Mr. Smith left.) ", "Then"],
        ["Was it I? ", "Yes."],
        ["He met Messrs. Lee and Co. Then"],
        ["He left. ", "5 men came."],
    ],
)
def test_sentences_end_at_full_stops_but_not_at_abbreviations(sentences):
    assert data.split_sentences("".join(sentences)) == sentences


# --- Tokenizer ------------------------------------------------------------------------------------


def test_every_toy_word_is_one_token(tmp_path, short_toy):
    corpus = prepare_corpus(["toy"], tmp_path, 32)
    written = []
    for document in itertools.islice(toy.language.documents(), 100):
        for sentence in document:
            # As people type it.
            typed = sentence.replace(" .", ".").replace(" ?", "?").replace(" ,", ",")
            ids = corpus.tokenizer.encode(typed).ids
            assert len(ids) == len(sentence.split())
            assert min(ids) >= len(SPECIAL_TOKENS)
            written += ids
    assert corpus.tokens[: len(written)].tolist() == written

    # the published ids
    assert hashlib.sha256(corpus.tokens.tobytes()).hexdigest() == SHA256_OF_TOY_IDS


def test_a_typed_mask_is_the_mask(tmp_path, short_toy):
    tokenizer = prepare_corpus(["toy"], tmp_path, 32).tokenizer
    ids = tokenizer.encode("The cat [MASK] the [MASK].").ids
    words = [tokenizer.id_to_token(token_id) for token_id in ids]
    assert words == ["\u2581the", "\u2581cat", "[MASK]", "\u2581the", "[MASK]", "."]

    # Spaces before and after it make no difference.
    with_spaces = tokenizer.encode("the [MASK] [MASK]cat ").ids
    without_spaces = tokenizer.encode("the[MASK][MASK]cat").ids
    assert with_spaces == without_spaces
    assert tokenizer.encode("[MASK] cat").ids == [MASK, tokenizer.token_to_id("\u2581cat")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a text with many different words, and its corpus with 800 tokens."""
    folder = tmp_path_factory.mktemp("trained")
    odd = "Na\u00efve \ufb01x, \u00bd \u00b4 (e.g. 3.5km) \u65e5\u672c [MASK]\n"
    return folder, corpus_of(folder, text_of_many_words() + "\n" + odd * 3, vocab_size=800)


def test_no_piece_reaches_across_a_space_or_joins_letters_with_other_symbols(trained):
    _, corpus = trained
    assert corpus.vocab_size == 800
    for token_id in range(len(SPECIAL_TOKENS), 800):
        piece = corpus.tokenizer.id_to_token(token_id)
        assert "\u2581" not in piece[1:]
        only_letters = piece.strip("\u2581").isalpha()
        no_letters = not any(character.isalpha() for character in piece)
        assert only_letters or no_letters, piece


def test_another_process_with_one_thread_gives_the_same_tokenizer_and_ids(trained, tmp_path):
    folder, corpus = trained
    program = (
        "import sys, data; corpus = data.prepare_corpus([sys.argv[1]], sys.argv[2], 32, 800)\n"
    )
    program += "print(corpus.fingerprint)"
    result = subprocess.run(
        [sys.executable, "-c", program, folder / "text.txt", tmp_path],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"RAYON_NUM_THREADS": "1"},
    )
    assert result.stdout.splitlines()[-1] == corpus.fingerprint


def test_text_comes_back_from_its_ids_in_small_letters_and_normalised(trained):
    tokenizer = trained[1].tokenizer
    for sentence in text_of_many_words().splitlines()[:200]:
        assert tokenizer.decode(tokenizer.encode(sentence).ids) == sentence
    odd = "Na\u00efve  \ufb01x,\t(e.g. 3.5km) "
    assert tokenizer.decode(tokenizer.encode(odd).ids) == "na\u00efve fix, (e.g. 3.5km)"


def test_special_tokens_that_are_written_in_a_text_are_text(tmp_path):
    corpus = corpus_of(tmp_path, "one [SEP] two\nthree [MASK] [PAD]\n" * 4)
    assert corpus.tokens.min() >= len(SPECIAL_TOKENS)


# --- Cache ----------------------------------------------------------------------------------------


def test_the_second_call_reads_the_cache(tmp_path, monkeypatch):
    first = corpus_of(tmp_path, numbered_text([4] * 9))

    def prepared_again(*_):
        pytest.fail("prepared again")

    monkeypatch.setattr(data, "fill_cache", prepared_again)
    again = prepare_corpus([str(tmp_path / "text.txt")], tmp_path / "cache", 16)
    assert again.fingerprint == first.fingerprint
    assert np.array_equal(again.tokens, first.tokens)


def test_the_fingerprint_is_that_of_the_text(tmp_path):
    first = corpus_of(tmp_path, numbered_text([4] * 9))
    copy = corpus_of(tmp_path / "copy", numbered_text([4] * 9))
    assert copy.fingerprint == first.fingerprint

    # The same path with another text is not read from the cache.
    changed = corpus_of(tmp_path, numbered_text([4] * 9) + " more")
    assert changed.fingerprint != first.fingerprint

    # Nor is a text of the same length that was written at another time.
    path = write(tmp_path / "text.txt", numbered_text([4] * 9) + " less")
    os.utime(path, ns=(0, 10**18))
    corrected = prepare_corpus([path], tmp_path / "cache", 32)
    assert corrected.fingerprint not in (first.fingerprint, changed.fingerprint)


def test_a_preparation_that_is_killed_leaves_nothing_that_looks_finished(tmp_path):
    text = numbered_text([4] * 9)
    path = write(tmp_path / "text.txt", text)
    program = (
        "import os, sys, data\n"
        "original = data.write_token_ids\n"
        "data.write_token_ids = lambda *given: (original(*given), os._exit(9))\n"
        "data.prepare_corpus([sys.argv[1]], sys.argv[2], 32)"
    )
    command = [sys.executable, "-c", program, path, tmp_path / "cache"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 9

    # the next start, with the same text
    corpus = prepare_corpus([path], tmp_path / "cache", 32)
    assert corpus.counts["sentences"] == 36
    assert corpus.fingerprint == corpus_of(tmp_path / "other", text).fingerprint


# --- Texts that cannot be used --------------------------------------------------------------------

PACKED = gzip.compress(random.Random(0).randbytes(5000).hex().encode())


@pytest.mark.parametrize(
    "name, content, vocab_size",
    [
        ("wikitext-3", None, 30_000),  # no such corpus
        ("empty.txt", b"", 30_000),
        ("one.txt", b"Only one sentence here.", 30_000),
        ("apart.txt", b"One.\n\nTwo.\n\nThree.\n\nFour.", 30_000),  # no pair in a document
        ("unbroken.txt", b"a" * 500 + b"\n" + b"b" * 500, 30_000),  # words without end
        ("binary.txt", b"text\nelf\0\1\2", 30_000),
        ("short.gz", PACKED[:-900], 30_000),
        ("not.xz", b"plain text", 30_000),
        ("small.txt", b"abcdefg hijklm\n" * 9, 10),  # fewer tokens than characters
        ("large.txt", b"abcdefg hijklm\n" * 9, 70_000),  # more than 16 bits
    ],
)
def test_a_text_that_cannot_be_used_is_refused_in_one_line_and_leaves_no_corpus(
    tmp_path, name, content, vocab_size
):
    path = name
    if content is not None:
        path = write(tmp_path / name, content)
    cache = tmp_path / "cache"
    with pytest.raises(UserError, match="^[^\n]+$"):
        prepare_corpus([path], cache, 32, vocab_size)
    assert not list(cache.glob("*/meta.json"))


# --- Pairs ----------------------------------------------------------------------------------------


def test_pairs_are_neighbours_within_a_document_and_share_no_sentence(small):
    pairs = [sentences_of(small, row) for row in small.rows(np.arange(420))]
    expected = []
    for document, count in enumerate(SMALL_COUNTS):
        for sentence in range(0, count - 1, 2):
            first = sentence_with_numbers(document, sentence)
            second = sentence_with_numbers(document, sentence + 1)
            expected.append((first, second))
    assert pairs == expected


def test_the_pairs_of_a_document_of_three_and_one_of_four_sentences():
    assert data.pair_sentences(np.array([0, 3, 7])).tolist() == [0, 3, 5]


def test_kept_lengths_are_those_of_cutting_token_by_token_from_the_longer_sentence():
    for a, b, room in itertools.product(range(9), range(9), range(2, 18)):
        kept_a = a
        kept_b = b
        while kept_a + kept_b > room:
            if kept_a > kept_b:
                kept_a -= 1
            else:
                kept_b -= 1
        assert data.kept_lengths(a, b, room) == (kept_a, kept_b), (a, b, room)


def test_rows_hold_both_sentences_marks_and_padding_and_are_cut_to_the_length():
    a = [10, 11, 12, 13, 14, 15]
    b = [20, 21, 22]
    rows = data.pad_pairs([(a, b), (b, None), (a + a, a)], 14)
    assert rows.dtype == np.int64
    assert rows.tolist() == [
        [CLS, *a, SEP, *b, SEP, PAD, PAD],
        [CLS, *b, SEP] + [PAD] * 9,
        [CLS, *a, SEP, *a[:5], SEP],
    ]
    assert data.pad_pairs([(a + a, None)], 8).tolist() == [[CLS, *a, SEP]]


@pytest.mark.parametrize("count", [2, 3, 49, 100, 1000, 100_000, 1_000_000])
def test_held_out_and_training_pairs_share_none_and_leave_none_out(count):
    train, held_out = data.split_pairs(count)
    together = np.sort(np.concatenate([train, held_out]))
    assert np.array_equal(together, np.arange(count))

    # About 2 %, and at most 2,048 pairs.
    assert len(train) >= 1
    assert 1 <= len(held_out) <= 2048
    expected = min(2048, 0.02 * count)
    assert len(held_out) == pytest.approx(expected, rel=0.1, abs=1)

    # From all parts of a long text: every eighth of it holds some. They are blocks of 32 pairs.
    if count >= 100_000:
        assert len(np.unique(held_out * 8 // count)) == 8
        block_starts = held_out[::32]
        assert np.array_equal(held_out, (block_starts[:, None] + np.arange(32)).ravel())


def test_no_sentence_of_a_held_out_pair_is_in_a_training_pair(small):
    trained_on = set()
    for row in small.rows(small.train):
        trained_on.update(sentences_of(small, row))

    assert len(trained_on) == 2 * len(small.train)
    for row in small.rows(small.held_out):
        assert trained_on.isdisjoint(sentences_of(small, row))


def test_the_choice_of_held_out_pairs_has_not_changed():
    """Otherwise losses could not be compared with recorded ones: increase PREPARATION."""
    _, held_out = data.split_pairs(100)
    assert held_out.tolist() == [36, 82]
    _, held_out = data.split_pairs(1_000)  # blocks of two pairs
    starts = np.array([142, 218, 362, 410, 442, 580, 668, 750, 756, 868])
    assert held_out.reshape(-1, 2).tolist() == np.stack([starts, starts + 1], axis=1).tolist()


def test_the_masks_of_the_held_out_pairs_have_not_changed(tmp_path):
    """For the same reason. The pairs of 18, 14, 14 and 16 tokens are sorted before the masks."""
    corpus = corpus_of(tmp_path, numbered_text([400]))
    masked_ids, labels = corpus.held_out_rows  # (4, N) each
    assert (masked_ids != PAD).sum(dim=1).tolist() == [14, 14, 16, 18]
    hidden = (labels != -100).nonzero().tolist()  # [pair, token]
    assert hidden == [[0, 2], [0, 3], [0, 12], [1, 3], [1, 11], [2, 9], [3, 5], [3, 11]]


# --- Held-out pairs that are also training pairs --------------------------------------------------


def test_held_out_pairs_that_are_also_training_pairs_are_counted(tmp_path):
    # 400 equal pairs, and 600 pairs of which each occurs only once.
    repeated = "one two\nthree four\n\n" * 400
    corpus = corpus_of(tmp_path, repeated + numbered_text([2] * 600))

    training = {sentences_of(corpus, row) for row in corpus.rows(corpus.train)}
    held_out = [sentences_of(corpus, row) for row in corpus.rows(corpus.held_out)]
    known = sum(1 for pair in held_out if pair in training)
    assert corpus.counts["known"] == known
    assert 0 < known < len(held_out)


# --- Batches --------------------------------------------------------------------------------------


def test_a_batch_is_as_wide_as_a_multiple_of_eight(small):
    widths = {small.batch(0, step, 8).shape[1] for step in range(50)}
    assert widths == {16, 24}


def test_a_batch_is_never_wider_than_the_limit(tmp_path):
    narrow = corpus_of(tmp_path, numbered_text([20] * 12), seq_len=13)
    for step in range(14):
        batch = narrow.batch(0, step, 8)
        assert batch.shape[1] == 13
        separators = (batch == SEP).sum(dim=1)
        assert (separators == 2).all()


def test_a_batch_is_the_same_in_any_order_of_asking_and_from_a_fresh_corpus(tmp_path):
    corpus = corpus_of(tmp_path, numbered_text([6] * 40))
    asked = list(itertools.product((0, 1), range(30), (8, 16)))  # (seed, step, batch_size)
    first = {key: corpus.batch(*key) for key in asked}

    random.Random(0).shuffle(asked)
    fresh = prepare_corpus([str(tmp_path / "text.txt")], tmp_path / "cache", 32)
    for key in asked:
        assert torch.equal(first[key], fresh.batch(*key)), key

    assert first[0, 0, 16].dtype == torch.int64
    assert not torch.equal(first[0, 0, 16], first[1, 0, 16])


def test_every_seed_and_every_epoch_has_an_order_of_its_own():
    orders = set()
    for seed, epoch in itertools.product(range(10), range(10)):
        orders.add(data.draw_epoch(np.arange(50), seed, epoch, 10).tobytes())
    assert len(orders) == 100


def test_an_epoch_holds_every_training_pair_once_except_a_remainder_that_changes(small):
    count = len(small.train)
    batches = count // 16
    training = {sentences_of(small, row) for row in small.rows(small.train)}
    left_out = []
    for epoch in range(2):
        seen = []
        for step in range(epoch * batches, (epoch + 1) * batches):
            seen += [sentences_of(small, row) for row in small.batch(3, step, 16)]
        assert len(seen) == len(set(seen)) == batches * 16
        assert set(seen) <= training
        assert count - len(seen) < 16
        left_out.append(training - set(seen))

    assert left_out[0] != left_out[1]
    assert all(left_out)


def test_the_length_of_a_row_is_its_number_of_tokens_without_padding(tmp_path):
    for seq_len in (12, 32):  # 12: some rows are cut
        corpus = corpus_of(tmp_path, numbered_text([20] * 12), seq_len=seq_len)
        rows = corpus.rows(np.arange(len(corpus.lengths)))
        assert corpus.lengths.tolist() == (rows != PAD).sum(axis=1).tolist()


def test_the_batches_of_a_corpus_have_equally_many_tokens_that_can_be_masked(small):
    """[CLS] and two [SEP] of each row cannot be masked."""
    rows = small.rows(np.arange(len(small.lengths)))  # (pairs, N)
    token_counts = ((rows != PAD) & (rows != CLS) & (rows != SEP)).sum(axis=1)  # (pairs,)
    random_batches = data.draw_epoch(small.train, 4, 2, 16)
    expected = data.regroup_by_length(random_batches, token_counts, 4, 2)

    batches = small.epoch_batches(4, 2, 16)
    assert [indices.tolist() for indices in batches] == [rows.tolist() for rows in expected]


def lengths_like_english(count):
    """Row lengths from 8 to 128 tokens, spread like those of English sentence pairs."""
    random = np.random.default_rng(0)
    return np.clip(random.gamma(4, 14, count), 8, 128).astype(int)  # (rows,)


@pytest.mark.parametrize("batch_size", [16, 32, 128])
def test_a_token_of_a_short_pair_weighs_as_much_as_one_of_a_long_pair(batch_size):
    """The loss is a mean over the tokens of a batch: in a batch of n tokens, each weighs 1 / n.

    Averaged over all tokens of pairs of similar length, the weight differs by less than 2 % from
    the average over all tokens. In batches of equally many pairs that are sorted by length, a token
    of the shortest pairs weighs three times the average: this test would notice.
    """
    tokens = lengths_like_english(20_000) - 3  # without [CLS] and two [SEP]
    weights = np.zeros(len(tokens))
    for epoch in range(4):
        random_batches = data.draw_epoch(np.arange(len(tokens)), 0, epoch, batch_size)
        for rows in data.regroup_by_length(random_batches, tokens, 0, epoch):
            weights[rows] += 1 / tokens[rows].sum()
    average = (weights * tokens).sum() / tokens.sum()

    borders = [0, 15, 20, 30, 45, 60, 80, 100, 125, 126]
    for shortest, longest in itertools.pairwise(borders):
        is_inside = (tokens >= shortest) & (tokens < longest)
        inside = tokens[is_inside]
        assert len(inside) > 50
        weight = (weights[is_inside] * inside).sum() / inside.sum()
        assert weight == pytest.approx(average, rel=0.02), (shortest, longest)


def test_the_rows_per_batch_average_the_batch_size_in_every_bucket():
    """The batches of a bucket are shuffled with all others, so the smallest case is one bucket."""
    tokens = lengths_like_english(50 * 32)
    batches = data.regroup_by_length(data.draw_epoch(np.arange(1_600), 0, 0, 32), tokens, 0, 0)
    sizes = [len(rows) for rows in batches]
    assert len(sizes) == 50
    assert np.mean(sizes) == 32
    assert min(sizes) < 20
    assert max(sizes) > 64


def test_regrouping_keeps_every_row_and_is_a_function_of_seed_and_epoch():
    tokens = lengths_like_english(1_000)
    random_batches = data.draw_epoch(np.arange(1_000), 3, 1, 8)
    batches = data.regroup_by_length(random_batches, tokens, 3, 1)
    assert sorted(np.concatenate(batches)) == sorted(random_batches.ravel())
    again = data.regroup_by_length(random_batches, tokens, 3, 1)
    assert [rows.tolist() for rows in batches] == [rows.tolist() for rows in again]
    for seed, epoch in ((3, 2), (4, 1)):
        other = data.regroup_by_length(random_batches, tokens, seed, epoch)
        assert [rows.tolist() for rows in batches] != [rows.tolist() for rows in other]


@pytest.mark.parametrize(
    ("tokens", "parts", "begins"),
    [
        ([10, 10, 20, 20, 20, 40], 3, [3, 5]),  # the example of the docstring
        ([5, 5, 5, 5], 2, [2]),
        ([1, 1, 1, 97], 2, [3]),
        ([1, 1, 98, 100], 4, [1, 2, 3]),  # at least one row each
        ([100, 100, 1, 1], 4, [1, 2, 3]),
        ([7, 7, 7], 1, []),
    ],
)
def test_rows_are_cut_into_parts_with_equally_many_tokens(tokens, parts, begins):
    assert data.equal_parts(np.array(tokens), parts) == begins


def test_fewer_pairs_than_a_batch_are_repeated_to_fill_it(tmp_path):
    corpus = corpus_of(tmp_path, numbered_text([2] * 4))
    rows = [sentences_of(corpus, row) for row in corpus.batch(0, 5, 8)]
    assert len(rows) == 8
    assert len(set(rows)) == len(corpus.train) == 3


# --- Held-out batches and the most frequent token -------------------------------------------------


def test_held_out_batches_hold_every_held_out_pair_with_masks_that_no_setting_changes(tmp_path):
    def masks_of_all_pairs(batch_size):
        corpus = corpus_of(tmp_path, numbered_text(SMALL_COUNTS))
        masks = {}
        for masked_ids, labels in corpus.held_out_batches(batch_size):
            assert len(masked_ids) <= batch_size
            assert masked_ids.shape == labels.shape
            original_ids = torch.where(labels != -100, labels, masked_ids)
            for original, masked, label in zip(original_ids, masked_ids, labels, strict=True):
                is_token = original != PAD
                pair = sentences_of(corpus, original)
                masks[pair] = (masked[is_token].tolist(), label[is_token].tolist())

        held_out = {sentences_of(corpus, row) for row in corpus.rows(corpus.held_out)}
        assert set(masks) == held_out
        return masks

    torch.manual_seed(1)
    first = masks_of_all_pairs(batch_size=3)
    torch.manual_seed(2)
    second = masks_of_all_pairs(batch_size=100)
    assert first == second

    all_labels = []
    for _, labels in first.values():
        all_labels += labels
    assert any(label != -100 for label in all_labels)


def test_the_smallest_corpus_has_something_to_predict(tmp_path):
    corpus = corpus_of(tmp_path, "a\nb\nc\nd")
    predictions = 0
    for _, labels in corpus.held_out_batches(4):
        predictions += int((labels != -100).sum())
    assert predictions > 0


@pytest.mark.parametrize("at_once", [3, 1000])
def test_the_most_frequent_token_is_found(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(data, "COUNTED_AT_ONCE", at_once)
    corpus = corpus_of(tmp_path, "the cat saw the dog\nthe dog saw a cat\n" * 4 + "a cat\n")
    assert corpus.tokenizer.id_to_token(corpus.most_frequent_token()) == "\u2581the"
