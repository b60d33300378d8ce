"""A GPU without a GPU: a device of torch whose numbers are computed on the CPU.

Two mistakes cannot be seen on a CPU, and are often made for a GPU:

1. A tensor is left on the CPU, such as torch.arange(N) without device=. Tensors of two devices
   cannot be used together.
2. The CPU waits for the GPU. Usually the CPU only hands over work, and the GPU does it later. But
   to read a result, as in x.item(), the CPU waits until all earlier work is done. Then the GPU has
   nothing to do until it gets new work:

       CPU   A B item() waits ......... C D
       GPU     A A A A A B B B B B B B B   C C C C C D D D D D

In a `with pretended_device():` block both are errors, whose tracebacks show the line. The trick:
torch lets a program add a device of its own, and it lets the program see each operation before it
is computed. So a tensor of this device is a shell around a CPU tensor:

    x = torch.ones(3, device=DEVICE)    x is a DeviceTensor: shape, dtype, device and gradient
                                        x.raw is a CPU tensor: the numbers

    x + y                               1. Are x and y on one device?
                                        2. Does the CPU go on without waiting?
                                        3. Then the result is DeviceTensor(x.raw + y.raw).

Random numbers are drawn on the CPU, so masks, dropout and losses equal those of the CPU.
"""

from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

# This cannot be undone, but it changes nothing for the other devices.
_setup_privateuseone_for_python_backend("pretended")
torch.pretended.get_amp_supported_dtype = lambda: []  # torch.utils.checkpoint asks for it
DEVICE = torch.device("pretended", 0)
CPU = torch.device("cpu")

aten = torch.ops.aten  # torch's operations; x + y is aten.add
COPIES = (aten._to_copy, aten.copy_)  # x.to(device), x.copy_(y)
INDEXING = (aten.index, aten.index_put, aten.index_put_)  # x[y], x[y] = z
# torch's own marks of operations whose result, or whose shape, depends on the numbers in a tensor
READS_NUMBERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class DeviceTensor(torch.Tensor):
    """A tensor of the pretended device. `raw`: the CPU tensor with its numbers."""

    @staticmethod
    def __new__(cls, raw):
        return torch.Tensor._make_wrapper_subclass(
            cls, raw.size(), raw.stride(), raw.storage_offset(), dtype=raw.dtype, device=DEVICE
        )

    def __init__(self, raw):
        self.raw = raw

    @classmethod
    def __torch_dispatch__(cls, operation, *_):
        raise RuntimeError(f"{operation} outside of `with pretended_device():`")

    def __reduce_ex__(self, protocol):
        """torch.save writes the CPU tensor: load_checkpoint loads all tensors to the CPU."""
        return self.raw.__reduce_ex__(protocol)


class Generator(torch.Generator):
    """torch.Generator(DEVICE), which draws on the CPU."""

    def __new__(cls, device=CPU):
        return super().__new__(cls, CPU)


class EveryOperation(TorchDispatchMode):
    """In a `with` block of it, torch calls __torch_dispatch__ in place of every operation."""

    may_wait = False
    backward_mistake = None

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        """Check an operation, do it on the CPU, and put the result on the right device."""
        inputs = tensors_in(arguments)
        on_device = [x for x in inputs if isinstance(x, DeviceTensor)]
        on_cpu = [x for x in inputs if not isinstance(x, DeviceTensor)]

        # The result is on the device that is asked for, or else on that of the inputs.
        options = dict(options or {})
        device = options.get("device") or (DEVICE if on_device else CPU)
        is_ours = device.type == DEVICE.type
        if "device" in options:
            options["device"] = CPU

        # In a backward pass torch would end the program at an error. So it is kept for later.
        if is_ours or on_device:
            mistake = mistake_of(operation, arguments, options, on_cpu, is_ours, self.may_wait)
            if mistake and torch._C._current_graph_task_id() == -1:  # not in a backward pass
                raise RuntimeError(mistake)
            self.backward_mistake = self.backward_mistake or mistake

        if operation.overloadpacket is aten._pin_memory:  # no such memory here, but a mark
            result = on_cpu[0].clone()
            result.is_pinned_here = True
        else:
            result = operation(*change(raw_of, arguments), **options)
        if not is_ours:
            return result

        # Every result gets a shell. But the result of x.add_(y) is x itself, which has one.
        shells = {id(raw_of(x)): x for x in inputs}
        return change(lambda x: shells.setdefault(id(x), DeviceTensor(x)), result)


def mistake_of(operation, arguments, options, on_cpu, is_ours, may_wait):
    """What a GPU would refuse, or could not do without waiting. None if there is nothing."""
    name = operation.overloadpacket

    # A copy waits, except from pinned memory to the device: to_device (support/devices.py).
    if name in COPIES:
        is_ready = all(hasattr(x, "is_pinned_here") for x in on_cpu)
        waits = not is_ours or (len(on_cpu) > 0 and not (is_ready and options.get("non_blocking")))
    else:
        waits = reads_numbers(operation, arguments)
    if waits and not may_wait:
        return f"{operation}: the CPU waits for the device"

    # As on CUDA, a single number of the CPU can be used everywhere.
    shapes = [tuple(x.shape) for x in on_cpu if x.dim() > 0]
    if shapes and name not in COPIES:
        return f"{operation}: tensors of the shapes {shapes} are on the CPU"
    return None


def reads_numbers(operation, arguments):
    """Whether the CPU must know numbers in a tensor to go on."""
    if operation.overloadpacket in INDEXING:
        # a mask as an index: the CPU must know how many numbers it selects
        return any(index.dtype == torch.bool for index in tensors_in(arguments[1]))
    return not READS_NUMBERS.isdisjoint(operation.tags)


def raw_of(x):
    return x.raw if isinstance(x, DeviceTensor) else x


def change(function, value):
    """function(x) for each tensor x in a value, which may be a list or a tuple of values."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(change(function, each) for each in value)
    return value


def tensors_in(value):
    found = []
    change(found.append, value)
    return found


@contextmanager
def pretended_device():
    """In this block DEVICE can be used, and waiting for it is an error."""
    with (
        EveryOperation() as operations,
        patch("torch.Generator", Generator),
        # model.to(DEVICE) must keep each parameter the same Python object: layers may share one.
        patch("torch.__future__._swap_module_params_on_conversion", True),
        # By default, autograd has a thread of its own for each device.
        torch.autograd.set_multithreading_enabled(False),
    ):
        yield
    assert operations.backward_mistake is None, f"backward pass: {operations.backward_mistake}"


def waiting_allowed():
    """A block, or a decorator, for code that has to read results, such as an evaluation."""
    return patch.object(EveryOperation, "may_wait", True)
