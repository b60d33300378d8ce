"""lab/pairs.py: scores equal to those of a scorer written from the definition; tables by hand."""

import json

import numpy as np
import pytest
import torch

import data
import toy.pairs
from lab import pairs
from model import BertConfig, BertForMaskedLM, save_run
from model_helpers import SMALL
from support.commands import UserError
from support.statistics import mean_and_standard_error
from toy import language

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


def score_by_definition(model, tokenizer, context, sentence):
    """The pll of a sentence: one mask at a time, the model called on one row."""
    cls, sep, mask = 2, 3, 4
    row = [cls]
    if context:
        row += tokenizer.encode(context, add_special_tokens=False).ids + [sep]
    start = len(row)
    row += tokenizer.encode(sentence, add_special_tokens=False).ids + [sep]

    pll = 0.0
    for position in range(start, len(row) - 1):
        masked = list(row)
        masked[position] = mask
        with torch.inference_mode():
            logits = model(torch.tensor([masked]))[0, position]
        pll += logits.double().log_softmax(0)[row[position]].item()
    return pll


@pytest.mark.parametrize("variant", ["composite", "convbert"])
@pytest.mark.parametrize("name", ["toy_tokenizer", "piece_tokenizer"])
def test_scores_are_those_of_the_definition(request, name, variant):
    tokenizer = request.getfixturevalue(name)
    model = random_model(tokenizer, variant)
    tested = some_pairs(2)[::9]
    scores = pairs.score_pairs(model, tokenizer, tested, tokens_per_batch=300)
    for (context, good, bad), found in zip(tested, scores, strict=True):
        expected = [score_by_definition(model, tokenizer, context, each) for each in (good, bad)]
        assert found == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("tokens", [1, 40, 10_000])
def test_batches_of_any_size_give_the_same_scores(piece_tokenizer, tokens):
    model = random_model(piece_tokenizer)
    tested = some_pairs(1)[::5]
    expected = pairs.score_pairs(model, piece_tokenizer, tested, 300)
    assert np.allclose(
        pairs.score_pairs(model, piece_tokenizer, tested, tokens), expected, atol=1e-4
    )


# paradigms whose two sentences have the same words, or whose pairs have twins
ORDER_DECIDES = []
for name, (phenomenon, _) in toy.pairs.PARADIGMS.items():
    if phenomenon not in toy.pairs.WORDS_DECIDE:
        ORDER_DECIDES.append(name)


@pytest.mark.parametrize("name", ORDER_DECIDES)
def test_a_model_without_positions_is_right_in_exactly_half_where_order_decides(
    toy_tokenizer, name
):
    tested = toy.pairs.zero_shot_pairs(name, 12)
    scores = pairs.score_pairs(random_model(toy_tokenizer, "none"), toy_tokenizer, tested, 4_096)
    assert pairs.judge(scores)["accuracy"] == 50


def test_a_tie_is_a_difference_below_a_ten_thousandth_and_counts_one_half():
    scores = np.array([[1.0, 0.0], [0.0, 1.0], [0.00009, 0.0], [0.0, 0.00009]])
    assert pairs.judge(scores) == {"accuracy": 100 * (1 + 2 / 2) / 4, "ties": 2}


# --- BLiMP's format -------------------------------------------------------------------------------


def line(name="u", phenomenon="p", good="a b.", bad="b a."):
    """A line of a file in the format of BLiMP."""
    row = {"UID": name, "linguistics_term": phenomenon, "sentence_good": good, "sentence_bad": bad}
    return json.dumps({**row, "field": "syntax"}) + "\n"


def test_a_folder_is_read_by_paradigm_and_sorted_by_phenomenon(tmp_path):
    (tmp_path / "1.jsonl").write_text(line("v", "z") + line("v", "z", "c.", "d."), "utf-8")
    (tmp_path / "2.jsonl").write_text(line("u", "a"), "utf-8")
    (tmp_path / "._2.jsonl").write_bytes(b"\xff")  # what macOS writes beside a file
    assert pairs.read_paradigms(str(tmp_path), None) == [
        pairs.Paradigm("u", "a", [("", "a b.", "b a.")]),
        pairs.Paradigm("v", "z", [("", "a b.", "b a."), ("", "c.", "d.")]),
    ]


@pytest.mark.parametrize("text", ["{", "[1]\n", line(good=""), line(bad=" "), '{"UID": "u"}\n'])
def test_a_line_that_is_no_pair_is_named(tmp_path, text):
    (tmp_path / "x.jsonl").write_text(line() + text, "utf-8")
    with pytest.raises(UserError, match="x.jsonl, line 2"):
        pairs.read_paradigms(str(tmp_path), None)


# --- Tables, computed by hand ---------------------------------------------------------------------

# {(variant, seed): accuracies of three paradigms in per cent}; the first two are one phenomenon
ACCURACIES = {
    ("fixed", 0): (60.0, 80.0, 50.0),
    ("fixed", 1): (62.0, 82.0, 60.0),
    ("none", 0): (50.0, 52.0, 49.0),
    ("none", 1): (51.0, 55.0, 50.0),
}


def runs_by_hand():
    runs = []
    for (variant, seed), accuracies in ACCURACIES.items():
        paradigms = []
        for name, phenomenon, accuracy in zip("abc", "xxy", accuracies, strict=True):
            scores = {"pll": {"accuracy": accuracy, "ties": 0}}
            paradigms.append(
                {"paradigm": name, "phenomenon": phenomenon, "pairs": 100, "scores": scores}
            )
        settings = {"variant": variant, "seed": seed, "steps": 5}
        runs.append({"run": f"{variant}{seed}", "settings": settings, "pairs": {"toy": paradigms}})
    return runs


def test_the_table_has_the_means_of_phenomena_and_of_all_paradigms():
    header, x, y, mean = pairs.accuracy_table(runs_by_hand(), "toy")
    assert header[1:] == ["fixed (2)", "none (2)"]
    assert x == ["x", mean_and_standard_error([70, 72], 1), mean_and_standard_error([51, 53], 1)]
    assert y == ["y", mean_and_standard_error([50, 60], 1), mean_and_standard_error([49, 50], 1)]
    of_none = [(50 + 52 + 49) / 3, 52.0]
    assert mean[0] == "mean of 3 paradigms" and mean[2] == mean_and_standard_error(of_none, 1)


def test_a_comparison_is_over_the_runs_with_equal_seeds():
    comparisons = pairs.compare_variants(runs_by_hand(), "toy", "fixed", "none")
    assert comparisons["x"].mean == pytest.approx((19 + 19) / 2)
    assert comparisons["y"].mean == pytest.approx((1 + 10) / 2)
    assert comparisons["y"].seeds == 2 and comparisons["y"].standard_error == pytest.approx(4.5)


@pytest.mark.parametrize("change", ["settings", "pairs"])
def test_runs_that_were_trained_or_scored_differently_are_not_put_into_one_table(change):
    runs = runs_by_hand()
    if change == "settings":
        runs[1]["settings"]["steps"] = 6
    else:
        runs[1]["pairs"]["toy"][0]["pairs"] = 99
    with pytest.raises(UserError):
        pairs.accuracy_table(runs, "toy")


# --- The command ----------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, toy_tokenizer):
    """A finished run with random weights."""
    folder = tmp_path / "run"
    folder.mkdir()
    save_run(folder, random_model(toy_tokenizer), toy_tokenizer)
    settings = {"variant": "composite", "seed": 0, "steps": 5}
    lines = [{"settings": settings}, {"step": 5, "held_out_loss": 1.0}]
    text = "".join(json.dumps(record) + "\n" for record in lines)
    (folder / "log.jsonl").write_text(text, "utf-8")
    return folder


def test_a_run_is_scored_once_and_its_file_has_the_accuracy_of_each_paradigm(
    run, tmp_path, run_program
):
    data_folder = tmp_path / "mine"
    data_folder.mkdir()
    text = line("u", "p", "the dog was tired.", "the dog were tired.")
    (data_folder / "u.jsonl").write_text(text, "utf-8")
    options = [run, "--data", data_folder, "--device", "cpu"]
    assert run_program(pairs.main, *options).code == 0

    result = json.loads((run / "pairs" / "mine.json").read_text("utf-8"))
    (paradigm,) = result["paradigms"]
    assert paradigm["pairs"] == 1 and paradigm["scores"]["pll"]["accuracy"] in (0, 50, 100)
    before = (run / "pairs" / "mine.json").read_bytes()
    assert "scored before" in run_program(pairs.main, *options).out
    assert (run / "pairs" / "mine.json").read_bytes() == before
    assert "mean of 1 paradigms" in run_program(pairs.main, *options, "--table").out

    # another model under the same name
    (run / "model.pt").write_bytes((run / "model.pt").read_bytes() + b" ")
    outcome = run_program(pairs.main, *options, "--table")
    assert outcome.code == 2 and "another model" in outcome.error


@pytest.mark.parametrize(
    "options, words",
    [
        (["nowhere"], "nowhere is not a run"),
        (["RUN", "--data", "nowhere"], "not a folder"),
        (["RUN", "--data", "EMPTY"], "no pairs"),
        (["RUN", "--table"], "has no result on toy"),
        (["RUN", "--compare", "composite", "none"], "has no result on toy"),
        (["RUN", "--device", "abacus"], "abacus"),
    ],
)
def test_a_mistake_of_the_user_is_one_line(run, tmp_path, run_program, options, words):
    (tmp_path / "empty").mkdir()
    names = {"RUN": run, "EMPTY": tmp_path / "empty"}
    arguments = [names.get(option, option) for option in options]
    outcome = run_program(pairs.main, *arguments)
    assert outcome.code == 2 and words in outcome.error
    assert outcome.error.count("\n") == 1
