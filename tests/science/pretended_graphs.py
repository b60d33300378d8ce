"""CUDA graphs without a GPU: operations of the CPU are recorded, and replayed in the same memory.

    with torch.cuda.graph(graph):       graph.replay()
        y = x * 2                       x * 2 again, written to the memory of y

As on a GPU, a replay knows nothing of Python: a number that was read, a tensor that was made from
one, or a learning rate that is no tensor is that of the recording. To read a number while an
operation is recorded, or after set_sync_debug_mode("error"), is an error.
"""

from contextlib import contextmanager, nullcontext
from unittest.mock import MagicMock, patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten  # torch's operations; x + y is aten.add
INDEXING = (aten.index, aten.index_put, aten.index_put_)  # x[y], x[y] = z
# torch's own marks of operations whose result, or whose shape, depends on the numbers in a tensor
READS_NUMBERS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def tensors_in(value):
    """The tensors in a value, which may be a list or a tuple of values."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [x for each in value for x in tensors_in(each)]
    return []


def reads_numbers(operation, arguments):
    """Whether the CPU must know numbers in a tensor to go on."""
    if operation.overloadpacket in INDEXING:
        # a mask as an index: the CPU must know how many numbers it selects
        return any(index.dtype == torch.bool for index in tensors_in(arguments[1]))
    return not READS_NUMBERS.isdisjoint(operation.tags)


class Graph:
    """In place of torch.cuda.CUDAGraph."""

    def __init__(self):
        self.calls = []  # (operation, arguments, options, result)

    @torch.no_grad()
    def replay(self):
        for operation, arguments, options, result in self.calls:
            new = operation(*arguments, **options)
            for old, x in zip(tensors_in(result), tensors_in(new), strict=True):
                # an operation in place, such as x.add_(y), has written to its memory already
                if old.data_ptr() != x.data_ptr():
                    old.copy_(x)

    def pool(self):
        return None


class Recording(TorchDispatchMode):
    """In a `with` block of it, every operation is noted in the graph.

    On a GPU nothing is computed meanwhile. Here it is, so at the end of the block all tensors that
    were there before, such as weights and the state of AdamW, get their numbers back.

    Tensors are told apart by where they are in memory (data_ptr), as on a GPU. Two tensors may be
    the same memory, such as a weight and its transposed view; then it is enough to keep one.
    """

    def __init__(self, graph):
        super().__init__()
        self.graph = graph
        self.made = set()  # the memory of what the recorded operations have made
        self.before = {}  # {memory: (tensor, its numbers)} of what was there before them

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        refuse_to_wait(operation, arguments)
        for x in tensors_in(arguments):
            if x.data_ptr() not in self.made:
                self.before.setdefault(x.data_ptr(), (x, x.clone()))
        result = operation(*arguments, **(options or {}))
        self.made |= {x.data_ptr() for x in tensors_in(result)} - self.before.keys()
        self.graph.calls.append((operation, arguments, options or {}, result))
        return result

    def __exit__(self, *error):
        super().__exit__(*error)
        with torch.no_grad():
            for x, numbers in self.before.values():
                x.copy_(numbers)


class Watching(TorchDispatchMode):
    """What set_sync_debug_mode("error") does."""

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        refuse_to_wait(operation, arguments)
        return operation(*arguments, **(options or {}))


def refuse_to_wait(operation, arguments):
    if reads_numbers(operation, arguments):
        raise RuntimeError(f"called a synchronizing operation: {operation}")


@contextmanager
def pretended_graphs():
    """In this block, a RecordedStep with .is_on = True records and replays on the CPU."""
    watching = []

    def set_sync_debug_mode(mode):
        if mode == "error":
            watching.append(Watching().__enter__())
        else:
            watching.pop().__exit__(None, None, None)

    with (
        patch("torch.cuda.CUDAGraph", Graph),
        patch("torch.cuda.graph", lambda graph, pool: Recording(graph)),
        patch("torch.cuda.device", lambda device: nullcontext()),
        patch("torch.cuda.stream", lambda stream: nullcontext()),
        patch("torch.cuda.Stream", MagicMock),
        patch("torch.cuda.current_stream", MagicMock),
        patch("torch.cuda.synchronize", MagicMock),
        patch("torch.cuda.set_sync_debug_mode", set_sync_debug_mode),
        patch("support.training.SYNCHRONOUS", ()),  # M is a function of the shape: prediction_count
    ):
        yield
