"""lab/huggingface.py: checkpoints of transformers become runs, and runs checkpoints."""

import pytest
import torch
from tokenizers.implementations import BertWordPieceTokenizer

from lab import huggingface
from model import load_run
from model_helpers import write_run

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

# the special tokens are at other places than here
PIECES = ["[PAD]", "the", "cat", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "dog", "##s", "was", "."]
SIZES = dict(vocab_size=len(PIECES), hidden_size=16, num_hidden_layers=2, num_attention_heads=4)
SIZES |= dict(intermediate_size=24, max_position_embeddings=20)


def write_checkpoint(folder, name="BertForMaskedLM", **changes):
    """A checkpoint with random weights."""
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**SIZES | changes))
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    model.save_pretrained(folder)
    vocabulary = {piece: number for number, piece in enumerate(PIECES)}
    BertWordPieceTokenizer(vocabulary).save(str(folder / "tokenizer.json"))
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
    huggingface.import_checkpoint(
        write_checkpoint(tmp_path / "bert", name, **changes), tmp_path / "run"
    )
    model, tokenizer = load_run(tmp_path / "run")
    assert tokenizer.encode("the dogs", add_special_tokens=False).tokens == ["the", "dog", "##s"]
    assert tokenizer.token_to_id("[MASK]") == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "relu"},
        {"layer_norm_eps": 1e-3},
        {"type_vocab_size": 3},
        {"is_decoder": True},
    ],
)
def test_a_model_that_computes_something_else_is_refused(changes, tmp_path, refused):
    folder = write_checkpoint(tmp_path / "bert", **changes)
    refused(huggingface.main, "import", folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_encoder_has_no_head_and_a_damaged_file_is_refused_in_one_line(tmp_path, refused):
    folder = write_checkpoint(tmp_path / "bert", "BertModel")
    assert "no masked-LM head" in huggingface.import_checkpoint(folder, tmp_path / "run")[0]
    (folder / "model.safetensors").write_bytes(b"cut")
    assert "no checkpoint" in refused(huggingface.main, "import", folder, tmp_path / "other")


@pytest.mark.parametrize("variant, embedding_size", [("absolute", 32), ("none", 16)])
def test_an_exported_run_is_what_transformers_computes(variant, embedding_size, tmp_path):
    ours = write_run(tmp_path / "run", variant, embedding_size=embedding_size)
    huggingface.export_run(tmp_path / "run", tmp_path / "bert")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "bert").eval()
    ids = torch.arange(5, 11)[None]
    assert (theirs(ids).logits - ours(ids)).abs().max() < 1e-4
    huggingface.import_checkpoint(tmp_path / "bert", tmp_path / "again")
