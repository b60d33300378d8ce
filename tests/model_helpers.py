"""What the tests of models share: small models and runs, a tokenizer whose words fit, a toy one."""

from itertools import islice

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from attention import VARIANTS
from data import TOY
from model import BertConfig, BertForMaskedLM, save_run
from support.corpus import read_lines
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
