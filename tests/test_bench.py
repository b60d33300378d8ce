"""lab/bench.py: what is computed and compared. How long anything takes is never tested."""

from lab import bench


def test_ratios_are_medians_of_the_ratios_of_each_round():
    """In the second round the machine was ten times slower; the ratio does not notice it."""
    assert bench.median_ratio([2.0, 20.0, 6.0], [1.0, 10.0, 1.0]) == 2.0
