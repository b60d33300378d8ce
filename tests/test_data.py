"""data.py: text, sentences, tokenizer, the cache, pairs, batches, and the held-out pairs."""

import functools
import hashlib
import itertools
import os
import random
import zipfile

import numpy as np
import pytest
import torch

import data
import toy.language
from conftest import Killed, start_process, write
from data import prepare_corpus
from support.commands import UserError
from support.corpus import read_paragraphs, split_sentences
from support.tokenizer import CLS, PAD, SEP, SPECIAL_TOKENS, Encoder

SHA256_OF_TOY_IDS = (
    "8fd1e54501264d46456dae9b1b52ed485f97b49ccec9478f15fa730a280f71a5"  # of 2,000 sentences
)


def corpus_of(folder, text=None, seq_len=32, **settings):
    """Prepare a corpus of one text file; without a text, the file is there already."""
    path = folder / "text.txt"
    if text is not None:
        write(path, text)
    return prepare_corpus([str(path)], folder / "cache", seq_len, **settings)


def numbered_sentence(number):
    """A sentence that occurs once in the text; its length depends on its number."""
    return f"here no. s{number}" + " ends" * (number % 5)


def numbered_text(count):
    """A text of so many sentences, which are all different."""
    return "".join(f"{numbered_sentence(number)}\n" for number in range(count))


def text_of_many_words():
    """Random sentences of invented words, so many different ones that a vocabulary is trained."""
    pick = random.Random(0)
    words = ["".join(pick.choices("bdglmnrstaeiou", k=6)) for _ in range(1500)]
    return "\n".join(" ".join(pick.choices(words, k=8)) + "." for _ in range(2000))


def sentences_of(corpus, sequences):
    """The two sentences of each sequence of token ids, as text."""
    pairs = []
    for sequence in sequences:
        ids = sequence[sequence != PAD].tolist()
        text = corpus.tokenizer.decode(ids, skip_special_tokens=False)
        first, second, end = text.split("[SEP]")
        assert first.startswith("[CLS]")
        assert end == ""
        pairs.append((first.removeprefix("[CLS]").strip(), second.strip()))
    return pairs


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return corpus_of(tmp_path_factory.mktemp("small"), numbered_text(841))  # 420 pairs


@pytest.fixture
def toy_corpus(monkeypatch, tmp_path):
    """The corpus of the built-in language, which is short enough for a test."""
    short = functools.partial(toy.language.documents, sentences=2000)
    monkeypatch.setattr(toy.language, "documents", short)
    return prepare_corpus(["toy"], tmp_path, 32)


# --- Text and sentences ---------------------------------------------------------------------------


def test_a_folder_is_read_in_the_order_of_its_paths_and_pairs_go_on_across_its_files(tmp_path):
    write(tmp_path / "t/b.txt", "Fourth.\n\nFifth.")
    write(tmp_path / "t/a/z.txt", "First. Second.\n\nThird.\n")
    corpus = prepare_corpus([str(tmp_path / "t")], tmp_path / "cache", 32)
    pairs = [("first.", "second."), ("third.", "fourth.")]  # the fifth one is left over
    assert sentences_of(corpus, corpus.sequences(np.arange(2))) == pairs


def test_wikitext_is_respelled_and_its_headings_are_left_out(tmp_path):
    text = (
        " \n = Valkyria = \n \n"
        ' The role @-@ playing game cost $ 5 @,@ 000 ( about 3 @.@ 5 % ) ; it \'s " new " . \n'
        " = = Story = = \n \n It didn 't sell : why ? \n \n = Other = \n \n Second one . \n"
    )
    archive = tmp_path / "wikitext-2.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("wikitext-2-raw/wiki.test.raw", "Never read.\n")
        file.writestr("wikitext-2-raw/wiki.train.raw", text)
    assert list(read_paragraphs(archive)) == [
        'The role-playing game cost $5,000 (about 3.5%); it\'s "new".',
        "It didn't sell: why?",
        "Second one.",
    ]


@pytest.mark.parametrize(
    "sentences",
    [
        ["One. ", "Two! ", "Three? ", "Four"],
        ['He said "Go." ', "Then he left. ", "(It rained.) ", '"So?" ', "She knew."],
        ["Dr. J. R. Smith of the U.S. Army met Mrs. Jones vs. Co. at St. Paul."],
        ["See e.g. Figure 2, No. 5 and vol. 3. ", "It costs 3.5 dollars... or not."],
        ["the cat slept . it was tired ."],
        ["Was it I? ", "Yes. ", "5 men came."],
    ],
)
def test_sentences_end_at_full_stops_but_not_at_abbreviations(sentences):
    assert list(split_sentences("".join(sentences))) == sentences


# --- Tokenizer ------------------------------------------------------------------------------------


def test_every_toy_word_is_one_token(toy_corpus):
    words = []
    for document in toy.language.documents():
        for sentence in document:
            words += sentence.split()
    ids = toy_corpus.tokens
    tokens = [toy_corpus.tokenizer.id_to_token(token_id) for token_id in ids.tolist()]
    assert [token.removeprefix("\u2581") for token in tokens] == words

    # the published ids
    assert hashlib.sha256(ids.tobytes()).hexdigest() == SHA256_OF_TOY_IDS


def test_a_typed_mask_is_the_mask_with_and_without_a_space(toy_corpus):
    tokenizer = toy_corpus.tokenizer
    ids = tokenizer.encode("The cat [MASK] the [MASK].").ids
    words = [tokenizer.id_to_token(token_id) for token_id in ids]
    assert words == ["\u2581the", "\u2581cat", "[MASK]", "\u2581the", "[MASK]", "."]
    assert tokenizer.encode("The cat[MASK] the[MASK].").ids == ids


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a text with many different words, and its corpus with 800 tokens."""
    folder = tmp_path_factory.mktemp("trained")
    odd = "Na\u00efve \ufb01x, \u00bd \u00b4 (e.g. 3.5km) \u65e5\u672c [MASK]\n"
    return folder, corpus_of(folder, text_of_many_words() + "\n" + odd * 3, vocab_size=800)


def test_the_ids_of_a_text_are_those_of_its_words_and_give_the_text_back(trained):
    tokenizer = trained[1].tokenizer
    assert tokenizer.get_vocab_size() == 800
    sentences = [*text_of_many_words().splitlines()[:200], "na\u00efve fix, (e.g. 3.5km)"]
    for sentence, ids in zip(sentences, map(Encoder(tokenizer), sentences), strict=True):
        assert ids.tolist() == tokenizer.encode(sentence).ids
        assert tokenizer.decode(ids.tolist()) == sentence
    assert tokenizer.encode("Na\u00efve  \ufb01x,\t(e.g. 3.5km) ").ids == ids.tolist()


def prepare_with_one_thread(path, cache):
    """What another process does: the library "tokenizers" has one thread."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    prepare_corpus([path], cache, 32, 800)


def test_one_thread_prepares_the_same_corpus_as_several(trained, tmp_path, monkeypatch):
    """The library "tokenizers" has threads when it trains."""
    folder, corpus = trained
    arguments = [str(folder / "text.txt"), tmp_path / "alone"]
    start_process(prepare_with_one_thread, *arguments).join()
    with monkeypatch.context() as patch:
        patch.delattr(data, "fill_cache")  # what it has prepared is read
        alone = prepare_corpus(arguments[:1], arguments[1], 32, 800)
    assert alone.fingerprint == corpus.fingerprint


def test_special_tokens_that_are_written_in_a_text_are_text(tmp_path):
    corpus = corpus_of(tmp_path, "one [SEP] two\nthree [MASK] [PAD]\n" * 4)
    assert corpus.tokens.min() >= len(SPECIAL_TOKENS)


# --- Cache ----------------------------------------------------------------------------------------


def test_the_cache_is_read_again_until_the_text_changes(tmp_path, monkeypatch):
    text = numbered_text(36)
    first = corpus_of(tmp_path, text)
    with monkeypatch.context() as patch:
        patch.delattr(data, "fill_cache")  # nothing can be prepared
        again = corpus_of(tmp_path, seq_len=16)
    assert np.array_equal(again.tokens, first.tokens)

    # another text, and one of the same length that was written at another time
    changed = corpus_of(tmp_path, text + " more")
    path = write(tmp_path / "text.txt", text + " less")
    os.utime(path, ns=(0, 10**18))
    corrected = corpus_of(tmp_path)
    assert len({first.fingerprint, changed.fingerprint, corrected.fingerprint}) == 3


def test_a_preparation_that_is_killed_leaves_nothing_that_looks_finished(tmp_path, monkeypatch):
    def killed(*arguments):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(data, "write_meta", killed)
        corpus_of(tmp_path, numbered_text(36))
    assert corpus_of(tmp_path).counts["sentences"] == 36


# --- Texts that cannot be used --------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, content, vocab_size",
    [
        ("wikitext-3", None, 30_000),  # no such corpus
        ("empty.txt", b"", 30_000),
        ("one.txt", b"Only one sentence here.", 30_000),
        ("three.txt", b"One. Two. Three.", 30_000),  # a single pair
        ("unbroken.txt", b"a" * 500 + b"\n" + b"b" * 500, 30_000),  # words without end
        ("small.txt", b"abcdefg hijklm\n" * 9, 10),  # fewer tokens than characters
        ("large.txt", b"abcdefg hijklm\n" * 9, 70_000),  # more than 16 bits
    ],
)
def test_a_text_that_cannot_be_used_is_refused_in_one_line_and_leaves_no_corpus(
    tmp_path, name, content, vocab_size
):
    path = name
    if content is not None:
        path = str(write(tmp_path / name, content))
    cache = tmp_path / "cache"
    with pytest.raises(UserError, match="^[^\n]+$"):
        prepare_corpus([path], cache, 32, vocab_size)
    assert not list(cache.glob("*/meta.json"))


# --- Pairs ----------------------------------------------------------------------------------------


def test_pair_i_is_the_sentences_2i_and_2i_plus_1_and_an_odd_last_one_is_left_out(small):
    expected = []
    for pair in range(420):
        expected.append((numbered_sentence(2 * pair), numbered_sentence(2 * pair + 1)))
    assert sentences_of(small, small.sequences(np.arange(420))) == expected
    assert small.counts["sentences"] == 841
    assert len(small.lengths) == 420


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
    sequences = data.pad_pairs([(a, b), (b, None), (a + b + b, a)], 14)
    assert sequences.dtype == np.int64
    assert sequences.tolist() == [
        [CLS, *a, SEP, *b, SEP, PAD, PAD],
        [CLS, *b, SEP] + [PAD] * 9,
        [CLS, *a, SEP, *a[:5], SEP],
    ]
    assert data.pad_pairs([(a + b, None)], 8).tolist() == [[CLS, *a, SEP]]


@pytest.mark.parametrize("count", [2, 3, 100, 100_000, 1_000_000])
def test_held_out_and_training_pairs_share_none_and_leave_none_out(count):
    train, held_out = data.train_and_held_out(count)
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


def test_the_choice_of_held_out_pairs_has_not_changed():
    """Otherwise losses could not be compared with recorded ones: increase PREPARATION."""
    _, held_out = data.train_and_held_out(100)
    assert held_out.tolist() == [36, 82]
    _, held_out = data.train_and_held_out(1_000)  # blocks of two pairs
    starts = np.array([142, 218, 362, 410, 442, 580, 668, 750, 756, 868])
    assert held_out.reshape(-1, 2).tolist() == np.stack([starts, starts + 1], axis=1).tolist()


def test_the_masks_of_the_held_out_pairs_have_not_changed(tmp_path):
    """For the same reason. The pairs of 18, 14, 14 and 16 tokens are sorted before the masks."""
    corpus = corpus_of(tmp_path, numbered_text(400))
    masked_ids, labels = corpus.held_out_masked  # (4, N) each
    assert (masked_ids != PAD).sum(dim=1).tolist() == [14, 14, 16, 18]
    masked = (labels != -100).nonzero().tolist()  # [pair, token]
    assert masked == [[0, 2], [0, 3], [0, 12], [1, 3], [1, 11], [2, 9], [3, 5], [3, 11]]


# --- Held-out pairs that are also training pairs --------------------------------------------------


def contents_of(corpus, pairs):
    """The texts of some pairs of a corpus."""
    return sentences_of(corpus, corpus.sequences(pairs))


def test_held_out_pairs_that_occur_in_training_are_left_out_and_a_line_says_how_many(
    tmp_path, capsys
):
    # 1,000 equal pairs, and 3,000 pairs of which each occurs only once
    repeated = "one two\nthree four\n" * 1_000
    corpus = corpus_of(tmp_path, repeated + numbered_text(6_000))
    train, chosen = data.train_and_held_out(4_000)
    expected = [pair for pair in chosen if pair >= 1_000]
    assert corpus.held_out.tolist() == expected
    assert corpus.train.tolist() == train.tolist()

    left_out = len(chosen) - len(expected)
    assert corpus.counts["known"] == left_out > 0
    assert not set(contents_of(corpus, corpus.train)) & set(contents_of(corpus, corpus.held_out))
    assert len(corpus.held_out_masked[0]) == len(expected) >= 32
    line = f"{len(expected)} held out; {left_out} more also occur in training and are left out"
    assert line in capsys.readouterr().out


def test_all_held_out_pairs_stay_if_fewer_than_32_would_be_left_and_a_line_says_so(
    tmp_path, capsys
):
    # 1,000 pairs, of which 20 are held out in any case
    corpus = corpus_of(tmp_path, "one two\nthree four\n" * 400 + numbered_text(1_200))
    _, chosen = data.train_and_held_out(1_000)
    assert corpus.held_out.tolist() == chosen.tolist()
    known = int((chosen < 400).sum())
    assert corpus.counts["known"] == known > 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"warning: {known} of the held-out pairs") for line in lines)


def test_pairs_of_the_same_tokens_with_another_border_are_different():
    """Of 2,000 pairs of the tokens 5 6 7, those held out are 5 6 | 7 and the others 5 | 6 7."""
    _, chosen = data.train_and_held_out(2_000)
    begins = 3 * np.arange(2_000)
    middles = begins + 1
    middles[chosen] += 1
    starts = np.append(np.stack([begins, middles], axis=1), 6_000)
    assert data.choose_held_out(np.tile([5, 6, 7], 2_000), starts) == (chosen.tolist(), 0)


# --- Batches --------------------------------------------------------------------------------------


def test_a_batch_is_the_same_in_any_order_of_asking_and_from_a_fresh_corpus(tmp_path):
    corpus = corpus_of(tmp_path, numbered_text(240))
    asked = list(itertools.product((0, 1), range(30), (8, 16)))  # (seed, step, batch_size)
    first = {key: corpus.batch(*key) for key in asked}

    random.Random(0).shuffle(asked)
    fresh = corpus_of(tmp_path)
    for key in asked:
        assert torch.equal(first[key], fresh.batch(*key)), key

    assert first[0, 0, 16].dtype == torch.int64
    assert not torch.equal(first[0, 0, 16], first[1, 0, 16])


def test_an_epoch_holds_every_training_pair_once_except_a_remainder_that_changes(small):
    count = len(small.train)
    batches = count // 16
    training = set(sentences_of(small, small.sequences(small.train)))
    left_out = []
    for epoch in range(2):
        seen = []
        for step in range(epoch * batches, (epoch + 1) * batches):
            seen += sentences_of(small, small.batch(3, step, 16))
        assert len(seen) == len(set(seen)) == batches * 16
        assert set(seen) <= training
        assert count - len(seen) < 16
        left_out.append(training - set(seen))

    assert left_out[0] != left_out[1]
    assert all(left_out)


def test_the_batches_of_a_corpus_have_equally_many_tokens_that_can_be_masked(small):
    """[CLS] and two [SEP] of each sequence cannot be masked."""
    ids = small.sequences(np.arange(len(small.lengths)))  # (pairs, N)
    token_counts = (ids >= len(SPECIAL_TOKENS)).sum(axis=1)  # (pairs,)
    random_batches = small.train[data.draw_epoch(len(small.train), 4, 2, 16)]
    expected = data.regroup_by_length(random_batches, token_counts, 4, 2)

    for index, indices in enumerate(expected):
        step = 2 * len(expected) + index
        assert small.batch(4, step, 16).tolist() == small.sequences(indices).tolist()


def lengths_like_english(count):
    """Row lengths from 8 to 128 tokens, spread like those of English sentence pairs."""
    random = np.random.default_rng(0)
    return np.clip(random.gamma(4, 14, count), 8, 128).astype(int)  # (sequences,)


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
        random_batches = data.draw_epoch(len(tokens), 0, epoch, batch_size)
        for indices in data.regroup_by_length(random_batches, tokens, 0, epoch):
            weights[indices] += 1 / tokens[indices].sum()
    average = (weights * tokens).sum() / tokens.sum()

    borders = [0, 15, 20, 30, 45, 60, 80, 100, 125, 126]
    for shortest, longest in itertools.pairwise(borders):
        is_inside = (tokens >= shortest) & (tokens < longest)
        inside = tokens[is_inside]
        assert len(inside) > 50
        weight = (weights[is_inside] * inside).sum() / inside.sum()
        assert weight == pytest.approx(average, rel=0.02), (shortest, longest)


def test_fewer_pairs_than_a_batch_are_repeated_to_fill_it(tmp_path):
    corpus = corpus_of(tmp_path, numbered_text(8))
    sequences = sentences_of(corpus, corpus.batch(0, 5, 8))
    assert len(sequences) == 8
    assert len(set(sequences)) == len(corpus.train) == 3


# --- Held-out batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [3, 100])
def test_held_out_batches_are_all_held_out_pairs_with_the_same_masks(small, batch_size):
    masked_ids, labels = small.held_out_masked  # (pairs, N) each
    done = 0
    for some_ids, some_labels in small.held_out_batches(batch_size):
        B, N = some_ids.shape
        assert B <= batch_size
        own = slice(done, done + B)
        assert torch.equal(some_ids, masked_ids[own, :N])
        assert torch.equal(some_labels, labels[own, :N])
        assert masked_ids[own, N:].eq(PAD).all()
        done += B
    assert done == len(masked_ids)

    # the pairs, by what they are without masks
    ids = torch.where(labels != -100, labels, masked_ids)
    held_out = sentences_of(small, small.sequences(small.held_out))
    assert set(sentences_of(small, ids)) == set(held_out)
