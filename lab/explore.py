"""An HTML page that shows the inside of a model: how the scores of a token are a sum of terms.

    python -m lab.explore RUN                                a page that answers what is typed
    python -m lab.explore RUN RUN2                           two runs, compared
    python -m lab.explore RUN [RUN2] "the dog barks."        a file about this sentence

RUN is a folder that pretrain.py wrote. For every layer and head the page shows the terms whose sum
is the scores of a token, the attention weights next to those of the kernel alone, and the kernels;
for every [MASK], the best words.

Without a sentence, this program serves the page on 127.0.0.1, to browsers of this machine only: one
types a sentence, chooses other runs beside RUN, and switches terms off. With a sentence, it writes
the page as one file, by default RUN/figures/explore.html of the first RUN. The page loads nothing
from a network.

The numbers are computed here: the scores of each term, and the bias of each kernel. The page,
lab/explore.html, adds them up and takes the softmax. Letters as in attention.py.
"""

import argparse
import base64
import json
import math
import os
import sys
import threading
import webbrowser
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch

from attention import VARIANTS, ConvBert, Deberta, SelfAttention, Term
from lab.look import (
    best_words,
    depthwise_convolutions,
    encode_sentence,
    fixed_bias,
    input_of_mixer,
    is_clipped,
    mixer_of,
    queries_and_keys,
    token_bias,
    without_terms,
)
from model import has_head, load_run, with_end_mark
from support.commands import UserError, number, run_command
from support.files import load_checkpoint, write_text
from support.runs import say_unknown_words, unseen_pieces
from support.tokenizer import unknown_words

TEMPLATE = Path(__file__).with_name("explore.html")
MARK = "DATA_OF_THE_PAGE"  # in the template, once: the JSON text takes its place

# A matrix has N x N numbers for each layer and head: with more tokens the page becomes too large.
LONGEST = 128  # tokens
LARGEST_QUESTION = 100_000  # bytes that are read

FIRST_SENTENCE = "the cat that chased the dogs [MASK] tired."  # of the page that answers

# What a term adds to the score a_ij, with r = j - i. A term that is not listed has only its name.
SYMBOLS = {
    "fixed": "\u03b2_r",
    "dynamic": "q_i\u00b7w_r/\u221ad",
    "key_dynamic": "k_j\u00b7u_(i\u2212j)/\u221ad",
    "t5": "\u03b2_bucket(r)",
    "alibi": "\u2212m_h|r|",
    "fire": "mlp_h(r)",
    "xl": "(q_i+b_p)\u00b7(W S_r)/\u221ad",
    "content_to_position": "q_i\u00b7(W_k P_r)/\u221a(3d)",
    "position_to_content": "k_j\u00b7(W_q P_(i\u2212j))/\u221a(3d)",
}

# The content, by the first term, or by the class of a mixer without terms, that changes it.
CONTENT = {
    "xl": "(q_i+b_c)\u00b7k_j/\u221ad",
    "rotary": "(R_i q_i)\u00b7(R_j k_j)/\u221ad",
    "Deberta": "q_i\u00b7k_j/\u221a(3d)",
}

# The biases of convolutions, whose softmax is the kernel, by the name of their class.
CONVOLUTIONS = {
    "LightConv": "weight_r",
    "DynamicConv": "kernel(g_i)_r",
    "ConvBert": "kernel(c_i*q_i)_r",
}


# --- The numbers ----------------------------------------------------------------------------------


@cache
def open_run(folder):
    """(model, tokenizer, whether the model has a masked-LM head). A run is read once."""
    model, tokenizer = load_run(folder, needs_head=False)
    return model, tokenizer, has_head(load_checkpoint(Path(folder) / "model.pt"))


def describe_run(folder, sentence, off=()):
    """What the page shows of one run: a dictionary of plain values.

    off: names of terms that add nothing (lab.look.without_terms).
    """
    model, tokenizer, can_answer = open_run(folder)
    # as model.py does before it fills in a blank
    if "[MASK]" in sentence:
        sentence = with_end_mark(sentence)
    ids, pieces = encode_sentence(model, tokenizer, sentence)
    if len(pieces) > LONGEST:
        raise UserError(f"the sentence has {len(pieces)} tokens, the page shows at most {LONGEST}")

    # the scores and kernels of every layer; the answers without these terms, and with all
    config = model.config
    changed = without_terms(model, off)
    layers = [describe_layer(changed, ids, layer) for layer in range(1, config.layers + 1)]

    # what names the run
    variant = VARIANTS[config.variant]
    first = [*variant.terms, variant.mixer.__name__][0]  # a term, otherwise the mixer
    return {
        "name": Path(folder).resolve().name,
        "variant": config.variant,
        "equation": variant.equation,
        "content": CONTENT.get(first, "q_i\u00b7k_j/\u221ad"),
        "beyond": config.beyond,
        "causal": config.causal,
        "tokens": pieces,
        "terms": variant.terms,
        "unknown": unknown_words(tokenizer, sentence, unseen_pieces(folder)),
        "answers": [best_words(each, tokenizer, ids) for each in (changed, model) if can_answer],
        "layers": layers,
    }


@torch.no_grad()
def describe_layer(model, ids, layer):
    """The heads of a layer, those of attention first, and notes on what the page leaves out."""
    mixer = mixer_of(model, layer)
    x, attention_mask = input_of_mixer(model, ids, layer)  # (1, N, C)

    # ConvBERT has heads of both kinds.
    heads = []
    if isinstance(mixer, (SelfAttention, ConvBert)):
        heads += attention_heads(mixer, x, attention_mask, is_clipped(model))
    if not isinstance(mixer, SelfAttention):
        heads += convolution_heads(mixer, x, attention_mask)
    return {
        "heads": heads,
        "can_switch": not isinstance(mixer, Deberta | ConvBert),  # their terms are always there
        "notes": list(notes_on(model, mixer, layer, heads)),
    }


def attention_heads(mixer, x, attention_mask, clipped):
    """For each attention head: the content scores, and the biases of its position terms."""
    q, k = queries_and_keys(mixer, x, attention_mask)  # (1, H, N, d) each

    # ConvBERT's attention has no position terms
    terms = []
    if isinstance(mixer, SelfAttention):
        terms = biases_of_terms(mixer, q, k)
        q, k, *_ = mixer.apply_terms(q, k)

    content = q[0] @ k[0].mT / math.sqrt(q.shape[-1])  # (H, N, N)
    heads = [{"kind": "attention", "content": pack(scores), "terms": []} for scores in content]
    for name, belongs_to, has_window, bias in terms:
        # terms without a bias add to the values, or only change the content term
        if bias is None:
            continue
        bias = bias.reshape(bias.shape[-3:])  # (1, H, N, K), (H, N, K) or (H, 1, K)
        for head, bias_of_head in zip(heads, bias, strict=True):
            head["terms"].append(
                {
                    "name": name,
                    "symbol": SYMBOLS.get(name, ""),
                    "belongs_to": belongs_to,
                    "clipped": clipped and has_window,
                    "bias": pack(bias_of_head),  # (N, K) or (1, K); without a window K is 2N - 1
                }
            )
    return heads


def biases_of_terms(mixer, q, k):
    """Yield (name, belongs_to, has_window, bias) of the position terms of SelfAttention.

    belongs_to is "query" or "key"; the bias is (1, H, N, K), (H, N, K), (H, 1, K), or None if the
    term has none. q, k: (1, H, N, d).
    """
    # DeBERTa makes its biases itself
    if isinstance(mixer, Deberta):
        _, _, positions = mixer.apply_terms(q, k)
        yield "content_to_position", "query", True, positions.query_bias
        yield "position_to_content", "key", True, positions.key_bias
    for name, term in mixer.terms.items():
        yield name, "query", term.has_window, term.query_bias(q)
        yield name, "key", term.has_window, term.key_bias(k)


def convolution_heads(mixer, x, attention_mask):
    """Yield each convolution head: its bias, or that of each token; the page takes the softmax.

    There are none if the mixer has no such biases.
    """
    # (H, N, K), or (H, 1, K) if all tokens have the same bias
    of_tokens = token_bias(mixer, x, attention_mask)  # (1, H, N, K) or None
    of_head = fixed_bias(mixer)  # (H, K) or None
    if of_tokens is not None:
        name = "dynamic"
        bias_of_heads = of_tokens[0]  # (1, H, N, K) -> (H, N, K)
    elif of_head is not None:
        name = "fixed"
        bias_of_heads = of_head[:, None]  # (H, K) -> (H, 1, K)
    else:
        return

    # A kernel with dilation D has its weights D tokens apart.
    dilation = getattr(mixer, "dilation", 1)
    symbol = CONVOLUTIONS.get(type(mixer).__name__, "")
    for bias in bias_of_heads:
        term = {"name": name, "symbol": symbol, "bias": pack(bias)}  # (N, K) or (1, K)
        yield {"kind": "convolution", "dilation": dilation, "terms": [term]}


def notes_on(model, mixer, layer, heads):
    """Yield sentences about what a layer does that the page does not show."""
    if not heads:
        yield f"{type(mixer).__name__} has neither attention nor kernels to draw."
    if model.bert.embeddings.position is not None:
        yield (
            "This model adds a vector for each absolute position to the embeddings. It is in the "
            "content term."
        )

    # what is not a term of its own in the score, or computed before the queries, keys and values
    for name, term in getattr(mixer, "terms", {}).items():
        if term.value_table() is not None:
            yield (
                f"The term {name} adds a vector to the values. It is not part of the score, so the "
                "page does not show it."
            )
        if name != "content" and type(term).queries_and_keys is not Term.queries_and_keys:
            yield f"The term {name} changes the content term: positions are part of it."
    for what in depthwise_convolutions(mixer):
        yield (
            f"There is also a depthwise convolution {what}, which is not shown here: "
            f"python -m lab.figures depthwise RUN --layer {layer} draws it."
        )


def pack(numbers):
    """A matrix for JSON: its shape, and float32 numbers as base64 text.

    A number takes 5.3 characters and keeps all its digits. Decimal numbers with five digits after
    the point would take 8 or 9.
    """
    array = numbers.numpy().astype("<f4")  # 4 bytes each, the lowest first
    text = base64.b64encode(array.tobytes()).decode()
    return {"shape": list(array.shape), "float32": text}


# --- The page -------------------------------------------------------------------------------------


def make_page(sentence, runs):
    """The text of the HTML file.

    runs: what describe_run returns; for the page that answers, the names of the runs.
    """
    # JSON in a <script> element: without "<" nothing in it can end the element. All characters
    # that are not ASCII are written as \u....
    data = json.dumps({"sentence": sentence, "runs": runs}, separators=(",", ":"))
    data = data.replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace(MARK, data)


# --- The page that answers ------------------------------------------------------------------------


class Refused(Exception):
    """A request that gets no answer: the number that HTTP gives to the reason, and a line."""


class PageServer(ThreadingHTTPServer):
    """Serves the page of `runs`, one or two names of folders.

    Every connection has a thread, so one that says nothing keeps nobody waiting. All of them share
    the lock: one question is answered after the other.
    """

    lock = threading.Lock()

    def choices(self):
        """The names of the runs that the page may show: those given, and those beside the first."""
        beside = Path(self.runs[0]).parent.glob("*/model.pt")
        return sorted({*self.runs, *(str(path.parent) for path in beside)})

    def handle_error(self, *request):
        """Print the traceback of an error; that a browser closed its connection is none."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*request)


class Exchange(BaseHTTPRequestHandler):
    """One request and its response: GET / is the page, POST /numbers the numbers of a sentence.

    Any page in the world that is open in the browser can send requests to 127.0.0.1. This program
    answers only its own page: the browser says in Host which address it asked, in Origin which page
    is asking, and it sends JSON to a foreign server only if this server allows it.
    """

    timeout = 10  # seconds; then a connection that says nothing is closed

    def do_GET(self):
        self.respond("/", "text/html", lambda: make_page(FIRST_SENTENCE, self.server.runs))

    def do_POST(self):
        self.respond("/numbers", "application/json", self.numbers)

    def numbers(self):
        """What the page asks for, {"sentence": text, "runs": names, "off": terms}, as JSON."""
        sentence, names, off = self.question()
        choices = self.server.choices()
        for name in names:
            if name not in choices:
                raise UserError(f"{name} is no run that this page may show")

        with self.server.lock:
            runs = [describe_run(name, sentence, off) for name in names]
        return json.dumps({"runs": runs, "choices": choices})

    def question(self):
        """(sentence, names of runs, names of terms) that the browser sent. Refused or UserError."""
        if self.headers.get_content_type() != "application/json":
            raise Refused(415, "a question is JSON")
        try:
            length = min(int(self.headers["Content-Length"]), LARGEST_QUESTION)
            question = json.loads(self.rfile.read(length))
            sentence, names, off = (question[field] for field in ("sentence", "runs", "off"))
            "".join([sentence, *names, *off]).encode()  # an error if one of them is no text
        except (ValueError, RecursionError, LookupError, TypeError):
            raise UserError("a question has a sentence, runs, and the terms that are off") from None
        return sentence, names, off

    def respond(self, path, kind, make_text):
        """Send what make_text() returns, or the one line that says why not."""
        status = 200
        try:
            self.refuse_others(path)
            text = make_text()
        except Refused as error:
            status, text = error.args
        except UserError as error:
            status, text = 400, str(error)
        if status != 200:
            kind = "text/plain"

        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def refuse_others(self, path):
        """Only the page itself, only from this machine, and nothing else than its two paths."""
        host = self.headers["Host"] or ""
        origin = self.headers["Origin"]
        if host.split(":")[0] not in ("127.0.0.1", "localhost"):
            raise Refused(403, "this page has the address 127.0.0.1")
        if origin and origin != f"http://{host}":
            raise Refused(403, "another page may not ask")
        if self.path != path:
            raise Refused(404, f"there is only {path}")

    def log_message(self, *words):
        """Print nothing."""


def serve(runs, port, opens_browser):
    """Serve the page until Ctrl-C. port 0: a free one."""
    # a wrong folder is one line here, before the page is there
    for folder in runs:
        open_run(folder)
    try:
        server = PageServer(("127.0.0.1", port), Exchange)
    except OSError as error:
        raise UserError(f"port {port} of 127.0.0.1: {error.strerror}; try another one") from error
    server.runs = runs

    # a browser of the terminal keeps its thread until it is closed
    address = f"http://127.0.0.1:{server.server_port}/"
    print(f"{address}   Ctrl-C ends it", flush=True)
    if opens_browser:
        threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
    try:
        server.serve_forever()
    finally:
        # Python must not end while a thread is inside PyTorch: the process would be aborted
        server.lock.acquire()


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description='Serve a page, or with "a sentence" write one.')
    add = parser.add_argument
    add("words", nargs="+", metavar="RUN", help="one or two folders of pretrain.py")
    add("--html", type=Path, metavar="FILE.html", help="default: RUN/figures/explore.html")
    add("--port", type=number(int, 1, 65536), default=0, help="default: a free one")
    add("--no_browser", action="store_true", help="print the address only")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Serve the page, or write it for a sentence and print its path."""
    args = parse_arguments(arguments)

    # the last word is a sentence if it is no folder
    runs, sentence = args.words, None
    if len(runs) > 1 and not os.path.isdir(runs[-1]):
        *runs, sentence = runs
        if os.sep in sentence and " " not in sentence:
            raise UserError(f"{sentence} is no folder")
    runs = [str(Path(folder)) for folder in runs]
    if len(runs) > 2:
        raise UserError('give one or two runs, then a sentence, as in: RUN "the dog barks."')

    # without a sentence, a page that answers
    if sentence is None:
        if args.html:
            raise UserError("--html writes a file about a sentence: give a sentence, too")
        return serve(runs, args.port, not args.no_browser)

    # with a sentence, a file; first all numbers: an error is then the only line
    page = make_page(sentence, [describe_run(folder, sentence) for folder in runs])
    for folder in runs:
        say_unknown_words(folder, open_run(folder)[1], sentence)
    path = args.html or Path(runs[0], "figures", "explore.html")
    write_text(path, page)
    print(path)


if __name__ == "__main__":
    run_command(main)
