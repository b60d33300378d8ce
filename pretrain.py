"""Masked-LM pre-training, for any variant on any corpus.

    python pretrain.py --variant composite                                  a tiny model on the built-in toy language
    python pretrain.py --variant none composite --seed 0 1 2                six runs, one after another, and their table
    python pretrain.py --variant composite --size small --corpus my_texts/  the paper's BERT-small on your own text

A run is fixed by its settings: batch, masks and dropout of step s are functions of (seed, s) alone, so a run that was
stopped and started again equals one that was not, to the bit on CPU. Its folder holds config.json, tokenizer.json,
model.pt (weights alone), train_state.pt (what resuming needs) and log.jsonl. Settings: [C] tables 4 and 5.
"""

import argparse
import functools
import json
import math
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

from attention import VARIANTS
from benchmark import LENGTH_VARIANTS, benchmark
from data import MASKED_SHARE, PAD, mask_tokens, prepare_corpus
from kernels import WINDOWS, autocast, choose_device, keep_freed_memory
from model import (
    SIZES, BertConfig, BertForMaskedLM, compile_encoder, load_file, load_weights, parameter_count, save_file, save_run,
    write_text,
)

# Steps, batch, length and learning rate where the command line gives none. small and base: [C] table 4.
RECIPES = {
    "tiny": dict(steps=1500, batch_size=32, seq_len=128, lr=1e-3, warmup_steps=150, dropout=0.0),
    "small": dict(steps=125_000, batch_size=128, seq_len=128, lr=3e-4, warmup_steps=10_000, dropout=0.1),
    "base": dict(steps=1_000_000, batch_size=256, seq_len=128, lr=1e-4, warmup_steps=10_000, dropout=0.1),
}
TOY_RECIPE = dict(steps=2000, batch_size=64, seq_len=64, lr=2e-3, warmup_steps=200, dropout=0.0)  # tiny, toy language


class TrainingFailed(Exception):
    """The loss left the numbers; the message names the step."""


# --- What pre-training and fine-tuning share --------------------------------------------------------------------------


def make_optimizer(model, weight_decay):
    """AdamW (betas 0.9, 0.999, eps 1e-6); biases and LayerNorm weights do not decay."""
    decayed, kept = [], []
    for name, parameter in model.named_parameters():
        (kept if name.endswith("bias") or "norm" in name else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-6, fused=kept[0].device.type in ("cpu", "cuda"))


def learning_rate(step, steps, warmup_steps, peak):
    """Linear from 0 to `peak` over the warm-up, then linear to 0 at `steps`; `step` counts from 0."""
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    return peak * (steps - step) / max(1, steps - warmup_steps)


def step_seed(seed, step, stream):
    """The seed of one step's randomness; streams ("masks", "dropout") of a step are independent of each other."""
    sequence = np.random.SeedSequence([seed, step, *stream.encode()])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def mask_capacity(tokens):
    """Room for the masked ones of so many tokens: their mean number and six standard deviations, in steps of 64."""
    return 64 * math.ceil((MASKED_SHARE * tokens + 6 * math.sqrt(MASKED_SHARE * (1 - MASKED_SHARE) * tokens)) / 64)


class Interrupts:
    """Turns SIGINT and SIGTERM into a flag, read between two steps: `with Interrupts() as stop: ... if stop.signal`."""

    def __enter__(self):
        self.signal = 0
        self.before = {number: signal.signal(number, self.note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def note(self, number, frame):
        self.signal = number
        signal.signal(number, self.before[number])  # a second one acts at once

    def __exit__(self, *error):
        for number, handler in self.before.items():
            signal.signal(number, handler)


# --- One run ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def evaluate(model, corpus, batch_size, device, dtype):
    """(loss in nats, accuracy) over the masked tokens of the held-out pairs: the same tokens for every run."""
    model.eval()
    loss, correct, count = 0.0, 0, 0
    for input_ids, labels in corpus.held_out_batches(batch_size):
        input_ids, labels = input_ids.to(device), labels.to(device)
        with autocast(device, dtype):
            logits, targets = model.masked_logits(input_ids, labels, input_ids != PAD)  # (M, V), (M,)
        loss += F.cross_entropy(logits.float(), targets, reduction="sum").item()
        correct += (logits.argmax(dim=-1) == targets).sum().item()
        count += len(targets)
    model.train()
    return loss / count, correct / count


RESULT = ("loss", "accuracy", "parameters", "tokens_per_second", "seconds")  # what a finished run leaves for the table


class Run:
    """One model on its way through its steps, and the folder from which it can be taken up again.

    `settings` fix the run (see `run_settings`); where and how it runs, device and checkpoints, does not belong to them.
    Fine-tuning is a Run with another model, loss and evaluation (glue.py).
    """

    name, elsewhere = None, "--out_dir"  # on the progress bar; the option that gives another folder

    def __init__(self, folder, settings, corpus, device, dtype):
        self.folder, self.settings, self.corpus = Path(folder), settings, corpus
        self.device, self.dtype = device, dtype
        torch.manual_seed(step_seed(settings["seed"], 0, "weights"))
        self.model = self.make_model().to(device).train()
        self.optimizer = make_optimizer(self.model, settings.get("weight_decay", 0.01))
        self.generator = torch.Generator(device)
        self.step, self.saved_step, self.result, self.compiled = 0, None, None, False
        self.records = [{"settings": settings}]  # the lines of log.jsonl
        self.interval = dict(loss=0.0, steps=0, tokens=0, seconds=0.0)  # since the last of them
        self.totals = dict(tokens=0, seconds=0.0)
        self.pending = []  # (step, loss, gradient norm) still on the device

    def make_model(self):
        return BertForMaskedLM(model_config(self.settings, self.corpus.vocab_size))

    def compile(self, asked):
        """torch.compile the encoder where asked (None: on CUDA), for full batches first. Results differ by rounding."""
        if not (asked or asked is None and self.device.type == "cuda"):
            return
        ids = torch.full((self.settings["batch_size"], self.settings["seq_len"]), PAD + 1, device=self.device)  # (B, N)
        self.compiled = compile_encoder(self.model, ids, autocast(self.device, self.dtype))

    def meet_widths(self, steps):
        """Compile what the next steps will need, before they are timed: each width of a batch is compiled by itself."""
        before = self.step
        for _ in range(steps if self.compiled else 0):
            self.train_step()
        self.collect(0.0)
        self.step = before

    # -- on disk

    def resume(self):
        """Take up the folder's checkpoint, if it has one. ValueError where the folder holds something else."""
        path, another = self.folder / "train_state.pt", f"choose another {self.elsewhere}"
        if not path.exists():
            if self.folder.exists() and any(file.suffix != ".part" for file in self.folder.iterdir()):
                raise ValueError(f"{self.folder} is not empty and holds no run to resume; {another}")
            return
        state = load_file(path)
        try:
            saved = state["settings"]
            differing = [f"{key} {saved.get(key)} there, {value} here"
                         for key, value in self.settings.items() if saved.get(key) != value]
            if differing:
                raise ValueError(f"{self.folder} belongs to another run ({'; '.join(differing)}); {another}")
            self.step, self.records = state["step"], state["records"]
            self.interval, self.totals = state["interval"], state["totals"]
            if state["result"] is None:
                load_weights(self.model, state["model"], path)
                try:
                    self.optimizer.load_state_dict(state["optimizer"])
                except ValueError:
                    raise ValueError(f"{path} holds the optimizer of another model, or is damaged") from None
            else:
                self.result = {name: state["result"][name] for name in RESULT}
            self.saved_step = self.step
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"{path} is damaged or is not a checkpoint of this project") from None

    def save(self):
        """The model for use, and everything for resuming; each file whole or not at all, so that a kill loses nothing.

        A running state has its own copy of the weights, is whole by itself and goes first. A finished one keeps the
        result, lets go of weights and optimizer, and goes last.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.result is None:
            self.save_state(model=self.model.state_dict(), optimizer=self.optimizer.state_dict())
        save_run(self.folder, self.model, self.corpus.tokenizer)
        write_text("".join(json.dumps(record) + "\n" for record in self.records), self.folder / "log.jsonl")
        if self.result is not None:
            self.save_state()
        self.saved_step = self.step

    def save_state(self, **tensors):
        kept = ("settings", "step", "result", "records", "interval", "totals")
        save_file({name: getattr(self, name) for name in kept} | tensors, self.folder / "train_state.pt")

    # -- training

    def batch_loss(self):
        """The loss of this step's batch; batch and masks are functions of (seed, step)."""
        input_ids = self.corpus.batch(self.settings["seed"], self.step, self.settings["batch_size"])  # (B, N)
        self.interval["tokens"] += int((input_ids != PAD).sum())
        input_ids = input_ids.to(self.device)
        self.generator.manual_seed(step_seed(self.settings["seed"], self.step, "masks"))
        masked_ids, labels = mask_tokens(input_ids, self.corpus.vocab_size, self.generator)  # (B, N) both
        capacity = mask_capacity(input_ids.numel()) if self.device.type == "cuda" else None
        with autocast(self.device, self.dtype):
            return self.model.loss(masked_ids, labels, input_ids != PAD, capacity=capacity)

    def train_step(self):
        """One optimizer step; its dropout, too, is a function of (seed, step)."""
        settings, step = self.settings, self.step
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, settings["steps"], settings["warmup_steps"], settings["lr"])
        torch.manual_seed(step_seed(settings["seed"], step, "dropout"))
        loss = self.batch_loss()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.pending.append((self.step, loss.detach(), norm))

    def collect(self, seconds):
        """Read the losses of the steps since the last call; `seconds` is the time these steps took.

        Raises TrainingFailed at the first that is not a finite number. A checkpoint is written only after this.
        """
        kept = "" if self.saved_step is None else f"; the checkpoint of step {self.saved_step} is kept"
        stopped = f"training stopped{kept}. A lower --lr or a longer warm-up may help"
        for step, loss, norm in self.pending:
            loss = loss.item()
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise TrainingFailed(f"loss {loss}, gradient norm {norm.item()} at step {step}: {stopped}")
            self.interval["loss"] += loss
            self.interval["steps"] += 1
        self.pending.clear()
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            raise TrainingFailed(f"the weights are no longer numbers at step {self.step}: {stopped}")
        self.interval["seconds"] += seconds

    def log(self, bar):
        """One line of log.jsonl for the steps since the last one, and the same numbers on the progress bar."""
        interval, settings = self.interval, self.settings
        record = dict(step=self.step, loss=interval["loss"] / interval["steps"],
                      lr=learning_rate(self.step - 1, settings["steps"], settings["warmup_steps"], settings["lr"]),
                      tokens_per_second=round(interval["tokens"] / interval["seconds"]))
        self.records.append(record)
        self.totals["tokens"] += interval["tokens"]
        self.totals["seconds"] += interval["seconds"]
        self.interval = dict.fromkeys(interval, 0)
        bar.set_postfix_str(f"loss {record['loss']:.3f}, lr {record['lr']:.1e}, {record['tokens_per_second']:,} tok/s")

    def evaluate(self):
        """Held-out loss and accuracy now, into the log and as a printed line. The last one is the run's result."""
        settings = self.settings
        loss, accuracy = evaluate(self.model, self.corpus, settings["batch_size"], self.device, self.dtype)
        self.records.append(dict(step=self.step, held_out_loss=loss, held_out_accuracy=accuracy))
        tokens, seconds = (self.totals[key] + self.interval[key] for key in ("tokens", "seconds"))
        left = seconds / self.step * (settings["steps"] - self.step)
        tqdm.write(f"step {self.step:>{len(str(settings['steps']))}} of {settings['steps']}   "
                   f"held-out loss {loss:.3f}   accuracy {100 * accuracy:5.1f} %   {tokens / seconds:,.0f} tokens/s   "
                   + (f"ETA {tqdm.format_interval(left)}" if left else f"took {tqdm.format_interval(seconds)}"))
        if self.step == settings["steps"]:
            self.result = dict(loss=loss, accuracy=accuracy, parameters=parameter_count(self.model),
                               tokens_per_second=tokens / seconds, seconds=seconds)

    def train(self, save_every, eval_every):
        """Train to the last step, or until a signal; either way all is saved. Returns the signal's number, or 0."""
        steps = self.settings["steps"]
        log_every = max(1, steps // 100)
        bar = tqdm(total=steps, initial=self.step, desc=self.name, leave=self.name is None, unit="step", disable=None,
                   dynamic_ncols=True)
        with Interrupts() as stop, bar:
            since = time.perf_counter()
            while self.step < steps:
                self.train_step()
                bar.update()
                last, stopping = self.step == steps, bool(stop.signal)  # read once: another may come at any moment
                logs, evaluates, saves = (last or self.step % n == 0 for n in (log_every, eval_every, save_every))
                if logs or evaluates or saves or stopping:
                    self.collect(time.perf_counter() - since)
                    if logs:
                        self.log(bar)
                    if evaluates:
                        self.evaluate()
                    if saves or stopping:
                        self.save()
                    since = time.perf_counter()
                if stopping:
                    break
        return stop.signal

    def dry_run(self, steps=20):
        """Time a few steps and write nothing: the cost of the whole run before it is paid."""
        self.train_step()  # the first step allocates
        steps = max(1, min(steps, self.settings["steps"] - 1))
        self.meet_widths(steps)
        self.interval["tokens"], start = 0, time.perf_counter()
        for _ in range(steps):
            self.train_step()
        self.collect(0.0)
        seconds = time.perf_counter() - start
        per_step, all_steps = seconds / (self.step - 1), self.settings["steps"]
        print(f"dry run: {1000 * per_step:.0f} ms a step, {self.interval['tokens'] / seconds:,.0f} tokens/s; "
              f"all {all_steps:,} steps would take {tqdm.format_interval(per_step * all_steps)}; nothing written")


# --- The command line -------------------------------------------------------------------------------------------------


def model_config(settings, vocab_size):
    """The model of a run: as many positions as the run's sequences are long."""
    taken = {name: settings[name] for name in ("kernel_size", "window", "dropout", "attention_layer")}
    size, variant, seq_len = (settings[name] for name in ("size", "variant", "seq_len"))
    return BertConfig.from_size(size, variant, vocab_size, max_length=seq_len, **taken)


def recipe_for(args):
    """Steps, batch, lengths and rates of a run: the command line's, and where it is silent those of size and corpus."""
    recipe = TOY_RECIPE if args.size == "tiny" and args.corpus == ["toy"] else RECIPES[args.size]
    given = {name: getattr(args, name) for name in recipe if getattr(args, name) is not None}
    if "steps" in given:  # a shorter run warms up for a tenth of its steps
        given.setdefault("warmup_steps", min(recipe["warmup_steps"], max(1, args.steps // 10)))
    recipe = recipe | given
    if recipe["warmup_steps"] > recipe["steps"]:
        raise ValueError(f"--warmup_steps {recipe['warmup_steps']:,} is more than all {recipe['steps']:,} steps")
    return recipe


def run_settings(args, recipe, variant, seed, fingerprint, dtype):
    """All that a run's result depends on, as plain values: what log.jsonl begins with and a resumed run must match."""
    config = BertConfig.from_size(args.size, variant, kernel_size=args.kernel_size,  # fills in what was not given
                                  attention_layer=args.attention_layer if VARIANTS[variant].hybrid else None)
    return dict(variant=variant, size=args.size, corpus=fingerprint, **recipe, kernel_size=config.kernel_size,
                attention_layer=config.attention_layer, window=args.window, seed=seed,
                dtype=str(dtype).removeprefix("torch."))


def run_folders(args):
    """{(variant, seed): folder}. A single run with --out_dir has it for itself; several runs have folders below it.

    Without --out_dir: runs/VARIANT, size and corpus before it and the seed after it where they are not the defaults.
    """
    runs = [(variant, seed) for seed in dict.fromkeys(args.seed) for variant in dict.fromkeys(args.variant)]
    if len(runs) == 1 and args.out_dir is not None:
        return {runs[0]: args.out_dir}
    prefix = [args.size] * (args.size != "tiny") + [Path(name).resolve().stem for name in args.corpus if name != "toy"]
    parent, prefix = (Path("runs"), prefix) if args.out_dir is None else (args.out_dir, [])
    numbered = len(set(args.seed)) > 1 or args.out_dir is None and args.seed != [0]
    return {(variant, seed): parent / "-".join([*prefix, variant] + [f"seed{seed}"] * numbered)
            for variant, seed in runs}


def check_folders(folders, resume):
    """ValueError, before any work, where a run's folder is a file, or in use while --resume is never."""
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"--out_dir: {folder} is a file, not a folder")
        if resume == "never" and folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is in use and --resume never was given; choose another --out_dir")


def whole_number(text):
    """argparse type: a whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--variant", nargs="+", metavar="NAME", help=f"composite, or one or more of: {', '.join(VARIANTS)}; or all")
    add("--size", choices=SIZES, default="tiny")
    add("--corpus", nargs="+", default=["toy"],
        help="toy, wikitext-2, wikitext-103, or text files and folders (.txt .gz .xz; a blank line between documents)")
    add("--out_dir", type=Path, help="folder of the run; of several runs: of their folders (default: runs/VARIANT)")
    for name in ("steps", "batch_size", "seq_len", "warmup_steps"):
        add(f"--{name}", type=whole_number, help="default by size and corpus, printed first")
    add("--lr", type=float, help="peak learning rate; default by size and corpus, printed first")
    add("--dropout", type=float, help="of hidden states and attention; default by size and corpus, printed first")
    add("--kernel_size", type=whole_number, help="K, odd; default 17, ConvBERT 9")
    add("--attention_layer", type=whole_number, help="of hybrids: the layer of self-attention; default: the last")
    add("--window", choices=WINDOWS, default=WINDOWS[0], help="relative positions beyond the kernel: end weight, or 0")
    add("--seed", nargs="+", type=int, default=[0], help="one or more")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    add("--dtype", choices=("auto", "fp32", "bf16"), default="auto")
    add("--compile", action=argparse.BooleanOptionalAction, help="torch.compile the encoder (default: on CUDA)")
    add("--resume", choices=("auto", "never"), default="auto", help="go on with a run found in its folder, or not")
    add("--save_every", type=whole_number, help="steps (default: a tenth of all, at most 1,000)")
    add("--eval_every", type=whole_number, help="steps (default: a tenth of all)")
    add("--cache_dir", type=Path, default=Path("cache"), help="downloads and token ids")
    add("--benchmark", action="store_true", help="time whole steps, the variants in turn and absolute; write no run")
    add("--lengths", action="store_true",
        help="with --benchmark: one mixer of each variant (no hybrids), for 64 to 8192 tokens")
    add("--dry_run", action="store_true", help="prepare the text, time twenty steps, write no run")
    args = parser.parse_args(argv)
    args.variant = args.variant or (list(LENGTH_VARIANTS) if args.lengths else ["composite"])
    for name in args.variant:
        if name not in VARIANTS and name != "all":
            parser.error(f"unknown variant {name!r}; the variants are: {', '.join(VARIANTS)}")
    hybrids, layers = [name for name in VARIANTS if VARIANTS[name].hybrid], SIZES[args.size]["layers"]
    if "all" in args.variant:
        args.variant = [name for name in VARIANTS if not (args.lengths and name in hybrids)]
    if args.attention_layer and (args.attention_layer > layers or not set(hybrids) & set(args.variant)):
        parser.error(f"--attention_layer is for {', '.join(hybrids)}, and {args.size} has {layers} layers")
    if args.lengths and (not args.benchmark or args.compile or set(hybrids) & set(args.variant)):
        parser.error("--lengths goes with --benchmark, of one kind of mixer (no hybrid), uncompiled")
    if args.kernel_size is not None and args.kernel_size % 2 == 0:
        parser.error(f"--kernel_size must be odd (k tokens to each side and the token itself), not {args.kernel_size}")
    if args.dropout is not None and not 0 <= args.dropout < 1:
        parser.error(f"--dropout must lie in [0, 1), not {args.dropout}")
    if args.lr is not None and not 0 < args.lr < math.inf:
        parser.error(f"--lr must be a number above 0, not {args.lr}")
    if args.seq_len is not None and args.seq_len < 8:
        parser.error(f"--seq_len must be at least 8, room for two sentences and three marks, not {args.seq_len}")
    if any(seed < 0 for seed in args.seed):
        parser.error("--seed must not be negative")
    return args


def timed_run(args, recipe, device, dtype, variant, batches):
    """A Run of one variant that is only timed, on these batches."""
    keep_freed_memory()  # called in a process of its own too
    run = Run(".", run_settings(args, recipe, variant, 0, "only timed", dtype), batches, device, dtype)
    run.compile(args.compile)
    return run


def start_run(folder, settings, corpus, device, dtype, args, guess):
    """Print what a run is, then train it. Returns (its result or None, the signal that stopped it or 0)."""
    run, where = Run(folder, settings, corpus, device, dtype), settings["attention_layer"]
    print(f"\n{settings['variant']}: {VARIANTS[settings['variant']].equation}")
    print(f"  {parameter_count(run.model):,} parameters, seed {settings['seed']}, K = {settings['kernel_size']}, "
          + (f"self-attention in layer {where}, " if where else "") + f"folder {folder}")
    if not args.dry_run:
        run.resume()
        if run.result is not None:
            loss, accuracy = run.result["loss"], 100 * run.result["accuracy"]
            print(f"  finished before: held-out loss {loss:.3f}, accuracy {accuracy:.1f} %")
            return run.result, 0
    run.compile(args.compile)
    if args.dry_run:
        run.dry_run()
        return None, 0
    if run.step:
        print(f"  resumed at step {run.step:,} of {settings['steps']:,}")
    else:
        run.save()  # the folder is taken, and known to be writable, before any work is done
        print(f"  untrained, the held-out loss would be ln({corpus.vocab_size:,}) = {math.log(corpus.vocab_size):.3f}; "
              f"always guessing the commonest token is right {100 * guess:.1f} % of the time")
    every = max(1, settings["steps"] // 10)
    stopped = run.train(args.save_every or min(every, 1000), args.eval_every or every)
    if stopped:
        name = signal.Signals(stopped).name
        print(f"stopped by {name} at step {run.step:,}, saved; the same command goes on from there")
    return run.result, stopped


# --- Several runs -----------------------------------------------------------------------------------------------------


def print_table(results):
    """One row a variant: mean and standard error over its seeds. results: {(variant, seed): result}."""
    print(f"\n{'variant':<20} {'parameters':>11} {'held-out loss':>17} {'accuracy (%)':>15} "
          f"{'tokens/s':>9} {'runs':>5}")
    for variant in dict.fromkeys(variant for variant, _ in results):
        runs = [result for (name, _), result in results.items() if name == variant]
        loss = mean_and_error([run["loss"] for run in runs])
        accuracy = mean_and_error([100 * run["accuracy"] for run in runs], 2)
        speed = sum(run["tokens_per_second"] for run in runs) / len(runs)
        print(f"{variant:<20} {runs[0]['parameters']:>11,} {loss:>17} {accuracy:>15} {speed:>9,.0f} {len(runs):>5}")


def mean_and_error(values, digits=3):
    """Mean +- standard error of the mean as text; of one value, that value."""
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} +- {np.std(values, ddof=1) / math.sqrt(len(values)):.{digits}f}" if len(values) > 1 else mean


def unigram_guess(corpus):
    """Accuracy on the held-out tokens of always naming the commonest token of the training text."""
    commonest = corpus.commonest_token()
    targets = torch.cat([labels[labels != -100] for _, labels in corpus.held_out_batches(256)])
    return (targets == commonest).float().mean().item()


def run_all(args):
    """Every run that the command line names, then their table. Returns the exit code."""
    device, dtype, reason = choose_device(args.device, args.dtype)
    print(reason)
    recipe, folders = recipe_for(args), run_folders(args)
    print(f"{args.size}: " + ", ".join(f"{name} {value:,}" for name, value in recipe.items()))
    check_folders(folders.values(), "auto" if args.dry_run or args.benchmark else args.resume)
    if args.benchmark:
        benchmark(args, recipe, functools.partial(timed_run, args, recipe, device, dtype), device, dtype)
        return 0
    corpus = prepare_corpus(args.corpus, args.cache_dir, recipe["seq_len"])
    guess, results = unigram_guess(corpus), {}
    for (variant, seed), folder in folders.items():
        settings = run_settings(args, recipe, variant, seed, corpus.fingerprint, dtype)
        result, stopped = start_run(folder, settings, corpus, device, dtype, args, guess)
        if stopped:
            return 128 + stopped
        if result is not None:
            results[variant, seed] = result
    if len(results) > 1:
        print_table(results)
    return 0


def run_to_exit(program, work, *arguments):
    """Leave Python with the code that work(*arguments) returns; whatever goes wrong ends in one line and a code."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # a console without Unicode shows a ? rather than failing
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # outside of training: cleans up
    keep_freed_memory()
    try:
        sys.exit(work(*arguments))
    except TrainingFailed as error:
        message, code = error, 1
    except (ValueError, OSError) as error:
        message, code = error, 2
    except KeyboardInterrupt:
        message, code = "interrupted; what was saved is whole, and the same command goes on from there", 130
    except (MemoryError, RuntimeError) as error:  # torch tells of a full memory in either way
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        message, code = "out of memory; a smaller --batch_size or --seq_len needs less", 1
    print(f"{program}: {message}", file=sys.stderr)
    sys.exit(code)


def main(argv=None):
    run_to_exit("pretrain.py", run_all, parse_arguments(argv))


if __name__ == "__main__":
    main()
