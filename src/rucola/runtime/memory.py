"""Manages memory of this process outside of Python objects: large buffers, and pages locked in memory (``mlock``)."""

from __future__ import annotations

import errno
import mmap
import os
import sys

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
    """Locks pages of ``buffer`` in memory until the buffer is closed or ``unlock_memory`` is called. Returns when the
    pages are locked.

    Other threads run during the call.

    Returns:
        The reason if the system refused, usually a limit (``ulimit -l``); otherwise an empty text.
    """
    return _call("mlock", buffer, position, length)


def unlock_memory(buffer: mmap.mmap, position: int, length: int) -> str:
    """Unlocks the pages that ``lock_memory`` locked."""
    return _call("munlock", buffer, position, length)


def _call(name: str, buffer: mmap.mmap, position: int, length: int) -> str:
    # Imported only when memory is locked, which is rare; otherwise the import would slow every start.
    import ctypes

    library = None if sys.platform == "win32" else ctypes.CDLL(None, use_errno=True)
    function = getattr(library, name, None)
    if function is None:
        return os.strerror(errno.ENOSYS)
    # Keeps the map open during the call.
    first = ctypes.c_char.from_buffer(buffer, position)
    refused = function(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length))
    return os.strerror(ctypes.get_errno()) if refused else ""
