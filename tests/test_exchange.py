"""Checkpoints of transformers: imported, exported, refused. transformers itself is not needed.

The names and shapes of its weights are listed here by hand, and what its models compute is written
down again, by these names, as plain functions. The checkpoints of the tests are random numbers.
"""

import json
import math
import os
import pickle
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer
from torch.nn import functional as F

import model as model_program
from attention import VARIANTS
from conftest import ROOT
from data import PAD, SPECIAL_TOKENS
from lab import exchange
from model import load_config, load_run, save_run
from model_helpers import WORDS, small_model, word_tokenizer
from support.runs import write_run
from support.safetensors import load_safetensors, save_safetensors

# --- A published checkpoint -----------------------------------------------------------------------

# V = 13 pieces, with the special tokens at other places than here.
PIECES = ["[PAD]", "the", "cat", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "##s", "was"]
PIECES += ["tired", ".", "un"]
NEW_ORDER = [0, 3, 4, 5, 6, 1, 2, 7, 8, 9, 10, 11, 12]  # the old ids, in the order of the new ones

SIZES = {
    "vocab_size": 13,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
CLASSES = {
    "bert": "BertForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "convbert": "ConvBertForMaskedLM",
}


def published_config(kind, **changes):
    """The config.json that transformers writes, without entries that do not matter here."""
    config = {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "pad_token_id": 0,
        **SIZES,
    }
    if kind != "bert":
        config["embedding_size"] = 8
    if kind == "convbert":
        config |= {"conv_kernel_size": 5, "head_ratio": 2, "num_groups": 1}
    return config | changes


def linear(name, inputs, outputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name, size):
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def layout(kind, config):
    """{name: shape} of the weights of a masked language model, as transformers lists them."""
    V, C, L, H, I, P = (config[name] for name in SIZES)  # noqa: E741 (I: the intermediate size)
    E = config.get("embedding_size", C)

    # the embeddings
    shapes = {
        f"{kind}.embeddings.word_embeddings.weight": (V, E),
        f"{kind}.embeddings.position_embeddings.weight": (P, E),
        f"{kind}.embeddings.token_type_embeddings.weight": (2, E),
        **norm(f"{kind}.embeddings.LayerNorm", E),
    }
    if E != C:
        shapes |= linear(f"{kind}.embeddings_project", E, C)

    # the layers
    for number in range(L):
        layer = f"{kind}.encoder.layer.{number}"
        attention = f"{layer}.attention.self"
        width = C
        if kind == "convbert":
            width = C // 2
            K = config["conv_kernel_size"]
            shapes |= {
                f"{attention}.key_conv_attn_layer.bias": (width, 1),
                f"{attention}.key_conv_attn_layer.depthwise.weight": (C, 1, K),
                f"{attention}.key_conv_attn_layer.pointwise.weight": (width, C, 1),
                **linear(f"{attention}.conv_kernel_layer", width, H // 2 * K),
                **linear(f"{attention}.conv_out_layer", C, width),
            }
        for name in ("query", "key", "value"):
            shapes |= linear(f"{attention}.{name}", C, width)
        shapes |= linear(f"{layer}.attention.output.dense", C, C)
        shapes |= norm(f"{layer}.attention.output.LayerNorm", C)
        shapes |= linear(f"{layer}.intermediate.dense", C, I)
        shapes |= linear(f"{layer}.output.dense", I, C)
        shapes |= norm(f"{layer}.output.LayerNorm", C)

    # the head
    if kind == "bert":
        shapes |= linear("cls.predictions.transform.dense", C, C)
        shapes |= norm("cls.predictions.transform.LayerNorm", C)
        shapes["cls.predictions.bias"] = (V,)
    else:
        shapes |= linear("generator_predictions.dense", C, E)
        shapes |= norm("generator_predictions.LayerNorm", E)
        shapes["generator_lm_head.bias"] = (V,)
    return shapes


def random_tensors(kind, config=None):
    """{name: tensor} of a random model: the same every time."""
    generator = torch.Generator().manual_seed(3)
    shapes = layout(kind, config or published_config(kind))
    return {
        name: torch.randn(shape, generator=generator) * 0.3 + 0.1 for name, shape in shapes.items()
    }


def published_tokenizer():
    """BERT's tokenizer as the tokenizers library makes it, which transformers uses."""
    return BertWordPieceTokenizer({piece: number for number, piece in enumerate(PIECES)})


def write_checkpoint(folder, kind="bert", tensors=None, **changes):
    """Write a published checkpoint. changes: of config.json."""
    folder.mkdir()
    config = published_config(kind, **changes)
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is None:
        tensors = random_tensors(kind, config)
    save_safetensors(folder / "model.safetensors", tensors)
    published_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def run_exchange(run_program):
    """run_exchange("import", FOLDER, RUN) -> Outcome."""

    def call(*arguments):
        return run_program("lab.exchange", exchange.main, *arguments)

    return call


@pytest.fixture
def refused(run_exchange, tmp_path):
    """refused(FOLDER, part) imports a folder, which must fail with one line that has this part."""

    def call(folder, part):
        before = sorted(tmp_path.iterdir())
        done = run_exchange("import", folder, tmp_path / "run")
        assert done.code == 2 and done.out == ""
        assert done.error.startswith("lab.exchange: ")
        assert done.error.count("\n") == 1
        assert part in done.error
        assert sorted(tmp_path.iterdir()) == before  # nothing was written

    return call


# --- What these models compute --------------------------------------------------------------------


def dense(x, tensors, name):
    return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def layer_norm(x, tensors, name):
    weight = tensors[f"{name}.weight"]
    return F.layer_norm(x, weight.shape, weight, tensors[f"{name}.bias"], eps=1e-12)


def attend(query, key, value, heads, mask):
    """Self-attention of one sequence, (N, width) each, head by head. mask: (N,) bool."""
    d = query.shape[-1] // heads
    outputs = []
    for head in range(heads):
        q, k, v = (x[:, head * d : (head + 1) * d] for x in (query, key, value))
        scores = (q @ k.T / math.sqrt(d)).masked_fill(~mask, -math.inf)
        outputs.append(scores.softmax(dim=-1) @ v)
    return torch.cat(outputs, dim=-1)


def mix_bert(x, tensors, name, config, mask):
    """The mixer of BERT and ELECTRA. x: (N, C)."""
    query, key, value = (dense(x, tensors, f"{name}.{part}") for part in ("query", "key", "value"))
    return attend(query, key, value, config["num_attention_heads"], mask)


def mix_convbert(x, tensors, name, config, mask):
    """The mixer of ConvBERT: attention, and a convolution whose kernel each token makes."""
    heads = config["num_attention_heads"] // 2
    K = config["conv_kernel_size"]
    k = K // 2
    N, C = x.shape
    attended = mix_bert(x, tensors, name, {"num_attention_heads": heads}, mask)

    # the summary of the neighbourhood of each token
    depthwise = tensors[f"{name}.key_conv_attn_layer.depthwise.weight"]  # (C, 1, K)
    near = F.pad(x, (0, 0, k, k))  # (N + 2k, C)
    summary = torch.zeros_like(x)
    for r in range(K):
        summary = summary + depthwise[:, 0, r] * near[r : r + N]
    pointwise = tensors[f"{name}.key_conv_attn_layer.pointwise.weight"]  # (C/2, C, 1)
    summary = summary @ pointwise[:, :, 0].T + tensors[f"{name}.key_conv_attn_layer.bias"][:, 0]

    # its kernels, and the sum of the values around each token
    logits = dense(
        summary * dense(x, tensors, f"{name}.query"), tensors, f"{name}.conv_kernel_layer"
    )
    kernel = logits.reshape(N, heads, K).softmax(dim=-1)
    value = F.pad(dense(x, tensors, f"{name}.conv_out_layer"), (0, 0, k, k))  # (N + 2k, C/2)
    convolved = torch.zeros(N, C // 2, dtype=x.dtype)
    for r in range(K):
        by_channel = kernel[:, :, r].repeat_interleave(C // 2 // heads, dim=1)  # (N, C/2)
        convolved = convolved + by_channel * value[r : r + N]
    return torch.cat([attended, convolved], dim=-1)


def reference_logits(kind, tensors, config, input_ids, token_types, mask):
    """Logits (N, V) of one sequence, by the published names of the weights, in float64.

    input_ids, token_types, mask: (N,).
    """
    tensors = {name: tensor.double() for name, tensor in tensors.items()}
    mix = mix_convbert if kind == "convbert" else mix_bert
    token = tensors[f"{kind}.embeddings.word_embeddings.weight"]

    # embeddings
    x = token[input_ids]
    x = x + tensors[f"{kind}.embeddings.token_type_embeddings.weight"][token_types]
    x = x + tensors[f"{kind}.embeddings.position_embeddings.weight"][: len(input_ids)]
    x = layer_norm(x, tensors, f"{kind}.embeddings.LayerNorm")
    if f"{kind}.embeddings_project.weight" in tensors:
        x = dense(x, tensors, f"{kind}.embeddings_project")

    # layers
    for number in range(config["num_hidden_layers"]):
        layer = f"{kind}.encoder.layer.{number}"
        z = mix(x, tensors, f"{layer}.attention.self", config, mask)
        z = dense(z, tensors, f"{layer}.attention.output.dense")
        x = layer_norm(x + z, tensors, f"{layer}.attention.output.LayerNorm")
        z = dense(
            F.gelu(dense(x, tensors, f"{layer}.intermediate.dense")),
            tensors,
            f"{layer}.output.dense",
        )
        x = layer_norm(x + z, tensors, f"{layer}.output.LayerNorm")

    # head
    if kind == "bert":
        x = F.gelu(dense(x, tensors, "cls.predictions.transform.dense"))
        x = layer_norm(x, tensors, "cls.predictions.transform.LayerNorm")
        return x @ token.T + tensors["cls.predictions.bias"]
    x = layer_norm(
        F.gelu(dense(x, tensors, "generator_predictions.dense")),
        tensors,
        "generator_predictions.LayerNorm",
    )
    return x @ token.T + tensors["generator_lm_head.bias"]


def own_logits(model, input_ids, token_types, mask):
    """Logits (N, V) of our model, in float64."""
    with torch.no_grad():
        return model.double()(input_ids[None], mask[None], token_types[None])[0]


def random_input(vocab_size, masked):
    """input_ids, token_types, mask of 14 tokens; if masked, the last 4 are padding."""
    generator = torch.Generator().manual_seed(5)
    input_ids = torch.randint(0, vocab_size, (14,), generator=generator)
    token_types = torch.randint(0, 2, (14,), generator=generator)
    mask = torch.ones(14, dtype=torch.bool)
    if masked:
        mask[10:] = False
    return input_ids, token_types, mask


# --- Import ---------------------------------------------------------------------------------------


def check_imported(run, kind, tensors, config, masked=False):
    """The logits of the run are those of the published model, token by token and piece by piece."""
    model, tokenizer = load_run(run)
    new_ids = torch.tensor([tokenizer.token_to_id(piece) for piece in PIECES])
    input_ids, token_types, mask = random_input(len(PIECES), masked)

    expected = reference_logits(kind, tensors, config, input_ids, token_types, mask)
    found = own_logits(model, new_ids[input_ids], token_types, mask)[:, new_ids]
    torch.testing.assert_close(found[mask], expected[mask], rtol=0, atol=1e-10)


# the convolutions of ConvBERT in transformers see padding, so its rows have none here
@pytest.mark.parametrize(
    "kind, embedding_size, masked",
    [
        ("bert", 16, False),
        ("bert", 16, True),
        ("electra", 8, False),
        ("electra", 8, True),
        ("electra", 16, False),
        ("convbert", 8, False),
        ("convbert", 16, False),
    ],
)
def test_an_imported_model_computes_what_the_published_one_does(
    kind, embedding_size, masked, run_exchange, tmp_path
):
    changes = {} if kind == "bert" else {"embedding_size": embedding_size}
    config = published_config(kind, **changes)
    folder = write_checkpoint(tmp_path / kind, kind, **changes)
    assert run_exchange("import", folder, tmp_path / "run").code == 0
    check_imported(tmp_path / "run", kind, random_tensors(kind, config), config, masked)


def test_the_output_names_the_model_and_the_new_ids(run_exchange, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    done = run_exchange("import", folder, tmp_path / "run")
    assert done.out.splitlines() == [
        f"{tmp_path / 'run'}: the variant absolute, from bert "
        "(2 layers, hidden size 16, 4 heads, 13 pieces)",
        "note: the special tokens have the new ids 0 to 4; other pieces keep their order",
    ]
    assert done.error == ""


def test_the_config_has_the_sizes_of_the_checkpoint(run_exchange, tmp_path):
    folder = write_checkpoint(tmp_path / "convbert", "convbert", hidden_dropout_prob=0.2)
    done = run_exchange("import", folder, tmp_path / "run")
    config = load_config(tmp_path / "run")
    assert (config.variant, config.vocab_size, config.layers, config.heads) == (
        "convbert",
        13,
        2,
        4,
    )
    assert (config.hidden_size, config.ffn_size, config.embedding_size) == (16, 24, 8)
    assert (config.max_length, config.kernel_size, config.dropout) == (20, 5, 0.2)
    assert "dropout is 0.2 everywhere; attention_probs_dropout_prob was 0.1" in done.out
    assert "rows with padding give other numbers in transformers" in done.out


def same_weights(first, second):
    """Whether two runs have the same weights, to the bit."""
    first = load_run(first)[0].state_dict()
    second = load_run(second)[0].state_dict()
    return list(first) == list(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )


def with_old_norms(name):
    return re.sub("LayerNorm.weight", "LayerNorm.gamma", name).replace(
        "LayerNorm.bias", "LayerNorm.beta"
    )


def test_older_names_and_copies_give_the_same_run(run_exchange, tmp_path):
    tensors = random_tensors("bert")
    older = {with_old_norms(name).removeprefix("bert."): value for name, value in tensors.items()}
    older["embeddings.position_ids"] = torch.arange(20)[None]
    older["cls.predictions.decoder.weight"] = older["embeddings.word_embeddings.weight"]
    older["cls.predictions.decoder.bias"] = older.pop("cls.predictions.bias")
    assert any("gamma" in name for name in older)

    for name, content in (("new", tensors), ("old", older)):
        folder = write_checkpoint(tmp_path / name, tensors=content)
        done = run_exchange("import", folder, tmp_path / f"run-{name}")
        assert done.code == 0
        assert "left out" not in done.out
    assert same_weights(tmp_path / "run-new", tmp_path / "run-old")


def test_a_pickled_file_gives_the_same_run(run_exchange, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    run_exchange("import", folder, tmp_path / "first")
    (folder / "model.safetensors").unlink()
    torch.save(random_tensors("bert"), folder / "pytorch_model.bin")
    assert run_exchange("import", folder, tmp_path / "second").code == 0
    assert same_weights(tmp_path / "first", tmp_path / "second")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_become_float32(dtype, run_exchange, tmp_path):
    short = {name: tensor.to(dtype) for name, tensor in random_tensors("bert").items()}
    folder = write_checkpoint(tmp_path / "bert", tensors=short)
    done = run_exchange("import", folder, tmp_path / "run")
    assert "note: the weights were converted from 16 bits to float32" in done.out
    check_imported(tmp_path / "run", "bert", short, published_config("bert"))


def test_what_a_run_has_no_place_for_is_named(run_exchange, tmp_path):
    extra = {"bert.pooler.dense.weight": (16, 16), "bert.pooler.dense.bias": (16,)}
    extra |= {"cls.seq_relationship.weight": (2, 16), "cls.seq_relationship.bias": (2,)}
    tensors = random_tensors("bert") | {name: torch.ones(shape) for name, shape in extra.items()}
    folder = write_checkpoint(tmp_path / "bert", tensors=tensors, unknown_entry=3)
    done = run_exchange("import", folder, tmp_path / "run")
    assert f"note: left out, because a run has no place for them: {', '.join(extra)}\n" in done.out
    assert "note: entries of config.json that were not used: unknown_entry\n" in done.out


def test_a_checkpoint_without_a_head_gets_a_new_one(run_exchange, tmp_path):
    tensors = random_tensors("electra")
    tensors = {name: value for name, value in tensors.items() if name.startswith("electra.")}
    tensors["discriminator_predictions.dense.weight"] = torch.ones(16, 16)
    folder = write_checkpoint(tmp_path / "electra", "electra", tensors)
    done = run_exchange("import", folder, tmp_path / "first")
    assert (
        "note: the checkpoint has no masked-LM head, so a new, untrained one was made" in done.out
    )
    assert "no place for them: discriminator_predictions.dense.weight\n" in done.out

    # the encoder is the published one, and the head is the same every time
    run_exchange("import", folder, tmp_path / "second")
    assert same_weights(tmp_path / "first", tmp_path / "second")
    model, _ = load_run(tmp_path / "first")
    name = "electra.encoder.layer.1.output.dense.weight"
    assert torch.equal(model.bert.layers[1].ffn[2].weight, tensors[name])
    assert model.bias.count_nonzero() == 0
    assert 0.01 < model.transform.weight.std() < 0.03
    assert torch.equal(model.norm.weight, torch.ones(8))
    assert model.norm.bias.count_nonzero() == model.transform.bias.count_nonzero() == 0


@pytest.mark.parametrize("kind", ["electra", "convbert"])
def test_a_copy_of_the_token_embeddings_must_be_equal(kind, run_exchange, refused, tmp_path):
    tensors = random_tensors(kind)
    copy = "generator_lm_head.weight"
    tensors[copy] = tensors[f"{kind}.embeddings.word_embeddings.weight"]
    folder = write_checkpoint(tmp_path / "equal", kind, tensors)
    done = run_exchange("import", folder, tmp_path / "good")
    assert done.code == 0 and copy not in done.out
    tensors[copy] = tensors[copy] + 1
    folder = write_checkpoint(tmp_path / "other", kind, tensors)
    refused(folder, f"{copy} differs from {kind}.embeddings")


def test_grouped_layers_become_full_ones_with_zeros(run_exchange, tmp_path):
    # the same model twice: with groups, and with full matrices in which the rest is 0
    grouped = random_tensors("convbert")
    full = dict(grouped)
    for name, tensor in grouped.items():
        if re.search(r"\d\.(intermediate|output)\.dense\.weight", name):
            rows, columns = (size // 2 for size in tensor.shape)
            groups = [tensor[:rows, :columns], tensor[rows:, columns:]]
            grouped[name] = torch.stack([group.T for group in groups])  # (groups, in, out)
            full[name] = torch.zeros_like(tensor)
            full[name][:rows, :columns] = groups[0]
            full[name][rows:, columns:] = groups[1]

    folder = write_checkpoint(tmp_path / "convbert", "convbert", grouped, num_groups=2)
    done = run_exchange("import", folder, tmp_path / "run")
    assert "note: the 2 groups of the feed-forward networks became full matrices" in done.out
    check_imported(tmp_path / "run", "convbert", full, published_config("convbert"))


def test_an_imported_run_fills_in_blanks(run_exchange, run_program, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    run_exchange("import", folder, tmp_path / "run")
    done = run_program("model.py", model_program.main, tmp_path / "run", "The cats was [MASK]")
    assert done.code == 0
    assert done.out.startswith("[MASK] 1:  ")


# --- The tokenizer --------------------------------------------------------------------------------

TEXTS = [
    "The cats was tired.",
    "the dogs, the CAT",
    "undogs tired [MASK] .",
    "caf\u00e9 \u6f22\u5b57",
    "[CLS][SEP]",
    "dogss",
    "",
]


@pytest.mark.parametrize("source", ["tokenizer.json", "vocab.txt"])
def test_an_imported_tokenizer_makes_the_same_pieces(source, run_exchange, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    if source == "vocab.txt":
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    done = run_exchange("import", folder, tmp_path / "run")
    assert ("lower case" in done.out) == (source == "vocab.txt")

    _, tokenizer = load_run(tmp_path / "run")
    assert [tokenizer.id_to_token(i) for i in range(13)] == [PIECES[old] for old in NEW_ORDER]
    published = published_tokenizer()
    for text in TEXTS:
        expected = published.encode(text, add_special_tokens=False)
        found = tokenizer.encode(text)
        assert found.tokens == expected.tokens
        assert [NEW_ORDER[i] for i in found.ids] == expected.ids


def test_a_vocabulary_with_capital_letters_keeps_them(run_exchange, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    done = run_exchange("import", folder, tmp_path / "run")
    assert "lower case" not in done.out
    assert load_run(tmp_path / "run")[1].encode("The the").tokens == ["[UNK]", "the"]


def test_embeddings_without_a_piece_are_left_out(run_exchange, tmp_path):
    config = published_config("bert", vocab_size=16)
    tensors = random_tensors("bert", config)
    folder = write_checkpoint(tmp_path / "bert", tensors=tensors, vocab_size=16)
    done = run_exchange("import", folder, tmp_path / "run")
    assert "note: 3 token embeddings without a piece were left out" in done.out

    # the other logits stay what they were
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        tensors[name] = tensors[name][:13]
    check_imported(tmp_path / "run", "bert", tensors, config)


def test_tokens_that_were_added_stay_behind_the_pieces(run_exchange, tmp_path):
    folder = write_checkpoint(tmp_path / "bert", vocab_size=14)
    tokenizer = published_tokenizer()
    tokenizer.add_tokens(["<name>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    assert run_exchange("import", folder, tmp_path / "run").code == 0
    _, tokenizer = load_run(tmp_path / "run")
    assert tokenizer.encode("the <name> was").tokens == ["the", "<name>", "was"]
    assert tokenizer.token_to_id("<name>") == 13


def test_a_tokenizer_of_another_kind_with_the_right_ids_is_taken(run_exchange, tmp_path):
    folder = write_checkpoint(tmp_path / "bert", vocab_size=len(WORDS))
    word_tokenizer().save(str(folder / "tokenizer.json"))
    done = run_exchange("import", folder, tmp_path / "run")
    assert "new ids" not in done.out
    assert load_run(tmp_path / "run")[1].encode("the cat").ids == [5, 6]


def test_a_tokenizer_that_does_not_fit_is_refused(refused, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    path = folder / "tokenizer.json"
    state = json.loads(path.read_text())

    def check(part, **changes):
        path.write_text(json.dumps(state | changes))
        refused(folder, part)

    # too many pieces, two with one number, no [MASK], another kind, no tokenizer
    vocab = dict(state["model"]["vocab"])
    check(
        "number 13, and the model has only 13", model=state["model"] | {"vocab": vocab | {"a": 13}}
    )
    check("the same number", model=state["model"] | {"vocab": vocab | {"un": 11}})
    del vocab["[MASK]"]
    added = [entry for entry in state["added_tokens"] if entry["content"] != "[MASK]"]
    check("no [MASK]", model=state["model"] | {"vocab": vocab}, added_tokens=added)
    words = {"type": "WordLevel", "vocab": state["model"]["vocab"], "unk_token": "[UNK]"}
    check("only a WordPiece tokenizer can get new ids; this one is WordLevel", model=words)
    path.write_text("{}")
    refused(folder, "tokenizer.json is damaged: ")
    path.unlink()
    refused(folder, "has neither tokenizer.json nor vocab.txt")


@pytest.mark.parametrize(
    "files, part",
    [
        ({"vocab.txt": "[PAD]\nthe\nthe\n"}, "lines 2 and 3 are equal"),
        ({"vocab.txt": "[PAD]\nthe\n"}, "the tokenizer has no [UNK]"),
        (
            {"vocab.txt": "", "added_tokens.json": '{"<a>": 13}'},
            "added_tokens.json is not supported",
        ),
        (
            {"vocab.txt": "a", "tokenizer_config.json": '{"do_lower_case": 1}'},
            "has 1 for do_lower_case",
        ),
        ({"vocab.txt": "a", "tokenizer_config.json": "[]"}, "is not a JSON object"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(files, part, refused, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    (folder / "tokenizer.json").unlink()
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    refused(folder, part)


def test_two_files_that_disagree_about_capital_letters_are_refused(refused, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    refused(folder, "lowercase is True, but do_lower_case is False")


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, part",
    [
        (
            {"model_type": "roberta"},
            "model_type is roberta; models of type bert, electra, convbert",
        ),
        ({"model_type": None}, "it has no model_type"),
        ({"model_type": ["bert"]}, "model_type is ['bert']"),
        ({"hidden_act": "gelu_new"}, "hidden_act is gelu_new, and here it can only be 'gelu'"),
        ({"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05, and here it can only be 1e-12"),
        ({"type_vocab_size": 4}, "type_vocab_size is 4"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is relative_key"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads is {'0': [1]}"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"hidden_size": 18}, "hidden_size 18 cannot be divided into 4 heads"),
        ({"num_hidden_layers": -1}, "layers must be a whole number"),
        ({"num_hidden_layers": 10**6}, "layers must be a whole number"),
        ({"num_attention_heads": "4"}, "heads must be a whole number"),
        ({"vocab_size": True}, "vocab_size must be a whole number"),
        ({"hidden_size": 2**31 - 1, "num_attention_heads": 1}, "too large"),
        ({"hidden_dropout_prob": 1}, "dropout must be in [0, 1)"),
        ({"hidden_act": "a\nb"}, "hidden_act is 'a\\nb'"),
        ({"hidden_act": "a" * 500}, "aaa..., and here"),
    ],
)
def test_a_model_that_computes_something_else_is_refused(changes, part, refused, tmp_path):
    refused(write_checkpoint(tmp_path / "bert", tensors={"a": torch.ones(1)}, **changes), part)


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"head_ratio": 4}, "head_ratio is 4, and here it can only be 2"),
        ({"num_attention_heads": 1}, "heads must be even, not 1"),
        ({"conv_kernel_size": 4}, "kernel_size must be odd"),
        ({"num_groups": 0}, "num_groups is 0"),
        ({"num_groups": 3}, "16 and 24 cannot be divided into 3 groups"),
        ({"num_groups": 10**30}, "groups (num_groups)"),
        ({"embedding_size": None}, "embedding_size must be a whole number"),
    ],
)
def test_a_convbert_that_computes_something_else_is_refused(changes, part, refused, tmp_path):
    tensors = {"a": torch.ones(1)}
    refused(write_checkpoint(tmp_path / "convbert", "convbert", tensors, **changes), part)


@pytest.mark.parametrize("name", SIZES)
def test_a_config_without_a_size_is_refused(name, refused, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    config = json.loads((folder / "config.json").read_text())
    del config[name]
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, f"config.json: it has no {name}")


@pytest.mark.parametrize(
    "content, part",
    [
        (b"", "config.json is damaged"),
        (b"[]", "config.json is damaged: it is not a JSON object"),
        (b"[" * 100_000, "config.json is damaged"),
        (b"\xff", "config.json is damaged"),
        (b'{"layer_norm_eps": NaN}', "NaN is not a number"),
        (b'{"hidden_size": 16, "hidden_size": 32}', "two entries with the name 'hidden_size'"),
    ],
)
def test_a_damaged_config_is_refused(content, part, refused, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    (folder / "config.json").write_bytes(content)
    refused(folder, part)


def test_a_folder_without_a_checkpoint_is_refused(refused, tmp_path):
    refused(tmp_path / "nowhere", "is not a checkpoint of transformers: it has no config.json")
    folder = write_checkpoint(tmp_path / "bert")
    (folder / "model.safetensors").unlink()
    refused(folder, "has neither model.safetensors nor pytorch_model.bin")


QUERY = "bert.encoder.layer.1.attention.self.query.weight"
TOKENS = "bert.embeddings.word_embeddings.weight"
NORM = "bert.embeddings.LayerNorm.weight"


@pytest.mark.parametrize(
    "changes, part",
    [
        ({QUERY: None}, f"it has no {QUERY}"),
        ({"cls.predictions.transform.dense.bias": None}, "it has no cls.predictions.transform"),
        ({QUERY: torch.ones(16, 15)}, f"{QUERY} has the shape [16, 15], not [16, 16]"),
        ({TOKENS: torch.ones(12, 16)}, f"{TOKENS} has the shape [12, 16], not [13, 16]"),
        ({QUERY: torch.full((16, 16), math.nan)}, f"{QUERY} has numbers that are not finite"),
        ({NORM: torch.full((16,), math.inf)}, f"{NORM} has numbers that are not finite"),
        ({QUERY: torch.ones(16, 16).long()}, f"{QUERY} is torch.int64, and must be float32"),
        ({QUERY: torch.ones(16, 16).double()}, f"{QUERY} is torch.float64, and must be float32"),
        ({"bert.embeddings.LayerNorm.gamma": torch.ones(16)}, f"two tensors that are {NORM}"),
        (
            {"embeddings.word_embeddings.weight": torch.ones(13, 16)},
            f"two tensors that are {TOKENS}",
        ),
        ({"cls.predictions.decoder.weight": torch.ones(13, 16)}, f"differs from {TOKENS}"),
        ({"cls.predictions.decoder.bias": torch.ones(4)}, "differs from cls.predictions.bias"),
        (
            {"bert.encoder.layer.0.attention.self.distance_embedding.weight": torch.ones(39, 4)},
            "1 weights of its encoder have no place here: bert.encoder.layer.0.attention",
        ),
        (
            {"bert.encoder.layer.2.output.dense.bias": torch.ones(16)},
            "1 weights of its encoder have no place here: bert.encoder.layer.2.output.dense.bias",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(changes, part, refused, tmp_path):
    tensors = random_tensors("bert") | changes
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    refused(write_checkpoint(tmp_path / "bert", tensors=tensors), part)


@pytest.mark.parametrize("shape", [(2, 12, 8), (3, 8, 12), (16, 24)])
def test_groups_of_another_shape_are_refused(shape, refused, tmp_path):
    tensors = random_tensors("convbert")
    name = "convbert.encoder.layer.0.intermediate.dense.weight"
    tensors[name] = torch.ones(shape)
    folder = write_checkpoint(tmp_path / "convbert", "convbert", tensors, num_groups=2)
    refused(folder, f"{name} has the shape {list(shape)}, not [2, 8, 12]")


def test_two_tensors_of_one_name_are_refused(refused, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    path = folder / "model.safetensors"
    content = path.read_bytes()
    for name in ("query", "key"):
        content = content.replace(
            f"0.attention.self.{name}.bias".encode(), b"0.attention.self.x.bias"
        )
    length = int.from_bytes(path.read_bytes()[:8], "little") + len(content) - path.stat().st_size
    path.write_bytes(length.to_bytes(8, "little") + content[8:])
    refused(folder, "two entries with the name 'bert.encoder.layer.0.attention.self.x.bias'")


# --- Pickled files --------------------------------------------------------------------------------


class Hostile:
    """When it is unpickled without care, it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def pickled(tmp_path):
    """A checkpoint folder with pytorch_model.bin, which a test writes, in place of safetensors."""
    folder = write_checkpoint(tmp_path / "bert")
    (folder / "model.safetensors").unlink()
    return folder / "pytorch_model.bin"


def test_code_in_a_pickled_file_is_not_executed(pickled, refused, tmp_path):
    torch.save({"a": Hostile(tmp_path / "executed")}, pickled)
    refused(pickled.parent, "(code in it is not executed)")
    pickled.write_bytes(pickle.dumps(Hostile(tmp_path / "executed")))
    refused(pickled.parent, "was written by PyTorch before 1.6")
    torch.save({"a": torch.ones(1)}, pickled, _use_new_zipfile_serialization=False)
    refused(pickled.parent, "was written by PyTorch before 1.6")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "value, part",
    [
        ([torch.ones(2)], "does not hold tensors by name"),
        ({3: torch.ones(2)}, "does not hold tensors by name"),
        ({"model": {}}, "it has no bert.embeddings.word_embeddings.weight"),
        ({TOKENS: "text"}, f"{TOKENS} is str, and must be float32"),
        ({TOKENS: torch.ones(13, 16).to_sparse()}, f"{TOKENS} is not an ordinary tensor"),
        ({TOKENS: torch.ones(13, 16, device="meta")}, f"{TOKENS} is not an ordinary tensor"),
        ({TOKENS: torch.ones(1).expand(2**40)}, f"{TOKENS} has the shape [1099511627776]"),
        ({"cls.predictions.decoder.weight": 3}, "cls.predictions.decoder.weight differs"),
    ],
)
def test_a_pickled_file_with_other_things_is_refused(value, part, pickled, refused):
    if isinstance(value, dict) and "cls.predictions.decoder.weight" in value:
        value = random_tensors("bert") | value
    torch.save(value, pickled)
    refused(pickled.parent, part)


def test_a_damaged_pickled_file_is_refused(pickled, refused):
    torch.save(random_tensors("bert"), pickled)
    content = bytearray(pickled.read_bytes())
    content[len(content) // 2] ^= 1
    pickled.write_bytes(content)
    refused(pickled.parent, "pytorch_model.bin is damaged")


# --- Nothing half-written, nothing overwritten ----------------------------------------------------


def test_a_folder_that_holds_something_is_not_touched(run_exchange, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    run = tmp_path / "run"
    run.mkdir()
    (run / "notes.txt").write_text("mine")
    for arguments in (("import", folder, run), ("export", run, folder)):
        done = run_exchange(*arguments)
        assert done.code == 2
        assert "already exists; name a new or an empty folder" in done.error
    assert [path.name for path in run.iterdir()] == ["notes.txt"]


def test_an_empty_folder_and_missing_parents_are_taken(run_exchange, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    (tmp_path / "empty").mkdir()
    assert run_exchange("import", folder, tmp_path / "empty").code == 0
    assert run_exchange("import", folder, tmp_path / "a/b/run").code == 0
    assert same_weights(tmp_path / "empty", tmp_path / "a/b/run")


# --- Export ---------------------------------------------------------------------------------------


def make_run(folder, variant, **overrides):
    """A run of a small model; every weight is random, biases too."""
    model = small_model(variant, **overrides)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    folder.mkdir()
    save_run(folder, model, word_tokenizer())
    return folder


EXPORTS = [
    ("absolute", 32, "bert"),
    ("absolute", 16, "electra"),
    ("none", 32, "bert"),
    ("none", 16, "electra"),
    ("convbert", 32, "convbert"),
    ("convbert", 16, "convbert"),
]


@pytest.mark.parametrize("variant, embedding_size, kind", EXPORTS)
def test_an_exported_model_computes_what_the_run_does(
    variant, embedding_size, kind, run_exchange, tmp_path
):
    run = make_run(tmp_path / "run", variant, embedding_size=embedding_size)
    done = run_exchange("export", run, tmp_path / "published")
    assert done.code == 0
    first_line = f"{tmp_path / 'published'}: {CLASSES[kind]}, from {variant} (2 layers, "
    assert done.out.startswith(first_line)
    assert ("its position vectors are 0" in done.out) == (variant == "none")

    # names and shapes are those of the library, and so are the logits
    config = json.loads((tmp_path / "published/config.json").read_text())
    tensors = load_safetensors(tmp_path / "published/model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == layout(kind, config)
    inputs = random_input(len(WORDS), masked=False)
    expected = own_logits(load_run(run)[0], *inputs)
    found = reference_logits(kind, tensors, config, *inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant, embedding_size, kind", EXPORTS)
def test_an_exported_run_can_be_imported_again(
    variant, embedding_size, kind, run_exchange, tmp_path
):
    run = make_run(tmp_path / "run", variant, embedding_size=embedding_size)
    run_exchange("export", run, tmp_path / "published")
    done = run_exchange("import", tmp_path / "published", tmp_path / "again")
    assert done.code == 0

    # `none` comes back as `absolute`
    model, tokenizer = load_run(tmp_path / "again")
    assert model.config.variant == variant.replace("none", "absolute")
    assert tokenizer.to_str() == load_run(run)[1].to_str()
    inputs = random_input(len(WORDS), masked=True)
    expected = own_logits(load_run(run)[0], *inputs)
    torch.testing.assert_close(own_logits(model, *inputs), expected, rtol=0, atol=1e-6)


def test_the_exported_config_says_everything_that_the_model_depends_on(run_exchange, tmp_path):
    run = make_run(tmp_path / "run", "convbert", dropout=0.2, kernel_size=7)
    run_exchange("export", run, tmp_path / "published")
    config = json.loads((tmp_path / "published/config.json").read_text())
    expected = published_config("convbert", vocab_size=len(WORDS), hidden_size=32)
    expected |= {"intermediate_size": 48, "embedding_size": 16, "max_position_embeddings": 24}
    expected |= {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
    expected |= {"conv_kernel_size": 7, "tie_word_embeddings": True}
    del expected["initializer_range"]
    assert config == expected


def test_the_exported_tokenizer_adds_the_special_tokens(run_exchange, tmp_path):
    run = make_run(tmp_path / "run", "absolute")
    run_exchange("export", run, tmp_path / "published")
    tokenizer = Tokenizer.from_file(str(tmp_path / "published/tokenizer.json"))
    assert tokenizer.encode("the cat").ids == [2, 5, 6, 3]
    pair = tokenizer.encode("the cat", "tired")
    assert pair.ids == [2, 5, 6, 3, 10, 3]
    assert pair.type_ids == [0, 0, 0, 0, 1, 1]

    settings = json.loads((tmp_path / "published/tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 24
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    assert {name: settings[f"{name}_token"] for name in names} == names


@pytest.mark.parametrize("variant", sorted(set(VARIANTS) - {"none", "absolute", "convbert"}))
def test_other_variants_are_refused_with_the_reason(variant, run_exchange, tmp_path):
    run = make_run(tmp_path / "run", variant)
    done = run_exchange("export", run, tmp_path / "published")
    assert done.code == 2 and done.error.count("\n") == 1
    assert f"{variant} cannot be exported: it has " in done.error
    assert not (tmp_path / "published").exists()

    reasons = {
        "composite": "terms for relative positions (fixed, dynamic)",
        "conv-qk": "convolutions in its projections (query, key)",
        "depthwise": "a convolution of the values next to attention",
        "dilated": "a mixer that neither BERT nor ConvBERT has (LightConv)",
        "dynamicconv-hybrid": "a mixer that neither BERT nor ConvBERT has (DynamicConv)",
    }
    assert reasons.get(variant, "it has") in done.error


def test_a_run_that_cannot_be_read_is_not_exported(run_exchange, tmp_path):
    done = run_exchange("export", tmp_path / "nowhere", tmp_path / "published")
    assert done.code == 2
    assert "is not a run" in done.error
    assert not (tmp_path / "published").exists()


# --- docs/exchange.md -----------------------------------------------------------------------------

BLOCKS = re.findall(
    r"```python\n(.*?)```", (ROOT / "docs/exchange.md").read_text(encoding="utf-8"), re.DOTALL
)
IN_ANOTHER_PROJECT = BLOCKS[-1]  # needs kernels.py alone


@pytest.fixture
def folder_with_runs(tmp_path, monkeypatch):
    """A folder with runs/composite and runs/absolute, which is the current one; the vocabulary."""
    # The runs have the letters of the sentences as pieces, and 2 layers of 4 heads.
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*SPECIAL_TOKENS, *letters, *("##" + letter for letter in letters), "."]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    for variant in ("composite", "absolute"):
        model = small_model(variant, vocab_size=len(pieces), max_length=64)
        tokenizer = Tokenizer.from_str(BertWordPieceTokenizer(vocabulary).to_str())
        (tmp_path / "runs" / variant).mkdir(parents=True)
        write_run(tmp_path / "runs" / variant, vars(model.config), model.state_dict(), tokenizer)
    monkeypatch.chdir(tmp_path)
    return vocabulary


def test_the_block_of_the_readme_gives_the_shapes_that_it_names(folder_with_runs):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(from lab.*?)```", readme, re.DOTALL)[1]
    names = {}
    exec(compile(block, "README.md", "exec"), names)

    N = len(names["pieces"])
    assert names["ids"].shape == (1, N)
    assert names["hidden"].shape == (1, N, names["model"].config.hidden_size)
    assert names["p"].shape == (4, N, N)
    assert np.allclose(names["p"].sum(axis=-1), 1)
    assert names["kernels"].shape == (4, N, 17)


def test_the_blocks_of_the_document_run_one_after_the_other(folder_with_runs):
    vocabulary = folder_with_runs
    names = {}
    for block in BLOCKS[:-1]:
        exec(compile(block, "docs/exchange.md", "exec"), names)

    # what the text around the blocks says
    N = len(names["pieces"])
    assert names["input_ids"].shape == names["hidden"].shape[:2] == names["logits"].shape[:2]
    assert names["input_ids"][0, :2].tolist() == [2, vocabulary["t"]]
    assert names["input_ids"][0, -1] == PAD
    assert names["attended"].shape == names["kernel"].shape == (N, N)
    assert names["maps"].shape == (4, N, N)
    assert np.allclose(names["maps"].sum(axis=-1), 1)
    assert sorted(names["fixed"]) == [1, 2]
    assert names["dynamic"].shape == (4, N, 17)


def copy_of(names, folder):
    """A new folder with some files and folders of the project, and nothing else of it."""
    folder.mkdir()
    for name in names:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, folder)
    return folder


def run_there(folder, code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr


# The function of the document against all queries at once, and its gradient twice. A comparison
# of the two ways needs dropout 0: their random numbers differ.
CHECK = """
def gradients(function, dropout, *first):
    torch.manual_seed(4)
    inputs = (query, key, value, rows)
    z = function(*first, query, key, value, mask, rows, dropout=dropout)
    return [z, *torch.autograd.grad(z.square().sum(), inputs)]

whole = gradients(my_attention, 0.0)
blocks = gradients(attention_in_blocks, 0.0, my_attention)
for one, other in zip(whole, blocks):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)

first = gradients(attention_in_blocks, 0.1, my_attention)
second = gradients(attention_in_blocks, 0.1, my_attention)
for one, other in zip(first, second):
    assert torch.equal(one, other)
assert not torch.equal(first[0], blocks[0])
"""


def test_kernels_alone_serve_an_attention_of_ones_own(tmp_path):
    run_there(copy_of(["kernels.py"], tmp_path / "other"), IN_ANOTHER_PROJECT + CHECK)


def test_the_files_work_in_another_project(tmp_path):
    copy_of(["kernels.py", "attention.py", "support"], tmp_path / "two")
    six = ["kernels.py", "attention.py", "model.py", "data.py", "pretrain.py", "glue.py"]
    copy_of([*six, "support", "toy"], tmp_path / "six")
    run_there(tmp_path / "two", "import attention")
    run_there(tmp_path / "six", "import glue")
