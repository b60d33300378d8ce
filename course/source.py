"""Where a function is in its file, and its body.

    body_text("kernels.convolve")     N = value.shape[-2] ...

Decorators, the signature and the docstring (equation, shapes) stay when a body is replaced, and the
rest of the file is byte for byte the same.
"""

import ast
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def file_of(name):
    """The file of a function: "attention.py" for "attention.Fixed.query_bias"."""
    return name.partition(".")[0] + ".py"


def statements_of(text, name):
    """The statements of a function, without its docstring, in the text of its file."""
    node = ast.parse(text)
    for part in name.split(".")[1:]:
        [node] = [child for child in node.body if getattr(child, "name", None) == part]
    return node.body[1:] if ast.get_docstring(node) else node.body


def body_text(name):
    """The body of a function of the project, as it is in its file, but without indentation."""
    text = (ROOT / file_of(name)).read_text(encoding="utf-8")
    statements = statements_of(text, name)
    lines = text.split("\n")[statements[0].lineno - 1 : statements[-1].end_lineno]
    return textwrap.dedent("\n".join(lines))


def replace_body(text, name, body):
    """The text of a file in which the body of a function, after its docstring, is `body`.

    `body` has no indentation.
    """
    statements = statements_of(text, name)
    lines = text.split("\n")
    first, last = statements[0], statements[-1]

    # comments before the first statement go, too
    start = first.lineno - 1
    while lines[start - 1].strip().startswith("#"):
        start -= 1
    lines[start : last.end_lineno] = [textwrap.indent(body, " " * first.col_offset)]
    return "\n".join(lines)


def blank_body(function):
    return f'raise NotImplementedError("part {function.part}: {function.title}")'
