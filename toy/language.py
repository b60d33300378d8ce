"""A toy language in which position and word order carry meaning.

It is small enough that a tiny BERT learns most of its grammar in minutes. Two documents:

    the dog chased the cats . they were afraid .
    did the fox sleep ? no , it did not .

    the farmer gives two apples to the child . the child has the apples .
    a small grey cat and a big white dog are in the barn . the big animal is white .

How a document is made:

    1. `documents` draws two, three or four different scenes from the table SCENES.
    2. A scene draws what happens: an Event ("the dog chased the cats") or a State ("the cats were
       afraid") of one or two Entities ("the dog").
    3. The constructions (clause, passive, yes_no_question, relative_clause, ...) say it in words.
    4. A scene gives two sentences, and the second one depends on the meaning of the first one. So
       a document has an even number of sentences, and the pairs (0, 1), (2, 3), ... of a corpus
       (data.py) never mix two documents. A document keeps one tense (except for what is always
       true: "every duck is a bird") and draws no noun twice, so it cannot contradict itself.

In the text, there is a space between words, and also before a punctuation mark. `spell` removes the
spaces before the marks.

All random choices come from the one method random() of random.Random(seed). Python promises that
it gives the same numbers in every version, so a seed gives the same text on every machine.

How to add something:

    a noun    Add it to NOUNS. The first nouns of a kind are drawn more often than the last ones.
    a verb    Add a row to EVENT_VERBS. The states of its agent and of its patient say how the two
              are after the event: after "the dog chased the cat", "the dog was tired" and "the cat
              was afraid". If the agent's state is an effect of the event and not the reason for it,
              add it also to EFFECTS_ON_AGENTS. A state that is a key of MOODS or of OPPOSITES is
              sometimes expressed in another way: "the cat hid", "the cat was not asleep".
    a scene   Write a function scene(story) that returns two sentences, and add it to SCENES. Its
              parts come from the methods of Story, and `sentence` puts them into words. This
              scene gives "the dogs played . they were not ill .":

                  def playing_scene(story):
                      who = story.new_entity()
                      first = Event(who, MOODS["glad"], past=story.past)
                      again = story.mention_again(who)
                      second = State(again, "ill", past=story.past, negated=True)
                      return sentence(first), sentence(second)

After such a change the language gives another text. Some tests compare the text, and the GLUE tasks
made from it, with published hashes. These tests then fail, as they should: write the new hashes
there. Some tests also have their own lists of words: add the new words to these lists.
"""

import re
from dataclasses import dataclass, replace
from random import Random

SENTENCES = 200_000  # of the default corpus


# --- Words ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noun:
    """A noun. Names and places have no plural: ""."""

    singular: str
    plural: str
    kind: str


# fmt: off
# Nouns by kind, as {singular: plural}. Names and places have no plural: "".
NOUNS = {
    "animal": {
        "dog": "dogs", "cat": "cats", "horse": "horses", "mouse": "mice", "cow": "cows",
        "fox": "foxes", "goat": "goats", "wolf": "wolves", "rabbit": "rabbits",
    },
    "bird": {"duck": "ducks", "goose": "geese", "hen": "hens", "owl": "owls"},
    "person": {
        "child": "children", "farmer": "farmers", "doctor": "doctors", "teacher": "teachers",
        "baker": "bakers", "sailor": "sailors", "nurse": "nurses", "pilot": "pilots",
        "singer": "singers",
    },
    "woman": {"anna": "", "maria": "", "emma": "", "ruth": ""},
    "man": {"tom": "", "david": "", "omar": "", "paul": ""},
    "fruit": {"apple": "apples", "pear": "pears", "plum": "plums", "cherry": "cherries"},
    "flower": {"rose": "roses", "tulip": "tulips", "lily": "lilies", "daisy": "daisies"},
    "tool": {"hammer": "hammers", "ladder": "ladders", "spade": "spades", "brush": "brushes"},
    "work": {
        "film": "films", "song": "songs", "book": "books", "story": "stories", "soup": "soups",
        "cake": "cakes",
    },
    "place": {"garden": "", "barn": "", "house": "", "forest": "", "field": "", "kitchen": ""},
}

# Kinds that are nouns themselves: "the small animal", "ducks are birds". The kind of such a noun
# is the more general kind: every bird is an animal.
KIND_NOUNS = {
    # kind          singular  plural     more general kind
    "animal": Noun("animal", "animals", ""),
    "bird":   Noun("bird",   "birds",   "animal"),
    "person": Noun("person", "people",  ""),
    "tool":   Noun("tool",   "tools",   ""),
    "flower": Noun("flower", "flowers", ""),
    "fruit":  Noun("fruit",  "fruits",  ""),
}
MORE_GENERAL = {"bird": "animal", "woman": "person", "man": "person"}

# Who or what fits a verb. A kind that is named three times is drawn three times as often.
SLOTS = {
    "animate": ("animal", "animal", "animal", "bird", "person", "person", "woman", "man"),
    "human":   ("person", "person", "woman", "man"),
    "beast":   ("animal", "animal", "bird"),
    "thing":   ("fruit", "flower", "tool"),
    "work":    ("work",),
}

# Adjectives by rank: size comes before age, and age before colour.
#             sizes              ages              colours
OF_PEOPLE  = (("tall", "short"), ("old", "young"))
OF_ANIMALS = (("small", "big"),  ("old", "young"), ("black", "white", "brown", "grey"))
OF_THINGS  = (("small", "big"),  ("old", "new"),   ("red", "yellow", "white"))
ADJECTIVES = {
    "person": OF_PEOPLE,
    "animal": OF_ANIMALS,
    "bird":   OF_ANIMALS,
    "fruit":  OF_THINGS,
    "flower": OF_THINGS,
    "tool":   OF_THINGS,
}
# fmt: on


@dataclass(frozen=True)
class Verb:
    """The forms of a verb, who can do it to whom, and the states of both after the event.

    Attributes:
        base: "they chase", "does not chase".
        third: "it chases".
        past: "it chased", "it bit".
        participle: "it was chased", "it was bitten"; "" for a verb that is never in the passive.
        agents: who does it; a key of SLOTS.
        patients: to whom it is done; a key of SLOTS.
        agent_state: how the agent is after the event ("tired").
        patient_state: how the patient is after the event ("afraid").
        preposition: for a verb with one more person: "to" in "gives an apple to anna".
    """

    base: str
    third: str
    past: str
    participle: str = ""
    agents: str = "animate"
    patients: str = "animate"
    agent_state: str = ""
    patient_state: str = ""
    preposition: str = ""


# fmt: off
EVENT_VERBS = (
    #    base      third      past        participle  agents     patients   agent is  patient is
    Verb("chase",  "chases",  "chased",   "chased",   "animate", "animate", "tired",  "afraid"),
    Verb("help",   "helps",   "helped",   "helped",   "animate", "animate", "kind",   "thankful"),
    Verb("feed",   "feeds",   "fed",      "fed",      "human",   "animate", "kind",   "full"),
    Verb("follow", "follows", "followed", "followed", "animate", "animate", "behind", "ahead"),
    Verb("wake",   "wakes",   "woke",     "woken",    "animate", "animate", "loud",   "awake"),
    Verb("wash",   "washes",  "washed",   "washed",   "human",   "beast",   "wet",    "clean"),
    Verb("scare",  "scares",  "scared",   "scared",   "animate", "animate", "loud",   "afraid"),
    Verb("bite",   "bites",   "bit",      "bitten",   "beast",   "animate", "angry",  "hurt"),
    Verb("defeat", "defeats", "defeated", "defeated", "animate", "animate", "strong", "weak"),
)

# These states of an agent are an effect of the event: "it is tired because it chased the cat".
# All other states of an agent are the reason for it: "it bit the cat because it was angry".
EFFECTS_ON_AGENTS = ("tired", "behind", "wet")

# Verbs by which a thing goes from one person to another. The agent has the thing first if the
# preposition is "to". The patient is the person after the preposition.
TRANSFER_VERBS = (
    #    base     third     past      participle  agents     patients
    Verb("give",  "gives",  "gave",   "given",    "human",   "animate", preposition="to"),
    Verb("steal", "steals", "stole",  "stolen",   "animate", "animate", preposition="from"),
    Verb("sell",  "sells",  "sold",   "sold",     "human",   "human",   preposition="to"),
    Verb("buy",   "buys",   "bought", "bought",   "human",   "human",   preposition="from"),
)
HAVE = Verb("have", "has", "had")

# Moods, and what somebody in this mood does. Somebody who is dirty washes himself or herself.
MOODS = {
    # mood          base     third     past
    "dirty":   Verb("wash",  "washes", "washed"),
    "tired":   Verb("sleep", "sleeps", "slept"),
    "hungry":  Verb("eat",   "eats",   "ate"),
    "afraid":  Verb("hide",  "hides",  "hid"),
    "thirsty": Verb("drink", "drinks", "drank"),
    "glad":    Verb("play",  "plays",  "played"),
    "ill":     Verb("rest",  "rests",  "rested"),
    "late":    Verb("run",   "runs",   "ran"),
}
ALL_MOODS = tuple(MOODS)

# Moods that somebody shows in one word: "slept". The first mood, "dirty", is left out, because
# "washed itself" is two words, and the second one shows the number of the subject.
ONE_WORD_MOODS = ALL_MOODS[1:]

# A state can also be expressed by its opposite: "full" as "not hungry".
OPPOSITES = {
    "full":   "hungry",
    "awake":  "asleep",
    "clean":  "dirty",
    "loud":   "quiet",
    "strong": "weak",
    "weak":   "strong",
}

# Opinions about a film, a soup, ...
GOOD = ("good", "funny", "lovely", "great")
BAD = ("bad", "dull", "boring", "awful")
LIKING = (
    Verb("like",  "likes",  "liked"),
    Verb("enjoy", "enjoys", "enjoyed"),
)
HATING = (
    Verb("hate",  "hates",  "hated"),
)

# "the cat near the dogs": "with" needs somebody, and "in" needs a place.
NEAR_THINGS = ("near", "behind", "beside")
NEAR_SOMEBODY = (*NEAR_THINGS, "with")
PREPOSITIONS = (*NEAR_SOMEBODY, "in")

# The determiners of a new plural noun. One that is named three times is drawn more often.
PLURAL_DETERMINERS = ("the", "the", "the", "some", "two", "many", "three")


@dataclass(frozen=True)
class Pronoun:
    """The forms of a pronoun: "they sleep", "it saw them", "they washed themselves"."""

    subject: str
    object: str
    reflexive: str


IT = Pronoun("it", "it", "itself")
THEY = Pronoun("they", "them", "themselves")
SHE = Pronoun("she", "her", "herself")
HE = Pronoun("he", "him", "himself")

# Auxiliaries, by (past, plural).
BE = {
    (False, False): "is",  (False, True): "are",
    (True,  False): "was", (True,  True): "were",
}
DO = {
    (False, False): "does", (False, True): "do",
    (True,  False): "did",  (True,  True): "did",
}
# fmt: on

# {kind: the list of its Nouns}, in the order of the table
NOUNS_BY_KIND = {}
for _kind, _forms in NOUNS.items():
    NOUNS_BY_KIND[_kind] = [Noun(singular, plural, _kind) for singular, plural in _forms.items()]


# --- Meanings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entity:
    """Somebody or something: "the small cats", "anna", "it".

    Attributes:
        noun: the Noun.
        is_plural: more than one.
        determiner: "the", "a", "two", ...; "" for names.
        adjectives: words, in the order in which they are said.
        modifier: an Event or a State that says more about the entity: "the cats that the dog
            chased", "the cats near the dog". In it, None takes the place of the entity itself.
        as_pronoun: whether it is mentioned by a pronoun.
    """

    noun: Noun
    is_plural: bool = False
    determiner: str = "the"
    adjectives: tuple = ()
    modifier: "Event | State | None" = None
    as_pronoun: bool = False


@dataclass(frozen=True)
class Event:
    """Somebody does something: "the dog chased the cats", "tom gave two apples to anna".

    Attributes:
        subject: the Entity that does it.
        verb: the Verb.
        object: the Entity to which it is done, or None.
        past: past tense or present tense.
        negated: "the dog did not chase the cats".
        partner: the Entity after the verb's preposition ("anna"), or None.
    """

    subject: Entity | None
    verb: Verb
    object: Entity | None = None
    past: bool = False
    negated: bool = False
    partner: Entity | None = None


@dataclass(frozen=True)
class State:
    """How or what somebody is: "the cats are afraid", "the cats are near the dog".

    Attributes:
        subject: the Entity.
        predicate: the words after "is": "afraid", "near", "chased by"; "" in "ducks are birds".
        object: the Entity after these words, or None.
        past: past tense or present tense.
        negated: "the cats are not afraid".
    """

    subject: Entity | None
    predicate: str
    object: Entity | None = None
    past: bool = False
    negated: bool = False


def modified_by(entity, meaning):
    """The entity, identified by an event or a state in which it takes part.

    In the event "the dog chased the cats":
        the dog:   "the dog that chased the cats"
        the cats:  "the cats that the dog chased"
    """
    # Leave a gap in place of the entity: "[gap] chased the cats".
    if entity is meaning.subject:
        with_gap = replace(meaning, subject=None)
    else:
        with_gap = replace(meaning, object=None)
    return replace(entity, modifier=with_gap)


def by_pronoun(entity):
    """An entity by its pronoun: "it" for "the dog", "they" for "the sailors"."""
    return replace(entity, as_pronoun=True)


def by_kind(entity):
    """An entity by its kind: "the animal" for "the dog", "the people" for "the sailors"."""
    kind = MORE_GENERAL.get(entity.noun.kind, entity.noun.kind)
    return Entity(KIND_NOUNS[kind], entity.is_plural)


def all_of(noun, quantifier, modifier=None):
    """All of a kind, or none: "every cat", "all cats", "no cats in the barn"."""
    return Entity(noun, quantifier != "every", quantifier, modifier=modifier)


def fixed_word(text, is_plural=False):
    """An Entity for the subject of a verb that is always the same word: "who", "nobody", "that"."""
    return Entity(Noun(text, text, ""), is_plural, determiner="")


# --- Constructions: from meanings to words --------------------------------------------------------


def join(*words):
    """Join words with spaces; leave out empty ones: join("the", "", "dog") is "the dog"."""
    return " ".join(word for word in words if word)


def noun_word(entity):
    """The noun of an entity in its number: "dog" or "dogs"."""
    if entity.is_plural:
        return entity.noun.plural
    return entity.noun.singular


def phrase(entity, case="subject"):
    """A noun phrase. The case, "subject" or "object", matters only for pronouns.

    "the small cat", "an owl that chased the dogs"
    """
    if entity.as_pronoun and case == "subject":
        return pronoun_of(entity).subject
    if entity.as_pronoun:
        return pronoun_of(entity).object

    # adjectives and noun: "small cat"
    words = join(*entity.adjectives, noun_word(entity))

    # determiner: "the small cat", "an owl"
    determiner = entity.determiner
    if determiner == "a" and words[0] in "aeiou":
        determiner = "an"
    words = join(determiner, words)

    # what else is said about it: "the small cat that chased the dogs"
    if entity.modifier is None:
        return words
    return join(words, modifier_words(entity))


def modifier_words(entity):
    """The words after the noun, with or without "that".

    "that chased the dogs", "near the dogs"
    """
    modifier = entity.modifier
    if isinstance(modifier, State) and modifier.predicate in PREPOSITIONS:
        return join(modifier.predicate, phrase(modifier.object, "object"))
    return relative_clause(entity)


def relative_clause(entity):
    """Which one it is.

    "(the cat) that chased the dogs", "(the child) who the dogs chased"
    """
    relative = relative_pronoun(entity)

    # The entity is the subject, and so is the relative pronoun: "that chased the dogs".
    if entity.modifier.subject is None:
        subject = fixed_word(relative, entity.is_plural)
        return clause(replace(entity.modifier, subject=subject))

    # The entity is the object: "that" and a clause without its object, "that the dogs chased".
    return join(relative, clause(entity.modifier))


def relative_pronoun(entity):
    """ "who" for people, otherwise "that"."""
    if entity.noun.kind == "person":
        return "who"
    return "that"


def pronoun_of(entity):
    """The Pronoun of an entity, or None if the language leaves it open.

    of "the cats": they; of "anna": she; of "the teacher", who may be a woman or a man: None

    A flaw of the language: the noun "person" is itself the name of a kind, so its own kind is not
    "person", and its pronoun is "it", as in "every person in the house washed itself". The flaw is
    kept, because the recorded runs were trained on text that has it.
    """
    if entity.is_plural:
        return THEY
    if entity.noun.kind == "person":
        return None
    if entity.noun.kind == "woman":
        return SHE
    if entity.noun.kind == "man":
        return HE
    return IT


def object_phrase(meaning):
    """The object of an event or a state: a noun phrase or a reflexive; "" if there is none.

    "(the dog chased) the cats", "(the dog washed) itself"
    """
    if meaning.object is None:
        return ""
    if meaning.object == meaning.subject:
        return pronoun_of(meaning.object).reflexive
    return phrase(meaning.object, "object")


@dataclass(frozen=True)
class Parts:
    """The parts of a sentence. A statement and a question put them into different orders.

                   subject     auxiliary   negation   core       rest
    an event       the dog     did         not        chase      the cats
    a state        the cats    were                   afraid
    """

    subject: str
    auxiliary: str
    negation: str
    core: str
    rest: str


def parts_of(meaning):
    """The Parts of an event or a state.

    event: "the dog", "did", "", "chase", "the cats"
    state: "the cats", "were", "not", "near", "the dog"
    """
    subject = phrase(meaning.subject)
    negation = ""
    if meaning.negated:
        negation = "not"
    rest = object_phrase(meaning)
    tense_and_number = (meaning.past, meaning.subject.is_plural)
    if isinstance(meaning, State):
        return Parts(subject, BE[tense_and_number], negation, meaning.predicate, rest)

    # one more person: "two apples to anna"
    if meaning.partner is not None:
        rest = join(rest, meaning.verb.preposition, phrase(meaning.partner, "object"))
    return Parts(subject, DO[tense_and_number], negation, meaning.verb.base, rest)


def clause(meaning):
    """An event or a state as a statement.

    "the dog chased the cats", "the dog did not chase the cats", "the cats are afraid"
    """
    parts = parts_of(meaning)

    # An event has no auxiliary, except for "did not".
    if isinstance(meaning, Event) and not meaning.negated:
        return join(parts.subject, verb_form(meaning), parts.rest)
    return join(parts.subject, parts.auxiliary, parts.negation, parts.core, parts.rest)


def verb_form(event):
    """The verb of a statement, in its tense and in the number of its subject.

    "(the dog) chases", "(the dogs) chase"
    """
    if event.past:
        return event.verb.past
    if event.subject.is_plural:
        return event.verb.base
    return event.verb.third


def passive(event):
    """The same event as a statement about its object: a State whose predicate ends in "by".

    "the cats were chased by the dog", "two apples were given to anna by tom"
    """
    predicate = event.verb.participle
    if event.partner is not None:
        partner = phrase(event.partner, "object")
        predicate = join(predicate, event.verb.preposition, partner)
    return State(event.object, join(predicate, "by"), event.subject, event.past, event.negated)


def yes_no_question(meaning):
    """A question that is answered by yes or no.

    "did the dog chase the cats ?", "were the cats afraid ?"
    """
    parts = parts_of(meaning)
    return join(parts.auxiliary, parts.subject, parts.core, parts.rest, "?")


def subject_question(meaning):
    """A question about the subject.

    "who chased the cats ?", "who was chased by the dog ?"
    """
    asked = replace(meaning, subject=fixed_word("who"))
    return join(clause(asked), "?")


def object_question(meaning):
    """A question about the object.

    "who did the dog chase ?", "who were the cats chased by ?"
    """
    parts = parts_of(meaning)
    return join("who", parts.auxiliary, parts.subject, parts.core, "?")


def short_answer(meaning):
    """Only the subject and the auxiliary.

    "the dog did", "they were not"
    """
    parts = parts_of(meaning)
    return join(parts.subject, parts.auxiliary, parts.negation)


def yes_no_answer(meaning):
    """The answer to a yes_no_question: "yes , the dog did .", "no , they were not ." """
    yes_or_no = "yes"
    if meaning.negated:
        yes_or_no = "no"
    return join(yes_or_no, ",", short_answer(meaning), ".")


def sentence(meaning):
    """A clause with its full stop.

    "the dog chased the cats .", "the cats are afraid ."
    """
    return join(clause(meaning), ".")


def spell(text):
    """Write text as people type it: "the dog barks ." becomes "the dog barks."."""
    return re.sub(r" ([.,?])", r"\1", text)


# --- What follows from what -----------------------------------------------------------------------


def outcomes(event):
    """The States of object and subject after an event. After a negated event, neither is true.

    after "the dog chased the cats": "the cats were afraid", "the dog was tired"
    """
    return (
        State(event.object, event.verb.patient_state, past=event.past),
        State(event.subject, event.verb.agent_state, past=event.past),
    )


def in_mood(who, mood, past, acting, negated=False):
    """A mood, as a State or (acting) as the Event of what somebody does in this mood.

    "the cat is tired" or "the cat sleeps"; "the cat is dirty" or "the cat washes itself"
    """
    if not acting:
        return State(who, mood, None, past, negated)

    # "the cat washes itself"; if the language has no pronoun for this one, "the baker washes"
    washed = None
    if mood == "dirty" and pronoun_of(who) is not None:
        washed = who
    return Event(who, MOODS[mood], washed, past, negated)


def is_a(noun, kind, is_plural, negated=False):
    """What something is.

    "every duck is a bird" or, in the plural, "ducks are birds";
    negated, "no duck is a tool" or, in the plural, "ducks are not tools"
    """
    # the plural: "ducks are birds"
    if is_plural:
        ducks = Entity(noun, is_plural=True, determiner="")
        birds = Entity(KIND_NOUNS[kind], is_plural=True, determiner="")
        return State(ducks, "", birds, negated=negated)

    # the singular: the determiner says whether it is negated
    determiner = "every"
    if negated:
        determiner = "no"
    every_duck = Entity(noun, determiner=determiner)
    a_bird = Entity(KIND_NOUNS[kind], determiner="a")
    return State(every_duck, "", a_bird)


# --- Story: the random choices of one document ----------------------------------------------------


class Story:
    """One document while it is made: its tense, the nouns used so far, and its random choices.

    The order of the draws decides the text. A change of the order gives another text.

    Attributes:
        random: function that returns a number from 0 to below 1.
        past: whether the document is in the past tense.
        used: the nouns drawn so far.
    """

    def __init__(self, random):
        self.random = random
        self.past = random() < 0.5
        self.used = []

    # Draws

    def chance(self, probability):
        """True with this probability."""
        return self.random() < probability

    def pick(self, options):
        """One of the options. Options further up are drawn more often.

        Of 8 options the first is drawn in 21 % and the last in 9 % of the cases, of 2 options in
        62 % and 38 %. So some words are more frequent than others, as in every language.
        """
        r = self.random()
        share = r * (1 + r) / 2  # from 0 to 1; small values are more frequent
        return options[int(len(options) * share)]

    def pick_two(self, options):
        """Two different options."""
        first = self.pick(options)
        others = [option for option in options if option != first]
        return first, self.pick(others)

    # Entities and events

    def new_noun(self, *kinds):
        """A noun of one of these kinds that was not drawn before in this document.

        Every kind has enough nouns for that, because no document has a scene twice.
        """
        while True:
            kind = kinds[int(len(kinds) * self.random())]
            noun = self.pick(NOUNS_BY_KIND[kind])
            if noun not in self.used:
                self.used.append(noun)
                return noun

    def new_entity(self, slot="animate", definite=True, named=True, needs_pronoun=False):
        """Somebody or something new.

        Args:
            slot: a key of SLOTS.
            definite: always with "the"; otherwise perhaps with "a", "some", "two", ...
            named: names are possible.
            needs_pronoun: only entities for which the language has a pronoun.
        """
        # noun
        kinds = SLOTS[slot]
        if not named:
            kinds = [kind for kind in kinds if kind not in ("woman", "man")]
        noun = self.new_noun(*kinds)

        # A name has no plural, no determiner and no adjectives.
        if not noun.plural:
            return Entity(noun, determiner="")

        # number: "the baker" has no pronoun, and "the bakers" have "they"
        is_plural = self.chance(0.45)
        if needs_pronoun and noun.kind == "person":
            is_plural = True

        # determiner
        determiner = "the"
        if not definite:
            determiner = self.indefinite_determiner(is_plural)

        # adjectives: none, or each rank with probability 1/2
        adjectives = []
        if self.chance(0.25):
            for rank in ADJECTIVES.get(noun.kind, ()):
                if self.chance(0.5):
                    adjectives.append(self.pick(rank))

        return Entity(noun, is_plural, determiner, tuple(adjectives))

    def indefinite_determiner(self, is_plural):
        """The determiner of something new: "some", "two", ...; for one, "a" or "the"."""
        if is_plural:
            return self.pick(PLURAL_DETERMINERS)
        if self.chance(0.25):
            return "a"
        return "the"

    def new_place(self):
        """Where somebody is: "in the barn"."""
        return State(None, "in", Entity(self.new_noun("place")))

    def new_entity_near_another(self):
        """Somebody near somebody or something else: "the cat near the dogs".

        Its verb agrees with "cat", although "dogs" is nearer.
        """
        subject = self.new_entity(named=False)
        slot = self.pick(("animate", "thing"))
        other = self.new_entity(slot)

        prepositions = NEAR_SOMEBODY
        if slot == "thing":
            prepositions = NEAR_THINGS
        return self.near(subject, other, prepositions)

    def near(self, who, other, prepositions=NEAR_SOMEBODY):
        """Somebody near somebody else: "the dog near the cats", "the dog with the cats"."""
        place = State(None, self.pick(prepositions), other)
        return replace(who, modifier=place)

    def new_event(self, **options):
        """Somebody does something to somebody else. The options are those of new_entity."""
        verb = self.pick(EVENT_VERBS)
        agent = self.new_entity(verb.agents, **options)
        patient = self.new_entity(verb.patients, **options)
        return Event(agent, verb, patient, self.past)

    # The same again

    def mention_again(self, entity, other=None):
        """The same entity in the next sentence: "it", or by its kind "the animal", or "the dog".

        Adjectives and modifiers are left out.

        Args:
            entity: the entity to mention.
            other: another entity of the previous sentence. The kind is not used if `other` belongs
                to it, too, and a pronoun that could also mean `other` is rarely used.
        """
        # A pronoun is usual if it cannot mean the other one, and rare if it can.
        own_pronoun = pronoun_of(entity)
        if own_pronoun is not None:
            probability = 0.65
            if other is not None and own_pronoun == pronoun_of(other):
                probability = 0.15
            if self.chance(probability):
                return by_pronoun(entity)

        # The kind is possible only if the other one is not of this kind.
        noun = entity.noun
        is_ambiguous = False
        if other is not None:
            is_ambiguous = noun.kind in (other.noun.kind, MORE_GENERAL.get(other.noun.kind))
        if noun.kind in KIND_NOUNS and not is_ambiguous and self.chance(0.15):
            noun = KIND_NOUNS[noun.kind]

        # Names have no determiner; what was "two dogs" is now "the dogs".
        determiner = ""
        if entity.determiner:
            determiner = "the"
        return Entity(noun, entity.is_plural, determiner)

    def describe_state(self, who, state, negated=False):
        """Say that somebody is in a state, in one of three ways.

        directly:                               "the cat is full"
        by its opposite:                        "the cat is not hungry"
        by what somebody in this state does:    "the cat hides" for "the cat is afraid"
        """
        if state in MOODS:
            return in_mood(who, state, self.past, acting=self.chance(0.3), negated=negated)

        if state in OPPOSITES and not negated and self.chance(0.2):
            state = OPPOSITES[state]
            negated = True
        return State(who, state, past=self.past, negated=negated)

    def active_or_passive(self, event, passive_probability):
        """The event as it is or, with this probability, in the passive."""
        if self.chance(passive_probability):
            return passive(event)
        return event


# --- Scenes: two sentences each -------------------------------------------------------------------


def consequence_scene(story):
    """An event, then the state of the one who did it, or of the one to whom it was done.

    the dog chased the cats .            they were afraid .
    the cats were chased by the dog .    the dog was tired .
    """
    # what happens, or does not happen
    negated = story.chance(0.15)
    event = story.new_event(definite=negated)
    event = replace(event, negated=negated)

    # what follows, for one of the two
    outcome, other_outcome = story.pick_two(outcomes(event))

    # the two sentences
    first = story.active_or_passive(event, 0.4)
    who = story.mention_again(outcome.subject, other_outcome.subject)
    second = story.describe_state(who, outcome.predicate, negated)
    return sentence(first), sentence(second)


def relative_scene(story):
    """An event, and the state of somebody after it; a relative clause says who it is.

    the dog chased the cats .                the dog that chased the cats was tired .
    the cats that the dog bites are hurt .   the cats are bitten by the dog .
    """
    event = story.new_event(definite=True, named=False)

    # what follows: about the subject, or about the object known by an active or a passive
    outcome = story.pick(outcomes(event))
    known_by = event
    if outcome.subject is event.object:
        known_by = story.active_or_passive(event, 0.3)
    who = modified_by(outcome.subject, known_by)
    consequence = story.describe_state(who, outcome.predicate)

    # the event itself, which comes first or second
    plain = story.active_or_passive(event, 0.4)
    if story.chance(0.6):
        return sentence(plain), sentence(consequence)
    return sentence(consequence), sentence(plain)


def reason_scene(story, event=None):
    """Why something is so. If both entities have the same pronoun, only the meaning says who it is.

    the fox bit the hen because it was angry .    the fox was angry .
    the hen was hurt because the fox bit it .     the fox bit the hen .

    Args:
        story: the Story.
        event: the event to tell; if None, one is drawn. Both of its entities must have pronouns.
    """
    # an event, and the state of one of the two
    if event is None:
        event = story.new_event(definite=True, needs_pronoun=True)
    outcome = story.pick(outcomes(event))
    who = outcome.subject
    it = by_pronoun(who)

    # The agent's state is the reason for the event.
    if who is event.subject and outcome.predicate not in EFFECTS_ON_AGENTS:
        reason = replace(outcome, subject=it)
        return because(event, reason), sentence(outcome)

    # The event is the reason for the state.
    effect = story.describe_state(who, outcome.predicate)
    if who is event.subject:
        reason = replace(event, subject=it)
    else:
        reason = replace(event, object=it)
    resolved = story.active_or_passive(event, 0.4)
    return because(effect, reason), sentence(resolved)


def because(effect, reason):
    """Two clauses joined by "because".

    "the fox bit the hen because it was angry .", "the hen was hurt because the fox bit it ."
    """
    return join(clause(effect), "because", clause(reason), ".")


def mood_scene(story):
    """A mood, once as a state and once as what somebody does in it.

    the horse is not hungry .             it does not eat .
    the cats near the dog were dirty .    they washed themselves .
    """
    # who
    other = None
    if story.chance(0.6):
        who = story.new_entity_near_another()
        other = who.modifier.object
    else:
        who = story.new_entity()

    # which mood
    mood = story.pick(ALL_MOODS)
    negated = story.chance(0.35)
    acting = story.chance(0.3)

    # the two sentences: one as a state, the other one as an event
    again = story.mention_again(who, other)
    first = in_mood(who, mood, story.past, acting, negated)
    second = in_mood(again, mood, story.past, not acting, negated)
    return sentence(first), sentence(second)


def transfer_scene(story):
    """A thing goes from one person to another: who has it then?

    the farmer gave two apples to the child .    the child had the apples .
    a rose was bought from anna by tom .         she did not have it .
    """
    # the event
    verb = story.pick(TRANSFER_VERBS)
    thing = story.new_entity("thing", definite=False)
    agent = story.new_entity(verb.agents)
    partner = story.new_entity(verb.patients)
    event = Event(agent, verb, thing, story.past, partner=partner)

    # who has the thing now, and who has lost it
    if verb.preposition == "to":
        owner = partner
        loser = agent
    else:
        owner = agent
        loser = partner

    # The second sentence is about the loser or about the owner.
    about_loser = story.chance(0.3)
    if about_loser:
        holder = story.mention_again(loser, owner)
    else:
        holder = story.mention_again(owner, loser)
    thing_again = story.mention_again(thing, holder)
    result = Event(holder, HAVE, thing_again, story.past, negated=about_loser)

    first = story.active_or_passive(event, 0.3)
    return sentence(first), sentence(result)


def binding_scene(story):
    """Two things with two properties each: which property belongs to which thing?

    a small grey cat and a big white dog are in the barn .      the big animal is white .
    a small red rose and a big white tulip were in the house .  the tulip was not red .
    """
    # two different sizes, ages (drawn, but not used) and colours
    slot = story.pick(("beast", "thing"))
    kinds = SLOTS[slot]
    sizes, _ages, colours = [story.pick_two(rank) for rank in ADJECTIVES[kinds[0]]]

    # the two things
    pair = []
    for size, colour in zip(sizes, colours, strict=True):
        noun = story.new_noun(*kinds)
        pair.append(Entity(noun, determiner="a", adjectives=(size, colour)))

    # The second sentence is about one of them, named by its noun or by kind and size.
    asked, other = story.pick_two(pair)
    size, colour = asked.adjectives
    by_noun = Entity(asked.noun)
    by_kind_and_size = replace(by_kind(asked), adjectives=(size,))
    who = story.pick((by_noun, by_kind_and_size))

    # It has its own colour, and not the other one's.
    negated = story.chance(0.25)
    if negated:
        colour = other.adjectives[1]
    second = State(who, colour, past=story.past, negated=negated)

    # where both are
    listed = " and ".join(phrase(thing) for thing in pair)
    place = Entity(story.new_noun("place"))
    first = State(fixed_word(listed, is_plural=True), "in", place, past=story.past)
    return sentence(first), sentence(second)


def opinion_scene(story, bad=None):
    """How something is and who likes it. "not" and "nobody" turn an opinion into its opposite.

    nobody liked the soup .                        it was bad .
    the film was good but the song was not .       anna enjoyed the film .

    Args:
        story: the Story.
        bad: whether the opinion is a bad one; None draws it. In a sentence with "but", this is the
            opinion before the "but".
    """
    if bad is None:
        bad = story.chance(0.5)
    denied = story.chance(0.35)
    work = story.new_entity("work")

    # who likes or hates it
    judge = story.new_entity("human")
    negated = story.chance(0.35)
    is_turned = negated
    choice = story.pick(("a person", "everybody", "nobody"))
    if choice != "a person":
        judge = fixed_word(choice)
        negated = False
        is_turned = choice == "nobody"

    # "does not hate" and "nobody hates" are good opinions
    verbs = LIKING
    if bad != is_turned:
        verbs = HATING
    feeling = Event(judge, story.pick(verbs), work, story.past, negated)

    # "not bad" is a good opinion
    adjectives = GOOD
    if bad != denied:
        adjectives = BAD
    judgement = State(work, story.pick(adjectives), None, story.past, denied)

    # with a "but": the opposite opinion about another thing
    if story.chance(0.3):
        another = story.new_entity("work")
        opposite = replace(judgement, subject=another, negated=not denied)
        mixed = join(clause(judgement), "but", short_answer(opposite), ".")
        return mixed, sentence(feeling)

    # both opinions about the same thing, in either order
    if story.chance(0.4):
        judgement = replace(judgement, subject=story.mention_again(work))
        return sentence(feeling), sentence(judgement)
    feeling = replace(feeling, object=story.mention_again(work))
    return sentence(judgement), sentence(feeling)


def kinds_scene(story):
    """What is what.

    every duck is a bird .    every bird is an animal .
    roses are flowers .       roses are not tools .
    """
    noun = story.new_noun(*KIND_NOUNS)
    is_plural = story.chance(0.5)
    first = is_a(noun, noun.kind, is_plural)

    if noun.kind in MORE_GENERAL:
        # one step further up: every bird is an animal
        second = is_a(KIND_NOUNS[noun.kind], MORE_GENERAL[noun.kind], is_plural)
    else:
        # what it is not
        other_kinds = [kind for kind in KIND_NOUNS if kind != noun.kind]
        wrong_kind = story.pick(other_kinds)
        second = is_a(noun, wrong_kind, is_plural, negated=True)
    return sentence(first), sentence(second)


def quantity_scene(story):
    """What holds for all of a kind also holds for a part of them.

    every animal in the barn slept .    the cats in the barn slept .
    no people in the house are ill .    the baker in the house is not ill .
    """
    noun = story.new_noun("animal", "bird", "person")
    place = story.new_place()
    quantifier = story.pick(("every", "all", "no"))
    mood = story.pick(ALL_MOODS)
    acting = story.chance(0.5)

    # all of them: "every animal in the barn"
    everyone = all_of(KIND_NOUNS[noun.kind], quantifier, place)
    first = in_mood(everyone, mood, story.past, acting)

    # a part of them: "the cats in the barn"
    part = Entity(noun, story.chance(0.5), modifier=place)
    second = in_mood(part, mood, story.past, acting, negated=quantifier == "no")
    return sentence(first), sentence(second)


def question_scene(story):
    """A question and its answer: one of the three kinds below.

    who did the dog chase ?    it chased the cats .
    did the fox sleep ?        no , it did not .
    """
    # what the question is about, and which form it has
    event = story.new_event(definite=True)
    form = story.random()
    asked = story.active_or_passive(event, 0.3)

    # 25 %: about the subject (in a passive, the one to whom it was done); 15 %: about the object
    if form < 0.25:
        return ask_for_subject(story, asked, event)
    if form < 0.4:
        return ask_for_object(story, event)

    # 60 %: is it so? Most of these are about a mood instead of the event.
    if form < 0.75:
        who = story.new_entity_near_another()
        mood = story.pick(ALL_MOODS)
        asked = in_mood(who, mood, story.past, acting=story.chance(0.3))
    return ask_for_yes_or_no(story, asked)


def ask_for_subject(story, asked, event):
    """A question about the subject. The answer is short, or it is the event.

    who chased the cats ?           the dog did .
    who was chased by the dog ?     the dog chased the cat .
    """
    question = subject_question(asked)
    if story.chance(0.5):
        return question, join(short_answer(asked), ".")
    return question, sentence(event)


def ask_for_object(story, event):
    """To whom did somebody do it?

    who did the dog chase ?    it chased the cats .
    who does anna feed ?       anna feeds the horse .
    """
    subject = story.mention_again(event.subject, event.object)
    answer = replace(event, subject=subject)
    return object_question(event), sentence(answer)


def ask_for_yes_or_no(story, asked):
    """Is it so?

    did the fox sleep ?               no , it did not .
    were the cats fed by anna ?       yes , they were .
    """
    subject = story.mention_again(asked.subject)
    answer = replace(asked, subject=subject, negated=story.chance(0.5))
    return yes_no_question(asked), yes_no_answer(answer)


# --- Documents ------------------------------------------------------------------------------------

# fmt: off
SCENES = (
    # scene              how many tickets it has: each draw takes one ticket
    (consequence_scene,  6),
    (relative_scene,     6),
    (mood_scene,         4),
    (question_scene,     4),
    (opinion_scene,      3),
    (reason_scene,       3),
    (transfer_scene,     2),
    (binding_scene,      2),
    (quantity_scene,     2),
    (kinds_scene,        1),
)
# fmt: on


def pick_scenes(random, count):
    """Draw `count` different scenes."""
    # all tickets
    tickets = []
    for scene, share in SCENES:
        tickets += [scene] * share

    # Draw tickets until there are enough different scenes.
    scenes = []
    while len(scenes) < count:
        scene = tickets[int(len(tickets) * random())]
        if scene not in scenes:
            scenes.append(scene)
    return scenes


def documents(seed=0, sentences=SENTENCES):
    """Generate documents of 4, 6 or 8 sentences.

    Args:
        seed: of the random choices. The same seed gives the same text on every machine.
        sentences: when to stop. The last document is completed, so there may be a few more. A
            longer text begins with the shorter text of the same seed.
    Yields:
        a document: a list of sentences, str, with spaces between words and before marks.
    """
    random = Random(seed).random
    while sentences > 0:
        # the draws of a document: its tense, the number of its scenes, the scenes, their words
        story = Story(random)
        count = 2 + int(3 * random())
        scenes = pick_scenes(random, count)

        document = []
        for scene in scenes:
            document.extend(scene(story))
        yield document
        sentences -= len(document)
