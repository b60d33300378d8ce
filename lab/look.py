"""What is inside a model, as NumPy arrays: its attention weights and its kernels.

    from lab.look import attention_map, encode_sentence
    from model import load_run

    model, tokenizer = load_run("runs/composite")
    # (1, N), [CLS] first and [SEP] last
    ids, pieces = encode_sentence(model, tokenizer, "the dog was tired.")
    p = attention_map(model, ids, layer=1)  # (H, N, N)

Layers count from 1. Letters as in attention.py.
"""

import numpy as np
import torch

from attention import (
    VARIANTS,
    ConvBert,
    DepthwiseConvolution,
    DynamicConv,
    LightConv,
    SelfAttention,
    attention,
    split_heads,
    sum_of_biases,
    zero_padding,
)
from model import readable_piece
from support.commands import UserError
from support.tokenizer import CLS, MASK, SEP, ids_of


def encode_sentence(model, tokenizer, sentence):
    """(ids (1, N) of [CLS] sentence [SEP], its N pieces as text)."""
    ids = [CLS, *ids_of(tokenizer, sentence), SEP]
    if len(ids) > model.config.max_length:
        raise UserError(
            f"the sentence has {len(ids)} tokens, the model takes {model.config.max_length}"
        )

    # In a vocabulary of pieces, the mark "▁" stands for the space before a word. A piece that is
    # only this mark is shown as "_".
    pieces = [tokenizer.id_to_token(i).replace("▁", "") or "_" for i in ids]
    return torch.tensor([ids]), pieces


def mixer_of(model, layer):
    """The mixer of a layer."""
    if layer > model.config.layers:
        raise UserError(f"there is no layer {layer}: the model has {model.config.layers}")
    return model.bert.layers[layer - 1].mixer


def input_of_mixer(model, ids, layer):
    """What the mixer of a layer gets while the model reads ids: (x (1, N, C), attention_mask)."""
    attention_mask = torch.ones_like(ids, dtype=torch.bool)  # (1, N)
    x = model.bert.embeddings(ids)  # (1, N, C)
    for block in model.bert.layers[: layer - 1]:
        x = block(x, attention_mask)  # (1, N, C)
    return x, attention_mask


def queries_and_keys(mixer, x, attention_mask):
    """q and k of the attention heads before terms change them, (B, H, N, d) each."""
    if isinstance(mixer, ConvBert):
        query, key = mixer.query(x), mixer.key(x)  # (B, N, C/2) each
    else:
        query, key, _ = mixer.project(x, attention_mask)  # (B, N, C) each
    return split_heads(query, mixer.heads), split_heads(key, mixer.heads)


# --- The answers of the model ---------------------------------------------------------------------


@torch.no_grad()
def best_words(model, tokenizer, ids):
    """{token: [(word, probability), ...]}: the five best words for each [MASK].

    In a left-to-right model: the five best next words after each token. ids: (1, N).
    """
    hidden = model.bert(ids)[0]  # (N, C)
    answers = {}
    for token, token_id in enumerate(ids[0].tolist()):
        if token_id == MASK or model.config.causal:
            top = model.lm_head(hidden[token]).softmax(dim=-1).topk(5)  # (V,) -> (5,)
            words = [readable_piece(tokenizer, i) for i in top.indices.tolist()]
            answers[token] = list(zip(words, top.values.tolist(), strict=True))
    return answers


# --- Attention weights ----------------------------------------------------------------------------


@torch.no_grad()
def attention_map(model, ids, layer, with_content=True):
    """(H, N, N): the weights of attention in all heads of a layer.

    with_content=False: the weights that the position terms alone would give, the softmax over j of
    all terms except the content.
    """
    mixer = mixer_of(model, layer)
    if not isinstance(mixer, SelfAttention):
        raise UserError(
            f"layer {layer} of {model.config.variant} is a {type(mixer).__name__}, and this matrix "
            "needs self-attention in all heads; python -m lab.explore shows every layer"
        )

    # the queries, the keys and their biases, as the mixer computes them
    x, attention_mask = input_of_mixer(model, ids, layer)
    q, k = queries_and_keys(mixer, x, attention_mask)  # (1, H, N, d) each
    q, k, positions = mixer.apply_terms(q, k)

    # without the content term: 0 . k_j = 0
    if not with_content:
        if positions.query_bias is None and positions.key_bias is None:
            raise UserError(f"{model.config.variant} adds no position terms to the content term")
        q = torch.zeros_like(q)

    # with the identity as values, the output is the weights themselves
    H, N = q.shape[1:3]
    identity = torch.eye(N).expand(1, H, N, N)
    positions = positions._replace(value_table=None)
    p = attention(q, k, identity, attention_mask, positions, causal=mixer.causal)
    return p[0].numpy()


# --- What a mixer has learned: biases (before the softmax) and convolutions -----------------------


def fixed_bias(mixer):
    """(H, K): a bias per head that does not depend on the text; None if there is none."""
    if isinstance(mixer, LightConv):
        return mixer.weight
    if isinstance(mixer, SelfAttention) and "fixed" in mixer.terms:
        return mixer.terms["fixed"].beta
    return None


def token_bias(mixer, x, attention_mask):
    """(B, H, N, K): the bias that each token makes as a query; None if there is none.

    H counts only the heads that make biases. The biases of the keys (key_dynamic), those without a
    window, and DeBERTa's are not included.
    """
    if isinstance(mixer, DynamicConv):
        return mixer.kernel_logits(mixer.gate(x, attention_mask))
    if isinstance(mixer, ConvBert):
        x = zero_padding(x, attention_mask)
        return mixer.kernel_logits(x, mixer.query(x))
    if not isinstance(mixer, SelfAttention):
        return None

    # the biases that depend on the text: the others have no dimension B
    q, _ = queries_and_keys(mixer, x, attention_mask)  # (B, H, N, d)
    total = None
    for term in mixer.terms.values():
        bias = term.query_bias(q)
        if term.has_window and bias is not None and bias.dim() == 4:
            total = sum_of_biases(total, bias, mixer.beyond)
    return total


def depthwise_convolutions(mixer):
    """{of what: DepthwiseConvolution} of a mixer."""
    names = {
        "depthwise": "of the input" if isinstance(mixer, ConvBert) else "of the values",
        "canon": "of the input",
        "query.depthwise": "for the query",
        "key.depthwise": "for the key",
        "value.depthwise": "for the value",
    }
    return {
        names.get(path, path): module
        for path, module in mixer.named_modules()
        if isinstance(module, DepthwiseConvolution)
    }


# --- Kernels --------------------------------------------------------------------------------------


def kernel_of(mixer, bias):
    """The softmax over r of a bias (..., K).

    A causal SelfAttention reads r from -k to 0 only: then the kernel has k + 1 weights. The K
    weights of a causal convolution stand for -(K - 1) to 0. So the last weight of every causal
    kernel is that of the token itself.
    """
    if mixer.causal and isinstance(mixer, SelfAttention):
        bias = bias[..., : bias.shape[-1] // 2 + 1]
    return bias.softmax(dim=-1)


@torch.no_grad()
def fixed_kernels(model):
    """{layer: (H, K)}: the kernels that do not depend on the text, softmax over r of the biases."""
    found = {}
    for layer, block in enumerate(model.bert.layers, 1):
        bias = fixed_bias(block.mixer)  # (H, K)
        if bias is not None:
            found[layer] = kernel_of(block.mixer, bias).numpy()
    if not found:
        raise UserError(f"{model.config.variant} has no fixed kernels of K weights")
    return found


@torch.no_grad()
def dynamic_kernels(model, ids, layer):
    """(H, N, K): the kernel that each token makes, softmax over r of its bias."""
    mixer = mixer_of(model, layer)
    x, attention_mask = input_of_mixer(model, ids, layer)
    bias = token_bias(mixer, x, attention_mask)  # (1, H, N, K)
    if bias is None:
        raise UserError(
            f"layer {layer} of {model.config.variant} has no dynamic kernels of K weights; "
            "python -m lab.explore shows all terms of the score"
        )
    return kernel_of(mixer, bias)[0].numpy()


@torch.no_grad()
def depthwise_kernels(model, layer):
    """{of what: (C, K)}: the depthwise convolutions of a layer, each sorted by `channel_order`.

    The names are "of the values" (added to attention, Chang eq. 7), "of the input" (ConvBERT and
    Canon), "for the query", "for the key" and "for the value" (half convolutional projections,
    Chang sec. 5).
    """
    found = {}
    for name, convolution in depthwise_convolutions(mixer_of(model, layer)).items():
        weight = convolution.weight[:, 0].numpy()  # (C, 1, K) -> (C, K)
        found[name] = weight[channel_order(weight)]
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


def is_clipped(model):
    """Whether offsets beyond the window get the first or the last entry of the bias.

    This is so for position terms with --beyond clip. A convolution ends with its kernel, and some
    terms have no window.
    """
    return VARIANTS[model.config.variant].uses_beyond and model.config.beyond == "clip"
