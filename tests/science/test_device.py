"""Training on a GPU, tried without one: pretended_device.py explains how.

A tensor that was left on the CPU, and every wait for the device, is an error, except in MAY_WAIT.
The losses equal those of the CPU. This does not show the speed, the memory and the precision of a
GPU, nor what CUDA's own functions compute.
"""

from functools import partial

import pytest
import torch

import glue
import pretrain
from data import prepare_corpus
from helpers import every_variant
from model import BertForClassification, BertForMaskedLM, save_run
from model_helpers import WORDS, small_config, word_tokenizer
from pretended_device import CPU, DEVICE, pretended_device, waiting_allowed
from support.glue_files import Examples
from support.runs import place_for
from support.tokenizer import CLS, PAD
from support.training import CHECKPOINT

SETTINGS = {
    "task": "mrpc",
    "seed": 3,
    "steps": 4,
    "warmup_steps": 1,
    "lr": 0.01,
    "weight_decay": 0.1,
    "batch_size": 8,
}

# These functions move the model to the device or read results, once in many steps.
MAY_WAIT = (
    (pretrain, "make_trainer"),
    (pretrain.Trainer, "resume"),
    (pretrain.Trainer, "log"),
    (pretrain, "evaluate"),
    (glue, "predict"),
)

LENGTHS = (10, 17, 24)


@pytest.fixture(autouse=True)
def settings_of_these_tests(monkeypatch):
    for owner, name in MAY_WAIT:
        monkeypatch.setattr(owner, name, waiting_allowed()(getattr(owner, name)))


def near(numbers):
    return pytest.approx(numbers, rel=1e-5)


def trainer_on(device, model, **how):
    return pretrain.make_trainer(model, SETTINGS, device, torch.float32, **how)


def make(kind, *arguments):
    """A model. It has the same weights every time."""
    torch.manual_seed(1)
    return kind(*arguments)


# --- Pre-training ---------------------------------------------------------------------------------


class RandomSentences:
    """In each step two sentences, of N and of N - 7 tokens; N is the next of LENGTHS."""

    vocab_size = len(WORDS)

    def batch(self, seed, step, batch_size):
        ids = torch.randint(5, len(WORDS), (2, LENGTHS[step]))
        ids[:, 0] = CLS
        ids[1, -7:] = PAD
        return ids


def losses(variant, device):
    """The loss of each step. It depends on all gradients of the steps before."""
    config = small_config(variant, max_length=LENGTHS[-1])
    trainer = trainer_on(device, make(BertForMaskedLM, config))
    found = []
    for _ in LENGTHS:
        pretrain.train_step(trainer, RandomSentences())
        found.append(trainer.log())
    return found


@every_variant
def test_training_never_waits_for_the_device_and_equals_that_on_a_cpu(variant):
    expected = losses(variant, CPU)
    with pretended_device():
        assert losses(variant, DEVICE) == near(expected)


def resumed_run(device, corpus, folder):
    """The last evaluation of a run of four steps that was stopped after two of them."""
    config = small_config(vocab_size=corpus.vocab_size)
    stopped = trainer_on(device, make(BertForMaskedLM, config))
    place = place_for(folder, stopped.records[0])
    for _ in range(2):
        pretrain.train_step(stopped, corpus)
    stopped.log()
    stopped.save(place / CHECKPOINT)

    resumed = trainer_on(device, make(BertForMaskedLM, config), micro_batch=3)
    pretrain.train(
        resumed,
        folder,
        one_step=partial(pretrain.train_step, resumed, corpus),
        held_out_scores=partial(pretrain.evaluate, resumed.model, corpus, 8, device, torch.float32),
        save_model=partial(save_run, model=resumed.model, tokenizer=corpus.tokenizer),
        eval_every=1,
    )
    return resumed.records[-1]


def test_a_run_is_evaluated_saved_and_resumed_as_on_a_cpu(small_text, tmp_path):
    corpus = prepare_corpus([str(small_text.file)], small_text.cache, 24, 1_000)
    expected = resumed_run(CPU, corpus, tmp_path / "cpu")
    with pretended_device():
        assert resumed_run(DEVICE, corpus, tmp_path / "device") == near(expected)


# --- Fine-tuning ----------------------------------------------------------------------------------


def fine_tuned(device, labels, classes, checkpoint):
    """The losses of four steps, and then the answers, for pairs of sentences of 1 to 5 words."""
    texts = [" ".join(WORDS[5 : 6 + i % 5]) for i in range(len(labels))]
    pairs = glue.LabelledPairs(Examples(texts, texts, labels), word_tokenizer(), 24)
    model = make(BertForClassification, small_config(), classes)
    trainer = trainer_on(device, model)
    glue.fine_tune(trainer, pairs, checkpoint)
    answers = glue.predict(trainer.model, pairs, device, torch.float32)
    return [record["loss"] for record in trainer.records[1:]], answers


@pytest.mark.parametrize("labels, classes", [([0, 1, 2] * 8, 3), ([0.5, 2.0, 5.0] * 8, 1)])
def test_fine_tuning_never_waits_for_the_device_and_equals_that_on_a_cpu(labels, classes, tmp_path):
    checkpoint = tmp_path / "state.pt"  # four steps are not saved
    expected, expected_answers = fine_tuned(CPU, labels, classes, checkpoint)
    with pretended_device():
        found, answers = fine_tuned(DEVICE, labels, classes, checkpoint)
    assert found == near(expected)
    assert answers == near(expected_answers)
