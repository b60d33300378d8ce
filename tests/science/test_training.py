"""The training step and the evaluation, and what they pass from one module to the next.

First several steps together, against a plain loop whose parts are in tests/references.py. Then
every part of a step by itself: the batch, the masks, the dropout, the padding mask, the loss, the
clipped gradients, the learning rate and the weight decay; then the evaluation, and finally what
fine-tuning gives to the encoder. Where the model does not matter it is `Simple`, so that a failure
here is a mistake in the step and not in the model.
"""

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import glue
import pretrain
import references
from data import CLS, PAD, SEP, BatchSource, Corpus
from helpers import assert_near, generator, randomise
from model import BertConfig, BertForClassification, BertForMaskedLM, masked_lm_loss

V = 12  # vocabulary
C = 8
CPU = torch.device("cpu")
SETTINGS = {"seed": 3, "steps": 9, "warmup_steps": 3, "lr": 0.05, "weight_decay": 0.2}
SETTINGS["batch_size"] = 8


# --- A source of batches, and two models ----------------------------------------------------------


class Sentences(BatchSource):
    """32 rows of 5 to 12 tokens each: [CLS] words [SEP] [PAD]. `asked` holds what was asked for."""

    vocab_size = V
    seq_len = 12

    def __init__(self):
        numbers = np.random.default_rng(0)
        self.lengths = numbers.integers(5, 13, 32)
        self.train = np.arange(24)
        self.asked = []
        self.table = np.full((32, 12), PAD)
        for row, length in zip(self.table, self.lengths, strict=True):
            row[0] = CLS
            row[1 : length - 1] = numbers.integers(5, V, length - 2)
            row[length - 1] = SEP

    def rows(self, indices):
        return self.table[indices]

    def batch(self, seed, step, batch_size):
        self.asked.append((seed, step, batch_size))
        return super().batch(seed, step, batch_size)

    def held_out_batches(self, batch_size):
        """The last eight rows; the batches have different numbers of tokens to predict."""
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

    def __init__(self):
        super().__init__()
        self.bert = SimpleEncoder()
        self.output = nn.Linear(C, V)

    def forward(self, input_ids, attention_mask):
        return self.output(self.bert(input_ids, attention_mask))  # (B, N, V)

    def masked_logits(self, hidden, labels, pad_to_multiple_of=1, max_predictions=None):
        chosen = labels != -100
        return self.output(hidden[chosen]), labels[chosen]


def composite(dropout=0.3):
    """BERT with one layer."""
    config = BertConfig(
        variant="composite",
        vocab_size=V,
        layers=1,
        hidden_size=C,
        ffn_size=12,
        heads=2,
        embedding_size=6,
        kernel_size=5,
        dropout=dropout,
    )
    return BertForMaskedLM(config)


def trainer_of(make_model=Simple, **settings):
    """A float64 Trainer; the weights are the same every time."""
    torch.manual_seed(1)
    model = make_model().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    settings = {**SETTINGS, **settings}
    return pretrain.Trainer(model, settings, "not-written", CPU, torch.float32)


def encoder_calls(model):
    """A list that gets {"input_ids", "attention_mask", ...} of every call to model.bert."""
    calls = []
    signature = inspect.signature(model.bert.forward)

    def note(module, arguments, options):
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        calls.append(bound.arguments)

    model.bert.register_forward_pre_hook(note, with_kwargs=True)
    return calls


def assert_same_mask(found, expected):
    assert found is not None, "no padding mask reaches the encoder"
    assert torch.equal(found, expected)


def masks_of(step, input_ids, seed=SETTINGS["seed"]):
    """The masks of a training step, by hand: (masked_ids, labels)."""
    numbers = generator(pretrain.step_seed(seed, step, "masks"))
    draw = torch.rand(input_ids.shape, generator=numbers)
    random_ids = torch.randint(5, V, input_ids.shape, generator=numbers)
    return references.mask_tokens(input_ids, draw, random_ids)


# --- Several steps against a plain loop -----------------------------------------------------------


def train_by_hand(model, source, settings, steps):
    """Train a model without any part of Trainer. Returns (losses, lengths of the gradients)."""
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
        lr = references.learning_rate(
            step, settings["steps"], settings["warmup_steps"], settings["lr"]
        )
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
            decay = settings["weight_decay"]
            if name.endswith("bias") or "norm" in name:
                decay = 0.0
            with torch.no_grad():
                new, moments[name] = references.adamw(
                    weight, gradient, moments[name], step, lr, decay
                )
                weight.copy_(new)
    return losses, lengths


@pytest.mark.parametrize("make_model", [Simple, composite])
def test_training_steps_are_those_of_a_plain_loop(make_model):
    """Losses and all weights after 6 steps, with dropout, in float64."""
    source = Sentences()
    trainer = trainer_of(make_model)
    for _ in range(6):
        pretrain.train_step(trainer, source)

    model = trainer_of(make_model).model
    losses, lengths = train_by_hand(model, Sentences(), SETTINGS, 6)
    assert max(lengths) > 1, "no gradient is clipped: choose other weights for this test"

    assert trainer.step == 6
    for step, (got, expected) in enumerate(zip(trainer.unread_losses, losses, strict=True)):
        assert got.item() == pytest.approx(expected, abs=1e-9), f"the loss of step {step}"
    for step, (got, expected) in enumerate(zip(trainer.unread_norms, lengths, strict=True)):
        assert got.item() == pytest.approx(expected, abs=1e-9), f"the gradient of step {step}"
    for name, expected in model.named_parameters():
        largest = (trainer.model.get_parameter(name) - expected).abs().max().item()
        assert largest < 1e-9, f"{name} differs by {largest:.1e} after 6 steps"


# --- The parts of a step --------------------------------------------------------------------------


def test_every_step_takes_the_batch_of_its_seed_and_number():
    source = Sentences()
    trainer = trainer_of(seed=7)
    for _ in range(4):
        pretrain.train_step(trainer, source)
    assert source.asked == [(7, 0, 8), (7, 1, 8), (7, 2, 8), (7, 3, 8)]


def test_every_step_has_masks_of_its_own_and_the_encoder_sees_the_masked_tokens():
    """They depend on the seed and the number of the step."""
    for seed in (3, 4):
        trainer = trainer_of(seed=seed)
        calls = encoder_calls(trainer.model)
        source = OneBatch()
        for step in range(4):
            pretrain.train_step(trainer, source)
            expected, _ = masks_of(step, source.batch(seed, step, 8), seed)
            assert torch.equal(calls[step]["input_ids"], expected), f"seed {seed}, step {step}"


def test_every_step_has_dropout_of_its_own_from_its_seed_and_number():
    for seed in (3, 4):
        trainer = trainer_of(seed=seed)
        dropped = []

        def note(module, arguments, output, dropped=dropped):
            dropped.append(output == 0)

        trainer.model.bert.dropout.register_forward_hook(note)
        for step in range(4):
            pretrain.train_step(trainer, OneBatch())
            torch.manual_seed(pretrain.step_seed(seed, step, "dropout"))
            expected = nn.functional.dropout(torch.ones_like(dropped[0], dtype=torch.float64), 0.3)
            assert torch.equal(dropped[step], expected == 0), f"seed {seed}, step {step}"


def test_masks_and_dropout_of_a_step_have_different_seeds():
    assert pretrain.step_seed(3, 5, "masks") != pretrain.step_seed(3, 5, "dropout")


def test_in_training_the_padding_mask_reaches_the_encoder():
    trainer = trainer_of()
    calls = encoder_calls(trainer.model)
    source = OneBatch()
    pretrain.train_step(trainer, source)
    assert_same_mask(calls[0]["attention_mask"], source.batch(3, 0, 8) != PAD)


def test_the_loss_of_a_step_is_the_mean_over_its_masked_tokens():
    trainer = trainer_of()
    source = OneBatch()
    input_ids = source.batch(3, 0, 8)
    masked_ids, labels = masks_of(0, input_ids)
    torch.manual_seed(pretrain.step_seed(3, 0, "dropout"))
    expected = references.masked_lm_loss(trainer.model(masked_ids, input_ids != PAD), labels)

    pretrain.train_step(trainer, source)
    assert trainer.unread_losses[0].item() == pytest.approx(expected.item(), abs=1e-12)


def test_masked_lm_loss_equals_its_loop_and_ignores_rows_without_a_label():
    logits = torch.randn(2, 5, V, dtype=torch.float64, generator=generator(0)).requires_grad_()
    labels = torch.tensor([[-100, 7, -100, 8, -100], [-100, -100, 11, -100, -100]])
    got = masked_lm_loss(logits.flatten(0, 1), labels.flatten())
    expected = references.masked_lm_loss(logits, labels)
    assert got.item() == pytest.approx(expected.item(), abs=1e-12)

    got = torch.autograd.grad(got, logits)[0]
    expected = torch.autograd.grad(expected, logits)[0]
    assert (got - expected).abs().max() < 1e-12


def test_a_step_counts_its_real_tokens_and_itself():
    trainer = trainer_of()
    source = OneBatch()
    for _ in range(3):
        pretrain.train_step(trainer, source)
    assert trainer.step == 3
    assert trainer.tokens == 3 * int(source.lengths[:16].sum())


def test_a_run_starts_with_weights_drawn_from_its_seed(tmp_path):
    config = composite().config
    for seed in (3, 4):
        settings = {**SETTINGS, "seed": seed}
        trainer = pretrain.new_trainer(config, settings, tmp_path, CPU, torch.float32)
        torch.manual_seed(pretrain.step_seed(seed, 0, "weights"))
        expected = BertForMaskedLM(config)
        for one, other in zip(trainer.model.parameters(), expected.parameters(), strict=True):
            assert torch.equal(one, other)


def test_a_new_trainer_trains_with_dropout():
    model = Simple().eval()
    trainer = pretrain.Trainer(model, SETTINGS, "not-written", CPU, torch.float32)
    assert all(module.training for module in trainer.model.modules())


# --- The update: gradients, learning rate, weight decay -------------------------------------------


class Numbers(nn.Module):
    """Two weights and a bias, whose gradients a test chooses."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.bias = nn.Parameter(torch.zeros(1))

    def loss(self, gradient):
        """A loss with this gradient, three numbers."""
        gradient = torch.tensor(gradient, dtype=torch.float64)
        return (torch.cat([self.weight, self.bias]) * gradient).sum()


def numbers_trainer(**settings):
    """Trains Numbers, started at 1, with plain gradient descent in place of AdamW."""
    model = Numbers().double()
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    trainer = pretrain.Trainer(model, {**SETTINGS, **settings}, "not-written", CPU, torch.float32)
    trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0)
    return trainer


def changes(trainer, gradients, lr):
    """What each update takes away from the three numbers, divided by the learning rate."""
    found = []
    parameters = list(trainer.model.parameters())
    for gradient in gradients:
        before = torch.cat(parameters).detach()
        trainer.update(trainer.model.loss(gradient))
        found.append(((before - torch.cat(parameters).detach()) / lr).tolist())
    return found


CONSTANT = {"steps": 9, "warmup_steps": 1, "lr": 0.05}  # the peak in steps 0 and 1


def test_gradients_longer_than_1_together_are_clipped_before_the_step():
    """The gradient (2, 4, 4) has length 6 over both parameters."""
    got = changes(numbers_trainer(**CONSTANT), [(2.0, 4.0, 4.0)], 0.05)
    assert got[0] == pytest.approx([1 / 3, 2 / 3, 2 / 3], abs=1e-6)


def test_gradients_shorter_than_1_are_not_changed():
    got = changes(numbers_trainer(**CONSTANT), [(0.2, 0.4, 0.4)], 0.05)
    assert got[0] == pytest.approx([0.2, 0.4, 0.4], abs=1e-12)


def test_every_step_forgets_the_gradients_of_the_step_before():
    got = changes(numbers_trainer(**CONSTANT), [(0.2, 0.4, 0.4), (0.1, 0.0, 0.0)], 0.05)
    assert got[1] == pytest.approx([0.1, 0.0, 0.0], abs=1e-12)


def test_the_length_of_the_gradients_is_kept_as_it_was_before_clipping():
    trainer = numbers_trainer(**CONSTANT)
    trainer.update(trainer.model.loss((2.0, 4.0, 4.0)))
    assert trainer.unread_norms[0].item() == pytest.approx(6.0)


def test_every_step_sets_the_learning_rate_of_the_schedule_in_all_groups():
    trainer = trainer_of()
    rates = []

    def note(optimizer, arguments, options):
        rates.append([group["lr"] for group in optimizer.param_groups])

    trainer.optimizer.register_step_pre_hook(note)
    for _ in range(9):
        pretrain.train_step(trainer, OneBatch())
    expected = [references.learning_rate(step, 9, 3, 0.05) for step in range(9)]
    assert rates == [[pytest.approx(lr)] * 2 for lr in expected]


def test_the_learning_rate_rises_to_the_peak_and_falls_to_0_linearly():
    for steps, warmup_steps in ((9, 3), (9, 1), (10, 0), (4, 4)):
        for step in range(steps):
            expected = references.learning_rate(step, steps, warmup_steps, 2.0)
            got = pretrain.learning_rate(step, steps, warmup_steps, 2.0)
            assert got == pytest.approx(expected), (steps, warmup_steps, step)
    assert pretrain.learning_rate(9, 9, 3, 2.0) == 0


def step_of(optimizer, lr):
    """A step of an optimizer with this learning rate; then the gradients are forgotten."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad()


def test_only_weights_and_tables_decay():
    """With a gradient of 0 AdamW changes nothing but what decays: it loses lr * weight_decay."""
    model = randomise(composite(), 0.3)  # a bias of 0 would stay 0
    before = {name: x.detach().clone() for name, x in model.named_parameters()}
    lr = 0.05
    sum(0 * x.sum() for x in model.parameters()).backward()
    step_of(pretrain.make_optimizer(model, 0.2), lr)

    for name, x in model.named_parameters():
        factor = 1 - lr * 0.2
        if name.endswith("bias") or "norm" in name:
            factor = 1
        assert_near(x.detach(), factor * before[name], name=name)


def test_updates_are_adamw_with_the_papers_betas_and_eps():
    """Gradients around eps = 1e-6, where it matters most."""
    model = Numbers().double()
    nn.init.ones_(model.weight)
    optimizer = pretrain.make_optimizer(model, 0.2)
    weight, moments = torch.ones(2, dtype=torch.float64), (0, 0)
    for step, scale in enumerate((1e-6, 3e-7, -2e-6, 1e-6)):
        gradient = torch.tensor([1.0, 5.0], dtype=torch.float64) * scale
        model.loss((*gradient.tolist(), 0.0)).backward()
        lr = references.learning_rate(step, 9, 1, 0.05)
        step_of(optimizer, lr)
        weight, moments = references.adamw(weight, gradient, moments, step, lr, 0.2)
        assert (model.weight - weight).abs().max() < 1e-9, f"step {step}"


def test_all_recipes_have_the_papers_weight_decay():
    for recipe in (*pretrain.RECIPES.values(), pretrain.TOY_RECIPE):
        assert recipe.weight_decay == 0.01


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


def test_evaluation_has_no_dropout():
    model = trainer_of().model
    assert evaluate(model) == evaluate(model)


def test_after_an_evaluation_the_model_trains_with_dropout_again():
    model = trainer_of().model
    evaluate(model)
    assert all(module.training for module in model.modules())


def test_in_evaluation_the_padding_mask_reaches_the_encoder():
    model = trainer_of().model
    calls = encoder_calls(model)
    evaluate(model)
    batches = list(Sentences().held_out_batches(3))
    for call, (masked_ids, _) in zip(calls, batches, strict=True):
        assert_same_mask(call["attention_mask"], masked_ids != PAD)


def test_evaluation_builds_no_graph_and_changes_no_weight():
    model = trainer_of().model
    before = [x.detach().clone() for x in model.parameters()]
    has_graph = []

    def note(module, arguments, output):
        has_graph.append(output.requires_grad)

    model.output.register_forward_hook(note)
    evaluate(model)
    assert has_graph and not any(has_graph)
    for one, other in zip(before, model.parameters(), strict=True):
        assert torch.equal(one, other) and other.grad is None


def test_the_most_frequent_token_is_an_ordinary_one():
    """Special tokens may be more frequent: here [UNK], id 1."""
    corpus = SimpleNamespace(tokens=np.array([1, 1, 1, 1, 8, 6, 8]), vocab_size=10)
    assert Corpus.most_frequent_token(corpus) == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_composite_is_trained_and_evaluated_in_the_dtype_of_the_trainer(dtype):
    """The weights and the loss are float32 all the same."""
    torch.manual_seed(1)
    trainer = pretrain.Trainer(composite(), SETTINGS, "not-written", CPU, dtype)
    found = []

    def note(module, arguments, output):
        found.append(output.dtype)

    trainer.model.bert.layers[0].ffn[0].register_forward_hook(note)
    trainer.model.transform.register_forward_hook(note)
    pretrain.train_step(trainer, Sentences())
    assert found == [dtype] * 2
    found.clear()
    pretrain.evaluate(trainer.model, Sentences(), 3, CPU, dtype)
    assert found == [dtype] * 6  # three batches
    assert trainer.unread_losses[0].dtype == torch.float32
    assert all(x.dtype == torch.float32 for x in trainer.model.parameters())


# --- Fine-tuning: what reaches the encoder --------------------------------------------------------

TWO_SENTENCES = torch.tensor(
    [[CLS, 6, 7, SEP, 8, 9, SEP, PAD], [CLS, 6, SEP, 5, SEP, PAD, PAD, PAD]]
)
TYPES = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 0, 0, 0]])


def call_of_classify():
    torch.manual_seed(0)
    model = BertForClassification(composite().config, num_labels=3)
    calls = encoder_calls(model)
    glue.classify(model, TWO_SENTENCES)
    return calls[0]


def test_in_fine_tuning_the_padding_mask_reaches_the_encoder():
    assert_same_mask(call_of_classify()["attention_mask"], TWO_SENTENCES != PAD)


def test_in_fine_tuning_the_token_types_reach_the_encoder():
    found = call_of_classify()["token_type_ids"]
    assert found is not None, "no token types reach the encoder"
    assert torch.equal(found, TYPES)
