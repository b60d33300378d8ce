"""The argument of the paper as code: relative positions are convolutions.

There are four steps, and each test is an identity. A fifth section shows how further schemes of
relative positions are made of the same terms (docs/family.md). Letters as in attention.py: B
sentences of N tokens, H heads of d channels, a window of K = 2k + 1 offsets, i query, j key,
r = j - i. All numbers are float64, and equal means within 1e-12.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attention import (
    TERMS,
    VARIANTS,
    depthwise_convolution,
    frequencies,
    merge_heads,
    rotate,
    sinusoids,
    split_heads,
)
from helpers import assert_near, draw, mixer_config, random_mixer, small_model
from kernels import convolve
from references import key_scores, relative_scores

B, N, H, d, K = 2, 23, 3, 4, 7
C = H * d
k = K // 2
X = draw(B, N, C)  # the input of the mixers
NO_PADDING = torch.ones(B, N, dtype=torch.bool)
RELATIVE = torch.arange(N)[None, :] - torch.arange(N)[:, None]  # (N, N): r = j - i of every pair


def mixer_of(variant, layer=0):
    return random_mixer(variant, layer, hidden_size=C, heads=H, kernel_size=K)


def project(mixer, x):
    """The queries, keys and values of a mixer, (B, H, N, d) each."""
    q = split_heads(mixer.query(x), H)
    k = split_heads(mixer.key(x), H)
    v = split_heads(mixer.value(x), H)
    return q, k, v


def query_bias_of(mixer, q):
    """What the terms of a mixer add at each r: (B, H, N, K), (H, 1, K), ..."""
    _, _, positions = mixer.apply_terms(q, q)
    return positions.query_bias


def matrix_of(bias):
    """bias[i, j - i] with "clip"; (H, 1, K) is one bias for all queries. Returns (..., N, N)."""
    bias = bias.expand(*bias.shape[:-2], N, -1)
    return relative_scores(bias, N, "clip")


def content_of(q, k):
    """q_i . k_j / sqrt(d) for every pair, (B, H, N, N)."""
    return q @ k.transpose(-1, -2) / math.sqrt(d)


def band_matrix(p, dilation=1):
    """A_ij = p_r if j - i = r * dilation for an r from -k to k, otherwise 0.

    p (..., n, K) with n = N, or n = 1 if all queries have the same kernel. Returns (..., N, N).
    """
    A = 0
    for r in range(-k, k + 1):
        diagonal = (r * dilation == RELATIVE).double()  # (N, N)
        A = A + p[..., r + k, None] * diagonal
    return A


def softmax_within_window(logits):
    """softmax_j over the keys with |j - i| <= k; 0 at all other keys. logits (..., N, N)."""
    return logits.masked_fill(RELATIVE.abs() > k, -math.inf).softmax(dim=-1)


def assert_near_but_for_lost_weights(attended, convolved, p):
    """Attention divides 1 among the tokens of a window, a convolution loses what is beyond an end.

    attended, convolved: (B, H, N, d) with the kernels p (..., N, K).
    """
    assert_near(attended[:, :, k : N - k], convolved[:, :, k : N - k])
    share = band_matrix(p).sum(
        dim=-1, keepdim=True
    )  # (..., N, 1): of the weights that meet a token
    assert_near(attended * share, convolved)


def convolve_heads(p, v):
    """A depthwise convolution in which the d channels of a head share its kernel.

    p (H, K), v (B, H, N, d).
    """
    by_channel = p.repeat_interleave(d, dim=0)  # (H, K) -> (C, K)
    convolved = depthwise_convolution(merge_heads(v), by_channel)  # (B, N, C)
    return split_heads(convolved, H)


# --- 1. A lightweight convolution is attention with a band matrix ---------------------------------


def test_a_lightweight_convolution_is_attention_with_a_band_matrix():
    """z_i = sum_r p_r v_(i+r) = sum_j A_ij v_j, A_ij = p_(j-i) if |j - i| <= k, otherwise 0."""
    p = draw(H, K).softmax(dim=-1)
    v = draw(B, H, N, d)

    A = band_matrix(p[:, None])  # (H, 1, K) -> (H, N, N)
    assert_near(A @ v, convolve_heads(p, v))


@pytest.mark.parametrize(
    "variant, layer, dilation", [("lightconv", 0, 1), ("dynamicconv", 0, 1), ("dilated", 2, 4)]
)
def test_the_mixers_that_convolve_are_their_band_matrices(variant, layer, dilation):
    """Wu et al. 2019 test their code like this: an N x N matrix per head, and a matrix product."""
    mixer = mixer_of(variant, layer)
    g = F.glu(mixer.input(X))  # (B, N, C)

    # the kernels: one per head, or one per token and head
    if variant == "dynamicconv":
        p = split_heads(mixer.kernel(g), H).softmax(dim=-1)  # (B, H, N, K)
    else:
        p = mixer.weight.softmax(dim=-1)[:, None]  # (H, K) -> (H, 1, K)

    A = band_matrix(p, dilation)  # (B, H, N, N) or (H, N, N)
    z = merge_heads(A @ split_heads(g, H))  # (B, N, C)
    assert_near(mixer(X, NO_PADDING), mixer.output(z))


# --- 2. A kernel made by the query is Shaw's relative key -----------------------------------------


def test_a_dynamic_convolution_of_the_query_is_shaws_relative_key():
    """Shaw et al. 2018: q_i . (k_j + a_r) / sqrt(d).  Here: q_i . k_j / sqrt(d) + bias[i, r].

    They are equal if bias[i, r] = q_i . w_r / sqrt(d) and w_r = a_r.
    """
    mixer = mixer_of("dynamic")
    query, key, _ = project(mixer, X)

    # Shaw: a vector a_r is added to the key at every pair
    w = mixer.terms["dynamic"].w  # (d, K)
    a = w.t()[RELATIVE.clamp(-k, k) + k]  # (N, N, d)
    keys = key[:, :, None] + a  # (B, H, 1, N, d) + (N, N, d) -> (B, H, N, N, d)
    shaw = torch.einsum("bhid,bhijd->bhij", query, keys) / math.sqrt(d)

    # here: each query makes a kernel
    bias = query_bias_of(mixer, query)  # (B, H, N, K)
    assert_near(content_of(query, key) + matrix_of(bias), shaw)

    # by a linear layer, as in DynamicConv; here it is one for all heads
    assert_near(bias, F.linear(query, w.t() / math.sqrt(d)))


# --- 3. The fixed term is T5's bias with one bucket per position ----------------------------------


def test_the_fixed_term_is_t5s_bias_with_one_bucket_per_position():
    """T5 reads a scalar from a table (buckets, H) at the bucket of j - i.

    Here every position within k has its own bucket, and the last bucket of each side takes all
    tokens farther away: K buckets, and the table is beta.
    """
    mixer = mixer_of("fixed")
    query, _, _ = project(mixer, X)

    bucket = RELATIVE.clamp(-k, k) + k  # (N, N)
    table = mixer.terms["fixed"].beta.t()  # (K, H)
    t5 = F.embedding(bucket, table).permute(2, 0, 1)  # (N, N, H) -> (H, N, N)
    bias = query_bias_of(mixer, query)  # (H, 1, K)
    assert_near(matrix_of(bias), t5)


def left_over_right(mixer, x):
    """p_left / p_right of the tokens that have two neighbours, if keys are equal: (B, H, N - 2)."""
    nn.init.zeros_(mixer.key.weight)  # each key is the bias
    p = scores_of(mixer, x).softmax(dim=-1)  # (B, H, N, N)
    left = p.diagonal(-1, dim1=-2, dim2=-1)  # of the tokens 1 .. N - 1
    right = p.diagonal(1, dim1=-2, dim2=-1)  # of the tokens 0 .. N - 2
    return left[..., :-1] / right[..., 1:]


def test_if_keys_are_equal_all_queries_of_fixed_prefer_the_same_side_and_those_of_dynamic_do_not():
    """p_left / p_right is exp(beta_-1 - beta_1), or exp(q_i . (w_-1 - w_1) / sqrt(d)) in dynamic.

    What follows from it for a small task: docs/tour.md, exercise 5.
    """
    fixed = mixer_of("fixed")
    beta = fixed.terms["fixed"].beta  # (H, K)
    ratio = (beta[:, k - 1] - beta[:, k + 1]).exp()  # one number per head
    assert_near(left_over_right(fixed, X), ratio[:, None].expand(B, H, N - 2))

    dynamic = mixer_of("dynamic")
    q, _, _ = project(dynamic, X[:, 1:-1])
    w = dynamic.terms["dynamic"].w  # (d, K)
    ratio = (q @ (w[:, k - 1] - w[:, k + 1]) / math.sqrt(d)).exp()  # (B, H, N - 2)
    assert_near(left_over_right(dynamic, X), ratio)
    assert ratio.min() < 1 < ratio.max()  # some queries prefer the right, others the left


# --- 4. Composite attention without its content is a convolution ----------------------------------


def test_fixed_attention_without_content_is_a_lightweight_convolution():
    """Within the window, softmax_j(beta_(j-i)) = softmax_r(beta) if the window is in the sentence.

    Near an end attention divides 1 among the tokens that exist, and a convolution loses what is
    beyond the end. There the two differ by a factor. Example: k = 1, first token.

        position            -1          0                1
        attention            -    p0 / (p0 + p1)   p1 / (p0 + p1)     these sum to 1
        convolution         lost       p0               p1            these sum to p0 + p1

    The factor is p0 + p1, the share of the weights that is within the sentence.
    """
    mixer = mixer_of("fixed")
    query, _, value = project(mixer, X)

    # attention with the fixed term alone
    bias = query_bias_of(mixer, query)  # (H, 1, K)
    logits = matrix_of(bias)  # (H, N, N)
    attended = softmax_within_window(logits) @ value  # (B, H, N, d)

    # the convolution with the kernel softmax(beta)
    p = mixer.terms["fixed"].beta.softmax(dim=-1)  # (H, K)
    convolved = convolve_heads(p, value)  # (B, H, N, d)
    assert_near_but_for_lost_weights(attended, convolved, p[:, None].expand(H, N, K))


def test_composite_attention_without_content_is_a_dynamic_convolution():
    """z_i = sum_r softmax_r(q_i . w_r / sqrt(d) + beta_r) v_(i+r).

    One part of the kernel is learned (beta), the other depends on the token (q_i . w_r).
    """
    mixer = mixer_of("composite")
    query, _, value = project(mixer, X)

    bias = query_bias_of(mixer, query)  # (B, H, N, K)
    attended = softmax_within_window(matrix_of(bias)) @ value  # (B, H, N, d)

    p = bias.softmax(dim=-1)
    convolved = convolve(p, value)  # (B, H, N, d)
    assert_near_but_for_lost_weights(attended, convolved, p)


def test_composite_attention_is_content_and_the_logits_of_this_convolution_in_one_softmax():
    """The paper adds two things to this convolution: the content, and the keys beyond the window.

    Offsets beyond it are clipped, and one softmax is over all keys. This is the mixer.
    """
    assert VARIANTS["composite"].terms == ("fixed", "dynamic")
    mixer = mixer_of("composite")
    query, key, value = project(mixer, X)

    bias = query_bias_of(mixer, query)  # (B, H, N, K)
    logits = content_of(query, key) + matrix_of(bias)  # (B, H, N, N)
    z = logits.softmax(dim=-1) @ value  # (B, H, N, d)
    assert_near(mixer(X, NO_PADDING), mixer.output(merge_heads(z)))


# --- 5. Further schemes are made of the same terms ------------------------------------------------

EVERY_R = torch.arange(1 - N, N)  # (2N - 1,): all offsets of N tokens
ANGLES = EVERY_R[:, None] * frequencies(d, "cpu", torch.float64)  # (2N - 1, d/2): r w_m


def scores_of(mixer, x):
    """The scores (B, H, N, N) of a mixer without convolutions: its content and its biases."""
    q, k, _ = project(mixer, x)
    q, k, positions = mixer.apply_terms(q, k)
    scores = content_of(q, k)
    if positions.query_bias is not None:
        scores = scores + matrix_of(positions.query_bias)
    if positions.key_bias is not None:
        scores = scores + key_scores(positions.key_bias, N, mixer.beyond)
    return scores


def without_bias(linear, x):
    """W x in heads, and the bias of each head: (B, H, N, d), (H, 1, d)."""
    by_head = split_heads(F.linear(x, linear.weight), H)
    return by_head, linear.bias.view(H, 1, d)


def rotated_bias(bias):
    """R_r b for every r: (H, 1, d) -> (H, 2N - 1, d)."""
    return rotate(bias.expand(H, 2 * N - 1, d), ANGLES)


def test_the_fixed_term_of_rotary_with_equal_biases_is_a_sum_of_cosines():
    """b . R_r b = sum over m of (b_2m^2 + b_(2m+1)^2) cos(r w_m), one curve per head."""
    b = draw(H, 1, d)
    bias = (b * rotated_bias(b)).sum(dim=-1)  # (H, 2N - 1)

    squares = b.square().unflatten(-1, (-1, 2)).sum(dim=-1)  # (H, 1, d/2)
    assert_near(bias, (squares * ANGLES.cos()).sum(dim=-1))


def test_rotary_with_biases_is_rotated_content_and_three_terms_of_the_paper():
    """(R_i (q_i + b)) . (R_j (k_j + c)), for the biases b of the queries and c of the keys.

    = (R_i q_i) . (R_j k_j)     rotated content
    + b . R_r c                 a fixed term
    + q_i . R_r c               a dynamic term, w_r = R_r c
    + k_j . R_(i-j) b           a key-dynamic term, u_(i-j) = R_(i-j) b

    all divided by sqrt(d). The tables w and u are those of one head each.
    """
    mixer = mixer_of("rotary")
    q, b = without_bias(mixer.query, X)
    k, c = without_bias(mixer.key, X)

    w = rotated_bias(c).transpose(-1, -2) / math.sqrt(d)  # (H, d, 2N - 1)
    u = rotated_bias(b).transpose(-1, -2) / math.sqrt(d)  # (H, d, 2N - 1)
    fixed = b @ w  # (H, 1, 2N - 1)
    terms = matrix_of(fixed + q @ w) + key_scores(k @ u, N, "clip")
    rotated_q, rotated_k, _ = mixer.apply_terms(q, k)
    assert_near(scores_of(mixer, X), content_of(rotated_q, rotated_k) + terms)


def test_symmetric_alibi_commutes_with_reversing_the_sentence():
    mixer = mixer_of("alibi")
    assert_near(mixer(X.flip(1), NO_PADDING), mixer(X, NO_PADDING).flip(1))


CLS, SEP, MARK = 2, 3, 22


@pytest.mark.parametrize(
    "variant, first, last, is_same",
    [("alibi", MARK, MARK, True), ("alibi", CLS, SEP, False), ("fixed", MARK, MARK, False)],
)
def test_with_alibi_only_cls_and_sep_tell_dog_bites_man_from_man_bites_dog(
    variant, first, last, is_same
):
    """Without them, "bites" gets the same vector in both sentences; with a fixed term it does not.

    Between two equal marks the sentence and its reverse are mirror images, too.
    """
    dog, bites, man = 12, 6, 25
    ids = torch.tensor([[first, dog, bites, man, last], [first, man, bites, dog, last]])
    one, other = small_model(variant).bert(ids)[:, 2]
    difference = (one - other).abs().max()
    assert difference < 1e-12 if is_same else difference > 1e-3


def test_fixed_with_17_positions_is_t5_in_9_tokens_and_in_more_if_far_buckets_are_equal():
    """Up to 8 tokens each r has a bucket of its own: -r on the left, 16 + r on the right.

    Buckets 8 to 15 hold abs(r) >= 8 on the left, 24 to 31 on the right.
    """
    t5 = TERMS["t5"](mixer_config("t5", heads=H)).double()
    fixed = TERMS["fixed"](mixer_config("fixed", heads=H, kernel_size=17)).double()
    left = [8, 7, 6, 5, 4, 3, 2, 1]  # of r = -8 .. -1
    right = [17, 18, 19, 20, 21, 22, 23, 24]  # of r = 1 .. 8
    with torch.no_grad():
        t5.beta.copy_(draw(H, 32))
        fixed.beta.copy_(t5.beta[:, [*left, 0, *right]])
    q = draw(B, H, 9, d)
    assert_near(t5.query_bias(q), fixed.query_bias(q))

    # one number for the far buckets of a side
    with torch.no_grad():
        t5.beta[:, 8:16] = fixed.beta[:, :1]
        t5.beta[:, 24:] = fixed.beta[:, 16:]
    n = 100
    q = draw(B, H, n, d)
    r = torch.arange(1 - n, n)
    assert_near(t5.query_bias(q), fixed.query_bias(q)[..., r.clamp(-8, 8) + 8])


def test_a_dynamic_term_contains_a_fixed_term_because_the_queries_have_a_bias():
    """q_i . w_r = q'_i . w_r + b_q . w_r, where q_i = q'_i + b_q."""
    mixer = mixer_of("dynamic")
    term = mixer.terms["dynamic"]
    q, _, _ = project(mixer, X)
    b_q = mixer.query.bias.view(H, 1, d)
    beta = b_q @ term.w / math.sqrt(d)  # (H, 1, d) (d, K) -> (H, 1, K)
    assert_near(term.query_bias(q), term.query_bias(q - b_q) + beta)


def test_the_four_terms_of_transformer_xl_are_ours():
    """(a) q_i . k_j   (b) q_i . W S_r   (c) b_c . k_j   (d) b_p . W S_r, all over sqrt(d):

    (a) content, (b) a dynamic term with w_r = W S_r, (d) a fixed term with beta_r = b_p . W S_r,
    and (c) a key-dynamic term whose bias is the same number at every r.
    """
    mixer = mixer_of("xl")
    q, k, _ = project(mixer, X)
    term = mixer.terms["xl"]

    S_r = sinusoids(EVERY_R, C, torch.float64)  # (2N - 1, C)
    w = split_heads(term.W(S_r)[None], H)[0].transpose(-1, -2) / math.sqrt(d)  # (H, d, 2N - 1)
    dynamic = matrix_of(q @ w)
    fixed = matrix_of(term.b_p[:, None] @ w)  # (H, N, N)
    bias = k @ term.b_c[:, :, None] / math.sqrt(d)  # (B, H, N, 1): one number for every r
    key_dynamic = key_scores(bias, N, "clip")
    assert_near(scores_of(mixer, X), content_of(q, k) + dynamic + key_dynamic + fixed)


def test_of_the_three_biases_of_transformer_xl_one_is_redundant():
    """The content sees b + b_c, the positions see b + b_p. Here the queries have a bias b."""
    mixer = mixer_of("xl")
    before = scores_of(mixer, X)
    shift = draw(C)
    with torch.no_grad():
        mixer.query.bias += shift
        mixer.terms["xl"].b_c -= shift.view(H, d)
        mixer.terms["xl"].b_p -= shift.view(H, d)
    assert_near(scores_of(mixer, X), before)


def test_deberta_is_composite_key_with_tables_per_head_made_from_its_positions():
    """w_r = W_k P_r and u_r = W_q P_r, beta = 0, and every score divided by sqrt(3)."""
    deberta = mixer_of("deberta")
    q, k, _ = project(deberta, X)
    w = split_heads(deberta.key(deberta.P)[None], H)[0]  # (H, K, d)
    u = split_heads(deberta.query(deberta.P)[None], H)[0]  # (H, K, d)
    config = mixer_config("composite-key", hidden_size=C, heads=H, kernel_size=K)
    dynamic = TERMS["dynamic"](config).double()
    key_dynamic = TERMS["key_dynamic"](config).double()
    own_q, own_k, (query_bias, key_bias, *_) = deberta.apply_terms(q, k)
    assert_near(content_of(own_q, own_k) * math.sqrt(3), content_of(q, k))
    for h in range(H):
        with torch.no_grad():
            dynamic.w.copy_(w[h].t())
            key_dynamic.u.copy_(u[h].t())
        own = slice(h, h + 1)
        assert_near(query_bias[:, own] * math.sqrt(3), dynamic.query_bias(q[:, own]))
        assert_near(key_bias[:, own] * math.sqrt(3), key_dynamic.key_bias(k[:, own]))


def test_canon_is_a_convolution_before_all_three_projections():
    """x + depthwise(x) is one depthwise convolution, with 1 more at the center of each kernel.

    conv-qkv has pointwise(depthwise(x)) in half of the heads, with a kernel for each of q, k and v.
    Canon has it in all heads, with one kernel for all three.
    """
    canon = mixer_of("canon")
    kernel = canon.canon.weight[:, 0].clone()  # (C, K)
    kernel[:, k] += 1
    convolved = depthwise_convolution(X, kernel, canon.canon.bias)
    for one, name in zip(canon.project(X, NO_PADDING), ("query", "key", "value"), strict=True):
        assert_near(one, getattr(canon, name)(convolved))

    # this is what the convolutional half of conv-qkv computes
    half = random_mixer("conv-qkv", hidden_size=C, heads=2, kernel_size=K).query
    kernel = half.depthwise.weight[:, 0]  # (C, K)
    expected = half.pointwise(depthwise_convolution(X, kernel, half.depthwise.bias))
    assert_near(half(X)[..., : C // 2], expected)


def test_a_convolution_before_and_after_a_projection_are_equal_if_all_channels_share_the_kernel():
    """conv-qkv convolves, then projects; Primer projects, then convolves."""
    linear = mixer_of("none").query

    def before_and_after(kernel):
        before = F.linear(depthwise_convolution(X, kernel), linear.weight)
        after = depthwise_convolution(F.linear(X, linear.weight), kernel)
        return before, after

    assert_near(*before_and_after(draw(1, K).expand(C, K)))

    # with a kernel per channel they differ
    before, after = before_and_after(draw(C, K))
    assert (before - after).abs().max() > 0.01


def test_primer_averages_convolved_values_and_depthwise_adds_them_after_averaging():
    """Primer: sum_j p_ij conv(v)_j. depthwise: sum_j p_ij v_j + conv(v)_i.

    In a sentence of one token, which attends to itself alone, depthwise gives v + conv(v).
    """
    mixer = mixer_of("depthwise")
    q, k, v = project(mixer, X)  # (B, H, N, d) each
    convolved = mixer.depthwise(merge_heads(v))  # (B, N, C)

    # depthwise adds the convolved values; averaging them, as Primer does, is something else
    p = content_of(q, k).softmax(dim=-1)  # (B, H, N, N)
    added = merge_heads(p @ v) + convolved
    assert_near(mixer(X, NO_PADDING), mixer.output(added))
    averaged = merge_heads(p @ split_heads(convolved, H))
    assert (averaged - added).abs().max() > 0.01

    # a sentence of one token
    one = X[:, :1]
    v = mixer.value(one)  # (B, 1, C)
    assert_near(mixer(one, NO_PADDING[:, :1]), mixer.output(v + mixer.depthwise(v)))
