"""The training, written once more as a plain loop: what pretrain.py must compute, step by step.

The initial weights are those of a Trainer, batches and masks come from data.py, and the seeds from
pretrain.step_seed. All other steps are written out: no module is called, and no optimizer of torch.
The variant is "composite". Letters as in attention.py; `weights` maps the names of parameters to
tensors.

The outputs have the same names as those of the cases (course/cases.py).
"""

import math

import torch
from torch.nn import functional as F

from course.cases import SETTINGS, STEPS, small_trainer, training

DROPOUT = 0.2  # of cases.model_config
HEADS = 2
LAYERS = 2


# --- The model ------------------------------------------------------------------------------------


def linear(x, weights, name):
    return x @ weights[f"{name}.weight"].t() + weights[f"{name}.bias"]


def layer_norm(x, weights, name, eps=1e-12):
    x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def attention(x, real, weights, name, dropout):
    """Chang et al. 2021, eq. 6, for one layer: content, dynamic and fixed term.

    The softmax is over the real tokens.
    """
    B, N, C = x.shape
    d = C // HEADS

    # head h has the channels h*d .. h*d + d - 1
    def heads_of(projection):
        y = linear(x, weights, f"{name}.{projection}")
        return y.reshape(B, N, HEADS, d).transpose(1, 2)  # (B, H, N, d)

    q = heads_of("query")
    k = heads_of("key")
    v = heads_of("value")

    # the column of j - i in a row of K weights
    beta = weights[f"{name}.terms.fixed.beta"]  # (H, K)
    w = weights[f"{name}.terms.dynamic.w"]  # (d, K)
    reach = beta.shape[1] // 2
    i = torch.arange(N)
    column = (i[None, :] - i[:, None]).clamp(-reach, reach) + reach  # (N, N)

    # a_ij = q_i . k_j / sqrt(d) + q_i . w_(j-i) / sqrt(d) + beta_(j-i)
    content = torch.einsum("bhic,bhjc->bhij", q, k)
    dynamic = torch.einsum("bhic,cij->bhij", q, w[:, column])
    scores = (content + dynamic) / math.sqrt(d) + beta[:, column]
    scores = scores.masked_fill(~real[:, None, None, :], -torch.inf)

    p = F.dropout(scores.softmax(-1), dropout)
    z = (p @ v).transpose(1, 2).reshape(B, N, C)
    return linear(z, weights, f"{name}.output")


def logits_of(ids, weights, dropout):
    """Logits of every token: (B, N) -> (B, N, V)."""
    real = ids != 0

    # embeddings; all tokens have type 0
    table = weights["bert.embeddings.token.weight"]  # (V, E)
    x = table[ids] + weights["bert.embeddings.token_type.weight"][0]
    x = F.dropout(layer_norm(x, weights, "bert.embeddings.norm"), dropout)
    x = linear(x, weights, "bert.embeddings.projection")  # (B, N, C)

    # layers
    for layer in range(LAYERS):
        name = f"bert.layers.{layer}"
        mixed = attention(x, real, weights, f"{name}.mixer", dropout)
        x = layer_norm(x + F.dropout(mixed, dropout), weights, f"{name}.mixer_norm")
        y = linear(gelu(linear(x, weights, f"{name}.ffn.0")), weights, f"{name}.ffn.2")
        x = layer_norm(x + F.dropout(y, dropout), weights, f"{name}.ffn_norm")

    # head
    x = layer_norm(gelu(linear(x, weights, "transform")), weights, "norm")
    return x @ table.t() + weights["bias"]


# --- The training ---------------------------------------------------------------------------------


class PlainAdamW:
    """AdamW with the schedule, the clipping and the decay of pretrain.py."""

    def __init__(self, weights):
        self.weights = weights
        self.step = 0
        self.first = {name: torch.zeros_like(x) for name, x in weights.items()}
        self.second = {name: torch.zeros_like(x) for name, x in weights.items()}
        self.rates = []
        self.norms = []  # of the gradients, before clipping

    def learning_rate(self):
        warmup = SETTINGS["warmup_steps"]
        if self.step < warmup:
            return SETTINGS["lr"] * (self.step + 1) / warmup
        steps = SETTINGS["steps"]
        return SETTINGS["lr"] * (steps - self.step) / (steps - warmup)

    def update(self, loss):
        """One step: the gradients, clipped, and the new value of every weight."""
        gradients = self.clipped_gradients(loss)
        lr = self.learning_rate()
        self.rates.append([lr, lr])  # of make_optimizer's two groups: with decay and without
        self.step += 1
        for name, gradient in gradients.items():
            self.update_weight(name, gradient, lr)

    def clipped_gradients(self, loss):
        """{name: gradient}, scaled so that the norm of all together is at most 1."""
        gradients = torch.autograd.grad(loss, list(self.weights.values()), allow_unused=True)
        found = {}
        for name, gradient in zip(self.weights, gradients, strict=True):
            if gradient is not None:
                found[name] = gradient

        norm = math.sqrt(sum(float(g.square().sum()) for g in found.values()))
        self.norms.append(norm)
        scale = min(1, 1 / (norm + 1e-6))
        return {name: g * scale for name, g in found.items()}

    def update_weight(self, name, gradient, lr):
        """AdamW of one weight: decay, then a step along the mean of the gradients."""
        # the running means of the gradient and of its square
        x = self.weights[name]
        first = self.first[name].mul_(0.9).add_(gradient, alpha=0.1)
        second = self.second[name].mul_(0.999).add_(gradient**2, alpha=0.001)

        with torch.no_grad():
            # decay
            if decays(name):
                x -= lr * SETTINGS["weight_decay"] * x

            # a step; the means begin at 0, and the divisors correct this
            mean = first / (1 - 0.9**self.step)
            root = (second / (1 - 0.999**self.step)).sqrt()
            x -= lr * mean / (root + 1e-6)


def decays(name):
    """Whether a weight decays: all but biases and LayerNorms.

    The layers of cases.small_trainer have numbers in place of names. Layer 1 is a LayerNorm.
    """
    is_norm = "norm" in name or name.startswith("1.")
    return not is_norm and not name.endswith("bias")


def copies(model):
    return {name: x.detach().clone().requires_grad_() for name, x in model.named_parameters()}


def state(optimizer, losses):
    weights = {name: x.detach() for name, x in optimizer.weights.items()}
    return {"losses": losses, "steps done": STEPS, "weights": weights}


def few_steps(project):
    """pretrain.train_step, a few times."""
    trainer, corpus = training(project)
    optimizer = PlainAdamW(copies(trainer.model))
    seed = SETTINGS["seed"]
    step_seed = project.pretrain.step_seed

    losses = []
    for step in range(STEPS):
        # batch and masks: functions of (seed, step)
        ids = corpus.batch(seed, step, SETTINGS["batch_size"])
        generator = torch.Generator().manual_seed(step_seed(seed, step, "masks"))
        masked_ids, labels = project.data.mask_tokens(ids, 40, generator)

        # loss: the mean over the masked tokens
        torch.manual_seed(step_seed(seed, step, "dropout"))
        logits = logits_of(masked_ids, optimizer.weights, DROPOUT)
        chosen = labels != -100
        p = logits[chosen].log_softmax(-1)
        loss = -p[torch.arange(len(p)), labels[chosen]].mean()

        losses.append(loss.item())
        optimizer.update(loss)
    return state(optimizer, losses)


def evaluation(project):
    """pretrain.evaluate: the mean over all masked tokens of all batches."""
    trainer, corpus = training(project)
    weights = copies(trainer.model)

    # one masked token at a time
    losses = []
    hits = []
    for masked_ids, labels in corpus.held_out_batches(8):
        logits = logits_of(masked_ids, weights, 0.0)
        for sentence, position in (labels != -100).nonzero().tolist():
            target = labels[sentence, position]
            row = logits[sentence, position].log_softmax(-1)
            losses.append(-row[target].item())
            hits.append(float(row.argmax() == target))
    means = [sum(losses) / len(losses), sum(hits) / len(hits)]
    return {
        "loss and accuracy": means,
        "has gradients": False,
    }


def updates(project):
    """Trainer.update, a few times."""
    trainer, x = small_trainer(project)
    optimizer = PlainAdamW(copies(trainer.model))
    losses = []
    for _ in range(STEPS):
        weights = optimizer.weights
        y = layer_norm(linear(x, weights, "0"), weights, "1", eps=1e-5)
        loss = (linear(y, weights, "2") ** 2).sum()
        losses.append(loss.item())
        optimizer.update(loss)
    return {
        "rates": optimizer.rates,
        "gradient norms": optimizer.norms,
        "losses have a graph": False,
        **state(optimizer, losses),
    }
