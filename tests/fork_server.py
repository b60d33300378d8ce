"""Starts programs of this project for tests, in copies of one process that has imported torch.

Importing torch takes seconds, a copy takes hundredths of a second (lab/attack_tools.py). The
fixture `start_program` in conftest.py starts this program and sends it requests. A request is a
JSON list in one line, and so is the answer:

    ["start", folder, program, arguments]      -> the number of the new process
    ["is running", number]                     -> true or false
    ["wait", number]                           -> [exit code, standard output, standard error]
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

# The copies find these modules imported.
import glue  # noqa: E402, F401, I001
from lab.attack_tools import Victim, prepare_to_fork  # noqa: E402


def main():
    """Answer the requests on standard input until it is closed."""
    prepare_to_fork()
    processes = {}
    for line in sys.stdin:
        request, *values = json.loads(line)
        if request == "start":
            folder, program, arguments = values
            process = Victim(folder, program, arguments)
            processes[process.pid] = process
            answer = process.pid
        elif request == "is running":
            answer = processes[values[0]].is_running()
        else:
            outcome = processes[values[0]].wait()
            answer = [outcome.code, outcome.out, outcome.error]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
