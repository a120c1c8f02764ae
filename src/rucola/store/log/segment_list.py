"""A log divided into segments of the same length, each named after the offset of its first byte
(``formats.segment_name``).

Names and lengths follow RocketMQ 5.3.3, ``MappedFileQueue#doLoad``. Here a missing segment between two others is
damage; RocketMQ only logs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rucola.errors import StoreDamagedError
from rucola.formats.segment_name import is_segment_name, segment_name
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.log.mapped_file import MappedFile

logger = logging.getLogger(__name__)
REBUILD_MARK = "rucola-rebuild"
"""Name of a file that lies beside the segments of a log while its queues and index are being replaced
(``doctor.publish``).
"""
CUT_PLAN = "rucola-cut"
"""Name of a file that lies beside the segments of a log while its end is being cut off (``recovery.log_cut``)."""

Place = tuple[str, str, int]
"""Directory, name and length of a file; -1 as the length of other people's files."""


class SegmentList:
    """The segments of one directory, oldest first. One thread changes the list; other threads may read and sync its
    members.

    Attributes:
        path: the directory, or the first of several directories (``MultiPathSegmentList``).
        paths: all directories.
        writable_paths: the directories that may get new segments.
        full_paths: those of ``writable_paths`` that are too full; set by the thread that watches the disks.
        known: what ``places`` returned just before, so that the next ``load`` need not ask again.

    Args:
        files: access to the disk.
        path: path of the directory, which need not exist.
        segment_bytes: length of every segment.
        writable: False opens for reading: nothing is created, removed or changed.
        staging: prefix of the path at which new segments are created before they are renamed.
        allocate_whole: whether all blocks of a new segment are allocated at once; else in steps of ``ALLOCATION_STEP``.
        scattered, on_map: see ``MappedFile``.
    """

    # A store may have hundreds of thousands of queues.
    __slots__ = (
        "_ahead",
        "_allocate_whole",
        "_empty",
        "_files",
        "_on_map",
        "_scattered",
        "_staging",
        "_writable",
        "files",
        "full_paths",
        "known",
        "path",
        "paths",
        "segment_bytes",
        "writable_paths",
    )

    def __init__(
        self,
        files: Files,
        path: str,
        segment_bytes: int,
        *,
        writable: bool = True,
        staging: str | None = None,
        allocate_whole: bool = False,
        scattered: bool = False,
        on_map: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self.paths: tuple[str, ...] = (path,)
        self.writable_paths: tuple[str, ...] = self.paths
        self.full_paths: frozenset[str] = frozenset()
        self.segment_bytes = segment_bytes
        self.files: list[MappedFile] = []
        self.known: list[Place] | None = None
        self._files = files
        self._writable = writable
        self._staging = staging
        self._allocate_whole = allocate_whole
        self._scattered = scattered
        self._on_map = on_map
        self._empty = ""
        self._ahead = True

    def expect(self, places: list[Place] | None) -> None:
        """Sets ``known``."""
        self.known = places

    def load(self, remove_empty: bool = True) -> None:
        """Opens the existing segments. Changes nothing, except that it removes an empty last file.

        Args:
            remove_empty: whether to remove that file now; False leaves it to a later call of the method
                ``remove_empty``.

        Raises:
            StoreDamagedError: a file is not a segment or has the wrong length, two files hold the same segment, or a
                segment between two others is missing.
        """
        found = []
        places, self.known = self.places() if self.known is None else self.known, None
        for place in places:
            if _belongs_here(place[1]):
                found.append(place)
            elif place[1].removesuffix(".tmp") == CUT_PLAN:
                continue  # who opens the store for writing finishes the cut
            elif (path := "/".join(place[:2])) not in self._files.strangers:
                self._files.strangers.add(path)
                event(logger, logging.WARNING, "file of somebody else passed over", path=path)
        self._empty = ""
        if found and found[-1][2] == 0:
            self._empty = "/".join(found.pop()[:2])
        segments: list[MappedFile] = []
        for directory, name, length in found:
            file = self._check(directory, name, length)
            if segments and segments[-1].start == file.start:
                raise StoreDamagedError(
                    file.path,
                    0,
                    f"{segments[-1].path} holds the same segment",
                    "move away the file that does not belong to the store",
                )
            if segments and segments[-1].end != file.start:
                raise StoreDamagedError(
                    file.path, 0, f"the segment before it, {segment_name(segments[-1].end)}, is missing", "restore it"
                )
            segments.append(file)
        self.files = segments
        if remove_empty:
            self.remove_empty()

    def list_files(self) -> list[tuple[str, str, int]]:
        """Returns directory, name and length of each file that has the name of a segment or of the mark of a rebuild,
        sorted by name. Other files are not the store's: backups of an editor, files that NFS keeps while they are open.
        """
        return [place for place in self.places() if _belongs_here(place[1])]

    def places(self) -> list[Place]:
        """Returns all files, sorted by name."""
        found = []
        for directory in self.paths:
            lengths = self._files.list_lengths(directory, _belongs_here)
            found += [(directory, name, length) for name, length in lengths.items()]
        return sorted(found, key=lambda place: (place[1], place[0]))

    def remove_empty(self) -> None:
        """Removes the empty last file that ``load`` skipped.

        The last file is empty if its writer was killed between creating the file and setting its length. RocketMQ 5.3.3
        also removes such a file.
        """
        if self._empty and self._writable:
            self._files.remove(self._empty)
            self._files.sync_directory(self._empty.rpartition("/")[0])
            event(logger, logging.WARNING, "empty segment removed", path=self._empty)
        self._empty = ""

    @property
    def start(self) -> int:
        """Offset of the first byte; 0 if there are no segments."""
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        """Offset after the last segment; 0 if there are no segments."""
        return self.files[-1].end if self.files else 0

    def find(self, offset: int) -> MappedFile | None:
        """Returns the segment that holds ``offset``; None if there is none."""
        segments = self.files
        if not segments:
            return None
        index = (offset - segments[0].start) // self.segment_bytes
        return segments[index] if 0 <= index < len(segments) else None

    def create(self, start: int) -> str:
        """Creates the file of the segment that starts at ``start`` without adding it to the list; returns its path.

        Any thread may call it. An existing file of the right length is kept.

        Raises:
            DiskFullError: no space.
        """
        name = segment_name(start)
        for directory in self.paths:
            path = f"{directory}/{name}"
            if self._files.exists(path):
                # Whoever created the file may have failed to sync the directory.
                self._files.sync_directory(directory)
                return path
        return self._make(start, name)

    def _make(self, start: int, name: str) -> str:
        """Creates the file of a segment."""
        return self._make_in(self.path, name, f"{self.path}-" if self._staging is None else self._staging)

    def _make_in(self, directory: str, name: str, staging: str) -> str:
        path = f"{directory}/{name}"
        self._files.make_directory(directory)
        size = None if self._allocate_whole else 0
        self._files.create_segment(path, f"{staging}{name}.tmp", self.segment_bytes, size)
        return path

    def append(self, start: int) -> MappedFile:
        """Adds the segment that starts at ``start`` to the list, and creates it if ``create`` was not called before.

        Raises:
            DiskError: the segment cannot be created or mapped; the list is unchanged.
        """
        file = self.prepare(start)
        self.publish(file)
        return file

    def prepare(self, start: int) -> MappedFile:
        """Returns the mapped segment that starts at ``start``, and creates it if necessary. The segment is in no list,
        so no other thread sees it before ``publish``.

        Raises:
            DiskError: the segment cannot be created or mapped.
        """
        path = self.create(start)
        allocated = self.segment_bytes if self._allocate_whole else 0
        file = MappedFile(
            self._files, path, start, self.segment_bytes, self._writable, allocated, self._scattered, self._on_map
        )
        file.set_read_ahead(self._ahead)
        _ = file.map
        return file

    def publish(self, file: MappedFile) -> None:
        """Adds ``file``, a segment returned by ``prepare``, to the list.

        Raises:
            StoreDamagedError: the segment does not follow the last one, so ``find`` would return wrong segments.
        """
        if self.files and self.files[-1].end != file.start:
            raise StoreDamagedError(
                file.path,
                0,
                f"the segment is not the one that follows {self.files[-1].path}",
                "run rucola store verify",
            )
        self.files.append(file)

    def remove_after(self, offset: int) -> list[str]:
        """Removes the segments that start after ``offset``, last first; returns their paths.

        Each removal is synced before the next one, so that a crash cannot leave a hole.
        """
        removed = []
        while self.files and self.files[-1].start > offset:
            file = self.files.pop()
            file.close()
            self._files.remove(file.path)
            self._files.sync_directory(file.path.rpartition("/")[0])
            removed.append(file.path)
        return removed

    def detach_before(self, offset: int) -> list[MappedFile]:
        """Removes from the list the segments that end at or before ``offset``, but never the last segment. Their files
        stay.
        """
        segments = self.files
        count = sum(1 for file in segments[:-1] if file.end <= offset)
        self.files = segments[count:]
        return segments[:count]

    def set_read_ahead(self, ahead: bool) -> None:
        """Calls ``MappedFile.set_read_ahead`` for all segments, including those added later."""
        self._ahead = ahead
        for file in list(self.files):
            file.set_read_ahead(ahead)

    def close(self) -> None:
        """Unmaps all segments."""
        for file in self.files:
            file.close()

    def _check(self, directory: str, name: str, length: int) -> MappedFile:
        path = f"{directory}/{name}"
        if name.removesuffix(".tmp") == REBUILD_MARK:
            raise StoreDamagedError(path, 0, "a rebuild was interrupted", "finish it: rucola store rebuild")
        if length != self.segment_bytes:
            raise StoreDamagedError(
                path,
                min(length, self.segment_bytes),
                f"the file has {length} bytes, but a segment of this store has {self.segment_bytes}",
                "restore the file, or set the segment size with which the store was created",
            )
        # It is not known yet how many blocks the file has. Bytes that turn out to hold data count as allocated from
        # then on.
        return MappedFile(self._files, path, int(name), length, self._writable, 0, self._scattered, self._on_map)


def _belongs_here(name: str) -> bool:
    return is_segment_name(name) or name.removesuffix(".tmp") == REBUILD_MARK
