"""All shapes of a run are compiled at once, in processes of their own, before its first step.

torch.compile makes code for each shape of a batch (kernels.compile_model) and keeps it on the disk.
Left alone, it does so when a shape first occurs, so for one after the other:

    left alone     compile 128x56   step   compile 176x40   step   step   compile ...
    here           compile 128x56
                   compile 176x40   step   step   step ...
                   compile ...

A process does one step of its shapes, with a model that is then thrown away. Only the code remains.
The run finds it on the disk, and computes the same as without it.
"""

import os
import signal
import sys
from dataclasses import replace
from functools import cache, partial

import torch
from torch import multiprocessing
from tqdm import tqdm

# From so many steps on, a run on a GPU is faster if it is compiled: the seconds of the compiler, by
# those that a step saves. For English in BERT-small's size, that is 60 / 0.004. (A step saves 4 to
# 6 ms on an H100: docs/speed.md. The 60 s are an estimate, for 12 shapes of 25 s on 16 cores.)
COMPILE_FROM = 15_000


def is_worth_compiling(device, steps):
    """Whether pretrain.py compiles a run without being asked."""
    return device.type == "cuda" and steps >= COMPILE_FROM


@cache
def can_compile(device):
    """Whether torch.compile works here, tried with a small function. If not, a line says why.

    It also allows more versions of a function than torch's 8. One is needed for each shape of a
    batch (12 for sequences of up to 128 tokens) and each kind of layer (five at most: four
    dilations, and the attention of a hybrid).
    """
    try:
        torch.compile(lambda x: x + 1)(torch.zeros(1, device=device))
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        print(f"nothing is compiled: {first_line}")
        return False
    torch._dynamo.config.recompile_limit = 256
    return True


def compile_run(trainer, make_trainer, update, batches):
    """Compile all shapes of a run whose steps are compiled and recorded; otherwise do nothing.

    A process that fails is no error: the run compiles what it does not find on the disk. If the run
    is interrupted or killed, its processes end, too.

    Args:
        trainer: of the run. It is not changed.
        make_trainer, update: of pretrain.py.
        batches: a data.BatchesByWidth. All of its epochs have the same shapes.
    """
    if not (trainer.recorded.is_on and trainer.environment["compiled"]):
        return
    settings = trainer.settings
    epoch = batches.batches_of_epoch(settings["batch_size"], settings["seed"], 0)
    shapes = sorted({(len(indices), width) for indices, width in epoch})

    # Layers of one kind share their code. There are at most five kinds: four dilations, and the
    # attention of a hybrid, its last layer.
    model = trainer.model
    config = replace(model.config, layers=min(model.config.layers, 5))
    make_model = partial(type(model), config)
    as_in_the_run = partial(
        make_trainer,
        settings=settings,
        device=trainer.device,
        dtype=trainer.dtype,
        micro_batch=trainer.recorded.model.micro_batch,
    )

    count = min(len(shapes), os.cpu_count())
    parts = [shapes[number::count] for number in range(count)]
    given = (make_model, as_in_the_run, update, parts)
    started = multiprocessing.spawn(do_steps, given, nprocs=count, join=False, daemon=True)
    for process in tqdm(started.processes, desc="compiling", disable=None):
        process.join()


def do_steps(number, make_model, make_trainer, update, parts):
    """In the process of this number: a step of each shape (B, N) of its part."""
    # torch ends this process by SIGINT if the run is killed; a run in the background of a script
    # ignores that signal, and so would this one
    signal.signal(signal.SIGINT, signal.default_int_handler)

    torch._inductor.config.compile_threads = 1  # the other cores have processes of their own

    # The compiler finds its work again by the hash of a pickle. This names torch.contiguous_format
    # by the first module that imports torch: here it would be spawn's copy of the main module.
    sys.modules.pop("__mp_main__", None)

    trainer = make_trainer(make_model(), compiles=True, is_eager=True)
    for shape in parts[number]:
        ids = torch.ones(shape, dtype=torch.int64, device=trainer.device)
        trainer.advance(update, ids, ids)
