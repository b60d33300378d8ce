"""toy.py: the same bytes everywhere, and a grammar checked by rules of this file's own."""

import hashlib
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import tasks
import toy
from toy import Entity, Event, State

ROOT = Path(__file__).parent.parent
SHA256_OF_2000 = "9ff0d833c69caef548c5d9267a34adc0b744c15b535d71f1d21fa0e8538a9e57"

# The checker's own lexicon: enough to take a statement apart from left to right.
DETERMINERS = set("the a an some two three many every all no".split())
SIZES, AGES = set("small big tall short".split()), set("old young new".split())
COLOURS = set("black white brown grey red yellow".split())
ADJECTIVES = SIZES | AGES | COLOURS
WOMEN, MEN = set("anna maria emma ruth".split()), set("tom david omar paul".split())
JOBS = set("child farmer doctor teacher baker sailor nurse pilot singer person".split())
PLURALS = {"mice", "geese", "children", "people", "they"}  # and whatever ends in s
SINGULAR_VERBS, PLURAL_VERBS = set("is was does has".split()), set("are were do have".split())
PAST = set("did had fed woke bit slept ate hid drank ran gave stole sold bought".split())  # and -ed
NOUNS = {form for nouns in toy.NOUNS.values() for noun in nouns for form in noun[:2]} | {"animal", "bird", "animals",
         "birds", "person", "people", "tool", "tools", "flower", "flowers", "fruit", "fruits"}


def is_plural(noun):
    return noun in PLURALS or noun.endswith("s")


def number_of(verb):
    """True for plural, False for singular, None for a past tense that shows neither."""
    if verb in SINGULAR_VERBS | PLURAL_VERBS:
        return verb in PLURAL_VERBS
    return None if verb in PAST or verb.endswith("ed") and verb != "feed" else not verb.endswith("s")


def noun_phrase(words, i):
    """Head noun of the phrase that begins at words[i], and where what follows it begins."""
    while words[i] in DETERMINERS | ADJECTIVES:
        i += 1
    return words[i], i + 1


def verbs_of(words):
    """The (noun, verb) pairs of a statement that must agree, and its attractor, the noun in the subject's modifier."""
    head, i = noun_phrase(words, 0)
    pairs, attractor = [], None
    if words[i] in ("near", "behind", "beside", "with", "in"):
        attractor, i = noun_phrase(words, i + 1)
    elif words[i] in ("that", "who"):
        verb = words[i + 1]
        if verb in DETERMINERS | WOMEN | MEN:  # the cat that the dogs chased
            attractor, i = noun_phrase(words, i + 1)
            pairs, i = [(attractor, words[i])], i + 1
        else:  # the cat that chased the dogs, the cat that was chased by the dogs
            pairs = [(head, verb)]
            attractor, i = noun_phrase(words, i + (4 if words[i + 3] == "by" else 2))
    return pairs + [(head, words[i])], attractor


def statements(pairs):
    """All clauses of the text but questions, their answers by yes or no, and lists of two."""
    for words in itertools.chain(*pairs):
        if words[-1] == "." and words[1] != "," and "and" not in words:
            text = " ".join(words)
            yield from (part.split() for part in re.split(" because | but ", text))


@pytest.fixture(scope="module")
def documents():
    return list(toy.documents(seed=11, sentences=20_000))


@pytest.fixture(scope="module")
def pairs(documents):
    return [(document[i].split(), document[i + 1].split())
            for document in documents for i in range(0, len(document), 2)]


def digest(seed, sentences):
    return hashlib.sha256("\n".join(itertools.chain(*toy.documents(seed, sentences))).encode()).hexdigest()


# ---- The same everywhere -------------------------------------------------------------------------------------------


def test_the_text_has_the_published_hash():
    assert digest(0, 2000) == SHA256_OF_2000


@pytest.mark.parametrize("hash_seed", ["0", "1", "4294967295"])
def test_a_fresh_interpreter_with_another_hash_seed_generates_the_same_text(hash_seed):
    program = "import itertools, sys, toy; sys.stdout.write('|'.join(itertools.chain(*toy.documents(7, 500))))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, encoding="utf-8",
                         env=os.environ | {"PYTHONHASHSEED": hash_seed}, check=True)
    assert run.stdout == "|".join(itertools.chain(*toy.documents(7, 500)))


def test_two_calls_agree_and_two_seeds_do_not():
    assert digest(3, 500) == digest(3, 500)
    assert digest(3, 500) != digest(4, 500)


def test_a_longer_text_begins_with_the_shorter_one():
    short, long = list(toy.documents(5, 300)), list(toy.documents(5, 900))
    assert long[:len(short)] == short and len(long) > len(short)


def test_the_command_line_prints_the_documents():
    run = subprocess.run([sys.executable, "toy.py", "--seed", "2", "--sentences", "30"], cwd=ROOT, capture_output=True,
                         text=True, encoding="utf-8", check=True)
    assert run.stdout.strip().split("\n\n") == ["\n".join(document) for document in toy.documents(2, 30)]


# ---- Form ----------------------------------------------------------------------------------------------------------


def test_documents_hold_four_six_or_eight_sentences_and_the_text_as_many_as_asked(documents):
    assert {len(document) for document in documents} == {4, 6, 8}
    assert 20_000 <= sum(map(len, documents)) < 20_000 + 8


def test_sentences_are_lower_case_words_between_single_blanks_that_end_in_a_mark(documents):
    form = re.compile(r"[a-z]+( ,)?( [a-z]+( ,)?)+ [.?]")
    assert not [sentence for document in documents for sentence in document if not form.fullmatch(sentence)]


def test_the_vocabulary_has_between_150_and_300_words_and_none_is_rare():
    sentences = itertools.chain(*toy.documents(0, 50_000))
    counts = Counter(word for sentence in sentences for word in sentence.split())
    assert 150 <= len(counts) <= 300
    assert min(counts.values()) >= 5


def test_no_document_draws_a_noun_in_two_of_its_pairs(documents):
    forms = {form: noun.singular for nouns in toy.NOUNS.values() for noun in nouns for form in noun[:2] if form}
    for document in documents:
        used = [{forms[word] for sentence in document[i:i + 2] for word in sentence.split() if word in forms}
                for i in range(0, len(document), 2)]
        assert sum(map(len, used)) == len(set().union(*used)), document


# ---- Grammar -------------------------------------------------------------------------------------------------------


def test_verbs_agree_with_their_own_noun_and_not_with_the_nearest(pairs):
    tempted = 0
    for words in statements(pairs):
        agreeing, attractor = verbs_of(words)
        for noun, verb in agreeing:
            assert number_of(verb) in (None, is_plural(noun)), " ".join(words)
        noun, verb = agreeing[-1]
        tempted += attractor is not None and is_plural(attractor) != is_plural(noun) and number_of(verb) is not None
    assert tempted > 500  # the nearest noun would have been wrong


def test_determiners_agree_with_their_noun(documents):
    singular, plural = {"a", "an", "every"}, {"some", "two", "three", "many", "all"}
    for sentence in itertools.chain(*documents):
        words = sentence.split()
        for i, word in enumerate(words):
            if word in singular | plural:
                assert is_plural(noun_phrase(words, i)[0]) == (word in plural), sentence
            if word in ("a", "an"):
                assert (word == "an") == (words[i + 1][0] in "aeiou"), sentence


def test_adjectives_stand_in_the_order_size_age_colour(documents):
    rank = {word: i for i, words in enumerate((SIZES, AGES, COLOURS)) for word in words}
    seen = set()
    for sentence in itertools.chain(*documents):
        for first, second in itertools.pairwise(sentence.split()):
            if first in rank and second in rank:
                seen.add((rank[first], rank[second]))
    assert seen == {(0, 1), (0, 2), (1, 2)}


def test_pronouns_have_an_antecedent_of_their_number_and_gender_before_them(pairs):
    fits = {"they": is_plural, "she": WOMEN.__contains__, "he": MEN.__contains__,
            "it": lambda noun: not is_plural(noun) and noun not in WOMEN | MEN | JOBS}
    fits |= {"them": fits["they"], "her": fits["she"], "him": fits["he"]}
    seen = set()
    for first, second in pairs:
        for words, before in ((first, 0), (second, len(first))):
            for i, word in enumerate(words):
                if word in fits:
                    nouns = [noun for noun in (first + second)[:before + i] if noun in NOUNS]
                    assert any(map(fits[word], nouns)), (first, second)
                    seen.add(word)
    assert seen == set(fits)


def test_reflexives_agree_with_their_subject(pairs):
    owner = {"itself": "it", "themselves": "they", "herself": "she", "himself": "he"}
    seen = set()
    for words in statements(pairs):
        if words[-2] in owner:
            subject, reflexive = noun_phrase(words, 0)[0], words[-2]
            kind = "she" if subject in WOMEN else "he" if subject in MEN else "they" if is_plural(subject) else "it"
            assert owner[reflexive] == (subject if subject in owner.values() else kind), " ".join(words)
            seen.add(reflexive)
    assert seen == set(owner)


# ---- Meaning -------------------------------------------------------------------------------------------------------

OUTCOMES = {  # what the doer is, or does, and what the one it is done to
    "chase chases chased": ("tired sleep sleeps slept", "afraid hide hides hid"),
    "feed feeds fed": ("kind", "full hungry"),
    "follow follows followed": ("behind", "ahead"),
    "bite bites bit bitten": ("angry", "hurt"),
}


def test_what_follows_depends_on_who_did_it_to_whom_in_actives_and_passives_alike(pairs):
    checked = {"active": 0, "passive": 0}
    for first, second in pairs:
        words = [word for word in first if word not in ("do", "does", "did", "not")]
        subject, i = noun_phrase(words, 0)
        voice = "passive" if "by" in words else "active"
        verb = words[i + 1] if voice == "passive" else words[i]
        states = next((states for forms, states in OUTCOMES.items() if verb in forms.split()), None)
        if states is None or first[-1] == "?" or {"that", "who", "because"} & {*first, *second}:
            continue
        other, end = noun_phrase(words, i + (3 if voice == "passive" else 1))
        agent, patient = (other, subject) if voice == "passive" else (subject, other)
        assert words[end:] == ["."]
        state = second[-2]
        expected = agent if state in states[0].split() else patient
        assert state in " ".join(states).split(), second
        named = noun_phrase(second, 0)[0]
        if named in NOUNS - {"animal", "animals", "bird", "birds", "person", "people"}:
            assert named == expected, (first, second)
        else:
            assert is_plural(named) == is_plural(expected), (first, second)
        assert ("not" in first) == ("not" in second) or state == "hungry", (first, second)
        checked[voice] += 1
    assert min(checked.values()) > 100


def test_a_passive_swaps_the_nouns_and_keeps_the_roles():
    dog, cats = Entity(toy.NOUNS["animal"][0]), Entity(toy.NOUNS["animal"][1], plural=True)
    for verb in toy.EVENTS:
        event = Event(dog, verb, cats, past=True)
        assert toy.clause(event) == f"the dog {verb.past} the cats"
        assert toy.clause(toy.passive(event)) == f"the cats were {verb.participle} by the dog"
        assert toy.clause(toy.passive(event._replace(subject=cats, object=dog, past=False))) == (
            f"the dog is {verb.participle} by the cats")
        assert toy.outcomes(event) == ((cats, verb.patient_state), (dog, verb.agent_state))


def test_opinions_in_a_pair_agree_once_negations_are_counted(pairs):
    good = set("good funny lovely great like likes liked enjoy enjoys enjoyed".split())
    bad = set("bad dull boring awful hate hates hated".split())

    def favourable(words):
        return (len(good & {*words}) - len({"not", "nobody"} & {*words})) % 2 == 1

    checked = 0
    for first, second in pairs:
        if (good | bad) & {*first} and (good | bad) & {*second}:
            if "but" in first:  # the soup was not good but the cake was: the second speaks of the soup
                first = first[:first.index("but")]
            assert favourable(first) == favourable(second), (first, second)
            checked += 1
    assert checked > 500


def test_yes_and_no_take_up_the_question_s_auxiliary(pairs):
    answers = [(first, second) for first, second in pairs if second[1] == ","]
    assert len(answers) > 300
    for first, second in answers:
        assert first[-1] == "?" and (second[0] == "no") == ("not" in second)
        assert first[0] == second[-3 if second[0] == "no" else -2], (first, second)


def test_the_same_event_makes_statements_questions_and_relative_clauses():
    dogs, cat = Entity(toy.NOUNS["animal"][0], plural=True), Entity(toy.NOUNS["animal"][1])
    event = Event(cat, toy.EVENTS[0], dogs)
    assert toy.clause(event._replace(negated=True)) == "the cat does not chase the dogs"
    assert toy.question(event) == "does the cat chase the dogs ?"
    assert toy.question(event, "subject") == "who chases the dogs ?"
    assert toy.question(event, "object") == "who does the cat chase ?"
    assert toy.question(toy.passive(event), "subject") == "who is chased by the cat ?"
    assert toy.short_answer(event._replace(negated=True)) == "the cat does not"
    assert toy.phrase(dogs._replace(modifier=event._replace(object=None))) == "the dogs that the cat chases"
    assert toy.phrase(dogs._replace(modifier=toy.passive(event)._replace(subject=None))) == (
        "the dogs that are chased by the cat")
    chaser = cat._replace(modifier=event._replace(subject=None, past=True))
    assert toy.clause(State(chaser, "tired", past=True)) == "the cat that chased the dogs was tired"


def test_chasers_of_several_are_tired_in_the_singular(documents):
    sentences = [sentence for document in documents for sentence in document]
    seen = {match[1] for sentence in sentences
            if (match := re.fullmatch(r"the \w+ that chased the \w+s (\w+) tired \.", sentence))}
    assert "was" in seen


# --- toy GLUE ---

def tree_sha256(folder):
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.tsv"), key=lambda path: path.relative_to(folder).as_posix()):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """(the folder of the files, {task: {split: [(texts, label, phenomenon)]}})"""
    folder = tmp_path_factory.mktemp("toy") / "glue"
    return folder, toy.write_glue(folder)


def all_rows(glue, name):
    return [row for rows in glue[1][name].values() for row in rows]


def test_glue_files_are_the_same_bytes_everywhere_and_another_seed_gives_others(glue, tmp_path):
    assert tree_sha256(glue[0]) == "1b3409b8b13bb865c147a2e87f216b1b89784b650652b9f4d0721ae6e9eb8055"
    toy.write_glue(tmp_path / "again")
    toy.write_glue(tmp_path / "other", seed=1)
    assert tree_sha256(tmp_path / "again") == tree_sha256(glue[0]) != tree_sha256(tmp_path / "other")


@pytest.mark.parametrize("name", tasks.TASKS)
def test_glue_files_read_as_glue_s_own_with_every_row_and_label(glue, name):
    folder, made = glue
    task = replace(tasks.TASKS[name], rows=toy.GLUE_ROWS[tasks.TASKS[name].folder])
    assert list(task.rows) == list(tasks.TASKS[name].rows)
    for split in task.rows:
        examples, rows = tasks.read_task(task, folder, split), made[task.folder][split]
        texts = zip(examples.a, examples.b) if examples.b else zip(examples.a)
        assert [list(row) for row in texts] == [list(texts) for texts, *_ in rows]
        if examples.labels:
            assert examples.labels == [tasks.read_label(label, task) for _, label, _ in rows]
        assert examples.kinds == ([kind for *_, kind in rows] if name == "cola" and examples.labels else None)


@pytest.mark.parametrize("name", toy.GLUE_ROWS)
def test_no_texts_stand_in_two_rows_of_a_task_so_none_of_dev_or_test_in_train(glue, name):
    texts = [frozenset(texts) for texts, *_ in all_rows(glue, name)]  # nor the other way round
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("name", toy.GLUE_ROWS)
def test_labels_come_in_equal_parts_in_every_split(glue, name):
    for split, count in toy.GLUE_ROWS[name].items():
        found = Counter(label for _, label, _ in glue[1][name][split])
        assert sum(found.values()) == count and max(found.values()) - min(found.values()) <= 1


def test_every_word_of_the_tasks_is_a_word_of_the_corpus(glue):
    known = {word for document in toy.documents(0, 100_000) for sentence in document for word in sentence.split()}
    found = {word for name in glue[1] for texts, *_ in all_rows(glue, name) for text in texts
             for word in re.findall(r"\w+", text)}
    assert found <= known and len(found) > 150


def test_each_phenomenon_is_tested_as_often_rightly_as_wrongly(glue):
    for split, rows in glue[1]["CoLA"].items():
        found = Counter((kind, label) for _, label, kind in rows)
        assert len({kind for kind, _ in found}) == 10 and len(found) == 20 and len(set(found.values())) == 1


@pytest.mark.parametrize("name, best", [*((name, 1 / 2) for name in (*toy.ORDERED, "RTE")), ("MNLI", 2 / 3)])
def test_where_order_or_kinds_of_kinds_decide_a_bag_of_words_stays_near_chance(glue, name, best):
    """Within four standard deviations of guessing. Half of RTE asks what is a kind of what, the other half for order. Whether a "not" of MNLI's is one too many is in the words; of whom a
    state is said is not: 2 / 3 is the best that word counts can do."""
    splits = glue[1][name]
    for split in splits:
        if split.startswith("dev"):
            majority, score = toy.baselines(splits["train"], splits[split])
            assert majority == pytest.approx(1 / 2 if name != "MNLI" else 1 / 3, abs=1e-9)
            assert score < best + 4 * (best * (1 - best) / len(splits[split])) ** 0.5


def test_a_bag_of_words_tells_more_than_chance_where_words_decide(glue):
    assert toy.baselines(glue[1]["SST-2"]["train"], glue[1]["SST-2"]["dev"])[1] > 0.6
    assert toy.baselines(glue[1]["STS-B"]["train"], glue[1]["STS-B"]["dev"])[1] > 0.5  # Pearson's r


NOUN_FORMS = {form for nouns in toy.NOUNS.values() for noun in nouns for form in (noun.singular, noun.plural)} - {""}
DEEDS = {form: base for base, *forms in map(str.split, (
    "chase chases chased", "help helps helped", "feed feeds fed", "scare scares scared", "bite bites bit bitten"))
    for form in (base, *forms)}
VERB_FORMS = {form: verb.base for verb in toy.EVENTS for form in (verb.base, verb.third, verb.past)}


def deed(text):
    """(verb, who acts, on whom) of the one event between two nouns, told, asked or in a relative clause."""
    words = re.findall(r"\w+", text)
    first, second = (word for word in words if word in NOUN_FORMS)
    suffered = "by" in words or re.search(r"\b(that|who) the\b", text)  # the cat that the dog chased
    verb = next(DEEDS[word] for word in words if word in DEEDS)
    return verb, *((second, first) if suffered else (first, second))


def exchanged(told):
    return told[0], told[2], told[1]


@pytest.mark.parametrize("name", ["MRPC", "QQP"])
def test_paraphrases_tell_the_same_verb_and_roles_and_others_the_roles_exchanged(glue, name):
    for (a, b), label, _ in all_rows(glue, name):
        assert deed(b) == (deed(a) if label == "1" else exchanged(deed(a))), (a, b)


DOERS, SUFFERERS = (set(words.split()) for words in (  # the states that follow, and what one does in them
    "tired sleep sleeps slept kind loud quiet angry", "afraid hide hides hid thankful full hungry hurt"))


def follows(known, said):
    """What a text says of another about its event: as MNLI's labels. The opposite of a state is its negation."""
    verb, *both = deed(known)
    words = re.findall(r"\w+", said)
    nouns = [word for word in words if word in NOUN_FORMS]
    denied = ("not" in words) != bool({"quiet", "hungry"} & {*words})
    if deed(said) == (verb, *both) if len(nouns) == 2 else nouns[0] == both[bool(SUFFERERS & {*words})]:
        return "contradiction" if denied else "entailment"
    assert len(nouns) == 1 or deed(said) == (verb, *both[::-1]), (known, said)
    assert len(nouns) == 2 or (DOERS | SUFFERERS) & {*words}, (known, said)
    return "neutral"


def test_what_is_entailed_or_contradicted_follows_from_the_roles_and_all_else_is_neutral(glue):
    for split, rows in glue[1]["MNLI"].items():
        for (known, said), label, _ in rows if split != "diagnostic" else ():
            assert follows(known, said) == label, (known, said)


def test_mnli_is_told_in_the_past_but_for_its_mismatched_genre_in_the_present(glue):
    for split, rows in glue[1]["MNLI"].items():
        tenses = {bool({"is", "are", "does", "do"} & {*text.strip(".").split()}) for texts, *_ in rows for text in texts
                  if {"is", "are", "does", "do", "was", "were", "did"} & {*text.strip(".").split()}}
        assert tenses == ({True, False} if split == "diagnostic" else {split.endswith("mismatched")})


def test_questions_are_answered_by_sentences_with_the_named_one_in_the_role_that_is_not_asked_for(glue):
    for (asked, known), label, _ in all_rows(glue, "QNLI"):
        words = asked.strip("?").split()
        named = next(word for word in words if word in NOUN_FORMS)
        suffers = words[-1] == "by" or words[1] in DEEDS  # who was it chased by? who chased it?
        assert (deed(known)[1 + suffers] == named) == (label == "entailment"), (asked, known)


def test_entailment_is_of_the_same_roles_or_of_a_part_of_the_kind(glue):
    kinds = {form: "person" if kind == "person" else "animal" for kind in ("animal", "bird", "person")
             for noun in toy.NOUNS[kind] for form in noun[:2]}
    seen = Counter()
    for (known, said), label, _ in all_rows(glue, "RTE"):
        quantified = known.split()[0] in ("every", "all", "no")
        if quantified:
            whole = "person" if {"person", "people"} & {*known.split()} else "animal"
            true = whole == kinds[next(word for word in said.split() if word in kinds)]
            assert ("not" in said) == known.startswith("no ")
        else:
            true = follows(known, said) == "entailment"
        assert true == (label == "entailment"), (known, said)
        seen[quantified] += 1
    assert min(seen.values()) > 500


def test_pronouns_stand_for_who_has_the_reason(glue):
    """Where a state is the reason, it is the doer's; where a deed is, its pronoun is the one of the state before it."""
    for (known, said), label, _ in all_rows(glue, "WNLI"):
        state, reason = known.strip(".").split(" because ")
        named = [word for word in reason.split() if word in NOUN_FORMS]
        if named:
            whose = next(word for word in state.split() if word in NOUN_FORMS)
            true = deed(said) == deed(re.sub(r"\b(it|they|them)\b", f"the {whose}", reason))
        else:
            true = next(word for word in said.split() if word in NOUN_FORMS) == deed(state)[1]
        assert true == (label == "1"), (known, said)


def test_unacceptable_agreement_is_one_that_the_corpus_never_has(glue):
    """A plural subject and the verb's base form, a singular one and its -s form, exactly where the label says so."""
    plurals = {noun.plural for nouns in toy.NOUNS.values() for noun in nouns}
    bases, thirds = {verb.base for verb in toy.EVENTS}, {verb.third for verb in toy.EVENTS}
    for (text,), label, kind in all_rows(glue, "CoLA"):
        if kind == "agreement":
            words = text.strip(".").split()
            verb = next(i for i, word in enumerate(words) if word in bases | thirds)
            assert ((words[verb - 1] in plurals) == (words[verb] in bases)) == (label == "1"), text


def test_sentiment_is_the_word_s_own_turned_by_not_or_nobody(glue):
    """Of rows of one statement."""
    good, checked = {"like", "likes", "liked", "enjoy", "enjoys", "enjoyed", *toy.OPINIONS[0]}, 0
    for (text,), label, _ in all_rows(glue, "SST-2"):
        words = text.strip(".").split()
        if "but" not in words and text.count(".") == 1:
            assert (any(word in good for word in words) != bool({"not", "nobody"} & set(words))) == (label == "1"), text
            checked += 1
    assert checked > 1000


def test_similarity_counts_what_two_events_share(glue):
    """Of rows in the active and told of the same five parts: subject, verb, object, tense, negation."""
    checked = 0
    for texts, label, _ in all_rows(glue, "STS-B"):
        if not any(" by " in text for text in texts):
            shared = []
            for text in texts:
                words = text.strip(".").split()
                (first, second), negated = (i for i, word in enumerate(words) if word in NOUN_FORMS), "not" in words
                verb = next(word for word in words[first + 1:] if word in VERB_FORMS)
                past = "did" in words or not negated and VERB_FORMS[verb] != verb and not verb.endswith("s")
                shared.append((words[:first + 1], VERB_FORMS[verb], words[words.index(verb) + 1:], past, negated))
            assert sum(a == b for a, b in zip(*shared)) == float(label), texts
            checked += 1
    assert checked > 300


def test_the_command_writes_the_files_and_prints_the_baselines(tmp_path):
    command = [sys.executable, toy.__file__, "--glue", tmp_path / "g"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == sorted(
        [*toy.GLUE_ROWS, "MNLI"], key=list(toy.GLUE_ROWS).index)
    assert "bag of words" in done.stdout and (tmp_path / "g" / "diagnostic" / "diagnostic.tsv").is_file()
    again = subprocess.run(command, capture_output=True, text=True)  # what lies there might be GLUE's own
    assert again.returncode == 2 and again.stderr.startswith("toy.py: ") and again.stderr.count("\n") == 1
