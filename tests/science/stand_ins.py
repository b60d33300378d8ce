"""Stand-ins for the functions of attention.py and kernels.py, which `helpers.alone` puts in place.

They have the arguments and results of the functions that they describe, and share no code with
them, except `drop`: it must draw the same random numbers. Those for whole maps are written with
tables of indices, because the loops of references.py are slow for long sequences. If a test fails,
read the loops there first.
"""

import functools
import math

import torch

from references import column

# --- From rows to maps and back -------------------------------------------------------------------


@functools.cache  # the tests ask for the same few tables again and again
def columns(n, N, K, beyond, first=0):
    """(n, N): the column in which query first + i finds key j; K, one too many, if it has none."""
    table = []
    for i in range(n):
        row = [column(j - (first + i), K, beyond) for j in range(N)]
        table.append([K if t is None else t for t in row])

    # A later test may need gradients, even if this one is in inference mode.
    with torch.inference_mode(False):
        return torch.tensor(table)


def map_of_rows(rows, N, beyond="clip", first=0):
    """The map of scores of the queries from `first` on: (..., n, K) -> (..., n, N)."""
    n, K = rows.shape[-2:]
    with_zero = torch.cat([rows, torch.zeros_like(rows[..., :1])], dim=-1)  # column K holds 0
    queries = torch.arange(n)[:, None]  # (n, 1)
    return with_zero[..., queries, columns(n, N, K, beyond, first)]


def map_of_key_rows(rows, n, beyond="clip", first=0):
    """scores[..., i, j] = the weight of rows[..., j] for i - j: (..., N, K) -> (..., n, N)."""
    by_key = map_of_rows(rows, n, beyond, -first)  # (..., N, n): from key j to query first + i
    return by_key.transpose(-1, -2)


def sums_of_map(scores, K, beyond="clip", first=0):
    """sums[..., i, t] = the sum of scores[..., i, j] over the keys j in column t: (..., n, K)."""
    n, N = scores.shape[-2:]
    where = columns(n, N, K, beyond, first)
    sums = [(scores * (where == t)).sum(dim=-1) for t in range(K)]
    return torch.stack(sums, dim=-1)


# --- Attention, and what it is made of ------------------------------------------------------------


def attention_function(
    query,
    key,
    value,
    attention_mask,
    query_rows=None,
    key_rows=None,
    relative_value=None,
    beyond="clip",
    dropout=0.0,
    first=0,
    generator=None,
    kept=None,
):
    """attention.attention, with an index for every pair.

    kept: (B, H, n, N), what the weights are multiplied by, in place of a dropout.
    """
    n, d = query.shape[-2:]
    N = key.shape[-2]
    scores = query @ key.transpose(-1, -2) / math.sqrt(d)  # (B, H, n, N)

    # query i reads its row at j - i, key j reads its row at i - j
    if query_rows is not None:
        query_rows = query_rows.expand(*query_rows.shape[:-2], n, -1)  # 1 row or n rows -> n rows
        scores = scores + map_of_rows(query_rows, N, beyond, first)
    if key_rows is not None:
        scores = scores + map_of_key_rows(key_rows, n, beyond, first)

    # weights over the real keys
    scores = scores.masked_fill(~attention_mask[:, None, None, :], -math.inf)
    p = drop(torch.softmax(scores, dim=-1), dropout, generator)
    if kept is not None:
        p = p * kept
    z = p.to(value.dtype) @ value  # (B, H, n, d)

    # the vector s_(j-i) of every pair
    if relative_value is not None:
        s = relative_value[:, None, :].expand(-1, n, -1)  # (d, K) -> (d, n, K)
        s = map_of_rows(s, N, beyond, first)  # (d, n, N)
        z = z + torch.einsum("bhij,dij->bhid", p.to(value.dtype), s.to(value.dtype))
    return z


def drop(p, dropout, generator=None):
    """Each number is 0 with probability `dropout`, and otherwise divided by 1 - dropout."""
    if generator is None:
        return torch.nn.functional.dropout(p, dropout)
    kept = torch.empty_like(p).bernoulli_(1 - dropout, generator=generator)
    return p * kept / (1 - dropout)


def very_low_at_padding(attention_mask, dtype):
    """(B, 1, 1, N): 0 at real tokens, otherwise half of the lowest number."""
    lowest = torch.finfo(dtype).min / 2
    sentences = []
    for sentence in attention_mask.tolist():
        sentences.append([[[0.0 if is_real else lowest for is_real in sentence]]])
    return torch.tensor(sentences, dtype=dtype)


def split_heads(x, heads):
    """(B, N, C) -> (B, H, N, d): head h has the channels h*d .. h*d + d - 1."""
    d = x.shape[-1] // heads
    tokens = []
    for i in range(x.shape[1]):
        of_heads = [x[:, i, h * d : h * d + d] for h in range(heads)]  # H tensors (B, d)
        tokens.append(torch.stack(of_heads, dim=1))  # (B, H, d)
    return torch.stack(tokens, dim=2)  # (B, H, N, d)


def merge_heads(x):
    """(B, H, N, d) -> (B, N, C)."""
    H, N = x.shape[1:3]
    tokens = []
    for i in range(N):
        of_heads = [x[:, h, i] for h in range(H)]  # H tensors (B, d)
        tokens.append(torch.cat(of_heads, dim=-1))  # (B, C)
    return torch.stack(tokens, dim=1)  # (B, N, C)


def set_to_0_at_padding(x, attention_mask):
    """x_i if token i is real, otherwise 0, even if x_i is not a number."""
    return torch.where(attention_mask[:, :, None], x, torch.zeros_like(x))


def dilated_convolution(x, weight, bias=None, dilation=1):
    """y_i,c = sum_r weight_c,r x_(i + r*dilation),c [+ bias_c], with x = 0 beyond the ends."""
    N = x.shape[1]
    k = weight.shape[-1] // 2
    y = []
    for i in range(N):
        y_i = torch.zeros_like(x[:, 0])  # (B, C)
        if bias is not None:
            y_i = y_i + bias
        for r in range(-k, k + 1):
            j = i + r * dilation
            if 0 <= j < N:
                y_i = y_i + weight[:, r + k] * x[:, j]
        y.append(y_i)
    return torch.stack(y, dim=1)  # (B, N, C)


def convolve(rows, value):
    """z_i = sum_r rows[i, r + k] v_(i+r), with v = 0 beyond the ends."""
    N = value.shape[-2]
    k = rows.shape[-1] // 2
    z = []
    for i in range(N):
        z_i = torch.zeros_like(value[..., 0, :])  # (B, H, d)
        for r in range(-k, k + 1):
            if 0 <= i + r < N:
                z_i = z_i + rows[..., i, r + k, None] * value[..., i + r, :]
        z.append(z_i)
    return torch.stack(z, dim=-2)  # (B, H, N, d)


def fixed_rows(term, q):
    """Fixed.forward: every query of head h has the row beta_h."""
    return torch.stack([term.beta] * q.shape[-2], dim=1)  # (H, N, K)


def sum_of_two_rows(one, other, beyond):
    """attention.add_rows: each row is read at every r of the longer one."""
    N = max(one.shape[-2], other.shape[-2])
    width = max(one.shape[-1], other.shape[-1])
    total = 0
    for rows in (one, other):
        columns_read = []
        for r in range(-(width // 2), width // 2 + 1):
            t = column(r, rows.shape[-1], beyond)
            if t is None:
                columns_read.append(torch.zeros_like(rows[..., 0]))
            else:
                columns_read.append(rows[..., t])
        wide = torch.stack(columns_read, dim=-1)  # (..., 1 or N, width)
        total = total + torch.cat([wide] * (N // rows.shape[-2]), dim=-2)
    return total


def dynamic_rows(term, q):
    """Dynamic.forward: q_i . w_r / sqrt(d)."""
    return products(q, term.w)


def key_dynamic_rows(term, k):
    """KeyDynamic.forward: k_j . u_r / sqrt(d)."""
    return products(k, term.u)


def products(x, table):
    """x_i . table_r / sqrt(d) for each token i: (B, H, N, d) and (d, K) -> (B, H, N, K)."""
    N, d = x.shape[2:]
    tokens = [x[:, :, i] @ table / math.sqrt(d) for i in range(N)]  # N tensors (B, H, K)
    return torch.stack(tokens, dim=2)


def gate_of_convolution(mixer, x, attention_mask):
    """GatedConvolution.gate: g = a / (1 + exp(-b)) with a, b = input(x), and 0 at padding."""
    a, b = (x @ mixer.input.weight.t() + mixer.input.bias).chunk(2, dim=-1)  # (B, N, C) each
    return set_to_0_at_padding(a / (1 + torch.exp(-b)), attention_mask)


def half_convolution_module(module, x):
    """HalfConvolution.forward."""
    x_convolved = dilated_convolution(x, module.depthwise.weight[:, 0], module.depthwise.bias)
    pointwise = x_convolved @ module.pointwise.weight.t() + module.pointwise.bias
    return torch.cat([pointwise, x @ module.linear.weight.t() + module.linear.bias], dim=-1)


def depthwise_module(module, x):
    """DepthwiseConvolution.forward."""
    return dilated_convolution(x, module.weight[:, 0], module.bias)
