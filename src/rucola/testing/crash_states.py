"""The states in which a crash may leave a ``SimulatedDisk``.

Each page, file length and name change (an item) may or may not be on the disk. Some states are always included: nothing
lost (as when only the process is killed), everything lost, all content lost, all names lost. From all other states, a
seeded sample is drawn: a single item lost, a single item kept, random versions of every item, pages torn at 512 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from random import Random

from rucola.testing.simulated_disk import PAGE, SECTOR, Change, Image, Inode, SimulatedDisk

NOTHING_LOST = "nothing lost"


@dataclass(frozen=True)
class CrashState:
    """One state of the disk after a crash.

    Attributes:
        image: content of the disk.
        choice: description of the state, for people.
    """

    image: Image
    choice: str


@dataclass(frozen=True, eq=False)
class _Item:
    """Something that a crash may lose: a page of a file (by number), a file's length (page -1), or a name change (no
    file).
    """

    name: str
    inode: Inode | None = None
    page: int = -1
    change: Change | None = None


def crash_states(disk: SimulatedDisk, random: Random, sample: int, randoms: int = 32) -> Iterator[CrashState]:
    """Yields states in which a crash at this moment may leave ``disk``.

    Args:
        random: source of the sample and of the random states.
        sample: number of states drawn in addition to the fixed ones.
        randoms: the sample is drawn from this many random states, the same number of torn states, and all states in
            which only one item is lost or only one is kept.
    """
    disk.capture()
    items = list(_items(disk))
    yield _state(disk, set(items), NOTHING_LOST)
    if not items:
        return
    yield _state(disk, set(), "all lost")
    names = [item for item in items if item.change is not None]
    if 0 < len(names) < len(items):
        yield _state(disk, set(names), "all content lost")
        yield _state(disk, set(items) - set(names), "all names lost")
    alone = 2 * len(items) if len(items) > 1 else 0
    for number in sorted(random.sample(range(alone + 2 * randoms), min(sample, alone + 2 * randoms))):
        if number < alone:
            item = items[number // 2]
            if number % 2:
                yield _state(disk, {item}, f"only {item.name} kept")
            else:
                yield _state(disk, set(items) - {item}, f"only {item.name} lost")
        else:
            # Each state has its own seed, so that it can be reproduced without the earlier ones.
            seed = random.getrandbits(32)
            yield _random_state(disk, items, seed, torn=number % 2 == 1)


def all_states(disk: SimulatedDisk) -> Iterator[CrashState]:
    """Yields every state in which a crash at this moment may leave ``disk``, without torn pages.

    Each page, length and name that is not durable doubles the number of states, so this suits only small disks.
    """
    disk.capture()
    items = list(_items(disk))
    for versions in product(*(range(_count(item) + 1) for item in items)):
        pages: dict[Inode, dict[int, bytes]] = {}
        sizes: dict[Inode, int] = {}
        changes: set[Change | None] = set()
        kept: list[str] = []
        for item, version in zip(items, versions, strict=True):
            if version == 0:
                continue
            kept.append(item.name if version == _count(item) else f"{item.name} (older version {version})")
            if item.change is not None:
                changes.add(item.change)
            elif item.inode is not None and item.page < 0:
                sizes[item.inode] = item.inode.sizes[version - 1]
            elif item.inode is not None:
                pages.setdefault(item.inode, {})[item.page] = item.inode.pages[item.page][version - 1]
        newest = all(version == _count(item) for item, version in zip(items, versions, strict=True))
        choice = NOTHING_LOST if newest else f"kept: {', '.join(kept)}" if kept else "all lost"
        yield CrashState(disk.image(pages, sizes, changes.__contains__), choice)


def _count(item: _Item) -> int:
    """Number of versions of an item, without the oldest one."""
    if item.inode is None:
        return 1
    return len(item.inode.sizes if item.page < 0 else item.inode.pages[item.page])


def _items(disk: SimulatedDisk) -> Iterator[_Item]:
    for path, inode in disk.inodes():
        for page in sorted(inode.pages):
            yield _Item(f"page {page} of {path}", inode, page)
        if inode.sizes:
            yield _Item(f"length of {path}", inode)
    for change in disk.changes:
        yield _Item(f"{change.kind} {' '.join(change.names)}", change=change)


def _state(disk: SimulatedDisk, kept: set[_Item], choice: str) -> CrashState:
    """The state with the newest version of each item in ``kept``, and the oldest version of all other items."""
    pages: dict[Inode, dict[int, bytes]] = {}
    sizes: dict[Inode, int] = {}
    changes = {item.change for item in kept}
    for item in kept:
        if item.inode is not None and item.page < 0:
            sizes[item.inode] = item.inode.sizes[-1]
        elif item.inode is not None:
            pages.setdefault(item.inode, {})[item.page] = item.inode.pages[item.page][-1]
    return CrashState(disk.image(pages, sizes, changes.__contains__), choice)


def _random_state(disk: SimulatedDisk, items: list[_Item], seed: int, torn: bool) -> CrashState:
    """A state in which each item is lost with the same probability; a kept page has a random version, or is torn."""
    random = Random(seed)
    keep = random.choice((0.15, 0.5, 0.85))
    pages: dict[Inode, dict[int, bytes]] = {}
    sizes: dict[Inode, int] = {}
    changes: set[Change | None] = set()
    for item in items:
        if random.random() >= keep:
            continue
        if item.change is not None:
            changes.add(item.change)
        elif item.inode is not None and item.page < 0:
            sizes[item.inode] = random.choice(item.inode.sizes)
        elif item.inode is not None:
            versions = item.inode.pages[item.page]
            content = versions[-1] if random.random() < 0.5 else random.choice(versions)
            if torn and random.random() < 0.5:
                content = _torn(_oldest(item.inode, item.page, len(content)), content, random)
            pages.setdefault(item.inode, {})[item.page] = content
    return CrashState(disk.image(pages, sizes, changes.__contains__), f"{'torn' if torn else 'random'} {seed}")


def _oldest(inode: Inode, page: int, length: int) -> bytes:
    start = page * PAGE
    return inode.disk[start : start + length].ljust(length, b"\0")


def _torn(old: bytes, new: bytes, random: Random) -> bytes:
    """A page with sectors of both contents: either ``new`` up to a random sector and ``old`` after it, or a random
    choice for each sector.
    """
    sectors = range(0, len(new), SECTOR)
    cut = random.randrange(len(sectors) + 1) * SECTOR if random.random() < 0.5 else -1
    result = bytearray(old)
    for start in sectors:
        if start < cut if cut >= 0 else random.random() < 0.5:
            result[start : start + SECTOR] = new[start : start + SECTOR]
    return bytes(result)
