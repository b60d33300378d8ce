"""Masked-LM pre-training of any variant on any text.

    python pretrain.py --variant composite                     a tiny model on the toy language
    python pretrain.py --variant none composite --seed 0 1 2   six runs, and a table at the end
    python pretrain.py --size small --corpus my_texts/         composite in BERT-small's size
    torchrun --standalone --nproc_per_node 8 pretrain.py ...   the same on eight GPUs

The random numbers of a step do not depend on the steps before it. They depend on

    batch      the seed and the number of the step
    masks      these two, and the kind of device: a CPU and a GPU draw different numbers
    dropout    these three, the number of processes, --micro_batch and --compile

Therefore a run that was stopped and resumed in the same way equals an uninterrupted run. On a CPU,
the two are equal to the bit. The folder of a run holds config.json, tokenizer.json, model.pt (the
weights), train_state.pt (what resuming needs) and log.jsonl.

From top to bottom: the settings; Trainer (one step of the optimizer, the log, the checkpoint);
the training loop; saving and resuming; the dry run; the runs of a command line; main. One training
step goes main -> train -> train_step -> Bert -> Layer -> SelfAttention -> attention.

A step computes its batch in parts (own_parts): each process takes its own rows, and --micro_batch
limits how many of them it computes at a time. The gradients of the parts add up to those of the
batch (docs/distributed.md). With one process, max_over_processes, sum_over_processes and
value_of_first return their argument, own_share gives all values, and let_others_begin and
wait_for_all do nothing.

[C] is Chang, Xu, Xu, Tu 2021. The letters of the shapes are those of model.py; b is the number of
rows of a part of a batch.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import json
import math
import os
import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from attention import VARIANTS
from data import MASK_PROBABILITY, PAD, VOCABULARY_SIZE, mask_tokens, prepare_corpus
from kernels import BEYOND
from model import (
    IGNORED,
    SIZES,
    BertConfig,
    BertForMaskedLM,
    masked_lm_loss,
    parameter_count,
    save_run,
)
from support.checkpoints import load_optimizer, read_state
from support.commands import (
    LARGEST_INT,
    TrainingFailed,
    UserError,
    given_options,
    positive_int,
    refuse_double_dash,
    run_command,
)
from support.devices import (
    advice_on_precision,
    autocast,
    choose_device,
    compile_encoder,
    dtype_name,
    to_device,
)
from support.distributed import (
    is_first,
    let_others_begin,
    max_over_processes,
    own_share,
    process_count,
    rank,
    rows_at_once,
    run_together,
    sum_over_processes,
    value_of_first,
    wait_for_all,
)
from support.files import save_checkpoint, write_text
from support.limits import check_memory, free_memory, memory_for, memory_line, peak_memory
from support.provenance import check_code, code_digests, made_by
from support.runs import (
    check_not_in_use,
    first_record,
    holds_files,
    load_weights,
    own_folder,
)
from support.signals import StopSignals
from support.statistics import different_settings, listed_differences, mean_and_standard_error

# --- Settings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How long and how fast a model is trained.

    Raises UserError for a seq_len, lr or warmup_steps that no run can have.
    """

    steps: int  # updates of the weights
    batch_size: int  # pairs of sentences per step, on average
    seq_len: int  # tokens per pair, at most
    lr: float  # peak learning rate
    warmup_steps: int  # the learning rate rises for this many steps, then falls to 0
    dropout: float
    weight_decay: float = 0.01

    def __post_init__(self):
        if self.seq_len < 8:
            raise UserError(
                f"--seq_len must be at least 8, for two short sentences, not {self.seq_len}"
            )
        if not 0 < self.lr < math.inf:
            raise UserError(f"--lr must be a number above 0, not {self.lr}")
        if self.warmup_steps > self.steps:
            raise UserError(
                f"--warmup_steps {self.warmup_steps:,} is more than all {self.steps:,} steps"
            )


# small and base: [C] table 4. tiny is our own: it trains in minutes on a CPU, without dropout.
RECIPES = {
    "tiny": Recipe(1_500, batch_size=32, seq_len=128, lr=1e-3, warmup_steps=150, dropout=0.0),
    "small": Recipe(
        125_000, batch_size=128, seq_len=128, lr=3e-4, warmup_steps=10_000, dropout=0.1
    ),
    "base": Recipe(
        1_000_000, batch_size=256, seq_len=128, lr=1e-4, warmup_steps=10_000, dropout=0.1
    ),
}
# tiny on the toy language, whose sentences are short
TOY_RECIPE = Recipe(2_000, batch_size=64, seq_len=64, lr=2e-3, warmup_steps=200, dropout=0.0)

# [C] table 4 and the released code
ADAM_BETAS = (0.9, 0.999)
ADAM_EPS = 1e-6
MAX_GRADIENT_NORM = 1.0

# Until this step, a loss that is not finite is more often a mistake in a new mixer than a learning
# rate that is too high: the warm-up has hardly begun.
FIRST_STEPS = 10

# The files that decide what is computed. A run keeps their digests (support/provenance.py).
CODE = code_digests("attention.py", "kernels.py", "model.py", "data.py", "pretrain.py")

CHECKPOINT = "train_state.pt"  # the file in the folder of a run from which it is resumed

# In training, the number of predicted tokens is rounded up to a multiple of this (masked_logits).
PREDICTIONS_MULTIPLE_OF = 64


def learning_rate(step, steps, warmup_steps, peak):
    """The learning rate of a step, which counts from 0.

    It rises linearly over the warm-up, from peak / warmup_steps in step 0 to the peak in the last
    step of the warm-up. Then it falls linearly, to 0 after the last step. With 4 steps of warm-up:

        step             0     1     2     3     4     5  ...
        here             1/4   2/4   3/4   1     1     falls
        released code    0     1/4   2/4   3/4   1     falls

    [C]'s released code thus begins with a step that changes no weight, and is one step behind
    during the warm-up (docs/differences.md).
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    # max avoids a division by 0 if all steps are warm-up. In training, the line below is then not
    # reached, but --dry_run may measure one step after the last one.
    return peak * (steps - step) / max(1, steps - warmup_steps)


def step_seed(seed, step, stream):
    """The seed of one step's random numbers.

    stream is "masks", "dropout" or "weights": each has independent random numbers.
    """
    # SeedSequence takes only integers, so `stream` becomes the numbers of its letters.
    sequence = np.random.SeedSequence([seed, step, *stream.encode()])
    number = sequence.generate_state(1, np.uint64)[0]
    return int(number >> np.uint64(1))  # 63 bits, so that it is also a signed 64-bit integer


def make_optimizer(model, weight_decay):
    """AdamW. Parameters named "bias" and LayerNorm weights do not decay. All others do.

    The position biases decay, too: beta of fixed and t5, u and v of xl.
    """
    decayed = []
    not_decayed = []
    seen = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            # A parameter that several modules share is updated once.
            if parameter in seen:
                continue
            seen.add(parameter)

            if name == "bias" or isinstance(module, nn.LayerNorm):
                not_decayed.append(parameter)
            else:
                decayed.append(parameter)

    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": not_decayed, "weight_decay": 0.0},
    ]
    # The fused kernel updates all parameters in one call. We use it on the devices where it is
    # tested.
    fused = decayed[0].device.type in ("cpu", "cuda")
    return torch.optim.AdamW(groups, betas=ADAM_BETAS, eps=ADAM_EPS, fused=fused)


# --- What pre-training and fine-tuning share ------------------------------------------------------


class Trainer:
    """A model, its optimizer and the state of a training run.

    Args:
        model: BertForMaskedLM or BertForClassification.
        settings: everything that the result depends on, as plain values: at least seed, steps,
            warmup_steps, lr and weight_decay.
        path: file of the checkpoint from which the run can be resumed.
        device, dtype: where and in which precision it runs.
        code: the digests of the files that decide what is computed.
    """

    def __init__(self, model, settings, path, device, dtype, code=CODE):
        self.model = model.to(device).train()
        self.settings = settings
        self.path = Path(path)
        self.folder_option = None  # for messages: the option that chooses another folder (resume)
        self.micro_batch = None  # rows that are computed at once, at most; None: all
        self.parallel = None  # with several processes: averages gradients (share_gradients)
        self.device = device
        self.dtype = dtype
        self.optimizer = make_optimizer(self.model, settings["weight_decay"])

        self.step = 0  # steps done
        self.saved_step = None  # the step of the last checkpoint
        self.losses = []  # numbers: of the steps since the last line of the log
        self.unread_losses = []  # tensors on the device: of the steps since the last check
        self.unread_norms = []  # tensors on the device: gradient norms of the same steps
        self.tokens = 0  # real tokens trained on so far
        self.seconds = 0.0  # time of the steps so far, without evaluations and saving
        self.result = None  # what the last evaluation found, when the run is finished

        # the lines of log.jsonl; the first one says what this run is and where it was started
        self.records = [{"settings": settings, "code": code, "made_by": made_by(device)}]

    def update(self, loss):
        """One step of the optimizer from the loss of this step's batch.

        If the batch has several parts, the gradients of the earlier parts are already accumulated.
        The norm of all gradients together is clipped to MAX_GRADIENT_NORM. The detached loss is
        appended to `unread_losses`, and the norm before clipping to `unread_norms`. `step` becomes
        step + 1.
        """
        # the learning rate of this step
        settings = self.settings
        lr = learning_rate(self.step, settings["steps"], settings["warmup_steps"], settings["lr"])
        for group in self.optimizer.param_groups:
            group["lr"] = lr

        # backward pass, clipped gradients, new weights; then the gradients are forgotten
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()

        # The loss and the norm stay on the device: reading them would wait for the step to end.
        self.unread_losses.append(loss.detach())
        self.unread_norms.append(norm)
        self.step += 1

    def check_finite(self):
        """Read the losses and gradient norms since the last check, and check that all is finite.

        The losses are added to `losses`. A checkpoint is only written after this.

        Raises TrainingFailed at the first step whose loss or gradient norm is not a finite number,
        or if the weights are not finite.
        """
        losses, norms = self.read_losses()
        self.losses += losses

        # The last loss and norm belong to self.step. An infinite norm would be clipped to a
        # gradient of 0.
        first = self.step - len(losses) + 1
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), first):
            if not math.isfinite(loss):
                raise self.failed(f"the loss is {loss} at step {step}", step)
            if not math.isfinite(norm):
                raise self.failed(f"the gradient norm is {norm} at step {step}", step)

        # the weights
        for parameter in self.model.parameters():
            if not parameter.isfinite().all():
                raise self.failed(
                    f"the weights are not finite numbers after step {self.step}", self.step
                )

    def read_losses(self):
        """The unread losses and gradient norms as numbers: two lists. It waits for the device."""
        losses = [float(loss) for loss in self.unread_losses]
        norms = [float(norm) for norm in self.unread_norms]
        self.unread_losses = []
        self.unread_norms = []

        # Each process knows only the losses of its own rows. The loss of a batch is the mean of
        # these losses over the processes. The norms are the same in all processes, because each
        # has the mean of all gradients.
        if self.parallel is not None:
            losses = [total / process_count() for total in sum_over_processes(losses)]
        return losses, norms

    def failed(self, reason, step):
        """A TrainingFailed that says what is kept and what may help. step: where it was seen."""
        advice = "a lower --lr or a longer warm-up may help"
        if step <= FIRST_STEPS:
            advice = (
                "so early, the cause is more often the code of the model than the learning rate: "
                "a division by 0, or a softmax over nothing but -inf; otherwise " + advice
            )
        if self.folder_option is not None:
            advice = f"{advice}, with another {self.folder_option}"
        if self.saved_step is not None:
            advice = f"the checkpoint of step {self.saved_step} is kept; {advice}"
        return TrainingFailed(f"{reason}; {advice}")

    def log(self):
        """Add a record of the steps since the last one. Returns it."""
        record = {
            "step": self.step,
            "loss": sum(self.losses) / len(self.losses),
            "lr": self.optimizer.param_groups[0]["lr"],
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
        }
        self.records.append(record)
        self.losses = []
        return record

    def save(self):
        """Write the checkpoint atomically.

        The checkpoint of an unfinished run has its own copy of the weights. The checkpoint of a
        finished run keeps only the result and the log: the weights are in model.pt.
        """
        state = {
            "settings": self.settings,
            "step": self.step,
            "losses": self.losses,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "records": self.records,
            "result": self.result,
        }
        if self.result is None:
            state["model"] = self.model.state_dict()
            state["optimizer"] = self.optimizer.state_dict()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self.path, state)
        self.saved_step = self.step

    def resume(self, folder_option):
        """Continue from the checkpoint, if there is one.

        Args:
            folder_option: the command-line option that chooses another folder, for messages.
        Raises:
            UserError: the checkpoint is damaged, or belongs to a run with other settings or of
                other code.
        """
        self.folder_option = folder_option
        if not self.path.exists():
            return
        state = read_state(self.path)

        # the checkpoint of another run must not be overwritten
        check_belongs(self.path.parent, state["records"][0], self.records[0], folder_option)

        # where the run was
        self.step = state["step"]
        self.losses = state["losses"]
        self.tokens = state["tokens"]
        self.seconds = state["seconds"]
        self.records = resumed_log(state, self.records[0]["made_by"])
        self.result = state["result"]
        self.saved_step = self.step

        # a finished run keeps no weights here: they are in model.pt
        if self.result is None:
            load_weights(self.model, state["model"], self.path)
            load_optimizer(self.optimizer, state["optimizer"], self.step, self.path)


def check_belongs(folder, saved, own, folder_option):
    """UserError if a folder holds a run with other settings, or one that other code computed.

    saved, own: the first lines of the two logs, {"settings": ..., "code": ...}.
    """
    differences = listed_differences(saved["settings"], own["settings"])
    if differences:
        advice = advice_on_precision(saved["settings"], own["settings"])
        raise UserError(
            f"{folder} belongs to another run ({differences}); "
            f"{advice}choose another {folder_option}"
        )
    advice = f"delete the folder, or choose another {folder_option}"
    check_code(folder, saved.get("code", {}), own["code"], advice)


def resumed_log(state, made_by):
    """The lines of the log in a checkpoint, and one more if the run continues differently.

    This is so if the machine, the version of the code, or the division of the work among processes
    has changed. The new line says from which step on.
    """
    lines = state["records"]
    if state["result"] is not None:
        return lines

    # what made the last lines (early versions of this program did not write it)
    before = {}
    for line in lines:
        before = line.get("made_by", before)
    if different_settings(before, made_by, except_for=("date",)):
        lines = [*lines, {"step": state["step"], "made_by": made_by}]
    return lines


# --- Pre-training ---------------------------------------------------------------------------------


def train(trainer, corpus, folder, save_every, eval_every):
    """Train to the last step, or until SIGINT or SIGTERM; then everything is saved.

    Args:
        trainer: a Trainer of a BertForMaskedLM.
        corpus: a data.Corpus.
        folder: where the model and its log are saved.
        save_every, eval_every: in steps.
    Returns:
        0, or the number of the signal that stopped it.
    """
    steps = trainer.settings["steps"]
    log_every = max(1, steps // 100)  # about 100 lines in the log
    bar = tqdm(total=steps, initial=trainer.step, unit="step", disable=None, dynamic_ncols=True)

    with StopSignals() as stop, bar:
        started = time.perf_counter()
        while trainer.step < steps:
            train_step(trainer, corpus)
            bar.update()

            # Log, evaluate and save every so many steps, and after the last step. Save also after
            # a signal. A signal to one process stops all of them.
            is_last = trainer.step == steps
            is_stopped = max_over_processes(stop.number) != 0
            log_is_due = is_last or trainer.step % log_every == 0
            evaluation_is_due = is_last or trainer.step % eval_every == 0
            save_is_due = is_last or is_stopped or trainer.step % save_every == 0
            if not (log_is_due or evaluation_is_due or save_is_due):
                continue

            # The clock measures training only. check_finite reads the losses, so it waits until the
            # device has finished the steps.
            trainer.check_finite()
            trainer.seconds += time.perf_counter() - started

            if log_is_due:
                record = trainer.log()
                bar.set_postfix_str(f"loss {record['loss']:.3f}, lr {record['lr']:.1e}")
            if evaluation_is_due:
                record_evaluation(trainer, corpus)
            if save_is_due:
                save_run_and_checkpoint(trainer, corpus, folder)

            # Print after saving: if the output was closed, nothing is lost.
            if evaluation_is_due:
                tqdm.write(evaluation_line(trainer))

            started = time.perf_counter()
            if is_stopped:
                break
    return max_over_processes(stop.number)


def train_step(trainer, corpus):
    """One step: batch, masks, loss, update. trainer.tokens grows by the number of real tokens.

    The batch may have several parts, whose gradients add up (own_parts). Usually there is one. The
    forward pass and the loss are computed in the precision of the trainer (autocast).

    Args:
        trainer: a Trainer of a BertForMaskedLM.
        corpus: a Corpus, or anything with batch(seed, step, batch_size) and vocab_size.
    """
    model = trainer.model
    settings = trainer.settings
    device = trainer.device

    # batch: a function of (seed, step)
    input_ids = corpus.batch(settings["seed"], trainer.step, settings["batch_size"])  # (B, N)
    trainer.tokens += int((input_ids != PAD).sum())
    input_ids = to_device(input_ids, device)
    attention_mask = input_ids != PAD  # (B, N)

    # masks: drawn on the device, a function of (seed, step) and of the kind of device
    generator = torch.Generator(device)
    generator.manual_seed(step_seed(settings["seed"], trainer.step, "masks"))
    masked_ids, labels = mask_tokens(input_ids, corpus.vocab_size, generator)  # (B, N) each

    # dropout: a function of (seed, step), different in each process
    torch.manual_seed(step_seed(settings["seed"], trainer.step, "dropout") + rank())

    # parts: the rows of this process, at most micro_batch of them at a time
    parts = own_parts(masked_ids, attention_mask, labels, trainer.micro_batch)

    # The parts are computed one after the other, and their gradients add up. loss_so_far has no
    # graph, so backward() gives the gradients of one part, and the last loss is that of the batch:
    #     part 1     loss = 0  + l1     gradients of l1
    #     part 2     loss = l1 + l2     gradients of l2
    loss_so_far = 0.0
    for number, part in enumerate(parts, 1):
        is_last = number == len(parts)

        # loss: the encoder, then the head at the masked tokens only
        max_predictions = max_predictions_for(part.labels.numel(), device)
        with autocast(device, trainer.dtype):
            if trainer.parallel is None:
                hidden = model.bert(part.masked_ids, part.attention_mask)  # (b, N, C)
                logits, targets = model.masked_logits(
                    hidden,
                    part.labels,
                    pad_to_multiple_of=PREDICTIONS_MULTIPLE_OF,
                    max_predictions=max_predictions,
                )  # (M, V), (M,)
            else:
                logits, targets = logits_of_part(
                    trainer.parallel, part, is_last, max_predictions
                )  # (M, V), (M,)
            loss = loss_so_far + part.weight * masked_lm_loss(logits, targets)

        if not is_last:
            loss.backward()
            loss_so_far = loss.detach()
            del logits  # the largest tensor of a small model: its memory is for the next part

    # update: backward pass of the last part, clipped gradients, optimizer
    trainer.update(loss)


class Part(NamedTuple):
    """Rows of a batch that are computed at once.

    Attributes:
        masked_ids, attention_mask, labels: (b, N), where b is the number of rows of the part.
        weight: a tensor of one number; the mean loss of the part's tokens is multiplied by it.
    """

    masked_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor
    weight: torch.Tensor


def own_parts(masked_ids, attention_mask, labels, micro_batch=None):
    """The rows of a batch that this process computes, in parts of at most micro_batch rows.

    The loss of a batch is the mean over its masked tokens. So the mean over a part is multiplied by
    the share of the masked tokens that are in this part. With several processes it is also
    multiplied by their number, because DistributedDataParallel takes the mean of their gradients.
    With one process and one part, the weight is exactly 1 (0 if no token is masked).

    Example: 5 rows, 2 processes, at most 2 rows at a time. The batch has 20 masked tokens.

        process           0    0  |  1    1       1
        row               0    1  |  2    3       4
        masked tokens     4    2  |  5    6       3
        part              first   |  first        second
        weight          2 * 6/20  |  2 * 11/20    2 * 3/20

    Args:
        masked_ids, attention_mask, labels: (B, N), the same in all processes.
        micro_batch: None for no limit.
    Returns:
        A list of Part, not empty.
    """
    # the masked tokens of the whole batch; at least 1, because the weights are divided by it
    predicted = (labels != IGNORED).sum().clamp(min=1)

    # the rows of this process: first, ..., end - 1
    B = len(labels)
    first = B * rank() // process_count()
    end = B * (rank() + 1) // process_count()

    # If a batch has fewer rows than there are processes, this process may have no row. It must
    # still send gradients, so it computes a row with nothing to predict: its gradients are 0.
    if first == end:
        first = 0
        end = 1
        labels = torch.full_like(labels, IGNORED)

    parts = []
    for start in range(first, end, micro_batch or B):
        rows = slice(start, min(start + (micro_batch or B), end))
        weight = process_count() * (labels[rows] != IGNORED).sum() / predicted
        parts.append(Part(masked_ids[rows], attention_mask[rows], labels[rows], weight))
    return parts


class MaskedLogits(nn.Module):
    """Encoder and head in one forward pass, which is what DistributedDataParallel needs."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, masked_ids, attention_mask, labels, max_predictions):
        hidden = self.model.bert(masked_ids, attention_mask)  # (b, N, C)
        return self.model.masked_logits(
            hidden,
            labels,
            pad_to_multiple_of=PREDICTIONS_MULTIPLE_OF,
            max_predictions=max_predictions,
        )  # (M, V), (M,)


def logits_of_part(parallel, part, is_last, max_predictions):
    """The forward pass of one of several processes. Only the last part sends the gradients."""
    inputs = (part.masked_ids, part.attention_mask, part.labels, max_predictions)
    if is_last:
        return parallel(*inputs)
    with parallel.no_sync():
        return parallel(*inputs)


def share_gradients(trainer):
    """Let several processes take the mean of their gradients in the backward pass of each step.

    The gradients of the last layer are sent while those of the layers below are computed.
    """
    if process_count() > 1:
        trainer.parallel = DistributedDataParallel(
            MaskedLogits(trainer.model), gradient_as_bucket_view=True
        )


def wants_compile(option, device):
    """The value of --compile or --no-compile; without either (None), True on CUDA only."""
    if option is None:
        return device.type == "cuda"
    return option


def compile_for(trainer, option, corpus):
    """torch.compile the encoder, if it is wanted, for the shape of the next batch.

    Other shapes are compiled when they occur. option: as for wants_compile.
    """
    if not wants_compile(option, trainer.device):
        return
    settings = trainer.settings
    batch = corpus.batch(settings["seed"], trainer.step, settings["batch_size"])  # (B, N)

    # As many rows as are computed at once. Only the shape matters, so any token will do.
    rows = rows_at_once(len(batch), trainer.micro_batch)
    input_ids = torch.full((rows, batch.shape[1]), PAD + 1, device=trainer.device)
    precision = autocast(trainer.device, trainer.dtype)
    compile_encoder(trainer.model.bert, input_ids, precision)


def max_predictions_for(tokens, device):
    """The argument max_predictions of masked_logits, for a part of a batch with `tokens` tokens.

    On CUDA it is a fixed number, so that the CPU does not wait until the masked tokens are counted.
    On other devices it is None: they are counted.
    """
    if device.type != "cuda":
        return None
    return predictions_at_most(tokens)


def predictions_at_most(tokens):
    """An upper limit for the number of masked tokens among `tokens` tokens.

    It is a multiple of PREDICTIONS_MULTIPLE_OF.

    The number of masked tokens is random. Its mean is at most 0.15 * tokens, because padding and
    special tokens are never masked. The limit is at least six standard deviations above
    0.15 * tokens, so in practice the limit is never reached. This is true only because mask_tokens
    chooses each token independently. If groups of tokens were masked together, such as whole words,
    their number would vary more, and masked_logits would leave out the tokens above the limit.
    """
    mean = MASK_PROBABILITY * tokens
    deviation = math.sqrt(MASK_PROBABILITY * (1 - MASK_PROBABILITY) * tokens)
    multiples = math.ceil((mean + 6 * deviation) / PREDICTIONS_MULTIPLE_OF)
    return PREDICTIONS_MULTIPLE_OF * multiples


@torch.no_grad()
def evaluate(model, corpus, batch_size, device, dtype):
    """(loss in nats, accuracy) over the masked tokens of the held-out pairs, without dropout.

    All runs on one corpus with one seq_len see the same pairs under the same masks. The forward
    pass is computed in `dtype` (autocast). Afterwards the model is in training mode.
    """
    model.eval()
    loss = 0.0
    correct = 0
    count = 0
    for masked_ids, labels in own_share(corpus.held_out_batches(batch_size)):
        masked_ids = to_device(masked_ids, device)  # (B, N)
        labels = to_device(labels, device)  # (B, N)
        with autocast(device, dtype):
            hidden = model.bert(masked_ids, masked_ids != PAD)  # (B, N, C)
            logits, targets = model.masked_logits(hidden, labels)  # (M, V), (M,)
        loss += F.cross_entropy(logits, targets, reduction="sum").item()
        correct += (logits.argmax(dim=-1) == targets).sum().item()
        count += len(targets)
    model.train()

    # each process has its own share of the batches
    loss, correct, count = sum_over_processes([loss, correct, count])
    return loss / count, correct / count


def record_evaluation(trainer, corpus):
    """Evaluate, and add the result to the log. After the last step, it is the result of the run."""
    settings = trainer.settings

    # As many pairs at a time as a training step computes on average. An evaluation keeps no
    # gradients. But it computes the longest held-out pairs together, so with a large vocabulary it
    # may need more memory than a training step.
    batch_size = rows_at_once(settings["batch_size"], trainer.micro_batch)
    loss, accuracy = evaluate(trainer.model, corpus, batch_size, trainer.device, trainer.dtype)
    if not math.isfinite(loss):
        raise trainer.failed(f"the held-out loss is {loss} after step {trainer.step}", trainer.step)
    trainer.records.append(
        {"step": trainer.step, "held_out_loss": loss, "held_out_accuracy": accuracy}
    )

    # after the last step: the result of the run
    if trainer.step == settings["steps"]:
        trainer.result = {
            "loss": loss,
            "accuracy": accuracy,
            "parameters": parameter_count(trainer.model),
            "tokens_per_second": trainer.tokens / trainer.seconds,
            "seconds": trainer.seconds,
        }


def evaluation_line(trainer):
    """What the last evaluation found, the speed, and the time that is left or was taken."""
    evaluation = trainer.records[-1]
    loss = evaluation["held_out_loss"]
    percent = 100 * evaluation["held_out_accuracy"]
    speed = trainer.tokens / trainer.seconds

    # how long the rest will take, or how long the run took
    steps = trainer.settings["steps"]
    remaining = trainer.seconds / trainer.step * (steps - trainer.step)
    duration = f"ETA {tqdm.format_interval(remaining)}"
    if trainer.step == steps:
        duration = f"took {tqdm.format_interval(trainer.seconds)}"
    width = len(str(steps))
    return (
        f"step {trainer.step:>{width}} of {steps}   held-out loss {loss:.3f}   "
        f"accuracy {percent:5.1f} %   {speed:,.0f} tokens/s   {duration}"
    )


# --- Saving and resuming --------------------------------------------------------------------------


def save_run_and_checkpoint(trainer, corpus, folder):
    """Write the model for use, its log, and the checkpoint. Only the first process writes.

    The order matters if the program is killed in between. The checkpoint of an unfinished run is
    complete by itself, so it is written first. The checkpoint of a finished run needs model.pt for
    the weights, so it is written last.
    """
    if is_first():
        folder.mkdir(parents=True, exist_ok=True)
        if trainer.result is None:
            trainer.save()
        save_run(folder, trainer.model, corpus.tokenizer)
        lines = [json.dumps(record) + "\n" for record in trainer.records]
        write_text(folder / "log.jsonl", "".join(lines))
        if trainer.result is not None:
            trainer.save()

    # the others go on when the files are complete
    wait_for_all()
    trainer.saved_step = trainer.step


def new_trainer(config, settings, folder, device, dtype, micro_batch=None):
    """A Trainer of a model whose weights are drawn from the seed."""
    torch.manual_seed(step_seed(settings["seed"], 0, "weights"))
    model = BertForMaskedLM(config)
    trainer = Trainer(model, settings, folder / CHECKPOINT, device, dtype)

    # How the work is divided is not a setting: the result is the same up to rounding and dropout.
    trainer.micro_batch = micro_batch
    if micro_batch is not None or process_count() > 1:
        divided = {"processes": process_count(), "micro_batch": micro_batch}
        trainer.records[0]["made_by"].update(divided)
    return trainer


@contextmanager
def own_run(trainer, folder):
    """Lock the folder of a run during a `with` block, and continue from its checkpoint.

    Of several processes, the first one holds the lock, and all read the checkpoint.
    """
    with ExitStack() as stack:
        if is_first():
            stack.enter_context(own_folder(folder))
        resume_run(trainer, folder)

        # All processes must have read the same checkpoint (other machines may have other files),
        # and none continues before all have read it.
        start = [trainer.settings, trainer.step, trainer.result is not None]
        if value_of_first(start) != start:
            raise UserError(
                f"process {rank()} sees another {folder}, or another text, than the first process: "
                "--out_dir and --corpus must be on a disk that all machines share"
            )
        wait_for_all()
        yield


def resume_run(trainer, folder):
    """Continue from the folder's checkpoint. UserError if the folder holds something else."""
    check_holds_run_or_nothing(folder)
    trainer.resume(folder_option="--out_dir")


# --- Dry run: memory and time of a step -----------------------------------------------------------


DRY_RUN_STEPS = 20  # how many steps a dry run measures, at most


def dry_run(trainer, corpus):
    """Measure the memory and time of a few steps and write nothing: what would the run cost?"""
    all_steps = trainer.settings["steps"]
    steps = min(DRY_RUN_STEPS, all_steps)

    # Measure the memory of a step. If a step would need more than there is, end here.
    line, fits = measure_memory(trainer, corpus, steps)
    print(f"dry run: {line}")
    if not fits:
        print("dry run: too many pairs at a time; nothing was written")
        return

    # The first time, these steps allocate memory and compile each width of a batch.
    seconds_of_steps(trainer, corpus, steps)

    # The second time, the same batches are timed.
    seconds = seconds_of_steps(trainer, corpus, steps)

    per_step = seconds / steps
    duration = tqdm.format_interval(per_step * all_steps)
    print(
        f"dry run: {1000 * per_step:.0f} ms per step, {trainer.tokens / seconds:,.0f} tokens/s; "
        f"all {all_steps:,} steps would take {duration}; nothing was written"
    )


def seconds_of_steps(trainer, corpus, steps):
    """The time of the first steps, in seconds. trainer.tokens counts their tokens."""
    trainer.step = 0
    trainer.tokens = 0
    started = time.perf_counter()
    for _ in range(steps):
        train_step(trainer, corpus)
    trainer.check_finite()
    return time.perf_counter() - started


def measure_memory(trainer, corpus, steps):
    """Measure the memory of a step that computes a quarter, a half or all of its pairs at a time.

    "All" means as many pairs as --micro_batch allows. The batch is the widest one of the first
    `steps` steps, cut to two parts per process: while the second part is computed, the gradients of
    the first one are in memory, and further parts need no more. "All" is not measured if the first
    two measurements show that it would not fit.

    Returns:
        line: the measurements, as text.
        fits: False if "all" would not fit.
    """
    memory = free_memory(trainer.device)
    if memory is None:
        return "the memory of this machine is not known", True
    memory = -max_over_processes(-memory)  # the smallest of all processes

    # The widest batch, and how many of its pairs this process computes at a time. One batch after
    # the other is made: all of them together would be part of the measured memory.
    settings = trainer.settings
    batches = (
        corpus.batch(settings["seed"], step, settings["batch_size"]) for step in range(steps)
    )
    widest = max(batches, key=lambda batch: batch.shape[1])
    own_pairs = rows_at_once(len(widest))
    limit = trainer.micro_batch
    asked = rows_at_once(len(widest), limit)

    peaks = {}
    for pairs in sorted({max(1, asked // 4), max(1, asked // 2), asked}):
        # two measurements are enough to predict whether more pairs fit
        if len(peaks) == 2 and memory_for(pairs, peaks) > memory:
            break

        # The first step of a size allocates memory, or compiles; the second one is measured.
        trainer.step = 0
        trainer.micro_batch = pairs
        rows = FirstRows(corpus, widest[: 2 * pairs * process_count()])
        train_step(trainer, rows)
        peak = peak_memory(trainer.device, partial(train_step, trainer, rows))
        trainer.check_finite()
        if peak is None:
            trainer.micro_batch = limit
            return "its memory cannot be measured on this system", True
        peaks[pairs] = max_over_processes(peak)
    trainer.micro_batch = limit
    return memory_line(peaks, own_pairs, memory), asked in peaks


class FirstRows:
    """In place of a corpus: every batch is the same rows. It has only what train_step uses."""

    def __init__(self, corpus, rows):
        self.vocab_size = corpus.vocab_size
        self.rows = rows

    def batch(self, seed, step, batch_size):
        return self.rows


# --- The runs of a command line -------------------------------------------------------------------


def recipe_for(args):
    """The recipe of the size and corpus, with the values that the command line gives."""
    recipe = RECIPES[args.size]
    if args.size == "tiny" and set(args.corpus) == {"toy"}:
        recipe = TOY_RECIPE

    names = ("steps", "batch_size", "seq_len", "lr", "warmup_steps", "dropout")
    given = given_options(args, names)

    # --steps without --warmup_steps: warm up for a tenth of them, but not longer than the recipe.
    if "steps" in given and "warmup_steps" not in given:
        given["warmup_steps"] = min(recipe.warmup_steps, max(1, given["steps"] // 10))
    return replace(recipe, **given)


def config_for(args, recipe, name):
    """The BertConfig of one of the variants in args.variant. The vocabulary is filled in later."""
    variant = VARIANTS[name]
    options = {"max_length": recipe.seq_len, "dropout": recipe.dropout}

    # These options are passed only to the variants that can use them.
    if variant.has_kernel:
        options["kernel_size"] = args.kernel_size
    if variant.uses_beyond:
        options["beyond"] = args.beyond
    if variant.hybrid:
        options["attention_layer"] = args.attention_layer
    return BertConfig.from_size(args.size, name, **options)


def check_options(args):
    """UserError if --kernel_size, --beyond or --attention_layer is given without any use."""
    variants = [VARIANTS[name] for name in args.variant]
    if args.kernel_size is not None and not any(variant.has_kernel for variant in variants):
        raise UserError(
            f"--kernel_size has no use: these variants have no kernel: {', '.join(args.variant)}"
        )

    # "clip" is the default, so only the other value is certain to be given
    if args.beyond != "clip" and not any(variant.uses_beyond for variant in variants):
        raise UserError(
            "--beyond zero has no use: these variants add no kernel to their scores: "
            f"{', '.join(args.variant)}"
        )

    if args.attention_layer is not None and not any(variant.hybrid for variant in variants):
        hybrids = [name for name, variant in VARIANTS.items() if variant.hybrid]
        raise UserError(f"--attention_layer is for {', '.join(hybrids)}")


def settings_for(config, recipe, size, seed, corpus, dtype):
    """All that the result of a run depends on: the first line of its log."""
    return {
        "variant": config.variant,
        "size": size,
        "corpus": corpus.fingerprint,
        **asdict(recipe),
        "kernel_size": config.kernel_size,
        "attention_layer": config.attention_layer,
        "beyond": config.beyond,
        "seed": seed,
        "dtype": dtype_name(dtype),
    }


def run_folders(args):
    """{(variant, seed): folder} of all runs.

    A single run with --out_dir gets this folder itself; several runs get folders inside it. Without
    --out_dir, a run goes to runs/VARIANT, with size, corpus and seed in its name if they are not
    the defaults.
    """
    # a single run with a folder of its own
    runs = [(variant, seed) for seed in args.seed for variant in args.variant]
    if args.out_dir is not None and len(runs) == 1:
        return {runs[0]: args.out_dir}

    # size and corpus are part of a name in runs/, unless they are the defaults
    prefix = []
    parent = args.out_dir
    if args.out_dir is None:
        parent = Path("runs")
        if args.size != "tiny":
            prefix.append(args.size)
        prefix += [Path(name).resolve().stem for name in args.corpus if name != "toy"]

    # and so is the seed: if there are several, or if a run in runs/ has another seed than 0
    name_seed = len(args.seed) > 1 or (args.out_dir is None and args.seed != [0])

    # the names: "small-books-composite-seed1"
    folders = {}
    for variant, seed in runs:
        parts = [*prefix, variant]
        if name_seed:
            parts.append(f"seed{seed}")
        folders[variant, seed] = parent / "-".join(parts)
    return folders


def check_folders(folders, resume):
    """UserError, before any work, if a folder cannot be that of a run.

    It may be a file, or used by another process, or hold other files than those of a run, or those
    of a run although resume is "never".
    """
    for folder in folders:
        for path in (folder, *folder.parents):
            if os.path.lexists(path) and not path.is_dir():
                raise UserError(f"--out_dir: {path} is a file, not a folder")
        if resume == "never" and holds_files(folder):
            raise UserError(
                f"{folder} is not empty and --resume is never; choose another --out_dir"
            )
        check_not_in_use(folder)
        check_holds_run_or_nothing(folder)


def check_holds_run_or_nothing(folder):
    """UserError if a folder holds files, but no checkpoint to continue from."""
    if holds_files(folder) and not (folder / CHECKPOINT).exists():
        raise UserError(
            f"{folder} is not empty and holds no run to resume; choose another --out_dir"
        )


def check_logs(folders, settings_of):
    """UserError if one of the folders holds a run with other settings or of other code.

    folders: {(variant, seed): folder}; settings_of: {(variant, seed): settings}.
    """
    for run, folder in folders.items():
        saved = first_record(folder)
        if saved is not None:
            own = {"settings": settings_of[run], "code": CODE}
            check_belongs(folder, saved, own, "--out_dir")


def check_memory_of(configs, batch_size, corpus, device, dtype, micro_batch):
    """UserError if the training of one of the models cannot fit into the memory.

    Args:
        configs: BertConfigs with the vocabulary of the corpus.
        batch_size: pairs per step, on average.
        corpus: the Corpus.
        device, dtype: where and in which precision it would be trained.
        micro_batch: pairs that are computed at once, at most; None: all.
    """
    lengths = corpus.lengths[corpus.train]  # (training pairs,)
    for config in configs:
        check_memory(
            BertForMaskedLM,
            config,
            batch_size,
            lengths,
            MASK_PROBABILITY,
            device,
            dtype,
            micro_batch,
        )


def print_start(trainer, config, folder, guess_accuracy):
    """Print what this run is, and what guessing would give.

    A guess that gives all tokens the same probability has a loss of ln(V).
    """
    print(f"\n{config.variant}: {VARIANTS[config.variant].equation}")
    facts = [f"{parameter_count(trainer.model):,} parameters", f"seed {trainer.settings['seed']}"]
    if config.kernel_size is not None:
        facts.append(f"K = {config.kernel_size}")
    if config.attention_layer is not None:
        facts.append(f"self-attention in layer {config.attention_layer}")
    print(f"  {', '.join(facts)}, folder {folder}")

    uniform = math.log(config.vocab_size)
    print(
        f"  if all tokens were equally likely, the loss would be ln({config.vocab_size:,}) = "
        f"{uniform:.3f}; always guessing the most frequent token is right "
        f"{100 * guess_accuracy:.1f} % of the time"
    )


def most_frequent_accuracy(corpus):
    """Accuracy on the held-out pairs of always guessing the most frequent token of the text."""
    guess = corpus.most_frequent_token()
    correct = 0
    count = 0
    for _, labels in corpus.held_out_batches(batch_size=256):
        targets = labels[labels != IGNORED]
        correct += (targets == guess).sum().item()
        count += len(targets)
    return correct / count


def print_table(results):
    """One row per variant: mean and standard error over its seeds.

    results: {(variant, seed): result}.
    """
    print(
        f"\n{'variant':<20} {'parameters':>11} {'held-out loss':>17} {'accuracy (%)':>15} "
        f"{'tokens/s':>9} {'runs':>5}"
    )
    for variant in dict.fromkeys(variant for variant, _ in results):
        runs = [result for (name, _), result in results.items() if name == variant]
        parameters = runs[0]["parameters"]
        loss = mean_and_standard_error([run["loss"] for run in runs])
        accuracy = mean_and_standard_error([100 * run["accuracy"] for run in runs], 2)
        speed = np.mean([run["tokens_per_second"] for run in runs])
        print(
            f"{variant:<20} {parameters:>11,} {loss:>17} {accuracy:>15} "
            f"{speed:>9,.0f} {len(runs):>5}"
        )


# --- The command line -----------------------------------------------------------------------------


def main(arguments=None):
    """Every run that the command line names, then their table. Returns the exit code."""
    # what the user wants, and where it will run
    args = parse_arguments(arguments)
    device, dtype, description = choose_device(args.device, args.dtype)
    print(description)

    # options and folders are checked before the text is prepared
    check_options(args)
    recipe = recipe_for(args)
    configs = {variant: config_for(args, recipe, variant) for variant in args.variant}
    folders = run_folders(args)
    if is_first() and not args.dry_run:
        check_folders(folders.values(), args.resume)

    # the recipe, with the defaults that the size and the corpus gave
    listed = ", ".join(f"{name} {value:,}" for name, value in asdict(recipe).items())
    print(f"{args.size}: {listed}")

    # the text, as token ids
    corpus = prepare_corpus(args.corpus, args.cache_dir, recipe.seq_len, args.vocab_size)
    guess_accuracy = most_frequent_accuracy(corpus)

    # what cannot fit into the memory is refused before any run starts
    configs = {
        variant: replace(config, vocab_size=corpus.vocab_size)
        for variant, config in configs.items()
    }
    check_memory_of(configs.values(), recipe.batch_size, corpus, device, dtype, args.micro_batch)
    if recipe.batch_size > len(corpus.train):
        print(
            f"--batch_size is above the {len(corpus.train):,} training pairs: a step repeats them"
        )

    # the settings of all runs
    settings_of = {}
    for variant, seed in folders:
        settings_of[variant, seed] = settings_for(
            configs[variant], recipe, args.size, seed, corpus, dtype
        )

    # a folder that belongs to another run is refused before any run starts, too
    if is_first() and not args.dry_run:
        check_logs(folders, settings_of)

    # under torchrun: the first process has checked everything, so the others may begin
    let_others_begin()

    results = {}
    for (variant, seed), folder in folders.items():
        # a model with weights drawn from the seed
        config = configs[variant]
        settings = settings_of[variant, seed]
        trainer = new_trainer(config, settings, folder, device, dtype, args.micro_batch)
        print_start(trainer, config, folder, guess_accuracy)

        # only time some steps
        if args.dry_run:
            compile_for(trainer, args.compile, corpus)
            share_gradients(trainer)
            dry_run(trainer, corpus)
            continue

        # no other process works on this folder meanwhile
        with own_run(trainer, folder):
            if trainer.result is not None:
                loss = trainer.result["loss"]
                percent = 100 * trainer.result["accuracy"]
                print(f"  finished before: held-out loss {loss:.3f}, accuracy {percent:.1f} %")
                results[variant, seed] = trainer.result
                continue
            if trainer.step > 0:
                print(f"  resumed at step {trainer.step:,} of {recipe.steps:,}")
            compile_for(trainer, args.compile, corpus)
            share_gradients(trainer)

            eval_every = args.eval_every or max(1, recipe.steps // 10)
            save_every = args.save_every or min(1_000, max(1, recipe.steps // 10))
            stopped = train(trainer, corpus, folder, save_every, eval_every)

        # Ctrl-C or SIGTERM ends all runs
        if stopped:
            name = signal.Signals(stopped).name
            print(
                f"stopped by {name} at step {trainer.step:,}, saved; "
                "the same command continues from there"
            )
            wait_for_all()
            return 128 + stopped  # the usual exit code after a signal
        results[variant, seed] = trainer.result

    # several runs: one row per variant
    if len(results) > 1:
        print_table(results)
    return 0


def parse_arguments(arguments=None):
    """The command line's values. Wrong ones end the program with the usage and one line."""
    parser = argparse.ArgumentParser(
        description="Masked-LM pre-training of any variant on any text.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    by_size = "default by size and corpus, printed when the run starts"

    # what to train
    names = ", ".join(VARIANTS)
    add(
        "--variant",
        nargs="+",
        default=["composite"],
        help=f"one or more of: {names}; or all (default: composite)",
    )
    add("--size", choices=SIZES, default="tiny", help="size of the model (default: tiny)")
    add("--kernel_size", type=positive_int, help="K, odd (default: the variant's own, mostly 17)")
    add(
        "--beyond",
        choices=BEYOND,
        default="clip",
        help="what is added to scores of tokens beyond the kernel: its end weight (clip) or 0 "
        "(zero); ignored by variants without such kernels, refused if no variant has one "
        "(default: clip)",
    )
    add(
        "--attention_layer",
        type=positive_int,
        help="which layer of a hybrid is self-attention, counted from 1 (default: the last layer)",
    )

    # on which text
    add(
        "--corpus",
        nargs="+",
        default=["toy"],
        help="toy, wikitext-2, wikitext-103, or text files and folders (.txt .gz .xz; "
        "an empty line between documents; default: toy)",
    )
    add("--cache_dir", type=Path, default="cache", help="downloads and token ids (default: cache)")
    add(
        "--vocab_size",
        type=positive_int,
        default=VOCABULARY_SIZE,
        help="tokens, at most (default: %(default)s)",
    )

    # how long and how fast
    add("--steps", type=positive_int, help=f"updates of the weights; {by_size}")
    add("--batch_size", type=positive_int, help=f"pairs per step, on average; {by_size}")
    add("--seq_len", type=positive_int, help=f"tokens per pair, at most; {by_size}")
    add("--lr", type=float, help=f"peak learning rate; {by_size}")
    add(
        "--warmup_steps",
        type=positive_int,
        help=f"steps with a rising learning rate; {by_size}; with --steps at most a tenth of them",
    )
    add("--dropout", type=float, help=f"probability, from 0 to below 1; {by_size}")
    add("--seed", nargs="+", type=int, default=[0], help="one run per seed (default: 0)")

    # where
    add("--out_dir", type=Path, help="folder of the run, or of several runs (default: runs/...)")
    add(
        "--resume",
        choices=("auto", "never"),
        default="auto",
        help="continue a run in its folder, or refuse to (default: auto)",
    )
    add("--save_every", type=positive_int, help="steps (default: a tenth of all, at most 1,000)")
    add("--eval_every", type=positive_int, help="steps (default: a tenth of all)")

    # on what machine
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    add(
        "--dtype",
        choices=("auto", "fp32", "bf16"),
        default="auto",
        help="of matrix products (default: auto, bf16 if the hardware has it)",
    )
    add(
        "--micro_batch",
        type=positive_int,
        help="pairs that are computed at once, at most: less memory, and the same result up to "
        "rounding and dropout (default: all)",
    )
    add("--compile", action=argparse.BooleanOptionalAction, help="torch.compile (default: on CUDA)")
    add("--dry_run", action="store_true", help="memory and time of some steps; write no run")

    if arguments is None:
        arguments = sys.argv[1:]
    refuse_double_dash(parser, arguments)
    args = parser.parse_args(arguments)
    for name in args.variant:
        if name not in VARIANTS and name != "all":
            parser.error(f"unknown variant {name!r}; the variants are: {names}")
    if "all" in args.variant:
        args.variant = list(VARIANTS)
    if min(args.seed) < 0 or max(args.seed) > LARGEST_INT:
        parser.error(f"--seed must be a whole number from 0 to {LARGEST_INT:,}")
    # a name or seed that is given twice is one run
    args.variant = list(dict.fromkeys(args.variant))
    args.seed = list(dict.fromkeys(args.seed))
    return args


if __name__ == "__main__":
    run_command("pretrain.py", run_together, main)
