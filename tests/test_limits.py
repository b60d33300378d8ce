"""support/limits.py: what cannot fit into the memory is refused, and the largest that could fit."""

import re

import numpy as np
import pytest
import torch

import pretrain
from data import prepare_corpus
from model import BertConfig, BertForMaskedLM, parameter_count
from model_helpers import small_config
from support import limits

CPU = torch.device("cpu")
GIB = 2**30
LENGTHS = np.array([10, 20, 30])


def check(batch_size, config=None, dtype=torch.float32):
    config = config or small_config()
    limits.check_memory(BertForMaskedLM, config, batch_size, LENGTHS, 0.15, CPU, dtype)


def have(monkeypatch, memory):
    monkeypatch.setattr(limits, "memory_of", lambda device: memory)


def largest_batch(config, memory, dtype=torch.float32):
    """The formula of the module's docstring, written out. A pair has 20 tokens on average."""
    itemsize = 2 if dtype == torch.bfloat16 else 4
    encoder = 20 * config.layers * (config.hidden_size + config.ffn_size) * itemsize
    head = 0.15 * 17 * 2 * config.vocab_size * 4
    parameters = parameter_count(BertForMaskedLM(config))
    return int((memory - 12 * parameters) / (encoder + head))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_batch_that_could_fit_is_named_and_is_accepted(monkeypatch, dtype):
    have(monkeypatch, GIB)
    with pytest.raises(ValueError, match="the largest that could fit") as error:
        check(2**31 - 1, dtype=dtype)
    message = str(error.value)
    assert "\n" not in message and "1.0 GiB" in message

    largest = int(re.search(r"; --batch_size ([0-9,]+) is", message)[1].replace(",", ""))
    assert largest == largest_batch(small_config(), GIB, dtype)
    check(largest, dtype=dtype)
    with pytest.raises(ValueError, match="the largest that could fit"):
        check(largest + 1, dtype=dtype)


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
