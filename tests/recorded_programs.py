"""What test_recorded.py and test_cuda.py share: three programs whose steps are recorded."""

import torch

import glue
import pretrain
from lab import seq2seq
from model import BertForClassification, BertForMaskedLM
from model_helpers import WORDS
from support.tokenizer import CLS, IGNORED, PAD, SEP

CPU = torch.device("cpu")
SETTINGS = {"seed": 3, "steps": 8, "warmup_steps": 3, "lr": 0.01, "weight_decay": 0.1}
SETTINGS |= {"batch_size": 4}


class Sentences:
    """Batches of two shapes, in turn, with padding; each step has other tokens."""

    vocab_size = len(WORDS)

    def batch(self, seed, step, batch_size):
        return self.sentences((4, 12) if step % 2 == 0 else (2, 20), step)

    def held_out_batches(self, batch_size, causal):
        """One batch, of another shape: (masked_ids, labels)."""
        ids = self.sentences((3, 16), 0)
        yield ids, ids.masked_fill(ids == PAD, IGNORED)

    def sentences(self, shape, seed):
        numbers = torch.Generator().manual_seed(seed)
        ids = torch.randint(5, len(WORDS), shape, generator=numbers)
        ids[:, 0] = CLS
        ids[:, -1] = SEP
        ids[0, -3:] = PAD
        return ids


def pre_training_step(trainer):
    pretrain.train_step(trainer, Sentences())


def fine_tuning_step(trainer):
    ids = Sentences().batch(0, trainer.step, 4).to(trainer.device)
    set_learning_rate(trainer)
    trainer.advance(glue.update, ids, ids[:, 1] % 3)


def translation_step(trainer):
    ids = Sentences().batch(0, trainer.step, 4).to(trainer.device)
    set_learning_rate(trainer)
    trainer.advance(seq2seq.update_with(0.1), ids, ids.flip(0))


def set_learning_rate(trainer):
    s = trainer.settings
    lr = pretrain.learning_rate(trainer.step, s["steps"], s["warmup_steps"], s["lr"])
    trainer.set_learning_rate(lr)


# what is trained: a model, and a step
PROGRAMS = {
    "pretrain.py": (BertForMaskedLM, pre_training_step),
    "glue.py": (lambda config: BertForClassification(config, 3), fine_tuning_step),
    "seq2seq.py": (seq2seq.Seq2Seq, translation_step),
}


def trainer_of(program, config, device=CPU, dtype=torch.float32, **settings):
    """A Trainer, always with the same weights; on a CPU, too, AdamW's rate is in a tensor."""
    torch.manual_seed(1)
    kind, _ = PROGRAMS[program]
    settings = SETTINGS | settings
    trainer = pretrain.make_trainer(kind(config), settings, device, dtype)
    if device.type == "cpu":
        for group in trainer.optimizer.param_groups:
            group["lr"] = torch.zeros(())
    return trainer


def train(trainer, program, steps):
    """Train up to this step."""
    while trainer.step < steps:
        PROGRAMS[program][1](trainer)


class Reading(torch.nn.GELU):
    """A layer of a user that reads a number: its CPU would wait for a GPU."""

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else -super().forward(-x)
