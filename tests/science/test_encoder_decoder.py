"""The encoder-decoder equals PyTorch's, and its searches and pairs do what they say.

From top to bottom: the layers; the model; greedy and beam search; pairs and BLEU; a run.
"""

import itertools
import math
from random import Random
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helpers import assert_near, draw, every_variant, random_tokens, randomise
from lab import seq2seq, translation
from lab.seq2seq import Seq2Seq, beam_search, translate
from lab.translation import Pairs
from model import BertConfig
from support.tokenizer import CLS, MASK, PAD, SEP, UNK

C, H, FFN, V = 16, 4, 24, 30
CPU = torch.device("cpu")


def small_seq2seq(variant="none", V=V, **settings):
    sizes = dict(layers=2, hidden_size=C, ffn_size=FFN, heads=H, embedding_size=C, max_length=40)
    config = BertConfig(variant, V, **sizes, **{"dropout": 0.0, **settings})
    torch.manual_seed(0)
    return randomise(Seq2Seq(config).double().eval(), std=0.3)


# --- The layers -----------------------------------------------------------------------------------


def copy_attention(theirs, query, key, value, output):
    """Our four linear layers into torch's nn.MultiheadAttention."""
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([query.weight, key.weight, value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([query.bias, key.bias, value.bias]))
    theirs.out_proj.load_state_dict(output.state_dict())


def torchs_layer(kind, ours):
    """The layer of torch with the weights of ours."""
    theirs = kind(C, H, FFN, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True).double()
    mixer = ours.mixer
    copy_attention(theirs.self_attn, mixer.query, mixer.key, mixer.value, mixer.output)
    theirs.linear1.load_state_dict(ours.ffn[0].state_dict())
    theirs.linear2.load_state_dict(ours.ffn[2].state_dict())
    norms = [ours.mixer_norm, ours.ffn_norm]
    if kind is nn.TransformerDecoderLayer:
        cross = ours.cross
        copy_attention(theirs.multihead_attn, cross.query, cross.key, cross.value, cross.output)
        norms.insert(1, ours.cross_norm)
    for number, norm in enumerate(norms, 1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    return theirs


def test_the_layers_of_none_equal_those_of_torch_with_padding_and_the_causal_mask():
    model = small_seq2seq()
    S, N = 7, 5
    source = draw(3, S, C, seed=1)
    x = draw(3, N, C, seed=2)
    source_mask = torch.arange(S) < torch.tensor([7, 4, 1])[:, None]  # (3, S), True at real tokens
    mask = torch.arange(N) < torch.tensor([5, 5, 2])[:, None]  # (3, N)

    encoder = model.bert.layers[0]
    expected = torchs_layer(nn.TransformerEncoderLayer, encoder)(
        source, src_key_padding_mask=~source_mask
    )
    assert_near(encoder(source, source_mask)[source_mask], expected[source_mask], 1e-6)

    decoder = model.decoder[0]
    future = torch.ones(N, N, dtype=torch.bool).triu(1)
    expected = torchs_layer(nn.TransformerDecoderLayer, decoder)(
        x, source, future, None, ~mask, ~source_mask
    )
    assert_near(decoder(x, mask, source, source_mask)[mask], expected[mask], 1e-6)


# --- The model ------------------------------------------------------------------------------------


@every_variant
def test_what_is_written_depends_on_the_source_and_on_what_is_before_and_not_on_padding(variant):
    model = small_seq2seq(variant, kernel_size=5)
    source, target = random_tokens(2, 9), random_tokens(2, 12, seed=1)
    hidden = model(source, target)  # (2, 12, C)

    for n in (1, 6, 11):
        assert_near(model(source, target[:, :n]), hidden[:, :n], 1e-9)
    more = model(F.pad(source, (0, 20), value=PAD), F.pad(target, (0, 20), value=PAD))
    assert_near(more[:, :12], hidden, 1e-9)
    assert not torch.allclose(model(source.flip(0), target), hidden)

    # each pair alone
    alone = torch.cat([model(source[[b]], target[[b]]) for b in range(2)])
    assert_near(alone, hidden, 1e-9)


def test_embeddings_and_head_are_shared_and_cross_attention_has_dropout():
    model = small_seq2seq(dropout=0.5)
    names = [name for name, _ in model.named_parameters() if name.endswith("token.weight")]
    assert names == ["bert.embeddings.token.weight"]
    cross = model.decoder[0].cross.train()
    hidden = draw(1, 6, C)
    mask = torch.ones(1, 6, dtype=torch.bool)
    assert not torch.equal(cross((hidden, hidden), mask), cross((hidden, hidden), mask))


# --- Greedy and beam search -----------------------------------------------------------------------

A, B_, D = 5, 6, 7  # three words


def of_table(table):
    """next_log_p of a table {beginning: {token: probability}}; a missing token has 0."""

    def next_log_p(numbers, targets):
        lines = torch.full((len(targets), 8), -math.inf)
        for line, ids in zip(lines, targets[:, 1:].tolist(), strict=True):
            for token, p in table.get(tuple(ids), {SEP: 1.0}).items():
                line[token] = math.log(p)
        return lines

    return next_log_p


def test_a_beam_finds_what_greedy_search_misses():
    table = {(): {A: 0.6, B_: 0.4}, (A,): {SEP: 0.5, A: 0.3, B_: 0.2}, (B_,): {SEP: 0.9, A: 0.1}}
    (greedy,) = beam_search(of_table(table), [5], beam=1, penalty=0.0)
    (best, *_), *_ = beam_search(of_table(table), [5], beam=2, penalty=0.0)
    assert greedy[0][1] == [A] and math.exp(greedy[0][0]) == pytest.approx(0.30)
    assert best[1] == [B_] and math.exp(best[0]) == pytest.approx(0.36)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 1.4])
def test_a_beam_that_holds_everything_equals_exhaustive_search(penalty):
    """Three words, at most four tokens, random probabilities that depend on the whole beginning."""
    random = Random(0)
    words = (A, B_, D)
    table = {}
    for n in range(4):
        for ids in itertools.product(words, repeat=n):
            numbers = [random.random() for _ in range(4)]
            p = [number / sum(numbers) for number in numbers]
            table[ids] = dict(zip((SEP, *words), p, strict=True))

    expected = []
    for n in range(4):
        for ids in itertools.product(words, repeat=n):
            log_p = sum(math.log(table[ids[:i]][ids[i]]) for i in range(n))
            expected.append(((log_p + math.log(table[ids][SEP])) / (n + 1) ** penalty, list(ids)))
    (found,) = beam_search(of_table(table), [4], beam=256, penalty=penalty)
    expected.sort(reverse=True)
    assert [ids for _, ids in found] == [ids for _, ids in expected]
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected])


def test_targets_are_different_and_have_one_end_and_nothing_finished_gives_the_best_beginning():
    table = {(): {A: 0.5, B_: 0.3, SEP: 0.2}, (A,): {A: 0.9, SEP: 0.1}, (A, A): {A: 1.0}}
    (found,) = beam_search(of_table(table), [3], beam=3, penalty=1.0)
    assert len({tuple(ids) for _, ids in found}) == len(found) == 3
    assert not any(SEP in ids for _, ids in found)
    endless = {(): {A: 0.6, B_: 0.4}}
    assert beam_search(of_table(endless), [1], beam=2, penalty=1.0)[0][0][1] == [A]


@pytest.fixture(scope="module")
def toy():
    """(tokenizer, pairs of texts)."""
    pairs = translation.toy_pairs(0, (0, 1), 300)
    return translation.train_bpe([text for pair in pairs for text in pair]), pairs


@pytest.mark.parametrize("beam", [1, 3])
def test_translations_keep_their_order_and_equal_those_one_by_one(toy, beam):
    tokenizer, pairs = toy
    model = small_seq2seq("absolute", tokenizer.get_vocab_size())
    texts = [source for source, _ in pairs[:5]] + ["", "the dog"]
    together = translate(model, tokenizer, texts, beam)
    assert len(together) == 7
    assert together == [translate(model, tokenizer, [text], beam)[0] for text in texts]


def test_a_beam_of_one_is_greedy_search(toy):
    tokenizer, pairs = toy
    model = small_seq2seq("shaw", tokenizer.get_vocab_size())
    source = pairs[0][0]
    (ids,) = translation.encode(tokenizer, [source])
    source_ids = torch.tensor([[CLS, *ids, SEP]])
    written = [CLS]
    for _ in range(2 * len(ids) + 10):
        logits = model.lm_head(model(source_ids, torch.tensor([written])))[0, -1]
        logits[[PAD, UNK, CLS, MASK]] = -math.inf
        written.append(int(logits.argmax()))
        if written[-1] == SEP:
            break
    assert translate(model, tokenizer, [source]) == [tokenizer.decode(written)]


# --- Pairs and BLEU -------------------------------------------------------------------------------


def test_a_toy_translation_has_the_words_backwards_and_the_object_and_the_verb_last():
    """Of sentences in the past, whose verbs are the same words in both languages."""
    checked = 0
    for source, target in translation.toy_pairs(0, (0, 1), 500):
        words = [word[::-1] for word in target.split()]
        if "scared" not in words[-1]:
            continue
        checked += 1
        expected = [word for word in source.split() if word not in ("that", "who")]
        assert sorted(word for word in words if word != "o") == sorted(expected)
        assert words[-2:] == ["o", "scared"]
    assert checked > 20


@pytest.mark.parametrize("length", range(1, 20))
def test_source_and_removed_spans_merge_to_the_text(length):
    ids = list(range(10, 10 + length))
    source, target = translation.remove_spans(ids, Random(length))
    spans = []
    for token in target:
        if token == MASK:
            spans.append([])
        else:
            spans[-1].append(token)
    merged = [spans.pop(0) if token == MASK else [token] for token in source]
    assert [token for part in merged for token in part] == ids
    assert not spans and target[0] == MASK


def test_bleu_is_that_of_words_as_they_are():
    pytest.importorskip("sacrebleu")
    texts = ["a dog runs over the green grass", "two men sit on a bench ."]
    assert translation.bleu(texts, texts) == pytest.approx(100)
    # a missing word: 13 of 13 words, 11 of 11 pairs, 9 of 9, 7 of 7, and the brevity exp(1 - 14/13)
    shorter = [texts[0], "two men sit on a bench"]
    assert translation.bleu(shorter, texts) == pytest.approx(100 * math.exp(1 - 14 / 13))
    with pytest.raises(AssertionError):
        translation.bleu(texts[:1], texts)


def test_the_penalty_of_length_is_chosen_on_val_and_bleu_is_that_of_the_test_set(monkeypatch):
    scores = {("v", 0.6): 10.0, ("v", 1.0): 30.0, ("v", 1.4): 40.0}
    scores |= {("t", 0.6): 90.0, ("t", 1.0): 7.0, ("t", 1.4): 5.0}

    def written_with(model, tokenizer, texts, beam, penalty):
        assert not model.training  # with dropout, a translation would be worse
        return beam, penalty

    monkeypatch.setattr(seq2seq, "translate", written_with)
    monkeypatch.setattr(seq2seq, "bleu", lambda written, right: scores[right[0], written[1]])
    trainer = SimpleNamespace(model=small_seq2seq(), device=CPU, dtype=torch.float32)
    v, t = [("v", "v")], [("t", "t")]
    # with one set only, nothing can be chosen
    for pairs, expected in (
        ({"val": v, "test": t}, ("test", 1.4, 5.0)),
        ({"dev": t}, ("dev", 1.0, 7.0)),
    ):
        texts = Pairs([], pairs)
        ids = Pairs([], {name: [([5, 6], [7, 8])] for name in pairs})
        found = seq2seq.test(trainer, None, texts, ids, True)["BLEU"]
        assert (found["set"], found["penalty"], found["beam"]) == expected
