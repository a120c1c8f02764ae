"""The metadata of a record batch message in Arrow's IPC format.

PyArrow reads a message without copying its body. One call makes all columns of a batch this way, while
``pa.Array.from_buffers`` needs several calls for each column. The metadata of two batches with the same schema differ
only in the numbers at a few places. Readers import this module only inside ``read()``, like ``rucola.arrow.rows``.

Source: Arrow's columnar format, "Encapsulated message format", and its files Message.fbs and Schema.fbs.
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

import pyarrow as pa

from rucola.formats.column_plan import ALIGNMENT

SIZE_AT = 4
"""Position of the int32 size of the metadata; a message begins with the bytes FF FF FF FF."""
METADATA_AT = 8


class BatchMessage(NamedTuple):
    """The metadata of all record batches with one schema."""

    metadata: bytes
    """Everything before the body; a multiple of 64 bytes."""
    places: array[int]
    """Positions in ``metadata``, by ``MessagePlace``."""


def batch_message(schema: pa.Schema) -> BatchMessage:
    """Returns the metadata of a record batch of ``schema``, which has at least one column.

    PyArrow writes a batch of one row; a number 0 would be left out of the metadata.
    """
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    content = batch.serialize().to_pybytes()
    size = METADATA_AT + struct.unpack_from("<i", content, SIZE_AT)[0]
    message = _Table(content, METADATA_AT)
    header = message.table(2)
    places = array("q", (header.field(0), message.field(3), header.vector(1), header.vector(2)))
    metadata = bytearray(content[:size])
    metadata += bytes(-size % ALIGNMENT)
    struct.pack_into("<i", metadata, SIZE_AT, len(metadata) - METADATA_AT)
    return BatchMessage(bytes(metadata), places)


class _Table:
    """A table of FlatBuffers. The bytes at ``at`` say how far behind them the table begins."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content = content
        self._start: int = at + struct.unpack_from("<I", content, at)[0]

    def field(self, number: int) -> int:
        """Position of a field, by its number in the schema of the table."""
        offsets = self._start - struct.unpack_from("<i", self._content, self._start)[0]
        place: int = struct.unpack_from("<H", self._content, offsets + 4 + 2 * number)[0]
        return self._start + place

    def table(self, number: int) -> _Table:
        """The table to which a field refers."""
        return _Table(self._content, self.field(number))

    def vector(self, number: int) -> int:
        """Position of the first element of the vector to which a field refers."""
        at = self.field(number)
        ahead: int = struct.unpack_from("<I", self._content, at)[0]
        return at + ahead + 4
