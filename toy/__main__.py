"""Print documents of the toy language, or write its GLUE tasks.

python -m toy                       about 20 sentences
python -m toy --glue FOLDER         the nine tasks, and what can be reached without pre-training
"""

import argparse

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)
from support.commands import LARGEST_INT, positive_int, run_command
from toy import glue
from toy.baselines import baselines
from toy.language import documents

BASELINES = ("majority", "words", "trigrams", "first", "second", "length")


def main(argv=None):
    """Read the command line and do what it asks for. Returns the exit code."""
    # options
    parser = argparse.ArgumentParser(
        prog="toy", description="Print documents of the toy language, or write its GLUE tasks."
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the random choices (default: %(default)s)"
    )
    parser.add_argument(
        "--sentences",
        type=positive_int,
        default=20,
        help="stop after this many (default: %(default)s)",
    )
    parser.add_argument(
        "--glue",
        metavar="FOLDER",
        help="write the toy GLUE tasks there, and print the scores of simple methods",
    )
    args = parser.parse_args(argv)
    if not 0 <= args.seed <= LARGEST_INT:
        parser.error(f"--seed must be a whole number from 0 to {LARGEST_INT:,}")

    # print documents
    if args.glue is None:
        print_documents(args.seed, args.sentences)
        return 0

    # or write the tasks
    print_baselines(glue.write_glue(args.glue, args.seed))
    return 0


def print_documents(seed, sentences):
    """Print one sentence per line, and an empty line after each document."""
    for document in documents(seed, sentences):
        for text in document:
            print(text)
        print()


def print_baselines(written):
    """Print a line for each dev file: the score of each baseline, in the units of glue.py."""
    print(table_line("task", "dev file", BASELINES))
    for task, splits in written.items():
        for split, rows in splits.items():
            if not split.startswith("dev"):
                continue

            # a task of one text has no score for the first or the second text alone
            scores = baselines(task, splits["train"], rows)
            cells = []
            for name in BASELINES:
                cell = "-"
                if name in scores:
                    cell = f"{scores[name]:.1f}"
                cells.append(cell)
            print(table_line(task, split, cells), flush=True)


def table_line(task, split, cells):
    """A line of the table, in columns."""
    columns = [f"{cell:>10}" for cell in cells]
    return f"{task:<7}{split:<15}" + "".join(columns)


if __name__ == "__main__":
    run_command("toy", main)
