"""Where a result comes from: the machine, the version of torch and the code that made it."""

import datetime
import hashlib
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
CODE = ("*.py", "support/*.py", "toy/*.py", "lab/*.py")  # all that a result can depend on


def made_by(device):
    """When, where and by which code something was computed: kept with every result.

    Args:
        device: the torch.device on which it is computed.
    """
    return {
        "date": datetime.date.today().isoformat(),
        "device": f"{device.type} ({device_name(device)})",
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "code": code_digest(),
    }


def device_name(device):
    """The model of the GPU or CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)

    # "model name : AMD EPYC 9R14 96-Core Processor"
    cpuinfo = Path("/proc/cpuinfo")
    if device.type == "cpu" and cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "model unknown"


def code_digest():
    """A short string that changes with every change of the code, except tests/ and course/."""
    digest = hashlib.sha256()
    for pattern in CODE:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
