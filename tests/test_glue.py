"""glue.py: batches, the classifier's input, settings and starts, what survives a kill, tables, submissions, bad input."""

import csv
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import glue
import tasks
import toy
from data import CLS, PAD, SEP, train_tokenizer
from glue import Encoded, FineTuning, classify, predict
from model import SIZES, BertConfig, BertForClassification, BertForMaskedLM, save_run
from tasks import SUBMISSION, TASKS, Examples

ROWS = 24  # of every file of the small toy tasks


@pytest.fixture(scope="session")
def tokenizer():
    sample = [sentence for document in toy.documents(0, 5000) for sentence in document]
    return train_tokenizer([re.sub(r" ([.,?])", r"\1", sentence) for sentence in sample], 2000, lambda line: None)


def config_of(tokenizer, variant="composite", **options):
    return BertConfig(variant, tokenizer.get_vocab_size(), layers=1, hidden_size=16, ffn_size=32, heads=2,
                      embedding_size=16, max_length=64, **options)


@pytest.fixture(scope="session")
def whole_glue(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy") / "glue"
    toy.write_glue(folder)
    return folder


@pytest.fixture(scope="session")
def small_glue(whole_glue, tmp_path_factory):
    """The first rows of every file of the toy tasks."""
    folder = tmp_path_factory.mktemp("small") / "glue"
    shutil.copytree(whole_glue, folder)
    for path in folder.rglob("*.tsv"):
        headed = path.parts[-2:] not in (("CoLA", "train.tsv"), ("CoLA", "dev.tsv"))
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:ROWS + headed]), encoding="utf-8", newline="\n")
    return folder


@pytest.fixture
def small_toy(small_glue, monkeypatch):
    """--data_dir toy stands for these few rows."""
    monkeypatch.setattr(toy, "write_glue", lambda folder: shutil.copytree(small_glue, folder))
    monkeypatch.setattr(toy, "GLUE_ROWS", {name: dict.fromkeys(rows, ROWS) for name, rows in toy.GLUE_ROWS.items()})


@pytest.fixture
def run(tokenizer, tmp_path):
    """The folder of an untrained run."""
    torch.manual_seed(0)
    folder = tmp_path / "composite"
    folder.mkdir()
    save_run(folder, BertForMaskedLM(config_of(tokenizer)), tokenizer)
    return folder


def main(capsys, *arguments):
    """(exit code, standard output, standard error) of glue.py with these arguments."""
    with pytest.raises(SystemExit) as stop:
        glue.main([str(argument) for argument in arguments])
    return stop.value.code, *capsys.readouterr()


def tune(capsys, run, *arguments):
    """Fine-tune on the small toy tasks, one epoch unless told otherwise; returns what was printed."""
    options = ["--data_dir", "toy", "--cache_dir", run.parent / "cache", "--dtype", "fp32", "--device", "cpu"]
    epochs = [] if "--epochs" in arguments else ["--epochs", 1]
    code, output, error = main(capsys, run, *options, *epochs, "--batch_size", 8, *arguments)
    assert code == 0, error
    return output


def failure(capsys, *arguments):
    code, _, error = main(capsys, *arguments)
    lines = [line for line in error.splitlines() if line.startswith("glue.py: ")]
    assert code == 2 and len(lines) == 1 and error.endswith(lines[0] + "\n")
    return lines[0]


def results(run, name="glue"):
    """The records of results.jsonl without what differs between two equal runs: the seconds."""
    lines = (run / name / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


def labelled(name, a, b, labels, split="train"):
    return Examples(TASKS[name], split, a, b, labels, None, False, ())


def encoded(tokenizer, count=40, name="mrpc", seq_len=64):
    """Made pairs of 1 to 12 words."""
    rng = random.Random(0)
    a, b = ([" ".join(["the dog", "cats"][rng.random() < 0.5] for _ in range(rng.randint(1, 12))) for _ in range(count)]
            for _ in range(2))
    return Encoded(labelled(name, a, b, [i % 2 for i in range(count)]), tokenizer, seq_len)


def small_settings(**options):
    return dict(seed=42, batch_size=8, steps=10, warmup_steps=1, lr=1e-3, dropout=0.1, weight_decay=0.0) | options


def fine_tuning(tokenizer, folder, train, dev=None, **options):
    torch.manual_seed(1)
    start = BertForMaskedLM(config_of(tokenizer)).state_dict()
    return FineTuning(folder, small_settings(**options), train, dev or {}, config_of(tokenizer), start,
                      torch.device("cpu"), torch.float32)


# --- batches ---

def test_an_epoch_holds_every_row_once_but_for_a_remainder_and_another_order_the_next_time(tokenizer):
    data = encoded(tokenizer, 43)
    first, second = ([data.numbers(7, step, 8).tolist() for step in range(start, start + 5)] for start in (0, 5))
    for epoch in (first, second):
        rows = [row for batch in epoch for row in batch]
        assert len(rows) == len(set(rows)) == 40 and set(rows) <= set(range(43))
    assert first != second and data.numbers(8, 0, 8).tolist() != first[0]


def test_the_batch_of_a_step_is_a_function_of_seed_and_step(tokenizer):
    data, again = encoded(tokenizer), encoded(tokenizer)
    expected = [data.batch(42, step, 8) for step in range(12)]
    for step in (11, 3, 7, 0):
        assert torch.equal(again.batch(42, step, 8), expected[step])


def test_batches_join_rows_of_like_length(tokenizer):
    data = encoded(tokenizer, 400)
    spread = np.mean([np.ptp(data.lengths[data.numbers(0, step, 8)]) for step in range(50)])
    assert spread < np.ptp(data.lengths) / 8  # rows drawn at random span most of the range


def test_a_row_is_cls_a_sep_b_sep_and_its_length_is_known(tokenizer):
    data = Encoded(labelled("rte", ["the dog [SEP] slept.", "anna"], ["the cats were tired.", "tom"], [0, 1]), tokenizer, 64)
    ids = data.rows([0, 1])
    assert (ids[:, 0] == CLS).all() and ((ids == SEP).sum(axis=1) == 2).all()  # "[SEP]" in a text is text
    assert ids[1].tolist()[:5] == [CLS, tokenizer.token_to_id("▁anna"), SEP, tokenizer.token_to_id("▁tom"), SEP]
    assert data.lengths.tolist() == (ids != PAD).sum(axis=1).tolist()


def test_single_sentences_have_no_second_part_and_long_ones_are_cut(tokenizer):
    data = Encoded(labelled("sst-2", ["the film was good. " * 30], None, [1]), tokenizer, 16)
    ids = data.rows([0])
    assert ids.shape == (1, 16) and ids[0, -1] == SEP and (ids == SEP).sum() == 1 and data.lengths.tolist() == [16]


def test_token_types_are_1_for_the_second_sentence_and_the_mask_leaves_padding_out():
    seen = {}

    def model(input_ids, padding_mask, token_type_ids):
        seen.update(mask=padding_mask, types=token_type_ids)

    classify(model, torch.tensor([[CLS, 9, 9, SEP, 8, SEP], [CLS, 9, SEP, PAD, PAD, PAD], [CLS, 9, SEP, 8, SEP, PAD]]))
    assert seen["types"].tolist() == [[0, 0, 0, 0, 1, 1], [0] * 6, [0, 0, 0, 1, 1, 0]]
    assert seen["mask"].tolist() == [[True] * 6, [True] * 3 + [False] * 3, [True] * 5 + [False]]


@pytest.mark.parametrize("name, labels", [("mrpc", 2), ("mnli", 3), ("sts-b", 1)])
def test_predictions_are_those_of_each_row_alone(tokenizer, name, labels):
    data = encoded(tokenizer, 21, name)
    torch.manual_seed(0)
    model = BertForClassification(config_of(tokenizer), labels)
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    with torch.no_grad():  # as many answers of each kind as there can be
        model.classifier.bias -= classify(model.eval(), torch.from_numpy(data.rows(range(21)))).mean(dim=0)
    got = predict(model, data, torch.device("cpu"), torch.float32, batch_size=4)
    with torch.no_grad():
        alone = [classify(model.eval(), torch.from_numpy(data.rows([row])))[0] for row in range(21)]
    expected = [row.argmax().item() if labels > 1 else row[0].item() for row in alone]
    assert len(set(expected)) > 1
    np.testing.assert_allclose(got, expected, atol=1e-5, rtol=0)


# --- training ---

def test_a_word_that_tells_the_class_is_learnt(tokenizer, tmp_path):
    a = [f"the {word} slept near the house." for word in ("dog", "cat") * 32]
    data = Encoded(labelled("sst-2", a, None, [0, 1] * 32), tokenizer, 64)
    run = fine_tuning(tokenizer, tmp_path / "r", data, {"dev": data}, steps=60, batch_size=16, lr=1e-2)
    assert run.train(1000, 60) == 0
    assert run.result["score"] == 100.0 and not run.result["collapsed"] and not run.result["partial"]


def test_numbers_are_learnt_by_squared_error(tokenizer, tmp_path):
    data = Encoded(labelled("sts-b", ["the dog slept.", "anna ran."], ["the dog slept.", "tom ate."], [5.0, 0.5]), tokenizer, 64)
    run = fine_tuning(tokenizer, tmp_path, data, batch_size=2, dropout=0.0)
    numbers = data.numbers(42, 0, 2)
    with torch.no_grad():
        outputs = classify(run.model, torch.from_numpy(data.rows(numbers)))[:, 0].tolist()
    expected = np.mean([(output - [5.0, 0.5][number]) ** 2 for output, number in zip(outputs, numbers)])
    assert run.batch_loss().item() == pytest.approx(expected, abs=1e-5)


def test_one_answer_to_everything_is_marked(tokenizer, tmp_path):
    data = encoded(tokenizer)
    run = fine_tuning(tokenizer, tmp_path, data, {"dev": data})
    run.model.classifier.bias.data[:] = torch.tensor([9.0, 0.0])
    run.evaluate()
    assert run.result["collapsed"] and run.result["scores"]["dev"]["accuracy"] == 50.0


def test_accuracy_by_kind_is_counted_on_each_kind(tokenizer, tmp_path):
    dev = replace(labelled("cola", ["the dog slept."] * 4, None, [0, 1, 0, 0], "dev"), kinds=["x", "x", "y", "y"])
    data = Encoded(dev, tokenizer, 64)
    run = fine_tuning(tokenizer, tmp_path, data, {"dev": data})
    run.model.classifier.bias.data[:] = torch.tensor([9.0, 0.0])
    run.evaluate()
    assert run.result["by_kind"] == {"x": 50.0, "y": 100.0}


def test_a_run_taken_up_again_equals_an_unbroken_one_to_the_bit(tokenizer, tmp_path):
    data = encoded(tokenizer)
    whole = fine_tuning(tokenizer, tmp_path / "whole", data)
    for _ in range(10):
        whole.train_step()
    broken = fine_tuning(tokenizer, tmp_path / "broken", data)
    for _ in range(4):
        broken.train_step()
    broken.collect(1.0)
    broken.save()
    resumed = fine_tuning(tokenizer, tmp_path / "broken", data)
    resumed.resume()
    assert resumed.step == 4
    for _ in range(6):
        resumed.train_step()
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


# --- settings and starts ---

def settings_of(tokenizer, name, size, rows, **options):
    args = glue.parse_arguments(["RUN", *[str(part) for option in options.items() for part in option]])
    train = Encoded(labelled(name, ["the dog slept."] * rows, None, [0] * rows), tokenizer, 128)
    config = BertConfig.from_size(size, "composite", 300)
    return glue.task_settings(name, 42, {"train": train}, args, config, "", torch.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", TASKS)
def test_settings_of_a_run_are_the_published_ones(tokenizer, name, size):
    epochs = {"rte": 10, "sts-b": 10, "mnli": 4, "qqp": 4, "wnli": 5}.get(name, 3)
    batch_size = 128 if name in ("mnli", "qqp") else 32
    settings = settings_of(tokenizer, name, size, 300)
    expected = dict(lr=1e-4 if size == "base" or name == "qnli" else 3e-4, epochs=epochs, batch_size=batch_size, dropout=0.1,
                    weight_decay=0.0, steps=epochs * (300 // batch_size), seq_len=128,
                    start="mnli" if name in ("rte", "sts-b", "mrpc") else None)
    expected["warmup_steps"] = -(-expected["steps"] // 10)
    assert {key: settings[key] for key in expected} == expected


def test_every_setting_can_be_overridden(tokenizer):
    given = {"--lr": 0.5, "--epochs": 7, "--batch_size": 3, "--dropout": 0.25, "--weight_decay": 0.125, "--warmup_share": 0.5}
    settings = settings_of(tokenizer, "mrpc", "small", 30, **given)
    assert {f"--{name}": settings[name] for name in
            ("lr", "epochs", "batch_size", "dropout", "weight_decay", "warmup_share")} == given
    assert settings["steps"] == 70 and settings["warmup_steps"] == 35


def test_as_many_optimizer_steps_are_taken_as_the_settings_say(run, small_toy, capsys, monkeypatch):
    taken, step = [], torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, *args: taken.append(self.param_groups[0]["lr"]) or step(self))
    tune(capsys, run, "--task", "cola", "--seeds", "1", "--epochs", 4)
    assert len(taken) == 4 * ROWS // 8 == 12
    expected = [3e-4 * min((i + 1) / 2, (12 - i) / 10) for i in range(12)]  # warm-up over ceil(1.2) steps, then to 0
    assert taken == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("words, seeds", [((), tasks.SEEDS), (("--seeds", "3"), (42, 97, 834)), (("--seeds", "57"), (57,)),
                                          (("--seeds", "5", "6", "5"), (5, 6))])
def test_seeds_are_a_count_of_the_released_ones_or_a_list(words, seeds):
    assert glue.parse_arguments(["RUN", *words]).seeds == seeds


def test_rte_starts_from_the_mnli_encoder_of_its_seed_trained_once(run, small_toy, capsys, monkeypatch):
    starts = {}
    make_model = FineTuning.make_model
    monkeypatch.setattr(FineTuning, "make_model", lambda self: starts.setdefault(self.name, self.start) and make_model(self))
    tune(capsys, run, "--task", "rte", "--seeds", "2", "--lr", "0.01")
    assert list(starts) == ["MNLI, seed 42", "RTE, seed 42", "MNLI, seed 97", "RTE, seed 97"]
    pretrained = torch.load(run / "model.pt", weights_only=True)
    for seed in (42, 97):
        saved, start = torch.load(run / "glue" / f"mnli-seed{seed}.pt", weights_only=True), starts[f"RTE, seed {seed}"]
        assert all(torch.equal(saved[name], start[name]) for name in start) and "pooler.weight" in start
        assert not any(name.startswith("classifier") for name in start)
        assert not torch.equal(start["bert.embeddings.token.weight"], pretrained["bert.embeddings.token.weight"])
    assert [record["settings"]["lr"] for record in results(run)] == [3e-4, 0.01, 3e-4, 0.01]  # RTE alone was asked for
    starts.clear()
    tune(capsys, run, "--task", "mrpc", "--seeds", "2")
    assert list(starts) == ["MRPC, seed 42", "MRPC, seed 97"]


def test_no_intermediate_starts_every_task_from_the_pretrained_encoder(run, small_toy, capsys):
    output = tune(capsys, run, "--task", "rte", "--seeds", "1", "--no-intermediate")
    assert [(record["task"], record["settings"]["start"]) for record in results(run)] == [("rte", None)]
    assert "mnli" not in output


def test_the_encoder_of_a_new_run_is_the_start_and_the_classifier_is_drawn_from_the_seed(tokenizer, tmp_path):
    data = encoded(tokenizer)
    one, same, other = (fine_tuning(tokenizer, tmp_path, data, seed=seed) for seed in (1, 1, 2))
    for name, weight in one.start.items():
        assert name not in one.model.state_dict() or torch.equal(one.model.state_dict()[name], weight)
    assert torch.equal(one.model.classifier.weight, same.model.classifier.weight)
    assert not torch.equal(one.model.classifier.weight, other.model.classifier.weight)


# --- results that survive ---

def test_the_same_command_again_trains_nothing_and_changes_nothing(run, small_toy, capsys, monkeypatch):
    tune(capsys, run, "--task", "mrpc", "--seeds", "2")
    before = (run / "glue" / "results.jsonl").read_bytes()
    monkeypatch.setattr(FineTuning, "train_step", None)  # not callable
    tune(capsys, run, "--task", "mrpc", "--seeds", "2")
    assert (run / "glue" / "results.jsonl").read_bytes() == before


def test_more_seeds_or_tasks_add_what_is_missing(run, small_toy, capsys):
    tune(capsys, run, "--task", "cola", "--seeds", "1")
    tune(capsys, run, "--task", "cola", "--seeds", "3")
    tune(capsys, run, "--task", "sst-2", "--seeds", "1")
    assert [(record["task"], record["seed"]) for record in results(run)] == [
        ("cola", 42), ("cola", 97), ("cola", 834), ("sst-2", 42)]


def test_a_record_tells_task_seed_scores_settings_code_and_seconds(run, small_toy, capsys):
    tune(capsys, run, "--task", "mnli", "--seeds", "1")
    record = json.loads((run / "glue" / "results.jsonl").read_text(encoding="utf-8"))
    assert set(record) == {"task", "seed", "result", "settings", "code", "seconds"} and record["seconds"] > 0
    assert record["result"]["score"] == pytest.approx(
        np.mean([record["result"]["scores"][split]["accuracy"] for split in ("dev_matched", "dev_mismatched")]), abs=1e-9)
    assert re.fullmatch("[0-9a-f]{12}", record["code"]) and record["settings"]["epochs"] == 1


PROGRAM = """
import shutil, sys
sys.path.insert(0, sys.argv[1])
import glue, toy
toy.write_glue = lambda folder: shutil.copytree(sys.argv[2], folder)
toy.GLUE_ROWS = {name: dict.fromkeys(rows, int(sys.argv[3])) for name, rows in toy.GLUE_ROWS.items()}
glue.main(sys.argv[4:])
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM or SIGKILL to send")
def test_killed_at_random_and_started_again_it_ends_with_the_results_of_an_unbroken_run(run, small_glue, small_toy, capsys):
    """SIGKILL and SIGTERM in turn, each soon after another result or state was written."""
    unbroken = run.with_name("unbroken")
    shutil.copytree(run, unbroken)
    tune(capsys, unbroken, "--seeds", "1", "--epochs", 8)
    command = [sys.executable, "-c", PROGRAM, Path(glue.__file__).parent, small_glue, ROWS, run, "--data_dir", "toy",
               "--cache_dir", run.parent / "cache", "--dtype", "fp32", "--device", "cpu", "--seeds", 1, "--epochs", 8,
               "--batch_size", 8]
    rng, kills, seen = random.Random(0), 0, 0
    for attempt in range(20):
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if kills < 3:
            while process.poll() is None and seen == len(list((run / "glue").glob("best-*"))):
                time.sleep(0.005)
            time.sleep(rng.random() / 20)
            process.send_signal([signal.SIGKILL, signal.SIGTERM][kills % 2])
        code = process.wait(60)
        kills, seen = kills + (code != 0), len(list((run / "glue").glob("best-*")))
        if code == 0:
            break
    assert code == 0 and kills >= 2
    assert results(run) == results(unbroken) and len(results(run)) == len(TASKS)
    assert not list((run / "glue").glob("running-*"))


def test_a_mid_run_state_is_taken_up_and_removed_in_the_end(run, small_toy, capsys, monkeypatch):
    train, taken = FineTuning.train, []

    def interrupted(self, **options):
        self.train_step()
        self.collect(1.0)
        self.save()
        return signal.SIGTERM

    monkeypatch.setattr(FineTuning, "train", interrupted)
    code, output, _ = main(capsys, run, "--data_dir", "toy", "--cache_dir", run.parent / "cache", "--task", "cola",
                           "--seeds", 1, "--epochs", 1, "--batch_size", 8, "--dtype", "fp32", "--device", "cpu")
    assert code == 128 + signal.SIGTERM and "SIGTERM" in output and (run / "glue" / "running-cola-seed42").is_dir()
    monkeypatch.setattr(FineTuning, "train", lambda self, **options: taken.append(self.step) or train(self, **options))
    tune(capsys, run, "--task", "cola", "--seeds", "1")
    assert taken == [1] and not (run / "glue" / "running-cola-seed42").exists()


def test_other_settings_data_or_weights_under_one_name_are_refused_and_another_name_helps(run, small_toy, tokenizer, capsys):
    tune(capsys, run, "--task", "cola", "--seeds", "1")
    options = ["--data_dir", "toy", "--cache_dir", run.parent / "cache", "--task", "cola", "--seeds", 1, "--batch_size", 8,
               "--dtype", "fp32", "--device", "cpu"]
    error = failure(capsys, run, *options, "--epochs", 2)
    assert "epochs 1 there, 2 here" in error and "--name" in error
    tune(capsys, run, "--task", "cola", "--seeds", "1", "--epochs", 2, "--name", "two")
    assert results(run, "two")[0]["settings"]["epochs"] == 2
    torch.manual_seed(5)
    save_run(run, BertForMaskedLM(config_of(tokenizer)), tokenizer)
    assert "model " in failure(capsys, run, *options, "--epochs", 1)


# --- tables ---

def write_results(folder, scores_by_task, variant="composite", settings={}, **marks):
    """A run with a results.jsonl of {task: [score of each seed]}."""
    (folder / "glue").mkdir(parents=True)
    config = BertConfig.from_size("tiny", variant, 300)
    (folder / "config.json").write_text(json.dumps(vars(config)), encoding="utf-8")
    lines = []
    for name, values in scores_by_task.items():
        for seed, value in zip(tasks.SEEDS, values):
            splits = [split for split in TASKS[name].rows if split.startswith("dev")]
            result = dict(score=value, scores={split: {"score": value + i} for i, split in enumerate(splits)},
                          collapsed=False, partial=False) | marks.get(name.replace("-", "_"), {})
            lines.append(json.dumps(dict(task=name, seed=seed, result=result, settings=settings)) + "\n")
    (folder / "glue" / "results.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


ALL = {"cola": [10, 20, 30], "mnli": [70, 70, 70], "mrpc": [80, 80, 80], "qnli": [80, 80, 80], "qqp": [80, 80, 80],
       "rte": [60, 60, 60], "sst-2": [80, 80, 80], "sts-b": [80, 80, 80], "wnli": [50, 50, 50]}


def table(capsys, *arguments):
    code, output, error = main(capsys, "--table", *arguments)
    assert code == 0, error
    return output


def test_the_table_has_means_standard_errors_and_the_overall_score_of_each_seed(tmp_path, capsys):
    """CoLA 10, 20, 30: 20 +- 10 / sqrt(3). GLUE: (CoLA + 70 + 71 + 4 x 80 + 60 + 80) / 9 each seed; WNLI stays out."""
    folder = write_results(tmp_path / "a", ALL)
    header, row = table(capsys, folder).splitlines()
    assert header.split() == "run variant runs CoLA MNLI-m MNLI-mm MRPC QNLI QQP RTE SST STS GLUE".split()
    assert row.split() == [str(folder), *"composite 3 20.0+-5.8 70.0+-0.0 71.0+-0.0 80.0+-0.0 80.0+-0.0 80.0+-0.0 60.0+-0.0 "
                           "80.0+-0.0 80.0+-0.0 69.0+-0.6".split()]


def test_the_overall_score_takes_only_seeds_with_every_task(tmp_path, capsys):
    folder = write_results(tmp_path / "a", ALL | {"rte": [60]})
    assert table(capsys, folder, "--format", "csv").splitlines()[1].endswith(",60.0,80.0+-0.0,80.0+-0.0,67.9")
    other = write_results(tmp_path / "b", {name: ALL[name] for name in ("cola", "rte")})
    assert "GLUE" not in table(capsys, other)


def test_partial_and_collapsed_runs_are_marked_and_the_marks_explained(tmp_path, capsys):
    folder = write_results(tmp_path / "a", ALL, cola={"collapsed": True}, qqp={"partial": True})
    output = table(capsys, folder)
    assert "20.0+-5.8*" in output and "80.0+-0.0~" in output and re.search(r"69\.0\+-0\.6[~*]{2}", output)
    assert "not a GLUE score" in output and "one answer to everything" in output
    assert "not a GLUE score" not in table(capsys, write_results(tmp_path / "b", ALL))


def test_published_rows_stand_below_and_agree_with_their_overall_score(tmp_path, capsys):
    folders = [write_results(tmp_path / name, {"cola": [1, 2]}, name) for name in ("none", "composite")]
    lines = table(capsys, *folders, "--published").splitlines()
    assert [line.split()[-1] for line in lines[-2:]] == ["69.3+-0.3", "76.9+-0.1"] and len(lines) == 5
    for name, row in glue.PUBLISHED.items():
        scores = [float(cell.partition("+-")[0]) for cell in row]
        assert len(row) == 10 and abs(np.mean(scores[:9]) - scores[9]) < 0.11, name  # of rounded numbers


def test_results_of_the_toy_tasks_are_called_so_and_never_stand_beside_published_rows(tmp_path, capsys):
    folder, other = (write_results(tmp_path / name, ALL, settings=settings)
                     for name, settings in (("toy", {"toy": True}), ("real", {})))
    assert "of the toy tasks" in table(capsys, folder) and "of the toy tasks" not in table(capsys, other)
    for folders in ((folder,), (other, folder)):
        code, _, error = main(capsys, "--table", *folders, "--published")
        assert code == 2 and "results of the toy tasks" in error and error.count("\n") == 1


def test_published_rows_are_there_for_every_variant_of_the_paper():
    from attention import VARIANTS
    assert set(glue.PUBLISHED) <= set(VARIANTS) and len(glue.PUBLISHED) == 15


def test_markdown_and_csv_hold_the_same_cells(tmp_path, capsys):
    folder = write_results(tmp_path / "a", ALL, cola={"collapsed": True})
    markdown = [[cell.strip() for cell in line.strip("|").split("|")]
                for line in table(capsys, folder, "--format", "markdown").splitlines() if line.startswith("|")]
    assert set("".join(markdown.pop(1))) == {"-"}
    assert list(csv.reader(io.StringIO(table(capsys, folder, "--format", "csv")))) == markdown


def test_by_phenomenon_prints_accuracy_on_each_kind_of_sentence(tmp_path, capsys):
    folder = write_results(tmp_path / "a", {"cola": [1, 2]}, cola={"by_kind": {"agreement": 75.0, "order": 50.0}})
    header, row = table(capsys, folder, "--by_phenomenon").splitlines()
    assert header.split()[3:] == ["agreement", "order"] and row.split()[3:] == ["75.0+-0.0", "50.0+-0.0"]


# --- submissions ---

@pytest.fixture(scope="module")
def submission(tmp_path_factory):
    """A zip that the published row counts fit, of made predictions."""
    path = tmp_path_factory.mktemp("zip") / "submission.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, (name, split) in SUBMISSION.items():
            word = TASKS[name].classes[0] if TASKS[name].classes else "2.500"
            archive.writestr(f"{file}.tsv", "index\tprediction\n" + "".join(
                f"{i}\t{word}\n" for i in range(TASKS[name].rows[split])))
    return path


def test_predict_writes_eleven_files_that_the_checker_takes(run, small_toy, capsys):
    tune(capsys, run, "--seeds", "2")
    options = ["--data_dir", "toy", "--cache_dir", run.parent / "cache"]
    code, output, error = main(capsys, run, "--predict", *options, "--device", "cpu", "--dtype", "fp32")
    assert code == 0, error
    with zipfile.ZipFile(run / "glue" / "submission.zip") as archive:
        assert sorted(archive.namelist()) == sorted(f"{name}.tsv" for name in (
            "CoLA SST-2 MRPC STS-B MNLI-m MNLI-mm QNLI QQP RTE WNLI AX").split())
        words = {name[:-4]: {line.split("\t")[1] for line in archive.read(name).decode().splitlines()[1:]}
                 for name in archive.namelist()}
    assert words["RTE"] <= {"entailment", "not_entailment"} and words["AX"] <= set(TASKS["mnli"].classes)
    assert words["CoLA"] <= {"0", "1"} and all(re.fullmatch(r"\d\.\d{3}", word) for word in words["STS-B"])
    for name in TASKS:
        records = [record for record in results(run) if record["task"] == name]
        best = max(records, key=lambda record: record["result"]["score"])  # of equals the first
        file = next(file for file, (task, _) in SUBMISSION.items() if task == name)
        assert f"{file}.tsv: {ROWS} predictions of seed {best['seed']}, development score " in output
    code, output, error = main(capsys, "--check", run / "glue" / "submission.zip", *options)
    assert (code, error) == (0, "")


@pytest.mark.parametrize("seeds", [(42, 97, 834), (834, 97, 42)])
def test_the_weights_kept_are_those_of_the_best_development_run(run, small_glue, small_toy, tokenizer, capsys, seeds):
    tune(capsys, run, "--task", "sts-b", "--no-intermediate", "--seeds", *seeds, "--epochs", 3, "--lr", 0.01)
    model = BertForClassification(config_of(tokenizer), 1)
    model.load_state_dict(torch.load(run / "glue" / "best-sts-b.pt", weights_only=True))
    task = replace(TASKS["sts-b"], rows=dict.fromkeys(TASKS["sts-b"].rows, ROWS))
    data = Encoded(tasks.read_task(task, small_glue, "dev"), tokenizer, 64)
    score = tasks.scores(predict(model, data, torch.device("cpu"), torch.float32), data.examples)["score"]
    found = [record["result"]["score"] for record in results(run)]
    assert len(set(found)) == 3 and score == pytest.approx(max(found), abs=1e-9)


def test_the_checker_takes_a_submission_of_the_published_sizes(submission, capsys):
    code, output, error = main(capsys, "--check", submission)
    assert (code, error) == (0, "") and "11 files" in output


@pytest.mark.parametrize("file, change, message", [
    ("RTE", None, "RTE.tsv is missing"),
    ("RTE", lambda lines: [*lines, "3000\tentailment"], "RTE.tsv has 3,001 predictions, not 3,000"),
    ("RTE", lambda lines: lines[:-1], "RTE.tsv has 2,999 predictions, not 3,000"),
    ("RTE", lambda lines: [*lines[:5], "4\tyes", *lines[6:]], "RTE.tsv, line 6: prediction 'yes' is not one of: entailment"),
    ("AX", lambda lines: [*lines[:5], "4\t1", *lines[6:]], "AX.tsv, line 6: prediction '1' is not one of: contradiction"),
    ("CoLA", lambda lines: [*lines[:5], "4\t2", *lines[6:]], "CoLA.tsv, line 6: prediction '2' is not one of: 0, 1"),
    ("STS-B", lambda lines: [*lines[:5], "4\t5.001", *lines[6:]], "STS-B.tsv, line 6: prediction '5.001' is not a number"),
    ("STS-B", lambda lines: [*lines[:5], "4\tnan", *lines[6:]], "STS-B.tsv, line 6: prediction 'nan' is not a number"),
    ("WNLI", lambda lines: ["id\tprediction", *lines[1:]], "WNLI.tsv: its first line is 'id\\tprediction'"),
    ("QNLI", lambda lines: [*lines[:5], lines[6], lines[5], *lines[7:]], "QNLI.tsv, line 6: index '5', not 4"),
])
def test_each_way_of_breaking_a_submission_is_named(submission, tmp_path, capsys, file, change, message):
    path = tmp_path / "broken.zip"
    with zipfile.ZipFile(submission) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            lines = source.read(name).decode().splitlines()
            if name == f"{file}.tsv":
                lines = change(lines) if change else None
            if lines is not None:
                target.writestr(name, "\n".join(lines) + "\n")
    code, _, error = main(capsys, "--check", path)
    assert code == 2 and message in error and error.count("\n") == 2  # the zip's name, then this one line


def test_nested_and_foreign_and_doubled_files_are_named(submission, tmp_path, capsys):
    path = tmp_path / "broken.zip"
    with zipfile.ZipFile(submission) as source, pytest.warns(UserWarning, match="Duplicate name"):
        with zipfile.ZipFile(path, "w") as target:
            for name in source.namelist():
                target.writestr(f"mine/{name}" if name == "RTE.tsv" else name, source.read(name))
            target.writestr("notes.txt", "hello")
            target.writestr("QQP.tsv", source.read("QQP.tsv"))
    code, _, error = main(capsys, "--check", path)
    assert code == 2
    for message in ("mine/RTE.tsv is in a folder", "RTE.tsv is missing", "notes.txt is no file", "QQP.tsv is there 2 times"):
        assert message in error


def test_a_submission_too_large_to_be_one_is_not_unpacked(tmp_path, capsys):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("QQP.tsv", bytes(70_000_000))
    assert "70,000,000 bytes" in failure(capsys, "--check", path)


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 no zip"])
def test_what_is_no_zip_is_one_line(tmp_path, capsys, content):
    path = tmp_path / "submission.zip"
    if content is not None:
        path.write_bytes(content)
    assert str(path) in failure(capsys, "--check", path)


# --- what a user may do wrong ---

def rte(folder, label):
    """A RTE/train.tsv of one row."""
    path = folder / "RTE" / "train.tsv"
    path.parent.mkdir()
    path.write_text(f"index\tsentence1\tsentence2\tlabel\n0\ta\tb\t{label}\n", encoding="utf-8")
    return path


def test_check_data_prints_rows_found_published_and_whether_they_are_all(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(glue, "TASKS", {"rte": replace(TASKS["rte"], rows=TASKS["rte"].rows | dict(train=2, dev=1))})
    rte(tmp_path, "entailment")
    (tmp_path / "RTE" / "dev.tsv").write_bytes((tmp_path / "RTE" / "train.tsv").read_bytes())
    code, output, error = main(capsys, "--check_data", "--data_dir", tmp_path)
    lines = [line.split() for line in output.splitlines()]
    assert (code, error) == (0, "") and lines == [
        "RTE train 1 of 2 rows partial".split(), "RTE dev 1 of 1 rows complete".split(),
        "RTE test no of 3,000 rows missing".split()]


def test_check_data_of_a_folder_without_files_names_the_command(tmp_path, capsys):
    error = failure(capsys, "--check_data", "--data_dir", tmp_path)
    assert f"python glue.py --download all --data_dir {tmp_path}" in error


def test_check_data_ends_in_one_line_at_an_unreadable_file(tmp_path, capsys):
    path = rte(tmp_path, "maybe")
    assert f"{path}, line 2: label 'maybe'" in failure(capsys, "--check_data", "--data_dir", tmp_path)


def test_download_of_an_unknown_task_lists_the_tasks(tmp_path, capsys):
    error = failure(capsys, "--download", "xnli", "--data_dir", tmp_path)
    assert "'xnli'" in error and ", ".join(TASKS) in error


def test_without_anything_to_do_the_command_line_says_what_there_is(capsys):
    code, _, error = main(capsys)
    assert code == 2 and "--download" in error.splitlines()[-1] and "--check_data" in error.splitlines()[-1]


def test_an_unknown_task_is_answered_with_the_list(run, capsys):
    error = failure(capsys, run, "--task", "snli", "--data_dir", "toy", "--cache_dir", run.parent / "cache")
    assert "'snli'" in error and ", ".join(TASKS) in error


@pytest.mark.parametrize("arguments", [(), ("--table",), ("--predict",), ("--benchmark",)])
def test_a_folder_that_is_no_run_is_named(tmp_path, capsys, arguments):
    assert f"{tmp_path} is not a run" in failure(capsys, tmp_path, "--data_dir", "toy", *arguments)


def test_a_table_without_results_names_the_command_that_makes_them(run, capsys):
    assert f"python glue.py {run}" in failure(capsys, "--table", run)


def test_missing_files_name_the_command_that_fetches_them_before_anything_is_trained(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(FineTuning, "train_step", None)
    error = failure(capsys, run, "--task", "wnli", "--data_dir", tmp_path)
    assert f"python glue.py --download wnli --data_dir {tmp_path} brings it" in error
    assert not (run / "glue").exists()


def test_a_label_outside_the_set_is_named_with_file_and_line(run, tmp_path, capsys):
    path = rte(tmp_path, "perhaps")
    error = failure(capsys, run, "--task", "rte", "--no-intermediate", "--allow_partial", "--data_dir", tmp_path)
    assert f"{path}, line 2: label 'perhaps'" in error


def test_a_cut_file_is_refused_or_with_allow_partial_marked(run, small_glue, tmp_path, capsys):
    options = [run, "--task", "wnli", "--data_dir", small_glue, "--seeds", 1, "--epochs", 1, "--device", "cpu"]
    assert "--allow_partial" in failure(capsys, *options)
    code, output, error = main(capsys, *options, "--allow_partial")
    assert code == 0 and "PARTIAL" in output and results(run)[0]["result"]["partial"]


def test_a_tokenizer_that_does_not_fit_the_model_is_one_line(run, tokenizer, small_toy, capsys):
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    save_run(run, BertForMaskedLM(BertConfig(**config | {"vocab_size": config["vocab_size"] + 1})), tokenizer)
    error = failure(capsys, run, "--data_dir", "toy", "--cache_dir", run.parent / "cache", "--task", "wnli", "--device", "cpu")
    assert f"tokenizer has {config['vocab_size']} vocabulary items" in error


def test_predict_names_the_task_that_has_no_run(run, small_toy, capsys):
    tune(capsys, run, "--task", "cola", "--seeds", "1")
    error = failure(capsys, run, "--predict", "--data_dir", "toy", "--cache_dir", run.parent / "cache", "--device", "cpu")
    assert "no run of sst-2" in error and f"python glue.py {run} --task sst-2" in error


def test_damaged_results_are_named_and_left_alone(run, small_toy, capsys):
    tune(capsys, run, "--task", "cola", "--seeds", "1")
    path = run / "glue" / "results.jsonl"
    for text in (path.read_text(encoding="utf-8")[:-20], "[1, 2]\n", '{"task": "cola", "seed": 1, "result": {}}\n', "\udcff"):
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        before = path.read_bytes()
        assert f"{path} is damaged" in failure(capsys, "--table", run)
        assert path.read_bytes() == before


def test_two_processes_that_add_results_keep_each_other_s(run, small_toy, capsys, monkeypatch):
    """Another seed's result appears while one is trained."""
    tune(capsys, run, "--task", "cola", "--seeds", 97)
    path, train = run / "glue" / "results.jsonl", FineTuning.train
    other = path.read_text(encoding="utf-8")
    path.unlink()

    def meanwhile(self, **options):
        path.write_text(other, encoding="utf-8")
        return train(self, **options)

    monkeypatch.setattr(FineTuning, "train", meanwhile)
    tune(capsys, run, "--task", "cola", "--seeds", 42)
    assert [record["seed"] for record in results(run)] == [97, 42]


def test_another_seed_with_other_settings_is_refused_under_the_same_name(run, small_toy, capsys):
    tune(capsys, run, "--task", "cola", "--seeds", 42)
    options = ["--data_dir", "toy", "--cache_dir", run.parent / "cache", "--task", "cola", "--dtype", "fp32", "--device", "cpu"]
    error = failure(capsys, run, *options, "--seeds", 97, "--epochs", 1, "--batch_size", 4)
    assert "batch_size 8 there, 4 here" in error


def test_what_starts_from_part_of_mnli_is_marked_partial(run, small_glue, capsys, monkeypatch):
    monkeypatch.setattr(glue, "prepare_data", lambda args: (
        TASKS | {"rte": replace(TASKS["rte"], rows=dict.fromkeys(TASKS["rte"].rows, ROWS))}, small_glue))
    tune(capsys, run, "--task", "rte", "--seeds", 42, "--allow_partial")
    assert [(record["task"], record["result"]["partial"]) for record in results(run)] == [("mnli", True), ("rte", True)]


def test_predict_names_weights_that_are_gone_or_of_another_model(run, small_toy, tokenizer, capsys):
    tune(capsys, run, "--seeds", "1")
    options = [run, "--predict", "--data_dir", "toy", "--cache_dir", run.parent / "cache", "--device", "cpu"]
    (run / "glue" / "best-rte.pt").unlink()
    assert "best-rte.pt is missing" in failure(capsys, *options)
    torch.manual_seed(9)
    save_run(run, BertForMaskedLM(config_of(tokenizer)), tokenizer)
    assert "another model.pt" in failure(capsys, *options)


@pytest.mark.parametrize("arguments", [("RUN", "--published"), ("RUN", "--format", "csv"),
                                       ("RUN", "--table", "--check", "x.zip"), ("RUN", "--predict", "--benchmark"),
                                       ("RUN", "--table", "--published", "--by_phenomenon")])
def test_options_that_do_not_go_together_are_refused(capsys, arguments):
    code, _, error = main(capsys, *arguments)
    assert code == 2 and error.startswith("usage: ")


def test_a_loss_that_is_no_number_ends_in_one_line_and_leaves_no_result(run, small_toy, capsys):
    code, _, error = main(capsys, run, "--data_dir", "toy", "--cache_dir", run.parent / "cache", "--task", "sts-b",
                          "--no-intermediate", "--seeds", 1, "--lr", 1e30, "--epochs", 2, "--batch_size", 4, "--device", "cpu")
    assert code == 1 and error.count("\n") == 1 and "--lr" in error and not (run / "glue" / "results.jsonl").exists()


@pytest.mark.parametrize("arguments", [("--seeds", "0"), ("--seeds", "-3"), ("--lr", "0"), ("--lr", "nan"), ("--dropout", "1"),
                                       ("--epochs", "0"), ("--batch_size", "x"), ("--seq_len", "4"), ("--format", "pdf")])
def test_settings_that_make_no_sense_are_refused(capsys, arguments):
    code, _, error = main(capsys, "RUN", *arguments)
    assert code == 2 and arguments[0] in error.splitlines()[-1]


def test_downloads_for_the_toy_tasks_are_refused(capsys):
    assert "need no download" in failure(capsys, "--download", "all", "--data_dir", "toy")


def test_the_benchmark_prints_both_speeds_for_the_same_batches(run, small_toy, capsys):
    code, output, error = main(capsys, run, "--benchmark", "--data_dir", "toy", "--cache_dir", run.parent / "cache",
                               "--batch_size", 4, "--device", "cpu")
    assert code == 0, error
    assert re.search(r"^pre-training .* tokens/s .* 1\.00 of", output, re.M) and re.search(r"^fine-tuning .* tokens/s", output, re.M)
