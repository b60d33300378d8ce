"""Numbers of one's own: the worked example with other vectors, and the seeds of one's runs."""

import math
import random

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
    lines = [f"{letter} = {matrix}" for letter, matrix in draw(name).items()]
    return "\n".join([f"The task of {name}", TASK, *lines])


def draw(name):
    """q, k, v (3, 2), w (2, 3) and beta (1, 3): whole numbers, the same for the same name.

    They are lists, not tensors: importing torch would take longer than all the rest.
    """
    numbers = random.Random(name)
    shapes = {"q": (3, 2), "k": (3, 2), "v": (3, 2), "w": (2, 3), "beta": (1, 3)}
    while True:
        drawn = {}
        for letter, (rows, columns) in shapes.items():
            drawn[letter] = [numbers.choices([-1, 0, 1, 2], k=columns) for _ in range(rows)]
        if is_fair(**drawn):
            return drawn


def is_fair(q, k, v, w, beta):
    """Whether a task is as hard as the others, and shows what it shall show.

    The queries differ, and none is 0. No channel of v and not beta is constant.
    """
    rows = exponents(q, k, w, beta[0])
    sizes = [[a / math.sqrt(2) + b for a, b in row] for row in rows]
    apart = [max(row) - min(row) for row in sizes]
    return (
        len({*map(tuple, q), (0, 0)}) == 4
        and all(len(set(column)) > 1 for column in [*zip(*v, strict=True), *beta])
        and len({pair for row in rows for pair in row}) == EXPONENTIALS
        and max(apart) <= 3  # so that no weight is near 1, and the others count
    )


def exponents(q, k, w, beta):
    """The rows of steps 1 and 3, whose exponentials are computed. (a, b) is a / sqrt(2) + b."""
    columns = list(zip(*w, strict=True))  # w_r, for r = -1, 0, 1
    biases = []
    scores = []
    for i, q_i in enumerate(q):
        # step 1: the bias of query i, q_i . w_r / sqrt(2) + beta_r
        bias = [(dot(q_i, w_r), b) for w_r, b in zip(columns, beta, strict=True)]
        biases.append(bias)

        # step 3: for each key j the content, and the bias at r = j - i, clipped to the window
        read = [bias[max(-1, min(1, j - i)) + 1] for j in range(3)]
        scores.append([(a + dot(q_i, k_j), b) for (a, b), k_j in zip(read, k, strict=True)])
    return biases + scores


def dot(x, y):
    """The scalar product of two lists."""
    return sum(a * b for a, b in zip(x, y, strict=True))
