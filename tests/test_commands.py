"""A user's mistake is one line, whatever the program; a programmer's keeps its traceback."""

import importlib
import os
import re
import shlex
import signal

import pytest

from conftest import ROOT, needs_signals
from model_helpers import write_run
from support.commands import StopSignals, UserError, run_command


def raising(error):
    """A main() that raises the error."""

    def main(arguments=None):
        raise error

    return main


# --- Mistakes of a user ---------------------------------------------------------------------------

# What somebody types, and a part of the line that answers. A program is named as in Python; for the
# folders that exist, in capitals, see `folders`.
MISTAKES = """
pretrain --variant nonsense                                     | composite-conv-qkv
pretrain TEXT --kernel_size 8                                   | odd
pretrain --variant none absolute --kernel_size 9                | --kernel_size has no use
pretrain --variant none canon --beyond zero                     | --beyond has no use
pretrain --variant none --beyond clip                           | --beyond has no use
pretrain --steps 5 --warmup_steps 6                             | --warmup_steps 6 is above
pretrain --lr nan                                               | --lr
pretrain --device abacus                                        | --device abacus
pretrain --corpus no-such-corpus                                | no-such-corpus
pretrain --seed 1 1                                             | is given twice
pretrain --variant none fixed none                              | is given twice
glue finetune RUN --task cola rte cola                          | is given twice
glue finetune RUN --seeds 42 42                                 | is given twice
pretrain --stepz 5                                              | --stepz
glue RUN                                                        | invalid choice
glue table no-run                                               | no-run
glue finetune RUN --task snli                                   | snli
glue finetune RUN --data_dir no-files                           | no-files
glue table RUN                                                  | has no results
glue predict RUN                                                | no result
glue download --data_dir toy                                    | need no download
model RUN                                                       | required
model absent 'the [MASK]'                                       | absent is not a run
model FILE 'the [MASK]'                                         | is not a run
model RUN 'the cat'                                             | no blank
model ABSOLUTE '[MASK] LONG'                                    | the model takes 24
model RUN 'the [MASK]' tired                                    | unrecognized
course.__main__ blank ROOT/lab/out                              | inside the project
course.__main__ test no_such_function                           | no_such_function
course.__main__ grade no-such-folder                            | there is nothing to grade
course.__main__ grade ROOT/README.md                            | there is nothing to grade
lab.explore nowhere 'the cat'                                   | nowhere
lab.explore CONVBERT --html page.html                           | add a sentence
lab.explore NONE 'LONG LONG LONG LONG LONG LONG'                | shows at most 128
lab.explore RUN the cat sleeps                                  | one or two runs
lab.explore RUN runs/other                                      | is no folder
lab.figures fixed NONE                                          | no fixed kernels
lab.figures attention CONVBERT 'the cat'                        | convbert
lab.figures depthwise RUN                                       | no depthwise convolution
lab.figures dynamic RUN 'the cat' --layer 3                     | no layer 3
lab.figures dynamic RUN 'the cat' --head 5                      | no head 5
lab.pairs RUN --data nowhere                                    | nowhere
lab.pairs RUN --data EMPTY                                      | has no pairs
lab.huggingface import EMPTY RUN                                | already exists
lab.huggingface export RUN new                                  | can be exported
lab.seq2seq RUN 'the dog'                                       | seq2seq.json
lab.seq2seq RUN                                                 | name a run and a text
lab.seq2seq --data no-pairs.tsv                                 | no-pairs.tsv
lab.report nowhere --out records.jsonl                          | nowhere
lab.report RUN --out FILE                                       | is there already
"""
MISTAKES = [re.split(r" +\| ", line) for line in MISTAKES.strip().splitlines()]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, on_small_text):
    """{name in MISTAKES: what is put in its place}."""
    folder = tmp_path_factory.mktemp("mistakes")
    for variant in ("composite", "none", "convbert", "absolute"):
        write_run(folder / variant, variant, max_length=24 if variant == "absolute" else 300)
    (folder / "empty").mkdir()
    return {
        "RUN": folder / "composite",
        "NONE": folder / "none",
        "CONVBERT": folder / "convbert",
        "ABSOLUTE": folder / "absolute",
        "EMPTY": folder / "empty",
        "FILE": folder / "composite/model.pt",
        "ROOT": ROOT,
        "LONG": "the cat " * 12,
        "TEXT": " ".join(on_small_text),
    }


@pytest.mark.parametrize("command, expected", MISTAKES)
def test_a_mistake_of_the_user_is_one_line_and_nothing_is_written(
    command, expected, folders, refused, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name, value in folders.items():
        command = re.sub(rf"\b{name}\b", str(value), command)
    program, *words = shlex.split(command)
    assert expected in refused(importlib.import_module(program).main, *words)
    assert not list(tmp_path.iterdir())


def test_each_of_several_processes_prints_its_own_error_once_with_its_rank(
    run_program, monkeypatch
):
    monkeypatch.setenv("RANK", "13")
    outcome = run_program(raising(UserError("model.pt is damaged")))
    assert outcome == (1, "", "error in process 13: model.pt is damaged\n")


# --- Mistakes in the code, signals ----------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ValueError("not enough values to unpack"), OSError("of a library"), KeyError("step")]
)
def test_a_mistake_in_the_code_keeps_its_traceback(error):
    with pytest.raises(type(error)) as caught:
        run_command(raising(error))
    assert caught.traceback[-1].name == "main"


@needs_signals
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_the_first_stop_signal_is_remembered_and_the_second_one_acts_at_once(name):
    number = signal.Signals[name]
    before = signal.signal(number, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), StopSignals() as stop:
        assert stop.number == 0
        os.kill(os.getpid(), number)
        assert stop.number == number
        os.kill(os.getpid(), number)
    assert signal.signal(number, before) == signal.default_int_handler


@needs_signals
def test_an_ignored_signal_stays_ignored():
    """As SIGHUP is under nohup, and SIGINT in the background of a script."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.number == 0
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN


def test_where_a_signal_does_not_exist_the_others_stop(monkeypatch):
    """Windows has neither SIGHUP nor SIGUSR1."""
    monkeypatch.delattr(signal, "SIGHUP", raising=False)
    monkeypatch.delattr(signal, "SIGUSR1", raising=False)
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.number == signal.SIGTERM
