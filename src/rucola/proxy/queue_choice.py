"""The queue for a message with a message group or a lite topic: the same one goes to the same queue.

The hash is over all writable queues of all brokers of the topic, in the order of topic, broker name and queue id. An
official proxy beside ours chooses the same queue, so both keep the order of a group.

Source: RocketMQ 5.3.3, ``SendMessageActivity.SendMessageQueueSelector``, ``MessageQueueSelector#buildWrite``; Guava,
``Hashing#consistentHash``.
"""

from __future__ import annotations

from typing import Protocol

from rucola.common.java import consistent_hash, string_hash
from rucola.common.message_queue import MessageQueue


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
