"""support/glue_cache.py: a folder in the cache is made once, and again if it is damaged."""

import pytest

from support.glue_cache import build_once


class Builder:
    """Makes a folder of two files, and counts how often."""

    def __init__(self):
        self.count = 0

    def __call__(self, folder):
        self.count += 1
        (folder / "CoLA").mkdir(parents=True)
        (folder / "CoLA" / "dev.tsv").write_text("row\n", encoding="utf-8")
        (folder / "notes").write_text("", encoding="utf-8")


def no_line(line):
    raise AssertionError(line)


def test_a_folder_is_made_once_and_nothing_else_is_left(tmp_path):
    folder = tmp_path / "cache" / "toy"
    build = Builder()
    build_once(folder, build, no_line)
    build_once(folder, build, no_line)
    assert build.count == 1
    assert [path.name for path in folder.parent.iterdir()] == ["toy"]
    assert (folder / "CoLA" / "dev.tsv").read_text(encoding="utf-8") == "row\n"


@pytest.mark.parametrize(
    "name, content",
    [
        ("CoLA/dev.tsv", "rox\n"),
        ("CoLA/dev.tsv", None),
        ("CoLA/train.tsv", "another file\n"),
        ("sha256.json", "{"),
        ("sha256.json", "[" * 100_000),
        ("sha256.json", None),
    ],
)
def test_a_damaged_folder_is_made_again_with_a_line(tmp_path, name, content):
    folder = tmp_path / "toy"
    build = Builder()
    build_once(folder, build, no_line)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content, encoding="utf-8")

    lines = []
    build_once(folder, build, lines.append)
    assert lines == [f"{folder} is damaged or from an earlier version: it is made again"]
    assert build.count == 2
    build_once(folder, build, no_line)


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / "toy.part" / "CoLA").mkdir(parents=True)
    build_once(tmp_path / "toy", Builder(), no_line)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_an_error_leaves_no_folder_of_this_name(tmp_path):
    def fail(folder):
        folder.mkdir()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        build_once(tmp_path / "toy", fail, no_line)
    assert not list(tmp_path.iterdir())
