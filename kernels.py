"""The hot loop of attention: from a row of numbers per query to weights. And its compiled path.

    scores_by_index(rows, N)             the map of scores that rows add: [i, j] is rows[i, j - i]
    scores_by_skew(rows, N)              the same without an index
    banded_softmax(scores, ...)          the hot loop: scores + maps + unseen -> softmax
    compile_hot_loop(layers, ...)        torch.compile of it
    convolve(kernels, value)             a convolution in which every query has its own kernel

A row holds one number for each relative position r = j - i from -k to k: K = 2k + 1 numbers (k is
N - 1 for terms without a window). The number for r is in column r + k. In code, k is `reach`. A key
farther away gets the number at the end of the row (beyond = "clip": Shaw et al. 2018) or 0
("zero").

Letters: B sequences, H heads, N keys, n queries (n = N, except in blocks of a long sequence), d
channels per head, W columns of any table.
"""

import torch
from torch.nn import functional as F

BEYOND = ("clip", "zero")  # what a key farther away than k gets
SHORT = 64  # up to this many queries or keys, the map is always made with the index
CONVOLVE_BLOCK = 32  # queries whose kernels `convolve` applies as one matrix


# --- From rows to the map of scores ---------------------------------------------------------------


def relative_positions(n, N, first, device):
    """r = j - i of n queries, from position `first` on, and N keys: (n, N)."""
    i = torch.arange(first, first + n, device=device)
    j = torch.arange(N, device=device)
    return j[None, :] - i[:, None]


def scores_by_index(rows, N, beyond="clip", first=0):
    """The definition: scores[i, j] = rows[i, r + k] with r = j - i, and the rule of `beyond`.

    Example with N = n = 3 and K = 3. The numbers a, b, c of a row belong to r = -1, 0, 1:

        rows         r           column      the map ("clip")   ("zero")
        a0 b0 c0      0  1  2    1 2 2       b0 c0 c0           b0 c0 0
        a1 b1 c1     -1  0  1    0 1 2       a1 b1 c1           a1 b1 c1
        a2 b2 c2     -2 -1  0    0 0 1       a2 a2 b2           0  a2 b2

    Args:
        rows: (B, H, n, K), K odd; there may be any leading dimensions.
        N: the number of columns of the map: keys, or for the rows of keys, queries.
        first: the position of the first query, which is not 0 in a block of a long sequence. With
            first = 1, the two rows a1 b1 c1 and a2 b2 c2 give the last two lines of the map.
    Returns:
        (B, H, n, N).
    """
    n, K = rows.shape[-2:]
    reach = K // 2

    # r for every query and key, its column, and the number in this column: the three drawings
    r = relative_positions(n, N, first, rows.device)  # (n, N)
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

    The map is on the right of the line, after n - 1 = 2 columns; left of it are ends of other rows.
    """
    n, K = rows.shape[-2:]
    reach = K // 2

    farthest_left = first + n - 1  # from the last query to key 0
    farthest_right = N - 1 - first  # from the first query to key N - 1

    # One column for each r between them, and the spare one. In the drawing both are 2 and the reach
    # is 1: one more column on the left, and 1 + 1 on the right.
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

    The first b is number 6, counted from 0: column 0 in lines of 6 numbers, column 1 in lines of 5.
    This is the relative shift of Transformer-XL and the skewing of the Music Transformer.
    """
    n, W = x.shape[-2:]
    numbers = x.flatten(-2)  # (..., n * W): the 18 numbers in memory
    numbers = numbers[..., :-n]  # without the last n = 3
    return numbers.unflatten(-1, (n, W - 1))  # n W - n = n (W - 1): 3 lines of 5


def add_relative_scores(scores, rows, beyond="clip", first=0):
    """scores[i, j] + rows[i, j - i]. The sum overwrites `scores`, which saves the memory of a map.

    scores: (B, H, n, N), a sum, whose backward does not need its value. rows: (B, H, n, K), or
    fewer dimensions, as in attention.attention. beyond, first: as in `scores_by_index`.
    """
    n, N = scores.shape[-2:]
    rows = rows.to(scores.dtype)
    rows = rows.expand(*rows.shape[:-2], n, -1)  # a row for all queries becomes n equal rows

    # Longer sequences take the skew, for bf16: it saves up to 10 % of a step; float32 loses up to
    # 30 % (results/map-methods.jsonl). Two cases keep the index: rows of keys in a block (here n
    # counts keys: n > N), and compiled code (results/bench-map-compiled.json).
    if torch.compiler.is_compiling() and scores.is_cuda:
        scores_of_rows = GatheredGradient.apply(rows, N, beyond, first)
    elif torch.compiler.is_compiling() or min(n, N) <= SHORT or n > N:
        scores_of_rows = scores_by_index(rows, N, beyond, first)
    else:
        scores_of_rows = scores_by_skew(rows, N, beyond, first)
    return scores.add_(scores_of_rows)


# --- The compiled path: the hot loop, and torch.compile of it -------------------------------------


def banded_softmax(scores, unseen, query_rows=None, key_rows=None, beyond="clip", first=0):
    """The hot loop: scores, the maps of the rows (with "zero" a band of K diagonals), the softmax.

        p_ij = softmax over j of  scores_ij + unseen_ij  [+ query_rows[i, j - i]]
                                                          [+ key_rows[j, i - j]]

    The rows of the keys need a map with its lines and columns exchanged: line j belongs to key j,
    and is read at i - j. Example: N = 4 keys, and a block of n = 2 queries, with first = 1:

                          i = 1   2
              key j = 0       1   2      In column c, i is first + c, so i - j is c - (j - first).
                      1       0   1      relative_positions gives column - (line + its `first`).
                      2      -1   0      The line is j, so its `first` must be -first.
                      3      -2  -1

    Args:
        scores: (B, H, n, N), q_i . k_j / sqrt(d).
        unseen: (B, 1, 1, N) or (B, 1, n, N), 0, or a very low number where the weight must be 0.
        query_rows, key_rows, beyond, first: as in attention.attention.
    Returns:
        p (B, H, n, N), the weights of each query, which sum to 1.
    """
    # First this sum: it is a new tensor, and the rows are added to it in place.
    scores = scores + unseen  # (B, H, n, N)

    # fixed and dynamic: + beta_(j-i) + q_i . w_(j-i) / sqrt(d)
    if query_rows is not None:
        scores = add_relative_scores(scores, query_rows, beyond, first)

    # key_dynamic: + k_j . u_(i-j) / sqrt(d), with lines and columns exchanged
    if key_rows is not None:
        scores = scores.transpose(-1, -2)  # (B, H, n, N) -> (B, H, N, n)
        scores = add_relative_scores(scores, key_rows, beyond, -first)
        scores = scores.transpose(-1, -2)  # (B, H, N, n) -> (B, H, n, N)

    return scores.softmax(dim=-1)


# A decorator for what the compiler must leave alone, with all that it calls: it would unroll a loop
# over blocks. So sequences above attention.LONGEST_WHOLE are always computed eagerly.
not_compiled = torch.compiler.disable


def compile_hot_loop(layers, device, unit=None):
    """Compile the hot loop of all layers of a model.Bert, in place.

    Eager PyTorch runs each operation of banded_softmax on its own: the map, the sums and the
    softmax each write N x N numbers to memory. The compiler makes loops of them: the number of a
    row is read and added while the score is in a register, and no map is written.

    unit: "band", banded_softmax alone; on a CPU, dropout is slow inside. Or "layer", a whole layer:
        on CUDA, fewer operations are started. None: "layer" on CUDA, else "band" (docs/speed.md).

    Without a compiler on the machine, everything stays eager, and one line says so.
    """
    # is there a compiler? A small function shows it
    try:
        torch.compile(lambda x: x + 1)(torch.zeros(1, device=device))
    except Exception as error:
        print(f"nothing is compiled: {str(error).splitlines()[0]}")
        return

    torch.compiler.reset()  # clear what was compiled for an earlier model
    # a graph for each combination of arguments; what cannot be compiled stays eager
    torch._dynamo.config.recompile_limit = 128
    torch._dynamo.config.suppress_errors = True

    # compile the unit, for all shapes
    unit = unit or ("layer" if device.type == "cuda" else "band")
    compiled_band = torch.compile(banded_softmax, dynamic=True)
    for layer in layers:
        if unit == "layer":
            # On a GPU, a softmax loops over the keys: unrolled, it took the compiler minutes.
            layer.compile(dynamic=True, options={"triton.persistent_reductions": False})
        else:
            layer.mixer.banded_softmax = compiled_band


class GatheredGradient(torch.autograd.Function):
    """`scores_by_index` for compiled layers on a GPU: its gradient is gathered.

    The backward of `gather` adds the gradients of all keys that read a number. Many keys read the
    end numbers of a row, so on a GPU the additions wait for each other: 8 times as slow as eager
    with 1,024 tokens (results/bench-gpu.json). Here the number for r takes the gradient at i + r;
    an end number ("clip") adds those of the keys farther away, as attention.relative_values does.
    """

    @staticmethod
    def forward(ctx, rows, N, beyond, first):
        ctx.arguments = (rows.shape[-1], beyond, first)
        return scores_by_index(rows, N, beyond, first)

    @staticmethod
    def backward(ctx, grad):  # (B, H, n, N) -> (B, H, n, K)
        K, beyond, first = ctx.arguments
        n, N = grad.shape[-2:]
        reach = K // 2

        # The gradient at the key j = i + r that read each number of a row. With k zeros for keys
        # that do not exist on each side, key j is in column j + k: the K columns from i on.
        i = torch.arange(first, first + n, device=grad.device)[:, None]  # (n, 1)
        column = i + torch.arange(K, device=grad.device)  # (n, K)
        padded = F.pad(grad, (reach, reach))  # (B, H, n, N + 2k)
        row_grad = padded.gather(-1, column.expand(*grad.shape[:-1], K))  # (B, H, n, K)

        # the end numbers were also read by the keys farther away
        if beyond == "clip":
            r = relative_positions(n, N, first, grad.device)  # (n, N)
            left = grad.masked_fill(r >= -reach, 0).sum(dim=-1, keepdim=True)  # (B, H, n, 1)
            right = grad.masked_fill(r <= reach, 0).sum(dim=-1, keepdim=True)
            row_grad = row_grad + F.pad(left, (0, K - 1)) + F.pad(right, (K - 1, 0))
        return row_grad, None, None, None


# --- Convolutions with a kernel per query ---------------------------------------------------------


@not_compiled  # the compiler keeps the size of `unfold` of the first sequence that it sees
def convolve(kernels, value, causal=False):
    """z_i = sum_r kernels[i, r + k] v_(i+r): every query has a kernel of its own.

    A block of n queries meets the n + 2k values around it, so its kernels are a matrix, which
    `skew` makes. Example: k = 1, and a block of n = 2 queries that starts at position i:

        a0 b0 c0 0 0             [ a0 b0 c0 0  ]   [ v_(i-1) ]     [ z_i     ]
        a1 b1 c1 0 0     skew    [ 0  a1 b1 c1 ] x [ v_i     ]  =  [ z_(i+1) ]
                                                   [ v_(i+1) ]
                                                   [ v_(i+2) ]

    causal: r goes from -2k to 0. kernels: (B, H, N, K). value: (B, H, N, d), and 0 beyond its ends.
    Returns (B, H, N, d).
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

    # The values that each block meets: k more on each side (causal: all 2k on the left, so the K
    # columns stand for r = -2k to 0). unfold(dimension, size, step) cuts pieces of n + 2k values,
    # each n after the one before. They overlap; unfold copies none.
    left = 2 * reach if causal else reach
    near = F.pad(value, (0, 0, left, 2 * reach - left + spare))  # (B, H, N + spare + 2k, d)
    near = near.unfold(-2, n + 2 * reach, n)  # (B, H, blocks, d, n + 2k)

    z = matrices @ near.transpose(-1, -2)  # (B, H, blocks, n, d)
    return z.flatten(-3, -2)[..., :N, :]  # (B, H, N, d)
