"""Names of lite topics, and the queue of the parent to which the messages of a lite topic go.

A parent topic of type LITE has many lite topics; each is one ordered queue, the light queue ``%LMQ%$PARENT$LITE``.
Clients name a lite topic by the part behind the parent. All messages of a lite topic go to one queue of the parent, so
one broker has the lite topic.

Source: RocketMQ 5.5.0, ``LiteUtil``; the proxy's ``LiteTopicUtil``; Guava's ``Hashing.consistentHash``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rucola.common.java import consistent_hash, string_hash
from rucola.common.key_builder import LMQ_PREFIX
from rucola.common.message_const import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET
from rucola.common.numbers import INT64_MAX, number_in
from rucola.errors import ClientError

LITE_TOPIC_CHARACTERS_MAX: Final = 64
"""Longest name of a lite topic; the default of the proxy's option ``maxLiteTopicSize``."""
LITE_ENTRIES_MAX: Final = 256
"""Entries of a request 200071 (LITE_SUBSCRIPTION_CTL). Clients send one; each costs some work without any name."""
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")


def check_lite_topic(name: object) -> str:
    """Returns ``name``; raises ``ClientError`` unless it can be the name of a lite topic."""
    if not isinstance(name, str):
        raise ClientError(f"lite topic {name!r} must be a str, not {type(name).__name__}")
    if not _NAME.fullmatch(name) or len(name) > LITE_TOPIC_CHARACTERS_MAX:
        raise ClientError(
            f"lite topic {name[:80]!r} must be 1 to {LITE_TOPIC_CHARACTERS_MAX} of the characters a-zA-Z0-9_-"
        )
    return name


def lite_queue_topic(parent: str, lite_topic: str) -> str:
    """The light queue of a lite topic; its queue id is 0."""
    return f"{LMQ_PREFIX}${parent}${lite_topic}"


def lite_queue_offset(properties: Mapping[str, str], queue_topic: str) -> int | None:
    """The offset of a stored message in a light queue; None if the message is not in it.

    Args:
        properties: the properties of the message.
        queue_topic: the light queue.
    """
    names = properties.get(INNER_MULTI_DISPATCH, "").split(",")
    offsets = properties.get(INNER_MULTI_QUEUE_OFFSET, "").split(",")
    for name, offset in zip(names, offsets, strict=False):
        if name == queue_topic:
            return number_in(offset, 0, INT64_MAX)
    return None


def lite_shard(lite_topic: str, queues: int) -> int:
    """The place of a lite topic among ``queues`` write queues of its parent, at least one: a jump hash of Java's hash
    code of the name. A change from n to n + 1 queues moves one lite topic in n + 1.
    """
    return consistent_hash(string_hash(lite_topic), queues)
