"""lab/look.py and lab/figures.py: the kernels are those that the model uses; every figure."""

import numpy as np
import pytest
import torch

from attention import split_heads
from lab import figures, look
from model_helpers import call_of_mixer, random_model, word_tokenizer, write_run
from support.runs import write_records

SENTENCE = "the cat was tired . the dogs were tired ."
H = 4
D = 8  # channels of a head


def test_kernels_are_the_softmax_of_beta_and_of_what_the_query_makes_without_it():
    """Of composite: softmax over r of beta_r, and of q_i . w_r / sqrt(d)."""
    model = random_model("composite")
    ids, _ = look.encode_sentence(model, word_tokenizer(), SENTENCE)
    mixer = model.bert.layers[1].mixer
    x, *_ = call_of_mixer(model, ids, layer=2)
    fixed = look.fixed_kernels(model)[2]  # (H, K)
    dynamic = look.dynamic_kernels(model, ids, layer=2)  # (H, N, K)
    with torch.no_grad():
        q = split_heads(mixer.query(x), H)[0]  # (H, N, d)
        bias = q @ mixer.terms["dynamic"].w / D**0.5  # (H, N, K)
        assert np.allclose(fixed, mixer.terms["fixed"].beta.softmax(dim=-1), atol=1e-6)
        assert np.allclose(dynamic, bias.softmax(dim=-1), atol=1e-6)


# --- The command line -----------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A run of composite-depthwise."""
    write_run(tmp_path, "composite-depthwise")
    log = [{"settings": {"variant": "composite-depthwise", "steps": 2}, "code": {}}]
    log += [{"step": 1, "loss": 3.0}, {"step": 2, "held_out_loss": 2.5}]
    write_records(tmp_path / "log.jsonl", log)
    return tmp_path


@pytest.mark.parametrize("name", ["attention", "fixed", "depthwise", "dynamic", "loss"])
def test_every_figure_is_a_png_file(name, run, run_program):
    pytest.importorskip("matplotlib")
    sentence = [SENTENCE] if name in ("attention", "dynamic") else []
    assert run_program(figures.main, name, run, *sentence).code == 0
    assert (run / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
