"""From text to masked batches, in one direction:

    text -> paragraphs -> sentences -> token ids -> pairs -> batch(seed, step) -> masks

    corpus = prepare_corpus(["toy"], "cache", seq_len=64)
    input_ids = corpus.batch(seed=0, step=0, batch_size=64)            # (B, N)
    generator = torch.Generator().manual_seed(0)
    masked_ids, labels = mask_tokens(input_ids, corpus.vocab_size, generator)    # both (B, N)

The file follows these steps from top to bottom:

    Text         paragraphs are read one by one and split into sentences
    Tokenizer    a vocabulary of word pieces is learned from the text
    Preparation  the text becomes token ids, once per corpus, in a folder of the cache
    Pairs        two consecutive sentences become one row: [CLS] first [SEP] second [SEP]
    Batches      rows become a batch, a pure function of (seed, step)
    Corpus       the prepared corpus, read from the cache
    Masks        some tokens of a batch are hidden, and the model learns to predict them

Symbols: B is the number of rows of a batch, N its sequence length (tokens per row).
"""

import hashlib
import json
import math
import re
from collections import Counter
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tqdm import tqdm

import toy.language
from support import corpus_cache, text_files
from support.commands import UserError
from support.files import new_folder, sha256_of
from support.runs import SPECIAL_TOKENS
from support.text_files import WIKITEXT

# The ids of "[PAD]", "[UNK]", "[CLS]", "[SEP]" and "[MASK]". Ids from 5 on are pieces of text.
PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL_TOKENS))

# Text and tokenizer
VOCABULARY_SIZE = 30_004  # 30,000 pieces of words, [UNK] among them, and 4 more special tokens
SMALL_LANGUAGE = 1_000  # with at most this many word forms, each word form is one token
SAMPLE_SIZE = 32_000_000  # characters of text, at most, on which a tokenizer is trained
LONGEST_WORD = 100  # characters; longer words do not train the tokenizer and are not remembered
LONG_WORDS_WARNING = 0.01  # a line is printed if a larger share of the text is in longer words
REMEMBERED_WORDS = 1 << 20  # words for which the token ids are kept in memory
COUNTED_AT_ONCE = 10_000_000  # tokens, approximately, that are counted together

# Pairs and batches
PAD_TO_MULTIPLE_OF = 8  # the width of a batch is a multiple of this: few shapes, little padding
BATCHES_PER_BUCKET = 50  # the pairs of this many batches are sorted by length together
HELD_OUT_SHARE = 0.02  # the share of all pairs that is held out for evaluation ...
HELD_OUT_PAIRS = 2_048  # ... but never more pairs than this
HELD_OUT_BLOCK = 32  # held-out pairs are chosen in blocks of up to this many consecutive pairs

# Masks
MASK_PROBABILITY = 0.15
IGNORED = -100  # the label of a token that is not predicted, the same as model.IGNORED

# The version of what the cache holds. Increase it by 1 if you change any step up to the
# token ids, or which pairs are held out: every corpus is then prepared again.
PREPARATION = 4


# --- Text: paragraphs and sentences ---------------------------------------------------------------


def toy_paragraphs():
    """Yield the sentences of the toy language, each as a paragraph, and "" after each document."""
    for document in toy.language.documents():
        for sentence in document:
            yield toy.language.spell(sentence)
        yield ""


# The end of a sentence: . ! or ?, closing quotes and brackets, spaces, opening quotes and brackets.
# Group 1 is the first letter or digit of the next sentence. A match begins only at the first mark
# of a run of marks: to begin at each mark of "....." would take quadratic time. The part in (?=...)
# is only looked at: it belongs to the next sentence.
SENTENCE_END = re.compile(r"""(?<![.!?])[.!?]+["'”’)\]]*\s+(?=["'“‘(\[]*(\w))""")

# A full stop after one of these does not end a sentence.
# fmt: off
ABBREVIATIONS = {
    "mr", "mrs", "ms", "dr", "prof", "st", "sr", "jr", "rev", "hon", "gen", "col", "capt", "lt",
    "sgt", "maj", "gov", "sen", "rep", "pres", "messrs", "mme", "vs", "cf", "al", "approx", "dept",
    "inc", "ltd", "co", "corp", "bros", "mt", "ft", "fig", "figs", "vol", "vols", "ed", "eds",
    "jan", "feb", "apr", "aug", "sept", "oct", "nov", "dec",
}
# fmt: on

# The same, but only if a number follows: "No. 5", "p. 12".
BEFORE_NUMBERS = {"no", "nos", "p", "pp", "ch", "art", "op", "sec", "ca"}

# Initials without the last full stop: "J" in "J. Smith", "U.S" in "U.S. Army", "e.g" in "e.g. one".
INITIALS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]|[A-Z]")


def split_sentences(paragraph):
    """Split a paragraph into sentences. Each sentence keeps the spaces after it.

    A sentence ends at . ! or ? before a space, if the next word begins with a letter or a digit. It
    does not end there if this letter is lowercase, or if the full stop belongs to an abbreviation.
    An abbreviation is recognised at the beginning of a paragraph or after a space, also after
    opening quotes and brackets. It is not recognised after a tab or a dash.

        "Dr. Lee saw it. Who?"  ->  ["Dr. Lee saw it. ", "Who?"]
    """
    sentences = []
    start = 0
    for end in SENTENCE_END.finditer(paragraph):
        next_character = end[1]

        # A sentence does not begin with a lowercase letter.
        if next_character.islower():
            continue

        # A full stop may belong to an abbreviation. Look at the word before it; 12 characters are
        # enough for every word of the lists, and for six initials.
        if end[0].startswith("."):
            before = paragraph[max(0, end.start() - 12) : end.start()]
            word = before.split(" ")[-1].lstrip("\"'“‘([")
            if is_abbreviation(word, next_character):
                continue

        sentences.append(paragraph[start : end.end()])
        start = end.end()

    # What is left is the last sentence.
    sentences.append(paragraph[start:])
    return sentences


def is_abbreviation(word, next_character):
    """True if a full stop after `word` is part of an abbreviation."""
    if word.lower() in ABBREVIATIONS:
        return True
    if word.lower() in BEFORE_NUMBERS and next_character.isdigit():
        return True
    return INITIALS.fullmatch(word) is not None


# --- Tokenizer ------------------------------------------------------------------------------------
#
# A token is a word or a piece of a word. The symbol "▁" is the space before a word:
#
#     "The dogs bark."  ->  "▁the" "▁dog" "s" "▁bark" "."
#
# The vocabulary is learned in three steps:
#
#     sample_text    text from all parts of the corpus, at most SAMPLE_SIZE characters
#     count_forms    how often each form occurs: a word with its space, a number, a symbol
#     train_pieces   which pieces of the forms are the most useful ones


def sample_text(paragraphs):
    """Choose at most SAMPLE_SIZE characters of text from all parts of the corpus.

    The size of the text is not known in advance. So every paragraph is kept at first. Each time the
    sample is full, about half of it is dropped, and the chance of all later paragraphs is halved.
    In the end each paragraph of the text had the same chance to be kept.
    """
    random = Random(0)
    chance = 1.0
    kept = []
    size = 0
    for paragraph in paragraphs:
        # "" only marks the end of a document. Keep any other paragraph with probability `chance`.
        if not paragraph or random.random() >= chance:
            continue
        kept.append(paragraph)
        size += len(paragraph)

        # The sample is full: keep each paragraph with probability one half.
        while size > SAMPLE_SIZE:
            chance /= 2
            kept = [paragraph for paragraph in kept if random.random() < 0.5]
            size = sum(len(paragraph) for paragraph in kept)
    return kept


def untrained_tokenizer():
    """A tokenizer with all its rules but without a vocabulary."""
    tokenizer = Tokenizer(models.Unigram())

    # 1. Normalise: one form per character (NFKC: "ﬁ" becomes "fi"), lowercase, single spaces.
    #    Spaces at the end are dropped. A text before a typed [MASK] then ends in a word:
    #    "the [MASK]" and "the[MASK]" give the same ids.
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(left=False),
        ]
    )

    # 2. Split into forms (the library calls them pre-tokens). A piece never contains parts of two
    #    forms (as in SentencePiece):
    #    "the dog's 2 km." -> "▁the" "▁dog" "'" "s" "▁2" "▁km" "."
    #    A space becomes "▁" and belongs to the word after it. A form is a sequence of letters, of
    #    digits or of other symbols: \p{L} is any letter, \p{M} an accent, \p{N} a digit.
    spaces = pre_tokenizers.Metaspace(prepend_scheme="first")
    forms = pre_tokenizers.Split(
        Regex(r"▁?(?:[\p{L}\p{M}]+|\p{N}+|[^\p{L}\p{M}\p{N}▁]+)"), "isolated"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([spaces, forms])

    # 3. Back from pieces to text: "▁" becomes a space again.
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return tokenizer


def count_forms(tokenizer, sample):
    """Count how often each form occurs in the sample.

    Example:
        ["The dog, the dogs"]  ->  {"▁the": 2, "▁dog": 1, ",": 1, "▁dogs": 1}

    Only a form, or a part of a form, can become a piece of the vocabulary.
    """
    # Count the words first: each different word then passes through the tokenizer only once.
    #     {"The": 1, "dog,": 1, "the": 1, "dogs": 1}
    words = Counter()
    for paragraph in sample:
        words.update(paragraph.split())

    # Split each word into forms. A word on its own gives the same forms as in its sentence, because
    # the space before it is added in both cases.
    #     "The" -> "▁the"        "dog," -> "▁dog" ","
    forms = Counter()
    for word, count in words.items():
        if len(word) > LONGEST_WORD:
            continue
        normalized = tokenizer.normalizer.normalize_str(word)
        for form, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized):
            forms[form] += count
    return forms


def share_of_long_words(sample):
    """The share of the characters of a sample, without its spaces, in words > LONGEST_WORD."""
    characters = 0
    in_long_words = 0
    for paragraph in sample:
        for word in paragraph.split():
            characters += len(word)
            if len(word) > LONGEST_WORD:
                in_long_words += len(word)
    return in_long_words / max(1, characters)


def train_pieces(forms, max_pieces):
    """Train a unigram language model (Kudo 2018) on the forms.

    The model gives each piece a probability; the probability of a form is the product over its
    pieces. Training begins with many pieces and removes those that the forms need least.

    Args:
        forms: {form: how often it occurs}.
        max_pieces: the number of pieces, at most, without SPECIAL_TOKENS.

    Returns:
        A list of (piece, score), where the score is the log-probability of the piece: first all
        single characters, then the most likely pieces. The same forms always give the same list.
    """
    # Ask for 10 % more pieces than needed, because step 2 removes some. Ask for at least one more:
    # with exactly as many pieces as there are characters, the trainer may never end.
    trainer = trainers.UnigramTrainer(
        vocab_size=max_pieces + max(1, max_pieces // 10), show_progress=False, unk_token="[UNK]"
    )

    # Step 1: train. The forms are already split, so the trainer only splits at spaces.
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator(training_lines(forms), trainer)
    trained = json.loads(tokenizer.to_str())["model"]["vocab"]  # [[piece, score], ...]

    # Step 2: remove the pieces that cannot occur in a text. These are the trainer's own "[UNK]",
    # and pieces such as "▁dog▁", which come from `training_lines`.
    pieces = []
    for piece, score in trained:
        if piece != "[UNK]" and "▁" not in piece[1:]:
            pieces.append((piece, score))

    # Step 3: make the scores the same in all runs. Two things differ from run to run: which rare
    # character gets which of the lowest scores, and the last digits of all scores, because the
    # trainer adds numbers in another order.
    pieces = level_rare_characters(pieces)
    pieces = [(piece, round(score, 3)) for piece, score in pieces]

    # Step 4: sort. Single characters come first, so that none of them is cut off at the end.
    pieces.sort(key=rank_of_piece)
    return pieces[:max_pieces]


def training_lines(forms):
    """Yield each form as often as it occurs, in a way that makes the trainer see complete words.

    The trainer makes a list of all DIFFERENT words. Only strings that occur at least twice in this
    list can become pieces. In the list "▁dog" "▁dogs" "▁cat" these are "▁dog", "og" and so on, but
    not "▁cat", no matter how often the word "▁cat" occurs in the text. Most complete words would
    never become pieces. So we add a "▁" at the end of one copy of each form:

        {"▁cat": 3, "▁zoo": 1}  ->  "▁cat ▁cat ▁cat▁", "▁zoo"

    Now "▁cat" occurs in two different words, "▁cat" and "▁cat▁", and can become a piece. A form
    that occurs only once, such as "▁zoo", is not worth a piece.
    """
    for form, count in forms.items():
        # A form that occurs once stays as it is.
        if count == 1:
            yield form

        # Otherwise the last copy gets the additional "▁".
        else:
            copies = [form] * (count - 1)
            copies.append(form + "▁")
            yield " ".join(copies)


def level_rare_characters(pieces):
    """Give all characters that are too rare to be pieces the same score, the lowest one.

    Every character must be in the vocabulary. So the trainer adds the characters that did not
    become pieces. It gives them the lowest score and the scores just above it, in steps of 1e-4.
    Which character gets which of these scores differs between two runs:

        one run         "q" -14.0000    "x" -13.9999    "z" -13.9998
        another run     "z" -14.0000    "q" -13.9999    "x" -13.9998
        our result      "q" -14.0       "x" -14.0       "z" -14.0
    """
    lowest = min(score for _, score in pieces)

    # With n characters there are at most n such steps. So the scores of the characters that were
    # added are below lowest + n * 1e-4.
    characters = sum(1 for piece, _ in pieces if len(piece) == 1)
    limit = lowest + 1e-4 * characters

    # Give all of them the lowest score.
    leveled = []
    for piece, score in pieces:
        if len(piece) == 1 and score < limit:
            score = lowest
        leveled.append((piece, score))
    return leveled


def rank_of_piece(piece_and_score):
    """The sorting key: single characters first, then high scores first, then by alphabet."""
    piece, score = piece_and_score
    is_longer = len(piece) > 1  # False is sorted before True
    return is_longer, -score, piece


def train_tokenizer(sample, vocab_size, log):
    """Train a unigram tokenizer on a list of paragraphs.

    Args:
        sample: a list of paragraphs.
        vocab_size: the number of tokens, SPECIAL_TOKENS included. The tokenizer has fewer if the
            sample is too small for so many.
        log: called with one line of text.

    Returns:
        A tokenizers.Tokenizer. The same sample always gives the same one.

    Raises:
        UserError: the vocabulary is too small for all different characters, or each word of the
            text is longer than LONGEST_WORD characters.
    """
    tokenizer = untrained_tokenizer()
    forms = count_forms(tokenizer, sample)
    if sample and not forms:
        raise UserError(
            f"none of its words has {LONGEST_WORD} characters or fewer: "
            f"are there spaces between its words?"
        )

    # Characters that occur only in long words have no token: they become [UNK].
    long_share = share_of_long_words(sample)
    if long_share > LONG_WORDS_WARNING:
        log(
            f"{100 * long_share:.0f} % of the text is in words of more than {LONGEST_WORD} "
            "characters, which do not train the vocabulary, so that parts of them may become "
            "[UNK]: are there spaces between its words?"
        )

    # Every character is a piece, so that each form can be written with pieces. "▁" is the space
    # before a word.
    characters = set("".join(forms))
    characters.add("▁")
    max_pieces = vocab_size - len(SPECIAL_TOKENS)
    if len(characters) > max_pieces:
        needed = len(characters) + len(SPECIAL_TOKENS)
        raise UserError(
            f"a vocabulary of {vocab_size:,} is too small: the {len(characters):,} different "
            f"characters of the text and the special tokens need {needed:,}"
        )

    # In a language with few word forms, like the toy language, each form is one piece. All pieces
    # get the same score, -1. The tokenizer chooses the pieces with the highest sum of scores, so it
    # chooses as few pieces as possible: "▁dog" (-1) and not "▁" "d" "o" "g" (-4).
    characters_and_forms = characters | set(forms)
    if len(forms) <= SMALL_LANGUAGE and len(characters_and_forms) <= max_pieces:
        pieces = [(piece, -1.0) for piece in sorted(characters_and_forms)]
        size = len(pieces) + len(SPECIAL_TOKENS)
        log(f"vocabulary: {size:,} tokens; the language is small, so each word form is one token")

    # Any other language: learn the pieces.
    else:
        sample_size = sum(len(paragraph) for paragraph in sample)
        log(f"training a vocabulary on {sample_size:,} characters of text")
        pieces = train_pieces(forms, max_pieces)
        if len(pieces) < max_pieces:
            size = len(pieces) + len(SPECIAL_TOKENS)
            log(f"vocabulary: {size:,} tokens, not {vocab_size:,}: no more pieces were found")

    # The special tokens come first, so that their ids are 0 to 4.
    special = [(token, 0.0) for token in SPECIAL_TOKENS]
    tokenizer.model = models.Unigram(special + pieces, unk_id=UNK)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


# --- Preparation: from text to token ids in the cache ---------------------------------------------


def prepare_corpus(names, cache_dir, seq_len, vocab_size=VOCABULARY_SIZE, log=print):
    """Get a corpus from the cache, or prepare it now.

    The cache recognises text files by their path, size and modification time, downloaded files by
    their SHA-256, and the toy language by the SHA-256 of toy/language.py.

    Args:
        names: a list of BUILT_IN names, text files (.txt, .gz, .xz) and folders of text files. A
            text file holds one paragraph per line, and an empty line between two documents.
        cache_dir: the folder of the cache.
        seq_len: the longest row in tokens; longer pairs are cut.
        vocab_size: the number of tokens in the vocabulary, SPECIAL_TOKENS included.
        log: called with one line of text at a time.

    Returns:
        A Corpus.

    Raises:
        UserError: the corpus cannot be used, or an argument is impossible.
        OSError: a download failed, or the disk is full.
    """
    # Token ids are stored in 16 bits.
    smallest = len(SPECIAL_TOKENS) + 1
    largest = 1 << 16
    if not smallest <= vocab_size <= largest:
        raise UserError(
            f"a vocabulary has from {smallest} to {largest:,} tokens, not {vocab_size:,}"
        )
    if seq_len < 8:
        raise UserError(f"sequences must have at least 8 tokens, not {seq_len}")

    # Each corpus has its own folder in the cache. The name of the folder is a hash of everything
    # that the corpus depends on. The length of the rows is not part of it, because pairs are cut
    # only when they are used.
    sources = text_files.find_sources(names, log)
    identity = [identity_of(source) for source in sources]
    key = hashlib.sha256(json.dumps([PREPARATION, vocab_size, identity]).encode()).hexdigest()
    folder = Path(cache_dir) / key[:16]

    # Read the corpus from the cache. If it is not there, or its files are damaged, prepare it.
    title = ", ".join(str(name) for name in names)
    with corpus_cache.corpus_lock(folder, title, log):
        prepared = corpus_cache.load_if_intact(folder, log)
        if prepared is None:
            log(f"preparing {title}, once, in {folder}")
            with corpus_cache.named_in_errors(title):
                fill_cache(sources, identity, folder, vocab_size, log)
            prepared = corpus_cache.load(folder)
    corpus = Corpus(prepared, seq_len)

    # Describe it.
    counts = corpus.counts
    known_percent = 100 * counts["known"] / len(corpus.held_out)
    log(
        f"corpus {title}: {counts['documents']:,} documents, {counts['sentences']:,} sentences, "
        f"{counts['tokens']:,} tokens, vocabulary {corpus.vocab_size:,}; "
        f"{len(corpus.train):,} pairs to train on, {len(corpus.held_out):,} held out, "
        f"{known_percent:.1f} % of which also occur word for word among the training pairs"
    )
    return corpus


def identity_of(source):
    """A value by which the cache recognises a source. It changes if the text changes."""
    if source == "toy":
        return sha256_of(toy.language.__file__)
    if source in WIKITEXT:
        return WIKITEXT[source]["sha256"]
    state = source.stat()
    return [str(source.resolve()), state.st_size, state.st_mtime_ns]


def fill_cache(sources, identity, folder, vocab_size, log):
    """Prepare a corpus and put it into the new folder `folder` of the cache.

    The text is read twice, paragraph by paragraph: once for the tokenizer and once for the token
    ids. So it does not have to fit in memory.
    """
    # Download the corpora that have to be downloaded.
    files = []
    for source in sources:
        if source in WIKITEXT:
            files.append(text_files.download_wikitext(source, folder.parent / "downloads"))
        else:
            files.append(source)

    # The folder gets its name only after all its files are complete.
    with new_folder(folder) as new:
        # Read the text for the first time: train the tokenizer.
        paragraphs = read_text(files, "reading", log)
        tokenizer = train_tokenizer(sample_text(paragraphs), vocab_size, log)

        # Read it for the second time: write the token ids. Do not repeat the warnings.
        paragraphs = read_text(files, "token ids", log=lambda line: None)
        counts = write_token_ids(paragraphs, tokenizer, new)

        if counts["pairs"] < 2:
            raise UserError(
                f"too little text: {counts['sentences']} sentences, {counts['pairs']} pairs of "
                f"sentences from the same document; at least 2 pairs are needed, one to train on "
                f"and one to hold out"
            )
        if [identity_of(source) for source in sources] != identity:
            raise UserError("its text was changed while it was read: start again")

        # Count the held-out pairs that occur among the training pairs, too.
        first_sentences = pair_sentences(corpus_cache.read_array(new, "documents.bin"))
        train, held_out = split_pairs(counts["pairs"])
        counts["known"] = corpus_cache.count_known_pairs(new, first_sentences, train, held_out)
        corpus_cache.write_tokenizer_and_meta(new, tokenizer, counts)


def read_text(files, stage, log):
    """Yield the paragraphs of all files one by one, and "" after the last one of each document.

    Args:
        files: Paths of text files; "toy" is the built-in language.
        stage: the name of the progress bar.
        log: called with one line of text if some bytes of a file cannot be read.
    """
    total = sum(file.stat().st_size for file in files if file != "toy")

    # None shows the bar only on a terminal. The toy language is not read from disk: no bar.
    disable = None
    if total == 0:
        disable = True

    with tqdm(total=total, desc=stage, unit="B", unit_scale=True, disable=disable) as bar:
        for file in files:
            if file == "toy":
                yield from toy_paragraphs()
            else:
                yield from text_files.read_paragraphs(file, bar, log)


def write_token_ids(paragraphs, tokenizer, folder):
    """Split the paragraphs into sentences, encode these and write the ids into `folder`.

    The files are described in support/corpus_cache.py.

    Returns:
        The counts {"documents", "sentences", "tokens", "pairs"}.
    """
    # With encode_special_tokens, "[SEP]" in a text is ordinary text and not the special token.
    tokenizer.encode_special_tokens = True
    encode_sentence = make_sentence_encoder(tokenizer)

    def sentences():
        for paragraph in paragraphs:
            # The empty paragraph is the end of a document.
            if paragraph == "":
                yield None
            else:
                yield from map(encode_sentence, split_sentences(paragraph))

    counts = corpus_cache.write_arrays(folder, sentences())

    # From now on "[MASK]" in a text is the special token, so that users can type it.
    tokenizer.encode_special_tokens = False
    return counts


def make_sentence_encoder(tokenizer):
    """Make a fast function encode_sentence(sentence) -> its token ids as bytes, two per id.

    No piece reaches across a space. So the ids of a sentence are the ids of its words, one after
    the other, and the ids of frequent words can be remembered.
    """

    # "<u2": two bytes per id, the lower one first on every machine
    def encode(word):
        return np.array(tokenizer.encode(word).ids, dtype="<u2").tobytes()

    # the same function, but the ids of the words that were used last are remembered
    encode_and_remember = lru_cache(maxsize=REMEMBERED_WORDS)(encode)

    def encode_sentence(sentence):
        ids = []
        for word in sentence.split():
            # Very long "words" are rare. To remember them would only fill the memory.
            if len(word) <= LONGEST_WORD:
                ids.append(encode_and_remember(word))
            else:
                ids.append(encode(word))
        return b"".join(ids)

    return encode_sentence


# --- Pairs: two sentences in one row --------------------------------------------------------------


def pair_sentences(document_starts):
    """Pair the sentences (0, 1), (2, 3), ... of each document. If one is left over, it is not used.

    No sentence is in two pairs, and no pair reaches across the end of a document.

    Args:
        document_starts: (documents + 1,) the first sentence of each document, and at the end the
            number of all sentences.

    Returns:
        (pairs,) the first sentence of each pair; the second one is the next sentence.

    Example: a document of 3 sentences (0, 1, 2) and one of 4 sentences (3, 4, 5, 6).

        document_starts                       0 3 7
        pairs per document                    1 2
        pairs before each document            0 1
        pair                                  0 | 1 2     (numbered through the corpus)
        pair within its document              0 | 0 1     pair - pairs before its document
        first sentence of its document        0 | 3 3
        first sentence of the pair            0 | 3 5     that + 2 * pair within its document
    """
    pairs = np.diff(document_starts) // 2  # (documents,)
    pairs_before = np.cumsum(pairs) - pairs  # (documents,)

    # np.repeat gives each pair the value of its document.
    pair = np.arange(pairs.sum())  # (pairs,)
    pair_in_document = pair - np.repeat(pairs_before, pairs)  # (pairs,)
    first_of_document = np.repeat(document_starts[:-1], pairs)  # (pairs,)
    return first_of_document + 2 * pair_in_document


def split_pairs(count):
    """Split `count` pairs into pairs to train on and pairs to hold out; both have at least one.

    About HELD_OUT_SHARE of the pairs are held out, at most HELD_OUT_PAIRS. They are blocks of
    consecutive pairs from all parts of the text, so that few training pairs are neighbours of a
    held-out pair. The choice depends on `count` only.

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


def kept_lengths(length_a, length_b, room):
    """How much of two sentences is kept if they must fit into `room` tokens together.

    The result is the same as when tokens are removed one by one, each time from the longer sentence
    (from b if both are equal), until both fit.

        a = 9, b = 3, room = 8   ->   5, 3      only a is cut
        a = 9, b = 7, room = 8   ->   4, 4      both are cut to one half
        a = 9, b = 7, room = 9   ->   5, 4      a keeps the odd token
        a = 2, b = 3, room = 8   ->   2, 3      both fit
    """
    # Sentence a may use what b leaves free, or one half (rounded up) if that is more.
    half = (room + 1) // 2
    kept_a = min(length_a, max(room - length_b, half))

    # Sentence b may use the rest.
    kept_b = min(length_b, room - kept_a)
    return kept_a, kept_b


def batch_width(longest, seq_len):
    """The width N of a batch: its longest row, rounded up to a multiple of PAD_TO_MULTIPLE_OF.

    It is never above seq_len:

        longest = 21, seq_len = 128   ->    24
        longest = 99, seq_len = 100   ->   100
    """
    width = math.ceil(longest / PAD_TO_MULTIPLE_OF) * PAD_TO_MULTIPLE_OF
    return min(width, seq_len)


def pad_pairs(pairs, seq_len):
    """Turn pairs of sentences into the rows of a batch.

        a = 10 11 12, b = 20 21     ->   [CLS] 10 11 12 [SEP] 20 21 [SEP]
        a = 10 11 12, b = None      ->   [CLS] 10 11 12 [SEP] [PAD] [PAD] [PAD]

    Args:
        pairs: a list of (a, b), each a sequence of token ids; b is None for a single sentence.
        seq_len: the longest row allowed. Longer pairs are cut, the longer sentence first.

    Returns:
        (B, N) a numpy array of int64.
    """
    # How many tokens of a and b each row keeps, and how long the longest row is.
    kept = []
    longest = 0
    for a, b in pairs:
        if b is None:
            kept_a = min(len(a), seq_len - 2)  # without [CLS] and [SEP]
            kept_b = 0
            length = kept_a + 2
        else:
            kept_a, kept_b = kept_lengths(len(a), len(b), seq_len - 3)  # one more [SEP]
            length = kept_a + kept_b + 3
        kept.append((kept_a, kept_b))
        longest = max(longest, length)

    # Begin with padding everywhere, then write each row into it.
    shape = (len(pairs), batch_width(longest, seq_len))
    input_ids = np.full(shape, PAD, dtype=np.int64)  # (B, N)
    for row, (a, b), (kept_a, kept_b) in zip(input_ids, pairs, kept, strict=True):
        # [CLS] a [SEP]
        end_a = 1 + kept_a
        row[0] = CLS
        row[1:end_a] = a[:kept_a]
        row[end_a] = SEP

        # b [SEP]
        if b is not None:
            start_b = end_a + 1
            end_b = start_b + kept_b
            row[start_b:end_b] = b[:kept_b]
            row[end_b] = SEP
    return input_ids


# --- Batches: a pure function of (seed, step) -----------------------------------------------------


def draw_epoch(train, seed, epoch, batch_size):
    """Draw the batches of one epoch at random.

    The rows are shuffled and cut into batches. Rows that are left over, because they do not fill a
    last batch, are not used. Every epoch has a new order, so other rows are left over. Each row of
    `train` occurs at most once per epoch, with one exception: if there are fewer rows than one
    batch needs, they are repeated to fill it.

    Args:
        train: (training rows,) the indices of the rows to draw from.
        seed, epoch: two integers. The same two always give the same batches.
        batch_size: B, the number of rows per batch.

    Returns:
        (batches, B) indices of rows.
    """
    # Shuffle the rows.
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(train)  # (training rows,)

    # Cut to complete batches. If there are too few rows for one batch, repeat them to fill it.
    # np.resize does both. With B = 3:
    #     rows 5 2 6 0 3 1 4   ->   5 2 6 | 0 3 1
    #     rows 1 0             ->   1 0 1
    batches = batches_per_epoch(len(train), batch_size)
    order = np.resize(order, batches * batch_size)  # (batches * B,)
    return order.reshape(batches, batch_size)  # (batches * B,) -> (batches, B)


def batches_per_epoch(rows, batch_size):
    """How many batches an epoch of so many rows has: complete ones only, but at least one."""
    return max(1, rows // batch_size)


def regroup_by_length(batches, token_counts, seed, epoch):
    """Regroup random batches so that they need little padding and have equally many tokens.

    A random batch mixes short and long rows, so about half of it is padding. Here the rows of
    BATCHES_PER_BUCKET batches are sorted by length and cut again, into as many batches as before.
    The numbers are the tokens of each row that can be masked:

        3 random batches of B = 2 rows        (10 40)(20 10)(20 20)
        their rows, sorted                     10 10 20 20 20 40        120 tokens
        3 batches of 40 tokens                (10 10 20)(20 20)(40)

    Why equally many tokens, and not equally many rows? The loss is the mean over the masked tokens
    of a batch. With two rows per batch, (10 10) would have 20 tokens and (20 40) would have 60: a
    token of the first batch would weigh three times as much as a token of the last one. With 40
    tokens per batch all tokens weigh the same, as they do on average in random batches. There are
    still B rows per batch on average.

    Args:
        batches: (batches, B) indices of rows, drawn at random.
        token_counts: (rows,) how many tokens of each row can be masked.
        seed, epoch: two integers. The same two always give the same order of the batches.

    Returns:
        A list of index arrays, one per batch, in random order.
    """
    regrouped = []
    for start in range(0, len(batches), BATCHES_PER_BUCKET):
        bucket = batches[start : start + BATCHES_PER_BUCKET]  # (batches of the bucket, B)

        # Sort the rows of the bucket by length. Rows of equal length stay in their random order.
        rows = bucket.ravel()
        rows = rows[np.argsort(token_counts[rows], kind="stable")]

        # Cut them into as many batches, with equally many tokens.
        begins = equal_parts(token_counts[rows], len(bucket))
        regrouped += np.split(rows, begins)

    # Shuffle the batches. Otherwise a bucket would begin with its shortest rows. The 1 in the seed
    # makes the random numbers differ from those of draw_epoch.
    random = np.random.default_rng([seed, epoch, 1])
    order = random.permutation(len(regrouped))
    return [regrouped[index] for index in order]


def equal_parts(token_counts, parts):
    """Cut a sequence of rows into parts with equally many tokens, each with at least one row.

    Args:
        token_counts: (rows,) the tokens of each row; at least as many rows as parts.
        parts: the number of parts.

    Returns:
        A list of the parts - 1 indices at which a new part begins.

    Example: 6 rows, 3 parts of 40 tokens. A row belongs to the part in which its middle is.

        tokens    10  10  20  20  20  40
        middle     5  15  30  50  70 100
        part       0   0   0   1   1   2      so new parts begin at the rows 3 and 5
    """
    middles = np.cumsum(token_counts) - token_counts / 2  # (rows,)
    per_part = token_counts.sum() / parts

    begins = []
    previous = 0
    for part in range(1, parts):
        begin = int(np.searchsorted(middles, part * per_part))

        # At least one row for the part before this one, and for each of the parts after it.
        begin = max(begin, previous + 1)
        begin = min(begin, len(token_counts) - (parts - part))
        begins.append(begin)
        previous = begin
    return begins


class BatchSource:
    """What training batches are drawn from: a corpus, the sentences of a GLUE task, random rows.

    A source is a table of rows of token ids. A subclass provides:

        vocab_size       the number of tokens in the vocabulary
        seq_len          the longest row allowed, in tokens
        lengths          (rows,) numpy integers: the number of tokens of each row, including [CLS]
                         and [SEP], but not [PAD]
        train            (training rows,) numpy integers: the indices of the rows to train on
        rows(indices)    the rows with these indices as a batch: (B,) -> (B, N) numpy int64, where
                         N is at most seq_len; shorter rows are filled up with PAD

    The subclass inherits the following methods. Their results depend only on the arguments:

        epoch_batches(seed, epoch, batch_size)  all batches of an epoch, in the order of the steps:
                                                random ones, of B = batch_size rows each. In Corpus
                                                they are regrouped, and B is batch_size on average.
        batch_indices(seed, step, batch_size)   (B,) the indices of the batch of a training step
        batch(seed, step, batch_size)           (B, N) int64 tensor: the batch itself
    """

    vocab_size: int
    seq_len: int
    lengths: np.ndarray
    train: np.ndarray

    # The batches of the last epoch that was asked for, and its (seed, epoch, batch_size).
    _kept_key = None
    _kept_batches = None

    def rows(self, indices):
        """The rows with these indices: (B,) -> (B, N), a numpy array of int64."""
        raise NotImplementedError(f"{type(self).__name__} must define rows(indices)")

    def epoch_batches(self, seed, epoch, batch_size):
        """The batches of an epoch: a sequence of index arrays (B,), in the order of the steps."""
        return draw_epoch(self.train, seed, epoch, batch_size)

    def batch_indices(self, seed, step, batch_size):
        """The indices (B,) of the rows in the batch of a training step."""
        # With 10 batches per epoch, step 23 is batch 3 of epoch 2.
        batches = batches_per_epoch(len(self.train), batch_size)
        epoch = step // batches
        index = step % batches

        # All batches of an epoch are drawn together, once, and kept for the steps of the epoch.
        key = (seed, epoch, batch_size)
        if self._kept_key != key:
            self._kept_batches = self.epoch_batches(seed, epoch, batch_size)
            self._kept_key = key
        return self._kept_batches[index]

    def batch(self, seed, step, batch_size):
        """The batch of a training step: input_ids (B, N), an int64 tensor on the CPU."""
        indices = self.batch_indices(seed, step, batch_size)
        return torch.from_numpy(self.rows(indices))


# --- Corpus: a prepared corpus as a source of batches ---------------------------------------------


class Corpus(BatchSource):
    """A prepared corpus, cut into pairs of sentences. A row is [CLS] first [SEP] second [SEP].

    In addition to what every BatchSource has:

        tokenizer          the tokenizers.Tokenizer
        fingerprint        a short string, equal for two corpora with equal tokenizer and token ids
        counts             {"documents", "sentences", "tokens", "pairs", "known"}; known is the
                           number of held-out pairs that also occur, word for word, among the
                           training pairs
        tokens             (tokens,) the ids of all tokens of the corpus
        sentence_starts    (sentences + 1,) where each sentence begins in `tokens`, and the end
        first_sentences    (pairs,) the first sentence of each pair
        held_out           (held-out pairs,) the indices of the pairs that are not trained on
    """

    def __init__(self, prepared, seq_len):
        self.counts = prepared.counts
        self.fingerprint = prepared.fingerprint
        self.tokenizer = prepared.tokenizer
        self.token_file = prepared.token_file
        self.sentence_starts = prepared.sentence_starts
        self.vocab_size = prepared.tokenizer.get_vocab_size()
        self.seq_len = seq_len

        # Pair the sentences, and choose the pairs that are held out.
        self.first_sentences = pair_sentences(prepared.document_starts)  # (pairs,)
        self.train, self.held_out = split_pairs(len(self.first_sentences))

        # The length of each row: both sentences, [CLS] and two [SEP], but never above seq_len.
        begin = self.sentence_starts[self.first_sentences]
        end = self.sentence_starts[self.first_sentences + 2]
        self.lengths = np.minimum(end - begin + 3, seq_len)  # (pairs,)

    @property
    def tokens(self):
        """(tokens,) all token ids, on disk. Raises UserError if the file was changed meanwhile."""
        return self.token_file.array()

    def epoch_batches(self, seed, epoch, batch_size):
        """The batches of an epoch: pairs of similar length, equally many tokens in each batch."""
        batches = draw_epoch(self.train, seed, epoch, batch_size)  # (batches, batch_size)

        # All tokens of a row can be masked, except [CLS] and two [SEP]. [UNK] cannot be masked
        # either, but it is rare and is counted here.
        return regroup_by_length(batches, self.lengths - 3, seed, epoch)

    def rows(self, indices):
        """The pairs with these indices: (B,) -> (B, N), a numpy array of int64."""
        # Where the first sentence begins, where the second one begins, and where it ends.
        first = self.first_sentences[indices]  # (B,)
        begins = self.sentence_starts[first].tolist()
        middles = self.sentence_starts[first + 1].tolist()
        ends = self.sentence_starts[first + 2].tolist()

        tokens = self.tokens
        pairs = []
        for begin, middle, end in zip(begins, middles, ends, strict=True):
            pairs.append((tokens[begin:middle], tokens[middle:end]))
        return pad_pairs(pairs, self.seq_len)

    @cached_property
    def held_out_rows(self):
        """All held-out pairs, masked and sorted by length.

        The masks are the same for all models, seeds and batch sizes. They depend on seq_len.

        Returns (masked_ids, labels), both (held-out pairs, N).
        """
        by_length = np.argsort(self.lengths[self.held_out], kind="stable")
        input_ids = torch.from_numpy(self.rows(self.held_out[by_length]))  # (held-out pairs, N)

        # Masks from seed 0. In a very short held-out text it can happen that no token is chosen:
        # then use the next seed.
        generator = torch.Generator()
        for seed in range(100):
            generator.manual_seed(seed)
            masked_ids, labels = mask_tokens(input_ids, self.vocab_size, generator)
            if (labels != IGNORED).any():
                break
        return masked_ids, labels

    def held_out_batches(self, batch_size):
        """Yield every held-out pair once, masked: batches (masked_ids, labels), both (B, N)."""
        all_masked_ids, all_labels = self.held_out_rows  # both (held-out pairs, longest row)
        for start in range(0, len(all_labels), batch_size):
            masked_ids = all_masked_ids[start : start + batch_size]
            labels = all_labels[start : start + batch_size]

            # Rows of similar length are neighbours. Drop the columns that only hold padding.
            longest = int((masked_ids != PAD).sum(dim=1).max())
            width = batch_width(longest, self.seq_len)
            yield masked_ids[:, :width].contiguous(), labels[:, :width].contiguous()

    def most_frequent_token(self):
        """The id of the most frequent token, special ones excluded.

        It is the best guess of a model that knows nothing about the sentence.
        """
        # np.bincount copies its input. So count a part of the tokens at a time.
        parts = np.array_split(self.tokens, len(self.tokens) // COUNTED_AT_ONCE + 1)
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for part in parts:
            counts += np.bincount(part, minlength=self.vocab_size)

        ordinary = counts[len(SPECIAL_TOKENS) :]
        return int(ordinary.argmax()) + len(SPECIAL_TOKENS)


# --- Masks ----------------------------------------------------------------------------------------
#
# pretrain.train_step makes new masks in each step. The held-out rows have fixed masks: see
# Corpus.held_out_rows.


def mask_tokens(input_ids, vocab_size, generator):
    """Hide some tokens, as BERT does (Devlin et al. 2019, section 3.1).

    Each ordinary token is chosen with probability MASK_PROBABILITY, independently of the others.
    Special tokens, [UNK] among them, are never chosen. Of the chosen tokens

        80 % are replaced by [MASK],
        10 % are replaced by an ordinary token that is drawn at random,
        10 % stay as they are.

    The model must predict the original token at every chosen position.

    One random number per token, from 0 to 1, decides which of these happens. Below 0.15 the token
    is chosen, and the range from 0 to 0.15 is divided in the ratio 80 : 10 : 10:

        0               0.12         0.135       0.15                            1
        |    [MASK]     |   random   |   same    |          not chosen           |

    Example:

        input_ids      the      cat     [SEP]    sat      on       mats
        random number  0.05     0.90    0.03     0.125    0.14     0.50
        masked_ids     [MASK]   cat     [SEP]    dog      on       mats
        labels         the      -100    -100     sat      on       -100

    Args:
        input_ids: (B, N) integer tensor of token ids.
        vocab_size: the number of tokens in the vocabulary.
        generator: a torch.Generator on the device of input_ids.

    Returns:
        masked_ids: (B, N) the ids that the model gets.
        labels: (B, N) the original ids of the chosen tokens, -100 everywhere else. -100 is the
            label that torch's cross_entropy ignores (model.IGNORED).

    On a GPU this function only starts work and never reads a result, so the CPU does not wait.
    """
    shape = input_ids.shape
    device = input_ids.device

    # One number from [0, 1) per token, and one ordinary token per position. The results depend on
    # the order of these two lines.
    draw = torch.rand(shape, generator=generator, device=device)  # (B, N)
    random_ids = torch.randint(
        len(SPECIAL_TOKENS), vocab_size, shape, generator=generator, device=device
    )  # (B, N)

    # Which tokens are chosen, which of the chosen ones are replaced, and which of the replaced ones
    # become [MASK]: the limits are 0.15, 0.135 and 0.12, as in the drawing above.
    ordinary = input_ids >= len(SPECIAL_TOKENS)
    chosen = ordinary & (draw < MASK_PROBABILITY)
    replaced = ordinary & (draw < 0.9 * MASK_PROBABILITY)
    becomes_mask = ordinary & (draw < 0.8 * MASK_PROBABILITY)

    # The original ids of the chosen tokens; -100 where there is nothing to predict.
    labels = input_ids.masked_fill(~chosen, IGNORED)

    # First replace 90 % of the chosen tokens by random ones, then most of these by [MASK].
    masked_ids = torch.where(replaced, random_ids, input_ids)
    masked_ids = masked_ids.masked_fill(becomes_mask, MASK)
    return masked_ids, labels
