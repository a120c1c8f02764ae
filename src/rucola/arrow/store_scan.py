"""The scans of a store directory, run in tasks. ``scan_log`` reads the log in order. ``scan_queue`` reads the records
to which the units of a queue point. ``scan_records`` reads single records. No scan opens the store. Before the first
row, a task maps all files of its range, so it does not matter if a file is deleted later.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rucola.arrow.columns import BatchBuilder
from rucola.arrow.offsets import queue_text
from rucola.arrow.ranges import FileSpan, LogRange, QueueRange, RecordRange, UnitRange
from rucola.arrow.read_options import ReadOptions
from rucola.arrow.scanner import (
    BATCH_BYTES,
    BATCH_ROWS,
    CHECK_PHYSICAL_OFFSET,
    RowChooser,
    Scanned,
    Scanner,
    gather_table,
)
from rucola.common.columns import RecordColumn
from rucola.common.key_builder import SCHEDULE_TOPIC
from rucola.errors import DataLossError, DiskError, StoreDamagedError
from rucola.filter.tag import TagExpression
from rucola.formats import _columns_cy
from rucola.runtime.file_map import FileMap
from rucola.runtime.files import Files

UNIT = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
PREFILL_SIZE = 0x7FFFFFFF
"""Record size in the units before a queue's first entry; these units point at no record."""
_EVERYWHERE = (0, (1 << 63) - 1)
PHYSICAL_OFFSET_AT = 28
"""Position of the physical offset in a record."""

logger = logging.getLogger(__name__)

Numbers = npt.NDArray[np.int64]


def scan_log(
    options: ReadOptions, builder: BatchBuilder, piece: LogRange, scanned: Scanned | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the wanted rows from a piece of the log.

    Raises:
        DataLossError: a file is gone, and ``failOnDataLoss`` is set.
        FormatError: a record is missing where one must be.
    """
    scanner = Scanner(builder, RowChooser(options.expression, piece.wanted, options.keys, scanned, options.lite))
    with _mapped(options, piece.segments, piece.wanted[0]) as files:
        for span, segment in files:
            position = max(piece.start_physical_offset, span.start) - span.start
            limit = min(piece.end_physical_offset, span.end) - span.start
            yield from scanner.batches(
                segment.buffer, position, limit, span.start, span.path, CHECK_PHYSICAL_OFFSET, span.stretches
            )


def scan_queue(
    options: ReadOptions, builder: BatchBuilder, piece: UnitRange, scanned: Scanned | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of an interval of one queue, in queue order.

    Raises:
        DataLossError: a file is gone, and ``failOnDataLoss`` is set.
        StoreDamagedError: a unit points at a position that does not hold the unit's record.
    """
    scanner = Scanner(builder, RowChooser(options.expression, keys=options.keys, lite=options.lite))
    codes = None
    # Units of the schedule topic hold the due time, units of other topics the hash of the tag.
    tags = options.expression
    if isinstance(tags, TagExpression) and not tags.matches_all and piece.wanted.queue.topic != SCHEDULE_TOPIC:
        codes = np.array(sorted(tags.codes), dtype=np.int64)
    with (
        _mapped(options, piece.units, piece.wanted) as unit_files,
        _mapped(options, piece.segments, piece.wanted) as segments,
    ):
        for span, file in unit_files:
            first = max(piece.wanted.start * UNIT.itemsize, span.start) - span.start
            last = min(piece.wanted.end * UNIT.itemsize, span.end) - span.start
            for at in range(first, last, BATCH_ROWS * UNIT.itemsize):
                count = min(BATCH_ROWS, (last - at) // UNIT.itemsize)
                positions, sizes = _entries(np.frombuffer(file.buffer, UNIT, count, at), codes)
                for source, path, stretches in _records(segments, positions, sizes):
                    yield from scanner.batches(source, 0, len(source), 0, path, 0, stretches)
                if scanned is not None:
                    scanned(count)


def scan_records(
    options: ReadOptions, builder: BatchBuilder, piece: RecordRange, scanned: Scanned | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the wanted rows of single records, in log order.

    Raises:
        DataLossError: a file is gone, and ``failOnDataLoss`` is set.
        StoreDamagedError: there is no record at a physical offset.
    """
    scanner = Scanner(builder, RowChooser(options.expression, piece.wanted, options.keys, scanned, options.lite))
    with _mapped(options, piece.segments, piece.wanted[0]) as segments:
        positions, sizes = (np.array(numbers, np.int64) for numbers in (piece.physical_offsets, piece.sizes))
        for source, path, stretches in _records(segments, positions, sizes):
            yield from scanner.batches(source, 0, len(source), 0, path, 0, stretches)


def _entries(units: npt.NDArray[np.void], codes: Numbers | None) -> tuple[Numbers, Numbers]:
    """Physical offsets and sizes of the units that point at a record and may have one of the tags."""
    keep = units["size"] != PREFILL_SIZE
    if codes is not None:
        keep &= np.isin(units["tags_code"], codes)
    return units["physical_offset"][keep].astype(np.int64), units["size"][keep].astype(np.int64)


def _records(
    segments: Sequence[tuple[FileSpan, FileMap]], positions: Numbers, sizes: Numbers
) -> Iterator[tuple[bytearray, str, tuple[int, ...]]]:
    """Yields the records, copied into chunks of at most ``BATCH_BYTES``. With each chunk comes the path of its segment,
    and the positions in the chunk at which a record without checksum has lost its end: all or none.
    """
    for span, segment in segments:
        here = (positions >= span.start) & (positions < span.end)
        own, own_sizes = positions[here] - span.start, sizes[here]
        ends = np.cumsum(own_sizes)
        written = _in_stretches(positions[here], span.stretches)
        borders = np.append(np.flatnonzero(np.diff(written)) + 1, len(own))
        start = 0
        while start < len(own):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + BATCH_BYTES, side="right")))
            stop = min(stop, int(borders[np.searchsorted(borders, start, side="right")]))
            stretches = _EVERYWHERE if written[start] else ()
            yield _copied(span, segment, own[start:stop], own_sizes[start:stop]), span.path, stretches
            start = stop


def _in_stretches(positions: Numbers, stretches: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Marks the physical offsets that lie in one of the stretches."""
    marks = np.zeros(len(positions), dtype=np.bool_)
    for first, last in zip(stretches[::2], stretches[1::2], strict=True):
        marks |= (positions >= first) & (positions < last)
    return marks


def _copied(span: FileSpan, segment: FileMap, positions: Numbers, sizes: Numbers) -> bytearray:
    """Consecutive records of one segment; each is checked against its unit."""
    wrong = (sizes <= PHYSICAL_OFFSET_AT + 8) | (positions + sizes > span.size)
    if not wrong.any():
        out = bytearray(int(sizes.sum()))
        offsets = array("i", bytes(4 * (len(positions) + 1)))
        table = gather_table(positions, sizes)
        _columns_cy.gather(
            segment.buffer, table, len(positions), RecordColumn.RECORD_POS, RecordColumn.RECORD_SIZE, out, offsets
        )
        fields = np.frombuffer(offsets, np.int32)[:-1, None] + np.arange(PHYSICAL_OFFSET_AT, PHYSICAL_OFFSET_AT + 8)
        found = np.frombuffer(out, np.uint8)[fields].view(">i8")[:, 0]
        wrong = found != positions + span.start
        if not wrong.any():
            return out
    at = int(positions[np.argmax(wrong)])
    raise StoreDamagedError(
        span.path, at, "a consume queue points here, but there is no whole record here", "run rucola store verify"
    )


@contextmanager
def _mapped(
    options: ReadOptions, spans: Sequence[FileSpan], wanted: QueueRange
) -> Iterator[list[tuple[FileSpan, FileMap]]]:
    """Maps the files for reading; a missing file is data loss."""
    files = Files()
    with ExitStack() as stack:
        mapped = []
        for span in spans:
            try:
                files.hold(span.path.rpartition("/")[0])
                segment = files.map_file(span.path, span.size, writable=False)
            except DiskError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                lost = DataLossError(queue_text(wanted.queue), wanted.start, wanted.end, wanted.end, wanted.end)
                if options.fail_on_data_loss:
                    raise lost from error
                logger.warning(
                    "%s is missing; the query continues without it, because failOnDataLoss is off", span.path
                )
                continue
            stack.callback(segment.close)
            mapped.append((span, segment))
        yield mapped
