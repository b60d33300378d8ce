"""support/statistics.py: paired comparisons, against published tables of Student's t."""

import math

import pytest

from support.statistics import compare, mean_and_standard_error, two_sided_p


@pytest.mark.parametrize(
    ("t", "n", "p"),
    [
        # two-sided critical values from printed tables
        (12.706, 1, 0.05),
        (4.303, 2, 0.05),
        (9.925, 2, 0.01),
        (2.776, 4, 0.05),
        (2.262, 9, 0.05),
        (3.250, 9, 0.01),
        (1.960, 100_000, 0.05),
    ],
)
def test_p_values_are_those_of_printed_tables(t, n, p):
    assert two_sided_p(t, n) == pytest.approx(p, rel=5e-4)
    assert two_sided_p(-t, n) == pytest.approx(p, rel=5e-4)


def test_p_of_two_degrees_of_freedom_is_the_closed_form():
    for t in (0.0, 0.1, 1.0, 3.0, 50.0):
        assert two_sided_p(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-9)


def test_a_comparison_pairs_the_values_of_equal_seeds():
    """Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t = 2 sqrt(3) with 2 degrees."""
    first = {2: 13.0, 0: 11.0, 1: 22.0, 7: 5.0}
    second = {0: 10.0, 1: 20.0, 2: 10.0, 8: 5.0}
    got = compare(first, second)
    assert got.seeds == 3
    assert got.mean == pytest.approx(2)
    assert got.standard_error == pytest.approx(1 / math.sqrt(3))
    t = 2 * math.sqrt(3)
    assert got.p == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-9)
    assert got.text(2) == "2.00 +- 0.58 (p = 0.074, 3 seeds)"


def test_one_seed_has_neither_error_nor_p():
    one = compare({0: 2.0}, {0: 1.5})
    assert (one.mean, one.seeds) == (0.5, 1)
    assert math.isnan(one.standard_error) and math.isnan(one.p)
    assert one.text(1) == "0.5 (one seed)"


@pytest.mark.parametrize("shift", [0.0, 1.0, 0.1])
def test_equal_differences_have_error_0_and_no_p_value(shift):
    """With a shift of 0.1, the differences are equal except for rounding."""
    second = {0: 70.3, 1: 68.9, 2: 0.7}
    got = compare({seed: value + shift for seed, value in second.items()}, second)
    assert got.mean == pytest.approx(shift)
    assert (got.standard_error, got.seeds) == (0, 3)
    assert math.isnan(got.p)


def test_differences_that_are_nearly_equal_have_a_p_value():
    got = compare({0: 1.0, 1: 1.0, 2: 1.000001}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert 0 < got.p < 1e-6


def test_mean_and_standard_error():
    assert mean_and_standard_error([1.0, 2.0, 6.0]) == "3.000 +- 1.528"  # sqrt(7 / 3)
    assert mean_and_standard_error([1.5]) == "1.500"
