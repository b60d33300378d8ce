"""A run's folder: what is saved is loaded again, and damaged or hostile files are refused."""

import json

import pytest
import torch

from model import load_config, load_run, save_run
from model_helpers import every_word_once, small_model, word_tokenizer
from support.runs import (
    say_if_unfinished,
)


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


def weights_truncated(run):
    content = (run / "model.pt").read_bytes()
    (run / "model.pt").write_bytes(content[: len(content) // 2])


def weights_missing(run):
    (run / "model.pt").unlink()


def weights_of_another_variant(run):
    torch.save(small_model("conv-qk").state_dict(), run / "model.pt")


def a_flipped_bit(run):
    content = bytearray((run / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (run / "model.pt").write_bytes(content)


def config_of_an_unknown_variant(run):
    change_config(run, variant="nonsense")


def tokenizer_missing(run):
    (run / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    "damage, words",
    [
        (no_folder, "is not a run"),
        (nothing_there, "is not a run"),
        (weights_truncated, "model.pt is damaged"),
        (a_flipped_bit, "model.pt is damaged"),
        (weights_missing, "no model.pt"),
        (weights_of_another_variant, "model.pt holds the weights of another model"),
        (config_of_an_unknown_variant, "nonsense"),
        (tokenizer_missing, "tokenizer.json"),
    ],
)
def test_a_broken_run_is_refused_in_one_line_that_names_it(run, damage, words):
    damage(run)
    with pytest.raises(ValueError, match=words) as error:
        load_run(run)
    message = str(error.value)
    assert run.name in message and "\n" not in message


@pytest.mark.parametrize(
    "lines, said",
    [
        (['{"step": 3}', '{"step": 5}'], False),
        (['{"step": 3}'], True),
        ([], True),
    ],
)
def test_a_run_that_is_not_finished_is_named(run, capsys, lines, said):
    first = json.dumps({"settings": {"steps": 5}})
    (run / "log.jsonl").write_text("\n".join([first, *lines]) + "\n", encoding="utf-8")
    say_if_unfinished(run)
    assert ("is not finished: step" in capsys.readouterr().err) == said
