"""toy/pairs.py: pairs whose labels are checked by tables and rules of this file's own."""

import hashlib
import json
import re
from collections import Counter
from dataclasses import replace

import pytest

from toy import language, pairs
from toy.pairs import PARADIGMS, PHENOMENA, SAME_WORDS, WORDS_DECIDE, Cast, zero_shot_pairs
from toy_words import REFLEXIVES, is_noun, is_plural, pronoun_for, words_of

SHA256_OF_ALL_PAIRS = "1597e387e26dbb9f051290eaab6d92b4a39086c3977c28aa031279e93d34e232"
DISTANCES = [name for name, (phenomenon, _) in PARADIGMS.items() if phenomenon == "agreement"]


def bag(*texts):
    """How often each word is in all the texts together."""
    return Counter(words_of(" ".join(texts)))


def only_difference(pair):
    """(index, word of the good sentence, word of the bad one) of the only word that differs."""
    good, bad = words_of(pair.good), words_of(pair.bad)
    assert len(good) == len(bad)
    different = [i for i in range(len(good)) if good[i] != bad[i]]
    assert len(different) == 1, pair
    return different[0], good[different[0]], bad[different[0]]


@pytest.fixture(scope="module")
def all_pairs():
    return {name: zero_shot_pairs(name) for name in PARADIGMS}


# --- All paradigms --------------------------------------------------------------------------------


def test_all_pairs_have_the_published_hash(all_pairs):
    digest = hashlib.sha256(json.dumps(all_pairs).encode()).hexdigest()
    assert digest == SHA256_OF_ALL_PAIRS


@pytest.mark.parametrize("name", PARADIGMS)
def test_order_alone_decides_the_words_are_the_same_or_those_of_the_twin(all_pairs, name):
    """Twins: what is right in one pair has the words of what is wrong in the other one."""
    phenomenon, _ = PARADIGMS[name]
    if phenomenon in SAME_WORDS:
        for context, good, bad in all_pairs[name]:
            assert bag(context, good) == bag(context, bad)
        return

    for first, second in zip(all_pairs[name][0::2], all_pairs[name][1::2], strict=True):
        assert first != second
        if phenomenon in WORDS_DECIDE:
            assert (first.good, first.bad) == (second.bad, second.good)
            continue
        assert bag(first.context, first.good) == bag(second.context, second.bad)
        assert bag(first.context, first.bad) == bag(second.context, second.good)


# --- Agreement ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DISTANCES)
def test_agreement_distance_and_number_of_head_and_distractor_are_right(all_pairs, name):
    distance = int(name.removeprefix("distance_"))
    for pair in all_pairs[name]:
        place, right, wrong = only_difference(pair)
        words = words_of(pair.good)
        nouns = [i for i, word in enumerate(words) if is_noun(word)]

        # the subject is the first noun, and the verb agrees with it
        head = nouns[0]
        assert words[:2] == ["the", words[head]]
        form = {False: "was", True: "were"}
        assert right == form[is_plural(words[head])]
        assert wrong == form[not is_plural(words[head])]
        assert place - head == distance

        # the distractor: the last noun before the verb, or for small distances the one after it
        before = [i for i in nouns if head < i < place]
        after = [i for i in nouns if i > place]
        if distance >= 4:
            distractor = before[-1]
            assert not after
        else:
            distractor = after[0]
        assert is_plural(words[distractor]) != is_plural(words[head])

        # no other word of the sentence agrees with the subject
        others = words[:place] + words[place + 1 :]
        assert not {"is", "are", "was", "were", "does", "do", "itself", "themselves"} & {*others}


def test_the_last_noun_before_the_verb_is_mostly_the_wrong_one(all_pairs):
    """docs/tour.md. Shares of right verbs, in per cent, at each distance, if one agrees with it."""
    shares = []
    for name in DISTANCES:
        right = []
        for pair in all_pairs[name]:
            place, verb, _ = only_difference(pair)
            before = [word for word in words_of(pair.good)[:place] if is_noun(word)]
            right.append(is_plural(before[-1]) == (verb == "were"))
        shares.append(100 * sum(right) / len(right))
    assert shares == [100, 100, 50] + 9 * [0]


# --- Reflexives -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reflexive_near", "reflexive_relative"])
def test_a_reflexive_agrees_with_the_first_noun_and_not_with_the_second(all_pairs, name):
    for pair in all_pairs[name]:
        place, right, wrong = only_difference(pair)
        words = words_of(pair.good)
        assert place == len(words) - 1 and words[-2] == "washed"
        head, distractor = (word for word in words if is_noun(word))
        assert right == REFLEXIVES[pronoun_for(head)]
        assert wrong == REFLEXIVES[pronoun_for(distractor)]


# --- CoLA's ten phenomena -------------------------------------------------------------------------


def noun_named(singular):
    return language.Noun(singular, f"{singular}s", "animal")


CAST = Cast(
    subject=language.Entity(noun_named("dog")),
    other=language.Entity(noun_named("cat"), is_plural=True),
    verb=pairs.VERBS["chase"],
    first_form=True,
    preposition="near",
    mood="tired",
    man="tom",
    washer=("anna", "herself"),
    neighbour=("the cats", "themselves"),
    size="small",
    last_adjective="black",
    then=pairs.VERBS["follow"],
)

# phenomenon, and which of its forms; the correct sentence, the wrong sentence
PAIRS = """
    agreement 1
        the dog chases the cats .
        the dog chase the cats .
    across_preposition 1
        the dog near the cats was tired .
        the dog near the cats were tired .
    across_relative 1
        the dog that chased the cats was tired .
        the dog that chased the cats were tired .
    across_relative 2
        the dog that the cats chased was tired .
        the dog that the cats chased were tired .
    reflexive 1
        anna near the cats washed herself .
        anna near the cats washed themselves .
    adjective_order 1
        the small black dog chased the cats .
        the black small dog chased the cats .
    word_order 1
        the dog was chased by the cats .
        the dog was by chased the cats .
    word_order 2
        the dog was chased by the cats .
        the dog chased was by the cats .
    question_order 1
        was the dog chased by the cats ?
        chased by the dog was the cats ?
    question_order 2
        did the dog chase the cats ?
        chase the dog did the cats ?
    auxiliary 1
        the dog that did not chase the cats slept .
        the dog that did not chased the cats sleep .
    auxiliary 2
        the dog that chased the cats did not sleep .
        the dog that chase the cats did not slept .
    participle 1
        the dog that bit the cats was woken by tom .
        the dog that bitten the cats was woke by tom .
    participle 2
        the dog that woke the cats was bitten by tom .
        the dog that woken the cats was bit by tom .
    gap 1
        the dog that the cats chased followed tom .
        the dog that the cats chased tom followed .
"""
PAIRS = re.findall(r"(\w+) ([12])\n +(.+)\n +(.+)\n", PAIRS)


@pytest.mark.parametrize("phenomenon, form, right, wrong", PAIRS)
def test_each_phenomenon_makes_the_pair_that_its_docstring_shows(phenomenon, form, right, wrong):
    cast = replace(CAST, first_form=form == "1")
    make = PHENOMENA[phenomenon]
    assert make(cast) == (right, wrong)
    assert right in make.__doc__
    assert wrong in make.__doc__
