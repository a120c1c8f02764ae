"""System calls on descriptors, and the conversion of their errors to ``DiskError``."""

from __future__ import annotations

import errno
import os
import threading

from rucola.errors import DiskError, DiskFullError, NoMemoryError, TooManyFilesError

_ERRORS: dict[int, type[DiskError]] = {
    errno.ENOSPC: DiskFullError,
    getattr(errno, "EDQUOT", errno.ENOSPC): DiskFullError,
    errno.EMFILE: TooManyFilesError,
    errno.ENFILE: TooManyFilesError,
}
_NOTHING_CHANGED = frozenset({"map", "allocate", "create directory", "stat", "list"})
"""Operations that change nothing if there is no memory for them; after a write or sync, the content is unknown."""
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
