"""Light queues: a message can name light queues. Each of them then has an entry for the message, in addition to the
entry in the message's own queue.

The property ``INNER_MULTI_DISPATCH`` holds the names. A valid name begins with ``%LMQ%``, is longer than that, has at
most 255 bytes, and holds neither slash, backslash nor zero byte. The store adds ``INNER_MULTI_QUEUE_OFFSET`` with the
message's offset in each light queue (RocketMQ 5.3.3, ``LmqDispatch``). Both properties are lists separated by commas;
the offset for an invalid name is empty. The queue id of a light queue is always 0.

A lite topic is a light queue whose name is ``%LMQ%$<parent>$<lite>``: exactly one further ``$``, and neither part is
empty (RocketMQ 5.5, ``LiteUtil``). Its *name* is ``<parent>$<lite>``.
"""

from __future__ import annotations

from collections.abc import Iterator

from rucola.common.key_builder import (
    DLQ_GROUP_TOPIC_PREFIX,
    LMQ_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
)
from rucola.common.message_const import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET
from rucola.common.numbers import INT64_MAX, number_in
from rucola.formats.properties import decode_properties

_LIGHT = LMQ_PREFIX.encode()
_LITE = f"{LMQ_PREFIX}$".encode()
_NOT_DISPATCHED = tuple(
    prefix.encode() for prefix in (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX)
)
_NAME_BYTES_MAX = 255


def allows_light_queues(topic: bytes) -> bool:
    """Whether messages of ``topic`` may have entries in light queues. In RocketMQ, dead letters have some, with the
    offsets of the messages that they copy.
    """
    return not topic.startswith(_NOT_DISPATCHED) and topic != SCHEDULE_TOPIC.encode()


def light_queue_names(text: str) -> list[bytes | None]:
    """Returns the names in the value of ``INNER_MULTI_DISPATCH``, in order; None replaces an invalid name."""
    if not text.strip():
        return []
    names: list[bytes | None] = []
    for part in text.rstrip(",").split(","):
        name = part.encode("utf-8", "surrogateescape")
        plain = not any(char in name for char in b"/\\\0") and len(_LIGHT) < len(name) <= _NAME_BYTES_MAX
        names.append(name if plain and name.startswith(_LIGHT) else None)
    return names


def light_queue_offsets(properties: bytes | memoryview) -> Iterator[tuple[bytes, int] | None]:
    """Yields name and offset of each light queue in the record's properties; None in place of an invalid item."""
    values = decode_properties(properties)
    text, offsets = values.get(INNER_MULTI_DISPATCH, ""), values.get(INNER_MULTI_QUEUE_OFFSET, "")
    names = light_queue_names(text)
    if not names or not offsets.strip():
        return
    items = offsets.split(",")
    items += [""] * (len(names) - len(items))
    for name, item in zip(names, items, strict=False):
        queue_offset = number_in(item, 0, INT64_MAX)
        yield (name, queue_offset) if name is not None and queue_offset is not None else None


def is_lite(topic: bytes) -> bool:
    """Whether ``topic`` is the light queue of a lite topic."""
    if not topic.startswith(_LITE):
        return False
    parent, dollar, lite = topic[len(_LITE) :].partition(b"$")
    return bool(parent and dollar and lite) and b"$" not in lite


def lite_name(topic: bytes) -> bytes:
    """Returns the name of the lite topic whose light queue is ``topic``."""
    return topic[len(_LITE) :]


def lite_parent(topic: bytes) -> bytes:
    """Returns the parent of the lite topic whose light queue is ``topic``."""
    return lite_name(topic).partition(b"$")[0]


def lite_topic(name: bytes) -> bytes:
    """Returns the light queue of the lite topic ``name``."""
    return _LITE + name
