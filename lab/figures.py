"""The paper's figures, drawn from a trained model.

    python -m lab.figures attention RUN "the dog barks." --layer 1 --head 2   Chang figure 1
    python -m lab.figures fixed RUN                                           Chang figure 2
    python -m lab.figures depthwise RUN --layer 4                             Chang figure 3
    python -m lab.figures dynamic RUN "the dog barks." --layer 1 --head 2     kernel of each token
    python -m lab.figures loss RUN RUN ...                                    loss curves
    python -m lab.figures results                                             of docs/results.md

RUN is a folder that pretrain.py wrote. Layers and heads count from 1. A figure becomes the file
RUN/figures/NAME.png (of the first RUN), or the file that --out names. `results` draws three figures
from the records in results/ into docs/. Drawing needs matplotlib (pip install matplotlib). Letters
as in attention.py.
"""

import argparse
from pathlib import Path

import numpy as np

from lab import report
from lab.look import (
    attention_map,
    depthwise_kernels,
    dynamic_kernels,
    encode_sentence,
    fixed_kernels,
    is_clipped,
)
from model import load_run
from support.commands import UserError, positive_int, run_command, utf8_text
from support.runs import read_log, read_records

DOCS = report.ROOT / "docs"

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

    # small figures with small letters
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


def relative_axis(axis, model, weights, clipped=False):
    """Label the columns of so many weights with their relative position: the ends, and 0.

    If `clipped`, the ends are labelled as what they are, k or more tokens away.
    """
    own = own_column(model, weights)
    right = weights - 1 - own  # 0 in a causal model
    labels = {own: "0"}
    labels.setdefault(0, f"\u2264{-own}" if clipped else f"{-own}")  # <=
    labels.setdefault(weights - 1, f"\u2265{right}" if clipped else f"{right:+d}")  # >=
    axis.set_xticks(list(labels), list(labels.values()))
    axis.set_xlabel("r = j - i (tokens)")


# --- The figures: each function gets a model and the options, and returns a figure ----------------


def draw_attention(model, tokenizer, args):
    """Chang figure 1: the attention map of a head, next to the map of its position terms alone."""
    # the two maps, (H, N, N) each
    ids, pieces = encode_sentence(model, tokenizer, args.sentence)
    maps = {
        "attention: content and positions": attention_map(model, ids, args.layer),
        "kernel alone: positions without content": attention_map(
            model, ids, args.layer, with_content=False
        ),
    }

    # side by side, with the pieces of the sentence at their sides
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
            relative_axis(axis, model, K, is_clipped(model))
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
        relative_axis(axis, model, weight.shape[1])
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
    relative_axis(axis, model, kernels.shape[-1], is_clipped(model))
    figure.colorbar(image, ax=axis, label="kernel: softmax over r of the row")
    return figure


def draw_loss(folders):
    """Held-out loss against steps, one line per run."""
    lines = []
    for folder in folders:
        log = read_log(folder)
        points = [(line["step"], line["held_out_loss"]) for line in log if "held_out_loss" in line]
        if not points:
            raise UserError(f"{folder} has no held-out loss yet")
        lines.append((str(folder), points))
    return draw_lines(lines, "optimizer steps")


def draw_lines(lines, x_label):
    """Loss against something. Lines with the same name have one colour, and the name at their ends.

    lines: list of (name, points); a point begins with x and the loss.
    """
    figure, axis = load_pyplot().subplots(figsize=(6.3, 3.6))
    axis.set(xlabel=x_label, ylabel="held-out loss (nats)")
    axis.spines[["right", "top"]].set_visible(False)
    ends = {}  # {name: (loss, x, colour)}, of the first line with this name
    for name, points in lines:
        x, loss, *_ = np.transpose(points)
        new_colour = COLOURS[len(ends) % len(COLOURS)]
        _, _, colour = ends.setdefault(name, (loss[-1], x[-1], new_colour))
        axis.plot(x, loss, ".-", linewidth=0.8, color=colour)

    # the names from low to high, at least one line of text apart
    text_height = 0.05 * np.ptp(axis.get_ylim())
    y = -np.inf
    for name in sorted(ends, key=ends.get):
        loss, x, colour = ends[name]
        y = max(loss, y + text_height)
        axis.text(x, y, f"  {name}", color=colour, va="center")
    return figure


# --- The figures of docs/results.md, from the records in results/ ---------------------------------


# H1 of docs/plan.md: the position terms of the first four look at the text, those of the others do
# not.
WITH_TEXT = ("dynamic", "composite", "rotary", "deberta")
WITHOUT_TEXT = ("fixed", "t5", "alibi", "fire")

# what was fine-tuned on English
GLUE_TASKS = (report.glue_measure("CoLA", "cola"), report.glue_measure("SST-2", "sst-2"))


def draw_runs():
    """Every run: a panel per measure, a line per variant, a dot per run."""
    toy = records_of("toy.jsonl") + records_of("plan-toy.jsonl")
    english = records_of("english.jsonl")
    toy_measures = (report.LOSS, report.TOY_PAIRS, report.glue_measure("toy score"))
    panels = [("toy language", toy, measure) for measure in toy_measures]
    english_measures = (report.LOSS, report.BLIMP, *GLUE_TASKS)
    panels += [("English", english, measure) for measure in english_measures]

    # the lowest loss on the toy language at the top
    variants = sorted(
        {record["settings"]["variant"] for record in toy},
        key=lambda variant: -np.mean(report.values_of(toy, variant, report.LOSS)),
    )
    colours = dict.fromkeys(WITH_TEXT, BLUE) | dict.fromkeys(WITHOUT_TEXT, RED)

    figure, axes = load_pyplot().subplots(1, len(panels), sharey=True, figsize=(10, 4.2))
    for axis, (language, records, measure) in zip(axes, panels, strict=True):
        axis.set_title(f"{language}:\n{measure.title}")
        axis.grid(axis="y", linewidth=0.3)
        for variant in variants:
            values = report.values_of(records, variant, measure)
            colour = colours.get(variant, "0.4")
            axis.plot(values, [variant] * len(values), ".", color=colour, alpha=0.7)
        for variant, style in (("none", ":"), ("absolute", "-")):
            mean = np.mean(report.values_of(records, variant, measure))
            axis.axvline(mean, color="0.4", linewidth=0.7, linestyle=style)
    return figure


def draw_loss_by_step():
    """English: every run of `absolute` and `dynamic`, and of `none`."""
    variants = ["none", "absolute", "dynamic"]
    return draw_lines(curves_of("english.jsonl", variants, "curve"), "optimizer steps")


def draw_loss_by_length():
    """English: the loss in longer sequences, and that of `fixed` with divided end weights."""
    variants = ["none", "fixed", "dynamic", "alibi", "xl", "rotary"]
    lines = curves_of("english-lengths.jsonl", variants, "losses")
    divided = curves_of("english-lengths-divided.jsonl", ["fixed"], "losses")
    lines += [("fixed, divided", points) for _, points in divided]

    figure = draw_lines(lines, "tokens in a sequence (in training, at most 128)")
    lengths = [64, 128, 256, 512, 1024, 2048]
    figure.axes[0].set(xscale="log", xticks=lengths, xticklabels=lengths)
    return figure


def curves_of(file, variants, key):
    """The curves for draw_lines of some variants in a file of results/."""
    records = report.of_variants(records_of(file), variants)
    return [(record["settings"]["variant"], record[key]) for record in records]


def records_of(file):
    """The records of a file in results/."""
    return read_records(report.ROOT / "results" / file)


# --- The command line -----------------------------------------------------------------------------

FIGURES = {
    "attention": draw_attention,
    "fixed": draw_fixed,
    "depthwise": draw_depthwise,
    "dynamic": draw_dynamic,
}

OF_RESULTS = {
    "runs": draw_runs,
    "loss-by-step": draw_loss_by_step,
    "loss-by-length": draw_loss_by_length,
}


def parse_arguments(arguments=None):
    """The command line's values."""
    parser = argparse.ArgumentParser(description="Draw a figure of the paper from a run.")
    commands = parser.add_subparsers(dest="figure", required=True)
    commands.add_parser("results", help="the figures of docs/results.md, from results/")
    for name in (*FIGURES, "loss"):
        add = commands.add_parser(name).add_argument
        add("--out", type=Path, metavar="FILE.png", help="default: RUN/figures/NAME.png")
        count = "+" if name == "loss" else 1
        add("runs", nargs=count, type=Path, metavar="RUN", help="folder that pretrain.py wrote")
        if name in ("attention", "dynamic"):
            add("sentence", type=utf8_text, help='in quotation marks, as in "the dog barks."')
            add("--head", type=positive_int, default=1, help="from 1 (default: 1)")
        if name in ("attention", "dynamic", "depthwise"):
            add("--layer", type=positive_int, default=1, help="from 1 (default: 1)")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Draw the figures that the command line names, and print the paths of their files."""
    args = parse_arguments(arguments)
    if args.figure == "results":
        for name, draw in OF_RESULTS.items():
            save(draw(), DOCS / f"{name}.png")
        return
    if args.figure == "loss":
        figure = draw_loss(args.runs)
    else:
        figure = FIGURES[args.figure](*load_run(args.runs[0], needs_head=False), args)
    save(figure, args.out or args.runs[0] / "figures" / f"{args.figure}.png")


def save(figure, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    print(path)


if __name__ == "__main__":
    run_command(main)
