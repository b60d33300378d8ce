"""What the command lines share: errors as one line, signals, and types of arguments."""

import argparse
import math
import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress

from support.memory import keep_freed_memory

LARGEST_INT = 2**31 - 1  # of a number on the command line


class UserError(ValueError):
    """A mistake of the user: a wrong path, option, name or file. It is printed as one line."""


class TrainingFailed(Exception):
    """The loss or the weights are no longer finite. In training, the message names the step."""


def run_command(program, function, *arguments):
    """Call function(*arguments) and leave Python with the exit code that it returns.

    A UserError, and an OSError that names a file, are printed as one line, "program: message".
    Every other error is one of the code and keeps its traceback: whoever changes a mixer must see
    file and line. The exit codes:

        1      the training failed, or an error of the code
        2      wrong input, a file that cannot be read or written, or a failed download
        130    Ctrl-C

    SIGTERM ends the program with 143, without such a line.
    """
    # A console that cannot show a character prints "?" instead.
    # A stream that was closed before the start is None.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="replace")

    # Outside the training loop, SIGTERM ends the program and runs its clean-up. Ctrl-C raises
    # KeyboardInterrupt; during the imports it did not (support/quiet_start.py).
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    keep_freed_memory()

    # The output is flushed here, because at the end of Python an error would be a traceback.
    try:
        code = function(*arguments)
        flush(sys.stdout)
        sys.exit(code)
    except TrainingFailed as error:
        message = str(error)
        code = 1
    except BrokenPipeError:
        message = "stopped, because nobody reads the output any more"
        code = 2
    except (UserError, OSError) as error:
        # An OSError without the name of a file, such as an error of a library, is not the user's.
        if isinstance(error, OSError) and error.filename is None:
            raise
        message = str(error)
        code = 2
    except KeyboardInterrupt:
        message = "interrupted; the files that were written are complete"
        code = 130

    # Both streams may be full or closed.
    discard_if_broken(sys.stdout)
    with suppress(OSError):
        print(f"{program}: {message}", file=sys.stderr, flush=True)
    discard_if_broken(sys.stderr)
    sys.exit(code)


def flush(stream):
    """Write what was printed but not yet written. A stream that was closed before is None."""
    if stream is not None:
        stream.flush()


def discard_if_broken(stream):
    """Redirect a stream that cannot be written to os.devnull.

    Otherwise Python would try to write to it again when it ends, and print a traceback.
    """
    try:
        flush(stream)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def command_line(words):
    """A command as a user can paste it: words with spaces are in quotes.

    On Windows only double quotes work, and a backslash is an ordinary character.
    """
    words = [str(word) for word in words]
    if os.name == "nt":
        return subprocess.list2cmdline(words)
    return shlex.join(words)


def given_options(args, names):
    """{name: value} of the named options that the user gave; in args, the others are None."""
    given = {}
    for name in names:
        value = getattr(args, name)
        if value is not None:
            given[name] = value
    return given


def refuse_double_dash(parser, arguments):
    """Parser error for "--option=--": argparse makes an empty list of it, whatever the type is."""
    for text in arguments:
        if text.startswith("--") and text.endswith("=--"):
            parser.error(f"{text}: -- is not a value")


def valid_text(text):
    """The text with "?" in place of bytes that are not text, which a terminal may pass."""
    return text.encode("utf-8", "replace").decode()


def positive_int(text):
    """argparse type: a whole number above 0, and at most LARGEST_INT."""
    if not (text.isascii() and text.isdigit() and text.strip("0")):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number above 0")

    # Python refuses to read more than some thousand digits.
    digits = text.lstrip("0")
    if len(digits) > len(str(LARGEST_INT)) or int(digits) > LARGEST_INT:
        raise argparse.ArgumentTypeError(f"{text[:40]} is above {LARGEST_INT:,}")
    return int(digits)


def fraction(text):
    """argparse type: a number that is at least 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number from 0 to below 1")
    return value
