"""Steps that are recorded and replayed equal steps that are called, to the bit, without a GPU.

pretended_graphs.py explains how. tests/test_cuda.py does the same on a GPU.
"""

import gc
from typing import NamedTuple

import pytest
import torch
import torch._dynamo  # training would load it later

import pretrain
from attention import VARIANTS
from model_helpers import small_config
from pretended_graphs import pretended_graphs
from recorded_programs import SETTINGS, Reading, pre_training_step, train, trainer_of

STEPS = 6  # three of each shape: one that is recorded, and two that are replayed


@pytest.fixture(scope="module", autouse=True)
def quick_garbage_collection():
    """A recording begins with gc.collect(): it need not look at what was there before this file.

    That is a million objects, many of them of torch's compiler, which training loads.
    """
    gc.collect()
    gc.freeze()


class Trained(NamedTuple):
    """What STEPS steps leave. The losses and the norms of the gradients are those of each step."""

    losses: list
    norms: list
    weights: list
    trainer: pretrain.Trainer


def what_is_left_of(trainer):
    weights = [x.detach() for x in trainer.model.parameters()]
    return Trained(trainer.losses, trainer.norms, weights, trainer)


def trained(program, config, records, micro_batch=None):
    """Train for STEPS steps, which are recorded or called."""
    trainer = trainer_of(program, config)
    trainer.recorded.is_on = records
    trainer.recorded.model.micro_batch = micro_batch
    train(trainer, program, STEPS)
    return what_is_left_of(trainer)


def assert_same_to_the_bit(found, expected, names=("losses", "norms", "weights")):
    for name in names:
        for one, other in zip(getattr(found, name), getattr(expected, name), strict=True):
            assert torch.equal(one, other), name


def assert_recorded_equals_called(program, config, **how):
    with pretended_graphs():
        called = trained(program, config, records=False, **how)
        recorded = trained(program, config, records=True, **how)
    assert recorded.trainer.recorded.is_on
    assert len(recorded.trainer.recorded.recordings) == 2  # the shapes
    assert_same_to_the_bit(recorded, called)


EVERY_VARIANT = [(name, causal) for name in VARIANTS for causal in (False, True)]


@pytest.mark.parametrize("variant, causal", EVERY_VARIANT)
def test_recorded_steps_of_pre_training_equal_called_ones(variant, causal):
    """Losses, norms and weights, with dropout, a rate that changes, and batches that change.

    It also shows that the step of no variant reads a number.
    """
    config = small_config(variant, dropout=0.1, causal=causal)
    assert_recorded_equals_called("pretrain.py", config)


def test_recorded_steps_in_parts_equal_called_ones():
    """--micro_batch: 3 does not divide the 4 sequences."""
    assert_recorded_equals_called("pretrain.py", small_config(dropout=0.1), micro_batch=3)


@pytest.mark.parametrize("program", ["glue.py", "seq2seq.py"])
@pytest.mark.parametrize("variant", ["composite-key", "convbert", "dynamicconv-hybrid"])
def test_recorded_steps_of_fine_tuning_and_translation_equal_called_ones(variant, program):
    assert_recorded_equals_called(program, small_config(variant, dropout=0.1))


def test_a_run_that_is_stopped_and_recorded_again_goes_on_as_one_that_was_not(tmp_path):
    """The checkpoint says nothing of how AdamW works on its device: any other one continues it."""
    config = small_config(dropout=0.1)
    with pretended_graphs():
        expected = trained("pretrain.py", config, records=True)
        stopped = trainer_of("pretrain.py", config)
        stopped.recorded.is_on = True
        train(stopped, "pretrain.py", 3)
        path = tmp_path / "state.pt"
        stopped.save(path)
        for state in torch.load(path)["optimizer"].values():
            assert state.keys() == {"step", "exp_avg", "exp_avg_sq"}

        resumed = trainer_of("pretrain.py", config)
        resumed.recorded.is_on = True
        resumed.resume(path)
        train(resumed, "pretrain.py", STEPS)
    assert_same_to_the_bit(what_is_left_of(resumed), expected, ["weights"])


class ReadsInBackward(torch.autograd.Function):
    """x, whose gradient is looked at."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad if grad.sum() > 0 else 1.0 * grad


class ReadingInBackward(torch.nn.GELU):
    def forward(self, x):
        return super().forward(ReadsInBackward.apply(x))


@pytest.mark.parametrize("kind", [Reading, ReadingInBackward])
def test_a_layer_that_reads_a_number_is_trained_without_recording_and_a_line_says_so(
    monkeypatch, capsys, kind
):
    """It is noticed before the recording: the trials do not change what is trained."""
    config = small_config(dropout=0.1)
    with pretended_graphs(), monkeypatch.context() as changes:
        changes.setattr("model.nn.GELU", kind)
        expected = trained("pretrain.py", config, records=False)
        found = trained("pretrain.py", config, records=True)
    assert not found.trainer.recorded.is_on
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("steps are not recorded") and "reads a number" in line
    assert_same_to_the_bit(found, expected)


def test_a_mistake_in_a_mixer_keeps_its_traceback(monkeypatch):
    trainer = trainer_of("pretrain.py", small_config())
    trainer.recorded.is_on = True
    monkeypatch.setattr("attention.banded_softmax", lambda *given: given[0] @ given[0][..., :1])
    with pretended_graphs(), pytest.raises(RuntimeError, match="Expected size"):
        pre_training_step(trainer)


def test_the_recordings_are_freed_at_the_end_of_a_run():
    trainer = trainer_of("pretrain.py", small_config())
    trainer.recorded.is_on = True
    with pretended_graphs():
        trainer.run(lambda: pre_training_step(trainer), save=lambda: None)
    assert trainer.step == SETTINGS["steps"] and not trainer.recorded.recordings
