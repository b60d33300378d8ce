"""What the instructor's copy alone has: sheets with answers, and a check of the tests.

Students' copies do not have this file and course/mistakes.py, because they show what is right.
"""

import itertools
import math
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from course.assignment import FUNCTIONS
from course.blank import ROOT, file_of, new_folder, replace_body
from course.grade import Body, grade_function
from course.mistakes import BUGS, MISTAKES
from course.personal import by_hand_command, draw, task
from support.commands import UserError

# the answer of question 8 of a task by hand
WHICH_ARE_EQUAL = (
    "Only the middle token must have the same result. At the ends a neighbour is missing, and\n"
    "attention divides by the sum of two weights."
)


def answers_command(args):
    """`python -m course by_hand`, with the answers if --answers is given. Returns the exit code."""
    by_hand_command(args)
    if args.answers:
        print(answers(args.name))
    return 0


def answers(name):
    """The answers of a task by hand, as text."""
    # imported here: the grader needs no torch of its own, and importing it takes seconds
    import torch

    from attention import composite_attention
    from kernels import bias_matrix, convolve, offsets

    # one head, so all are (N, d), (d, K) or (1, K)
    q, k, v, w, beta = (torch.tensor(rows).float() for rows in draw(name).values())
    bias = q @ w / math.sqrt(2) + beta  # (N, K)
    matrix = bias_matrix(bias, len(q))  # (N, N)
    scores = q @ k.t() / math.sqrt(2) + matrix  # (N, N)
    kernels = bias.softmax(dim=-1)  # (N, K)
    in_window = matrix.masked_fill(offsets(len(q), "cpu").abs() > 1, -math.inf)  # (N, N)
    steps = {
        "1. the biases": bias,
        "2. the bias matrix": matrix,
        "3. the scores": scores,
        "4. the attention matrix": scores.softmax(dim=-1),
        "5. z": composite_attention(q[None], k[None], v[None], w, beta)[0],
        "6. the kernels": kernels,
        "7. the convolution": convolve(kernels[None, None], v[None, None])[0, 0],
        "8. attention with the bias alone, in the window": in_window.softmax(dim=-1) @ v,
    }
    lines = [f"{title}\n{numbers.numpy().round(3)}" for title, numbers in steps.items()]
    return "\n".join([*lines, WHICH_ARE_EQUAL])


def sheets_command(args):
    """`python -m course sheets`. Returns the exit code.

    For each student a folder with a task by hand, and a right file with one mistake in it; and one
    file with all answers. The secret decides the numbers of each sheet, and the order in which the
    bugs are dealt to the names of the list: so nobody else can compute the answers.
    """
    lines = [line.strip() for line in Path(args.names).read_text("utf-8").splitlines()]
    names = [name for name in lines if name]
    for name in names:
        if "/" in name:
            raise UserError(f"{name} names a folder, and must not have a slash")

    folder = new_folder(args.folder)
    bugs = random.Random(args.secret).sample(BUGS, k=len(BUGS))  # all, in another order
    lines = ["# Answers, for the instructor"]
    # after the last bug comes the first one again
    for name, mistake in zip(names, itertools.cycle(bugs), strict=False):
        seed = f"{name}, {args.secret}"
        file = file_of(mistake.function)
        text = replace_body((ROOT / file).read_text("utf-8"), mistake.function, mistake.body())

        # what the student gets: the task without the secret in its title
        (folder / name).mkdir()
        sheet = task(seed).replace(seed, name)
        (folder / name / "by_hand.txt").write_text(sheet + "\n", encoding="utf-8")
        (folder / name / file).write_text(text, encoding="utf-8")
        bug = f"{mistake.function}, {mistake.what}: {mistake.new!r} for {mistake.old!r}"
        lines.append(f"\n## {name}\n\n{bug}\n\n{answers(seed)}")
    (folder / "answers.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{folder}: a folder for each of {len(lines) - 1} students, and answers.txt for you")
    return 0


def check_command(args):
    """`python -m course check`. Returns the exit code: 1 if a mistake is not noticed.

    Each known mistake is put into a fresh copy of the project, in which everything else is right.
    There the tests of the function run.
    """
    chosen = [mistake for mistake in MISTAKES if args.function in mistake.function]
    noticed = 0

    # Each thread waits for a process of its own. map keeps the order of the table.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        grades = threads.map(try_mistake, chosen)
        for mistake, grade in zip(chosen, grades, strict=True):
            noticed += grade.points < 1
            share = "NOT NOTICED" if grade.points == 1 else f"{grade.points:.0%} left"
            print(f"{share:<12}{mistake.function}: {mistake.what}", flush=True)
            print(grade.output.partition("\n")[2])
    print(f"{noticed} of {len(chosen)} mistakes are noticed")
    return int(noticed < len(chosen))


def try_mistake(mistake):
    """The Grade of a function with a mistake, out of one point."""
    [function] = [line for line in FUNCTIONS if line.name == mistake.function]
    body = Body(mistake.body(), {})
    return grade_function(function._replace(points=1), body, {})
