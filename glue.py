"""The GLUE protocol: fine-tune pre-trained models on the nine tasks, print the paper's table, write the submission.

    python glue.py runs/composite --data_dir toy --seeds 3      nine tasks, three seeds; the toy tasks need no download
    python glue.py --table runs/none runs/composite             mean and standard error over the seeds, a row a run
    python glue.py --download all --data_dir glue_data          GLUE's own files: size, SHA-256, unpacked
    python glue.py RUN --predict                                the test files of the best runs, zipped
    python glue.py --check RUN/glue/submission.zip              whether any zip is a submission

A finished task and seed is one line of RUN/glue/results.jsonl; the same command does only what is missing there. The
tasks and their files are in tasks.py; settings: [C] = Chang et al. 2021, table 5, A.1, A.2.
"""

import argparse
import csv
import hashlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

import toy
from attention import VARIANTS
from data import PAD, SEP, Corpus, file_sha256, pad_pairs
from kernels import autocast, choose_device
from model import (
    SIZES, BertForClassification, load_config, load_file, load_run, load_weights, save_file, write_text, write_whole,
)
from pretrain import Run, mean_and_error, run_to_exit, whole_number
from tasks import (
    DROPOUT, LEARNING_RATES, SEEDS, SEQ_LEN, SUBMISSION, TASKS, WARMUP_SHARE, WEIGHT_DECAY, check_data,
    check_submission, download_tasks, find_tasks, read_task, scores,
)


# --- Fine-tuning ------------------------------------------------------------------------------------------------------
class Encoded(Corpus):
    """The token ids of one split's Examples: a Corpus of labelled pairs, batched as pre-training batches its own."""

    def __init__(self, examples, tokenizer, seq_len):
        def encode(texts):  # a part at a time, because the library's Encodings are large
            return [np.array(row.ids, dtype=np.int32) for at in range(0, len(texts), 10_000)
                    for row in tokenizer.encode_batch(texts[at:at + 10_000], add_special_tokens=False)]

        tokenizer.encode_special_tokens = True  # "[SEP]" in a sentence is text
        a, b = encode(examples.a), encode(examples.b or ())
        self.pairs = list(zip(a, b or [None] * len(a)))
        self.examples, self.seq_len, self.vocab_size = examples, seq_len, tokenizer.get_vocab_size()
        self.lengths = np.array([min(seq_len, len(a) + 2 + (0 if b is None else len(b) + 1)) for a, b in self.pairs])
        self.train, self.epoch = np.arange(len(a)), (None, None)

    def rows(self, numbers):
        return pad_pairs([self.pairs[number] for number in numbers], self.seq_len)  # (B, N)


def classify(model, input_ids):
    """Scores (B, labels) of input_ids (B, N). The second sentence and the [SEP] behind it are of token type 1."""
    separators, padding_mask = (input_ids == SEP).long(), input_ids != PAD
    return model(input_ids, padding_mask, (separators.cumsum(dim=1) > separators).long() * padding_mask)


@torch.no_grad()
def predict(model, data, device, dtype, batch_size=128):
    """A class id, or STS-B's number, for each row of an Encoded: (n,)."""
    model.eval()
    order, predictions = np.argsort(data.lengths, kind="stable"), np.empty(len(data.pairs))
    for numbers in np.split(order, range(batch_size, len(order), batch_size)):
        with autocast(device, dtype):
            logits = classify(model, torch.from_numpy(data.rows(numbers)).to(device)).float()  # (B, labels)
        predictions[numbers] = (logits.argmax(dim=-1) if data.examples.task.classes else logits[:, 0]).cpu()
    model.train()
    return predictions


class FineTuning(Run):
    """A Run on labelled sentences: a classifier on the encoder `start` (a state_dict, of a pre-trained model or of a
    fine-tuned one), its loss, and at the end the scores on `dev` ({split: Encoded}).
    """

    elsewhere = "--name"

    def __init__(self, folder, settings, train, dev, config, start, device, dtype):
        self.dev, self.config, self.start, self.task = dev, config, start, train.examples.task
        self.name = f"{self.task.folder}, seed {settings['seed']}"
        super().__init__(folder, settings, train, device, dtype)
        self.labels = torch.tensor(train.examples.labels, device=device)  # (n,) class ids, or numbers

    def make_model(self):
        labels = len(self.task.classes or "1")  # one output where it is a number
        model = BertForClassification(replace(self.config, dropout=self.settings["dropout"]), labels)
        load_weights(model, self.start, "the encoder to start from", strict=False)  # and the pooler, where there is one
        if any(name.startswith("bert.") and name not in self.start for name in model.state_dict()):
            raise ValueError("the encoder to start from lacks weights; delete its file, and it is made anew")
        return model

    def batch_loss(self):
        """Cross-entropy, or for numbers the mean squared error."""
        numbers = self.corpus.numbers(self.settings["seed"], self.step, self.settings["batch_size"])  # (B,)
        self.interval["tokens"] += int(self.corpus.lengths[numbers].sum())
        targets = self.labels[torch.from_numpy(numbers).to(self.device)]  # (B,)
        with autocast(self.device, self.dtype):
            logits = classify(self.model, torch.from_numpy(self.corpus.rows(numbers)).to(self.device)).float()
        return F.cross_entropy(logits, targets) if self.task.classes else F.mse_loss(logits[:, 0], targets)

    def evaluate(self):
        """The result: scores of each development split and their mean; accuracy on each kind of sentence, where the
        rows say of which kind they are; whether one class, or one number, was the answer to everything.
        """
        self.result = dict(score=0.0, scores={}, collapsed=False, partial=self.corpus.examples.partial)
        for split, data in self.dev.items():
            predictions, examples = predict(self.model, data, self.device, self.dtype), data.examples
            self.result["scores"][split] = scores(predictions, examples)
            self.result["score"] += self.result["scores"][split]["score"] / len(self.dev)
            self.result["collapsed"] |= bool(np.ptp(predictions) < 1e-3)
            self.result["partial"] |= examples.partial
            if examples.kinds:
                kinds, right = np.array(examples.kinds), predictions == np.array(examples.labels)  # (n,) both
                self.result["by_kind"] = {str(kind): 100 * float(right[kinds == kind].mean())
                                          for kind in np.unique(kinds)}

    def save(self):
        if self.result is None:  # else it goes to results.jsonl
            self.folder.mkdir(parents=True, exist_ok=True)
            self.save_state(model=self.model.state_dict(), optimizer=self.optimizer.state_dict())
            self.saved_step = self.step


# --- The protocol: tasks, seeds, what is done already -----------------------------------------------------------------
def task_settings(name, seed, data, args, config, model, dtype):
    """What fixes a task's and seed's run, beside the encoder it starts from: published, or from `args`."""
    task, train = TASKS[name], data["train"]
    size = next((size for size, shape in SIZES.items() if shape.items() <= asdict(config).items()), "small")
    settings = dict(lr=task.lr or LEARNING_RATES[size], epochs=task.epochs, batch_size=task.batch_size, dropout=DROPOUT,
                    weight_decay=WEIGHT_DECAY, warmup_share=WARMUP_SHARE)
    settings |= {option: getattr(args, option) for option in settings if getattr(args, option, None) is not None}
    settings["steps"] = settings["epochs"] * max(1, len(train.pairs) // settings["batch_size"])
    settings["warmup_steps"] = math.ceil(settings["warmup_share"] * settings["steps"])
    texts = repr([(split, part.examples.a, part.examples.b, part.examples.labels) for split, part in data.items()])
    digest = hashlib.sha256(texts.encode()).hexdigest()[:12]
    return settings | dict(task=name, seed=seed, seq_len=train.seq_len, start=task.start, model=model, data=digest,
                           dtype=str(dtype).removeprefix("torch."))


def code_version():
    """What made a result: a digest of the modules of this project that take part in it."""
    here = Path(__file__).parent
    names = ("kernels", "attention", "model", "data", "tasks", "pretrain", "glue")
    return hashlib.sha256(b"".join((here / f"{name}.py").read_bytes() for name in names)).hexdigest()[:12]


def read_results(folder):
    """{(task, seed): record} of the results.jsonl in a folder, in its order. ValueError: damaged."""
    path = Path(folder, "results.jsonl")
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        for record in records:
            splits = [split for split in TASKS[record["task"]].rows if split.startswith("dev")]
            values = [record["result"]["scores"][split]["score"] for split in splits] + [record["result"]["score"]]
            values += record["result"].get("by_kind", {}).values()
            if not all(math.isfinite(value) for value in values) or not (
                    {type(record["result"][mark]) for mark in ("collapsed", "partial")} == {bool}
                    and isinstance(record["settings"], dict) and isinstance(record["seed"], int)):
                raise ValueError("a result lacks its scores")
        return {(record["task"], record["seed"]): record for record in records}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): mend or delete the line") from None


def fine_tune_once(out, data, settings, encoder, config, device, dtype):
    """One task and seed, unless `out`/results.jsonl has it. Returns the number of the signal that stopped it, or 0."""
    name, seed = settings["task"], settings["seed"]
    records, weights, running = read_results(out), out / f"{name}-seed{seed}.pt", out / f"running-{name}-seed{seed}"
    starts_others = any(task.start == name for task in TASKS.values())
    for (task, other), done in records.items():  # one table is of one kind of runs, whatever the seed
        differing = [f"{key} {done['settings'].get(key)} there, {value} here" for key, value in settings.items()
                     if key != "seed" and done["settings"].get(key) != value]
        if task == name and differing:
            raise ValueError(f"{out} has {name}, seed {other}, of another run ({'; '.join(differing)}); "
                             "choose another --name")
    if (name, seed) in records and (weights.exists() or not starts_others):
        shutil.rmtree(running, ignore_errors=True)  # a kill may have come between the result and this
        return 0
    judged = {split: part for split, part in data.items() if split != "train"}
    run = FineTuning(running, settings, data["train"], judged, config, encoder, device, dtype)
    run.resume()
    stopped = run.train(save_every=1000, eval_every=settings["steps"])
    if run.result is None:
        return stopped
    records, seconds = read_results(out), run.totals["seconds"]  # another process may have added some meanwhile
    if settings["start"]:  # what it starts from counts, too
        run.result["partial"] |= records[settings["start"], seed]["result"]["partial"]
    print(f"{name:<6} seed {seed:<4} {run.result['score']:5.1f}   {settings['steps']:,} steps of "
          f"{settings['batch_size']}, lr {settings['lr']:g}, {run.totals['tokens'] / seconds:,.0f} tokens/s, took "
          + tqdm.format_interval(seconds)
          + "   PARTIAL" * run.result["partial"] + "   one answer to everything" * run.result["collapsed"])
    state = run.model.state_dict()
    if starts_others:
        save_file({key: value for key, value in state.items() if not key.startswith("classifier")}, weights)
    others = [record["result"]["score"] for (task, other), record in records.items() if task == name and other != seed]
    if run.result["score"] > max(others, default=-math.inf):
        save_file(state, out / f"best-{name}.pt")
    records = read_results(out)  # again: saving took its time
    records[name, seed] = dict(task=name, seed=seed, result=run.result, settings=settings, code=code_version(),
                               seconds=round(seconds, 3))
    write_text("".join(json.dumps(record) + "\n" for record in records.values()), out / "results.jsonl")
    shutil.rmtree(running, ignore_errors=True)
    return stopped


def fine_tune(folder, examples, args, device, dtype):
    """Every task and seed asked for, from the run in `folder`. examples: {task: {split: Examples}}, in order."""
    pretrained, tokenizer = load_run(folder)
    config, out, model = pretrained.config, folder / args.name, file_sha256(folder / "model.pt")[:12]
    encoded, wanted, none = {}, find_tasks(args.task), argparse.Namespace()
    out.mkdir(exist_ok=True)
    write_text("", out / "writable")  # before any work
    (out / "writable").unlink(missing_ok=True)  # another process may have done so
    print(f"\n{folder}: {config.variant}, {VARIANTS[config.variant].equation}; results go to {out / 'results.jsonl'}")
    for seed, name in [(seed, name) for seed in args.seeds for name in examples]:
        if name not in encoded:
            encoded[name] = {split: Encoded(part, tokenizer, min(args.seq_len, config.max_length))
                             for split, part in examples[name].items()}
        start = TASKS[name].start if args.intermediate else None
        settings = task_settings(name, seed, encoded[name], args if name in wanted else none, config, model, dtype)
        before = read_results(out).get((name, seed), {"settings": {}})["settings"]
        known = all(before.get(key) == settings[key] for key in ("model", "data"))
        if name not in wanted and known and (out / f"{name}-seed{seed}.pt").exists():
            continue  # an encoder to start from, whatever the settings that made it
        encoder = load_file(out / f"{start}-seed{seed}.pt") if start else pretrained.state_dict()
        settings |= dict(start=start) | (dict(toy=True) if args.toy else {})
        stopped = fine_tune_once(out, encoded[name], settings, encoder, config, device, dtype)
        if stopped:
            return stopped
    return 0


# --- Tables -----------------------------------------------------------------------------------------------------------
COLUMNS = {"CoLA": ("cola", "dev"), "MNLI-m": ("mnli", "dev_matched"), "MNLI-mm": ("mnli", "dev_mismatched"),
           "MRPC": ("mrpc", "dev"), "QNLI": ("qnli", "dev"), "QQP": ("qqp", "dev"), "RTE": ("rte", "dev"),
           "SST": ("sst-2", "dev"), "STS": ("sts-b", "dev")}
# BERT-small, [C] table 6
PUBLISHED = {row.split()[0]: row.split()[1:] for row in """\
none                 7.0+-2.4 73.0 73.0 80.9 80.1 84.4 61.0 80.9 83.7 69.3+-0.3
absolute            33.5+-0.4 75.8 76.1 83.3 78.2 84.9 64.4 85.0 82.4 73.7+-0.1
fixed               38.3+-0.8 77.2 77.2 84.0 82.1 86.2 64.7 86.9 85.2 75.7+-0.2
dynamic             38.4+-0.7 77.9 77.6 85.6 82.8 87.2 65.1 86.8 85.6 76.3+-0.1
composite           40.9+-0.7 77.9 78.0 86.2 83.0 87.3 66.1 86.9 85.9 76.9+-0.1
composite-key       40.0+-0.6 77.9 77.7 86.3 83.3 87.4 66.3 86.5 86.1 76.8+-0.1
depthwise           38.0+-0.6 76.9 76.8 82.8 81.9 86.1 64.2 87.2 84.4 75.4+-0.1
composite-depthwise 40.4+-0.7 77.2 77.4 85.0 83.3 87.3 63.5 87.1 86.1 76.4+-0.1
conv-qk             33.4+-0.4 76.3 76.4 83.3 81.3 85.1 63.0 86.1 84.5 74.4+-0.1
conv-v              34.7+-0.9 76.2 76.6 83.4 82.4 86.6 65.2 87.2 85.0 75.2+-0.1
conv-qkv            31.9+-0.7 76.3 76.3 83.7 80.4 84.6 66.1 86.4 84.4 74.4+-0.1
composite-conv-qk   39.3+-0.8 77.4 77.2 85.4 81.9 86.7 64.0 87.5 85.7 76.1+-0.1
composite-conv-v    37.9+-0.7 77.8 78.1 85.6 83.6 87.5 65.1 87.5 86.4 76.6+-0.1
composite-conv-qkv  38.2+-1.0 77.4 77.3 85.3 82.8 87.0 64.9 86.9 85.9 76.2+-0.2
convbert            33.3+-1.5 76.7 76.8 83.9 77.1 85.1 64.6 86.3 84.0 74.2+-0.3""".splitlines()}


def table_row(records, by_phenomenon):
    """{column: (scores by seed {seed: score}, marks)} of one run's results; "GLUE" is the mean of all columns, for
    each seed that has them all.
    """
    row = {}
    for (name, seed), record in records.items():
        result, marks = record["result"], "~" * record["result"]["partial"] + "*" * record["result"]["collapsed"]
        values = {column: result["scores"][split]["score"] for column, (task, split) in COLUMNS.items() if task == name}
        if by_phenomenon:
            values = result.get("by_kind", {})
        for column, value in values.items():
            scores_by_seed, marked = row.setdefault(column, ({}, set()))
            scores_by_seed[seed] = value
            marked.update(marks)
    if not by_phenomenon:
        row = {column: row[column] for column in COLUMNS if column in row}
        whole = [seed for seed in row.get("CoLA", ({},))[0] if all(seed in row.get(name, ({},))[0] for name in COLUMNS)]
        if whole:
            row["GLUE"] = ({seed: float(np.mean([row[name][0][seed] for name in COLUMNS])) for seed in whole},
                           set().union(*(marks for _, marks in row.values())))
    return row


def print_table(folders, args):
    """[C] table 6 of the runs in `folders`: mean and standard error over seeds, published rows where asked for."""
    rows, toys = {}, False
    for folder in folders:
        variant, records = load_config(folder).variant, read_results(folder / args.name)
        if not records:
            raise ValueError(f"{folder / args.name} has no results: python glue.py {folder} makes them")
        toys |= any(record["settings"].get("toy") for record in records.values())
        if toys and args.published:
            raise ValueError(f"{folder / args.name} has results of the toy tasks: the paper's rows are of GLUE")
        row = table_row(records, args.by_phenomenon)
        runs = sorted({len(by_seed) for by_seed, _ in row.values()})
        cells = {column: mean_and_error(list(by_seed.values()), 1).replace(" ", "") + "".join(sorted(marks))
                 for column, (by_seed, marks) in row.items()}
        rows[str(folder)] = dict(variant=variant, runs="-".join(map(str, runs[::max(1, len(runs) - 1)]))) | cells
    if args.published:
        names = [variant for variant in dict.fromkeys(row["variant"] for row in rows.values()) if variant in PUBLISHED]
        rows |= {f"[C] {name}": dict(zip(("variant", "runs", *COLUMNS, "GLUE"), (name, "10", *PUBLISHED[name])))
                 for name in names}
    columns = dict.fromkeys(column for row in rows.values() for column in row)
    table = [["run", *columns]] + [[label, *(row.get(column, "") for column in columns)] for label, row in rows.items()]
    widths = [max(map(len, column)) for column in zip(*table)]
    if args.format == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows(table)
        return
    if args.format == "markdown":
        table.insert(1, ["-" * width for width in widths])
    edge, between = ("| ", " | ") if args.format == "markdown" else ("", "  ")
    for line in table:
        print((edge + between.join(map(str.ljust, line, widths)) + edge[::-1]).rstrip())
    said = "".join(mark for row in rows.values() for cell in row.values() for mark in "~*" if mark in cell)
    notes = {"of the toy tasks: no GLUE scores": toys, "~ on part of the rows published: not a GLUE score": "~" in said,
             "* with runs that gave one answer to everything": "*" in said}
    notes = [note for note, holds in notes.items() if holds]
    if notes and args.format == "markdown":
        print()  # the end of the table
    for note in notes:
        print(note)


# --- Submission -------------------------------------------------------------------------------------------------------
def predict_tests(folder, args, tasks, device):
    """Write the eleven files of a submission, from the best development run of each task, and zip them."""
    pretrained, tokenizer = load_run(folder)
    out, records = folder / args.name, read_results(folder / args.name)
    model_of_run = file_sha256(folder / "model.pt")[:12]
    for name in TASKS:
        settings = [record["settings"] for record in records.values() if record["task"] == name]
        if not settings:
            raise ValueError(f"{out} has no run of {name}: python glue.py {folder} --task {name} makes one")
        if settings[0].get("model") != model_of_run:
            raise ValueError(f"{out}: its runs of {name} started from another model.pt than {folder} has now")
        if not (out / f"best-{name}.pt").exists():
            raise ValueError(f"{out / f'best-{name}.pt'} is missing: delete the lines of {name} in results.jsonl, and "
                             "the command that made them makes it anew")
    examples = {file: read_task(tasks[name], args.data_dir, split, args.allow_partial)
                for file, (name, split) in SUBMISSION.items()}
    (out / "submission").mkdir(exist_ok=True)
    for file, (name, split) in SUBMISSION.items():
        task = tasks[name]
        model = BertForClassification(pretrained.config, len(task.classes or "1")).to(device)
        load_weights(model, load_file(out / f"best-{name}.pt"), out / f"best-{name}.pt")
        of_task = [record for record in records.values() if record["task"] == name]
        best = max(of_task, key=lambda record: record["result"]["score"])
        data = Encoded(examples[file], tokenizer, best["settings"]["seq_len"])
        predictions = predict(model, data, device, getattr(torch, best["settings"]["dtype"]))
        words = [task.classes[int(value)] if task.classes else f"{min(max(value, 0), 5):.3f}" for value in predictions]
        write_text("index\tprediction\n" + "".join(f"{index}\t{word}\n" for index, word in enumerate(words)),
                   out / "submission" / f"{file}.tsv")
        print(f"{file}.tsv: {len(words):,} predictions of seed {best['seed']}, development score "
              f"{best['result']['score']:.1f}")

    def zip_files(part):
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in SUBMISSION:
                archive.write(out / "submission" / f"{file}.tsv", f"{file}.tsv")
    write_whole(out / "submission.zip", zip_files)
    check_submission(out / "submission.zip", tasks)


# --- Command line -----------------------------------------------------------------------------------------------------
def prepare_data(args):
    """(tasks, data_dir): GLUE's own, or for --data_dir toy the built-in ones, written to the cache on first use."""
    if not args.toy:
        return TASKS, args.data_dir
    folder = args.cache_dir / f"toy-glue-{file_sha256(toy.__file__)[:8]}"  # another program, another folder
    if not folder.exists():
        args.cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=args.cache_dir, ignore_cleanup_errors=True) as temporary:
            toy.write_glue(Path(temporary, "glue"))
            if not folder.exists():  # another process may have been faster
                os.replace(Path(temporary, "glue"), folder)
    return {name: replace(task, rows=toy.GLUE_ROWS[task.folder]) for name, task in TASKS.items()}, folder


def read_all(args, tasks):
    """{task: {split: Examples}}, train and development, of the tasks asked for; those they start from come first."""
    names = find_tasks(args.task)
    starts = [TASKS[name].start for name in names if TASKS[name].start and args.intermediate]
    splits = {name: [split for split in tasks[name].rows if split == "train" or split.startswith("dev")]
              for name in dict.fromkeys(starts + names)}
    return {name: {split: read_task(tasks[name], args.data_dir, split, args.allow_partial) for split in splits[name]}
            for name in splits}


def benchmark(folder, args, tasks, device, dtype, steps=40):
    """Print real tokens per second of fine-tuning and of pre-training: the run's model, one task's batches, in turn."""
    pretrained, tokenizer = load_run(folder)
    task, config = tasks["mnli" if args.task == "all" else find_tasks(args.task)[0]], pretrained.config
    examples = read_task(task, args.data_dir, "train", args.allow_partial)
    train = Encoded(examples, tokenizer, min(args.seq_len, config.max_length))
    settings = dict(seed=0, batch_size=args.batch_size or task.batch_size, steps=10 ** 6, warmup_steps=1, lr=1e-4,
                    dropout=config.dropout)

    class PreTraining(Run):
        def make_model(self):
            return pretrained

    runs = {"pre-training": PreTraining(folder, settings, train, device, dtype),
            "fine-tuning": FineTuning(folder, settings, train, {}, config, pretrained.state_dict(), device, dtype)}
    times = {name: [] for name in runs}
    for step in range(steps + 5):
        for name, run in runs.items():
            start = time.perf_counter()
            run.train_step()
            run.collect(0.0)  # waits for the device
            times[name].append(time.perf_counter() - start)
            if step == 4:  # the first ones allocate and compile
                times[name].clear()
                run.interval["tokens"] = 0
    for name, run in runs.items():
        ratio = np.median(np.divide(times[name], times["pre-training"]))
        print(f"{name:<13} {run.interval['tokens'] / sum(times[name]):>9,.0f} tokens/s   "
              f"{1000 * np.median(times[name]):7.1f} ms a step of {settings['batch_size']}   "
              f"{ratio:.2f} of pre-training's time for the same batch")


def fraction(text):
    """argparse type: a number from 0 to below 1."""
    if not 0 <= float(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie in [0, 1)")
    return float(text)


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("runs", nargs="*", type=Path, metavar="RUN", help="folders that pretrain.py wrote")
    add("--data_dir", type=Path, default=Path("glue_data"),
        help="folder of GLUE's files, or toy (default: %(default)s)")
    add("--task", default="all", help=f"{', '.join(TASKS)}; or all (default)")
    add("--seeds", nargs="+", type=int, default=[len(SEEDS)], help="the first so many of the released ten, or a list "
        f"of seeds: one number up to {len(SEEDS)} is a count (default: all ten)")
    add("--intermediate", action=argparse.BooleanOptionalAction, default=True,
        help="start RTE, STS-B and MRPC from the MNLI encoder of the same seed")
    for name, kind in dict(lr=float, epochs=whole_number, batch_size=whole_number, dropout=fraction,
                           weight_decay=fraction, warmup_share=fraction).items():
        add(f"--{name}", type=kind, help="default: the published one, by task and size")
    add("--seq_len", type=whole_number, default=SEQ_LEN, help="tokens, at most the model's (default: %(default)s)")
    add("--allow_partial", action="store_true", help="read files with rows missing, and mark their scores")
    add("--name", default="glue", help="results go to RUN/NAME (default: %(default)s)")
    add("--table", action="store_true", help="print the results of the runs, mean and standard error over seeds")
    add("--published", action="store_true", help="with --table: the paper's rows of the same variants below")
    add("--by_phenomenon", action="store_true", help="with --table: accuracy on each kind of CoLA sentence")
    add("--format", choices=("text", "markdown", "csv"), default="text", help="of the table")
    add("--predict", action="store_true", help="write RUN/NAME/submission.zip from the best run of each task")
    add("--check", type=Path, metavar="ZIP", help="check a submission")
    add("--benchmark", action="store_true", help="speed of fine-tuning beside that of pre-training")
    add("--download", metavar="TASK", help="fetch a task's files, or all")
    add("--check_data", action="store_true", help="print the rows found in every file, beside the published number")
    add("--cache_dir", type=Path, default=Path("cache"), help="of the toy tasks (default: %(default)s)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    add("--dtype", choices=("auto", "fp32", "bf16"), default="auto")
    args = parser.parse_args(argv)
    args.toy = str(args.data_dir) == "toy"
    if not (args.runs or args.check or args.download or args.check_data):
        parser.error("nothing to do: name a RUN (pretrain.py makes one), or give --check, --download or --check_data")
    if len(args.seeds) == 1 and 1 <= args.seeds[0] <= len(SEEDS):
        args.seeds = SEEDS[:args.seeds[0]]
    args.seeds = tuple(dict.fromkeys(args.seeds))
    if min(args.seeds) < 1:
        parser.error("--seeds: a count or a list of whole numbers above 0")
    if (args.published or args.by_phenomenon or args.format != "text") and not args.table:
        parser.error("--published, --by_phenomenon and --format go with --table")
    if sum(map(bool, (args.table, args.predict, args.benchmark, args.check, args.check_data))) > 1:
        parser.error("one at a time: --table, --predict, --benchmark, --check, --check_data")
    if (args.table or args.predict or args.benchmark) and not args.runs:
        parser.error("--table, --predict and --benchmark want a RUN")
    if args.published and args.by_phenomenon:
        parser.error("the paper has no rows by phenomenon: --published and --by_phenomenon do not go together")
    if args.lr is not None and not 0 < args.lr < math.inf:
        parser.error(f"--lr must be a number above 0, not {args.lr}")
    if args.seq_len < 8:
        parser.error(f"--seq_len must be at least 8, not {args.seq_len}")
    return args


def run_all(args):
    """What the command line asks for. Returns the exit code."""
    find_tasks(args.task)
    if args.download:
        if args.toy:
            raise ValueError("the toy tasks need no download; --download wants another --data_dir")
        download_tasks(find_tasks(args.download), args.data_dir)
    if args.table:
        print_table(args.runs, args)
        return 0
    for folder in args.runs:  # before any work
        load_run(folder)
    tasks, args.data_dir = prepare_data(args)
    if args.check_data:
        check_data(tasks, args.data_dir)
    if args.check:
        check_submission(args.check, tasks)
    if not args.runs:
        return 0
    device, dtype, reason = choose_device(args.device, args.dtype)
    print(reason)
    examples = None if args.predict or args.benchmark else read_all(args, tasks)
    for folder in args.runs:
        if args.benchmark:
            benchmark(folder, args, tasks, device, dtype)
        elif args.predict:
            predict_tests(folder, args, tasks, device)
        else:
            stopped = fine_tune(folder, examples, args, device, dtype)
            if stopped:
                print(f"stopped by {signal.Signals(stopped).name}; the same command goes on from there")
                return 128 + stopped
    return 0


def main(argv=None):
    run_to_exit("glue.py", run_all, parse_arguments(argv))


if __name__ == "__main__":
    main()
