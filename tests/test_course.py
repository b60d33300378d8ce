"""course/: the blanks, the grader, its cases and known mistakes, and attacks on it.

`python -m course check` and `python -m course attacks` try all mistakes and all attacks; here a
part of them is tried, in as few processes as possible.
"""

import ast
import inspect
import io
import json
import re
import shutil
import subprocess
import sys
from argparse import ArgumentTypeError
from contextlib import redirect_stdout
from types import ModuleType, SimpleNamespace

import pytest
import torch

import attention
import data
import kernels
import pretrain
from conftest import ROOT
from course import assignment, attacks, blank, cases, child, grade, plain, rules
from course.__main__ import main
from course.mistakes import MISTAKES, wrong_source
from course.parts import (
    FUNCTIONS,
    GRADED,
    PARTS,
    body_without_docstring,
    find,
    original,
    part_range,
    read_source,
    replace_body,
)

ALL_PARTS = tuple(PARTS)
LINES = {function.name: function for function in FUNCTIONS}
NAMES = [function.name for function in FUNCTIONS]


# --- The table ------------------------------------------------------------------------------------


def test_every_part_with_code_has_20_points():
    for part in range(1, 6):
        assert sum(function.points for function in GRADED if function.part == part) == 20


def test_every_graded_function_has_tests_that_its_command_selects():
    """pytest -k selects them by their names, which include the parameters."""
    tests = science_tests()
    graded = {function.name for function in GRADED}
    assert set(assignment.TESTS) == graded
    for name, needed in assignment.NEEDS.items():
        assert {name, *needed} <= graded
    for file, expression in assignment.TESTS.values():
        of_file = [test for test in tests if test.startswith(f"tests/science/{file}")]
        assert any(is_selected(test, expression) for test in of_file)


def science_tests():
    """The names of all tests in tests/science, as pytest prints them."""

    class Collector:
        def pytest_collection_finish(self, session):
            self.names = [item.nodeid for item in session.items]

    # In this process, torch is imported already.
    collector = Collector()
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    with redirect_stdout(io.StringIO()):
        code = pytest.main([*options, str(ROOT / "tests/science")], plugins=[collector])
    assert code == 0
    return collector.names


def is_selected(test, expression):
    """What pytest -k does: every word of the expression means that it is in the test's name."""
    operators = ("and", "or", "not")

    def truth(match):
        word = match[0]
        return word if word in operators else str(word in test)

    return eval(re.sub(r"[\w-]+", truth, expression))


@pytest.mark.parametrize("name", NAMES)
def test_every_function_exists_has_cases_and_known_mistakes(name):
    assert original(name) is not None
    assert cases.cases_of([name])
    assert any(mistake.function == name for mistake in MISTAKES)


def test_graded_functions_have_values_and_those_of_tensors_are_tried_for_loops():
    for function in GRADED:
        kinds = {case.property for case in cases.cases_of([function.name])}
        assert "values" in kinds
        if function.part <= 4:
            assert "no loop" in kinds


def test_there_are_more_than_100_mistakes_and_each_one_fits_its_function():
    assert len(MISTAKES) > 100
    assert len(set(MISTAKES)) == len(MISTAKES)
    for mistake in MISTAKES:
        assert wrong_source(mistake) != read_source(mistake.function)


def test_a_mistake_whose_line_is_gone_is_an_error():
    with pytest.raises(ValueError, match="does not contain exactly once"):
        wrong_source(MISTAKES[0]._replace(right="no such line"))


def test_ranges_of_parts():
    assert part_range("2") == (2,)
    assert part_range("1-3") == (1, 2, 3)
    for text in ("0", "7", "a", "-", ""):
        with pytest.raises(ArgumentTypeError, match="is not a part|the parts are"):
            part_range(text)
    with pytest.raises(ArgumentTypeError, match="the smaller number first"):
        part_range("3-1")


# --- Blanks ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def blanked(tmp_path_factory):
    """A copy of the project with all blanks."""
    out = tmp_path_factory.mktemp("blank") / "project"
    blank.write_blanked_project(out, ALL_PARTS)
    return out


def test_a_blank_keeps_signature_docstring_and_comments(blanked):
    text = (blanked / "attention.py").read_text(encoding="utf-8")
    node = find(ast.parse(text), "attention.Fixed.forward")
    assert ast.get_source_segment(text, node) == (
        "def forward(self, q):\n"
        "        # (H, 1, K): the same row for every sequence and query\n"
        '        raise NotImplementedError("part 2: the fixed term")'
    )
    for function in GRADED:
        copy = (blanked / f"{function.name.split('.')[0]}.py").read_text(encoding="utf-8")
        node = find(ast.parse(copy), function.name)
        ours = original(function.name)
        assert ast.dump(node.args) == ast.dump(ours.args)
        assert ast.get_docstring(node) == ast.get_docstring(ours)
        assert rules.is_blank(node)
        assert f"part {function.part}: {function.title}" in copy


def test_the_rest_of_a_blanked_file_is_the_same():
    text = read_source("kernels.convolve")
    blanked = replace_body(text, "kernels.convolve", "pass")
    before, _, after = text.partition("    N = value.shape[-2]\n    k = rows.shape[-1] // 2")
    assert blanked.startswith(before + "    pass\n")
    assert blanked.endswith(after.partition("[..., :N, :]  # (B, H, N, d)\n")[2])


def test_the_special_cases_of_a_blank_function_call_it(blanked, tmp_path):
    """With their own bodies they would give the answer away."""
    text = (blanked / "kernels.py").read_text(encoding="utf-8")
    for name, (_, body) in blank.SPECIAL_CASES.items():
        (statement,) = body_without_docstring(find(ast.parse(text), name))
        assert ast.unparse(statement) == ast.unparse(ast.parse(body))

    # part 2 blanks neither of the two, so nothing of part 3 is changed
    blank.write_blanked_project(tmp_path / "out", (2,))
    text = (tmp_path / "out/kernels.py").read_text(encoding="utf-8")
    for name in blank.SPECIAL_CASES:
        assert ast.dump(find(ast.parse(text), name)) == ast.dump(original(name))


def test_the_bodies_of_special_cases_give_the_same_numbers():
    rows = torch.randn(2, 3, 6, 13, dtype=torch.float64)
    scores = torch.randn(2, 3, 6, 7, dtype=torch.float64)
    expected = [
        kernels.scores_of_covering_rows(rows, 7, 1),
        kernels.bands_of_strip(scores, 13, 1),
    ]

    text = read_source("kernels.relative_scores")
    for name, (_, body) in blank.SPECIAL_CASES.items():
        text = replace_body(text, name, body)
    copy = ModuleType("kernels")
    exec(text, copy.__dict__)
    assert torch.equal(copy.scores_of_covering_rows(rows, 7, 1), expected[0])
    assert torch.equal(copy.bands_of_strip(scores, 13, 1), expected[1])


def test_blanks_of_some_parts_leave_the_others(tmp_path):
    blank.write_blanked_project(tmp_path / "out", (2,))
    text = (tmp_path / "out/attention.py").read_text(encoding="utf-8")
    assert text.count("NotImplementedError(") == 3 + 1  # three of part 2, one of the original
    assert (tmp_path / "out/pretrain.py").read_bytes() == (ROOT / "pretrain.py").read_bytes()


def test_blanking_is_deterministic_and_overwrites_nothing(blanked, tmp_path, capsys):
    assert main(["blank", str(tmp_path / "out"), "--parts", "1-6"]) == 0
    assert "26 functions" in capsys.readouterr().out
    first = {path.relative_to(blanked): path for path in blanked.rglob("*") if path.is_file()}
    second = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(first) == len(second)
    for path in second:
        assert path.read_bytes() == first[path.relative_to(tmp_path / "out")].read_bytes()

    with pytest.raises(ValueError, match="exists already"):
        blank.write_blanked_project(tmp_path / "out", (1,))
    with pytest.raises(ValueError, match="inside the project"):
        blank.write_blanked_project(ROOT / "lab/blanked", (1,))


def test_a_blanked_project_says_what_to_do(blanked, tmp_path):
    text = (blanked / "ASSIGNMENT.md").read_text(encoding="utf-8")
    for function in GRADED:
        assert f"`{function.name}`, {function.points} points: {function.title}" in text
        assert assignment.test_command(function.name) in text
    assert "grows with the number of positions gets 0" in text
    blank.write_blanked_project(tmp_path / "out", (2,))
    text = (tmp_path / "out/ASSIGNMENT.md").read_text(encoding="utf-8")
    assert "gather_scores" in text and "relative_scores`" not in text


def test_a_blanked_project_holds_no_file_of_the_grader(blanked):
    assert not list(blanked.glob("course/*.py"))
    for path in (blanked / "tests").rglob("*.py"):
        assert not re.search(r"^(from|import) course\b", path.read_text(encoding="utf-8"), re.M), (
            path
        )


def test_a_blanked_project_passes_the_linter(blanked):
    ruff = shutil.which("ruff", path=str(sys.prefix) + "/bin") or shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    files = [f"{name}.py" for name in ("attention", "kernels", "model", "data", "pretrain")]
    for command in (["format", "--check"], ["check"]):
        done = subprocess.run([ruff, *command, *files], cwd=blanked, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_a_blanked_project_can_be_imported_and_runs_up_to_the_first_blank(blanked):
    program = (
        "import torch, model\n"
        "config = model.BertConfig.from_size('tiny', 'composite', vocab_size=30)\n"
        "model.BertForMaskedLM(config)(torch.ones(1, 4, dtype=torch.long))"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", program], cwd=blanked, capture_output=True, text=True
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == "NotImplementedError: part 1: split the channels into heads"


# --- The cases ------------------------------------------------------------------------------------


def test_every_case_has_a_name_of_its_own():
    keys = [case.key for case in cases.CASES]
    assert len(set(keys)) == len(keys)
    assert {case.function for case in cases.CASES} == set(NAMES)


@pytest.mark.parametrize("name", ["few_steps", "evaluation", "updates"])
def test_the_training_equals_the_plain_loop(name, monkeypatch):
    # what the cases change
    monkeypatch.setattr(torch.nn.functional, "dropout", cases.dropout_by_shape)
    monkeypatch.setattr(pretrain, "made_by", str)

    project = child.Project()
    got = {"outputs": child.plain_values(getattr(cases, name)(project))}
    expected = {"outputs": child.plain_values(getattr(plain, name)(project))}
    case = next(case for case in cases.CASES if case.expected == name)
    assert grade.differences(case, got, expected) == []


def test_dropout_by_shape_depends_on_seed_and_shape_alone():
    x = torch.ones(40, 50)
    torch.manual_seed(1)
    first = cases.dropout_by_shape(x, 0.25)
    torch.rand(3)
    assert torch.equal(cases.dropout_by_shape(x, 0.25), first)
    assert first.unique().tolist() == pytest.approx([0, 4 / 3])
    torch.manual_seed(2)
    assert not torch.equal(cases.dropout_by_shape(x, 0.25), first)
    assert cases.dropout_by_shape(x, 0.25, training=False) is x


def test_a_case_notices_a_changed_input_and_a_wrong_type():
    with pytest.raises(cases.WrongResult, match="in place"):
        cases.call(torch.Tensor.zero_, torch.ones(2))
    with pytest.raises(cases.WrongResult, match="NoneType, not a tensor: is `return` missing"):
        cases.call(print, 1)


def test_a_wrong_shape_stays_what_it_is_and_an_error_of_dropout_has_its_name():
    case = cases.cases_of(["attention.Fixed.forward"])[0]

    class Fixed(attention.Fixed):
        def forward(self, q):
            return self.beta

    module = SimpleNamespace(Fixed=Fixed)
    assert case.compute(SimpleNamespace(attention=module))["result"].shape == (3, 5)
    with pytest.raises(TypeError, match=r"^dropout\(\)"):
        cases.dropout_by_shape(torch.ones(2), generator=None)


def test_a_result_without_gradient_has_gradients_of_0():
    gradients = cases.gradients_of(torch.ones(2), {"x": torch.ones(3, requires_grad=True)})
    assert torch.equal(gradients["gradient of x"], torch.zeros(3))
    case = cases.cases_of(["attention.merge_heads"])[1]
    right = {"outputs": {"gradient of x": torch.ones(3)}}
    [(_, sentence)] = grade.differences(case, {"outputs": gradients}, right)
    assert sentence.endswith(
        "No gradient reaches the input: was it detached (detach, item, numpy)?"
    )


@pytest.mark.parametrize("by_name", [False, True])
def test_the_case_of_a_long_sequence_takes_arguments_in_order_or_by_name(by_name, monkeypatch):
    """And it notices that attention_in_blocks is not called, or with other arguments."""
    case = next(case for case in cases.CASES if case.property == "long")
    right = case.compute(child.Project())
    assert right["attention_in_blocks is called"]
    names = list(inspect.signature(kernels.attention_in_blocks).parameters)

    def attend(query, key, value, attention_mask, **options):
        rest = dict(options, query=query, key=key, value=value, attention_mask=attention_mask)
        if by_name:
            return attention.attention_in_blocks(attend, **rest)
        given = [rest.get(name) for name in names[1:]]
        return attention.attention_in_blocks(attend, *given)

    monkeypatch.setattr(attention, "attention", attend)
    got = case.compute(child.Project())
    for found, expected in ((got, right), (right, right)):
        found = {"outputs": child.plain_values(found)}
        assert grade.differences(case, found, {"outputs": child.plain_values(expected)}) == []

    monkeypatch.setattr(attention, "attention", lambda query, key, value, **options: value)
    assert not case.compute(child.Project())["attention_in_blocks is called"]


def test_a_number_that_float16_cannot_hold_is_noticed():
    case = next(case for case in cases.CASES if "float16" in case.what)
    right = {"outputs": case.compute(child.Project())}
    for number in (-1e9, torch.finfo(torch.float16).min):

        def lowest(mask, dtype, number=number):
            return ((~mask)[:, None, None, :] * number).to(dtype)

        module = SimpleNamespace(lowest_at_padding=lowest)
        found = {"outputs": case.compute(SimpleNamespace(attention=module))}
        assert grade.differences(case, found, right)


# --- Grading --------------------------------------------------------------------------------------

# Attention without position terms; with key_rows or relative values it ends with an error.
CONTENT = """\
scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)
if key_rows is not None or relative_value is not None:
    raise NotImplementedError("later")
scores = scores + lowest_at_padding(attention_mask, scores.dtype)
p = drop(scores.softmax(dim=-1), dropout, generator)
return p.to(value.dtype) @ value
"""


# The map by an index that is a tensor: right, but the answer of part 2 again.
BY_INDEX = """\
n, K = rows.shape[-2:]
k = K // 2
i = torch.arange(n)[:, None]
r = torch.arange(length)[None, :] - (first + i)
scores = rows[..., i, r.clamp(-k, k) + k]
if beyond == "zero":
    scores = scores * (r.abs() <= k)
return scores
"""


@pytest.fixture(scope="module")
def outputs():
    """(expected outputs of all functions, [(mistake, outputs)] of one mistake of each function)."""
    mistakes = list({mistake.function: mistake for mistake in reversed(MISTAKES)}.values())
    jobs = [grade.job_of(NAMES, plain=True)]
    for mistake in mistakes:
        jobs.append(grade.job_of([mistake.function], mistake.function, wrong_source(mistake)))
    expected, *wrong = grade.run_trusted(jobs, with_plain=True)
    return expected, list(zip(mistakes, wrong, strict=True))


def test_the_original_functions_earn_all_points(outputs):
    expected, _ = outputs
    assert not [key for key, result in expected.items() if "error" in result]
    for function in GRADED:
        properties = grade.right_properties(function.name, expected, expected)
        assert grade.score_of(function, properties) == function.points


def test_a_mistake_of_every_function_is_noticed_and_recognised(outputs):
    expected, known = outputs
    assert len(known) == len(FUNCTIONS)
    for mistake, found in known:
        name = mistake.function
        assert not all(grade.right_properties(name, found, expected).values()), mistake
        is_error = all("error" in result for result in found.values())
        if not is_error:
            assert grade.same_outputs(name, found, expected, known) == mistake
        assert grade.same_outputs(name, {}, expected, known) is None  # no case is the same


def test_one_part_is_graded_alone(blanked, outputs, monkeypatch, capsys):
    monkeypatch.setattr(grade, "expected_outputs", lambda names: outputs[0])
    assert main(["grade", str(blanked), "--part", "3"]) == 0
    printed = capsys.readouterr().out
    for function in GRADED:
        assert (function.name in printed) == (function.part == 3)
    with pytest.raises(ValueError, match="written work"):
        main(["grade", str(blanked), "--part", "6"])


def test_a_blanked_project_earns_nothing(blanked, outputs):
    expected, _ = outputs
    for function in GRADED:
        graded, _ = grade.grade_function(blanked, function, expected, grade.Limits())
        assert graded.score == 0
        assert graded.sentences == ["It is still blank."]


def test_a_copy_with_a_right_a_wrong_and_a_refused_function(
    blanked, outputs, tmp_path, monkeypatch, capsys
):
    """The command, with a results.json. The outputs of the originals are those of the fixture."""
    expected, known = outputs
    monkeypatch.setattr(grade, "expected_outputs", lambda names: expected)
    monkeypatch.setattr(grade, "mistake_outputs", lambda mistakes: known)

    # split_heads is right, learning_rate has a known mistake, masked_lm_loss imports something,
    # attention has no position terms yet, relative_scores uses an index
    copy = tmp_path / "copy"
    shutil.copytree(blanked, copy)
    mistake = next(each for each, _ in known if each.function == "pretrain.learning_rate")
    node = find(ast.parse(wrong_source(mistake)), mistake.function)
    bodies = {
        "attention.split_heads": "return x.unflatten(-1, (heads, -1)).movedim(-2, 1)",
        "pretrain.learning_rate": "\n".join(ast.unparse(line) for line in node.body[1:]),
        "model.masked_lm_loss": "import os\nreturn os.getcwd()",
        "attention.attention": CONTENT,
        "kernels.relative_scores": BY_INDEX,
    }
    for name, body in bodies.items():
        file = copy / f"{name.split('.')[0]}.py"
        text = file.read_text(encoding="utf-8")
        file.write_text(replace_body(text, name, body), encoding="utf-8")

    assert main(["grade", str(copy), "--out", str(tmp_path / "results.json")]) == 0
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    tests = {test["name"].partition(":")[0]: test for test in results["tests"]}

    # points, and sentences
    assert len(tests) == len(GRADED)
    assert sum(test["max_score"] for test in results["tests"]) == 100
    assert tests["attention.split_heads"]["score"] == 2
    assert tests["attention.split_heads"]["status"] == "passed"
    rate = tests["pretrain.learning_rate"]
    assert 0 <= rate["score"] < 2 and rate["tags"] == ["part 5"]
    assert f"This is what comes out if {mistake.sentence}." in rate["output"]
    assert "rates at step = 0 is 0; the equation gives 0.125" in rate["output"]
    assert "import os" in tests["model.masked_lm_loss"]["output"]
    assert "(torch, math, nn and F are there already)" in tests["model.masked_lm_loss"]["output"]
    assert tests["attention.drop"]["output"] == "It is still blank."
    half = tests["attention.attention"]
    assert half["score"] == round(8 * 11 / 24, 2)
    assert "Right: values, shape and dtype, gradients, padding, dropout, no loop." in half["output"]
    assert "Wrong: query_rows, zero, block. Not tested because of the error: " in half["output"]
    assert "query_rows (content and query_rows): result at b = 0" in half["output"]
    assert "later in the line `raise NotImplementedError('later')`" in half["output"]
    assert "This is what comes out" not in half["output"]
    by_index = tests["kernels.relative_scores"]
    assert by_index["score"] == 0
    assert "It uses an index that is a tensor or a list" in by_index["output"]
    assert "Wrong: no index." in by_index["output"]
    assert results["score"] == round(2 + rate["score"] + half["score"], 2)
    assert "It is still blank." in printed and f"{results['score']:.2f} of 100" in printed


def test_blanks_of_the_written_part_alone_are_refused(tmp_path):
    with pytest.raises(ValueError, match="part 6 has no functions to write"):
        blank.write_blanked_project(tmp_path / "copy", (6,))
    assert not (tmp_path / "copy").exists()


def test_one_function_is_graded_alone(blanked, capsys):
    assert main(["grade", str(blanked), "--function", "convolve"]) == 0
    printed = capsys.readouterr().out
    assert "kernels.convolve" in printed and "total" in printed
    assert "attention." not in printed
    assert grade.function_called("Fixed.forward").name == "attention.Fixed.forward"
    with pytest.raises(ValueError, match=r"attention.Fixed.forward, attention.Dynamic.forward"):
        grade.function_called("forward")
    with pytest.raises(ValueError, match="not a graded function; these are: attention.split_heads"):
        grade.function_called("no_such")


def test_a_folder_without_any_graded_file_is_refused_and_the_inner_one_is_named(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        grade.check_submission(tmp_path / "anna")
    inner = tmp_path / "anna/assignment"
    inner.mkdir(parents=True)
    with pytest.raises(ValueError, match=r"none of the files attention.py, .*, pretrain.py$"):
        grade.check_submission(tmp_path / "anna")
    (inner / "model.py").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="assignment has: is it the submission"):
        grade.check_submission(tmp_path / "anna")
    grade.check_submission(inner)


def test_messages_name_the_first_entry_that_differs():
    case = cases.cases_of(["kernels.gather_scores"])[0]
    right = {"outputs": {"result": torch.zeros(2, 3, 7, 7)}}
    wrong = {"outputs": {"result": torch.zeros(2, 3, 7, 7)}}
    wrong["outputs"]["result"][1, 0, 2, 6] = 0.5
    [(is_shape, sentence)] = grade.differences(case, wrong, right)
    assert not is_shape
    assert sentence.startswith("result at b = 1, h = 0, i = 2, j = 6 is 0.5; the equation gives 0")

    # NaN, a shape, a dtype, an error, and outputs of another form
    others = [torch.full((2, 3, 7, 7), float("nan")), torch.zeros(2, 3, 7), "text", None]
    others.append(torch.zeros(2, 3, 7, 7).double())
    for other in others:
        assert grade.differences(case, {"outputs": {"result": other}}, right)
    for broken in (None, [], {}, {"error": 3}, {"outputs": 1}, {"outputs": {}}):
        assert grade.differences(case, broken, right)


def test_shapes_alone_and_loops_earn_nothing():
    function = LINES["attention.attention"]
    properties = {"values": False, "shape and dtype": True, "gradients": False, "no loop": True}
    assert grade.score_of(function, properties) == 0
    properties["gradients"] = True
    assert grade.score_of(function, properties) == round(8 * 3 / 7, 2)
    properties["no loop"] = False
    assert grade.score_of(function, properties) == 0
    properties.update({"no loop": True, "no index": False})
    assert grade.score_of(function, properties) == 0


def test_a_child_that_does_not_end_is_stopped(tmp_path):
    (tmp_path / "tree/course").mkdir(parents=True)
    (tmp_path / "tree/course/child.py").write_text("while True:\n    pass\n")
    limits = grade.Limits(wall_seconds=0.5)
    results, sentence = grade.run_child(tmp_path / "tree", [], limits, trusted=False)
    assert results is None and "endless loop" in sentence


# --- Rules and attacks ----------------------------------------------------------------------------


def refusal(name, text, folder):
    """What the rules say about a function in a file; None if they allow it."""
    (folder / f"{name.split('.')[0]}.py").write_text(text, encoding="utf-8")
    try:
        node = rules.students_function(folder, name)
        rules.check_body(node, LINES[name])
        rules.insert_body(node, name)
    except rules.Refused as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("function", GRADED, ids=lambda function: function.name)
def test_the_rules_allow_the_original_functions(function, tmp_path):
    assert refusal(function.name, read_source(function.name), tmp_path) is None


# What the rules allow, because only its execution shows that it is wrong.
ALLOWED = {
    "endless loop",
    "30 GB",
    "recursion",
    "printing results",
    "changing its input",
    "nothing",
    "NaN",
    "zeros",
    "a huge result",
    "a sparse result",
}


@pytest.mark.parametrize("name", attacks.BODIES)
def test_the_rules_refuse_attacks(name, tmp_path):
    text = replace_body(read_source(attacks.NAME), attacks.NAME, attacks.body_of(name, "VICTIM"))
    sentence = refusal(attacks.NAME, text, tmp_path)
    assert (sentence is None) == (name in ALLOWED), sentence


@pytest.mark.parametrize("name", attacks.FILES)
def test_changes_of_the_file_cost_only_what_they_break(name, tmp_path):
    change, is_harmless = attacks.FILES[name]
    sentence = refusal(attacks.NAME, change(read_source(attacks.NAME)), tmp_path)
    assert (sentence is None) == is_harmless, sentence


def test_a_link_to_the_original_is_refused(tmp_path):
    try:
        (tmp_path / "attention.py").symlink_to(ROOT / "attention.py")
    except OSError:
        pytest.skip("links are not allowed here")
    with pytest.raises(rules.Refused, match="link"):
        rules.students_function(tmp_path, attacks.NAME)


@pytest.mark.parametrize(
    "name, body, sentence",
    [
        ("kernels.relative_scores", "return gather_scores(rows, length, beyond, first)", "gather_"),
        ("kernels.relative_scores", "return rows.gather(-1, rows)", "gather"),
        ("pretrain.learning_rate", "learning_rate = peak\nreturn peak", "another name"),
        ("kernels.gather_scores", "return relative_scores(rows, length)", "relative_scores"),
        ("attention.attention", "return F.scaled_dot_product_attention(query, key, value)", "dot"),
        ("kernels.convolve", "F.pad = None", "changes `F`"),
        ("kernels.convolve", "torch.backends.x[0] = 1", "changes `torch`"),
        ("attention.drop", "torch.manual_seed(0)", "manual_seed"),
        ("kernels.convolve", "return helper(rows)", "define it inside this function"),
        ("kernels.relative_scores", "return band_scores(rows, length)", "band_scores"),
        ("kernels.relative_scores", "return add_band(rows, rows)", "add_band"),
        ("kernels.gather_scores", "return band_scores(rows, length)", "band_scores"),
        ("kernels.gather_scores", "return add_band(rows, rows)", "add_band"),
        ("kernels.sum_bands_of_strip", "return sum_bands(scores, K)", "sum_bands"),
        ("kernels.convolve", "return rows.__class__", "__class__"),
        ("kernels.convolve", "return hasattr(rows, 'grad')", "may not use the name `hasattr`"),
    ],
)
def test_a_function_may_not_answer_with_another_one(name, body, sentence, tmp_path):
    text = replace_body(read_source(name), name, body)
    assert sentence in refusal(name, text, tmp_path)


@pytest.mark.parametrize("name", ["kernels.key_scores", "kernels.convolve"])
@pytest.mark.parametrize("other", ["relative_scores", "gather_scores", "band_scores"])
def test_a_function_may_use_the_map_of_scores_that_it_needs(name, other, tmp_path):
    text = replace_body(read_source(name), name, f"return {other}(rows, 7)")
    assert refusal(name, text, tmp_path) is None


@pytest.mark.parametrize("name", ["attention.merge_heads", "attention.Fixed.forward"])
def test_a_syntax_error_is_shown_with_the_number_of_its_line(name, tmp_path):
    """Also if another function before it has a syntax error, too."""
    text = replace_body(read_source(name), name, "return self.beta[:, None")
    number = text.split("\n").index(
        " " * (8 if "Fixed" in name else 4) + "return self.beta[:, None"
    )
    assert f"line {number + 1} of attention.py" in refusal(name, text, tmp_path)
    text = text.replace("def lowest_at_padding(", "def lowest_at_padding((")
    assert f"line {number + 1} of attention.py" in refusal(name, text, tmp_path)


@pytest.mark.parametrize(
    "right, wrong",
    [
        ("def train(", "def train(("),  # before the function
        ('if __name__ == "__main__":', "RESULT = (\n"),  # after it, in a line of the top level
    ],
)
def test_a_syntax_error_elsewhere_changes_neither_the_body_nor_the_decorators(
    right, wrong, tmp_path
):
    name = "pretrain.evaluate"
    text = read_source(name)
    assert text.count(right) == 1
    (tmp_path / "pretrain.py").write_text(text.replace(right, wrong), encoding="utf-8")
    node = rules.students_function(tmp_path, name)
    assert ast.dump(node) == ast.dump(original(name))
    assert rules.changed_signature(node, name) is None


def test_a_method_is_not_taken_from_another_class():
    text = (
        "class A:\n    def f(self):\n        return (\n\nclass B:\n    def g(self):\n        pass\n"
    )
    assert rules.cut_out(text, "m.A.g") == ""
    assert "def g" in rules.cut_out(text, "m.B.g")


@pytest.mark.parametrize("bracket", ["[]", "()", "{}"])
def test_a_closing_bracket_at_the_left_edge_does_not_end_a_function(bracket):
    text = f"def f(x):\n    y = {bracket[0]}\n1,\n{bracket[1]}\n    return y\nz = 1\n"
    text = text.replace("\n1,", "\n        1,")
    assert rules.cut_out(text, "m.f").endswith("    return y")


def test_writing_by_an_index_is_noticed_like_reading_by_one():
    x = torch.zeros(3)
    index = torch.tensor([0, 2])
    with cases.Operations() as sliced:
        x[1:] = 1.0
    assert not sliced.indexed
    with cases.Operations() as put:
        x[index] = torch.ones(2)
    assert put.indexed
    with cases.Operations() as copied:
        x.index_copy_(0, index, torch.ones(2))
    assert copied.indexed


WRONG_MASKS = {
    "a smaller probability": "draw * 0.15 / 0.132",
    "neighbours together": "draw[:, ::2].repeat_interleave(2, dim=1)",
    "a fixed number per sentence": "draw.argsort(1).argsort(1) / draw.shape[1]",
}


@pytest.mark.parametrize("change", [None, *WRONG_MASKS.values()], ids=["none", *WRONG_MASKS])
def test_masks_with_other_random_numbers_are_right_and_other_distributions_are_not(
    change, monkeypatch
):
    """The distribution counts, not the numbers that come from the generator."""
    case = next(case for case in cases.cases_of(["data.mask_tokens"]) if case.property == "values")
    project = SimpleNamespace(data=data)
    expected = case.compute(project)

    # other random numbers: those of another seed
    rand = torch.rand

    def other_rand(*shape, generator, **options):
        other = torch.Generator().manual_seed(generator.initial_seed() + 1_000)
        draw = rand(*shape, generator=other, **options)
        if change is None:
            return draw
        return eval(change, {"draw": draw})

    monkeypatch.setattr(torch, "rand", other_rand)
    found = case.compute(project)
    plain_found = {"outputs": {name: float(value) for name, value in found.items()}}
    plain_expected = {"outputs": {name: float(value) for name, value in expected.items()}}
    assert bool(grade.differences(case, plain_found, plain_expected)) == (change is not None)


def test_a_changed_first_line_is_mentioned_and_ignored():
    name = attacks.NAME
    for change in (attacks.decorator, attacks.default):
        node = find(ast.parse(change(read_source(name))), name)
        assert "original first line" in rules.changed_signature(node, name)
        assert rules.insert_body(node, name).count("VICTIM") == 0
    assert rules.changed_signature(find(ast.parse(read_source(name)), name), name) is None


def test_the_restrictions_hold_without_the_rules(outputs, tmp_path):
    """Attacks that pass the rules, or would if these were not there, in one child process."""
    expected, _ = outputs
    victim = attacks.make_victim(tmp_path)
    before = attacks.digest(victim)
    fatal = {"os._exit", "endless loop", "sleep", "recursion without limit", "writing outputs.pt"}
    fatal |= {"recursion", "30 GB", "patching torch.equal"}  # slow, or with effects on the others
    names = [name for name in attacks.BODIES if name not in fatal]

    jobs = []
    for name in names:
        body = attacks.body_of(name, victim)
        source = replace_body(read_source(attacks.NAME), attacks.NAME, body)
        jobs.append(grade.job_of([attacks.NAME], attacks.NAME, source))
    tree = tmp_path / "work/project"
    grade.copy_project(tree)
    results, message = grade.run_child(tree, jobs, grade.Limits(), trusted=False)

    # no points, and nothing changed
    assert message is None
    for name, found in zip(names, results, strict=True):
        properties = grade.right_properties(attacks.NAME, found, expected)
        assert grade.score_of(attacks.merge_heads_line(), properties) == 0, name
    assert attacks.digest(victim) == before
    assert attention.merge_heads(torch.zeros(1, 2, 3, 4)).shape == (1, 3, 8)
