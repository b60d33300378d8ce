"""data.mask_tokens: which tokens are chosen, by what they are replaced, and the labels."""

import math

import pytest
import torch

import references
from data import mask_tokens
from helpers import lines_run
from support.tokenizer import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK

VOCABULARY_SIZE = 1000
TOKENS = 100_000  # ordinary tokens in the sequences below


@pytest.fixture(scope="module")
def masked():
    """(ids, masked ids, labels): 1,000 sequences of 15 special and 100 ordinary tokens each."""
    generator = torch.Generator().manual_seed(0)
    special = torch.tensor([[CLS, SEP, SEP, MASK, UNK] + [PAD] * 10]).repeat(1000, 1)  # (1000, 15)
    first = len(SPECIAL_TOKENS)
    words = torch.randint(first, VOCABULARY_SIZE, (1000, 100), generator=generator)  # (1000, 100)
    sequences = torch.cat([special, words], dim=1)  # (1000, 115)

    masked_ids, labels = mask_tokens(sequences, VOCABULARY_SIZE, generator)
    return sequences, masked_ids, labels


def within_5_sigmas(count, total, probability):
    """True if `count` of `total` independent events is likely: it fails once in 1.7 million."""
    sigma = math.sqrt(total * probability * (1 - probability))
    return abs(count - total * probability) < 5 * sigma


def test_15_percent_of_the_tokens_are_chosen(masked):
    _, _, labels = masked
    count = int((labels != -100).sum())
    assert within_5_sigmas(count, TOKENS, 0.15)


def test_of_the_chosen_80_percent_are_masked_10_percent_random_and_10_percent_the_same(masked):
    sequences, masked_ids, labels = masked
    chosen = labels != -100
    replaced = chosen & (masked_ids == MASK)
    same = chosen & (masked_ids == sequences)
    random = chosen & ~replaced & ~same

    # A token drawn at random may be the original one.
    coincidence = 0.1 / (VOCABULARY_SIZE - len(SPECIAL_TOKENS))
    count = int(chosen.sum())
    assert within_5_sigmas(int(replaced.sum()), count, 0.8)
    assert within_5_sigmas(int(same.sum()), count, 0.1 + coincidence)
    assert within_5_sigmas(int(random.sum()), count, 0.1 - coincidence)


def test_special_tokens_are_never_chosen(masked):
    sequences, _, labels = masked
    chosen = labels != -100
    assert not chosen[sequences < len(SPECIAL_TOKENS)].any()


def test_labels_are_the_original_tokens_and_tokens_that_are_not_chosen_stay(masked):
    sequences, masked_ids, labels = masked
    chosen = labels != -100
    assert torch.equal(labels[chosen], sequences[chosen])
    assert torch.equal(masked_ids[~chosen], sequences[~chosen])


def test_every_ordinary_id_can_be_drawn_the_first_and_the_last_among_them():
    """With the words 5, 6 and 7, about 500 random tokens: each word is drawn about 170 times."""
    sequences = torch.full((500, 100), 6)
    masked_ids, _ = mask_tokens(sequences, 8, torch.Generator().manual_seed(0))
    replaced = masked_ids[(masked_ids != 6) & (masked_ids != MASK)]
    assert sorted(set(replaced.tolist())) == [5, 7]
    assert within_5_sigmas(int((replaced == 7).sum()), len(replaced), 0.5)


def test_masks_are_those_of_the_plain_loop():
    """The random numbers are drawn in the order: one per token, then one id per position."""
    sequences = torch.randint(0, 40, (20, 30), generator=torch.Generator().manual_seed(1))
    numbers = torch.Generator().manual_seed(2)
    draw = torch.rand(sequences.shape, generator=numbers)
    random_ids = torch.randint(len(SPECIAL_TOKENS), 40, sequences.shape, generator=numbers)
    expected_ids, expected_labels = references.mask_tokens(sequences, draw, random_ids)

    masked_ids, labels = mask_tokens(sequences, 40, torch.Generator().manual_seed(2))
    assert torch.equal(masked_ids, expected_ids)
    assert torch.equal(labels, expected_labels)


def test_masks_depend_on_the_generator_alone(masked):
    sequences, _, _ = masked
    torch.manual_seed(0)
    first_ids, first_labels = mask_tokens(
        sequences, VOCABULARY_SIZE, torch.Generator().manual_seed(5)
    )
    torch.manual_seed(1)
    again_ids, again_labels = mask_tokens(
        sequences, VOCABULARY_SIZE, torch.Generator().manual_seed(5)
    )
    _, other_labels = mask_tokens(sequences, VOCABULARY_SIZE, torch.Generator().manual_seed(6))

    assert torch.equal(first_ids, again_ids)
    assert torch.equal(first_labels, again_labels)
    assert not torch.equal(first_labels, other_labels)


def test_one_random_number_decides_what_happens_to_a_token(monkeypatch):
    # The example in the docstring of mask_tokens: the cat [SEP] sat on mats
    sequences = torch.tensor([[5, 6, SEP, 7, 8, 9]])
    draw = torch.tensor([[0.05, 0.90, 0.03, 0.125, 0.14, 0.50]])
    random_ids = torch.tensor([[10, 11, 12, 13, 14, 15]])
    monkeypatch.setattr(torch, "rand", lambda *_, **__: draw)
    monkeypatch.setattr(torch, "randint", lambda *_, **__: random_ids)

    masked_ids, labels = mask_tokens(sequences, VOCABULARY_SIZE, torch.Generator())
    assert masked_ids.tolist() == [[MASK, 6, SEP, 13, 8, 9]]
    assert labels.tolist() == [[5, -100, -100, 7, 8, -100]]


def test_no_python_loop_over_the_positions():
    """More tokens do not run more lines."""

    def lines_for(N):
        return lines_run(mask_tokens, torch.full((2, N), 6), 40, torch.Generator())

    assert lines_for(34) == lines_for(60)
