"""toy/glue.py: the same files everywhere, and labels checked by rules of this file's own."""

import hashlib
import math
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from support.glue_format import FORMATS, has_labels, read_label, read_task
from toy import glue as toy_glue
from toy import language
from toy.glue import GLUE_ROWS, LABELS, ORDERED, PHENOMENA, Cast, Row, minimal_pairs

ROOT = Path(__file__).parent.parent
SHA256_OF_THE_FILES = "1b3409b8b13bb865c147a2e87f216b1b89784b650652b9f4d0721ae6e9eb8055"


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
    return folder, toy_glue.write_glue(folder)


def all_rows(glue, task):
    """The rows of all splits of a task, as one list."""
    _, written = glue
    rows = []
    for split_rows in written[task].values():
        rows.extend(split_rows)
    return rows


def words_of(text):
    return re.findall(r"\w+", text)


# --- Files ----------------------------------------------------------------------------------------


def test_the_files_have_the_published_hash_and_another_seed_gives_others(glue, tmp_path):
    folder, _ = glue
    assert tree_sha256(folder) == SHA256_OF_THE_FILES

    toy_glue.write_glue(tmp_path / "other", seed=1)
    assert tree_sha256(tmp_path / "other") != SHA256_OF_THE_FILES


def test_an_existing_folder_is_left_as_it_is(tmp_path):
    (tmp_path / "own.txt").write_text("mine")
    with pytest.raises(OSError, match="exists already"):
        toy_glue.write_glue(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["own.txt"]


@pytest.mark.parametrize("name", FORMATS)
def test_the_files_read_as_glue_s_own_with_every_row_and_label(glue, name):
    folder, written = glue
    published = FORMATS[name]
    task = replace(published, rows=GLUE_ROWS[published.folder])
    assert list(task.rows) == list(published.rows)

    for split in task.rows:
        examples = read_task(task, folder, split)
        rows = written[task.folder][split]

        # texts
        assert examples.a == [row.texts[0] for row in rows]
        if len(task.texts) == 1:
            assert examples.b is None
            assert {len(row.texts) for row in rows} == {1}
        else:
            assert examples.b == [row.texts[1] for row in rows]
            assert {len(row.texts) for row in rows} == {2}

        # labels and phenomena, where GLUE has published them
        if has_labels(split):
            assert examples.labels == [read_label(row.label, task) for row in rows]
            assert None not in examples.labels
        else:
            assert examples.labels is None
        if name == "cola" and has_labels(split):
            assert examples.phenomena == [row.phenomenon for row in rows]
        else:
            assert examples.phenomena is None


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


def test_every_word_of_the_tasks_is_a_word_of_the_corpus(glue):
    known = set()
    for document in language.documents(0, 100_000):
        for sentence in document:
            known.update(sentence.split())

    found = set()
    for task in GLUE_ROWS:
        for row in all_rows(glue, task):
            for text in row.texts:
                found.update(words_of(text))
    assert found <= known
    assert len(found) > 150


def test_the_command_writes_the_same_files_again_and_prints_the_baselines(tmp_path):
    command = [sys.executable, "-m", "toy", "--glue", tmp_path / "g"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    # one line per task, and MNLI has two dev files
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "MNLI", "QNLI", "RTE", "WNLI"]
    assert "bag of words" in done.stdout
    assert (tmp_path / "g" / "diagnostic" / "diagnostic.tsv").is_file()
    assert tree_sha256(tmp_path / "g") == SHA256_OF_THE_FILES

    # The same folder again is refused: what is there might be GLUE's own files.
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 2
    assert again.stderr.startswith("toy: ")
    assert again.stderr.count("\n") == 1


# --- What words alone tell ------------------------------------------------------------------------


def dev_splits(glue, task):
    """(rows of train, [rows of each dev file])"""
    _, written = glue
    dev = [rows for split, rows in written[task].items() if split.startswith("dev")]
    return written[task]["train"], dev


def within_four_standard_deviations(best, rows):
    """The largest accuracy that chance explains, if the expected accuracy is `best`."""
    return best + 4 * math.sqrt(best * (1 - best) / rows)


@pytest.mark.parametrize("task", [*ORDERED, "RTE"])
def test_a_bag_of_words_stays_near_chance_where_order_or_kinds_of_kinds_decide(glue, task):
    """Half of RTE asks what is a kind of what; the other half is decided by order."""
    train, dev_files = dev_splits(glue, task)
    for dev in dev_files:
        majority, accuracy = toy_glue.baselines(train, dev)
        assert majority == pytest.approx(1 / 2, abs=1e-9)
        assert accuracy < within_four_standard_deviations(1 / 2, len(dev))


def test_a_bag_of_words_stays_near_two_thirds_on_mnli(glue):
    """Words show whether there is one "not" too many, but not whose state it is.

    So 2 / 3 is the best that word counts can do.
    """
    train, dev_files = dev_splits(glue, "MNLI")
    assert len(dev_files) == 2
    for dev in dev_files:
        majority, accuracy = toy_glue.baselines(train, dev)
        assert majority == pytest.approx(1 / 3, abs=1e-9)
        assert accuracy < within_four_standard_deviations(2 / 3, len(dev))


def test_a_bag_of_words_is_better_than_chance_where_words_decide(glue):
    train, (dev,) = dev_splits(glue, "SST-2")
    _, accuracy = toy_glue.baselines(train, dev)
    assert accuracy > 0.6

    train, (dev,) = dev_splits(glue, "STS-B")
    _, pearson = toy_glue.baselines(train, dev)
    assert pearson > 0.5


def test_baselines_of_a_small_example_are_those_computed_by_hand():
    # "a" means 1 and "b" means 0. Most of train is 1, and most of dev is 0.
    train = [Row(["a"], "1"), Row(["a"], "1"), Row(["b"], "0")] * 20
    dev = [Row(["b"], "0"), Row(["b"], "0"), Row(["a"], "1"), Row(["b"], "1")]
    assert toy_glue.baselines(train, dev) == (1 / 2, 3 / 4)


# --- The checker's own reading of a text ----------------------------------------------------------


def noun_forms():
    """{form: its noun} of all nouns of the language."""
    forms = {}
    for noun in language.NOUNS:
        forms[noun.singular] = noun
        if noun.plural:
            forms[noun.plural] = noun
    return forms


NOUN_FORMS = noun_forms()

# The forms of the verbs in the tasks: {form: base}.
DEEDS = {}
for _forms in (
    "chase chases chased",
    "help helps helped",
    "feed feeds fed",
    "scare scares scared",
    "bite bites bit bitten",
):
    for _form in _forms.split():
        DEEDS[_form] = _forms.split()[0]


def deed(text):
    """(verb, who acts, on whom) of the one event in a statement, question or relative clause."""
    words = words_of(text)
    first, second = [word for word in words if word in NOUN_FORMS]
    verb = next(DEEDS[word] for word in words if word in DEEDS)

    # the cat was chased by the dog, the cat that the dog chased
    if "by" in words or re.search(r"\b(that|who) the\b", text):
        return verb, second, first
    return verb, first, second


def exchanged(event):
    """A deed with the roles exchanged."""
    verb, agent, patient = event
    return verb, patient, agent


# --- MRPC and QQP ---------------------------------------------------------------------------------


def check_paraphrase(texts, label):
    """Label 1 has the same verb and roles, label 0 the roles exchanged."""
    first = deed(texts[0])
    second = deed(texts[1])
    if label == "1":
        assert first == second, texts
    else:
        assert first == exchanged(second), texts


@pytest.mark.parametrize("task", ["MRPC", "QQP"])
def test_paraphrases_have_the_same_verb_and_roles_and_others_the_roles_exchanged(glue, task):
    for row in all_rows(glue, task):
        check_paraphrase(row.texts, row.label)


# --- MNLI -----------------------------------------------------------------------------------------

# The states that follow, and what somebody does in them.
STATES_OF_AGENTS = {"tired", "sleep", "sleeps", "slept", "kind", "loud", "quiet", "angry"}
STATES_OF_PATIENTS = {"afraid", "hide", "hides", "hid", "thankful", "full", "hungry", "hurt"}


def follows(known, said):
    """MNLI's label: what a text says about another one.

    The opposite of a state ("quiet" for "loud") counts as its negation.
    """
    words = words_of(said)
    nouns = [word for word in words if word in NOUN_FORMS]
    verb, agent, patient = deed(known)

    # Is it denied?
    denied = "not" in words
    if {"quiet", "hungry"} & {*words}:
        denied = not denied

    if len(nouns) == 2:
        # the same event, or the event with the roles exchanged
        roles_agree = deed(said) == (verb, agent, patient)
        assert roles_agree or deed(said) == (verb, patient, agent), (known, said)
    else:
        # the state of one of the two
        assert len(nouns) == 1, (known, said)
        assert (STATES_OF_AGENTS | STATES_OF_PATIENTS) & {*words}, (known, said)
        expected = agent
        if STATES_OF_PATIENTS & {*words}:
            expected = patient
        roles_agree = nouns[0] == expected

    if not roles_agree:
        return "neutral"
    if denied:
        return "contradiction"
    return "entailment"


def check_mnli(texts, label):
    known, said = texts
    assert follows(known, said) == label, texts


def test_what_is_entailed_or_contradicted_follows_from_the_roles_and_the_rest_is_neutral(glue):
    _, written = glue
    for split, rows in written["MNLI"].items():
        if split != "diagnostic":
            for row in rows:
                check_mnli(row.texts, row.label)


def test_mnli_is_in_the_past_except_for_its_mismatched_genre_in_the_present(glue):
    present = {"is", "are", "does", "do"}
    past = {"was", "were", "did"}
    _, written = glue
    for split, rows in written["MNLI"].items():
        # the tenses of all texts whose auxiliary shows one
        is_present = set()
        for row in rows:
            for text in row.texts:
                words = {*words_of(text)}
                if words & (present | past):
                    is_present.add(bool(words & present))

        if split == "diagnostic":
            assert is_present == {True, False}
        else:
            assert is_present == {split.endswith("mismatched")}


# --- QNLI -----------------------------------------------------------------------------------------


def check_qnli(texts, label):
    """Label "entailment": the named one has, in the sentence, the role that is not asked for."""
    question, known = texts
    words = words_of(question)
    named = next(word for word in words if word in NOUN_FORMS)

    # who was it chased by? who chased it?
    _, agent, patient = deed(known)
    role_of_named = agent
    if words[-1] == "by" or words[1] in DEEDS:
        role_of_named = patient
    assert (role_of_named == named) == (label == "entailment"), texts


def test_questions_are_answered_by_sentences_in_which_the_named_one_has_the_other_role(glue):
    for row in all_rows(glue, "QNLI"):
        check_qnli(row.texts, row.label)


# --- RTE ------------------------------------------------------------------------------------------


def is_quantified(text):
    return text.split()[0] in ("every", "all", "no")


def check_rte(texts, label):
    """Label "entailment": the same roles, or a part of the kind."""
    known, said = texts
    if not is_quantified(known):
        assert (follows(known, said) == "entailment") == (label == "entailment"), texts
        return

    # Is the noun of the second sentence of the kind that the first one speaks about?
    noun = next(NOUN_FORMS[word] for word in words_of(said) if word in NOUN_FORMS)
    kind = "animal"
    if noun.kind == "person":
        kind = "person"
    kind_of_all = "animal"
    if {"person", "people"} & {*words_of(known)}:
        kind_of_all = "person"
    assert (kind == kind_of_all) == (label == "entailment"), texts
    assert ("not" in said) == known.startswith("no "), texts


def test_entailment_is_of_the_same_roles_or_of_a_part_of_the_kind(glue):
    seen = Counter()
    for row in all_rows(glue, "RTE"):
        check_rte(row.texts, row.label)
        seen[is_quantified(row.texts[0])] += 1
    assert min(seen[True], seen[False]) > 500


# --- WNLI -----------------------------------------------------------------------------------------


def check_wnli(texts, label):
    """Label "1": the pronoun is the one who has the reason.

    If a state is the reason, it is the state of the agent. If an event is the reason, its pronoun
    is the one whose state it explains.
    """
    known, said = texts
    effect, reason = known.strip(".").split(" because ")
    reason_has_noun = any(word in NOUN_FORMS for word in words_of(reason))

    if reason_has_noun:
        # the hen was hurt because the fox bit it
        whose = next(word for word in words_of(effect) if word in NOUN_FORMS)
        resolved = re.sub(r"\b(it|they|them)\b", f"the {whose}", reason)
        is_right = deed(said) == deed(resolved)
    else:
        # the fox bit the hen because it was angry
        named = next(word for word in words_of(said) if word in NOUN_FORMS)
        _, agent, _ = deed(effect)
        is_right = named == agent
    assert is_right == (label == "1"), texts


def test_pronouns_mean_the_one_who_has_the_reason(glue):
    for row in all_rows(glue, "WNLI"):
        check_wnli(row.texts, row.label)


# --- SST-2 ----------------------------------------------------------------------------------------


def test_sentiment_is_the_word_s_own_turned_by_not_or_nobody(glue):
    """In rows of one statement."""
    good = {"like", "likes", "liked", "enjoy", "enjoys", "enjoyed"}
    good |= {"good", "funny", "lovely", "great"}
    checked = 0
    for row in all_rows(glue, "SST-2"):
        (text,) = row.texts
        words = {*words_of(text)}
        if "but" in words or text.count(".") != 1:
            continue

        # one word for the opinion, and perhaps one that turns it
        has_good_word = bool(words & good)
        is_turned = bool(words & {"not", "nobody"})
        assert (has_good_word != is_turned) == (row.label == "1"), text
        checked += 1
    assert checked > 1000


# --- STS-B ----------------------------------------------------------------------------------------

VERB_FORMS = {}
for _verb in language.EVENT_VERBS:
    for _form in (_verb.base, _verb.third, _verb.past):
        VERB_FORMS[_form] = _verb.base


def parts_of(text):
    """Subject, verb, object, tense and negation of an event in the active."""
    words = words_of(text)
    first_noun = next(i for i, word in enumerate(words) if word in NOUN_FORMS)
    subject = words[: first_noun + 1]

    # the verb, after the subject
    verb = next(word for word in words[first_noun + 1 :] if word in VERB_FORMS)
    base = VERB_FORMS[verb]
    object_words = words[words.index(verb) + 1 :]

    # tense: "did not chase", or a form that is neither the base nor ends in s
    negated = "not" in words
    if negated:
        past = "did" in words
    else:
        past = verb != base and not verb.endswith("s")
    return [subject, base, object_words, past, negated]


def test_similarity_counts_what_two_events_have_in_common(glue):
    """In rows in the active: subject, verb, object, tense, negation."""
    checked = 0
    for row in all_rows(glue, "STS-B"):
        if any(" by " in text for text in row.texts):
            continue
        first, second = [parts_of(text) for text in row.texts]
        equal = [a == b for a, b in zip(first, second, strict=True)]
        assert equal.count(True) == float(row.label), row.texts
        checked += 1
    assert checked > 300


# --- CoLA and minimal pairs -----------------------------------------------------------------------


def test_each_phenomenon_is_tested_as_often_by_correct_as_by_wrong_sentences(glue):
    _, written = glue
    for rows in written["CoLA"].values():
        found = Counter((row.phenomenon, row.label) for row in rows)
        assert {phenomenon for phenomenon, _ in found} == set(PHENOMENA)
        assert len(PHENOMENA) == 10
        assert len(found) == 20
        assert len(set(found.values())) == 1


def check_agreement(text, is_right):
    """A plural subject has the base form of a verb, a singular one the form in -s."""
    plurals = {noun.plural for noun in language.NOUNS}
    bases = {verb.base for verb in language.EVENT_VERBS}
    thirds = {verb.third for verb in language.EVENT_VERBS}

    words = words_of(text)
    i = next(i for i, word in enumerate(words) if word in bases | thirds)
    subject_is_plural = words[i - 1] in plurals
    verb_is_plural = words[i] in bases
    assert (subject_is_plural == verb_is_plural) == is_right, text


def test_wrong_agreement_is_one_that_the_corpus_never_has(glue):
    for row in all_rows(glue, "CoLA"):
        if row.phenomenon == "agreement":
            check_agreement(row.texts[0], row.label == "1")


def noun_named(singular):
    return next(noun for noun in language.NOUNS if noun.singular == singular)


CAST = Cast(
    subject=language.Entity(noun_named("dog")),
    other=language.Entity(noun_named("cat"), is_plural=True),
    verb=toy_glue.verb_named("chase"),
    first_form=True,
    preposition="near",
    mood="tired",
    man="tom",
    washer=("anna", "herself"),
    neighbour=("the cats", "themselves"),
    size="small",
    last_adjective="black",
    then=toy_glue.verb_named("follow"),
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


@pytest.mark.parametrize("phenomenon", PHENOMENA)
def test_minimal_pairs_are_different_pairs_that_depend_only_on_the_seed(phenomenon):
    pairs = minimal_pairs(phenomenon, 50)
    assert len(set(pairs)) == 50
    assert minimal_pairs(phenomenon, 20) == pairs[:20]
    assert minimal_pairs(phenomenon, 50, seed=1) != pairs
    for good, bad in pairs:
        assert good != bad
        assert re.fullmatch(r"[a-z]+( [a-z]+)+[.?]", good)
        assert re.fullmatch(r"[a-z]+( [a-z]+)+[.?]", bad)


@pytest.mark.parametrize("phenomenon", PHENOMENA)
def test_the_two_sentences_of_a_minimal_pair_have_the_same_number_of_words(phenomenon):
    for good, bad in minimal_pairs(phenomenon, 50):
        assert len(words_of(good)) == len(words_of(bad))


def test_minimal_pairs_of_agreement_have_the_right_verb_in_the_first_sentence():
    for good, bad in minimal_pairs("agreement", 100):
        check_agreement(good, is_right=True)
        check_agreement(bad, is_right=False)


def test_a_phenomenon_that_does_not_exist_is_refused_by_name():
    with pytest.raises(ValueError, match="unknown phenomenon 'spelling'.*agreement"):
        minimal_pairs("spelling", 1)


def test_words_trade_places_everywhere_at_once_and_only_as_complete_words():
    text = "the dog that bit the dogs was hurt , and the cat was not ."
    exchanged_text = toy_glue.trade_places(text, ("the dog", "the cat"), ("bit", "hurt"))
    assert exchanged_text == "the cat that hurt the dogs was bit , and the dog was not ."


# --- What the documentation says ------------------------------------------------------------------


def example_rows(task, labels):
    """The rows that the docstring of a task's function shows: (texts, label)."""
    found = []
    for line in task.__doc__.splitlines():
        fields = re.split(r" {4,}", line.strip())
        if fields[0] in labels:
            found.append((fields[1:], fields[0]))
    return found


# fmt: off
@pytest.mark.parametrize("name, check", [
    ("MRPC", check_paraphrase),
    ("QQP",  check_paraphrase),
    ("MNLI", check_mnli),
    ("QNLI", check_qnli),
    ("RTE",  check_rte),
    ("WNLI", check_wnli),
])
# fmt: on
def test_every_task_shows_one_correct_row_of_each_label(name, check):
    examples = example_rows(toy_glue.TASKS[name], LABELS[name])
    assert sorted(label for _, label in examples) == sorted(LABELS[name])
    for texts, label in examples:
        check(texts, label)


@pytest.mark.parametrize("name", ["CoLA", "SST-2", "STS-B"])
def test_every_other_task_shows_a_row_of_each_label(name):
    examples = example_rows(toy_glue.TASKS[name], LABELS[name])
    assert sorted(label for _, label in examples) == sorted(LABELS[name])
