"""torch.compile of the layers equals the eager path, with this machine's own compiler.

One variant is compiled in every test run. `python -m pytest -m compiled` compiles all of them, for
several lengths, which takes about an hour.
"""

import pytest
import torch

import kernels
from helpers import assert_near, every_variant, random_tokens, small_model


def logits_and_gradients(model, ids, mask):
    """{"logits": ..., and by name the gradient of each parameter}, each divided by its largest."""
    model.zero_grad()
    logits = model(ids, mask)
    loss = torch.nn.functional.cross_entropy(logits[mask], ids[mask])
    loss.backward()
    found = {"logits": logits.detach()}
    found |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: x.clone() for name, x in found.items()}


def assert_compiled_equals_eager(variant, lengths=(40, 70, 16), causal=False):
    """Within 1e-5 of the largest number of each tensor, in float32, with padding.

    One compiled model for all lengths, as in training: each has code of its own.
    """
    model = small_model(variant, max_length=max(lengths), causal=causal).float()
    batches = []
    for N in lengths:
        mask = torch.arange(N)[None, :] < torch.tensor([[N], [N - 5]])
        batches.append((random_tokens(2, N), mask))
    eager = [logits_and_gradients(model, *batch) for batch in batches]
    kernels.compile_model(model, torch.device("cpu"))
    for batch, expected in zip(batches, eager, strict=True):
        compiled = logits_and_gradients(model, *batch)
        for name, x in expected.items():
            assert_near(compiled[name], x, 1e-5 * max(x.abs().max().item(), 1e-2), name)


def test_compiled_layers_equal_eager_ones():
    assert_compiled_equals_eager("composite-key", lengths=(24,))


@pytest.mark.compiled
@every_variant
@pytest.mark.parametrize("causal", [False, True])
def test_every_variant_compiled_equals_the_eager_one(variant, causal):
    assert_compiled_equals_eager(variant, causal=causal)


def test_without_a_compiler_a_model_stays_eager_and_one_line_says_so(monkeypatch, capsys):
    def no_compiler(function, **options):
        raise RuntimeError("no C++ compiler\nfurther lines")

    monkeypatch.setattr(torch, "compile", no_compiler)
    kernels.can_compile.cache_clear()
    model = small_model("composite")
    kernels.compile_model(model, torch.device("cpu"))
    kernels.can_compile.cache_clear()
    assert capsys.readouterr().out == "nothing is compiled: no C++ compiler\n"
    assert model.bert.layers[0]._compiled_call_impl is None
