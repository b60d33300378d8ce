"""Lets `pytest`, started from anywhere, find the project's modules, which lie one folder up, and run on one thread.

The models of the tests are so small that threads would only wait for one another, most of all on a busy machine.
"""

import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is first imported, here and in the programs that tests start
sys.path.insert(0, str(Path(__file__).parent.parent))
