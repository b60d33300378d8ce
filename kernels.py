"""From a row of K weights per query to a map of N x N scores, and back: where the time is spent.

A relative position is r = j - i: key j seen from query i. A row holds what query i adds to the
score of a key at each relative position from -k to k, so it has K = 2k + 1 columns:

    rows[b, h, i, r + k]        r = -k .. k

Letters: B sequences, H heads, N keys, n queries, d channels per head, k reach, K kernel size.

The map of scores reads the row at every key j:

    scores[b, h, i, j] = rows[b, h, i, clip(j - i, -k, k) + k]        beyond = "clip"
    scores[b, h, i, j] = rows[b, h, i, j - i + k] if |j - i| <= k     beyond = "zero"
                         0 otherwise

With "clip" (Shaw et al. 2018; the default) every key farther away than k takes the end weight of
its side. With "zero" such keys get nothing. In attention, a weight of a row is added to a score
before the softmax: it is not one of the weights p_ij that the softmax makes.

From rows to the map. The first four functions compute the same map, and the tests compare each of
them with plain loops:

    gather_scores        the definition, with an index of N x N numbers; no model uses it
    relative_scores      no index: the rows are shifted into place by a view
    band_scores          the same, with a backward pass of its own
    add_band             the same, added to a map in place: what attention uses
    widen                more columns for narrow rows, so that they can be added to wider ones

The band of a map is its diagonals from r = -k to r = k. From the map back to rows:

    sum_bands            the sum of each diagonal: the backward pass of the functions above
    band_sums            the same, with a backward pass of its own: Shaw's relative values use it

If K is so large that every r between a query and a key has its own column, no end weight is
repeated. Then scores_of_covering_rows does the work of relative_scores, and bands_of_strip that of
sum_bands, with fewer copies.

What is built from these functions:

    key_scores           rows that belong to the keys
    convolve             a kernel per query; only the band of the map is computed
    attention_in_blocks  attention for long sequences, one block of queries at a time

To use it in your own attention function, copy this file: it needs only torch.

    scores = add_band(scores, rows)      (B, H, N, N) + rows (B, H, N, K), (H, N, K) or (H, 1, K)
    z = attention_in_blocks(my_attention, query, key, value, mask, rows, dropout=0.1)

The first line adds the rows to scores in place, before the softmax. Softmax and dropout are yours.
On one machine, the gradient of the rows is the same to the bit every time.

The second line calls my_attention for one block of n queries at a time. The backward pass calls it
again for each block, with the same dropout. So memory grows with N and not with N^2. Inside
my_attention, write the first line as add_band(scores, rows, beyond, first), where `first` is the
position of the block's first query. Without `first`, all blocks except the first one would read
wrong weights, and no error would be raised. docs/exchange.md has a complete my_attention.
"""

import torch
from torch.nn import functional as F

BEYOND = ("clip", "zero")  # what lies beyond k positions
STRIP = 64  # queries whose rows are shifted at a time: their copy still fits into the CPU cache
CONVOLVE_BLOCK = 32  # queries whose kernels `convolve` applies as one matrix
BLOCK = 128  # queries per block of `attention_in_blocks`


# --- From rows to the map of scores ---------------------------------------------------------------


def gather_scores(rows, length, beyond="clip", first=0):
    """The definition above, by an index. Same arguments and result as `relative_scores`.

    The index has as many numbers as the map. The backward pass adds the gradient of every score
    into one of K slots: this is slow, and on CUDA the order of the additions is not fixed.
    """
    n, K = rows.shape[-2:]
    k = K // 2

    # r = j - i for every query i and key j
    i = torch.arange(first, first + n, device=rows.device)
    j = torch.arange(length, device=rows.device)
    r = j[None, :] - i[:, None]  # (n, N)

    # the column of each r, and the weight in this column
    column = r.clamp(-k, k) + k  # (n, N)
    scores = rows.gather(-1, column.expand(*rows.shape[:-1], length))  # (B, H, n, N)

    if beyond == "zero":
        scores = scores.masked_fill(r.abs() > k, 0)
    return scores


def relative_scores(rows, length, beyond="clip", first=0):
    """Scores of every query and key from relative rows, without an index.

    Example: N = n = 3 and K = 3, so k = 1. Each row has weights a, b, c for r = -1, 0, 1.

        rows            the map ("clip")
        a0 b0 c0        b0 c0 c0
        a1 b1 c1        a1 b1 c1
        a2 b2 c2        a2 a2 b2

    First each row is extended to both sides, until it covers every r that a query can meet, here
    from -2 to 2. With "clip" the end weights are repeated; with "zero" the new columns are 0. Each
    row gets one more column at its end (marked "-"), so that it has N + n columns:

        r:  -2 -1  0  1  2  -
            a0 a0 b0 c0 c0 c0
            a1 a1 b1 c1 c1 c1
            a2 a2 b2 c2 c2 c2

    Query 0 needs the N = 3 columns from r = 0 on, query 1 those from r = -1 on, query 2 those from
    r = -2 on: each query starts one column earlier than the previous one. In memory the rows
    follow each other, 6 numbers each, so the starts are 6 - 1 = 5 numbers apart:

        a0 a0 b0 c0 c0 c0 a1 a1 b1 c1 c1 c1 a2 a2 b2 c2 c2 c2
              [--0---]       [--1---]       [--2---]

    So the map is a view: rows of 3 numbers whose starts are 5 numbers apart. Making the view copies
    nothing. The distance between the starts is N + n - 1; without the additional column it would be
    0 for N = n = 1.

    A block of a long sequence has fewer queries than keys. With the queries 1 and 2 of the same
    sequence (n = 2, first = 1), each row has N + n = 5 columns:

        r:  -2 -1  0  1  -
            a1 a1 b1 c1 c1      query 1 needs the columns from r = -1 on: a1 b1 c1
            a2 a2 b2 c2 c2      query 2 needs those from r = -2 on:       a2 a2 b2

    Args:
        rows: (B, H, n, K) weights, K odd; there may be any leading dimensions.
        length: N, the number of keys.
        beyond: "clip" or "zero", what lies beyond k positions.
        first: position of the first query; the queries are first .. first + n - 1. Below 0 if they
            begin before key 0, as in `key_scores`. The last query must be at least -(k + 1), and
            the first one at most N + k.
    Returns:
        (B, H, n, N) scores; [b, h, i, j] belongs to query first + i and key j.
    """
    N = length
    n, K = rows.shape[-2:]
    # how many columns to add on each side; if negative, how many columns of the row meet no key
    # (see extra_columns)
    left, right = extra_columns(n, N, K, first)

    # The columns that extend a row: its end weights, or zeros. This is the rule of `beyond`. It is
    # also applied in gather_scores, widen and key_scores. sum_bands_of_strip is its backward pass.
    left_end = rows[..., :1]  # (B, H, n, 1)
    right_end = rows[..., -1:]  # (B, H, n, 1)
    if beyond == "zero":
        left_end = torch.zeros_like(left_end)
        right_end = torch.zeros_like(right_end)

    # the columns of the row itself; if k reaches beyond the sequence, the outer ones meet no key
    used = rows[..., max(0, -left) : K - max(0, -right)]

    # (B, H, n, N + n): column c is r = c - (first + n - 1)
    wide = torch.cat(
        [
            left_end.expand(*rows.shape[:-1], max(0, left)),
            used,
            right_end.expand(*rows.shape[:-1], max(0, right) + 1),
        ],
        dim=-1,
    )

    # (i, j) is number (n - 1) + i (N + n - 1) + j of the flattened rows
    flat = wide.flatten(-2)[..., n - 1 :]  # (B, H, n * (N + n) - (n - 1))
    scores = flat.unfold(-1, N, N + n - 1)  # (B, H, n, N); one row too many if N = 1
    return scores[..., :n, :]  # (B, H, n, N)


def extra_columns(n, N, K, first):
    """How many relative positions beyond k occur on the left and on the right.

    The largest distance to the left is from the last query to key 0: first + n - 1. The largest
    to the right is from the first query to key N - 1: N - 1 - first. A negative result says how
    many columns of the row meet no key.
    """
    k = K // 2
    return (first + n - 1) - k, (N - 1 - first) - k


def covers_every_r(n, N, K, first):
    """Whether a row has a column for every relative position that a query can meet, and K > 1."""
    left, right = extra_columns(n, N, K, first)

    # With K = 1, the view of scores_of_covering_rows would have a step of K - 1 = 0.
    return left <= 0 and right <= 0 and K > 1


def scores_of_covering_rows(rows, length, first=0):
    """`relative_scores` of rows that cover every r. Nothing is extended, so nothing is copied.

    Example: N = n = 3 and K = 5. In memory the rows follow each other. Each query begins to read
    K - 1 = 4 numbers after the previous query, so the map is a view of the rows:

        r:  -2 -1  0  1  2
            a0 b0 c0 d0 e0      query 0 reads c0 d0 e0,
            a1 b1 c1 d1 e1      query 1 reads b1 c1 d1,
            a2 b2 c2 d2 e2      query 2 reads a2 b2 c2
    """
    n, K = rows.shape[-2:]
    k = K // 2

    # query i reads r = -(first + i), ..., from column k - (first + i) on
    flat = rows.flatten(-2)[..., k - first :]  # (B, H, n * K - (k - first))
    return flat.unfold(-1, length, K - 1)[..., :n, :]  # (B, H, n, N)


def check_window(K, beyond):
    """ValueError if rows of K columns have no middle column, or `beyond` is unknown.

    Without this check, both would give wrong scores or gradients and no error.
    """
    if K % 2 == 0:
        raise ValueError(f"a row must have an odd number of columns, not {K}")
    if beyond not in BEYOND:
        raise ValueError(f"beyond must be one of {', '.join(BEYOND)}, not {beyond!r}")


def band_scores(rows, length, beyond="clip", first=0):
    """Same arguments and result as `relative_scores`, with the backward pass `sum_bands`."""
    check_window(rows.shape[-1], beyond)
    return BandScores.apply(rows, length, beyond, first)


class BandScores(torch.autograd.Function):
    """relative_scores; the gradient of rows[i, r + k] is the sum over the keys that used it.

    In all these backward passes, None means: no gradient for this argument.
    """

    @staticmethod
    def forward(ctx, rows, length, beyond, first):
        ctx.settings = rows.shape[-1], beyond, first
        return relative_scores(rows, length, beyond, first)

    @staticmethod
    def backward(ctx, gradient):
        return sum_bands(gradient, *ctx.settings), None, None, None


def add_band(scores, rows, beyond="clip", first=0):
    """scores plus the map of rows. The sum overwrites `scores`.

    Args:
        scores: (B, H, n, N).
        rows: (B, H, n, K); (H, n, K) if all sequences have the same rows; (H, 1, K) if all queries
            have the same row, too.
        beyond, first: as in `relative_scores`.
    Returns:
        (B, H, n, N).
    Raises:
        ValueError: K is even, or `beyond` is unknown. band_scores and band_sums raise it, too.
    """
    check_window(rows.shape[-1], beyond)

    # one row for all queries becomes n rows, by a view
    n = scores.shape[-2]
    rows = rows.expand(*rows.shape[:-2], n, -1)  # (..., 1 or n, K) -> (..., n, K)
    return AddBand.apply(scores, rows, beyond, first)


class AddBand(torch.autograd.Function):
    """scores + relative_scores(rows), in place, without a second map in memory."""

    @staticmethod
    def forward(ctx, scores, rows, beyond, first):
        ctx.settings = rows.shape[-1], beyond, first
        N = scores.shape[-1]

        # torch.compile fuses the map and the sum into one loop by itself.
        if torch.compiler.is_compiling():
            return scores + relative_scores(rows.to(scores.dtype), N, beyond, first)

        # A strip of queries at a time: its map is still in the CPU cache when it is added.
        # mark_dirty tells autograd that `scores` is changed in place.
        ctx.mark_dirty(scores)
        score_strips = scores.split(STRIP, dim=-2)
        row_strips = rows.split(STRIP, dim=-2)
        strips = zip(score_strips, row_strips, strict=True)
        for number, (score_strip, row_strip) in enumerate(strips):
            row_strip = row_strip.to(scores.dtype)
            score_strip += scores_of_strip(row_strip, N, beyond, first + number * STRIP)
        return scores

    @staticmethod
    def backward(ctx, gradient):
        # Rows without parameters, such as ALiBi's, need no gradient.
        if not ctx.needs_input_grad[1]:
            return gradient, None, None, None

        # (B, H, n, K); if the rows were (H, n, K), autograd sums this over B. It also converts the
        # sums to the dtype of the rows.
        row_gradient = sum_bands(gradient, *ctx.settings)
        return gradient, row_gradient, None, None


def scores_of_strip(rows, length, beyond, first):
    """`relative_scores`, without a copy where none is needed."""
    # One row for all queries is a view with stride 0. It has to be copied in any case, and
    # relative_scores copies only the columns that the strip needs.
    n, K = rows.shape[-2:]
    is_one_row = rows.stride(-2) == 0
    if covers_every_r(n, length, K, first) and not is_one_row:
        return scores_of_covering_rows(rows, length, first)
    return relative_scores(rows, length, beyond, first)


def widen(rows, width, beyond="clip"):
    """Extend rows of K columns to `width` columns. No score changes.

    Example: K = 3, so r = -1, 0, 1, and a width of 5, so r = -2 .. 2. The new columns hold what
    lies beyond k positions, the end weight of their side or 0:

        rows            "clip"            "zero"
        a0 b0 c0        a0 a0 b0 c0 c0    0 a0 b0 c0 0
        a1 b1 c1        a1 a1 b1 c1 c1    0 a1 b1 c1 0

    Args:
        rows: (..., K), K odd.
        width: the number of columns of the result, odd and at least K.
        beyond: what lies beyond k positions, "clip" or "zero".
    Returns:
        (..., width).
    """
    # columns to add on each side
    extra = (width - rows.shape[-1]) // 2
    if extra == 0:
        return rows

    # what the new columns hold
    left = rows[..., :1]  # (..., 1)
    right = rows[..., -1:]  # (..., 1)
    if beyond == "zero":
        left = torch.zeros_like(left)
        right = torch.zeros_like(right)
    left = left.expand(*rows.shape[:-1], extra)  # (..., extra)
    right = right.expand(*rows.shape[:-1], extra)  # (..., extra)
    return torch.cat([left, rows, right], dim=-1)  # (..., extra + K + extra)


# --- And back: from the map to sums per relative position -----------------------------------------


def sum_bands(scores, K, beyond="clip", first=0):
    """sums[i, r + k] = sum of scores[i, j] over the keys j at relative position r.

    With "clip", the ends also sum all keys that are farther away. `relative_scores` is a linear map
    from rows to scores, and this is its transpose: it gives the gradient of the rows. The order of
    the additions never varies, so on one machine with the same settings the result is the same to
    the bit every time.

    Args:
        scores: (B, H, n, N).
        K: kernel size, odd.
        beyond, first: as in `relative_scores`.
    Returns:
        (B, H, n, K).
    """
    # torch.compile does not write the padded copy to memory, so it takes all queries at once.
    queries_per_strip = STRIP
    if torch.compiler.is_compiling():
        queries_per_strip = scores.shape[-2]

    sums = []
    for number, score_strip in enumerate(scores.split(queries_per_strip, dim=-2)):
        first_of_strip = first + number * queries_per_strip
        n, N = score_strip.shape[-2:]
        if covers_every_r(n, N, K, first_of_strip):
            sums.append(bands_of_strip(score_strip, K, first_of_strip))
        else:
            sums.append(sum_bands_of_strip(score_strip, K, beyond, first_of_strip))
    return torch.cat(sums, dim=-2)


def bands_of_strip(scores, K, first):
    """`sum_bands` of a strip in which every score has a column of its own: nothing is summed.

    Example: N = n = 3, K = 5. Each row is padded on both sides, here with k = 2 zeros. Then row i
    is read from its column i on, 5 numbers:

        0 0 s00 s01 s02 0 0        r:   -2  -1   0   1   2
        0 0 s10 s11 s12 0 0              0   0 s00 s01 s02
        0 0 s20 s21 s22 0 0              0 s10 s11 s12   0
                                       s20 s21 s22   0   0
    """
    n, N = scores.shape[-2:]
    k = K // 2

    # Key j is moved to column j + k - first. So r = j - (first + i) is in column i + r + k.
    padded = F.pad(scores, (k - first, n + k - N + first))  # (B, H, n, n + K - 1)
    return padded.flatten(-2).unfold(-1, K, n + K)  # (B, H, n, K)


def sum_bands_of_strip(scores, K, beyond, first):
    """`sum_bands` for a few queries.

    Example: N = n = 3, K = 3. The scores are padded with n - 1 = 2 zeros on both sides:

        0 0 s00 s01 s02 0 0
        0 0 s10 s11 s12 0 0
        0 0 s20 s21 s22 0 0

    Row i is then read from its column i on. In memory these starts are 7 + 1 = 8 numbers apart,
    so this is a view again. Now each column holds one relative position:

        r:   -2  -1   0   1   2
              0   0 s00 s01 s02
              0 s10 s11 s12   0
            s20 s21 s22   0   0

    The columns -1, 0, 1 are the result. With "clip", column -2 is added to column -1, and column
    2 to column 1.
    """
    n, N = scores.shape[-2:]
    left, right = extra_columns(n, N, K, first)

    # the diagonals of the map as columns: column c is r = c - (first + n - 1)
    padded = F.pad(scores, (n - 1, n - 1))  # (B, H, n, N + 2n - 2)
    diagonals = padded.flatten(-2).unfold(-1, N + n - 1, N + 2 * n - 1)  # (B, H, n, N + n - 1)

    # the columns within the window; those that meet no key get the sum 0
    start = max(0, left)
    stop = N + n - 1 - max(0, right)
    sums = F.pad(diagonals[..., start:stop], (max(0, -left), max(0, -right)))  # (B, H, n, K)

    # the keys beyond the window took the end weights
    if beyond == "clip":
        sums[..., 0] += diagonals[..., :start].sum(-1)
        sums[..., -1] += diagonals[..., stop:].sum(-1)
    return sums


def band_sums(scores, K, beyond="clip", first=0):
    """`sum_bands` with a gradient."""
    check_window(K, beyond)
    return BandSums.apply(scores, K, beyond, first)


class BandSums(torch.autograd.Function):
    """sum_bands; its transpose is relative_scores."""

    @staticmethod
    def forward(ctx, scores, K, beyond, first):
        ctx.settings = scores.shape[-1], beyond, first
        return sum_bands(scores, K, beyond, first)

    @staticmethod
    def backward(ctx, gradient):
        return relative_scores(gradient, *ctx.settings), None, None, None


# --- Rows that are made by the keys ---------------------------------------------------------------


def key_scores(rows, n, beyond="clip", first=0):
    """scores[i, j] = rows[j, clip(i - j, -k, k) + k]: the row belongs to the key.

    Example: N = 3, K = 3, each key has weights a, b, c for queries at i - j = -1, 0, 1. The map is
    that of `relative_scores` with queries and keys exchanged, so it is transposed:

        rows of the keys    map of the keys    transposed ("clip")
        a0 b0 c0            b0 c0 c0           b0 a1 a2
        a1 b1 c1            a1 b1 c1           c0 b1 a2
        a2 b2 c2            a2 a2 b2           c0 c1 b2

    Only keys within k of one of the queries need the map. For every other key all queries are
    beyond the window, on the same side. Example of a block: 10 keys, k = 1, the queries 4 and 5:

        keys 0 1 2      before: both queries are to their right, so they give the end weight c
        keys 3 4 5 6    near: their map has 4 rows, one per key, and 2 columns, one per query
        keys 7 8 9      after: both queries are to their left, so they give the end weight a

    Args:
        rows: (B, H, N, K) or (H, N, K), one row per key. Unlike queries, keys cannot share one row.
        n, first: the queries are first .. first + n - 1.
        beyond: "clip" or "zero".
    Returns:
        (B, H, n, N) scores.
    """
    N, K = rows.shape[-2:]
    k = K // 2

    # The keys start .. stop - 1 are within k of a query. In the call below they take the place of
    # the queries, and our queries that of the keys. Positions are counted from our first query: in
    # the example the keys begin at 3 - 4 = -1.
    start = max(0, first - k)
    stop = min(N, first + n + k)
    near = band_scores(rows[..., start:stop, :], n, beyond, start - first)  # (B, H, near keys, n)

    # keys before them see all queries on their right, keys after them on their left
    before = rows[..., :start, -1:]  # (B, H, keys before, 1)
    after = rows[..., stop:, :1]  # (B, H, keys after, 1)
    if beyond == "zero":
        before = torch.zeros_like(before)
        after = torch.zeros_like(after)
    before = before.expand(*before.shape[:-1], n)  # (B, H, keys before, n)
    after = after.expand(*after.shape[:-1], n)  # (B, H, keys after, n)

    by_key = near
    if start > 0 or stop < N:
        by_key = torch.cat([before, near, after], dim=-2)  # (B, H, N, n)
    return by_key.transpose(-1, -2)  # (B, H, n, N)


# --- Convolutions with a kernel per query ---------------------------------------------------------


def convolve(rows, value):
    """z_i = sum_r rows[i, r + k] v_(i+r): every query has a kernel of its own.

    This is the map of scores ("zero") times the values, computed for n queries at a time with the
    n + 2k values within their reach. Example: k = 1, a block of n = 2 queries that starts at
    position i, weights a, b, c:

        [ a0 b0 c0 0  ]   [ v_(i-1) ]     [ z_i     ]
        [ 0  a1 b1 c1 ] x [ v_i     ]  =  [ z_(i+1) ]
                          [ v_(i+1) ]
                          [ v_(i+2) ]

    Args:
        rows: (B, H, N, K), a kernel per query.
        value: (B, H, N, d); values beyond the ends of the sequence are 0.
    Returns:
        (B, H, N, d).
    """
    N = value.shape[-2]
    k = rows.shape[-1] // 2

    # blocks of n queries; the last block is filled up with kernels of zeros
    n = min(N, CONVOLVE_BLOCK)
    spare = -N % n
    rows = F.pad(rows.to(value.dtype), (0, 0, 0, spare))  # (B, H, N + spare, K)
    rows = rows.unflatten(-2, (-1, n))  # (B, H, blocks, n, K)

    # the values that each block can reach, by a view that overlaps
    near = F.pad(value, (0, 0, k, k + spare))  # (B, H, N + spare + 2k, d)
    near = near.unfold(-2, n + 2 * k, n)  # (B, H, blocks, d, n + 2k)

    # the matrix of the drawing; among the n + 2k values, the one of the first query has index k
    band = band_scores(rows, n + 2 * k, "zero", first=k)  # (B, H, blocks, n, n + 2k)
    z = band @ near.transpose(-1, -2)  # (B, H, blocks, n, d)
    return z.flatten(-3, -2)[..., :N, :]  # (B, H, N, d)


# --- Long sequences -------------------------------------------------------------------------------


@torch.compiler.disable  # torch.compile would unroll the loop over the blocks
def attention_in_blocks(
    attention,
    query,
    key,
    value,
    attention_mask,
    query_rows=None,
    key_rows=None,
    relative_value=None,
    beyond="clip",
    dropout=0.0,
):
    """Call `attention` for one block of queries at a time. Memory grows with N, not with N^2.

    `attention` is attention.attention, or a function with the same eleven arguments in the same
    order. (It is an argument because attention.py imports this file.) Its arguments are passed by
    position; each block has its own `first` and `generator` (None without dropout). The other
    arguments of attention_in_blocks, and its result, are those of `attention`.
    """
    return AttentionInBlocks.apply(
        attention,
        query,
        key,
        value,
        attention_mask,
        query_rows,
        key_rows,
        relative_value,
        beyond,
        dropout,
    )


class AttentionInBlocks(torch.autograd.Function):
    """Attention for one block of queries at a time; the backward pass computes each block again.

    At most BLOCK rows of the map are in memory at the same time. Results and gradients are
    written into tensors that are allocated before the loop. If every block allocated its own, the
    free memory would be fragmented, and no piece would be large enough for the next block.
    """

    @staticmethod
    def forward(
        ctx,
        attention,
        query,
        key,
        value,
        attention_mask,
        query_rows,
        key_rows,
        relative_value,
        beyond,
        dropout,
    ):
        # Make the inputs contiguous once, otherwise every block would copy them.
        query = query.contiguous()
        key = key.contiguous()
        value = value.contiguous()

        # Keep what the backward pass needs to compute the same blocks again, with the same
        # dropout (from the seed, which is drawn on the CPU) and in the same precision.
        ctx.save_for_backward(
            attention_mask, query, key, value, query_rows, key_rows, relative_value
        )
        seed = int(torch.randint(2**62, ()))
        ctx.attention = attention
        ctx.settings = dict(beyond=beyond, dropout=dropout, seed=seed)
        device_type = query.device.type
        ctx.precision = dict(
            device_type=device_type,
            dtype=torch.get_autocast_dtype(device_type),
            enabled=torch.is_autocast_enabled(device_type),
        )

        # A tensor for the results: as many rows as queries, in the dtype of the values.
        z = value.new_empty(*query.shape[:-1], value.shape[-1])  # (B, H, N, d)
        for first in range(0, query.shape[-2], BLOCK):
            z[..., first : first + BLOCK, :] = attend_block(
                attention,
                block_of(query, first),
                key,
                value,
                attention_mask,
                block_of(query_rows, first),
                key_rows,
                relative_value,
                first,
                **ctx.settings,
            )
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        attention_mask, *inputs = ctx.saved_tensors

        # Which inputs need a gradient: ALiBi's rows, for example, do not. The numbers are the
        # positions of query, key, value, query_rows, key_rows and relative_value among the
        # arguments of `forward`; `attention` has position 0, and the mask has position 4.
        needed = [ctx.needs_input_grad[argument] for argument in (1, 2, 3, 5, 6, 7)]

        # One sum for each gradient, at least in float32: bf16 would lose small parts.
        sums = [zeros_to_sum(x) if need else None for x, need in zip(inputs, needed, strict=True)]

        for first in range(0, gradient.shape[-2], BLOCK):
            # what this block uses, cut off from the graph
            parts = []
            for x, need in zip(parts_of_block(inputs, first), needed, strict=True):
                if x is not None:
                    x = x.detach().requires_grad_(need)
                parts.append(x)
            query, key, value, query_rows, key_rows, relative_value = parts

            # Compute the block again, now with a graph, and go back through it.
            with torch.enable_grad(), torch.autocast(**ctx.precision):
                z = attend_block(
                    ctx.attention,
                    query,
                    key,
                    value,
                    attention_mask,
                    query_rows,
                    key_rows,
                    relative_value,
                    first,
                    **ctx.settings,
                )
            given = [x for x, need in zip(parts, needed, strict=True) if need]
            gradients = torch.autograd.grad(z, given, block_of(gradient, first))

            # Add the gradients to their sums. Those of the queries and their rows belong to this
            # block only. If all queries share one row, all blocks add to its gradient.
            targets = [total for total in parts_of_block(sums, first) if total is not None]
            for target, part in zip(targets, gradients, strict=True):
                target.add_(part)

        # Return them in the dtypes of the inputs, in the order of the arguments of `forward`.
        for i, (x, total) in enumerate(zip(inputs, sums, strict=True)):
            if total is not None:
                sums[i] = total.to(x.dtype)
        query_sum, key_sum, value_sum, *relative_sums = sums
        return None, query_sum, key_sum, value_sum, None, *relative_sums, None, None


def parts_of_block(tensors, first):
    """What the block that begins at query `first` uses of six tensors: its own part of two of them.

    tensors: query, key, value, query_rows, key_rows and relative_value, or the sums of their
    gradients. A block uses its own queries and their rows, and all of the others.
    """
    query, key, value, query_rows, key_rows, relative_value = tensors
    query = block_of(query, first)
    query_rows = block_of(query_rows, first)
    return [query, key, value, query_rows, key_rows, relative_value]


def attend_block(
    attention,
    query,
    key,
    value,
    attention_mask,
    query_rows,
    key_rows,
    relative_value,
    first,
    beyond,
    dropout,
    seed,
):
    """`attention` for one block of queries; its dropout depends on `seed` and `first` alone."""
    # The backward pass computes the block again, and needs the same dropout.
    generator = None
    if dropout:
        generator = torch.Generator(query.device).manual_seed(seed + first)
    return attention(
        query,
        key,
        value,
        attention_mask,
        query_rows,
        key_rows,
        relative_value,
        beyond,
        dropout,
        first,
        generator,
    )


def block_of(x, first):
    """The queries first .. first + BLOCK - 1 of x (..., N, columns); None if x is None.

    One row for all queries, (..., 1, columns), belongs to every block.
    """
    if x is None or x.shape[-2] == 1:
        return x
    return x[..., first : first + BLOCK, :]


def zeros_to_sum(x):
    """Zeros of x's shape, in float32 or better."""
    return torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
