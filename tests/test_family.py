"""lab/family.py: the rows that docs/family.md draws."""

import pytest
import torch

from lab import family


@pytest.mark.parametrize("name", family.TITLES)
def test_every_scheme_has_four_rows_over_all_relative_positions(name):
    rows = family.four_rows(name)
    assert rows.shape == (4, 127)
    assert rows.isfinite().all()


def test_fixed_and_t5_hold_alibis_slopes_as_far_as_they_reach():
    alibi, fixed, t5 = (family.four_rows(name) for name in ("alibi", "fixed", "t5"))
    distance = family.RELATIVE_POSITIONS.abs()
    assert torch.equal(fixed[:, distance <= 8], alibi[:, distance <= 8])
    assert torch.equal(t5[:, distance <= 8], alibi[:, distance <= 8])
    assert (fixed[:, distance > 8] == fixed[:, :1]).all()


def test_the_rows_of_rotary_at_the_token_itself_are_the_squared_lengths_of_the_biases():
    """b . R_0 b = the number of ones in b, 8, 16, 32 and 64, by sqrt(64)."""
    middle = family.four_rows("rotary")[:, family.N - 1]
    assert middle.tolist() == [1, 2, 4, 8]


def test_the_figure_is_made(run_program, tmp_path):
    pytest.importorskip("matplotlib")
    assert run_program(family.main, "--out", tmp_path / "a.png").code == 0
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
