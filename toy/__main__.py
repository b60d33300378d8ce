"""Print documents of the toy language, or write its GLUE tasks.

python -m toy                       about 20 sentences
python -m toy --glue FOLDER         the nine tasks, and what can be reached without word order
"""

import argparse

from toy.glue import GLUE_ROWS, ORDERED, baselines, write_glue
from toy.language import documents


def main():
    """Read the command line and do what it asks for."""
    # options
    parser = argparse.ArgumentParser(
        prog="toy", description="Print documents of the toy language, or write its GLUE tasks."
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the random choices (default: %(default)s)"
    )
    parser.add_argument(
        "--sentences", type=int, default=20, help="stop after so many (default: %(default)s)"
    )
    parser.add_argument(
        "--glue",
        metavar="FOLDER",
        help="write the toy GLUE tasks there, and print what is right without word order",
    )
    args = parser.parse_args()

    # print documents
    if args.glue is None:
        print_documents(args.seed, args.sentences)
        return

    # or write the tasks
    try:
        written = write_glue(args.glue, args.seed)
    except OSError as error:
        parser.exit(2, f"toy: {error}\n")
    print_baselines(written)


def print_documents(seed, sentences):
    """Print one sentence per line, and an empty line after each document."""
    for document in documents(seed, sentences):
        for text in document:
            print(text)
        print()


def print_baselines(written):
    """Print a line for each dev file: its rows, and what is right without word order."""
    for task in GLUE_ROWS:
        note = ""
        if task in ORDERED:
            note = "  order decides"

        for split, rows in written[task].items():
            if split.startswith("dev"):
                majority, words = baselines(written[task]["train"], rows)
                line = f"{task:<6}{split:<15}{len(rows):>4} rows"
                line += f"   majority {majority:6.1%}   bag of words {words:6.1%}"
                print(line, note)


if __name__ == "__main__":
    main()
