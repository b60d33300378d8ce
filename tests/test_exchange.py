"""Checkpoints of transformers: imported, exported, refused. transformers itself is not needed.

The names and shapes of its weights are listed here by hand, and what its models compute is written
down again, by these names, as plain functions. The checkpoints of the tests are random numbers.
"""

import json
import math
import re
import sys

import pytest
import torch
from tokenizers.implementations import BertWordPieceTokenizer
from torch.nn import functional as F

from conftest import ROOT
from data import PAD
from lab import exchange
from model import load_run, save_run
from model_helpers import WORDS, small_model, word_tokenizer

# --- A published checkpoint -----------------------------------------------------------------------

# The special tokens are at other places than here.
PIECES = ["[PAD]", "the", "cat", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "##s", "was"]
PIECES += ["tired", ".", "un"]
NEW_ORDER = [0, 3, 4, 5, 6, 1, 2, 7, 8, 9, 10, 11, 12]  # the old ids, in the order of the new ones
TOKENS = "bert.embeddings.word_embeddings.weight"

# The weights of a masked language model, as transformers lists them. V: vocabulary, E: embeddings,
# P: positions, C: hidden size, W: the width of query, key and value, I: intermediate size,
# K: kernel size, T: the numbers in all kernels of a token.
ENCODER = """
    embeddings.word_embeddings.weight V E
    embeddings.position_embeddings.weight P E
    embeddings.token_type_embeddings.weight 2 E
    embeddings.LayerNorm.weight E
    embeddings.LayerNorm.bias E
"""
PROJECT = """
    embeddings_project.weight C E
    embeddings_project.bias C
"""
LAYER = """
    attention.self.query.weight W C
    attention.self.query.bias W
    attention.self.key.weight W C
    attention.self.key.bias W
    attention.self.value.weight W C
    attention.self.value.bias W
    attention.output.dense.weight C C
    attention.output.dense.bias C
    attention.output.LayerNorm.weight C
    attention.output.LayerNorm.bias C
    intermediate.dense.weight I C
    intermediate.dense.bias I
    output.dense.weight C I
    output.dense.bias C
    output.LayerNorm.weight C
    output.LayerNorm.bias C
"""
CONVBERT_LAYER = """
    attention.self.key_conv_attn_layer.bias W 1
    attention.self.key_conv_attn_layer.depthwise.weight C 1 K
    attention.self.key_conv_attn_layer.pointwise.weight W C 1
    attention.self.conv_kernel_layer.weight T W
    attention.self.conv_kernel_layer.bias T
    attention.self.conv_out_layer.weight W C
    attention.self.conv_out_layer.bias W
"""
BERT_HEAD = """
    cls.predictions.transform.dense.weight E C
    cls.predictions.transform.dense.bias E
    cls.predictions.transform.LayerNorm.weight E
    cls.predictions.transform.LayerNorm.bias E
    cls.predictions.bias V
"""
GENERATOR_HEAD = """
    generator_predictions.dense.weight E C
    generator_predictions.dense.bias E
    generator_predictions.LayerNorm.weight E
    generator_predictions.LayerNorm.bias E
    generator_lm_head.bias V
"""


def published_config(kind, **changes):
    """The config.json that transformers writes, without entries that do not matter here."""
    config = {
        "model_type": kind,
        "hidden_act": "gelu",
        "vocab_size": 13,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "max_position_embeddings": 20,
        "embedding_size": 16 if kind == "bert" else 8,
    }
    if kind == "convbert":
        config["conv_kernel_size"] = 5
    return {**config, **changes}


def layout(kind, config):
    """{name: shape} of the weights of a masked language model."""
    # what the letters stand for
    sizes = {"V": config["vocab_size"], "E": config["embedding_size"], "C": config["hidden_size"]}
    sizes |= {"P": config["max_position_embeddings"], "I": config["intermediate_size"]}
    sizes["W"] = sizes["C"]
    if kind == "convbert":
        sizes["W"] = sizes["C"] // 2
        sizes["K"] = config["conv_kernel_size"]
        sizes["T"] = config["num_attention_heads"] // 2 * sizes["K"]

    # the parts, with the beginning of their names
    parts = [(f"{kind}.", ENCODER), ("", BERT_HEAD if kind == "bert" else GENERATOR_HEAD)]
    if sizes["E"] != sizes["C"]:
        parts.append((f"{kind}.", PROJECT))
    for number in range(config["num_hidden_layers"]):
        parts.append((f"{kind}.encoder.layer.{number}.", LAYER))
        if kind == "convbert":
            parts.append((f"{kind}.encoder.layer.{number}.", CONVBERT_LAYER))

    shapes = {}
    for start, lines in parts:
        for line in lines.strip().splitlines():
            name, *letters = line.split()
            shapes[start + name] = tuple(sizes.get(x) or int(x) for x in letters)
    return shapes


def random_tensors(kind, **changes):
    """{name: tensor} of a random model: the same every time."""
    generator = torch.Generator().manual_seed(3)
    shapes = layout(kind, published_config(kind, **changes))
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
    (folder / "config.json").write_text(json.dumps(config, default=str))
    if tensors is None:
        tensors = random_tensors(kind, **changes)
    torch.save(tensors, folder / "pytorch_model.bin")
    published_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def run_exchange(run_program):
    """run_exchange("import", FOLDER, RUN) -> Outcome."""

    def call(*arguments):
        return run_program(exchange.main, *arguments)

    return call


# --- What these models compute --------------------------------------------------------------------


def dense(x, tensors, name):
    return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def layer_norm(x, tensors, name):
    weight = tensors[f"{name}.weight"]
    return F.layer_norm(x, weight.shape, weight, tensors[f"{name}.bias"], eps=1e-12)


def mix_bert(x, tensors, name, heads, mask):
    """The mixer of BERT and ELECTRA, head by head. x: (N, C). mask: (N,) bool."""
    query, key, value = (dense(x, tensors, f"{name}.{part}") for part in ("query", "key", "value"))
    outputs = []
    for q, k, v in zip(*(y.chunk(heads, dim=-1) for y in (query, key, value)), strict=True):
        scores = (q @ k.T / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)  # (N, N)
        outputs.append(scores.softmax(dim=-1) @ v)  # (N, d)
    return torch.cat(outputs, dim=-1)


def mix_convbert(x, tensors, name, heads, mask):
    """The mixer of ConvBERT: attention, and a convolution whose kernel each token makes."""
    heads = heads // 2
    depthwise = tensors[f"{name}.key_conv_attn_layer.depthwise.weight"]  # (C, 1, K)
    K = depthwise.shape[-1]
    k = K // 2
    N, C = x.shape

    # the summary of the neighbourhood of each token
    near = F.pad(x, (0, 0, k, k))  # (N + 2k, C)
    summary = sum(depthwise[:, 0, r] * near[r : r + N] for r in range(K))  # (N, C)
    pointwise = tensors[f"{name}.key_conv_attn_layer.pointwise.weight"]  # (C/2, C, 1)
    summary = summary @ pointwise[:, :, 0].T + tensors[f"{name}.key_conv_attn_layer.bias"][:, 0]

    # its kernels, and the sum of the values around each token
    summary = summary * dense(x, tensors, f"{name}.query")  # (N, C/2)
    kernel = dense(summary, tensors, f"{name}.conv_kernel_layer")
    kernel = kernel.reshape(N, heads, K).softmax(dim=-1)
    kernel = kernel.repeat_interleave(C // 2 // heads, dim=1)  # (N, C/2, K)
    value = F.pad(dense(x, tensors, f"{name}.conv_out_layer"), (0, 0, k, k))  # (N + 2k, C/2)
    convolved = sum(kernel[:, :, r] * value[r : r + N] for r in range(K))  # (N, C/2)
    return torch.cat([mix_bert(x, tensors, name, heads, mask), convolved], dim=-1)


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
        z = mix(x, tensors, f"{layer}.attention.self", config["num_attention_heads"], mask)
        z = dense(z, tensors, f"{layer}.attention.output.dense")
        x = layer_norm(x + z, tensors, f"{layer}.attention.output.LayerNorm")
        z = F.gelu(dense(x, tensors, f"{layer}.intermediate.dense"))
        z = dense(z, tensors, f"{layer}.output.dense")
        x = layer_norm(x + z, tensors, f"{layer}.output.LayerNorm")

    # head
    start, bias = "generator_predictions", "generator_lm_head.bias"
    if kind == "bert":
        start, bias = "cls.predictions.transform", "cls.predictions.bias"
    x = layer_norm(F.gelu(dense(x, tensors, f"{start}.dense")), tensors, f"{start}.LayerNorm")
    return x @ token.T + tensors[bias]


def own_logits(model, input_ids, token_types, mask):
    """Logits (N, V) of our model, in float64."""
    with torch.no_grad():
        return model.double()(input_ids[None], mask[None], token_types[None])[0]


def random_input(vocab_size, real=14):
    """input_ids, token_types, mask of 14 tokens, of which the last ones are padding."""
    torch.manual_seed(5)
    token_types = torch.randint(0, 2, (14,))
    return torch.randint(0, vocab_size, (14,)), token_types, torch.arange(14) < real


# --- Import ---------------------------------------------------------------------------------------


def check_imported(run, kind, tensors, config, real=14):
    """The logits of the run are those of the published model, token by token and piece by piece."""
    model, tokenizer = load_run(run)
    new_ids = torch.tensor([tokenizer.token_to_id(piece) for piece in PIECES])
    input_ids, token_types, mask = random_input(len(PIECES), real)

    expected = reference_logits(kind, tensors, config, input_ids, token_types, mask)
    found = own_logits(model, new_ids[input_ids], token_types, mask)[:, new_ids]
    torch.testing.assert_close(found[mask], expected[mask, : len(PIECES)], rtol=0, atol=1e-10)


# The last tokens are padding; not for ConvBERT, whose convolutions see padding in transformers.
@pytest.mark.parametrize(
    "kind, changes, real",
    [
        ("bert", {}, 10),
        ("bert", {"vocab_size": 16}, 10),  # three embeddings without a piece
        ("electra", {}, 10),
        ("electra", {"embedding_size": 16}, 10),
        ("convbert", {}, 14),
        ("convbert", {"embedding_size": 16}, 14),
    ],
)
def test_an_imported_model_computes_what_the_published_one_does(
    kind, changes, real, run_exchange, tmp_path
):
    folder = write_checkpoint(tmp_path / kind, kind, **changes)
    assert run_exchange("import", folder, tmp_path / "run").code == 0
    tensors = random_tensors(kind, **changes)
    check_imported(tmp_path / "run", kind, tensors, published_config(kind, **changes), real)


@pytest.mark.parametrize("zip_file", [True, False], ids=["zip", "before PyTorch 1.6"])
def test_a_file_with_old_names_copies_and_16_bits_gives_the_same_model(
    zip_file, run_exchange, tmp_path
):
    tensors = {name: tensor.half() for name, tensor in random_tensors("bert").items()}
    older = {
        "embeddings.position_ids": torch.arange(20)[None],
        "cls.predictions.decoder.weight": tensors[TOKENS],
        "pooler.dense.weight": torch.ones(16, 16),
    }
    for name, tensor in tensors.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        name = name.replace("LayerNorm.bias", "LayerNorm.beta")
        older[name.removeprefix("bert.")] = tensor

    folder = write_checkpoint(tmp_path / "old")
    path = folder / "pytorch_model.bin"
    torch.save(older, path, _use_new_zipfile_serialization=zip_file)
    done = run_exchange("import", folder, tmp_path / "run")
    assert done.out.splitlines()[1:] == ["left out: bert.pooler.dense.weight"]
    check_imported(tmp_path / "run", "bert", tensors, published_config("bert"))


def test_a_checkpoint_without_a_head_keeps_its_encoder_and_gets_a_new_head(run_exchange, tmp_path):
    tensors = random_tensors("electra")
    encoder = {name: value for name, value in tensors.items() if name.startswith("electra.")}
    encoder["discriminator_predictions.dense.weight"] = torch.ones(16, 16)
    folder = write_checkpoint(tmp_path / "electra", "electra", encoder)
    done = run_exchange("import", folder, tmp_path / "run")
    assert "no masked-LM head" in done.out
    assert "left out: discriminator_predictions.dense.weight\n" in done.out

    # the token embeddings have another order
    _, found = exchange.published_tensors(load_run(tmp_path / "run")[0])
    for name, tensor in tensors.items():
        if "word_embeddings" not in name:
            is_equal = torch.equal(found[name], tensor)
            assert is_equal == name.startswith("electra."), name


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
    assert run_exchange("import", folder, tmp_path / "run").code == 0
    check_imported(tmp_path / "run", "convbert", full, published_config("convbert"))


def test_an_imported_tokenizer_makes_the_same_pieces(run_exchange, tmp_path):
    """One more token was added behind the pieces, and stays there."""
    folder = write_checkpoint(tmp_path / "bert", vocab_size=14)
    published = published_tokenizer()
    published.add_tokens(["<name>"])
    published.save(str(folder / "tokenizer.json"))
    run_exchange("import", folder, tmp_path / "run")

    _, tokenizer = load_run(tmp_path / "run")
    assert [tokenizer.id_to_token(i) for i in range(13)] == [PIECES[old] for old in NEW_ORDER]
    texts = ["The cats was tired.", "undogs tired [MASK] .", "caf\u00e9 \u6f22\u5b57", "the <name>"]
    for text in texts:
        expected = published.encode(text, add_special_tokens=False)
        found = tokenizer.encode(text)
        assert found.tokens == expected.tokens
        assert [[*NEW_ORDER, 13][i] for i in found.ids] == expected.ids


# --- Export ---------------------------------------------------------------------------------------


def make_run(folder, variant, **overrides):
    """A run of a small model; every weight is random, biases too."""
    model = small_model(variant, **overrides)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    folder.mkdir(parents=True)
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
def test_an_exported_model_computes_what_the_run_does(variant, embedding_size, kind, tmp_path):
    model, _ = load_run(make_run(tmp_path / "run", variant, embedding_size=embedding_size))
    found_kind, tensors = exchange.published_tensors(model)
    assert found_kind == kind

    # names and shapes are those of the library, and so are the logits
    config = exchange.published_config(model.config, kind)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == layout(kind, config)
    inputs = random_input(len(WORDS))
    expected = own_logits(model, *inputs)
    found = reference_logits(kind, tensors, config, *inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("variant, embedding_size, kind", EXPORTS)
def test_an_exported_run_can_be_imported_again(
    variant, embedding_size, kind, run_exchange, tmp_path
):
    pytest.importorskip("safetensors")
    run = make_run(tmp_path / "run", variant, embedding_size=embedding_size, kernel_size=None)
    assert run_exchange("export", run, tmp_path / "published").code == 0
    assert run_exchange("import", tmp_path / "published", tmp_path / "again").code == 0

    # `none` comes back as `absolute`
    model, tokenizer = load_run(tmp_path / "again")
    assert model.config.variant == variant.replace("none", "absolute")
    assert tokenizer.to_str() == load_run(run)[1].to_str()
    inputs = random_input(len(WORDS), real=10)
    expected = own_logits(load_run(run)[0], *inputs)
    torch.testing.assert_close(own_logits(model, *inputs), expected, rtol=0, atol=1e-6)


def test_the_exported_tokenizer_adds_the_special_tokens():
    tokenizer = exchange.published_tokenizer(word_tokenizer())
    pair = tokenizer.encode("the cat", "tired")
    assert pair.ids == [2, 5, 6, 3, 10, 3]
    assert pair.type_ids == [0, 0, 0, 0, 1, 1]


# --- What is refused ------------------------------------------------------------------------------

QUERY = "bert.encoder.layer.1.attention.self.query.weight"
DISTANCE = "bert.encoder.layer.0.attention.self.distance_embedding.weight"


@pytest.mark.parametrize(
    "changes, part",
    [
        ({"model_type": "roberta"}, "model_type is roberta"),
        ({"hidden_act": "gelu_new"}, "hidden_act is gelu_new"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is relative_key"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"head_ratio": 4}, "head_ratio is 4"),
        ({QUERY: None}, f"no {QUERY}"),
        ({QUERY: torch.ones(16, 15)}, f"{QUERY} has the shape [16, 15], not [16, 16]"),
        ({TOKENS: torch.ones(12, 16)}, f"{TOKENS} has no row for token 12"),
        ({DISTANCE: torch.ones(39, 4)}, DISTANCE),
    ],
)
def test_a_model_that_computes_something_else_is_refused(changes, part, run_exchange, tmp_path):
    # the changes are entries of config.json as well as tensors; None: there is no such tensor
    tensors = {**random_tensors("bert"), **changes}
    tensors = {name: tensor for name, tensor in tensors.items() if torch.is_tensor(tensor)}
    folder = write_checkpoint(tmp_path / "bert", tensors=tensors, **changes)
    assert_refused(run_exchange("import", folder, tmp_path / "run"), part)
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]  # nothing was written


def assert_refused(done, part):
    assert done.code == 2
    assert done.error.count("\n") == 1
    assert part in done.error


def test_folders_that_do_not_serve_are_refused(run_exchange, tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", "composite")
    folder = write_checkpoint(tmp_path / "bert")
    new = tmp_path / "new"
    assert_refused(run_exchange("import", folder, run), "already exists")
    assert_refused(run_exchange("import", tmp_path / "nowhere", new), "config.json")
    assert_refused(run_exchange("import", run, new), "model_type is None")

    # a file that was cut, and two that name a function of Python
    weights = folder / "pytorch_model.bin"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert_refused(run_exchange("import", folder, new), "is damaged")
    for zip_file in (True, False):
        torch.save({"a": print}, weights, _use_new_zipfile_serialization=zip_file)
        assert_refused(run_exchange("import", folder, new), "is damaged")

    (folder / "tokenizer.json").unlink()
    torch.save(random_tensors("bert"), weights)
    assert_refused(run_exchange("import", folder, new), "tokenizer.json")

    # export, and a file that needs another package
    assert_refused(run_exchange("export", run, new), "composite cannot be exported")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    (folder / "model.safetensors").touch()
    assert_refused(run_exchange("import", folder, new), "pip install safetensors")
    assert not new.exists()


# --- The examples of docs/exchange.md and README.md -----------------------------------------------


def run_block(name, number):
    """Run a Python block of a document. Returns its variables."""
    text = (ROOT / name).read_text(encoding="utf-8")
    names = {}
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[number], names)
    return names


def test_the_examples_with_a_run_give_the_shapes_that_they_name(tmp_path, monkeypatch):
    make_run(tmp_path / "runs/composite", "composite")
    monkeypatch.chdir(tmp_path)

    names = run_block("README.md", 0)
    N = len(names["pieces"])
    assert names["hidden"].shape == (1, N, 32)
    assert names["p"].shape == (4, N, N)
    assert names["kernels"].shape == (4, N, 17)

    names = run_block("docs/exchange.md", 0)
    B, N = names["input_ids"].shape
    assert names["input_ids"][0, -1] == PAD
    assert names["hidden"].shape == (B, N, 32)
    assert names["logits"].shape == (B, N, len(WORDS))


def test_an_attention_of_ones_own_with_kernels_gives_the_same_in_blocks():
    names = run_block("docs/exchange.md", 1)
    own = names["my_attention"]
    query, key, value, mask, rows = (names[x] for x in ("query", "key", "value", "mask", "rows"))
    results = []
    for z in (
        own(query, key, value, mask, rows),
        names["attention_in_blocks"](own, query, key, value, mask, rows),
    ):
        results.append([z, *torch.autograd.grad(z.square().sum(), (query, key, value, rows))])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
