"""Attacks on the grader: `python -m course attacks` tries each one, and prints what happened.

Every attack is the body of merge_heads, or a change of its file. None of the bodies is a solution,
so none may earn a point. A change of the file that leaves the body as it is must not cost a point.
Each body runs twice: as a student's would, and without the rules of course/rules.py, which refuse
most of them. So the safeguards of the child process are tested, too.

VICTIM stands for the path of a copy of the project: the attacks try to harm this copy, and not the
project itself.
"""

import hashlib
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from course.grade import (
    Limits,
    expected_outputs,
    grade_function,
    right_properties,
    run_untrusted,
    score_of,
)
from course.parts import GRADED, ROOT, read_source, replace_body

NAME = "attention.merge_heads"
LIMITS = Limits(cpu_seconds=8, wall_seconds=30, memory=2)
PROCESSES = 2

BODIES = {
    # leaving Python
    "sys.exit": """
        import sys
        sys.exit(0)
    """,
    "exit()": "exit()",
    "SystemExit": "raise SystemExit(0)",
    "os._exit": """
        import os
        os._exit(0)
    """,
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "its own BaseException": """
        class Stop(BaseException):
            pass
        raise Stop
    """,
    "killing the grader": """
        import os
        os.kill(os.getppid(), 9)
    """,
    # time and memory
    "endless loop": """
        while True:
            pass
    """,
    "sleep": """
        import time
        time.sleep(1000)
    """,
    "fork bomb": """
        import os
        while True:
            os.fork()
    """,
    "a process that stays": """
        import subprocess
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        return x
    """,
    "30 GB": "return torch.ones(30 * 2**27, dtype=torch.float64)",
    "recursion": """
        def again(n):
            return again(n + 1)
        return again(0)
    """,
    "recursion without limit": """
        import sys
        sys.setrecursionlimit(10**9)
        def again(n):
            return again(n + 1)
        return again(0)
    """,
    # results from somewhere else
    "printing results": """
        print('{"score": 100, "tests": []}')
        return x
    """,
    "writing results.json": """
        with open('VICTIM/results.json', 'w') as file:
            file.write('{"score": 100}')
        return x
    """,
    "writing outputs.pt": """
        torch.save([{}], 'outputs.pt')
        import os
        os._exit(0)
    """,
    "reading the reference by its path": """
        space = {}
        exec(open('VICTIM/attention.py').read(), space)
        return space['merge_heads'](x)
    """,
    "importing the reference": """
        import sys
        sys.path.insert(0, 'VICTIM')
        sys.modules.pop('attention')
        import attention
        return attention.merge_heads(x)
    """,
    "the call stack": """
        import sys
        frame = sys._getframe(1)
        while frame is not None:
            for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
                if getattr(value, '__name__', '') in ('merge_heads', 'expected'):
                    return value(x)
            frame = frame.f_back
        return x
    """,
    "the frame of an error": """
        try:
            raise ValueError
        except ValueError as error:
            frame = error.__traceback__.tb_frame.f_back
        return frame.f_locals['copies'][0]
    """,
    "caching results": """
        if not hasattr(merge_heads, 'kept'):
            merge_heads.kept = x
        return merge_heads.kept
    """,
    # changing what is around
    "overwriting tests": """
        open('VICTIM/tests/test_house.py', 'w').close()
        return x
    """,
    "deleting files": """
        import shutil
        shutil.rmtree('VICTIM')
        return x
    """,
    "deleting its own folder": """
        import shutil
        shutil.rmtree('.')
        return x
    """,
    "patching torch.testing": """
        torch.testing.assert_close = print
        return x
    """,
    "patching torch.equal": """
        torch.equal = torch.allclose = max
        return x
    """,
    "patching pytest": """
        import pytest
        pytest.fail = print
        return x
    """,
    "default dtype and seeds": """
        torch.set_default_dtype(torch.bfloat16)
        torch.manual_seed(0)
        return x.to(torch.bfloat16)
    """,
    "default device": """
        torch.set_default_device('meta')
        return torch.zeros(2, 7, 12)
    """,
    "no gradients any more": """
        torch.set_grad_enabled(False)
        return x
    """,
    "changing its input": """
        x.zero_()
        return x.transpose(1, 2).flatten(2)
    """,
    # strange results
    "nothing": "return None",
    "NaN": "return torch.full_like(x.transpose(1, 2).flatten(2), float('nan'))",
    "zeros": "return torch.zeros_like(x.transpose(1, 2).flatten(2))",
    "a subclass of tensor": """
        class Equal(torch.Tensor):
            def __eq__(self, other):
                return True
        return x.as_subclass(Equal)
    """,
    "an object that equals everything": """
        class Equal:
            def __eq__(self, other):
                return True
        return Equal()
    """,
    "a generator": "yield x",
    "a huge result": "return torch.zeros(1, dtype=torch.float64).expand(2**40)",
    "a sparse result": "return x.transpose(1, 2).flatten(2).to_sparse() * 0",
    # names in disguise
    "unicode": """
        ｏｐｅｎ('VICTIM/results.json', 'w').close()
        return x
    """,
    "eval": "return eval('x')",
    "getattr": "return getattr(torch, 'sa' + 've')(x, 'VICTIM/x')",
    "a name behind an argument": """
        def hide(open):
            return open
        open('VICTIM/x', 'w').close()
        return x
    """,
    "global": """
        global split_heads
        split_heads = None
        return x
    """,
    "breakpoint": "breakpoint()",
}


# --- Changes of the file, as bytes: the body stays as it is, or cannot be read --------------------


def decorator(text):
    return text.replace("def merge_heads", "@open('VICTIM/x', 'w').write\ndef merge_heads")


def default(text):
    return text.replace("def merge_heads(x)", "def merge_heads(x, y=open('VICTIM/x', 'w'))")


def code_at_the_top(text):
    return "raise SystemExit\n" + text


def error_elsewhere(text):
    return text.replace("def split_heads(x, heads):", "def split_heads(x heads) return")


def error_inside(text):
    return text.replace("return x.transpose(1, 2).flatten(2)", "return x.transpose(1, 2")


def null_byte(text):
    return text.replace("return x.transpose(1, 2).flatten(2)", "return x\0")


def deep_brackets(text):
    deep = "(" * 5000 + "x" + ")" * 5000
    return text.replace("return x.transpose(1, 2).flatten(2)", f"return {deep}")


def deep_expression(text):
    return text.replace("return x.transpose(1, 2).flatten(2)", "return " + "-" * 50_000 + "x")


def too_long(text):
    return text + "# long\n" * 200_000


# name: (change, whether the body still earns all points)
FILES = {
    "a decorator that writes a file": (decorator, True),
    "a default argument that writes a file": (default, True),
    "code at the top of the file": (code_at_the_top, True),
    "a syntax error in another function": (error_elsewhere, True),
    "a syntax error in this function": (error_inside, False),
    "a null byte": (null_byte, False),
    "5,000 brackets": (deep_brackets, False),
    "50,000 signs": (deep_expression, False),
    "a file of more than a megabyte": (too_long, False),
}


# --- Running them ---------------------------------------------------------------------------------


def attacks_command(args):
    """Print what each attack did. Returns the exit code: 1 if one of them had an effect."""
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        folder = Path(folder)
        expected = expected_outputs([NAME])
        victim = make_victim(folder)
        before = digest(victim)

        def both(name):
            return name, by_the_rules(name, folder, expected), without_rules(name, victim, expected)

        # the bodies
        effects = 0
        with ThreadPoolExecutor(max_workers=PROCESSES) as pool:
            for name, ruled, free in pool.map(both, BODIES):
                print(f"{name}\n    {ruled[0]:g} points. {ruled[1]}")
                print(f"    without the rules: {free[0]:g} points. {free[1]}", flush=True)
                if ruled[0] > 0 or free[0] > 0:
                    effects += 1

            # the files
            def graded(name):
                return name, by_the_rules(name, folder, expected)

            for name, (score, sentence) in pool.map(graded, [*FILES, "a link to the reference"]):
                print(f"{name}\n    {score:g} points. {sentence}")
                is_full = score == merge_heads_line().points
                must_be_full = name in FILES and FILES[name][1]
                if is_full != must_be_full:
                    effects += 1

        # the files of the instructor
        unharmed = digest(victim) == before
        state = "unharmed" if unharmed else "CHANGED"
        print(f"\n{len(BODIES) + len(FILES) + 1} attacks, {effects} with an effect on the score")
        print(f"the instructor's files are {state}")
    return 0 if effects == 0 and unharmed else 1


def merge_heads_line():
    """The line of merge_heads in the table of parts."""
    return next(line for line in GRADED if line.name == NAME)


def make_victim(folder):
    """A folder with copies of the project's files, which the attacks try to harm."""
    victim = folder / "victim"
    for path in [*ROOT.glob("*.py"), *ROOT.glob("tests/*.py")]:
        copy = victim / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return victim


def digest(folder):
    """A number that changes if a file in a folder is changed, made or deleted."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        found.update(str(path).encode())
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()


def by_the_rules(name, folder, expected):
    """(score, sentence) of an attack that is handed in as a student's copy."""
    copy = folder / "copies" / name.replace("/", " ")
    copy.mkdir(parents=True)
    text = read_source(NAME)
    if name in BODIES:
        text = replace_body(text, NAME, body_of(name, folder / "victim"))
    elif name in FILES:
        text = FILES[name][0](text).replace("VICTIM", str(folder / "victim"))
    if name == "a link to the reference":
        (copy / "attention.py").symlink_to(ROOT / "attention.py")
    else:
        (copy / "attention.py").write_text(text, encoding="utf-8")

    # what the grader says
    graded, outputs = grade_function(copy, merge_heads_line(), expected, LIMITS)
    sentences = [*graded.sentences, described(outputs, graded.properties)]
    return graded.score, " ".join(sentences)


def without_rules(name, victim, expected):
    """(score, sentence) of a body that goes straight into a child process."""
    source = replace_body(read_source(NAME), NAME, body_of(name, victim))
    outputs, message = run_untrusted(NAME, source, LIMITS)
    if outputs is None:
        return 0.0, message
    properties = right_properties(NAME, outputs, expected)
    return score_of(merge_heads_line(), properties), described(outputs, properties)


def body_of(name, victim):
    """A body without the indentation that it has in BODIES."""
    return textwrap.dedent(BODIES[name]).strip().replace("VICTIM", str(victim))


def described(outputs, properties):
    """The first error, or the names of the properties that are wrong."""
    for result in (outputs or {}).values():
        if "error" in result:
            return result["error"]
    wrong = [name for name, right in properties.items() if not right]
    if wrong:
        return f"Wrong: {', '.join(wrong)}."
    return ""
