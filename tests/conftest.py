"""Lets `pytest`, started from anywhere, find the project's modules, which lie one folder up."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
