"""Where a result comes from: the machine, the version of torch and the code that made it.

Whoever changes a mixer and starts the same command again must not get what the old code left. So a
run keeps, for each file that decides what is computed, a digest of its code (code_digests).
"""

import ast
import datetime
import hashlib
import subprocess
from pathlib import Path

import torch

from support.commands import UserError

ROOT = Path(__file__).parent.parent


def made_by(device):
    """When, where and by which commit something was computed: kept with every result.

    Args:
        device: the torch.device on which it is computed.
    """
    return {
        "date": datetime.date.today().isoformat(),
        "device": f"{device.type} ({device_name(device)})",
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "code": commit(),
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


def commit():
    """The git commit of the code, with "-dirty" if files were changed since; None without git."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:  # git is not installed
        return None
    return done.stdout.strip() or None


# --- The code of a run ----------------------------------------------------------------------------


def code_digests(*names, root=ROOT):
    """{file: 12 hexadecimal digits that change if its code changes}.

    A comment, a docstring or the layout of lines changes nothing.

    Args:
        names: files, relative to `root`.
    """
    digests = {}
    for name in names:
        tree = ast.parse(Path(root, name).read_text(encoding="utf-8"))

        # the docstring of the file, and of each class and function
        for node in ast.walk(tree):
            has_body = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            if has_body and ast.get_docstring(node) is not None:
                del node.body[0]

        # Unparse writes the tree as code again. ast.dump would differ between versions of Python.
        code = ast.unparse(tree)
        digests[name] = hashlib.sha256(code.encode()).hexdigest()[:12]
    return digests


def check_code(what, saved, code, advice):
    """UserError if something was computed by other code than this program has.

    Args:
        what: what was computed, for the message.
        saved: the code_digests that were kept with it.
        code: those of this program.
        advice: what the user can do.
    """
    changed = [name for name, digest in code.items() if saved.get(name) != digest]
    if changed:
        raise UserError(f"{what} was made before {', '.join(changed)} changed: {advice}")


def differing_files(codes):
    """The files of which some code_digests have more than one version, in alphabetical order."""
    versions = {}
    for code in codes:
        for name, digest in code.items():
            versions.setdefault(name, set()).add(digest)
    return sorted(name for name, digests in versions.items() if len(digests) > 1)
