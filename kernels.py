"""From a row of numbers per query to a map of scores: the definition, and an equal version.

Optional reading. To read `attention` in attention.py, one sentence of this file is enough:
add_relative_scores(scores, rows) adds rows[i, j - i] to the score of query i and key j.

A row holds one number for each relative position r = j - i from -k to k: K = 2k + 1 numbers. The
number for r is in column r + k. In code, the reach k has the name `reach`. A key farther away than
k gets the number at the end of the row (beyond = "clip": Shaw et al. 2018; the default) or 0
(beyond = "zero").

    scores_by_index      the definition: an index says for every score which column it reads
    scores_by_skew       the same map without an index: the rows are extended, and then skewed
    extend               more columns at the two ends of the rows
    skew                 row i is moved to the right by i columns
    add_relative_scores  scores + map, made in one of these two ways; attention uses it
    relative_values      what a vector s_r for each r adds to the outputs
    convolve             every query has a kernel of its own
    attention_in_blocks  long sequences, one block of queries at a time, to save memory

The skew needs no index (an integer for each of the N x N scores, the same for all sequences and
heads), but its extended rows need the memory of two maps for a moment. Why two ways? On one CPU, a
training step takes 2 to 10 % less time with the skew in bf16, which training uses there (128 to
512 tokens), and 3 to 30 % more in float32 (docs/speed.md, "Attention alone"). No GPU was measured.

There is no backward pass to read: all functions are made of PyTorch's own operations, and autograd
knows how to go back through these. Letters: B sequences, H heads, N keys, n queries (n = N, except
in blocks of a long sequence), d channels per head, W columns of any table.
"""

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

BEYOND = ("clip", "zero")  # what a key farther away than k gets
SHORT = 64  # up to this many queries or keys, the map is always made with the index
CONVOLVE_BLOCK = 32  # queries whose kernels `convolve` applies as one matrix
BLOCK = 128  # queries per block of `attention_in_blocks`


# --- From rows to the map of scores ---------------------------------------------------------------


def scores_by_index(rows, N, beyond="clip", first=0):
    """The definition: scores[i, j] = rows[i, r + k] with r = j - i, and the rule of `beyond`.

    Example with N = n = 3 and K = 3. The numbers a, b, c of a row belong to r = -1, 0, 1:

        rows         r           column      the map ("clip")   ("zero")
        a0 b0 c0      0  1  2    1 2 2       b0 c0 c0           b0 c0 0
        a1 b1 c1     -1  0  1    0 1 2       a1 b1 c1           a1 b1 c1
        a2 b2 c2     -2 -1  0    0 0 1       a2 a2 b2           0  a2 b2

    Args:
        rows: (B, H, n, K), K odd; there may be any leading dimensions.
        N: the number of keys.
        beyond: "clip" or "zero".
        first: the position of the first query, which is not 0 in a block of a long sequence. With
            first = 1, the two rows a1 b1 c1 and a2 b2 c2 give the last two lines of the map. For
            the rows of the keys it is negative (attention.attention).
    Returns:
        (B, H, n, N).
    """
    n, K = rows.shape[-2:]
    reach = K // 2

    # r = j - i for every query i and key j: the second drawing
    i = torch.arange(first, first + n, device=rows.device)
    j = torch.arange(N, device=rows.device)
    r = j[None, :] - i[:, None]  # (n, N)

    # the column of each r (the third drawing), and the number in this column
    column = r.clamp(-reach, reach) + reach  # (n, N)
    scores = rows.gather(-1, column.expand(*rows.shape[:-1], N))  # (B, H, n, N)

    if beyond == "zero":
        scores = scores.masked_fill(r.abs() > reach, 0)
    return scores


def scores_by_skew(rows, N, beyond="clip", first=0):
    """Equal to `scores_by_index`, without an index. Same arguments and result.

    The example again: N = n = 3 and K = 3. First, every row is extended until it has a column for
    each r between a query and a key, here from -2 to 2, and one more (-), which is never read. (In
    the code it holds the end number once more, or 0.) Then row i is moved to the right by i
    columns, so that the columns, which stood for r, stand for j:

        r:  -2 -1  0  1  2                  j:  0  1  2
            a0 a0 b0 c0 c0 -          a0 a0 |b0 c0 c0
            a1 a1 b1 c1 c1 -           - a1 |a1 b1 c1
            a2 a2 b2 c2 c2 -          c1  - |a2 a2 b2

    The map is on the right of the line, after n - 1 = 2 columns. What is on the left of it is not
    used: it would belong to keys before key 0, or is the end of the row above (- and c1).
    """
    n, K = rows.shape[-2:]
    reach = K // 2

    # the farthest key to the left: from the last query to key 0
    # the farthest key to the right: from the first query to key N - 1
    farthest_left = first + n - 1
    farthest_right = N - 1 - first

    # One column for each r from -farthest_left to farthest_right, and the spare one. In the
    # drawing both are 2 and the reach is 1: one more column on the left, and 1 + 1 on the right.
    left = farthest_left - reach
    right = farthest_right - reach + 1
    wide = extend(rows, left, right, beyond)  # (B, H, n, K) -> (B, H, n, N + n)
    return skew(wide)[..., n - 1 :]  # (B, H, n, N + n - 1) -> (B, H, n, N)


def extend(rows, left, right, beyond="clip"):
    """`left` and `right` more columns at the two ends of the rows; fewer columns if negative.

    The new columns hold what lies beyond k positions. Example: K = 3, left = 1, right = 2:

        rows        "clip"              "zero"              left = -1, right = 0
        a b c       a a b c c c         0 a b c 0 0         b c

    (..., K) -> (..., left + K + right).
    """
    if beyond == "zero":
        return F.pad(rows, (left, right))  # it removes columns where a number is negative

    # a, repeated `left` times, and c, repeated `right` times: 0 times if the number is negative
    K = rows.shape[-1]
    left_end = rows[..., :1].expand(*rows.shape[:-1], max(0, left))
    right_end = rows[..., -1:].expand(*rows.shape[:-1], max(0, right))

    # the row itself, without the columns that are removed
    kept = rows[..., max(0, -left) : K - max(0, -right)]
    return torch.cat([left_end, kept, right_end], dim=-1)


def skew(x):
    """Row i is moved to the right by i columns: (..., n, W) -> (..., n, W - 1), a view of x.

    Example: n = 3, W = 6. In memory the rows follow each other, 6 numbers each: all a, then all b,
    then all c. Without the last n = 3 numbers (-), 15 are left. They are cut into 3 pieces again,
    now of W - 1 = 5 numbers each:

        a a a a a a b b b b b b c c c - - -
        |-- 5 ----|-- 5 ----|-- 5 ----|

        a a a a a a                 a a a a a
        b b b b b b       ->        a b b b b
        c c c - - -                 b b c c c

    The first b is number 6, counted from 0. In lines of 6 numbers it is in column 0, and in lines
    of 5 numbers in column 1. The first c is number 12: first in column 0, then in column 2.
    This is the relative shift of Transformer-XL and the skewing of the Music Transformer.
    """
    n, W = x.shape[-2:]
    numbers = x.flatten(-2)  # (..., n * W): the 18 numbers in memory
    numbers = numbers[..., :-n]  # without the last n = 3
    return numbers.unflatten(-1, (n, W - 1))  # n W - n = n (W - 1) numbers: 3 lines of 5


def add_relative_scores(scores, rows, beyond="clip", first=0):
    """scores[i, j] + rows[i, j - i]. The sum overwrites `scores`, which saves the memory of a map.

    Autograd allows this: `scores` is a matrix product or a sum, and the backward pass of neither
    needs its result.

    Args:
        scores: (B, H, n, N).
        rows: (B, H, n, K); (H, n, K) if all sequences have the same rows; (H, 1, K) if all queries
            have the same row, too.
        beyond, first: as in `scores_by_index`.
    """
    n, N = scores.shape[-2:]
    rows = rows.to(scores.dtype)
    rows = rows.expand(*rows.shape[:-2], n, -1)  # a row for all queries becomes n equal rows

    # The index for short sequences, and for the rows of keys in a block of a long sequence. There
    # the map is transposed: with 4,096 keys and a block of 128 queries it has n = 4,096 lines (one
    # for each key) of N = 128 numbers. To be skewed, each row would become N + n = 4,224 wide; the
    # index has only 128 numbers for it.
    if min(n, N) <= SHORT or n > N:
        return scores.add_(scores_by_index(rows, N, beyond, first))
    return scores.add_(scores_by_skew(rows, N, beyond, first))


def relative_values(p, table, beyond="clip", first=0):
    """sum_j p_ij s_(j-i): the weights times a vector that depends on the relative position.

    Why? z_i = sum_j p_ij (v_j + s_(j-i)) = sum_j p_ij v_j + sum_j p_ij s_(j-i). The first sum is
    a matrix product. In the second one, a vector belongs to each pair i, j, and this function does
    not make these N x N vectors: there are only K different ones.

    First, all weights of a query that belong to the same column of the table are added up. This is
    the transpose of `scores_by_index`: there one number of a row is read at many places of the map,
    here these places are added to one number. Example with N = n = 3 and K = 3:

        weights          column      the sums ("clip")      ("zero")
        p00 p01 p02      1 2 2       0        p00  p01+p02  0    p00  p01
        p10 p11 p12      0 1 2       p10      p11  p12      p10  p11  p12
        p20 p21 p22      0 0 1       p20+p21  p22  0        p21  p22  0

    Then a sum over the K columns is left, in place of one over the N keys: z_1 gets
    p10 s_(-1) + p11 s_0 + p12 s_1 from the second line.

    Args:
        p: (B, H, n, N), the weights.
        table: (d, K), the vectors s_r.
        beyond, first: as in `scores_by_index`.
    Returns:
        (B, H, n, d).
    """
    n, N = p.shape[-2:]
    K = table.shape[-1]
    reach = K // 2

    # the column of each r = j - i, as in scores_by_index
    i = torch.arange(first, first + n, device=p.device)
    j = torch.arange(N, device=p.device)
    r = j[None, :] - i[:, None]  # (n, N)
    column = r.clamp(-reach, reach) + reach  # (n, N)

    if beyond == "zero":
        p = p.masked_fill(r.abs() > reach, 0)

    # add each weight to its column
    sums = p.new_zeros(*p.shape[:-1], K)  # (B, H, n, K)
    sums = sums.scatter_add(-1, column.expand(p.shape), p)
    return sums @ table.t()  # (B, H, n, K) (K, d) -> (B, H, n, d)


# --- Convolutions with a kernel per query ---------------------------------------------------------


def convolve(kernels, value):
    """z_i = sum_r kernels[i, r + k] v_(i+r): every query has a kernel of its own.

    A block of n queries meets the n + 2k values around it, so its kernels are a matrix, which
    `skew` makes. Example: k = 1, and a block of n = 2 queries that starts at position i:

        a0 b0 c0 0 0             [ a0 b0 c0 0  ]   [ v_(i-1) ]     [ z_i     ]
        a1 b1 c1 0 0     skew    [ 0  a1 b1 c1 ] x [ v_i     ]  =  [ z_(i+1) ]
                                                   [ v_(i+1) ]
                                                   [ v_(i+2) ]

    Args:
        kernels: (B, H, N, K), one per query.
        value: (B, H, N, d); values beyond the ends of the sequence are 0.
    Returns:
        (B, H, N, d).
    """
    N = value.shape[-2]
    reach = kernels.shape[-1] // 2

    # blocks of n queries; the last block is filled up with kernels of zeros
    n = min(N, CONVOLVE_BLOCK)
    spare = -N % n
    kernels = F.pad(kernels.to(value.dtype), (0, 0, 0, spare))  # (B, H, N + spare, K)
    kernels = kernels.unflatten(-2, (-1, n))  # (B, H, blocks, n, K)

    # The matrices of the drawing: n zeros after each kernel, here 2, and then K + n - 1 = n + 2k
    # columns, here 4.
    matrices = skew(F.pad(kernels, (0, n)))  # (B, H, blocks, n, K + n) -> (B, H, blocks, n, n + 2k)

    # The values that each block meets: k more tokens on each side. unfold(dimension, size, step)
    # cuts pieces of n + 2k values, each n after the one before. They overlap; unfold copies none.
    near = F.pad(value, (0, 0, reach, reach + spare))  # (B, H, N + spare + 2k, d)
    near = near.unfold(-2, n + 2 * reach, n)  # (B, H, blocks, d, n + 2k)

    z = matrices @ near.transpose(-1, -2)  # (B, H, blocks, n, d)
    return z.flatten(-3, -2)[..., :N, :]  # (B, H, N, d)


# --- Long sequences -------------------------------------------------------------------------------


@torch.compiler.disable  # torch.compile would unroll the loop over the blocks
def attention_in_blocks(
    attention, q, k, v, attention_mask, query_rows, key_rows, value_table, beyond, dropout
):
    """Call `attention` for BLOCK queries at a time, so that its map is never in memory as a whole.

    A block needs its own queries and their rows, and all keys and values. `checkpoint` forgets the
    map of a block after the forward pass; the backward pass computes it again, with the same
    dropout. So memory grows with N and not with N^2, for the price of a second forward pass of
    attention. But N rows of 2N - 1 columns, as those of xl, or of the sum of dynamic and alibi,
    grow with N^2.

    The first argument is the function attention.attention, which calls this one. It is passed
    because attention.py imports this file, so this file cannot import attention.py. The other
    arguments, and the result, are those of `attention`.
    """
    blocks = []
    for first in range(0, q.shape[-2], BLOCK):
        # the queries of this block, and their rows; one row for all queries stays as it is
        own = slice(first, first + BLOCK)
        rows = query_rows
        if rows is not None and rows.shape[-2] > 1:
            rows = rows[..., own, :]

        z = checkpoint(
            attention,
            q[..., own, :],
            k,
            v,
            attention_mask,
            rows,
            key_rows,
            value_table,
            beyond,
            dropout,
            first,
            use_reentrant=False,
        )
        blocks.append(z)  # (B, H, n, d)
    return torch.cat(blocks, dim=-2)  # (B, H, N, d)
