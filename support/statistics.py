"""Means with their errors, and paired comparisons: is a difference more than the noise of seeds?

Two variants can be compared if their runs were trained with the same settings, except those that
belong to the variant: `check_comparable`.
"""

import math
from dataclasses import dataclass

import numpy as np

from support.commands import UserError

# Settings of pre-training in which two variants may differ and still be compared, because they
# belong to the variant: `none` has no kernel, the kernels of `convbert` are shorter than those of
# `composite` by default, and only a hybrid has the setting attention_layer. `beyond` is what lies
# beyond a kernel. So two variants are also compared if a user chose different kernels for them.
SETTINGS_OF_VARIANT = ("variant", "kernel_size", "attention_layer", "beyond")

# Differences count as equal if their range is at most this share of the largest absolute value:
# sums of decimal numbers such as 0.1 are not exact.
ROUNDING = 1e-12

ALL_EQUAL = "all differences are equal"
INTERVALS = 2000  # of Simpson's rule


def standard_error(values):
    """Standard error of the mean; nan for a single value, for which it is not defined."""
    if len(values) == 1:
        return math.nan
    return np.std(values, ddof=1) / math.sqrt(len(values))


def mean_and_standard_error(values, digits=3):
    """Mean and standard error of the mean as text, "5.897 +- 0.009"; of one value, the value."""
    mean = f"{np.mean(values):z.{digits}f}"  # z: 0.000 in place of -0.000
    if len(values) == 1:
        return mean
    return f"{mean} +- {standard_error(values):.{digits}f}"


# --- Runs that may stand in one table -------------------------------------------------------------
#
# A run is a plain dictionary, which may have more keys than these:
# {"run": name, "settings": {"variant", "seed", ...}}.


def different_settings(first, second, except_for=()):
    """The settings in which two runs differ: {name: (value of the first, value of the second)}.

    Args:
        first, second: dictionaries of settings. The value of a missing setting is None.
        except_for: names of settings that are not compared.
    """
    differences = {}
    for name in dict.fromkeys([*first, *second]):
        one = first.get(name)
        other = second.get(name)
        if name not in except_for and one != other:
            differences[name] = (one, other)
    return differences


def listed_differences(there, here, except_for=()):
    """`different_settings` as text, "lr is 0.1 there and 0.2 here; ..."; "" if there are none."""
    listed = []
    for name, (one, other) in different_settings(there, here, except_for).items():
        if name == "corpus":
            text = f"another text or --vocab_size: fingerprint {one} there and {other} here"
        else:
            text = f"{name} is {one} there and {other} here"
        listed.append(text)
    return "; ".join(listed)


def group_by_variant(runs):
    """{variant: {seed: run}}, variants in the order of the runs.

    Raises UserError if two runs are of one variant and one seed, or if runs of one variant differ
    in a setting other than the seed: then their mean would mean nothing.
    """
    variants = {}
    for run in runs:
        settings = run["settings"]
        seeds = variants.setdefault(settings["variant"], {})
        for other in seeds.values():
            check_same_settings(other, run, except_for=("seed",))
        if settings["seed"] in seeds:
            other = seeds[settings["seed"]]["run"]
            raise UserError(
                f"{other} and {run['run']} are both {settings['variant']} with seed "
                f"{settings['seed']}: keep only one of them"
            )
        seeds[settings["seed"]] = run
    return variants


def check_comparable(runs):
    """UserError if runs cannot stand in one table: other steps, another text, or one run twice."""
    # all runs have the same settings, except those that belong to the variant
    for run in runs:
        check_same_settings(runs[0], run, except_for=("seed", *SETTINGS_OF_VARIANT))

    # the runs of one variant differ in the seed only
    group_by_variant(runs)


def check_same_settings(first, second, except_for):
    """UserError if two runs differ in a setting other than those."""
    differences = different_settings(first["settings"], second["settings"], except_for)
    if differences:
        listed = [f"{name} ({one} and {other})" for name, (one, other) in differences.items()]
        raise UserError(
            f"{first['run']} and {second['run']} differ in {', '.join(listed)}: only runs that "
            "were trained in the same way can be compared"
        )


# --- The paired t-test ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The result of a paired t-test.

    Attributes:
        mean: the mean difference.
        standard_error: of the mean; nan for a single seed.
        p: the two-sided p-value: the probability that abs(mean / standard_error) is at least as
            large as here, if there were no true difference and the differences had a normal
            distribution. nan if the test is not defined: for a single seed, and if all differences
            are equal.
        seeds: how many differences there are, one for each seed.
    """

    mean: float
    standard_error: float
    p: float
    seeds: int

    def text(self, digits=3):
        """The comparison as text: "0.052 +- 0.011 (p = 0.04, 3 seeds)"."""
        mean = f"{self.mean:z.{digits}f}"  # z: 0.000 in place of -0.000
        if self.seeds == 1:
            return f"{mean} (one seed)"
        error = f"{self.standard_error:.{digits}f}"
        return f"{mean} +- {error} ({self.test_text()}, {self.seeds} seeds)"

    def test_text(self):
        """The result of the t-test over several seeds: "p = 0.04", or why there is none."""
        if math.isnan(self.p):
            return ALL_EQUAL
        return f"p = {self.p:.2g}"

    def p_cell(self):
        """The p-value as a cell of a table, without "p = "; "" for one seed."""
        if self.seeds == 1:
            return ""
        return self.test_text().removeprefix("p = ")


def compare(first, second):
    """Paired t-test of first - second.

    The pairs are runs with the same seed: they were trained on the same batches and masks, so part
    of the noise is equal in both and disappears in the difference.

    Args:
        first, second: {seed: value}. Seeds that only one of them has are left out.
    Returns:
        A Comparison. If all differences are equal, their standard error is 0, and t = mean / 0 is
        not defined: the test cannot say how large the noise is.
    Raises:
        UserError: no seed is in both.
    """
    seeds = [seed for seed in first if seed in second]
    if not seeds:
        raise UserError("there is no seed that both have, so they cannot be compared")
    first_values = np.array([first[seed] for seed in seeds], dtype=float)  # (seeds,)
    second_values = np.array([second[seed] for seed in seeds], dtype=float)  # (seeds,)
    differences = first_values - second_values

    # one seed has a difference but no error
    n = len(differences)
    mean = float(differences.mean())
    if n == 1:
        return Comparison(mean, math.nan, math.nan, 1)

    # equal differences, except for the rounding of their computation
    largest = max(np.abs(first_values).max(), np.abs(second_values).max())
    if np.ptp(differences) <= ROUNDING * largest:
        return Comparison(mean, 0.0, math.nan, n)

    # t = mean / standard error
    error = float(standard_error(differences))
    return Comparison(mean, error, two_sided_p(mean / error, n - 1), n)


def chance_note(count):
    """What a reader of a table with several p-values must know, as a line; "" for fewer than two.

    A p-value is below 0.05 in one of 20 comparisons in which there is no true difference.
    """
    if count < 2:
        return ""
    return (
        f"{count} comparisons: without any true difference, about {count / 20:.1f} would have "
        "p < 0.05."
    )


def two_sided_p(t, n):
    """The probability that Student's t with n degrees of freedom is at least |t| from 0.

    The density of t is proportional to (1 + t^2 / n)^(-(n + 1) / 2). With the substitution
    t = sqrt(n) * tan(a) the range from -infinity to infinity becomes the range of angles from -pi/2
    to pi/2, and the density becomes cos(a)^(n - 1). The probability is the share of the area beyond
    the angle of |t|, here by Simpson's rule. (Neither torch nor numpy has Student's distribution.)
    """

    def area(low, high):
        """The area under cos(a)^(n - 1) between two angles, by Simpson's rule."""
        angles = np.linspace(low, high, INTERVALS + 1)
        heights = np.cos(angles) ** (n - 1)

        # Simpson's weights: 1 4 2 4 2 ... 4 1
        weights = np.ones(INTERVALS + 1)
        weights[1:-1:2] = 4
        weights[2:-1:2] = 2
        return float((weights * heights).sum()) * (high - low) / INTERVALS / 3

    # the density is symmetric, so one half of it is enough
    angle = math.atan(abs(t) / math.sqrt(n))
    return area(angle, math.pi / 2) / area(0, math.pi / 2)
