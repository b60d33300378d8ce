"""The loop around a training step: how it is computed, logged, stopped, saved and continued.

A program gives two functions (pretrain.py has train_step and update, glue.py its own):

    train_step(trainer, ...)                    on the CPU: the batch and the learning rate; then
        trainer.advance(update, *batch)         this, which calls
    update(model, optimizer, *batch)            a function of tensors: loss, gradients, new weights

`update` is written as for one CPU. What makes it fast, or lets it run elsewhere, is here:

    the optimizer     of a GPU: its learning rate is in a tensor (set_learning_rate)
    the model         Prepared: in bfloat16, in parts, or only the sequences of this process
    the call          RecordedStep (support/devices.py): on an NVIDIA GPU it is replayed

Everything random in a step is a function of (seed, step): step_seed. So a run can be stopped after
any step: the weights, the state of AdamW and the number of the step are all that is needed.

With one process, rank() is 0, process_count() is 1, and from_first_process(f) is f().
"""

import math
import shlex
import signal
import time

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from support.code import code_of
from support.commands import StopSignals, UserError
from support.devices import (
    SYNCHRONOUS,
    RecordedStep,
    autocast,
    from_first_process,
    made_by,
    own_share,
    process_count,
    rank,
    share_gradients,
    sum_over_processes,
)
from support.files import load_checkpoint, lock, save_checkpoint
from support.runs import LOG, give_up, place_for, read_log, write_records
from support.tokenizer import IGNORED, PAD

# The number of predicted tokens is rounded up to a multiple of this. Libraries prepare matrix
# products for each shape separately, so a new shape in every step would be slow.
PREDICTIONS_MULTIPLE_OF = 64

CHECKPOINT = "train_state.pt"  # in the folder of an unfinished run: from here it is resumed
SAVE_EVERY = 1_000  # steps, at most: so much work is lost if the machine fails


def step_seed(seed, step, stream):
    """The seed of one step's random numbers.

    stream is "masks", "dropout", "weights", or a new name for what you add to a step: each has
    independent random numbers. (A layer may simply call torch.rand, as dropout does.)
    """
    # SeedSequence mixes integers, and every letter is one: "masks" is 109, 97, 115, 107, 115.
    sequence = np.random.SeedSequence([seed, step, *stream.encode()])
    state = sequence.generate_state(1, np.uint64)[0]
    return int(state) >> 1  # 63 bits, so that it is also a signed 64-bit integer


# --- The model, as a step calls it ----------------------------------------------------------------


class Loss(nn.Module):
    """model.loss of some sequences, in a precision.

    It is a module, because DistributedDataParallel takes one. That prepares its exchange of
    gradients when it is called, so all that has parameters must be in this call.
    """

    def __init__(self, model, device, dtype, label_share):
        super().__init__()
        self.model = model
        self.device = device
        self.dtype = dtype
        self.label_share = label_share

    def forward(self, input_ids, attention_mask, labels, count):
        M = prediction_count(labels, self.label_share)
        with autocast(self.device, self.dtype):
            return self.model.loss(input_ids, attention_mask, labels, count, M)


class Prepared(nn.Module):
    """A model that is computed in a precision, in parts, and by several processes.

    A call is that of the model, in this precision. `loss = model.loss(ids, mask, labels, count)`
    and `loss.backward()` are also right in parts, and with several processes. A factor of this loss
    would be missing from the gradients of all parts but the last: it belongs in model.loss.

    Args:
        model: BertForMaskedLM, or another one with the methods that are called.
        device, dtype: where and in which precision it runs.
        micro_batch: sequences that are computed at once, at most; None: all.
        label_share: the share of the tokens that have a label (prediction_count).
    """

    def __init__(self, model, device, dtype, micro_batch=None, label_share=1.0):
        super().__init__()
        self.model = model
        self.device = device
        self.dtype = dtype
        self.micro_batch = micro_batch
        # with several processes, DistributedDataParallel, which exchanges gradients in backward()
        self.part_loss = share_gradients(Loss(model, device, dtype, label_share))

    def forward(self, *inputs):
        with autocast(self.device, self.dtype):
            return self.model(*inputs)

    def loss(self, input_ids, attention_mask, labels, count):
        # The loss of a part is a sum over its masked tokens, divided by those of the WHOLE batch:
        # so the parts add up to the mean. But of several processes torch takes the mean of the
        # gradients, not the sum. A count that is smaller by their number makes up for this.
        count = count / process_count()
        *parts, last = own_parts((input_ids, attention_mask, labels), self.micro_batch)

        # All parts but the last: their gradients are computed here, add up in the parameters, and
        # are not exchanged yet. (torch's no_sync() sets this attribute.)
        self.part_loss.require_backward_grad_sync = False
        loss = 0.0
        for part in parts:
            part_loss = self.part_loss(*part, count)
            part_loss.backward()
            loss += part_loss.detach()

        # The last one: its gradients are computed by the caller, in loss.backward().
        self.part_loss.require_backward_grad_sync = True
        return loss + self.part_loss(*last, count)


def own_parts(batch, micro_batch):
    """The sequences that this process computes, a list of parts of at most micro_batch of them.

    Example: 5 sequences, 2 processes, at most 2 sequences at a time.

        process 0     sequences 0 2, then sequence 4
        process 1     sequences 1 3

    If there are more processes than sequences, the last ones have a part of 0 sequences.

    batch: tensors of B sequences each. A part: as many tensors, of b sequences each.
    """
    size = micro_batch or len(batch[0])
    return list(zip(*(own_share(x).split(size) for x in batch), strict=True))


def prediction_count(labels, label_share):
    """M, the number of tokens whose logits are computed: at least those that have a label.

    M is only a shape. On a CPU the labels are counted. On a GPU, counting would make the CPU wait,
    so there M is an upper limit. For example, of 8,192 tokens each is masked with probability 0.15:
    1,229 in the mean, and M is 1,472. (One of 10^13 such batches has more masked tokens than M, and
    one of 50 million of the worst size, about 216 tokens: its last ones are missing in its loss.)

    labels: (b, N). label_share: the share of the tokens that have a label, in the mean.
    """
    if labels.device.type in SYNCHRONOUS:
        count = int((labels != IGNORED).sum())
    else:
        mean = label_share * labels.numel()
        deviation = math.sqrt(mean * (1 - label_share))
        count = mean + 6 * deviation
    return PREDICTIONS_MULTIPLE_OF * math.ceil(count / PREDICTIONS_MULTIPLE_OF)


# --- A training run: what pre-training and fine-tuning share --------------------------------------


class Trainer:
    """A model, its optimizer and the state of a training run.

    Args:
        model: on its device.
        optimizer: of its parameters (pretrain.make_optimizer).
        settings: everything that the result depends on, as plain values: at least seed and steps.
        device, dtype: where and in which precision it runs.
        micro_batch, label_share: as in Prepared.
        is_eager: True: no step is recorded (support/devices.py).
        is_compiled: whether layers and head are compiled (kernels.compile_model).
    """

    def __init__(
        self,
        model,
        optimizer,
        settings,
        device,
        dtype,
        micro_batch=None,
        label_share=1.0,
        is_eager=False,
        is_compiled=False,
    ):
        self.model = model.train()
        self.optimizer = optimizer
        self.settings = settings
        self.device = device
        self.dtype = dtype
        prepared = Prepared(model, device, dtype, micro_batch, label_share)
        self.recorded = RecordedStep(prepared, optimizer, device, is_eager)

        self.step = 0  # steps done, so the next step has this number
        self.tokens = 0  # real tokens trained on so far; a tensor until the next log()
        self.seconds = 0.0  # time of the steps so far, without evaluations and saving
        self.lr = 0.0  # the learning rate of the last step
        self.losses = []  # of the steps since the last line of the log: tensors on the device
        self.norms = []  # those of their gradients
        self.started = time.perf_counter()  # the steps from now on are timed, up to the next log()

        # What makes the steps. How they are started is no setting: another way continues the run.
        self.environment = {
            **made_by(device),
            "recorded": False,  # until log() has seen recorded steps
            "compiled": is_compiled,
        }

        # the lines of log.jsonl; the first one says what this run is and where it was started
        self.records = [{"settings": settings, "code": code_of(model), "made_by": self.environment}]

    def set_learning_rate(self, lr):
        """Use this rate from now on; a rate in a tensor stays in the same tensor."""
        self.lr = lr
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def advance(self, update, *batch):
        """Do update(model, optimizer, *batch), and count one step more.

        Args:
            update: a function of tensors. It returns the loss of this process, and the norm of all
                gradients together. It must not read a number: no .item(), no float(), no `if` on a
                tensor. The CPU would wait for the GPU there, and a recording cannot hold it.
            batch: tensors on the device; the first one holds token ids.
        """
        # dropout: different in each process, because each one computes other sequences
        seed = step_seed(self.settings["seed"], self.step, "dropout") + rank()
        loss, norm = self.recorded(update, *batch, seed=seed)

        # For the log. They stay on the device: to read them would be to wait for the step to end.
        self.losses.append(loss)
        self.norms.append(norm)
        self.tokens = self.tokens + (batch[0] != PAD).sum()
        self.step += 1

    def run(self, one_step, save, add_evaluation=None, evaluate_every=1, name=None):
        """The loop: repeat a training step to the last one, or until a signal to stop.

        Args:
            one_step: function that does one step, with self.advance at its end.
            save: function that writes all that is needed to continue. It is called after each
                evaluation, at a signal, and every SAVE_EVERY steps.
            add_evaluation: function that evaluates the model and adds the result to the log. It is
                called after every `evaluate_every` steps and after the last one; None: no
                evaluations.
            name: shown at the progress bar.
        """
        steps = self.settings["steps"]
        log_every = max(1, steps // 100)  # about 100 lines in the log

        # No step is left: the program was killed while it saved the last one.
        if self.step == steps:
            save()

        # the bar is shown on a terminal only (None), and by the first process only
        is_off = True if rank() > 0 else None
        bar = tqdm(total=steps, initial=self.step, desc=name, unit="step", disable=is_off)

        self.started = time.perf_counter()
        with StopSignals() as signals, bar:
            stopped = False
            while self.step < steps and not stopped:
                one_step()
                bar.update()

                # what is due after this step?
                stopped = is_set_anywhere(signals)
                is_last = self.step == steps
                evaluation_due = add_evaluation is not None and (
                    is_last or self.step % evaluate_every == 0
                )
                saving_due = evaluation_due or stopped or self.step % SAVE_EVERY == 0

                # The log comes first: it ends a run whose loss is not finite, before it is saved.
                if saving_due or is_last or self.step % log_every == 0:
                    loss = self.log()
                    bar.set_postfix_str(f"loss {loss:.3f}")
                if evaluation_due:
                    add_evaluation()
                if saving_due:
                    save()
                    self.started = time.perf_counter()  # the time since log() was not training
        self.recorded.forget()

        # A signal ends the program, also one that came during the last evaluation.
        if is_set_anywhere(signals):
            if self.step < steps:
                print(f"stopped at step {self.step:,}, saved; the same command continues")
            # as shells do: 128 + number of the signal, which perhaps another process got
            raise SystemExit(128 + (signals.number or signal.SIGTERM))

    def log(self):
        """Add a line about the steps since the last one, whose mean loss is returned.

        A run is saved only after this: it ends here if a loss is not a finite number.
        """
        # Reading the losses waits until the device has finished the steps. The mean over the
        # processes is the mean over the masked tokens of the batch (see Prepared).
        losses = sum_over_processes([float(loss) / process_count() for loss in self.losses])
        for step, loss in enumerate(losses, self.step - len(losses) + 1):
            check_finite(loss, step, self.settings)
        self.seconds += time.perf_counter() - self.started
        self.started = time.perf_counter()

        self.tokens = int(self.tokens)
        self.environment["recorded"] = self.recorded.is_on
        norms = [float(norm) for norm in self.norms]
        record = {
            "step": self.step,
            "loss": sum(losses) / len(losses),
            "gradient_norm": sum(norms) / len(norms),
            "lr": self.lr,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
        }
        self.records.append(record)
        self.losses = []
        self.norms = []
        return record["loss"]

    def save(self, path):
        """Write the checkpoint. Everything random is a function of (seed, step), so this is all."""
        state = {
            "step": self.step,
            "tokens": int(self.tokens),
            "seconds": self.seconds,
            "records": self.records,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict()["state"],  # its options: make_optimizer
        }
        save_checkpoint(path, state)

    def resume(self, path):
        """Continue from the checkpoint of this run, if there is one."""
        if not path.exists():
            return
        state = load_checkpoint(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state["optimizer"]})
        self.recorded.forget()  # recordings hold the tensors of the state before

        self.step = state["step"]
        self.tokens = state["tokens"]
        self.seconds = state["seconds"]
        self.records = state["records"]

        # what makes the steps that are left, if there are some
        if self.step < self.settings["steps"]:
            self.records.append({"step": self.step, "made_by": self.environment})


def is_set_anywhere(signals):
    """Whether one of the processes has got a signal to stop: then all of them stop."""
    return sum_over_processes([signals.number])[0] > 0


def check_finite(loss, step, settings):
    """UserError if a loss is nan or infinite: the training has failed."""
    if not math.isfinite(loss):
        raise UserError(
            f"the loss is {loss} at step {step}: a lower --lr may help, or there is a mistake in "
            f"the code of {settings.get('variant', 'the model')}"
        )


# --- A run and its folder -------------------------------------------------------------------------


def train(
    trainer, folder, one_step, held_out_scores, save_model, eval_every=None, before_steps=None
):
    """Train to the last step, unless the run is finished.

    Args:
        trainer: a Trainer, with the weights of a new run.
        folder: the one wanted. If another run has it, this one gets folder-2, -3, ...
            (support.runs.place_for).
        one_step: function that does one step, with trainer.advance at its end.
        held_out_scores: function that returns the held-out loss and accuracy.
        save_model: function that writes the model, for use, into a folder.
        eval_every: steps between evaluations; None: a tenth of all.
        before_steps: function that is called before the first step; None: none.
    Returns:
        (the run's folder, where the model and its log are saved; the last line of the log).
    """
    # one process chooses the folder
    place = from_first_process(lambda: place_for(folder, trainer.records[0]))

    settings = trainer.settings
    steps = settings["steps"]
    parameters = sum(x.numel() for x in trainer.model.parameters())
    print(
        f"  {parameters:,} parameters, {steps:,} steps of {settings['batch_size']} pairs, "
        f"lr {settings['lr']:g}, seed {settings['seed']}, folder {place}"
    )

    # With the lock, no other command works on this folder.
    with lock(place / f"process{rank()}.lock"):
        last = from_first_process(lambda: read_log(place)[-1])
        if last.get("step") == steps:
            (place / CHECKPOINT).unlink(missing_ok=True)  # killed before it was deleted
            print(f"  finished before: held-out loss {last['held_out_loss']:.3f}")
            return place, last
        try:
            trainer.resume(place / CHECKPOINT)
            if trainer.step:
                print(f"  continues at step {trainer.step:,}")
            if before_steps is not None:
                before_steps()
            trainer.run(
                one_step=one_step,
                save=lambda: save_all(trainer, save_model, place),
                add_evaluation=lambda: record_evaluation(trainer, *held_out_scores()),
                evaluate_every=eval_every or max(1, steps // 10),
            )
        finally:
            # nothing was saved: give the folder up, so that the next try gets the same name
            if rank() == 0:
                give_up(place)
    return place, trainer.records[-1]


def record_evaluation(trainer, loss, accuracy):
    """Print an evaluation, and add it to the log. The last line of a finished log is its result."""
    check_finite(loss, trainer.step, trainer.settings)
    trainer.records.append(
        {"step": trainer.step, "held_out_loss": loss, "held_out_accuracy": accuracy}
    )

    speed = trainer.tokens / trainer.seconds
    tqdm.write(
        f"step {trainer.step:,} of {trainer.settings['steps']:,}   held-out loss {loss:.3f}   "
        f"accuracy {100 * accuracy:.1f} %   {speed:,.0f} tokens/s"
    )


def save_all(trainer, save_model, folder):
    """Write the checkpoint, the model for use, and the log. Only the first process writes.

    The order matters if the program is killed in between. A run is finished when the last line of
    its log is that of the last step. Until then it continues from its checkpoint, which is
    therefore written first, and deleted after the log is complete. To train longer than a finished
    run, start another one with more --steps.
    """

    checkpoint = folder / CHECKPOINT

    def write():
        trainer.save(checkpoint)
        save_model(folder)
        write_records(folder / LOG, trainer.records)
        if trainer.step == trainer.settings["steps"]:
            checkpoint.unlink()

    from_first_process(write)


# --- What is said of a run ------------------------------------------------------------------------


def say_next(folder, args):
    """Print the next command: the model fills in a blank, or continues what stands before it."""
    text = "the cat that chased the dogs [MASK] tired"
    if set(args.corpus) != {"toy"}:
        text = "a sentence of your own with a [MASK]"
    if args.causal:
        text = text.partition(" [MASK]")[0]
    print(f'\nnext: python model.py {shlex.quote(str(folder))} "{text}"')
