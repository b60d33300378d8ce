"""Files of records: one JSON object per line."""

import json

# What reading or checking a damaged record raises.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)


def read_json_lines(path, check, advice):
    """The records of a file, in its order.

    Args:
        path: of the file.
        check: function of a record; it raises one of DAMAGE if the record is not complete.
        advice: what the user can do about a damaged line, for the message.
    Raises:
        ValueError: a line is damaged; the message names file and line.
    """
    # a file that is not UTF-8 text is damaged, too
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): {advice}") from None

    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            check(record)
        except DAMAGE as error:
            raise ValueError(f"{path} is damaged (line {number}: {error}): {advice}") from None
        records.append(record)
    return records
