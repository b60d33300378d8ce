"""Minimal pairs: two sentences that differ in one rule of the toy language, one of them wrong.

The file has two collections:

    PHENOMENA    ten phenomena of correct and wrong sentences, from which toy/glue.py makes CoLA
    PARADIGMS    pairs for lab/pairs.py: does a pre-trained model prefer the correct sentence?

    from toy.pairs import zero_shot_pairs
    zero_shot_pairs("outcome_passive", count=2)
    # [Pair(context="the young black dog is scared by the cat.",
    #       good="the dog is afraid.", bad="the cat is afraid."),
    #  Pair(context="the young black cat is scared by the dog.",
    #       good="the cat is afraid.", bad="the dog is afraid.")]

Which sentence is the correct one always follows from the grammar and the meanings of language.py.

A model that does not see the order of words is right in exactly half of the pairs of every paradigm
except `kinds`, where words alone decide, and `opinions`, where words alone decide unless there is a
"but". The pairs make sure of this in one of two ways:

    the same words    Both sentences of a pair have the same words. Such a model gives them the same
                      score: a tie, which counts one half.
    twins             A pair comes with a second pair. The correct sentence of the second pair has
                      the words of the wrong sentence of the first pair, and the other way round.
                      Such a model is right in one of the two. The pairs of the example above are
                      twins.

Twins depend on each other, because they have the same words: a model that always prefers "was" is
right in one of them and wrong in the other one. So 200 such pairs are 100 independent draws.

Some paradigms need no more than neighbouring words. A model that only counts the sequences of one,
two and three words in 40,000 sentences of the corpus gets this far:

    it is right in 97 % or more      passive_order, auxiliary_first, order_of_adjectives,
                                     role_active, distance_01, distance_02,
                                     form_after_auxiliary, form_in_passive
    it is right in 93 % and 80 %     filled_gap, role_passive
    it is right in about half        all others, except the next ones
    it is right in fewer than 40 %   distance_04 to distance_12, reflexive_near, reflexive_relative

In the paradigms of the last line, neighbouring words are misleading. In "the dog near the cats was
tired", "cats was" is correct, but "cats were" is more frequent in the corpus. A model that is right
there looks further back; the rule "agree with the first noun" is enough.
"""

import re
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from toy.language import (
    ADJECTIVES,
    ALL_MOODS,
    BAD,
    BE,
    EVENT_VERBS,
    GOOD,
    HATING,
    HAVE,
    KIND_NOUNS,
    LIKING,
    MOODS,
    NEAR_SOMEBODY,
    NOUNS_BY_KIND,
    ONE_WORD_MOODS,
    SLOTS,
    TRANSFER_VERBS,
    Entity,
    Event,
    State,
    Story,
    Verb,
    all_of,
    binding_scene,
    by_pronoun,
    in_mood,
    join,
    modified_by,
    noun_word,
    object_question,
    opinion_scene,
    outcomes,
    passive,
    phrase,
    reason_scene,
    relative_pronoun,
    sentence,
    spell,
    subject_question,
)

# --- What the pairs share with the GLUE tasks -----------------------------------------------------


def trade_places(text, *pairs):
    """Exchange the two words of each pair everywhere in a text.

    trade_places("the dog chased the cat .", ("the dog", "the cat"))
        is "the cat chased the dog ."
    trade_places("the fox that bit the cat was woken .", ("bit", "bitten"), ("woke", "woken"))
        is "the fox that bitten the cat was woke ."
    """
    # what each word becomes
    partner = {}
    for first, second in pairs:
        partner[first] = second
        partner[second] = first

    # All words change in one pass, so none is changed back. \b is the border of a word: the
    # pattern "the dog" does not match in "the dogs".
    def exchange(match):
        return partner[match[0]]

    pattern = "|".join(partner)
    return re.sub(rf"\b({pattern})\b", exchange, text)


def exchange_roles(text, event):
    """Let the subject and the object of an event trade places in a text.

    "the dog chased the cat ." becomes "the cat chased the dog .",
    "who chased the cat ?" becomes "who chased the dog ?"
    """
    return trade_places(text, (phrase(event.subject), phrase(event.object)))


def reversible_event(story, needs_pronoun=False):
    """An event that is as likely with subject and object exchanged: only the order shows the roles.

    "the small dog chased the cat": both are animals or both are people, both are singular or both
    are plural, and the verb fits both ways.

    Args:
        story: the Story.
        needs_pronoun: whether both need a pronoun; then people are plural ("they").
    """
    # two of one kind and one number
    slot = story.pick(("beast", "human"))
    is_plural = story.chance(0.5)
    if needs_pronoun and slot == "human":
        is_plural = True
    pair = []
    for _ in range(2):
        entity = story.new_entity(slot, named=False)
        pair.append(replace(entity, is_plural=is_plural))
    agent, patient = story.pick_two(pair)
    return Event(agent, draw_verb(story, slot), patient, story.past)


def draw_verb(story, slot):
    """A verb whose agent and patient can both be of this slot: "beast" or "human"."""
    return story.pick([verb for verb in EVENT_VERBS if fits_both_ways(verb, slot)])


def fits_both_ways(verb, slot):
    """Whether both agents and patients of a verb can be of this slot: "beast" or "human"."""
    # After these verbs, the state of one also says something about the other one: if the dog is
    # behind, then the cat is ahead.
    if verb.base in ("follow", "wake", "defeat"):
        return False
    return verb.agents in ("animate", slot) and verb.patients in ("animate", slot)


def with_opposite_numbers(story, first, second):
    """The same two entities, one of them singular and the other one plural."""
    is_plural = story.chance(0.5)
    return replace(first, is_plural=is_plural), replace(second, is_plural=not is_plural)


def random_of(name):
    """A function that returns random numbers from 0 to below 1, the same ones for the same name."""
    return Random(int.from_bytes(name.encode(), "big")).random


# --- CoLA's ten phenomena -------------------------------------------------------------------------
#
# Each phenomenon makes two sentences from a cast: a correct one and a wrong one. The wrong sentence
# has the same words in another order, or one word in another form. Each form is correct in as many
# sentences as the other form. So the two sentences differ only in the phenomenon: a model that
# prefers the correct sentence knows the phenomenon.


@dataclass(frozen=True)
class Cast:
    """The words from which the ten phenomena make their sentences.

    Attributes:
        subject: animals or people, singular or plural.
        other: others like them; plural if the subject is singular, and the other way round.
        verb: what they do to each other.
        first_form: which form of a phenomenon to make, if it has two: True for the first one.
        preposition: "near", "with", ...
        mood: "tired", "hungry", ...
        man: a name.
        washer: who washes himself or herself: (noun phrase, reflexive).
        neighbour: who is near the washer: (noun phrase, reflexive).
        size: an adjective of size for the subject.
        last_adjective: an adjective of colour for the subject; for people, of age.
        then: another verb.
    """

    subject: Entity
    other: Entity
    verb: Verb
    first_form: bool
    preposition: str
    mood: str
    man: str
    washer: tuple
    neighbour: tuple
    size: str
    last_adjective: str
    then: Verb

    @property
    def be(self):
        """The auxiliary in the number of the subject: "was" or "were"."""
        return BE[True, self.subject.is_plural]

    @property
    def subject_that(self):
        """The subject before a relative clause: "the dog that", "the farmers who"."""
        return join(phrase(self.subject), relative_pronoun(self.subject))


VERBS = {verb.base: verb for verb in EVENT_VERBS}

# In these two verbs, the past and the participle differ: "woke", "woken".
WAKE = VERBS["wake"]
BITE = VERBS["bite"]
PAST_AND_PARTICIPLE = ((WAKE.past, WAKE.participle), (BITE.past, BITE.participle))


def draw_cast(story):
    """Draw a Cast: the same draws in the same order, whichever phenomenon comes next."""
    # who does what to whom: one is singular, the other one is plural
    event = reversible_event(story)
    subject, other = with_opposite_numbers(story, event.subject, event.object)
    first_form = story.chance(0.5)

    # words
    preposition = story.pick(NEAR_SOMEBODY)
    mood = story.pick(ONE_WORD_MOODS)
    man = story.pick(NOUNS_BY_KIND["man"]).singular
    woman = story.pick(NOUNS_BY_KIND["woman"]).singular

    # who washes, and who is near: two of three, each with its reflexive
    they = replace(event.object, is_plural=True)
    with_reflexives = (
        (man, "himself"),
        (woman, "herself"),
        (phrase(they), "themselves"),
    )
    washer, neighbour = story.pick_two(with_reflexives)
    if not first_form:
        washer, neighbour = neighbour, washer

    # one adjective per rank: size, age and, not for people, colour
    adjectives = [story.pick(rank) for rank in ADJECTIVES[subject.noun.kind]]

    return Cast(
        subject=subject,
        other=other,
        verb=event.verb,
        first_form=first_form,
        preposition=preposition,
        mood=mood,
        man=man,
        washer=washer,
        neighbour=neighbour,
        size=adjectives[0],
        last_adjective=adjectives[-1],
        then=story.pick((VERBS["follow"], WAKE)),
    )


def agreement(cast):
    """The verb agrees with its subject.

    right  the dog chases the cats .    the dogs chase the cat .
    wrong  the dog chase the cats .     the dogs chases the cat .
    """
    verb = cast.verb
    right = sentence(Event(cast.subject, verb, cast.other))
    return right, trade_places(right, (verb.base, verb.third))


def across_preposition(cast):
    """The verb agrees with its subject and not with the noun after a preposition.

    right  the dog near the cats was tired .     the dogs with the cat were ill .
    wrong  the dog near the cats were tired .    the dogs with the cat was ill .
    """
    subject = join(phrase(cast.subject), cast.preposition, phrase(cast.other))
    right = join(subject, cast.be, cast.mood, ".")
    return right, trade_places(right, ("was", "were"))


def across_relative(cast):
    """The verb agrees with its subject and not with the noun in a relative clause.

    right  the dog that chased the cats was tired .     the dog that the cats chased was tired .
    wrong  the dog that chased the cats were tired .    the dog that the cats chased were tired .
    """
    if cast.first_form:
        chase = join(cast.verb.past, phrase(cast.other))  # chased the cats
    else:
        chase = join(phrase(cast.other), cast.verb.past)  # the cats chased

    subject = join(cast.subject_that, chase)
    right = join(subject, cast.be, cast.mood, ".")
    return right, trade_places(right, ("was", "were"))


def reflexive_agreement(cast):
    """The reflexive agrees with the subject and not with the noun next to it.

    right  anna near the cats washed herself .       the dogs behind tom washed themselves .
    wrong  anna near the cats washed themselves .    the dogs behind tom washed himself .
    """
    who, own_reflexive = cast.washer
    neighbour, other_reflexive = cast.neighbour

    right = join(who, cast.preposition, neighbour, "washed", own_reflexive, ".")
    return right, trade_places(right, (own_reflexive, other_reflexive))


def adjective_order(cast):
    """Size comes before colour and before age.

    right  the small black dog chased the cats .    the tall old farmer helped the nurses .
    wrong  the black small dog chased the cats .    the old tall farmer helped the nurses .
    """
    adjectives = (cast.size, cast.last_adjective)
    subject = phrase(replace(cast.subject, adjectives=adjectives))
    right = join(subject, cast.verb.past, phrase(cast.other), ".")

    # Only the subject's adjectives change their order. The object may have one of them, too, and
    # keeps it: "the black small dog chased the small cats".
    in_order = join(cast.size, cast.last_adjective)
    exchanged = join(cast.last_adjective, cast.size)
    return right, right.replace(in_order, exchanged, 1)


def word_order(cast):
    """The words of a passive have one order.

    right  the dog was chased by the cats .    the dog was chased by the cats .
    wrong  the dog was by chased the cats .    the dog chased was by the cats .
    """
    participle = cast.verb.participle
    neighbour = cast.be
    if cast.first_form:
        neighbour = "by"

    right = join(phrase(cast.subject), cast.be, participle, "by", phrase(cast.other), ".")
    return right, trade_places(right, (participle, neighbour))


def question_order(cast):
    """A question begins with its auxiliary.

    right  was the dog chased by the cats ?    did the dog chase the cats ?
    wrong  chased by the dog was the cats ?    chase the dog did the cats ?
    """
    if cast.first_form:
        auxiliary = cast.be
        core = join(cast.verb.participle, "by")
    else:
        auxiliary = "did"
        core = cast.verb.base

    right = join(auxiliary, phrase(cast.subject), core, phrase(cast.other), "?")
    return right, trade_places(right, (auxiliary, core))


def auxiliary_form(cast):
    """In the past, a verb has its base form after "did not", and its past form otherwise.

    right  the dog that did not chase the cats slept .
    wrong  the dog that did not chased the cats sleep .

    right  the dog that chased the cats did not sleep .
    wrong  the dog that chase the cats did not slept .
    """
    verb = cast.verb
    does = MOODS[cast.mood]

    # One of the two verbs is negated.
    if cast.first_form:
        right = join(cast.subject_that, "did not", verb.base, phrase(cast.other), does.past, ".")
    else:
        right = join(cast.subject_that, verb.past, phrase(cast.other), "did not", does.base, ".")
    return right, trade_places(right, (verb.base, verb.past), (does.base, does.past))


def participle_form(cast):
    """A passive has the participle, and an active in the past has the past form.

    right  the dog that bit the cats was woken by tom .
    wrong  the dog that bitten the cats was woke by tom .

    right  the dog that woke the cats was bitten by tom .
    wrong  the dog that woken the cats was bit by tom .
    """
    active_verb, passive_verb = BITE, WAKE
    if not cast.first_form:
        active_verb, passive_verb = WAKE, BITE

    subject = join(cast.subject_that, active_verb.past, phrase(cast.other))
    right = join(subject, cast.be, passive_verb.participle, "by", cast.man, ".")

    # In the wrong sentence, each of the two verbs has its other form.
    return right, trade_places(right, *PAST_AND_PARTICIPLE)


def gap(cast):
    """In "that the cats chased", the object is already there ("that"): no noun follows the verb.

    right  the dog that the cats chased followed tom .    the dogs that the cat bit woke paul .
    wrong  the dog that the cats chased tom followed .    the dogs that the cat bit paul woke .
    """
    subject = join(cast.subject_that, phrase(cast.other), cast.verb.past)
    right = join(subject, cast.then.past, cast.man, ".")
    return right, trade_places(right, (cast.then.past, cast.man))


PHENOMENA = {
    "agreement": agreement,
    "across_preposition": across_preposition,
    "across_relative": across_relative,
    "reflexive": reflexive_agreement,
    "adjective_order": adjective_order,
    "word_order": word_order,
    "question_order": question_order,
    "auxiliary": auxiliary_form,
    "participle": participle_form,
    "gap": gap,
}


# --- Pairs for pre-trained models: what they share ------------------------------------------------

PAIRS = 200  # of each paradigm


class Pair(NamedTuple):
    """A minimal pair. The context is a sentence before it; "" if there is none."""

    context: str
    good: str
    bad: str


def nouns_of(first, second):
    """The nouns of two entities. If they trade places, the adjectives stay where they are.

    "the small dog chased the cat ." becomes "the small cat chased the dog ."
    """
    return noun_word(first), noun_word(second)


def draw_entity(story, slot, is_plural, adjectives=0):
    """A new entity that is not a name, with this number and with 0, 1 or 2 adjectives.

    "the dog", "the small dog", "the small black dog"
    """
    kinds = [kind for kind in SLOTS[slot] if kind not in ("woman", "man")]
    noun = story.new_noun(*kinds)

    # one word of the first rank and one of the last: size and colour; for people, size and age
    ranks = ADJECTIVES[noun.kind]
    words = (story.pick(ranks[0]), story.pick(ranks[-1]))
    return Entity(noun, is_plural, adjectives=words[:adjectives])


def opposite_numbers(story, slot, adjectives=0):
    """Two entities, one singular and one plural. `adjectives` is how many the second one has."""
    is_plural = story.chance(0.5)
    first = draw_entity(story, slot, is_plural)
    second = draw_entity(story, slot, not is_plural, adjectives)
    return first, second


def twins_in_context(context, good, *words):
    """Twins: the sentence that is correct in one context is wrong in the other context.

    The words of each pair in `words` trade places, in the context and in the sentence.
    """
    other_context = trade_places(context, *words)
    bad = trade_places(good, *words)
    return [Pair(context, good, bad), Pair(other_context, bad, good)]


def twins_of_forms(right, forms, first, second):
    """Two pairs in which the form of a word depends on which of two nouns comes first.

    right           the dog near the cats was tired .
    wrong           the dog near the cats were tired .
    right, twin     the cats near the dog were tired .
    wrong, twin     the cats near the dog was tired .

    Args:
        right: the correct sentence.
        forms: the two forms: ("was", "were").
        first, second: the two entities.
    """
    # If only the nouns trade places, the old form has become the wrong one.
    twin_wrong = trade_places(right, nouns_of(first, second))
    return [
        Pair("", right, trade_places(right, forms)),
        Pair("", trade_places(twin_wrong, forms), twin_wrong),
    ]


# --- Paradigms: the order of words alone ----------------------------------------------------------
#
# Both sentences of a pair have the same words.


def pair_of(phenomenon):
    """The paradigm of the pairs of one of CoLA's phenomena, for example of `word_order`."""

    def make_pair(story):
        return [Pair("", *phenomenon(draw_cast(story)))]

    return make_pair


def tell(event, is_passive):
    """The sentence of an event, in the active or in the passive."""
    if is_passive:
        return sentence(passive(event))
    return sentence(event)


def selective_event(story):
    """An event whose roles cannot be exchanged: people feed animals, but animals feed nobody."""
    verb = story.pick((VERBS["feed"], VERBS["wash"], BITE))
    slots = ("human", "beast")
    if verb == BITE:
        slots = ("beast", "human")

    # Both are singular or both are plural; a name is singular.
    agent, patient = [story.new_entity(slot) for slot in slots]
    is_plural = agent.is_plural and patient.is_plural
    agent = replace(agent, is_plural=is_plural)
    patient = replace(patient, is_plural=is_plural)
    return Event(agent, verb, patient, story.past)


def role(is_passive):
    """The paradigm of who can do it: people feed and wash animals, and animals bite people.

    right  the farmer fed the dog .    or, in the passive,    the dog was fed by the farmer .
    wrong  the dog fed the farmer .                           the farmer was fed by the dog .
    """

    def make_pair(story):
        event = selective_event(story)
        right = tell(event, is_passive)
        return [Pair("", right, exchange_roles(right, event))]

    return make_pair


def answer(question):
    """The paradigm of an answer, which keeps the roles of the question: who does it, and to whom.

    context  who chased the cat ?    or, about the object,    who did the dog chase ?
    right    the dog chased the cat .
    wrong    the cat chased the dog .

    Args:
        question: `subject_question` or `object_question`.
    """

    def make_pair(story):
        event = reversible_event(story)
        right = sentence(event)
        return [Pair(question(event), right, exchange_roles(right, event))]

    return make_pair


# --- Paradigms: roles, known from the sentence before ---------------------------------------------


def outcome(is_passive):
    """The paradigm of who is in the state that follows from an event.

    context  the dog chased the cat .    or, in the passive,    the cat was chased by the dog .
    right    the cat was afraid .
    wrong    the dog was afraid .
    """

    def make_twins(story):
        event = reversible_event(story)
        context = tell(event, is_passive)

        # the state of one of the two, who is mentioned without adjectives
        chosen = story.pick(outcomes(event))
        who = replace(chosen.subject, adjectives=())
        good = sentence(story.describe_state(who, chosen.predicate))
        return twins_in_context(context, good, nouns_of(event.subject, event.object))

    return make_twins


def transfer(story):
    """Who has a thing after it was given, sold, stolen or bought?

    context  the farmer gave two apples to the child .
    right    the child had the apples .
    wrong    the farmer had the apples .
    """
    # the event: two people of one number and a thing
    verb = story.pick(TRANSFER_VERBS)
    thing = story.new_entity("thing", definite=False)
    is_plural = story.chance(0.5)
    agent = draw_entity(story, "human", is_plural)
    partner = draw_entity(story, "human", is_plural)
    event = Event(agent, verb, thing, story.past, partner=partner)
    context = sentence(story.active_or_passive(event, 0.3))

    # who has it now
    owner = agent
    if verb.preposition == "to":
        owner = partner
    good = sentence(Event(owner, HAVE, Entity(thing.noun, thing.is_plural), story.past))
    return twins_in_context(context, good, nouns_of(agent, partner))


def reason(story):
    """Whom a pronoun means follows from the reason.

    context  the dog bit the fox because it was angry .
    right    the dog was angry .
    wrong    the fox was angry .
    """
    # without adjectives, which would show who is mentioned again
    event = reversible_event(story, needs_pronoun=True)
    subject = replace(event.subject, adjectives=())
    object = replace(event.object, adjectives=())
    event = replace(event, subject=subject, object=object)

    context, good = reason_scene(story, event)
    return twins_in_context(context, good, nouns_of(subject, object))


def pronoun_number(story):
    """The pronoun agrees with the one who is in this state.

    context  the dog chased the cats .
    right    they were afraid .
    wrong    it was afraid .
    """
    # In the past, an active verb does not change if the two trade places.
    first, second = opposite_numbers(story, "beast")
    event = Event(first, draw_verb(story, "beast"), second, past=True)
    context = sentence(event)

    # the state of one of the two (the other state is drawn, but not used)
    chosen, _other = story.pick_two(outcomes(event))
    good = sentence(replace(chosen, subject=by_pronoun(chosen.subject)))
    nouns = nouns_of(first, second)
    return twins_in_context(context, good, nouns, ("it", "they"), ("was", "were"))


# --- Paradigms: agreement at a distance -----------------------------------------------------------


def agreement_at(distance):
    """The paradigm of agreement at a distance: the verb is 1 to 12 tokens after its noun.

    All sentences are in the past: only was/were shows a number. A second noun has the other number.
    From distance 4 on it is the last noun before the verb; at 1 to 3 it follows the verb.

     1  the dog was chased by the cats .
     2  the dog that was chased by the cats hid .
     3  the dog near tom was chased by the cats .
     4  the dog near the cats was tired .
     5  the dog that chased the cats was tired .
     6  the dog that chased the small cats was tired .
     7  the dog that chased the small black cats was tired .
     8  the dog that chased the foxes near the cats was tired .
     9  the dog that chased the foxes near the small cats was tired .
    10  the dog that chased the big foxes near the small cats was tired .
    11  the dog that chased the big foxes near the small black cats was tired .
    12  the dog that chased the big white foxes near the small black cats was tired .

    The corpus has the forms 1, 2 and 4 to 7, but 2 and 5 to 7 only with states that follow from the
    event and not with every mood. In the corpus, no noun in a relative clause is near another noun.
    So the forms 8 to 12 are one level deeper than all sentences that a model was trained on.
    """

    def agree(story):
        slot = story.pick(("beast", "human"))
        if distance <= 3:
            return distractor_after_the_verb(story, slot, distance)
        return distractor_before_the_verb(story, slot, distance)

    return agree


def distractor_after_the_verb(story, slot, distance):
    """The twins of distance 1, 2 or 3."""
    head, other = opposite_numbers(story, slot)
    event = Event(other, draw_verb(story, slot), head, past=True)

    if distance == 1:
        right = sentence(passive(event))
    elif distance == 2:
        mood = story.pick(ONE_WORD_MOODS)
        subject = modified_by(head, passive(event))
        right = sentence(in_mood(subject, mood, past=True, acting=True))
    else:
        name = Entity(story.new_noun("woman", "man"), determiner="")
        right = sentence(passive(replace(event, object=story.near(head, name))))
    return twins_of_forms(right, ("was", "were"), head, other)


# {distance: how many adjectives the last noun before the verb has}, and the same for the noun in
# the middle. In "the dog that chased the foxes near the small cats was", distance 9, the last noun
# is "cats" with one adjective, and "foxes" in the middle has none.
# fmt: off
LAST   = {4: 0, 5: 0, 6: 1, 7: 2, 8: 0, 9: 1, 10: 1, 11: 2, 12: 2}
MIDDLE = {                        8: 0, 9: 0, 10: 1, 11: 1, 12: 2}
# fmt: on


def distractor_before_the_verb(story, slot, distance):
    """The twins of a distance from 4 to 12."""
    # the subject, and the last noun before its verb, which has the other number
    head, last = opposite_numbers(story, slot, LAST[distance])

    # what is said about the subject: "near the cats", "that chased the cats",
    # "that chased the foxes near the cats"
    near_last = State(None, story.pick(NEAR_SOMEBODY), last)
    verb = draw_verb(story, slot)
    if distance == 4:
        subject = replace(head, modifier=near_last)
    elif distance < 8:
        subject = modified_by(head, Event(head, verb, last, past=True))
    else:
        middle = draw_entity(story, slot, story.chance(0.5), MIDDLE[distance])
        middle = replace(middle, modifier=near_last)
        subject = modified_by(head, Event(head, verb, middle, past=True))

    right = sentence(State(subject, story.pick(ALL_MOODS), past=True))
    return twins_of_forms(right, ("was", "were"), head, last)


# --- Paradigms: reflexives, forms of verbs, properties --------------------------------------------


def reflexive_near(story):
    """The reflexive agrees with the subject and not with the noun next to it.

    right  anna near the cats washed herself .      the cats near anna washed themselves .
    wrong  anna near the cats washed themselves .   the cats near anna washed herself .
    """
    cast = draw_cast(story)
    twin = replace(cast, washer=cast.neighbour, neighbour=cast.washer)
    return [
        Pair("", *reflexive_agreement(cast)),
        Pair("", *reflexive_agreement(twin)),
    ]


def reflexive_relative(story):
    """The reflexive agrees with the subject and not with the noun in a relative clause.

    right  the dog that chased the cats washed itself .
    wrong  the dog that chased the cats washed themselves .

    right  the dog that the cats chased washed itself .
    wrong  the dog that the cats chased washed themselves .

    The corpus has reflexives and relative clauses, but not both in one sentence.
    """
    # in about half of the pairs, the subject chases; in the others, it is chased
    head, other = opposite_numbers(story, "beast")
    agent, patient = head, other
    if story.chance(0.5):
        agent, patient = other, head

    event = Event(agent, draw_verb(story, "beast"), patient, past=True)
    subject = modified_by(head, event)
    right = sentence(in_mood(subject, "dirty", past=True, acting=True))
    return twins_of_forms(right, ("itself", "themselves"), head, other)


def form_after_auxiliary(story):
    """After "did not" a verb has its base form: the two forms of `auxiliary_form` are twins."""
    cast = draw_cast(story)
    return [
        Pair("", *auxiliary_form(replace(cast, first_form=True))),
        Pair("", *auxiliary_form(replace(cast, first_form=False))),
    ]


def form_in_passive(story):
    """A passive has the participle, and an active in the past has the past form.

    right  the dog that bit the cats was woken by the fox .
    wrong  the dog that bitten the cats was woke by the fox .

    right  the dog that woke the cats was bitten by the fox .
    wrong  the dog that woken the cats was bit by the fox .
    """
    # three animals: only animals bite
    subject, other = opposite_numbers(story, "beast")
    third = draw_entity(story, "beast", story.chance(0.5))

    pairs = []
    for active_verb, passive_verb in ((BITE, WAKE), (WAKE, BITE)):
        known = modified_by(subject, Event(subject, active_verb, other, past=True))
        right = sentence(passive(Event(third, passive_verb, known, past=True)))
        pairs.append(Pair("", right, trade_places(right, *PAST_AND_PARTICIPLE)))
    return pairs


def properties(story):
    """Of two things with two properties each, which property belongs to which?

    context  a small grey cat and a big white dog are in the barn .
    right    the cat is grey .
    wrong    the cat is white .
    """
    context, good = binding_scene(story)

    # a  small  grey  cat  and  a  big  white  dog ...
    # 0  1      2     3    4    5  6    7      8
    words = context.split()
    return twins_in_context(context, good, (words[2], words[7]))


# --- Paradigms: words alone -----------------------------------------------------------------------
#
# A model that does not see the order can solve `kinds`, and `opinions` without a "but". With a
# "but" it cannot: "the film was good but the song was not" has the words of "the film was not good
# but the song was". Each pair still has its twin, so a model that does not look at the context is
# right in exactly half of the pairs.


def opinions(story):
    """Two sentences with the same opinion.

    context  nobody liked the soup .
    right    it was bad .
    wrong    it was good .
    """
    context, good = opinion_scene(story)

    # each word of an opinion and its opposite; "enjoyed" becomes "hated", "hated" becomes "liked"
    opposites = list(zip(GOOD, BAD, strict=True))
    for liking in reversed(LIKING):
        for hating in HATING:
            opposites.append((liking.base, hating.base))
            opposites.append((liking.third, hating.third))
            opposites.append((liking.past, hating.past))

    return twins_in_context(context, good, *opposites)


def kinds(story):
    """What holds for all animals holds for the cats; it need not hold for the bakers.

    context  every animal in the barn slept .
    right    the cat in the barn slept .
    wrong    the baker in the barn slept .
    """
    # an animal, a person and a place
    is_plural = story.chance(0.5)
    place = story.new_place()
    animal = Entity(story.new_noun("animal"), is_plural, modifier=place)
    person = Entity(story.new_noun("person"), is_plural, modifier=place)

    # all animals: "every animal in the barn", "no animals in the barn"
    quantifier = story.pick(("every", "all", "no"))
    everyone = all_of(KIND_NOUNS["animal"], quantifier, place)
    everyone_else = all_of(KIND_NOUNS["person"], quantifier, place)

    # what they do; not "dirty": "every person washes itself", but "the baker washes"
    mood = story.pick(ONE_WORD_MOODS)
    acting = story.chance(0.5)
    context = sentence(in_mood(everyone, mood, story.past, acting))
    good = sentence(in_mood(animal, mood, story.past, acting, negated=quantifier == "no"))

    # "animal" becomes "person", and "cat" becomes "baker"
    all_nouns = nouns_of(everyone, everyone_else)
    return twins_in_context(context, good, all_nouns, nouns_of(animal, person))


# --- The paradigms --------------------------------------------------------------------------------

# distance_01 to distance_12
AGREEMENT = {f"distance_{n:02}": ("agreement", agreement_at(n)) for n in range(1, 13)}

# fmt: off
PARADIGMS = {
    # paradigm              (phenomenon,    function of a story that returns one pair or twins)
    "passive_order":        ("word_order",  pair_of(word_order)),
    "auxiliary_first":      ("word_order",  pair_of(question_order)),
    "order_of_adjectives":  ("word_order",  pair_of(adjective_order)),
    "filled_gap":           ("word_order",  pair_of(gap)),

    "role_active":          ("roles",       role(is_passive=False)),
    "role_passive":         ("roles",       role(is_passive=True)),

    "answer_subject":       ("answers",     answer(subject_question)),
    "answer_object":        ("answers",     answer(object_question)),

    "outcome_active":       ("outcomes",    outcome(is_passive=False)),
    "outcome_passive":      ("outcomes",    outcome(is_passive=True)),
    "transfer":             ("transfer",    transfer),
    "reason":               ("reasons",     reason),
    "pronoun_number":       ("pronouns",    pronoun_number),

    **AGREEMENT,

    "reflexive_near":       ("reflexives",  reflexive_near),
    "reflexive_relative":   ("reflexives",  reflexive_relative),

    "form_after_auxiliary": ("verb_forms",  form_after_auxiliary),
    "form_in_passive":      ("verb_forms",  form_in_passive),

    "properties":           ("properties",  properties),
    "opinions":             ("opinions",    opinions),
    "kinds":                ("kinds",       kinds),
}
# fmt: on

SAME_WORDS = ("word_order", "roles", "answers")  # phenomena: both sentences have the same words
WORDS_DECIDE = ("opinions", "kinds")  # phenomena in which words alone decide all or most pairs


def zero_shot_pairs(paradigm, count=PAIRS, seed=0):
    """The pairs of a paradigm: the same ones for the same seed on every machine.

    Args:
        paradigm: a key of PARADIGMS.
        count: at least how many. Some pairs come as twins, so there may be one more.
        seed: of the random choices.
    Returns:
        list of Pair, spelled as people type. No pair comes twice.
    """
    _, make = PARADIGMS[paradigm]
    random = random_of(f"{seed} zero-shot pairs {paradigm}")

    # Draw until there are enough different pairs. Twins are kept or left out together.
    pairs = []
    seen = set()
    while len(pairs) < count:
        drawn = []
        for context, good, bad in make(Story(random)):
            drawn.append(Pair(spell(context), spell(good), spell(bad)))
        if seen.isdisjoint(drawn):
            pairs.extend(drawn)
            seen.update(drawn)
    return pairs
