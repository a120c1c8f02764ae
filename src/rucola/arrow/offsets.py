"""Offsets of many queues: a dict by queue in code, and a JSON document in checkpoints and options.

The document is nested by topic, broker and queue id: ``{"TopicA":{"broker-a":{"0":23,"1":57}}}``. Checkpoints and
``startingOffsets`` have this form, as in RocketMQ's former Spark connector (rocketmq-externals, ``rocketmq-spark``).
Spark compares documents as JSON text. Therefore keys are always sorted, queue ids are sorted by number, and values are
integers.

In addition to topics, the document of a stream has two sections, whose names no topic can have. ``#from`` holds the
start offset of each new queue, and of each queue that was replaced by a different queue. It is empty in the first
document of a query that knew no queue when it began. For all other queues, the micro-batch starts where the previous
micro-batch ended. Therefore a micro-batch that Spark replays from its offset log has the same messages again. ``#last``
holds, for each queue, the store time and physical offset of the last record before the queue's offset. If a different
record is found there later, the commit log was replaced. Documents of older versions lack these sections and can be
read, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError

EARLIEST = -2
"""In ``startingOffsets``, stands for the first offset that the queue still has."""
LATEST = -1
"""In ``startingOffsets`` and ``endingOffsets``, stands for the offset after the last message."""
QUEUE_ID_MAX = 0x7FFFFFFF
OFFSET_MAX = (1 << 63) - 1


def queue_text(queue: MessageQueue) -> str:
    """The name of a queue in texts for the user."""
    return f"{queue.topic}@{queue.broker_name}:{queue.queue_id}"


QueueOffsets: TypeAlias = dict[MessageQueue, int]
OffsetDocument: TypeAlias = dict[str, dict[str, dict[str, int]]]
StreamDocument: TypeAlias = dict[str, Any]
"""An ``OffsetDocument`` with the sections of a stream."""
FROM, LAST = "#from", "#last"


class Mark(NamedTuple):
    """Store time and physical offset, by which a record is recognised."""

    store_timestamp_ms: int
    physical_offset: int


@dataclass(frozen=True)
class StreamOffsets:
    """The content of a stream's document of offsets."""

    offsets: QueueOffsets
    """Where the micro-batch ends."""
    starts: QueueOffsets = field(default_factory=dict)
    """Start offsets of new and of replaced queues. All other queues start where the previous micro-batch ended."""
    marks: dict[MessageQueue, Mark] = field(default_factory=dict)
    """For each queue, the mark of the last record before the queue's offset, if that mark is known."""

    @staticmethod
    def from_document(document: StreamDocument) -> StreamOffsets:
        """Parses a stream's document of offsets; raises ``ValueError`` like the function ``from_document``."""
        marks = {}
        for topic, brokers in document.get(LAST, {}).items():
            for broker, queues in brokers.items():
                for queue_id, mark in queues.items():
                    marks[MessageQueue(topic, broker, int(queue_id))] = Mark(*mark)
        return StreamOffsets(from_document(document), from_document(document.get(FROM, {})), marks)

    def to_document(self) -> StreamDocument:
        """Makes the nested JSON document of the stream; equal ``StreamOffsets`` give equal JSON text."""
        document: StreamDocument = dict(to_document(self.offsets))
        if self.starts:
            document[FROM] = to_document(self.starts)
        if self.marks:
            last: dict[str, dict[str, dict[str, list[int]]]] = {}
            for queue in sorted(self.marks):
                queues = last.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
                queues[str(queue.queue_id)] = list(self.marks[queue])
            document[LAST] = last
        return document


def to_document(offsets: Mapping[MessageQueue, int]) -> OffsetDocument:
    """Makes the nested JSON document of ``offsets``; equal offsets give equal JSON text."""
    document: OffsetDocument = {}
    for queue in sorted(offsets):
        document.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = int(
            offsets[queue]
        )
    return document


def from_document(document: object) -> QueueOffsets:
    """Parses the offsets of a document that is nested by topic, broker and queue id; skips the sections of a stream.

    Raises:
        ValueError: ``document`` is not nested in this way, a queue id is not an integer from 0 to ``QUEUE_ID_MAX``, or
            a value is not an integer up to ``OFFSET_MAX``.
    """
    offsets: QueueOffsets = {}
    for topic, brokers in _items(document, "a document"):
        if topic in (FROM, LAST):
            continue
        for broker, queues in _items(brokers, f"topic {topic}"):
            for queue_text, value in _items(queues, f"broker {broker} of topic {topic}"):
                if not queue_text.isascii() or not queue_text.isdigit() or int(queue_text) > QUEUE_ID_MAX:
                    raise ValueError(f"{queue_text!r} is not a queue id")
                if not isinstance(value, int) or isinstance(value, bool) or value > OFFSET_MAX:
                    raise ValueError(f"{value!r} of queue {queue_text} is not an offset")
                offsets[MessageQueue(topic, broker, int(queue_text))] = value
    return offsets


def parse_document(text: str, option: str, value_min: int) -> QueueOffsets:
    """Parses the offsets that a user wrote as JSON for ``option``.

    Raises:
        ConfigError: the text is not a document of offsets, or a value is below ``value_min``.
    """
    allowed = f'{{"topic":{{"broker":{{"queue id":n}}}}}} with n >= {value_min}'
    try:
        offsets = from_document(json.loads(text))
    except ValueError as error:
        raise ConfigError(option, text, f"{allowed} ({error})") from error
    if any(value < value_min for value in offsets.values()):
        raise ConfigError(option, text, allowed)
    return offsets


def _items(value: object, what: str) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not a JSON object")
    return [(str(key), inner) for key, inner in value.items()]
