"""What is blanked and graded: which function belongs to which part, and its points.

The table names the functions of the six files; it holds no copy of their code. A function is named
by its file and its name there: "attention.Fixed.forward" is in attention.py. To move the course to
other functions, change the table, and give each new function cases (course/cases.py), known
mistakes (course/mistakes.py) and its tests (course/assignment.py).
"""

import argparse
import ast
import functools
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

PARTS = {
    1: "content and scaled softmax, with padding",
    2: "the fixed and the dynamic term, and what lies beyond the kernel",
    3: "the equivalences: a convolution as a band matrix",
    4: "depthwise convolution, LightConv, DynamicConv, ConvBERT",
    5: "masks, loss, learning rate, training",
    6: "an experiment of your own",  # written work: nothing is blanked or graded by code
}


class Function(NamedTuple):
    """One line of the table."""

    part: int
    name: str  # file and name in it
    points: int  # 0: not blanked and not graded, but its known mistakes must be noticed
    title: str = ""  # what the blank says: "part 2: the dynamic term"
    may_not: tuple[str, ...] = ()  # names that the body may not use
    may: tuple[str, ...] = ()  # functions that it may call in addition to the original's


# Ready-made attention would answer part 1 in one line.
READY = ("scaled_dot_product_attention", "MultiheadAttention", "multi_head_attention_forward")
# relative_scores and sum_bands_of_strip must work without an index.
INDEX = ("gather", "take_along_dim", "index_select", "take", "index_put", "index_put_")
INDEX += ("index_add", "index_add_", "scatter", "scatter_", "scatter_add", "scatter_add_")
# These make the map of scores. key_scores and convolve may call them.
MAPS = ("relative_scores", "gather_scores", "extra_columns")

# fmt: off
FUNCTIONS = (
    Function(1, "attention.split_heads", 2, "split the channels into heads"),
    Function(1, "attention.merge_heads", 2, "merge the heads"),
    Function(1, "attention.lowest_at_padding", 4, "no attention to padding"),
    Function(1, "attention.drop", 4, "dropout"),
    Function(1, "attention.attention", 8, "attention", may_not=READY),

    Function(2, "attention.Fixed.forward", 4, "the fixed term"),
    Function(2, "attention.Dynamic.forward", 4, "the dynamic term"),
    Function(2, "attention.KeyDynamic.forward", 4, "the key's dynamic term"),
    Function(2, "kernels.gather_scores", 8, "from rows to the map, by an index"),

    Function(3, "kernels.relative_scores", 7, "from rows to the map, by a view", may_not=INDEX),
    Function(3, "kernels.sum_bands_of_strip", 5, "the sums of the diagonals", may_not=INDEX),
    Function(3, "kernels.key_scores", 4, "rows that belong to the keys", may=MAPS),
    Function(3, "kernels.convolve", 4, "a convolution as a band matrix", may=MAPS),

    Function(4, "attention.depthwise_convolution", 4, "a kernel per channel"),
    Function(4, "attention.HalfConvolution.forward", 3, "half convolution"),
    Function(4, "attention.GatedConvolution.gate", 3, "the gated linear unit"),
    Function(4, "attention.LightConv.convolution", 3, "LightConv"),
    Function(4, "attention.DynamicConv.convolution", 3, "DynamicConv"),
    Function(4, "attention.ConvBert.forward", 4, "ConvBERT", may_not=READY, may=("drop",)),

    Function(5, "data.mask_tokens", 4, "hide some tokens"),
    Function(5, "model.masked_lm_loss", 2, "the loss"),
    Function(5, "pretrain.learning_rate", 2, "the learning rate of a step"),
    Function(5, "pretrain.make_optimizer", 3, "which parameters decay"),
    Function(5, "pretrain.Trainer.update", 3, "one step of the optimizer"),
    Function(5, "pretrain.train_step", 4, "one step of the training"),
    Function(5, "pretrain.evaluate", 2, "the held-out loss"),

    # The functions that connect them. Students get these as they are.
    Function(1, "attention.SelfAttention.forward", 0),
    Function(1, "attention.SelfAttention.project", 0),
    Function(1, "attention.SelfAttention.sum_of_rows", 0),
    Function(1, "attention.zero_padding", 0),
    Function(2, "attention.relative_table", 0),
    Function(3, "kernels.extra_columns", 0),
    Function(3, "kernels.AddBand", 0),
    Function(3, "kernels.sum_bands", 0),
    Function(3, "kernels.zeros_to_sum", 0),
    Function(3, "kernels.attend_block", 0),
    Function(4, "attention.GatedConvolution.forward", 0),
    Function(4, "attention.LightConv.__init__", 0),
    Function(4, "attention.DynamicConv.kernel_logits", 0),
    Function(4, "attention.ConvBert.kernel_logits", 0),
    Function(5, "model.Embeddings.forward", 0),
    Function(5, "model.Layer.forward", 0),
    Function(5, "model.Bert.forward", 0),
    Function(5, "model.initialise", 0),
    Function(5, "model.BertForMaskedLM", 0),
    Function(5, "model.masked_indices", 0),
    Function(5, "model.BertForClassification.forward", 0),
    Function(5, "glue.classify", 0),
    Function(5, "pretrain.Recipe", 0),
    Function(5, "pretrain.step_seed", 0),
    Function(5, "data.Corpus.most_frequent_token", 0),
)
# fmt: on

GRADED = tuple(function for function in FUNCTIONS if function.points > 0)


def part_range(text):
    """argparse type: "2" is (2,), and "1-3" is (1, 2, 3)."""
    first, _, last = text.partition("-")
    last = last or first
    if not (first.isdecimal() and last.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part (2) or a range of parts (1-3)")
    if int(first) > int(last):
        raise argparse.ArgumentTypeError(f"{text!r}: write the smaller number first")
    parts = tuple(range(int(first), int(last) + 1))
    if not set(parts) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"{text!r}: the parts are 1 to {max(PARTS)}")
    return parts


# --- Where a function is in its file --------------------------------------------------------------


def file_of(name):
    """The file of a function: "attention.py" for "attention.Fixed.forward"."""
    return name.split(".")[0] + ".py"


def find(tree, name):
    """The node of a function or class in the syntax tree of its file; None if it is not there.

    If it is defined twice, the second definition counts, as in Python.
    """
    node = tree
    for part in name.split(".")[1:]:
        found = None
        for child in node.body:
            is_definition = isinstance(child, (ast.FunctionDef, ast.ClassDef))
            if is_definition and child.name == part:
                found = child
        if found is None:
            return None
        node = found
    return node


def body_without_docstring(node):
    """The statements of a function, without its docstring."""
    if ast.get_docstring(node, clean=False) is None:
        return node.body
    return node.body[1:]


def replace_body(text, name, body):
    """The text of a file in which the body of a function, after its docstring, is `body`.

    Everything else is byte for byte the same. `body` has no indentation.
    """
    # the lines of the old body, counted from 1
    node = find(ast.parse(text), name)
    statements = body_without_docstring(node)
    first = statements[0].lineno
    if len(statements) < len(node.body):
        first = node.body[0].end_lineno + 1  # comments before the first statement go, too
    last = node.end_lineno

    # the new body, as deep as the old one
    indentation = " " * statements[0].col_offset
    new = [f"{indentation}{line}".rstrip() for line in body.splitlines()]
    lines = text.split("\n")
    return "\n".join(lines[: first - 1] + new + lines[last:])


def read_source(name):
    """The text of the project's own file that holds a function."""
    return source_and_tree(file_of(name))[0]


def original(name):
    """The syntax tree of a function or class in the project's own file."""
    return find(source_and_tree(file_of(name))[1], name)


@functools.cache
def source_and_tree(file):
    """The text and the syntax tree of one of the project's files, read once."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return text, ast.parse(text)
