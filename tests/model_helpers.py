"""What the tests of models share: a small model, a tokenizer whose words fit it, and a toy one."""

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from model import BertConfig, BertForMaskedLM
from support.tokenizer import train_tokenizer
from toy import language

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = SPECIAL_TOKENS + ["the", "cat", "dogs", "was", "were", "tired", "."]
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


def small_model(variant="composite", **overrides):
    """A masked-LM model in evaluation mode. The same arguments always give the same weights."""
    torch.manual_seed(1)
    return BertForMaskedLM(small_config(variant, **overrides)).eval()


def word_tokenizer():
    """A tokenizer with one token per word of WORDS; every other word is [UNK]."""
    ids = {word: i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return tokenizer


def toy_tokenizer(sentences, vocab_size):
    """A tokenizer of the first sentences of the toy language."""
    sample = []
    for document in language.documents(sentences=sentences):
        sample += [language.spell(sentence) for sentence in document]
    return train_tokenizer(sample, vocab_size)


def every_word_once():
    """Token ids (1, 6): six ordinary words."""
    return torch.arange(5, 11)[None]
