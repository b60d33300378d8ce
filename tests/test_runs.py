"""A run's folder: what is saved is loaded again, and damaged or hostile files are refused."""

import hashlib
import json
import os
import pickle
import sys
from pathlib import Path

import pytest
import torch

from model import MOST_LAYERS, load_config, load_run, save_run
from model_helpers import every_word_once, small_model, word_tokenizer
from support import runs
from support.locks import lock
from support.runs import (
    check_not_in_use,
    each_run_once,
    holds_files,
    own_folder,
    pretraining_settings,
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


def test_a_run_is_loaded_from_a_path_given_as_text(run):
    assert load_config(str(run)) == small_model().config
    model, _ = load_run(str(run))
    assert model.config == small_model().config


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_folder_whose_name_is_not_utf8_gives_back_the_run(tmp_path):
    folder = tmp_path / os.fsdecode(b"run\xff")
    folder.mkdir()
    save_run(folder, small_model(), word_tokenizer())
    assert load_run(folder)[1].encode("the cat").ids == [5, 6]


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


def test_a_config_file_holds_the_digest_of_the_tokenizer_and_a_config_does_not(run):
    values = json.loads((run / "config.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256((run / "tokenizer.json").read_bytes()).hexdigest()
    assert values.pop("tokenizer_sha256") == digest
    assert values == vars(load_config(run))


def test_a_run_of_another_program_needs_no_digest_of_the_tokenizer(run):
    without_digest(run)
    _, tokenizer = load_run(run)
    assert tokenizer.encode("the cat").ids == [5, 6]


def test_a_tokenizer_that_cuts_and_pads_does_neither_here(run):
    without_digest(run)
    tokenizer = word_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(run / "tokenizer.json"))
    _, tokenizer = load_run(run)
    assert tokenizer.encode("the cat [MASK] tired").ids == [5, 6, 4, 10]


# --- One process per run --------------------------------------------------------------------------


def test_a_folder_is_used_by_one_process_at_a_time(tmp_path):
    folder = tmp_path / "run"
    with own_folder(folder):
        with pytest.raises(
            ValueError, match=f"in use by process {os.getpid()} .*another --out_dir"
        ):
            check_not_in_use(folder)
        with pytest.raises(ValueError, match="in use"), own_folder(folder):
            pass
    check_not_in_use(folder)
    assert not list(folder.iterdir())


def test_what_a_killed_process_left_is_removed_under_the_lock_and_not_otherwise(tmp_path):
    (tmp_path / "run.lock").write_text("process 1 on a machine", encoding="utf-8")
    (tmp_path / "model.pt.1.part").write_bytes(b"half")
    assert not holds_files(tmp_path)
    with lock(tmp_path / "run.lock", "run"), pytest.raises(ValueError, match="in use"):
        check_not_in_use(tmp_path)
    assert (tmp_path / "model.pt.1.part").exists()

    with own_folder(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]
    assert not list(tmp_path.iterdir())


def test_a_folder_with_any_other_file_holds_files(tmp_path):
    assert not holds_files(tmp_path / "absent")
    (tmp_path / "thesis.tex").write_text("...", encoding="utf-8")
    assert holds_files(tmp_path)


@pytest.mark.parametrize("name", [".DS_Store", "desktop.ini", "model.pt.123.part"])
def test_a_folder_that_only_a_desktop_or_a_killed_process_wrote_to_holds_no_files(tmp_path, name):
    (tmp_path / name).write_text("...", encoding="utf-8")
    assert not holds_files(tmp_path)


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


def without_digest(run):
    """As a run of another program: config.json does not say which tokenizer belongs to it."""
    path = run / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["tokenizer_sha256"]
    path.write_text(json.dumps(config), encoding="utf-8")


def change_weight(run, name, weight):
    weights = small_model().state_dict()
    weights[name] = weight
    torch.save(weights, run / "model.pt")


def change_tokenizer(run, **values):
    without_digest(run)
    path = run / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**tokenizer, **values}), encoding="utf-8")


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


def a_flipped_bit(run):
    content = bytearray((run / "model.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (run / "model.pt").write_bytes(content)


def weights_not_finite(run):
    change_weight(run, "bias", torch.full((12,), float("inf")))


def weights_not_a_number(run):
    change_weight(run, "bias", torch.full((12,), float("nan")))


def weights_complex(run):
    change_weight(run, "bias", torch.zeros(12, dtype=torch.complex64))


def weights_of_another_dtype(run):
    change_weight(run, "bias", torch.zeros(12, dtype=torch.float64))


def weights_without_numbers(run):
    change_weight(run, "bias", torch.zeros(12, device="meta"))


def weights_sparse(run):
    change_weight(run, "bias", torch.zeros(12).to_sparse())


def weights_without_end(run):
    change_weight(run, "bias", torch.zeros(1).expand(10**12))


def a_weight_that_is_a_list(run):
    change_weight(run, "bias", [0.0] * 12)


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


def config_with_a_name_of_two_lines(run):
    change_config(run, **{"two\nlines": 1})


def config_of_an_unknown_variant(run):
    change_config(run, variant="nonsense")


def config_with_infinity(run):
    change_config(run, dropout=float("inf"))


def config_with_nan(run):
    change_config(run, dropout=float("nan"))


def config_with_a_number_beyond_all_floats(run):
    text = (run / "config.json").read_text(encoding="utf-8")
    (run / "config.json").write_text(text.replace("0.1", "1e400"), encoding="utf-8")


def config_with_a_number_of_5000_digits(run):
    text = (run / "config.json").read_text(encoding="utf-8")
    (run / "config.json").write_text(text.replace("48", "1" * 5000), encoding="utf-8")


def config_with_a_dropout_that_is_true(run):
    change_config(run, dropout=True)


def config_of_100_000_layers(run):
    change_config(run, layers=100_000)


def config_of_a_number_that_no_machine_has(run):
    change_config(run, ffn_size=10**30)


def config_of_a_larger_number_than_a_size_may_be(run):
    change_config(run, hidden_size=10**12)


def config_of_a_kernel_beyond_the_sequence(run):
    change_config(run, kernel_size=49)


def config_of_a_giant(run):
    change_config(run, hidden_size=10**9)


def config_of_a_model_beyond_all_bounds(run):
    change_config(run, hidden_size=2 * 10**9)


def config_nested_too_deep(run):
    (run / "config.json").write_text("[" * 100_000, encoding="utf-8")


def tokenizer_without_a_mask(run):
    without_digest(run)
    text = (run / "tokenizer.json").read_text(encoding="utf-8")
    (run / "tokenizer.json").write_text(text.replace("[MASK]", "[BLANK]"), encoding="utf-8")


def tokenizer_missing(run):
    (run / "tokenizer.json").unlink()


def tokenizer_damaged(run):
    (run / "tokenizer.json").write_text("{}", encoding="utf-8")


def tokenizer_of_another_vocabulary(run):
    without_digest(run)
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["more"])
    tokenizer.save(str(run / "tokenizer.json"))


def tokenizer_of_another_run_with_as_many_words(run):
    text = (run / "tokenizer.json").read_text(encoding="utf-8")
    (run / "tokenizer.json").write_text(text.replace("cat", "cow"), encoding="utf-8")


def tokenizer_digest_of_another_kind(run):
    change_config(run, tokenizer_sha256=5)


def tokenizer_that_makes_the_library_panic(run):
    change_tokenizer(run, normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})


def tokenizer_that_cannot_encode(run):
    change_tokenizer(run, model={"type": "Unigram", "unk_id": None, "vocab": [["the", 0.0]]})


def tokenizer_with_a_token_beyond_the_vocabulary(run):
    model = json.loads(word_tokenizer().to_str())["model"]
    model["vocab"]["tired"] = 4000
    change_tokenizer(run, model=model)


def tokenizer_with_other_numbers_of_special_tokens(run):
    text = (run / "tokenizer.json").read_text(encoding="utf-8")
    without_digest(run)
    swapped = text.replace("[SEP]", "[X]").replace("[CLS]", "[SEP]").replace("[X]", "[CLS]")
    (run / "tokenizer.json").write_text(swapped, encoding="utf-8")


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
        (a_flipped_bit, "model.pt is damaged"),
        (weights_not_finite, "model.pt is damaged .*bias has numbers that are not finite"),
        (weights_not_a_number, "model.pt is damaged .*bias has numbers that are not finite"),
        (weights_complex, "model.pt is damaged .*complex64"),
        (weights_of_another_dtype, "model.pt is damaged .*float64"),
        (weights_without_numbers, "model.pt is damaged .*not an ordinary tensor"),
        (weights_sparse, "model.pt is damaged .*not an ordinary tensor"),
        (weights_without_end, "another model"),
        (a_weight_that_is_a_list, "model.pt"),
        (config_not_json, "config.json is damaged"),
        (config_not_text, "config.json is damaged"),
        (config_not_a_dictionary, "config.json is damaged"),
        (config_of_another_program, "config.json"),
        (config_of_another_vocabulary, "another model"),
        (config_with_a_name_of_two_lines, "config.json is damaged"),
        (config_of_an_unknown_variant, "nonsense"),
        (config_with_infinity, "config.json is damaged"),
        (config_with_nan, "config.json is damaged"),
        (config_with_a_number_beyond_all_floats, "dropout must be in"),
        (config_with_a_number_of_5000_digits, "config.json is damaged"),
        (config_with_a_dropout_that_is_true, "dropout must be in"),
        (config_of_100_000_layers, f"layers must be a whole number, 1 to {MOST_LAYERS}, not"),
        (config_of_a_number_that_no_machine_has, "ffn_size must be a whole number"),
        (config_of_a_larger_number_than_a_size_may_be, "hidden_size must be a whole number"),
        (config_of_a_kernel_beyond_the_sequence, "kernel_size 49 is too large: with 47, a kernel"),
        (config_of_a_giant, "another model"),
        (config_of_a_model_beyond_all_bounds, "config.json describes a model that is too large"),
        (config_nested_too_deep, "config.json is damaged"),
        (tokenizer_without_a_mask, r"no \[MASK\]"),
        (tokenizer_missing, "no tokenizer.json"),
        (tokenizer_damaged, "tokenizer.json is damaged"),
        (tokenizer_of_another_vocabulary, "13 vocabulary items"),
        (tokenizer_of_another_run_with_as_many_words, "is not the tokenizer of this run"),
        (tokenizer_digest_of_another_kind, "is not the tokenizer of this run"),
        (tokenizer_that_makes_the_library_panic, "tokenizer.json is damaged"),
        (tokenizer_that_cannot_encode, "tokenizer.json is damaged"),
        (tokenizer_with_a_token_beyond_the_vocabulary, "tokenizer.json is damaged"),
        (tokenizer_with_other_numbers_of_special_tokens, r"\[CLS\] is token 3"),
    ],
)
def test_a_broken_run_is_refused_in_one_line_that_names_it(run, damage, words):
    damage(run)
    with pytest.raises(ValueError, match=words) as error:
        load_run(run)
    message = str(error.value)
    assert run.name in message and "\n" not in message


def test_a_tokenizer_that_makes_the_library_panic_prints_no_report_of_the_library(run, capfd):
    tokenizer_that_makes_the_library_panic(run)
    with pytest.raises(ValueError, match="tokenizer.json is damaged"):
        load_run(run)
    assert capfd.readouterr().err == ""


def test_a_damaged_tokenizer_of_this_project_does_not_reach_the_library(run, monkeypatch):
    (run / "tokenizer.json").write_text("anything", encoding="utf-8")
    monkeypatch.setattr("support.runs.Tokenizer", None)
    with pytest.raises(ValueError, match="is not the tokenizer of this run"):
        load_run(run)


@pytest.mark.parametrize(
    "line", ["", "[]", "{}", '{"settings": ["ab"]}', '{"settings": {"lr": NaN}}']
)
def test_a_log_whose_first_line_holds_no_settings_is_named(tmp_path, line):
    (tmp_path / "log.jsonl").write_text(line, encoding="utf-8")
    with pytest.raises(ValueError, match="log.jsonl is damaged"):
        pretraining_settings(tmp_path)


def test_a_run_that_is_given_by_several_paths_is_used_once(tmp_path):
    run = tmp_path / "run"
    other = tmp_path / "other"
    run.mkdir()
    other.mkdir()
    again = tmp_path / "other" / ".." / "run"
    assert each_run_once([run, other, again, run]) == [run, other]


def test_wildcards_that_the_shell_left_stand_for_the_runs_that_they_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/a-seed1", "runs/a-seed0", "runs/b", "runs/[x]"):
        Path(name).mkdir(parents=True)
    seeds = [Path("runs/a-seed0"), Path("runs/a-seed1")]
    assert each_run_once([Path("runs/b"), Path("runs/*-seed?")]) == [Path("runs/b"), *seeds]

    # a folder of this name, and a pattern that fits nothing
    assert each_run_once([Path("runs/[x]"), Path("c*")]) == [Path("runs/[x]"), Path("c*")]


def test_a_link_to_itself_among_the_runs_is_left_to_the_check_of_runs(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    assert each_run_once([loop]) == [loop]
    with pytest.raises(ValueError, match="loop is not a run"):
        runs.read_config(loop)


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


def test_a_run_without_a_log_is_not_named(run, capsys):
    say_if_unfinished(run)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "line",
    [b'{"step": 3', b"[3]", b'{"step": "3"}', b'{"step": 3, "x": "' + 20_000 * b"x" + b'\xff"}'],
    ids=["cut", "list", "text", "not UTF-8, after the part that is read for the first line"],
)
def test_a_damaged_last_line_of_a_log_is_one_line(run, line):
    first = json.dumps({"settings": {"steps": 5}}).encode("utf-8")
    (run / "log.jsonl").write_bytes(first + b"\n" + line + b"\n")
    with pytest.raises(ValueError, match="log.jsonl is damaged: its last line is not complete"):
        say_if_unfinished(run)
