"""A toy language, small enough that a tiny BERT learns it in minutes, in which position and word order carry meaning.

A meaning is an `Event` or a `State` of `Entity`s; small functions put it into words as a clause, a passive, a question,
a relative clause or a pronoun. What the language holds, an example each:

    agreement across attractors     the cat that chased the dogs was tired . / the goats near the duck sleep .
    roles, and what follows         the dog chased the cats . they were afraid .   (but the dog was tired)
    passives, same consequences     the cats were chased by the dog . it was tired .
    relative clauses                the cat chases the dogs . the dogs that the cat chases are afraid .
    reasons, pronouns resolved      the fox bit the hen because it was angry . the fox was angry .
    transfers                       the farmer gave two apples to the child . the child had the apples .
    negation, and what follows      the horse is not hungry . it does not eat .
    opinions, turned by negation    the film was not good . anna hated it . / nobody liked the soup . it was bad .
    adjectives, size before colour  a small grey cat and a big white dog are in the barn . the big animal is white .
    quantifiers                     every animal in the barn slept . the cats in the barn slept .
    kinds of kinds                  every duck is a bird . every bird is an animal .
    questions and answers           who did the dog chase ? it chased the cats . / did the fox sleep ? no , it did not .
    pronouns that refer back        ruth washed the cow . it was clean . / the mice are dirty . they wash themselves .

A document keeps one tense and draws no noun twice, so it cannot contradict itself; its sentences come in pairs, the
second of which depends on the first. Words and punctuation stand between blanks. All choices come from
`Random(seed).random()`, the one method whose numbers Python promises to keep: a seed gives the same bytes everywhere.
"""

import argparse
from collections import namedtuple
from collections.abc import Iterator
from random import Random

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
    "bird": "duck/ducks goose/geese hen/hens owl/owls",
    "person": "child/children farmer/farmers doctor/doctors teacher/teachers baker/bakers sailor/sailors nurse/nurses "
              "pilot/pilots singer/singers",
    "woman": "anna maria emma ruth",
    "man": "tom david omar paul",
    "tool": "hammer/hammers ladder/ladders spade/spades brush/brushes",
    "flower": "rose/roses tulip/tulips lily/lilies daisy/daisies",
    "fruit": "apple/apples pear/pears plum/plums cherry/cherries",
    "work": "film/films song/songs book/books story/stories soup/soups cake/cakes",
    "place": "garden barn house forest field kitchen",
}.items()}
PARENT = {"bird": "animal", "woman": "person", "man": "person"}  # every bird is an animal
KIND_NOUNS = {kind: Noun(kind, plural, PARENT.get(kind, "")) for kind, plural in (
    ("animal", "animals"), ("bird", "birds"), ("person", "people"),
    ("tool", "tools"), ("flower", "flowers"), ("fruit", "fruits"))}
SLOTS = {  # kinds to draw from; a repeated one is likelier
    "animate": ("animal", "animal", "animal", "bird", "person", "person", "woman", "man"),
    "human": ("person", "person", "woman", "man"), "beast": ("animal", "animal", "bird"),
    "thing": ("fruit", "flower", "tool"), "work": ("work",)}
ADJECTIVES = {  # kind -> sizes, ages, colours: their order before the noun
    "person": (("tall", "short"), ("old", "young"), ()),
    **dict.fromkeys(SLOTS["beast"], (("small", "big"), ("old", "young"), ("black", "white", "brown", "grey"))),
    **dict.fromkeys(SLOTS["thing"], (("small", "big"), ("old", "new"), ("red", "yellow", "white")))}
EVENTS = tuple(Verb(*line.split()) for line in """\
    chase    chases    chased    chased    tired    afraid
    help     helps     helped    helped    kind     thankful
    feed     feeds     fed       fed       kind     full      human
    follow   follows   followed  followed  behind   ahead
    wake     wakes     woke      woken     loud     awake
    wash     washes    washed    washed    wet      clean     human    beast
    scare    scares    scared    scared    loud     afraid
    bite     bites     bit       bitten    angry    hurt      beast
    defeat   defeats   defeated  defeated  strong   weak""".splitlines())
EFFORTS = ("tired", "behind", "wet")  # agents' states that come of the event; the others are why they did it
TRANSFERS = tuple((Verb(*words[:4], agents=words[5], patients=words[6]), words[4]) for words in map(str.split, (
    "give gives gave given to human animate", "steal steals stole stolen from animate animate",
    "sell sells sold sold to human human", "buy buys bought bought from human human")))  # "to" the new owner
HAVE, LIKE, ENJOY, HATE = (Verb(*forms.split()) for forms in (
    "have has had had", "like likes liked liked", "enjoy enjoys enjoyed enjoyed", "hate hates hated hated"))
OPINIONS = ("good", "funny", "lovely", "great"), ("bad", "dull", "boring", "awful")
LIKING = (LIKE, ENJOY), (HATE,)  # what is good, what is bad
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
        gapped = about._replace(subject=None) if who is about.subject else about._replace(object=None)
        told = self.told(who._replace(modifier=gapped), state)
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

    def opinion(self):
        bad, denied, work = self.chance(0.5), self.chance(0.35), self.entity("work")
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


def documents(seed: int = 0, sentences: int = SENTENCES) -> Iterator[list[str]]:
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print documents of the toy language.")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices (default 0)")
    parser.add_argument("--sentences", type=int, default=20, help="stop after so many (default 20)")
    args = parser.parse_args()
    for document in documents(args.seed, args.sentences):
        print(*document, "", sep="\n")
