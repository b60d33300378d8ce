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
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

from attention import VARIANTS, SelfAttention, make_mixers
from data import batches_per_epoch, draw_epoch, next_tokens, pad_pairs, regroup_by_length
from lab.translation import (
    bleu,
    encode,
    encode_pairs,
    load_bleu,
    read_pairs,
    spans_of,
    train_bpe,
)
from model import BertConfig, BertForMaskedLM, Layer, initialise, parameter_count
from pretrain import (
    CHECKPOINT,
    CODE,
    Recipe,
    Trainer,
    add_device,
    add_dtype,
    add_training,
    prediction_count,
    result_of,
    save_all,
    step_seed,
    with_options,
)
from support.commands import UserError, positive_int, run_command, utf8_text
from support.devices import autocast, choose_device, to_device
from support.files import load_checkpoint, lock, write_text
from support.runs import code_digests, made_by
from support.tokenizer import CLS, IGNORED, NEVER_WRITTEN, PAD, SEP

# As in Vaswani et al. 2017. BERT's are 0.9, 0.999 and 1e-6.
ADAM = {"betas": (0.9, 0.98), "eps": 1e-8}

# For each kind of pairs: the sizes of the model, its Recipe, and the label smoothing (train_step).
SIZES = dict(hidden_size=128, heads=4, embedding_size=128)
TOY = (
    dict(layers=2, ffn_size=512, **SIZES),
    Recipe(1_000, batch_size=32, seq_len=64, lr=2e-3, warmup_steps=100, dropout=0.0),
    0.0,
)
OTHERS = (
    dict(layers=4, ffn_size=256, **SIZES),
    Recipe(4_500, batch_size=128, seq_len=96, lr=3e-3, warmup_steps=400, dropout=0.2),
    0.1,
)

PAIRS_AT_ONCE = 64  # that are translated, or tested, in one batch
BEAM = 5
PENALTIES = (0.6, 1.0, 1.4)  # of length, from which the one that is best on `val` is chosen


# --- The model ------------------------------------------------------------------------------------


class CrossAttention(SelfAttention):
    """Attention of the target to the source: z_i = sum_j softmax_j(q_i . k_j / sqrt(d)) v_j.

    Self-attention whose keys and values come from the source, and only the queries from the target.
    There are no position terms: the two have positions of their own, and j - i means nothing.
    """

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
    """BERT as the encoder, and a decoder of as many layers that shares its embeddings and head."""

    config_file = "seq2seq.json"

    def __init__(self, config):
        super().__init__(config)
        mixers = make_mixers(replace(config, causal=True))
        self.decoder = nn.ModuleList(DecoderLayer(config, mixer) for mixer in mixers)
        initialise(self.decoder)

    def forward(self, source, target):
        """(B, S) and (B, N) -> (B, N, C): from the vector at i, the head predicts token i + 1."""
        return self.decode(self.encode(source), target)

    def encode(self, source):
        """What the decoder reads of a source (B, S): its hidden states (B, S, C), and its mask."""
        mask = source != PAD  # (B, S)
        return self.bert(source, mask), mask

    def decode(self, encoded, target):
        """(B, N) -> (B, N, C): the vector at i is made of the source and the target up to i."""
        x = self.bert.embeddings(target, torch.ones_like(target))  # type 1: it is the target
        for layer in self.decoder:
            x = layer(x, target != PAD, *encoded)  # (B, N, C)
        return x


# --- Translation: greedy and beam search ----------------------------------------------------------


def beam_search(next_log_p, limits, beam, penalty):
    """Write several targets; for each, keep the `beam` best beginnings at every step.

    The score of a target is log p / length^penalty, with [SEP] in both (Wu et al. 2016): without a
    penalty (0), every further token lowers the score, so short targets would win. With a beam of 1
    this is greedy search: always the most likely token.

    Example with p(a) = 0.6, p(b) = 0.4; the best after a has 0.5, and the end after b has 0.9.
    Greedy search takes a, and reaches 0.30. A beam of 2 keeps both, and finds b with 0.36.

    Args:
        next_log_p: function from the number of a target (L,) and the beginning (L, n) of each of L
            lines to the log-probabilities of their next tokens, (L, V).
        limits: for each target, its tokens with [SEP], at most.
    Returns:
        For each target a list of (score, ids without [CLS] and [SEP]), the best first: those that
        reached [SEP], at most `beam`; or else the best beginning.
    """
    beginnings = [[(0.0, [CLS])] for _ in limits]  # of each target: (log p, ids), the best first
    finished = [[] for _ in limits]
    for length in range(1, max(limits) + 1):
        # all beginnings are lines of one batch; a target that is done has none
        sizes = [len(some) for some in beginnings]
        numbers = torch.arange(len(limits)).repeat_interleave(torch.tensor(sizes))  # (L,)
        targets = torch.tensor([ids for _, ids in chain(*beginnings)])  # (L, length)
        log_p = next_log_p(numbers, targets).float()  # (L, V)
        log_p[:, list(NEVER_WRITTEN)] = -math.inf

        # the lines of the batch, back to their targets
        for b, of_target in enumerate(log_p.split(sizes)):
            if not beginnings[b]:
                continue
            beginnings[b], ended = continuations(beginnings[b], of_target, beam)
            finished[b] += [(score / length**penalty, ids[1:]) for score, ids in ended]

            # This target is done. If no end was among the best, its best beginning is the result.
            if len(finished[b]) >= beam or length == limits[b]:
                if not finished[b]:
                    score, ids = beginnings[b][0]
                    finished[b] = [(score, ids[1:])]
                beginnings[b] = []
        if not any(beginnings):
            break
    return [sorted(found, reverse=True)[:beam] for found in finished]


def continuations(beginnings, log_p, beam):
    """The best continuations of the beginnings of one target: (those that go on, those that end).

    log_p: (beginnings, V), of the next tokens. Both results are lists of (log p, ids).
    """
    # of all continuations the best 2 * beam, because `beam` of them may be ends
    V = log_p.shape[-1]
    scores = torch.tensor([score for score, _ in beginnings], device=log_p.device)
    total = (scores[:, None] + log_p).flatten()  # (beginnings, V) -> (beginnings * V,)
    best_scores, best = total.topk(min(2 * beam, len(total)))  # (2 * beam,)

    # from the best one on, until `beam` of them go on
    going_on = []
    ended = []
    ranks = zip(best_scores.tolist(), best.tolist(), strict=True)
    for rank, (score, index) in enumerate(ranks):
        # -inf: this token and all after it are never written
        if score == -math.inf or len(going_on) == beam:
            break
        line, token = divmod(index, V)  # index is line * V + token
        ids = beginnings[line][1]

        # an end counts only if it is one of the `beam` best
        if token != SEP:
            going_on.append((score, [*ids, token]))
        elif rank < beam:
            ended.append((score, ids))
    return going_on, ended


@torch.inference_mode()
def translate(model, tokenizer, texts, beam=1, penalty=1.0):
    """The translations of texts. The model must be in evaluation mode."""
    longest = model.config.max_length - 2
    ids = encode(tokenizer, texts)
    if max(map(len, ids)) > longest:
        raise UserError(f"a text has more than {longest} tokens")

    translations = []
    for start in tqdm(range(0, len(ids), PAIRS_AT_ONCE), disable=None, leave=False):
        targets = best_targets(model, ids[start : start + PAIRS_AT_ONCE], beam, penalty)
        translations += tokenizer.decode_batch(targets)
    return translations


def best_targets(model, sources, beam, penalty):
    """What beam_search finds for each source: lists of token ids."""
    device = model.bias.device
    longest = model.config.max_length
    hidden, mask = model.encode(padded(sources, longest).to(device))  # (B, S, C), (B, S)

    def next_log_p(numbers, targets):
        encoded = (hidden[numbers], mask[numbers])  # (L, S, C), (L, S): the source of each line
        last = model.decode(encoded, targets.to(device))[:, -1]  # (L, C)
        return model.lm_head(last).log_softmax(dim=-1)

    # a model that has learned little never ends: a target has a limit that fits its source
    limits = [min(longest - 1, 2 * len(ids) + 10) for ids in sources]
    return [found[0][1] for found in beam_search(next_log_p, limits, beam, penalty)]


# --- Training -------------------------------------------------------------------------------------


class PairBatches:
    """Pairs of lists of token ids as a source of batches, each a function of (seed, step)."""

    def __init__(self, pairs, tokenizer, seq_len):
        self.pairs = pairs
        self.tokenizer = tokenizer
        self.seq_len = seq_len
        # with [CLS] and [SEP] of both
        self.lengths = np.array([len(source) + len(target) + 4 for source, target in pairs])
        self.drawn = None  # (seed, epoch, batch_size) of self.batches

    def batch(self, seed, step, batch_size):
        """source (B, S) and target (B, N), [CLS] ids [SEP] [PAD] ...; on average B is batch_size.

        The batches of an epoch have nearly equally many tokens: many short pairs, or few long ones.
        """
        epoch, index = divmod(step, batches_per_epoch(len(self.pairs), batch_size))
        if self.drawn != (seed, epoch, batch_size):
            chosen = draw_epoch(len(self.pairs), seed, epoch, batch_size)  # (batches, batch_size)
            self.batches = regroup_by_length(chosen, self.lengths, seed, epoch)
            self.drawn = (seed, epoch, batch_size)
        return padded_pairs([self.pairs[i] for i in self.batches[index]], self.seq_len)


def padded(texts, seq_len):
    """Lists of token ids as a tensor (B, N): [CLS] ids [SEP] [PAD] ..."""
    return torch.from_numpy(pad_pairs([(ids, None) for ids in texts], seq_len))


def padded_pairs(pairs, seq_len):
    """Pairs of lists of token ids as tensors: source (B, S) and target (B, N)."""
    return [padded(texts, seq_len) for texts in zip(*pairs, strict=True)]


def train_step(trainer, batches):
    """One step: batch, loss of the next token of the target, gradients, update."""
    settings = trainer.settings
    seed = settings["seed"]

    # the batch; all tokens of the target are predicted, except [CLS]
    source, target = batches.batch(seed, trainer.step, settings["batch_size"])
    count = int((target[:, 1:] != PAD).sum())
    source, target = (to_device(x, trainer.device) for x in (source, target))
    labels = next_tokens(target)  # (B, N)

    # as in pretrain.train_step, everything random is a function of (seed, step)
    torch.manual_seed(step_seed(seed, trainer.step, "dropout"))
    with autocast(trainer.device, trainer.dtype):
        hidden = trainer.model(source, target)  # (B, N, C)
        M = prediction_count(labels, causal=True)
        logits, targets = trainer.model.masked_logits(hidden, labels, M)  # (M, V), (M,)
        # The mean over the labels of the batch. Smoothing asks for a little probability of all
        # tokens, so that the right one need not become certain (Vaswani et al. 2017).
        loss = F.cross_entropy(logits, targets, label_smoothing=settings["smoothing"])
    loss.backward()
    trainer.update(loss.detach(), count)


@torch.no_grad()
def evaluate(trainer, pairs):
    """(loss in nats, share of right tokens, share of exact targets); nothing is written.

    Each token is predicted from the right beginning of its target. If all tokens of a target are
    right, greedy search predicts them from the same beginnings, so it writes the same target (up to
    its limit, and without [UNK]). The model must be in evaluation mode.
    """
    model = trainer.model
    sums = np.zeros(4)  # loss, right tokens, labels, exact targets
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        batch = padded_pairs(pairs[start : start + PAIRS_AT_ONCE], model.config.max_length)
        source, target = (to_device(x, trainer.device) for x in batch)
        labels = next_tokens(target)  # (B, N)
        with autocast(trainer.device, trainer.dtype):
            logits = model.lm_head(model(source, target))  # (B, N, V)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")

        # a target is exact if its tokens are right wherever it has labels
        is_label = labels != IGNORED  # (B, N)
        is_right = logits.argmax(dim=-1) == labels  # (B, N), False without a label
        exact = (is_right == is_label).all(dim=1)  # (B,)
        sums += [loss.item(), is_right.sum().item(), is_label.sum().item(), exact.sum().item()]

    # means over all labels, and over all targets
    loss, right, labels, exact = sums.tolist()
    return loss / labels, right / labels, exact / len(pairs)


def record_evaluation(trainer, pairs):
    """Evaluate on held-out pairs, print it, and add it to the log."""
    trainer.model.eval()
    loss, accuracy, exact = evaluate(trainer, pairs)
    trainer.model.train()
    values = {"held_out_loss": loss, "held_out_accuracy": accuracy, "exact": exact}
    trainer.records.append({"step": trainer.step, **values})
    tqdm.write(
        f"step {trainer.step:,} of {trainer.settings['steps']:,}   held-out loss {loss:.3f}   "
        f"tokens {100 * accuracy:.1f} %   exact {100 * exact:.1f} %   "
        f"{trainer.tokens / trainer.seconds:,.0f} tokens of targets/s"
    )


def train(model, settings, pairs, tokenizer, folder, device, dtype, evaluate_every=None):
    """Train a model, or continue, or load it if the run is finished. Returns its Trainer.

    Args:
        pairs: Pairs of token ids. The first set that is held out is evaluated.
        folder: of the run.
        evaluate_every: steps; None: a tenth of all.
    """
    # the Trainer of pre-training, with the optimizer's settings of translation
    code = {**CODE, **code_digests("lab/seq2seq.py", "lab/translation.py")}
    path = folder / CHECKPOINT
    trainer = Trainer(model, settings, path, device, dtype, code=code, compiled=False)
    for group in trainer.optimizer.param_groups:
        group.update(ADAM)

    # a finished run
    print(f"{settings['task']}: {len(pairs.train):,} pairs, folder {folder}")
    if result_of(folder, trainer) is not None:
        print("finished before")
        model.load_state_dict(load_checkpoint(folder / "model.pt"))
        return trainer

    # a new run, or one that was stopped
    batches = PairBatches(pairs.train, tokenizer, settings["seq_len"])
    held_out, *_ = pairs.held_out.values()
    with lock(folder / "process0.lock"):
        trainer.resume()
        trainer.run(
            step=lambda: train_step(trainer, batches),
            save=lambda: save_all(trainer, batches, folder),
            evaluate=lambda: record_evaluation(trainer, held_out),
            evaluate_every=evaluate_every or max(1, settings["steps"] // 10),
        )
    return trainer


# --- The test -------------------------------------------------------------------------------------


def test(trainer, tokenizer, texts, ids, with_bleu):
    """{name of each held-out set: {"loss" in nats, "tokens" and "exact" in per cent}}, and made_by.

    The model must be in evaluation mode.

    Args:
        texts, ids: Pairs of texts, and the same of token ids.
        with_bleu: also BLEU of the last set.
    """
    results = {"made_by": made_by(trainer.device)}
    for name, pairs in ids.held_out.items():
        loss, tokens, exact = evaluate(trainer, pairs)
        results[name] = {"loss": loss, "tokens": 100 * tokens, "exact": 100 * exact}
    if with_bleu:
        results["BLEU"] = test_bleu(trainer, tokenizer, texts.held_out)
    return results


def test_bleu(trainer, tokenizer, held_out):
    """BLEU of the last set, by greedy search and with a beam.

    The penalty of length is the one that is best on the first set. With one set only, it is 1.
    """

    def score(name, beam=BEAM, penalty=1.0):
        sources, references = zip(*held_out[name], strict=True)
        with autocast(trainer.device, trainer.dtype):
            return bleu(translate(trainer.model, tokenizer, sources, beam, penalty), references)

    # the penalty, if there is another set than the one that is reported
    *others, last = held_out
    chosen_on = {}
    if others:
        chosen_on = {penalty: score(others[0], penalty=penalty) for penalty in PENALTIES}
    penalty = max(chosen_on, key=chosen_on.get, default=1.0)
    return {
        "set": last,
        "greedy": score(last, beam=1),
        "beam": score(last, penalty=penalty),
        "penalty": penalty,
        "penalties": chosen_on,
        "signature": "sacrebleu, tokenize none",
    }


# --- The command line -----------------------------------------------------------------------------


def load_seq2seq(folder):
    """The model of a run, in evaluation mode, and its tokenizer."""
    path = Path(folder, Seq2Seq.config_file)
    if not path.is_file():
        raise UserError(f"{folder} is not a run of lab.seq2seq: it has no {path.name}")
    model = Seq2Seq(BertConfig(**json.loads(path.read_text(encoding="utf-8"))))
    model.load_state_dict(load_checkpoint(Path(folder, "model.pt")))
    return model.eval(), Tokenizer.from_file(str(Path(folder, "tokenizer.json")))


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options]        train a model\n       %(prog)s RUN TEXT         translate",
        description="Encoder and decoder: translation with any mixer.",
        allow_abbrev=False,
    )
    add = parser.add_argument

    # a text for a trained model
    add("words", nargs="*", type=utf8_text, metavar="RUN TEXT", help="translate with this run")
    add("--beam", type=positive_int, default=BEAM, help="of this translation (%(default)s)")

    # what is trained, on which pairs, where
    add("--variant", choices=VARIANTS, default="composite", metavar="NAME", help="of attention.py")
    add("--data", default="toy", help="toy, multi30k, or a file of `source TAB target` (toy)")
    add("--examples", type=positive_int, help="pairs to train on, at most (all)")
    add("--pretrain", type=positive_int, metavar="STEPS", help="before: write what was removed")
    add("--cache_dir", type=Path, default="cache", help="for the download (cache)")
    add_device(add)
    add_dtype(add)

    # how long and how fast: the options of pretrain.py
    add_training(add)
    return parser.parse_args(arguments)


def main(arguments=None):
    """Train and test a model for each seed, or translate a text."""
    args = parse_arguments(arguments)
    if args.words:
        if len(args.words) != 2:
            raise UserError(
                'to translate, name a run and a text: RUN "two young men are outside ."'
            )
        folder, text = args.words
        print(*translate(*load_seq2seq(folder), [text], args.beam))
        return
    if args.data != "toy":
        load_bleu()  # missing: say it before the work, not after it
    pairs = read_pairs(args.data, args.cache_dir)
    for seed in args.seed:
        train_and_test(args, pairs, seed)


def train_and_test(args, pairs, seed):
    """One run: pre-training by spans if it is asked for, training, and the test."""
    device, dtype = choose_device(args.device, args.dtype)
    is_toy = args.data == "toy"
    sizes, default, smoothing = TOY if is_toy else OTHERS
    recipe = with_options(default, args)

    # one vocabulary for both languages
    tokenizer = train_bpe([text for pair in pairs.train for text in pair])
    texts, ids = encode_pairs(tokenizer, pairs, recipe.seq_len)

    # the model, whose initial weights depend on the seed
    torch.manual_seed(step_seed(seed, 0, "weights"))
    options = dict(max_length=recipe.seq_len, dropout=recipe.dropout)
    model = Seq2Seq(BertConfig(args.variant, tokenizer.get_vocab_size(), **sizes, **options))
    print(f"{args.variant}: {VARIANTS[args.variant].equation}")
    print(f"  {parameter_count(model):,} parameters, {recipe}")

    # everything that the result depends on
    settings = {
        "task": "translation",
        "variant": args.variant,
        "data": f"{Path(args.data).stem} {pairs.digest()}",
        **asdict(recipe),
        **sizes,
        "smoothing": smoothing,
        "examples": args.examples,
        "pretrain": args.pretrain,
        "seed": seed,
        "dtype": str(dtype).removeprefix("torch."),
    }
    folder = run_folder(args, seed)

    # write what was removed from the texts of both languages, with settings of its own
    if args.pretrain:
        changed = {"task": "spans", "examples": None, "steps": args.pretrain, "lr": default.lr}
        changed["warmup_steps"] = max(1, args.pretrain // 10)
        spans = spans_of(ids.train, seed)
        train(model, settings | changed, spans, tokenizer, folder / "spans", device, dtype)

    # translate
    chosen = ids._replace(train=ids.train[: args.examples])
    trainer = train(model, settings, chosen, tokenizer, folder, device, dtype, args.eval_every)

    # test it, and show three translations
    model.eval()
    path = folder / "test.json"
    if not path.exists():
        results = test(trainer, tokenizer, texts, ids, not is_toy)
        write_text(path, json.dumps(results, indent=2) + "\n")
    print(path.read_text(encoding="utf-8"))

    first, *_ = texts.held_out.values()
    for source, reference in first[:3]:
        print(f"  source       {source}\n  reference    {reference}")
        print("  translation ", *translate(model, tokenizer, [source]), end="\n\n")


def run_folder(args, seed):
    """runs/seq2seq-multi30k-shaw-seed1, without what is the default."""
    parts = ["seq2seq", Path(args.data).stem, args.variant]
    if args.pretrain:
        parts.append(f"spans{args.pretrain}")
    if args.seed != [0]:
        parts.append(f"seed{seed}")
    return args.out_dir / "-".join(parts)


if __name__ == "__main__":
    run_command(main)
