"""Declares the layout of a part of a file as a table of named fields; sizes, positions and codec are derived from
it.
"""

from __future__ import annotations

from struct import Struct, calcsize
from typing import Any, NamedTuple


class Field(NamedTuple):
    """One field: its name, its type as a ``struct`` code (``b``, ``h``, ``i``, ``q``), and what it means.

    The pages in ``docs/formats`` are generated from these descriptions.
    """

    name: str
    code: str
    meaning: str


class Layout:
    """Big-endian fields without gaps.

    Args:
        what: name in errors and documentation.
        size: number of bytes; must equal the sum of the fields.
        fields: in file order.
    """

    def __init__(self, what: str, size: int, *fields: Field) -> None:
        self.what = what
        self.fields = fields
        self.struct = Struct(">" + "".join(field.code for field in fields))
        self.size = self.struct.size
        if self.size != size:
            raise AssertionError(f"{what}: the fields take {self.size} bytes, {size} were declared")
        self._positions: dict[str, int] = {}
        position = 0
        for field in fields:
            self._positions[field.name] = position
            position += calcsize(">" + field.code)

    def position(self, name: str) -> int:
        """Returns the byte position of a field within the layout."""
        return self._positions[name]

    def pack(self, *values: int) -> bytes:
        """Returns the bytes for ``values``, one value per field."""
        return self.struct.pack(*values)

    def unpack(self, data: bytes | bytearray | memoryview, position: int = 0) -> tuple[Any, ...]:
        """Returns the values of all fields, read from ``position`` of ``data``.

        Raises:
            struct.error: if ``data`` is too short.
        """
        return self.struct.unpack_from(data, position)
