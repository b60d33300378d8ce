"""The pages: the function of README.md, links, outputs, commands, and new variants, run."""

import ast
import importlib
import inspect
import re
import shlex
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch

from attention import VARIANTS, Variant, composite_attention
from conftest import ROOT, words_of, write

README = (ROOT / "README.md").read_text("utf-8")
EXTEND = (ROOT / "docs/extend.md").read_text("utf-8")
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [
    *DOCUMENTS,
    ROOT / "toy/README.md",
    ROOT / "results/PLANS.md",
    *sorted((ROOT / "course").glob("*.md")),
]


# --- The first screen -----------------------------------------------------------------------------


def test_the_function_of_the_paper_is_that_of_attention():
    """Without comments and docstring, README shows the code of composite_attention."""
    shown = re.search(r"```python\n(def composite_attention.*?)```", README, flags=re.DOTALL)[1]
    code = ast.parse(textwrap.dedent(inspect.getsource(composite_attention))).body[0]
    del code.body[0]  # the docstring
    assert ast.unparse(ast.parse(shown)) == ast.unparse(code)


def test_the_table_of_the_paper_has_its_variants():
    table = README.split("| `--variant` |")[1].split("\n\n")[0]
    names = re.findall(r"^\| (.*?) \|", table, flags=re.M)
    found = re.findall(r"`([\w-]+)`", " ".join(names))
    lines = (ROOT / "results/chang-table6.txt").read_text().splitlines()
    published = {line.split()[1] for line in lines if line.startswith("small")}
    assert set(found) == published <= set(VARIANTS)


# --- Links ----------------------------------------------------------------------------------------


def anchors_of(path):
    """The names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        if not target.startswith("https://"):
            file, _, anchor = target.partition("#")
            path = page.parent / file if file else page
            assert path.exists(), target
            assert not anchor or anchor in anchors_of(path), target


# --- The tour -------------------------------------------------------------------------------------


def test_the_small_task_of_the_tour_is_learned_by_dynamic():
    """The code as printed, with a tenth of its steps. Not knowing which side gives 52.5 %."""
    tour = (ROOT / "docs/tour.md").read_text("utf-8")
    lesson = {}
    exec(re.search(r"```python\n(.*?)```", tour, flags=re.DOTALL)[1], lesson)
    settings = {**lesson["SETTINGS"], "steps": 150}
    assert lesson["train_and_test"]("dynamic", seed=0, **settings) > 0.8


# --- Commands -------------------------------------------------------------------------------------


def commands_of(path):
    """The commands of a document that run a program of this project, without their comments."""
    commands = []
    for line in path.read_text("utf-8").replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix("$ ")
        if re.match(r"python (\w+\.py|-m lab\.\w+) ", line):
            commands.append(shlex.split(line, comments=True))
    return commands


COMMANDS = [command for page in PAGES for command in commands_of(page)]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_of_the_pages_is_understood_by_its_program(command, monkeypatch):
    """The parser ends the test with SystemExit if it does not know an option."""
    # examples of new variants: the README's, which the handout uses, and those of docs/extend.md
    for name in ("fixed-key", "kerple", "slopes", "mirror", "fixed-long"):
        monkeypatch.setitem(VARIANTS, name, Variant(terms=("fixed",)))
    program, *arguments = [word for word in command[1:] if word != "-m"]
    if program == "model.py":
        assert len(arguments) == 2
        assert "[MASK]" in arguments[1] or "causal" in arguments[0]
    else:
        importlib.import_module(program.removesuffix(".py")).parse_arguments(arguments)


# --- A variant of your own ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copy_with_examples(tmp_path_factory):
    """A copy of the project with the examples of README.md, docs/extend.md and docs/differences.md.

    They are pasted at the end of attention.py.
    """
    copy = tmp_path_factory.mktemp("readme") / "project"
    unwanted = shutil.ignore_patterns(".*", "__pycache__", "cache", "runs", "glue_data", "docs")
    shutil.copytree(ROOT, copy, ignore=unwanted)

    section = README[README.index("## A variant of your own") :]
    section = section[: section.index("\n## ", 1)]
    examples = re.findall(r"```python\n(VARIANTS.*?)```", section, flags=re.DOTALL)
    for name in ("docs/extend.md", "docs/differences.md"):
        text = (ROOT / name).read_text("utf-8")
        examples += re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(examples) == 10
    with open(copy / "attention.py", "a", encoding="utf-8") as file:
        for example in examples:
            file.write("\n\n" + example)
    return copy


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_lines_for_a_model_of_ones_own_run(variant):
    lines = re.search(r"```python\n(from attention .*?)```", README, flags=re.DOTALL)[1]
    names = {
        "x": torch.randn(2, 5, 256),
        "mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
    }
    exec(lines.replace("composite", variant), names)
    assert names["y"].shape == (2, 5, 256)


def run_in(copy, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=copy, capture_output=True, text=True, encoding="utf-8"
    )


def test_the_examples_pass_the_tests_of_the_science(copy_with_examples):
    """README's examples run all of them. Those of docs/ run five kinds of tests.

    The five: a term adds what its loop adds, the mixer equals its loops, padding changes nothing,
    every parameter learns, far positions in bf16.
    """
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/science"]
    documents = "kerple or slopes or mirror or leaning or primer"
    documents += " or fixed-long or composite-first or convbert-released"
    tests = "adds_what_its_loop_adds or equals_its_loops or amount_of_padding"
    tests += " or every_parameter_learns or far_positions"
    chosen = f"fixed-key or local-mean or (({tests}) and ({documents}))"
    done = run_in(copy_with_examples, *arguments, "-k", chosen)
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 75


def test_the_examples_train_with_all_changes_of_extend_md_to_the_step_and_the_model(
    copy_with_examples, on_small_text, tmp_path
):
    """Each line with a minus is replaced by the lines with a plus, in the file that has them.

    These files of the copy stay changed: no other test may need them after this one.
    """
    copy = copy_with_examples
    changes = re.findall(r"```diff\n(.*?)```", EXTEND, flags=re.DOTALL)
    assert len(changes) == 11
    for change in changes:
        lines = change.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        after = "".join(line[1:] for line in lines if line[0] != "-")
        names = ("model.py", "data.py", "pretrain.py", "support/training.py")
        texts = {name: (copy / name).read_text("utf-8") for name in names}
        [name] = [name for name, text in texts.items() if text.count(before) == 1]
        write(copy / name, texts[name].replace(before, after))

    examples = "fixed-key local-mean"  # a new combination of terms, and a new mixer
    options = f"--steps 2 --batch_size 4 --variant {examples} --out_dir"
    done = run_in(copy, *words_of("pretrain.py", *on_small_text, options, tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    for variant in examples.split():
        run = tmp_path / "runs" / f"corpus-{variant}"
        assert (run / "model.pt").is_file()
        assert "weight_norm" in (run / "log.jsonl").read_text("utf-8")


def test_the_tests_that_extend_md_explains_are_those_of_the_science():
    table = EXTEND.split("| the failing test |")[1].split("\n\n")[0]
    names = re.findall(r"^\| `(\w+)`", table, flags=re.M)
    tests = "".join(path.read_text("utf-8") for path in ROOT.glob("tests/science/test_*.py"))
    assert names
    for name in names:
        assert re.search(rf"^def test_\w*{name}", tests, flags=re.M), name
