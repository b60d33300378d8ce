"""benchmark.py: what is counted and printed; how long anything takes is never tested."""

import contextlib
import math
import os

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import benchmark
import figures
import kernels


def test_flops_of_a_depthwise_convolution_are_those_of_its_loops():
    """Each of the N outputs of C channels is K products and sums; each gradient, of input and weights, as many again."""
    N, C, K = 20, 6, 5
    x, weight = torch.randn(1, C, N, 1, requires_grad=True), torch.randn(C, 1, K, 1, requires_grad=True)
    with FlopCounterMode(display=False, custom_mapping=benchmark.FLOPS) as counter:
        F.conv2d(x, weight, padding=(2, 0), groups=C).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * N * C * K


def test_lengths_prints_a_row_for_each_length_and_variant_that_figures_reads(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "in_a_new_process", lambda function, *arguments: function(*arguments))
    cpu = torch.device("cpu")
    cost = benchmark.benchmark_lengths(["none", "dilated"], "tiny", cpu, contextlib.nullcontext(), (8, 32), rounds=1)
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()[2:6]]
    assert [row[:2] for row in rows] == [["8", "none"], ["8", "dilated"], ["32", "none"], ["32", "dilated"]]
    assert list(cost) == [(row[1], int(row[0])) for row in rows]
    assert [row[3] for row in rows if row[1] == "none"] == ["1.00", "1.00"]
    (tmp_path / "lengths.txt").write_text(out, encoding="utf-8")
    for name, table in figures.read_lengths(tmp_path / "lengths.txt").items():
        for length, milliseconds, gflop, kib in table:
            assert [milliseconds, gflop * 1e9, kib] == pytest.approx(cost[name, length], rel=1e-3, abs=0.5e6)
    C, K = 128, 17
    for length in (8, 32):  # forward and two gradients; per 1,000 tokens: C -> 2C and C -> C, the taps
        assert cost["dilated", length][1] == 3 * 2 * (3 * C * C + K * C) * 1000
        assert cost["none", length][1] == 3 * 2 * (4 * C * C + 2 * C * length) * 1000


@pytest.mark.parametrize("seconds, verdict", [
    ([1, 2, 1, 0.5, 1, 0.25], "dilated: faster than none from N = 16 on"),
    ([1, 0.5, 1, 2, 1, 2], "dilated: not faster than none"),
    ([1, 0.5, 1, 2, 1, 0.5], "dilated: faster than none from N = 32 on"),  # for good
])
def test_lengths_says_from_which_length_on_a_variant_is_faster(seconds, verdict, capsys, monkeypatch):
    """Times are given: of none and dilated at 8, 16 and 32 tokens."""
    given = iter(seconds)
    monkeypatch.setattr(kernels, "seconds", lambda run, device: next(given))
    monkeypatch.setattr(benchmark, "in_a_new_process", lambda function, *arguments: 0.0)
    cpu = torch.device("cpu")
    benchmark.benchmark_lengths(["none", "dilated"], "tiny", cpu, contextlib.nullcontext(), (8, 16, 32), rounds=1)
    assert capsys.readouterr().out.splitlines()[-1] == verdict


def die():
    os._exit(9)


def test_what_is_measured_runs_in_a_process_of_its_own_and_leaves_nan_when_that_is_killed():
    assert benchmark.in_a_new_process(os.getpid) != os.getpid()
    assert math.isnan(benchmark.in_a_new_process(die))


def test_the_peak_of_a_model_is_a_number_of_mib():
    config = benchmark.BertConfig.from_size("tiny", "composite", vocab_size=300, max_length=16)
    peak = benchmark.model_peak(config, 16, contextlib.nullcontext(), torch.device("cpu"))
    assert 50 < peak < 100_000 or (os.name == "nt" and math.isnan(peak))


def test_the_batches_of_full_rows_are_functions_of_seed_and_step():
    full = benchmark.FullBatches(300, 16)
    assert torch.equal(full.batch(0, 1, 4), full.batch(0, 1, 4)) and not torch.equal(full.batch(0, 1, 4), full.batch(0, 2, 4))
    assert full.batch(0, 1, 4).shape == (4, 16) and full.batch(0, 1, 40).min() >= 4  # no padding, no marks


def test_keeping_freed_memory_is_harmless_where_the_system_has_no_such_call(monkeypatch):
    for error in (OSError, TypeError, AttributeError):
        def fail(name):
            raise error
        monkeypatch.setattr(kernels.ctypes, "CDLL", fail)
        kernels.keep_freed_memory()
