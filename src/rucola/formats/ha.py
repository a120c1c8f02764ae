"""The stream between a slave and a classic master (RocketMQ 5.3.3, ``DefaultHAConnection``, ``DefaultHAClient``).

The slave connects to the master's HA port and sends reports, 8 bytes each (``SLAVE_REPORT``). The first report of a
connection also asks: the master sends its log from there on. The master sends transfers: ``TRANSFER_HEADER``, then as
many bytes of its log as the header says. A transfer without bytes is a heartbeat. The stream has no checksum, no
version and no name of a log.
"""

from __future__ import annotations

import sys
from array import array
from typing import Final, NamedTuple

from rucola.errors import FormatError
from rucola.formats.layout import Field, Layout

SLAVE_REPORT: Final = Layout(
    "report of a slave",
    8,
    Field(
        "max_offset", "q", "Physical offset up to which the slave has the log; the first report asks for what follows."
    ),
)
TRANSFER_HEADER: Final = Layout(
    "header of a transfer",
    12,
    Field("physical_offset", "q", "Physical offset of the first byte; in a heartbeat, of the byte that would follow."),
    Field("body_bytes", "i", "Number of bytes of the log that follow this header; 0 in a heartbeat."),
)
TRANSFER_BYTES_MAX: Final = 4 << 20
"""Largest number of bytes of a transfer, header included: a slave of RocketMQ never completes a larger one."""


NEWEST_SEGMENT: Final = 0
"""First report of a slave that has nothing: it gets the newest segment, wherever that begins."""

FIRST_BYTE: Final = 1
"""Request for a log that begins at 0. Its first byte cannot be asked for: it is the high byte of a record's size, 0 for
a record below 16 MiB, and the first record's checks prove it.
"""


class TransferHeader(NamedTuple):
    """A decoded ``TRANSFER_HEADER``."""

    physical_offset: int
    body_bytes: int

    @property
    def is_heartbeat(self) -> bool:
        """Whether no bytes follow."""
        return self.body_bytes == 0


def encode_report(max_offset: int) -> bytes:
    """Returns a report of a slave.

    Args:
        max_offset: physical offset up to which the slave has the log; 0 or more.
    """
    return SLAVE_REPORT.pack(max_offset)


def encode_header(physical_offset: int, body_bytes: int) -> bytes:
    """Returns the header of a transfer.

    Args:
        physical_offset: physical offset of the first byte of the body.
        body_bytes: number of bytes that follow; 0 in a heartbeat.
    """
    return TRANSFER_HEADER.pack(physical_offset, body_bytes)


def decode_reports(reports: bytes) -> array[int]:
    """Returns the physical offsets in whole reports; they may be any numbers."""
    offsets = array("q", reports)
    if sys.byteorder == "little":
        offsets.byteswap()
    return offsets


def decode_header(header: bytes | bytearray | memoryview) -> TransferHeader:
    """Decodes the first bytes of a transfer.

    Args:
        header: at least ``TRANSFER_HEADER.size`` bytes.

    Raises:
        FormatError: the offset is negative, or the number of bytes is negative or above ``TRANSFER_BYTES_MAX``.
    """
    physical_offset, body_bytes = TRANSFER_HEADER.unpack(header)
    if physical_offset < 0:
        position = TRANSFER_HEADER.position("physical_offset")
        raise FormatError(TRANSFER_HEADER.what, position, "an offset of 0 or more", str(physical_offset))
    most = TRANSFER_BYTES_MAX - TRANSFER_HEADER.size
    if not 0 <= body_bytes <= most:
        position = TRANSFER_HEADER.position("body_bytes")
        raise FormatError(TRANSFER_HEADER.what, position, f"0 to {most} bytes", str(body_bytes))
    return TransferHeader(physical_offset, body_bytes)
