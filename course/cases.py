"""The cases of the assignment: inputs from a seed, and the answers of plain loops.

A case shows one thing, and its name says which. Those of a function go from simple to general, so
the first that fails is what to repair first: in each, as far as possible, only the mistake that it
is named for changes the numbers (a bias that is equal at r and -r, heads of one channel, ...).

The answers are computed in float64 by tests/references.py, before anything of a student runs. The
students' copy has neither, but the cases of seed 0 in course/cases.pt. The same cases are the unit
tests of the project's own functions (tests/science/test_cases.py).

The cases of a function are {name: inputs}. All that its loops return is compared, or what "output"
names; for inputs that require gradients, also these.
"""

import math

import torch
from torch import randn

from course.grade import NO_LOOP, NOT_CHANGED, Case
from course.worker import AFTER, LINES, answer
from tests import references as loops


def make_cases(seed):
    """All cases, with their answers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [case for function, row in TABLE.items() for case in cases_of(function, *row)]


def cases_of(function, axes, by_loops, make):
    """Yield the cases of a function: a row of TABLE."""
    for name, inputs in make().items():
        output = inputs.pop("output", "")
        if name == NO_LOOP:
            expected = {LINES: torch.tensor(0)}
        elif name == NOT_CHANGED:
            expected = {f"{key} {AFTER}": x for key, x in inputs.items() if torch.is_tensor(x)}
        else:
            found = answer(by_loops, double(inputs))
            expected = {key: x for key, x in found.items() if output in key and AFTER not in key}
        expected = {key: x.double() for key, x in expected.items()}
        yield Case(function, name, inputs, expected, axes)


def double(inputs):
    return {name: x.double() if is_real(x) else x for name, x in inputs.items()}


def is_real(x):
    return torch.is_tensor(x) and x.is_floating_point()


def with_gradients(inputs):
    """In float64, and the gradients of the result are compared, too."""
    inputs = double(inputs)
    return {name: x.requires_grad_() if is_real(x) else x for name, x in inputs.items()}


def in_general(given, **other):
    """Everything together. given(N): inputs; other: an argument, and its other value."""
    cases = {"float64_and_gradients": with_gradients(given(N=9))}
    for name, value in other.items():
        inputs = given(9, **{name: value})
        cases[f"float64_and_gradients_with_{name}_{value}"] = with_gradients(inputs)
    return {**cases, **good_manners(given)}


def good_manners(given):
    """Nothing is changed in place, and more tokens add no lines of Python."""
    return {NOT_CHANGED: given(N=9), NO_LOOP: {"few": given(N=34), "many": given(N=60)}}


# A bias or kernel with one number shows which token it meets.
MIDDLE, LAST = torch.tensor([[0.0, 2, 0], [0, 0, 1]])


def symmetric(x):
    """x, made equal at r and -r: then it does not matter which of them is read."""
    return x + x.flip(-1)


# --- Part 1 ---------------------------------------------------------------------------------------


def composite_cases():
    def given(N, H=1, d=1, K=3, content=0, **terms):
        """A case has only the terms that it is about."""
        q, k, v = randn(3, 2, N, H * d)
        zeros = {"w": torch.zeros(d, K), "beta": torch.zeros(H, K)}
        return {"q": q, "k": content * k, "v": v, **zeros, **terms}

    # all terms at once
    def whole(N):
        return given(N, H=2, d=4, content=1, w=randn(4, 5), beta=randn(2, 5))

    # from the content alone to all terms, each alone where it is shown
    return {
        "softmax_is_over_the_keys": given(4, content=1),
        "content_is_divided_by_sqrt_d": given(5, d=4, content=1),
        "each_head_has_its_own_channels": given(6, H=2, d=4),
        "a_positive_r_is_to_the_right": given(4, K=7, beta=randn(1, 7)),
        "a_token_itself_is_at_r_0": given(4, beta=MIDDLE[None]),
        "offsets_beyond_the_window_are_clipped": given(7, beta=symmetric(randn(1, 3))),
        "beta_is_not_divided": given(6, d=4, beta=symmetric(randn(1, 3))),
        "beta_has_a_row_for_each_head": given(6, H=2, beta=symmetric(randn(2, 3))),
        "q_w_is_divided_by_sqrt_d": given(5, d=4, w=symmetric(randn(4, 3))),
        **in_general(whole),
    }


# --- Part 2 ---------------------------------------------------------------------------------------


def matrix_cases():
    def given(bias, N, beyond="clip"):
        return {"bias": bias, "N": N, "beyond": beyond}

    # a bias of its own for each query, in a batch
    def whole(N, beyond="clip"):
        return given(randn(2, 2, N, 5), N, beyond)

    # a symmetric bias is the same mirrored: its case is not about the sign of r
    return {
        "every_query_reads_its_own_bias": given(randn(2, 6, 1), 6),
        "the_diagonal_reads_the_middle_column": given(randn(2, 2, 3) * MIDDLE, 2),
        "a_positive_r_is_to_the_right": given(randn(2, 3, 5), 3),
        "clip_reads_the_first_or_last_column": given(symmetric(randn(2, 7, 3)), 7),
        "zero_beyond_the_window_and_only_there": given(symmetric(randn(2, 7, 5)), 7, "zero"),
        "one_bias_is_shared_by_all_queries": given(symmetric(randn(2, 1, 3)), 6),
        "a_window_longer_than_the_text": given(randn(2, 4, 21), 4),
        **in_general(whole, beyond="zero"),
    }


def sums_cases():
    def given(x, K, beyond="clip"):
        return {"x": x, "K": K, "beyond": beyond}

    def whole(N, beyond="clip"):
        return given(randn(2, 2, N, N), 5, beyond)

    # .diag_embed() keeps the diagonal, .tril(-2) and .triu(2) what is beyond a window of K = 3
    return {
        "the_middle_column_is_the_diagonal": given(randn(2, 7).diag_embed(), 5, "zero"),
        "column_r_is_the_key_at_i_plus_r": given(randn(2, 7, 7), 3, "zero"),
        "zero_leaves_out_the_keys_beyond": given(randn(1, 7, 7).tril(-2), 3, "zero"),
        "clip_adds_keys_on_the_left_to_the_first_column": given(randn(1, 7, 7).tril(-2), 3),
        "clip_adds_keys_on_the_right_to_the_last_column": given(randn(1, 7, 7).triu(2), 3),
        "clip_counts_each_key_once": given(randn(2, 9, 9), 5),
        "a_window_longer_than_the_text": given(randn(2, 4, 4), 21),
        "the_only_column_of_K_1_is_the_sum_of_all_keys": given(randn(2, 5, 5), 1),
        **in_general(whole, beyond="zero"),
    }


def depthwise_cases():
    def given(weight, N=7, **others):
        return {"x": randn(2, N, len(weight)), "weight": weight, **others}

    def whole(N, dilation=1):
        return given(randn(6, 5), N, bias=randn(6), dilation=dilation)

    return {
        "the_middle_weight_meets_the_token_itself": given(MIDDLE[None]),
        "the_last_weight_meets_the_next_token": given(LAST[None]),
        "x_is_0_beyond_its_ends": given(symmetric(randn(2, 9)), N=3),
        "every_channel_has_its_own_kernel": given(symmetric(randn(4, 3))),
        "weights_meet_tokens_dilation_apart": given(symmetric(randn(2, 3)), dilation=2),
        "the_bias_is_added_to_every_token": given(torch.zeros(3, 3), bias=randn(3)),
        **in_general(whole, dilation=3),
    }


def convolve_cases():
    def given(kernels):
        B, H, N, _ = kernels.shape
        return {"kernels": kernels, "value": randn(B, H, N, 4)}

    def whole(N):
        return given(randn(2, 2, N, 5))

    # kernels that copy a value, then any
    return {
        "weights_are_taken_as_they_are": given(torch.full((1, 2, 5, 1), 3.0)),
        "the_middle_weight_meets_the_token_itself": given(MIDDLE.repeat(1, 2, 7, 1)),
        "the_last_weight_meets_the_next_token": given(LAST.repeat(1, 2, 7, 1)),
        "every_query_has_its_own_kernel": given(symmetric(randn(1, 2, 7, 3))),
        "values_are_0_beyond_their_ends": given(symmetric(randn(1, 2, 3, 9))),
        "a_long_text": whole(70),
        **in_general(whole),
    }


# --- Part 3 ---------------------------------------------------------------------------------------


def by_fixed(table, q):
    return table[:, None] + 0 * q.sum()


def fixed_cases():
    def given(beta, N=5):
        return {"table": beta, "q": randn(2, len(beta), N, 4)}

    return {
        "beta_is_not_divided_and_has_no_softmax": given(torch.full((2, 3), 7.0)),
        "column_r_of_beta_is_column_r_of_the_bias": given(randn(2, 5)),
        **in_general(lambda N: given(randn(2, 3), N)),
    }


def by_dynamic(table, q):
    return torch.einsum("bhnd,dk->bhnk", q, table) / math.sqrt(len(table))


def dynamic_cases():
    def given(w, N=5):
        return {"table": w, "q": randn(2, 2, N, len(w))}

    return {
        "every_query_makes_its_own_bias": given(torch.ones(1, 3)),
        "column_r_of_w_gives_column_r_of_the_bias": given(randn(1, 5)),
        "it_is_divided_by_sqrt_d": given(symmetric(randn(4, 3))),
        **in_general(lambda N: given(randn(4, 3), N)),
    }


def by_padding(attention_mask, scores):
    return loops.padding(attention_mask, "", scores)


def lowest_cases():
    # a sequence with padding at its end, and one with padding at its beginning
    mask = torch.tensor([[True, True, False, False], [False, False, True, True]])
    only = torch.zeros_like(mask)

    def given(score=0.0, mask=mask, output="weights", dtype=torch.float32):
        scores = (score * ~mask[:, None, None]).to(dtype)
        return {"attention_mask": mask, "scores": scores, "output": output}

    return {
        "padding_gets_no_weight": given(),
        "it_is_0_at_real_tokens_and_only_there": given(output="is 0"),
        "padding_gets_no_weight_with_a_high_score": given(1e5),
        "padding_gets_no_weight_with_a_low_score": given(-1e5),
        "padding_only_gives_no_nan": given(-1.0, only),
        "padding_only_gives_no_nan_in_float16": given(-1.0, only, dtype=torch.float16),
        "it_has_the_dtype_that_is_asked_for": given(output="dtype", dtype=torch.float64),
    }


def by_attention(dropout=0.0, **inputs):
    """Without dropout, or so much of it that no weight is left, or the largest number of z."""
    z = loops.general_attention(**inputs) * (dropout < ALL)
    return {"result": z, "largest": z.amax() / (1 - dropout)}


ALL = 1 - 1e-7  # a dropout that leaves no weight


def attention_cases():
    def given(content=0, N=7, padding=99, **others):
        """padding: one token of the first sequence, and the next one of the second."""
        q, k, v = randn(3, 2, 2, N, 4)
        mask = torch.arange(N) != torch.tensor([[padding], [padding + 1]])
        return {"q": content * q, "k": k, "v": v, "attention_mask": mask, **others}

    def whole(N, beyond="clip"):
        query_bias, key_bias = randn(2, 2, 2, N, 5)
        biases = {"query_bias": query_bias, "key_bias": key_bias, "beyond": beyond}
        return given(1, N, padding=1, **biases, value_table=randn(4, 5))

    # inputs that several cases share, or that need a name
    shared = {"query_bias": randn(2, 1, 3), "value_table": randn(4, 3), "beyond": "zero"}
    opposite = {"v": torch.ones(2, 2, 7, 4), "value_table": -torch.ones(4, 3)}
    unit = torch.eye(4).expand(2, 2, 4, 4)  # with these values, the result lists the weights
    # one argument at a time; with content=0 all scores are 0
    return {
        "content_is_divided_by_sqrt_d": given(1),
        "padding_gets_no_weight": given(padding=1),
        "the_bias_of_the_queries_is_added": given(query_bias=randn(2, 2, 7, 5)),
        "the_bias_of_the_keys_is_added": given(key_bias=randn(2, 2, 7, 5)),
        "the_value_table_is_added_to_the_values": given(value_table=randn(4, 5)),
        "beyond_is_passed_on": given(**shared),
        "causal_no_query_sees_a_later_key": given(causal=True),
        "causal_padding_gets_no_weight_either": given(padding=1, causal=True),
        "dropout_takes_weights": given(dropout=ALL),
        "dropout_scales_up_what_is_left": given(N=4, v=unit, dropout=0.3, output="largest"),
        "values_and_table_meet_the_same_weights": given(**opposite, dropout=0.5),
        **in_general(whole, beyond="zero"),
    }


def relative_values_cases():
    def given(table, beyond="clip", N=7):
        return {"p": randn(1, 2, N, N), "table": table, "beyond": beyond}

    def whole(N, beyond="clip"):
        return given(randn(4, 5), beyond, N)

    return {
        "the_vector_is_that_of_j_minus_i": given(randn(1, 13)),
        "it_is_not_divided_by_sqrt_d": given(symmetric(randn(4, 3))),
        "zero_adds_nothing_beyond_the_window": given(symmetric(randn(4, 3)), "zero"),
        **in_general(whole, beyond="zero"),
    }


# --- Part 4 ---------------------------------------------------------------------------------------


def masks_cases():
    seed = int(torch.randint(1000, ()))

    def given(ids, vocab_size=1000, **output):
        return {"input_ids": ids, "vocab_size": vocab_size, "seed": seed, **output}

    def words(N):
        return torch.randint(5, 1000, (20, N))

    # the first ordinary token alone; with a vocabulary of 6, no other can be drawn
    first = torch.full((20, 40), 5)
    return {
        "15_percent_of_the_ordinary_tokens_are_chosen": given(words(40), output="labels"),
        "80_percent_of_the_chosen_become_mask": given(first, 6, output="masked_ids"),
        "10_percent_become_another_one_and_10_percent_stay": given(words(40)),
        "special_tokens_are_never_chosen": given(torch.arange(5).repeat(20, 8)),
        "the_first_ordinary_token_can_be_chosen": given(first, output="labels"),
        "every_ordinary_token_is_drawn_and_no_other": given(first, 8),
        **good_manners(lambda N: given(words(N))),
    }


def descent_cases():
    ids = torch.randint(5, 19, (2, 1, 3))  # the norm is 8 to 32

    def given(output, scale, steps=1, ids=ids, labels=(9, 9, 9), device="cpu"):
        inputs = {"batches": ids[:steps], "labels": torch.tensor([labels]), "scale": scale}
        return {**inputs, "device": device, "output": output}

    # scale: of the loss, so that the norm of its gradient is below 1 (0.03) or above it (6)
    return {
        "a_short_gradient_is_taken_as_it_is": given("weights", 0.03),
        "a_gradient_longer_than_1_is_clipped": given("weights", 6.0),
        "the_gradients_of_the_step_before_are_forgotten": given("weights", 0.03, 2),
        "the_model_gets_the_number_of_the_labels": given("loss", 0.1, labels=(9, -100, 9)),
        "without_labels_this_number_is_1": given("loss", 0.1, labels=(-100, -100, -100)),
        "padding_is_masked": given("loss", 0.1, ids=torch.tensor([[[6, 0, 0]]])),
        "it_returns_the_loss": given("loss", 6.0),
        "it_returns_the_norm_before_the_clipping": given("norm", 6.0),
        "it_waits_for_no_number": given("are tensors", 6.0, device="meta"),
    }


# --- All of them ----------------------------------------------------------------------------------

# {function: what its axes are called, its loops, its cases}
TABLE = {
    "attention.composite_attention": (
        "sequence, i, channel",
        loops.composite_attention,
        composite_cases,
    ),
    "kernels.bias_matrix": ("..., i, j", loops.relative_scores, matrix_cases),
    "kernels.sum_by_offset": ("..., i, column", loops.sum_by_offset, sums_cases),
    "attention.depthwise_convolution": (
        "sequence, i, channel",
        loops.a_kernel_per_channel,
        depthwise_cases,
    ),
    "kernels.convolve": (
        "sequence, head, i, channel",
        loops.a_kernel_per_query,
        convolve_cases,
    ),
    "attention.Fixed.query_bias": ("head, query, column", by_fixed, fixed_cases),
    "attention.Dynamic.query_bias": ("sequence, head, query, column", by_dynamic, dynamic_cases),
    "attention.lowest_at_padding": ("sequence, head, query, key", by_padding, lowest_cases),
    "attention.attention": ("sequence, head, i, channel", by_attention, attention_cases),
    "attention.relative_values": (
        "sequence, head, i, channel",
        loops.relative_values,
        relative_values_cases,
    ),
    "data.mask_tokens": ("sequence, i", loops.drawn_masks, masks_cases),
    "pretrain.update": ("weight", loops.descent, descent_cases),
}
