"""The toy translation: sentences of the toy language, and the same in another word order.

A sentence is made from its meaning (toy/language.py), and so is its translation. In the other
language the verb is last, what describes a noun comes before it, an object is marked by "o", and
words are spelled backwards:

    the dog that followed the cats scared anna      followed: the dog is its subject
    eht stac o dewollof eht god anna o deracs
"""

from random import Random

from toy.language import EVENT_VERBS, Event, Story, clause, join, modified_by, noun_word

# Verbs whose subject and object may be anybody, so that a noun fits into every clause.
VERBS = [verb for verb in EVENT_VERBS if verb.agents == verb.patients == "animate"]


def toy_pairs(seed, depths, count):
    """`count` different pairs, each with one of these numbers of relative clauses."""
    random = Random(seed).random
    pairs = {}
    while len(pairs) < count:
        depth = depths[int(len(depths) * random())]
        event = new_event(Story(random), depth)
        pairs[clause(event), foreign_clause(event)] = None
    return list(pairs)


def new_event(story, depth, who=None):
    """An Event in which `who`, or somebody new, takes part; `depth` relative clauses in a chain.

    "the dog scared anna"; with depth 1 "the dog that followed the cats scared anna"
    """
    who = who or story.new_entity(definite=False)
    other = story.new_entity(definite=False, named=depth == 0)
    if depth > 0:
        other = modified_by(other, new_event(story, depth - 1, other))
    subject, object = story.pick_two((who, other))
    return Event(subject, story.pick(VERBS), object, story.past)


def foreign_clause(event):
    """An event in the other language: subject, object, verb. A gap, None, has no words."""
    subject = foreign_phrase(event.subject)
    object = foreign_phrase(event.object, mark="o")
    verb = event.verb.past if event.past else event.verb.base
    return join(subject, object, verb[::-1])


def foreign_phrase(entity, mark=""):
    """A noun phrase in the other language: relative clause, adjectives, determiner, noun, mark."""
    if entity is None:
        return ""
    relative = ""
    if entity.modifier is not None:
        relative = foreign_clause(entity.modifier)
    words = [*entity.adjectives, entity.determiner, noun_word(entity)]
    return join(relative, *(word[::-1] for word in words), mark)
