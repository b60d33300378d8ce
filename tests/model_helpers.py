"""What the tests of models share: small models and runs, a tokenizer whose words fit, a toy one."""

from itertools import islice

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from attention import VARIANTS, mixer_of_layer
from model import BertConfig, BertForMaskedLM, Layer, save_run
from support.corpus import read_lines
from support.prepared import TOY
from support.tokenizer import SPECIAL_TOKENS, train_tokenizer

WORDS = [*SPECIAL_TOKENS, "the", "cat", "dogs", "was", "were", "tired", "."]
SMALL = {
    "layers": 2,
    "hidden_size": 32,
    "ffn_size": 48,
    "heads": 4,
    "embedding_size": 16,
    "max_length": 24,
}
TINIER = {"layers": 2, "hidden_size": 16, "ffn_size": 32, "heads": 2, "embedding_size": 16}


def small_config(variant="composite", **overrides):
    """A config of two layers for the words in WORDS."""
    return BertConfig(**{"variant": variant, "vocab_size": len(WORDS), **SMALL, **overrides})


def small_model(variant="composite", seed=1, **overrides):
    """A masked-LM model in evaluation mode. The same arguments always give the same weights."""
    torch.manual_seed(seed)
    return BertForMaskedLM(small_config(variant, **overrides)).eval()


def randomise(module, std):
    """Give every parameter random numbers, normal(0, std), the same every time.

    beta and the biases start at 0, which would hide mistakes. The weights of LayerNorms are around
    1: around 0 they would hide their input.
    """
    numbers = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.normal_(0, std, generator=numbers)
            if name.endswith("norm.weight"):
                parameter += 1
    return module


def random_model(variant, **overrides):
    """A small model whose weights are random and large; kernels have 5 columns."""
    if VARIANTS[variant].has_kernel:
        overrides = {"kernel_size": 5, **overrides}
    return randomise(small_model(variant, **overrides), 0.3)


def write_run(folder, variant="composite", **overrides):
    """Write the folder of a run of such a model. Returns the model."""
    model = random_model(variant, **overrides)
    save_run(folder, model, word_tokenizer())
    return model


def call_of_mixer(model, ids, layer):
    """(x, attention_mask, y): what the mixer of a layer gets and gives as the model reads ids."""
    noted = []
    hook = model.bert.layers[layer - 1].mixer.register_forward_hook(
        lambda mixer, inputs, output: noted.append((*inputs, output))
    )
    with torch.no_grad():
        model.bert(ids)
    hook.remove()
    return noted[0]


def word_tokenizer():
    """A tokenizer with one token per word of WORDS; every other word is [UNK]."""
    ids = {word: i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def toy_tokenizer(sentences, vocab_size):
    """A tokenizer of the first sentences of the toy language."""
    return train_tokenizer(list(islice(read_lines(TOY), sentences)), vocab_size)


def every_word_once():
    """Token ids (1, 6): six ordinary words."""
    return torch.arange(5, 11)[None]


# --- Dropout --------------------------------------------------------------------------------------


def dropout_masks(place, compiled, seeds, device):
    """What dropout with p = 0.5 keeps in a layer of composite, for each seed: (B, N, C) bool.

    place: "attention": the weights are equal, and value j is 1 at channel j of each head, 0
        elsewhere: so channel j of query i says whether weight ij was kept. "mixer" or "ffn": it
        gives ones, of which 0 or 2 remains, and after LayerNorm a negative or positive number.
    compiled: function that compiles a module in place, or leaves it as it is.
    """
    B, N, H = 8, 32, 4
    C = H * N
    config = small_config("composite", dropout=0.5, hidden_size=C, max_length=N)
    layer = Layer(config, mixer_of_layer(config, 0)).to(device)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        if place == "attention":
            layer.mixer.value.weight.copy_(torch.eye(C))
            layer.mixer.output.weight.copy_(torch.eye(C))
        else:
            last = layer.mixer.output if place == "mixer" else layer.ffn[-1]
            last.bias.fill_(1.0)

    module = layer.mixer if place == "attention" else layer
    x = torch.zeros(N, C, device=device)
    if place == "attention":
        x += torch.eye(N, device=device).repeat(1, H)
    attention_mask = torch.ones(B, N, dtype=torch.bool, device=device)
    compiled(module)
    masks = []
    for seed in seeds:
        torch.manual_seed(seed)
        masks.append(module(x.expand(B, N, C), attention_mask) > 0)
    return masks


def assert_dropout_follows_from_the_seed(compiled, device="cpu"):
    """Equal seeds give equal masks. Other seeds, and neighbours in all directions: independent."""
    for place in ("attention", "mixer", "ffn"):
        mask, again, other = dropout_masks(place, compiled, (1, 1, 2), device)
        assert torch.equal(mask, again), place
        pairs = [(mask, torch.ones_like(mask)), (mask, other)]
        pairs += [(mask, mask.roll(1, dimension)) for dimension in range(3)]
        for one, another in pairs:
            assert abs((one == another).float().mean() - 0.5) < 0.03, place
