"""The code of a result: a digest of every file of this project that was loaded.

    "model.py"                     a file as a whole; so "support/tokenizer.py" and all others
    "Dynamic in attention.py"      attention.py by what it defines and imports at its top level
    "split_heads in attention.py"

Nothing is listed by hand: Python knows what it has loaded. Comments, docstrings and layout do not
count. Two results are compared by the names that both have. So a new file makes no run old, and
neither does a new class or function of attention.py.
"""

import ast
import hashlib
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A virtual environment, or Python itself, may lie in the folder of the project.
LIBRARIES = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]

BY_DEFINITION = "attention.py"
TABLES = ("TERMS", "VARIANTS")  # a new entry is no change; that of a variant: support.runs.code_now

# These files cannot change a result, so an edit of them makes none old.
WITHOUT_RESULT = (
    "support/tables.py",  # prints the means of results
    "lab/report.py",  # the same
    "support/options.py",  # reads the command line; what it gives is in the settings
    "support/runs.py",  # finds results
    "support/code.py",  # the same
)

READ = {}  # {file: {name: digest}}, of each file as it was when it was first read


def read_code():
    """Read the files that are loaded and were not read before.

    Programs do it when they start (run_command): a file may be edited while a long one is running.
    """
    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "")
        if path.is_absolute():  # a module that torch makes has a file without a folder
            path = path.resolve()  # "../project/pretrain.py", or a link to the folder
        if not path.is_relative_to(ROOT) or any(map(path.is_relative_to, LIBRARIES)):
            continue
        file = path.relative_to(ROOT).as_posix()
        if file not in READ and file not in WITHOUT_RESULT:
            READ[file] = digests_of(file, path.read_text(encoding="utf-8"))


def digests_of(file, text):
    """{name: digest} of a file."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        has_docstring = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if has_docstring and ast.get_docstring(node) is not None:
            del node.body[0]

    if file != BY_DEFINITION:
        return {file: digest_of(parts_of(tree))}
    digests = {}
    for statement in tree.body:
        for name, code in definitions(statement):
            digests[f"{name} in {file}"] = digest_of(parts_of(code))
    return digests


def definitions(statement):
    """[(name, code)]: the class, function or constant that a statement defines, or its imports."""
    match statement:
        case ast.ClassDef(name) | ast.FunctionDef(name):
            return [(name, statement)]
        case ast.Assign() | ast.AnnAssign():  # also A, B = 1, 2 and A: int = 1
            nodes = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
            names = [node.id for node in nodes if isinstance(node.ctx, ast.Store)]
            return [(name, statement) for name in names if name not in TABLES]
        case ast.Import(names) | ast.ImportFrom(names=names):
            module = getattr(statement, "module", "")  # `import x` has none
            return [(each.asname or each.name, [module, each]) for each in names]
    return []


def parts_of(code):
    """A syntax tree as lists, without its empty fields.

    Python's own texts of a tree (ast.dump, ast.unparse) change with its version: a new one may give
    nodes a new field, which is empty in code for older ones.
    """
    if isinstance(code, list):
        return [parts_of(each) for each in code]
    if not isinstance(code, ast.AST):
        return code
    fields = [(name, parts_of(value)) for name, value in ast.iter_fields(code)]
    return [type(code).__name__, *[field for field in fields if field[1] not in (None, [])]]


def digest_of(value):
    """12 hexadecimal digits for a text, or a value whose repr says all of it."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
