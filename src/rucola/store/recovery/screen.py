"""Decides which records belong to the queue that they name. Used while recovery dispatches a log that may be damaged.

A record with a negative queue id, or with a topic that cannot be a directory name, belongs to no queue. A record that
names an unknown queue creates this queue, unless another queue has a unit that points to the record, at the queue
offset that the record states. In that case the topic or the queue id of the record is damaged, and the existing unit is
kept.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable

from rucola.common.columns import ROW_WIDTH, RecordColumn
from rucola.common.sysflag import PREPARED_BIT
from rucola.runtime.logs import event
from rucola.store.log.mapped_file import MappedFile
from rucola.store.queue.queue_factory import QueueFactory

logger = logging.getLogger(__name__)
_REPORTED_MAX = 1000


class QueueScreen:
    """A ``dispatch.Screen`` that decides which records get a unit in their queue, by the rule at the top of this
    module.

    Args:
        factory: the queues' factory.
        known: topic and queue id of the existing queues.
    """

    def __init__(self, factory: QueueFactory, known: Iterable[tuple[bytes, int]]) -> None:
        self._factory = factory
        self._known = set(known)
        self._reported = 0

    def passes(self, topic: bytes, queue_ids: Iterable[int]) -> bool:
        """See ``dispatch.Screen``."""
        return all((topic, queue_id) in self._known for queue_id in queue_ids)

    def admits(self, topic: bytes, file: MappedFile, table: array[int], row: int) -> bool:
        """See ``dispatch.Screen``."""
        at = row * ROW_WIDTH
        name = (topic, table[at + RecordColumn.QUEUE_ID])
        if name in self._known or table[at + RecordColumn.SYS_FLAG] & PREPARED_BIT:
            return True  # Prepared and rolled-back records get no unit anyway.
        place = (file.start + table[at], table[at + RecordColumn.RECORD_SIZE])
        if not self._factory.can_hold(*name):
            self._report("no queue can have this topic and id", file, table[at], name)
            return False
        if self._factory.placement.find_claim(*name, table[at + RecordColumn.QUEUE_OFFSET], place):
            self._report("another queue has the record", file, table[at], name)
            return False
        self._known.add(name)
        return True

    def _report(self, reason: str, file: MappedFile, position: int, name: tuple[bytes, int]) -> None:
        self._reported += 1
        if self._reported <= _REPORTED_MAX:
            topic, queue_id = name
            event(
                logger,
                logging.WARNING,
                "record is not put into the queue that it names",
                path=file.path,
                position=position,
                topic=topic,
                queue_id=queue_id,
                reason=reason,
            )
