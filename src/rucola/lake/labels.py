"""What a table says of a queue besides the source: the name under which it knows the queue's broker, and the life."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rucola.common.message_queue import MessageQueue
from rucola.lake.columns import LIFE

if TYPE_CHECKING:
    import pyarrow as pa


class Label(NamedTuple):
    """The broker name of a queue in the table, and the life of the queue."""

    broker_name: str
    life: int


@dataclass(frozen=True)
class Labels:
    """Labels of queues of a source; picklable, because tasks get them.

    Attributes:
        special: labels of the queues that have another broker name in the table, or a life other than 0.
    """

    special: Mapping[MessageQueue, Label] = field(default_factory=dict)

    def of(self, queue: MessageQueue) -> Label:
        """The label of a queue."""
        return self.special.get(queue, Label(queue.broker_name, 0))

    def applied(self, batch: pa.RecordBatch, at: int) -> pa.RecordBatch:
        """A batch of the source with the table's broker names, and with the column ``LIFE`` at index ``at``."""
        import numpy as np
        import pyarrow as pa

        from rucola.arrow.buffers import from_numbers, numbers_of

        if not self.special or not batch.num_rows:
            return batch.add_column(at, LIFE, from_numbers(np.zeros(batch.num_rows, np.int32), pa.int32()))
        topics, brokers = (batch.column(name).dictionary_encode() for name in ("topic", "brokerName"))
        codes = [numbers_of(one.indices, np.int32).astype(np.int64) for one in (topics, brokers)]
        queue_ids = numbers_of(batch.column("queueId"), np.int32).astype(np.int64)
        places = (codes[0] * len(brokers.dictionary) + codes[1]) << 31 | queue_ids
        distinct, back = np.unique(places, return_inverse=True)
        found = []
        for place in distinct.tolist():
            topic, broker = divmod(place >> 31, len(brokers.dictionary))
            name = brokers.dictionary[broker].as_py()
            found.append(self.of(MessageQueue(topics.dictionary[topic].as_py(), name, place & 0x7FFFFFFF)))
        lives = np.array([one.life for one in found], np.int32)[back]
        names = pa.array([one.broker_name for one in found], pa.string()).take(pa.array(back))
        where = batch.schema.get_field_index("brokerName")
        batch = batch.set_column(where, batch.schema.field(where), names)
        return batch.add_column(at, LIFE, from_numbers(lives, pa.int32()))
