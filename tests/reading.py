"""Functions for several kinds of tests: read all records of a queue, or all units of queue files."""

from __future__ import annotations

from struct import Struct

from rucola.store.message_store import MessageStore
from rucola.store.results import GetMessageStatus

_UNIT = Struct(">qiq")
_NO_ENTRY = 0x7FFFFFFF


def pulled(store: MessageStore, topic: str, queue_id: int) -> dict[int, bytes]:
    """Pulls repeatedly from the first to the last offset of a queue; returns the records by queue offset."""
    name = topic.encode("utf-8", "surrogateescape")
    found: dict[int, bytes] = {}
    at = store.min_queue_offset(name, queue_id)
    while at < store.max_queue_offset(name, queue_id):
        result = store.get_message(name, queue_id, at, 32, 1 << 20)
        assert result.next_offset > at, f"{topic} {queue_id} stays at {at}: {result.status}"
        if result.status is GetMessageStatus.FOUND:
            for view in result.views:
                data = bytes(view)
                while data:
                    size = int.from_bytes(data[:4], "big")
                    found[int.from_bytes(data[20:28], "big")] = data[:size]
                    data = data[size:]
        at = result.next_offset
    return found


def unit_table(files: dict[str, bytes]) -> dict[tuple[str, int], dict[int, tuple[int, int, int]]]:
    """Reads units from files whose paths end with ``topic/queueId/segment``; returns them by topic and queue id, then
    queue offset.

    Units that are zeros or fillers are left out.
    """
    queues: dict[tuple[str, int], dict[int, tuple[int, int, int]]] = {}
    for path, data in files.items():
        topic, queue_id, name = path.split("/")[-3:]
        for index, unit in enumerate(_UNIT.iter_unpack(data[: len(data) - len(data) % _UNIT.size])):
            if unit[1] not in (0, _NO_ENTRY):
                queues.setdefault((topic, int(queue_id)), {})[int(name) // _UNIT.size + index] = unit
    return queues
