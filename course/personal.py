"""Numbers of one's own: the worked example again, with vectors that belong to a name."""

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


def by_hand_command(args):
    """`python -m course by_hand NAME`. Returns the exit code."""
    print(task(args.name))
    return 0


def task(name):
    """The task of a name, as text."""
    lines = [f"{letter} = {matrix}" for letter, matrix in draw(name).items()]
    return "\n".join([f"The task of {name}", TASK, *lines])


def draw(name):
    """q, k, v (3, 2), w (2, 3) and beta (1, 3): whole numbers, the same for the same name.

    They are drawn again until all queries differ, no channel of v and not beta is constant, and no
    weight is so large that the others hardly count.
    They are lists, not tensors: importing torch would take longer than all the rest.
    """
    numbers = random.Random(name)
    shapes = {"q": (3, 2), "k": (3, 2), "v": (3, 2), "w": (2, 3), "beta": (1, 3)}
    while True:
        drawn = {}
        for letter, (rows, columns) in shapes.items():
            drawn[letter] = [numbers.choices([-1, 0, 1, 2], k=columns) for _ in range(rows)]

        # do they show what they shall show?
        q, k, v, w, beta = drawn.values()
        varied = [*zip(*v, strict=True), *beta]
        if (
            len(set(map(tuple, q))) == 3
            and all(len(set(column)) > 1 for column in varied)
            and largest_weight(q, k, w, beta[0]) <= 0.95
        ):
            return drawn


def largest_weight(q, k, w, beta):
    """The largest number of the attention matrix and of the kernels: steps 4 and 6 of a task."""
    largest = 0
    for i in range(3):
        # the bias of this query, and its score for each key, which reads the bias at r = j - i
        bias = [dot(q[i], column) / math.sqrt(2) for column in zip(*w, strict=True)]
        bias = [number + beta_r for number, beta_r in zip(bias, beta, strict=True)]
        scores = []
        for j in range(3):
            r = max(-1, min(1, j - i))
            scores.append(dot(q[i], k[j]) / math.sqrt(2) + bias[r + 1])

        # the softmax of both
        for numbers in (bias, scores):
            exponentials = [math.exp(number) for number in numbers]
            largest = max(largest, max(exponentials) / sum(exponentials))
    return largest


def dot(x, y):
    """The scalar product of two lists."""
    return sum(a * b for a, b in zip(x, y, strict=True))
