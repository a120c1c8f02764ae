"""A disk in memory that records what a power failure could leave of it.

The code of ``runtime.files`` runs unchanged on this disk (see ``simulated_os``). The disk holds the content that a
running process sees. For each page of 4 KiB, the disk also holds every content that a real disk may have after a power
failure. It records the name changes that are not durable because their directory was not synced. The rules are the
weakest that a file system may have:

* A written page may reach the disk at any time before it is synced, or never. Pages are independent; each may have any
  version since its last sync. Versions are recorded at every call that reaches the disk.
* The length of a file may be lost like its content, and independently of it.
* Creation, rename and removal of a name are durable only after a sync of the directory. Each name change may be lost or
  kept independently. A rename changes both names or none.
* A failed sync leaves the pages clean. It stays unknown whether they reached the disk, and a later sync covers them
  only if they are written again, even with the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

PAGE = 4096
SECTOR = 512

Image = dict[str, bytes | None]
"""Content of a disk after a crash: bytes by path, None for a directory."""


class MappedBytes(bytearray):
    """The content of a file as processes see it; all memory maps of the file share this object.

    Attributes:
        touched: indices of pages that were written, perhaps without a visible change.
        maps: number of open memory maps of the file.
    """

    def __init__(self, content: bytes = b"") -> None:
        super().__init__(content)
        self.touched: set[int] = set()
        self.maps = 0
        self._on_unmap: Callable[[], None] | None = None

    def when_unmapped(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` when the last map is closed."""
        self._on_unmap = listener

    def touch(self, start: int, end: int) -> None:
        """Records a write to the bytes from ``start`` to ``end``, even if they did not change."""
        self.touched.update(range(start // PAGE, -(-end // PAGE)))

    def madvise(self, *_: int) -> None:
        """Ignores the advice."""

    def close(self) -> None:
        """Closes one map."""
        self.maps -= 1
        if not self.maps and self._on_unmap is not None:
            self._on_unmap()


class Directory:
    """Stands for a directory; its content follows from the paths of files."""


class Inode:
    """One file of the simulated disk.

    Attributes:
        data: content as processes see it.
        disk: durable content, with the length that the file had at its last sync.
        pages: for each page written since that sync, the other contents that it may have on disk, oldest first.
        sizes: other lengths that the file may have on disk, oldest first.
        dirty: indices of the pages that the next sync will write.
    """

    def __init__(self, content: bytes = b"") -> None:
        self.data = MappedBytes(content)
        self.disk = content
        self.pages: dict[int, list[bytes]] = {}
        self.sizes: list[int] = []
        self.dirty: set[int] = set()
        self._seen: bytes | bytearray = content
        self._gone: dict[int, int] = {}
        self._calls = self._synced_by = 0

    def capture(self) -> None:
        """Records everything that was written since the last call as new versions of the pages and the length."""
        data, seen = self.data, self._seen
        if data.touched or data != seen:
            if len(data) != len(seen):
                self.sizes.append(len(data))
            for page in range(-(-max(len(data), len(seen)) // PAGE)):
                content = bytes(data[page * PAGE : (page + 1) * PAGE])
                if page in data.touched or content != seen[page * PAGE : (page + 1) * PAGE]:
                    self.pages.setdefault(page, []).append(content)
                    self.dirty.add(page)
            data.touched.clear()
            self._seen = bytes(data)

    def sync(self, meanwhile: Callable[[], None] | None) -> None:
        """Makes everything written before the call durable; ``meanwhile`` does what other threads do during the
        call.
        """
        self.capture()
        self._calls += 1
        call = self._calls
        covered = {page: self._gone.get(page, 0) + len(self.pages[page]) for page in self.dirty}
        size = len(self.data)
        if meanwhile is not None:
            meanwhile()
            self.capture()
        if call < self._synced_by:
            return  # a sync that began later has already ended and covers this one
        self._synced_by = call
        disk = bytearray(self.disk[:size].ljust(size, b"\0"))
        for page, number in covered.items():
            versions = self.pages.get(page, [])
            count = number - self._gone.get(page, 0)
            if page not in self.dirty or count <= 0:
                continue  # another sync has failed in between
            content = versions[count - 1]
            disk[page * PAGE : page * PAGE + len(content)] = content
            del versions[:count]
            self._gone[page] = number
            if not versions:
                del self.pages[page]
                self.dirty.remove(page)
        self.disk = bytes(disk[:size])
        self.sizes = [len(self.data)] if len(self.data) != size else []

    def fail_sync(self) -> None:
        """Records a failed sync: the pages count as clean, although they may not be on disk."""
        self.capture()
        self.dirty.clear()

    def content(self, pages: dict[int, bytes], size: int) -> bytes:
        """The content of the file on disk with these versions of pages and this length."""
        result = bytearray(self.disk.ljust(size, b"\0"))
        for page, content in pages.items():
            start = page * PAGE
            if len(result) < start + len(content):
                result.extend(bytes(start + len(content) - len(result)))
            result[start : start + len(content)] = content
        return bytes(result[:size])


@dataclass(frozen=True, eq=False)
class Change:
    """A name change that is not durable yet: the new target of each path, or None for a removed path."""

    kind: str
    names: dict[str, Inode | Directory | None]

    def without(self, later: Change) -> Change:
        """Returns this change without the names that ``later`` also changes. Once ``later`` is durable, a crash can
        undo this change only for the remaining names.
        """
        names = {name: node for name, node in self.names.items() if name not in later.names}
        return self if len(names) == len(self.names) else Change(self.kind, names)


@dataclass
class SimulatedDisk:
    """The simulated disk.

    Attributes:
        names: the files and directories that processes see at each path.
        durable: the names that survive a power failure.
        changes: changes from ``durable`` to ``names``, oldest first.
        steps: number of calls so far that change something or sync.
        observer: called with kind and path before each call that ``steps`` counts, after all earlier writes were
            recorded.
        faults: called after ``observer``; raises the error with which the disk call must end.
        meanwhile: called once, during the next sync of a file; does what other threads do in that time.
        used_percent: used space in percent.
        is_cold: whether no content is in memory, so that whoever does not wait for the disk must fetch it first.
    """

    names: dict[str, Inode | Directory] = field(default_factory=dict)
    durable: dict[str, Inode | Directory] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    steps: int = 0
    observer: Callable[[str, str], None] | None = None
    faults: Callable[[str, str], None] | None = None
    meanwhile: Callable[[], None] | None = None
    mapped: set[Inode] = field(default_factory=set)
    failed_syncs: set[str] = field(default_factory=set)
    used_percent: int = 10
    is_cold: bool = False
    versions: bool = True

    @classmethod
    def of(cls, image: Image) -> SimulatedDisk:
        """A disk on which ``image`` is durable."""
        names: dict[str, Inode | Directory] = {
            path: Directory() if content is None else Inode(content) for path, content in image.items()
        }
        return cls(names, dict(names))

    def step(self, kind: str, path: str) -> None:
        """Announces a change to ``path``; tests also announce events of their own, such as ``ack``."""
        if self.versions:
            self.capture()
        self.steps += 1
        if self.observer is not None:
            self.observer(kind, path)
        if self.faults is not None:
            self.faults(kind, path)

    @contextmanager
    def sound(self) -> Iterator[None]:
        """Within the block no call fails, so that a check can read the disk."""
        faults, self.faults = self.faults, None
        try:
            yield
        finally:
            self.faults = faults

    def call(self, kind: str, path: str) -> None:
        """Announces a call that changes nothing on disk but may fail."""
        if self.faults is not None:
            self.faults(kind, path)

    def map(self, inode: Inode) -> MappedBytes:
        """Maps a file; writes through its maps are recorded until the last map is closed."""
        data = inode.data
        if not data.maps:
            self.mapped.add(inode)
            data.when_unmapped(partial(self._unmap, inode))
        data.maps += 1
        return data

    def _unmap(self, inode: Inode) -> None:
        inode.capture()
        self.mapped.discard(inode)

    def capture(self) -> None:
        """Records all writes through maps."""
        for inode in self.mapped:
            inode.capture()

    def change(self, kind: str, names: dict[str, Inode | Directory | None]) -> None:
        """Changes names; the change is not durable yet."""
        _apply(self.names, names)
        self.changes.append(Change(kind, names))

    def sync_directory(self, path: str) -> None:
        """Makes the name changes in directory ``path`` durable."""
        rest: list[Change] = []
        for change in self.changes:
            if any(_parent(name) == path for name in change.names):
                _apply(self.durable, change.names)
                rest = [left for earlier in rest if (left := earlier.without(change)).names]
            else:
                rest.append(change)
        self.changes = rest

    def sync_file(self, inode: Inode, others: Callable[[], None] | None = None) -> None:
        """Makes the content of a file durable; ``others`` does what other threads do during the sync."""
        meanwhile, self.meanwhile = self.meanwhile, None
        inode.sync(meanwhile or others)

    def fail_sync(self, inode: Inode, path: str) -> None:
        """Records a failed sync of the file at ``path``."""
        inode.fail_sync()
        self.failed_syncs.add(path)

    def inodes(self) -> Iterator[tuple[str, Inode]]:
        """Every file that may exist after a crash, with one of its possible paths, in a fixed order."""
        found: dict[Inode, str] = {}
        maybe = [item for change in self.changes for item in change.names.items()]
        for path, node in [*self.durable.items(), *maybe]:
            if isinstance(node, Inode):
                found[node] = path
        return iter([(path, inode) for inode, path in found.items()])

    def image(
        self, pages: dict[Inode, dict[int, bytes]], sizes: dict[Inode, int], kept: Callable[[Change], bool]
    ) -> Image:
        """The disk after a crash that kept these pages, lengths and name changes; all else is as of its last sync."""
        names = dict(self.durable)
        for change in self.changes:
            if kept(change):
                _apply(names, change.names)
        image: Image = {}
        for path, node in sorted(names.items()):
            parent = _parent(path)
            if parent != "/" and image.get(parent, b"") is not None:
                continue  # the file is lost together with its directory
            if isinstance(node, Inode):
                image[path] = node.content(pages.get(node, {}), sizes.get(node, len(node.disk)))
            else:
                image[path] = None
        return image

    def seen(self) -> Image:
        """The content that processes see, which also remains when a process is killed."""
        return {
            path: bytes(node.data) if isinstance(node, Inode) else None for path, node in sorted(self.names.items())
        }


def _apply(names: dict[str, Inode | Directory], change: dict[str, Inode | Directory | None]) -> None:
    for path, node in change.items():
        if node is None:
            names.pop(path, None)
        else:
            names[path] = node


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
