"""Paired comparisons: is one variant better than another, or is it the noise between seeds?"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Comparison:
    """The result of a paired t-test.

    Attributes:
        mean: the mean difference.
        standard_error: of the mean; nan for a single pair.
        p: the two-sided p-value; nan for a single pair. If there were no true difference, a mean
            difference of at least this size would occur with this probability.
        pairs: how many pairs were compared.
    """

    mean: float
    standard_error: float
    p: float
    pairs: int

    def text(self, digits=3):
        """The comparison as text: "0.052 +- 0.011 (p = 0.04, 3 seeds)"."""
        if self.pairs == 1:
            return f"{self.mean:.{digits}f} (one seed)"
        return (
            f"{self.mean:.{digits}f} +- {self.standard_error:.{digits}f} "
            f"(p = {self.p:.2g}, {self.pairs} seeds)"
        )


def compare(first, second):
    """Paired t-test of first - second.

    The pairs are runs with the same seed: they were trained on the same batches and masks, so part
    of the noise is equal in both and disappears in the difference.

    Args:
        first, second: {seed: value}. Seeds that only one of them has are left out.
    Returns:
        A Comparison.
    Raises:
        ValueError: no seed is in both.
    """
    seeds = [seed for seed in first if seed in second]
    if not seeds:
        raise ValueError("there is no seed that both have, so they cannot be compared")
    differences = np.array([first[seed] - second[seed] for seed in seeds])  # (seeds,)

    # one pair has a difference but no error
    n = len(differences)
    mean = float(differences.mean())
    if n == 1:
        return Comparison(mean, math.nan, math.nan, 1)

    # t = mean / standard error. If all differences are equal, the error is 0.
    standard_error = float(differences.std(ddof=1)) / math.sqrt(n)
    if standard_error == 0:
        p = 1.0 if mean == 0 else 0.0
        return Comparison(mean, 0.0, p, n)
    return Comparison(mean, standard_error, two_sided_p(mean / standard_error, n - 1), n)


def two_sided_p(t, degrees):
    """The probability that Student's t with so many degrees of freedom is at least |t| away from 0.

    The density of t is proportional to (1 + t^2 / degrees)^(-(degrees + 1) / 2). With the
    substitution t = sqrt(degrees) * tan(a) the range from -infinity to infinity becomes the range
    of angles from -pi/2 to pi/2, and the density becomes cos(a)^(degrees - 1). The probability is
    the share of the area beyond the angle of |t|, here by Simpson's rule.
    """

    def area(low, high, intervals=2000):
        angles = np.linspace(low, high, intervals + 1)
        heights = np.cos(angles) ** (degrees - 1)
        weights = np.ones(intervals + 1)
        weights[1:-1:2] = 4
        weights[2:-1:2] = 2
        return float((weights * heights).sum()) * (high - low) / intervals / 3

    angle = math.atan(abs(t) / math.sqrt(degrees))
    return area(angle, math.pi / 2) / area(0, math.pi / 2)
