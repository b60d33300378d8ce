"""The papers' figures, from a trained model; and its kernels in words.

    python figures.py attention RUN "the dog barks." --layer 1 --head 2    attention map beside kernel      [C] figure 1
    python figures.py fixed RUN                                          learned kernels of all heads     [C] figure 2
    python figures.py depthwise RUN --layer 4                            depthwise kernels of a layer     [C] figure 3
    python figures.py dynamic RUN "the dog barks." --layer 1 --head 2      the kernel that each token makes
    python figures.py loss RUN RUN ..                                    loss curves
    python figures.py lengths lengths.txt              what `pretrain.py --benchmark --lengths > lengths.txt` measured
    python figures.py fixed RUN --describe               each kernel in words; also of dynamic and depthwise

RUN is a folder that pretrain.py wrote. Layers and heads count from 1. Each figure is a PNG and an SVG, in RUN/figures
(the first RUN's; `lengths` beside its file) or where --out says. Drawing needs matplotlib (pip install matplotlib);
--describe does not. Letters as in attention.py.
"""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch

from attention import VARIANTS, split_heads
from kernels import attention, key_scores, relative_scores
from model import load_run
from pretrain import run_to_exit, whole_number

# Told apart by all eyes: Okabe and Ito's
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
DASHES = ["-", "--", ":", "-."]


# --- What a model holds -----------------------------------------------------------------------------------------------


def encode(model, tokenizer, sentence):
    """Token ids (1, N) of [CLS] sentence [SEP], and the pieces as text. ValueError where it does not fit the model."""
    text = sentence.encode("utf-8", "replace").decode().strip()
    if not text:
        raise ValueError('this figure is of a sentence: give one after RUN, as in "the dog barks."')
    cls, sep = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    ids = [cls, *tokenizer.encode(text, add_special_tokens=False).ids, sep]
    if len(ids) > model.config.max_length:
        raise ValueError(f"the sentence has {len(ids)} tokens, the model takes {model.config.max_length}")
    pieces = [tokenizer.id_to_token(i).replace("\u2581", "") or "_" for i in ids]
    return torch.tensor([ids]), pieces


def mixer_of(model, layer, head=1):
    """The mixer of a layer, counted from 1. ValueError where there is no such layer or head."""
    layers, heads = model.config.layers, model.config.heads
    if layer > layers:
        raise ValueError(f"there is no layer {layer}: the model has {layers}")
    if head > heads:
        raise ValueError(f"there is no head {head}: the model has {heads} in a layer")
    return model.bert.layers[layer - 1].mixer


def seen_by(model, ids, module):
    """What `module` of the model takes and gives while it reads ids: (its first argument, its result)."""
    seen = []
    hook = module.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    with torch.no_grad():
        model.bert(ids)
    hook.remove()
    return seen[0]


def attention_maps(model, ids, layer, head):
    """Two maps (N, N) of one head: its attention, and what its position terms alone would attend to.

    The first is softmax_j of the whole score, the second of all its terms but content.
    """
    mixer = mixer_of(model, layer, head)
    if not hasattr(mixer, "query_rows"):
        raise ValueError(f"layer {layer} of {model.config.variant} has no self-attention of which to draw a map")
    x, _ = seen_by(model, ids, mixer)
    with torch.no_grad():
        q, k = (split_heads(projection(x), mixer.heads) for projection in (mixer.query, mixer.key))  # (1, H, N, d)
        rows, key_rows, N = mixer.query_rows(q), mixer.key_rows(k), ids.shape[1]
        if rows is None:
            raise ValueError(f"{model.config.variant} has no position terms in layer {layer}, hence no kernel to draw")
        identity = torch.eye(N).expand(1, mixer.heads, N, N)  # as values: what comes out are the weights
        p = attention(q, k, identity, torch.ones_like(ids, dtype=torch.bool), rows, key_rows, None, mixer.window)
        kernel = relative_scores(rows.expand(1, -1, -1, -1), N, mixer.window)  # (1, H, N, N)
        if key_rows is not None:
            kernel = kernel + key_scores(key_rows, N, mixer.window, 0, relative_scores)
    return p[0, head - 1].numpy(), kernel[0, head - 1].softmax(dim=-1).numpy()


def fixed_kernels(model):
    """{layer: (H, K)} softmax over r of the fixed kernels: of beta, or of a LightConv's weights. ValueError: none."""
    kernels = {}
    for layer, block in enumerate(model.bert.layers, 1):
        held = dict(block.mixer.named_parameters(recurse=False))
        table = held.get("fixed", held.get("weight"))  # beta, LightConv
        if table is not None:
            kernels[layer] = table.detach().softmax(dim=-1).numpy()  # (H, K)
    if not kernels:
        raise ValueError(f"{model.config.variant} has no fixed kernels")
    return kernels


def dynamic_kernels(model, ids, layer):
    """(H, N, K): softmax over r of the kernel that each token makes. ValueError where the layer makes none."""
    mixer = mixer_of(model, layer)
    if getattr(mixer, "dynamic", None) is not None:
        x, _ = seen_by(model, ids, mixer)
        with torch.no_grad():
            q = split_heads(mixer.query(x), mixer.heads)  # (1, H, N, d)
            logits = q @ mixer.dynamic / math.sqrt(q.shape[-1])  # (1, H, N, K), without beta
    elif hasattr(mixer, "kernel"):  # DynamicConv, ConvBERT
        logits = split_heads(seen_by(model, ids, mixer.kernel)[1], mixer.heads)  # (1, N, H * K) -> (1, H, N, K)
    else:
        raise ValueError(f"layer {layer} of {model.config.variant} makes no dynamic kernels")
    return logits.softmax(dim=-1)[0].numpy()


def depthwise_kernels(model, layer):
    """{of what: (C, K)} the depthwise convolutions of a layer, each sorted by `channel_order`. ValueError: none.

    Of the values, added to attention ([C] eq. 7); of the input, in place of the query, key or value projection, or for
    ConvBERT's kernels.
    """
    mixer, found = mixer_of(model, layer), {}
    for name, weight in mixer.named_parameters():
        if name.endswith("depthwise.weight"):
            of = "the values" if hasattr(mixer, "query_rows") else "the input"
            if name != "depthwise.weight":
                of = f"the input, for {name.split('.')[0]}"
            found[of] = weight.detach()[:, 0].numpy()  # (C, 1, K) -> (C, K)
    if not found:
        raise ValueError(f"layer {layer} of {model.config.variant} has no depthwise convolution")
    return {name: weight[channel_order(weight)] for name, weight in found.items()}


def channel_order(weight):
    """Channels (C,) by the position of their largest weight, first to last, then by that weight. weight (C, K)"""
    largest = np.abs(weight).argmax(axis=1)  # (C,)
    return np.lexsort((weight[np.arange(len(weight)), largest], largest))


# --- In words ---------------------------------------------------------------------------------------------------------


def describe(p, clipped=False):
    """(what a kernel looks at, the numbers behind it) for K weights p that sum to 1.

    Where `clipped`, the weights at both ends are those of every token k or more away, and are named so. What counts is
    the excess: how far a weight lies above the mean weight 1/K, and its share of the sum of all excesses. The rules, of
    which the first that holds is taken:

        everything alike        every weight is between 0.5 and 1.5 times the mean
        previous / next token   it has more than half of the excess; so also "the token itself" and those farther off
        away from neighbours    the tokens at r = -1, 0, 1 have on average less than half of what the others have
        backward / forward      the tokens on that side have two thirds of the excess or more
        near                    the tokens at r = -2 .. 2 have two thirds of the excess or more; for K = 5 that is all
        mixed                   none of these
    """
    K, k = len(p), len(p) // 2
    r, peak = np.arange(-k, k + 1), int(p.argmax()) - k
    excess = np.maximum(p - 1 / K, 0)
    share = excess / max(excess.sum(), 1e-300)
    back, ahead, near = share[r < 0].sum(), share[r > 0].sum(), share[abs(r) <= 2].sum()
    neighbours = p[abs(r) <= 1].mean() / max(p[abs(r) > 1].mean(), 1e-300) if k > 1 else math.inf
    place = {-1: "previous token", 0: "the token itself", 1: "next token"}.get(peak, f"the token at {peak:+d}")
    if clipped and abs(peak) == k > 0:
        place = f"{k} or more {'back' if peak < 0 else 'ahead'}"
    numbers = (f"weights {p.min() * K:.2f} to {p.max() * K:.2f} of the mean, the largest at r = {peak:+d}; of the "
               f"excess {share.max():.0%} there, {back:.0%} backward, {ahead:.0%} forward, {near:.0%} near; "
               f"neighbours {neighbours:.2f} times the others")
    rules = (
        ("everything alike", p.min() * K >= 0.5 and p.max() * K <= 1.5),
        (place, share.max() > 0.5),
        ("away from neighbours", neighbours < 0.5),
        ("backward", back >= 2 / 3),
        ("forward", ahead >= 2 / 3),
        ("near", near >= 2 / 3),
        ("mixed", True),
    )
    return next(words for words, holds in rules if holds), numbers


def print_descriptions(kernels, clipped):
    """A line for each layer and head of {layer: (H, K)}."""
    for layer, heads in kernels.items():
        for head, p in enumerate(heads, 1):
            words, numbers = describe(p.astype(np.float64), clipped)
            print(f"layer {layer:>2}, head {head:>2}: {words:<20}  ({numbers})")


def print_places(kernels, layer):
    """A line for each convolution of {of what: (C, K)}: how many channels have their largest weight at which r."""
    for name, weight in kernels.items():
        r, channels = np.unique(np.abs(weight).argmax(axis=1) - weight.shape[1] // 2, return_counts=True)
        places = ", ".join(f"{place:+d} in {count}" if place else f"0 in {count}" for place, count in zip(r, channels))
        print(f"layer {layer:>2}, convolution of {name}: largest weight of {len(weight)} channels at r = {places}")


# --- On paper ---------------------------------------------------------------------------------------------------------


def pyplot():
    """matplotlib's pyplot, set for print; it needs no display. ValueError, in one line, where it is missing."""
    try:
        import matplotlib
    except ImportError:
        raise ValueError("drawing needs matplotlib, an optional extra: pip install matplotlib") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    plt.rcParams.update({"font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "figure.dpi": 100,
                         "savefig.dpi": 200, "figure.constrained_layout.use": True, "text.parse_math": False,
                         "svg.fonttype": "none", "svg.hashsalt": "figures"})
    return plt


def draw_attention(model, ids, pieces, layer, head):
    """[C] figure 1: a head's attention map, beside the map that its convolution kernel alone would make."""
    maps, plt = attention_maps(model, ids, layer, head), pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(6.3, 3.4), sharey=True)
    titles = ("attention: content and positions", "kernel alone: positions without content")
    for axis, p, title in zip(axes, maps, titles):
        image = axis.imshow(p, cmap="cividis", vmin=0, vmax=1)
        axis.set(title=title, xlabel="key j", xticks=range(len(pieces)), yticks=range(len(pieces)))
        axis.set_xticklabels(pieces, rotation=90)
        axis.set_yticklabels(pieces)
    axes[0].set_ylabel("query i")
    figure.colorbar(image, ax=axes, label="weight (a row sums to 1)", shrink=0.8)
    return figure


def clips(model):
    """Whether the end weights of a model's kernels hold for all tokens farther off too: terms under --window clip."""
    return model.config.window == "clip" and bool(VARIANTS[model.config.variant].terms)


def relative_axis(axis, K, clipped=False, label=True):
    """Name the columns of K weights by relative position, left is before; `clipped` ends stand for all beyond."""
    k = K // 2
    names = [f"\u2264{-k}", "0", f"\u2265{k}"] if clipped else [f"{-k}", "0", f"{k:+d}"]
    axis.set_xticks([0, k, K - 1] if k else [0], names if k else ["0"])
    if label:
        axis.set_xlabel("relative position r (tokens)")


def draw_fixed(model):
    """[C] figure 2: the learned kernel of each layer (row) and head (column)."""
    kernels, plt = fixed_kernels(model), pyplot()
    H, K = next(iter(kernels.values())).shape
    figure, axes = plt.subplots(len(kernels), H, squeeze=False, sharex=True, sharey=True,
                                figsize=(6.3, 0.5 + max(0.55, 0.9 - 0.03 * len(kernels)) * len(kernels)))
    for row, (layer, heads) in zip(axes, kernels.items()):
        for head, (axis, p) in enumerate(zip(row, heads), 1):
            axis.bar(range(K), p, color=[COLOURS[1] if r == K // 2 else COLOURS[0] for r in range(K)], width=0.9)
            axis.axhline(1 / K, color="0.4", linewidth=0.6, linestyle=":")  # all alike
            relative_axis(axis, K, clips(model), label=False)
            if layer == min(kernels):  # the row at the top
                axis.set_title(f"head {head}")
        row[0].set_ylabel(f"layer {layer}")
    figure.supxlabel("relative position r (tokens; r = 0 in the other colour)", fontsize=8)
    figure.supylabel("softmax over r of the kernel (dotted: all alike)", fontsize=8)
    return figure


def draw_depthwise(model, layer):
    """[C] figure 3: depthwise kernels, a row a channel, sorted by the position of the largest weight."""
    kernels, plt = depthwise_kernels(model, layer), pyplot()
    width = min(6.3, 1.2 + 2.1 * len(kernels))
    figure, axes = plt.subplots(1, len(kernels), squeeze=False, sharey=True, figsize=(width, 4))
    limit = max(np.abs(weight).max() for weight in kernels.values())
    for axis, (name, weight) in zip(axes[0], kernels.items()):
        image = axis.imshow(weight, cmap="PuOr", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
        axis.set_title(f"convolution of {name}".replace(", ", ",\n"))
        relative_axis(axis, weight.shape[1])
    axes[0][0].set_ylabel("channel, sorted by the place of its largest weight")
    figure.colorbar(image, ax=axes, label="weight")
    return figure


def draw_dynamic(model, ids, pieces, layer, head):
    """The kernel that each token of a sentence makes in one head, a row a token."""
    mixer_of(model, layer, head)  # or a line about which there are
    kernels = dynamic_kernels(model, ids, layer)  # (H, N, K)
    if head > len(kernels):
        raise ValueError(f"there is no convolution head {head}: a layer of {model.config.variant} has {len(kernels)}")
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(4, 0.9 + 0.17 * len(pieces)))
    image = axis.imshow(kernels[head - 1], cmap="cividis", vmin=0, aspect="auto")
    axis.set_yticks(range(len(pieces)), pieces)
    axis.set_ylabel("token i that makes the kernel")
    relative_axis(axis, kernels.shape[-1], clips(model))
    figure.colorbar(image, ax=axis, label="softmax over r of the dynamic kernel")
    return figure


def read_curves(folder):
    """{"training": (steps, losses), "held-out": ...} from a run's log.jsonl. ValueError where there is none."""
    path = Path(folder) / "log.jsonl"
    if not path.is_file():
        raise ValueError(f"{folder} is not a run: it has no log.jsonl")
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        curves = {name: [(int(record["step"]), float(record[key])) for record in records if key in record]
                  for name, key in (("training", "loss"), ("held-out", "held_out_loss"))}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{path} is damaged or of another project") from None
    if not any(curves.values()):
        raise ValueError(f"{path} has no losses yet")
    return curves


def draw_loss(folders):
    """Held-out loss against steps, a line a run; the training loss thin behind it."""
    runs, plt = {str(folder): read_curves(folder) for folder in folders}, pyplot()
    figure, axis = plt.subplots(figsize=(6.3, 3.2))
    for n, (folder, curves) in enumerate(runs.items()):
        style = dict(color=COLOURS[n % len(COLOURS)], linestyle=DASHES[n // len(COLOURS) % len(DASHES)])
        if curves["training"]:
            axis.plot(*zip(*curves["training"]), linewidth=0.6, alpha=0.5, **style)
        steps, losses = zip(*curves["held-out"]) if curves["held-out"] else ([], [])
        axis.plot(steps, losses, marker=".", label=folder.lstrip("_"), **style)  # a label beginning with _ is not shown
    axis.set(xlabel="optimizer steps", ylabel="masked-token loss (nats)\nthin: training; dots: held-out")
    axis.legend()
    return figure


def read_lengths(path):
    """{variant: [(N, ms, GFLOP, KiB)]} of what `pretrain.py --benchmark --lengths` printed. ValueError: none there."""
    if not Path(path).is_file():
        raise ValueError(f"{path} is not a file: python pretrain.py --benchmark --lengths > lengths.txt makes one")
    table = {}
    for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.replace(",", "").split()
        if len(fields) == 7 and fields[0].isdigit():
            N, name, milliseconds, _, flops, memory, _ = fields
            try:
                table.setdefault(name, []).append((int(N), float(milliseconds), float(flops), float(memory)))
            except ValueError:
                raise ValueError(f"{path}: this is no row of the table: {line.strip()}") from None
    if not table:
        raise ValueError(f"{path} has no table of pretrain.py --benchmark --lengths")
    return table


def draw_lengths(path):
    """Time, FLOPs and memory per 1,000 tokens against N: a level line is a cost linear in N."""
    table, plt = read_lengths(path), pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(6.3, 2.6))
    for n, (name, rows) in enumerate(table.items()):
        N, *costs = np.array(rows).T
        for axis, cost in zip(axes, costs):
            axis.loglog(N, cost, marker="o", markersize=2.5, linewidth=1, label=name, color=COLOURS[n % len(COLOURS)],
                        linestyle=DASHES[n % len(DASHES)])
    for axis, label in zip(axes, ("ms", "GFLOP", "KiB")):
        axis.set(xlabel="N (tokens in a sequence)", ylabel=f"{label} per 1,000 tokens")
        axis.xaxis.set(major_locator=plt.FixedLocator([64, 512, 4096]), minor_formatter=plt.NullFormatter())
        axis.yaxis.set(major_locator=plt.LogLocator(subs=(1, 2, 5)), minor_formatter=plt.NullFormatter())
        axis.xaxis.set_major_formatter("{x:,g}")
        axis.yaxis.set_major_formatter("{x:,g}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return figure


# --- The command line -------------------------------------------------------------------------------------------------


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=("attention", "fixed", "depthwise", "dynamic", "loss", "lengths"))
    parser.add_argument("run", help="folder that pretrain.py wrote; for lengths: the file with the printed table")
    parser.add_argument("more", nargs="*", help="the sentence of attention and dynamic; further runs of loss")
    parser.add_argument("--layer", type=whole_number, help="of attention, depthwise, dynamic: from 1, the default")
    parser.add_argument("--head", type=whole_number, help="of attention, dynamic: from 1, the default")
    parser.add_argument("--describe", action="store_true", help="print the kernels in words and draw nothing")
    parser.add_argument("--out", type=Path, help="path of the figure, without .png and .svg; or a folder that is there")
    args = parser.parse_intermixed_args(argv)
    if args.describe and args.figure not in ("fixed", "depthwise", "dynamic"):
        parser.error("--describe goes with fixed, depthwise and dynamic")
    if args.layer and args.figure in ("fixed", "loss", "lengths") or args.head and (
            args.describe or args.figure not in ("attention", "dynamic")):
        parser.error("--layer goes with attention, depthwise and dynamic, --head with attention and dynamic drawn")
    if len(args.more) > (args.figure in ("attention", "dynamic")) and args.figure != "loss":
        parser.error(f"too much given: {args.more[-1]!r} (a sentence stands between quotation marks)")
    args.layer, args.head = args.layer or 1, args.head or 1
    return args


def draw(args):
    """Make the figure that the command line names, or print the descriptions. Returns the exit code."""
    name, layer, head = args.figure, args.layer, args.head
    if name not in ("loss", "lengths"):
        model, tokenizer = load_run(args.run)
    if name in ("attention", "dynamic"):
        ids, pieces = encode(model, tokenizer, " ".join(args.more))
    match name, args.describe:
        case "fixed", True:
            print_descriptions(fixed_kernels(model), clips(model))
        case "dynamic", True:
            mean = dynamic_kernels(model, ids, layer).mean(axis=1)  # (H, N, K) -> (H, K)
            print("the mean over the sentence's tokens of the kernels that they make")
            print_descriptions({layer: mean}, clips(model))
        case "depthwise", True:
            print_places(depthwise_kernels(model, layer), layer)
        case "attention", _:
            save(draw_attention(model, ids, pieces, layer, head), args, f"attention-layer{layer}-head{head}")
        case "fixed", _:
            save(draw_fixed(model), args, "fixed")
        case "depthwise", _:
            save(draw_depthwise(model, layer), args, f"depthwise-layer{layer}")
        case "dynamic", _:
            save(draw_dynamic(model, ids, pieces, layer, head), args, f"dynamic-layer{layer}-head{head}")
        case "loss", _:
            save(draw_loss([args.run, *args.more]), args, "loss")
        case "lengths", _:
            save(draw_lengths(args.run), args, Path(args.run).stem)
    return 0


def save(figure, args, name):
    """Write the figure as PNG and SVG, to --out or beside what it is of, and print both paths."""
    folder = Path(args.run).parent if args.figure == "lengths" else Path(args.run) / "figures"
    out = args.out / name if args.out and args.out.is_dir() else args.out or folder / name
    out.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        path = out.with_name(out.name + suffix)
        figure.savefig(path, metadata={"Date": None} if suffix == ".svg" else None)
        print(path)


def main(argv=None):
    run_to_exit("figures.py", draw, parse_arguments(argv))


if __name__ == "__main__":
    main()
