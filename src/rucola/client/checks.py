"""Checks arguments when a method is called."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

from rucola.common import message_const
from rucola.common.lite_topics import check_lite_topic
from rucola.common.message import Message, MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.numbers import INT64_MAX
from rucola.common.options import is_text
from rucola.errors import ClientError


def check_number(name: str, value: object, minimum: int, maximum: int = INT64_MAX) -> None:
    """Raises ``ClientError`` unless ``value`` is an integer within the bounds."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ClientError(f"{name} must be a whole number, not {value!r}")
    if not minimum <= value <= maximum:
        upper = f"at most {maximum}" if value > maximum else f"at least {minimum}"
        raise ClientError(f"{name} must be {upper}, not {value}")


def check_text(name: str, value: object) -> str:
    """Returns ``value``; raises ``ClientError`` unless it is a string that can be encoded."""
    if not isinstance(value, str):
        raise ClientError(f"{name} must be a str, not {value!r}")
    if not is_text(value):
        raise ClientError(f"{name} {value!r} cannot be encoded: it contains a lone surrogate")
    return value


def check_message(message: object) -> None:
    """Raises ``ClientError`` unless ``message`` is a ``Message``."""
    if not isinstance(message, Message):
        raise ClientError(f"a message must be a Message, not {reprlib.repr(message)}")


def check_received(call: str, message: object) -> None:
    """Raises ``ClientError`` unless ``message``, the argument of ``call``, is a received message."""
    if not isinstance(message, MessageExt):
        raise ClientError(f"{call} takes one received message, not {message!r}")


def check_queue(queue: object) -> None:
    """Raises ``ClientError`` unless ``queue`` is a ``MessageQueue``."""
    if not isinstance(queue, MessageQueue):
        raise ClientError(f"queue must be a MessageQueue, not {queue!r}")


def check_queue_of(queue: object, topic: str) -> None:
    """Raises ``ClientError`` unless ``queue`` is a queue of ``topic``. Without this check, a message to ``topic`` would
    go to the queue's topic.
    """
    check_queue(queue)
    if isinstance(queue, MessageQueue) and queue.topic != topic:
        raise ClientError(f"a message to topic {topic} cannot go to a queue of topic {queue.topic}: {queue}")


def check_topics(topics: Sequence[str]) -> Sequence[str]:
    """Returns ``topics``; raises ``ClientError`` if it is one text, whose letters would be taken for topics."""
    if isinstance(topics, str):
        raise ClientError(f"topics must be a list of names, not the string {topics!r}")
    return topics


_NOT_WITH_LITE_TOPIC = {
    **dict.fromkeys(message_const.DELAYING, "be delayed"),
    message_const.SHARDING_KEY: "have a sharding key",
    message_const.PRIORITY: "have a priority",
    message_const.TRAN_MSG: "belong to a transaction",
}


def check_lite_message(message: Message, queue: object = None, selector: object = None) -> None:
    """Raises ``ClientError`` if ``message``, which has a lite topic, cannot be sent to it.

    Args:
        message: the message.
        queue: the queue that the application has chosen, if any.
        selector: the application's queue selector, if any.
    """
    name = check_lite_topic(message.lite_topic)
    for key, what in _NOT_WITH_LITE_TOPIC.items():
        if key in message.properties:
            raise ClientError(f"a message of lite topic {name} cannot {what}")
    if queue is not None or selector is not None:
        raise ClientError(
            f"a message of lite topic {name} goes to the queue of its lite topic; it cannot have a queue or a selector"
        )
