"""Decides to which queue offset a record belongs, if the record and its queue disagree.

A record states its physical offset, its topic, its queue id and its queue offset. A unit states a physical offset and a
size. RocketMQ's records usually have no checksum over these fields, so only a comparison reveals a flipped bit in them.
The decision uses the unit, the neighbouring units and the record's other fields, so that one wrong field moves neither
a message nor its neighbours.

Most records need no decision. Dispatch needs a decision if the queue offset of a record is not the next offset of the
queue, and a reader needs one if it finds that a unit and its record differ. Wrong fields cannot make decisions costly.
In total, all searches read little more than the size of the log. If n records fit into the log's gaps, ``entry_of``
skips at most n + 1 queue offsets after the last entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.common.numbers import INT64_MAX
from rucola.common.sysflag import PREPARED_BIT
from rucola.formats.checksum import crc32
from rucola.formats.message import RECORD_BYTES_MIN, ROWS_MAX, walk_records
from rucola.runtime.logs import event
from rucola.store.log.log_reader import LogReader, RecordIdentity

logger = logging.getLogger(__name__)
_QUEUES_ASKED_MAX = 20_000
_REPORTED_MAX = 1000
_QUEUE_OFFSET_MAX = 1 << 48
"""A queue offset that no queue can reach."""
NOWHERE = -1
"""Returned if the record has no place in the queue."""

RawUnit = Callable[[bytes, int, int], tuple[int, int]]
"""Returns the physical offset and the size that a unit holds. Takes topic, queue id and queue offset; the queue need
not be open.
"""


class PlacedQueue(Protocol):
    """The methods of a queue that ``Placement`` uses."""

    topic: bytes
    queue_id: int
    min_offset: int
    max_offset: int

    @property
    def begins_at(self) -> int:
        """Queue offset of the first unit in the files, whether it is an entry or not."""
        ...

    def place_at(self, queue_offset: int) -> tuple[int, int]:
        """Returns the physical offset and the size in the unit at ``queue_offset``, which may lie after the last entry.
        Returns zeros if no segment holds the unit.
        """

    def number_from(self, physical_offset: int) -> int:
        """Returns the queue offset of the first unit that points to ``physical_offset`` or beyond. The search also
        covers what the files hold after the last entry.
        """


class Placement:
    """Places the records of one store, on the thread that owns its queues.

    Attributes:
        trusted_to: units of records from this physical offset on may be remains of a crash, so they are not used.

    Args:
        log: the log with the records.
        raw_unit: reads units of other queues.
        queues_like: returns topic and queue id of the queues that have the same topic or the same queue id as a given
            queue.
    """

    def __init__(
        self, log: LogReader, raw_unit: RawUnit, queues_like: Callable[[bytes, int], Iterator[tuple[bytes, int]]]
    ) -> None:
        self.trusted_to = INT64_MAX
        self._log = log
        self._raw_unit = raw_unit
        self._queues_like = queues_like
        self._walked = 0
        self._asked = 0
        self._reported: set[int] = set()

    def entry_of(self, queue: PlacedQueue, queue_offset: int, physical_offset: int, size: int) -> int:
        """Decides to which queue offset of ``queue`` a record belongs. The record itself states ``queue_offset``.

        Returns:
            The queue offset; ``NOWHERE`` if the record has no place in the queue.
        """
        place = (physical_offset, size)
        if queue.place_at(queue_offset) == place:
            return queue_offset
        if physical_offset >= self.trusted_to:
            if queue_offset < queue.max_offset or queue.max_offset == queue.min_offset:
                return queue_offset
            return self._found(queue, queue_offset, physical_offset, self._last(queue, queue_offset, physical_offset))
        following = queue.number_from(physical_offset)
        if queue.place_at(following) == place:
            return self._found(queue, queue_offset, physical_offset, following)
        if self.find_claim(queue.topic, queue.queue_id, queue_offset, place):
            return self._found(queue, queue_offset, physical_offset, NOWHERE)
        if queue.max_offset == queue.min_offset:
            return self._found(queue, queue_offset, physical_offset, self._first(queue, queue_offset, physical_offset))
        if following < queue.max_offset:
            if following <= queue.min_offset and 0 <= queue_offset < queue.min_offset:
                # The record is still in the log. If a file of the queue still covers ``queue_offset``, the unit there
                # was lost; otherwise the file that held the unit is gone.
                return queue_offset if queue.begins_at <= queue_offset else NOWHERE
            found = self._between(queue, queue_offset, physical_offset, following)
            return self._found(queue, queue_offset, physical_offset, found)
        return self._found(queue, queue_offset, physical_offset, self._last(queue, queue_offset, physical_offset))

    def base_of(self, queue: PlacedQueue, said: tuple[int, ...], count: int, physical_offset: int) -> int:
        """Returns the queue offset of a record's first message. The record lies after all other records of the queue
        and holds ``count`` messages.

        Args:
            said: the queue offsets that the record states, in its field and in its properties.
        """
        end = queue.max_offset
        if end == queue.min_offset:
            return said[0]
        if end in said:
            return end
        following = self._next_entry(queue, physical_offset)
        if said[0] > end and following in (NOWHERE, said[0] + count):
            return said[0]
        return self._found(queue, said[0], physical_offset, end)

    def find_claim(self, topic: bytes, queue_id: int, queue_offset: int, place: tuple[int, int]) -> bool:
        """Looks for another queue that has, at ``queue_offset``, an entry that points to the record at ``place``.
        Returns whether there is one.

        Only queues that share the topic or the queue id are checked. The total number of checks over all calls is
        limited.
        """
        for other_topic, other_id in self._queues_like(topic, queue_id):
            if self._asked >= _QUEUES_ASKED_MAX:
                break
            self._asked += 1
            if self._raw_unit(other_topic, other_id, queue_offset) == place:
                return True
        return False

    def stands(self, queue: PlacedQueue, queue_offset: int, physical_offset: int, size: int) -> bool:
        """Whether a unit is right even if its record contradicts it. If so, at most one field of the record is wrong.

        The unit is wrong (left over from an earlier state) if the record contradicts it in several fields, or if the
        record's own checksum confirms the record's fields. The unit is also wrong if another unit points to the record,
        in the queue and at the queue offset that the record states. Finally, it is wrong if its file belongs to a
        different queue.
        """
        if physical_offset >= self.trusted_to or self._log.in_gap(physical_offset):
            return False
        identity = self._log.identity(physical_offset)
        if identity is None or identity.size != size or identity.protected:
            return False
        wrong = (
            (identity.physical_offset != physical_offset)
            + (identity.topic != queue.topic)
            + (identity.queue_id != queue.queue_id)
            + (identity.queue_offset != queue_offset)
        )
        if wrong == 0:
            return True
        if wrong > 1 or self._is_elsewhere(queue, identity, physical_offset, size):
            return False
        return not self._is_in_foreign_file(queue, identity, queue_offset)

    def _is_elsewhere(self, queue: PlacedQueue, identity: RecordIdentity, physical_offset: int, size: int) -> bool:
        """Whether a record states a queue and a queue offset at which an entry points to this record."""
        if identity.physical_offset != physical_offset:
            return False
        if (identity.topic, identity.queue_id) == (queue.topic, queue.queue_id):
            return queue.place_at(identity.queue_offset) == (physical_offset, size)
        return self._raw_unit(identity.topic, identity.queue_id, identity.queue_offset) == (physical_offset, size)

    def _is_in_foreign_file(self, queue: PlacedQueue, identity: RecordIdentity, queue_offset: int) -> bool:
        """Whether the record of ``identity`` states a queue other than ``queue``, and the record of a neighbouring unit
        states this other queue, too. If so, the file with both units belongs to the other queue.
        """
        named = identity.topic, identity.queue_id
        if named == (queue.topic, queue.queue_id):
            return False
        for neighbour in (queue_offset - 1, queue_offset + 1):
            physical_offset, size = queue.place_at(neighbour) if neighbour >= queue.min_offset else (0, 0)
            other = self._log.identity(physical_offset) if size > 0 else None
            if other is not None and other.size == size and (other.topic, other.queue_id) == named:
                return True
        return False

    # -- without a unit ------------------------------------------------------------------------------------------------

    def _first(self, queue: PlacedQueue, queue_offset: int, physical_offset: int) -> int:
        """Returns the queue offset for a record in a queue without entries: the one that the record states, unless the
        next record of the queue contradicts it.
        """
        following = self._next_entry(queue, physical_offset)
        possible = 0 <= queue_offset < _QUEUE_OFFSET_MAX
        if not 1 <= following < _QUEUE_OFFSET_MAX:
            return queue_offset if possible else queue.max_offset
        if possible and 0 <= following - 1 - queue_offset <= self._lost(physical_offset):
            return queue_offset
        return following - 1

    def _between(self, queue: PlacedQueue, queue_offset: int, physical_offset: int, following: int) -> int:
        """Returns the queue offset for a record that lies before other entries: the queue offset of a missing or wrong
        unit; ``NOWHERE`` if there is no such unit.
        """
        first = following
        while first > queue.min_offset and not _leads_anywhere(queue.place_at(first - 1)):
            first -= 1
        if first <= queue_offset < following:
            return queue_offset
        if first < following:
            return first
        other, size = queue.place_at(queue_offset)
        identity = self._log.identity(other) if size > 0 else None
        taken = identity is not None and identity.size == size
        return queue_offset if not taken and queue.min_offset <= queue_offset < queue.max_offset else NOWHERE

    def _last(self, queue: PlacedQueue, queue_offset: int, physical_offset: int) -> int:
        """Returns the queue offset of a record that lies after all entries. If lost records explain the skipped
        entries, this is the offset that the record states; otherwise, it is the offset after the last entry.
        """
        end = queue.max_offset
        if not 0 < queue_offset - end <= self._lost(queue.place_at(end - 1)[0]):
            return end
        following = self._next_entry(queue, physical_offset)
        return queue_offset if following in (NOWHERE, queue_offset + 1) else end

    def _lost(self, physical_offset: int) -> int:
        """Returns how many records may be missing after ``physical_offset``: as many as fit into the log's gaps after
        this offset, plus one that was lost for an unknown reason.
        """
        gaps = (gap.end - gap.start for gap in self._log.gaps if gap.end > physical_offset)
        return 1 + sum(gaps) // RECORD_BYTES_MIN

    def _next_entry(self, queue: PlacedQueue, physical_offset: int) -> int:
        """Returns the queue offset stated by the next record of the queue after ``physical_offset``; ``NOWHERE`` if
        there is none.

        Once all calls together have read as many bytes as the log has, the result is always ``NOWHERE``.
        """
        log, table, first = self._log, new_table(ROWS_MAX), True
        while self._walked <= log.segments.end - log.segments.start:
            file = log.segments.find(physical_offset)
            if file is None or physical_offset >= log.max_offset:
                break
            segment, limit, at = file.map, min(log.max_offset - file.start, file.size), physical_offset - file.start
            rows, end, stop = walk_records(
                segment.buffer, segment.view, at, limit, file.start, table, ROWS_MAX, crc32, 0
            )
            for row in range(ROW_WIDTH * first, rows * ROW_WIDTH, ROW_WIDTH):
                if table[row + RecordColumn.QUEUE_ID] != queue.queue_id or table[row + RecordColumn.SYS_FLAG] & (
                    PREPARED_BIT
                ):
                    continue
                topic = table[row + RecordColumn.TOPIC_POS]
                if segment.view[topic : topic + table[row + RecordColumn.TOPIC_LEN]] == queue.topic:
                    self._walked += table[row] - at
                    return table[row + RecordColumn.QUEUE_OFFSET]
            first = False
            self._walked += max(end - at, 1)
            if stop == WalkStop.TORN:
                break
            physical_offset = file.end if stop == WalkStop.BLANK else file.start + end
        return NOWHERE

    def _found(self, queue: PlacedQueue, queue_offset: int, physical_offset: int, found: int) -> int:
        if found != queue_offset and physical_offset not in self._reported and len(self._reported) < _REPORTED_MAX:
            self._reported.add(physical_offset)
            file = self._log.segments.find(physical_offset)
            event(
                logger,
                logging.WARNING,
                "record does not agree with its queue",
                path=self._log.segments.path if file is None else file.path,
                position=physical_offset if file is None else physical_offset - file.start,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=queue_offset,
                taken_for="no entry" if found == NOWHERE else found,
            )
        return found


def _leads_anywhere(place: tuple[int, int]) -> bool:
    return place[0] >= 0 and 0 < place[1] < 0x7FFFFFFF
