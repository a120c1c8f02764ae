"""The memory for the events of a read.

A server reads from one connection at a time and handles the events at once, so its connections share one
``EventSpace``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from rucola.http2.columns import FIELD_COLUMNS, FIELD_LENGTH, FIELD_POSITION, FIELDS_WANTED, ROW_COLUMNS
from rucola.http2.hpack import WantedNames
from rucola.http2.limits import Http2Limits

ROWS_MAX = 64
"""Largest number of frames that are handled at a time."""


class EventSpace:
    """Rows of events, rows of fields, and the text of these fields; valid until the next read of any connection.

    Args:
        wanted: names of the fields that requests and trailers hand over, in lower case; no name twice.
        limits: the limits of the connections.

    Raises:
        ValueError: the names are not as they must be.

    Attributes:
        rows: rows of ``ROW_COLUMNS`` columns, see ``http2.columns``.
        fields: rows of ``width`` columns; ``ROW_FIELDS`` of an event says where its row begins.
        text: the values of the fields.
        width: number of columns in a row of ``fields``.
        names: the wanted names, for decoders.
    """

    __slots__ = ("fields", "names", "rows", "text", "width")

    def __init__(self, wanted: Sequence[bytes], limits: Http2Limits) -> None:
        if len(set(wanted)) != len(wanted) or any(name != name.lower() for name in wanted):
            raise ValueError(f"a name comes twice, or is not in lower case: {wanted}")
        self.names = WantedNames(wanted)
        self.width: int = self.names.width
        self.rows = array("q", bytes(8 * ROW_COLUMNS * 2 * ROWS_MAX))  # frames, then other events
        self.fields = array("q", bytes(8 * self.width * ROWS_MAX))
        self.text = bytearray(6 * max(limits.list_bytes_max, limits.table_bytes, 4096))  # two of the largest blocks

    def values(self, fields: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Returns the values of several fields; see ``value``. ``wanted`` is what ``columns`` has returned."""
        row, text, found = self.fields, self.text, list[bytes | None]()
        for length_column, position_column in wanted:
            length = row[fields + length_column]
            if length < 0:
                found.append(None)
            else:
                position = row[fields + position_column]
                found.append(bytes(text[position : position + length]))
        return found

    @staticmethod
    def columns(wanted: Iterable[int]) -> Sequence[tuple[int, int]]:
        """The columns for length and position of several fields, given by their places in the list of names."""
        first = [FIELDS_WANTED + place * FIELD_COLUMNS for place in wanted]
        return [(column + FIELD_LENGTH, column + FIELD_POSITION) for column in first]

    def value(self, fields: int, wanted: int) -> bytes | None:
        """Returns the value of a wanted field, given by its place in the list of names; None without the field.

        Args:
            fields: position of a row of fields.
            wanted: place of the name.
        """
        column = fields + FIELDS_WANTED + wanted * FIELD_COLUMNS
        length = self.fields[column + FIELD_LENGTH]
        if length < 0:
            return None
        position = self.fields[column + FIELD_POSITION]
        return bytes(self.text[position : position + length])
