"""The record of a benchmark: a table on the screen, and the same numbers in one JSON file."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from support.commands import UserError
from support.files import write_text
from support.provenance import made_by

# --- A benchmark ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """A column of a printed table. A row of the table is a dictionary."""

    key: str  # of the value in the row
    title: str
    width: int
    format: str = ""  # of the value, as in Python's format()
    align: str = ">"

    def cell(self, text):
        return f"{text:{self.align}{self.width}}"


class Record:
    """The results of one benchmark, on the screen and in a JSON file.

    The file has the command, when and on what machine it ran, its settings, and what was printed:
    rows and notes. Of a path, it has only the last part.

    Args:
        arguments: the command line's arguments, as they were typed.
        settings: a dictionary of everything that the result depends on.
        device: torch.device.
        out: Path of the file; None if there is to be no file.
    """

    def __init__(self, arguments, settings, device, out):
        words = ["python -m lab.bench"]
        words += [without_folder(argument) for argument in arguments]
        self.content = {
            "command": " ".join(words),
            **made_by(device),
            "settings": settings,
            "rows": [],
            "notes": [],
        }
        self.out = out
        if out is not None and out.is_dir():
            raise UserError(f"--out: {out} is a folder, not a file")

        # Write a new file now, so that a wrong path fails before anything is measured. An existing
        # file is kept as it is until the first new row.
        if out is None or not out.exists():
            self.write()

    def add_table(self, columns, rows):
        """Print rows as soon as they are measured, and keep them.

        The file is written after every row: if a later row fails, the earlier ones are not lost.

        Args:
            columns: the Columns to print; a row may have more values.
            rows: yields one dictionary per row.
        """
        print("  ".join(column.cell(column.title) for column in columns))
        for row in rows:
            cells = []
            for column in columns:
                text = format(row[column.key], column.format)
                cells.append(column.cell(text))
            print("  ".join(cells), flush=True)

            self.content["rows"].append(row)
            self.write()

    def add_note(self, note):
        """Print a line below the table, and keep it."""
        print(note)
        self.content["notes"].append(note)
        self.write()

    def write(self):
        if self.out is None:
            return
        rows = [without_nan(row) for row in self.content["rows"]]
        text = json.dumps({**self.content, "rows": rows}, indent=2)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.out, text + "\n")


def without_nan(row):
    """The row with None in place of nan, which JSON does not have: it could not be measured."""
    clean = {}
    for key, value in row.items():
        is_nan = isinstance(value, float) and math.isnan(value)
        clean[key] = None if is_nan else value
    return clean


def without_folder(argument):
    """An argument of the command line; of a path, only the last part.

    "--corpus=/data/english.txt" becomes "--corpus=english.txt".
    """
    option, equals, value = argument.rpartition("=")
    return option + equals + Path(value).name
