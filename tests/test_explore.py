"""lab/explore.py: the numbers in the page are the model's, and they are for this page alone."""

import base64
import http.client
import json
import os
from threading import Thread

import numpy as np
import pytest
import torch

import attention
import references
from attention import VARIANTS, split_heads
from lab import explore, look
from model import fill_in, save_run
from model_helpers import call_of_mixer, small_model, word_tokenizer, write_run

SENTENCE = "the cat was tired . the dogs were tired . the cat"
IDS, _ = look.encode_sentence(small_model(), word_tokenizer(), SENTENCE)  # (1, N)
N = 14  # tokens of the sentence, [CLS] and [SEP] included
H = 4
WITH_BLANKS = "the [MASK] was tired . the dogs [MASK]"  # without an end mark


def unpack(packed):
    """The array of float32 numbers that the page holds."""
    numbers = np.frombuffer(base64.b64decode(packed["float32"]), dtype="<f4")
    return torch.from_numpy(numbers.astype(np.float32)).reshape(packed["shape"])


# --- The attention matrices, made again from the numbers in the page ------------------------------


def attention_matrix(head, beyond):
    """(N, N): the softmax of the content and of what the terms add."""
    scores = unpack(head["content"])
    for term in head["terms"]:
        bias = unpack(term["bias"]).expand(N, -1)  # (N, K) or (1, K) -> (N, K)
        adds = references.key_scores if term["belongs_to"] == "key" else references.relative_scores
        scores = scores + adds(bias, N, beyond)
    return scores.double().softmax(dim=-1)


def convolution_matrix(head):
    """(N, N): the weight of token j in z_i."""
    (term,) = head["terms"]
    biases = unpack(term["bias"]).double().expand(N, -1)  # (N, K)
    values = torch.eye(N).double()  # so that z_i is the weights themselves
    dilation = head["dilation"]
    return torch.stack(
        [references.convolve_at(biases[i], values, i, dilation, causal=False) for i in range(N)]
    )


def matrices_of(run, layer):
    """The matrices of all heads of a layer, (H, N, N)."""
    matrices = []
    for head in run["layers"][layer - 1]["heads"]:
        if head["kind"] == "attention":
            matrices.append(attention_matrix(head, run["beyond"]))
        else:
            matrices.append(convolution_matrix(head))
    return torch.stack(matrices)


def values_of(mixer, x, attention_mask):
    """The values (H, N, d) that the matrices of a mixer are multiplied with."""
    if isinstance(mixer, attention.GatedConvolution):
        values = mixer.gate(x, attention_mask)  # (1, N, C)
    elif isinstance(mixer, attention.SelfAttention):
        _, _, values = mixer.project(x, attention_mask)
    else:
        values = mixer.value(x)
    return split_heads(values, H)[0]


def check_answers(answers, model):
    """{token: [(word, probability), ...]} of WITH_BLANKS is what model.py gives, to 1e-6."""
    expected = fill_in(model, word_tokenizer(), WITH_BLANKS)
    assert list(answers) == [2, 8]
    for found, best in zip(answers.values(), expected, strict=True):
        assert [word for word, _ in found] == [word for word, _ in best]
        assert [p for _, p in found] == pytest.approx([p for _, p in best], abs=1e-6)


# --- The numbers are the model's ------------------------------------------------------------------


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_the_matrices_of_the_page_times_the_values_give_what_the_mixer_gives(tmp_path, variant):
    """For every variant; what is added outside the score is set to 0 in the model.

    Self-attention: they are the matrices of lab.look, too. And the answers are those of model.py.
    """
    model = write_run(tmp_path, variant)
    for name, parameter in model.named_parameters():
        if name.endswith("relative_value.s") or "mixer.depthwise" in name:
            torch.nn.init.zeros_(parameter)
    save_run(tmp_path, model, word_tokenizer())
    run = explore.describe_run(tmp_path, SENTENCE)

    for layer in (1, 2):
        matrices = matrices_of(run, layer).float()  # (H, N, N)
        assert matrices.shape == (H, N, N)
        mixer = model.bert.layers[layer - 1].mixer
        if isinstance(mixer, attention.SelfAttention):
            looked = torch.from_numpy(look.attention_map(model, IDS, layer))
            torch.testing.assert_close(looked, matrices, atol=1e-5, rtol=0)
        with torch.no_grad():
            x, attention_mask, expected = call_of_mixer(model, IDS, layer)
            z = matrices @ values_of(mixer, x, attention_mask)  # (H, N, d)
            result = mixer.output(z.transpose(0, 1).flatten(1))  # (N, H, d) -> (N, C)
        torch.testing.assert_close(result, expected[0], atol=1e-4, rtol=1e-4)
    for answers in explore.describe_run(tmp_path, WITH_BLANKS)["answers"]:
        check_answers(answers, model)


# --- The answers, and terms that are switched off -------------------------------------------------


def test_a_left_to_right_model_shows_the_next_words_after_every_token():
    model = small_model()
    model.config.causal = True
    answers = look.best_words(model, word_tokenizer(), IDS)
    expected = model(IDS)[0].softmax(dim=-1).topk(5).values  # (N, 5)
    found = [[probability for _, probability in best] for best in answers.values()]
    torch.testing.assert_close(torch.tensor(found), expected)


TERMS = [name for name, v in VARIANTS.items() if v.terms and not (v.convolutional or v.depthwise)]


@pytest.mark.parametrize("variant", TERMS)
def test_without_its_terms_a_model_is_the_variant_none(tmp_path, variant):
    """And the next numbers are those of all terms again."""
    model = write_run(tmp_path, variant)
    plain = small_model("none")
    plain.load_state_dict(model.state_dict(), strict=False)
    run = explore.describe_run(tmp_path, WITH_BLANKS, VARIANTS[variant].terms)
    assert not run["layers"][1]["heads"][0]["terms"]
    without, with_all = run["answers"]
    check_answers(without, plain)
    check_answers(with_all, model)
    assert without != with_all
    check_answers(explore.describe_run(tmp_path, WITH_BLANKS)["answers"][0], model)


@pytest.mark.parametrize("name, table", [("fixed", "beta"), ("dynamic", "w"), ("key_dynamic", "u")])
def test_a_term_that_is_off_adds_what_a_table_of_zeros_adds(tmp_path, name, table):
    model = write_run(tmp_path, "composite-key")
    answers, _ = explore.describe_run(tmp_path, WITH_BLANKS, [name])["answers"]
    for block in model.bert.layers:
        torch.nn.init.zeros_(getattr(block.mixer.terms[name], table))
    check_answers(answers, model)


@pytest.mark.parametrize("beyond", ["clip", "zero"])
def test_without_the_content_the_terms_alone_make_the_matrix(tmp_path, beyond):
    model = write_run(tmp_path, "composite-key", beyond=beyond)
    expected = look.attention_map(model, IDS, layer=1, with_content=False)  # (H, N, N)
    run = explore.describe_run(tmp_path, SENTENCE, ["content"])
    assert np.abs(matrices_of(run, 1).numpy() - expected).max() < 1e-6

    # in layer 2, the tokens that layer 1 has made without content
    changed = look.without_terms(model, ["content"])
    expected = look.attention_map(changed, IDS, layer=2)
    assert np.abs(matrices_of(run, 2).numpy() - expected).max() < 1e-6


# --- The page that answers ------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    """A server of the run a, beside which is a run b."""
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "none")
    server = explore.PageServer(("127.0.0.1", 0), explore.Exchange)
    server.runs = [str(tmp_path / "a")]
    server.daemon_threads = False  # server_close waits for them
    thread = Thread(target=server.serve_forever, args=[0.01])  # seconds until it sees shutdown
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def request(server, method, path, body=None, headers=None):
    """(status, text) of the response."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=60)
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    return response.status, response.read().decode()


def ask(server, sentence, off=(), runs=None, **headers):
    """(status, text) of the response to a question."""
    question = {"sentence": sentence, "off": off, "runs": runs or server.runs}
    headers = {"Content-Type": "application/json", **headers}
    return request(server, "POST", "/numbers", json.dumps(question), headers)


def test_the_page_gets_the_numbers_of_one_or_two_runs(server):
    status, page = request(server, "GET", "/")
    assert status == 200 and json.dumps(server.runs) in page

    both = server.choices()
    assert [os.path.basename(name) for name in both] == ["a", "b"]
    _, text = ask(server, WITH_BLANKS, ["fixed"], both)
    expected = [explore.describe_run(name, WITH_BLANKS, ["fixed"]) for name in both]
    assert json.loads(text) == json.loads(json.dumps({"runs": expected, "choices": both}))


def test_another_page_in_the_browser_gets_nothing(server):
    assert ask(server, SENTENCE, Host="evil.example")[0] == 403
    assert ask(server, SENTENCE, Origin="http://evil.example")[0] == 403
    assert ask(server, SENTENCE, runs=["/"])[0] == 400


@pytest.mark.parametrize("sentence", ["the \ud800", "the cat " * 12])
def test_a_mistake_in_the_page_is_one_line_and_the_next_question_is_answered(server, sentence):
    status, line = ask(server, sentence)
    assert status == 400 and len(line.splitlines()) == 1
    assert ask(server, "")[0] == ask(server, SENTENCE)[0] == 200


QUESTION = {"sentence": SENTENCE, "runs": [], "off": []}


@pytest.mark.parametrize(
    "question",
    [
        *[{name: x for name, x in QUESTION.items() if name != left_out} for left_out in QUESTION],
        *[{**QUESTION, name: None} for name in QUESTION],
        {**QUESTION, "sentence": 5},
        {**QUESTION, "runs": [5]},
        {**QUESTION, "runs": ["\ud800"]},
        {**QUESTION, "off": [[]]},
        [],
        None,
    ],
)
def test_a_question_that_lacks_a_field_is_one_line_and_400(server, question, capfd):
    for body in (json.dumps(question), json.dumps(question).encode("utf-16"), "[" * 9000):
        headers = {"Content-Type": "application/json"}
        status, line = request(server, "POST", "/numbers", body, headers)
        assert status == 400 and len(line.splitlines()) == 1
    assert capfd.readouterr() == ("", "")


def test_a_sentence_cannot_become_a_part_of_the_page():
    sentence = "</script><script>alert(1)</script> </SCRIPT > <!-- <script> \"'\\ &lt; <b>bold</b>"
    page = explore.make_page(sentence, [])
    template = explore.TEMPLATE.read_text("utf-8")
    assert page.count("<") == template.count("<")
    start = page.index('<script type="application/json" id="data">')
    text = page[page.index(">", start) + 1 : page.index("</script", start)]
    assert json.loads(text)["sentence"] == sentence
