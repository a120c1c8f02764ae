"""Files: the only module that opens, maps, syncs, renames or locks one.

Three rules hold for every caller. Each follows from a measurement:

* A mapped file is synced through its descriptor, never through the map: ``mmap.flush`` keeps the interpreter lock for
  as long as the disk takes.
* Blocks are allocated before anything is stored through a map, because a store to a hole on a full disk ends the
  process.
* Every failure is a ``DiskError`` with path, operation and reason; a lack of space or quota is a ``DiskFullError``, a
  lack of descriptors a ``TooManyFilesError``.

Features that only Linux has are replaced elsewhere. Without ``posix_fallocate`` zeros are written; without
``fdatasync`` ``fsync`` is used; without ``fcntl`` the lock is that of ``msvcrt``; a directory that cannot be opened is
not synced; without ``pread`` and ``pwrite`` the descriptor is moved first. Tests can force replacements through
``Files.fallocate`` and ``Files.data_sync``; ``tests/fallbacks`` removes all of these features.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from rucola.errors import DiskError, DiskFullError, StoreLockedError, TooManyFilesError
from rucola.runtime.memory import lock_memory

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    _LOCKS_OF = "msvcrt"
else:
    _LOCKS_OF = "fcntl"

Buffer: TypeAlias = "mmap.mmap | bytearray"
"""Buffers from which kernels read records."""

_ZEROS = bytes(1 << 20)
_MADV_POPULATE_WRITE = 23
_READ_STEP = 256 * 1024
"""This size stays in the processor's cache."""
_PAGE = 4096
_NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_DIRECTORY_MODE = 0o755
_FILE_MODE = 0o644
_PRIVATE_MODE = 0o600
_ERRORS: dict[int, type[DiskError]] = {
    errno.ENOSPC: DiskFullError,
    getattr(errno, "EDQUOT", errno.ENOSPC): DiskFullError,
    errno.EMFILE: TooManyFilesError,
    errno.ENFILE: TooManyFilesError,
}
_locked_here: set[tuple[int, int]] = set()
"""Files of this process that are locked, by device and inode, because a POSIX record lock never conflicts with its own
process.
"""


class Files:
    """The files of the operating system. Tests derive from this class to record or refuse calls, or to force a
    replacement.
    """

    fallocate: Callable[[int, int, int], None] | None = staticmethod(getattr(os, "posix_fallocate", None))  # type: ignore[arg-type]
    populate_write = sys.platform == "linux"
    data_sync: Callable[[int], None] = staticmethod(getattr(os, "fdatasync", os.fsync))

    # -- whole files ---------------------------------------------------------------------------------------------------

    def expand(self, path: str) -> str:
        """``path`` made absolute, a leading ``~`` replaced by the home directory."""
        return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - text in, text out

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory at ``path``."""
        return os.path.exists(path)  # noqa: PTH110

    def size(self, path: str) -> int:
        """Length of the file in bytes."""
        with _disk(path, "stat"):
            return os.stat(path).st_size  # noqa: PTH116

    def length(self, path: str) -> int:
        """Length of the file in bytes, -1 when there is none; as fast as ``exists``."""
        try:
            return os.stat(path).st_size  # noqa: PTH116
        except FileNotFoundError:
            return -1
        except OSError as error:
            raise _disk_error(path, "stat", error) from error

    def modified_ms(self, path: str) -> int:
        """Time of the last write to the file, in milliseconds since the epoch."""
        with _disk(path, "stat"):
            return os.stat(path).st_mtime_ns // 1_000_000  # noqa: PTH116

    def disk_usage(self, path: str) -> tuple[int, int]:
        """Used bytes on the file system that holds ``path``, and bytes that this process may still use there."""
        with _disk(path, "ask for the space"):
            if not hasattr(os, "statvfs"):
                import shutil  # imported here, because a start would wait for it

                usage = shutil.disk_usage(path)
                return usage.used, usage.free
            status = os.statvfs(path)
            return (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_bavail * status.f_frsize

    def list_files(self, path: str) -> list[str]:
        """Names of the plain files in directory ``path``, sorted; none when it does not exist."""
        return self._names(path, directories=False)

    def list_sizes(self, path: str) -> dict[str, int]:
        """Lengths in bytes of the plain files in ``path``, by sorted name. A file that is removed meanwhile is left
        out.
        """
        sizes: dict[str, int] = {}
        for name in self.list_files(path):
            try:
                sizes[name] = self.size(f"{path}/{name}")
            except DiskError as error:
                # In the store of a running broker a segment may expire, or an unneeded one may be removed.
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return sizes

    def list_directories(self, path: str) -> list[str]:
        """Names of the directories in directory ``path``, sorted; none when it does not exist."""
        return self._names(path, directories=True)

    def read_file(self, path: str) -> bytes | None:
        """The whole content, None when there is no such file."""
        try:
            with _disk(path, "read"), open(path, "rb") as file:  # noqa: PTH123
                return file.read()
        except DiskError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def write_file(self, path: str, content: bytes) -> None:
        """Creates or overwrites ``path`` in place and syncs it and its directory. For files whose loss is harmless."""
        with _disk(path, "write"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _BINARY, _FILE_MODE)
            try:
                _write_all(descriptor, content, 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self.sync_directory(os.path.dirname(path))  # noqa: PTH120

    def replace_file(self, path: str, content: bytes | Iterable[bytes], spare: str = "", private: bool = False) -> None:
        """Replaces the file at ``path`` by ``content``: after a crash there is the old content or the new one.

        Args:
            content: may come in pieces, between which other threads run.
            spare: path for the old content; after a crash the old content may be there only. If it is empty, the old
                content is discarded.
            private: whether other users must not be able to read the file.
        """
        temporary = path + ".tmp"
        with _disk(path, "replace"):
            mode = _PRIVATE_MODE if private else _FILE_MODE
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _BINARY, mode)
            try:
                position = 0
                for piece in (content,) if isinstance(content, bytes) else content:
                    _write_all(descriptor, piece, position)
                    position += len(piece)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if spare and os.path.exists(path):  # noqa: PTH110
                os.replace(path, spare)  # noqa: PTH105
            os.replace(temporary, path)  # noqa: PTH105
        self.sync_directory(os.path.dirname(path))  # noqa: PTH120

    def rename(self, path: str, new_path: str) -> None:
        """Renames within one file system; replaces what was at ``new_path``; the caller syncs the directories."""
        with _disk(path, "rename"):
            os.replace(path, new_path)  # noqa: PTH105

    def link(self, path: str, new_path: str) -> bool:
        """Gives a file a second name; returns False, and changes nothing, if the name is taken. The caller syncs the
        directory.
        """
        with _disk(path, "link"):
            try:
                os.link(path, new_path)
            except FileExistsError:
                return False
        return True

    def publish_directory(self, path: str, new_path: str) -> bool:
        """Renames a directory, and syncs the new parent; returns False, and changes nothing, if there is a file or a
        directory that is not empty at ``new_path``.
        """
        with _disk(path, "rename"):
            try:
                os.rename(path, new_path)  # noqa: PTH104
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    return False
                raise
        self.sync_directory(os.path.dirname(new_path))  # noqa: PTH120
        return True

    def sync_file(self, path: str) -> None:
        """Makes the content of a file durable that other code has written."""
        with _disk(path, "sync"):
            descriptor = os.open(path, os.O_RDWR | _BINARY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, path: str) -> None:
        """Removes a file; the caller syncs the directory."""
        with _disk(path, "remove"):
            os.remove(path)  # noqa: PTH107

    def remove_tree(self, path: str) -> None:
        """Removes a directory and everything in it; does nothing if it does not exist. The caller syncs its parent."""
        for name in self.list_directories(path):
            self.remove_tree(f"{path}/{name}")
        for name in self.list_files(path):
            self.remove(f"{path}/{name}")
        if self.exists(path):
            with _disk(path, "remove directory"):
                os.rmdir(path)  # noqa: PTH106

    def make_directory(self, path: str) -> None:
        """Creates ``path`` and its missing parents, each synced into its parent."""
        if os.path.isdir(path):  # noqa: PTH112
            return
        parent = os.path.dirname(path) or "."  # noqa: PTH120
        self.make_directory(parent)
        with _disk(path, "create directory"):
            try:
                os.mkdir(path, _DIRECTORY_MODE)  # noqa: PTH102
            except FileExistsError:
                if not os.path.isdir(path):  # noqa: PTH112
                    raise
        try:
            self.sync_directory(parent)
        except DiskError:
            with suppress(OSError):  # otherwise the next call would assume that it was synced
                os.rmdir(path)  # noqa: PTH106
            raise

    def sync_parent(self, path: str) -> None:
        """Syncs the directory ``path`` into its parent, because a killed process may have created it in memory only."""
        try:
            self.sync_directory(os.path.dirname(path))  # noqa: PTH120
        except DiskError as error:
            # A user who may not open the parent did not create the directory.
            if not isinstance(error.__cause__, PermissionError):
                raise

    def sync_directory(self, path: str) -> None:
        """Makes creations, renames and removals in ``path`` durable, where directories can be opened."""
        with _disk(path, "sync directory"):
            try:
                descriptor = os.open(path or ".", os.O_RDONLY)
            except (PermissionError, IsADirectoryError):
                if sys.platform == "win32":
                    return
                raise
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    # -- parts of files ------------------------------------------------------------------------------------------------

    def read_at(self, path: str, position: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``position``; fewer at the end of the file."""
        with _disk(path, "read"), open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return _read_at(file.fileno(), length, position)

    def write_at(self, path: str, position: int, content: bytes) -> None:
        """Writes ``content`` at ``position`` of an existing file, or of a new one, and syncs the data."""
        with _disk(path, "write"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, _FILE_MODE)
            try:
                _write_all(descriptor, content, position)
                self.data_sync(descriptor)
            finally:
                os.close(descriptor)

    def create_segment(self, path: str, temporary: str, size: int, allocated: int | None = None) -> None:
        """Creates a zero-filled file of ``size`` bytes with allocated blocks, and syncs it and its directory.

        Args:
            path: path of the new file; it appears there only when it is complete.
            temporary: path at which it is built, in another directory of the same file system, so that a partial file
                is never mistaken for a segment.
            size: length in bytes.
            allocated: number of bytes to allocate from the start; the owner allocates the rest step by step before
                storing there (``MappedSegment.allocate``). None allocates all.

        Raises:
            DiskFullError: there is not enough space; nothing is left behind.
        """
        try:
            with _disk(path, "allocate"):
                descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _BINARY, _FILE_MODE)
                try:
                    self.allocate(descriptor, 0, size if allocated is None else min(size, allocated))
                    os.ftruncate(descriptor, size)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                os.replace(temporary, path)  # noqa: PTH105
        except DiskError:
            with suppress(OSError):  # the first failure is reported; the next attempt overwrites the file
                os.remove(temporary)  # noqa: PTH107
            raise
        self.sync_directory(os.path.dirname(path))  # noqa: PTH120

    def open_segment(self, path: str, size: int | None = None, writable: bool = True) -> MappedSegment:
        """Maps an existing file.

        Args:
            path: path of the file.
            size: bytes to map; None maps the whole file. The caller has compared lengths before.
            writable: False maps it for reading only.
        """
        with _disk(path, "map"):
            descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | _BINARY | _NO_FOLLOW)
            try:
                length = size if size is not None else os.fstat(descriptor).st_size
                return MappedSegment(self, path, descriptor, length, writable)
            except BaseException:
                os.close(descriptor)
                raise

    def allocate(self, descriptor: int, position: int, length: int) -> None:
        """Allocates blocks for ``length`` bytes from ``position``; raises the operating system's error.

        Where ``posix_fallocate`` does not exist or the file system does not support it, zeros are written. The range
        must therefore hold no data.
        """
        if length <= 0:
            return
        if self.fallocate is not None:
            try:
                self.fallocate(descriptor, position, length)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                    raise
            else:
                return
        for start in range(position, position + length, len(_ZEROS)):
            _write_all(descriptor, _ZEROS[: min(len(_ZEROS), position + length - start)], start)

    def foreign_entry(self, path: str) -> str:
        """Describes how other users could put data into directory ``path``: within two levels, a directory of another
        owner, one that others may write to, or a link. Empty if there is none, or no such directory.
        """
        if not hasattr(os, "geteuid") or not os.path.isdir(path):  # noqa: PTH112
            return ""
        with _disk(path, "list"):
            with os.scandir(path) as entries:
                below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            for directory in (path, *below):
                status = os.stat(directory)  # noqa: PTH116
                if status.st_uid != os.geteuid():
                    return f"{directory} belongs to another user"
                if status.st_mode & 0o022:
                    return f"{directory} can be written by others (mode {status.st_mode & 0o777:o})"
                with os.scandir(directory) as entries:
                    links = [entry.path for entry in entries if entry.is_symlink()]
                if links:
                    return f"{links[0]} is a link"
        return ""

    def lock_directory(self, path: str) -> DirectoryLock:
        """Locks the store: an exclusive record lock on byte 0 of ``path``/lock, compatible with RocketMQ.

        The content ``lock`` is written after the lock is held. No other file was touched before.

        Raises:
            StoreLockedError: another process, or another store in this one, holds it.
        """
        name = f"{path}/lock"
        if self._identity(name) in _locked_here:
            # The file is not even opened: closing any descriptor of it would drop this process's record lock.
            raise StoreLockedError(path)
        with _disk(name, "lock"):
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | _BINARY | _NO_FOLLOW, _FILE_MODE)
            identity = self._identity(name)
            try:
                _lock_first_byte(descriptor)
            except OSError as error:
                os.close(descriptor)
                if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
                    raise StoreLockedError(path) from error
                raise
            try:
                if _read_at(descriptor, 5, 0) != b"lock":
                    _write_all(descriptor, b"lock", 0)
                    os.fsync(descriptor)
            except OSError:
                os.close(descriptor)  # and this process would lose the lock with it
                raise
            _locked_here.add(identity)
        return DirectoryLock(path, descriptor, identity)

    def lock_held(self, path: str) -> bool:
        """Whether a process, possibly this one, holds the lock of the store in ``path``. Changes nothing."""
        name = f"{path}/lock"
        if self._identity(name) in _locked_here:
            # As above, the file is not even opened.
            return True
        try:
            with _disk(name, "look at the lock"):
                descriptor = os.open(name, os.O_RDONLY | _BINARY | _NO_FOLLOW)
                try:
                    return _first_byte_locked(descriptor)
                finally:
                    os.close(descriptor)
        except DiskError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise

    def _identity(self, path: str) -> tuple[int, int]:
        """Device and inode of ``path``; (0, 0) when it does not exist."""
        try:
            status = os.stat(path)  # noqa: PTH116
        except FileNotFoundError:
            return 0, 0
        return status.st_dev, status.st_ino

    def _names(self, path: str, directories: bool) -> list[str]:
        with _disk(path, "list"):
            try:
                with os.scandir(path) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir() is directories)
            except FileNotFoundError:
                return []


class MappedSegment:
    """One mapped file. ``buffer`` and ``view`` give access to the file, on the thread that maps, unmaps and closes it.

    Any thread may call ``sync``. It syncs the opened file, even if its path now leads to another one. If a descriptor
    is closed during a sync, it stays open until the sync ends.

    Attributes:
        buffer: the map itself, for kernels.
        view: the map as a memoryview, for slices that outlive the call.
    """

    def __init__(self, files: Files, path: str, descriptor: int, size: int, writable: bool) -> None:
        self.path = path
        self.size = size
        self._access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self.buffer = mmap.mmap(descriptor, size, access=self._access)
        self.view = memoryview(self.buffer)
        self._files = files
        self._descriptor = descriptor
        self._guard = threading.Lock()
        self._mapped = True
        self._uses = 0
        self._closed = False

    def map(self) -> bool:
        """Maps the file again after ``unmap``; returns False if it was closed meanwhile.

        Raises:
            DiskError: it cannot be mapped; its state is unchanged.
        """
        with self._guard:
            if self._closed:
                return False
            with _disk(self.path, "map"):
                self.buffer = mmap.mmap(self._descriptor, self.size, access=self._access)
            self.view = memoryview(self.buffer)
            self._mapped = True
        return True

    def unmap(self) -> None:
        """Unmaps the file without closing it. Existing slices keep the memory valid."""
        with self._guard:
            self._mapped = False
        self._release()

    def close_unmapped(self) -> bool:
        """Closes the file unless it is mapped; returns whether it is closed."""
        with self._guard:
            if not self._mapped:
                self._close()
            return self._closed

    def _release(self) -> None:
        self.view.release()
        with suppress(BufferError):  # slices exist; the garbage collector unmaps it after them
            self.buffer.close()

    def _close(self) -> None:
        """Closes the descriptor. The caller holds the guard."""
        self._closed = True
        if not self._uses and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def allocate(self, position: int, length: int) -> None:
        """Allocates blocks for a part of the file that holds no data yet; see ``Files.allocate``."""
        with _disk(self.path, "allocate"):
            self._files.allocate(self._descriptor, position, length)

    def populate(self, position: int, length: int) -> None:
        """Triggers the page faults of coming stores to ``length`` bytes from ``position`` at once (Linux 5.14 or
        newer).

        The first store to a page of a fresh file costs a fault of several microseconds. Batched, a fault costs a tenth.
        The content does not change. ``position`` is a multiple of the page size.
        """
        if self._files.populate_write:
            try:
                self.buffer.madvise(_MADV_POPULATE_WRITE, position, min(length, self.size - position))
            except (AttributeError, OSError):
                # Unknown to this system, or refused: each store then takes its own fault.
                self._files.populate_write = False

    def expect_scattered(self) -> None:
        """Announces random access: a fault loads only its own page.

        Otherwise the system reads ahead as far as the disk's setting says, which may be several megabytes. A store with
        very many queues would pay that at the first access to each.
        """
        with suppress(AttributeError, OSError):
            self.buffer.madvise(mmap.MADV_RANDOM)

    def read_ahead(self, ahead: bool) -> None:
        """Sets whether a fault, or a read by system call, also loads the bytes that follow."""
        # only advice; another thread may be unmapping the file at this moment
        with suppress(AttributeError, OSError, ValueError):
            self.buffer.madvise(mmap.MADV_NORMAL if ahead else mmap.MADV_RANDOM)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_NORMAL if ahead else os.POSIX_FADV_RANDOM)

    def write(self, position: int, content: bytes | memoryview) -> None:
        """Writes at ``position`` by a system call. The map shows the bytes as well. Other threads run meanwhile."""
        with _disk(self.path, "write"):
            _write_all(self._descriptor, content, position)

    def lock(self, position: int, length: int) -> str:
        """Locks a part in memory until the map is closed; returns the reason if the system refused, otherwise an empty
        text.
        """
        return lock_memory(self.buffer, position, length)

    def will_need(self) -> None:
        """Tells the system that the file will be needed soon."""
        with suppress(AttributeError, OSError):  # advice
            self.buffer.madvise(mmap.MADV_WILLNEED)

    def rewrite(self, position: int, content: bytes | bytearray) -> None:
        """Stores bytes again that may already be there, so that the next sync writes them, even after a failed one."""
        self.view[position : position + len(content)] = content

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """The ranges from ``position`` on that may hold nonzero bytes, as (start, end).

        Holes, and allocated blocks that were never written, are left out if the file system reports them.
        """
        ranges: list[tuple[int, int]] = []
        at = position
        while at < self.size:
            try:
                start = os.lseek(self._descriptor, at, os.SEEK_DATA)
                at = os.lseek(self._descriptor, start, os.SEEK_HOLE)
            except (AttributeError, OSError) as error:
                if isinstance(error, OSError) and error.errno == errno.ENXIO:
                    return ranges
                return [*ranges, (at, self.size)]
            ranges.append((start, min(at, self.size)))
        return ranges

    def read(self, position: int, length: int) -> bytes:
        """A copy of ``length`` bytes. Waits for the disk while other threads run.

        Raises:
            DiskError: the disk cannot read them; an access through the map would end the process.
        """
        if not self._begin_use():
            raise DiskError(self.path, "read", "the file is closed")
        content = b""
        try:
            while len(content) < length:
                more = _read_at(self._descriptor, length - len(content), position + len(content))
                if not more:
                    raise OSError(errno.EIO, f"the file ends at {position + len(content)}")
                content = content + more if content else more
        except OSError as error:
            reason = f"{error.strerror or error}, position {position + len(content)}"
            raise DiskError(self.path, "read", reason, self.readable_end(position, position + length)) from error
        finally:
            self._end_use()
        return content

    def readable_end(self, position: int, end: int) -> int:
        """Position of the first unreadable byte from ``position`` on; ``end`` if all bytes can be read.

        The readable bytes are in memory afterwards, and may be accessed through the map.
        """
        buffer = memoryview(bytearray(min(_READ_STEP, max(end - position, 0))))
        while position < end:
            try:
                count = _read_into(self._descriptor, buffer[: end - position], position)
            except OSError:
                if len(buffer) <= _PAGE:
                    return position
                buffer = buffer[: min(_PAGE, len(buffer) - 1)]
                continue
            if count == 0:
                return position
            position += count
        return end

    def replace_unreadable(self) -> list[tuple[int, int]]:
        """Reads the whole file. If the disk cannot read parts of it, a copy in memory takes the place of the map, and
        these parts are zero in it. Only for files that are mapped for reading.

        Returns:
            The unreadable parts as (start, end), in bytes.

        Raises:
            DiskError: a part that could be read a moment ago cannot be read now.
        """
        length = min(os.fstat(self._descriptor).st_size, self.size)
        ranges = [(start, min(end, length)) for start, end in self.data_ranges(0) if start < length]
        unreadable: list[tuple[int, int]] = []
        for start, end in ranges:
            at = start
            while (stopped := self.readable_end(at, end)) < end:
                at = min(stopped - stopped % _PAGE + _PAGE, end)
                unreadable.append((stopped, at))
        if length < self.size:
            unreadable.append((length, self.size))
        if unreadable:
            self._replace_map(ranges, unreadable)
        return unreadable

    def _replace_map(self, ranges: list[tuple[int, int]], unreadable: list[tuple[int, int]]) -> None:
        copy = mmap.mmap(-1, self.size)
        bounds = [0, *(edge for part in unreadable for edge in part), self.size]
        readable = list(zip(bounds[::2], bounds[1::2], strict=True))
        for start, end in ranges:
            for first, last in readable:
                for at in range(max(start, first), min(end, last), _READ_STEP):
                    part = self.read(at, min(at + _READ_STEP, end, last) - at)
                    copy[at : at + len(part)] = part
        self._release()
        self.buffer, self.view = copy, memoryview(copy).toreadonly()

    def read_resident(self, position: int, into: memoryview) -> bool:
        """Copies bytes that are in memory; returns False if some are not, or if the system cannot tell."""
        if _NO_WAIT is None:
            return False
        try:
            return os.preadv(self._descriptor, [into], position, _NO_WAIT) == len(into)
        except OSError:
            # Not in memory, not reported by this file system, or unreadable: ``read`` finds out.
            return False

    def is_resident(self, position: int, length: int) -> bool:
        """Whether the bytes are in memory. Also True where the system cannot tell, because waiting would be useless."""
        if _NO_WAIT is None:
            return True
        length = min(length, self.size - position)
        try:
            return os.preadv(self._descriptor, [bytearray(length)], position, _NO_WAIT) == length
        except BlockingIOError:
            return False
        except OSError as error:
            return error.errno != errno.EIO

    def sync(self) -> None:
        """Returns when everything stored so far is on the disk. Other threads run meanwhile.

        Does nothing after ``close``: the owner of an unsynced file that closes it no longer needs it.

        Raises:
            DiskError: it may not be on the disk, and a later success proves nothing about it (fsync reports an error
                once).
        """
        if not self._begin_use():
            return
        try:
            self._files.data_sync(self._descriptor)
        except OSError as error:
            raise _disk_error(self.path, "sync", error) from error
        finally:
            self._end_use()

    def _begin_use(self) -> bool:
        """Keeps the descriptor open until ``_end_use``: after a close the system may give its number to another file.

        Returns:
            False if the file is closed.
        """
        with self._guard:
            self._uses += not self._closed
            return not self._closed

    def _end_use(self) -> None:
        with self._guard:
            self._uses -= 1
            if self._closed:
                self._close()

    def close(self) -> None:
        """Closes the file and unmaps it. The map stays until the last slice is released."""
        with self._guard:
            closed, mapped = self._closed, self._mapped
            self._mapped = False
            self._close()
        if mapped and not closed:
            self._release()


class DirectoryLock:
    """The held lock of a store directory. It ends with the process, or with ``release``."""

    def __init__(self, path: str, descriptor: int, identity: tuple[int, int]) -> None:
        self.path = path
        self._descriptor = descriptor
        self._identity = identity

    def release(self) -> None:
        """Unlocks the directory; further calls do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _locked_here.discard(self._identity)


_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


def _lock_first_byte(descriptor: int) -> None:
    if _LOCKS_OF == "msvcrt":
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)


def _first_byte_locked(descriptor: int) -> bool:
    """Whether another process holds the lock. It is queried, not tried, so that no other process is refused
    meanwhile.
    """
    if _LOCKS_OF == "msvcrt":
        try:
            os.read(descriptor, 1)
        except PermissionError:
            return True
        return False
    # struct flock, with the system's types in the system's order; only the type, its first field, is read back.
    order = "hhqqi" if sys.platform == "linux" else "qqihh"
    values = (fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0) if order[0] == "h" else (0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    answer = struct.unpack(order, fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(order, *values)))
    return bool(answer[0 if order[0] == "h" else 3] != fcntl.F_UNLCK)


_moving = threading.Lock()
"""Guards the position of a descriptor where calls cannot name one (Windows)."""


def _read_at(descriptor: int, length: int, position: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, position)
    with _moving:
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.read(descriptor, length)


def _read_into(descriptor: int, into: memoryview, position: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [into], position)
    content = _read_at(descriptor, len(into), position)
    into[: len(content)] = content
    return len(content)


def _write_at(descriptor: int, content: memoryview, position: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, content, position)
    with _moving:
        os.lseek(descriptor, position, os.SEEK_SET)
        return os.write(descriptor, content)


def _write_all(descriptor: int, content: bytes | memoryview, position: int) -> None:
    """Writes the whole content; repeats after short writes."""
    rest = memoryview(content)
    while rest:
        written = _write_at(descriptor, rest, position)
        position += written
        rest = rest[written:]


def _disk_error(path: str, operation: str, error: OSError) -> DiskError:
    kind = _ERRORS.get(error.errno or 0, DiskError)
    return kind(path, operation, error.strerror or str(error))


@contextmanager
def _disk(path: str, operation: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _disk_error(path, operation, error) from error
