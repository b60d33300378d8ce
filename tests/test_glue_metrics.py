"""support/glue_metrics.py: each metric equals counted examples and its formula in loops."""

import itertools
import math
import random

import numpy as np
import pytest

from glue_helpers import error_of
from support.glue_format import FORMATS, Examples
from support.glue_metrics import METRICS, accuracy, f1, matthews, pearson, scores, spearman


def pairs_of_lists(values, length=5):
    """Every pair of lists of this length with elements from `values`."""
    lists = list(itertools.product(values, repeat=length))
    return itertools.product(lists, repeat=2)


# --- accuracy and F1 ---


def test_accuracy_is_the_share_of_equal_labels():
    assert accuracy([2, 0, 1, 1], [2, 1, 1, 0]) == 0.5
    assert accuracy([0], [1]) == 0.0
    for x, y in pairs_of_lists((0, 1), length=4):
        equal = [a == b for a, b in zip(x, y, strict=True)]
        assert accuracy(x, y) == sum(equal) / 4


# Eight cats (1) and four dogs (0); six cats and three dogs are recognised. TP 6, FN 2, FP 1, TN 3.
CATS = [1] * 8 + [0] * 4
GUESSES = [1] * 6 + [0] * 2 + [1] + [0] * 3


def test_f1_of_a_counted_example():
    assert f1(GUESSES, CATS) == 12 / 15  # precision 6/7, recall 6/8
    assert f1([1, 1, 0], [1, 0, 0]) == pytest.approx(2 / 3, abs=1e-15)


def test_f1_is_the_harmonic_mean_of_precision_and_recall():
    for x, y in pairs_of_lists((0, 1)):
        right = sum(a == b == 1 for a, b in zip(x, y, strict=True))
        expected = 0.0
        if right > 0:
            precision = right / sum(x)
            recall = right / sum(y)
            expected = 2 * precision * recall / (precision + recall)
        assert f1(x, y) == pytest.approx(expected, abs=1e-15)


# --- correlations ---


def test_matthews_of_a_counted_example():
    expected = (6 * 3 - 1 * 2) / math.sqrt(7 * 8 * 4 * 5)
    assert matthews(GUESSES, CATS) == pytest.approx(expected, abs=1e-15)
    assert matthews(GUESSES, CATS) == pytest.approx(0.478, abs=5e-4)
    assert matthews([1, 0, 1, 0], [0, 1, 0, 1]) == pytest.approx(-1, abs=1e-15)


def test_matthews_is_its_formula_over_the_four_cells():
    for x, y in pairs_of_lists((0, 1)):
        cells = list(zip(x, y, strict=True))
        tp = cells.count((1, 1))
        fp = cells.count((1, 0))
        fn = cells.count((0, 1))
        tn = cells.count((0, 0))
        product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
        expected = 0.0
        if product > 0:
            expected = (tp * tn - fp * fn) / math.sqrt(product)
        assert matthews(x, y) == pytest.approx(expected, abs=1e-14)


ANSCOMBE_X = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
ANSCOMBE_Y1 = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
ANSCOMBE_Y2 = [9.14, 8.14, 8.74, 8.77, 9.26, 8.10, 6.13, 3.10, 9.13, 7.26, 4.74]


def test_pearson_of_anscombes_data():
    """Anscombe 1973: four sets with the same correlation, 0.816; here the first two."""
    assert pearson(ANSCOMBE_X, ANSCOMBE_Y1) == pytest.approx(0.816, abs=5e-4)
    assert pearson(ANSCOMBE_X, ANSCOMBE_Y2) == pytest.approx(0.816, abs=5e-4)
    # deviations -1 0 1 and -1 1 0: 1 / 2
    assert pearson([1, 2, 3], [1, 3, 2]) == pytest.approx(0.5, abs=1e-15)


def pearson_by_loops(x, y):
    mean_x = sum(x) / len(x)
    mean_y = sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    variance_x = sum((a - mean_x) ** 2 for a in x)
    variance_y = sum((b - mean_y) ** 2 for b in y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        return 0.0
    return covariance / math.sqrt(variance_x * variance_y)


def test_pearson_is_the_covariance_divided_by_both_deviations():
    generator = random.Random(0)
    for length in range(1, 40):
        x = [generator.uniform(-3, 5) for _ in range(length)]
        y = [generator.uniform(-3, 5) for _ in range(length)]
        assert pearson(x, y) == pytest.approx(pearson_by_loops(x, y), abs=1e-12)
        scaled = [3 * a - 1 for a in x]
        assert pearson(scaled, y) == pytest.approx(pearson(x, y), abs=1e-12)


def test_spearman_of_a_textbook_example():
    """Ten people's intelligence and hours of television: no ties; squared differences of ranks
    add up to 194."""
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert spearman(iq, hours) == pytest.approx(1 - 6 * 194 / (10 * 99), abs=1e-14)
    assert spearman(iq, hours) == pytest.approx(-29 / 165, abs=1e-14)


def ranks_by_loops(values):
    """The rank of a value: how many are below it, plus the middle of those equal to it."""
    ranks = []
    for value in values:
        below = sum(other < value for other in values)
        equal = sum(other == value for other in values)
        ranks.append(below + (equal + 1) / 2)
    return ranks


def test_spearman_gives_ties_their_average_rank():
    # ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5
    expected = 4.5 / math.sqrt(4.5 * 5)
    assert spearman([0, 7, 7, 9], [1, 2, 3, 4]) == pytest.approx(expected, abs=1e-15)
    for x, y in pairs_of_lists((0, 1, 2), length=4):
        expected = pearson_by_loops(ranks_by_loops(x), ranks_by_loops(y))
        assert spearman(x, y) == pytest.approx(expected, abs=1e-14)


# --- what is not defined, and what is wrong ---


@pytest.mark.parametrize("name", ["f1", "matthews", "pearson", "spearman"])
def test_constant_predictions_or_labels_score_zero(name):
    metric = METRICS[name]
    varied = [0, 1, 0, 0]
    assert metric([0] * 4, varied) == 0.0
    assert metric(varied, [0] * 4) == 0.0
    assert metric([0] * 4, [0] * 4) == 0.0
    if name != "f1":
        assert metric([1] * 4, varied) == 0.0
        assert metric([0.1] * 4, varied) == 0.0
        assert metric(varied, [1] * 4) == 0.0


WRONG_PAIRS = [
    ([], []),
    ([1, 0], [1]),
    ([1.0, math.nan], [1, 0]),
    ([1, 0], [1, math.inf]),
    ([[1, 0]], [[1, 0]]),
]


@pytest.mark.parametrize("name", METRICS)
def test_no_predictions_unequal_numbers_and_nan_are_errors(name):
    for predictions, labels in WRONG_PAIRS:
        assert "one finite prediction" in error_of(METRICS[name], predictions, labels)


# --- the scores of a task ---


def examples(name, split, labels):
    return Examples(FORMATS[name], split, ["x"] * 4, None, labels, None, False, ())


def test_scores_are_the_metrics_of_the_task_and_their_mean_times_100():
    mrpc = examples("mrpc", "dev", [1, 1, 1, 0])
    result = scores(np.array([1, 1, 0, 0]), mrpc, ("accuracy", "f1"))
    assert result == {
        "accuracy": 75.0,
        "f1": pytest.approx(80),
        "score": pytest.approx(77.5),
    }

    mnli = examples("mnli", "dev_matched", [2, 0, 0, 0])
    assert scores([2, 0, 1, 1], mnli, ("accuracy",)) == {"accuracy": 50.0, "score": 50.0}

    sts_b = examples("sts-b", "dev", [0.0, 1.0, 4.0, 5.0])
    result = scores([1, 2, 3, 4], sts_b, ("pearson", "spearman"))
    assert result["spearman"] == pytest.approx(100)
    assert result["score"] == pytest.approx((result["pearson"] + 100) / 2)


@pytest.mark.parametrize("split", ["test_matched", "diagnostic"])
def test_scores_of_a_split_without_labels_are_an_error(split):
    mnli = examples("mnli", split, None)
    assert "no published labels" in error_of(scores, [0] * 4, mnli, ("accuracy",))
