"""The code of a result: a digest of every file of this project that was loaded and can change it.

    "model.py"                         a file as a whole; so "support/tokenizer.py" and all others
    "class Dynamic in attention.py"    attention.py by what it defines and imports at its top level
    "split_heads in attention.py"
    "statements in attention.py"       those at its top level that define nothing
    "entry in VARIANTS"                that of the variant, and the modules that it becomes

Python knows what it has loaded; only the few files that do not count are listed (WITHOUT_RESULT).
A file outside of the project does not count.
Comments, docstrings and layout do not count. Two results are compared by the names that both have.
So a new file makes no run old, and neither does a new class or function of attention.py.
"""

import ast
import hashlib
import sys
import sysconfig
from functools import cache
from pathlib import Path
from symtable import symtable

from torch import nn

ROOT = Path(__file__).resolve().parent.parent

# A virtual environment, or Python itself, may lie in the folder of the project: this is the folder
# of both that holds their files.
LIBRARY = Path(sysconfig.get_path("stdlib")).name  # such as "python3.12"

BY_DEFINITION = "attention.py"
# "entry in VARIANTS" says what becomes of an entry in a table.
TABLES = {"TERMS", "VARIANTS"}

# These files cannot change a result, so an edit of them makes none old.
WITHOUT_RESULT = (
    "support/tables.py",  # prints the means of results
    "lab/report.py",  # the same
    "support/options.py",  # reads the command line; what it gives is in the settings
    "support/runs.py",  # finds results
    "support/code.py",  # the same
)


def code_of(model):
    """{name: digest} of the code that a result of this model depends on.

    Of the modules in attention.py, those count of which the model holds an object, and those that
    they extend. So to edit Rotary changes nothing for dynamic. All other code counts.
    """
    attention = sys.modules["attention"]
    variant = vars(attention.VARIANTS[model.config.variant])
    # a class by its name, because its own text also has its module
    entry = [(field, getattr(value, "__name__", value)) for field, value in variant.items()]
    used = set()
    for name, module in model.named_modules():
        entry.append((name, type(module).__name__))
        used.update(each.__name__ for each in type(module).__mro__)

    modules = {name for name, each in vars(attention).items() if is_module(each)}
    unused = {f"class {name} in {BY_DEFINITION}" for name in modules - used}
    digests = {"entry in VARIANTS": digest_of(entry)}
    for name, digest in code_now().items():
        if name not in unused:
            digests[name] = digest
    return digests


def is_module(value):
    """Whether a value is a class of torch's modules."""
    return isinstance(value, type) and issubclass(value, nn.Module)


def code_now():
    """{name: digest} of all code that is loaded.

    Programs also call it when they start (run_command), because a file may be edited while a long
    one is running: digests_of keeps its digests.
    """
    digests = {}
    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "").resolve()
        if not path.is_file() or not path.is_relative_to(ROOT):
            continue
        file = path.relative_to(ROOT)
        if LIBRARY not in file.parts:
            digests |= digests_of(file.as_posix())
    return digests


@cache
def digests_of(file):
    """{name: digest} of a file, as it was when it was first asked for."""
    if file in WITHOUT_RESULT:
        return {}
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    if file != BY_DEFINITION:
        return {file: digest_of(parts_of(tree))}

    digests = {}
    without_name = []
    for statement in tree.body:
        # the names that it defines or imports: Python finds them itself
        symbols = symtable(ast.unparse(statement), file, "exec").get_symbols()
        names = {symbol.get_name() for symbol in symbols if symbol.is_local()}
        if isinstance(statement, ast.ImportFrom):
            statement.names = []  # another name of the same module changes nothing for these
        kind = "class " if isinstance(statement, ast.ClassDef) else ""
        for name in names - TABLES:
            digests[f"{kind}{name} in {file}"] = digest_of(parts_of(statement))
        # such as Fixed.query_bias = ..., and not VARIANTS["mine"] = ...
        if not names and not TABLES & {name.get_name() for name in symbols}:
            without_name.append(parts_of(statement))
    return {**digests, f"statements in {file}": digest_of(without_name)}


def parts_of(code):
    """A syntax tree as lists, without its empty fields and docstrings.

    Python's own texts of a tree (ast.dump, ast.unparse) change with its version: a new one may give
    nodes a new field, which is empty in code for older ones.
    """
    match code:
        case list():
            return [part for part in map(parts_of, code) if part != []]
        case ast.Expr(ast.Constant()):
            return []  # a docstring
        case ast.AST():
            fields = [(name, parts_of(value)) for name, value in ast.iter_fields(code)]
            fields = [field for field in fields if field[1] not in (None, [])]
            return [type(code).__name__, *fields]
    return code


def digest_of(value):
    """12 hexadecimal digits for a text, or a value whose repr says all of it."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
