"""The argument of the paper as code: relative positions are convolutions.

There are four steps, and each test is an identity. Letters as in attention.py: B sentences of N
tokens, H heads of d channels, k reach, K = 2k + 1, i query, j key, r = j - i. All numbers are
float64, and equal means within 1e-12.
"""

import math

import pytest
import torch
from torch.nn import functional as F

from attention import VARIANTS, depthwise_convolution, merge_heads, split_heads
from helpers import assert_near, draw, random_mixer
from kernels import convolve, relative_scores

B, N, H, d, K = 2, 23, 3, 4, 7
C = H * d
k = K // 2
NO_PADDING = torch.ones(B, N, dtype=torch.bool)
R = torch.arange(N)[None, :] - torch.arange(N)[:, None]  # (N, N): r = j - i of every pair


def assert_same(one, other):
    assert_near(one, other, 1e-12)


def mixer_of(variant, layer=0):
    return random_mixer(variant, layer, hidden_size=C, heads=H, kernel_size=K)


def project(mixer, x):
    """The queries, keys and values of a mixer, (B, H, N, d) each."""
    q = split_heads(mixer.query(x), H)
    k = split_heads(mixer.key(x), H)
    v = split_heads(mixer.value(x), H)
    return q, k, v


def content_of(q, k):
    """q_i . k_j / sqrt(d) for every pair, (B, H, N, N)."""
    return q @ k.transpose(-1, -2) / math.sqrt(d)


def band_matrix(p, dilation=1):
    """A_ij = p_r if j - i = r * dilation for an r from -k to k, otherwise 0.

    p (..., n, K) with n = N, or n = 1 if all queries have the same kernel. Returns (..., N, N).
    """
    A = 0
    for r in range(-k, k + 1):
        diagonal = (r * dilation == R).double()  # (N, N)
        A = A + p[..., r + k, None] * diagonal
    return A


def softmax_within_window(logits):
    """softmax_j over the keys with |j - i| <= k; 0 at all other keys. logits (..., N, N)."""
    return logits.masked_fill(R.abs() > k, -math.inf).softmax(dim=-1)


def share_within_sentence(p):
    """(..., N, 1): the sum of the weights that meet a token. Less than 1 near the ends.

    p (..., N, K).
    """
    return band_matrix(p).sum(dim=-1, keepdim=True)


# --- 1. A lightweight convolution is attention with a band matrix ---------------------------------


def test_a_lightweight_convolution_is_attention_with_a_band_matrix():
    """z_i = sum_r p_r v_(i+r) = sum_j A_ij v_j, A_ij = p_(j-i) if |j - i| <= k, otherwise 0."""
    p = draw(H, K).softmax(dim=-1)
    v = draw(B, H, N, d)

    # the convolution: one kernel per head, the same for its d channels
    by_channel = p.repeat_interleave(d, dim=0)  # (H, K) -> (C, K)
    convolved = depthwise_convolution(merge_heads(v), by_channel)  # (B, N, C)

    # attention
    A = band_matrix(p[:, None])  # (H, 1, K) -> (H, N, N)
    assert_same(merge_heads(A @ v), convolved)


@pytest.mark.parametrize(
    "variant, layer, dilation", [("lightconv", 0, 1), ("dynamicconv", 0, 1), ("dilated", 2, 4)]
)
def test_the_mixers_that_convolve_are_their_band_matrices(variant, layer, dilation):
    """Wu et al. 2019 test their code like this: an N x N matrix per head, and a matrix product."""
    mixer = mixer_of(variant, layer)
    x = draw(B, N, C)
    g = F.glu(mixer.input(x))  # (B, N, C)

    # the kernels: one per head, or one per token and head
    if variant == "dynamicconv":
        p = split_heads(mixer.kernel(g), H).softmax(dim=-1)  # (B, H, N, K)
    else:
        p = mixer.weight.softmax(dim=-1)[:, None]  # (H, K) -> (H, 1, K)

    A = band_matrix(p, dilation)  # (B, H, N, N) or (H, N, N)
    z = merge_heads(A @ split_heads(g, H))  # (B, N, C)
    assert_same(mixer(x, NO_PADDING), mixer.output(z))


# --- 2. A kernel made by the query is Shaw's relative key -----------------------------------------


def test_a_dynamic_convolution_of_the_query_is_shaws_relative_key():
    """Shaw et al. 2018: q_i . (k_j + a_r) / sqrt(d).  Here: q_i . k_j / sqrt(d) + rows[i, r].

    They are equal if rows[i, r] = q_i . w_r / sqrt(d) and w_r = a_r.
    """
    mixer = mixer_of("dynamic")
    query, key, _ = project(mixer, draw(B, N, C))

    # Shaw: a vector a_r is added to the key at every pair
    w = mixer.terms["dynamic"].w  # (d, K)
    a = w.t()[R.clamp(-k, k) + k]  # (N, N, d)
    keys = key[:, :, None] + a  # (B, H, 1, N, d) + (N, N, d) -> (B, H, N, N, d)
    shaw = torch.einsum("bhid,bhijd->bhij", query, keys) / math.sqrt(d)

    # here: each query makes a kernel
    rows = mixer.sum_of_rows("query", query)  # (B, H, N, K)
    assert_same(content_of(query, key) + relative_scores(rows, N), shaw)


def test_these_rows_are_a_linear_layer_of_the_query_as_in_a_dynamic_convolution():
    """DynamicConv makes kernels by a linear map per head; Shaw's vectors are one map for all."""
    mixer = mixer_of("dynamic")
    query, _, _ = project(mixer, draw(B, N, C))
    weight = mixer.terms["dynamic"].w.t() / math.sqrt(d)  # (K, d)
    assert_same(mixer.sum_of_rows("query", query), F.linear(query, weight))


# --- 3. The fixed term is T5's bias with one bucket per position ----------------------------------


def test_the_fixed_term_is_t5s_bias_with_one_bucket_per_position():
    """T5 reads a scalar from a table (buckets, H) at the bucket of j - i.

    Here every position within k has its own bucket, and the last bucket of each side takes all
    tokens farther away: K buckets, and the table is beta.
    """
    mixer = mixer_of("fixed")
    query, _, _ = project(mixer, draw(B, N, C))

    bucket = R.clamp(-k, k) + k  # (N, N)
    table = mixer.terms["fixed"].beta.t()  # (K, H)
    bias = F.embedding(bucket, table).permute(2, 0, 1)  # (N, N, H) -> (H, N, N)
    assert_same(relative_scores(mixer.sum_of_rows("query", query), N), bias)


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
    query, _, value = project(mixer, draw(B, N, C))

    # attention with the fixed term alone
    logits = relative_scores(mixer.sum_of_rows("query", query), N)  # (H, N, N)
    attended = softmax_within_window(logits) @ value  # (B, H, N, d)

    # the convolution with the kernel softmax(beta)
    p = mixer.terms["fixed"].beta.softmax(dim=-1)  # (H, K)
    by_channel = p.repeat_interleave(d, dim=0)  # (H, K) -> (C, K)
    convolved = split_heads(depthwise_convolution(merge_heads(value), by_channel), H)

    assert_same(attended[:, :, k : N - k], convolved[:, :, k : N - k])
    share = share_within_sentence(p[:, None].expand(-1, N, -1))  # (H, N, 1)
    assert_same(attended * share, convolved)


def test_composite_attention_without_content_is_a_dynamic_convolution():
    """z_i = sum_r softmax_r(q_i . w_r / sqrt(d) + beta_r) v_(i+r).

    One part of the kernel is learned (beta), the other depends on the token (q_i . w_r).
    """
    mixer = mixer_of("composite")
    query, _, value = project(mixer, draw(B, N, C))

    rows = mixer.sum_of_rows("query", query)  # (B, H, N, K)
    attended = softmax_within_window(relative_scores(rows, N)) @ value  # (B, H, N, d)

    p = rows.softmax(dim=-1)
    convolved = convolve(p, value)  # (B, H, N, d)
    assert_same(attended[:, :, k : N - k], convolved[:, :, k : N - k])
    assert_same(attended * share_within_sentence(p), convolved)


def test_composite_attention_is_content_and_the_logits_of_this_convolution_in_one_softmax():
    """What the paper adds to a convolution is one term: with content again, this is the mixer."""
    assert VARIANTS["composite"].terms == ("fixed", "dynamic")
    mixer = mixer_of("composite")
    x = draw(B, N, C)
    query, key, value = project(mixer, x)

    rows = mixer.sum_of_rows("query", query)  # (B, H, N, K)
    logits = content_of(query, key) + relative_scores(rows, N)  # (B, H, N, N)
    z = logits.softmax(dim=-1) @ value  # (B, H, N, d)
    assert_same(mixer(x, NO_PADDING), mixer.output(merge_heads(z)))
