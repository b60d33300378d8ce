"""support/tables.py."""

from support.tables import mean_and_standard_error


def test_mean_and_standard_error_of_several_values():
    assert mean_and_standard_error([1.0, 2.0, 6.0]) == "3.000 +- 1.528"  # sqrt(7 / 3)
    assert mean_and_standard_error([1.0, 2.0, 6.0], digits=1) == "3.0 +- 1.5"
    assert mean_and_standard_error([2.0, 2.0]) == "2.000 +- 0.000"


def test_one_value_has_no_standard_error():
    assert mean_and_standard_error([1.5]) == "1.500"
    assert mean_and_standard_error([1.5], digits=0) == "2"
