"""The training step and the evaluation, and what they pass from one module to the next.

First several steps together, against a plain loop whose parts are in tests/references.py: batches,
masks, dropout, the padding mask, the loss, clipping, the learning rate and AdamW, each from
(seed, step). Then what such a loop does not show, and the parts of an update by themselves (the
device part of a step: test_cases.py); then the evaluation. Where the model does not matter it
is `Simple`, so that a failure here is a mistake in the step and not in the model.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import pretrain
import references
from attention import VARIANTS
from helpers import assert_near, generator, randomise
from model import BertConfig, BertForMaskedLM, masked_lm_loss
from support import training
from support.tokenizer import CLS, PAD, SEP

V = 12  # vocabulary
C = 8
CPU = torch.device("cpu")
SETTINGS = {"seed": 3, "steps": 9, "warmup_steps": 3, "lr": 0.05, "weight_decay": 0.2}
SETTINGS["batch_size"] = 8
RATES = [0.05 * share for share in (1 / 3, 2 / 3, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6)]


# --- A source of batches, and two models ----------------------------------------------------------


class Sentences:
    """32 sequences of 5 to 12 tokens each: [CLS] words [SEP] [PAD]."""

    vocab_size = V

    def __init__(self):
        numbers = np.random.default_rng(0)
        lengths = numbers.integers(5, 13, 32)
        self.table = np.full((32, 12), PAD)
        for sequence, length in zip(self.table, lengths, strict=True):
            sequence[0] = CLS
            sequence[1 : length - 1] = numbers.integers(5, V, length - 2)
            sequence[length - 1] = SEP

    def batch(self, seed, step, batch_size):
        """Some of the first 24 sequences."""
        chosen = np.random.default_rng([seed, step]).permutation(24)[:batch_size]
        return torch.from_numpy(self.table[chosen])

    def held_out_batches(self, batch_size, causal=False):
        """The last eight sequences; the batches have different numbers of tokens to predict."""
        input_ids = torch.from_numpy(self.table[24:])
        for start in range(0, 8, batch_size):
            some = input_ids[start : start + batch_size]
            chosen = some >= 5 + start // batch_size
            yield some.masked_fill(chosen, 4), some.masked_fill(~chosen, -100)


class OneBatch(Sentences):
    """The same batch in every step: what still differs between the steps does not come from it."""

    def batch(self, seed, step, batch_size):
        return torch.from_numpy(self.table[:16])


class SimpleEncoder(nn.Module):
    """LayerNorm(x_i + the mean of x over the real tokens), x = dropout(token)."""

    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(V, C)
        self.dropout = nn.Dropout(0.3)
        self.norm = nn.LayerNorm(C)

    def forward(self, input_ids, attention_mask=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids, dtype=torch.bool)
        x = self.dropout(self.token(input_ids))  # (B, N, C)
        real = attention_mask[:, :, None]  # (B, N, 1)
        mean = (x * real).sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True)  # (B, 1, C)
        return self.norm(x + mean)


class Simple(nn.Module):
    """What a training step and an evaluation need of a model, and nothing more."""

    config = SimpleNamespace(variant="none", causal=False)

    def __init__(self):
        super().__init__()
        self.bert = SimpleEncoder()
        self.output = nn.Linear(C, V)

    def forward(self, input_ids, attention_mask):
        return self.output(self.bert(input_ids, attention_mask))  # (B, N, V)

    def masked_logits(self, input_ids, attention_mask, labels):
        chosen = labels != -100
        return self(input_ids, attention_mask)[chosen], labels[chosen]  # (M, V), (M,)

    def loss(self, input_ids, attention_mask, labels, count, M=None):
        return masked_lm_loss(*self.masked_logits(input_ids, attention_mask, labels), count)


def composite(variant="composite", dropout=0.3):
    """BERT with two layers."""
    sizes = dict(layers=2, hidden_size=C, ffn_size=12, heads=2, embedding_size=6)
    return BertForMaskedLM(BertConfig(variant, V, **sizes, dropout=dropout))


def trainer_of(make_model=Simple, **settings):
    """A float64 Trainer; the weights are the same every time."""
    torch.manual_seed(1)
    model = make_model().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    settings = {**SETTINGS, **settings}
    return pretrain.make_trainer(model, settings, CPU, torch.float32)


def step_in_parts(trainer, source, micro_batch):
    """A training step with at most so many sequences at once."""
    trainer.recorded.model.micro_batch = micro_batch
    pretrain.train_step(trainer, source)


def masks_of(step, input_ids, seed):
    """The masks of a training step, by hand: (masked_ids, labels)."""
    numbers = generator(pretrain.step_seed(seed, step, "masks"))
    draw = torch.rand(input_ids.shape, generator=numbers)
    random_ids = torch.randint(5, V, input_ids.shape, generator=numbers)
    return references.mask_tokens(input_ids, draw, random_ids)


# --- Several steps against a plain loop -----------------------------------------------------------


def train_by_hand(model, source, settings, steps):
    """Train a model without any part of pretrain.py. Returns (losses, lengths of the gradients)."""
    weights = dict(model.named_parameters())
    moments = {name: (0, 0) for name in weights}
    seed = settings["seed"]
    losses = []
    lengths = []
    for step in range(steps):
        # batch, masks and dropout, each from (seed, step)
        input_ids = source.batch(seed, step, settings["batch_size"])
        masked_ids, labels = masks_of(step, input_ids, seed)
        torch.manual_seed(pretrain.step_seed(seed, step, "dropout"))

        # loss and gradients
        loss = references.masked_lm_loss(model(masked_ids, input_ids != PAD), labels)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        gradients, length = references.clipped(gradients)
        losses.append(loss.item())
        lengths.append(length)

        # AdamW; only weights and tables decay
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            decay = settings["weight_decay"]
            if name.endswith("bias") or "norm" in name:
                decay = 0.0
            with torch.no_grad():
                new, moments[name] = references.adamw(
                    weight, gradient, moments[name], step, RATES[step], decay
                )
                weight.copy_(new)
    return losses, lengths


@pytest.mark.parametrize("make_model", [Simple, composite])
def test_training_steps_are_those_of_a_plain_loop(make_model):
    """Losses, norms of the gradients, and all weights after 6 steps, with dropout, in float64."""
    source = Sentences()
    trainer = trainer_of(make_model)
    for _ in range(6):
        pretrain.train_step(trainer, source)

    model = trainer_of(make_model).model
    losses, lengths = train_by_hand(model, Sentences(), SETTINGS, 6)
    assert max(lengths) > 1, "no gradient is clipped: choose other weights for this test"

    assert trainer.step == 6
    for step, (got, expected) in enumerate(zip(trainer.losses, losses, strict=True)):
        assert got.item() == pytest.approx(expected, abs=1e-9), f"the loss of step {step}"
    assert [norm.item() for norm in trainer.norms] == pytest.approx(lengths, abs=1e-9)
    for name, expected in model.named_parameters():
        largest = (trainer.model.get_parameter(name) - expected).abs().max().item()
        assert largest < 1e-9, f"{name} differs by {largest:.1e} after 6 steps"


# --- One step -------------------------------------------------------------------------------------


def test_on_one_cpu_a_step_is_update_of_the_plain_model():
    """What the Trainer puts around it changes nothing. Without dropout, whose seed it sets."""
    make_model = partial(composite, dropout=0.0)
    trainer = trainer_of(make_model)
    model = trainer_of(make_model).model
    optimizer = pretrain.make_optimizer(model, SETTINGS["weight_decay"])
    for step in range(3):
        pretrain.train_step(trainer, Sentences())
        input_ids = Sentences().batch(SETTINGS["seed"], step, SETTINGS["batch_size"])
        for group in optimizer.param_groups:
            group["lr"] = RATES[step]
        masked_ids, labels = masks_of(step, input_ids, SETTINGS["seed"])
        loss, _ = pretrain.update(model, optimizer, masked_ids, labels)
        assert loss.item() == pytest.approx(trainer.losses[step].item(), abs=1e-12)


def test_the_loss_of_a_step_stays_on_the_device_and_keeps_no_graph():
    """And the norm of its gradients.

    A number would have been read, which waits for the device. A graph would hold all tensors.
    """
    trainer = trainer_of()
    step_in_parts(trainer, OneBatch(), micro_batch=5)
    for [number] in (trainer.losses, trainer.norms):
        assert isinstance(number, torch.Tensor) and not number.requires_grad


def test_a_step_in_which_no_token_is_masked_has_a_loss_of_0():
    source = OneBatch()
    source.table[:] = SEP
    trainer = trainer_of()
    pretrain.train_step(trainer, source)
    assert trainer.losses[0].item() == 0
    assert all(x.isfinite().all() for x in trainer.model.parameters())


@pytest.mark.parametrize("variant", ["composite-conv-qkv", "convbert", "shaw", "dynamicconv"])
def test_micro_batches_train_as_the_whole_batch_does(variant):
    """Parts with different numbers of masked tokens; 3 does not divide the 16 sequences."""

    def trained(micro_batch):
        trainer = trainer_of(lambda: composite(variant, dropout=0.0))
        for _ in range(3):
            step_in_parts(trainer, OneBatch(), micro_batch)
        losses = [loss.item() for loss in trainer.losses]
        return losses, [x.detach() for x in trainer.model.parameters()]

    expected_losses, expected = trained(None)
    for micro_batch in (1, 3, 100):
        losses, weights = trained(micro_batch)
        assert losses == pytest.approx(expected_losses, abs=1e-12)
        assert_near(weights, expected, 1e-9)


def test_dropout_differs_between_the_parts_of_a_batch_and_between_processes(monkeypatch):
    """Otherwise sequences of several parts would lose the same numbers. Here two parts of 8."""

    def dropped():
        trainer = trainer_of()
        found = []
        note = lambda module, given, output: found.append(output == 0)  # noqa: E731
        trainer.model.bert.dropout.register_forward_hook(note)
        step_in_parts(trainer, OneBatch(), micro_batch=8)
        return found

    first, second = dropped()
    assert not torch.equal(first, second)

    monkeypatch.setattr(training, "process_count", lambda: 2)
    monkeypatch.setattr(training, "own_share", lambda x: x[training.rank() :: 2])
    [one] = dropped()
    monkeypatch.setattr(training, "rank", lambda: 1)
    [other] = dropped()
    assert one.shape == other.shape and not torch.equal(one, other)


def test_a_new_trainer_trains_with_dropout():
    model = Simple().eval()
    trainer = pretrain.make_trainer(model, SETTINGS, CPU, torch.float32)
    assert all(module.training for module in trainer.model.modules())


# --- The update: learning rate, weight decay ------------------------------------------------------


def test_the_learning_rate_rises_to_the_peak_and_falls_to_0_linearly():
    for steps, warmup_steps in ((9, 3), (9, 1), (10, 0), (4, 4)):
        up = np.linspace(0, 2, warmup_steps + 1)[1:]
        down = np.linspace(2, 0, steps - warmup_steps + 1)[:-1]
        got = [pretrain.learning_rate(step, steps, warmup_steps, 2.0) for step in range(steps)]
        assert got == pytest.approx([*up, *down])
    assert pretrain.learning_rate(9, 9, 3, 2.0) == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_weights_and_tables_decay(variant):
    """With a gradient of 0 AdamW changes nothing but what decays: it loses lr * weight_decay."""
    model = randomise(composite(variant), 0.3)  # a bias of 0 would stay 0
    before = {name: x.detach().clone() for name, x in model.named_parameters()}
    lr = 0.05
    sum(0 * x.sum() for x in model.parameters()).backward()
    optimizer = pretrain.make_optimizer(model, 0.2)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()

    for name, x in model.named_parameters():
        factor = 1 - lr * 0.2
        if name.endswith("bias") or "norm" in name:
            factor = 1
        assert_near(x.detach(), factor * before[name], name=name)


def test_small_and_base_have_the_settings_of_the_paper():
    """Chang et al. 2021, table 4: steps, batch size, length, learning rate, warm-up, dropout."""
    assert pretrain.RECIPES["small"] == pretrain.Recipe(125_000, 128, 128, 3e-4, 10_000, 0.1, 0.01)
    assert pretrain.RECIPES["base"] == pretrain.Recipe(1_000_000, 256, 128, 1e-4, 10_000, 0.1, 0.01)


# --- Evaluation -----------------------------------------------------------------------------------


def evaluate(model, batch_size=3):
    return pretrain.evaluate(model, Sentences(), batch_size, CPU, torch.float32)


def test_evaluation_is_the_mean_over_all_predictions_without_dropout():
    """Not the mean of the batches, which have different numbers of predictions."""
    model = trainer_of().model
    with torch.no_grad():
        model.output.bias[6] += 10  # the model always answers 6: sometimes this is right
    loss, accuracy = evaluate(model)
    assert 0 < accuracy < 1

    model.eval()
    losses = []
    correct = []
    for masked_ids, labels in Sentences().held_out_batches(3):
        logits = model(masked_ids, masked_ids != PAD)
        for b, i in (labels != -100).nonzero().tolist():
            one = references.masked_lm_loss(
                logits[b : b + 1, i : i + 1], labels[b : b + 1, i : i + 1]
            )
            losses.append(one.item())
            correct.append(int(logits[b, i].argmax()) == int(labels[b, i]))
    assert loss == pytest.approx(np.mean(losses), abs=1e-6)  # it is computed in float32
    assert accuracy == pytest.approx(np.mean(correct), abs=1e-12)


@pytest.mark.parametrize("is_training", [True, False])
def test_an_evaluation_leaves_a_model_in_the_mode_in_which_it_was(is_training):
    model = trainer_of().model.train(is_training)
    evaluate(model)
    assert all(module.training == is_training for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_composite_is_trained_and_evaluated_in_the_dtype_of_the_trainer(dtype):
    """The weights and the loss are float32 all the same."""
    torch.manual_seed(1)
    trainer = pretrain.make_trainer(composite(), SETTINGS, CPU, dtype)
    found = []

    def note(module, arguments, output):
        found.append(output.dtype)

    trainer.model.transform.register_forward_hook(note)
    pretrain.train_step(trainer, Sentences())
    assert found == [dtype]
    found.clear()
    pretrain.evaluate(trainer.model, Sentences(), 3, CPU, dtype)
    assert found == [dtype] * 3  # three batches
    assert trainer.losses[0].dtype == torch.float32
    assert all(x.dtype == torch.float32 for x in trainer.model.parameters())
