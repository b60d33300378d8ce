"""Runs on disk: the log of a run, and what made it.

The folder of a run holds

    config.json        sizes and variant of the model (model.BertConfig)
    tokenizer.json     the tokenizer, in the format of the library "tokenizers"
    model.pt           the weights
    log.jsonl          one JSON object per line
    train_state.pt     what resuming needs; only until the run is finished
    process0.lock      empty; locked while a program works on the run

The first line of the log holds what the run depends on and what made it: "settings", "code"
(digests of the files) and "made_by" (machine, versions, commit; of a training also whether its
steps were to be recorded and compiled). Each further line holds the number of the step ("step"),
and a loss, an evaluation, or what made the steps after it.

place_for returns the folder whose log has the settings and the code of a command, or a new one. So
results of fine-tuning and of minimal pairs are found, too, in RUN/glue and RUN/pairs.
"""

import ast
import datetime
import hashlib
import json
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

import torch

from attention import TERMS, VARIANTS
from support.commands import UserError, say_once
from support.files import lock, write_text
from support.tokenizer import unknown_words

ROOT = Path(__file__).parent.parent
LOG = "log.jsonl"
LONGEST_NAME = 80  # characters in the name of a run that stand for its texts


# --- The log of a run -----------------------------------------------------------------------------


def write_records(path, records):
    """Write a .jsonl file: one line per record."""
    write_text(path, "".join(json.dumps(record) + "\n" for record in records))


def read_records(path):
    """The records of a .jsonl file, a list; of a .json file, its value."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    return [json.loads(line) for line in text.splitlines()]


def read_log(folder):
    """The records of a run's log, a list; [] without a log, if pretrain.py did not make the run."""
    path = Path(folder, LOG)
    return read_records(path) if path.exists() else []


def run_settings(folder):
    """What a run depends on, from the first line of its log."""
    log = read_log(folder)
    if not log:
        raise UserError(f"{folder} has no {LOG}: its variant and its seed are unknown")
    return log[0]["settings"]


# --- What made a result ---------------------------------------------------------------------------


def made_by(device):
    """When, where and by what something was computed: kept with every result."""
    return {
        "date": datetime.date.today().isoformat(),
        "device": f"{device.type} ({device_name(device)})",
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "commit": commit(),
    }


def device_name(device):
    """The model of the GPU or of the CPU: another one rounds differently."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)

    # Linux says it in a file: "model name : AMD EPYC 9R14 96-Core Processor".
    if Path("/proc/cpuinfo").exists():
        model = re.search("model name.*: (.*)", Path("/proc/cpuinfo").read_text())
        if model:
            return model[1]
    return platform.processor() or platform.machine()


@cache
def commit():
    """The git commit of the code, with "-dirty" if files were changed since; None without git.

    It is read once, as the code itself is (read_code). A copy of the project inside another
    repository has no .git of its own: None, too.
    """
    try:
        command = "git --git-dir=.git describe --always --dirty"
        done = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def read_code(*names):
    """{file: {name: code}}: what each file defines, without comments, docstrings and layout.

    A program reads its code when it starts: a file may be changed while a long command is running.
    """
    code = {}
    for file in names:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            has_docstring = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            if has_docstring and ast.get_docstring(node) is not None:
                del node.body[0]
        code[file] = parts_of(tree)
    return code


def parts_of(tree):
    """{name: code}: what the top level of a file imports, defines and assigns, by its name.

    "" is all other statements; but those that fill TERMS and VARIANTS are left out (code_digests).
    """
    parts = {"": ""}
    for statement in tree.body:
        for name, code in named_code(statement):
            if name in ("", "TERMS", "VARIANTS") and re.search("'(TERMS|VARIANTS)'", code):
                continue
            parts[name] = parts.get(name, "") + code
    return parts


def named_code(statement):
    """[(name, code)] of a statement; an import of several names is a part for each."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        module = getattr(statement, "module", "")  # `import x` has none
        return [(each.asname or each.name, f"{module} {dump(each)}") for each in statement.names]

    name = ""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        name = statement.name
    elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        name = statement.targets[0].id
    return [(name, f" {dump(statement)}")]


def code_digests(code, variant, entry):
    """{what: digest}: the code that a result depends on. Of attention.py, what its variant uses.

    So a new variant makes no run old. What is used names what else is used:

        model.py imports          initialise, which names initialise_linear, and so on
        the entry of `dynamic`    Variant(terms=('dynamic',), ...), <class 'attention.Dynamic'>
        class Dynamic             Term, relative_table

    Canon, Rotary and rotate are not reached: to edit them changes nothing for dynamic. The digests:

        "attention.py"                     what every variant uses
        "dynamic in attention.py"          the entry
        "Dynamic in attention.py"          and so on: two variants are compared by what both use
        "kernels.py", "model.py", ...      all of these files

    Args:
        code: from read_code.
        variant: the name of the variant.
        entry: as text, what VARIANTS and TERMS hold for it, whichever statements put it there
            (code_of).
    """
    digests = {file: digest_of(parts) for file, parts in code.items()}
    entry = re.sub(" at 0x[0-9a-f]+", "", entry)  # where in memory a function is
    by_all = used_parts(code, ["Variant"])
    own = used_parts(code, ["Variant", *re.findall(r"\w+", entry)])
    digests["attention.py"] = digest_of(by_all)
    digests[f"{variant} in attention.py"] = digest_of(entry)
    for name in own:
        if name not in by_all:
            digests[f"{name} in attention.py"] = digest_of(own[name])
    return digests


def used_parts(code, names):
    """{name: code} of what attention.py has under these names and those that other files import.

    And of what these parts name, and so on.
    """
    texts = []
    for parts in code.values():
        texts += [part for part in parts.values() if part.startswith("attention ")]

    parts = code["attention.py"]
    used = {}
    while True:
        named = {"", *names, *re.findall(r"'(\w+)'", " ".join([*texts, *used.values()]))}
        found = {name: parts[name] for name in sorted(named & {*parts})}
        if found == used:
            return used
        used = found


def digest_of(value):
    """12 hexadecimal digits for a text or a dictionary."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


def dump(node):
    """A syntax tree as text, without its empty lists.

    A new version of Python may give nodes a new field, such as type_params of functions. In code
    for older versions it is an empty list: so every version makes the same text of the same code.
    """
    return re.sub(r"\w+=\[\], |(, )?\w+=\[\]", "", ast.dump(node))


def changed(there, here):
    """The names of what two dictionaries both have, and that differs."""
    return [name for name in there if name in here and there[name] != here[name]]


def code_changes(there, here, since):
    """What changed between two results of code_digests, as text; "" if nothing did.

    "Dynamic in attention.py has changed since runs/composite"
    """
    names = changed(there, here)
    have = "has" if len(names) == 1 else "have"
    return f"{', '.join(names)} {have} changed since {since}" if names else ""


# The code of a model. A file may be edited while a run is going on: so it is read at import.
MODEL_CODE = read_code("attention.py", "kernels.py", "model.py")


def code_of(code, variant):
    """Short hashes of the code that a variant uses: {what: hash}, from code_digests.

    A run keeps them in its log. If one of them changes, the same command starts a new run in a
    folder of its own. code: from read_code.
    """
    # What VARIANTS and TERMS hold for the variant, as text. For fixed:
    #     Variant() Variant(terms=('fixed',), ...) [('fixed', <class 'attention.Fixed'>)]
    entry = f"{VARIANTS['none']} {VARIANTS[variant]}"  # hybrids use both, and `none` has no terms
    terms = [(name, TERMS[name]) for name in TERMS if name in VARIANTS[variant].terms]
    return code_digests(code, variant, f"{entry} {terms}")


def code_of_model(model):
    """code_of a model that a run has. Its class may name other files as its `code` (seq2seq)."""
    return code_of(getattr(model, "code", MODEL_CODE), model.config.variant)


# --- The folder of a run is found by what made it -------------------------------------------------
#
#     python pretrain.py                runs/composite
#     python pretrain.py --lr 1e-3      runs/composite-2     lr is 0.001, not 0.002
#     (Dynamic is edited)
#     python pretrain.py                runs/composite-3     Dynamic in attention.py has changed
#     (and edited back)
#     python pretrain.py                runs/composite       finished before


def place_for(base, made):
    """The folder of a run: base, base-2, ... If it is not base, a line says why.

    It is the first one that these settings and this code have made; if there is none, the first one
    that is free. A new run claims its folder: before any work begins, what makes it is written as
    the first line of the log. From then on, other commands take the next number.

    A log may grow: fine-tuning adds the settings of each new task. Only what both have must be
    equal.

    base: a Path. made: {"settings", "code"}.
    """
    # another command may want the same folder at the same moment
    with lock(base.parent / ".lock", timeout=-1):
        folder, why = find_place(base, made)
        log = read_log(folder)
        if not log:
            write_records(folder / LOG, [made])
        elif not made["settings"].items() <= log[0]["settings"].items():
            log[0]["settings"] |= made["settings"]
            write_records(folder / LOG, log)
    if folder != base:
        say_once(f"{why}: {folder}")
    return folder


def find_place(base, made):
    """(folder, why it is not another one)."""
    reasons = []
    for folder in places(base):
        differing = differences(read_log(folder)[0], made, folder)
        if not differing:
            break
        reasons.append(differing)
    else:
        folder = next(each for each in numbered(base) if is_free(each))
    # of several runs the most similar one is named: the fewest things differ from it
    fewest = min(reasons, key=len, default=[f"{base} is not free"])
    return folder, "; ".join(fewest[:2])


def differences(there, here, folder):
    """How what made a folder differs from what is here: texts, of the code and of each setting."""
    code = code_changes(there["code"], here["code"], folder)
    texts = [code] if code else []
    old, new = there["settings"], here["settings"]
    for name in changed(old, new):
        texts.append(f"{name} is {new[name]}, not {old[name]} as in {folder}")
    return texts


def numbered(base):
    """Yield base, base-2, ... and composite-seed0, composite-2-seed0, which runs/*-seed? finds."""
    name, seed = re.fullmatch(r"(.*?)(-seed\d+)?", base.name).groups("")
    yield base
    for number in range(2, 1_000):
        yield base.parent / f"{name}-{number}{seed}"


def places(base):
    """Those of the folders base, base-2, ... that have a log."""
    with_log = {path.parent for path in base.parent.glob(f"*/{LOG}")}
    return [folder for folder in numbered(base) if folder in with_log]


def is_free(folder):
    """Whether a folder holds no log, no result and no weights."""
    return not any(path.suffix in (".json", ".jsonl", ".pt") for path in folder.glob("*"))


def run_folder(args, variant, seed):
    """The folder of a run: runs/small-books-composite-seed1, without what is the default.

    Further runs that differ in anything else, such as --lr, get a number: place_for.
    """
    parts = []
    if args.size != "tiny":
        parts.append(args.size)
    texts = "-".join(Path(name).resolve().stem for name in args.corpus if name != "toy")
    if texts:
        parts.append(texts[:LONGEST_NAME])
    parts.append(variant)
    if args.causal:
        parts.append("causal")
    if args.seed != [0]:
        parts.append(f"seed{seed}")
    return args.out_dir / "-".join(parts)


# --- A run that a program opens -------------------------------------------------------------------


def newer_runs(folder):
    """The runs of the same name, variant and seed that have a higher number."""
    base = folder.parent / re.sub(r"-\d+(-seed\d+)?$", r"\1", folder.name)
    found = [each for each in places(base) if (each / "model.pt").exists()]
    if folder not in found:
        return []
    # the name of a variant may end with a number, too
    variant = run_settings(folder)["variant"]
    newer = found[found.index(folder) + 1 :]
    return [each for each in newer if run_settings(each)["variant"] == variant]


def newest_of(folders):
    """The runs without those of which a newer one is among them, as `runs/*` may find."""
    newest = []
    for folder in folders:
        newer = [each for each in newer_runs(folder) if each in folders]
        if newer:
            print(f"{folder} is left out: {newer[-1]} is newer")
        else:
            newest.append(folder)
    return newest


def warn_about_run(folder, code):
    """Warn if other code has trained a run, if it is not finished, or if there is a newer one.

    code: the digests of the code that computes with it now.
    """
    log = read_log(folder)
    if not log:  # another program made it
        return
    say_once(code_changes(log[0]["code"], code, f"{folder} was trained"))
    steps = log[0]["settings"]["steps"]
    step = log[-1].get("step", 0)
    if step < steps:
        say_once(f"{folder} is not finished: step {step:,} of {steps:,}")
    for newer in newer_runs(folder)[-1:]:
        say_once(f"{newer} is newer than {folder}")


def unseen_pieces(folder):
    """The ids of the pieces that do not occur in the text of a run; none if its log has no such."""
    log = read_log(folder)
    return log[0].get("unseen", []) if log else []


def say_unknown_words(folder, tokenizer, text):
    """Print a line for each word and mark that the model of a run has not learned."""
    for word in unknown_words(tokenizer, text, unseen_pieces(folder)):
        print(f'"{word}" is unknown to {folder}, so its answer may mean little')
