"""Grading: every function of a student's copy alone, in a process of its own, and what it printed.

Of the student's files, only the bodies of the graded functions are used. Each body is checked
(course/rules.py) and put into a fresh copy of the instructor's project, in a temporary folder.
There a child process computes the outputs of the cases (course/child.py). This process never
executes a line of the student's: it reads the outputs as plain tensors and compares them with those
of the original function. So a wrong function costs its own points and no others, and whatever the
child prints, writes or changes cannot raise a score.

It is not a sandbox. Run it in a container, as an ordinary user, without network. On Windows only
the time of a child is limited, not its memory.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from course import cases
from course.mistakes import MISTAKES, wrong_source
from course.parts import GRADED, ROOT, file_of
from course.rules import (
    Refused,
    changed_signature,
    check_body,
    graft,
    is_blank,
    students_function,
)
from support.files import load_checkpoint, write_text

# What a student's function gets: the original one needs a second, with the import of torch.
CPU_SECONDS = 30
WALL_SECONDS = 30
MEMORY = 4  # GiB

# How the points of a function are divided among its properties; a property not named here has 2.
SHAPE = "shape and dtype"
WEIGHTS = {"values": 4, SHAPE: 1, "long": 1}
LARGEST_OUTPUT = 2**25  # bytes

# What a child needs of the project; not the plain loop, which holds answers.
PROJECT_FILES = ("*.py", "support/*.py", "toy/*.py")
COURSE_FILES = ("__init__.py", "cases.py", "child.py")


class Limits(NamedTuple):
    cpu_seconds: int = CPU_SECONDS
    wall_seconds: int = WALL_SECONDS
    memory: float = MEMORY  # GiB


class Verdict(NamedTuple):
    """What the grader says about one function."""

    function: object  # its line in course/parts.py
    score: float
    properties: dict  # {property: whether it is right}
    sentences: list  # for the student


def grade_command(args):
    """`python -m course grade`. Returns the exit code."""
    folder = Path(args.folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    if args.part == 6:
        raise ValueError("part 6 is written work: it is graded by reading (course/handout.md)")
    if os.name == "nt":
        print("On Windows only the time of a function is limited, not its memory.")

    # all functions, those of one part, or one function
    functions = [line for line in GRADED if args.part in (None, line.part)]
    if args.function is not None:
        functions = [function_called(args.function)]
    verdicts = grade(folder, functions)
    print(table(verdicts))
    if args.out is not None:
        write_text(Path(args.out), json.dumps(autograder_results(verdicts), indent=2) + "\n")
    return 0


def function_called(name):
    """The line of the table: for "attention.Fixed.forward", or an end of it such as "forward".

    Raises ValueError if no graded function, or more than one, has this name.
    """
    found = [line for line in GRADED if f".{line.name}".endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(line.name for line in found)
        raise ValueError(f"{name} may be one of {names}: write the longer name")
    names = ", ".join(line.name for line in GRADED)
    raise ValueError(f"{name} is not a graded function; these are: {names}")


def grade(folder, functions=GRADED, limits=None):
    """Grade these functions of a student's copy. Returns a list of Verdicts."""
    folder = Path(folder)
    limits = limits or Limits()
    expected = expected_outputs([function.name for function in functions])

    # Each child has its own folder. Two at a time: most of the time goes into importing torch.
    def grade_one(function):
        return grade_function(folder, function, expected, limits)

    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        graded = list(pool.map(grade_one, functions))

    # If the outputs of a wrong function are those of a known mistake, the mistake is named.
    wrong = [verdict.function.name for verdict, outputs in graded if outputs]
    known = mistake_outputs([mistake for mistake in MISTAKES if mistake.function in wrong])
    return [
        add_explanation(verdict, outputs, expected, known) if outputs else verdict
        for verdict, outputs in graded
    ]


def grade_function(folder, function, expected, limits):
    """(Verdict, outputs): outputs is None if there is nothing more to say about them."""
    # the body, without executing it
    try:
        node = students_function(folder, function.name)
        if is_blank(node):
            return nothing(function, "It is still blank."), None
        check_body(node, function)
        source = graft(node, function.name)
    except Refused as refused:
        return nothing(function, f"It was not executed: {refused}."), None

    # its outputs
    sentences = []
    changed = changed_signature(node, function.name)
    if changed is not None:
        sentences.append(changed)
    outputs, end = run_untrusted(function.name, source, limits)
    if outputs is None:
        return nothing(function, *sentences, end), None

    # what is right
    properties = right_properties(function.name, outputs, expected)
    score = score_of(function, properties)
    verdict = Verdict(function, score, properties, sentences)
    if all(properties.values()):
        return verdict, None
    return verdict, outputs


def nothing(function, *sentences):
    """The verdict on a function that gave no outputs."""
    return Verdict(function, 0.0, {}, list(sentences))


# --- Child processes ------------------------------------------------------------------------------


def run_untrusted(name, source, limits):
    """The outputs of one student's function: ({case: result} or None, sentence or None)."""
    with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as temporary:
        tree = Path(temporary) / "project"
        copy_project(tree)
        (tree / file_of(name)).write_text(source, encoding="utf-8")  # the original is not there
        results, end = run_child(tree, [job_of([name], name, source)], limits, trusted=False)
    if results is None:
        return None, end

    # A child may write what it wants: only {case: {"outputs" or "error"}} is used.
    is_list = isinstance(results, list) and len(results) == 1 and isinstance(results[0], dict)
    if not is_list:
        return None, "The process wrote something else than its outputs."
    return results[0], None


def run_trusted(jobs, with_plain):
    """The outputs of our own code, for a list of jobs. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as temporary:
        tree = Path(temporary) / "project"
        copy_project(tree)
        if with_plain:
            shutil.copyfile(ROOT / "course/plain.py", tree / "course/plain.py")
        results, end = run_child(tree, jobs, Limits(wall_seconds=900), trusted=True)
    if results is None:
        raise RuntimeError(f"the original functions could not be executed: {end}")
    return results


def job_of(functions, name=None, source=None, plain=False):
    """A job for course/child.py. `name` is the function whose file has another text."""
    module = None if name is None else name.split(".")[0]
    return {"functions": functions, "module": module, "source": source, "plain": plain}


def copy_project(tree):
    """A copy of what a child imports."""
    for pattern in PROJECT_FILES:
        for path in ROOT.glob(pattern):
            target = tree / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    (tree / "course").mkdir()
    for file in COURSE_FILES:
        shutil.copyfile(ROOT / "course" / file, tree / "course" / file)


def run_child(tree, jobs, limits, trusted):
    """Run course/child.py of a copy of the project: (results or None, sentence or None)."""
    # what it gets
    folder = tree.parent
    job = {
        "jobs": jobs,
        "trusted": trusted,
        "seconds": limits.cpu_seconds,
        "memory": limits.memory,
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    kept = ("PATH", "SYSTEMROOT", "TEMP", "TMP", "LD_LIBRARY_PATH")  # no secrets
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment["OMP_NUM_THREADS"] = "1"

    # A session of its own: at the end, all that it has started is killed with it.
    child = subprocess.Popen(
        [sys.executable, "-I", "-B", str(tree / "course/child.py")],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if not trusted else None,
        start_new_session=True,
    )
    timed_out = False
    try:
        child.wait(limits.wall_seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        kill_group(child)

    # what came out
    if timed_out:
        return (
            None,
            f"It was stopped after {limits.wall_seconds} seconds: is there an endless loop?",
        )
    if child.returncode != 0:
        return None, end_of(child.returncode)
    outputs = folder / "outputs.pt"
    try:
        if not trusted and outputs.stat().st_size > LARGEST_OUTPUT:
            return None, "Its outputs are far too large."
        return load_checkpoint(outputs), None
    except (OSError, ValueError):
        return None, "The process ended before all cases were computed."


def kill_group(child):
    """Kill a child and everything that it has started."""
    if hasattr(os, "killpg"):
        # there is no such group any more if its last process has ended
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()  # Windows
    child.wait()


def end_of(code):
    """A sentence about the exit code of a child."""
    if code in (-getattr(signal, "SIGXCPU", 99), -getattr(signal, "SIGKILL", 99)):
        return "It was stopped because it computed for too long: is there an endless loop?"
    if code < 0:
        return f"The process crashed with signal {-code}: too much memory, or too deep a recursion?"
    return f"The process ended itself with exit code {code}, before all cases were computed."


def expected_outputs(names):
    """{case: result} of the original functions, and of the plain loop of the training."""
    results = run_trusted([job_of(names, plain=True)], with_plain=True)[0]
    for key, result in results.items():
        if "error" in result:
            raise RuntimeError(f"the original function fails: {key}: {result['error']}")
    return results


def mistake_outputs(mistakes):
    """[(mistake, {case: result})]"""
    if not mistakes:
        return []
    jobs = []
    for mistake in mistakes:
        jobs.append(job_of([mistake.function], mistake.function, wrong_source(mistake)))
    return list(zip(mistakes, run_trusted(jobs, with_plain=False), strict=True))


# --- Comparing ------------------------------------------------------------------------------------


def right_properties(name, outputs, expected):
    """{property: whether all its cases are right}, for one function."""
    right = {}
    for case in cases.cases_of([name]):
        found = outputs.get(case.key)
        shapes_are_right = True
        for wrong_shape, _ in differences(case, found, expected[case.key]):
            if wrong_shape:
                shapes_are_right = False
        is_right = not differences(case, found, expected[case.key])
        right[case.property] = right.get(case.property, True) and is_right
        if case.property == "values":
            right[SHAPE] = right.get(SHAPE, True) and shapes_are_right
        if has_a_loop(case, found):
            right["no loop"] = False
    return right


def has_a_loop(case, found):
    """Whether this case counted tensor operations, and they grow with the sequence."""
    outputs = as_result(found).get("outputs")
    return isinstance(outputs, dict) and outputs.get(cases.GROWS) is True


def score_of(function, properties):
    """The points of a function, divided among its properties."""
    # A loop over the positions is what the handed-out references do: it earns nothing. Shapes earn
    # nothing by themselves.
    numbers_are_right = any(
        right for name, right in properties.items() if name not in (SHAPE, "no loop")
    )
    if not properties.get("no loop", True) or not numbers_are_right:
        return 0.0
    total = 0
    earned = 0
    for name, right in properties.items():
        if name != "no loop":
            weight = WEIGHTS.get(name, 2)
            total += weight
            if right:
                earned += weight
    return round(function.points * earned / total, 2)


def differences(case, found, expected):
    """[(whether it is the shape, sentence)]: what is wrong in one case; an empty list if nothing.

    found, expected: {"outputs": {name: output}} or {"error": sentence}.
    """
    found = as_result(found)
    if "outputs" not in found:
        return [(True, str(found.get("error", "it was not computed"))[:400])]
    outputs = found["outputs"]
    wanted = expected["outputs"]
    if not isinstance(outputs, dict) or outputs.keys() != wanted.keys():
        return [(True, "the outputs are not those that the case has")]

    wrong = []
    for number, (name, value) in enumerate(wanted.items()):
        letters = case.letters if number == 0 else ""
        difference = compare(name, outputs[name], value, case.tolerance, letters)
        if difference is not None:
            wrong.append(difference)
    return wrong


def compare(name, found, expected, tolerance, letters):
    """(whether it is the shape, sentence) if two outputs differ; otherwise None."""
    # lists and dictionaries, element by element
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() == expected.keys():
        pairs = [(f"{name}, {key}", found[key], value) for key, value in expected.items()]
        return first_difference(pairs, tolerance)
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = zip(found, expected, strict=True)
        named = [(f"{name} [{i}]", a, b) for i, (a, b) in enumerate(pairs)]
        return first_difference(named, tolerance)

    # numbers: Python's and torch's are the same here
    if is_number(expected) and is_number(found):
        found = torch.tensor(float(found), dtype=torch.float64)
        expected = torch.tensor(float(expected), dtype=torch.float64)
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        return compare_tensors(name, found, expected, tolerance, letters)

    if type(found) is type(expected) and found == expected:
        return None
    return True, f"{name}: it is {str(found)[:60]}, and should be {str(expected)[:60]}"


def as_result(found):
    """What a child wrote about a case, if it is of the right form; otherwise an empty result."""
    if isinstance(found, dict):
        return found
    return {}


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def first_difference(named, tolerance):
    for name, found, expected in named:
        difference = compare(name, found, expected, tolerance, "")
        if difference is not None:
            return difference
    return None


def compare_tensors(name, found, expected, tolerance, letters):
    """The same for two tensors: the first entry that differs, with its index."""
    if found.shape != expected.shape:
        return True, f"{name}: the shape is {list(found.shape)}, not {list(expected.shape)}"
    if found.dtype != expected.dtype:
        return True, f"{name}: the dtype is {found.dtype}, not {expected.dtype}"

    # which entries differ; NaN differs from everything
    a = found.double()
    b = expected.double()
    is_near = (a - b).abs() <= tolerance + tolerance * b.abs()
    if (is_near | (a == b)).all():
        return None
    wrong = (~(is_near | (a == b))).nonzero()

    # the first one, as in "result at b = 0, h = 1, i = 2, j = 0"
    place = tuple(wrong[0].tolist())
    axes = letters.split()
    if len(axes) != len(place):
        axes = [f"axis {axis}" for axis in range(len(place))]
    where = ", ".join(f"{axis} = {index}" for axis, index in zip(axes, place, strict=True))
    at = f" at {where}" if place else ""
    share = f"{len(wrong)} of {found.numel()} numbers differ"
    sentence = (
        f"{name}{at} is {float(found[place]):.6g}; the equation gives {float(expected[place]):.6g} "
        f"({share})"
    )
    if name.startswith("gradient of") and not found.any():
        sentence += ". No gradient reaches the input: was it detached (detach, item, numpy)?"
    return False, sentence


# --- Messages -------------------------------------------------------------------------------------


def add_explanation(verdict, outputs, expected, known):
    """The verdict with sentences: the known mistake, if it is one, and the first difference."""
    name = verdict.function.name
    sentences = list(verdict.sentences)

    # a loop over the positions
    for case in cases.cases_of([name]):
        if has_a_loop(case, outputs.get(case.key)):
            sentences.append(
                "Its number of tensor operations grows with N. Loops over the positions are for "
                "the references: write it with tensors."
            )
            break

    # the mistake whose outputs are the same
    mistake = same_outputs(name, outputs, expected, known)
    if mistake is not None:
        sentences.append(f"This is what comes out if {mistake.sentence}.")

    # the first case that differs, the first error, and the names of the properties
    sentences += first_sentences(name, outputs, expected)
    sentences.append(summary(verdict.properties, outputs, expected, name))
    return verdict._replace(sentences=sentences)


def first_sentences(name, outputs, expected):
    """What is wrong in the first case that differs, and the first error."""
    differing = None
    error = None
    for case in cases.cases_of([name]):
        result = as_result(outputs.get(case.key))
        wrong = differences(case, result, expected[case.key])
        if not wrong:
            continue
        sentence = f"{case.property} ({case.what.strip()}): {wrong[0][1]}"
        if not sentence.endswith("?"):
            sentence += "."
        if "outputs" in result:
            differing = differing or sentence
        else:
            error = error or sentence
    return [sentence for sentence in (differing, error) if sentence is not None]


def summary(properties, outputs, expected, name):
    """The names of the properties that are right, wrong, and not tested because of an error."""
    # a property is wrong if an output of it is; an error alone does not tell
    seen = set()
    for case in cases.cases_of([name]):
        result = as_result(outputs.get(case.key))
        if "outputs" in result and differences(case, result, expected[case.key]):
            seen |= {case.property, SHAPE} if case.property == "values" else {case.property}
        if has_a_loop(case, result):
            seen.add("no loop")

    right = [kind for kind, is_right in properties.items() if is_right]
    wrong = [kind for kind in properties if kind not in right and kind in seen]
    untested = [kind for kind in properties if kind not in right and kind not in seen]
    text = f"Right: {', '.join(right) or 'nothing'}."
    if wrong:
        text += f" Wrong: {', '.join(wrong)}."
    if untested:
        text += f" Not tested because of the error: {', '.join(untested)}."
    return text


def same_outputs(name, outputs, expected, known):
    """The known mistake that explains a wrong function best; None if there is none.

    Its outputs are the same in the first case that is wrong, or in most of them. It does not show
    in a case that is right.
    """
    # which cases are wrong
    wrong = []
    for case in cases.cases_of([name]):
        if differences(case, outputs.get(case.key), expected[case.key]):
            wrong.append(case.key)
    # the mistake with the same outputs in most of them
    best = None
    most = 0
    for mistake, results in known:
        if mistake.function != name:
            continue
        same = []
        shows_elsewhere = False
        for case in cases.cases_of([name]):
            result = results[case.key]
            found = outputs.get(case.key)
            if case.key not in wrong:
                if differences(case, result, expected[case.key]):
                    shows_elsewhere = True
            elif "outputs" in result and not differences(case, found, result):
                same.append(case.key)
        explains = wrong[0] in same or 2 * len(same) > len(wrong)
        if explains and not shows_elsewhere and len(same) > most:
            best = mistake
            most = len(same)
    return best


def table(verdicts):
    """The table that is printed: points and sentences of each function, and sums."""
    lines = []
    for part in sorted({verdict.function.part for verdict in verdicts}):
        own = [verdict for verdict in verdicts if verdict.function.part == part]
        score, most = sums(own)
        lines.append(f"part {part}{score:>45.2f} of {most}")
        for verdict in own:
            name = verdict.function.name
            lines.append(f"    {name:<40}{verdict.score:>7.2f} of {verdict.function.points}")
            lines += [f"        {sentence}" for sentence in verdict.sentences]
    score, most = sums(verdicts)
    lines.append(f"total {score:>45.2f} of {most}")
    return "\n".join(lines)


def sums(verdicts):
    """(points earned, points possible)"""
    score = sum(verdict.score for verdict in verdicts)
    return round(score, 2), sum(verdict.function.points for verdict in verdicts)


def autograder_results(verdicts):
    """The same as plain values, in the format of Gradescope's results.json."""
    # a test per function, with a number such as 2.1 for the first one of part 2
    tests = []
    counts = {}
    for verdict in verdicts:
        part = verdict.function.part
        counts[part] = counts.get(part, 0) + 1
        is_full = verdict.score == verdict.function.points
        tests.append(
            {
                "name": f"{verdict.function.name}: {verdict.function.title}",
                "number": f"{part}.{counts[part]}",
                "score": verdict.score,
                "max_score": verdict.function.points,
                "status": "passed" if is_full else "failed",
                "output": "\n".join(verdict.sentences) or "All properties are right.",
                "visibility": "visible",
                "tags": [f"part {part}"],
            }
        )

    # the sum
    score, most = sums(verdicts)
    output = f"{score:g} of {most} points. Each function is graded alone."
    return {"score": score, "output": output, "visibility": "visible", "tests": tests}
