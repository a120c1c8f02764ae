"""Runs ``runtime.files`` and the modules below it on a ``SimulatedDisk``. The source of
these modules is unchanged, but their system calls are replaced. Crash tests therefore cut the power between the system
calls of the real modules, not between those of a second implementation.
"""

from __future__ import annotations

import builtins
import errno
import inspect
import os
import posixpath
import stat
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from typing import Any, NamedTuple, cast

from rucola.runtime import directory_listing, disk_calls, file_map, files, held_directories
from rucola.runtime.files import Files
from rucola.testing.interleaver import InterleavedLock, Interleaver
from rucola.testing.simulated_disk import PAGE, Directory, Inode, MappedBytes, SimulatedDisk

_MODULES = (disk_calls, held_directories, directory_listing, file_map, files)
"""The modules that make system calls; each comes after those that it imports."""
_CODE = {
    module.__name__: compile(inspect.getsource(module), f"{module.__name__} on a simulated disk", "exec")
    for module in _MODULES
}
_DEVICE = 1
_FIRST_DESCRIPTOR = 3


def files_on(disk: SimulatedDisk, interleaver: Interleaver | None = None) -> Files:
    """Makes a ``Files`` on ``disk`` for one process, which does not see other processes' locks and open files.

    Args:
        interleaver: chooses, at each system call, which thread of the process continues; None for a single thread.
    """
    system = SimulatedOs(disk) if interleaver is None else InterleavedOs(disk, interleaver)
    memory = types.SimpleNamespace(lock_memory=lambda *_: "")
    extents = types.SimpleNamespace(has_blocks=lambda *_: False)
    modules: dict[str, Any] = {"os": system, "mmap": _Mmap(system), "fcntl": _Fcntl(), "rucola.runtime.memory": memory}
    modules["rucola.runtime.extents"] = extents
    if interleaver is not None:
        # A thread may pause at a system call while it holds a segment's lock. Threads that wait for this lock are not
        # chosen.
        modules["threading"] = types.SimpleNamespace(Lock=partial(InterleavedLock, interleaver))

    def import_module(
        name: str,
        globals_: Mapping[str, object] | None = None,
        locals_: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        return modules.get(name) or builtins.__import__(name, globals_, locals_, fromlist or (), level)

    replaced = {"__import__": import_module}
    for name, code in _CODE.items():
        module = types.ModuleType(name)
        module.__dict__["__builtins__"] = builtins.__dict__ | replaced
        exec(code, module.__dict__)
        modules[name] = module
    segment = modules[file_map.__name__].FileMap
    segment.rewrite = _noticed(segment.rewrite)
    return cast(Files, modules[files.__name__].Files())


def _noticed(rewrite: Callable[[Any, int, bytes], None]) -> Callable[[Any, int, bytes], None]:
    """Wraps ``rewrite`` so that the simulated disk notices even a write that changes no byte. Without this, the disk
    would only compare bytes and miss such a write.
    """

    def noticed(segment: Any, position: int, content: bytes) -> None:
        rewrite(segment, position, content)
        segment.buffer.touch(position, position + len(content))

    return noticed


class _Status(NamedTuple):
    st_size: int
    st_ino: int
    st_mode: int
    st_nlink: int = 1
    st_dev: int = _DEVICE
    st_mtime_ns: int = 0


class _Space(NamedTuple):
    f_blocks: int
    f_bfree: int
    f_bavail: int
    f_frsize: int = PAGE


class _Entry(NamedTuple):
    name: str
    directory: bool

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self.directory

    def is_symlink(self) -> bool:
        return False

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return not self.directory


class SimulatedOs:
    """The part of ``os`` that ``runtime.files`` needs."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.path = _Path(disk)
        self.disk = disk
        self._open: dict[int, tuple[str, Inode | Directory]] = {}
        self._closed: list[int] = []
        self._others: Callable[[], None] | None = None

    RWF_NOWAIT = 8
    supports_dir_fd = frozenset({"open"})

    # -- descriptors ---------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """``os.open``; creation and truncation count as steps. The disk has no links."""
        disk, path = self.disk, self._at(path, dir_fd)
        node = disk.names.get(path)
        if node is not None and flags & os.O_EXCL:
            raise _error(errno.EEXIST, path)
        if isinstance(node, Inode) and flags & os.O_DIRECTORY:
            raise _error(errno.ENOTDIR, path)
        if node is None:
            if not flags & os.O_CREAT or not isinstance(disk.names.get(posixpath.dirname(path)), Directory):
                raise _error(errno.ENOENT, path)
            disk.step("create", path)
            node = Inode()
            disk.change("create", {path: node})
        elif isinstance(node, Inode):
            disk.call("open", path)
            if flags & os.O_TRUNC and node.data:
                disk.step("truncate", path)
                node.data[:] = b""
                node.capture()
        # As on a real system, the lowest free number is used. A descriptor that is used by mistake after its close may
        # therefore refer to a different file.
        descriptor = heappop(self._closed) if self._closed else _FIRST_DESCRIPTOR + len(self._open)
        self._open[descriptor] = path, node
        return descriptor

    def close(self, descriptor: int) -> None:
        """``os.close``."""
        self._node(descriptor)
        del self._open[descriptor]
        heappush(self._closed, descriptor)

    def pread(self, descriptor: int, length: int, position: int) -> bytes:
        """``os.pread``."""
        path, inode = self.file(descriptor)
        self.disk.call("read", path)
        return bytes(inode.data[position : position + length])

    def preadv(self, descriptor: int, buffers: Sequence[memoryview], position: int, flags: int = 0) -> int:
        """``os.preadv`` into one buffer. With ``RWF_NOWAIT``, the disk is not used, and the call fails unless the
        content is in memory.
        """
        path, inode = self.file(descriptor)
        length = len(buffers[0])
        if not flags & self.RWF_NOWAIT:
            self.disk.call("read", path)
        elif not self.in_memory(inode, position, length):
            raise _error(errno.EAGAIN, path)
        content = bytes(inode.data[position : position + length])
        buffers[0][: len(content)] = content
        return len(content)

    def in_memory(self, _inode: Inode, _position: int, _length: int) -> bool:
        """Whether a part of a file can be read without the disk."""
        return not self.disk.is_cold

    def pwrite(self, descriptor: int, content: bytes, position: int) -> int:
        """``os.pwrite``; always writes everything."""
        path, inode = self.file(descriptor)
        self.disk.step("write", path)
        data = inode.data
        if len(data) < position:
            data.extend(bytes(position - len(data)))
        data[position : position + len(content)] = content
        inode.capture()
        return len(content)

    def ftruncate(self, descriptor: int, size: int) -> None:
        """``os.ftruncate``."""
        path, inode = self.file(descriptor)
        self.disk.step("truncate", path)
        del inode.data[size:]
        inode.data.extend(bytes(size - len(inode.data)))
        inode.capture()

    def posix_fallocate(self, descriptor: int, position: int, length: int) -> None:
        """``os.posix_fallocate``."""
        path, inode = self.file(descriptor)
        self.disk.step("allocate", path)
        inode.data.extend(bytes(max(position + length - len(inode.data), 0)))
        inode.capture()

    def fsync(self, descriptor: int) -> None:
        """``os.fsync``."""
        path, node = self._node(descriptor)
        if isinstance(node, Directory):
            self.disk.step("sync directory", path)
            self.disk.sync_directory(path)
            return
        try:
            self.disk.step("sync", path)
        except OSError:
            self.disk.fail_sync(node, path)
            raise
        self.disk.sync_file(node, self._others)

    fdatasync = fsync

    def lseek(self, descriptor: int, position: int, whence: int) -> int:
        """``os.lseek`` on a file system that does not report holes: it fails, so the whole file counts as data."""
        raise _error(errno.EINVAL, self.file(descriptor)[0])

    def fstat(self, descriptor: int) -> _Status:
        """``os.fstat``."""
        path, node = self._node(descriptor)
        status = _status(node)
        return status if isinstance(node, Inode) or path in self.disk.names else status._replace(st_nlink=0)

    def file(self, descriptor: int) -> tuple[str, Inode]:
        """Path and file of a descriptor."""
        path, node = self._node(descriptor)
        assert isinstance(node, Inode)
        return path, node

    def _node(self, descriptor: int) -> tuple[str, Inode | Directory]:
        found = self._open.get(descriptor)
        if found is None:
            raise _error(errno.EBADF, f"descriptor {descriptor}")
        return found

    def map(self, descriptor: int, length: int) -> MappedBytes:
        """``mmap.mmap``."""
        path, inode = self.file(descriptor)
        self.disk.call("map", path)
        if length > len(inode.data):
            raise ValueError("mmap length is greater than file size")
        return self.disk.map(inode)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _at(self, path: str, directory: int | None) -> str:
        """Returns the whole path of a name that is relative to an open directory."""
        if directory is None:
            return path
        above = self._node(directory)[0]
        return above if path == "." else f"{above.rstrip('/')}/{path}"

    def stat(self, path: str | int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> _Status:
        """``os.stat``, also of a descriptor."""
        if isinstance(path, int):
            return self.fstat(path)
        path = self._at(path, dir_fd)
        node = self.disk.names.get(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return _status(node)

    def statvfs(self, path: str) -> _Space:
        """``os.statvfs`` of a disk with 100 pages."""
        self.stat(path)
        free = 100 - self.disk.used_percent
        return _Space(100, free, free)

    def replace(
        self, path: str, new_path: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        """``os.replace``; a renamed directory keeps its content, and stays open."""
        path, new_path = self._at(path, src_dir_fd), self._at(new_path, dst_dir_fd)
        SimulatedOs.stat(self, path)
        self.disk.step("rename", new_path)
        change: dict[str, Inode | Directory | None] = {}
        for name, node in self.disk.names.items():
            if name == path or name.startswith(f"{path}/"):
                change[name] = None
                change[new_path + name[len(path) :]] = node
        self.disk.change("rename", change)
        for descriptor, (name, node) in self._open.items():
            if isinstance(node, Directory) and (name == path or name.startswith(f"{path}/")):
                self._open[descriptor] = new_path + name[len(path) :], node

    def remove(self, path: str, *, dir_fd: int | None = None) -> None:
        """``os.remove``."""
        path = self._at(path, dir_fd)
        SimulatedOs.stat(self, path)
        self.disk.step("remove", path)
        self.disk.change("remove", {path: None})

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None:
        """``os.rmdir`` for an empty directory."""
        SimulatedOs.remove(self, path, dir_fd=dir_fd)

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """``os.mkdir``."""
        path = self._at(path, dir_fd)
        SimulatedOs.stat(self, posixpath.dirname(path))
        if path in self.disk.names:
            raise _error(errno.EEXIST, path)
        self.disk.step("create directory", path)
        self.disk.change("create directory", {path: Directory()})

    @contextmanager
    def scandir(self, path: str | int) -> Iterator[list[_Entry]]:
        """``os.scandir``, also of a descriptor."""
        path = self._node(path)[0] if isinstance(path, int) else path
        SimulatedOs.stat(self, path)
        inside = f"{path.rstrip('/')}/"
        skip = len(inside)
        yield [
            _Entry(name[skip:], isinstance(node, Directory))
            for name, node in self.disk.names.items()
            if name.startswith(inside) and name != inside and "/" not in name[skip:]
        ]


class InterleavedOs(SimulatedOs):
    """A ``SimulatedOs`` in which threads take turns. Before and after each call, and during the sync of a file,
    ``interleaver`` chooses which thread continues. A page of a file counts as in memory only if this process has read
    it with ``pread``.
    """

    def __init__(self, disk: SimulatedDisk, interleaver: Interleaver) -> None:
        super().__init__(disk)
        self._read: dict[Inode, set[int]] = {}
        self.path = _InterleavedPath(disk, interleaver)
        self._others = self.point = interleaver.point

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """``os.open``. A directory is opened only to use names in it, so that no thread changes meanwhile."""
        if flags & os.O_DIRECTORY:
            return super().open(path, flags, mode, dir_fd=dir_fd)
        self.point()
        descriptor = super().open(path, flags, mode, dir_fd=dir_fd)
        self.point()
        return descriptor

    def fstat(self, descriptor: int) -> _Status:
        """``os.fstat``; of a directory, as quietly as its opening."""
        if isinstance(self._node(descriptor)[1], Directory):
            return super().fstat(descriptor)
        self.point()
        status = super().fstat(descriptor)
        self.point()
        return status

    def close(self, descriptor: int) -> None:
        """``os.close``."""
        if isinstance(self._node(descriptor)[1], Directory):
            super().close(descriptor)
            return
        self.point()
        super().close(descriptor)
        self.point()

    @contextmanager
    def scandir(self, path: str | int) -> Iterator[list[_Entry]]:
        """``os.scandir``."""
        self.point()
        with super().scandir(path) as entries:
            yield entries
        self.point()

    def pread(self, descriptor: int, length: int, position: int) -> bytes:
        """``os.pread``."""
        self.point()
        content = super().pread(descriptor, length, position)
        pages = self._read.setdefault(self.file(descriptor)[1], set())
        pages.update(range(position // PAGE, -(-(position + length) // PAGE)))
        self.point()
        return content

    def in_memory(self, inode: Inode, position: int, length: int) -> bool:
        """Whether ``pread`` has read all pages of the range."""
        return self._read.get(inode, set()).issuperset(range(position // PAGE, -(-(position + length) // PAGE)))


def _interleaved(name: str) -> Callable[..., Any]:
    plain = getattr(SimulatedOs, name)

    def interleaved(self: InterleavedOs, *arguments: Any, **named: Any) -> Any:
        self.point()
        result = plain(self, *arguments, **named)
        self.point()
        return result

    return interleaved


for _name in dir(os):
    if _name.startswith(("O_", "SEEK_")):
        setattr(SimulatedOs, _name, getattr(os, _name))
for _name in (
    *("preadv", "pwrite", "ftruncate", "posix_fallocate", "fsync", "fdatasync"),
    *("map", "stat", "statvfs", "replace", "remove", "rmdir", "mkdir"),
):
    setattr(InterleavedOs, _name, _interleaved(_name))


class _Path:
    """Replaces ``os.path``."""

    abspath = staticmethod(posixpath.abspath)
    dirname = staticmethod(posixpath.dirname)
    expanduser = staticmethod(posixpath.expanduser)

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def exists(self, path: str) -> bool:
        return path in self._disk.names

    def isdir(self, path: str) -> bool:
        return isinstance(self._disk.names.get(path), Directory)


class _InterleavedPath(_Path):
    def __init__(self, disk: SimulatedDisk, interleaver: Interleaver) -> None:
        super().__init__(disk)
        self._point = interleaver.point

    def exists(self, path: str) -> bool:
        self._point()
        return super().exists(path)

    def isdir(self, path: str) -> bool:
        self._point()
        return super().isdir(path)


class _Mmap:
    """Replaces ``mmap``."""

    ACCESS_READ = 1
    ACCESS_WRITE = 2
    PAGESIZE = PAGE

    def __init__(self, system: SimulatedOs) -> None:
        self._system = system

    def mmap(self, descriptor: int, length: int, access: int) -> MappedBytes:
        return self._system.map(descriptor, length)


class _Fcntl:
    """Replaces ``fcntl``. Each process of a test has its own ``Files`` and does not see other processes' locks."""

    LOCK_EX = 2
    LOCK_NB = 4
    F_WRLCK = 1
    F_UNLCK = 2
    F_GETLK = 5

    def lockf(self, *_: int) -> None:
        """Does nothing: the lock is free."""

    def fcntl(self, _descriptor: int, _command: int, question: bytes) -> bytes:
        """Returns the result of ``F_GETLK`` that means "no lock". The lock type is the first field on Linux, and the
        last field but one elsewhere.
        """
        number = self.F_UNLCK.to_bytes(2, sys.byteorder)
        return number + question[2:] if sys.platform == "linux" else question[:-4] + number + question[-2:]


def _status(node: Inode | Directory) -> _Status:
    if isinstance(node, Inode):
        return _Status(len(node.data), id(node), stat.S_IFREG)
    return _Status(0, id(node), stat.S_IFDIR)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
