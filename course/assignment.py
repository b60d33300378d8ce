"""The table of the assignment: its functions and their points. Their cases are in course/cases.py.

A function is named by its file and its name there: "attention.Fixed.query_bias" is in attention.py.
"""

from typing import NamedTuple


class Function(NamedTuple):
    """One function of the assignment."""

    part: int
    name: str  # its file, and its name in the file
    points: int


GRADED = [  # 40 points
    Function(1, "attention.composite_attention", 6),
    Function(2, "kernels.bias_matrix", 5),
    Function(2, "kernels.sum_by_offset", 6),
    Function(2, "attention.depthwise_convolution", 3),
    Function(2, "kernels.convolve", 4),
    Function(3, "attention.Fixed.query_bias", 1),
    Function(3, "attention.Dynamic.query_bias", 2),
    Function(3, "attention.lowest_at_padding", 2),
    Function(3, "attention.attention", 4),
    Function(3, "attention.relative_values", 2),
    Function(4, "data.mask_tokens", 3),
    Function(4, "pretrain.update", 2),
]

# What would give some of them away is blank in the students' copy, too, and has no points.
GIVE_AWAY = (
    "attention.fixed_attention",
    "attention.dynamic_attention",
    "attention.KeyDynamic.key_bias",
    "glue.update",
)

# What else a student gets points for.
YOURS = {
    "by hand": 8,
    "find the bug": 6,
    "five questions": 10,
    "talk": 6,
    "experiment": 30,
    "open end": 10,
}

# the columns of a table of points
COLUMNS = [*(function.name for function in GRADED), *YOURS]
