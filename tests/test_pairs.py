"""lab/pairs.py: scores equal to those of a scorer written from the definition."""

import json

import numpy as np
import pytest
import torch

from conftest import write
from lab import pairs
from model import save_run
from model_helpers import random_model, toy_tokenizer
from support.commands import UserError
from support.files import load_checkpoint, save_checkpoint
from support.runs import write_records

_, _, TOY = pairs.read_data("toy", None)


# --- Tokenizers and models ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy_word_tokenizer():
    """One piece per word, as in a run on the toy language."""
    return toy_tokenizer(3_000, 1_000)


@pytest.fixture(scope="module")
def piece_tokenizer():
    """A vocabulary of 60: most words are several pieces."""
    return toy_tokenizer(500, 60)


def model_for(tokenizer, variant="composite"):
    """A small model whose weights are so large that its scores differ clearly."""
    return random_model(variant, vocab_size=tokenizer.get_vocab_size(), max_length=64)


# --- Scores ---------------------------------------------------------------------------------------


def score_by_definition(model, tokenizer, context, sentence):
    """The pll of a sentence: one mask at a time, the model called on one sequence."""
    cls, sep, mask = 2, 3, 4
    ids = [cls]
    if context:
        ids += tokenizer.encode(context, add_special_tokens=False).ids + [sep]
    start = len(ids)
    ids += tokenizer.encode(sentence, add_special_tokens=False).ids + [sep]

    pll = 0.0
    for position in range(start, len(ids) - 1):
        masked = list(ids)
        masked[position] = mask
        with torch.inference_mode():
            logits = model(torch.tensor([masked]))[0, position]
        pll += logits.double().log_softmax(0)[ids[position]].item()
    return pll


@pytest.mark.parametrize(
    "name, variant, tokens_per_batch",
    [
        ("toy_word_tokenizer", "composite", 1),
        ("toy_word_tokenizer", "convbert", 300),
        ("piece_tokenizer", "composite", 300),
    ],
)
def test_scores_are_those_of_the_definition_with_batches_of_any_size(
    request, name, variant, tokens_per_batch
):
    tokenizer = request.getfixturevalue(name)
    model = model_for(tokenizer, variant)
    tested = [paradigm.pairs[0] for paradigm in TOY[::7]]
    assert any(context for context, _, _ in tested)
    scores = pairs.score_pairs(model, tokenizer, tested, tokens_per_batch)
    for (context, good, bad), found in zip(tested, scores, strict=True):
        expected = [score_by_definition(model, tokenizer, context, each) for each in (good, bad)]
        assert found == pytest.approx(expected, abs=1e-3)


# paradigms whose two sentences have the same words, or whose pairs have twins
ORDER_DECIDES = [each for each in TOY if each.phenomenon not in ("opinions", "kinds")]


@pytest.mark.parametrize("paradigm", ORDER_DECIDES, ids=lambda paradigm: paradigm.name)
def test_a_model_without_positions_is_right_in_exactly_half_where_order_decides(
    toy_word_tokenizer, paradigm
):
    tested = paradigm.pairs[:6]
    model = model_for(toy_word_tokenizer, "none")
    scores = pairs.score_pairs(model, toy_word_tokenizer, tested, 4_096)
    assert pairs.count_right(scores) == len(tested) / 2


def test_a_tie_is_a_difference_below_a_ten_thousandth_and_counts_one_half():
    scores = np.array([[1.0, 0.0], [0.0, 1.0], [0.00009, 0.0], [0.0, 0.00009]])
    assert pairs.count_right(scores) == 1 + 2 / 2


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_no_lost_pair(number):
    with pytest.raises(UserError, match="not finite"):
        pairs.count_right(np.array([[1.0, 0.0], [0.0, number]]))


# --- BLiMP's format -------------------------------------------------------------------------------


def line(name="u", phenomenon="p", good="the dog was tired.", bad="the dog were tired."):
    """A line of a file in the format of BLiMP."""
    row = {"UID": name, "linguistics_term": phenomenon, "sentence_good": good, "sentence_bad": bad}
    return json.dumps({**row, "field": "syntax"}) + "\n"


def test_a_folder_is_read_by_paradigm_and_sorted_by_phenomenon(tmp_path):
    """A sentence may hold any character; empty lines and hidden files are skipped."""
    first = line("v", "z", "a\u2028b.", "b a.").replace("\\u2028", "\u2028")
    text = f"\n{first}\n" + line("v", "z", "c.", "d.")
    (tmp_path / "1.jsonl").write_text(text, "utf-8")
    (tmp_path / "2.jsonl").write_text(line("u", "a", "e.", "f."))
    (tmp_path / "._1.jsonl").write_bytes(b"\xff")
    assert pairs.read_folder(tmp_path) == [
        pairs.Paradigm("u", "a", [("", "e.", "f.")]),
        pairs.Paradigm("v", "z", [("", "a\u2028b.", "b a."), ("", "c.", "d.")]),
    ]


@pytest.mark.parametrize("good", [None, 5, "", " ", "\ud83d"])
def test_what_is_no_sentence_is_refused_with_its_file_and_line(good, tmp_path):
    (tmp_path / "1.jsonl").write_text(line() + "\n" + line(good=good))
    with pytest.raises(UserError, match="1.jsonl, line 3"):
        pairs.read_folder(tmp_path)


def test_a_paradigm_of_two_phenomena_is_refused_because_results_have_its_name_alone(tmp_path):
    (tmp_path / "1.jsonl").write_text(line("u", "a") + line("u", "b"))
    with pytest.raises(UserError, match="two phenomena"):
        pairs.read_folder(tmp_path)


# --- The command ----------------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path, toy_word_tokenizer):
    """Runs with random weights: composite with two seeds, and fixed."""
    folders = []
    for variant, seed in (("composite", 0), ("composite", 1), ("fixed", 0)):
        folder = tmp_path / f"{variant}-seed{seed}"
        save_run(folder, model_for(toy_word_tokenizer, variant), toy_word_tokenizer)
        settings = {"variant": variant, "seed": seed, "steps": 5}
        log = [{"settings": settings, "code": {}}, {"step": 5, "held_out_loss": 1.0}]
        write_records(folder / "log.jsonl", log)
        folders.append(folder)
    return folders


def test_a_run_is_scored_once_and_no_result_passes_for_that_of_other_pairs_or_another_model(
    runs, tmp_path, run_program, refused
):
    """Two folders of the same name."""
    for name, good in (("a", "the dog was tired."), ("b", "\u4e00 \u4e8c")):
        write(tmp_path / name / "mine/u.jsonl", line() + line("v", good=good))
    options = ["--device cpu --data", tmp_path / "a/mine"]
    files = [folder / "pairs" / "mine.json" for folder in runs]
    assert "unknown" not in run_program(pairs.main, *runs, *options).out
    before = [path.read_text() for path in files]
    files[0].unlink()  # what a kill leaves: the other results stay
    assert run_program(pairs.main, *runs, *options).code == 0
    assert [path.read_text() for path in files] == before
    assert [pairs for _, pairs in json.loads(before[0])["paradigms"].values()] == [1, 1]

    assert "mean of 2 paradigms" in run_program(pairs.main, *runs, *options).out
    refused(pairs.main, *runs, *options, "--compare composite none")

    # other pairs of the same name, and then another model: the first results stay
    options[-1] = tmp_path / "b/mine"
    out = run_program(pairs.main, runs[0], *options).out
    assert "1 of 2 pairs have a word unknown to" in out and f"{runs[0]}/pairs-2" in out
    weights = load_checkpoint(runs[0] / "model.pt")
    weights["bias"][-1] += 1
    save_checkpoint(runs[0] / "model.pt", weights)
    options[-1] = tmp_path / "a/mine"
    assert (
        f"as in {runs[0]}/pairs: {runs[0]}/pairs-3"
        in run_program(pairs.main, runs[0], *options).out
    )
    assert run_program(pairs.main, *runs, *options).code == 0
    assert [path.read_text() for path in files] == before


def test_special_tokens_that_are_written_in_a_pair_are_text(runs, tmp_path, run_program):
    write(tmp_path / "some/1.jsonl", line(good="the [MASK] was tired."))
    result = run_program(pairs.main, runs[0], "--device cpu --data", tmp_path / "some")
    assert "1 of 1 pairs have a word unknown to" in result.out


def test_pairs_of_equal_tokens_are_left_out_and_said_and_so_are_unknown_words(
    runs, tmp_path, run_program, refused
):
    """Digits are [UNK]."""
    equal = line("digits", "a", "the 0 dogs were tired.", "the 1 dogs were tired.")
    equal += line("u", "c", "the dog was tired. ", "The dog  was tired.")  # as it is normalised
    write(tmp_path / "some/1.jsonl", equal + line("u", "c") + line("u", "c", "the tac ran."))
    options = ["--device cpu --data", tmp_path / "some"]
    result = run_program(pairs.main, runs[0], *options)
    left_out = f"2 of 4 pairs are left out: equal tokens in {runs[0]}"
    assert left_out in result.out and "1 of 4 pairs have a word unknown to" in result.out
    assert "mean of 1 paradigms" in result.out
    assert left_out in run_program(pairs.main, runs[0], *options).out  # of a result that is kept
    record = json.loads((runs[0] / "pairs/some.json").read_text())
    assert {name: count for name, (_, count) in record["paradigms"].items()} == {"u": 2}

    write(tmp_path / "none/1.jsonl", equal)
    options[-1] = tmp_path / "none"
    assert "all pairs have equal tokens" in refused(pairs.main, runs[0], *options)
