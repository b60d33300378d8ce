"""lab/bench.py: what is computed and compared. How long anything takes is never tested."""

import json
import math

import pytest
import torch

import references
from lab import bench


def test_ratios_are_medians_of_the_ratios_of_each_round():
    """In the second round the machine was ten times slower; the ratio does not notice it."""
    assert bench.median_ratio([2.0, 20.0, 6.0], [1.0, 10.0, 1.0]) == 2.0


@pytest.mark.parametrize("name", bench.METHODS)
@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_each_method_of_attention_computes_the_plain_definition_and_its_gradients(name):
    inputs, mask, grad_output = bench.make_inputs(2, 24, torch.device("cpu"), torch.float64)
    found = bench.forward_backward(bench.METHODS[name], inputs, mask, grad_output)

    q, k, v, rows = inputs
    scores = q @ k.transpose(-1, -2) / math.sqrt(64)
    if name != "plain":
        scores = scores + references.relative_scores(rows, 24, "clip")
    p = scores.masked_fill(~mask[:, None, None], -math.inf).softmax(dim=-1)
    z = p @ v
    expected = [z, *torch.autograd.grad(z, inputs, grad_output, allow_unused=True)]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_steps_trains_all_variants_on_the_same_batches(
    run_program, small_text, monkeypatch, tmp_path
):
    seen = {}
    train_step = bench.train_step

    def note_and_train(trainer, source):
        batch = source.batch(0, trainer.step, 4)
        seen.setdefault(trainer, []).append((type(source).__name__, batch.tolist()))
        train_step(trainer, source)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "train_step", note_and_train)
    options = ["--variant", "none", "--corpus", small_text.file, "--batch_size", 4]
    options += ["--rounds", 2, "--device", "cpu", "--out", tmp_path / "a.json"]
    assert run_program(bench.main, "steps", *options).code == 0
    absolute, none = seen.values()
    assert absolute == none
    assert [kind for kind, _ in none] == 3 * ["FullRows"] + 4 * ["Corpus"] + 2 * ["FullRows"]
    assert none[3:5] == none[5:7]  # of the same steps, whose tokens are counted

    rows = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [row["variant"] for row in rows] == ["absolute", "none"]
    assert rows[0]["full_ratio"] == rows[0]["corpus_ratio"] == 1
