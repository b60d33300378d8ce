"""A toy language, small enough that a tiny BERT learns it in minutes, in which position and word order carry meaning.

A meaning is an `Event` or a `State` of `Entity`s; small functions put it into words as a clause, a passive, a question,
a relative clause or a pronoun. What the language holds, an example each:

    agreement, relative clauses     the cat that chased the dogs was tired . / the dogs that the cat chases are afraid .
    roles, passives, what follows   the dog chased the cats . they were afraid . / the cats were chased by the dog .
    reasons, pronouns               the fox bit the hen because it was angry . / the mice washed themselves .
    transfers                       the farmer gave two apples to the child . the child had the apples .
    negation, opinions turned by it the horse is not hungry . it does not eat . / nobody liked the soup . it was bad .
    adjectives, size before colour  a small grey cat and a big white dog are in the barn . the big animal is white .
    quantifiers, kinds of kinds     every animal in the barn slept . the cats in the barn slept . / ducks are birds .
    questions and answers           who did the dog chase ? it chased the cats . / did the fox sleep ? no , it did not .

A document keeps one tense and draws no noun twice, so it cannot contradict itself; its sentences come in pairs, the
second of which depends on the first. Words and punctuation stand between blanks. All choices come from
`Random(seed).random()`, the one method whose numbers Python promises to keep: a seed gives the same bytes everywhere.

`python toy.py --glue FOLDER` writes toy GLUE: the nine tasks in this language, in GLUE's own files. An example each:

    CoLA   the dog near the cats were tired.  0           SST-2  the soup was bad but the cake was not.  1
    MRPC   the dog chased the cat. / the cat was chased by the dog.  1
    STS-B  the dog chased the cat. / the cat did not chase the dog.  2.000, for the same verb and tense
    QQP    was the cat that the dog chased ill? / was the dog that was chased by the cat ill?  0
    MNLI   the dog chased the cat. / the cat was tired.  neutral  (afraid: entailment, not afraid: contradiction)
    QNLI   who chased the dog? / the cat that the dog chased was afraid.  not_entailment
    RTE    every person in the barn is tired. / the cat in the barn sleeps.  not_entailment
    WNLI   the dog bit the fox because it was angry. / the fox was angry.  0
"""

import argparse
import re
from collections import namedtuple
from pathlib import Path
from random import Random

import numpy as np

SENTENCES = 200_000  # of the default corpus
# A noun's kind is a key of NOUNS; names and places have plural "". A verb's agents and patients are keys of SLOTS, its
# states are what its event makes of them. An entity's modifier is a meaning with None in the entity's place; its
# pronoun says whether it is worded as one. A state with predicate "" and an object says what kind something is.
Noun = namedtuple("Noun", "singular plural kind")
Verb = namedtuple("Verb", "base third past participle agent_state patient_state agents patients",
                  defaults=("", "", "animate", "animate"))
Entity = namedtuple("Entity", "noun plural determiner adjectives modifier pronoun",
                    defaults=(False, "the", (), None, False))
Event = namedtuple("Event", "subject verb object past negated preposition third",
                   defaults=(None, False, False, "", None))
State = namedtuple("State", "subject predicate object past negated", defaults=(None, False, False))

# ---- Words ---------------------------------------------------------------------------------------------------------

NOUNS = {kind: tuple(Noun(*(word + "/").split("/")[:2], kind) for word in words.split()) for kind, words in {
    "animal": "dog/dogs cat/cats horse/horses mouse/mice cow/cows fox/foxes goat/goats wolf/wolves rabbit/rabbits",
    "bird": "duck/ducks goose/geese hen/hens owl/owls", "fruit": "apple/apples pear/pears plum/plums cherry/cherries",
    "person": "child/children farmer/farmers doctor/doctors teacher/teachers baker/bakers sailor/sailors nurse/nurses "
              "pilot/pilots singer/singers",
    "woman": "anna maria emma ruth", "man": "tom david omar paul", "place": "garden barn house forest field kitchen",
    "tool": "hammer/hammers ladder/ladders spade/spades brush/brushes",
    "flower": "rose/roses tulip/tulips lily/lilies daisy/daisies",
    "work": "film/films song/songs book/books story/stories soup/soups cake/cakes",
}.items()}
PARENT = {"bird": "animal", "woman": "person", "man": "person"}  # every bird is an animal
KIND_NOUNS = {kind: Noun(kind, plural, PARENT.get(kind, "")) for kind, plural in (word.split("/") for word in (
    "animal/animals bird/birds person/people tool/tools flower/flowers fruit/fruits").split())}
SLOTS = {  # kinds to draw from; a repeated one is likelier
    "animate": ("animal", "animal", "animal", "bird", "person", "person", "woman", "man"),
    "human": ("person", "person", "woman", "man"), "beast": ("animal", "animal", "bird"),
    "thing": ("fruit", "flower", "tool"), "work": ("work",)}
ADJECTIVES = {"person": (("tall", "short"), ("old", "young"), ()),  # kind -> sizes, ages, colours, in this order
    **dict.fromkeys(SLOTS["beast"], (("small", "big"), ("old", "young"), ("black", "white", "brown", "grey"))),
    **dict.fromkeys(SLOTS["thing"], (("small", "big"), ("old", "new"), ("red", "yellow", "white")))}
EVENTS = tuple(Verb(*forms.split()) for forms in (
    "chase chases chased chased tired afraid", "help helps helped helped kind thankful",
    "feed feeds fed fed kind full human", "follow follows followed followed behind ahead",
    "wake wakes woke woken loud awake", "wash washes washed washed wet clean human beast",
    "scare scares scared scared loud afraid", "bite bites bit bitten angry hurt beast",
    "defeat defeats defeated defeated strong weak"))
EFFORTS = ("tired", "behind", "wet")  # agents' states that come of the event; the others are why they did it
TRANSFERS = tuple((Verb(*words[:4], agents=words[5], patients=words[6]), words[4]) for words in map(str.split, (
    "give gives gave given to human animate", "steal steals stole stolen from animate animate",
    "sell sells sold sold to human human", "buy buys bought bought from human human")))  # "to" the new owner
HAVE, LIKE, ENJOY, HATE = (Verb(*forms.split()) for forms in (
    "have has had had", "like likes liked liked", "enjoy enjoys enjoyed enjoyed", "hate hates hated hated"))
OPINIONS, LIKING = (("good", "funny", "lovely", "great"), ("bad", "dull", "boring", "awful")), ((LIKE, ENJOY), (HATE,))
MOODS = {mood: Verb(*forms.split()) for mood, forms in (  # what one does in it; one who is dirty washes oneself
    ("dirty", "wash washes washed washed"), ("tired", "sleep sleeps slept slept"), ("hungry", "eat eats ate eaten"),
    ("afraid", "hide hides hid hidden"), ("thirsty", "drink drinks drank drunk"), ("glad", "play plays played played"),
    ("ill", "rest rests rested rested"), ("late", "run runs ran run"))}
OPPOSITES = {"full": "hungry", "awake": "asleep", "clean": "dirty", "loud": "quiet", "strong": "weak", "weak": "strong"}
PREPOSITIONS = ("near", "behind", "beside", "with", "in")  # these follow a noun without "that is"
PLURAL_DETERMINERS = ("the", "the", "the", "some", "two", "many", "three")
PRONOUNS = {"it": ("it", "it", "itself"), "they": ("they", "them", "themselves"),
            "she": ("she", "her", "herself"), "he": ("he", "him", "himself")}
SUBJECT, OBJECT, REFLEXIVE = range(3)  # cases of a pronoun
BE, DO = (("is", "are"), ("was", "were")), (("does", "do"), ("did", "did"))  # [past][plural]

# ---- From meanings to words ----------------------------------------------------------------------------------------


def pronoun_of(entity: Entity) -> str | None:
    """A key of PRONOUNS; None for one person known by a job, whose gender the language leaves open."""
    return "they" if entity.plural else {"woman": "she", "man": "he", "person": None}.get(entity.noun.kind, "it")


def word(text: str, plural: bool = False) -> Entity:
    """A subject of one fixed word: "who", "that", "nobody"."""
    return Entity(Noun(text, text, ""), plural, "")


def phrase(entity: Entity, case: int = SUBJECT) -> str:
    """ "the small cat that chased the dogs", "an owl", "anna", "them"."""
    if entity.pronoun:
        return PRONOUNS[pronoun_of(entity)][case]
    words = " ".join((*entity.adjectives, entity.noun.plural if entity.plural else entity.noun.singular))
    if entity.determiner:
        words = f"{'an' if entity.determiner == 'a' and words[0] in 'aeio' else entity.determiner} {words}"
    return f"{words} {relative_clause(entity)}" if entity.modifier else words


def relative_clause(entity: Entity) -> str:
    """ "that chased the dogs", "who the dogs chased", "that was chased by the dogs"; "near the dogs"."""
    gapped, relative = entity.modifier, "who" if entity.noun.kind == "person" else "that"
    if gapped.subject:
        return f"{relative} {clause(gapped)}"
    if isinstance(gapped, State) and gapped.predicate in PREPOSITIONS:
        return f"{gapped.predicate} {phrase(gapped.object, OBJECT)}"
    return clause(gapped._replace(subject=word(relative, entity.plural)))


def carrying(who: Entity, meaning: Event | State) -> Entity:
    """ "the dog that chased the cats": somebody known by what happened."""
    return who._replace(modifier=meaning._replace(**{"subject" if who is meaning.subject else "object": None}))


def parts(meaning: Event | State) -> tuple[str, str, str, str]:
    """Subject, auxiliary, verb or predicate, the rest. An object that is the subject too becomes a reflexive."""
    subject, thing, rest = meaning.subject, meaning.object, ""
    if thing:
        rest = PRONOUNS[pronoun_of(thing)][REFLEXIVE] if thing == subject else phrase(thing, OBJECT)
    if isinstance(meaning, State):
        return phrase(subject), BE[meaning.past][subject.plural], meaning.predicate, rest
    if meaning.third:
        rest = f"{rest} {meaning.preposition} {phrase(meaning.third, OBJECT)}"
    return phrase(subject), DO[meaning.past][subject.plural], meaning.verb.base, rest


def join(*words: str) -> str:
    return " ".join(filter(None, words))


def clause(meaning: Event | State) -> str:
    """ "the dog chased the cats", "it did not chase them", "the cat near the dogs is tired"."""
    subject, auxiliary, core, rest = parts(meaning)
    if meaning.negated or isinstance(meaning, State):
        return join(subject, auxiliary, "not" if meaning.negated else "", core, rest)
    verb = meaning.verb
    return join(subject, verb.past if meaning.past else verb.base if meaning.subject.plural else verb.third, rest)


def passive(event: Event) -> State:
    """The same about the object: "the cats were chased by the dog", "two apples were given to anna by tom"."""
    receiver = phrase(event.third, OBJECT) if event.third else ""
    by = join(event.verb.participle, event.preposition, receiver, "by")
    return State(event.object, by, event.subject, event.past, event.negated)


def question(meaning: Event | State, who: str = "") -> str:
    """ "did the dog chase the cats ?"; who "subject": "who chased the cats ?"; "object": "who did the dog chase ?" """
    if who == "subject":
        return f"{clause(meaning._replace(subject=word('who')))} ?"
    subject, auxiliary, core, rest = parts(meaning)
    return join("who", auxiliary, subject, core, "?") if who else join(auxiliary, subject, core, rest, "?")


def short_answer(meaning: Event | State) -> str:
    """ "the dog did", "they were not"."""
    return join(*parts(meaning)[:2], "not" if meaning.negated else "")


# ---- Stories: what follows from what -------------------------------------------------------------------------------


def outcomes(event: Event) -> tuple[tuple[Entity, str], tuple[Entity, str]]:
    """(who, in which state then) for the object and for the subject; where the event is negated, neither is."""
    return (event.object, event.verb.patient_state), (event.subject, event.verb.agent_state)


def in_mood(who: Entity, mood: str, past: bool, negated: bool, acting: bool) -> Event | State:
    """ "the cat is tired", or as what one does then: "the cat sleeps", "the cat washes itself"."""
    if not acting:
        return State(who, mood, None, past, negated)
    return Event(who, MOODS[mood], who if mood == "dirty" and pronoun_of(who) else None, past, negated)


def is_a(noun: Noun, kind: str, plural: bool, negated: bool = False) -> State:
    """Every duck is a bird, ducks are birds; no duck is a tool, ducks are not tools."""
    who = Entity(noun, plural, "" if plural else "no" if negated else "every")
    return State(who, "", Entity(KIND_NOUNS[kind], plural, "" if plural else "a"), False, negated and plural)


class Story:
    """A document in the making. Each method from `consequence` on is a scene: a pair of meanings or of their words."""

    def __init__(self, random):
        self.random = random  # () -> float in [0, 1)
        self.past = random() < 0.5
        self.used = []  # nouns

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, options):
        """One of the options, the first up to three times as likely as the last."""
        r = self.random()
        return options[int(len(options) * r * (1 + r) / 2)]

    def two(self, options):
        """Two different options."""
        first = self.pick(options)
        return first, self.pick([option for option in options if option != first])

    def noun(self, *kinds: str) -> Noun:
        """A noun not used before. Every kind has enough of them, since no document plays a scene twice."""
        while (noun := self.pick(NOUNS[kinds[int(len(kinds) * self.random())]])) in self.used:
            pass
        self.used.append(noun)
        return noun

    def entity(self, slot="animate", definite=True, named=True, pronominal=False) -> Entity:
        """Somebody or something new. definite: with "the"; named: perhaps by name; pronominal: one with a pronoun."""
        noun = self.noun(*[kind for kind in SLOTS[slot] if named or kind not in ("woman", "man")])
        if not noun.plural:
            return Entity(noun, determiner="")
        plural, determiner = self.chance(0.45) or pronominal and noun.kind == "person", "the"
        if not definite:
            determiner = self.pick(PLURAL_DETERMINERS) if plural else "a" if self.chance(0.25) else "the"
        lists = ADJECTIVES.get(noun.kind, ()) if self.chance(0.25) else ()
        adjectives = tuple([self.pick(words) for words in lists if words and self.chance(0.5)])
        return Entity(noun, plural, determiner, adjectives)

    def event(self, definite=False, **options) -> Event:
        verb = self.pick(EVENTS)
        agent, patient = self.entity(verb.agents, definite, **options), self.entity(verb.patients, definite, **options)
        return Event(agent, verb, patient, self.past)

    def attracted(self) -> Entity:
        """ "the cat near the dogs", whose verb follows another noun."""
        subject, other = self.entity(named=False), self.entity(self.pick(("animate", "thing")))
        near = self.pick(PREPOSITIONS[:3] if other.noun.kind in SLOTS["thing"] else PREPOSITIONS[:4])
        return subject._replace(modifier=State(None, near, other))

    def again(self, entity: Entity, other: Entity | None = None) -> Entity:
        """The same once more: by pronoun where that cannot be the other (rarely elsewhere), by kind, or by noun."""
        noun, pronoun = entity.noun, pronoun_of(entity)
        if pronoun and self.chance(0.65 if other is None or pronoun != pronoun_of(other) else 0.15):
            return entity._replace(pronoun=True)
        ambiguous = other and noun.kind in (other.noun.kind, PARENT.get(other.noun.kind))
        if noun.kind in KIND_NOUNS and not ambiguous and self.chance(0.15):
            noun = KIND_NOUNS[noun.kind]
        return Entity(noun, entity.plural, "the" if entity.determiner else "")

    def told(self, who: Entity, state: str, negated=False) -> Event | State:
        """That somebody is in a state: outright, by what one does in it, or by not being in the opposite one."""
        if state in MOODS:
            return in_mood(who, state, self.past, negated, acting=self.chance(0.3))
        if state in OPPOSITES and not negated and self.chance(0.2):
            state, negated = OPPOSITES[state], True
        return State(who, state, None, self.past, negated)

    def consequence(self):
        negated = self.chance(0.15)
        event = self.event(definite=negated)._replace(negated=negated)
        (who, state), (other, _) = self.two(outcomes(event))
        return passive(event) if self.chance(0.4) else event, self.told(self.again(who, other), state, negated)

    def relative(self):
        event = self.event(definite=True, named=False)
        who, state = self.pick(outcomes(event))
        about = passive(event) if who is event.object and self.chance(0.3) else event
        told = self.told(carrying(who, about), state)
        plain = passive(event) if self.chance(0.4) else event
        return (plain, told) if self.chance(0.6) else (told, plain)

    def reason(self):
        event = self.event(definite=True, pronominal=True)
        who, state = self.pick(outcomes(event))
        pronoun = who._replace(pronoun=True)
        if who is event.subject and state not in EFFORTS:
            cause, resolved = State(pronoun, state, None, self.past), State(who, state, None, self.past)
            return f"{clause(event)} because {clause(cause)}", resolved
        cause = event._replace(subject=pronoun) if who is event.subject else event._replace(object=pronoun)
        return f"{clause(self.told(who, state))} because {clause(cause)}", passive(event) if self.chance(0.4) else event

    def mood(self):
        who = self.attracted() if self.chance(0.6) else self.entity()
        mood, negated, acting = self.pick(tuple(MOODS)), self.chance(0.35), self.chance(0.3)
        again = self.again(who, who.modifier and who.modifier.object)
        return in_mood(who, mood, self.past, negated, acting), in_mood(again, mood, self.past, negated, not acting)

    def transfer(self):
        (verb, preposition), thing = self.pick(TRANSFERS), self.entity("thing", definite=False)
        event = Event(self.entity(verb.agents), verb, thing, self.past, False, preposition, self.entity(verb.patients))
        owner, loser = (event.third, event.subject) if preposition == "to" else (event.subject, event.third)
        lost = self.chance(0.3)
        holder = self.again(loser, owner) if lost else self.again(owner, loser)
        has = Event(holder, HAVE, self.again(thing, holder), self.past, lost)
        return passive(event) if self.chance(0.3) else event, has

    def binding(self):
        kinds = self.pick((SLOTS["beast"], SLOTS["thing"]))
        sizes, _, colours = map(self.two, ADJECTIVES[kinds[0]])
        pair = [Entity(self.noun(*kinds), determiner="a", adjectives=both) for both in zip(sizes, colours)]
        (noun, *_, (size, colour), _, _), (*_, (_, wrong), _, _) = self.two(pair)
        who = self.pick((Entity(noun), Entity(KIND_NOUNS[PARENT.get(noun.kind, noun.kind)], adjectives=(size,))))
        negated, listed = self.chance(0.25), word(" and ".join(map(phrase, pair)), plural=True)
        return (State(listed, "in", Entity(self.noun("place")), self.past),
                State(who, wrong if negated else colour, None, self.past, negated))

    def opinion(self, bad=None):
        bad, denied, work = self.chance(0.5) if bad is None else bad, self.chance(0.35), self.entity("work")
        judge, negated, turned = self.pick((  # "nobody" turns the meaning by itself
            (self.entity("human"), self.chance(0.35), False), (word("everybody"), False, False),
            (word("nobody"), False, True)))
        felt = Event(judge, self.pick(LIKING[bad != (negated or turned)]), work, self.past, negated)
        said = State(work, self.pick(OPINIONS[bad != denied]), None, self.past, denied)
        if self.chance(0.3):
            unlike = said._replace(subject=self.entity("work"), negated=not denied)
            return f"{clause(said)} but {short_answer(unlike)}", felt
        if self.chance(0.4):
            return felt, said._replace(subject=self.again(work))
        return said, felt._replace(object=self.again(work))

    def kinds(self):
        noun, plural = self.noun(*KIND_NOUNS), self.chance(0.5)
        if noun.kind in PARENT:
            return is_a(noun, noun.kind, plural), is_a(KIND_NOUNS[noun.kind], PARENT[noun.kind], plural)
        wrong = self.pick([kind for kind in KIND_NOUNS if kind != noun.kind])
        return is_a(noun, noun.kind, plural), is_a(noun, wrong, plural, negated=True)

    def quantity(self):
        noun, where = self.noun("animal", "bird", "person"), State(None, "in", Entity(self.noun("place")))
        quantifier, mood, acting = self.pick(("every", "all", "no")), self.pick(tuple(MOODS)), self.chance(0.5)
        whole = Entity(KIND_NOUNS[noun.kind], quantifier != "every", quantifier, modifier=where)
        part = Entity(noun, self.chance(0.5), modifier=where)
        return (in_mood(whole, mood, self.past, False, acting),
                in_mood(part, mood, self.past, quantifier == "no", acting))

    def question(self):
        event, form = self.event(definite=True), self.random()
        asked = passive(event) if self.chance(0.3) else event
        if form < 0.25:
            return question(asked, "subject"), short_answer(asked) if self.chance(0.5) else event
        if form < 0.4:
            return question(event, "object"), event._replace(subject=self.again(event.subject, event.object))
        if form < 0.75:
            asked = in_mood(self.attracted(), self.pick(tuple(MOODS)), self.past, False, acting=self.chance(0.3))
        told = asked._replace(subject=self.again(asked.subject), negated=self.chance(0.5))
        return question(asked), f"{'no' if told.negated else 'yes'} , {short_answer(told)}"


SCENES = [scene for share, scene in (  # each as often as its share
    (6, Story.consequence), (6, Story.relative), (4, Story.mood), (4, Story.question), (3, Story.opinion),
    (3, Story.reason), (2, Story.transfer), (2, Story.binding), (2, Story.quantity), (1, Story.kinds))
    for _ in range(share)]


def documents(seed: int = 0, sentences: int = SENTENCES):
    """Documents of 4, 6 or 8 sentences, `sentences` of them or a few more; a longer run begins with the shorter."""
    random = Random(seed).random
    while sentences > 0:
        story, scenes, count = Story(random), [], 2 + int(3 * random())
        while len(scenes) < count:
            scene = SCENES[int(len(SCENES) * random())]
            scenes += [] if scene in scenes else [scene]
        told = [told for scene in scenes for told in scene(story)]
        texts = [words if isinstance(words, str) else clause(words) for words in told]
        yield [text if text.endswith("?") else f"{text} ." for text in texts]
        sentences -= len(texts)


# ---- Toy GLUE: labels that follow from the meanings ----------------------------------------------------------------


class Row(Story):
    """A row of a task in the making. A task returns texts, or meanings, that go together. Where the label denies that,
    the `pairs` of words trade places in the first: mostly the two of an event, who are of one kind and number, its verb
    fit both ways round, so that order alone tells who did it. turn: the row's number among those of its label."""
    kind = ""  # of CoLA's sentences: the phenomenon

    def event(self, **options) -> Event:
        slot, plural = self.pick(("beast", "human")), self.chance(0.5)
        plural = plural or slot == "human" and "pronominal" in options
        one, other = self.two([self.entity(slot, named=False)._replace(plural=plural) for _ in range(2)])
        verb = self.pick([verb for verb in EVENTS if {verb.agents, verb.patients} <= {"animate", slot}
                          and verb.base not in ("follow", "wake", "defeat")])  # of these, one's state tells the other's
        self.pairs, self.deed = [(phrase(one), phrase(other))], Event(one, verb, other, self.past)
        return self.deed

    def acceptability(self, label, turn):
        """Wrong are words in each other's place, or forms that are right in as many other sentences."""
        (one, verb, other, *_), several, first = self.event(), self.chance(0.5), self.chance(0.5)
        a, b, them = [phrase(it._replace(plural=n)) for it, n in ((one, several), (other, not several), (other, True))]
        that, be, step = "who" if one.noun.kind == "person" else "that", BE[True][several], 1 if first else -1
        near, mood, he, she = map(self.pick, (PREPOSITIONS[:4], tuple(MOODS)[1:], NOUNS["man"], NOUNS["woman"]))
        (x, own), (y, alien) = self.two(((he[0], "himself"), (she[0], "herself"), (them, "themselves")))[::step]
        size, *_, colour = [self.pick(words) for words in ADJECTIVES[one.noun.kind] if words]
        (aux, core), does = (("did", verb.base), (be, f"{verb.participle} by"))[first], MOODS[mood]
        then, (wake, bite) = self.pick(EVENTS[3:5]), EVENTS[4::3][::step]
        kinds = {  # a right sentence, and what to exchange for a wrong one
            "agreement": (f"{a} {verb.base if several else verb.third} {b}", verb[:2]),
            "across_preposition": (f"{a} {near} {b} {be} {mood}", BE[True]),
            "across_relative": (f"{a} {that} {' '.join((verb.past, b)[::step])} {be} {mood}", BE[True]),
            "reflexive": (f"{x} {near} {y} washed {own}", (own, alien)),
            "adjective_order": (f"the {size} {colour} {one.noun[several]} {verb.past} {b}", (size, colour)),
            "word_order": (f"{a} {be} {verb.participle} by {b}", (verb.participle, "by" if first else be)),
            "question_order": (f"{aux} {a} {core} {b} ?", (aux, core)),
            "auxiliary": (f"{a} {that} did not {verb.base} {b} {does.past}" if first else
                          f"{a} {that} {verb.past} {b} did not {does.base}", verb[:3:2], does[:3:2]),
            "participle": (f"{a} {that} {bite.past} {b} {be} {wake.participle} by {he[0]}", wake[2:4], bite[2:4]),
            "gap": (f"{a} {that} {b} {verb.past} {then.past} {he[0]}", (then.past, he[0]))}
        self.kind, (right, *self.pairs) = [*kinds.items()][turn % len(kinds)]
        return [right]

    def sentiment(self, label, turn):
        self.pairs, but = [], turn % 3 == 0  # what follows "but" counts
        first, second = self.opinion(bad=(label == "0") != but)
        mixed = isinstance(first, str)
        return [first if mixed or turn % 3 != 1 else f"{clause(first)} . {clause(second)}"] * (mixed == but)

    def paraphrase(self, label, turn):
        """An event, or the mood of one whom it befell, in the active and in the passive."""
        event, mood, acts = self.event(), self.pick(tuple(MOODS)), self.chance(0.5)
        told = (event.subject if label == "0" else event.object, event), (event.object, passive(event))
        return self.two([in_mood(carrying(*one), mood, self.past, False, acts) if turn % 2 else one[1] for one in told])

    def similarity(self, label, turn):
        """A point each for the same subject, verb, object, tense and polarity, in whatever voice."""
        event, other = self.event()._replace(negated=self.chance(0.3)), self.event()
        changed = [Event._fields[(turn + i) % 5] for i in range(5 - int(label[0]))]
        if {"subject", "object"} <= {*changed} and self.chance(0.5):
            other = other._replace(subject=event.object, object=event.subject)
        other = other._replace(past=not event.past, negated=not event.negated)
        told = event, event._replace(**{part: getattr(other, part) for part in changed})
        return [self.pick((each, passive(each))) for each in told if event.verb != other.verb]

    def inference(self, label, turn):
        known, said = self.relative()
        if turn % 2:
            known, said = self.pick((self.deed, passive(self.deed))), self.told(*self.pick(outcomes(self.deed)))
        denied = label == "contradiction" or label == "neutral" and self.chance(0.5)
        return known, said._replace(negated=said.negated != denied)

    def answer(self, label, turn):
        known = self.relative()[0]
        return question(self.pick((self.deed, passive(self.deed))), self.pick(("subject", "object"))), known

    def entailment(self, label, turn):
        known, said = self.relative() if turn % 2 else self.quantity()
        self.pairs = self.pairs if turn % 2 else [("animal", "person"), ("animals", "people")]
        return [] if "bird" in clause(known) else [known, said]  # it is an animal too


PAIR, ENTAILMENT = "index,sentence1=a,sentence2=b", ("entailment", "not_entailment")
TASKS = {  # rows of train and dev, method, labels, columns; after = what they hold, if not the row's number
    "CoLA": (4000, 800, Row.acceptability, "01", "source=kind,label=label,mark=mark,sentence=a"),
    "SST-2": (3000, 500, Row.sentiment, "01", "sentence=a,label=label"),
    "MRPC": (2000, 500, Row.paraphrase, "01", "Quality=label,#1 ID,#2 ID,#1 String=a,#2 String=b"),
    "STS-B": (2000, 500, Row.similarity, [f"{points}.000" for points in range(6)],
              "index,genre,filename,year,old_index,source1,source2,sentence1=a,sentence2=b,score=label"),
    "QQP": (5000, 800, lambda *row: map(question, Row.paraphrase(*row)), "01",
            "id,qid1=id,qid2=id,question1=a,question2=b,is_duplicate=label"),
    "MNLI": (6000, 600, Row.inference, ("entailment", "neutral", "contradiction"),
             "index,promptID,pairID,genre,sentence1_binary_parse,sentence2_binary_parse,sentence1_parse,sentence2_parse"
             ",sentence1=a,sentence2=b,label1=label,gold_label=label"),
    "QNLI": (4000, 600, Row.answer, ENTAILMENT, "index,question=a,sentence=b,label=label"),
    "RTE": (1000, 400, Row.entailment, ENTAILMENT, f"{PAIR},label=label"),
    "WNLI": (400, 100, lambda row, *_: row.reason(), "01", f"{PAIR},label=label")}
GLUE_ROWS = {task: dict(train=train, dev=dev, test=dev) for task, (train, dev, *_) in TASKS.items()}
GLUE_ROWS["MNLI"] = {"train": 6000, "dev_matched": 600, "dev_mismatched": 600, "test_matched": 600,
                     "test_mismatched": 600, "diagnostic": 300}
ORDERED = ("CoLA", "MRPC", "QQP", "QNLI", "WNLI")  # the tasks that word order decides


def write_glue(folder: str | Path, seed: int = 0) -> dict[str, dict]:
    """Make `folder` of GLUE's files; returns {task: {split: [(texts, label, phenomenon)]}}. In a task no texts come
    twice, in either order. MNLI's genres are the past and the present. OSError: `folder` exists or cannot be made."""
    Path(folder).mkdir(parents=True)
    written = {task: {} for task in TASKS}
    for task, split in [(task, split) for task in TASKS for split in GLUE_ROWS[task]]:
        *_, make, labels, columns = TASKS[task]
        if split == "train":
            random, seen = Random(int.from_bytes(f"{seed} {task}".encode(), "big")).random, set()
        rows = written[task][split] = []
        while len(rows) < GLUE_ROWS[task][split]:
            row, label, turn = Row(random), labels[len(rows) % len(labels)], len(rows) // len(labels)
            row.past = row.past if task != "MNLI" or split == "diagnostic" else not split.endswith("mismatched")
            means = Row.entailment if split == "diagnostic" and turn % 2 and label != "contradiction" else make
            texts = [told if isinstance(told, str) else clause(told) for told in means(row, label, turn)]
            to = dict([*row.pairs, *(pair[::-1] for pair in row.pairs)])
            if to and label in ("0", "neutral", "not_entailment"):
                texts[:1] = [re.sub(rf"\b({'|'.join(to)})\b", lambda word: to[word[0]], text) for text in texts[:1]]
            texts = [re.sub(r" ([.,?])", r"\1", text + " ." * (text[-1] != "?")) for text in texts]
            if len({*texts}) == len(texts) > 0 and frozenset(texts) not in seen:
                rows.append((texts, label, row.kind))
                seen.add(frozenset(texts))
        columns = [column.partition("=")[::2] for column in (PAIR if split == "diagnostic" else columns).split(",")]
        if not split.startswith(("train", "dev")):
            columns = [column for column in columns if column[1] in ("", "a", "b")]
            columns[:0] = [("index", "")] * (columns[0][0] not in ("index", "id"))
        lines = [[name for name, _ in columns]] * (columns[0][0] != "source")
        for number, (texts, label, kind) in enumerate(rows):
            known = dict(a=texts[0], b=texts[-1], label=label, kind=kind, mark="*" if label == "0" else "")
            lines.append([known.get(content, str(number)) for _, content in columns])
        path = Path(folder, "diagnostic" if split == "diagnostic" else task, f"{split}.tsv")
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8", newline="\n")
    return written


def baselines(train: list, dev: list) -> tuple[float, float]:
    """On dev, the accuracy (Pearson's r where labels are numbers) of always guessing train's commonest label and of a
    bag of words: ridge regression on how often each word is in text a, in b, in one more than in the other, in both."""
    bags = [[re.findall(r"\w+", text) for text in texts] for texts, *_ in train + dev]
    ids = {word: i for i, word in enumerate(sorted({word for bag in bags for words in bag for word in words}))}
    a, b = [np.array([np.bincount([ids[word] for word in bag[i]], None, len(ids)) for bag in bags]) for i in (0, -1)]
    x, n = np.hstack([a, b, abs(a - b), np.minimum(a, b), np.ones((len(a), 1))]), len(train)
    labels, y = np.unique([label for _, label, _ in train + dev], return_inverse=True)
    weights = np.linalg.solve(x[:n].T @ x[:n] + 10 * np.eye(len(x[0])), x[:n].T @ np.eye(len(labels))[y[:n]])
    if "." in labels[0]:
        return 0.0, float(np.corrcoef(x[n:] @ weights @ np.arange(len(labels)), y[n:])[0, 1])
    return float(np.mean(y[n:] == np.bincount(y[:n]).argmax())), float(np.mean(y[n:] == (x[n:] @ weights).argmax(1)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print documents of the toy language, or write its GLUE tasks.")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices (default 0)")
    parser.add_argument("--sentences", type=int, default=20, help="stop after so many (default 20)")
    parser.add_argument("--glue", metavar="FOLDER", help="write toy GLUE there; print what is right without word order")
    args = parser.parse_args()
    for document in documents(args.seed, 0 if args.glue else args.sentences):
        print(*document, "", sep="\n")
    try:
        written = write_glue(args.glue, args.seed) if args.glue else {}
    except OSError as error:
        parser.exit(2, f"toy.py: {error}\n")
    for task, split, rows in [(task, *rows) for task in written for rows in written[task].items() if "dev" in rows[0]]:
        print("{:<6}{:<15}{:>4} rows   majority {:6.1%}   bag of words {:6.1%}".format(
            task, split, len(rows), *baselines(written[task]["train"], rows)), "  order decides" * (task in ORDERED))
