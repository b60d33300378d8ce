"""What the tests in tests/science share: small mixers and models with random weights, and batches.

`alone` says what a test is about: everything else is replaced by its stand-in, so that a
mistake in one function fails the tests of this function, and not all tests at once.
"""

import functools
from types import SimpleNamespace

import pytest
import torch

import attention
import stand_ins
from attention import VARIANTS, make_mixer
from model import BertConfig, BertForMaskedLM, masked_lm_loss

B, H, d = 4, 4, 2
C = H * d
K = 5  # k = 2
VOCABULARY = 30


def generator(seed):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    """Random float64 numbers, the same for the same seed."""
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def random_tokens(*shape, seed=0):
    """Random token ids that are not special tokens."""
    return torch.randint(5, VOCABULARY, shape, generator=generator(seed))


def randomise(module, std):
    """Give every parameter random numbers, normal(0, std).

    beta and the biases start at 0, which would hide mistakes. The weights of LayerNorms are around
    1: around 0 they would hide their input.
    """
    numbers = generator(7)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.normal_(0, std, generator=numbers)
            if name.endswith("norm.weight"):
                parameter += 1
    return module


# --- One function alone ---------------------------------------------------------------------------


def add_map(scores, rows, beyond="clip", first=0):
    rows = rows.expand(*rows.shape[:-2], scores.shape[-2], -1)  # 1 row or n rows -> n rows
    return scores + stand_ins.map_of_rows(rows, scores.shape[-1], beyond, first)


def table_of(config):
    """relative_table: uniform within 1 / sqrt(K)."""
    d = config.hidden_size // config.heads
    limit = config.kernel_size**-0.5
    return torch.nn.Parameter(limit * (2 * torch.rand(d, config.kernel_size) - 1))


def half_the_heads(config):
    if config.heads % 2:
        raise ValueError("heads must be even")
    return config.heads // 2


def projection_of(name, config, variant):
    if name in variant.convolutional:
        return attention.HalfConvolution(config)
    return torch.nn.Linear(config.hidden_size, config.hidden_size)


def initialise_linear_layers(mixer):
    """The `initialise` of a mixer: linear weights normal(0, 0.02), biases 0."""
    for part in mixer.modules():
        if isinstance(part, torch.nn.Linear):
            torch.nn.init.normal_(part.weight, 0, 0.02)
            if part.bias is not None:
                torch.nn.init.zeros_(part.bias)


def table_of_values(term):
    return term.s


# The names in attention.py, and what describes them.
GIVEN = {
    "attention": stand_ins.attention_function,
    "split_heads": stand_ins.split_heads,
    "merge_heads": stand_ins.merge_heads,
    "zero_padding": stand_ins.set_to_0_at_padding,
    "depthwise_convolution": stand_ins.dilated_convolution,
    "convolve": stand_ins.convolve,
    "add_band": add_map,
    "key_scores": stand_ins.map_of_key_rows,
    "band_sums": stand_ins.sums_of_map,
    "drop": stand_ins.drop,
    "lowest_at_padding": stand_ins.very_low_at_padding,
    "add_rows": stand_ins.sum_of_two_rows,
    "relative_table": table_of,
    "half_of_the_heads": half_the_heads,
    "make_projection": projection_of,
    "DepthwiseConvolution.forward": stand_ins.depthwise_module,
    "HalfConvolution.forward": stand_ins.half_convolution_module,
    "GatedConvolution.gate": stand_ins.gate_of_convolution,
    "Fixed.forward": stand_ins.fixed_rows,
    "Dynamic.forward": stand_ins.dynamic_rows,
    "KeyDynamic.forward": stand_ins.key_dynamic_rows,
    "RelativeValue.table": table_of_values,
    "Mixer.initialise": initialise_linear_layers,
    "SelfAttention.initialise": initialise_linear_layers,
}


def put_stand_ins(monkeypatch, tested=()):
    """Replace all names of GIVEN in attention.py by their stand-ins, except those `tested`."""
    for name, stand_in in GIVEN.items():
        if name not in tested:
            monkeypatch.setattr(f"attention.{name}", stand_in)


def alone(*tested):
    """A decorator: in this test all names of GIVEN are their stand-ins, except those `tested`.

    Tests without it use the project's functions together. A test that replaces one of these names
    itself does it in a `with pytest.MonkeyPatch.context()` of its own: the fixture would undo it
    too late, after the stand-ins are gone.
    """
    for name in tested:
        assert name in GIVEN, f"{name} has no stand-in in helpers.GIVEN"

    def decorate(test):
        @functools.wraps(test)
        def run(*arguments, **options):
            with pytest.MonkeyPatch.context() as patch:
                put_stand_ins(patch, tested)
                test(*arguments, **options)

        return run

    return decorate


# --- Mixers ---------------------------------------------------------------------------------------


def mixer_config(variant, **settings):
    """What a mixer reads of the config of a model."""
    config = dict(
        variant=variant,
        hidden_size=C,
        heads=H,
        kernel_size=None,
        beyond="clip",
        dropout=0.0,
        attention_layer=2,
    )
    if VARIANTS[variant].has_kernel:
        config["kernel_size"] = K
    config.update(settings)
    return SimpleNamespace(**config)


def random_mixer(variant, layer=0, **settings):
    """A float64 mixer of the variant with random weights."""
    mixer = make_mixer(mixer_config(variant, **settings), layer).double()
    return randomise(mixer, std=0.5)


def padded_batch(N):
    """x (4, N, C) and attention_mask (4, N), with padding in every place."""
    mask = torch.ones(B, N, dtype=torch.bool)

    # sentence 0 has no padding, sentence 1 has one real token, sentence 2 has about half
    mask[1, 1:] = False
    mask[2, (N + 1) // 2 :] = False

    # sentence 3 has padding at the front and in the middle
    if N > 1:
        mask[3, 0] = False
    if N > 2:
        mask[3, N // 2] = False
    return draw(B, N, C, seed=N), mask


# --- Models ---------------------------------------------------------------------------------------


def small_model(variant, **settings):
    """A small masked-LM model in float64, in evaluation mode, with random weights."""
    config = dict(
        vocab_size=VOCABULARY,
        layers=2,
        hidden_size=C,
        ffn_size=16,
        heads=H,
        embedding_size=6,
        max_length=40,
    )
    config.update(settings)
    model = BertForMaskedLM(BertConfig(variant=variant, **config)).double().eval()
    return randomise(model, std=0.3)


def loss_of(model, ids):
    """The masked-LM loss if all tokens are to be predicted."""
    logits, targets = model.masked_logits(model.bert(ids), ids)
    return masked_lm_loss(logits, targets)


# --- The attention function -----------------------------------------------------------------------


ARGUMENTS = (
    "query",
    "key",
    "value",
    "attention_mask",
    "query_rows",
    "key_rows",
    "relative_value",
)


def attention_inputs(N, K, dtype=torch.float64, B=2, H=2, d=4):
    """The ARGUMENTS of attention, in this order: all terms, and all with gradient.

    The second half of the second sentence is padding.
    """
    numbers = generator(100 * N + K)

    def leaf(*shape):
        x = torch.randn(*shape, generator=numbers, dtype=torch.float64)
        return x.to(dtype).requires_grad_()

    mask = torch.ones(B, N, dtype=torch.bool)
    if N > 1:
        mask[1, (N + 1) // 2 :] = False

    query, key, value = leaf(B, H, N, d), leaf(B, H, N, d), leaf(B, H, N, d)
    query_rows, key_rows = leaf(B, H, N, K), leaf(B, H, N, K)
    relative_value = leaf(d, K)
    return query, key, value, mask, query_rows, key_rows, relative_value


def results(function, inputs, beyond="clip", dropout=0.0):
    """{"z": z, and for each input with a gradient its name: the gradient}.

    The seed of the dropout and the gradient of z are always the same.
    """
    torch.manual_seed(0)
    z = function(*inputs, beyond, dropout)

    with_gradient = {}
    for name, x in zip(ARGUMENTS, inputs, strict=True):
        if x is not None and x.requires_grad:
            with_gradient[name] = x
    gradients = torch.autograd.grad(z, list(with_gradient.values()), upstream_for(z))
    return {"z": z.detach(), **dict(zip(with_gradient, gradients, strict=True))}


def upstream_for(z):
    """A fixed gradient of the shape and dtype of z, different for every number."""
    return torch.arange(z.numel(), dtype=torch.float64).sin().to(z.dtype).view(z.shape)


def assert_near(got, expected, tolerance=1e-12, name=""):
    """Compare tensors, or lists or dictionaries of them.

    A failure names the first entry that differs, and both numbers.
    """
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            assert_near(got[key], expected[key], tolerance, key)
        return
    if isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for i, (one, other) in enumerate(zip(got, expected, strict=True)):
            assert_near(one, other, tolerance, f"{name}[{i}]")
        return

    name = name or "the result"
    assert got.shape == expected.shape, f"{name} has the shape {got.shape}, not {expected.shape}"
    assert got.dtype == expected.dtype, f"{name} is {got.dtype}, not {expected.dtype}"
    near = (got - expected).abs() <= tolerance  # False at NaN
    if near.all():
        return

    # the first entry that differs
    index = tuple((~near).nonzero()[0].tolist())
    raise AssertionError(
        f"{name} differs first at {index}: it is {got[index].item():.6g}, "
        f"and the equation gives {expected[index].item():.6g}; "
        f"{(~near).sum()} of {near.numel()} numbers differ"
    )


def assert_same_bits(got, expected):
    """Compare two results of `results`."""
    assert got.keys() == expected.keys()
    for name in got:
        assert torch.equal(got[name], expected[name]), f"the bits of {name} differ"


# --- Drawings in docstrings -----------------------------------------------------------------------


def drawn(function, drawing):
    """A matrix that is drawn in the docstring of a function, with a number for each letter.

    a0 is 100, a1 is 101, b0 is 200, s12 is 1912, and 0 is 0. Every row of the drawing must occur in
    the docstring, so the test and the docstring cannot become different.
    """
    docstring = " ".join(function.__doc__.split())
    rows = []
    for line in drawing.strip().splitlines():
        cells = line.split()
        assert " ".join(cells) in docstring, f"{function.__name__} does not draw {line.strip()!r}"
        rows.append([number_of(cell) for cell in cells])
    return torch.tensor(rows, dtype=torch.float64)


def number_of(cell):
    if cell == "0":
        return 0
    letter = ord(cell[0]) - ord("a") + 1
    return 100 * letter + int(cell[1:])
