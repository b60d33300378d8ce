"""A copy of the project for students, in which the bodies of the graded functions are blank.

They are cut out of the source as it is now. What is left of such a function is its decorators, its
signature and its docstring (equation, shapes):

    def query_bias(self, q):
        raise NotImplementedError("part 3: the fixed term")

The rest of a file is byte for byte the same.
"""

import ast
import json
import re
import shutil
import symtable
import textwrap
from pathlib import Path

from course.assignment import GIVE_AWAY, GRADED
from support.commands import UserError

ROOT = Path(__file__).resolve().parent.parent
NAMES = "course/names.json"  # of a students' copy: {file: the names that it had at first}

# A copy has these files and folders, whatever else lies beside them (runs, submissions, bugs) ...
COPIED = (
    *("attention.py", "kernels.py", "model.py", "data.py", "pretrain.py", "glue.py"),
    *("README.md", "LICENSE", "requirements.txt", ".gitignore"),
    *("support", "lab", "toy", "course", "docs", "results", "tests"),
)
# ... without what holds answers.
LEFT_OUT = shutil.ignore_patterns(
    "__pycache__",
    "instructor.md",
    "answers.md",
    "mistakes.*",
    "instructor.py",
    "test_course.py",
    "test_handout.py",
)


def blank_command(args):
    """`python -m course blank`. Returns the exit code."""
    folder = new_folder(args.folder)
    bodies = {function.name: blank_body(function) for function in GRADED}
    bodies |= dict.fromkeys(GIVE_AWAY, 'raise NotImplementedError("see composite_attention")')
    copy_project(folder, bodies)

    # the names that bodies may read, because students change the files
    files = {file_of(function.name) for function in GRADED}
    names = {file: names_outside(file) for file in files}
    (folder / NAMES).write_text(json.dumps(names), encoding="utf-8")

    # README prints one of the functions, has a link to a page that is left out, and runs all tests,
    # most of which fail while the functions are blank.
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8")
    listing = r"This is all of it, [^`]*```python\ndef composite_attention.*?```"
    text = re.sub(
        listing, "You write it in part 1 of [the assignment](course/handout.md).", text, flags=re.S
    )
    text = text.replace(" ([for lecturers](course/instructor.md))", "")
    text = re.sub("The tests take a few minutes.*:", "Your points:", text)
    text = text.replace("python -m pytest -q\n", "python -m course grade .\n")
    readme.write_text(text, encoding="utf-8", newline="\n")
    print(f"{folder}: {len(bodies)} functions to write; course/handout.md explains them")
    return 0


def new_folder(name):
    """Make a new folder outside of the project. Returns its path."""
    folder = Path(name)
    if folder.resolve().is_relative_to(ROOT):
        raise UserError(f"{folder} is inside the project; choose a folder outside")
    folder.mkdir(parents=True)
    return folder


def blank_body(function):
    return f'raise NotImplementedError("part {function.part}: {function.title}")'


def copy_project(folder, bodies):
    """Copy the project to a folder, with other bodies of some functions: {name: body}."""
    folder.mkdir(exist_ok=True)
    for path in ROOT.iterdir():
        if path.name in COPIED and path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=LEFT_OUT)
        elif path.name in COPIED:
            shutil.copy(path, folder)
    for name, body in bodies.items():
        path = folder / file_of(name)
        text = replace_body(path.read_text(encoding="utf-8"), name, body)
        path.write_text(text, encoding="utf-8", newline="\n")


# --- Where a function is in its file --------------------------------------------------------------


def file_of(name):
    """The file of a function: "attention.py" for "attention.Fixed.query_bias"."""
    return name.split(".")[0] + ".py"


def find(tree, name):
    """The node of a function in the syntax tree of its file; None if it is not there."""
    node = tree
    for part in name.split(".")[1:]:
        found = [child for child in node.body if getattr(child, "name", None) == part]
        if not found:
            return None
        node = found[-1]  # if it is defined twice, the last one counts, as in Python
    return node


def names_outside(file):
    """The names that a file of the project has outside of its functions and classes."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return sorted(symtable.symtable(text, file, "exec").get_identifiers())


def body_of(node):
    """The statements of a function, without its docstring."""
    if ast.get_docstring(node) is None:
        return node.body
    return node.body[1:]


def body_text(name):
    """The body of a function of the project, as it is in its file, but without indentation."""
    text = (ROOT / file_of(name)).read_text(encoding="utf-8")
    node = find(ast.parse(text), name)
    lines = text.split("\n")[body_of(node)[0].lineno - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines))


def replace_body(text, name, body):
    """The text of a file in which the body of a function, after its docstring, is `body`.

    `body` has no indentation.
    """
    node = find(ast.parse(text), name)
    statements = body_of(node)

    # The lines of the old body, counted from 1. Comments before its first statement go, too.
    first = statements[0].lineno
    if len(statements) < len(node.body):
        first = node.body[0].end_lineno + 1

    # the new body, as deep as the old one
    new = textwrap.indent(body, " " * statements[0].col_offset)
    lines = text.split("\n")
    return "\n".join([*lines[: first - 1], new, *lines[node.end_lineno :]])
