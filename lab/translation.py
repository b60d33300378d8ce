"""Pairs of sentences for lab/seq2seq.py: where they come from, their tokens, and BLEU.

    toy         sentences of the toy language, and the same in a language with another word order
    multi30k    descriptions of pictures, English and German (Elliott et al. 2016), downloaded once
    FILE.tsv    lines `source TAB target` of one's own

The toy translation. A sentence is made from its meaning (toy/language.py), and so is its
translation. In the other language the verb is last, what describes a noun comes before it, an
object is marked by "o", and words are spelled backwards:

    the dog that followed the cats scared anna      followed: the dog is its subject
    eht stac o dewollof eht god anna o deracs

Sentences to train on have at most one relative clause. Two sets are held out: `dev` has other
sentences of this kind, and in `deep` a relative clause has another one inside.
"""

import hashlib
from pathlib import Path
from random import Random
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from data import MASK_PROBABILITY
from support.commands import UserError
from support.corpus import read_lines
from support.files import download
from support.tokenizer import MASK, SPECIAL_TOKENS
from toy.language import EVENT_VERBS, Event, Story, clause, join, modified_by, noun_word

HELD_OUT = 200  # pairs of a set that is held out (not of Multi30k)
TOY_PAIRS = 20_000  # to train on
VOCABULARY_SIZE = 10_000  # pieces of both languages, at most
SPAN = 3  # tokens that one [MASK] stands for in pre-training

# Verbs whose subject and object may be anybody, so that a noun fits into every clause.
VERBS = [verb for verb in EVENT_VERBS if verb.agents == verb.patients == "animate"]

# Task 1 of Multi30k, tokenized and lower-cased, and the SHA-256 of its files.
MULTI30K_URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/tok/"
)
MULTI30K = {  # of each split, the English and the German file
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


class Pairs(NamedTuple):
    """Pairs (source, target) of texts, or of lists of token ids."""

    train: list
    held_out: dict  # {name of a set: its pairs}

    def digest(self):
        """Equal for equal pairs: 12 hexadecimal digits."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]


def read_pairs(data, cache_dir):
    """The Pairs of "toy", "multi30k" or a file."""
    if data == "toy":
        pairs = hold_out(toy_pairs(0, (0, 1), HELD_OUT + TOY_PAIRS))
        pairs.held_out["deep"] = toy_pairs(1, (2,), HELD_OUT)
        return pairs
    if data == "multi30k":
        train, val, test = (multi30k(split, cache_dir) for split in MULTI30K)
        return Pairs(train, {"val": val, "test": test})
    return hold_out(file_pairs(Path(data)))


def hold_out(pairs):
    """The Pairs of a list, whose first ones are held out."""
    return Pairs(pairs[HELD_OUT:], {"dev": pairs[:HELD_OUT]})


# --- Multi30k, and files of one's own -------------------------------------------------------------


def multi30k(split, cache_dir):
    """The pairs of "train", "val" or "test_2016_flickr"."""
    columns = []
    for language, digest in zip(("en", "de"), MULTI30K[split], strict=True):
        name = f"{split}.lc.norm.tok.{language}"
        path = download(MULTI30K_URL + name, cache_dir / "downloads" / "multi30k" / name, digest)
        columns.append(list(read_lines(path)))
    return list(zip(*columns, strict=True))


def file_pairs(path):
    """The pairs of a file with the lines `source TAB target`, each once, in random order."""
    pairs = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        columns = [column.strip() for column in line.split("\t")]
        if len(columns) != 2 or not all(columns):
            raise UserError(f"{path}, line {number} is not `source TAB target`")
        pairs[tuple(columns)] = None
    if len(pairs) <= HELD_OUT:
        raise UserError(f"{path} has {len(pairs)} different pairs; {HELD_OUT} are held out")
    pairs = list(pairs)
    Random(0).shuffle(pairs)
    return pairs


# --- The toy translation --------------------------------------------------------------------------


def toy_pairs(seed, depths, count):
    """`count` different pairs, each with one of these numbers of relative clauses."""
    random = Random(seed).random
    pairs = {}
    while len(pairs) < count:
        depth = depths[int(len(depths) * random())]
        event = new_event(Story(random), depth)
        pairs[clause(event), foreign_clause(event)] = None
    return list(pairs)


def new_event(story, depth, who=None):
    """An Event in which `who`, or somebody new, takes part; `depth` relative clauses in a chain.

    "the dog scared anna"; with depth 1 "the dog that followed the cats scared anna"
    """
    who = who or story.new_entity(definite=False)
    other = story.new_entity(definite=False, named=depth == 0)
    if depth > 0:
        other = modified_by(other, new_event(story, depth - 1, other))
    subject, object = story.pick_two((who, other))
    return Event(subject, story.pick(VERBS), object, story.past)


def foreign_clause(event):
    """An event in the other language: subject, object, verb. A gap, None, has no words."""
    subject = foreign_phrase(event.subject)
    object = foreign_phrase(event.object, mark="o")
    verb = event.verb.past if event.past else event.verb.base
    return join(subject, object, verb[::-1])


def foreign_phrase(entity, mark=""):
    """A noun phrase in the other language: relative clause, adjectives, determiner, noun, mark."""
    if entity is None:
        return ""
    relative = ""
    if entity.modifier is not None:
        relative = foreign_clause(entity.modifier)
    words = [*entity.adjectives, entity.determiner, noun_word(entity)]
    return join(relative, *(word[::-1] for word in words), mark)


# --- Tokens ---------------------------------------------------------------------------------------


def train_bpe(texts):
    """A tokenizer of pieces for both languages, by byte-pair encoding (Sennrich et al. 2016).

    Words are what spaces separate. The first piece of a word begins with the mark of a space, so
    decoding gives the words back: "\u2581under" "\u2581a" "\u2581tre" "e" is "under a tree".
    """
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer, texts):
    """The token ids of each text, without special tokens."""
    return [each.ids for each in tokenizer.encode_batch(texts, add_special_tokens=False)]


def encode_pairs(tokenizer, pairs, longest):
    """(Pairs of texts, the same of token ids), without those of more than `longest` tokens."""
    kept = {}
    encoded = {}
    for name, texts in {"train": pairs.train, **pairs.held_out}.items():
        columns = [encode(tokenizer, column) for column in zip(*texts, strict=True)]
        kept[name] = []
        encoded[name] = []
        for pair, ids in zip(texts, zip(*columns, strict=True), strict=True):
            if max(map(len, ids)) <= longest - 2:  # with [CLS] and [SEP]
                kept[name].append(pair)
                encoded[name].append(ids)

        left_out = len(texts) - len(kept[name])
        if left_out > 0:
            print(f"{name}: {left_out:,} pairs of more than {longest} tokens are left out")
        if not kept[name]:
            raise UserError(f"{name}: no pair is left")
    return Pairs(kept.pop("train"), kept), Pairs(encoded.pop("train"), encoded)


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
            source += span
    return source, target


def spans_of(pairs, seed):
    """The Pairs of pre-training: `remove_spans` of the texts of both languages, in random order."""
    random = Random(seed)
    texts = [ids for pair in pairs for ids in pair]
    random.shuffle(texts)
    return hold_out([remove_spans(ids, random) for ids in texts])


# --- BLEU -----------------------------------------------------------------------------------------


def load_bleu():
    """sacrebleu's BLEU on words as they are, which spaces separate (Post 2018)."""
    try:
        import sacrebleu
    except ImportError:
        raise UserError("BLEU needs a package: pip install sacrebleu") from None
    return sacrebleu.BLEU(tokenize="none", force=True)


def bleu(translations, references):
    """BLEU in per cent: one reference for each translation."""
    assert len(translations) == len(references)
    return load_bleu().corpus_score(translations, [references]).score
