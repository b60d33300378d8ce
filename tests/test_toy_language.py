"""toy/language.py: the same bytes everywhere, and a grammar checked by rules of this file's own."""

import hashlib
import itertools
import re
from dataclasses import replace
from random import Random

import pytest

from toy import language
from toy.language import Entity, Event, State
from toy_words import MEN, NAMES, PEOPLE, REFLEXIVES, WOMEN

SHA256_OF_2000 = "9ff0d833c69caef548c5d9267a34adc0b744c15b535d71f1d21fa0e8538a9e57"


# --- The checker's own lexicon: enough to read a statement from left to right ---------------------


def word_set(text):
    return {*text.split()}


DETERMINERS = word_set("the a an some two three many every all no")
SIZES = word_set("small big tall short")
AGES = word_set("old young new")
COLOURS = word_set("black white brown grey red yellow")
ADJECTIVES = SIZES | AGES | COLOURS
KINDS = word_set("animal bird person tool flower fruit animals birds people tools flowers fruits")
PLURALS = {"mice", "geese", "children", "people", "they"}  # and every noun that ends in s
SINGULAR_VERBS = word_set("is was does has")
PLURAL_VERBS = word_set("are were do have")
PAST = word_set("did had fed woke bit slept ate hid drank ran gave stole sold bought")  # and -ed

# {form: singular} of all nouns, and the words for kinds
SINGULAR = {}
for _nouns in language.NOUNS.values():
    SINGULAR |= {singular: singular for singular in _nouns}
    SINGULAR |= {plural: singular for singular, plural in _nouns.items() if plural}
NOUNS = {*SINGULAR, *KINDS}


def is_plural(noun):
    return noun in PLURALS or noun.endswith("s")


def number_of(verb):
    """True for plural, False for singular, None for a past tense that shows neither."""
    if verb in SINGULAR_VERBS:
        return False
    if verb in PLURAL_VERBS:
        return True
    if verb in PAST or (verb.endswith("ed") and verb != "feed"):
        return None
    return not verb.endswith("s")


def noun_phrase(words, start):
    """(head noun of the phrase that begins at words[start], index of the word after it)."""
    i = start
    while words[i] in DETERMINERS | ADJECTIVES:
        i += 1
    return words[i], i + 1


def verbs_of(words):
    """What must agree in a statement.

    Returns:
        (pairs, attractor): the (noun, verb) pairs that must agree, the main verb last, and the noun
        in the subject's modifier, or None.
    """
    head, i = noun_phrase(words, 0)
    pairs = []
    attractor = None

    # the cat near the dogs
    if words[i] in ("near", "behind", "beside", "with", "in"):
        attractor, i = noun_phrase(words, i + 1)

    elif words[i] in ("that", "who"):
        next_word = words[i + 1]

        # the cat that the dogs chased
        if next_word in DETERMINERS | NAMES:
            attractor, i = noun_phrase(words, i + 1)
            pairs.append((attractor, words[i]))
            i += 1

        # the cat that chased the dogs, the cat that was chased by the dogs
        else:
            pairs.append((head, next_word))
            verb_words = 1
            if words[i + 3] == "by":
                verb_words = 3
            attractor, i = noun_phrase(words, i + 1 + verb_words)

    pairs.append((head, words[i]))
    return pairs, attractor


def statements(pairs):
    """All clauses of the text, except questions, answers by yes or no, and lists of two."""
    for words in itertools.chain.from_iterable(pairs):
        if words[-1] != "." or words[1] == "," or "and" in words:
            continue
        for part in re.split(" because | but ", " ".join(words)):
            yield part.split()


def sentences_of(documents):
    """All sentences of all documents, as one list."""
    return list(itertools.chain.from_iterable(documents))


@pytest.fixture(scope="module")
def documents():
    return list(language.documents(seed=11, sentences=20_000))


@pytest.fixture(scope="module")
def pairs(documents):
    """Sentences 1 and 2, 3 and 4, ... of every document, as lists of words."""
    found = []
    for document in documents:
        for i in range(0, len(document), 2):
            found.append((document[i].split(), document[i + 1].split()))
    return found


# --- The same everywhere --------------------------------------------------------------------------


def test_the_text_has_the_published_hash():
    text = "\n".join(sentences_of(language.documents(0, 2000)))
    assert hashlib.sha256(text.encode()).hexdigest() == SHA256_OF_2000


# --- Form -----------------------------------------------------------------------------------------


def test_documents_have_four_six_or_eight_sentences_and_the_text_as_many_as_asked(documents):
    assert {len(document) for document in documents} == {4, 6, 8}
    assert 20_000 <= len(sentences_of(documents)) < 20_000 + 8


def test_no_document_draws_a_noun_in_two_of_its_pairs(documents):
    for document in documents:
        seen = set()
        for i in range(0, len(document), 2):
            words = document[i].split() + document[i + 1].split()
            used = {SINGULAR[word] for word in words if word in SINGULAR}
            assert not used & seen, document
            seen |= used


def test_spelling_removes_the_spaces_before_marks_and_no_others():
    assert language.spell("the dog barks .") == "the dog barks."
    assert language.spell("did it bark ? no , it did not .") == "did it bark? no, it did not."


# --- Grammar --------------------------------------------------------------------------------------


def test_verbs_agree_with_their_own_noun_and_not_with_the_nearest(pairs):
    tempting = 0
    for words in statements(pairs):
        agreeing, attractor = verbs_of(words)
        for noun, verb in agreeing:
            assert number_of(verb) in (None, is_plural(noun)), " ".join(words)

        # Here the nearest noun would have been wrong.
        noun, verb = agreeing[-1]
        if attractor is not None and number_of(verb) is not None:
            tempting += is_plural(attractor) != is_plural(noun)
    assert tempting > 500


def test_determiners_agree_with_their_noun(documents):
    singular = {"a", "an", "every"}
    plural = {"some", "two", "three", "many", "all"}
    for sentence in sentences_of(documents):
        words = sentence.split()
        for i, word in enumerate(words):
            if word in singular | plural:
                noun, _ = noun_phrase(words, i)
                assert is_plural(noun) == (word in plural), sentence
            if word in ("a", "an"):
                assert (word == "an") == (words[i + 1][0] in "aeiou"), sentence


def test_adjectives_come_in_the_order_size_age_colour(documents):
    rank = {}
    for i, words in enumerate((SIZES, AGES, COLOURS)):
        rank |= dict.fromkeys(words, i)

    seen = set()
    for sentence in sentences_of(documents):
        for first, second in itertools.pairwise(sentence.split()):
            if first in rank and second in rank:
                seen.add((rank[first], rank[second]))
    assert seen == {(0, 1), (0, 2), (1, 2)}


def pronoun_fits(pronoun, noun):
    """Whether a pronoun can mean a noun, by number and gender."""
    if pronoun in ("they", "them"):
        return is_plural(noun)
    if pronoun in ("she", "her"):
        return noun in WOMEN
    if pronoun in ("he", "him"):
        return noun in MEN
    return not is_plural(noun) and noun not in NAMES | PEOPLE | {"person"}  # it


def test_pronouns_have_an_antecedent_of_their_number_and_gender_before_them(pairs):
    pronouns = {"they", "them", "she", "her", "he", "him", "it"}
    seen = set()
    for first, second in pairs:
        both = first + second
        for i, word in enumerate(both):
            if word in pronouns:
                nouns_before = [noun for noun in both[:i] if noun in NOUNS]
                assert any(pronoun_fits(word, noun) for noun in nouns_before), (first, second)
                seen.add(word)
    assert seen == pronouns


def test_reflexives_agree_with_their_subject(pairs):
    owner = {reflexive: pronoun for pronoun, reflexive in REFLEXIVES.items()}
    seen = set()
    for words in statements(pairs):
        reflexive = words[-2]
        # only sentences such as "the cat washed itself ."
        if reflexive not in owner:
            continue

        # which pronoun the subject is or has
        subject, _ = noun_phrase(words, 0)
        if subject in owner.values():
            expected = subject
        elif subject in WOMEN:
            expected = "she"
        elif subject in MEN:
            expected = "he"
        elif is_plural(subject):
            expected = "they"
        else:
            expected = "it"
        assert owner[reflexive] == expected, " ".join(words)
        seen.add(reflexive)
    assert seen == set(owner)


# --- Meaning --------------------------------------------------------------------------------------


def test_the_same_event_makes_statements_questions_and_relative_clauses():
    dogs = Entity(language.Noun("dog", "dogs", "animal"), is_plural=True)
    cat = Entity(language.Noun("cat", "cats", "animal"))
    chase = language.EVENT_VERBS[0]
    event = Event(cat, chase, dogs)
    denied = replace(event, negated=True)
    in_passive = language.passive(event)

    # statements, questions, answers
    assert language.clause(denied) == "the cat does not chase the dogs"
    assert language.yes_no_question(event) == "does the cat chase the dogs ?"
    assert language.subject_question(event) == "who chases the dogs ?"
    assert language.object_question(event) == "who does the cat chase ?"
    assert language.subject_question(in_passive) == "who is chased by the cat ?"
    assert language.short_answer(denied) == "the cat does not"

    # relative clauses about the object and about the subject
    known_by_active = language.modified_by(dogs, event)
    assert language.phrase(known_by_active) == "the dogs that the cat chases"
    known_by_passive = language.modified_by(dogs, in_passive)
    assert language.phrase(known_by_passive) == "the dogs that are chased by the cat"
    chaser = language.modified_by(cat, replace(event, past=True))
    tired = State(chaser, "tired", past=True)
    assert language.clause(tired) == "the cat that chased the dogs was tired"


# --- What the documentation says ------------------------------------------------------------------


def test_the_scene_that_the_module_s_docstring_shows_works():
    lines = language.__doc__.split("def playing_scene")[1].split("\n\n")[0]
    program = "def playing_scene" + lines.replace("\n" + " " * 18, "\n")
    names = dict(vars(language))
    exec(program, names)

    story = language.Story(Random(0).random)
    first, second = names["playing_scene"](story)
    assert re.fullmatch(r".* (play|plays|played) \.", first)
    assert re.fullmatch(r".* (is|are|was|were) not ill \.", second)
