"""Every way of joining self-attention and convolution, one equation at a time.

Letters (the same in all files):

    B  sequences in a batch        C  hidden size = H * d          i  position of a query
    N  tokens in a sequence        k  reach of a kernel            j  position of a key
    H  heads, d channels each      K  kernel size = 2k + 1         r  relative position j - i

    q_i, k_j, v_j   query, key and value of a head: vectors of d numbers
    a_ij, p_ij      the score of query i and key j, and its softmax over j
    z_i             sum_j p_ij v_j, the output of a head
    beta, w, u, s   learned, for each r: beta_r is a scalar per head; w_r, u_r, s_r have d numbers

In pre-training, a sequence is a pair of sentences. The reach k is the number of tokens that a
kernel covers on each side of the token itself. In the code of this file, q, k and v are the
queries, keys and values, so the reach is written K // 2. In an equation, [+ ...] is a part that
only some variants have.

[C] is Chang, Xu, Xu, Tu 2021, "Convolutions and Self-Attention: Re-interpreting Relative Positions
in Pre-trained Language Models". It writes alpha_ij for a_ij, W^C_(j-i) for w_(j-i), d_h for d,
d for C, and n for N. The other papers are linked in README.md, in the table of variants.

The one idea: a variant is self-attention whose score is a SUM OF NAMED TERMS,

    content        a_ij =  q_i . k_j / sqrt(d)             Vaswani et al. 2017; [C] eq. 1
    fixed               +  beta_(j-i)                      Raffel et al. 2020;  [C] eq. 4
    dynamic             +  q_i . w_(j-i) / sqrt(d)         Shaw et al. 2018;    [C] eq. 5
    key_dynamic         +  k_j . u_(i-j) / sqrt(d)         Huang et al. 2020

plus the places where convolutions are added. T5's buckets, ALiBi, FIRE and Transformer-XL are
further terms of this sum. Rotary embeddings add no term: they change the content term.
Transformer-XL does both.

The mixer of a layer is the module that lets the tokens of a sequence see each other. Usually it is
self-attention with these terms. ConvBERT, DeBERTa and Canon layers have mixers of their own, and so
do the convolutions in place of attention (Wu et al. 2019; Tay et al. 2021). docs/family.md compares
the relative positions.

Why relative positions are convolutions: take the fixed term alone, and only the keys within k
positions. Then z_i = sum_j softmax_j(beta_(j-i)) v_j is a convolution of the values v whose kernel
is softmax(beta). This is exact where the window, the K positions from -k to k, is inside the
sequence. Near an end, the window covers fewer than K keys, and the softmax divides the weight among
these. tests/science/test_equivalence.py shows this argument step by step, in code.

So a row of K numbers that a term adds to the scores, such as beta, is a kernel before its softmax.
There is one softmax, over the sum of all terms, so content and position are multiplied:
exp(content + beta_r) = exp(content) * exp(beta_r).

This file, from top to bottom: attention itself; the position terms; further relative positions;
convolutions; the mixers, each with its equation; and the table VARIANTS. A new entry in VARIANTS is
a new variant. A new term is a subclass of Term and an entry in TERMS.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from kernels import add_band, attention_in_blocks, band_sums, convolve, key_scores, widen
from support.commands import UserError

# With more queries than this, attention is computed in blocks of queries. It must be at least
# kernels.BLOCK; otherwise each block would itself be divided into blocks, without end.
LONGEST_WHOLE = 1024


# --- Attention ------------------------------------------------------------------------------------


def attention(
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
):
    """Attention with relative positions.

        a_ij = q_i . k_j / sqrt(d)  [+ query_rows[i, j - i]]  [+ key_rows[j, i - j]]
        z_i  = sum_j softmax_j(a_ij) (v_j  [+ relative_value[j - i]])

    A row has K = 2k + 1 numbers, one for each relative position from -k to k. In these equations
    rows[i, r] is the number for r; in the tensor it is column r + k. Example: 3 tokens, K = 3, and
    every query has the row (a, b, c). This map is added to the scores (with "clip"):

        b c c        key 2 is farther than k = 1 from query 0: it gets the end number c
        a b c
        a a b

    kernels.py makes such a map from rows. The terms t5, alibi, fire and xl have no window: they
    have a number for every r from -(N - 1) to N - 1, so their rows have 2N - 1 columns in place of
    K, as if k were N - 1.

    Args:
        query: (B, H, n, d), for n queries; n = N except for one block of a long sequence.
        key, value: (B, H, N, d).
        attention_mask: (B, N) bool, True at real tokens, False at padding, which gets no attention.
            Every sequence must have at least one real token.
        query_rows: (B, H, n, K), what query i adds to the scores of the keys around it; (H, n, K)
            if all sequences have the same rows; (H, 1, K) if all queries have the same row, too;
            None for no such term.
        key_rows: (B, H, N, K) or (H, N, K), what key j adds to the scores of the queries around it;
            None for no such term. Not (H, 1, K): if all keys have the same row, give it in reverse
            order as query_rows.
        relative_value: (d, K), what is added to a value at each relative position.
        beyond: what is added to the score of a key farther away than k: the end number of the row
            ("clip") or 0 ("zero"). The same is true of relative_value, which is added to the value.
        dropout: probability of setting a weight of the softmax to 0.
        first, generator: only for a block of a long sequence (at most LONGEST_WHOLE queries): the
            position of its first query, and the torch.Generator for its dropout.
    Returns:
        z (B, H, n, d), in the dtype of value.
    """
    # More than LONGEST_WHOLE queries: kernels.py calls this function again, with one block of
    # queries at a time. So the map of scores is never in memory as a whole.
    if query.shape[-2] > LONGEST_WHOLE:
        return attention_in_blocks(
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

    n, d = query.shape[-2:]

    # content: q_i . k_j / sqrt(d). Without the division, scores would grow with d, and nearly all
    # weight would go to one key. Dividing q costs less than dividing the larger map.
    scores = (query / math.sqrt(d)) @ key.transpose(-1, -2)  # (B, H, n, N)

    # fixed and dynamic: + beta_(j-i) + q_i . w_(j-i) / sqrt(d). The row of query i is shifted so
    # that its middle column, r = 0, is at key i.
    if query_rows is not None:
        scores = add_band(scores, query_rows, beyond, first)

    # key_dynamic: + k_j . u_(i-j) / sqrt(d), rows that belong to the keys
    if key_rows is not None:
        scores = scores + key_scores(key_rows.to(scores.dtype), n, beyond, first)

    # padding: a score so low that its softmax is 0
    scores = scores + lowest_at_padding(attention_mask, scores.dtype)

    # each query's weights over the keys, which sum to 1
    p = scores.softmax(dim=-1)  # (B, H, n, N)
    p = drop(p, dropout, generator)

    # values: sum_j p_ij v_j (under autocast on a GPU p is float32, and the values are bf16)
    z = p.to(value.dtype) @ value  # (B, H, n, d)

    # relative values: sum_j p_ij s_(j-i) = sum_r (sum of the p_ij with j - i = r) s_r
    if relative_value is not None:
        sums = band_sums(p, relative_value.shape[-1], beyond, first)  # (B, H, n, K)
        s = relative_value.to(value.dtype).t()  # (d, K) -> (K, d)
        z = z + sums.to(value.dtype) @ s  # (B, H, n, K) (K, d) -> (B, H, n, d)
    return z


def lowest_at_padding(attention_mask, dtype):
    """What is added to the scores, (B, 1, 1, N): 0 at real tokens, a very low number at padding.

    The low number is half of the lowest number of the dtype, so that adding a score to it cannot
    overflow. An addition costs less than masked_fill, whose backward pass copies the map once more.
    """
    zeros = torch.zeros_like(attention_mask, dtype=dtype)  # (B, N)
    lowest = zeros.masked_fill(~attention_mask, torch.finfo(dtype).min / 2)
    return lowest[:, None, None, :]  # (B, N) -> (B, 1, 1, N)


def drop(p, dropout, generator=None):
    """Dropout: each number becomes 0 with probability `dropout`, the others are scaled up.

    Without a generator, this is F.dropout. With a generator, the random numbers come from it and
    not from torch's global state; F.dropout has no such option. The blocks of a long sequence need
    a generator: the backward pass computes them again (kernels.py), with the same random numbers.
    """
    if generator is None:
        return F.dropout(p, dropout)
    kept = torch.empty_like(p).bernoulli_(1 - dropout, generator=generator)
    return p * kept.div_(1 - dropout)


def split_heads(x, heads):
    """(B, N, C) -> (B, H, N, d): head h has the channels h*d .. h*d + d - 1."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, N, C) -> (B, N, H, d) -> (B, H, N, d)


def merge_heads(x):
    """(B, H, N, d) -> (B, N, C), the inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)  # (B, H, N, d) -> (B, N, H, d) -> (B, N, C)


# --- Position terms: each makes rows of weights, one per relative position ------------------------


BELONGS_TO = ("query", "key", "value", "content")  # what a term can belong to


class Term(nn.Module):
    """A term that depends on the relative position: usually rows that are added to the scores.

    The rows belong either to the queries or to the keys. forward takes the queries or the keys,
    (B, H, N, d), and returns one row for each of them: (B, H, N, K), or (H, N, K) if all sequences
    have the same rows. A term of the queries may also return (H, 1, K), one row for all queries; a
    term of the keys must return N rows. SelfAttention adds up the rows of all terms.

    A term with a window has its own number only for abs(r) <= k. A term without a window has one
    for every r from -(N - 1) to N - 1: its rows have 2N - 1 columns in place of K. every_r(q) gives
    these r. Do not compute with them in the dtype of q: under autocast this is bf16, which rounds
    large distances. exact_dtype(q) is a dtype that does not.

    The constructor also initialises the parameters. For linear layers, initialise_linear does this
    as in BERT.
    """

    # "query": forward(q) returns a row for each query. "key": forward(k) returns one for each key.
    # "value": no forward; table() is added to the values. "content": no forward; only content() is
    # overridden. A term with rows may override content() as well.
    belongs_to = "query"
    uses_kernel_size = True  # a row has K columns

    def __init__(self, config=None):
        super().__init__()  # a term without parameters ignores the config

    def content(self, q, k):
        """The queries and keys that the content term q_i . k_j uses, (B, H, N, d) each."""
        return q, k  # unchanged

    def fixed_kernel(self):
        """The row (H, K) of a term with a window, if it does not depend on the text; for figures.

        None for every other term. The rows of t5, alibi and fire do not depend on the text either,
        but these terms have no window.
        """
        return None


class Fixed(Term):
    """fixed: + beta_r, one scalar per head and relative position, not scaled. [C] eq. 4

    T5 (Raffel et al. 2020) adds such a bias. It is initialised to 0.
    """

    def __init__(self, config):
        super().__init__(config)
        self.beta = nn.Parameter(torch.zeros(config.heads, config.kernel_size))  # (H, K)

    def forward(self, q):
        # (H, 1, K): the same row for every sequence and query
        return self.beta[:, None, :]  # (H, K) -> (H, 1, K)

    def fixed_kernel(self):
        return self.beta


class Dynamic(Term):
    """dynamic: + q_i . w_r / sqrt(d), a kernel made by each query. [C] eq. 5; Shaw et al. 2018

    w is one table per layer, shared by all heads.
    """

    def __init__(self, config):
        super().__init__(config)
        self.w = relative_table(config)  # (d, K)

    def forward(self, q):
        d = q.shape[-1]
        return q @ (self.w / math.sqrt(d))  # (B, H, N, d) (d, K) -> (B, H, N, K)


class KeyDynamic(Term):
    """key_dynamic: + k_j . u_(i-j) / sqrt(d), a kernel made by each key. Huang et al. 2020

    The row belongs to key j. It is read at i - j = -r, the position of the query as seen from the
    key. u is one table per layer, shared by all heads.
    """

    belongs_to = "key"

    def __init__(self, config):
        super().__init__(config)
        self.u = relative_table(config)  # (d, K)

    def forward(self, k):
        d = k.shape[-1]
        return k @ (self.u / math.sqrt(d))  # (B, H, N, d) (d, K) -> (B, H, N, K)


class RelativeValue(Term):
    """relative_value: s_r, added to the value of the key at r. Shaw et al. 2018

    This is the only term outside the score. s is one table per layer, shared by all heads.
    """

    belongs_to = "value"

    def __init__(self, config):
        super().__init__(config)
        self.s = relative_table(config)  # (d, K)

    def table(self):
        return self.s


def relative_table(config):
    """A table (d, K): one d-vector per relative position.

    Its initial values are uniform in +-1/sqrt(K), as in [C]'s released code.
    """
    d = config.hidden_size // config.heads
    table = torch.empty(d, config.kernel_size)

    # with a = sqrt(5), torch's range is sqrt(6 / ((1 + 5) K)) = 1 / sqrt(K)
    return nn.Parameter(nn.init.kaiming_uniform_(table, a=math.sqrt(5)))


# --- Further relative positions -------------------------------------------------------------------


class T5(Term):
    """t5: + beta_bucket(r), one scalar per head and bucket, not scaled. Raffel et al. 2020

    Near tokens have a bucket each, and farther ones share buckets that grow with the distance. Of
    the 32 buckets, 16 are for r <= 0 and 16 for r > 0:

        bucket   0 .. 7   8      9       10      11      12      13      14      15
        abs(r)   0 .. 7   8-11   12-15   16-22   23-31   32-45   46-63   64-90   91 and more

    Bucket 8 + m begins at 8 * 2^(m/2), rounded up: from one bucket to the next, the start grows by
    a factor of about sqrt(2). The last bucket holds all distances from 91 on. For abs(r) >= 8, T5
    writes the bucket as 8 + floor(8 log(abs(r) / 8) / log(128 / 8)), at most 15. The 128 is T5's
    max_distance.

    For r > 0, 16 is added to the number of the bucket. Bucket 16 is never used, as in T5: it would
    be that of r = 0, which has bucket 0. beta is one table per layer and is initialised to 0. T5
    has one table for all layers, and does not divide the content by sqrt(d).
    """

    STARTS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)  # of the buckets 1, 2, ..., 15
    uses_kernel_size = False

    def __init__(self, config):
        super().__init__(config)
        self.beta = nn.Parameter(torch.zeros(config.heads, 32))  # (H, 32)

    def forward(self, q):
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
    There is nothing to learn. In the paper, a token sees only earlier tokens; this is the symmetric
    form. If H is not a power of two (BERT-base has 12 heads), the slopes here are still those of
    the paper's formula; the authors' code then has others.
    """

    uses_kernel_size = False

    def forward(self, q):
        H = q.shape[1]
        h = torch.arange(H, device=q.device, dtype=exact_dtype(q))
        slopes = 2 ** (-8 * (h + 1) / H)  # m_h: (H,)
        return -slopes[:, None, None] * every_r(q).abs()  # (H, 1, 2N - 1)


class Fire(Term):
    """fire: + mlp_h(x_r), a learned function of the distance. Li et al. 2024

        x_r = sign(r) log(1 + c abs(r)) / log(1 + c max(N, L))        in [-1, 1]
        mlp = Linear 1 -> 32, ReLU, Linear 32 -> H

    The larger c is, the more of [-1, 1] is used for near tokens. The divisor maps the distance L to
    1, or the distance N if N is larger than L. N includes padding, so in this case the amount of
    padding changes the scores. The paper has max(i, L) for query i in place of max(N, L): there,
    all keys are to the left of the query, so no distance is larger than i. Here a key to the right
    may be farther away.

    c = 0.1 exp(log_c) and L = 512 exp(log_L): at first they are the paper's 0.1 and 512, and exp
    keeps them positive (the authors take the absolute value). The sign lets one function serve both
    directions. Both linear layers have PyTorch's default initialisation.
    """

    uses_kernel_size = False

    def __init__(self, config):
        super().__init__(config)
        self.hidden = nn.Linear(1, 32)
        self.output = nn.Linear(32, config.heads)
        self.log_c = nn.Parameter(torch.zeros(()))
        self.log_L = nn.Parameter(torch.zeros(()))

    def forward(self, q):
        N = q.shape[-2]
        c = 0.1 * self.log_c.exp()
        L = 512 * self.log_L.exp()

        # the distance, between -1 and 1
        # (c is float32, also under autocast, so r is exact)
        r = every_r(q).to(c.dtype)  # (2N - 1,)
        divisor = torch.log(1 + c * L.clamp(min=N))  # log(1 + c max(N, L))
        x = r.sign() * torch.log(1 + c * r.abs()) / divisor  # (2N - 1,)

        # the first layer as plain products: a matrix product would round x to bf16 under autocast
        hidden = F.relu(x[:, None] * self.hidden.weight[:, 0] + self.hidden.bias)  # (2N - 1, 32)
        rows = self.output(hidden)  # (2N - 1, H)
        return rows.t()[:, None, :]  # (H, 1, 2N - 1)


class TransformerXL(Term):
    """xl: a content term with a bias, and a term from sinusoids. Dai et al. 2019

        a_ij = ((q_i + u) . k_j  +  (q_i + v) . (W R_r)) / sqrt(d)

    R_r is a vector of C sinusoids (Vaswani et al. 2017), and W: C -> C turns it into keys: of the C
    numbers of W R_r, each head uses its own d. So the row of query i is the sum of a dynamic term,
    q_i . w_r, and a fixed term, v . w_r. Their table w_r = W R_r, one per head, is not learned
    entry by entry: it is computed, for every r.

    u and v are the paper's letters for two biases, one vector per head: not the values, and not the
    table of key_dynamic. They are initialised to 0; the authors draw them from normal(0, 0.02), and
    share them between the layers in some of their models. W is initialised as BERT's linear layers.
    The paper has R_(i-j), which only changes the sign of the sines; W can undo this. Each of the N
    queries has a row of 2N - 1 weights, so the memory for the rows grows with N^2.
    """

    uses_kernel_size = False

    def __init__(self, config):
        super().__init__(config)
        C = config.hidden_size
        H = config.heads
        if C % 2:
            raise UserError(f"xl has as many sines as cosines: hidden_size cannot be {C}")
        self.W = nn.Linear(C, C, bias=False)
        initialise_linear(self)
        self.u = nn.Parameter(torch.zeros(H, C // H))  # (H, d)
        self.v = nn.Parameter(torch.zeros(H, C // H))  # (H, d)

    def content(self, q, k):
        u = self.u[:, None, :]  # (H, d) -> (H, 1, d)
        return q + u.to(q.dtype), k

    def forward(self, q):
        H, _, d = q.shape[1:]

        # R_r for every r, computed exactly, and then in the dtype of W, which may be bf16
        R = sinusoids(every_r(q), H * d, exact_dtype(q))  # (2N - 1, C)
        R = R.to(self.W.weight.dtype)

        # w_r = W R_r, in heads; split_heads takes a batch, here of one sequence
        w = split_heads(self.W(R)[None], H)[0]  # (2N - 1, C) -> (H, 2N - 1, d)

        # (q_i + v) . w_r / sqrt(d): one matrix product per head, for all sequences together
        q = q + self.v[:, None, :].to(q.dtype)  # (B, H, N, d)
        return torch.einsum("bhid,hrd->bhir", q, w / math.sqrt(d))  # (B, H, N, 2N - 1)


class Rotary(Term):
    """rotary: content (R_i q_i) . (R_j k_j) / sqrt(d), without rows. Su et al. 2021

    R_i rotates each pair of neighbouring channels (2m, 2m + 1) by the angle i * 10000^(-2m/d):

        a, b  ->  a cos - b sin,  a sin + b cos

    (R_i q_i) . (R_j k_j) = q_i . (R_(j-i) k_j), because the transpose of R_i rotates backwards by
    the angles of i, and then R_j rotates forwards by those of j. So the score depends on the two
    positions only through their difference. There is nothing to learn. R_i is a rotation, a d x d
    matrix. It is not the vector R_r of xl.
    """

    belongs_to = "content"
    uses_kernel_size = False

    def __init__(self, config):
        super().__init__(config)
        d = config.hidden_size // config.heads
        if d % 2:
            raise UserError(f"rotary rotates pairs of channels: a head cannot have {d} of them")

    def content(self, q, k):
        N, d = q.shape[-2:]
        i = torch.arange(N, device=q.device)
        angles = i[:, None] * frequencies(d, q.device, exact_dtype(q))  # (N, d/2)
        return rotate(q, angles), rotate(k, angles)


def rotate(x, angles):
    """Rotate each pair of neighbouring channels of x (B, H, N, d) by its angle, (N, d/2).

    A pair (a, b) is read as the complex number a + b sqrt(-1). To rotate it is to multiply it by
    cos(angle) + sin(angle) sqrt(-1): one complex product in place of four real ones. Example with
    d = 4, and angles of 90 and 180 degrees:

        channels    (1, 0, 2, 0)
        pairs       1 + 0 sqrt(-1)     2 + 0 sqrt(-1)
        factors     0 + 1 sqrt(-1)    -1 + 0 sqrt(-1)
        products    0 + 1 sqrt(-1)    -2 + 0 sqrt(-1)
        channels    (0, 1, -2, 0)

    The result is computed in float32 or better, and returned in the dtype of x.
    """
    # view_as_complex needs the two numbers of a pair side by side in memory: contiguous
    pairs = x.to(angles.dtype).unflatten(-1, (-1, 2)).contiguous()  # (B, H, N, d/2, 2)
    factors = torch.polar(torch.ones_like(angles), angles)  # cos + sin sqrt(-1), (N, d/2) complex
    rotated = torch.view_as_complex(pairs) * factors  # (B, H, N, d/2) complex
    return torch.view_as_real(rotated).flatten(-2).to(x.dtype)  # (B, H, N, d)


def every_r(q):
    """-(N - 1) .. N - 1, all relative positions of N queries (B, H, N, d): (2N - 1,) integers."""
    N = q.shape[-2]
    return torch.arange(1 - N, N, device=q.device)


def exact_dtype(q):
    """The dtype of numbers that are computed from positions: float32, or float64 if q has it.

    In bf16, which has 8 bits of precision, large distances would be rounded. Under autocast, the
    matrix products of fire and xl still compute in bf16, but from exact distances.
    """
    return torch.promote_types(q.dtype, torch.float32)


def frequencies(channels, device, dtype):
    """10000^(-2m/channels) for m = 0, 1, ..., channels/2 - 1."""
    m = torch.arange(channels // 2, device=device, dtype=dtype)
    return 10000 ** (-2 * m / channels)


def sinusoids(r, channels, dtype):
    """R_r for positions r (n,): (n, channels), first all sines and then all cosines.

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


def depthwise_convolution(x, weight, bias=None, dilation=1):
    """y_i,c = sum_r weight_c,r x_(i + r*dilation),c  [+ bias_c]: one kernel per channel. [C] eq. 2

    Values beyond the ends of the sequence are 0.

    The sequence is treated as an image that is D = dilation tokens wide, because libraries have a
    fast two-dimensional depthwise convolution. One step down in the image is a step of D tokens in
    the sequence. Example: N = 8 tokens, D = 3, padded to 9:

        0 1 2
        3 4 5        the column 0 3 6 holds the tokens that a kernel of 3 weights
        6 7 -        with dilation 3 sees from token 3

    Args:
        x: (B, N, C). weight: (C, K), K odd. bias: (C,) or None.
    Returns:
        (B, N, C).
    """
    N = x.shape[1]
    D = dilation
    C, K = weight.shape

    # the image: N / D rows (rounded up) of D tokens, the last row filled up with zeros
    spare = -N % D  # tokens that the last row lacks: N = 8, D = 3 gives 1
    image = F.pad(x, (0, 0, 0, spare))  # (B, N, C) -> (B, N + spare, C)
    image = image.unflatten(1, (-1, D)).movedim(-1, 1)  # (B, rows, D, C) -> (B, C, rows, D)

    # a kernel that is K rows high and 1 column wide, for each channel separately
    kernel = weight[:, None, :, None]  # (C, K) -> (C, 1, K, 1)
    y = F.conv2d(image, kernel, bias, padding=(K // 2, 0), groups=C)  # (B, C, rows, D)

    # back to a sequence, without the spare tokens
    y = y.movedim(1, -1).flatten(1, 2)  # (B, rows, D, C) -> (B, N + spare, C)
    return y[:, :N]  # (B, N + spare, C) -> (B, N, C)


class DepthwiseConvolution(nn.Conv1d):
    """`depthwise_convolution` with its own weight (C, 1, K) and bias (C)."""

    def __init__(self, channels, kernel_size):
        super().__init__(channels, channels, kernel_size, groups=channels)

    def forward(self, x):
        return depthwise_convolution(x, self.weight[:, 0], self.bias)  # (C, 1, K) -> (C, K)


class HalfConvolution(nn.Module):
    """A projection: a convolution in the first H/2 heads, linear in the others. [C] sec. 5

        first half    y = pointwise(depthwise(x)), without an activation in between
        second half   y = linear(x)

    pointwise is a linear layer: it is applied at each token separately.

    (B, N, C) -> (B, N, C). x must be 0 at padding.
    """

    def __init__(self, config):
        super().__init__()
        C = config.hidden_size
        d = C // config.heads
        half = half_of_the_heads(config) * d  # channels of each half: C/2
        self.depthwise = DepthwiseConvolution(C, config.kernel_size)
        self.pointwise = nn.Linear(C, half)
        self.linear = nn.Linear(C, half)

    def forward(self, x):
        convolved = self.pointwise(self.depthwise(x))  # (B, N, C/2)
        projected = self.linear(x)  # (B, N, C/2)
        return torch.cat([convolved, projected], dim=-1)  # (B, N, C)


def half_of_the_heads(config):
    """H/2: half of the heads are convolutions, as in the papers. UserError if H is odd."""
    if config.heads % 2:
        raise UserError(
            f"{config.variant} gives half of the heads to convolutions: "
            f"heads must be even, not {config.heads}"
        )
    return config.heads // 2


def zero_padding(x, attention_mask):
    """x (B, N, C) with 0 at padding, so that a convolution does not see what is there."""
    return x.masked_fill(~attention_mask[:, :, None], 0)


# --- Mixers: what lets the tokens of a sequence see each other ------------------------------------


class Mixer(nn.Module):
    """The base class of the modules that let the tokens of a sequence see each other.

    forward(x, attention_mask) takes x (B, N, C) and attention_mask (B, N), a bool tensor that is
    True at real tokens. It returns (B, N, C), in which the values at padding have no meaning. The
    constructor takes the model's config, the Variant and the number of the layer, counted from 0.
    """

    # Which of terms, convolutional, depthwise and dilations this mixer reads. A Variant that gives
    # another one of these four is refused.
    uses = ()
    uses_kernel_size = True  # whether the kernel size K means anything for it
    # Whether it reads the config's `beyond`. A mixer that does must say True: otherwise pretrain.py
    # refuses --beyond zero for it.
    uses_beyond = False

    def initialise(self):
        """Called once, when the model is complete. By default, linear layers start as in BERT."""
        initialise_linear(self)

    def share(self, earlier):
        """Take the parameters that all layers share from an earlier mixer.

        This is called right after the mixer is made (make_mixers), and again after weights have
        been loaded. By default, nothing is shared.

        Args:
            earlier: the mixers of the previous layers, in the order of the layers.
        """

    def kernels(self):
        """{name: weights} of the kernels of K weights that do not depend on the text, for figures.

        "fixed" is (H, K) and holds logits: the softmax over r is the kernel. A name that begins
        with "depthwise" is (C, K) and holds the weights themselves.
        """
        return {}

    def token_kernels(self, x, attention_mask):
        """(B, H, N, K): logits of the kernel that each token makes as a query; None without any.

        H counts only the heads that make kernels. The rows of the keys (key_dynamic), rows without
        a window, and DeBERTa's rows are not included.
        """
        return None


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
    all heads ([C] sec. 3.2; Shaw et al. 2018).
    """

    uses = ("terms", "convolutional", "depthwise")

    def __init__(self, config, variant, layer):
        super().__init__()
        C = config.hidden_size
        self.heads = config.heads
        self.beyond = config.beyond
        self.dropout = config.dropout
        # Made first, and filled below. A saved optimizer numbers the parameters in the order in
        # which a module makes them, so this order must stay.
        self.terms = nn.ModuleDict()

        # projections, linear or half convolutional ([C] sec. 5)
        self.has_convolutional_projection = variant.convolutional != ()
        self.query = make_projection("query", config, variant)
        self.key = make_projection("key", config, variant)
        self.value = make_projection("value", config, variant)

        # the position terms that this variant names
        for name, term in TERMS.items():
            if name in variant.terms:
                self.terms[name] = term(config)

        # A convolution of the values, added after attention: [C] eq. 7, computed as in its
        # footnote 3. There the softmax is applied to the scores alone, before this is added.
        self.depthwise = None
        if variant.depthwise:
            self.depthwise = DepthwiseConvolution(C, config.kernel_size)

        self.output = nn.Linear(C, C)

    def forward(self, x, attention_mask):
        # project, and split into heads
        query, key, value = self.project(x, attention_mask)  # (B, N, C) each
        q = split_heads(query, self.heads)  # (B, H, N, d)
        k = split_heads(key, self.heads)  # (B, H, N, d)
        v = split_heads(value, self.heads)  # (B, H, N, d)

        # the position terms, as rows of weights: what a query, or a key, adds at each r
        query_rows = self.sum_of_rows("query", q)  # (B, H, N, K), (H, N, K), (H, 1, K) or None
        key_rows = self.sum_of_rows("key", k)  # (B, H, N, K), (H, N, K) or None

        # The content term, which some variants change. It comes after the rows, because these are
        # made from the original q and k: without xl's u, and not rotated.
        q, k = self.content(q, k)  # (B, H, N, d) each

        # a_ij = q_i . k_j / sqrt(d) + query_rows[i, j - i] + key_rows[j, i - j]
        # z_i  = sum_j softmax_j(a_ij) (v_j + relative_value[j - i])
        z = attention(
            q,
            k,
            v,
            attention_mask,
            query_rows,
            key_rows,
            relative_value=self.sum_of_tables(),  # (d, K) or None
            beyond=self.beyond,
            dropout=self.dropout if self.training else 0.0,
        )
        z = merge_heads(z)  # (B, N, C)

        # the convolution of the values; the softmax does not affect it
        if self.depthwise is not None:
            z = z + self.depthwise(zero_padding(value, attention_mask))
        return self.output(z)

    def project(self, x, attention_mask):
        """x (B, N, C) -> query, key, value, (B, N, C) each."""
        # A convolutional projection must not see what is at padding.
        if self.has_convolutional_projection:
            x = zero_padding(x, attention_mask)

        # The backward pass adds up the gradients of x in the reverse order: (key + query) + value.
        # Another order would change their last bits, and then the recorded results could not be
        # reproduced exactly.
        value = self.value(x)
        query = self.query(x)
        key = self.key(x)
        return query, key, value

    def sum_of_rows(self, belongs_to, x):
        """The sum of the rows that belong to the queries ("query") or to the keys ("key").

        With the fixed and the dynamic term, query_rows[i, r] = beta_r + q_i . w_r / sqrt(d): the
        composite attention of [C] eq. 6. The sum has as many columns as its widest term: K, or
        2N - 1 if one of the terms has no window and 2N - 1 is larger than K.

        Args:
            belongs_to: "query" or "key".
            x: (B, H, N, d), the queries or the keys.
        Returns:
            (B, H, N, K) or (H, N, K), for queries also (H, 1, K); None if there is no such term.
        """
        total = None
        for name, term in self.terms.items():
            if term.belongs_to == belongs_to:
                rows = term(x)  # (B, H, N, K), (H, N, K) or (H, 1, K)
                check_rows(name, term, rows, x)
                total = rows if total is None else add_rows(total, rows, self.beyond)
        return total

    def content(self, q, k):
        """The queries and keys that the content term uses, (B, H, N, d) each."""
        for term in self.terms.values():
            q, k = term.content(q, k)
        return q, k

    def sum_of_tables(self):
        """The sum (d, K) of the tables that are added to the values; None if there are none.

        A variant of VARIANTS has one at most; a new variant may have more.
        """
        total = None
        for term in self.terms.values():
            if term.belongs_to == "value":
                table = term.table()  # (d, K)
                total = table if total is None else total + table
        return total

    def initialise(self):
        # the terms have initialised themselves
        for name, part in self.named_children():
            if name != "terms":
                initialise_linear(part)

    def kernels(self):
        # the rows that do not depend on the text
        found = {}
        for term in self.terms.values():
            kernel = term.fixed_kernel()  # (H, K) or None
            if kernel is not None:
                found["fixed"] = kernel + found.get("fixed", 0)

        # the convolutions
        if self.depthwise is not None:
            found["depthwise, of the values"] = self.depthwise.weight[:, 0]  # (C, 1, K) -> (C, K)
        for name in ("query", "key", "value"):
            projection = getattr(self, name)
            if isinstance(projection, HalfConvolution):
                found[f"depthwise, for the {name}"] = projection.depthwise.weight[:, 0]  # (C, K)
        return found

    def token_kernels(self, x, attention_mask):
        query, _, _ = self.project(x, attention_mask)
        q = split_heads(query, self.heads)  # (B, H, N, d)

        # the rows that depend on the query
        total = None
        for term in self.terms.values():
            is_fixed = term.fixed_kernel() is not None
            if term.belongs_to == "query" and term.uses_kernel_size and not is_fixed:
                rows = term(q)  # (B, H, N, K)
                total = rows if total is None else add_rows(total, rows, self.beyond)
        return total


def check_rows(name, term, rows, x):
    """ValueError if the rows that a term has made for x (B, H, N, d) have a wrong shape.

    Without this check, most of them would give wrong scores and no error. A term with a window may
    have fewer or more columns than K, as long as their number is odd.
    """
    if not isinstance(rows, torch.Tensor):
        kind = type(rows).__name__
        raise ValueError(f"forward of the term {name} must return a tensor, not a {kind}")
    B, H, N, _ = x.shape

    # one row per token, or for queries one row that they share
    allowed = [(B, H, N), (H, N)]
    if term.belongs_to == "query":
        allowed.append((H, 1))
    shape = tuple(rows.shape)
    if shape[:-1] not in allowed:
        raise ValueError(
            f"the term {name} has made rows of shape {shape}; with B = {B}, H = {H} and N = {N}, "
            f"all dimensions but the last one must be one of {', '.join(map(str, allowed))}"
        )

    # one column per relative position
    width = shape[-1]
    if not term.uses_kernel_size and width != 2 * N - 1:
        raise ValueError(f"the rows of {name} have {width} columns, not 2N - 1 = {2 * N - 1}")
    if width % 2 == 0:
        raise ValueError(f"the rows of {name} have {width} columns, which is not an odd number")


def add_rows(one, other, beyond):
    """The sum of the rows of two terms, which may differ in the numbers of rows and columns."""
    # One row for all queries is expanded, as a view, to as many rows as the other term has. Without
    # this step the sum would be the same, but its gradient would be added up in another order and
    # differ in the last bits: the recorded results could not be reproduced exactly.
    count = max(one.shape[-2], other.shape[-2])
    one = one.expand(*one.shape[:-2], count, -1)  # (..., 1 or N, K) -> (..., N, K)
    other = other.expand(*other.shape[:-2], count, -1)

    # the narrower rows get the width of the wider ones
    width = max(one.shape[-1], other.shape[-1])
    return widen(one, width, beyond) + widen(other, width, beyond)


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
    Training decides how much each token takes from its neighbours. Here the kernel is centred and
    K = 5: it covers two tokens on each side. The author's models read from left to right and have
    K = 4: the token and the three tokens before it. By default the author's layers have no bias.
    """

    def __init__(self, config, variant, layer):
        super().__init__(config, variant, layer)
        self.canon = DepthwiseConvolution(config.hidden_size, config.kernel_size)

    def project(self, x, attention_mask):
        x = zero_padding(x, attention_mask)  # the convolution must not see what is at padding
        return super().project(x + self.canon(x), attention_mask)

    def kernels(self):
        own = {"depthwise, of the input": self.canon.weight[:, 0]}  # (C, 1, K) -> (C, K)
        return super().kernels() | own


class Deberta(SelfAttention):
    """Disentangled attention: content and position look at each other. He et al. 2021

        a_ij = (q_i . k_j  +  q_i . (W_k P_r)  +  k_j . (W_q P_(i-j))) / sqrt(3d)

    P (K, C) has one vector per relative position and is shared by all layers. W_k and W_q are the
    layer's own key and query projections, with their biases. So each vector of P has a key and a
    query, as a token has: the queries are multiplied by its key, and the keys by its query. In the
    letters of the other terms, this is dynamic with w_r = W_k P_r and key_dynamic with
    u_r = W_q P_r, but each head has its own w and u, and the divisor is sqrt(3d). It is a mixer of
    its own because a Term has neither the projections of its layer nor the parameters of another
    layer. With beyond = "clip", positions beyond the window take the end vector of their side; with
    "zero" they add nothing.

    The paper's equation and the first release of DeBERTa have two more matrices in place of W_k and
    W_q. In later releases, W_k and W_q themselves can be used, with their biases, as here. The
    paper counts i - j, so its P is this one in reverse order. In the paper and here, the two terms
    read P at opposite positions, r and -r; the released code reads it at the same one. The paper's
    window is 512 positions to each side; here it is that of the other variants. Dropout of P, a
    LayerNorm of P in later releases, and the absolute positions before DeBERTa's decoder are left
    out here.
    """

    uses = ()  # it takes no further terms and no convolutions
    uses_beyond = True

    def __init__(self, config, variant, layer):
        super().__init__(config, variant, layer)
        self.P = nn.Parameter(torch.empty(config.kernel_size, config.hidden_size))  # (K, C)
        nn.init.normal_(self.P, std=0.02)  # as BERT's embeddings

    def share(self, earlier):
        # All DeBERTa layers use the P of the first one, which need not be layer 0 in a hybrid.
        for mixer in earlier:
            if isinstance(mixer, Deberta):
                self.P = mixer.P
                return

    def content(self, q, k):
        return q / math.sqrt(3), k  # attention itself divides by sqrt(d)

    def sum_of_rows(self, belongs_to, x):
        # content to position: q_i . (W_k P_r); position to content: k_j . (W_q P_(i-j))
        projection = self.query
        if belongs_to == "query":
            projection = self.key

        # W_k P or W_q P, in heads; split_heads takes a batch, here of one sequence
        table = split_heads(projection(self.P)[None], self.heads)[0]  # (K, C) -> (H, K, d)
        d = x.shape[-1]
        table = (table / math.sqrt(3 * d)).transpose(-1, -2)  # (H, K, d) -> (H, d, K)
        return x @ table  # (B, H, N, d) (H, d, K) -> (B, H, N, K)


class ConvBert(Mixer):
    """H/2 heads of self-attention and H/2 heads of dynamic convolution. Jiang et al. 2020

        c   = pointwise(depthwise(x))               a summary of the neighbourhood of each token
        p_i = softmax over r of kernel(c_i * q_i)   K weights per token and convolution head
        z_i = sum_r p_i,r v_(i+r)                   a dynamic lightweight convolution

    q and k have width C/2. The attention heads use both, and q also makes the kernels of the
    convolution heads. v has width C: its first half serves the attention heads, its second half the
    convolution heads. The softmax is over all K weights. A weight at padding or beyond an end of
    the sequence is multiplied by a value of 0, so the sum of the other weights of this kernel is
    less than 1. In training each weight p_i,r is dropped with the config's probability, as in [C]'s
    released code.
    [C] A.3 compares with this mixer.
    """

    def __init__(self, config, variant, layer):
        super().__init__()
        C = config.hidden_size
        self.heads = half_of_the_heads(config)  # of each kind
        self.dropout = config.dropout

        # attention heads
        self.query = nn.Linear(C, C // 2)
        self.key = nn.Linear(C, C // 2)
        self.value = nn.Linear(C, C)

        # convolution heads
        self.depthwise = DepthwiseConvolution(C, config.kernel_size)
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
        attended = attention(q, k, v, attention_mask, dropout=dropout)  # (B, H/2, N, d)

        # convolution heads
        p = self.kernel_logits(x, query).softmax(dim=-1)  # (B, H/2, N, K)
        p = F.dropout(p, dropout)
        v = split_heads(convolution_value, self.heads)  # (B, H/2, N, d)
        convolved = convolve(p, v)  # (B, H/2, N, d)

        z = torch.cat([merge_heads(attended), merge_heads(convolved)], dim=-1)  # (B, N, C)
        return self.output(z)

    def kernel_logits(self, x, query):
        """kernel(c_i * q_i): (B, N, C) and (B, N, C/2) -> (B, H/2, N, K)."""
        c = self.pointwise(self.depthwise(x))  # (B, N, C/2)
        return split_heads(self.kernel(c * query), self.heads)  # (B, N, H/2 * K) -> (B, H/2, N, K)

    def kernels(self):
        return {"depthwise, of the input": self.depthwise.weight[:, 0]}  # (C, 1, K) -> (C, K)

    def token_kernels(self, x, attention_mask):
        x = zero_padding(x, attention_mask)
        return self.kernel_logits(x, self.query(x))  # (B, H/2, N, K)


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

    def convolution(self, g):
        """(B, N, C) -> (B, N, C)."""
        raise NotImplementedError("a subclass defines its convolution")


class LightConv(GatedConvolution):
    """A convolution whose kernel is shared by all channels of a head. Wu et al. 2019, sec. 3

        p   = softmax over r of weight               K weights per head, which sum to 1
        z_i = sum_r p_r g_(i + r*dilation)

    In training each of the H * K weights p_r is dropped with the config's probability, and the
    others are scaled up (DropConnect).

    Dilation (Tay et al. 2021): layer l has the l-th of the variant's dilations; after the last one,
    they start again with the first. With dilations 1, 2, 4, 8, four layers together reach
    (1 + 2 + 4 + 8) * k = 15 * k tokens to each side: 120 for K = 17. Without dilation they reach
    4 * k = 32.
    """

    uses = ("dilations",)

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
        return depthwise_convolution(g, by_channel, dilation=self.dilation)

    def kernels(self):
        return {"fixed": self.weight}  # (H, K)


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
        z = convolve(p, split_heads(g, self.heads))  # (B, H, N, d)
        return merge_heads(z)  # (B, N, C)

    def kernel_logits(self, g):
        """(B, N, C) -> (B, H, N, K)."""
        return split_heads(self.kernel(g), self.heads)  # (B, N, H * K) -> (B, H, N, K)

    def token_kernels(self, x, attention_mask):
        return self.kernel_logits(self.gate(x, attention_mask))


# --- The table of variants ------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """What one name of `--variant` means. Raises ValueError if its parts do not go together."""

    equation: str  # printed when a run starts
    terms: tuple[str, ...] = ()  # names in TERMS
    convolutional: tuple[str, ...] = ()  # which of "query", "key", "value" are a HalfConvolution
    depthwise: bool = False  # a depthwise convolution of the values, added after attention
    absolute: bool = False  # learned absolute positions, added to the embeddings (model.py)
    mixer: type = SelfAttention
    dilations: tuple[int, ...] = (1,)  # of the layers of a convolution, in turn
    hybrid: bool = False  # one layer is plain self-attention (attention_layer)
    kernel_size: int = 17  # K if the user gives none

    def __post_init__(self):
        check_names("term", self.terms, TERMS)
        for name in self.terms:
            if TERMS[name].belongs_to not in BELONGS_TO:
                raise ValueError(
                    f"belongs_to of the term {name} is {TERMS[name].belongs_to!r}; "
                    f"it must be one of {', '.join(BELONGS_TO)}"
                )
        check_names("projection", self.convolutional, ("query", "key", "value"))
        self.check_mixer()
        self.check_numbers()

    def check_mixer(self):
        """ValueError if the mixer is not a Mixer, or would silently ignore a field."""
        if not (isinstance(self.mixer, type) and issubclass(self.mixer, Mixer)):
            raise ValueError(f"the mixer of a variant is a subclass of Mixer, not {self.mixer!r}")

        # the fields that are given, that is, differ from their defaults
        given = {
            "terms": self.terms != (),
            "convolutional": self.convolutional != (),
            "depthwise": self.depthwise,
            "dilations": self.dilations != (1,),
        }
        for field, is_given in given.items():
            if is_given and field not in self.mixer.uses:
                raise ValueError(f"{self.mixer.__name__} does not use {field}")

    def check_numbers(self):
        """ValueError if kernel_size or dilations are no numbers that a convolution can use."""
        if type(self.kernel_size) is not int or self.kernel_size < 1:
            raise ValueError(f"kernel_size must be a whole number, not {self.kernel_size!r}")
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, not {self.kernel_size}")

        # (2) is a number, (2,) is a tuple
        is_tuple = isinstance(self.dilations, tuple) and self.dilations != ()
        if not is_tuple or any(type(D) is not int or D < 1 for D in self.dilations):
            raise ValueError(
                "dilations are whole numbers above 0 in a tuple, such as (1, 2) or (2,), "
                f"not {self.dilations!r}"
            )

    @property
    def has_kernel(self):
        """Whether the kernel size K means anything for this variant."""
        if self.mixer is not SelfAttention:
            return self.mixer.uses_kernel_size
        if self.convolutional or self.depthwise:
            return True
        return any(TERMS[name].uses_kernel_size for name in self.terms)

    @property
    def uses_beyond(self):
        """Whether the config's `beyond` changes what this variant computes.

        It does if the mixer reads it, or if a term adds rows of K weights to the scores.
        """
        if self.mixer.uses_beyond:
            return True
        return any(TERMS[name].uses_kernel_size for name in self.terms)


def check_names(kind, names, known):
    """ValueError if a tuple holds anything but known names, each at most once."""
    if isinstance(names, str):  # ("fixed") is a string, ("fixed",) is a tuple
        raise ValueError(f"the {kind}s of a variant are a tuple: write ({names!r},) with a comma")
    if not isinstance(names, tuple):
        raise ValueError(f"the {kind}s of a variant are a tuple, not {names!r}")
    for name in names:
        if name not in known:
            raise ValueError(f"unknown {kind} {name!r}; the {kind}s are: {', '.join(known)}")
        if names.count(name) > 1:
            raise ValueError(f"the {kind} {name!r} is named more than once")


QK = ("query", "key")
QKV = ("query", "key", "value")
COMPOSITE = ("fixed", "dynamic")
DILATIONS = (1, 2, 4, 8)

# Parts of the equations below. They are only printed.
content = "a_ij = q_i.k_j/sqrt(d)"
composite = content + " + q_i.w_r/sqrt(d) + beta_r"
lightconv = "z_i = sum_r softmax_r(weight) g_(i+r),  g = glu(input(x))"
dynamicconv = "z_i = sum_r softmax_r(kernel(g_i)) g_(i+r),  g = glu(input(x))"
dilated = "z_i = sum_r softmax_r(weight) g_(i+D*r),  g = glu(input(x)),  D = 1, 2, 4, 8 by layer"
convbert = (
    f"H/2 heads: {content};  H/2 heads: z_i = sum_r softmax_r(kernel(c_i * q_i)) v_(i+r),  "
    "c = pointwise(depthwise(x));  x_i = token_i + position_i"
)
hybrid = ";  one layer: " + content
deberta = "a_ij = (q_i.k_j + q_i.(W_k P_r) + k_j.(W_q P_(i-j)))/sqrt(3d)"
separable = "pointwise(depthwise(x))"
added_convolution = ",  z_i = sum_j p_ij v_j + depthwise(v)_i"

VARIANTS = {
    # [C]: position terms
    "none": Variant(content),
    "absolute": Variant(content + ",  x_i = token_i + position_i", absolute=True),
    "fixed": Variant(content + " + beta_r", terms=("fixed",)),
    "dynamic": Variant(content + " + q_i.w_r/sqrt(d)", terms=("dynamic",)),
    "composite": Variant(composite, terms=COMPOSITE),
    "composite-key": Variant(
        composite + " + k_j.u_(i-j)/sqrt(d)", terms=COMPOSITE + ("key_dynamic",)
    ),
    # [C]: convolutions next to attention and in the projections
    "depthwise": Variant(content + added_convolution, depthwise=True),
    "composite-depthwise": Variant(composite + added_convolution, terms=COMPOSITE, depthwise=True),
    "conv-qk": Variant(content + f",  half of q, k = {separable}", convolutional=QK),
    "conv-v": Variant(content + f",  half of v = {separable}", convolutional=("value",)),
    "conv-qkv": Variant(content + f",  half of q, k, v = {separable}", convolutional=QKV),
    "composite-conv-qk": Variant(
        composite + f",  half of q, k = {separable}", terms=COMPOSITE, convolutional=QK
    ),
    "composite-conv-v": Variant(
        composite + f",  half of v = {separable}", terms=COMPOSITE, convolutional=("value",)
    ),
    "composite-conv-qkv": Variant(
        composite + f",  half of q, k, v = {separable}", terms=COMPOSITE, convolutional=QKV
    ),
    # other papers: Jiang et al. 2020, Shaw et al. 2018
    "convbert": Variant(convbert, absolute=True, mixer=ConvBert, kernel_size=9),
    "shaw": Variant(
        content + " + q_i.w_r/sqrt(d),  z_i = sum_j p_ij (v_j + s_r)",
        terms=("dynamic", "relative_value"),
    ),
    # further relative positions: docs/family.md
    "t5": Variant(content + " + beta_bucket(r)", terms=("t5",)),
    "alibi": Variant(content + " - m_h abs(r),  m_h = 2^(-8(h+1)/H)", terms=("alibi",)),
    "fire": Variant(
        content + " + mlp_h(sign(r) log(1 + c abs(r)) / log(1 + c max(N, L)))", terms=("fire",)
    ),
    "xl": Variant("a_ij = ((q_i + u).k_j + (q_i + v).(W R_r))/sqrt(d)", terms=("xl",)),
    "rotary": Variant("a_ij = (R_i q_i).(R_j k_j)/sqrt(d)", terms=("rotary",)),
    "deberta": Variant(deberta, mixer=Deberta),
    "canon": Variant(content + ",  x = x + depthwise(x)", mixer=Canon, kernel_size=5),
    # convolutions in place of attention: Wu et al. 2019, Tay et al. 2021
    "lightconv": Variant(lightconv, mixer=LightConv),
    "dynamicconv": Variant(dynamicconv, mixer=DynamicConv),
    "dilated": Variant(dilated, mixer=LightConv, dilations=DILATIONS),
    "lightconv-hybrid": Variant(lightconv + hybrid, mixer=LightConv, hybrid=True),
    "dynamicconv-hybrid": Variant(dynamicconv + hybrid, mixer=DynamicConv, hybrid=True),
    "dilated-hybrid": Variant(dilated + hybrid, mixer=LightConv, dilations=DILATIONS, hybrid=True),
}


def make_mixer(config, layer):
    """Make the mixer of one layer of a model. `layer` is counted from 0.

    config needs .variant, .hidden_size (C), .heads (H), .kernel_size (K), .beyond, .dropout and
    .attention_layer. In a hybrid, the layer of the number attention_layer is plain self-attention.
    It is counted from 1, because users give it on the command line.
    """
    variant = VARIANTS[config.variant]
    if variant.hybrid and layer == config.attention_layer - 1:
        variant = VARIANTS["none"]
    return variant.mixer(config, variant, layer)


def make_mixers(config):
    """Yield the mixers of the layers 0, 1, ... of a model; config.layers says how many.

    A mixer may take parameters of an earlier one (Mixer.share). This is a generator, so a model can
    make all of layer 0 (mixer, LayerNorms, feed-forward network) before the mixer of layer 1. The
    random initial weights are then drawn layer by layer.
    """
    mixers = []
    for layer in range(config.layers):
        mixer = make_mixer(config, layer)
        mixer.share(mixers)
        mixers.append(mixer)
        yield mixer
