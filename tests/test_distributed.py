"""Several processes compute what one process computes, also after a signal or a kill.

Processes are started with the variables that torchrun sets, by forks of one server that has
imported the project once.
"""

import os
import signal

import pytest
from torch import distributed

import pretrain
from conftest import assert_same_run, be_pretrain, log_of, needs_signals, start_process
from support.files import load_checkpoint

pytestmark = needs_signals


# --- Processes as torchrun starts them ------------------------------------------------------------


def be_process(rank, port, signal_number, words):
    """One of two processes: pretrain.py. The second one gets this signal in its ninth step."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(number) for name, number in numbers.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    true_step = pretrain.train_step

    def step(trainer, *arguments):
        if rank == 1 and trainer.step == 8 and signal_number is not None:
            os.kill(os.getpid(), signal_number)
        true_step(trainer, *arguments)

    pretrain.train_step = step
    be_pretrain(words)


def run_two(words, signal_number=None):
    """Run pretrain.py in two processes. Returns their exit codes."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = []
    for rank in range(2):
        processes.append(start_process(be_process, rank, store.port, signal_number, words))
    for process in processes:
        process.join(60)  # none of them may hang
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes


@pytest.fixture
def words(short_run):
    """words(folder, options): a run of 20 steps in float32, without dropout."""
    return lambda folder, options="--steps 20": short_run(
        "--steps 20", options, "--out_dir", folder
    )


# --- Pre-training ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["--micro_batch 3", "--batch_size 1 --steps 21"])
def test_two_processes_compute_what_one_computes(words, tmp_path, options):
    """With micro-batches, and if most batches have fewer sentences than there are processes."""
    pretrain.main(words(tmp_path / "alone", options))
    assert run_two(words(tmp_path / "two", options)) == [0, 0]
    assert_same_run(tmp_path / "two", tmp_path / "alone", 1e-5)


@pytest.mark.parametrize("number, step", [(signal.SIGTERM, 9), (signal.SIGKILL, 8)])
def test_a_signal_to_one_process_ends_all_and_two_or_one_continue(words, tmp_path, number, step):
    """They stop together after the step of the signal. After a kill, the run is as last saved."""
    stopped = tmp_path / "stopped"
    codes = run_two(words(stopped), number)
    assert codes[0] not in (0, None) and codes[1] in (-number, 128 + number)
    assert load_checkpoint(stopped / "corpus-composite" / "train_state.pt")["step"] == step

    pretrain.main(words(tmp_path / "alone"))
    if number == signal.SIGTERM:
        assert run_two(words(stopped)) == [0, 0]
    else:
        pretrain.main(words(stopped))
    assert_same_run(stopped, tmp_path / "alone", 1e-5)


def test_two_processes_find_their_run_and_take_another_folder_for_other_settings(words, tmp_path):
    options = "--steps 4"
    for lr in ("1e-3", "2e-3", "1e-3"):
        assert run_two(words(tmp_path, f"{options} --lr {lr}")) == [0, 0]
    folders = sorted(path.name for path in tmp_path.glob("corpus-*"))
    assert folders == ["corpus-composite", "corpus-composite-2"]
    assert [log_of(tmp_path / name)[0]["settings"]["lr"] for name in folders] == [1e-3, 2e-3]
    assert [log_of(tmp_path / name)[-1]["step"] for name in folders] == [4, 4]
