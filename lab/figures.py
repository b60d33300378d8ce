"""The papers' figures, drawn from a trained model.

    python -m lab.figures attention RUN "the dog barks." --layer 1 --head 2   [C] figure 1
    python -m lab.figures fixed RUN                                           [C] figure 2
    python -m lab.figures depthwise RUN --layer 4                             [C] figure 3
    python -m lab.figures dynamic RUN "the dog barks." --layer 1 --head 2     kernel of each token
    python -m lab.figures loss RUN RUN ...                                    loss curves
    python -m lab.figures idea                                                the idea in a picture

RUN is a folder that pretrain.py wrote. Layers and heads count from 1.

Each command writes a PNG file: to RUN/figures (`loss`: of the first RUN), or to --out. `idea` goes
to docs/idea.png by default. Drawing needs matplotlib (pip install matplotlib). Letters as in
attention.py.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import json
import math
from pathlib import Path

import numpy as np

from lab.idea import draw_idea
from lab.look import (
    attention_maps,
    depthwise_kernels,
    dilation_of,
    dynamic_kernels,
    encode,
    fixed_kernels,
    is_clipped,
    mixer_of,
)
from model import load_run
from support.commands import UserError, positive_int, run_command

# Colours that colour-blind readers can tell apart (Okabe and Ito 2008).
BLUE = "#0072B2"
RED = "#D55E00"
COLOURS = (BLUE, RED, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")  # for more lines than there are colours


# --- Drawing --------------------------------------------------------------------------------------


def load_pyplot():
    """matplotlib's pyplot, set up for files. Raises UserError if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise UserError(
            "drawing needs matplotlib, which is optional: pip install matplotlib"
        ) from None

    # "Agg" draws into files and needs no display.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 8,
            "axes.titlesize": 8,
            "legend.fontsize": 7,
            "figure.dpi": 100,
            "figure.constrained_layout.use": True,
            "text.parse_math": False,  # "$" is a dollar sign
        }
    )
    return pyplot


def draw_attention(model, ids, pieces, layer, head):
    """[C] figure 1: the attention map of a head, next to the map of its position terms alone."""
    maps = attention_maps(model, ids, layer, head)
    titles = ("attention: content and positions", "kernel alone: positions without content")

    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(1, 2, figsize=(6.3, 3.4), sharey=True)
    for axis, p, title in zip(axes, maps, titles, strict=True):
        image = axis.imshow(p, cmap="cividis", vmin=0, vmax=1)
        axis.set(title=title, xlabel="key j", xticks=range(len(pieces)), yticks=range(len(pieces)))
        axis.set_xticklabels(pieces, rotation=90)
        axis.set_yticklabels(pieces)
    axes[0].set_ylabel("query i")
    figure.colorbar(image, ax=axes, label="weight (a row sums to 1)", shrink=0.8)
    return figure


def relative_axis(axis, K, clipped=False):
    """Label the columns of K weights with their relative position: -k, 0 and k.

    If `clipped`, the ends are labelled as what they are, k or more tokens away.
    """
    k = K // 2
    if k == 0:
        axis.set_xticks([0], ["0"])
    elif clipped:
        axis.set_xticks([0, k, K - 1], [f"\u2264{-k}", "0", f"\u2265{k}"])  # <= and >=
    else:
        axis.set_xticks([0, k, K - 1], [f"{-k}", "0", f"{k:+d}"])


def draw_fixed(model):
    """[C] figure 2: the fixed kernel of each layer (row) and head (column)."""
    kernels = fixed_kernels(model)
    layers = len(kernels)
    first_layer = min(kernels)
    H, K = kernels[first_layer].shape

    # the weight of the token itself in another colour
    colours = [BLUE] * K
    colours[K // 2] = RED

    # one row of small charts per layer; more layers make each of them lower
    pyplot = load_pyplot()
    row_height = max(0.55, 0.9 - 0.03 * layers)  # inches
    figure, axes = pyplot.subplots(
        layers,
        H,
        squeeze=False,
        sharex=True,
        sharey=True,
        figsize=(6.3, 0.5 + row_height * layers),
    )
    for row, (layer, heads) in zip(axes, kernels.items(), strict=True):
        for head, (axis, p) in enumerate(zip(row, heads, strict=True), 1):
            axis.bar(range(K), p, color=colours, width=0.9)
            axis.axhline(1 / K, color="0.4", linewidth=0.6, linestyle=":")
            relative_axis(axis, K, is_clipped(model))
            if layer == first_layer:
                axis.set_title(f"head {head}")
        row[0].set_ylabel(label_of_layer(model, layer))

    figure.supxlabel("relative position r (tokens; r = 0 in the other colour)", fontsize=8)
    figure.supylabel("softmax over r of the kernel (dotted: all equal)", fontsize=8)
    return figure


def label_of_layer(model, layer):
    """Beside a row of charts: "layer 2", and how far apart the weights of a dilated kernel are."""
    dilation = dilation_of(mixer_of(model, layer))
    if dilation == 1:
        return f"layer {layer}"
    return f"layer {layer}\nsteps of {dilation}"


def draw_depthwise(model, layer):
    """[C] figure 3: depthwise kernels, one row per channel, sorted by `channel_order`."""
    kernels = depthwise_kernels(model, layer)
    limit = max(np.abs(weight).max() for weight in kernels.values())

    # one column of the figure per convolution; white is 0 in all of them
    pyplot = load_pyplot()
    width = min(6.3, 1.2 + 2.1 * len(kernels))
    figure, axes = pyplot.subplots(1, len(kernels), squeeze=False, sharey=True, figsize=(width, 4))
    for axis, (name, weight) in zip(axes[0], kernels.items(), strict=True):
        image = axis.imshow(
            weight, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest"
        )
        axis.set_title(f"convolution {name}")
        relative_axis(axis, weight.shape[1])
        axis.set_xlabel("relative position r (tokens)")
    axes[0][0].set_ylabel("channel, sorted by the position of its largest weight")
    figure.colorbar(image, ax=axes, label="weight")
    return figure


def draw_dynamic(model, ids, pieces, layer, head):
    """The kernel that each token of a sentence makes in one head, one row per token."""
    # Is there such a head? ConvBERT has convolutions in only half of its heads.
    mixer_of(model, layer, head)
    kernels = dynamic_kernels(model, ids, layer)  # (H, N, K)
    if head > len(kernels):
        raise UserError(
            f"there is no convolution head {head}: "
            f"a layer of {model.config.variant} has {len(kernels)}"
        )

    pyplot = load_pyplot()
    figure, axis = pyplot.subplots(figsize=(4, 0.9 + 0.17 * len(pieces)))
    image = axis.imshow(kernels[head - 1], cmap="cividis", vmin=0, aspect="auto")
    axis.set_yticks(range(len(pieces)), pieces)
    axis.set_ylabel("token i that makes the kernel")
    relative_axis(axis, kernels.shape[-1], is_clipped(model))
    axis.set_xlabel("relative position r (tokens)")
    figure.colorbar(image, ax=axis, label="softmax over r of the dynamic kernel")
    return figure


def style_of_line(number):
    """Colour and dashes of line 0, 1, 2, ... of a chart; 28 lines differ."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }


def read_curves(folder):
    """{"training": [(step, loss), ...], "held-out": [...]} from the log of a run.

    Raises UserError if there is no log, or if it has no losses.
    """
    path = Path(folder) / "log.jsonl"
    if not path.is_file():
        raise UserError(f"{folder} is not a run of pretrain.py: it has no log.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    training = [line for line in lines if "loss" in line]
    evaluations = [line for line in lines if "held_out_loss" in line]
    if not training and not evaluations:
        raise UserError(f"{folder}/log.jsonl has no losses yet")
    return {
        "training": [(line["step"], line["loss"]) for line in training],
        "held-out": [(line["step"], line["held_out_loss"]) for line in evaluations],
    }


def draw_loss(folders):
    """Held-out loss against steps, one line per run; the training loss as a thin line."""
    runs = {str(folder): read_curves(folder) for folder in folders}

    pyplot = load_pyplot()

    # the legend has two runs in a line
    legend_height = 0.15 * math.ceil(len(runs) / 2)  # inches
    figure, axis = pyplot.subplots(figsize=(6.3, 3.0 + legend_height))
    for number, (folder, curves) in enumerate(runs.items()):
        style = style_of_line(number)
        plot_curve(axis, curves["training"], linewidth=0.6, alpha=0.5, **style)

        # matplotlib does not show a label that begins with "_"
        label = folder
        if folder.startswith("_"):
            label = f"./{folder}"
        plot_curve(axis, curves["held-out"], marker=".", label=label, **style)

    axis.set_xlabel("optimizer steps")
    axis.set_ylabel("masked-token loss (nats)\nthin: training; dots: held-out")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def plot_curve(axis, curve, **style):
    """A line through [(step, loss), ...]."""
    steps = [step for step, _ in curve]
    losses = [loss for _, loss in curve]
    axis.plot(steps, losses, **style)


# --- The command line -----------------------------------------------------------------------------


def run_attention(args):
    model, tokenizer = load_run(args.run)
    ids, pieces = encode(model, tokenizer, args.sentence)
    figure = draw_attention(model, ids, pieces, args.layer, args.head)
    save(figure, args.out, args.run / "figures", f"attention-layer{args.layer}-head{args.head}")


def run_fixed(args):
    model, _ = load_run(args.run)
    save(draw_fixed(model), args.out, args.run / "figures", "fixed")


def run_depthwise(args):
    model, _ = load_run(args.run)
    figure = draw_depthwise(model, args.layer)
    save(figure, args.out, args.run / "figures", f"depthwise-layer{args.layer}")


def run_dynamic(args):
    model, tokenizer = load_run(args.run)
    ids, pieces = encode(model, tokenizer, args.sentence)
    figure = draw_dynamic(model, ids, pieces, args.layer, args.head)
    save(figure, args.out, args.run / "figures", f"dynamic-layer{args.layer}-head{args.head}")


def run_loss(args):
    save(draw_loss(args.runs), args.out, args.runs[0] / "figures", "loss")


def run_idea(args):
    figure = draw_idea(load_pyplot())
    save(figure, args.out, Path("docs"), "idea", dpi=110)


def figure_path(text):
    """argparse type: the path of a figure, without the suffix, which `save` adds."""
    path = Path(text)
    if path.suffix.lower() == ".png":
        raise argparse.ArgumentTypeError(f"leave out {path.suffix}, which is added to the name")
    return path


def save(figure, out, folder, name, dpi=200):
    """Write a figure and print the path of its file.

    Args:
        out: the option --out: the path of the figure without suffix, an existing folder, or None.
        folder, name: where the figure goes without --out; in a folder, it always has this name.
        dpi: pixels per inch of the PNG file.
    """
    path = folder / f"{name}.png"
    if out is not None:
        path = out.with_name(f"{out.name}.png")
    if out is not None and out.is_dir():
        path = out / f"{name}.png"

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=dpi)
    print(path)


def parse_arguments(arguments=None):
    """The command line's values; .draw is the function of the subcommand."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="figure", required=True)
    add = commands.add_parser

    # figures of one run
    attention_map = add("attention", help="attention map of a head, next to that of its kernel")
    add_run(attention_map)
    add_sentence(attention_map)
    add_layer(attention_map)
    add_head(attention_map)
    attention_map.set_defaults(draw=run_attention)

    fixed = add("fixed", help="fixed kernels of all layers and heads")
    add_run(fixed)
    fixed.set_defaults(draw=run_fixed)

    depthwise = add("depthwise", help="depthwise kernels of a layer")
    add_run(depthwise)
    add_layer(depthwise)
    depthwise.set_defaults(draw=run_depthwise)

    dynamic = add("dynamic", help="the kernel that each token makes")
    add_run(dynamic)
    add_sentence(dynamic)
    add_layer(dynamic)
    add_head(dynamic)
    dynamic.set_defaults(draw=run_dynamic)

    # other figures
    loss = add("loss", help="loss curves of one or more runs")
    loss.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of pretrain.py")
    loss.set_defaults(draw=run_loss)

    idea = add("idea", help="the picture at the top of README.md")
    idea.set_defaults(draw=run_idea)

    for command in commands.choices.values():
        command.add_argument("--out", type=figure_path, help="path without suffix, or a folder")
    return parser.parse_args(arguments)


def add_run(parser):
    parser.add_argument("run", type=Path, help="folder that pretrain.py wrote")


def add_sentence(parser):
    parser.add_argument("sentence", help='in quotation marks, as in "the dog barks."')


def add_layer(parser):
    parser.add_argument("--layer", type=positive_int, default=1, help="from 1 (default: 1)")


def add_head(parser):
    parser.add_argument("--head", type=positive_int, default=1, help="from 1 (default: 1)")


def main(arguments=None):
    """Draw or describe what the command line names. Returns the exit code."""
    args = parse_arguments(arguments)
    args.draw(args)
    return 0


if __name__ == "__main__":
    run_command("lab.figures", main)
