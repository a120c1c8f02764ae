"""Plans reads from a store directory, on the driver: finds queues and offsets, and divides the work among tasks.

The directory is opened through ``OfflineStore`` and never changed. The end offsets are fixed when a plan is made, so
that the zeros and the half-written tail of a live log are never read. Tasks get the paths of the files they need.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from rucola.arrow.catalog import Bounds, Look, existing_queues
from rucola.arrow.offsets import Mark, queue_text
from rucola.arrow.ranges import (
    FileSpan,
    LogRange,
    QueueRange,
    RecordRange,
    SourceRange,
    UnitRange,
    WantedRanges,
    prefers_log_scan,
    split_log_span,
    split_queue_ranges,
)
from rucola.arrow.read_options import ReadOptions, ScanOrder
from rucola.common.columns import RecordColumn
from rucola.common.kernel_columns import RECORD_SIZE
from rucola.common.key_builder import LMQ_PREFIX, is_light_queue
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, StoreDamagedError
from rucola.formats.light_queue import allows_light_queues, is_lite, lite_topic
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.files import Files
from rucola.store.inspect.search import index_hits, indexed_span
from rucola.store.log.log_walk import queues_named_from
from rucola.store.offline.offline_store import OfflineStore

LITE_NAMES_MAX = 1000
"""Largest number of lite topics that a plan looks up."""
REFRESH_S = 0.1
"""The view of a live directory is kept for at least this many seconds; an idle stream asks for the view about 75 times
a second.
"""
REFRESH_PAUSE = 10
"""If reading the queue bounds of a view took t seconds, the view is kept for at least ``REFRESH_PAUSE`` * t seconds.
For some thousand queues, t is about 1.
"""
SAMPLE_UNITS = 512
SAMPLE_UNITS_MIN = 4
SAMPLE_UNITS_TOTAL = 16_384
"""An estimate of the wanted bytes examines at most this many entries, or ``SAMPLE_UNITS_MIN`` of each range if that is
more.
"""
UNIT_BYTES = 20
UNINDEXED_BYTES_MAX = 16 << 20
"""The driver reads the part of the log that is not in the index if this part has at most this many bytes. For a larger
part, looking at all queues is faster.
"""
LOOKUP_HITS_MAX = 100_000
"""Largest number of records that a key lookup reads one by one; a scan is faster for more."""
NEAR_PART = 16
"""The log is cut at record starts. A record start is near enough if it follows the desired cut by at most 1/16 of a
task's bytes.
"""

logger = logging.getLogger(__name__)


class _Span(NamedTuple):
    """A part of the log.

    Attributes:
        start: physical offset of the first wanted record.
        end: physical offset after the last.
        begins: for each wanted range, the physical offset of its first record; -1 if it has none.
    """

    start: int
    end: int
    begins: tuple[int, ...]


class StoreCatalog:
    """``Catalog`` over a directory. The broker name is an option, because the directory does not contain it."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock if clock is not None else SystemClock()
        self._store = OfflineStore(options.store_path, commit_log_path=options.commit_log_path or None)
        self._read_places()
        self._refreshed_s = self._clock.monotonic()
        self._look_s = 0.0
        """Total time spent on reading queue bounds since the last refresh, in seconds."""
        self._found: set[MessageQueue] | None = None
        self._known_bounds: dict[MessageQueue, Bounds] = {}

    def queues(self, *, all_needed: bool) -> list[MessageQueue]:
        """Queues of the subscription that have a directory."""
        existing = self.existing()
        wrong = {queue.broker_name for queue in self._options.subscription.queues} - {self._options.broker_name}
        if wrong and all_needed:
            raise ConfigError(
                "assign", ", ".join(sorted(wrong)), f"the brokerName of the directory, {self._options.broker_name}"
            )
        return existing_queues(self._options.subscription, existing, all_needed=all_needed)

    def existing(self) -> set[MessageQueue]:
        """All queues in the directory."""
        self._refresh()
        if self._found is None:
            names = self._store.queue_names()
            self._found = {MessageQueue(topic, self._options.broker_name, queue_id) for topic, queue_id in names}
        return self._found

    def bounds(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """The bounds of each queue, as of the last refresh of the directory."""
        existing = self.existing()
        found = {}
        began_s = self._clock.monotonic()
        for queue in queues:
            if queue not in existing:
                continue
            if queue not in self._known_bounds:
                held = self._store.queue_range(queue.topic, queue.queue_id)
                self._known_bounds[queue] = Bounds(held.min_offset, held.max_offset)
            found[queue] = self._known_bounds[queue]
        self._look_s += self._clock.monotonic() - began_s
        return found

    def look(self, queues: Iterable[MessageQueue]) -> Look:
        """The result of ``bounds``; no queue is in ``waiting``, because no broker is asked.

        Raises:
            ConfigError: a queue of the checkpoint has a different broker name from the directory.
        """
        wanted = list(queues)
        for queue in wanted:
            if queue.broker_name != self._options.broker_name:
                allowed = f"{queue.broker_name}, the name that the checkpoint has for {queue_text(queue)}"
                raise ConfigError("brokerName", self._options.broker_name, allowed)
        return Look(self.bounds(wanted))

    def marks(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, Mark | None]:
        """The ``Mark`` of the record at the given offset of each queue; queues without an entry there are left out."""
        found: dict[MessageQueue, Mark | None] = {}
        for queue, at in places.items():
            for _, physical_offset, _, _ in self._store.units(queue.topic, queue.queue_id, at, at + 1):
                found[queue] = Mark(self._store.store_timestamp(physical_offset), physical_offset)
        return found

    def logged(self, queue: MessageQueue, queue_offset: int, mark: Mark) -> bool | None:
        """Whether the log has the record of the mark; None if this part of the log has expired."""
        log = self._store.log
        if mark.physical_offset < self._store.min_offset():
            return None
        row = log.row_at(mark.physical_offset)
        if row is None or row[RecordColumn.STORE_TIMESTAMP] != mark.store_timestamp_ms:
            return False
        if is_light_queue(queue.topic):  # the record is one of another topic
            return True
        topic = log.topic_of(mark.physical_offset, row).decode("utf-8", "surrogateescape")
        place = row[RecordColumn.QUEUE_ID], row[RecordColumn.QUEUE_OFFSET]
        return topic == queue.topic and place == (queue.queue_id, queue_offset)

    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset whose message was stored at or after the time."""
        return self._store.offset_by_time(queue.topic, queue.queue_id, timestamp_ms)

    def mean_record_bytes(self, queue: MessageQueue, start: int, end: int) -> int:
        """Mean size in bytes of the first records from offset ``start``."""
        return self._mean_record_bytes(queue, start, end, SAMPLE_UNITS)

    def _mean_record_bytes(self, queue: MessageQueue, start: int, end: int, sample: int) -> int:
        last = min(end, start + sample)
        sizes = [size for _, _, size, _ in self._store.units(queue.topic, queue.queue_id, start, last)]
        return max(1, sum(sizes) // len(sizes)) if sizes else 1

    def plan(self, ranges: Sequence[QueueRange]) -> list[SourceRange]:
        """Log ranges or queue ranges, as ``scanOrder`` says; ``auto`` chooses those that can be read faster."""
        wanted = [one for one in ranges if one.count > 0]
        span = self._span(wanted)
        if span is None:
            return []
        if self._scans_log(wanted, span):
            return self._log_ranges(wanted, span)
        pieces = split_queue_ranges(wanted, self._options.partitions_min, self._records_max(wanted))
        planned = (self._unit_range(piece) for piece in pieces)
        return [one for one in planned if one is not None]

    def are_dense(self, ranges: Sequence[QueueRange]) -> bool:
        """Whether the entries of the queues show that a scan of the ranges finds one message at each offset."""
        wanted = [one for one in ranges if one.count > 0]
        if any(is_light_queue(topic) or self.is_batch(topic) for topic in {one.queue.topic for one in wanted}):
            return False
        span = self._span(wanted)
        if span is None:
            return not wanted
        from rucola.arrow.dense_queues import are_dense  # planning does not need NumPy

        return are_dense(self._store, wanted, (span.start, span.end))

    def is_batch(self, topic: str) -> bool:
        """Whether the queues of a topic are of type BatchCQ, which cannot be planned."""
        return self._store.is_batch(topic)

    def holders(
        self, queues: Sequence[MessageQueue], keys: Iterable[str], physical_offsets: Iterable[int]
    ) -> list[MessageQueue]:
        """The queues of the records that the index finds, and of all records that are not in the index.

        Returns all queues if the index cannot be used or lacks a large part of the log. Reading the bounds of a queue
        takes half a millisecond. Without this function, a lookup in a store with very many queues would spend its time
        on queues without the key.
        """
        store, files = self._store, Files()
        topics = {queue.topic for queue in queues}
        indexed = indexed_span(store, files)
        if indexed is None or any(map(is_light_queue, topics)):
            return list(queues)
        begin, end = store.min_offset(), store.end_offset()
        rest = [(begin, min(indexed[0], end)), (max(indexed[1], begin), end)]
        if sum(max(0, last - first) for first, last in rest) > UNINDEXED_BYTES_MAX:
            return list(queues)
        found: set[tuple[bytes, int]] = set()
        for first, last in rest:
            store.log.segments.set_read_ahead(True)  # the log is read in order from ``first`` to ``last``
            unindexed = queues_named_from(store.log, first, last) if first < last else set()
            self._read_places()
            if unindexed is None:  # the log cannot be read up to ``last``; the scan will report the damage
                return list(queues)
            found |= unindexed
        for at in {*physical_offsets, *(hit for key in keys for hit in index_hits(store, files, topics, key))}:
            row = store.log.row_at(at)
            if row is not None:
                found.add((store.log.topic_of(at, row), row[RecordColumn.QUEUE_ID]))
        return [one for one in queues if (one.topic.encode("utf-8", "surrogateescape"), one.queue_id) in found]

    def plan_lookup(
        self, ranges: Sequence[QueueRange], keys: Iterable[str], physical_offsets: Iterable[int]
    ) -> list[SourceRange] | None:
        """Pieces with all messages of the ranges that have one of ``keys`` in KEYS or as UNIQ_KEY.

        The index finds most of these messages. A scan finds those that were stored before the index's first record, or
        after its last record.

        Args:
            ranges: where to look.
            keys: the keys to look for.
            physical_offsets: further positions to look at, if records begin there.

        Returns:
            The pieces; None if the index cannot be used: there is none, it has too many hits, or it does not cover a
            queue.
        """
        wanted = [one for one in ranges if one.count > 0]
        log_span, files = self._span(wanted), Files()
        if log_span is None:
            return []
        indexed = indexed_span(self._store, files)
        if indexed is None or any(is_light_queue(one.queue.topic) for one in wanted):
            return None
        topics = {one.queue.topic for one in wanted}
        hits = {at for key in keys for at in index_hits(self._store, files, topics, key)} | set(physical_offsets)
        # messages that are not in the index are found by a scan
        hits = {at for at in hits if indexed[0] <= at < indexed[1]}
        if len(hits) > LOOKUP_HITS_MAX:
            return None
        pieces: list[SourceRange] = []
        for start, end in (
            (log_span.start, min(indexed[0], log_span.end)),
            (max(indexed[1], log_span.start), log_span.end),
        ):
            if start < end:
                pieces += self._log_ranges(wanted, log_span._replace(start=start, end=end))
        found = [(at, int(rows.table[RECORD_SIZE])) for at in sorted(hits) if (rows := self._store.rows_at(at))]
        if found:
            at, sizes = zip(*found, strict=True)
            segments = self._segments(at[0], at[-1] + 1)
            pieces.insert(0, RecordRange(at, sizes, WantedRanges(wanted, log_span.begins), segments))
        return pieces

    def plan_lite(self, ranges: Sequence[QueueRange], names: Collection[str]) -> list[SourceRange] | None:
        """Pieces with all messages of the ranges in one of the lite topics ``names`` of their topic.

        The store's units of lite topics tell where these records are; a scan finds those that have no unit yet. Returns
        None if the store keeps no lite topics, if they are damaged, or if there are too many names or records.
        """
        wanted = [one for one in ranges if one.count > 0]
        topics = {one.queue.topic for one in wanted}
        span = self._span(wanted)
        if span is None:
            return []
        parents = [topic.encode("utf-8", "surrogateescape") for topic in topics]
        if len(names) * len(topics) > LITE_NAMES_MAX or not all(map(_may_be_parent, parents)):
            return None
        lites = [lite_topic(b"%b$%b" % (parent, name.encode())) for parent in parents for name in names]
        found = self._lite_records([lite for lite in lites if is_lite(lite)])
        if found is None:
            return None
        places, covered_to = found
        pieces: list[SourceRange] = []
        if covered_to < span.end:
            start = max(covered_to, span.start)
            pieces += self._log_ranges(wanted, span._replace(start=start)) if start < span.end else ()
        places = [place for place in places if span.start <= place[0] < min(covered_to, span.end)]
        if places:
            at, sizes = zip(*places, strict=True)
            every = WantedRanges(wanted, span.begins)
            pieces.insert(0, RecordRange(at, sizes, every, self._segments(at[0], at[-1] + 1)))
        return pieces

    def _lite_records(self, topics: Collection[bytes]) -> tuple[list[tuple[int, int]], int] | None:
        """Physical offsets and sizes of the records in light queues of lite topics, and the physical offset below which
        these are all; None if the store does not tell them.
        """
        try:
            view = self._store.lite_view()
        except StoreDamagedError as error:
            logger.warning("lite topics are searched in the log: %s", error)
            return None
        if view is None:
            return None
        try:
            places = view.records(topics, LOOKUP_HITS_MAX)
            return None if places is None else (places, view.covered_to)
        finally:
            view.close()

    def close(self) -> None:
        """Unmaps all files of the store."""
        self._store.close()

    def _read_places(self) -> None:
        """Turns off read-ahead for the log, so that a page fault loads one page only. Planning reads single records all
        over the log. If each record caused megabytes of read-ahead, planning would load the whole log.
        """
        self._store.log.segments.set_read_ahead(False)

    def _refresh(self) -> None:
        now = self._clock.monotonic()
        if now - self._refreshed_s >= max(REFRESH_S, REFRESH_PAUSE * self._look_s):
            self._store.refresh()
            self._read_places()
            self._refreshed_s = now
            self._look_s = 0.0
            self._found = None
            self._known_bounds.clear()

    def _scans_log(self, wanted: Sequence[QueueRange], span: _Span) -> bool:
        order = self._options.scan_order
        for one in wanted:
            if self._store.is_batch(one.queue.topic):
                raise ConfigError("topic", one.queue.topic, "topics whose queue.type is not BatchCQ")
        # The records of a light queue belong to other topics; only the queue's entries show which records it contains.
        light = any(is_light_queue(one.queue.topic) for one in wanted)
        if order is ScanOrder.LOG and light:
            raise ConfigError("scanOrder", order, f"queue or auto for topics that begin with {LMQ_PREFIX}")
        if order is not ScanOrder.AUTO:
            return order is ScanOrder.LOG
        if light or self._options.records_per_partition_max is not None:
            return False
        return prefers_log_scan(self._wanted_bytes(wanted), span.end - span.start)

    def _records_max(self, wanted: Sequence[QueueRange]) -> int:
        """Largest number of records in a piece: the limit on records if it is set, otherwise the limit on bytes divided
        by the mean size.
        """
        if self._options.records_per_partition_max is not None:
            return self._options.records_per_partition_max
        count = sum(one.count for one in wanted)
        return max(1, self._options.bytes_per_partition_max * count // max(1, self._wanted_bytes(wanted)))

    def _wanted_bytes(self, wanted: Sequence[QueueRange]) -> int:
        """Size in bytes of all ranges, estimated from a sample of each; samples are smaller if there are many
        ranges.
        """
        sample = max(SAMPLE_UNITS_MIN, min(SAMPLE_UNITS, SAMPLE_UNITS_TOTAL // max(1, len(wanted))))
        return sum(one.count * self._mean_record_bytes(one.queue, one.start, one.end, sample) for one in wanted)

    def _log_ranges(self, wanted: Sequence[QueueRange], span: _Span) -> list[SourceRange]:
        options = self._options
        largest_first = sorted(wanted, key=lambda one: (-one.count, one.queue))
        segment_starts = [start for _, start, _ in self._store.log_segments()]

        def record_start_from(at: int) -> int:
            following = bisect_left(segment_starts, at)
            most = segment_starts[following] if following < len(segment_starts) else self._store.end_offset()
            return self._record_start_from(largest_first, at, most)

        pieces = split_log_span(
            span.start, span.end, options.bytes_per_partition_max, options.partitions_min, record_start_from
        )
        every = WantedRanges(wanted, span.begins)
        return [LogRange(start, end, every, self._segments(start, end)) for start, end in pieces]

    def _unit_range(self, wanted: QueueRange) -> UnitRange | None:
        span = self._span([wanted])
        if span is None:
            return None
        first, last = wanted.start * UNIT_BYTES, wanted.end * UNIT_BYTES
        files = self._store.queue_files(wanted.queue.topic, wanted.queue.queue_id)
        units = [FileSpan(path, unit * UNIT_BYTES, count * UNIT_BYTES) for path, unit, count in files]
        return UnitRange(
            wanted,
            tuple(one for one in units if one.start < last and one.end > first),
            self._segments(span.start, span.end),
        )

    def _segments(self, start: int, end: int) -> tuple[FileSpan, ...]:
        stretches = self._store.log.stretches or ()
        pairs = list(zip(stretches[::2], stretches[1::2], strict=True))
        spans = [
            FileSpan(
                path,
                at,
                size,
                tuple(offset for pair in pairs if pair[0] < at + size and pair[1] > at for offset in pair),
            )
            for path, at, size in self._store.log_segments()
        ]
        return tuple(one for one in spans if one.start < end and one.end > start)

    def _span(self, wanted: Sequence[QueueRange]) -> _Span | None:
        """The part of the log with the wanted records; None if there is no wanted record."""
        begins, ends = [], []
        for one in wanted:
            first = self._unit_from(one, one.start)
            last = self._unit_from(one, one.end - 1)
            begins.append(-1 if first is None else first[0])
            if first is not None and last is not None:
                ends.append(last[0] + last[1])
        if not ends:
            return None
        return _Span(min(begin for begin in begins if begin >= 0), max(ends), tuple(begins))

    def _unit_from(self, one: QueueRange, queue_offset: int) -> tuple[int, int] | None:
        """Physical offset and size of the record of the first entry in the range at or after ``queue_offset``. Entries
        that point at no record are skipped; None if no other entry is left.
        """
        units = self._store.units(one.queue.topic, one.queue.queue_id, queue_offset, one.end)
        return next(((physical_offset, size) for _, physical_offset, size, _ in units), None)

    def _is_entry(self, physical_offset: int) -> bool:
        """Whether the record's queue has an entry for the record. Bytes in a body may look like a record, but have no
        entry.
        """
        log = self._store.log
        row = log.row_at(physical_offset)
        if row is None:
            return False
        topic = log.topic_of(physical_offset, row).decode("utf-8", "surrogateescape")
        first = row[RecordColumn.QUEUE_OFFSET]
        units = self._store.units(topic, row[RecordColumn.QUEUE_ID], first, first + 1)
        return any(unit[:2] == (first, physical_offset) for unit in units)

    def _record_start_from(self, wanted: Sequence[QueueRange], physical_offset: int, nearest: int) -> int:
        """A record start at or after ``physical_offset``, but not after ``nearest``, which is a record start, too.

        The log itself usually shows the next start. If it shows none nearby, the queues are searched one by one. The
        search ends once a record is near enough (``NEAR_PART``), because searching thousands of queues takes too long.
        """
        near = physical_offset + self._options.bytes_per_partition_max // NEAR_PART
        log = self._store.log
        for start in log.record_starts(physical_offset, min(near, nearest)):
            if self._is_entry(start):
                return start
        for one in wanted:
            if nearest <= near:
                break
            low, high = one.start, one.end
            while low < high:
                middle = (low + high) // 2
                unit = self._unit_from(one, middle)
                if unit is None or unit[0] >= physical_offset:
                    high = middle
                else:
                    low = middle + 1
            unit = self._unit_from(one, low)
            if unit is not None:
                nearest = min(nearest, unit[0])
        return nearest


def _may_be_parent(topic: bytes) -> bool:
    return allows_light_queues(topic) and not is_light_queue(topic.decode("utf-8", "surrogateescape"))
