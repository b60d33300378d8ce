"""pretrain.py: schedule, optimizer, a step, runs, resuming, failures, folders, command line."""

import json
import math
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pretrain
from attention import VARIANTS
from data import PAD, prepare_corpus
from model import SIZES, BertConfig, BertForMaskedLM, load_run
from support.commands import UserError
from support.files import load_checkpoint
from support.runs import own_folder
from support.statistics import mean_and_standard_error

CPU = torch.device("cpu")
FAST = ["--steps", 20, "--batch_size", 8, "--seq_len", 32, "--device", "cpu", "--dtype", "fp32"]
TINIER = {"layers": 4, "hidden_size": 32, "ffn_size": 64, "heads": 2, "embedding_size": 32}
no_signals = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM or SIGKILL to send")


@pytest.fixture
def complete(small_text):
    """complete(arguments) puts FAST and the small text in front of them, for 20 steps on this text.

    "TEXT" among the arguments is the file of the text.
    """

    def with_defaults(arguments):
        given = [small_text.file if argument == "TEXT" else argument for argument in arguments]
        first = ["--corpus", small_text.file, "--cache_dir", small_text.cache, *FAST]
        return [str(argument) for argument in [*first, *given]]

    return with_defaults


@pytest.fixture
def real_main(complete, run_program):
    """Runs the command line in this process: real_main(*arguments) -> (code, stdout, stderr)."""

    def call(*arguments):
        return run_program(pretrain.main, *complete(arguments))

    return call


@pytest.fixture
def main(real_main, monkeypatch):
    """The same, but "tiny" is four times faster: most tests need no particular size."""
    monkeypatch.setitem(SIZES, "tiny", TINIER)
    return real_main


@pytest.fixture
def corpus(small_text):
    return prepare_corpus([str(small_text.file)], small_text.cache, 32, log=ignore)


def ignore(line):
    """A log that prints nothing."""


def is_one_line(error):
    return error.strip().count("\n") == 0 and error.startswith("pretrain.py: ")


def log_of(folder):
    """The records of a run's log; the first one holds its settings."""
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def all_finite(weights):
    return all(tensor.isfinite().all() for tensor in weights.values())


# --- A small trainer ------------------------------------------------------------------------------

SMALL_SETTINGS = {
    "seed": 3,
    "steps": 210,
    "warmup_steps": 20,
    "lr": 1e-3,
    "weight_decay": 0.01,
    "batch_size": 8,
}


def small_trainer(corpus, folder, dropout=0.1, **changes):
    """A Trainer of one small layer with dropout."""
    config = BertConfig(
        variant="composite",
        vocab_size=corpus.vocab_size,
        layers=1,
        hidden_size=16,
        ffn_size=32,
        heads=2,
        embedding_size=16,
        dropout=dropout,
    )
    settings = {**SMALL_SETTINGS, **changes}
    return pretrain.new_trainer(config, settings, Path(folder), CPU, torch.float32)


# --- Schedule, seeds, recipes ---------------------------------------------------------------------


def test_learning_rate_rises_over_the_warm_up_and_falls_to_zero_linearly():
    rates = [pretrain.learning_rate(step, 100, 10, 2.0) for step in range(101)]
    assert rates[0] == 0.2 and rates[9] == 2.0 and rates[100] == 0.0
    assert np.allclose(np.diff(rates[:10]), 0.2)
    assert np.allclose(np.diff(rates[10:]), -2.0 / 90)


def test_seeds_of_steps_and_streams_are_all_different():
    seeds = set()
    for seed in range(10):
        for step in range(100):
            for stream in ("masks", "dropout", "weights"):
                seeds.add(pretrain.step_seed(seed, step, stream))
    assert len(seeds) == 3000
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_seeds_of_steps_have_not_changed():
    """Otherwise a resumed run would not continue as it began, and no record could be repeated."""
    assert pretrain.step_seed(0, 0, "masks") == 3602406798727307485
    assert pretrain.step_seed(3, 5, "dropout") == 6899826213405961356


def test_small_and_base_carry_the_paper_s_settings():
    small = pretrain.RECIPES["small"]
    base = pretrain.RECIPES["base"]
    assert small == pretrain.Recipe(
        steps=125_000,
        batch_size=128,
        seq_len=128,
        lr=3e-4,
        warmup_steps=10_000,
        dropout=0.1,
        weight_decay=0.01,
    )
    assert base == pretrain.Recipe(
        steps=1_000_000,
        batch_size=256,
        seq_len=128,
        lr=1e-4,
        warmup_steps=10_000,
        dropout=0.1,
        weight_decay=0.01,
    )
    assert pretrain.ADAM_BETAS == (0.9, 0.999) and pretrain.ADAM_EPS == 1e-6
    assert pretrain.MAX_GRADIENT_NORM == 1.0


def recipe_of(*arguments):
    return pretrain.recipe_for(pretrain.parse_arguments(arguments))


def test_a_recipe_is_that_of_size_and_corpus_with_the_given_values():
    assert recipe_of() == recipe_of("--corpus", "toy", "toy") == pretrain.TOY_RECIPE
    assert recipe_of("--corpus", "a.txt") == pretrain.RECIPES["tiny"]
    assert recipe_of("--size", "small") == pretrain.RECIPES["small"]
    changed = recipe_of("--lr", "0.5", "--batch_size", "3")
    assert (changed.lr, changed.batch_size, changed.seq_len) == (0.5, 3, 64)


def test_a_shorter_run_warms_up_for_a_tenth_of_its_steps():
    assert recipe_of("--steps", "500").warmup_steps == 50
    assert recipe_of("--steps", "5").warmup_steps == 1
    assert recipe_of("--steps", "50000").warmup_steps == 200
    assert recipe_of("--steps", "500", "--warmup_steps", "9").warmup_steps == 9


def test_predictions_at_most_is_a_multiple_of_64_above_any_number_that_occurs():
    for tokens in (8, 512, 8192):
        most = pretrain.predictions_at_most(tokens)
        masked = np.random.default_rng(0).binomial(tokens, 0.15, 10_000)
        assert most % 64 == 0 and most >= masked.max()
    assert pretrain.predictions_at_most(8192) == 1472  # 1228.8 + 6 * 32.3, rounded up


# --- The optimizer --------------------------------------------------------------------------------


def groups_of(model):
    """The ids of the parameters that decay, and of those that do not; each is in one group only."""
    optimizer = pretrain.make_optimizer(model, 0.01)
    decayed, not_decayed = optimizer.param_groups
    assert decayed["weight_decay"] == 0.01 and not_decayed["weight_decay"] == 0
    for group in optimizer.param_groups:
        assert group["eps"] == 1e-6 and group["betas"] == (0.9, 0.999)

    ids = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(ids) == sorted(id(parameter) for parameter in model.parameters())
    return {id(p) for p in decayed["params"]}, {id(p) for p in not_decayed["params"]}


@pytest.mark.parametrize("variant", VARIANTS)
def test_biases_and_layer_norms_alone_escape_weight_decay(variant):
    model = BertForMaskedLM(BertConfig.from_size("tiny", variant, 100))
    decayed, not_decayed = groups_of(model)
    norms = set()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            norms |= {id(parameter) for parameter in module.parameters()}
    biases = set()
    for name, parameter in model.named_parameters():
        if name.split(".")[-1] == "bias":
            biases.add(id(parameter))
    assert not_decayed == norms | biases
    assert decayed == {id(parameter) for parameter in model.parameters()} - norms - biases


def test_tables_of_positions_and_embeddings_decay():
    for variant in ("composite-key", "shaw", "absolute", "lightconv"):
        model = BertForMaskedLM(BertConfig.from_size("tiny", variant, 100))
        decayed, _ = groups_of(model)
        found = []
        for name, parameter in model.named_parameters():
            ending = name.split(".")[-1]
            if ending in ("beta", "w", "u", "s") or "embeddings" in name and "norm" not in name:
                assert id(parameter) in decayed, name
                found.append(ending)
            if name.endswith("mixer.weight"):
                assert id(parameter) in decayed, name
                found.append("kernel")
        assert len(found) >= 3, variant


# --- One step -------------------------------------------------------------------------------------


def test_a_step_depends_on_seed_and_number_alone(corpus, tmp_path):
    """What was computed before, and torch's global random numbers, have no effect."""
    trainer = small_trainer(corpus, tmp_path)
    pretrain.train_step(trainer, corpus)

    other = small_trainer(corpus, tmp_path)
    corpus.batch(seed=7, step=90, batch_size=3)
    torch.manual_seed(99)
    torch.rand(5)
    pretrain.train_step(other, corpus)
    for one, two in zip(trainer.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)

    another_seed = small_trainer(corpus, tmp_path, seed=4)
    pretrain.train_step(another_seed, corpus)
    assert trainer.unread_losses[0] != another_seed.unread_losses[0]


def test_real_tokens_are_counted(corpus, tmp_path):
    trainer = small_trainer(corpus, tmp_path)
    expected = 0
    for step in range(7):
        pretrain.train_step(trainer, corpus)
        expected += (corpus.batch(3, step, 8) != PAD).sum().item()
    assert trainer.tokens == expected
    assert expected < 7 * 8 * 32


# --- Evaluation -----------------------------------------------------------------------------------


def test_evaluation_does_not_depend_on_the_batch_size(corpus):
    torch.manual_seed(0)
    config = BertConfig.from_size("tiny", "composite", corpus.vocab_size)
    model = BertForMaskedLM(config).double()
    small_loss, small_accuracy = pretrain.evaluate(model, corpus, 2, CPU, torch.float32)
    large_loss, large_accuracy = pretrain.evaluate(model, corpus, 64, CPU, torch.float32)
    assert small_loss == pytest.approx(large_loss, abs=1e-6) and small_accuracy == large_accuracy
    # untrained: close to ln(vocabulary)
    assert abs(small_loss - math.log(corpus.vocab_size)) < 0.5


def test_evaluation_is_the_mean_over_all_held_out_predictions_without_dropout(corpus, tmp_path):
    model = small_trainer(corpus, tmp_path, dropout=0.5).model
    loss, accuracy = pretrain.evaluate(model, corpus, 8, CPU, torch.float32)
    assert model.training

    model.eval()
    log_p = []
    correct = []
    for masked_ids, labels in corpus.held_out_batches(8):
        with torch.no_grad():
            logits = model(masked_ids, masked_ids != PAD)
        for row, column in (labels != -100).nonzero().tolist():
            target = labels[row, column]
            log_p.append(logits[row, column].log_softmax(-1)[target].item())
            correct.append(bool(logits[row, column].argmax() == target))
    assert loss == pytest.approx(-np.mean(log_p), abs=1e-5)
    assert accuracy == pytest.approx(np.mean(correct))


def test_most_frequent_accuracy_is_the_share_of_the_most_frequent_token(corpus):
    token = corpus.most_frequent_token()
    targets = []
    for _, labels in corpus.held_out_batches(16):
        targets += labels[labels != -100].tolist()
    accuracy = pretrain.most_frequent_accuracy(corpus)
    assert accuracy == pytest.approx(targets.count(token) / len(targets))


# --- Whole runs -----------------------------------------------------------------------------------


def test_a_run_learns_more_than_word_frequencies_and_leaves_a_model_that_loads(
    real_main, corpus, tmp_path
):
    folder = tmp_path / "run"
    code, out, _ = real_main("--variant", "composite", "--steps", 150, "--out_dir", folder)
    assert code == 0
    records = log_of(folder)
    losses = [record["held_out_loss"] for record in records if "held_out_loss" in record]

    # the entropy is what a model reaches that sees no context
    counts = np.bincount(corpus.tokens)
    share = counts[counts > 0] / len(corpus.tokens)
    entropy = -(share * np.log(share)).sum()
    assert len(losses) == 10 and losses[-1] < entropy - 0.3
    assert records[0]["settings"]["variant"] == "composite"

    model, tokenizer = load_run(folder)
    assert tokenizer.get_vocab_size() == model.config.vocab_size
    V = model.config.vocab_size
    assert f"ln({V:,}) = {math.log(V):.3f};" in out
    assert out.startswith("device cpu") and VARIANTS["composite"].equation in out


def test_the_log_has_loss_learning_rate_tokens_and_seconds_of_every_interval(
    main, corpus, tmp_path
):
    arguments = ["--steps", 7, "--eval_every", 3, "--save_every", 100, "--out_dir", tmp_path]
    assert main(*arguments, "--lr", 1e-3, "--warmup_steps", 2)[0] == 0
    settings, *records = log_of(tmp_path)
    steps = [record for record in records if "loss" in record]
    evaluations = [record for record in records if "held_out_loss" in record]
    assert all(set(record) == {"step", "loss", "lr", "tokens", "seconds"} for record in steps)
    assert [record["step"] for record in steps] == [1, 2, 3, 4, 5, 6, 7]
    assert [record["step"] for record in evaluations] == [3, 6, 7]

    # the learning rates that were used
    expected = [pretrain.learning_rate(step, 7, 2, 1e-3) for step in range(7)]
    assert [record["lr"] for record in steps] == expected

    # real tokens and seconds of training since the start
    tokens = 0
    for step, record in enumerate(steps):
        tokens += (corpus.batch(0, step, 8) != PAD).sum().item()
        assert record["tokens"] == tokens
    seconds = [record["seconds"] for record in steps]
    assert seconds == sorted(seconds) and seconds[0] > 0

    # the settings are what resuming compares
    settings = settings["settings"]
    assert settings["steps"] == 7 and settings["weight_decay"] == 0.01
    assert settings["dtype"] == "float32" and settings["corpus"] == corpus.fingerprint
    assert settings["kernel_size"] == 17 and settings["attention_layer"] is None


def test_a_finished_run_says_so_and_is_not_touched(main, tmp_path):
    main("--out_dir", tmp_path, "--steps", 5)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, _ = main("--out_dir", tmp_path, "--steps", 5)
    result = load_checkpoint(tmp_path / "train_state.pt")["result"]
    found = f"held-out loss {result['loss']:.3f}, accuracy {100 * result['accuracy']:.1f} %"
    assert code == 0 and f"finished before: {found}" in out
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_in_use_is_refused_at_once_and_left_alone(main, tmp_path):
    main("--out_dir", tmp_path, "--steps", 2)
    with own_folder(tmp_path):
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        code, out, error = main("--out_dir", tmp_path, "--steps", 2)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert code == 2 and is_one_line(error) and "corpus" not in out
    assert f"in use by process {os.getpid()}" in error and "choose another --out_dir" in error
    assert main("--out_dir", tmp_path, "--steps", 2)[0] == 0


def test_a_dry_run_prints_the_cost_and_writes_no_run(main, tmp_path):
    code, out, _ = main("--dry_run", "--out_dir", tmp_path / "run")
    assert code == 0 and "would take" in out and "nothing was written" in out
    assert not (tmp_path / "run").exists()


# --- Several runs ---------------------------------------------------------------------------------


def test_several_variants_and_seeds_end_in_one_table(main, tmp_path):
    arguments = ["--variant", "none", "composite", "--seed", 1, 2, "--steps", 5]
    code, out, _ = main(*arguments, "--out_dir", tmp_path)
    table = out[out.index("\nvariant") :].strip().splitlines()
    assert code == 0
    assert [row.split()[0] for row in table] == ["variant", "none", "composite"]
    assert all("+-" in row and row.split()[-1] == "2" for row in table[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "composite-seed1",
        "composite-seed2",
        "none-seed1",
        "none-seed2",
    ]

    # every number of the table is that of the runs
    for row in table[1:]:
        name, parameters, *rest = row.split()
        results = []
        for seed in (1, 2):
            state = load_checkpoint(tmp_path / f"{name}-seed{seed}" / "train_state.pt")
            results.append(state["result"])
        loss = mean_and_standard_error([result["loss"] for result in results])
        accuracy = mean_and_standard_error([100 * result["accuracy"] for result in results], 2)
        speed = np.mean([result["tokens_per_second"] for result in results])
        assert parameters == f"{results[0]['parameters']:,}"
        assert rest == [*loss.split(), *accuracy.split(), f"{speed:,.0f}", "2"]


# --- Resuming -------------------------------------------------------------------------------------


def outcome_of(folder):
    """Everything of a finished run except times: its log, its result and its weights."""
    records = log_of(folder)
    for record in records:
        record.pop("seconds", None)
        record.get("made_by", {}).pop("date", None)
    result = load_checkpoint(folder / "train_state.pt")["result"]
    result = {name: result[name] for name in ("loss", "accuracy", "parameters")}
    return records, result, load_checkpoint(folder / "model.pt")


def assert_same_outcome(folder, expected, message=None):
    records, result, weights = outcome_of(folder)
    expected_records, expected_result, expected_weights = outcome_of(expected)
    assert records == expected_records, message
    assert result == expected_result, message
    for name, weight in expected_weights.items():
        assert torch.equal(weights[name], weight), (name, message)


def stop_at(monkeypatch, steps):
    """Send this process SIGINT during each of these steps (counted from 1)."""
    train_step = pretrain.train_step
    waiting = set(steps)

    def step_and_signal(trainer, corpus):
        train_step(trainer, corpus)
        if trainer.step in waiting:
            waiting.remove(trainer.step)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(pretrain, "train_step", step_and_signal)


@no_signals
def test_a_run_stopped_inside_a_log_interval_equals_an_uninterrupted_one_to_the_bit(
    corpus, tmp_path, monkeypatch
):
    """210 steps are logged every 2 steps; the stops are between two lines, with dropout 0.1."""
    uninterrupted = tmp_path / "uninterrupted"
    trainer = small_trainer(corpus, uninterrupted)
    assert pretrain.train(trainer, corpus, uninterrupted, 1000, 70) == 0

    stop_at(monkeypatch, [31, 105, 140])
    stops = []
    for _ in range(4):
        trainer = small_trainer(corpus, tmp_path / "broken")
        pretrain.resume_run(trainer, tmp_path / "broken")
        number = pretrain.train(trainer, corpus, tmp_path / "broken", 1000, 70)
        stops.append((trainer.step, number))
    assert stops == [(31, 2), (105, 2), (140, 2), (210, 0)]
    assert_same_outcome(tmp_path / "broken", uninterrupted)


INTERRUPTED = ["--steps", 60, "--save_every", 5, "--eval_every", 30, "--out_dir"]


@no_signals
def test_a_run_stopped_by_sigkill_and_sigterm_equals_one_that_was_not_to_the_bit(
    real_main, complete, start_program, tmp_path
):
    uninterrupted = tmp_path / "uninterrupted"
    broken = tmp_path / "broken"
    assert real_main(*INTERRUPTED, uninterrupted)[0] == 0

    state = broken / "train_state.pt"
    step = 0
    moments = []  # shown if the test fails
    stopped = []  # the signals that came in time
    for number in (signal.SIGKILL, signal.SIGTERM):
        run = start_program("pretrain.py", *complete([*INTERRUPTED, broken]))
        # wait until it has trained on from where it was, and then for a random time
        while run.is_running() and (not state.exists() or load_checkpoint(state)["step"] == step):
            time.sleep(0.02)
        moments.append((number.name, random.uniform(0, 0.1)))
        time.sleep(moments[-1][1])
        if run.is_running():
            run.send_signal(number)
        code, out, error = run.wait()

        # exit code 0: it had finished before the signal came
        if number == signal.SIGKILL:
            assert code in (0, -number), (out, error)
        elif code != 0:
            assert code == 128 + number, (out, error)
            assert "saved" in out and not error, (out, error)
            stopped.append(number)
        step = load_checkpoint(state)["step"]  # complete at any moment
        assert step > 0

    assert stopped, moments
    assert real_main(*INTERRUPTED, broken)[0] == 0
    assert_same_outcome(broken, uninterrupted, moments)


# --- Training that fails --------------------------------------------------------------------------


def make_loss_nan_in_step(step, monkeypatch):
    """The loss of masked tokens is NaN in this step, counted from 1. Each step computes one."""
    true_loss = pretrain.masked_lm_loss
    calls = []

    def loss(logits, targets):
        calls.append(1)
        value = true_loss(logits, targets)
        if len(calls) == step:
            return value * math.nan
        return value

    monkeypatch.setattr(pretrain, "masked_lm_loss", loss)


def test_a_loss_that_is_no_number_stops_the_run_names_the_step_and_keeps_the_checkpoint(
    main, tmp_path, monkeypatch
):
    make_loss_nan_in_step(17, monkeypatch)
    code, _, error = main("--out_dir", tmp_path, "--save_every", 5)
    assert code == 1 and is_one_line(error)
    assert "step 17" in error and "checkpoint of step 15" in error and "--lr" in error
    state = load_checkpoint(tmp_path / "train_state.pt")
    assert state["step"] == 15 and all_finite(state["model"])


@pytest.mark.parametrize(
    "unread, named", [("unread_losses", "the loss"), ("unread_norms", "the gradient norm")]
)
def test_the_step_of_a_bad_loss_or_gradient_is_named_although_they_are_read_later(
    corpus, tmp_path, unread, named
):
    """A gradient norm of infinity fails, although it would be clipped."""
    trainer = small_trainer(corpus, tmp_path)
    for _ in range(6):
        pretrain.train_step(trainer, corpus)
    getattr(trainer, unread)[3] = torch.tensor(math.inf)
    with pytest.raises(pretrain.TrainingFailed, match=f"{named} is inf at step 4"):
        trainer.check_finite()


def test_weights_that_are_no_numbers_are_never_saved(main, tmp_path):
    """The first step's loss and gradient are fine; its update throws the weights out of range."""
    options = ["--lr", 1e300, "--warmup_steps", 1, "--save_every", 1, "--steps", 4]
    code, _, error = main("--out_dir", tmp_path, *options)
    assert code == 1 and is_one_line(error) and "after step 1" in error
    assert not list(tmp_path.iterdir())


def test_the_advice_in_the_first_steps_does_not_blame_the_learning_rate_alone(
    main, tmp_path, monkeypatch
):
    make_loss_nan_in_step(2, monkeypatch)
    code, _, error = main("--out_dir", tmp_path)
    assert code == 1 and "step 2" in error and "code of the model" in error


# --- Folders that belong to something else --------------------------------------------------------


@pytest.mark.parametrize(
    "other, words",
    [
        (["--variant", "fixed"], "variant is composite there and fixed here"),
        (["--seed", 5], "seed is 0 there and 5 here"),
        (["--lr", 0.5], "lr is 0.002 there and 0.5 here"),
        (["--vocab_size", 30], "another text or --vocab_size"),
    ],
)
def test_a_folder_of_another_run_is_refused_with_what_differs(main, tmp_path, other, words):
    arguments = ["--out_dir", tmp_path, "--steps", 3, "--lr", 0.002]
    main(*arguments)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, _, error = main(*arguments, *other)
    assert code == 2 and is_one_line(error) and words in error and "--out_dir" in error
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def cut(content):
    return content[: len(content) // 2]


def one_bit_changed(content):
    """In the middle of the weights, where only the checksum can show it."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [cut, one_bit_changed])
@pytest.mark.parametrize("name", ["model.pt", "train_state.pt"])
def test_damaged_weights_are_refused_and_left_alone(main, tmp_path, monkeypatch, name, damage):
    # train_state.pt holds weights if the run is not finished
    options = ["--out_dir", tmp_path, "--steps", 4, "--save_every", 1]
    stop_at(monkeypatch, [2])
    assert main(*options)[0] == 128 + signal.SIGINT
    content = damage((tmp_path / name).read_bytes())
    (tmp_path / name).write_bytes(content)

    with pytest.raises(UserError, match=f"{name} is damaged"):
        load_checkpoint(tmp_path / name)
    if name == "train_state.pt":
        code, _, error = main(*options)
        assert code == 2 and is_one_line(error) and name in error
        assert (tmp_path / name).read_bytes() == content


# --- The command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--variant", "nonsense"], ", ".join(VARIANTS)),
        (["--kernel_size", "8"], "odd"),
        (["--kernel_size", "65"], "kernel_size 65 is too large: with 63, a kernel reaches every"),
        (["--variant", "none", "absolute", "--kernel_size", "9"], "kernel"),
        (["--variant", "none", "canon", "--beyond", "zero"], "--beyond zero has no use"),
        (["--variant", "none", "fixed", "--attention_layer", "2"], "hybrid"),
        (["--variant", "dilated-hybrid", "--attention_layer", "5"], "4 layers"),
        (["--steps", "0"], "whole number"),
        (["--steps", "5", "--warmup_steps", "6"], "--warmup_steps"),
        (["--lr", "nan"], "--lr"),
        (["--dropout", "1.5"], "dropout"),
        (["--seq_len", "4"], "--seq_len"),
        (["--seed", "-1"], "--seed"),
        (["--size", "huge"], "tiny"),
        (["--device", "abacus"], "abacus"),
        (["--corpus", "no-such-corpus"], "no-such-corpus"),
    ],
)
def test_wrong_arguments_are_answered_and_nothing_is_written(
    main, tmp_path, monkeypatch, arguments, words
):
    monkeypatch.chdir(tmp_path)
    code, _, error = main(*arguments)
    assert code == 2 and words in error.splitlines()[-1] and not list(tmp_path.iterdir())
