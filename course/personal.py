"""Numbers of one's own: the worked example with other vectors, and the seeds of one's runs."""

import math
import random

import torch

TASK = """
Three tokens, one head, d = 2, K = 3, as in course/by_hand.md: q, k and v have a row per token, w
(d, K) and beta (H, K) have a column for each of r = -1, 0, 1. Use a calculator; calculate with four
decimals, write three.

1. the bias of each query, q_i . w_r / sqrt(2) + beta_r: divide first, then add beta
2. the bias matrix
3. the scores, with q_i . k_j / sqrt(2)     4. the attention matrix     5. z
6. the kernel of each token, the softmax of its bias     7. the convolution of v with these kernels
8. in one or two sentences: which tokens have the same result in 7 as in attention with the bias
   alone, over the keys in the window? Why not the others?
"""

SHAPES = {"q": (3, 2), "k": (3, 2), "v": (3, 2), "w": (2, 3), "beta": (1, 3)}
EXPONENTIALS = 12  # that differ, in a task: all are equally long


def by_hand_command(args):
    """`python -m course by_hand NAME`. Returns the exit code."""
    print(task(args.name))
    return 0


def seeds_command(args):
    """`python -m course seeds NAME`. Returns the exit code."""
    print(*seeds_of(args.name))
    return 0


def seeds_of(name):
    """The seeds with which a student trains: nobody else's runs are equal to theirs."""
    return random.Random(f"seeds of {name}").sample(range(1_000, 1_000_000), k=8)


def task(name):
    """The task of a name, as text."""
    lines = [f"{letter} = {x.int().tolist()}" for letter, x in draw(name).items()]
    return "\n".join([f"The task of {name}", TASK, *lines])


def draw(name):
    """{letter: matrix} of whole numbers, the same for the same name."""
    numbers = random.Random(name)
    while True:
        drawn = {}
        for letter, (rows, columns) in SHAPES.items():
            chosen = numbers.choices([-1.0, 0.0, 1.0, 2.0], k=rows * columns)
            drawn[letter] = torch.tensor(chosen).view(rows, columns)
        if is_fair(**drawn):
            return drawn


def is_fair(q, k, v, w, beta):
    """Whether a task is as hard as the others, and shows what it shall show.

    The numbers of a row are at most 3 apart, so no weight is near 1. No channel of v is constant,
    nor is beta. The queries differ, and none is 0.
    """
    biases = q @ w / math.sqrt(2) + beta
    a, b, c = biases
    matrix = torch.stack([a[[1, 2, 2]], b, c[[0, 0, 1]]])
    rows = torch.cat([biases, q @ k.t() / math.sqrt(2) + matrix])  # exponentials are taken of these
    return (
        spread(rows).max() <= 3
        and spread(v.t()).min() > 0
        and spread(beta) > 0
        and len({(0, 0), *map(tuple, q.tolist())}) == 4
        and len(rows.round(decimals=4).unique()) == EXPONENTIALS
    )


def spread(rows):
    return rows.amax(dim=1) - rows.amin(dim=1)
