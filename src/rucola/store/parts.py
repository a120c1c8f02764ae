"""The parts of an open store: the log, and what is derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rucola.store.index.index_service import IndexService
from rucola.store.log.log_reader import LogReader
from rucola.store.queue.consume_queue_store import ConsumeQueueStore


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts of one store.

    Attributes:
        log: the commit log.
        queues: the consume queues, which have a unit for each record.
        index: the index files, which have the keys; None without an index.
        deleted: for each deleted topic, the physical offset below which its records belong to no queue
            (``TopicDeletion.ends``).
    """

    log: LogReader
    queues: ConsumeQueueStore
    index: IndexService | None
    deleted: Mapping[bytes, int]
