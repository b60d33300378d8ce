"""ASSIGNMENT.md, which `python -m course blank` writes into the copy: what to write, and the rules.

It is made from the table in course/parts.py. TESTS says which of the project's own tests are about
a function: a file or folder in tests/science, and what follows `pytest -k`. NEEDS says which other
graded functions must be complete for them.
"""

from course.parts import PARTS
from course.rules import may_use

ATTENTION = "test_attention.py"
KERNELS = "test_kernels.py"
TRAINING = "test_training.py"

# fmt: off
TESTS = {
    "attention.split_heads": (ATTENTION, "heads_are"),
    "attention.merge_heads": (ATTENTION, "heads_are"),
    "attention.lowest_at_padding": (ATTENTION, "lowest_score"),
    "attention.drop": (ATTENTION, "dropout_sets or dropout_from"),
    "attention.attention": (ATTENTION,
        "attention_alone or without_terms or scores_are or padding_gets"),

    "attention.Fixed.forward": (ATTENTION, "rows_of_the_fixed"),
    "attention.Dynamic.forward": (ATTENTION, "rows_of_the_dynamic and not key_dynamic"),
    "attention.KeyDynamic.forward": (ATTENTION, "rows_of_the_dynamic and key_dynamic"),
    "kernels.gather_scores": (KERNELS, "gather_scores"),

    "kernels.relative_scores": (KERNELS, "relative_scores and not gather_scores"),
    "kernels.sum_bands_of_strip": (KERNELS, "sum_bands or band_sums"),
    "kernels.key_scores": (KERNELS, "key_scores"),
    "kernels.convolve": (KERNELS, "convolve"),

    "attention.depthwise_convolution": (ATTENTION, "depthwise_convolution"),
    "attention.HalfConvolution.forward": (ATTENTION, "half_convolution_alone"),
    "attention.GatedConvolution.gate": (ATTENTION, "gate_alone"),
    "attention.LightConv.convolution": (ATTENTION,
        "(every_layer_of and not dynamicconv) or dropconnect"),
    "attention.DynamicConv.convolution": (ATTENTION,
        "dynamicconv_drops or (loops_at_other and dynamicconv)"),
    "attention.ConvBert.forward": (ATTENTION, "convbert_drops or (loops_at_other and convbert)"),

    "data.mask_tokens": ("test_masking.py", "tokens or masks"),
    "model.masked_lm_loss": ("", "masked_lm_loss"),
    "pretrain.learning_rate": (TRAINING, "learning_rate_rises"),
    "pretrain.make_optimizer": (TRAINING, "tables_decay or papers_betas"),
    "pretrain.Trainer.update": (TRAINING, "gradients"),
    "pretrain.train_step": (TRAINING,
        "(steps_are_those or every_step_takes or every_step_sets or masks_of_its_own "
        "or dropout_of_its_own or step_counts) and not composite"),
    "pretrain.evaluate": (TRAINING, "evaluation and not composite"),
}

NEEDS = {
    "attention.split_heads": ("attention.merge_heads",),
    "attention.merge_heads": ("attention.split_heads",),
    "kernels.sum_bands_of_strip": ("kernels.relative_scores",),  # the gradient of its tests
    "kernels.key_scores": ("kernels.relative_scores", "kernels.sum_bands_of_strip"),
    "kernels.convolve": ("kernels.relative_scores", "kernels.sum_bands_of_strip"),
    "pretrain.Trainer.update": ("pretrain.learning_rate", "pretrain.make_optimizer"),
    "pretrain.train_step": ("data.mask_tokens", "model.masked_lm_loss", "pretrain.learning_rate",
        "pretrain.make_optimizer", "pretrain.Trainer.update"),
    "pretrain.evaluate": ("data.mask_tokens", "pretrain.make_optimizer"),
}
# fmt: on

RULES = """\
# The assignment

In this copy of the project the bodies of {count} functions are blank: each one raises
`NotImplementedError`. Write them. The docstring of the function or of its class gives the equation
and the shapes; letters such as B, H, N, d, k and K are explained at the top of attention.py.
course/handout.md, if it is there, explains the theory and asks the questions.

Keep names and arguments. The grader takes each function alone: helper functions, constants and
imports that you add at the top of a file are not there. Define helpers inside the function. Do not
import inside a function: use what its file imports. Give your variables other names than those of
the functions and imports of the file. Loops over heads or over the K weights of a row are fine. In
parts 1 to 4, a function whose number of tensor operations grows with the number of positions gets 0
points.

When a function is graded, all other functions are the original ones. Each command below runs the
tests of one function, with stand-ins for the functions of other parts. If these tests need more
functions of yours, the text names them. Other tests of the project use your functions together:
they may also fail because another function is still blank or wrong. With `-x --tb=short`, pytest
stops at the first failure and prints less.
"""


def assignment_text(blanked):
    """The text of ASSIGNMENT.md for these lines of the table."""
    lines = [RULES.format(count=len(blanked))]
    for part in sorted({function.part for function in blanked}):
        own = [function for function in blanked if function.part == part]
        points = sum(function.points for function in own)
        lines.append(f"## Part {part}: {PARTS[part]} ({points} points)\n")

        # each function, and its tests as a command to copy
        for function in own:
            lines.append(f"`{function.name}`, {function.points} points: {function.title}\n")
            names = [f"`{name}`" for name in may_use(function)]
            if names:
                lines.append(f"It may use {', '.join(names)} of the project.\n")
            needed = [f"`{name}`" for name in NEEDS.get(function.name, ())]
            if needed:
                lines.append(f"Its tests also need your {', '.join(needed)}.\n")
            lines.append(f"    {test_command(function.name)}\n")
    return "\n".join(lines)


def test_command(name):
    """The command that runs the tests of a function."""
    file, expression = TESTS[name]
    path = f"tests/science/{file}".rstrip("/")
    return f'python -m pytest -q {path} -k "{expression}"'
