"""toy/pairs.py: pairs whose labels are checked by tables and rules of this file's own."""

import hashlib
import json
import re
from collections import Counter
from dataclasses import replace

import pytest

from toy import language, pairs
from toy.glue import make_task
from toy.pairs import PARADIGMS, PHENOMENA, SAME_WORDS, WORDS_DECIDE, Cast, zero_shot_pairs
from toy_words import REFLEXIVES, is_human, is_noun, is_plural, nouns_in, pronoun_for, words_of

SHA256_OF_ALL_PAIRS = "1597e387e26dbb9f051290eaab6d92b4a39086c3977c28aa031279e93d34e232"
DISTANCES = [name for name, (phenomenon, _) in PARADIGMS.items() if phenomenon == "agreement"]

# fmt: off
OPPOSITES = {
    "good": "bad", "funny": "dull", "lovely": "boring", "great": "awful",
    "likes": "hates", "like": "hate", "liked": "hated",
    "enjoys": "hates", "enjoy": "hate", "enjoyed": "hated",
}
# the state after the event: of who did it, of whom it was done to
STATES = {
    "chased": ("tired", "afraid"), "helped": ("kind", "thankful"), "fed": ("kind", "full"),
    "scared": ("loud", "afraid"), "washed": ("wet", "clean"), "bit": ("angry", "hurt"),
}
# fmt: on


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


def test_all_pairs_have_the_published_hash_and_another_seed_gives_others(all_pairs):
    digest = hashlib.sha256(json.dumps(all_pairs).encode()).hexdigest()
    assert digest == SHA256_OF_ALL_PAIRS
    for name in PARADIGMS:
        assert zero_shot_pairs(name, 20) == all_pairs[name][:20]
    assert zero_shot_pairs("kinds", 20, seed=1) != all_pairs["kinds"][:20]


@pytest.mark.parametrize("name", PARADIGMS)
def test_a_paradigm_has_200_different_pairs_of_different_sentences(all_pairs, name):
    assert len(all_pairs[name]) == 200
    assert len(set(all_pairs[name])) == 200
    for pair in all_pairs[name]:
        assert pair.good != pair.bad
        assert len(words_of(pair.good)) == len(words_of(pair.bad))
        for text in (pair.good, pair.bad):
            assert re.fullmatch(r"[a-z]+( [a-z]+)+[.?]", text), text
        assert re.fullmatch(r"([a-z]+( [a-z]+)+[.?])?", pair.context), pair.context


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


# --- Reflexives and pronouns ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reflexive_near", "reflexive_relative"])
def test_a_reflexive_agrees_with_the_first_noun_and_not_with_the_second(all_pairs, name):
    for pair in all_pairs[name]:
        place, right, wrong = only_difference(pair)
        words = words_of(pair.good)
        assert place == len(words) - 1 and words[-2] == "washed"
        head, distractor = (word for word in words if is_noun(word))
        assert right == REFLEXIVES[pronoun_for(head)]
        assert wrong == REFLEXIVES[pronoun_for(distractor)]


def test_a_pronoun_has_the_number_of_the_one_in_this_state(all_pairs):
    for pair in all_pairs["pronoun_number"]:
        agent, patient = (word for word in words_of(pair.context) if is_noun(word))
        verb = next(word for word in words_of(pair.context) if word in STATES)
        pronoun, be, state = words_of(pair.good)
        who = {STATES[verb][0]: agent, STATES[verb][1]: patient}[state]
        assert (pronoun, be) == {True: ("they", "were"), False: ("it", "was")}[is_plural(who)]
        assert words_of(pair.bad)[0] == {"they": "it", "it": "they"}[pronoun]


# --- Roles ----------------------------------------------------------------------------------------


def agent_of(text):
    """Who does it, in an active or passive sentence with two nouns."""
    first, second = nouns_in(text)
    if re.search(r"\bby the|\bby [a-z]+\.", text):
        return second
    return first


@pytest.mark.parametrize("name", ["role_active", "role_passive"])
def test_people_feed_and_wash_animals_and_animals_bite_people(all_pairs, name):
    for pair in all_pairs[name]:
        bites = bool(re.search(r"\b(bit|bite|bites|bitten)\b", pair.good))
        assert is_human(agent_of(pair.good)) != bites
        assert is_human(agent_of(pair.bad)) == bites
        assert (" by " in pair.good) == (name == "role_passive")
        assert sorted(map(is_human, nouns_in(pair.good))) == [False, True]


@pytest.mark.parametrize("name", ["answer_subject", "answer_object"])
def test_an_answer_gives_the_one_of_the_question_the_same_role(all_pairs, name):
    for pair in all_pairs[name]:
        (asked,) = nouns_in(pair.context)
        agent, patient = nouns_in(pair.good)
        assert asked == (patient if name == "answer_subject" else agent)
        assert nouns_in(pair.bad) == [patient, agent]


BASES = {"chase": "chased", "help": "helped", "feed": "fed", "scare": "scared", "bite": "bit"}
FORMS = {base + "s": past for base, past in BASES.items()} | BASES | {"bitten": "bit"}
# other words for the states
SAME_STATE = {"sleep": "tired", "slept": "tired", "hide": "afraid", "hid": "afraid"}
SAME_STATE |= {"sleeps": "tired", "hides": "afraid", "hungry": "full", "quiet": "loud"}


@pytest.mark.parametrize("name", ["outcome_active", "outcome_passive"])
def test_a_state_belongs_to_the_one_with_this_role(all_pairs, name):
    for pair in all_pairs[name]:
        agent = agent_of(pair.context)
        (patient,) = [noun for noun in nouns_in(pair.context) if noun != agent]
        found = [FORMS.get(word, word) for word in words_of(pair.context)]
        (verb,) = [word for word in found if word in STATES]
        (state,) = [
            SAME_STATE.get(word, word)
            for word in words_of(pair.good)
            if SAME_STATE.get(word, word) in STATES[verb]
        ]
        who = {STATES[verb][0]: agent, STATES[verb][1]: patient}[state]
        assert nouns_in(pair.good) == [who]
        assert nouns_in(pair.bad) == [noun for noun in (agent, patient) if noun != who]


def test_a_thing_belongs_to_the_one_who_got_it(all_pairs):
    for pair in all_pairs["transfer"]:
        text = pair.context
        got_it = re.search(r"\bto the (?:\w+ )*?(\w+)(?= by|\.)", text)  # given or sold to
        if got_it:
            owner = got_it[1]
        else:  # stolen or bought from somebody, by the other one
            loser = re.search(r"\bfrom the (?:\w+ )*?(\w+)(?= by|\.)", text)[1]
            (owner,) = [noun for noun in nouns_in(text) if noun != loser]
        assert nouns_in(pair.good) == [owner]
        assert nouns_in(pair.bad) == [noun for noun in nouns_in(text) if noun != owner]


def test_a_pronoun_means_the_one_for_whom_it_is_a_reason(all_pairs):
    for pair in all_pairs["reason"]:
        effect, because = pair.context.split(" because ")
        names = nouns_in(pair.context)
        assert len(names) == 2

        # "... because they were kind": the state of the agent
        if len(nouns_in(effect)) == 2:
            (verb,) = [FORMS.get(w, w) for w in words_of(effect) if FORMS.get(w, w) in STATES]
            state = words_of(because)[-1]
            assert state == STATES[verb][0] == words_of(pair.good)[-1]
            assert nouns_in(pair.good) == [agent_of(effect + ".")]
            assert nouns_in(pair.bad) != nouns_in(pair.good)
            continue

        # "the hen was hurt because the fox bit it": the pronoun is the hen
        agent, patient = names
        if words_of(because)[0] not in ("it", "they"):
            agent, patient = patient, agent
        assert agent_of(pair.good) == agent
        assert agent_of(pair.bad) == patient


# --- Properties, opinions, kinds ------------------------------------------------------------------


def test_a_colour_belongs_to_the_thing_that_has_it(all_pairs):
    for pair in all_pairs["properties"]:
        words = words_of(pair.context)
        (_, size, colour, noun), (_, other_size, other_colour, _) = words[:4], words[5:9]
        said = words_of(pair.good)
        is_first = noun in said or (size in said and size != other_size)
        own = colour if is_first else other_colour
        assert (said[-1] == own) != ("not" in said)
        assert {said[-1], words_of(pair.bad)[-1]} == {colour, other_colour}


def opinion_of(text):
    """True for a good opinion: one word of opinion, turned by "not" and by "nobody"."""
    words = words_of(text.split(" but ")[0])
    (good,) = [word in OPPOSITES for word in words if word in {*OPPOSITES, *OPPOSITES.values()}]
    for word in words:
        if word in ("not", "nobody"):
            good = not good
    return good


def test_opinions_agree_with_their_context(all_pairs):
    for pair in all_pairs["opinions"]:
        assert opinion_of(pair.good) == opinion_of(pair.context)
        assert opinion_of(pair.bad) != opinion_of(pair.context)


def test_what_holds_for_a_kind_holds_for_its_members(all_pairs):
    for pair in all_pairs["kinds"]:
        about_people = bool(re.search(r"\b(person|people)\b", pair.context))
        assert is_human(nouns_in(pair.good)[0]) == about_people
        assert is_human(nouns_in(pair.bad)[0]) != about_people
        assert ("not" in words_of(pair.good)) == pair.context.startswith("no ")


# --- The order of words, and forms of verbs -------------------------------------------------------


def test_the_order_of_adjectives_changes_only_before_the_first_noun(all_pairs):
    sizes = ("small", "big", "tall", "short")
    for pair in all_pairs["order_of_adjectives"]:
        good, bad = words_of(pair.good), words_of(pair.bad)
        assert good[1] in sizes and bad[2] == good[1] and bad[1] == good[2]
        assert good[3:] == bad[3:]


def test_forms_of_verbs_are_right(all_pairs):
    for pair in all_pairs["form_after_auxiliary"]:
        wrong = words_of(pair.bad)[words_of(pair.bad).index("not") + 1]
        right = words_of(pair.good)[words_of(pair.good).index("not") + 1]
        assert right != wrong and re.search(r"(ed|slept|ate|hid|drank|ran|bit|fed)$", wrong)
    for pair in all_pairs["form_in_passive"]:
        assert re.search(r"(that bit .* woken|that woke .* bitten) by", pair.good)
        assert re.search(r"(that bitten .* woke|that woken .* bit) by", pair.bad)


# --- CoLA's ten phenomena -------------------------------------------------------------------------


def check_agreement(text, is_right):
    """A plural subject has the base form of a verb, a singular one the form in -s."""
    bases = {verb.base for verb in language.EVENT_VERBS}
    thirds = {verb.third for verb in language.EVENT_VERBS}

    words = words_of(text)
    i = next(i for i, word in enumerate(words) if word in bases | thirds)
    verb_is_plural = words[i] in bases
    assert (is_plural(words[i - 1]) == verb_is_plural) == is_right, text


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

# phenomenon, first form or not, the correct sentence, the wrong sentence
# fmt: off
PAIRS = [
    ("agreement", True,
     "the dog chases the cats .",
     "the dog chase the cats ."),
    ("across_preposition", True,
     "the dog near the cats was tired .",
     "the dog near the cats were tired ."),
    ("across_relative", True,
     "the dog that chased the cats was tired .",
     "the dog that chased the cats were tired ."),
    ("across_relative", False,
     "the dog that the cats chased was tired .",
     "the dog that the cats chased were tired ."),
    ("reflexive", True,
     "anna near the cats washed herself .",
     "anna near the cats washed themselves ."),
    ("adjective_order", True,
     "the small black dog chased the cats .",
     "the black small dog chased the cats ."),
    ("word_order", True,
     "the dog was chased by the cats .",
     "the dog was by chased the cats ."),
    ("word_order", False,
     "the dog was chased by the cats .",
     "the dog chased was by the cats ."),
    ("question_order", True,
     "was the dog chased by the cats ?",
     "chased by the dog was the cats ?"),
    ("question_order", False,
     "did the dog chase the cats ?",
     "chase the dog did the cats ?"),
    ("auxiliary", True,
     "the dog that did not chase the cats slept .",
     "the dog that did not chased the cats sleep ."),
    ("auxiliary", False,
     "the dog that chased the cats did not sleep .",
     "the dog that chase the cats did not slept ."),
    ("participle", True,
     "the dog that bit the cats was woken by tom .",
     "the dog that bitten the cats was woke by tom ."),
    ("participle", False,
     "the dog that woke the cats was bitten by tom .",
     "the dog that woken the cats was bit by tom ."),
    ("gap", True,
     "the dog that the cats chased followed tom .",
     "the dog that the cats chased tom followed ."),
]
# fmt: on


@pytest.mark.parametrize("phenomenon, first_form, right, wrong", PAIRS)
def test_each_phenomenon_makes_the_pair_that_its_docstring_shows(
    phenomenon, first_form, right, wrong
):
    cast = replace(CAST, first_form=first_form)
    make = PHENOMENA[phenomenon]
    assert make(cast) == (right, wrong)
    assert right in make.__doc__
    assert wrong in make.__doc__


def test_rows_of_cola_about_agreement_have_the_right_label():
    labels = set()
    for rows in make_task("CoLA", seed=0).values():
        for row in rows:
            if row.phenomenon == "agreement":
                check_agreement(row.texts[0], row.label == "1")
                labels.add(row.label)
    assert labels == {"0", "1"}


def test_words_trade_places_everywhere_at_once_and_only_as_complete_words():
    text = "the dog that bit the dogs was hurt , and the cat was not ."
    exchanged_text = pairs.trade_places(text, ("the dog", "the cat"), ("bit", "hurt"))
    assert exchanged_text == "the cat that hurt the dogs was bit , and the dog was not ."
