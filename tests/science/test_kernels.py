"""kernels.py: every way to compute the map of scores equals plain loops, values and gradients.

The drawings in the docstrings are tests, too.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attention
import kernels
import references
from helpers import (
    assert_near,
    assert_same_with_gradients,
    attention_inputs,
    draw,
    drawn,
    go_in_blocks,
    lines_run,
    results,
)
from kernels import BEYOND, scores_by_index, scores_by_skew

PATHS = [scores_by_index, scores_by_skew]

# (n, first, N): n queries from `first` on, and N keys
WHOLE = [(N, 0, N) for N in (1, 2, 3, 5, 8, 17, 40)]
BLOCKS = [(2, 0, 10), (2, 8, 10), (1, 9, 10), (3, 4, 12), (5, 0, 5), (6, 1, 7)]


# --- From rows to the map of scores ---------------------------------------------------------------


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("K", [1, 3, 7, 21])
@pytest.mark.parametrize("function", PATHS)
def test_the_map_equals_its_loops(monkeypatch, function, K, beyond):
    """Values and gradients, with kernels that end within the sequence, or beyond one or both ends.

    Values are only moved: they are the same to the bit. Neither function calls the other.
    """
    for path in PATHS:
        monkeypatch.setattr(kernels, path.__name__, None)
    for n, first, N in WHOLE + BLOCKS:
        rows = draw(2, n, K, seed=N).requires_grad_()
        got = function(rows, N, beyond, first)
        expected = references.relative_scores(rows, N, beyond, first)
        assert torch.equal(got, expected)
        assert_same_with_gradients(got, expected, [rows])
        assert function(rows.float(), N, beyond, first).dtype == torch.float32


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("K", [1, 3, 7, 21])
def test_the_gathered_gradient_of_compiled_layers_equals_that_of_the_loops(K, beyond):
    for n, first, N in WHOLE + BLOCKS:
        rows = draw(2, n, K, seed=N).requires_grad_()
        got = kernels.GatheredGradient.apply(rows, N, beyond, first)
        expected = references.relative_scores(rows, N, beyond, first)
        assert_same_with_gradients(got, expected, [rows])


@pytest.mark.parametrize("function", PATHS)
def test_the_map_takes_rows_in_any_memory_order(function):
    """Also one row that all queries share: its gradient is the sum over them."""
    row = draw(3, 5).requires_grad_()  # (H, K)
    shared = row[None, :, None].expand(2, 3, 8, 5)  # (H, K) -> (B, H, N, K), strides of 0
    permuted = draw(5, 8, 3, 2).permute(3, 2, 1, 0)  # (B, H, N, K), not contiguous anywhere
    for beyond in BEYOND:
        expected = references.relative_scores(permuted, 8, beyond)
        assert torch.equal(function(permuted, 8, beyond), expected)
        expected = references.relative_scores(shared, 8, beyond)
        assert_same_with_gradients(function(shared, 8, beyond), expected, [row])


@pytest.mark.parametrize("function", PATHS)
def test_the_map_of_the_docstring_is_what_it_computes(function):
    rows = drawn(scores_by_index, "a0 b0 c0\n a1 b1 c1\n a2 b2 c2")
    clip = drawn(scores_by_index, "b0 c0 c0\n a1 b1 c1\n a2 a2 b2")
    zero = drawn(scores_by_index, "b0 c0 0\n a1 b1 c1\n 0 a2 b2")
    assert torch.equal(function(rows, 3), clip)
    assert torch.equal(function(rows, 3, "zero"), zero)
    assert torch.equal(function(rows[1:], 3, first=1), clip[1:])


def test_the_drawing_of_scores_by_skew_is_what_its_steps_compute():
    rows = drawn(scores_by_index, "a0 b0 c0\n a1 b1 c1\n a2 b2 c2")
    wide = drawn(scores_by_skew, "a0 a0 b0 c0 c0\n a1 a1 b1 c1 c1\n a2 a2 b2 c2 c2")
    assert torch.equal(kernels.extend(rows, 1, 2)[:, :5], wide)

    # what is drawn on the left of the line, and on the right of it
    skewed = kernels.skew(kernels.extend(rows, 1, 2))
    assert torch.equal(skewed[:, 2:], drawn(scores_by_index, "b0 c0 c0\n a1 b1 c1\n a2 a2 b2"))
    assert skewed[0, :2].tolist() == [100, 100]
    assert skewed[1, 1] == 101 and skewed[2, 0] == 301


def test_extend_adds_and_removes_columns_as_drawn():
    row = drawn(kernels.extend, "a b c")
    assert torch.equal(kernels.extend(row, 1, 2, "clip"), drawn(kernels.extend, "a a b c c c"))
    assert torch.equal(kernels.extend(row, 1, 2, "zero"), drawn(kernels.extend, "0 a b c 0 0"))
    for beyond in BEYOND:
        assert torch.equal(kernels.extend(row, -1, 0, beyond), drawn(kernels.extend, "b c"))


@pytest.mark.parametrize("beyond", BEYOND)
def test_extended_rows_say_the_same_at_every_relative_position(beyond):
    for K in (1, 3, 5):
        rows = draw(2, 3, K).requires_grad_()
        for extra in (0, 1, 4):
            got = kernels.extend(rows, extra, extra, beyond)
            expected = []
            for r in range(-(K // 2) - extra, K // 2 + extra + 1):
                t = references.column(r, K, beyond)
                expected.append(torch.zeros(2, 3) if t is None else rows[..., t])
            assert_same_with_gradients(got, torch.stack(expected, dim=-1).double(), [rows])


def test_skew_moves_the_rows_as_drawn():
    """skew copies nothing."""
    x = torch.arange(18.0).view(3, 6)  # the numbers in memory, in order
    skewed = kernels.skew(x)
    assert skewed.data_ptr() == x.data_ptr()
    assert skewed.tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]
    drawing = kernels.skew.__doc__
    for line in ("a a a a a a", "b b b b b b -> a b b b b", "c c c - - - b b c c c"):
        assert line in " ".join(drawing.split())


def test_the_map_of_the_keys_is_drawn_at_key_dynamic():
    """Queries and keys change places, and the map is transposed."""
    rows = drawn(attention.KeyDynamic, "a0 b0 c0\n a1 b1 c1\n a2 b2 c2")
    expected = drawn(attention.KeyDynamic, "b0 a1 a2\n c0 b1 a2\n c0 c1 b2")
    assert torch.equal(kernels.add_relative_scores(torch.zeros(3, 3), rows.float()).t(), expected)


# --- The band: scores, rows and padding to weights ------------------------------------------------


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("n, first, N", [(7, 0, 7), (2, 0, 10), (6, 3, 10)])
def test_banded_softmax_equals_its_loops(monkeypatch, n, first, N, beyond):
    """Values and gradients, with padding, with and without rows, one row for all, and in blocks."""
    # loops in place of the map: mistakes there do not fail this test
    monkeypatch.setattr(kernels, "add_relative_scores", references.add_relative_scores)
    scores, query_bias = draw(2, 3, n, N).requires_grad_(), draw(2, 3, n, 7).requires_grad_()
    key_bias, one_row = draw(2, 3, N, 7).requires_grad_(), draw(3, 1, 7).requires_grad_()
    padding = attention.lowest_at_padding(torch.arange(N)[None, :] < N - 1, torch.float64)
    for rows in ([], [query_bias], [None, key_bias], [one_row, one_row], [query_bias, key_bias]):
        rows += [None] * (2 - len(rows))
        got = kernels.banded_softmax(scores, padding, *rows, beyond, first)
        expected = references.banded_softmax(scores, padding, *rows, beyond, first)
        assert_same_with_gradients(got, expected, [scores, *filter(torch.is_tensor, rows)])


# --- The map added to a map -----------------------------------------------------------------------


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize(
    "n, first, N",
    [
        (9, 0, 9),
        (64, 0, 64),  # the longest map by the index
        (65, 0, 65),  # the shortest one by skewing
        (66, 3, 70),
        (90, -10, 70),  # the keys of a block of queries: more rows than columns
    ],
)
def test_add_relative_scores_adds_the_map_in_place(n, first, N, beyond):
    """Values and both gradients, for a row per query and sequence, per query, and for all."""
    for shape in ((2, 3, n, 7), (3, n, 7), (3, 1, 7)):
        scores = draw(2, 3, n, N).requires_grad_()
        rows = draw(*shape, seed=1).requires_grad_()
        given = scores.clone()
        got = kernels.add_relative_scores(given, rows, beyond, first)
        assert got.data_ptr() == given.data_ptr()
        every = rows.expand(2, 3, n, 7)
        expected = scores + references.relative_scores(every, N, beyond, first)
        assert_same_with_gradients(got, expected, [scores, rows])


# --- Relative values, and convolutions ------------------------------------------------------------


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize("K", [1, 3, 7, 21])
def test_relative_values_equal_their_loops(K, beyond):
    for n, first, N in WHOLE + BLOCKS:
        p = draw(2, 3, n, N).requires_grad_()
        table = draw(4, K, seed=1).requires_grad_()
        got = attention.relative_values(p, table, beyond, first)
        expected = references.relative_values(p, table, beyond, first)
        assert_same_with_gradients(got, expected, [p, table])


@pytest.mark.parametrize("block", [1, 3, 32])
def test_convolve_is_a_sum_over_the_window(monkeypatch, block):
    monkeypatch.setattr(kernels, "CONVOLVE_BLOCK", block)
    for N, K in ((1, 3), (3, 9), (10, 3), (12, 9), (6, 1), (6, 13)):
        weights = draw(2, 2, N, K).requires_grad_()
        value = draw(2, 2, N, 4, seed=1).requires_grad_()
        got = kernels.convolve(weights, value)
        expected = references.relative_scores(weights, N, "zero") @ value
        assert_same_with_gradients(got, expected, [weights, value], 1e-12)


def test_the_drawing_of_convolve_is_what_it_computes():
    """The block of the queries 1 and 2, which see the values 0 to 3."""
    matrix = drawn(kernels.convolve, "a0 b0 c0 0\n 0 a1 b1 c1")
    weights = torch.zeros(1, 1, 4, 3, dtype=torch.float64)
    weights[0, 0, 1] = matrix[0, 0:3]
    weights[0, 0, 2] = matrix[1, 1:4]
    value = draw(1, 1, 4, 2)
    z = kernels.convolve(weights, value)
    assert_near(z[0, 0, 1:3], matrix @ value[0, 0], 1e-10)


@pytest.mark.parametrize(
    "name", ["scores_by_index", "scores_by_skew", "skew", "relative_values", "convolve"]
)
def test_no_python_loop_over_the_positions(name):
    """More tokens do not run more lines."""

    def lines_for(N):
        rows = draw(1, 2, N, 5)
        arguments = {
            "scores_by_index": (rows, N),
            "scores_by_skew": (rows, N),
            "skew": (rows,),
            "relative_values": (draw(1, 2, N, N), draw(4, 5)),
            "convolve": (rows, draw(1, 2, N, 4)),
        }
        module = attention if name == "relative_values" else kernels
        return lines_run(getattr(module, name), *arguments[name])

    assert lines_for(34) == lines_for(60)


# --- Long sequences -------------------------------------------------------------------------------


@pytest.mark.parametrize("beyond", BEYOND)
@pytest.mark.parametrize(
    "block, N, K",
    [
        (4, 12, 5),  # three full blocks
        (4, 13, 17),  # blocks smaller than the reach; the last one has a single query
        (7, 20, 3),  # blocks larger than the reach
        (1, 5, 3),  # one query per block
    ],
)
def test_blocks_equal_attention_without_blocks(monkeypatch, beyond, block, N, K):
    """With all terms, with one at a time, and with rows that sequences or queries share."""
    inputs = attention_inputs(N, K)
    terms = ("query_bias", "key_bias", "value_table")
    cases = [inputs]
    for name in terms:
        cases.append({**inputs, **dict.fromkeys(terms), name: inputs[name]})
    for rows in (inputs["query_bias"][0], inputs["query_bias"][0, :, :1]):
        shared = rows.detach().requires_grad_()  # (H, N, K) and (H, 1, K)
        cases.append({**inputs, "query_bias": shared, "key_bias": None})

    for case in cases:
        go_in_blocks(monkeypatch, 1024, block)
        expected = results(attention.attention, case, beyond=beyond)
        go_in_blocks(monkeypatch, block, block)
        assert_near(results(attention.attention, case, beyond=beyond), expected, 1e-12)


def test_the_backward_pass_of_blocks_has_the_dropout_of_the_forward_pass(monkeypatch):
    """z is linear in v. So sum(gradient of v * v) = sum(gradient of z * z), for one dropout only.

    And every call, every block has another one.
    """
    go_in_blocks(monkeypatch, 4, 4)
    inputs = attention_inputs(12, 5)
    inputs["value_table"] = None
    found = results(attention.attention, inputs, dropout=0.4)
    z = attention.attention(**inputs, dropout=0.4)
    upstream = draw(*z.shape)
    (gradient,) = torch.autograd.grad(z, inputs["v"], upstream)
    assert_near((gradient * inputs["v"]).sum(), (upstream * z).sum(), 1e-10)
    assert not torch.equal(z.detach(), found["z"])

    # with the identity as values, z is the map of weights: its zeros are the dropout
    identity = torch.eye(12, dtype=torch.float64).expand(2, 2, 12, 12)
    kept = attention.attention(**{**inputs, "v": identity}, dropout=0.4).ne(0)
    assert not torch.equal(kept[0, :, :4], kept[0, :, 4:8]), "two blocks have the same dropout"


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returns, also in the backward."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = result
        if not isinstance(result, (tuple, list)):
            tensors = [result]
        for x in tensors:
            if isinstance(x, torch.Tensor):
                self.size = max(self.size, x.untyped_storage().nbytes() // x.element_size())
        return result


def test_no_tensor_of_a_long_sequence_has_the_size_of_the_map(monkeypatch):
    go_in_blocks(monkeypatch, 100, 10)
    for N in (200, 400):
        inputs = attention_inputs(N, 5)
        with LargestTensor() as largest:
            results(attention.attention, inputs)
        assert largest.size <= 2 * 2 * 12 * (N + 20)  # about one block, and not N x N
