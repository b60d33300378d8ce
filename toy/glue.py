"""GLUE's nine tasks in the toy language, and minimal pairs.

`write_glue(folder)` writes the tasks in GLUE's own file formats, so that glue.py reads them like
the published files. Each task asks for the same thing as GLUE's task of that name:

    CoLA     is the sentence correct?                       cola
    SST-2    is the opinion good?                           sst2
    MRPC     do two sentences say the same?                 mrpc
    STS-B    how much do two sentences have in common?      stsb
    QQP      do two questions ask the same?                 qqp
    MNLI     does the first sentence entail the second?     mnli, and its diagnostic sentences
    QNLI     does the sentence answer the question?         qnli
    RTE      does the first sentence entail the second?     rte
    WNLI     is the pronoun understood correctly?           wnli

Each task is one function task(story, label, turn). It draws a row that has this label:

    story    a Story of language.py, for the random choices and the tense
    label    one of LABELS[task]
    turn     how many rows with this label the split has already; it chooses between kinds of rows

It returns a Row, or None if what was drawn does not fit. The caller then tries again.

In most tasks, rows with different labels differ only in the order of their words: the two nouns of
an event trade places. Both are of one kind and one number, and the verb fits both ways, so only the
order shows who did it. A bag of words cannot solve such a task (see `baselines`).

    from toy.glue import minimal_pairs
    minimal_pairs("agreement", 3)
    # [("the dog chases the cats.", "the dog chase the cats."), ...]
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from support.glue_format import FORMATS, write_split
from toy.language import (
    ADJECTIVES,
    ALL_MOODS,
    BE,
    EVENT_VERBS,
    MOODS,
    NEAR_SOMEBODY,
    NOUNS_BY_KIND,
    Entity,
    Event,
    Story,
    Verb,
    full_stop,
    in_mood,
    join,
    modified_by,
    object_question,
    opinion_scene,
    outcomes,
    passive,
    phrase,
    quantity_scene,
    reason_scene,
    relative_meanings,
    sentence,
    spell,
    subject_question,
    yes_no_question,
)

# --- Tables ---------------------------------------------------------------------------------------

# fmt: off
# Rows of each file.
GLUE_ROWS = {
    "CoLA":  {"train": 4000, "dev": 800, "test": 800},
    "SST-2": {"train": 3000, "dev": 500, "test": 500},
    "MRPC":  {"train": 2000, "dev": 500, "test": 500},
    "STS-B": {"train": 2000, "dev": 500, "test": 500},
    "QQP":   {"train": 5000, "dev": 800, "test": 800},
    "MNLI":  {
        "train": 6000,
        "dev_matched": 600, "dev_mismatched": 600,
        "test_matched": 600, "test_mismatched": 600,
        "diagnostic": 300,
    },
    "QNLI":  {"train": 4000, "dev": 600, "test": 600},
    "RTE":   {"train": 1000, "dev": 400, "test": 400},
    "WNLI":  {"train": 400,  "dev": 100, "test": 100},
}

# The labels of each task. The rows of a split take them in turn.
LABELS = {
    "CoLA":  ("0", "1"),
    "SST-2": ("0", "1"),
    "MRPC":  ("0", "1"),
    "STS-B": ("0.000", "1.000", "2.000", "3.000", "4.000", "5.000"),
    "QQP":   ("0", "1"),
    "MNLI":  ("entailment", "neutral", "contradiction"),
    "QNLI":  ("entailment", "not_entailment"),
    "RTE":   ("entailment", "not_entailment"),
    "WNLI":  ("0", "1"),
}
# fmt: on

# The tasks that word order decides: the words alone do not show the label.
ORDERED = ("CoLA", "MRPC", "QQP", "QNLI", "WNLI")

# MNLI's two genres are the past and the present. The diagnostic sentences have both tenses.
MNLI_IN_THE_PAST = {
    "train": True,
    "dev_matched": True,
    "test_matched": True,
    "dev_mismatched": False,
    "test_mismatched": False,
}


class Row(NamedTuple):
    """One row of a task: its one or two texts, its label, and for CoLA the phenomenon."""

    texts: list
    label: str
    phenomenon: str = ""


# --- What the tasks share -------------------------------------------------------------------------


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

    # a verb that fits both ways
    verbs = [verb for verb in EVENT_VERBS if fits_both_ways(verb, slot)]
    return Event(agent, story.pick(verbs), patient, story.past)


def fits_both_ways(verb, slot):
    """Whether both agents and patients of a verb can be of this slot: "beast" or "human"."""
    # After these verbs, the state of one implies the state of the other: if the dog is behind, then
    # the cat is ahead. In MNLI, such a state would not be neutral after an exchange of the roles.
    if verb.base in ("follow", "wake", "defeat"):
        return False
    return verb.agents in ("animate", slot) and verb.patients in ("animate", slot)


def make_row(texts, label, phenomenon=""):
    """A Row with its texts spelled as people type."""
    return Row([spell(text) for text in texts], label, phenomenon)


def random_of(name):
    """A function that returns random numbers from 0 to below 1, the same ones for the same name."""
    return Random(int.from_bytes(name.encode(), "big")).random


# --- Minimal pairs: CoLA's ten phenomena ----------------------------------------------------------
#
# Each phenomenon makes two sentences from a cast: a correct one and a wrong one. The wrong sentence
# has the same words in another order, or it has another form of a word, which is correct in as many
# other sentences. So the two differ only in the phenomenon: a model that prefers the correct
# sentence knows the phenomenon.


@dataclass(frozen=True)
class Cast:
    """The words from which the ten phenomena make their sentences.

    Attributes:
        subject: animals or people, singular or plural.
        other: others like them; plural if the subject is singular, and the other way round.
        verb: what they do to each other.
        first_form: which of its two forms a phenomenon takes, if it has two.
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
    def relative(self):
        """The relative pronoun of the subject: "who" for people, otherwise "that"."""
        if self.subject.noun.kind == "person":
            return "who"
        return "that"


def verb_named(base):
    """The row of EVENT_VERBS with this base form."""
    for verb in EVENT_VERBS:
        if verb.base == base:
            return verb
    raise ValueError(f"EVENT_VERBS has no verb {base!r}")


FOLLOW = verb_named("follow")
WAKE = verb_named("wake")
BITE = verb_named("bite")


def draw_cast(story):
    """Draw a Cast: the same draws in the same order, whichever phenomenon comes next."""
    # who does what to whom: one is singular, the other one is plural
    event = reversible_event(story)
    is_plural = story.chance(0.5)
    subject = replace(event.subject, is_plural=is_plural)
    other = replace(event.object, is_plural=not is_plural)
    first_form = story.chance(0.5)

    # words; not the first mood, "dirty", because "washes himself" is two words
    preposition = story.pick(NEAR_SOMEBODY)
    mood = story.pick(ALL_MOODS[1:])
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
    ranks = [rank for rank in ADJECTIVES[subject.noun.kind] if rank]
    adjectives = [story.pick(rank) for rank in ranks]

    then = story.pick((FOLLOW, WAKE))
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
        then=then,
    )


def agreement(cast):
    """The verb agrees with its subject.

    right  the dog chases the cats .    the dogs chase the cat .
    wrong  the dog chase the cats .     the dogs chases the cat .
    """
    verb = cast.verb
    form = verb.third
    if cast.subject.is_plural:
        form = verb.base

    right = full_stop(join(phrase(cast.subject), form, phrase(cast.other)))
    return right, trade_places(right, (verb.base, verb.third))


def across_preposition(cast):
    """The verb agrees with its subject and not with the noun after a preposition.

    right  the dog near the cats was tired .     the dogs with the cat were ill .
    wrong  the dog near the cats were tired .    the dogs with the cat was ill .
    """
    subject = join(phrase(cast.subject), cast.preposition, phrase(cast.other))
    right = full_stop(join(subject, cast.be, cast.mood))
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

    subject = join(phrase(cast.subject), cast.relative, chase)
    right = full_stop(join(subject, cast.be, cast.mood))
    return right, trade_places(right, ("was", "were"))


def reflexive_agreement(cast):
    """The reflexive agrees with the subject and not with the noun next to it.

    right  anna near the cats washed herself .       the dogs behind tom washed themselves .
    wrong  anna near the cats washed themselves .    the dogs behind tom washed himself .
    """
    who, own_reflexive = cast.washer
    neighbour, other_reflexive = cast.neighbour

    right = full_stop(join(who, cast.preposition, neighbour, "washed", own_reflexive))
    return right, trade_places(right, (own_reflexive, other_reflexive))


def adjective_order(cast):
    """Size comes before colour and before age.

    right  the small black dog chased the cats .    the tall old farmer helped the nurses .
    wrong  the black small dog chased the cats .    the old tall farmer helped the nurses .
    """
    adjectives = (cast.size, cast.last_adjective)
    subject = phrase(replace(cast.subject, adjectives=adjectives))

    right = full_stop(join(subject, cast.verb.past, phrase(cast.other)))
    return right, trade_places(right, adjectives)


def word_order(cast):
    """The words of a passive have one order.

    right  the dog was chased by the cats .    the dog was chased by the cats .
    wrong  the dog was by chased the cats .    the dog chased was by the cats .
    """
    participle = cast.verb.participle
    neighbour = cast.be
    if cast.first_form:
        neighbour = "by"

    right = full_stop(join(phrase(cast.subject), cast.be, participle, "by", phrase(cast.other)))
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
    """After "did not" a verb has its base form, and otherwise in the past its past form.

    right  the dog that did not chase the cats slept .
    wrong  the dog that did not chased the cats sleep .

    right  the dog that chased the cats did not sleep .
    wrong  the dog that chase the cats did not slept .
    """
    verb = cast.verb
    does = MOODS[cast.mood]
    subject = join(phrase(cast.subject), cast.relative)

    # One of the two verbs is negated.
    if cast.first_form:
        right = join(subject, "did not", verb.base, phrase(cast.other), does.past)
    else:
        right = join(subject, verb.past, phrase(cast.other), "did not", does.base)

    right = full_stop(right)
    return right, trade_places(right, (verb.base, verb.past), (does.base, does.past))


def participle_form(cast):
    """A passive has the participle, and an active in the past has the past form.

    right  the dog that bit the cats was woken by tom .
    wrong  the dog that bitten the cats was woke by tom .

    right  the dog that woke the cats was bitten by tom .
    wrong  the dog that woken the cats was bit by tom .
    """
    if cast.first_form:
        active_verb = BITE
        passive_verb = WAKE
    else:
        active_verb = WAKE
        passive_verb = BITE

    subject = join(phrase(cast.subject), cast.relative, active_verb.past, phrase(cast.other))
    right = full_stop(join(subject, cast.be, passive_verb.participle, "by", cast.man))

    # Each verb has the other one of its two forms.
    active_forms = (active_verb.past, active_verb.participle)
    passive_forms = (passive_verb.past, passive_verb.participle)
    return right, trade_places(right, active_forms, passive_forms)


def gap(cast):
    """In "that the cats chased", the object is already there ("that"): no noun follows the verb.

    right  the dog that the cats chased followed tom .    the dogs that the cat bit woke paul .
    wrong  the dog that the cats chased tom followed .    the dogs that the cat bit paul woke .
    """
    subject = join(phrase(cast.subject), cast.relative, phrase(cast.other), cast.verb.past)
    right = full_stop(join(subject, cast.then.past, cast.man))
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


def minimal_pairs(phenomenon, count, seed=0):
    """Pairs of a correct and a wrong sentence that differ in one phenomenon only.

    Args:
        phenomenon: a key of PHENOMENA.
        count: how many pairs; no pair comes twice.
        seed: of the random choices.
    Returns:
        list of (good, bad), spelled as people type:
        [("the dog chases the cats.", "the dog chase the cats."), ...]
    Raises:
        ValueError: there is no such phenomenon.
    """
    if phenomenon not in PHENOMENA:
        known = ", ".join(PHENOMENA)
        raise ValueError(f"unknown phenomenon {phenomenon!r}; the phenomena are: {known}")

    # Draw until there are enough different pairs.
    random = random_of(f"{seed} minimal pairs {phenomenon}")
    pairs = []
    seen = set()
    while len(pairs) < count:
        cast = draw_cast(Story(random))
        right, wrong = PHENOMENA[phenomenon](cast)
        pair = (spell(right), spell(wrong))
        if pair not in seen:
            pairs.append(pair)
            seen.add(pair)
    return pairs


# --- The nine tasks -------------------------------------------------------------------------------


def cola(story, label, turn):
    """CoLA: is the sentence correct? The ten phenomena take turns.

    0    the dog near the cats were tired.
    1    the dog near the cats was tired.
    """
    cast = draw_cast(story)

    # a pair for the phenomenon whose turn it is
    names = list(PHENOMENA)
    phenomenon = names[turn % len(names)]
    right, wrong = PHENOMENA[phenomenon](cast)

    if label == "1":
        return make_row([right], label, phenomenon)
    return make_row([wrong], label, phenomenon)


def sst2(story, label, turn):
    """SST-2: is the opinion good (1) or bad (0)? After a "but", its second part counts.

    0    nobody liked the soup.    /    the cake was good but the soup was not.
    1    nobody hated the soup.    /    the soup was bad but the cake was not.
    """
    # Of three rows, one has a "but", one has two sentences, and one has one sentence.
    wants_but = turn % 3 == 0
    wants_two_sentences = turn % 3 == 1

    # The scene asks for the opinion before the "but", which is the opposite.
    bad = label == "0"
    if wants_but:
        bad = not bad
    first, second = opinion_scene(story, bad)

    # The scene itself draws whether there is a "but".
    has_but = " but " in first
    if has_but != wants_but:
        return None

    # one sentence or both
    text = first
    if wants_two_sentences:
        text = join(first, second)
    return make_row([text], label)


def paraphrase(story, label, turn):
    """What MRPC and QQP compare: an event in the active and in the passive.

    even turns: the event itself
        the dog chased the cat; the cat was chased by the dog
    odd turns: the mood of somebody who is known by the event
        label 1: the cat that the dog chased is ill; the cat that was chased by the dog is ill
        label 0: the dog that chased the cat is ill; the cat that was chased by the dog is ill

    For label 0, the caller then exchanges dog and cat in the first text. After that, both texts are
    about the same one, in different roles.

    Returns:
        (first meaning, second meaning, the event)
    """
    event = reversible_event(story)
    in_passive = passive(event)
    mood = story.pick(ALL_MOODS)
    acting = story.chance(0.5)

    # even turns: the event itself, in either order
    if turn % 2 == 0:
        first, second = story.pick_two((event, in_passive))
        return first, second, event

    # odd turns: the mood of the object; for label 0, the exchange makes the subject the object
    known_by_active = modified_by(event.object, event)
    if label == "0":
        known_by_active = modified_by(event.subject, event)
    known_by_passive = modified_by(event.object, in_passive)

    # the two sentences, in either order
    in_moods = (
        in_mood(known_by_active, mood, story.past, False, acting),
        in_mood(known_by_passive, mood, story.past, False, acting),
    )
    first, second = story.pick_two(in_moods)
    return first, second, event


def mrpc(story, label, turn):
    """MRPC: do the two sentences say the same?

    0    the cat chased the dog.    the cat was chased by the dog.
    1    the dog chased the cat.    the cat was chased by the dog.
    """
    first, second, event = paraphrase(story, label, turn)
    texts = [sentence(first), sentence(second)]
    if label == "0":
        texts[0] = exchange_roles(texts[0], event)
    return make_row(texts, label)


def qqp(story, label, turn):
    """QQP: do the two questions ask the same?

    0    was the cat that the dog chased ill?    was the dog that was chased by the cat ill?
    1    did the dog chase the cat?              was the cat chased by the dog?
    """
    first, second, event = paraphrase(story, label, turn)
    texts = [yes_no_question(first), yes_no_question(second)]
    if label == "0":
        texts[0] = exchange_roles(texts[0], event)
    return make_row(texts, label)


def stsb(story, label, turn):
    """STS-B: how similar are the sentences? One point for each part that both have in common.

    The parts are subject, verb, object, tense and negation. Active or passive does not count.

    0.000    the dogs did not chase the cats.    the nurse helps the pilot.
    1.000    the dog chased the cat.             the fox did not help the hen.
    2.000    the dog chased the cat.             the cat did not chase the dog.
    3.000    the dog chased the cat.             the dog does not chase the cat.
    4.000    the dog chased the cat.             the cat was helped by the dog.
    5.000    the dog chased the cat.             the cat was chased by the dog.
    """
    event = reversible_event(story)
    event = replace(event, negated=story.chance(0.3))
    other = reversible_event(story)

    # Which parts change? For 3 points, two parts: in turn 0 subject and verb, in turn 1 verb and
    # object, and so on.
    parts = ("subject", "verb", "object", "past", "negated")
    points = int(label[0])
    changed = []
    for i in range(len(parts) - points):
        changed.append(parts[(turn + i) % len(parts)])

    # What they become: the part of the other event; tense and negation become the opposite. If
    # both nouns change, they trade places in half of the rows.
    if "subject" in changed and "object" in changed and story.chance(0.5):
        other = replace(other, subject=event.object, object=event.subject)
    other = replace(other, past=not event.past, negated=not event.negated)

    # A verb that changes must not become itself.
    if other.verb == event.verb:
        return None

    changes = {part: getattr(other, part) for part in changed}
    changed_event = replace(event, **changes)
    first = story.pick((event, passive(event)))
    second = story.pick((changed_event, passive(changed_event)))
    return make_row([sentence(first), sentence(second)], label)


def mnli(story, label, turn):
    """MNLI: is the second sentence true after the first one, false, or is neither known?

    entailment       the dog chased the cat.    the cat was afraid.
    neutral          the cat chased the dog.    the cat was afraid.
    contradiction    the dog chased the cat.    the cat was not afraid.
    """
    # even turns: one of the two sentences has a relative clause (odd turns draw it too)
    event = reversible_event(story)
    known, said = relative_meanings(story, event)

    # odd turns: an event, and what follows from it
    if turn % 2 == 1:
        known = story.pick((event, passive(event)))
        outcome = story.pick(outcomes(event))
        said = story.describe_state(outcome.who, outcome.state)

    # A contradiction denies the second sentence. So does half of the neutral rows; otherwise a
    # "not" would exclude "neutral".
    denied = label == "contradiction"
    if label == "neutral":
        denied = story.chance(0.5)
    if denied:
        said = replace(said, negated=not said.negated)

    # Neutral: in the first sentence, the two have exchanged their roles.
    texts = [sentence(known), sentence(said)]
    if label == "neutral":
        texts[0] = exchange_roles(texts[0], event)
    return make_row(texts, label)


def diagnostic(story, label, turn):
    """MNLI's diagnostic sentences: rows of MNLI, in every second turn of RTE.

    entailment       the dog that chased the cat is tired.    the cat is chased by the dog.
    neutral          the cat that chased the dog is tired.    the cat is chased by the dog.
    contradiction    the dog chases the cat.                  the dog is not tired.
    """
    if turn % 2 == 0 or label == "contradiction":
        return mnli(story, label, turn)
    return rte(story, label, turn)


def qnli(story, label, turn):
    """QNLI: does the sentence answer the question?

    entailment        who chased the dog?    the dog that the cat chased was afraid.
    not_entailment    who chased the dog?    the cat that the dog chased was afraid.
    """
    event = reversible_event(story)
    answer, _ = relative_meanings(story, event)

    # a question about one of the two
    asked = story.pick((event, passive(event)))
    about = story.pick(("subject", "object"))
    if about == "subject":
        question = subject_question(asked)
    else:
        question = object_question(asked)

    # The one that the question names has the other role in the sentence.
    if label == "not_entailment":
        question = exchange_roles(question, event)
    return make_row([question, sentence(answer)], label)


def rte(story, label, turn):
    """RTE: is the second sentence true after the first one?

    entailment        every animal in the barn slept.    the cat in the barn slept.
    not_entailment    every person in the barn slept.    the cat in the barn slept.
    """
    # odd turns: who did what to whom, as in MNLI
    if turn % 2 == 1:
        event = reversible_event(story)
        known, said = relative_meanings(story, event)
        texts = [sentence(known), sentence(said)]
        if label != "entailment":
            texts[0] = exchange_roles(texts[0], event)
        return make_row(texts, label)

    # even turns: what holds for all also holds for a part. "every bird" does not fit, because
    # only "animal" and "person" can trade places.
    known, said = quantity_scene(story)
    if "bird" in known:
        return None
    if label != "entailment":
        known = trade_places(known, ("animal", "person"), ("animals", "people"))
    return make_row([known, said], label)


def wnli(story, label, turn):
    """WNLI: does the second sentence understand the pronoun correctly?

    0    the dog bit the fox because it was angry.    the fox was angry.
    1    the dog bit the fox because it was angry.    the dog was angry.
    """
    event = reversible_event(story, needs_pronoun=True)
    known, said = reason_scene(story, event)
    if label == "0":
        known = exchange_roles(known, event)
    return make_row([known, said], label)


TASKS = {
    "CoLA": cola,
    "SST-2": sst2,
    "MRPC": mrpc,
    "STS-B": stsb,
    "QQP": qqp,
    "MNLI": mnli,
    "QNLI": qnli,
    "RTE": rte,
    "WNLI": wnli,
}


# --- Files ----------------------------------------------------------------------------------------


def write_glue(folder, seed=0):
    """Make a folder with the nine tasks in GLUE's own files.

    Args:
        folder: the folder to make.
        seed: of the random choices. The same seed gives the same files on every machine.
    Returns:
        {task: {split: list of Row}}
    Raises:
        OSError: the folder exists already, or it cannot be made.
    """
    # Never write into an existing folder: it might have the published files of GLUE.
    try:
        Path(folder).mkdir(parents=True)
    except FileExistsError:
        raise FileExistsError(f"{folder} exists already: give a new folder") from None

    # one file per split; support/glue_format.py knows the columns of each
    written = {}
    for task in GLUE_ROWS:
        task_format = FORMATS[task.lower()]
        written[task] = make_task(task, seed)
        for split, rows in written[task].items():
            columns = [columns_of(row, task_format) for row in rows]
            write_split(folder, task_format, split, columns)
    return written


def make_task(task, seed):
    """Make all rows of a task: {split: list of Row}. No two rows have the same texts."""
    # shared by all splits, so that no text of dev or test is in train
    random = random_of(f"{seed} {task}")
    labels = LABELS[task]
    seen = set()

    splits = {}
    for split, count in GLUE_ROWS[task].items():
        make = TASKS[task]
        if split == "diagnostic":
            make = diagnostic

        rows = []
        while len(rows) < count:
            # The labels take turns.
            label = labels[len(rows) % len(labels)]
            turn = len(rows) // len(labels)

            # a new story for each row; the split decides the tense in MNLI
            story = Story(random)
            if task == "MNLI" and split in MNLI_IN_THE_PAST:
                story.past = MNLI_IN_THE_PAST[split]
            row = make(story, label, turn)

            # Keep it, or try again.
            if is_new(row, seen):
                rows.append(row)
                seen.add(frozenset(row.texts))
        splits[split] = rows
    return splits


def is_new(row, seen):
    """Whether a row has texts that no row before has, in either order.

    Args:
        row: a Row, or None if there is none.
        seen: a set of the texts of all rows before, one frozenset per row.
    """
    if row is None:
        return False

    # The two texts of a row differ.
    texts = frozenset(row.texts)
    if len(texts) < len(row.texts):
        return False
    return texts not in seen


def columns_of(row, task_format):
    """A row for write_split: {column name: value}. Columns that are not given get row numbers."""
    columns = dict(zip(task_format.texts, row.texts, strict=True))
    columns[task_format.label] = row.label

    # CoLA marks what is wrong by a star, as linguists do.
    if task_format.folder == "CoLA":
        columns["source"] = row.phenomenon
        columns["mark"] = ""
        if row.label == "0":
            columns["mark"] = "*"

    # MNLI has two columns: the label given by one person, and the label given by most people.
    if task_format.folder == "MNLI":
        columns["label1"] = row.label
    return columns


# --- What can be reached without word order -------------------------------------------------------


def baselines(train, dev):
    """Scores on dev of two methods that do not look at word order.

    Args:
        train: list of Row, the rows to learn from.
        dev: list of Row, the rows to predict.
    Returns:
        (majority, bag of words): the accuracy of always predicting the most frequent label of
        train, and the accuracy of ridge regression on the number of times each word occurs. For
        STS-B, whose labels are numbers, Pearson's r instead of the accuracy, and 0 for majority.
    """
    rows = train + dev
    n = len(train)

    # labels as ids, in sorted order
    labels, ids = np.unique([row.label for row in rows], return_inverse=True)

    # bag of words: learn from train a score for each label, 1 for the right one, otherwise 0
    features = bag_of_words(rows)  # (rows, features)
    targets = np.eye(len(labels))[ids[:n]]  # (train rows, labels)
    weights = ridge_regression(features[:n], targets)  # (features, labels)
    scores = features[n:] @ weights  # (dev rows, labels)

    # Numbers: predict the sum of the points, weighted by their scores. The id of "0.000" is 0, the
    # id of "1.000" is 1, and so on: the ids are the points.
    if "." in labels[0]:
        predicted = scores @ np.arange(len(labels))
        return 0.0, float(np.corrcoef(predicted, ids[n:])[0, 1])

    # Classes: predict the most frequent label of train, or the label with the highest score.
    most_frequent = np.bincount(ids[:n]).argmax()
    majority = np.mean(ids[n:] == most_frequent)
    accuracy = np.mean(ids[n:] == scores.argmax(axis=1))
    return float(majority), float(accuracy)


def bag_of_words(rows):
    """Features of the rows for a linear model, without word order: (rows, 4 * words + 1) numbers.

    For each word: how often it is in the first text, how often in the second one, how much more
    often in one of them than in the other, and how often in both. The last feature is always 1.
    """
    # the words of each text
    words_a = [re.findall(r"\w+", row.texts[0]) for row in rows]
    words_b = [re.findall(r"\w+", row.texts[-1]) for row in rows]  # of one text, the same again

    # a number for each word, in alphabetical order
    vocabulary = set()
    for words in words_a + words_b:
        vocabulary.update(words)
    indices = {word: index for index, word in enumerate(sorted(vocabulary))}

    # counts, and what follows from them
    a = count_words(words_a, indices)  # (rows, words)
    b = count_words(words_b, indices)
    ones = np.ones((len(rows), 1))
    return np.hstack([a, b, abs(a - b), np.minimum(a, b), ones])


def count_words(texts, indices):
    """How often each word occurs in each text: (texts, words) integers."""
    counts = np.zeros((len(texts), len(indices)), dtype=int)
    for row, words in enumerate(texts):
        for word in words:
            counts[row, indices[word]] += 1
    return counts


def ridge_regression(x, y, penalty=10):
    """The weights w that minimize |x w - y|^2 + penalty |w|^2.

    Args:
        x: features (rows, features).
        y: targets (rows, labels): 1 for the row's label, 0 for the others.
        penalty: larger values keep the weights smaller.
    Returns:
        w (features, labels), the solution of (x^T x + penalty I) w = x^T y
    """
    identity = np.eye(x.shape[1])
    return np.linalg.solve(x.T @ x + penalty * identity, x.T @ y)
