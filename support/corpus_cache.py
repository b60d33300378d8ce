"""The folder in which a prepared corpus is kept: how it is written, checked and read.

    tokens.bin       the ids of all tokens of the corpus, one after the other      uint16
    sentences.bin    where each sentence begins in tokens.bin, and the end         int64
    documents.bin    the first sentence of each document, and the end              int64
    tokenizer.json   the tokenizer, in the format of the library "tokenizers"
    meta.json        counts, the fingerprint of the other four files, a checksum of these two

Example: a first document with the sentences "a b c" and "d e", a second one with "f". The ids of
the six words are 5 to 10.

    tokens.bin       5 6 7 8 9 10
    sentences.bin    0 3 5 6        sentence 1 is tokens[3:5]
    documents.bin    0 2 3          document 0 has the sentences 0 and 1, document 1 has sentence 2

All bytes are checked at each start. A folder that is damaged is prepared again.
"""

import hashlib
import json
import os
import re
from array import array
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

from support.commands import UserError
from support.files import delete, make_folder, rename, sha256_of, temporary_name
from support.locks import InUse, lock

# Each array file and the type of its numbers ("<" means: the lowest byte comes first).
ARRAYS = {"tokens.bin": "<u2", "sentences.bin": "<i8", "documents.bin": "<i8"}

KEY = re.compile("[0-9a-f]{16}")  # the name of the folder of a corpus

# The files that have a fingerprint, in this order.
FINGERPRINTED = ("tokenizer.json", *ARRAYS)

CHUNK = 1 << 20  # bytes of a file that are read at a time
COMPARED_PAIRS = 1 << 16  # pairs whose positions are kept in memory at a time


# --- The folder -----------------------------------------------------------------------------------


@contextmanager
def corpus_lock(folder, title, log):
    """Hold the lock of a corpus during a `with` block. Wait, with a line, if it is in use.

    So if two processes need the same corpus at the same time, only one of them prepares it.

    Args:
        folder: the Path of the corpus in the cache.
        title: what the corpus is called in messages.
        log: called with one line of text at a time.
    """
    make_folder(folder.parent)
    path = folder.with_name(f"{folder.name}.lock")
    name = f"corpus {title}"
    with ExitStack() as stack:
        try:
            stack.enter_context(lock(path, name))
        except InUse as error:
            log(f"{error}: waiting until it is free")
            stack.enter_context(lock(path, name, wait=True))
        except OSError:
            # In a cache that this user may only read, no lock can be made. None is needed to read.
            if not folder.exists():
                raise
        yield


@contextmanager
def named_in_errors(title):
    """Errors in the `with` block begin with the name of the corpus."""
    try:
        yield
    except (UserError, OSError) as error:
        raise UserError(f"corpus {title}: {error}") from None


def remove_leftovers(cache_dir):
    """Delete what killed processes left in the cache: their locks and their temporary folders."""
    for path in cache_dir.glob("*.lock"):
        # Other programs use the ending, too.
        if not KEY.fullmatch(path.stem):
            continue

        # If the lock is free, its owner has ended. `lock` removes the file when the block ends.
        # A UserError says that the lock is in use, or that it is the file of another program.
        with suppress(ValueError, OSError), lock(path, path.stem):
            delete(temporary_name(path.with_suffix("")))


def remove(folder):
    """Delete a damaged folder. A kill leaves it complete, or under its temporary name.

    Another process may be using its files. On Linux and macOS it keeps them: the content of a file
    is there until the last process has closed it.
    """
    temporary = temporary_name(folder)
    delete(temporary)
    rename(folder, temporary)
    delete(temporary)


# --- Write ----------------------------------------------------------------------------------------


def write_arrays(folder, sentences):
    """Write the three array files. Sentences and documents without tokens are left out.

    Args:
        folder: in which to write them.
        sentences: yields the bytes of the uint16 token ids of each sentence, and None at the end of
            each document.
    Returns:
        The counts {"documents", "sentences", "tokens", "pairs"}.
    """
    # where each sentence and each document begins, and the end
    sentence_starts = array("q", [0])
    document_starts = array("q", [0])
    with open(folder / "tokens.bin", "wb") as file:
        for ids in sentences:
            if ids:
                file.write(ids)
                sentence_starts.append(sentence_starts[-1] + len(ids) // 2)
            elif ids is None and len(sentence_starts) - 1 > document_starts[-1]:
                document_starts.append(len(sentence_starts) - 1)

    np.array(sentence_starts, ARRAYS["sentences.bin"]).tofile(folder / "sentences.bin")
    np.array(document_starts, ARRAYS["documents.bin"]).tofile(folder / "documents.bin")
    return {
        "documents": len(document_starts) - 1,
        "sentences": len(sentence_starts) - 1,
        "tokens": sentence_starts[-1],
        "pairs": int((np.diff(document_starts) // 2).sum()),
    }


def write_tokenizer_and_meta(folder, tokenizer, counts):
    """Complete a folder that already holds the array files: add tokenizer.json and meta.json."""
    (folder / "tokenizer.json").write_bytes(tokenizer.to_str().encode())

    # Two corpora have the same fingerprint if tokenizer, token ids, sentences and documents are
    # equal.
    digests = [sha256_of(folder / name) for name in FINGERPRINTED]
    meta = {"counts": counts, "fingerprint": fingerprint_of(digests)}
    meta["checksum"] = checksum_of(meta)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")


def fingerprint_of(digests):
    """The fingerprint of a corpus from the SHA-256 of its files, in the order of FINGERPRINTED."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def checksum_of(meta):
    """A checksum of counts and fingerprint."""
    return hashlib.sha256(json.dumps(meta).encode()).hexdigest()[:16]


# --- Held-out pairs that are also training pairs --------------------------------------------------


def count_known_pairs(folder, first_sentences, train, held_out):
    """How many held-out pairs also occur, word for word, among the training pairs.

    Two pairs are equal if both of their sentences have the same token ids. Of the token ids, only
    those of the held-out pairs are copied into memory, so the corpus may be large.

    Args:
        folder: the folder of the corpus, in which the array files are complete.
        first_sentences: (pairs,) the first sentence of each pair.
        train, held_out: (training pairs,) and (held-out pairs,) the indices of the pairs.
    """
    tokens = np.memmap(folder / "tokens.bin", ARRAYS["tokens.bin"], mode="r")
    sentence_starts = read_array(folder, "sentences.bin")

    # Look for each training pair among the held-out pairs.
    held_out_pairs = list(pairs_as_bytes(tokens, sentence_starts, first_sentences[held_out]))
    wanted = set(held_out_pairs)
    found = wanted.intersection(pairs_as_bytes(tokens, sentence_starts, first_sentences[train]))

    # A pair that is held out twice counts twice.
    return sum(1 for pair in held_out_pairs if pair in found)


def pairs_as_bytes(tokens, sentence_starts, first_sentences):
    """Yield each pair as (the length of its first sentence, the bytes of all its token ids)."""
    tokens = np.asarray(tokens)  # slices of an ordinary array are made faster
    for start in range(0, len(first_sentences), COMPARED_PAIRS):
        first = first_sentences[start : start + COMPARED_PAIRS]
        begins = sentence_starts[first].tolist()
        middles = sentence_starts[first + 1].tolist()
        ends = sentence_starts[first + 2].tolist()
        for begin, middle, end in zip(begins, middles, ends, strict=True):
            yield middle - begin, tokens[begin:end].tobytes()


def read_array(folder, name):
    """The numbers of an array file, in memory."""
    return np.fromfile(folder / name, ARRAYS[name])


# --- Read -----------------------------------------------------------------------------------------


class PreparedCorpus(NamedTuple):
    """What the files of a prepared corpus hold."""

    counts: dict  # {"documents", "sentences", "tokens", "pairs", "known"}
    fingerprint: str
    tokenizer: Tokenizer
    token_file: "TokenFile"
    sentence_starts: np.ndarray  # (sentences + 1,)
    document_starts: np.ndarray  # (documents + 1,)


def load_if_intact(folder, log):
    """The PreparedCorpus of a folder. None if there is no folder, or if it was damaged.

    Before it returns None, it deletes a damaged folder, with a line of text for log(), and what
    killed processes left in the cache.
    """
    # A broken link is damaged, too.
    if os.path.lexists(folder):
        try:
            return load(folder)
        except UserError as error:
            log(f"{error}: it is prepared again")
            remove(folder)
    remove_leftovers(folder.parent)
    return None


def load(folder):
    """Read a prepared corpus and check it.

    Returns:
        A PreparedCorpus.

    Raises:
        UserError: the folder is damaged.
        OSError: a file cannot be read.
    """
    try:
        return load_checked(folder)
    except (OSError, MemoryError):
        raise  # this says nothing about the content of the files
    except Exception as error:  # the tokenizers library raises a plain Exception
        raise UserError(f"the corpus prepared in {folder} is damaged ({error})") from None


def load_checked(folder):
    """The PreparedCorpus of a folder. Raises an exception of any kind if the folder is damaged."""
    # Five ordinary files. A pipe under one of these names would block.
    for name in ("meta.json", *FINGERPRINTED):
        if not (folder / name).is_file():
            raise UserError(f"no file {name}")

    # meta.json is what was written.
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    checksum = meta.pop("checksum", None)
    if checksum != checksum_of(meta):
        raise UserError("wrong checksum of meta.json")

    # Only the token ids stay on disk: they may be larger than the memory. If the folder is damaged,
    # their file is closed, because Windows cannot delete an open file.
    token_file = TokenFile(folder / "tokens.bin")
    try:
        corpus = read_corpus(folder, meta, token_file)
        check_consistency(corpus)
    except BaseException:
        token_file.close()
        raise
    return corpus


def read_corpus(folder, meta, token_file):
    """The PreparedCorpus of a folder. Raises UserError if its files are not what was written.

    Args:
        folder: of the corpus.
        meta: what meta.json holds.
        token_file: the TokenFile.
    """
    tokenizer_json = (folder / "tokenizer.json").read_bytes()
    sentences = (folder / "sentences.bin").read_bytes()
    documents = (folder / "documents.bin").read_bytes()
    digests = [
        hashlib.sha256(tokenizer_json).hexdigest(),
        token_file.digest,
        hashlib.sha256(sentences).hexdigest(),
        hashlib.sha256(documents).hexdigest(),
    ]
    if fingerprint_of(digests) != meta["fingerprint"]:
        raise UserError("its files do not have the fingerprint in meta.json")

    # Only now the library may read the tokenizer: a damaged one can make it panic.
    return PreparedCorpus(
        counts=meta["counts"],
        fingerprint=meta["fingerprint"],
        tokenizer=Tokenizer.from_str(tokenizer_json.decode()),
        token_file=token_file,
        sentence_starts=np.frombuffer(sentences, ARRAYS["sentences.bin"]),
        document_starts=np.frombuffer(documents, ARRAYS["documents.bin"]),
    )


def check_consistency(corpus):
    """Raise an exception if the parts of a prepared corpus do not fit together."""
    token_count, largest_token = size_and_largest(corpus.token_file)
    sentence_starts = corpus.sentence_starts
    document_starts = corpus.document_starts

    # There must be as many documents, sentences, ... as were counted when they were written.
    sizes = {
        "documents": len(document_starts) - 1,
        "sentences": len(sentence_starts) - 1,
        "tokens": token_count,
        "pairs": int((np.diff(document_starts) // 2).sum()),
    }
    for name, size in sizes.items():
        if size != corpus.counts[name]:
            raise UserError(f"{name}: {size}, not {corpus.counts[name]}")

    # Each sentence begins after the one before it, and the last one ends with the last token. The
    # same is true of documents and sentences.
    check_starts("sentence", sentence_starts, token_count)
    check_starts("document", document_starts, sizes["sentences"])

    # Every id is one of the tokenizer's.
    if largest_token >= corpus.tokenizer.get_vocab_size():
        raise UserError("a token id is not in the vocabulary")


def size_and_largest(token_file):
    """How many token ids there are, and the largest one.

    A function of its own, so that no variable of an error's traceback keeps the file open.
    """
    tokens = token_file.array()
    return len(tokens), int(tokens.max())


def check_starts(name, starts, end):
    """UserError if `starts` does not begin at 0, increase and finish with `end`."""
    if starts[0] != 0 or starts[-1] != end or np.diff(starts).min() < 1:
        raise UserError(f"a {name} begins or ends in the wrong place")


# --- The token ids --------------------------------------------------------------------------------


class TokenFile:
    """The token ids of a corpus: an array that stays on disk (memory-mapped), and its SHA-256.

    Another program may truncate the file or write into it while it is in use. `array` checks the
    size and the modification time of the file. If one of them has changed, it checks the content.

    Two things are not noticed. If the file is truncated between this check and the use of the
    array, the operating system ends Python (signal SIGBUS, "bus error"). And a change of the
    content that leaves size and time as they are, such as a defect of the disk, is found only at
    the next start.
    """

    def __init__(self, path):
        # The file stays open: its size is checked before each use.
        self.path = path
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115
        self.mapped = None  # the array, from the first use on
        try:
            self.state = self.current_state()
            self.digest = self.current_digest()
        except BaseException:
            self.close()
            raise

    def close(self):
        """Close the file. The array must not be used any more."""
        self.mapped = None
        self.file.close()

    def array(self):
        """(tokens,) the token ids, to be used at once.

        Raises:
            UserError: the file was changed.
        """
        state = self.current_state()  # about 1 microsecond
        if state != self.state:
            if self.current_digest() != self.digest:
                raise UserError(
                    f"{self.path} was changed or cut by another program: start again, "
                    f"and the corpus is prepared again"
                )
            self.state = state

        # An ordinary array over the same memory: slices are made faster than those of np.memmap.
        if self.mapped is None:
            self.mapped = np.asarray(np.memmap(self.file, ARRAYS["tokens.bin"], mode="r"))
        return self.mapped

    def current_state(self):
        """Size and modification time of the file."""
        status = os.fstat(self.file.fileno())
        return status.st_size, status.st_mtime_ns

    def current_digest(self):
        """The SHA-256 of the file."""
        # A bar shows the progress where this takes more than a second.
        digest = hashlib.sha256()
        self.file.seek(0)
        with tqdm(
            total=self.current_state()[0],
            desc="checking",
            unit="B",
            unit_scale=True,
            delay=1,
            leave=False,
            disable=None,
        ) as bar:
            while True:
                chunk = self.file.read(CHUNK)
                if not chunk:
                    return digest.hexdigest()
                digest.update(chunk)
                bar.update(len(chunk))
