"""What the tests of the science share: small mixers and models with random weights, and batches."""

from types import SimpleNamespace

import torch

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


def assert_near(got, expected, tolerance):
    """Compare two lists or dictionaries of tensors; a failure names the one that differs."""
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


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
