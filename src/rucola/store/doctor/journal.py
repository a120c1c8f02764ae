"""The undo journal of a repair: records what is needed to revert each change.

Each entry is synced before its change is made, so an interrupted repair can always be undone. An entry records one of
four things: bytes that were replaced, and by what, with the file's path below the store and the position in the file; a
file or directory that was made; a file or directory that was moved away; the end of the repair. If the last entry is
torn, its change was never made. ``undo`` reverts the changes, newest first; it may be interrupted and run again.

Before its first change, ``undo`` checks all entries. A journal may come with a store from somebody else, so its paths
are checked: a repair changes only log, queues, lite topics, index and checkpoint. And each byte to be replaced must
be what the repair wrote, or what was there before: otherwise somebody has changed the store since.

Once a broker has opened the store, or a rebuild has replaced queues and index, the old bytes no longer fit the rest of
it: ``close`` renames the journals, and they cannot be undone any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from rucola.errors import StoreDamagedError
from rucola.runtime.files import Files
from rucola.store.doctor.journal_entries import PIECE, ChangeKind, JournalEntry, read_changes
from rucola.store.doctor.publish import LITE, PARTS

_CHANGED = ("commitlog", *PARTS, LITE, "checkpoint")
"""What a repair changes below the store's directory."""
_OPEN, _CLOSED = ".journal", ".closed"
DIRECTORY = "repair"


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
        _, self._end = read_changes(files, self.path)
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
        changes, _ = read_changes(self._files, self.path)
        return changes[-1].position if changes and changes[-1].kind is ChangeKind.DONE else None

    @property
    def _aside(self) -> str:
        return f"{self._root}/{DIRECTORY}/{self._number:04d}.files"

    def write(self, path: str, position: int, content: bytes) -> None:
        """Overwrites bytes of a file of the store; the old bytes are first appended to the journal."""
        for start in range(0, len(content), PIECE):
            piece = content[start : start + PIECE]
            old = self._files.read_at(f"{self._root}/{path}", position + start, len(piece))
            if len(old) < len(piece):
                raise StoreDamagedError(
                    f"{self._root}/{path}", position, "the file is too short", "repair the store again"
                )
            self._append(JournalEntry(ChangeKind.BYTES, path, position + start, old, piece))
            self._files.write_at(f"{self._root}/{path}", position + start, piece)
        self.changed_bytes += len(content)

    def take(self, source: str, path: str) -> None:
        """Moves a new file or directory, which is already synced, to a free path below the store."""
        self._append(JournalEntry(ChangeKind.MADE, path, 0, b""))
        target = f"{self._root}/{path}"
        self._files.make_directory(target.rpartition("/")[0])
        self._files.rename(source, target)
        self._files.sync_directory(target.rpartition("/")[0])

    def move_away(self, path: str) -> None:
        """Moves a file or directory of the store out of the way."""
        self._files.make_directory(self._aside)
        target = f"{self._aside}/{self._moved}"
        self._moved += 1
        self._append(JournalEntry(ChangeKind.MOVED, path, 0, target.removeprefix(f"{self._root}/").encode()))
        self._files.rename(f"{self._root}/{path}", target)
        self._files.sync_directory(self._aside)
        self._files.sync_directory(f"{self._root}/{path}".rpartition("/")[0])

    def moved(self) -> set[str]:
        """Original paths of the files and directories that were moved away."""
        changes, _ = read_changes(self._files, self.path)
        return {change.path for change in changes if change.kind is ChangeKind.MOVED}

    def finish(self, log_end: int) -> None:
        """Ends the repair; the journal of a repair that changed nothing is removed.

        Args:
            log_end: physical offset after the last record.
        """
        if self._end:
            self._append(JournalEntry(ChangeKind.DONE, "", log_end, b""))
        else:
            self._files.remove(self.path)
            self._files.sync_directory(f"{self._root}/{DIRECTORY}")

    def undo(self) -> int:
        """Reverts all changes, newest first, and removes the journal; returns the number of changes.

        Raises:
            DiskError: a change cannot be reverted; the next call begins again.
        """
        changes, _ = read_changes(self._files, self.path)
        for change in changes:
            self._check(change)
        for number, change in enumerate(changes):
            if change.kind is ChangeKind.BYTES:
                self._check_bytes(changes, number)
        for number in reversed(range(len(changes))):
            self._take_back(changes, number)
        self._files.remove_tree(self._aside)
        self._files.remove_tree(f"{self._aside}-undone")
        self._files.remove(self.path)
        self._files.sync_directory(f"{self._root}/{DIRECTORY}")
        return sum(change.kind is not ChangeKind.DONE for change in changes)

    def _take_back(self, changes: Sequence[JournalEntry], number: int) -> None:
        files, change = self._files, changes[number]
        place = f"{self._root}/{change.path}"
        if change.kind is ChangeKind.BYTES:
            files.write_at(place, change.position, files.read_at(self.path, change.old_at, change.length))
        elif change.kind is ChangeKind.MADE and files.exists(place) and not self._is_back(changes, number):
            aside = f"{self._aside}-undone"
            files.remove_tree(aside)
            files.make_directory(aside)
            # The directory is renamed first, so that a half-removed directory is never seen at ``place``.
            files.rename(place, f"{aside}/0")
            files.sync_directory(place.rpartition("/")[0])
            files.remove_tree(aside)
        elif change.kind is ChangeKind.MOVED and files.exists(self._moved_to(change)):
            files.rename(self._moved_to(change), place)
            files.sync_directory(place.rpartition("/")[0])

    def _is_back(self, changes: Sequence[JournalEntry], number: int) -> bool:
        """Whether an undo that was interrupted has already put back what was moved away from this path, so that it is
        no longer the repair's work that lies there.
        """
        path = changes[number].path
        for change in reversed(changes[:number]):
            if change.kind is ChangeKind.MOVED and change.path == path:
                return not self._files.exists(self._moved_to(change))
        return False

    def _moved_to(self, change: JournalEntry) -> str:
        return f"{self._root}/{change.old.decode('utf-8', 'surrogateescape')}"

    def _check_bytes(self, changes: Sequence[JournalEntry], number: int) -> None:
        """Raises ``StoreDamagedError`` if the bytes to be replaced are neither those of the repair nor the old ones."""
        change = changes[number]
        place = f"{self._root}/{change.path}"
        for later in changes[number + 1 :]:
            # The file itself was moved away after these bytes were replaced, and is not back yet.
            if (
                later.kind is ChangeKind.MOVED
                and later.path == change.path
                and self._files.exists(self._moved_to(later))
            ):
                place = self._moved_to(later)
        size, advice = self._files.length(place), "restore the file, or keep the repair"
        if size < change.position + change.length:
            problem = f"{change.path} has {size} bytes, but bytes from {change.position} on were replaced"
            raise StoreDamagedError(self.path, change.old_at, problem, advice)
        there, known = self._files.read_at(place, change.position, change.length), self._old_and_new(change)
        if there in known:
            return
        wrong = {at for at, byte in enumerate(there) if byte not in (known[0][at], known[1][at])}
        # A repair that was continued may have replaced some of these bytes again.
        for other in (one for one in changes if one.kind is ChangeKind.BYTES and one.path == change.path):
            first = other.position - change.position
            if wrong and -other.length < first < change.length:
                old, new = self._old_and_new(other)
                span = range(max(first, 0), min(first + other.length, change.length))
                wrong -= {at for at in wrong.intersection(span) if there[at] in (old[at - first], new[at - first])}
        if wrong:
            problem = f"{change.path} has changed since the repair, at {change.position + min(wrong)}"
            raise StoreDamagedError(self.path, change.old_at, problem, advice)

    def _old_and_new(self, change: JournalEntry) -> tuple[bytes, bytes]:
        both = self._files.read_at(self.path, change.old_at, 2 * change.length)
        return both[: change.length], both[change.length :]

    def _check(self, change: JournalEntry) -> None:
        """Raises ``StoreDamagedError`` if no repair makes such a change."""
        aside = change.old.decode("utf-8", "surrogateescape")
        names = [*change.path.split("/"), *aside.split("/")]
        inside = change.path.partition("/")[0] in _CHANGED and not {".", ".."} & set(names)
        if change.kind is ChangeKind.MOVED:
            inside = inside and aside.startswith(f"{DIRECTORY}/{self._number:04d}.files/")
        if not inside and change.kind is not ChangeKind.DONE:
            problem = f"the entry names {change.path!r}, which no repair changes"
            raise StoreDamagedError(self.path, change.old_at, problem, "move the journal out of the store")

    def _append(self, change: JournalEntry) -> None:
        entry = change.to_bytes()
        self._files.write_at(self.path, self._end, entry)
        self._end += len(entry)
        self.changes += change.kind is not ChangeKind.DONE


def _numbers(files: Files, root: str, endings: tuple[str, ...]) -> list[int]:
    names = [name.rpartition(".") for name in files.list_files(f"{root}/{DIRECTORY}")]
    return sorted(int(name) for name, _, end in names if f".{end}" in endings and len(name) == 4 and name.isdecimal())
