"""The table of the assignment: its functions and their points. Their cases are in course/cases.py.

A function is named by its file and its name there: "attention.Fixed.query_bias" is in attention.py.
"""

from typing import NamedTuple


class Function(NamedTuple):
    """One function of the assignment."""

    part: int
    name: str  # its file, and its name in the file
    points: int
    title: str  # what the blank says: "part 3: the dynamic term"


GRADED = [  # 40 points
    Function(1, "attention.composite_attention", 6, "the paper in one function"),
    Function(2, "kernels.bias_matrix", 5, "from a bias to its matrix"),
    Function(2, "kernels.sum_by_offset", 6, "back from a matrix to the offsets"),
    Function(2, "attention.depthwise_convolution", 3, "a kernel per channel"),
    Function(2, "kernels.convolve", 4, "a kernel per query"),
    Function(3, "attention.Fixed.query_bias", 1, "the fixed term"),
    Function(3, "attention.Dynamic.query_bias", 2, "the dynamic term"),
    Function(3, "attention.lowest_at_padding", 2, "no attention to padding"),
    Function(3, "attention.attention", 4, "attention in general"),
    Function(3, "attention.relative_values", 2, "a vector for each offset"),
    Function(4, "data.mask_tokens", 3, "hide some tokens"),
    Function(4, "pretrain.update", 2, "loss, gradients, new weights"),
]

# What would give some of them away is blank in the students' copy, too, and has no points.
GIVE_AWAY = {
    "attention.fixed_attention": "composite_attention",
    "attention.dynamic_attention": "composite_attention",
    "attention.KeyDynamic.key_bias": "Dynamic.query_bias",
    "glue.update": "pretrain.update",
}

# What else a student gets points for.
YOURS = {
    "by hand": 8,
    "find the bug": 6,
    "five questions": 10,
    "talk": 6,
    "experiment": 30,
    "open end": 10,
}
