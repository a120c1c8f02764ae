"""How far groups have consumed lite topics. There may be millions of entries, so they are kept in columns and written
as a journal: every ``flushConsumerOffsetInterval``, what was committed since then is appended and synced.
``formats.lite_offsets`` describes the files.

An entry belongs to a name, not to the id that the store has given the name: if the store's lite topics are built again
from the log, names get other ids, and the entries follow them. An entry of a name that no lite topic has any more is
dropped.

Event loop only; the thread of the table writer writes the files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

from rucola.broker.lite.offset_files import OffsetFiles
from rucola.broker.lite.offset_rows import PARTS, OffsetRows
from rucola.common.data_version import DataVersion
from rucola.common.key_builder import LITE_PREFIX, topic_at_group
from rucola.formats.light_queue import is_lite, lite_name, lite_topic
from rucola.formats.lite_offsets import NO_OFFSET, hash_of
from rucola.remoting.fairness.steps import Steps
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.runtime.table_writer import TableWriter
from rucola.store.lite.lite_topics import LiteTopics

logger = logging.getLogger(__name__)
_NAME_BYTES_MAX = 255


class LiteOffsets:
    """The offsets of one broker.

    Args:
        root: the store's directory.
        topics: the lite topics of the store, which is loaded before ``load`` is called.
        writer: writes the files in its thread.

    Attributes:
        on_set: called with group and id when somebody other than the delivery has set an offset; None for nobody.
        clamped: number of offsets beyond the end of their queues that ``load`` has lowered.
    """

    def __init__(self, files: Files, root: str, topics: LiteTopics, writer: TableWriter) -> None:
        self.clamped = 0
        self._topics = topics
        self._numbers: dict[str, int] = {}
        self._groups: dict[int, str] = {}
        self._next_number = 1
        self._of_parent: dict[int, set[int]] = {}
        """The groups that may have offsets in the lite topics of a parent, by its number."""
        self._rows = OffsetRows(self._groups.__contains__)
        self._swept = 0
        self._followed: dict[str, int] = {}
        """The master's offsets by ``topic@group``, as they were copied last; only on a slave."""
        self._followed_rows = OffsetRows(self._groups.__contains__)
        """The master's offsets, if they came in rows."""
        self.on_set: Callable[[str, int], None] | None = None
        self._files = OffsetFiles(files, f"{root}/config", self._rows, self._groups, writer)

    # -- use -----------------------------------------------------------------------------------------------------------

    def get(self, group: str, lite_id: int) -> int:
        """Returns the offset of a group in the lite topic with this id; -1 if it has none."""
        number = self._numbers.get(group)
        return NO_OFFSET if number is None else self._rows.get(number << 32 | lite_id)

    def commit(self, group: str, lite_id: int, consumer_offset: int) -> None:
        """Sets the offset of a group, 0 or more, in the lite topic with this id."""
        number = self._numbers.get(group) or self._number_of(group)
        key = number << 32 | lite_id
        name_hash = self._rows.put(key, consumer_offset, lambda: hash_of(self._topics.names.name(lite_id)))
        self._of_parent.setdefault(self._topics.names.parents[lite_id], set()).add(number)
        self._files.note(key, name_hash, consumer_offset)

    def forget(self, lite_id: int) -> None:
        """Forgets the offsets of all groups in the lite topic with this id."""
        for number in self._of_parent.get(self._topics.names.parents[lite_id], ()):
            key = number << 32 | lite_id
            name_hash = self._rows.drop(key)
            if name_hash is not None:
                self._files.note(key, name_hash, NO_OFFSET)

    def forget_group(self, group: str) -> None:
        """Forgets all offsets of a group; a new group of the same name begins without any."""
        number = self._numbers.pop(group, None)
        if number is None:
            return
        del self._groups[number]
        for numbers in self._of_parent.values():
            numbers.discard(number)
        self._swept = 0
        self._files.note_group(number, "")

    def has_any(self, lite_id: int) -> bool:
        """Whether a group has an offset in the lite topic with this id."""
        numbers = self._of_parent.get(self._topics.names.parents[lite_id], ())
        return any(self._rows.get(number << 32 | lite_id) != NO_OFFSET for number in numbers)

    def offsets_of(self, lite_id: int) -> dict[str, int]:
        """Returns the offset of each group that has one in the lite topic with this id."""
        numbers = self._of_parent.get(self._topics.names.parents[lite_id], ())
        found = ((number, self._rows.get(number << 32 | lite_id)) for number in numbers)
        return {self._groups[number]: offset for number, offset in found if offset != NO_OFFSET}

    # -- by topic: the light queue of a lite topic ---------------------------------------------------------------------

    def query_topic(self, group: str, topic: str) -> int | None:
        """Returns the offset of a group in a lite topic; None if it has none."""
        lite_id = self.id_of(topic)
        offset = NO_OFFSET if lite_id < 0 else self.get(group, lite_id)
        return None if offset == NO_OFFSET else offset

    def commit_topic(self, group: str, topic: str, consumer_offset: int) -> None:
        """Sets the offset of a group in a lite topic. Does nothing if there is no such lite topic, or if the offset is
        negative, as some clients send it.
        """
        lite_id = self.id_of(topic)
        if lite_id >= 0 and consumer_offset >= 0:
            self.commit(group, lite_id, consumer_offset)
            if self.on_set is not None:
                self.on_set(group, lite_id)

    def offsets_of_topic(self, topic: str) -> dict[str, int]:
        """Returns the offset of each group that has one in a lite topic."""
        lite_id = self.id_of(topic)
        return {} if lite_id < 0 else self.offsets_of(lite_id)

    def drop_topic(self, group: str, topic: str) -> None:
        """Forgets the offset of one group in a lite topic."""
        number, lite_id = self._numbers.get(group), self.id_of(topic)
        key = 0 if number is None else number << 32 | lite_id
        name_hash = None if number is None or lite_id < 0 else self._rows.drop(key)
        if name_hash is not None:
            self._files.note(key, name_hash, NO_OFFSET)

    def forget_topic(self, topic: str) -> None:
        """Forgets the offsets of all groups in a lite topic."""
        lite_id = self.id_of(topic)
        if lite_id >= 0:
            self.forget(lite_id)

    def id_of(self, topic: str) -> int:
        """Returns the id of the lite topic with the light queue ``topic``; -1 if there is none."""
        return self._topics.names.find(lite_name(_bytes(topic)))

    # -- all -----------------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[list[tuple[str, int, int]]]:
        """Yields all offsets in parts, each of one moment: group, id, offset. A part of a table with a million rows
        takes 2 ms. A thread may call this, too.
        """
        for part in range(PARTS):
            yield [
                (group, key & 0xFFFFFFFF, offset)
                for key, _, offset in self._rows.rows(part)
                if (group := self._groups.get(key >> 32)) is not None
            ]

    def rows_of(self, group: str) -> Iterator[list[tuple[int, int]]]:
        """Yields id and offset of all offsets of a group, in parts as ``rows``."""
        number = self._numbers.get(group, 0)
        for part in range(PARTS if number else 0):
            yield [(key & 0xFFFFFFFF, offset) for key, _, offset in self._rows.rows(part) if key >> 32 == number]

    def __len__(self) -> int:
        return self._rows.count

    def memory_bytes(self) -> int:
        """Returns how much memory the offsets take."""
        return self._rows.memory_bytes()

    def _number_of(self, group: str) -> int:
        number = self._numbers[group] = self._next_number
        self._next_number += 1
        self._groups[number] = group
        self._files.note_group(number, group)
        return number

    # -- the files -----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads the files, and lowers offsets beyond their queues: the log may have lost its end. The store must be
        loaded.

        Raises:
            StoreDamagedError: the base is damaged.
            DiskError: a file cannot be read.
        """
        table = self._files.load()
        if table is None:
            return
        groups, rows = table
        for number, group in groups.items():
            self._numbers[group], self._groups[number] = number, group
        self._next_number = max(groups, default=0) + 1
        moved: dict[int, list[tuple[int, int]]] = {}
        names = self._topics.names
        live = self._topics.columns.nexts
        for key, name_hash, consumer_offset in rows:
            lite_id = key & 0xFFFFFFFF
            if lite_id < len(live) and live[lite_id] and hash_of(names.name(lite_id)) == name_hash:
                self._take(key, name_hash, consumer_offset)
            else:
                moved.setdefault(name_hash, []).append((key >> 32, consumer_offset))
        if moved:
            self._find_moved(moved)
            self._files.compact_soon()
        self._clamp()

    def _take(self, key: int, name_hash: int, consumer_offset: int) -> None:
        self._rows.put(key, consumer_offset, lambda: name_hash)
        self._of_parent.setdefault(self._topics.names.parents[key & 0xFFFFFFFF], set()).add(key >> 32)

    def _find_moved(self, moved: dict[int, list[tuple[int, int]]]) -> None:
        """Takes the rows of names that have another id now; drops those of names that are gone."""
        found = 0
        for lite_id, following in enumerate(self._topics.columns.nexts):
            name_hash = hash_of(self._topics.names.name(lite_id)) if following else 0
            entries = moved.get(name_hash, ()) if following else ()
            has_own = {number for number, _ in entries if self._rows.get(number << 32 | lite_id) != NO_OFFSET}
            for number, consumer_offset in entries:
                if number not in has_own:
                    self._take(number << 32 | lite_id, name_hash, consumer_offset)
                    found += 1
        rows = sum(map(len, moved.values()))
        event(logger, logging.INFO, "offsets of lite topics with other numbers", found=found, dropped=rows - found)

    def _clamp(self) -> None:
        nexts = self._topics.columns.nexts
        for part in range(PARTS):
            for key, name_hash, consumer_offset in self._rows.rows(part):
                end = nexts[key & 0xFFFFFFFF]
                if consumer_offset > end:
                    self._rows.put(key, end, lambda: 0)
                    self._files.note(key, name_hash, end)
                    self.clamped += 1
        if self.clamped:
            event(logger, logging.WARNING, "consumer offsets beyond their lite topics", count=self.clamped)

    def persist(self) -> asyncio.Future[None] | None:
        """Requests a write of what has changed since the last one. Returns a future that is done when it is synced, or
        None if nothing changed.
        """
        if self._swept < PARTS:
            self._rows.sweep(self._swept)
            self._swept += 1
        return self._files.persist()

    def finish(self) -> None:
        """Lets the next write replace the base, so that the next start reads no journal. For a clean stop."""
        self._files.finish()

    # -- tables of RocketMQ --------------------------------------------------------------------------------------------

    def take_table(self, version: DataVersion, table: dict[str, dict[int, int]]) -> int:
        """Moves the offsets of lite topics out of a table of ``topic@group`` and queue id that was loaded. They count
        if the table is not the one that was written last (``note_written``): then another broker has changed it.

        Returns:
            The number of offsets that were taken over.
        """
        keys = [key for key in table if is_lite(_bytes(key.rpartition("@")[0]))]
        counts, taken = not self._files.is_written(version), 0
        for key in keys:
            topic, _, group = key.rpartition("@")
            offset, lite_id = table.pop(key).get(0, NO_OFFSET), self.id_of(topic)
            if counts and lite_id >= 0 and offset >= 0 and group and len(_bytes(group)) <= _NAME_BYTES_MAX:
                self.commit(group, lite_id, min(offset, self._topics.columns.nexts[lite_id]))
                taken += 1
        if taken:
            event(logger, logging.INFO, "offsets of lite topics taken over from a table", count=taken)
        return taken

    def table(self) -> dict[str, dict[int, int]]:
        """Returns all offsets as in a table of RocketMQ. For a stopped broker: it takes half a KiB an entry."""
        return {
            topic_at_group(_text(lite_topic(self._topics.names.name(lite_id))), group): {0: offset}
            for rows in self.rows()
            for group, lite_id, offset in rows
        }

    def follow(self, table: dict[str, dict[int, int]]) -> Steps[None]:
        """Takes over what a master has, in steps: moves the offsets of lite topics out of its table of ``topic@group``
        and queue id. What clients have committed here stays if it is larger, unless the master's was set back since the
        last copy; what the master has no more is forgotten.
        """
        keys = [key for key in table if key.startswith(LITE_PREFIX) and is_lite(_bytes(key.rpartition("@")[0]))]
        theirs = {key: table.pop(key).get(0, NO_OFFSET) for key in keys}
        yield
        for key, offset in theirs.items():
            topic, _, group = key.rpartition("@")
            before, own = self._followed.get(key), self.query_topic(group, topic)
            is_own = own is not None and own != before  # committed here
            was_set_back = before is not None and offset < before
            if own != offset and (own is None or not is_own or was_set_back or offset > own):
                self.commit_topic(group, topic, offset)
            yield
        for key in self._followed.keys() - theirs.keys():
            topic, _, group = key.rpartition("@")
            if self.query_topic(group, topic) == self._followed[key]:
                self.drop_topic(group, topic)
            yield
        self._followed = theirs

    def follow_row(self, lite_id: int, theirs: Mapping[str, int], start: int) -> None:
        """Takes over what a master has in one lite topic, by the rules of ``follow``.

        Args:
            theirs: its offset for each group that has one.
            start: first offset that it has not deleted. Offsets of other groups that are not above it go.
        """
        others = set(self._of_parent.get(self._topics.names.parents[lite_id], ()))
        for group, offset in theirs.items():
            own = self.get(group, lite_id)
            number = self._numbers.get(group) or self._number_of(group)
            key, name_hash = number << 32 | lite_id, hash_of(self._topics.names.name(lite_id))
            before = self._followed_rows.get(key)
            if own != offset and (own in (NO_OFFSET, before) or offset < before or offset > own):
                self.commit(group, lite_id, offset)
                if self.on_set is not None:
                    self.on_set(group, lite_id)
            if before != offset:
                self._followed_rows.put(key, offset, lambda name_hash=name_hash: name_hash)  # type: ignore[misc]
            others.discard(number)
        for number in others:
            key = number << 32 | lite_id
            own, before = self._rows.get(key), self._followed_rows.get(key)
            if own != NO_OFFSET and (own == before or own <= start):
                forgotten = self._rows.drop(key)
                assert forgotten is not None
                self._files.note(key, forgotten, NO_OFFSET)
            self._followed_rows.drop(key)

    @staticmethod
    def leave_out(table: dict[str, dict[int, int]]) -> None:
        """Takes the offsets of lite topics out of a master's table of ``topic@group``: they come in rows."""
        for key in [key for key in table if key.startswith(LITE_PREFIX) and is_lite(_bytes(key.rpartition("@")[0]))]:
            del table[key]

    def note_written(self, version: DataVersion) -> None:
        """Notes that a table of RocketMQ with this version has all offsets."""
        self._files.note_written(version)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
