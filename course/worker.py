"""Runs a student's functions: inputs in, tensors out. It knows no answer.

    python worker.py REQUESTS SECONDS

SECONDS is how long a case may compute: not on the clock, which runs faster on a busy machine.
REQUESTS is a file of torch.save, with the function and the inputs of each case. What goes to
standard output is for each of them a length, 8 bytes, and {output: tensor}, saved by torch, or
{"error": why there is none}. The grader trusts nothing of it.
"""

import importlib
import io
import os
import signal
import sys
import tempfile
import traceback
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

MEMORY = 3 * 2**30  # bytes


# --- How a function is called, if not by its inputs alone -----------------------------------------


def attention(module, q, k, v, attention_mask, causal=False, dropout=0.0, **positions):
    torch.manual_seed(0)
    positions = importlib.import_module("kernels").Positions(**positions)
    z = module.attention(q, k, v, attention_mask, positions, dropout, causal)
    return {"result": z, "largest": z.amax()}


def term(name, letter, module, table, q):
    """The bias of a term, whose table is a tensor of ours."""
    H, d = q.shape[1], q.shape[-1]
    config = SimpleNamespace(heads=H, hidden_size=H * d, kernel_size=table.shape[1], beyond="clip")
    made = getattr(module, name)(config)
    delattr(made, letter)
    setattr(made, letter, table)
    return made.query_bias(q)


def lowest_at_padding(module, attention_mask, scores):
    """Every number that gives the weight 0 is right: so the weights are compared."""
    lowest = module.lowest_at_padding(attention_mask, scores.dtype)
    padding = ~attention_mask[:, None, None]
    weights = torch.where(padding, lowest + scores.to(lowest.dtype), lowest).softmax(dim=-1)
    dtype = torch.tensor(lowest.dtype == scores.dtype)
    return {"is 0": lowest == 0, "weights": weights, "dtype": dtype}


def mask_tokens(module, input_ids, vocab_size, seed):
    generator = torch.Generator().manual_seed(seed)
    masked_ids, labels = module.mask_tokens(input_ids, vocab_size, generator)
    return {"masked_ids": masked_ids, "labels": labels}


class Linear(nn.ParameterList):
    """A model whose gradients are known: the tokens themselves, or 7 where one is masked."""

    def loss(self, input_ids, attention_mask, labels, count):
        tokens = torch.where(attention_mask, input_ids, 7)
        return self.scale * (torch.cat([*self]) * tokens).sum() / count


def update(module, batches, labels, scale, device):
    """Gradient descent. On the device "meta" tensors have no numbers to read."""
    model = Linear([torch.ones(1), torch.ones(2)]).to(device)
    model.scale = scale
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, foreach=False)
    for masked_ids in batches.to(device):
        loss, norm = module.update(model, optimizer, masked_ids, labels.to(device))
    if device == "meta":
        return {"are tensors": torch.tensor(torch.is_tensor(loss) and torch.is_tensor(norm))}
    found = {"weights": torch.cat([*model]), "loss": loss, "norm": norm}
    return {name: torch.as_tensor(x) for name, x in found.items()}


CALLS = {
    "attention.attention": attention,
    "attention.Fixed.query_bias": partial(term, "Fixed", "beta"),
    "attention.Dynamic.query_bias": partial(term, "Dynamic", "w"),
    "attention.lowest_at_padding": lowest_at_padding,
    "data.mask_tokens": mask_tokens,
    "pretrain.update": update,
}


def call(function, **inputs):
    """What a function of the student returns, or {output: tensor}."""
    file, _, name = function.partition(".")
    module = importlib.import_module(file)
    if function in CALLS:
        return CALLS[function](module, **inputs)
    return getattr(module, name)(**inputs)


# --- What is compared -----------------------------------------------------------------------------

LINES = "lines of Python that more tokens add"
AFTER = "after the call"


def answer(function, inputs):
    """{output: tensor} of a call, with gradients for the inputs that require them."""
    if "few" in inputs:
        few, many = (lines_of(function, given) for given in inputs.values())
        return {LINES: torch.tensor(many - few)}

    outputs = function(**inputs)
    if not isinstance(outputs, dict):
        outputs = {"result": outputs}
    tensors = {name: x for name, x in inputs.items() if torch.is_tensor(x)}
    leaves = {name: x for name, x in tensors.items() if x.requires_grad}
    if leaves:
        result = outputs["result"]
        weighting = torch.arange(result.numel()).cos().view_as(result)

        # a result that needs no gradient has gradients of 0
        total = (result * weighting).sum() + 0 * sum(leaf.sum() for leaf in leaves.values())
        found = torch.autograd.grad(total, leaves.values())
        outputs |= {f"gradient of {name}": x for name, x in zip(leaves, found, strict=True)}
    outputs |= {f"{name} {AFTER}": x for name, x in tensors.items()}
    return {name: plain(x) for name, x in outputs.items()}


def plain(x):
    """A tensor as it is sent back."""
    if not torch.is_tensor(x):
        raise TypeError(f"it returns {type(x).__name__}, not a tensor")
    return x.detach().clone(memory_format=torch.contiguous_format)


def lines_of(function, inputs):
    """How many lines of Python run in a call."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += 1
        return trace

    function(**inputs)  # what runs in the first call alone
    sys.settrace(trace)
    function(**inputs)
    sys.settrace(None)
    return count


# --- The process ----------------------------------------------------------------------------------


def error(exception):
    """What a student reads of an exception, with the last line of it in one of the files."""
    place = ""
    for frame in traceback.extract_tb(exception.__traceback__):
        path = Path(frame.filename)
        if Path.cwd() in path.parents:
            place = f", line {frame.lineno} of {path.name}"
    message = str(exception).partition("\n")[0][:300]
    if isinstance(exception, SyntaxError):  # its text has file and line
        place = ""
    return f"{type(exception).__name__}: {message}{place}"


def limit():
    """No files, and little memory. Only Linux keeps such limits."""
    if sys.platform != "linux":
        return
    import resource

    tempfile.gettempdir()  # Python tries it with a file, once, and torch asks for it
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def main(path, seconds):
    # what the grader reads; what a student prints goes nowhere
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    requests = torch.load(path, weights_only=True)
    limit()
    for function, inputs in requests:
        if hasattr(signal, "setitimer"):  # not on Windows
            signal.setitimer(signal.ITIMER_PROF, float(seconds))  # then the process ends
        try:
            found = answer(partial(call, function), inputs)
        except BaseException as exception:  # also SystemExit
            found = {"error": error(exception)}
        data = io.BytesIO()
        torch.save(found, data)
        frame = data.getvalue()
        out.write(len(frame).to_bytes(8, "big") + frame)
        out.flush()


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())
    main(*sys.argv[1:])
