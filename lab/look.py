"""What is inside a model, as NumPy arrays: its maps of attention and its kernels.

    from lab.look import attention_map, encode
    from model import load_run

    model, tokenizer = load_run("runs/composite")
    ids, pieces = encode(model, tokenizer, "the dog was tired.")  # (1, N), [CLS] first, [SEP] last
    p = attention_map(model, ids, layer=1)  # (H, N, N)

Layers and heads count from 1. Letters as in attention.py.
"""

import math

import numpy as np
import torch

from attention import VARIANTS, SelfAttention, attention, split_heads
from kernels import key_scores, relative_scores
from support.commands import UserError, valid_text

# --- What a model contains ------------------------------------------------------------------------


def encode(model, tokenizer, sentence):
    """(ids (1, N) of [CLS] sentence [SEP], its N pieces as text).

    Raises UserError if the sentence is empty or too long for the model.
    """
    text = valid_text(sentence).strip()
    if not text:
        raise UserError('the sentence is empty; give one after RUN, as in "the dog barks."')

    cls = tokenizer.token_to_id("[CLS]")
    sep = tokenizer.token_to_id("[SEP]")
    ids = [cls, *tokenizer.encode(text, add_special_tokens=False).ids, sep]
    if len(ids) > model.config.max_length:
        raise UserError(
            f"the sentence has {len(ids)} tokens, the model takes {model.config.max_length}"
        )

    # In a vocabulary of pieces, the mark "\u2581" stands for the space before a word. A piece that
    # is only this mark is shown as "_".
    pieces = [tokenizer.id_to_token(i).replace("\u2581", "") or "_" for i in ids]
    return torch.tensor([ids]), pieces


def mixer_of(model, layer, head=1):
    """The mixer of a layer. Raises UserError if the model has no such layer or head."""
    layers = model.config.layers
    heads = model.config.heads
    if layer > layers:
        raise UserError(f"there is no layer {layer}: the model has {layers}")
    if head > heads:
        raise UserError(f"there is no head {head}: a layer of the model has {heads}")
    return model.bert.layers[layer - 1].mixer


def input_of_mixer(model, ids, layer):
    """What the mixer of a layer gets while the model reads ids: (x (1, N, C), attention_mask)."""
    attention_mask = torch.ones_like(ids, dtype=torch.bool)  # (1, N)
    x = model.bert.embeddings(ids, token_type_ids=torch.zeros_like(ids))  # (1, N, C)
    for block in model.bert.layers[: layer - 1]:
        x = block(x, attention_mask)  # (1, N, C)
    return x, attention_mask


@torch.no_grad()
def attention_map(model, ids, layer):
    """(H, N, N): the weights of attention in all heads of a layer.

    Raises UserError if the layer is not self-attention.
    """
    q, k, query_rows, key_rows, attention_mask, beyond = inputs_of_attention(model, ids, layer)

    # with the identity as values, the output is the weights themselves
    H, N = q.shape[1:3]
    identity = torch.eye(N).expand(1, H, N, N)
    p = attention(q, k, identity, attention_mask, query_rows, key_rows, beyond=beyond)
    return p[0].numpy()


@torch.no_grad()
def attention_maps(model, ids, layer, head):
    """Two maps (N, N) of one head: its attention, and that of its position terms alone.

    The first map is the softmax over j of the complete score, the second one that of all terms
    except content. Raises ValueError if the layer has no attention or no position terms.
    """
    mixer_of(model, layer, head)  # an error if there is no such head
    q, _, query_rows, key_rows, _, beyond = inputs_of_attention(model, ids, layer)
    if query_rows is None and key_rows is None:
        raise UserError(
            f"layer {layer} of {model.config.variant} adds no position terms to the content term, "
            "so there is no kernel to draw"
        )

    # the position terms alone
    H, N = q.shape[1:3]
    scores = torch.zeros(1, H, N, N)
    if query_rows is not None:
        query_rows = query_rows.expand(*query_rows.shape[:-2], N, -1)  # 1 row or N rows -> N rows
        scores = scores + relative_scores(query_rows, N, beyond)
    if key_rows is not None:
        scores = scores + key_scores(key_rows, N, beyond)
    kernel = scores.softmax(dim=-1)  # (1, H, N, N)

    p = attention_map(model, ids, layer)  # (H, N, N)
    return p[head - 1], kernel[0, head - 1].numpy()


def inputs_of_attention(model, ids, layer):
    """What a layer of self-attention gives to `attention`, for one sentence.

    Returns:
        q, k (1, H, N, d), query_rows and key_rows (or None), attention_mask (1, N), beyond.
    Raises:
        UserError: the layer is another mixer than SelfAttention.
    """
    mixer = mixer_of(model, layer)
    if not isinstance(mixer, SelfAttention):
        raise UserError(
            f"layer {layer} of {model.config.variant} is a {type(mixer).__name__}, and this figure "
            "needs self-attention in all heads; python -m lab.explore shows every layer"
        )

    # the queries, the keys and their rows of weights, as the mixer computes them
    x, attention_mask = input_of_mixer(model, ids, layer)
    query, key, _ = mixer.project(x, attention_mask)  # (1, N, C) each
    q = split_heads(query, mixer.heads)  # (1, H, N, d)
    k = split_heads(key, mixer.heads)  # (1, H, N, d)
    query_rows = mixer.sum_of_rows("query", q)  # (1, H, N, K), (H, 1, K) or None
    key_rows = mixer.sum_of_rows("key", k)  # (1, H, N, K) or None
    q, k = mixer.content(q, k)  # (1, H, N, d) each
    return q, k, query_rows, key_rows, attention_mask, mixer.beyond


@torch.no_grad()
def fixed_kernels(model):
    """{layer: (H, K)}: softmax over r of the fixed kernels. UserError if the model has none."""
    found = {}
    for layer, block in enumerate(model.bert.layers, 1):
        kernels = block.mixer.kernels()
        if "fixed" in kernels:
            found[layer] = kernels["fixed"].softmax(dim=-1).numpy()  # (H, K)
    if not found:
        raise UserError(f"{model.config.variant} has no fixed kernels of K weights")
    return found


@torch.no_grad()
def dynamic_kernels(model, ids, layer):
    """(H, N, K): softmax over r of the kernel that each token makes.

    Raises UserError if the tokens of this layer make no kernels.
    """
    mixer = mixer_of(model, layer)
    x, attention_mask = input_of_mixer(model, ids, layer)
    logits = mixer.token_kernels(x, attention_mask)  # (1, H, N, K)
    if logits is None:
        raise UserError(
            f"layer {layer} of {model.config.variant} has no dynamic kernels of K weights; "
            "python -m lab.explore shows all terms of the score"
        )
    return logits.softmax(dim=-1)[0].numpy()


@torch.no_grad()
def depthwise_kernels(model, layer):
    """{of what: (C, K)}: the depthwise convolutions of a layer, each sorted by `channel_order`.

    The names are "of the values" (added to attention, [C] eq. 7), "of the input" (ConvBERT and
    Canon), "for the query", "for the key" and "for the value" (half convolutional projections, [C]
    section 5).
    Raises UserError if the layer has no depthwise convolution.
    """
    found = {}
    for name, weight in mixer_of(model, layer).kernels().items():
        if name.startswith("depthwise"):
            weight = weight.numpy()  # (C, K)
            found[name.removeprefix("depthwise, ")] = weight[channel_order(weight)]
    if not found:
        raise UserError(f"layer {layer} of {model.config.variant} has no depthwise convolution")
    return found


def channel_order(weight):
    """The channels (C,) of weight (C, K), sorted by the position of their largest weight.

    Channels with the same position are sorted by this weight. "Largest" means the largest absolute
    value.
    """
    position = np.abs(weight).argmax(axis=1)  # (C,)
    largest = weight[np.arange(len(weight)), position]  # (C,)

    # lexsort sorts by its last key first
    return np.lexsort((largest, position))


# --- In words -------------------------------------------------------------------------------------


def describe(p, clipped=False):
    """What a kernel looks at, in words, for K weights p that sum to 1.

    The rules use the excess of a weight: how far it lies above the mean weight 1/K, as a share of
    the sum of all excesses. The first rule that holds is taken:

        nearly uniform          every weight is between 0.5 and 1.5 times the mean
        previous / next token   the weight at r = -1 or at r = 1 has more than half of the excess;
                                in the same way "the token itself" (r = 0), "the token at -3", ...
        away from neighbours    the mean weight at r = -1, 0, 1 is less than half of the mean weight
                                of the others
        backward / forward      the tokens on that side have two thirds of the excess or more
        near                    the tokens at r = -2 .. 2 have two thirds of the excess or more
                                (up to K = 5 these are all tokens)
        mixed                   none of these

    Args:
        p: (K,) weights.
        clipped: whether the two end weights also hold for all tokens farther away. Then they are
            named so: "8 or more back".
    """
    K = len(p)
    k = K // 2
    r = np.arange(-k, k + 1)  # (K,)
    peak = int(p.argmax()) - k

    # shares of the excess: at each r, on each side, and near the token
    excess = np.maximum(p - 1 / K, 0)  # (K,)
    share = excess / max(excess.sum(), 1e-300)  # (K,)
    backward = share[r < 0].sum()
    forward = share[r > 0].sum()
    near = share[abs(r) <= 2].sum()

    # the mean weight of the token and its two neighbours, relative to the others
    neighbours = math.inf
    if k > 1:
        neighbours = p[abs(r) <= 1].mean() / max(p[abs(r) > 1].mean(), 1e-300)

    if p.min() * K >= 0.5 and p.max() * K <= 1.5:
        words = "nearly uniform"
    elif share.max() > 0.5:
        words = name_of_position(peak, k, clipped)
    elif neighbours < 0.5:
        words = "away from neighbours"
    elif backward >= 2 / 3:
        words = "backward"
    elif forward >= 2 / 3:
        words = "forward"
    elif near >= 2 / 3:
        words = "near"
    else:
        words = "mixed"
    return words


def name_of_position(r, k, clipped):
    """The token at relative position r in words. k, clipped: as in `describe`."""
    if clipped and k > 0 and r == -k:
        return f"{k} or more back"
    if clipped and k > 0 and r == k:
        return f"{k} or more ahead"
    names = {-1: "previous token", 0: "the token itself", 1: "next token"}
    return names.get(r, f"the token at {r:+d}")


def dilation_of(mixer):
    """How many tokens apart the weights of a mixer's kernels are: 1 without dilation."""
    return getattr(mixer, "dilation", 1)


def is_clipped(model):
    """Whether the end weights of the kernels also hold for all tokens farther away.

    This is so for position terms with --beyond clip. A convolution ends with its kernel, and some
    terms have no end.
    """
    return VARIANTS[model.config.variant].uses_beyond and model.config.beyond == "clip"
