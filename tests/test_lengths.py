"""lab/lengths.py: the same hidden tokens at every length, the loss of the model, its errors."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import pretrain
from conftest import ROOT
from data import CLS, PAD, SEP, prepare_corpus
from lab import lengths
from lab.report import read_records
from model import BertConfig, BertForMaskedLM, load_run
from support.files import sha256_of
from support.statistics import mean_and_standard_error

LENGTHS = (7, 16, 33, 65)
LONGEST = 65


@pytest.fixture(scope="module")
def corpus(small_text):
    return prepare_corpus([str(small_text.file)], small_text.cache, 16, log=str)


@pytest.fixture(scope="module")
def runs(small_text, tmp_path_factory):
    """Two steps of `alibi` with two seeds, and of `absolute`: {name: folder}."""
    folder = tmp_path_factory.mktemp("lengths")
    common = ["--corpus", small_text.file, "--cache_dir", small_text.cache, "--device", "cpu"]
    common += ["--steps", 2, "--batch_size", 4, "--seq_len", 16, "--dtype", "fp32"]
    found = {}
    for variant, seed in (("alibi", 0), ("alibi", 1), ("absolute", 0)):
        found[f"{variant}{seed}"] = folder / f"{variant}{seed}"
        options = ["--variant", variant, "--seed", seed, "--out_dir", folder / f"{variant}{seed}"]
        assert pretrain.main([str(option) for option in [*common, *options]]) == 0
    return found


# --- The text -------------------------------------------------------------------------------------


def test_the_text_is_the_held_out_sentences_in_order_with_a_sep_after_each(corpus):
    text = lengths.held_out_stretches(corpus, LONGEST).flatten().tolist()
    tokens = []
    for pair in sorted(corpus.held_out.tolist()):
        first = corpus.first_sentences[pair]
        for sentence in (first, first + 1):
            begin, end = corpus.sentence_starts[sentence : sentence + 2]
            tokens += [*corpus.tokens[begin:end].tolist(), SEP]

    assert text == tokens[: len(text)]
    assert len(text) > len(tokens) - (LONGEST - 1)


def test_the_labels_are_the_tokens_that_the_masks_hide(corpus, monkeypatch):
    """With all tokens scored: what the model gets, and the labels, make up the text."""
    every_token = torch.ones(LONGEST - 1, dtype=torch.bool)
    monkeypatch.setattr(lengths, "scored_positions", lambda width, lengths: every_token)
    text = lengths.held_out_text(corpus, LENGTHS)
    original = torch.where(text.labels == -100, text.masked_ids, text.labels)
    assert (original == lengths.held_out_stretches(corpus, LONGEST)).all()
    assert (text.labels != -100).any()


def test_a_held_out_text_that_is_too_short_is_refused_in_one_line(corpus):
    with pytest.raises(ValueError, match="too few for a row of 9,999,999") as refused:
        lengths.held_out_text(corpus, [8, 9_999_999])
    assert "\n" not in str(refused.value)


def test_the_drawing_of_scored_positions_is_what_it_makes():
    scored = lengths.scored_positions(12, [5, 7], margin=1)
    assert "".join(".x"[int(each)] for each in scored) == ".xx......xx."


def test_scored_tokens_are_hidden_and_have_the_margin_in_full_rows_of_every_length(corpus):
    text = lengths.held_out_text(corpus, [33, LONGEST])
    assert (text.labels != -100).any()
    for N in (33, LONGEST):
        _, labels = lengths.rows_of_length(text, N)  # column 0 is [CLS]
        assert (labels[:, : 1 + lengths.MARGIN] == -100).all()
        assert (labels[:, N - lengths.MARGIN :] == -100).all()

    # a stretch of 64 tokens: two rows of [CLS] and 30 tokens, and 4 tokens more
    scored = lengths.scored_positions(64, [31])
    assert not scored[60:].any()


def test_lengths_at_which_no_token_is_scored_are_refused(corpus):
    with pytest.raises(ValueError, match="give longer --lengths"):
        lengths.held_out_text(corpus, [4, 5, 6, 7])


def test_the_drawing_of_rows_of_length_is_what_it_makes():
    ids = torch.arange(10, 26).view(2, 8)
    labels = torch.full((2, 8), -100)
    labels[0, 1] = 7
    labels[1, 3] = 9
    rows, row_labels = lengths.rows_of_length(lengths.HeldOutText(ids, labels), 4)
    first_stretch = [[CLS, 10, 11, 12], [CLS, 13, 14, 15]]
    second_stretch = [[CLS, 18, 19, 20], [CLS, 21, 22, 23]]
    assert rows.tolist() == first_stretch + second_stretch
    first_labels = [[-100, -100, 7, -100], [-100] * 4]
    second_labels = [[-100] * 4, [-100, 9, -100, -100]]
    assert row_labels.tolist() == first_labels + second_labels


def test_at_every_length_the_same_tokens_are_hidden(corpus):
    text = lengths.held_out_text(corpus, LENGTHS)
    expected = sorted(text.labels[text.labels != -100].tolist())
    for N in LENGTHS:
        ids, labels = lengths.rows_of_length(text, N)
        assert ids.shape[1] == N
        assert (ids[:, 0] == CLS).all()
        assert sorted(labels[labels != -100].tolist()) == expected
        assert (ids != PAD).all()


# --- End weights ----------------------------------------------------------------------------------


def model_of(variant, **options):
    """A tiny model that was trained with rows of 8 tokens, with random betas."""
    config = BertConfig.from_size("tiny", variant, vocab_size=10, max_length=8, **options)
    model = BertForMaskedLM(config)
    for layer in model.bert.layers:
        torch.nn.init.normal_(layer.mixer.terms["fixed"].beta)
    return model


def test_the_end_weights_are_divided_by_the_ratio_of_the_lengths_and_the_others_stay():
    """Rows of 256 tokens are 32 times as long as those of the training. The model itself stays."""
    model = model_of("fixed")
    before = [layer.mixer.terms["fixed"].beta.detach().clone() for layer in model.bert.layers]
    changed = lengths.with_divided_end_weights(model, 256)
    for layer, own, beta in zip(changed.bert.layers, model.bert.layers, before, strict=True):
        ratio = (layer.mixer.terms["fixed"].beta.detach() - beta).exp()  # (H, K)
        assert torch.allclose(ratio[:, [0, -1]], torch.tensor(1 / 32), rtol=1e-5)
        assert (ratio[:, 1:-1] == 1).all()
        assert (own.mixer.terms["fixed"].beta == beta).all()


def test_rows_that_are_no_longer_than_those_of_the_training_keep_their_weights():
    model = model_of("composite")
    changed = lengths.with_divided_end_weights(model, 4).state_dict()
    assert all((tensor == changed[name]).all() for name, tensor in model.state_dict().items())


def test_the_numbers_of_far_tokens_in_the_documents_are_those_of_a_count():
    """Tokens at least 8 positions away, on average over the tokens of a row."""
    counted = {}
    for N in (128, 2048):
        i = np.arange(N)
        counted[N] = (np.abs(i[:, None] - i) >= 8).sum() / N
        assert counted[N] == (N - 8) * (N - 7) / N
    assert (round(counted[128]), round(counted[2048])) == (113, 2033)
    assert round(counted[2048] / counted[128]) == 18

    # the documents
    docstring = " ".join(lengths.__doc__.split())
    assert "113 in a row of 128, and 2,033 in a row of 2,048" in docstring
    assert "18 times as much" in docstring
    results = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    assert "about 113 such far tokens; in a row of 2,048, about 2,033." in results
    assert "18 times as much" in results


def test_end_weights_that_are_not_used_beyond_the_kernel_are_refused():
    lengths.check_end_weights("run", model_of("composite").config)
    with pytest.raises(ValueError, match="not for composite with --beyond zero"):
        lengths.check_end_weights("run", model_of("composite", beyond="zero").config)


def test_a_run_without_end_weights_is_refused_in_one_line(runs, small_text, run_program):
    arguments = [runs["alibi0"], "--corpus", small_text.file, "--divide_end_weights"]
    code, _, error = run_program(lengths.main, *arguments)
    assert code == 2
    assert "is for variants with a fixed term" in error
    assert len(error.strip().splitlines()) == 1


# --- The loss -------------------------------------------------------------------------------------


def rows_cut_one_by_one(text, N):
    """Yield (ids, labels) of each row, two lists. The last row of a stretch may be shorter."""
    for ids, labels in zip(text.masked_ids.tolist(), text.labels.tolist(), strict=True):
        while ids:
            yield [CLS, *ids[: N - 1]], [-100, *labels[: N - 1]]
            ids = ids[N - 1 :]
            labels = labels[N - 1 :]


def test_the_loss_is_the_mean_of_minus_log_p_over_all_hidden_tokens(corpus, runs):
    """Row by row, cut from the stretches one after the other; the program has batches."""
    text = lengths.held_out_text(corpus, (20, LONGEST))
    model, _ = load_run(runs["alibi0"])
    got = lengths.loss_at(model, text, 20, torch.device("cpu"), torch.float32)

    losses = []
    for ids, labels in rows_cut_one_by_one(text, 20):
        log_p = F.log_softmax(model(torch.tensor([ids]))[0].double(), dim=-1)  # (n, V)
        for place, label in enumerate(labels):
            if label != -100:
                losses.append(-log_p[place, label].item())
    assert len(losses) == (text.labels != -100).sum()
    assert abs(got - np.mean(losses)) < 1e-5


def test_every_run_is_measured_and_absolute_ends_with_its_table(
    corpus, runs, small_text, run_program, tmp_path
):
    out = tmp_path / "lengths.jsonl"
    arguments = [*runs.values(), "--corpus", small_text.file, "--cache_dir", small_text.cache]
    arguments += ["--lengths", 40, 16, 8, 16, "--device", "cpu", "--dtype", "fp32", "--out", out]
    code, printed, error = run_program(lengths.main, *arguments)
    assert code == 0, error

    # one line says what is left out, and the other runs go on
    lines = [line for line in printed.splitlines() if "cannot read" in line]
    assert len(lines) == 1 and "absolute0 cannot read [40] tokens" in lines[0]

    # one record per run
    records = read_records(out)
    assert [record["run"] for record in records] == ["alibi0", "alibi1", "absolute0"]
    for record in records:
        assert sha256_of(runs[record["run"]] / "model.pt").startswith(record["model"])
    losses = {}
    for record in records:
        assert record["measured"] == records[0]["measured"]
        assert record["measured"]["lengths"] == [8, 16, 40]
        assert record["measured"]["dtype"] == "float32"
        assert record["measured"]["divide_end_weights"] is False
        assert record["measured"]["scored"] > 0
        assert record["settings"]["corpus"] == corpus.fingerprint
        for N, loss in record["losses"]:
            losses[record["run"], N] = loss
    expected = [(f"alibi{seed}", N) for seed in (0, 1) for N in (8, 16, 40)]
    assert list(losses) == [*expected, ("absolute0", 8), ("absolute0", 16)]

    # the table: mean and standard error over two runs, and a dash
    table = {line.split()[0]: line for line in printed.splitlines() if line.strip()}
    cells = []
    for N in (8, 16, 40):
        cells.append(mean_and_standard_error([losses["alibi0", N], losses["alibi1", N]]))
    assert table["alibi"].split() == " ".join(["alibi", *cells]).split()
    assert table["alibi"].count("+-") == 3
    single = [f"{losses['absolute0', N]:.3f}" for N in (8, 16)]
    assert table["absolute"].split() == ["absolute", *single, "-"]


def test_divided_end_weights_are_divided_for_each_length_alone(
    corpus, small_text, run_program, tmp_path
):
    """Rows of the training keep their loss. At 24 and 40 tokens, the divisors are 1.5 and 2.5."""
    text = ["--corpus", small_text.file, "--cache_dir", small_text.cache, "--device", "cpu"]
    text += ["--dtype", "fp32"]
    training = ["--variant", "fixed", "--steps", 2, "--batch_size", 4, "--seq_len", 16]
    training += ["--out_dir", tmp_path / "run"]
    code, _, error = run_program(pretrain.main, *text, *training)
    assert code == 0, error

    losses = {}
    for name, options in (("whole", []), ("divided", ["--divide_end_weights"])):
        out = tmp_path / f"{name}.jsonl"
        measuring = [tmp_path / "run", *text, "--lengths", 16, 24, 40, "--out", out, *options]
        code, _, error = run_program(lengths.main, *measuring)
        assert code == 0, error
        (record,) = read_records(out)
        losses[name] = dict(record["losses"])
    assert losses["divided"][16] == losses["whole"][16]

    # longer rows: the loss of the model whose weights were divided once
    held_out = lengths.held_out_text(corpus, (16, 24, 40))
    for N in (24, 40):
        model, _ = load_run(tmp_path / "run")
        divided = lengths.with_divided_end_weights(model, N)
        expected = lengths.loss_at(divided, held_out, N, torch.device("cpu"), torch.float32)
        assert losses["divided"][N] == expected
        assert losses["divided"][N] != losses["whole"][N]


def test_a_run_of_another_corpus_is_refused_in_one_line(runs, run_program, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("A dog saw a cat. A cat saw a dog.\n\n" * 200, encoding="utf-8")
    arguments = [runs["alibi0"], "--corpus", other, "--cache_dir", tmp_path / "cache"]
    code, _, error = run_program(lengths.main, *arguments)
    assert code == 2
    assert "was not trained on this --corpus" in error
    assert len(error.strip().splitlines()) == 1


def test_a_run_with_a_vocabulary_of_its_own_needs_the_same_vocab_size_again(
    small_text, run_program, tmp_path
):
    text = ["--corpus", small_text.file, "--cache_dir", small_text.cache, "--device", "cpu"]
    training = ["--vocab_size", 30, "--steps", 1, "--seq_len", 16, "--out_dir", tmp_path / "run"]
    code, _, error = run_program(pretrain.main, *text, *training)
    assert code == 0, error

    measuring = [tmp_path / "run", *text, "--lengths", 8]
    code, _, error = run_program(lengths.main, *measuring)
    assert code == 2 and "--vocab_size" in error
    code, _, error = run_program(lengths.main, *measuring, "--vocab_size", 30)
    assert code == 0, error
