"""From text to masked batches, one way:

    text -> documents -> sentences -> token ids -> pairs -> batch(seed, step) -> masks

Token ids are made once a corpus and kept in a folder of the cache, from where they are memory-mapped: `tokens.bin` holds all of
them in one row, `sentences.bin` where each sentence begins, `documents.bin` each document's first sentence. An example is
[CLS] sentence [SEP] next sentence [SEP], as in Chang et al. 2021. The text is streamed, twice: for the tokenizer's sample and
for the ids; it is never in memory at once.

    corpus = prepare_corpus(["toy"], "cache", seq_len=64)
    input_ids = corpus.batch(seed=0, step=0, batch_size=64)                                    # (B, N)
    masked_ids, labels = mask_tokens(input_ids, corpus.vocab_size, torch.Generator())          # (B, N) both
"""

import gzip
import hashlib
import http.client
import io
import json
import lzma
import os
import re
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tqdm import tqdm

import toy

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # by id; every id from len(SPECIAL) on is an ordinary piece
VOCABULARY = 30_004  # 30,000 unigram pieces, [UNK] among them, and four marks
WHOLE_WORDS = 1_000  # a language of no more word forms than this keeps each in one piece
SAMPLE = 32_000_000  # characters of text, at most, from which a tokenizer is trained
LINE = 1 << 20  # characters; a longer line is read as several
WIDTH_STEP = 8  # batches are as wide as a multiple of this: few shapes, little padding
POOL = 50  # batches' worth of pairs that are sorted by length together
HELD_OUT_SHARE, HELD_OUT_PAIRS, HELD_OUT_BLOCK = 0.02, 2_048, 32
PREPARATION = 1  # to be raised by whoever changes what the cache holds


# --- Downloads ---------------------------------------------------------------------------------------------------------

USER_AGENT = "bert-convolution/1.0"  # some mirrors refuse Python's own
ATTEMPTS = 3  # at one mirror, as long as each brings something


class Download(NamedTuple):
    """A published file: mirrors in the order in which to try them, size in bytes, SHA-256."""
    urls: tuple
    size: int
    sha256: str


WIKITEXT = {
    "wikitext-2": Download(
        ("https://wikitext.smerity.com/wikitext-2-raw-v1.zip",),
        4_721_645, "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11"),
    "wikitext-103": Download(
        ("https://huggingface.co/datasets/mattdangerw/wikitext-103-raw/resolve/3555105b17ae31cc619a136fac72dbe2865c3738/"
         "wikitext-103-raw-v1.zip", "https://wikitext.smerity.com/wikitext-103-raw-v1.zip"),
        191_984_949, "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794"),
}
BUILT_IN = ("toy", *WIKITEXT)


class BrokenDownload(Exception):
    """One attempt failed for a reason of the network or of the server; another one may not."""


def file_sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(url, part, size, timeout):
    """One attempt to complete `part`, a file of `size` bytes, from where it ends. Raises BrokenDownload."""
    done = part.stat().st_size if part.exists() else 0
    if done == size:
        return
    headers = {"User-Agent": USER_AGENT} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
        raise BrokenDownload(error) from None
    with response:
        if response.status != 206:  # the whole file, whatever was asked for
            done = 0
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):
            raise BrokenDownload("the server sent another range than asked for")
        if response.length is not None and done + response.length != size:
            raise BrokenDownload(f"the file there has {done + response.length:,} bytes, not {size:,}")
        with (open(part, "ab" if done else "wb", buffering=0) as file,
              tqdm(total=size, initial=done, desc=part.stem, unit="B", unit_scale=True, disable=None) as bar):
            while done < size:
                try:
                    chunk = response.read(min(1 << 18, size - done))
                except (OSError, http.client.HTTPException) as error:
                    raise BrokenDownload(error) from None
                if not chunk:
                    raise BrokenDownload(f"the connection ended after {done:,} of {size:,} bytes")
                if os.fstat(file.fileno()).st_size != done:
                    raise OSError(f"another process is downloading {part}: wait for it to end, then start again")
                done += file.write(chunk)
                bar.update(len(chunk))


def download(urls, path, size, sha256, timeout=30):
    """Bring the file published at `urls` (mirrors, in order) to `path`, unless it is there; returns the Path.

    It grows as `path`.part, from which a broken download goes on, and takes its name once size (bytes) and SHA-256 agree. A part
    with the wrong checksum is deleted. `timeout`: seconds without a byte. Raises OSError, saying what to do by hand, when no
    mirror gives the file; ValueError when `path` exists and is another file.
    """
    path = Path(path)
    if path.exists():
        if path.stat().st_size == size and file_sha256(path) == sha256:
            return path
        raise ValueError(f"{path} is not the published file, its size or SHA-256 differs: delete it and start again")
    path.parent.mkdir(parents=True, exist_ok=True)
    part, failures = path.with_name(path.name + ".part"), {}
    if part.exists() and part.stat().st_size > size:
        part.unlink()
    for url in urls:
        for _ in range(ATTEMPTS):
            before = part.stat().st_size if part.exists() else 0
            try:
                fetch(url, part, size, timeout)
            except BrokenDownload as error:
                failures[url] = str(error)
                if part.exists() and part.stat().st_size > before:
                    continue
                break
            if file_sha256(part) == sha256:
                os.replace(part, path)
                return path
            part.unlink()
            failures[url] = "wrong SHA-256, what came was deleted"
            if before == 0:  # else what had come earlier may have been at fault
                break
    reasons = "; ".join(f"{url}: {reason}" for url, reason in failures.items())
    raise OSError(f"cannot download {path.name} ({reasons}); start again, or fetch it by hand and put it at {path}")


# --- Text: paragraphs, documents, sentences ----------------------------------------------------------------------------

TEXT_SUFFIXES = (".txt", ".gz", ".xz")
NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of such bytes


def find_sources(names):
    """Corpus names -> sources: a built-in name, or a Path to a text file. A folder gives its text files, sorted by path."""
    sources = []
    for name in names:
        path = Path(name)
        if name in BUILT_IN:
            sources.append(name)
        elif path.is_dir():
            files = [file for file in path.rglob("*") if file.suffix.lower() in TEXT_SUFFIXES and file.is_file()]
            if not files:
                raise ValueError(f"the folder {path} holds no text: no file in it ends in {', '.join(TEXT_SUFFIXES)}")
            sources += sorted(files, key=lambda file: file.relative_to(path).as_posix())
        elif path.exists():
            sources.append(path)
        else:
            raise ValueError(f"no corpus {str(name)!r}: there is no such file or folder; built in are {', '.join(BUILT_IN)}")
    return sources


def open_text(file, suffix):
    """The decompressed bytes of a binary file, as a stream; of WikiText's archive its training part."""
    if suffix == ".gz":
        return gzip.open(file)
    if suffix == ".xz":
        return lzma.open(file)
    if suffix == ".zip":
        archive = zipfile.ZipFile(file)
        return archive.open(next(name for name in archive.namelist() if name.endswith("/wiki.train.raw")))
    return file


def read_lines(path, bar, log):
    """The lines of a text file without their ends; `bar` advances by the bytes read from disk.

    A byte order mark is dropped. Bytes that are not UTF-8 are read as U+FFFD; `log` is told the first such line and how many.
    Raises ValueError for a binary and for a damaged file.
    """
    number, not_utf8, seen = 1, 0, 0
    try:
        with (open(path, "rb") as file, open_text(file, path.suffix.lower()) as stream,
              io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape") as text):
            for line in iter(partial(text.readline, LINE), ""):
                bar.update(file.tell() - seen)
                seen = file.tell()
                if "\0" in line:
                    raise ValueError(f"{path} is a binary file (zero byte in line {number}); a corpus is UTF-8 text, .gz or .xz of it")
                if not line.isascii() and NOT_UTF8.search(line):
                    not_utf8 += 1
                    if not_utf8 == 1:
                        log(f"{path}, line {number}: not UTF-8; such bytes are read as \ufffd")
                    line = NOT_UTF8.sub("\ufffd", line)
                number += line.endswith("\n")
                yield line.rstrip("\n")
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged or cut short: {error}") from None
    if not_utf8:
        log(f"{path}: {not_utf8:,} line{'s' if not_utf8 > 1 else ''} with bytes that are not UTF-8")


HEADING = re.compile(r"\s*(=(?: =)*) \S.* \1\s*")  # " = Title = ", " = = Section = = "


def undo_wikitext(line):
    """Ordinary spelling for WikiText's: " @-@ " and the like joined, no blanks before or inside punctuation."""
    line = re.sub(r" @([-,.])@ ", r"\1", line)
    line = re.sub(r'" ([^"]*) "', r'"\1"', line)
    line = re.sub(r" ([,.;:!?%)\]]|'(?:s|t|d|m|ll|re|ve)\b)", r"\1", line)
    return re.sub(r"([(\[$£]) ", r"\1", line).strip()


def read_paragraphs(source, archives, bar, log) -> Iterator[str]:
    """The paragraphs of a source (see `find_sources`), with "" after the last one of a document.

    Of WikiText's three parts, the training part alone is read: what is held out is chosen as for any other corpus. A top-level
    heading there begins a document; headings are left out.
    """
    if source == "toy":
        for document in toy.documents():
            yield from document
            yield ""
    elif source in WIKITEXT:
        for line in read_lines(archives / f"{source}.zip", bar, log):
            heading = HEADING.fullmatch(line)
            if heading and heading[1] == "=":
                yield ""
            elif not heading and line.strip():
                yield undo_wikitext(line)
    else:
        yield from (line.strip() for line in read_lines(source, bar, log))
    yield ""


ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr rev hon gen col capt lt sgt maj gov sen rep pres messrs mme vs cf al approx dept inc ltd co corp bros "
    "mt ft fig figs vol vols ed eds jan feb apr aug sept oct nov dec".split())
BEFORE_NUMBERS = frozenset("no nos p pp ch art op sec ca".split())
SENTENCE_END = re.compile(r"""[.!?]+["'”’)\]]*\s+(?=["'“‘(\[]*(\w))""")  # group 1: the next sentence's first letter
INITIALS = re.compile(r"(?:\w\.)*[A-Z]|(?:\w\.)+\w")  # J, U.S, e.g, without the last full stop


def split_sentences(paragraph):
    """Sentences end at . ! or ? before a blank and anything but a small letter; not after abbreviations and initials."""
    sentences, start = [], 0
    for end in SENTENCE_END.finditer(paragraph):
        if end[1].islower():
            continue
        if end[0][0] == ".":
            word = paragraph[max(0, end.start() - 12):end.start()].rpartition(" ")[2].lstrip("\"'“‘([")
            known = word.lower()
            if known in ABBREVIATIONS or INITIALS.fullmatch(word) or known in BEFORE_NUMBERS and end[1].isdigit():
                continue
        sentences.append(paragraph[start:end.end()])
        start = end.end()
    return [*sentences, paragraph[start:]]


# --- Tokenizer ---------------------------------------------------------------------------------------------------------

def sample_text(paragraphs):
    """At most SAMPLE characters, from the whole text: the chance to be kept halves whenever the sample is full. Seeded."""
    random, chance, kept, size = Random(0), 1.0, [], 0
    for paragraph in paragraphs:
        if paragraph and random.random() < chance:
            kept.append(paragraph)
            size += len(paragraph)
            while size > SAMPLE:
                chance /= 2
                kept = [paragraph for paragraph in kept if random.random() < 0.5]
                size = sum(map(len, kept))
    return kept


def blank_tokenizer():
    """Uncased, and with the pieces' limits of SentencePiece: none reaches across a blank or joins letters, digits and signs.

    The blank before a word belongs to it, as "\u2581". Trailing blanks are dropped, so that the text before a typed [MASK], which
    swallows the blank to its left, ends in a word.
    """
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(left=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Metaspace(prepend_scheme="first"),
        pre_tokenizers.Split(Regex(r"▁?(?:[\p{L}\p{M}]+|\p{N}+|[^\p{L}\p{M}\p{N}▁]+)"), "isolated")])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return tokenizer


def set_pieces(tokenizer, pieces):
    """Give a blank tokenizer its pieces, (text, log-probability) each, after the special tokens."""
    tokenizer.model = models.Unigram([(token, 0.0) for token in SPECIAL] + pieces, unk_id=UNK)
    tokenizer.add_special_tokens([AddedToken(token, lstrip=token == "[MASK]", normalized=False) for token in SPECIAL])
    return tokenizer


def word_forms(tokenizer, sample):
    """The word forms of the sample, each as one piece would spell it; None when there are more than WHOLE_WORDS."""
    words, forms = set(), set()
    for paragraph in sample:
        for word in set(paragraph.split()) - words:
            words.add(word)
            forms.update(form for form, _ in tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(word)))
            if len(forms) > WHOLE_WORDS:
                return None
    return forms


def train_tokenizer(sample, vocab_size, log):
    """A unigram tokenizer (Kudo 2018) of `vocab_size` tokens, SPECIAL among them, or fewer where the sample gives no more.

    A language with few word forms, like the toy language, keeps each in one piece: all pieces are equally likely, so that the
    fewest win. Else the pieces are trained. The trainer adds up in the order of a hash table that differs from run to run, which
    shows in the last digits of the scores, in the order of ties, and in up to 1e-4 a character in the scores of characters too
    rare for a piece of their own; rounded, sorted, and those characters put level, one text gives one tokenizer.
    """
    tokenizer = blank_tokenizer()
    forms = word_forms(tokenizer, sample)
    if forms is not None:
        pieces = sorted(forms | set("".join(forms)))
        if len(pieces) + len(SPECIAL) <= vocab_size:
            log(f"vocabulary: {len(pieces) + len(SPECIAL):,}; every word form of so small a language is one token")
            return set_pieces(tokenizer, [(piece, -1.0) for piece in pieces])
    trainer = trainers.UnigramTrainer(vocab_size=vocab_size, special_tokens=list(SPECIAL), unk_token="[UNK]", show_progress=False)
    words = (" ".join(word for word in paragraph.split() if len(word) <= 100) for paragraph in sample)
    tokenizer.train_from_iterator(words, trainer)
    trained = json.loads(tokenizer.to_str())["model"]["vocab"][len(SPECIAL):]
    characters, lowest = sum(len(piece) == 1 for piece, _ in trained), min(score for _, score in trained)
    rare = lowest + 1e-4 * characters  # single characters below this are no pieces in their own right
    pieces = [(piece, round(lowest if len(piece) == 1 and score < rare else score, 3)) for piece, score in trained]
    size = len(pieces) + len(SPECIAL)
    if size > vocab_size:
        raise ValueError(f"a vocabulary of {vocab_size:,} is too small: the text has {characters:,} different characters")
    if size < vocab_size:
        log(f"vocabulary: {size:,}; the text gives no more, {vocab_size:,} were asked for")
    return set_pieces(blank_tokenizer(), sorted(pieces, key=lambda piece: (-piece[1], piece[0])))


class WordIds(dict):
    """word -> its token ids, as the bytes of little-endian uint16. Exact, because no piece reaches across a blank."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __missing__(self, word):
        ids = np.array(self.tokenizer.encode(word).ids, dtype="<u2").tobytes()
        if len(self) == 1 << 20:  # bounds the memory; the common words are back at once
            self.clear()
        if len(word) <= 100:
            self[word] = ids
        return ids


# --- Preparation: from text to token ids in the cache --------------------------------------------------------------------

def write_ids(paragraphs, tokenizer, folder):
    """Write tokens.bin (<u2), sentences.bin (<i8: offset of each sentence, and the end) and documents.bin (<i8: first sentence
    of each document, and their number) into `folder`; returns the counts. Sentences and documents without a token are left out.
    """
    words, offset, sentences, first, documents, pairs = WordIds(tokenizer), 0, 0, 0, 0, 0
    tokenizer.encode_special_tokens = True  # "[SEP]" in a corpus is text
    with (open(folder / "tokens.bin", "wb") as token_file, open(folder / "sentences.bin", "wb") as sentence_file,
          open(folder / "documents.bin", "wb") as document_file):
        for paragraph in paragraphs:
            if not paragraph and sentences > first:
                document_file.write(first.to_bytes(8, "little"))
                documents, pairs, first = documents + 1, pairs + (sentences - first) // 2, sentences
            for sentence in split_sentences(paragraph):
                ids = b"".join(map(words.__getitem__, sentence.split()))
                if ids:
                    token_file.write(ids)
                    sentence_file.write(offset.to_bytes(8, "little"))
                    sentences, offset = sentences + 1, offset + len(ids) // 2
        sentence_file.write(offset.to_bytes(8, "little"))
        document_file.write(sentences.to_bytes(8, "little"))
    tokenizer.encode_special_tokens = False
    return dict(documents=documents, sentences=sentences, tokens=offset, pairs=pairs)


ID_FILES = ("tokens.bin", "sentences.bin", "documents.bin")


def prepare(sources, folder, vocab_size, log):
    """Fill the cache folder of a corpus. It gets its name when it is complete; of two processes at once, the first wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    archives = folder.parent / "downloads"
    for source in sources:
        if source in WIKITEXT:
            download(path=archives / f"{source}.zip", **WIKITEXT[source]._asdict())
    files = [archives / f"{source}.zip" if source in WIKITEXT else source for source in sources if source != "toy"]
    size = sum(file.stat().st_size for file in files)

    def paragraphs(title, log):
        with tqdm(total=size, desc=title, unit="B", unit_scale=True, disable=None if size else True) as bar:
            for source in sources:
                yield from read_paragraphs(source, archives, bar, log)

    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        new = Path(temporary, "corpus")
        new.mkdir()
        sample = sample_text(paragraphs("reading", log))
        if not sample:
            raise ValueError(f"no text in {', '.join(map(str, sources))}")
        tokenizer = train_tokenizer(sample, vocab_size, log)
        del sample
        (new / "tokenizer.json").write_bytes(tokenizer.to_str(pretty=True).encode())
        counts = write_ids(paragraphs("token ids", lambda line: None), tokenizer, new)
        if counts["pairs"] < 2:
            raise ValueError(f"too little text in {', '.join(map(str, sources))}: {counts['sentences']:,} sentence(s), {counts['pairs']} "
                             f"pair(s) of sentences of one document; two pairs are the least, one to train and one to hold out")
        digests = [file_sha256(new / name) for name in ("tokenizer.json", *ID_FILES)]
        meta = counts | {"fingerprint": hashlib.sha256("".join(digests).encode()).hexdigest()[:16]}
        (new / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        try:
            os.replace(new, folder)
        except OSError:
            if not (folder / "meta.json").exists():
                raise


def prepare_corpus(names, cache_dir, seq_len, vocab_size=None, log=print):
    """The Corpus of `names` (BUILT_IN names, text files, folders of them), from the cache or made now.

    Text files hold one paragraph a line and a blank line between documents; .gz and .xz of them are read as they are. The cache
    is known by the paths, sizes and times of the files, or the published file's SHA-256, or the toy language's program. `log` is
    called with a line at a time. Raises ValueError (a corpus that cannot serve) and OSError (download, disk), one line each.
    """
    vocab_size = VOCABULARY if vocab_size is None else vocab_size
    if not len(SPECIAL) < vocab_size <= 1 << 16:
        raise ValueError(f"a vocabulary has from {len(SPECIAL) + 1} to {1 << 16:,} tokens, not {vocab_size:,}")
    if seq_len < 8:
        raise ValueError(f"sequences of {seq_len} tokens are too short: two sentences and three marks need at least 8")
    sources = find_sources(names)
    identity = [[str(source.resolve()), source.stat().st_size, source.stat().st_mtime_ns] if isinstance(source, Path)
                else WIKITEXT[source].sha256 if source in WIKITEXT else file_sha256(toy.__file__) for source in sources]
    key = hashlib.sha256(json.dumps([PREPARATION, vocab_size, identity]).encode()).hexdigest()[:16]
    folder = Path(cache_dir) / key
    if not (folder / "meta.json").exists():
        log(f"preparing {', '.join(map(str, names))}: once, into {folder}")
        prepare(sources, folder, vocab_size, log)
    corpus = Corpus(folder, seq_len)
    log(f"corpus {', '.join(map(str, names))}: {corpus.counts['documents']:,} documents, {corpus.counts['sentences']:,} sentences, "
        f"{corpus.counts['tokens']:,} tokens of a vocabulary of {corpus.vocab_size:,}; {len(corpus.train):,} pairs to train on, "
        f"{len(corpus.held_out):,} held out")
    return corpus


# --- Pairs and batches -------------------------------------------------------------------------------------------------

def kept_lengths(a, b, room):
    """What is left of lengths a and b when the longer one is cut, token by token, until both fit `room`; of equals the second."""
    a = min(a, max(room - b, (room + 1) // 2))
    return a, min(b, room - a)


def pad_pairs(pairs, seq_len):
    """Pairs (a, b) of rows of token ids, b or None -> input_ids (B, N) int64: [CLS] a [SEP] b [SEP] or [CLS] a [SEP], padded.

    Cut longest-first to `seq_len`. N is the longest row's length, rounded up to a multiple of WIDTH_STEP, but never above seq_len.
    """
    lengths = [kept_lengths(len(a), len(b), seq_len - 3) if b is not None else (min(len(a), seq_len - 2), -1) for a, b in pairs]
    longest = max(a + b for a, b in lengths) + 3
    width = min(-(-longest // WIDTH_STEP) * WIDTH_STEP, seq_len)
    input_ids = np.full((len(pairs), width), PAD, dtype=np.int64)  # (B, N)
    input_ids[:, 0] = CLS
    for row, (a, b), (length_a, length_b) in zip(input_ids, pairs, lengths):
        row[1:length_a + 1] = a[:length_a]
        row[length_a + 1] = SEP
        if b is not None:
            row[length_a + 2:length_a + length_b + 2] = b[:length_b]
            row[length_a + length_b + 2] = SEP
    return input_ids


def split_pairs(count):
    """(training, held-out) pair numbers, both ascending and never empty; `count` is 2 at least.

    A fixed permutation picks blocks of consecutive pairs: about 2 % of all and at most HELD_OUT_PAIRS, from all over the text,
    whether it is many documents or one.
    """
    target = max(1, min(HELD_OUT_PAIRS, int(count * HELD_OUT_SHARE)))
    block = max(1, min(HELD_OUT_BLOCK, target // 8))
    chosen = np.random.default_rng(0).permutation(count // block)[:target // block]
    held_out = np.zeros(count, dtype=bool)
    held_out[(chosen[:, None] * block + np.arange(block)).ravel()] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


class Corpus:
    """A prepared corpus cut into pairs of sentences: (0, 1), (2, 3), ... of each document, so that no sentence is in two pairs; the
    odd last one of a document is left out. `train` and `held_out` hold pair numbers; pair p is sentences first[p] and first[p] + 1.

    `fingerprint` is equal where tokenizer and token ids are. Raises ValueError for a damaged cache.
    """

    def __init__(self, folder, seq_len):
        try:
            self.counts = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            self.fingerprint = self.counts["fingerprint"]
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self.tokens = np.asarray(np.memmap(folder / "tokens.bin", dtype="<u2", mode="r"))
            self.offsets, starts = (np.fromfile(folder / name, dtype="<i8") for name in ID_FILES[1:])
            sizes = len(self.tokens), len(self.offsets) - 1, len(starts) - 1
            whole = sizes == tuple(self.counts[name] for name in ("tokens", "sentences", "documents"))
        except Exception:  # tokenizers raises a bare Exception
            whole = False
        if not whole:
            raise ValueError(f"the prepared corpus in {folder} is damaged: delete this folder and start again")
        self.vocab_size, self.seq_len = self.tokenizer.get_vocab_size(), seq_len
        pairs = np.diff(starts) // 2  # of each document
        within = np.arange(pairs.sum()) - np.repeat(np.cumsum(pairs) - pairs, pairs)  # a pair's number in its document
        self.first = np.repeat(starts[:-1], pairs) + 2 * within  # (pairs,)
        self.lengths = np.minimum(self.offsets[self.first + 2] - self.offsets[self.first] + 3, seq_len)  # (pairs,), with marks
        self.train, self.held_out = split_pairs(len(self.first))
        self.epoch = None, None

    def rows(self, pairs):
        """The pairs of these numbers -> input_ids (B, N) int64, a numpy array."""
        bounds = zip(*(self.offsets[self.first[pairs] + sentence].tolist() for sentence in range(3)))
        return pad_pairs([(self.tokens[a:b], self.tokens[b:end]) for a, b, end in bounds], self.seq_len)

    def epoch_order(self, seed, epoch, batch_size):
        """Pair numbers (batches, B) of one epoch: each training pair once, but for a remainder below a batch, other ones each time.

        Pools of POOL batches are sorted by length, so that pairs of like length share a batch; then the batches are shuffled. Fewer
        pairs than a batch are repeated to fill one. The last order is kept.
        """
        if self.epoch[0] != (seed, epoch, batch_size):
            random = np.random.default_rng([seed, epoch])
            order = random.permutation(self.train)
            order = np.resize(order, max(1, len(order) // batch_size) * batch_size)
            pool = np.arange(len(order)) // (POOL * batch_size)
            order = order[np.lexsort((self.lengths[order], pool))].reshape(-1, batch_size)  # (batches, B)
            self.epoch = (seed, epoch, batch_size), random.permutation(order)
        return self.epoch[1]

    def batch(self, seed, step, batch_size):
        """input_ids (B, N) int64 on the CPU, [CLS] a [SEP] b [SEP] and PAD: a function of (seed, step, batch_size) alone."""
        epoch, index = divmod(step, max(1, len(self.train) // batch_size))
        return torch.from_numpy(self.rows(self.epoch_order(seed, epoch, batch_size)[index]))

    @cached_property
    def held_out_rows(self):
        """(input_ids, labels), both (held-out pairs, N), by length: the same masks for every model, seed and batch size."""
        rows = torch.from_numpy(self.rows(self.held_out[np.argsort(self.lengths[self.held_out], kind="stable")]))
        generator = torch.Generator()
        for seed in range(100):  # the first seed will do, but for a held-out text of a few words
            masked = mask_tokens(rows, self.vocab_size, generator.manual_seed(seed))
            if (masked[1] != -100).any():
                return masked
        raise ValueError("the held-out text has no token to mask: more text is needed")

    def held_out_batches(self, batch_size):
        """Yields (input_ids, labels), both (B, N): all held-out pairs, masked once and for all, pairs of like length together."""
        for masked_ids, labels in zip(*(rows.split(batch_size) for rows in self.held_out_rows)):
            longest = int((masked_ids != PAD).sum(dim=1).max())
            width = min(-(-longest // WIDTH_STEP) * WIDTH_STEP, self.seq_len)
            yield masked_ids[:, :width].contiguous(), labels[:, :width].contiguous()

    def commonest_token(self):
        """The id that stands most often in the text, special ones aside: what guesses best where nothing is known."""
        counts = sum(np.bincount(part, minlength=self.vocab_size) for part in np.split(self.tokens, range(1 << 24, len(self.tokens), 1 << 24)))
        return int(counts[len(SPECIAL):].argmax()) + len(SPECIAL)


# --- Masking -----------------------------------------------------------------------------------------------------------

def mask_tokens(input_ids, vocab_size, generator, share=0.15):
    """BERT's corruption (Devlin et al. 2019): (masked_input_ids, labels), both like input_ids (B, N).

    Each ordinary token is chosen with probability 0.15, independently; ids below len(SPECIAL), [UNK] among them, never are. Of the
    chosen, 80 % become [MASK], 10 % an ordinary token drawn at random, 10 % stay. Labels are the original ids where chosen, else
    -100. Runs on input_ids' device, whose `generator` gives the draws, and never waits for it.
    """
    draw = torch.rand(input_ids.shape, generator=generator, device=input_ids.device)  # (B, N), one draw decides all
    random_ids = torch.randint(len(SPECIAL), vocab_size, input_ids.shape, generator=generator, device=input_ids.device)
    ordinary = input_ids >= len(SPECIAL)
    labels = input_ids.masked_fill(~(ordinary & (draw < share)), -100)
    masked_ids = torch.where(ordinary & (draw < 0.9 * share), random_ids, input_ids)
    return masked_ids.masked_fill(ordinary & (draw < 0.8 * share), MASK), labels
