"""Directories that are held open: names below them lead nowhere else.

A store may come from a stranger, and somebody may change it while a tool works in it. ``HeldDirectories.hold`` opens a
directory once, by the name that the user gave, and follows links only then. From then on, everything below it is
reached from its descriptor, component by component, and a component that is a link ends the operation. ``..`` and empty
components are refused as well, so a path that was joined from data cannot leave the directory.

Paths outside of all held directories were given by the user: configuration files, certificates, output files. Links in
them are followed.

A system without ``dir_fd`` and ``O_NOFOLLOW`` (Windows) looks at each component before it uses the path. A link that
appears in between is then followed.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from types import TracebackType
from typing import Protocol

from rucola.errors import ForeignEntryError
from rucola.runtime.disk_calls import disk_error

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
DIRECTORY = getattr(os, "O_DIRECTORY", 0) | NO_FOLLOW | BINARY
"""Flags that open a directory, but not through a link."""
BY_DESCRIPTOR = bool(NO_FOLLOW and os.supports_dir_fd)
_PASS = DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)
_NO_NAMES = frozenset(("", ".", ".."))
_KEPT_MAX = 16
"""Number of directories below a held one that stay open."""
_KEPT_FROM = 1024
"""Smallest limit on the descriptors of a process that lets directories stay open."""
_changing = threading.Lock()
"""Guards changes of the lists of held directories and of those that stay open. Readers need no lock."""
LINK = "a symbolic link"
_KINDS = {
    stat.S_IFLNK: LINK,
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a file",
}


class HeldDirectory:
    """A directory that is open for as long as this object exists.

    Attributes:
        descriptor: its descriptor; -1 on a system that cannot open files below a descriptor.
        inside: what paths of files in it begin with.
        kept: directories below this one that stay open as well, by path; None if none do.
    """

    __slots__ = ("descriptor", "inside", "kept", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.inside = path if path.endswith("/") else f"{path}/"
        self.kept: dict[str, HeldDirectory] | None = None

    def keep_inside(self, keeps: bool) -> None:
        """Sets whether directories below this one stay open from now on; closes those that do."""
        self.kept = {} if keeps else None

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def __getstate__(self) -> None:
        raise TypeError(f"{self.path} is open in this process only")

    def is_same(self) -> bool:
        """Whether the path still leads to the directory that is open."""
        if self.descriptor < 0:
            return True
        here = os.fstat(self.descriptor)
        try:
            there = os.stat(self.path)  # noqa: PTH116
        except FileNotFoundError:
            return False
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def parent_of(self, path: str, operation: str) -> tuple[HeldDirectory, str]:
        """Returns the directory that holds ``path``, which lies below this one, and the name in it.

        Raises:
            ForeignEntryError: the path leads through a link, or out of this directory.
            OSError: a directory on the way cannot be opened.
        """
        above, _, name = path.rpartition("/")
        kept = self.kept
        if kept is not None and (known := kept.get(above)) is not None and name not in _NO_NAMES:
            return known, name
        parts = above[len(self.inside) :].split("/") if len(above) >= len(self.inside) else []
        if name in _NO_NAMES or not _NO_NAMES.isdisjoint(parts):
            raise ForeignEntryError(path, operation, f"leaves {self.path}")
        directory, way = self, self.inside[:-1]
        for part in parts:
            way = f"{way}/{part}"
            below = None if kept is None else kept.get(way)
            if below is None:
                below = directory.open_below(part, way, operation)
                if kept is not None:
                    _keep(kept, below, directory)
            directory = below
        return directory, name

    def open_below(self, name: str, path: str, operation: str) -> HeldDirectory:
        """Opens the directory ``name`` in this one, but not through a link."""
        if self.descriptor < 0:
            check_directory(path, None, path, operation)
            return HeldDirectory(path, -1)
        try:
            return HeldDirectory(path, os.open(name, _PASS, dir_fd=self.descriptor))
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                check_directory(name, self.descriptor, path, operation)
            raise


def check_directory(name: str, descriptor: int | None, path: str, operation: str) -> None:
    """Raises ``ForeignEntryError`` if something other than a directory has the name."""
    mode = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
    if not stat.S_ISDIR(mode):
        raise ForeignEntryError(path, operation, f"is {kind_of(mode)}, not a directory")


def _keep(kept: dict[str, HeldDirectory], one: HeldDirectory, above: HeldDirectory) -> None:
    """Lets a directory stay open; another one no longer does if there are many. The directory above stays open longer,
    because it has more directories that may be wanted.
    """
    with _changing:
        if above.path in kept:
            kept[above.path] = kept.pop(above.path)
        if len(kept) >= _KEPT_MAX:
            del kept[next(iter(kept))]
        kept[one.path] = one


class HeldDirectories:
    """The held directories of one ``Files``. Any thread may call it."""

    def __init__(self) -> None:
        self._held: tuple[HeldDirectory, ...] = ()

    def __getstate__(self) -> list[str]:
        """Tasks in other processes get the paths: the number of a descriptor means another file there, or none."""
        return [one.path for one in self._held]

    def __setstate__(self, paths: list[str]) -> None:
        self._held = ()
        for path in paths:
            self.hold(path)

    def hold(self, path: str) -> None:
        """Opens a directory; follows links. Does nothing if it is open already.

        Raises:
            OSError: there is no such directory, or it may not be opened.
        """
        known = next((one for one in self._held if one.path == path), None)
        if known is not None and known.is_same():
            return
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | BINARY) if BY_DESCRIPTOR else -1
        held = HeldDirectory(path, descriptor)
        with _changing:  # other threads may hold other directories
            others = [one for one in self._held if one.path != path]
            self._held = tuple(sorted([*others, held], key=lambda one: -len(one.path)))

    def keep_open(self, path: str, is_alone: bool) -> None:
        """Sets whether directories below the held directory ``path`` stay open after their use. They may do so while
        nobody else renames directories there: while the store is locked.
        """
        for one in self._held:
            if one.path == path and one.descriptor >= 0:
                one.keep_inside(is_alone)

    def limit_descriptors(self, limit: int) -> None:
        """Closes the directories that stay open if the process may open only ``limit`` files, and these are few."""
        if limit < _KEPT_FROM:
            for one in self._held:
                one.keep_inside(False)

    def forget(self, path: str) -> None:
        """Ends the hold of a directory that got another name or was removed, and of those below it."""
        inside = f"{path}/"
        with _changing:
            if any(one.path == path or one.path.startswith(inside) for one in self._held):
                self._held = tuple(one for one in self._held if one.path != path and not one.path.startswith(inside))
            for kept in [one.kept for one in self._held if one.kept is not None]:
                for known in [known for known in kept if known == path or known.startswith(inside)]:
                    del kept[known]

    def find(self, path: str, above: bool = False) -> HeldDirectory | None:
        """Returns the innermost held directory that ``path`` lies in, or, unless ``above``, that it names."""
        for one in self._held:
            if path.startswith(one.inside) or (path == one.path and not above):
                return one
        return None


class HoldsDirectories(Protocol):
    """What a ``HeldPath`` needs of ``Files``."""

    @property
    def held(self) -> HeldDirectories:
        """The held directories."""


class HeldPath:
    """A path for one operation: a context manager that gives the name to use and the descriptor to use it with.

    The descriptor is None for a path outside of all held directories; calls of ``os`` then take the name as it is. An
    ``OSError`` in the block becomes a ``DiskError`` with path and operation. A held directory is ``.`` in its own
    descriptor; with ``above``, it is a name in the directory that holds it, and can be renamed.

    It is a class, because a broker uses it tens of thousands of times when it starts or recovers, and a generator takes
    three times as long.

    Attributes:
        descriptor: descriptor of the directory that holds ``name``.
        is_held: whether the path lies in a held directory.

    Raises:
        ForeignEntryError: the path leads through a link, or leaves the held directory.
        DiskError: a directory on the way cannot be opened.
    """

    __slots__ = ("_directory", "_held", "_operation", "descriptor", "is_held", "name", "path")

    def __init__(self, files: HoldsDirectories, path: str, operation: str, above: bool = False) -> None:
        self.path = self.name = path
        self.descriptor: int | None = None
        self._operation = operation
        self._directory: HeldDirectory | None = None
        self._held = files.held.find(path, above)
        self.is_held = self._held is not None

    def __enter__(self) -> HeldPath:
        held = self._held
        if held is not None:
            if self.path == held.path:
                directory, name = held, "."
            else:
                try:
                    directory, name = held.parent_of(self.path, self._operation)
                except OSError as error:
                    self._doubt(error)
                    raise disk_error(self.path, self._operation, error) from error
            if directory.descriptor >= 0:
                # The reference keeps the descriptor open until the operation ends.
                self._directory, self.name, self.descriptor = directory, name, directory.descriptor
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._directory = None
        if isinstance(error, OSError):
            self._doubt(error)
            raise disk_error(self.path, self._operation, error) from error

    def _doubt(self, error: OSError) -> None:
        """If something was not found, closes the directories on the way that stay open: somebody may have removed one
        of them, and made another one.
        """
        kept = None if self._held is None else self._held.kept
        if kept and isinstance(error, FileNotFoundError):
            with _changing:
                for known in [known for known in kept if self.path.startswith(f"{known}/")]:
                    del kept[known]

    def kind(self) -> int:
        """Returns the type of what is at the path, as in ``stat.S_IFMT``; 0 if nothing is there. In a held directory, a
        link counts as a link.
        """
        try:
            return stat.S_IFMT(self.status().st_mode)
        except FileNotFoundError as error:
            self._doubt(error)
            return 0

    def status(self) -> os.stat_result:
        """``os.stat``; in a held directory, of a link itself."""
        return os.stat(self.name, dir_fd=self.descriptor, follow_symlinks=not self.is_held)

    def file_status(self) -> os.stat_result:
        """``status`` of a file.

        Raises:
            ForeignEntryError: in a held directory, something else is at the path.
        """
        status = self.status()
        if self.is_held and not stat.S_ISREG(status.st_mode):
            raise ForeignEntryError(self.path, self._operation, f"is {kind_of(status.st_mode)}, not a file")
        return status

    def open(self, flags: int, mode: int = 0o644) -> int:
        """Opens a file; the caller closes the descriptor. Never waits for the other end of a FIFO in a held directory.

        Raises:
            ForeignEntryError: in a held directory, something other than a file is at the path.
        """
        if not self.is_held:
            return os.open(self.name, flags | BINARY, mode)
        try:
            self.file_status()  # some devices act when they are opened
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
        flags |= BINARY | NO_FOLLOW | getattr(os, "O_NONBLOCK", 0)
        return os.open(self.name, flags, mode, dir_fd=self.descriptor)

    def open_directory(self) -> int:
        """Opens a directory, for ``os.scandir`` and ``os.fsync``; the caller closes the descriptor.

        Raises:
            ForeignEntryError: in a held directory, something else is at the path.
        """
        if not self.is_held:
            return os.open(self.name or ".", os.O_RDONLY | BINARY)
        try:
            return os.open(self.name, os.O_RDONLY | DIRECTORY, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                check_directory(self.name, self.descriptor, self.path, self._operation)
            raise


def kind_of(mode: int) -> str:
    """Names the type of a file, for error messages."""
    return _KINDS.get(stat.S_IFMT(mode), "neither a file nor a directory")
