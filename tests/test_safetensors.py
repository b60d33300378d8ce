"""The safetensors format: what is written is read again, and files that lie are refused."""

import json

import pytest
import torch

from support.safetensors import DTYPES, LONGEST_HEADER, load_safetensors, save_safetensors

# Two tensors of 4 and 2 numbers: 16 and 4 bytes.
A = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
B = {"dtype": "F16", "shape": [2], "data_offsets": [16, 20]}
NUMBERS = bytes(range(20))


def write_file(path, header, numbers=NUMBERS, length=None):
    """A file with this header, a dictionary or bytes, and perhaps a wrong length in front of it."""
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    if length is None:
        length = len(header)
    path.write_bytes(length.to_bytes(8, "little") + header + numbers)
    return path


# --- Files that are right -------------------------------------------------------------------------


def random_tensor(dtype, *shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_what_is_written_is_read_again(dtype, tmp_path):
    tensors = {
        "matrix": random_tensor(dtype, 3, 5),
        "number": random_tensor(dtype),
        "transposed": random_tensor(dtype, 4, 2).t(),
    }
    save_safetensors(tmp_path / "a.safetensors", tensors)
    loaded = load_safetensors(tmp_path / "a.safetensors")
    assert list(loaded) == list(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype == dtype
        assert torch.equal(loaded[name], tensor)


def test_the_bytes_of_a_file_are_those_of_the_format(tmp_path):
    path = tmp_path / "a.safetensors"
    save_safetensors(path, {"x": torch.tensor([1.0, -2.0]), "y": torch.tensor(3)})
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert (8 + length) % 8 == 0
    assert json.loads(content[8 : 8 + length]) == {
        "__metadata__": {"format": "pt"},
        "x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "y": {"dtype": "I64", "shape": [], "data_offsets": [8, 16]},
    }
    assert content[8 + length :] == bytes.fromhex("0000803f 000000c0 0300000000000000")


def test_entries_may_be_in_any_order(tmp_path):
    loaded = load_safetensors(write_file(tmp_path / "a", {"b": B, "a": A}))
    assert list(loaded) == ["a", "b"]
    assert loaded["a"].shape == (2, 2)
    assert loaded["b"].dtype == torch.float16


def test_a_tensor_has_memory_of_its_own(tmp_path):
    path = write_file(tmp_path / "a", {"a": A, "b": B})
    first = load_safetensors(path)
    first["a"].zero_()
    assert path.read_bytes().endswith(NUMBERS)
    assert load_safetensors(path)["a"].count_nonzero() > 0


# --- Files that lie -------------------------------------------------------------------------------

DAMAGED = {
    "an empty header": (b"", b"", 0, "Expecting value"),
    "no JSON": (b"{]", NUMBERS, None, "property name"),
    "a list": (b"[]", NUMBERS, None, "not a JSON object"),
    "no text": (b"\xff\xff", NUMBERS, None, "utf-8"),
    "deep JSON": (b'{"a":' + b"[" * 100_000, NUMBERS, None, "recursion"),
    "a large number": (b'{"a":' + b"9" * 10_000 + b"}", NUMBERS, None, "digits"),
    "NaN": (b'{"a": NaN}', NUMBERS, None, "NaN"),
    "a header above the size of the file": ({"a": A, "b": B}, NUMBERS, 10_000, "10,000 bytes"),
    "a header of 8 exabytes": ({"a": A, "b": B}, NUMBERS, 2**63, "header would have"),
    "two tensors of one name": (
        f'{{"a": {json.dumps(A)}, "a": {json.dumps(B)}}}'.encode(),
        NUMBERS,
        None,
        "two entries with the name 'a'",
    ),
    "a name with a new line": ({"a\nb": A, "b": B}, NUMBERS, None, "'a\\nb'"),
    "no name": ({"": A, "b": B}, NUMBERS, None, "with the name ''"),
    "no entry": ({"a": 3, "b": B}, NUMBERS, None, "entry of a"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 16]}, "b": B}, NUMBERS, None, "of a"),
    "bytes that no tensor has": ({"a": A}, NUMBERS, None, "16 bytes, and the file has 20"),
    "fewer bytes": ({"a": A, "b": B}, NUMBERS[:-1], None, "20 bytes, and the file has 19"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_in_one_line(name, tmp_path):
    header, numbers, length, message = DAMAGED[name]
    path = write_file(tmp_path / "a.safetensors", header, numbers, length)
    with pytest.raises(ValueError) as error:
        load_safetensors(path)
    assert str(error.value).startswith(f"{path} is damaged or is not a safetensors file: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"dtype": "F8_E4M3"}, "F8_E4M3"),
        ({"dtype": "BOOL"}, "BOOL"),
        ({"dtype": ["F32"]}, "dtype"),
        ({"dtype": "I64"}, "16 bytes, and its shape needs 32"),
        ({"shape": [2, 3]}, "16 bytes, and its shape needs 24"),
        ({"shape": [-2, -2]}, "shape [-2, -2]"),
        ({"shape": [2.0, 2]}, "shape [2.0, 2]"),
        ({"shape": [True, 4]}, "shape [True, 4]"),
        ({"shape": [0, 2**62]}, "shape [0, "),
        ({"shape": [2**63, 2]}, "shape ["),
        ({"shape": [1] * 9}, "shape ["),
        ({"shape": 4}, "shape 4"),
        ({"data_offsets": [0, 16, 20]}, "offsets [0, 16, 20]"),
        ({"data_offsets": [-16, 0]}, "offsets [-16, 0]"),
        ({"data_offsets": [16, 0]}, "-16 bytes"),
        ({"data_offsets": [4, 20]}, "begins at byte"),  # overlaps b
        ({"data_offsets": [100, 116]}, "begins at byte"),  # beyond the end
        ({"more": 1}, "entry of a"),
    ],
)
def test_a_wrong_entry_is_refused(change, message, tmp_path):
    path = write_file(tmp_path / "a.safetensors", {"a": {**A, **change}, "b": B})
    with pytest.raises(ValueError) as error:
        load_safetensors(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_gap_between_two_tensors_is_refused(tmp_path):
    later = {**B, "data_offsets": [18, 22]}
    path = write_file(tmp_path / "a.safetensors", {"a": A, "b": later}, bytes(22))
    with pytest.raises(ValueError, match="b begins at byte 18, not at byte 16"):
        load_safetensors(path)


def test_a_header_may_not_be_longer_than_the_limit(tmp_path):
    # a file with a hole: it takes no space on the disk
    path = tmp_path / "a.safetensors"
    with open(path, "wb") as file:
        file.write((LONGEST_HEADER + 1).to_bytes(8, "little"))
        file.truncate(LONGEST_HEADER + 100)
    with pytest.raises(ValueError, match="its header would have 100,000,001 bytes"):
        load_safetensors(path)


def test_a_file_cut_at_any_byte_is_refused(tmp_path):
    whole = write_file(tmp_path / "whole", {"a": A, "b": B}).read_bytes()
    path = tmp_path / "cut"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is damaged or is not a safetensors file"):
            load_safetensors(path)
