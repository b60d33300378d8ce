"""`python -m course check`: is every known mistake noticed?

Each mistake is put into the original function, the cases of this function run, and their outputs
are compared with the original's. Functions are graded one at a time, with the original text of all
others, so a mistake can only cost points in its own part. The table shows the part, and which
properties notice the mistake.
"""

import ast
from concurrent.futures import ThreadPoolExecutor

from course.grade import expected_outputs, mistake_outputs, right_properties
from course.mistakes import MISTAKES, wrong_source
from course.parts import FUNCTIONS, PARTS

PROCESSES = 2


def check_command(args):
    """Print the table. Returns the exit code: 1 if a mistake is not noticed."""
    rows = check(MISTAKES)
    for mistake, part, noticed in rows:
        by = ", ".join(noticed) or "NOT NOTICED"
        print(f"part {part}  {mistake.function:<38}{mistake.sentence}\n{'':<10}noticed by: {by}")

    # totals
    print()
    for part in PARTS:
        own = [noticed for _, of_part, noticed in rows if of_part == part]
        if own:
            count = sum(1 for noticed in own if noticed)
            print(f"part {part}: {count} of {len(own)} mistakes noticed")
    missed = [mistake for mistake, _, noticed in rows if not noticed]
    print(f"all parts: {len(rows) - len(missed)} of {len(rows)} mistakes noticed")
    return 1 if missed else 0


def check(mistakes):
    """[(mistake, part, properties that notice it)]"""
    # a syntax error would be noticed by every case
    for mistake in mistakes:
        ast.parse(wrong_source(mistake))

    part_of = {function.name: function.part for function in FUNCTIONS}
    names = sorted({mistake.function for mistake in mistakes})

    # the original, and the mistakes in a few processes
    shares = [mistakes[first::PROCESSES] for first in range(PROCESSES)]
    with ThreadPoolExecutor(max_workers=PROCESSES) as pool:
        expected = pool.submit(expected_outputs, names)
        results = {}
        for share in pool.map(mistake_outputs, shares):
            results.update(share)

    # in the order of the list
    rows = []
    for mistake in mistakes:
        properties = right_properties(mistake.function, results[mistake], expected.result())
        noticed = [name for name, right in properties.items() if not right]
        rows.append((mistake, part_of[mistake.function], noticed))
    return rows
