"""Deletes the queues of a topic so that they stay deleted.

The records of the topic stay in the log until they expire. The file ``rucola-deleted-topics``, which RocketMQ does not
know, keeps the physical offset up to which each topic is deleted. Records of the topic below that offset get no unit in
a queue, even if they are dispatched again. The file is a JSON object: ``{"topic": {"end": physical offset, "pending":
whether the queues may still exist, "time": store time of the deletion in ms}}``. Start-up drops an entry if the log no
longer has records below the entry's offset, and no pop from before the deletion can be waiting any more.

A deletion first writes the entry as pending, then moves the queue directories into ``deleted-queues``, then writes the
entry again as completed. The maintenance thread removes the moved directories afterwards. If a crash interrupts a
deletion, the next start-up completes it. Start-up then also dispatches the records after the entry's offset again,
because a new topic with that name may have received messages in the meantime.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

from rucola.errors import StoreDamagedError
from rucola.formats.config_json import UNREADABLE_JSON
from rucola.runtime.files import Files
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
FILE_NAME = "rucola-deleted-topics"
_QUEUE_DIRECTORIES = ("consumequeue", "consumequeue_ext", "batchconsumequeue")


class TopicDeletion:
    """Deletes topics. Used by the thread that owns the store.

    Attributes:
        ends: for each topic, the physical offset up to which its records belong to no queue.
        times_ms: for each topic in ``ends``, the store time of the deletion in ms; 0 if it is unknown.

    Args:
        root: the store's directory.
    """

    def __init__(self, files: Files, root: str) -> None:
        self.ends: dict[bytes, int] = {}
        self.times_ms: dict[bytes, int] = {}
        self._pending: set[bytes] = set()
        self._files = files
        self._root = root
        self._path = f"{root}/{FILE_NAME}"
        self._away = f"{root}/deleted-queues"

    def load(self) -> None:
        """Reads ``rucola-deleted-topics``; changes nothing.

        Raises:
            StoreDamagedError: the file cannot be read.
        """
        text = self._files.read_file(self._path)
        self.ends.clear()
        self.times_ms.clear()
        self._pending.clear()
        if text is None:
            return
        try:
            for name, entry in json.loads(text).items():
                topic = name.encode("utf-8", "surrogateescape")
                if name in ("", ".", "..") or any(char in name for char in "/\\\0"):
                    raise ValueError(f"{name!r} cannot be a topic")
                self.ends[topic] = int(entry["end"])
                self.times_ms[topic] = int(entry.get("time", 0))
                if entry["pending"]:
                    self._pending.add(topic)
        except UNREADABLE_JSON as error:
            raise StoreDamagedError(
                self._path,
                0,
                f"not a table of deleted topics: {error}",
                "restore the file; without it the deleted topics come back",
            ) from error

    @property
    def newest_ms(self) -> int:
        """Store time of the newest deletion; 0 if there is none."""
        return max(self.times_ms.values(), default=0)

    @property
    def replay_from(self) -> int | None:
        """Physical offset at and above which records may lack their units once ``resume`` has run; None if no deletion
        is pending.
        """
        return min((self.ends[topic] for topic in self._pending), default=None)

    def resume(self) -> bool:
        """Completes interrupted deletions, and removes everything left in ``deleted-queues``; returns whether queues
        were removed.
        """
        moved = [path for topic in sorted(self._pending) for path in self._move_away(topic)]
        if self._files.exists(self._away):
            self._files.remove_tree(self._away)
            self._files.sync_directory(self._root)
        return bool(moved)

    def resumed(self, min_offset: int, max_offset: int, needed_since_ms: int) -> None:
        """Notes that recovery has ended: no deletion is pending any more, and entries that nothing can need are
        forgotten: those before the beginning of the log, if they are old. Checkpoints of pops are stored again while
        they wait, so they outlive the part of the log in which the pop was noted.

        Args:
            min_offset: the offset where the log begins.
            max_offset: the offset where the log ends. After a crash the log may end before a deletion's offset. That
                offset is then lowered to ``max_offset``, because later messages belong to queues.
            needed_since_ms: store time; notes about older deletions are not needed for pops.
        """
        gone = [
            topic
            for topic, end in self.ends.items()
            if end <= min_offset and self.times_ms.get(topic, 0) < needed_since_ms
        ]
        taken = {topic: max_offset for topic, end in self.ends.items() if end > max_offset}
        self.ends.update(taken)
        if gone or taken or self._pending:
            for topic in gone:
                del self.ends[topic]
                self.times_ms.pop(topic, None)
            self._pending.clear()
            self._write()

    def begin(self, topic: bytes, end: int, time_ms: int) -> None:
        """Writes a pending entry: ``topic`` is deleted up to ``end``. Syncs the file.

        Args:
            time_ms: the store time now.

        Raises:
            DiskError: the file could not be written or synced; only the next load shows whether the topic is deleted.
        """
        before, before_ms = self.ends.get(topic), self.times_ms.get(topic, 0)
        self.ends[topic], self.times_ms[topic] = end, time_ms
        self._pending.add(topic)
        try:
            self._write()
        except BaseException:
            self._pending.discard(topic)
            if before is None:
                del self.ends[topic], self.times_ms[topic]
            else:
                self.ends[topic], self.times_ms[topic] = before, before_ms
            raise

    def finish(self, topic: bytes) -> list[str]:
        """Renames the directories of ``topic`` and syncs the renames. No queue of the topic may be opened during the
        call.

        Returns:
            The new paths of the directories, which must be removed later.

        Raises:
            DiskError: a file operation failed; the next load completes the deletion.
        """
        moved = self._move_away(topic)
        self._pending.discard(topic)
        try:
            self._write()
        except BaseException:
            self._pending.add(topic)
            raise
        event(logger, logging.INFO, "topic deleted", topic=topic.decode(errors="replace"), end_offset=self.ends[topic])
        return moved

    def _move_away(self, topic: bytes) -> list[str]:
        moved = []
        name = topic.decode("utf-8", "surrogateescape")
        for path in self._directories_of(name):
            self._files.make_directory(self._away)
            number = 0
            while self._files.exists(f"{self._away}/{number}"):
                number += 1
            self._files.rename(path, f"{self._away}/{number}")
            moved.append(f"{self._away}/{number}")
        for directory in (self._away, *(f"{self._root}/{part}" for part in _QUEUE_DIRECTORIES)):
            # This also syncs the renames of an earlier attempt whose sync failed.
            if self._files.exists(directory):
                self._files.sync_directory(directory)
        return moved

    def _directories_of(self, name: str) -> Iterable[str]:
        paths = (f"{self._root}/{part}/{name}" for part in _QUEUE_DIRECTORIES)
        return [path for path in paths if self._files.exists(path)]

    def _write(self) -> None:
        table = {
            topic.decode("utf-8", "surrogateescape"): {
                "end": end,
                "pending": topic in self._pending,
                "time": self.times_ms.get(topic, 0),
            }
            for topic, end in self.ends.items()
        }
        self._files.replace_file(self._path, json.dumps(table, indent=1).encode())
