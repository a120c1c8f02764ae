"""Ids that identify repeats, and how to drop repeats.

The sink sends at least once: a failed task runs again, and a broker that dies may have stored messages without a
response. The UNIQ_KEY of a message depends on its row and not on the attempt, so repeats have the same id. The id has
the form of those that clients make (32 upper-case hex digits, bytes 10 to 13 the milliseconds since the start of the
month, here 0); RocketMQ's tools search from that time on.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

from rucola.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TIME = "00000000"


def position_id(scope: str, topic: str, broker_name: str, queue_id: int, queue_offset: int) -> str:
    """The id of the message made from one message; unique among the messages of a queue.

    Args:
        scope: which pipeline.
        topic: topic of the message that was read.
        broker_name: its broker.
        queue_id: its queue.
        queue_offset: its queue offset, below 2^40.
    """
    queue = _queue_digits(scope, topic, broker_name, queue_id)
    return f"{queue}{queue_offset >> 16:06X}{_TIME}{queue_offset & 0xFFFF:04X}"


def value_id(scope: str, value: object) -> str:
    """The id of a value that a user chose to tell messages apart: text, bytes or a number."""
    content = value if isinstance(value, bytes) else str(value).encode()
    digits = hashlib.blake2b(scope.encode() + b"\0" + content, digest_size=12).hexdigest().upper()
    return f"{digits[:20]}{_TIME}{digits[20:]}"


def drop_repeats(rows: DataFrame, *, within: str | None = None, by: str = "msgId") -> DataFrame:
    """Keeps one row for each id in a topic and drops its repeats, whatever their queue.

    Args:
        rows: of ``format("rocketmq")``, with the columns ``by``, ``topic`` and, in a stream, ``storeTimestamp``.
        within: streams only: how long after a message its repeats are dropped, an interval such as ``10 minutes``.
            Spark keeps the ids of that time as state, and also drops rows that are older than the newest by more.
        by: the column with the id.

    Raises:
        ConfigError: a column is missing, a stream has no ``within``, or a batch has one.
    """
    needed = [by, "topic", *(["storeTimestamp"] if rows.isStreaming else [])]
    missing = [name for name in needed if name not in rows.columns]
    if missing:
        raise ConfigError("columns", ", ".join(rows.columns), "with " + ", ".join(missing))
    if rows.isStreaming != (within is not None):
        raise ConfigError("within", str(within), "a time for a stream, none for a batch")
    if within is None:
        return rows.dropDuplicates(["topic", by])
    return rows.withWatermark("storeTimestamp", within).dropDuplicatesWithinWatermark(["topic", by])


@lru_cache(4096)
def _queue_digits(scope: str, topic: str, broker_name: str, queue_id: int) -> str:
    """The 14 digits that all ids of a queue begin with."""
    text = "\0".join((scope, topic, broker_name, str(queue_id)))
    return hashlib.blake2b(text.encode(), digest_size=7).hexdigest().upper()
