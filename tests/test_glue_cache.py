"""support/glue_cache.py: a folder in the cache is made once, and again if it is damaged."""

import re

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


@pytest.mark.parametrize("name", [".DS_Store", "CoLA/.DS_Store", "CoLA/desktop.ini"])
def test_what_a_desktop_adds_to_a_folder_does_not_damage_it(tmp_path, name):
    folder = tmp_path / "cache" / "toy"
    build = Builder()
    build_once(folder, build, no_line)
    (folder / name).write_text("icons", encoding="utf-8")
    build_once(folder, build, no_line)
    assert build.count == 1


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


@pytest.mark.parametrize("kind", ["file", "broken link", "link to a file"])
def test_what_is_in_the_place_of_the_folder_is_replaced_with_a_line(tmp_path, kind):
    folder = tmp_path / "cache" / "toy"
    folder.parent.mkdir()
    (tmp_path / "other").write_text("mine", encoding="utf-8")
    if kind == "file":
        folder.write_text("", encoding="utf-8")
    elif kind == "broken link":
        folder.symlink_to("nowhere")
    else:
        folder.symlink_to(tmp_path / "other")

    lines = []
    build_once(folder, Builder(), lines.append)
    assert len(lines) == 1 and lines[0].endswith("it is made again")
    assert folder.is_dir() and not folder.is_symlink()
    assert [path.name for path in folder.parent.iterdir()] == ["toy"]
    assert (tmp_path / "other").read_text(encoding="utf-8") == "mine"


def test_a_file_in_the_place_of_the_cache_is_named_in_one_line(tmp_path):
    (tmp_path / "cache").write_text("mine", encoding="utf-8")
    message = f"^{re.escape(str(tmp_path / 'cache'))} is not a folder: delete it, or name another"
    for folder in (tmp_path / "cache" / "toy", tmp_path / "cache" / "a" / "toy"):
        with pytest.raises(OSError, match=message):
            build_once(folder, Builder(), no_line)
    assert (tmp_path / "cache").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_a_killed_process_left_is_removed(tmp_path, kind):
    if kind == "folder":
        (tmp_path / "toy.part" / "CoLA").mkdir(parents=True)
    else:
        (tmp_path / "toy.part").write_text("", encoding="utf-8")
    build_once(tmp_path / "toy", Builder(), no_line)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_an_error_leaves_no_folder_of_this_name(tmp_path):
    def fail(folder):
        (folder / "CoLA").mkdir()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        build_once(tmp_path / "toy", fail, no_line)
    assert not list(tmp_path.iterdir())
