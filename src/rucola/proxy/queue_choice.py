"""The queue for a message with a message group or a lite topic: the same one goes to the same queue.

The hash is over all writable queues of all brokers of the topic, in the order of topic, broker name and queue id. An
official proxy beside ours chooses the same queue, so both keep the order of a group.

Source: RocketMQ 5.3.3, ``SendMessageActivity.SendMessageQueueSelector``, ``MessageQueueSelector#buildWrite``; Guava,
``Hashing#consistentHash``.
"""

from __future__ import annotations

from typing import Protocol

from rucola.common.java import string_hash
from rucola.common.message_queue import MessageQueue

_MULTIPLIER = 2862933555777941757
_TWO_TO_31 = float(1 << 31)
_UINT64_MAX = (1 << 64) - 1


class Queues(Protocol):
    """Queues by number."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, index: int, /) -> MessageQueue:
        """One of them."""


def queue_of_group(group: str, queues: Queues) -> MessageQueue:
    """The queue of a message group or a lite topic.

    Args:
        group: its name.
        queues: all writable queues of the topic, sorted; at least one.
    """
    return queues[consistent_hash(string_hash(group), len(queues))]


def consistent_hash(number: int, buckets: int) -> int:
    """Guava's ``Hashing.consistentHash``: if buckets are added at the end, few numbers change their bucket.

    Args:
        number: an int64.
        buckets: number of buckets, at least 1.

    Returns:
        A number from 0 to ``buckets - 1``.
    """
    state = number & _UINT64_MAX
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _UINT64_MAX
        # as in Java: the division and the product are of doubles, and the cast drops the fraction
        following = int((candidate + 1) / (((state >> 33) + 1) / _TWO_TO_31))
        if not 0 <= following < buckets:
            return candidate
        candidate = following
