"""The tokenizer: a vocabulary of word pieces is learned from a text, then turns texts into ids.

A token is a word or a piece of a word. The symbol "▁" is the space before a word:

    "The dogs bark."  ->  "▁the" "▁dog" "s" "▁bark" "."

The vocabulary is learned in three steps:

    sample_text    text from all parts of the corpus, at most SAMPLE_SIZE characters
    count_forms    how often each form occurs: a word with its space, a number, a symbol
    train_pieces   which pieces of the forms are the most useful ones

The pieces are learned and applied by the library "tokenizers".
"""

import json
import re
from collections import Counter
from functools import lru_cache
from random import Random

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from support.commands import UserError

# The special tokens have the ids 0 to 4. Ids from 5 on are pieces of text.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL_TOKENS))

NEVER_WRITTEN = (PAD, UNK, CLS, MASK)  # by a model that writes a text

# In place of a token id, in labels: nothing is to be predicted here. torch's cross_entropy ignores
# this number.
IGNORED = -100

VOCABULARY_SIZE = 30_004  # 30,000 pieces of words, [UNK] among them, and 4 more special tokens
SMALL_VOCABULARY = 8_192  # of a text with fewer bytes than LARGE_TEXT (docs/text.md says why)
LARGE_TEXT = 50_000_000
SMALL_LANGUAGE = 1_000  # with at most this many word forms, each word form is one token
SAMPLE_SIZE = 32_000_000  # characters of text, at most, on which a tokenizer is trained
LONGEST_WORD = 100  # characters; longer words do not train the tokenizer
LONG_SHARE = 0.01  # if more of the sample is in such words, they are cut to this length
REMEMBERED_WORDS = 1 << 20  # words for which the token ids are kept in memory
# Marks of typesetting that nobody sees, inside of words too: a soft hyphen, a space of no width, a
# word joiner, a byte order mark. Joiners that change letters, as in Persian and Hindi, stay.
INVISIBLE = "\u00ad\u200b\u2060\ufeff"
# Spaces at which Python splits a text, and others may not.
ODD_SPACES = "\x0b\x0c\x1c-\x1f\x85"
NOT_BY_WORD = re.compile(f"[{ODD_SPACES}{INVISIBLE}]")
PROBE = "the dog a b it isn't, he said 12 3 \u4e00 \u4e8c"  # see Encoder


# --- Learning the vocabulary ----------------------------------------------------------------------


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
        # Keep it with probability `chance`.
        if random.random() >= chance:
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

    # 1. Normalise: without INVISIBLE characters, one form per character (NFKC: "ﬁ" becomes "fi"),
    #    lowercase, single spaces. Spaces at the end are dropped. A text before a typed [MASK] then
    #    ends in a word: "the [MASK]" and "the[MASK]" give the same ids.
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(f"[{INVISIBLE}]"), ""),
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

    # Words longer than LONGEST_WORD are left out: most are addresses. But in a language without
    # spaces between words, they are the text: then they stay, and are cut.
    characters = {word: len(word) * count for word, count in words.items()}
    long_words = [word for word in words if len(word) > LONGEST_WORD]
    in_long_words = sum(characters[word] for word in long_words)
    if in_long_words <= LONG_SHARE * sum(characters.values()):
        for word in long_words:
            del words[word]

    # Split each word into forms. A word on its own gives the same forms as in its sentence, because
    # the space before it is added in both cases.
    #     "The" -> "▁the"        "dog," -> "▁dog" ","
    forms = Counter()
    for word, count in words.items():
        for start in range(0, len(word), LONGEST_WORD):
            normalized = tokenizer.normalizer.normalize_str(word[start : start + LONGEST_WORD])
            for form, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized):
                forms[form] += count
    return forms


def train_pieces(forms, max_pieces):
    """Train a unigram language model (Kudo 2018) on the forms.

    The model gives each piece a probability; the probability of a form is the product over its
    pieces. Training begins with many pieces and removes those that the forms need least.

    Args:
        forms: {form: how often it occurs}.
        max_pieces: the number of pieces, at most, without SPECIAL_TOKENS.

    Returns:
        A list of (piece, log-probability): first all single characters, then the most likely
        pieces. The same forms always give the same list.
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
    trained = json.loads(tokenizer.to_str())["model"]["vocab"]  # [[piece, log p], ...]

    # Step 2: remove the pieces that cannot occur in a text. These are the trainer's own "[UNK]",
    # and pieces such as "▁dog▁", which come from `training_lines`.
    pieces = [(piece, p) for piece, p in trained if piece != "[UNK]" and "▁" not in piece[1:]]

    # Step 3: make the log-probabilities the same in all runs. Two things differ from run to run:
    # which rare character gets which of the lowest ones, and the last digits of all of them,
    # because the trainer adds numbers in another order.
    pieces = level_and_round(pieces)

    # Step 4: sort. Single characters come first, so that none of them is cut off at the end.
    return sorted(pieces, key=rank_of_piece)[:max_pieces]


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
            yield f"{form} " * (count - 1) + f"{form}▁"


def level_and_round(pieces):
    """Yield the pieces. Characters that are too rare to be pieces all have the lowest probability.

    All log-probabilities are rounded to three digits after the point.

    Every character must be in the vocabulary. So the trainer adds the characters that did not
    become pieces. It gives them the lowest log-probability and those just above it, in steps of
    1e-4. Which character gets which of these differs between two runs:

        one run         "q" -14.0000    "x" -13.9999    "z" -13.9998
        another run     "z" -14.0000    "q" -13.9999    "x" -13.9998
        our result      "q" -14.0       "x" -14.0       "z" -14.0
    """
    lowest = min(log_probability for _, log_probability in pieces)

    # With n characters there are at most n such steps. So the characters that were added are
    # below lowest + n * 1e-4.
    characters = sum(1 for piece, _ in pieces if len(piece) == 1)
    limit = lowest + 1e-4 * characters

    # Give all of them the lowest log-probability, and round.
    for piece, log_probability in pieces:
        if len(piece) == 1 and log_probability < limit:
            log_probability = lowest
        yield piece, round(log_probability, 3)


def rank_of_piece(piece_and_log_probability):
    """The sorting key: single characters first, then likely pieces first, then by alphabet."""
    piece, log_probability = piece_and_log_probability
    is_longer = len(piece) > 1  # False is sorted before True
    return is_longer, -log_probability, piece


def train_tokenizer(sample, vocab_size):
    """Train a unigram tokenizer on a list of paragraphs.

    Args:
        sample: a list of paragraphs.
        vocab_size: the number of tokens, SPECIAL_TOKENS included. The tokenizer has fewer if the
            sample is too small for so many.

    Returns:
        A tokenizers.Tokenizer. The same sample always gives the same one.

    Raises:
        UserError: the vocabulary is too small for all different characters.
    """
    tokenizer = untrained_tokenizer()
    forms = count_forms(tokenizer, sample)

    # Every character is a piece, so that each form can be written with pieces. "▁" is the space
    # before a word.
    characters = {"▁", *"".join(forms)}
    max_pieces = vocab_size - len(SPECIAL_TOKENS)
    if len(characters) > max_pieces:
        needed = len(characters) + len(SPECIAL_TOKENS)
        raise UserError(
            f"a vocabulary of {vocab_size:,} is too small: the {len(characters):,} different "
            f"characters of the text and the special tokens need {needed:,}"
        )

    # In a language with few word forms, like the toy language, each form is one piece. All pieces
    # get the same log-probability, -1. The tokenizer chooses the pieces with the highest sum, so it
    # chooses as few pieces as possible: "▁dog" (-1) and not "▁" "d" "o" "g" (-4).
    characters_and_forms = characters | set(forms)
    if len(forms) <= SMALL_LANGUAGE and len(characters_and_forms) <= max_pieces:
        pieces = [(piece, -1.0) for piece in sorted(characters_and_forms)]
        reason = "the language is small, so each word form is one token"

    # Any other language: learn the pieces.
    else:
        sample_size = sum(len(paragraph) for paragraph in sample)
        print(f"training a vocabulary on {sample_size:,} characters of text")
        pieces = train_pieces(forms, max_pieces)
        reason = "no more pieces were found"
    if len(pieces) < max_pieces:
        size = len(pieces) + len(SPECIAL_TOKENS)
        print(f"vocabulary: {size:,} tokens, not {vocab_size:,}: {reason}")

    # The special tokens come first, so that their ids are 0 to 4.
    special = [(token, 0.0) for token in SPECIAL_TOKENS]
    tokenizer.model = models.Unigram(special + pieces, unk_id=UNK)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


# --- From texts to token ids ----------------------------------------------------------------------


def ids_of(tokenizer, text):
    """The ids of a text, a list, without special tokens around it."""
    # after a mark that is left out, the library does not see that the text begins
    return tokenizer.encode(text.lstrip(INVISIBLE), add_special_tokens=False).ids


class Encoder:
    """Turns texts into token ids, without special tokens.

    In our own vocabularies, no piece reaches across a space. So the ids of a text are the ids of
    its words, one after the other, and the ids of the last REMEMBERED_WORDS words are remembered:

        "the dog barks"  ->  ids of "the", ids of "dog", ids of "barks"

    Other tokenizers, such as byte-level ones, may give other pieces to a word after a space, and a
    token that was added to a published tokenizer may hold a space, as "new york" does: with them,
    whole texts are encoded.
    """

    def __init__(self, tokenizer):
        # A copy: in it, "[SEP]" in a text is ordinary text and not the special token. Users may
        # still type "[MASK]", which is the special token, with the tokenizer itself.
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self.tokenizer.encode_special_tokens = True
        self.remembered = lru_cache(maxsize=REMEMBERED_WORDS)(self.encode)
        # are the ids of a text those of its words? A short text shows it
        has_added = len(tokenizer.get_added_tokens_decoder()) > len(SPECIAL_TOKENS)
        self.by_word = not has_added and self.encode_words(PROBE) == self.encode(PROBE)

    def encode(self, text):
        """The ids of a text, as bytes: less memory than a list, and easily joined."""
        ids = ids_of(self.tokenizer, text)
        return np.array(ids, np.int32).tobytes()

    def encode_words(self, text):
        """The same, word by word."""
        return b"".join(map(self.remembered, text.split()))

    def __call__(self, text):
        """The token ids of a text: an array of int32."""
        if self.by_word and not NOT_BY_WORD.search(text):
            ids = self.encode_words(text)
        else:
            ids = self.encode(text)
        return np.frombuffer(ids, np.int32)


# --- What a model has not learned -----------------------------------------------------------------


def unknown_words(tokenizer, text, unseen):
    """The words and marks of `text` of which the model has not learned a piece, each once.

    A piece is not learned if it is [UNK], or if it is unseen. In the toy language each word is one
    piece, so the letters of "zebra" are unseen.

    unseen: ids of pieces that do not occur in the text of training.
    """
    encoding = tokenizer.encode(text, add_special_tokens=False)
    unknown = {}  # without values: a set in the order of the text
    for token, part in enumerate(encoding.word_ids):
        if encoding.ids[token] in (UNK, *unseen):
            # the tokenizer's own part of the text: a word, a number, or a group of marks; of marks
            # with the space before it, which may be what is unknown: "the dog ."
            form = text[slice(*encoding.word_to_chars(part))]
            word = form.strip()
            unknown[word if word.isalnum() else form] = None

    # repr writes what is invisible as a number, "\\u200d"; [1:-1] are its quotation marks
    return [repr(word)[1:-1] for word in unknown]
