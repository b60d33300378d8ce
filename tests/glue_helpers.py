"""What the tests of GLUE share: small files, formats with other row counts, one-line errors."""

from dataclasses import replace

import pytest

import glue
from support.glue_format import FORMATS

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def write_lines(path, *lines, end="\n", bom=False):
    """Write a file of these lines; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(line + end for line in lines).encode()
    if bom:
        content = BYTE_ORDER_MARK + content
    path.write_bytes(content)
    return path


def with_rows(name, **rows):
    """The format of a task with these row counts in place of the published ones."""
    task = FORMATS[name]
    return replace(task, rows=task.rows | rows)


def with_equal_rows(name, rows):
    """The format of a task with the same row count for every split."""
    task = FORMATS[name]
    return replace(task, rows=dict.fromkeys(task.rows, rows))


def error_of(function, *arguments, kind=ValueError, **options):
    """The message of the error that a call raises; it must be a single line."""
    with pytest.raises(kind) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def no_log(line):
    """A log that must not get any line."""
    raise AssertionError(f"unexpected: {line}")


def ignore_log(line):
    """A log whose lines do not matter."""


def run_glue(run_program, *arguments):
    """Call glue.py with these arguments; run_program is the fixture. Returns its Outcome."""
    return run_program("glue.py", glue.main, *arguments)


def failure(run_program, *arguments):
    """The line in which glue.py says what is wrong; it must be the last one, with exit code 2."""
    outcome = run_glue(run_program, *arguments)
    lines = [line for line in outcome.error.splitlines() if line.startswith("glue.py: ")]
    assert outcome.code == 2
    assert len(lines) == 1
    assert outcome.error.endswith(lines[0] + "\n")
    return lines[0]
