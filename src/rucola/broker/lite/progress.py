"""How far groups have read lite topics: what delivery asks of the store and of the offsets. Event loop only."""

from __future__ import annotations

from typing import Protocol

from rucola.formats.light_queue import lite_topic
from rucola.store.lite.lite_topics import LiteSlice, LiteTopics

NO_OFFSET = -1


class Offsets(Protocol):
    """The offsets of groups in lite topics; ``LiteOffsets`` describes the methods."""

    def get(self, group: str, lite_id: int) -> int:
        """Returns the offset of a group; -1 if it has none."""

    def commit(self, group: str, lite_id: int, consumer_offset: int) -> None:
        """Sets the offset of a group."""


class LiteProgress:
    """Offsets and ends of lite topics, by their names."""

    def __init__(self, topics: LiteTopics, offsets: Offsets) -> None:
        self._topics = topics
        self._offsets = offsets

    def exists(self, name: bytes) -> bool:
        """Whether a lite topic has had a message."""
        return self._topics.names.find(name) >= 0

    def max_offset(self, name: bytes) -> int:
        """Returns the offset after the newest message; 0 if the lite topic is unknown."""
        lite_id = self._topics.names.find(name)
        return 0 if lite_id < 0 else self._topics.columns.nexts[lite_id]

    def min_offset(self, name: bytes) -> int:
        """Returns the offset of the oldest message; ``max_offset`` if there is none."""
        lite_id = self._topics.names.find(name)
        return 0 if lite_id < 0 else self._topics.min_offset(lite_id)

    def offset_since(self, name: bytes, time_ms: int) -> int:
        """Returns the offset of the first message stored in the second of ``time_ms`` or later; the offset after the
        last message if there is none.
        """
        queue = self._topics.queue(lite_topic(name))
        return 0 if queue is None else queue.offset_since(time_ms // 1000)

    def committed(self, group: str, name: bytes) -> int:
        """Returns the offset of a group; -1 if it has none."""
        lite_id = self._topics.names.find(name)
        return NO_OFFSET if lite_id < 0 else self._offsets.get(group, lite_id)

    def commit(self, group: str, name: bytes, consumer_offset: int) -> None:
        """Sets the offset of a group, if the lite topic is known."""
        lite_id = self._topics.names.find(name)
        if lite_id >= 0:
            self._offsets.commit(group, lite_id, consumer_offset)

    def has_unread(self, group: str, name: bytes) -> bool:
        """Whether a lite topic has messages that the group has not consumed. Messages that expired with the log may
        count.
        """
        lite_id = self._topics.names.find(name)
        if lite_id < 0:
            return False
        columns = self._topics.columns
        return columns.nexts[lite_id] > max(self._offsets.get(group, lite_id), columns.starts[lite_id])

    def names_of(self, parent: bytes, first: int, rows_max: int) -> LiteSlice:
        """Returns lite topics of a parent; see ``LiteTopics.names_of``."""
        return self._topics.names_of(parent, first, rows_max)
