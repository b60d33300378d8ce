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
import torch

from attention import VARIANTS, SelfAttention, attention, split_heads
from kernels import key_scores, relative_scores
from lab.idea import draw_idea
from model import load_run
from support.commands import UserError, positive_int, run_command, valid_text

# Colours that colour-blind readers can tell apart (Okabe and Ito 2008).
BLUE = "#0072B2"
RED = "#D55E00"
COLOURS = (BLUE, RED, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")  # for more lines than there are colours


# --- What a model contains ------------------------------------------------------------------------


def encode(model, tokenizer, sentence):
    """(ids (1, N) of [CLS] sentence [SEP], its N pieces as text).

    Raises UserError if the sentence is empty or too long for the model.
    """
    text = valid_text(sentence).strip()
    if not text:
        raise UserError('the sentence is empty; give one after RUN, as in "the dog barks."')

    cls = tokenizer.token_to_id("[CLS]")
    sep = tokenizer.token_to_id("[SEP]")
    ids = [cls, *tokenizer.encode(text, add_special_tokens=False).ids, sep]
    if len(ids) > model.config.max_length:
        raise UserError(
            f"the sentence has {len(ids)} tokens, the model takes {model.config.max_length}"
        )

    # In a vocabulary of pieces, the mark "\u2581" stands for the space before a word. A piece that
    # is only this mark is shown as "_".
    pieces = [tokenizer.id_to_token(i).replace("\u2581", "") or "_" for i in ids]
    return torch.tensor([ids]), pieces


def mixer_of(model, layer, head=1):
    """The mixer of a layer. Raises UserError if the model has no such layer or head."""
    layers = model.config.layers
    heads = model.config.heads
    if layer > layers:
        raise UserError(f"there is no layer {layer}: the model has {layers}")
    if head > heads:
        raise UserError(f"there is no head {head}: a layer of the model has {heads}")
    return model.bert.layers[layer - 1].mixer


def input_of_mixer(model, ids, layer):
    """What the mixer of a layer gets while the model reads ids: (x (1, N, C), attention_mask)."""
    attention_mask = torch.ones_like(ids, dtype=torch.bool)  # (1, N)
    x = model.bert.embeddings(ids, token_type_ids=torch.zeros_like(ids))  # (1, N, C)
    for block in model.bert.layers[: layer - 1]:
        x = block(x, attention_mask)  # (1, N, C)
    return x, attention_mask


@torch.no_grad()
def attention_map(model, ids, layer):
    """(H, N, N): the weights of attention in all heads of a layer.

    Raises UserError if the layer is not self-attention.
    """
    q, k, query_rows, key_rows, attention_mask, beyond = inputs_of_attention(model, ids, layer)

    # with the identity as values, the output is the weights themselves
    H, N = q.shape[1:3]
    identity = torch.eye(N).expand(1, H, N, N)
    p = attention(q, k, identity, attention_mask, query_rows, key_rows, beyond=beyond)
    return p[0].numpy()


@torch.no_grad()
def attention_maps(model, ids, layer, head):
    """Two maps (N, N) of one head: its attention, and that of its position terms alone.

    The first map is the softmax over j of the complete score, the second one that of all terms
    except content. Raises ValueError if the layer has no attention or no position terms.
    """
    mixer_of(model, layer, head)  # an error if there is no such head
    q, _, query_rows, key_rows, _, beyond = inputs_of_attention(model, ids, layer)
    if query_rows is None and key_rows is None:
        raise UserError(
            f"layer {layer} of {model.config.variant} adds no position terms to the content term, "
            "so there is no kernel to draw"
        )

    # the position terms alone
    H, N = q.shape[1:3]
    scores = torch.zeros(1, H, N, N)
    if query_rows is not None:
        query_rows = query_rows.expand(*query_rows.shape[:-2], N, -1)  # 1 row or N rows -> N rows
        scores = scores + relative_scores(query_rows, N, beyond)
    if key_rows is not None:
        scores = scores + key_scores(key_rows, N, beyond)
    kernel = scores.softmax(dim=-1)  # (1, H, N, N)

    p = attention_map(model, ids, layer)  # (H, N, N)
    return p[head - 1], kernel[0, head - 1].numpy()


def inputs_of_attention(model, ids, layer):
    """What a layer of self-attention gives to `attention`, for one sentence.

    Returns:
        q, k (1, H, N, d), query_rows and key_rows (or None), attention_mask (1, N), beyond.
    Raises:
        UserError: the layer is another mixer than SelfAttention.
    """
    mixer = mixer_of(model, layer)
    if not isinstance(mixer, SelfAttention):
        raise UserError(
            f"layer {layer} of {model.config.variant} is a {type(mixer).__name__}, and this figure "
            "needs self-attention in all heads; python -m lab.explore shows every layer"
        )

    # the queries, the keys and their rows of weights, as the mixer computes them
    x, attention_mask = input_of_mixer(model, ids, layer)
    query, key, _ = mixer.project(x, attention_mask)  # (1, N, C) each
    q = split_heads(query, mixer.heads)  # (1, H, N, d)
    k = split_heads(key, mixer.heads)  # (1, H, N, d)
    query_rows = mixer.sum_of_rows("query", q)  # (1, H, N, K), (H, 1, K) or None
    key_rows = mixer.sum_of_rows("key", k)  # (1, H, N, K) or None
    q, k = mixer.content(q, k)  # (1, H, N, d) each
    return q, k, query_rows, key_rows, attention_mask, mixer.beyond


@torch.no_grad()
def fixed_kernels(model):
    """{layer: (H, K)}: softmax over r of the fixed kernels. UserError if the model has none."""
    found = {}
    for layer, block in enumerate(model.bert.layers, 1):
        kernels = block.mixer.kernels()
        if "fixed" in kernels:
            found[layer] = kernels["fixed"].softmax(dim=-1).numpy()  # (H, K)
    if not found:
        raise UserError(f"{model.config.variant} has no fixed kernels of K weights")
    return found


@torch.no_grad()
def dynamic_kernels(model, ids, layer):
    """(H, N, K): softmax over r of the kernel that each token makes.

    Raises UserError if the tokens of this layer make no kernels.
    """
    mixer = mixer_of(model, layer)
    x, attention_mask = input_of_mixer(model, ids, layer)
    logits = mixer.token_kernels(x, attention_mask)  # (1, H, N, K)
    if logits is None:
        raise UserError(
            f"layer {layer} of {model.config.variant} has no dynamic kernels of K weights; "
            "python -m lab.explore shows all terms of the score"
        )
    return logits.softmax(dim=-1)[0].numpy()


@torch.no_grad()
def depthwise_kernels(model, layer):
    """{of what: (C, K)}: the depthwise convolutions of a layer, each sorted by `channel_order`.

    The names are "of the values" (added to attention, [C] eq. 7), "of the input" (ConvBERT and
    Canon), "for the query", "for the key" and "for the value" (half convolutional projections, [C]
    section 5).
    Raises UserError if the layer has no depthwise convolution.
    """
    found = {}
    for name, weight in mixer_of(model, layer).kernels().items():
        if name.startswith("depthwise"):
            weight = weight.numpy()  # (C, K)
            found[name.removeprefix("depthwise, ")] = weight[channel_order(weight)]
    if not found:
        raise UserError(f"layer {layer} of {model.config.variant} has no depthwise convolution")
    return found


def channel_order(weight):
    """The channels (C,) of weight (C, K), sorted by the position of their largest weight.

    Channels with the same position are sorted by this weight. "Largest" means the largest absolute
    value.
    """
    position = np.abs(weight).argmax(axis=1)  # (C,)
    largest = weight[np.arange(len(weight)), position]  # (C,)

    # lexsort sorts by its last key first
    return np.lexsort((largest, position))


# --- In words -------------------------------------------------------------------------------------


def describe(p, clipped=False):
    """What a kernel looks at, in words, for K weights p that sum to 1.

    The rules use the excess of a weight: how far it lies above the mean weight 1/K, as a share of
    the sum of all excesses. The first rule that holds is taken:

        nearly uniform          every weight is between 0.5 and 1.5 times the mean
        previous / next token   the weight at r = -1 or at r = 1 has more than half of the excess;
                                in the same way "the token itself" (r = 0), "the token at -3", ...
        away from neighbours    the mean weight at r = -1, 0, 1 is less than half of the mean weight
                                of the others
        backward / forward      the tokens on that side have two thirds of the excess or more
        near                    the tokens at r = -2 .. 2 have two thirds of the excess or more
                                (up to K = 5 these are all tokens)
        mixed                   none of these

    Args:
        p: (K,) weights.
        clipped: whether the two end weights also hold for all tokens farther away. Then they are
            named so: "8 or more back".
    """
    K = len(p)
    k = K // 2
    r = np.arange(-k, k + 1)  # (K,)
    peak = int(p.argmax()) - k

    # shares of the excess: at each r, on each side, and near the token
    excess = np.maximum(p - 1 / K, 0)  # (K,)
    share = excess / max(excess.sum(), 1e-300)  # (K,)
    backward = share[r < 0].sum()
    forward = share[r > 0].sum()
    near = share[abs(r) <= 2].sum()

    # the mean weight of the token and its two neighbours, relative to the others
    neighbours = math.inf
    if k > 1:
        neighbours = p[abs(r) <= 1].mean() / max(p[abs(r) > 1].mean(), 1e-300)

    if p.min() * K >= 0.5 and p.max() * K <= 1.5:
        words = "nearly uniform"
    elif share.max() > 0.5:
        words = name_of_position(peak, k, clipped)
    elif neighbours < 0.5:
        words = "away from neighbours"
    elif backward >= 2 / 3:
        words = "backward"
    elif forward >= 2 / 3:
        words = "forward"
    elif near >= 2 / 3:
        words = "near"
    else:
        words = "mixed"
    return words


def name_of_position(r, k, clipped):
    """The token at relative position r in words. k, clipped: as in `describe`."""
    if clipped and k > 0 and r == -k:
        return f"{k} or more back"
    if clipped and k > 0 and r == k:
        return f"{k} or more ahead"
    names = {-1: "previous token", 0: "the token itself", 1: "next token"}
    return names.get(r, f"the token at {r:+d}")


def dilation_of(mixer):
    """How many tokens apart the weights of a mixer's kernels are: 1 without dilation."""
    return getattr(mixer, "dilation", 1)


def is_clipped(model):
    """Whether the end weights of the kernels also hold for all tokens farther away.

    This is so for position terms with --beyond clip. A convolution ends with its kernel, and some
    terms have no end.
    """
    return VARIANTS[model.config.variant].uses_beyond and model.config.beyond == "clip"


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
