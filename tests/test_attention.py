"""attention.py: every variant equals its loops, ignores padding, keeps the paper's invariants and parameter counts."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

import attention
import references
from attention import VARIANTS, Variant, make_mixer
from kernels import WINDOWS
from model import BertConfig, BertForMaskedLM, parameter_count

H, d = 4, 3
C = H * d
RELATIVE = [name for name, variant in VARIANTS.items() if variant.terms]


def mixer(variant, window="clip", kernel_size=None, dropout=0.0):
    """A mixer in float64 whose every parameter is random, also those that start at zero."""
    torch.manual_seed(3)
    K = kernel_size or (9 if variant == "convbert" else 5)
    made = make_mixer(SimpleNamespace(
        variant=variant, hidden_size=C, heads=H, kernel_size=K, window=window, dropout=dropout)).double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def sentences(N, lengths):
    """x (B, N, C) and its padding mask (B, N), the first lengths[b] tokens real."""
    x = torch.randn(len(lengths), N, C, dtype=torch.float64, generator=torch.Generator().manual_seed(N))
    return x, torch.arange(N)[None, :] < torch.tensor(lengths)[:, None]


def real_output_and_gradients(forward, x, padding_mask, weights):
    """The output at real tokens, and the gradients of a fixed weighting of it: of x and of every weight."""
    inputs = [x.clone().requires_grad_(), *weights.values()]
    y = forward(inputs[0], padding_mask)[padding_mask]  # (real tokens, C)
    direction = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(9))
    return [y.detach(), *torch.autograd.grad((y * direction).sum(), inputs)]


def equals_loops(variant, window, N, lengths, kernel_size=None):
    made = mixer(variant, window, kernel_size)
    x, padding_mask = sentences(N, lengths)
    loops = references.convbert if variant == "convbert" else references.self_attention
    weights = dict(made.named_parameters())
    got = real_output_and_gradients(made, x, padding_mask, weights)
    copies = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
    expected = real_output_and_gradients(
        lambda x, mask: loops(x, mask, copies, H, window), x, padding_mask, copies)
    for name, a, b in zip(["output", "x", *weights], got, expected):
        assert torch.allclose(a, b, atol=1e-10, rtol=0), (name, (a - b).abs().max())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_mixer_equals_its_loops_with_padding_in_values_and_gradients(variant, window):
    equals_loops(variant, window, N=7, lengths=[7, 4, 1])  # N above the window of K = 5, odd


@pytest.mark.parametrize("N, kernel_size", [(1, 5), (2, 9), (4, 9), (8, 9), (8, 1)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_mixer_equals_its_loops_at_lengths_below_and_above_the_window(variant, N, kernel_size):
    equals_loops(variant, "clip", N, [N], kernel_size)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_of_every_variant_learns(variant):
    made = mixer(variant)
    x, padding_mask = sentences(8, [8, 5])
    (made(x, padding_mask) ** 3).sum().backward()
    for name, parameter in made.named_parameters():
        constant = name.startswith("key.") and name.endswith("bias")  # may add the same to every score of a query
        assert parameter.grad is not None and (constant or parameter.grad.abs().max() > 1e-9), name


# --- padding ---


def encoder(variant, **overrides):
    """A whole float64 model, evaluation mode, with position kernels that matter."""
    torch.manual_seed(5)
    sizes = dict(layers=2, hidden_size=16, ffn_size=24, heads=4, embedding_size=8, max_length=40)
    model = BertForMaskedLM(BertConfig(variant=variant, vocab_size=30, **sizes | overrides)).double().eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("fixed", "dynamic")):
            torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_neither_content_nor_amount_of_padding_changes_a_real_token(variant):
    model = encoder(variant)
    ids = torch.randint(5, 30, (1, 11), generator=torch.Generator().manual_seed(1))
    alone = model(ids)
    for amount in (1, 7, 29):
        for content in (0, 12):
            padded = torch.cat([ids, torch.full((1, amount), content)], dim=1)
            mask = torch.arange(11 + amount)[None] < 11
            assert torch.allclose(model(padded, mask)[:, :11], alone, atol=1e-12, rtol=0), (amount, content)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_sentence_does_not_depend_on_its_neighbours_in_the_batch(variant):
    model = encoder(variant)
    ids = torch.randint(5, 30, (3, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(11)[None] < torch.tensor([11, 6, 2])[:, None]
    together = model(ids, mask)
    for b, length in enumerate((11, 6, 2)):
        assert torch.allclose(together[b, :length], model(ids[b:b + 1, :length])[0], atol=1e-12, rtol=0)


def test_a_sentence_of_padding_alone_gives_numbers():
    for variant in VARIANTS:
        assert encoder(variant)(torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.bool)).isfinite().all()


# --- invariants ---


def test_gradients_of_a_query_s_relative_row_sum_to_zero():
    made = mixer("composite")
    x, padding_mask = sentences(9, [9, 6])
    captured = {}
    true_scores = attention.relative_scores

    def capture(rows, length, window):
        captured["rows"] = rows
        rows.retain_grad()
        return true_scores(rows, length, window)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "relative_scores", capture)
        (made(x, padding_mask) ** 3).sum().backward()
    gradient = captured["rows"].grad  # (B, H, N, K)
    assert gradient.abs().max() > 1e-3 and gradient.sum(-1).abs().max() < 1e-12 * 9 * gradient.abs().max() + 1e-10


def test_gradient_of_beta_sums_to_zero_in_each_head():
    made = mixer("fixed")
    x, padding_mask = sentences(9, [9, 6])
    (made(x, padding_mask) ** 3).sum().backward()
    assert made.fixed.grad.abs().max() > 1e-3 and made.fixed.grad.sum(-1).abs().max() < 1e-10


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_position_terms_alone_the_encoder_commutes_with_permutations(variant):
    model = encoder(variant)
    ids = torch.randint(5, 30, (1, 12), generator=torch.Generator().manual_seed(2))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))
    difference = (model(ids)[:, order] - model(ids[:, order])).abs().max()
    assert difference < 1e-12 if variant == "none" else difference > 1e-9


@pytest.mark.parametrize("variant", [name for name in VARIANTS if not VARIANTS[name].absolute])
def test_without_absolute_positions_a_mixer_commutes_with_shifts_away_from_the_edges(variant):
    """A sentence whose outer tokens are all alike looks the same, one token further on, as far as the window is inside.

    Softmax runs over all tokens, so the first and last tokens are copies of one another: a shift then moves one of them
    from the right end to the left, which changes only what lies beyond both windows.
    """
    made = mixer(variant, window="zero")
    x, mask = sentences(30, [30])
    x[:, :10], x[:, 16:] = x[:, :1], x[:, :1]  # six tokens that differ amid twenty-four that do not
    shifted = x.roll(3, dims=1)
    y, z = made(x, mask), made(shifted, mask)
    assert torch.allclose(y[:, 6:21], z[:, 9:24], atol=1e-10, rtol=0)
    assert not torch.allclose(y[:, 9:17], z[:, 9:17], atol=1e-3)  # and the shift is one that shows


@pytest.mark.parametrize("variant", VARIANTS)
def test_dropout_acts_in_training_alone(variant):
    made = mixer(variant, dropout=0.5)
    x, mask = sentences(6, [6])
    assert torch.equal(made.eval()(x, mask), made(x, mask))
    assert not torch.equal(made.train()(x, mask), made(x, mask))


# --- the table ---


PARAMETERS = {  # small, vocabulary 30004, 128 positions, k = 8, from the paper's own architecture
    "none": 13_414_324, "absolute": 13_430_708, "fixed": 13_415_140, "dynamic": 13_427_380, "composite": 13_428_196,
    "composite-key": 13_441_252, "depthwise": 13_469_620, "composite-depthwise": 13_483_492, "conv-qk": 13_524_916,
    "conv-v": 13_469_620, "conv-qkv": 13_580_212, "composite-conv-qk": 13_538_788, "composite-conv-v": 13_483_492,
    "composite-conv-qkv": 13_594_084, "convbert": 13_094_540,
}
# base: tokens 30004 * 768 = 23,043,072, types 1,536, norm 1,536; a layer 4 * (768 * 768 + 768) + 2 * 1,536
# + 2 * 768 * 3,072 + 3,072 + 768 = 7,087,872, twelve of them 85,054,464; head 768 * 768 + 768 + 1,536 + 30,004 = 622,132:
# 108,722,740 without positions. absolute + 128 * 768; fixed + 12 * 12 * 17; dynamic + 12 * 64 * 17; composite both.
BASE_PARAMETERS = {"none": 108_722_740, "absolute": 108_821_044, "fixed": 108_725_188, "dynamic": 108_735_796,
                   "composite": 108_738_244}


@pytest.mark.parametrize("size, counts", [("small", PARAMETERS), ("base", BASE_PARAMETERS)])
def test_parameter_counts_are_the_paper_s_to_the_unit(size, counts):
    with torch.device("meta"):  # no memory, no time
        built = {name: parameter_count(BertForMaskedLM(BertConfig.from_size(size, name))) for name in counts}
    assert built == counts


def test_the_table_names_the_paper_s_fifteen_variants():
    assert set(PARAMETERS) <= set(VARIANTS)


@pytest.mark.parametrize("terms, added", [(("fixed", "key_dynamic"), 2 * (4 * 17 + 4 * 17)), (("key_dynamic",), 2 * 4 * 17)])
def test_a_sixteenth_variant_is_one_line(monkeypatch, terms, added):
    monkeypatch.setitem(VARIANTS, "mine", Variant("a_ij = content + my own choice of terms", terms))
    equals_loops("mine", "clip", 7, [7, 4])
    model = encoder("mine")
    ids = torch.randint(5, 30, (2, 9))
    model.loss(ids, ids).backward()
    assert parameter_count(model) == parameter_count(encoder("none")) + added


def test_a_variant_of_a_new_class_is_one_small_class(monkeypatch):
    class Mean(torch.nn.Module):
        """z_i = the mean of the sentence: no attention at all."""

        def __init__(self, config, variant):
            super().__init__()
            self.output = torch.nn.Linear(config.hidden_size, config.hidden_size)

        def forward(self, x, padding_mask):
            x = attention.zero_padding(x, padding_mask)
            return self.output(x.sum(1, keepdim=True) / padding_mask.sum(1)[:, None, None]).expand_as(x)

    monkeypatch.setitem(VARIANTS, "mean", Variant("z_i = mean_j x_j", mixer=Mean))
    assert encoder("mean")(torch.randint(5, 30, (2, 9))).shape == (2, 9, 30)


def test_variants_are_immutable_records():
    with pytest.raises(dataclasses.FrozenInstanceError):
        VARIANTS["none"].terms = ("fixed",)
