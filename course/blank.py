"""A copy of the project for students, in which the bodies of the graded functions are blank.

They are cut out of the source as it is now. What is left of such a function is its decorators, its
signature and its docstring (equation, shapes):

    def query_bias(self, q):
        raise NotImplementedError("attention.Fixed.query_bias: see course/handout.md")

The copy has no tests, whose plain loops are the functions again, and no answers but those of the
cases of seed 0, as numbers (course/cases.pt).
"""

import re
import shutil
from pathlib import Path

import torch

from course.assignment import GIVE_AWAY, GRADED
from course.grade import load_cases
from course.source import ROOT, blank_body, change_body, file_of
from support.commands import UserError

# A copy has these files and folders, whatever else lies beside them (runs, submissions) ...
COPIED = (
    *("attention.py", "kernels.py", "model.py", "data.py", "pretrain.py", "glue.py"),
    *("README.md", "LICENSE", "requirements.txt", ".gitignore"),
    *("support", "lab", "toy", "course", "docs", "results"),
)
# ... without what holds answers.
LEFT_OUT = shutil.ignore_patterns(
    "__pycache__",
    "instructor.*",
    "answers.md",
    "mistakes.*",
    "cases.py",
    "bank",
    "seq2seq.py",
    "translation.*",
)


def blank_command(args):
    """`python -m course blank`. Returns the exit code."""
    folder = new_folder(args.folder)
    for path in ROOT.iterdir():
        if path.name in COPIED and path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=LEFT_OUT)
        elif path.name in COPIED:
            shutil.copy(path, folder)

    # the blanks
    for name in (*GIVE_AWAY, *(function.name for function in GRADED)):
        change(folder / file_of(name), change_body, name, lambda _, name=name: blank_body(name))

    # what the functions must do, with answers: no equation is needed to compare
    torch.save([tuple(case) for case in load_cases(0)], folder / "course/cases.pt")

    # README prints one of the functions, and pages have links to what is left out
    change(folder / "README.md", without_listing)
    for page in folder.rglob("*.md"):
        change(page, without_dead_links, page.parent)
    print(f"{folder}: {len(GRADED)} functions to write; course/handout.md explains them")
    return 0


def new_folder(name):
    """Make a new folder outside of the project. Returns its path."""
    folder = Path(name)
    if folder.resolve().is_relative_to(ROOT):
        raise UserError(f"{folder} is inside the project; choose a folder outside")
    folder.mkdir(parents=True)
    return folder


def change(path, function, *arguments):
    """Replace the text of a file by a function of it."""
    text = function(path.read_text(encoding="utf-8"), *arguments)
    path.write_text(text, encoding="utf-8", newline="\n")


def without_listing(text):
    """README without the listing of composite_attention; its tests are the points."""
    listing = r"This is all of it, [^`]*```python\ndef composite_attention.*?```"
    written = "You write it in part 1 of [the assignment](course/handout.md)."
    text = re.sub(listing, written, text, flags=re.S)
    text = text.replace("The tests take a few minutes.", "This prints your points.")
    return text.replace("python -m pytest -q\n", "python -m course grade .\n")


def without_dead_links(text, folder):
    """The text of a page, in which a link to what was left out is only its words."""

    def words(link):
        is_there = ":" in link[2] or link[2] == "" or (folder / link[2]).exists()
        return link[0] if is_there else link[1]

    return re.sub(r"\[([^\]]*)\]\(([^)#\s]*)[^)]*\)", words, text)
