"""A run's folder: what is saved is loaded again, and damaged or hostile files are refused."""

import json
import pickle
from pathlib import Path

import pytest
import torch

from model import load_config, load_run, save_run
from model_helpers import every_word_once, small_model, word_tokenizer


@pytest.fixture
def run(tmp_path):
    """The folder of a run."""
    folder = tmp_path / "some_run"
    folder.mkdir()
    save_run(folder, small_model(), word_tokenizer())
    return folder


# --- Saving and loading ---------------------------------------------------------------------------


def test_a_run_has_three_files(run):
    assert sorted(path.name for path in run.iterdir()) == [
        "config.json",
        "model.pt",
        "tokenizer.json",
    ]


def test_a_run_gives_back_the_same_model_and_tokenizer(run):
    model, tokenizer = load_run(run)
    input_ids = every_word_once()
    assert torch.equal(model(input_ids), small_model()(input_ids)) and not model.training
    assert tokenizer.encode("the cat [MASK] tired").ids == [5, 6, 4, 10]


def test_a_run_is_loaded_from_a_path_given_as_text(run):
    assert load_config(str(run)) == small_model().config
    model, _ = load_run(str(run))
    assert model.config == small_model().config


@pytest.mark.parametrize("variant", ["none", "lightconv-hybrid"])
def test_a_config_without_a_kernel_or_with_an_attention_layer_is_read_again(tmp_path, variant):
    model = small_model(variant)
    save_run(tmp_path, model, word_tokenizer())
    assert load_config(tmp_path) == model.config


def test_a_compiled_model_is_saved_under_the_plain_names(tmp_path):
    model = small_model()
    input_ids = every_word_once()
    model.bert.compile(backend="eager")
    save_run(tmp_path, model, word_tokenizer())
    loaded, _ = load_run(tmp_path)
    assert torch.allclose(loaded(input_ids), model(input_ids), atol=1e-6)
    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    assert set(saved) == set(small_model().state_dict())


# --- Hostile files --------------------------------------------------------------------------------


class Hostile:
    """A careless reader of this pickle would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (Path(self.path), "executed")


def test_a_hostile_run_executes_nothing(run):
    trace = run / "trace"
    torch.save({"weights": Hostile(str(trace))}, run / "model.pt")
    with pytest.raises(ValueError, match="model.pt is damaged"):
        load_run(run)

    (run / "model.pt").write_bytes(pickle.dumps(Hostile(str(trace)), protocol=2))
    with pytest.raises(ValueError, match="model.pt is damaged"):
        load_run(run)
    assert not trace.exists()


# --- Broken runs ----------------------------------------------------------------------------------


def change_config(run, **values):
    path = run / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, **values}), encoding="utf-8")


def nothing_there(run):
    for file in run.iterdir():
        file.unlink()


def no_folder(run):
    nothing_there(run)
    run.rmdir()


def a_file(run):
    no_folder(run)
    run.write_text("not a folder")


def weights_truncated(run):
    content = (run / "model.pt").read_bytes()
    (run / "model.pt").write_bytes(content[: len(content) // 2])


def weights_missing(run):
    (run / "model.pt").unlink()


def weights_of_another_variant(run):
    torch.save(small_model("conv-qk").state_dict(), run / "model.pt")


def weights_of_another_vocabulary(run):
    weights = small_model().state_dict()
    weights["bias"] = torch.zeros(99)
    torch.save(weights, run / "model.pt")


def weights_of_another_kind(run):
    torch.save([1, 2, 3], run / "model.pt")


def config_not_json(run):
    (run / "config.json").write_text("{", encoding="utf-8")


def config_not_text(run):
    (run / "config.json").write_bytes(b"\xff\xfe\x00")


def config_not_a_dictionary(run):
    (run / "config.json").write_text("[1, 2]", encoding="utf-8")


def config_of_another_program(run):
    (run / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")


def config_of_another_vocabulary(run):
    change_config(run, vocab_size=99)


def config_of_an_unknown_variant(run):
    change_config(run, variant="nonsense")


def config_of_a_giant(run):
    change_config(run, hidden_size=10**9)


def config_of_a_model_beyond_all_bounds(run):
    change_config(run, hidden_size=10**12)


def config_nested_too_deep(run):
    (run / "config.json").write_text("[" * 100_000, encoding="utf-8")


def tokenizer_without_a_mask(run):
    text = (run / "tokenizer.json").read_text(encoding="utf-8")
    (run / "tokenizer.json").write_text(text.replace("[MASK]", "[BLANK]"), encoding="utf-8")


def tokenizer_missing(run):
    (run / "tokenizer.json").unlink()


def tokenizer_damaged(run):
    (run / "tokenizer.json").write_text("{}", encoding="utf-8")


def tokenizer_of_another_run(run):
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["more"])
    tokenizer.save(str(run / "tokenizer.json"))


@pytest.mark.parametrize(
    "damage, words",
    [
        (nothing_there, "is not a run"),
        (no_folder, "is not a run"),
        (a_file, "is not a run"),
        (weights_truncated, "model.pt is damaged"),
        (weights_missing, "no model.pt"),
        (weights_of_another_variant, "model.pt holds the weights of another model"),
        (weights_of_another_vocabulary, "model.pt holds the weights of another model"),
        (weights_of_another_kind, "model.pt"),
        (config_not_json, "config.json is damaged"),
        (config_not_text, "config.json is damaged"),
        (config_not_a_dictionary, "config.json is damaged"),
        (config_of_another_program, "config.json"),
        (config_of_another_vocabulary, "another model"),
        (config_of_an_unknown_variant, "nonsense"),
        (config_of_a_giant, "another model"),
        (config_of_a_model_beyond_all_bounds, "config.json describes a model that is too large"),
        (config_nested_too_deep, "config.json is damaged"),
        (tokenizer_without_a_mask, r"no \[MASK\]"),
        (tokenizer_missing, "no tokenizer.json"),
        (tokenizer_damaged, "tokenizer.json is damaged"),
        (tokenizer_of_another_run, "13 vocabulary items"),
    ],
)
def test_a_broken_run_is_refused_in_one_line_that_names_it(run, damage, words):
    damage(run)
    with pytest.raises(ValueError, match=words) as error:
        load_run(run)
    message = str(error.value)
    assert run.name in message and "\n" not in message
