"""The assignment, for the instructor.

python -m course blank OUT                  a copy of the project with blanks, for students
python -m course grade DIR                  grade a student's copy
python -m course check                      apply all known mistakes: is each one noticed?
python -m course attacks                    attack the grader: does any attack earn a point?
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import os

# Read when torch is first imported. The cases are so small that several threads would only wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from course.attacks import attacks_command
from course.blank import blank_command
from course.check import check_command
from course.grade import grade_command
from course.parts import PARTS, part_range
from support.commands import run_command


def main(arguments=None):
    """Read the command line and do what it asks for. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="course", description="Make the assignment, grade it, and check the grader."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    # blank
    command = commands.add_parser("blank", help="copy the project with blanks")
    command.add_argument("out", help="a folder that does not exist yet")
    command.add_argument(
        "--parts",
        type=part_range,
        default=tuple(PARTS),
        help="which parts get blanks: 2, or 1-3 (default: all)",
    )
    command.set_defaults(run=blank_command)

    # grade
    command = commands.add_parser(
        "grade",
        help="grade a student's copy",
        description="Grade a student's copy. This executes the student's code and is not a "
        "sandbox: use a container, an ordinary user, and no network.",
    )
    command.add_argument("folder", metavar="DIR", help="the student's copy of the project")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--part", type=int, choices=PARTS, help="only this part (default: all)")
    which.add_argument(
        "--function", metavar="NAME", help="only this function, such as kernels.convolve"
    )
    command.add_argument("--out", help="also write results.json, in Gradescope's format")
    command.set_defaults(run=grade_command)

    # check and attacks
    command = commands.add_parser("check", help="is every known mistake noticed?")
    command.set_defaults(run=check_command)
    command = commands.add_parser("attacks", help="does an attack on the grader earn a point?")
    command.set_defaults(run=attacks_command)

    args = parser.parse_args(arguments)
    return args.run(args)


if __name__ == "__main__":
    run_command("course", main)
