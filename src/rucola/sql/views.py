"""The views besides those of the topics: ``queues``, ``keys`` and ``findings``. Each is computed when it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict

import pyarrow as pa
import pyarrow.compute as pc

from rucola.arrow.catalog import Catalog
from rucola.arrow.columns import TIMESTAMP, micros_of
from rucola.arrow.filters import Call, ColumnRef, Node
from rucola.arrow.topic_dataset import TopicDataset
from rucola.arrow.virtual_dataset import VirtualDataset
from rucola.common.message_const import KEY_SEPARATOR

QUEUES = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("minOffset", pa.int64()),
        ("maxOffset", pa.int64()),
        ("messages", pa.int64()),
        ("firstTimestamp", TIMESTAMP),
        ("lastTimestamp", TIMESTAMP),
    ]
)
FINDINGS = pa.schema(
    [
        ("kind", pa.string()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("count", pa.int64()),
        ("detail", pa.string()),
    ]
)
KEY_COLUMNS = ("topic", "queueId", "queueOffset", "storeTimestamp", "msgId", "tags", "physicalOffset")


class ComputedRows(VirtualDataset):
    """A small table that each scan computes anew.

    Args:
        schema: columns of the table.
        rows: function that computes the rows.
    """

    def __init__(self, schema: pa.Schema, rows: Callable[[], list[dict[str, object]]]) -> None:
        super().__init__(schema, schema.names[0])
        self._rows = rows

    def batches(self, schema: pa.Schema, node: Node | None) -> Iterator[pa.RecordBatch]:
        """All rows."""
        return iter(pa.Table.from_pylist(self._rows(), self.schema).select(schema.names).to_batches())


class Keys(VirtualDataset):
    """A table with one row for each key of each message; a message may have several keys. A filter on ``key`` uses a
    store's index.
    """

    def __init__(self, messages: TopicDataset) -> None:
        columns = [messages.schema.field(name) for name in KEY_COLUMNS]
        super().__init__(pa.schema([pa.field("key", pa.string()), *columns]), "queueOffset")
        self._messages = messages

    def batches(self, schema: pa.Schema, node: Node | None) -> Iterator[pa.RecordBatch]:
        """Yields the keys of the messages that may pass the filter."""
        names = [name for name in KEY_COLUMNS if name in schema.names]
        fields = [self._messages.schema.field(name) for name in ("keys", *names)]
        batches = self._messages.batches(pa.schema(fields), None if node is None else _of_messages(node))
        return (_exploded(batch, names).select(schema.names).cast(schema) for batch in batches)


def queue_rows(catalog: Catalog) -> list[dict[str, object]]:
    """Returns topic, broker, offsets and store times of every queue; closes the catalog."""
    try:
        rows: list[dict[str, object]] = []
        queues = catalog.queues(all_needed=False)
        for queue, (least, most) in catalog.bounds(queues).items():
            marks = [catalog.marks({queue: at}).get(queue) for at in ((least, most - 1) if most > least else ())]
            first, last = [None if mark is None else micros_of(mark.store_timestamp_ms) for mark in marks] or (
                None,
                None,
            )
            found = (queue.topic, queue.broker_name, queue.queue_id, least, most, most - least, first, last)
            rows.append(dict(zip(QUEUES.names, found, strict=True)))
        return rows
    finally:
        catalog.close()


def finding_rows(store: str) -> list[dict[str, object]]:
    """The findings of ``rucola store verify``."""
    # This import loads many modules of ``rucola.store``. Most queries do not need them.
    from rucola.store.verify.check import verify

    return [asdict(finding) | {"kind": finding.kind.value} for finding in verify(store).findings]


def _of_messages(node: Node) -> Node:
    """Returns ``node`` with ``keys``, which is a column of the messages, in place of ``key``. The result only decides
    which messages are read; those with further keys are read, too.
    """
    if isinstance(node, ColumnRef):
        return ColumnRef("keys") if node.name == "key" else node
    if isinstance(node, Call):
        return Call(node.function, tuple(map(_of_messages, node.arguments)), node.values)
    return node


def _exploded(batch: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    split = pc.split_pattern(batch.column("keys"), KEY_SEPARATOR)
    keys, rows = pc.list_flatten(split), pc.list_parent_indices(split)
    made = pa.RecordBatch.from_arrays([keys, *(batch.column(name).take(rows) for name in names)], names=["key", *names])
    return made.filter(pc.not_equal(keys, ""))
