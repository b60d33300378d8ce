"""The cases of the assignment: inputs from a seed, and the answers of plain loops.

A case shows one thing, and its name says which. Those of a function go from simple to general, so
the first that fails is what to repair first: in each, as far as possible, only the mistake that it
is named for changes the numbers (a bias that is equal at r and -r, heads of one channel, ...).

The answers are computed in float64 by tests/references.py, before anything of a student runs. The
students' copy has neither, but the cases of seed 0 in course/cases.pt. The same cases are the unit
tests of the project's own functions (tests/science/test_cases.py).
"""

import math
from functools import partial

import torch

from course.grade import Case
from tests import references as loops

OF_FUNCTION = {}  # {function: (its axes, its loops, its cases)}


def cases_of(function, axes, by_loops):
    """Keep what makes the cases of a function.

    by_loops: float64 inputs -> a tensor, or {output: tensor}.
    The decorated function of random numbers returns
        {name: inputs, or (inputs, fields of a Case)}, and
        {name: whole}, where whole(N) are inputs of N tokens in which everything occurs: these are
        compared in float64, with gradients. The first is also for the cases that all have.
    """

    def keep(make):
        OF_FUNCTION[function] = (axes, by_loops, make)

    return keep


def make_cases(seed):
    """All cases, with their answers."""
    made = []
    for function, (axes, by_loops, make) in OF_FUNCTION.items():
        numbers = torch.Generator().manual_seed(seed)
        named, wholes = make(lambda *shape, g=numbers: torch.randn(*shape, generator=g))
        case = partial(Case, function, axes=axes)

        # what its names show
        for name, given in named.items():
            inputs, fields = given if isinstance(given, tuple) else (given, {})
            expected = fields.pop("expected", None) or outputs(by_loops(**double(inputs)))
            made.append(case(name, inputs, expected, **fields))

        # everything together, with gradients
        for name, whole in wholes.items():
            if function not in WITHOUT_GRADIENTS:
                inputs, expected = with_gradients(by_loops, double(whole(9)), numbers)
                made.append(case(name, inputs, expected, ask="gradients", tolerance=1e-10))

        # what is asked of all functions
        if wholes:
            made += common_cases(case, next(iter(wholes.values())))
    return made


def common_cases(case, whole):
    """The cases that most functions have: the inputs stay as they are, and tokens have no loop."""
    # the inputs themselves are the answer
    inputs = whole(9)
    expected = {name: x.clone() for name, x in inputs.items() if torch.is_tensor(x)}
    unchanged = case("inputs_are_not_changed", inputs, expected, ask="inputs")

    # with more tokens, no more lines of Python are run
    inputs = {"few": whole(34), "many": whole(60)}
    expected = {"lines of Python that more tokens add": torch.tensor(0)}
    return [unchanged, case("no_loop_over_the_positions", inputs, expected, ask="lines")]


GRADIENTS = "float64_and_gradients"
WITHOUT_GRADIENTS = ("attention.lowest_at_padding", "data.mask_tokens", "pretrain.update")


def outputs(found):
    return found if isinstance(found, dict) else {"result": found}


def double(inputs):
    return {name: x.double() if is_real(x) else x for name, x in inputs.items()}


def is_real(x):
    return torch.is_tensor(x) and x.is_floating_point()


def with_gradients(by_loops, inputs, numbers):
    """Inputs with a weighting of the result; the result, and the gradients of the weighted sum."""
    leaves = {n: x.clone().requires_grad_() for n, x in inputs.items() if is_real(x)}
    result = by_loops(**{**inputs, **leaves})
    weighting = torch.randn(result.shape, generator=numbers).double()
    gradients = torch.autograd.grad(result, leaves.values(), weighting)
    expected = {f"gradient of {n}": x for n, x in zip(leaves, gradients, strict=True)}
    return {**inputs, "weighting": weighting}, {"result": result.detach(), **expected}


def both(whole):
    """With "clip" and with "zero"."""
    return {
        f"{GRADIENTS}_with_{beyond}": partial(whole, beyond=beyond) for beyond in ("clip", "zero")
    }


def symmetric(x):
    """x, made equal at r and -r: then it does not matter which of them is read."""
    return x + x.flip(-1)


# --- Part 1 ---------------------------------------------------------------------------------------


@cases_of("attention.composite_attention", "sequence, i, channel", loops.composite_attention)
def composite_cases(random):
    def given(N, H=1, d=1, K=3, content=0, dynamic=0, fixed=0, B=1, **others):
        """Each term has a factor; 0 leaves it out."""
        q, k, v = (random(B, N, H * d) for _ in range(3))
        w, beta = dynamic * random(d, K), fixed * random(H, K)
        return {"q": q, "k": content * k, "v": v, "w": w, "beta": beta, **others}

    # A case has only the term that it is about: the other two are 0.
    everything = partial(given, H=2, d=4, K=5, B=2, content=1, dynamic=1, fixed=1)
    return {
        "softmax_is_over_the_keys": given(4, content=1),
        "content_is_divided_by_sqrt_d": given(5, d=4, content=1),
        "each_head_has_its_own_channels": given(6, H=2, d=4),
        "a_positive_r_is_to_the_right": given(4, K=7, fixed=2),
        "a_token_itself_is_at_r_0": given(4, beta=torch.tensor([[0.0, 2, 0]])),
        "offsets_beyond_the_window_are_clipped": given(7, beta=symmetric(random(1, 3))),
        "beta_is_not_divided": given(6, d=4, beta=symmetric(random(1, 3))),
        "beta_has_a_row_for_each_head": given(6, H=2, beta=symmetric(random(2, 3))),
        "q_w_is_divided_by_sqrt_d": given(5, d=4, w=symmetric(random(4, 3))),
        "one_token": everything(1),
        "a_window_longer_than_the_text": everything(3, K=9),
    }, {GRADIENTS: everything}


# --- Part 2 ---------------------------------------------------------------------------------------


@cases_of("kernels.bias_matrix", "..., i, j", loops.relative_scores)
def matrix_cases(random):
    def given(bias, N, beyond="clip"):
        return {"bias": bias, "N": N, "beyond": beyond}

    # 1 at the offset 0 only: a bias that is read elsewhere has its 1 beside the diagonal
    middle = torch.tensor([0.0, 1, 0])
    return (
        {
            "every_query_reads_its_own_bias": given(random(2, 6, 1), 6),
            "the_diagonal_reads_the_middle_column": given(random(2, 2, 3) * middle, 2),
            "a_positive_r_is_to_the_right": given(random(2, 3, 5), 3),
            "clip_reads_the_first_or_last_column": given(symmetric(random(2, 7, 3)), 7),
            "zero_beyond_the_window_and_only_there": given(symmetric(random(2, 7, 5)), 7, "zero"),
            "one_bias_is_shared_by_all_queries": given(symmetric(random(2, 1, 3)), 6),
            "more_dimensions_in_front": given(random(2, 3, 5, 3), 5),
            "a_window_longer_than_the_text": given(random(2, 4, 21), 4),
        },
        both(lambda N, beyond: given(random(2, N, 5), N, beyond)),
    )


@cases_of("kernels.sum_by_offset", "..., i, column", loops.sum_by_offset)
def sums_cases(random):
    def given(x, K, beyond="clip"):
        return {"x": x, "K": K, "beyond": beyond}

    # .diag_embed() keeps the diagonal, .tril(-2) and .triu(2) what is beyond a window of K = 3
    return (
        {
            "the_middle_column_is_the_diagonal": given(random(2, 7).diag_embed(), 5, "zero"),
            "column_r_is_the_key_at_i_plus_r": given(random(2, 7, 7), 3, "zero"),
            "zero_leaves_out_the_keys_beyond": given(random(1, 7, 7).tril(-2), 3, "zero"),
            "clip_adds_keys_on_the_left_to_the_first_column": given(random(1, 7, 7).tril(-2), 3),
            "clip_adds_keys_on_the_right_to_the_last_column": given(random(1, 7, 7).triu(2), 3),
            "clip_counts_each_key_once": given(random(2, 9, 9), 5),
            "one_column": given(random(2, 5, 5), 1),
            "more_dimensions_in_front": given(random(2, 3, 5, 5), 3),
            "a_window_longer_than_the_text": given(random(2, 4, 4), 21),
        },
        both(lambda N, beyond: given(random(2, N, N), 5, beyond)),
    )


@cases_of("attention.depthwise_convolution", "sequence, i, channel", loops.a_kernel_per_channel)
def depthwise_cases(random):
    def given(weight, N=7, **others):
        weight = torch.as_tensor(weight)
        return {"x": random(2, N, len(weight)), "weight": weight, **others}

    # a kernel of one weight shows which token it meets; a symmetric one cannot be mirrored
    return (
        {
            "the_middle_weight_meets_the_token_itself": given([[0.0, 2, 0]]),
            "the_last_weight_meets_the_next_token": given([[0.0, 0, 1]]),
            "x_is_0_beyond_its_ends": given(symmetric(random(2, 9)), N=3),
            "every_channel_has_its_own_kernel": given(symmetric(random(4, 3))),
            "weights_meet_tokens_dilation_apart": given(symmetric(random(2, 3)), dilation=2),
            "the_bias_is_added_to_every_token": given(torch.zeros(3, 3), bias=random(3)),
        },
        {
            GRADIENTS: lambda N: given(random(6, 5), N, bias=random(6)),
            GRADIENTS + "_with_dilation": lambda N: given(random(6, 5), N, dilation=3),
        },
    )


@cases_of("kernels.convolve", "sequence, head, i, channel", loops.a_kernel_per_query)
def convolve_cases(random):
    def given(kernels):
        B, H, N, _ = kernels.shape
        return {"kernels": kernels, "value": random(B, H, N, 4)}

    middle, last = torch.tensor([[0.0, 2, 0], [0, 0, 1]])
    return {
        "weights_are_taken_as_they_are": given(torch.full((1, 2, 5, 1), 3.0)),
        "the_middle_weight_meets_the_token_itself": given(middle.repeat(1, 2, 7, 1)),
        "the_last_weight_meets_the_next_token": given(last.repeat(1, 2, 7, 1)),
        "every_query_has_its_own_kernel": given(symmetric(random(1, 2, 7, 3))),
        "values_are_0_beyond_their_ends": given(symmetric(random(1, 2, 3, 9))),
        "a_long_text": given(random(1, 2, 70, 5)),
    }, {GRADIENTS: lambda N: given(random(2, 2, N, 5))}


# --- Part 3 ---------------------------------------------------------------------------------------


@cases_of(
    "attention.Fixed.query_bias",
    "head, query, column",
    lambda table, q: table[:, None] + 0 * q.sum(),
)
def fixed_cases(random):
    def given(beta):
        return {"table": beta, "q": random(2, len(beta), 5, 4)}

    return {
        "one_bias_per_head_that_all_queries_share": given(torch.zeros(2, 3)),
        "beta_is_not_divided_and_has_no_softmax": given(torch.full((2, 3), 7.0)),
        "column_r_of_beta_is_column_r_of_the_bias": given(random(2, 5)),
    }, {GRADIENTS: lambda N: given(random(2, 3))}


@cases_of(
    "attention.Dynamic.query_bias",
    "sequence, head, query, column",
    lambda table, q: torch.einsum("bhnd,dk->bhnk", q, table) / math.sqrt(len(table)),
)
def dynamic_cases(random):
    def given(w, N=5):
        return {"table": w, "q": random(2, 2, N, len(w))}

    return {
        "every_query_makes_its_own_bias": given(torch.ones(1, 3)),
        "column_r_of_w_gives_column_r_of_the_bias": given(random(1, 5)),
        "it_is_divided_by_sqrt_d": given(symmetric(random(4, 3))),
    }, {GRADIENTS: lambda N: given(random(4, 3), N)}


@cases_of("attention.lowest_at_padding", "sequence, head, query, key", loops.padding)
def lowest_cases(random):
    # a sequence with padding at its end, and one with padding at its beginning
    mask = torch.tensor([[True, True, False], [False, True, True]])

    def given(output, mask=mask, score=0.0, dtype="float32"):
        scores = score * ~mask[:, None, None]
        inputs = {"attention_mask": mask, "dtype": dtype, "scores": scores}
        expected = {output: loops.padding(**inputs)[output]}
        return inputs, {"measure": "padding", "expected": expected}

    return {
        "one_number_for_each_key": given("shape"),
        "it_is_0_at_real_tokens_and_only_there": given("is 0"),
        "padding_gets_no_weight_with_a_high_score": given("weights", score=1e5),
        "padding_gets_no_weight_with_a_low_score": given("weights", score=-1e5),
        "padding_only_gives_no_nan": given("weights", torch.zeros_like(mask), -1.0),
        "it_has_the_dtype_that_is_asked_for": given("dtype", dtype="float64"),
    }, {"": lambda N: given("shape", torch.ones(1, N, dtype=torch.bool))[0]}


@cases_of("attention.attention", "sequence, head, i, channel", loops.general_attention)
def attention_cases(random):
    def given(content=0, mask=None, N=7, B=2, **others):
        q, k, v = (random(B, 2, N, 4) for _ in range(3))
        mask = torch.ones(B, N, dtype=torch.bool) if mask is None else mask
        return {"q": content * q, "k": k, "v": v, "attention_mask": mask, **others}

    def whole(N, beyond):
        query_bias, key_bias = random(2, 2, N, 5), random(2, 2, N, 5)
        tables = {"query_bias": query_bias, "key_bias": key_bias, "value_table": random(4, 5)}
        mask = torch.arange(N) != torch.tensor([[1], [2]])
        return given(1, mask, N, beyond=beyond, **tables)

    at_start = torch.arange(7) != torch.tensor([[1], [2]])
    shared = {"query_bias": random(2, 1, 3), "value_table": random(4, 3), "beyond": "zero"}

    # equal weights of 40 keys: with unit vectors as values the result lists them
    zeros, unit = torch.zeros(1, 1, 40, 40), torch.eye(40)[None, None]
    all_40 = torch.ones(1, 40, dtype=torch.bool)
    equal = {"q": zeros, "k": zeros, "v": unit, "attention_mask": all_40, "dropout": 0.3}

    def dropped(tolerance, **expected):
        expected = {name: torch.tensor(x) for name, x in expected.items()}
        return equal, {"measure": "dropout", "expected": expected, "tolerance": tolerance}

    opposite = {"v": torch.ones(1, 1, 40, 4), "value_table": -torch.ones(4, 3)}
    return (
        {
            "content_is_divided_by_sqrt_d": given(1),
            "padding_gets_no_weight": given(mask=at_start),
            "the_bias_of_the_queries_is_added": given(query_bias=random(2, 2, 7, 5)),
            "the_bias_of_the_keys_is_added": given(key_bias=random(2, 2, 7, 5)),
            "the_value_table_is_added_to_the_values": given(value_table=random(4, 5)),
            "beyond_is_passed_on": given(**shared),
            "causal_no_query_sees_a_later_key": given(causal=True),
            "causal_padding_gets_no_weight_either": given(mask=at_start, causal=True),
            "dropout_scales_up_what_is_left": dropped(1e-5, left=[0.0, 1.0]),
            "dropout_takes_its_share_of_the_weights": dropped(0.05, share=0.7),
            "values_and_table_meet_the_same_weights": {**equal, **opposite},
        },
        both(whole),
    )


@cases_of("attention.relative_values", "sequence, head, i, channel", loops.relative_values)
def relative_values_cases(random):
    def given(table, beyond="clip", N=7):
        return {"p": random(1, 2, N, N), "table": table, "beyond": beyond}

    return (
        {
            "the_vector_is_that_of_j_minus_i": given(random(1, 13)),
            "it_is_not_divided_by_sqrt_d": given(symmetric(random(4, 3))),
            "zero_adds_nothing_beyond_the_window": given(symmetric(random(4, 3)), "zero"),
        },
        both(lambda N, beyond: given(random(4, 5), beyond, N)),
    )


# --- Part 4 ---------------------------------------------------------------------------------------


@cases_of("data.mask_tokens", "sequence, i", loops.drawn_masks)
def masks_cases(random):
    seed = int(1000 * random(1).abs())
    numbers = torch.Generator().manual_seed(seed)

    def given(ids, vocab_size=1000):
        return {"input_ids": ids, "vocab_size": vocab_size, "seed": seed + 1}

    def measured(output, expected, tolerance=0.0, ids=None, vocab_size=1000):
        fields = {"measure": "masks", "expected": {output: torch.tensor(expected)}}
        return given(many if ids is None else ids, vocab_size), fields | {"tolerance": tolerance}

    # ordinary tokens; the same behind all special ones; and the first ordinary token alone
    words = torch.randint(5, 1000, (500, 100), generator=numbers)
    many = torch.cat([torch.arange(5).expand(500, 5), words], dim=1)  # (500, 105)
    first = torch.full((300, 100), 5)
    return {
        "15_percent_of_the_ordinary_tokens_are_chosen": measured("share chosen", 0.15, 0.008),
        "80_percent_of_the_chosen_become_mask": measured("share of mask", 0.8, 0.023),
        "10_percent_of_the_chosen_stay": measured("share that stays", 0.1, 0.018),
        "special_tokens_are_never_chosen": given(many[:, :5]),
        "the_first_ordinary_token_can_be_chosen": measured("share chosen", 0.15, 0.01, first, 8),
        "every_ordinary_token_is_drawn_and_no_other": measured("drawn", [5, 6, 7], 0, first, 8),
        "the_generator_alone_decides": measured("same again", True),
        "one_number_per_token_decides_and_then_ids_are_drawn": given(words[:20] % 40, 40),
    }, {"": lambda N: given(torch.full((2, N), 6), 40)}


@cases_of("pretrain.update", "weight", loops.descent)
def descent_cases(random):
    ids = 9 + (4 * random(2, 1, 3)).round().long().clamp(-4, 9)  # the norm is 8 to 32

    def given(output, scale, steps=1, ids=ids, labels=(9, 9, 9), device="cpu"):
        inputs = {"batches": ids[:steps], "labels": torch.tensor([labels]), "scale": scale}
        inputs["device"] = device
        expected = {output: loops.descent(**inputs)[output]}
        return inputs, {"expected": expected, "tolerance": 1e-4}

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
    }, {}
