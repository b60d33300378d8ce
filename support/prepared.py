"""A prepared corpus: a text as token ids, in a folder of the cache, made once.

    prepared_folder    the folder of a text: it is there, or it is made now
    choose_held_out    which of its pairs of sentences are not trained on
    load_corpus        what is in the folder

It holds four files:

    tokens.bin       the ids of all tokens of the corpus, one after the other      uint16
    sentences.bin    where each sentence begins in tokens.bin, and the end         int64
    tokenizer.json   the tokenizer, in the format of the library "tokenizers"
    meta.json        counts, the held-out pairs, and the fingerprint of the other three files

Example: the sentences "a b c", "d e" and "f". The ids of the six words are 5 to 10.

    tokens.bin       5 6 7 8 9 10
    sentences.bin    0 3 5 6        sentence 1 is tokens[3:5]
"""

import hashlib
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from support.code import ROOT, digest_of, digests_of
from support.commands import UserError, say_once
from support.corpus import (
    WIKITEXT,
    each_once,
    find_text_files,
    read_paragraphs,
    say_layouts,
    sentences_of,
    wikitext_paragraphs,
)
from support.files import download, new_folder, sha256_of
from support.tokenizer import (
    LARGE_TEXT,
    SMALL_VOCABULARY,
    SPECIAL_TOKENS,
    UNK,
    VOCABULARY_SIZE,
    Encoder,
    sample_text,
    train_tokenizer,
)

# The code by which a text is prepared: if it changes, every corpus is prepared again.
PREPARED_BY = ("support/prepared.py", "support/corpus.py", "support/tokenizer.py")

TOY = ROOT / "toy" / "text.txt.xz"  # a sentence per line

# Each array file and the type of its numbers ("<" means: the lowest byte comes first).
ARRAYS = {"tokens.bin": "<u2", "sentences.bin": "<i8"}


# --- From text to token ids -----------------------------------------------------------------------


def prepared_folder(names, cache_dir, vocab_size=None, tokenizer=None):
    """The folder of a text, which is prepared now unless it is there. Arguments: prepare_corpus.

    The cache recognises text files by their path, size and modification time, WikiText by its
    SHA-256.
    """
    # what to read: names of built-in corpora, and Paths of text files
    sources = []
    for name in names:
        if name == "toy":
            sources.append(TOY)
        elif name in WIKITEXT:
            sources.append(name)
        else:
            sources += [path.absolute() for path in find_text_files(name)]
    sources = each_once(sources)

    if tokenizer is not None:
        vocab_size = tokenizer.get_vocab_size()
    elif vocab_size is None:
        is_small = sum(map(size_of, sources)) < LARGE_TEXT
        vocab_size = SMALL_VOCABULARY if is_small else VOCABULARY_SIZE

    # Token ids are stored in 16 bits.
    if vocab_size > 1 << 16:
        raise UserError(f"a vocabulary has at most {1 << 16:,} tokens, not {vocab_size:,}")

    # Each corpus has its own folder in the cache. The name of the folder is a hash of everything
    # that the corpus depends on. The length of the sequences is not part of it, because pairs are
    # cut only when they are used.
    identity = [identity_of(source) for source in sources]

    code = [digests_of(file) for file in PREPARED_BY]
    given = tokenizer and tokenizer.to_str()
    folder = Path(cache_dir) / digest_of([code, vocab_size, given, identity])

    title = ", ".join(names)
    with new_folder(folder, is_whole) as new:
        if new is not None:  # otherwise it is there, or another process has prepared it meanwhile
            print(f"preparing {title}, once, in {folder}")
            fill_cache(sources, new, vocab_size, tokenizer)
    return folder


def size_of(source):
    """The bytes of a source; of packed text those of the packed file."""
    return WIKITEXT[source][2] if source in WIKITEXT else source.stat().st_size


def identity_of(source):
    """A value by which the cache recognises a source. It changes if the text changes."""
    if source in WIKITEXT:
        return WIKITEXT[source][1]  # its SHA-256
    state = source.stat()
    return [str(source.resolve()), state.st_size, state.st_mtime_ns]


def fill_cache(sources, folder, vocab_size, tokenizer=None):
    """Prepare a corpus in an empty folder.

    The text is read paragraph by paragraph, so it does not have to fit in memory: once for the
    tokenizer, unless one is given, and once for the token ids.
    """

    def with_bar(what):
        """The paragraphs of all sources, with one progress bar."""
        paragraphs = read_text(sources, folder)
        return tqdm(paragraphs, what, unit=" paragraphs", unit_scale=True, disable=None)

    # the two readings
    before = [identity_of(source) for source in sources]
    say_layouts(source for source in sources if isinstance(source, Path))
    if tokenizer is None:
        tokenizer = train_tokenizer(sample_text(with_bar("vocabulary")), vocab_size)
    counts = write_arrays(folder, sentences_of(with_bar("token ids")), tokenizer)
    for source, state in zip(sources, before, strict=True):
        if identity_of(source) != state:
            print(
                f"warning: {source} has changed while it was read: start again when it is complete"
            )

    # is it enough?
    if counts["sentences"] < 4:
        raise UserError(
            f"too little text: {counts['sentences']} sentences; at least 4 are needed, a pair to "
            "train on and one to hold out"
        )

    # the file that says that the folder is complete comes last
    held_out, counts["in_both"] = choose_held_out(*read_arrays(folder))
    write_meta(folder, tokenizer, counts, held_out)


def read_text(sources, folder):
    """Yield the paragraphs of all sources one by one. Downloads are kept beside the folder."""
    for source in sources:
        if source in WIKITEXT:
            url, digest, _ = WIKITEXT[source]
            path = download(url, folder.parent / "downloads" / f"{source}.zip", digest)
            yield from wikitext_paragraphs(path)
        else:
            yield from read_paragraphs(source)


# --- Held out: pairs that are not trained on ------------------------------------------------------

# This share of all pairs is held out for evaluation, but never more than HELD_OUT_PAIRS. They are
# chosen in blocks of up to HELD_OUT_BLOCK consecutive pairs.
HELD_OUT_SHARE = 0.02
HELD_OUT_PAIRS = 2_048
HELD_OUT_BLOCK = 32


def train_and_held_out(count):
    """Which of `count` pairs are for training, and which are held out; at least one of each.

    About HELD_OUT_SHARE of the pairs are held out, at most HELD_OUT_PAIRS. The choice depends on
    `count` only.

    Why blocks of HELD_OUT_BLOCK consecutive pairs? The pairs before and after a pair are mostly
    from the same text. If single pairs were held out, both neighbours would be training pairs,
    and the held-out loss would be lower than that of a new text. There are many blocks, so that
    they come from all parts of the text.

    Example (smaller than in reality): 8 pairs in blocks of 2, 2 blocks held out.

        blocks      0 1 | 2 3 | 4 5 | 6 7
        permuted    blocks 2, 0, 1, 3; the first two are held out
        held out    0 1 4 5
        train       2 3 6 7

    Returns:
        (train, held_out): two arrays of indices in ascending order.
    """
    # How many pairs to hold out, and how many of them form a block: there should be at least 8
    # blocks, if possible.
    target = int(count * HELD_OUT_SHARE)
    target = max(1, min(HELD_OUT_PAIRS, target))
    block_size = max(1, min(HELD_OUT_BLOCK, target // 8))

    # Choose the blocks: the first ones of a fixed permutation.
    blocks = np.random.default_rng(0).permutation(count // block_size)
    chosen = blocks[: target // block_size]

    # The pairs of block b are b * block_size, b * block_size + 1, ...
    pairs = chosen[:, None] * block_size + np.arange(block_size)  # (chosen blocks, block_size)
    is_held_out = np.zeros(count, dtype=bool)
    is_held_out[pairs.ravel()] = True
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


# Held-out pairs that also occur in training are dropped if at least so many others remain.
LEAST_HELD_OUT = 32


def choose_held_out(tokens, sentence_starts):
    """The held-out pairs of a corpus: those of train_and_held_out that do not occur in training.

    A model may know a pair by heart that it was trained on, so its loss says nothing about a new
    text. In the toy language 12 % of the chosen pairs occur in training, in a folder of licences
    65 %. Two pairs are equal if both of their sentences have the same token ids.

    If fewer than LEAST_HELD_OUT would remain, all chosen pairs stay.

    Args:
        tokens: (tokens,) the ids of all tokens.
        sentence_starts: (sentences + 1,) where each sentence begins, and the end.

    Returns:
        (held_out, in_both): the numbers of the held-out pairs, a list of int in ascending order,
        and how many of the chosen ones occur in training.
    """
    train, chosen = train_and_held_out((len(sentence_starts) - 1) // 2)

    def contents(pairs):
        """Yield the length of the first sentence and the bytes of all token ids of each pair.

        The length, because the same tokens may be two other sentences.
        """
        for pair in pairs:
            begin, middle, end = sentence_starts[2 * pair : 2 * pair + 3]
            yield middle - begin, tokens[begin:end].tobytes()

    # Only the chosen pairs are kept in memory. It is a list: two equal pairs count as two.
    contents_of_chosen = list(contents(chosen))
    in_training = set(contents_of_chosen).intersection(contents(train))
    is_in_both = np.array([content in in_training for content in contents_of_chosen])

    new = chosen[~is_in_both]
    held_out = new if len(new) >= LEAST_HELD_OUT else chosen
    return held_out.tolist(), int(is_in_both.sum())


# --- The files of the folder ----------------------------------------------------------------------


def write_arrays(folder, sentences, tokenizer):
    """Write the token ids of all sentences to the two array files. Empty sentences are left out.

    Sentence by sentence: a text need not fit into memory, and neither do its ids.

    Returns the counts {"sentences", "tokens", "unknown"}; unknown tokens are [UNK]. And "unseen":
    the ids of the pieces that occur nowhere, so that a model cannot learn them.
    """
    encode = Encoder(tokenizer)
    is_seen = np.zeros(tokenizer.get_vocab_size(), dtype=bool)
    is_seen[: len(SPECIAL_TOKENS)] = True
    counts = {"sentences": 0, "tokens": 0, "unknown": 0}
    with (
        open(folder / "tokens.bin", "wb") as tokens,
        open(folder / "sentences.bin", "wb") as starts,
    ):
        starts.write((0).to_bytes(8, "little"))
        for sentence in sentences:
            ids = encode(sentence)
            if len(ids) == 0:
                continue
            tokens.write(ids.astype(ARRAYS["tokens.bin"]))
            counts["sentences"] += 1
            counts["tokens"] += len(ids)
            counts["unknown"] += int(np.count_nonzero(ids == UNK))
            is_seen[ids] = True

            # the end of this sentence is where the next one begins
            starts.write(counts["tokens"].to_bytes(8, "little"))
    return {**counts, "unseen": np.flatnonzero(~is_seen).tolist()}


def read_arrays(folder):
    """(tokens, sentence_starts), which stay on disk (memory-mapped)."""
    # Ordinary arrays over the same memory: slices are made faster than those of np.memmap.
    return [np.asarray(np.memmap(folder / name, kind, mode="r")) for name, kind in ARRAYS.items()]


def write_meta(folder, tokenizer, counts, held_out):
    """Complete a folder that already holds the array files: add tokenizer.json and meta.json.

    held_out: list of the numbers of the held-out pairs (choose_held_out).
    """
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    digests = {name: sha256_of(folder / name) for name in ("tokenizer.json", *ARRAYS)}
    fingerprint = hashlib.sha256("".join(digests.values()).encode()).hexdigest()[:16]
    meta = {
        "counts": counts,
        "fingerprint": fingerprint,
        "digests": digests,
        "held_out": held_out,
    }
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def is_whole(folder):
    """Whether a folder holds a prepared corpus. A line names a file that was cut or damaged.

    A disk may fail, and a copy may be cut: the ids that are missing then would read as [PAD].
    """
    if not folder.exists():
        return False
    try:
        digests = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["digests"]
        damaged = [name for name in digests if sha256_of(folder / name) != digests[name]]
    except (ValueError, KeyError, FileNotFoundError):
        damaged = ["meta.json"]
    if damaged:
        say_once(f"{folder / damaged[0]} is damaged: the text is prepared again")
    return not damaged


def load_corpus(folder):
    """(meta, tokenizer, arrays) of a prepared corpus."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    return meta, Tokenizer.from_file(str(folder / "tokenizer.json")), read_arrays(folder)
