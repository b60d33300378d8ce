"""torch.compile of the layers and of the loss equals the eager path.

In every test run, one variant is traced and differentiated by the compiler, which then calls the
operations of torch: no C++ is made of them. `python -m pytest -m compiled` does that, too, for all
variants, which takes about an hour; `-k composite-key` chooses one, which takes two minutes, and
`-k "disk or dropout"` what does not depend on the variant.
"""

import json
import os
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

import glue
import kernels
import pretrain
from helpers import assert_near, every_variant, random_tokens, small_model
from model import BertForClassification
from model_helpers import assert_dropout_follows_from_the_seed, small_config
from recorded_programs import SETTINGS, train, trainer_of
from support import compiling
from support.tokenizer import IGNORED

CPU = torch.device("cpu")


def loss_and_gradients(model, ids, mask):
    """{"loss": ..., and by name the gradients}; every second token is predicted."""
    model.zero_grad()
    is_predicted = mask & (torch.arange(ids.shape[1]) % 2 == 0)  # (B, N)
    labels = ids.masked_fill(~is_predicted, IGNORED)
    loss = model.loss(ids, mask, labels, count=is_predicted.sum(), M=ids.numel())
    loss.backward()
    found = {"loss": loss.detach()}
    found |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: x.clone() for name, x in found.items()}


def assert_compiled_equals_eager(variant, lengths=(40, 70, 16), causal=False):
    """Within 1e-5 of the largest number of each tensor, in float32, with padding.

    One compiled model for all lengths, as in training: each has code of its own. Returns it.
    """
    torch.compiler.reset()  # the code of an earlier test: the loss of all variants is the same
    model = small_model(variant, max_length=max(lengths), causal=causal).float()
    batches = []
    for N in lengths:
        mask = torch.arange(N)[None, :] < torch.tensor([[N], [N - 5]])
        batches.append((random_tokens(2, N), mask))
    eager = [loss_and_gradients(model, *batch) for batch in batches]
    assert compiling.can_compile(CPU)
    kernels.compile_model(model)
    before = graphs_compiled()
    for batch, expected in zip(batches, eager, strict=True):
        compiled = loss_and_gradients(model, *batch)
        for name, x in expected.items():
            assert_near(compiled[name], x, 1e-5 * max(x.abs().max().item(), 1e-2), name)
    assert graphs_compiled() >= before + 2 * len(lengths)  # a layer and the loss
    return model


def graphs_compiled():
    return counters["stats"]["unique_graphs"]


class OtherLengths:
    """Batches of shapes that did not occur in training, for the evaluations of both programs."""

    pairs = [([5] * 8, None)] * 3
    lengths = np.array([8, 9, 10])
    seq_len = 11

    def held_out_batches(self, batch_size, causal):
        ids = random_tokens(3, 10)
        yield ids, ids


def test_compiled_layers_and_loss_equal_eager_ones_and_evaluations_compile_nothing(monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    model = assert_compiled_equals_eager("composite-key", lengths=(24, 16))
    classifier = BertForClassification(model.config, 2)
    kernels.compile_model(classifier)
    before = graphs_compiled()
    pretrain.evaluate(model, OtherLengths(), 3, CPU, torch.float32)
    glue.predict(classifier, OtherLengths(), CPU, torch.float32)
    assert graphs_compiled() == before


@pytest.mark.compiled
@every_variant
@pytest.mark.parametrize("causal", [False, True])
def test_every_variant_compiled_equals_the_eager_one(variant, causal):
    assert_compiled_equals_eager(variant, causal=causal)


def test_without_a_compiler_a_model_stays_eager_and_one_line_says_so(monkeypatch, capsys):
    def no_compiler(function, **options):
        raise RuntimeError("no C++ compiler\nfurther lines")

    monkeypatch.setattr(torch, "compile", no_compiler)
    compiling.can_compile.cache_clear()
    model = small_model("composite")
    trainer = pretrain.make_trainer(model, SETTINGS, CPU, torch.float32, compiles=True)
    compiling.can_compile.cache_clear()
    assert capsys.readouterr().out == "nothing is compiled: no C++ compiler\n"
    assert model.bert.layers[0]._compiled_call_impl is None
    assert not trainer.records[0]["made_by"]["compiled"]


# --- Dropout --------------------------------------------------------------------------------------


def test_dropout_is_independent_and_follows_from_the_seed():
    assert_dropout_follows_from_the_seed(lambda module: None)


@pytest.mark.compiled
def test_dropout_of_compiled_layers_is_independent_and_follows_from_the_seed():
    assert_dropout_follows_from_the_seed(lambda module: module.compile(dynamic=False))


def test_compiled_steps_with_dropout_follow_from_the_seed(monkeypatch):
    """Losses and weights: equal to the bit for equal seeds, and others for another seed."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    found = []
    for seed in (3, 3, 4):
        trainer = trainer_of("pretrain.py", small_config(dropout=0.1), seed=seed)
        kernels.compile_model(trainer.model)
        train(trainer, "pretrain.py", 4)
        weights = torch.cat([x.detach().flatten() for x in trainer.model.parameters()])
        found.append((torch.stack(trainer.losses), weights))
    for one, same, other in zip(*found, strict=True):
        assert torch.equal(one, same)
        assert not torch.equal(one, other)


# --- All shapes at once ---------------------------------------------------------------------------


# A step of each shape, compiled. It prints the losses, and how many graphs were on the disk. Every
# token is predicted, and both shapes have at most 64: the head has one shape.
STEPS_OF_TWO_SHAPES = """
import json
import sys
from types import SimpleNamespace
import torch
from torch._dynamo.utils import counters
import pretrain
from model_helpers import small_model
from support.compiling import compile_run

SHAPES = [(4, 12), (2, 20)]

if __name__ == "__main__":
    settings = {"seed": 0, "weight_decay": 0.0, "batch_size": 4}
    device = torch.device("cpu")
    model = small_model(dropout=0.1)
    trainer = pretrain.make_trainer(model, settings, device, torch.float32, compiles=True)
    if sys.argv[1] == "at once":
        trainer.recorded.is_on = True  # as on a GPU
        epoch = lambda *given: [(range(B), N) for B, N in SHAPES]
        batches = SimpleNamespace(batches_of_epoch=epoch)
        compile_run(trainer, pretrain.make_trainer, pretrain.update, batches)
        trainer.recorded.is_on = False
    counters.clear()
    for shape in SHAPES:
        ids = torch.full(shape, 7)
        trainer.set_learning_rate(0.01)
        trainer.advance(pretrain.update, ids, ids)
    found = counters["inductor"]
    losses = [float(loss) for loss in trainer.losses]
    print(json.dumps([losses, found["fxgraph_cache_hit"], found["fxgraph_cache_miss"]]))
"""


def run_script(text, folder, *arguments, **environment):
    """A started process. As in use, the main module of a run is a file that imports torch."""
    path = folder / "run.py"
    path.write_text(text)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    command = [sys.executable, path.name, *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE)


@pytest.mark.compiled
def test_a_run_finds_on_the_disk_what_processes_have_compiled_and_has_equal_losses(tmp_path):
    found = {}
    for how in ("alone", "at once"):
        cache = str(tmp_path / how.replace(" ", "-"))  # g++ does not find a path with a space
        run = run_script(STEPS_OF_TWO_SHAPES, tmp_path, how, TORCHINDUCTOR_CACHE_DIR=cache)
        output, _ = run.communicate()
        found[how] = json.loads(output.splitlines()[-1])
    losses, hits, misses = found["alone"]
    assert misses >= 4  # forward and backward of a layer, for two shapes
    assert found["at once"] == [losses, hits + misses, 0]


LONG_STEPS = """
import fcntl, os, time
from types import SimpleNamespace
import torch
import pretrain
from model_helpers import small_model
from support.compiling import compile_run

def make_trainer(model, compiles, **given):
    return pretrain.make_trainer(model, **given)

def update(model, optimizer, *batch):
    file = open(f"{os.getpid()}.locked", "w")
    fcntl.flock(file, fcntl.LOCK_EX)  # as long as this process lives
    time.sleep(600)

if __name__ == "__main__":
    settings = {"seed": 0, "weight_decay": 0.0, "batch_size": 4}
    device = torch.device("cpu")
    trainer = pretrain.make_trainer(small_model(), settings, device, torch.float32)
    trainer.environment["compiled"] = trainer.recorded.is_on = True
    epoch = lambda *given: [(range(4), 12), (range(2), 20)]
    compile_run(trainer, make_trainer, update, SimpleNamespace(batches_of_epoch=epoch))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="GPUs that compile are in Linux")
def test_the_processes_end_with_the_run_that_has_started_them(tmp_path):
    import fcntl

    def wait_until(condition):
        deadline = time.monotonic() + 600
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def all_are_free():
        for path in tmp_path.glob("*.locked"):
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
        return True

    run = run_script(LONG_STEPS, tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("*.locked"))) == min(2, os.cpu_count()))
    assert not all_are_free()
    run.kill()
    run.wait()
    wait_until(all_are_free)


@pytest.mark.parametrize("compiled, recorded", [(True, False), (False, True)])
def test_a_run_that_is_not_compiled_or_not_recorded_starts_no_processes(
    monkeypatch, compiled, recorded
):
    """So on a CPU, without a compiler, and with several processes all is as without this file."""
    monkeypatch.delattr(compiling.multiprocessing, "spawn")
    trainer = trainer_of("pretrain.py", small_config())
    trainer.environment["compiled"] = compiled
    trainer.recorded.is_on = recorded
    compiling.compile_run(trainer, pretrain.make_trainer, pretrain.update, batches=None)
