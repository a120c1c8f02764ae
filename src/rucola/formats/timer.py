"""Files for messages with a delivery time (RocketMQ 5.3.3, ``TimerWheel``, ``TimerLog``, ``TimerCheckpoint``,
``TimerMetrics``).

``timerlog/``: segments of units; each unit stands for a waiting message. All units with the same due time form a chain:
each points to the next older one. A segment ends with ``TIMER_BLANK`` when no further unit fits; the bytes after it are
undefined.

``timerwheel``: 2 × 7 × 86,400 slots, one per time step; the slot of a step is the step's number modulo the number of
slots. Slots are never cleared: if a slot's first field names a different step, the wanted step has no units.

``config/timercheck``: progress of timer log and wheel; 4096 bytes, zeros after the fields. ``config/timermetrics``:
waiting messages by topic, in compact JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rucola.common.data_version import DataVersion
from rucola.errors import FormatError
from rucola.formats._timer_cy import chain_units, is_beyond, scan_units
from rucola.formats.config_json import loads_object
from rucola.formats.layout import Field, Layout

__all__ = ["chain_units", "is_beyond", "scan_units"]

TIMER_UNIT: Final = Layout(
    "timer log unit",
    52,
    Field("size", "i", "Size of the unit in bytes, 52."),
    Field("previous_position", "q", "Position of the previous unit with the same due time; -1 = none."),
    Field("magic", "i", "Bits: 1 = plain, 2 = rolled, 4 = recall of another message, 8 = moved (Rucola only)."),
    Field("write_time_ms", "q", "Time from which the delay counts, ms since 1970."),
    Field("delay_ms", "i", "Delay after `write_time_ms`."),
    Field("physical_offset", "q", "Offset of the waiting record in the commit log."),
    Field("record_size", "i", "Bytes of that record."),
    Field("real_topic_hash", "i", "Hash of the topic to which the message goes."),
    Field("reserved", "q", "Always 0."),
)
TIMER_UNIT_BYTES: Final = TIMER_UNIT.size
TIMER_BLANK: Final = Layout(
    "timer log blank",
    16,
    Field("space_left", "i", "Number of bytes from the start of this blank to the end of the segment."),
    Field("reserved", "q", "Always 0."),
    Field("magic", "i", "`TIMER_BLANK_MAGIC`."),
)
TIMER_BLANK_MAGIC: Final = 0xCBD43194 - (1 << 32)
MAGIC_PLAIN: Final = 1
MAGIC_ROLL: Final = 2
"""The delay reaches the roll window; when this unit is due, the message is stored again for the rest of the delay."""
MAGIC_DELETE: Final = 4
"""The message recalls another message with the same due time."""
MAGIC_MOVED: Final = 8
"""The message was stored again before its time, because the log had to be shortened; another unit stands for it. This
bit is an extension of Rucola: RocketMQ does not know it, and skips such a unit once its record is gone.
"""
MAGIC_MAX: Final = 15
STOP_AT_LIMIT: Final = 0
STOP_AT_BLANK: Final = 1
STOP_AT_NO_UNIT: Final = 2
"""Reasons for ``scan_units`` to stop."""
UNIT_COLUMNS: Final = 4
"""Number of integers that ``chain_units`` writes per unit: physical offset, record size, magic, write time."""

TIMER_SLOT: Final = Layout(
    "timer wheel slot",
    32,
    Field("step", "q", "Due time, divided by `timerPrecisionMs`."),
    Field("first_position", "q", "Position in the timer log of this slot's oldest unit."),
    Field("last_position", "q", "Position in the timer log of this slot's newest unit."),
    Field("count", "i", "Number of messages with this due time, minus the number of recalls."),
    Field("magic", "i", "As in a unit."),
)
WHEEL_SLOTS: Final = 2 * 7 * 86_400

TIMER_CHECKPOINT_BYTES: Final = 4096
TIMER_CHECKPOINT: Final = Layout(
    "timer checkpoint",
    56,
    Field("last_read_time_ms", "q", "Time of the first time step whose messages are not yet delivered."),
    Field("last_timer_log_flush_position", "q", "Position up to which the timer log is synced."),
    Field("last_timer_queue_offset", "q", "Queue offset of the next message to read from the timer topic."),
    Field("master_timer_queue_offset", "q", "The master's `last_timer_queue_offset`; a master writes its own."),
    Field("state_version", "q", "State version of the data version."),
    Field("timestamp_ms", "q", "Time of the data version."),
    Field("counter", "q", "Counter of the data version."),
)


class TimerSlot(NamedTuple):
    """The units of one time step: positions of the oldest and the newest unit, and the number of messages minus the
    number of recalls.
    """

    step: int
    first_position: int
    last_position: int
    waiting: int
    magic: int = 0


@dataclass(frozen=True, slots=True)
class TimerCheckpoint:
    """Progress of the timer's deliveries.

    Attributes:
        read_time_ms: time of the first time step whose messages are not yet delivered.
        log_flush_position: the timer log is on disk up to this position.
        queue_offset: queue offset of the next message to read from the timer topic.
        master_queue_offset: the master's ``queue_offset``; on a master, its own.
        data_version: version of the checkpoint.
    """

    read_time_ms: int = 0
    log_flush_position: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    data_version: DataVersion = field(default_factory=DataVersion)

    def encode_fields(self) -> bytes:
        """Returns the 56 bytes of the checkpoint's fields, which a slave requests."""
        version = self.data_version
        return TIMER_CHECKPOINT.pack(
            self.read_time_ms,
            self.log_flush_position,
            self.queue_offset,
            self.master_queue_offset,
            version.state_version,
            version.timestamp_ms,
            version.counter,
        )

    def encode(self) -> bytes:
        """Returns the content of the file ``config/timercheck``."""
        return self.encode_fields().ljust(TIMER_CHECKPOINT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> TimerCheckpoint:
        """Decodes the bytes of the file; missing bytes count as zero, as in RocketMQ, which maps the whole file."""
        values = TIMER_CHECKPOINT.unpack(data[: TIMER_CHECKPOINT.size].ljust(TIMER_CHECKPOINT.size, b"\0"))
        return cls(values[0], values[1], values[2], values[3], DataVersion(*values[4:]))


@dataclass(slots=True)
class TimerMetric:
    """Number of waiting messages of one topic, and the time at which this number last changed."""

    count: int = 0
    timestamp_ms: int = 0


@dataclass(slots=True)
class TimerMetrics:
    """The table ``config/timermetrics``."""

    topics: dict[str, TimerMetric] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)

    def add(self, topic: str, value: int, now_ms: int) -> None:
        """Adds ``value`` to the count of waiting messages of ``topic``."""
        metric = self.topics.setdefault(topic, TimerMetric())
        metric.count += value
        metric.timestamp_ms = now_ms
        self.data_version = self.data_version.next(now_ms)

    def encode(self) -> bytes:
        """Returns the content of the file ``config/timermetrics``."""
        counts = {
            topic: {"count": metric.count, "timeStamp": metric.timestamp_ms} for topic, metric in self.topics.items()
        }
        table = {"dataVersion": self.data_version.to_dict(), "timingCount": counts}
        return json.dumps(table, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, text: bytes) -> TimerMetrics:
        """Decodes the content of the file.

        Raises:
            FormatError: ``text`` does not have this format.
        """
        what = "timermetrics"
        root = loads_object(text, what)
        try:
            counts: Mapping[str, Mapping[str, int]] = root.get("timingCount") or {}
            topics = {
                topic: TimerMetric(int(count["count"]), int(count.get("timeStamp", 0)))
                for topic, count in counts.items()
            }
            return cls(topics, DataVersion.from_dict(root.get("dataVersion") or {}))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise FormatError(what, 0, "counts by topic", str(error)) from error
