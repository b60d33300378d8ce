"""A copy of the project for students, in which the bodies of some functions are blank.

A blank keeps the signature, the docstring (equation, shapes) and the comments that name the steps:

    def forward(self, q):
        # (H, 1, K): the same row for every sequence and query
        raise NotImplementedError("part 2: the fixed term")

The rest of a file is byte for byte the same, except for the SPECIAL_CASES of blank functions.
ASSIGNMENT.md lists the functions. The copy holds no file of the grader, because the list of known
mistakes would give the answers away.
"""

import functools
import io
import shutil
import tokenize
from pathlib import Path

from course.assignment import assignment_text
from course.parts import (
    GRADED,
    ROOT,
    body_without_docstring,
    file_of,
    original,
    replace_body,
    source_and_tree,
)

# What is copied, relative to the project.
FILES = (
    "*.py",
    "*.md",
    "LICENSE",
    "requirements*.txt",
    ".ruff.toml",
    ".gitignore",
    ".gitattributes",
    ".ci/*",
    "course/*.md",
    "course/*.png",
    "docs/*",
    "lab/*.py",
    "lab/*.html",
    "results/*",
    "support/*.py",
    "tests/*.py",
    "tests/science/*.py",
    "toy/*.py",
)

# Fast special cases of graded functions: (the graded one, a body that calls it). Where that one is
# blank, their own bodies would give its answer away.
SPECIAL_CASES = {
    "kernels.scores_of_covering_rows": (
        "kernels.relative_scores",
        'return relative_scores(rows, length, "clip", first)',
    ),
    "kernels.bands_of_strip": (
        "kernels.sum_bands_of_strip",
        'return sum_bands_of_strip(scores, K, "clip", first)',
    ),
}

# These belong to the grader, or hold the answers.
NOT_COPIED = ("course/instructor*", "tests/test_course*.py", "tests/test_handout.py")

# Added to .ruff.toml: a blank function does not use its imports yet, and ruff must not report them.
UNUSED_IMPORTS = """
[lint.per-file-ignores]
# Functions that are blank do not use their imports yet.
"*.py" = ["F401"]
"""


def blank_command(args):
    """`python -m course blank`. Returns the exit code."""
    blanked = write_blanked_project(Path(args.out), args.parts)
    print(f"{args.out}: {len(blanked)} functions to write")
    for function in blanked:
        print(f"    part {function.part}  {function.name:<36}{function.title}")
    return 0


def write_blanked_project(out, parts):
    """Copy the project to a new folder and blank the functions of these parts.

    Returns the lines of the table that are blank. Raises ValueError if `out` exists, or if these
    parts have no functions.
    """
    if out.exists() or out.is_symlink():
        raise ValueError(f"{out} exists already; choose a folder that does not exist")
    if out.resolve().is_relative_to(ROOT):
        raise ValueError(f"{out} is inside the project; choose a folder outside")
    blanked = [function for function in GRADED if function.part in parts]
    if not blanked:
        raise ValueError("part 6 has no functions to write: give students the project itself")

    # copy
    for path in project_files():
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
        shutil.copymode(ROOT / path, target)

    # blank
    for name, body in new_bodies(blanked).items():
        path = out / file_of(name)
        write(path, replace_body(path.read_text(encoding="utf-8"), name, body))

    # what to do
    write(out / "ASSIGNMENT.md", assignment_text(blanked))

    # the linter
    settings = (ROOT / ".ruff.toml").read_text(encoding="utf-8")
    write(out / ".ruff.toml", settings + UNUSED_IMPORTS)
    return blanked


def new_bodies(blanked):
    """{name of a function: its body in the copy}"""
    bodies = {function.name: blank_body(function) for function in blanked}
    for name, (graded, body) in SPECIAL_CASES.items():
        if graded in bodies:
            bodies[name] = body
    return bodies


def project_files():
    """The files that are copied, relative to the project, in a fixed order."""
    files = set()
    for pattern in FILES:
        for path in ROOT.glob(pattern):
            path = path.relative_to(ROOT)
            is_left_out = any(path.match(pattern) for pattern in NOT_COPIED)
            if (ROOT / path).is_file() and not is_left_out:
                files.add(path)
    return sorted(files)


def write(path, text):
    path.write_text(text, encoding="utf-8", newline="\n")


def blank_body(function):
    """What takes the place of a body: its comments, and the sentence."""
    lines = []
    previous = None
    for number, comment in step_comments(function.name):
        # lines of one comment stay together
        if previous is not None and number != previous + 1:
            lines.append("")
        lines.append(comment)
        previous = number
    if lines:
        lines.append("")
    lines.append(f'raise NotImplementedError("part {function.part}: {function.title}")')
    return "\n".join(lines)


def step_comments(name):
    """[(line number, comment)]: the comments of a function that have a line of their own."""
    node = original(name)
    statements = body_without_docstring(node)
    first = statements[0].lineno
    if len(statements) < len(node.body):
        first = node.body[0].end_lineno

    # a line that only looks like a comment may be part of a string: ask Python's own reader
    comments = []
    for token in comment_tokens(file_of(name)):
        number = token.start[0]
        has_own_line = token.line.strip().startswith("#")
        if has_own_line and first <= number <= node.end_lineno:
            comments.append((number, token.string))
    return comments


@functools.cache
def comment_tokens(file):
    """All comments of one of the project's files."""
    lines = io.StringIO(source_and_tree(file)[0])
    tokens = tokenize.generate_tokens(lines.readline)
    return [token for token in tokens if token.type == tokenize.COMMENT]
