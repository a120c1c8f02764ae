"""Shows whether reads come from the page cache or from the disk: drops cached pages, and reads the system's counters.

Linux only. A page that a process has mapped and touched cannot be dropped, so a file must be unmapped before ``drop``.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Iterable
from pathlib import Path

PAGE = mmap.PAGESIZE


def sync(paths: Iterable[Path]) -> None:
    """Syncs the files, because pages that are not on the disk cannot be dropped."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def drop(paths: Iterable[Path]) -> None:
    """Drops the pages of these files from the page cache. The files must have been synced before."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def files_below(directory: Path) -> list[Path]:
    """All plain files below ``directory``."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def resident_pages(paths: Iterable[Path]) -> int:
    """Returns the number of pages of the files that are in memory now (``mincore``)."""
    return sum(_resident(path) for path in paths)


def _resident(path: Path) -> int:
    size = path.stat().st_size
    if size == 0:
        return 0
    # The map is writable, because the system reports the pages in memory only to a process that may write the file.
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        flags = (ctypes.c_ubyte * -(-size // PAGE))()
        first = ctypes.c_char.from_buffer(mapped)
        refused = _library().mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), flags)
        del first
    if refused:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(path))
    return bytes(flags).translate(_LOWEST_BIT).count(1)


_LOWEST_BIT = bytes(value & 1 for value in range(256))


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def disk_bytes_read() -> int:
    """Returns the number of bytes that this process has read from the disk so far."""
    return _counter("read_bytes")


def disk_bytes_dirtied() -> int:
    """Returns the number of bytes in pages that this process has made dirty so far, by calls or through maps."""
    return _counter("write_bytes")


def _counter(wanted: str) -> int:
    for line in Path("/proc/self/io").read_text().splitlines():
        name, _, value = line.partition(": ")
        if name == wanted:
            return int(value)
    raise OSError(f"/proc/self/io does not show {wanted}")


def page_faults() -> int:
    """Returns the number of page faults of this process so far, including those that read from the disk."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt
