"""lab/explore.py: the numbers in the page are the model's, and the page is one safe file."""

import base64
import json

import numpy as np
import pytest
import torch

import attention
import references
from attention import VARIANTS, split_heads
from lab import explore, look
from model import save_run
from model_helpers import small_model, word_tokenizer

SENTENCE = "the cat was tired . the dogs were tired . the cat"
N = 14  # tokens of the sentence, [CLS] and [SEP] included
K = 5  # k = 2
H = 4


def write_run(folder, variant, **overrides):
    """Write the folder of a run of two layers with large random weights. Returns its model."""
    if VARIANTS[variant].has_kernel:
        overrides = {"kernel_size": K, **overrides}
    model = small_model(variant, **overrides)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_run(folder, model, word_tokenizer())
    return model


def unpack(packed):
    """The array of float32 numbers that the page holds."""
    numbers = np.frombuffer(base64.b64decode(packed["float32"]), dtype="<f4")
    return torch.from_numpy(numbers.astype(np.float32)).reshape(packed["shape"])


def softmax(scores):
    return scores.double().softmax(dim=-1)


def inputs_of_mixer(model, layer):
    """(x, attention_mask, y) of the mixer of a layer, noted while the model reads the sentence."""
    ids, _ = look.encode_sentence(model, word_tokenizer(), SENTENCE)
    noted = []
    hook = model.bert.layers[layer - 1].mixer.register_forward_hook(
        lambda mixer, inputs, output: noted.append((*inputs, output))
    )
    with torch.no_grad():
        model.bert(ids)
    hook.remove()
    return noted[0]


# --- The maps, made again from the numbers in the page --------------------------------------------


def term_scores(term, i, beyond):
    """What a term of the page adds to the scores of query i: (N,)."""
    rows = unpack(term["rows"])  # (N, K) or (1, K)
    rows = rows.expand(N, -1)
    scores = torch.zeros(N)
    for j in range(N):
        owner, r = i, j - i
        if term["belongs_to"] == "key":
            owner, r = j, i - j
        t = references.column(r, rows.shape[-1], beyond)
        if t is not None:
            scores[j] = rows[owner, t]
    return scores


def maps_of_attention(head, beyond):
    """(attention (N, N), that of the position terms alone (N, N))."""
    positions = torch.zeros(N, N)
    for term in head["terms"]:
        positions += torch.stack([term_scores(term, i, beyond) for i in range(N)])
    return softmax(unpack(head["content"]) + positions), softmax(positions)


def map_of_convolution(head):
    """(N, N): the weight of token j in z_i."""
    (term,) = head["terms"]
    p = softmax(unpack(term["rows"])).expand(N, -1)  # (N, K)
    k = p.shape[-1] // 2
    weights = torch.zeros(N, N, dtype=torch.float64)
    for i in range(N):
        for r in range(-k, k + 1):
            j = i + r * head["dilation"]
            if 0 <= j < N:
                weights[i, j] = p[i, r + k]
    return weights


def maps_of(run, layer):
    """The maps of all heads of a layer, (H, N, N)."""
    maps = []
    for head in run["layers"][layer - 1]["heads"]:
        if head["kind"] == "attention":
            weights, _ = maps_of_attention(head, run["beyond"])
        else:
            weights = map_of_convolution(head)
        maps.append(weights)
    return torch.stack(maps)


def values_of(mixer, x, attention_mask):
    """The values (H, N, d) that the maps of a mixer are multiplied with."""
    if isinstance(mixer, attention.GatedConvolution):
        return split_heads(mixer.gate(x, attention_mask), H)[0]
    if isinstance(mixer, attention.SelfAttention):
        _, _, value = mixer.project(x, attention_mask)  # (1, N, C)
        return split_heads(value, H)[0]
    return split_heads(mixer.value(x), H)[0]


# --- The numbers are the model's ------------------------------------------------------------------


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_the_maps_of_the_page_times_the_values_give_what_the_mixer_gives(tmp_path, variant):
    """For every variant; what is added outside the score is set to 0 in the model."""
    model = write_run(tmp_path, variant)
    for name, parameter in model.named_parameters():
        if name.endswith("relative_value.s") or "mixer.depthwise" in name:
            torch.nn.init.zeros_(parameter)
    save_run(tmp_path, model, word_tokenizer())
    run = explore.describe_run(tmp_path, SENTENCE)

    for layer in (1, 2):
        maps = maps_of(run, layer)  # (H, N, N)
        assert maps.shape == (H, N, N)
        mixer = model.bert.layers[layer - 1].mixer
        with torch.no_grad():
            x, attention_mask, expected = inputs_of_mixer(model, layer)
            z = maps.float() @ values_of(mixer, x, attention_mask)  # (H, N, d)
            result = mixer.output(z.transpose(0, 1).flatten(1))  # (N, H, d) -> (N, C)
        torch.testing.assert_close(result, expected[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("beyond", ["clip", "zero"])
def test_the_terms_alone_give_the_map_without_content(tmp_path, beyond):
    model = write_run(tmp_path, "composite-key", beyond=beyond)
    run = explore.describe_run(tmp_path, SENTENCE)
    ids, _ = look.encode_sentence(model, word_tokenizer(), SENTENCE)
    expected = look.attention_map(model, ids, layer=2, with_content=False)  # (H, N, N)
    for head, p in zip(run["layers"][1]["heads"], expected, strict=True):
        _, found = maps_of_attention(head, beyond)
        assert np.abs(found.numpy() - p).max() < 1e-4


# --- The page -------------------------------------------------------------------------------------


def test_a_sentence_cannot_become_a_part_of_the_page():
    sentence = "</script><script>alert(1)</script> </SCRIPT > <!-- <script> \"'\\ &lt; <b>bold</b>"
    page = explore.make_page(sentence, [])
    template = explore.TEMPLATE.read_text(encoding="utf-8")
    assert page.count("<") == template.count("<")
    start = page.index('<script type="application/json" id="data">')
    text = page[page.index(">", start) + 1 : page.index("</script", start)]
    assert json.loads(text)["sentence"] == sentence


@pytest.mark.parametrize(
    "arguments",
    [
        ["nowhere", SENTENCE],
        ["RUN", "the cat " * 12],
        ["LONG", "the cat " * 64],
        ["RUN", "the", "cat", "sleeps"],
    ],
)
def test_a_mistake_of_the_user_is_one_line(tmp_path, refused, arguments):
    places = {"RUN": tmp_path / "run", "LONG": tmp_path / "long"}
    write_run(places["RUN"], "composite")
    write_run(places["LONG"], "none", max_length=200)
    refused(explore.main, *[places.get(word, word) for word in arguments])
    assert not list(tmp_path.rglob("*.html"))
