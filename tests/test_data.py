"""data.py: text, sentences, tokenizer, the cache, pairs, batches, and the held-out pairs."""

import hashlib
import itertools
import os
import random
import re
import zipfile
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import data
from conftest import Killed, start_process, write
from data import prepare_corpus
from support import prepared
from support.commands import UserError
from support.corpus import read_lines, split_sentences, wikitext_paragraphs
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
    text = "\n".join(islice(read_lines(prepared.TOY), 2002))
    monkeypatch.setattr(prepared, "TOY", write(tmp_path / "text.txt", text))
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
    assert list(wikitext_paragraphs(archive)) == [
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
        ["He said that [... people] ask [...] Him (...) as well. ", "Yes."],
    ],
)
def test_sentences_end_at_full_stops_but_not_at_abbreviations(sentences):
    assert list(split_sentences("".join(sentences))) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["„Geh!“ ", "Er ging. ", "„Wo ist er?“ ", "»Hier.« ", "»Gut.« ", "‚Ja.‘ ", "Sie kam."],
        ["« Oui. » ", "Il part. ", "« Non », dit-il. ", "«\xa0Si\xa0?\xa0» ", "Elle rit… ", "Fin."],
        ["Hola. ", "¿Cómo estás? ", "¡Bien! ", "«Sí.» ", "Fue."],
        ["«Иди!» ", "Он ушёл. ", "«Куда?» — спросила она. ", "Домой."],
        ["He left.” ", "“Where?” ", "‘Home.’ ", "“‘Now?’” she said. ", "“Dr. Lee left.” ", "Yes."],
        ["It barks.[1] ", "It runs.² ", "It sleeps.[note 3][4] ", "It eats.* ", "End."],
        ["Well… ", "She ran... ", "It was… cold. ", "No."],
    ],
    ids=["German", "French", "Spanish", "Russian", "English", "footnotes", "ellipsis"],
)
def test_quotes_of_any_language_footnotes_and_ellipses_stand_at_sentence_ends(sentences):
    assert list(split_sentences("".join(sentences))) == sentences


# --- Tokenizer ------------------------------------------------------------------------------------


def test_every_toy_word_is_one_token(toy_corpus):
    words = re.findall(r"\w+|[.,?]", prepared.TOY.read_text("utf-8"))
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


def test_the_ids_of_a_text_are_those_of_its_words_and_give_the_text_back(tmp_path):
    """Of a text with more different words than tokens."""
    odd = "Na\u00efve \ufb01x, \u00bd \u00b4 (e.g. 3.5km) \u65e5\u672c [MASK]\n"
    text = text_of_many_words() + "\n" + odd * 3
    tokenizer = corpus_of(tmp_path, text, vocab_size=800).tokenizer
    assert tokenizer.get_vocab_size() == 800
    sentences = [*text_of_many_words().splitlines()[:200], "na\u00efve fix, (e.g. 3.5km)"]
    for sentence, ids in zip(sentences, map(Encoder(tokenizer), sentences), strict=True):
        assert ids.tolist() == tokenizer.encode(sentence).ids
        assert tokenizer.decode(ids.tolist()) == sentence
    assert tokenizer.encode("Na\u00efve  \ufb01x,\t(e.g. 3.5km) ").ids == ids.tolist()


def test_other_tokenizers_encode_whole_texts_and_large_vocabularies_have_32_bits():
    """Those of imported models. A byte-level one gives another piece to a word after a space."""
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    byte_level.train_from_iterator(["the dog and the cat and the dog"] * 9, trainer)
    large = Tokenizer(models.WordLevel({f"w{i}": i for i in range(70_000)}, unk_token="w0"))
    large.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for tokenizer, text in ((byte_level, "the dog and the cat"), (large, "w69999 w1")):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert Encoder(tokenizer)(text).tolist() == ids


def prepare_with_one_thread(path, cache):
    """What another process does: the library "tokenizers" has one thread."""
    os.environ["RAYON_NUM_THREADS"] = "1"
    prepare_corpus([path], cache, 32, 800)


def test_one_thread_prepares_the_same_corpus_as_several(tmp_path, monkeypatch):
    """The library "tokenizers" has threads when it trains."""
    corpus = corpus_of(tmp_path, text_of_many_words(), vocab_size=800)
    arguments = [str(tmp_path / "text.txt"), tmp_path / "alone"]
    start_process(prepare_with_one_thread, *arguments).join()
    with monkeypatch.context() as patch:
        patch.delattr(prepared, "fill_cache")  # what it has prepared is read
        alone = prepare_corpus(arguments[:1], arguments[1], 32, 800)
    assert alone.fingerprint == corpus.fingerprint


def test_the_vocabulary_is_small_if_the_text_is_unless_another_one_is_asked_for(
    tmp_path, monkeypatch
):
    text = text_of_many_words()
    monkeypatch.setattr(prepared, "SMALL_VOCABULARY", 800)
    assert corpus_of(tmp_path, text).vocab_size == 800
    assert corpus_of(tmp_path, text, vocab_size=900).vocab_size == 900
    monkeypatch.setattr(prepared, "LARGE_TEXT", len(text))
    assert corpus_of(tmp_path, text).vocab_size > 900


def test_special_tokens_that_are_written_in_a_text_are_text(tmp_path):
    corpus = corpus_of(tmp_path, "one [SEP] two\nthree [MASK] [PAD]\n" * 4)
    assert corpus.tokens.min() >= len(SPECIAL_TOKENS)


# --- Cache ----------------------------------------------------------------------------------------


def test_the_cache_is_read_again_until_the_text_changes(tmp_path, monkeypatch):
    text = numbered_text(36)
    first = corpus_of(tmp_path, text)
    with monkeypatch.context() as patch:
        patch.delattr(prepared, "fill_cache")  # nothing can be prepared
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
        patch.setattr(prepared, "write_meta", killed)
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


def test_unseen_are_the_ids_that_do_not_occur_in_the_text(small):
    expected = {*range(5, small.vocab_size)} - {*small.tokens.tolist()}
    assert small.counts["unseen"] == sorted(expected)
    assert small.tokenizer.token_to_id("\u2581") in expected


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
    assert data.pad_pairs([(b, None)], 14, width=6).tolist() == [[CLS, *b, SEP, PAD]]


@pytest.mark.parametrize("count", [2, 3, 100, 100_000, 1_000_000])
def test_held_out_and_training_pairs_share_none_and_leave_none_out(count):
    train, held_out = prepared.train_and_held_out(count)
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
    """Otherwise losses could not be compared with recorded ones."""
    _, held_out = prepared.train_and_held_out(100)
    assert held_out.tolist() == [36, 82]
    _, held_out = prepared.train_and_held_out(1_000)  # blocks of two pairs
    starts = np.array([142, 218, 362, 410, 442, 580, 668, 750, 756, 868])
    assert held_out.reshape(-1, 2).tolist() == np.stack([starts, starts + 1], axis=1).tolist()


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_the_masks_of_the_held_out_pairs_are_these_whatever_torch_s_default_dtype_is(
    tmp_path, default
):
    """For the same reason. The pairs of 18, 14, 14 and 16 tokens are sorted before the masks."""
    corpus = corpus_of(tmp_path, numbered_text(400))
    torch.set_default_dtype(default)
    try:
        masked_ids, labels = corpus.held_out_masked  # (4, N) each
    finally:
        torch.set_default_dtype(torch.float32)
    assert (masked_ids != PAD).sum(dim=1).tolist() == [14, 14, 16, 18]
    masked = (labels != -100).nonzero().tolist()  # [pair, token]
    assert masked == [[0, 2], [0, 3], [0, 12], [1, 3], [1, 11], [2, 9], [3, 5], [3, 11]]


# --- Held-out pairs that are also training pairs --------------------------------------------------


def test_held_out_pairs_that_occur_in_training_are_left_out_and_a_line_says_how_many(
    tmp_path, capsys
):
    # 1,000 equal pairs, and 3,000 pairs of which each occurs only once
    repeated = "one two\nthree four\n" * 1_000
    corpus = corpus_of(tmp_path, repeated + numbered_text(6_000))
    train, chosen = prepared.train_and_held_out(4_000)
    expected = [pair for pair in chosen if pair >= 1_000]
    assert corpus.held_out.tolist() == expected
    assert corpus.train.tolist() == train.tolist()

    left_out = len(chosen) - len(expected)
    assert corpus.counts["in_both"] == left_out > 0
    train, held_out = (
        set(sentences_of(corpus, corpus.sequences(pairs)))
        for pairs in (corpus.train, corpus.held_out)
    )
    assert not train & held_out
    assert len(corpus.held_out_masked[0]) == len(expected) >= 32
    line = f"{len(expected)} held out ({left_out} more also occur in training: not used)"
    assert line in capsys.readouterr().out


def test_all_held_out_pairs_stay_if_fewer_than_32_would_be_left_and_a_line_says_so(
    tmp_path, capsys
):
    # 1,000 pairs, of which 20 are held out in any case
    corpus = corpus_of(tmp_path, "one two\nthree four\n" * 400 + numbered_text(1_200))
    _, chosen = prepared.train_and_held_out(1_000)
    assert corpus.held_out.tolist() == chosen.tolist()
    in_both = int((chosen < 400).sum())
    assert corpus.counts["in_both"] == in_both > 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"warning: {in_both} of the held-out pairs") for line in lines)


def test_pairs_of_the_same_tokens_with_another_border_are_different():
    """Of 2,000 pairs of the tokens 5 6 7, those held out are 5 6 | 7 and the others 5 | 6 7."""
    _, chosen = prepared.train_and_held_out(2_000)
    begins = 3 * np.arange(2_000)
    middles = begins + 1
    middles[chosen] += 1
    starts = np.append(np.stack([begins, middles], axis=1), 6_000)
    assert prepared.choose_held_out(np.tile([5, 6, 7], 2_000), starts) == (chosen.tolist(), 0)


# --- Batches --------------------------------------------------------------------------------------


def test_a_batch_is_the_same_in_any_order_of_asking_and_from_a_fresh_corpus(tmp_path):
    corpus = corpus_of(tmp_path, numbered_text(240))
    # (seed, step, batch_size): about three epochs in batches of 8
    asked = list(itertools.product((0, 1), range(40), (8, 16)))
    first = {key: corpus.batch(*key) for key in asked}

    random.Random(0).shuffle(asked)
    fresh = corpus_of(tmp_path)
    for key in asked:
        assert torch.equal(first[key], fresh.batch(*key)), key

    assert first[0, 0, 16].dtype == torch.int64
    assert not torch.equal(first[0, 0, 16], first[1, 0, 16])


# --- Batches of few shapes ------------------------------------------------------------------------


def lengths_like_english(count):
    """Lengths from 8 to 128 tokens, spread like those of English sentence pairs."""
    random = np.random.default_rng(0)
    return np.clip(random.gamma(4, 14, count), 8, 128).astype(np.int32)  # (sequences,)


def batches_of(lengths, seq_len=128):
    """All tokens can be masked, except [CLS] and two [SEP]."""
    lengths = np.array(lengths)
    return data.BatchesByWidth(lengths, lengths - 3, seq_len)


def epoch_of(batches, batch_size, epoch=0, seed=0):
    """The batches of an epoch: a list of (indices, width)."""
    count = len(batches.batches_of_epoch(batch_size, seed, epoch))
    steps = range(epoch * count, (epoch + 1) * count)
    return [batches.batch(seed, step, batch_size) for step in steps]


def shapes_of(found):
    """How many batches there are of each (N, B): a Counter."""
    return Counter((width, len(indices)) for indices, width in found)


def test_a_width_is_the_next_number_with_three_binary_digits_and_never_above_seq_len():
    widths = sorted({data.width_of(length, 256) for length in range(1, 257)})
    assert widths == [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256]
    for length in range(1, 257):
        expected = min(width for width in widths if width >= length)
        assert data.width_of(length, 256) == expected, length
        assert data.width_of(length, 100) == min(expected, 100), length


def test_the_batches_of_the_drawing():
    """The example of BatchesByWidth: B and N of each."""
    batches = batches_of([7] * 11 + [13] * 7 + [23] * 4, seq_len=24)
    assert shapes_of(epoch_of(batches, batch_size=4)) == {(8, 9): 1, (16, 4): 2, (24, 2): 3}


@pytest.mark.parametrize("batch_size", [32, 128])
def test_batches_of_english_have_at_most_12_shapes_and_little_padding(batch_size):
    lengths = lengths_like_english(20_000)
    shapes = set()
    places = 0
    for indices, width in epoch_of(batches_of(lengths), batch_size):
        shapes.add((len(indices), width))
        places += len(indices) * width
    assert len(shapes) <= 12
    assert lengths.sum() / places > 0.9


EPOCHS = {  # lengths, batch_size, seq_len
    "English": (lengths_like_english(2_000), 32, 128),
    "English, one sequence per batch": (lengths_like_english(500), 1, 128),
    "a width that is no multiple of 8": (np.minimum(lengths_like_english(500), 100), 8, 100),
    "two pairs, one of them held out": ([20], 64, 128),
    "fewer sequences than a batch": (lengths_like_english(30), 64, 128),
    "three long ones, alone in their class": ([20] * 500 + [120] * 3, 16, 128),
    "three long ones, and a batch for each": ([20] * 500 + [120] * 3, 1, 128),
    "three long ones, and nothing left over": ([8] * 48 + [120] * 3, 2, 128),
}


@pytest.mark.parametrize("lengths, batch_size, seq_len", EPOCHS.values(), ids=EPOCHS)
def test_every_sequence_is_in_every_epoch_and_at_most_one_batch_repeats_some(
    lengths, batch_size, seq_len
):
    """The numbers of batches of each shape are the same in all epochs and for all seeds, too."""
    lengths = np.array(lengths)
    batches = batches_of(lengths, seq_len)
    shapes = shapes_of(epoch_of(batches, batch_size, seed=1))
    epochs = []
    for epoch in range(3):
        found = epoch_of(batches, batch_size, epoch)
        assert shapes_of(found) == shapes
        for indices, width in found:
            assert lengths[indices].max() <= width <= seq_len

        # how often each sequence occurs, in all batches and without one of them
        times = [np.bincount(indices, minlength=len(lengths)) for indices, _ in found]
        total = sum(times)
        assert total.min() >= 1
        assert min((total - own).max() for own in times) <= 1
        epochs.append([indices.tolist() for indices, _ in found])

    # a new epoch has new batches
    assert epochs[0] != epochs[1] or len(lengths) == 1


def test_widths_come_in_random_order():
    """Otherwise an epoch would begin with its shortest sequences."""
    widths = [width for _, width in epoch_of(batches_of(lengths_like_english(5_000)), 16)]
    half = len(widths) // 2
    assert np.mean(widths[:half]) == pytest.approx(np.mean(widths[half:]), rel=0.1)


@pytest.mark.parametrize("batch_size", [16, 32, 128])
def test_a_token_of_a_short_pair_weighs_as_much_as_one_of_a_long_pair(batch_size):
    """The loss is a mean over the tokens of a batch: in a batch of n tokens, each weighs 1 / n.

    Averaged over all tokens of pairs of similar length, the weight differs by less than 2 % from
    the average over all tokens. In batches of equally many pairs, a token of the shortest pairs
    weighs three times the average: this test would notice.

    In a short text the pairs that are repeated count, too: of 20,000 pairs in batches of 128, the
    longest ones weigh 3.5 % more.
    """
    lengths = lengths_like_english(100_000)
    tokens = lengths - 3  # without [CLS] and two [SEP]
    batches = batches_of(lengths)
    weights = np.zeros(len(tokens))
    for epoch in range(2):
        for indices, _ in epoch_of(batches, batch_size, epoch):
            np.add.at(weights, indices, 1 / tokens[indices].sum())
    average = (weights * tokens).sum() / tokens.sum()

    borders = [0, 15, 20, 30, 45, 60, 80, 100, 125, 126]
    for shortest, longest in itertools.pairwise(borders):
        is_inside = (tokens >= shortest) & (tokens < longest)
        inside = tokens[is_inside]
        assert len(inside) > 50
        weight = (weights[is_inside] * inside).sum() / inside.sum()
        assert weight == pytest.approx(average, rel=0.02), (shortest, longest)


def test_batches_have_batch_size_sequences_on_average_and_nearly_equally_many_tokens():
    lengths = lengths_like_english(20_000)
    found = epoch_of(batches_of(lengths), 32)
    assert np.mean([len(indices) for indices, _ in found]) == pytest.approx(32, rel=0.02)

    tokens = sorted((lengths[indices] - 3).sum() for indices, _ in found)
    assert tokens[-1] / tokens[1] < 1.2  # the smallest one may be the one that was filled up


@pytest.mark.parametrize("sentences, batch_size", [(4, 64), (62, 64), (600, 16)])
def test_a_corpus_pads_its_batches_to_the_widths_of_their_classes(tmp_path, sentences, batch_size):
    """2 and 31 pairs: fewer than a batch, so they are repeated to fill it."""
    corpus = corpus_of(tmp_path, numbered_text(sentences))
    expected = epoch_of(batches_of(corpus.lengths[corpus.train], seq_len=32), batch_size)
    seen = set()
    for step, (indices, width) in enumerate(expected):
        batch = corpus.batch(0, step, batch_size)
        assert batch.shape == (len(indices), width)
        assert sentences_of(corpus, batch) == sentences_of(
            corpus, corpus.sequences(corpus.train[indices])
        )
        seen.update(sentences_of(corpus, batch))
    assert seen == set(sentences_of(corpus, corpus.sequences(corpus.train)))


def test_a_batch_has_the_width_of_its_class_also_if_its_long_pairs_are_in_another_batch(tmp_path):
    """One long pair, and what is left over of many short ones."""
    short = "".join(f"one d{number} two\nthree d{number}\n" for number in range(300))
    long = "here" + " ends" * 9
    corpus = corpus_of(tmp_path, f"{short}{long}\n{long}\n")
    assert shapes_of(epoch_of(corpus.batches_by_width, 5)) == {(16, 5): 58, (24, 4): 2}
    batches = [corpus.batch(0, step, 5) for step in range(60)]
    wide = [batch for batch in batches if batch.shape == (4, 24)]
    assert sorted(int((batch != PAD).sum(dim=1).max()) for batch in wide) == [10, 23]
    assert sum(1 for batch in batches if batch.shape == (5, 16)) == 58


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
