"""An HTML page that shows the inside of a model: how the scores of a token are a sum of terms.

    python -m lab.explore RUN                                a page in which one types a sentence
    python -m lab.explore RUN RUN2                           two runs, compared
    python -m lab.explore RUN [RUN2] "the dog barks."        which begins with this sentence

RUN is a folder that pretrain.py wrote. The page shows the answer for every [MASK], all heads, and
of one head the terms whose sum is the scores of a token, the attention weights next to those of
the kernel alone, and the kernels.

The page is one file, by default RUN/figures/explore.html of the first RUN. It holds the weights of
the model, in float16, and computes the model itself. It loads nothing from a network, so it can be
copied, sent, and put on a web site. lab/page has its parts:

    page.html      the frame, into which the others and the runs are written
    model.js       a second BERT, which reads like model.py
    tokenizer.js   from a sentence to token ids, as in support/tokenizer.py
    drawing.js     what the page draws, and what it does when a reader types or clicks

Some models it cannot compute: those with convolutions, rotary, xl, deberta and canon, other
tokenizers than ours, and more than LARGEST parameters. For these, give a sentence: the numbers are
then computed here, and the page shows them. Letters as in attention.py.
"""

import argparse
import base64
import json
import math
import os
import webbrowser
from functools import cache
from pathlib import Path

import torch

from attention import VARIANTS, ConvBert, Deberta, SelfAttention, Term
from lab.look import (
    best_words,
    depthwise_convolutions,
    encode_sentence,
    fixed_bias,
    input_of_mixer,
    mixer_of,
    queries_and_keys,
    token_bias,
)
from model import has_head, load_run, parameter_count, with_end_mark
from support.commands import UserError, run_command
from support.corpus import LAST_END
from support.files import load_checkpoint, write_text
from support.runs import unseen_pieces
from support.tokenizer import unknown_words, untrained_tokenizer

PAGE = Path(__file__).with_name("page")
SCRIPTS = ("tokenizer.js", "model.js", "drawing.js")  # in page.html: their names, as comments

# A matrix has N x N numbers for each layer and head: with more tokens the page becomes too large.
LONGEST = 128  # tokens
LARGEST = 20_000_000  # parameters of a model that the page computes: 53 MB of text

# The page begins with the first one, and offers the others.
SENTENCES = (
    "the cat that chased the dogs [MASK] tired.",
    "the dogs that chased the cat [MASK] tired.",
)
BEGINNINGS = ("the cat that chased the dogs", "the dogs that chased the cat")  # left to right


# --- The numbers ----------------------------------------------------------------------------------


@cache
def open_run(folder):
    """(model, tokenizer, whether the model has a masked-LM head). A run is read once."""
    model, tokenizer = load_run(folder, needs_head=False)
    return model, tokenizer, has_head(load_checkpoint(Path(folder) / "model.pt"))


def about_run(folder):
    """What names a run, and how it reads a sentence: a dictionary of plain values."""
    model, _, can_answer = open_run(folder)
    config = model.config
    variant = VARIANTS[config.variant]
    return {
        "name": Path(folder).resolve().name,
        "variant": config.variant,
        "equation": variant.equation,
        "beyond": config.beyond,
        "causal": config.causal,
        "term_names": variant.terms,
        "can_answer": can_answer,
    }


def describe_run(folder, sentence):
    """What the page shows of one run that it cannot compute: a dictionary of plain values."""
    model, tokenizer, can_answer = open_run(folder)
    # as model.py does before it fills in a blank
    if "[MASK]" in sentence:
        sentence = with_end_mark(sentence)
    ids, pieces = encode_sentence(model, tokenizer, sentence)
    if len(pieces) > LONGEST:
        raise UserError(f"the sentence has {len(pieces)} tokens, the page shows at most {LONGEST}")

    layers = range(1, model.config.layers + 1)
    return about_run(folder) | {
        "tokens": pieces,
        "unknown": unknown_words(tokenizer, sentence, unseen_pieces(folder)),
        "answers": best_words(model, tokenizer, ids) if can_answer else {},
        "layers": [describe_layer(model, ids, layer) for layer in layers],
    }


@torch.no_grad()
def describe_layer(model, ids, layer):
    """The heads of a layer, those of attention first, and notes on what the page leaves out."""
    mixer = mixer_of(model, layer)
    x, attention_mask = input_of_mixer(model, ids, layer)  # (1, N, C)

    # ConvBERT has heads of both kinds.
    heads = []
    if isinstance(mixer, (SelfAttention, ConvBert)):
        heads += attention_heads(mixer, x, attention_mask)
    if not isinstance(mixer, SelfAttention):
        heads += convolution_heads(mixer, x, attention_mask)
    return {
        "heads": heads,
        "notes": list(notes_on(model, mixer, layer, heads)),
    }


def attention_heads(mixer, x, attention_mask):
    """For each attention head: the content scores, and the biases of its position terms."""
    q, k = queries_and_keys(mixer, x, attention_mask)  # (1, H, N, d) each

    # ConvBERT's attention has no position terms
    terms = []
    if isinstance(mixer, SelfAttention):
        terms = biases_of_terms(mixer, q, k)
        q, k, *_ = mixer.apply_terms(q, k)

    content = q[0] @ k[0].mT / math.sqrt(q.shape[-1])  # (H, N, N)
    heads = [{"kind": "attention", "content": pack(scores), "terms": []} for scores in content]
    for about, bias in terms:
        # terms without a bias add to the values, or only change the content term
        if bias is None:
            continue
        bias = bias.reshape(bias.shape[-3:])  # (1, H, N, K), (H, N, K) or (H, 1, K)
        for head, bias_of_head in zip(heads, bias, strict=True):
            # (N, K) or (1, K); without a window K is 2N - 1
            head["terms"].append(about | {"bias": pack(bias_of_head)})
    return heads


def biases_of_terms(mixer, q, k):
    """Yield (what the page says of it, bias) of the position terms of SelfAttention.

    The bias is (1, H, N, K), (H, N, K), (H, 1, K), or None if the term has none. q and k have
    (1, H, N, d).
    """
    # DeBERTa makes its biases itself
    if isinstance(mixer, Deberta):
        _, _, positions = mixer.apply_terms(q, k)
        yield about_term("content_to_position", "query", Term), positions.query_bias
        yield about_term("position_to_content", "key", Term), positions.key_bias
    for name, term in mixer.terms.items():
        yield about_term(name, "query", term), term.query_bias(q)
        yield about_term(name, "key", term), term.key_bias(k)


def about_term(name, belongs_to, term):
    """What the page says of a term whose bias is made by each "query" or by each "key"."""
    return {
        "name": name,
        "equation": term.equation,
        "belongs_to": belongs_to,
        "has_window": term.has_window,
    }


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
    for bias in bias_of_heads:
        term = {"name": name, "bias": pack(bias)}  # (N, K) or (1, K)
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


def pack(numbers, kind="<f4"):
    """A matrix for JSON: its shape, and its numbers as base64 text, the lowest byte first.

    A float32 number, "<f4", takes 5.3 characters, and a float16 number, "<f2", takes 2.7.
    """
    text = base64.b64encode(numbers.numpy().astype(kind).tobytes()).decode()
    return {"shape": list(numbers.shape), kind: text}


# --- A model that the page computes ---------------------------------------------------------------


def pack_model(folder):
    """The run as the page computes it: its weights, terms and vocabulary. None: it cannot."""
    # what the page can compute
    model, tokenizer, _ = open_run(folder)
    if parameter_count(model) > LARGEST or not is_own(tokenizer):
        return None
    config = model.config
    layers = [pack_terms(block.mixer, config) for block in model.bert.layers]
    if None in layers:
        return None

    # all that is computed with; the tables of the terms are in `layers`
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]  # [[piece, log p], ...]
    weights = {
        name: pack(weight, "<f2")
        for name, weight in model.state_dict().items()
        if ".terms." not in name
    }
    return about_run(folder) | {
        "H": config.heads,
        "longest": min(LONGEST, config.max_length),
        "vocabulary": vocabulary,
        "unseen": unseen_pieces(folder),
        "last_end": LAST_END.pattern,
        "weights": weights,
        "terms": layers,
        "notes": list(notes_on(model, model.bert.layers[0].mixer, 1, [True])),
    }


def is_own(tokenizer):
    """Whether a tokenizer has the rules of support/tokenizer.py, which the page has, too."""
    ours, its = json.loads(untrained_tokenizer().to_str()), json.loads(tokenizer.to_str())
    rules = ("normalizer", "pre_tokenizer", "post_processor")
    return its["model"]["type"] == "Unigram" and all(ours[rule] == its[rule] for rule in rules)


@torch.no_grad()
def pack_terms(mixer, config):
    """The terms of a layer in the form that the page computes. None: it has other parts.

        query_bias_i = static + q_i . table      static: (H, K)    table: (H, d, K)
        key_bias_j   = static + k_j . table      values: (d, K)

    Nothing is asked about a term but its methods, so this holds for a new one, too.
    """
    if type(mixer) is not SelfAttention or mixer.convolutional or mixer.depthwise:
        return None

    # zero queries, at least one for each of the d channels
    d = config.hidden_size // config.heads
    N = max(d, min(LONGEST, config.max_length))

    terms = []
    for name, term in mixer.terms.items():
        if type(term).queries_and_keys is not Term.queries_and_keys:
            return None

        # its biases, if they are affine in q or k
        for belongs_to, bias in (("query", term.query_bias), ("key", term.key_bias)):
            zeros = torch.zeros(1, config.heads, N, d)
            if bias(zeros) is None:
                continue
            static, table = static_and_table(bias, zeros)
            if not is_affine(bias, static, table, zeros):
                return None
            packed = {"static": pack(static), "table": pack(table) if table.any() else None}
            terms.append(about_term(name, belongs_to, term) | packed)

        # what it adds to the values
        values = term.value_table()
        if values is not None:
            terms.append({"name": name, "values": pack(values)})
    return terms


def static_and_table(bias, zeros):
    """(static (H, K), table (H, d, K)) such that bias(x)_i = static + x_i . table, if it can be.

    What a bias makes of 0 and of the unit vectors tells all about it. Without a window, K is
    2N - 1: all offsets of the longest sentence of the page. zeros: (1, H, N, d), N >= d.
    """
    units = torch.eye(*zeros.shape[2:]).expand_as(zeros)  # (N, d) -> (1, H, N, d)
    static = in_full(bias, zeros)[:, 0]  # (H, N, K) -> (H, K)
    made = in_full(bias, units)[:, : zeros.shape[-1]]  # (H, N, K) -> (H, d, K)
    return static, made - static[:, None]


def is_affine(bias, static, table, zeros):
    """Whether bias(x)_i = static + x_i . table, for other vectors, and for a shorter sentence."""
    H, N, d = zeros.shape[1:]
    x = torch.randn(1, H, N, d, generator=torch.Generator().manual_seed(0))
    expected = static[:, None] + x[0] @ table  # (H, N, d) (H, d, K) -> (H, N, K)
    for n in (N, N // 2):
        found = in_full(bias, x[:, :, :n])  # (H, n, K), or without a window (H, n, 2n - 1)
        extra = (static.shape[-1] - found.shape[-1]) // 2
        columns = slice(extra, static.shape[-1] - extra)
        if not torch.allclose(found, expected[:, :n, columns], atol=1e-4):
            return False
    return True


def in_full(bias, x):
    """bias(x) of x (1, H, N, d), (1, H, N, K), (H, N, K) or (H, 1, K), as (H, N, K)."""
    made = bias(x)
    return made.reshape(made.shape[-3:]).expand(*x.shape[1:3], -1)


# --- The page -------------------------------------------------------------------------------------


def make_page(sentences, runs):
    """The text of the HTML file.

    sentences: the first one is shown, the others are offered. runs: what pack_model or describe_run
    returns.
    """
    # JSON in a <script> element: without "<" nothing in it can end the element. All characters
    # that are not ASCII are written as \u....
    data = json.dumps({"sentences": sentences, "runs": runs}, separators=(",", ":"))

    page = (PAGE / "page.html").read_text(encoding="utf-8")
    for name in SCRIPTS:
        page = page.replace(f"/* {name} */", (PAGE / name).read_text(encoding="utf-8"))
    return page.replace("DATA_OF_THE_PAGE", data.replace("<", "\\u003c"))


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description="Write a page, and open it in the browser.")
    add = parser.add_argument
    add("words", nargs="+", metavar="RUN", help='one or two folders of pretrain.py ["a sentence"]')
    add("--html", type=Path, metavar="FILE.html", help="default: RUN/figures/explore.html")
    add("--no_browser", action="store_true", help="write the file only")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Write the page, print its path, and open it."""
    args = parse_arguments(arguments)

    # the last word is a sentence if it is no folder
    runs, sentence = args.words, None
    if len(runs) > 1 and not os.path.isdir(runs[-1]):
        *runs, sentence = runs
        if os.sep in sentence and " " not in sentence:
            raise UserError(f"{sentence} is no folder")
    if len(runs) > 2:
        raise UserError('give one or two runs, then a sentence, as in: RUN "the dog barks."')

    # the models themselves; if the page cannot compute them, the numbers of a sentence
    packed = [pack_model(folder) for folder in runs]
    if None in packed:
        folder = runs[packed.index(None)]
        if sentence is None:
            raise UserError(f'the page cannot compute {folder}: add a sentence, "the dog barks."')
        packed = [describe_run(folder, sentence) for folder in runs]

    # a left-to-right model has not learned what a blank is
    offered = BEGINNINGS if packed[0]["causal"] else SENTENCES
    sentences = [sentence] if sentence else offered

    path = args.html or Path(runs[0], "figures", "explore.html")
    write_text(path, make_page(sentences, packed))
    print(path, flush=True)
    if not args.no_browser:
        webbrowser.open(path.resolve().as_uri())


if __name__ == "__main__":
    run_command(main)
