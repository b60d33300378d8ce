"""From text to masked batches, one way:

    text -> documents -> sentences -> token ids -> pairs -> batch(seed, step) -> masks

Token ids are made once a corpus and kept in a folder of the cache, from where they are memory-mapped: `tokens.bin`
holds them all in one row, `sentences.bin` where each sentence begins, `documents.bin` each document's first sentence.
The text is streamed, for the tokenizer's sample and again for the ids. An example is [CLS] sentence [SEP] next [SEP].

    corpus = prepare_corpus(["toy"], "cache", seq_len=64)
    input_ids = corpus.batch(seed=0, step=0, batch_size=64)                                 # (B, N)
    masked_ids, labels = mask_tokens(input_ids, corpus.vocab_size, torch.Generator())       # (B, N) both
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
from collections import Counter
from functools import cached_property, lru_cache, partial
from pathlib import Path
from random import Random

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.normalizers import NFKC, Lowercase, Replace, Strip
from tqdm import tqdm

import toy

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # by id; ids from len(SPECIAL) on are ordinary pieces
VOCABULARY = 30_004  # 30,000 unigram pieces, [UNK] among them, and four marks
WHOLE_WORDS = 1_000  # a language of no more word forms than this keeps each in one piece
SAMPLE = 32_000_000  # characters of text, at most, on which a tokenizer is trained
LINE = 1 << 20  # characters; a longer line is read as several
LONGEST_WORD = 100  # characters; longer ones are no words: they train no tokenizer and are not remembered
WIDTH_STEP = 8  # batches are as wide as a multiple of this: few shapes, little padding
POOL = 50  # batches' worth of pairs that are sorted by length together
HELD_OUT_SHARE, HELD_OUT_PAIRS, HELD_OUT_BLOCK = 0.02, 2_048, 32
MASKED_SHARE = 0.15
PREPARATION = 2  # to be raised by whoever changes what the cache holds


# --- Downloads --------------------------------------------------------------------------------------------------------
USER_AGENT = "bert-convolution/1.0"  # some mirrors refuse Python's own
ATTEMPTS = 3  # at one mirror, as long as each brings something
WIKITEXT = {
    "wikitext-2": dict(
        urls=("https://wikitext.smerity.com/wikitext-2-raw-v1.zip",), size=4_721_645,
        sha256="ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11"),
    "wikitext-103": dict(
        urls=("https://huggingface.co/datasets/mattdangerw/wikitext-103-raw/resolve/"
              "3555105b17ae31cc619a136fac72dbe2865c3738/wikitext-103-raw-v1.zip",
              "https://wikitext.smerity.com/wikitext-103-raw-v1.zip"), size=191_984_949,
        sha256="91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794"),
}


def file_sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(url, part, done, size, timeout):
    """One attempt to complete the file `part`, of which `done` bytes are there. OSError: why it ended early."""
    headers = {"User-Agent": USER_AGENT} | ({"Range": f"bytes={done}-"} if done else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
        if response.status != 206:  # the whole file, whatever was asked for
            done = 0
        if response.length is not None and done + response.length != size:
            raise OSError(f"the file there has {done + response.length:,} bytes, not {size:,}")
        with (open(part, "ab" if done else "wb", buffering=0) as file,
              tqdm(total=size, initial=done, desc=part.stem, unit="B", unit_scale=True, disable=None) as bar):
            while done < size:
                chunk = response.read1(min(1 << 18, size - done))
                if not chunk:
                    raise OSError(f"the connection ended after {done:,} of {size:,} bytes")
                if os.fstat(file.fileno()).st_size != done:
                    raise ValueError(f"another process is downloading {part}: wait for its end, then start again")
                done += file.write(chunk)
                bar.update(len(chunk))


def download(urls, path, size, sha256, timeout=30):
    """Bring the file published at `urls` (mirrors, in order) to `path`, unless it is there; returns the Path.

    It grows as `path`.part, from which a broken download goes on, and takes its name once size (bytes) and SHA-256
    agree; a part with another SHA-256 is deleted. `timeout`: seconds without a byte. Raises OSError, saying what to do
    by hand, when no mirror gives the file, and ValueError when `path` exists and is another file.
    """
    path = Path(path)
    if path.exists():
        if path.stat().st_size == size and file_sha256(path) == sha256:
            return path
        raise ValueError(f"{path} is not the published file, its size or SHA-256 differs: delete it and start again")
    path.parent.mkdir(parents=True, exist_ok=True)
    part, failures = path.with_name(path.name + ".part"), {}
    for url in urls:
        for _ in range(ATTEMPTS):
            before = part.stat().st_size if part.exists() else 0
            try:
                if before < size:
                    fetch(url, part, before, size, timeout)
            except (OSError, http.client.HTTPException) as error:  # no network, no such file, timed out, disk full, ...
                failures[url] = error
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
    raise OSError(f"cannot download {path.name} ({reasons}): start again, or fetch it by hand and put it at {path}")


# --- Text: documents, paragraphs, sentences ---------------------------------------------------------------------------
BUILT_IN = ("toy", *WIKITEXT)
TEXT_SUFFIXES = (".txt", ".gz", ".xz")
NOT_UTF8 = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of such bytes


def find_sources(names):
    """Corpus names -> sources: BUILT_IN names and text files' Paths. A folder gives its text files, sorted by path."""
    sources = []
    for name in names:
        path = Path(name)
        if name in BUILT_IN:
            sources.append(name)
        elif path.is_dir() and str(name).strip():
            files = [file for file in path.rglob("*") if file.suffix.lower() in TEXT_SUFFIXES and file.is_file()]
            if not files:
                raise ValueError(f"no text in the folder {path}: no file's name ends in {', '.join(TEXT_SUFFIXES)}")
            sources += sorted(files, key=lambda file: file.relative_to(path).as_posix())
        elif not path.exists() or not str(name).strip():
            raise ValueError(f"no corpus {str(name)!r}: no such file or folder; built in are {', '.join(BUILT_IN)}")
        elif path.suffix.lower() == ".zip":
            raise ValueError(f"{path} is an archive: unpack it and name its folder")
        else:
            sources.append(path)
    return sources


def open_wikitext(file):
    archive = zipfile.ZipFile(file)
    return archive.open(next(name for name in archive.namelist() if name.endswith("/wiki.train.raw")))


OPEN = {".gz": gzip.open, ".xz": lzma.open, ".zip": open_wikitext}  # by suffix: what decompresses a binary file


def read_lines(path, bar, log):
    """The lines of a text file without ends and byte order mark; `bar` advances by the bytes read from disk. Bytes that
    are not UTF-8 become U+FFFD: `log` is told the first such line and their number. ValueError: binary or damaged.
    """
    number, not_utf8, seen = 1, 0, 0
    try:
        with (open(path, "rb") as file, OPEN.get(path.suffix.lower(), lambda file: file)(file) as stream,
              io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape") as text):
            for line in iter(partial(text.readline, LINE), ""):
                bar.update(file.tell() - seen)
                seen = file.tell()
                if "\0" in line:
                    raise ValueError(f"{path} is a binary file (zero byte in line {number}); a corpus is UTF-8 text")
                if not line.isascii() and NOT_UTF8.search(line):
                    if not not_utf8:
                        log(f"{path}, line {number}: not UTF-8; what cannot be read becomes U+FFFD")
                    not_utf8 += 1
                    line = NOT_UTF8.sub("\ufffd", line)
                number += line.endswith("\n")
                yield line.rstrip("\n")
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged or cut short: {error}") from None
    if not_utf8:
        log(f"{path}: lines with bytes that are not UTF-8: {not_utf8:,}")


HEADING = re.compile(r"\s*(=(?: =)*) \S.* \1\s*")  # " = Title = ", " = = Section = = "


def undo_wikitext(line):
    """Ordinary spelling for WikiText's: " @-@ " and the like joined, no blanks before or inside punctuation."""
    line = re.sub(r" @([-,.])@ ", r"\1", line)
    line = re.sub(r'" ([^"]*) "', r'"\1"', line)
    line = re.sub(r" ([,.;:!?%)\]]|'(?:s|t|d|m|ll|re|ve)\b)", r"\1", line)
    return re.sub(r"([(\[$£]) ", r"\1", line).strip()


def read_paragraphs(source, bar, log):
    """The paragraphs of "toy", of a text file or of WikiText's archive, with "" after the last one of a document. Of
    WikiText the training part alone is read: what is held out is chosen as for any corpus. A top-level heading there
    begins a document; headings are left out.
    """
    if source == "toy":
        for document in toy.documents():
            yield from (re.sub(r" ([.,?])", r"\1", line) for line in (*document, ""))  # spelled as people type
    elif source.suffix == ".zip":
        for line in read_lines(source, bar, log):
            heading = HEADING.fullmatch(line)
            if heading and heading[1] == "=":
                yield ""
            elif not heading and line.strip():
                yield undo_wikitext(line)
    else:
        yield from (line.strip() for line in read_lines(source, bar, log))
    yield ""


ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr rev hon gen col capt lt sgt maj gov sen rep pres messrs mme vs cf al approx dept inc "
    "ltd co corp bros mt ft fig figs vol vols ed eds jan feb apr aug sept oct nov dec".split())
BEFORE_NUMBERS = frozenset("no nos p pp ch art op sec ca".split())
INITIALS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]|[A-Z]")  # J, U.S, e.g, without the last full stop
SENTENCE_END = re.compile(r"""[.!?]+["'”’)\]]*\s+(?=["'“‘(\[]*(\w))""")  # group 1 begins the next sentence


def split_sentences(paragraph):
    """Sentences end at . ! or ? before a blank and anything but a small letter, not at abbreviations and initials."""
    sentences, start = [], 0
    for end in SENTENCE_END.finditer(paragraph):
        if end[1].islower():
            continue
        if end[0][0] == ".":
            word = paragraph[max(0, end.start() - 12):end.start()].rpartition(" ")[2].lstrip("\"'“‘([")
            small = word.lower()
            if small in ABBREVIATIONS or INITIALS.fullmatch(word) or small in BEFORE_NUMBERS and end[1].isdigit():
                continue
        sentences.append(paragraph[start:end.end()])
        start = end.end()
    return [*sentences, paragraph[start:]]


# --- Tokenizer --------------------------------------------------------------------------------------------------------
def sample_text(paragraphs):
    """At most SAMPLE characters from all over the text: the chance to be kept halves whenever the sample is full."""
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
    """Uncased; as in SentencePiece, no piece reaches across a blank or joins letters with digits or signs. A word owns
    the blank before it, as "▁". Blanks at the end are dropped: text before a typed [MASK] ends in a word.
    """
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([NFKC(), Lowercase(), Replace(Regex(r"\s+"), " "), Strip(left=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Metaspace(prepend_scheme="first"),
        pre_tokenizers.Split(Regex(r"▁?(?:[\p{L}\p{M}]+|\p{N}+|[^\p{L}\p{M}\p{N}▁]+)"), "isolated")])
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return tokenizer


def count_forms(tokenizer, sample):
    """How often each stretch of text that might be one piece ("▁dog", ",", "s") occurs in the sample."""
    words, forms = Counter(word for paragraph in sample for word in paragraph.split()), Counter()
    for word, count in words.items():
        if len(word) <= LONGEST_WORD:
            word = tokenizer.normalizer.normalize_str(word)
            for form, _ in tokenizer.pre_tokenizer.pre_tokenize_str(word):
                forms[form] += count
    return forms


def train_pieces(forms, vocab_size):
    """A unigram language model (Kudo 2018) of the forms: at most `vocab_size` pieces with log-probabilities; every
    single character first, then the likeliest.

    The library's trainer begins with the strings that occur twice or more in its list of DIFFERENT words, which leaves
    out most whole words; so each form enters once more, with a blank behind it. The trainer adds up in the order of a
    hash table, another in each run: seen in the scores' last digits, among ties, and in steps of 1e-4 between those
    characters too rare to be pieces. Rounded, sorted, and those characters put level, one text gives one result.
    """
    trainer = trainers.UnigramTrainer(vocab_size=vocab_size + vocab_size // 10, show_progress=False, unk_token="[UNK]")
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(
        (f"{form} " * (count - 1) + (f"{form}▁" if count > 1 else form) for form, count in forms.items()), trainer)
    trained = [(piece, score) for piece, score in json.loads(tokenizer.to_str())["model"]["vocab"]
               if piece != "[UNK]" and "▁" not in piece[1:]]
    characters, lowest = sum(len(piece) == 1 for piece, _ in trained), min(score for _, score in trained)
    rare = lowest + 1e-4 * characters
    pieces = [(piece, round(lowest if len(piece) == 1 and score < rare else score, 3)) for piece, score in trained]
    return sorted(pieces, key=lambda piece: (len(piece[0]) > 1, -piece[1], piece[0]))[:vocab_size]


def train_tokenizer(sample, vocab_size, log):
    """A unigram tokenizer of `vocab_size` tokens, SPECIAL among them, or fewer where the sample gives no more. A
    language with few word forms, like the toy one, keeps each in one piece: all are equally likely, so the fewest win.
    """
    tokenizer = blank_tokenizer()
    forms = count_forms(tokenizer, sample)
    if sample and not forms:
        raise ValueError(f"no word of it has {LONGEST_WORD} characters or fewer; are there blanks between its words?")
    room, characters = vocab_size - len(SPECIAL), set("▁".join(forms))
    if len(characters) > room:
        raise ValueError(f"a vocabulary of {vocab_size:,} is too small: the text has {len(characters):,} characters")
    pieces = [(piece, -1.0) for piece in sorted(characters | set(forms))]
    if len(forms) <= WHOLE_WORDS and len(pieces) <= room:
        log(f"vocabulary: {len(pieces) + len(SPECIAL):,}; each word form of so small a language is one token")
    else:
        log(f"training a vocabulary on {sum(map(len, sample)):,} characters of text")
        pieces = train_pieces(forms, room)
        if len(pieces) < room:
            log(f"vocabulary: {len(pieces) + len(SPECIAL):,}, not {vocab_size:,}: the text gives no more")
    tokenizer.model = models.Unigram([(token, 0.0) for token in SPECIAL] + pieces, unk_id=UNK)
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


# --- Preparation: from text to token ids in the cache -----------------------------------------------------------------
ID_FILES = {"tokens.bin": "<u2", "sentences.bin": "<i8", "documents.bin": "<i8"}


def write_ids(paragraphs, tokenizer, folder):
    """Write ID_FILES into `folder`: all token ids; where each sentence begins in them; each document's first sentence;
    the last two with their end. Returns the counts. Sentences and documents without a token are left out.
    """
    def encode(word):  # a word alone gives the same ids as in its sentence, because no piece reaches across a blank
        return np.array(tokenizer.encode(word).ids, dtype="<u2").tobytes()

    remember, offset, sentences, first, documents, pairs = lru_cache(1 << 20)(encode), 0, 0, 0, 0, 0
    tokenizer.encode_special_tokens = True  # "[SEP]" in a corpus is text
    with (open(folder / "tokens.bin", "wb") as token_file, open(folder / "sentences.bin", "wb") as sentence_file,
          open(folder / "documents.bin", "wb") as document_file):
        for paragraph in paragraphs:
            if not paragraph and sentences > first:
                document_file.write(first.to_bytes(8, "little"))
                documents, pairs, first = documents + 1, pairs + (sentences - first) // 2, sentences
            for sentence in split_sentences(paragraph):
                ids = b"".join([remember(word) if len(word) <= LONGEST_WORD else encode(word)
                                for word in sentence.split()])
                if ids:
                    token_file.write(ids)
                    sentence_file.write(offset.to_bytes(8, "little"))
                    sentences, offset = sentences + 1, offset + len(ids) // 2
        sentence_file.write(offset.to_bytes(8, "little"))
        document_file.write(sentences.to_bytes(8, "little"))
    tokenizer.encode_special_tokens = False
    return dict(documents=documents, sentences=sentences, tokens=offset, pairs=pairs)


def prepare(sources, folder, vocab_size, log):
    """Fill the cache folder of a corpus. It gets its name when complete; of two processes at once, the first wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    sources = [download(path=folder.parent / "downloads" / f"{source}.zip", **WIKITEXT[source])
               if source in WIKITEXT else source for source in sources]
    size = sum(source.stat().st_size for source in sources if source != "toy")

    def paragraphs(stage, log):
        with tqdm(total=size, desc=stage, unit="B", unit_scale=True, disable=None if size else True) as bar:
            for source in sources:
                yield from read_paragraphs(source, bar, log)

    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=folder.name, ignore_cleanup_errors=True) as temporary:
        new = Path(temporary, "corpus")
        new.mkdir()
        tokenizer = train_tokenizer(sample_text(paragraphs("reading", log)), vocab_size, log)
        counts = write_ids(paragraphs("token ids", lambda line: None), tokenizer, new)
        if counts["pairs"] < 2:
            raise ValueError(f"too little text: {counts['sentences']} sentences, {counts['pairs']} pairs of them in "
                             f"one document; two pairs are the least, to train on one and hold one out")
        (new / "tokenizer.json").write_bytes(tokenizer.to_str().encode())
        digests = "".join(file_sha256(new / name) for name in ("tokenizer.json", *ID_FILES))
        meta = counts | {"fingerprint": hashlib.sha256(digests.encode()).hexdigest()[:16]}
        (new / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        try:
            os.replace(new, folder)
        except OSError:
            if not folder.exists():
                raise


def prepare_corpus(names, cache_dir, seq_len, vocab_size=VOCABULARY, log=print):
    """The Corpus of `names` (BUILT_IN names, text files, folders of them), from the cache or made now. Text files, .gz
    and .xz too, hold one paragraph a line and a blank line between documents. The cache knows them by path, size and
    time, downloads by SHA-256, the toy language by its program. `log` gets one line at a time. Raises ValueError (a
    corpus that cannot serve) and OSError (download, disk), one line each.
    """
    if not len(SPECIAL) < vocab_size <= 1 << 16:
        raise ValueError(f"a vocabulary has from {len(SPECIAL) + 1} to {1 << 16:,} tokens, not {vocab_size:,}")
    if seq_len < 8:
        raise ValueError(f"sequences of {seq_len} tokens are too short: two sentences and three marks need at least 8")
    sources, title = find_sources(names), ", ".join(map(str, names))
    identity = [file_sha256(toy.__file__) if source == "toy" else WIKITEXT[source]["sha256"] if source in WIKITEXT
                else [str(source.resolve()), source.stat().st_size, source.stat().st_mtime_ns] for source in sources]
    key = hashlib.sha256(json.dumps([PREPARATION, vocab_size, identity]).encode()).hexdigest()[:16]
    folder = Path(cache_dir) / key
    if not folder.exists():
        log(f"preparing {title}, once, in {folder}")
        try:
            prepare(sources, folder, vocab_size, log)
        except (OSError, ValueError) as error:
            raise (OSError if isinstance(error, OSError) else ValueError)(f"corpus {title}: {error}") from None
    corpus = Corpus(folder, seq_len)
    log("corpus {}: {documents:,} documents, {sentences:,} sentences, {tokens:,} tokens, vocabulary {:,}; {:,} pairs "
        "to train on, {:,} held out".format(title, corpus.vocab_size, *map(len, corpus.split), **corpus.counts))
    return corpus


# --- Pairs, batches, masks --------------------------------------------------------------------------------------------
def kept_lengths(a, b, room):
    """What is left of lengths a and b when the longer is cut, token by token, until both fit `room`; of equals, b."""
    a = min(a, max(room - b, (room + 1) // 2))
    return a, min(b, room - a)


def batch_width(longest, seq_len):
    """N of a batch: its longest row, rounded up to a multiple of WIDTH_STEP, but never above seq_len."""
    return min(-(-longest // WIDTH_STEP) * WIDTH_STEP, seq_len)


def pad_pairs(pairs, seq_len):
    """Pairs (a, b) of rows of token ids, b or None -> [CLS] a [SEP] b [SEP] or [CLS] a [SEP], cut longest-first to
    `seq_len` and padded: a numpy array (B, N) int64.
    """
    lengths = [kept_lengths(len(a), len(b), seq_len - 3) if b is not None else (min(len(a), seq_len - 2), -1)
               for a, b in pairs]
    input_ids = np.full((len(pairs), batch_width(max(map(sum, lengths)) + 3, seq_len)), PAD, dtype=np.int64)  # (B, N)
    input_ids[:, 0] = CLS
    for row, (a, b), (length_a, length_b) in zip(input_ids, pairs, lengths):
        row[1:length_a + 1] = a[:length_a]
        row[length_a + 1] = SEP
        if b is not None:
            row[length_a + 2:length_a + length_b + 2] = b[:length_b]
            row[length_a + length_b + 2] = SEP
    return input_ids


def split_pairs(count):
    """(training, held-out) numbers of `count` pairs, two or more; ascending, never empty. A fixed permutation picks the
    blocks of consecutive pairs that are held out: about 2 % and at most HELD_OUT_PAIRS, from all over the text.
    """
    target = max(1, min(HELD_OUT_PAIRS, int(count * HELD_OUT_SHARE)))
    block = max(1, min(HELD_OUT_BLOCK, target // 8))
    chosen = np.random.default_rng(0).permutation(count // block)[:target // block]
    held_out = np.zeros(count, dtype=bool)
    held_out[(chosen[:, None] * block + np.arange(block)).ravel()] = True
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


class Corpus:
    """A prepared corpus, cut into pairs of sentences: (0, 1), (2, 3), ... of each document, so that no sentence is in
    two pairs; a document's odd last one is left out. `train` and `held_out` hold pair numbers; pair p is the sentences
    first[p] and first[p] + 1. `fingerprint` is equal where tokenizer and token ids are. ValueError: a damaged cache.
    """

    def __init__(self, folder, seq_len):
        try:
            self.counts = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            self.fingerprint = self.counts["fingerprint"]
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self.tokens, self.offsets, starts = (
                np.asarray(np.memmap(folder / name, dtype, mode="r")) for name, dtype in ID_FILES.items())
            sizes = len(self.tokens), len(self.offsets) - 1, len(starts) - 1
            known = self.tokens.max() < self.tokenizer.get_vocab_size()
            counted = sizes == tuple(self.counts[name] for name in ("tokens", "sentences", "documents"))
            if not (known and counted and self.offsets[-1] == sizes[0] and starts[-1] == sizes[1]):
                raise ValueError
        except Exception:  # tokenizers raises a bare Exception
            raise ValueError(f"the corpus prepared in {folder} is damaged: delete this folder, start again") from None
        self.vocab_size, self.seq_len = self.tokenizer.get_vocab_size(), seq_len
        pairs = np.diff(starts) // 2  # of each document
        within = np.arange(pairs.sum()) - np.repeat(np.cumsum(pairs) - pairs, pairs)  # a pair's number in its document
        self.first = np.repeat(starts[:-1], pairs) + 2 * within  # (pairs,)
        self.lengths = np.minimum(self.offsets[self.first + 2] - self.offsets[self.first] + 3, seq_len)  # (pairs,)
        self.split = self.train, self.held_out = split_pairs(len(self.first))
        self.epoch = None, None

    def rows(self, pairs):
        """The pairs of these numbers -> input_ids (B, N) int64, a numpy array."""
        bounds = zip(*(self.offsets[self.first[pairs] + sentence].tolist() for sentence in range(3)))
        return pad_pairs([(self.tokens[a:b], self.tokens[b:end]) for a, b, end in bounds], self.seq_len)

    def epoch_order(self, seed, epoch, batch_size):
        """Pair numbers (batches, B) of one epoch; the last is kept. Pools of POOL batches are sorted by length, so that
        pairs of like length meet; then the batches are shuffled. Each training pair comes once, but for a remainder
        smaller than a batch, others in each epoch. Fewer pairs than a batch are repeated to fill one.
        """
        if self.epoch[0] != (seed, epoch, batch_size):
            random = np.random.default_rng([seed, epoch])
            order = random.permutation(self.train)
            order = np.resize(order, max(1, len(order) // batch_size) * batch_size)
            pool = np.arange(len(order)) // (POOL * batch_size)
            order = order[np.lexsort((self.lengths[order], pool))].reshape(-1, batch_size)  # (batches, B)
            self.epoch = (seed, epoch, batch_size), random.permutation(order)
        return self.epoch[1]

    def numbers(self, seed, step, batch_size):
        """The pair numbers (B,) of a step's batch: a function of these arguments alone."""
        epoch, index = divmod(step, max(1, len(self.train) // batch_size))
        return self.epoch_order(seed, epoch, batch_size)[index]

    def batch(self, seed, step, batch_size):
        """input_ids (B, N) int64 on the CPU, [CLS] a [SEP] b [SEP] and PAD, of the pairs `numbers`."""
        return torch.from_numpy(self.rows(self.numbers(seed, step, batch_size)))

    @cached_property
    def held_out_rows(self):
        """(input_ids, labels), both (held-out pairs, N), by length: one masking for all models, seeds, batch sizes."""
        by_length = np.argsort(self.lengths[self.held_out], kind="stable")
        input_ids, generator = torch.from_numpy(self.rows(self.held_out[by_length])), torch.Generator()
        for seed in range(100):  # the first one will do, unless the held-out text is a few words
            masked_ids, labels = mask_tokens(input_ids, self.vocab_size, generator.manual_seed(seed))
            if (labels != -100).any():
                break
        return masked_ids, labels

    def held_out_batches(self, batch_size):
        """Yields (input_ids, labels), both (B, N): every held-out pair, masked, pairs of like length together."""
        for masked_ids, labels in zip(*(rows.split(batch_size) for rows in self.held_out_rows)):
            width = batch_width(int((masked_ids != PAD).sum(dim=1).max()), self.seq_len)
            yield masked_ids[:, :width].contiguous(), labels[:, :width].contiguous()

    def commonest_token(self):
        """The id that stands most often in the text, special ones aside: the best guess where nothing is known."""
        parts = np.array_split(self.tokens, len(self.tokens) // 10_000_000 + 1)  # bincount copies what it is given
        counts = sum(np.bincount(part, minlength=self.vocab_size) for part in parts)  # (vocabulary,)
        return int(counts[len(SPECIAL):].argmax()) + len(SPECIAL)


def mask_tokens(input_ids, vocab_size, generator):
    """BERT's corruption (Devlin et al. 2019): (masked_input_ids, labels), both like input_ids (B, N). Each ordinary
    token is chosen with probability 0.15, independently; ids below len(SPECIAL), [UNK] among them, never are. Of the
    chosen, 80 % become [MASK], 10 % an ordinary token drawn at random, 10 % stay. Labels are the original ids where
    chosen, else -100. All on the device of input_ids and `generator`, and without waiting for it.
    """
    draw = torch.rand(input_ids.shape, generator=generator, device=input_ids.device)  # (B, N): one draw decides all
    random_ids = torch.randint(len(SPECIAL), vocab_size, input_ids.shape, generator=generator, device=input_ids.device)
    ordinary = input_ids >= len(SPECIAL)
    labels = input_ids.masked_fill(~(ordinary & (draw < MASKED_SHARE)), -100)
    masked_ids = torch.where(ordinary & (draw < 0.9 * MASKED_SHARE), random_ids, input_ids)
    return masked_ids.masked_fill(ordinary & (draw < 0.8 * MASKED_SHARE), MASK), labels
