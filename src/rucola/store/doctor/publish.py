"""Replaces the queues and the index of a store by new ones, so that no broker ever opens a mixture of old and new.

The file ``rucola-rebuild`` in the first directory of the log marks a replacement in progress. Neither Rucola nor
RocketMQ opens a log with an unknown file among its segments. The mark is written after the new files are complete and
synced. The mark names the parts to be replaced, so the next process that finds the mark can finish the replacement:
each step is a rename, and steps already done are skipped. The mark is removed last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from rucola.errors import StoreDamagedError
from rucola.formats.config_json import UNREADABLE_JSON
from rucola.formats.segment_name import is_segment_name
from rucola.runtime.files import Files
from rucola.store.log.segment_list import REBUILD_MARK
from rucola.store.recovery.watermark import WatermarkFile

PARTS = ("consumequeue", "batchconsumequeue", "consumequeue_ext", "index")
"""Names of the directories that a rebuild creates, besides ``LITE``."""
LITE = "rucola-lite"


class Exchange:
    """Replaces the parts of one store; the caller holds the store's lock.

    Args:
        root: the store's directory.
        mark_directory: the first directory of the commit log.
        staging: a directory on the file system of the store; it holds the new parts in ``new`` and receives the old
            ones in ``old``.
    """

    def __init__(self, files: Files, root: str, mark_directory: str, staging: str) -> None:
        self._files = files
        self._root = root
        self._mark = f"{mark_directory}/{REBUILD_MARK}"
        self._new = f"{staging}/new"
        self._old = f"{staging}/old"

    def was_begun(self) -> bool:
        """Whether a replacement was begun but not finished. Removes an incomplete mark that an interrupted run left."""
        if self._files.exists(f"{self._mark}.tmp"):
            self._files.remove(f"{self._mark}.tmp")
            self._files.sync_directory(self._mark.rpartition("/")[0])
        return self._files.exists(self._mark)

    def begin(self, parts: Sequence[str], log_end: int) -> None:
        """Marks the store. After this call, the store can be opened only after ``finish``.

        Args:
            parts: the parts to replace, from ``PARTS`` and ``LITE``; a part without new files is removed.
            log_end: physical offset up to which the new parts cover the log.
        """
        files = self._files
        files.make_directory(self._old)
        made = [part for part in parts if files.exists(f"{self._new}/{part}")]
        known = [part for part in parts if files.exists(f"{self._root}/{part}")]
        plan = {"made": made, "gone": [part for part in known if part not in made], "log_end": log_end}
        files.replace_file(self._mark, json.dumps(plan).encode())

    def finish(self) -> None:
        """Finishes the replacement that was begun.

        Raises:
            StoreDamagedError: the mark cannot be read.
            DiskError: a step failed; the next call continues there.
        """
        files = self._files
        made, gone, log_end = self._plan()
        for part in made:
            if files.exists(f"{self._new}/{part}"):
                self._put_away(part)
                files.rename(f"{self._new}/{part}", f"{self._root}/{part}")
                files.sync_directory(self._root)
        for part in gone:
            self._put_away(part)
        files.sync_directory(self._root)
        self._write_watermark(log_end)
        files.remove(self._mark)
        files.sync_directory(self._mark.rpartition("/")[0])

    def _put_away(self, part: str) -> None:
        if self._files.exists(f"{self._root}/{part}") and not self._files.exists(f"{self._old}/{part}"):
            self._files.rename(f"{self._root}/{part}", f"{self._old}/{part}")
            self._files.sync_directory(self._old)

    def _plan(self) -> tuple[list[str], list[str], int]:
        """Returns the parts with new files, the parts without, and the end of the log."""
        try:
            plan = json.loads(self._files.read_file(self._mark) or b"")
            made, gone, log_end = list(plan["made"]), list(plan["gone"]), int(plan["log_end"])
            if unknown := {*made, *gone} - {*PARTS, LITE}:
                raise ValueError(f"unknown parts {sorted(unknown)}")
        except UNREADABLE_JSON as error:
            advice = (
                "move this file and the directories consumequeue, batchconsumequeue, consumequeue_ext, index and "
                "rucola-lite out of the store, then run the rebuild"
            )
            raise StoreDamagedError(self._mark, 0, f"not the mark of a rebuild: {error}", advice) from error
        return made, gone, log_end

    def _write_watermark(self, log_end: int) -> None:
        """Notes in the watermark that queues and index are complete, for Rucola's next start-up."""
        file, count, later = WatermarkFile(self._files, self._root), 0, 0
        watermark = file.read()
        if watermark is None:
            return
        for kind in ("consumequeue", "batchconsumequeue"):
            for topic in self._files.list_directories(f"{self._root}/{kind}"):
                for queue_id in self._files.list_directories(f"{self._root}/{kind}/{topic}"):
                    segments = len(self._files.list_sizes(f"{self._root}/{kind}/{topic}/{queue_id}", is_segment_name))
                    count += segments > 0
                    later += max(segments - 1, 0)
        clean = watermark.end_offset == log_end
        file.write(
            replace(
                watermark,
                queues_offset=log_end,
                end_offset=log_end if clean else -1,
                queue_count=count,
                later_files=later,
            )
        )
