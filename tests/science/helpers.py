"""What the tests in tests/science share: small mixers and models with random weights, batches."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

import attention
import data
import kernels
import model_helpers
import references
from attention import VARIANTS, mixer_of_layer
from kernels import BEYOND
from model_helpers import randomise

B, H, d = 4, 4, 2
C = H * d
K = 5  # k = 2
VOCABULARY = 30
every_variant = pytest.mark.parametrize("variant", VARIANTS)
every_beyond = pytest.mark.parametrize("beyond", BEYOND)
WITH_BEYOND = [(name, "clip") for name in VARIANTS]
WITH_BEYOND += [(name, "zero") for name, variant in VARIANTS.items() if variant.uses_beyond]
every_variant_and_beyond = pytest.mark.parametrize("variant, beyond", WITH_BEYOND)


# --- Numbers --------------------------------------------------------------------------------------


def generator(seed):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    """Random float64 numbers, the same for the same seed."""
    return torch.randn(*shape, dtype=torch.float64, generator=generator(seed))


def random_tokens(*shape, seed=0):
    """Random token ids that are not special tokens."""
    return torch.randint(5, VOCABULARY, shape, generator=generator(seed))


# --- Mixers and models ----------------------------------------------------------------------------


def mixer_config(variant, **settings):
    """What a mixer reads of the config of a model."""
    config = dict(
        variant=variant,
        hidden_size=C,
        heads=H,
        kernel_size=None,
        beyond="clip",
        dropout=0.0,
        causal=False,
        layers=2,
    )
    if VARIANTS[variant].has_kernel:
        config["kernel_size"] = K
    config.update(settings)
    return SimpleNamespace(**config)


def random_mixer(variant, layer=0, **settings):
    """A float64 mixer of the variant with random weights."""
    mixer = mixer_of_layer(mixer_config(variant, **settings), layer).double()
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


def small_model(variant, **settings):
    """A small masked-LM model in float64, in evaluation mode, with random weights."""
    sizes = dict(vocab_size=VOCABULARY, hidden_size=C, ffn_size=16, embedding_size=6, max_length=40)
    model = model_helpers.small_model(variant, **{**sizes, **settings}).double()
    return randomise(model, std=0.3)


def loss_of(model, ids):
    """The masked-LM loss if all tokens are to be predicted."""
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


# --- The attention function -----------------------------------------------------------------------


def attention_inputs(N, K, dtype=torch.float64, B=2, H=2, d=5):
    """{name: value} of the arguments of `attend`: all terms, and all with a gradient.

    The second half of the second sentence is padding.
    """
    numbers = generator(100 * N + K)

    def leaf(*shape):
        x = torch.randn(*shape, generator=numbers, dtype=torch.float64)
        return x.to(dtype).requires_grad_()

    mask = torch.ones(B, N, dtype=torch.bool)
    if N > 1:
        mask[1:, (N + 1) // 2 :] = False
    return dict(
        q=leaf(B, H, N, d),
        k=leaf(B, H, N, d),
        v=leaf(B, H, N, d),
        attention_mask=mask,
        query_bias=leaf(B, H, N, K),
        key_bias=leaf(B, H, N, K),
        value_table=leaf(d, K),
    )


def attend(
    q,
    k,
    v,
    attention_mask,
    query_bias=None,
    key_bias=None,
    value_table=None,
    beyond="clip",
    by=None,
    **options,
):
    """attention.attention, or another function of the same arguments, without the record."""
    positions = kernels.Positions(query_bias, key_bias, value_table, beyond)
    return (by or attention.attention)(q, k, v, attention_mask, positions, **options)


def results(function, inputs, **options):
    """{"z": z, and for each input with a gradient its name: the gradient}.

    The seed of the dropout and the gradient of z are always the same.
    """
    torch.manual_seed(0)
    z = function(**inputs, **options)
    given = {name: x for name, x in inputs.items() if x is not None and x.requires_grad}
    gradients = torch.autograd.grad(z, list(given.values()), upstream_for(z))
    return {"z": z.detach(), **dict(zip(given, gradients, strict=True))}


def upstream_for(z):
    """A fixed gradient of the shape and dtype of z, different for every number."""
    return torch.arange(z.numel(), dtype=torch.float64).sin().to(z.dtype).view(z.shape)


def lines_run(function, *arguments):
    """How many lines of attention.py, kernels.py and data.py a call runs.

    Each iteration of a loop counts, also inside a comprehension.
    """
    files = (attention.__file__, kernels.__file__, data.__file__)
    count = 0

    def note(frame, event, argument):
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        count += event == "line"
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return count


# --- Comparisons ----------------------------------------------------------------------------------


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


def assert_same_with_gradients(got, expected, inputs, tolerance=1e-10, name=""):
    """Compare two tensors, and the gradients of all inputs that have one."""
    assert_near(got, expected, tolerance, name)
    upstream = upstream_for(expected)
    options = dict(allow_unused=True, materialize_grads=True)
    one = torch.autograd.grad(got, inputs, upstream, **options)
    other = torch.autograd.grad(expected, inputs, upstream, **options)
    assert_near(one, other, tolerance, "gradient")


def assert_equals_loops(variant, N, beyond="clip", layer=0, **settings):
    """The output at real tokens, and the gradients of the input and of every parameter."""
    mixer = random_mixer(variant, layer, beyond=beyond, **settings)
    config = mixer_config(variant, beyond=beyond, **settings)
    weights = dict(mixer.named_parameters())
    x, mask = padded_batch(N)
    x.requires_grad_()
    expected = references.mixer(x, mask, weights, config, layer)[mask]  # (real tokens, C)
    assert_same_with_gradients(mixer(x, mask)[mask], expected, [x, *weights.values()])


# --- Drawings in docstrings -----------------------------------------------------------------------


def drawn(function, drawing):
    """A matrix that is drawn in the docstring of a function, with a number for each letter.

    a0 is 100, a1 is 101, b0 is 200, s12 is 1912, and 0 is 0. Every line of the drawing must occur
    in the docstring, so the test and the docstring cannot become different.
    """
    docstring = " ".join(function.__doc__.split())
    matrix = []
    for line in drawing.strip().splitlines():
        cells = line.split()
        assert " ".join(cells) in docstring, f"{function.__name__} does not draw {line.strip()!r}"
        matrix.append([number_of(cell) for cell in cells])
    return torch.tensor(matrix, dtype=torch.float64)


def number_of(cell):
    if cell == "0":
        return 0
    letter = ord(cell[0]) - ord("a") + 1
    return 100 * letter + int(cell[1:] or 0)
