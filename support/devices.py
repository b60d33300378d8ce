"""What the machine can do: device, precision and torch.compile."""

import contextlib
import time

import torch

from support.commands import UserError
from support.distributed import local_count, local_rank, process_count
from support.memory import is_out_of_memory

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def choose_device(device="auto", precision="auto"):
    """Choose the device and the precision of the matrix products.

    It also prepares the device. With several processes, it sets the GPU of this process. On a CPU,
    numbers that are almost 0 (subnormal numbers) become 0, because a CPU is very slow with them.
    This setting holds for this thread and for the threads that it starts afterwards, so call this
    function before any work of torch.

    Args:
        device: "cpu", "cuda", "cuda:1", "mps"; "auto" chooses the first of CUDA, MPS, CPU.
            Of several processes, each one gets its own GPU.
        precision: "fp32", "bf16"; "auto" chooses bf16 if the hardware multiplies it
            (CUDA from compute capability 8.0, CPUs with AVX512-BF16 or AMX), otherwise fp32.
    Returns:
        (torch.device, torch.dtype, a line that says what was chosen and why)
    Raises:
        UserError: this machine does not have the device.
    """
    available = available_devices()

    # the device
    if device == "auto":
        chosen = torch.device(available[0])
        why = f"the best of: {', '.join(available)}"
    else:
        chosen = existing_device(device, available)
        why = "as given"
    if process_count() > 1:
        chosen = device_of_process(chosen)

    # A CPU needs ten times as long for a product with a subnormal number (below 1.2e-38). In long
    # sequences the softmax makes many of them, most of all with ALiBi. They become 0.
    if chosen.type == "cpu":
        torch.set_flush_denormal(True)

    # On many GPUs, cuDNN may compute float32 convolutions with 11 bits of precision (TF32).
    if chosen.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False

    # the precision
    if precision != "auto":
        reason = "as given"
    elif has_fast_bf16(chosen):
        precision = "bf16"
        reason = "its hardware multiplies bf16"
    else:
        precision = "fp32"
        reason = "no fast bf16 is known for it"

    if chosen.type == "cuda":
        name = torch.cuda.get_device_name(chosen)
    else:
        name = f"threads: {torch.get_num_threads()}"
    line = f"device {chosen} ({why}; {name}), precision {precision} ({reason})"
    if process_count() > 1:
        line = f"{process_count()} processes; in the first one: {line}"
    return chosen, PRECISIONS[precision], line


def advice_on_precision(saved, settings):
    """Advice if a run was begun in another precision: the first words of a sentence.

    "--dtype auto" chooses bf16 on one machine and fp32 on another.

    Args:
        saved: the settings of the saved run. "dtype" is the name in torch, such as "bfloat16".
        settings: those with which the user wants to continue it.
    Returns:
        "give --dtype bf16, or "; "" if both have the same precision.
    """
    if saved.get("dtype") == settings.get("dtype"):
        return ""
    for option, dtype in PRECISIONS.items():
        if str(dtype) == f"torch.{saved.get('dtype')}":
            return f"give --dtype {option}, or "
    return ""


def available_devices():
    """The kinds of devices that torch can use on this machine, the fastest first."""
    kinds = []
    if torch.cuda.is_available():
        kinds.append("cuda")
    # torch can connect several processes only on CUDA and on CPUs
    if torch.backends.mps.is_available() and process_count() == 1:
        kinds.append("mps")
    kinds.append("cpu")
    return kinds


def existing_device(name, available):
    """torch.device(name). Raises UserError if this machine does not have it."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}; the devices are: cuda, mps, cpu") from None

    if device.type == "cuda" and "cuda" in available:
        count = torch.cuda.device_count()
    else:
        count = 1
    if device.type not in available or (device.index or 0) >= count:
        raise UserError(f"this machine has no device {name!r} that torch can use")
    return device


def device_of_process(device):
    """The device of one of several processes: each one has a GPU of its own; all share the CPU."""
    if device.type != "cuda":
        return device

    # cuda:1 would be the same GPU for all
    if device.index is not None:
        raise UserError(
            f"--device {device} is one GPU for all {process_count()} processes: give --device cuda"
        )
    gpus = torch.cuda.device_count()
    if local_count() > gpus:
        raise UserError(
            f"torchrun started {local_count()} processes on this machine, which has {gpus} GPUs: "
            f"give --nproc_per_node {gpus}"
        )
    torch.cuda.set_device(local_rank())
    return torch.device("cuda", local_rank())


def has_fast_bf16(device):
    """Whether the device has instructions that multiply bf16 matrices faster than float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type != "cpu":
        return False

    # An older torch, such as 2.2, the last one for Macs with an Intel processor, cannot tell.
    if not hasattr(torch.cpu, "get_capabilities"):
        return False
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def autocast(device, dtype):
    """The context of a forward pass: bf16 matrix products over float32 weights, or plain float32.

    bf16 (bfloat16) has the range of float32 and 8 bits of precision instead of 24.
    """
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)


def dtype_name(dtype):
    """torch.bfloat16 -> "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def to_device(x, device):
    """The tensor x on a device. On CUDA it is copied while the CPU and the GPU go on.

    A copy from ordinary memory would wait until the GPU has finished all earlier work. From pinned
    memory, which the operating system does not move, the GPU copies by itself.
    """
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def synchronize(device):
    """Wait until the device has done all its work, so that a clock can be read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def compile_encoder(encoder, input_ids, precision):
    """torch.compile the encoder in place, and try it. Returns whether it is compiled.

    On a GPU the encoder is compiled in one piece. On a CPU it is compiled layer by layer: equal
    layers are compiled only once, so compiling takes a third of the time. The compiled code serves
    batches of any number of rows. Some variants need other code for some widths: it is compiled
    when such a width first occurs. If compiling fails, one line says so and the encoder runs
    uncompiled. If only a later width cannot be compiled, torch prints a warning, and this code
    runs uncompiled.

    Args:
        encoder: a model.Bert.
        input_ids: (B, N), a batch of the shape that is compiled first.
        precision: the context of a forward pass (`autocast`).
    """
    parts = list(encoder.layers)
    if input_ids.device.type == "cuda":
        parts = [encoder]

    start = time.perf_counter()
    try:
        # Forget the graphs of the previous run; allow one graph for each width of a batch.
        # dynamic=True: the shape of a batch is a variable of the compiled code.
        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = 128
        torch._dynamo.config.suppress_errors = False  # in the trial below, an error must be seen
        # With several processes, torch would cut the graphs where the gradients are sent. It cannot
        # cut graphs with an autograd function such as that of kernels.py.
        torch._dynamo.config.optimize_ddp = False
        for part in parts:
            part.compile(dynamic=True)

        # One forward and backward pass compiles both. Training gives a mask: without one, torch
        # would compile code that training does not use.
        attention_mask = torch.ones_like(input_ids, dtype=torch.bool)  # (B, N)
        with precision:
            hidden = encoder(input_ids, attention_mask)  # (B, N, C)
        hidden.float().sum().backward()
        compiled = True

        # What cannot be compiled later, for another width or an evaluation, runs uncompiled.
        torch._dynamo.config.suppress_errors = True
    except Exception as error:
        # The run itself does not fit: uncompiled, it would not fit either.
        if is_out_of_memory(error):
            raise

        # No compiler, or an unsupported GPU: uncompiled code computes the same.
        kind = type(error).__name__
        print(f"  torch.compile does not work here ({kind}); running uncompiled")
        for part in parts:
            part._compiled_call_impl = None  # torch has no public way to undo part.compile()
        compiled = False
    encoder.zero_grad()

    if compiled:
        seconds = time.perf_counter() - start
        B, N = input_ids.shape
        print(
            f"  first step: {seconds:.0f} s to compile batches of {B} x {N} (--no-compile starts "
            "at once); other widths may be compiled when they first occur"
        )
    return compiled
