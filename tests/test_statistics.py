"""support/statistics.py: paired comparisons, against published tables of Student's t."""

import math

import pytest

from support.statistics import (
    SETTINGS_OF_VARIANT,
    chance_note,
    compare,
    different_settings,
    mean_and_standard_error,
    standard_error,
    two_sided_p,
)


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
    assert (got.test_text(), got.p_cell()) == ("p = 0.074", "0.074")


def test_one_seed_has_neither_error_nor_p():
    one = compare({0: 2.0}, {0: 1.5})
    assert (one.mean, one.seeds) == (0.5, 1)
    assert math.isnan(one.standard_error)
    assert math.isnan(one.p)
    assert one.text(1) == "0.5 (one seed)"
    assert one.p_cell() == ""


@pytest.mark.parametrize("shift", [0.0, 1.0, 0.1])
def test_equal_differences_have_error_0_and_no_p_value(shift):
    """With a shift of 0.1, the differences are equal except for rounding."""
    second = {0: 70.3, 1: 68.9, 2: 0.7}
    first = {seed: value + shift for seed, value in second.items()}
    got = compare(first, second)
    assert got.mean == pytest.approx(shift)
    assert (got.standard_error, got.seeds) == (0, 3)
    assert math.isnan(got.p)
    assert got.text(1) == f"{shift:.1f} +- 0.0 (all differences are equal, 3 seeds)"
    assert got.p_cell() == "all differences are equal"


def test_differences_that_are_nearly_equal_have_a_p_value():
    got = compare({0: 1.0, 1: 1.0, 2: 1.000001}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert 0 < got.p < 1e-6


def test_different_settings_are_those_of_either_run_that_are_not_excepted():
    first = {"variant": "none", "steps": 10, "lr": 0.1}
    second = {"variant": "fixed", "steps": 20, "lr": 0.1, "kernel_size": 17, "dtype": "float32"}
    differences = different_settings(first, second, SETTINGS_OF_VARIANT)
    assert differences == {"steps": (10, 20), "dtype": (None, "float32")}
    assert different_settings(first, first, ()) == {}


def test_the_note_on_chance_is_for_tables_with_several_p_values():
    assert (
        chance_note(12)
        == "12 comparisons: without any true difference, about 0.6 would have p < 0.05."
    )
    assert chance_note(1) == chance_note(0) == ""


def test_runs_without_a_common_seed_are_refused_in_one_line():
    with pytest.raises(ValueError, match="no seed that both have"):
        compare({0: 1.0}, {1: 1.0})


# --- Means ----------------------------------------------------------------------------------------


def test_mean_and_standard_error_of_several_values():
    assert mean_and_standard_error([1.0, 2.0, 6.0]) == "3.000 +- 1.528"  # sqrt(7 / 3)
    assert mean_and_standard_error([1.0, 2.0, 6.0], digits=1) == "3.0 +- 1.5"
    assert mean_and_standard_error([2.0, 2.0]) == "2.000 +- 0.000"


def test_one_value_has_no_standard_error():
    assert mean_and_standard_error([1.5]) == "1.500"
    assert mean_and_standard_error([1.5], digits=0) == "2"


def test_the_standard_error_of_one_value_is_not_known():
    assert math.isnan(standard_error([1.5]))
    assert standard_error([1.0, 2.0, 6.0]) == pytest.approx(math.sqrt(7 / 3))
