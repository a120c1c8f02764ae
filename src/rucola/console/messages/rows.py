"""Messages as rows of lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rucola.common.key_builder import is_dlq_topic, is_retry_topic
from rucola.common.message import MessageExt
from rucola.common.message_const import DLQ_ORIGIN_TOPIC, REAL_TOPIC, RETRY_TOPIC
from rucola.console.cluster.snapshot import Large
from rucola.console.messages.body import guess_of

_PREVIEW: Final = 160


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in a list. ``preview`` is the beginning of its body; None if the visitor may not see it."""

    topic: str
    broker: str
    queue: int
    offset: Large
    offset_id: str
    unique_key: str
    keys: str | None
    tag: str
    stored_ms: int
    born_ms: int
    size: Large
    retries: int
    guess: str
    preview: str | None


def row_of(found: MessageExt, may_see_bodies: bool) -> MessageRow:
    """A message as a row of a list."""
    preview = None
    if may_see_bodies:
        preview = found.body[: _PREVIEW * 4].decode("utf-8", "replace")[:_PREVIEW]
    return MessageRow(
        found.topic,
        found.broker_name,
        found.queue_id,
        found.queue_offset,
        found.offset_msg_id,
        found.uniq_key or "",
        (found.keys or "") if may_see_bodies else None,
        found.tags or "",
        found.store_timestamp_ms,
        found.born_timestamp_ms,
        len(found.body),
        found.reconsume_times,
        guess_of(found.body[:1024]) if len(found.body) > 1024 else guess_of(found.body),
        preview,
    )


def origin_of(found: MessageExt) -> str:
    """The topic to which a message was sent at first: a copy that waits, is retried or is dead names it."""
    if is_retry_topic(found.topic) or is_dlq_topic(found.topic):
        return found.properties.get(RETRY_TOPIC) or found.properties.get(DLQ_ORIGIN_TOPIC) or found.topic
    return found.properties.get(REAL_TOPIC) or found.topic
