"""The safetensors format: named tensors in one file, with nothing in it that could be executed.

    8 bytes        the length n of the header, a whole number, lowest byte first
    n bytes        the header: a JSON object, which spaces may fill up at its end
    the rest       the numbers of all tensors, one tensor directly after the other

The header has one entry per tensor. Its offsets are bytes, counted from the end of the header:

    {"bias": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, ...}

It may also have an entry "__metadata__", which is not a tensor and is not needed here.

The header is checked completely before any tensor is read. So a damaged or hostile file cannot make
the program allocate a huge tensor, or read the bytes of one tensor as those of another one. The
format has no checksum. So a change in the numbers cannot be noticed here.

The package safetensors reads and writes such files, too. This file takes its place, so that the
project needs no further package.
"""

import json
import math
import os

import torch

from support.checkpoints import is_count
from support.commands import UserError
from support.files import write_atomically
from support.json_lines import refuse_constant

# How the format names the dtypes. Of those that torch has, only what a model may need.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
}
KEYS = {"dtype", "shape", "data_offsets"}  # of a tensor's entry
METADATA = "__metadata__"
LONGEST_HEADER = 100_000_000  # bytes; the header of a BERT has some 30,000
MOST_DIMENSIONS = 8


# --- Reading --------------------------------------------------------------------------------------


def load_safetensors(path):
    """{name: tensor} of a file, in the order of their bytes.

    Raises UserError if the file is damaged or is not in this format.
    """
    with open(path, "rb") as file:
        try:
            entries, start = read_header(file)
            return {name: read_tensor(file, start, entry) for name, entry in entries}
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged or is not a safetensors file: {error}") from None


def read_header(file):
    """([(name, entry)] sorted by offset, where the numbers start) of an open file.

    Raises UserError if anything in the header is wrong, or does not fit the size of the file.
    """
    size = os.fstat(file.fileno()).st_size

    # the length of the header
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, LONGEST_HEADER):
        raise UserError(f"its header would have {length:,} bytes, and the file has {size:,}")

    # the header
    text = file.read(length).decode("utf-8")
    header = json.loads(text, object_pairs_hook=unique_keys, parse_constant=refuse_constant)
    if not isinstance(header, dict):
        raise UserError("its header is not a JSON object")
    header.pop(METADATA, None)

    # its entries
    for name, entry in header.items():
        check_name(name)
        check_entry(name, entry)

    # in the order of their bytes
    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"][0])
    check_offsets(entries, size - 8 - length)
    return entries, 8 + length


def unique_keys(pairs):
    """A JSON object as a dictionary. UserError if it has two entries of one name.

    Python would keep the last of the two silently.
    """
    found = {}
    for key, value in pairs:
        if key in found:
            raise UserError(f"it has two entries with the name {ascii(key)[:100]}")
        found[key] = value
    return found


def check_name(name):
    """UserError if a tensor has a name that cannot be printed in a line."""
    if not name.isprintable() or not 0 < len(name) <= 1000:
        raise UserError(f"it has a tensor with the name {ascii(name)[:100]}")


def check_entry(name, entry):
    """UserError if a tensor's entry is not possible."""
    if not isinstance(entry, dict) or set(entry) != KEYS:
        raise UserError(f"the entry of {name} does not have dtype, shape and data_offsets")

    # dtype and shape
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise UserError(f"{name} has the dtype {ascii(dtype)[:40]}, which cannot be read here")
    shape = entry["shape"]
    if not is_list_of_counts(shape) or len(shape) > MOST_DIMENSIONS or 0 in shape:
        raise UserError(f"{name} has the shape {ascii(shape)[:80]}")

    # as many bytes as the shape needs
    offsets = entry["data_offsets"]
    if not is_list_of_counts(offsets) or len(offsets) != 2:
        raise UserError(f"{name} has the offsets {ascii(offsets)[:80]}")
    begin, end = offsets
    needed = math.prod(shape) * DTYPES[dtype].itemsize
    if end - begin != needed:
        raise UserError(f"{name} has {end - begin:,} bytes, and its shape needs {needed:,}")


def is_list_of_counts(value):
    """Whether a value is a list of whole numbers from 0 to 2**63 - 1."""
    return isinstance(value, list) and all(is_count(number) for number in value)


def check_offsets(entries, size):
    """UserError if the tensors do not follow each other without gaps, up to the end of the file.

    Otherwise two tensors could share bytes, or the file could hold bytes that nobody looks at.

    Args:
        entries: [(name, entry)], sorted by offset.
        size: of all numbers together, in bytes.
    """
    previous_end = 0
    for name, entry in entries:
        begin, end = entry["data_offsets"]
        if begin != previous_end:
            raise UserError(f"{name} begins at byte {begin:,}, not at byte {previous_end:,}")
        previous_end = end
    if previous_end != size:
        raise UserError(f"its tensors have {previous_end:,} bytes, and the file has {size:,}")


def read_tensor(file, start, entry):
    """One tensor. start: where the numbers of all tensors start in the file."""
    begin, end = entry["data_offsets"]
    file.seek(start + begin)
    content = bytearray(file.read(end - begin))
    if len(content) != end - begin:
        raise UserError("it was cut while it was read")

    # The tensor takes the bytes as they are: lowest byte first, as on almost all machines.
    tensor = torch.frombuffer(content, dtype=DTYPES[entry["dtype"]])
    return tensor.reshape(entry["shape"])


# --- Writing --------------------------------------------------------------------------------------


def save_safetensors(path, tensors):
    """Write {name: tensor} to a file, atomically. The tensors are on the CPU, in one of DTYPES."""
    names = {dtype: name for name, dtype in DTYPES.items()}

    # the header: metadata that other readers expect, and an entry per tensor
    header = {METADATA: {"format": "pt"}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.numel() * tensor.dtype.itemsize
        shape = list(tensor.shape)
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": shape,
            "data_offsets": [begin, end],
        }
        begin = end

    # filled up with spaces, so that the numbers start at a multiple of 8 bytes
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)

    def write(temporary):
        with open(temporary, "wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            for tensor in tensors.values():
                file.write(bytes_of(tensor))

    write_atomically(path, write)


def bytes_of(tensor):
    """The numbers of a tensor as they are in memory, row after row."""
    flat = tensor.detach().contiguous().flatten()  # a single number becomes one of shape (1,)
    return flat.view(torch.uint8).numpy()
