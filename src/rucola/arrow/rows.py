"""Rows of a record table as Arrow arrays, which are built from whole buffers, without a Python object per row.

The readers import this module only inside ``read()``, because a planning process must not pay for importing PyArrow and
NumPy. Every array owns its bytes, so the segment or receive buffer that it came from may be released as soon as a batch
is built.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from copy import copy
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rucola.arrow.buffers import Mask, bits, from_bytes, from_mask, from_numbers, numbers_of
from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.hosts import host_text
from rucola.common.sysflag import MessageSysFlag
from rucola.formats import _columns_cy

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

HOST_BYTES_V4 = 8
HOST_BYTES_V6 = 20
SCRATCH_COLUMN = ROW_WIDTH - 1
"""Index of a spare column behind the columns of ``RecordColumn``, for lengths that a reader computes."""
HOSTS_KEPT = 4096
HEX_PAIRS = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), dtype=np.uint16)
"""For each byte value, a 16-bit integer whose bytes in memory are the value's two upper-case hex digits in ASCII."""

text_of_host = lru_cache(HOSTS_KEPT)(host_text)


class Facts(NamedTuple):
    """What holds for all rows of a batch."""

    sys_flags: int
    """All bits that are set in the sysFlag of any row."""
    only_topic: bytes | None
    """The topic of all rows if they are known to share one, which is the usual case; otherwise None."""


class Rows:
    """The first ``count`` rows of a record table, and the buffer into which their positions point.

    Args:
        source: buffer with the records.
        table: rows with the columns of ``RecordColumn``.
        count: number of rows to use, at least 1.
        walked: whether the rows are those that ``walk_records`` wrote for consecutive records. Only then does
            ``SAME_TOPIC`` compare a row with the row before it.
        facts: what is known of the rows; without it, they are examined.
        start: index of the first row in its batch.
    """

    def __init__(
        self,
        source: ReadableBuffer,
        table: array[int] | memoryview,
        count: int,
        walked: bool = False,
        facts: Facts | None = None,
        start: int = 0,
    ) -> None:
        self.source = source
        self.table = table
        self.count = count
        self.start = start
        self.plain_bodies: pa.Array | None = None
        """Decompressed bodies of the compressed rows, in order, if the query wants them."""
        self._walked = walked
        self._facts = facts

    def with_plain(self, bodies: pa.Array) -> Rows:
        """Returns the same rows with these decompressed bodies."""
        rows = copy(self)
        rows.plain_bodies = bodies
        return rows

    @cached_property
    def view(self) -> npt.NDArray[np.int64]:
        """The rows as a NumPy matrix over the same memory; most batches do not need it."""
        return table_view(self.table)[: self.count]

    @property
    def facts(self) -> Facts:
        """What holds for all rows."""
        return self._facts or self._examine()

    def _examine(self) -> Facts:
        flags, is_one_topic = _columns_cy.survey(self.table, self.count)
        topic = None
        if self._walked and is_one_topic:
            start, size = self.table[RecordColumn.TOPIC_POS], self.table[RecordColumn.TOPIC_LEN]
            topic = bytes(memoryview(self.source)[start : start + size])
        self._facts = Facts(flags, topic)
        return self._facts

    def mark(
        self,
        topic: bytes,
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        marks: npt.NDArray[np.uint8],
    ) -> int:
        """Sets each row's entry of ``marks`` to 1 if its queue offset lies in the interval of its queue, otherwise to
        0; returns the number of ones, or -1 if a row has another topic. Only for walked rows.

        The facts are noted on the way, which saves a second pass over the rows.
        """
        kept, flags = _columns_cy.mark_topic(self.source, self.table, self.count, topic, starts, ends, marks)
        if kept >= 0:
            self._facts = Facts(flags, topic)
        return kept

    def numbers(self, column: int) -> npt.NDArray[np.int64]:
        """A view of one column of integers."""
        return self.view[:, column]

    def numbers_of_row(self, number: int) -> list[int]:
        """All integers in the row with index ``number``."""
        numbers: list[int] = self.view[number].tolist()
        return numbers

    def part(self, start: int, end: int) -> Rows:
        """The rows from ``start`` up to, but not including, ``end``."""
        table = memoryview(self.table)[start * ROW_WIDTH : end * ROW_WIDTH]
        return Rows(self.source, table, end - start, facts=self.facts, start=start)

    def bytes_of(self, pos_column: RecordColumn, len_column: int) -> pa.Array:
        """A column of byte strings; a length below 0 means null."""
        missing, buffers = self._gathered(pos_column, len_column)
        return pa.Array.from_buffers(pa.binary(), self.count, buffers, missing)

    def text_of(self, pos_column: RecordColumn, len_column: int) -> pa.Array:
        """A column of texts; see ``text``."""
        missing, buffers = self._gathered(pos_column, len_column)
        if _columns_cy.is_ascii(buffers[2]):
            return pa.Array.from_buffers(pa.string(), self.count, buffers, missing)
        return text(pa.Array.from_buffers(pa.binary(), self.count, buffers, missing))

    def _gathered(self, pos_column: RecordColumn, len_column: int) -> tuple[int, list[Any]]:
        """The number of nulls in a column of byte strings, and Arrow's buffers: validity, offsets, bytes."""
        size, missing = _columns_cy.count_bytes(self.table, self.count, len_column)
        values = pa.allocate_buffer(size)
        offsets = pa.allocate_buffer(4 * (self.count + 1))
        view = memoryview(offsets).cast("B").cast("i")
        _columns_cy.gather(self.source, self.table, self.count, pos_column, len_column, values, view)
        return missing, [validity(self.numbers(len_column) >= 0) if missing else None, offsets, values]

    def leave_out_checksums(self) -> None:
        """Removes the checksum that the store appended to the properties of each row's message."""
        _columns_cy.leave_out_checksums(self.source, self.table, self.count)

    @cached_property
    def properties_text(self) -> pa.Array:
        """The property texts in their stored form."""
        return self.bytes_of(RecordColumn.PROPERTIES_POS, RecordColumn.PROPERTIES_LEN)

    def hosts(self, pos_column: RecordColumn, v6: MessageSysFlag) -> pa.Array:
        """The bytes of one kind of host, 8 or 20 bytes per row.

        Args:
            pos_column: column with the positions at which the hosts begin.
            v6: bit in sysFlag that is set if the host has 20 bytes.
        """
        is_v6 = (self.numbers(RecordColumn.SYS_FLAG) & int(v6)) != 0
        self.view[:, SCRATCH_COLUMN] = np.where(is_v6, HOST_BYTES_V6, HOST_BYTES_V4)
        return self.bytes_of(pos_column, SCRATCH_COLUMN)


def table_view(table: array[int] | memoryview) -> npt.NDArray[np.int64]:
    """A record table as a NumPy matrix over the same memory."""
    return np.frombuffer(table, dtype=np.int64).reshape(-1, ROW_WIDTH)


def validity(valid: Mask) -> Any:
    """Arrow's validity bitmap; None if every row has a value."""
    return None if valid.all() else bits(valid)


def text(values: pa.Array) -> pa.Array:
    """Converts byte strings to text; bytes that are not UTF-8 become U+FFFD, as in the JSON of the properties."""
    data = values.buffers()[2]
    if data is None or _columns_cy.is_ascii(data):
        return values.view(pa.string())  # a view skips the check that a cast makes; ASCII is always valid UTF-8
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = [(value or b"").decode("utf-8", "replace").encode() for value in values.to_pylist()]
        return pc.if_else(values.is_valid(), from_bytes(decoded, pa.string()), pa.nulls(len(values), pa.string()))


def host_texts(rows: Rows, pos_column: RecordColumn, v6: MessageSysFlag) -> pa.Array:
    """``address:port`` for each row; each different host is formatted only once.

    Args:
        rows: at least one.
        pos_column, v6: as in ``Rows.hosts``.
    """
    hosts = rows.hosts(pos_column, v6)
    values = hosts.buffers()[2]
    if values.size != HOST_BYTES_V4 * len(hosts):
        different = hosts.dictionary_encode()
        return _texts_of_hosts(different.dictionary.to_pylist()).take(different.indices)
    different = from_numbers(np.frombuffer(values, np.uint64), pa.uint64()).dictionary_encode()
    hosts_seen = [host.tobytes() for host in numbers_of(different.dictionary, np.uint64)]
    return _texts_of_hosts(hosts_seen).take(different.indices)


def _texts_of_hosts(hosts: Iterable[bytes]) -> pa.Array:
    return from_bytes([text_of_host(host).encode() for host in hosts], pa.string())


def message_ids(rows: Rows, ids: pa.Array) -> pa.Array:
    """UNIQ_KEY, or the offset message id if the row has none (RocketMQ 5.3.3, MessageClientExt#getMsgId).

    Args:
        rows: the rows.
        ids: the UNIQ_KEY of each row, or null.
    """
    if ids.null_count == 0:
        return ids
    missing = rows.numbers(RecordColumn.UNIQ_KEY_LEN) < 0
    hosts = rows.hosts(RecordColumn.STORE_HOST_POS, MessageSysFlag.STORE_HOST_V6)
    widths = numbers_of(pc.binary_length(hosts), np.int32)
    for width in (HOST_BYTES_V4, HOST_BYTES_V6):
        mask = missing & (widths == width)
        count = int(np.count_nonzero(mask))
        if count:
            raw = np.empty((count, width + 8), dtype=np.uint8)
            raw[:, :width] = np.frombuffer(hosts.filter(from_mask(mask)).buffers()[2], np.uint8, count * width).reshape(
                -1, width
            )
            raw[:, width:] = (
                rows.numbers(RecordColumn.PHYSICAL_OFFSET)[mask].astype(">i8").view(np.uint8).reshape(-1, 8)
            )
            ids = pc.replace_with_mask(ids, from_mask(mask), _hex_texts(raw))
    return ids


def _hex_texts(raw: npt.NDArray[np.uint8]) -> pa.Array:
    count, width = raw.shape
    offsets = np.arange(count + 1, dtype=np.int32) * (2 * width)
    digits = np.ascontiguousarray(HEX_PAIRS[raw])
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(digits)])
