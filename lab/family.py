"""The figures of docs/family.md: what schemes of relative positions have learned to add to scores.

    python -m lab.family           draws them from the record results/family-rows.jsonl

The runs of the record are those of one command:

    python pretrain.py --variant fixed t5 alibi fire dynamic xl rotary deberta --seed 3

A line of the record is a run: what made it (settings, code, made_by), the layer, the tokens, and
the scores: (H, N, N), what the position terms add to a_ij, minus the mean over j, which the softmax
ignores.

rotary has no term: it rotates queries and keys. But the keys of a head have a mean k_mean, which
adds to the scores what a bias of the keys adds: q_i . R_r k_mean / sqrt(d), a dynamic term with w_r
= R_r k_mean (docs/family.md). These are its scores here: every key is replaced by k_mean.

Layers and heads count from 1. Drawing needs matplotlib (pip install matplotlib).
"""

from pathlib import Path

import numpy as np

from lab.figures import COLOURS, load_pyplot
from support.commands import run_command
from support.runs import read_records

RECORD = Path("results/family-rows.jsonl")

# The lines of a panel, as (head, query), both from 0; query 8 of the 17 tokens is in the middle and
# sees r = -8 ... 8. In the first figure all queries of a head
# have the same row, and four heads are drawn. In the second one each query makes its own.
HEADS = {"head 1": (0, 8), "head 2": (1, 8), "head 3": (2, 8), "head 4": (3, 8)}
QUERIES = {"query cat": (0, 3), "that": (0, 4), "chased": (0, 5), "was": (0, 13)}

# By figure and variant: the layer, what it adds to the score, and the lines. The layers are chosen
# so that the lines are between -LIMIT and LIMIT; the colours end there.
LIMIT = 5
FIGURES = {
    "docs/family-shared.png": {
        "fixed": (1, "beta_r", HEADS),
        "t5": (1, "beta_bucket(r)", HEADS),
        "alibi": (1, "-m_h abs(r), not learned", HEADS),
        "fire": (2, "mlp_h(x_r)", HEADS),
    },
    "docs/family-own.png": {
        "dynamic": (1, "q_i . w_r / sqrt(d)", QUERIES),
        "xl": (1, "(q_i + b_p) . W S_r / sqrt(d)", QUERIES),
        "deberta": (2, "both terms / sqrt(3d)", QUERIES),
        "rotary": (3, "q_i . R_r k_mean / sqrt(d)", QUERIES),
    },
}


def draw_family(records, schemes):
    """For each scheme, four rows against r, and beside them the map of head 1."""
    records = {record["settings"]["variant"]: record for record in records}
    figure, panels = load_pyplot().subplots(
        len(schemes), 2, figsize=(8.2, 11.4), width_ratios=(1.15, 1)
    )
    for (variant, (layer, term, lines)), (left, right) in zip(schemes.items(), panels, strict=True):
        tokens = records[variant]["tokens"]
        scores = np.array(records[variant]["scores"])  # (H, N, N)
        N = len(tokens)

        # the map of head 1
        image = right.imshow(scores[0], cmap="PuOr_r", vmin=-LIMIT, vmax=LIMIT)
        right.set_xticks(range(N), tokens, rotation=90, fontsize=7)
        right.set_yticks(range(N), tokens, fontsize=7)
        right.set_title(f"layer {layer}, head 1")

        # lines of maps against r = j - i, as far as the sentence reaches; j is from 0 to N - 1
        for (label, (h, i)), colour in zip(lines.items(), COLOURS, strict=False):
            left.plot(range(-i, N - i), scores[h, i], color=colour, label=label)
            if h == 0:
                right.get_yticklabels()[i].set_color(colour)  # this line of the map
        left.axvline(0, color="0.7", linewidth=0.6)
        left.set(
            xlim=(-8, 8),
            ylim=(-LIMIT, LIMIT),
            xlabel="r = j - i (tokens)",
            ylabel="added to a_ij, minus its mean",
        )
        left.set_title(f"{variant}: {term}")
        left.legend(fontsize=7)

    label = "added to the score of query i (down) and key j (to the right), minus the mean over j"
    figure.colorbar(
        image, ax=panels, label=label, location="bottom", aspect=50, pad=0.01, extend="both"
    )
    return figure


def main():
    records = read_records(RECORD)
    for path, schemes in FIGURES.items():
        draw_family(records, schemes).savefig(path, dpi=100)
        print(path)


if __name__ == "__main__":
    run_command(main)
