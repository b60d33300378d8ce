"""Files of records: one JSON object per line. Lines are added at the end and never changed.

A kill or a full disk can leave half a line at the end of the file. The next record ends this line
with a mark, and readers leave it out, with a message:

    {"task": "cola", "seed": 42, "result": {...}}
    {"task": "cola", "seed": 97, "resu (interrupted)
    {"task": "cola", "seed": 97, "result": {...}}

An empty line is refused like any other damaged line: the programs write none, so somebody has
edited the file.
"""

import json
import os
import sys

from support.commands import UserError

# What reading or checking a damaged record raises.
DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)

INTERRUPTED = " (interrupted)"  # how a line ends that was only half written
NAMED = set()  # (path, number) of such lines that the user has been told of


def append_json_line(path, record):
    """Add a record at the end of a file, in one write. Readers leave out a half written line.

    Raises ValueError if the record has a number that is not finite, which is not JSON.
    """
    line = json.dumps(record, allow_nan=False) + "\n"
    with open(path, "a+b", buffering=0) as file:
        # End the last line if it has no end: it was only half written, or somebody edited the file.
        last_line = unended_line(file)
        if is_json(last_line):
            line = "\n" + line
        elif last_line:
            line = INTERRUPTED + "\n" + line

        content = line.encode()
        if file.write(content) < len(content):
            raise UserError(f"could not write all of a line to {path}: is the disk full?")
        os.fsync(file.fileno())


def unended_line(file):
    """The bytes after the last newline of an open file."""
    file.seek(0)
    return file.read().rpartition(b"\n")[2]


def is_json(line):
    """Whether a line is complete."""
    try:
        json.loads(line)
    except DAMAGE:
        return False
    return True


def read_json_lines(path, check, advice):
    """The records of a file, in its order. Lines that were only half written are left out.

    Args:
        path: of the file.
        check: function of a record; it raises one of DAMAGE if the record is not complete.
        advice: what the user can do about a damaged line, for the message.
    Raises:
        UserError: a line is damaged; the message names file and line.
    """
    # a file that is not UTF-8 text is damaged, too
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is damaged ({error}): {advice}") from None

    # After the last newline there is nothing, a complete line, or half a line.
    if not lines[-1]:
        lines.pop()
    elif not is_json(lines[-1]):
        lines[-1] += INTERRUPTED

    records = []
    for number, line in enumerate(lines, 1):
        if line.endswith(INTERRUPTED):
            if (path, number) not in NAMED:
                print(f"{path}: line {number} was only half written, left out", file=sys.stderr)
            NAMED.add((path, number))
            continue
        try:
            record = json.loads(line, parse_constant=refuse_constant)
            check(record)
        except DAMAGE as error:
            reason = reason_of(error)
            raise UserError(f"{path} is damaged (line {number}: {reason}): {advice}") from None
        records.append(record)
    return records


def reason_of(error):
    """What is wrong with a record, as text. The text of a KeyError is only the key."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return str(error)


def refuse_constant(text):
    """Python reads NaN and Infinity as numbers, but they are not JSON."""
    raise UserError(f"{text} is not a number")
