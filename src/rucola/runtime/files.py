"""Access to files: only this module and ``mapped_segment`` open, map, sync, rename or lock files.

Three rules hold for every caller. Each was derived from a measurement:

* A mapped file is synced through its descriptor, never through the map: ``mmap.flush`` keeps the interpreter lock for
  as long as the disk takes.
* Blocks are allocated before anything is stored through a map, because a write to a hole in the file on a full disk
  kills the process.
* Every failure is a ``DiskError`` with path, operation and reason; a lack of space or quota is a ``DiskFullError``, a
  lack of descriptors a ``TooManyFilesError``.

Functions that a system lacks are replaced. Without ``posix_fallocate``, zeros are written; without ``fdatasync``,
``fsync`` is used; without ``fcntl``, the store is locked with ``msvcrt``; without ``pread`` and ``pwrite``, the
position of the descriptor is set first. Windows cannot open directories, so they are not synced there. Tests can
pretend that functions are missing, through ``Files.fallocate`` and ``Files.data_sync``; ``tests/fallbacks`` removes all
of these functions.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

from rucola.errors import DiskError, StoreLockedError
from rucola.runtime.disk_calls import DiskCall, disk_error, read_at, write_all
from rucola.runtime.mapped_segment import MappedSegment

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    _LOCKS_OF = "msvcrt"
else:
    _LOCKS_OF = "fcntl"

_ZEROS = bytes(1 << 20)
_DIRECTORY_MODE = 0o755
_FILE_MODE = 0o644
_PRIVATE_MODE = 0o600
_locked_here: set[tuple[int, int]] = set()
"""Device and inode of each file that this process has locked; needed because a POSIX record lock does not keep the same
process from locking the file again.
"""


class Files:
    """Access to the files of the operating system. Tests derive classes that record calls, let calls fail, or pretend
    that the system lacks a feature.
    """

    fallocate: Callable[[int, int, int], None] | None = staticmethod(getattr(os, "posix_fallocate", None))  # type: ignore[arg-type]
    populate_write = sys.platform == "linux"
    data_sync: Callable[[int], None] = staticmethod(getattr(os, "fdatasync", os.fsync))

    # -- whole files ---------------------------------------------------------------------------------------------------

    def expand(self, path: str) -> str:
        """Returns ``path`` as an absolute path; a leading ``~`` is replaced by the home directory."""
        return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - text in, text out

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory at ``path``."""
        return os.path.exists(path)  # noqa: PTH110

    def size(self, path: str) -> int:
        """Returns the length of the file in bytes."""
        with DiskCall(path, "stat"):
            return os.stat(path).st_size  # noqa: PTH116

    def length(self, path: str) -> int:
        """Returns the length of the file in bytes, -1 when there is none; as fast as ``exists``."""
        try:
            return os.stat(path).st_size  # noqa: PTH116
        except FileNotFoundError:
            return -1
        except OSError as error:
            raise disk_error(path, "stat", error) from error

    def modified_ms(self, path: str) -> int:
        """Returns the time of the last write to the file, in milliseconds since the epoch."""
        with DiskCall(path, "stat"):
            return os.stat(path).st_mtime_ns // 1_000_000  # noqa: PTH116

    def disk_usage(self, path: str) -> tuple[int, int]:
        """Returns how many bytes are used on the file system that holds ``path``, and how many this process may still
        use there.
        """
        with DiskCall(path, "ask for the space"):
            if not hasattr(os, "statvfs"):
                import shutil  # imported here, because the import would slow down every start

                usage = shutil.disk_usage(path)
                return usage.used, usage.free
            status = os.statvfs(path)
            return (status.f_blocks - status.f_bfree) * status.f_frsize, status.f_bavail * status.f_frsize

    def list_files(self, path: str) -> list[str]:
        """Returns the names of the regular files in directory ``path``, sorted; empty when it does not exist."""
        return self._names(path, directories=False)

    def list_sizes(self, path: str) -> dict[str, int]:
        """Maps the names of the regular files in ``path``, sorted, to their lengths in bytes. A file that is removed
        during the call is left out.
        """
        sizes: dict[str, int] = {}
        for name in self.list_files(path):
            try:
                sizes[name] = self.size(f"{path}/{name}")
            except DiskError as error:
                # A file may have vanished: in the store of a running broker, segments expire and unneeded ones are
                # removed.
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return sizes

    def list_directories(self, path: str) -> list[str]:
        """Returns the names of the directories in directory ``path``, sorted; empty when it does not exist."""
        return self._names(path, directories=True)

    def read_file(self, path: str) -> bytes | None:
        """Returns the whole content of a file, None when there is no such file."""
        try:
            with DiskCall(path, "read"), open(path, "rb") as file:  # noqa: PTH123
                return file.read()
        except DiskError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def write_file(self, path: str, content: bytes) -> None:
        """Creates or overwrites ``path`` in place and syncs it and its directory. Only for files whose loss is
        harmless.
        """
        with DiskCall(path, "write"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _BINARY, _FILE_MODE)
            try:
                write_all(descriptor, content, 0)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self.sync_directory(os.path.dirname(path))  # noqa: PTH120

    def replace_file(self, path: str, content: bytes | Iterable[bytes], spare: str = "", private: bool = False) -> None:
        """Replaces the file at ``path`` by ``content``: after a crash the file has either the old content or the new.
        With ``spare``, a crash may also leave no file at ``path``; the old content is then at ``spare``.

        Args:
            content: the new content, whole or in pieces; other threads may run between two pieces.
            spare: path to which the file with the old content is moved; if empty, the old content is discarded.
            private: whether only the owner may read the file.
        """
        temporary = path + ".tmp"
        with DiskCall(path, "replace"):
            mode = _PRIVATE_MODE if private else _FILE_MODE
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _BINARY, mode)
            try:
                position = 0
                for piece in (content,) if isinstance(content, bytes) else content:
                    write_all(descriptor, piece, position)
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
        with DiskCall(path, "rename"):
            os.replace(path, new_path)  # noqa: PTH105

    def link(self, path: str, new_path: str) -> bool:
        """Gives a file a second name; returns False, and changes nothing, if the name is taken. The caller syncs the
        directory.
        """
        with DiskCall(path, "link"):
            try:
                os.link(path, new_path)
            except FileExistsError:
                return False
        return True

    def publish_directory(self, path: str, new_path: str) -> bool:
        """Renames a directory, and syncs the new parent; returns False, and changes nothing, if a file or a non-empty
        directory is at ``new_path``.
        """
        with DiskCall(path, "rename"):
            try:
                os.rename(path, new_path)  # noqa: PTH104
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    return False
                raise
        self.sync_directory(os.path.dirname(new_path))  # noqa: PTH120
        return True

    def sync_file(self, path: str) -> None:
        """Makes the content of a file durable after other code has written it."""
        with DiskCall(path, "sync"):
            descriptor = os.open(path, os.O_RDWR | _BINARY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, path: str) -> None:
        """Removes a file; the caller syncs the directory."""
        with DiskCall(path, "remove"):
            os.remove(path)  # noqa: PTH107

    def remove_tree(self, path: str) -> None:
        """Removes a directory and everything in it; does nothing if it does not exist. The caller syncs its parent."""
        for name in self.list_directories(path):
            self.remove_tree(f"{path}/{name}")
        for name in self.list_files(path):
            self.remove(f"{path}/{name}")
        if self.exists(path):
            with DiskCall(path, "remove directory"):
                os.rmdir(path)  # noqa: PTH106

    def make_directory(self, path: str) -> None:
        """Creates ``path`` and its missing parents, and syncs the parent of each."""
        if os.path.isdir(path):  # noqa: PTH112
            return
        parent = os.path.dirname(path) or "."  # noqa: PTH120
        self.make_directory(parent)
        with DiskCall(path, "create directory"):
            try:
                os.mkdir(path, _DIRECTORY_MODE)  # noqa: PTH102
            except FileExistsError:
                if not os.path.isdir(path):  # noqa: PTH112
                    raise
        try:
            self.sync_directory(parent)
        except DiskError:
            with suppress(OSError):  # a later call would assume that an existing directory is synced
                os.rmdir(path)  # noqa: PTH106
            raise

    def sync_parent(self, path: str) -> None:
        """Syncs the parent of the directory ``path``, because the process that created ``path`` may have been killed
        before it synced the parent.
        """
        try:
            self.sync_directory(os.path.dirname(path))  # noqa: PTH120
        except DiskError as error:
            # Without permission to open the parent, this user did not create ``path``, so there is nothing to sync.
            if not isinstance(error.__cause__, PermissionError):
                raise

    def sync_directory(self, path: str) -> None:
        """Makes creations, renames and removals in ``path`` durable, where directories can be opened."""
        with DiskCall(path, "sync directory"):
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
        """Returns up to ``length`` bytes from ``position``; fewer at the end of the file."""
        with DiskCall(path, "read"), open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return read_at(file.fileno(), length, position)

    def write_at(self, path: str, position: int, content: bytes) -> None:
        """Writes ``content`` at ``position`` of an existing file, or of a new one, and syncs the data."""
        with DiskCall(path, "write"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, _FILE_MODE)
            try:
                write_all(descriptor, content, position)
                self.data_sync(descriptor)
            finally:
                os.close(descriptor)

    def create_segment(self, path: str, temporary: str, size: int, allocated: int | None = None) -> None:
        """Creates a file of ``size`` zero bytes, allocates its blocks, and syncs the file and its directory.

        Args:
            path: path of the new file; it appears there only when it is complete.
            temporary: path at which the file is built, in a different directory of the same file system, so that a
                partial file is never mistaken for a segment.
            size: length in bytes.
            allocated: number of bytes to allocate from position 0; the owner allocates the rest step by step, before it
                writes there (``MappedSegment.allocate``). None allocates all.

        Raises:
            DiskFullError: there is not enough space; nothing is left behind.
        """
        try:
            with DiskCall(path, "allocate"):
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
            size: number of bytes to map; None maps the whole file. The caller must have checked that the file is long
                enough.
            writable: False maps the file for reading only.
        """
        with DiskCall(path, "map"):
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
            write_all(descriptor, _ZEROS[: min(len(_ZEROS), position + length - start)], start)

    def foreign_entry(self, path: str) -> str:
        """Describes how other users could put data into directory ``path``: this directory, or one in it, belongs to
        another user, is writable by others, or holds a symbolic link. Empty if there is no such problem, or no such
        directory.
        """
        if not hasattr(os, "geteuid") or not os.path.isdir(path):  # noqa: PTH112
            return ""
        with DiskCall(path, "list"):
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
        """Locks the store: an exclusive record lock on byte 0 of the file ``path``/lock, compatible with RocketMQ.

        Once the lock is held, the word ``lock`` is written to this file. Callers change no other file of the store
        before they hold the lock.

        Raises:
            StoreLockedError: another process, or another store in this process, holds the lock.
        """
        name = f"{path}/lock"
        if self._identity(name) in _locked_here:
            # The file is not even opened: closing any descriptor of it would drop this process's record lock.
            raise StoreLockedError(path)
        with DiskCall(name, "lock"):
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
                if read_at(descriptor, 5, 0) != b"lock":
                    write_all(descriptor, b"lock", 0)
                    os.fsync(descriptor)
            except OSError:
                os.close(descriptor)  # this also releases the lock
                raise
            _locked_here.add(identity)
        return DirectoryLock(path, descriptor, identity)

    def lock_held(self, path: str) -> bool:
        """Whether a process, possibly this one, holds the lock of the store in ``path``. Changes nothing."""
        name = f"{path}/lock"
        if self._identity(name) in _locked_here:
            # As in ``lock_directory``, a file that this process has locked is not even opened.
            return True
        try:
            with DiskCall(name, "look at the lock"):
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
        """Returns device and inode of ``path``; (0, 0) when it does not exist."""
        try:
            status = os.stat(path)  # noqa: PTH116
        except FileNotFoundError:
            return 0, 0
        return status.st_dev, status.st_ino

    def _names(self, path: str, directories: bool) -> list[str]:
        with DiskCall(path, "list"):
            try:
                with os.scandir(path) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir() is directories)
            except FileNotFoundError:
                return []


class DirectoryLock:
    """The held lock of a store directory. The lock ends with the process, or with ``release``."""

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
    """Whether another process holds the lock. The lock is only queried: acquiring it for a test could make another
    process fail.
    """
    if _LOCKS_OF == "msvcrt":
        try:
            os.read(descriptor, 1)
        except PermissionError:
            return True
        return False
    # struct flock, with the system's C types and the system's order of fields; only l_type of the answer is used.
    order = "hhqqi" if sys.platform == "linux" else "qqihh"
    values = (fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0) if order[0] == "h" else (0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    answer = struct.unpack(order, fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(order, *values)))
    return bool(answer[0 if order[0] == "h" else 3] != fcntl.F_UNLCK)
