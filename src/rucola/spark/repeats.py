"""Ids by which a repeat is known, and how to drop repeats.

A task that is killed or fails is run again, and a broker that dies may have stored what it did not answer for: what the
sink sends comes at least once. Its messages have a UNIQ_KEY that depends on the row and not on the attempt, so that
whatever came twice has one id twice. The id has the form of those that clients make (32 upper-case hex digits, bytes 10
to 13 the milliseconds since the start of the month, here 0): RocketMQ's tools search by it from that time on.
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
    """The id of what becomes of one message: of two messages of a queue never the same.

    Args:
        scope: which pipeline.
        topic: of the message that was read, as the rest.
        broker_name: its broker.
        queue_id: its queue.
        queue_offset: its place there, below 2^40.
    """
    queue = _queue_digits(scope, topic, broker_name, queue_id)
    return f"{queue}{queue_offset >> 16:06X}{_TIME}{queue_offset & 0xFFFF:04X}"


def value_id(scope: str, value: object) -> str:
    """The id of a value that a user chose to tell messages apart: text, bytes or a number."""
    content = value if isinstance(value, bytes) else str(value).encode()
    digits = hashlib.blake2b(scope.encode() + b"\0" + content, digest_size=12).hexdigest().upper()
    return f"{digits[:20]}{_TIME}{digits[20:]}"


def drop_repeats(rows: DataFrame, *, within: str | None = None, by: str = "msgId") -> DataFrame:
    """The rows without those that came before with the same id, from whichever queue.

    Args:
        rows: of ``format("rocketmq")``, with the columns ``by``, ``topic`` and, in a stream, ``storeTimestamp``.
        within: of a stream: how long after a message its repeats are known, an interval as ``10 minutes``. Spark keeps
            the ids of that time as state; rows older than the newest by more are dropped with it.
        by: the column with the id.

    Raises:
        ConfigError: a column is missing, or ``within`` is, or is given for a batch.
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
