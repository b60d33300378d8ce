"""support/files.py: files that a kill or a full disk cannot damage; checkpoints without code."""

import errno
import hashlib
import io
import os
import pickle
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support import files
from support.commands import UserError
from support.files import (
    load_checkpoint,
    make_folder,
    new_folder,
    remove_parts,
    save_checkpoint,
    sha256_of,
    write_atomically,
    write_text,
)

needs_dev_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a file that is always full"
)


needs_signals = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM to send")


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


def test_a_failed_rename_keeps_the_old_file_and_leaves_no_part(tmp_path, monkeypatch):
    path = tmp_path / "notes.txt"
    path.write_text("old")

    def refuse(source, target):
        raise PermissionError(13, "in use")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        write_text(path, "new")
    assert path.read_text() == "old" and names_in(tmp_path) == ["notes.txt"]


def refuse_renames(monkeypatch, count):
    """os.replace refuses the first `count` calls, as Windows does if another program reads."""
    calls = []
    replace = os.replace

    def sometimes(source, target):
        calls.append(target)
        if len(calls) <= count:
            raise PermissionError(13, "in use")
        replace(source, target)

    monkeypatch.setattr(os, "replace", sometimes)
    monkeypatch.setattr(files, "RENAME_PAUSE", 0.0)
    return calls


def test_on_windows_a_rename_is_tried_until_no_other_program_reads_the_file(tmp_path, monkeypatch):
    path = tmp_path / "notes.txt"
    new = tmp_path / "new"
    new.write_text("new")
    calls = refuse_renames(monkeypatch, 3)
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        files.rename(new, path)
    assert path.read_text() == "new" and len(calls) == 4


def test_on_windows_a_rename_that_stays_refused_is_an_error_in_the_end(tmp_path, monkeypatch):
    (tmp_path / "new").write_text("new")
    calls = refuse_renames(monkeypatch, 10**9)
    monkeypatch.setattr(files, "RENAME_SECONDS", 0.01)
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        with pytest.raises(PermissionError):
            files.rename(tmp_path / "new", tmp_path / "notes.txt")
    assert len(calls) > 1


def test_elsewhere_a_refused_rename_is_an_error_at_once(tmp_path, monkeypatch):
    (tmp_path / "new").write_text("new")
    calls = refuse_renames(monkeypatch, 1)
    with pytest.raises(PermissionError):
        files.rename(tmp_path / "new", tmp_path / "notes.txt")
    assert len(calls) == 1


def test_a_part_that_a_kill_left_does_not_disturb_the_next_write(tmp_path):
    path = tmp_path / "notes.txt"
    part_of(path).write_text("half of something longer")
    write_text(path, "new")
    assert path.read_text() == "new" and names_in(tmp_path) == ["notes.txt"]


def test_parts_that_other_processes_left_are_removed_on_request(tmp_path):
    write_text(tmp_path / "notes.txt", "new")
    (tmp_path / "notes.txt.99999.part").write_text("half")
    (tmp_path / "model.pt.7.part").write_text("half")
    remove_parts(tmp_path)
    assert names_in(tmp_path) == ["notes.txt"]


def number_of_a_dead_process():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.skipif(os.name == "nt", reason="Windows does not say whether a process is running")
def test_parts_of_killed_processes_are_removed_when_the_same_file_is_written(tmp_path):
    dead = number_of_a_dead_process()
    kept = [f"table.md.{os.getppid()}.part", f"other.md.{dead}.part", "table.md.part"]
    for name in [*kept, f"table.md.{dead}.part", f"table.md.{10**30}.part"]:
        (tmp_path / name).write_text("half")
    write_text(tmp_path / "table.md", "complete")
    assert names_in(tmp_path) == sorted([*kept, "table.md"])
    assert (tmp_path / "table.md").read_text() == "complete"


def test_a_folder_is_made_with_those_around_it_and_may_be_there(tmp_path):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    make_folder(tmp_path / "link" / "c")
    assert names_in(tmp_path / "a") == ["b", "c"]


def test_what_is_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for folder, wrong in (("file", "file"), ("file/a/b", "file"), ("link", "link")):
        with pytest.raises(UserError, match=f"{wrong} is not a folder: delete it, or name another"):
            make_folder(tmp_path / folder)


def test_files_of_other_programs_that_end_in_part_are_kept(tmp_path):
    (tmp_path / "film.mkv.part").write_text("half a download")
    (tmp_path / "model.pt.7.part").mkdir()
    remove_parts(tmp_path)
    assert names_in(tmp_path) == ["film.mkv.part", "model.pt.7.part"]


def test_two_processes_write_to_different_temporary_files(tmp_path):
    names = []

    def write(temporary):
        names.append(temporary.name)
        temporary.write_text("new")

    write_atomically(tmp_path / "notes.txt", write)
    assert str(os.getpid()) in names[0]


@pytest.fixture
def events(monkeypatch):
    """What comes to the disk while a test runs: "file", "folder", and "name" for a rename."""
    noted = []
    fsync = os.fsync
    replace = os.replace

    def note(number):
        is_folder = stat.S_ISDIR(os.fstat(number).st_mode)
        noted.append("folder" if is_folder else "file")
        fsync(number)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", lambda *paths: (noted.append("name"), replace(*paths)))
    return noted


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path, events):
    """And the name is on the disk at the end: it is in the folder."""
    write_text(tmp_path / "notes.txt", "new")
    assert events[:2] == ["file", "name"]
    if os.name != "nt":
        assert events == ["file", "name", "folder"]


def test_the_files_of_a_folder_are_on_the_disk_before_it_gets_its_name(tmp_path, events):
    with new_folder(tmp_path / "corpus") as new:
        (new / "a").write_text("a")
        (new / "b").write_text("b")
    before = events[: events.index("name")]
    assert before.count("file") == 2
    if os.name != "nt":
        assert before[-1] == "folder"  # the new folder itself
        assert events[len(before) :] == ["name", "folder"]


@pytest.mark.skipif(os.name == "nt", reason="Windows does not say whether a process is running")
def test_a_part_of_another_users_process_is_kept(tmp_path, monkeypatch):
    def forbidden(number, signal_number):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "kill", forbidden)
    (tmp_path / "table.md.7.part").write_text("half")
    write_text(tmp_path / "table.md", "complete")
    assert names_in(tmp_path) == ["table.md", "table.md.7.part"]


@needs_signals
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_a_write_acts_when_the_file_is_complete(tmp_path, number):
    path = tmp_path / "notes.txt"

    def write(temporary):
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        temporary.write_text("complete")

    class Stopped(Exception):
        pass

    def stop(number, frame):
        raise Stopped

    before = signal.signal(number, stop)
    try:
        with pytest.raises(Stopped):
            write_atomically(path, write)
    finally:
        signal.signal(number, before)
    assert path.read_text() == "complete" and names_in(tmp_path) == ["notes.txt"]


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


@pytest.mark.parametrize("cause", [OSError(28, "No space left on device"), None])
def test_a_full_disk_that_torch_reports_as_a_runtime_error_is_an_os_error(
    tmp_path, monkeypatch, cause
):
    def full_disk(value, file):
        try:
            if cause is not None:
                raise cause
        finally:
            raise RuntimeError("PytorchStreamWriter failed\nwriting file")

    monkeypatch.setattr(files.torch, "save", full_disk)
    reason = "No space left on device" if cause else "is the disk full"
    with pytest.raises(UserError, match=f"could not write .*model.pt: .*{reason}") as error:
        save_checkpoint(tmp_path / "model.pt", {"step": 1})
    assert "\n" not in str(error.value) and names_in(tmp_path) == []


@needs_dev_full
def test_a_genuinely_full_disk_is_an_os_error_and_keeps_the_last_checkpoint(tmp_path):
    path = tmp_path / "model.pt"
    save_checkpoint(path, {"step": 1})
    part_of(path).symlink_to("/dev/full")
    with pytest.raises(OSError):
        save_checkpoint(path, {"weights": torch.zeros(100_000)})
    assert load_checkpoint(path) == {"step": 1} and names_in(tmp_path) == ["model.pt"]


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


def test_a_disk_that_cannot_be_read_does_not_make_a_checkpoint_damaged(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(errno.EIO, "Input/output error")

    save_checkpoint(tmp_path / "state.pt", {"step": 1})
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(OSError, match="Input/output error"):
        load_checkpoint(tmp_path / "state.pt")


def test_a_full_memory_does_not_make_a_checkpoint_damaged(tmp_path, monkeypatch):
    path = tmp_path / "state.pt"
    save_checkpoint(path, {"step": 1})
    for error in (MemoryError(), RuntimeError("can't allocate memory")):

        def fail(*arguments, error=error, **options):
            raise error

        monkeypatch.setattr(torch, "load", fail)
        monkeypatch.setattr(torch, "save", fail)
        with pytest.raises(type(error)):
            load_checkpoint(path)
        with pytest.raises(type(error)):
            save_checkpoint(path, {"step": 2})


def test_a_missing_checkpoint_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.pt"):
        load_checkpoint(tmp_path / "absent.pt")


def test_sha256_is_that_of_the_bytes(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc" * 100_000)
    assert sha256_of(path) == hashlib.sha256(b"abc" * 100_000).hexdigest()


def test_no_flipped_bit_of_a_checkpoint_changes_a_value_in_silence():
    """Every bit of each eighth byte of a checkpoint, and of all bytes of the list of its parts."""
    value = {"step": 3, "weight": torch.arange(8.0) + 1, "bias": 7 * torch.ones(4)}
    file = io.BytesIO()
    torch.save(value, file)
    good = file.getvalue()

    # the list of the parts is at the end: it begins with the first "PK\1\2"
    list_of_parts = range(good.index(b"PK\x01\x02"), len(good))
    places = sorted({*range(0, len(good), 8), *list_of_parts})
    refused = 0
    for place in places:
        for bit in range(8):
            damaged = bytearray(good)
            damaged[place] ^= 1 << bit
            stream = io.BytesIO(damaged)
            try:
                files.check_archive(stream)
                stream.seek(0)
                loaded = torch.load(stream, weights_only=True)
            except Exception:
                refused += 1
                continue
            assert loaded["step"] == 3, (place, bit)
            assert torch.equal(loaded["weight"], value["weight"]), (place, bit)
            assert torch.equal(loaded["bias"], value["bias"]), (place, bit)
    assert refused > len(places)


def test_a_checkpoint_that_names_an_impossible_place_is_refused_with_its_name(tmp_path):
    path = tmp_path / "model.pt"
    save_checkpoint(path, {"step": 1})

    # the place of the list of parts, in the record that begins with "PK\6\6"
    content = bytearray(path.read_bytes())
    record = content.rindex(b"PK\x06\x06")
    content[record + 48] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="model.pt is damaged"):
        load_checkpoint(path)
