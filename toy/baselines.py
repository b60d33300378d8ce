"""Baselines of the toy GLUE tasks: what can be reached without a pre-trained model.

    from toy.baselines import baselines
    baselines("CoLA", train, dev)
    # {"majority": 0.0, "words": ..., "trigrams": ..., "length": ...}

`train` and `dev` are lists of Row of toy/glue.py. Each baseline, except "majority", is a linear
model of simple features of the texts: which words or short word sequences they have, or how long
they are. From top to bottom: the scores, the features of a row, the matrix of the features of all
rows, and the linear model.
"""

import re

import numpy as np

from support.glue_metrics import METRICS

PENALTY = 5  # of the ridge regression: larger values keep the weights smaller
ROUNDS = 50  # of the conjugate gradient method, at most

# The metrics that glue.py uses; all other tasks are scored by accuracy.
TASK_METRICS = {
    "CoLA": ("matthews",),
    "MRPC": ("accuracy", "f1"),
    "STS-B": ("pearson", "spearman"),
    "QQP": ("accuracy", "f1"),
}


def baselines(task, train, dev):
    """The scores on dev of simple methods that learn from train.

    Args:
        task: the name of the task, "CoLA", "SST-2", ... It decides the metrics, which are those of
            glue.py: a score is the mean of the task's metrics, times 100.
        train: list of Row, the rows to learn from.
        dev: list of Row, the rows to predict.
    Returns:
        {name: score}
        majority    the same answer to every row, the best one for dev
        words       a linear model that knows which words each text has (a bag of words), and which
                    words both texts have
        trigrams    the same with sequences of one, two and three words
        first       as trigrams, with the first text only; not if there is only one text
        second      as trigrams, with the second text only; not if there is only one text
        length      a linear model that knows the number of words of each text
    """
    names = ["words", "trigrams", "length"]
    if len(train[0].texts) == 2:
        names = ["words", "trigrams", "first", "second", "length"]

    # The same answer to every row. The columns of the targets are the possible answers.
    targets = targets_of(train)  # (train rows, labels)
    constant_scores = []
    for answer in np.eye(targets.shape[1]):  # (labels,)
        constant_scores.append(score(task, np.tile(answer, (len(dev), 1)), dev))
    scores = {"majority": max(constant_scores)}

    # All features of train get a number. A feature that only dev has is not used.
    train_features = [features_of(row) for row in train]
    dev_features = [features_of(row) for row in dev]
    indices = {}
    for features in train_features:
        for feature in features:
            indices.setdefault(feature, len(indices))
    x = Features.of_rows(train_features, indices)
    dev_x = Features.of_rows(dev_features, indices)

    # Each linear model knows a part of the features.
    for name in names:
        known = np.array([is_known(name, feature) for feature in indices])  # (features,)
        predictions = linear_predictions(x.only(known), targets, dev_x.only(known))
        scores[name] = score(task, predictions, dev)
    return scores


def score(task, predictions, rows):
    """The mean of the task's metrics, times 100.

    Args:
        task: the name of the task.
        predictions: (rows, labels), a score per label; for numbers, (rows, 1), the number.
        rows: list of Row, with the right labels.
    """
    targets = targets_of(rows)

    # the class with the highest score; of numbers, the number itself
    if targets.shape[1] == 1:
        predicted = predictions[:, 0]
        right = targets[:, 0]
    else:
        predicted = predictions.argmax(axis=1)
        right = targets.argmax(axis=1)

    metrics = TASK_METRICS.get(task, ("accuracy",))
    values = [METRICS[metric](predicted, right) for metric in metrics]
    return 100 * float(np.mean(values))


def targets_of(rows):
    """What a linear model should predict: (rows, labels) numbers.

    One column per label, with 1 for the label of the row and otherwise 0. If the labels are
    numbers ("2.000"), one column with the numbers.
    """
    if "." in rows[0].label:
        return np.array([[float(row.label)] for row in rows])  # (rows, 1)

    labels = np.array(sorted({row.label for row in rows}))  # (labels,)
    given = np.array([row.label for row in rows])  # (rows,)
    return (given[:, None] == labels).astype(float)  # (rows, labels)


def features_of(row):
    """What is known about a row, as a list of features (where, what).

    the texts          "it ran."    "they ran."
    in the first       it, ran, ., "^ it", "it ran", "ran .", ". $", "^ it ran", ...
    in the second      they, ran, ., "^ they", ...
    in both            ran, ., "ran .", ". $", "ran . $"
    the lengths        2 words, 2 words      (one feature per length; marks are not counted)
    """
    first = word_sequences(row.texts[0])
    second = word_sequences(row.texts[-1])
    features = [("first", words) for words in first]
    features.append(("first length", len(row.texts[0].split())))
    if len(row.texts) == 2:
        features += [("second", words) for words in second]
        features.append(("second length", len(row.texts[1].split())))

        # in the order of the first text, so that the sums are the same in every run
        in_second = set(second)
        features += [("both", words) for words in first if words in in_second]
    return features


def word_sequences(text):
    """All sequences of one, two and three words or marks in a text, each one once.

    "^" is the beginning of the text and "$" is its end.
    """
    words = re.findall(r"\w+|[.,?]", text)
    with_ends = ["^", *words, "$"]
    sequences = list(words)
    sequences += map(" ".join, zip(with_ends, with_ends[1:], strict=False))
    sequences += map(" ".join, zip(with_ends, with_ends[1:], with_ends[2:], strict=False))
    return list(dict.fromkeys(sequences))


def is_known(name, feature):
    """Whether the baseline with this name knows a feature (where, what)."""
    where, what = feature
    if "length" in where:
        return name == "length"
    if name == "words":
        return " " not in what
    if name == "trigrams":
        return True
    return name == where


class Features:
    """Which rows have which features: a matrix (rows, features) of ones and zeros.

    Nearly all of it is zero, so only the indices of the ones are stored.

    The rows "it ran" and "they ran", with three features:

                 it   they   ran              the four ones
        row 0     1     0     1               rows        0  0  1  1
        row 1     0     1     1               features    0  2  1  2

        times((5, 7, 1))            is (5 + 1, 7 + 1), one sum per row
        transposed_times((1, 2))    is (1, 2, 1 + 2), one sum per feature

    Attributes:
        row_count, feature_count: the shape of the matrix.
        rows, features: the row and the column of each one, both (ones,).
    """

    def __init__(self, row_count, feature_count, rows, features):
        self.row_count = row_count
        self.feature_count = feature_count
        self.rows = rows
        self.features = features

    @classmethod
    def of_rows(cls, features_of_rows, indices):
        """The matrix of a list of features per row. indices: {feature: its column}."""
        # the row and the column of each one; a feature without a column is left out
        rows = []
        columns = []
        for row, features in enumerate(features_of_rows):
            for feature in features:
                if feature in indices:
                    rows.append(row)
                    columns.append(indices[feature])
        rows = np.array(rows, dtype=int)
        columns = np.array(columns, dtype=int)
        return cls(len(features_of_rows), len(indices), rows, columns)

    def only(self, known):
        """The same matrix with zeros in all columns that are not known: known (features,) bool."""
        kept = known[self.features]  # (ones,)
        rows = self.rows[kept]
        features = self.features[kept]
        return Features(self.row_count, self.feature_count, rows, features)

    def times(self, w):
        """x w: for each row, the sum of the weights w (features,) of its features."""
        return np.bincount(self.rows, w[self.features], minlength=self.row_count)

    def transposed_times(self, y):
        """x^T y: for each feature, the sum of y (rows,) over the rows that have it."""
        return np.bincount(self.features, y[self.rows], minlength=self.feature_count)


def linear_predictions(x, targets, dev_x):
    """Predict by ridge regression: the weights w that minimize |x w - y|^2 + PENALTY |w|^2.

    y is a column of the targets, without its mean. The weights solve
    (x^T x + PENALTY I) w = x^T y. The conjugate gradient method finds them by products of x with
    vectors, which are fast because nearly all of x is zero.

    Args:
        x: Features of train.
        targets: (train rows, labels).
        dev_x: Features of dev.
    Returns:
        (dev rows, labels)
    """
    mean = targets.mean(axis=0)  # (labels,)
    columns = []
    for y in (targets - mean).T:  # (train rows,)
        # The residual is x^T y - (x^T x + PENALTY I) w. In the beginning, w is 0.
        w = np.zeros(x.feature_count)
        residual = x.transposed_times(y)
        direction = residual
        size = residual @ residual

        for _ in range(ROUNDS):
            if size < 1e-9:
                break

            # Go along this direction to where the error is smallest.
            change = x.transposed_times(x.times(direction)) + PENALTY * direction
            step = size / (direction @ change)
            w = w + step * direction
            residual = residual - step * change

            # The next direction is conjugate to the previous ones: it does not undo their progress.
            last_size = size
            size = residual @ residual
            direction = residual + size / last_size * direction
        columns.append(dev_x.times(w))
    return np.stack(columns, axis=1) + mean  # (dev rows, labels)
