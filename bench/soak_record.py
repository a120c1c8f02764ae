"""Formats that all processes of a soak use: names, the beginning of a body, and its position in a stored record."""

from __future__ import annotations

import struct

MAGIC = b"soak"
HEAD = struct.Struct(">4sQQ")
"""Beginning of a body: magic, number in the ledger, and due time (monotonic clock of the machine, ns)."""
RECORD = struct.Struct(">I84x4sQQ")
"""Beginning of a stored record with IPv4 hosts: its size, 84 bytes that are skipped, and ``HEAD``, which begins the
body.
"""


def group_of(topic: str) -> str:
    """Returns the name of the group that consumes the topic."""
    return f"{topic}_group"
