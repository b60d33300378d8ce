"""attention.py: every variant equals its loops, ignores padding, keeps the paper's invariants and parameter counts."""

from types import SimpleNamespace

import pytest
import torch

import attention
import kernels
import references
from attention import VARIANTS, Variant, make_mixer
from kernels import WINDOWS
from model import BertConfig, BertForMaskedLM, parameter_count

B, H, d = 4, 4, 2
C = H * d
K = 5  # k = 2; ConvBERT below takes its own 9, k = 4

POSITION_TABLES = {"fixed", "dynamic", "key_dynamic"}
CONVOLUTIONAL = {"conv-qk": {"query", "key"}, "conv-v": {"value"}, "conv-qkv": {"query", "key", "value"}}
HOLDS = {  # the paper's variants: which tables of positions, which convolutions
    "none": set(), "absolute": set(), "fixed": {"fixed"}, "dynamic": {"dynamic"}, "composite": {"fixed", "dynamic"},
    "composite-key": POSITION_TABLES, "depthwise": {"depthwise"},
    "composite-depthwise": {"fixed", "dynamic", "depthwise"},
    **CONVOLUTIONAL, **{f"composite-{name}": {"fixed", "dynamic"} | parts for name, parts in CONVOLUTIONAL.items()},
}
ABSOLUTE = {"absolute", "convbert"}
CONVOLUTIONS = ["lightconv", "dynamicconv", "dilated", "lightconv-hybrid", "dynamicconv-hybrid", "dilated-hybrid"]


def make(variant, window="clip", dropout=0.0, kernel_size=None, layer=0):
    """A float64 mixer with every parameter random: beta and the biases start at zero and would hide mistakes."""
    kernel_size = kernel_size or (9 if variant == "convbert" else K)
    mixer = make_mixer(SimpleNamespace(
        variant=variant, hidden_size=C, heads=H, kernel_size=kernel_size, window=window, dropout=dropout,
        attention_layer=2), layer).double()
    return randomise(mixer, 0.5)


def randomise(module, std):
    """Every parameter normal(0, std); the weights of norms lie around 1, as around 0 they would hide their input."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.normal_(float(name.endswith("norm.weight")), std, generator=generator)
    return module


def batch(N):
    """x (B, N, C) and its mask: a full sentence, one token, about half, and one with padding before and inside."""
    mask = torch.arange(N)[None, :] < torch.tensor([N, 1, (N + 1) // 2, N])[:, None]  # (B, N)
    mask[3, 0] = N == 1
    mask[3, N // 2] = N == 1 or N == 2
    x = torch.randn(B, N, C, dtype=torch.float64, generator=torch.Generator().manual_seed(N))
    return x, mask


def reference(variant, x, mask, weights, window, layer=0):
    if variant == "convbert":
        return references.convbert(x, mask, weights, H)
    if "kernel.weight" in weights:
        return references.dynamic_convolution(x, mask, weights, H)
    if "weight" in weights:
        return references.light_convolution(x, mask, weights, H, 2 ** (layer % 4) if "dilated" in variant else 1)
    return references.self_attention(x, mask, weights, H, window)


def assert_equals_loops(variant, N, window, kernel_size=None, layer=0):
    """Output at real tokens, and gradients of input and of every parameter, within 1e-10."""
    mixer = make(variant, window, kernel_size=kernel_size, layer=layer)
    x, mask = batch(N)
    names, parameters = zip(*mixer.named_parameters())
    copies = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    x, x_copy = x.clone().requires_grad_(), x.clone().requires_grad_()
    got = mixer(x, mask)[mask]  # (real tokens, C)
    expected = reference(variant, x_copy, mask, dict(zip(names, copies)), window, layer)[mask]
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=0)
    upstream = torch.randn(got.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    got = torch.autograd.grad((got * upstream).sum(), (x, *parameters))
    expected = torch.autograd.grad((expected * upstream).sum(), (x_copy, *copies))
    for name, one, other in zip(("x", *names), got, expected):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0, msg=lambda message: f"gradient of {name}: {message}")


# --- against the loops ---

@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("N", [1, 2, 3, 10, 11])  # below and above both windows (5, ConvBERT 9), even and odd
@pytest.mark.parametrize("variant", VARIANTS)
def test_mixer_equals_its_loops_in_values_and_gradients(variant, N, window):
    assert_equals_loops(variant, N, window)


@pytest.mark.parametrize("kernel_size", [1, 3, 13])
@pytest.mark.parametrize("variant", VARIANTS)
def test_mixer_equals_its_loops_at_other_kernel_sizes(variant, kernel_size):
    assert_equals_loops(variant, 6, "clip", kernel_size)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_mixer_equals_its_loops_in_blocks_as_of_long_sequences(monkeypatch, variant, window):
    monkeypatch.setattr(kernels, "LONGEST_WHOLE", 6)
    monkeypatch.setattr(kernels, "BLOCK", 3)
    assert_equals_loops(variant, 7, window)


@pytest.mark.parametrize("layer", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("variant", CONVOLUTIONS)
def test_every_layer_of_a_convolution_equals_its_loops(variant, layer):
    """Dilations of 1, 2, 4, 8 and 1 again, the reach beyond and within the sentence; layer 1 of a hybrid is attention."""
    for N in (1, 5, 16, 19):
        assert_equals_loops(variant, N, "clip", 3, layer)


@pytest.mark.parametrize("variant", CONVOLUTIONS)
def test_hybrids_have_one_layer_of_self_attention_where_the_config_says(variant):
    for given, place in ((None, 5), (1, 1), (3, 3)):
        config = BertConfig.from_size("tiny", variant, layers=5, attention_layer=given if "hybrid" in variant else None)
        kinds = [type(layer.mixer).__name__ for layer in BertForMaskedLM(config).bert.layers]
        expected = ["DynamicConv" if "dynamic" in variant else "LightConv"] * 5
        if "hybrid" in variant:
            expected[place - 1] = "SelfAttention"
        assert kinds == expected


def test_an_attention_layer_out_of_place_is_refused_in_one_line():
    for variant, layer, message in (("lightconv", 1, "hybrid"), ("dilated-hybrid", 5, "4 layers"),
                                    ("dilated-hybrid", 0, "above 0"), ("composite", 1, "hybrid")):
        with pytest.raises(ValueError, match=message):
            BertConfig.from_size("tiny", variant, attention_layer=layer)


def test_dropconnect_drops_whole_weights_of_a_kernel_and_scales_the_others_up():
    """On constant input g = 1 far from the ends z is the sum of a head's kernel: 1, or what dropping left of it."""
    mixer = make("lightconv", dropout=0.25, kernel_size=3).train()
    with torch.no_grad():
        mixer.weight.copy_(torch.tensor([0.1, 0.2, 0.7]).log().expand(H, 3))
    sums = {a + b + c for a in (0, 0.1) for b in (0, 0.2) for c in (0, 0.7)}
    possible = torch.tensor(sorted(sums), dtype=torch.float64) / 0.75
    g = torch.ones(2, 9, C, dtype=torch.float64)
    seen = set()
    for seed in range(40):
        torch.manual_seed(seed)
        z = mixer.convolve(g)[:, 1:-1]  # (2, 7, C)
        assert torch.equal(z, z[:1, :1].expand_as(z))  # one kernel for every place and sentence
        by_head = z[0, 0].view(H, d)
        assert torch.equal(by_head, by_head[:, :1].expand_as(by_head))  # and every channel of a head
        nearest = (by_head[:, :1] - possible).abs()
        assert nearest.min(dim=1).values.max() < 1e-6
        seen |= set(nearest.argmin(dim=1).tolist())
    assert len(seen) >= 6
    assert torch.allclose(mixer.eval().convolve(g)[:, 1:-1], torch.ones(1, dtype=torch.float64))


def test_a_compiled_encoder_takes_long_sequences(monkeypatch):
    monkeypatch.setattr(kernels, "LONGEST_WHOLE", 8)
    monkeypatch.setattr(kernels, "BLOCK", 4)
    model, ids = encoder("composite"), tokens(2, 11)
    expected = model(ids)
    model.bert.compile(backend="eager", dynamic=False)
    torch.testing.assert_close(model(ids), expected, atol=1e-12, rtol=0)


def test_depthwise_convolution_starts_and_computes_like_torch_s():
    torch.manual_seed(0)
    ours = attention.DepthwiseConvolution(6, 5)
    torch.manual_seed(0)
    theirs = torch.nn.Conv1d(6, 6, 5, padding=2, groups=6)
    x, x_copy = (torch.randn(2, 9, 6, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    assert all(torch.equal(one, theirs.state_dict()[name]) for name, one in ours.state_dict().items())
    y, expected = ours(x), theirs(x_copy.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(y, expected, atol=1e-6, rtol=0)
    got = torch.autograd.grad(y.pow(2).sum(), (x, ours.weight, ours.bias))
    expected = torch.autograd.grad(expected.pow(2).sum(), (x_copy, theirs.weight, theirs.bias))
    for one, other in zip(got, expected):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", HOLDS)
def test_variant_holds_the_terms_that_the_paper_names_and_no_others(variant):
    mixer = make(variant)
    names = set(mixer.state_dict())
    tables = {name for name in names if "." not in name}
    convolutions = {name.split(".")[0] for name in names if ".depthwise." in name or name.startswith("depthwise.")}
    assert tables | convolutions == HOLDS[variant]
    for table in tables:
        assert mixer.state_dict()[table].shape == ((H, K) if table == "fixed" else (d, K))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_learns_save_a_key_bias_that_no_query_can_tell(variant):
    """q_i . (k_j + b) adds one constant to a row: softmax ignores it, so b learns only where keys make kernels."""
    model = encoder(variant)
    ids = tokens(2, 9)
    model.loss(ids, ids).backward()
    for name, parameter in model.named_parameters():
        largest = parameter.grad.abs().max()
        blind = ".key." in name and name.endswith("bias") and "key_dynamic" not in VARIANTS[variant].terms
        assert largest < 1e-13 if blind else largest > 1e-9, (name, largest)


# --- padding ---

def encoder(variant, **overrides):
    """A small whole model in float64, evaluation mode, every parameter random."""
    sizes = dict(layers=2, hidden_size=C, ffn_size=16, heads=H, embedding_size=6, max_length=40)
    model = BertForMaskedLM(BertConfig(variant=variant, vocab_size=30, **{**sizes, **overrides})).double().eval()
    return randomise(model, 0.3)


def tokens(*shape, seed=0):
    return torch.randint(5, 30, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_neither_content_nor_amount_of_padding_changes_a_real_token(variant, window):
    model, sentence = encoder(variant, window=window), tokens(1, 7)
    alone = model(sentence)  # (1, 7, V)
    for amount in (1, 2, 9, 33):
        mask = (torch.arange(7 + amount) < 7)[None]
        for seed in (1, 2):
            padded = torch.cat([sentence, tokens(1, amount, seed=seed)], dim=1)
            torch.testing.assert_close(model(padded, mask)[:, :7], alone, atol=1e-12, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_gradient_reaches_the_hidden_states_of_padding(variant):
    mixer = make(variant)
    x, mask = batch(9)
    x.requires_grad_()
    mixer(x, mask)[mask].square().sum().backward()
    assert x.grad[~mask].eq(0).all() and x.grad[mask].ne(0).any(-1).all()


# --- invariants ---

@pytest.mark.parametrize("variant", [name for name in VARIANTS if {"fixed", "dynamic"} & set(VARIANTS[name].terms)])
def test_gradients_of_relative_weights_sum_to_zero_under_clip(variant):
    """Softmax ignores a constant added to a row, so the K gradients of a query's row sum to zero; hence beta's in each
    head, and those of w over its K columns. Under "zero" the keys beyond the window do not share the constant."""
    for window in WINDOWS:
        mixer = make(variant, window)
        x, mask = batch(10)
        mixer(x, mask)[mask].pow(3).sum().backward()
        for table in ({"fixed", "dynamic"} & set(VARIANTS[variant].terms)):
            gradient = getattr(mixer, table).grad  # (H, K) or (d, K)
            ratio = gradient.sum(-1).abs() / gradient.abs().sum(-1)  # (H) or (d)
            assert ratio.max() < 1e-12 if window == "clip" else ratio.min() > 1e-9, (table, window)


@pytest.mark.parametrize("variant", [name for name, variant in VARIANTS.items() if "fixed" in variant.terms])
def test_a_constant_added_to_beta_changes_nothing_under_clip(variant):
    for window in WINDOWS:
        mixer = make(variant, window)
        x, mask = batch(10)
        before = mixer(x, mask)[mask]
        with torch.no_grad():
            mixer.fixed += torch.tensor([1.0, -2.0, 3.0, 0.5])[:, None]  # one constant a head
        change = (mixer(x, mask)[mask] - before).abs().max()
        assert change < 1e-12 if window == "clip" else change > 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_without_any_position_term_the_encoder_commutes_with_permutations(variant):
    model, sentence = encoder(variant), tokens(1, 12)
    order = torch.arange(12).roll(5).flip(0)
    difference = (model(sentence[:, order]) - model(sentence)[:, order]).abs().max()
    assert difference < 1e-12 if variant == "none" else difference > 1e-3


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_absolute_positions_tell_where_a_sentence_begins(variant):
    """Shifted to the right behind padding, a sentence comes out the same: every term depends on j - i alone."""
    model, sentence = encoder(variant), tokens(1, 8)
    alone = model(sentence)  # (1, 8, V)
    for shift in (1, 6, 30):
        shifted = torch.cat([tokens(1, shift, seed=1), sentence, tokens(1, 2, seed=2)], dim=1)
        mask = torch.tensor([False] * shift + [True] * 8 + [False] * 2)[None]
        difference = (model(shifted, mask)[:, shift:shift + 8] - alone).abs().max()
        assert difference > 1e-3 if variant in ABSOLUTE else difference < 1e-12


@pytest.mark.parametrize("variant", VARIANTS)
def test_dropout_acts_in_training_and_there_alone(variant):
    x, mask = batch(9)
    mixer = make(variant, dropout=0.5).eval()
    without = mixer(x, mask)
    assert torch.equal(without, mixer(x, mask))
    assert torch.equal(without, make(variant, dropout=0.0).train()(x, mask))
    assert not torch.equal(mixer.train()(x, mask), mixer(x, mask))


# --- the table ---

SMALL = {  # C = 256, d = 64, H = 4, E = 128, 12 layers, vocabulary 30004, 128 positions, k = 8
    "none": 13_414_324, "absolute": 13_430_708, "fixed": 13_415_140, "dynamic": 13_427_380, "composite": 13_428_196,
    "composite-key": 13_441_252, "depthwise": 13_469_620, "composite-depthwise": 13_483_492, "conv-qk": 13_524_916,
    "conv-v": 13_469_620, "conv-qkv": 13_580_212, "composite-conv-qk": 13_538_788, "composite-conv-v": 13_483_492,
    "composite-conv-qkv": 13_594_084, "convbert": 13_094_540,
}
# The systems of the other papers. A layer of none has 4 (C^2 + C) = 263,168 parameters in its mixer.
#   shaw         none and two tables d * K a layer: + 12 * 2 * 64 * 17
#   lightconv    C -> 2C and C -> C with biases, 3 (C^2 + C), and H * K weights: - 12 * (65,792 - 68)
#   dynamicconv  the same with a matrix C * H * K in place of the weights: - 12 * (65,792 - 17,408)
#   dilated      as lightconv;  the hybrids: 11 such layers and one of none
OTHERS = {"shaw": 13_440_436, "lightconv": 12_625_636, "dynamicconv": 12_833_716, "dilated": 12_625_636,
          "lightconv-hybrid": 12_691_360, "dynamicconv-hybrid": 12_882_100, "dilated-hybrid": 12_691_360}
# base, C = E = 768, H = 12, d = 64, FFN 3072:
#   embeddings  30004 * 768 tokens + 2 * 768 types + 2 * 768 norm                                        23,046,144
#   a layer     4 (768 * 768 + 768) + (768 * 3072 + 3072) + (3072 * 768 + 768) + 4 * 768 = 7,087,872; twelve 85,054,464
#   head        768 * 768 + 768 + 2 * 768 norm + 30004 biases, decoder tied                                 622,132
#   none        108,722,740;  absolute + 128 * 768;  fixed + 12 layers * 12 heads * 17;  dynamic + 12 layers * 64 * 17
BASE = {"absolute": (108_821_044, "108.82M"), "fixed": (108_725_188, "108.73M"), "dynamic": (108_735_796, "108.74M"),
        "composite": (108_738_244, "108.74M")}


def count(size, variant):
    with torch.device("meta"):  # shapes without numbers
        return parameter_count(BertForMaskedLM(BertConfig.from_size(size, variant, vocab_size=30004)))


@pytest.mark.parametrize("variant", OTHERS)
def test_small_has_the_parameters_derived_above(variant):
    assert count("small", variant) == OTHERS[variant]


@pytest.mark.parametrize("variant", SMALL)
def test_small_has_the_paper_s_parameters_to_the_unit(variant):
    assert count("small", variant) == SMALL[variant]


@pytest.mark.parametrize("variant", BASE)
def test_base_has_the_paper_s_parameters(variant):
    parameters, printed = BASE[variant]
    assert count("base", variant) == parameters
    assert f"{parameters / 1e6:.2f}M" == printed


def test_the_table_offers_the_paper_s_fifteen_variants_and_those_of_the_others():
    assert set(SMALL) | set(OTHERS) <= set(VARIANTS) and len(SMALL) == 15 == len(HOLDS) + 1
    assert {name for name in SMALL if VARIANTS[name].absolute} == ABSOLUTE


@pytest.mark.parametrize("window", WINDOWS)
def test_a_sixteenth_variant_is_one_line(monkeypatch, window):
    monkeypatch.setitem(VARIANTS, "fixed-key", Variant("content + beta_r + k_j.u_(i-j)", ("fixed", "key_dynamic")))
    assert_equals_loops("fixed-key", 9, window)
    model, ids = encoder("fixed-key", window=window), tokens(2, 9)
    logits, targets = model.masked_logits(ids, ids)
    torch.nn.functional.cross_entropy(logits, targets).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert logits.shape == (18, 30) and torch.allclose(logits.view(2, 9, 30), model(ids), atol=1e-12)
    assert count("small", "fixed-key") == SMALL["none"] + 12 * (4 * 17 + 64 * 17)


def test_dilations_are_refused_where_the_mixer_cannot_dilate(monkeypatch):
    monkeypatch.setitem(VARIANTS, "dilated-dynamic", Variant("", mixer=attention.DynamicConv, dilations=(1, 2)))
    with pytest.raises(ValueError, match="dilations"):
        make("dilated-dynamic")


class Mean(torch.nn.Module):
    """z_i = mean of x_j over the real tokens j: the example in README.md."""

    def __init__(self, config, variant, layer):
        super().__init__()
        self.output = torch.nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, padding_mask):
        total = attention.zero_padding(x, padding_mask).sum(dim=1, keepdim=True)
        return self.output(total / padding_mask.sum(dim=1)[:, None, None]).expand_as(x)


def test_a_variant_of_a_new_class_trains_like_the_others(monkeypatch):
    monkeypatch.setitem(VARIANTS, "mean", Variant("z_i = mean_j x_j", mixer=Mean))
    model, ids = encoder("mean"), tokens(2, 9)
    model.loss(ids, ids).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("variant", ["conv-v", "composite-conv-qk", "convbert"])
def test_half_convolutional_variants_refuse_an_odd_number_of_heads(variant):
    with pytest.raises(ValueError, match="even"):
        encoder(variant, hidden_size=9, heads=3)
