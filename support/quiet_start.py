"""Ctrl-C during the imports ends a program of this project at once, without a traceback.

torch takes a second or two to import. The programs import this module first, and run_command
(support/commands.py) turns Ctrl-C into a KeyboardInterrupt again. In another program, importing
this module changes nothing.
"""

import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("lab", "course")  # every file there may be a program
PROGRAMS = ("pretrain.py", "glue.py", "model.py", "toy/__main__.py")


def is_our_program():
    """Whether the file that Python was started with is a program of this project."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None:
        return False
    path = Path(file).resolve()
    if path.parent in [ROOT / name for name in FOLDERS]:
        return True
    return path in [ROOT / name for name in PROGRAMS]


# A program that runs in the background of a shell ignores Ctrl-C; that must stay so.
if is_our_program() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
