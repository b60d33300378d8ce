"""What only a GPU can show; without CUDA all of it is skipped: `python -m pytest -m cuda`.

On a CPU, tests/science shows the same with an emulation: test_recorded.py and
test_compiled.py. A GPU adds up in another order each time, so equal means: equal up to rounding.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.utils import counters

import glue
import kernels
import pretrain
import recorded_programs
from attention import VARIANTS
from model_helpers import assert_dropout_follows_from_the_seed, small_config
from recorded_programs import CPU, PROGRAMS, Reading, Sentences, train, trainer_of
from support.compiling import can_compile, compile_run
from support.devices import autocast

pytestmark = pytest.mark.cuda
if not torch.cuda.is_available():
    pytest.skip("no CUDA", allow_module_level=True)

DEVICE = torch.device("cuda")
STEPS = 50
SETTINGS = {"steps": STEPS, "lr": 1e-3}
EVERY_VARIANT = [(name, False) for name in VARIANTS]
EVERY_VARIANT += [("composite-key", True), ("dynamicconv-hybrid", True)]


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    """As choose_device does: convolutions in float32, not in TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def trained(program, config, steps=STEPS, records=True, compiles=False, dtype=torch.float32):
    """(losses, Trainer) after so many steps."""
    trainer = trainer_of(program, config, DEVICE, dtype, **SETTINGS)
    trainer.recorded.is_on = records
    if compiles:
        assert can_compile(DEVICE)
        kernels.compile_model(trainer.model)
    train(trainer, program, steps)
    return torch.stack(trainer.losses).cpu(), trainer


def assert_recorded(trainer):
    assert trainer.recorded.is_on and len(trainer.recorded.recordings) == 2  # the shapes


def assert_near(losses, expected, tolerance=2e-4):
    """The first 20 losses; later ones may differ by a hundred times as much.

    Small differences grow from step to step. With another dropout, or without clipping, the first
    losses would already differ by more.
    """
    assert expected.isfinite().all()
    difference = (losses - expected).abs()
    assert difference[:20].max() <= tolerance
    assert difference.max() <= 100 * tolerance


# --- Steps that are recorded ----------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("variant", ["composite-key", "convbert", "dynamicconv-hybrid"])
def test_recorded_steps_equal_called_ones(variant, program):
    config = small_config(variant, dropout=0.1)
    expected, _ = trained(program, config, records=False)
    losses, trainer = trained(program, config)
    assert_recorded(trainer)
    assert_near(losses, expected)


@pytest.mark.parametrize("variant, causal", EVERY_VARIANT)
def test_the_steps_of_every_variant_are_recorded(variant, causal):
    config = small_config(variant, dropout=0.1, causal=causal)
    expected, _ = trained("pretrain.py", config, steps=4, records=False)
    losses, trainer = trained("pretrain.py", config, steps=4)
    assert_recorded(trainer)
    assert_near(losses, expected)


def test_recorded_steps_equal_called_ones_in_bf16():
    config = small_config(dropout=0.1)
    expected, _ = trained("pretrain.py", config, records=False, dtype=torch.bfloat16)
    losses, trainer = trained("pretrain.py", config, dtype=torch.bfloat16)
    assert_recorded(trainer)
    assert_near(losses, expected, 5e-3)


def test_dropout_differs_from_step_to_step_and_follows_from_the_seed():
    """With a learning rate of 0 and one batch, nothing but dropout changes the loss."""

    def losses(seed, records=True):
        config = small_config(dropout=0.5)
        trainer = trainer_of("glue.py", config, DEVICE, lr=0.0, seed=seed)
        trainer.recorded.is_on = records
        ids = Sentences().batch(0, 0, 4).to(DEVICE)
        for _ in range(6):
            trainer.set_learning_rate(0.0)
            trainer.advance(glue.update, ids, ids[:, 1] % 3)
        return torch.stack(trainer.losses).cpu()

    expected = losses(seed=3, records=False)
    assert expected.diff().abs().min() > 1e-6
    assert (losses(seed=3) - expected).abs().max() < 1e-5
    assert (losses(seed=3) - expected).abs().max() < 1e-5  # and again
    assert (losses(seed=4) - expected).abs().max() > 1e-4


def stop_and_continue(program, config, path, devices):
    """The losses of 12 steps, with a stop after 6 of them, and another device after the stop."""
    losses = []
    for device, steps in zip(devices, (6, 12), strict=True):
        trainer = trainer_of(program, config, device, **SETTINGS)
        trainer.resume(path)
        train(trainer, program, steps)
        trainer.save(path)
        losses += [loss.cpu() for loss in trainer.losses]
    return torch.stack(losses)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_run_that_is_stopped_goes_on_as_one_that_was_not(program, tmp_path):
    config = small_config(dropout=0.1)
    expected, _ = trained(program, config, steps=12)
    losses = stop_and_continue(program, config, tmp_path / "state.pt", (DEVICE, DEVICE))
    assert_near(losses, expected)


def test_a_trainer_that_resumes_after_a_recording_records_again(tmp_path):
    """The state of AdamW is then in new tensors, of which the first recordings know nothing."""
    config = small_config(dropout=0.1)
    expected, _ = trained("pretrain.py", config, steps=12)
    trainer = trainer_of("pretrain.py", config, DEVICE, **SETTINGS)
    train(trainer, "pretrain.py", 3)
    trainer.save(tmp_path / "state.pt")
    train(trainer, "pretrain.py", 6)
    assert_recorded(trainer)
    trainer.resume(tmp_path / "state.pt")
    train(trainer, "pretrain.py", 12)
    assert_recorded(trainer)
    losses = torch.stack(trainer.losses[:3] + trainer.losses[6:]).cpu()
    assert_near(losses, expected)


@pytest.mark.parametrize("devices", [(DEVICE, CPU), (CPU, DEVICE)])
def test_a_checkpoint_is_continued_on_another_device(devices, tmp_path):
    """Without dropout and masks, which each kind of device draws by itself."""
    config = small_config(dropout=0.0)
    expected = stop_and_continue("glue.py", config, tmp_path / "expected.pt", (CPU, CPU))
    losses = stop_and_continue("glue.py", config, tmp_path / "state.pt", devices)
    assert_near(losses, expected)


def test_a_mixer_that_reads_a_number_is_trained_without_recording(monkeypatch, capsys):
    """One line names the file and the line of it."""
    monkeypatch.setattr("model.nn.GELU", Reading)
    config = small_config(dropout=0.1)
    expected, _ = trained("pretrain.py", config, steps=12, records=False)
    losses, trainer = trained("pretrain.py", config, steps=12)
    assert not trainer.recorded.is_on
    assert_near(losses, expected)

    [line] = capsys.readouterr().out.splitlines()
    number = Reading.forward.__code__.co_firstlineno + 1
    place = f"{Path(recorded_programs.__file__).name}, line {number}, reads a number: return"
    assert line.startswith("steps are not recorded") and place in line


# --- Steps that are compiled ----------------------------------------------------------------------


def test_compiled_steps_equal_called_ones_recorded_or_not():
    """And the evaluation of a compiled model, whose shape is another one, compiles nothing."""
    config = small_config("composite", dropout=0.0)
    expected, eager = trained("pretrain.py", config, steps=20, records=False)
    called, _ = trained("pretrain.py", config, steps=20, records=False, compiles=True)
    recorded, trainer = trained("pretrain.py", config, steps=20, compiles=True)
    assert_recorded(trainer)
    assert_near(called, expected)
    assert_near(recorded, expected)

    compiled = counters["stats"]["unique_graphs"]
    assert compiled > 0
    found = pretrain.evaluate(trainer.model, Sentences(), 3, DEVICE, torch.float32)
    assert counters["stats"]["unique_graphs"] == compiled
    expected = pretrain.evaluate(eager.model, Sentences(), 3, DEVICE, torch.float32)
    assert found[0] == pytest.approx(expected[0], abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_steps_with_dropout_equal_called_ones_when_they_are_recorded(dtype):
    """The compiler draws its own masks, so compiled steps are compared with compiled ones."""
    config = small_config("composite", dropout=0.1)
    called, _ = trained("pretrain.py", config, 20, records=False, compiles=True, dtype=dtype)
    recorded, trainer = trained("pretrain.py", config, 20, compiles=True, dtype=dtype)
    assert_recorded(trainer)
    assert_near(recorded, called, 2e-4 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_of_compiled_layers_is_independent_and_follows_from_the_seed(dtype):
    with autocast(DEVICE, dtype):
        assert_dropout_follows_from_the_seed(lambda module: module.compile(dynamic=False), DEVICE)


def test_a_run_finds_on_the_disk_what_processes_have_compiled(monkeypatch, tmp_path):
    """All of it; the losses are equal."""
    config = small_config("composite", dropout=0.1)
    expected, _ = trained("pretrain.py", config, steps=4, compiles=True)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    trainer = trainer_of("pretrain.py", config, DEVICE, **SETTINGS)
    assert can_compile(DEVICE)
    kernels.compile_model(trainer.model)
    trainer.environment["compiled"] = True
    batches = SimpleNamespace(epoch=lambda *given: [(range(4), 12), (range(2), 20)])  # Sentences
    compile_run(trainer, pretrain.make_trainer, pretrain.update, batches)
    counters.clear()
    train(trainer, "pretrain.py", 4)
    assert_recorded(trainer)
    assert counters["inductor"]["fxgraph_cache_miss"] == 0
    assert counters["inductor"]["fxgraph_cache_hit"] > 0
    assert_near(torch.stack(trainer.losses).cpu(), expected)
