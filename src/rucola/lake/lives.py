"""Lives of a queue. If a topic is deleted and created again, queue offsets start again at 0: a new life of its queues.

A table counts the lives of each queue from 0, and keeps where each earlier life ended. So a row has its place by life,
broker, queue and offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rucola.arrow.offsets import Mark
from rucola.common.message_queue import MessageQueue


class EndedLife(NamedTuple):
    """A life whose queue was deleted: what the table has of it.

    Attributes:
        start: first archived offset.
        end: archived offset.
        mark: mark of the last archived record; later lives have greater physical offsets. None if it is not known.
    """

    start: int
    end: int
    mark: Mark | None


Lives = Mapping[MessageQueue, tuple[EndedLife, ...]]
"""For each queue that has begun a new life, its earlier lives in order."""


def lives_document(lives: Lives) -> dict[str, Any]:
    """The lives as JSON, nested by topic, broker and queue id."""
    document: dict[str, Any] = {}
    for queue in sorted(lives):
        ended = [[one.start, one.end, None if one.mark is None else list(one.mark)] for one in lives[queue]]
        document.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = ended
    return document


def lives_of(document: Mapping[str, Any]) -> Lives:
    """Reads a document of lives; raises ``ValueError``, ``TypeError`` or ``AttributeError`` if it is none."""
    found: dict[MessageQueue, tuple[EndedLife, ...]] = {}
    for topic, brokers in document.items():
        for broker_name, queues in brokers.items():
            for queue_id, ended in queues.items():
                found[MessageQueue(topic, broker_name, int(queue_id))] = tuple(
                    EndedLife(int(start), int(end), None if mark is None else Mark(int(mark[0]), int(mark[1])))
                    for start, end, mark in ended
                )
    return found
