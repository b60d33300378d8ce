"""Numbers of one's own: the worked example again, with vectors that belong to a name."""

import math
import random

import torch

TASK = """
Three tokens, one head, d = 2, K = 3, as in course/by_hand.md: q, k and v have a row per token, w
(d, K) and beta have a column for each of r = -1, 0, 1. To three digits:

1. the bias of each query, q_i . w_r / sqrt(2) + beta_r     2. the bias matrix
3. the scores, with q_i . k_j / sqrt(2)     4. the attention matrix     5. z
6. the kernel of each token, the softmax of its bias     7. the convolution of v with these kernels
"""


def by_hand_command(args):
    """`python -m course by_hand NAME`. Returns the exit code."""
    print(f"The task of {args.name}\n{TASK}")
    for letter, matrix in draw(args.name).items():
        print(f"{letter} = {matrix.int().tolist()}")
    return 0


def draw(name):
    """q, k, v (3, 2), w (2, 3) and beta (3,): small whole numbers, the same for the same name."""
    numbers = random.Random(name)
    shapes = {"q": (3, 2), "k": (3, 2), "v": (3, 2), "w": (2, 3), "beta": (3,)}
    return {
        letter: torch.tensor(numbers.choices([-1.0, 0.0, 1.0, 2.0], k=math.prod(shape))).view(shape)
        for letter, shape in shapes.items()
    }
