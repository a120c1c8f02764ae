"""The lite topics of a store directory, read without changing it, even while a broker uses it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rucola.errors import StoreDamagedError
from rucola.formats.consume_queue import UNIT
from rucola.formats.light_queue import lite_name, lite_topic
from rucola.formats.lite import LITE_UNIT_BYTES, LiteUnit
from rucola.runtime.files import Files
from rucola.store.lite.lite_queue import LiteQueue
from rucola.store.lite.lite_topics import DIRECTORY, LiteTopics
from rucola.store.log.log_reader import LogReader
from rucola.store.queue.consume_queue import PREFILL_SIZE
from rucola.store.recovery.lite_recovery import view_lite
from rucola.store.recovery.watermark import WatermarkFile

_ATTEMPTS = 3
_RECORDS_MAX = 100_000
_UNITS_AT_ONCE = 1024


class LiteView:
    """The lite topics as of one moment. ``close`` frees the files.

    Attributes:
        covered_to: physical offset below which every record in a lite topic has its unit.
    """

    def __init__(self, topics: LiteTopics, log: LogReader, covered_to: int) -> None:
        self.covered_to = covered_to
        self._topics = topics
        self._log = log

    @classmethod
    def open(cls, files: Files, root: str, log: LogReader) -> LiteView | None:
        """Opens the lite topics of the store ``root``; returns None if it keeps none, or has not built them yet.

        Raises:
            StoreDamagedError: they are damaged.
        """
        if not files.exists(f"{root}/{DIRECTORY}/table"):
            return None
        for attempt in range(_ATTEMPTS):
            topics = LiteTopics(files, root, 1, log, writable=False)
            try:
                view_lite(topics, files)
                break
            except StoreDamagedError:
                topics.close()
                if attempt == _ATTEMPTS - 1:
                    raise
        watermark = WatermarkFile(files, root).read()
        dispatched = 0 if watermark is None else watermark.queues_offset
        return cls(topics, log, max(topics.newest_physical, dispatched))

    def queue(self, topic: bytes) -> LiteQueue | None:
        """Returns the queue of a lite topic; None if it never had a message.

        Args:
            topic: its light queue.
        """
        return self._topics.queue(topic)

    def names(self, parent: bytes, prefix: bytes = b"") -> Iterator[bytes]:
        """Yields the light queues of the lite topics of ``parent`` that have messages, in the order of their ids.

        Args:
            prefix: how the lite topic's own name begins.
        """
        first: int | None = 0
        wanted = b"%b$%b" % (parent, prefix)
        while first is not None:
            part = self._topics.names_of(parent, first)
            yield from (lite_topic(name) for name in part.names if name.startswith(wanted))
            first = part.following

    def records(self, topics: Collection[bytes], most: int = _RECORDS_MAX) -> list[tuple[int, int]] | None:
        """Returns physical offset and size of each record in one of the light queues ``topics``, in log order; also of
        records that were deleted from them but are still in the log.

        Args:
            most: largest number of records.

        Returns:
            The places; None if there are more than ``most``, or if the units do not tell them all.
        """
        if self._topics.names.is_full:
            return None  # the latest names may be missing
        found: set[tuple[int, int]] = set()
        log_min = self._log.min_offset
        for topic in topics:
            for unit in self._units_of(self._topics.names.find(lite_name(topic))):
                if unit is None or len(found) > most:
                    return None
                if unit.size > 0 and unit.physical_offset >= log_min:
                    found.add((unit.physical_offset, unit.size))
        return sorted(found) if len(found) <= most else None

    def _units_of(self, name_id: int) -> Iterator[LiteUnit | None]:
        """Yields the units of a name, newest first; None in place of a damaged one."""
        units = self._topics.units
        cell = -1 if name_id < 0 else self._topics.columns.lasts[name_id] - 1
        while cell >= units.first:
            unit = units.unit(cell)
            yield unit
            if unit is None:
                return
            if unit.back == 0:
                if unit.begins:
                    yield from self._before(name_id, cell)
                return
            cell -= unit.back

    def _before(self, name_id: int, cell: int) -> Iterator[LiteUnit | None]:
        """Yields the units of a name before ``cell`` to which no links lead: those of its life before."""
        wanted = name_id.to_bytes(4, "big")
        for file in self._topics.units.segments.files:
            limit = min(cell * LITE_UNIT_BYTES - file.start, file.size)
            if limit <= 0:
                return
            file.ensure(0, limit)
            at = file.map.buffer.find(wanted, 0, limit)
            while at >= 0:
                if at % LITE_UNIT_BYTES == 0:
                    yield self._topics.units.unit((file.start + at) // LITE_UNIT_BYTES)
                at = file.map.buffer.find(wanted, at + 1, limit)

    def units(self, queue: LiteQueue, first: int) -> Iterator[tuple[int, int, int, int]]:
        """Yields queue offset, physical offset, size and tags code of the units of a queue, from the offset ``first``
        on.
        """
        for start in range(max(first, queue.min_offset), queue.max_offset, _UNITS_AT_ONCE):
            content = queue.read_units(start, min(_UNITS_AT_ONCE, queue.max_offset - start))
            for number, unit in enumerate(UNIT.struct.iter_unpack(content)):
                if unit[1] != PREFILL_SIZE:
                    yield start + number, *unit

    def close(self) -> None:
        """Unmaps the units."""
        self._topics.close()
