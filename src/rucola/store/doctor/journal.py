"""The undo journal of a repair: records what is needed to revert each change.

Each entry is synced before its change is made, so an interrupted repair can always be undone. An entry records one of
four things: bytes that were replaced, with the file's path below the store and the position in the file; a file or
directory that was made; a file or directory that was moved away; the end of the repair. If the last entry is torn, its
change was never made. ``undo`` reverts the changes, newest first; it may be interrupted and run again.

A journal may come with a store from somebody else, so its paths are checked: a repair changes only the log, the queues,
the index and the checkpoint. Once a broker has opened the store, the old bytes no longer fit the rest of it: ``close``
renames the journals, and they cannot be undone any more.

========= ===== ============================================================================================
position  bytes field
========= ===== ============================================================================================
0         25    ``_HEAD``: magic, kind, length of the path, position, length of the old bytes, CRC-32 of the body
25        ..    the body: the path, then the old bytes
========= ===== ============================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from rucola.errors import StoreDamagedError
from rucola.formats.checksum import crc32
from rucola.runtime.files import Files

_HEAD = Struct(">4sBHQQI")
_MAGIC = b"RUJ1"
_PIECE = 1 << 20
_SEARCHED = 16 * _PIECE
"""Number of bytes after the last whole entry in which others are searched: several times the longest entry."""
_CHANGED = ("commitlog", "consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "checkpoint")
"""What a repair changes below the store's directory."""
_OPEN, _CLOSED = ".journal", ".closed"
DIRECTORY = "repair"


class ChangeKind(IntEnum):
    """Kinds of entries."""

    BYTES = 1
    """Bytes were replaced."""
    MADE = 2
    """A file or directory was made where none was."""
    MOVED = 3
    """A file or directory was moved away; the field for the old bytes holds its new path."""
    DONE = 4
    """The repair ended; the position is the end of the log."""


_KINDS = frozenset(ChangeKind)


@dataclass(frozen=True)
class Change:
    """One entry.

    Attributes:
        old: the replaced bytes, while they are being written; the new path of what was moved.
        old_at: position of the replaced bytes in the journal.
        length: number of replaced bytes.
    """

    kind: ChangeKind
    path: str
    position: int
    old: bytes
    old_at: int = 0
    length: int = 0


class Journal:
    """The journal of one repair, in ``repair/NNNN.journal`` of the store. The caller holds the store's lock.

    Attributes:
        changes: number of changes made through this object.
        changed_bytes: number of bytes replaced through this object.
    """

    def __init__(self, files: Files, root: str, number: int) -> None:
        self.changes = self.changed_bytes = 0
        self._files = files
        self._root = root
        self._number = number
        self.path = f"{root}/{DIRECTORY}/{number:04d}.journal"
        self._end = 0
        files.make_directory(f"{root}/{DIRECTORY}")
        if not files.exists(self.path):
            files.write_file(self.path, b"")
        _, self._end = _read(files, self.path)
        self._moved = len(files.list_directories(self._aside)) + len(files.list_files(self._aside))

    @classmethod
    def newest(cls, files: Files, root: str) -> Journal | None:
        """Returns the newest journal of a store; None if there is none."""
        numbers = _numbers(files, root, (_OPEN,))
        return cls(files, root, numbers[-1]) if numbers else None

    @classmethod
    def begin(cls, files: Files, root: str) -> Journal:
        """Returns the journal for a repair: that of an interrupted repair if there is one, else a new one."""
        newest = cls.newest(files, root)
        if newest is not None and newest.log_end is None:
            return newest
        return cls(files, root, max(_numbers(files, root, (_OPEN, _CLOSED)), default=0) + 1)

    @staticmethod
    def close(files: Files, root: str) -> list[str]:
        """Makes ``undo`` of all repairs impossible, because the store is about to be used; returns the journals."""
        directory = f"{root}/{DIRECTORY}"
        names = [f"{number:04d}" for number in _numbers(files, root, (_OPEN,))]
        for name in names:
            files.rename(f"{directory}/{name}{_OPEN}", f"{directory}/{name}{_CLOSED}")
        if names:
            files.sync_directory(directory)
        return [f"{directory}/{name}{_CLOSED}" for name in names]

    @staticmethod
    def closed(files: Files, root: str) -> bool:
        """Whether a repair can no longer be undone because the store was used after it."""
        return bool(_numbers(files, root, (_CLOSED,)))

    @property
    def log_end(self) -> int | None:
        """Physical end of the log when the repair ended; None if the repair did not end."""
        changes, _ = _read(self._files, self.path)
        return changes[-1].position if changes and changes[-1].kind is ChangeKind.DONE else None

    @property
    def _aside(self) -> str:
        return f"{self._root}/{DIRECTORY}/{self._number:04d}.files"

    def write(self, path: str, position: int, content: bytes) -> None:
        """Overwrites bytes of a file of the store; the old bytes are first appended to the journal."""
        for start in range(0, len(content), _PIECE):
            piece = content[start : start + _PIECE]
            old = self._files.read_at(f"{self._root}/{path}", position + start, len(piece))
            if len(old) < len(piece):
                raise StoreDamagedError(
                    f"{self._root}/{path}", position, "the file is too short", "repair the store again"
                )
            self._append(Change(ChangeKind.BYTES, path, position + start, old))
            self._files.write_at(f"{self._root}/{path}", position + start, piece)
        self.changed_bytes += len(content)

    def take(self, source: str, path: str) -> None:
        """Moves a new file or directory, which is already synced, to a free path below the store."""
        self._append(Change(ChangeKind.MADE, path, 0, b""))
        target = f"{self._root}/{path}"
        self._files.make_directory(target.rpartition("/")[0])
        self._files.rename(source, target)
        self._files.sync_directory(target.rpartition("/")[0])

    def move_away(self, path: str) -> None:
        """Moves a file or directory of the store out of the way."""
        self._files.make_directory(self._aside)
        target = f"{self._aside}/{self._moved}"
        self._moved += 1
        self._append(Change(ChangeKind.MOVED, path, 0, target.removeprefix(f"{self._root}/").encode()))
        self._files.rename(f"{self._root}/{path}", target)
        self._files.sync_directory(self._aside)
        self._files.sync_directory(f"{self._root}/{path}".rpartition("/")[0])

    def moved(self) -> set[str]:
        """Original paths of the files and directories that were moved away."""
        changes, _ = _read(self._files, self.path)
        return {change.path for change in changes if change.kind is ChangeKind.MOVED}

    def finish(self, log_end: int) -> None:
        """Ends the repair; the journal of a repair that changed nothing is removed.

        Args:
            log_end: physical offset after the last record.
        """
        if self._end:
            self._append(Change(ChangeKind.DONE, "", log_end, b""))
        else:
            self._files.remove(self.path)
            self._files.sync_directory(f"{self._root}/{DIRECTORY}")

    def undo(self) -> int:
        """Reverts all changes, newest first, and removes the journal; returns the number of changes.

        Raises:
            DiskError: a change cannot be reverted; the next call begins again.
        """
        changes, _ = _read(self._files, self.path)
        for change in changes:
            self._check(change)
        for change in reversed(changes):
            self._take_back(change)
        self._files.remove_tree(self._aside)
        self._files.remove(self.path)
        self._files.sync_directory(f"{self._root}/{DIRECTORY}")
        return sum(change.kind is not ChangeKind.DONE for change in changes)

    def _take_back(self, change: Change) -> None:
        files, place = self._files, f"{self._root}/{change.path}"
        if change.kind is ChangeKind.BYTES:
            size = files.length(place)
            if size < change.position + change.length:
                problem = f"{change.path} has {size} bytes, but bytes from {change.position} on were replaced"
                raise StoreDamagedError(self.path, change.old_at, problem, "restore the file, or keep the repair")
            files.write_at(place, change.position, files.read_at(self.path, change.old_at, change.length))
        elif change.kind is ChangeKind.MADE and files.exists(place):
            aside = f"{self._aside}-undone"
            files.remove_tree(aside)
            files.make_directory(aside)
            # The directory is renamed first, so that a half-removed directory is never seen at ``place``.
            files.rename(place, f"{aside}/0")
            files.sync_directory(place.rpartition("/")[0])
            files.remove_tree(aside)
        elif change.kind is ChangeKind.MOVED and files.exists(f"{self._root}/{change.old.decode()}"):
            files.rename(f"{self._root}/{change.old.decode()}", place)
            files.sync_directory(place.rpartition("/")[0])

    def _check(self, change: Change) -> None:
        """Raises ``StoreDamagedError`` if no repair makes such a change."""
        aside = change.old.decode("utf-8", "surrogateescape")
        names = [*change.path.split("/"), *aside.split("/")]
        inside = change.path.partition("/")[0] in _CHANGED and not {".", ".."} & set(names)
        if change.kind is ChangeKind.MOVED:
            inside = inside and aside.startswith(f"{DIRECTORY}/{self._number:04d}.files/")
        if not inside and change.kind is not ChangeKind.DONE:
            problem = f"the entry names {change.path!r}, which no repair changes"
            raise StoreDamagedError(self.path, change.old_at, problem, "move the journal out of the store")

    def _append(self, change: Change) -> None:
        path = change.path.encode("utf-8", "surrogateescape")
        rest = path + change.old
        head = _HEAD.pack(_MAGIC, change.kind, len(path), change.position, len(change.old), crc32(rest))
        self._files.write_at(self.path, self._end, head + rest)
        self._end += len(head) + len(rest)
        self.changes += change.kind is not ChangeKind.DONE


def _numbers(files: Files, root: str, endings: tuple[str, ...]) -> list[int]:
    names = [name.rpartition(".") for name in files.list_files(f"{root}/{DIRECTORY}")]
    return sorted(int(name) for name, _, end in names if f".{end}" in endings and len(name) == 4 and name.isdecimal())


def _read(files: Files, path: str) -> tuple[list[Change], int]:
    """Returns the complete entries, and the position after them.

    Raises:
        StoreDamagedError: an entry is damaged, and others follow it.
    """
    size = files.length(path)
    if size <= 0:
        return [], 0
    segment, at, changes = files.open_segment(path, size, writable=False), 0, list[Change]()
    try:
        while (found := _entry_at(segment.view, at, size)) is not None:
            change, at = found
            changes.append(change)
        later = at
        while (later := segment.buffer.find(_MAGIC, later + 1, min(size, at + _SEARCHED))) >= 0:
            if _entry_at(segment.view, later, size) is not None:
                raise StoreDamagedError(path, at, "an entry of the journal is damaged", "restore the store from a copy")
    finally:
        segment.close()
    return changes, at


def _entry_at(view: memoryview, at: int, size: int) -> tuple[Change, int] | None:
    """Returns the entry at a position, and the position after it; None if there is no whole one."""
    if at + _HEAD.size > size:
        return None
    magic, kind, path_length, position, length, crc = _HEAD.unpack_from(view, at)
    path_at = at + _HEAD.size
    old_at = path_at + path_length
    end = old_at + length
    if magic != _MAGIC or kind not in _KINDS or end > size or crc32(view[path_at:end]) != crc:
        return None
    name = bytes(view[path_at:old_at]).decode("utf-8", "surrogateescape")
    old = bytes(view[old_at:end]) if kind == ChangeKind.MOVED else b""
    return Change(ChangeKind(kind), name, position, old, old_at, length), end
