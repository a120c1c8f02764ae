"""Makes ids that identify repeated messages, and drops repeats.

The sink sends at least once: a failed task runs again, and a broker may crash after storing messages but before
responding. The UNIQ_KEY of a message depends on its row and not on the attempt, so repeats have the same id. The id has
the form that clients use: 32 upper-case hex digits, with the milliseconds since the start of the month in bytes 10 to
13. In the sink's ids, these bytes are 0. RocketMQ's tools search from the time in an id, so for such an id they search
from the start of the month.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

from rucola.errors import ConfigError
from rucola.spark.analysis import facts_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OFFSET_MAX = 1 << 40
"""Upper limit, exclusive, of queue offsets in ids."""
OFFSET_DIGITS = tuple((14 + i, 36 - 4 * i) for i in range(6)) + tuple((28 + i, 12 - 4 * i) for i in range(4))
"""The hex digits of an id that hold the queue offset. For each digit: its index in the id, and the number of bits to
shift the queue offset to the right.
"""
_TIME = "00000000"


def position_id(scope: str, topic: str, broker_name: str, queue_id: int, queue_offset: int) -> str:
    """Makes the id of a message from the position of its source message; ids from one queue are distinct.

    Args:
        scope: name of the pipeline.
        topic: topic of the source message.
        broker_name: broker of the source message.
        queue_id: queue of the source message.
        queue_offset: queue offset of the source message, below 2^40.
    """
    queue = _queue_digits(scope, topic, broker_name, queue_id)
    return f"{queue}{queue_offset >> 16:06X}{_TIME}{queue_offset & 0xFFFF:04X}"


def value_id(scope: str, value: object) -> str:
    """Makes the id from a value that a user chose to distinguish messages: text, bytes or a number."""
    content = value if isinstance(value, bytes) else str(value).encode()
    digits = hashlib.blake2b(scope.encode() + b"\0" + content, digest_size=12).hexdigest().upper()
    return f"{digits[:20]}{_TIME}{digits[20:]}"


def drop_repeats(rows: DataFrame, *, within: str | None = None, by: str = "msgId") -> DataFrame:
    """Keeps one row for each id in a topic; drops repeats, even if they are in a different queue.

    Args:
        rows: rows of ``format("rocketmq")``, with the columns ``by``, ``topic`` and, in a stream, ``storeTimestamp``.
        within: streams only: an interval such as ``10 minutes``. A repeat is dropped if it was stored within this
            interval after the first copy of the message; a later repeat may be kept. Spark keeps the ids of this
            interval as state, and drops rows that are older than the newest row by more than the interval.
        by: the column with the id.

    Raises:
        ConfigError: a column is missing, a stream has no ``within``, or a batch has one.
    """
    facts = facts_of(rows)
    if facts is not None:
        needed = [by, "topic", *(["storeTimestamp"] if facts.is_streaming else [])]
        missing = [name for name in needed if name not in facts.columns]
        if missing:
            raise ConfigError("columns", ", ".join(facts.columns), "with " + ", ".join(missing))
        if facts.is_streaming != (within is not None):
            raise ConfigError("within", str(within), "an interval for a stream, and none for a batch")
    if within is None:
        return rows.dropDuplicates(["topic", by])
    return rows.withWatermark("storeTimestamp", within).dropDuplicatesWithinWatermark(["topic", by])


@lru_cache(4096)
def _queue_digits(scope: str, topic: str, broker_name: str, queue_id: int) -> str:
    """The first 14 hex digits, which all ids of a queue share."""
    text = "\0".join((scope, topic, broker_name, str(queue_id)))
    return hashlib.blake2b(text.encode(), digest_size=7).hexdigest().upper()
