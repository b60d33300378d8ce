"""The assignment. Students begin with course/handout.md, instructors with course/instructor.md.

python -m course by_hand NAME             a task by hand, with numbers that belong to this name
python -m course test bias_matrix         the cases of one function of the handout
python -m course grade SUBMISSION ...     the points of students' files
python -m course seeds NAME               the seeds of your runs

For instructors:

python -m course by_hand NAME --answers   the answers below the task
python -m course blank FOLDER             a copy of the project with blanks, for students
python -m course sheets NAMES FOLDER --secret WORD     tasks and bugs for a class, with answers
python -m course marks TABLE ...          the sums of tables that you have filled in
python -m course check_runs NAME.jsonl ...             are the runs a student's own?
python -m course check                    do the cases notice known mistakes?
"""

import argparse
from pathlib import Path

from course.blank import blank_command
from course.grade import grade_command, test_command
from course.personal import by_hand_command, seeds_command
from support.commands import run_command


def main(arguments=None):
    """Read the command line and do what it asks for. Returns the exit code."""
    summary = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser("course", description=summary)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name, run, what):
        command = commands.add_parser(name, help=what)
        command.set_defaults(run=run)
        return command

    command = add("blank", blank_command, "copy the project with blanks")
    command.add_argument("folder", help="a new folder, outside of the project")

    by_hand = add("by_hand", by_hand_command, "a task by hand, with your own numbers")
    by_hand.add_argument("name", help='always spelt in the same way: "Ada Lovelace"')

    command = add("seeds", seeds_command, "the seeds of your runs")
    command.add_argument("name", help="spelt in the same way")

    command = add("test", test_command, "run the cases of one function")
    command.add_argument("function", help="its name in the handout: bias_matrix, Fixed.query_bias")

    command = add("grade", grade_command, "grade students' files")
    command.add_argument("submissions", nargs="+", metavar="SUBMISSION", help="a folder or a zip")
    command.add_argument("--csv", metavar="FILE", help="also write a table")
    command.add_argument("--seed", type=int, default=0, help="of the cases; 0 is public")
    command.add_argument("--user", help="who runs the students' code, if you are root: nobody")

    # students' copies do not have the answers and the mistakes
    if (Path(__file__).parent / "instructor.py").exists():
        from course.instructor import add_commands

        add_commands(add, by_hand)

    args = parser.parse_args(arguments)
    return args.run(args)


if __name__ == "__main__":
    run_command(main)
