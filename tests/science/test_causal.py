"""Left to right: a token sees itself and what is before it, and the model predicts the next token.

From top to bottom: every mixer; every model; the labels and the loss; what one does with a model.
"""

import math

import pytest
import torch
from torch.nn import functional as F

import attention
import data
from attention import VARIANTS, Mixer, Variant
from helpers import (
    VOCABULARY,
    assert_equals_loops,
    assert_near,
    every_beyond,
    every_variant_and_beyond,
    mixer_config,
    random_tokens,
    small_model,
)
from lab import look, pairs
from model import BertConfig, BertForClassification, continue_text
from model_helpers import toy_tokenizer
from support import training
from support.tokenizer import CLS, IGNORED, MASK, PAD, SEP, UNK

N = 40


def causal_model(variant, beyond="clip"):
    """Four layers, so that all dilations and the layer of a hybrid are there. N > 30 is in blocks.

    The L of fire is smaller than N: each query divides by what it sees.
    """
    settings = {"layers": 4, "kernel_size": 5, "beyond": beyond, "causal": True, "max_length": 60}
    model = small_model(variant, **settings)
    for name, parameter in model.named_parameters():
        if name.endswith("log_L"):
            torch.nn.init.constant_(parameter, -4)
    return model


# --- Every mixer ----------------------------------------------------------------------------------


@every_variant_and_beyond
def test_a_causal_mixer_equals_its_loops_in_values_and_gradients(variant, beyond):
    """Layer 1 has the dilation 2."""
    assert_equals_loops(variant, 6, beyond, causal=True)
    assert_equals_loops(variant, 8, beyond, layer=1, causal=True)


def test_a_mixer_that_does_not_know_causal_is_refused_with_its_name(monkeypatch):
    class Unaware(Mixer):
        def __init__(self, config, variant, layer):
            super().__init__()

    monkeypatch.setitem(VARIANTS, "unaware", Variant(mixer=Unaware))
    with pytest.raises(ValueError, match="Unaware .* does not set self.causal"):
        attention.mixer_of_layer(mixer_config("unaware", causal=True), 0)


# --- Every model ----------------------------------------------------------------------------------


@every_variant_and_beyond
def test_the_future_changes_nothing_and_every_prefix_gives_the_same(variant, beyond):
    """The second half says more: a convolution whose input is shifted passes the first one only."""
    model = causal_model(variant, beyond)
    ids = random_tokens(2, N)
    hidden = model.bert(ids)  # (B, N, C)

    # other tokens from position 25 on, and none there
    changed = ids.clone()
    changed[:, 25:] = random_tokens(2, N - 25, seed=1)
    assert torch.equal(model.bert(changed)[:, :25], hidden[:, :25])
    for length in (1, 7, 25, 31, 39):
        assert_near(model.bert(ids[:, :length]), hidden[:, :length], 1e-9)

    # padding at the end
    padded = F.pad(ids, (0, 20), value=PAD)
    assert_near(model.bert(padded, padded != PAD)[:, :N], hidden, 1e-9)


# --- Labels and loss ------------------------------------------------------------------------------


def test_the_label_of_a_token_is_the_next_one_and_the_end_is_a_label():
    ids = torch.tensor([[CLS, 7, 8, SEP, PAD], [CLS, 9, 10, 11, SEP]])
    labels = [[7, 8, SEP, -100, -100], [9, 10, 11, SEP, -100]]
    assert data.next_tokens(ids).tolist() == labels


@pytest.mark.parametrize("on_a_gpu", [False, True])
def test_the_loss_is_the_cross_entropy_of_all_next_tokens(monkeypatch, on_a_gpu):
    """With as many logits as are computed on a CPU, and on a GPU, where nothing is counted."""
    monkeypatch.setattr(training, "SYNCHRONOUS", () if on_a_gpu else ("cpu",))
    model = causal_model("composite")
    ids = F.pad(random_tokens(2, 50), (0, 6), value=PAD)
    ids[0, 40:] = PAD
    labels = data.next_tokens(ids)
    M = training.prediction_count(labels, label_share=1.0)
    loss = model.loss(ids, ids != PAD, labels, count=(labels != IGNORED).sum(), M=M)
    expected = F.cross_entropy(model(ids, ids != PAD).flatten(0, 1), labels.flatten())
    assert_near(loss, expected)


# --- What one does with a model -------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return toy_tokenizer(2_000, 300)


@pytest.fixture
def writer(tokenizer):
    """A causal model with random weights for the toy language."""
    torch.manual_seed(0)
    return small_model("composite", causal=True, vocab_size=tokenizer.get_vocab_size())


def test_a_text_is_continued_by_the_most_likely_tokens_up_to_the_end(writer, tokenizer):
    text = continue_text(writer, tokenizer, "the dogs", tokens=8)
    assert text.startswith("the dogs") and not set(text) & {"[", "\u2581"}
    assert continue_text(writer, tokenizer, "the dogs ", tokens=8) == text

    # token by token, each from the whole text before it
    ids = [CLS, *tokenizer.encode("the dogs", add_special_tokens=False).ids]
    words = []
    for _ in range(8):
        logits = writer(torch.tensor([ids]))[0, -1]
        logits[[PAD, UNK, CLS, MASK]] = -math.inf
        ids.append(int(logits.argmax()))
        words.append(tokenizer.id_to_token(ids[-1]))
    assert SEP not in ids
    assert text == "the dogs" + "".join(words).replace("\u2581", " ")

    # the end of a sentence ends the text
    with torch.no_grad():
        writer.bias[SEP] = 1e3
    assert continue_text(writer, tokenizer, "the dogs") == "the dogs"


def test_a_pair_is_scored_by_the_exact_log_probability_of_each_sentence(writer, tokenizer):
    given = [("", "the dogs are tired.", "the dogs is tired."), ("emma ran.", "she ran.", "he ran")]
    expected = []
    for context, *sentences in given:
        before = [CLS]
        if context:
            before += [*tokenizer.encode(context, add_special_tokens=False).ids, SEP]
        for sentence in sentences:
            ids = [*before, *tokenizer.encode(sentence, add_special_tokens=False).ids, SEP]
            log_p = writer(torch.tensor([ids])).log_softmax(dim=-1)[0]  # (N, V)
            expected.append(sum(log_p[i - 1, ids[i]] for i in range(len(before), len(ids))))
    expected = torch.stack(expected).view(2, 2).detach()
    for tokens_per_batch in (1, 1_000):
        scores = pairs.score_pairs(writer, tokenizer, given, tokens_per_batch)
        assert_near(torch.from_numpy(scores), expected, 1e-6)


def test_the_classifier_reads_the_last_real_token():
    settings = dict(vocab_size=VOCABULARY, layers=1, causal=True, dropout=0.0)
    config = BertConfig.from_size("tiny", "composite", **settings)
    torch.manual_seed(0)
    model = BertForClassification(config, 2).eval()
    ids = random_tokens(3, 6)
    ids[1, 4:] = PAD
    hidden = model.bert(ids, ids != PAD)  # (3, N, C)
    last = torch.stack([hidden[0, 5], hidden[1, 3], hidden[2, 5]])
    expected = model.classifier(torch.tanh(model.pooler(last)))
    assert_near(model(ids, ids != PAD), expected, 1e-6)


@every_beyond
def test_attention_has_no_weight_after_the_query_and_kernels_end_at_the_token_itself(beyond):
    model = small_model("composite", kernel_size=5, beyond=beyond, causal=True).float()
    ids = random_tokens(1, 9)
    p = torch.from_numpy(look.attention_map(model, ids, layer=2))  # (H, N, N)
    assert_near(p, p.tril())
    assert_near(p.sum(dim=-1), torch.ones(p.shape[:2]), 1e-6)
    for kernels in (look.fixed_kernels(model)[1], look.dynamic_kernels(model, ids, 1)):
        assert kernels.shape[-1] == 3
        assert_near(torch.from_numpy(kernels.sum(-1)), torch.ones(kernels.shape[:-1]), 1e-6)
