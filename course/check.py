"""Checking the grader: known mistakes, one at a time, must fail in the tests of their functions.

Each mistake of course/mistakes.py is put into a fresh copy of the project, in which everything else
is right. There the tests of the function run.
"""

import os
from concurrent.futures import ThreadPoolExecutor

from tqdm import tqdm

from course.assignment import GRADED
from course.grade import grade_of, results_of, run_tests
from course.mistakes import MISTAKES


def check_command(args):
    """`python -m course check`. Returns the exit code: 1 if a mistake is not noticed."""
    missed = []

    # Each thread waits for a process of its own. map keeps the order of the table.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        outcomes = threads.map(try_mistake, MISTAKES)
        for mistake, function, grade in tqdm(outcomes, total=len(MISTAKES), unit="mistake"):
            line = f"{mistake.function}: {mistake.what}"
            left = f"{grade.points:.2f} of {function.points}"
            if grade.points == function.points:
                missed.append(line)
                left = "NOT NOTICED"
            tqdm.write(f"{left:<14}{line}")

    print(f"{len(MISTAKES) - len(missed)} of {len(MISTAKES)} mistakes are noticed")
    for line in missed:
        print(f"not noticed: {line}")
    return 1 if missed else 0


def try_mistake(mistake):
    """(the mistake, its function in the table of the assignment, the Grade that it gets)."""
    [function] = [function for function in GRADED if function.name == mistake.function]
    results = run_tests({function.name: mistake.body()}, [function])
    return mistake, function, grade_of(function, results_of(function, results))
