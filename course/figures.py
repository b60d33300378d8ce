"""The figures of the handout: its worked example, and the loss curves of the toy language.

    python -m course.figures            writes course/example.png and course/curves.png

Drawing needs matplotlib (pip install matplotlib). The worked example is computed here by the
project's own functions. The curves are drawn from the records in results/toy.jsonl.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import math
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch

from attention import Dynamic, attention
from course.parts import ROOT
from kernels import convolve, gather_scores
from lab.figures import COLOURS, load_pyplot, plot_curve
from lab.idea import INK, LIGHT, STRONG, draw_arrow, draw_square, write
from lab.record import read_run_records
from lab.report import ORDER
from support.commands import run_command

# The worked example: N = 4 tokens, one head with d = 2 channels, K = 3.
TOKENS = ("the", "dog", "barks", ".")
QUERY = ((1, 0), (0, 1), (1, 1), (-1, 0))  # (N, d)
KEY = ((0, 1), (1, 0), (1, 1), (0, -1))  # (N, d)
VALUE = ((1, 0), (0, 1), (1, 1), (0, 0))  # (N, d)
W = ((2, 0, 1), (0, 1, -1))  # (d, K), the columns are r = -1, 0, 1

GREY = "#EEEEEE"
WEIGHT = np.array([0.0, 0.447, 0.698])  # the darkest colour of a weight of attention, as red, ...


class Example(NamedTuple):
    """All steps of the worked example. Scores are multiplied by sqrt(d): they are whole numbers."""

    rows: torch.Tensor  # (N, K)
    position: torch.Tensor  # (N, N)
    content: torch.Tensor  # (N, N)
    total: torch.Tensor  # (N, N)
    weights: torch.Tensor  # (N, N)
    result: torch.Tensor  # (N, d)
    kernels: torch.Tensor  # (N, K)
    convolved: torch.Tensor  # (N, d), with these kernels


def compute_example():
    """The worked example, computed by the functions that the students write."""
    query = torch.tensor(QUERY, dtype=torch.float64)
    key = torch.tensor(KEY, dtype=torch.float64)
    value = torch.tensor(VALUE, dtype=torch.float64)
    N, d = query.shape
    K = len(W[0])

    # the row of every query
    term = Dynamic(SimpleNamespace(heads=1, hidden_size=d, kernel_size=K)).double()
    term.w.data = torch.tensor(W, dtype=torch.float64)
    with torch.no_grad():
        rows = term(query[None, None])  # (1, 1, N, d) -> (1, 1, N, K)

    # its map, the content scores, and their sum
    position = gather_scores(rows, N)[0, 0]  # (N, N)
    content = query @ key.T / math.sqrt(d)  # (N, N)
    total = content + position

    # the weights: with the identity as values, the output is the weights themselves
    mask = torch.ones(1, N, dtype=torch.bool)
    batch = (query[None, None], key[None, None])
    weights = attention(*batch, torch.eye(N).double()[None, None], mask, rows)
    result = attention(*batch, value[None, None], mask, rows)

    # without content: a kernel for every query, and its convolution
    kernels = rows.softmax(dim=-1)
    convolved = convolve(kernels, value[None, None])

    root = math.sqrt(d)
    return Example(
        rows[0, 0] * root,
        position * root,
        content * root,
        total * root,
        weights[0, 0],
        result[0, 0],
        kernels[0, 0],
        convolved[0, 0],
    )


# --- The worked example as a figure ---------------------------------------------------------------


def draw_example(pyplot):
    """From the rows of the queries to the weights of attention, from left to right."""
    example = compute_example()
    figure, axis = pyplot.subplots(figsize=(11, 3.1), facecolor="white")
    axis.set(xlim=(0, 31.2), ylim=(8.2, 0), aspect="equal")
    axis.axis("off")

    # the row of every query; the lines of all grids are the tokens
    for i, token in enumerate(TOKENS):
        write(axis, 1.2, 2.5 + i, token, size=11)
    draw_grid(axis, 2.4, example.rows, colour_of_column, "rows", "q . w")
    write(axis, 3.9, 6.6, "r = \u22121, 0, 1", size=10)
    draw_arrow(axis, (5.6, 4), (6.8, 4))
    write(axis, 6.2, 3.4, "shift", size=10)

    # the map of the rows, plus content, is the sum
    draw_grid(axis, 7.2, example.position, colour_of_position, "position map", "dynamic term")
    write(axis, 11.9, 4, "+", size=18)
    draw_grid(axis, 12.6, example.content, colour_of_number, "content", "q . k")
    write(axis, 17.3, 4, "=", size=18)
    draw_grid(axis, 18, example.total, colour_of_number, "sum", "q . k + q . w")
    draw_arrow(axis, (22.4, 4), (24.2, 4))
    write(axis, 23.3, 3.4, "softmax", size=10)

    # the weights, darker where they are larger
    draw_grid(
        axis, 24.8, example.weights, colour_of_weight, "weights", "of sum / sqrt(2)", digits=2
    )
    for left in (7.2, 12.6, 18, 24.8):
        for j, token in enumerate(TOKENS):
            write(axis, left + j + 0.5, 6.6, token, size=8.5)
    write(axis, 15.6, 7.7, "light: farther away than k = 1, so the end weight again", size=10)
    return figure


def draw_grid(axis, left, numbers, colour, *title, digits=0):
    """A table of numbers as squares; its upper left corner is at (left, 2)."""
    width = numbers.shape[1]
    write(axis, left + width / 2, 0.7, *title, size=11)
    for i, row in enumerate(numbers.tolist()):
        for j, number in enumerate(row):
            draw_square(axis, left + j, 2 + i, colour(i, j, number))
            rounded = round(number, digits) + 0.0  # -0.0 + 0.0 is 0.0
            text = f"{rounded:.{digits}f}".replace("-", "\u2212")
            ink = INK
            if colour is colour_of_weight and number > 0.6:
                ink = "white"
            axis.text(
                left + j + 0.5, 2.5 + i, text, ha="center", va="center", fontsize=9.5, color=ink
            )


def colour_of_column(i, j, number):
    return STRONG[j - 1]


def colour_of_position(i, j, number):
    r = j - i
    if r < -1:
        return LIGHT[-1]
    if r > 1:
        return LIGHT[1]
    return STRONG[r]


def colour_of_number(i, j, number):
    return GREY


def colour_of_weight(i, j, number):
    white = np.ones(3)
    return tuple(white + number * (WEIGHT - white))


# --- The loss curves of the toy language ----------------------------------------------------------


def draw_curves(pyplot):
    """Held-out loss against steps: the mean over the seeds of each variant of the paper's order."""
    # {variant: the curve of each seed}
    curves = {variant: [] for variant in ORDER}
    for record in read_run_records(ROOT / "results/toy.jsonl"):
        variant = record["settings"]["variant"]
        if variant in ORDER:
            curves[variant].append(record["curve"])

    figure, axis = pyplot.subplots(figsize=(6.3, 3.2), layout="constrained")
    for number, (variant, runs) in enumerate(curves.items()):
        mean = np.mean([[(step, loss) for step, loss, _ in curve] for curve in runs], axis=0)
        plot_curve(axis, mean.tolist(), color=COLOURS[number], marker=".", label=variant)
    axis.set_xlabel("optimizer steps")
    axis.set_ylabel("held-out loss (nats)")
    axis.set_ylim(bottom=0)
    axis.legend()
    return figure


def main():
    """Write both figures."""
    pyplot = load_pyplot()
    for name, draw in (("example", draw_example), ("curves", draw_curves)):
        path = ROOT / f"course/{name}.png"
        draw(pyplot).savefig(path, dpi=150, bbox_inches="tight")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    run_command("course.figures", main)
