"""Every equation of the project again, as plain loops over single positions.

These loops are slow, and simple enough to check by eye next to the paper. The tests compare the
fast code with them. Tensors are float64 and carry gradients, so autograd through the loops gives
independent gradients, too.

Nothing here calls a function of the fast code. From attention.py comes only the table VARIANTS,
which says what terms and what mixer a variant has, and from kernels.py the record Positions. If you
add a term or a mixer to attention.py, write its equation here and add it to SCORE_TERMS,
VALUE_TERMS or MIXERS: until then, its tests end in a KeyError with its name.

"Chang" is Chang, Xu, Xu, Tu 2021. Letters as in attention.py, and t for the column of offset r in
a bias of K numbers: t = r + k within the window. Arguments that most functions share:

    x               (B, N, C), the input of a mixer
    attention_mask  (B, N) bool, True at real tokens
    weights         the state_dict of a mixer: parameter names to tensors
    config          .variant, .heads, .kernel_size, .beyond, .causal and .layers

At padding, where the output of a mixer has no meaning, the functions in MIXERS return 0.
"""

import itertools
import math
from functools import partial

import torch

from attention import VARIANTS
from kernels import Positions

# --- Offsets --------------------------------------------------------------------------------------


def column(r, K, beyond):
    """The column of offset r in a bias of K numbers; None if r meets no number."""
    k = K // 2

    # within the window
    if -k <= r <= k:
        return r + k

    # beyond it: no number, or the one at the end of this side
    if beyond == "zero":
        return None
    if r < -k:
        return 0
    return K - 1


def reads(N, K, beyond):
    """(N, N, K): 1 where query i reads column t at key j, otherwise 0."""
    table = torch.zeros(N, N, K, dtype=torch.float64)
    for i in range(N):
        for j in range(N):
            t = column(j - i, K, beyond)
            if t is not None:
                table[i, j, t] = 1
    return table


def relative_scores(bias, N, beyond):
    """scores[..., i, j] = the number of bias[..., i] for j - i: (..., N or 1, K) -> (..., N, N)."""
    K = bias.shape[-1]
    bias = bias.expand(*bias.shape[:-2], N, K)
    return torch.einsum("...it,ijt->...ij", bias, reads(N, K, beyond).to(bias))


def key_scores(bias, N, beyond):
    """scores[..., i, j] = the number of bias[..., j] for i - j: (..., N or 1, K) -> (..., N, N)."""
    return relative_scores(bias, N, beyond).transpose(-1, -2)


def sum_by_offset(x, K, beyond="clip"):
    """sums[..., i, t] = sum of x[..., i, j] over the j that read column t: (..., N, N or K)."""
    return torch.einsum("...ij,ijt->...it", x, reads(x.shape[-1], K, beyond).to(x))


def add_bias(scores, bias, beyond="clip"):
    """scores + the matrix of a bias, which may be one bias for all queries."""
    return scores + relative_scores(bias, scores.shape[-1], beyond)


def banded_softmax(scores, mask_bias, positions):
    """p (B, H, N, N) of the function `banded_softmax`."""
    N = scores.shape[-1]
    a = scores + mask_bias
    if positions.query_bias is not None:
        a = a + relative_scores(positions.query_bias, N, positions.beyond)
    if positions.key_bias is not None:
        a = a + key_scores(positions.key_bias, N, positions.beyond)
    exponentials = torch.exp(a - a.max(dim=-1, keepdim=True).values)
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def relative_values(p, table, beyond="clip"):
    """sum_j p_ij s_(j-i): (..., N, N) and (d, K) -> (..., N, d)."""
    return torch.einsum(
        "...ij,ijt,dt->...id", p, reads(p.shape[-1], table.shape[-1], beyond), table
    )


def attention(q, k, v, attention_mask, positions, causal=False):
    """z (B, H, N, d) of the function `attention`, one query of one head at a time."""
    B, H, N, d = q.shape

    # what the terms add to the scores, (B, H, N, N)
    added = torch.zeros(B, H, N, N, dtype=q.dtype)
    if positions.query_bias is not None:
        added = added + relative_scores(positions.query_bias, N, positions.beyond)
    if positions.key_bias is not None:
        added = added + key_scores(positions.key_bias, N, positions.beyond)

    # the weights over the real keys; causal: only over those up to the query
    weights = []
    for b in range(B):
        for h in range(H):
            for i in range(N):
                keys = [j for j in range(N) if attention_mask[b, j] and not (causal and j > i)]
                scores = k[b, h, keys] @ q[b, h, i] / math.sqrt(d) + added[b, h, i, keys]
                p_i = torch.zeros(N, dtype=q.dtype)
                p_i[keys] = torch.exp(scores) / torch.exp(scores).sum()
                weights.append(p_i)
    p = torch.stack(weights).reshape(B, H, N, N)

    if positions.value_table is None:
        return p @ v
    return p @ v + relative_values(p, positions.value_table, positions.beyond)


# --- The terms of the score, for one query i and one key j of head h ------------------------------


def content_score(q_i, k_j):
    """q_i . k_j / sqrt(d). Chang eq. 1"""
    d = len(q_i)
    return q_i @ k_j / math.sqrt(d)


def fixed_score(weights, q_i, k_j, i, j, h, config, N):
    """beta_(j-i), one scalar per head, not scaled. Chang eq. 4"""
    beta = weights["terms.fixed.beta"]  # (H, K)
    t = column(j - i, config.kernel_size, config.beyond)
    if t is None:
        return 0
    return beta[h, t]


def dynamic_score(weights, q_i, k_j, i, j, h, config, N):
    """q_i . w_(j-i) / sqrt(d), one table for all heads. Chang eq. 5; Shaw et al. 2018"""
    w = weights["terms.dynamic.w"]  # (d, K)
    t = column(j - i, config.kernel_size, config.beyond)
    if t is None:
        return 0
    d = len(q_i)
    return q_i @ w[:, t] / math.sqrt(d)


def key_dynamic_score(weights, q_i, k_j, i, j, h, config, N):
    """k_j . u_(i-j) / sqrt(d): the key's kernel, read at the query. Huang et al. 2020"""
    u = weights["terms.key_dynamic.u"]  # (d, K)
    t = column(i - j, config.kernel_size, config.beyond)
    if t is None:
        return 0
    d = len(k_j)
    return k_j @ u[:, t] / math.sqrt(d)


def relative_value(weights, q_i, k_j, i, j, h, config, N):
    """s_(j-i), a vector (d,) that is added to the value of key j. Shaw et al. 2018"""
    s = weights["terms.relative_value.s"]  # (d, K)
    t = column(j - i, config.kernel_size, config.beyond)
    if t is None:
        return 0
    return s[:, t]


# --- Further relative positions, without a window -------------------------------------------------


def t5_bucket(r):
    """A bucket for each distance below 8, then 8 wider ones. Raffel et al. 2020

    The starts of these grow by sqrt(2): 8, 12, 16, 23, ... The last one, 91, has no end.
    8 + m for the largest m with 8 * 2^(m/2) <= abs(r), as whole numbers: 64 * 2^m <= abs(r)^2.
    """
    bucket = abs(r)
    if bucket >= 8:
        bucket = max(8 + m for m in range(40) if 64 * 2**m <= r * r)
    bucket = min(bucket, 15)
    if r > 0:
        return 16 + bucket
    return bucket


def t5_score(weights, q_i, k_j, i, j, h, config, N):
    """beta_bucket(j-i), one scalar per head and bucket."""
    return weights["terms.t5.beta"][h, t5_bucket(j - i)]


def alibi_score(weights, q_i, k_j, i, j, h, config, N):
    """- 2^(-8 (h + 1) / H) abs(j - i). Press et al. 2022"""
    return -(2.0 ** (-8 * (h + 1) / config.heads)) * abs(j - i)


def fire_score(weights, q_i, k_j, i, j, h, config, N):
    """mlp_h(sign(r) log(1 + c abs(r)) / log(1 + c max(N, L))). Li et al. 2024"""
    c = 0.1 * torch.exp(weights["terms.fire.log_c"])
    L = 512 * torch.exp(weights["terms.fire.log_L"])
    farthest = L
    if N > L:
        farthest = torch.full_like(L, N)
    x = torch.log(1 + c * abs(j - i)) / torch.log(1 + c * farthest)
    if j < i:
        x = -x

    # the two layers
    hidden = weights["terms.fire.hidden.weight"][:, 0] * x + weights["terms.fire.hidden.bias"]
    hidden = hidden * (hidden > 0)  # (32,)
    return weights["terms.fire.output.weight"][h] @ hidden + weights["terms.fire.output.bias"][h]


def sinusoid(r, C):
    """(C,): sin(r * 10000^(-2m/C)) for m = 0 .. C/2 - 1, then the cosines."""
    angles = [r * 10000 ** (-2 * m / C) for m in range(C // 2)]
    numbers = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
    return torch.tensor(numbers, dtype=torch.float64)


def xl_score(weights, q_i, k_j, i, j, h, config, N):
    """(b_c . k_j + (q_i + b_p) . (W S_(j-i))) / sqrt(d). Dai et al. 2019"""
    d = len(q_i)
    W = weights["terms.xl.W.weight"]  # (C, C)
    w = W @ sinusoid(j - i, len(W))  # (C,)
    w = w[h * d : (h + 1) * d]  # (d,)
    content = weights["terms.xl.b_c"][h] @ k_j
    position = (q_i + weights["terms.xl.b_p"][h]) @ w
    return (content + position) / math.sqrt(d)


def turned(x, i):
    """x (d,) with each pair of channels turned by the angle i * 10000^(-2m/d). Su et al. 2021"""
    d = len(x)
    numbers = []
    for m in range(d // 2):
        angle = i * 10000 ** (-2 * m / d)
        a, b = x[2 * m], x[2 * m + 1]
        numbers.append(a * math.cos(angle) - b * math.sin(angle))
        numbers.append(a * math.sin(angle) + b * math.cos(angle))
    return torch.stack(numbers)


def rotary_score(weights, q_i, k_j, i, j, h, config, N):
    """(R_i q_i) . (R_j k_j) / sqrt(d) in place of the content, which the score has already."""
    return content_score(turned(q_i, i), turned(k_j, j)) - content_score(q_i, k_j)


def kerple_score(weights, q_i, k_j, i, j, h, config, N):
    """- a_h log(1 + b_h abs(j - i)). Chi et al. 2022; an example in docs/extend.md"""
    a = torch.exp(weights["terms.kerple.log_a"][h])
    b = torch.exp(weights["terms.kerple.log_b"][h])
    return -a * torch.log(1 + b * abs(j - i))


def slopes_score(weights, q_i, k_j, i, j, h, config, N):
    """alibi with the learned factor exp(c_h): an example in docs/extend.md"""
    learned = torch.exp(weights["terms.slopes.c"][h])
    return learned * alibi_score(weights, q_i, k_j, i, j, h, config, N)


def mirror_score(weights, q_i, k_j, i, j, h, config, N):
    """(beta_r + beta_(-r)) / 2: an example in docs/extend.md"""
    beta = weights["terms.mirror.beta"]  # (H, K)
    t = column(j - i, config.kernel_size, config.beyond)
    if t is None:
        return 0
    opposite = column(i - j, config.kernel_size, config.beyond)
    return (beta[h, t] + beta[h, opposite]) / 2


def leaning_score(weights, q_i, k_j, i, j, h, config, N):
    """(q_i . g_h) r / sqrt(d) in the window: an example in docs/extend.md"""
    t = column(j - i, config.kernel_size, config.beyond)
    if t is None:
        return 0
    reach = config.kernel_size // 2
    r = t - reach
    return q_i @ weights["terms.leaning.g"][h] * r / math.sqrt(len(q_i))


def deberta_score(weights, q_i, k_j, i, j, h, config, N):
    """(q_i . k_j + q_i . (W_k P_(j-i)) + k_j . (W_q P_(i-j))) / sqrt(3d). He et al. 2021"""
    P = weights["P"]  # (K, C)
    d = len(q_i)
    own = slice(h * d, (h + 1) * d)
    total = q_i @ k_j

    # content to position
    t = column(j - i, config.kernel_size, config.beyond)
    if t is not None:
        w = weights["key.weight"] @ P[t] + weights["key.bias"]  # (C,)
        total = total + q_i @ w[own]

    # position to content
    t = column(i - j, config.kernel_size, config.beyond)
    if t is not None:
        u = weights["query.weight"] @ P[t] + weights["query.bias"]  # (C,)
        total = total + k_j @ u[own]
    return total / math.sqrt(3 * d)


# Every function: (weights, q_i, k_j, i, j, h, config, N) -> what the term adds to the score.
SCORE_TERMS = {
    "fixed": fixed_score,
    "dynamic": dynamic_score,
    "key_dynamic": key_dynamic_score,
    "t5": t5_score,
    "alibi": alibi_score,
    "fire": fire_score,
    "xl": xl_score,
    "rotary": rotary_score,
    "kerple": kerple_score,
    "slopes": slopes_score,
    "mirror": mirror_score,
    "leaning": leaning_score,
}

# The same arguments -> what the term adds to the value.
VALUE_TERMS = {"relative_value": relative_value}


def score(weights, q_i, k_j, i, j, h, config, N, variant):
    """The score a_ij: content, plus all terms that the variant names; or that of DeBERTa."""
    if variant.mixer.__name__ == "Deberta":
        return deberta_score(weights, q_i, k_j, i, j, h, config, N)
    total = content_score(q_i, k_j)
    for name in variant.terms:
        if name not in VALUE_TERMS:
            total = total + SCORE_TERMS[name](weights, q_i, k_j, i, j, h, config, N)
    return total


def value_at(weights, q_i, k_j, v_j, i, j, h, config, N, variant):
    """The value of key j as query i sees it: v_j, plus all terms that the variant names."""
    total = v_j
    for name in variant.terms:
        if name in VALUE_TERMS:
            total = total + VALUE_TERMS[name](weights, q_i, k_j, i, j, h, config, N)
    return total


def softmax(scores):
    """p_j = exp(s_j) / sum_m exp(s_m), for a list of scalars."""
    exponentials = [torch.exp(score) for score in scores]
    total = sum(exponentials)
    return [exponential / total for exponential in exponentials]


# --- Projections and convolutions, for all positions ----------------------------------------------


def zero_padding(x, attention_mask):
    """x_i if token i is real, otherwise 0."""
    return x * attention_mask[:, :, None]  # (B, N, C)


def linear(x, weights, name):
    """y_i = W x_i [+ b]: (B, N, in) -> (B, N, out)."""
    weight = weights[f"{name}.weight"]  # (out, in)
    bias = weights.get(f"{name}.bias", 0)  # (out,)
    sentences = []
    for sentence in x:
        sentences.append(torch.stack([weight @ x_i + bias for x_i in sentence]))
    return torch.stack(sentences)


def depthwise_convolution(x, weights, name, causal=False):
    """The convolution of a layer, whose weight is (C, 1, K)."""
    weight, bias = weights[f"{name}.weight"][:, 0], weights[f"{name}.bias"]
    return a_kernel_per_channel(x, weight, bias, causal=causal)


def a_kernel_per_channel(x, weight, bias=None, dilation=1, causal=False):
    """y_i,c = b_c + sum_r w_c,r x_(i+r*dilation),c, with x = 0 beyond the ends. Chang eq. 2

    causal: the K weights stand for r = -(K - 1) to 0. weight: (C, K).
    """
    N, K = x.shape[1], weight.shape[1]
    first_r = 1 - K if causal else -(K // 2)
    y = []
    for i in range(N):
        y_i = torch.zeros_like(x[:, 0]) if bias is None else bias.expand(len(x), -1)
        for t in range(K):
            j = i + (first_r + t) * dilation
            if 0 <= j < N:
                y_i = y_i + weight[:, t] * x[:, j]
        y.append(y_i)
    return torch.stack(y, dim=1)  # (B, N, C)


def half_convolution(x, attention_mask, weights, name, causal=False):
    """[pointwise(depthwise(x)), linear(x)]: half of the heads each. Chang sec. 5"""
    x = zero_padding(x, attention_mask)
    convolved = depthwise_convolution(x, weights, f"{name}.depthwise", causal)  # (B, N, C)
    convolved = linear(convolved, weights, f"{name}.pointwise")  # (B, N, C/2)
    projected = linear(x, weights, f"{name}.linear")  # (B, N, C/2)
    return torch.cat([convolved, projected], dim=-1)  # (B, N, C)


def projection(x, attention_mask, weights, name, variant, causal):
    """The query, key or value: linear, or half convolutional if the variant says so."""
    if name in variant.convolutional:
        return half_convolution(x, attention_mask, weights, name, causal)
    return linear(x, weights, name)


def convolve_at(bias, values, i, dilation, causal):
    """z_i = sum_r softmax(bias)_r v_(i + r*D), for one query of one head of one sentence.

    bias (K,), values (N, d). Beyond the ends v is 0, but the weight keeps its share of the
    softmax. causal: the K weights stand for r = -(K - 1) to 0.
    """
    K = len(bias)
    first_r = 1 - K if causal else -(K // 2)
    p = softmax(list(bias))
    z_i = torch.zeros_like(values[0])
    for t in range(K):
        j = i + (first_r + t) * dilation
        if 0 <= j < len(values):
            z_i = z_i + p[t] * values[j]
    return z_i


def convolved_heads(values, biases, heads, dilation=1, causal=False):
    """z_i of all queries, each head with the kernel of its query.

    values (B, N, heads * d): head h has the channels h*d .. h*d + d - 1. biases (B, N, heads * K)
    in the same way. Returns (B, N, heads * d).
    """
    B, N, channels = values.shape
    d = channels // heads
    K = biases.shape[-1] // heads
    z = []
    for b in range(B):
        for i in range(N):
            for h in range(heads):
                bias = biases[b, i, h * K : (h + 1) * K]  # (K,)
                v_h = values[b, :, h * d : (h + 1) * d]  # (N, d)
                z.append(convolve_at(bias, v_h, i, dilation, causal))  # (d,)
    return torch.stack(z).reshape(values.shape)  # (B * N * heads, d) -> (B, N, heads * d)


# --- Mixers ---------------------------------------------------------------------------------------


def attention_head(q, k, v, real, weights, h, config, variant):
    """z_i = sum_j softmax_j(a_ij) (v_j [+ s_(j-i)]) over the real tokens j, for one head.

    In a causal model, query i sees the sequence as it is up to i: j <= i, and N is i + 1.
    q, k, v (N, d) of one sentence, real (N,) bool. Returns (N, d).
    """
    outputs = []
    for i in range(len(q)):
        N = i + 1 if config.causal else len(k)
        keys = [j for j in range(N) if real[j]]
        z_i = torch.zeros_like(v[0])
        if real[i]:
            p = softmax([score(weights, q[i], k[j], i, j, h, config, N, variant) for j in keys])
            for p_ij, j in zip(p, keys, strict=True):
                z_i = z_i + p_ij * value_at(weights, q[i], k[j], v[j], i, j, h, config, N, variant)
        outputs.append(z_i)
    return torch.stack(outputs)


def self_attention(x, attention_mask, weights, variant, config, layer):
    """output(attention [+ depthwise(v)]), with the terms of the variant.

    Chang eq. 1, 4 - 7; the convolution of eq. 7 is outside of the softmax, as in its footnote 3.
    """
    # projections, (B, N, C) each
    q = projection(x, attention_mask, weights, "query", variant, config.causal)
    k = projection(x, attention_mask, weights, "key", variant, config.causal)
    v = projection(x, attention_mask, weights, "value", variant, config.causal)
    return attend(q, k, v, attention_mask, weights, variant, config)


def attention_heads(q, k, v, attention_mask, weights, heads, config, variant):
    """Attention, one sentence and one head at a time. Returns (B, N, heads * d).

    q, k, v (B, N, heads * d): head h has the channels h*d .. h*d + d - 1.
    """
    d = q.shape[-1] // heads
    sentences = []
    for b in range(len(q)):
        outputs = []
        for h in range(heads):
            own = slice(h * d, (h + 1) * d)
            q_h, k_h, v_h = q[b, :, own], k[b, :, own], v[b, :, own]  # (N, d) each
            z_h = attention_head(q_h, k_h, v_h, attention_mask[b], weights, h, config, variant)
            outputs.append(z_h)
        sentences.append(torch.cat(outputs, dim=-1))  # (N, heads * d)
    return torch.stack(sentences)


def attend(q, k, v, attention_mask, weights, variant, config):
    """The rest of self_attention, from the queries, keys and values (B, N, C) on."""
    z = attention_heads(q, k, v, attention_mask, weights, config.heads, config, variant)

    # a convolution of the values next to attention
    if variant.depthwise:
        v = zero_padding(v, attention_mask)
        z = z + depthwise_convolution(v, weights, "depthwise", config.causal)
    return zero_padding(linear(z, weights, "output"), attention_mask)


def canon(x, attention_mask, weights, variant, config, layer):
    """Self-attention of x + depthwise(x), with x = 0 at padding. Allen-Zhu 2025"""
    x = zero_padding(x, attention_mask)
    x = x + depthwise_convolution(x, weights, "canon", config.causal)
    return self_attention(x, attention_mask, weights, variant, config, layer)


def primer(x, attention_mask, weights, variant, config, layer):
    """q, k and v each go through a depthwise convolution. So et al. 2021; docs/extend.md"""
    made = []
    for number, name in enumerate(("query", "key", "value")):
        y = zero_padding(linear(x, weights, name), attention_mask)  # (B, N, C)
        made.append(depthwise_convolution(y, weights, f"convolutions.{number}", config.causal))
    q, k, v = made
    return attend(q, k, v, attention_mask, weights, variant, config)


def convbert_biases(x, attention_mask, weights, causal=False):
    """kernel(c_i * q_i), c = pointwise(depthwise(x)): (B, N, H/2 * K). Jiang et al. 2020"""
    x = zero_padding(x, attention_mask)
    q = linear(x, weights, "query")  # (B, N, C/2)
    c = depthwise_convolution(x, weights, "depthwise", causal)  # (B, N, C)
    c = linear(c, weights, "pointwise")  # (B, N, C/2)
    return linear(c * q, weights, "kernel")


def convbert(x, attention_mask, weights, variant, config, layer):
    """H/2 heads of attention, then H/2 heads of dynamic convolution. Jiang et al. 2020"""
    convolve = partial(convolved_heads, causal=config.causal)
    return two_halves(x, attention_mask, weights, variant, config, convolve)


def two_halves(x, attention_mask, weights, variant, config, convolve):
    """ConvBERT. convolve(values, biases, heads): what its convolution heads compute."""
    heads = config.heads // 2
    q = linear(x, weights, "query")  # (B, N, C/2)
    k = linear(x, weights, "key")  # (B, N, C/2)
    v = zero_padding(linear(x, weights, "value"), attention_mask)  # (B, N, C)
    biases = convbert_biases(x, attention_mask, weights, config.causal)  # (B, N, H/2 * K)

    # attention has the first half of the values
    first, second = v.chunk(2, dim=-1)  # (B, N, C/2) each
    attended = attention_heads(q, k, first, attention_mask, weights, heads, config, variant)
    z = torch.cat([attended, convolve(second, biases, heads)], dim=-1)  # (B, N, C)
    return zero_padding(linear(z, weights, "output"), attention_mask)


def released_convbert(x, attention_mask, weights, variant, config, layer):
    """ConvBERT in Chang's released code: weight number r + k of key i + r; docs/differences.md

    The softmax is over the real keys.
    """

    def convolve(values, biases, heads):
        biases = biases.unflatten(-1, (heads, -1))  # (B, N, heads, K)
        B, N, _, K = biases.shape
        values = values.unflatten(-1, (heads, -1))  # (B, N, heads, d)
        z = torch.zeros_like(values)
        for b, i, h in itertools.product(range(B), range(N), range(heads)):
            first = i - K + 1 if config.causal else i - K // 2
            near = range(max(first, 0), min(first + K, N))
            keys = [j for j in near if attention_mask[b, j]]
            if keys:
                p = softmax([biases[b, j, h, j - first] for j in keys])
                for p_j, j in zip(p, keys, strict=True):
                    z[b, i, h] = z[b, i, h] + p_j * values[b, j, h]
        return z.flatten(2)  # (B, N, heads, d) -> (B, N, heads * d)

    return two_halves(x, attention_mask, weights, variant, config, convolve)


def gate(x, attention_mask, weights):
    """g = a / (1 + exp(-b)) with a, b = input(x), and 0 at padding. Wu et al. 2019"""
    C = x.shape[-1]
    projected = linear(x, weights, "input")  # (B, N, 2C)
    a = projected[..., :C]
    b = projected[..., C:]
    return zero_padding(a / (1 + torch.exp(-b)), attention_mask)  # (B, N, C)


def light_convolution(x, attention_mask, weights, variant, config, layer):
    """z_i,c = sum_r softmax(weight_h)_r g_(i + r*D),c with the head h of channel c. Wu et al. 2019

    Layer l takes the l-th dilation D of the variant, and starts again after the last one.
    """
    g = gate(x, attention_mask, weights)  # (B, N, C)
    biases = weights["weight"].flatten().expand(*g.shape[:2], -1)  # (H, K) -> (B, N, H * K)
    dilation = variant.dilations[layer % len(variant.dilations)]
    z = convolved_heads(g, biases, config.heads, dilation, config.causal)
    return zero_padding(linear(z, weights, "output"), attention_mask)


def dynamic_convolution(x, attention_mask, weights, variant, config, layer):
    """z_i = sum_r softmax(kernel(g_i))_r g_(i+r), K weights per token and head. Wu et al. 2019"""
    g = gate(x, attention_mask, weights)  # (B, N, C)
    biases = linear(g, weights, "kernel")  # (B, N, H * K)
    z = convolved_heads(g, biases, config.heads, causal=config.causal)
    return zero_padding(linear(z, weights, "output"), attention_mask)


def local_mean(x, attention_mask, weights, variant, config, layer):
    """z_i = mean of v_j over the real tokens j, |j - i| <= reach: the example in docs/extend.md."""
    v = linear(x, weights, "value")  # (B, N, C)
    reach = config.kernel_size // 2
    z = torch.zeros_like(v)
    for b in range(len(v)):
        for i in range(len(v[b])):
            near = []
            for j in range(len(v[b])):
                is_seen = attention_mask[b, j] and not (config.causal and j > i)
                if is_seen and abs(j - i) <= reach:
                    near.append(v[b, j])
            if attention_mask[b, i]:
                z[b, i] = sum(near) / len(near)
    return z


def first_layer(x, attention_mask, weights, variant, config, layer):
    """Layer 1 has the terms of the variant, the others have none: an example in docs/extend.md."""
    if layer > 0:
        variant = VARIANTS["none"]
    return self_attention(x, attention_mask, weights, variant, config, layer)


# By the name of the class in attention.py. Every function: (x, attention_mask, weights, variant,
# config, layer) -> the output of the mixer, (B, N, C).
MIXERS = {
    "SelfAttention": self_attention,
    "Canon": canon,
    "Deberta": self_attention,
    "Primer": primer,
    "ConvBert": convbert,
    "ReleasedConvBert": released_convbert,
    "LightConv": light_convolution,
    "DynamicConv": dynamic_convolution,
    "LocalMean": local_mean,
    "LongFixed": self_attention,  # in short sequences
    "FirstLayer": first_layer,
}


def mixer(x, attention_mask, weights, config, layer):
    """The output of layer 0, 1, ... of a variant, (B, N, C), whatever its mixer is."""
    # the last layer of a hybrid is plain self-attention
    variant = VARIANTS[config.variant]
    if variant.hybrid and layer == config.layers - 1:
        variant = VARIANTS["none"]

    function = MIXERS[variant.mixer.__name__]
    return function(x, attention_mask, weights, variant, config, layer)


# --- Training -------------------------------------------------------------------------------------


def mask_tokens(input_ids, draw, random_ids):
    """BERT's masks, token by token (Devlin et al. 2019): 15 % chosen, 80 : 10 : 10 of these.

    input_ids, draw, random_ids: (B, N). draw is one number from [0, 1) per token. The ids below 5
    are special, and 4 is [MASK]. Returns (masked_ids, labels), (B, N) each.
    """
    masked_ids = input_ids.clone()
    labels = torch.full_like(input_ids, -100)
    for b in range(len(input_ids)):
        for i in range(input_ids.shape[1]):
            token = input_ids[b, i]
            if token < 5 or draw[b, i] >= 0.15:
                continue
            labels[b, i] = token
            if draw[b, i] < 0.8 * 0.15:
                masked_ids[b, i] = 4
            elif draw[b, i] < 0.9 * 0.15:
                masked_ids[b, i] = random_ids[b, i]
    return masked_ids, labels


def masked_lm_loss(logits, labels):
    """The mean of -log p(label) over the tokens whose label is not -100; 0 if there are none.

    logits (B, N, V), labels (B, N).
    """
    losses = []
    for b in range(len(labels)):
        for i in range(labels.shape[1]):
            if labels[b, i] != -100:
                p = torch.exp(logits[b, i]) / torch.exp(logits[b, i]).sum()
                losses.append(-torch.log(p[labels[b, i]]))
    return sum(losses) / max(1, len(losses))


def clipped(gradients):
    """All gradients divided by their common length, if it is above 1. Returns (list, length)."""
    length = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
    if length <= 1:
        return list(gradients), length
    # torch adds the 1e-6, against a division by 0
    return [gradient / (length + 1e-6) for gradient in gradients], length


def adamw(parameter, gradient, moments, step, lr, weight_decay):
    """One step of AdamW (Loshchilov and Hutter 2019). Returns (new parameter, new moments).

    moments: (m, v), the running means of the gradient and of its square. step counts from 0.
    """
    m, v = moments
    m = 0.9 * m + 0.1 * gradient
    v = 0.999 * v + 0.001 * gradient**2

    # both means start at 0: at first they are too small by these factors
    mean = m / (1 - 0.9 ** (step + 1))
    square = v / (1 - 0.999 ** (step + 1))

    decayed = parameter - lr * weight_decay * parameter
    return decayed - lr * mean / (torch.sqrt(square) + 1e-6), (m, v)


# --- The functions of the course, with the inputs of its cases ------------------------------------


def composite_attention(q, k, v, w, beta):
    """z (B, N, C) of the function `composite_attention`."""
    q, k, v = (x.unflatten(-1, (len(beta), -1)).transpose(1, 2) for x in (q, k, v))
    bias = q @ w / math.sqrt(q.shape[-1]) + beta[:, None]
    mask = torch.ones(len(q), q.shape[2], dtype=torch.bool)
    return attention(q, k, v, mask, Positions(bias)).transpose(1, 2).flatten(2)


def a_kernel_per_query(kernels, value):
    """z (B, H, N, d) of the function `convolve`."""
    return relative_scores(kernels, value.shape[-2], "zero") @ value


def padding(attention_mask, dtype, scores):
    """What is seen of the number at padding: where it is 0, and which weights are left."""
    real = attention_mask.double()[:, None, None]
    weights = (real / real.sum(dim=-1, keepdim=True)).nan_to_num(1 / real.shape[-1])
    shape = torch.tensor(real.shape)
    return {"shape": shape, "is 0": real, "weights": weights, "dtype": torch.tensor(True)}


def general_attention(q, k, v, attention_mask, causal=False, dropout=0.0, **positions):
    """Without dropout: the cases are such that it does not matter, or measure it."""
    return attention(q, k, v, attention_mask, Positions(**positions), causal)


def drawn_masks(input_ids, vocab_size, seed):
    """First the numbers that decide, then the random tokens, from one generator."""
    numbers = torch.Generator().manual_seed(seed)
    draws = torch.rand(input_ids.shape, generator=numbers)
    random_ids = torch.randint(5, vocab_size, input_ids.shape, generator=numbers)
    masked_ids, labels = mask_tokens(input_ids, draws, random_ids)
    return {"masked_ids": masked_ids, "labels": labels}


def descent(batches, labels, scale, device="cpu"):
    """Gradient descent on worker.Linear: three weights of 1, and a learning rate of 1."""
    weights = torch.ones(3, dtype=torch.float64)
    for [ids] in batches:
        tokens = torch.tensor([x if x != 0 else 7 for x in ids.tolist()]).double()
        gradient = scale * tokens / max(1, (labels != -100).sum().item())
        loss, norm = weights @ gradient, gradient.square().sum().sqrt()
        weights = weights - gradient / max(1.0, norm.item())
    return {"weights": weights, "loss": loss, "norm": norm, "are tensors": torch.tensor(True)}
