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

from data import MASK_PROBABILITY
from glue import token_ids
from support.commands import UserError, import_optional
from support.corpus import read_lines
from support.multi30k import FILES, read_split
from support.tokenizer import MASK
from toy.translation import toy_pairs

HELD_OUT = 200  # sources of a set that is held out (not of Multi30k)
TOY_PAIRS = 20_000  # to train on
SPAN = 3  # tokens that one [MASK] stands for in pre-training


# --- Where pairs come from ------------------------------------------------------------------------


def read_sets(data, cache_dir):
    """The sets of "toy", "multi30k" or a file, as texts."""
    if data == "multi30k":
        return {split: read_split(split, cache_dir) for split in FILES}
    if data != "toy":
        return file_sets(Path(data))
    pairs = toy_pairs(0, (0, 1), HELD_OUT + TOY_PAIRS)
    return {
        "train": pairs[HELD_OUT:],
        "dev": pairs[:HELD_OUT],
        "deep": toy_pairs(1, (2,), HELD_OUT),
    }


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
