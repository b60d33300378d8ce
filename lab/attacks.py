"""Attacks on this project's programs: kills, damaged files, two processes, wrong inputs.

    python -m lab.attacks                      all attacks, each with its full count (half an hour)
    python -m lab.attacks kills-prepare        one of them
    python -m lab.attacks flips --count 20     a short form
    python -m lab.attacks --short              the short form of all, as the tests use it
    python -m lab.attacks flips --trial 7      one trial again, which is printed in full

A program that is attacked may do one of three things:

    refused     it ends with an exit code above 0 and one line that says what is wrong
    equal       it, or the same command started again, ends with files that are equal to the bit to
                those of a run without the attack
    harmless    the attack changed nothing that anybody reads

Everything else is a fault, and the exit code of this program is 1:

    lost        after a kill, the same command does not end with the same files, or leaves others
    silent      another result, and no line about it
    crash       a traceback, an abort, or several lines of message
    hang        no end

Each trial is drawn from its own number, so it can be repeated. A kill at a random time is the only
exception. Works on Linux and macOS; Windows cannot fork.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from tqdm import tqdm

from lab.attack_files import (
    SENTENCE,
    TASKS,
    World,
    clone,
    cut,
    damage_file,
    differences_of_results,
    differences_of_runs,
    differences_of_shared_results,
    differing_files,
    digest_of_corpus,
    flip_bit,
    last_word,
    leftovers,
    replace_file,
    results_of,
    same_values,
)
from lab.attack_inputs import wrong_inputs
from lab.attack_tools import (
    CRASH,
    EQUAL,
    FAULTS,
    HARMLESS,
    LOST,
    REFUSED,
    ROOT,
    SILENT,
    STOPPED,
    TIMEOUT,
    VERDICTS,
    AtCall,
    Result,
    Victim,
    communicate,
    random_hook,
    run,
    start_and_kill,
    start_python,
    usual_run,
    was_killed,
)
from support.commands import positive_int, run_command


class Trial(NamedTuple):
    """One trial of an attack.

    world: the World of files that are attacked.
    folder: a new folder for the files of this trial.
    random: the random numbers of this trial.
    number: of this trial, from 0.
    left: how many results of this attack are still wanted; a trial may give several.
    """

    world: World
    folder: Path
    random: Random
    number: int
    left: int


# --- Kills ----------------------------------------------------------------------------------------


def kill_pretraining(trial):
    """Kill pretrain.py one to three times, then let it end. The run must be equal to the bit.

    In half of the trials it prepares its corpus first.
    """
    finished, cache, usual = trial.world.pretrained
    out, new_cache = trial.folder / "run", trial.folder / "cache"
    if trial.random.random() < 0.5:
        clone(cache, new_cache)
    arguments = trial.world.pretraining(new_cache, out)

    kills = 0
    for _ in range(trial.random.randint(1, 3)):
        kills += start_and_kill(trial.random, trial.folder, "pretrain.py", arguments, usual)

    # the same command again, until it ends
    outcome = run(trial.folder, "pretrain.py", arguments)
    differing = differences_of_runs(out, finished) + differing_files(new_cache, cache)
    return kills * [after_kills(outcome, differing, leftovers(trial.folder))]


def after_kills(outcome, differing, left):
    """The Result of kills, from the last start of the same command, which nobody killed.

    Args:
        outcome: its Outcome.
        differing: the names of files that differ from those of a run without kills.
        left: the names of files that are left of killed programs.
    """
    if outcome.fault() is not None:
        return Result(*outcome.fault())
    if outcome.code != 0:
        return Result(LOST, f"does not continue: {outcome.last_line()}")
    if differing:
        return Result(SILENT, f"differ: {', '.join(differing)}")
    if left:
        return Result(LOST, f"left: {', '.join(left)}")
    return Result(EQUAL)


def kill_preparation(trial):
    """Kill the preparation of a corpus, by one process or by two at once, then let it end.

    The files in the cache must be equal to the bit, and there must be no others.
    """
    cache, _, usual = trial.world.cache
    new_cache = trial.folder / "cache"
    arguments = [trial.world.text, new_cache]

    kills = 0
    for _ in range(trial.random.randint(1, 3)):
        other = None
        if trial.random.random() < 0.5:
            other = Victim(trial.folder, digest_of_corpus, arguments)
        kills += start_and_kill(trial.random, trial.folder, digest_of_corpus, arguments, usual)
        if other is not None:
            kills += was_killed(other.kill_after(trial.random.uniform(0, usual.seconds)))

    outcome = run(trial.folder, digest_of_corpus, arguments)
    return kills * [after_kills(outcome, differing_files(new_cache, cache), [])]


def kill_fine_tuning(trial):
    """Kill glue.py one to three times, then let it end. All results and weights must be equal."""
    tuned, usual = trial.world.fine_tuned
    new = clone(trial.world.small, trial.folder / "run")
    arguments = trial.world.fine_tuning(new, TASKS)

    kills = 0
    for _ in range(trial.random.randint(1, 3)):
        kills += start_and_kill(trial.random, trial.folder, "glue.py", arguments, usual)

    outcome = run(trial.folder, "glue.py", arguments)
    differing = differences_of_results(new / "glue", tuned / "glue")
    return kills * [after_kills(outcome, differing, leftovers(new))]


def kill_one_of_two(trial):
    """Two processes do the same at once: two pretrain.py, or two glue.py. Kill one or both of them.

    One of them goes on, or a third start does the rest; the result must be equal to the bit.
    """
    # which program, and what it makes
    pretrained, cache, pretraining_usual = trial.world.pretrained
    if trial.random.random() < 0.5:
        program, usual, new = "pretrain.py", pretraining_usual, trial.folder / "run"
        arguments = trial.world.pretraining(trial.folder / "cache", new)
    else:
        program, usual = "glue.py", trial.world.fine_tuned[1]
        new = clone(trial.world.small, trial.folder / "run")
        arguments = trial.world.fine_tuning(new, TASKS)

    # two at once: the first one is killed by itself, the second one from outside
    first = Victim(trial.folder, program, arguments, random_hook(trial.random, usual))
    second = Victim(trial.folder, program, arguments)
    outcomes = [second.kill_after(trial.random.uniform(0, 2 * usual.seconds)), first.wait()]
    kills = sum(was_killed(outcome) for outcome in outcomes)

    # the same command again, until it ends
    outcome = run(trial.folder, program, arguments)
    if program == "pretrain.py":
        differing = differences_of_runs(new, pretrained)
        differing += differing_files(trial.folder / "cache", cache)
    else:
        tuned = trial.world.fine_tuned[0]
        differing = differences_of_shared_results(new / "glue", tuned / "glue")
    return kills * [after_kills(outcome, differing, leftovers(trial.folder))]


# --- Two processes --------------------------------------------------------------------------------


def share_fine_tuning(trial):
    """Two glue.py fine-tune one run with many seeds. Each result must be there, and only once.

    In turn: each process has its own half of the seeds; both have all seeds; both have all seeds,
    one of them from the last seed to the first.
    """
    # the seeds of both
    jobs = max(2, min(trial.left, 140))
    seeds = list(range(1000, 1000 + jobs))
    first, second = seeds, seeds
    if trial.number % 3 == 0:
        first, second = seeds[: jobs // 2], seeds[jobs // 2 :]
    elif trial.number % 3 == 2:
        second = list(reversed(seeds))

    # one process does all, for comparison
    def fine_tuning(folder, numbers):
        return trial.world.fine_tuning(folder, ["sst-2"]) + ["--seeds", *numbers]

    alone = clone(trial.world.small, trial.folder / "alone")
    usual_run(trial.folder, "glue.py", fine_tuning(alone, seeds))

    # two processes
    shared = clone(trial.world.small, trial.folder / "shared")
    victims = []
    for numbers in (first, second):
        victims.append(Victim(trial.folder, "glue.py", fine_tuning(shared, numbers)))
    outcomes = [victim.wait(TIMEOUT + jobs) for victim in victims]
    for outcome in outcomes:
        if outcome.fault() is not None or outcome.code != 0:
            fault = outcome.fault() or (LOST, outcome.last_line())
            return jobs * [Result(*fault)]

    # each result was announced once, and is in the file once
    announced = []
    for outcome in outcomes:
        announced += re.findall(r"^sst-2 +seed (\d+)", outcome.out, re.MULTILINE)
    if sorted(announced) != sorted(map(str, seeds)):
        note = f"{len(announced)} results of {len(set(announced))} seeds announced, not {jobs}"
        return jobs * [Result(SILENT, note)]
    differing = differences_of_shared_results(shared / "glue", alone / "glue")
    differing += leftovers(shared)
    if differing:
        return jobs * [Result(SILENT, f"differ: {', '.join(differing)}")]
    return jobs * [Result(EQUAL)]


def mix_settings(trial):
    """Two glue.py with different --lr and one --name, which is empty at the start.

    The second one to write a result must be refused: a table never has both settings.
    """
    new = clone(trial.world.small, trial.folder / "run")
    usual = trial.world.fine_tuned[1]
    victims = []
    for rate in (1e-3, 2e-3):
        arguments = trial.world.fine_tuning(new, ["sst-2"]) + ["--lr", rate]
        victims.append(Victim(trial.folder, "glue.py", arguments))
        time.sleep(trial.random.uniform(0, usual.seconds / 4))
    outcomes = [victim.wait() for victim in victims]
    for outcome in outcomes:
        if outcome.fault() is not None:
            return [Result(*outcome.fault())]

    # one of them did all its work
    rates = {record["settings"]["lr"] for record in results_of(new / "glue").values()}
    codes = sorted(outcome.code for outcome in outcomes)
    if len(rates) > 1 or codes == [0, 0]:
        return [Result(SILENT, f"exit codes {codes}, learning rates in the table: {rates}")]
    if codes != [0, 2]:
        return [Result(LOST, f"exit codes {codes}: {outcomes[0].last_line()}")]
    return [Result(REFUSED)]


def share_pretraining(trial):
    """A second pretrain.py on a folder in use, sometimes with another seed.

    It must be refused, and the first one must end as usual. If the first one has ended already,
    then the second one may say so.
    """
    finished, cache, usual = trial.world.pretrained
    clone(cache, trial.folder / "cache")
    out = trial.folder / "run"
    arguments = trial.world.pretraining(trial.folder / "cache", out)

    # the second one starts when the first one has the folder
    first = Victim(trial.folder, "pretrain.py", arguments)
    while first.is_running() and not (out / "run.lock").exists():
        time.sleep(0.002)
    time.sleep(trial.random.uniform(0, 0.8) * usual.seconds)
    second = run(trial.folder, "pretrain.py", arguments + trial.random.choice(([], ["--seed", 1])))
    outcome = first.wait()

    # the second one was refused, or it was late
    for each in (outcome, second):
        if each.fault() is not None:
            return [Result(*each.fault())]
    if outcome.code != 0:
        return [Result(LOST, f"the first one: {outcome.last_line()}")]
    differing = differences_of_runs(out, finished) + leftovers(trial.folder)
    if differing:
        return [Result(SILENT, f"differ: {', '.join(differing)}")]
    if second.code == 0:
        return [Result(HARMLESS)]
    return [Result(REFUSED)]


# --- Damaged files --------------------------------------------------------------------------------


def flip_weights(trial):
    """Flip one bit of a file of weights; in every seventh trial, cut the file off.

    The program that reads it must refuse it in a line that names it, or read the same values: there
    are bytes between the parts of the file that mean nothing.
    """

    kind = trial.random.choice((damage_model, damage_state, damage_best, damage_encoder))
    path, program, arguments = kind(trial)
    original = trial.folder / "original.pt"
    shutil.copy(path, original)
    damage = cut if trial.number % 7 == 6 else flip_bit
    replace_file(path, damage(trial.random, path.read_bytes()))
    damaged = trial.folder / "damaged.pt"
    shutil.copy(path, damaged)

    # refused, in a line that names the file
    outcome = run(trial.folder, program, arguments)
    if outcome.fault() is not None:
        return [Result(*outcome.fault())]
    if outcome.code != 0 and path.name in outcome.error:
        return [Result(REFUSED)]

    # otherwise it has the same values
    values = run(trial.folder, same_values, [damaged, original])
    if values.fault() is None and values.code == 0:
        return [Result(HARMLESS)]
    note = f"{program} and a damaged {path.name}: {outcome.last_line()}"
    if outcome.code != 0 and values.code != 1:
        return [Result(CRASH, f"{note} (the message does not name the file)")]
    return [Result(SILENT, note)]


def damage_model(trial):
    """(a file of weights, the program that reads it, its arguments): the weights of a run."""
    new = clone(trial.world.pretrained[0], trial.folder / "run")
    return new / "model.pt", "model.py", [new, SENTENCE]


def damage_state(trial):
    """The same for the checkpoint of an unfinished run."""
    new = clone(trial.world.unfinished, trial.folder / "run")
    arguments = trial.world.pretraining(trial.world.pretrained[1], new)
    return new / "train_state.pt", "pretrain.py", arguments


def damage_best(trial):
    """The same for the best run of a task, which makes the predictions."""
    new = clone(trial.world.complete, trial.folder / "run")
    path = trial.random.choice(sorted(new.glob("glue/best-*.pt")))
    arguments = ["predict", new, "--data_dir", trial.world.glue, "--allow_partial"]
    return path, "glue.py", [*arguments, "--device", "cpu"]


def damage_encoder(trial):
    """The same for the encoder that was fine-tuned on MNLI, from which RTE starts."""
    new = clone(trial.world.fine_tuned[0], trial.folder / "run")
    results = new / "glue" / "results.jsonl"
    lines = results.read_text(encoding="utf-8").splitlines(keepends=True)
    others = [line for line in lines if '"task": "rte"' not in line]
    results.write_text("".join(others), encoding="utf-8")
    path = sorted(new.glob("glue/mnli-seed*.pt"))[0]
    return path, "glue.py", trial.world.fine_tuning(new, ["rte"])


def damage_corpus(trial):
    """Damage a file of a prepared corpus, in one of many ways.

    The next start must prepare the corpus again, with a line that says so, or refuse it.
    """
    cache, digest, _ = trial.world.cache
    new = clone(cache, trial.folder / "cache")
    files = sorted(path for path in new.rglob("*") if path.is_file())
    what = damage_file(trial.random, trial.random.choice(files), files)

    # the same corpus?
    outcome = run(trial.folder, digest_of_corpus, [trial.world.text, new])
    if outcome.fault() is not None:
        verdict, note = outcome.fault()
        return [Result(verdict, f"{what}: {note}")]
    if outcome.code != 0:
        return [Result(REFUSED)]
    if last_word(outcome) != digest:
        return [Result(SILENT, f"{what}: another corpus")]

    # it was prepared again, or the change meant nothing
    if "it is prepared again" not in outcome.out:
        return [Result(HARMLESS, what)]
    differing = differing_files(new, cache)
    if differing:
        return [Result(LOST, f"{what}, prepared again; differ: {', '.join(differing)}")]
    return [Result(EQUAL)]


# --- Files that are damaged while a program runs --------------------------------------------------


def damage_while_running(trial):
    """Remove, cut, zero or empty a file while pretrain.py or glue.py is running.

    It must end with one line, or with results equal to the bit. If the damage came after the file
    was used, then the next program that reads it must say so.
    """
    # the program and its files; all of them are copies
    world = trial.world
    new = trial.folder / "run"
    if trial.random.random() < 0.5:
        program, usual, reference = "pretrain.py", world.pretrained[2], world.pretrained[0]
        text = Path(shutil.copy(world.text, trial.folder / "text.txt"))
        arguments = world.pretraining(trial.folder / "cache", new) + ["--corpus", text]
    else:
        program, usual, reference = "glue.py", world.fine_tuned[1], world.fine_tuned[0]
        shutil.copytree(world.small, new)
        data = shutil.copytree(world.glue, trial.folder / "glue_data")
        arguments = world.fine_tuning(new, TASKS) + ["--data_dir", data]

    # one file is damaged by the victim itself, at a call that changes the disk
    hook = AtCall(
        trial.random.randint(1, usual.calls),
        lambda: damage_some_file(trial.folder, trial.random),
    )
    outcome = run(trial.folder, program, arguments, hook)
    if not (trial.folder / "damage.txt").exists():
        return []  # it made fewer calls than usual
    damage = (trial.folder / "damage.txt").read_text(encoding="utf-8")
    bus_error = outcome.code == -signal.SIGBUS and damage.endswith((".bin cut", ".bin empty"))
    if outcome.code not in (0, *STOPPED) and (bus_error or outcome.fault() is None):
        return [Result(REFUSED, damage)]
    if outcome.fault() is not None:
        verdict, note = outcome.fault()
        return [Result(verdict, f"{program}, {damage}: {note}")]

    # it ended without a message: everything is as usual, or the next program to read it refuses it
    compare = differences_of_runs
    if program == "glue.py":
        compare, new, reference = differences_of_results, new / "glue", reference / "glue"
    return [after_damage(trial, program, arguments, compare, (new, reference), damage)]


def damage_some_file(folder, random):
    """In the victim: damage a file of the trial, and write down what was done."""
    # the files of each of run, cache, text.txt and glue_data
    groups = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).parts[0]
        if path.is_file() and not name.startswith("victim-"):
            groups.setdefault(name, []).append(path)

    # one of these, then one of its files
    name = random.choice(sorted(groups))
    path = random.choice(groups[name])
    kind = random.choice(("removed", "cut", "zeroed", "empty"))
    size = path.stat().st_size

    # in place: the victim may have the file open
    if kind == "removed":
        path.unlink()
    elif kind == "zeroed":
        with open(path, "rb+") as file:
            file.write(bytes(size))
    else:
        os.truncate(path, size // 2 if kind == "cut" else 0)
    note = f"{path.relative_to(folder)} {kind}"
    (folder / "damage.txt").write_text(note, encoding="utf-8")


def after_damage(trial, program, arguments, compare, folders, damage):
    """The Result if a program ended without a message although a file was damaged.

    Args:
        program, arguments: the command.
        compare: differences_of_runs or differences_of_results.
        folders: its arguments, the folder of the trial and that of a run without attacks.
        damage: what was done, in words.
    """
    if not compare(*folders):
        return Result(EQUAL, damage)

    # results that are missing although the exit code is 0
    if "results.jsonl" in compare(*folders):
        return Result(SILENT, f"{program}, {damage}: other results")

    # the next programs: the same command, one that reads the model, one that reads the log
    new = trial.folder / "run"
    readers = [(program, arguments), ("model.py", [new, SENTENCE])]
    if program == "pretrain.py":
        readers.append(("lab.figures", ["loss", new, "--out", trial.folder / "loss"]))

    # and one that reads the weights themselves
    for name in compare(*folders):
        if name.endswith(".pt"):
            readers.append((same_values, [folders[0] / name, folders[1] / name]))
    for reader, options in readers:
        outcome = run(trial.folder, reader, options)
        if outcome.fault() is not None:
            verdict, note = outcome.fault()
            return Result(verdict, f"{reader} after {program}, {damage}: {note}")
        if outcome.code != 0:
            return Result(REFUSED, damage)

    # nobody has noticed it
    differing = compare(*folders)
    if differing:
        return Result(SILENT, f"{program}, {damage}: differ: {', '.join(differing)}")
    return Result(EQUAL, damage)


# --- Wrong inputs ---------------------------------------------------------------------------------


def give_wrong_input(trial):
    """A command with one wrong value, path, name or file. It must be refused."""
    inputs = wrong_inputs()
    wrong = inputs[trial.number % len(inputs)]

    # all files are copies, so that the next trial finds them as they were
    world = trial.world
    new = clone(world.whole_run, trial.folder / "run")
    new_cache = clone(world.pretrained[1], trial.folder / "cache")
    names = {"run": new, "text": world.text, "data": world.glue, "cache": new_cache}
    names["folder"] = trial.folder
    if wrong.prepare is not None:
        wrong.prepare(trial.folder)
    arguments = [argument.format(**names) for argument in wrong.arguments]

    note = f"{wrong.program} {' '.join(argument[:60] for argument in arguments)} {wrong.name}"
    outcome = run(trial.folder, wrong.program, arguments)
    if outcome.fault() is not None:
        verdict, fault = outcome.fault()
        return [Result(verdict, f"{note}: {fault}")]
    if outcome.code not in (0, 1, 2):
        return [Result(CRASH, f"{note}: exit code {outcome.code}")]
    if outcome.code != 0:
        return [Result(REFUSED, f"{note}: {outcome.last_line()}")]
    if wrong.may_pass:
        return [Result(HARMLESS, note)]
    return [Result(SILENT, f"{note}: accepted")]


# --- Signals and outputs --------------------------------------------------------------------------


def signal_while_saving(trial):
    """Two signals, SIGTERM or SIGINT, while pretrain.py or glue.py writes a file.

    It must end with one line at most and without an abort. The same command continues from there,
    and its result must be equal to the bit.
    """
    world = trial.world
    numbers = trial.random.choices((signal.SIGTERM, signal.SIGINT), k=2)

    def send():
        for number in numbers:
            os.kill(os.getpid(), number)

    # the program and what it makes
    new = trial.folder / "run"
    if trial.random.random() < 0.5:
        program, usual = "pretrain.py", world.pretrained[2]
        arguments = world.pretraining(world.pretrained[1], new)
    else:
        program, usual = "glue.py", world.fine_tuned[1]
        clone(world.small, new)
        arguments = world.fine_tuning(new, TASKS)

    hook = AtCall(trial.random.randint(1, usual.calls), send, after=trial.random.random() < 0.5)
    outcome = run(trial.folder, program, arguments, hook)
    if outcome.fault() is not None:
        return [Result(*outcome.fault())]
    if outcome.code not in (0, *STOPPED):
        return [Result(CRASH, f"exit code {outcome.code}: {outcome.last_line()}")]

    # the same command again
    outcome = run(trial.folder, program, arguments)
    if program == "pretrain.py":
        differing = differences_of_runs(new, world.pretrained[0])
    else:
        differing = differences_of_results(new / "glue", world.fine_tuned[0] / "glue")
    return [after_kills(outcome, differing, leftovers(new))]


def interrupt_start(trial):
    """Ctrl-C while a program starts: most of that time it imports torch.

    It must end at once and without a traceback.
    """
    programs = ("pretrain.py", "glue.py", "model.py", "lab.pairs", "lab.bench")
    program = programs[trial.number % len(programs)]
    with start_python(trial.folder, program, ["--help"], subprocess.PIPE) as process:
        time.sleep(trial.random.uniform(0.3, 3))
        process.send_signal(signal.SIGINT)
        outcome = communicate(process)

    # Python's own start, before it reads the first line of the program, is not ours.
    is_ours = str(ROOT) in outcome.error
    if "Traceback" in outcome.error and not is_ours:
        return []
    if outcome.code == -signal.SIGINT and not outcome.error:
        return [Result(REFUSED)]
    if outcome.fault() is not None:
        verdict, note = outcome.fault()
        return [Result(verdict, f"{program}: {note}")]
    if outcome.code == 0:
        return [Result(HARMLESS)]
    return [Result(REFUSED)]


def close_output(trial):
    """Programs whose standard output is closed, full, or a pipe that nobody reads.

    They must end with one line at most. If the exit code is 0, then their files are complete.
    """
    # a program that prints a table or a text, or one that trains
    world = trial.world
    new = clone(world.fine_tuned[0], trial.folder / "run")
    out = trial.folder / "new"
    programs = [
        ("model.py", [new, SENTENCE]),
        ("glue.py", ["table", new]),
        ("glue.py", ["--help"]),
        ("toy", ["--sentences", 3000]),
        ("lab.figures", ["fixed", new, "--describe"]),
        ("pretrain.py", world.pretraining(world.pretrained[1], out)),
        ("glue.py", world.fine_tuning(new, ["wnli"])),
    ]
    program, arguments = programs[trial.number % len(programs)]
    kind = ("closed", "full", "pipe")[trial.number // len(programs) % 3]

    # its output
    if kind == "full":
        stdout = os.open("/dev/full", os.O_WRONLY)
    else:
        reading_end, stdout = os.pipe()
        os.close(reading_end)
    with start_python(trial.folder, program, arguments, stdout, closed=kind == "closed") as process:
        os.close(stdout)
        outcome = communicate(process)

    # the verdict
    note = f"{program} {arguments[0]}, {kind}"
    if outcome.code != 0 and not outcome.error:
        return [Result(REFUSED, note)]  # as other programs end whose output is closed
    if outcome.fault() is not None:
        verdict, fault = outcome.fault()
        return [Result(verdict, f"{note}: {fault}")]
    if outcome.code != 0:
        return [Result(REFUSED, note)]
    if program == "pretrain.py" and differences_of_runs(out, world.pretrained[0]):
        return [Result(SILENT, note)]
    return [Result(HARMLESS, note)]


# --- All attacks ----------------------------------------------------------------------------------


class Attack(NamedTuple):
    """An attack: its function, and how many results the full and the short form have."""

    function: object
    full: int
    short: int


ATTACKS = {
    "kills-pretrain": Attack(kill_pretraining, 70, 2),
    "kills-prepare": Attack(kill_preparation, 50, 4),
    "kills-glue": Attack(kill_fine_tuning, 70, 2),
    "kills-two": Attack(kill_one_of_two, 40, 1),
    "two-glue": Attack(share_fine_tuning, 420, 6),
    "two-settings": Attack(mix_settings, 8, 1),
    "two-pretrain": Attack(share_pretraining, 12, 1),
    "flips": Attack(flip_weights, 700, 8),
    "cache": Attack(damage_corpus, 1800, 20),
    "mid-run": Attack(damage_while_running, 60, 2),
    "inputs": Attack(give_wrong_input, 800, 20),
    "signals": Attack(signal_while_saving, 30, 2),
    "imports": Attack(interrupt_start, 20, 1),
    "outputs": Attack(close_output, 21, 1),
}


def try_attack(name, count, world, bar, only=None):
    """Try an attack until it has `count` results. Faults are printed. Returns the Results.

    only: the number of the only trial that is done, if only one is wanted.
    """
    results = []
    number = 0 if only is None else only
    while len(results) < count:
        # the files of a trial are deleted after it
        with tempfile.TemporaryDirectory(dir=world.folder, prefix=f"{name}-") as folder:
            random = Random(f"{name} {number}")
            trial = Trial(world, Path(folder), random, number, count - len(results))
            new = ATTACKS[name].function(trial)

        for result in dict.fromkeys(new):
            if result.verdict in FAULTS or only is not None:
                tqdm.write(f"{name} --trial {number}: {result.verdict}: {result.note}")
        results += new
        bar.update(min(len(new), count - bar.n))
        if only is not None:
            break
        number += 1
    return results


def print_results(results):
    """The table. results: {name of the attack: list of Result}."""
    titles = ("attack", "tried", *VERDICTS)
    print(f"{titles[0]:<15}" + "".join(f"{title:>9}" for title in titles[1:]))
    for name, tried in results.items():
        verdicts = [result.verdict for result in tried]
        counts = [len(verdicts), *(verdicts.count(verdict) for verdict in VERDICTS)]
        print(f"{name:<15}" + "".join(f"{count:>9}" for count in counts))


def main(arguments=None):
    """Try the attacks. Returns the exit code: 1 if there was a fault."""
    args = parse_arguments(arguments)
    if not hasattr(os, "fork"):
        raise ValueError("this system has no fork, so the attacks cannot be started here")

    # The forks of a process with several threads would lack all but one of them.
    torch.set_num_threads(1)
    tqdm.monitor_interval = 0

    results = {}
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        world = World(folder)
        for name in args.attacks or ATTACKS:
            attack = ATTACKS[name]
            count = args.count or (attack.short if args.short else attack.full)
            with tqdm(total=count, desc=f"{name:<15}", disable=None) as bar:
                results[name] = try_attack(name, count, world, bar, args.trial)
    print_results(results)

    verdicts = [result.verdict for tried in results.values() for result in tried]
    return int(any(verdict in FAULTS for verdict in verdicts))


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m lab.attacks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("attacks", nargs="*", metavar="NAME", help=f"(default: all) {', '.join(ATTACKS)}")
    add("--count", type=positive_int, metavar="N", help="results of each attack")
    add("--short", action="store_true", help="few results of each attack")
    add("--trial", type=int, metavar="N", help="only the trial with this number")
    args = parser.parse_args(arguments)
    for name in args.attacks:
        if name not in ATTACKS:
            parser.error(f"unknown attack {name!r}; the attacks are: {', '.join(ATTACKS)}")
    return args


if __name__ == "__main__":
    run_command("lab.attacks", main)
