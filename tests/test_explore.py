"""lab/explore.py: the numbers in the page are the model's, and the page is one safe file."""

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

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
NODE = shutil.which("node")  # runs JavaScript; optional


def write_run(folder, variant, **overrides):
    """Write the folder of a run of two layers with large random weights. Returns its model."""
    if VARIANTS[variant].has_kernel:
        overrides = {"kernel_size": K, **overrides}
    model = small_model(variant, **overrides)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    folder.mkdir(parents=True)
    save_run(folder, model, word_tokenizer())
    return model


@pytest.fixture
def write_page(run_program):
    """write_page(RUN, ..., "sentence", "--html", path): (exit code, output, error)."""

    def call(*arguments):
        return run_program(explore.main, *arguments)

    return call


@pytest.fixture
def page_of(tmp_path, write_page):
    """page_of("composite", ...) -> (model, the data of the page of this run)."""

    def call(variant, sentence=SENTENCE, **overrides):
        model = write_run(tmp_path / variant, variant, **overrides)
        path = tmp_path / f"{variant}.html"
        code, _, error = write_page(tmp_path / variant, sentence, "--html", path)
        assert code == 0, error
        return model, read_data(path)

    return call


def read_data(path):
    """The JSON text of a page, read as a browser reads it: up to the end of its element."""
    page = path.read_text(encoding="utf-8")
    start = '<script type="application/json" id="data">'
    assert page.count(start) == 1
    text = page[page.index(start) + len(start) :]
    return json.loads(text[: text.index("</script")])


def unpack(packed):
    """The array of float32 numbers that the page holds."""
    numbers = np.frombuffer(base64.b64decode(packed["float32"]), dtype="<f4")
    return torch.from_numpy(numbers.astype(np.float32)).reshape(packed["shape"])


def softmax(scores):
    return scores.double().softmax(dim=-1)


def inputs_of_mixer(model, layer):
    """(x, attention_mask, y) of the mixer of a layer, noted while the model reads the sentence."""
    ids, _ = look.encode(model, word_tokenizer(), SENTENCE)
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
def test_the_maps_of_the_page_times_the_values_give_what_the_mixer_gives(
    tmp_path, write_page, variant
):
    """For every variant; what is added outside the score is set to 0 in the model."""
    model = write_run(tmp_path / "run", variant)
    for name, parameter in model.named_parameters():
        if name.endswith("relative_value.s") or "mixer.depthwise" in name:
            torch.nn.init.zeros_(parameter)
    save_run(tmp_path / "run", model, word_tokenizer())

    assert write_page(tmp_path / "run", SENTENCE, "--html", tmp_path / "a.html").code == 0
    (run,) = read_data(tmp_path / "a.html")["runs"]

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
@pytest.mark.parametrize("variant", ["composite-key", "composite-conv-qk", "shaw"])
def test_every_term_in_the_page_is_that_of_the_loop_references(page_of, variant, beyond):
    model, data = page_of(variant, beyond=beyond)
    layer = 2
    run = data["runs"][0]
    assert run["beyond"] == beyond
    for head in run["layers"][layer - 1]["heads"]:
        for term in head["terms"]:
            assert term["clipped"] == (beyond == "clip")

    # queries and keys by loops
    x, attention_mask, _ = inputs_of_mixer(model, layer)
    weights = model.bert.layers[layer - 1].mixer.state_dict()
    q = references.projection(x, attention_mask, weights, "query", VARIANTS[variant])[0]  # (N, C)
    k = references.projection(x, attention_mask, weights, "key", VARIANTS[variant])[0]  # (N, C)
    d = q.shape[-1] // H

    for h, head in enumerate(run["layers"][layer - 1]["heads"]):
        q_h = q[:, h * d : (h + 1) * d]
        k_h = k[:, h * d : (h + 1) * d]
        names = [name for name in VARIANTS[variant].terms if name in references.SCORE_TERMS]
        assert {term["name"] for term in head["terms"]} == set(names)

        # one query with keys within and beyond k on both sides: r = -3 .. 10
        i = 3
        for j in range(N):
            content = unpack(head["content"])[i, j]
            assert abs(content - references.content_score(q_h[i], k_h[j])) < 1e-4
        for term in head["terms"]:
            scores = term_scores(term, i, beyond)
            loop = references.SCORE_TERMS[term["name"]]
            for j in range(N):
                expected = loop(weights, q_h[i], k_h[j], i, j, h, model.config, N)
                assert abs(scores[j] - expected) < 1e-4, (term["name"], h, i, j)


def test_the_maps_and_kernels_are_those_of_the_figures(page_of):
    model, data = page_of("composite")
    ids, _ = look.encode(model, word_tokenizer(), SENTENCE)
    fixed = look.fixed_kernels(model)
    for layer in (1, 2):
        dynamic = look.dynamic_kernels(model, ids, layer)  # (H, N, K)
        heads = data["runs"][0]["layers"][layer - 1]["heads"]
        for h, head in enumerate(heads):
            expected = look.attention_maps(model, ids, layer, h + 1)
            for found, figure in zip(maps_of_attention(head, "clip"), expected, strict=True):
                assert np.abs(found.numpy() - figure).max() < 1e-4

            fixed_term, dynamic_term = head["terms"]
            p = softmax(unpack(fixed_term["rows"]))[0].numpy()  # (K,)
            assert np.abs(p - fixed[layer][h]).max() < 1e-4
            assert fixed_term["words"] == look.describe(fixed[layer][h], clipped=True)
            p = softmax(unpack(dynamic_term["rows"])).numpy()  # (N, K)
            assert np.abs(p - dynamic[h]).max() < 1e-4


@pytest.mark.skipif(NODE is None, reason="node, which runs JavaScript, is optional")
@pytest.mark.parametrize(
    "variant, overrides",
    [
        ("composite-key", {"beyond": "clip"}),
        ("composite-key", {"beyond": "zero"}),
        ("absolute", {}),
        ("convbert", {}),
        ("dilated", {}),
    ],
)
def test_the_script_of_the_page_computes_the_same_maps(page_of, variant, overrides):
    _, data = page_of(variant, **overrides)
    run = data["runs"][0]
    template = explore.TEMPLATE.read_text(encoding="utf-8")
    arithmetic = re.search(r'<script id="arithmetic">(.*?)</script>', template, re.DOTALL)[1]

    # all heads of both layers, as the page reads them
    program = arithmetic + (
        "const run = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
        "const layers = run.layers.map((layer, l) => layer.heads.map((_, h) =>"
        "  readHead(run, l + 1, h + 1).rows));"
        "console.log(JSON.stringify(layers));"
    )
    done = subprocess.run(
        [NODE, "-e", program], input=json.dumps(run), text=True, stdout=subprocess.PIPE
    )
    assert done.returncode == 0
    for layer, heads in enumerate(json.loads(done.stdout), 1):
        expected = maps_of(run, layer)
        for h, rows in enumerate(heads):
            found = torch.tensor([row["weights"] for row in rows], dtype=torch.float64)
            assert (found - expected[h]).abs().max() < 1e-6

            head = run["layers"][layer - 1]["heads"][h]
            if head["terms"] and head["kind"] == "attention":
                found = torch.tensor([row["kernel"] for row in rows], dtype=torch.float64)
                _, kernel = maps_of_attention(head, run["beyond"])
                assert (found - kernel).abs().max() < 1e-6


@pytest.mark.parametrize(
    "variant, content",
    [
        ("composite", "q_i\u00b7k_j/\u221ad"),
        ("xl", "(q_i+u)\u00b7k_j/\u221ad"),
        ("rotary", "(R_i q_i)\u00b7(R_j k_j)/\u221ad"),
        ("deberta", "q_i\u00b7k_j/\u221a(3d)"),
    ],
)
def test_the_content_has_the_symbol_of_its_variant(page_of, variant, content):
    _, data = page_of(variant)
    assert data["runs"][0]["content"] == content


def test_two_terms_that_change_the_content_are_both_in_its_symbol():
    variant = attention.Variant("xl + rotary", terms=("rotary", "xl"))
    assert explore.content_of(variant) == "(R_i (q_i+u))\u00b7(R_j k_j)/\u221ad"


def test_convbert_has_attention_heads_and_then_convolution_heads(page_of):
    _, data = page_of("convbert")
    kinds = [head["kind"] for head in data["runs"][0]["layers"][0]["heads"]]
    assert kinds == ["attention", "attention", "convolution", "convolution"]


def test_a_fixed_kernel_has_words_unless_its_weights_are_several_tokens_apart(page_of):
    _, data = page_of("dilated")
    for layer, dilation in zip(data["runs"][0]["layers"], (1, 2), strict=True):
        for head in layer["heads"]:
            assert head["dilation"] == dilation
            assert bool(head["terms"][0]["words"]) == (dilation == 1)


@pytest.mark.parametrize(
    "variant, words",
    [
        ("shaw", "relative_value adds a vector to the values"),
        ("depthwise", "depthwise convolution of the values"),
        ("conv-v", "depthwise convolution for the value"),
        ("absolute", "absolute position"),
    ],
)
def test_a_note_says_what_the_maps_leave_out(page_of, variant, words):
    _, data = page_of(variant)
    for layer in data["runs"][0]["layers"]:
        assert words in " ".join(layer["notes"])


def test_a_mixer_of_ones_own_without_kernels_gets_a_note_in_place_of_maps(page_of, monkeypatch):
    class Identity(attention.Mixer):
        def __init__(self, config, variant, layer):
            super().__init__()

        def forward(self, x, attention_mask):
            return x

    monkeypatch.setitem(VARIANTS, "identity", attention.Variant("y = x", mixer=Identity))
    _, data = page_of("identity")
    for layer in data["runs"][0]["layers"]:
        assert layer["heads"] == []
        assert layer["notes"] == ["Identity has neither attention nor kernels to draw a map of."]


def test_a_term_of_ones_own_is_in_the_page_under_its_name(page_of, monkeypatch):
    class Slope(attention.Term):
        """- |r|, with a row for each query that does not depend on the text."""

        def forward(self, q):
            r = torch.arange(-2.0, 3.0)
            return -r.abs().expand(*q.shape[1:3], -1)  # (H, N, K)

    monkeypatch.setitem(attention.TERMS, "slope", Slope)
    monkeypatch.setitem(VARIANTS, "slope", attention.Variant("a_ij - |r|", terms=("slope",)))
    _, data = page_of("slope")
    (term,) = data["runs"][0]["layers"][0]["heads"][0]["terms"]
    assert term["name"] == "slope"
    assert unpack(term["rows"]).tolist() == [[-2, -1, 0, -1, -2]] * N


def test_a_combination_of_ones_own_has_the_content_and_the_words_of_its_terms(page_of, monkeypatch):
    """The end weights of t5 are for one distance, also beside a clipped term."""
    mine = attention.Variant("fixed + t5 + rotary", terms=("fixed", "t5", "rotary"))
    monkeypatch.setitem(VARIANTS, "mine", mine)
    clipped = []
    describe = explore.describe

    def note(p, is_clipped):
        clipped.append(is_clipped)
        return describe(p, is_clipped)

    monkeypatch.setattr(explore, "describe", note)
    _, data = page_of("mine")
    run = data["runs"][0]
    assert "R_i q_i" in run["content"]
    expected = []
    for layer in run["layers"]:
        heads = layer["heads"]
        assert heads
        for head in heads:
            assert [term["name"] for term in head["terms"]] == ["fixed", "t5"]
            assert [term["clipped"] for term in head["terms"]] == [True, False]
        note_on_rotary = "The term rotary changes the content term: positions are part of it."
        assert note_on_rotary in layer["notes"]
        expected += [True] * len(heads) + [False] * len(heads)
    assert clipped == expected


# --- The page is one safe file --------------------------------------------------------------------


class Elements(HTMLParser):
    """The start tags of a page as a browser reads them: [(tag, attributes), ...]."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


@pytest.mark.parametrize(
    "sentence",
    [
        "</script><script>alert(1)</script> </SCRIPT > <!-- <script>",
        "\"quotes\" 'and' \\ & &lt; <b>bold</b>",
        "a cat \U0001f600 \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202e\u2028 cat",
        "DATA_OF_THE_PAGE",
    ],
)
def test_a_sentence_cannot_become_a_part_of_the_page(tmp_path, write_page, sentence):
    write_run(tmp_path / "run", "fixed", max_length=64)
    assert write_page(tmp_path / "run", sentence, "--html", tmp_path / "a.html").code == 0
    assert read_data(tmp_path / "a.html")["sentence"] == sentence
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    template = explore.TEMPLATE.read_text(encoding="utf-8")
    assert Elements(page).found == Elements(template).found


def test_bytes_that_are_not_text_become_question_marks(tmp_path, write_page):
    write_run(tmp_path / "run", "fixed")
    assert write_page(tmp_path / "run", "the \udcff cat", "--html", tmp_path / "a.html").code == 0
    assert read_data(tmp_path / "a.html")["sentence"] == "the ? cat"


def test_the_page_loads_nothing_and_the_browser_is_told_so():
    template = explore.TEMPLATE.read_text(encoding="utf-8")
    policy = ""
    for tag, attributes in Elements(template).found:
        assert "src" not in attributes
        if tag == "link":
            assert attributes["href"] == "data:,"
        if attributes.get("http-equiv") == "Content-Security-Policy":
            policy = attributes["content"]
    assert policy.startswith("default-src 'none';")
    for word in ("http:", "https:", "//cdn", "@import", "url(", "fetch(", "XMLHttpRequest"):
        assert word not in template


def test_every_element_that_the_script_looks_for_is_in_the_page():
    template = explore.TEMPLATE.read_text(encoding="utf-8")
    assert template.count(explore.MARK) == 1
    elements = Elements(template).found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    classes = " ".join(attributes.get("class", "") for _, attributes in elements).split()

    assert len(ids) == len(set(ids))
    for name in re.findall(r'getElementById\("(\w+)"\)', template):
        assert name in ids
    for name in re.findall(r'(?:find|querySelector|querySelectorAll)\("\.(\w+)', template):
        assert name in classes


def test_the_legend_has_the_colours_of_the_maps():
    template = explore.TEMPLATE.read_text(encoding="utf-8")
    gradient = re.search(r"linear-gradient\((.*?)\)", template, re.DOTALL)[1]
    legend = [list(bytes.fromhex(colour)) for colour in re.findall(r"#(\w{6})", gradient)]
    colours = re.search(r"CIVIDIS = (\[.*?\]);", template, re.DOTALL)[1]
    assert json.loads(colours) == legend
    assert len(legend) == 9


def test_a_sentence_of_30_tokens_in_a_model_of_base_size_is_below_2_megabytes(tmp_path, write_page):
    """12 layers with 12 heads and the most terms that a variant has."""
    sizes = {"layers": 12, "heads": 12, "hidden_size": 96, "max_length": 40, "kernel_size": 17}
    write_run(tmp_path / "run", "composite-key", **sizes)
    path = tmp_path / "a.html"
    assert write_page(tmp_path / "run", "the cat " * 15, "--html", path).code == 0
    assert len(read_data(path)["runs"][0]["tokens"]) == 32
    assert path.stat().st_size < 2_000_000


# --- The command line -----------------------------------------------------------------------------


def test_two_runs_are_in_one_page_in_the_order_of_the_command_line(tmp_path, write_page):
    write_run(tmp_path / "a", "composite")
    write_run(tmp_path / "b", "lightconv", layers=1)
    path = tmp_path / "deep" / "ab.html"
    code, out, _ = write_page("--html", path, tmp_path / "a", tmp_path / "b", SENTENCE)
    assert code == 0
    assert out == f"{path}\n"
    data = read_data(path)
    assert [run["name"] for run in data["runs"]] == ["a", "b"]
    assert [run["variant"] for run in data["runs"]] == ["composite", "lightconv"]
    assert [len(run["layers"]) for run in data["runs"]] == [2, 1]
    assert data["runs"][0]["equation"] == VARIANTS["composite"].equation
    assert data["runs"][0]["tokens"] == ["[CLS]", *SENTENCE.split(), "[SEP]"]


def test_without_a_name_the_page_is_among_the_figures_of_the_run(tmp_path, write_page):
    write_run(tmp_path / "run", "fixed")
    path = tmp_path / "run" / "figures" / "explore.html"
    assert write_page(tmp_path / "run", SENTENCE).out == f"{path}\n"
    assert read_data(path)["sentence"] == SENTENCE


def test_the_same_command_writes_the_same_page(tmp_path, write_page):
    write_run(tmp_path / "run", "convbert")
    for name in ("a.html", "b.html"):
        assert write_page(tmp_path / "run", SENTENCE, "--html", tmp_path / name).code == 0
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["RUN/absent", SENTENCE], "is not a run"),
        (["RUN", "RUN/absent", SENTENCE], "is not a run"),
        (["RUN", " "], "the sentence is empty"),
        (["RUN", "the cat " * 12], "the sentence has 26 tokens, the model takes 24"),
        (["LONG", "the cat " * 64], "130 tokens, the page shows at most 128"),
        (["RUN", "RUN"], "the sentence is missing"),
        (["RUN", "the", "cat", "sleeps"], "then the sentence in quotation marks"),
        (["RUN", SENTENCE, "--html", "RUN"], "is a folder; name a file in it"),
        (["RUN", SENTENCE, "--html", "RUN/model.pt"], "must end with .html"),
        (["RUN", SENTENCE, "--html", "RUN/config.json/a.html"], "config.json"),
    ],
)
def test_an_error_gets_one_line_and_no_page(tmp_path, write_page, arguments, message):
    places = {"RUN": tmp_path / "run", "LONG": tmp_path / "long"}
    write_run(places["RUN"], "composite")
    write_run(places["LONG"], "none", max_length=200)

    completed = []
    for argument in arguments:
        name, slash, rest = argument.partition("/")
        completed.append(f"{places.get(name, name)}{slash}{rest}")
    code, out, error = write_page(*completed)
    assert code == 2 and not out
    assert error.startswith("lab.explore: ") and message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.rglob("*.html"))
