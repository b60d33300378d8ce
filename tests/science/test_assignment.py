"""The tests that grade the assignment (course/): a class for each function of its table.

A test looks at one thing, and its name says at which, so that a function with one mistake keeps the
points of what is right. Where a function calls another one of the assignment, a loop of
tests/references.py takes its place. Inputs are float32, as in the handout; one test of a class
compares float64, with gradients.
"""

import doctest
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import attention
import data
import kernels
import pretrain
import references
from conftest import ROOT
from helpers import (
    assert_equals_loops,
    assert_near,
    assert_same_with_gradients,
    attention_inputs,
    draw,
    lines_run,
    padded_batch,
    random_mixer,
)
from kernels import Positions
from model import masked_lm_loss
from support.tokenizer import CLS, MASK, PAD, SEP, UNK

CPU = torch.device("cpu")


# --- What all classes share -----------------------------------------------------------------------


def check(got, expected, axes, tolerance=1e-5):
    """Compare two tensors, whatever their precision. A message names the axes of the index."""
    assert torch.is_tensor(got), f"it returns {type(got).__name__}, not a tensor"
    assert_near(got.double(), expected.double(), tolerance, f"the result ({axes})")


def check_gradients(got, expected, inputs, axes):
    """The same for float64 inputs, with their gradients. A float32 result is right, too."""
    tolerance = 1e-10 if got.dtype == torch.float64 else 1e-4
    name = f"the result ({axes})"
    assert_same_with_gradients(got.double(), expected, inputs, tolerance, name)


def random(*shape, seed=0):
    """Random float32 numbers, the same for the same seed."""
    return draw(*shape, seed=seed).float()


def symmetric(x):
    """x, made equal at r and -r: then it does not matter which of them is read."""
    return x + x.flip(-1)


def double(x):
    return None if x is None else x.double()


def all_tokens(N):
    return torch.ones(1, N, dtype=torch.bool)


def run_example(name):
    """The examples under a heading of the handout, after those that stand above all headings."""
    handout = (ROOT / "course/handout.md").read_text("utf-8")
    setup = handout.partition("\n### ")[0]
    own = handout.partition(f"\n### `{name}`")[2].partition("\n#")[0]
    assert ">>>" in own, f"the handout has no example of {name}"
    examples = doctest.DocTestParser().get_doctest(setup + own, {}, name, None, 0)
    try:
        doctest.DebugRunner().run(examples)
    except doctest.DocTestFailure as failure:
        example = failure.example
        raise AssertionError(
            f"{example.source.strip()} gives {failure.got.strip()}, not {example.want.strip()}"
        ) from None
    except doctest.UnexpectedException as error:
        raise error.exc_info[1] from None


class Graded:
    """The first test of every class: the example of the handout."""

    name = None

    def test_the_example_of_the_handout(self):
        run_example(self.name)


class WithoutLoop(Graded):
    """A function that must not loop over the positions; `call(N)` calls it for N tokens."""

    def test_no_python_loop_over_the_positions(self):
        few, many = lines_run(self.call, 34), lines_run(self.call, 60)
        assert few == many, (
            f"it loops over the positions: it runs {few} lines for 34 tokens, {many} for 60"
        )


# --- Part 1: the idea -----------------------------------------------------------------------------


def composite_loops(q, k, v, w, beta):
    """composite_attention by the loops of `attention`."""
    H = len(beta)
    q, k, v = (x.unflatten(-1, (H, -1)).transpose(1, 2) for x in (q, k, v))  # (B, H, N, d)
    bias = q @ w / math.sqrt(q.shape[-1]) + beta[:, None]  # (B, H, N, K)
    mask = torch.ones(len(q), q.shape[2], dtype=torch.bool)
    z = references.attention(q, k, v, mask, Positions(bias))
    return z.transpose(1, 2).flatten(2)


class Test_composite_attention(WithoutLoop):
    name = "composite_attention"
    axes = "sequence, i, channel"

    def call(self, N):
        x = random(1, N, 8)
        attention.composite_attention(x, x, x, random(4, 5), random(2, 5))

    def compare(self, N=9, K=5, content=1, dynamic=1, fixed=1):
        """Two heads of four channels. Each term has a factor; 0 leaves it out."""
        q, k, v = (random(2, N, 8, seed=seed) for seed in range(3))
        # without the content, the keys are 0; without the other two, their tables are
        w, beta = dynamic * random(4, K), fixed * random(2, K)
        given = q, content * k, v, w, beta
        check(attention.composite_attention(*given), composite_loops(*given), self.axes)

    def test_content_is_divided_by_sqrt_d(self):
        self.compare(dynamic=0, fixed=0)

    def test_q_w_is_divided_by_sqrt_d(self):
        self.compare(K=1, fixed=0)
        q, w = random(1, 5, 8), symmetric(random(4, 3))
        given = q, 0 * q, random(1, 5, 8, seed=1), w, torch.zeros(2, 3)
        check(attention.composite_attention(*given), composite_loops(*given), self.axes)

    def test_beta_is_not_divided_by_sqrt_d(self):
        zeros, v, beta = torch.zeros(1, 5, 8), random(1, 5, 8), symmetric(random(2, 3))
        given = zeros, zeros, v, torch.zeros(4, 3), beta
        check(attention.composite_attention(*given), composite_loops(*given), self.axes)

    def look(self, beta):
        """What token 2 of 5 sees with a bias: the unit vectors are the values."""
        zeros = torch.zeros(1, 5, 5)
        given = zeros, zeros, torch.eye(5)[None], torch.zeros(5, len(beta)), torch.tensor([beta])
        return attention.composite_attention(*given)[0, 2]

    def test_r_is_j_minus_i_so_a_positive_r_is_to_the_right(self):
        seen = self.look([0.0, 0.0, 0.0, 99.0, 0.0])
        check(seen, torch.tensor([0.0, 0, 0, 1, 0]), "key, seen by token 2 if beta_1 is 99")

    def test_the_middle_column_is_the_token_itself(self):
        seen = self.look([0.0, 99.0, 0.0])
        check(seen, torch.tensor([0.0, 0, 1, 0, 0]), "key, seen by token 2 if beta_0 is 99")

    def test_each_token_gets_the_channels_of_its_heads_one_head_after_the_other(self):
        """All tokens have the same values, so z equals them: 1 in head 0, and 2 in head 1."""
        zeros, v = torch.zeros(1, 5, 8), torch.tensor([1.0, 2]).repeat_interleave(4).expand(1, 5, 8)
        z = attention.composite_attention(zeros, zeros, v, torch.zeros(4, 3), torch.zeros(2, 3))
        check(z, v, self.axes)

    def test_offsets_beyond_the_window_get_the_first_or_last_column(self):
        zeros, v, beta = torch.zeros(1, 70, 8), random(1, 70, 8), symmetric(random(2, 3))
        given = zeros, zeros, v, torch.zeros(4, 3), beta
        check(attention.composite_attention(*given), composite_loops(*given), self.axes)

    @pytest.mark.parametrize("N", [1, 9, 70])
    def test_values_and_gradients_equal_the_loops_in_float64(self, N):
        q, k, v = (draw(1, N, 8, seed=seed).requires_grad_() for seed in range(3))
        w, beta = draw(4, 5).requires_grad_(), draw(2, 5).requires_grad_()
        given = q, k, v, w, beta
        got = attention.composite_attention(*given)
        check_gradients(got, composite_loops(*given), given, self.axes)


# --- Part 2: the equivalence ----------------------------------------------------------------------


class Test_bias_matrix(WithoutLoop):
    name = "bias_matrix"
    axes = "head, i, j"

    def call(self, N):
        kernels.bias_matrix(random(2, N, 5), N)

    def compare(self, bias, N, beyond="clip"):
        expected = references.relative_scores(bias, N, beyond)
        check(kernels.bias_matrix(bias, N, beyond), expected, self.axes)

    def test_r_is_j_minus_i_so_a_positive_r_is_to_the_right(self):
        self.compare(random(2, 3, 5), 3)

    def test_the_diagonal_reads_the_middle_column(self):
        bias = random(2, 6, 5)
        diagonal = kernels.bias_matrix(bias, 6).diagonal(dim1=-2, dim2=-1)
        check(diagonal, bias[..., 2], "head, i")

    def test_clip_gives_the_first_or_last_entry_beyond_the_window(self):
        self.compare(symmetric(random(2, 7, 3)), 7)

    def test_zero_gives_0_beyond_the_window_and_only_there(self):
        self.compare(symmetric(random(2, 7, 3)), 7, "zero")

    def test_every_query_reads_its_own_bias(self):
        self.compare(random(2, 6, 1), 6)

    def test_one_bias_may_be_shared_by_all_queries(self):
        self.compare(symmetric(random(2, 1, 3)), 6)

    @pytest.mark.parametrize("beyond", kernels.BEYOND)
    def test_values_and_gradients_equal_the_loops_in_float64(self, beyond):
        for N, K in ((1, 3), (5, 1), (8, 5), (4, 21)):
            bias = draw(2, 3, N, K).requires_grad_()
            got = kernels.bias_matrix(bias, N, beyond)
            check_gradients(got, references.relative_scores(bias, N, beyond), [bias], self.axes)


class Test_sum_by_offset(WithoutLoop):
    name = "sum_by_offset"
    axes = "head, i, column"

    def call(self, N):
        kernels.sum_by_offset(random(2, N, N), 5)

    def compare(self, x, K, beyond):
        check(
            kernels.sum_by_offset(x, K, beyond), references.sum_by_offset(x, K, beyond), self.axes
        )

    def test_inside_the_window_column_r_plus_k_is_the_key_at_i_plus_r(self):
        self.compare(random(2, 7, 7), 3, "zero")

    def test_the_middle_column_is_the_diagonal(self):
        x = random(2, 7, 7)
        got = kernels.sum_by_offset(x, 5, "zero")[..., 2]
        check(got, x.diagonal(dim1=-2, dim2=-1), "head, i")

    def test_with_clip_nothing_is_lost_and_nothing_counted_twice(self):
        """The sums of a query add up to its line of x."""
        x = random(2, 9, 9)
        check(kernels.sum_by_offset(x, 3).sum(dim=-1), x.sum(dim=-1), "head, i")

    def test_with_clip_keys_left_of_the_window_are_added_to_the_first_column(self):
        x = random(1, 7, 7).tril(-2)
        self.compare(x, 3, "clip")

    def test_with_clip_keys_right_of_the_window_are_added_to_the_last_column(self):
        x = random(1, 7, 7).triu(2)
        self.compare(x, 3, "clip")

    @pytest.mark.parametrize("beyond", kernels.BEYOND)
    def test_it_is_the_gradient_of_bias_matrix_in_float64(self, beyond):
        for N, K in ((1, 3), (5, 1), (8, 5), (4, 21)):
            x, bias = draw(2, 3, N, N), torch.zeros(2, 3, N, K).double().requires_grad_()
            references.relative_scores(bias, N, beyond).backward(x)
            got = kernels.sum_by_offset(x, K, beyond)
            check(got, bias.grad, self.axes, 1e-10 if got.dtype == torch.float64 else 1e-5)


class Test_depthwise_convolution(WithoutLoop):
    name = "depthwise_convolution"
    axes = "sequence, i, channel"

    def call(self, N):
        attention.depthwise_convolution(random(1, N, 4), random(4, 3))

    def loops(self, x, weight, bias, dilation):
        N, K = x.shape[1], weight.shape[1]
        y = torch.zeros_like(x) + bias
        for i in range(N):
            for t in range(K):
                j = i + (t - K // 2) * dilation
                if 0 <= j < N:
                    y[:, i] = y[:, i] + weight[:, t] * x[:, j]
        return y

    def compare(self, weight, dilation=1, bias=0.0, N=7):
        x = random(2, N, len(weight))
        given = None if isinstance(bias, float) else bias
        got = attention.depthwise_convolution(x, weight, given, dilation)
        check(got, self.loops(x, weight, bias, dilation), self.axes)

    def test_the_last_weight_meets_the_next_token_the_kernel_is_not_flipped(self):
        self.compare(torch.tensor([[0.0, 0, 1]]))

    def test_the_middle_weight_meets_the_token_itself(self):
        self.compare(torch.tensor([[0.0, 2, 0]]))

    def test_values_beyond_the_ends_are_0_also_with_a_kernel_longer_than_the_text(self):
        self.compare(symmetric(random(2, 9)), N=3)

    def test_every_channel_has_its_own_kernel(self):
        self.compare(symmetric(random(4, 3)))

    def test_dilated_weights_meet_tokens_that_are_dilation_apart(self):
        self.compare(symmetric(random(2, 3)), dilation=2)

    def test_the_bias_is_added_to_every_token(self):
        self.compare(torch.zeros(3, 3), bias=random(3))

    @pytest.mark.parametrize("dilation", [1, 3])
    def test_values_and_gradients_equal_the_loops_in_float64(self, dilation):
        x, weight, bias = draw(2, 8, 6), draw(6, 5, seed=1), draw(6, seed=2)
        given = [x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
        got = attention.depthwise_convolution(*given, dilation)
        check_gradients(got, self.loops(*given, dilation), given, self.axes)


class Test_convolve(WithoutLoop):
    name = "convolve"
    axes = "sequence, head, i, channel"

    def call(self, N):
        # both lengths are whole blocks of two
        kernels.convolve(random(1, 2, N, 3), random(1, 2, N, 4))

    def compare(self, weights, N):
        value = random(1, 2, N, 4, seed=1)
        expected = references.relative_scores(weights, N, "zero") @ value
        check(kernels.convolve(weights, value), expected, self.axes)

    def test_the_last_weight_meets_the_next_token_the_kernel_is_not_flipped(self):
        self.compare(torch.tensor([0.0, 0, 1]).expand(1, 2, 7, 3), 7)

    def test_the_middle_weight_meets_the_token_itself(self):
        self.compare(torch.tensor([0.0, 2, 0]).expand(1, 2, 7, 3), 7)

    def test_every_query_has_its_own_kernel(self):
        self.compare(symmetric(random(1, 2, 7, 3)), 7)

    def test_values_beyond_the_ends_are_0_also_with_a_kernel_longer_than_the_text(self):
        self.compare(symmetric(random(1, 2, 3, 9)), 3)

    def test_the_weights_are_taken_as_they_are_without_a_softmax(self):
        self.compare(torch.full((1, 2, 5, 1), 3.0), 5)

    @pytest.mark.parametrize("N", [1, 10, 70])
    def test_values_and_gradients_equal_the_loops_in_float64(self, N):
        weights = draw(2, 2, N, 5).requires_grad_()
        value = draw(2, 2, N, 4, seed=1).requires_grad_()
        got = kernels.convolve(weights, value)
        expected = references.relative_scores(weights, N, "zero") @ value
        check_gradients(got, expected, [weights, value], self.axes)


# --- Part 3: the general form ---------------------------------------------------------------------


class OfTerm(Graded):
    """A term that makes a bias of a table: the name of the term, of its method and of its table."""

    axes = "sequence, head, token, column"

    def compare(self, x, table):
        """x (B, H, N, d) times the table (d, K), divided by sqrt(d)."""
        config = SimpleNamespace(heads=2, hidden_size=2 * len(table), kernel_size=table.shape[1])
        term = attention.TERMS[self.term](config)
        setattr(term, self.table, nn.Parameter(table))
        expected = torch.einsum("bhnd,dk->bhnk", x, table) / math.sqrt(len(table))
        got = getattr(term, self.method)(x)
        if x.dtype == torch.float64:
            own = getattr(term, self.table)
            expected = torch.einsum("bhnd,dk->bhnk", x, own) / math.sqrt(len(table))
            check_gradients(got, expected, [x, own], self.axes)
        check(got, expected, self.axes)

    def test_every_token_and_every_head_makes_its_own_bias(self):
        self.compare(random(2, 2, 5, 1), torch.ones(1, 3))

    def test_column_r_of_the_table_gives_column_r_of_the_bias(self):
        self.compare(torch.ones(1, 2, 3, 1), torch.tensor([[1.0, 2, 3, 4, 5]]))

    def test_it_is_divided_by_sqrt_d(self):
        self.compare(random(1, 2, 3, 4), symmetric(random(4, 3)))

    def test_it_has_no_softmax(self):
        self.compare(torch.ones(1, 2, 3, 1), torch.full((1, 3), 7.0))

    def test_values_and_gradients_equal_the_equation_in_float64(self):
        self.compare(draw(2, 2, 5, 4).requires_grad_(), draw(4, 3))


class Test_Dynamic_query_bias(OfTerm):
    name, term, method, table = "Dynamic.query_bias", "dynamic", "query_bias", "w"


class Test_KeyDynamic_key_bias(OfTerm):
    name, term, method, table = "KeyDynamic.key_bias", "key_dynamic", "key_bias", "u"


class Test_Fixed_query_bias(Graded):
    name = "Fixed.query_bias"

    def bias(self, beta):
        config = SimpleNamespace(heads=len(beta), hidden_size=8, kernel_size=beta.shape[1])
        term = attention.Fixed(config)
        term.beta = nn.Parameter(beta)
        return term.query_bias(random(2, len(beta), 5, 4)), term.beta

    def test_it_has_one_bias_per_head_that_all_queries_share(self):
        bias, _ = self.bias(torch.zeros(2, 3))
        assert bias.shape == (2, 1, 3), f"its shape is {tuple(bias.shape)}, not (H, 1, K)"

    def test_beta_is_not_divided_by_sqrt_d_and_has_no_softmax(self):
        bias, _ = self.bias(torch.full((2, 3), 7.0))
        check(bias.flatten(), torch.full((bias.numel(),), 7.0), "number")

    def test_column_r_of_beta_gives_column_r_of_the_bias(self):
        bias, beta = self.bias(torch.tensor([[1.0, 2, 3]]))
        check(bias.flatten(0, -2)[0] / bias.flatten()[0], beta[0], "column")

    def test_beta_learns(self):
        bias, beta = self.bias(torch.zeros(2, 3))
        assert bias.requires_grad, "the bias has no gradient for beta"


class Test_lowest_at_padding(WithoutLoop):
    name = "lowest_at_padding"
    mask = torch.tensor([[True, True, False], [False, True, True]])

    def call(self, N):
        attention.lowest_at_padding(all_tokens(N), torch.float32)

    def test_it_has_a_number_for_each_key_and_the_dtype_that_is_asked_for(self):
        for dtype in (torch.float32, torch.float64):
            lowest = attention.lowest_at_padding(self.mask, dtype)
            shape = tuple(lowest.shape)
            assert shape == (2, 1, 1, 3), f"the shape is {shape}, not (B, 1, 1, N) = (2, 1, 1, 3)"
            assert lowest.dtype == dtype, f"the dtype is {lowest.dtype}, not {dtype}"

    def test_it_is_0_at_real_tokens_and_only_there(self):
        lowest = attention.lowest_at_padding(self.mask, torch.float32).reshape(2, 3)
        check((lowest == 0).float(), self.mask.float(), "sequence, key; 1: it is 0")

    def test_the_weight_of_padding_is_0_whatever_its_score_is(self):
        lowest = attention.lowest_at_padding(self.mask, torch.float32).reshape(2, 3)
        for score in (-1e4, 0.0, 1e4):
            p = torch.where(self.mask, lowest, lowest + score).softmax(dim=-1)
            check(p * ~self.mask, torch.zeros(2, 3), "sequence, key")

    def test_a_sequence_of_padding_only_gets_no_nan(self):
        lowest = attention.lowest_at_padding(~all_tokens(3), torch.float32)
        p = (lowest + random(1, 2, 3, 3)).softmax(dim=-1)
        assert p.isfinite().all(), "the softmax of a sequence of padding only is NaN"


@pytest.mark.parametrize("number", [-1e9, torch.finfo(torch.float32).min])
def test_every_number_at_padding_that_gives_weight_0_earns_all_points(number, monkeypatch):
    """Half of the lowest number leaves room for a score, but a score is too small to need it."""
    monkeypatch.setattr(
        attention,
        "lowest_at_padding",
        lambda mask, dtype: torch.where(mask, 0.0, number).to(dtype)[:, None, None],
    )
    tests = Test_lowest_at_padding()
    for name in dir(tests):
        if name.startswith("test_"):
            getattr(tests, name)()


def relative_values_in_float64(p, table, beyond="clip"):
    """The loops of relative_values, which take float64."""
    return references.relative_values(p.double(), table.double(), beyond).to(p.dtype)


@pytest.fixture
def loops_for_the_others(monkeypatch):
    """What `attention` calls, as loops: mistakes there cost nothing here."""
    monkeypatch.setattr(attention, "banded_softmax", references.banded_softmax)
    monkeypatch.setattr(attention, "relative_values", relative_values_in_float64)
    monkeypatch.setattr(
        attention,
        "lowest_at_padding",
        lambda mask, dtype: torch.where(mask, 0.0, -1e30).to(dtype)[:, None, None],
    )


@pytest.mark.usefixtures("loops_for_the_others")
class Test_attention(WithoutLoop):
    name = "attention"
    axes = "sequence, head, i, channel"

    def call(self, N):
        x, bias = random(1, 2, N, 4), random(1, 2, N, 5)
        attention.attention(x, x, x, all_tokens(N), Positions(bias, bias, random(4, 5)))

    def compare(self, positions=None, mask=None, content=0, **options):
        """content: a factor; with 0, a mistake in the content does not fail the other tests."""
        q, k, v = (random(2, 2, 7, 4, seed=seed) for seed in range(3))
        q = content * q
        positions = positions or Positions()
        mask = torch.ones(2, 7, dtype=torch.bool) if mask is None else mask
        got = attention.attention(q, k, v, mask, positions, **options)
        positions = Positions(*[double(x) for x in positions[:3]], positions.beyond)
        expected = references.attention(double(q), double(k), double(v), mask, positions, **options)
        check(got, expected, self.axes)

    def test_content_is_divided_by_sqrt_d(self):
        self.compare(content=1)

    def test_padding_gets_no_attention(self):
        self.compare(mask=torch.arange(7) < torch.tensor([[4], [6]]))

    def test_the_biases_of_queries_and_keys_are_added_and_not_divided(self):
        self.compare(Positions(random(2, 2, 7, 5), random(2, 2, 7, 5, seed=1)))

    def test_the_value_table_is_added_to_the_values(self):
        self.compare(Positions(value_table=random(4, 5)))

    def test_beyond_is_passed_on(self):
        self.compare(Positions(random(2, 1, 3), None, random(4, 3), "zero"))

    def test_with_causal_a_query_sees_no_later_key(self):
        self.compare(causal=True)

    def test_with_causal_padding_gets_no_attention_either(self):
        self.compare(mask=torch.arange(7) != torch.tensor([[1], [2]]), causal=True)

    def test_dropout_acts_on_the_weights_and_scales_up_those_that_are_left(self):
        """With equal scores and unit vectors as values, z lists the weights, 1/40 each."""
        zeros, values = torch.zeros(1, 1, 40, 40), torch.eye(40)[None, None]
        torch.manual_seed(0)
        z = attention.attention(zeros, zeros, values, all_tokens(40), dropout=0.3)
        kept = z > 0
        check(z, kept / 40 / 0.7, self.axes)
        share = kept.float().mean().item()
        assert abs(share - 0.7) < 0.05, f"{share:.0%} of the weights are left, not 70%"

    def test_values_and_value_table_meet_the_same_weights_also_with_dropout(self):
        """Values of 1 and a table of -1: whichever weights are dropped, the sum is 0."""
        zeros, ones = torch.zeros(1, 1, 40, 4), torch.ones(1, 1, 40, 4)
        positions = Positions(value_table=-torch.ones(4, 3))
        z = attention.attention(zeros, zeros, ones, all_tokens(40), positions, dropout=0.3)
        check(z, zeros, self.axes)

    @pytest.mark.parametrize("beyond", kernels.BEYOND)
    def test_values_and_gradients_equal_the_loops_in_float64(self, beyond):
        q, k, v, mask, *positions = attention_inputs(9, 5).values()
        positions = Positions(*positions, beyond)
        got = attention.attention(q, k, v, mask, positions)
        expected = references.attention(q, k, v, mask, positions)
        check_gradients(got, expected, [q, k, v, *positions[:3]], self.axes)


class Test_relative_values(WithoutLoop):
    name = "relative_values"
    axes = "sequence, head, i, channel"

    @pytest.fixture(autouse=True)
    def loops_for_the_sums(self, monkeypatch):
        def sums(p, K, beyond="clip"):
            return references.sum_by_offset(p.double(), K, beyond).to(p.dtype)

        monkeypatch.setattr(attention, "sum_by_offset", sums)

    def call(self, N):
        attention.relative_values(random(1, 2, N, N), random(4, 5))

    def compare(self, table, beyond="clip"):
        p = random(1, 2, 7, 7)
        expected = relative_values_in_float64(p, table, beyond)
        check(attention.relative_values(p, table, beyond), expected, self.axes)

    def test_the_vector_is_that_of_r_equal_to_j_minus_i(self):
        self.compare(torch.arange(13.0)[None])

    def test_it_is_not_divided_by_sqrt_d(self):
        self.compare(symmetric(random(4, 3)))

    def test_beyond_zero_adds_nothing_for_keys_beyond_the_window(self):
        self.compare(symmetric(random(4, 3)), "zero")

    @pytest.mark.parametrize("beyond", kernels.BEYOND)
    def test_values_and_gradients_equal_the_loops_in_float64(self, beyond):
        p, table = draw(2, 3, 8, 8).requires_grad_(), draw(4, 5).requires_grad_()
        got = attention.relative_values(p, table, beyond)
        check_gradients(got, references.relative_values(p, table, beyond), [p, table], self.axes)


# --- Part 4: training -----------------------------------------------------------------------------


def assert_share(count, total, share, what):
    """`count` of `total` independent events is likely: it fails once in 1.7 million."""
    sigma = math.sqrt(total * share * (1 - share))
    assert abs(count - total * share) < 5 * sigma, f"{count / total:.1%} of {what}, not {share:.1%}"


class Test_mask_tokens(WithoutLoop):
    name = "mask_tokens"
    SPECIAL = torch.tensor([[CLS, SEP, MASK, UNK, PAD]])

    def call(self, N):
        data.mask_tokens(torch.full((2, N), 6), 40, torch.Generator())

    def masked(self, vocabulary=1000, seed=0):
        """(ids, masked ids, labels): 100 ordinary and 5 special tokens in each of 500 lines."""
        generator = torch.Generator().manual_seed(seed)
        words = torch.randint(5, vocabulary, (500, 100), generator=generator)
        ids = torch.cat([self.SPECIAL.expand(500, 5), words], dim=1)
        masked_ids, labels = data.mask_tokens(ids, vocabulary, generator)
        assert (labels != -100).any(), "no token is chosen"
        return ids, masked_ids, labels

    def test_15_percent_of_the_ordinary_tokens_are_chosen(self):
        ids, _, labels = self.masked()
        count = ((labels != -100) & (ids >= 5)).sum().item()
        assert_share(count, 50_000, 0.15, "the ordinary tokens are chosen")

    def test_80_percent_of_the_chosen_become_mask_and_10_percent_stay(self):
        ids, masked_ids, labels = self.masked()
        chosen = (labels != -100) & (ids >= 5)
        for share, kept in ((0.8, masked_ids == MASK), (0.1, masked_ids == ids)):
            what = "the chosen tokens become [MASK]" if share == 0.8 else "the chosen tokens stay"
            assert_share((chosen & kept).sum().item(), chosen.sum().item(), share, what)

    def test_special_tokens_are_never_chosen(self):
        _, masked_ids, labels = self.masked()
        check(masked_ids[:, :5], self.SPECIAL.expand(500, 5), "sequence, i")
        check(labels[:, :5], torch.full((500, 5), -100), "sequence, i")

    def test_the_first_ordinary_token_can_be_chosen_too(self):
        ids = torch.full((100, 100), 5)
        _, labels = data.mask_tokens(ids, 40, torch.Generator().manual_seed(0))
        assert_share((labels == 5).sum().item(), 10_000, 0.15, "the tokens of id 5 are chosen")

    def test_labels_are_the_original_tokens_and_the_others_stay(self):
        ids, masked_ids, labels = self.masked()
        chosen = labels != -100
        check(labels, torch.where(chosen, ids, -100), "sequence, i")
        check(masked_ids[~chosen], ids[~chosen], "token that is not chosen")

    def test_random_tokens_are_all_ordinary_ids_from_the_first_to_the_last(self):
        ids = torch.full((300, 100), 6)
        masked_ids, _ = data.mask_tokens(ids, 8, torch.Generator().manual_seed(0))
        drawn = sorted(set(masked_ids.flatten().tolist()) - {MASK})
        assert drawn == [5, 6, 7], f"of the ids 5 to 7, it draws {drawn}"

    def test_the_masks_depend_on_the_generator_alone(self):
        torch.manual_seed(0)
        _, one, _ = self.masked()
        torch.manual_seed(1)
        _, again, _ = self.masked()
        assert torch.equal(one, again), "with the same generator, the masks differ"

    def test_one_random_number_per_token_decides_and_the_ids_are_drawn_after_it(self):
        ids = torch.randint(0, 40, (20, 30), generator=torch.Generator().manual_seed(1))
        numbers = torch.Generator().manual_seed(2)
        draws = torch.rand(ids.shape, generator=numbers)
        random_ids = torch.randint(5, 40, ids.shape, generator=numbers)
        expected = references.mask_tokens(ids, draws, random_ids)
        got = data.mask_tokens(ids, 40, torch.Generator().manual_seed(2))
        for one, other in zip(got, expected, strict=True):
            check(one, other, "sequence, i")


class GivenGradient(nn.Module):
    """Three weights; the gradient of its loss is what stands in the token ids."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([torch.ones(1), torch.ones(2)])

    def loss(self, gradient, mask, labels, count):
        return (torch.cat(list(self.weights)) * gradient).sum()


class Test_update(Graded):
    name = "update"

    def steps(self, *gradients):
        """Steps of plain gradient descent with these gradients of two parameters.

        Returns (loss, norm) of the last step, and what it has taken away from the parameters.
        """
        model = GivenGradient()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for gradient in gradients:
            before = torch.cat(list(model.weights)).detach()
            gradient = torch.tensor(gradient)
            result = pretrain.update(model, optimizer, gradient, torch.zeros(3))
        return result, before - torch.cat(list(model.weights)).detach()

    def test_a_short_gradient_is_taken_as_it_is(self):
        _, change = self.steps((0.2, 0.4, 0.4))
        check(change, torch.tensor([0.2, 0.4, 0.4]), "weight")

    def test_a_gradient_longer_than_1_is_clipped_before_the_step(self):
        _, change = self.steps((2.0, 4.0, 4.0))
        assert change.norm() < 1.001, f"the weights move by {change.norm():.3f}, not by 1"

    def test_all_parameters_are_clipped_together(self):
        _, change = self.steps((2.0, 4.0, 4.0))
        check(change / change[0], torch.tensor([1.0, 2, 2]), "weight")

    def test_the_gradients_of_the_step_before_are_forgotten(self):
        _, change = self.steps((0.2, 0.4, 0.4), (0.1, 0.0, 0.0))
        check(change, torch.tensor([0.1, 0, 0]), "weight")

    def test_it_returns_the_loss(self):
        (loss, _), _ = self.steps((2.0, 4.0, 4.0))
        assert float(loss) == pytest.approx(10), f"the loss is {float(loss):.3f}, not 10"

    def test_it_returns_the_norm_before_the_clipping(self):
        (_, norm), _ = self.steps((2.0, 4.0, 4.0))
        assert float(norm) == pytest.approx(6), f"the norm is {float(norm):.3f}, not 6"

    def test_it_returns_tensors_so_the_host_does_not_wait_for_the_device(self):
        for number in self.steps((2.0, 4.0, 4.0))[0]:
            assert torch.is_tensor(number), f"{number} is a {type(number).__name__}, not a tensor"


# --- Optional -------------------------------------------------------------------------------------


class Test_skew(WithoutLoop):
    name = "skew"

    def call(self, N):
        kernels.skew(random(1, 2, N, 5))

    def test_line_i_is_moved_to_the_right_by_i_columns(self):
        """Zeros at the end of a line are what the next one is moved by."""
        x = torch.cat([random(3, 2), torch.zeros(3, 3)], dim=1)  # (3, 5)
        expected = torch.zeros(3, 4)
        for i in range(3):
            expected[i, i : i + 2] = x[i, :2]
        check(kernels.skew(x), expected, "i, column")

    def test_it_takes_any_leading_dimensions(self):
        x = random(2, 3, 4, 6)
        expected = torch.stack([torch.stack([kernels.skew(h) for h in b]) for b in x])
        check(kernels.skew(x), expected, "sequence, head, i, column")

    def test_it_copies_nothing(self):
        x = random(3, 6)
        assert kernels.skew(x).data_ptr() == x.data_ptr(), "the result is a copy"


class OfConvolution(Graded):
    """LightConv and DynamicConv: `weights` is what the softmax is taken of."""

    def test_dropout_acts_on_the_weights_and_scales_up_those_that_are_left(self):
        """Three equal weights: z is 0, 1, 2 or 3 times (1/3) / 0.75 where all three meet ones."""
        mixer = random_mixer(self.variant, dropout=0.25, kernel_size=3).train()
        nn.init.zeros_(mixer.weight if self.variant == "lightconv" else mixer.kernel.weight)
        torch.manual_seed(0)
        kept = set()
        for _ in range(20):
            z = mixer.convolution(torch.ones(1, 9, 8).double())[:, 1:-1]
            kept |= set((z * 3 * 0.75).round(decimals=6).flatten().tolist())
        assert kept <= {0.0, 1.0, 2.0, 3.0} and len(kept) > 2, f"3 x the sums are {sorted(kept)}"

    @pytest.mark.parametrize("N", [1, 5, 19])
    def test_values_and_gradients_equal_the_loops_in_float64(self, N):
        assert_equals_loops(self.variant, N, kernel_size=3)

    def test_the_weights_of_a_kernel_sum_to_1(self):
        mixer = random_mixer(self.variant, kernel_size=3).eval()
        z = mixer.convolution(torch.ones(1, 9, 8).double())[:, 1:-1]
        check(z, torch.ones_like(z), "sequence, i, channel")


class Test_LightConv_convolution(OfConvolution):
    name, variant = "LightConv.convolution", "lightconv"

    def test_the_channels_of_a_head_share_its_kernel(self):
        mixer = random_mixer("lightconv", kernel_size=3).eval()
        one = torch.zeros(1, 3, 8).double()
        one[0, 1] = 1
        z = mixer.convolution(one).unflatten(-1, (4, 2))
        check(z[..., 0], z[..., 1], "sequence, i, head")

    def test_dilated_weights_meet_tokens_that_are_dilation_apart(self):
        assert_equals_loops("dilated", 9, layer=2, kernel_size=3)


class Test_DynamicConv_convolution(OfConvolution):
    name, variant = "DynamicConv.convolution", "dynamicconv"


class Test_ConvBert_forward(Graded):
    name = "ConvBert.forward"

    @pytest.mark.parametrize("N", [1, 9])
    def test_values_and_gradients_equal_the_loops_in_float64(self, N):
        assert_equals_loops("convbert", N)

    def half(self, part, change):
        """One half of the channels, before the output layer, with and without padding."""
        mixer = random_mixer("convbert").eval()
        mixer.output = nn.Identity()
        x, mask = padded_batch(9)
        with torch.no_grad():
            one, other = mixer(x, mask), mixer(torch.where(mask[..., None], x, change), mask)
        return (y.chunk(2, dim=-1)[part][mask] for y in (one, other))

    @pytest.mark.parametrize("part", [0, 1], ids=["attention", "convolution"])
    def test_what_stands_at_padding_changes_nothing(self, part):
        check(*self.half(part, 9.0), "token, channel")

    def test_the_values_at_padding_are_0_although_their_layer_has_a_bias(self):
        mixer = random_mixer("convbert").eval()
        mixer.output = nn.Identity()
        nn.init.zeros_(mixer.value.weight)
        with torch.no_grad():
            z = mixer(torch.zeros(1, 9, 8).double(), torch.arange(9)[None] < 1)
            alone = mixer(torch.zeros(1, 1, 8).double(), all_tokens(1))
        check(z[:, 0], alone[:, 0], "sequence, channel")

    @pytest.mark.parametrize("training", [True, False], ids=["in training", "not in evaluation"])
    def test_weights_are_dropped(self, training):
        mixer = random_mixer("convbert", dropout=0.5).train(training)
        mixer.output = nn.Identity()
        x, mask = padded_batch(9)
        one, other = mixer(x, mask).chunk(2, dim=-1), mixer(x, mask).chunk(2, dim=-1)
        for half, first, second in zip(("attention", "convolution"), one, other, strict=True):
            is_same = torch.equal(first[mask], second[mask])
            assert is_same != training, f"two calls of the {half} heads: equal is {is_same}"


class Test_learning_rate(Graded):
    name = "learning_rate"

    def rates(self, steps, warmup_steps):
        rates = [pretrain.learning_rate(step, steps, warmup_steps, 2.0) for step in range(steps)]
        return torch.tensor(rates)

    def test_the_first_step_is_not_lost_its_rate_is_the_peak_over_the_warm_up(self):
        check(self.rates(9, 4)[:1], torch.tensor([0.5]), "step")

    def test_the_warm_up_rises_by_the_same_amount_in_each_step(self):
        check(self.rates(9, 4)[:4].diff(), torch.full((3,), 0.5), "step")

    def test_the_last_step_of_the_warm_up_and_the_next_one_have_the_peak(self):
        check(self.rates(9, 4)[3:5], torch.full((2,), 2.0), "step, from the last of the warm-up")

    def test_after_the_warm_up_it_falls_by_the_same_amount_in_each_step(self):
        check(self.rates(9, 4)[5:].diff(), torch.full((3,), -0.4), "step, after the warm-up")

    def test_the_step_after_the_last_one_would_have_0(self):
        assert pretrain.learning_rate(9, 9, 4, 2.0) == 0

    def test_there_may_be_no_warm_up(self):
        check(self.rates(4, 0), torch.tensor([2.0, 1.5, 1.0, 0.5]), "step")


class Answers(nn.Module):
    """A model that notes how it is called, and whose logits are given."""

    config = SimpleNamespace(causal=False)

    def __init__(self):
        super().__init__()
        self.seen = []
        self.layer = nn.Linear(4, 4)

    def masked_logits(self, input_ids, attention_mask, labels):
        self.seen.append((self.training, attention_mask, self.layer(torch.ones(4)).dtype))
        chosen = labels != -100
        logits = torch.zeros(int(chosen.sum()), 8)
        logits[:, 6] = input_ids[chosen].float()
        return logits, labels[chosen]


class Test_evaluate(Graded):
    name = "evaluate"

    def run(self, dtype=torch.float32):
        """(loss, accuracy, the model, the batches): of two batches, with 1 and 2 targets."""
        ids = torch.tensor([[CLS, 6, PAD, PAD]]), torch.tensor([[CLS, 5, 7, SEP]])
        labels = torch.tensor([[-100, 6, -100, -100]]), torch.tensor([[-100, 6, 5, -100]])
        batches = list(zip(ids, labels, strict=True))
        corpus = SimpleNamespace(held_out_batches=lambda batch_size, causal: batches)
        model = Answers().train()
        return *pretrain.evaluate(model, corpus, 1, CPU, dtype), model, batches

    def test_the_loss_is_the_mean_over_all_predictions_not_over_the_batches(self):
        loss, _, _, batches = self.run()
        sums = [
            float(masked_lm_loss(*Answers().masked_logits(ids, None, x), 1)) for ids, x in batches
        ]
        assert loss == pytest.approx(sum(sums) / 3, abs=1e-6), f"{loss:.4f}"

    def test_the_accuracy_is_the_share_of_right_answers_of_all_predictions(self):
        _, accuracy, *_ = self.run()
        assert accuracy == pytest.approx(2 / 3), f"the accuracy is {accuracy:.3f}, not 2/3"

    def test_there_is_no_dropout_in_between_and_the_model_trains_again_after_it(self):
        _, _, model, _ = self.run()
        assert not any(training for training, *_ in model.seen), "dropout is on"
        assert model.training, "the model is still in evaluation mode"

    def test_padding_is_masked(self):
        _, _, model, batches = self.run()
        for (_, mask, _), (ids, _) in zip(model.seen, batches, strict=True):
            assert mask is not None, "the model gets no mask"
            check(mask, ids != PAD, "sequence, i")

    def test_it_runs_under_autocast_in_the_dtype_that_is_asked_for(self):
        _, _, model, _ = self.run(torch.bfloat16)
        assert model.seen[0][2] == torch.bfloat16, f"it runs in {model.seen[0][2]}"
