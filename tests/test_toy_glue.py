"""toy/glue.py: the same files everywhere, and labels checked here."""

import hashlib
import re
from collections import Counter

import numpy as np
import pytest

from toy import glue as toy_glue
from toy import language
from toy.glue import GLUE_ROWS, LABELS
from toy.pairs import PHENOMENA
from toy_words import NAMES, NOUNS, SINGULAR, is_human, nouns_in, pronoun_for, words_of

SHA256_OF_THE_FILES = "154df3acecfeef381047ab0689c11fd7117c5cda25bea60c915231473b2cf147"


def tree_sha256(folder):
    """SHA-256 of the names and bytes of all files in a folder."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.tsv")}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name].read_bytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """(the folder of the files, {task: {split: list of Row}})"""
    folder = tmp_path_factory.mktemp("toy") / "glue"
    return folder, toy_glue.write_tasks(folder)


def all_rows(glue, task):
    """The rows of all splits of a task, as one list."""
    _, written = glue
    rows = []
    for split_rows in written[task].values():
        rows.extend(split_rows)
    return rows


# --- Files ----------------------------------------------------------------------------------------


def test_the_files_have_the_published_hash(glue):
    folder, _ = glue
    assert tree_sha256(folder) == SHA256_OF_THE_FILES


@pytest.mark.parametrize("task", GLUE_ROWS)
def test_no_texts_are_in_two_rows_of_a_task_so_none_of_dev_or_test_in_train(glue, task):
    # A frozenset has no order: nor are they there the other way round.
    texts = [frozenset(row.texts) for row in all_rows(glue, task)]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("task", GLUE_ROWS)
def test_labels_come_in_equal_parts_in_every_split(glue, task):
    _, written = glue
    for split, count in GLUE_ROWS[task].items():
        found = Counter(row.label for row in written[task][split])
        assert sum(found.values()) == count
        assert set(found) == set(LABELS[task])
        assert max(found.values()) - min(found.values()) <= 1


# --- What else could tell the label: forms, lengths, words ---------------------------------------

OPINIONS = {*language.GOOD, *language.BAD}
for _verb in language.LIKING + language.HATING:
    OPINIONS |= {_verb.base, _verb.third, _verb.past}
KINDS = {"animal", "animals", "person", "people"}
PRONOUNS = {"it", "they", "she", "he"}
DESCRIPTIONS = {"small", "big", "tall", "short", "old", "young", "black", "white", "brown", "grey"}

# What a form does not show: {word: its class}. The class "" removes the word.
CLASSES = dict.fromkeys([*NOUNS, *SINGULAR, *NAMES], "NOUN")
CLASSES |= dict.fromkeys(KINDS, "KIND")
CLASSES |= dict.fromkeys(OPINIONS, "OPINION")
CLASSES |= dict.fromkeys(language.MOODS, "MOOD")
CLASSES |= dict.fromkeys(PRONOUNS, "PRONOUN")
CLASSES |= dict.fromkeys(("is", "are"), "BE") | dict.fromkeys(("was", "were"), "WAS")
CLASSES |= dict.fromkeys(DESCRIPTIONS, "")


def form_of(row):
    """The words of a row with classes in place of those that may differ between labels."""
    texts = []
    for text in row.texts:
        words = re.findall(r"\w+|[.,?]", text)
        # "the dog", "anna": both are nouns
        words = [word for word in words if word != "the"]
        classes = [CLASSES.get(word, word) for word in words]
        texts.append(" ".join(word for word in classes if word))
    return tuple(texts)


@pytest.mark.parametrize("task", ["SST-2", "MRPC", "QQP", "QNLI", "RTE", "WNLI"])
def test_every_form_is_as_frequent_with_one_label_as_with_the_other(glue, task):
    _, written = glue
    for rows in written[task].values():
        forms = {label: Counter() for label in LABELS[task]}
        for row in rows:
            forms[row.label][form_of(row)] += 1
        first, second = forms.values()
        assert first == second
        assert len(first) >= 10


def test_every_first_text_of_mnli_and_sts_b_has_all_labels(glue):
    # Only the second text differs, and in MNLI only who it is and "not".
    _, written = glue
    for task in ("MNLI", "STS-B"):
        for rows in written[task].values():
            labels = {}
            for row in rows:
                labels.setdefault(row.texts[0], set()).add(row.label)
            complete = [found for found in labels.values() if len(found) == len(LABELS[task])]
            assert len(complete) >= len(labels) - 1

    forms = set()
    for row in all_rows(glue, "MNLI"):
        forms.add(form_of(row)[1].replace(" not ", " "))
    people = ("PRONOUN", "KIND")
    assert forms == {f"{who} {be} MOOD ." for who in people for be in ("WAS", "BE")}


# --- MRPC, QQP, MNLI, QNLI, RTE, WNLI: who is the subject? ---------------------------------------

# What somebody in a mood does: {form: mood}.
ACTS = {
    "sleep": "tired", "sleeps": "tired", "slept": "tired",
    "eat": "hungry", "eats": "hungry", "ate": "hungry",
    "hide": "afraid", "hides": "afraid", "hid": "afraid",
    "drink": "thirsty", "drinks": "thirsty", "drank": "thirsty",
    "play": "glad", "plays": "glad", "played": "glad",
    "rest": "ill", "rests": "ill", "rested": "ill",
    "run": "late", "runs": "late", "ran": "late",
}  # fmt: skip


def mood_of(text):
    """The one mood of a text: "it was tired", "the dog slept"."""
    (mood,) = {ACTS.get(word, word) for word in words_of(text)} & set(ACTS.values())
    return mood


def pronoun_in(text):
    (pronoun,) = PRONOUNS & {*words_of(text)}
    return pronoun


def is_negated(text):
    return "not" in words_of(text)


def kind_of(noun):
    """ "person" or "animal"."""
    if is_human(noun):
        return "person"
    return "animal"


def kind_in(text):
    """The kind that a text names by "animal" or "people"."""
    (word,) = KINDS & {*words_of(text)}
    return {"animals": "animal", "people": "person"}.get(word, word)


def check_mrpc(texts, label):
    """Label 1: the kind is that of the subject, which is the first noun."""
    first, second = texts
    subject, neighbour = nouns_in(first)
    assert {kind_of(subject), kind_of(neighbour)} == {"animal", "person"}
    assert mood_of(first) == mood_of(second), texts
    assert (kind_in(second) == kind_of(subject)) == (label == "1"), texts


def check_qqp(texts, label):
    """Label 1: the pronoun is that of the subject, and the mood is the same."""
    first, second = texts
    subject, neighbour = nouns_in(first)
    assert pronoun_in(second) in (pronoun_for(subject), pronoun_for(neighbour))
    same_person = pronoun_in(second) == pronoun_for(subject)
    same_mood = mood_of(first) == mood_of(second)
    assert same_person or same_mood, texts
    assert (same_person and same_mood) == (label == "1"), texts


def check_mnli(texts, label):
    """The label is what the second text says about the first one."""
    known, said = texts
    subject, neighbour = nouns_in(known)
    assert mood_of(known) == mood_of(said)

    # "it was tired" or "the animal was tired": is it the subject?
    if {"it", "they"} & {*words_of(said)}:
        assert pronoun_for(subject) != pronoun_for(neighbour)
        same_person = pronoun_in(said) == pronoun_for(subject)
    else:
        assert kind_of(subject) != kind_of(neighbour)
        same_person = kind_in(said) == kind_of(subject)

    expected = "entailment"
    if is_negated(known) != is_negated(said):
        expected = "contradiction"
    if not same_person:
        expected = "neutral"
    assert label == expected, texts


def check_qnli(texts, label):
    """Label "entailment": the answer's pronoun is that of the subject of the question."""
    question, answer = texts
    assert question.startswith("did "), "the present would show the number of the subject"
    subject, neighbour = nouns_in(question)
    other = pronoun_for(neighbour)
    assert pronoun_in(answer) in {pronoun_for(subject), other}
    assert other != pronoun_for(subject)
    assert (pronoun_in(answer) == pronoun_for(subject)) == (label == "entailment"), texts
    assert answer.startswith("no, ") == is_negated(answer)


def check_rte(texts, label):
    """Label "entailment": the subject is of the kind that the first sentence speaks about."""
    known, said = texts
    assert known.split()[0] in ("every", "all", "no")
    assert mood_of(known) == mood_of(said)  # "dirty" is not one of them
    subject = nouns_in(said)[0]
    assert (kind_of(subject) == kind_in(known)) == (label == "entailment"), texts
    assert is_negated(said) == known.startswith("no "), texts


def check_wnli(texts, label):
    """Label 1: the subject of the second sentence has the number of the pronoun."""
    known, said = texts
    effect, reason = known.strip(".").split(" because ")
    first, second = nouns_in(effect)
    assert {*nouns_in(said)} == {first, second}
    assert pronoun_for(first) != pronoun_for(second)
    assert mood_of(reason) == mood_of(said)
    subject = nouns_in(said)[0]
    assert (pronoun_for(subject) == pronoun_in(reason)) == (label == "1"), texts


# fmt: off
CHECKS = {
    "MRPC": check_mrpc,
    "QQP":  check_qqp,
    "MNLI": check_mnli,
    "QNLI": check_qnli,
    "RTE":  check_rte,
    "WNLI": check_wnli,
}
# fmt: on


@pytest.mark.parametrize("task", CHECKS)
def test_every_label_follows_from_the_subject_of_the_text(glue, task):
    for row in all_rows(glue, task):
        CHECKS[task](row.texts, row.label)


# --- SST-2 ----------------------------------------------------------------------------------------


def test_sentiment_is_the_word_s_own_turned_by_not_or_nobody_or_no(glue):
    """After a "but", its second part counts: "the cake was good but the soup was not"."""
    good = {"like", "likes", "liked", "enjoy", "enjoys", "enjoyed"}
    good |= {"good", "funny", "lovely", "great"}
    checked = Counter()
    for row in all_rows(glue, "SST-2"):
        (text,) = row.texts
        words = {*words_of(text)}
        last_part = {*words_of(text.rpartition(" but ")[2])}  # without "but": all words

        # one word for the opinion, and perhaps one that turns it
        has_good_word = bool(words & good)
        is_turned = bool(last_part & {"not", "nobody", "no"})
        assert (has_good_word != is_turned) == (row.label == "1"), text
        checked["but" in words, "no" in words, is_turned] += 1

    # "no sailors in the barn liked the soup"; others, and those with "but", turned or not
    without_but = [(False, True, True), (False, False, True), (False, False, False)]
    with_but = [(True, False, True), (True, False, False)]
    assert set(checked) == {*without_but, *with_but}
    assert min(checked[kind] for kind in without_but) > 500
    assert min(checked[kind] for kind in with_but) > 500


# --- STS-B ----------------------------------------------------------------------------------------


def is_past(text):
    """Whether a text is in the past, by its auxiliary or its verb."""
    words = {*words_of(text)}
    return bool(
        words & {"was", "were", "did", "slept", "ate", "hid", "drank", "ran", "played", "rested"}
    )


def equal_parts(texts):
    """Which of the four parts two texts have in common: who, mood, tense, negation."""
    first, second = texts
    return [
        pronoun_in(second) == pronoun_for(nouns_in(first)[0]),
        mood_of(first) == mood_of(second),
        is_past(first) == is_past(second),
        is_negated(first) == is_negated(second),
    ]


def test_similarity_counts_what_two_sentences_have_in_common(glue):
    for row in all_rows(glue, "STS-B"):
        assert equal_parts(row.texts).count(True) * 1.25 == float(row.label), row.texts


# --- What a score does not show: as in the docstring of toy/glue.py -------------------------------


def test_similarity_is_nearly_known_without_who_it_is(glue):
    """The best prediction is the mean label of all rows with the same three other parts."""
    labels = {}
    for row in all_rows(glue, "STS-B"):
        _, *others = equal_parts(row.texts)
        labels.setdefault(tuple(others), []).append(float(row.label))
    known = [label for group in labels.values() for label in group]
    predicted = [np.mean(group) for group in labels.values() for _ in group]
    assert round(np.corrcoef(known, predicted)[0, 1], 2) == 0.95


def test_the_mood_alone_answers_three_of_four_questions_of_qqp(glue):
    """If "the same mood" is taken for "the same question"."""
    found = Counter()
    for row in all_rows(glue, "QQP"):
        first, second = row.texts
        found[mood_of(first) == mood_of(second), row.label] += 1
    right = found[True, "1"] + found[False, "0"]
    assert right / found.total() == 0.75
    wrong = found.total() - right
    f1 = 2 * found[True, "1"] / (2 * found[True, "1"] + wrong)
    assert f1 == pytest.approx(0.8)


# --- CoLA -----------------------------------------------------------------------------------------


def test_each_phenomenon_is_tested_as_often_by_correct_as_by_wrong_sentences(glue):
    _, written = glue
    for rows in written["CoLA"].values():
        found = Counter((row.phenomenon, row.label) for row in rows)
        assert {phenomenon for phenomenon, _ in found} == set(PHENOMENA)
        assert len(found) == 20
        assert len(set(found.values())) == 1
