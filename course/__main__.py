"""The assignment. Students begin with course/handout.md, instructors with course/instructor.md.

python -m course by_hand NAME             a task by hand, with numbers that belong to this name
python -m course test bias_matrix         the cases of one function of the handout
python -m course grade SUBMISSION ...     the points of students' files
python -m course seeds NAME               the seeds of your runs

For instructors:

python -m course blank FOLDER             a copy of the project with blanks, for students
python -m course answers NAME             the answers of a task by hand
python -m course sheets NAMES FOLDER --secret WORD     tasks and bugs for a class, with answers
python -m course marks TABLE ...          the sums of tables that you have filled in
python -m course check_runs NAME.jsonl ...             are the runs a student's own?
python -m course check                    do the cases notice known mistakes?
"""

import argparse
import importlib
from pathlib import Path

from support.commands import run_command

HERE = Path(__file__).parent

# {command: (its file, what it does, its arguments)}. Students' copies have no instructor.py.
COMMANDS = {
    "by_hand": ("personal", "a task by hand, with your own numbers", "name"),
    "seeds": ("personal", "the seeds of your runs", "name"),
    "test": ("grade", "run the cases of one function", "function"),
    "grade": ("grade", "grade students' files", "submissions --csv --seed --user"),
    "blank": ("blank", "copy the project with blanks", "folder"),
    "answers": ("instructor", "the answers of a task by hand", "name --wrong"),
    "sheets": (
        "instructor",
        "tasks, bugs and questions for a class",
        "names folder --secret --bank",
    ),
    "marks": ("instructor", "the sums of tables that you have filled in", "tables"),
    "check_runs": ("instructor", "are the runs a student's own?", "records"),
    "check": ("instructor", "do the cases notice known mistakes?", "--bank"),
}
ARGUMENTS = {
    "name": {"help": 'always spelt in the same way: "Ada Lovelace"'},
    "function": {"help": "its name in the handout: bias_matrix, Fixed.query_bias"},
    "submissions": {"nargs": "+", "help": "folders and zips"},
    "--csv": {"help": "also write a table, to this file"},
    "--seed": {"type": int, "default": 0, "help": "of the cases; 0 is public"},
    "--user": {"help": "who runs the students' code, if you are root: nobody"},
    "folder": {"help": "a new one, outside of the project"},
    "--wrong": {
        "nargs": 2,
        "action": "append",
        "default": [],
        "metavar": ("STEP", "NUMBERS"),
        "help": "what follows from a student's wrong numbers",
    },
    "names": {"help": "a file with a line for each student"},
    "--secret": {"required": True, "help": "a word that only you know"},
    "--bank": {"default": HERE / "bank", "help": "a folder with bugs and questions of your own"},
    "tables": {"nargs": "+", "help": "of grade --csv"},
    "records": {"nargs": "+", "help": "NAME.jsonl of each student"},
}


def main(arguments=None):
    """Read the command line and do what it asks for. Returns the exit code."""
    summary = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser("course", description=summary)
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    for name, (file, what, needs) in COMMANDS.items():
        if (HERE / f"{file}.py").exists():
            command = commands.add_parser(name, help=what)
            for argument in needs.split():
                command.add_argument(argument, **ARGUMENTS[argument])

    args = parser.parse_args(arguments)
    module = importlib.import_module("course." + COMMANDS[args.command][0])
    return getattr(module, args.command + "_command")(args)


if __name__ == "__main__":
    run_command(main)
