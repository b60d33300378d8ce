"""What the instructor's copy alone has: sheets with answers, marks, and a check of the cases.

Students' copies do not have this file and the mistakes, because they show what is right.
"""

import csv
import itertools
import json
import math
import os
import random
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path

import torch

from course.assignment import COLUMNS
from course.blank import new_folder
from course.grade import changed_files, load_cases, run_cases
from course.mistakes import LIST, read_blocks, read_mistakes
from course.personal import draw, seeds_of, task
from course.source import file_of
from kernels import bias_matrix, convolve, offsets
from support.runs import read_records

# --- Sheets ---------------------------------------------------------------------------------------


def answers_command(args):
    """`python -m course answers NAME`. Returns the exit code."""
    print(answers(args.name, dict(args.wrong)))
    return 0


def answers(name, wrong=()):
    """The answers of a task by hand, as text.

    wrong: {"1": "0.5 0 ..."}, a student's numbers of step 1: the steps after it begin with these.
    """
    q, k, v, w, beta = draw(name).values()
    lines = []

    def step(number, title, result):
        if number in wrong:
            result = torch.tensor([float(x) for x in wrong[number].split()]).view_as(result)
        lines.append(f"{number}. {title}\n{result.numpy().round(3)}")
        return result

    # one head, so all are (N, d), (d, K) or (1, K)
    bias = step("1", "the biases", q @ w / math.sqrt(2) + beta)  # (N, K)
    matrix = step("2", "the bias matrix", bias_matrix(bias, 3))  # (N, N)
    scores = step("3", "the scores", q @ k.t() / math.sqrt(2) + matrix)  # (N, N)
    p = step("4", "the attention matrix", scores.softmax(dim=-1))
    step("5", "z", p @ v)
    kernels = step("6", "the kernels", bias.softmax(dim=-1))  # (N, K)
    step("7", "the convolution", convolve(kernels[None, None], v[None, None])[0, 0])
    in_window = matrix.masked_fill(offsets(3, "cpu").abs() > 1, -math.inf)  # (N, N)
    step("8", "attention with the bias alone, in the window", in_window.softmax(dim=-1) @ v)
    return "\n".join(lines)


def sheets_command(args):
    """`python -m course sheets`. Returns the exit code.

    For each student a folder with a task by hand, and a right file with one bug in it; and one file
    with all answers and a question for each talk. The secret decides the numbers of each sheet, and
    the order in which bugs and questions are dealt: so nobody else can compute the answers.
    """
    text = Path(args.names).read_text(encoding="utf-8-sig")
    names = [line.strip() for line in text.splitlines() if line.strip()]
    folder = new_folder(args.folder)
    order = random.Random(args.secret)
    bugs = read_mistakes(Path(args.bank, "bugs.diff"))
    questions = list(read_blocks(Path(args.bank, "questions.txt")))
    order.shuffle(bugs)
    order.shuffle(questions)
    lines = ["# Answers, for the instructor"]
    # after the last one comes the first one again
    for name, bug, question in zip(names, itertools.cycle(bugs), itertools.cycle(questions)):
        seed = f"{name}, {args.secret}"

        # what the student gets: the task without the secret in its title
        (folder / name).mkdir()
        sheet = task(seed).replace(seed, name)
        (folder / name / "by_hand.txt").write_text(sheet + "\n", encoding="utf-8")
        file = file_of(bug.function)
        code = changed_files(bug.function, bug.put_into)[file]
        (folder / name / file).write_bytes(code)
        lines.append(f"\n## {name}\n\n{bug.function}, {bug.what}: {bug.new!r} for {bug.old!r}")
        lines += ["Talk: " + " ".join(question), answers(seed)]
    (folder / "answers.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{folder}: a folder for each of {len(names)} students, and answers.txt for you")
    return 0


# --- Marks and runs -------------------------------------------------------------------------------


def marks_command(args):
    """`python -m course marks`: the sum for each student of a table. Returns the exit code."""
    for path in args.tables:
        # as spreadsheets save it: a byte order mark, semicolons, decimal commas
        text = Path(path).read_text(encoding="utf-8-sig")
        delimiter = ";" if text.startswith("student;") else ","
        for row in csv.DictReader(StringIO(text), delimiter=delimiter):
            points = {what: float((row[what] or "0").replace(",", ".")) for what in COLUMNS}

            # what was done at home counts only as far as the talk allows
            in_the_room = points["by hand"] + points["talk"]
            at_home = sum(points.values()) - in_the_room
            total = in_the_room + min(at_home, 20 * points["talk"])
            print(f"{row['student']}  {min(100, total):.1f}")
    return 0


def check_runs_command(args):
    """`python -m course check_runs`: are the runs a student's own? Returns the exit code."""
    owners = {}  # {losses of a run: who handed it in}
    found = 0
    for path in map(Path, args.records):
        student = path.stem
        for record in read_records(path):
            seed = record["settings"]["seed"]
            owner = owners.setdefault(json.dumps(record["curve"]), student)
            if seed not in seeds_of(student):
                found += 1
                print(f"{student}: {record['run']} has the seed {seed}, which is not theirs")
            if owner != student:
                found += 1
                print(f"{student}: {record['run']} has the losses of a run of {owner}")
    print(f"{len(args.records)} students, {found} things to ask about")
    return int(found > 0)


# --- Do the cases notice mistakes? ----------------------------------------------------------------


def check_command(args):
    """`python -m course check`. Returns the exit code: 1 if a mistake does not fail its case.

    Each known mistake is put into the project's files, and its function is graded.
    """
    mistakes = read_mistakes(LIST) + read_mistakes(Path(args.bank, "bugs.diff"))
    cases = load_cases(seed=0)
    noticed = 0

    # only the case that it names is run: the others say nothing about it
    def message_of(mistake):
        named = [c for c in cases if (c.function, c.name) == (mistake.function, mistake.case)]
        files = changed_files(mistake.function, mistake.put_into)
        return run_cases(files, named)[mistake.function][mistake.case]

    # as many at once as there are cores
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mistake, message in zip(mistakes, pool.map(message_of, mistakes), strict=True):
            noticed += bool(message)
            print(f"{mistake.function}: {mistake.what}")
            print(f"    {mistake.case}: {message or 'NOT NOTICED'}", flush=True)
    print(f"{noticed} of {len(mistakes)} mistakes fail the case that says so")
    return int(noticed < len(mistakes))
