"""The results of fine-tuning on disk: results.jsonl, one line per finished (task, seed).

A line is a JSON object, the record:

    task, seed   which run it was
    result       {"score": ..., "scores": {dev split: {metric: ..., "score": ...}},
                  "constant_prediction": ..., "partial": ...}
                 and, for CoLA, "by_phenomenon": {phenomenon: accuracy}
    settings     all that the result depends on; "changed" lists the names of those that are not
                 the published ones, if there are any
    made_by      the machine, the versions and the code that made it (support/provenance.py)
    seconds      how long it took
"""

import json
import math
from pathlib import Path

from support.files import write_text
from support.glue_format import FORMATS
from support.json_lines import read_json_lines


def results_path(folder):
    """The file of the results in a folder."""
    return Path(folder, "results.jsonl")


def read_results(folder):
    """{(task, seed): record} of a folder's results, in the order of the file; {} without a file.

    Raises ValueError if the file is damaged.
    """
    path = results_path(folder)
    if not path.exists():
        return {}
    records = read_json_lines(path, check_record, "repair or delete the line")
    return {(record["task"], record["seed"]): record for record in records}


def check_record(record):
    """Raises an error (any of those that `read_results` catches) if a record is not complete."""
    result = record["result"]

    # every score is a finite number
    values = [result["score"]]
    for split in FORMATS[record["task"]].dev_splits:
        values.append(result["scores"][split]["score"])
    values.extend(result.get("by_phenomenon", {}).values())
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"a score is {value}")

    # the rest has the types that its readers expect
    expected = [
        ("constant_prediction", result["constant_prediction"], bool),
        ("partial", result["partial"], bool),
        ("settings", record["settings"], dict),
        ("seed", record["seed"], int),
    ]
    for name, value, kind in expected:
        if not isinstance(value, kind):
            raise ValueError(f"{name} is {value!r}")


def add_result(folder, record):
    """Add a record, or replace the one of the same task and seed.

    The file is read again first, because another process may have added records meanwhile.
    """
    records = read_results(folder)
    records[record["task"], record["seed"]] = record
    lines = [json.dumps(each) + "\n" for each in records.values()]
    write_text(results_path(folder), "".join(lines))
