"""Pairs of sentences for lab/seq2seq.py: where they come from, their tokens, and BLEU.

    toy         the toy language and another one, in which words are spelled backwards
    multi30k    descriptions of pictures, English and German (Elliott et al. 2016), downloaded once
    FILE.tsv    lines `source TAB target` of one's own

The toy sentences to train on have at most one relative clause (toy/translation.py). Two sets are
held out: `dev` has other sentences of this kind, and in `deep` a relative clause has another one
inside.

Sets of pairs are {name: [(source, target), ...]}, as texts or as token ids. The first one is
"train"; the second one is evaluated while a model is trained, the last one is its test.
"""

import csv
from itertools import chain
from pathlib import Path
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from data import MASK_PROBABILITY
from support.code import ROOT
from support.commands import UserError, import_optional
from support.corpus import read_lines
from support.files import download
from support.labelled import token_ids
from support.tokenizer import MASK, SPECIAL_TOKENS

HELD_OUT = 200  # sources of a set that is held out (not of Multi30k)
SPAN = 3  # tokens that one [MASK] stands for in pre-training

# Multi30k, task 1, tokenized and lower-cased, from github.com/multi30k/dataset.
MULTI30K = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/tok/"
)
FILES = {  # of each split, the SHA-256 of the English and of the German file
    "train": (
        "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
        "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    ),
    "val": (
        "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
        "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    ),
    "test_2016_flickr": (
        "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
        "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
    ),
}


# --- Where pairs come from ------------------------------------------------------------------------


def read_sets(data, cache_dir):
    """The sets of "toy", "multi30k" or a file, as texts."""
    if data == "multi30k":
        return {split: read_split(split, cache_dir) for split in FILES}
    if data != "toy":
        return file_sets(Path(data))
    sets = {"train": [], "dev": [], "deep": []}
    for line in read_lines(ROOT / "toy" / "translation.tsv.xz"):
        split, *pair = line.split("\t")
        sets[split].append(tuple(pair))
    return sets


def read_split(split, cache_dir):
    """The pairs of a split of Multi30k: "train", "val" or "test_2016_flickr"."""
    columns = []
    for language, digest in zip(("en", "de"), FILES[split], strict=True):
        name = f"{split}.lc.norm.tok.{language}"
        path = download(MULTI30K + name, cache_dir / "downloads" / "multi30k" / name, digest)
        columns.append(list(read_lines(path)))
    return list(zip(*columns, strict=True))


def file_sets(path):
    """The sets of a file with the lines `source TAB target`, each pair once, in random order.

    Sources are split, not pairs: a source that is held out is never trained on, also if it has
    several targets.
    """
    # read the lines; a dictionary keeps the order, and each target once
    targets = {}  # {source: {target: None}}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        columns = [column.strip() for column in columns_of(line)]
        if len(columns) != 2 or not all(columns):
            raise UserError(f"{path}, line {number} is not `source TAB target`")
        source, target = columns
        targets.setdefault(source, {})[target] = None

    # divide the sources
    end = 2 * HELD_OUT  # of what is held out
    sources = list(targets)
    if len(sources) < end + HELD_OUT:
        raise UserError(f"{path} has {len(sources)} different sources: too few, {end} are held out")
    Random(0).shuffle(sources)

    # and give each source its targets
    sets = {"train": sources[end:], "dev": sources[:HELD_OUT], "test": sources[HELD_OUT:end]}
    for name, own in sets.items():
        sets[name] = [(source, target) for source in own for target in targets[source]]
    return sets


def columns_of(line):
    """The columns of a line of a table, which tabs separate.

    Spreadsheets write quotation marks around some columns, and double those inside: they are
    removed. Marks that are part of the text stay.

        "He said ""no""."<TAB>Er sagte nein.     He said "no".    Er sagte nein.
        "No," he said.<TAB>Nein, sagte er.      "No," he said.   Nein, sagte er.
    """
    try:
        return next(csv.reader([line], delimiter="\t", strict=True))
    except csv.Error:  # a mark in the middle of a column that begins with one
        return line.split("\t")


# --- Tokens ---------------------------------------------------------------------------------------


def train_bpe(texts, vocab_size=10_000):
    """A tokenizer of pieces for both languages, by byte-pair encoding (Sennrich et al. 2016).

    Words are what spaces separate. The first piece of a word begins with the mark of a space, so
    decoding gives the words back: "\u2581under" "\u2581a" "\u2581tre" "e" is "under a tree".
    """
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer, texts, longest):
    """The token ids of each text, without special tokens; UserError if a text is too long."""
    ids = token_ids(texts, tokenizer)
    most = max(map(len, ids)) + 2  # with [CLS] and [SEP]
    if most > longest:
        raise UserError(f"a text has {most} tokens; the model (--seq_len) takes {longest}")
    return ids


def encode_pairs(tokenizer, pairs, longest):
    """Pairs of texts as pairs of token ids."""
    columns = [encode(tokenizer, column, longest) for column in zip(*pairs, strict=True)]
    return list(zip(*columns, strict=True))


def remove_spans(ids, random):
    """(source, target) of pre-training: the target is what was removed from the source.

    A text is cut into spans of SPAN tokens. 15 % of them, but at least one, are replaced by [MASK]
    (Raffel et al. 2020, as in Tay et al. 2021):

        ids       the dog chased   the cats .   they were afraid   .
        source    the dog chased   [MASK]       they were afraid   .
        target    [MASK] the cats .
    """
    spans = [ids[start : start + SPAN] for start in range(0, len(ids), SPAN)]
    count = max(1, round(MASK_PROBABILITY * len(spans)))
    removed = random.sample(range(len(spans)), count)

    source = []
    target = []
    for number, span in enumerate(spans):
        if number in removed:
            source.append(MASK)
            target += [MASK, *span]
        else:
            source.extend(span)
    return source, target


def spans_of(pairs, seed):
    """The sets of pre-training: `remove_spans` of the texts of both languages, in random order."""
    random = Random(seed)
    texts = list(chain(*pairs))
    random.shuffle(texts)
    spans = [remove_spans(ids, random) for ids in texts]
    return {"train": spans[HELD_OUT:], "dev": spans[:HELD_OUT]}


# --- BLEU -----------------------------------------------------------------------------------------


def load_bleu(data, tokenizer=None):
    """sacrebleu's BLEU (Post 2018).

    Multi30k's files are tokenized, so its words count as they are; sacrebleu would warn of it.

    tokenizer: the name of one of sacrebleu's; None: its default.
    """
    is_tokenized = data == "multi30k"
    if is_tokenized:
        tokenizer = tokenizer or "none"
    BLEU = import_optional("sacrebleu").BLEU
    if tokenizer is not None and tokenizer not in BLEU.TOKENIZERS:
        raise UserError(f"--bleu {tokenizer} is none of {', '.join(BLEU.TOKENIZERS)}")
    return BLEU(tokenize=tokenizer, force=is_tokenized)
