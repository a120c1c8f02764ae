"""Messages popped in order (RocketMQ 5.3.3, ``ConsumerOrderInfoManager``). Event loop only.

After a group has popped messages of a queue in order, it gets no more messages of this queue until each of them is
acknowledged or its invisible time is over. Until then, only a request with the attempt id of that pop gets messages of
the queue: the same messages again, before those of other queues. RocketMQ may fill the response with messages of other
queues, and then the queue stays blocked. It also takes two empty attempt ids for the same one; here, an empty one is
none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rucola.broker.pop.pop_offsets import PoppedQueue
from rucola.broker.pop.receipt import PopInfo
from rucola.common.key_builder import topic_at_group
from rucola.errors import FormatError
from rucola.formats.config_json import ENTRY_LINE, dump_entry, dump_value, dumps_table, loads_object
from rucola.runtime.table_writer import Keep, Pieces

ILLEGAL: Final = -1
"""The offset does not belong to the last pop."""
NOTHING_TO_COMMIT: Final = -2
_FILE: Final = "consumerOrderInfo.json"
_FORGOTTEN_AFTER_MS: Final = 24 * 3_600_000


@dataclass(slots=True)
class OrderInfo:
    """The last pop of a queue.

    Attributes:
        next_visible_ms: when a message becomes visible again, by queue offset; only for messages whose invisible time
            was changed.
        consumed_counts: number of earlier deliveries of a message, by queue offset; no entry for 0.
        acknowledged: a bit for each message.
    """

    attempt_id: str | None
    pop_time_ms: int
    invisible_ms: int
    offsets: list[int]
    last_consume_ms: int
    acknowledged: int = 0
    next_visible_ms: dict[int, int] = field(default_factory=dict)
    consumed_counts: dict[int, int] = field(default_factory=dict)

    def is_of(self, attempt_id: str | None) -> bool:
        """Whether the pop had this attempt id."""
        return bool(attempt_id) and self.attempt_id == attempt_id

    def is_over(self) -> bool:
        """Whether all messages are acknowledged."""
        return self.acknowledged == (1 << len(self.offsets)) - 1

    def free_at_ms(self) -> int:
        """The time from which pops get messages of the queue again."""
        times = [
            self.next_visible_ms.get(offset, self.pop_time_ms + self.invisible_ms)
            for index, offset in enumerate(self.offsets)
            if not self.acknowledged >> index & 1
        ]
        return max(times, default=0)

    def next_offset(self) -> int:
        """Queue offset of the first unacknowledged message, or the offset after the last."""
        for index, offset in enumerate(self.offsets):
            if not self.acknowledged >> index & 1:
                return offset
        return self.offsets[-1] + 1

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        first = self.offsets[0]
        members: dict[str, Any] = {} if self.attempt_id is None else {"a": self.attempt_id}
        members |= {"cm": self.acknowledged, "i": self.invisible_ms, "l": self.last_consume_ms}
        members["o"] = (first, *(offset - first for offset in self.offsets[1:]))
        if self.consumed_counts:
            members["oc"] = dict(sorted(self.consumed_counts.items()))
        if self.next_visible_ms:
            members["ot"] = dict(sorted(self.next_visible_ms.items()))
        return members | {"popTime": self.pop_time_ms}

    def copy(self) -> OrderInfo:
        """A copy that is independent of later acknowledgements and changes of invisible times."""
        return replace(self, next_visible_ms=self.next_visible_ms.copy())

    @classmethod
    def from_dict(cls, members: dict[str, Any]) -> OrderInfo:
        """Reads the JSON form.

        Raises:
            FormatError: a member has the wrong type.
        """
        try:
            first, *distances = members["o"]
            return cls(
                members.get("a"),
                int(members["popTime"]),
                int(members.get("i") or 0),
                [int(first), *(int(first) + int(distance) for distance in distances)],
                int(members.get("l", 0)),
                int(members.get("cm", 0)),
                {int(offset): int(time_ms) for offset, time_ms in (members.get("ot") or {}).items()},
                {int(offset): int(count) for offset, count in (members.get("oc") or {}).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(_FILE, 0, "an object that describes a pop", repr(error)[:64]) from error


class OrderInfoManager:
    """Maps queue and group to :class:`OrderInfo`.

    Args:
        keep: creates the writer of ``consumerOrderInfo.json``.
        exists: whether a queue and a group exist.
    """

    def __init__(self, keep: Keep, wall_ms: Callable[[], int], exists: Callable[[PoppedQueue], bool]) -> None:
        self._kept = keep(self._snapshot, self._written)
        self._wall_ms = wall_ms
        self._exists = exists
        self._changed = False
        self.table: dict[PoppedQueue, OrderInfo] = {}
        self._attempts: dict[tuple[str, str, str], set[int]] = {}
        """Ids of the queues in ``table``, by topic, group and attempt id."""

    def load(self, text: bytes | None) -> None:
        """Loads the file.

        Raises:
            FormatError: the text is not a table of pops.
        """
        if text is None:
            return
        for key, queues in (loads_object(text, _FILE).get("table") or {}).items():
            topic, _, group = key.partition("@")
            for queue_id, members in queues.items():
                self._set(PoppedQueue(topic, group, int(queue_id)), OrderInfo.from_dict(members))

    def persist(self) -> asyncio.Future[None] | None:
        """Requests a write of the table if it changed. Returns a future that is done when the table is written, or None
        if nothing changed.
        """
        if not self._changed:
            return None
        self._changed = False
        return self._kept.changed()

    def _snapshot(self) -> Pieces:
        limit_ms = self._wall_ms() - _FORGOTTEN_AFTER_MS
        for queue, info in list(self.table.items()):
            if info.last_consume_ms < limit_ms or not self._exists(queue):
                self._remove(queue)
        return order_info_pieces([(queue, info.copy()) for queue, info in self.table.items()])

    def _written(self, error: Exception | None) -> None:
        self._changed = self._changed or error is not None

    def blocked_until_ms(self, queue: PoppedQueue, attempt_id: str | None, invisible_ms: int) -> int | None:
        """The time from which pops with ``attempt_id`` get messages of the queue again; None if they get messages
        now.
        """
        info = self.table.get(queue)
        if info is None or info.is_of(attempt_id):
            return None
        if info.invisible_ms <= 0:
            info.invisible_ms = invisible_ms
        free_at_ms = info.free_at_ms()
        return free_at_ms if self._wall_ms() < free_at_ms else None

    def popped(
        self, queue: PoppedQueue, attempt_id: str | None, times_ms: tuple[int, int], offsets: Sequence[int]
    ) -> None:
        """Notes that the messages at ``offsets`` were popped; ``times_ms`` has the pop time and the invisible time."""
        before = self.table.get(queue)
        info = OrderInfo(attempt_id, *times_ms, list(offsets), self._wall_ms())
        if before is not None:
            if before.is_of(attempt_id):
                info.consumed_counts = before.consumed_counts
            else:
                again = set(before.offsets).intersection(offsets)
                info.consumed_counts = {offset: before.consumed_counts.get(offset, 0) + 1 for offset in again}
        self._set(queue, info)
        self._changed = True

    def of_attempt(self, topic: str, group: str, attempt_id: str | None) -> dict[int, OrderInfo]:
        """The last pops of a topic's queues that had ``attempt_id``, by queue id; only those with messages that are not
        acknowledged.
        """
        queues = self._attempts.get((topic, group, attempt_id)) if attempt_id else None
        if queues is None:
            return {}
        infos = {queue_id: self.table[PoppedQueue(topic, group, queue_id)] for queue_id in sorted(queues)}
        return {queue_id: info for queue_id, info in infos.items() if not info.is_over()}

    def describe(self, queue: PoppedQueue, answer: PopInfo) -> None:
        """Adds to ``answer`` the number of earlier deliveries of each message."""
        info = self.table[queue]
        for offset, count in sorted(info.consumed_counts.items()):
            answer.add_order_count(queue.topic, queue.queue_id, count, offset)
        complete = len(info.consumed_counts) == len(info.offsets)
        least = min(info.consumed_counts.values(), default=0) if complete else 0
        answer.add_order_count(queue.topic, queue.queue_id, least)

    def acknowledge(self, queue: PoppedQueue, queue_offset: int, pop_time_ms: int) -> int:
        """Acknowledges a message; returns the consumer offset to commit, ``ILLEGAL`` or ``NOTHING_TO_COMMIT``."""
        info = self.table.get(queue)
        if info is None:
            return queue_offset + 1
        if info.pop_time_ms != pop_time_ms:
            return NOTHING_TO_COMMIT
        if queue_offset not in info.offsets:
            return ILLEGAL
        info.acknowledged |= 1 << info.offsets.index(queue_offset)
        self._changed = True
        return info.next_offset()

    def hide_until(self, queue: PoppedQueue, queue_offset: int, pop_time_ms: int, visible_ms: int) -> None:
        """Changes the time at which a message becomes visible again."""
        info = self.table.get(queue)
        if info is not None and info.pop_time_ms == pop_time_ms:
            info.next_visible_ms[queue_offset] = visible_ms
            self._changed = True

    def free(self, queue: PoppedQueue) -> None:
        """Makes the messages of the last pop visible again, if it is not forgotten."""
        info = self.table.get(queue)
        if info is not None:
            info.next_visible_ms.update(dict.fromkeys(info.offsets, self._wall_ms()))
            self._changed = True

    def forget(self, queue: PoppedQueue) -> None:
        """Forgets the pop of a queue whose offset was reset."""
        self._changed = self._remove(queue) or self._changed

    def forget_all(self, concerned: Callable[[PoppedQueue], bool]) -> None:
        """Forgets the pops of a deleted topic or group: those for which ``concerned`` returns True."""
        for queue in [queue for queue in self.table if concerned(queue)]:
            self.forget(queue)

    def _set(self, queue: PoppedQueue, info: OrderInfo) -> None:
        before = self.table.get(queue)
        if before is None or before.attempt_id != info.attempt_id:
            self._remove(queue)
            if info.attempt_id:
                self._attempts.setdefault((queue.topic, queue.group, info.attempt_id), set()).add(queue.queue_id)
        self.table[queue] = info

    def _remove(self, queue: PoppedQueue) -> bool:
        """Removes a queue; returns whether it was there."""
        info = self.table.pop(queue, None)
        if info is not None and info.attempt_id:
            key = queue.topic, queue.group, info.attempt_id
            queues = self._attempts[key]
            queues.discard(queue.queue_id)
            if not queues:
                del self._attempts[key]
        return info is not None


def order_info_pieces(infos: Iterable[tuple[PoppedQueue, OrderInfo]]) -> Iterator[bytes]:
    """``consumerOrderInfo.json`` piece by piece."""
    table: dict[str, dict[int, OrderInfo]] = {}
    for queue, info in infos:
        table.setdefault(topic_at_group(queue.topic, queue.group), {})[queue.queue_id] = info
    entries = (
        dump_entry(key, dump_value({queue_id: info.to_dict() for queue_id, info in queues.items()}, ENTRY_LINE))
        for key, queues in table.items()
    )
    return dumps_table({}, "table", entries)
