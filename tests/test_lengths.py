"""lab/lengths.py: the same masked tokens at every length, and the loss of the model."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lab import lengths
from model import load_run
from support.tokenizer import CLS, SEP

LENGTHS = (7, 16, 33, 65)
LONGEST = 65


@pytest.fixture(scope="module")
def corpus(small_text):
    return small_text.corpus(16)


@pytest.fixture
def run(start, tmp_path):
    """A short run with sequences of 16 tokens."""
    start("--variant alibi --seq_len 16")
    return tmp_path / "corpus-alibi"


# --- The text -------------------------------------------------------------------------------------


def test_the_text_is_the_held_out_sentences_in_order_with_a_sep_after_each(corpus):
    text = lengths.held_out_stretches(corpus, LONGEST).flatten().tolist()
    tokens = []
    for pair in sorted(corpus.held_out.tolist()):
        for sentence in (2 * pair, 2 * pair + 1):
            begin, end = corpus.sentence_starts[sentence : sentence + 2]
            tokens += [*corpus.tokens[begin:end].tolist(), SEP]
    assert text == tokens[: len(text)]
    assert len(text) > len(tokens) - (LONGEST - 1)


def test_at_every_length_the_same_tokens_are_masked(corpus):
    text = lengths.held_out_text(corpus, LENGTHS)
    expected = text.labels[text.labels != -100].tolist()
    for N in LENGTHS:
        ids, labels = lengths.sequences_of_length(text, N)
        assert ids.shape[1] == N
        assert (ids[:, 0] == CLS).all()
        assert labels[labels != -100].tolist() == expected


# --- The loss -------------------------------------------------------------------------------------


def sequences_cut_one_by_one(text, N):
    """Yield (ids, labels) of each sequence, two lists. The last of a stretch may be shorter."""
    for ids, labels in zip(text.masked_ids.tolist(), text.labels.tolist(), strict=True):
        while ids:
            yield [CLS, *ids[: N - 1]], [-100, *labels[: N - 1]]
            ids = ids[N - 1 :]
            labels = labels[N - 1 :]


def test_the_loss_is_the_mean_of_minus_log_p_over_all_masked_tokens(corpus, run):
    """One by one, cut from the stretches one after the other; the program has batches."""
    text = lengths.held_out_text(corpus, (20, LONGEST))
    model, _ = load_run(run)
    got = lengths.loss_of_text(model, text, 20, torch.device("cpu"))

    losses = []
    for ids, labels in sequences_cut_one_by_one(text, 20):
        log_p = F.log_softmax(model(torch.tensor([ids]))[0].double(), dim=-1)  # (n, V)
        for place, label in enumerate(labels):
            if label != -100:
                losses.append(-log_p[place, label].item())
    assert len(losses) == (text.labels != -100).sum()
    assert abs(got - np.mean(losses)) < 1e-5


# --- The command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["--lengths 8 9999999", "--lengths 4 5 6 7", "--vocab_size 40"])
def test_lengths_that_the_text_does_not_have_and_another_vocabulary_are_refused(
    options, run, on_small_text, refused
):
    refused(lengths.main, run, options, *on_small_text)
