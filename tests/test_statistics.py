"""support/statistics.py: paired comparisons, against published tables of Student's t."""

import math

import pytest

from support.statistics import compare, two_sided_p


@pytest.mark.parametrize(
    ("t", "degrees", "p"),
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
def test_p_values_are_those_of_printed_tables(t, degrees, p):
    assert two_sided_p(t, degrees) == pytest.approx(p, rel=5e-4)
    assert two_sided_p(-t, degrees) == pytest.approx(p, rel=5e-4)


def test_p_of_two_degrees_of_freedom_is_the_closed_form():
    for t in (0.0, 0.1, 1.0, 3.0, 50.0):
        assert two_sided_p(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-9)


def test_a_comparison_pairs_the_values_of_equal_seeds():
    """Differences 1, 2, 3: mean 2, standard error 1 / sqrt(3), t = 2 sqrt(3) with 2 degrees."""
    first = {2: 13.0, 0: 11.0, 1: 22.0, 7: 5.0}
    second = {0: 10.0, 1: 20.0, 2: 10.0, 8: 5.0}
    got = compare(first, second)
    assert got.pairs == 3
    assert got.mean == pytest.approx(2)
    assert got.standard_error == pytest.approx(1 / math.sqrt(3))
    t = 2 * math.sqrt(3)
    assert got.p == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-9)
    assert got.text(2) == "2.00 +- 0.58 (p = 0.074, 3 seeds)"


def test_one_pair_has_no_error_and_equal_differences_have_error_0():
    one = compare({0: 2.0}, {0: 1.5})
    assert (one.mean, one.pairs) == (0.5, 1)
    assert math.isnan(one.standard_error)
    assert math.isnan(one.p)
    assert one.text(1) == "0.5 (one seed)"
    same = compare({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert (same.mean, same.standard_error, same.p) == (0, 0, 1)
    shifted = compare({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.0})
    assert (shifted.mean, shifted.standard_error, shifted.p) == (1, 0, 0)


def test_runs_without_a_common_seed_are_refused_in_one_line():
    with pytest.raises(ValueError, match="no seed that both have"):
        compare({0: 1.0}, {1: 1.0})
