"""The assignment. Students begin with course/handout.md, instructors with course/instructor.md.

python -m course by_hand NAME             a task by hand, with numbers that belong to this name
python -m course test bias_matrix         the tests of one function of the handout
python -m course grade SUBMISSION ...     grade students' copies

For instructors:

python -m course by_hand NAME --answers   the answers below the task
python -m course blank FOLDER             a copy of the project with blanks, for students
python -m course sheets NAMES FOLDER --secret WORD     tasks and bugs for a class, with answers
python -m course check                    do the tests notice known mistakes?
"""

import argparse
from pathlib import Path

from course.blank import blank_command
from course.grade import grade_command, tests_command
from course.personal import by_hand_command
from support.commands import run_command


def main(arguments=None):
    """Read the command line and do what it asks for. Returns the exit code."""
    summary = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser("course", description=summary)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    # blank
    command = commands.add_parser("blank", help="copy the project with blanks")
    command.add_argument("folder", help="a new folder, outside of the project")
    command.set_defaults(run=blank_command)

    # by_hand
    by_hand = commands.add_parser("by_hand", help="a task by hand, with your own numbers")
    by_hand.add_argument("name", help='always spelt in the same way: "Ada Lovelace"')
    by_hand.set_defaults(run=by_hand_command)

    # test
    command = commands.add_parser("test", help="run the tests of one function")
    command.add_argument("function", help="its name in the handout: bias_matrix, Fixed.query_bias")
    command.set_defaults(run=tests_command)

    # grade
    command = commands.add_parser("grade", help="grade students' copies of the project")
    command.add_argument("submissions", nargs="+", metavar="SUBMISSION", help="a student's copy")
    command.add_argument("--csv", metavar="FILE", help="also write a table, line by line")
    command.add_argument(
        "--gradescope", metavar="FILE", help="also write Gradescope's results.json"
    )
    command.set_defaults(run=grade_command)

    # students' copies do not have the answers and the mistakes
    if (Path(__file__).parent / "instructor.py").exists():
        from course.instructor import answers_command, check_command, sheets_command

        by_hand.add_argument("--answers", action="store_true", help="print the answers, too")
        by_hand.set_defaults(run=answers_command)
        command = commands.add_parser("sheets", help="tasks by hand and bugs for a class")
        command.add_argument("names", help="a file with a name or number in each line")
        command.add_argument("folder", help="a new one: a folder per name, and answers.txt")
        command.add_argument("--secret", required=True, help="a word that only you know")
        command.set_defaults(run=sheets_command)
        command = commands.add_parser("check", help="do the tests notice known mistakes?")
        command.add_argument("function", nargs="?", default="", help="of this function alone")
        command.set_defaults(run=check_command)

    args = parser.parse_args(arguments)
    return args.run(args)


if __name__ == "__main__":
    run_command(main)
