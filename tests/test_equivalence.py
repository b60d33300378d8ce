"""The argument of the paper, executable: relative positions are convolutions. Four steps, each test an identity.

Letters as in attention.py: B sentences of N tokens, H heads of d channels, k reach, K = 2k + 1, i query, j key, r = j - i.
Everything is float64, and equal means within 1e-12.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from attention import VARIANTS, depthwise_convolution, make_mixer, merge_heads, split_heads
from kernels import convolve, relative_scores

B, N, H, d, K = 2, 23, 3, 4, 7
C, k = H * d, K // 2


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_same(one, other):
    torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def relative_positions():
    """r = j - i of every pair, (N, N)."""
    return torch.arange(N)[None, :] - torch.arange(N)[:, None]


def config(variant):
    return SimpleNamespace(variant=variant, hidden_size=C, heads=H, kernel_size=K, window="clip", dropout=0.0,
                           attention_layer=None)


def mixer(variant):
    """A mixer of random weights, and its queries, keys and values for x, each (B, H, N, d)."""
    torch.manual_seed(1)
    module = make_mixer(config(variant), 0).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = draw(B, N, C)
    return module, x, *(split_heads(f(x), H) for f in (module.query, module.key, module.value))


def softmax_over_window(logits):
    """softmax_j of a map (.., N, N) over the keys with |j - i| <= k alone; 0 elsewhere."""
    return logits.masked_fill(relative_positions().abs() > k, -math.inf).softmax(dim=-1)


def share_inside(p):
    """What the taps within the sentence sum to, (.., N, 1): less than 1 near the ends. p (.., N, K)"""
    return relative_scores(p, N, "zero").sum(dim=-1, keepdim=True)


# --- 1. A lightweight convolution is attention whose map is a band ----------------------------------------------------


def test_a_lightweight_convolution_is_attention_with_a_band_matrix():
    """z_i = sum_r p_r v_(i+r)  =  sum_j A_ij v_j,  A_ij = p_(j-i) where |j - i| <= k, else 0."""
    p, v = draw(H, K).softmax(dim=-1), draw(B, H, N, d)
    convolved = depthwise_convolution(merge_heads(v), p.repeat_interleave(d, dim=0))  # (H, K) -> (C, K); (B, N, C)

    A = torch.zeros(H, N, N, dtype=torch.float64)
    for r in range(-k, k + 1):
        A += p[:, r + k, None, None] * (relative_positions() == r)  # one diagonal
    assert_same(merge_heads(A @ v), convolved)


@pytest.mark.parametrize("variant", ["lightconv", "dynamicconv", "dilated"])
def test_the_mixers_that_convolve_are_their_band_matrices(variant):
    """[W]'s way of checking: expand the kernels to an N x N matrix for each head, and multiply."""
    torch.manual_seed(1)
    layer = 2 if variant == "dilated" else 0
    module, x = make_mixer(config(variant), layer).double(), draw(B, N, C)
    g = F.glu(module.input(x))  # (B, N, C)
    if variant == "dynamicconv":
        p = split_heads(module.kernel(g), H).softmax(dim=-1)  # (B, H, N, K)
    else:
        p = module.weight.softmax(dim=-1)[:, None].expand(-1, N, -1)  # (H, K) -> (H, N, K)
    D = 4 if variant == "dilated" else 1
    A = sum(p[..., r + k, None] * (relative_positions() == r * D) for r in range(-k, k + 1))  # (.., H, N, N)
    assert_same(module(x, torch.ones(B, N, dtype=torch.bool)), module.output(merge_heads(A @ split_heads(g, H))))


# --- 2. A kernel made by the query is Shaw's relative key -------------------------------------------------------------


def test_a_dynamic_lightweight_convolution_of_the_query_is_shaw_s_relative_key():
    """Shaw: q_i . (k_j + a_r) / sqrt(d).  Here: q_i . k_j / sqrt(d) + row_i[r], row_i = q_i w / sqrt(d), w_r = a_r."""
    module, _, query, key, _ = mixer("dynamic")
    a = module.dynamic.t()[relative_positions().clamp(-k, k) + k]  # (K, d) at every pair: (N, N, d)
    shaw = torch.einsum("bhid,bhijd->bhij", query, key[:, :, None] + a) / math.sqrt(d)

    rows = module.query_rows(query)  # (B, H, N, K): the kernel that each query makes
    assert_same(query @ key.transpose(-1, -2) / math.sqrt(d) + relative_scores(rows, N), shaw)


def test_those_rows_are_a_linear_layer_of_the_query_as_in_a_dynamic_convolution():
    """DynamicConv makes kernels by a linear map for each head; Shaw's embeddings are that map, the same for all heads."""
    module, _, query, _, _ = mixer("dynamic")
    assert_same(module.query_rows(query), F.linear(query, module.dynamic.t() / math.sqrt(d)))


# --- 3. The fixed term is T5's bias with a bucket for each position ---------------------------------------------------


def test_the_fixed_term_is_t5_s_bias_with_one_bucket_a_position():
    """T5 looks a scalar up for the bucket of j - i, in a table (buckets, H). Here k tokens to each side have their own
    bucket, and the last one of a side takes all beyond: K buckets, and the table is beta."""
    module, _, query, key, _ = mixer("fixed")
    bucket = relative_positions().clamp(-k, k) + k  # (N, N)
    bias = F.embedding(bucket, module.fixed.t()).permute(2, 0, 1)  # (N, N, H) -> (H, N, N)
    assert_same(relative_scores(module.query_rows(query), N), bias)


# --- 4. Composite attention without its content is a convolution ------------------------------------------------------


def test_fixed_attention_without_content_over_its_window_is_a_lightweight_convolution():
    """softmax_j(beta_(j-i)) over the window = softmax_r(beta), wherever the window lies within the sentence. Nearer to an
    end attention shares 1 among the tokens that exist, and a convolution loses what falls beyond: there the ratio."""
    module, _, query, _, value = mixer("fixed")
    attended = softmax_over_window(relative_scores(module.query_rows(query), N)) @ value  # (B, H, N, d)

    p = module.fixed.softmax(dim=-1)  # (H, K)
    convolved = split_heads(depthwise_convolution(merge_heads(value), p.repeat_interleave(d, dim=0)), H)
    assert_same(attended[:, :, k:N - k], convolved[:, :, k:N - k])
    assert_same(attended * share_inside(p[:, None].expand(-1, N, -1)), convolved)


def test_composite_attention_without_content_over_its_window_is_a_dynamic_convolution():
    """z_i = sum_r softmax_r(q_i . w_r / sqrt(d) + beta_r) v_(i+r): the kernel has a part that learns and one that listens."""
    module, _, query, _, value = mixer("composite")
    rows = module.query_rows(query)  # (B, H, N, K)
    attended = softmax_over_window(relative_scores(rows, N)) @ value

    p = rows.softmax(dim=-1)
    convolved = convolve(p, value)
    assert_same(attended[:, :, k:N - k], convolved[:, :, k:N - k])
    assert_same(attended * share_inside(p), convolved)


def test_composite_attention_is_content_and_that_convolution_s_logits_in_one_softmax():
    """What the paper adds to a convolution is one term: with content back in, the mixer itself comes out."""
    module, x, query, key, value = mixer("composite")
    logits = query @ key.transpose(-1, -2) / math.sqrt(d) + relative_scores(module.query_rows(query), N)
    expected = module.output(merge_heads(logits.softmax(dim=-1) @ value))
    assert_same(module(x, torch.ones(B, N, dtype=torch.bool)), expected)
    assert VARIANTS["composite"].terms == ("fixed", "dynamic")
