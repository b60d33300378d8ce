"""Convolutions and the mixers made of them equal their equations.

From top to bottom: depthwise and half convolution, the gate, and dropped kernels; then the mixers
that have convolutions in place of attention.
"""

import inspect

import pytest
import torch
from torch import nn

import attention
import references
from helpers import (
    C,
    H,
    assert_equals_loops,
    assert_near,
    assert_same_with_gradients,
    draw,
    padded_batch,
    random_mixer,
)
from model import BertConfig, BertForMaskedLM

# --- Convolutions ---------------------------------------------------------------------------------


def test_the_drawing_of_depthwise_convolution_is_what_token_3_sees():
    """N = 8, dilation 3, three weights: the column 0 3 6 of the drawn image."""
    x = draw(1, 8, 1).requires_grad_()
    weight = torch.ones(1, 3, dtype=torch.float64)
    y = attention.depthwise_convolution(x, weight, dilation=3)
    seen = torch.autograd.grad(y[0, 3, 0], x)[0][0, :, 0].nonzero().flatten()
    assert seen.tolist() == [0, 3, 6]


@pytest.mark.parametrize("N", [1, 5, 19])
def test_the_gate_alone_equals_its_loops(N):
    """g = a * sigmoid(b), and 0 at padding. In training, too: dropout is for the kernels alone."""
    mixer = random_mixer("lightconv", dropout=0.5).train()
    x, mask = padded_batch(N)
    weights = dict(mixer.named_parameters())
    inputs = [x.requires_grad_(), weights["input.weight"], weights["input.bias"]]
    expected = references.gate(x, mask, weights)  # (B, N, C)
    assert_same_with_gradients(mixer.gate(x, mask), expected, inputs)


@pytest.mark.parametrize("N", [1, 2, 6, 11])
def test_half_convolution_alone_equals_its_loops(N):
    """Values, and the gradients of x and of all weights, without padding."""
    mixer = random_mixer("conv-v")
    x, mask = padded_batch(N)
    weights = dict(mixer.named_parameters())
    own = [weight for name, weight in weights.items() if name.startswith("value.")]
    everywhere = torch.ones_like(mask)
    expected = references.half_convolution(x.requires_grad_(), everywhere, weights, "value")
    assert_same_with_gradients(mixer.value(x), expected, [x, *own])


def assert_kernels_are_dropped(z, heads):
    """z (B, N, heads * d): sums of kernels of three weights 1/3, each dropped with p = 0.25.

    So z is 0, 1, 2 or 3 times (1/3) / 0.75, another sum for each sentence, token and head, and the
    same for the channels of a head. Dropout before the softmax would leave a sum of 1.
    """
    by_head = z.unflatten(-1, (heads, -1))  # (B, N, heads, d)
    assert torch.equal(by_head, by_head[..., :1].expand_as(by_head))
    kept = by_head[..., 0] * 3 * 0.75  # (B, N, heads)
    assert_near(kept, kept.round(), 1e-6)
    assert sorted(set(kept.round().flatten().tolist())) == [0, 1, 2, 3]
    assert not torch.equal(kept[0], kept[1])  # two sentences
    assert not torch.equal(kept[:, 0], kept[:, 1])  # two tokens
    assert not torch.equal(kept[..., 0], kept[..., 1])  # two heads

    # three of four weights stay, within 4 standard deviations
    deviation = (0.75 * 0.25 / (3 * kept.numel())) ** 0.5
    assert abs(kept.mean().item() / 3 - 0.75) < 4 * deviation


def test_convbert_drops_weights_of_its_kernels_and_scales_the_others_up():
    """All kernels are 1/3, and all values 1. Far from the ends, all three weights meet tokens."""
    mixer = random_mixer("convbert", dropout=0.25, kernel_size=3).train()
    for part in (mixer.kernel, mixer.value, mixer.output):
        nn.init.zeros_(part.weight)
        nn.init.zeros_(part.bias)
    nn.init.ones_(mixer.value.bias)
    nn.init.eye_(mixer.output.weight)
    torch.manual_seed(0)
    z = mixer(draw(4, 50, C), torch.ones(4, 50, dtype=torch.bool))[:, 1:-1]
    assert_kernels_are_dropped(z[..., C // 2 :], H // 2)  # the convolution heads


def test_lightconv_drops_weights_of_its_kernel_and_scales_the_others_up():
    """DropConnect: one kernel per head, the same at every position and in every sentence."""
    mixer = random_mixer("lightconv", dropout=0.25, kernel_size=3).train()
    nn.init.zeros_(mixer.weight)
    ones = torch.ones(2, 9, C, dtype=torch.float64)
    seen = []
    for seed in range(40):
        torch.manual_seed(seed)
        z = mixer.convolution(ones)[:, 1:-1]
        assert torch.equal(z, z[:1, :1].expand_as(z))
        seen.append(z[0, 0])
    assert_kernels_are_dropped(torch.stack(seen).view(2, 20, C), H)


def test_dynamicconv_drops_weights_of_its_kernels_and_scales_the_others_up():
    mixer = random_mixer("dynamicconv", dropout=0.25, kernel_size=3).train()
    nn.init.zeros_(mixer.kernel.weight)
    torch.manual_seed(0)
    z = mixer.convolution(torch.ones(4, 50, C, dtype=torch.float64))[:, 1:-1]
    assert_kernels_are_dropped(z, H)


@pytest.mark.parametrize("variant", ["none", "composite-conv-qk", "shaw", "convbert"])
def test_attention_gets_the_dropout_of_the_config_in_training_and_none_otherwise(
    monkeypatch, variant
):
    given = []
    reference = attention.attention

    signature = inspect.signature(reference)

    def note(*arguments, **options):
        bound = signature.bind(*arguments, **options)
        given.append(bound.arguments["dropout"])
        return reference(*arguments, **options)

    mixer = random_mixer(variant, dropout=0.25)
    monkeypatch.setattr(attention, "attention", note)
    mixer.train()(*padded_batch(5))
    mixer.eval()(*padded_batch(5))
    assert given == [0.25, 0.0]


# --- Convolutions in place of attention -----------------------------------------------------------

CONVOLUTIONS = ["lightconv", "dynamicconv", "dilated"]
CONVOLUTIONS += [f"{name}-hybrid" for name in CONVOLUTIONS]

# Without dilation all layers are the same, except layer 1 of a hybrid.
LAYERS = []
for name in CONVOLUTIONS:
    layers = 5 if name.startswith("dilated") else 2
    LAYERS += [(name, layer) for layer in range(layers)]


@pytest.mark.parametrize("variant, layer", LAYERS)
def test_every_layer_of_a_convolution_equals_its_loops(variant, layer):
    """Dilations 1, 2, 4, 8 and 1 again, whose windows end within the sentence and beyond it.

    Layer 1 of a hybrid, its second one, is self-attention.
    """
    for N in (1, 5, 19):
        assert_equals_loops(variant, N, layer=layer, kernel_size=3)


def test_neighbouring_weights_are_1_2_4_8_tokens_apart_in_dilated_layers():
    """The loops read the dilations from the table of variants, so they cannot tell."""
    for variant, expected in (("dilated", [1, 2, 4, 8, 1]), ("lightconv", [1, 1, 1, 1, 1])):
        found = [random_mixer(variant, layer=layer).dilation for layer in range(5)]
        assert found == expected


def test_the_last_layer_of_a_hybrid_is_self_attention():
    for name, ours in (("lightconv", "LightConv"), ("dynamicconv", "DynamicConv")):
        settings = dict(layers=5, vocab_size=30)
        model = BertForMaskedLM(BertConfig.from_size("tiny", f"{name}-hybrid", **settings))
        found = [type(layer.mixer).__name__ for layer in model.bert.layers]
        assert found == [ours] * 4 + ["SelfAttention"]
