"""figures.py: what is drawn is what the model holds, kernels in words follow their rules, mistakes get one line."""

import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import figures
from attention import split_heads
from model import BertConfig, BertForMaskedLM, save_run

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "the", "dog", "barks", "cat", "sleeps", "and", "."]
SENTENCE = "the dog barks and the cat sleeps ."
K = 5


def a_run(folder, variant, **overrides):
    """A run's folder with an untrained model whose kernels are random, and a tokenizer of whole words."""
    torch.manual_seed(0)
    sizes = dict(layers=2, hidden_size=8, ffn_size=8, heads=2, embedding_size=8, max_length=16, kernel_size=K)
    model = BertForMaskedLM(BertConfig(variant=variant, vocab_size=len(WORDS), **{**sizes, **overrides})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(parents=True)
    save_run(folder, model, tokenizer)
    records = {"settings": {}}, {"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "held_out_loss": 2.5}
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return model, tokenizer


def call(capsys, *arguments):
    """(exit code, standard output, standard error) of the command line."""
    with pytest.raises(SystemExit) as stop:
        figures.main([str(a) for a in arguments])
    return stop.value.code, *capsys.readouterr()


# --- what is drawn ---

def test_the_map_of_attention_is_the_one_that_the_mixer_uses(tmp_path):
    """Put back into the equation with the values and the output projection, the heads' maps give what the mixer gave."""
    model, tokenizer = a_run(tmp_path / "run", "composite-key")
    ids, pieces = figures.encode(model, tokenizer, SENTENCE)
    assert pieces == ["[CLS]", *SENTENCE.split(), "[SEP]"]
    for layer in (1, 2):
        mixer = model.bert.layers[layer - 1].mixer
        x, expected = figures.seen_by(model, ids, mixer)  # (1, N, C) both
        maps = np.stack([figures.attention_maps(model, ids, layer, head)[0] for head in (1, 2)])  # (H, N, N)
        assert np.allclose(maps.sum(-1), 1, atol=1e-5)
        z = torch.from_numpy(maps) @ split_heads(mixer.value(x), 2)[0]  # (H, N, d)
        got = mixer.output(z.transpose(0, 1).flatten(1))  # (N, H, d) -> (N, C)
        torch.testing.assert_close(got, expected[0], atol=1e-4, rtol=1e-4)


def test_the_map_of_the_kernel_has_the_same_weight_wherever_the_relative_position_is_the_same(tmp_path):
    """The fixed term alone depends on j - i; a row's weights are in the ratios of exp(beta)."""
    model, tokenizer = a_run(tmp_path / "run", "fixed")
    ids, _ = figures.encode(model, tokenizer, SENTENCE)
    _, kernel = figures.attention_maps(model, ids, 1, 2)
    beta = model.bert.layers[0].mixer.fixed[1].detach().numpy()
    for i in range(2, 8):
        window = kernel[i, i - 2:i + 3]  # (K,)
        assert np.allclose(np.log(window) - np.log(window[0]), beta - beta[0], atol=1e-4)


@pytest.mark.parametrize("window", ["clip", "zero"])
def test_the_map_of_the_kernel_has_every_position_term_and_no_content(tmp_path, window):
    """Of composite-key, by loops: a_ij = beta_r + q_i . w_r / sqrt(d) + k_j . u_(i-j) / sqrt(d)."""
    model, tokenizer = a_run(tmp_path / "run", "composite-key", window=window)
    ids, _ = figures.encode(model, tokenizer, SENTENCE)
    mixer, head, k, N = model.bert.layers[1].mixer, 1, K // 2, ids.shape[1]
    with torch.no_grad():
        x, _ = figures.seen_by(model, ids, mixer)
        q, key = (split_heads(f(x), 2)[0, head] for f in (mixer.query, mixer.key))  # (N, d)
        a = torch.zeros(N, N)
        for i in range(N):
            for j in range(N):
                if window == "clip" or abs(j - i) <= k:
                    r = max(-k, min(k, j - i))
                    a[i, j] = mixer.fixed[head, r + k] + (
                        q[i] @ mixer.dynamic[:, r + k] + key[j] @ mixer.key_dynamic[:, -r + k]) / math.sqrt(q.shape[-1])
    _, kernel = figures.attention_maps(model, ids, 2, head + 1)
    assert np.allclose(kernel, a.softmax(dim=-1).numpy(), atol=1e-6)


def test_fixed_kernels_are_the_softmax_of_beta_and_of_a_lightconv_s_weights(tmp_path):
    for variant, name in (("composite", "fixed"), ("lightconv", "weight")):
        model, _ = a_run(tmp_path / variant, variant)
        kernels = figures.fixed_kernels(model)
        assert list(kernels) == [1, 2]
        for layer, p in kernels.items():
            expected = getattr(model.bert.layers[layer - 1].mixer, name).detach().exp()
            assert np.allclose(p, expected / expected.sum(-1, keepdim=True), atol=1e-6) and p.shape == (2, K)
    model, _ = a_run(tmp_path / "hybrid", "lightconv-hybrid", attention_layer=1)
    assert list(figures.fixed_kernels(model)) == [2]  # the other layer is attention without positions


@pytest.mark.parametrize("variant, heads", [("dynamic", 2), ("composite", 2), ("shaw", 2), ("dynamicconv", 2),
                                            ("convbert", 1)])
def test_dynamic_kernels_are_those_of_each_token_and_head_without_the_fixed_term(tmp_path, variant, heads):
    model, tokenizer = a_run(tmp_path / "run", variant)
    ids, _ = figures.encode(model, tokenizer, SENTENCE)
    mixer, p = model.bert.layers[1].mixer, figures.dynamic_kernels(model, ids, 2)
    assert p.shape == (heads, 10, K)
    with torch.no_grad():
        for i in range(10):
            for head in range(heads):
                if heads == 2 and variant != "dynamicconv":  # q_i . w_r / sqrt(d), d = 4 channels a head
                    x, _ = figures.seen_by(model, ids, mixer)
                    q = mixer.query(x)[0, i, 4 * head:4 * head + 4]  # (d,)
                    expected = (q @ mixer.dynamic / 2).softmax(dim=-1)
                else:  # K outputs of a linear layer
                    _, logits = figures.seen_by(model, ids, mixer.kernel)
                    expected = logits[0, i, K * head:K * head + K].softmax(dim=-1)
                assert np.allclose(p[head, i], expected, atol=1e-6)


def test_channels_are_sorted_by_the_place_of_their_largest_weight():
    weight = np.array([[0, 0, 9], [1, -8, 0], [0, 0, 3], [5, 0, 0], [0, 2, 1]])
    assert figures.channel_order(weight).tolist() == [3, 1, 4, 2, 0]


@pytest.mark.parametrize("variant, places", [
    ("depthwise", {"the values": "depthwise"}), ("convbert", {"the input": "depthwise"}),
    ("conv-qkv", {f"the input, for {name}": f"{name}.depthwise" for name in ("query", "key", "value")}),
])
def test_depthwise_kernels_are_those_of_the_layer_sorted_and_named_by_what_they_convolve(tmp_path, variant, places):
    model, _ = a_run(tmp_path / "run", variant)
    found = figures.depthwise_kernels(model, 2)
    assert set(found) == set(places)
    for name, module in places.items():
        weight = model.bert.layers[1].mixer.get_submodule(module).weight.detach()[:, 0].numpy()  # (C, K)
        assert weight.shape == (8, K) and np.array_equal(found[name], weight[figures.channel_order(weight)])


def test_every_layer_and_head_of_the_fixed_kernels_is_named(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is optional and not installed")
    model, _ = a_run(tmp_path / "run", "fixed")
    figure = figures.draw_fixed(model)
    heads, layers = range(1, model.config.heads + 1), range(1, model.config.layers + 1)
    assert [axis.get_title() for axis in figure.axes if axis.get_title()] == [f"head {head}" for head in heads]
    assert [axis.get_ylabel() for axis in figure.axes if axis.get_ylabel()] == [f"layer {layer}" for layer in layers]


# --- in words ---

@pytest.mark.parametrize("words, weights", [
    ("everything alike", [10, 11, 9, 10, 12, 9, 10, 11, 10]),
    ("previous token", [1, 1, 1, 8, 1, 1, 1, 1, 1]),
    ("next token", [1, 1, 1, 2, 1, 9, 1, 1, 1]),
    ("the token itself", [1, 1, 1, 1, 9, 1, 1, 1, 1]),
    ("the token at -3", [1, 9, 1, 1, 1, 1, 1, 1, 1]),
    ("away from neighbours", [5, 5, 4, 1, 1, 1, 4, 5, 5]),
    ("backward", [6, 7, 8, 9, 3, 2, 2, 1, 1]),
    ("forward", [1, 1, 2, 2, 3, 8, 8, 7, 6]),
    ("near", [1, 1, 4, 6, 5, 6, 4, 1, 1]),
    ("mixed", [9, 1, 1, 8, 1, 8, 1, 1, 9]),
])
def test_a_kernel_in_words_follows_the_stated_rules(words, weights):
    p = np.array(weights) / sum(weights)
    got, numbers = figures.describe(p)
    mirrored, _ = figures.describe(p[::-1])
    swap = {"previous token": "next token", "backward": "forward", "the token at -3": "the token at +3"}
    assert got == words and mirrored == {**swap, **{b: a for a, b in swap.items()}}.get(words, words)
    assert f"{p.max() * 9:.2f} of the mean" in numbers


def test_the_ends_of_a_clipped_kernel_stand_for_all_that_is_beyond():
    p = np.array([9, 1, 1, 1, 1, 1, 1, 1, 1]) / 17
    assert [figures.describe(p)[0], figures.describe(p, clipped=True)[0]] == ["the token at -4", "4 or more back"]
    assert figures.describe(p[::-1], clipped=True)[0] == "4 or more ahead"
    assert figures.describe(np.array([0.8, 0.1, 0.1]), clipped=True)[0] == "1 or more back"


@pytest.mark.parametrize("variant, window, ends", [
    ("composite", "clip", ["\u2264-2", "0", "\u22652"]), ("composite", "zero", ["-2", "0", "+2"]),
    ("lightconv", "clip", ["-2", "0", "+2"]),
])
def test_the_axis_of_a_kernel_says_whether_its_ends_stand_for_all_that_is_beyond(variant, window, ends):
    model = SimpleNamespace(config=SimpleNamespace(variant=variant, window=window))
    named = []
    axis = SimpleNamespace(set_xticks=lambda places, names: named.append((places, names)))
    figures.relative_axis(axis, 5, figures.clips(model), label=False)
    figures.relative_axis(axis, 1, figures.clips(model), label=False)
    assert named == [([0, 2, 4], ends), ([0], ["0"])]


def test_two_neighbours_alike_are_near_and_neither_alone():
    assert figures.describe(np.array([0, 0, 0, 0.5, 0, 0.5, 0, 0, 0]))[0] == "near"


def test_kernels_of_one_and_three_weights_have_words_too():
    assert figures.describe(np.array([1.0]))[0] == "everything alike"
    assert figures.describe(np.array([0.8, 0.1, 0.1]))[0] == "previous token"


def test_describe_prints_a_line_for_each_layer_and_head(tmp_path, capsys):
    a_run(tmp_path / "run", "composite")
    code, out, _ = call(capsys, "fixed", tmp_path / "run", "--describe")
    assert code == 0 and [line[:18] for line in out.splitlines()] == [
        f"layer  {layer}, head  {head}:" for layer in (1, 2) for head in (1, 2)]
    code, out, _ = call(capsys, "dynamic", tmp_path / "run", SENTENCE, "--layer", 2, "--describe")
    assert code == 0 and out.count("layer  2, head") == 2


def test_describe_counts_the_channels_of_depthwise_kernels_by_the_place_of_their_largest_weight(tmp_path, capsys):
    model, tokenizer = a_run(tmp_path / "run", "depthwise")
    with torch.no_grad():
        weight = model.bert.layers[1].mixer.depthwise.weight.zero_()  # (C, 1, K)
        for channel, (r, value) in enumerate([(-1, 3), (-1, -2), (0, 1), (2, -1), (-1, 1), (1, 5), (1, 1), (1, -9)]):
            weight[channel, 0, r + K // 2] = value
    save_run(tmp_path / "run", model, tokenizer)
    code, out, _ = call(capsys, "depthwise", tmp_path / "run", "--layer", 2, "--describe")
    assert code == 0 and out.endswith("convolution of the values: largest weight of 8 channels at r = "
                                      "-1 in 3, 0 in 1, +1 in 3, +2 in 1\n")


# --- every figure, and every mistake ---

@pytest.mark.parametrize("figure", ["attention", "fixed", "depthwise", "dynamic", "loss", "lengths"])
def test_every_figure_is_a_png_and_an_svg(figure, tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is optional and not installed")
    run = tmp_path / "run"
    a_run(run, "composite-depthwise")
    if figure == "lengths":
        run = tmp_path / "lengths.txt"
        run.write_text("one mixer\n     N  variant ms\n    64  none  4.87 1.00 1.769 12,280 461\n"
                       "   128  none  7.09 1.00 1.966 14,819 469\n")
    sentence = [SENTENCE] if figure in ("attention", "dynamic") else []
    code, out, error = call(capsys, figure, run, *sentence, "--out", tmp_path / "deep/v1.5 figure")
    assert code == 0, error
    png, svg = (tmp_path / "deep" / f"v1.5 figure{suffix}" for suffix in (".png", ".svg"))
    assert out.split("\n")[:2] == [str(png), str(svg)]
    assert png.read_bytes()[:4] == b"\x89PNG" and "<svg" in svg.read_text(encoding="utf-8")


@pytest.mark.parametrize("variant, arguments, message", [
    ("none", ["fixed", "RUN"], "none has no fixed kernels"),
    ("none", ["attention", "RUN", SENTENCE], "no position terms"),
    ("lightconv", ["attention", "RUN", SENTENCE], "no self-attention"),
    ("fixed", ["dynamic", "RUN", SENTENCE], "makes no dynamic kernels"),
    ("composite", ["depthwise", "RUN"], "no depthwise convolution"),
    ("composite", ["dynamic", "RUN", SENTENCE, "--layer", "3"], "there is no layer 3: the model has 2"),
    ("composite", ["attention", "RUN", SENTENCE, "--head", "3"], "there is no head 3: the model has 2"),
    ("convbert", ["dynamic", "RUN", SENTENCE, "--head", "2"], "no convolution head 2"),
    ("composite", ["attention", "RUN", "the dog " * 8], "the sentence has 18 tokens, the model takes 16"),
    ("composite", ["attention", "RUN"], "give one after RUN"),
    ("composite", ["fixed", "RUN/absent"], "is not a run"),
    ("composite", ["loss", "RUN", "RUN/absent"], "no log.jsonl"),
    ("composite", ["lengths", "RUN/config.json"], "no table"),
    ("composite", ["lengths", "RUN/absent"], "not a file"),
    ("composite", ["loss", "RUN", "BROKEN"], "log.jsonl is damaged"),
    ("composite", ["fixed", "RUN", "--out", "RUN/config.json/figure"], ""),
])
def test_a_mistake_gets_one_line(variant, arguments, message, tmp_path, capsys):
    if "--out" in arguments:
        pytest.importorskip("matplotlib", reason="matplotlib is optional and not installed")
    a_run(tmp_path / "run", variant)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/log.jsonl").write_text('{"step": 1, "loss": {"a": 1}}', encoding="utf-8")
    places = {"RUN": str(tmp_path / "run"), "BROKEN": str(tmp_path / "broken")}
    arguments = [places.get(a, a.replace("RUN/", places["RUN"] + "/")) for a in arguments]
    code, out, error = call(capsys, *arguments)
    assert code == 2 and message in error and error.startswith("figures.py: ") and error.count("\n") == 1 and not out


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch, tmp_path, capsys):
    a_run(tmp_path / "run", "fixed")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, error = call(capsys, "fixed", tmp_path / "run")
    assert code == 2 and "pip install matplotlib" in error and error.count("\n") == 1
    assert call(capsys, "fixed", tmp_path / "run", "--describe")[0] == 0


@pytest.mark.parametrize("arguments", [
    ["loss", "RUN", "--describe"], ["fixed", "RUN", "--layer", "2"], ["fixed", "RUN", "a", "sentence"],
    ["attention", "RUN", "a", "b"],
])
def test_options_that_do_not_fit_are_refused(arguments, capsys):
    code, _, error = call(capsys, *arguments)
    assert code == 2 and ": error: " in error
