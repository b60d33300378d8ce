"""support/devices.py: device and precision, memory on a CPU, torch.compile and its fallback."""

import contextlib

import pytest
import torch

from model_helpers import every_word_once, small_model
from support.devices import autocast, choose_device, compile_encoder
from support.memory import keep_freed_memory

CPU = torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that this machine has one CUDA GPU. gpu(capability) sets its generation."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")

    def set_capability(capability):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    return set_capability


@pytest.fixture(autouse=True)
def errors_of_the_compiler_as_before():
    """compile_encoder changes this setting of torch; other tests must not find it changed."""
    before = torch._dynamo.config.suppress_errors
    yield
    torch._dynamo.config.suppress_errors = before


# --- Device and precision -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "capability, dtype",
    [((7, 5), torch.float32), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)],
)
def test_precision_of_a_gpu_is_bf16_only_if_it_is_fast_there(gpu, capability, dtype):
    gpu(capability)
    device, chosen, reason = choose_device()
    assert device.type == "cuda" and chosen == dtype
    assert "a GPU" in reason and "bf16" in reason and "\n" not in reason


@pytest.mark.parametrize(
    "capability, dtype",
    [
        ("avx2", torch.float32),
        ("avx512_bf16", torch.bfloat16),
        ("amx_bf16", torch.bfloat16),
    ],
)
def test_precision_of_a_cpu_is_bf16_only_if_it_is_fast_there(monkeypatch, capability, dtype):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {capability: True}, raising=False)
    device, chosen, reason = choose_device("cpu")
    assert device == CPU and chosen == dtype and "bf16" in reason


@pytest.mark.parametrize("device", ["tpu9", "xla", "meta", "cpu:3", "cuda:99", ""])
def test_a_device_that_is_not_there_is_refused_in_one_line(device):
    with pytest.raises(ValueError, match=repr(device)) as error:
        choose_device(device)
    assert "\n" not in str(error.value)


def test_autocast_multiplies_in_the_precision_and_keeps_the_weights():
    layer = torch.nn.Linear(3, 3)
    with autocast(CPU, torch.bfloat16):
        assert layer(torch.randn(2, 3)).dtype == torch.bfloat16
    with autocast(CPU, torch.float32):
        assert layer(torch.randn(2, 3)).dtype == torch.float32
    assert layer.weight.dtype == torch.float32


# --- Memory on a CPU ------------------------------------------------------------------------------


def test_results_are_the_same_before_and_after_memory_is_kept():
    model = small_model()
    before = model(every_word_once())
    keep_freed_memory()
    assert torch.equal(model(every_word_once()), before)


# --- torch.compile --------------------------------------------------------------------------------


def full_batch():
    return torch.full((2, 8), 5)


def test_an_encoder_that_cannot_be_compiled_runs_uncompiled_and_one_line_says_so(
    monkeypatch, capsys
):
    def compile_broken(module, *arguments, **options):
        def no_compiler(*arguments, **options):
            raise RuntimeError("no compiler\nwas found")

        module._compiled_call_impl = no_compiler

    monkeypatch.setattr(torch.nn.Module, "compile", compile_broken)
    model = small_model()
    expected = small_model()(every_word_once())
    assert not compile_encoder(model.bert, full_batch(), contextlib.nullcontext())

    out = capsys.readouterr().out
    assert out.count("running uncompiled") == 1 and "RuntimeError" in out and out.count("\n") == 1
    assert torch.equal(model(every_word_once()), expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_compiled_encoder_computes_the_same_and_one_line_says_how_long_it_took(
    monkeypatch, capsys
):
    """The backend "eager" traces the layers as a compiler would, and then runs them as they are."""
    compile_module = torch.nn.Module.compile

    def compile_eager(module, **options):
        compile_module(module, backend="eager", **options)

    monkeypatch.setattr(torch.nn.Module, "compile", compile_eager)
    model = small_model()
    expected = small_model()(every_word_once())
    assert compile_encoder(model.bert, full_batch(), autocast(CPU, torch.float32))

    out = capsys.readouterr().out
    assert "2 x 8" in out and "first step" in out and out.count("\n") == 1
    assert all(layer._compiled_call_impl is not None for layer in model.bert.layers)
    assert torch.allclose(model(every_word_once()), expected, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())
