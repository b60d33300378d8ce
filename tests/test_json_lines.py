"""support/json_lines.py: files of records."""

import os
import subprocess
import sys

import pytest

from conftest import ROOT
from support.json_lines import append_json_line, read_json_lines


def check_has_a_name(record):
    if not isinstance(record["name"], str):
        raise ValueError("the name is no text")


def test_records_are_read_in_the_order_of_the_file(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"name": "b"}\n{"name": "a"}\n', encoding="utf-8")
    assert read_json_lines(path, check_has_a_name, "") == [{"name": "b"}, {"name": "a"}]


@pytest.mark.parametrize(
    "line",
    ["{", "[1]", "7", "{}", '{"name": 1}', "[" * 100_000, "NaN", '{"name": -Infinity}', ""],
)
def test_a_damaged_line_is_named_in_one_line(tmp_path, line):
    path = tmp_path / "records.jsonl"
    path.write_text('{"name": "a"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"is damaged \(line 2: ") as refused:
        read_json_lines(path, check_has_a_name, "delete it")
    message = str(refused.value)
    assert str(path) in message
    assert message.endswith(": delete it")
    assert "\n" not in message


def test_what_a_record_does_not_have_is_named(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("{}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"is damaged \(line 1: it has no 'name'\): delete it"):
        read_json_lines(path, check_has_a_name, "delete it")


@pytest.mark.parametrize(
    "text, line", [('\n{"name": "a"}\n', 1), ('{"name": "a"}\n  \n{"name": "b"}\n', 2)]
)
def test_an_empty_line_is_refused_and_a_record_added_after_one_is_kept(tmp_path, text, line):
    """The programs write none, so somebody has edited the file, and perhaps deleted more."""
    path = tmp_path / "records.jsonl"
    path.write_text(text, encoding="utf-8")
    append_json_line(path, {"name": "c"})
    assert path.read_text(encoding="utf-8") == text + '{"name": "c"}\n'
    with pytest.raises(ValueError, match=rf"is damaged \(line {line}: .*\): delete the line"):
        read_json_lines(path, check_has_a_name, "delete the line")


def test_a_file_that_is_no_text_is_refused_in_one_line(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="records.jsonl is damaged") as refused:
        read_json_lines(path, check_has_a_name, "delete it")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_last_line_needs_no_newline(tmp_path, end):
    path = tmp_path / "records.jsonl"
    path.write_text('{"name": "a"}\n{"name": "b"}' + end, encoding="utf-8")
    append_json_line(path, {"name": "c"})
    names = [record["name"] for record in read_json_lines(path, check_has_a_name, "")]
    assert names == ["a", "b", "c"]


def test_half_a_line_is_named_and_left_out(tmp_path, capsys):
    path = tmp_path / "records.jsonl"
    path.write_text('{"name": "a"}\n{"name": "b', encoding="utf-8")
    assert read_json_lines(path, check_has_a_name, "") == [{"name": "a"}]
    assert capsys.readouterr().err == f"{path}: line 2 was only half written, left out\n"


def test_a_record_after_half_a_line_is_not_lost(tmp_path, capsys):
    path = tmp_path / "records.jsonl"
    path.write_text('{"name": "a"}\n{"name": "b', encoding="utf-8")
    append_json_line(path, {"name": "c"})
    append_json_line(path, {"name": "d"})
    names = [record["name"] for record in read_json_lines(path, check_has_a_name, "")]
    assert names == ["a", "c", "d"]
    assert "line 2 was only half written" in capsys.readouterr().err


@pytest.mark.parametrize("cut", range(1, len('{"name": "b"}')))
def test_a_line_that_was_cut_anywhere_is_left_out(tmp_path, cut):
    path = tmp_path / "records.jsonl"
    append_json_line(path, {"name": "a"})
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"name": "b"}'[:cut])
    append_json_line(path, {"name": "c"})
    names = [record["name"] for record in read_json_lines(path, check_has_a_name, "")]
    assert names == ["a", "c"]


def test_a_record_is_on_the_disk_when_the_function_returns(tmp_path, monkeypatch):
    written = []
    path = tmp_path / "records.jsonl"
    fsync = os.fsync

    def note(number):
        written.append(path.read_text(encoding="utf-8"))
        fsync(number)

    monkeypatch.setattr(os, "fsync", note)
    append_json_line(path, {"name": "a"})
    assert written == ['{"name": "a"}\n']


def test_a_number_that_is_not_finite_is_not_written(tmp_path):
    path = tmp_path / "records.jsonl"
    append_json_line(path, {"name": "a"})
    with pytest.raises(ValueError):
        append_json_line(path, {"name": "b", "score": float("nan")})
    assert path.read_text(encoding="utf-8") == '{"name": "a"}\n'


def test_lines_of_two_processes_do_not_mix(tmp_path):
    path = tmp_path / "records.jsonl"
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from support.json_lines import append_json_line\n"
        "for number in range(200):\n"
        "    append_json_line(Path(sys.argv[1]), {'name': sys.argv[2] * 5000})\n"
    )
    processes = []
    for name in "ab":
        command = [sys.executable, "-c", code, str(path), name]
        processes.append(subprocess.Popen(command, cwd=ROOT))
    assert [process.wait(60) for process in processes] == [0, 0]
    records = read_json_lines(path, check_has_a_name, "")
    assert sorted(record["name"] for record in records) == ["a" * 5000] * 200 + ["b" * 5000] * 200
