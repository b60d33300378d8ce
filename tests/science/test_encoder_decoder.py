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
from lab.seq2seq import Seq2Seq, beam_search, best_target, search
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
    logits = model(source, target)  # (2, 12, V)

    for n in (1, 6, 11):
        assert_near(model(source, target[:, :n]), logits[:, :n], 1e-9)
    more = model(F.pad(source, (0, 20), value=PAD), F.pad(target, (0, 20), value=PAD))
    assert_near(more[:, :12], logits, 1e-9)
    assert not torch.allclose(model(source.flip(0), target), logits)

    # each pair alone
    alone = torch.cat([model(source[[b]], target[[b]]) for b in range(2)])
    assert_near(alone, logits, 1e-9)


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

    def next_log_p(targets):
        lines = torch.full((len(targets), 8), -math.inf)
        for line, ids in zip(lines, targets[:, 1:].tolist(), strict=True):
            for token, p in table.get(tuple(ids), {SEP: 1.0}).items():
                line[token] = math.log(p)
        return lines

    return next_log_p


def found_by(table, limit, beam):
    """[(log p, words)] of what beam_search finds, each with one end, after the words."""
    found = []
    for log_p, ids in beam_search(of_table(table), limit, beam):
        assert ids[0] == CLS and ids.index(SEP) == len(ids) - 1
        found.append((log_p, ids[1:-1]))
    return found


def test_a_beam_finds_what_greedy_search_misses():
    table = {(): {A: 0.6, B_: 0.4}, (A,): {SEP: 0.5, A: 0.3, B_: 0.2}, (B_,): {SEP: 0.9, A: 0.1}}
    assert found_by(table, 5, beam=1) == [(pytest.approx(math.log(0.30)), [A])]
    log_p, words = max(found_by(table, 5, beam=2))
    assert words == [B_] and math.exp(log_p) == pytest.approx(0.36)


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

    expected = {}
    for n in range(4):
        for ids in itertools.product(words, repeat=n):
            log_p = sum(math.log(table[ids[:i]][ids[i]]) for i in range(n))
            expected[ids] = log_p + math.log(table[ids][SEP])
    found = found_by(table, 4, beam=256)
    assert {tuple(ids): log_p for log_p, ids in found} == pytest.approx(expected)

    best = max(expected, key=lambda ids: expected[ids] / (len(ids) + 1) ** penalty)
    assert best_target(beam_search(of_table(table), 4, 256), penalty) == [CLS, *best, SEP]


def test_if_nothing_ended_at_the_limit_the_best_beginning_counts():
    endless = {(): {A: 0.6, B_: 0.4}}
    assert best_target(beam_search(of_table(endless), 1, beam=2), 1.0) == [CLS, A]


@pytest.fixture(scope="module")
def toy():
    """(tokenizer, pairs of texts)."""
    pairs = translation.read_sets("toy", None)["train"][:300]
    return translation.train_bpe([text for pair in pairs for text in pair], 500), pairs


@pytest.mark.parametrize("source", ["", "the dog that scared anna followed the cats"])
def test_a_beam_of_one_is_greedy_search(toy, source):
    tokenizer, _ = toy
    model = small_seq2seq("shaw", tokenizer.get_vocab_size())
    (ids,) = translation.encode(tokenizer, [source], 40)
    source_ids = torch.tensor([[CLS, *ids, SEP]])
    written = [CLS]
    for _ in range(2 * len(ids) + 10):
        logits = model(source_ids, torch.tensor([written]))[0, -1]
        logits[[PAD, UNK, CLS, MASK]] = -math.inf
        written.append(int(logits.argmax()))
        if written[-1] == SEP:
            break
    assert best_target(search(model, tokenizer, source, beam=1), 1.0) == written


# --- Pairs and BLEU -------------------------------------------------------------------------------


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


def test_bleu_of_multi30k_is_that_of_words_as_they_are():
    pytest.importorskip("sacrebleu")
    texts = ["a dog runs over the green grass", "two men sit on a bench ."]
    bleu = translation.load_bleu("multi30k")
    assert bleu.corpus_score(texts, [texts]).score == pytest.approx(100)
    # a missing word: 13 of 13 words, 11 of 11 pairs, 9 of 9, 7 of 7, and the brevity exp(1 - 14/13)
    shorter = [texts[0], "two men sit on a bench"]
    expected = 100 * math.exp(1 - 14 / 13)
    assert bleu.corpus_score(shorter, [texts]).score == pytest.approx(expected)


def test_the_penalty_of_length_is_chosen_on_the_validation_set(monkeypatch):
    """A target is here its penalty, and the score of a set a function of it."""
    monkeypatch.setattr(seq2seq, "search", lambda model, tokenizer, text, beam: beam)
    monkeypatch.setattr(seq2seq, "best_target", lambda beam, penalty: (beam, penalty))

    def corpus_score(written, references):
        [(beam, penalty)] = written
        of_set = {"validation": -abs(penalty - 1.0), "test": 10 * beam + penalty}
        return SimpleNamespace(score=of_set[references[0][0]])

    bleu = SimpleNamespace(corpus_score=corpus_score, get_signature=str)
    tokenizer = SimpleNamespace(decode=lambda target: target)
    trainer = SimpleNamespace(model=small_seq2seq().train(), device=CPU, dtype=torch.float32)
    sets = [("", "validation")], [("", "test")]
    found = seq2seq.test_bleu(trainer, tokenizer, bleu, *sets)
    assert (found["penalty"], found["greedy"], found["beam"]) == (1.0, 11.0, 51.0)
    assert not trainer.model.training  # with dropout, a translation would be worse
