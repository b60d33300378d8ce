"""support/files.py: files that a kill or a full disk cannot damage; checkpoints without code."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from support import files
from support.files import (
    load_checkpoint,
    save_checkpoint,
    write_atomically,
    write_text,
)

needs_dev_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a file that is always full"
)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def part_of(path):
    """The temporary file under which this process writes the file."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


class Killed(BaseException):
    """What a kill is to the program: nothing runs after it."""


# --- Atomic writes --------------------------------------------------------------------------------


def test_a_file_is_replaced_only_after_it_is_complete(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("old")

    def write(temporary):
        temporary.write_text("new")
        # in the same folder: a rename to another disk would be a copy
        assert temporary.parent == path.parent and temporary != path
        assert path.read_text() == "old"

    write_atomically(path, write)
    assert path.read_text() == "new" and names_in(tmp_path) == ["notes.txt"]


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt, Killed])
def test_a_failed_write_keeps_the_old_file_and_leaves_no_part(tmp_path, error):
    path = tmp_path / "notes.txt"
    path.write_text("old")

    def write(temporary):
        temporary.write_text("ne")
        raise error

    with pytest.raises(type(error) if isinstance(error, OSError) else error):
        write_atomically(str(path), write)
    assert path.read_text() == "old" and names_in(tmp_path) == ["notes.txt"]


def test_a_part_that_a_kill_left_does_not_disturb_the_next_write(tmp_path):
    path = tmp_path / "notes.txt"
    part_of(path).write_text("half of something longer")
    write_text(path, "new")
    assert path.read_text() == "new" and names_in(tmp_path) == ["notes.txt"]


def test_text_has_the_same_bytes_on_every_system(tmp_path):
    path = tmp_path / "notes.txt"
    write_text(path, "tür\n\u2581one\n")
    assert path.read_bytes() == b"t\xc3\xbcr\n\xe2\x96\x81one\n"


# --- A disk that is full --------------------------------------------------------------------------


def test_a_failed_checkpoint_leaves_the_last_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    save_checkpoint(path, {"step": torch.tensor(1)})

    def full_disk(value, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.torch, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, {"step": torch.tensor(2)})
    assert load_checkpoint(path)["step"] == 1 and names_in(tmp_path) == ["model.pt"]


@needs_dev_full
def test_a_genuinely_full_disk_keeps_the_last_text(tmp_path):
    path = tmp_path / "notes.txt"
    write_text(path, "old")
    part_of(path).symlink_to("/dev/full")
    with pytest.raises(OSError):
        write_text(path, "new")
    assert path.read_text() == "old" and names_in(tmp_path) == ["notes.txt"]


# --- Checkpoints ----------------------------------------------------------------------------------


def test_a_checkpoint_gives_back_tensors_and_plain_values(tmp_path):
    value = {"weights": torch.randn(3), "step": 7, "log": [{"loss": 1.5}], "result": None}
    save_checkpoint(tmp_path / "state.pt", value)
    loaded = load_checkpoint(tmp_path / "state.pt")
    assert torch.equal(loaded.pop("weights"), value.pop("weights")) and loaded == value


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 broken archive"])
def test_a_damaged_checkpoint_is_refused_in_one_line_that_names_it(tmp_path, content):
    path = tmp_path / "state.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="state.pt is damaged") as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value) and path.read_bytes() == content


def test_a_truncated_checkpoint_is_refused(tmp_path):
    path = tmp_path / "state.pt"
    save_checkpoint(path, {"weights": torch.randn(1000)})
    content = path.read_bytes()
    for size in (10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match="state.pt is damaged"):
            load_checkpoint(path)


class Hostile:
    """A careless reader of this pickle would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (Path(self.path), "executed")


def test_a_hostile_checkpoint_executes_nothing(tmp_path):
    path = tmp_path / "state.pt"
    trace = tmp_path / "trace"
    torch.save({"weights": Hostile(str(trace))}, path)
    with pytest.raises(ValueError, match="state.pt is damaged"):
        load_checkpoint(path)

    path.write_bytes(pickle.dumps(Hostile(str(trace)), protocol=2))
    with pytest.raises(ValueError, match="state.pt is damaged"):
        load_checkpoint(path)
    assert not trace.exists()


def test_a_missing_checkpoint_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.pt"):
        load_checkpoint(tmp_path / "absent.pt")
