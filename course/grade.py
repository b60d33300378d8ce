"""Grading: each function of a student's copy runs alone, in a process of its own.

Of the student's files, only the bodies of the graded functions are used. Each body is checked
(course/rules.py) and put into a fresh copy of the instructor's project, in a temporary folder.
There a child process computes the outputs of the cases (course/child.py). This process never
executes a line of the student's code: it reads the outputs as plain tensors and compares them with
those of the original function. So a wrong function costs only its own points. Nothing but these
outputs counts: what the child prints, for example, does not.

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
from course.cases import SHAPE
from course.mistakes import MISTAKES, wrong_source
from course.parts import GRADED, ROOT, file_of
from course.rules import (
    Refused,
    changed_signature,
    check_body,
    insert_body,
    is_blank,
    students_function,
)
from support.files import load_checkpoint, write_text

# The limits of one child process. The original functions stay far below them. The first one is for
# the function alone. The second one includes the start of Python and torch, which may be slow.
CPU_SECONDS = 30
WALL_SECONDS = 120
MEMORY = 4  # GiB

# How the points of a function are divided among its properties; a property not named here has 2.
# Those of WITHOUT_POINTS earn none, but if one is wrong, all points are lost. So most of the
# references and stand-ins of tests/, which use loops and indices, earn nothing. Some earn all
# points, for example `drop`, `very_low_at_padding`, `map_of_rows` (as gather_scores) and
# `gate_of_convolution` of tests/science/stand_ins.py, with their helper functions inside.
WITHOUT_POINTS = ("no loop", "no index")
WEIGHTS = {"values": 4, SHAPE: 1, "long": 1}
LARGEST_OUTPUT = 2**25  # bytes

# What a child needs of the project; not the plain loop, which holds answers.
PROJECT_FILES = ("*.py", "support/*.py", "toy/*.py")
COURSE_FILES = ("__init__.py", "cases.py", "child.py")


class Limits(NamedTuple):
    cpu_seconds: int = CPU_SECONDS
    wall_seconds: int = WALL_SECONDS
    memory: float = MEMORY  # GiB


class FunctionGrade(NamedTuple):
    """The points of one function, and what the grader says about it."""

    function: object  # its line in course/parts.py
    score: float
    properties: dict  # {property: whether it is right}
    sentences: list  # for the student


def grade_command(args):
    """`python -m course grade`. Returns the exit code."""
    folder = Path(args.folder)
    check_submission(folder)
    if args.part == 6:
        raise ValueError("part 6 is written work: it is graded by reading (course/handout.md)")
    if os.name == "nt":
        print("On Windows only the time of a function is limited, not its memory.")

    # all functions, those of one part, or one function
    functions = [line for line in GRADED if args.part in (None, line.part)]
    if args.function is not None:
        functions = [function_called(args.function)]
    grades = grade(folder, functions)
    print(table(grades))

    # the same for Gradescope
    if args.out is not None:
        text = json.dumps(autograder_results(grades), indent=2)
        write_text(Path(args.out), text + "\n")
    return 0


def check_submission(folder):
    """ValueError if a folder has none of the graded files: an archive may have one folder more."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    files = sorted({file_of(function.name) for function in GRADED})
    if any((folder / file).exists() for file in files):
        return

    message = f"{folder} has none of the files {', '.join(files)}"
    for inner in sorted(folder.iterdir()):
        if any((inner / file).exists() for file in files):
            message += f"; {inner} has: is it the submission?"
            break
    raise ValueError(message)


def function_called(name):
    """The line of the table: for "kernels.convolve", or an end of it that is unique: "convolve".

    Raises ValueError if no graded function, or more than one, has this name.
    """
    # with the dots in front, "forward" does not match a name such as "do_forward"
    found = [line for line in GRADED if f".{line.name}".endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(line.name for line in found)
        raise ValueError(f"{name} could be any of {names}: write the full name")
    names = ", ".join(line.name for line in GRADED)
    raise ValueError(f"{name} is not a graded function; these are: {names}")


def grade(folder, functions=GRADED):
    """Grade these functions of a student's copy. Returns a list of FunctionGrades."""
    folder = Path(folder)
    limits = Limits()

    # the outputs of the original functions
    expected = expected_outputs([function.name for function in functions])

    # Each function has a child process with its own folder. At most four run at the same time.
    def grade_one(function):
        return grade_function(folder, function, expected, limits)

    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        graded = list(pool.map(grade_one, functions))

    # If the outputs of a wrong function are those of a known mistake, the mistake is named.
    wrong = [function_grade.function.name for function_grade, outputs in graded if outputs]
    known = mistake_outputs([mistake for mistake in MISTAKES if mistake.function in wrong])
    grades = []
    for function_grade, outputs in graded:
        if outputs:
            function_grade = add_explanation(function_grade, outputs, expected, known)
        grades.append(function_grade)
    return grades


def grade_function(folder, function, expected, limits):
    """(FunctionGrade, outputs): outputs is None if no more sentences about them are needed."""
    # check the body, without executing it, and put it into the original file
    try:
        node = students_function(folder, function.name)
        if is_blank(node):
            return no_points(function, ["It is still blank."]), None
        check_body(node, function)
        source = insert_body(node, function.name)
    except Refused as refused:
        return no_points(function, [f"It was not executed: {refused}."]), None

    # a note if the first line was changed
    sentences = []
    changed = changed_signature(node, function.name)
    if changed is not None:
        sentences.append(changed)

    # its outputs
    outputs, message = run_untrusted(function.name, source, limits)
    if outputs is None:
        return no_points(function, [*sentences, message]), None

    # what is right
    properties = right_properties(function.name, outputs, expected)
    score = score_of(function, properties)
    function_grade = FunctionGrade(function, score, properties, sentences)
    if all(properties.values()):
        return function_grade, None
    return function_grade, outputs


def no_points(function, sentences):
    """The grade of a function that gave no outputs."""
    return FunctionGrade(function, 0.0, {}, sentences)


# --- Child processes ------------------------------------------------------------------------------


def run_untrusted(name, source, limits):
    """The outputs of one student's function: ({case: result} or None, sentence or None)."""
    with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as temporary:
        tree = Path(temporary) / "project"
        copy_project(tree)
        (tree / file_of(name)).write_text(source, encoding="utf-8")  # the original is not there
        results, message = run_child(tree, [job_of([name], name, source)], limits, trusted=False)
    if results is None:
        return None, message

    # A child may write what it wants: only {case: {"outputs" or "error"}} is used.
    is_one_job = isinstance(results, list) and len(results) == 1 and isinstance(results[0], dict)
    if not is_one_job:
        return None, "The process wrote something other than its outputs."
    return results[0], None


def run_trusted(jobs, with_plain):
    """The outputs of the instructor's code for a list of jobs. ValueError if it fails."""
    with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as temporary:
        tree = Path(temporary) / "project"
        copy_project(tree)
        if with_plain:
            shutil.copyfile(ROOT / "course/plain.py", tree / "course/plain.py")
        results, message = run_child(tree, jobs, Limits(wall_seconds=900), trusted=True)
    if results is None:
        raise ValueError(f"the original functions could not be executed: {message}")
    return results


def job_of(functions, name=None, source=None, plain=False):
    """A job for course/child.py. `source` takes the place of the file of the function `name`."""
    module = None
    if name is not None:
        module = name.split(".")[0]
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
    # the jobs, in the folder that contains the copy
    folder = tree.parent
    job = {
        "jobs": jobs,
        "trusted": trusted,
        "seconds": limits.cpu_seconds,
        "memory": limits.memory,
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")

    # run, and wait
    child = start_child(tree, trusted)
    timed_out = False
    try:
        child.wait(limits.wall_seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        kill_group(child)

    # a sentence if it did not end as it should; otherwise its outputs
    if timed_out:
        seconds = limits.wall_seconds
        return None, f"It was stopped after {seconds} seconds: is there an endless loop?"
    if child.returncode != 0:
        return None, message_of_exit_code(child.returncode)
    return read_outputs(folder / "outputs.pt", trusted)


def start_child(tree, trusted):
    """Start course/child.py of a copy of the project. Returns the process."""
    # few variables of the environment, because others may hold passwords
    kept = ("PATH", "SYSTEMROOT", "TEMP", "TMP", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment["OMP_NUM_THREADS"] = "1"

    # Without a GPU: torch would start a thread for it, and the child may start none.
    environment["CUDA_VISIBLE_DEVICES"] = ""

    # errors of the instructor's code are shown
    stderr = subprocess.DEVNULL
    if trusted:
        stderr = None

    # With a session of its own, everything that it starts can be killed with it.
    return subprocess.Popen(
        [sys.executable, "-I", "-B", str(tree / "course/child.py")],
        cwd=tree.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )


def read_outputs(outputs, trusted):
    """The file that a child wrote: (results or None, sentence or None)."""
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


def message_of_exit_code(code):
    """A sentence about the exit code of a child."""
    # The code is -9 for signal 9. Windows has none of these signals, and 99 is no signal.
    cpu_limit = getattr(signal, "SIGXCPU", 99)
    killed = getattr(signal, "SIGKILL", 99)
    if code in (-cpu_limit, -killed):
        return "It was killed: it computed for too long, or the machine had no memory left."
    if code < 0:
        return f"The process crashed with signal {-code}: too much memory, or too deep a recursion?"
    return f"The process ended itself with exit code {code}, before all cases were computed."


def expected_outputs(names):
    """{case: result} of the original functions, and of the plain loop of the training."""
    results = run_trusted([job_of(names, plain=True)], with_plain=True)[0]
    for key, result in results.items():
        if "error" in result:
            raise ValueError(f"the original function fails: {key}: {result['error']}")
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
        wrong = differences(case, found, expected[case.key])

        # a property is right as long as none of its cases is wrong
        right.setdefault(case.property, True)
        if wrong:
            right[case.property] = False

        # the shapes of the values are a property of their own
        if case.property == "values":
            right.setdefault(SHAPE, True)
            if any(is_shape for is_shape, _ in wrong):
                right[SHAPE] = False

        # a loop in any case
        if has_a_loop(found):
            right["no loop"] = False
    return right


def has_a_loop(found):
    """Whether this case counted tensor operations, and they grow with the sequence."""
    outputs = as_result(found).get("outputs")
    return isinstance(outputs, dict) and outputs.get(cases.GROWS) is True


def score_of(function, properties):
    """The points of a function, divided among its properties."""
    if not all(properties.get(name, True) for name in WITHOUT_POINTS):
        return 0.0

    # Shapes earn nothing by themselves.
    others = [name for name in properties if name not in (SHAPE, *WITHOUT_POINTS)]
    if not any(properties[name] for name in others):
        return 0.0

    # the share of the right properties. Example: values (4), shape and dtype (1) and gradients (2);
    # only the gradients are wrong: 5/7 of the points
    total = 0
    earned = 0
    for name, right in properties.items():
        if name not in WITHOUT_POINTS:
            weight = WEIGHTS.get(name, 2)
            total += weight
            if right:
                earned += weight
    return round(function.points * earned / total, 2)


def differences(case, found, expected):
    """[(whether it is the shape, sentence)]: what is wrong in one case; an empty list if nothing.

    found, expected: {"outputs": {name: output}} or {"error": sentence}.
    """
    # no outputs, or outputs of another form
    found = as_result(found)
    if "outputs" not in found:
        return [(True, str(found.get("error", "it was not computed"))[:400])]
    outputs = found["outputs"]
    wanted = expected["outputs"]
    if not isinstance(outputs, dict) or outputs.keys() != wanted.keys():
        return [(True, "the outputs are not those that the case has")]

    # output by output; the letters of the axes are those of the first output
    wrong = []
    letters = case.letters
    for name, value in wanted.items():
        difference = compare(name, outputs[name], value, case.tolerance, letters)
        if difference is not None:
            wrong.append(difference)
        letters = ""
    return wrong


def compare(name, found, expected, tolerance, letters):
    """(whether it is the shape, sentence) if two outputs differ; otherwise None."""
    # lists and dictionaries, element by element
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() == expected.keys():
        pairs = [(f"{name}, {key}", found[key], value) for key, value in expected.items()]
        return first_difference(pairs, tolerance)
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        names = [f"{name} [{i}]" for i in range(len(expected))]
        return first_difference(zip(names, found, expected, strict=True), tolerance)

    # Python numbers: 1 and 1.0 are equal here; a huge int cannot become a float
    if is_number(expected) and is_number(found) and abs(found) < 1e300:
        found = torch.tensor(float(found), dtype=torch.float64)
        expected = torch.tensor(float(expected), dtype=torch.float64)
    if isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor):
        return compare_tensors(name, found, expected, tolerance, letters)

    # texts, True and False, None
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
    """`compare` for a list of (name, found, expected): the first one that differs, or None."""
    for name, found, expected in named:
        difference = compare(name, found, expected, tolerance, "")
        if difference is not None:
            return difference
    return None


def compare_tensors(name, found, expected, tolerance, letters):
    """`compare` for two tensors: the sentence has the first entry that differs, with its index."""
    # shape and dtype
    if found.shape != expected.shape:
        return True, f"{name}: the shape is {list(found.shape)}, not {list(expected.shape)}"
    if found.dtype != expected.dtype:
        return True, f"{name}: the dtype is {found.dtype}, not {expected.dtype}"

    # which entries differ; NaN differs from everything
    a = found.double()
    b = expected.double()
    is_near = (a - b).abs() <= tolerance + tolerance * b.abs()
    is_right = is_near | (a == b)  # inf - inf is NaN, but inf == inf
    if is_right.all():
        return None
    wrong = (~is_right).nonzero()  # (how many, axes)

    # the first one, as in "result at b = 0, h = 1, i = 2, j = 0"
    place = tuple(wrong[0].tolist())
    axes = letters.split()
    if len(axes) != len(place):
        axes = [f"axis {axis}" for axis in range(len(place))]
    where = ", ".join(f"{axis} = {index}" for axis, index in zip(axes, place, strict=True))
    at = ""
    if place:  # a single number has no axes
        at = f" at {where}"
    share = f"{len(wrong)} of {found.numel()} numbers differ"
    sentence = (
        f"{name}{at} is {float(found[place]):.6g}; the equation gives {float(expected[place]):.6g} "
        f"({share})"
    )
    if name.startswith("gradient of") and not found.any():
        sentence += ". No gradient reaches the input: was it detached (detach, item, numpy)?"
    return False, sentence


# --- Messages -------------------------------------------------------------------------------------


def add_explanation(function_grade, outputs, expected, known):
    """The grade with sentences: the known mistake, if it is one, and the first difference."""
    name = function_grade.function.name
    sentences = list(function_grade.sentences)

    # a loop over the positions
    for case in cases.cases_of([name]):
        if has_a_loop(outputs.get(case.key)):
            sentences.append(
                "Its number of tensor operations grows with N. Loops over the positions are for "
                "the references: write it with tensors."
            )
            break

    # an index that is a tensor
    if not function_grade.properties.get("no index", True):
        sentences.append(
            "It uses an index that is a tensor or a list, as gather_scores does: use slices and "
            "views."
        )

    # the mistake whose outputs are the same
    mistake = same_outputs(name, outputs, expected, known)
    if mistake is not None:
        sentences.append(f"This is what comes out if {mistake.sentence}.")

    # the first case that differs, the first error, and the names of the properties
    sentences += first_sentences(name, outputs, expected)
    sentences.append(summary(function_grade.properties, outputs, expected, name))
    return function_grade._replace(sentences=sentences)


def first_sentences(name, outputs, expected):
    """What is wrong in the first case that differs, and the first error."""
    differing = None
    error = None
    for case in cases.cases_of([name]):
        result = as_result(outputs.get(case.key))
        wrong = differences(case, result, expected[case.key])
        if not wrong:
            continue

        # its first difference, as one sentence
        sentence = f"{case.property} ({case.what.strip()}): {wrong[0][1]}"
        if not sentence.endswith("?"):
            sentence += "."

        # only the first sentence of each kind is kept
        is_error = "outputs" not in result
        if is_error and error is None:
            error = sentence
        if not is_error and differing is None:
            differing = sentence
    return [sentence for sentence in (differing, error) if sentence is not None]


def summary(properties, outputs, expected, name):
    """The names of the properties that are right, wrong, and not tested because of an error."""
    # A property is wrong if one of its outputs is wrong. An error alone does not show it.
    seen = set()
    for case in cases.cases_of([name]):
        result = as_result(outputs.get(case.key))
        if "outputs" in result and differences(case, result, expected[case.key]):
            seen.add(case.property)
            if case.property == "values":
                seen.add(SHAPE)
        if has_a_loop(result):
            seen.add("no loop")

    # three lists of properties
    right = [kind for kind, is_right in properties.items() if is_right]
    wrong = [kind for kind in properties if kind not in right and kind in seen]
    untested = [kind for kind in properties if kind not in right and kind not in seen]

    # one sentence for each list; only the first one is always there
    text = "Right: nothing."
    if right:
        text = f"Right: {', '.join(right)}."
    if wrong:
        text += f" Wrong: {', '.join(wrong)}."
    if untested:
        text += f" Not tested because of the error: {', '.join(untested)}."
    return text


def same_outputs(name, outputs, expected, known):
    """The known mistake that explains a wrong function best; None if there is none.

    A mistake explains the function if both give the same outputs in the first wrong case, or in
    most of the wrong cases. In the right cases, the mistake must give the right outputs, too.
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
        same = explained_cases(name, results, outputs, expected, wrong)

        # the first mistake is kept if two explain as many cases
        explains = wrong[0] in same or 2 * len(same) > len(wrong)
        if explains and len(same) > most:
            best = mistake
            most = len(same)
    return best


def explained_cases(name, results, outputs, expected, wrong):
    """The wrong cases of a function in which a known mistake gives the same outputs.

    None of them if the mistake is wrong in a case in which the function is right.

    Args:
        name: of the function.
        results, outputs, expected: {key of a case: outputs} of the mistake, of the student's
            function, and of the original one.
        wrong: keys of the cases in which the student's function is wrong.
    """
    same = []
    for case in cases.cases_of([name]):
        result = results[case.key]
        if case.key not in wrong:
            if differences(case, result, expected[case.key]):
                return []
        elif "outputs" in result and not differences(case, outputs.get(case.key), result):
            same.append(case.key)
    return same


def table(grades):
    """The table that is printed: points and sentences of each function, and sums."""
    lines = []
    for part in sorted({each.function.part for each in grades}):
        # the points of the part
        own = [each for each in grades if each.function.part == part]
        score, possible = sums(own)
        lines.append(f"part {part}{score:>45.2f} of {possible}")

        # its functions
        for each in own:
            function = each.function
            lines.append(f"    {function.name:<40}{each.score:>7.2f} of {function.points}")
            lines += [f"        {sentence}" for sentence in each.sentences]

    # the sum of all parts
    score, possible = sums(grades)
    lines.append(f"total {score:>45.2f} of {possible}")
    return "\n".join(lines)


def sums(grades):
    """(points earned, points possible)"""
    score = sum(each.score for each in grades)
    possible = sum(each.function.points for each in grades)
    return round(score, 2), possible


def autograder_results(grades):
    """The same as plain values, in the format of Gradescope's results.json."""
    # a test per function, with a number such as 2.1 for the first one of part 2
    tests = []
    counts = {}
    for each in grades:
        part = each.function.part
        counts[part] = counts.get(part, 0) + 1
        tests.append(autograder_test(each, f"{part}.{counts[part]}"))

    # the sum
    score, possible = sums(grades)
    output = f"{score:g} of {possible} points. Each function is graded alone."
    return {"score": score, "output": output, "visibility": "visible", "tests": tests}


def autograder_test(function_grade, number):
    """One function in the format of Gradescope."""
    function = function_grade.function

    # passed: all points
    status = "failed"
    if function_grade.score == function.points:
        status = "passed"

    # the sentences; there are none if all is right
    output = "All properties are right."
    if function_grade.sentences:
        output = "\n".join(function_grade.sentences)

    return {
        "name": f"{function.name}: {function.title}",
        "number": number,
        "score": function_grade.score,
        "max_score": function.points,
        "status": status,
        "output": output,
        "visibility": "visible",
        "tags": [f"part {function.part}"],
    }
