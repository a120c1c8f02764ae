"""Access to files: only this module and ``file_map`` open, map, sync, rename or lock files.

Three rules hold for every caller. Each was derived from a measurement:

* A mapped file is synced through its descriptor, never through the map: ``mmap.flush`` keeps the interpreter lock for
  as long as the disk takes.
* Blocks are allocated before anything is stored through a map, because a write to a hole in the file on a full disk
  kills the process.
* Every failure is a ``DiskError`` with path, operation and reason; a lack of space or quota is a ``DiskFullError``, a
  lack of descriptors a ``TooManyFilesError``.

A store's directories are held (``hold``): no path below them leads through a link or out of them, only regular files
are opened there, and a file that is read as a whole has a bounded length (``held_directories``).

Functions that a system lacks are replaced. Without ``posix_fallocate``, zeros are written; without ``fdatasync``,
``fsync`` is used; without ``fcntl``, the store is locked with ``msvcrt``; without ``pread`` and ``pwrite``, the
position of the descriptor is set first. Windows cannot open directories, so they are not synced there. Tests can
pretend that functions are missing, through ``Files.fallocate`` and ``Files.data_sync``; ``tests/fallbacks`` removes all
of these functions.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import BinaryIO, TypeVar

from rucola.common.local_path import local_path
from rucola.errors import ConfigError, DiskError, ForeignEntryError, StoreLockedError
from rucola.runtime.directory_listing import foreign_in, lengths_below, lengths_in, names_in
from rucola.runtime.disk_calls import DescriptorCalls, DiskCall, read_at, write_all
from rucola.runtime.file_map import FileMap, whole_pages
from rucola.runtime.held_directories import (
    BY_DESCRIPTOR,
    DIRECTORY,
    NO_FOLLOW,
    HeldDirectories,
    HeldPath,
    kind_of,
)

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    _LOCKS_OF = "msvcrt"
else:
    _LOCKS_OF = "fcntl"

L = TypeVar("L")
_DIRECTORY_MODE = 0o755
_FILE_MODE = 0o644
_PRIVATE_MODE = 0o600
FILE_BYTES_MAX = 256 << 20
"""Largest file that is read as a whole unless the caller allows more. RocketMQ's table of a million topics has 200 MiB.
"""
_TREE_DEPTH_MAX = 64
"""Deepest tree that is removed; a store's directories have at most four levels."""
_PIECE_BYTES = 1 << 20
_locked_here: set[tuple[int, int]] = set()
"""Device and inode of each file that this process has locked; needed because a POSIX record lock does not keep the same
process from locking the file again.
"""


class Files(DescriptorCalls):
    """Access to the files of the operating system. Tests derive classes that record calls, let calls fail, or pretend
    that the system lacks a feature.
    """

    @cached_property
    def held(self) -> HeldDirectories:
        """The held directories."""
        return HeldDirectories()

    @cached_property
    def strangers(self) -> set[str]:
        """Paths of other people's files in a store that were reported."""
        return set()

    # -- names ---------------------------------------------------------------------------------------------------------

    def expand(self, path: str) -> str:
        """Returns ``path``, which may be a ``file:`` URL, as an absolute path; a leading ``~`` is replaced by the home
        directory.

        Raises:
            ConfigError: the path is empty, as an unset variable of a script is, which would be the current directory.
                Or it is a URL of another kind, which would be a new directory.
        """
        if not path:
            raise ConfigError("path", path, "the path of a file or directory; . for the current directory")
        return os.path.abspath(os.path.expanduser(local_path("path", path)))  # noqa: PTH100, PTH111 - text in, text out

    def is_directory(self, path: str) -> bool:
        """Whether ``path``, which a user gave, is a directory; False if this process may not look there."""
        return bool(path) and os.path.isdir(self.expand(path))  # noqa: PTH112

    def hold(self, path: str) -> None:
        """Opens a directory and keeps it open. Links in ``path`` are followed now; from now on, no path below it leads
        through a link, or out of it.
        """
        with DiskCall(path, "open directory"):
            self.held.hold(path)

    def hold_private(self, path: str) -> None:
        """Holds a directory into which nobody else can put anything; creates it, for its owner only, if it is missing.
        Unlike with ``hold``, the directory itself must be no link.

        Raises:
            ForeignEntryError: something else is there, it belongs to another user, or others can write to it.
        """
        with DiskCall(path, "open directory"):
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)  # noqa: PTH102
            kind = stat.S_IFMT(os.lstat(path).st_mode)
            if not stat.S_ISDIR(kind):
                raise ForeignEntryError(path, "open directory", f"is {kind_of(kind)}, not a directory")
            self.held.hold(path)
            held = self.held.find(path)
            if held is None or held.descriptor < 0 or not hasattr(os, "geteuid"):
                return
            here, there = os.fstat(held.descriptor), os.lstat(path)
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            raise ForeignEntryError(path, "open directory", "was replaced")
        if here.st_uid != os.geteuid():
            raise ForeignEntryError(path, "open directory", "belongs to another user")
        if here.st_mode & 0o022:
            mode = here.st_mode & 0o777
            raise ForeignEntryError(path, "open directory", f"can be written by others (mode {mode:o})")

    def is_link(self, path: str) -> bool:
        """Whether there is a symbolic link at ``path``."""
        try:
            with HeldPath(self, path, "stat", above=True) as place:
                status = os.stat(place.name, dir_fd=place.descriptor, follow_symlinks=False)
        except DiskError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise
        return stat.S_ISLNK(status.st_mode)

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory at ``path``; in a held directory, whether there is anything."""
        if self.held.find(path) is None:
            return os.path.exists(path)  # noqa: PTH110
        return self._kind(path, "stat") != 0

    def is_file(self, path: str) -> bool:
        """Whether there is a regular file at ``path``; in a held directory, a link to a file is none."""
        return stat.S_ISREG(self._kind(path, "stat"))

    def size(self, path: str) -> int:
        """Returns the length of the file in bytes."""
        with HeldPath(self, path, "stat") as place:
            return place.file_status().st_size

    def length(self, path: str) -> int:
        """Returns the length of the file in bytes, -1 when there is none; as fast as ``exists``."""
        try:
            return self.size(path)
        except DiskError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return -1
            raise

    def lengths_below(
        self, path: str, wanted: Callable[[str], bool], names: Sequence[str]
    ) -> dict[str, tuple[int, ...]]:
        """Maps the names of directories in directory ``path``, sorted, to the lengths of files in them, -1 for those
        that do not exist. A start asks for a file or two of every queue, so that an operation for each would take too
        long.

        Args:
            wanted: chooses directories.
            names: names of the files.

        Raises:
            ForeignEntryError: a link in ``path`` leads to a directory.
        """
        return self._listed(path, partial(lengths_below, path=path, wanted=wanted, names=names), {})

    def modified_ms(self, path: str) -> int:
        """Returns the time of the last write to the file, in milliseconds since the epoch."""
        with HeldPath(self, path, "stat") as place:
            return place.status().st_mtime_ns // 1_000_000

    def is_open_to_others(self, path: str) -> bool:
        """Whether everybody may read the file, or list the directory and enter it."""
        with HeldPath(self, path, "stat") as place:
            mode = os.stat(place.name, dir_fd=place.descriptor).st_mode
        wanted = 0o005 if stat.S_ISDIR(mode) else 0o004
        return mode & wanted == wanted

    def close_to_others(self, path: str) -> None:
        """Takes all rights on a directory from everybody but its owner."""
        with HeldPath(self, path, "change the mode of") as place:
            os.chmod(place.name, 0o700, dir_fd=place.descriptor)

    def lies_in(self, path: str, directory: str) -> bool:
        """Whether ``path``, which need not exist, lies in ``directory``; links on the way are followed."""
        above = os.path.realpath(path)
        with DiskCall(path, "stat"):
            while (parent := above.rpartition("/")[0] or "/") != above:
                above = parent
                if os.path.samefile(above, directory):  # noqa: PTH121
                    return True
        return False

    def is_private(self, path: str) -> bool:
        """Whether only its owner may read the file; False if there is no such file."""
        try:
            with HeldPath(self, path, "stat") as place:
                return not place.file_status().st_mode & 0o077
        except DiskError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return False
            raise

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

    def device(self, path: str) -> int:
        """Returns a number for the file system that holds ``path``. Files can be renamed only within one."""
        with HeldPath(self, path, "stat") as place:
            return place.status().st_dev

    def list_files(self, path: str) -> list[str]:
        """Returns the names in directory ``path`` that are not directories, sorted; empty when it does not exist. In a
        held directory, links, FIFOs and the like are among them, and cannot be opened.
        """
        return self._names(path, directories=False)

    def list_sizes(self, path: str, wanted: Callable[[str], bool] | None = None) -> dict[str, int]:
        """Maps the names of the files in ``path``, sorted, to their lengths in bytes. A file that is removed during the
        call is left out: in the store of a running broker, segments expire and unneeded ones are removed.

        Args:
            wanted: chooses names; None chooses all.

        Raises:
            ForeignEntryError: in a held directory, something other than a file has one of the names.
        """
        return {name: size for name, size in self.list_lengths(path, wanted).items() if size >= 0}

    def list_lengths(self, path: str, wanted: Callable[[str], bool] | None) -> dict[str, int]:
        """Like ``list_sizes``, but has all names. The length of those that are not wanted is -1."""
        is_held = self.held.find(path) is not None
        return self._listed(path, partial(lengths_in, path=path, wanted=wanted, is_held=is_held), {})

    def list_foreign(self, path: str) -> dict[str, str]:
        """Maps the names in directory ``path`` that are neither files nor directories to what they are, such as
        ``a symbolic link``; empty when it does not exist.
        """
        return self._listed(path, foreign_in, {})

    def list_directories(self, path: str) -> list[str]:
        """Returns the names of the directories in directory ``path``, sorted; empty when it does not exist. Links to
        directories are among them; in a held directory, they cannot be entered.
        """
        return self._names(path, directories=True)

    def list_own_directories(self, path: str) -> list[str]:
        """Returns the names of the directories in directory ``path``, sorted; empty when it does not exist.

        Raises:
            ForeignEntryError: a link leads to a directory.
        """
        return self._names(path, directories=True, refuse_links=True)

    # -- whole files ---------------------------------------------------------------------------------------------------

    def read_file(self, path: str, bytes_max: int = FILE_BYTES_MAX) -> bytes | None:
        """Returns the whole content of a file, None when there is no such file.

        Raises:
            ForeignEntryError: the file is longer than ``bytes_max``, or no file.
        """
        try:
            with HeldPath(self, path, "read") as place:
                descriptor = place.open(os.O_RDONLY)
                try:
                    return _read_all(descriptor, path, bytes_max)
                finally:
                    os.close(descriptor)
        except DiskError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def open_to_read(self, path: str) -> BinaryIO:
        """Opens a file for code that reads it in parts; the caller closes it."""
        with HeldPath(self, path, "read") as place:
            return os.fdopen(place.open(os.O_RDONLY), "rb")

    def open_new(self, path: str) -> BinaryIO:
        """Creates a file for code that writes it in parts; the caller closes and syncs it.

        Raises:
            DiskError: something is there already.
        """
        with HeldPath(self, path, "create") as place:
            return os.fdopen(place.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE), "wb")

    def write_file(self, path: str, content: bytes, private: bool = False) -> None:
        """Creates or overwrites ``path`` in place and syncs it and its directory. Only for files whose loss is
        harmless.

        Args:
            private: whether only the owner may read a new file.
        """
        with HeldPath(self, path, "write") as place:
            descriptor = place.open(os.O_RDWR | os.O_CREAT, _PRIVATE_MODE if private else _FILE_MODE)
            try:
                os.ftruncate(descriptor, 0)
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
        with HeldPath(self, path, "replace") as place:
            is_new = not place.kind()
            if not is_new:
                place.file_status()  # refuses a link: it could be replaced, but somebody meant it to stay
        with self._temporary(f"{path}.tmp", path, "replace", private) as descriptor:
            position = 0
            for piece in (content,) if isinstance(content, bytes) else content:
                write_all(descriptor, piece, position)
                position += len(piece)
            os.fsync(descriptor)
        if spare and not is_new:
            self.rename(path, spare)
        self.rename(f"{path}.tmp", path)
        self.sync_directory(os.path.dirname(path))  # noqa: PTH120

    def rename(self, path: str, new_path: str) -> None:
        """Renames within one file system; replaces what was at ``new_path``; the caller syncs the directories."""
        with HeldPath(self, path, "rename", above=True) as old, HeldPath(self, new_path, "rename", above=True) as new:
            os.replace(old.name, new.name, src_dir_fd=old.descriptor, dst_dir_fd=new.descriptor)
        self.held.forget(path)

    def link(self, path: str, new_path: str) -> bool:
        """Gives a file a second name; returns False, and changes nothing, if the name is taken. The caller syncs the
        directory.
        """
        with HeldPath(self, path, "link") as old, HeldPath(self, new_path, "link") as new:
            try:
                os.link(old.name, new.name, src_dir_fd=old.descriptor, dst_dir_fd=new.descriptor, follow_symlinks=False)
            except FileExistsError:
                return False
        return True

    def publish_directory(self, path: str, new_path: str) -> bool:
        """Renames a directory, and syncs the new parent; returns False, and changes nothing, if a file or a non-empty
        directory is at ``new_path``.
        """
        with HeldPath(self, path, "rename", above=True) as old, HeldPath(self, new_path, "rename", above=True) as new:
            try:
                os.rename(old.name, new.name, src_dir_fd=old.descriptor, dst_dir_fd=new.descriptor)
            except OSError as error:
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    return False
                raise
        self.held.forget(path)
        self.sync_directory(os.path.dirname(new_path))  # noqa: PTH120
        return True

    def sync_file(self, path: str) -> None:
        """Makes the content of a file durable after other code has written it."""
        with HeldPath(self, path, "sync") as place:
            descriptor = place.open(os.O_RDWR)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, path: str) -> None:
        """Removes a file, or a link itself; the caller syncs the directory."""
        with HeldPath(self, path, "remove") as place:
            os.remove(place.name, dir_fd=place.descriptor)

    def remove_tree(self, path: str) -> None:
        """Removes a directory and everything in it; does nothing if it does not exist. The caller syncs its parent.
        Links in it, and a link at ``path``, are removed; what they lead to is never touched.

        Raises:
            ForeignEntryError: directories are nested so deeply that they cannot be a store's.
        """
        try:
            with HeldPath(self, path, "remove directory", above=True) as place:
                self.held.forget(path)
                _remove_entry(place.name, place.descriptor, path, 0)
        except DiskError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise

    def make_directory(self, path: str) -> None:
        """Creates ``path`` and its missing parents, and syncs the parent of each.

        Raises:
            ForeignEntryError: in a held directory, something else has the name.
        """
        if self._has_directory(path):
            return
        parent = os.path.dirname(path) or "."  # noqa: PTH120
        self.make_directory(parent)
        with HeldPath(self, path, "create directory") as place:
            try:
                os.mkdir(place.name, _DIRECTORY_MODE, dir_fd=place.descriptor)
            except FileExistsError:
                if not self._has_directory(path):
                    raise
        try:
            self.sync_directory(parent)
        except DiskError:
            # A later call would assume that an existing directory is synced.
            with suppress(DiskError), HeldPath(self, path, "remove directory") as place:
                os.rmdir(place.name, dir_fd=place.descriptor)
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
        with HeldPath(self, path, "sync directory") as place:
            try:
                descriptor = place.open_directory()
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
        with HeldPath(self, path, "read") as place:
            descriptor = place.open(os.O_RDONLY)
            try:
                return read_at(descriptor, length, position)
            finally:
                os.close(descriptor)

    def write_at(self, path: str, position: int, content: bytes) -> None:
        """Writes ``content`` at ``position`` of an existing file, or of a new one, and syncs the data."""
        with HeldPath(self, path, "write") as place:
            descriptor = place.open(os.O_RDWR | os.O_CREAT, _FILE_MODE)
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
            allocated: number of bytes to allocate from position 0, rounded up to whole pages; the owner allocates the
                rest step by step, before it writes there (``FileMap.allocate``). None allocates all.

        Raises:
            DiskFullError: there is not enough space; nothing is left behind.
        """
        try:
            with self._temporary(temporary, path, "allocate") as descriptor:
                self.allocate(descriptor, 0, size if allocated is None else min(size, whole_pages(allocated)))
                os.ftruncate(descriptor, size)
                os.fsync(descriptor)
            self.rename(temporary, path)
        except DiskError:
            with suppress(DiskError):  # the first failure is reported; the next attempt replaces the file
                self.remove(temporary)
            raise
        self.sync_directory(os.path.dirname(path))  # noqa: PTH120

    def map_file(self, path: str, size: int | None = None, writable: bool = True) -> FileMap:
        """Maps an existing file.

        Args:
            path: path of the file.
            size: number of bytes to map; None maps the whole file. The caller must have checked that the file is long
                enough.
            writable: False maps the file for reading only.
        """
        with HeldPath(self, path, "map") as place:
            descriptor = place.open((os.O_RDWR if writable else os.O_RDONLY) | NO_FOLLOW)
            try:
                length = size if size is not None else os.fstat(descriptor).st_size
                return FileMap(self, path, descriptor, length, writable)
            except BaseException:
                os.close(descriptor)
                raise

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
        with HeldPath(self, name, "lock") as place:
            descriptor = place.open(os.O_RDWR | os.O_CREAT | NO_FOLLOW, _FILE_MODE)
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
        self.held.keep_open(path, is_alone=True)
        return DirectoryLock(path, descriptor, identity, partial(self.held.keep_open, path, is_alone=False))

    def lock_held(self, path: str) -> bool:
        """Whether a process, possibly this one, holds the lock of the store in ``path``. Changes nothing."""
        name = f"{path}/lock"
        if self._identity(name) in _locked_here:
            # As in ``lock_directory``, a file that this process has locked is not even opened.
            return True
        try:
            with HeldPath(self, name, "look at the lock") as place:
                descriptor = place.open(os.O_RDONLY | NO_FOLLOW)
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
        with HeldPath(self, path, "stat") as place:
            try:
                status = place.status()
            except FileNotFoundError:
                return 0, 0
            return status.st_dev, status.st_ino

    def _has_directory(self, path: str) -> bool:
        """Whether there is a directory at ``path``.

        Raises:
            ForeignEntryError: in a held directory, something else is there.
        """
        if self.held.find(path) is None:
            return os.path.isdir(path)  # noqa: PTH112
        kind = self._kind(path, "create directory")
        if kind and not stat.S_ISDIR(kind):
            raise ForeignEntryError(path, "create directory", f"is {kind_of(kind)}, not a directory")
        return kind != 0

    def _kind(self, path: str, operation: str) -> int:
        """Returns the type of what is at ``path``, as in ``stat.S_IFMT``; 0 if nothing is there."""
        try:
            with HeldPath(self, path, operation) as place:
                return place.kind()
        except ForeignEntryError:
            raise
        except DiskError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return 0
            raise

    @contextmanager
    def _temporary(self, temporary: str, path: str, operation: str, private: bool = False) -> Iterator[int]:
        """Creates a file under a name that is only used for unfinished files; gives its descriptor. What an interrupted
        process left there, or somebody put there, is removed first, and never written to. Errors name ``path``.
        """
        with HeldPath(self, temporary, operation) as place, DiskCall(path, operation):
            with suppress(FileNotFoundError):
                os.remove(place.name, dir_fd=place.descriptor)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_FOLLOW
            descriptor = place.open(flags, _PRIVATE_MODE if private else _FILE_MODE)
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    def _names(self, path: str, directories: bool, refuse_links: bool = False) -> list[str]:
        return self._listed(path, partial(names_in, path=path, directories=directories, refuse_links=refuse_links), [])

    def _listed(self, path: str, collect: Callable[[str | int], L], absent: L) -> L:
        """Calls ``collect`` with directory ``path``, as a descriptor where it can be one; returns ``absent`` if there
        is no such directory.
        """
        try:
            with HeldPath(self, path, "list") as place:
                if place.descriptor is None:
                    self._has_directory(path)
                    return collect(path)
                descriptor = place.open_directory()
                try:
                    return collect(descriptor)
                finally:
                    os.close(descriptor)
        except DiskError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return absent
            raise


def _read_all(descriptor: int, path: str, bytes_max: int) -> bytes:
    """Reads a whole file, also one whose length the system does not tell. A longer file is not read to its end."""
    size = os.fstat(descriptor).st_size
    if size > bytes_max:
        raise ForeignEntryError(path, "read", f"has {size} bytes, and at most {bytes_max} are expected")
    content = b""
    while len(content) <= bytes_max and (piece := _read_next(descriptor, len(content), size)):
        content = content + piece if content else piece
    if len(content) > bytes_max:
        raise ForeignEntryError(path, "read", f"has more than {bytes_max} bytes")
    return content


def _read_next(descriptor: int, position: int, size: int) -> bytes:
    length = max(size - position, 0) or _PIECE_BYTES
    try:
        return read_at(descriptor, length, position)
    except OSError as error:
        if error.errno != errno.ESPIPE:  # a pipe that the user gave as a configuration file
            raise
        return os.read(descriptor, length)


def _remove_entry(name: str, directory: int | None, path: str, depth: int) -> None:
    """Removes what has ``name`` in ``directory``; a directory with everything in it, from the inside outwards."""
    mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    if not stat.S_ISDIR(mode):
        os.remove(name, dir_fd=directory)
        return
    if depth > _TREE_DEPTH_MAX:
        raise ForeignEntryError(path, "remove directory", f"has directories more than {_TREE_DEPTH_MAX} levels deep")
    if BY_DESCRIPTOR:
        opened = os.open(name, os.O_RDONLY | DIRECTORY, dir_fd=directory)
        try:
            for entry in _entries(opened):
                _remove_entry(entry, opened, path, depth + 1)
        finally:
            os.close(opened)
    else:
        for entry in _entries(name):
            _remove_entry(f"{name}/{entry}", None, path, depth + 1)
    os.rmdir(name, dir_fd=directory)


def _entries(directory: str | int) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


class DirectoryLock:
    """The held lock of a store directory. The lock ends with the process, or with ``release``."""

    def __init__(self, path: str, descriptor: int, identity: tuple[int, int], on_release: Callable[[], None]) -> None:
        self.path = path
        self._descriptor = descriptor
        self._identity = identity
        self._on_release = on_release

    def release(self) -> None:
        """Unlocks the directory; further calls do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _locked_here.discard(self._identity)
            self._on_release()


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
