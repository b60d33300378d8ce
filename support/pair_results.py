"""The results of a run on minimal pairs: RUN/pairs/DATA.jsonl, one line per paradigm.

A line is a JSON object, the record:

    data, paradigm, phenomenon    what was scored
    pairs           how many pairs the paradigm has
    pairs_sha256    12 hexadecimal digits that change if a pair changes
    model           12 hexadecimal digits of the SHA-256 of the run's model.pt
    scores          {"pll": {...}, "whole_word": {...}}, each with
                        accuracy    100 * (wins + ties / 2) / pairs
                        ties        how many ties
                        wins        which pairs are right, in hexadecimal digits
                        tied        the indices of the ties
    made_by         the machine, the version of torch and the code (support/provenance.py)
    seconds         how long it took

Example of "wins": of six pairs, the pairs 0, 2, 3 and 5 are right. As bits, with zeros at the end
until their number is a multiple of 8:

    pair      0 1 2 3   4 5
    bit       1 0 1 1   0 1 0 0
    digit           b         4      "b4"
"""

import hashlib
import json
import math
from pathlib import Path

import numpy as np

from support.commands import UserError
from support.files import remove_parts_of, write_text
from support.json_lines import append_json_line, read_json_lines
from support.locks import lock

SCORES = ("pll", "whole_word")
DIGITS = 12  # of a digest


# --- One score of a paradigm ----------------------------------------------------------------------


def score_record(wins, ties):
    """The dictionary of one score.

    Args:
        wins: (pairs,) bool, True where the good sentence has the higher score.
        ties: (pairs,) bool, True where both sentences have the same score.
    """
    tied = np.flatnonzero(ties).tolist()
    credit = int(np.sum(wins)) + len(tied) / 2
    return {
        "accuracy": 100 * credit / len(wins),
        "ties": len(tied),
        "wins": pack_bits(wins),
        "tied": tied,
    }


def credit_per_pair(score, pairs):
    """(pairs,) numbers: 1 for a pair that is right, 0.5 for a tie, 0 for one that is wrong."""
    values = unpack_bits(score["wins"], pairs).astype(float)
    values[score["tied"]] = 0.5
    return values


def pack_bits(bits):
    """Bits as hexadecimal digits: 1 0 1 1 0 1 becomes "b4"."""
    return np.packbits(np.asarray(bits, dtype=bool)).tobytes().hex()


def unpack_bits(digits, count):
    """The first `count` bits of hexadecimal digits, as a numpy array of bool."""
    packed = np.frombuffer(bytes.fromhex(digits), dtype=np.uint8)
    return np.unpackbits(packed, count=count).astype(bool)


# --- Digests --------------------------------------------------------------------------------------


def digest_of_pairs(pairs):
    """12 hexadecimal digits for a list of (context, good, bad)."""
    digest = hashlib.sha256()
    for pair in pairs:
        line = json.dumps(list(pair)) + "\n"
        digest.update(line.encode())
    return digest.hexdigest()[:DIGITS]


# --- The file -------------------------------------------------------------------------------------


def results_path(folder, data):
    """The file of a run's results on some data."""
    return Path(folder, "pairs", f"{data}.jsonl")


def read_results(folder, data):
    """{paradigm: record} of a run, in the order of the file; {} without a file.

    Of two records of a paradigm the later one counts. Records of an earlier model than that of the
    last line do not count.

    Raises UserError if the file is damaged.
    """
    path = results_path(folder, data)
    if not path.exists():
        return {}
    records = read_json_lines(path, check_record, "delete the file and start again")
    results = {}
    for record in records:
        if record["model"] == records[-1]["model"]:
            results[record["paradigm"]] = record
    return results


def check_record(record):
    """Raises one of json_lines.DAMAGE if a record is not complete."""
    for name in ("data", "paradigm", "phenomenon", "pairs_sha256", "model"):
        if not isinstance(record[name], str):
            raise UserError(f"{name} is {record[name]!r}")

    pairs = record["pairs"]
    if type(pairs) is not int or pairs < 1:
        raise UserError(f"pairs is {pairs!r}")

    # the number of bits, the ties and the accuracy belong together
    digits = 2 * math.ceil(pairs / 8)
    for name in SCORES:
        score = record["scores"][name]
        if len(score["wins"]) != digits or len(score["tied"]) != score["ties"]:
            raise UserError(f"{name} of {record['paradigm']} is not complete")
        if not all(type(i) is int and 0 <= i < pairs for i in score["tied"]):
            raise UserError(f"the ties of {record['paradigm']} are not numbers of pairs")
        accuracy = 100 * credit_per_pair(score, pairs).mean()
        if not math.isclose(accuracy, score["accuracy"], rel_tol=1e-5, abs_tol=1e-8):
            raise UserError(f"the accuracy of {record['paradigm']} is not that of its pairs")


def add_result(folder, record):
    """Add the record of a paradigm."""
    path = results_path(folder, record["data"])
    path.parent.mkdir(exist_ok=True)
    append_json_line(path, record)


def keep_results(folder, data, paradigms):
    """Keep only the records of these paradigms. The others are no longer in the data.

    Only the process that holds the lock of these results may do this.

    paradigms: names.

    Returns the names of the paradigms whose records were deleted.
    """
    path = results_path(folder, data)
    remove_parts_of(path)
    records = read_results(folder, data)
    deleted = [name for name in records if name not in paradigms]
    if deleted:
        lines = [json.dumps(records[name]) + "\n" for name in records if name in paradigms]
        write_text(path, "".join(lines))
    return deleted


def results_lock(folder, data):
    """The lock that a process holds while it scores a run on some data."""
    path = results_path(folder, data).with_suffix(".lock")
    path.parent.mkdir(exist_ok=True)
    return lock(path, f"{folder} on {data}", advice="wait until it has finished")
