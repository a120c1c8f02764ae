"""Manages memory of this process outside of Python objects: large buffers, pages locked in memory (``mlock``), and the
free memory of the C heap.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctypes import CDLL

PrivateMemory = mmap.mmap
"""The result of ``private_memory``."""


def private_memory(size: int) -> PrivateMemory:
    """Returns a buffer of ``size`` zero bytes that belongs to no file. Its pages are allocated when they are written or
    locked.

    Raises:
        MemoryError: there is not enough memory.
    """
    try:
        return mmap.mmap(-1, size)
    except OSError as error:
        raise MemoryError(f"{size} bytes: {error.strerror}") from error


def lock_memory(buffer: mmap.mmap, position: int, length: int) -> str:
    """Locks pages of ``buffer`` in memory until the buffer is closed. Returns when the pages are locked.

    Other threads run during the call.

    Returns:
        The reason if the system refused, usually a limit (``ulimit -l``); otherwise an empty string.
    """
    return _call("mlock", buffer, position, length)


def trim_heap() -> None:
    """Returns the free pages of the C heap to the operating system. Does nothing unless the C library is glibc.

    Without this call, glibc may keep the memory of hundreds of freed large blocks of different sizes, because a small
    block in use lies after them in the heap. The call takes 60 µs for each MiB that it returns, and 30 µs if it returns
    nothing. Other threads run during the call, but a thread that needs a large block waits until the call has ended.
    """
    trim = getattr(_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _call(name: str, buffer: mmap.mmap, position: int, length: int) -> str:
    import ctypes

    function = getattr(_library(), name, None)
    if function is None:
        return os.strerror(errno.ENOSYS)
    # This reference keeps the buffer open during the call.
    first = ctypes.c_char.from_buffer(buffer, position)
    refused = function(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length))
    return os.strerror(ctypes.get_errno()) if refused else ""


@cache
def _library() -> CDLL | None:
    # ctypes is imported at the first call, because the import would slow every start.
    import ctypes

    return None if sys.platform == "win32" else ctypes.CDLL(None, use_errno=True)
