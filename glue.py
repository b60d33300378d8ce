"""The GLUE protocol: fine-tune pre-trained models on nine tasks, print the paper's table.

    python glue.py finetune runs/*-seed? --data_dir toy --seeds 1      nine tasks
    python glue.py table runs/*-seed?                                  mean and standard error
    python glue.py table runs/*-seed? --compare composite none         difference, pair by pair
    python glue.py predict RUN                                         the test files, as a zip
    python glue.py check RUN/glue/submission.zip                       check the format of a zip
    python glue.py download all --data_dir glue_data                   GLUE's own files
    python glue.py data --data_dir glue_data                           count the rows of every file

RUN is a folder that pretrain.py wrote. `--data_dir toy` means the toy tasks: they are built in and
need no download. The word finetune may be left out: "glue.py RUN" means "glue.py finetune RUN".

Each finished pair of task and seed is one line of RUN/glue/results.jsonl. If you start the same
command again, it does only the pairs that are missing there. If you start it twice at the same
time, the two processes share the work. The processes that torchrun starts (docs/distributed.md)
also share it, each on its own GPU:

    torchrun --standalone --nproc_per_node 8 glue.py runs/*-seed? --data_dir toy

Columns, downloads, metrics, submissions, the table and the files of results are in
support/glue_*.py.

Which seeds? Ten fine-tuning seeds of one pre-trained model, as in [C] (below), say how much
fine-tuning varies. Whether one variant is better than another depends on the noise of pre-training,
too. So pre-train each variant with several seeds (pretrain.py --seed 0 1 2) and fine-tune each of
these models with one seed (--seeds 1). The standard error then includes both kinds of noise.

Batches are drawn at random. Each batch is as wide as its longest row (rounded up to a multiple of
8 tokens). Batches of rows of similar length would need less padding. But the length of a row often
predicts its label. Then most rows of such a batch would have the same label, and the model would
learn less from it, or nothing.

How it is called, from the command to a batch:

    finetune: main -> finetune_command -> fine_tune_jobs -> fine_tune_once -> fine_tune -> classify
                      all models          what is missing   one task, seed    all steps    one batch

[C] is Chang, Xu, Xu, Tu 2021. The settings come from its table 5, A.1, A.2 and its released code.
B rows per batch, N tokens per row.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import hashlib
import math
import shutil
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

import pretrain
from attention import VARIANTS
from data import PAD, SEP, BatchSource, batches_per_epoch, pad_pairs
from model import SIZES, BertForClassification, load_config, load_run
from pretrain import ADAM_BETAS, ADAM_EPS, CHECKPOINT, MAX_GRADIENT_NORM, Trainer, step_seed
from support import glue_format
from support.commands import (
    UserError,
    command_line,
    fraction,
    given_options,
    positive_int,
    refuse_double_dash,
    run_command,
)
from support.devices import autocast, choose_device, dtype_name, to_device
from support.distributed import let_others_begin, print_from_any, run_together
from support.files import remove_parts, sha256_of, write_text
from support.glue_cache import build_once
from support.glue_downloads import download_tasks
from support.glue_format import FORMATS, MissingFile, check_data, named_tasks, read_task
from support.glue_jobs import (
    POLL_SECONDS,
    Job,
    check_batch_size,
    missing_jobs,
    next_job,
    prepare_folder,
    waiting_line,
)
from support.glue_metrics import scores
from support.glue_results import (
    OtherSettings,
    best_path,
    best_record,
    check_settings,
    digests_of,
    encoder_path,
    folder_name,
    keep_run,
    load_weights_of,
    read_results,
    results_lock,
    results_path,
    score_on,
    settings_of_encoder,
)
from support.glue_submission import (
    CHOSEN_ON,
    SUBMISSION,
    check_submission,
    submission_text,
    write_zip,
)
from support.glue_table import (
    Run,
    aligned,
    comparison_lines,
    has_phenomena,
    has_toy_results,
    notes_of,
    phenomenon_cells,
    print_table,
    result_lines,
    task_cells,
)
from support.locks import lock
from support.progress import Progress
from support.provenance import check_code, code_digests, differing_files
from support.runs import (
    added_to_errors,
    each_run_once,
    first_record,
    load_weights,
    model_digest,
    pretraining_settings,
    say_if_unfinished,
)
from support.signals import StopSignals
from toy import glue as toy_glue
from toy import language as toy_language
from toy import pairs as toy_pairs

# --- The published settings: [C] table 5 ----------------------------------------------------------

SEEDS = (42, 97, 834, 622, 329, 75, 213, 101, 123, 57)  # ten runs per task; the released code's
LEARNING_RATES = {"tiny": 3e-4, "small": 3e-4, "base": 1e-4}  # peak; tiny is this project's own
WARMUP_SHARE = 0.1  # share of the steps with a rising learning rate; then it falls linearly to 0
WEIGHT_DECAY = 0.0
DROPOUT = 0.1
SEQ_LEN = 128


@dataclass(frozen=True)
class Task:
    """What is measured on a task, and how [C] fine-tune on it.

    Attributes:
        metrics: names in support/glue_metrics.py. A task's score is the mean of its metrics.
        epochs: how often the training rows are seen.
        released_steps: the number of steps in the released code, for comparison only. The number of
            steps that follows from `epochs` differs from it by at most 6 per cent.
        batch_size: rows per batch.
        lr: peak learning rate; None: LEARNING_RATES, by the size of the model.
        start: train this other task first, and start from its fine-tuned encoder; None: start from
            the pre-trained encoder.
    """

    metrics: tuple
    epochs: int
    released_steps: int
    batch_size: int = 32
    lr: float | None = None
    start: str | None = None


# fmt: off
TASKS = {
    "cola":  Task(("matthews",), epochs=3, released_steps=851),
    "sst-2": Task(("accuracy",), epochs=3, released_steps=6409),
    "mrpc":  Task(("accuracy", "f1"), epochs=3, released_steps=343, start="mnli"),
    "sts-b": Task(("pearson", "spearman"), epochs=10, released_steps=1836, start="mnli"),
    "qqp":   Task(("accuracy", "f1"), epochs=4, released_steps=11200, batch_size=128),
    "mnli":  Task(("accuracy",), epochs=4, released_steps=12121, batch_size=128),
    "qnli":  Task(("accuracy",), epochs=3, released_steps=9835, lr=1e-4),
    "rte":   Task(("accuracy",), epochs=10, released_steps=777, start="mnli"),
    "wnli":  Task(("accuracy",), epochs=5, released_steps=100),  # epochs: the released code's
}
# fmt: on

ENCODER_TASKS = {task.start for task in TASKS.values() if task.start}  # others start from these
# The files that decide what is computed: those of pre-training, and this one.
CODE = {**pretrain.CODE, **code_digests("glue.py")}

SAVE_EVERY = 1000  # steps between two checkpoints of an unfinished run
ENCODED_AT_ONCE = 10_000  # texts that the tokenizer gets together


# --- Batches of labelled sentences ----------------------------------------------------------------


class LabelledPairs(BatchSource):
    """One split of a task as token ids. A row is [CLS] a [SEP] or [CLS] a [SEP] b [SEP].

    Args:
        examples: the split's Examples (support/glue_format.py).
        tokenizer: the tokenizer of the pre-trained model.
        seq_len: longer rows are cut to this many tokens, the longer sentence first.
    """

    def __init__(self, examples, tokenizer, seq_len):
        self.examples = examples
        self.vocab_size = tokenizer.get_vocab_size()
        self.seq_len = seq_len

        # token ids; the special tokens are added when a batch is made
        token_ids_a = encode(examples.a, tokenizer)
        if examples.b is None:
            token_ids_b = [None] * len(token_ids_a)
        else:
            token_ids_b = encode(examples.b, tokenizer)
        self.pairs = list(zip(token_ids_a, token_ids_b, strict=True))

        # the length of each row: the sentences and two or three special tokens
        lengths = []
        for a, b in self.pairs:
            length = len(a) + 2
            if b is not None:
                length += len(b) + 1
            lengths.append(min(length, seq_len))
        self.lengths = np.array(lengths)  # (rows,)
        self.train = np.arange(len(lengths))  # (rows,): every row is used

    def rows(self, indices):
        """The rows with these indices, padded: (B, N) int64."""
        return pad_pairs([self.pairs[index] for index in indices], self.seq_len)


def encode(texts, tokenizer):
    """The token ids of each text, without special tokens: a list of int32 arrays."""
    # "[SEP]" in a sentence is text, not a special token
    tokenizer.encode_special_tokens = True

    # a part of them at a time, because the library's Encoding objects need much memory
    token_ids = []
    for start in range(0, len(texts), ENCODED_AT_ONCE):
        part = texts[start : start + ENCODED_AT_ONCE]
        for encoding in tokenizer.encode_batch(part, add_special_tokens=False):
            token_ids.append(np.array(encoding.ids, dtype=np.int32))

    # from now on, "[MASK]" in a text is the special token again
    tokenizer.encode_special_tokens = False
    return token_ids


# --- From token ids to answers --------------------------------------------------------------------


def classify(model, input_ids):
    """Logits of a batch of token ids (B, N): (B, classes), or (B, 1) if the labels are numbers.

    The tokens of the second sentence, and the [SEP] after it, have token type 1:

        input_ids          [CLS]  the  dog  [SEP]  it  ran  [SEP]  [PAD]
        is_sep               0     0    0     1     0   0     1      0
        separators so far    0     0    0     1     1   1     2      2
        so far > is_sep      0     0    0     0     1   1     1      1
        without padding      0     0    0     0     1   1     1      0
    """
    attention_mask = input_ids != PAD  # (B, N)
    is_sep = (input_ids == SEP).long()  # (B, N)
    separators_so_far = is_sep.cumsum(dim=1)  # (B, N)
    token_types = (separators_so_far > is_sep).long() * attention_mask  # (B, N)
    return model(input_ids, attention_mask, token_types)


@torch.no_grad()
def predict(model, data, device, dtype, batch_size=128):
    """Predict every row of a LabelledPairs.

    Returns:
        (rows,) float64: class ids, or numbers for STS-B.
    """
    model.eval()
    predictions = np.empty(len(data.pairs))

    # rows of similar length together, so that there is little padding
    order = np.argsort(data.lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        indices = order[start : start + batch_size]  # (B,)
        input_ids = to_device(torch.from_numpy(data.rows(indices)), device)  # (B, N)
        with autocast(device, dtype):
            logits = classify(model, input_ids).float()  # (B, classes)

        # the class with the highest score, or the number itself
        if data.examples.task.classes is None:
            answers = logits[:, 0]  # (B,)
        else:
            answers = logits.argmax(dim=-1)  # (B,)
        predictions[indices] = answers.cpu()

    model.train()
    return predictions


# --- Fine-tuning: one task, one seed --------------------------------------------------------------


def make_classifier(config, num_labels, encoder, settings):
    """A pre-trained encoder with a new classifier.

    The weights that `encoder` does not have are drawn from the seed: those of the last layer and,
    unless it has them, of the pooler.

    Args:
        config: the BertConfig of the pre-trained model.
        num_labels: how many scores it gives per row.
        encoder: the state_dict of a pre-trained model, or of a fine-tuned one with its pooler.
        settings: "seed" and "dropout" are read.
    """
    # draw all weights
    torch.manual_seed(step_seed(settings["seed"], 0, "weights"))
    model = BertForClassification(replace(config, dropout=settings["dropout"]), num_labels)

    # Load the weights of the encoder over the random ones, and those of the pooler, if there are
    # any. A masked-LM head in the state_dict is not used.
    load_weights(model, encoder, "the encoder to start from", strict=False)
    for name in model.state_dict():
        if name.startswith("bert.") and name not in encoder:
            raise UserError(
                f"the encoder to start from has no {name}: delete its file, and it is made again"
            )
    return model


def task_loss(logits, targets):
    """The loss of a batch: cross-entropy of classes, mean squared error of numbers.

    Args:
        logits: (B, classes), or (B, 1) if the labels are numbers.
        targets: (B,) class ids (integers), or numbers (floating point).
    """
    if targets.is_floating_point():
        return F.mse_loss(logits[:, 0], targets)
    return F.cross_entropy(logits, targets)


def fine_tune(trainer, train, dev, metrics, progress):
    """Train to the last step, then score the development splits. A signal stops it between steps.

    Args:
        trainer: a Trainer; its settings decide the batches, the dropout and the learning rates.
        train: LabelledPairs.
        dev: {split: LabelledPairs}.
        metrics: names of the metrics to score with.
        progress: a Progress; it is called after every step.

    Returns:
        The number of the signal that stopped it, or 0. trainer.result is set if it has finished.
    """
    model = trainer.model
    device = trainer.device
    dtype = trainer.dtype
    seed = trainer.settings["seed"]
    steps = trainer.settings["steps"]
    batch_size = trainer.settings["batch_size"]
    log_every = max(1, steps // 100)
    labels = torch.tensor(train.examples.labels)  # (rows,)

    with StopSignals() as stop:
        started = time.perf_counter()
        while trainer.step < steps:
            # the batch of this step: a function of (seed, step)
            indices = train.batch_indices(seed, trainer.step, batch_size)  # (B,)
            input_ids = to_device(torch.from_numpy(train.rows(indices)), device)  # (B, N)
            targets = to_device(labels[torch.from_numpy(indices)], device)  # (B,)
            trainer.tokens += int(train.lengths[indices].sum())

            # loss; its dropout is a function of (seed, step), too
            torch.manual_seed(step_seed(seed, trainer.step, "dropout"))
            with autocast(device, dtype):
                logits = classify(model, input_ids).float()  # (B, classes)
            loss = task_loss(logits, targets)

            # update: backward pass, clipped gradients, optimizer
            trainer.update(loss)
            progress.advance(trainer)

            # Log and save every so many steps, and log after the last step. After a signal, save.
            is_last = trainer.step == steps
            is_stopped = stop.number != 0
            log_is_due = is_last or trainer.step % log_every == 0
            save_is_due = is_stopped or trainer.step % SAVE_EVERY == 0
            if not (log_is_due or save_is_due):
                continue

            # The clock measures training only. check_finite reads the losses, so it waits until the
            # device has finished the steps.
            trainer.check_finite()
            trainer.seconds += time.perf_counter() - started

            # log, then a checkpoint, or after the last step the scores
            if log_is_due:
                trainer.log()
            if is_last:
                trainer.result = evaluate(model, dev, metrics, device, dtype)
            elif save_is_due:
                trainer.save()

            started = time.perf_counter()
            if is_stopped:
                break
    return stop.number


def evaluate(model, dev, metrics, device, dtype):
    """Score a model on the development splits of a task.

    Returns a dictionary:
        score: the mean of the scores of all splits.
        scores: {split: {metric: ..., "score": ...}}.
        constant_prediction: whether all rows of one of the splits got the same answer.
        partial: whether rows of a split are missing.
        by_phenomenon: {phenomenon: accuracy}, for CoLA only. In GLUE's own files the sentences have
            a source in place of a phenomenon.
    """
    result = {"score": 0.0, "scores": {}, "constant_prediction": False, "partial": False}
    for split, data in dev.items():
        examples = data.examples
        predictions = predict(model, data, device, dtype)  # (rows,)

        # the metrics
        result["scores"][split] = scores(predictions, examples, metrics)
        result["score"] += result["scores"][split]["score"] / len(dev)

        # What a reader of the score must know: the answers are all equal (for STS-B, numbers within
        # 0.001 of each other, the precision of a submission), or rows are missing.
        if np.ptp(predictions) < 1e-3:
            result["constant_prediction"] = True
        if examples.partial:
            result["partial"] = True
        if examples.phenomena is not None:
            result["by_phenomenon"] = accuracy_by_phenomenon(predictions, examples)
    return result


def accuracy_by_phenomenon(predictions, examples):
    """{phenomenon: accuracy on the rows that test it, times 100}."""
    phenomena = np.array(examples.phenomena)  # (rows,)
    right = predictions == np.array(examples.labels)  # (rows,)
    accuracies = {}
    for phenomenon in np.unique(phenomena):
        share = right[phenomena == phenomenon].mean()
        accuracies[str(phenomenon)] = 100 * float(share)
    return accuracies


# --- The protocol: all tasks and seeds of a run ---------------------------------------------------


@dataclass(frozen=True)
class TaskText:
    """The sentences and labels that a task is trained and scored on.

    Attributes:
        splits: {split: Examples (support/glue_format.py)}, "train" and the development splits.
        digest: the same string for the same sentences and labels.
        characters: how long the training sentences are together.
    """

    splits: dict
    digest: str
    characters: int

    @property
    def training_rows(self):
        """The number of rows to train on."""
        return len(self.splits["train"].a)


def make_task_text(splits):
    """The TaskText of these splits, with its digest and the length of its training sentences."""
    content = []
    for split, examples in splits.items():
        content.append((split, examples.a, examples.b, examples.labels))
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:12]

    train = splits["train"]
    characters = sum(len(text) for text in train.a + (train.b or []))
    return TaskText(splits, digest, characters)


def size_of(config):
    """The name of a model's size in SIZES; "small" if it has none of these shapes."""
    for size, shape in SIZES.items():
        if all(getattr(config, name) == value for name, value in shape.items()):
            return size
    return "small"


def published_settings(name, config):
    """The settings with which [C] fine-tune a model on a task: {setting: value}."""
    task = TASKS[name]
    return {
        "lr": task.lr or LEARNING_RATES[size_of(config)],
        "epochs": task.epochs,
        "batch_size": task.batch_size,
        "dropout": DROPOUT,
        "weight_decay": WEIGHT_DECAY,
        "warmup_share": WARMUP_SHARE,
        "seq_len": min(SEQ_LEN, config.max_length),
        "start": task.start,
    }


def settings_for(name, seed, text, config, args, dtype):
    """All settings that decide a run of a task, except the pre-trained model.

    Args:
        name: the task.
        seed: of batches, dropout and the classifier's weights.
        text: the task's TaskText.
        config: the BertConfig of the model.
        args: the command line of `finetune`.
        dtype: the precision.
    Raises:
        UserError: --batch_size is above the training rows of the task.
    """
    # --lr, --epochs and so on replace the published settings, but only for the tasks in --task. If
    # MNLI is trained only because RTE starts from it, these options do not change its settings.
    published = published_settings(name, config)
    settings = dict(published)
    if name in named_tasks(args.task):
        names = ("lr", "epochs", "batch_size", "dropout", "weight_decay", "warmup_share")
        settings |= given_options(args, names)
        check_batch_size(name, args.batch_size, text.training_rows)

    # these options are for all tasks
    settings["seq_len"] = min(args.seq_len, config.max_length)
    settings["start"] = start_of(name, args)

    # the table marks results whose settings are not the published ones
    changed = [key for key, value in published.items() if settings[key] != value]
    if changed:
        settings["changed"] = changed

    # what follows from them
    batches = batches_per_epoch(text.training_rows, settings["batch_size"])
    settings["steps"] = settings["epochs"] * batches
    settings["warmup_steps"] = math.ceil(settings["warmup_share"] * settings["steps"])

    # which run it is
    settings["task"] = name
    settings["seed"] = seed
    settings["data"] = text.digest
    settings["batches"] = "random"  # in earlier versions of this program: sorted by length
    if is_toy(args.data_dir):
        settings["toy"] = True
    settings["dtype"] = dtype_name(dtype)
    return settings


def plan_jobs(folder, tasks, args, dtype):
    """The jobs of one pre-trained model that the command line asks for, finished ones included.

    Args:
        folder: the run, as pretrain.py wrote it.
        tasks: {task: TaskText}; a task that others start from comes before them.
        args: the command line of `finetune`.
        dtype: the precision.

    Returns:
        A list of Job.

    Raises:
        UserError: the folder of the results has results with other settings, or --batch_size is
            above the training rows of a task.
    """
    config = load_config(folder)
    digests = digests_of(folder)
    out = folder / args.name
    records = read_results(out)

    for (name, seed), record in records.items():
        what = f"the result of {name}, seed {seed}, in {out}"
        advice = f"delete {results_path(out)}, or choose another --name"
        check_code(what, record.get("code", {}), CODE, advice)

    jobs = []
    for seed in chosen_seeds(args.seeds):
        for name, text in tasks.items():
            settings = settings_for(name, seed, text, config, args, dtype) | digests

            # a task that only gives an encoder to others may have been trained in another way
            if name not in named_tasks(args.task):
                settings = settings_of_encoder(records, settings)
            check_settings(out, records, settings)
            cost = settings["epochs"] * text.characters
            jobs.append(Job(out, settings, cost, gives_encoder=name in ENCODER_TASKS))
    return jobs


def fine_tune_jobs(jobs, tasks, device, progress):
    """Do all jobs that are missing, together with other processes that do the same.

    Args:
        jobs: list of Job, of one or several pre-trained models.
        tasks: {task: TaskText}.
        device: where.
        progress: a Progress.

    Returns:
        The number of the signal that stopped it, or 0.
    """
    run = None
    is_waiting = False
    while True:
        # what is missing now; other processes may have done something
        missing = missing_jobs(jobs)
        progress.update(missing)
        if not missing:
            return 0

        with next_job(missing) as job:
            # other processes are doing what is left; if one is killed, its job is done here
            if job is None:
                if not is_waiting:
                    tqdm.write(waiting_line(missing))
                is_waiting = True
                progress.wait(POLL_SECONDS)
                continue
            is_waiting = False

            # load the pre-trained model, unless the job before this one had the same
            if run is None or run.folder != job.out.parent:
                run = PretrainedRun(job, tasks)
            stopped = fine_tune_once(job, run, device, progress)
            if stopped:
                return stopped


class PretrainedRun:
    """A pre-trained model in memory, and the tasks as token ids of its tokenizer.

    Args:
        job: the first Job that needs it.
        tasks: {task: TaskText}.
    """

    def __init__(self, job, tasks):
        self.folder = job.out.parent
        self.model, self.tokenizer = load_run(self.folder)
        self.tasks = tasks
        self.data = {}  # {task: {split: LabelledPairs}}, of the tasks that were needed

        # results name the model that they come from, so it must still be the same
        for name, digest in digests_of(self.folder).items():
            if job.settings[name] != digest:
                raise UserError(
                    f"{self.folder} got another model since this command was started: "
                    "start it again"
                )
        variant = self.model.config.variant
        tqdm.write(f"\n{self.folder}: {variant}, {VARIANTS[variant].equation}")

    def task_data(self, job):
        """The rows of a job as token ids: {split: LabelledPairs}."""
        if job.task not in self.data:
            seq_len = job.settings["seq_len"]
            encoded = {}
            for split, examples in self.tasks[job.task].splits.items():
                encoded[split] = LabelledPairs(examples, self.tokenizer, seq_len)
            self.data[job.task] = encoded
        return self.data[job.task]

    def encoder(self, job):
        """The state_dict from which a job starts."""
        start = job.settings["start"]
        if start is None:
            return self.model.state_dict()
        path = encoder_path(job.out, start, job.seed)
        with results_lock(job.out):
            record = read_results(job.out)[start, job.seed]
            return load_weights_of(path, record, "delete it, and the same command makes it again")


def chosen_seeds(numbers):
    """The seeds that --seeds means: one small number is a count of the published seeds."""
    if len(numbers) == 1 and numbers[0] <= len(SEEDS):
        return SEEDS[: numbers[0]]
    return tuple(dict.fromkeys(numbers))  # each one once


def start_of(name, args):
    """The task from whose encoder a task starts; None for the pre-trained encoder."""
    if args.intermediate:
        return TASKS[name].start
    return None


def fine_tune_once(job, run, device, progress):
    """Do one job: one task and one seed.

    Args:
        job: the Job.
        run: its PretrainedRun.
        device: where.
        progress: a Progress.

    Returns:
        The number of the signal that stopped it, or 0.
    """
    # The splits. They are kept for the next seed, so "train" is taken out of a copy.
    dev = dict(run.task_data(job))
    train = dev.pop("train")

    # the model, from the checkpoint if there is one
    num_labels = label_count(train.examples.task)
    model = make_classifier(run.model.config, num_labels, run.encoder(job), job.settings)
    dtype = getattr(torch, job.settings["dtype"])
    trainer = Trainer(model, job.settings, job.running / CHECKPOINT, device, dtype, CODE)
    trainer.resume(folder_option="--name")

    # train
    progress.begin(job, trainer.step)
    metrics = TASKS[job.task].metrics
    stopped = fine_tune(trainer, train, dev, metrics, progress)

    # keep the result; then the checkpoint is no longer needed
    if trainer.result is not None:
        if train.examples.partial:
            trainer.result["partial"] = True
        keep_result(job, trainer)
        shutil.rmtree(job.running, ignore_errors=True)
    return stopped


def label_count(task_format):
    """How many scores a classifier gives per row: one per class, or one number."""
    if task_format.classes is None:
        return 1
    return len(task_format.classes)


def keep_result(job, trainer):
    """Write a finished run's weights and its line of results.jsonl; print its score."""
    record = {
        "task": job.task,
        "seed": job.seed,
        "result": trainer.result,
        "settings": job.settings,
        "code": CODE,
        "made_by": trainer.records[0]["made_by"],
        "seconds": round(trainer.seconds, 3),
    }
    try:
        keep_run(job.out, record, trainer.model.state_dict(), job.gives_encoder)
    except OtherSettings:
        # another process has written results with other settings under this name, so no command
        # can continue this run
        shutil.rmtree(job.running, ignore_errors=True)
        raise
    print_result(trainer)


def print_result(trainer):
    """One line about a finished run."""
    settings = trainer.settings
    result = trainer.result
    speed = trainer.tokens / trainer.seconds
    line = (
        f"{settings['task']:<6} seed {settings['seed']:<4} {result['score']:5.1f}   "
        f"{settings['steps']:,} steps of {settings['batch_size']} rows, lr {settings['lr']:g}, "
        f"{speed:,.0f} tokens/s, took {tqdm.format_interval(trainer.seconds)}"
    )
    if result["partial"]:
        line += "   PARTIAL"
    if result["constant_prediction"]:
        line += "   the same answer for all rows"
    print_from_any(line)


# --- The test files -------------------------------------------------------------------------------


def predict_tests(folder, formats, data_dir, args, device):
    """Write the eleven files of a submission, each from the best model of its task, and zip them.

    The models are the fine-tuned ones, one per seed. The best one is that with the best development
    score. MNLI's two test files each have a best model of their own, as in the released code of
    [C].

    Args:
        folder: the run, as pretrain.py wrote it.
        formats: {task: TaskFormat}.
        data_dir: the folder of the task's files.
        args: the command line of `predict`.
        device: where the models run.
    """
    # the pre-trained model, the fine-tuned ones and all files must be there before any work
    pretrained, tokenizer = load_run(folder)
    out = folder / args.name
    command = finetune_command_line(folder, args)
    check_fine_tuned_models(folder, out, read_results(out), is_toy(args.data_dir), command)
    examples_of_file = {}
    for file, (name, test_split) in SUBMISSION.items():
        examples_of_file[file] = read_task(formats[name], data_dir, test_split, args.allow_partial)

    submission = out / "submission"
    submission.mkdir(exist_ok=True)
    with lock(out / "submission.lock", str(submission), advice="wait until it has finished"):
        remove_parts(submission)
        for file, (name, test_split) in SUBMISSION.items():
            # the best model of the task; another process may be adding models
            dev_split = CHOSEN_ON[test_split]
            with results_lock(out):
                best = best_record(read_results(out), name, dev_split)
                path = best_path(out, name, dev_split)
                weights = load_weights_of(path, best, remake_hint(out, name, command))
            model = BertForClassification(pretrained.config, label_count(formats[name])).to(device)
            load_weights(model, weights, path)

            # its predictions, with the row length and the precision of its training
            data = LabelledPairs(examples_of_file[file], tokenizer, best["settings"]["seq_len"])
            dtype = getattr(torch, best["settings"]["dtype"])
            predictions = predict(model, data, device, dtype)
            write_text(submission / file, submission_text(predictions, formats[name]))
            print(
                f"{file}: {len(predictions):,} predictions of seed {best['seed']}, "
                f"development score {score_on(best, dev_split):.1f}"
            )

        with results_lock(out):
            write_zip(out / "submission.zip", submission)
    check_submission(out / "submission.zip", formats)


def check_fine_tuned_models(folder, out, records, toy, command):
    """UserError if fine-tuned models are missing, or do not fit `folder` or the test files.

    Args:
        folder: the run, as pretrain.py wrote it.
        out, records: the folder of its results, and the results in it.
        toy: whether the test files are those of the toy tasks, and not of GLUE.
        command: the one that makes the missing models, without the task.
    """
    digests = digests_of(folder)
    for name in TASKS:
        # there is a result
        settings = [record["settings"] for (task, _), record in records.items() if task == name]
        if not settings:
            raise UserError(f"{out} has no run of {name}: {command} --task {name} makes one")

        # they started from the model that the folder has now, and saw token ids of its tokenizer
        for key, file in (("model", "model.pt"), ("tokenizer", "tokenizer.json")):
            if any(each.get(key) != digests[key] for each in settings):
                raise UserError(
                    f"{out}: its runs of {name} started from another {file} than {folder} has now, "
                    "or an earlier version of this program made them: choose another --name"
                )

        # they were fine-tuned on the tasks whose test files are asked for
        if any(each.get("toy", False) != toy for each in settings):
            toy_tasks = "the toy tasks (--data_dir toy)"
            trained_on = toy_tasks
            asked_for = "GLUE"
            if toy:
                trained_on = "GLUE"
                asked_for = toy_tasks
            raise UserError(
                f"{out}: its runs of {name} were fine-tuned on {trained_on}, and these are the "
                f"test files of {asked_for}: choose another --data_dir or another --name"
            )

        # the weights of its best models are there
        for split in FORMATS[name].dev_splits:
            path = best_path(out, name, split)
            if not path.exists():
                raise UserError(f"{path} is missing: {remake_hint(out, name, command)}")


def remake_hint(out, name, command):
    """How the weights of a task's best model are made again, for messages."""
    return (
        f"delete the lines of {name} in {results_path(out)}, "
        f"then {command} --task {name} makes it again"
    )


def finetune_command_line(folder, args):
    """The command that fine-tunes a run, for messages: with the same data, --name and so on."""
    words = ["python", "glue.py", "finetune", str(folder), "--data_dir", str(args.data_dir)]
    if is_toy(args.data_dir):
        words += ["--cache_dir", str(args.cache_dir)]
    words += ["--name", args.name]
    if args.allow_partial:
        words.append("--allow_partial")
    return command_line(words)


# --- The tasks' files -----------------------------------------------------------------------------


def is_toy(data_dir):
    """Whether --data_dir means the built-in toy tasks."""
    return str(data_dir) == "toy"


def formats_of(data_dir):
    """{task: TaskFormat}. The toy tasks have GLUE's formats with other row counts."""
    if not is_toy(data_dir):
        return FORMATS
    formats = {}
    for name, task_format in FORMATS.items():
        rows = toy_glue.GLUE_ROWS[task_format.folder]
        formats[name] = replace(task_format, rows=rows)
    return formats


def prepare_data_folder(args):
    """The folder of the tasks' files. The toy tasks are in the cache, written now if missing."""
    if not is_toy(args.data_dir):
        return args.data_dir

    # its name changes with the programs that write it: the language, the tasks, the columns
    digest = hashlib.sha256()
    for module in (toy_language, toy_pairs, toy_glue, glue_format):
        digest.update(sha256_of(module.__file__).encode())
    name = digest.hexdigest()[:8]
    folder = args.cache_dir / f"toy-glue-{name}"
    build_once(folder, toy_glue.write_tasks)
    return folder


def read_tasks(formats, data_dir, args):
    """The training and development splits of the tasks that the command line asks for.

    Returns:
        {task: TaskText}; tasks that others start from come first.
    """
    # the tasks, after those they start from
    wanted = named_tasks(args.task)
    names = []
    for name in wanted:
        if start_of(name, args) is not None:
            names.append(start_of(name, args))
    names += wanted

    tasks = {}
    for name in dict.fromkeys(names):  # each one once
        if name in wanted:
            splits = read_splits(formats[name], data_dir, args.allow_partial)
        else:
            # if files of a task that the user did not name are missing, say why they are needed
            why = (
                f"other tasks start from {name} (--no-intermediate: they start from the "
                "pre-trained model)"
            )
            with added_to_errors(why, MissingFile):
                splits = read_splits(formats[name], data_dir, args.allow_partial)
        tasks[name] = make_task_text(splits)
    return tasks


def read_splits(task_format, data_dir, allow_partial):
    """{split: its rows} of the training and development splits of a task."""
    splits = {}
    for split in ["train", *task_format.dev_splits]:
        splits[split] = read_task(task_format, data_dir, split, allow_partial)
    return splits


# --- The command line -----------------------------------------------------------------------------


def main(arguments=None):
    """Run one of the commands. Returns the exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    args = parse_arguments(arguments)
    return args.function(args)


def finetune_command(args):
    """Fine-tune every run on every task and seed that is missing."""
    # The tasks, the runs and the files are checked before any work. The results of named_tasks and
    # load_run are not used here: they are called for their errors.
    named_tasks(args.task)
    folders = each_run_once(args.runs)
    device, dtype, description = choose_device(args.device, args.dtype)
    for folder in folders:
        load_run(folder)
    formats = formats_of(args.data_dir)
    data_dir = prepare_data_folder(args)
    print(description)
    tasks = read_tasks(formats, data_dir, args)

    # what is to be done, for all runs before the first one begins
    jobs = []
    for folder in folders:
        say_if_unfinished(folder)
        jobs += plan_jobs(folder, tasks, args, dtype)

    # make the folders of the results, and remove what killed processes may have left there
    for folder in folders:
        prepare_folder(folder / args.name, ENCODER_TASKS)
    progress = Progress(missing_jobs(jobs), len(jobs))
    seeds = " ".join(map(str, chosen_seeds(args.seeds)))
    tqdm.write(
        f"{progress.total} jobs (one task and one seed of one run), {progress.done} of them done "
        f"before; seeds {seeds}; results go to RUN/{results_path(args.name)}"
    )

    # under torchrun: the first process has checked everything, so the others may begin
    let_others_begin()

    with progress.bar:
        stopped = fine_tune_jobs(jobs, tasks, device, progress)
    if stopped:
        name = signal.Signals(stopped).name
        print(f"stopped by {name}; the same command continues from there")
        return 128 + stopped
    return 0


def table_command(args):
    """Print the results of the runs."""
    runs = [read_run(folder, args.name) for folder in each_run_once(args.runs)]
    if args.published and has_toy_results(runs):
        raise UserError(
            "there are results of the toy tasks among these runs; "
            "the published rows are results of GLUE"
        )

    # two variants, or all of them
    if args.compare is not None:
        lines = comparison_lines(runs, *args.compare)
        runs = [run for run in runs if run.variant in args.compare]  # the notes are about these
    elif args.by_phenomenon:
        if not has_phenomena(runs):
            raise UserError("--by_phenomenon is about cola, which has no results in these runs")
        lines = result_lines(runs, phenomenon_cells)
    else:
        lines = result_lines(runs, task_cells, args.published)
    print_table(lines, notes_of(lines, runs) + notes_of_code(runs), args.format)
    return 0


def notes_of_code(runs):
    """A line if the runs of a table, or their results, were computed by different code."""
    codes = [record.get("code", {}) for run in runs for record in run.records]
    for run in runs:
        log = first_record(run.label) or {}
        codes.append(log.get("code", {}))

    files = differing_files(codes)
    if not files:
        return []
    return [f"not all of these results come from the same code: {', '.join(files)} changed"]


def read_run(folder, name):
    """A run and its results, for the table. UserError if it has none."""
    say_if_unfinished(folder)
    # without a log only the variant is known
    settings = {**pretraining_settings(folder), "variant": load_config(folder).variant}
    records = read_results(folder / name)
    if not records:
        hint = command_line(["python", "glue.py", "finetune", folder, "--name", name])
        raise UserError(f"{folder / name} has no results: {hint} makes them")

    # the results must be of the model that is there now, not of one with fewer steps
    if (folder / "model.pt").is_file():
        digest = model_digest(folder)
        for record in records.values():
            if record["settings"].get("model", digest) != digest:
                raise UserError(
                    f"the results in {folder / name} are of an earlier model.pt: "
                    "fine-tune the run again with another --name"
                )
    return Run(str(folder), settings, list(records.values()))


def predict_command(args):
    """Write the test files of a run."""
    device, _, description = choose_device(args.device)
    print(description)
    predict_tests(args.run, formats_of(args.data_dir), prepare_data_folder(args), args, device)
    return 0


def check_command(args):
    """Check a submission."""
    check_submission(args.zip, formats_of(args.data_dir))
    return 0


def download_command(args):
    """Download the files of the tasks."""
    if is_toy(args.data_dir):
        raise UserError("the toy tasks need no download: give another --data_dir")
    download_tasks(named_tasks(args.tasks), args.data_dir)
    return 0


def data_command(args):
    """Count the rows of every file."""
    check_data(formats_of(args.data_dir), prepare_data_folder(args))
    return 0


COMMANDS = {
    "finetune": (finetune_command, "fine-tune runs on tasks and seeds; do only what is missing"),
    "table": (table_command, "print the results of variants: mean and standard error over seeds"),
    "predict": (predict_command, "write the test files of a run's best models, as a zip"),
    "check": (check_command, "check whether a zip is a GLUE submission"),
    "download": (download_command, "download GLUE's files; size and SHA-256 are checked"),
    "data": (data_command, "count the rows of every file"),
}


def parse_arguments(arguments):
    """The command line's values. An error of the user ends the program with one line."""
    parser = argparse.ArgumentParser(
        prog="glue.py",
        description="The GLUE protocol: fine-tune pre-trained models on nine tasks.",
        epilog="Without a COMMAND, glue.py RUN ... means glue.py finetune RUN ...\n\n"
        + published_settings_text(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    # one parser per command; each one has only the options that it uses
    commands = parser.add_subparsers(metavar="COMMAND")
    parsers = {}
    for name, (function, text) in COMMANDS.items():
        parsers[name] = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parsers[name].set_defaults(function=function)
    add_finetune_options(parsers["finetune"])
    add_table_options(parsers["table"])
    add_predict_options(parsers["predict"])
    add_check_options(parsers["check"])
    add_download_options(parsers["download"])
    add_data_options(parsers["data"])

    # without the name of a command, "finetune" is meant
    if not arguments:
        names = ", ".join(COMMANDS)
        parser.error(f"nothing to do: name a RUN to fine-tune, or one of the commands {names}")
    if arguments[0] not in (*COMMANDS, "-h", "--help"):
        arguments = ["finetune", *arguments]

    refuse_double_dash(parser, arguments)
    return parser.parse_args(arguments)


def add_finetune_options(parser):
    parser.epilog = published_settings_text()
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder that pretrain.py wrote")

    # on what
    add_data_options(parser)
    add_partial_option(parser)
    add(
        "--task",
        nargs="+",
        default=["all"],
        metavar="TASK",
        help=f"one or more of {', '.join(TASKS)}; or all (default: all)",
    )
    add(
        "--seeds",
        nargs="+",
        type=positive_int,
        default=[len(SEEDS)],
        metavar="N",
        help=f"one number up to {len(SEEDS)}: the first N of the published seeds; otherwise: the "
        f"seeds themselves (default: all {len(SEEDS)} published seeds). To compare variants, "
        "pre-train each of them with several seeds and fine-tune these with --seeds 1: then the "
        "error includes the noise of pre-training, too",
    )
    add(
        "--intermediate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="start RTE, STS-B and MRPC from the MNLI encoder of the same seed (default: yes)",
    )

    # how
    published = "default: the published value, see below"
    add("--lr", type=positive_number, help=f"peak learning rate ({published})")
    add("--epochs", type=positive_int, help=published)
    add("--batch_size", type=positive_int, help=f"rows per step ({published})")
    add("--dropout", type=fraction, help=published)
    add("--weight_decay", type=fraction, help=published)
    add("--warmup_share", type=fraction, help=f"share of the steps ({published})")
    add(
        "--seq_len",
        type=row_length,
        default=SEQ_LEN,
        help="tokens per row, at most; never more than the model takes (default: %(default)s)",
    )

    # where
    add_name_option(parser)
    add_device_option(parser)
    add(
        "--dtype",
        choices=("auto", "fp32", "bf16"),
        default="auto",
        help="of matrix products (default: %(default)s, bf16 if the device is fast at it)",
    )


def add_table_options(parser):
    parser.epilog = (
        "Runs that differ in the pre-training seed alone share a row, and its error is over these\n"
        "seeds. With a single pre-trained model the error is over its fine-tuning seeds."
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder that pretrain.py wrote")
    add_name_option(parser)

    # what the table shows; the paper has no rows by phenomenon
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--published",
        action="store_true",
        help="also print the paper's development scores of the same variants, small and base",
    )
    group.add_argument(
        "--by_phenomenon",
        action="store_true",
        help="in place of the tasks, print the accuracy on each phenomenon of the toy CoLA "
        "(of GLUE's own CoLA: on each source of its sentences)",
    )
    group.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="print the difference of two variants, A - B: paired by pre-training seed, with "
        "standard error and p-value",
    )

    # its form
    add(
        "--format",
        choices=("text", "markdown", "csv"),
        default="text",
        help="of the table (default: %(default)s)",
    )


def add_predict_options(parser):
    parser.add_argument("run", type=Path, metavar="RUN", help="folder that pretrain.py wrote")
    add_data_options(parser)
    add_partial_option(parser)
    add_name_option(parser)
    add_device_option(parser)


def add_check_options(parser):
    parser.add_argument("zip", type=Path, metavar="ZIP", help="the submission")
    parser.add_argument(
        "--data_dir",
        type=Path,
        default=Path("glue_data"),
        help="toy for predictions of the toy tasks, which have fewer rows (default: GLUE's tasks)",
    )


def add_download_options(parser):
    names = ", ".join(TASKS)
    parser.add_argument("tasks", nargs="+", metavar="TASK", help=f"{names}; or all")
    parser.add_argument(
        "--data_dir",
        type=Path,
        default=Path("glue_data"),
        help="where the files go (default: %(default)s)",
    )


def add_data_options(parser):
    add = parser.add_argument
    add(
        "--data_dir",
        type=Path,
        default=Path("glue_data"),
        help="folder of GLUE's files, or toy for the built-in tasks (default: %(default)s)",
    )
    add(
        "--cache_dir",
        type=Path,
        default=Path("cache"),
        help="where the toy tasks are written (default: %(default)s)",
    )


def add_partial_option(parser):
    parser.add_argument(
        "--allow_partial",
        action="store_true",
        help="read files with missing rows, and mark their scores",
    )


def add_name_option(parser):
    parser.add_argument(
        "--name",
        type=folder_name,
        default="glue",
        help="the results are in RUN/NAME (default: %(default)s)",
    )


def add_device_option(parser):
    parser.add_argument(
        "--device",
        default="auto",
        help="auto, cpu, cuda, cuda:1, mps (default: %(default)s)",
    )


def positive_number(text):
    """argparse type: a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number above 0")
    return number


def row_length(text):
    """argparse type: tokens per row, at least 8."""
    length = positive_int(text)
    if length < 8:
        raise argparse.ArgumentTypeError(f"must be at least 8, not {text}")
    return length


def published_settings_text():
    """The published settings as text, for --help."""
    text = [
        "published settings (Chang et al. 2021, table 5), used unless an option changes them:",
        "",
    ]

    # what differs between the tasks
    lines = [["task", "metrics", "epochs", "batch", "lr (tiny, small, base)", "starts from"]]
    for name, task in TASKS.items():
        metrics = ", ".join(task.metrics)
        rates = ", ".join(str(task.lr or rate) for rate in LEARNING_RATES.values())
        start = task.start or ""
        lines.append([name, metrics, str(task.epochs), str(task.batch_size), rates, start])
    for line in aligned(lines):
        text.append("  " + "  ".join(line).rstrip())

    # what is the same for all tasks
    seeds = " ".join(str(seed) for seed in SEEDS)
    text += [
        "",
        f"  all tasks: random batches; at most {SEQ_LEN} tokens per row; AdamW with betas",
        f"  {ADAM_BETAS[0]} and {ADAM_BETAS[1]}, eps {ADAM_EPS}, weight decay {WEIGHT_DECAY};",
        f"  gradient norm at most {MAX_GRADIENT_NORM}; the learning rate rises over",
        f"  {WARMUP_SHARE:.0%} of the steps, then falls linearly to 0; dropout {DROPOUT};",
        f"  seeds {seeds}",
        "",
        "  The rates of tiny are this project's own. A model of another shape gets those of small:",
        "  give a larger one a smaller --lr. The paper does not list WNLI: its epochs are those of",
        "  the released code.",
    ]
    return "\n".join(text)


if __name__ == "__main__":
    run_command("glue.py", run_together, main)
