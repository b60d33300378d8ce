"""Steps that are recorded and replayed equal steps that are called, to the bit, without a GPU.

pretended_graphs.py explains how. tests/test_cuda.py does the same on a GPU.
"""

import gc
import itertools
import weakref
from typing import NamedTuple
from unittest.mock import patch

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


def test_a_trial_also_undoes_the_state_that_an_optimizer_makes_in_its_first_step():
    """As one does that a user has put in place of AdamW: make_optimizer does not know its state."""
    with pretended_graphs():
        found = []
        for records in (True, False):
            trainer = trainer_of("pretrain.py", small_config(dropout=0.1))
            trainer.recorded.is_on = records
            trainer.optimizer.state.clear()
            train(trainer, "pretrain.py", STEPS)
            found.append(what_is_left_of(trainer))
    assert_same_to_the_bit(*found)


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


def test_a_trainer_that_resumes_after_a_recording_records_again(tmp_path):
    """The state of AdamW is then in new tensors, of which the first recordings know nothing."""
    config = small_config(dropout=0.1)
    with pretended_graphs():
        expected = trained("pretrain.py", config, records=True)
        trainer = trainer_of("pretrain.py", config)
        trainer.recorded.is_on = True
        train(trainer, "pretrain.py", 3)
        trainer.save(tmp_path / "state.pt")
        train(trainer, "pretrain.py", 5)
        trainer.resume(tmp_path / "state.pt")
        train(trainer, "pretrain.py", STEPS)
    assert_same_to_the_bit(what_is_left_of(trainer), expected, ["weights"])


def test_a_first_gradient_that_overflows_leaves_no_trace_in_the_state_of_the_optimizer():
    """inf in the trial must not become 0 * inf. The overflow is in the first steps alone."""
    steps = itertools.count()

    def update(model, optimizer, ids):
        factor = 1e38 if next(steps) < 2 else 1.0  # the two steps of the trial
        loss = factor * factor * sum(x.sum() for x in model.parameters())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), loss.detach()

    with pretended_graphs():
        trainer = trainer_of("pretrain.py", small_config())
        trainer.recorded.is_on = True
        before = [x.detach().clone() for x in trainer.model.parameters()]
        trainer.set_learning_rate(0.5)
        trainer.advance(update, torch.ones(2, 3, dtype=torch.int64))
    assert trainer.recorded.recordings
    for x, old in zip(trainer.model.parameters(), before, strict=True):
        moved = (x - old).abs()
        assert moved.isfinite().all() and moved.max() < 0.6  # a step of AdamW, of the rate 0.5
    for state in trainer.optimizer.state.values():
        assert all(x.isfinite().all() for x in state.values())
        assert state["step"] == 1


def test_all_shapes_are_tried_on_one_stream():
    with pretended_graphs(), patch("torch.cuda.Stream") as streams:
        trainer = trained("pretrain.py", small_config(), records=True).trainer
    assert len(trainer.recorded.recordings) == 2 and streams.call_count == 1


@pytest.mark.parametrize("kind, recorded", [(torch.nn.GELU, True), (Reading, False)])
def test_made_by_says_recorded_only_of_steps_that_were(monkeypatch, kind, recorded):
    with pretended_graphs(), monkeypatch.context() as changes:
        changes.setattr("model.nn.GELU", kind)
        trainer = trainer_of("pretrain.py", small_config())
        trainer.recorded.is_on = True
        train(trainer, "pretrain.py", 1)
        trainer.log()
    assert trainer.records[0]["made_by"]["recorded"] is recorded


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


def test_a_trainer_that_nobody_uses_is_freed_before_a_recording_and_not_in_the_middle():
    """Freeing its graphs during a recording would be an error: CUDA would stop recording."""
    gc.disable()  # otherwise Python may find it at any time
    try:
        with pretended_graphs():
            first = trained("pretrain.py", small_config(), records=True).trainer
            graphs = [weakref.ref(graph) for graph, _, _ in first.recorded.recordings.values()]
            del first
            trained("pretrain.py", small_config(), records=True)
        left = [graph() for graph in graphs]
    finally:
        gc.enable()
    assert left == [None, None]
