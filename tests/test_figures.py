"""lab/figures.py: figures show what the model contains, words follow rules, errors get a line."""

import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from attention import split_heads
from lab import figures, look
from model import BertConfig, BertForMaskedLM, save_run

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = MARKS + ["the", "dog", "barks", "cat", "sleeps", "and", "."]
SENTENCE = "the dog barks and the cat sleeps ."
N = 10  # tokens of the sentence, [CLS] and [SEP] included
H = 2
K = 5  # k = 2
C = 8
SIZES = {
    "layers": 2,
    "hidden_size": C,
    "ffn_size": 8,
    "heads": H,
    "embedding_size": 8,
    "max_length": 16,
}
LOG = [
    {"settings": {"steps": 2, "seed": 0}},
    {"step": 1, "loss": 3.0, "tokens": 10, "seconds": 1.0},
    {"step": 2, "loss": 2.0, "tokens": 20, "seconds": 2.0},
    {"step": 2, "held_out_loss": 2.5, "held_out_accuracy": 0.5},
]


def write_run(folder, variant, **overrides):
    """Write the folder of a run. Returns its (model, tokenizer).

    The model is not trained, but all its weights are random. Each word is a token.
    """
    torch.manual_seed(0)
    if variant != "none":
        overrides = {"kernel_size": K, **overrides}
    config = BertConfig(variant=variant, vocab_size=len(WORDS), **{**SIZES, **overrides})
    model = BertForMaskedLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)

    ids = {word: i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    folder.mkdir(parents=True)
    save_run(folder, model, tokenizer)
    lines = [json.dumps(record) for record in LOG]
    (folder / "log.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return model, tokenizer


@pytest.fixture
def figure(run_program):
    """figure("fixed", RUN, ...) runs the command line: (exit code, output, error)."""

    def call(*arguments):
        return run_program(figures.main, *arguments)

    return call


@pytest.fixture
def matplotlib():
    reason = "matplotlib is optional and not installed"
    pyplot = pytest.importorskip("matplotlib.pyplot", reason=reason)
    yield
    pyplot.close("all")


def what_the_mixer_gets_and_gives(model, ids, layer):
    """(x, attention_mask, y) of the mixer of a layer, noted while the model reads ids."""
    noted = []

    def note(mixer, inputs, output):
        x, attention_mask = inputs
        noted.append((x, attention_mask, output))

    hook = model.bert.layers[layer - 1].mixer.register_forward_hook(note)
    with torch.no_grad():
        model.bert(ids)
    hook.remove()
    return noted[0]


# --- What is drawn --------------------------------------------------------------------------------


def test_a_sentence_becomes_ids_and_pieces(tmp_path):
    model, tokenizer = write_run(tmp_path / "run", "none")
    ids, pieces = look.encode(model, tokenizer, SENTENCE)
    assert ids.shape == (1, N)
    assert pieces == ["[CLS]", *SENTENCE.split(), "[SEP]"]
    assert [WORDS[i] for i in ids[0].tolist()] == pieces


@pytest.mark.parametrize("layer", [1, 2])
def test_the_input_of_a_mixer_is_what_the_model_gives_it(tmp_path, layer):
    model, tokenizer = write_run(tmp_path / "run", "composite")
    ids, _ = look.encode(model, tokenizer, SENTENCE)
    with torch.no_grad():
        x, attention_mask = look.input_of_mixer(model, ids, layer)
    expected_x, expected_mask, _ = what_the_mixer_gets_and_gives(model, ids, layer)
    assert torch.equal(x, expected_x)
    assert torch.equal(attention_mask, expected_mask)


@pytest.mark.parametrize("variant", ["composite-key", "composite-conv-qk"])
@pytest.mark.parametrize("layer", [1, 2])
def test_the_map_of_attention_is_the_one_that_the_mixer_uses(tmp_path, layer, variant):
    """The heads' maps, times the values, through the output layer, give what the mixer gives."""
    model, tokenizer = write_run(tmp_path / "run", variant)
    ids, _ = look.encode(model, tokenizer, SENTENCE)
    mixer = model.bert.layers[layer - 1].mixer
    x, _, expected = what_the_mixer_gets_and_gives(model, ids, layer)  # (1, N, C)

    maps = []
    for head in (1, 2):
        attention_map, _ = look.attention_maps(model, ids, layer, head)
        maps.append(attention_map)
    maps = np.stack(maps)  # (H, N, N)
    assert np.allclose(maps.sum(-1), 1, atol=1e-5)

    values = split_heads(mixer.value(x), H)[0]  # (H, N, d)
    z = torch.from_numpy(maps) @ values  # (H, N, d)
    result = mixer.output(z.transpose(0, 1).flatten(1))  # (N, H, d) -> (N, C)
    torch.testing.assert_close(result, expected[0], atol=1e-4, rtol=1e-4)


def test_the_map_of_a_fixed_kernel_has_the_same_ratios_in_every_row(tmp_path):
    """The fixed term depends on j - i alone: the weights of a row have the ratios of exp(beta)."""
    model, tokenizer = write_run(tmp_path / "run", "fixed")
    ids, _ = look.encode(model, tokenizer, SENTENCE)
    _, kernel = look.attention_maps(model, ids, layer=1, head=2)

    beta = model.bert.layers[0].mixer.terms["fixed"].beta[1].detach().numpy()  # (K,)
    for i in range(2, 8):
        window = kernel[i, i - 2 : i + 3]  # (K,)
        log_ratios = np.log(window) - np.log(window[0])
        assert np.allclose(log_ratios, beta - beta[0], atol=1e-4)


@pytest.mark.parametrize("beyond", ["clip", "zero"])
def test_the_map_of_the_kernel_has_every_position_term_and_no_content(tmp_path, beyond):
    """Of composite-key, by loops: a_ij = beta_r + q_i . w_r / sqrt(d) + k_j . u_(i-j) / sqrt(d)."""
    model, tokenizer = write_run(tmp_path / "run", "composite-key", beyond=beyond)
    ids, _ = look.encode(model, tokenizer, SENTENCE)
    mixer = model.bert.layers[1].mixer
    head = 1
    k = K // 2

    with torch.no_grad():
        x, _, _ = what_the_mixer_gets_and_gives(model, ids, layer=2)
        q = split_heads(mixer.query(x), H)[0, head]  # (N, d)
        keys = split_heads(mixer.key(x), H)[0, head]  # (N, d)
        beta = mixer.terms["fixed"].beta[head]  # (K,)
        w = mixer.terms["dynamic"].w  # (d, K)
        u = mixer.terms["key_dynamic"].u  # (d, K)

        a = torch.zeros(N, N)
        for i in range(N):
            for j in range(N):
                if beyond == "clip" or abs(j - i) <= k:
                    r = max(-k, min(k, j - i))
                    products = q[i] @ w[:, r + k] + keys[j] @ u[:, -r + k]
                    a[i, j] = beta[r + k] + products / math.sqrt(q.shape[-1])

    _, kernel = look.attention_maps(model, ids, layer=2, head=head + 1)
    assert np.allclose(kernel, a.softmax(dim=-1).numpy(), atol=1e-6)


@pytest.mark.parametrize("variant", ["composite", "lightconv"])
def test_fixed_kernels_are_the_softmax_of_beta_or_of_the_weights_of_lightconv(tmp_path, variant):
    model, _ = write_run(tmp_path / "run", variant)
    kernels = look.fixed_kernels(model)
    assert list(kernels) == [1, 2]
    for layer, p in kernels.items():
        mixer = model.bert.layers[layer - 1].mixer
        if variant == "composite":
            logits = mixer.terms["fixed"].beta
        else:
            logits = mixer.weight
        expected = logits.detach().exp()  # (H, K)
        assert p.shape == (H, K)
        assert np.allclose(p, expected / expected.sum(-1, keepdim=True), atol=1e-6)


def test_fixed_kernels_of_a_hybrid_leave_out_its_attention_layer(tmp_path):
    model, _ = write_run(tmp_path / "run", "lightconv-hybrid", attention_layer=1)
    assert list(look.fixed_kernels(model)) == [2]


@pytest.mark.parametrize("variant", ["dynamic", "composite", "shaw"])
def test_dynamic_kernels_of_attention_are_made_by_the_query_without_the_fixed_term(
    tmp_path, variant
):
    """softmax over r of q_i . w_r / sqrt(d), d = 4 channels per head."""
    model, tokenizer = write_run(tmp_path / "run", variant)
    ids, _ = look.encode(model, tokenizer, SENTENCE)
    p = look.dynamic_kernels(model, ids, layer=2)
    assert p.shape == (H, N, K)

    mixer = model.bert.layers[1].mixer
    x, _, _ = what_the_mixer_gets_and_gives(model, ids, layer=2)
    with torch.no_grad():
        for i in range(N):
            for head in range(H):
                q = mixer.query(x)[0, i, 4 * head : 4 * head + 4]  # (d,)
                expected = (q @ mixer.terms["dynamic"].w / 2).softmax(dim=-1)
                assert np.allclose(p[head, i], expected, atol=1e-6)


@pytest.mark.parametrize("variant, heads", [("dynamicconv", 2), ("convbert", 1)])
def test_dynamic_kernels_of_convolutions_are_the_outputs_of_their_linear_layer(
    tmp_path, variant, heads
):
    model, tokenizer = write_run(tmp_path / "run", variant)
    ids, _ = look.encode(model, tokenizer, SENTENCE)
    p = look.dynamic_kernels(model, ids, layer=2)
    assert p.shape == (heads, N, K)

    # what the linear layer gives while the model reads the sentence
    noted = []
    model.bert.layers[1].mixer.kernel.register_forward_hook(
        lambda module, inputs, output: noted.append(output)
    )
    with torch.no_grad():
        model.bert(ids)
    for i in range(N):
        for head in range(heads):
            expected = noted[0][0, i, K * head : K * head + K].softmax(dim=-1)
            assert np.allclose(p[head, i], expected, atol=1e-6)


def test_channels_are_sorted_by_the_position_of_their_largest_weight():
    weight = np.array([[0, 0, 9], [1, -8, 0], [0, 0, 3], [5, 0, 0], [0, 2, 1]])
    assert look.channel_order(weight).tolist() == [3, 1, 4, 2, 0]


@pytest.mark.parametrize(
    "variant, modules",
    [
        ("depthwise", {"of the values": "depthwise"}),
        ("convbert", {"of the input": "depthwise"}),
        (
            "conv-qkv",
            {
                "for the query": "query.depthwise",
                "for the key": "key.depthwise",
                "for the value": "value.depthwise",
            },
        ),
    ],
)
def test_depthwise_kernels_are_those_of_the_layer_sorted_and_named_by_what_they_convolve(
    tmp_path, variant, modules
):
    model, _ = write_run(tmp_path / "run", variant)
    found = look.depthwise_kernels(model, layer=2)
    assert set(found) == set(modules)
    for name, module in modules.items():
        convolution = model.bert.layers[1].mixer.get_submodule(module)
        weight = convolution.weight.detach()[:, 0].numpy()  # (C, K)
        assert weight.shape == (C, K)
        assert np.array_equal(found[name], weight[look.channel_order(weight)])


def test_the_loss_figure_has_the_training_and_held_out_losses_of_each_run(matplotlib, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        write_run(folder, "none")
    figure = figures.draw_loss(folders)
    (axis,) = figure.axes
    curves = [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines]
    assert curves == 2 * [([1, 2], [3.0, 2.0]), ([2], [2.5])]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [str(folder) for folder in folders]


def test_every_layer_and_head_of_the_fixed_kernels_is_labelled(matplotlib, tmp_path):
    model, _ = write_run(tmp_path / "run", "fixed")
    axes = figures.draw_fixed(model).axes
    titles = [axis.get_title() for axis in axes if axis.get_title()]
    labels = [axis.get_ylabel() for axis in axes if axis.get_ylabel()]
    assert titles == ["head 1", "head 2"]
    assert labels == ["layer 1", "layer 2"]

    model, _ = write_run(tmp_path / "dilated", "dilated")
    labels = [axis.get_ylabel() for axis in figures.draw_fixed(model).axes if axis.get_ylabel()]
    assert labels == ["layer 1", "layer 2\nsteps of 2"]


def test_every_chart_of_the_fixed_kernels_has_the_weights_of_its_head(matplotlib, tmp_path):
    model, _ = write_run(tmp_path / "run", "fixed")
    kernels = look.fixed_kernels(model)  # {layer: (H, K)}
    drawn = []
    for axis in figures.draw_fixed(model).axes:
        drawn.append([bar.get_height() for bar in axis.patches])
    expected = [head for heads in kernels.values() for head in heads]
    assert np.allclose(drawn, expected)
    assert not np.allclose(expected[0], expected[1])


def test_the_dynamic_figure_has_the_kernels_of_the_head_that_was_asked_for(matplotlib, tmp_path):
    model, tokenizer = write_run(tmp_path / "run", "dynamic")
    ids, pieces = look.encode(model, tokenizer, SENTENCE)
    kernels = look.dynamic_kernels(model, ids, 1)  # (H, N, K)
    for head in (1, 2):
        axis = figures.draw_dynamic(model, ids, pieces, 1, head).axes[0]
        assert np.allclose(axis.images[0].get_array(), kernels[head - 1])
    assert not np.allclose(kernels[0], kernels[1])


def test_the_attention_figure_has_the_map_on_the_left_and_that_of_the_kernel_on_the_right(
    matplotlib, tmp_path
):
    model, tokenizer = write_run(tmp_path / "run", "composite")
    ids, pieces = look.encode(model, tokenizer, SENTENCE)
    expected = look.attention_maps(model, ids, 2, 1)
    axes = figures.draw_attention(model, ids, pieces, 2, 1).axes
    for axis, p in zip(axes, expected, strict=False):
        assert np.allclose(axis.images[0].get_array(), p)
    assert np.allclose(expected[0], look.attention_map(model, ids, 2)[0])
    assert not np.allclose(*expected)


# --- In words -------------------------------------------------------------------------------------

MIRRORED = {
    "previous token": "next token",
    "next token": "previous token",
    "backward": "forward",
    "forward": "backward",
    "the token at -3": "the token at +3",
}


@pytest.mark.parametrize(
    "words, weights",
    [
        ("nearly uniform", [10, 11, 9, 10, 12, 9, 10, 11, 10]),
        ("previous token", [1, 1, 1, 8, 1, 1, 1, 1, 1]),
        ("next token", [1, 1, 1, 2, 1, 9, 1, 1, 1]),
        ("the token itself", [1, 1, 1, 1, 9, 1, 1, 1, 1]),
        ("the token at -3", [1, 9, 1, 1, 1, 1, 1, 1, 1]),
        ("away from neighbours", [5, 5, 4, 1, 1, 1, 4, 5, 5]),
        ("backward", [6, 7, 8, 9, 3, 2, 2, 1, 1]),
        ("forward", [1, 1, 2, 2, 3, 8, 8, 7, 6]),
        ("near", [1, 1, 4, 6, 5, 6, 4, 1, 1]),
        ("mixed", [9, 1, 1, 8, 1, 8, 1, 1, 9]),
    ],
)
def test_a_kernel_in_words_follows_the_rules(words, weights):
    p = np.array(weights) / sum(weights)
    found = look.describe(p)
    mirrored = look.describe(p[::-1])
    assert found == words
    assert mirrored == MIRRORED.get(words, words)


def test_the_ends_of_a_clipped_kernel_are_for_all_tokens_farther_away():
    p = np.array([9, 1, 1, 1, 1, 1, 1, 1, 1]) / 17
    assert look.describe(p) == "the token at -4"
    assert look.describe(p, clipped=True) == "4 or more back"
    assert look.describe(p[::-1], clipped=True) == "4 or more ahead"
    assert look.describe(np.array([0.8, 0.1, 0.1]), clipped=True) == "1 or more back"


@pytest.mark.parametrize(
    "variant, beyond, ends",
    [
        ("composite", "clip", ["\u2264-2", "0", "\u22652"]),
        ("composite", "zero", ["-2", "0", "+2"]),
        ("lightconv", "clip", ["-2", "0", "+2"]),
    ],
)
def test_the_axis_of_a_kernel_says_whether_its_ends_are_for_all_tokens_farther_away(
    variant, beyond, ends
):
    model = SimpleNamespace(config=SimpleNamespace(variant=variant, beyond=beyond))
    ticks = []
    axis = SimpleNamespace(set_xticks=lambda positions, labels: ticks.append((positions, labels)))
    figures.relative_axis(axis, 5, look.is_clipped(model))
    figures.relative_axis(axis, 1, look.is_clipped(model))
    assert ticks == [([0, 2, 4], ends), ([0], ["0"])]


def test_two_equal_neighbours_are_near_and_neither_is_the_peak():
    assert look.describe(np.array([0, 0, 0, 0.5, 0, 0.5, 0, 0, 0])) == "near"


def test_kernels_of_one_and_three_weights_have_words_too():
    assert look.describe(np.array([1.0])) == "nearly uniform"
    assert look.describe(np.array([0.8, 0.1, 0.1])) == "previous token"


# --- Every figure ---------------------------------------------------------------------------------


def assert_is_png(path):
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", ["attention", "fixed", "depthwise", "dynamic", "loss"])
def test_every_figure_is_a_png_file(matplotlib, name, tmp_path, figure):
    source = tmp_path / "run"
    write_run(source, "composite-depthwise")
    sentence = []
    if name in ("attention", "dynamic"):
        sentence = [SENTENCE]

    out_path = tmp_path / "deep" / "v1.5 figure"
    code, out, error = figure(name, source, *sentence, "--out", out_path)
    assert code == 0, error
    png = tmp_path / "deep" / "v1.5 figure.png"
    assert out.splitlines() == [str(png)]
    assert_is_png(png)


@pytest.mark.parametrize(
    "arguments, files",
    [
        (["fixed", "RUN"], "run/figures/fixed"),
        (["loss", "RUN", "RUN"], "run/figures/loss"),
        (["fixed", "RUN", "--out", "RUN"], "run/fixed"),
    ],
)
def test_a_figure_goes_to_the_folder_of_its_run_or_next_to_its_file_or_to_out(
    matplotlib, arguments, files, tmp_path, figure
):
    write_run(tmp_path / "run", "fixed")
    places = {
        "RUN": tmp_path / "run",
    }
    arguments = [places.get(argument, argument) for argument in arguments]
    code, _, error = figure(*arguments)
    assert code == 0, error
    assert (tmp_path / f"{files}.png").is_file()


def test_the_idea_is_drawn_as_a_small_png_file(matplotlib, tmp_path, figure):
    code, out, error = figure("idea", "--out", tmp_path / "idea")
    assert code == 0, error
    assert out.splitlines() == [str(tmp_path / "idea.png")]
    assert_is_png(tmp_path / "idea.png")
    assert (tmp_path / "idea.png").stat().st_size <= 80_000


def test_the_idea_shows_each_weight_of_the_kernel_on_its_diagonal(matplotlib):
    """5 tokens: 5 on the main diagonal, 4 on each side; 1 each in the kernel and in the window."""
    (axis,) = figures.draw_idea(figures.load_pyplot()).axes
    texts = [text.get_text() for text in axis.texts]

    # the kernel, and the map of scores
    assert texts.count("\u03b2\u2080") == 1 + 5  # beta_0
    assert texts.count("\u03b2\u208b\u2081") == 1 + 4  # beta_-1
    assert texts.count("\u03b2\u2081") == 1 + 4  # beta_1

    # the window of the convolution
    assert texts.count("p\u2080") == 1  # p_0
    assert texts.count("p\u208b\u2081") == 1  # p_-1
    assert texts.count("p\u2081") == 1  # p_1
    assert "p = softmax(\u03b2)" in texts


# --- Every error ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variant, arguments, message",
    [
        ("none", ["fixed", "RUN"], "none has no fixed kernels of K weights"),
        ("none", ["attention", "RUN", SENTENCE], "adds no position terms to the content term"),
        ("lightconv", ["attention", "RUN", SENTENCE], "is a LightConv, and this figure"),
        ("convbert", ["attention", "RUN", SENTENCE], "needs self-attention in all heads"),
        (
            "fixed",
            ["dynamic", "RUN", SENTENCE],
            "has no dynamic kernels of K weights; python -m lab.explore",
        ),
        ("composite", ["depthwise", "RUN"], "no depthwise convolution"),
        (
            "composite",
            ["dynamic", "RUN", SENTENCE, "--layer", "3"],
            "there is no layer 3: the model has 2",
        ),
        (
            "composite",
            ["attention", "RUN", SENTENCE, "--head", "3"],
            "there is no head 3: a layer of the model has 2",
        ),
        ("convbert", ["dynamic", "RUN", SENTENCE, "--head", "2"], "no convolution head 2"),
        (
            "composite",
            ["attention", "RUN", "the dog " * 8],
            "the sentence has 18 tokens, the model takes 16",
        ),
        ("composite", ["attention", "RUN", " "], "give one after RUN"),
        ("composite", ["fixed", "RUN/absent"], "is not a run"),
        ("composite", ["loss", "RUN", "RUN/absent"], "no log.jsonl"),
        ("composite", ["fixed", "RUN", "--out", "RUN/config.json/figure"], "config.json"),
    ],
)
def test_an_error_gets_one_line(variant, arguments, message, tmp_path, figure):
    if "--out" in arguments:
        pytest.importorskip("matplotlib", reason="matplotlib is optional and not installed")
    run = tmp_path / "run"
    write_run(run, variant)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "log.jsonl").write_text('{"step": 1, "loss": {"a": 1}}', encoding="utf-8")

    places = {"BROKEN": broken}

    completed = []
    for argument in arguments:
        if argument.startswith("RUN"):
            argument = str(run) + argument.removeprefix("RUN")
        completed.append(places.get(argument, argument))

    code, out, error = figure(*completed)
    assert code == 2
    assert message in error
    assert error.startswith("lab.figures: ") and error.count("\n") == 1
    assert not out


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch, tmp_path, figure):
    write_run(tmp_path / "run", "fixed")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, error = figure("fixed", tmp_path / "run")
    assert code == 2
    assert "pip install matplotlib" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["fixed", "RUN", "--layer", "2"], "--layer"),
        (["fixed", "RUN", "a", "sentence"], "a sentence"),
        (["attention", "RUN", "a", "b"], "unrecognized arguments: b"),
        (["attention", "RUN"], "sentence"),
        (["fixed", "RUN", "--out", "figure.PNG"], "leave out .PNG, which is added to the name"),
        (["depthwise", "RUN", "--head", "2"], "--head"),
        (["idea", "RUN"], "RUN"),
        (["dynamic", "RUN", "a", "--layer", "0"], "'0' is not a whole number above 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, words, figure):
    code, _, error = figure(*arguments)
    assert code == 2
    assert ": error: " in error
    assert words in error.splitlines()[-1]
