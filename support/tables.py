"""Numbers in tables."""

import math

import numpy as np


def standard_error(values):
    """Standard error of the mean. Of one value it is not known: nan."""
    if len(values) == 1:
        return math.nan
    return np.std(values, ddof=1) / math.sqrt(len(values))


def mean_and_standard_error(values, digits=3):
    """Mean and standard error of the mean as text, "5.897 +- 0.009"; of one value, the value."""
    mean = f"{np.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} +- {standard_error(values):.{digits}f}"
