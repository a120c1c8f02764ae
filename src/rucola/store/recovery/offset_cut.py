"""Lowers offsets of consumers and delay levels that point beyond their queues, after a log was cut.

Queues get other messages at these offsets, and a consumer that goes on there would miss them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rucola.errors import FormatError
from rucola.formats.light_queue import is_lite
from rucola.formats.tables import (
    consumer_offset_pieces,
    decode_consumer_offsets,
    decode_delay_offsets,
    encode_delay_offsets,
)
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.dispatch import SCHEDULE_TOPIC
from rucola.store.queue.consume_queue_store import ConsumeQueueStore

if TYPE_CHECKING:
    from rucola.store.lite.lite_topics import LiteTopics

logger = logging.getLogger(__name__)
_CONSUMERS = ("consumerOffset.json", "lmqConsumerOffset.json")
_LEVELS = "delayOffset.json"


def lower_offsets(files: Files, directory: str, queues: ConsumeQueueStore) -> None:
    """Lowers the offsets in the tables of ``directory`` and in their backups. A table that cannot be read stays as it
    is.

    Raises:
        DiskError: a table cannot be written.
    """
    ends: dict[tuple[bytes, int], int] = {}
    for topic, queue_id in queues.names():
        queue = queues.find(topic, queue_id)
        if queue is not None:
            ends[topic, queue_id] = queue.max_offset
    queues.close()
    for name in (*_CONSUMERS, _LEVELS):
        for path in (f"{directory}/{name}", f"{directory}/{name}.bak"):
            text = files.read_file(path)
            if text is None:
                continue
            try:
                if name == _LEVELS:
                    lowered = _levels(text, ends)
                else:
                    lowered = _consumers(text, ends, name != _CONSUMERS[0], queues.lite)
            except FormatError as error:
                event(logger, logging.WARNING, "offsets not lowered, the table cannot be read", path=path, error=error)
                continue
            if lowered is not None:
                files.replace_file(path, lowered)


def _consumers(text: bytes, ends: dict[tuple[bytes, int], int], light: bool, lite: LiteTopics | None) -> bytes | None:
    """Returns the table with offsets that are not beyond their queues; None if none was."""
    version, offsets = decode_consumer_offsets(text)
    is_changed = False
    for key, by_queue in offsets.items():
        topic = key.partition("@")[0].encode("utf-8", "surrogateescape")
        for queue_id, consumer_offset in by_queue.items():
            end = ends.get((topic, queue_id), consumer_offset)
            if lite is not None and queue_id == 0 and is_lite(topic):
                end = lite.next_offset(topic)
            if consumer_offset > end:
                by_queue[queue_id] = end
                is_changed = True
    return b"".join(consumer_offset_pieces(version, offsets, light)) if is_changed else None


def _levels(text: bytes, ends: dict[tuple[bytes, int], int]) -> bytes | None:
    """Does the same for delay levels."""
    version, offsets = decode_delay_offsets(text)
    lowered = {
        level: min(queue_offset, ends.get((SCHEDULE_TOPIC, level - 1), queue_offset))
        for level, queue_offset in offsets.items()
    }
    return encode_delay_offsets(version, lowered) if lowered != offsets else None
