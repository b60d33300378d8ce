"""The paper's figures, drawn from a trained model.

    python -m lab.figures attention RUN "the dog barks." --layer 1 --head 2   Chang figure 1
    python -m lab.figures fixed RUN                                           Chang figure 2
    python -m lab.figures depthwise RUN --layer 4                             Chang figure 3
    python -m lab.figures dynamic RUN "the dog barks." --layer 1 --head 2     kernel of each token
    python -m lab.figures loss RUN RUN ...                                    loss curves
    python -m lab.figures results                                             of the records
    python -m lab.figures drawings                                            of the explanations

RUN is a folder that pretrain.py wrote. Layers and heads count from 1. A figure becomes the file
RUN/figures/NAME.png (of the first RUN), or the file that --out names. Two commands draw into docs/:
`results` the figures of the records in results/, `drawings` those that need no record.
Drawing needs matplotlib (pip install matplotlib). Letters as in attention.py.
"""

import argparse
from functools import partial
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
from lab.report import BLIMP, ROOT, TOY_PAIRS, glue_measure
from model import load_run
from support.commands import UserError, positive_int, run_command, utf8_text
from support.runs import read_log, read_records
from support.tables import LOSS, of_variants, values_of

DOCS = ROOT / "docs"

# Colours that colour-blind readers can tell apart: these, and those of the lines (load_pyplot).
BLUE = "#0072B2"
RED = "#D55E00"


def load_pyplot():
    """matplotlib's pyplot, set up for files."""
    try:
        import matplotlib
    except ImportError:
        raise UserError("drawing needs a package: pip install matplotlib") from None

    matplotlib.use("Agg")  # it draws into files and needs no display
    from matplotlib import pyplot

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


def relative_axis(axis, model, weights, clipped=False):
    """Label the columns of so many weights with their relative position: the ends, and 0.

    If `clipped`, the ends are labelled as what they are, k or more tokens away.
    """
    own = own_column(model, weights)
    left, right = ("≤", "≥") if clipped else ("", "+")
    labels = {0: f"{left}{-own}", weights - 1: f"{right}{weights - 1 - own}"}
    labels[own] = "0"  # in a causal model, this is also the right end
    axis.set_xticks(list(labels), list(labels.values()))
    axis.set_xlabel("r = j - i (tokens)")


def label_map(axis, pieces):
    """The pieces of a sentence at two sides of a map: lines are queries, columns are keys."""
    places = range(len(pieces))
    axis.set_xticks(places, pieces, rotation=90)
    axis.set_yticks(places, pieces)


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

    # side by side
    figure, axes = load_pyplot().subplots(1, 2, figsize=(6.3, 3.4), sharey=True)
    for axis, (title, p) in zip(axes, maps.items(), strict=True):
        image = axis.imshow(of_head(p, args.head), cmap="cividis", vmin=0, vmax=1)
        axis.set(title=title, xlabel="key j")
        label_map(axis, pieces)
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
    """Loss against something. Lines with the same name have one colour.

    lines: list of (name, points); a point begins with x and the loss.
    """
    figure, axis = load_pyplot().subplots(figsize=(6.3, 3.6))
    axis.set(xlabel=x_label, ylabel="held-out loss (nats)")
    drawn = {}  # {name: the last line with this name}
    for name, points in lines:
        x, loss, *_ = np.transpose(points)  # (points,) each
        colour = drawn[name].get_color() if name in drawn else None  # None: a new one
        drawn[name] = axis.plot(x, loss, ".-", linewidth=0.8, color=colour)[0]  # a list of one
    axis.legend(drawn.values(), drawn)
    return figure


# --- The figures of docs/results.md and docs/family.md, from the records in results/ --------------


def records_of(file):
    """The records of a file in results/."""
    return read_records(ROOT / "results" / f"{file}.jsonl")


def draw_runs():
    """Every run: a panel per measure, a row per variant, a dot per run."""
    # three runs of each variant, and on the toy language five more of some
    toy = records_of("toy") + records_of("plan-toy")
    english = records_of("english")

    # (language, its records, measure)
    panels = [
        ("toy language", toy, LOSS),
        ("toy language", toy, TOY_PAIRS),
        ("toy language", toy, glue_measure("toy score")),
        ("English", english, LOSS),
        ("English", english, BLIMP),
        ("English", english, glue_measure("CoLA", "cola")),
        ("English", english, glue_measure("SST-2", "sst-2")),
    ]

    # the name of a variant is its place on the y axis
    figure, axes = load_pyplot().subplots(1, len(panels), sharey=True, figsize=(10, 4.2))
    for axis, (language, records, measure) in zip(axes, panels, strict=True):
        axis.set_title(f"{language}:\n{measure.title}")
        axis.grid(axis="y", linewidth=0.3)
        for variant in dict.fromkeys(record["settings"]["variant"] for record in records):
            values = values_of(records, variant, measure)
            axis.plot(values, [variant] * len(values), ".", color=BLUE, alpha=0.7)
    axes[0].invert_yaxis()  # in the order of the tables, from top to bottom
    return figure


def draw_curves(file, key, variants, x_label):
    """The losses of some variants in a file of results/, of every run."""
    records = of_variants(records_of(file), variants)
    return draw_lines([(record["settings"]["variant"], record[key]) for record in records], x_label)


def draw_loss_by_length():
    """English: the loss in longer sequences."""
    variants = ("none", "fixed", "dynamic", "alibi", "xl", "rotary")
    label = "tokens in a sequence (in training, at most 128)"
    figure = draw_curves("english-lengths", "losses", variants, label)
    lengths = [64, 128, 256, 512, 1024, 2048]
    figure.axes[0].set(xscale="log", xticks=lengths, xticklabels=lengths)
    return figure


def draw_family():
    """What eight variants add to the scores: the map of head 1, for one sentence.

    The runs are those of one command:

        python pretrain.py --variant fixed t5 alibi fire dynamic xl rotary deberta --seed 3

    A record has the layer, the tokens, and the scores: (H, N, N), what the position terms add to
    a_ij, minus the mean over j, which the softmax ignores. The layers are chosen so that most
    scores of head 1 are between -5 and 5, where the colours end.

    rotary has no term: it rotates queries and keys. But the keys of a head have a mean k_mean,
    which adds to the scores what a bias of the keys adds: q_i . R_r k_mean / sqrt(d), a dynamic
    term with w_r = R_r k_mean (docs/family.md). These are its scores: every key is replaced by
    k_mean.
    """
    figure, axes = load_pyplot().subplots(2, 4, figsize=(10, 5.6))
    for axis, record in zip(axes.T.flat, records_of("family-rows"), strict=True):
        of_head_1 = record["scores"][0]  # (N, N)
        image = axis.imshow(of_head_1, cmap="PuOr_r", vmin=-5, vmax=5)
        axis.set_title(f"{record['settings']['variant']}, layer {record['layer']}")
        label_map(axis, record["tokens"])
    label = "added to the score a_ij, minus the mean over j, which the softmax ignores"
    figure.colorbar(image, ax=axes, label=label, location="bottom", extend="both", aspect=50)
    return figure


# --- Drawings: the idea of the paper, and where each variant changes a layer ----------------------

LINE = {"color": "0.4", "linewidth": 0.8, "zorder": 1}  # under the boxes that are drawn later

# five tokens, and the row of each: a number for r = -1, 0 and 1
TOKENS = ("the", "cat", "saw", "a", "dog")
FIXED_ROWS = [["β₋₁", "β₀", "β₁"]] * 5
DYNAMIC_ROWS = [[f"q{i}w₋₁", f"q{i}w₀", f"q{i}w₁"] for i in "₀₁₂₃₄"]

# the colours of r = -1, 0 and 1; light: of keys that are farther away
OF_R = ("#56B4E9", "#E69F00", "#009E73")
LIGHT_OF_R = ("#DDEFFB", "#FAEBCC", "#CCECE3")


def draw_idea(title, rows, names):
    """The rows of five tokens, what they add to the scores, and the kernel of "saw".

    names: {token: whose row it is}, of the rows that are drawn on the left.
    """
    # A box is one unit wide; y grows downwards. Rows are at x = 0 to 2, the map at 5.5 to 9.5.
    figure, axis = load_pyplot().subplots(figsize=(8, 3.2))
    axis.set(xlim=(-2.5, 18.5), ylim=(6.2, -2.2), aspect="equal")
    axis.axis("off")
    write = partial(axis.text, ha="center", va="center")

    # on the left, the rows
    write(1, -1.8, title)
    for i, name in names.items():
        write(-1.4, i, name)
        for place, text in enumerate(rows[i]):
            draw_box(axis, place, i, text, OF_R[place])
    for place, text in enumerate(("r = −1\nbefore", "0\nitself", "1\nafter")):
        write(place, 5.4, text)

    # in the middle, the map: line i is row i, shifted to column i
    write(7.5, -1.8, "what they add to the scores:\neach line is a row, shifted")
    for i, token in enumerate(TOKENS):
        write(4.5, i, token)
        write(5.5 + i, -0.8, token)
        for j in range(5):
            r = np.clip(j - i, -1, 1)  # keys farther away get the end number again
            colours = OF_R if r == j - i else LIGHT_OF_R
            draw_box(axis, 5.5 + j, i, rows[i][r + 1], colours[r + 1])
    draw_box(axis, 7.5, 2, width=5, edge="black")
    write(7.5, 5.4, "light: farther away,\nthe end number again")

    # on the right, the values, and under them the kernel
    write(15, -1.8, 'without the light keys, its\nsoftmax is a kernel for "saw"')
    for j, token in enumerate(TOKENS):
        write(13 + j, -0.8, token)
        draw_box(axis, 13 + j, 0, f"v{'₀₁₂₃₄'[j]}", "0.88")
    for place, text in enumerate(("p₋₁", "p₀", "p₁")):
        draw_box(axis, 14 + place, 2, text, OF_R[place])
        axis.plot([14 + place, 14 + place], [0.5, 1.5], **LINE)
        axis.plot([14 + place, 15], [2.5, 3.5], **LINE)
    draw_box(axis, 15, 2, width=3, edge="black")
    draw_box(axis, 15, 4, "z₂", "0.88")
    write(15, 5.4, f"p = softmax({', '.join(rows[2])})\nz₂ = p₋₁ v₁ + p₀ v₂ + p₁ v₃")
    return figure


def draw_box(axis, x, y, text="", colour="none", width=1, height=1, edge="white"):
    """A box with a text. (x, y) is its centre."""
    axis.bar(x, height, width, y - height / 2, color=colour, edgecolor=edge)
    axis.text(x, y, text, ha="center", va="center")


# A layer from top to bottom: the step, what changes it, and by which --variant (*: any ending).
LAYER = (
    ("x: a vector per token", "+ a vector per position, in layer 1", "absolute, convbert"),
    (
        "q, k, v = W x",
        "half of the heads: W depthwise(x)\nall heads: W (x + depthwise(x))",
        "conv-*, composite-conv-*\ncanon",
    ),
    (
        "scores: content q_i · k_j / √d",
        "nothing is changed or added\nq and k are rotated\nq + b_c in place of q",
        "none\nrotary\nxl",
    ),
    (
        "+ rows of queries, read at j − i",
        "one row for all queries\neach query makes its row",
        "fixed, composite*, t5, alibi, fire\ndynamic, composite*, shaw, xl, deberta",
    ),
    ("+ rows of keys, read at i − j", "each key makes its row", "composite-key, deberta"),
    ("p = softmax over the keys j", "", ""),
    (
        "z_i = sum of p_ij v_j",
        "v_j + s_r in place of v_j\n+ depthwise(v)_i",
        "shaw\ndepthwise, composite-depthwise",
    ),
    (
        "output: W z",
        "mixer: half of the heads convolve\n"
        "mixer: a convolution, no attention\n"
        "mixer: the same, except in one layer",
        "convbert\nlightconv, dynamicconv, dilated\n*-hybrid",
    ),
    ("LayerNorm(x + mixer)", "", ""),
    ("FFN: W gelu(W x)", "", ""),
    ("LayerNorm(x + FFN)", "", ""),
)


def draw_layer():
    """A layer of BERT, with the variants beside the step that they change."""
    figure, axis = load_pyplot().subplots(figsize=(7, 5.6))
    axis.set(xlim=(-2.5, 10), ylim=(len(LAYER) - 0.5, -0.9))
    axis.axis("off")

    # the mixer is the part from q, k, v to the output; x goes past it, and past the FFN
    draw_box(axis, 0, 4, colour="0.95", width=4.2, height=6.9, edge=RED)
    axis.text(-2, 4, "mixer", color=RED, rotation=90, va="center")
    axis.plot([0, 0], [0, len(LAYER) - 1], **LINE)
    for start, end in ((0, 8), (8, 10)):
        y = [start + 0.1, start + 0.1, end - 0.1, end - 0.1]
        axis.plot([0, -2.4, -2.4, 0], y, **LINE)

    # over the lines, the steps, one below the other, and what changes them
    axis.text(2.5, -0.7, "what is changed", style="italic")
    axis.text(6, -0.7, "by --variant (*: any ending)", style="italic")
    for y, (step, change, variants) in enumerate(LAYER):
        draw_box(axis, 0, y, step, "white", width=3.4, height=0.5, edge="0.4")
        axis.text(2.5, y, change, va="center", fontsize=7)
        axis.text(6, y, variants, va="center", fontsize=7, color=BLUE, weight="bold")
    return figure


# --- The command line -----------------------------------------------------------------------------

FIGURES = {
    "attention": draw_attention,
    "fixed": draw_fixed,
    "depthwise": draw_depthwise,
    "dynamic": draw_dynamic,
}

# the figures of the documents
OF_DOCS = {
    "results": {
        "runs": draw_runs,
        "loss-by-step": partial(
            draw_curves, "english", "curve", ("none", "absolute", "dynamic"), "optimizer steps"
        ),
        "loss-by-length": draw_loss_by_length,
        "family": draw_family,
    },
    "drawings": {
        "idea": partial(draw_idea, "a row:\n3 numbers", FIXED_ROWS, {2: "all tokens"}),
        "idea-dynamic": partial(
            draw_idea,
            "every token makes 3 numbers\n(each is divided by √d)",
            DYNAMIC_ROWS,
            dict(enumerate(TOKENS)),
        ),
        "layer": draw_layer,
    },
}


def parse_arguments(arguments):
    """The command line's values."""
    parser = argparse.ArgumentParser(description="Draw a figure of the paper from a run.")
    commands = parser.add_subparsers(dest="figure", required=True)
    commands.add_parser("results", help="figures of docs/, from the records in results/")
    commands.add_parser("drawings", help="figures of docs/ without a record")
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
    if args.figure in OF_DOCS:
        for name, draw in OF_DOCS[args.figure].items():
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
