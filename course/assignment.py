"""The table of the assignment: its functions and their points.

A function is named by its file and its name there: "attention.Fixed.query_bias" is in attention.py.
Its tests are a class of tests/science/test_assignment.py, Test_Fixed_query_bias, and each of them
must fail while the function is blank. To move the course to other functions, change the table, and
write such a class.

Two tests are conditions. If the example of the handout does not come out, a function gets at most
half of its points. A test whose name contains NO_LOOP says nothing about the numbers, so it earns
no points, but if it fails, half of the points are lost.
"""

import sys
from typing import NamedTuple


class Function(NamedTuple):
    """One function of the assignment."""

    part: int
    name: str  # its file, and its name in the file
    points: int  # 0: it is optional, and is written in the students' copy
    title: str  # what the blank says: "part 3: the dynamic term"
    may_call: str = ""  # functions and classes of the project that the body may use


EXAMPLE = "example_of_the_handout"
NO_LOOP = "over_the_positions"  # no Python loop over the positions
TESTS = "tests/science/test_assignment.py"

FUNCTIONS = (
    Function(
        1,
        "attention.composite_attention",
        6,
        "the paper in one function",
        "split_heads merge_heads offsets",
    ),
    Function(2, "kernels.bias_matrix", 5, "from a bias to its matrix", "offsets"),
    Function(2, "kernels.sum_by_offset", 6, "back from a matrix to the offsets", "offsets"),
    Function(2, "attention.depthwise_convolution", 3, "a kernel per channel"),
    Function(2, "kernels.convolve", 4, "a kernel per query", "skew bias_matrix offsets"),
    Function(3, "attention.Fixed.query_bias", 1, "the fixed term"),
    Function(3, "attention.Dynamic.query_bias", 2, "the dynamic term"),
    Function(3, "attention.lowest_at_padding", 2, "no attention to padding"),
    Function(
        3,
        "attention.attention",
        4,
        "attention in general",
        "lowest_at_padding lowest_after_query banded_softmax relative_values",
    ),
    Function(
        3,
        "attention.relative_values",
        2,
        "a vector for each offset",
        "sum_by_offset offsets",
    ),
    Function(4, "data.mask_tokens", 3, "hide some tokens"),
    Function(4, "pretrain.update", 2, "loss, gradients, new weights"),
    Function(5, "attention.KeyDynamic.key_bias", 0, "the key's dynamic term"),
    Function(5, "kernels.skew", 0, "move each line, without a copy"),
    Function(5, "attention.LightConv.convolution", 0, "LightConv"),
    Function(5, "attention.DynamicConv.convolution", 0, "DynamicConv"),
    Function(5, "attention.ConvBert.forward", 0, "ConvBERT"),
    Function(5, "pretrain.learning_rate", 0, "the learning rate of a step"),
    Function(5, "pretrain.evaluate", 0, "the held-out loss"),
)
# steps 2 and 3 of the idea, which would give composite_attention away: blank, too
GIVE_AWAY = ("attention.fixed_attention", "attention.dynamic_attention")

GRADED = [function for function in FUNCTIONS if function.points]  # 40 points


def class_of(function):
    """The name of the class of its tests: Test_Fixed_query_bias."""
    return "Test_" + function.name.partition(".")[2].replace(".", "_")


def pytest_command(functions, *options):
    """The command that runs the tests of these functions, as a list of words."""
    classes = [f"{TESTS}::{class_of(function)}" for function in functions]
    return [sys.executable, "-m", "pytest", "-q", *options, *classes]
