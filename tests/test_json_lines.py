"""support/json_lines.py: files of records."""

import pytest

from support.json_lines import read_json_lines


def check_has_a_name(record):
    if not isinstance(record["name"], str):
        raise ValueError("the name is no text")


def test_records_are_read_in_the_order_of_the_file(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text('{"name": "b"}\n{"name": "a"}\n', encoding="utf-8")
    assert read_json_lines(path, check_has_a_name, "") == [{"name": "b"}, {"name": "a"}]


@pytest.mark.parametrize("line", ["{", "[1]", "7", "{}", '{"name": 1}', "[" * 100_000])
def test_a_damaged_line_is_named_in_one_line(tmp_path, line):
    path = tmp_path / "records.jsonl"
    path.write_text('{"name": "a"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"is damaged \(line 2: ") as refused:
        read_json_lines(path, check_has_a_name, "delete it")
    message = str(refused.value)
    assert str(path) in message
    assert message.endswith(": delete it")
    assert "\n" not in message


def test_a_file_that_is_no_text_is_refused_in_one_line(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_bytes(b"\xff\n")
    with pytest.raises(ValueError, match="records.jsonl is damaged") as refused:
        read_json_lines(path, check_has_a_name, "delete it")
    assert "\n" not in str(refused.value)
