"""GLUE's metrics: accuracy, F1, Matthews correlation, Pearson's r and Spearman's rho.

Every metric takes predictions and labels, both (n,) class ids or numbers, and returns a float.
A metric returns 0 where it is not defined: f1, if class 1 is in neither the predictions nor the
labels; matthews, pearson and spearman, if all predictions or all labels are equal.
"""

import numpy as np

from support.commands import UserError


def checked_arrays(predictions, labels):
    """Both as float64 arrays (n,). ValueError: unequal numbers, none at all, or not finite."""
    x = np.asarray(predictions, dtype=np.float64)
    y = np.asarray(labels, dtype=np.float64)
    one_per_label = x.ndim == 1 and x.shape == y.shape and x.size > 0
    if not one_per_label or not np.isfinite(x).all() or not np.isfinite(y).all():
        raise ValueError(
            "a score needs one finite prediction per label, and at least one label; "
            f"got arrays of shape {x.shape} and {y.shape}"
        )
    return x, y


def accuracy(predictions, labels):
    """The share of predictions that are equal to their label."""
    x, y = checked_arrays(predictions, labels)
    return float(np.mean(x == y))


def f1(predictions, labels):
    """Harmonic mean of precision and recall of class 1: 2 TP / (2 TP + FP + FN)."""
    x, y = checked_arrays(predictions, labels)
    predicted = x == 1  # TP + FP
    actual = y == 1  # TP + FN
    true_positives = np.sum(predicted & actual)
    if true_positives == 0:
        return 0.0
    return float(2 * true_positives / (predicted.sum() + actual.sum()))


def matthews(predictions, labels):
    """Matthews correlation of class 1 against the others (Matthews 1975).

    (TP TN - FP FN) / sqrt((TP + FP) (TP + FN) (TN + FP) (TN + FN)). This is Pearson's r of two
    variables that are 1 for class 1 and 0 for the other.
    """
    x, y = checked_arrays(predictions, labels)
    return pearson(x == 1, y == 1)


def pearson(predictions, labels):
    """Pearson's r: cov(x, y) / (sd(x) sd(y))."""
    x, y = checked_arrays(predictions, labels)

    # a constant has no deviation to divide by
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def spearman(predictions, labels):
    """Spearman's rho: Pearson's r of the ranks."""
    x, y = checked_arrays(predictions, labels)
    return pearson(ranks(x), ranks(y))


def ranks(values):
    """Ranks (n,) from 1 on; equal values get the mean of their ranks.

    Example:
        values             7    0    7    9
        ranks if ordered   2    1    3    4
        result             2.5  1    2.5  4
    """
    # the different values in ascending order; which of them each value is; how often each occurs
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)

    # a value that occurs c times has the ranks from last - c + 1 to last; their mean is
    # last - (c - 1) / 2
    last = np.cumsum(counts)
    mean_ranks = last - (counts - 1) / 2
    return mean_ranks[indices]


METRICS = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def scores(predictions, examples, metrics):
    """The scores of predictions on one split.

    Args:
        predictions: (n,) class ids, or numbers for STS-B.
        examples: the split's Examples (glue_format.py), with labels.
        metrics: names of metrics, keys of METRICS.

    Returns:
        {metric: value, ..., "score": mean of the values}; all values are multiplied by 100.

    Raises:
        UserError: no labels were published for the split.
    """
    if examples.labels is None:
        raise UserError(
            f"{examples.task.folder} {examples.split} has no published labels, "
            "so predictions on it cannot be scored here"
        )
    result = {}
    for name in metrics:
        result[name] = 100 * METRICS[name](predictions, examples.labels)
    result["score"] = float(np.mean(list(result.values())))
    return result
