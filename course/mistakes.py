"""Known mistakes, to check the cases, and bugs and questions for students.

course/mistakes.diff lists mistakes, function by function. One of them replaces a piece of text in
the body of a graded function, which must occur there exactly once, and names a case that it fails:

    @@ kernels.bias_matrix

    zero on one side only
    ! zero_beyond_the_window_and_only_there
    - r.abs() > reach
    + r > reach

A bank is a folder with bugs.diff, such mistakes for students to find, and questions.txt: after the
line @@ of a function, blocks of a question and its answer. course/bank is an example.
"""

from typing import NamedTuple

from course.source import ROOT

LIST = ROOT / "course/mistakes.diff"


class Mistake(NamedTuple):
    """What a student might write in place of a piece of a function."""

    function: str  # its name in the table of the assignment
    what: str
    case: str  # that says so
    old: str
    new: str

    def put_into(self, body):
        """The body of the function, with the mistake in it."""
        return body.replace(self.old, self.new)


def read_mistakes(path):
    """A list of each Mistake of a file."""
    return [
        Mistake(
            function, what, *("\n".join(x[2:] for x in lines if x[0] == sign) for sign in "!-+")
        )
        for function, what, *lines in read_blocks(path)
    ]


def read_blocks(path):
    """Yield [function, *lines] of each block; blank lines separate them."""
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        if block.startswith("@@ "):
            function = block.removeprefix("@@ ")
        else:
            yield [function, *block.split("\n")]
