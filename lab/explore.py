"""An HTML page that shows the inside of a model: how the scores of a token are a sum of terms.

    python -m lab.explore RUN "the dog barks."                        one run
    python -m lab.explore RUN RUN2 "the dog barks."                   two runs, compared
    python -m lab.explore RUN "the dog barks." --html dog.html        another file

RUN is a folder that pretrain.py wrote. The page is one file, which any browser opens; it loads
nothing from a network. For every layer and head it shows the attention map next to the map of the
kernel alone, the terms whose sum is the scores of a token, and the kernels. Without --html, the
file is RUN/figures/explore.html of the first RUN.

The numbers are computed here: the scores of each term, and the row of each kernel. The page,
lab/explore.html, adds them up and takes the softmax. Letters as in attention.py.
"""

import argparse
import base64
import json
import math
from pathlib import Path

import numpy as np
import torch

from attention import VARIANTS, ConvBert, Deberta, SelfAttention, Term, split_heads
from lab.look import (
    depthwise_convolutions,
    encode_sentence,
    fixed_rows,
    input_of_mixer,
    is_clipped,
    mixer_of,
    token_rows,
)
from model import load_run, say_unknown_words
from support.commands import UserError, run_command, utf8_text
from support.files import write_text

TEMPLATE = Path(__file__).with_name("explore.html")
MARK = "DATA_OF_THE_PAGE"  # in the template, once: the JSON text takes its place

# A map has N x N numbers for each layer and head: with more tokens the page becomes too large.
LONGEST = 128  # tokens

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

# The rows of convolutions, whose softmax is the kernel, by the name of their class.
CONVOLUTIONS = {
    "LightConv": "weight_r",
    "DynamicConv": "kernel(g_i)_r",
    "ConvBert": "kernel(c_i*q_i)_r",
}


# --- The numbers ----------------------------------------------------------------------------------


def describe_run(folder, sentence):
    """What the page shows of one run: a dictionary of plain values."""
    model, tokenizer = load_run(folder, needs_head=False)
    ids, pieces = encode_sentence(model, tokenizer, sentence)
    if len(pieces) > LONGEST:
        raise UserError(f"the sentence has {len(pieces)} tokens, the page shows at most {LONGEST}")
    say_unknown_words(folder, tokenizer, sentence)

    # the maps and kernels of every layer, and what names the run
    config = model.config
    variant = VARIANTS[config.variant]
    first = [*variant.terms, variant.mixer.__name__][0]  # a term, otherwise the mixer
    layers = [describe_layer(model, ids, layer) for layer in range(1, config.layers + 1)]
    return {
        "name": Path(folder).resolve().name,
        "variant": config.variant,
        "equation": variant.equation,
        "content": CONTENT.get(first, "q_i\u00b7k_j/\u221ad"),
        "beyond": config.beyond,
        "tokens": pieces,
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
    return {"heads": heads, "notes": notes_on(model, mixer, layer, heads)}


def attention_heads(mixer, x, attention_mask, clipped):
    """For each attention head: the content scores, and the rows of its position terms."""
    # ConvBERT's attention has no position terms
    if isinstance(mixer, ConvBert):
        q = split_heads(mixer.query(x), mixer.heads)  # (1, H/2, N, d)
        k = split_heads(mixer.key(x), mixer.heads)  # (1, H/2, N, d)
        terms = []
    else:
        query, key, _ = mixer.project(x, attention_mask)  # (1, N, C) each
        q = split_heads(query, mixer.heads)  # (1, H, N, d)
        k = split_heads(key, mixer.heads)  # (1, H, N, d)
        terms = rows_of_terms(mixer, q, k)
        q, k, *_ = mixer.apply_terms(q, k)

    content = q[0] @ k[0].transpose(-1, -2) / math.sqrt(q.shape[-1])  # (H, N, N)
    heads = [{"kind": "attention", "content": pack(scores), "terms": []} for scores in content]
    for name, belongs_to, has_window, rows in terms:
        for head, head_rows in zip(heads, rows, strict=True):
            symbol = SYMBOLS.get(name, "")
            term = describe_term(name, symbol, belongs_to, head_rows, clipped and has_window)
            head["terms"].append(term)
    return heads


def rows_of_terms(mixer, q, k):
    """The position terms of SelfAttention: a list of (name, belongs_to, has_window, rows).

    belongs_to is "query" or "key", rows are (H, N, K) or (H, 1, K). Terms without rows are left
    out: they add to the values, or only change the content term. q, k: (1, H, N, d).
    """
    # DeBERTa makes its rows itself
    found = []
    if isinstance(mixer, Deberta):
        _, _, query_rows, key_rows, _ = mixer.apply_terms(q, k)
        found.append(("content_to_position", "query", True, query_rows))
        found.append(("position_to_content", "key", True, key_rows))
    for name, term in mixer.terms.items():
        found.append((name, "query", term.has_window, term.query_rows(q)))
        found.append((name, "key", term.has_window, term.key_rows(k)))

    terms = []
    for *names, rows in found:
        if rows is not None:  # (1, H, N, K), (H, N, K) or (H, 1, K)
            terms.append((*names, rows.reshape(rows.shape[-3:])))
    return terms


def convolution_heads(mixer, x, attention_mask):
    """For each convolution head: its row, or the row of each token; the page takes the softmax.

    An empty list if the mixer has no such rows.
    """
    # (H, N, K), or (H, 1, K) if all tokens have the same row
    of_tokens = token_rows(mixer, x, attention_mask)  # (1, H, N, K) or None
    of_head = fixed_rows(mixer)  # (H, K) or None
    if of_tokens is not None:
        name = "dynamic"
        rows_of_heads = of_tokens[0]  # (1, H, N, K) -> (H, N, K)
    elif of_head is not None:
        name = "fixed"
        rows_of_heads = of_head[:, None]  # (H, K) -> (H, 1, K)
    else:
        return []

    # A kernel with dilation D has its weights D tokens apart.
    dilation = getattr(mixer, "dilation", 1)
    symbol = CONVOLUTIONS.get(type(mixer).__name__, "")
    heads = []
    for rows in rows_of_heads:
        term = describe_term(name, symbol, "query", rows)
        heads.append({"kind": "convolution", "dilation": dilation, "terms": [term]})
    return heads


def describe_term(name, symbol, belongs_to, rows, clipped=False):
    """One term of one head.

    Args:
        rows: (N, K), or (1, K) for a fixed row. For a term without a window, K is 2N - 1.
        clipped: whether the two end numbers also hold for all tokens farther away.
    """
    return {
        "name": name,
        "symbol": symbol,
        "belongs_to": belongs_to,
        "clipped": clipped,
        "rows": pack(rows),
    }


def notes_on(model, mixer, layer, heads):
    """Sentences about what a layer does that the maps of the page do not show."""
    notes = []
    if not heads:
        notes.append(f"{type(mixer).__name__} has neither attention nor kernels to draw a map of.")
    if model.bert.embeddings.position is not None:
        notes.append(
            "This model adds a vector for each absolute position to the embeddings. It is in the "
            "content term."
        )

    # what is not a term of its own in the score, or computed before the queries, keys and values
    for name, term in getattr(mixer, "terms", {}).items():
        if term.value_table() is not None:
            notes.append(
                f"The term {name} adds a vector to the values. It is not part of the score, so the "
                "page does not show it."
            )
        if type(term).queries_and_keys is not Term.queries_and_keys:
            notes.append(f"The term {name} changes the content term: positions are part of it.")
    for what in depthwise_convolutions(mixer):
        notes.append(
            f"There is also a depthwise convolution {what}, which is not shown here: "
            f"python -m lab.figures depthwise RUN --layer {layer} draws it."
        )
    return notes


def pack(numbers):
    """A tensor (rows, columns) for JSON: its shape, and float32 numbers as base64 text.

    A number takes 5.3 characters and keeps all its digits. Decimal numbers with five digits after
    the point would take 8 or 9.
    """
    array = numbers.numpy().astype("<f4")  # 4 bytes each, the lowest first
    text = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"shape": list(array.shape), "float32": text}


# --- The page -------------------------------------------------------------------------------------


def make_page(sentence, runs):
    """The text of the HTML file."""
    # JSON in a <script> element: without "<" nothing in it can end the element. All characters
    # that are not ASCII are written as \u....
    data = json.dumps({"sentence": sentence, "runs": runs}, separators=(",", ":"))
    data = data.replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace(MARK, data)


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments=None):
    parser = argparse.ArgumentParser(description="Write a page that shows the inside of a model.")
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="one or two folders of pretrain.py")
    add("sentence", type=utf8_text, help='in quotation marks, as in "the dog barks."')
    add("--html", type=Path, metavar="FILE.html", help="default: RUN/figures/explore.html")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Write the page that the command line names, and print its path."""
    args = parse_arguments(arguments)
    if len(args.runs) > 2:
        raise UserError(
            "give one or two runs, then the sentence in quotation marks, "
            'as in: RUN RUN2 "the dog barks."'
        )
    page = make_page(args.sentence, [describe_run(folder, args.sentence) for folder in args.runs])

    path = args.html or args.runs[0] / "figures" / "explore.html"
    write_text(path, page)
    print(path)


if __name__ == "__main__":
    run_command(main)
