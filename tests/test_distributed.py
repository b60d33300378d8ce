"""Several processes, micro-batches: they compute what one process computes; signals, kills, errors.

`together` starts processes as torchrun does, but by forks of one server that has imported the
project once. Only the tests of kills start torchrun itself. Every wait has a limit.
"""

import json
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import distributed

import glue
import pretrain
from conftest import ROOT
from data import CLS, MASK, PAD
from model import IGNORED, SIZES, BertConfig, BertForMaskedLM
from support import devices
from support import distributed as together_file
from support.commands import run_command
from support.distributed import run_together
from support.files import load_checkpoint
from toy import glue as toy_glue

TINIER = {"layers": 2, "hidden_size": 16, "ffn_size": 32, "heads": 2, "embedding_size": 16}
CPU = torch.device("cpu")
LONGEST_WAIT = 120  # seconds

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no forks and no such signals")


# --- Processes as torchrun starts them ------------------------------------------------------------


class Outcome:
    """Exit codes, standard outputs and standard errors of several processes."""

    def __init__(self, folder, codes):
        self.codes = codes
        numbers = range(len(codes))
        self.out = [(folder / f"{rank}.out").read_text(encoding="utf-8") for rank in numbers]
        self.error = [(folder / f"{rank}.err").read_text(encoding="utf-8") for rank in numbers]

    def messages(self):
        """The lines of all processes that begin with the name of the program."""
        lines = "".join(self.error).splitlines()
        return [line for line in lines if line.startswith("pretrain.py: ")]


PROGRAMS = {"pretrain.py": pretrain.main, "glue.py": glue.main}


def be_process(rank, count, port, folder, program, before, arguments):
    """One of several processes: python PROGRAM ARGUMENTS. `before` prepares the process."""
    os.environ.update(
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "test",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    )
    torch.set_num_threads(1)
    SIZES["tiny"] = TINIER

    # its output goes to files
    with (
        open(folder / f"{rank}.out", "w", encoding="utf-8") as sys.stdout,
        open(folder / f"{rank}.err", "w", encoding="utf-8") as sys.stderr,
    ):
        sys.__stdout__ = sys.stdout
        if before is not None:
            before(rank)
        run_command(program, run_together, PROGRAMS[program], arguments)


@pytest.fixture
def together(tmp_path):
    """together(count, arguments) runs a program in so many processes, and returns an Outcome.

    before: function of the rank, which each process calls first.
    program: pretrain.py, if nothing else is given.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["glue"])
    started = []

    def run(count, arguments, before=None, program="pretrain.py"):
        folder = tmp_path / f"outputs-{len(started)}"
        folder.mkdir()
        store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        processes = []
        for rank in range(count):
            words = [str(argument) for argument in arguments]
            given = (rank, count, store.port, folder, program, before, words)
            processes.append(context.Process(target=be_process, args=given))
            processes[-1].start()
        started.append(processes)

        # none of them may hang
        deadline = time.monotonic() + LONGEST_WAIT
        for process in processes:
            process.join(max(0.1, deadline - time.monotonic()))
        codes = [process.exitcode for process in processes]
        outcome = Outcome(folder, codes)
        assert None not in codes, f"it hangs: {codes}, {outcome.error}"
        return outcome

    yield run
    for processes in started:
        for process in processes:
            process.kill()


@pytest.fixture
def arguments(small_text):
    """The command line of a small run of 20 steps in float32, without dropout."""
    words = ["--corpus", small_text.file, "--cache_dir", small_text.cache, "--device", "cpu"]
    words += ["--dtype", "fp32", "--steps", 20, "--batch_size", 8, "--seq_len", 32, "--lr", 1e-3]
    return [str(word) for word in words]


@pytest.fixture
def alone(arguments, tmp_path, monkeypatch, capsys):
    """The folder of this run, by one process."""
    monkeypatch.setitem(SIZES, "tiny", TINIER)
    folder = tmp_path / "alone"
    assert pretrain.main([*arguments, "--out_dir", str(folder)]) == 0
    capsys.readouterr()
    return folder


def log_of(folder):
    """The lines of a log."""
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def steps_of(folder):
    """The lines of training and of evaluations."""
    return [line for line in log_of(folder) if "made_by" not in line]


def divisions_of(folder):
    """Among how many processes the steps were divided: [(from which step, processes)]."""
    lines = [line for line in log_of(folder) if "made_by" in line]
    return [(line.get("step", 0), line["made_by"].get("processes", 1)) for line in lines]


def assert_same_run(folder, expected, tolerance=1e-5):
    """The same losses at the same steps, the same evaluations and weights, up to rounding."""
    log = steps_of(folder)
    other_log = steps_of(expected)
    assert len(log) == len(other_log) > 20
    for one, other in zip(log, other_log, strict=True):
        assert one.keys() == other.keys() and one["step"] == other["step"]
        for key in one.keys() - {"seconds"}:
            assert one[key] == pytest.approx(other[key], abs=tolerance), (key, one["step"])

    weights = load_checkpoint(folder / "model.pt")
    for name, weight in load_checkpoint(expected / "model.pt").items():
        assert (weights[name] - weight).abs().max() <= tolerance, name
    assert load_checkpoint(folder / "train_state.pt")["result"] is not None


# --- The parts of a batch -------------------------------------------------------------------------


def be_one_of(monkeypatch, rank, count):
    """Let pretrain.py think that it is this one of so many processes."""
    for module in (pretrain, together_file):
        monkeypatch.setattr(module, "rank", lambda: rank)
        monkeypatch.setattr(module, "process_count", lambda: count)


def batch_of(masked_tokens, width=8):
    """(masked_ids, attention_mask, labels) of rows with so many masked tokens each."""
    masked_ids = torch.arange(len(masked_tokens) * width).view(-1, width) + 5
    labels = torch.full_like(masked_ids, IGNORED)
    for row, count in enumerate(masked_tokens):
        labels[row, :count] = masked_ids[row, :count]
        masked_ids[row, :count] = MASK
    return masked_ids, masked_ids != PAD, labels


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("micro_batch", [None, 1, 3, 100])
def test_the_parts_of_all_processes_are_the_batch(monkeypatch, count, micro_batch):
    """In its order, no row twice; the losses of the parts are the loss of the batch.

    The largest part has rows_at_once(10, micro_batch) rows.
    """
    batch = batch_of([1, 2, 3, 4, 1, 0, 3, 2, 5, 6])
    rows = [[], [], []]
    sizes = []
    weights = 0.0
    for rank in range(count):
        be_one_of(monkeypatch, rank, count)
        for part in pretrain.own_parts(*batch, micro_batch):
            assert len(part.labels) <= (micro_batch or 10)
            sizes.append(len(part.labels))
            weights += part.weight.item() / count
            for kept, tensor in zip(rows, part[:3], strict=True):
                kept.append(tensor)
    for kept, tensor in zip(rows, batch, strict=True):
        assert torch.equal(torch.cat(kept), tensor)
    assert weights == pytest.approx(1.0, abs=1e-6)
    assert max(sizes) == together_file.rows_at_once(10, micro_batch)


def test_the_weights_of_parts_are_those_of_the_docstring(monkeypatch):
    batch = batch_of([4, 2, 5, 6, 3])
    found = []
    for rank in range(2):
        be_one_of(monkeypatch, rank, 2)
        parts = pretrain.own_parts(*batch, 2)
        found.append([(len(part.labels), round(part.weight.item(), 6)) for part in parts])
    assert found == [[(2, 0.6)], [(2, 1.1), (1, 0.3)]]


def test_one_part_has_exactly_the_weight_1():
    for masked in range(1, 9):
        [part] = pretrain.own_parts(*batch_of([masked, 1]))
        assert part.weight.item() == 1.0


def test_a_process_without_rows_computes_one_that_does_not_count(monkeypatch):
    masked_ids, attention_mask, labels = batch_of([3])
    be_one_of(monkeypatch, 0, 2)
    [part] = pretrain.own_parts(masked_ids, attention_mask, labels)
    assert part.weight == 0 and part.labels.eq(IGNORED).all() and len(part.labels) == 1
    be_one_of(monkeypatch, 1, 2)
    [part] = pretrain.own_parts(masked_ids, attention_mask, labels)
    assert part.weight == 2 and torch.equal(part.labels, labels)


def test_a_batch_without_masked_tokens_has_the_loss_0_and_no_gradient(small_trainer):
    """Its rows are [CLS] and padding."""
    rows = torch.full((2, 8), PAD)
    rows[:, 0] = CLS
    trainer = small_trainer(rows=rows)
    before = [x.clone() for x in trainer.model.parameters()]
    for micro_batch in (None, 1):
        trainer.micro_batch = micro_batch
        pretrain.train_step(trainer, trainer.source)
    trainer.check_finite()
    assert trainer.losses == [0.0, 0.0]
    assert all(map(torch.equal, before, trainer.model.parameters()))


# --- Micro-batches --------------------------------------------------------------------------------


@pytest.fixture
def small_trainer(monkeypatch):
    """small_trainer(variant, dropout, rows) -> a Trainer in float32; `rows` is its only batch.

    After a step, trainer.found holds its gradients.
    """

    def make(variant="composite", dropout=0.0, rows=None):
        config = BertConfig(variant, 40, **{**TINIER, "dropout": dropout})
        settings = dict(seed=1, steps=9, warmup_steps=1, lr=1e-3, weight_decay=0.0, batch_size=7)
        trainer = pretrain.new_trainer(config, settings, Path(), CPU, torch.float32)
        if rows is None:
            rows = torch.randint(5, 40, (7, 24), generator=torch.Generator().manual_seed(0))
            rows[:3, 17:] = PAD
        trainer.source = SimpleNamespace(vocab_size=40, batch=lambda *key: rows)

        def keep(optimizer, arguments, options):
            trainer.found = [x.grad.clone() for x in trainer.model.parameters()]

        trainer.optimizer.register_step_pre_hook(keep)
        return trainer

    return make


@pytest.mark.parametrize("variant", ["composite-conv-qkv", "convbert", "shaw", "dynamicconv"])
def test_micro_batches_have_the_loss_and_the_gradients_of_the_batch(small_trainer, variant):
    """1, 3 (which does not divide the 7 rows) and 7 or more rows at a time, in float32."""
    expected = small_trainer(variant)
    pretrain.train_step(expected, expected.source)
    for micro_batch in (1, 3, 7, 100):
        trainer = small_trainer(variant)
        trainer.micro_batch = micro_batch
        pretrain.train_step(trainer, trainer.source)
        expected_loss = expected.unread_losses[0].item()
        assert trainer.unread_losses[0].item() == pytest.approx(expected_loss, rel=1e-6)
        assert trainer.step == 1 and trainer.tokens == expected.tokens

        difference = 0.0
        length = 0.0
        for one, other in zip(trainer.found, expected.found, strict=True):
            difference += (one - other).double().square().sum().item()
            length += other.double().square().sum().item()
        assert math.sqrt(difference / length) < 1e-6


def test_no_more_rows_than_the_micro_batch_reach_the_encoder(small_trainer):
    trainer = small_trainer()
    trainer.micro_batch = 3
    seen = []
    trainer.model.bert.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    pretrain.train_step(trainer, trainer.source)
    assert seen == [3, 3, 1]


def test_dropout_differs_between_parts_and_between_processes(small_trainer, monkeypatch):
    """The first part of the first process has the dropout of a run without parts."""

    def dropped_in(trainer):
        found = []
        dropout = trainer.model.bert.embeddings.dropout
        dropout.register_forward_hook(lambda module, given, output: found.append(output == 0))
        pretrain.train_step(trainer, trainer.source)
        return found

    [whole] = dropped_in(small_trainer(dropout=0.5))
    trainer = small_trainer(dropout=0.5)
    trainer.micro_batch = 3
    first, second, _ = dropped_in(trainer)
    assert torch.equal(first[0], whole[0]) and not torch.equal(first, second)

    monkeypatch.setattr(pretrain, "rank", lambda: 1)
    [other] = dropped_in(small_trainer(dropout=0.5))
    assert not torch.equal(other, whole)


# --- Several processes against one ----------------------------------------------------------------


def test_two_processes_compute_what_one_computes(together, arguments, alone, small_text, tmp_path):
    """Also with micro-batches. The first one alone prepares the text, writes and prints."""
    new_cache = tmp_path / "cache"
    words = [str(new_cache) if word == str(small_text.cache) else word for word in arguments]
    folder = tmp_path / "two"
    outcome = together(2, [*words, "--micro_batch", 3, "--out_dir", folder])
    assert outcome.codes == [0, 0], outcome.error
    assert_same_run(folder, alone)

    assert outcome.out[0].count("preparing") == 1 and "2 processes" in outcome.out[0]
    assert outcome.out[0].count("step 20 of 20") == 1
    assert outcome.out[1] == "" and outcome.error == ["", ""]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in alone.iterdir()
    )

    # how the work was divided is noted, and is no setting
    first, *_ = log_of(folder)
    assert first["made_by"]["processes"] == 2 and first["made_by"]["micro_batch"] == 3
    assert first["settings"] == log_of(alone)[0]["settings"]


def test_more_processes_than_rows_end_with_the_result_of_one(
    together, arguments, tmp_path, monkeypatch
):
    """Most batches have one row, so two of three processes have none."""
    monkeypatch.setitem(SIZES, "tiny", TINIER)
    few = ["--batch_size", "1", "--steps", "21", "--out_dir"]
    assert pretrain.main([*arguments, *few, str(tmp_path / "alone-1")]) == 0
    outcome = together(3, [*arguments, *few, tmp_path / "three"])
    assert outcome.codes == [0, 0, 0], outcome.error
    assert_same_run(tmp_path / "three", tmp_path / "alone-1")


def test_a_dry_run_of_two_processes_ends_and_writes_nothing(together, arguments, tmp_path):
    outcome = together(2, [*arguments, "--dry_run", "--steps", 3, "--out_dir", tmp_path / "run"])
    assert outcome.codes == [0, 0], outcome.error
    assert "a step took" in outcome.out[0] and "would take" in outcome.out[0]
    assert not (tmp_path / "run").exists()


# --- Ends -----------------------------------------------------------------------------------------


def test_a_wrong_command_line_is_answered_once(together, arguments):
    outcome = together(3, [*arguments, "--seq_len", 4])
    assert outcome.codes[0] == 2 and len(outcome.messages()) == 1
    assert "--seq_len" in outcome.messages()[0] and outcome.error[1:] == ["", ""]


def test_help_ends_all_processes(together):
    outcome = together(2, ["--help"])
    assert outcome.codes == [0, 0] and "--micro_batch" in outcome.out[0]


def fail_in_second(rank):
    """The second process runs out of memory in step 7."""
    true_step = pretrain.train_step

    def step(trainer, corpus):
        if rank == 1 and trainer.step == 6:
            raise MemoryError
        true_step(trainer, corpus)

    pretrain.train_step = step


def nan_in_second(rank):
    """The loss of the second process is not a number in step 7."""
    true_loss = pretrain.masked_lm_loss
    calls = []

    def loss(logits, targets):
        calls.append(1)
        value = true_loss(logits, targets)
        if rank == 1 and len(calls) == 7:
            return value * math.nan
        return value

    pretrain.masked_lm_loss = loss


def full_disk(rank):
    """The disk is full when the checkpoint of step 10 is written."""
    true_save = torch.save

    def save(value, file, *rest):
        if value.get("step") == 10:
            raise OSError(28, "No space left on device")
        return true_save(value, file, *rest)

    torch.save = save


@pytest.mark.parametrize(
    "mistake, message, step",
    [
        (fail_in_second, "out of memory", 5),
        (nan_in_second, "the loss is nan at step 7; the checkpoint of step 5 is kept", 5),
        (full_disk, "No space left on device", 5),
    ],
)
def test_an_error_in_one_process_ends_all_with_one_message(
    together, arguments, tmp_path, mistake, message, step
):
    folder = tmp_path / "run"
    outcome = together(2, [*arguments, "--save_every", 5, "--out_dir", folder], mistake)
    assert all(outcome.codes), outcome.codes
    [line] = outcome.messages()
    assert message in line and "Traceback" not in "".join(outcome.error)
    assert load_checkpoint(folder / "train_state.pt")["step"] == step


def test_a_folder_that_another_program_uses_is_refused_once(together, arguments, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with pretrain.own_folder(folder):
        outcome = together(2, [*arguments, "--out_dir", folder])
    assert outcome.codes[0] == 2 and len(outcome.messages()) == 1
    assert "in use by process" in outcome.messages()[0]


def signal_in_second(rank, number):
    """The second process gets this signal during step 9."""
    true_step = pretrain.train_step

    def step(trainer, corpus):
        if rank == 1 and trainer.step == 8:
            os.kill(os.getpid(), number)
        true_step(trainer, corpus)

    pretrain.train_step = step


def sigterm_in_second(rank):
    signal_in_second(rank, signal.SIGTERM)


def sigkill_in_second(rank):
    signal_in_second(rank, signal.SIGKILL)


def assert_resumed(together, arguments, stopped, alone, counts):
    """So many processes continue a run of two, each a copy of it, with the same result."""
    step = load_checkpoint(stopped / "train_state.pt")["step"]
    for count in counts:
        folder = stopped.with_name(f"resumed-{count}")
        shutil.copytree(stopped, folder)
        words = [*arguments, "--out_dir", str(folder)]
        if count == 1:
            assert pretrain.main(words) == 0
        else:
            outcome = together(count, words)
            assert outcome.codes == [0] * count, outcome.error
            assert "resumed at step" in outcome.out[0]
        assert_same_run(folder, alone)

        # the log says if the number of processes changed
        expected = [(0, 2)]
        if count != 2:
            expected.append((step, count))
        assert divisions_of(folder) == expected


def test_a_signal_to_one_process_stops_all_and_one_two_or_three_resume(
    together, arguments, alone, tmp_path
):
    folder = tmp_path / "stopped"
    outcome = together(2, [*arguments, "--out_dir", folder], sigterm_in_second)
    assert outcome.codes == [128 + signal.SIGTERM] * 2, outcome.error
    assert "stopped by SIGTERM at step 9, saved" in outcome.out[0]
    assert outcome.error == ["", ""]
    assert load_checkpoint(folder / "train_state.pt")["step"] == 9
    assert_resumed(together, arguments, folder, alone, counts=(1, 2, 3))


def test_a_killed_process_ends_the_other_with_a_message_and_the_run_is_resumed(
    together, arguments, alone, tmp_path
):
    folder = tmp_path / "killed"
    words = [*arguments, "--save_every", "5", "--out_dir", str(folder)]
    outcome = together(2, words, sigkill_in_second)
    assert outcome.codes == [2, -signal.SIGKILL]
    [line] = outcome.messages()
    assert "another process of this run has ended" in line
    assert load_checkpoint(folder / "train_state.pt")["step"] == 5
    assert_resumed(together, arguments, folder, alone, counts=(1, 3))


# --- Fine-tuning ----------------------------------------------------------------------------------


def small_tasks(rank):
    """The toy tasks have 24 rows in every file."""
    rows = toy_glue.GLUE_ROWS.items()
    toy_glue.GLUE_ROWS = {name: dict.fromkeys(splits, 24) for name, splits in rows}


def second_process_first(rank):
    """As small_tasks; the first process begins to train when the second one has a result."""
    small_tasks(rank)
    if rank == 0:
        fine_tune_once = glue.fine_tune_once

        def wait_and_train(job, *rest):
            deadline = time.monotonic() + LONGEST_WAIT / 2
            while not (job.out / "results.jsonl").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            return fine_tune_once(job, *rest)

        glue.fine_tune_once = wait_and_train


def results_of(folder):
    """{(task, seed): result} of a run."""
    found = {}
    for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        found[record["task"], record["seed"]] = (record["result"], record["settings"])
    return found


def test_two_processes_share_the_tasks_and_seeds_with_the_results_of_one(
    together, alone, tmp_path, monkeypatch, capsys
):
    options = ["--data_dir", "toy", "--cache_dir", tmp_path / "glue-cache", "--device", "cpu"]
    options += ["--dtype", "fp32", "--task", "wnli", "cola", "--seeds", 2, "--epochs", 1]
    outcome = together(2, [alone, *options, "--name", "two"], second_process_first, "glue.py")
    assert outcome.codes == [0, 0] and outcome.error == ["", ""]

    # monkeypatch undoes what small_tasks does to this process
    monkeypatch.setattr(toy_glue, "GLUE_ROWS", toy_glue.GLUE_ROWS)
    small_tasks(0)
    assert glue.main([str(word) for word in [alone, *options]]) == 0
    found = results_of(alone / "two")
    assert len(found) == 4 and found == results_of(alone / "glue")

    # the first process prints what it is about; each one prints the results of its own jobs
    assert "device cpu" in outcome.out[0] and "4 jobs" in outcome.out[0]
    lines = [line for text in outcome.out for line in text.splitlines() if " seed " in line]
    results = [line for line in lines if "tokens/s" in line]
    assert len(results) == 4 and all("tokens/s" in line for line in outcome.out[1].splitlines())
    assert all("tokens/s" in text for text in outcome.out)


# --- torchrun itself ------------------------------------------------------------------------------


def start_torchrun(arguments, folder):
    """torchrun with two processes that save every 5 steps of many. Returns its Popen."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc_per_node", "2", "pretrain.py", *arguments, "--out_dir", str(folder)]
    command += ["--steps", "100000", "--save_every", "5", "--eval_every", "100000"]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def children_of(pid):
    """{rank: the number of the process} of the processes that torchrun has started."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            environment = (path / "environ").read_text().split("\0")
        except (OSError, ValueError, IndexError):
            continue
        ranks = [each.removeprefix("RANK=") for each in environment if each.startswith("RANK=")]
        if parent == pid and ranks:
            found[int(ranks[0])] = int(path.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_under_torchrun_a_killed_process_ends_the_run_with_a_message(arguments, tmp_path):
    """SIGKILL to the second process. The last checkpoint is complete."""
    folder = tmp_path / "run"
    state = folder / "train_state.pt"
    run = start_torchrun(arguments, folder)
    try:
        deadline = time.monotonic() + LONGEST_WAIT
        while not state.exists() or load_checkpoint(state)["step"] == 0:
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(children_of(run.pid)[1], signal.SIGKILL)
        out, error = run.communicate(timeout=LONGEST_WAIT)
    finally:
        run.kill()
    assert run.returncode != 0 and out.count("composite:") == 1
    lines = [line for line in error.splitlines() if line.startswith("pretrain.py: ")]
    assert len(lines) == 1, error
    assert "another process of this run has ended" in lines[0]
    assert re.search(r"rank +: 1 ", error) and load_checkpoint(state)["step"] >= 5


# --- One process, and devices ---------------------------------------------------------------------


def test_without_torchrun_the_functions_return_at_once():
    assert run_together(max, 2, 3) == 3
    assert together_file.rank() == 0 and together_file.process_count() == 1
    assert together_file.local_rank() == 0 and together_file.local_count() == 1
    assert together_file.max_over_processes(15) == 15
    assert together_file.sum_over_processes([1, 2.5]) == [1, 2.5]
    assert together_file.value_of_first("a") == "a"
    assert list(together_file.own_share("abc")) == ["a", "b", "c"]
    together_file.wait_for_all()
    together_file.let_others_begin()
    assert not distributed.is_initialized()


def test_one_process_of_torchrun_is_an_ordinary_one(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert run_together(max, 2, 3) == 3 and not distributed.is_initialized()


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(devices, "process_count", lambda: 4)
    monkeypatch.setattr(devices, "local_count", lambda: 2)
    monkeypatch.setattr(devices, "local_rank", lambda: 1)
    for name in ("auto", "cuda"):
        device, _, line = devices.choose_device(name, "fp32")
        assert device == torch.device("cuda:1") and line.startswith("4 processes")
    assert chosen == [1, 1]
    assert devices.choose_device("cpu", "fp32")[0] == CPU

    with pytest.raises(ValueError, match="--device cuda:1 is one GPU for all 4 processes"):
        devices.choose_device("cuda:1")
    monkeypatch.setattr(devices, "local_count", lambda: 3)
    with pytest.raises(ValueError, match="which has 2 GPUs: give --nproc_per_node 2"):
        devices.choose_device("cuda")


def test_apple_s_gpu_is_for_one_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.available_devices() == ["mps", "cpu"]
    monkeypatch.setattr(devices, "process_count", lambda: 2)
    assert devices.available_devices() == ["cpu"]


def test_a_model_of_shared_parameters_lists_each_once():
    model = BertForMaskedLM(BertConfig("composite", 40, **TINIER))
    one, other = model.bert.layers
    other.ffn[0] = one.ffn[0]
    optimizer = pretrain.make_optimizer(model, 0.1)
    listed = [id(x) for group in optimizer.param_groups for x in group["params"]]
    assert sorted(listed) == sorted(id(x) for x in model.parameters())


def test_an_error_of_the_first_process_is_not_hidden_by_one_of_the_store(monkeypatch):
    """If torchrun has ended, the store has ended, too."""

    class EndedStore:
        def check(self, keys):
            raise RuntimeError("the connection is closed")

    def fail():
        raise ValueError("the error that counts")

    monkeypatch.setattr(together_file, "_store", EndedStore())
    with pytest.raises(ValueError, match="the error that counts"):
        together_file.run_first(fail)
