"""Choice of a message's queue by the application, or by the message's sharding key or lite topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CoroutineType
from typing import NoReturn

from rucola.client.application_call import FailedCall, called
from rucola.client.checks import check_queue_of
from rucola.client.listener import shown
from rucola.common.java import string_hash
from rucola.common.lite_topics import lite_shard
from rucola.common.message import Message
from rucola.common.message_queue import MessageQueue
from rucola.errors import ClientError

QueueSelector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""Chooses a queue for a message from the queues of its topic, which are sorted by broker name and queue id."""


class ChosenQueue:
    """The queue of one message; it is chosen as soon as the route of the topic is known, and kept for retries."""

    __slots__ = ("_message", "_selector")

    def __init__(self, message: Message, selector: QueueSelector) -> None:
        self._message = message
        self._selector = selector

    def choose(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Chooses one of ``queues``. The selector may raise anything: this is a failure of the send.

        Raises:
            ClientError: there is no queue, the selector failed, or its result is not a queue of the topic.
        """
        topic = self._message.topic
        if not queues:
            raise ClientError(f"topic {topic} has no queue that can be written")
        outcome = called(self._selector, queues, self._message)
        if type(outcome) is FailedCall:
            raise ClientError(f"the queue selector for topic {topic} failed: {outcome.error!r}") from outcome.error
        if not issubclass(type(outcome), MessageQueue):  # isinstance may run code of the result, which may raise
            _refuse(outcome, topic)
        check_queue_of(outcome, topic)
        return outcome


def _refuse(outcome: object, topic: str) -> NoReturn:
    if type(outcome) is CoroutineType:
        outcome.close()
        raise ClientError(f"the queue selector for topic {topic} is a coroutine function; it must be a plain one")
    raise ClientError(f"queue must be a MessageQueue, not {shown(outcome)}")


def by_sharding_key(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """The queue for the message's sharding key, the same that RocketMQ's ``SelectMessageQueueByHash`` chooses."""
    return queues[abs(string_hash(message.sharding_key or "")) % len(queues)]


def by_lite_topic(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """The queue for the message's lite topic, the same that RocketMQ's proxy chooses."""
    return queues[lite_shard(message.lite_topic or "", len(queues))]
