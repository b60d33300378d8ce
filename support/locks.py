"""Locks: what one process works on, another process leaves alone.

    with lock(folder / "run.lock", "RUN"):
        ...no other process is in such a block with this file...

A lock is a file that the operating system has locked for this process. It is free again as soon as
the process ends, even if it was killed: then only the file is left, and the next process uses it.
The file says who holds it: the process ID and the name of the machine.

Some network file systems have no locks. There the block runs without protection, and a line says
so, once for each folder.
"""

import errno
import os
import socket
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from support.commands import UserError

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

# Windows locks a byte of the file. This one is far after the text, so that the text can be read.
LOCKED_BYTE = 1 << 30

# Error numbers if another process holds the lock, and if the file system does not support locks.
HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)

OWNER = b"process "  # how the text of a lock begins

POLL_SECONDS = 0.2  # between two attempts to get a lock

WITHOUT_LOCKS = set()  # folders for which the line has been printed


class InUse(UserError):
    """Another process has the lock."""


@contextmanager
def lock(path, name, wait=False, advice=None):
    """Hold a lock during a `with` block.

    Args:
        path: the file of the lock. Its folder must exist.
        name: what is locked, for the message.
        wait: wait until the lock is free.
        advice: what the user can do if it is not free, for the message.
    Raises:
        InUse: another process holds it, and `wait` is False. The message says which process.
    """
    path = Path(path)
    file = open_locked(path)
    while file is None and wait:
        time.sleep(POLL_SECONDS)
        file = open_locked(path)
    if file is None:
        message = f"{name} is in use by {owner_of(path)}"
        if advice is not None:
            message += f"; {advice}"
        raise InUse(message)

    try:
        yield
    finally:
        # Remove the file before the lock is released: afterwards another process could hold it.
        # Windows does not remove an open file: there the file stays, unlocked.
        with suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(file)


def open_locked(path):
    """Open the file of a lock and lock it: its file descriptor, a number.

    None if another process holds the lock.
    """
    while True:
        file = open_lock_file(path)
        if not try_to_lock(file, path):
            os.close(file)
            return None

        # The last owner may have removed the file after we opened it. Then it is another file, or
        # none, that other processes see under this name: open it again.
        if is_file_at(file, path):
            break
        os.close(file)

    # Who holds it, for the messages of other processes. On a full disk this is left out.
    with suppress(OSError):
        os.ftruncate(file, 0)
        owner = f"{os.getpid()} on {socket.gethostname()}"
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, OWNER + owner.encode())
    return file


def open_lock_file(path):
    """Open the file of a lock, or make it. UserError if it is the file of another program."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        message = f"cannot lock {path} ({error.strerror})"
        if os.path.lexists(path):
            message += ": if no other process works there, delete it"
        raise UserError(message) from None

    # It is empty, or it says who holds it.
    content = os.read(file, len(OWNER))
    if content not in (b"", OWNER):
        os.close(file)
        raise UserError(f"{path} is not a lock of this project: rename that file")
    return file


def try_to_lock(file, path):
    """Lock an open file. False if another process has locked it."""
    # The call returns at once. On Windows it locks one byte at the current position.
    try:
        if os.name == "nt":
            os.lseek(file, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            os.lseek(file, 0, os.SEEK_SET)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            return False
        if error.errno not in UNSUPPORTED:
            raise UserError(f"cannot lock {path} ({error.strerror})") from None

        # without locks, work as if this were the only process
        if path.parent not in WITHOUT_LOCKS:
            print(
                f"{path}: this file system has no locks, so start no second process here",
                file=sys.stderr,
            )
        WITHOUT_LOCKS.add(path.parent)
    return True


def is_file_at(file, path):
    """Whether the open file is the one that has this name now."""
    # Windows does not remove an open file. Some of its network drives give a file another number
    # at each look, so the comparison below would never be true.
    if os.name == "nt":
        return True
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def owner_of(path):
    """Who holds a lock: "process 123 on laptop"."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return text or "another process"
