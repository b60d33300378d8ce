"""toy.py: the same bytes everywhere, and a grammar checked by rules of this file's own."""

import hashlib
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import toy
from toy import Entity, Event, State

ROOT = Path(__file__).parent.parent
SHA256_OF_2000 = "9ff0d833c69caef548c5d9267a34adc0b744c15b535d71f1d21fa0e8538a9e57"

# The checker's own lexicon: enough to take a statement apart from left to right.
DETERMINERS = set("the a an some two three many every all no".split())
SIZES, AGES = set("small big tall short".split()), set("old young new".split())
COLOURS = set("black white brown grey red yellow".split())
ADJECTIVES = SIZES | AGES | COLOURS
WOMEN, MEN = set("anna maria emma ruth".split()), set("tom david omar paul".split())
JOBS = set("child farmer doctor teacher baker sailor nurse pilot singer person".split())
PLURALS = {"mice", "geese", "children", "people", "they"}  # and whatever ends in s
SINGULAR_VERBS, PLURAL_VERBS = set("is was does has".split()), set("are were do have".split())
PAST = set("did had fed woke bit slept ate hid drank ran gave stole sold bought".split())  # and -ed
NOUNS = {form for nouns in toy.NOUNS.values() for noun in nouns for form in noun[:2]} | {"animal", "bird", "animals",
         "birds", "person", "people", "tool", "tools", "flower", "flowers", "fruit", "fruits"}


def is_plural(noun):
    return noun in PLURALS or noun.endswith("s")


def number_of(verb):
    """True for plural, False for singular, None for a past tense that shows neither."""
    if verb in SINGULAR_VERBS | PLURAL_VERBS:
        return verb in PLURAL_VERBS
    return None if verb in PAST or verb.endswith("ed") and verb != "feed" else not verb.endswith("s")


def noun_phrase(words, i):
    """Head noun of the phrase that begins at words[i], and where what follows it begins."""
    while words[i] in DETERMINERS | ADJECTIVES:
        i += 1
    return words[i], i + 1


def verbs_of(words):
    """The (noun, verb) pairs of a statement that must agree, and its attractor, the noun in the subject's modifier."""
    head, i = noun_phrase(words, 0)
    pairs, attractor = [], None
    if words[i] in ("near", "behind", "beside", "with", "in"):
        attractor, i = noun_phrase(words, i + 1)
    elif words[i] in ("that", "who"):
        verb = words[i + 1]
        if verb in DETERMINERS | WOMEN | MEN:  # the cat that the dogs chased
            attractor, i = noun_phrase(words, i + 1)
            pairs, i = [(attractor, words[i])], i + 1
        else:  # the cat that chased the dogs, the cat that was chased by the dogs
            pairs = [(head, verb)]
            attractor, i = noun_phrase(words, i + (4 if words[i + 3] == "by" else 2))
    return pairs + [(head, words[i])], attractor


def statements(pairs):
    """All clauses of the text but questions, their answers by yes or no, and lists of two."""
    for words in itertools.chain(*pairs):
        if words[-1] == "." and words[1] != "," and "and" not in words:
            text = " ".join(words)
            yield from (part.split() for part in re.split(" because | but ", text))


@pytest.fixture(scope="module")
def documents():
    return list(toy.documents(seed=11, sentences=20_000))


@pytest.fixture(scope="module")
def pairs(documents):
    return [(document[i].split(), document[i + 1].split())
            for document in documents for i in range(0, len(document), 2)]


def digest(seed, sentences):
    return hashlib.sha256("\n".join(itertools.chain(*toy.documents(seed, sentences))).encode()).hexdigest()


# ---- The same everywhere -------------------------------------------------------------------------------------------


def test_the_text_has_the_published_hash():
    assert digest(0, 2000) == SHA256_OF_2000


@pytest.mark.parametrize("hash_seed", ["0", "1", "4294967295"])
def test_a_fresh_interpreter_with_another_hash_seed_generates_the_same_text(hash_seed):
    program = "import itertools, sys, toy; sys.stdout.write('|'.join(itertools.chain(*toy.documents(7, 500))))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, encoding="utf-8",
                         env=os.environ | {"PYTHONHASHSEED": hash_seed}, check=True)
    assert run.stdout == "|".join(itertools.chain(*toy.documents(7, 500)))


def test_two_calls_agree_and_two_seeds_do_not():
    assert digest(3, 500) == digest(3, 500)
    assert digest(3, 500) != digest(4, 500)


def test_a_longer_text_begins_with_the_shorter_one():
    short, long = list(toy.documents(5, 300)), list(toy.documents(5, 900))
    assert long[:len(short)] == short and len(long) > len(short)


def test_the_command_line_prints_the_documents():
    run = subprocess.run([sys.executable, "toy.py", "--seed", "2", "--sentences", "30"], cwd=ROOT, capture_output=True,
                         text=True, encoding="utf-8", check=True)
    assert run.stdout.strip().split("\n\n") == ["\n".join(document) for document in toy.documents(2, 30)]


# ---- Form ----------------------------------------------------------------------------------------------------------


def test_documents_hold_four_six_or_eight_sentences_and_the_text_as_many_as_asked(documents):
    assert {len(document) for document in documents} == {4, 6, 8}
    assert 20_000 <= sum(map(len, documents)) < 20_000 + 8


def test_sentences_are_lower_case_words_between_single_blanks_that_end_in_a_mark(documents):
    form = re.compile(r"[a-z]+( ,)?( [a-z]+( ,)?)+ [.?]")
    assert not [sentence for document in documents for sentence in document if not form.fullmatch(sentence)]


def test_the_vocabulary_has_between_150_and_300_words_and_none_is_rare():
    sentences = itertools.chain(*toy.documents(0, 50_000))
    counts = Counter(word for sentence in sentences for word in sentence.split())
    assert 150 <= len(counts) <= 300
    assert min(counts.values()) >= 5


def test_no_document_draws_a_noun_in_two_of_its_pairs(documents):
    forms = {form: noun.singular for nouns in toy.NOUNS.values() for noun in nouns for form in noun[:2] if form}
    for document in documents:
        used = [{forms[word] for sentence in document[i:i + 2] for word in sentence.split() if word in forms}
                for i in range(0, len(document), 2)]
        assert sum(map(len, used)) == len(set().union(*used)), document


# ---- Grammar -------------------------------------------------------------------------------------------------------


def test_verbs_agree_with_their_own_noun_and_not_with_the_nearest(pairs):
    tempted = 0
    for words in statements(pairs):
        agreeing, attractor = verbs_of(words)
        for noun, verb in agreeing:
            assert number_of(verb) in (None, is_plural(noun)), " ".join(words)
        noun, verb = agreeing[-1]
        tempted += attractor is not None and is_plural(attractor) != is_plural(noun) and number_of(verb) is not None
    assert tempted > 500  # the nearest noun would have been wrong


def test_determiners_agree_with_their_noun(documents):
    singular, plural = {"a", "an", "every"}, {"some", "two", "three", "many", "all"}
    for sentence in itertools.chain(*documents):
        words = sentence.split()
        for i, word in enumerate(words):
            if word in singular | plural:
                assert is_plural(noun_phrase(words, i)[0]) == (word in plural), sentence
            if word in ("a", "an"):
                assert (word == "an") == (words[i + 1][0] in "aeiou"), sentence


def test_adjectives_stand_in_the_order_size_age_colour(documents):
    rank = {word: i for i, words in enumerate((SIZES, AGES, COLOURS)) for word in words}
    seen = set()
    for sentence in itertools.chain(*documents):
        for first, second in itertools.pairwise(sentence.split()):
            if first in rank and second in rank:
                seen.add((rank[first], rank[second]))
    assert seen == {(0, 1), (0, 2), (1, 2)}


def test_pronouns_have_an_antecedent_of_their_number_and_gender_before_them(pairs):
    fits = {"they": is_plural, "she": WOMEN.__contains__, "he": MEN.__contains__,
            "it": lambda noun: not is_plural(noun) and noun not in WOMEN | MEN | JOBS}
    fits |= {"them": fits["they"], "her": fits["she"], "him": fits["he"]}
    seen = set()
    for first, second in pairs:
        for words, before in ((first, 0), (second, len(first))):
            for i, word in enumerate(words):
                if word in fits:
                    nouns = [noun for noun in (first + second)[:before + i] if noun in NOUNS]
                    assert any(map(fits[word], nouns)), (first, second)
                    seen.add(word)
    assert seen == set(fits)


def test_reflexives_agree_with_their_subject(pairs):
    owner = {"itself": "it", "themselves": "they", "herself": "she", "himself": "he"}
    seen = set()
    for words in statements(pairs):
        if words[-2] in owner:
            subject, reflexive = noun_phrase(words, 0)[0], words[-2]
            kind = "she" if subject in WOMEN else "he" if subject in MEN else "they" if is_plural(subject) else "it"
            assert owner[reflexive] == (subject if subject in owner.values() else kind), " ".join(words)
            seen.add(reflexive)
    assert seen == set(owner)


# ---- Meaning -------------------------------------------------------------------------------------------------------

OUTCOMES = {  # what the doer is, or does, and what the one it is done to
    "chase chases chased": ("tired sleep sleeps slept", "afraid hide hides hid"),
    "feed feeds fed": ("kind", "full hungry"),
    "follow follows followed": ("behind", "ahead"),
    "bite bites bit bitten": ("angry", "hurt"),
}


def test_what_follows_depends_on_who_did_it_to_whom_in_actives_and_passives_alike(pairs):
    checked = {"active": 0, "passive": 0}
    for first, second in pairs:
        words = [word for word in first if word not in ("do", "does", "did", "not")]
        subject, i = noun_phrase(words, 0)
        voice = "passive" if "by" in words else "active"
        verb = words[i + 1] if voice == "passive" else words[i]
        states = next((states for forms, states in OUTCOMES.items() if verb in forms.split()), None)
        if states is None or first[-1] == "?" or {"that", "who", "because"} & {*first, *second}:
            continue
        other, end = noun_phrase(words, i + (3 if voice == "passive" else 1))
        agent, patient = (other, subject) if voice == "passive" else (subject, other)
        assert words[end:] == ["."]
        state = second[-2]
        expected = agent if state in states[0].split() else patient
        assert state in " ".join(states).split(), second
        named = noun_phrase(second, 0)[0]
        if named in NOUNS - {"animal", "animals", "bird", "birds", "person", "people"}:
            assert named == expected, (first, second)
        else:
            assert is_plural(named) == is_plural(expected), (first, second)
        assert ("not" in first) == ("not" in second) or state == "hungry", (first, second)
        checked[voice] += 1
    assert min(checked.values()) > 100


def test_a_passive_swaps_the_nouns_and_keeps_the_roles():
    dog, cats = Entity(toy.NOUNS["animal"][0]), Entity(toy.NOUNS["animal"][1], plural=True)
    for verb in toy.EVENTS:
        event = Event(dog, verb, cats, past=True)
        assert toy.clause(event) == f"the dog {verb.past} the cats"
        assert toy.clause(toy.passive(event)) == f"the cats were {verb.participle} by the dog"
        assert toy.clause(toy.passive(event._replace(subject=cats, object=dog, past=False))) == (
            f"the dog is {verb.participle} by the cats")
        assert toy.outcomes(event) == ((cats, verb.patient_state), (dog, verb.agent_state))


def test_opinions_in_a_pair_agree_once_negations_are_counted(pairs):
    good = set("good funny lovely great like likes liked enjoy enjoys enjoyed".split())
    bad = set("bad dull boring awful hate hates hated".split())

    def favourable(words):
        return (len(good & {*words}) - len({"not", "nobody"} & {*words})) % 2 == 1

    checked = 0
    for first, second in pairs:
        if (good | bad) & {*first} and (good | bad) & {*second}:
            if "but" in first:  # the soup was not good but the cake was: the second speaks of the soup
                first = first[:first.index("but")]
            assert favourable(first) == favourable(second), (first, second)
            checked += 1
    assert checked > 500


def test_yes_and_no_take_up_the_question_s_auxiliary(pairs):
    answers = [(first, second) for first, second in pairs if second[1] == ","]
    assert len(answers) > 300
    for first, second in answers:
        assert first[-1] == "?" and (second[0] == "no") == ("not" in second)
        assert first[0] == second[-3 if second[0] == "no" else -2], (first, second)


def test_the_same_event_makes_statements_questions_and_relative_clauses():
    dogs, cat = Entity(toy.NOUNS["animal"][0], plural=True), Entity(toy.NOUNS["animal"][1])
    event = Event(cat, toy.EVENTS[0], dogs)
    assert toy.clause(event._replace(negated=True)) == "the cat does not chase the dogs"
    assert toy.question(event) == "does the cat chase the dogs ?"
    assert toy.question(event, "subject") == "who chases the dogs ?"
    assert toy.question(event, "object") == "who does the cat chase ?"
    assert toy.question(toy.passive(event), "subject") == "who is chased by the cat ?"
    assert toy.short_answer(event._replace(negated=True)) == "the cat does not"
    assert toy.phrase(dogs._replace(modifier=event._replace(object=None))) == "the dogs that the cat chases"
    assert toy.phrase(dogs._replace(modifier=toy.passive(event)._replace(subject=None))) == (
        "the dogs that are chased by the cat")
    chaser = cat._replace(modifier=event._replace(subject=None, past=True))
    assert toy.clause(State(chaser, "tired", past=True)) == "the cat that chased the dogs was tired"


def test_chasers_of_several_are_tired_in_the_singular(documents):
    sentences = [sentence for document in documents for sentence in document]
    seen = {match[1] for sentence in sentences
            if (match := re.fullmatch(r"the \w+ that chased the \w+s (\w+) tired \.", sentence))}
    assert "was" in seen
