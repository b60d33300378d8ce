"""Relative-position scores: from one row of K weights a query to an N x N map of scores.

A relative row holds what query i adds to the score of a token at each relative position r = j - i:

    rows[b, h, i, r + k],   r = -k .. k,   K = 2k + 1

and the map of scores reads it off at every key j:

    scores[b, h, i, j] = rows[b, h, i, clip(j - i, -k, k) + k]        window "clip"  (Shaw et al. 2018; the default)
    scores[b, h, i, j] = rows[b, h, i, j - i + k] if |j - i| <= k     window "zero"  (0 beyond the window)

Two ways of computing it stand here, each tested against plain loops: `gather_scores`, which says it in one index, and
`relative_scores`, which every model uses. Read the first, run the second.
"""

import torch

WINDOWS = ("clip", "zero")


def gather_scores(rows, length, window="clip"):
    """The definition above, by an N x N index. Same arguments and result as `relative_scores`.

    Its backward adds every score's gradient into one of K slots, through an index: slow, and on CUDA not deterministic.
    """
    k = rows.shape[-1] // 2
    position = torch.arange(length, device=rows.device)
    r = position[None, :] - position[:, None]  # (N, N): j - i
    scores = rows.gather(-1, (r.clamp(-k, k) + k).expand(*rows.shape[:-1], length))  # (B, H, N, N)
    return scores if window == "clip" else scores.masked_fill(r.abs() > k, 0)


def relative_scores(rows, length, window="clip"):
    """Scores of every query-key pair from relative rows, without an index.

    Each row is continued to both sides by its end weight ("clip") or by 0 ("zero") until it covers every r from -(N-1)
    to N-1. Query i needs the stretch of N weights that starts at r = -i, one place earlier than query i - 1 does, so
    the flattened rows read again with a width one smaller are already in place: a view. The backward is then sums and
    slices: no index, no scatter, the same result every time.

    Args:
        rows: (B, H, N, K) weights, K odd; leading dimensions may be any.
        length: N, the number of queries (the rows' own) and of keys.
        window: "clip" or "zero", what lies beyond k positions.
    Returns:
        (B, H, N, N) scores, [b, h, i, j] for query i and key j.
    """
    N, k = length, rows.shape[-1] // 2
    if k > N - 1:  # the kernel reaches past the sequence: those weights meet no key
        rows, k = rows[..., k - (N - 1) : k + N], N - 1  # (B, H, N, 2N-1)
    first, last = rows[..., :1], rows[..., -1:]  # (B, H, N, 1)
    if window == "zero":
        first, last = torch.zeros_like(first), torch.zeros_like(last)
    left = first.expand(*rows.shape[:-1], N - 1 - k)  # r = -(N-1) .. -k-1
    right = last.expand(*rows.shape[:-1], N - k)  # r = k+1 .. N, the last of them only to make the width even
    wide = torch.cat([left, rows, right], dim=-1)  # (B, H, N, 2N): column c holds r = c - (N-1)
    shifted = wide.flatten(-2)[..., N - 1 : N - 1 + N * (2 * N - 1)]  # element (i, j) stands at i (2N-1) + j
    return shifted.unflatten(-1, (N, 2 * N - 1))[..., :N]  # (B, H, N, N)
