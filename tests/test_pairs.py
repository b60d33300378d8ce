"""lab/pairs.py: scores equal to those of a scorer written from the definition; tables by hand."""

import hashlib
import http.server
import io
import json
import math
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import data
import toy.pairs
from lab import pairs
from model import BertConfig, BertForMaskedLM, save_run
from model_helpers import SMALL
from support import blimp, pair_results
from support.blimp import Paradigm
from support.commands import UserError
from toy import language

# where `python -m lab.pairs RUN --data blimp` keeps BLiMP
BLIMP = Path(__file__).parent.parent / "cache" / "downloads" / "BLiMP.zip"


# --- Tokenizers and models ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy_tokenizer():
    """One piece per word, as in a run on the toy language."""
    sample = []
    for document in language.documents(sentences=3_000):
        sample.extend(language.spell(sentence) for sentence in document)
    return data.train_tokenizer(sample, 1_000, print)


@pytest.fixture(scope="module")
def piece_tokenizer():
    """A vocabulary of 60: most words are several pieces."""
    sample = []
    for document in language.documents(sentences=500):
        sample.extend(language.spell(sentence) for sentence in document)
    return data.train_tokenizer(sample, 60, print)


def random_model(tokenizer, variant="composite", seed=0):
    """A small model whose weights are so large that its scores differ clearly."""
    torch.manual_seed(seed)
    config = BertConfig(
        variant=variant,
        vocab_size=tokenizer.get_vocab_size(),
        **{**SMALL, "max_length": 64},
    )
    model = BertForMaskedLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data *= 4
    return model


def some_pairs(count=4):
    """A few pairs of every paradigm: [(context, good, bad)]."""
    found = []
    for name in toy.pairs.PARADIGMS:
        found.extend(toy.pairs.zero_shot_pairs(name, count))
    return found


# --- A scorer written from the definition ---------------------------------------------------------


def log_p(model, ids, position, target):
    """log p(target) at one position of one row, by the plain forward pass of the model."""
    with torch.inference_mode():
        logits = model(torch.tensor([ids]))[0, position]
    return logits.double().log_softmax(0)[target].item()


def words_of(tokenizer, sentence):
    """The pieces of a sentence, grouped into words by their letters: [[id, id], [id], ...]."""
    encoding = tokenizer.encode(sentence, add_special_tokens=False)
    normalised = tokenizer.normalizer.normalize_str(sentence)
    forms = tokenizer.pre_tokenizer.pre_tokenize_str(normalised)

    words = []
    pieces = list(zip(encoding.tokens, encoding.ids, strict=True))
    for form, _ in forms:
        text = ""
        word = []
        while text != form:
            piece, piece_id = pieces.pop(0)
            text += piece
            word.append(piece_id)
        words.append(word)
    assert not pieces
    return words


def score_by_definition(model, tokenizer, context, sentence):
    """(pll, whole_word) of a sentence: one mask at a time, the model called on one row."""
    cls, sep, mask = 2, 3, 4
    row = [cls]
    if context:
        row += tokenizer.encode(context, add_special_tokens=False).ids + [sep]
    words = words_of(tokenizer, sentence)
    place = len(row)
    for word in words:
        row += word
    row.append(sep)

    pll = 0.0
    whole_word = 0.0
    for word in words:
        for i, target in enumerate(word):
            masked = list(row)
            masked[place + i] = mask
            pll += log_p(model, masked, place + i, target)
            for j in range(i, len(word)):
                masked[place + j] = mask
            whole_word += log_p(model, masked, place + i, target)
        place += len(word)
    return pll, whole_word


@pytest.mark.parametrize("variant", ["composite", "convbert"])
@pytest.mark.parametrize("name", ["toy_tokenizer", "piece_tokenizer"])
def test_scores_are_those_of_the_definition(request, name, variant):
    tokenizer = request.getfixturevalue(name)
    model = random_model(tokenizer, variant)
    tested = some_pairs(2)[::9]
    scores = pairs.score_pairs(model, tokenizer, tested, tokens_per_batch=300)

    expected = []
    for context, good, bad in tested:
        for sentence in (good, bad):
            expected.append(score_by_definition(model, tokenizer, context, sentence))
    expected = np.array(expected).reshape(len(tested), 2, 2)  # (pairs, good or bad, score)
    for column, score in enumerate(("pll", "whole_word")):
        found = np.stack(scores[score], axis=1)  # (pairs, good or bad)
        assert np.abs(found - expected[:, :, column]).max() < 1e-4
    assert np.abs(expected).max() > 20

    # The two scores differ if and only if a word has several pieces.
    is_same = np.abs(expected[..., 0] - expected[..., 1]).max() < 1e-9
    assert is_same == (name == "toy_tokenizer")


@pytest.mark.skipif(not BLIMP.is_file(), reason="BLiMP has not been downloaded")
def test_scores_of_500_pairs_of_blimp_are_those_of_the_definition():
    """For those who have it: python -m lab.pairs RUN --data blimp. It takes about a minute."""
    every_pair = [
        pair for paradigm in blimp.read_blimp(BLIMP.parent.parent) for pair in paradigm.pairs
    ]
    tested = every_pair[:: len(every_pair) // 500][:500]
    sentences = [sentence for _, good, bad in tested for sentence in (good, bad)]
    tokenizer = data.train_tokenizer(sentences, 500, print)
    model = random_model(tokenizer)
    scores = pairs.score_pairs(model, tokenizer, tested, tokens_per_batch=2048)

    expected = [score_by_definition(model, tokenizer, "", sentence) for sentence in sentences]
    expected = np.array(expected).reshape(500, 2, 2)  # (pairs, good or bad, score)
    for column, score in enumerate(("pll", "whole_word")):
        found = np.stack(scores[score], axis=1)  # (pairs, good or bad)
        assert np.abs(found - expected[:, :, column]).max() < 1e-4


def test_hidden_states_at_one_position_are_those_of_the_encoder(toy_tokenizer):
    for variant in ("none", "composite", "conv-qkv", "lightconv", "dynamicconv-hybrid"):
        model = random_model(toy_tokenizer, variant)
        ids = torch.randint(5, 100, (6, 9), generator=torch.Generator().manual_seed(0))
        positions = torch.tensor([0, 3, 8, 1, 1, 5])
        with torch.inference_mode():
            expected = model.bert(ids)[torch.arange(6), positions]
            assert torch.allclose(pairs.hidden_at(model.bert, ids, positions), expected, atol=1e-5)


@pytest.mark.parametrize("tokens", [1, 100, 100_000])
def test_batches_of_any_size_give_the_same_scores(piece_tokenizer, tokens):
    model = random_model(piece_tokenizer)
    tested = some_pairs(2)[::5]
    expected = pairs.score_pairs(model, piece_tokenizer, tested, tokens_per_batch=1_000)
    found = pairs.score_pairs(model, piece_tokenizer, tested, tokens)
    for score in expected:
        assert np.abs(np.subtract(expected[score], found[score])).max() < 1e-4


# --- What a model without knowledge or without order gets -----------------------------------------


def test_a_constant_model_has_ties_only_and_so_exactly_50(toy_tokenizer):
    model = random_model(toy_tokenizer)
    model.bert.embeddings.token.weight.data.zero_()
    for good, bad in pairs.score_pairs(model, toy_tokenizer, some_pairs(), 4_096).values():
        record = pairs.judge(good, bad)
        assert record["accuracy"] == 50.0
        assert record["ties"] == len(good)


def test_a_constant_model_prefers_the_sentence_with_fewer_pieces(piece_tokenizer):
    """Each piece has the log p of a guess: the score is a sum, and not a mean over the pieces."""
    model = random_model(piece_tokenizer)
    model.bert.embeddings.token.weight.data.zero_()
    tested = [("", "the dog was tired.", "the dog that was tired was tired.")]
    short, long = (
        len(piece_tokenizer.encode(sentence, add_special_tokens=False))
        for sentence in tested[0][1:]
    )
    assert short < long
    log_of_a_guess = -math.log(piece_tokenizer.get_vocab_size())
    for good, bad in pairs.score_pairs(model, piece_tokenizer, tested, 4_096).values():
        assert good[0] == pytest.approx(short * log_of_a_guess, abs=1e-4)
        assert bad[0] == pytest.approx(long * log_of_a_guess, abs=1e-4)


# {paradigm: its phenomenon}, where the words alone do not decide
ORDER_DECIDES = {}
for name, (phenomenon, _) in toy.pairs.PARADIGMS.items():
    if phenomenon not in toy.pairs.WORDS_DECIDE:
        ORDER_DECIDES[name] = phenomenon


@pytest.mark.parametrize("name", ORDER_DECIDES)
def test_a_model_without_positions_is_right_in_exactly_half_where_order_decides(
    toy_tokenizer, name
):
    tested = toy.pairs.zero_shot_pairs(name, 12)
    scores = pairs.score_pairs(random_model(toy_tokenizer, "none"), toy_tokenizer, tested, 4_096)
    record = pairs.judge(*scores["pll"])
    assert record["accuracy"] == 50.0
    if ORDER_DECIDES[name] in toy.pairs.SAME_WORDS:
        assert record["ties"] == 12


def test_a_model_with_positions_has_no_ties(toy_tokenizer):
    tested = toy.pairs.zero_shot_pairs("role_passive", 20)
    scores = pairs.score_pairs(random_model(toy_tokenizer), toy_tokenizer, tested, 4_096)
    assert pairs.judge(*scores["pll"])["ties"] == 0


def test_a_tie_is_a_difference_below_a_ten_thousandth():
    good = np.array([-5.0, -5.0, -5.0, -5.0])
    bad = np.array([-5.00009, -5.00011, -4.99991, -4.99989])
    record = pairs.judge(good, bad)
    assert record == {"accuracy": 50.0, "ties": 2, "wins": "40", "tied": [0, 2]}


# --- Rows, copies, batches ------------------------------------------------------------------------

ROW = pairs.ModelInput(ids=(2, 11, 12, 13, 21, 3), start=1, words=(0, 0, 0, 1))


def test_copies_are_those_of_the_drawn_example():
    found = pairs.copies_of(ROW, 7, mask=4)
    both, pll, whole_word = (True, True), (True, False), (False, True)
    assert found == [
        ((2, 4, 12, 13, 21, 3), 1, 11, 7, pll),
        ((2, 4, 4, 4, 21, 3), 1, 11, 7, whole_word),
        ((2, 11, 4, 13, 21, 3), 2, 12, 7, pll),
        ((2, 11, 4, 4, 21, 3), 2, 12, 7, whole_word),
        ((2, 11, 12, 4, 21, 3), 3, 13, 7, both),
        ((2, 11, 12, 13, 4, 3), 4, 21, 7, both),
    ]


def test_a_context_is_read_first_and_only_the_sentence_is_scored(toy_tokenizer):
    ids = {word: toy_tokenizer.token_to_id("▁" + word) for word in ("the", "dog", "slept")}
    the, dog, slept = ids.values()
    stop = toy_tokenizer.token_to_id(".")

    row = pairs.make_row(toy_tokenizer, "the dog slept.", "the dog.")
    assert row.ids == (2, the, dog, slept, stop, 3, the, dog, stop, 3)
    assert (row.start, row.words) == (6, (0, 1, 2))
    row = pairs.make_row(toy_tokenizer, "", "the dog.")
    assert row.ids == (2, the, dog, stop, 3)
    assert (row.start, row.words) == (1, (0, 1, 2))


def test_batches_have_one_length_each_and_no_more_tokens_than_allowed():
    copies = []
    for number, length in enumerate([3, 3, 3, 3, 3, 5, 5, 8]):
        copies.append(pairs.Copy((9,) * length, 1, 9, number, (True, True)))
    batches = list(pairs.batches_of(copies, tokens_per_batch=7))
    # 2 copies of 3 tokens fit into 7; of 5 tokens one; of 8 tokens none, but one must go
    assert [[copy.row for copy in batch] for batch in batches] == [
        [0, 1],
        [2, 3],
        [4],
        [5],
        [6],
        [7],
    ]


def test_equal_sentences_are_scored_once(toy_tokenizer, monkeypatch):
    counted = []

    def count_rows(model, rows, mask, tokens):
        counted.append(len(rows))
        return np.zeros((len(rows), 2))

    monkeypatch.setattr(pairs, "score_rows", count_rows)
    tested = [("", "the dog slept.", "the dog sleep."), ("", "the dog slept.", "the dogs sleeps.")]
    pairs.score_pairs(random_model(toy_tokenizer), toy_tokenizer, tested, 100)
    assert counted == [3]


# --- Records --------------------------------------------------------------------------------------


def test_bits_are_those_of_the_drawn_example():
    assert pair_results.pack_bits([1, 0, 1, 1, 0, 1]) == "b4"
    assert pair_results.unpack_bits("b4", 6).tolist() == [True, False, True, True, False, True]
    for count in range(9):
        bits = [True] * count
        assert pair_results.unpack_bits(pair_results.pack_bits(bits), count).tolist() == bits


def test_nine_bits_are_four_digits_and_a_record_with_three_is_refused():
    """The nine bits 1 0 1 1 0 1 0 0 1 fill two bytes: b4 80."""
    expected = [True, False, True, True, False, True, False, False, True]
    assert pair_results.unpack_bits("b480", 9).tolist() == expected
    record = make_record("a", expected)
    assert record["scores"]["pll"]["wins"] == "b480"
    pair_results.check_record(record)

    record["scores"] = json.loads(json.dumps(record["scores"]).replace("b480", "b48"))
    with pytest.raises(ValueError, match="pll of a is not complete"):
        pair_results.check_record(record)


@pytest.mark.parametrize("pairs", [0, 2.0])
def test_a_record_without_a_number_of_pairs_is_refused(pairs):
    record = make_record("a", [True, False])
    record["pairs"] = pairs
    with pytest.raises(ValueError, match=f"pairs is {pairs}"):
        pair_results.check_record(record)


@pytest.mark.parametrize("tie", [-1, 2, 0.5])
def test_a_record_with_a_tie_that_is_none_of_its_pairs_is_refused(tie):
    record = make_record("a", [True, False], tied=(1,))
    pair_results.check_record(record)
    record["scores"]["pll"]["tied"] = [tie]
    with pytest.raises(ValueError, match="the ties of a are not numbers of pairs"):
        pair_results.check_record(record)


def test_accuracy_counts_a_tie_one_half():
    wins = np.array([True, False, True, False, False])
    ties = np.array([False, True, False, False, False])
    score = pair_results.score_record(wins, ties)
    assert score == {"accuracy": 50.0, "ties": 1, "wins": "a0", "tied": [1]}
    assert pair_results.credit_per_pair(score, 5).tolist() == [1, 0.5, 1, 0, 0]


def make_record(paradigm, accuracy_bits, tied=(), phenomenon="p", digest="0" * 12):
    """A record with the given bits for both scores."""
    wins = np.array(accuracy_bits, dtype=bool)
    ties = np.zeros(len(wins), dtype=bool)
    ties[list(tied)] = True
    score = pair_results.score_record(wins, ties)
    return {
        "data": "toy",
        "paradigm": paradigm,
        "phenomenon": phenomenon,
        "pairs": len(wins),
        "pairs_sha256": digest,
        "model": "m" * 12,
        "scores": {"pll": score, "whole_word": score},
        "made_by": {},
        "seconds": 1.0,
    }


def test_results_are_added_replaced_and_those_of_another_model_removed(tmp_path):
    first = make_record("a", [1, 0])
    second = make_record("b", [1, 1])
    pair_results.add_result(tmp_path, first)
    pair_results.add_result(tmp_path, second)
    assert pair_results.read_results(tmp_path, "toy") == {"a": first, "b": second}

    better = make_record("a", [1, 1])
    pair_results.add_result(tmp_path, better)
    assert pair_results.read_results(tmp_path, "toy") == {"a": better, "b": second}

    other_model = {**first, "model": "n" * 12}
    pair_results.add_result(tmp_path, other_model)
    assert pair_results.read_results(tmp_path, "toy") == {"a": other_model}
    assert pair_results.read_results(tmp_path, "blimp") == {}


def test_results_of_paradigms_that_the_data_do_not_have_are_removed(tmp_path):
    for name in ("a", "b", "c"):
        pair_results.add_result(tmp_path, make_record(name, [1, 0]))
    # what a killed process left is removed; the number is that of no process
    left = tmp_path / "pairs" / f"toy.jsonl.{10**30}.part"
    left.touch()
    assert pair_results.keep_results(tmp_path, "toy", ["c", "a", "d"]) == ["b"]
    assert left.exists() == (os.name == "nt")
    assert list(pair_results.read_results(tmp_path, "toy")) == ["a", "c"]
    assert pair_results.keep_results(tmp_path, "blimp", ["a"]) == []
    assert not pair_results.results_path(tmp_path, "blimp").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:-20] + "\n",
        lambda line: line.replace('"accuracy": 50.0', '"accuracy": 51.0'),
        lambda line: line.replace('"wins": "80"', '"wins": "8000"'),
        lambda line: line.replace('"wins": "80"', '"wins": "g0"'),
        lambda line: line.replace('"paradigm"', '"paradise"'),
    ],
)
def test_damaged_results_are_one_clear_error(tmp_path, damage):
    pair_results.add_result(tmp_path, make_record("a", [1, 0]))
    path = pair_results.results_path(tmp_path, "toy")
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match="toy.jsonl is damaged") as error:
        pair_results.read_results(tmp_path, "toy")
    assert "\n" not in str(error.value)


# --- BLiMP's format -------------------------------------------------------------------------------


def line(good="A.", bad="B.", name="u", phenomenon="p"):
    row = {
        "sentence_good": good,
        "sentence_bad": bad,
        "UID": name,
        "linguistics_term": phenomenon,
        "pairID": "0",
    }
    return json.dumps(row) + "\n"


def zip_of(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def publish(monkeypatch, content):
    """Let these bytes be the published archive."""
    monkeypatch.setattr(blimp, "SIZE", len(content))
    monkeypatch.setattr(blimp, "SHA256", hashlib.sha256(content).hexdigest())


def test_a_folder_is_read_by_paradigm_and_sorted_by_phenomenon(tmp_path):
    (tmp_path / "one.jsonl").write_text(line("A.", "B.", "u", "z") + line("C.", "D.", "u", "z"))
    (tmp_path / "two.jsonl").write_text("\n" + line("E.", "F.", "v", "a"))
    (tmp_path / "notes.txt").write_text("nothing")
    assert blimp.read_folder(tmp_path) == [
        Paradigm("v", "a", [("", "E.", "F.")]),
        Paradigm("u", "z", [("", "A.", "B."), ("", "C.", "D.")]),
    ]


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "line 2 is damaged"),
        ("[1]", "line 2 is damaged: it is not a JSON object"),
        ('{"sentence_good": "A."}', "line 2 has no 'sentence_bad'"),
        (line(bad=""), "line 2: 'sentence_bad' is not a text, or it is empty"),
        (line(good=3), "line 2: 'sentence_good' is not a text, or it is empty"),
        (line(phenomenon="q"), "the phenomenon of u is 'q' here, but it was 'p' before"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, text, message):
    (tmp_path / "one.jsonl").write_text(line() + text)
    with pytest.raises(ValueError, match=message) as error:
        blimp.read_folder(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_pairs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no files"):
        blimp.read_folder(tmp_path)
    with pytest.raises(ValueError, match="has no files"):
        blimp.read_folder(tmp_path / "absent")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="there is no pair in these files"):
        blimp.read_folder(tmp_path)
    (tmp_path / "empty.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="line 1 is damaged"):
        blimp.read_folder(tmp_path)


def test_the_archive_is_read_without_its_other_folder(tmp_path, monkeypatch):
    content = zip_of(
        {"data/": "", "data/u.jsonl": line(), "data/.DS_Store": "x", "__MACOSX/data/u.jsonl": "x"}
    )
    publish(monkeypatch, content)
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "BLiMP.zip").write_bytes(content)
    assert blimp.read_blimp(tmp_path) == [Paradigm("u", "p", [("", "A.", "B.")])]


def test_another_archive_than_the_published_one_is_refused(tmp_path):
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "BLiMP.zip").write_bytes(zip_of({"data/u.jsonl": line()}))
    with pytest.raises(ValueError, match="is not the published file"):
        blimp.read_blimp(tmp_path)


def test_a_download_with_the_wrong_hash_is_refused(tmp_path, monkeypatch, serve):
    content = zip_of({"data/u.jsonl": line()})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = serve(Handler)
    monkeypatch.setattr(blimp, "URL", f"http://127.0.0.1:{server.server_port}/BLiMP.zip")
    monkeypatch.setattr(blimp, "SIZE", len(content))
    with pytest.raises(UserError, match="wrong SHA-256"):
        blimp.read_blimp(tmp_path)
    assert not list(tmp_path.rglob("*.zip"))

    publish(monkeypatch, content)
    assert len(blimp.read_blimp(tmp_path)) == 1


def test_a_damaged_archive_is_one_clear_error(tmp_path, monkeypatch):
    publish(monkeypatch, b"no archive")
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "BLiMP.zip").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="cannot unpack"):
        blimp.read_blimp(tmp_path)


# --- Tables ---------------------------------------------------------------------------------------


def make_run(variant, seed, records, **settings):
    """A run as the tables take it."""
    settings = {"variant": variant, "seed": seed, "steps": 10, **settings}
    return {"run": f"{variant}-{seed}", "settings": settings, "pairs": {"toy": records}}


def two_variants():
    """Two variants with two seeds; a and b are paradigms of p, c is one of q."""
    bits = {
        ("x", 0): ([1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]),
        ("x", 1): ([1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]),
        ("y", 0): ([1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]),
        ("y", 1): ([1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]),
    }
    runs = []
    for (variant, seed), (a, b, c) in bits.items():
        records = [
            make_record("a", a),
            make_record("b", b),
            make_record("c", c, tied=[3], phenomenon="q"),
        ]
        runs.append(make_run(variant, seed, records))
    return runs


def test_the_table_is_that_computed_by_hand():
    # x: a 100 and 75, b 50, c 75 + 12.5; y: a 50 and 25, b 50, c 12.5 and 37.5
    assert pairs.accuracy_table(two_variants(), "toy") == [
        ["toy, % (seeds)", "x (2)", "y (2)"],
        ["p", "68.8 +- 6.2", "43.8 +- 6.2"],
        ["q", "87.5 +- 0.0", "25.0 +- 12.5"],
        ["mean of 3 paradigms", "75.0 +- 4.2", "37.5 +- 0.0"],
        ["mean of 3 paradigms, whole_word", "75.0 +- 4.2", "37.5 +- 0.0"],
        ["ties", "1", "1"],
    ]
    assert pairs.accuracy_table(two_variants(), "toy", ["c", "a"]) == [
        ["toy, % (seeds)", "x (2)", "y (2)"],
        ["c", "87.5 +- 0.0", "25.0 +- 12.5"],
        ["a", "87.5 +- 12.5", "37.5 +- 12.5"],
    ]


def test_differences_are_those_computed_by_hand():
    rows = {row.name: row for row in pairs.compare_variants(two_variants(), "toy", "x", "y")}
    assert list(rows) == ["p", "q", "mean of 3 paradigms"]
    assert rows["p"].comparison.mean == 25.0  # 75 - 50, 62.5 - 37.5
    assert rows["p"].comparison.standard_error == 0.0
    assert rows["q"].comparison.mean == 62.5  # 75, 50
    assert rows["q"].comparison.seeds == 2
    assert rows["q"].comparison.standard_error == pytest.approx(12.5)
    assert rows["mean of 3 paradigms"].comparison.mean == pytest.approx(37.5)
    for row in rows.values():
        assert row.low <= row.comparison.mean <= row.high

    # the other way round, everything changes its sign
    other = {row.name: row for row in pairs.compare_variants(two_variants(), "toy", "y", "x")}
    assert other["q"].comparison.mean == -62.5
    assert other["q"].low == pytest.approx(-rows["q"].high, abs=5)

    table = pairs.comparison_table("x - y", rows.values())
    assert table[0][0] == "x - y"
    assert table[2][:2] == ["q", "+62.5"]
    assert table[2][4] == "2"
    assert table[1][3] == "all differences are equal"  # in p


def test_an_order_of_variants_is_each_one_minus_the_next_on_the_mean():
    title, differences = pairs.order_differences(two_variants(), "toy", ["x", "y", "x"])
    table = pairs.comparison_table(title, differences)
    assert [row[0] for row in table] == ["mean of 3 paradigms", "x - y", "y - x"]
    assert [row[1] for row in table[1:]] == ["+37.5", "-37.5"]


def test_the_notes_say_what_the_interval_is_worth_and_how_many_p_values_there_are():
    """Of p, q and the mean, p has equal differences and so no p-value."""
    notes = pairs.comparison_notes(pairs.compare_variants(two_variants(), "toy", "x", "y"))
    assert "bootstrap over seeds and pairs" in notes[0]
    assert "in about three of four experiments with three seeds" in notes[1]
    assert notes[2:] == [
        "2 comparisons: without any true difference, about 0.1 would have p < 0.05."
    ]


def test_the_interval_of_one_seed_says_that_it_is_over_pairs_only():
    x, _, y, _ = two_variants()
    differences = pairs.compare_variants([x, y], "toy", "x", "y")
    table = pairs.comparison_table("x - y", differences)
    assert all(row[2].endswith(" (pairs only)") for row in table[1:])
    assert all(row[3:] == ["", "1"] for row in table[1:])
    assert len(pairs.comparison_notes(differences)) == 2


def test_the_mean_says_how_many_paradigms_it_is_of():
    runs = [make_run("x", 0, [make_record("a", [1, 0])])]
    assert pairs.accuracy_table(runs, "toy")[2] == ["mean of 1 paradigm", "50.0"]


def test_the_bootstrap_has_the_spread_of_one_that_draws_pair_by_pair():
    """The short way, by kinds of pairs, against the definition with loops."""
    random = np.random.default_rng(1)
    values = 100.0 * random.integers(-1, 2, size=(3, 40))  # (seeds, pairs)
    values[0] += 30
    drawn = pairs.bootstrap({"a": values})["a"]

    plain = []
    for _ in range(4_000):
        seeds = random.integers(0, 3, size=3)
        chosen = random.integers(0, 40, size=40)
        plain.append(values[seeds][:, chosen].mean())
    assert drawn.mean() == pytest.approx(values.mean(), abs=0.8)
    assert drawn.std() == pytest.approx(np.std(plain), rel=0.06)
    for percent in (2.5, 97.5):
        expected = np.percentile(plain, percent)
        assert np.percentile(drawn, percent) == pytest.approx(expected, abs=2.5)


def test_an_interval_of_three_seeds_holds_the_true_difference_in_three_of_four_experiments():
    """Made experiments with noise of seeds only: every pair of a seed has the same difference.

    The interval goes from the smallest to the largest of three differences. It does not hold the
    true one if all three are larger or all three are smaller: 2 / 8. With 400 experiments the
    standard error of the share is 2 %.
    """
    random = np.random.default_rng(0)
    true_difference = 3.0
    count = 400
    held = 0
    for _ in range(count):
        of_seeds = random.normal(true_difference, 1.0, size=(3, 1))
        drawn = pairs.bootstrap({"a": np.repeat(of_seeds, 8, axis=1)})
        low, high = pairs.interval_of_mean(drawn, ["a"])
        assert low == pytest.approx(of_seeds.min())
        assert high == pytest.approx(of_seeds.max())
        if low <= true_difference <= high:
            held += 1
    assert 0.65 < held / count < 0.85


def test_the_bootstrap_of_equal_differences_has_no_spread():
    drawn = pairs.bootstrap({"a": np.full((3, 10), 50.0), "b": np.zeros((3, 10))}, resamples=100)
    assert np.allclose(drawn["a"], 50.0)
    assert np.allclose(drawn["b"], 0.0)


def test_the_bootstrap_draws_the_same_pairs_for_all_seeds():
    """All seeds have the same differences, so more seeds do not make the noise of pairs smaller.

    Half of 100 pairs: 100 * sqrt(1/4 / 100) = 5. With other pairs for each seed it would be 3.7.
    """
    values = np.tile([0.0] * 50 + [100.0] * 50, (3, 1))  # (seeds, pairs)
    drawn = pairs.bootstrap({"a": values})["a"]
    assert drawn.std() == pytest.approx(5.0, rel=0.06)


def test_the_bootstrap_draws_the_pairs_of_each_paradigm_independently():
    """Each paradigm has the noise of 5 of the test above, so their mean has 5 / sqrt(2)."""
    values = np.array([[0.0] * 50 + [100.0] * 50])  # one seed: (1, pairs)
    drawn = pairs.bootstrap({"a": values, "b": values})
    mean = (drawn["a"] + drawn["b"]) / 2
    assert mean.std() == pytest.approx(5 / math.sqrt(2), rel=0.06)


def test_the_bootstrap_draws_the_same_seeds_for_all_paradigms():
    values = np.repeat([[0.0], [100.0]], 8, axis=1)  # seed 0: no difference; seed 1: always
    drawn = pairs.bootstrap({"a": values, "b": values}, resamples=1_000)
    assert (drawn["a"] == drawn["b"]).all()
    assert sorted(set(drawn["a"])) == [0.0, 50.0, 100.0]
    assert np.mean(drawn["a"] == 50.0) == pytest.approx(1 / 2, abs=0.06)


def test_runs_that_do_not_belong_together_are_refused():
    runs = two_variants()
    other_steps = make_run("x", 2, runs[0]["pairs"]["toy"], steps=20)
    with pytest.raises(ValueError, match=r"x-0 and x-2 differ in steps \(10 and 20\)"):
        pairs.accuracy_table([*runs, other_steps], "toy")
    with pytest.raises(ValueError, match="x-0 and x-0 are both x with seed 0"):
        pairs.accuracy_table([*runs, runs[0]], "toy")
    with pytest.raises(ValueError, match="there is no run of z; the runs are of: x, y"):
        pairs.compare_variants(runs, "toy", "x", "z")
    with pytest.raises(ValueError, match="no seed that both x and y have"):
        pairs.compare_variants([runs[0], runs[3]], "toy", "x", "y")
    with pytest.raises(ValueError, match=r"differ in steps \(10 and 20\).* the same way") as error:
        longer = make_run("z", 0, runs[0]["pairs"]["toy"], steps=20)
        pairs.compare_variants([*runs, longer], "toy", "x", "z")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="no results on 'd'; the paradigms are: a, b, c"):
        pairs.accuracy_table(runs, "toy", ["d"])
    with pytest.raises(ValueError, match="no results on 'd'; the paradigms are: a, b, c"):
        pairs.compare_variants(runs, "toy", "x", "y", ["d"])

    other_pairs = make_run("z", 0, [make_record("a", [1], digest="1" * 12)])
    with pytest.raises(ValueError, match=r"not scored on the same pairs of toy \(a\)"):
        pairs.accuracy_table([runs[0], other_pairs], "toy")
    with pytest.raises(ValueError, match="x-9 has no results on toy"):
        pairs.accuracy_table([runs[0], make_run("x", 9, [])], "toy")
    interrupted = make_run("z", 0, runs[0]["pairs"]["toy"][:-1])
    for both in ([runs[0], interrupted], [interrupted, runs[0]]):
        with pytest.raises(ValueError, match="z-0 has no result on c of toy: score it again"):
            pairs.accuracy_table(both, "toy")


def test_runs_are_compared_on_the_named_paradigms_even_if_one_lacks_others():
    runs = two_variants()
    complete = pairs.accuracy_table(runs, "toy", ["b", "a"])
    (before,) = pairs.compare_variants(runs, "toy", "x", "y", ["b"])

    # one run has no result on c
    runs[0]["pairs"]["toy"] = runs[0]["pairs"]["toy"][:-1]
    assert pairs.accuracy_table(runs, "toy", ["b", "a"]) == complete
    (after,) = pairs.compare_variants(runs, "toy", "x", "y", ["b"])
    assert after == before


def test_variants_may_differ_in_the_settings_that_belong_to_them():
    runs = [make_run("x", 0, two_variants()[0]["pairs"]["toy"], kernel_size=17, beyond="zero")]
    runs += [make_run("y", 0, two_variants()[2]["pairs"]["toy"], kernel_size=None)]
    assert pairs.compare_variants(runs, "toy", "x", "y")[-1].comparison.mean == pytest.approx(
        125 / 3
    )


# --- The command ----------------------------------------------------------------------------------


def save(folder, tokenizer, variant, seed):
    folder.mkdir()
    save_run(folder, random_model(tokenizer, variant, seed), tokenizer)
    settings = {"variant": variant, "seed": seed, "steps": 0}
    (folder / "log.jsonl").write_text(json.dumps({"settings": settings}) + "\n")
    return folder


@pytest.fixture
def runs(tmp_path, toy_tokenizer):
    """The folders of four runs: two variants with two seeds."""
    folders = []
    for variant in ("composite", "none"):
        for seed in (0, 1):
            folders.append(save(tmp_path / f"{variant}-{seed}", toy_tokenizer, variant, seed))
    return folders


@pytest.fixture
def folder_of_pairs(tmp_path):
    """A folder with two paradigms of four pairs."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("role_active", "kinds"):
        lines = []
        for _, good, bad in toy.pairs.zero_shot_pairs(name, 4):
            lines.append(line(good, bad, name, name.partition("_")[0]))
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def call(run_program, *arguments):
    return run_program("lab.pairs", pairs.main, *arguments, "--device", "cpu")


def test_runs_are_scored_once_and_then_printed_as_tables(
    run_program, runs, folder_of_pairs, monkeypatch
):
    outcome = call(run_program, *runs, "--data", folder_of_pairs)
    assert outcome.code == 0
    assert outcome.out.count("paradigms of mine: 2 to score, 0 finished") == 4
    records = pair_results.read_results(runs[0], "mine")
    assert list(records) == ["kinds", "role_active"]
    assert records["kinds"]["pairs"] == 4
    assert records["kinds"]["made_by"]["device"].startswith("cpu")

    # the second time nothing is computed
    def fail(*_):
        raise AssertionError("scored again")

    monkeypatch.setattr(pairs, "score_pairs", fail)
    outcome = call(run_program, *runs, "--data", folder_of_pairs)
    assert outcome.code == 0
    assert outcome.out.count("paradigms of mine: 0 to score, 2 finished") == 4

    # tables
    outcome = call(run_program, *runs, "--data", folder_of_pairs, "--table")
    header = outcome.out.splitlines()[0]
    assert "composite (2)" in header and "none (2)" in header
    row = next(each for each in outcome.out.splitlines() if each.startswith("role"))
    assert row.endswith("50.0 +- 0.0")
    options = ("--data", folder_of_pairs, "--compare", "composite", "none")
    outcome = call(run_program, *runs, *options)
    assert outcome.out.startswith("composite - none")
    assert "bootstrap" in outcome.out
    assert "in one of two with two seeds. So trust a difference" in outcome.out


def test_a_record_keeps_both_scores_of_the_good_and_the_bad_sentences(
    run_program, runs, folder_of_pairs, monkeypatch
):
    """Three of four good sentences have the higher pll, one has the higher whole_word."""
    zeros = np.zeros(4)
    scores = {
        "pll": (np.array([1.0, 1.0, 1.0, -1.0]), zeros),
        "whole_word": (np.array([-1.0, -1.0, -1.0, 1.0]), zeros),
    }
    monkeypatch.setattr(pairs, "score_pairs", lambda *arguments: scores)
    assert call(run_program, runs[0], "--data", folder_of_pairs).code == 0
    for record in pair_results.read_results(runs[0], "mine").values():
        found = {name: score["accuracy"] for name, score in record["scores"].items()}
        assert found == {"pll": 75.0, "whole_word": 25.0}


def test_another_model_or_other_pairs_are_scored_again(
    run_program, runs, folder_of_pairs, toy_tokenizer
):
    run = runs[0]
    call(run_program, run, "--data", folder_of_pairs)

    # other pairs of one paradigm
    (folder_of_pairs / "kinds.jsonl").write_text(line("the dog slept.", "the dog sleep.", "kinds"))
    outcome = call(run_program, run, "--data", folder_of_pairs)
    assert "paradigms of mine: 1 to score, 1 finished" in outcome.out
    assert pair_results.read_results(run, "mine")["kinds"]["pairs"] == 1

    # another model; the table refuses the old results
    save_run(run, random_model(toy_tokenizer, seed=9), toy_tokenizer)
    outcome = call(run_program, run, "--data", folder_of_pairs, "--table")
    assert outcome.code == 2
    assert "are of an earlier model" in outcome.error
    outcome = call(run_program, run, "--data", folder_of_pairs)
    assert "paradigms of mine: 2 to score, 0 finished" in outcome.out


def test_the_scores_of_a_run_are_printed_by_phenomenon(capsys):
    first = make_record("a", [1, 1, 1, 0], phenomenon="x")
    first["scores"]["whole_word"] = make_record("a", [1, 0, 0, 0])["scores"]["pll"]
    second = make_record("b", [1, 0], tied=[1], phenomenon="y")
    pairs.print_scores([first, second])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == ["pll", "whole_word", "pairs", "ties"]
    assert ["x", "75.0", "25.0", "4", "0"] in lines
    assert ["y", "75.0", "75.0", "2", "1"] in lines
    assert ["mean", "of", "2", "paradigms", "75.0", "50.0", "6", "1"] in lines


def test_a_paradigm_that_the_data_lost_is_not_part_of_the_mean(run_program, runs, folder_of_pairs):
    run = runs[0]
    arguments = (run, "--data", folder_of_pairs)
    assert "mean of 2 paradigms" in call(run_program, *arguments).out
    (folder_of_pairs / "kinds.jsonl").unlink()

    # only if all paradigms are scored, the others can be those of earlier data
    call(run_program, *arguments, "--paradigms", "role_active")
    assert list(pair_results.read_results(run, "mine")) == ["kinds", "role_active"]
    outcome = call(run_program, *arguments)
    assert "deleted the results on kinds, which mine does not have" in outcome.out
    assert list(pair_results.read_results(run, "mine")) == ["role_active"]
    assert "mean of 1 paradigm" in call(run_program, *arguments, "--table").out


def test_what_macos_writes_beside_a_file_is_no_paradigm(folder_of_pairs):
    names = [paradigm.name for paradigm in pairs.read_paradigms(str(folder_of_pairs), None)]
    (folder_of_pairs / "._kinds.jsonl").write_bytes(b"\x00\x05\x16\x07")
    paradigms = pairs.read_paradigms(str(folder_of_pairs), None)
    assert [paradigm.name for paradigm in paradigms] == names


def test_the_toy_pairs_need_no_files(run_program, runs):
    outcome = call(run_program, runs[3], "--paradigms", "role_active", "transfer")
    assert outcome.code == 0
    records = pair_results.read_results(runs[3], "toy")
    assert {name: record["pairs"] for name, record in records.items()} == {
        "role_active": 200,
        "transfer": 200,
    }
    assert records["role_active"]["scores"]["pll"]["ties"] == 200
    assert records["transfer"]["scores"]["pll"]["accuracy"] == 50.0


def test_every_user_error_is_one_line(run_program, runs, folder_of_pairs, tmp_path, toy_tokenizer):
    run = runs[0]
    long_sentence = "the dog" + " slept" * 70 + "."
    long_folder = tmp_path / "long"
    long_folder.mkdir()
    (long_folder / "u.jsonl").write_text(line(long_sentence, "the dog."))
    no_log = save(tmp_path / "no-log", toy_tokenizer, "none", 0)
    (no_log / "log.jsonl").unlink()
    call(run_program, no_log, "--data", folder_of_pairs)
    for name in pairs.BUILT_IN:
        folder_of_pairs.with_name(name).mkdir()
        (folder_of_pairs.with_name(name) / "u.jsonl").write_text(line())

    wrong = [
        ((run, "--data", tmp_path / "toy"), "give the folder another name"),
        ((run, "--data", tmp_path / "toy", "--table"), "give the folder another name"),
        ((tmp_path / "absent",), "is not a run"),
        ((run, "--data", tmp_path / "absent"), "has no files"),
        ((run, "--data", long_folder), "tokens, the model takes 64; to leave out u, give"),
        ((run, "--paradigms", "spelling"), "unknown paradigm 'spelling'"),
        ((run, "--table"), f"python -m lab.pairs {run} --data toy"),
        ((run, "--compare", "none", "composite"), "has no results on toy yet"),
        ((no_log, "--data", folder_of_pairs, "--table"), "has no log.jsonl"),
    ]
    for arguments, message in wrong:
        outcome = call(run_program, *arguments)
        assert outcome.code == 2, arguments
        assert message in outcome.error
        assert outcome.error.startswith("lab.pairs: ")
        assert outcome.error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--compare", "none"], "two or more variants"),
        (["--compare", "none", "fixed", "dynamic", "--paradigms", "kinds"], "all paradigms"),
    ],
)
def test_a_comparison_that_cannot_be_meant_is_refused(capsys, options, message):
    with pytest.raises(SystemExit):
        pairs.parse_arguments(["run", *options])
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_run_that_another_process_is_scoring_is_refused_in_one_line(runs, run_program):
    run = runs[0]
    with pair_results.results_lock(run, "toy"):
        outcome = call(run_program, run)
    assert outcome.code == 2
    assert "on toy is in use by process" in outcome.error and outcome.error.count("\n") == 1
    assert outcome.error.endswith("; wait until it has finished\n") and "--" not in outcome.error
    assert pair_results.read_results(run, "toy") == {}
