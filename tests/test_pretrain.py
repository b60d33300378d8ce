"""pretrain.py: schedule, optimizer, resuming to the bit, failures that lose nothing, and the command line's answers."""

import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import pretrain
from attention import VARIANTS
from data import prepare_corpus
from model import BertForMaskedLM, load_file, load_run

ROOT = Path(__file__).parent.parent
FAST = ["--steps", "20", "--batch_size", "8", "--seq_len", "32", "--device", "cpu"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A corpus file of 80 short documents, and a folder for its token ids."""
    folder = tmp_path_factory.mktemp("text")
    pick = random.Random(0).choice
    names, acts = ["ann", "ben", "cleo", "dan", "eve"], ["sees", "hears", "finds", "asks", "thanks"]
    lines = []
    for _ in range(80):
        lines += [f"{pick(names).title()} {pick(acts)} {pick(names)}. {pick(names).title()} {pick(acts)} {pick(names)} too."
                  for _ in range(6)] + [""]
    (folder / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def main(text, capsys):
    """Runs the command line in this process: main(*arguments) -> (exit code, standard output, standard error)."""

    def complete(arguments):
        given = [str(text / "corpus.txt") if a == "TEXT" else str(a) for a in arguments]
        return ["--corpus", str(text / "corpus.txt"), "--cache_dir", str(text / "cache"), *FAST, *given]

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            pretrain.main(complete(arguments))
        return stop.value.code, *capsys.readouterr()

    call.arguments = complete
    return call


def one_line(error):
    return error.strip().count("\n") == 0 and error.startswith("pretrain.py: ")


# --- parts ---


def test_learning_rate_rises_over_the_warm_up_and_falls_to_zero_linearly():
    rates = [pretrain.learning_rate(step, 100, 10, 2.0) for step in range(101)]
    assert rates[9] == 2.0 and rates[100] == 0.0
    assert np.allclose(np.diff(rates[:10]), 0.2) and np.allclose(np.diff(rates[10:]), -2.0 / 90)


def test_biases_and_layer_norms_alone_escape_weight_decay():
    config = pretrain.BertConfig.from_size("tiny", "composite-conv-qkv", 100)
    model = BertForMaskedLM(config)
    decayed, kept = pretrain.make_optimizer(model, 0.01).param_groups
    norms = {id(p) for m in model.modules() if isinstance(m, torch.nn.LayerNorm) for p in m.parameters()}
    biases = {id(p) for name, p in model.named_parameters() if name.split(".")[-1] == "bias"}
    assert {id(p) for p in kept["params"]} == norms | biases and kept["weight_decay"] == 0
    assert {id(p) for p in decayed["params"]} == {id(p) for p in model.parameters()} - norms - biases
    assert decayed["weight_decay"] == 0.01 and decayed["eps"] == 1e-6 and decayed["betas"] == (0.9, 0.999)


def test_seeds_of_steps_and_streams_are_all_different():
    seeds = {pretrain.step_seed(s, t, x) for s in range(10) for t in range(100) for x in ("masks", "dropout", "weights")}
    assert len(seeds) == 3000


def test_small_and_base_carry_the_paper_s_settings():
    small, base = pretrain.RECIPES["small"], pretrain.RECIPES["base"]
    assert small == dict(steps=125_000, batch_size=128, seq_len=128, lr=3e-4, warmup_steps=10_000, dropout=0.1)
    assert base == dict(steps=1_000_000, batch_size=256, seq_len=128, lr=1e-4, warmup_steps=10_000, dropout=0.1)


def test_precision_is_float32_where_bf16_is_not_fast_and_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    for capability, dtype in ((7, 5), torch.float32), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        device, chosen, reason = pretrain.choose_device()
        assert device.type == "cuda" and chosen == dtype and "a GPU" in reason
    for capability, dtype in ("avx2", torch.float32), ("avx512_bf16", torch.bfloat16), ("amx_bf16", torch.bfloat16):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {capability: True}, raising=False)
        assert pretrain.choose_device("cpu")[1] == dtype
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pretrain.choose_device("mps")[1] == torch.float32


@pytest.mark.parametrize("device", ["tpu9", "xla", "meta", "cpu:3", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(ValueError, match=device):
        pretrain.choose_device(device)


def test_evaluation_does_not_depend_on_the_batch_size(text):
    corpus = prepare_corpus([str(text / "corpus.txt")], text / "cache", 32)
    torch.manual_seed(0)
    model = BertForMaskedLM(pretrain.BertConfig.from_size("tiny", "composite", corpus.vocab_size)).double()
    small, large = (pretrain.evaluate(model, corpus, size, torch.device("cpu"), torch.float32) for size in (2, 64))
    assert small[0] == pytest.approx(large[0], abs=1e-6) and small[1] == large[1]
    assert abs(small[0] - math.log(corpus.vocab_size)) < 0.5  # untrained: close to ln(vocabulary)


def test_mean_and_standard_error():
    assert pretrain.mean_and_error([1.0, 2.0, 6.0]) == "3.000 +- 1.528"  # sqrt(7 / 3)
    assert pretrain.mean_and_error([1.5]) == "1.500"


# --- whole runs ---


def test_a_run_learns_more_than_word_frequencies_and_leaves_a_model_that_loads(main, text, tmp_path):
    code, out, _ = main("--variant", "composite", "--steps", "150", "--out_dir", tmp_path / "run")
    assert code == 0
    records = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [record["held_out_loss"] for record in records if "held_out_loss" in record]
    tokens = prepare_corpus([str(text / "corpus.txt")], text / "cache", 32).tokens
    share = np.bincount(tokens)[np.unique(tokens)] / len(tokens)
    entropy = -(share * np.log(share)).sum()  # what a model that sees no context would reach
    assert len(losses) == 10 and losses[-1] < entropy - 0.3
    assert records[0]["settings"]["variant"] == "composite" and {"loss", "lr", "tokens_per_second"} <= set(records[1])
    model, tokenizer = load_run(tmp_path / "run")
    assert tokenizer.get_vocab_size() == model.config.vocab_size and f"ln({model.config.vocab_size:,})" in out
    first = out.index("device cpu")
    assert first == 0 and VARIANTS["composite"].equation in out


def test_runs_without_a_folder_of_their_own_do_not_meet():
    def folders(*arguments):
        return [path.as_posix() for path in pretrain.run_folders(pretrain.parse_arguments(arguments)).values()]

    assert folders() == ["runs/composite"]
    assert folders("--variant", "none", "fixed") == ["runs/none", "runs/fixed"]
    assert folders("--seed", "3") == ["runs/composite-seed3"]
    assert folders("--size", "small", "--corpus", "books/a.txt") == ["runs/small-a-composite"]
    assert folders("--variant", "fixed", "--seed", "1", "2", "--out_dir", "x") == ["x/fixed-seed1", "x/fixed-seed2"]
    assert folders("--out_dir", "x") == ["x"]


@pytest.mark.parametrize("error", [
    MemoryError(), torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
])
def test_a_memory_that_is_too_small_is_told_in_one_line(main, tmp_path, monkeypatch, error):
    def loss(*arguments, capacity):
        raise error

    monkeypatch.setattr(BertForMaskedLM, "loss", loss)
    code, _, message = main("--out_dir", tmp_path)
    assert code == 1 and one_line(message) and "--batch_size" in message


def test_a_finished_run_says_so_and_is_not_touched(main, tmp_path):
    main("--out_dir", tmp_path)
    before = (tmp_path / "model.pt").read_bytes()
    code, out, _ = main("--out_dir", tmp_path)
    assert code == 0 and "finished before" in out and (tmp_path / "model.pt").read_bytes() == before


def test_several_variants_and_seeds_end_in_one_table(main, tmp_path):
    code, out, _ = main("--variant", "none", "composite", "--seed", "1", "2", "--steps", "5", "--out_dir", tmp_path)
    table = out[out.index("\nvariant"):].strip().splitlines()
    assert code == 0 and [row.split()[0] for row in table] == ["variant", "none", "composite"]
    assert all("+-" in row and row.split()[-1] == "2" for row in table[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "composite-seed1", "composite-seed2", "none-seed1", "none-seed2"]


def test_a_dry_run_tells_the_cost_and_writes_no_run(main, tmp_path):
    code, out, _ = main("--dry_run", "--out_dir", tmp_path / "run")
    assert code == 0 and "would take" in out and not (tmp_path / "run").exists()


def test_the_benchmark_has_a_row_for_absolute_and_each_variant_and_writes_no_run(main, tmp_path):
    """Of absolute itself the ratios are 1; every row has times, real tokens per second and memory."""
    code, out, _ = main("--benchmark", "--variant", "composite", "--out_dir", tmp_path / "run")
    rows = {line.split()[0]: line for line in out.splitlines() if "tok/s" in line}
    assert code == 0 and list(rows) == ["absolute", "composite"] and not (tmp_path / "run").exists()
    assert re.search(r" ms +1\.00 .* tok/s +1\.00 ", rows["absolute"])
    for row in rows.values():
        assert re.search(r"\d ms +\d+\.\d\d +[\d,]+ tok/s +\d+\.\d\d +\d+\.\d s +([\d,]+|nan) MiB$", row)


INTERRUPTED = ["--steps", "120", "--save_every", "5", "--eval_every", "60", "--out_dir"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM or SIGKILL to send")
def test_a_run_stopped_by_sigkill_sigint_and_sigterm_equals_one_that_was_not_to_the_bit(text, main, tmp_path):
    assert main(*INTERRUPTED, tmp_path / "whole")[0] == 0
    seen, moments = tmp_path / "broken/train_state.pt", []  # the moments are shown if the test fails
    command = [sys.executable, "pretrain.py", "--corpus", text / "corpus.txt", "--cache_dir", text / "cache", *FAST,
               *INTERRUPTED, tmp_path / "broken"]
    step = 0
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
        run = subprocess.Popen([str(a) for a in command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while run.poll() is None and (not seen.exists() or load_file(seen)["step"] == step):
            time.sleep(0.02)  # until it has trained on from where it was
        moments.append((number.name, random.uniform(0, 0.3)))
        time.sleep(moments[-1][1])
        run.send_signal(number)
        out, error = run.communicate(timeout=60)
        if number != signal.SIGKILL and run.returncode != 0:  # 0: it had finished first
            assert run.returncode == 128 + number and "saved" in out and not error, (out, error)
        step = load_file(seen)["step"]  # whole at any moment
        assert step > 0
    assert main(*INTERRUPTED, tmp_path / "broken")[0] == 0

    def outcome(folder):
        lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
        records = [{k: v for k, v in json.loads(line).items() if k != "tokens_per_second"} for line in lines]
        return records, load_file(folder / "model.pt")

    (records, weights), (whole_records, whole_weights) = outcome(tmp_path / "broken"), outcome(tmp_path / "whole")
    assert records == whole_records, moments
    assert all(torch.equal(weights[name], whole_weights[name]) for name in whole_weights), moments


def test_a_loss_that_is_no_number_stops_the_run_names_the_step_and_keeps_the_checkpoint(main, tmp_path, monkeypatch):
    true_loss = BertForMaskedLM.loss
    calls = []

    def loss(self, *arguments, **options):
        calls.append(1)
        return true_loss(self, *arguments) * (math.nan if len(calls) == 17 else 1.0)

    monkeypatch.setattr(BertForMaskedLM, "loss", loss)
    code, _, error = main("--out_dir", tmp_path, "--save_every", "5")
    assert code == 1 and one_line(error) and "step 17" in error
    state = load_file(tmp_path / "train_state.pt")
    assert state["step"] == 15 and all(tensor.isfinite().all() for tensor in state["model"].values())


def test_a_learning_rate_beyond_reason_ends_the_same_way(main, tmp_path):
    code, _, error = main("--out_dir", tmp_path, "--lr", "1e30", "--warmup_steps", "1", "--save_every", "1")
    assert code == 1 and one_line(error) and "step" in error
    state = load_file(tmp_path / "train_state.pt")
    assert all(tensor.isfinite().all() for tensor in state["model"].values())


def test_weights_that_are_no_numbers_are_never_saved_over_good_ones(main, tmp_path):
    """The first step's loss and gradient are fine; it is the step itself that throws the weights out of range."""
    for folder, steps in (("last", "1"), ("middle", "4")):
        options = ["--lr", "1e300", "--warmup_steps", "1", "--save_every", "1", "--steps", steps]
        code, _, error = main("--out_dir", tmp_path / folder, *options)
        assert code == 1 and one_line(error) and "step 1" in error and "checkpoint of step 0" in error
        assert all(tensor.isfinite().all() for tensor in load_file(tmp_path / folder / "train_state.pt")["model"].values())


class Killed(BaseException):
    """What a kill is to the program: nothing runs after it."""


@pytest.mark.parametrize("survivors", range(4))
def test_a_kill_during_the_first_or_the_last_save_leaves_a_folder_that_can_be_resumed(
        main, tmp_path, monkeypatch, survivors):
    """Only `survivors` of a checkpoint's files get written; then the same command starts again, and finishes."""
    true_replace = os.replace
    for saves_before in (0, 1):  # each whole checkpoint is five files
        folder, left = tmp_path / str(saves_before), [5 * saves_before + survivors]

        def replace(source, target):
            if Path(target).parent == folder:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
            true_replace(source, target)

        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(Killed):
            pretrain.main([str(a) for a in main.arguments(["--out_dir", folder, "--steps", "3"])])
        monkeypatch.undo()
        code, out, error = main("--out_dir", folder, "--steps", "3")
        assert code == 0, error
        assert load_file(folder / "train_state.pt")["result"] and load_run(folder)


def test_a_signal_at_any_moment_saves_what_was_trained(main, tmp_path, monkeypatch):
    """The signal comes while the step's outcome is being handled, after the loop has looked for one."""
    true_step, steps = pretrain.Run.train_step, []

    class Bar(pretrain.tqdm):
        def update(self, n=1):
            steps.append(1)

    def train_step(self):
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        true_step(self)

    monkeypatch.setattr(pretrain.Run, "train_step", train_step)
    monkeypatch.setattr(pretrain, "tqdm", Bar)
    code, out, _ = main("--out_dir", tmp_path)
    assert code == 128 + signal.SIGINT and "at step 4, saved" in out
    assert load_file(tmp_path / "train_state.pt")["step"] == 4


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(30, "Read-only file system")])
def test_a_disk_that_takes_no_more_ends_in_one_line_and_keeps_the_last_checkpoint(main, tmp_path, monkeypatch, error):
    saved, written = torch.save, Path.write_text

    def failing_save(value, file, *rest):
        if value.get("step") == 10:
            file.write(b"half")
            raise error
        return saved(value, file, *rest)

    def failing_write(path, text, **options):
        if '"step": 15' in text:
            written(path, text[:20], **options)
            raise error
        return written(path, text, **options)

    for broken, step in ("save", 5), ("write_text", 15):  # a log line fails after the state of its step is whole
        monkeypatch.setattr(*((torch, "save", failing_save) if broken == "save" else (Path, "write_text", failing_write)))
        code, _, message = main("--out_dir", tmp_path, "--save_every", "5")
        assert code == 2 and one_line(message) and error.strerror in message
        assert load_file(tmp_path / "train_state.pt")["step"] == step and not list(tmp_path.glob("*.part"))
        monkeypatch.undo()
    assert main("--out_dir", tmp_path, "--save_every", "5")[0] == 0  # and the run goes on from there


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_genuinely_full_file_is_an_os_error(tmp_path):
    (tmp_path / "model.pt.part").symlink_to("/dev/full")
    with pytest.raises(OSError):
        pretrain.save_file({"weights": torch.zeros(100_000)}, tmp_path / "model.pt")


def test_a_folder_that_cannot_be_made_ends_in_one_line(main, tmp_path):
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    code, _, error = main("--out_dir", tmp_path / "file" / "run")
    assert code == 2 and one_line(error) and "file" in error


# --- a folder that belongs to something else ---


def test_the_attention_layer_of_a_hybrid_is_a_setting_of_the_run(main, tmp_path):
    arguments = ["--variant", "lightconv-hybrid", "--steps", "3", "--out_dir", tmp_path]
    assert main(*arguments, "--attention_layer", "2")[0] == 0
    assert load_run(tmp_path)[0].config.attention_layer == 2
    code, _, error = main(*arguments, "--attention_layer", "3")
    assert code == 2 and "attention_layer 2 there, 3 here" in error


@pytest.mark.parametrize("other, words", [
    (["--variant", "fixed"], "variant composite there, fixed here"),
    (["--size", "small"], "size tiny there, small here"),
    (["--steps", "31"], "steps 3 there, 31 here"),
    (["--seed", "5"], "seed 0 there, 5 here"),
    (["--kernel_size", "9"], "kernel_size 17 there, 9 here"),
    (["--corpus", "TEXT", "TEXT"], "corpus"),
])
def test_a_folder_of_another_run_is_refused_with_what_differs(main, tmp_path, other, words):
    main("--out_dir", tmp_path, "--steps", "3")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    code, _, error = main("--out_dir", tmp_path, "--steps", "3", *other)
    assert code == 2 and one_line(error) and words in error
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_resume_never_refuses_a_folder_in_use(main, tmp_path):
    main("--out_dir", tmp_path, "--steps", "3")
    code, _, error = main("--out_dir", tmp_path, "--steps", "3", "--resume", "never")
    assert code == 2 and one_line(error) and "in use" in error


def test_a_folder_with_somebody_s_files_is_refused(main, tmp_path):
    (tmp_path / "thesis.tex").write_text("...", encoding="utf-8")
    code, _, error = main("--out_dir", tmp_path)
    assert code == 2 and one_line(error) and [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", None, "list", "other"])
def test_a_damaged_or_foreign_checkpoint_is_refused_and_left_alone(main, tmp_path, content):
    main("--out_dir", tmp_path, "--steps", "3")
    path = tmp_path / "train_state.pt"
    if content is None:
        path.write_bytes(path.read_bytes()[:200])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save([1, 2] if content == "list" else {"weights": torch.zeros(3)}, path)
    before = path.read_bytes()
    code, _, error = main("--out_dir", tmp_path, "--steps", "3")
    assert code == 2 and one_line(error) and "train_state.pt" in error and path.read_bytes() == before


# --- the command line ---


@pytest.mark.parametrize("arguments, words", [
    (["--variant", "nonsense"], ", ".join(VARIANTS)),
    (["--kernel_size", "8"], "odd"),
    (["--kernel_size", "-3"], "whole number"),
    (["--steps", "0"], "whole number"),
    (["--lr", "nan"], "--lr"),
    (["--lr", "-1"], "--lr"),
    (["--seq_len", "4"], "--seq_len"),
    (["--seed", "-1"], "--seed"),
    (["--size", "huge"], "tiny"),
    (["--device", "abacus"], "abacus"),
    (["--corpus", "no-such-corpus"], "no-such-corpus"),
    (["--dropout", "1.5"], "dropout"),
    (["--steps", "5", "--warmup_steps", "6"], "--warmup_steps"),
    (["--corpus", ""], "no corpus"),
    (["--attention_layer", "2"], "lightconv-hybrid"),
    (["--variant", "dilated-hybrid", "--attention_layer", "5"], "4 layers"),
    (["--lengths"], "--benchmark"),
    (["--benchmark", "--lengths", "--variant", "dilated-hybrid"], "no hybrid"),
])
def test_wrong_arguments_are_answered_and_nothing_is_written(main, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, _, error = main(*arguments)
    assert code == 2 and words in error.splitlines()[-1] and not list(tmp_path.iterdir())


def test_a_warm_up_of_more_steps_than_the_default_is_refused():
    with pytest.raises(ValueError, match="--warmup_steps 2,001 is more than all 2,000 steps"):
        pretrain.recipe_for(pretrain.parse_arguments(["--warmup_steps", "2001"]))


def test_compilation_that_fails_falls_back_with_one_line(main, tmp_path, monkeypatch):
    def no_compiler(self, *arguments, **options):
        self._compiled_call_impl = lambda *a, **k: (_ for _ in ()).throw(RuntimeError("no compiler"))

    monkeypatch.setattr(torch.nn.Module, "compile", no_compiler)
    code, out, _ = main("--out_dir", tmp_path, "--compile", "--steps", "3")
    assert code == 0 and out.count("running uncompiled") == 1
