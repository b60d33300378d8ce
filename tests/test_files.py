"""support/files.py: files that a kill cannot damage, and checkpoints that execute nothing."""

import errno
import math
import pickle
from pathlib import Path

import pytest
import torch

import model
from conftest import Killed
from model_helpers import write_run
from support.commands import UserError
from support.files import load_checkpoint, new_folder, replacing, save_checkpoint


def test_a_file_is_the_old_one_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("old")
    with pytest.raises(Killed), replacing(path) as temporary:
        temporary.write_text("half of something longer")
        raise Killed
    assert path.read_text() == "old"

    # what the kill left does not disturb the next write
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    assert path.read_text() == "new"


def assert_damaged(path):
    with pytest.raises(UserError, match="state.pt is damaged"):
        load_checkpoint(path)


def test_a_full_disk_is_named_and_what_was_there_before_stays(tmp_path):
    """A result is a file, unpacked tasks are a folder."""
    path = tmp_path / "result.json"
    path.write_text("old")
    for making, named in ((replacing(path), path), (new_folder(tmp_path / "tasks"), "tasks")):
        with (
            pytest.raises(OSError, match=f"No space left on device: '.*{Path(named).name}"),
            making,
        ):
            raise OSError(errno.ENOSPC, "No space left on device")
    assert path.read_text() == "old" and not (tmp_path / "tasks").exists()


def test_a_checkpoint_that_was_cut_or_damaged_anywhere_is_refused(tmp_path):
    path = tmp_path / "state.pt"
    save_checkpoint(path, {"weights": torch.arange(1000.0), "step": 7})
    content = path.read_bytes()
    assert load_checkpoint(path)["weights"].tolist() == list(range(1000))

    for size in (0, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        assert_damaged(path)

    # one wrong byte in the weights, where only the checksum can show it
    place = content.index(torch.arange(500.0, 510.0).numpy().tobytes())
    path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
    assert_damaged(path)


class Hostile:
    """A careless reader of this pickle would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (Path(self.path), "executed")


def test_loading_never_executes_code(tmp_path):
    path = tmp_path / "state.pt"
    trace = tmp_path / "trace"

    torch.save({"weights": Hostile(str(trace))}, path)
    with pytest.raises(pickle.UnpicklingError):
        load_checkpoint(path)

    # the old format, which is no zip archive
    path.write_bytes(pickle.dumps(Hostile(str(trace)), protocol=2))
    assert_damaged(path)
    assert not trace.exists()


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(number, tmp_path, refused):
    write_run(tmp_path)
    weights = load_checkpoint(tmp_path / "model.pt")
    weights["norm.weight"][0] = number
    save_checkpoint(tmp_path / "model.pt", weights)
    line = refused(model.main, tmp_path, "the [MASK] was tired.")
    assert "norm.weight" in line and "not finite" in line


def test_an_encoder_without_a_head_fills_no_blanks(tmp_path, refused):
    write_run(tmp_path)
    weights = load_checkpoint(tmp_path / "model.pt")
    encoder = {name: x for name, x in weights.items() if name.startswith("bert.")}
    save_checkpoint(tmp_path / "model.pt", encoder)
    assert "no masked-LM head" in refused(model.main, tmp_path, "the [MASK] was tired.")
