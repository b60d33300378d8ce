"""The figure of docs/family.md: the rows of weights that each scheme of relative positions makes.

    python -m lab.family                     writes docs/family.png
    python -m lab.family --out FILE.png

Each panel shows four rows against the relative position r of the key, for sequences of 64 tokens:
of four heads, of four queries, or (rotary) of four biases b. The numbers are those of attention.py
at these parameters:

    fixed, t5              tables that hold ALiBi's -m_h abs(r); of t5, at the first r of a bucket
    alibi                  has no parameters
    fire                   its initial values, from seed 0
    dynamic, xl, deberta   their initial values, from seed 0, for four queries from normal(0, 1)
    rotary                 b . R_r b / sqrt(d), the term that a bias b on queries and keys adds: b
                           is 1 in the first 8, 16, 32 and 64 of the 64 channels, and otherwise 0

A learned row can have any shape that its scheme allows. Drawing needs matplotlib (pip install
matplotlib).
"""

import argparse
import math
from pathlib import Path

import torch

from attention import T5, frequencies, make_mixer, rotate
from kernels import extend
from lab.figures import COLOURS, load_pyplot
from model import BertConfig
from support.commands import run_command

N = 64
RELATIVE_POSITIONS = torch.arange(1 - N, N)  # (2N - 1,)
H = 4

TITLES = {
    "fixed": "fixed: beta_r",
    "t5": "t5: beta_bucket(r)",
    "alibi": "alibi: -m_h abs(r)",
    "fire": "fire: mlp_h(r)",
    "dynamic": "dynamic: q_i . w_r / sqrt(d)",
    "xl": "xl: (q_i + v) . W R_r / sqrt(d)",
    "rotary": "rotary: b . R_r b / sqrt(d)",
    "deberta": "deberta: q_i . W_k P_r / sqrt(3d)",
}


@torch.no_grad()
def four_rows(name):
    """Four rows (4, 2N - 1) of a scheme, with the parameters named at the top of this file."""
    torch.manual_seed(0)
    config = BertConfig.from_size("small", name)
    d = config.hidden_size // config.heads
    if name == "rotary":
        return rotary_rows(d)

    # the rows of the scheme; those of fixed and t5 are ALiBi's
    q = torch.randn(1, H, N, d)
    mixer = make_mixer(config, 0)
    mixer.initialise()
    slopes = 2.0 ** (-8 * torch.arange(1, H + 1) / H)  # (H,)
    if name == "fixed":
        k = config.kernel_size // 2
        distance = torch.arange(-k, k + 1).abs()  # (K,)
        mixer.terms[name].beta.copy_(-slopes[:, None] * distance)
    if name == "t5":
        starts = torch.tensor([0, *T5.STARTS])  # where each of the 16 buckets of a side begins
        mixer.terms[name].beta.copy_(-slopes[:, None] * torch.cat([starts, starts]))
    _, _, rows, _, _ = mixer.apply_terms(q, q)  # (1, H, N, K) or (H, 1, K)

    # of the first four queries of the first head, or of the four heads
    if rows.dim() == 4:
        rows = rows[0, 0, :4]  # (4, K)
    else:
        rows = rows[:, 0]  # (4, K)

    # a number for every r
    extra = (2 * N - 1 - rows.shape[-1]) // 2
    return extend(rows, extra, extra)  # (4, K) -> (4, 2N - 1)


def rotary_rows(d):
    """b . R_r b / sqrt(d), what a bias b on queries and keys adds, for four b: (4, 2N - 1)."""
    # b is 1 in the first 8, 16, 32 or 64 channels, and 0 in the others
    channels = torch.arange(d)
    b = torch.stack([channels < count for count in (8, 16, 32, 64)]).float()  # (4, d)

    # R_r b for every r; `rotate` takes a batch, here of one sequence with four heads
    angles = RELATIVE_POSITIONS[:, None] * frequencies(d, "cpu", torch.float32)  # (2N - 1, d/2)
    repeated = b[None, :, None, :].expand(-1, -1, len(angles), -1)  # (1, 4, 2N - 1, d)
    rotated = rotate(repeated, angles)[0]  # (4, 2N - 1, d)
    return (rotated * b[:, None, :]).sum(dim=-1) / math.sqrt(d)


def draw_family():
    """A panel for each scheme, with four rows."""
    figure, axes = load_pyplot().subplots(2, 4, figsize=(9.5, 4), sharex=True)
    for axis, (name, title) in zip(axes.flat, TITLES.items(), strict=True):
        for row, colour in zip(four_rows(name), COLOURS, strict=False):
            axis.plot(RELATIVE_POSITIONS, row, color=colour, linewidth=1)
        axis.axvline(0, color="0.7", linewidth=0.6, linestyle=":")
        axis.set_title(title)
        axis.set_xticks([1 - N, 0, N - 1])
    figure.supxlabel("relative position r = j - i (tokens)", fontsize=8)
    figure.supylabel("added to the score", fontsize=8)
    return figure


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description="Draw the figure of docs/family.md.")
    add = parser.add_argument
    add("--out", type=Path, default="docs/family.png", metavar="FILE.png", help="%(default)s")
    return parser.parse_args(arguments)


def main(arguments=None):
    args = parse_arguments(arguments)
    draw_family().savefig(args.out, dpi=110)
    print(args.out)


if __name__ == "__main__":
    run_command(main)
