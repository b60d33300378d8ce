"""Runs a student's functions: inputs in, tensors out. It knows no answer.

    python worker.py REQUESTS

REQUESTS is a file of torch.save: for each case its function, what is asked, and its inputs. What
goes to standard output is for each of them a length, 8 bytes, and {output: tensor}, saved by torch,
or {"error": why there is none}. The grader trusts nothing of it.
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

SECONDS = 10  # of computing, for a case: a busy machine takes longer on the clock
MEMORY = 2 * 2**30  # bytes, besides what torch itself has


# --- How a function is called, if not by its inputs alone -----------------------------------------


def attention(module, q, k, v, attention_mask, causal=False, dropout=0.0, **positions):
    torch.manual_seed(0)
    positions = importlib.import_module("kernels").Positions(**positions)
    return module.attention(q, k, v, attention_mask, positions, dropout, causal)


def term(name, letter, module, table, q):
    """The bias of a term, whose table is a tensor of ours."""
    sizes = dict(heads=q.shape[1], hidden_size=q.shape[1] * q.shape[-1], beyond="clip")
    made = getattr(module, name)(SimpleNamespace(kernel_size=table.shape[1], **sizes))
    delattr(made, letter)
    setattr(made, letter, table)
    return made.query_bias(q)


def lowest_at_padding(module, attention_mask, dtype, scores):
    return module.lowest_at_padding(attention_mask, getattr(torch, dtype))


def mask_tokens(module, input_ids, vocab_size, seed):
    """Twice, with the same generator and another global seed."""
    found = {}
    for n, names in enumerate((("masked_ids", "labels"), ("masked_ids again", "labels again"))):
        torch.manual_seed(n)
        pair = module.mask_tokens(input_ids, vocab_size, torch.Generator().manual_seed(seed))
        found |= zip(names, pair, strict=True)
    return found


class Linear(nn.Module):
    """A model whose gradients are known: the tokens themselves, or 7 where one is masked."""

    def __init__(self, scale):
        super().__init__()
        self.one, self.two = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2))
        self.scale = scale

    def loss(self, input_ids, attention_mask, labels, count):
        tokens = torch.where(attention_mask, input_ids, 7)
        return self.scale * (torch.cat([self.one, self.two]) * tokens).sum() / count


def update(module, batches, labels, scale, device="cpu"):
    """Gradient descent. On the device "meta" tensors have no numbers to read."""
    model = Linear(scale).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, foreach=False)
    for masked_ids in batches.to(device):
        loss, norm = module.update(model, optimizer, masked_ids, labels.to(device))
    if device == "meta":
        return {"are tensors": torch.tensor(torch.is_tensor(loss) and torch.is_tensor(norm))}
    weights = torch.cat([model.one, model.two])
    return {"weights": weights, "loss": torch.as_tensor(loss), "norm": torch.as_tensor(norm)}


CALLS = {
    "attention.attention": attention,
    "attention.Fixed.query_bias": partial(term, "Fixed", "beta"),
    "attention.Dynamic.query_bias": partial(term, "Dynamic", "w"),
    "attention.lowest_at_padding": lowest_at_padding,
    "data.mask_tokens": mask_tokens,
    "pretrain.update": update,
}


def call(function, inputs):
    """{output: tensor} of a function of the student."""
    file, _, name = function.partition(".")
    module = importlib.import_module(file)
    if function in CALLS:
        result = CALLS[function](module, **inputs)
    else:
        result = getattr(module, name)(**inputs)
    return result if isinstance(result, dict) else {"result": result}


def use_given(names):
    """Put functions of the project in place of the student's: they are in given.py."""
    for name in names:
        file, *classes, last = name.split(".")
        theirs, ours = importlib.import_module(file), importlib.import_module("given")
        for each in classes:
            theirs, ours = getattr(theirs, each), getattr(ours, each)
        setattr(theirs, last, getattr(ours, last))


# --- What a case asks for -------------------------------------------------------------------------


def lines_of(function, inputs):
    """How many lines of Python run in a call."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += 1
        return trace

    call(function, inputs)  # what runs in the first call alone
    sys.settrace(trace)
    try:
        call(function, inputs)
    finally:
        sys.settrace(None)
    return count


def gradients(function, inputs):
    weighting = inputs.pop("weighting")
    leaves = {n: x for n, x in inputs.items() if torch.is_tensor(x) and x.is_floating_point()}
    for leaf in leaves.values():
        leaf.requires_grad_()
    [result] = call(function, inputs).values()

    # a result that needs no gradient has gradients of 0
    total = (result * weighting).sum() + 0 * sum(leaf.sum() for leaf in leaves.values())
    found = torch.autograd.grad(total, leaves.values())
    named = {f"gradient of {n}": x for n, x in zip(leaves, found, strict=True)}
    return {"result": result, **named}


def answer(function, ask, inputs):
    """{output: tensor} of a request."""
    if ask == "gradients":
        return gradients(function, inputs)
    if ask == "lines":
        added = lines_of(function, inputs["many"]) - lines_of(function, inputs["few"])
        return {"lines of Python that more tokens add": torch.tensor(added)}
    outputs = call(function, inputs)
    if ask == "inputs":
        return {name: x for name, x in inputs.items() if torch.is_tensor(x)}
    return outputs


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


def plain(x):
    """A tensor as it is sent back."""
    if not torch.is_tensor(x):
        raise TypeError(f"it returns {type(x).__name__}, not a tensor")
    return x.detach().clone(memory_format=torch.contiguous_format)


def limit():
    """No files, and little memory. Only Linux keeps such limits."""
    if sys.platform != "linux":
        return
    import resource

    tempfile.gettempdir()  # Python tries it with a file, once, and torch asks for it
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(path):
    # what the grader reads; what a student prints goes nowhere
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    requests = torch.load(path, weights_only=True)
    limit()
    for request in requests:
        if hasattr(signal, "setitimer"):  # not on Windows
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # then the process ends
        try:
            use_given(request.pop("given"))
            found = {name: plain(x) for name, x in answer(**request).items()}
        except BaseException as exception:  # also SystemExit
            found = {"error": error(exception)}
        data = io.BytesIO()
        torch.save(found, data)
        out.write(len(data.getvalue()).to_bytes(8, "big") + data.getvalue())
        out.flush()


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())
    main(sys.argv[1])
