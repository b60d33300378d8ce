"""Every way of joining self-attention and convolution, one equation at a time.

Legend (the same letters everywhere):

    B  sentences in a batch        C  hidden size = H * d          i  position of a query
    N  tokens in a sentence        k  reach of a kernel            j  position of a key
    H  heads, d channels each      K  kernel size = 2k + 1         r  relative position j - i, from -k to k

The one idea: a variant is self-attention whose score is a SUM OF NAMED TERMS,

    content        a_ij =  q_i . k_j / sqrt(d)                                       Vaswani et al. 2017; [C] eq. 1
    fixed               +  beta_r            a scalar a head and position            Raffel et al. 2020;  [C] eq. 4
    dynamic             +  q_i . w_r / sqrt(d)    a kernel made by each query        Shaw et al. 2018;    [C] eq. 5
    key_dynamic         +  k_j . u_(i-j) / sqrt(d)    a kernel made by each key      Huang et al. 2020

plus the places where convolutions are injected; or it is another mixer altogether: ConvBERT, or a convolution in place
of attention (Wu et al. 2019; Tay et al. 2021). With beta alone, and no key beyond the window,
sum_j softmax_j(beta_(j-i)) v_j is a lightweight convolution of the values: relative positions are convolutions.
tests/test_equivalence.py says this argument step by step, in code.

[C] is Chang, Xu, Xu, Tu 2021, "Convolutions and Self-Attention: Re-interpreting Relative Positions in Pre-trained
Language Models". The table VARIANTS at the end of this file names all of them; a new name there is a new variant.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from kernels import attention, convolve


def split_heads(x, heads):
    """(B, N, C) to (B, H, N, d): head h owns the contiguous channels h*d .. h*d + d-1."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, N, H, d) -> (B, H, N, d)


def merge_heads(x):
    """(B, H, N, d) to (B, N, C), the inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(2)  # (B, N, H, d) -> (B, N, C)


def zero_padding(x, padding_mask):
    """x (B, N, C) with 0 wherever padding_mask (B, N) says that no real token stands."""
    return x.masked_fill(~padding_mask[:, :, None], 0)


def relative_kernel(channels, kernel_size):
    """A table of one d-vector a relative position, (d, K), drawn as the released code of [C] draws w and u."""
    return nn.Parameter(nn.init.kaiming_uniform_(torch.empty(channels, kernel_size), a=math.sqrt(5)))


def half_of_the_heads(config):
    """H/2, for the variants that give half of their heads to convolutions. ValueError where H is odd."""
    if config.heads % 2:
        raise ValueError(
            f"{config.variant} gives half of the heads to convolutions: heads must be even, not {config.heads}")
    return config.heads // 2


def depthwise_convolution(x, weight, bias=None, dilation=1):
    """y_i,c = sum_r weight_c,r x_(i + r*dilation),c [+ bias_c]: a kernel a channel, zeros beyond the ends. [C] eq. 2

    x (B, N, C), weight (C, K), bias (C); returns (B, N, C).
    """
    # As images N/D high and D wide, D the dilation: a step down is a step of D tokens. Seen so, x's memory has the
    # layout "channels last", for which libraries have a fast depthwise convolution, on CPUs several times faster than
    # the one-dimensional one, and much more than a dilated one.
    N, D, k = x.shape[1], dilation, weight.shape[-1] // 2
    rows = F.pad(x, (0, 0, 0, -N % D)).unflatten(1, (-1, D))  # (B, N, C) -> (B, N/D, D, C)
    image = rows.movedim(-1, 1)  # (B, C, N/D, D)
    y = F.conv2d(image, weight[:, None, :, None], bias, padding=(k, 0), groups=len(weight))  # the kernel K high, 1 wide
    return y.movedim(1, -1).flatten(1, 2)[:, :N]  # (B, C, N/D, D) -> (B, N/D, D, C) -> (B, N, C)


class DepthwiseConvolution(nn.Conv1d):
    """`depthwise_convolution` with parameters of its own: weight (C, 1, K), bias (C). (B, N, C) to (B, N, C)."""

    def __init__(self, channels, kernel_size):
        super().__init__(channels, channels, kernel_size, padding=kernel_size // 2, groups=channels)

    def forward(self, x):
        return depthwise_convolution(x, self.weight[:, 0], self.bias)  # (C, 1, K) -> (C, K)


class HalfConvolution(nn.Module):
    """A projection whose first H/2 heads are depthwise-separable convolutions and whose others are linear. [C] sec. 5

        first half    y = pointwise(depthwise(x)), no activation in between
        second half   y = linear(x)

    (B, N, C) to (B, N, C). The caller has zeroed x at padding.
    """

    def __init__(self, config):
        super().__init__()
        C, d = config.hidden_size, config.hidden_size // config.heads
        self.depthwise = DepthwiseConvolution(C, config.kernel_size)
        self.pointwise = nn.Linear(C, half_of_the_heads(config) * d)
        self.linear = nn.Linear(C, half_of_the_heads(config) * d)

    def forward(self, x):
        return torch.cat([self.pointwise(self.depthwise(x)), self.linear(x)], dim=-1)  # 2 x (B, N, C/2) -> (B, N, C)


class SelfAttention(nn.Module):
    """Self-attention with the score terms and convolutions that a variant names.

        a_ij = q_i . k_j / sqrt(d)  [+ beta_r]  [+ q_i . w_r / sqrt(d)]  [+ k_j . u_(i-j) / sqrt(d)]
        z_i  = sum_j softmax_j(a_ij) (v_j [+ s_r])  [+ depthwise(v)_i]              then the output projection

    q, k and v are linear in x, or half convolutional where the variant says so. beta has its own weights in each head
    and is not scaled; w, u and s are one table a layer, shared by all heads ([C] sec. 3.2; Shaw et al. 2018).

    forward(x, padding_mask): x (B, N, C), padding_mask (B, N) bool, True where a token is real; returns (B, N, C).
    """

    def __init__(self, config, variant, layer):
        super().__init__()
        C, self.heads, K = config.hidden_size, config.heads, config.kernel_size
        d = C // self.heads

        def projection(name):
            return HalfConvolution(config) if name in variant.convolutional else nn.Linear(C, C)

        self.query, self.key, self.value = projection("query"), projection("key"), projection("value")
        self.fixed = nn.Parameter(torch.zeros(self.heads, K)) if "fixed" in variant.terms else None
        self.dynamic = relative_kernel(d, K) if "dynamic" in variant.terms else None
        self.key_dynamic = relative_kernel(d, K) if "key_dynamic" in variant.terms else None
        self.relative_value = relative_kernel(d, K) if "relative_value" in variant.terms else None
        self.depthwise = DepthwiseConvolution(C, K) if variant.depthwise else None
        self.convolutional = bool(variant.convolutional)
        self.output = nn.Linear(C, C)
        self.dropout = config.dropout
        self.window = config.window

    def forward(self, x, padding_mask):
        if self.convolutional:
            x = zero_padding(x, padding_mask)  # a convolution must not see what stands on padding
        value = self.value(x)  # (B, N, C)
        q, k, v = (split_heads(y, self.heads) for y in (self.query(x), self.key(x), value))  # (B, H, N, d)

        # a_ij = q_i . k_j / sqrt(d) + query_rows[i, j - i] + key_rows[j, i - j]
        # z_i = sum_j softmax_j(a_ij) (v_j + relative_value[j - i])
        z = attention(q, k, v, padding_mask, self.query_rows(q), self.key_rows(k), self.relative_value, self.window,
                      self.dropout if self.training else 0.0)  # (B, H, N, d)
        z = merge_heads(z)  # (B, N, C)
        if self.depthwise is not None:
            z = z + self.depthwise(zero_padding(value, padding_mask))  # [C] eq. 7; the softmax does not touch this term
        return self.output(z)

    def query_rows(self, q):
        """beta_r + q_i . w_r / sqrt(d) for r = -k .. k: a row of K weights a query, (B, H, N, K); None without either.

        The fixed and the dynamic term differ only in where the row comes from: the composite attention of [C] eq. 6.
        """
        N, d = q.shape[-2:]
        rows = None
        if self.fixed is not None:
            rows = self.fixed[:, None, :].expand(-1, N, -1)  # (H, K) -> (H, N, K), of every sentence and query
        if self.dynamic is not None:
            dynamic = q @ (self.dynamic / math.sqrt(d))  # (B, H, N, d) (d, K) -> (B, H, N, K)
            rows = dynamic if rows is None else rows + dynamic
        return rows

    def key_rows(self, k):
        """k_j . u_(i-j) / sqrt(d): a row of K weights a key, which says how far each query around it shall look at it.

        (B, H, N, K), or None.
        """
        if self.key_dynamic is None:
            return None
        return k @ (self.key_dynamic / math.sqrt(k.shape[-1]))  # (B, H, N, d) (d, K) -> (B, H, N, K)


class ConvBert(nn.Module):
    """H/2 heads of self-attention beside H/2 heads of span-based dynamic convolution. Jiang et al. 2020; [C] A.3

        c   = pointwise(depthwise(x))                                 a summary of the neighbourhood of each token
        p_i = softmax over r of kernel(c_i * q_i)                     K weights for each token and convolution head
        z_i = sum_r p_i,r v_(i+r)                                     a dynamic lightweight convolution

    q, k have width C/2 and serve the attention heads; v has width C, its first half for them, its second for the
    convolution heads. Taps on padding or beyond the ends meet a value of 0 and keep their share of the softmax.

    forward(x, padding_mask): (B, N, C) and (B, N) bool to (B, N, C).
    """

    def __init__(self, config, variant, layer):
        super().__init__()
        C, K, self.heads = config.hidden_size, config.kernel_size, half_of_the_heads(config)  # heads of each kind
        self.query, self.key, self.value = nn.Linear(C, C // 2), nn.Linear(C, C // 2), nn.Linear(C, C)
        self.depthwise = DepthwiseConvolution(C, K)
        self.pointwise = nn.Linear(C, C // 2)
        self.kernel = nn.Linear(C // 2, self.heads * K)
        self.output = nn.Linear(C, C)
        self.dropout = config.dropout

    def forward(self, x, padding_mask):
        x = zero_padding(x, padding_mask)
        query, key = self.query(x), self.key(x)  # (B, N, C/2)
        attended, convolved = zero_padding(self.value(x), padding_mask).chunk(2, dim=-1)  # values, 2 x (B, N, C/2)

        q, k, v = (split_heads(y, self.heads) for y in (query, key, attended))  # (B, H/2, N, d)
        attended = attention(q, k, v, padding_mask, dropout=self.dropout if self.training else 0.0)  # (B, H/2, N, d)

        c = self.pointwise(self.depthwise(x))  # (B, N, C/2)
        p = split_heads(self.kernel(c * query), self.heads).softmax(dim=-1)  # (B, N, H/2 * K) -> (B, H/2, N, K)
        convolved = convolve(p, split_heads(convolved, self.heads))  # (B, H/2, N, d)
        return self.output(torch.cat([merge_heads(attended), merge_heads(convolved)], dim=-1))  # (B, N, C)


class LightConv(nn.Module):
    """A convolution in place of attention; the channels of a head share a kernel. Wu et al. 2019, sec. 3, fig. 2b

        g   = a * sigmoid(b),   a, b = input(x)                       a gated linear unit: C -> 2C -> C
        p   = softmax over r of weight                                K weights a head, that sum to 1
        z_i = sum_r p_r g_(i + r*dilation)                            then the output projection

    In training each of the H * K weights p_r is dropped with the config's probability, the others scaled up
    (DropConnect). Taps on padding or beyond the ends meet a g of 0 and keep their share of the softmax. Where the
    variant names dilations, layer l has the l-th of them, around and around: with 1, 2, 4, 8 (Tay et al. 2021) four
    layers reach 15k tokens to each side, 120 at K = 17, where four without dilation reach 4k.

    forward(x, padding_mask): (B, N, C) and (B, N) bool to (B, N, C).
    """

    def __init__(self, config, variant, layer):
        super().__init__()
        C, self.heads, K = config.hidden_size, config.heads, config.kernel_size
        self.dilation = variant.dilations[layer % len(variant.dilations)]
        self.input, self.output = nn.Linear(C, 2 * C), nn.Linear(C, C)
        self.dropout = nn.Dropout(config.dropout)
        self.make_kernel(C, K)

    def make_kernel(self, C, K):
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(self.heads, 1, K)).squeeze(1))  # (H, K)

    def forward(self, x, padding_mask):
        g = zero_padding(F.glu(self.input(x)), padding_mask)  # (B, N, 2C) -> (B, N, C)
        return self.output(self.convolve(g))

    def convolve(self, g):
        p = self.dropout(self.weight.softmax(dim=-1))  # (H, K)
        d = g.shape[-1] // self.heads
        return depthwise_convolution(g, p.repeat_interleave(d, dim=0), dilation=self.dilation)  # (H, K) -> (C, K)


class DynamicConv(LightConv):
    """LightConv whose kernels each position makes from its own g: Wu et al. 2019, sec. 4

        p_i = softmax over r of kernel(g_i)                           K weights a position and head
        z_i = sum_r p_i,r g_(i+r)
    """

    def make_kernel(self, C, K):
        self.kernel = nn.Linear(C, self.heads * K, bias=False)

    def convolve(self, g):
        p = split_heads(self.kernel(g), self.heads).softmax(dim=-1)  # (B, N, H * K) -> (B, H, N, K)
        return merge_heads(convolve(self.dropout(p), split_heads(g, self.heads)))  # (B, N, C)


@dataclass(frozen=True)
class Variant:
    """What one name of `--variant` stands for."""

    equation: str  # printed when a run starts
    terms: tuple[str, ...] = ()  # "fixed", "dynamic", "key_dynamic" in the score, "relative_value" in the sum of values
    convolutional: tuple[str, ...] = ()  # of "query", "key", "value": half of their heads are convolutions
    depthwise: bool = False  # a depthwise convolution of the values added to the output of attention
    absolute: bool = False  # learned absolute positions added to the embeddings (model.py reads this)
    mixer: type = SelfAttention
    dilations: tuple[int, ...] = (1,)  # of the layers of a convolution, around and around
    hybrid: bool = False  # one layer is plain self-attention (`attention_layer`)
    kernel_size: int = 17  # K where the user gives none


QK = ("query", "key")
QKV = ("query", "key", "value")
COMPOSITE = ("fixed", "dynamic")
DILATIONS = (1, 2, 4, 8)
content = "a_ij = q_i.k_j/sqrt(d)"
composite = content + " + q_i.w_r/sqrt(d) + beta_r"
lightconv = "z_i = sum_r softmax_r(beta_r) g_(i+r),  g = glu(linear(x))"
dynamicconv = "z_i = sum_r softmax_r(f(g_i)) g_(i+r),  g = glu(linear(x))"
dilated = "z_i = sum_r softmax_r(beta_r) g_(i+D*r),  g = glu(linear(x)),  D = 1, 2, 4, 8 by layer"
hybrid = ";  one layer: " + content

VARIANTS = {
    "none": Variant(content),
    "absolute": Variant(content + ",  x_i = token_i + position_i", absolute=True),
    "fixed": Variant(content + " + beta_r", ("fixed",)),
    "dynamic": Variant(content + " + q_i.w_r/sqrt(d)", ("dynamic",)),
    "composite": Variant(composite, COMPOSITE),
    "composite-key": Variant(composite + " + k_j.u_(i-j)/sqrt(d)", COMPOSITE + ("key_dynamic",)),
    "depthwise": Variant(content + ",  z_i + sum_r beta_r*v_(i+r)", depthwise=True),
    "composite-depthwise": Variant(composite + ",  z_i + sum_r beta'_r*v_(i+r)", COMPOSITE, depthwise=True),
    "conv-qk": Variant(content + ",  half of q, k = conv(x)", convolutional=QK),
    "conv-v": Variant(content + ",  half of v = conv(x)", convolutional=("value",)),
    "conv-qkv": Variant(content + ",  half of q, k, v = conv(x)", convolutional=QKV),
    "composite-conv-qk": Variant(composite + ",  half of q, k = conv(x)", COMPOSITE, QK),
    "composite-conv-v": Variant(composite + ",  half of v = conv(x)", COMPOSITE, ("value",)),
    "composite-conv-qkv": Variant(composite + ",  half of q, k, v = conv(x)", COMPOSITE, QKV),
    "convbert": Variant(
        "H/2 heads: " + content + ";  H/2 heads: z_i = sum_r softmax_r(f(conv(x)_i * q_i)) v_(i+r)",
        absolute=True, mixer=ConvBert, kernel_size=9,
    ),
    "shaw": Variant(content + " + q_i.w_r/sqrt(d),  z_i = sum_j p_ij (v_j + s_r)", ("dynamic", "relative_value")),
    "lightconv": Variant(lightconv, mixer=LightConv),
    "dynamicconv": Variant(dynamicconv, mixer=DynamicConv),
    "dilated": Variant(dilated, mixer=LightConv, dilations=DILATIONS),
    "lightconv-hybrid": Variant(lightconv + hybrid, mixer=LightConv, hybrid=True),
    "dynamicconv-hybrid": Variant(dynamicconv + hybrid, mixer=DynamicConv, hybrid=True),
    "dilated-hybrid": Variant(dilated + hybrid, mixer=LightConv, dilations=DILATIONS, hybrid=True),
}


def make_mixer(config, layer):
    """The mixer of layer 0, 1, .. of config.variant, a module (B, N, C), (B, N) -> (B, N, C).

    config needs .variant, .hidden_size (C), .heads (H), .kernel_size (K), .window, .dropout and .attention_layer.
    ValueError where the parts of a variant do not go together.
    """
    variant = VARIANTS[config.variant]
    if variant.dilations != (1,) and variant.mixer is not LightConv:
        raise ValueError(f"{config.variant}: of all mixers LightConv alone takes dilations")
    if variant.hybrid and layer == config.attention_layer - 1:
        return SelfAttention(config, VARIANTS["none"], layer)
    return variant.mixer(config, variant, layer)
