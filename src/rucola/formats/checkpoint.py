"""The file ``checkpoint``: 4096 bytes. Three timestamps and two offsets come first; the other bytes are zero, but for
the next 8 of RocketMQ 5.5.0.

Source: RocketMQ 5.3.3, ``StoreCheckpoint``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rucola.formats.layout import Field, Layout

CHECKPOINT_BYTES: Final = 4096
CHECKPOINT: Final = Layout(
    "checkpoint",
    40,
    Field("physic_msg_timestamp_ms", "q", "Store time up to which the commit log is synced."),
    Field("logics_msg_timestamp_ms", "q", "Store time up to which the consume queues are synced."),
    Field("index_msg_timestamp_ms", "q", "End time of the last index file that is full and synced."),
    Field("master_flushed_offset", "q", "On a slave: offset up to which the master had synced its log."),
    Field(
        "confirm_physical_offset",
        "q",
        "Confirm offset. Rucola writes the offset up to which the log is synced; behind a controller, the confirm "
        "offset if it is smaller.",
    ),
)
NEWER_BYTES: Final = 8
"""After the fields, RocketMQ 5.5.0 keeps the physical offset up to which its queues are synced; 0 if it is unknown."""
_RECOVERY_MARGIN_MS: Final = 3000


@dataclass(slots=True)
class StoreCheckpoint:
    """How far each part of a store is synced.

    Args:
        physic_msg_timestamp_ms: store time up to which the commit log is synced.
        logics_msg_timestamp_ms: store time up to which the consume queues are synced.
        index_msg_timestamp_ms: end time of the last index file that is full and synced.
        master_flushed_offset: on a slave, the offset up to which the master had synced its log.
        confirm_physical_offset: confirm offset; Rucola writes the offset up to which the log is synced.
    """

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0

    @property
    def min_timestamp_ms(self) -> int:
        """Store time from which recovery reads the log: 3 s before the commit log's or the consume queues' time,
        whichever is earlier; at least 0.
        """
        return max(0, min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms) - _RECOVERY_MARGIN_MS)

    def encode(self) -> bytes:
        """Returns the 4096 bytes of the file."""
        fields = CHECKPOINT.pack(
            self.physic_msg_timestamp_ms,
            self.logics_msg_timestamp_ms,
            self.index_msg_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_physical_offset,
        )
        return fields.ljust(CHECKPOINT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> StoreCheckpoint:
        """Decodes the bytes of the file; missing bytes count as zero, as in RocketMQ, which maps the whole file."""
        return cls(*CHECKPOINT.unpack(bytes(data[: CHECKPOINT.size]).ljust(CHECKPOINT.size, b"\0")))
