"""The paper's figures, drawn from a trained model.

    python -m lab.figures attention RUN "the dog barks." --layer 1 --head 2   Chang figure 1
    python -m lab.figures fixed RUN                                           Chang figure 2
    python -m lab.figures depthwise RUN --layer 4                             Chang figure 3
    python -m lab.figures dynamic RUN "the dog barks." --layer 1 --head 2     kernel of each token
    python -m lab.figures loss RUN RUN ...                                    loss curves

RUN is a folder that pretrain.py wrote. Layers and heads count from 1. A figure becomes the file
RUN/figures/NAME.png (of the first RUN), or the file that --out names. Drawing needs matplotlib (pip
install matplotlib). Letters as in attention.py.
"""

import argparse
from pathlib import Path

import numpy as np

from lab.look import (
    attention_map,
    depthwise_kernels,
    dynamic_kernels,
    encode_sentence,
    fixed_kernels,
    is_clipped,
)
from model import load_run
from support.commands import UserError, import_optional, positive_int, run_command
from support.runs import read_log

# Colours that colour-blind readers can tell apart: these, and those of the lines (load_pyplot).
BLUE = "#0072B2"
RED = "#D55E00"


def load_pyplot():
    """matplotlib's pyplot, set up for files."""
    import_optional("matplotlib").use("Agg")  # it draws into files and needs no display
    pyplot = import_optional("matplotlib.pyplot")

    # small figures with small letters
    pyplot.style.use("tableau-colorblind10")
    pyplot.rcParams.update(
        {
            "font.size": 8,
            "axes.titlesize": 8,
            "figure.dpi": 200,
            "figure.constrained_layout.use": True,
            "text.parse_math": False,  # "$" is a dollar sign
        }
    )
    return pyplot


def of_head(array, head):
    """What belongs to a head: array (H, ...), head counts from 1."""
    if head > len(array):
        raise UserError(f"there is no head {head} of this kind: the layer has {len(array)}")
    return array[head - 1]


def own_column(model, weights):
    """The column of the token itself, r = 0: the middle one, in a causal model the last one."""
    return weights - 1 if model.config.causal else weights // 2


def offset_axis(axis, model, weights, clipped=False):
    """Label the columns of so many weights with their offset r: the ends, and 0.

    If `clipped`, the ends are labelled as what they are, k or more tokens away.
    """
    own = own_column(model, weights)
    left, right = ("≤", "≥") if clipped else ("", "+")
    labels = {0: f"{left}{-own}", weights - 1: f"{right}{weights - 1 - own}"}
    labels[own] = "0"  # in a causal model, this is also the right end
    axis.set_xticks(list(labels), list(labels.values()))
    axis.set_xlabel("r = j - i (tokens)")


# --- The figures: each function gets a model and the options, and returns a figure ----------------


def draw_attention(model, tokenizer, args):
    """Chang figure 1: the attention weights of a head, next to those of its positions alone."""
    # the two matrices, (H, N, N) each
    ids, pieces = encode_sentence(model, tokenizer, args.sentence)
    matrices = {
        "attention: content and positions": attention_map(model, ids, args.layer),
        "kernel alone: positions without content": attention_map(
            model, ids, args.layer, with_content=False
        ),
    }

    # side by side
    figure, axes = load_pyplot().subplots(1, 2, figsize=(6.3, 3.4), sharey=True)
    for axis, (title, p) in zip(axes, matrices.items(), strict=True):
        image = axis.imshow(of_head(p, args.head), cmap="cividis", vmin=0, vmax=1)
        axis.set(title=title, xlabel="key j")
        axis.set_xticks(range(len(pieces)), pieces, rotation=90)
        axis.set_yticks(range(len(pieces)), pieces)
    axes[0].set_ylabel("query i")
    figure.colorbar(image, ax=axes, label="attention weight (a line sums to 1)", shrink=0.8)
    return figure


def draw_fixed(model, tokenizer, args):
    """Chang figure 2: the fixed kernel of each layer (from top to bottom) and head."""
    kernels = fixed_kernels(model)  # {layer: (H, K)}
    layers = len(kernels)
    H, K = next(iter(kernels.values())).shape

    # the weight of the token itself in another colour
    colours = [BLUE] * K
    colours[own_column(model, K)] = RED

    # one line of small charts per layer
    height = 0.7 + 0.75 * layers  # inches
    figure, axes = load_pyplot().subplots(
        layers, H, squeeze=False, sharex=True, sharey=True, figsize=(6.3, height)
    )
    for charts, (layer, heads) in zip(axes, kernels.items(), strict=True):
        for axis, p in zip(charts, heads, strict=True):
            axis.bar(range(K), p, color=colours, width=0.9)
            axis.axhline(1 / K, color="0.4", linewidth=0.6, linestyle=":")
            offset_axis(axis, model, K, is_clipped(model))
            axis.label_outer()

        # the weights of a dilated kernel are several tokens apart
        dilation = getattr(model.bert.layers[layer - 1].mixer, "dilation", 1)
        label = f"layer {layer}"
        if dilation > 1:
            label += f"\nsteps of {dilation}"
        charts[0].set_ylabel(label)
    for head, axis in enumerate(axes[0], 1):
        axis.set_title(f"head {head}")
    figure.supylabel("kernel: softmax over r of the bias (dotted: all equal)", fontsize=8)
    return figure


def draw_depthwise(model, tokenizer, args):
    """Chang figure 3: depthwise kernels, one line per channel, sorted by `channel_order`."""
    kernels = depthwise_kernels(model, args.layer)  # {of what: (C, K)}
    limit = max(np.abs(weight).max() for weight in kernels.values())

    # one column of the figure per convolution; white is 0 in all of them
    width = 1.2 + 2.1 * len(kernels)  # inches
    figure, axes = load_pyplot().subplots(
        1, len(kernels), squeeze=False, sharey=True, figsize=(width, 4)
    )
    for axis, (name, weight) in zip(axes[0], kernels.items(), strict=True):
        image = axis.imshow(weight, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto")
        axis.set_title(f"convolution {name}")
        offset_axis(axis, model, weight.shape[1])
    axes[0][0].set_ylabel("channel, sorted by the position of its largest weight")
    figure.colorbar(image, ax=axes, label="weight")
    return figure


def draw_dynamic(model, tokenizer, args):
    """The kernel that each token of a sentence makes in one head, one line per token."""
    ids, pieces = encode_sentence(model, tokenizer, args.sentence)
    kernels = of_head(dynamic_kernels(model, ids, args.layer), args.head)  # (N, K)

    figure, axis = load_pyplot().subplots(figsize=(4, 0.9 + 0.17 * len(pieces)))
    image = axis.imshow(kernels, cmap="cividis", vmin=0, aspect="auto")
    axis.set_yticks(range(len(pieces)), pieces)
    axis.set_ylabel("token i that makes the kernel")
    offset_axis(axis, model, kernels.shape[-1], is_clipped(model))
    figure.colorbar(image, ax=axis, label="kernel: softmax over r of the bias")
    return figure


def draw_loss(folders):
    """Held-out loss against steps, one line per run."""
    figure, axis = load_pyplot().subplots(figsize=(6.3, 3.6))
    axis.set(xlabel="optimizer steps", ylabel="held-out loss (nats)")
    for folder in folders:
        log = read_log(folder)
        points = [(line["step"], line["held_out_loss"]) for line in log if "held_out_loss" in line]
        if not points:
            raise UserError(f"{folder} has no held-out loss yet")
        steps, losses = np.transpose(points)  # (points,) each
        axis.plot(steps, losses, ".-", linewidth=0.8, label=str(folder))
    axis.legend()
    return figure


# --- The command line -----------------------------------------------------------------------------

FIGURES = {
    "attention": draw_attention,
    "fixed": draw_fixed,
    "depthwise": draw_depthwise,
    "dynamic": draw_dynamic,
}


def parse_arguments(arguments):
    """The command line's values."""
    parser = argparse.ArgumentParser(description="Draw a figure of the paper from a run.")
    commands = parser.add_subparsers(dest="figure", required=True)
    for name in (*FIGURES, "loss"):
        add = commands.add_parser(name).add_argument
        add("--out", type=Path, metavar="FILE.png", help="default: RUN/figures/NAME.png")
        count = "+" if name == "loss" else 1
        add("runs", nargs=count, type=Path, metavar="RUN", help="folder that pretrain.py wrote")
        if name in ("attention", "dynamic"):
            add("sentence", help='in quotation marks, as in "the dog barks."')
            add("--head", type=positive_int, default=1, help="from 1 (default: 1)")
        if name in ("attention", "dynamic", "depthwise"):
            add("--layer", type=positive_int, default=1, help="from 1 (default: 1)")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Draw the figures that the command line names, and print the paths of their files."""
    args = parse_arguments(arguments)
    if args.figure == "loss":
        figure = draw_loss(args.runs)
    else:
        figure = FIGURES[args.figure](*load_run(args.runs[0], needs_head=False), args)
    path = args.out or args.runs[0] / "figures" / f"{args.figure}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(path)


if __name__ == "__main__":
    run_command(main)
