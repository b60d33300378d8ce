"""support/statistics.py: Student's t, Welch's test and Holm's correction, by published values."""

import math

import pytest

from conftest import rows_of
from support.statistics import critical_t, difference, mean_and_standard_error, two_sided_p

# two-sided critical values from printed tables: t, n, p
PRINTED = """
    12.706 1      0.05
    4.303  2      0.05
    9.925  2      0.01
    2.776  4      0.05
    2.262  9      0.05
    3.250  9      0.01
    1.960  100000 0.05
"""


@pytest.mark.parametrize("t, n, p", rows_of(PRINTED))
def test_p_values_are_those_of_printed_tables(t, n, p):
    t, n, p = float(t), int(n), float(p)
    assert two_sided_p(t, n) == pytest.approx(p, rel=5e-4)
    assert two_sided_p(-t, n) == pytest.approx(p, rel=5e-4)
    assert critical_t(n, p) == pytest.approx(t, rel=5e-4)


@pytest.mark.parametrize(
    ("first", "second", "mean", "low", "high", "p"),
    [
        # scipy 1.17.1: ttest_ind(first, second, equal_var=False), and its confidence_interval()
        (
            [27.5, 21.0, 19.0, 23.6, 17.0],
            [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8],
            *(-2.0942857, -7.0862815, 2.8977100, 0.33880895),
        ),
        ([1.0, 2.0, 6.0], [1.0, 1.5], 1.75, -4.5999164, 8.0999164, 0.37052072),
        ([3.0, 3.0, 3.0], [10.0, 20.0, 60.0, 11.0], -22.25, -59.801406, 15.301406, 0.15581993),
    ],
)
def test_a_difference_is_that_of_welch_s_test_by_scipy(first, second, mean, low, high, p):
    """Of runs that are not paired: their numbers and variances differ."""
    found = difference(first, second)
    assert (found.mean, found.low, found.high) == pytest.approx((mean, low, high), rel=1e-6)
    assert found.p == pytest.approx(p, rel=1e-6)


@pytest.mark.parametrize("second", [[1.5], [1.5, 1.5]])
def test_without_known_noise_a_difference_has_neither_interval_nor_p(second):
    """One value on a side, or no variance on both sides."""
    found = difference([2.0, 2.0, 2.0], second)
    assert math.isnan(found.p)
    assert found.text(1) == "0.5 (no interval)"


def test_mean_and_standard_error():
    assert mean_and_standard_error([1.0, 2.0, 6.0]) == "3.000 +- 1.528"  # sqrt(7 / 3)
    assert mean_and_standard_error([1.5]) == "1.500"


def test_p_of_two_degrees_of_freedom_is_the_closed_form():
    for t in (0.0, 0.1, 1.0, 3.0, 50.0):
        assert two_sided_p(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-9)
