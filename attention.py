"""Every way of joining self-attention and convolution that is built here, each as its equation.

Letters (the same in all files; some files add theirs):

    B  sequences in a batch        C  hidden size = H * d          i  position of a query
    N  tokens in a sequence        k  reach of a kernel            j  position of a key
    H  heads, d channels each      K  kernel size = 2k + 1         r  relative position j - i

    q_i, k_j, v_j   query, key and value of a head: vectors of d numbers
    a_ij, p_ij      the score of query i and key j, and its softmax over j
    z_i             sum_j p_ij v_j, the output of a head
    beta, w, u, s   learned, for each r: beta_r is a scalar per head; w_r, u_r, s_r have d numbers

The reach k is the number of tokens that a kernel covers on each side of the token itself. In code
the letter k is used for the keys, so the reach has the name `reach`: it is K // 2. Heads, layers
and positions count from 0 in code; for users, heads and layers count from 1.

A row is K numbers, one for each r from -k to k, before a softmax; attention adds them to its
scores. A kernel is the softmax of a row over r: K weights. (Depthwise kernels are learned without a
softmax.)

The one idea: a variant is self-attention whose score is a SUM OF NAMED TERMS,

    content        a_ij =  q_i . k_j / sqrt(d)             Vaswani et al. 2017; Chang eq. 1
    fixed               +  beta_(j-i)                      Raffel et al. 2020;  Chang eq. 4
    dynamic             +  q_i . w_(j-i) / sqrt(d)         Shaw et al. 2018;    Chang eq. 5
    key_dynamic         +  k_j . u_(i-j) / sqrt(d)         Huang et al. 2020

Others change the content (rotary, xl) or the values (shaw), add convolutions, or have a convolution
in place of some or all scores (convbert, lightconv, dynamicconv, dilated). "Chang" is Chang, Xu,
Xu, Tu 2021, "Convolutions and Self-Attention: Re-interpreting Relative Positions in Pre-trained
Language Models".

This file, from top to bottom: the paper in one function; attention in general; the terms; further
relative positions; convolutions; the mixers, each with its equation; and the table VARIANTS.

If you change it. A new combination of terms is an entry of VARIANTS. A new term or mixer is a
class, an entry, and its plain loop in tests/references.py: docs/extend.md shows each step.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kernels import (
    banded_softmax,
    convolve,
    extend,
    not_compiled,
    relative_positions,
)
from support.commands import UserError

# With more queries than LONGEST_WHOLE, attention is computed in blocks of BLOCK queries. BLOCK must
# not be above LONGEST_WHOLE: each block calls `attention` again, and must not be divided again.
LONGEST_WHOLE = 1024
BLOCK = 128


# --- The paper in one function --------------------------------------------------------------------


def composite_attention(q, k, v, w, beta):
    """The paper in one function: composite attention as one would write it at first. Chang eq. 6

        a_ij = (q_i . k_j + q_i . w_(j-i)) / sqrt(d) + beta_(j-i)
        z_i  = sum_j softmax_j(a_ij) v_j

    Why relative positions? The content term alone does not know the order of the tokens: if they
    change places, their outputs change places with them, and nothing else happens. And what counts
    in a sentence is not that a word is number 17, but that it is the word before the verb. A number
    for each r = j - i says this directly, and what is learned at one place holds at every place.

    Why does beta stand outside of the division by sqrt(d)? The two others are sums of d products,
    whose standard deviation grows with sqrt(d). beta is a free number.

    Why two position terms? With the fixed term beta_r alone, every query of a head prefers the same
    side. Take a query between two equal keys: the ratio of their weights, p_left / p_right, is
    exp(beta_left - beta_right), whatever the query is. With the dynamic term the query decides: one
    word can look to the left, and another one to the right. In this example (4 tokens, one head,
    d = 1, K = 3) beta and w both say "to the right". Token 2 with q = 0 has a row of zeros, so it
    follows beta: 0.20 to its left neighbour and 0.53 to its right one. Token 1 with q = -1 turns w
    around and looks to the left, against beta: 0.64 and 0.24.

        q = 1 -1 0 2    k = 0 1 0 1      r = -1, 0, 1:  w = -1 0 1    beta = 1 0 2

        q_i . k_j        q_i . w_(j-i)    beta_(j-i)       the sum a_ij
        0  1  0  1       0  1  1  1       0  2  2  2       0  4  3  4
        0 -1  0 -1       1  0 -1 -1       1  0  2  2       2 -1  1  0
        0  0  0  0       0  0  0  0       1  1  0  2       1  1  0  2
        0  2  0  2      -2 -2 -2  0       1  1  1  0      -1  1 -1  2

    If v_j is the unit vector j, then z_i lists the weights p_ij of query i:

    >>> q = torch.tensor([[[1.0], [-1.0], [0.0], [2.0]]])  # (B, N, C) = (1, 4, 1)
    >>> k = torch.tensor([[[0.0], [1.0], [0.0], [1.0]]])
    >>> v = torch.eye(4)[None]
    >>> w = torch.tensor([[-1.0, 0.0, 1.0]])  # (d, K) = (1, 3)
    >>> beta = torch.tensor([[1.0, 0.0, 2.0]])  # (H, K) = (1, 3)
    >>> composite_attention(q, k, v, w, beta)[0].round(decimals=2)
    tensor([[0.0100, 0.4200, 0.1500, 0.4200],
            [0.6400, 0.0300, 0.2400, 0.0900],
            [0.2000, 0.2000, 0.0700, 0.5300],
            [0.0300, 0.2500, 0.0300, 0.6800]])

    The rest of this file generalises these lines: other terms, padding, dropout, long sequences.

    Args:
        q, k, v: (B, N, C), the projections of the tokens.
        w: (d, K), shared by the heads. beta: (H, K).
    Returns:
        z: (B, N, C), before the output projection.
    """
    H, K = beta.shape
    q, k, v = split_heads(q, H), split_heads(k, H), split_heads(v, H)  # (B, H, N, d) each
    N, d = q.shape[-2:]

    # r = j - i, and the column of r in w and beta. A key farther away than the reach gets the first
    # or the last column. In the example (N = 4, K = 3):
    #
    #      r   0  1  2  3      column  1 2 2 2
    #         -1  0  1  2              0 1 2 2
    #         -2 -1  0  1              0 0 1 2
    #         -3 -2 -1  0              0 0 0 1
    reach = K // 2
    i = torch.arange(N, device=q.device)
    r = i[None, :] - i[:, None]  # (N, N): j along the line, i down
    column = r.clamp(-reach, reach) + reach  # (N, N)

    # q_i . k_j
    content = q @ k.transpose(-1, -2)  # (B, H, N, N)

    # q_i . w_(j-i): a row of K numbers per query. Query 1 of the example has the row 1 0 -1, and
    # reads it at the columns 0 1 2 2: 1 0 -1 -1. `gather` does this for all queries: line i of its
    # result lists row i at the columns column[i].
    rows = q @ w  # (B, H, N, d) (d, K) -> (B, H, N, K)
    dynamic = rows.gather(-1, column.expand_as(content))  # (B, H, N, K) -> (B, H, N, N)

    # beta_(j-i): all queries read the same row, 1 0 2; query 1 at the columns 0 1 2 2: 1 0 2 2
    fixed = beta[:, column]  # (H, K) -> (H, N, N)

    a = (content + dynamic) / math.sqrt(d) + fixed
    p = a.softmax(dim=-1)
    return merge_heads(p @ v)


# Why one softmax over the sum? Because exp(content + beta_r) = exp(content) * exp(beta_r): the two
# are multiplied, so attention goes where content AND position agree. A low score of one of them is
# a factor that lowers the weight. With two softmaxes that are averaged, a key that only one of the
# two likes would keep half of its weight.
#
# Why is this a convolution? Take beta alone, and only the keys within reach (the code gives farther
# keys the end number of the row, too). Then z_i = sum_j softmax_j(beta_(j-i)) v_j is a convolution
# of the values, and softmax(beta) is its kernel. (Exact except at the first and last k tokens,
# where the window reaches beyond the sequence: tests/science/test_equivalence.py.) So a row of K
# numbers that is added to the scores is a kernel before its softmax: fixed is one kernel for all
# queries, and dynamic is a kernel that each query makes for itself.


def split_heads(x, heads):
    """(B, N, C) -> (B, H, N, d): head h has the channels h*d .. h*d + d - 1."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, N, C) -> (B, N, H, d) -> (B, H, N, d)


def merge_heads(x):
    """(B, H, N, d) -> (B, N, C), the inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)  # (B, H, N, d) -> (B, N, H, d) -> (B, N, C)


# --- Attention in general -------------------------------------------------------------------------


def attention(
    q,
    k,
    v,
    attention_mask,
    query_rows=None,
    key_rows=None,
    value_table=None,
    beyond="clip",
    dropout=0.0,
    causal=False,
    softmax=banded_softmax,
    first=0,
):
    """Attention with relative positions, whatever the terms are that have made the rows.

        a_ij = q_i . k_j / sqrt(d)  [+ query_rows[i, j - i]]  [+ key_rows[j, i - j]]
        z_i  = sum_j softmax_j(a_ij) (v_j  [+ value_table[j - i]])

    [+ ...] is a part that only some variants have. In these equations rows[i, r] is the number for
    r; in the tensor it is column r + reach. Terms without a window have a number for every r from
    -(N - 1) to N - 1, so their rows have 2N - 1 columns in place of K.

    kernels.banded_softmax, the hot loop of training, adds the rows and takes the softmax.

    Args:
        q: (B, H, n, d), for n queries; n = N except for a block of a long sequence.
        k, v: (B, H, N, d).
        attention_mask: (B, N) bool, True at real tokens, False at padding, which gets no attention.
        query_rows: (B, H, n, K), what query i adds to the scores of the keys around it; (H, n, K)
            if all sequences have the same rows; (H, 1, K) if all queries have the same row, too;
            None for no such term.
        key_rows: (B, H, N, K), (H, N, K) or (H, 1, K), what key j adds to the scores of the queries
            around it.
        value_table: (d, K), what is added to a value at each relative position.
        beyond: what a key farther away than the reach gets: the end number of the row ("clip") or 0
            ("zero").
        dropout: probability of setting a weight of the softmax to 0.
        causal: True: keys after the query get no attention, and what the rows hold for r > 0 is
            never read.
        softmax: kernels.banded_softmax, or the compiled one (in blocks always the former).
        first: position of the first query, which is not 0 in a block of a long sequence.
    Returns:
        z (B, H, n, d).
    """
    # A long sequence: this function again, with one block of queries at a time.
    n, d = q.shape[-2:]
    if n > LONGEST_WHOLE:
        # banded_softmax: the plain one, because blocks are not compiled (kernels.not_compiled)
        others = (key_rows, value_table, beyond, dropout, causal, banded_softmax)
        return attention_in_blocks(q, k, v, attention_mask, query_rows, *others)

    # content: q_i . k_j / sqrt(d). Why sqrt(d)? If the numbers in q and k have variance 1, a sum of
    # d products has the standard deviation sqrt(d). Scores that far apart would give nearly all
    # weight to one key, where the softmax has almost no gradient.
    scores = (q / math.sqrt(d)) @ k.transpose(-1, -2)  # (B, H, n, N)

    # What a query does not see: padding, and with `causal` the keys after it. There a number so low
    # is added to the score that the weight is 0.
    unseen = lowest_at_padding(attention_mask, scores.dtype)  # (B, 1, 1, N)
    if causal:
        unseen = torch.minimum(unseen, lowest_after_query(scores, first))  # (B, 1, n, N)

    # Each query's weights over the keys, which sum to 1. The rows of the queries hold, for example,
    # the fixed and the dynamic term, those of the keys the key_dynamic term.
    p = softmax(scores, unseen, query_rows, key_rows, beyond, first)  # (B, H, n, N)
    p = F.dropout(p, dropout)  # 0.0 in evaluation (see SelfAttention.forward)

    # values: sum_j p_ij (v_j + s_(j-i))
    z = p @ v  # (B, H, n, d)
    if value_table is not None:
        z = z + relative_values(p, value_table, beyond, first)
    return z


def relative_values(p, table, beyond="clip", first=0):
    """sum_j p_ij s_(j-i): the weights times a vector that depends on the relative position.

    A vector belongs to each pair i, j, but only K of them are different. So first, all weights of a
    query that belong to the same column of the table are added up. (kernels.scores_by_index does
    the reverse: it reads one number at many places of the map.) Example with N = n = 3 and K = 3:

        weights          column      the sums ("clip")      ("zero")
        p00 p01 p02      1 2 2       0        p00  p01+p02  0    p00  p01
        p10 p11 p12      0 1 2       p10      p11  p12      p10  p11  p12
        p20 p21 p22      0 0 1       p20+p21  p22  0        p21  p22  0

    p: (B, H, n, N), the weights. table: (d, K), the vectors s_r. Returns (B, H, n, d).
    beyond, first: as in `attention`.
    """
    n, N = p.shape[-2:]
    K = table.shape[-1]
    reach = K // 2

    # the column of each r = j - i, as in scores_by_index
    r = relative_positions(n, N, first, p.device)  # (n, N)
    column = r.clamp(-reach, reach) + reach  # (n, N)

    if beyond == "zero":
        p = p.masked_fill(r.abs() > reach, 0)

    # add each weight to its column
    sums = p.new_zeros(*p.shape[:-1], K)  # (B, H, n, K)
    sums = sums.scatter_add(-1, column.expand(p.shape), p)
    return sums @ table.t()  # (B, H, n, K) (K, d) -> (B, H, n, d)


@not_compiled
def attention_in_blocks(q, k, v, attention_mask, query_rows, *others):
    """Call `attention` for BLOCK queries at a time, so that its map is never in memory as a whole.

    A block needs its own queries and their rows, and all keys and values. `checkpoint` forgets the
    map of a block after the forward pass; the backward pass computes it again, with the same
    dropout. So memory grows with N and not with N^2, for the price of a second forward pass of
    attention. But N rows of 2N - 1 columns, as those of xl, or of the sum of dynamic and alibi,
    grow with N^2.

    Arguments and result are those of `attention`, without `first`. others: from key_rows on.
    """
    blocks = []
    for first in range(0, q.shape[-2], BLOCK):
        # the queries of this block, and their rows; one row for all queries stays as it is
        own = slice(first, first + BLOCK)
        rows = query_rows
        if rows is not None and rows.shape[-2] > 1:
            rows = rows[..., own, :]

        block = (q[..., own, :], k, v, attention_mask, rows, *others, first)
        z = checkpoint(attention, *block, use_reentrant=False)
        blocks.append(z)  # (B, H, n, d)
    return torch.cat(blocks, dim=-2)  # (B, H, N, d)


def lowest_at_padding(attention_mask, dtype):
    """What is added to the scores, (B, 1, 1, N): 0 at real tokens, a very low number at padding.

    It is not -inf: if a sequence is padding only, all its keys would have -inf. Their softmax is
    NaN, and through it the gradients of the whole batch. Half of the lowest number of the dtype
    leaves room for the score that it is added to.
    """
    zeros = torch.zeros_like(attention_mask, dtype=dtype)  # (B, N)
    lowest = zeros.masked_fill(~attention_mask, torch.finfo(dtype).min / 2)
    return lowest[:, None, None, :]  # (B, N) -> (B, 1, 1, N)


def lowest_after_query(scores, first=0):
    """What `causal` adds to scores (B, H, n, N): (n, N), a very low number after the query, else 0.

    Example: 4 keys, and a block of 2 queries that starts at first = 1; x is the low number.

        key j       0 1 2 3
        query 1     0 0 x x
        query 2     0 0 0 x
    """
    n, N = scores.shape[-2:]
    is_after = relative_positions(n, N, first, scores.device) > 0  # (n, N)
    zeros = torch.zeros_like(is_after, dtype=scores.dtype)  # (n, N)
    return zeros.masked_fill(is_after, torch.finfo(scores.dtype).min / 2)


# --- Terms: what each of them adds to the scores or the values ------------------------------------


class Term(nn.Module):
    """A part of the score, or of the values, that depends on the relative position.

    A term overrides one or more of four methods. The others return None, or q and k as they are,
    (B, H, N, d) each. SelfAttention.apply_terms adds up what the terms return.

    A term should depend on positions only through r = j - i, and not on N, which also counts
    padding and later tokens (fire has max(N, L), with a large L). Its constructor also initialises
    its parameters. Linear layers must start as in BERT: call initialise_linear(self); a test checks
    this, except in fire.

    Adding one number to a whole row of a query changes nothing, because of the softmax (except with
    a window and beyond="zero": far keys do not get it). So a bias of this kind learns nothing.
    Adding one number to a whole row of a KEY does change something: all queries see it more.

    config: the settings of the model, as in mixer_of_layer at the end of this file.
    """

    # Whether the variant has --kernel_size and --beyond.
    # True: its rows (or its table) have K columns, r from -k to k. False: its rows have 2N - 1
    # columns, one for every r (see every_r), or it has no rows (rotary).
    has_window = True

    def __init__(self, config=None):
        super().__init__()  # a term without parameters does not need the config

    def query_rows(self, q):
        """What each query adds at each r: (B, H, N, K), (H, N, K) or (H, 1, K).

        Without a window, there are 2N - 1 columns in place of K. The same holds for key_rows.
        """
        return None

    def key_rows(self, k):
        """What each key adds at each i - j: (B, H, N, K), (H, N, K) or (H, 1, K)."""
        return None

    def queries_and_keys(self, q, k):
        """The queries and keys that the content term q_i . k_j uses, (B, H, N, d) each."""
        return q, k

    def value_table(self):
        """What is added to a value at each r: (d, K). Such a term always has a window."""
        return None


class Fixed(Term):
    """fixed: + beta_r, one scalar per head and relative position, not scaled. Chang eq. 4

    All queries have the same row. Why not divided by sqrt(d)? beta_r is one learned number, and not
    a sum of d products. It is initialised to 0: no position is preferred.
    """

    def __init__(self, config):
        super().__init__()
        self.beta = nn.Parameter(torch.zeros(config.heads, config.kernel_size))  # (H, K)

    def query_rows(self, q):
        return self.beta[:, None, :]  # (H, K) -> (H, 1, K)


class Dynamic(Term):
    """dynamic: + q_i . w_r / sqrt(d), a row made by each query. Chang eq. 5; Shaw et al. 2018

    w is one table per layer, shared by all heads. Like the content, q_i . w_r is a sum of d
    products, so it is divided by sqrt(d). The code divides the table w and not the rows, because w
    has fewer numbers.
    """

    def __init__(self, config):
        super().__init__()
        self.w = relative_table(config)  # (d, K)

    def query_rows(self, q):
        d = q.shape[-1]
        return q @ (self.w / math.sqrt(d))  # (B, H, N, d) (d, K) -> (B, H, N, K)


class KeyDynamic(Term):
    """key_dynamic: + k_j . u_(i-j) / sqrt(d), a row made by each key. Huang et al. 2020

    Here the key decides who should look at it: a determiner, say, is of interest to the noun to its
    right. The row belongs to key j, so positions are counted from j: the query is at i - j = -r.
    Example: 3 tokens, K = 3. Key 0 has the numbers a0, b0, c0 for queries at i - j = -1, 0, 1; its
    own place is i = 0, so column 0 of the map reads b0 (itself), c0 (query 1) and again c0:

        rows of the keys      what they add to the scores ("clip"), [i, j]
        a0 b0 c0              b0 a1 a2
        a1 b1 c1              c0 b1 a2
        a2 b2 c2              c0 c1 b2

    u is one table per layer, shared by all heads. (Huang et al. have one table for both, w = u.)
    """

    def __init__(self, config):
        super().__init__()
        self.u = relative_table(config)  # (d, K)

    def key_rows(self, k):
        d = k.shape[-1]
        return k @ (self.u / math.sqrt(d))  # (B, H, N, d) (d, K) -> (B, H, N, K)


class RelativeValue(Term):
    """relative_value: s_r, added to the value of the key at r. Shaw et al. 2018

    This is the only term outside the score: it tells the output where the attention went. s is one
    table per layer, shared by all heads.
    """

    def __init__(self, config):
        super().__init__()
        self.s = relative_table(config)  # (d, K)

    def value_table(self):
        return self.s


def relative_table(config):
    """A table (d, K): a d-vector per relative position, uniform in +-1/sqrt(K), as Chang's code."""
    d = config.hidden_size // config.heads
    K = config.kernel_size
    bound = 1 / math.sqrt(K)
    return nn.Parameter(torch.empty(d, K).uniform_(-bound, bound))


def add_rows(total, rows, beyond):
    """The sum of the rows of two terms. Each of them may be None: no such rows.

    With the fixed and the dynamic term it is beta_r + q_i . w_r / sqrt(d): composite attention. If
    one of the terms has no window, the rows of the other one get as many columns. A value table
    (d, K) is d rows: it is added in the same way.
    """
    if total is None:
        return rows
    if rows is None:
        return total

    # the narrower of the two gets more columns, the same number on each side
    extra = (total.shape[-1] - rows.shape[-1]) // 2
    if extra > 0:
        rows = extend(rows, extra, extra, beyond)
    if extra < 0:
        total = extend(total, -extra, -extra, beyond)
    return total + rows


# --- Further relative positions -------------------------------------------------------------------
#
# What the authors' own releases do otherwise, also in Canon and DeBERTa: docs/differences.md.


def every_r(q):
    """-(N - 1) .. N - 1, all relative positions of N queries (B, H, N, d): (2N - 1,) integers.

    Before a log or a division, make exact numbers of them: every_r(q).to(exact_dtype(q)).
    """
    N = q.shape[-2]
    return torch.arange(1 - N, N, device=q.device)


def exact_dtype(q):
    """The dtype of numbers that are computed from positions: float32, or float64 if q has it.

    In bf16, which has 8 bits of precision, large distances would be rounded. Under autocast, the
    matrix products of fire and xl still compute in bf16, but from exact distances.
    """
    return torch.promote_types(q.dtype, torch.float32)


class T5(Term):
    """t5: + beta_bucket(r), one scalar per head and bucket, not scaled. Raffel et al. 2020

    Near tokens have a bucket each, and farther ones share buckets that grow with the distance. Of
    the 32 buckets, 16 are for r <= 0 and 16 for r > 0 (bucket 16 is never used):

        bucket   0 .. 7   8      9       10      11      12      13      14      15
        abs(r)   0 .. 7   8-11   12-15   16-22   23-31   32-45   46-63   64-90   91 and more

    Bucket 8 + m begins at 8 * 2^(m/2), rounded up: from one bucket to the next, the start grows by
    a factor of about sqrt(2). For r > 0, 16 is added to the number of the bucket. beta is one table
    per layer and is initialised to 0.
    """

    STARTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)  # of the buckets 1, 2, ..., 15
    has_window = False

    def __init__(self, config):
        super().__init__()
        self.beta = nn.Parameter(torch.zeros(config.heads, 32))  # (H, 32)

    def query_rows(self, q):
        # every relative position; of q, only the shape and the device are used
        r = every_r(q)  # (2N - 1,)

        # the first bucket of the side
        bucket = torch.where(r > 0, 16, 0)  # (2N - 1,)

        # one bucket farther for each start that abs(r) has reached
        for start in self.STARTS:
            bucket += (r.abs() >= start).long()
        return self.beta[:, None, bucket]  # (H, 32) -> (H, 1, 2N - 1)


class Alibi(Term):
    """alibi: - m_h abs(r), one constant slope per head. Press et al. 2022

    m_h = 2^(-8 (h + 1) / H) for the heads h = 0 .. H - 1: with 4 heads 1/4, 1/16, 1/64 and 1/256.
    There is nothing to learn. This is the symmetric form: in the paper, a token sees only earlier
    tokens.
    """

    has_window = False

    def query_rows(self, q):
        # of q, only the shape, the device and the dtype are used
        H = q.shape[1]
        h = torch.arange(H, device=q.device, dtype=exact_dtype(q))
        slopes = 2 ** (-8 * (h + 1) / H)  # m_h: (H,)
        return -slopes[:, None, None] * every_r(q).abs()  # (H, 1, 2N - 1)


class Fire(Term):
    """fire: + mlp_h(x_r), a learned function of the distance. Li et al. 2024

        x_r = sign(r) log(1 + c abs(r)) / log(1 + c max(N, L))        in [-1, 1]
        mlp = Linear 1 -> 32, ReLU, Linear 32 -> H

    The larger c is, the more of [-1, 1] is used for near tokens. The divisor maps the distance L to
    1, or N (with padding) if that is larger than L, so x_r is in [-1, 1] at every length. But the
    mlp knows only values of x_r that training has shown it. With the first c and L, 128 tokens
    reach no farther than abs(x_r) = 0.66. In longer sequences the loss rises: docs/length.md. The
    sign lets one function serve both directions.

    In a causal model the divisor of query i has i + 1 in place of N: it must not know how many
    tokens follow. So each query has a row of its own, and the rows take memory with N^2.

    c = 0.1 exp(log_c) and L = 512 exp(log_L): at first they are the paper's 0.1 and 512, and exp
    keeps them positive. Both linear layers have PyTorch's default initialisation.
    """

    has_window = False

    def __init__(self, config):
        super().__init__()
        self.causal = config.causal
        self.hidden = nn.Linear(1, 32)  # the hidden layer of the mlp
        self.output = nn.Linear(32, config.heads)
        self.log_c = nn.Parameter(torch.zeros(()))
        self.log_L = nn.Parameter(torch.zeros(()))

    def query_rows(self, q):
        N = q.shape[-2]
        c = 0.1 * self.log_c.exp()
        L = 512 * self.log_L.exp()

        # how many tokens a query may see: one number for all queries, or one for each; n is 1 or N
        length = torch.full((1,), N, device=q.device)  # (1,)
        if self.causal:
            length = torch.arange(1, N + 1, device=q.device)  # (N,)
        divisor = torch.log(1 + c * torch.maximum(length, L))[:, None]  # (n, 1)

        # the distance, between -1 and 1
        # (c is float32, also under autocast, so r is exact)
        r = every_r(q).to(c.dtype)  # (2N - 1,)
        x = r.sign() * torch.log(1 + c * r.abs()) / divisor  # (n, 2N - 1)

        # the first layer as plain products: a matrix product would round x to bf16 under autocast
        hidden = F.relu(x[..., None] * self.hidden.weight[:, 0] + self.hidden.bias)
        rows = self.output(hidden)  # (n, 2N - 1, 32) -> (n, 2N - 1, H)
        return rows.movedim(-1, 0)  # (H, n, 2N - 1)


class TransformerXL(Term):
    """xl: a content term with a bias, and a term from sinusoids. Dai et al. 2019

        a_ij = ((q_i + b_c) . k_j  +  (q_i + b_p) . (W S_r)) / sqrt(d)

    S_r is a vector of C sinusoids (Vaswani et al. 2017), and W: C -> C turns it into keys: of the C
    numbers of W S_r, each head uses its own d. So the row of query i is the sum of a dynamic term,
    q_i . w_r, and a fixed term, b_p . w_r. Their table w_r = W S_r, one per head, is not learned
    entry by entry: it is computed, for every r.

    b_c (content) and b_p (position) are learned biases of the queries, one vector per head. (The
    paper writes u, v and R_r for b_c, b_p and S_r.) The biases are initialised to 0, and W as
    BERT's linear layers. Each of the N queries has a row of 2N - 1 numbers, so the memory for the
    rows grows with N^2.
    """

    has_window = False

    def __init__(self, config):
        super().__init__()
        C = config.hidden_size
        H = config.heads
        require_even("hidden_size", C, "xl has as many sines as cosines")
        self.W = nn.Linear(C, C, bias=False)
        initialise_linear(self)
        self.b_c = nn.Parameter(torch.zeros(H, C // H))  # (H, d)
        self.b_p = nn.Parameter(torch.zeros(H, C // H))  # (H, d)

    def queries_and_keys(self, q, k):
        b_c = self.b_c[:, None, :]  # (H, d) -> (H, 1, d)
        return q + b_c.to(q.dtype), k

    def query_rows(self, q):
        H, _, d = q.shape[1:]

        # S_r for every r, computed exactly, and then in the dtype of W, which may be bf16
        S = sinusoids(every_r(q), H * d, exact_dtype(q))  # (2N - 1, C)
        S = S.to(self.W.weight.dtype)

        # w_r = W S_r, in heads; split_heads takes a batch, here of one sequence
        w = split_heads(self.W(S)[None], H)[0]  # (2N - 1, C) -> (H, 2N - 1, d)

        # (q_i + b_p) . w_r / sqrt(d): one matrix product per head, for all sequences together
        q = q + self.b_p[:, None, :].to(q.dtype)  # (B, H, N, d)
        return torch.einsum("bhid,hrd->bhir", q, w / math.sqrt(d))  # (B, H, N, 2N - 1)


class Rotary(Term):
    """rotary: content (R_i q_i) . (R_j k_j) / sqrt(d), without rows. Su et al. 2021

    R_i is a d x d rotation matrix. It rotates each pair of neighbouring channels (2m, 2m + 1) by
    the angle i * 10000^(-2m/d):

        a, b  ->  a cos - b sin,  a sin + b cos

    (R_i q_i) . (R_j k_j) = q_i . (R_(j-i) k_j), because the transpose of R_i rotates backwards by
    the angles of i, and then R_j rotates forwards by those of j. So the score depends on the two
    positions only through their difference. There is nothing to learn.
    """

    has_window = False

    def __init__(self, config):
        super().__init__()
        d = config.hidden_size // config.heads
        require_even("the channels of a head", d, "rotary rotates pairs of channels")

    def queries_and_keys(self, q, k):
        N, d = q.shape[-2:]
        i = torch.arange(N, device=q.device)
        angles = i[:, None] * frequencies(d, q.device, exact_dtype(q))  # (N, d/2)
        return rotate(q, angles), rotate(k, angles)


def rotate(x, angles):
    """Rotate each pair of neighbouring channels of x (B, H, N, d) by its angle, (N, d/2).

    cos and sin are float32 or better, so the products are, too; the result has the dtype of x.
    """
    cos = angles.cos()  # (N, d/2)
    sin = angles.sin()
    a = x[..., 0::2]  # the channels 0, 2, 4, ...: (B, H, N, d/2)
    b = x[..., 1::2]  # the channels 1, 3, 5, ...
    rotated = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1)  # (B, H, N, d/2, 2)
    return rotated.flatten(-2).to(x.dtype)  # (B, H, N, d)


def require_even(name, number, reason):
    """UserError if a number that a user chooses is odd, and a variant needs an even one."""
    if number % 2:
        raise UserError(f"{reason}: {name} must be even, not {number}")


def frequencies(channels, device, dtype):
    """10000^(-2m/channels) for m = 0, 1, ..., channels/2 - 1."""
    m = torch.arange(channels // 2, device=device, dtype=dtype)
    return 10000 ** (-2 * m / channels)


def sinusoids(r, channels, dtype):
    """S_r for positions r (n,): (n, channels), first all sines and then all cosines.

    Channel m holds sin(r * 10000^(-2m/channels)), and channel m + channels/2 the cosine.
    """
    angles = r[:, None] * frequencies(channels, r.device, dtype)  # (n, channels/2)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)  # (n, channels)


# The terms of a variant are used in the order of this table, whatever the order in the variant.
TERMS = {
    "fixed": Fixed,
    "dynamic": Dynamic,
    "key_dynamic": KeyDynamic,
    "relative_value": RelativeValue,
    "t5": T5,
    "alibi": Alibi,
    "fire": Fire,
    "xl": TransformerXL,
    "rotary": Rotary,
}


# --- Convolutions ---------------------------------------------------------------------------------


def depthwise_convolution(x, weight, bias=None, dilation=1, causal=False):
    """y_i,c = sum_r weight_c,r x_(i + r*dilation),c  [+ bias_c]: a kernel per channel. Chang eq. 2

    Values beyond the ends of the sequence are 0. torch's conv1d computes the same, but takes 2 to
    12 times as long on a CPU. So the sequence is written as an image that is D = dilation tokens
    wide: one step down in the image is a step of D tokens. Example: N = 8, D = 3, padded to 9:

        0 1 2
        3 4 5        the column 0 3 6 holds the tokens that a kernel of 3 weights
        6 7 -        with dilation 3 sees from token 3

    Without dilation (D = 1), the image is one column: the sequence itself.

    causal: the sequence gets (K - 1) * D zeros on its left and none on its right, as in the
    decoders of Wu et al. 2019. So the K columns of the weight stand for r = -(K - 1) to 0. The code
    puts k * D zeros on the left before it makes the image, and keeps the first N results.

    Args:
        x: (B, N, C). weight: (C, K), K odd. bias: (C,) or None.
    Returns:
        (B, N, C).
    """
    # Without `causal`, this is F.conv1d(x.mT, weight[:, None], bias, padding=D * reach, dilation=D,
    # groups=C).mT, which takes 2 to 12 times as long on a CPU (results/bench-conv1d.json).
    N = x.shape[1]
    D = dilation
    C, K = weight.shape
    reach = K // 2
    if causal:
        x = F.pad(x, (0, 0, reach * D, 0))  # (B, N, C) -> (B, N + k * D, C)

    # the image: N / D lines (rounded up) of D tokens, the last line filled up with zeros
    spare = -N % D  # tokens that the last line lacks: N = 8, D = 3 gives 1
    image = F.pad(x, (0, 0, 0, spare))  # (B, N, C) -> (B, N + spare, C)
    image = image.unflatten(1, (-1, D)).movedim(-1, 1)  # (B, lines, D, C) -> (B, C, lines, D)

    # a kernel that is K lines high and 1 column wide, for each channel separately
    kernel = weight[:, None, :, None]  # (C, K) -> (C, 1, K, 1)
    y = F.conv2d(image, kernel, bias, padding=(reach, 0), groups=C)  # (B, C, lines, D)

    # back to a sequence, without the spare tokens
    y = y.movedim(1, -1).flatten(1, 2)  # (B, lines, D, C) -> (B, N + spare, C)
    return y[:, :N]  # (B, N + spare, C) -> (B, N, C); causal: without the last k * D, too


class DepthwiseConvolution(nn.Conv1d):
    """`depthwise_convolution` with its own weight (C, 1, K) and bias (C).

    It is an nn.Conv1d only for these two parameters and their default initialisation: `forward` is
    replaced.
    """

    def __init__(self, config):
        C = config.hidden_size
        super().__init__(C, C, config.kernel_size, groups=C)
        self.causal = config.causal

    def forward(self, x):
        weight = self.weight[:, 0]  # (C, 1, K) -> (C, K)
        return depthwise_convolution(x, weight, self.bias, causal=self.causal)


class HalfConvolution(nn.Module):
    """A projection: a convolution in the first H/2 heads, linear in the others. Chang sec. 5

        first half    y = pointwise(depthwise(x)), without an activation in between
        second half   y = linear(x)

    pointwise is a linear layer: it is applied at each token separately.

    (B, N, C) -> (B, N, C). x must be 0 at padding.
    """

    def __init__(self, config):
        super().__init__()
        C = config.hidden_size
        half = C // 2  # channels of each half of the heads
        require_even("heads", config.heads, "half of the heads are convolutions")
        self.depthwise = DepthwiseConvolution(config)
        self.pointwise = nn.Linear(C, half)
        self.linear = nn.Linear(C, half)

    def forward(self, x):
        convolved = self.pointwise(self.depthwise(x))  # (B, N, C/2)
        projected = self.linear(x)  # (B, N, C/2)
        return torch.cat([convolved, projected], dim=-1)  # (B, N, C)


def zero_padding(x, attention_mask):
    """x (B, N, C) with 0 at padding, so that a convolution does not see what is there."""
    return x.masked_fill(~attention_mask[:, :, None], 0)


# --- Mixers: what lets the tokens of a sequence see each other ------------------------------------


class Mixer(nn.Module):
    """The base class of the modules that let the tokens of a sequence see each other.

    forward(x, attention_mask) takes x (B, N, C) and attention_mask (B, N), a bool tensor that is
    True at real tokens. It returns (B, N, C), in which the values at padding have no meaning. The
    constructor takes the model's config, the Variant and the number of the layer, counted from 0.

    x is not 0 at padding: mask it (zero_padding, or lowest_at_padding). A mixer that can read from
    left to right sets self.causal = config.causal, and obeys it: `attention` and the convolutions
    above take it as an argument. A mixer that does not set it is refused. The tests also demand
    that config.dropout acts in training, and that the order of the tokens matters (not in `none`).
    """

    # Whether the config's `beyond` changes what it computes, whatever its terms are. Deberta adds
    # rows of its own; in the others only terms add rows, and Variant.uses_beyond asks these.
    uses_beyond = False

    # Whether each token sees only itself and what is before it: see above.
    causal = False

    # How attention makes its weights. kernels.compile_hot_loop puts the compiled one here.
    banded_softmax = staticmethod(banded_softmax)

    def initialise(self):
        """Called once, when the model is complete.

        The default is usually right, also for a mixer of your own: linear layers start as in BERT,
        and everything else stays as the constructor has made it.
        """
        initialise_linear(self)

    def share(self, earlier):
        """Take the parameters that all layers share from an earlier mixer.

        This is called once, right after the mixer is made (make_mixers). Share the parameter or
        module itself, not a copy: then training and loading keep it shared. By default, nothing is
        shared.

        Args:
            earlier: the mixers of the previous layers, in the order of the layers.
        """


def initialise_linear(module):
    """BERT's initialisation of all linear layers of a module: weights normal(0, 0.02), bias 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


class SelfAttention(Mixer):
    """Self-attention with the score terms and convolutions that a variant names.

        q, k, v = linear(x), or half convolution and half linear
        a_ij    = q_i . k_j / sqrt(d)
                  [+ beta_r]  [+ q_i . w_r / sqrt(d)]  [+ k_j . u_(i-j) / sqrt(d)]
                  [+ a further term]  [rotary and xl: another q_i . k_j]
        z_i     = sum_j softmax_j(a_ij) (v_j [+ s_r])  [+ depthwise(v)_i]
        y_i     = output(z_i)

    beta is one scalar per head and relative position. w, u and s are one table per layer, shared by
    all heads (Chang sec. 3.2; Shaw et al. 2018).
    """

    def __init__(self, config, variant, layer):
        super().__init__()
        C = config.hidden_size
        self.heads = config.heads
        self.beyond = config.beyond
        self.causal = config.causal
        self.dropout = config.dropout

        # projections, linear or half convolutional (Chang sec. 5)
        self.convolutional = variant.convolutional
        self.query = make_projection("query", config, variant)
        self.key = make_projection("key", config, variant)
        self.value = make_projection("value", config, variant)

        # the position terms that this variant names
        self.terms = nn.ModuleDict()
        for name, term in TERMS.items():
            if name in variant.terms:
                self.terms[name] = term(config)

        # A convolution of the values, added after attention. Chang eq. 7 writes it inside the
        # softmax; footnote 3 says that it is computed as here: the softmax is applied to the scores
        # alone, and the convolution is added to the result.
        self.depthwise = None
        if variant.depthwise:
            self.depthwise = DepthwiseConvolution(config)

        self.output = nn.Linear(C, C)

    def forward(self, x, attention_mask):
        # project, and split into heads
        query, key, value = self.project(x, attention_mask)  # (B, N, C) each
        q = split_heads(query, self.heads)  # (B, H, N, d)
        k = split_heads(key, self.heads)  # (B, H, N, d)
        v = split_heads(value, self.heads)  # (B, H, N, d)

        # what the position terms make of them
        q, k, query_rows, key_rows, value_table = self.apply_terms(q, k)

        # a_ij = q_i . k_j / sqrt(d) + query_rows[i, j - i] + key_rows[j, i - j]
        # z_i  = sum_j softmax_j(a_ij) (v_j + value_table[j - i])
        dropout = self.dropout if self.training else 0.0
        z = attention(
            q,
            k,
            v,
            attention_mask,
            query_rows=query_rows,
            key_rows=key_rows,
            value_table=value_table,
            beyond=self.beyond,
            dropout=dropout,
            causal=self.causal,
            softmax=self.banded_softmax,
        )
        z = merge_heads(z)  # (B, N, C)

        # the convolution of the values; the softmax does not affect it
        if self.depthwise is not None:
            z = z + self.depthwise(zero_padding(value, attention_mask))
        return self.output(z)

    def project(self, x, attention_mask):
        """x (B, N, C) -> query, key, value, (B, N, C) each."""
        # Attention does not look at padding; a convolution must not, either.
        if self.convolutional:
            x = zero_padding(x, attention_mask)
        return self.query(x), self.key(x), self.value(x)

    def apply_terms(self, q, k):
        """What the terms of this layer add to attention.

        Returns (q, k, query_rows, key_rows, value_table): q and k as the content term uses them,
        and three arguments of `attention`. query_rows is the sum of the query rows of all terms,
        or None if no term has query rows; key_rows and value_table in the same way.
        """
        query_rows = None
        key_rows = None
        value_table = None
        for term in self.terms.values():
            query_rows = add_rows(query_rows, term.query_rows(q), self.beyond)
            key_rows = add_rows(key_rows, term.key_rows(k), self.beyond)
            value_table = add_rows(value_table, term.value_table(), self.beyond)

        # Only now, because the rows are made from the plain q and k. The content term alone uses
        # q + b_c (xl), or rotated q and k (rotary).
        for term in self.terms.values():
            q, k = term.queries_and_keys(q, k)
        return q, k, query_rows, key_rows, value_table

    def initialise(self):
        # the terms have initialised themselves
        for name, part in self.named_children():
            if name != "terms":
                initialise_linear(part)


def make_projection(name, config, variant):
    """The query, key or value projection: half convolutional if the variant says so."""
    if name in variant.convolutional:
        return HalfConvolution(config)
    return nn.Linear(config.hidden_size, config.hidden_size)


class Canon(SelfAttention):
    """Self-attention that reads x + depthwise(x) in place of x. Allen-Zhu 2025 (Canon-A)

        x_i  <-  x_i + sum_r weight_r * x_(i+r) + bias        K weights and a bias per channel

    The convolution is added to x, so with weights and a bias of 0 this is attention without
    convolutions. Weights and bias have PyTorch's default initialisation, uniform in +-1/sqrt(K).
    Training decides how much each token takes from its neighbours. K = 5: two tokens on each side.
    (In the author's models, which read from left to right, K = 4.)
    """

    def __init__(self, config, variant, layer):
        super().__init__(config, variant, layer)
        self.canon = DepthwiseConvolution(config)

    def project(self, x, attention_mask):
        x = zero_padding(x, attention_mask)  # the convolution must not see what is at padding
        return super().project(x + self.canon(x), attention_mask)


class Deberta(SelfAttention):
    """Disentangled attention: content and position look at each other. He et al. 2021

        a_ij = (q_i . k_j  +  q_i . (W_k P_r)  +  k_j . (W_q P_(i-j))) / sqrt(3d)

    P (K, C) has one vector per relative position and is shared by all layers. W_k and W_q are the
    layer's own key and query projections, with their biases. So each vector of P has a key and a
    query, as a token has: the queries are multiplied by its key, and the keys by its query. In the
    letters of the other terms, this is dynamic with w_r = W_k P_r and key_dynamic with
    u_r = W_q P_r, but each head has its own w and u, and the divisor is sqrt(3d). It is a mixer of
    its own because a Term has neither the projections of its layer nor the parameters of another
    layer.
    """

    uses_beyond = True

    def __init__(self, config, variant, layer):
        super().__init__(config, variant, layer)
        self.P = nn.Parameter(torch.empty(config.kernel_size, config.hidden_size))  # (K, C)
        nn.init.normal_(self.P, std=0.02)  # as BERT's embeddings

    def share(self, earlier):
        # All DeBERTa layers use the P of the first of them (in a hybrid, layer 1 may be plain).
        for mixer in earlier:
            if isinstance(mixer, Deberta):
                self.P = mixer.P
                return

    def apply_terms(self, q, k):
        query_rows = self.rows(q, self.key)  # content to position: q_i . (W_k P_r)
        key_rows = self.rows(k, self.query)  # position to content: k_j . (W_q P_(i-j))
        return q / math.sqrt(3), k, query_rows, key_rows, None  # attention divides by sqrt(d)

    def rows(self, x, projection):
        """x_i . (W P_r) / sqrt(3d) for each r: (B, H, N, d) -> (B, H, N, K)."""
        d = x.shape[-1]
        # W P, in heads; split_heads takes a batch, here of one sequence
        table = split_heads(projection(self.P)[None], self.heads)  # (K, C) -> (1, H, K, d)
        table = table.transpose(-1, -2) / math.sqrt(3 * d)  # (1, H, d, K)
        return x @ table  # (B, H, N, d) (1, H, d, K) -> (B, H, N, K)


class ConvBert(Mixer):
    """H/2 heads of self-attention and H/2 heads of dynamic convolution. Jiang et al. 2020

        c   = pointwise(depthwise(x))               a summary of the neighbourhood of each token
        p_i = softmax over r of kernel(c_i * q_i)   K weights per token and convolution head
        z_i = sum_r p_i,r v_(i+r)                   the convolution of DynamicConv (below)

    q and k have width C/2. The attention heads use both, and q also makes the kernels of the
    convolution heads. v has width C: its first half serves the attention heads, its second half the
    convolution heads. The softmax is over all K weights. A weight at padding or beyond an end of
    the sequence is multiplied by a value of 0, so the sum of the other weights of this kernel is
    less than 1. In training each weight p_i,r is dropped with the config's probability, as in the
    code of Chang, who compare with ConvBERT in their appendix A.3.
    """

    def __init__(self, config, variant, layer):
        super().__init__()
        C = config.hidden_size
        require_even("heads", config.heads, "half of the heads are convolutions")
        self.heads = config.heads // 2  # of each kind
        self.causal = config.causal
        self.dropout = config.dropout

        # attention heads
        self.query = nn.Linear(C, C // 2)
        self.key = nn.Linear(C, C // 2)
        self.value = nn.Linear(C, C)

        # convolution heads
        self.depthwise = DepthwiseConvolution(config)
        self.pointwise = nn.Linear(C, C // 2)
        self.kernel = nn.Linear(C // 2, self.heads * config.kernel_size)

        self.output = nn.Linear(C, C)

    def forward(self, x, attention_mask):
        # The convolutions must not see what is at padding.
        x = zero_padding(x, attention_mask)

        # project
        query = self.query(x)  # (B, N, C/2)
        key = self.key(x)  # (B, N, C/2)
        value = zero_padding(self.value(x), attention_mask)  # (B, N, C)
        attention_value, convolution_value = value.chunk(2, dim=-1)  # (B, N, C/2) each

        # attention heads
        q = split_heads(query, self.heads)  # (B, H/2, N, d)
        k = split_heads(key, self.heads)  # (B, H/2, N, d)
        v = split_heads(attention_value, self.heads)  # (B, H/2, N, d)
        dropout = self.dropout if self.training else 0.0
        attended = attention(
            q,
            k,
            v,
            attention_mask,
            dropout=dropout,
            causal=self.causal,
            softmax=self.banded_softmax,
        )  # (B, H/2, N, d)

        # convolution heads
        p = self.kernel_logits(x, query).softmax(dim=-1)  # (B, H/2, N, K)
        p = F.dropout(p, dropout)
        v = split_heads(convolution_value, self.heads)  # (B, H/2, N, d)
        convolved = convolve(p, v, self.causal)  # (B, H/2, N, d)

        z = torch.cat([merge_heads(attended), merge_heads(convolved)], dim=-1)  # (B, N, C)
        return self.output(z)

    def kernel_logits(self, x, query):
        """kernel(c_i * q_i): (B, N, C) and (B, N, C/2) -> (B, H/2, N, K)."""
        c = self.pointwise(self.depthwise(x))  # (B, N, C/2)
        return split_heads(self.kernel(c * query), self.heads)  # (B, N, H/2 * K) -> (B, H/2, N, K)


class GatedConvolution(Mixer):
    """A convolution in place of attention: what LightConv and DynamicConv share. Wu et al. 2019

        g   = a * sigmoid(b),   a, b = input(x)      a gated linear unit: C -> 2C -> C
        z   = convolution of g                       see the subclasses
        y_i = output(z_i)

    The softmax is over all K weights. A weight at padding or beyond an end of the sequence is
    multiplied by a g of 0, so the other weights of this kernel sum to less than 1.
    """

    def __init__(self, config, variant, layer):
        super().__init__()
        C = config.hidden_size
        self.heads = config.heads
        self.causal = config.causal
        self.input = nn.Linear(C, 2 * C)
        self.output = nn.Linear(C, C)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, attention_mask):
        g = self.gate(x, attention_mask)  # (B, N, C)
        return self.output(self.convolution(g))

    def gate(self, x, attention_mask):
        """g = a * sigmoid(b) with a, b = input(x), and 0 at padding; (B, N, C) -> (B, N, C)."""
        g = F.glu(self.input(x))  # (B, N, 2C) -> (B, N, C)
        return zero_padding(g, attention_mask)


class LightConv(GatedConvolution):
    """A convolution whose kernel is shared by all channels of a head. Wu et al. 2019, sec. 3

        p   = softmax over r of weight               K weights per head, which sum to 1
        z_i = sum_r p_r g_(i + r*dilation)

    In training each of the H * K weights p_r is dropped with the config's probability, and the
    others are scaled up (DropConnect).

    Dilation (Tay et al. 2021): with the dilations 1, 2, 4, 8, the first layer has dilation 1, the
    second 2, the third 4, the fourth 8, and the fifth 1 again. Four layers together reach
    (1 + 2 + 4 + 8) * k = 15 * k tokens to each side: 120 for K = 17. Without dilation they reach
    4 * k = 32.
    """

    def __init__(self, config, variant, layer):
        super().__init__(config, variant, layer)
        self.dilation = variant.dilations[layer % len(variant.dilations)]
        # Xavier's range depends on the shape; in the authors' code it is (H, 1, K).
        weight = nn.init.xavier_uniform_(torch.empty(config.heads, 1, config.kernel_size))
        self.weight = nn.Parameter(weight.squeeze(1))  # (H, 1, K) -> (H, K)

    def convolution(self, g):
        p = self.dropout(self.weight.softmax(dim=-1))  # (H, K)
        d = g.shape[-1] // self.heads
        by_channel = p.repeat_interleave(d, dim=0)  # (H, K) -> (C, K)
        return depthwise_convolution(g, by_channel, dilation=self.dilation, causal=self.causal)


class DynamicConv(GatedConvolution):
    """A convolution whose kernel each token makes for itself. Wu et al. 2019, sec. 4

        p_i = softmax over r of kernel(g_i)          K weights per token and head
        z_i = sum_r p_i,r g_(i+r)

    In training, each weight p_i,r is dropped with the config's probability.
    """

    def __init__(self, config, variant, layer):
        super().__init__(config, variant, layer)
        self.kernel = nn.Linear(config.hidden_size, config.heads * config.kernel_size, bias=False)

    def convolution(self, g):
        p = self.dropout(self.kernel_logits(g).softmax(dim=-1))  # (B, H, N, K)
        z = convolve(p, split_heads(g, self.heads), self.causal)  # (B, H, N, d)
        return merge_heads(z)  # (B, N, C)

    def kernel_logits(self, g):
        """(B, N, C) -> (B, H, N, K)."""
        return split_heads(self.kernel(g), self.heads)  # (B, N, H * K) -> (B, H, N, K)


# --- The table of variants ------------------------------------------------------------------------


QK = ("query", "key")
QKV = ("query", "key", "value")


@dataclass(frozen=True)
class Variant:
    """What one name of `--variant` means."""

    equation: str  # printed when a run starts
    terms: tuple[str, ...] = ()  # names in TERMS
    convolutional: tuple[str, ...] = ()  # which projections, of QKV, are a HalfConvolution
    depthwise: bool = False  # a depthwise convolution of the values, added after attention
    absolute: bool = False  # learned absolute positions, added to the embeddings (model.py)
    mixer: type = SelfAttention
    dilations: tuple[int, ...] = (1,)  # of the layers of a convolution, in turn
    hybrid: bool = False  # one layer is plain self-attention (attention_layer)
    kernel_size: int = 17  # K if the user gives none

    def __post_init__(self):
        for name in self.terms:
            if name not in TERMS:
                raise UserError(f"unknown term {name!r}; the terms are: {', '.join(TERMS)}")
        for name in self.convolutional:
            if name not in QKV:
                raise UserError(f"unknown projection {name!r}; they are: {', '.join(QKV)}")

    @property
    def has_kernel(self):
        """Whether the user may choose K: True for every mixer other than SelfAttention."""
        if self.mixer is not SelfAttention or self.convolutional or self.depthwise:
            return True
        return any(TERMS[name].has_window for name in self.terms)

    @property
    def uses_beyond(self):
        """Whether the config's `beyond` changes what this variant computes."""
        return self.mixer.uses_beyond or any(TERMS[name].has_window for name in self.terms)


COMPOSITE = ("fixed", "dynamic")
DILATIONS = (1, 2, 4, 8)

# The equations are only printed: what a variant computes is said by the other fields.
VARIANTS = {
    # Chang: position terms
    "none": Variant("a_ij = q_i.k_j/sqrt(d)"),
    "absolute": Variant("a_ij = q_i.k_j/sqrt(d),  x_i = token_i + position_i", absolute=True),
    "fixed": Variant("a_ij = q_i.k_j/sqrt(d) + beta_r", terms=("fixed",)),
    "dynamic": Variant("a_ij = q_i.k_j/sqrt(d) + q_i.w_r/sqrt(d)", terms=("dynamic",)),
    "composite": Variant("a_ij = q_i.k_j/sqrt(d) + q_i.w_r/sqrt(d) + beta_r", terms=COMPOSITE),
    "composite-key": Variant(
        "a_ij = q_i.k_j/sqrt(d) + q_i.w_r/sqrt(d) + beta_r + k_j.u_(i-j)/sqrt(d)",
        terms=COMPOSITE + ("key_dynamic",),
    ),
    # Chang: convolutions next to attention and in the projections
    "depthwise": Variant(
        "a_ij = q_i.k_j/sqrt(d),  z_i = sum_j p_ij v_j + depthwise(v)_i", depthwise=True
    ),
    "composite-depthwise": Variant(
        "a_ij = q_i.k_j/sqrt(d) + q_i.w_r/sqrt(d) + beta_r,  z_i = sum_j p_ij v_j + depthwise(v)_i",
        terms=COMPOSITE,
        depthwise=True,
    ),
    "conv-qk": Variant(
        "a_ij = q_i.k_j/sqrt(d),  half of q, k = pointwise(depthwise(x))", convolutional=QK
    ),
    "conv-v": Variant(
        "a_ij = q_i.k_j/sqrt(d),  half of v = pointwise(depthwise(x))", convolutional=("value",)
    ),
    "conv-qkv": Variant(
        "a_ij = q_i.k_j/sqrt(d),  half of q, k, v = pointwise(depthwise(x))", convolutional=QKV
    ),
    "composite-conv-qk": Variant(
        "a_ij = q_i.k_j/sqrt(d) + q_i.w_r/sqrt(d) + beta_r,  "
        "half of q, k = pointwise(depthwise(x))",
        terms=COMPOSITE,
        convolutional=QK,
    ),
    "composite-conv-v": Variant(
        "a_ij = q_i.k_j/sqrt(d) + q_i.w_r/sqrt(d) + beta_r,  half of v = pointwise(depthwise(x))",
        terms=COMPOSITE,
        convolutional=("value",),
    ),
    "composite-conv-qkv": Variant(
        "a_ij = q_i.k_j/sqrt(d) + q_i.w_r/sqrt(d) + beta_r,  "
        "half of q, k, v = pointwise(depthwise(x))",
        terms=COMPOSITE,
        convolutional=QKV,
    ),
    # other papers: Jiang et al. 2020, Shaw et al. 2018
    "convbert": Variant(
        "H/2 heads: a_ij = q_i.k_j/sqrt(d);  "
        "H/2 heads: z_i = sum_r softmax_r(kernel(c_i * q_i)) v_(i+r),  "
        "c = pointwise(depthwise(x));  x_i = token_i + position_i",
        absolute=True,
        mixer=ConvBert,
        kernel_size=9,
    ),
    "shaw": Variant(
        "a_ij = q_i.k_j/sqrt(d) + q_i.w_r/sqrt(d),  z_i = sum_j p_ij (v_j + s_r)",
        terms=("dynamic", "relative_value"),
    ),
    # further relative positions: docs/family.md
    "t5": Variant("a_ij = q_i.k_j/sqrt(d) + beta_bucket(r)", terms=("t5",)),
    "alibi": Variant("a_ij = q_i.k_j/sqrt(d) - m_h abs(r),  m_h = 2^(-8(h+1)/H)", terms=("alibi",)),
    "fire": Variant(
        "a_ij = q_i.k_j/sqrt(d) + mlp_h(sign(r) log(1 + c abs(r)) / log(1 + c max(N, L)))",
        terms=("fire",),
    ),
    "xl": Variant("a_ij = ((q_i + b_c).k_j + (q_i + b_p).(W S_r))/sqrt(d)", terms=("xl",)),
    "rotary": Variant("a_ij = (R_i q_i).(R_j k_j)/sqrt(d)", terms=("rotary",)),
    "deberta": Variant(
        "a_ij = (q_i.k_j + q_i.(W_k P_r) + k_j.(W_q P_(i-j)))/sqrt(3d)", mixer=Deberta
    ),
    "canon": Variant("a_ij = q_i.k_j/sqrt(d),  x = x + depthwise(x)", mixer=Canon, kernel_size=5),
    # convolutions in place of attention: Wu et al. 2019, Tay et al. 2021
    "lightconv": Variant(
        "z_i = sum_r softmax_r(weight) g_(i+r),  g = glu(input(x))", mixer=LightConv
    ),
    "dynamicconv": Variant(
        "z_i = sum_r softmax_r(kernel(g_i)) g_(i+r),  g = glu(input(x))", mixer=DynamicConv
    ),
    "dilated": Variant(
        "z_i = sum_r softmax_r(weight) g_(i+D*r),  g = glu(input(x)),  D = 1, 2, 4, 8 by layer",
        mixer=LightConv,
        dilations=DILATIONS,
    ),
    "lightconv-hybrid": Variant(
        "z_i = sum_r softmax_r(weight) g_(i+r),  g = glu(input(x));  "
        "one layer: a_ij = q_i.k_j/sqrt(d)",
        mixer=LightConv,
        hybrid=True,
    ),
    "dynamicconv-hybrid": Variant(
        "z_i = sum_r softmax_r(kernel(g_i)) g_(i+r),  g = glu(input(x));  "
        "one layer: a_ij = q_i.k_j/sqrt(d)",
        mixer=DynamicConv,
        hybrid=True,
    ),
    "dilated-hybrid": Variant(
        "z_i = sum_r softmax_r(weight) g_(i+D*r),  g = glu(input(x)),  D = 1, 2, 4, 8 by layer;  "
        "one layer: a_ij = q_i.k_j/sqrt(d)",
        mixer=LightConv,
        dilations=DILATIONS,
        hybrid=True,
    ),
}


def mixer_of_layer(config, layer):
    """Make the mixer of one layer of a model. `layer` is counted from 0.

    config needs .variant, .hidden_size (C), .heads (H), .kernel_size (K), .beyond, .dropout,
    .causal and .attention_layer. In a hybrid, the layer of the number attention_layer is plain
    self-attention. It is counted from 1, because users give it on the command line.
    """
    variant = VARIANTS[config.variant]
    if variant.hybrid and layer == config.attention_layer - 1:
        variant = VARIANTS["none"]
    mixer = variant.mixer(config, variant, layer)
    if config.causal and not mixer.causal:
        name = type(mixer).__name__
        raise UserError(
            f"{name} (attention.py) does not set self.causal, which a causal model needs"
        )
    return mixer


def make_mixers(config):
    """Yield the mixers of the layers of a model, from the first; config.layers says how many.

    A mixer may take parameters of an earlier one (Mixer.share).

    This is a generator: with `yield`, the mixer of layer 2 is made only when the model asks for it,
    after it has made the rest of layer 1 (LayerNorms, feed-forward network). So the random initial
    weights are drawn layer by layer. A list would draw those of all mixers first.
    """
    mixers = []
    for layer in range(config.layers):
        mixer = mixer_of_layer(config, layer)
        mixer.share(mixers)
        mixers.append(mixer)
        yield mixer
