"""The table of the assignment: the graded functions, their points, and the tests that grade them.

A function is named by its file and its name there: "attention.Fixed.forward" is in attention.py.
The tests of a function are those in `file` whose names contain one of the `words`; every one of
them must fail while the function is blank. To move the course to other functions, change the table.
"""

from typing import NamedTuple


class Function(NamedTuple):
    """One graded function."""

    part: int
    name: str  # its file, and its name in the file
    points: int
    title: str  # what the blank says: "part 2: the dynamic term"
    file: str  # in tests/science
    words: tuple[str, ...]  # in the names of its tests


ATTENTION = "test_attention.py"
KERNELS = "test_kernels.py"
MASKING = "test_masking.py"
MODEL = "test_model.py"
TRAINING = "test_training.py"

# fmt: off
GRADED = (
    Function(1, "attention.split_heads", 2, "split the channels into heads",
        ATTENTION, ("heads_are",)),
    Function(1, "attention.merge_heads", 2, "merge the heads",
        ATTENTION, ("heads_are",)),
    Function(1, "attention.lowest_at_padding", 4, "no attention to padding",
        ATTENTION, ("lowest_score",)),
    Function(1, "attention.drop", 4, "dropout",
        ATTENTION, ("dropout_sets", "dropout_from")),
    Function(1, "attention.attention", 8, "attention",
        ATTENTION, ("attention_alone", "without_terms", "scores_are", "padding_gets",
            "relative_values_are", "goes_in_blocks", "blocks_get_all")),

    Function(2, "attention.Fixed.forward", 4, "the fixed term",
        ATTENTION, ("rows_of_the_fixed",)),
    Function(2, "attention.Dynamic.forward", 4, "the dynamic term",
        ATTENTION, ("sqrt_d[dynamic",)),
    Function(2, "attention.KeyDynamic.forward", 4, "the key's dynamic term",
        ATTENTION, ("sqrt_d[key_dynamic",)),
    Function(2, "kernels.gather_scores", 8, "from rows to the map, by an index",
        KERNELS, ("all_queries[gather", "order[gather", "query[gather", "map[clip-gather",
            "map[zero-gather", "compute[gather", "it[7-5-gather")),

    Function(3, "kernels.relative_scores", 7, "from rows to the map, by a view",
        KERNELS, ("all_queries[relative", "order[relative", "query[relative", "map[clip-relative",
            "map[zero-relative", "compute[relative", "it[7-5-relative")),
    Function(3, "kernels.sum_bands_of_strip", 5, "the sums of the diagonals",
        KERNELS, ("band_sums", "drawing_of_sum_bands", "map_has_a_gradient")),
    Function(3, "kernels.key_scores", 4, "rows that belong to the keys",
        KERNELS, ("key_scores",)),
    Function(3, "kernels.convolve", 4, "a convolution as a band matrix",
        KERNELS, ("convolve",)),

    Function(4, "attention.depthwise_convolution", 4, "a kernel per channel",
        ATTENTION, ("over_dilated_positions", "drawing_of_depthwise")),
    Function(4, "attention.HalfConvolution.forward", 3, "half convolution",
        ATTENTION, ("half_convolution_alone",)),
    Function(4, "attention.GatedConvolution.gate", 3, "the gated linear unit",
        ATTENTION, ("gate_alone",)),
    Function(4, "attention.LightConv.convolution", 3, "LightConv",
        ATTENTION, ("loops[lightconv-0", "loops[dilated-1", "loops[dilated-4", "dropconnect")),
    Function(4, "attention.DynamicConv.convolution", 3, "DynamicConv",
        ATTENTION, ("other_kernel_sizes[dynamicconv-3", "other_kernel_sizes[dynamicconv-13",
            "dynamicconv_drops")),
    Function(4, "attention.ConvBert.forward", 4, "ConvBERT",
        ATTENTION, ("other_kernel_sizes[convbert-3", "other_kernel_sizes[convbert-13",
            "convbert_drops", "otherwise[convbert")),

    Function(5, "data.mask_tokens", 6, "hide some tokens",
        MASKING, ("_tokens_", "of_the_chosen", "ordinary_id", "masks_", "one_random_number")),
    Function(5, "model.masked_lm_loss", 3, "the loss",
        MODEL, ("masked_lm_loss", "without_any_masked_token")),
    Function(5, "pretrain.learning_rate", 3, "the learning rate of a step",
        TRAINING, ("learning_rate_rises",)),
    Function(5, "pretrain.Trainer.update", 5, "one step of the optimizer",
        TRAINING, ("_gradients_", "rate_of_the_schedule", "step_counts", "loss_of_a_step")),
    Function(5, "pretrain.evaluate", 3, "the held-out loss",
        TRAINING, ("evaluation",)),
)
# fmt: on


def pytest_command(functions):
    """The command that runs the tests of these functions, as a list of words."""
    files = []
    words = []
    for function in functions:
        path = f"tests/science/{function.file}"
        if path not in files:
            files.append(path)
        words += function.words
    return ["python", "-m", "pytest", "-q", *files, "-k", " or ".join(words)]
