"""The table of the assignment: the graded functions, their points, and the tests that grade them.

A function is named by its file and its name there: "attention.Fixed.query_bias" is in attention.py.
The tests of a function are those in `files` whose names contain one of the `words`; every one of
them must fail while the function is blank. To move the course to other functions, change the table.

A test whose name contains NO_LOOP is a condition: it says nothing about the numbers, so it earns no
points, but if it fails, half of the points are lost.
"""

import sys
from typing import NamedTuple


class Function(NamedTuple):
    """One graded function."""

    part: int
    name: str  # its file, and its name in the file
    points: int
    title: str  # what the blank says: "part 2: the dynamic term"
    files: tuple[str, ...]  # in tests/science
    words: tuple[str, ...]  # in the names of its tests


NO_LOOP = "over_the_positions"  # no Python loop over the positions

TERMS = ("test_terms.py",)
CONVOLUTIONS = ("test_terms.py", "test_convolutions.py")
MIXERS = ("test_terms.py", "test_convolutions.py", "test_mixers.py")
KERNELS = ("test_kernels.py",)
MASKING = ("test_masking.py",)
MODEL = ("test_model.py",)
TRAINING = ("test_training.py",)

# fmt: off
GRADED = (
    Function(1, "attention.split_heads", 2, "split the channels into heads",
        TERMS, ("test_heads_are", "over_the_positions[split_heads")),
    Function(1, "attention.merge_heads", 2, "merge the heads",
        TERMS, ("merged_heads", "over_the_positions[merge_heads")),
    Function(1, "attention.lowest_at_padding", 4, "no attention to padding",
        TERMS, ("lowest_score", "over_the_positions[lowest")),
    Function(1, "kernels.banded_softmax", 4, "from scores and biases to weights",
        KERNELS, ("banded_softmax",)),
    Function(1, "attention.attention", 8, "attention",
        TERMS, ("attention_alone", "weights_are_dropped",
            "takes_flex_attention", "over_the_positions[attention")),

    Function(2, "attention.Fixed.query_bias", 3, "the fixed term",
        TERMS, ("loop_adds[fixed",)),
    Function(2, "attention.Dynamic.query_bias", 3, "the dynamic term",
        TERMS, ("loop_adds[dynamic",)),
    Function(2, "attention.KeyDynamic.key_bias", 3, "the key's dynamic term",
        TERMS, ("loop_adds[key_dynamic",)),
    Function(2, "kernels.bias_matrix", 6, "from a bias to its matrix",
        KERNELS, ("bias_matrix_equals", "any_order_in_memory", "drawing_of_bias_matrix",
            "over_the_positions[bias_matrix")),
    Function(2, "attention.composite_attention", 5, "the paper in one function",
        TERMS, ("composite_attention_equals", "composite_attention_prints",
            "over_the_positions[composite_att")),

    Function(3, "kernels.sum_by_offset", 8, "back from a matrix to the offsets",
        KERNELS, ("sums_by_offset", "drawing_of_sum_by_offset",
            "over_the_positions[sum_by_offset")),
    Function(3, "attention.relative_values", 3, "a vector for each offset",
        KERNELS, ("relative_values_equal", "over_the_positions[relative_values")),
    Function(3, "kernels.skew", 4, "move each line, without a copy",
        KERNELS, ("skew_moves", "over_the_positions[skew")),
    Function(3, "kernels.convolve", 5, "a convolution as a band matrix",
        KERNELS, ("convolve",)),

    Function(4, "attention.depthwise_convolution", 4, "a kernel per channel",
        CONVOLUTIONS, ("over_dilated_positions", "drawing_of_depthwise",
            "over_the_positions[depthwise_convolution")),
    Function(4, "attention.HalfConvolution.forward", 3, "half convolution",
        CONVOLUTIONS, ("half_convolution_alone", "of_a_mixer[conv-v")),
    Function(4, "attention.GatedConvolution.gate", 3, "the gated linear unit",
        CONVOLUTIONS, ("gate_alone", "of_a_mixer[lightconv]")),
    Function(4, "attention.LightConv.convolution", 3, "LightConv",
        CONVOLUTIONS, ("its_loops[lightconv-0", "its_loops[dilated-1", "its_loops[dilated-4",
            "lightconv_drops", "of_a_mixer[dilated]")),
    Function(4, "attention.DynamicConv.convolution", 3, "DynamicConv",
        MIXERS, ("gradients[dynamicconv-clip", "dynamicconv_drops",
            "of_a_mixer[dynamicconv]")),
    Function(4, "attention.ConvBert.forward", 4, "ConvBERT",
        MIXERS, ("gradients[convbert-clip", "convbert_drops", "otherwise[convbert",
            "of_a_mixer[convbert")),

    Function(5, "data.mask_tokens", 6, "hide some tokens",
        MASKING, ("_tokens_", "of_the_chosen", "ordinary_id", "masks_", "one_random_number",
            "over_the_positions")),
    Function(5, "model.masked_lm_loss", 3, "the loss",
        MODEL, ("masked_lm_loss", "without_any_masked_token")),
    Function(5, "pretrain.learning_rate", 3, "the learning rate of a step",
        TRAINING, ("learning_rate_rises",)),
    Function(5, "pretrain.Trainer.device_step", 5, "the device part of a step",
        TRAINING, ("gradients_longer", "gradients_shorter", "forgets_the_gradients",
            "loss_of_a_step")),
    Function(5, "pretrain.evaluate", 3, "the held-out loss",
        TRAINING, ("evaluation", "evaluated_in")),
)
# fmt: on


def pytest_command(functions):
    """The command that runs the tests of these functions, as a list of words."""
    files = []
    words = []
    for function in functions:
        files += [f"tests/science/{file}" for file in function.files]
        words += function.words
    return [sys.executable, "-m", "pytest", "-q", *dict.fromkeys(files), "-k", " or ".join(words)]
