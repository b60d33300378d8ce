"""lab/huggingface.py: checkpoints of transformers, imported, exported and refused.

transformers itself is not needed: the names and shapes of its weights are listed here by hand, and
RECORDED has what its models computed with the same random weights (version 4.57.6, in float64).
"""

import json
import re
import sys

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tokenizers.implementations import BertWordPieceTokenizer

import model
from conftest import ROOT, words_of
from lab import huggingface
from model import load_run
from model_helpers import WORDS, word_tokenizer, write_run
from support.tokenizer import Encoder

# --- A published checkpoint -----------------------------------------------------------------------

# The special tokens are at other places than here.
PIECES = ["[PAD]", "the", "cat", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "##s", "was"]
PIECES += ["tired", ".", "un"]
NEW_ORDER = [0, 3, 4, 5, 6, 1, 2, 7, 8, 9, 10, 11, 12]  # the old ids, in the order of the new ones

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


# {(kind, embedding size, groups): logits of three pieces at the last token of `imported_logits`}
RECORDED = {
    ("bert", 16, 1): [0.410889935, 1.8173076, -0.457471391],
    ("electra", 8, 1): [0.070538977, 0.2073458, 0.014912662],
    ("convbert", 16, 1): [-0.15236304, 0.227426725, -0.844833095],
    ("convbert", 8, 2): [-0.217409466, 0.140898921, 0.032520848],
}


def published_config(kind, **changes):
    """The config.json that transformers writes, without entries that do not matter here."""
    config = {
        "model_type": kind,
        "vocab_size": 13,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 24,
        "max_position_embeddings": 20,
        "embedding_size": 16,
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


def random_tensors(kind, groups=1, **changes):
    """{name: tensor} of a random model: the same every time."""
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for name, shape in layout(kind, published_config(kind, **changes)).items():
        if groups > 1 and re.search(r"(intermediate|\d\.output)\.dense\.weight", name):
            shape = (groups, shape[1] // groups, shape[0] // groups)  # (groups, in, out)
        tensors[name] = torch.randn(shape, generator=generator) * 0.3 + 0.1
    return tensors


def published_tokenizer():
    """BERT's tokenizer as the tokenizers library makes it, which transformers uses."""
    return BertWordPieceTokenizer({piece: number for number, piece in enumerate(PIECES)})


def write_checkpoint(folder, kind="bert", tensors=None, **changes):
    """Write a published checkpoint. changes: of config.json."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(published_config(kind, **changes)))
    if tensors is None:
        tensors = random_tensors(kind)
    torch.save(tensors, folder / "pytorch_model.bin")
    published_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


# --- Import ---------------------------------------------------------------------------------------


def convert(*words):
    huggingface.main(words_of(*words))


def imported_logits(folder, run):
    """Logits of an imported checkpoint for 14 tokens, by the published ids: (14, V) in float64."""
    convert("import", folder, run)
    imported, tokenizer = load_run(run)
    new_ids = torch.tensor([tokenizer.token_to_id(piece) for piece in PIECES])
    i = torch.arange(14)
    input_ids, token_types = i * 5 % 13, i % 2
    with torch.no_grad():
        logits = imported.double()(new_ids[input_ids][None], None, token_types[None])[0]
    return logits[:, new_ids]


@pytest.mark.parametrize("kind, embedding_size, groups", RECORDED)
def test_an_imported_model_computes_what_the_published_one_does(
    kind, embedding_size, groups, tmp_path
):
    tensors = random_tensors(kind, groups, embedding_size=embedding_size)
    folder = write_checkpoint(tmp_path / kind, kind, tensors, num_groups=groups)
    logits = imported_logits(folder, tmp_path / "run")
    expected = RECORDED[kind, embedding_size, groups]
    assert logits[-1, :3].tolist() == pytest.approx(expected, abs=1e-8)


def with_old_names(folder, tensors):
    """Names without "bert.", LayerNorms with gamma and beta, copies, and a pooler."""
    older = {
        "embeddings.position_ids": torch.arange(20)[None],
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"],
        "pooler.dense.weight": torch.ones(16, 16),
    }
    for name, tensor in tensors.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        name = name.replace("LayerNorm.bias", "LayerNorm.beta")
        older[name.removeprefix("bert.")] = tensor
    # as before PyTorch 1.6
    torch.save(older, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def wrapped(folder, tensors):
    """A model that was compiled, in DataParallel."""
    named = {"module._orig_mod." + name: tensor for name, tensor in tensors.items()}
    torch.save(named, folder / "pytorch_model.bin")


def with_one_name_of_two(folder, tensors):
    """Of the bias and of the embeddings, only the names as parts of the head."""
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    vectors = tensors.pop("bert.embeddings.word_embeddings.weight")
    torch.save({**tensors, "cls.predictions.decoder.weight": vectors}, folder / "pytorch_model.bin")


def in_two_files(folder, tensors):
    files = {name: f"pytorch_model-{i % 2}.bin" for i, name in enumerate(tensors)}
    (folder / "pytorch_model.bin").unlink()
    for file in set(files.values()):
        torch.save({name: tensors[name] for name in tensors if files[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    # left over: of a checkpoint in more files
    torch.save({name: 2 * x for name, x in tensors.items()}, folder / "pytorch_model-3.bin")


def without_types(folder, tensors):
    """config.json and, as in bert-base-uncased, tokenizer.json do not name their kinds of model."""
    config = published_config("bert")
    del config["model_type"]
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    del tokenizer["model"]["type"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    "rewrite", [with_old_names, wrapped, with_one_name_of_two, in_two_files, without_types]
)
def test_other_forms_of_a_checkpoint_give_the_same_model(rewrite, tmp_path, capsys):
    folder = write_checkpoint(tmp_path / "bert")
    expected = imported_logits(folder, tmp_path / "run")
    rewrite(folder, random_tensors("bert"))
    assert torch.equal(imported_logits(folder, tmp_path / "again"), expected)
    said = "left out: bert.pooler.dense.weight" in capsys.readouterr().out
    assert said is (rewrite is with_old_names)


def test_a_checkpoint_without_a_head_keeps_its_encoder_and_fills_no_blanks(
    tmp_path, capsys, refused
):
    tensors = random_tensors("electra")
    encoder = {name: value for name, value in tensors.items() if name.startswith("electra.")}
    folder = write_checkpoint(tmp_path / "electra", "electra", encoder)
    run = tmp_path / "run"
    convert("import", folder, run)
    assert "no masked-LM head" in capsys.readouterr().out
    assert "no masked-LM head" in refused(model.main, run, "the [MASK] was tired.")

    found = load_run(run, needs_head=False)[0].bert.layers[1].ffn_norm.weight
    name = "electra.encoder.layer.1.output.LayerNorm.weight"  # the last one of the encoder
    assert torch.equal(found, tensors[name])

    # exported, it is the encoder alone
    pytest.importorskip("safetensors")
    convert("export", run, tmp_path / "published")
    exported = huggingface.read_tensors(tmp_path / "published")
    names = {name.replace("electra.", "bert.") for name in encoder}
    assert exported.keys() == names  # its embeddings have the hidden size: it is a BERT


def test_other_tokenizers_encode_whole_texts_and_large_vocabularies_have_32_bits():
    """A byte-level tokenizer gives another piece to a word after a space."""
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    byte_level.train_from_iterator(["the dog and the cat and the dog"] * 9, trainer)
    large = Tokenizer(models.WordLevel({f"w{i}": i for i in range(70_000)}, unk_token="w0"))
    large.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    bert = published_tokenizer()._tokenizer
    for tokenizer, text in (
        (byte_level, "the dog and the cat"),
        (large, "w69999 w1"),
        (bert, "the\x0bcat \x1cthe\x85dog\x0c"),
    ):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert Encoder(tokenizer)(text).tolist() == ids


def test_an_imported_tokenizer_makes_the_same_pieces(tmp_path):
    imported_logits(write_checkpoint(tmp_path / "bert"), tmp_path / "run")
    _, tokenizer = load_run(tmp_path / "run")
    assert [tokenizer.id_to_token(i) for i in range(13)] == [PIECES[old] for old in NEW_ORDER]
    for text in ("The cats was tired.", "undogs tired [MASK] .", "caf\u00e9 \u6f22\u5b57"):
        expected = published_tokenizer().encode(text, add_special_tokens=False)
        found = tokenizer.encode(text)
        assert found.tokens == expected.tokens
        assert [NEW_ORDER[i] for i in found.ids] == expected.ids


def test_new_ids_and_what_is_left_out_are_said(tmp_path, capsys):
    larger = random_tensors("bert", vocab_size=15)
    convert("import", write_checkpoint(tmp_path / "bert", tensors=larger), tmp_path / "run")
    lines = capsys.readouterr().out.splitlines()
    assert "[PAD], [UNK], [CLS], [SEP], [MASK] are 0 to 4, and were [0, 3, 4, 5, 6]" in lines[1]
    assert "left out: 2 vectors without a token" in lines
    assert lines[-1].startswith("next: ")


@pytest.mark.parametrize(
    "settings, normalizer, name",
    [
        ({"do_lower_case": False}, {}, "do_lower_case"),
        ({"do_lower_case": True}, {"lowercase": False}, "do_lower_case"),
        ({"do_lower_case": True}, None, "do_lower_case"),
        ({"do_lower_case": True}, {"strip_accents": False}, "strip_accents"),
        ({"strip_accents": False}, {}, "strip_accents"),
        ({"tokenize_chinese_chars": False}, {}, "tokenize_chinese_chars"),
        ({"tokenize_chinese_chars": True}, {"handle_chinese_chars": False}, "tokenize_chinese"),
        ({"do_lower_case": True, "strip_accents": None}, {}, None),
        ({"do_lower_case": False}, {"lowercase": False}, None),
        ({"do_lower_case": True, "strip_accents": False}, {"strip_accents": False}, None),
    ],
)
def test_two_files_that_contradict_each_other_about_the_tokenizer_are_refused(
    settings, normalizer, name, refused, tmp_path
):
    """In case, accents or Chinese characters. The normalizer strips accents if it lower-cases."""
    folder = write_checkpoint(tmp_path / "bert")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] |= {"strip_accents": None}
    if normalizer is None:
        tokenizer["normalizer"] = None
    else:
        tokenizer["normalizer"] |= normalizer
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    if name is None:
        convert("import", folder, tmp_path / "run")
    else:
        assert name in refused(huggingface.main, "import", folder, tmp_path / "run")


# --- Export ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("embedding_size", [32, 16])
@pytest.mark.parametrize("variant", ["absolute", "none"])
def test_an_exported_run_has_the_published_names_and_can_be_imported_again(
    variant, embedding_size, tmp_path
):
    """With the tests of the import: what is exported computes the same in transformers."""
    pytest.importorskip("safetensors")
    run = tmp_path / "run"
    model = write_run(run, variant, embedding_size=embedding_size)
    convert("export", run, tmp_path / "published")
    config = json.loads((tmp_path / "published/config.json").read_text())
    tensors = huggingface.read_tensors(tmp_path / "published")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert shapes == layout(config["model_type"], config)

    # its tokenizer adds the special tokens
    pair = Tokenizer.from_file(str(tmp_path / "published/tokenizer.json")).encode("the", "tired")
    assert (pair.ids, pair.type_ids) == ([2, 5, 3, 10, 3], [0, 0, 0, 1, 1])

    # `none` comes back as `absolute`
    convert("import", tmp_path / "published", tmp_path / "again")
    again, again_tokenizer = load_run(tmp_path / "again")
    assert again.config.variant == variant.replace("none", "absolute")
    assert again_tokenizer.to_str() == word_tokenizer().to_str()
    input_ids = torch.arange(len(WORDS))[None]
    torch.testing.assert_close(again(input_ids), model(input_ids), rtol=0, atol=1e-5)


# --- What is refused ------------------------------------------------------------------------------

VECTORS = "bert.embeddings.word_embeddings.weight"
OTHER_VECTORS = 0.5 + random_tensors("bert")[VECTORS]
QUERY = "bert.encoder.layer.1.attention.self.query.weight"
DISTANCE = "bert.encoder.layer.0.attention.self.distance_embedding.weight"


@pytest.mark.parametrize(
    "config, weights",
    [
        ({"model_type": "roberta"}, {}),
        ({"hidden_act": "gelu_new"}, {}),
        ({"position_embedding_type": "relative_key"}, {}),
        ({"head_ratio": 4}, {}),
        ({}, {QUERY: torch.ones(16, 15)}),
        ({}, {DISTANCE: torch.ones(39, 4)}),
        ({}, {"cls.predictions.decoder.weight": OTHER_VECTORS}),
        ({}, {"cls.predictions.decoder.bias": torch.zeros(13)}),
        ({}, {"bert.embeddings.position_ids": torch.arange(20).flip(0)[None]}),
        ({}, {"bert.embeddings.token_type_ids": torch.ones(1, 20)}),
        ({"tie_word_embeddings": False}, {}),  # and no output matrix
    ],
)
def test_a_model_that_computes_something_else_is_refused(config, weights, refused, tmp_path):
    tensors = {**random_tensors("bert"), **weights}
    folder = write_checkpoint(tmp_path / "bert", tensors=tensors, **config)
    refused(huggingface.main, "import", folder, tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]  # nothing was written


def test_another_output_matrix_of_a_generator_is_refused(refused, tmp_path):
    tensors = {**random_tensors("electra"), "generator_lm_head.weight": OTHER_VECTORS}
    folder = write_checkpoint(tmp_path / "electra", "electra", tensors)
    assert "generator_lm_head" in refused(huggingface.main, "import", folder, tmp_path / "run")


def test_an_output_matrix_that_equals_the_embeddings_is_tied_whatever_the_config_says(tmp_path):
    tensors = random_tensors("bert")
    tensors["cls.predictions.decoder.weight"] = tensors[VECTORS].clone()
    folder = write_checkpoint(tmp_path / "bert", tensors=tensors, tie_word_embeddings=False)
    convert("import", folder, tmp_path / "run")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_at_import_and_when_a_run_is_loaded(
    number, refused, tmp_path
):
    tensors = random_tensors("bert")
    convert("import", write_checkpoint(tmp_path / "bert"), tmp_path / "run")
    tensors[QUERY][3, 2] = number
    torch.save(tensors, tmp_path / "bert/pytorch_model.bin")
    line = refused(huggingface.main, "import", tmp_path / "bert", tmp_path / "other")
    assert QUERY in line and "not finite" in line

    weights = torch.load(tmp_path / "run/model.pt")
    weights["norm.weight"][0] = number
    torch.save(weights, tmp_path / "run/model.pt")
    assert "not finite" in refused(model.main, tmp_path / "run", "the [MASK] was tired.")


def a_tensor_twice(folder, tensors):
    """Two parts without an index."""
    (folder / "pytorch_model.bin").unlink()
    torch.save(tensors, folder / "pytorch_model-00001-of-00002.bin")
    torch.save({QUERY: tensors[QUERY]}, folder / "pytorch_model-00002-of-00002.bin")


def a_name_twice(folder, tensors):
    """The same weight with and without the beginning of its name."""
    twice = {**tensors, QUERY.removeprefix("bert."): tensors[QUERY]}
    torch.save(twice, folder / "pytorch_model.bin")


def a_file_and_parts(folder, tensors):
    in_two_files(folder, tensors)
    torch.save(tensors, folder / "pytorch_model.bin")


def a_part_without_its_tensor(folder, tensors):
    in_two_files(folder, tensors)
    torch.save({}, folder / "pytorch_model-1.bin")


def no_part(folder, tensors):
    in_two_files(folder, tensors)
    (folder / "pytorch_model-1.bin").unlink()


@pytest.mark.parametrize(
    "rewrite",
    [a_tensor_twice, a_name_twice, a_file_and_parts, a_part_without_its_tensor, no_part],
)
def test_weights_that_are_there_twice_or_only_in_the_index_are_refused(rewrite, refused, tmp_path):
    folder = write_checkpoint(tmp_path / "bert")
    rewrite(folder, random_tensors("bert"))
    refused(huggingface.main, "import", folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


LFS = b"version https://git-lfs.github.com/spec/v1\n"


@pytest.mark.parametrize(
    "name, content",
    [
        ("config.json", LFS),
        ("config.json", b'{"model_type": "be'),
        ("pytorch_model.bin", b"PK\x03\x04"),  # cut
        ("pytorch_model.bin", None),
        ("tokenizer.json", b'{"model": 5}'),
        ("model.safetensors", b"\x08\0\0\0\0\0\0\0{}"),
    ],
)
def test_a_damaged_or_missing_file_is_refused_in_one_line(name, content, refused, tmp_path):
    if name == "model.safetensors":
        pytest.importorskip("safetensors")
    folder = write_checkpoint(tmp_path / "bert")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    line = refused(huggingface.main, "import", folder, tmp_path / "new")
    assert content is None or name in line
    assert ("Git LFS" in line) is (content == LFS)
    assert not (tmp_path / "new").exists()


def test_what_is_missing_is_named(refused, tmp_path, monkeypatch):
    """An import before the use of a checkpoint, and a package for its weights."""
    folder = write_checkpoint(tmp_path / "bert")
    assert "lab.huggingface import" in refused(model.main, folder, "the [MASK]")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    (folder / "model.safetensors").touch()
    line = refused(huggingface.main, "import", folder, tmp_path / "new")
    assert "pip install safetensors" in line


# --- The examples of the documents ----------------------------------------------------------------


def test_the_examples_of_the_page_run(tmp_path, monkeypatch):
    write_run(tmp_path / "runs/composite")
    write_run(tmp_path / "runs/bert-base-uncased", "absolute")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/text.md").read_text("utf-8")
    page = page[page.index("## Models of Hugging Face") :]
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert examples
    for example in examples:
        exec(example, {})
