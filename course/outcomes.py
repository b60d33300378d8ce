"""A plugin of pytest for the grader: it writes the outcome of each test.

A line of the file is [test, message, line]: the message is "" if the test passed; the line, where
the function itself crashed, counts from its `def`, or is None. Before the first test, all that
pytest has collected are written, with the message None. The last line of a test counts.

COURSE_OUTCOMES is the file; COURSE_SECONDS limits the time of computing, on systems that can. Both
are taken out of the environment before the student's code runs.
"""

import json
import os
import traceback
from contextlib import suppress

FILE = os.environ.pop("COURSE_OUTCOMES")
SECONDS = int(os.environ.pop("COURSE_SECONDS"))

with suppress(ImportError):  # not on Windows
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def pytest_collection_finish(session):
    """Called before the first test, when nothing that the student wrote has run yet."""
    for item in session.items:
        write(item, None, None)


def pytest_runtest_makereport(item, call):
    """Called after the setup, the call and the teardown of each test."""
    if call.excinfo is not None:
        write(item, *failure(call.excinfo.value, item.cls.name))
    elif call.when == "call":
        write(item, "", None)


def write(item, message, line):
    """Write a line of the file. item: a test, as pytest names it."""
    test = item.nodeid.partition("::")[2]
    with open(FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps([test, message, line]) + "\n")


def failure(error, name):
    """[message, line] of an exception. name: of the function that is tested."""
    # where the function itself was, if it is what crashed
    line = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_qualname == name:
            line = number - frame.f_code.co_firstlineno

    message = str(error).partition("\n")[0]
    if isinstance(error, AssertionError) and line is None:
        return [message, None]  # a test says what differs
    return [f"it crashed: {type(error).__name__}: {message}", line]
