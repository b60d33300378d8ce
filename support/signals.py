"""Signals that ask a program to stop: Ctrl-C (SIGINT) and SIGTERM."""

import signal
import threading
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Stores the number of SIGINT or SIGTERM, which the training checks between two steps.

    with StopSignals() as stop:
        while not stop.number:
            ...one step...
    """

    def __enter__(self):
        self.number = 0
        self.before = {}
        for number in STOPPING:
            self.before[number] = signal.signal(number, self.remember)
        return self

    def remember(self, number, frame):
        self.number = number
        # A second signal of the same kind acts at once.
        signal.signal(number, self.before[number])

    def __exit__(self, *error):
        for number, handler in self.before.items():
            signal.signal(number, handler)


@contextmanager
def delayed_signals():
    """SIGINT and SIGTERM act at the end of the `with` block.

    Used while a file is written: an exception that a signal raises inside torch.save would end the
    program with an abort.
    """
    # Python allows only the main thread to change what a signal does.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    received = []

    def remember(number, frame):
        received.append(number)

    before = {number: signal.signal(number, remember) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(received):  # each kind once
            signal.raise_signal(number)
