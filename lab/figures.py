"""The paper's figures, drawn from a trained model.

    python -m lab.figures attention RUN "the dog barks." --layer 1 --head 2   [C] figure 1
    python -m lab.figures fixed RUN                                           [C] figure 2
    python -m lab.figures depthwise RUN --layer 4                             [C] figure 3
    python -m lab.figures dynamic RUN "the dog barks." --layer 1 --head 2     kernel of each token
    python -m lab.figures loss RUN RUN ...                                    loss curves

RUN is a folder that pretrain.py wrote. Layers and heads count from 1. A figure becomes the file
RUN/figures/NAME.png (of the first RUN), or the file that --out names. Drawing needs matplotlib (pip
install matplotlib). Letters as in attention.py.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from lab.look import (
    attention_map,
    depthwise_kernels,
    dynamic_kernels,
    encode,
    fixed_kernels,
    is_clipped,
)
from model import load_run
from support.commands import UserError, positive_int, run_command

# Colours that colour-blind readers can tell apart (Okabe and Ito 2008).
BLUE = "#0072B2"
RED = "#D55E00"
COLOURS = (BLUE, RED, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def load_pyplot():
    """matplotlib's pyplot, set up for files."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("drawing needs a package: pip install matplotlib") from None

    matplotlib.use("Agg")  # it draws into files and needs no display
    from matplotlib import pyplot

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


def relative_axis(axis, K, clipped=False):
    """Label the columns of K weights with their relative position: -k, 0 and k.

    If `clipped`, the ends are labelled as what they are, k or more tokens away.
    """
    k = K // 2
    ends = (f"{-k}", f"{k:+d}")
    if clipped:
        ends = (f"\u2264{-k}", f"\u2265{k}")  # <= and >=
    axis.set_xticks([0, k, K - 1], [ends[0], "0", ends[1]])
    axis.set_xlabel("r = j - i (tokens)")


# --- The figures: each function gets a model and the options, and returns a figure ----------------


def draw_attention(model, tokenizer, args):
    """[C] figure 1: the attention map of a head, next to the map of its position terms alone."""
    ids, pieces = encode(model, tokenizer, args.sentence)
    maps = {
        "attention: content and positions": attention_map(model, ids, args.layer),
        "kernel alone: positions without content": attention_map(
            model, ids, args.layer, with_content=False
        ),
    }

    figure, axes = load_pyplot().subplots(1, 2, figsize=(6.3, 3.4), sharey=True)
    for axis, (title, p) in zip(axes, maps.items(), strict=True):
        image = axis.imshow(of_head(p, args.head), cmap="cividis", vmin=0, vmax=1)
        axis.set(title=title, xlabel="key j")
        axis.set_xticks(range(len(pieces)), pieces, rotation=90)
        axis.set_yticks(range(len(pieces)), pieces)
    axes[0].set_ylabel("query i")
    figure.colorbar(image, ax=axes, label="weight (a line sums to 1)", shrink=0.8)
    return figure


def draw_fixed(model, tokenizer, args):
    """[C] figure 2: the fixed kernel of each layer (from top to bottom) and head."""
    kernels = fixed_kernels(model)  # {layer: (H, K)}
    layers = len(kernels)
    H, K = next(iter(kernels.values())).shape

    # the weight of the token itself in another colour
    colours = [BLUE] * K
    colours[K // 2] = RED

    # one line of small charts per layer; more layers make each of them lower
    height = 0.7 + max(0.55, 0.9 - 0.03 * layers) * layers  # inches
    figure, axes = load_pyplot().subplots(
        layers, H, squeeze=False, sharex=True, sharey=True, figsize=(6.3, height)
    )
    for charts, (layer, heads) in zip(axes, kernels.items(), strict=True):
        for axis, p in zip(charts, heads, strict=True):
            axis.bar(range(K), p, color=colours, width=0.9)
            axis.axhline(1 / K, color="0.4", linewidth=0.6, linestyle=":")
            relative_axis(axis, K, is_clipped(model))
            axis.label_outer()

        # the weights of a dilated kernel are several tokens apart
        dilation = getattr(model.bert.layers[layer - 1].mixer, "dilation", 1)
        label = f"layer {layer}"
        if dilation > 1:
            label += f"\nsteps of {dilation}"
        charts[0].set_ylabel(label)
    for head, axis in enumerate(axes[0], 1):
        axis.set_title(f"head {head}")
    figure.supylabel("kernel: softmax over r of the row (dotted: all equal)", fontsize=8)
    return figure


def draw_depthwise(model, tokenizer, args):
    """[C] figure 3: depthwise kernels, one line per channel, sorted by `channel_order`."""
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
        relative_axis(axis, weight.shape[1])
    axes[0][0].set_ylabel("channel, sorted by the position of its largest weight")
    figure.colorbar(image, ax=axes, label="weight")
    return figure


def draw_dynamic(model, tokenizer, args):
    """The kernel that each token of a sentence makes in one head, one line per token."""
    ids, pieces = encode(model, tokenizer, args.sentence)
    kernels = of_head(dynamic_kernels(model, ids, args.layer), args.head)  # (N, K)

    figure, axis = load_pyplot().subplots(figsize=(4, 0.9 + 0.17 * len(pieces)))
    image = axis.imshow(kernels, cmap="cividis", vmin=0, aspect="auto")
    axis.set_yticks(range(len(pieces)), pieces)
    axis.set_ylabel("token i that makes the kernel")
    relative_axis(axis, kernels.shape[-1], is_clipped(model))
    figure.colorbar(image, ax=axis, label="kernel: softmax over r of the row")
    return figure


def draw_loss(folders):
    """Held-out loss against steps, one line per run; the training loss as a thin line."""
    figure, axis = load_pyplot().subplots(figsize=(6.3, 3.0 + 0.15 * len(folders)))
    for number, folder in enumerate(folders):
        path = folder / "log.jsonl"
        if not path.is_file():
            raise UserError(f"{folder} is not a run of pretrain.py: it has no log.jsonl")
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

        # two lines in one colour
        colour = COLOURS[number % len(COLOURS)]
        for name, style in (
            ("loss", {"linewidth": 0.6, "alpha": 0.5}),
            ("held_out_loss", {"marker": ".", "label": str(folder)}),
        ):
            points = [line for line in lines if name in line]
            steps = [point["step"] for point in points]
            losses = [point[name] for point in points]
            axis.plot(steps, losses, color=colour, **style)

    axis.set_xlabel("optimizer steps")
    axis.set_ylabel("masked-token loss (nats)\nthin: training; dots: held-out")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


# --- The command line -----------------------------------------------------------------------------

FIGURES = {
    "attention": draw_attention,
    "fixed": draw_fixed,
    "depthwise": draw_depthwise,
    "dynamic": draw_dynamic,
}


def parse_arguments(arguments=None):
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
    """Draw the figure that the command line names, and print the path of its file."""
    args = parse_arguments(arguments)
    if args.figure == "loss":
        figure = draw_loss(args.runs)
    else:
        figure = FIGURES[args.figure](*load_run(args.runs[0]), args)

    path = args.out or args.runs[0] / "figures" / f"{args.figure}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(path)


if __name__ == "__main__":
    run_command(main)
