#!/usr/bin/env bash
# Gradescope runs this once, when it builds the container. The zip that you upload has setup.sh,
# run_autograder and this project, as the folder `project` (course/instructor.md).
set -euo pipefail

# The address (--index-url) of torch's CPU build, as pytorch.org prints it for pip. Without it, pip
# downloads gigabytes for GPUs.
torch_cpu=

apt-get update
apt-get install -y python3.11 python3.11-venv
python3.11 -m venv /autograder/venv
[ -z "$torch_cpu" ] || /autograder/venv/bin/pip install -q torch --index-url "$torch_cpu"
/autograder/venv/bin/pip install -q -r /autograder/source/project/requirements.txt
