"""support/limits.py: what cannot fit into the memory is refused, and the largest that could fit."""

import re

import numpy as np
import pytest
import torch

import pretrain
from data import prepare_corpus
from model import BertConfig, BertForMaskedLM, parameter_count
from model_helpers import small_config
from support import distributed, limits

CPU = torch.device("cpu")
GIB = 2**30
LENGTHS = np.array([10, 20, 30])


def check(batch_size, config=None, dtype=torch.float32, micro_batch=None):
    config = config or small_config()
    limits.check_memory(BertForMaskedLM, config, batch_size, LENGTHS, 0.15, CPU, dtype, micro_batch)


def have(monkeypatch, memory):
    monkeypatch.setattr(limits, "memory_of", lambda device: memory)


def bytes_of_a_pair(config, dtype=torch.float32):
    """The formula of the module's docstring, written out. A pair has 20 tokens on average."""
    itemsize = 2 if dtype == torch.bfloat16 else 4
    encoder = 20 * config.layers * (config.hidden_size + config.ffn_size) * itemsize
    head = 0.15 * 17 * 2 * config.vocab_size * 4
    return encoder + head


def number_in(error, option):
    """The number that the message of an error advises for an option."""
    message = str(error.value)
    assert "\n" not in message and "1.0 GiB" in message
    return int(re.search(f"; {option} ([0-9,]+) is", message)[1].replace(",", ""))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_micro_batch_that_could_fit_is_named_and_is_accepted(monkeypatch, dtype):
    have(monkeypatch, GIB)
    with pytest.raises(ValueError, match="the largest that could fit") as error:
        check(200_000, dtype=dtype)

    config = small_config()
    fixed = 16 * parameter_count(BertForMaskedLM(config)) + 200_000 * 24 * 20
    largest = number_in(error, "--micro_batch")
    assert largest == int((GIB - fixed) / bytes_of_a_pair(config, dtype))
    check(200_000, dtype=dtype, micro_batch=largest)
    with pytest.raises(ValueError, match="the largest that could fit"):
        check(200_000, dtype=dtype, micro_batch=largest + 1)


def test_the_largest_batch_whose_ids_could_fit_is_named_and_is_accepted(monkeypatch):
    have(monkeypatch, GIB)
    with pytest.raises(
        ValueError, match="the largest that could fit, with --micro_batch 1"
    ) as error:
        check(2**31 - 1, micro_batch=1)
    largest = number_in(error, "--batch_size")
    check(largest, micro_batch=1)
    with pytest.raises(ValueError, match="the largest that could fit"):
        check(largest + 1, micro_batch=1)


def test_a_batch_in_one_part_has_no_gradients_while_its_loss_is_computed(monkeypatch):
    """12 bytes per parameter, not 16: a batch that just fits is not refused."""
    config = small_config()
    pair = bytes_of_a_pair(config) + 24 * 20
    have(monkeypatch, int(12 * parameter_count(BertForMaskedLM(config)) + 90_000 * pair) + 1)
    check(90_000)
    with pytest.raises(ValueError, match="the largest that could fit"):
        check(90_001)


def test_the_processes_of_a_machine_share_its_memory_and_the_batch(monkeypatch):
    """There is room for 20,000 pairs at a time of 60,000."""
    config = small_config()
    fixed = 16 * parameter_count(BertForMaskedLM(config)) + 60_000 * 24 * 20
    memory = int(fixed + 20_000 * bytes_of_a_pair(config))
    have(monkeypatch, memory)
    for count, pairs in ((1, "60,000"), (2, "30,000")):
        monkeypatch.setattr(distributed, "process_count", lambda count=count: count)
        with pytest.raises(ValueError, match=f"{pairs} pairs at a time"):
            check(60_000)
    monkeypatch.setattr(distributed, "process_count", lambda: 3)
    check(60_000)

    monkeypatch.setattr(limits, "local_count", lambda: 3)
    assert limits.memory_of_process(CPU) == memory // 3
    with pytest.raises(ValueError, match="20,000 pairs at a time"):
        check(60_000)


# --- What a dry run measures ----------------------------------------------------------------------


def test_the_memory_of_more_pairs_is_on_the_line_through_the_measurements():
    peaks = {2: 300, 4: 400, 10: 700}
    assert limits.memory_for(10, peaks) == 700 and limits.memory_for(20, peaks) == 1200
    assert limits.memory_for(20, {5: 100}) == 100


def test_a_dry_run_says_which_micro_batch_fits():
    mib = 2**20
    peaks = {2: 300 * mib, 4: 400 * mib}
    assert limits.memory_line(peaks, 16, 1000 * mib) == (
        "a step took 300 MiB with 2 pairs at a time, 400 MiB with 4 pairs at a time; "
        "there are 1,000 MiB, so by linear extrapolation all 16 pairs of a step fit at once"
    )
    line = limits.memory_line(peaks, 17, 1000 * mib)
    assert line.endswith("so by linear extrapolation --micro_batch 16 would fit")
    line = limits.memory_line(peaks, 17, 250 * mib)
    assert line.endswith("so by linear extrapolation --micro_batch 1 would fit")


def test_a_dry_run_says_if_not_even_one_pair_fits_or_if_it_cannot_know():
    mib = 2**20
    for peaks in ({2: 300 * mib, 4: 400 * mib}, {1: 300 * mib}):
        line = limits.memory_line(peaks, max(peaks), 200 * mib)
        assert "extrapolation not even a single pair would fit: choose a smaller" in line
    line = limits.memory_line({1: 300 * mib}, 256, 400 * mib)
    assert "fit at once" not in line and "measure with a larger --micro_batch" in line


def test_the_peak_of_a_call_is_forgotten_before_the_next_one():
    large = limits.peak_memory(CPU, lambda: torch.ones(1 << 26).sum())  # 256 MiB
    if large is None:
        pytest.skip("this system does not say it")
    small = limits.peak_memory(CPU, lambda: None)
    assert 200 < (large - small) / 2**20 < 400


def test_the_free_memory_of_a_cpu_is_that_of_the_machine(monkeypatch):
    have(monkeypatch, 5 * GIB)
    assert limits.free_memory(CPU) == 5 * GIB


# --- What is refused ------------------------------------------------------------------------------


def test_a_model_that_cannot_fit_alone_is_refused_with_other_advice(monkeypatch):
    parameters = parameter_count(BertForMaskedLM(small_config()))
    have(monkeypatch, 16 * parameters - 1)
    with pytest.raises(ValueError, match="a smaller --size or --seq_len"):
        check(1)
    have(monkeypatch, 100 * parameters)
    check(1)


def test_positions_that_no_machine_has_are_refused_without_making_them():
    config = BertConfig.from_size("tiny", "absolute", 100, max_length=2**31 - 1)
    with pytest.raises(ValueError, match="a smaller --size or --seq_len"):
        check(1, config)


def test_a_machine_of_unknown_memory_refuses_nothing(monkeypatch):
    have(monkeypatch, None)
    check(2**31 - 1)


def test_the_memory_of_this_machine_is_more_than_a_quarter_gibibyte_or_unknown(monkeypatch):
    memory = limits.memory_of(CPU)
    assert memory is None or memory > GIB / 4
    monkeypatch.delattr("os.sysconf", raising=False)  # as on Windows
    assert limits.memory_of(CPU) is None


def test_the_memory_of_a_container_is_its_limit(monkeypatch, tmp_path):
    machine = limits.memory_of(CPU)
    if machine is None:
        pytest.skip("the memory of this machine is unknown")
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(limits, "CONTAINER_LIMIT", limit)
    limit.write_text("1048576\n")
    assert limits.memory_of(CPU) == 2**20

    # no limit, or a limit above the memory of the machine
    for text in ("max\n", f"{10**18}\n"):
        limit.write_text(text)
        assert limits.memory_of(CPU) >= machine


def test_the_memory_of_a_gpu_is_its_own(monkeypatch):
    class Properties:
        total_memory = 5 * GIB

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert limits.memory_of(torch.device("cuda")) == 5 * GIB


@pytest.fixture
def main(small_text, run_program, monkeypatch):
    """main(*arguments) pre-trains on the small text with a memory of 8 GiB."""
    have(monkeypatch, 8 * GIB)
    first = ["--corpus", small_text.file, "--cache_dir", small_text.cache, "--device", "cpu"]
    first += ["--dtype", "fp32", "--seq_len", 32]

    def call(*arguments):
        return run_program("pretrain.py", pretrain.main, *first, *arguments)

    return call


def test_a_dry_run_of_too_many_pairs_at_a_time_ends_before_they_are_computed(main, monkeypatch):
    """A step takes 100 MiB per pair, and there are 500 MiB."""
    computed = []

    def peak_memory(device, run):
        run()
        trainer = run.args[0]
        computed.append(trainer.micro_batch)
        return trainer.micro_batch * 100 * 2**20

    monkeypatch.setattr(pretrain, "peak_memory", peak_memory)
    monkeypatch.setattr(pretrain, "free_memory", lambda device: 500 * 2**20)
    arguments = ["--dry_run", "--steps", 2, "--batch_size", 8, "--micro_batch"]
    code, out, _ = main(*arguments, 8)
    assert code == 0 and computed[:2] == [2, 4] and len(computed) == 2
    assert "--micro_batch 5 would fit" in out and "too many pairs at a time" in out

    code, out, _ = main(*arguments, 3)
    assert code == 0 and computed[2:] == [1, 3]
    assert "--micro_batch 5 would fit" in out and "would take" in out


@pytest.mark.parametrize("option", [[], ["--dry_run"]])
def test_a_batch_beyond_the_memory_is_refused_before_a_folder_is_made(main, tmp_path, option):
    out_dir = tmp_path / "run"
    code, _, error = main("--batch_size", 2**31 - 1, "--out_dir", out_dir, *option)
    assert code == 2 and error.count("\n") == 1 and not out_dir.exists()
    assert error.startswith("pretrain.py: composite with") and "is the largest that could" in error


def test_more_pairs_per_step_than_pairs_to_train_on_are_said(main, small_text, tmp_path):
    corpus = prepare_corpus([str(small_text.file)], small_text.cache, 32, log=lambda line: None)
    pairs = len(corpus.train)
    arguments = ["--steps", 1, "--out_dir"]
    line = f"--batch_size is above the {pairs} training pairs"
    code, out, _ = main("--batch_size", pairs, *arguments, tmp_path / "a")
    assert code == 0 and line not in out
    code, out, _ = main("--batch_size", pairs + 1, *arguments, tmp_path / "b")
    assert code == 0 and line in out
