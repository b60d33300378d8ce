"""pretrain.py: schedule, optimizer, a step, runs, resuming, failures, folders, command line."""

import json
import math
import os
import random
import shutil
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pretrain
from attention import VARIANTS, Mixer, Variant
from data import PAD, prepare_corpus
from model import SIZES, BertConfig, BertForMaskedLM, load_run
from support.files import load_checkpoint, save_checkpoint, sha256_of
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
        return run_program("pretrain.py", pretrain.main, *complete(arguments))

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


def test_learning_rate_of_a_run_that_is_all_warm_up_reaches_the_peak():
    rates = [pretrain.learning_rate(step, 4, 4, 2.0) for step in range(5)]
    assert rates == [0.5, 1.0, 1.5, 2.0, 0.0]


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


def test_a_warm_up_of_more_steps_than_the_default_is_refused():
    with pytest.raises(ValueError, match="--warmup_steps 2,001 is more than all 2,000 steps"):
        recipe_of("--warmup_steps", "2001")


def test_predictions_at_most_is_a_multiple_of_64_above_any_number_that_occurs():
    for tokens in (8, 512, 8192):
        most = pretrain.predictions_at_most(tokens)
        masked = np.random.default_rng(0).binomial(tokens, 0.15, 10_000)
        assert most % 64 == 0 and most >= masked.max()
    assert pretrain.predictions_at_most(8192) == 1472  # 1228.8 + 6 * 32.3, rounded up


def test_on_cuda_alone_max_predictions_is_a_fixed_number():
    for tokens in (8, 512, 8192):
        most = pretrain.max_predictions_for(tokens, torch.device("cuda"))
        assert most == pretrain.predictions_at_most(tokens)
        for device in ("cpu", "mps"):
            assert pretrain.max_predictions_for(tokens, torch.device(device)) is None


def test_the_head_gets_the_max_predictions_of_all_tokens_of_the_batch(
    corpus, tmp_path, monkeypatch
):
    tokens = []
    given = []

    def fixed(count, device):
        tokens.append(count)
        return 192

    trainer = small_trainer(corpus, tmp_path)
    masked_logits = trainer.model.masked_logits

    def note(hidden, labels, **options):
        given.append(options["max_predictions"])
        return masked_logits(hidden, labels, **options)

    monkeypatch.setattr(pretrain, "max_predictions_for", fixed)
    monkeypatch.setattr(trainer.model, "masked_logits", note)
    pretrain.train_step(trainer, corpus)
    assert tokens == [corpus.batch(SMALL_SETTINGS["seed"], 0, 8).numel()]
    assert given == [192]


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


class Scaling(Mixer):
    """A mixer whose parameters have misleading names."""

    def __init__(self, config, variant, layer):
        super().__init__()
        C = config.hidden_size
        self.norm_scale = nn.Parameter(torch.ones(C))
        self.bias_table = nn.Parameter(torch.zeros(3, C))
        self.normal = nn.Linear(C, C)
        self.foo = nn.LayerNorm(C)

    def forward(self, x, attention_mask):
        return self.foo(self.normal(x) * self.norm_scale)


def test_weight_decay_is_decided_by_the_type_of_a_module_and_not_by_its_name(monkeypatch):
    monkeypatch.setitem(VARIANTS, "scaling", Variant("z = foo(W x * s)", mixer=Scaling))
    config = BertConfig.from_size("tiny", "scaling", 100)
    model = BertForMaskedLM(config)
    decayed, not_decayed = groups_of(model)
    for layer in model.bert.layers:
        mixer = layer.mixer
        for parameter in (mixer.norm_scale, mixer.bias_table, mixer.normal.weight):
            assert id(parameter) in decayed
        for parameter in (mixer.normal.bias, mixer.foo.weight, mixer.foo.bias):
            assert id(parameter) in not_decayed


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


@pytest.mark.parametrize("micro_batch, most", [(None, SMALL_SETTINGS["batch_size"]), (3, 3)])
def test_an_evaluation_computes_as_many_pairs_at_a_time_as_a_step_on_average(
    corpus, tmp_path, micro_batch, most
):
    trainer = small_trainer(corpus, tmp_path)
    trainer.micro_batch = micro_batch
    sizes = []
    trainer.model.bert.register_forward_hook(lambda module, given, x: sizes.append(len(x)))
    pretrain.record_evaluation(trainer, corpus)
    assert max(sizes) == most and sum(sizes) == len(corpus.held_out)


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


def test_the_log_of_an_interval_has_the_mean_loss_of_its_steps(corpus, tmp_path):
    """310 steps are logged every 3 steps. These are the last 7 of them: 304 to 310."""
    trainer = small_trainer(corpus, tmp_path, steps=310)
    reference = small_trainer(corpus, tmp_path, steps=310)
    trainer.step = 303
    reference.step = 303
    pretrain.train(trainer, corpus, tmp_path, save_every=1000, eval_every=1000)
    for _ in range(7):
        pretrain.train_step(reference, corpus)
    losses = [loss.item() for loss in reference.unread_losses]

    records = [record for record in log_of(tmp_path) if "loss" in record]
    assert [record["step"] for record in records] == [306, 309, 310]
    expected = [sum(losses[:3]) / 3, sum(losses[3:6]) / 3, losses[6]]
    assert [record["loss"] for record in records] == pytest.approx(expected, abs=1e-12)


def test_the_line_of_an_evaluation_has_loss_accuracy_speed_and_time(corpus, tmp_path):
    """100 of 400 steps took 50 seconds: the other 300 will take 150."""
    trainer = small_trainer(corpus, tmp_path, steps=400)
    trainer.records.append({"held_out_loss": 2.5, "held_out_accuracy": 0.25})
    trainer.tokens = 12_350
    trainer.seconds = 50.0
    found = "held-out loss 2.500   accuracy  25.0 %   247 tokens/s"
    trainer.step = 100
    assert pretrain.evaluation_line(trainer) == f"step 100 of 400   {found}   ETA 02:30"
    trainer.step = 400
    assert pretrain.evaluation_line(trainer) == f"step 400 of 400   {found}   took 00:50"


def test_the_log_says_where_the_machine_or_the_number_of_processes_changes():
    lines = [{"made_by": {"processes": 2}}, {"step": 5, "made_by": {"processes": 3}}]
    state = {"step": 9, "records": lines, "result": None}
    assert pretrain.resumed_log(state, {"processes": 3}) == lines
    changed = {"step": 9, "made_by": {"processes": 2}}
    assert pretrain.resumed_log(state, {"processes": 2}) == [*lines, changed]


def test_a_finished_run_says_so_and_is_not_touched(main, tmp_path):
    main("--out_dir", tmp_path, "--steps", 5)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, _ = main("--out_dir", tmp_path, "--steps", 5)
    result = load_checkpoint(tmp_path / "train_state.pt")["result"]
    found = f"held-out loss {result['loss']:.3f}, accuracy {100 * result['accuracy']:.1f} %"
    assert code == 0 and f"finished before: {found}" in out
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def weights_gone(folder):
    (folder / "model.pt").unlink()


def weights_cut(folder):
    path = folder / "model.pt"
    path.write_bytes(path.read_bytes()[:-100])


def weights_not_finite(folder):
    weights = load_checkpoint(folder / "model.pt")
    weights["bias"][0] = math.nan
    torch.save(weights, folder / "model.pt")


def weights_of_another_run(folder):
    weights = load_checkpoint(folder / "model.pt")
    weights["bias"][0] += 1
    save_checkpoint(folder / "model.pt", weights)


def config_gone(folder):
    (folder / "config.json").unlink()


def config_of_another_model(folder):
    path = folder / "config.json"
    path.write_text(path.read_text(encoding="utf-8").replace("clip", "zero"), encoding="utf-8")


def another_tokenizer(folder):
    path = folder / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace("ann", "bob"), encoding="utf-8")


@pytest.mark.parametrize(
    "damage, words",
    [
        (weights_gone, "no model.pt"),
        (weights_cut, "model.pt is damaged"),
        (weights_not_finite, "model.pt is damaged"),
        (weights_of_another_run, "model.pt holds the weights of another run"),
        (config_gone, "no config.json"),
        (config_of_another_model, "holds another model"),
        (another_tokenizer, "tokenizer.json is damaged or is not the tokenizer of this run"),
    ],
)
def test_a_finished_run_without_its_model_is_no_success_and_the_advice_works(
    main, tmp_path, damage, words
):
    folder = tmp_path / "run"
    main("--out_dir", folder, "--steps", 2)
    damage(folder)
    code, out, error = main("--out_dir", folder, "--steps", 2)
    assert code == 2 and is_one_line(error) and words in error
    assert "finished before" not in out and f"delete {folder} to repeat it" in error

    shutil.rmtree(folder)
    assert main("--out_dir", folder, "--steps", 2)[0] == 0


def test_a_folder_in_use_is_refused_at_once_and_left_alone(main, tmp_path):
    main("--out_dir", tmp_path, "--steps", 2)
    with own_folder(tmp_path):
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        code, out, error = main("--out_dir", tmp_path, "--steps", 2)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert code == 2 and is_one_line(error) and "corpus" not in out
    assert f"in use by process {os.getpid()}" in error and "choose another --out_dir" in error
    assert main("--out_dir", tmp_path, "--steps", 2)[0] == 0


def test_a_folder_taken_while_the_text_is_prepared_is_refused_too(main, tmp_path, monkeypatch):
    true_prepare = pretrain.prepare_corpus
    with ExitStack() as stack:

        def prepare(*arguments, **options):
            stack.enter_context(own_folder(tmp_path / "run"))
            return true_prepare(*arguments, **options)

        monkeypatch.setattr(pretrain, "prepare_corpus", prepare)
        code, _, error = main("--out_dir", tmp_path / "run", "--steps", 2)
    assert code == 2 and is_one_line(error) and "in use by process" in error


def test_the_lock_is_held_while_a_run_is_trained_and_then_removed(main, tmp_path, monkeypatch):
    true_step = pretrain.train_step
    seen = []

    def step(trainer, corpus):
        with pytest.raises(ValueError, match="in use"), own_folder(tmp_path):
            pass
        seen.append(trainer.step)
        true_step(trainer, corpus)

    monkeypatch.setattr(pretrain, "train_step", step)
    assert main("--out_dir", tmp_path, "--steps", 2)[0] == 0
    assert seen == [0, 1] and not (tmp_path / "run.lock").exists()


def test_a_dry_run_takes_no_lock(main, tmp_path):
    with own_folder(tmp_path):
        assert main("--dry_run", "--steps", 1, "--out_dir", tmp_path)[0] == 0


def test_a_finished_checkpoint_has_no_copy_of_the_weights(main, tmp_path):
    main("--out_dir", tmp_path, "--steps", 3)
    state = load_checkpoint(tmp_path / "train_state.pt")
    assert "model" not in state and "optimizer" not in state
    assert set(state["result"]) == {
        "loss",
        "accuracy",
        "parameters",
        "tokens_per_second",
        "seconds",
        "model_sha256",
    }
    assert state["result"]["model_sha256"] == sha256_of(tmp_path / "model.pt")


def test_the_clock_runs_for_training_alone(corpus, tmp_path, monkeypatch):
    """A step takes 1 second, an evaluation 100, a save 1,000."""
    now = [0.0]
    monkeypatch.setattr(pretrain.time, "perf_counter", lambda: now[0])

    def slow(name, seconds):
        function = getattr(pretrain, name)

        def call(*arguments):
            now[0] += seconds
            return function(*arguments)

        monkeypatch.setattr(pretrain, name, call)

    slow("train_step", 1)
    slow("evaluate", 100)
    slow("save_run_and_checkpoint", 1000)
    trainer = small_trainer(corpus, tmp_path, steps=6, warmup_steps=1)
    assert pretrain.train(trainer, corpus, tmp_path, save_every=3, eval_every=2) == 0
    records = [record for record in log_of(tmp_path) if "loss" in record]
    assert [record["seconds"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert trainer.result["tokens_per_second"] == trainer.tokens / 6

    # a run that is stopped in step 3 and resumed adds the seconds of both parts
    folder = tmp_path / "stopped"
    first = small_trainer(corpus, folder, steps=6, warmup_steps=1)
    stop_at(monkeypatch, [3])
    assert pretrain.train(first, corpus, folder, save_every=3, eval_every=2) != 0
    second = small_trainer(corpus, folder, steps=6, warmup_steps=1)
    second.resume("--out_dir")
    assert second.step == 3
    assert pretrain.train(second, corpus, folder, save_every=3, eval_every=2) == 0
    records = [record for record in log_of(folder) if "loss" in record]
    assert [record["seconds"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert second.result["tokens_per_second"] == trainer.result["tokens_per_second"]


def test_a_run_in_bf16_is_trained_evaluated_and_noted_as_such(main, tmp_path, monkeypatch):
    # what autocast is asked for, in the steps and in the evaluations
    seen = {"train_step": [], "evaluate": []}
    autocast = pretrain.autocast
    inside = []

    def noted(name):
        function = getattr(pretrain, name)

        def call(*arguments):
            inside.append(name)
            result = function(*arguments)
            inside.remove(name)
            return result

        monkeypatch.setattr(pretrain, name, call)

    def note(device, dtype):
        seen[inside[-1]].append(dtype)
        return autocast(device, dtype)

    noted("train_step")
    noted("evaluate")
    monkeypatch.setattr(pretrain, "autocast", note)
    code, out, _ = main("--dtype", "bf16", "--steps", 3, "--out_dir", tmp_path)
    assert code == 0 and "precision bf16 (as given)" in out
    assert seen["train_step"] == [torch.bfloat16] * 3
    assert set(seen["evaluate"]) == {torch.bfloat16}
    records = log_of(tmp_path)
    assert records[0]["settings"]["dtype"] == "bfloat16"
    assert all(weight.dtype == torch.float32 for weight in load_run(tmp_path)[0].parameters())

    code, _, error = main("--dtype", "fp32", "--steps", 3, "--out_dir", tmp_path)
    assert code == 2 and is_one_line(error) and "dtype is bfloat16 there and float32 here" in error
    assert "; give --dtype bf16, or choose another --out_dir" in error


def test_a_dry_run_prints_the_cost_and_writes_no_run(main, tmp_path):
    code, out, _ = main("--dry_run", "--out_dir", tmp_path / "run")
    assert code == 0 and "would take" in out and "nothing was written" in out
    assert not (tmp_path / "run").exists()


def test_a_dry_run_tells_the_time_of_a_step_and_of_all_steps(corpus, tmp_path, monkeypatch, capsys):
    """A step takes 1 second."""
    now = [0.0]
    train_step = pretrain.train_step

    def slow_step(*arguments):
        now[0] += 1
        train_step(*arguments)

    monkeypatch.setattr(pretrain.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(pretrain, "train_step", slow_step)
    pretrain.dry_run(small_trainer(corpus, tmp_path, steps=50, warmup_steps=1), corpus)
    tokens = sum((corpus.batch(3, step, 8) != PAD).sum().item() for step in range(20))
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"dry run: 1000 ms per step, {tokens / 20:,.0f} tokens/s; "
        "all 50 steps would take 00:50; nothing was written"
    )


def test_a_dry_run_measures_the_memory_of_the_widest_batch(corpus, tmp_path, monkeypatch):
    widths = []

    class Noted(pretrain.FirstRows):
        def __init__(self, corpus, rows):
            super().__init__(corpus, rows)
            widths.append(rows.shape[1])

    class Batches:
        """Batches of 8 pairs, of 16, 32 and 24 tokens."""

        vocab_size = corpus.vocab_size

        def batch(self, seed, step, batch_size):
            return torch.full((8, (16, 32, 24)[step]), PAD + 5)

    monkeypatch.setattr(pretrain, "FirstRows", Noted)
    trainer = small_trainer(corpus, tmp_path)
    pretrain.measure_memory(trainer, Batches(), 3)
    assert set(widths) == {32}


def test_a_dry_run_leaves_a_folder_in_use_as_it_is(main, tmp_path):
    main("--steps", 3, "--out_dir", tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, _ = main("--dry_run", "--resume", "never", "--steps", 1, "--out_dir", tmp_path)
    assert code == 0 and "would take" in out
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


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


def test_one_run_has_no_table(main, tmp_path):
    _, out, _ = main("--steps", 2, "--out_dir", tmp_path)
    assert "\nvariant" not in out


def test_several_runs_that_were_finished_before_end_in_the_same_table(main, tmp_path):
    arguments = ["--variant", "none", "fixed", "--steps", 2, "--out_dir", tmp_path]
    _, first, _ = main(*arguments)
    code, second, _ = main(*arguments)
    assert code == 0 and second.count("finished before") == 2
    assert second[second.index("\nvariant") :] == first[first.index("\nvariant") :]


def test_a_kernel_size_goes_to_the_variants_with_a_kernel_alone(main, tmp_path):
    arguments = ["--variant", "none", "absolute", "composite", "--kernel_size", 5, "--steps", 1]
    code, out, _ = main(*arguments, "--out_dir", tmp_path)
    assert code == 0 and out.count("K = 5") == 1 and out.count("K = ") == 1
    kernels = {}
    for name in ("none", "absolute", "composite"):
        kernels[name] = load_run(tmp_path / name)[0].config.kernel_size
    assert kernels == {"none": None, "absolute": None, "composite": 5}


def test_the_kernel_size_is_printed_for_variants_with_a_kernel_alone(main, tmp_path):
    arguments = ["--variant", "none", "convbert", "fixed", "--steps", 1]
    _, out, _ = main(*arguments, "--out_dir", tmp_path)
    start_lines = [line for line in out.splitlines() if " parameters, seed 0" in line]
    assert ["K = " in line for line in start_lines] == [False, True, True]
    assert "K = 9" in start_lines[1] and "K = 17" in start_lines[2]


def test_an_attention_layer_goes_to_the_hybrids_alone(main, tmp_path):
    arguments = ["--variant", "composite", "dilated-hybrid", "--attention_layer", 2, "--steps", 1]
    code, out, _ = main(*arguments, "--out_dir", tmp_path)
    assert code == 0 and out.count("self-attention in layer 2") == 1
    assert load_run(tmp_path / "composite")[0].config.attention_layer is None
    assert load_run(tmp_path / "dilated-hybrid")[0].config.attention_layer == 2


def test_runs_without_a_folder_of_their_own_do_not_meet():
    def folders(*arguments):
        args = pretrain.parse_arguments(arguments)
        return [path.as_posix() for path in pretrain.run_folders(args).values()]

    assert folders() == ["runs/composite"]
    assert folders("--variant", "none", "fixed") == ["runs/none", "runs/fixed"]
    assert folders("--seed", "3") == ["runs/composite-seed3"]
    assert folders("--size", "small", "--corpus", "books/a.txt") == ["runs/small-a-composite"]
    assert folders("--corpus", "toy", "b.txt") == ["runs/b-composite"]
    assert folders("--out_dir", "x") == ["x"]
    assert folders("--seed", "3", "--out_dir", "x") == ["x"]
    assert folders("--variant", "fixed", "--seed", "1", "2", "--out_dir", "x") == [
        "x/fixed-seed1",
        "x/fixed-seed2",
    ]
    assert folders("--variant", "none", "fixed", "--seed", "3", "--out_dir", "x") == [
        "x/none",
        "x/fixed",
    ]


def test_all_names_every_variant_and_a_name_or_seed_given_twice_is_one_run():
    args = pretrain.parse_arguments(["--variant", "all", "--seed", "1", "1"])
    assert args.variant == list(VARIANTS) and args.seed == [1]
    args = pretrain.parse_arguments(["--variant", "fixed", "none", "fixed"])
    assert args.variant == ["fixed", "none"]


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
def test_a_run_stopped_by_sigkill_sigint_and_sigterm_equals_one_that_was_not_to_the_bit(
    real_main, complete, start_program, tmp_path
):
    uninterrupted = tmp_path / "uninterrupted"
    broken = tmp_path / "broken"
    assert real_main(*INTERRUPTED, uninterrupted)[0] == 0

    state = broken / "train_state.pt"
    step = 0
    moments = []  # shown if the test fails
    stopped = []  # the signals that came in time
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
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


@no_signals
def test_a_signal_at_any_moment_saves_what_was_trained(main, tmp_path, monkeypatch):
    """The signal comes after the loop has looked for one: it waits for the end of the next step."""
    train_step = pretrain.train_step
    steps = []

    class Bar(pretrain.tqdm):
        def update(self, n=1):
            steps.append(1)

    def signal_and_step(trainer, corpus):
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        train_step(trainer, corpus)

    monkeypatch.setattr(pretrain, "train_step", signal_and_step)
    monkeypatch.setattr(pretrain, "tqdm", Bar)
    code, out, _ = main("--out_dir", tmp_path)
    assert code == 128 + signal.SIGINT and "at step 4, saved" in out
    assert load_checkpoint(tmp_path / "train_state.pt")["step"] == 4


@no_signals
def test_a_signal_during_the_first_of_two_runs_ends_both_and_the_same_command_continues(
    main, tmp_path, monkeypatch
):
    arguments = ["--variant", "none", "fixed", "--steps", 4, "--out_dir", tmp_path]
    with monkeypatch.context() as patch:
        stop_at(patch, [2])
        code, out, _ = main(*arguments)
    assert code == 128 + signal.SIGINT and "stopped by SIGINT at step 2" in out
    assert [path.name for path in tmp_path.iterdir()] == ["none"]

    code, out, _ = main(*arguments)
    assert code == 0 and "resumed at step 2 of 4" in out and "\nvariant" in out


@no_signals
def test_a_signal_during_the_last_step_of_the_first_of_two_runs_ends_both(
    main, tmp_path, monkeypatch
):
    stop_at(monkeypatch, [4])
    code, _, _ = main("--variant", "none", "fixed", "--steps", 4, "--out_dir", tmp_path)
    assert code == 128 + signal.SIGINT
    assert [path.name for path in tmp_path.iterdir()] == ["none"]
    assert load_checkpoint(tmp_path / "none" / "train_state.pt")["result"]


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


def test_a_resumed_run_that_fails_says_which_checkpoint_is_kept(corpus, tmp_path):
    first = small_trainer(corpus, tmp_path)
    for _ in range(3):
        pretrain.train_step(first, corpus)
    first.check_finite()
    first.save()
    second = small_trainer(corpus, tmp_path)
    second.resume("--out_dir")
    assert "the checkpoint of step 3 is kept" in str(second.failed("the loss is nan", 3))


def test_a_short_run_is_saved_ten_times(main, tmp_path, monkeypatch):
    """A run of 20 steps that fails in step 5 keeps step 4."""
    make_loss_nan_in_step(5, monkeypatch)
    code, _, error = main("--out_dir", tmp_path, "--steps", 20)
    assert code == 1 and "the checkpoint of step 4 is kept" in error


def test_the_advice_after_a_failed_training_is_accepted_by_the_next_command(main, tmp_path):
    failing = ["--steps", 4, "--warmup_steps", 1, "--lr"]
    code, _, error = main(*failing, 1e30, "--out_dir", tmp_path / "a")
    assert code == 1 and "a lower --lr" in error and "with another --out_dir" in error
    assert all_finite(load_checkpoint(tmp_path / "a" / "train_state.pt")["model"])

    # a lower --lr alone is refused with the same advice; in another folder it is accepted
    code, _, error = main(*failing, 1e-3, "--out_dir", tmp_path / "a")
    assert code == 2 and is_one_line(error) and "choose another --out_dir" in error
    assert main(*failing, 1e-3, "--out_dir", tmp_path / "b")[0] == 0


def test_a_dry_run_that_fails_needs_no_other_folder(main, tmp_path):
    code, _, error = main("--dry_run", "--lr", 1e30, "--warmup_steps", 1)
    assert code == 1 and is_one_line(error) and "a lower --lr" in error
    assert "--out_dir" not in error


def test_a_held_out_loss_that_is_no_number_fails_and_is_never_a_result(main, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "evaluate", lambda *arguments: (math.nan, 0.0))
    code, out, error = main("--out_dir", tmp_path, "--steps", 2)
    assert code == 1 and is_one_line(error) and "held-out loss is nan after step 1" in error
    assert load_checkpoint(tmp_path / "train_state.pt")["result"] is None


def test_a_learning_rate_beyond_reason_ends_the_same_way(main, tmp_path):
    code, _, error = main(
        "--out_dir", tmp_path, "--lr", 1e30, "--warmup_steps", 1, "--save_every", 1
    )
    assert code == 1 and is_one_line(error) and "step" in error
    state = load_checkpoint(tmp_path / "train_state.pt")
    assert all_finite(state["model"])


@pytest.mark.parametrize("steps", [1, 4])
def test_weights_that_are_no_numbers_are_never_saved_over_good_ones(main, tmp_path, steps):
    """The first step's loss and gradient are fine; its update throws the weights out of range."""
    options = ["--lr", 1e300, "--warmup_steps", 1, "--save_every", 1, "--steps", steps]
    code, _, error = main("--out_dir", tmp_path, *options)
    assert code == 1 and is_one_line(error)
    assert "step 1" in error and "checkpoint of step 0" in error
    state = load_checkpoint(tmp_path / "train_state.pt")
    assert state["step"] == 0 and all_finite(state["model"])
    assert all_finite(load_checkpoint(tmp_path / "model.pt"))


def test_the_memory_that_is_needed_is_that_of_a_micro_batch(corpus, monkeypatch):
    given = []
    monkeypatch.setattr(pretrain, "check_memory", lambda *arguments: given.append(arguments))
    pretrain.check_memory_of(["config"], 8, corpus, CPU, torch.float32, micro_batch=2)
    ((_, config, batch_size, lengths, *_, micro_batch),) = given
    assert (config, batch_size, micro_batch) == ("config", 8, 2)
    assert np.array_equal(lengths, corpus.lengths[corpus.train])


def test_processes_that_see_other_files_are_refused(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "value_of_first", lambda value: ["other settings", 0, False])
    trainer = small_trainer(corpus, tmp_path / "run")
    refused = pytest.raises(ValueError, match="process 0 sees another .* than the first process")
    with refused, pretrain.own_run(trainer, tmp_path / "run"):
        pytest.fail("it was trained")


# --- Kills and full disks -------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for a kill: no later file is written. Clean-up runs, after a real kill it does not."""


@pytest.mark.parametrize("survivors", range(5))
@pytest.mark.parametrize("saves_before", [0, 1])
def test_a_kill_during_the_first_or_the_last_save_leaves_a_folder_that_can_be_resumed(
    main, complete, tmp_path, monkeypatch, saves_before, survivors
):
    """Only `survivors` files of a save get written; then the same command starts again.

    There are two saves, before the first step and after the last one. Each writes five files: the
    checkpoint, config, tokenizer, weights and log.
    """
    true_replace = os.replace
    folder = tmp_path / "run"
    left = [5 * saves_before + survivors]

    def replace(source, target):
        if Path(target).parent == folder:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
        true_replace(source, target)

    arguments = ["--steps", 3, "--save_every", 100, "--out_dir"]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", replace)
        pretrain.main(complete([*arguments, folder]))

    code, _, error = main(*arguments, folder)
    assert code == 0, error
    assert load_checkpoint(folder / "train_state.pt")["result"] and load_run(folder)

    # nothing of it is old: neither the weights nor the log
    assert main(*arguments, tmp_path / "uninterrupted")[0] == 0
    assert_same_outcome(folder, tmp_path / "uninterrupted")


def test_a_part_that_a_kill_left_in_the_folder_does_not_stop_the_next_start(main, tmp_path):
    (tmp_path / "train_state.pt.45.part").write_bytes(b"half of a checkpoint")
    (tmp_path / "model.pt.123.part").write_bytes(b"half of the weights")
    (tmp_path / "run.lock").write_text("process 123 on a machine", encoding="utf-8")
    assert main("--out_dir", tmp_path, "--steps", 2)[0] == 0
    assert not list(tmp_path.glob("*.part")) and not list(tmp_path.glob("*.lock"))


DISK_ERRORS = [OSError(28, "No space left on device"), OSError(30, "Read-only file system")]


@pytest.mark.parametrize("error", DISK_ERRORS)
def test_a_checkpoint_that_cannot_be_written_ends_in_one_line_and_keeps_the_last_one(
    main, tmp_path, monkeypatch, error
):
    true_save = torch.save

    def save(value, file, *rest):
        if value.get("step") == 10:
            file.write(b"half")
            raise error
        return true_save(value, file, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save)
        check_disk_error(main, tmp_path, error, step=5)
    # the run continues from there
    assert main("--out_dir", tmp_path, "--save_every", 5)[0] == 0


@pytest.mark.parametrize("error", DISK_ERRORS)
def test_a_log_that_cannot_be_written_ends_in_one_line_after_the_checkpoint_is_complete(
    main, tmp_path, monkeypatch, error
):
    true_write = Path.write_text

    def write(path, text, **options):
        if '"step": 15' in text:
            true_write(path, text[:20], **options)
            raise error
        return true_write(path, text, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write)
        check_disk_error(main, tmp_path, error, step=15)
    # the run continues from there
    assert main("--out_dir", tmp_path, "--save_every", 5)[0] == 0


def check_disk_error(main, folder, error, step):
    """The run ends in one line; the last checkpoint is that of `step`, and no part is left."""
    code, _, message = main("--out_dir", folder, "--save_every", 5)
    assert code == 2 and is_one_line(message) and error.strerror in message
    assert load_checkpoint(folder / "train_state.pt")["step"] == step
    assert not list(folder.glob("*.part"))


def test_a_folder_that_cannot_be_made_ends_in_one_line(main, tmp_path):
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    code, _, error = main("--out_dir", tmp_path / "file" / "run")
    assert code == 2 and is_one_line(error) and "file" in error


# --- Folders that belong to something else --------------------------------------------------------


def test_folders_of_others_are_refused_before_the_first_of_several_runs_starts(main, tmp_path):
    arguments = ["--variant", "none", "--steps", 3]
    both = [*arguments, "--seed", 0, 1, "--out_dir", tmp_path]
    second = tmp_path / "none-seed1"

    # another run
    assert main(*arguments, "--seed", 1, "--lr", 0.5, "--out_dir", second)[0] == 0
    code, _, error = main(*both)
    assert code == 2 and is_one_line(error)
    assert f"{second} belongs to another run (lr is 0.5 there and 0.001 here)" in error
    assert [path.name for path in tmp_path.iterdir()] == ["none-seed1"]

    # no run
    (second / "train_state.pt").unlink()
    code, _, error = main(*both)
    assert code == 2 and is_one_line(error) and "holds no run to resume" in error
    assert [path.name for path in tmp_path.iterdir()] == ["none-seed1"]


def test_options_are_written_out(main, tmp_path, monkeypatch):
    """So --seed of glue.py, which has --seeds, cannot mean something else than here."""
    monkeypatch.chdir(tmp_path)
    code, _, error = main("--step", 3)
    assert code == 2 and "unrecognized arguments: --step" in error and not list(tmp_path.iterdir())


def test_the_attention_layer_of_a_hybrid_is_a_setting_of_the_run(main, tmp_path):
    arguments = ["--variant", "lightconv-hybrid", "--steps", 3, "--out_dir", tmp_path]
    assert main(*arguments, "--attention_layer", 2)[0] == 0
    assert load_run(tmp_path)[0].config.attention_layer == 2
    code, _, error = main(*arguments, "--attention_layer", 3)
    assert code == 2 and is_one_line(error) and "attention_layer is 2 there and 3 here" in error


@pytest.mark.parametrize(
    "other, words",
    [
        (["--variant", "fixed"], "variant is composite there and fixed here"),
        (["--size", "small"], "size is tiny there and small here"),
        (["--steps", 31], "steps is 3 there and 31 here"),
        (["--seed", 5], "seed is 0 there and 5 here"),
        (["--kernel_size", 9], "kernel_size is 17 there and 9 here"),
        (["--beyond", "zero"], "beyond is clip there and zero here"),
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


def test_resume_never_refuses_a_folder_with_files_before_any_work(main, tmp_path):
    main("--out_dir", tmp_path, "--steps", 3)
    code, out, error = main("--out_dir", tmp_path, "--steps", 3, "--resume", "never")
    assert code == 2 and is_one_line(error) and "is not empty" in error and "--out_dir" in error
    assert "corpus" not in out


def test_resume_never_takes_an_empty_folder(main, tmp_path):
    assert main("--out_dir", tmp_path, "--steps", 2, "--resume", "never")[0] == 0


def test_a_file_in_place_of_the_folder_is_refused_before_any_work(main, tmp_path):
    path = tmp_path / "file"
    path.write_text("mine", encoding="utf-8")
    for folder in (path, path / "run"):
        code, out, error = main("--out_dir", folder, "--steps", 2)
        assert code == 2 and is_one_line(error) and f"{path} is a file, not a folder" in error
        assert "corpus" not in out
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_file_in_place_of_the_cache_is_refused_in_one_line(main, tmp_path):
    (tmp_path / "cache").write_text("mine", encoding="utf-8")
    code, _, error = main("--cache_dir", tmp_path / "cache", "--out_dir", tmp_path / "run")
    assert code == 2 and is_one_line(error)
    assert f"{tmp_path / 'cache'} is not a folder: delete it, or name another folder" in error


def test_a_folder_with_somebody_s_files_is_refused(main, tmp_path):
    (tmp_path / "thesis.tex").write_text("...", encoding="utf-8")
    code, _, error = main("--out_dir", tmp_path)
    assert code == 2 and is_one_line(error) and "--out_dir" in error
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def empty(path):
    path.write_bytes(b"")


def not_a_checkpoint(path):
    path.write_bytes(b"not a checkpoint")


def truncated(path):
    path.write_bytes(path.read_bytes()[:200])


def a_list(path):
    torch.save([1, 2], path)


def of_another_program(path):
    torch.save({"weights": torch.zeros(3)}, path)


def without_losses(path):
    state = load_checkpoint(path)
    del state["losses"]
    torch.save(state, path)


def with_settings_of_another_kind(path):
    state = load_checkpoint(path)
    state["settings"] = [1, 2]
    torch.save(state, path)


def without_a_number_of_the_result(path):
    state = load_checkpoint(path)
    del state["result"]["loss"]
    torch.save(state, path)


def with_a_result_of_another_kind(path):
    state = load_checkpoint(path)
    state["result"] = 5
    torch.save(state, path)


def with_a_step_that_is_text(path):
    state = load_checkpoint(path)
    state["step"] = "3"
    torch.save(state, path)


@pytest.mark.parametrize(
    "damage",
    [
        empty,
        not_a_checkpoint,
        truncated,
        a_list,
        of_another_program,
        without_losses,
        with_settings_of_another_kind,
        without_a_number_of_the_result,
        with_a_result_of_another_kind,
        with_a_step_that_is_text,
    ],
)
def test_a_damaged_or_foreign_checkpoint_is_refused_and_left_alone(main, tmp_path, damage):
    main("--out_dir", tmp_path, "--steps", 3)
    path = tmp_path / "train_state.pt"
    damage(path)
    before = path.read_bytes()
    code, _, error = main("--out_dir", tmp_path, "--steps", 3)
    assert code == 2 and is_one_line(error) and "train_state.pt" in error
    assert path.read_bytes() == before


# --- Damaged states of an unfinished run ----------------------------------------------------------


def of_state(key, value):
    """A function that changes a value of a state."""

    def change(state):
        state[key] = value

    return change


def without(key):
    def change(state):
        del state[key]

    return change


def of_moment(key, value):
    """A function that changes what AdamW keeps for parameter 0, whose shape is (34, 16)."""

    def change(state):
        state["optimizer"]["state"][0][key] = value

    return change


def of_weight(value):
    def change(state):
        state["model"]["bert.layers.0.ffn.0.weight"] = value

    return change


def other_steps_in_the_settings(state):
    state["settings"]["steps"] = 2


def a_tensor_among_the_settings(state):
    state["settings"]["lr"] = torch.zeros(2)


def circle_of_records(state):
    state["records"].append({"records": state["records"]})


def without_a_moment(state):
    del state["optimizer"]["state"][0]


def no_moments(state):
    state["optimizer"]["state"] = {}


def moments_of_another_parameter(state):
    moments = state["optimizer"]["state"]
    moments[0], moments[1] = moments[1], moments[0]


def no_moments_expected(state):
    state["step"] = 0
    state["losses"] = []


def parameters_in_other_groups(state):
    groups = state["optimizer"]["param_groups"]
    groups[0]["params"] = groups[0]["params"][::-1]


NAN = math.nan
STATES = {
    "step true": of_state("step", True),
    "step negative": of_state("step", -1),
    "step above all": of_state("step", 211),
    "step beyond int64": of_state("step", 10**30),
    "step a float": of_state("step", 3.0),
    "step a tensor": of_state("step", torch.tensor(3)),
    "step text": of_state("step", "3"),
    "last step, no losses": of_state("step", 210),
    "finished too early": of_state("result", {"loss": 1.0}),
    "steps below step": other_steps_in_the_settings,
    "settings without steps": of_state("settings", {}),
    "settings a tensor": a_tensor_among_the_settings,
    "settings a list": of_state("settings", [1, 2]),
    "no losses": without("losses"),
    "losses none": of_state("losses", None),
    "losses text": of_state("losses", ["1.0"] * 3),
    "losses nan": of_state("losses", [1.0, NAN, 1.0]),
    "losses too many": of_state("losses", [1.0] * 4),
    "losses too few": of_state("losses", [1.0] * 2),
    "losses a tensor": of_state("losses", torch.zeros(3)),
    "tokens beyond int64": of_state("tokens", 10**30),
    "tokens a float": of_state("tokens", 1.5),
    "tokens negative": of_state("tokens", -1),
    "seconds text": of_state("seconds", "1.0"),
    "seconds infinite": of_state("seconds", math.inf),
    "seconds negative": of_state("seconds", -1.0),
    "records a dictionary": of_state("records", {}),
    "records empty": of_state("records", []),
    "records of numbers": of_state("records", [1, 2]),
    "records of others": of_state("records", [{"settings": {}}]),
    "records without settings": of_state("records", [{}]),
    "records in a circle": circle_of_records,
    "result a tensor": of_state("result", torch.zeros(2)),
    "result a number": of_state("result", 5),
    "no model": without("model"),
    "no optimizer": without("optimizer"),
    "no records": without("records"),
    "no result": without("result"),
    "model a tensor": of_state("model", torch.zeros(2)),
    "optimizer a list": of_state("optimizer", [1]),
    "optimizer a tensor": of_state("optimizer", torch.zeros(2)),
    "optimizer of tensors": of_state(
        "optimizer", {"state": torch.zeros(2), "param_groups": torch.zeros(2)}
    ),
    "moments of numbers": of_state("optimizer", {"state": {0: 1}, "param_groups": []}),
    "optimizer empty": of_state("optimizer", {}),
    "optimizer of numbers": of_state("optimizer", {"state": 1, "param_groups": 2}),
    "moment too small": of_moment("exp_avg", torch.zeros(1)),
    "moment too large": of_moment("exp_avg_sq", torch.zeros(100, 100)),
    "moment text": of_moment("exp_avg", "zero"),
    "moment none": of_moment("exp_avg", None),
    "moment of no use": of_moment("max_exp_avg_sq", torch.zeros(1)),
    "count of other steps": of_moment("step", torch.tensor(2.0)),
    "count of two numbers": of_moment("step", torch.zeros(2)),
    "count without number": of_moment("step", torch.zeros((), device="meta")),
    "moment missing": without_a_moment,
    "moments missing": no_moments,
    "moments exchanged": moments_of_another_parameter,
    "moments at the start": no_moments_expected,
    "groups in another order": parameters_in_other_groups,
    "weight nan": of_weight(torch.full((32, 16), NAN)),
    "weight complex": of_weight(torch.zeros(32, 16, dtype=torch.complex64)),
    "weight double": of_weight(torch.zeros(32, 16, dtype=torch.float64)),
    "weight meta": of_weight(torch.zeros(32, 16, device="meta")),
    "weight text": of_weight("zero"),
}


@pytest.fixture(scope="module")
def state_of_step_3(small_text, tmp_path_factory):
    """The bytes of the checkpoint of a small trainer after three steps."""
    corpus = prepare_corpus([str(small_text.file)], small_text.cache, 32, log=ignore)
    trainer = small_trainer(corpus, tmp_path_factory.mktemp("state"))
    for _ in range(3):
        pretrain.train_step(trainer, corpus)
    trainer.check_finite()
    trainer.save()
    return trainer.path.read_bytes()


def resumed_from(corpus, folder, content, change):
    """A small trainer that continues from a changed checkpoint."""
    trainer = small_trainer(corpus, folder)
    trainer.path.write_bytes(content)
    state = load_checkpoint(trainer.path)
    change(state)
    torch.save(state, trainer.path)
    trainer.resume("--out_dir")
    return trainer


@pytest.mark.parametrize("change", STATES.values(), ids=STATES)
def test_a_state_that_cannot_be_is_refused_in_one_line(corpus, tmp_path, state_of_step_3, change):
    with pytest.raises(ValueError, match="train_state.pt") as error:
        resumed_from(corpus, tmp_path, state_of_step_3, change)
    assert "\n" not in str(error.value)


def test_the_state_of_the_last_step_without_a_result_is_refused(corpus, tmp_path, state_of_step_3):
    def change(state):
        state["step"] = 210
        state["records"].append({"step": 210, "loss": 1.0})
        state["losses"] = []
        for moments in state["optimizer"]["state"].values():
            moments["step"] = torch.tensor(210.0)

    with pytest.raises(ValueError, match="a result before the last step, or none after it"):
        resumed_from(corpus, tmp_path, state_of_step_3, change)


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("wrong", ["nan", "complex", "meta", "sparse", "double", "negative"])
def test_moments_without_proper_numbers_are_refused(corpus, tmp_path, state_of_step_3, key, wrong):
    def change(state):
        moments = state["optimizer"]["state"][0]
        zeros = torch.zeros_like(moments[key])
        moments[key] = {
            "nan": zeros + NAN,
            "complex": zeros.to(torch.complex64),
            "meta": zeros.to("meta"),
            "sparse": zeros.to_sparse(),
            "double": zeros.double(),
            "negative": zeros - 1,
        }[wrong]

    # the mean of the gradients may be below 0
    if (key, wrong) == ("exp_avg", "negative"):
        assert resumed_from(corpus, tmp_path, state_of_step_3, change).step == 3
        return
    with pytest.raises(ValueError, match="damaged .*its optimizer"):
        resumed_from(corpus, tmp_path, state_of_step_3, change)


def test_moments_that_share_their_memory_are_separate_after_resuming(
    corpus, tmp_path, state_of_step_3
):
    def change(state):
        for moments in state["optimizer"]["state"].values():
            zero = torch.zeros(1)
            moments["exp_avg"] = zero.expand(moments["exp_avg"].shape)
            moments["exp_avg_sq"] = zero.expand(moments["exp_avg_sq"].shape)

    trainer = resumed_from(corpus, tmp_path, state_of_step_3, change)
    places = set()
    for moments in trainer.optimizer.state.values():
        assert moments["exp_avg"].is_contiguous() and moments["exp_avg_sq"].is_contiguous()
        places |= {moments["exp_avg"].data_ptr(), moments["exp_avg_sq"].data_ptr()}
    assert len(places) == 2 * len(list(trainer.model.parameters()))


def test_the_values_of_the_optimizer_come_from_the_settings_and_not_from_the_file(
    corpus, tmp_path, state_of_step_3
):
    def change(state):
        for group in state["optimizer"]["param_groups"]:
            group["weight_decay"] = 5.0
            group["betas"] = (0.0, 0.0)

    trainer = resumed_from(corpus, tmp_path, state_of_step_3, change)
    groups = trainer.optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0]
    assert all(group["betas"] == (0.9, 0.999) for group in groups)


def test_a_bare_tensor_a_list_or_a_pipe_in_place_of_a_state_is_refused(corpus, tmp_path):
    trainer = small_trainer(corpus, tmp_path)
    for content in (torch.zeros(3), [1, 2]):
        torch.save(content, trainer.path)
        with pytest.raises(ValueError, match="train_state.pt is damaged"):
            trainer.resume("--out_dir")

    if hasattr(os, "mkfifo"):
        trainer.path.unlink()
        os.mkfifo(trainer.path)
        with pytest.raises(ValueError, match="train_state.pt is not a file"):
            trainer.resume("--out_dir")


@pytest.mark.parametrize(
    "name, words",
    [
        ("model", "train_state.pt holds the weights of another model"),
        ("optimizer", "train_state.pt holds the optimizer of another model"),
    ],
)
def test_a_checkpoint_with_weights_or_optimizer_of_another_model_is_refused(
    corpus, tmp_path, name, words
):
    trainer = small_trainer(corpus, tmp_path)
    trainer.save()
    state = load_checkpoint(trainer.path)
    other = BertForMaskedLM(BertConfig.from_size("tiny", "none", corpus.vocab_size))
    if name == "model":
        state["model"] = other.state_dict()
    else:
        state["optimizer"] = pretrain.make_optimizer(other, 0.01).state_dict()
    torch.save(state, trainer.path)
    with pytest.raises(ValueError, match=words) as error:
        small_trainer(corpus, tmp_path).resume("--out_dir")
    assert "\n" not in str(error.value)


# --- The command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--variant", "nonsense"], ", ".join(VARIANTS)),
        (["--variant", "all", "nonsense"], "unknown variant 'nonsense'"),
        (["--kernel_size", "8"], "odd"),
        (["--kernel_size", "-3"], "whole number"),
        (["--variant", "none", "--kernel_size", "9"], "kernel"),
        (["--steps", "0"], "whole number"),
        (["--lr", "nan"], "--lr"),
        (["--lr", "-1"], "--lr"),
        (["--seq_len", "4"], "--seq_len"),
        (["--seed", "-1"], "--seed"),
        (["--seed", "2147483648"], "--seed must be a whole number from 0 to 2,147,483,647"),
        (["--seed", "1", str(10**30)], "--seed must be a whole number from 0 to 2,147,483,647"),
        (["--seed", "1" * 5000], "--seed"),
        (["--lr", "1e400"], "--lr"),
        (["--lr", "1e-400"], "--lr"),
        (["--dropout", "nan"], "dropout"),
        (["--dropout", "1e400"], "dropout"),
        (["--kernel_size", "65"], "kernel_size 65 is too large: with 63, a kernel reaches every"),
        (["--steps", str(10**30)], "--steps"),
        (["--size", "huge"], "tiny"),
        (["--beyond", "wrap"], "clip"),
        (["--device", "abacus"], "abacus"),
        (["--corpus", "no-such-corpus"], "no-such-corpus"),
        (["--dropout", "1.5"], "dropout"),
        (["--steps", "5", "--warmup_steps", "6"], "--warmup_steps"),
        (["--corpus", ""], "no corpus"),
        (["--variant", "none", "canon", "--beyond", "zero"], "--beyond zero has no use"),
        (["--attention_layer", "2"], "lightconv-hybrid"),
        (["--variant", "none", "fixed", "--attention_layer", "2"], "hybrid"),
        (["--variant", "none", "absolute", "--kernel_size", "9"], "kernel"),
        (["--variant", "dilated-hybrid", "--attention_layer", "5"], "4 layers"),
        (["--steps=--"], "--steps=--: -- is not a value"),
        (["--corpus=--"], "--corpus=--: -- is not a value"),
        (["--window", "zero"], "--window"),
        (["--benchmark"], "--benchmark"),
        (["--lengths"], "--lengths"),
    ],
)
def test_wrong_arguments_are_answered_and_nothing_is_written(
    main, tmp_path, monkeypatch, arguments, words
):
    monkeypatch.chdir(tmp_path)
    code, _, error = main(*arguments)
    assert code == 2 and words in error.splitlines()[-1] and not list(tmp_path.iterdir())


def test_beyond_is_that_of_the_variants_that_use_it():
    args = pretrain.parse_arguments(["--beyond", "zero"])
    recipe = pretrain.recipe_for(args)
    used = {name for name in VARIANTS if pretrain.config_for(args, recipe, name).beyond == "zero"}
    assert used >= {"fixed", "composite", "composite-key", "shaw", "deberta"}
    unused = {"none", "absolute", "depthwise", "convbert", "lightconv", "t5", "rotary", "canon"}
    assert not used & unused


@pytest.mark.parametrize(
    "option, device, expected",
    [(None, "cuda", True), (None, "cpu", False), (True, "cpu", True), (False, "cuda", False)],
)
def test_models_are_compiled_on_cuda_unless_an_option_says_otherwise(option, device, expected):
    assert pretrain.wants_compile(option, torch.device(device)) == expected


def test_the_encoder_is_compiled_for_as_many_rows_as_are_computed_at_once(
    corpus, tmp_path, monkeypatch
):
    shapes = []
    monkeypatch.setattr(
        pretrain, "compile_encoder", lambda bert, ids, precision: shapes.append(ids.shape)
    )
    trainer = small_trainer(corpus, tmp_path)
    trainer.micro_batch = 2
    pretrain.compile_for(trainer, True, corpus)
    assert shapes == [(2, corpus.batch(3, 0, 8).shape[1])]


def test_compilation_that_fails_falls_back_with_one_line(main, tmp_path, monkeypatch):
    def compile_broken(module, *arguments, **options):
        def no_compiler(*arguments, **options):
            raise RuntimeError("no compiler")

        module._compiled_call_impl = no_compiler

    monkeypatch.setattr(nn.Module, "compile", compile_broken)
    arguments = ["--steps", 3, "--out_dir"]
    code, out, _ = main(*arguments, tmp_path / "compiled", "--compile")
    assert code == 0 and out.count("running uncompiled") == 1

    # the trial leaves no trace in the weights
    assert main(*arguments, tmp_path / "plain")[0] == 0
    assert_same_outcome(tmp_path / "compiled", tmp_path / "plain")
