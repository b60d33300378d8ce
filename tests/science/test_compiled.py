"""torch.compile of the layers and of the loss equals the eager path.

In every test run, one variant is traced and differentiated by the compiler, which then calls the
operations of torch: no C++ is made of them. `python -m pytest -m compiled` does that, too, for all
variants, which takes about an hour; `-k composite-key` chooses one, which takes two minutes.
"""

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
    kernels.compile_model(model, CPU)
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
    kernels.compile_model(classifier, CPU)
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
    kernels.start_compiler.cache_clear()
    model = small_model("composite")
    assert not kernels.compile_model(model, CPU)
    kernels.start_compiler.cache_clear()
    assert capsys.readouterr().out == "nothing is compiled: no C++ compiler\n"
    assert model.bert.layers[0]._compiled_call_impl is None
