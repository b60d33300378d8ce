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
from pathlib import Path, PurePosixPath

import torch

from course.assignment import GRADED, YOURS
from course.blank import new_folder
from course.grade import STUDENTS, cases_of, code_folder, load_cases, run_cases
from course.mistakes import BANK, LIST, read_blocks, read_mistakes
from course.personal import by_hand_command, draw, seeds_of, task
from course.source import ROOT, file_of, replace_body
from kernels import bias_matrix, convolve, offsets
from support.commands import UserError
from support.runs import read_records

# the answer of question 8 of a task by hand
WHICH_ARE_EQUAL = (
    "Only the middle token must have the same result. At the ends a neighbour is missing, and\n"
    "attention divides by the sum of two weights."
)


# --- Sheets ---------------------------------------------------------------------------------------


def answers_command(args):
    """`python -m course by_hand`, with the answers if --answers is given. Returns the exit code."""
    by_hand_command(args)
    if args.answers or args.wrong:
        print(answers(args.name, {step: numbers.split() for step, numbers in args.wrong}))
    return 0


def answers(name, wrong=None):
    """The answers of a task by hand, as text.

    wrong: {"1": the numbers that a student has in step 1}: the steps after it begin with these.
    """
    q, k, v, w, beta = (torch.tensor(rows).float() for rows in draw(name).values())
    lines = []

    def step(number, title, result):
        if wrong and number in wrong:
            result = torch.tensor([float(x) for x in wrong[number]]).view_as(result)
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
    return "\n".join([*lines, WHICH_ARE_EQUAL])


def sheets_command(args):
    """`python -m course sheets`. Returns the exit code.

    For each student a folder with a task by hand, and a right file with one bug in it; and one file
    with all answers and a question for each talk. The secret decides the numbers of each sheet, and
    the order in which bugs and questions are dealt: so nobody else can compute the answers.
    """
    text = Path(args.names).read_text(encoding="utf-8-sig")
    names = [line.strip() for line in text.splitlines() if line.strip()]
    for name in names:
        if "/" in name or names.count(name) > 1:
            raise UserError(f"{name} must name one student, and must not have a slash")

    folder = new_folder(args.folder)
    order = random.Random(args.secret)
    bugs = shuffled(read_mistakes(Path(args.bank, "bugs.diff")), order)
    questions = shuffled(list(read_blocks(Path(args.bank, "questions.txt"))), order)
    lines = ["# Answers, for the instructor"]
    # after the last one comes the first one again
    for name, bug, question in zip(names, itertools.cycle(bugs), itertools.cycle(questions)):
        seed = f"{name}, {args.secret}"
        file = file_of(bug.function)
        code = replace_body((ROOT / file).read_text("utf-8"), bug.function, bug.body())

        # what the student gets: the task without the secret in its title
        (folder / name).mkdir()
        sheet = task(seed).replace(seed, name)
        (folder / name / "by_hand.txt").write_text(sheet + "\n", encoding="utf-8")
        (folder / name / file).write_text(code, encoding="utf-8")
        lines.append(f"\n## {name}\n\n{bug.function}, {bug.what}: {bug.new!r} for {bug.old!r}")
        lines += ["Talk: " + " ".join(question), answers(seed)]
    (folder / "answers.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{folder}: a folder for each of {len(names)} students, and answers.txt for you")
    return 0


def shuffled(values, order):
    return order.sample(values, k=len(values))


# --- Marks and runs -------------------------------------------------------------------------------


def marks_command(args):
    """`python -m course marks`: the sum for each student of a table. Returns the exit code."""
    for path in args.tables:
        # as spreadsheets save it: a byte order mark, semicolons, decimal commas
        text = Path(path).read_text(encoding="utf-8-sig")
        delimiter = ";" if text.startswith("student;") else ","
        students = {}
        for row in csv.DictReader(StringIO(text), delimiter=delimiter):
            points = float((row["points"] or "0").replace(",", "."))
            students.setdefault(row["student"], {})[row["what"]] = points

        for student, of in students.items():
            code = sum(of[function.name] for function in GRADED)
            total = min(code, 10 * of["talk"]) + sum(of[what] for what in YOURS)
            print(f"{student}  {min(100, total):.1f}", f"({path})" if len(args.tables) > 1 else "")
    return 0


def check_runs_command(args):
    """`python -m course check_runs`: are the runs a student's own? Returns the exit code."""
    owners = {}  # {losses of a run: who handed it in}
    found = 0
    for path in map(Path, args.records):
        for record in read_records(path):
            seed = record["settings"]["seed"]
            owner = owners.setdefault(json.dumps(record["curve"]), path.stem)
            if seed not in seeds_of(path.stem):
                print(f"{path.stem}: {record['run']} has the seed {seed}, which is not theirs")
            if owner != path.stem:
                print(f"{path.stem}: {record['run']} has the losses of a run of {owner}")
            found += seed not in seeds_of(path.stem) or owner != path.stem
    print(f"{len(args.records)} students, {found} runs to ask about")
    return int(found > 0)


# --- Do the cases notice mistakes? ----------------------------------------------------------------


def check_command(args):
    """`python -m course check`. Returns the exit code: 1 if a mistake does not fail its case.

    Each known mistake is put into the project's files, and its function is graded.
    """
    mistakes = read_mistakes(LIST) + read_mistakes(Path(args.bank, "bugs.diff"))
    chosen = [mistake for mistake in mistakes if args.function in mistake.function]
    cases = load_cases(args.seed)
    noticed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = pool.map(lambda mistake: failed_cases(mistake, cases), chosen)
        for mistake, messages in zip(chosen, failed, strict=True):
            says = mistake.case in messages
            noticed += says
            print(f"{'' if says else 'NOT NOTICED: '}{mistake.function}: {mistake.what}")
            for name in [mistake.case] if says else messages:
                print(f"    {name}: {messages[name]}", flush=True)
    print(f"{noticed} of {len(chosen)} mistakes fail the case that says so")
    return int(noticed < len(chosen))


def failed_cases(mistake, cases):
    """{case: what differs} of a function with a mistake, where something does."""
    files = {PurePosixPath(file): (ROOT / file).read_bytes() for file in STUDENTS}
    path = PurePosixPath(file_of(mistake.function))
    text = files[path].decode("utf-8")
    files[path] = replace_body(text, mistake.function, mistake.body()).encode("utf-8")
    own = cases_of(cases, mistake.function)
    with code_folder(files) as folder:
        messages = run_cases(folder, own)
    return {case.name: message for case, message in zip(own, messages, strict=True) if message}


BANK_HELP = "a folder with bugs.diff and questions.txt of your own"


def add_commands(add, by_hand):
    """The commands of an instructor. add: of the parser, with a name and its help."""
    # by hand: the answers to a sheet
    by_hand.add_argument("--answers", action="store_true", help="print the answers, too")
    by_hand.add_argument(
        "--wrong",
        nargs=2,
        action="append",
        default=[],
        metavar=("STEP", "NUMBERS"),
        help="and what follows from a student's wrong numbers of a step",
    )
    by_hand.set_defaults(run=answers_command)

    # before the course: what each student gets
    command = add("sheets", sheets_command, "tasks by hand, bugs and questions for a class")
    command.add_argument("names", help="a file with a name or number in each line")
    command.add_argument("folder", help="a new one: a folder per name, and answers.txt")
    command.add_argument("--secret", required=True, help="a word that only you know")
    command.add_argument("--bank", default=BANK, help=BANK_HELP)

    # after it: sums, records, and the cases themselves
    command = add("marks", marks_command, "the sums of tables that you have filled in")
    command.add_argument("tables", nargs="+", help="of grade --csv")

    command = add("check_runs", check_runs_command, "are the runs a student's own?")
    command.add_argument("records", nargs="+", metavar="NAME.jsonl", help="what they handed in")

    command = add("check", check_command, "do the cases notice known mistakes?")
    command.add_argument("function", nargs="?", default="", help="of this function alone")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--bank", default=BANK, help=BANK_HELP)
