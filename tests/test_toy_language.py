"""toy/language.py: the same bytes everywhere."""

import hashlib

from model_helpers import toy_tokenizer
from support.tokenizer import Encoder
from toy import __main__, language

SHA256_OF_2000 = "9ff0d833c69caef548c5d9267a34adc0b744c15b535d71f1d21fa0e8538a9e57"


def test_pairs_of_sentences_never_mix_two_documents():
    """Pair i of a corpus is the sentences 2i and 2i + 1 of all documents (data.py)."""
    for document in language.documents(0, 20_000):
        assert len(document) in (4, 6, 8)


def test_the_text_has_the_published_hash():
    sentences = []
    for document in language.documents(0, 2000):
        sentences += document
    assert hashlib.sha256("\n".join(sentences).encode()).hexdigest() == SHA256_OF_2000


def test_sentences_are_printed_as_they_are_trained_on(run_program):
    """Typed as printed, a sentence has no piece that training never has."""
    printed = run_program(__main__.main, "--sentences 40").out.split("\n")
    written = []
    for document in language.documents(0, 40):
        written += [language.spell(text) for text in document]
    assert [line for line in printed if line] == written
    assert not any(" ." in line or " ?" in line or " ," in line for line in printed)
    encode = Encoder(toy_tokenizer(2000, 1000))
    space = encode.tokenizer.token_to_id("\u2581")
    assert not any(space in encode(line) for line in printed)
