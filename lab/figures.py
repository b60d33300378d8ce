"""The paper's figures, drawn from a trained model.

    python -m lab.figures attention RUN "the dog barks." --layer 1 --head 2   Chang figure 1
    python -m lab.figures fixed RUN                                           Chang figure 2
    python -m lab.figures depthwise RUN --layer 4                             Chang figure 3
    python -m lab.figures dynamic RUN "the dog barks." --layer 1 --head 2     kernel of each token
    python -m lab.figures loss RUN RUN ...                                    loss curves
    python -m lab.figures results                                             of docs/results.md
    python -m lab.figures drawings                                            of the explanations

RUN is a folder that pretrain.py wrote. Layers and heads count from 1. A figure becomes the file
RUN/figures/NAME.png (of the first RUN), or the file that --out names. `results` draws three figures
from the records in results/ into docs/, and `drawings` three that need neither a run nor a record.
Drawing needs matplotlib (pip install matplotlib). Letters as in attention.py.
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


# --- Drawings: the idea of the paper, and where each variant changes a layer ----------------------

GREEN = "#009E73"
GREY = "0.88"
OF_R = ("#56B4E9", "#E69F00", GREEN)  # r = -1, 0, 1
LIGHT_OF_R = ("#DDEFFB", "#FAEBCC", "#CCECE3")  # the same colours for keys farther away
IDEA_TOKENS = ("the", "cat", "saw", "a", "dog")


def draw_fixed_idea():
    """A row of three numbers, the map that it makes of five tokens, and its kernel."""
    figure, panels = idea_panels()
    panels[0].set_title("a row:\n3 numbers")
    panels[1].set_title("what it adds to the scores:\neach line is the row, shifted")
    panels[2].set_title("without the light keys, its\nsoftmax is a sliding kernel")
    draw_cells(panels[0], 2, ["\u03b2\u208b\u2081", "\u03b2\u2080", "\u03b2\u2081"])
    draw_idea_map(panels[1], lambda i, symbol: f"\u03b2{symbol}")
    draw_idea_kernel(panels[2], "p = softmax(\u03b2)")
    return figure


def draw_dynamic_idea():
    """The same for a dynamic term: every token makes a row of its own."""
    figure, panels = idea_panels()
    panels[0].set_title("every token makes\nits own 3 numbers")
    panels[1].set_title("what they add to the scores:\neach line is a row, shifted")
    panels[2].set_title('without the light keys, its\nsoftmax is a kernel for "saw"')
    for i, token in enumerate(IDEA_TOKENS):
        q = "q" + chr(0x2080 + i)  # q with the index i
        draw_cells(panels[0], i, [f"{q}w\u208b\u2081", f"{q}w\u2080", f"{q}w\u2081"])
        panels[0].text(-0.7, i, token, ha="right", va="center")
    draw_idea_map(panels[1], lambda i, symbol: f"q{chr(0x2080 + i)}w{symbol}")
    draw_idea_kernel(panels[2], "p = softmax(q\u2082w\u208b\u2081, q\u2082w\u2080, q\u2082w\u2081)")
    return figure


def idea_panels():
    """A figure of three panels without axes: the rows, the map and the kernel."""
    ends = ((-1.9, 2.6), (-1.9, 4.6), (-0.9, 4.9))  # of the x axes
    widths = [right - left for left, right in ends]
    figure, panels = load_pyplot().subplots(1, 3, figsize=(7, 3.1), width_ratios=widths)
    for panel, xlim in zip(panels, ends, strict=True):
        panel.set(xlim=xlim, ylim=(6.3, -1.3), aspect="equal")
        panel.axis("off")

    # under the rows: what their cells are
    for x, (r, place) in enumerate((("\u22121", "before"), ("0", "itself"), ("1", "after"))):
        panels[0].text(x, 5.1, r, ha="center", va="center")
        panels[0].text(x, 5.8, place, ha="center", va="center", fontsize=7)
    panels[0].text(-0.7, 5.1, "r =", ha="right", va="center")
    return figure, panels


def draw_cells(axis, y, texts, x=0, colours=OF_R):
    """A line of cells with texts, from (x, y) to the right."""
    for place, (text, colour) in enumerate(zip(texts, colours, strict=False), x):
        corner = (place - 0.5, y - 0.5)
        axis.add_patch(load_pyplot().Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white"))
        axis.text(place, y, text, ha="center", va="center", fontsize=7)


def draw_idea_map(axis, text_of):
    """Line i is a row, shifted to column i. Keys beyond the row get the end number again."""
    symbols = {-1: "\u208b\u2081", 0: "\u2080", 1: "\u2081"}
    for i, token in enumerate(IDEA_TOKENS):
        axis.text(i, -0.9, token, ha="center", va="center")
        axis.text(-0.8, i, token, ha="right", va="center")
        for j in range(len(IDEA_TOKENS)):
            r = max(-1, min(1, j - i))
            is_near = abs(j - i) <= 1
            text = text_of(i, symbols[r]) if is_near else ""
            draw_cells(axis, i, [text], j, [(OF_R if is_near else LIGHT_OF_R)[r + 1]])
    axis.add_patch(load_pyplot().Rectangle((-0.5, 1.5), 5, 1, fill=False, linewidth=1.5))
    axis.text(2, 5.1, "light: farther away,", ha="center", va="center")
    axis.text(2, 5.8, "the end number again", ha="center", va="center")


def draw_idea_kernel(axis, definition):
    """z_2 is the sum of three values, times the three weights of the kernel."""
    for j, token in enumerate(IDEA_TOKENS):
        axis.text(j, -0.9, token, ha="center", va="center")
        draw_cells(axis, 0, ["v" + chr(0x2080 + j)], j, [GREY])
    for place in (1, 2, 3):
        axis.plot([place, place], [0.5, 1.5], color="0.5", linewidth=0.8)
        axis.plot([place, 2], [2.5, 3.5], color="0.5", linewidth=0.8)
    draw_cells(axis, 2, ["p\u208b\u2081", "p\u2080", "p\u2081"], 1)
    axis.add_patch(load_pyplot().Rectangle((0.5, 1.5), 3, 1, fill=False, linewidth=1.5))
    draw_cells(axis, 4, ["z\u2082"], 2, [GREY])
    axis.text(
        2, 5.1, "z\u1d62 = \u03a3\u1d63 p\u1d63 v\u1d62\u208a\u1d63", ha="center", va="center"
    )
    axis.text(2, 5.8, definition, ha="center", va="center")


# A layer from top to bottom: each step, and how which variants change it. "*" is any ending.
LAYER = (
    ("x: a vector per token", (("+ a vector per position, in layer 1", "absolute, convbert"),)),
    (
        "q, k, v = W x",
        (
            ("half of the heads: W depthwise(x)", "conv-*, composite-conv-*"),
            ("all heads: W (x + depthwise(x))", "canon"),
        ),
    ),
    (
        "scores: content q_i \u00b7 k_j / \u221ad",
        (
            ("nothing is changed or added", "none"),
            ("q and k are rotated", "rotary"),
            ("q + b_c in place of q", "xl"),
        ),
    ),
    (
        "+ rows of queries, read at j \u2212 i",
        (
            ("one row for all queries", "fixed, composite*, t5, alibi, fire"),
            ("each query makes its row", "dynamic, composite*, shaw, xl, deberta"),
        ),
    ),
    ("+ rows of keys, read at i \u2212 j", (("each key makes its row", "composite-key, deberta"),)),
    ("p = softmax over the keys j", ()),
    (
        "z_i = sum of p_ij v_j",
        (
            ("v_j + s_r in place of v_j", "shaw"),
            ("+ depthwise(v)_i", "depthwise, composite-depthwise"),
        ),
    ),
    (
        "output: W z",
        (
            ("mixer: half of the heads convolve", "convbert"),
            ("mixer: a convolution, no attention", "lightconv, dynamicconv, dilated"),
            ("mixer: the same, except in one layer", "*-hybrid"),
        ),
    ),
    ("LayerNorm(x + mixer)", ()),
    ("FFN: W gelu(W x)", ()),
    ("LayerNorm(x + FFN)", ()),
)
MIXER = (1, 7)  # its first and last step
HEIGHT = 3  # of a step


def draw_layer():
    """A layer of BERT, with the variants beside the step that they change."""
    figure, axis = load_pyplot().subplots(figsize=(7, 5.6))
    axis.set(xlim=(0, 100), ylim=(HEIGHT * len(LAYER) + 0.2, -0.6))
    axis.axis("off")

    # the mixer: a frame around its steps
    first, last = MIXER
    corner = (3.5, HEIGHT * first)
    rectangle = load_pyplot().Rectangle
    axis.add_patch(
        rectangle(corner, 33, HEIGHT * (last - first + 1), facecolor="0.95", edgecolor=RED)
    )
    axis.text(4.3, HEIGHT * first + 0.6, "mixer", color=RED, va="center")

    # the two residual connections, past the mixer and past the feed-forward network
    middle = [HEIGHT * number + HEIGHT / 2 for number in range(len(LAYER))]
    for start, end in ((0, last + 1), (last + 1, len(LAYER) - 1)):
        y = [middle[start] + 0.3, middle[start] + 0.3, middle[end] - 0.3, middle[end] - 0.3]
        axis.plot([14, 1.5, 1.5, 14], y, color="0.4", linewidth=0.8, zorder=0)

    axis.plot([20, 20], [middle[0], middle[-1]], color="0.4", linewidth=0.8)
    axis.text(39, 0.1, "what is changed", va="center", style="italic")
    axis.text(68, 0.1, "by --variant (*: any ending)", va="center", style="italic")
    for y, (step, changes) in zip(middle, LAYER, strict=True):
        draw_step(axis, y, step, changes)
    return figure


def draw_step(axis, y, step, changes):
    """A box with a step of a layer, and a line of text for each change; y is the middle."""
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "0.4"}
    axis.text(20, y, step, ha="center", va="center", bbox=box)
    for number, (what, names) in enumerate(changes):
        line = y + 0.95 * (number - (len(changes) - 1) / 2)
        colour = RED if what.startswith("mixer") else "black"
        axis.text(39, line, what, va="center", fontsize=7, color=colour)
        axis.text(68, line, names, va="center", fontsize=7, color=BLUE, weight="bold")


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

DRAWINGS = {
    "idea": draw_fixed_idea,
    "idea-dynamic": draw_dynamic_idea,
    "layer": draw_layer,
}


def parse_arguments(arguments=None):
    """The command line's values."""
    parser = argparse.ArgumentParser(description="Draw a figure of the paper from a run.")
    commands = parser.add_subparsers(dest="figure", required=True)
    commands.add_parser("results", help="the figures of docs/results.md, from results/")
    commands.add_parser("drawings", help="docs/idea.png, docs/idea-dynamic.png and docs/layer.png")
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
    of_docs = {"results": OF_RESULTS, "drawings": DRAWINGS}
    if args.figure in of_docs:
        for name, draw in of_docs[args.figure].items():
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
