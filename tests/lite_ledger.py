"""What a store of lite topics must show: computed from the records in its log and from the deletions that were asked
for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any

from tests.crash.workloads import config, message

from rucola.common.message import StoreMessage
from rucola.formats.light_queue import is_lite, light_queue_offsets, lite_name, lite_topic
from rucola.formats.message import decode_messages
from rucola.store.config import MessageStoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.results import GetMessageStatus, PutMessageStatus

NAMES = (*(b"Parent$s%d" % number for number in range(4)), b"Other$s0")


def lite_config(sync: bool, segment_bytes: int = 16384, **options: Any) -> MessageStoreConfig:
    """Returns options for tiny files: ten units in a segment of units."""
    return replace(config(sync, segment_bytes), enable_lmq=True, enable_multi_dispatch=True, **options)


def lite_message(random: Random, names: Iterable[bytes], size: int = 40) -> StoreMessage:
    """Returns a message in the queues of these lite topics."""
    one = message(random, b"Parent", size=size)
    text = b",".join(map(lite_topic, names))
    return replace(one, properties=one.properties + b"INNER_MULTI_DISPATCH\x01%b\x02" % text)


def offsets_in(record: bytes) -> dict[bytes, int]:
    """Returns the queue offset that a record has in each lite topic."""
    (decoded,) = decode_messages(record)
    text = "".join(f"{name}\x01{value}\x02" for name, value in decoded.properties.items()).encode()
    found = {item[0]: item[1] for item in light_queue_offsets(text) if item is not None and is_lite(item[0])}
    return {lite_name(topic): queue_offset for topic, queue_offset in found.items()}


class LiteLedger:
    """Deletions and messages so far.

    Attributes:
        records: physical offset and bytes of the records, oldest first.
        deleted: for each name, the start that a deletion has reached.
        dropped: for each name that was forgotten, or may have been, the physical offset from which on it may begin
            again.
        asked: for each name, the starts that deletions may have reached.
    """

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []
        self.deleted: dict[bytes, int] = {}
        self.asked: dict[bytes, set[int]] = {}
        self.dropped: dict[bytes, int] = {}

    def copy(self) -> LiteLedger:
        """Returns an independent copy."""
        other = LiteLedger()
        other.records, other.deleted = self.records[:], self.deleted.copy()
        other.asked = {name: starts.copy() for name, starts in self.asked.items()}
        other.dropped = self.dropped.copy()
        return other

    @property
    def end(self) -> int:
        """Physical offset after the last record."""
        return self.records[-1][0] + len(self.records[-1][1]) if self.records else 0

    def put(self, store: MessageStore, message: StoreMessage) -> bool:
        """Appends a message; returns whether the store took it."""
        result = store.put_message(message)
        if result.status is not PutMessageStatus.PUT_OK:
            return False
        file = store._log.segments.find(result.physical_offset)
        assert file is not None
        at = result.physical_offset - file.start
        self.records.append((result.physical_offset, bytes(file.target.view[at : at + result.size])))
        return True

    def adopt(self, store: MessageStore, segment_bytes: int) -> None:
        """Takes over records behind the last one: one was being appended when the power failed."""
        offset = self.end
        while offset < store.max_offset:
            record = store.message_at(offset)
            if record is None:
                offset += segment_bytes - offset % segment_bytes
            else:
                self.records.append((offset, bytes(record)))
                offset = self.end

    def delete(self, store: MessageStore, names: Iterable[bytes]) -> None:
        """Deletes lite topics."""
        assert store.lite is not None
        for name in names:
            start = store.max_queue_offset(lite_topic(name), 0)
            if store.delete_lite([name]):
                self.asked.setdefault(name, set()).add(start)

    def forget(self, store: MessageStore) -> int:
        """Forgets all lite topics that the store may forget; returns their number."""
        assert store.lite is not None
        names = store.lite.forgettable().names
        assert store.lite.forget(names) == len(names)
        for name in names:
            self.dropped[name] = self.end
            self.asked.pop(name, None)
            self.deleted.pop(name, None)
        return len(names)

    def settle(self, store: MessageStore) -> None:
        """Notes which deletions have taken effect."""
        for name, starts in self.asked.items():
            low = store.min_queue_offset(lite_topic(name), 0)
            for start in sorted(starts):
                if low >= start:
                    self.deleted[name] = max(self.deleted.get(name, 0), start)

    def check(self, store: MessageStore, acked_end: int) -> None:
        """Compares everything that the store shows, and the offsets that it would give next.

        Args:
            acked_end: physical offset up to which messages were acknowledged.
        """
        assert store.lite is not None
        end, begin = store.max_offset, store.min_offset
        live: dict[bytes, dict[int, bytes]] = {}
        given: dict[bytes, int] = {}
        for physical_offset, record in self.records:
            for name, queue_offset in offsets_in(record).items():
                if self.dropped.get(name, 0) <= physical_offset < max(end, acked_end) - len(record) + 1:
                    given[name] = max(given.get(name, 0), queue_offset + 1)
                if begin <= physical_offset and physical_offset + len(record) <= end:
                    live.setdefault(name, {})[queue_offset] = record
        for name in {*given, *live, *self.deleted, *NAMES}:
            self._check_name(store, name, live.get(name, {}), given.get(name, 0))

    def _check_name(self, store: MessageStore, name: bytes, live: dict[int, bytes], given: int) -> None:
        topic = lite_topic(name)
        low, high = store.queue_range(topic, 0)
        assert store.lite is not None
        next_offset = store.lite.next_offset(topic)
        assert next_offset >= max(given, self.deleted.get(name, 0)), (name, next_offset, given, self.deleted)
        floor = self.deleted.get(name, 0)
        starts = {floor, *(start for start in self.asked.get(name, ()) if start > floor)}
        outcomes = []
        for start in starts:
            wanted = {offset: record for offset, record in live.items() if offset >= start}
            outcomes.append((min(wanted, default=high), wanted))
        fitting = [wanted for first, wanted in outcomes if first == low]
        assert fitting, (name, low, high, [first for first, _ in outcomes])
        wanted = max(fitting, key=len)
        assert high == max(wanted, default=high - 1) + 1
        for offset, record in wanted.items():
            result = store.get_message(topic, 0, offset, 1, 1 << 20)
            assert result.status is GetMessageStatus.FOUND, (name, offset, result)
            assert b"".join(map(bytes, result.views)) == record
            assert result.next_offset == offset + 1
        if wanted:
            found = store.get_message(topic, 0, low, 32, 1 << 20)
            assert b"".join(map(bytes, found.views)) == b"".join(
                record for _, record in sorted(wanted.items())[: found.message_count]
            )
