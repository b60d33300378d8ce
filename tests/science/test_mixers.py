"""Every mixer equals the plain loops of tests/references.py.

From top to bottom: values and gradients; padding; properties that follow from the equations; the
initial weights.
"""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap

from attention import TERMS, VARIANTS, DepthwiseConvolution, Term, make_mixer
from helpers import (
    C,
    H,
    assert_equals_loops,
    assert_near,
    draw,
    every_variant,
    every_variant_and_beyond,
    loss_of,
    padded_batch,
    random_mixer,
    random_tokens,
    small_model,
)
from model import BertConfig, BertForClassification, BertForMaskedLM

# --- Every mixer against the plain loops ----------------------------------------------------------


# N shorter and longer than the kernel, odd and even; K smaller and larger than the sequence
@pytest.mark.parametrize("N, kernel_size", [(1, 5), (2, 13), (3, 1), (6, 3), (9, 5)])
@every_variant_and_beyond
def test_mixer_equals_its_loops_in_values_and_gradients(variant, beyond, N, kernel_size):
    if VARIANTS[variant].has_kernel:
        assert_equals_loops(variant, N, beyond, kernel_size=kernel_size)
    else:
        assert_equals_loops(variant, N, beyond)


@every_variant
def test_beyond_changes_the_output_only_of_variants_that_use_it(variant):
    """Of two mixers with the same weights. N = 11 is longer than the window."""
    clip = random_mixer(variant, beyond="clip")
    zero = random_mixer(variant, beyond="zero")
    x, mask = padded_batch(11)
    is_equal = torch.equal(clip(x, mask)[mask], zero(x, mask)[mask])
    assert is_equal == (not VARIANTS[variant].uses_beyond)


ONLY_CONTENT = "SelfAttention Canon ConvBert ReleasedConvBert LightConv DynamicConv"


def key_bias_learns(variant):
    """Whether the bias of the keys learns. None: a term or mixer that this test does not know."""
    terms = VARIANTS[variant].terms
    mixer = VARIANTS[variant].mixer.__name__
    # DeBERTa's positions see the bias; Primer's convolution of the keys sees where they end
    if "key_dynamic" in terms or "rotary" in terms or mixer in ("Deberta", "Primer"):
        return True
    for name in terms:
        changes_keys = TERMS[name].queries_and_keys is not Term.queries_and_keys
        if TERMS[name].key_bias is not Term.key_bias or (changes_keys and name != "xl"):
            return None
    return False if mixer in ONLY_CONTENT.split() else None


@every_variant
def test_every_parameter_learns_except_key_biases_that_cannot(variant):
    """q_i . (k_j + b) adds one constant to all scores of query i, which the softmax ignores.

    So b, the bias of the key projection, learns only if keys enter the score in another way. Such
    constants are also the last bias of FIRE's function and that of Primer's convolution of the
    keys. Whether b learns in a term or mixer of your own is not asked.
    """
    learns = key_bias_learns(variant)
    model = small_model(variant)
    loss_of(model, random_tokens(2, 9)).backward()

    for name, parameter in model.named_parameters():
        largest = parameter.grad.abs().max()
        is_key_bias = ".key." in name and name.endswith("bias")
        is_constant = name.endswith(("terms.fire.output.bias", "mixer.convolutions.1.bias"))
        if is_constant or (is_key_bias and learns is False):
            assert largest < 1e-13, f"{name} has a gradient"
        elif not is_key_bias or learns:
            assert largest > 1e-9, f"{name} has no gradient"


# --- Padding --------------------------------------------------------------------------------------


@every_variant_and_beyond
def test_neither_content_nor_amount_of_padding_changes_a_real_token(variant, beyond):
    model = small_model(variant, beyond=beyond)
    sentence = random_tokens(1, 7)
    alone = model(sentence)  # (1, 7, V)

    for amount in (1, 9, 33):
        mask = torch.ones(1, 7 + amount, dtype=torch.bool)
        mask[:, 7:] = False
        for seed in (1, 2):
            padded = torch.cat([sentence, random_tokens(1, amount, seed=seed)], dim=1)
            got = model(padded, mask)[:, :7]
            assert_near(got, alone, 1e-12)


# --- Properties that follow from the equations ----------------------------------------------------


@pytest.mark.parametrize("variant", [name for name in VARIANTS if "fixed" in VARIANTS[name].terms])
def test_a_constant_added_to_beta_changes_nothing_with_clip(variant):
    """One for each head."""
    mixer = random_mixer(variant)
    x, mask = padded_batch(10)
    before = mixer(x, mask)[mask]
    with torch.no_grad():
        mixer.terms["fixed"].beta += draw(H, 1)
    assert_near(mixer(x, mask)[mask], before, 1e-12)


@every_variant
def test_only_none_ignores_word_order(variant):
    """In other words, only `none` commutes with permutations of the tokens."""
    model = small_model(variant)
    sentence = random_tokens(1, 12)
    order = torch.arange(12).roll(5).flip(0)
    difference = (model(sentence[:, order]) - model(sentence)[:, order]).abs().max()
    if variant == "none":
        assert difference < 1e-12
    else:
        assert difference > 1e-3, f"word order does not change the output of {variant}"


@pytest.mark.parametrize("variant", [name for name in VARIANTS if not VARIANTS[name].absolute])
def test_a_sentence_gives_the_same_output_wherever_it_begins_behind_padding(variant):
    """Terms depend on j - i alone. (With absolute positions, padding must be on the right.)

    FIRE's term also depends on N, but only if N > L = 512.
    """
    if any(TERMS[name].uses_position for name in VARIANTS[variant].terms):
        pytest.skip(f"a term of {variant} uses the position")
    model = small_model(variant)
    sentence = random_tokens(1, 8)
    alone = model(sentence)  # (1, 8, V)

    for shift in (1, 30):
        before = random_tokens(1, shift, seed=1)
        after = random_tokens(1, 2, seed=2)
        shifted = torch.cat([before, sentence, after], dim=1)
        mask = torch.zeros(1, shift + 10, dtype=torch.bool)
        mask[:, shift : shift + 8] = True
        got = model(shifted, mask)[:, shift : shift + 8]
        assert (got - alone).abs().max() < 1e-12


@every_variant
def test_dropout_acts_only_in_training(variant):
    x, mask = padded_batch(9)
    mixer = random_mixer(variant, dropout=0.5).eval()
    without = mixer(x, mask)
    assert torch.equal(without, mixer(x, mask))
    assert torch.equal(without, random_mixer(variant, dropout=0.0).train()(x, mask))

    first = mixer.train()(x, mask)
    second = mixer(x, mask)
    assert not torch.equal(first, second), f"dropout does not change the output of {variant}"


# --- The initial weights --------------------------------------------------------------------------


def new_model(variant):
    """A model of two layers with C = 64, with the weights that pre-training starts from."""
    torch.manual_seed(0)
    config = BertConfig.from_size(
        "tiny", variant, vocab_size=30, layers=2, hidden_size=64, ffn_size=64, embedding_size=64
    )
    return BertForMaskedLM(config)


def test_fixed_t5_xl_deberta_and_fire_start_as_their_docstrings_say():
    for term, name in (("fixed", "beta"), ("t5", "beta"), ("xl", "b_c"), ("xl", "b_p")):
        for layer in new_model(term).bert.layers:
            assert getattr(layer.mixer.terms[term], name).eq(0).all()

    # normal(0, 0.02), within five standard errors
    P = new_model("deberta").bert.layers[0].mixer.P
    assert abs(P.mean()) < 5 * 0.02 / P.numel() ** 0.5
    assert abs(P.std() - 0.02) < 5 * 0.02 / (2 * P.numel()) ** 0.5

    # torch's initial values: within 1 and 1 / sqrt(32)
    for layer in new_model("fire").bert.layers:
        fire = layer.mixer.terms["fire"]
        assert 0.5 < fire.hidden.weight.abs().max() <= 1
        assert 0.1 < fire.output.weight.abs().max() <= 32**-0.5
        assert fire.hidden.bias.ne(0).all() and fire.output.bias.ne(0).all()


def check_initial_weights(model):
    """Linear and embedding weights normal(0, 0.02), biases 0, LayerNorms 1 and 0.

    Depthwise convolutions start as in PyTorch.
    """
    for name, module in model.named_modules():
        if ".terms.fire." in name:
            continue  # it initialises its weights itself
        if isinstance(module, (nn.Linear, nn.Embedding)):
            weight = module.weight
            # one standard error of a standard deviation is sigma / sqrt(2n): allow five
            error = 0.02 / (2 * weight.numel()) ** 0.5
            assert abs(weight.std().item() - 0.02) < 5 * error, name
            assert abs(weight.mean().item()) < 5 * 0.02 / weight.numel() ** 0.5, name
        if isinstance(module, nn.Linear) and module.bias is not None:
            assert (module.bias == 0).all(), name
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all() and (module.bias == 0).all(), name
        if isinstance(module, DepthwiseConvolution):
            # PyTorch's own initial values: uniform in +-1/sqrt(K)
            limit = module.weight.shape[-1] ** -0.5
            assert_uniform(module.weight, limit)
            assert_uniform(module.bias, limit)


@every_variant
def test_initial_weights_have_the_published_spread(variant):
    torch.manual_seed(0)
    check_initial_weights(BertForMaskedLM(BertConfig.from_size("tiny", variant, 2000)))


def test_initial_weights_of_the_classifier_have_the_published_spread():
    torch.manual_seed(0)
    model = BertForClassification(BertConfig.from_size("tiny", vocab_size=2000), num_labels=3)
    check_initial_weights(model)


def assert_uniform(numbers, limit):
    """All within +-limit, and with the spread of a uniform distribution and not of another one."""
    assert numbers.abs().max() <= limit
    assert numbers.abs().max() > 0.9 * limit

    # a uniform distribution has the variance limit^2 / 3; the variance of a square is 4/45 limit^4
    n = numbers.numel()
    assert abs(numbers.mean()) < 5 * limit / math.sqrt(3 * n)
    assert abs((numbers**2).mean() - limit**2 / 3) < 5 * limit**2 * math.sqrt(4 / 45 / n)


@pytest.mark.parametrize(
    "variant, term, table",
    [
        ("composite", "dynamic", "w"),
        ("composite-key", "dynamic", "w"),
        ("composite-key", "key_dynamic", "u"),
        ("shaw", "dynamic", "w"),
        ("shaw", "relative_value", "s"),
    ],
)
def test_the_tables_w_u_and_s_start_uniform_within_1_over_sqrt_K(variant, term, table):
    """K = 17. As kaiming_uniform_(a=sqrt(5)) has it; not normal, and not at 0."""
    for layer in new_model(variant).bert.layers:
        assert_uniform(getattr(layer.mixer.terms[term], table), 1 / math.sqrt(17))


def test_the_kernel_of_lightconv_starts_with_xaviers_range():
    """The authors' weight is (H, 1, K): its range is sqrt(6 / (K + H * K)), and not 0."""
    for layer in new_model("lightconv").bert.layers:
        weight = layer.mixer.weight  # (H, K)
        H, K = weight.shape
        assert_uniform(weight, math.sqrt(6 / (K + H * K)))


# --- torch.func -----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@every_variant
def test_vmap_grad_and_jacrev_of_torch_func_equal_autograd(variant):
    """Outputs and gradients sequence by sequence, a Jacobian, and models that share all but one."""
    mixer = random_mixer(variant)
    weights = dict(mixer.named_parameters())
    x = draw(3, 6, C)  # (B, N, C)

    def one_sequence(weights, x):
        return functional_call(mixer, weights, (x[None],))[0]  # (N, C)

    def loss(weights, x):
        return one_sequence(weights, x).square().sum()

    # vmap over sequences is a batch, and the gradients of its sequences add up to that of the batch
    assert_near(vmap(one_sequence, in_dims=(None, 0))(weights, x), mixer(x))
    of_sequences = vmap(grad(loss), in_dims=(None, 0))(weights, x)
    of_batch = torch.autograd.grad(
        mixer(x).square().sum(), weights.values(), allow_unused=True, materialize_grads=True
    )
    for of_each, total in zip(of_sequences.values(), of_batch, strict=True):
        assert_near(of_each.sum(dim=0), total, 1e-10)

    # d output / d input
    expected = torch.autograd.functional.jacobian(lambda x: mixer(x[None])[0], x[0])
    assert_near(jacrev(one_sequence, argnums=1)(weights, x[0]), expected, 1e-10)

    # two models that differ in one parameter, whichever it is
    for name, parameter in weights.items():
        two = torch.stack([parameter, 0 * parameter])
        outputs = vmap(lambda one, name=name: one_sequence(weights | {name: one}, x[0]))(two)
        assert_near(outputs[0], mixer(x[:1])[0])


# --- A mixer in a model of one's own --------------------------------------------------------------


@every_variant
def test_a_mixer_on_its_own_takes_a_mask_of_any_kind(variant):
    mixer = make_mixer(variant, hidden_size=16, heads=4).double()
    x = draw(2, 9, 16)
    mask = torch.ones(2, 9, dtype=torch.bool)
    assert torch.equal(mixer(x), mixer(x, mask))

    mask[1, 5:] = False
    expected = mixer(x, mask)
    assert expected.shape == x.shape
    assert torch.equal(mixer(x, mask.long()), expected)
    assert_near(mixer(x[1:, :5]), expected[1:, :5])


@pytest.mark.parametrize(
    "mask",
    [
        torch.zeros(2, 9),  # what is added to scores: 0 and a very low number
        torch.zeros(2, 9, dtype=torch.long) - 10_000,
        torch.ones(2, 1, 1, 9, dtype=torch.bool),
        torch.ones(9, dtype=torch.bool),
        torch.ones(1, 9, dtype=torch.bool),
        torch.ones(2, 9, 9, dtype=torch.bool),
        torch.ones(9, 2, dtype=torch.bool),
    ],
    ids=["float", "numbers", "B11N", "N", "1N", "BNN", "NB"],
)
def test_a_mask_must_be_1_at_real_tokens_and_0_at_padding_and_have_the_shape_B_N(mask):
    mixer = make_mixer("composite", hidden_size=16, heads=4)
    with pytest.raises(
        ValueError, match=r"attention_mask must be \(B, N\), here \(2, 9\), of bool"
    ):
        mixer(torch.zeros(2, 9, 16), mask)


@every_variant
def test_a_mixer_on_its_own_starts_with_the_spread_of_a_model(variant):
    """PyTorch's own would be larger: 1 / sqrt(3 * 64) = 0.07 in place of 0.02."""
    torch.manual_seed(1)
    mixer = make_mixer(variant, hidden_size=64, heads=4)
    for part in mixer.modules():
        if isinstance(part, nn.Linear) and part.in_features == 64:
            assert part.weight.std().item() == pytest.approx(0.02, rel=0.1)
            assert part.bias is None or part.bias.eq(0).all()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(variant="compsite"), "unknown variant 'compsite'; the variants are: none, absolute"),
        (dict(heads=3), "hidden_size 16 cannot be divided among 3 heads"),
        (dict(heads=0), "hidden_size 16 cannot be divided among 0 heads"),
        (dict(kernel_size=4), "kernel_size must be odd"),
        (dict(kernel_size=0), "kernel_size must be odd"),
        (dict(kernel_size=-3), "kernel_size must be odd"),
        (dict(beyond="zer0"), "beyond must be one of clip, zero, not 'zer0'"),
    ],
)
def test_a_mixer_checks_what_it_is_given_where_it_is_made(arguments, message):
    arguments = {"variant": "composite", "hidden_size": 16, "heads": 4, **arguments}
    with pytest.raises(ValueError, match=message):
        make_mixer(**arguments)
