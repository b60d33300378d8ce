"""support/devices.py: device and precision, memory on a CPU, torch.compile and its fallback."""

import contextlib

import pytest
import torch

from model_helpers import every_word_once, small_model
from support import memory
from support.devices import autocast, choose_device, compile_encoder, to_device
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


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


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


def test_precision_of_a_cpu_is_float32_in_an_older_torch(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert choose_device("cpu")[1] == torch.float32


def test_precision_of_an_apple_gpu_is_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("mps")[1] == torch.float32


@pytest.mark.parametrize("precision, dtype", [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_given_precision_is_taken_as_it_is(gpu, precision, dtype):
    gpu((7, 5))
    for device in ("cpu", "cuda:0"):
        chosen, found, reason = choose_device(device, precision)
        assert str(chosen) == device and found == dtype and "as given" in reason


def test_the_best_device_is_chosen_and_the_line_says_of_which(gpu, no_gpu, monkeypatch):
    device, _, reason = choose_device("auto", "fp32")
    assert device == CPU and "the best of: cpu" in reason

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    device, _, reason = choose_device("auto", "fp32")
    assert device.type == "mps" and "the best of: mps, cpu" in reason

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    device, _, reason = choose_device("auto", "fp32")
    assert device.type == "cuda" and "the best of: cuda, mps, cpu" in reason


def test_convolutions_in_float32_have_the_precision_of_float32_on_a_gpu(gpu, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    gpu((8, 0))
    choose_device("cuda", "fp32")
    assert torch.backends.cudnn.allow_tf32 is False


class OnCpu:
    """Stands for a tensor on the CPU. It notes how it is copied."""

    device = CPU

    def __init__(self):
        self.calls = []

    def pin_memory(self):
        self.calls.append("pin_memory")
        return self

    def to(self, device, non_blocking=False):
        self.calls.append((device.type, non_blocking))
        return self


def test_a_tensor_is_copied_to_cuda_from_pinned_memory_without_waiting():
    x = OnCpu()
    assert to_device(x, torch.device("cuda", 0)) is x
    assert x.calls == ["pin_memory", ("cuda", True)]

    # not elsewhere
    for kind in ("mps", "cpu"):
        x = OnCpu()
        to_device(x, torch.device(kind))
        assert x.calls == [(kind, False)]
    x = torch.ones(2)
    assert to_device(x, CPU) is x


@pytest.mark.parametrize("device", ["tpu9", "xla", "meta", "cpu:3", "cuda:99", ""])
def test_a_device_that_is_not_there_is_refused_in_one_line(device):
    with pytest.raises(ValueError, match=repr(device)) as error:
        choose_device(device)
    assert "\n" not in str(error.value)


def test_a_gpu_that_is_not_there_is_refused(gpu, no_gpu, monkeypatch):
    with pytest.raises(ValueError, match="no device 'cuda'"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("cuda:0", "fp32")[0] == torch.device("cuda:0")
    with pytest.raises(ValueError, match="no device 'cuda:1'"):
        choose_device("cuda:1", "fp32")


def test_autocast_multiplies_in_the_precision_and_keeps_the_weights():
    layer = torch.nn.Linear(3, 3)
    with autocast(CPU, torch.bfloat16):
        assert layer(torch.randn(2, 3)).dtype == torch.bfloat16
    with autocast(CPU, torch.float32):
        assert layer(torch.randn(2, 3)).dtype == torch.float32
    assert layer.weight.dtype == torch.float32


# --- Memory on a CPU ------------------------------------------------------------------------------


class LibC:
    """A C library whose mallopt notes its calls and answers each of them with `answer`."""

    def __init__(self, answer):
        self.answer = answer
        self.calls = []

    def mallopt(self, name, value):
        self.calls.append((name, value))
        return self.answer


@pytest.mark.parametrize("answer, calls", [(1, 2), (0, 1)])
def test_freed_memory_is_kept_only_if_the_first_call_is_accepted(monkeypatch, answer, calls):
    """A library that refuses the first threshold would lose by the second one."""
    libc = LibC(answer)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: libc)
    keep_freed_memory()
    mmap_threshold = (-3, 2**31 - 1)
    trim_threshold = (-1, 2**31 - 1)
    assert libc.calls == [mmap_threshold, trim_threshold][:calls]


@pytest.mark.parametrize("error", [OSError("no library"), TypeError("Windows needs a name")])
def test_a_system_without_a_c_library_is_left_as_it_is(monkeypatch, error):
    def refuse(name):
        raise error

    monkeypatch.setattr(memory.ctypes, "CDLL", refuse)
    keep_freed_memory()


def test_a_c_library_without_mallopt_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    keep_freed_memory()


def test_results_are_the_same_before_and_after_memory_is_kept():
    model = small_model()
    before = model(every_word_once())
    keep_freed_memory()
    assert torch.equal(model(every_word_once()), before)


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU cannot flush them")
def test_on_a_cpu_numbers_below_the_smallest_normal_one_become_0(no_gpu):
    torch.set_flush_denormal(False)
    small = torch.tensor(1e-30)
    assert (small * 1e-10).item() > 0

    choose_device("cpu")
    assert (small * 1e-10).item() == 0


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


def test_errors_of_the_compiler_are_passed_over_only_after_the_trial(monkeypatch):
    """Also in a second run, after an earlier success."""
    config = torch._dynamo.config
    config.suppress_errors = True
    seen = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: None)
    bert = small_model().bert
    bert.register_forward_pre_hook(lambda module, inputs: seen.append(config.suppress_errors))
    assert compile_encoder(bert, full_batch(), contextlib.nullcontext())
    assert seen == [False]
    assert config.suppress_errors


def test_what_is_compiled_is_the_call_of_training_with_a_mask(monkeypatch):
    """Without a mask, torch would compile code for a mask of None, which training never uses."""
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **options: None)
    model = small_model()
    calls = []
    model.bert.register_forward_pre_hook(lambda module, inputs: calls.append(inputs))
    assert compile_encoder(model.bert, full_batch(), contextlib.nullcontext())

    ((input_ids, attention_mask),) = calls
    assert torch.equal(input_ids, full_batch())
    assert attention_mask.dtype == torch.bool
    assert attention_mask.shape == input_ids.shape


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=["GPU", "CPU"],
)
def test_a_full_memory_is_not_taken_for_a_missing_compiler(monkeypatch, error):
    def compile_full(module, **options):
        raise error

    monkeypatch.setattr(torch.nn.Module, "compile", compile_full)
    with pytest.raises(type(error), match="memory"):
        compile_encoder(small_model().bert, full_batch(), contextlib.nullcontext())
