"""Every equation again, as plain loops over single numbers and vectors in float64: slow, and easy to check by eye.

B, N, H, d, C, k, K, i, j, r as in attention.py. `weights` is a mixer's state_dict: {parameter name: tensor}. Autograd goes
through the loops, so their gradients are references too.
"""

import math

import torch


def kernel_weight(row, r, window):
    """row[clip(r, -k, k) + k]; with window "zero", 0 where |r| > k. row: (K, ...), one entry a relative position."""
    k = len(row) // 2
    if window == "zero" and abs(r) > k:
        return torch.zeros_like(row[0])
    return row[max(-k, min(k, r)) + k]


def relative_scores(rows, length, window):
    """scores[b, h, i, j] = rows[b, h, i] at relative position j - i."""
    B, H, N, _ = rows.shape
    return torch.stack([torch.stack([torch.stack([torch.stack([
        kernel_weight(rows[b, h, i], j - i, window) for j in range(length)]) for i in range(N)])
        for h in range(H)]) for b in range(B)])


def linear(x, weights, name):
    """y = W x + b, of a vector."""
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def depthwise(x, weights, name):
    """y_i,c = sum_r beta_r,c x_(i+r),c + b_c over one sentence x (N, C); beyond the ends there is nothing. [C] eq. 2"""
    beta, bias = weights[f"{name}.weight"][:, 0], weights[f"{name}.bias"]  # (C, K), (C,)
    N, k = len(x), beta.shape[1] // 2
    y = []
    for i in range(N):
        y_i = bias
        for r in range(-k, k + 1):
            if 0 <= i + r < N:
                y_i = y_i + beta[:, r + k] * x[i + r]
        y.append(y_i)
    return torch.stack(y)


def projection(x, weights, name):
    """q, k or v of one sentence x (N, C): linear, or the first half pointwise(depthwise(x)) and the second linear(x)."""
    if f"{name}.weight" in weights:
        return torch.stack([linear(x_i, weights, name) for x_i in x])
    smoothed = depthwise(x, weights, f"{name}.depthwise")
    return torch.stack([
        torch.cat([linear(smoothed[i], weights, f"{name}.pointwise"), linear(x[i], weights, f"{name}.linear")])
        for i in range(len(x))])


def content_score(q_i, k_j):
    """q_i . k_j / sqrt(d)"""
    return sum(q_i[c] * k_j[c] for c in range(len(q_i))) / math.sqrt(len(q_i))


def fixed_score(beta, r, window):
    """beta_r, with beta (K,) of one head"""
    return kernel_weight(beta, r, window)


def dynamic_score(q_i, w, r, window):
    """q_i . w_r / sqrt(d), with w (d, K)"""
    return q_i @ kernel_weight(w.T, r, window) / math.sqrt(len(q_i))


def key_dynamic_score(k_j, u, i, j, window):
    """k_j . u_(i-j) / sqrt(d), with u (d, K)"""
    return k_j @ kernel_weight(u.T, i - j, window) / math.sqrt(len(k_j))


def softmax(scores):
    """exp(a_j) / sum_j exp(a_j), of a list of numbers"""
    largest = max(score.item() for score in scores)
    powers = [torch.exp(score - largest) for score in scores]
    return [power / sum(powers) for power in powers]


def without_padding(x, real):
    """x (N, C) with zeros where `real` (N,) is False."""
    return torch.stack([x_i if is_real else torch.zeros_like(x_i) for x_i, is_real in zip(x, real)])


def self_attention(x, padding_mask, weights, heads, window):
    """z_i = sum_j softmax_j(a_ij) v_j, a_ij the sum of the terms that `weights` holds; then depthwise, then output."""
    convolutional = any(".pointwise." in name for name in weights)
    outputs = []
    for x_b, real in zip(x, padding_mask.tolist()):
        if convolutional:
            x_b = without_padding(x_b, real)
        q, k, v = (projection(x_b, weights, name) for name in ("query", "key", "value"))
        N, d = len(x_b), x_b.shape[1] // heads
        added = depthwise(without_padding(v, real), weights, "depthwise") if "depthwise.weight" in weights else None
        for i in range(N):
            z_i = []
            for h in range(heads):
                own = slice(h * d, (h + 1) * d)
                reals, scores = [j for j in range(N) if real[j]], []
                for j in reals:
                    a_ij = content_score(q[i, own], k[j, own])
                    if "fixed" in weights:
                        a_ij = a_ij + fixed_score(weights["fixed"][h], j - i, window)
                    if "dynamic" in weights:
                        a_ij = a_ij + dynamic_score(q[i, own], weights["dynamic"], j - i, window)
                    if "key_dynamic" in weights:
                        a_ij = a_ij + key_dynamic_score(k[j, own], weights["key_dynamic"], i, j, window)
                    scores.append(a_ij)
                z_i.append(sum(p_ij * v[j, own] for p_ij, j in zip(softmax(scores), reals)))
            z_i = torch.cat(z_i) if added is None else torch.cat(z_i) + added[i]
            outputs.append(linear(z_i, weights, "output"))
    return torch.stack(outputs).view(x.shape)


def convbert(x, padding_mask, weights, heads, window=None):
    """H/2 attention heads, then H/2 heads of z_i = sum_r p_i,r v_(i+r), p_i = softmax_r(kernel(c_i * q_i)). [J]"""
    half, outputs = heads // 2, []
    for x_b, real in zip(x, padding_mask.tolist()):
        x_b = without_padding(x_b, real)
        N, C = x_b.shape
        d = C // heads
        q, k, v = (projection(x_b, weights, name) for name in ("query", "key", "value"))  # widths C/2, C/2, C
        v = without_padding(v, real)
        smoothed = depthwise(x_b, weights, "depthwise")
        K = weights["kernel.bias"].shape[0] // half
        for i in range(N):
            z_i, reals = [], [j for j in range(N) if real[j]]
            for h in range(half):
                own = slice(h * d, (h + 1) * d)
                p = softmax([content_score(q[i, own], k[j, own]) for j in reals])
                z_i.append(sum(p_ij * v[j, own] for p_ij, j in zip(p, reals)))
            c_i = linear(smoothed[i], weights, "pointwise")
            logits = linear(c_i * q[i], weights, "kernel")
            for h in range(half):
                own = slice(C // 2 + h * d, C // 2 + (h + 1) * d)
                p = softmax([logits[h * K + t] for t in range(K)])  # all K taps, whatever they meet
                taps = [(t, i + t - K // 2) for t in range(K) if 0 <= i + t - K // 2 < N]
                z_i.append(sum(p[t] * v[j, own] for t, j in taps))
            outputs.append(linear(torch.cat(z_i), weights, "output"))
    return torch.stack(outputs).view(x.shape)
