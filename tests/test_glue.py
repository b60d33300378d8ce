"""glue.py: batches, fine-tuning, the protocol, results that survive a kill, what users do wrong."""

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import glue
from data import CLS, PAD, SEP, train_tokenizer
from glue import Job, LabelledPairs, Trainer, classify, evaluate, predict
from glue_helpers import failure, run_glue, with_equal_rows, write_lines
from model import SIZES, BertConfig, BertForClassification, BertForMaskedLM, save_run
from support import progress as progress_file
from support.glue_format import FORMATS, Examples, read_task
from support.glue_metrics import scores
from support.glue_submission import CHOSEN_ON, SUBMISSION, submission_text
from support.progress import Progress
from toy import glue as toy_glue
from toy import language as toy_language

CPU = torch.device("cpu")
ROWS = 24  # in every file of the small toy tasks


# --- Small things to train on ---------------------------------------------------------------------


@pytest.fixture(scope="session")
def tokenizer():
    """The tokenizer of a small part of the toy language."""
    sample = []
    for document in toy_language.documents(0, 5000):
        for sentence in document:
            sample.append(toy_language.spell(sentence))
    return train_tokenizer(sample, 2000, log=ignore)


def ignore(line):
    """A log whose lines do not matter."""


def small_config(tokenizer):
    """A model that trains in no time."""
    return BertConfig(
        "composite",
        tokenizer.get_vocab_size(),
        layers=1,
        hidden_size=16,
        ffn_size=32,
        heads=2,
        embedding_size=16,
        max_length=64,
    )


@pytest.fixture(scope="session")
def small_glue(tmp_path_factory):
    """A folder with the toy tasks, with few rows in every file."""
    folder = tmp_path_factory.mktemp("small") / "glue"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy_glue, "GLUE_ROWS", small_glue_rows())
        toy_glue.write_tasks(folder)
    return folder


def small_glue_rows():
    """The row counts of `small_glue`, in the form of toy.glue.GLUE_ROWS."""
    return {name: dict.fromkeys(rows, ROWS) for name, rows in toy_glue.GLUE_ROWS.items()}


@pytest.fixture
def small_toy(small_glue, monkeypatch):
    """Lets `--data_dir toy` mean these few rows."""

    def copy_small_glue(folder):
        shutil.copytree(small_glue, folder, dirs_exist_ok=True)

    monkeypatch.setattr(toy_glue, "write_tasks", copy_small_glue)
    monkeypatch.setattr(toy_glue, "GLUE_ROWS", small_glue_rows())


@pytest.fixture
def run(tokenizer, tmp_path):
    """The folder of an untrained run."""
    torch.manual_seed(0)
    folder = tmp_path / "composite"
    folder.mkdir()
    save_run(folder, BertForMaskedLM(small_config(tokenizer)), tokenizer)
    return folder


def toy_options(run):
    """The toy tasks, in float32 on the CPU."""
    cache = run.parent / "cache"
    return ["--data_dir", "toy", "--cache_dir", cache, "--dtype", "fp32", "--device", "cpu"]


def tune(run_program, run, *arguments):
    """Fine-tune on the small toy tasks, one epoch unless given otherwise. Returns the output."""
    if "--epochs" not in arguments:
        arguments = [*arguments, "--epochs", 1]
    outcome = run_glue(run_program, run, *toy_options(run), "--batch_size", 8, *arguments)
    assert outcome.code == 0, outcome.error
    return outcome.out


def results(run, name="glue"):
    """The records of results.jsonl, without what may differ between two equal runs."""
    records = []
    for line in (run / name / "results.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        del record["seconds"]
        del record["made_by"]
        records.append(record)
    return records


def labelled(name, a, b, labels, split="train"):
    """Examples of a task."""
    return Examples(FORMATS[name], split, a, b, labels, None, False, ())


def made_pairs(tokenizer, count=40, name="mrpc"):
    """LabelledPairs of 1 to 12 words each; the labels alternate."""
    rng = random.Random(0)

    def text():
        words = [rng.choice(["the dog", "cats"]) for _ in range(rng.randint(1, 12))]
        return " ".join(words)

    a = [text() for _ in range(count)]
    b = [text() for _ in range(count)]
    labels = [index % 2 for index in range(count)]
    return LabelledPairs(labelled(name, a, b, labels), tokenizer, 64)


def new_trainer(tokenizer, folder, train, **options):
    """A Trainer of a small classifier on a random encoder; `options` change the settings."""
    settings = {
        "seed": 42,
        "batch_size": 8,
        "steps": 10,
        "warmup_steps": 1,
        "lr": 1e-3,
        "dropout": 0.1,
        "weight_decay": 0.0,
    }
    settings |= options
    torch.manual_seed(1)
    encoder = BertForMaskedLM(small_config(tokenizer)).state_dict()
    num_labels = glue.label_count(train.examples.task)
    model = glue.make_classifier(small_config(tokenizer), num_labels, encoder, settings)
    return Trainer(model, settings, folder / "train_state.pt", CPU, torch.float32)


def fine_tune(trainer, train, dev, metrics):
    """glue.fine_tune, outside of a command with several jobs."""
    progress = Progress([], 0)
    progress.step_cost = 1.0
    return glue.fine_tune(trainer, train, dev, metrics, progress)


def note_losses(trainer, monkeypatch):
    """A list that gets the loss of every step."""
    losses = []
    update = trainer.update

    def note_loss(loss):
        losses.append(loss.item())
        update(loss)

    monkeypatch.setattr(trainer, "update", note_loss)
    return losses


def assert_equal_weights(one, other):
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name


# --- Batches --------------------------------------------------------------------------------------


def test_an_epoch_holds_every_row_once_but_for_a_remainder_and_the_next_has_another_order(
    tokenizer,
):
    data = made_pairs(tokenizer, 43)
    first = [data.batch_indices(7, step, 8).tolist() for step in range(5)]
    second = [data.batch_indices(7, step, 8).tolist() for step in range(5, 10)]
    for epoch in (first, second):
        rows = [row for batch in epoch for row in batch]
        assert len(rows) == len(set(rows)) == 40
        assert set(rows) <= set(range(43))
    assert first != second
    assert data.batch_indices(8, 0, 8).tolist() != first[0]


def test_the_batch_of_a_step_is_a_function_of_seed_and_step(tokenizer):
    data = made_pairs(tokenizer)
    again = made_pairs(tokenizer)
    expected = [data.batch(42, step, 8) for step in range(12)]
    for step in (11, 3, 7, 0):
        assert torch.equal(again.batch(42, step, 8), expected[step])


def test_batches_are_random_although_length_tells_the_label(tokenizer):
    """The short half of the rows has label 0, the long half label 1.

    In random batches of B rows, the mean label has the variance p (1 - p) / B, here 0.25 / 8, and
    the mean length the variance of the lengths / B. Sorted batches have 8 times as much. Over 500
    batches the standard deviation of a variance is 6 %: 25 % is four of these.
    """
    data = made_pairs(tokenizer, 400)
    labels = data.lengths > np.median(data.lengths)  # (rows,)
    mean_labels = []
    mean_lengths = []
    for step in range(500):
        indices = data.batch_indices(0, step, 8)
        mean_labels.append(labels[indices].mean())
        mean_lengths.append(data.lengths[indices].mean())
    assert np.var(mean_labels) == pytest.approx(np.var(labels) / 8, rel=0.25)
    assert np.var(mean_lengths) == pytest.approx(np.var(data.lengths) / 8, rel=0.25)


def test_a_batch_is_as_wide_as_its_longest_row_in_steps_of_8(tokenizer):
    data = made_pairs(tokenizer, 40)
    widths = set()
    for step in range(20):
        longest = data.lengths[data.batch_indices(3, step, 2)].max()
        width = data.batch(3, step, 2).shape[1]
        assert width % 8 == 0
        assert width - 8 < longest <= width
        widths.add(width)
    assert len(widths) > 2


def test_a_row_is_cls_a_sep_b_sep_and_its_length_is_known(tokenizer):
    a = ["the dog [SEP] slept.", "anna"]
    b = ["the cats were tired.", "tom"]
    data = LabelledPairs(labelled("rte", a, b, [0, 1]), tokenizer, 64)
    ids = data.rows([0, 1])
    assert (ids[:, 0] == CLS).all()
    assert ((ids == SEP).sum(axis=1) == 2).all()  # "[SEP]" in a text is text
    anna = tokenizer.token_to_id("▁anna")
    tom = tokenizer.token_to_id("▁tom")
    assert ids[1].tolist()[:5] == [CLS, anna, SEP, tom, SEP]
    assert data.lengths.tolist() == (ids != PAD).sum(axis=1).tolist()


def test_texts_are_encoded_alike_in_parts_of_any_size(tokenizer, monkeypatch):
    whole = made_pairs(tokenizer, 10)
    monkeypatch.setattr(glue, "ENCODED_AT_ONCE", 3)
    in_parts = made_pairs(tokenizer, 10)
    assert np.array_equal(in_parts.rows(range(10)), whole.rows(range(10)))


def test_single_sentences_have_no_second_part_and_long_ones_are_cut(tokenizer):
    examples = labelled("sst-2", ["the film was good. " * 30], None, [1])
    data = LabelledPairs(examples, tokenizer, 16)
    ids = data.rows([0])
    assert ids.shape == (1, 16)
    assert ids[0, -1] == SEP
    assert (ids == SEP).sum() == 1
    assert data.lengths.tolist() == [16]


# --- From token ids to answers --------------------------------------------------------------------


def test_token_types_are_1_for_the_second_sentence_and_the_mask_leaves_padding_out():
    seen = {}

    def model(input_ids, attention_mask, token_type_ids):
        seen["mask"] = attention_mask.tolist()
        seen["types"] = token_type_ids.tolist()

    batch = [
        [CLS, 9, 9, SEP, 8, SEP],
        [CLS, 9, SEP, PAD, PAD, PAD],
        [CLS, 9, SEP, 8, SEP, PAD],
    ]
    classify(model, torch.tensor(batch))
    assert seen["types"] == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0]]
    assert seen["mask"] == [
        [True, True, True, True, True, True],
        [True, True, True, False, False, False],
        [True, True, True, True, True, False],
    ]


@pytest.mark.parametrize("name, num_labels", [("mrpc", 2), ("mnli", 3), ("sts-b", 1)])
@torch.no_grad()
def test_predictions_are_those_of_each_row_alone(tokenizer, name, num_labels):
    data = made_pairs(tokenizer, 21, name)
    torch.manual_seed(0)
    model = BertForClassification(small_config(tokenizer), num_labels).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight)

    # move the mean of the scores to 0, so that there are answers of every kind
    together = classify(model, torch.from_numpy(data.rows(range(21))))
    model.classifier.bias -= together.mean(dim=0)

    predicted = predict(model, data, CPU, torch.float32, batch_size=4)
    expected = []
    for row in range(21):
        alone = classify(model.eval(), torch.from_numpy(data.rows([row])))[0]
        expected.append(alone.argmax().item() if num_labels > 1 else alone[0].item())
    assert len(set(expected)) > 1
    np.testing.assert_allclose(predicted, expected, atol=1e-5, rtol=0)


# --- Fine-tuning ----------------------------------------------------------------------------------


def test_a_word_that_tells_the_class_is_learnt(tokenizer, tmp_path):
    a = [f"the {word} slept near the house." for word in ("dog", "cat") * 32]
    data = LabelledPairs(labelled("sst-2", a, None, [0, 1] * 32), tokenizer, 64)
    trainer = new_trainer(tokenizer, tmp_path, data, steps=60, batch_size=16, lr=1e-2)
    assert fine_tune(trainer, data, {"dev": data}, ("accuracy",)) == 0
    assert trainer.result["score"] == 100.0
    assert not trainer.result["constant_prediction"]
    assert not trainer.result["partial"]


def test_numbers_are_learnt_by_squared_error(tokenizer, tmp_path, monkeypatch):
    a = ["the dog slept.", "anna ran."]
    b = ["the dog slept.", "tom ate."]
    numbers = [5.0, 0.5]
    data = LabelledPairs(labelled("sts-b", a, b, numbers), tokenizer, 64)
    trainer = new_trainer(tokenizer, tmp_path, data, steps=1, batch_size=2, dropout=0.0)

    # the squared errors before the first step
    indices = data.batch_indices(42, 0, 2)
    with torch.no_grad():
        outputs = classify(trainer.model, torch.from_numpy(data.rows(indices)))[:, 0].tolist()
    errors = [(output - numbers[row]) ** 2 for output, row in zip(outputs, indices, strict=True)]

    losses = note_losses(trainer, monkeypatch)
    fine_tune(trainer, data, {}, ("pearson",))
    assert losses == [pytest.approx(np.mean(errors), abs=1e-5)]


def test_the_loss_of_classes_is_the_mean_of_minus_log_p():
    logits = torch.tensor([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], dtype=torch.float64)
    targets = [2, 0]
    expected = 0.0
    for row, target in zip(logits.tolist(), targets, strict=True):
        total = sum(math.exp(number) for number in row)
        expected -= math.log(math.exp(row[target]) / total) / 2
    assert glue.task_loss(logits, torch.tensor(targets)).item() == pytest.approx(expected)


@pytest.mark.parametrize("seed", [3, 4])
def test_batches_and_dropout_of_a_step_come_from_the_fine_tuning_seed(
    tokenizer, tmp_path, monkeypatch, seed
):
    data = made_pairs(tokenizer)
    trainer = new_trainer(tokenizer, tmp_path, data, seed=seed, steps=3)
    batches = []
    seeds = []
    batch_indices = data.batch_indices
    step_seed = glue.step_seed

    def note_batch(*key):
        batches.append(key)
        return batch_indices(*key)

    def note_seed(*key):
        seeds.append(key)
        return step_seed(*key)

    monkeypatch.setattr(data, "batch_indices", note_batch)
    monkeypatch.setattr(glue, "step_seed", note_seed)
    fine_tune(trainer, data, {}, ("accuracy",))
    assert batches == [(seed, step, 8) for step in range(3)]
    assert seeds == [(seed, step, "dropout") for step in range(3)]


def test_the_clock_of_fine_tuning_runs_for_training_alone(tokenizer, tmp_path, monkeypatch):
    """A step takes 1 second, scoring 100, a save 1,000. The log has a line every two steps."""
    now = [0.0]
    monkeypatch.setattr(glue.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(glue, "SAVE_EVERY", 3)
    data = made_pairs(tokenizer)
    trainer = new_trainer(tokenizer, tmp_path, data, steps=6)

    def slow(owner, name, seconds):
        function = getattr(owner, name)

        def call(*arguments):
            now[0] += seconds
            return function(*arguments)

        monkeypatch.setattr(owner, name, call)

    slow(trainer, "update", 1)
    slow(glue, "evaluate", 100)
    slow(trainer, "save", 1000)
    fine_tune(trainer, data, {"dev": data}, ("accuracy",))
    assert trainer.seconds == 6
    assert [line["seconds"] for line in trainer.records[1:]] == [1, 2, 3, 4, 5, 6]


def test_dropout_is_drawn_again_in_each_step_and_from_the_seed(tokenizer, tmp_path, monkeypatch):
    # with one row and a learning rate of almost 0, the losses differ by dropout alone
    data = LabelledPairs(labelled("sst-2", ["the dog slept."], None, [1]), tokenizer, 64)

    def losses_with(**options):
        options = {"steps": 4, "batch_size": 1, "dropout": 0.5, "lr": 1e-12} | options
        trainer = new_trainer(tokenizer, tmp_path, data, **options)
        losses = note_losses(trainer, monkeypatch)
        fine_tune(trainer, data, {}, ("accuracy",))
        return losses

    losses = losses_with()
    assert len(set(losses)) == 4
    assert losses_with() == losses
    assert np.ptp(losses_with(dropout=0.0)) < 1e-6


def test_the_tokens_of_an_epoch_are_those_of_its_rows_without_padding(tokenizer, tmp_path):
    data = made_pairs(tokenizer, 40)
    trainer = new_trainer(tokenizer, tmp_path, data, steps=5)
    fine_tune(trainer, data, {}, ("accuracy",))
    real_tokens = sum((data.rows([row]) != PAD).sum() for row in range(40))
    assert trainer.tokens == real_tokens


def test_the_same_answer_for_all_rows_is_marked(tokenizer, tmp_path):
    data = made_pairs(tokenizer)
    model = new_trainer(tokenizer, tmp_path, data).model
    model.classifier.bias.data[:] = torch.tensor([9.0, 0.0])
    result = evaluate(model, {"dev": data}, ("accuracy", "f1"), CPU, torch.float32)
    assert result["constant_prediction"]
    assert result["scores"]["dev"]["accuracy"] == 50.0


@pytest.mark.parametrize("difference, is_marked", [(0.0005, True), (0.01, False)])
def test_numbers_that_a_submission_would_write_alike_are_the_same_answer(
    tokenizer, monkeypatch, difference, is_marked
):
    data = made_pairs(tokenizer, name="sts-b")
    predictions = np.full(len(data.pairs), 2.0)
    predictions[0] += difference
    monkeypatch.setattr(glue, "predict", lambda *arguments: predictions)
    result = evaluate(None, {"dev": data}, ("pearson", "spearman"), CPU, torch.float32)
    assert result["constant_prediction"] == is_marked


@pytest.mark.parametrize("is_marked", [True, False])
def test_the_line_of_a_result_names_its_marks(capsys, is_marked):
    settings = {"task": "cola", "seed": 42, "steps": 1000, "batch_size": 32, "lr": 3e-4}
    result = {"score": 12.34, "partial": is_marked, "constant_prediction": is_marked}
    trainer = SimpleNamespace(settings=settings, result=result, tokens=5000, seconds=10.0)
    glue.print_result(trainer)
    line = capsys.readouterr().out.rstrip()
    assert "1,000 steps of 32 rows, lr 0.0003, 500 tokens/s, took 00:10" in line
    assert line.startswith("cola   seed 42    12.3   ")
    assert line.endswith("took 00:10   PARTIAL   the same answer for all rows") == is_marked


def test_a_mark_of_one_development_split_is_a_mark_of_the_result(tokenizer, tmp_path):
    """A partial split, or one with the same answer for all rows, whichever comes first."""
    data = made_pairs(tokenizer)
    partial = LabelledPairs(replace(data.examples, partial=True), tokenizer, 64)
    one_row = LabelledPairs(labelled("mrpc", ["cats"], ["cats"], [1]), tokenizer, 64)
    model = new_trainer(tokenizer, tmp_path, data).model
    for weight in model.parameters():
        torch.nn.init.normal_(weight)

    def marks(dev):
        result = evaluate(model, dev, ("accuracy",), CPU, torch.float32)
        return result["partial"], result["constant_prediction"]

    assert marks({"x": data, "y": data}) == (False, False)
    assert marks({"x": data, "y": partial}) == marks({"x": partial, "y": data}) == (True, False)
    assert marks({"x": data, "y": one_row}) == marks({"x": one_row, "y": data}) == (False, True)


def test_the_digest_of_a_task_changes_with_every_part_of_its_data():
    train = labelled("mrpc", ["a cat", "a dog"], ["cats", "dogs"], [0, 1])
    dev = labelled("mrpc", ["a fox"], ["foxes"], [1], "dev")
    versions = [
        {"train": train, "dev": dev},
        {"train": replace(train, a=["a cat", "the dog"]), "dev": dev},
        {"train": replace(train, b=["cats", "the dogs"]), "dev": dev},
        {"train": replace(train, labels=[1, 1]), "dev": dev},
        {"train": train, "dev": replace(dev, labels=[0])},
    ]
    digests = {glue.make_task_text(splits).digest for splits in versions}
    assert len(digests) == len(versions)


def test_the_length_of_a_task_is_that_of_both_training_sentences():
    train = labelled("mrpc", ["a cat", "a dog"], ["cats", "dogs"], [0, 1])
    dev = labelled("mrpc", ["a fox"], ["foxes"], [1], "dev")
    assert glue.make_task_text({"train": train, "dev": dev}).characters == 5 + 5 + 4 + 4


def test_the_toy_tasks_are_written_again_if_a_program_that_writes_them_changes(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(glue, "build_once", lambda folder, write: None)
    changed = tmp_path / "changed.py"
    changed.write_text("another program", encoding="utf-8")
    args = SimpleNamespace(data_dir="toy", cache_dir=tmp_path)
    names = {glue.prepare_data_folder(args).name}
    for module in (toy_language, glue.toy_pairs, toy_glue, glue.glue_format):
        with monkeypatch.context() as patch:
            patch.setattr(module, "__file__", str(changed))
            names.add(glue.prepare_data_folder(args).name)
    assert len(names) == 5


def test_accuracy_by_phenomenon_is_counted_on_each_phenomenon(tokenizer, tmp_path):
    examples = labelled("cola", ["the dog slept."] * 4, None, [0, 1, 0, 0], "dev")
    examples = replace(examples, phenomena=["x", "x", "y", "y"])
    data = LabelledPairs(examples, tokenizer, 64)
    model = new_trainer(tokenizer, tmp_path, data).model
    model.classifier.bias.data[:] = torch.tensor([9.0, 0.0])
    result = evaluate(model, {"dev": data}, ("matthews",), CPU, torch.float32)
    assert result["by_phenomenon"] == {"x": 50.0, "y": 100.0}


def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(tokenizer, tmp_path, monkeypatch):
    data = made_pairs(tokenizer)
    dev = {"dev": data}
    metrics = ("accuracy", "f1")
    uninterrupted = new_trainer(tokenizer, tmp_path / "uninterrupted", data)
    fine_tune(uninterrupted, data, dev, metrics)

    # a kill in step 7; the last checkpoint is that of step 4
    monkeypatch.setattr(glue, "SAVE_EVERY", 4)
    interrupted = new_trainer(tokenizer, tmp_path / "interrupted", data)
    update = interrupted.update

    def update_until_the_kill(loss):
        if interrupted.step == 6:
            raise KeyboardInterrupt
        update(loss)

    monkeypatch.setattr(interrupted, "update", update_until_the_kill)
    with pytest.raises(KeyboardInterrupt):
        fine_tune(interrupted, data, dev, metrics)

    resumed = new_trainer(tokenizer, tmp_path / "interrupted", data)
    resumed.resume("--name")
    assert resumed.step == 4
    fine_tune(resumed, data, dev, metrics)
    assert_equal_weights(uninterrupted.model, resumed.model)
    assert resumed.result == uninterrupted.result
    assert resumed.tokens == uninterrupted.tokens


# --- Settings -------------------------------------------------------------------------------------


def test_the_published_settings_are_those_of_the_paper():
    table = {  # metrics; epochs, batch size, learning rate (small, base), start, released steps
        "cola": ("matthews", 3, 32, 3e-4, 1e-4, None, 851),
        "sst-2": ("accuracy", 3, 32, 3e-4, 1e-4, None, 6409),
        "mrpc": ("accuracy f1", 3, 32, 3e-4, 1e-4, "mnli", 343),
        "sts-b": ("pearson spearman", 10, 32, 3e-4, 1e-4, "mnli", 1836),
        "qqp": ("accuracy f1", 4, 128, 3e-4, 1e-4, None, 11200),
        "mnli": ("accuracy", 4, 128, 3e-4, 1e-4, None, 12121),
        "qnli": ("accuracy", 3, 32, 1e-4, 1e-4, None, 9835),
        "rte": ("accuracy", 10, 32, 3e-4, 1e-4, "mnli", 777),
        "wnli": ("accuracy", 5, 32, 3e-4, 1e-4, None, 100),
    }
    found = {}
    for name, task in glue.TASKS.items():
        found[name] = (
            " ".join(task.metrics),
            task.epochs,
            task.batch_size,
            task.lr or glue.LEARNING_RATES["small"],
            task.lr or glue.LEARNING_RATES["base"],
            task.start,
            task.released_steps,
        )
    assert found == table
    assert list(glue.TASKS) == list(FORMATS)
    assert glue.SEEDS == (42, 97, 834, 622, 329, 75, 213, 101, 123, 57)
    assert (glue.WARMUP_SHARE, glue.WEIGHT_DECAY, glue.DROPOUT, glue.SEQ_LEN) == (
        0.1,
        0.0,
        0.1,
        128,
    )


def test_released_steps_are_close_to_the_epochs_of_each_task():
    for name, task in glue.TASKS.items():
        steps = task.epochs * (FORMATS[name].rows["train"] // task.batch_size)
        assert abs(steps / task.released_steps - 1) < 0.06, name


def settings_of(name, size, rows, *options):
    """The settings of a run on so many rows, with these options on the command line."""
    args = glue.parse_arguments(["RUN", *[str(option) for option in options]])
    train = labelled(name, ["the dog slept."] * rows, None, [0] * rows)
    data = glue.make_task_text({"train": train})
    config = BertConfig.from_size(size, "composite", 300)
    return glue.settings_for(name, 42, data, config, args, torch.float32)


def test_settings_with_more_rows_per_batch_than_there_are_rows_are_refused():
    assert settings_of("mrpc", "small", 30, "--batch_size", 30)["batch_size"] == 30
    with pytest.raises(ValueError, match="above the 30 training rows of mrpc"):
        settings_of("mrpc", "small", 30, "--batch_size", 31)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", glue.TASKS)
def test_settings_of_a_run_are_the_published_ones(name, size):
    epochs = {"rte": 10, "sts-b": 10, "mnli": 4, "qqp": 4, "wnli": 5}.get(name, 3)
    batch_size = 128 if name in ("mnli", "qqp") else 32
    steps = epochs * (300 // batch_size)
    expected = {
        "lr": 1e-4 if size == "base" or name == "qnli" else 3e-4,
        "epochs": epochs,
        "batch_size": batch_size,
        "dropout": 0.1,
        "weight_decay": 0.0,
        "steps": steps,
        "warmup_steps": -(-steps // 10),
        "seq_len": 128,
        "start": "mnli" if name in ("rte", "sts-b", "mrpc") else None,
    }
    settings = settings_of(name, size, 300)
    assert "changed" not in settings
    assert {key: settings[key] for key in expected} == expected


def test_every_setting_can_be_changed():
    given = {
        "lr": 0.5,
        "epochs": 7,
        "batch_size": 3,
        "dropout": 0.25,
        "weight_decay": 0.125,
        "warmup_share": 0.5,
    }
    options = []
    for name, value in given.items():
        options += [f"--{name}", value]
    settings = settings_of("mrpc", "small", 30, *options)
    assert {name: settings[name] for name in given} == given
    assert settings["changed"] == list(given)
    assert settings["steps"] == 70
    assert settings["warmup_steps"] == 35


@pytest.mark.parametrize(
    "options, changed",
    [
        (["--lr", 0.0003, "--epochs", 3, "--seq_len", 200], None),  # the published values
        (["--lr", 0.001], ["lr"]),
        (["--seq_len", 64], ["seq_len"]),
        (["--no-intermediate"], ["start"]),
        (["--task", "rte", "--lr", 0.001], None),  # for RTE alone
    ],
)
def test_settings_other_than_the_published_ones_are_named(options, changed):
    assert settings_of("mrpc", "small", 30, *options).get("changed") == changed


def test_no_intermediate_changes_nothing_for_a_task_that_starts_from_the_pretrained_model():
    assert "changed" not in settings_of("cola", "small", 30, "--no-intermediate")


def test_as_many_optimizer_steps_are_taken_as_the_settings_say(
    run, small_toy, run_program, monkeypatch
):
    rates = []
    step = torch.optim.AdamW.step

    def note_rate(self, *arguments):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", note_rate)
    tune(run_program, run, "--task", "cola", "--seeds", 1, "--epochs", 4)
    assert len(rates) == 4 * ROWS // 8 == 12
    # warm-up over ceil(1.2) = 2 steps, then linearly to 0
    expected = [3e-4 * min((index + 1) / 2, (12 - index) / 10) for index in range(12)]
    assert rates == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "words, seeds",
    [
        ([], glue.SEEDS),
        (["--seeds", "3"], (42, 97, 834)),
        (["--seeds", "57"], (57,)),
        (["--seeds", "5", "6", "5"], (5, 6)),
    ],
)
def test_seeds_are_a_count_of_the_published_ones_or_a_list(words, seeds):
    args = glue.parse_arguments(["RUN", *words])
    assert glue.chosen_seeds(args.seeds) == seeds


@pytest.mark.parametrize(
    "words, names",
    [
        ([], list(glue.TASKS)),
        (["--task", "rte", "cola", "RTE"], ["rte", "cola"]),
        (["--task", "wnli", "all"], ["wnli", *[name for name in glue.TASKS if name != "wnli"]]),
    ],
)
def test_several_tasks_may_be_named_each_counts_once(words, names):
    assert glue.named_tasks(glue.parse_arguments(["RUN", *words]).task) == names


# --- Where a task starts --------------------------------------------------------------------------


@pytest.fixture
def starts(monkeypatch):
    """{(task, seed): the encoder it started from}, filled in while a test trains."""
    found = {}
    make_classifier = glue.make_classifier

    def note_start(config, num_labels, encoder, settings):
        found[settings["task"], settings["seed"]] = encoder
        return make_classifier(config, num_labels, encoder, settings)

    monkeypatch.setattr(glue, "make_classifier", note_start)
    return found


def test_rte_starts_from_the_mnli_encoder_of_its_seed_trained_once(
    run, small_toy, run_program, starts
):
    tune(run_program, run, "--task", "rte", "--seeds", 2, "--lr", 0.01)
    assert list(starts) == [("mnli", 42), ("rte", 42), ("mnli", 97), ("rte", 97)]

    pretrained = torch.load(run / "model.pt", weights_only=True)
    embeddings = "bert.embeddings.token.weight"
    for seed in (42, 97):
        saved = torch.load(run / "glue" / f"mnli-seed{seed}.pt", weights_only=True)["weights"]
        start = starts["rte", seed]
        assert all(torch.equal(saved[name], start[name]) for name in start)
        assert "pooler.weight" in start
        assert not any(name.startswith("classifier") for name in start)
        assert not torch.equal(start[embeddings], pretrained[embeddings])
        begin = starts["mnli", seed]
        assert all(torch.equal(begin[name], weight) for name, weight in pretrained.items())

    # the learning rate was given for RTE alone
    rates = [record["settings"]["lr"] for record in results(run)]
    assert rates == [3e-4, 0.01, 3e-4, 0.01]

    # another task starts from the same encoders
    starts.clear()
    tune(run_program, run, "--task", "mrpc", "--seeds", 2)
    assert list(starts) == [("mrpc", 42), ("mrpc", 97)]


def test_an_mnli_encoder_of_another_model_is_not_used(run, small_toy, tokenizer, run_program):
    tune(run_program, run, "--task", "rte", "--seeds", 1)
    torch.manual_seed(5)
    save_run(run, BertForMaskedLM(small_config(tokenizer)), tokenizer)
    options = [*toy_options(run), "--task", "mrpc", "--seeds", 1]
    assert "has mnli, seed 42, with other settings (model is" in failure(run_program, run, *options)


def test_an_encoder_that_is_gone_is_made_again_with_the_settings_of_its_results(
    run, small_toy, run_program
):
    tune(run_program, run, "--task", "mnli", "--seeds", 1, "--epochs", 2)
    path = run / "glue" / "mnli-seed42.pt"
    before = torch.load(path, weights_only=True)
    path.unlink()
    tune(run_program, run, "--task", "rte", "--seeds", 1)
    after = torch.load(path, weights_only=True)
    assert after["settings"] == before["settings"]
    assert after["settings"]["epochs"] == 2
    for name, weight in before["weights"].items():
        assert torch.equal(after["weights"][name], weight)
    assert [record["task"] for record in results(run)] == ["mnli", "mnli", "rte"]


def test_an_encoder_of_another_seed_or_a_damaged_one_is_refused_and_the_advice_is_true(
    run, small_toy, run_program
):
    tune(run_program, run, "--task", "mnli", "--seeds", 42, 97)
    path = run / "glue" / "mnli-seed42.pt"
    content = path.read_bytes()
    wrong = {
        "does not belong to mnli, seed 42": (run / "glue" / "mnli-seed97.pt").read_bytes(),
        "is damaged": content[: len(content) // 2],
    }
    options = [*toy_options(run), "--batch_size", 8, "--epochs", 1, "--task", "rte", "--seeds", 42]
    for message, bytes_of_file in wrong.items():
        path.write_bytes(bytes_of_file)
        error = failure(run_program, run, *options)
        assert f"{path} {message}" in error
        assert "delete it, and the same command makes it again" in error
    torch.save(torch.load(path.with_name("mnli-seed97.pt"), weights_only=True)["weights"], path)
    assert "from an earlier version" in failure(run_program, run, *options)

    path.unlink()
    tune(run_program, run, "--task", "rte", "--seeds", 42)
    assert [record["task"] for record in results(run)] == ["mnli", "mnli", "mnli", "rte"]


def test_no_intermediate_starts_every_task_from_the_pretrained_encoder(
    run, small_toy, run_program, starts
):
    output = tune(run_program, run, "--task", "rte", "--seeds", 1, "--no-intermediate")
    [record] = results(run)
    assert record["task"] == "rte"
    assert record["settings"]["start"] is None
    assert "mnli" not in output
    pretrained = torch.load(run / "model.pt", weights_only=True)
    begin = starts["rte", 42]
    assert all(torch.equal(begin[name], weight) for name, weight in pretrained.items())


def test_the_encoder_is_the_start_and_the_classifier_is_drawn_from_the_seed(tokenizer):
    torch.manual_seed(1)
    encoder = BertForMaskedLM(small_config(tokenizer)).state_dict()

    def classifier(seed):
        settings = {"seed": seed, "dropout": 0.1}
        return glue.make_classifier(small_config(tokenizer), 2, encoder, settings)

    one, same, other = classifier(1), classifier(1), classifier(2)
    for name, weight in one.state_dict().items():
        if name.startswith("bert."):
            assert torch.equal(weight, encoder[name])
    assert torch.equal(one.classifier.weight, same.classifier.weight)
    assert not torch.equal(one.classifier.weight, other.classifier.weight)


def test_an_encoder_without_some_weights_is_refused(tokenizer):
    encoder = BertForMaskedLM(small_config(tokenizer)).state_dict()
    del encoder["bert.embeddings.token.weight"]
    settings = {"seed": 1, "dropout": 0.1}
    with pytest.raises(ValueError, match="has no bert.embeddings.token.weight: delete its file"):
        glue.make_classifier(small_config(tokenizer), 2, encoder, settings)


# --- Progress -------------------------------------------------------------------------------------


def made_job(run, task, steps, cost):
    return Job(run / "glue", {"task": task, "seed": 42, "steps": steps}, cost)


class StandIn:
    """What Progress reads of a Trainer."""

    def __init__(self, steps, loss=None):
        self.step = 0
        self.settings = {"steps": steps}
        self.records = [{"settings": {}}]
        if loss is not None:
            self.records.append({"loss": loss})


@pytest.fixture
def clock(monkeypatch):
    """The time that Progress reads, in seconds: clock["now"]."""
    time_now = {"now": 1000.0}

    def perf_counter():
        return time_now["now"]

    monkeypatch.setattr(progress_file.time, "perf_counter", perf_counter)
    return time_now


def advance(progress, trainer, steps, clock, seconds):
    """Let a job make so many steps of so many seconds each."""
    for _ in range(steps):
        clock["now"] += seconds
        trainer.step += 1
        progress.advance(trainer)


def test_without_a_terminal_there_is_a_line_now_and_then_with_an_eta_over_all_jobs(
    tmp_path, clock, capsys
):
    """Two jobs of three are missing: 100 steps cost 1 each, then 10 steps cost 30 each."""
    jobs = [made_job(tmp_path / "none", "cola", 100, 100)]
    jobs.append(made_job(tmp_path / "none", "mnli", 10, 300))
    progress = Progress(jobs, 3)
    progress.begin(jobs[0], 0)
    advance(progress, StandIn(100, loss=0.5), 60, clock, seconds=1)

    # a line after 30 and after 60 seconds; then 340 are left, at a second each
    lines = capsys.readouterr().out.splitlines()
    start = "none cola seed 42: step"
    assert lines == [
        f"{start} 30 of 100, loss 0.500; all: 1 of 3 done, ETA 06:10",
        f"{start} 60 of 100, loss 0.500; all: 1 of 3 done, ETA 05:40",
    ]


def test_a_resumed_job_counts_only_the_steps_that_it_still_has_to_do(tmp_path, clock, capsys):
    jobs = [made_job(tmp_path / "none", "cola", 100, 100), made_job(tmp_path, "rte", 1, 50)]
    progress = Progress(jobs, 2)
    progress.begin(jobs[0], 40)
    trainer = StandIn(100)
    trainer.step = 40
    advance(progress, trainer, 30, clock, seconds=1)
    line = capsys.readouterr().out
    assert line == "none cola seed 42: step 70 of 100; all: 0 of 2 done, ETA 01:20\n"


def test_the_remaining_work_is_0_in_the_end_whoever_did_it(tmp_path, clock):
    jobs = [made_job(tmp_path, "cola", 10, 20), made_job(tmp_path, "rte", 5, 30)]
    progress = Progress(jobs, 2)
    progress.begin(jobs[0], 0)
    advance(progress, StandIn(10), 10, clock, seconds=0.1)
    progress.update([jobs[1]])
    assert progress.left == pytest.approx(30)
    progress.update([])  # another process has done the other one
    assert progress.left == pytest.approx(0)
    assert progress.worked == pytest.approx(20)
    assert progress.done == 2


def test_each_run_of_a_command_is_fine_tuned_from_its_own_model(
    run, small_toy, tokenizer, run_program, monkeypatch
):
    other = run.with_name("other")
    other.mkdir()
    torch.manual_seed(5)
    save_run(other, BertForMaskedLM(small_config(tokenizer)), tokenizer)

    encoders = []
    make_classifier = glue.make_classifier

    def note(config, num_labels, encoder, settings):
        encoders.append(encoder["bert.embeddings.token.weight"].clone())
        return make_classifier(config, num_labels, encoder, settings)

    monkeypatch.setattr(glue, "make_classifier", note)
    options = ["--task", "wnli", "--seeds", 1, "--epochs", 1, "--batch_size", 8]
    assert run_glue(run_program, run, other, *toy_options(run), *options).code == 0

    assert len(encoders) == 2
    for folder, encoder in zip((run, other), encoders, strict=True):
        weights = torch.load(folder / "model.pt", weights_only=True)
        assert torch.equal(weights["bert.embeddings.token.weight"], encoder)


@pytest.mark.parametrize("command", ["finetune", "predict"])
def test_row_length_and_precision_of_the_command_are_those_of_every_batch(
    run, small_toy, run_program, monkeypatch, command
):
    """In training, in scoring, and in the predictions of the test files."""
    widths = []
    dtypes = []
    classify = glue.classify
    autocast = glue.autocast

    def note_width(model, input_ids):
        widths.append(input_ids.shape[1])
        return classify(model, input_ids)

    def note_dtype(device, dtype):
        dtypes.append(dtype)
        return autocast(device, dtype)

    monkeypatch.setattr(glue, "classify", note_width)
    monkeypatch.setattr(glue, "autocast", note_dtype)
    tasks = ["--task", "wnli"] if command == "finetune" else []
    tune(run_program, run, *tasks, "--seeds", 1, "--seq_len", 8, "--dtype", "bf16")
    if command == "predict":
        widths.clear()
        dtypes.clear()
        options = ["--data_dir", "toy", "--cache_dir", run.parent / "cache", "--device", "cpu"]
        assert run_glue(run_program, "predict", run, *options).code == 0

    assert widths and max(widths) == 8
    assert set(dtypes) == {torch.bfloat16}
    assert len(dtypes) == len(widths)


def test_progress_counts_the_tasks_and_seeds_of_all_runs(run, small_toy, run_program, monkeypatch):
    """Of two runs, one has a result. A line after every step says so."""
    other = run.with_name("other")
    shutil.copytree(run, other)
    tune(run_program, other, "--task", "cola", "--seeds", 1)

    monkeypatch.setattr(progress_file, "PROGRESS_EVERY", 0)
    options = ["--task", "cola", "wnli", "--seeds", 1, "--epochs", 1, "--batch_size", 8]
    output = run_glue(run_program, run, other, *toy_options(run), *options).out
    assert "4 jobs (one task and one seed of one run), 1 of them done before; seeds 42;" in output
    lines = [line for line in output.splitlines() if "; all: " in line]
    assert len(lines) == 9  # 3 jobs of 3 steps
    assert lines[0].startswith("composite cola seed 42: step 1 of 3; all: 1 of 4 done, ETA ")
    assert lines[8].startswith("other wnli seed 42: step 3 of 3, loss ")
    assert "; all: 3 of 4 done, ETA 00:00" in lines[8]


# --- Results that survive -------------------------------------------------------------------------


def test_the_same_command_again_trains_nothing_and_changes_nothing(
    run, small_toy, run_program, monkeypatch
):
    tune(run_program, run, "--task", "mrpc", "--seeds", 2)
    path = run / "glue" / "results.jsonl"
    before = path.read_bytes()
    monkeypatch.setattr(Trainer, "update", None)  # not callable
    tune(run_program, run, "--task", "mrpc", "--seeds", 2)
    assert path.read_bytes() == before


def test_the_word_finetune_and_its_short_form_mean_the_same(
    run, small_toy, run_program, monkeypatch
):
    tune(run_program, run, "--task", "cola", "--seeds", 1)
    monkeypatch.setattr(Trainer, "update", None)
    options = ["--task", "cola", "--seeds", 1, "--epochs", 1, "--batch_size", 8]
    outcome = run_glue(run_program, "finetune", run, *toy_options(run), *options)
    assert outcome.code == 0, outcome.error


def test_more_seeds_or_tasks_add_what_is_missing(run, small_toy, run_program):
    tune(run_program, run, "--task", "cola", "--seeds", 1)
    tune(run_program, run, "--task", "cola", "--seeds", 3)
    tune(run_program, run, "--task", "cola", "sst-2", "--seeds", 1)
    done = [(record["task"], record["seed"]) for record in results(run)]
    assert done == [("cola", 42), ("cola", 97), ("cola", 834), ("sst-2", 42)]


def test_a_record_has_task_seed_scores_settings_maker_and_seconds(run, small_toy, run_program):
    tune(run_program, run, "--task", "mnli", "--seeds", 1)
    record = json.loads((run / "glue" / "results.jsonl").read_text(encoding="utf-8"))
    assert set(record) == {"task", "seed", "result", "settings", "made_by", "seconds"}
    assert record["seconds"] > 0
    accuracies = []
    for split in ("dev_matched", "dev_mismatched"):
        accuracies.append(record["result"]["scores"][split]["accuracy"])
    assert record["result"]["score"] == pytest.approx(np.mean(accuracies), abs=1e-9)
    assert re.fullmatch("[0-9a-f]{12}", record["made_by"]["code"])
    assert record["made_by"]["device"].startswith("cpu")
    assert record["settings"]["epochs"] == 1


# The arguments: the folder of the small tasks and their rows; then those of glue.py.
PROGRAM = """
import shutil, sys
import glue
from support.commands import run_command
from toy import glue as toy_glue

def copy_small_glue(folder):
    shutil.copytree(sys.argv[1], folder, dirs_exist_ok=True)

toy_glue.write_tasks = copy_small_glue
rows = int(sys.argv[2])
toy_glue.GLUE_ROWS = {name: dict.fromkeys(old, rows) for name, old in toy_glue.GLUE_ROWS.items()}
run_command("glue.py", glue.main, sys.argv[3:])
"""


def count_best(run):
    """How many tasks have the weights of a best run."""
    return len(list((run / "glue").glob("best-*")))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM or SIGKILL to send")
def test_killed_at_random_and_started_again_it_ends_with_the_results_of_an_uninterrupted_run(
    run, small_glue, small_toy, run_program, start_program, tmp_path
):
    """SIGKILL and SIGTERM in turn, each soon after another result was written."""
    uninterrupted = run.with_name("uninterrupted")
    shutil.copytree(run, uninterrupted)
    tune(run_program, uninterrupted, "--seeds", 1, "--epochs", 8)

    options = [*toy_options(run), "--seeds", 1, "--epochs", 8, "--batch_size", 8]
    script = tmp_path / "small_glue.py"
    script.write_text(PROGRAM, encoding="utf-8")
    rng = random.Random(0)
    kills = 0
    seen = 0
    for _ in range(20):
        process = start_program(script, small_glue, ROWS, run, *options)
        if kills < 3:
            # wait for the next result, and a short time more
            while process.is_running() and count_best(run) == seen:
                time.sleep(0.005)
            time.sleep(rng.random() / 20)
            if process.is_running():
                process.send_signal([signal.SIGKILL, signal.SIGTERM][kills % 2])
        outcome = process.wait()
        code = outcome.code
        seen = count_best(run)
        if code == 0:
            break
        assert code in (-signal.SIGKILL, 128 + signal.SIGTERM), outcome
        kills += 1

    assert code == 0
    assert kills >= 2
    assert results(run) == results(uninterrupted)
    assert len(results(run)) == len(glue.TASKS)
    assert not list((run / "glue").glob("running-*"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send")
def test_a_run_stopped_by_a_signal_is_resumed_and_its_checkpoint_removed_in_the_end(
    run, small_toy, run_program, monkeypatch
):
    # a signal after the first step
    update = Trainer.update

    def update_and_stop(self, loss):
        update(self, loss)
        signal.raise_signal(signal.SIGTERM)

    running = run / "glue" / "running-cola-seed42"
    options = ["--task", "cola", "--seeds", 1, "--epochs", 1, "--batch_size", 8]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "update", update_and_stop)
        outcome = run_glue(run_program, run, *toy_options(run), *options)
    assert outcome.code == 128 + signal.SIGTERM
    assert "SIGTERM" in outcome.out
    assert running.is_dir()

    # the same command again
    steps = []
    train = glue.fine_tune

    def note_step(trainer, *arguments):
        steps.append(trainer.step)
        return train(trainer, *arguments)

    monkeypatch.setattr(glue, "fine_tune", note_step)
    tune(run_program, run, "--task", "cola", "--seeds", 1)
    assert steps == [1]
    assert not running.exists()


HOLD = """
import sys, time
from pathlib import Path
from support.locks import lock
with lock(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_what_another_process_does_is_waited_for_and_taken_over_if_it_is_killed(
    run, small_toy, run_program, monkeypatch
):
    """Another process works on MNLI, from which RTE starts. It is killed at the third look."""
    (run / "glue").mkdir()
    path = run / "glue" / "running-mnli-seed42.lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    project = Path(glue.__file__).parent
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        looks = []

        def wait(self, seconds):
            looks.append(len(results(run)))
            if len(looks) == 3:
                other.kill()
                other.wait()

        monkeypatch.setattr(Progress, "wait", wait)
        output = tune(run_program, run, "--task", "rte", "cola", "--seeds", 1)

    # meanwhile the other task was done; the line came once
    assert looks == [1, 1, 1]
    assert [record["task"] for record in results(run)] == ["cola", "mnli", "rte"]
    lines = [line for line in output.splitlines() if "waiting" in line]
    assert len(lines) == 1
    assert f"composite mnli seed 42 is in use by process {other.pid} on " in lines[0]
    assert not list((run / "glue").glob("running-*"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send")
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_waiting(run, small_toy, run_program, monkeypatch, number, code):
    def wait(self, seconds):
        signal.raise_signal(number)

    def no_job(missing):
        return nullcontext(None)

    monkeypatch.setattr(Progress, "wait", wait)
    monkeypatch.setattr(glue, "next_job", no_job)
    outcome = run_glue(run_program, run, *toy_options(run), "--task", "cola", "--seeds", 1)
    assert outcome.code == code
    assert outcome.error.count("\n") <= 1


@pytest.mark.skipif(os.name == "nt", reason="it reads signals and locks of other systems")
def test_two_processes_share_the_jobs_of_a_run_and_each_result_is_there_once(
    run, small_glue, start_program, tmp_path
):
    """Three tasks, eight seeds; RTE starts from MNLI."""
    options = [*toy_options(run), "--epochs", 1, "--batch_size", 8, "--task", "rte", "cola"]
    options += ["--seeds", *range(101, 109)]
    script = tmp_path / "small_glue.py"
    script.write_text(PROGRAM, encoding="utf-8")
    processes = [start_program(script, small_glue, ROWS, run, *options) for _ in range(2)]
    outcomes = [process.wait() for process in processes]
    assert [outcome.code for outcome in outcomes] == [0, 0]

    # what both announced together is what the file has
    announced = []
    for outcome in outcomes:
        announced += re.findall(r"^(\S+) +seed (\d+) +-?\d", outcome.out, re.MULTILINE)
    found = [(record["task"], str(record["seed"])) for record in results(run)]
    assert len(found) == len(set(found)) == 24
    assert sorted(announced) == sorted(found)
    left = {path.name for path in (run / "glue").iterdir()}
    assert not [name for name in left if name.endswith((".lock", ".part")) or "running" in name]


def test_other_settings_or_weights_under_one_name_are_refused_and_another_name_helps(
    run, small_toy, tokenizer, run_program
):
    tune(run_program, run, "--task", "cola", "--seeds", 1)
    options = [run, *toy_options(run), "--task", "cola", "--seeds", 1, "--batch_size", 8]
    error = failure(run_program, *options, "--epochs", 2)
    assert "epochs is 1 there and 2 here" in error
    assert "--name" in error

    tune(run_program, run, "--task", "cola", "--seeds", 1, "--epochs", 2, "--name", "two")
    assert results(run, "two")[0]["settings"]["epochs"] == 2

    torch.manual_seed(5)
    save_run(run, BertForMaskedLM(small_config(tokenizer)), tokenizer)
    assert "model is " in failure(run_program, *options, "--epochs", 1)


def test_another_seed_with_other_settings_is_refused_under_the_same_name(
    run, small_toy, run_program
):
    tune(run_program, run, "--task", "cola", "--seeds", 42)
    options = ["--task", "cola", "--seeds", 97, "--epochs", 1, "--batch_size", 4]
    error = failure(run_program, run, *toy_options(run), *options)
    assert "batch_size is 8 there and 4 here" in error


def test_two_processes_that_add_results_keep_each_other_s(run, small_toy, run_program, monkeypatch):
    """Another seed's result appears while one is trained."""
    tune(run_program, run, "--task", "cola", "--seeds", 97)
    path = run / "glue" / "results.jsonl"
    other = path.read_text(encoding="utf-8")
    path.unlink()
    train = glue.fine_tune

    def train_meanwhile(*arguments):
        path.write_text(other, encoding="utf-8")
        return train(*arguments)

    monkeypatch.setattr(glue, "fine_tune", train_meanwhile)
    tune(run_program, run, "--task", "cola", "--seeds", 42)
    assert [record["seed"] for record in results(run)] == [97, 42]


def test_of_two_commands_with_other_settings_the_second_to_finish_writes_nothing(
    run, small_toy, run_program, monkeypatch
):
    """Another command's result with another learning rate appears while a run is trained."""
    tune(run_program, run, "--task", "cola", "--seeds", 97, "--lr", 0.01)
    path = run / "glue" / "results.jsonl"
    other = path.read_text(encoding="utf-8")
    path.unlink()
    (run / "glue" / "best-cola.pt").unlink()
    train = glue.fine_tune

    def train_meanwhile(trainer, *arguments):
        trainer.save()
        path.write_text(other, encoding="utf-8")
        return train(trainer, *arguments)

    monkeypatch.setattr(glue, "fine_tune", train_meanwhile)
    options = ["--task", "cola", "--seeds", 42, "--epochs", 1, "--batch_size", 8]
    error = failure(run_program, run, *toy_options(run), *options)
    assert "has cola, seed 97, with other settings (lr is 0.01 there and 0.0003 here)" in error
    assert path.read_text(encoding="utf-8") == other
    assert [file.name for file in (run / "glue").iterdir()] == ["results.jsonl"]


def test_of_several_runs_a_wrong_one_is_refused_before_the_first_one_is_trained(
    run, small_toy, run_program, monkeypatch
):
    other = run.with_name("other")
    shutil.copytree(run, other)
    tune(run_program, other, "--task", "cola", "--seeds", 42)
    monkeypatch.setattr(Trainer, "update", None)
    options = [*toy_options(run), "--task", "cola", "--seeds", 97, "--epochs", 1]

    # other settings, then damaged results, then damaged weights
    assert "batch_size is 8 there" in failure(run_program, run, other, *options)
    path = other / "glue" / "results.jsonl"
    path.write_text("{}\n", encoding="utf-8")
    assert f"{path} is damaged" in failure(run_program, run, other, *options)
    (other / "model.pt").write_bytes(b"")
    assert f"{other / 'model.pt'}" in failure(run_program, run, other, *options)
    assert not (run / "glue").exists()


@pytest.mark.parametrize("command", ["finetune", "table", "predict"])
def test_a_name_that_leads_out_of_the_run_is_refused(run, run_program, command):
    before = sorted(run.parent.rglob("*"))
    for name in ("..", "../other", run.parent / "other", ""):
        outcome = run_glue(run_program, command, run, "--name", name)
        assert outcome.code == 2
        last = outcome.error.splitlines()[-1]
        assert f"--name: {str(name)!r} is not the name of a folder inside the run" in last
    assert sorted(run.parent.rglob("*")) == before


def test_results_of_another_tokenizer_are_refused(run, small_toy, run_program):
    tune(run_program, run, "--task", "cola", "--seeds", 42)
    path = run / "tokenizer.json"
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    config.pop("tokenizer_sha256", None)
    (run / "config.json").write_text(json.dumps(config), encoding="utf-8")

    # the last two words change places: as many tokens, but other ids for the same texts
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["vocab"][-2:] = reversed(content["model"]["vocab"][-2:])
    path.write_text(json.dumps(content), encoding="utf-8")
    options = ["--task", "cola", "--seeds", 97, "--epochs", 1, "--batch_size", 8]
    assert "tokenizer is " in failure(run_program, run, *toy_options(run), *options)


def test_a_model_that_is_replaced_during_the_command_is_refused(
    run, small_toy, tokenizer, run_program, monkeypatch
):
    def replace_model(out, encoder_tasks):
        out.mkdir()
        torch.manual_seed(5)
        save_run(run, BertForMaskedLM(small_config(tokenizer)), tokenizer)

    monkeypatch.setattr(glue, "prepare_folder", replace_model)
    error = failure(run_program, run, *toy_options(run), "--task", "cola", "--seeds", 1)
    assert "another model since this command was started" in error


def test_damaged_results_are_named_and_nothing_is_trained(run, small_toy, run_program):
    tune(run_program, run, "--task", "cola", "--seeds", 42)
    path = run / "glue" / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20] + b"\n")
    before = path.read_bytes()
    error = failure(run_program, run, *toy_options(run), "--task", "cola", "--seeds", 97)
    assert f"{path} is damaged" in error
    assert path.read_bytes() == before


def test_half_a_line_of_results_is_named_and_its_run_done_again(run, small_toy, run_program):
    tune(run_program, run, "--task", "cola", "--seeds", 42, 97)
    expected = results(run)
    path = run / "glue" / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    outcome = run_glue(run_program, "table", run)
    assert f"{path}: line 2 was only half written, left out" in outcome.error
    tune(run_program, run, "--task", "cola", "--seeds", 42, 97)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    path.write_text(f"{lines[0]}\n{lines[2]}\n", encoding="utf-8")
    assert results(run) == expected


def test_what_starts_from_part_of_mnli_is_marked_partial(run, small_glue, run_program, monkeypatch):
    formats = FORMATS | {"rte": with_equal_rows("rte", ROWS)}

    def small_formats(data_dir):
        return formats

    def small_folder(args):
        return small_glue

    monkeypatch.setattr(glue, "formats_of", small_formats)
    monkeypatch.setattr(glue, "prepare_data_folder", small_folder)
    tune(run_program, run, "--task", "rte", "--seeds", 42, "--allow_partial")
    found = [(record["task"], record["result"]["partial"]) for record in results(run)]
    assert found == [("mnli", True), ("rte", True)]


def test_a_run_on_part_of_the_training_rows_is_marked_partial(
    run, small_glue, run_program, monkeypatch
):
    formats = FORMATS | {"wnli": replace(FORMATS["wnli"], rows={"train": 635, "dev": ROWS})}

    def small_formats(data_dir):
        return formats

    monkeypatch.setattr(glue, "formats_of", small_formats)
    options = ["--data_dir", small_glue, "--device", "cpu", "--seeds", 1, "--epochs", 1]
    outcome = run_glue(run_program, run, "--task", "wnli", *options, "--allow_partial")
    assert outcome.code == 0, outcome.error
    assert results(run)[0]["result"]["partial"]


# --- The test files -------------------------------------------------------------------------------


def test_predict_writes_eleven_files_that_the_checker_accepts(
    run, small_glue, small_toy, tokenizer, run_program
):
    tune(run_program, run, "--seeds", 2)
    options = ["--data_dir", "toy", "--cache_dir", run.parent / "cache"]
    outcome = run_glue(run_program, "predict", run, *options, "--device", "cpu")
    assert outcome.code == 0, outcome.error

    # names, and the words that were predicted
    words = {}
    texts = {}
    with zipfile.ZipFile(run / "glue" / "submission.zip") as archive:
        for name in archive.namelist():
            texts[name] = archive.read(name).decode()
            lines = texts[name].splitlines()[1:]
            words[name] = {line.split("\t")[1] for line in lines}
    names = "CoLA SST-2 MRPC STS-B MNLI-m MNLI-mm QNLI QQP RTE WNLI AX"
    assert " ".join(name.removesuffix(".tsv") for name in words) == names
    assert words["RTE.tsv"] <= {"entailment", "not_entailment"}
    assert words["AX.tsv"] <= set(FORMATS["mnli"].classes)
    assert words["CoLA.tsv"] <= {"0", "1"}
    assert all(re.fullmatch(r"\d\.\d{3}", word) for word in words["STS-B.tsv"])

    # each file comes from the best run of its task; of equal ones from the first
    for file, (name, test_split) in SUBMISSION.items():
        best = None
        for record in results(run):
            if record["task"] == name:
                score = record["result"]["scores"][CHOSEN_ON[test_split]]["score"]
                if best is None or score > best[0]:
                    best = (score, record["seed"])
        line = f"{file}: {ROWS} predictions of seed {best[1]}, development score {best[0]:.1f}\n"
        assert line in outcome.out

    # each file holds the predictions of the weights that were kept for it
    formats = glue.formats_of("toy")
    for file, (name, split) in SUBMISSION.items():
        path = glue.best_path(run / "glue", name, CHOSEN_ON[split])
        model = BertForClassification(small_config(tokenizer), glue.label_count(formats[name]))
        model.load_state_dict(torch.load(path, weights_only=True)["weights"])
        data = LabelledPairs(read_task(formats[name], small_glue, split), tokenizer, 64)
        predictions = predict(model, data, CPU, torch.float32)
        assert texts[file] == submission_text(predictions, formats[name]), file

    # the checker, as a command of its own
    path = run / "glue" / "submission.zip"
    outcome = run_glue(run_program, "check", path, "--data_dir", "toy")
    assert (outcome.code, outcome.error) == (0, "")


@pytest.mark.parametrize("seeds", [(42, 97, 834), (834, 97, 42)])
def test_the_weights_kept_are_those_of_the_best_development_run(
    run, small_glue, small_toy, tokenizer, run_program, seeds
):
    options = ["--task", "sts-b", "--no-intermediate", "--epochs", 3, "--lr", 0.01]
    tune(run_program, run, *options, "--seeds", *seeds)
    found = [record["result"]["score"] for record in results(run)]
    assert len(set(found)) == 3

    # score the weights again
    model = BertForClassification(small_config(tokenizer), 1)
    weights = torch.load(run / "glue" / "best-sts-b.pt", weights_only=True)["weights"]
    model.load_state_dict(weights)
    examples = read_task(with_equal_rows("sts-b", ROWS), small_glue, "dev")
    data = LabelledPairs(examples, tokenizer, 64)
    predictions = predict(model, data, CPU, torch.float32)
    score = scores(predictions, examples, glue.TASKS["sts-b"].metrics)["score"]
    assert score == pytest.approx(max(found), abs=1e-9)


def test_each_half_of_mnli_keeps_and_uses_its_own_best_run(
    run, small_toy, tokenizer, run_program, monkeypatch
):
    """Seed 42 is the best on the matched half, seed 97 on the other one."""
    made_scores = {
        42: {"dev_matched": 60.0, "dev_mismatched": 50.0},
        97: {"dev_matched": 55.0, "dev_mismatched": 58.0},
        834: {"dev_matched": 60.0, "dev_mismatched": 57.0},
    }
    weights = {}
    tuned = glue.fine_tune

    def made_result(trainer, train, dev, *arguments):
        stopped = tuned(trainer, train, dev, *arguments)
        seed = trainer.settings["seed"]
        weights[seed] = {key: value.clone() for key, value in trainer.model.state_dict().items()}
        for split, score in made_scores[seed].items():
            trainer.result["scores"][split]["score"] = score
        return stopped

    monkeypatch.setattr(glue, "fine_tune", made_result)
    tune(run_program, run, "--task", "mnli", "--seeds", 3)
    for half, seed in (("matched", 42), ("mismatched", 97)):
        kept = torch.load(run / "glue" / f"best-mnli_{half}.pt", weights_only=True)["weights"]
        assert all(torch.equal(kept[name], weights[seed][name]) for name in kept)
    assert not (run / "glue" / "best-mnli.pt").exists()

    # the test files; the diagnostic sentences belong to the matched half
    monkeypatch.setattr(glue, "fine_tune", tuned)
    tune(run_program, run, "--seeds", 1, "--task", *[name for name in glue.TASKS if name != "mnli"])
    options = ["--data_dir", "toy", "--cache_dir", run.parent / "cache", "--device", "cpu"]
    outcome = run_glue(run_program, "predict", run, *options)
    for file, seed, score in (("MNLI-m", 42, 60), ("MNLI-mm", 97, 58), ("AX", 42, 60)):
        line = f"{file}.tsv: {ROWS} predictions of seed {seed}, development score {score}.0\n"
        assert line in outcome.out


def test_predict_names_the_task_that_has_no_run(run, small_toy, run_program):
    tune(run_program, run, "--task", "cola", "--seeds", 1, "--name", "mine")
    cache = run.parent / "cache"
    options = ["--data_dir", "toy", "--cache_dir", cache, "--name", "mine", "--device", "cpu"]
    error = failure(run_program, "predict", run, *options)
    assert "no run of sst-2" in error
    command = f"python glue.py finetune {run} --data_dir toy --cache_dir {cache} --name mine"
    assert f"{command} --task sst-2" in error  # with the options that the user gave


def test_the_table_refuses_results_of_an_earlier_model(run, small_toy, tokenizer, run_program):
    tune(run_program, run, "--task", "cola", "--seeds", 42)
    assert run_glue(run_program, "table", run).code == 0
    torch.manual_seed(9)
    save_run(run, BertForMaskedLM(small_config(tokenizer)), tokenizer)
    assert "are of an earlier model.pt" in failure(run_program, "table", run)


def test_predict_names_weights_that_are_gone_or_of_another_model_or_of_other_tasks(
    run, small_toy, tokenizer, run_program
):
    tune(run_program, run, "--seeds", 1)
    options = ["--data_dir", "toy", "--cache_dir", run.parent / "cache", "--device", "cpu"]
    for file in ("best-rte.pt", "best-mnli_mismatched.pt"):
        (run / "glue" / file).rename(run / "kept.pt")
        assert f"{file} is missing" in failure(run_program, "predict", run, *options)
        (run / "kept.pt").rename(run / "glue" / file)
    error = failure(run_program, "predict", run, "--data_dir", run.parent, "--device", "cpu")
    assert "its runs of cola were fine-tuned on the toy tasks (--data_dir toy)" in error
    assert "these are the test files of GLUE" in error
    torch.manual_seed(9)
    save_run(run, BertForMaskedLM(small_config(tokenizer)), tokenizer)
    assert "another model.pt" in failure(run_program, "predict", run, *options)


@pytest.mark.parametrize("key", ["model", "tokenizer"])
def test_models_that_were_fine_tuned_from_another_file_are_named(run, small_toy, run_program, key):
    tune(run_program, run, "--task", "cola", "--seeds", 42)
    records = glue.read_results(run / "glue")
    records["cola", 42]["settings"][key] = "another"
    message = f"its runs of cola started from another {key}"
    with pytest.raises(ValueError, match=message):
        glue.check_fine_tuned_models(run, run / "glue", records, True, "command")


@pytest.mark.parametrize("command", ["finetune", "table"])
def test_a_run_that_is_not_finished_is_named(run, small_toy, run_program, monkeypatch, command):
    tune(run_program, run, "--task", "cola", "--seeds", 42)
    named = []
    monkeypatch.setattr(glue, "say_if_unfinished", named.append)
    if command == "finetune":
        tune(run_program, run, "--task", "cola", "--seeds", 42)
    else:
        assert run_glue(run_program, "table", run).code == 0
    assert named == [run]


def test_predict_refuses_weights_of_another_run_and_the_advice_is_true(run, small_toy, run_program):
    tune(run_program, run, "--seeds", 42)
    tune(run_program, run, "--task", "cola", "--seeds", 97, "--name", "other")
    options = ["--data_dir", "toy", "--cache_dir", run.parent / "cache", "--device", "cpu"]
    path = run / "glue" / "best-cola.pt"
    shutil.copy(run / "other" / "best-cola.pt", path)
    error = failure(run_program, "predict", run, *options)
    assert f"{path} does not belong to cola, seed 42" in error
    file = run / "glue" / "results.jsonl"
    assert f"delete the lines of cola in {file}, then python glue.py finetune {run}" in error
    assert not list((run / "glue").glob("*.lock"))

    # what it says helps
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["task"] != "cola"]
    file.write_text("".join(kept), encoding="utf-8")
    tune(run_program, run, "--task", "cola", "--seeds", 42)
    assert run_glue(run_program, "predict", run, *options).code == 0


# --- What a user may do wrong ---------------------------------------------------------------------


def write_rte(folder, label):
    """A RTE/train.tsv with one row."""
    lines = ["index\tsentence1\tsentence2\tlabel", f"0\ta\tb\t{label}"]
    return write_lines(folder / "RTE" / "train.tsv", *lines)


def test_data_counts_the_rows_of_every_file(tmp_path, run_program):
    write_rte(tmp_path, "entailment")
    outcome = run_glue(run_program, "data", "--data_dir", tmp_path)
    assert (outcome.code, outcome.error) == (0, "")
    lines = [line.split() for line in outcome.out.splitlines()]
    assert ["RTE", "train", "1", "of", "2,490", "rows", "partial"] in lines
    assert ["CoLA", "dev", "no", "of", "1,043", "rows", "missing"] in lines


def test_data_without_files_names_the_command_that_downloads_them(tmp_path, run_program):
    error = failure(run_program, "data", "--data_dir", tmp_path)
    assert f"python glue.py download all --data_dir {tmp_path}" in error


def test_data_ends_in_one_line_at_an_unreadable_file(tmp_path, run_program):
    path = write_rte(tmp_path, "maybe")
    error = failure(run_program, "data", "--data_dir", tmp_path)
    assert f"{path}, line 2: label 'maybe'" in error


def test_download_of_an_unknown_task_lists_the_tasks(tmp_path, run_program):
    error = failure(run_program, "download", "xnli", "--data_dir", tmp_path)
    assert "'xnli'" in error
    assert ", ".join(glue.TASKS) in error


def test_downloads_for_the_toy_tasks_are_refused(run_program):
    assert "need no download" in failure(run_program, "download", "all", "--data_dir", "toy")


def test_without_a_command_the_command_line_says_what_there_is(run_program):
    outcome = run_glue(run_program)
    assert outcome.code == 2
    for command in ("finetune", "table", "predict", "check", "download", "data"):
        assert command in outcome.error.splitlines()[-1]


def test_the_help_of_finetune_shows_the_published_settings(run_program):
    outcome = run_glue(run_program, "finetune", "--help")
    assert outcome.code == 0
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert "cola matthews 3 32 0.0003, 0.0003, 0.0001" in lines
    assert "rte accuracy 10 32 0.0003, 0.0003, 0.0001 mnli" in lines
    assert "42 97 834 622 329 75 213 101 123 57" in outcome.out
    text = " ".join(lines)
    for setting in ("128 tokens", "eps 1e-06", "weight decay 0.0", "10% of the steps"):
        assert setting in text
    for setting in ("dropout 0.1", "gradient norm at most 1.0", "random batches"):
        assert setting in text

    # the help of the program shows them, too
    published = outcome.out[outcome.out.index("published settings") :]
    assert published in run_glue(run_program, "--help").out


def test_an_unknown_task_is_answered_with_the_list(run, run_program):
    error = failure(run_program, run, *toy_options(run), "--task", "snli")
    assert "'snli'" in error
    assert ", ".join(glue.TASKS) in error


@pytest.mark.parametrize("command", ["finetune", "table", "predict"])
def test_a_folder_that_is_no_run_is_named(tmp_path, run_program, command):
    assert f"{tmp_path} is not a run" in failure(run_program, command, tmp_path)


def test_missing_files_name_the_command_that_downloads_them_before_anything_is_trained(
    run, tmp_path, run_program, monkeypatch
):
    monkeypatch.setattr(Trainer, "update", None)
    error = failure(run_program, run, "--task", "wnli", "--data_dir", tmp_path)
    assert f"is missing: run python glue.py download wnli --data_dir {tmp_path}" in error
    assert not (run / "glue").exists()


def test_missing_files_of_a_task_that_another_one_starts_from_are_explained(
    run, tmp_path, run_program
):
    error = failure(run_program, run, "--task", "rte", "--data_dir", tmp_path)
    assert f"download mnli --data_dir {tmp_path}; other tasks start from mnli" in error
    assert "--no-intermediate" in error


def test_a_label_outside_the_set_is_named_with_file_and_line(run, tmp_path, run_program):
    path = write_rte(tmp_path, "perhaps")
    options = ["--task", "rte", "--no-intermediate", "--allow_partial", "--data_dir", tmp_path]
    error = failure(run_program, run, *options)
    assert f"{path}, line 2: label 'perhaps'" in error


def test_a_cut_file_is_refused_or_with_allow_partial_marked(run, small_glue, run_program):
    options = ["--task", "wnli", "--seeds", 1, "--epochs", 1, "--device", "cpu"]
    command = [run, "--data_dir", small_glue, *options]
    assert "--allow_partial" in failure(run_program, *command)
    outcome = run_glue(run_program, *command, "--allow_partial")
    assert outcome.code == 0
    assert "PARTIAL" in outcome.out
    assert results(run)[0]["result"]["partial"]


def test_a_tokenizer_that_does_not_fit_the_model_is_one_line(
    run, tokenizer, small_toy, run_program
):
    config = small_config(tokenizer)
    larger = replace(config, vocab_size=config.vocab_size + 1)
    save_run(run, BertForMaskedLM(larger), tokenizer)
    error = failure(run_program, run, *toy_options(run), "--task", "wnli")
    assert f"tokenizer has {config.vocab_size} vocabulary items" in error


def test_what_is_no_zip_or_not_there_is_one_line(tmp_path, run_program):
    path = tmp_path / "submission.zip"
    assert str(path) in failure(run_program, "check", path)
    path.write_bytes(b"no zip")
    assert str(path) in failure(run_program, "check", path)


def test_a_wrong_submission_ends_with_a_list_of_what_is_wrong(tmp_path, run_program):
    path = tmp_path / "submission.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in SUBMISSION:
            if file != "RTE.tsv":
                archive.writestr(file, "index\tprediction\n")
    outcome = run_glue(run_program, "check", path)
    assert outcome.code == 2
    assert outcome.error.startswith(f"glue.py: {path} is not a GLUE submission:\n")
    assert "  RTE.tsv is missing\n" in outcome.error
    assert outcome.error.count("\n") == 1 + len(SUBMISSION)


@pytest.mark.parametrize(
    "arguments",
    [
        ("RUN", "--published"),
        ("RUN", "--format", "csv"),
        ("table", "RUN", "--epochs", "3"),
        ("predict", "RUN", "--seeds", "3"),
        ("RUN", "--seed", "3"),  # not --seeds, which is a count
        ("check", "x.zip", "--task", "cola"),
        ("table", "RUN", "--published", "--by_phenomenon"),
        ("table", "RUN", "--published", "--compare", "none", "composite"),
    ],
)
def test_options_of_another_command_and_contradictions_are_refused(run_program, arguments):
    outcome = run_glue(run_program, *arguments)
    assert outcome.code == 2
    assert outcome.error.startswith("usage: ")


def test_a_loss_that_is_not_finite_ends_in_one_line_and_leaves_no_result(
    run, small_toy, run_program
):
    options = ["--task", "sts-b", "--no-intermediate", "--seeds", 1, "--epochs", 2]
    options += ["--batch_size", 4, "--lr", 1e30]
    outcome = run_glue(run_program, run, *toy_options(run), *options)
    assert outcome.code == 1
    assert outcome.error.count("\n") == 1
    assert "--lr" in outcome.error
    assert not (run / "glue" / "results.jsonl").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("RUN", "--seeds", "0"),
        ("RUN", "--seeds", "-3"),
        ("RUN", "--lr", "0"),
        ("RUN", "--lr", "much"),
        ("RUN", "--lr", "nan"),
        ("RUN", "--lr", "1e400"),
        ("RUN", "--weight_decay", "nan"),
        ("RUN", "--epochs", "1" + "0" * 30),
        ("RUN", "--dropout", "1"),
        ("RUN", "--epochs", "0"),
        ("RUN", "--batch_size", "x"),
        ("RUN", "--seq_len", "4"),
        ("table", "RUN", "--format", "pdf"),
    ],
)
def test_settings_that_make_no_sense_are_refused(run_program, arguments):
    outcome = run_glue(run_program, *arguments)
    assert outcome.code == 2
    assert arguments[-2] in outcome.error.splitlines()[-1]


@pytest.mark.parametrize("option", ["--lr", "--epochs", "--seeds", "--seq_len", "--name"])
def test_two_dashes_are_no_value(run_program, option):
    outcome = run_glue(run_program, "RUN", f"{option}=--")
    assert outcome.code == 2
    assert f"{option}=--: -- is not a value" in outcome.error.splitlines()[-1]
