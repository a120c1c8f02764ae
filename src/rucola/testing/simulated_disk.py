"""A disk in memory that records what a power failure could leave of it.

The disk lies below ``runtime.files`` (see ``simulated_os``), which runs unchanged. It holds the content that a running
process sees. It also holds every content that the real disk may have for each page of 4 KiB, and the name changes that
are uncertain because their directory was not synced. The rules are the weakest that a file system may have:

* A written page may reach the disk at any time before it is synced, or never. Each page is independent, and may be in
  any version since its last sync. Versions are recorded at every call that reaches the disk.
* The length of a file is as uncertain as its content, and independent of it.
* Creation, rename and removal of a name are certain only after a sync of the directory. Each change may be lost or kept
  independently. A rename is one change of both names.
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
"""Content of a disk after a crash: path to bytes, None for a directory."""


class MappedBytes(bytearray):
    """Content of a file as processes see it; also represents every map of the file.

    Attributes:
        touched: pages that were written without a visible change.
        maps: number of maps of the file.
        on_unmap: called when the last map is closed.
    """

    def __init__(self, content: bytes = b"") -> None:
        super().__init__(content)
        self.touched: set[int] = set()
        self.maps = 0
        self.on_unmap: Callable[[], None] | None = None

    def touch(self, start: int, end: int) -> None:
        """Record a write to the bytes from ``start`` to ``end``, even if they did not change."""
        self.touched.update(range(start // PAGE, -(-end // PAGE)))

    def madvise(self, *_: int) -> None:
        """Ignore the advice."""

    def close(self) -> None:
        """Close one map."""
        self.maps -= 1
        if not self.maps and self.on_unmap is not None:
            self.on_unmap()


class Directory:
    """Represents a directory; its content follows from the paths."""


class Inode:
    """One file.

    Attributes:
        data: content as processes see it.
        disk: certain content on disk, for pages without an entry in ``pages``; has the length of the last sync.
        pages: other contents that a page may have on disk, oldest first.
        sizes: other lengths that the file may have on disk, oldest first.
        dirty: pages that the next sync will write.
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
        """Record what was written since the last call."""
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
        """Make everything written before the call certain; ``meanwhile`` does what other threads do during the call."""
        self.capture()
        self._calls += 1
        call = self._calls
        covered = {page: self._gone.get(page, 0) + len(self.pages[page]) for page in self.dirty}
        size = len(self.data)
        if meanwhile is not None:
            meanwhile()
            self.capture()
        if call < self._synced_by:
            return  # a later sync has ended already and covers this one
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
        """Record a failed sync: the pages count as clean, but may not be on disk."""
        self.capture()
        self.dirty.clear()

    def content(self, pages: dict[int, bytes], size: int) -> bytes:
        """The content of the disk with these versions of pages and this length."""
        result = bytearray(self.disk.ljust(size, b"\0"))
        for page, content in pages.items():
            start = page * PAGE
            if len(result) < start + len(content):
                result.extend(bytes(start + len(content) - len(result)))
            result[start : start + len(content)] = content
        return bytes(result[:size])


@dataclass(frozen=True, eq=False)
class Change:
    """A name change that is not yet certain: the new target of each path, None for a removed one."""

    kind: str
    names: dict[str, Inode | Directory | None]

    def without(self, later: Change) -> Change:
        """What is left of this change when ``later`` is certain: other names than those that ``later`` changes."""
        names = {name: node for name, node in self.names.items() if name not in later.names}
        return self if len(names) == len(self.names) else Change(self.kind, names)


@dataclass
class SimulatedDisk:
    """The disk.

    Attributes:
        names: the files and directories that processes see at each path.
        durable: the names that are certain.
        changes: changes from ``durable`` to ``names``, oldest first.
        steps: number of calls so far that change something or sync.
        observer: called before each of these calls with its kind and path, after all earlier writes were recorded.
        faults: called after the observer; raises the error with which the call must end.
        meanwhile: does what other threads do during the next sync of a file; called once.
        used_percent: used space in percent.
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
    versions: bool = True

    @classmethod
    def of(cls, image: Image) -> SimulatedDisk:
        """A disk that certainly holds ``image``."""
        names: dict[str, Inode | Directory] = {
            path: Directory() if content is None else Inode(content) for path, content in image.items()
        }
        return cls(names, dict(names))

    def step(self, kind: str, path: str) -> None:
        """Announces a change to ``path``; tests also call it for moments of their own (``ack``)."""
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
        """Announce a call that changes nothing on disk but may fail."""
        if self.faults is not None:
            self.faults(kind, path)

    def map(self, inode: Inode) -> MappedBytes:
        """A map of a file; writes through it are recorded until the last map is closed."""
        data = inode.data
        if not data.maps:
            self.mapped.add(inode)
            data.on_unmap = partial(self._unmap, inode)
        data.maps += 1
        return data

    def _unmap(self, inode: Inode) -> None:
        inode.capture()
        self.mapped.discard(inode)

    def capture(self) -> None:
        """Record all writes through maps."""
        for inode in self.mapped:
            inode.capture()

    def change(self, kind: str, names: dict[str, Inode | Directory | None]) -> None:
        """Change names; the change is not certain yet."""
        _apply(self.names, names)
        self.changes.append(Change(kind, names))

    def sync_directory(self, path: str) -> None:
        """Make the name changes in ``path`` certain."""
        rest: list[Change] = []
        for change in self.changes:
            if any(_parent(name) == path for name in change.names):
                _apply(self.durable, change.names)
                rest = [left for earlier in rest if (left := earlier.without(change)).names]
            else:
                rest.append(change)
        self.changes = rest

    def sync_file(self, inode: Inode, others: Callable[[], None] | None = None) -> None:
        """Make the content of a file certain; ``others`` does what other threads do during the sync."""
        meanwhile, self.meanwhile = self.meanwhile, None
        inode.sync(meanwhile or others)

    def fail_sync(self, inode: Inode, path: str) -> None:
        """Record a failed sync of the file at ``path``."""
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
        """The disk after a crash with these versions; everything else is as of its last sync."""
        names = dict(self.durable)
        for change in self.changes:
            if kept(change):
                _apply(names, change.names)
        image: Image = {}
        for path, node in sorted(names.items()):
            parent = _parent(path)
            if parent != "/" and image.get(parent, b"") is not None:
                continue  # lost together with its directory
            if isinstance(node, Inode):
                image[path] = node.content(pages.get(node, {}), sizes.get(node, len(node.disk)))
            else:
                image[path] = None
        return image

    def seen(self) -> Image:
        """The content that processes see, which is also what a killed process leaves."""
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
