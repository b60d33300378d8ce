"""GLUE's metrics equal published values, their formulas in loops, and Python's statistics."""

import itertools
import math
import random
import statistics

import numpy as np
import pytest

from glue import METRICS


def metric(name, predictions, labels):
    return METRICS[name](np.array(predictions, dtype=float), np.array(labels, dtype=float))


def pairs_of_lists(values, length=5):
    """Every pair of lists of this length with elements from `values`."""
    lists = list(itertools.product(values, repeat=length))
    return itertools.product(lists, repeat=2)


def test_accuracy_f1_and_matthews_are_their_formulas_over_the_four_cells():
    """F1 is the harmonic mean of precision and recall. What is not defined is 0."""
    for x, y in pairs_of_lists((0, 1)):
        cells = list(zip(x, y, strict=True))
        tp, fp, fn, tn = (cells.count(cell) for cell in [(1, 1), (1, 0), (0, 1), (0, 0)])
        assert metric("accuracy", x, y) == (tp + tn) / 5

        f1 = 0.0
        if tp > 0:
            precision = tp / (tp + fp)
            recall = tp / (tp + fn)
            f1 = 2 * precision * recall / (precision + recall)
        assert metric("f1", x, y) == pytest.approx(f1, abs=1e-15)

        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        matthews = 0.0
        if product > 0:
            matthews = (tp * tn - fp * fn) / math.sqrt(product)
        assert metric("matthews", x, y) == pytest.approx(matthews, abs=1e-14)


ANSCOMBE_X = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
ANSCOMBE_Y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]


def correlation(x, y):
    """Pearson's, by Python's own library; 0 if all numbers of a side are equal."""
    if len(set(x)) == 1 or len(set(y)) == 1:
        return 0.0
    return statistics.correlation(x, y)


def test_pearson_of_anscombe_s_data_and_of_random_numbers():
    """Anscombe 1973: four sets with the same correlation, 0.816; here the first one."""
    assert metric("pearson", ANSCOMBE_X, ANSCOMBE_Y) == pytest.approx(0.816, abs=5e-4)

    generator = random.Random(0)
    for length in range(1, 40):
        x = [generator.uniform(-3, 5) for _ in range(length)]
        y = [generator.uniform(-3, 5) for _ in range(length)]
        assert metric("pearson", x, y) == pytest.approx(correlation(x, y), abs=1e-12)
    assert metric("pearson", [0.1] * 4, [0, 1, 0, 0]) == 0.0


def ranks_by_loops(values):
    """The rank of a value: how many are below it, plus the middle of those equal to it."""
    ranks = []
    for value in values:
        below = sum(other < value for other in values)
        equal = sum(other == value for other in values)
        ranks.append(below + (equal + 1) / 2)
    return ranks


def test_spearman_of_a_textbook_example_and_with_ties():
    """Ten people's intelligence and hours of television: squared differences of ranks sum to 194.

    Ties have their average rank.
    """
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert metric("spearman", iq, hours) == pytest.approx(1 - 6 * 194 / (10 * 99), abs=1e-14)

    for x, y in pairs_of_lists((0, 1, 2), length=3):
        expected = correlation(ranks_by_loops(x), ranks_by_loops(y))
        assert metric("spearman", x, y) == pytest.approx(expected, abs=1e-14)
