"""pretrain.py: the seeds of steps, recipes, whole runs, kills, and a training that fails.

Which folder a run gets: test_changed_code.py. The training step: science/test_training.py.
"""

import itertools
import math
import os
import shlex
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pretrain
from conftest import (
    assert_same_run,
    be_pretrain,
    kill,
    log_of,
    needs_signals,
    start_process,
    write,
)
from model import BertConfig, BertForMaskedLM, load_run
from support import training
from support.files import load_checkpoint
from support.tokenizer import PAD


@pytest.fixture
def corpus(small_text):
    return small_text.corpus(32)


# --- Seeds and recipes ----------------------------------------------------------------------------


def test_the_seeds_of_steps_have_not_changed_and_are_all_different():
    """Otherwise a resumed run would not continue as it began, and no record could be repeated."""
    assert pretrain.step_seed(0, 0, "masks") == 3602406798727307485
    assert pretrain.step_seed(3, 5, "dropout") == 6899826213405961356

    every = itertools.product(range(10), range(100), ("masks", "dropout", "weights"))
    assert len({pretrain.step_seed(*each) for each in every}) == 3000


def recipe_of(line):
    return pretrain.recipe_for(pretrain.parse_arguments(line.split()))


def test_a_recipe_is_that_of_size_and_corpus_with_the_given_values():
    assert recipe_of("") == pretrain.TOY_RECIPE
    assert recipe_of("--corpus a.txt") == pretrain.RECIPES["tiny"]
    changed = recipe_of("--lr 0.5 --batch_size 3")
    assert (changed.lr, changed.batch_size, changed.seq_len) == (0.5, 3, 64)

    # a shorter run warms up for a tenth of its steps
    assert recipe_of("--steps 500").warmup_steps == 50
    assert recipe_of("--steps 500 --warmup_steps 9").warmup_steps == 9


def test_a_model_of_another_size_is_trained_further_by_the_recipe_of_the_next_smaller_one():
    """An imported BERT-large with the rate of tiny would forget what it has learned."""
    for width, size in ((64, "tiny"), (128, "tiny"), (384, "small"), (768, "base"), (1024, "base")):
        assert pretrain.size_of(BertConfig.from_size("tiny", hidden_size=width)) == size


def test_on_a_gpu_more_logits_are_computed_than_any_number_of_masked_tokens(monkeypatch):
    monkeypatch.setattr(training, "SYNCHRONOUS", ())
    for tokens in (8, 512, 8192):
        count = training.prediction_count(torch.full((1, tokens), -100), label_share=0.15)
        masked = np.random.default_rng(0).binomial(tokens, 0.15, 10_000)
        assert count % 64 == 0 and count >= masked.max()
    assert count == 1472  # 1228.8 + 6 * 32.3, rounded up


@pytest.mark.parametrize("name", ["my runs/it's one", "runs/a\nb-composite"])
def test_the_next_command_can_be_pasted_if_a_name_has_spaces_or_a_line_end(name, capsys):
    args = SimpleNamespace(corpus=["toy"], causal=False)
    training.say_next(Path(name), args)
    command = shlex.split(capsys.readouterr().out.partition("next: ")[2])
    assert command[:3] == ["python", "model.py", name]


def test_a_text_with_a_line_end_in_its_name_is_trained_on_and_found_again(tmp_path, run_program):
    text = write(tmp_path / "a\nb.txt", "The dog barks.\nA cat runs.\nYes.\nNo.\n" * 9)
    options = ["--steps 1 --batch_size 2 --device cpu --cache_dir", tmp_path, "--corpus", text]
    for rate, number in (("--lr 1e-3", ""), ("--lr 1e-4", "-2")):
        run_program(pretrain.main, rate, *options, "--out_dir", tmp_path / "runs")
        assert (tmp_path / f"runs/a\nb-composite{number}/model.pt").exists()


# --- Whole runs -----------------------------------------------------------------------------------


def test_a_run_learns_more_than_word_frequencies_and_leaves_a_model_that_loads(
    start, corpus, tmp_path
):
    start("--steps 300 --eval_every 300 --dropout 0 --lr 0.01")
    folder = tmp_path / "corpus-composite"
    records = log_of(folder)

    # the entropy is what a model reaches that sees no context
    counts = np.bincount(corpus.tokens)
    share = counts[counts > 0] / len(corpus.tokens)
    entropy = -(share * np.log(share)).sum()
    assert records[-1]["held_out_loss"] < entropy - 0.3

    # the model that is left is the one that was evaluated
    model, _ = load_run(folder)
    device = torch.device("cpu")
    loss, accuracy = pretrain.evaluate(model, corpus, 8, device, torch.float32)
    assert loss == records[-1]["held_out_loss"]
    assert accuracy == records[-1]["held_out_accuracy"]


def test_the_log_has_the_steps_and_the_evaluations_and_what_they_depend_on(start, corpus, tmp_path):
    start("--steps 7 --eval_every 3 --warmup_steps 2")
    first, *records = log_of(tmp_path / "corpus-composite")
    steps = [record for record in records if "loss" in record]
    evaluations = [record for record in records if "held_out_loss" in record]
    assert [record["step"] for record in steps] == [1, 2, 3, 4, 5, 6, 7]
    assert [record["step"] for record in evaluations] == [3, 6, 7]

    tokens = sum((corpus.batch(0, step, 8) != PAD).sum().item() for step in range(7))
    assert steps[-1]["tokens"] == tokens
    assert steps[-1]["lr"] == pretrain.learning_rate(6, 7, 2, 1e-3)
    assert first["settings"]["kernel_size"] == 17
    assert first["settings"]["corpus"] == corpus.fingerprint


def test_each_variant_with_each_seed_is_a_run_of_its_own(start, tmp_path):
    start("--variant none composite --seed 1 2 --steps 2")
    names = ("none-seed1", "none-seed2", "composite-seed1", "composite-seed2")
    assert len({log_of(tmp_path / f"corpus-{name}")[-1]["held_out_loss"] for name in names}) == 4


# --- Kills ----------------------------------------------------------------------------------------


@needs_signals
def test_a_run_killed_at_random_moments_equals_an_uninterrupted_one_to_the_bit(
    start, short_run, tmp_path
):
    """With dropout. 200 steps are logged every 2 steps; most kills are between two lines."""
    options = "--steps 200 --eval_every 10 --dropout 0.1 --out_dir"
    start(options, tmp_path / "whole")

    state = tmp_path / "broken/corpus-composite/train_state.pt"
    step = 0

    def has_trained_on():
        return state.exists() and load_checkpoint(state)["step"] > step

    for number in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        process = start_process(be_pretrain, short_run(options, tmp_path / "broken"))
        code = kill(process, number, has_trained_on, pause=0.05)
        assert code in (-number, 128 + number)
        step = load_checkpoint(state)["step"]  # complete at any moment

    start(options, tmp_path / "broken")
    assert_same_run(tmp_path / "broken", tmp_path / "whole")


@needs_signals
def test_a_signal_during_the_last_evaluation_finishes_the_run_and_ends_the_command(
    start, tmp_path, monkeypatch
):
    true_evaluate = pretrain.evaluate

    def evaluate(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return true_evaluate(*arguments)

    monkeypatch.setattr(pretrain, "evaluate", evaluate)
    start("--steps 3 --eval_every 3 --seed 0 1", code=143)
    assert not (tmp_path / "corpus-composite-seed1" / "model.pt").exists()
    assert log_of(tmp_path / "corpus-composite-seed0")[-1]["step"] == 3


# --- Training that fails --------------------------------------------------------------------------


def test_a_loss_that_is_no_number_stops_the_run_and_the_last_good_state_stays(
    start, tmp_path, monkeypatch
):
    true_loss = BertForMaskedLM.head_loss
    losses = []

    def loss(*arguments):
        losses.append(true_loss(*arguments))
        return losses[-1] * (math.nan if len(losses) == 17 else 1.0)

    monkeypatch.setattr(BertForMaskedLM, "head_loss", loss)
    assert "nan at step 17" in start("--steps 20 --eval_every 5", code=1)
    state = load_checkpoint(tmp_path / "corpus-composite/train_state.pt")
    assert state["step"] == 15
    assert all(weight.isfinite().all() for weight in state["model"].values())
