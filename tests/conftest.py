"""Lets `pytest`, started from anywhere, find the project's modules, which lie one folder up, and run on one thread.

The models of the tests are so small that threads would only wait for one another, most of all on a busy machine.
"""

import http.server
import os
import sys
import threading
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is first imported, here and in the programs that tests start
sys.path.insert(0, str(Path(__file__).parent.parent))


@pytest.fixture
def serve(monkeypatch):
    """serve(Handler) starts a web server of this machine's own; it ends with the test.

    Its handler may note requests in the server's `asked`, and stall until the end by waiting for `released`.
    """
    monkeypatch.setenv("no_proxy", "*")
    started = []

    def start(handler):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.asked, server.released = [], threading.Event()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
