"""System calls on descriptors, and the conversion of their errors to ``DiskError``."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable

from rucola.errors import DiskError, DiskFullError, NoMemoryError, TooManyFilesError

_ERRORS: dict[int, type[DiskError]] = {
    errno.ENOSPC: DiskFullError,
    getattr(errno, "EDQUOT", errno.ENOSPC): DiskFullError,
    errno.EMFILE: TooManyFilesError,
    errno.ENFILE: TooManyFilesError,
}
_NOTHING_CHANGED = frozenset({"map", "allocate", "create directory", "stat", "list"})
"""Operations that change nothing if there is no memory for them; after a write or sync, the content is unknown."""
_ZEROS = bytes(1 << 20)
_moving = threading.Lock()
"""Guards the position of a descriptor on systems whose calls cannot name a position (Windows)."""


def read_at(descriptor: int, length: int, position: int) -> bytes:
    """Reads up to ``length`` bytes."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, position)
    with _moving:
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.read(descriptor, length)


def read_into(descriptor: int, into: memoryview, position: int) -> int:
    """Reads into ``into``; returns the number of bytes read, which may be smaller than the length of ``into``."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [into], position)
    content = read_at(descriptor, len(into), position)
    into[: len(content)] = content
    return len(content)


def write_at(descriptor: int, content: memoryview, position: int) -> int:
    """Writes ``content``; returns the number of bytes written, which may be smaller than the length of ``content``."""
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, content, position)
    with _moving:
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.write(descriptor, content)


def write_all(descriptor: int, content: bytes | memoryview, position: int) -> None:
    """Writes the whole content; repeats the call after short writes."""
    rest = memoryview(content)
    while rest:
        written = write_at(descriptor, rest, position)
        position += written
        rest = rest[written:]


def disk_error(path: str, operation: str, error: OSError) -> DiskError:
    """Returns this package's error for an error of the operating system."""
    kind = _ERRORS.get(error.errno or 0, DiskError)
    if error.errno == errno.ENOMEM and operation in _NOTHING_CHANGED:
        kind = NoMemoryError
    return kind(path, operation, error.strerror or str(error))


class DiskCall:
    """Context manager that turns an ``OSError`` into a ``DiskError``.

    It is a class, because a broker uses it tens of thousands of times when it starts or recovers, and a generator takes
    three times as long.
    """

    __slots__ = ("_operation", "_path")

    def __init__(self, path: str, operation: str) -> None:
        self._path = path
        self._operation = operation

    def __enter__(self) -> None:
        """Does nothing; ``__exit__`` does the work."""

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError):
            raise disk_error(self._path, self._operation, error) from error


class DescriptorCalls:
    """Calls on descriptors that some systems lack, or whose failure a test wants to see.

    Attributes:
        fallocate: allocates blocks; None where the system cannot.
        populate_write: whether the system can trigger the page faults of later writes; becomes False when it refuses.
        data_sync: syncs the data of a file.
    """

    fallocate: Callable[[int, int, int], None] | None = staticmethod(getattr(os, "posix_fallocate", None))  # type: ignore[arg-type]
    populate_write = sys.platform == "linux"
    data_sync: Callable[[int], None] = staticmethod(getattr(os, "fdatasync", os.fsync))

    def allocate(self, descriptor: int, position: int, length: int) -> None:
        """Allocates blocks for ``length`` bytes from ``position``; raises the operating system's error.

        Where ``posix_fallocate`` does not exist or the file system does not support it, zeros are written. The range
        must therefore hold no data.
        """
        if length > 0 and not self.fill_holes(descriptor, position, length):
            for start in range(position, position + length, len(_ZEROS)):
                write_all(descriptor, _ZEROS[: min(len(_ZEROS), position + length - start)], start)

    def fill_holes(self, descriptor: int, position: int, length: int) -> bool:
        """Allocates blocks where ``length`` bytes from ``position`` have none, and keeps the data of the others.
        Returns False, and changes nothing, where ``posix_fallocate`` does not exist or the file system does not
        support it; raises the operating system's error.
        """
        if self.fallocate is None:
            return False
        try:
            self.fallocate(descriptor, position, length)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                return False
            raise
        return True
