"""The examples of a task as token ids, and the batches of an epoch."""

from functools import lru_cache

import numpy as np
from tqdm import tqdm

from support.tokenizer import Encoder


class LabelledPairs:
    """One split of a task as token ids. A sequence is [CLS] a [SEP] or [CLS] a [SEP] b [SEP].

    Why two sentences are one sequence: with attention, each word can then attend to the words of
    the other sentence in every layer. Two sentences that were encoded apart could only be compared
    as two finished vectors.

    Batches are drawn at random. Batches of sequences of similar length would need less padding, as
    in pre-training. But here each sequence has a label. Where, for example, long sequences mostly
    have the label 1, a batch of long ones would mostly teach "answer 1". On toy MNLI, `lightconv`
    has 63 and 64 % right with random batches, and 55 and 44 % with batches by length
    (results/toy-random.jsonl, results/toy-sorted.jsonl).

    Args:
        examples: the split's Examples (support/glue_files.py).
        tokenizer: that of the pre-trained model.
        seq_len: longer sequences are cut to this many tokens, the longer sentence first.
    """

    def __init__(self, examples, tokenizer, seq_len):
        self.examples = examples
        self.seq_len = seq_len
        firsts = token_ids(examples.a, tokenizer)
        seconds = [None] * len(firsts)
        if examples.b is not None:
            seconds = token_ids(examples.b, tokenizer)
        self.pairs = list(zip(firsts, seconds, strict=True))

        # the tokens of each sequence, with [CLS] and one or two [SEP]
        lengths = [len(a) + 2 if b is None else len(a) + len(b) + 3 for a, b in self.pairs]
        self.lengths = np.minimum(lengths, seq_len)  # (examples,)

    def batch_indices(self, seed, step, batch_size):
        """The indices (B,) of the examples in the batch of a training step."""
        epoch, index = divmod(step, batches_per_epoch(len(self.pairs), batch_size))
        return draw_epoch(len(self.pairs), seed, epoch, batch_size)[index]


@lru_cache(maxsize=1)
def draw_epoch(count, seed, epoch, batch_size):
    """Draw the batches of one epoch at random (LabelledPairs says why).

    The sequences are shuffled and cut into batches. Sequences that are left over, because they do
    not fill a last batch, are not used. Every epoch has a new order, so others are left over. Each
    sequence occurs at most once per epoch, with one exception: if there are fewer sequences than
    one batch needs, they are repeated to fill it.

    The last epoch that was asked for is kept (lru_cache): every step asks for it again.

    Args:
        count: the number of sequences to draw from.
        seed, epoch: two integers.
        batch_size: B, the number of sequences per batch.

    Returns:
        (batches, B) indices of sequences, from 0 to count - 1. Equal arguments always give equal
        batches.
    """
    # Shuffle the sequences.
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(count)  # (count,)

    # Cut to complete batches. If there are too few sequences for one batch, repeat them to fill it.
    # np.resize does both. With B = 3:
    #     sequences 5 2 6 0 3 1 4   ->   5 2 6 | 0 3 1
    #     sequences 1 0             ->   1 0 1
    batches = batches_per_epoch(count, batch_size)
    order = np.resize(order, batches * batch_size)  # (batches * B,)
    return order.reshape(batches, batch_size)  # (batches * B,) -> (batches, B)


def batches_per_epoch(sequences, batch_size):
    """How many batches an epoch of so many sequences has: complete ones only, but at least one."""
    return max(1, sequences // batch_size)


def token_ids(texts, tokenizer):
    """The token ids of each text, as a list of arrays. A large task takes a while: with a bar."""
    bar = tqdm(texts, desc="token ids", unit=" texts", leave=False, disable=None)
    return list(map(Encoder(tokenizer), bar))
