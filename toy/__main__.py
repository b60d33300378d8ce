"""Print documents of the toy language: python -m toy. Its GLUE tasks: glue.py --data_dir toy."""

import argparse

from support.commands import run_command
from toy.language import documents, spell


def main(arguments=None):
    """Print one sentence per line, and an empty line after each document."""
    parser = argparse.ArgumentParser(prog="toy", description="Print documents of the toy language.")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the random choices (default: %(default)s)"
    )
    parser.add_argument(
        "--sentences", type=int, default=20, help="stop after this many (default: %(default)s)"
    )
    args = parser.parse_args(arguments)

    for document in documents(args.seed, args.sentences):
        for text in document:
            print(spell(text))
        print()


if __name__ == "__main__":
    run_command(main)
