"""lab/huggingface.py: checkpoints of transformers become runs, and runs checkpoints."""

import json
import socket

import pytest
import torch

from conftest import write
from lab import huggingface
from model import load_run
from model_helpers import write_run
from support.tokenizer import Encoder

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
transformers.utils.logging.disable_progress_bar()

# the special tokens are at other places than here
PIECES = ["[PAD]", "the", "cat", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES += ["dog", "##s", "was", ".", "cafe"]
SIZES = dict(vocab_size=24, hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
SIZES |= dict(intermediate_size=24, max_position_embeddings=20)
MATRIX = "bert.encoder.layer.1.output.dense.weight"
DISTANCES = "bert.encoder.layer.0.attention.self.distance_embedding.weight"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """No test asks for the address of another machine."""
    asked = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **options: asked.append(address))
    yield
    assert not asked


def random_bert(name="BertForMaskedLM", **changes):
    """A model of transformers with random weights."""
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**SIZES | changes))
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model


def write_checkpoint(folder, model=None, added=(), **options):
    """A checkpoint: a model, a BERT by default, and a tokenizer."""
    (model or random_bert()).save_pretrained(folder, **options)
    tokenizer = transformers.BertTokenizer({piece: i for i, piece in enumerate(PIECES)})
    tokenizer.add_tokens(list(added))
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "name, changes",
    [
        ("BertForMaskedLM", {}),
        ("ElectraForMaskedLM", {"embedding_size": 8}),
        ("ConvBertForMaskedLM", {"embedding_size": 16, "conv_kernel_size": 5}),
        ("ConvBertForMaskedLM", {"embedding_size": 8, "conv_kernel_size": 5, "num_groups": 2}),
    ],
)
def test_an_imported_model_computes_what_the_published_one_does(name, changes, tmp_path):
    """import_checkpoint itself compares the two, and refuses a model that differs."""
    folder = write_checkpoint(tmp_path / "bert", random_bert(name, **changes))
    huggingface.import_checkpoint(folder, tmp_path / "run")
    _, tokenizer = load_run(tmp_path / "run")
    assert tokenizer.encode("the dogs", add_special_tokens=False).tokens == ["the", "dog", "##s"]
    assert tokenizer.token_to_id("[MASK]") == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu_new"},
        {"layer_norm_eps": 1e-7},
        {"type_vocab_size": 3},
        {"is_decoder": True},
        {"tie_word_embeddings": False},
    ],
)
def test_a_model_that_computes_something_else_is_refused(changes, tmp_path, refused):
    folder = write_checkpoint(tmp_path / "bert", random_bert(**changes))
    refused(huggingface.main, "import", folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "name, weight, reason",
    [
        # relative_key has a vector for each distance
        (DISTANCES, torch.ones(39, 4), DISTANCES),
        # not tied, although config.json says so
        ("cls.predictions.decoder.weight", torch.ones(24, 16), "output matrix"),
        (MATRIX, torch.full((16, 24), torch.nan), "not finite"),
        (MATRIX, None, MATRIX),
    ],
)
def test_weights_that_do_not_fit_are_refused(name, weight, reason, tmp_path, refused):
    folder = write_checkpoint(tmp_path / "bert")
    file = folder / "model.safetensors"
    weights = safetensors.load_file(file) | {name: weight}
    if weight is None:
        del weights[name]
    safetensors.save_file(weights, file, metadata={"format": "pt"})
    assert reason in refused(huggingface.main, "import", folder, tmp_path / "run")


def test_a_checkpoint_in_parts_and_in_half_precision_keeps_its_weights(tmp_path):
    theirs = random_bert().half()
    folder = write_checkpoint(tmp_path / "bert", theirs, max_shard_size="5KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    huggingface.import_checkpoint(folder, tmp_path / "run")
    model, _ = load_run(tmp_path / "run")
    assert torch.equal(model.bert.layers[1].ffn[2].weight, theirs.state_dict()[MATRIX].float())


def test_nothing_in_a_checkpoint_is_executed(tmp_path, refused, capsys):
    class Code:
        def __reduce__(self):
            return print, ("executed",)

    folder = write_checkpoint(tmp_path / "bert")
    (folder / "model.safetensors").unlink()
    torch.save({MATRIX: Code()}, folder / "pytorch_model.bin")
    refused(huggingface.main, "import", folder, tmp_path / "run")
    assert "executed" not in capsys.readouterr().out


def test_an_encoder_has_no_head_and_a_damaged_file_is_refused_in_one_line(tmp_path, refused):
    folder = write_checkpoint(tmp_path / "bert", random_bert("BertModel"))
    lines = huggingface.import_checkpoint(folder, tmp_path / "run")
    assert "no masked-LM head" in lines[1] and "left out: pooler" in lines[2]
    (folder / "model.safetensors").write_bytes(b"cut")
    assert "no checkpoint" in refused(huggingface.main, "import", folder, tmp_path / "other")


def test_tokens_that_were_added_stay_tokens(tmp_path):
    """Also in glue.py, which reads word by word, if they contain a space or are special."""
    added = ["new york", transformers.AddedToken("[E1]", special=True)]
    folder = write_checkpoint(tmp_path / "bert", added=added)
    huggingface.import_checkpoint(folder, tmp_path / "run")
    _, tokenizer = load_run(tmp_path / "run")
    tokens = [tokenizer.id_to_token(i) for i in Encoder(tokenizer)("the[E1]dog was New York.")]
    assert tokens == ["the", "[E1]", "dog", "was", "new york", "."]


@pytest.mark.parametrize("claim", ["do_lower_case", "strip_accents", "tokenize_chinese_chars"])
def test_files_of_a_tokenizer_that_contradict_each_other_are_refused(claim, tmp_path, refused):
    folder = write_checkpoint(tmp_path / "bert")
    path = folder / "tokenizer_config.json"
    write(path, json.dumps(json.loads(path.read_text("utf-8")) | {claim: False}))
    assert "other tokens" in refused(huggingface.main, "import", folder, tmp_path / "run")


@pytest.mark.parametrize("variant, embedding_size", [("absolute", 32), ("none", 16)])
def test_an_exported_run_is_what_transformers_computes(variant, embedding_size, tmp_path):
    ours = write_run(tmp_path / "run", variant, embedding_size=embedding_size)
    huggingface.export_run(tmp_path / "run", tmp_path / "bert")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "bert").eval()
    ids = torch.arange(5, 11)[None]
    assert (theirs(ids).logits - ours(ids)).abs().max() < 1e-4
    huggingface.import_checkpoint(tmp_path / "bert", tmp_path / "again")
