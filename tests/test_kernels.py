"""kernels.py: every path computes what the loops do, values and gradients, whole, in blocks and compiled."""

import shutil

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
import references
from kernels import (
    WINDOWS, attention, band_scores, blockwise_attention, gather_scores, relative_scores, whole_attention,
)

LENGTHS = range(1, 41)
KERNEL_SIZES = (1, 3, 5, 9, 17, 33)
PATHS = [gather_scores, relative_scores, band_scores]


def values_and_gradients(function, rows, window, upstream):
    """Scores, and the gradient of sum(scores * upstream) at the rows. upstream (B, H, N, N)"""
    rows = rows.detach().clone().requires_grad_()
    scores = function(rows, rows.shape[2], window)  # (B, H, N, N)
    return scores.detach(), torch.autograd.grad((scores * upstream).sum(), rows)[0]


@pytest.mark.parametrize("K", KERNEL_SIZES)
@pytest.mark.parametrize("window", WINDOWS)
def test_paths_equal_the_loops_in_values_and_gradients_at_every_length(window, K):
    """Values are only moved, so float64 holds 1e-12 and float32 1e-6; gradients are sums of up to N numbers."""
    generator = torch.Generator().manual_seed(K)
    for N in LENGTHS:
        rows = torch.randn(1, 2, N, K, generator=generator, dtype=torch.float64)
        upstream = torch.randn(1, 2, N, N, generator=generator, dtype=torch.float64)
        expected, expected_gradient = values_and_gradients(references.relative_scores, rows, window, upstream)
        for function in PATHS:
            for dtype, near, near_gradient in ((torch.float64, 1e-12, 1e-10), (torch.float32, 1e-6, 1e-5)):
                scores, gradient = values_and_gradients(function, rows.to(dtype), window, upstream.to(dtype))
                assert scores.dtype == gradient.dtype == dtype
                torch.testing.assert_close(scores.double(), expected, atol=near, rtol=near)
                torch.testing.assert_close(gradient.double(), expected_gradient, atol=near_gradient, rtol=near_gradient)


@pytest.mark.parametrize("function", PATHS)
def test_paths_equal_the_loops_on_rows_shared_by_all_queries(function):
    """A fixed kernel's rows are one table seen by every sentence and query: strides of 0, gradient summed into it."""
    beta = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)  # (H, K)
    upstream = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    rows = beta[None, :, None].expand(2, 3, 8, 5)  # (B, H, N, K)
    for window in WINDOWS:
        got, expected = function(rows, 8, window), references.relative_scores(rows, 8, window)
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
        got, expected = (torch.autograd.grad((s * upstream).sum(), beta, retain_graph=True)[0] for s in (got, expected))
        torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("function", PATHS)
def test_paths_take_rows_in_any_memory_order(function):
    rows = torch.randn(5, 7, 2, 3, dtype=torch.float64).permute(3, 2, 1, 0)  # (B, H, N, K), nowhere contiguous
    for window in WINDOWS:
        assert torch.equal(function(rows, 7, window), references.relative_scores(rows, 7, window))


@pytest.mark.parametrize("function", PATHS)
@pytest.mark.parametrize("K", KERNEL_SIZES)
@pytest.mark.parametrize("N", [1, 2, 7, 8, 16, 17, 18, 40])
def test_each_weight_serves_as_many_keys_as_stand_there(function, N, K):
    """The gradient of sum(scores) counts, for query i and relative position r, the keys that took the weight: in the
    window one if i + r exists; at the ends of "clip" all keys there or farther: "clip" uses every key once."""
    k = K // 2
    for window in WINDOWS:
        rows, ones = torch.zeros(1, 1, N, K), torch.ones(1, 1, N, N)
        _, counts = values_and_gradients(function, rows, window, ones)
        for i in range(N):
            expected = [float(0 <= i + r < N) for r in range(-k, k + 1)]
            if window == "clip" and k > 0:
                expected[0], expected[-1] = max(0, i - k + 1), max(0, N - i - k)
            elif window == "clip":
                expected[0] = N  # one weight for all keys
            assert counts[0, 0, i].tolist() == expected, (window, i)
        if window == "clip":
            assert counts.sum(-1).eq(N).all()


@pytest.mark.parametrize("function", PATHS)
def test_a_query_s_row_reaches_its_own_scores_alone(function):
    """No leak between sentences, heads or queries: a row of NaN makes NaN of its query's scores and of nothing else."""
    for window in WINDOWS:
        for i in (0, 4, 8):
            rows = torch.zeros(2, 2, 9, 5)
            rows[1, 0, i] = float("nan")
            touched = function(rows, 9, window).isnan()  # (B, H, N, N)
            j = torch.arange(9)
            reached = torch.ones(9, dtype=torch.bool) if window == "clip" else (j - i).abs() <= 2
            assert torch.equal(touched[1, 0, i], reached)
            assert touched.sum() == reached.sum()


def test_scores_depend_on_the_relative_position_alone():
    """Two queries with the same row see the same scores, shifted: out[i + s, j + s] = out[i, j]."""
    rows = torch.randn(1, 2, 1, 5).expand(1, 2, 12, 5)
    for window in WINDOWS:
        scores = band_scores(rows, 12, window)
        for s in range(1, 11):
            assert torch.equal(scores[..., s:, s:], scores[..., :-s, :-s])


def test_the_gradient_has_a_gradient():
    rows = torch.randn(1, 2, 6, 5, dtype=torch.float64, requires_grad=True)
    for window in WINDOWS:
        assert torch.autograd.gradgradcheck(lambda rows: band_scores(rows, 6, window) ** 2, rows)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("K", KERNEL_SIZES)
def test_band_equals_the_reference_around_a_strip_of_queries(window, K):
    """Values and gradients go by strips of 64 queries: less than one, exactly one, the first query of a second, of a third.
    The values are added to a map that is given, as in attention."""
    for N in (63, 64, 65, 127, 128, 129, 130):
        rows, upstream = torch.randn(1, 2, N, K, dtype=torch.float64), torch.randn(1, 2, N, N, dtype=torch.float64)
        expected, expected_gradient = values_and_gradients(relative_scores, rows, window, upstream)
        scores, gradient = values_and_gradients(band_scores, rows, window, upstream)
        assert torch.equal(scores, expected)
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-10, rtol=0)
        content = torch.randn(1, 2, N, N, dtype=torch.float64)
        added = kernels.BandScores.apply(rows.detach(), N, window, 0, content.clone())
        torch.testing.assert_close(added, content + expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("function", PATHS)
@pytest.mark.parametrize("window", WINDOWS)
def test_scores_of_some_of_the_queries_are_those_rows_of_the_map(function, window):
    rows, upstream = torch.randn(1, 2, 12, 7, dtype=torch.float64), torch.randn(1, 2, 12, 12, dtype=torch.float64)
    whole, whole_gradient = values_and_gradients(gather_scores, rows, window, upstream)
    for first, last in ((0, 1), (0, 5), (3, 4), (4, 9), (11, 12), (6, 12)):
        def some(rows, length, window):
            return function(rows, 12, window, first)
        part = values_and_gradients(some, rows[:, :, first:last], window, upstream[:, :, first:last])
        assert torch.equal(part[0], whole[:, :, first:last])
        torch.testing.assert_close(part[1], whole_gradient[:, :, first:last], atol=1e-12, rtol=0)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("strip", [1, 5, 64])
def test_sums_of_bands_are_the_adjoint_of_the_map_of_scores(monkeypatch, window, strip):
    """<map(rows), M> = <rows, sums(M)> for all rows and M: the loops give the map, and gradcheck the gradient."""
    monkeypatch.setattr(kernels, "STRIP", strip)
    for N, K in ((1, 3), (4, 9), (11, 5), (12, 3)):
        rows, M = torch.randn(1, 2, N, K, dtype=torch.float64), torch.randn(1, 2, N, N, dtype=torch.float64)
        (expected,) = torch.autograd.grad(references.relative_scores(rows.requires_grad_(), N, window), rows, M)
        torch.testing.assert_close(kernels.band_sums(M, K, window), expected, atol=1e-12, rtol=0)
        parts = [kernels.band_sums(M[:, :, first:first + 3], K, window, first) for first in range(0, N, 3)]
        torch.testing.assert_close(torch.cat(parts, dim=2), expected, atol=1e-12, rtol=0)
        assert torch.autograd.gradcheck(lambda M: kernels.band_sums(M, K, window), M[:, :1].requires_grad_())


# --- attention ---

def problem(N, K, dtype=torch.float64, B=2, H=2, d=4):
    """(query, key, value, padding_mask, rows, key_rows, relative_value); the second sentence ends in padding."""
    generator = torch.Generator().manual_seed(100 * N + K)
    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[1, (N + 1) // 2:] = N == 1
    return draw(B, H, N, d), draw(B, H, N, d), draw(B, H, N, d), mask, draw(B, H, N, K), draw(B, H, N, K), draw(d, K)


def results(function, inputs, window="clip", dropout=0.0, **options):
    """[z, gradient of every input], the dropout from one seed. The upstream gradient is a fixed one."""
    torch.manual_seed(0)
    z = function(*inputs, window, dropout, **options)
    upstream = torch.arange(z.numel(), dtype=torch.float64).sin().to(z.dtype).view(z.shape)
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    return [z.detach(), *torch.autograd.grad(z, wanted, upstream)]


def assert_near(got, expected, near):
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=near, rtol=near)


def assert_backward_has_the_dropout_of_the_forward(function, near):
    """With the identity for values z is the map of weights: its zeros, put into the equations, give these gradients."""
    query, key, _, mask, rows, key_rows, _ = problem(11, 5)
    value = torch.eye(11, dtype=torch.float64).expand(2, 2, 11, 11).contiguous().requires_grad_()
    inputs = (query, key, value, mask, rows, key_rows, None)
    got = results(function, inputs, "clip", 0.4)
    kept = got[0].ne(0).double() / 0.6  # (B, H, N, N)
    assert 0.4 < kept[0].ne(0).double().mean() < 0.8
    assert not torch.equal(kept[0, :, :4], kept[0, :, 4:8])  # each block of four queries has zeros of its own
    z = (whole_attention(*inputs) * kept) @ value  # (B, H, N, N)
    upstream = torch.arange(z.numel(), dtype=torch.float64).sin().view(z.shape)
    expected = torch.autograd.grad(z, (query, key, rows, key_rows), upstream)
    assert_near([got[0], *(got[i] for i in (1, 2, 4, 5))], (z, *expected), near)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype, near", [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_band_attention_equals_that_of_the_definition(window, dtype, near):
    """Same dropout, padding, key-based rows: values and all gradients."""
    for N in (1, 2, 3, 7, 20, 127, 128, 129):
        for K in (1, 5, 33):
            for dropout in (0.0, 0.3):
                inputs = problem(N, K, dtype)
                expected = results(whole_attention, inputs, window, dropout, scores_of=gather_scores)
                assert_near(results(attention, inputs, window, dropout), expected, near)


def test_in_bf16_band_attention_is_as_near_to_float64_as_the_definition():
    inputs = problem(40, 9, torch.bfloat16)
    exact = [x if x.dtype == torch.bool else x.detach().double().requires_grad_() for x in inputs]
    exact = results(whole_attention, exact, scores_of=gather_scores)
    with torch.autocast("cpu", torch.bfloat16):
        band, definition = results(attention, inputs), results(whole_attention, inputs, scores_of=gather_scores)
        blocks = results(blockwise_attention, inputs)
    for one, block, other, truth in zip(band, blocks, definition, exact, strict=True):
        allowed = 1.2 * (other - truth).abs().max()
        assert (one - truth).abs().max() <= allowed and (block - truth).abs().max() <= allowed


@pytest.mark.parametrize("function", [attention, blockwise_attention])
def test_dropout_of_one_seed_and_the_gradients_under_it_are_the_same_to_the_bit(function):
    inputs = problem(150, 17, torch.float32)
    first, second = (results(function, inputs, "clip", 0.2) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_tokens_of_padding_get_no_attention_and_no_gradient():
    inputs = problem(9, 3)
    for function in (attention, blockwise_attention):
        _, _, key, value, _, key_rows, _ = results(function, inputs)
        for gradient in (key, value, key_rows):
            assert gradient[1, :, 5:].eq(0).all() and gradient[1, :, :5].ne(0).any()


# --- long sequences ---

@pytest.mark.parametrize("window", WINDOWS)
def test_blocks_equal_the_whole(monkeypatch, window):
    """Blocks smaller than the window's reach, and larger; the last one of a single query; terms left out or shared."""
    for block, N, K in ((4, 12, 5), (4, 13, 17), (7, 30, 3), (16, 7, 5), (1, 5, 3)):
        monkeypatch.setattr(kernels, "BLOCK", block)
        query, key, value, mask, rows, key_rows, relative_value = problem(N, K)
        shared = rows[0].detach().requires_grad_()  # (H, N, K), as of the fixed term alone
        for given in ((rows, key_rows, relative_value), (rows, None, None), (None, key_rows, None),
                      (None, None, relative_value), (None, None, None), (shared, None, None)):
            inputs = (query, key, value, mask, *given)
            assert_near(results(blockwise_attention, inputs, window), results(whole_attention, inputs, window), 1e-10)


def test_blocks_recompute_the_dropout_that_they_had(monkeypatch):
    monkeypatch.setattr(kernels, "BLOCK", 4)
    assert_backward_has_the_dropout_of_the_forward(blockwise_attention, 1e-10)


def test_the_backward_of_blocks_leaves_the_random_state_alone():
    z = blockwise_attention(*problem(6, 3), "clip", 0.5).sum()
    before = torch.get_rng_state()
    z.backward()
    assert torch.equal(torch.get_rng_state(), before)


class LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation returns, in the backward too."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(x, torch.Tensor):
                self.size = max(self.size, x.untyped_storage().nbytes() // x.element_size())
        return result


def test_of_a_long_sequence_no_tensor_has_the_size_of_the_map(monkeypatch):
    monkeypatch.setattr(kernels, "LONGEST_WHOLE", 100)
    monkeypatch.setattr(kernels, "BLOCK", 10)
    for N in (200, 400):
        inputs = problem(N, 5)
        with LargestTensor() as largest:
            results(attention, inputs)
        assert largest.size <= 2 * 2 * 12 * (N + 20)  # B H (block) (N and a block on both sides)


def test_the_length_alone_decides_the_path():
    for length, function in ((1, whole_attention), (1024, whole_attention), (1025, blockwise_attention)):
        chosen, why = kernels.choose_path(length)
        assert chosen is function and str(length) in why


@pytest.mark.parametrize("band", [1, 3, 64])
def test_convolve_is_a_sum_over_the_window(monkeypatch, band):
    monkeypatch.setattr(kernels, "BAND", band)
    for N, K in ((1, 3), (3, 9), (10, 3), (12, 9)):
        rows, value = torch.randn(2, 2, N, K, dtype=torch.float64), torch.randn(2, 2, N, 4, dtype=torch.float64)
        expected = references.relative_scores(rows, N, "zero") @ value
        torch.testing.assert_close(kernels.convolve(rows, value), expected, atol=1e-12, rtol=0)


# --- compiled ---

@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler here")
def test_compiled_attention_equals_the_uncompiled():
    compiled = kernels.compiled_attention(torch.device("cpu"))
    assert compiled is not whole_attention
    inputs = problem(9, 5, torch.float32)
    got = results(compiled, inputs, "zero")
    assert_near(got, results(whole_attention, inputs, "zero", scores_of=gather_scores), 1e-5)
    again = results(compiled, inputs, "zero")
    assert all(torch.equal(one, other) for one, other in zip(got, again, strict=True))
    assert_backward_has_the_dropout_of_the_forward(compiled, 1e-6)  # a shape and a dropout of its own: another graph


def test_without_a_compiler_attention_runs_uncompiled_and_says_so_once(monkeypatch, capsys):
    def no_compiler(*args, **kwargs):
        raise RuntimeError("no compiler")
    kernels.compiled_attention.cache_clear()
    monkeypatch.setattr(torch, "compile", lambda function, **options: no_compiler)
    assert [kernels.compiled_attention(torch.device("cpu")) for _ in range(2)] == [whole_attention] * 2
    assert capsys.readouterr().out.count("runs uncompiled") == 1
    kernels.compiled_attention.cache_clear()


# --- the benchmark ---

def test_the_benchmark_prints_a_line_for_each_path(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["kernels.py", "--max_length", "128", "--tokens", "128", "--device", "cpu"])
    kernels.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[0] for line in lines] == ["64"] * 6 + ["128"] * 6
    assert [line[2] for line in lines[:6]] == ["plain", "gather", "reference", "band", "blocks", "fused"]
    assert all(float(line[-1]) < 1e-5 and float(line[-2]) < 1e-5 for line in lines)


@pytest.mark.parametrize("arguments, words", [
    (["--max_length", "63"], "--max_length must be 64 or more"), (["--tokens", "0"], "--tokens 1 or more"),
    (["--device", "abacus"], "no device 'abacus'"), (["--device", "meta"], "N = 64 cannot be measured here"),
])
def test_the_benchmark_refuses_what_it_cannot_measure_in_one_line(monkeypatch, capsys, arguments, words):
    monkeypatch.setattr("sys.argv", ["kernels.py", *arguments])
    with pytest.raises(SystemExit) as stop:
        kernels.main()
    said = str(stop.value.code) if isinstance(stop.value.code, str) else capsys.readouterr().err.splitlines()[-1]
    assert stop.value.code != 0 and words in said and "\n" not in said
