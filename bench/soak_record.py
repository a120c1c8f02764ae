"""Conventions among the processes of a soak: names, the beginning of a body, and its position in a stored record."""

from __future__ import annotations

import struct

MAGIC = b"soak"
HEAD = struct.Struct(">4sQQ")
"""Magic, number in the ledger, and when it was due (monotonic clock of the machine, ns)."""
RECORD = struct.Struct(">I84x4sQQ")
"""The same at its place in a record with IPv4 hosts, whose body begins at byte 88, with the record's size before it."""


def group_of(topic: str) -> str:
    """The group that consumes the topic."""
    return f"{topic}_group"
