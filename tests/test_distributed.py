"""Several processes and micro-batches compute what one process computes, also after a kill.

Processes are started as torchrun starts them, but by forks of one server that has imported the
project once.
"""

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import distributed

import glue
import pretrain
from data import PAD
from model import SIZES, BertConfig
from support.commands import run_command
from support.distributed import run_together
from support.files import load_checkpoint
from toy import glue as toy_glue

TINIER = {"layers": 2, "hidden_size": 16, "ffn_size": 32, "heads": 2, "embedding_size": 16}
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no forks and no such signals")


# --- Processes as torchrun starts them ------------------------------------------------------------


def be_process(rank, count, port, main, before, words):
    """One of several processes: main(words). `before` prepares the process."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    os.environ.update({name: str(number) for name, number in numbers.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    os.environ.update({"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    SIZES["tiny"] = TINIER
    before(rank)
    run_command("program", run_together, main, words)


def nothing(rank):
    """Prepares nothing."""


def run_processes(count, words, before=nothing, main=pretrain.main):
    """Run main(words) in so many processes. Returns their exit codes."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    words = [str(word) for word in words]
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["glue", "pytest"])
    processes = []
    for rank in range(count):
        arguments = (rank, count, store.port, main, before, words)
        processes.append(forks.Process(target=be_process, args=arguments, daemon=True))
        processes[-1].start()
    for process in processes:
        process.join(60)  # none of them may hang
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


@pytest.fixture
def words(small_text):
    """The command line of a small run of 20 steps in float32, without dropout."""
    text = ["--corpus", small_text.file, "--cache_dir", small_text.cache, "--device", "cpu"]
    training = ["--steps", 20, "--batch_size", 8, "--seq_len", 32, "--lr", 1e-3]
    return [*text, *training, "--dtype", "fp32"]


@pytest.fixture
def run_alone(monkeypatch):
    """run_alone(words, folder): one process, without torchrun. Returns the folder."""
    monkeypatch.setitem(SIZES, "tiny", TINIER)

    def call(words, folder):
        pretrain.main([str(word) for word in [*words, "--out_dir", folder]])
        return folder

    return call


def assert_same_run(folder, expected):
    """The same losses at the same steps, the same evaluations and weights, up to 1e-5."""
    logs = []
    for each in (folder, expected):
        lines = (each / "log.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        logs.append([record for record in records if "made_by" not in record])
    assert len(logs[0]) == len(logs[1]) > 20
    for one, other in zip(*logs, strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() - {"seconds"}:
            assert one[key] == pytest.approx(other[key], abs=1e-5), (key, one["step"])

    weights = load_checkpoint(folder / "model.pt")
    for name, weight in load_checkpoint(expected / "model.pt").items():
        assert (weights[name] - weight).abs().max() <= 1e-5, name


# --- Pre-training ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--micro_batch", 3], ["--batch_size", 1, "--steps", 21]])
def test_two_processes_compute_what_one_computes(words, run_alone, tmp_path, options):
    """Also with micro-batches, and if most batches have fewer rows than there are processes."""
    expected = run_alone([*words, *options], tmp_path / "alone")
    folder = tmp_path / "two"
    assert run_processes(2, [*words, *options, "--out_dir", folder]) == [0, 0]
    assert_same_run(folder, expected)


def signal_in_second(rank, number):
    """The second process gets this signal during step 9."""
    true_step = pretrain.train_step

    def step(trainer, *arguments):
        if rank == 1 and trainer.step == 8:
            os.kill(os.getpid(), number)
        true_step(trainer, *arguments)

    pretrain.train_step = step


def sigterm_in_second(rank):
    signal_in_second(rank, signal.SIGTERM)


def sigkill_in_second(rank):
    signal_in_second(rank, signal.SIGKILL)


@pytest.mark.parametrize("before", [sigterm_in_second, sigkill_in_second])
def test_a_signal_to_one_process_ends_all_and_one_or_two_continue(
    words, run_alone, tmp_path, before
):
    stopped = tmp_path / "stopped"
    codes = run_processes(2, [*words, "--out_dir", stopped], before)
    if before is sigterm_in_second:
        assert codes == [128 + signal.SIGTERM] * 2
        assert load_checkpoint(stopped / "train_state.pt")["step"] == 9
    else:
        assert codes[1] == -signal.SIGKILL
        assert codes[0] not in (0, None)
        assert load_checkpoint(stopped / "train_state.pt")["step"] == 8

    expected = run_alone(words, tmp_path / "alone")
    copy = shutil.copytree(stopped, tmp_path / "copy")
    assert_same_run(run_alone(words, copy), expected)
    assert run_processes(2, [*words, "--out_dir", stopped]) == [0, 0]
    assert_same_run(stopped, expected)


# --- Micro-batches --------------------------------------------------------------------------------


def small_trainer(variant, micro_batch, dropout=0.0, rows=7):
    """(a Trainer in float32, a source of a single batch with so many rows)."""
    config = BertConfig(variant, 40, **TINIER, dropout=dropout)
    settings = {"seed": 1, "steps": 9, "warmup_steps": 1, "lr": 1e-3, "weight_decay": 0.0}
    settings["batch_size"] = 7
    trainer = pretrain.new_trainer(config, settings, Path(), CPU, torch.float32)
    trainer.micro_batch = micro_batch
    batch = torch.randint(5, 40, (rows, 24), generator=torch.Generator().manual_seed(0))
    batch[:3, 17:] = PAD
    return trainer, SimpleNamespace(vocab_size=40, batch=lambda *key: batch)


def step_of(variant, micro_batch):
    """One step: (its loss, the gradients as one vector)."""
    trainer, source = small_trainer(variant, micro_batch)
    found = []

    def keep(optimizer, arguments, options):
        found.append(torch.cat([x.grad.flatten() for x in trainer.model.parameters()]))

    trainer.optimizer.register_step_pre_hook(keep)
    pretrain.train_step(trainer, source)
    return trainer.unread_losses[0].item(), found[0].double()


def test_dropout_differs_between_parts_and_between_processes(monkeypatch):
    """The first part of the first process has the dropout of a run without parts."""

    def dropped_in(micro_batch, rows=7):
        trainer, source = small_trainer("composite", micro_batch, 0.5, rows)
        found = []
        dropout = trainer.model.bert.embeddings.dropout
        dropout.register_forward_hook(lambda module, given, output: found.append(output == 0))
        pretrain.train_step(trainer, source)
        return found

    [whole] = dropped_in(None)
    first, second, _ = dropped_in(3)
    assert torch.equal(first[0], whole[0]) and not torch.equal(first, second)

    # two processes with four rows each
    monkeypatch.setattr(pretrain, "process_count", lambda: 2)
    [one] = dropped_in(None, rows=8)
    monkeypatch.setattr(pretrain, "rank", lambda: 1)
    [other] = dropped_in(None, rows=8)
    assert one.shape == other.shape and not torch.equal(one, other)


@pytest.mark.parametrize("variant", ["composite-conv-qkv", "convbert", "shaw", "dynamicconv"])
def test_micro_batches_have_the_loss_and_the_gradients_of_the_batch(variant):
    """1, 3 (which does not divide the 7 rows) and more rows at a time."""
    expected_loss, expected = step_of(variant, None)
    for micro_batch in (1, 3, 100):
        loss, gradients = step_of(variant, micro_batch)
        assert loss == pytest.approx(expected_loss, rel=1e-6)
        assert (gradients - expected).norm() / expected.norm() < 1e-6


# --- Fine-tuning ----------------------------------------------------------------------------------


def small_tasks(rank):
    """The toy tasks have 24 rows in every file."""
    for name, splits in toy_glue.GLUE_ROWS.items():
        toy_glue.GLUE_ROWS[name] = dict.fromkeys(splits, 24)


def test_two_processes_share_the_tasks_and_seeds(words, run_alone, tmp_path):
    run = run_alone([*words, "--steps", 1], tmp_path / "run")
    options = ["--data_dir", "toy", "--cache_dir", tmp_path / "cache", "--device", "cpu"]
    options += ["--task", "mnli", "rte", "--seeds", 42, 97, "--epochs", 1]
    assert run_processes(2, ["finetune", run, *options], small_tasks, glue.main) == [0, 0]
    lines = (run / "glue" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    found = [(json.loads(line)["task"], json.loads(line)["seed"]) for line in lines]
    assert sorted(found) == [("mnli", 42), ("mnli", 97), ("rte", 42), ("rte", 97)]
