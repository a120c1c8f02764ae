"""Converts a buffer of records to record batches: parses the records, selects rows, and builds columns. Every reader
uses this module inside ``read()``.

A batch holds up to 4,096 rows and about 1 MiB of records. A batch with many columns holds more bytes, because each
column of a batch has a fixed cost. It is collected in pieces of about 2 MiB, so parsed records are still in the
processor's cache when their columns are copied. The first batch of a task is small, so that ``LIMIT 1`` is quick.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rucola.arrow.buffers import Mask, from_bytes, mask_of, numbers_of
from rucola.arrow.columns import BatchBuilder
from rucola.arrow.expression import Expression, SqlCondition
from rucola.arrow.key_lookup import lookup_of
from rucola.arrow.lite_condition import EVERY_LITE, LiteCondition
from rucola.arrow.queue_begins import QueueBegins
from rucola.arrow.ranges import QueueRange
from rucola.arrow.rows import Facts, Rows, table_view
from rucola.common.columns import ROW_WIDTH, RecordColumn, WalkStop, new_table
from rucola.common.message_const import KEY_SEPARATOR
from rucola.errors import FormatError
from rucola.filter.sql import TruthValue, compile_sql
from rucola.formats import _columns_cy
from rucola.formats._message_cy import walk_records
from rucola.formats.checksum import crc32
from rucola.formats.lite import QUEUE_OFFSET_MAX, find_lite

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

CHECK_PHYSICAL_OFFSET = 4
FIRST_BATCH_ROWS = 256
BATCH_ROWS = 4096
BATCH_ROWS_MIN = 32
PIECE_BYTES_AIM = 2 << 20
"""Size in bytes of the records that are parsed before their columns are copied."""
BATCH_BYTES_AIM = 1 << 20
COLUMN_BYTES_AIM = 192 << 10
"""A batch with n columns should hold n times this many bytes of records, but at least ``BATCH_BYTES_AIM``. Each column
of a batch costs about 20 µs on its way to the JVM, whatever its length.
"""
BATCH_BYTES = 16 << 20
"""Largest size in bytes of the part of the log that a batch comes from; only a single record may be larger."""
QUEUE_ID_MAX = 1 << 16
"""Largest queue id for which an array of all queues of a topic is made; a store may have ids up to 2**31 - 1."""
Scanned = Callable[[int], None]
"""Called with the number of messages that a read has passed since the last call, whether they are chosen or not."""
_KEY_SEPARATOR = KEY_SEPARATOR.encode()
_FIRST_TOPIC = np.zeros(BATCH_ROWS, dtype=np.int32)


class RowChooser:
    """Selects the rows of the log that belong to a query.

    Args:
        expression: selects messages.
        wanted: queue intervals to keep; None if all rows are wanted.
        keys: keeps only messages that have one of them in KEYS or as their id; empty for all.
        scanned: is called with the number of messages within the intervals that have been looked at.
        lite: keeps only messages whose lite topic meets it.

    Attributes:
        needs_lite: whether ``choose`` needs the lite topics of the rows.
    """

    def __init__(
        self,
        expression: Expression,
        wanted: Sequence[QueueRange] | None = None,
        keys: Collection[str] = (),
        scanned: Scanned | None = None,
        lite: LiteCondition = EVERY_LITE,
    ) -> None:
        self._scanned = scanned
        self._lite = lite
        self.needs_lite = not lite.matches_all
        self._tags = self._condition = None
        if isinstance(expression, SqlCondition):
            self._condition = compile_sql(expression.sub_string)
        elif not expression.matches_all:
            self._tags = from_bytes([tag.encode() for tag in expression.tags], pa.binary())
        self._intervals = None if wanted is None else _intervals(wanted)
        self._parts = {} if wanted is None else _parts(wanted)
        """Starts and ends of the parts of queues that no interval describes, by topic and queue id."""
        self._begins = QueueBegins(wanted or ())
        self._marks = np.empty(BATCH_ROWS, dtype=np.uint8)
        """Marks of the rows of a piece; overwritten with each piece."""
        self._lookup = lookup_of(keys)
        self._keys = frozenset(key.encode() for key in keys)

    def choose(self, rows: Rows) -> Mask | None:
        """Marks the rows to keep; None for all of them."""
        kept, mask = rows.count, None
        if self._intervals is not None:
            kept, mask = self._in_intervals(rows)
            if self._begins.concern(rows):
                reached = self._begins.reached(rows, *_topics_of(rows))
                mask = reached if mask is None else mask & reached
                kept = int(np.count_nonzero(mask))
        if self._scanned is not None:
            self._scanned(kept)
        if self._tags is not None:
            tags = rows.bytes_of(RecordColumn.TAGS_POS, RecordColumn.TAGS_LEN)
            tagged = mask_of(pc.is_in(tags, value_set=self._tags))
            mask = tagged if mask is None else mask & tagged
            kept = int(np.count_nonzero(mask))
        if self.needs_lite and kept:
            lite = lite_mask(self._lite, rows)
            mask = lite if mask is None else mask & lite
            kept = int(np.count_nonzero(mask))
        if self._keys:
            keyed = self._with_keys(rows)
            mask = keyed if mask is None else mask & keyed
            kept = int(np.count_nonzero(mask))
        if self._condition is not None and kept:
            mask = self._fulfilled(rows, np.arange(rows.count) if mask is None else np.flatnonzero(mask))
            kept = int(np.count_nonzero(mask))
        return mask if kept < rows.count else None

    def _with_keys(self, rows: Rows) -> Mask:
        """Marks the rows that have one of the keys."""
        texts = rows.bytes_of(RecordColumn.KEYS_POS, RecordColumn.KEYS_LEN).to_pylist()
        ids = rows.bytes_of(RecordColumn.UNIQ_KEY_POS, RecordColumn.UNIQ_KEY_LEN).to_pylist()
        places = rows.numbers(RecordColumn.PHYSICAL_OFFSET).tolist()
        offsets = self._lookup.physical_offsets
        return np.fromiter(
            (
                (msg_id in self._keys if msg_id is not None else place in offsets)
                or (text is not None and not self._keys.isdisjoint(text.split(_KEY_SEPARATOR)))
                for text, msg_id, place in zip(texts, ids, places, strict=True)
            ),
            np.bool_,
            rows.count,
        )

    def _fulfilled(self, rows: Rows, candidates: npt.NDArray[np.int64]) -> Mask:
        """Marks the candidates that fulfil the condition; there is at least one candidate."""
        assert self._condition is not None
        places = array("q", bytes(16 * len(candidates)))
        view = np.frombuffer(places, np.int64).reshape(-1, 2)
        view[:, 0] = rows.numbers(RecordColumn.PROPERTIES_POS)[candidates]
        view[:, 1] = np.maximum(rows.numbers(RecordColumn.PROPERTIES_LEN)[candidates], 0)
        outcomes = bytearray(len(candidates))
        with memoryview(rows.source) as source:
            self._condition.match(source, places, len(candidates), outcomes)
        mask = np.zeros(rows.count, dtype=np.bool_)
        mask[candidates[np.frombuffer(outcomes, np.uint8) == TruthValue.TRUE]] = True
        return mask

    def _in_intervals(self, rows: Rows) -> tuple[int, Mask | None]:
        """Returns the number of wanted rows, and a mask that marks them; None may stand for all rows."""
        assert self._intervals is not None
        if len(self._intervals) == 1 and not self._parts:
            ((topic, (starts, ends)),) = self._intervals.items()
            kept = rows.mark(topic, starts, ends, self._marks)
            if kept >= 0:
                return kept, None if kept == rows.count else self._marks[: rows.count].view(np.bool_)
        topics, codes = _topics_of(rows)
        marks = np.zeros(rows.count, dtype=np.uint8)
        kept = 0
        for code, topic in enumerate(topics):
            if topic in self._intervals:
                starts, ends = self._intervals[topic]
                kept += _columns_cy.mark_intervals(rows.table, rows.count, codes, code, starts, ends, marks)
        mask = marks.view(np.bool_)
        if self._parts:
            self._mark_parts(rows, mask, topics, codes)
            kept = int(np.count_nonzero(mask))
        return kept, mask

    def _mark_parts(self, rows: Rows, mask: Mask, topics: Sequence[bytes], codes: npt.NDArray[np.int32]) -> None:
        """Marks the rows of the queues in ``_parts``."""
        queue_ids, queue_offsets = rows.numbers(RecordColumn.QUEUE_ID), rows.numbers(RecordColumn.QUEUE_OFFSET)
        for (topic, queue_id), borders in self._parts.items():
            if topic in topics:
                here = (queue_ids == queue_id) & (codes[: rows.count] == topics.index(topic))
                mask[here] = np.searchsorted(borders, queue_offsets[here], side="right") % 2 == 1


def lite_mask(condition: LiteCondition, rows: Rows) -> Mask:
    """Marks the rows whose lite topic meets ``condition``."""
    lengths = rows.numbers(RecordColumn.LITE_LEN)
    mask: Mask = lengths < 0 if condition.is_null else np.ones(rows.count, np.bool_)
    if condition.is_null is False or condition.below is not None or condition.least or condition.names is not None:
        mask = mask & (lengths >= 0)
    if not mask.any():
        return mask
    names = rows.text_of(RecordColumn.LITE_POS, RecordColumn.LITE_LEN)
    if condition.names is not None:
        texts = [name.encode() for name in condition.names]
        mask = mask & mask_of(pc.is_in(names, value_set=from_bytes(texts, pa.string())))
    if condition.least:
        mask = mask & mask_of(pc.fill_null(pc.greater_equal(names, condition.least), fill_value=False))
    if condition.below is not None:
        mask = mask & mask_of(pc.fill_null(pc.less(names, condition.below), fill_value=False))
    return mask


class Scanner:
    """Converts parts of the log to batches; reuses its record table.

    Args:
        builder: builds the columns.
        chooser: chooses the rows.
    """

    def __init__(self, builder: BatchBuilder, chooser: RowChooser) -> None:
        self._builder = builder
        self._chooser = chooser
        self._finds_lite = builder.needs_lite or chooser.needs_lite
        self._table = new_table(BATCH_ROWS)
        self._table_view = memoryview(self._table)
        self._bytes_aim = max(BATCH_BYTES_AIM, COLUMN_BYTES_AIM * len(builder.schema))
        self._rows_max = FIRST_BATCH_ROWS
        self._piece_rows_max = FIRST_BATCH_ROWS

    def batches(
        self,
        source: ReadableBuffer,
        position: int,
        limit: int,
        base_offset: int,
        name: str,
        check: int,
        stretches: Sequence[int] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Yields batches of the records in ``source[position:limit]``; ends at the limit or at an end-of-file record.

        Args:
            source: buffer with the records; the batches are copies and do not need it.
            position: a record start.
            limit: a record end.
            base_offset: physical offset of byte 0 of ``source``.
            name: name of the source, for the error.
            check, stretches: as in ``walk_records``.

        Raises:
            FormatError: a record is missing where one must be.
        """
        self._builder.begin()
        with memoryview(source) as view:
            walk = LogWalk(view, position, limit, base_offset, name, check, stretches)
            while not walk.is_done:
                start = walk.position
                rows, walked = self._collect(walk)
                if rows is not None:
                    yield from self._builder.batches(rows)
                if walked:
                    self._note_sizes((walk.position - start) // walked)

    def _note_sizes(self, record_bytes: int) -> None:
        """Chooses the number of rows of the next batch from the average size of a record in the last one."""
        self._rows_max = min(BATCH_ROWS, max(BATCH_ROWS_MIN, self._bytes_aim // record_bytes))
        pieces = max(1, round(self._rows_max * record_bytes / PIECE_BYTES_AIM))
        self._piece_rows_max = -(-self._rows_max // pieces)

    def _collect(self, walk: LogWalk) -> tuple[Rows | None, int]:
        """Collects the rows of one batch, piece by piece; returns them, and the number of records walked."""
        end = walk.position + BATCH_BYTES
        rows: Rows | None = None
        walked = kept = 0
        # A batch ends before it is quite full: the chosen rows of ever smaller pieces would cost more than they bring.
        while self._rows_max - kept > self._piece_rows_max // 2 and not walk.is_done:
            table = self._table_view[kept * ROW_WIDTH :]
            start = walk.position
            count = walk.next_piece(table, min(self._piece_rows_max, self._rows_max - kept), end, 0 if walked else 1)
            if count == 0:
                break
            walked += count
            piece = self._chosen(walk.source, table, count)
            if piece is not None:
                kept += piece.count
                rows = piece if rows is None else _joined(rows, piece, self._table, kept)
                self._builder.collect(rows, self._rows_max, BATCH_BYTES)
            if walk.position + (walk.position - start) > end:
                break  # Most of another piece would be walked now, cut off, and walked again for the next batch.
        return rows, walked

    def _chosen(self, source: ReadableBuffer, table: memoryview, count: int) -> Rows | None:
        """Moves the chosen rows of a piece to the front; None if no row is chosen."""
        if self._finds_lite:
            find_lite(source, table, count, QUEUE_OFFSET_MAX)
        rows = Rows(source, table, count, walked=True)
        mask = self._chooser.choose(rows)
        if mask is None:
            return rows
        kept = int(np.count_nonzero(mask))
        if kept == 0:
            return None
        view = table_view(table)
        view[:kept] = view[:count][mask]
        # The flags are those of the chosen rows only: bodies of other topics may be compressed.
        flags = Rows(source, table, kept).facts.sys_flags
        return Rows(source, table, kept, facts=Facts(flags, rows.facts.only_topic))


class LogWalk:
    """A walk through a part of the log; the arguments are those of ``Scanner.batches``."""

    def __init__(
        self,
        source: memoryview,
        position: int,
        limit: int,
        base_offset: int,
        name: str,
        check: int,
        stretches: Sequence[int],
    ) -> None:
        self.source = source
        self.position = position
        self.is_done = position >= limit
        self._limit = limit
        self._base_offset = base_offset
        self._name = name
        self._check = check
        self._stretches = array("q", stretches) if stretches else None

    def next_piece(self, table: memoryview, rows_max: int, end: int, rows_min: int) -> int:
        """Reads the next records into ``table``, but none that ends behind ``end``, except the first ``rows_min``.

        Returns:
            The number of records.

        Raises:
            FormatError: a record is missing where one must be.
        """
        count, after, stop = walk_records(
            self.source,
            self.source,
            self.position,
            self._limit,
            self._base_offset,
            table,
            rows_max,
            crc32,
            self._check,
            self._stretches,
        )
        if stop == WalkStop.TORN:
            raise FormatError("commit log record", after, "a whole record", "other bytes", self._name)
        if after > end and count > rows_min:
            starts = table_view(table)[:count, RecordColumn.RECORD_POS]
            count = max(rows_min, int(np.searchsorted(starts, end, side="right")) - 1)
            after, stop = int(starts[count]), int(WalkStop.TABLE_FULL)
        self.position = after
        self.is_done = stop != WalkStop.TABLE_FULL or after >= self._limit
        return count


def _joined(rows: Rows, piece: Rows, table: array[int], count: int) -> Rows:
    """The ``count`` rows of ``rows`` and of the ``piece`` that follows them in ``table``."""
    before, after = rows.facts, piece.facts
    topic = before.only_topic if before.only_topic == after.only_topic else None
    return Rows(rows.source, table, count, facts=Facts(before.sys_flags | after.sys_flags, topic))


def _topics_of(rows: Rows) -> tuple[list[bytes], npt.NDArray[np.int32]]:
    """The distinct topics, and for each row the index of its topic; there may be more indices than rows."""
    if rows.facts.only_topic is not None:  # the usual case: most stores have one busy topic
        return [rows.facts.only_topic], _FIRST_TOPIC
    topics = rows.bytes_of(RecordColumn.TOPIC_POS, RecordColumn.TOPIC_LEN).dictionary_encode()
    return topics.dictionary.to_pylist(), numbers_of(topics.indices, np.int32)


def gather_table(positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> array[int]:
    """A record table with only the positions and sizes of records; ``_columns_cy.gather`` copies these records."""
    table = new_table(len(positions))
    view = table_view(table)
    view[:, RecordColumn.RECORD_POS] = positions
    view[:, RecordColumn.RECORD_SIZE] = sizes
    return table


def _intervals(wanted: Sequence[QueueRange]) -> dict[bytes, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """For each topic, the start and end offset by queue id; a queue that is not wanted, or is in ``_parts``, has an
    empty interval.
    """
    intervals = {}
    parts = _parts(wanted)
    single = [one for one in wanted if _key(one) not in parts]
    for topic in {one.queue.topic for one in single}:
        own = [one for one in single if one.queue.topic == topic]
        starts = np.zeros(max(one.queue.queue_id for one in own) + 1, dtype=np.int64)
        ends = np.zeros_like(starts)
        for one in own:
            starts[one.queue.queue_id], ends[one.queue.queue_id] = one.start, one.end
        intervals[_key(own[0])[0]] = (starts, ends)
    return intervals


def _parts(wanted: Sequence[QueueRange]) -> dict[tuple[bytes, int], npt.NDArray[np.int64]]:
    """Starts and ends, in order, of the parts of each queue of which several are wanted, or whose id is too large for
    an array of all queues. Parts do not overlap.
    """
    borders: dict[tuple[bytes, int], list[int]] = {}
    for one in wanted:
        borders.setdefault(_key(one), []).extend((one.start, one.end))
    return {
        key: np.array(sorted(both), dtype=np.int64)
        for key, both in borders.items()
        if len(both) > 2 or key[1] > QUEUE_ID_MAX
    }


def _key(one: QueueRange) -> tuple[bytes, int]:
    return one.queue.topic.encode("utf-8", "surrogateescape"), one.queue.queue_id
