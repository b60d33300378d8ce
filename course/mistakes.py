"""Known mistakes, to check the tests: each must fail in the test command of its function.

mistakes.diff lists them, function by function. A mistake replaces one piece of text in the body of
a graded function, which must occur there exactly once:

    @@ kernels.bias_matrix

    bug: zero on one side only
    - r.abs() > reach
    + r > reach

After a change in a graded function, tests/test_course.py says which of them have to follow it.
Those that begin with "bug: " are also planted for students to find (course/answers.md).
"""

from pathlib import Path
from typing import NamedTuple

from course.blank import body_text


class Mistake(NamedTuple):
    """What a student might write in place of a piece of a function."""

    function: str  # its name in the table of the assignment
    what: str
    old: str
    new: str

    def body(self):
        """The body of the function, with the mistake in it."""
        return body_text(self.function).replace(self.old, self.new)


def read_mistakes():
    """Yield each Mistake of the list. Its blocks are separated by a blank line."""
    text = Path(__file__).with_suffix(".diff").read_text(encoding="utf-8")
    for block in text.strip().split("\n\n"):
        title, *lines = block.split("\n")
        if title.startswith("@@ "):
            function = title.removeprefix("@@ ")
            continue
        old = [line[2:] for line in lines if line.startswith("- ")]
        new = [line[2:] for line in lines if line.startswith("+ ")]
        yield Mistake(function, title, "\n".join(old), "\n".join(new))


MISTAKES = list(read_mistakes())
BUGS = [mistake for mistake in MISTAKES if mistake.what.startswith("bug: ")]
