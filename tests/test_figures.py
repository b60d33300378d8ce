"""lab/look.py and lab/figures.py: the maps and kernels are those that the model uses."""

import json
from fnmatch import fnmatch

import numpy as np
import pytest
import torch

from attention import VARIANTS, split_heads
from lab import figures, look
from model import save_run
from model_helpers import small_model, word_tokenizer

SENTENCE = "the cat was tired . the dogs were tired ."
H = 4
K = 5  # k = 2
D = 8  # channels of a head


def model_of(variant, **overrides):
    """A model of two layers whose weights are random and large. Returns (model, ids)."""
    if VARIANTS[variant].has_kernel:
        overrides = {"kernel_size": K, **overrides}
    model = small_model(variant, **overrides)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ids, _ = look.encode_sentence(model, word_tokenizer(), SENTENCE)
    return model, ids


def mixer_and_input(model, ids):
    """The mixer of layer 2, what it gets while the model reads ids (N, C), and what it gives."""
    noted = []
    mixer = model.bert.layers[1].mixer
    hook = mixer.register_forward_hook(lambda _, inputs, y: noted.append((inputs[0][0], y[0])))
    with torch.no_grad():
        model.bert(ids)
    hook.remove()
    return mixer, *noted[0]


@pytest.mark.parametrize("variant", ["composite-key", "composite-conv-qk", "xl", "rotary"])
def test_the_map_of_attention_is_the_one_that_the_mixer_uses(variant):
    """The heads' maps, times the values, through the output layer, give what the mixer gives."""
    model, ids = model_of(variant)
    mixer, x, expected = mixer_and_input(model, ids)
    maps = torch.from_numpy(look.attention_map(model, ids, layer=2))  # (H, N, N)
    with torch.no_grad():
        z = maps @ split_heads(mixer.value(x)[None], H)[0]  # (H, N, d)
        y = mixer.output(z.transpose(0, 1).flatten(1))  # (N, H, d) -> (N, C)
    torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-4)


def test_kernels_are_the_softmax_of_beta_and_of_what_the_query_makes_without_it():
    """Of composite: softmax over r of beta_r, and of q_i . w_r / sqrt(d)."""
    model, ids = model_of("composite")
    mixer, x, _ = mixer_and_input(model, ids)
    fixed = look.fixed_kernels(model)[2]  # (H, K)
    dynamic = look.dynamic_kernels(model, ids, layer=2)  # (H, N, K)
    with torch.no_grad():
        q = split_heads(mixer.query(x)[None], H)[0]  # (H, N, d)
        rows = q @ mixer.terms["dynamic"].w / D**0.5  # (H, N, K)
        assert np.allclose(fixed, mixer.terms["fixed"].beta.softmax(dim=-1), atol=1e-6)
        assert np.allclose(dynamic, rows.softmax(dim=-1), atol=1e-6)


# --- The command line -----------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A run of composite-depthwise."""
    folder = tmp_path / "run"
    save_run(folder, model_of("composite-depthwise")[0], word_tokenizer())
    log = [{"settings": {"steps": 2}}, {"step": 1, "loss": 3.0}, {"step": 2, "held_out_loss": 2.5}]
    (folder / "log.jsonl").write_text("\n".join(json.dumps(line) for line in log))
    return folder


@pytest.mark.parametrize("name", ["attention", "fixed", "depthwise", "dynamic", "loss"])
def test_every_figure_is_a_png_file(name, run, run_program):
    pytest.importorskip("matplotlib")
    sentence = [SENTENCE] if name in ("attention", "dynamic") else []
    assert run_program(figures.main, name, run, *sentence).code == 0
    assert (run / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("name, figures_of_it", [("results", 4), ("drawings", 3)])
def test_the_figures_of_the_documents_need_no_run(
    name, figures_of_it, tmp_path, monkeypatch, run_program
):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figures, "DOCS", tmp_path)
    assert run_program(figures.main, name).code == 0
    assert len(list(tmp_path.glob("*.png"))) == figures_of_it


def test_the_drawing_of_a_layer_has_a_place_for_every_variant():
    names = [names.replace("\n", ", ") for _, _, names in figures.LAYER if names]
    patterns = ", ".join(names).split(", ")
    for variant in VARIANTS:
        assert any(fnmatch(variant, pattern) for pattern in patterns), variant


@pytest.mark.parametrize(
    "variant, arguments",
    [
        ("none", ["fixed", "RUN"]),
        ("convbert", ["attention", "RUN", SENTENCE]),
        ("fixed", ["dynamic", "RUN", SENTENCE]),
        ("composite", ["depthwise", "RUN"]),
        ("composite", ["dynamic", "RUN", SENTENCE, "--layer", "3"]),
        ("convbert", ["dynamic", "RUN", SENTENCE, "--head", "3"]),
        ("composite", ["attention", "RUN", SENTENCE * 3]),
    ],
)
def test_a_mistake_of_the_user_is_one_line(variant, arguments, tmp_path, refused):
    pytest.importorskip("matplotlib")
    save_run(tmp_path / "run", model_of(variant)[0], word_tokenizer())
    words = [str(tmp_path / "run") if word == "RUN" else word for word in arguments]
    assert refused(figures.main, *words).startswith("error: ")
