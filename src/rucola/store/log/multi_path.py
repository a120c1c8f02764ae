"""A commit log in several directories, possibly on several disks (RocketMQ 5.3.3, ``MultiPathMappedFileQueue``).

The number n of a segment is its start offset divided by the segment length. With e eligible directories, sorted by
name, segment n goes to the one with index n modulo e. A configured directory is eligible if it is not read-only and its
disk usage is not above ``diskSpaceCleanForciblyRatio``. If the usage of every directory that is not read-only is above
this ratio, all of them are eligible. All directories, including the read-only ones, are searched for existing segments.

Deliberate differences from RocketMQ: if a disk has no space, the next directory is tried; one segment in two
directories counts as damage.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rucola.errors import DiskFullError
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.config import MessageStoreConfig, split_paths
from rucola.store.log.segment_list import SegmentList

logger = logging.getLogger(__name__)
_STAGING = "allocating"


class MultiPathSegmentList(SegmentList):
    """The segments in several directories. When a segment is created, all its blocks are allocated at once.

    Args:
        paths: the directories; they need not exist.
        read_only: directories that get no new segments; they may be in ``paths`` or not.
    """

    def __init__(
        self,
        files: Files,
        paths: Sequence[str],
        read_only: Sequence[str],
        segment_bytes: int,
        *,
        staging: str | None = None,
        writable: bool = True,
    ) -> None:
        known = dict.fromkeys([*paths, *read_only])
        super().__init__(
            files, next(iter(known)), segment_bytes, writable=writable, staging=staging, allocate_whole=True
        )
        self.paths = tuple(known)
        self.writable_paths = tuple(sorted(set(paths) - set(read_only)))

    @classmethod
    def of(cls, files: Files, config: MessageStoreConfig, root: str) -> MultiPathSegmentList:
        """Returns the segments of the commit log of a store in ``root``."""
        configured = split_paths(config.store_path_commit_log)
        read_only = [files.expand(path) for path in split_paths(config.read_only_commit_log_store_paths)]
        paths = log_directories(files, root, config.store_path_commit_log)
        # New files are created beside the directory, because other programs load every file in it. If the directory may
        # be a mount point, new files are created inside it.
        staging = None if configured else f"{root}/commitlog-"
        return cls(files, paths, read_only, config.mapped_file_size_commit_log, staging=staging)

    def make_directories(self) -> None:
        """Creates the directories that may get segments, and syncs their parents."""
        for path in self.writable_paths:
            if self._files.exists(path) and not self._files.list_files(path):
                self._files.sync_parent(path)
            self._files.make_directory(path)
            self._files.hold(path)
            self._files.remove_tree(f"{path}/{_STAGING}")

    def candidates(self, start: int) -> list[str]:
        """Returns the directory for the segment at ``start``, then the directories to use if it has no space."""
        paths = [path for path in self.writable_paths if path not in self.full_paths] or list(self.writable_paths)
        first = start // self.segment_bytes % len(paths)
        return paths[first:] + paths[:first]

    def _make(self, start: int, name: str) -> str:
        *others, last = self.candidates(start)
        for directory in others:
            try:
                return self._make_there(directory, name)
            except DiskFullError as error:
                event(
                    logger,
                    logging.WARNING,
                    "no space for a segment, trying the next directory",
                    path=directory,
                    error=error,
                )
        return self._make_there(last, name)

    def _make_there(self, directory: str, name: str) -> str:
        if self._staging is not None:
            return self._make_in(directory, name, self._staging)
        # The staging directory is removed after use, because RocketMQ 4.9 does not load a log with a subdirectory.
        staging = f"{directory}/{_STAGING}"
        self._files.make_directory(staging)
        try:
            return self._make_in(directory, name, f"{staging}/")
        finally:
            self._files.remove_tree(staging)


def log_directories(files: Files, root: str, paths: str | None) -> list[str]:
    """Returns the directories of the commit log of the store in ``root``.

    Args:
        paths: directories, separated by ``,``; empty or None means the directory ``commitlog`` in ``root``.
    """
    return [files.expand(path) for path in split_paths(paths or "")] or [f"{root}/commitlog"]
