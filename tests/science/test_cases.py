"""The cases of the course (course/cases.py), as tests of the project's own functions."""

import copy
from functools import partial

import pytest

from course import grade, worker
from course.cases import make_cases


@pytest.mark.parametrize(
    "case", make_cases(seed=2), ids=lambda case: f"{case.function}: {case.name}"
)
def test_a_function_gives_what_the_loops_give(case):
    inputs = copy.deepcopy(case.inputs)
    outputs = worker.answer(partial(worker.call, case.function), inputs)
    assert grade.difference(case, outputs) == ""
