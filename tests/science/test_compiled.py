"""The compiled path of kernels.py equals the eager one, with this machine's own compiler.

Three variants are compiled in every test run. `python -m pytest -m compiled` compiles all of them,
and whole layers, too, which takes about an hour.
"""

import pytest
import torch

import kernels
from helpers import assert_near, every_variant, go_in_blocks, random_tokens, small_model


def logits_and_gradients(model, ids, mask):
    """{"logits": ..., and by name the gradient of each parameter}, each divided by its largest."""
    model.zero_grad()
    logits = model(ids, mask)
    loss = torch.nn.functional.cross_entropy(logits[mask], ids[mask])
    loss.backward()
    found = {"logits": logits.detach()}
    found |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: x.clone() for name, x in found.items()}


def assert_compiled_equals_eager(variant, unit, lengths=(40, 70, 16), causal=False):
    """Within 1e-5 of the largest number of each tensor, in float32, with padding.

    One compiled model for all lengths, as in training: up to 64 tokens the eager map is made with
    the index, above with the skew, and a later sequence may be shorter than the first one.
    """
    model = small_model(variant, max_length=max(lengths), causal=causal).float()
    batches = []
    for N in lengths:
        mask = torch.arange(N)[None, :] < torch.tensor([[N], [N - 5]])
        batches.append((random_tokens(2, N), mask))
    eager = [logits_and_gradients(model, *batch) for batch in batches]
    kernels.compile_hot_loop(model.bert.layers, torch.device("cpu"), unit)
    for batch, expected in zip(batches, eager, strict=True):
        compiled = logits_and_gradients(model, *batch)
        for name, x in expected.items():
            assert_near(compiled[name], x, 1e-5 * max(x.abs().max().item(), 1e-2), name)


@pytest.mark.parametrize("variant", ["fixed", "composite", "composite-key"])
def test_the_compiled_band_equals_the_eager_one(variant):
    assert_compiled_equals_eager(variant, "band")


@pytest.mark.compiled
@every_variant
@pytest.mark.parametrize("unit", ["band", "layer"])
def test_every_variant_compiled_equals_the_eager_one(unit, variant):
    assert_compiled_equals_eager(variant, unit)


@pytest.mark.compiled
@every_variant
def test_every_causal_variant_compiled_equals_the_eager_one(variant):
    assert_compiled_equals_eager(variant, "band", causal=True)


def test_without_a_compiler_a_model_stays_eager_and_one_line_says_so(monkeypatch, capsys):
    def no_compiler(function, **options):
        raise RuntimeError("no C++ compiler\nfurther lines")

    monkeypatch.setattr(torch, "compile", no_compiler)
    model = small_model("composite")
    kernels.compile_hot_loop(model.bert.layers, torch.device("cpu"))
    assert capsys.readouterr().out == "nothing is compiled: no C++ compiler\n"
    assert model.bert.layers[0].mixer.banded_softmax is kernels.banded_softmax


def test_in_a_compiled_layer_the_blocks_of_a_long_sequence_stay_eager(monkeypatch):
    """The loop over the blocks would become one long graph."""
    go_in_blocks(monkeypatch, 8, 4)
    model = small_model("composite")
    ids = random_tokens(2, 11)
    expected = model(ids)
    called = []

    def note_and_run(graph, example_inputs):
        called.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    model.bert.compile(backend=note_and_run, dynamic=False)
    assert_near(model(ids), expected, 1e-12)
    assert called
    assert not [name for name in called if "softmax" in name]
