"""Attacks on this project's programs: kills, damaged files, two processes, wrong inputs.

    python -m lab.attacks                      all attacks, each with its full count
    python -m lab.attacks flips cache          these two
    python -m lab.attacks flips --count 20     fewer results of it
    python -m lab.attacks --short              few results of each attack, as the tests use it
    python -m lab.attacks flips --trial 7      one trial again, which is printed in full

    python -m lab.attacks --out results/attacks.json

writes the counts to a file, after each attack. For attacks that are not named, the file keeps the
counts that it has. So after an interruption, name only the attacks that are missing.

A program that is attacked may do one of three things:

    refused     it ends with one line that says what is wrong. There may be no line after Ctrl-C
                during the start, a closed output, and the bus error of docs/robustness.md
    equal       after the attack, or after the same command is started again, its files are equal,
                to the bit, to those of a run without the attack
    harmless    the attack changed nothing that anybody reads

Everything else is a fault, and the exit code of this program is 1:

    lost        after a kill, the same command does not continue, or leaves files of killed programs
    silent      another result, and no line about it
    crash       a traceback, an abort, or several lines of message
    hang        no end

The random numbers of a trial depend on the attack and on the number of the trial, so a trial can
be repeated (for two-glue, give the same --count, too). What depends on time may differ: a kill or
Ctrl-C at a random time, and which of two processes comes first. This program works on Linux. It was
not tried on macOS. Windows cannot fork.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
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
from lab.attack_inputs import WORKING, wrong_inputs
from lab.attack_tools import (
    CRASH,
    EQUAL,
    FAULTS,
    HARMLESS,
    LOST,
    POLL_SECONDS,
    REFUSED,
    ROOT,
    SILENT,
    STOPPED,
    TIMEOUT,
    VERDICTS,
    AtCall,
    Result,
    Usual,
    Victim,
    communicate,
    kill_victims,
    prepare_to_fork,
    random_hook,
    run,
    start_and_kill,
    start_python,
    usual_run,
    was_killed,
)
from support.commands import positive_int, run_command
from support.files import write_text
from support.provenance import made_by

MOST_SEEDS = 140  # of one trial of two-glue

# Some trials have no result: a moment that never came. After so many in a row, something is wrong.
MOST_WITHOUT_RESULT = 50


class Trial(NamedTuple):
    """One trial of an attack.

    world: the World of files that are attacked.
    folder: a new folder for the files of this trial.
    random: the random numbers of this trial.
    number: of this trial, from 0.
    left: how many results of this attack are still wanted. A trial may have several.
    """

    world: World
    folder: Path
    random: Random
    number: int
    left: int


# --- Kills ----------------------------------------------------------------------------------------


class Job(NamedTuple):
    """A command that is attacked, and the result that it must have.

    program, arguments: the command.
    usual: its Usual.
    folder: where its results are: a run of pretrain.py, or the results of glue.py.
    reference: the same folder of a command that was not attacked.
    compare: function of these two folders: the names of what differs.
    """

    program: str
    arguments: list
    usual: Usual
    folder: Path
    reference: Path
    compare: Callable

    def differences(self):
        """The names of what differs from the result without an attack."""
        return self.compare(self.folder, self.reference)


def pretraining_job(trial, cache):
    """The Job of pretrain.py with a new run. It prepares its corpus if it is not in `cache`."""
    pretrained = trial.world.pretrained
    new = trial.folder / "run"
    arguments = trial.world.pretraining(cache, new)
    return Job(
        "pretrain.py", arguments, pretrained.usual, new, pretrained.folder, differences_of_runs
    )


def fine_tuning_job(trial, compare=differences_of_results):
    """The Job of glue.py with a copy of the small run."""
    tuned = trial.world.fine_tuned
    new = clone(trial.world.small, trial.folder / "run")
    arguments = trial.world.fine_tuning(new, TASKS)
    return Job("glue.py", arguments, tuned.usual, new / "glue", tuned.folder / "glue", compare)


def kill_pretraining(trial):
    """Kill pretrain.py one to three times, then let it end. The run must be equal to the bit.

    In half of the trials it prepares its corpus first.
    """
    prepared = trial.world.pretrained.cache
    cache = trial.folder / "cache"
    if trial.random.random() < 0.5:
        clone(prepared, cache)
    job = pretraining_job(trial, cache)
    victims = kill_some_times(trial, job)

    # the same command again, until it ends
    outcome = run(trial.folder, job.program, job.arguments)
    differing = job.differences() + differing_files(cache, prepared)
    result = after_kills(outcome, differing, leftovers(trial.folder))
    return results_of_kills(victims, result)


def kill_preparation(trial):
    """Kill the preparation of a corpus, by one process or by two at once, then let it end.

    The files in the cache must be equal to the bit, and there must be no others.
    """
    prepared = trial.world.cache
    cache = trial.folder / "cache"
    arguments = [trial.world.text, cache]

    usual = prepared.usual
    victims = []
    for _ in range(trial.random.randint(1, 3)):
        # sometimes another process does the same
        other = None
        if trial.random.random() < 0.5:
            other = Victim(trial.folder, digest_of_corpus, arguments)

        victim = start_and_kill(trial.random, trial.folder, digest_of_corpus, arguments, usual)
        victims.append(victim)
        if other is not None:
            victims.append(other.kill_after(trial.random.uniform(0, usual.seconds)))

    # the same again, until it ends
    outcome = run(trial.folder, digest_of_corpus, arguments)
    result = after_kills(outcome, differing_files(cache, prepared.folder), [])
    return results_of_kills(victims, result)


def kill_fine_tuning(trial):
    """Kill glue.py one to three times, then let it end. All results and weights must be equal."""
    job = fine_tuning_job(trial)
    victims = kill_some_times(trial, job)
    outcome = run(trial.folder, job.program, job.arguments)
    result = after_kills(outcome, job.differences(), leftovers(trial.folder))
    return results_of_kills(victims, result)


def kill_one_of_two(trial):
    """Two processes do the same at once: two pretrain.py, or two glue.py. Kill one or both of them.

    The other one goes on, or a third start does the rest. The result must be equal to the bit.
    """
    # which program
    cache = trial.folder / "cache"
    is_pretraining = trial.random.random() < 0.5
    if is_pretraining:
        job = pretraining_job(trial, cache)
    else:
        job = fine_tuning_job(trial, differences_of_shared_results)

    # two at once: the first one kills itself, the second one is killed from outside
    hook = random_hook(trial.random, job.usual)
    first = Victim(trial.folder, job.program, job.arguments, hook)
    second = Victim(trial.folder, job.program, job.arguments)
    victims = [second.kill_after(trial.random.uniform(0, 2 * job.usual.seconds)), first.wait()]

    # the same command again, until it ends
    outcome = run(trial.folder, job.program, job.arguments)
    differing = job.differences()
    if is_pretraining:
        differing += differing_files(cache, trial.world.pretrained.cache)
    result = after_kills(outcome, differing, leftovers(trial.folder))
    return results_of_kills(victims, result)


def kill_some_times(trial, job):
    """Start a program one to three times and kill it, unless it ends before.

    Returns the Outcome of each start, a list.
    """
    victims = []
    for _ in range(trial.random.randint(1, 3)):
        victim = start_and_kill(trial.random, trial.folder, job.program, job.arguments, job.usual)
        victims.append(victim)
    return victims


def after_kills(outcome, differing, left):
    """The Result of kills, from the last start of the same command, which nobody killed.

    Args:
        outcome: its Outcome.
        differing: the names of files that differ from those of a run without kills.
        left: the names of files that killed programs left.
    """
    if outcome.fault() is not None:
        return outcome.fault()
    if outcome.code != 0:
        return Result(LOST, f"does not continue: {outcome.last_line()}")
    if differing:
        return Result(SILENT, f"differ: {', '.join(differing)}")
    if left:
        return Result(LOST, f"left: {', '.join(left)}")
    return Result(EQUAL)


def results_of_kills(victims, result):
    """The Results of an attack by kills, a list.

    Args:
        victims: the Outcome of each start that was to be killed.
        result: from `after_kills`.
    """
    # a victim that ended before the kill came must have ended without a fault
    for victim in victims:
        if not was_killed(victim) and victim.fault() is not None:
            return [victim.fault()]

    killed = [victim for victim in victims if was_killed(victim)]
    return one_per_kill(result, len(killed))


def one_per_kill(result, kills):
    """The result once for each kill, a list. A fault is in it even if there was no kill."""
    if kills == 0 and result.verdict in FAULTS:
        return [result]
    return [result for _ in range(kills)]


# --- Two processes --------------------------------------------------------------------------------


def share_fine_tuning(trial):
    """Two glue.py fine-tune one run with many seeds. Each result must be there, and only once."""
    # the seeds: of both together, and of each of them
    count = max(2, min(trial.left, MOST_SEEDS))
    seeds = list(range(1000, 1000 + count))
    seeds_of_each = divide_seeds(seeds, trial.number)

    # one process does all of them, for comparison
    alone = clone(trial.world.small, trial.folder / "alone")
    seconds = TIMEOUT + count
    usual_run(trial.folder, "glue.py", fine_tuning_seeds(trial, alone, seeds), seconds)

    # two processes
    shared = clone(trial.world.small, trial.folder / "shared")
    victims = []
    for numbers in seeds_of_each:
        arguments = fine_tuning_seeds(trial, shared, numbers)
        victims.append(Victim(trial.folder, "glue.py", arguments))
    outcomes = [victim.wait(seconds) for victim in victims]

    result = after_sharing(outcomes, seeds, shared, alone)
    return [result for _ in seeds]


def divide_seeds(seeds, number):
    """The seeds of two processes, a pair of lists. There are three ways, which take turns:

        number % 3 == 0    each process has its own half of the seeds
        number % 3 == 1    both have all seeds
        number % 3 == 2    both have all seeds; the second one has them in reverse order

    Args:
        seeds: a list.
        number: of the trial.
    """
    half = len(seeds) // 2
    if number % 3 == 0:
        return seeds[:half], seeds[half:]
    if number % 3 == 1:
        return seeds, seeds
    return seeds, list(reversed(seeds))


def fine_tuning_seeds(trial, run_folder, seeds):
    """The command line of glue.py for one task and these seeds."""
    return trial.world.fine_tuning(run_folder, ["sst-2"]) + ["--seeds", *seeds]


def after_sharing(outcomes, seeds, shared, alone):
    """The Result if two processes fine-tuned one run.

    Args:
        outcomes: of both processes.
        seeds: of both together.
        shared: the folder of their run.
        alone: the folder of a run that one process fine-tuned with the same seeds.
    """
    for outcome in outcomes:
        if outcome.fault() is not None:
            return outcome.fault()
        if outcome.code != 0:
            return Result(LOST, outcome.last_line())

    # each result was announced once
    announced = []
    for outcome in outcomes:
        announced += re.findall(r"^sst-2 +seed (\d+)", outcome.out, re.MULTILINE)
    if sorted(announced) != sorted(map(str, seeds)):
        note = f"{len(announced)} results of {len(set(announced))} seeds announced"
        return Result(SILENT, f"{note}, not {len(seeds)}")

    # each result is in the file once, and equal
    differing = differences_of_shared_results(shared / "glue", alone / "glue")
    differing += leftovers(shared)
    if differing:
        return Result(SILENT, f"differ: {', '.join(differing)}")
    return Result(EQUAL)


def mix_settings(trial):
    """Two glue.py with different --lr and one --name, which is empty at the start.

    The second one to write a result must be refused: a table never has both settings.
    """
    # the second one starts a little later
    new = clone(trial.world.small, trial.folder / "run")
    arguments = trial.world.fine_tuning(new, ["sst-2"])
    first = Victim(trial.folder, "glue.py", [*arguments, "--lr", 1e-3])
    time.sleep(trial.random.uniform(0, trial.world.fine_tuned.usual.seconds / 4))
    second = Victim(trial.folder, "glue.py", [*arguments, "--lr", 2e-3])
    outcomes = [first.wait(), second.wait()]
    for outcome in outcomes:
        if outcome.fault() is not None:
            return [outcome.fault()]

    # one of them did all its work, the other one was refused
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
    pretrained = trial.world.pretrained
    job = pretraining_job(trial, clone(pretrained.cache, trial.folder / "cache"))

    # the second one starts when the first one has the folder
    first = Victim(trial.folder, job.program, job.arguments)
    end = time.perf_counter() + TIMEOUT
    while first.is_running() and not (job.folder / "run.lock").exists():
        time.sleep(POLL_SECONDS)
        if time.perf_counter() > end:
            break  # it hangs, which is noticed below
    time.sleep(trial.random.uniform(0, 0.8) * pretrained.usual.seconds)
    more = trial.random.choice(([], ["--seed", 1]))
    second = run(trial.folder, job.program, job.arguments + more)
    outcome = first.wait()

    # the first one is as usual
    for each in (outcome, second):
        if each.fault() is not None:
            return [each.fault()]
    if outcome.code != 0:
        return [Result(LOST, f"the first one: {outcome.last_line()}")]
    differing = job.differences() + leftovers(trial.folder)
    if differing:
        return [Result(SILENT, f"differ: {', '.join(differing)}")]

    # the second one was refused, or it was late
    if second.code == 0:
        return [Result(HARMLESS)]
    return [Result(REFUSED)]


# --- Damaged files --------------------------------------------------------------------------------


class Weights(NamedTuple):
    """A file of weights, and a command that reads it."""

    path: Path
    program: str
    arguments: list


def flip_weights(trial):
    """Flip one bit of a file of weights; in every seventh trial, cut the file off.

    The program that reads it must refuse it in a line that names it, or read the same values: there
    are bytes between the parts of the file that mean nothing.
    """
    # an undamaged file, and a copy of it
    choose = trial.random.choice((model_weights, state_weights, best_weights, encoder_weights))
    weights = choose(trial)
    path = weights.path
    original = trial.folder / "original.pt"
    shutil.copy(path, original)

    # damage it; the copy of the damaged file is there even if the program replaces the file
    damage = flip_bit
    if trial.number % 7 == 6:
        damage = cut
    replace_file(path, damage(trial.random, path.read_bytes()))
    damaged = trial.folder / "damaged.pt"
    shutil.copy(path, damaged)

    # refused, in a line that names the file
    outcome = run(trial.folder, weights.program, weights.arguments)
    if outcome.fault() is not None:
        return [outcome.fault()]
    if outcome.code != 0 and path.name in outcome.error:
        return [Result(REFUSED)]

    # otherwise it has the same values
    values = run(trial.folder, same_values, [damaged, original])
    if values.fault() is None and values.code == 0:
        return [Result(HARMLESS)]
    note = f"{weights.program} and a damaged {path.name}: {outcome.last_line()}"
    if outcome.code != 0 and values.code != 1:
        return [Result(CRASH, f"{note} (the message does not name the file)")]
    return [Result(SILENT, note)]


def model_weights(trial):
    """The Weights of a run."""
    new = clone(trial.world.pretrained.folder, trial.folder / "run")
    return Weights(new / "model.pt", "model.py", [new, SENTENCE])


def state_weights(trial):
    """The Weights in the checkpoint of an unfinished run."""
    new = clone(trial.world.unfinished, trial.folder / "run")
    arguments = trial.world.pretraining(trial.world.pretrained.cache, new)
    return Weights(new / "train_state.pt", "pretrain.py", arguments)


def best_weights(trial):
    """The Weights of the best run of a task, which makes the predictions."""
    new = clone(trial.world.run_with_results, trial.folder / "run")
    path = trial.random.choice(sorted(new.glob("glue/best-*.pt")))
    arguments = ["predict", new, "--data_dir", trial.world.glue, "--allow_partial"]
    return Weights(path, "glue.py", [*arguments, "--device", "cpu"])


def encoder_weights(trial):
    """The Weights of the encoder that was fine-tuned on MNLI, from which RTE starts."""
    new = clone(trial.world.fine_tuned.folder, trial.folder / "run")
    results = new / "glue" / "results.jsonl"
    lines = results.read_text(encoding="utf-8").splitlines(keepends=True)
    others = [line for line in lines if '"task": "rte"' not in line]
    results.write_text("".join(others), encoding="utf-8")
    path = min(new.glob("glue/mnli-seed*.pt"))
    return Weights(path, "glue.py", trial.world.fine_tuning(new, ["rte"]))


def damage_corpus(trial):
    """Damage a file of a prepared corpus, in one of many ways.

    The next start must prepare the corpus again, with a line that says so, or refuse it.
    """
    prepared = trial.world.cache
    new = clone(prepared.folder, trial.folder / "cache")
    files = sorted(path for path in new.rglob("*") if path.is_file())
    what = damage_file(trial.random, trial.random.choice(files), files)

    # the same corpus?
    outcome = run(trial.folder, digest_of_corpus, [trial.world.text, new])
    fault = outcome.fault()
    if fault is not None:
        return [Result(fault.verdict, f"{what}: {fault.note}")]
    if outcome.code != 0:
        return [Result(REFUSED)]
    if last_word(outcome) != prepared.digest:
        return [Result(SILENT, f"{what}: another corpus")]

    # it was prepared again, or the change meant nothing
    if "it is prepared again" not in outcome.out:
        return [Result(HARMLESS, what)]
    differing = differing_files(new, prepared.folder)
    if differing:
        return [Result(LOST, f"{what}, prepared again; differ: {', '.join(differing)}")]
    return [Result(EQUAL)]


# --- Files that are damaged while a program runs --------------------------------------------------


def damage_while_running(trial):
    """Remove, cut, zero or empty a file while pretrain.py or glue.py is running.

    It must end with one line, or with results equal to the bit. If the damage came after the file
    was used, then the next program that reads it must say so.
    """
    # the victim damages a file itself, at a call that changes the disk
    job = job_on_copies(trial)
    number = trial.random.randint(1, job.usual.calls)

    def damage_it():
        damage_some_file(trial.folder, trial.random)

    outcome = run(trial.folder, job.program, job.arguments, AtCall(number, damage_it))
    note = trial.folder / "damage.txt"
    if not note.exists():
        return []  # it made fewer calls than usual
    damage = note.read_text(encoding="utf-8")

    # "bus error": docs/robustness.md says when this can happen
    if outcome.code == -signal.SIGBUS and damage.endswith((".bin cut", ".bin empty")):
        return [Result(REFUSED, damage)]

    # it ended with a message, or as usual
    fault = outcome.fault()
    if fault is not None:
        return [Result(fault.verdict, f"{job.program}, {damage}: {fault.note}")]
    if outcome.code not in (0, *STOPPED):
        return [Result(REFUSED, damage)]
    return [after_damage(trial, job, damage)]


def job_on_copies(trial):
    """A Job of pretrain.py or glue.py. All files that it reads are copies in its own folder."""
    world = trial.world
    if trial.random.random() < 0.5:
        job = pretraining_job(trial, trial.folder / "cache")
        text = shutil.copy(world.text, trial.folder / "text.txt")
        return job._replace(arguments=[*job.arguments, "--corpus", text])

    # the clone of a run shares its weights with the original, so this is a real copy
    tuned = world.fine_tuned
    new = shutil.copytree(world.small, trial.folder / "run")
    data = shutil.copytree(world.glue, trial.folder / "glue_data")
    arguments = world.fine_tuning(new, TASKS) + ["--data_dir", data]
    return Job(
        "glue.py",
        arguments,
        tuned.usual,
        new / "glue",
        tuned.folder / "glue",
        differences_of_results,
    )


def damage_some_file(folder, random):
    """In the victim: damage a file of the trial, and write into damage.txt what was done."""
    # {"run", "cache", "text.txt" or "glue_data": its files}
    groups = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).parts[0]
        if path.is_file() and not name.startswith("victim-"):
            groups.setdefault(name, []).append(path)

    # choose one of these, and then one of its files
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
    elif kind == "cut":
        os.truncate(path, size // 2)
    else:
        os.truncate(path, 0)
    note = f"{path.relative_to(folder)} {kind}"
    (folder / "damage.txt").write_text(note, encoding="utf-8")


def after_damage(trial, job, damage):
    """The Result if a program ended without a message although a file was damaged.

    Args:
        job: a Job.
        damage: what was done, in words.
    """
    differing = job.differences()
    if not differing:
        return Result(EQUAL, damage)

    # results that are missing although the exit code is 0
    if "results.jsonl" in differing:
        return Result(SILENT, f"{job.program}, {damage}: other results")

    # Start programs that read the files, until one of them refuses the damaged one.
    for program, arguments in readers_of(trial, job, differing):
        outcome = run(trial.folder, program, arguments)
        fault = outcome.fault()
        if fault is not None:
            return Result(fault.verdict, f"{program} after {job.program}, {damage}: {fault.note}")
        if outcome.code != 0:
            return Result(REFUSED, damage)

    # nobody has noticed it; the same command again may have repaired it
    differing = job.differences()
    if differing:
        return Result(SILENT, f"{job.program}, {damage}: differ: {', '.join(differing)}")
    return Result(EQUAL, damage)


def readers_of(trial, job, differing):
    """Programs that read the results of a Job: a list of (program, arguments)."""
    # the same command again, one that reads the model, one that reads the log
    new = trial.folder / "run"
    readers = [(job.program, job.arguments), ("model.py", [new, SENTENCE])]
    if job.program == "pretrain.py":
        readers.append(("lab.figures", ["loss", new, "--out", trial.folder / "loss"]))

    # and one that reads the weights themselves
    for name in differing:
        if name.endswith(".pt"):
            readers.append((same_values, [job.folder / name, job.reference / name]))
    return readers


# --- Wrong inputs ---------------------------------------------------------------------------------


def give_wrong_input(trial):
    """A command with one wrong value, path, name or file. It must be refused."""
    inputs = wrong_inputs()
    wrong = inputs[trial.number % len(inputs)]
    arguments = with_own_files(trial, wrong.arguments)
    if wrong.prepare is not None:
        wrong.prepare(trial.folder)
    outcome = run(trial.folder, wrong.program, arguments)

    # the verdict
    shortened = [argument[:60] for argument in arguments]
    note = f"{wrong.program} {' '.join(shortened)} {wrong.name}"
    fault = outcome.fault()
    if fault is not None:
        return [Result(fault.verdict, f"{note}: {fault.note}")]
    if outcome.code not in (0, 1, 2):
        return [Result(CRASH, f"{note}: exit code {outcome.code}")]
    if outcome.code == 0:
        return [Result(SILENT, f"{note}: accepted")]
    return [Result(REFUSED, f"{note}: {outcome.last_line()}")]


def give_right_input(trial):
    """One of the commands from which the wrong inputs are made. Unchanged, it must work."""
    program, arguments = WORKING[trial.number % len(WORKING)]
    outcome = run(trial.folder, program, with_own_files(trial, arguments))
    fault = outcome.fault()
    if fault is not None:
        return [Result(fault.verdict, f"{program}: {fault.note}")]
    if outcome.code != 0:
        return [Result(LOST, f"{program} {arguments[0]} is refused: {outcome.last_line()}")]
    return [Result(HARMLESS)]


def with_own_files(trial, arguments):
    """The arguments of a command in lab/attack_inputs.py with the names of copies of the files."""
    # copies, so that the next trial finds the files as they were
    world = trial.world
    names = {
        "run": clone(world.run_with_results, trial.folder / "run"),
        "text": world.text,
        "data": world.glue,
        "cache": clone(world.pretrained.cache, trial.folder / "cache"),
        "folder": trial.folder,
    }
    return [argument.format(**names) for argument in arguments]


# --- Signals and outputs --------------------------------------------------------------------------


def signal_while_saving(trial):
    """Two signals, SIGTERM or SIGINT, while pretrain.py or glue.py writes a file.

    It must end with one line at most and without an abort. The same command continues from there,
    and its result must be equal to the bit.
    """
    numbers = trial.random.choices((signal.SIGTERM, signal.SIGINT), k=2)

    def send():
        for number in numbers:
            os.kill(os.getpid(), number)

    # the program, and the moment
    if trial.random.random() < 0.5:
        job = pretraining_job(trial, trial.world.pretrained.cache)
    else:
        job = fine_tuning_job(trial)
    call = trial.random.randint(1, job.usual.calls)
    hook = AtCall(call, send, after=trial.random.random() < 0.5)

    outcome = run(trial.folder, job.program, job.arguments, hook)
    if outcome.fault() is not None:
        return [outcome.fault()]
    if outcome.code not in (0, *STOPPED):
        return [Result(CRASH, f"exit code {outcome.code}: {outcome.last_line()}")]

    # the same command again
    outcome = run(trial.folder, job.program, job.arguments)
    return [after_kills(outcome, job.differences(), leftovers(trial.folder))]


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

    # An error before Python reads the first line of the program is not an error of this project.
    is_ours = str(ROOT) in outcome.error
    if "Traceback" in outcome.error and not is_ours:
        return []
    if outcome.code == -signal.SIGINT and not outcome.error:
        return [Result(REFUSED)]
    fault = outcome.fault()
    if fault is not None:
        return [Result(fault.verdict, f"{program}: {fault.note}")]
    if outcome.code == 0:
        return [Result(HARMLESS)]
    return [Result(REFUSED)]


def close_output(trial):
    """Programs whose standard output is closed, full, or a pipe that nobody reads.

    They must end with one line at most. If the exit code is 0, then their files are complete.
    """
    # a program that prints a table or a text, or one that trains
    world = trial.world
    new = clone(world.fine_tuned.folder, trial.folder / "run")
    out = trial.folder / "new"
    programs = [
        ("toy", ["--sentences", 3000]),
        ("model.py", [new, SENTENCE]),
        ("glue.py", ["table", new]),
        ("glue.py", ["--help"]),
        ("lab.figures", ["fixed", new, "--describe"]),
        ("pretrain.py", world.pretraining(world.pretrained.cache, out)),
        ("glue.py", world.fine_tuning(new, ["wnli"])),
    ]
    program, arguments = programs[trial.number % len(programs)]

    # the program with each kind of output in turn; macOS has no /dev/full
    kinds = ["closed", "pipe"]
    if os.path.exists("/dev/full"):
        kinds = ["closed", "full", "pipe"]
    kind = kinds[trial.number // len(programs) % len(kinds)]
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
    fault = outcome.fault()
    if fault is not None:
        return [Result(fault.verdict, f"{note}: {fault.note}")]
    if outcome.code != 0:
        return [Result(REFUSED, note)]
    if program == "pretrain.py" and differences_of_runs(out, world.pretrained.folder):
        return [Result(SILENT, note)]
    return [Result(HARMLESS, note)]


# --- All attacks ----------------------------------------------------------------------------------


class Attack(NamedTuple):
    """An attack.

    what: a name for tables.
    function: of a Trial; it returns a list of Results.
    full, short: how many results the full and the short form have.
    """

    what: str
    function: Callable
    full: int
    short: int


# fmt: off
ATTACKS = {
    "kills-pretrain": Attack("kills of pretrain.py", kill_pretraining, 70, 1),
    "kills-prepare":  Attack("kills while a corpus is prepared", kill_preparation, 50, 2),
    "kills-glue":     Attack("kills of glue.py", kill_fine_tuning, 70, 1),
    "kills-two":      Attack("kills of one of two processes", kill_one_of_two, 40, 1),
    "two-glue":       Attack("results of two glue.py on one run", share_fine_tuning, 420, 4),
    "two-settings":   Attack("two glue.py with other settings", mix_settings, 8, 1),
    "two-pretrain":   Attack("a second pretrain.py on a run", share_pretraining, 12, 1),
    "flips":          Attack("flipped bits and cut files of weights", flip_weights, 700, 4),
    "cache":          Attack("damages of a prepared corpus", damage_corpus, 1800, 5),
    "mid-run":        Attack("damages while a program runs", damage_while_running, 60, 1),
    "controls":       Attack("commands without an attack", give_right_input, len(WORKING), 1),
    "inputs":         Attack("wrong inputs", give_wrong_input, len(wrong_inputs()), 5),
    "signals":        Attack("two signals while a file is written", signal_while_saving, 30, 1),
    "imports":        Attack("Ctrl-C during the start", interrupt_start, 20, 1),
    "outputs":        Attack("closed and full outputs", close_output, 21, 1),
}
# fmt: on


def try_attack(name, count, world, bar):
    """Try an attack until it has `count` results or more. Faults are printed.

    Returns:
        A list of Results.
    Raises:
        RuntimeError: many trials in a row had no result.
    """
    results = []
    number = 0
    without_result = 0
    while len(results) < count:
        new = try_once(name, number, world, count - len(results))
        print_new(name, number, new, FAULTS)
        results += new
        bar.update(min(len(new), count - bar.n))

        # Without a limit, this could go on without end.
        number += 1
        without_result += 1
        if new:
            without_result = 0
        if without_result == MOST_WITHOUT_RESULT:
            raise RuntimeError(f"{name}: {without_result} trials in a row have no result")
    return results


def try_once(name, number, world, left):
    """One trial of an attack: a list of Results, which may be empty.

    Args:
        name: of the attack.
        number: of the trial.
        world: the World.
        left: how many results are still wanted.
    """
    # the files of a trial are deleted after it
    with tempfile.TemporaryDirectory(dir=world.folder, prefix=f"{name}-") as folder:
        random = Random(f"{name} {number}")
        trial = Trial(world, Path(folder), random, number, left)
        try:
            return ATTACKS[name].function(trial)
        finally:
            kill_victims()  # of an attack that was interrupted


def print_new(name, number, results, verdicts):
    """Print the different results of a trial that have one of these verdicts."""
    for result in dict.fromkeys(results):
        if result.verdict in verdicts:
            tqdm.write(f"{name} --trial {number}: {result.verdict}: {result.note}")


def count_verdicts(results):
    """{verdict: how many of the results have it} for all VERDICTS."""
    verdicts = [result.verdict for result in results]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def count_faults(verdicts):
    """How many results are faults. verdicts: from count_verdicts."""
    return sum(verdicts[verdict] for verdict in FAULTS)


def print_table(counts):
    """Print a line for each attack. counts: {name of the attack: its count_verdicts}."""
    titles = "".join(f"{title:>9}" for title in ("tried", *VERDICTS))
    print(f"{'attack':<15}{titles}")
    for name, verdicts in counts.items():
        cells = "".join(f"{count:>9}" for count in (sum(verdicts.values()), *verdicts.values()))
        print(f"{name:<15}{cells}")


# --- The record -----------------------------------------------------------------------------------


def read_record(path):
    """{name of an attack: its record} of a file; {} if there is no file.

    Raises ValueError if it is not such a file.
    """
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it") from None
    if not isinstance(record, dict) or not record.keys() <= ATTACKS.keys():
        raise ValueError(f"{path} is not a record of attacks: give another --out")
    return record


def add_to_record(path, name, verdicts, seconds):
    """Add what came out of an attack to a file. An earlier record of this attack is replaced.

    Args:
        path: of the file.
        name: of the attack.
        verdicts: from count_verdicts.
        seconds: how long it took.
    """
    record = read_record(path)
    record[name] = {
        "what": ATTACKS[name].what,
        "tried": sum(verdicts.values()),
        "verdicts": verdicts,
        "seconds": round(seconds, 1),
        "made_by": made_by(torch.device("cpu")),
    }

    # in the order of ATTACKS
    ordered = {name: record[name] for name in ATTACKS if name in record}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(ordered, indent=2) + "\n")


# --- The command line -----------------------------------------------------------------------------


def main(arguments=None):
    """Try the attacks. Returns the exit code: 1 if there was a fault."""
    args = parse_arguments(arguments)
    if not hasattr(os, "fork"):
        raise ValueError("this system has no fork, so the attacks cannot be started here")

    # a wrong file is refused before the work
    if args.out is not None:
        read_record(args.out)

    # one trial, or the attacks
    prepare_to_fork()
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        world = World(folder)
        if args.trial is not None:
            return repeat_trial(args.attacks[0], args.trial, args.count, world)
        counts = try_attacks(args, world)

    print_table(counts)
    return int(any(count_faults(verdicts) > 0 for verdicts in counts.values()))


def try_attacks(args, world):
    """Try the attacks of a command line: {name: its count_verdicts}."""
    counts = {}
    for name in args.attacks or ATTACKS:
        # how many results
        count = ATTACKS[name].full
        if args.short:
            count = ATTACKS[name].short
        if args.count is not None:
            count = args.count

        started = time.perf_counter()
        with tqdm(total=count, desc=f"{name:<15}", disable=None) as bar:
            counts[name] = count_verdicts(try_attack(name, count, world, bar))
        if args.out is not None:
            add_to_record(args.out, name, counts[name], time.perf_counter() - started)
    return counts


def repeat_trial(name, number, count, world):
    """Do one trial of an attack and print its results. Returns the exit code.

    count: how many results the attack has; None: those of its full form.
    """
    results = try_once(name, number, world, count or ATTACKS[name].full)
    print_new(name, number, results, VERDICTS)
    return int(any(result.verdict in FAULTS for result in results))


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
    add("--trial", type=int, metavar="N", help="only the trial with this number, of one attack")
    add("--out", type=Path, metavar="FILE", help="keep the counts in this file")
    args = parser.parse_args(arguments)

    # what does not fit together
    for name in args.attacks:
        if name not in ATTACKS:
            parser.error(f"unknown attack {name!r}; the attacks are: {', '.join(ATTACKS)}")
    if args.trial is not None and len(args.attacks) != 1:
        parser.error("--trial needs the NAME of one attack")
    if args.trial is not None and args.out is not None:
        parser.error("--out keeps the counts of attacks, not of one --trial")
    return args


if __name__ == "__main__":
    run_command("lab.attacks", main)
