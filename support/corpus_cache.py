"""The folder in which a prepared corpus is kept: how it is written, completed and read.

    tokens.bin       the ids of all tokens of the corpus, one after the other      uint16
    sentences.bin    where each sentence begins in tokens.bin, and the end         int64
    documents.bin    the first sentence of each document, and the end              int64
    tokenizer.json   the tokenizer, in the format of the library "tokenizers"
    meta.json        the counts of documents, sentences, tokens and pairs; the fingerprint

Example: a first document with the sentences "a b c" and "d e", a second one with "f". The ids of
the six words are 5 to 10.

    tokens.bin       5 6 7 8 9 10
    sentences.bin    0 3 5 6        sentence 1 is tokens[3:5]
    documents.bin    0 2 3          document 0 has the sentences 0 and 1, document 1 has sentence 2
"""

import hashlib
import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from support.files import sha256_of

# Each array file and the type of its numbers ("<" means: the lowest byte comes first).
ARRAYS = {"tokens.bin": "<u2", "sentences.bin": "<i8", "documents.bin": "<i8"}


# --- Write ----------------------------------------------------------------------------------------


@contextmanager
def new_folder(folder):
    """Give the `with` block a temporary folder that becomes `folder` if the block succeeds.

    A folder of this name is therefore always complete. If two processes prepare the same corpus at
    the same time, the first one to finish wins, and the other one uses its result.
    """
    # Make the temporary folder in the cache too: a folder can only be renamed on the same disk.
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=folder.name, ignore_cleanup_errors=True
    ) as temporary:
        new = Path(temporary, "corpus")
        new.mkdir()

        # The block fills the folder. If it fails, the temporary folder is deleted.
        yield new

        try:
            os.replace(new, folder)
        except OSError:
            # If the folder exists now, another process was faster.
            if not folder.exists():
                raise


@contextmanager
def token_writer(folder):
    """Give the `with` block a TokenWriter of this folder's three array files."""
    with (
        open(folder / "tokens.bin", "wb") as token_file,
        open(folder / "sentences.bin", "wb") as sentence_file,
        open(folder / "documents.bin", "wb") as document_file,
    ):
        writer = TokenWriter(token_file, sentence_file, document_file)
        yield writer
        writer.write_ends()


class TokenWriter:
    """Writes the token ids of a corpus, one sentence after the other.

    `counts` holds the number of documents, sentences, tokens and pairs written so far.
    """

    def __init__(self, token_file, sentence_file, document_file):
        self.token_file = token_file
        self.sentence_file = sentence_file
        self.document_file = document_file
        self.counts = {"documents": 0, "sentences": 0, "tokens": 0, "pairs": 0}
        self.first_sentence = 0  # of the current document

    def add_sentence(self, ids):
        """Add a sentence to the current document; `ids` are the bytes of its uint16 token ids."""
        # A sentence without tokens is left out.
        if not ids:
            return
        self.sentence_file.write(as_int64(self.counts["tokens"]))
        self.token_file.write(ids)
        self.counts["sentences"] += 1
        self.counts["tokens"] += len(ids) // 2

    def end_document(self):
        """End the current document. The next sentence begins another one."""
        # A document without sentences is left out.
        sentences = self.counts["sentences"] - self.first_sentence
        if sentences == 0:
            return
        self.document_file.write(as_int64(self.first_sentence))
        self.counts["documents"] += 1
        self.counts["pairs"] += sentences // 2
        self.first_sentence = self.counts["sentences"]

    def write_ends(self):
        """Write the end of the last sentence and of the last document."""
        self.sentence_file.write(as_int64(self.counts["tokens"]))
        self.document_file.write(as_int64(self.counts["sentences"]))


def as_int64(number):
    """The 8 bytes of an integer in the array files."""
    return number.to_bytes(8, "little")


def write_tokenizer_and_meta(folder, tokenizer, counts):
    """Complete a folder that already holds the array files: add tokenizer.json and meta.json."""
    (folder / "tokenizer.json").write_bytes(tokenizer.to_str().encode())

    # The fingerprint is equal for two corpora if tokenizer and token ids are equal.
    digests = ""
    for name in ("tokenizer.json", *ARRAYS):
        digests += sha256_of(folder / name)
    fingerprint = hashlib.sha256(digests.encode()).hexdigest()[:16]

    meta = {"counts": counts, "fingerprint": fingerprint}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


# --- Read -----------------------------------------------------------------------------------------


def load(folder):
    """Read a prepared corpus.

    Returns:
        (meta, tokenizer, tokens, sentence_starts, document_starts): meta is a dict with "counts"
        and "fingerprint"; the last three are numpy arrays, memory-mapped: only what is used is
        read from disk.

    Raises:
        ValueError: the folder is damaged.
    """
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        arrays = [memory_map(folder / name, dtype) for name, dtype in ARRAYS.items()]
        tokens, sentence_starts, document_starts = arrays
        check_consistency(meta, tokenizer, tokens, sentence_starts, document_starts)
    except Exception:  # the tokenizers library raises a plain Exception
        raise ValueError(
            f"the corpus prepared in {folder} is damaged: delete this folder, start again"
        ) from None
    return meta, tokenizer, tokens, sentence_starts, document_starts


def memory_map(path, dtype):
    """The numbers of a file as a read-only array that stays on disk."""
    # An ordinary array over the same memory: its slices are made faster than those of np.memmap.
    return np.asarray(np.memmap(path, dtype, mode="r"))


def check_consistency(meta, tokenizer, tokens, sentence_starts, document_starts):
    """Raise an exception if the files of a prepared corpus do not fit together."""
    # The lengths of the files are those that were counted when they were written.
    counts = meta["counts"]
    sizes = {
        "tokens": len(tokens),
        "sentences": len(sentence_starts) - 1,
        "documents": len(document_starts) - 1,
    }
    for name, size in sizes.items():
        if size != counts[name]:
            raise ValueError(f"{name}: {size}, not {counts[name]}")

    # The last sentence ends with the last token, and the last document with the last sentence.
    if sentence_starts[-1] != counts["tokens"] or document_starts[-1] != counts["sentences"]:
        raise ValueError("the last sentence or document ends in the wrong place")

    # Every id is one of the tokenizer's.
    if tokens.max() >= tokenizer.get_vocab_size():
        raise ValueError("a token id is not in the vocabulary")

    if "fingerprint" not in meta:
        raise ValueError("no fingerprint")
