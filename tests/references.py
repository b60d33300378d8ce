"""Every equation of the project again, as plain loops over single positions: slow, and simple enough to check by eye.

The tests compare the fast modules with these. Tensors are float64 and carry gradients, so autograd through the loops
gives an independent gradient as well. `weights` is a mixer's state_dict: parameter names to tensors.

    B batch   N length   C hidden size   H heads   d = C / H head size   K = 2k + 1 taps   i query   j key   r = j - i
    x (B, N, C)   padding_mask (B, N) bool, True where a token is real   heads are contiguous blocks of d channels

Positions of padding have no output of meaning; every mixer here returns zeros for them.
"""

import math

import torch


def column(r, taps, window):
    """Column of relative position r in a table whose column t holds r = t - k; None where a "zero" window has ended."""
    k = taps // 2
    if -k <= r <= k:
        return r + k
    if window == "zero":
        return None
    return 0 if r < -k else 2 * k  # "clip": everything farther than k takes the end weight of its side


def relative_scores(rows, length, window):
    """out[b, h, i, j] = rows[b, h, i, clip(j - i) + k], or 0 beyond a "zero" window.  (B, H, N, K) -> (B, H, N, N)"""
    entries = [row.unbind(-1) for row in rows.unbind(2)]  # entries[i][t] (B, H)
    scores = []
    for i in range(length):
        for j in range(length):
            t = column(j - i, rows.shape[-1], window)
            scores.append(torch.zeros_like(entries[i][0]) if t is None else entries[i][t])
    return torch.stack(scores, dim=-1).reshape(*rows.shape[:2], length, length)


# --- score terms, one pair (i, j) ---

def content_score(q_i, k_j):
    """a_ij = q_i k_j^T / sqrt(d)  [Chang et al. 2021, eq. 1]"""
    return sum(q_i * k_j) / math.sqrt(len(q_i))


def fixed_score(beta, i, j, window):
    """beta_{j-i}, not scaled  [eq. 4].  beta (K,) of this head."""
    t = column(j - i, len(beta), window)
    return 0 if t is None else beta[t]


def dynamic_score(q_i, w, i, j, window):
    """q_i w_{j-i}^T / sqrt(d): the query makes the kernel  [eq. 5; Shaw et al. 2018].  w (d, K), shared."""
    t = column(j - i, w.shape[1], window)
    return 0 if t is None else sum(q_i * w[:, t]) / math.sqrt(len(q_i))


def key_dynamic_score(k_j, u, i, j, window):
    """k_j u_{i-j}^T / sqrt(d): the key makes the kernel, seen from the key  [Huang et al. 2020].  u (d, K), shared."""
    t = column(i - j, u.shape[1], window)
    return 0 if t is None else sum(k_j * u[:, t]) / math.sqrt(len(k_j))


def softmax(scores):
    """p_j = exp(s_j) / sum_m exp(s_m), over a list of scalars."""
    exponentials = [torch.exp(score) for score in scores]
    total = sum(exponentials)
    return [exponential / total for exponential in exponentials]


# --- projections and convolutions, all i ---

def zero_padding(x, padding_mask):
    """x_i where token i is real, else 0."""
    return x * padding_mask.unsqueeze(-1)  # (B, N, C)


def linear(x, weights, name):
    """y_i = W x_i + b.  (B, N, in) -> (B, N, out)"""
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return torch.stack([torch.stack([weight @ x_i + bias for x_i in sequence]) for sequence in x])


def depthwise_convolution(x, weights, name):
    """y_{i,c} = b_c + sum_{-k <= r <= k} w_{c,r} x_{i+r,c}, with x = 0 beyond the ends.  (B, N, C) -> (B, N, C)"""
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]  # (C, 1, K), (C,)
    length, k = x.shape[1], weight.shape[-1] // 2
    y = []
    for sequence in x:
        for i in range(length):
            y_i = bias
            for r in range(-k, k + 1):
                if 0 <= i + r < length:
                    y_i = y_i + weight[:, 0, r + k] * sequence[i + r]
            y.append(y_i)
    return torch.stack(y).reshape(x.shape)


def half_convolution(x, padding_mask, weights, name):
    """[pointwise(depthwise(x)), linear(x)]: half of the heads convolves, half projects.  (B, N, C) -> same"""
    x = zero_padding(x, padding_mask)
    convolved = linear(depthwise_convolution(x, weights, f"{name}.depthwise"), weights, f"{name}.pointwise")
    return torch.cat([convolved, linear(x, weights, f"{name}.linear")], dim=-1)  # (B, N, C/2 + C/2)


def projection(x, padding_mask, weights, name):
    """Query, key or value: a linear map, or half convolutional where the weights say so.  (B, N, C) -> same"""
    if f"{name}.weight" in weights:
        return linear(x, weights, name)
    return half_convolution(x, padding_mask, weights, name)


def attend(queries, keys, values, padding_mask, score, relative_value=None, window="clip"):
    """y_i = sum_j p_ij (v_j + s_{j-i}), p_i = softmax over real j of score(q_i, k_j, i, j); relative_value s (d, K) or none.
    One head of one sequence: (N, d)"""
    outputs = []
    for i in range(len(queries)):
        y_i = torch.zeros_like(values[0])
        if padding_mask[i]:
            real = [j for j in range(len(keys)) if padding_mask[j]]
            for j, p_ij in zip(real, softmax([score(queries[i], keys[j], i, j) for j in real])):
                y_i = y_i + p_ij * values[j]
                t = None if relative_value is None else column(j - i, relative_value.shape[1], window)
                if t is not None:
                    y_i = y_i + p_ij * relative_value[:, t]
        outputs.append(y_i)
    return torch.stack(outputs)


# --- whole mixers ---

def self_attention(x, padding_mask, weights, heads, window):
    """y = Wo (concat_h sum_j softmax_j(content + fixed + dynamic + key-based dynamic) v_j + depthwise(v)): a term
    whose table is not in the weights is left out  [eq. 1, 4, 5, 6, 7].  (B, N, C) -> (B, N, C)"""
    q, k, v = (projection(x, padding_mask, weights, name) for name in ("query", "key", "value"))  # (B, N, C) each
    d = x.shape[-1] // heads
    sequences = []
    for b in range(len(x)):
        outputs = []
        for h in range(heads):
            block = slice(h * d, (h + 1) * d)

            def score(q_i, k_j, i, j):
                total = content_score(q_i, k_j)
                if "fixed" in weights:
                    total = total + fixed_score(weights["fixed"][h], i, j, window)
                if "dynamic" in weights:
                    total = total + dynamic_score(q_i, weights["dynamic"], i, j, window)
                if "key_dynamic" in weights:
                    total = total + key_dynamic_score(k_j, weights["key_dynamic"], i, j, window)
                return total

            outputs.append(attend(q[b, :, block], k[b, :, block], v[b, :, block], padding_mask[b], score,
                                  weights.get("relative_value"), window))  # (N, d)
        sequences.append(torch.cat(outputs, dim=-1))  # (N, C)
    mixed = torch.stack(sequences)  # (B, N, C)
    if "depthwise.weight" in weights:
        mixed = mixed + depthwise_convolution(zero_padding(v, padding_mask), weights, "depthwise")
    return zero_padding(linear(mixed, weights, "output"), padding_mask)


def span_convolution(kernel, values, padding_mask, i):
    """sum_r softmax(kernel)_r v_{i+r}: taps on padding or beyond the ends hold zeros, and still share in the softmax.
    kernel (K,), values (N, d) of one head of one sequence."""
    k, y_i = len(kernel) // 2, torch.zeros_like(values[0])
    for r, p_r in zip(range(-k, k + 1), softmax(list(kernel))):
        if 0 <= i + r < len(values) and padding_mask[i + r]:
            y_i = y_i + p_r * values[i + r]
    return y_i


def convbert(x, padding_mask, weights, heads):
    """H/2 heads of plain attention, then H/2 heads whose kernel each position makes from its query and its neighbours:
    kernel_i = Wk (q_i * s_i), s = pointwise(depthwise(x))  [Jiang et al. 2020].  (B, N, C) -> (B, N, C)"""
    half, d = heads // 2, x.shape[-1] // heads
    q, k, v = (linear(x, weights, name) for name in ("query", "key", "value"))  # (B, N, C/2) twice, (B, N, C)
    s = linear(depthwise_convolution(zero_padding(x, padding_mask), weights, "depthwise"), weights, "pointwise")
    kernels = linear(q * s, weights, "kernel")  # (B, N, (H/2) K), tap t of head h at h * K + t
    taps = kernels.shape[-1] // half
    sequences = []
    for b in range(len(x)):
        outputs = []
        for h in range(half):
            block = slice(h * d, (h + 1) * d)
            plain = lambda q_i, k_j, i, j: content_score(q_i, k_j)
            outputs.append(attend(q[b, :, block], k[b, :, block], v[b, :, block], padding_mask[b], plain))  # (N, d)
        for h in range(half):
            head_values = v[b, :, (half + h) * d:(half + h + 1) * d]  # the second half of the values
            head_kernels = kernels[b, :, h * taps:(h + 1) * taps]
            outputs.append(torch.stack([span_convolution(head_kernels[i], head_values, padding_mask[b], i)
                                        for i in range(x.shape[1])]))  # (N, d)
        sequences.append(torch.cat(outputs, dim=-1))  # (N, C)
    return zero_padding(linear(torch.stack(sequences), weights, "output"), padding_mask)


def gated(x, padding_mask, weights):
    """g_{i,c} = a_{i,c} / (1 + exp(-b_{i,c})), (a, b) the halves of the input projection; 0 at padding  [Wu et al. 2019]"""
    projected = linear(x, weights, "input")  # (B, N, 2C)
    C = projected.shape[-1] // 2
    return zero_padding(projected[..., :C] / (1 + torch.exp(-projected[..., C:])), padding_mask)  # (B, N, C)


def light_convolution(x, padding_mask, weights, heads, dilation):
    """z_{i,c} = sum_r softmax(w_h)_r g_{i + r D, c}, h the head of channel c; a tap beyond the ends adds nothing.
    (B, N, C) -> (B, N, C)"""
    g = gated(x, padding_mask, weights)
    kernels = [softmax(list(row)) for row in weights["weight"]]  # kernels[h][t]
    k, d, z = len(kernels[0]) // 2, x.shape[-1] // heads, []
    for sequence in g:
        for i in range(len(sequence)):
            for c in range(x.shape[-1]):
                taps = [kernels[c // d][r + k] * sequence[i + r * dilation, c]
                        for r in range(-k, k + 1) if 0 <= i + r * dilation < len(sequence)]
                z.append(sum(taps))
    return zero_padding(linear(torch.stack(z).reshape(x.shape), weights, "output"), padding_mask)


def dynamic_convolution(x, padding_mask, weights, heads):
    """The same, D = 1, with kernels of each position: w_{i,h} = the h-th K rows of the kernel projection times g_i."""
    g = gated(x, padding_mask, weights)
    taps, d = len(weights["kernel.weight"]) // heads, x.shape[-1] // heads
    z = []
    for sequence in g:
        for i in range(len(sequence)):
            logits = weights["kernel.weight"] @ sequence[i]  # (H K,)
            everywhere = torch.ones(len(sequence), dtype=torch.bool)  # g is 0 at padding already
            z += [span_convolution(logits[h * taps:(h + 1) * taps], sequence[:, h * d:(h + 1) * d], everywhere, i)
                  for h in range(heads)]
    return zero_padding(linear(torch.stack(z).reshape(x.shape), weights, "output"), padding_mask)
