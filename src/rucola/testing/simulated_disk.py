"""A disk in memory that knows what a power cut could leave of it.

It stands below ``runtime.files`` (see ``simulated_os``), which runs unchanged above it. Next to what a running process
sees it keeps, for every page of 4 KiB, all contents the real disk may hold, and the changes of names that no sync of
their directory has made certain. The rules are the weakest that a file system may have:

* A stored page may reach the disk at any time before it is synced, or never; each page for itself, in any of the
  versions it had since its last sync. Versions are noticed at every call that reaches the disk.
* The length of a file is as uncertain as its content, and independent of it.
* Creating, renaming and removing a name is certain after a sync of its directory only; each change may be lost or kept
  for itself. A rename is one change of both names.
* A sync that fails leaves the pages clean: whether they reached the disk stays unknown, and a later sync says nothing
  about them until they are written again, be it with the same bytes.
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
    """What a file holds, as processes see it; also stands for every map of the file.

    Attributes:
        touched: pages stored to without a change that could be seen by comparing.
        maps: how many maps of it there are.
        on_unmap: called when the last of them is closed.
    """

    def __init__(self, content: bytes = b"") -> None:
        super().__init__(content)
        self.touched: set[int] = set()
        self.maps = 0
        self.on_unmap: Callable[[], None] | None = None

    def touch(self, start: int, end: int) -> None:
        """The bytes from ``start`` to ``end`` were stored, changed or not."""
        self.touched.update(range(start // PAGE, -(-end // PAGE)))

    def madvise(self, *_: int) -> None:
        """Advice is not needed."""

    def close(self) -> None:
        """As of a map."""
        self.maps -= 1
        if not self.maps and self.on_unmap is not None:
            self.on_unmap()


class Directory:
    """Stands for a directory; what it holds is told by the paths."""


class Inode:
    """One file.

    Attributes:
        data: as processes see it.
        disk: what is certain to be on the disk where ``pages`` has nothing; as long as the file was at its last sync.
        pages: other contents that a page may have on the disk, oldest first.
        sizes: other lengths the file may have on the disk, oldest first.
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
        """Notices what was stored since the last call."""
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
        """What was stored before the call is on the disk after it; ``meanwhile`` is what others do during the call."""
        self.capture()
        self._calls += 1
        call = self._calls
        covered = {page: self._gone.get(page, 0) + len(self.pages[page]) for page in self.dirty}
        size = len(self.data)
        if meanwhile is not None:
            meanwhile()
            self.capture()
        if call < self._synced_by:
            return  # one that began later has ended, and covers all of this one
        self._synced_by = call
        disk = bytearray(self.disk[:size].ljust(size, b"\0"))
        for page, number in covered.items():
            versions = self.pages.get(page, [])
            count = number - self._gone.get(page, 0)
            if page not in self.dirty or count <= 0:
                continue  # a sync failed meanwhile
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
        """A sync failed: the pages count as written, and may not be."""
        self.capture()
        self.dirty.clear()

    def content(self, pages: dict[int, bytes], size: int) -> bytes:
        """What the disk holds if it took these versions of pages and this length."""
        result = bytearray(self.disk.ljust(size, b"\0"))
        for page, content in pages.items():
            start = page * PAGE
            if len(result) < start + len(content):
                result.extend(bytes(start + len(content) - len(result)))
            result[start : start + len(content)] = content
        return bytes(result[:size])


@dataclass(frozen=True, eq=False)
class Change:
    """A change of names that is not certain yet: path to what it stands for afterwards, None for nothing."""

    kind: str
    names: dict[str, Inode | Directory | None]


@dataclass
class SimulatedDisk:
    """The disk.

    Attributes:
        names: what processes see at each path.
        durable: what is certain.
        changes: in between, oldest first.
        steps: calls so far that change something or sync.
        observer: called before each of them with its kind and path, when everything stored so far is noticed.
        faults: called as well; raises the error the call shall end with.
        meanwhile: what other threads do while a file is synced; called once, then forgotten.
        used_percent: of its space.
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
        """A disk that holds ``image`` for certain."""
        names: dict[str, Inode | Directory] = {
            path: Directory() if content is None else Inode(content) for path, content in image.items()
        }
        return cls(names, dict(names))

    def step(self, kind: str, path: str) -> None:
        """Something is about to happen to ``path``; also called by tests, at moments of their own (``ack``)."""
        if self.versions:
            self.capture()
        self.steps += 1
        if self.observer is not None:
            self.observer(kind, path)
        if self.faults is not None:
            self.faults(kind, path)

    @contextmanager
    def sound(self) -> Iterator[None]:
        """Within the block no call fails: somebody looks."""
        faults, self.faults = self.faults, None
        try:
            yield
        finally:
            self.faults = faults

    def call(self, kind: str, path: str) -> None:
        """Something is about to happen that changes nothing on the disk, and may fail."""
        if self.faults is not None:
            self.faults(kind, path)

    def map(self, inode: Inode) -> MappedBytes:
        """A map of a file; stores through it are noticed until the last one is closed."""
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
        """Notices all stores through maps."""
        for inode in self.mapped:
            inode.capture()

    def change(self, kind: str, names: dict[str, Inode | Directory | None]) -> None:
        """Changes names, not for certain yet."""
        _apply(self.names, names)
        self.changes.append(Change(kind, names))

    def sync_directory(self, path: str) -> None:
        """Makes the changes of names in ``path`` certain."""
        rest: list[Change] = []
        for change in self.changes:
            if any(_parent(name) == path for name in change.names):
                _apply(self.durable, change.names)
                rest = [left for left in rest if not left.names.keys() <= change.names.keys()]
            else:
                rest.append(change)
        self.changes = rest

    def sync_file(self, inode: Inode, others: Callable[[], None] | None = None) -> None:
        """Makes the content of a file certain; ``others`` is what other threads do meanwhile."""
        meanwhile, self.meanwhile = self.meanwhile, None
        inode.sync(meanwhile or others)

    def fail_sync(self, inode: Inode, path: str) -> None:
        """A sync of the file at ``path`` failed."""
        inode.fail_sync()
        self.failed_syncs.add(path)

    def inodes(self) -> Iterator[tuple[str, Inode]]:
        """Every file that may be there after a crash, with a path it may have, in a fixed order."""
        found: dict[Inode, str] = {}
        maybe = [item for change in self.changes for item in change.names.items()]
        for path, node in [*self.durable.items(), *maybe]:
            if isinstance(node, Inode):
                found[node] = path
        return iter([(path, inode) for inode, path in found.items()])

    def image(
        self, pages: dict[Inode, dict[int, bytes]], sizes: dict[Inode, int], kept: Callable[[Change], bool]
    ) -> Image:
        """The disk after a crash that took these versions; what is not named is as at its last sync."""
        names = dict(self.durable)
        for change in self.changes:
            if kept(change):
                _apply(names, change.names)
        image: Image = {}
        for path, node in sorted(names.items()):
            parent = _parent(path)
            if parent != "/" and image.get(parent, b"") is not None:
                continue  # its directory was lost, and it with it
            if isinstance(node, Inode):
                image[path] = node.content(pages.get(node, {}), sizes.get(node, len(node.disk)))
            else:
                image[path] = None
        return image

    def seen(self) -> Image:
        """What processes see; a killed process leaves it so."""
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
