"""What the command lines share: errors as one line, signals, and types of arguments."""

import argparse
import signal
import sys

from support.devices import keep_freed_memory


class TrainingFailed(Exception):
    """The loss or the weights are no longer finite numbers. The message names the step."""


def run_command(program, function, *arguments):
    """Call function(*arguments) and leave Python with the exit code that it returns.

    An expected error becomes one line, "program: message", and an exit code:

        1      the training failed, or the memory is full
        2      wrong input, a file that cannot be read or written, or a failed download
        130    Ctrl-C
    """
    # A console that cannot show a character prints "?" instead.
    # A stream that was closed before the start is None.
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="replace")

    # Outside the training loop, SIGTERM ends the program and runs its clean-up.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    keep_freed_memory()

    try:
        sys.exit(function(*arguments))
    except TrainingFailed as error:
        message = str(error)
        code = 1
    except (ValueError, OSError) as error:
        message = str(error)
        code = 2
    except KeyboardInterrupt:
        message = "interrupted; the files that were written are complete"
        code = 130
    except (MemoryError, RuntimeError) as error:
        # torch reports a full memory by either of the two; other RuntimeErrors are our mistakes.
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        message = "out of memory; a smaller --batch_size or --seq_len needs less"
        code = 1
    print(f"{program}: {message}", file=sys.stderr)
    sys.exit(code)


def positive_int(text):
    """argparse type: a whole number above 0."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def fraction(text):
    """argparse type: a number from 0 to below 1."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1)")
    return value
