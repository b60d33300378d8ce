"""GLUE's nine tasks in the toy language.

`write_tasks(folder)` writes the tasks in GLUE's own file formats, so that glue.py reads them like
the published files. Each task asks the same question as GLUE's task of that name:

    task    question                            what it measures
    CoLA    is the sentence correct?            agreement, forms of verbs and order of words
    SST-2   is the opinion good?                negation, next to its word and far from it
    MRPC    do two sentences say the same?      which noun is the subject; kinds of nouns
    STS-B   how similar are two sentences?      which noun is the subject; moods, tense, negation
    QQP     do two questions ask the same?      which noun is the subject; moods
    MNLI    does the first entail the second?   which noun is the subject; negation, kinds of nouns
    QNLI    does it answer the question?        which noun is the subject; its number and gender
    RTE     does the first entail the second?   which noun is the subject; kinds of nouns
    WNLI    is the pronoun read correctly?      which noun is the subject; number of pronouns

Each task is one function task(story, label, turn). It draws a row that has this label:

    story    a Story of language.py, for the random choices and the tense
    label    one of LABELS[task]
    turn     chooses between the kinds of rows of a task

It returns a Row, or None if what was drawn does not fit. The caller then tries again.

The rows of a turn, one per label, are made from the same random numbers: the same nouns, verbs and
forms. They differ only in what makes the label. So neither a noun nor the length of a text tells
the label. What tells it is a combination of things that are not next to each other. In MNLI, "it"
fits one subject and "they" fits another one, and a noun with another number is between the subject
and its verb. A linear model of words and of short word sequences cannot learn such a combination.
It is better than chance only in these tasks (its scores are in docs/results.md):

    CoLA     eight of the ten phenomena. It does not learn agreement across another noun.
    SST-2    about 84 %. In one half, short sequences show the opinion: "not good". In the other
             half, some forms show the quantifier: only "every sailor" has "likes".
    MNLI     2/3. A "not" in both texts or in neither excludes a contradiction; a "not" in only one
             of them excludes an entailment. Which noun is meant stays open.
    STS-B    a correlation of about 0.6. Whether both texts have a "not" is one of the four parts.

Three things limit what a score shows. First, in all tasks that need the subject, the subject is the
first noun of its sentence: the rule "take the first noun" is enough, and no task tests more.
Second, two tasks hardly need the subject: the best prediction of STS-B from mood, tense and
negation alone has a correlation of 0.95, and "the same mood, the same question" gives QQP an
accuracy of 75 % and an F1 of 80 %. Third, in CoLA the wrong reflexive is always that of the noun
next to it and the right one never is, so a short sequence, "cats washed themselves", shows the
mistake without the subject.

How to add a task. The function of a task of one sentence ends with make_row([text], label).

    here                     its function, and entries in TASKS, LABELS and GLUE_ROWS, all under the
                             name of its folder ("CoLA"). It must be able to make more different
                             rows than GLUE_ROWS asks for: make_task draws until it has them.
    support/glue_format.py   a TaskFormat in FORMATS, under this name in lowercase. The class
                             ids follow `classes` there, not the order of LABELS.
    glue.py                  a Task in TASKS, under the same name as in FORMATS
    support/glue_table.py    an entry in OUTSIDE; without one, no table shows the task
"""

from dataclasses import replace
from typing import NamedTuple

from support.glue_format import FORMATS, write_split
from toy.language import (
    HATING,
    KIND_NOUNS,
    LIKING,
    MORE_GENERAL,
    NEAR_SOMEBODY,
    ONE_WORD_MOODS,
    Entity,
    Event,
    State,
    Story,
    because,
    in_mood,
    opinion_scene,
    pronoun_of,
    quantity_scene,
    sentence,
    spell,
    yes_no_answer,
    yes_no_question,
)
from toy.pairs import PHENOMENA, draw_cast, random_of, reversible_event, trade_places

# --- Tables ---------------------------------------------------------------------------------------

# fmt: off
# Rows of each file.
GLUE_ROWS = {
    "CoLA":  {"train": 4000, "dev": 800, "test": 800},
    "SST-2": {"train": 6000, "dev": 500, "test": 500},
    "MRPC":  {"train": 4000, "dev": 500, "test": 500},
    "STS-B": {"train": 2000, "dev": 500, "test": 500},
    "QQP":   {"train": 8000, "dev": 800, "test": 800},
    "MNLI":  {
        "train": 10000,
        "dev_matched": 600, "dev_mismatched": 600,
        "test_matched": 600, "test_mismatched": 600,
        "diagnostic": 300,
    },
    "QNLI":  {"train": 4000, "dev": 600, "test": 600},
    "RTE":   {"train": 2000, "dev": 400, "test": 400},
    "WNLI":  {"train": 1000, "dev": 300, "test": 300},
}

# The labels of each task. The rows of a split take them in turn.
LABELS = {
    "CoLA":  ("0", "1"),
    "SST-2": ("0", "1"),
    "MRPC":  ("0", "1"),
    "STS-B": ("0.000", "1.250", "2.500", "3.750", "5.000"),
    "QQP":   ("0", "1"),
    "MNLI":  ("entailment", "neutral", "contradiction"),
    "QNLI":  ("entailment", "not_entailment"),
    "RTE":   ("entailment", "not_entailment"),
    "WNLI":  ("0", "1"),
}
# fmt: on


class Row(NamedTuple):
    """One row of a task: its one or two texts, its label, and for CoLA the phenomenon."""

    texts: list
    label: str
    phenomenon: str = ""


# --- What the tasks share -------------------------------------------------------------------------


def make_row(texts, label, phenomenon=""):
    """A Row with its texts spelled as people type."""
    return Row([spell(text) for text in texts], label, phenomenon)


def singular_and_plural(story):
    """Two different animals, one singular and one plural, in either order.

    "the dog", "the cats"
    """
    first = story.new_entity("beast")
    second = story.new_entity("beast")
    is_plural = story.chance(0.5)
    return replace(first, is_plural=is_plural), replace(second, is_plural=not is_plural)


def animal_and_person(story):
    """An animal and a person, both singular or both plural, in either order.

    "the dog", "the sailor"
    """
    is_plural = story.chance(0.5)
    animal = replace(story.new_entity("beast"), is_plural=is_plural)
    person = replace(story.new_entity("human", named=False), is_plural=is_plural)
    if story.chance(0.5):
        return animal, person
    return person, animal


def near(story, who, neighbour):
    """Somebody near somebody else: "the dog near the cats", "the dog with the cats"."""
    place = State(None, story.pick(NEAR_SOMEBODY), neighbour)
    return replace(who, modifier=place)


def it_or_they(entity):
    """The pronoun for an entity."""
    return replace(entity, as_pronoun=True)


def by_kind(entity):
    """An entity by its kind: "the animal" for "the dog", "the people" for "the sailors"."""
    kind = MORE_GENERAL.get(entity.noun.kind, entity.noun.kind)
    return Entity(KIND_NOUNS[kind], entity.is_plural)


# --- The nine tasks -------------------------------------------------------------------------------


def cola(story, label, turn):
    """CoLA: is the sentence correct? The ten phenomena take turns.

    Measures agreement, the forms of verbs and the order of words. Sequences of three words show
    eight of the ten phenomena. Agreement across another noun needs more.

    0    the dog near the cats were tired.
    1    the dog near the cats was tired.
    """
    cast = draw_cast(story)
    is_plural = story.chance(0.5)

    # a pair for the phenomenon whose turn it is
    names = list(PHENOMENA)
    phenomenon = names[turn % len(names)]

    # "the dog near the cats was": if the other noun always had the other number, then "cats was"
    # would always be right. So its number is drawn.
    if phenomenon in ("across_preposition", "across_relative"):
        cast = replace(cast, other=replace(cast.other, is_plural=is_plural))

    right, wrong = PHENOMENA[phenomenon](cast)
    if label == "1":
        return make_row([right], label, phenomenon)
    return make_row([wrong], label, phenomenon)


def sst2(story, label, turn):
    """SST-2: is the opinion good (1) or bad (0)? If there is a "but", the part after it counts.

    Measures negation: next to the word that it turns ("not good"), or far from it ("no sailors
    in the barn liked").

    0    no sailors in the barn liked the soup.    /    the cake was good but the soup was not.
    1    no sailors in the barn hated the soup.    /    the soup was bad but the cake was not.
    """
    # even turns: a quantity, far from the opinion
    if turn % 2 == 0:
        return make_row([quantified_opinion(story, label)], label)

    # Every second odd turn has a "but", in the rows of both labels. The argument `bad` is the
    # opinion before the "but", which is the opposite of the label.
    wants_but = turn % 4 == 1
    bad = label == "0"
    if wants_but:
        bad = not bad
    text, _ = opinion_scene(story, bad)

    # The scene itself draws whether there is a "but".
    if (" but " in text) != wants_but:
        return None
    return make_row([text], label)


def quantified_opinion(story, label):
    """What all people, or no people, in a place like or hate.

    label 1: every sailor in the barn liked the soup .    no sailors in the barn hated the soup .
    label 0: every sailor in the barn hated the soup .    no sailors in the barn liked the soup .
    """
    # "no" is drawn as often as "every" and "all" together. But fewer different sentences begin with
    # "no", and no row occurs twice. So "no" is a little rarer in the files.
    quantifier = story.pick(("every", "all"))
    if story.chance(0.5):
        quantifier = "no"

    # "no sailors in the barn"
    noun = story.new_noun("person")
    place = State(None, "in", Entity(story.new_noun("place")))
    judges = Entity(noun, quantifier != "every", quantifier, modifier=place)
    work = story.new_entity("work")

    # "no sailors hated the soup" is a good opinion.
    likes = label == "1"
    if quantifier == "no":
        likes = not likes
    verbs = HATING
    if likes:
        verbs = LIKING
    return sentence(Event(judges, story.pick(verbs), work, story.past))


def mrpc(story, label, turn):
    """MRPC: do the two sentences say the same?

    Measures which of two nouns is the subject, and whether it is an animal or a person.

    0    the sailor near the fox was tired.    the animal slept.
    1    the sailor near the fox was tired.    the person slept.
    """
    who, neighbour = animal_and_person(story)

    # the mood of the first one, as a state or as what it does
    mood = story.pick(ONE_WORD_MOODS)
    acting = story.chance(0.5)
    first = in_mood(near(story, who, neighbour), mood, story.past, False, acting)

    # the same in other words, or about the other one
    if label == "0":
        who = neighbour
    second = in_mood(by_kind(who), mood, story.past, False, not acting)
    return make_row([sentence(first), sentence(second)], label)


def stsb(story, label, turn):
    """STS-B: how similar are the sentences? 1.25 points for each part that both have in common.

    The parts are who it is, the mood, the tense and the negation.
    Measures which of two nouns is the subject (by its number), what somebody in a mood does, tense
    and negation. About half of the first sentences are in the present. There, the verb shows the
    number, "the dog near the cats sleeps", so a model need not find the subject. In the past it
    must.

    0.000    the dog near the cats slept.    they are not ill.
    1.250    the dog near the cats slept.    they are not tired.
    2.500    the dog near the cats slept.    it is not tired.
    3.750    the dog near the cats slept.    it is tired.
    5.000    the dog near the cats slept.    it was tired.
    """
    who, neighbour = singular_and_plural(story)
    mood, other_mood = story.pick_two(ONE_WORD_MOODS)
    negated = turn // 4 % 2 == 1
    past = story.past
    first = in_mood(near(story, who, neighbour), mood, past, negated, acting=True)

    # Which parts change? If two of the four do: in turn 0 who and mood, in turn 1 mood and tense,
    # and so on.
    parts = ("who", "mood", "tense", "negation")
    changes = len(parts) - LABELS["STS-B"].index(label)
    changed = [parts[(turn + i) % len(parts)] for i in range(changes)]

    # what they become
    if "who" in changed:
        who = neighbour
    if "mood" in changed:
        mood = other_mood
    if "tense" in changed:
        past = not past
    if "negation" in changed:
        negated = not negated
    second = in_mood(it_or_they(who), mood, past, negated, acting=False)
    return make_row([sentence(first), sentence(second)], label)


def qqp(story, label, turn):
    """QQP: do the two questions ask the same?

    Measures which of two nouns is the subject (by its number), and what somebody in a mood does.

    0    did the dog near the cats sleep?    were they tired?
    1    did the dog near the cats sleep?    was it tired?
    """
    who, neighbour = singular_and_plural(story)
    mood, other_mood = story.pick_two(ONE_WORD_MOODS)

    # In the past, "did" does not show the number of its subject.
    first = in_mood(near(story, who, neighbour), mood, True, False, acting=True)

    # Label 0: in even turns the question is about the other one, in odd turns about another mood.
    if label == "0":
        if turn % 2 == 0:
            who = neighbour
        else:
            mood = other_mood
    second = in_mood(it_or_they(who), mood, True, False, acting=False)
    return make_row([yes_no_question(first), yes_no_question(second)], label)


def mnli(story, label, turn):
    """MNLI: if the first sentence is true, is the second one true, false, or is neither known?

    Measures which of two nouns is the subject (by its number or by its kind), and negation.

    entailment       the dog near the cats slept.        it was tired.
    neutral          the dog near the cats slept.        they were tired.
    contradiction    the sailor near the fox slept.      the person was not tired.
    """
    # All combinations of these three come equally often: is the first sentence negated, does the
    # second sentence of the neutral row deny it, and how does the second sentence say who it is?
    negated = turn % 2 == 1
    neutral_is_denied = turn // 2 % 2 == 1
    says_kind = turn // 4 % 2 == 1

    # two of different numbers, or of different kinds
    if says_kind:
        who, neighbour = animal_and_person(story)
    else:
        who, neighbour = singular_and_plural(story)
    mood = story.pick(ONE_WORD_MOODS)

    # In the past, the verb does not show the number of its subject; in the present it does.
    known = in_mood(near(story, who, neighbour), mood, story.past, negated, acting=True)

    # In a contradiction, a "not" is in one sentence only. This is also true of half of the neutral
    # rows; otherwise a "not" in one sentence only would exclude "neutral".
    is_denied = label == "contradiction"
    if label == "neutral":
        is_denied = neutral_is_denied
    if is_denied:
        negated = not negated

    # neutral: about the other one
    if label == "neutral":
        who = neighbour
    if says_kind:
        again = by_kind(who)
    else:
        again = it_or_they(who)
    said = in_mood(again, mood, story.past, negated, acting=False)
    return make_row([sentence(known), sentence(said)], label)


def qnli(story, label, turn):
    """QNLI: does the sentence answer the question?

    Measures which of two nouns is the subject, and its number and gender.

    entailment        did the dog near anna sleep?    yes, it did.
    not_entailment    did the dog near anna sleep?    yes, she did.
    """
    # two with different pronouns, in either order
    who = story.new_entity(needs_pronoun=True)
    neighbour = story.new_entity(needs_pronoun=True)
    if pronoun_of(who) == pronoun_of(neighbour):
        return None
    if story.chance(0.5):
        who, neighbour = neighbour, who

    # In the past, "did" does not show the number of its subject.
    mood = story.pick(ONE_WORD_MOODS)
    asked = in_mood(near(story, who, neighbour), mood, True, False, acting=True)

    # the answer, about the one who is asked about or about the other one
    if label == "not_entailment":
        who = neighbour
    answer = replace(asked, subject=it_or_they(who), negated=story.chance(0.5))
    return make_row([yes_no_question(asked), yes_no_answer(answer)], label)


def rte(story, label, turn):
    """RTE: if the first sentence is true, is the second one true, too?

    Measures what is an animal and what is a person, and which of two nouns is the subject.

    entailment        all animals slept.    the cat near the sailor slept.
    not_entailment    all animals slept.    the sailor near the cat slept.
    """
    # even turns: what holds for all also holds for a part. "every bird" does not fit, because
    # only "animal" and "person" can trade places.
    if turn % 2 == 0:
        known, said = quantity_scene(story)
        if "bird" in known:
            return None

        # "dirty" does not fit: "every person washes itself", but "the baker washes"
        if "dirty" in known or "wash" in known:
            return None
        if label != "entailment":
            known = trade_places(known, ("animal", "person"), ("animals", "people"))
        return make_row([known, said], label)

    # odd turns: the part is an animal near a person, or a person near an animal
    first, second = animal_and_person(story)
    quantifier = story.pick(("every", "all", "no"))
    mood = story.pick(ONE_WORD_MOODS)
    acting = story.chance(0.5)

    # The first sentence is about all of the first one's kind.
    everyone = replace(by_kind(first), is_plural=quantifier != "every", determiner=quantifier)
    known = in_mood(everyone, mood, story.past, False, acting)

    # The second sentence is about one of them, or about one of the others.
    if label == "entailment":
        part = near(story, first, second)
    else:
        part = near(story, second, first)
    said = in_mood(part, mood, story.past, quantifier == "no", acting)
    return make_row([sentence(known), sentence(said)], label)


def wnli(story, label, turn):
    """WNLI: does the second sentence read the pronoun of the first one correctly?

    Measures the number of a pronoun and the number of a subject with another noun near it.

    0    the dog chased the cats because they were hungry.    the dog near the cats ate.
    1    the dog chased the cats because they were hungry.    the cats near the dog ate.
    """
    # an event with one who is singular and one who is plural
    event = reversible_event(story)
    is_plural = story.chance(0.5)
    agent = replace(event.subject, is_plural=is_plural)
    patient = replace(event.object, is_plural=not is_plural)
    if pronoun_of(agent) is None or pronoun_of(patient) is None:
        return None
    event = replace(event, subject=agent, object=patient, past=True)
    effect = story.active_or_passive(event, 0.5)

    # the mood of one of the two is the reason
    who, other = agent, patient
    if story.chance(0.5):
        who, other = patient, agent
    mood = story.pick(ONE_WORD_MOODS)
    known = because(effect, State(it_or_they(who), mood, past=True))

    # The second sentence is about this one or about the other one.
    if label == "0":
        who, other = other, who

    # The past does not show the number of its subject.
    said = in_mood(near(story, who, other), mood, True, False, acting=True)
    return make_row([known, sentence(said)], label)


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


def write_tasks(folder, seed=0):
    """Write the files of all tasks into a folder.

    Args:
        folder: the folder to write to; it is made if it does not exist.
        seed: of the random choices. The same seed gives the same files on every machine.
    Returns:
        {task: {split: list of Row}}
    """
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
    # Shared by all splits, so that no row of dev or test has the same texts as a row of train. A
    # single sentence of a pair may occur in several rows.
    seen = set()
    story_number = 0

    splits = {}
    for split, count in GLUE_ROWS[task].items():
        rows = []
        turn = 0
        while len(rows) < count:
            # the rows of this turn, one per label
            name = f"{seed} {task} {story_number}"
            story_number += 1
            turn_rows = make_turn(task, split, turn, name)

            # Keep them if all of them are new. Otherwise, try again.
            if add_if_new(turn_rows, seen):
                rows.extend(turn_rows)
                turn += 1

        # The last turn may have made more rows than are needed.
        splits[split] = rows[:count]
    return splits


def make_turn(task, split, turn, name):
    """The rows of a turn, one per label, all of them from the same random numbers.

    Args:
        task, split: keys of GLUE_ROWS and of GLUE_ROWS[task].
        turn: the number of the turn in this split, counted from 0.
        name: another name gives other random numbers.
    Returns:
        list of Row, or of None where there is none.
    """
    rows = []
    for label in LABELS[task]:
        story = Story(random_of(name))

        # MNLI's two genres are the past and the present. Its diagnostic sentences have both.
        #
        # In the present, the verb shows the number of its subject: "the dog near the cats sleeps".
        # So in half of the rows of the mismatched files, those with "it" or "they", a model need
        # not find the subject: the verb has the number of the right pronoun.
        if task == "MNLI" and split != "diagnostic":
            story.past = not split.endswith("mismatched")
        rows.append(TASKS[task](story, label, turn))
    return rows


def add_if_new(rows, seen):
    """Add the texts of rows to `seen` if every row is new. Returns whether they were.

    Args:
        rows: list of Row; None where there is none.
        seen: the set of the texts of all rows before, one frozenset per row. A frozenset has no
            order, so a row with exchanged texts is not new.
    """
    if None in rows:
        return False

    texts = {frozenset(row.texts) for row in rows}
    if texts & seen:
        return False
    seen |= texts
    return True


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
