"""lab/explore.py: the numbers in the page are the model's, and nobody else can ask for them."""

import base64
import http.client
import json
import os
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import numpy as np
import pytest
import torch

import attention
import references
from attention import VARIANTS, split_heads
from conftest import needs_signals, start_process
from lab import explore, look
from model import fill_in, save_run
from model_helpers import call_of_mixer, small_model, word_tokenizer, write_run
from support.commands import run_command

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
        bias = unpack(term["rows"]).expand(N, -1)  # (N, K) or (1, K) -> (N, K)
        adds = references.key_scores if term["belongs_to"] == "key" else references.relative_scores
        scores = scores + adds(bias, N, beyond)
    return scores.double().softmax(dim=-1)


def convolution_matrix(head):
    """(N, N): the weight of token j in z_i."""
    (term,) = head["terms"]
    biases = unpack(term["rows"]).double().expand(N, -1)  # (N, K)
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


def request(server, method, path, body=None, **headers):
    """(status, text, headers) of a response. Names of headers have "_" in place of "-"."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=60)
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.read().decode(), response.headers


def ask(server, sentence, off=(), runs=None, **headers):
    question = {"sentence": sentence, "off": off, "runs": runs or server.runs}
    headers = {"Content_Type": "application/json", **headers}
    return request(server, "POST", "/numbers", json.dumps(question), **headers)


def test_the_page_gets_the_numbers_of_one_or_two_runs(server):
    status, page, _ = request(server, "GET", "/")
    assert status == 200 and json.dumps(server.runs) in page

    both = server.choices()
    assert [os.path.basename(name) for name in both] == ["a", "b"]
    status, text, _ = ask(server, WITH_BLANKS, ["fixed"], both)
    expected = [explore.describe_run(name, WITH_BLANKS, ["fixed"]) for name in both]
    assert json.loads(text) == json.loads(json.dumps({"runs": expected, "choices": both}))


def test_eight_questions_at_once_get_the_answers_that_they_get_one_by_one(server):
    switched = [[], ["fixed"], ["dynamic"], ["content"]]
    questions = [(sentence, off) for sentence in (SENTENCE, WITH_BLANKS) for off in switched]
    expected = [ask(server, *question)[1] for question in questions]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda question: ask(server, *question)[1], questions))
    assert found == expected
    assert len(set(expected)) == 8


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
    ],
)
def test_only_the_page_itself_may_ask(server, headers, status):
    found, text, sent = ask(server, SENTENCE, **headers)
    assert found == status
    assert (status == 200) == ("tokens" in text)
    assert "Access-Control-Allow-Origin" not in sent
    if "Host" in headers:
        assert request(server, "GET", "/", **headers)[0] == status


def test_nothing_but_the_page_and_its_numbers_is_served(server, tmp_path):
    for path in ("/a/config.json", "/..", "/numbers"):
        assert request(server, "GET", path)[0] == 404
    write_run(tmp_path / "deeper" / "c", "none")
    for name in (tmp_path / "deeper" / "c", tmp_path / "a" / ".." / "b", "b"):
        assert ask(server, SENTENCE, runs=[str(name)])[0] == 400


@pytest.mark.parametrize("sentence", ["the \ud800", "the cat " * 12])
def test_a_mistake_in_the_page_is_one_line_and_the_next_question_is_answered(server, sentence):
    status, line, _ = ask(server, sentence)
    assert status == 400 and line and len(line.splitlines()) == 1
    assert ask(server, "")[0] == ask(server, SENTENCE)[0] == 200


@pytest.mark.parametrize(
    "length, status", [(None, 400), ("-1", 400), ("abc", 400), (str(10**12), 413)]
)
def test_a_length_that_is_none_is_refused(server, length, status):
    connection = http.client.HTTPConnection(*server.server_address, timeout=60)
    connection.putrequest("POST", "/numbers")
    connection.putheader("Content-Type", "application/json")
    if length:
        connection.putheader("Content-Length", length)
    connection.endheaders()
    assert connection.getresponse().status == status


def test_a_silent_connection_keeps_nobody_waiting_and_is_closed(server, monkeypatch):
    assert explore.Exchange.timeout > 0  # seconds; None would be for ever
    monkeypatch.setattr(explore.Exchange, "timeout", 1000)
    with socket.create_connection(server.server_address):
        assert request(server, "GET", "/")[0] == 200
    monkeypatch.setattr(explore.Exchange, "timeout", 0.1)
    with socket.create_connection(server.server_address, timeout=60) as silent:
        assert silent.recv(1) == b""


def test_a_browser_that_is_closed_in_the_middle_of_an_answer_prints_nothing(server, capfd):
    question = json.dumps({"sentence": SENTENCE, "off": [], "runs": server.runs}).encode()
    start = b"POST /numbers HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    for _ in range(5):
        with socket.create_connection(server.server_address) as browser:
            browser.sendall(start + b"Content-Length: %d\r\n\r\n" % len(question) + question)
            # closed at once: what is written to it is an error on the other side
            browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ask(server, SENTENCE)[0] == 200
    server.shutdown()
    server.server_close()
    assert capfd.readouterr() == ("", "")


def be_explore(*words):
    # a shell may have started the tests in the background, where Ctrl-C is ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    explore.Exchange.timeout = 1000
    run_command(lambda: explore.main(words))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@needs_signals
def test_ctrl_c_ends_it_with_an_open_connection_and_only_127_0_0_1_is_served(tmp_path):
    write_run(tmp_path)
    port = free_port()
    process = start_process(be_explore, str(tmp_path), "--no_browser", "--port", str(port))
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            assert process.is_alive()
            time.sleep(0.05)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", port), timeout=10)

    # when a later connection is answered, the first one has its thread
    page = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    page.request("GET", "/")
    assert page.getresponse().status == 200
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130
    connection.close()


def test_a_port_that_cannot_be_had_is_one_line(tmp_path, refused):
    write_run(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"port {port}" in refused(explore.main, tmp_path, "--port", port, "--no_browser")


# --- The page -------------------------------------------------------------------------------------


def test_the_page_reaches_nothing_but_its_own_server_and_what_is_typed_is_text():
    page = explore.TEMPLATE.read_text("utf-8")
    policy = page[page.index("default-src") :].split('"')[0]
    assert "default-src 'none'; connect-src 'self';" in policy
    assert "http" not in policy and "*" not in policy
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "setHTML"):
        assert name not in page


def test_a_sentence_cannot_become_a_part_of_the_page():
    sentence = "</script><script>alert(1)</script> </SCRIPT > <!-- <script> \"'\\ &lt; <b>bold</b>"
    page = explore.make_page(sentence, [])
    template = explore.TEMPLATE.read_text("utf-8")
    assert page.count("<") == template.count("<")
    start = page.index('<script type="application/json" id="data">')
    text = page[page.index(">", start) + 1 : page.index("</script", start)]
    assert json.loads(text)["sentence"] == sentence
