"""Files that a kill cannot damage: each is written under a temporary name and then renamed."""

import errno
import hashlib
import os
import re
import shutil
import time
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from support.commands import UserError
from support.memory import is_out_of_memory
from support.signals import delayed_signals

PART = ".part"  # how the temporary names end
DESKTOP_FILES = (".DS_Store", "desktop.ini")  # what macOS and Windows add to folders they show
OWN_PART = re.compile(r"(.+)\.([0-9]+)\.part")  # "model.pt.4711.part": 4711 is the process ID

# Windows refuses to rename a file while another program reads it, such as a virus scanner.
RENAME_SECONDS = 10.0  # until the error is raised
RENAME_PAUSE = 0.2  # between two attempts


def write_atomically(path, write):
    """Call `write(temporary_path)`, then rename that file to `path`.

    After a kill, a power failure or a full disk, `path` is either the old file or the complete new
    one. SIGINT and SIGTERM act when the file is complete.
    """
    path = Path(path)
    # Two processes never write to the same temporary file.
    temporary = path.with_name(f"{path.name}.{os.getpid()}{PART}")
    with delayed_signals():
        remove_parts_of(path)
        try:
            write(temporary)
            flush_to_disk(temporary)
            rename(temporary, path)
            flush_folder_to_disk(path.parent)
        except BaseException as error:
            # When a disk is full, the system does not say which file it was about.
            if isinstance(error, OSError) and error.filename is None:
                error.filename = str(path)
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def new_folder(folder):
    """Give the `with` block a temporary folder that becomes `folder` if the block succeeds.

    A folder of this name is therefore always complete. Only the process that holds the lock of
    `folder` may call this: the temporary name is the same for all processes.
    """
    temporary = temporary_name(folder)
    delete(temporary)  # a killed process left it
    temporary.mkdir()

    # The block fills the folder. If it fails, the folder is deleted.
    try:
        yield temporary

        # The content must be on the disk before the name is: a power failure could come between.
        for path in temporary.rglob("*"):
            if path.is_dir():
                flush_folder_to_disk(path)
            else:
                flush_to_disk(path)
        flush_folder_to_disk(temporary)
        rename(temporary, folder)
        flush_folder_to_disk(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def temporary_name(folder):
    """The name of a folder before it is complete, and while it is deleted.

    It is beside the folder, because a folder can only be renamed on the same disk.
    """
    return folder.with_name(folder.name + PART)


def rename(source, target):
    """Give a file or a folder another name on the same disk. A file of this name is replaced.

    If Windows refuses it, it is tried again for RENAME_SECONDS.
    """
    deadline = time.monotonic() + RENAME_SECONDS
    while True:
        try:
            os.replace(source, target)
            return
        except PermissionError:
            if os.name != "nt" or time.monotonic() > deadline:
                raise
        time.sleep(RENAME_PAUSE)


def remove_parts_of(path):
    """Delete the temporary files of one file whose processes were killed."""
    for other in path.parent.glob(f"*{PART}"):
        match = OWN_PART.fullmatch(other.name)
        if match is not None and match[1] == path.name and not is_running(int(match[2])):
            with suppress(OSError):
                other.unlink()


def is_running(number):
    """Whether there is a process with this ID on this machine. On Windows: always True."""
    # On Windows, os.kill would end the process. Elsewhere, signal 0 only checks that it exists.
    if os.name == "nt":
        return True
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it is another user's
    return True


def flush_to_disk(path):
    """Wait until the content of a file is on the disk, so that a power failure cannot lose it."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def flush_folder_to_disk(folder):
    """Wait until the names in a folder are on the disk, the new name of a file among them."""
    # Windows and some network file systems cannot do this with a folder. The file has its new name
    # anyway, but a power failure may undo this.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_parts(folder):
    """Delete the temporary files that killed processes left in a folder.

    Only the process that holds the lock of this folder may do this: then nobody writes there.
    """
    for path in folder.glob(f"*{PART}"):
        # Other programs use the ending, too: a browser for half a download, for example.
        if OWN_PART.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def make_folder(folder):
    """Make a folder, and the folders around it, unless they are there.

    Raises UserError with the name of what is in the way, such as a file.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        for path in (folder, *folder.parents):
            if os.path.lexists(path) and not path.is_dir():
                raise UserError(
                    f"{path} is not a folder: delete it, or name another folder"
                ) from None
        raise


def delete(path):
    """Delete a folder and its files, or a file, or a link. It may be missing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_text(path, text):
    """Write `text` to `path` atomically, as UTF-8 with the same bytes on every system."""

    def write(temporary):
        temporary.write_text(text, encoding="utf-8", newline="\n")

    write_atomically(path, write)


def save_checkpoint(path, value):
    """torch.save `value` to `path` atomically. Raises UserError if the disk is full."""

    def write(temporary):
        # Give torch an open file: then its RuntimeError about a full disk holds the reason.
        with open(temporary, "wb") as file:
            torch.save(value, file)

    try:
        write_atomically(path, write)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = error.__context__ or "is the disk full?"
        raise UserError(f"could not write {path}: {reason}") from None


def load_checkpoint(path):
    """Read what `save_checkpoint` wrote: tensors and plain values only, so no code is executed.

    Raises UserError if the file is damaged or is not a checkpoint.
    """
    # A checkpoint is a zip archive, which holds a checksum of each part. torch does not look at it.
    with open(path, "rb") as file:
        try:
            check_archive(file)
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds of errors for the same cause
            # A damaged archive may hold an impossible offset: then the system reports EINVAL,
            # "invalid argument". Other errors of the system are not caused by the file.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            if is_out_of_memory(error):
                raise
            raise damaged(path, type(error).__name__) from None


def damaged(path, reason):
    """The error for a checkpoint that is not what this project writes."""
    return UserError(f"{path} is damaged or is not a checkpoint of this project ({reason})")


def check_archive(file):
    """Raise zipfile.BadZipFile if a part of an open zip archive is not what was written."""
    with zipfile.ZipFile(file) as archive:
        wrong_part = archive.testzip()
        if wrong_part is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {wrong_part}")

        # torch.save writes plain parts. If damage turns one into a "folder", torch.load does not
        # fill its tensor, which then holds whatever was in that memory before.
        for part in archive.infolist():
            if part.external_attr != 0 or part.compress_type != zipfile.ZIP_STORED:
                raise zipfile.BadZipFile(f"{part.filename} is not a plain part")


def sha256_of(path):
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
