"""Memory of this process beside its objects: large buffers, and pages that must not leave the memory (``mlock``)."""

from __future__ import annotations

import errno
import mmap
import os
import sys

PrivateMemory = mmap.mmap
"""What ``private_memory`` gives."""


def private_memory(size: int) -> PrivateMemory:
    """Zeros of ``size`` bytes that belong to no file. Memory is taken page by page when it is stored to, or locked.

    Raises:
        MemoryError: there is not so much.
    """
    try:
        return mmap.mmap(-1, size)
    except OSError as error:
        raise MemoryError(f"{size} bytes: {error.strerror}") from error


def lock_memory(buffer: mmap.mmap, position: int, length: int) -> str:
    """Keeps pages of ``buffer`` in memory until it is closed or ``unlock_memory`` is called; waits until they are.

    Other threads go on meanwhile.

    Returns:
        Why the system refused, mostly because of a limit (``ulimit -l``); empty when it did not.
    """
    return _call("mlock", buffer, position, length)


def unlock_memory(buffer: mmap.mmap, position: int, length: int) -> str:
    """Takes ``lock_memory`` back."""
    return _call("munlock", buffer, position, length)


def _call(name: str, buffer: mmap.mmap, position: int, length: int) -> str:
    # Imported by who locks memory: few do, and every start would wait for it.
    import ctypes

    library = None if sys.platform == "win32" else ctypes.CDLL(None, use_errno=True)
    function = getattr(library, name, None)
    if function is None:
        return os.strerror(errno.ENOSYS)
    # Holds the map open for as long as the call takes.
    first = ctypes.c_char.from_buffer(buffer, position)
    refused = function(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(length))
    return os.strerror(ctypes.get_errno()) if refused else ""
