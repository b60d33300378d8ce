"""Encoder and decoder: every mixer reads a sentence, and writes another one.

    python -m lab.seq2seq --variant dynamicconv                      translate a toy language
    python -m lab.seq2seq --variant dynamicconv --data multi30k      English to German
    python -m lab.seq2seq --variant dynamicconv --data pairs.tsv     pairs of one's own
    python -m lab.seq2seq --pretrain 1000 --examples 500             write removed spans first
    python -m lab.seq2seq RUN "two young men are outside ."          translate with a trained model

Shaw et al. 2018 and Wu et al. 2019 tried their mixers in translation, Tay et al. 2021 in models
that are pre-trained by writing what was removed from a text. This file is both, with the mixers of
attention.py. What BERT lacks is a second stack of layers, the decoder:

    source    [CLS] the cat slept [SEP]     encoder      model.Bert, as it is
    target    [CLS] eht tac tpels           decoder      causal layers; each also reads the source
    labels    eht   tac tpels [SEP]         the next token of the target (data.next_tokens)

The decoder meets the source in one place, cross-attention: queries of the target, keys and values
of the encoder, without position terms. So a convolution is never alone here: the mixers only
replace the attention of a text to itself, as in Wu and Tay.

A run is a folder like those of pretrain.py, with seq2seq.json in place of config.json, and
test.json, the results on the held-out pairs. A translation is exact if no token is wrong.

Letters as in model.py; S tokens in a source, N in a target. The pairs are in lab/translation.py.
"""

import argparse
import json
import math
import shlex
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import chain
from operator import itemgetter
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

from attention import VARIANTS, SelfAttention, mixer_of_layer
from data import BatchesByWidth, next_tokens, pad_pairs
from lab.translation import encode, encode_pairs, load_bleu, read_sets, spans_of, train_bpe
from model import (
    BertConfig,
    BertForMaskedLM,
    Layer,
    initialise,
    load_run,
    save_run,
)
from pretrain import MAX_GRADIENT_NORM, Recipe, learning_rate, make_trainer, with_options
from support.code import digest_of
from support.commands import UserError, positive_int, run_command
from support.devices import autocast, choose_device, evaluating, to_device
from support.files import load_checkpoint, write_text
from support.options import add_device, add_dtype, add_eager, add_training
from support.runs import read_records, say_unknown_words
from support.tokenizer import (
    CLS,
    IGNORED,
    NEVER_WRITTEN,
    PAD,
    SEP,
)
from support.training import step_seed, train

# For each kind of pairs: what differs from the tiny BERT (model.SIZES) in the encoder and in the
# decoder, the Recipe, and the label smoothing (update_with).
TOY = (
    {"layers": 2},
    Recipe(1_000, batch_size=32, seq_len=64, lr=2e-3, warmup_steps=100, dropout=0.0),
    0.0,
)
OTHERS = (
    {"ffn_size": 256},
    Recipe(4_500, batch_size=128, seq_len=96, lr=3e-3, warmup_steps=400, dropout=0.2),
    0.1,
)

PAIRS_AT_ONCE = 64  # that are tested in one batch
BEAM = 5
PENALTIES = (0.6, 1.0, 1.4)  # of length, from which the one that is best on `val` is chosen


# --- The model ------------------------------------------------------------------------------------


class CrossAttention(SelfAttention):
    """Attention of the target to the source: z_i = sum_j softmax_j(q_i . k_j / sqrt(d)) v_j.

    Self-attention whose x is (target, source): only `project` reads it, and makes queries of the
    target, keys and values of the source.
    There are no position terms: the two have positions of their own, and j - i means nothing.
    """

    def __call__(self, x_and_source, source_mask):
        # not Mixer's: its mask would be that of the target
        return nn.Module.__call__(self, x_and_source, source_mask)

    def project(self, x_and_source, source_mask):
        """x (B, N, C) and the encoder's hidden states (B, S, C) -> query, key, value."""
        x, source = x_and_source
        return self.query(x), self.key(source), self.value(source)


class DecoderLayer(Layer):
    """A causal layer of BERT that also reads the source.

    x = LayerNorm(x + dropout(mixer(x)))              the target, up to the token itself
    x = LayerNorm(x + dropout(cross(x, source)))      the source
    x = LayerNorm(x + dropout(W2 gelu(W1 x)))
    """

    def __init__(self, config, mixer):
        super().__init__(config, mixer)
        self.cross = CrossAttention(config, VARIANTS["none"], layer=0)
        self.cross_norm = nn.LayerNorm(config.hidden_size, eps=1e-12)

    def forward(self, x, attention_mask, source, source_mask):
        """x: (B, N, C). source: the encoder's hidden states (B, S, C). Returns (B, N, C)."""
        x = self.mixer_norm(x + self.dropout(self.mixer(x, attention_mask)))
        x = self.cross_norm(x + self.dropout(self.cross((x, source), source_mask)))
        return self.ffn_norm(x + self.dropout(self.ffn(x)))


class Seq2Seq(BertForMaskedLM):
    """BERT as the encoder, and a decoder of as many layers that shares its embeddings and head.

    The encoder and `lm_head` are those of BertForMaskedLM; `forward` is another one.
    """

    config_file = "seq2seq.json"

    def __init__(self, config):
        super().__init__(config)
        # the mixers are causal; cross-attention is not: it sees the whole source
        self.decoder = nn.ModuleList()
        for number in range(config.layers):
            mixer = mixer_of_layer(replace(config, causal=True), number)
            mixer.share([layer.mixer for layer in self.decoder])
            self.decoder.append(DecoderLayer(config, mixer))
        initialise(self.decoder)

    def forward(self, source, target):
        """(B, S) and (B, N) -> logits (B, N, V): those at i are of token i + 1."""
        return self.lm_head(self.decode(self.encode(source), target))

    def encode(self, source):
        """What the decoder reads of a source (B, S): its hidden states (B, S, C), and its mask."""
        mask = source != PAD  # (B, S)
        return self.bert(source, mask), mask

    def decode(self, encoded, target):
        """(B, N) -> (B, N, C): the vector at i is made of the source and the target up to i."""
        mask = target != PAD  # (B, N)
        x = self.bert.embeddings(target, torch.ones_like(target))  # type 1: it is the target
        for layer in self.decoder:
            x = layer(x, mask, *encoded)  # (B, N, C)
        return x


# --- Translation: greedy and beam search ----------------------------------------------------------


def beam_search(next_log_p, limit, beam):
    """Write a target: at every step, keep the `beam` most likely beginnings.

    It ends when `beam` targets have ended with [SEP]; an end counts if it is one of the `beam` best
    continuations of its step. With a beam of 1 this is greedy search: always the most likely token.

    Example with p(a) = 0.6, p(b) = 0.4; the best after a has 0.5, and the end after b has 0.9.
    Greedy search takes a, and reaches 0.30. A beam of 2 keeps both, and finds b with 0.36.

    Args:
        next_log_p: function from beginnings (L, n) to the log-probabilities of their next tokens,
            (L, V).
        limit: tokens of a target with [SEP], at most.
    Returns:
        A list of (log p, ids): the targets that have ended, or else the beginnings at the limit.
    """
    beginnings = [(0.0, [CLS])]
    ended = []
    for _ in range(limit):
        # all continuations: number line * V + token is this token after this line
        log_p = next_log_p(torch.tensor([ids for _, ids in beginnings]))  # (L, n) -> (L, V)
        log_p[:, list(NEVER_WRITTEN)] = -math.inf
        before = torch.tensor([score for score, _ in beginnings])  # (L,)
        total = (before[:, None] + log_p).flatten()  # (L, V) -> (L * V,)

        # the best ones: twice as many as are kept, because some of them may be ends
        best = total.topk(min(2 * beam, len(total)))
        lines = beginnings
        beginnings = []
        ranks = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        for rank, (score, index) in enumerate(ranks):
            # -inf: this token and all after it are never written
            if score == -math.inf or len(beginnings) == beam:
                break
            line, token = divmod(index, log_p.shape[1])
            target = (score, [*lines[line][1], token])
            # an end counts only if it is one of the `beam` best
            if token != SEP:
                beginnings.append(target)
            elif rank < beam:
                ended.append(target)
        if len(ended) >= beam or not beginnings:
            break
    return ended or beginnings


def best_target(found, penalty):
    """The ids with the best log p / length^penalty, of what beam_search has found.

    The length is without [CLS]. Without a penalty (0), every further token lowers the score, so
    short targets would win (Wu et al. 2016).
    """
    _, ids = max(found, key=lambda target: target[0] / (len(target[1]) - 1) ** penalty)
    return ids


@torch.inference_mode()
def search(model, tokenizer, text, beam):
    """What beam_search finds for a text. The model must be in evaluation mode.

    The source is encoded once. The beginnings are decoded anew at every step: simple, and fast
    enough for sentences.
    """
    longest = model.config.max_length
    device = model.bias.device
    (ids,) = encode(tokenizer, [text], longest)
    hidden, mask = model.encode(padded([ids], longest).to(device))  # (1, S, C), (1, S)

    def next_log_p(beginnings):
        L = len(beginnings)
        encoded = (hidden.expand(L, -1, -1), mask.expand(L, -1))  # the same source for all
        last = model.decode(encoded, beginnings.to(device))[:, -1]  # (L, n, C) -> (L, C)
        return model.lm_head(last).log_softmax(dim=-1).float().cpu()  # (L, V)

    # a model that has learned little never ends: a target has a limit that fits its source
    return beam_search(next_log_p, min(longest - 1, 2 * len(ids) + 10), beam)


# --- Training -------------------------------------------------------------------------------------


class PairBatches:
    """Pairs of lists of token ids as a source of batches, each a function of (seed, step).

    They are those of data.BatchesByWidth. Source and target have one width, that of the longer one:
    so there are as few shapes as in pre-training.
    """

    def __init__(self, pairs, seq_len):
        self.pairs = pairs
        self.seq_len = seq_len

        # the longer one with [CLS] and [SEP]; what is predicted: the target and its [SEP]
        longer = np.array([max(len(source), len(target)) + 2 for source, target in pairs])
        predicted = np.array([len(target) + 1 for _, target in pairs])
        self.batches = BatchesByWidth(np.minimum(longer, seq_len), predicted, seq_len)

    def batch(self, seed, step, batch_size):
        """source and target, (B, N) each, [CLS] ids [SEP] [PAD] ...; on average B is batch_size."""
        indices, width = self.batches.batch(seed, step, batch_size)
        return padded_pairs([self.pairs[index] for index in indices], self.seq_len, width)


def padded(texts, seq_len, width=None):
    """Lists of token ids as a tensor (B, N): [CLS] ids [SEP] [PAD] ...; width: N."""
    return torch.from_numpy(pad_pairs([(ids, None) for ids in texts], seq_len, width))


def padded_pairs(pairs, seq_len, width=None):
    """Pairs of lists of token ids as tensors: source (B, S) and target (B, N); width: S and N."""
    return [padded(texts, seq_len, width) for texts in zip(*pairs, strict=True)]


def train_step(trainer, batches):
    """One step: the batch and the learning rate, then update, as in pretrain.train_step."""
    settings = trainer.settings
    source, target = batches.batch(settings["seed"], trainer.step, settings["batch_size"])
    source, target = (to_device(x, trainer.device) for x in (source, target))

    lr = learning_rate(trainer.step, settings["steps"], settings["warmup_steps"], settings["lr"])
    trainer.set_learning_rate(lr)
    trainer.advance(update_with(settings["smoothing"]), source, target)


@cache  # always the same function: it is recorded once (support/devices.RecordedStep)
def update_with(smoothing):
    """update(model, optimizer, source, target): loss, gradients, new weights, as in pretrain.py.

    Smoothing asks for a little probability of all tokens, so that the right one need not become
    certain (Vaswani et al. 2017).
    """

    def update(model, optimizer, source, target):
        logits = model(source, target)  # (B, N, V)
        labels = next_tokens(target).flatten()  # (B * N,)
        loss = F.cross_entropy(logits.flatten(0, 1), labels, label_smoothing=smoothing)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), norm

    return update


def evaluate(trainer, pairs):
    """Of pairs of token ids: {"loss" in nats, "accuracy" of tokens, share of "exact" targets}.

    Each token is predicted from the right beginning of its target. If all tokens of a target are
    right, greedy search predicts them from the same beginnings, so it writes the same target (if
    that is within its limit, and has no [UNK], which is never written).
    """
    model = trainer.model
    sums = torch.zeros(4, dtype=torch.float64)  # loss, labels, right tokens, exact targets
    with evaluating(model):
        for start in range(0, len(pairs), PAIRS_AT_ONCE):
            batch = padded_pairs(pairs[start : start + PAIRS_AT_ONCE], model.config.max_length)
            source, target = (to_device(x, trainer.device) for x in batch)
            labels = next_tokens(target)  # (B, N)
            with autocast(trainer.device, trainer.dtype):
                logits = model(source, target)  # (B, N, V)
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")

            # a target is exact if its tokens are right wherever it has labels
            is_label = labels != IGNORED  # (B, N)
            is_right = logits.argmax(dim=-1) == labels  # (B, N), False without a label
            exact = (is_right == is_label).all(dim=1)  # (B,)
            sums += torch.tensor([loss, is_label.sum(), is_right.sum(), exact.sum()])

    # means over all labels, and over all targets
    loss, labels, right, exact = sums.tolist()
    return {"loss": loss / labels, "accuracy": right / labels, "exact": exact / len(pairs)}


def fit(model, settings, sets, tokenizer, folder, device, dtype, args):
    """Train a model, or load it if the run is finished. Returns (its Trainer, the run's folder).

    sets: pairs of token ids; the first set is trained on, and the second one is evaluated.
    """
    # the trainer of pre-training, with the Adam of Vaswani et al. 2017
    trainer = make_trainer(model, settings, device, dtype, is_eager=args.eager)
    for group in trainer.optimizer.param_groups:
        group.update(betas=(0.9, 0.98), eps=1e-8)

    pairs, held_out, *_ = sets.values()
    batches = PairBatches(pairs[: settings["examples"]], settings["seq_len"])
    place, _ = train(
        trainer,
        folder,
        one_step=lambda: train_step(trainer, batches),
        held_out_scores=lambda: itemgetter("loss", "accuracy")(evaluate(trainer, held_out)),
        save_model=partial(save_run, model=model, tokenizer=tokenizer),
        eval_every=args.eval_every,
    )

    # it may be finished already
    model.load_state_dict(load_checkpoint(place / "model.pt"))
    return trainer, place


# --- The test -------------------------------------------------------------------------------------


def test_bleu(trainer, tokenizer, bleu, validation, test):
    """BLEU of the test set, by greedy search and with a beam. Sets are pairs of texts.

    The penalty of length is the one that is best on the validation set. bleu: of load_bleu; its
    signature says how the words were counted.
    """
    model = trainer.model.eval()

    def search_all(pairs, beam):
        bar = tqdm(pairs, leave=False, disable=None)
        with autocast(trainer.device, trainer.dtype):
            return [search(model, tokenizer, source, beam) for source, _ in bar]

    def score(found, pairs, penalty):
        """Of each text the best target by this penalty, against the one reference."""
        written = [tokenizer.decode(best_target(each, penalty)) for each in found]
        return bleu.corpus_score(written, [[target for _, target in pairs]]).score

    # the penalty is chosen on the one set, and used for the other; greedy search has no choice
    found = search_all(validation, BEAM)
    of_penalties = {penalty: score(found, validation, penalty) for penalty in PENALTIES}
    penalty = max(of_penalties, key=of_penalties.get)
    return {
        "greedy": score(search_all(test, 1), test, penalty),
        "beam": score(search_all(test, BEAM), test, penalty),
        "penalty": penalty,
        "validation": of_penalties,
        "signature": str(bleu.get_signature()),
    }


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        description="Train an encoder and a decoder to translate, or translate a text with a run.",
        allow_abbrev=False,
    )
    add = parser.add_argument

    add("words", nargs="*", metavar="RUN TEXT", help="translate with this run")

    # what is trained, on which pairs, where
    add("--variant", choices=VARIANTS, default="composite", metavar="NAME", help="of attention.py")
    add("--kernel_size", type=positive_int, help="K, odd (default: the variant's own, mostly 17)")
    add("--data", default="toy", help="toy, multi30k, or a file of `source TAB target` (toy)")
    add("--examples", type=positive_int, help="pairs to train on, at most (all)")
    add("--pretrain", type=positive_int, metavar="STEPS", help="before: write what was removed")
    add("--bleu", metavar="NAME", help="tokenizer of sacrebleu (its default; multi30k: none)")
    add("--cache_dir", type=Path, default="cache", help="for the download (cache)")
    add_device(add)
    add_dtype(add)
    add_eager(add)

    # how long and how fast: the options of pretrain.py
    add_training(add)
    return parser.parse_args(arguments)


def main(arguments=None):
    """Train and test a model for each seed, or translate a text."""
    args = parse_arguments(arguments)

    # a text for a trained model
    if args.words:
        if len(args.words) != 2:
            raise UserError(
                'to translate, name a run and a text: RUN "two young men are outside ."'
            )
        folder, text = args.words
        model, tokenizer = load_run(folder, kind=Seq2Seq)
        say_unknown_words(folder, tokenizer, text)
        print(tokenizer.decode(best_target(search(model, tokenizer, text, BEAM), penalty=1.0)))
        return

    # the pairs, then a run for each seed
    sets = read_sets(args.data, args.cache_dir)
    bleu = None if args.data == "toy" else load_bleu(args.data, args.bleu)
    for seed in args.seed:
        train_and_test(args, sets, bleu, seed)


def train_and_test(args, sets, bleu, seed):
    """One run: pre-training by spans if it is asked for, training, and the test."""
    device, dtype = choose_device(args.device, args.dtype)
    sizes, default, smoothing = OTHERS if bleu else TOY
    recipe = with_options(default, args)

    # the pairs as token ids: one vocabulary for both languages
    tokenizer = train_bpe(chain(*sets["train"]))
    ids = {name: encode_pairs(tokenizer, sets[name], recipe.seq_len) for name in sets}

    # the model, whose initial weights depend on the seed
    torch.manual_seed(step_seed(seed, 0, "weights"))
    config = BertConfig.from_size(
        "tiny",
        args.variant,
        tokenizer.get_vocab_size(),
        max_length=recipe.seq_len,
        dropout=recipe.dropout,
        kernel_size=args.kernel_size,
        **sizes,
    )
    model = Seq2Seq(config)
    print(f"{args.variant}: {recipe}")

    # everything that the result depends on
    settings = {
        "task": "translation",
        "data": digest_of(sets),
        **asdict(config),
        **asdict(recipe),
        "smoothing": smoothing,
        "examples": args.examples,
        "pretrain": args.pretrain,
        "seed": seed,
        "dtype": str(dtype).removeprefix("torch."),
    }
    folder = run_folder(args, seed)

    # write what was removed from the texts of both languages, with settings of its own: this run is
    # used again if only those of the translation are changed
    if args.pretrain:
        changed = {"task": "spans", "examples": None, "steps": args.pretrain, "lr": default.lr}
        changed["warmup_steps"] = max(1, args.pretrain // 10)
        spans = spans_of(ids["train"], seed)
        fit(model, settings | changed, spans, tokenizer, folder / "spans", device, dtype, args)

    # translate
    trainer, place = fit(model, settings, ids, tokenizer, folder, device, dtype, args)

    # test on what is held out
    _, *names = sets
    path = place / (f"test-{args.bleu}.json" if args.bleu else "test.json")
    if not path.exists():
        results = {name: evaluate(trainer, ids[name]) for name in names}
        if bleu:
            results["BLEU"] = test_bleu(trainer, tokenizer, bleu, *(sets[name] for name in names))
        write_text(path, json.dumps(results, indent=2) + "\n")
    results = read_records(path)
    for name in names:
        loss, accuracy, exact = results[name].values()
        accuracy, exact = 100 * accuracy, 100 * exact
        print(f"{name}: loss {loss:.3f}, accuracy {accuracy:.1f} %, exact {exact:.1f} %")
    if bleu:
        found = results["BLEU"]
        print("BLEU: {greedy:.1f} greedy, {beam:.1f} with a beam ({signature})".format(**found))
    source, _ = sets["train"][0]
    print("next:", shlex.join(["python", "-m", "lab.seq2seq", str(place), source]))


def run_folder(args, seed):
    """runs/seq2seq-multi30k-shaw-seed1 or runs/NAME-seed1, without what is the default."""
    name = args.name or f"seq2seq-{Path(args.data).stem}-{args.variant}"
    if args.pretrain and not args.name:
        name += f"-spans{args.pretrain}"
    if args.seed != [0]:
        name += f"-seed{seed}"
    return args.out_dir / name


if __name__ == "__main__":
    run_command(main)
