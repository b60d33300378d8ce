"""What a student's body may do: read from the syntax tree, before anything is executed.

A body may use its arguments, its own variables and nested functions, plain built-ins, torch, F, nn,
math, and those functions of the project that the original body uses or that the table allows. So
key_scores may call relative_scores, but relative_scores may not simply call gather_scores. A body
cannot reach files, frames or other modules in an ordinary way. This stops honest mistakes and
simple tricks; it is not a sandbox (course/grade.py).
"""

import ast
import textwrap

from course.parts import (
    body_without_docstring,
    file_of,
    find,
    original,
    read_source,
    replace_body,
    source_and_tree,
)

LARGEST_FILE = 1_000_000  # bytes
LIBRARIES = {"torch", "F", "nn", "math"}

# fmt: off
BUILTINS = {
    "abs", "all", "any", "bool", "complex", "dict", "divmod", "enumerate", "filter", "float",
    "frozenset", "id", "int", "isinstance", "iter", "len", "list", "map", "max", "min", "next",
    "pow", "print", "range", "repr", "reversed", "round", "set", "slice", "sorted", "str", "sum",
    "tuple", "zip", "Exception", "ArithmeticError", "AssertionError", "IndexError", "KeyError",
    "NotImplementedError", "RuntimeError", "StopIteration", "TypeError", "ValueError",
    "ZeroDivisionError",
}

# Not even as names of variables: a nested function could hide the built-in behind its argument.
FORBIDDEN_NAMES = {
    "breakpoint", "bytearray", "bytes", "callable", "classmethod", "compile", "delattr", "dir",
    "eval", "exec", "exit", "getattr", "globals", "hasattr", "issubclass",
    "locals", "memoryview", "object", "open", "property", "quit", "setattr", "staticmethod",
    "super", "type", "vars",
}

# Attributes that lead to files, processes, modules, frames, or to the state of torch.
FORBIDDEN_ATTRIBUTES = {
    "builtins", "classes", "compile", "cpp_extension", "ctypes", "distributed", "export",
    "from_file", "fromfile", "fx", "hub", "importlib", "inspect", "io", "jit", "library",
    "linecache", "load", "loadtxt", "memmap", "multiprocessing", "ops", "os", "overrides",
    "package", "pickle", "platform", "save", "savez", "serialization", "subprocess", "sys",
    "testing", "threading", "tofile", "torch", "types", "utils", "warnings",
    "ag_frame", "cr_frame", "f_back", "f_builtins", "f_code", "f_globals", "f_locals", "gi_code",
    "gi_frame", "tb_frame", "tb_next",
    "manual_seed", "seed", "use_deterministic_algorithms",
}

IMPORTS = "imports something (torch, math, nn and F are there already)"
FORBIDDEN_STATEMENTS = {
    ast.Import: IMPORTS,
    ast.ImportFrom: IMPORTS,
    ast.Global: "uses `global`",
    ast.ClassDef: "defines a class",
    ast.Yield: "is a generator (`yield`), which returns no tensor",
    ast.YieldFrom: "is a generator (`yield from`), which returns no tensor",
    ast.Await: "uses `await`",
    ast.AsyncFunctionDef: "uses `async`",
    ast.AsyncFor: "uses `async`",
    ast.AsyncWith: "uses `async`",
}
# fmt: on


class Refused(Exception):
    """The body is not executed. The message is a sentence for the student."""


# --- The body, out of a student's file ------------------------------------------------------------


def students_function(folder, name):
    """The syntax tree of a graded function in a student's copy. Raises Refused if there is none."""
    path = folder / file_of(name)
    inside = path.resolve().is_relative_to(folder.resolve())
    if path.is_symlink() or not inside:
        raise Refused(f"{path.name} is a link to another file")
    if not path.is_file():
        raise Refused(f"there is no file {path.name}")
    if path.stat().st_size > LARGEST_FILE:
        raise Refused(f"{path.name} is larger than {LARGEST_FILE:,} bytes")

    # Python's parser gives up with different errors.
    try:
        text = path.read_text(encoding="utf-8-sig")
        try:
            node = find(ast.parse(text), name)
        except SyntaxError:
            # a mistake in another function must not count here
            node = find(ast.parse(cut_out(text, name)), name)
    except SyntaxError as error:
        line = textwrap.shorten(str(error.text or ""), 80)
        where = f"line {error.lineno} of {path.name}"
        raise Refused(f"Python cannot read it: {where}: {error.msg}: {line}") from None
    except UnicodeDecodeError:
        raise Refused(f"{path.name} is not a text in UTF-8") from None
    except (ValueError, RecursionError, MemoryError) as error:
        kind = type(error).__name__
        raise Refused(f"Python cannot read {path.name}: {kind} {error}") from None
    if not isinstance(node, ast.FunctionDef):
        raise Refused(f"{path.name} has no function {name.partition('.')[2]}")
    return node


def cut_out(text, name):
    """Only the lines of one function, with the line `class X:` if it is in a class.

    For files that Python cannot parse. The other lines become blank, so that the line numbers stay
    the same. The function begins with its decorators, and ends before the next line that is not
    inside it; a line at the left edge in a text in triple quotes is taken for such a line. "" if
    there is no such function.
    """
    *classes, function = name.split(".")[1:]
    depth = 4 * len(classes)
    lines = text.splitlines()

    # the line after `class X`, if there is one
    start = 0
    for line_number, line in enumerate(lines):
        if classes and line.startswith((f"class {classes[0]}(", f"class {classes[0]}:")):
            start = line_number + 1
    above = [""] * start
    if start > 0:
        above[-1] = f"class {classes[0]}:"

    # the end of the class, or of the file
    stop = start
    while stop < len(lines) and (depth == 0 or not is_outside(lines[stop], 0)):
        stop += 1

    # from `def name(` to the line before the next one outside
    begin = start
    while begin < stop and not lines[begin].startswith(" " * depth + f"def {function}("):
        begin += 1
    if begin == stop:
        return ""
    end = begin + 1
    while end < len(lines) and not is_outside(lines[end], depth):
        end += 1

    # with its decorators
    while begin > start and lines[begin - 1].startswith(" " * depth + "@"):
        begin -= 1
    above += [""] * (begin - start)
    return "\n".join(above + lines[begin:end])


def is_outside(line, depth):
    """Whether a line does not belong to a function whose `def` is indented by `depth` spaces."""
    text = line.lstrip()
    indentation = len(line) - len(text)

    # a closing bracket may end the arguments or an expression, and a comment may stand anywhere
    return text != "" and indentation <= depth and not text.startswith((")", "]", "}", "#"))


def is_blank(node):
    """Whether the body is nothing but the sentence of `course blank`."""
    body = body_without_docstring(node)
    if len(body) != 1 or not isinstance(body[0], ast.Raise):
        return False
    raised = body[0].exc
    if isinstance(raised, ast.Call):
        raised = raised.func
    return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"


def insert_body(node, name):
    """The text of the instructor's file, in which this function has the student's body."""
    # from the syntax tree back to text; its comments are lost
    try:
        statements = [ast.unparse(statement) for statement in body_without_docstring(node)]
    except (RecursionError, ValueError) as error:
        raise Refused(f"Python cannot read it: {error}") from None

    # a function needs at least one statement: this one had only a docstring
    if not statements:
        statements = ["pass"]
    body = "\n".join(statements)
    return replace_body(read_source(name), name, body)


def changed_signature(node, name):
    """A sentence if the arguments or decorators are not the original ones; otherwise None."""
    ours = original(name)
    same_arguments = ast.dump(node.args) == ast.dump(ours.args)
    decorators = [ast.dump(decorator) for decorator in node.decorator_list]
    same_decorators = decorators == [ast.dump(decorator) for decorator in ours.decorator_list]
    if same_arguments and same_decorators:
        return None
    return (
        "Its arguments, their defaults or its decorators were changed: "
        "only the body is graded, with the original first line."
    )


# --- The rules ------------------------------------------------------------------------------------


def check_body(node, function):
    """Raise Refused if the body does something that the table or the rules do not allow.

    Args:
        node: the student's function, a syntax tree.
        function: its line in course/parts.py.
    """
    module = source_and_tree(file_of(function.name))[1]
    ours = original(function.name)
    body = body_without_docstring(node)
    try:
        nodes = []
        for statement in body:
            nodes += ast.walk(statement)
    except RecursionError:
        raise Refused("its expressions are nested too deeply") from None

    # names: those of the original and plain built-ins, and what the body itself gives values
    allowed = used_names(ours) | LIBRARIES | BUILTINS | argument_names(ours)
    allowed |= set(function.may)
    allowed -= set(function.may_not)
    taken = (definitions(module) | FORBIDDEN_NAMES | set(function.may_not)) - allowed
    own = names_given(nodes)
    attributes = {found.attr for found in ast.walk(ours) if isinstance(found, ast.Attribute)}
    forbidden_attributes = (FORBIDDEN_ATTRIBUTES - attributes) | set(function.may_not)

    # a variable that has the name of something in the file
    clashes = sorted(own & (definitions(module) - allowed))
    if clashes:
        raise Refused(
            f"`{clashes[0]}` is the name of a function, class or import of this file: give your "
            "variable another name"
        )

    for found in nodes:
        check_statement(found)
        if isinstance(found, ast.Name):
            check_name(found.id, allowed | own, taken)
        if isinstance(found, ast.Attribute):
            check_attribute(found, forbidden_attributes)
        if isinstance(found, (ast.Attribute, ast.Subscript)):
            check_change(found, allowed - argument_names(ours) - own)
    for name in own:
        check_name(name, allowed | own, taken)


def check_statement(node):
    for kind, sentence in FORBIDDEN_STATEMENTS.items():
        if isinstance(node, kind):
            raise Refused(f"it {sentence}: {first_line(node)}")


def check_name(name, known, taken):
    """Refused if a name is not known, or belongs to something that this body may not use."""
    if name.startswith("__") or name in taken:
        raise Refused(f"it may not use the name `{name}` here")
    if name not in known:
        raise Refused(
            f"the name `{name}` is not known here: the grader takes this function alone, without "
            "your other functions and imports; define it inside this function"
        )


def check_attribute(node, forbidden):
    """Refused for private and dangerous attributes."""
    name = node.attr
    if name.startswith(("_", "set_")) or name in forbidden:
        raise Refused(f"it may not use `.{name}`: {first_line(node)}")


def check_change(node, of_others):
    """Refused for F.softmax = ... and the like: changes of torch and of the project."""
    if isinstance(node.ctx, ast.Load):
        return
    owner = node
    while isinstance(owner, (ast.Attribute, ast.Subscript)):
        owner = owner.value
    if isinstance(owner, ast.Name) and owner.id in of_others:
        raise Refused(f"it changes `{owner.id}`, which is not its own: {first_line(node)}")


def first_line(node):
    """The start of a piece of code, for a message."""
    try:
        return textwrap.shorten(ast.unparse(node), 60)
    except (RecursionError, ValueError):
        return "(a long expression)"


def used_names(node):
    """The names that the original function reads."""
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}


def may_use(function):
    """The names of the project that the body of a graded function may use, sorted."""
    module = source_and_tree(file_of(function.name))[1]
    names = used_names(original(function.name)) | set(function.may)
    names &= definitions(module) | constants(module)
    return sorted(names - LIBRARIES - set(function.may_not))


def argument_names(node):
    """The names of a function's own arguments."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return {argument.arg for argument in arguments}


def names_given(nodes):
    """The names that a body gives values: variables, nested functions and their arguments."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef) or (
            isinstance(node, ast.ExceptHandler) and node.name is not None
        ):
            names.add(node.name)
    return names


def constants(module):
    """The names in capitals that a file gives values, such as MASK."""
    names = set()
    for node in module.body:
        if isinstance(node, ast.Assign):
            names |= names_given(ast.walk(node))
    return {name for name in names if name.isupper()}


def definitions(module):
    """The functions, classes and imported names of a file."""
    names = set()
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return names
