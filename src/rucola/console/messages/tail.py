"""Live tails: windows on the newest messages of topics.

A tail reads only when its page asks, so many messages at a time. What comes faster is counted, not read. It reads by
offset and commits nothing, so no group notices it. The number of tails is bounded, for a visitor and in all; one ends
when its page asks no more, and in any case after ``LIFE_S``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rucola.client.admin import AdminClient
from rucola.common.message import MessageExt
from rucola.console.bounds import TooManyError
from rucola.console.cluster.asking import Unknown, by_deadline
from rucola.console.cluster.snapshot import ClusterSnapshot
from rucola.console.messages.reading import PULL_MESSAGES, PulledRange, QueueAt, pulled
from rucola.console.messages.rows import MessageRow, row_of
from rucola.console.messages.search import ScanQuery, queues_of
from rucola.filter.tag import parse_tag_expression

WINDOW: Final = 200
"""Rows that a tail keeps."""
FIRST_ROWS: Final = 20
LOOK_S: Final = 1.5
LOOK_MESSAGES: Final = 512
"""Messages of one look; from a queue that is further behind, the newest follow."""
QUEUES_MAX: Final = 128
OF_VISITOR_MAX: Final = 4
TAILS_MAX: Final = 32
LEFT_S: Final = 15.0
"""A tail that was not asked for so long may go if another one needs its place."""
KEEP_S: Final = 600.0
LIFE_S: Final = 1_800.0
_REFUSAL: Final = "There are too many live tails: close one, or wait a quarter of a minute."


class TailOf(NamedTuple):
    """Whose tail of what.

    Attributes:
        visitor: the account, or the address of a visitor without one.
        session: a word of the session; empty for scripts.
        expression: tags or SQL92; ``is_sql`` says which.
    """

    cluster: str
    visitor: str
    session: str
    topic: str
    expression: str
    is_sql: bool


@dataclass(slots=True)
class Tail:
    """A window on a topic. ``look`` may be called by several requests at once.

    Attributes:
        rows: the newest messages, oldest first.
        seen: messages that were read and matched.
        dropped: messages that came too fast and were not read.
        rate: messages a second that matched, at the last look.
        unknown: what the last look was not told.
    """

    of: TailOf
    began_s: float
    asked_s: float
    may_see_bodies: bool
    rows: deque[MessageRow] = field(default_factory=lambda: deque(maxlen=WINDOW))
    seen: int = 0
    dropped: int = 0
    rate: float | None = None
    unknown: tuple[Unknown, ...] = ()
    _queues: list[QueueAt] | None = None
    _looked_s: float | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def look(self, admin: AdminClient, snapshot: ClusterSnapshot, now_s: float) -> None:
        """Reads what has come since the last look."""
        if self._lock.locked():  # another request looks right now
            async with self._lock:
                return
        async with self._lock:
            unknown: list[Unknown] = []
            if self._queues is None:
                queues = await queues_of(admin, snapshot, ScanQuery(self.of.topic, count=FIRST_ROWS), unknown)
                if queues:
                    self._queues = queues[:QUEUES_MAX]
            before = self.seen
            await self._read(admin, self._queues or [], unknown)
            if self._looked_s is not None and now_s > self._looked_s:
                self.rate = (self.seen - before) / (now_s - self._looked_s)
            self._looked_s, self.unknown = now_s, tuple(unknown)

    async def _read(self, admin: AdminClient, queues: list[QueueAt], unknown: list[Unknown]) -> None:
        until_s = asyncio.get_running_loop().time() + LOOK_S
        behind, found, count = queues, [], 0
        while behind:
            left_s = until_s - asyncio.get_running_loop().time()
            if left_s <= 0 or count >= LOOK_MESSAGES:
                break
            answers = await by_deadline([(one.address, self._pulled(admin, one)) for one in behind], left_s)
            further = []
            for queue, answer in zip(behind, answers, strict=True):
                if isinstance(answer, Unknown):
                    unknown.append(answer)
                    continue
                before = queue.position
                count += max(answer.next_offset - before, 0)
                # A topic that was deleted and created again begins at 0.
                queue.position, queue.end = answer.next_offset, answer.max_offset
                found += [one for one in answer.messages if self._matches(one)]
                if before < queue.position < queue.end:
                    further.append(queue)
            behind = further
        for queue in behind:
            newest = max(queue.end - PULL_MESSAGES, queue.position)
            self.dropped += newest - queue.position
            queue.position = newest
        found.sort(key=lambda one: (one.store_timestamp_ms, one.broker_name, one.queue_id, one.queue_offset))
        self.seen += len(found)
        self.rows.extend(row_of(one, self.may_see_bodies) for one in found[-WINDOW:])

    def _pulled(self, admin: AdminClient, queue: QueueAt) -> asyncio.Future[PulledRange]:
        kind = "SQL92" if self.of.is_sql else "TAG"
        return asyncio.ensure_future(
            pulled(admin, self.of.topic, queue, PULL_MESSAGES, self.of.expression or "*", kind)
        )

    def _matches(self, message: MessageExt) -> bool:
        """Whether a message has one of the tags: a broker compares only their hash codes."""
        if self.of.is_sql or self.of.expression in ("", "*"):
            return True
        return parse_tag_expression(self.of.expression).matches(message.tags)


class TailDesk:
    """All tails of the console. Event loop only.

    Args:
        monotonic: the time in seconds.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._tails: dict[TailOf, Tail] = {}

    def __len__(self) -> int:
        return len(self._tails)

    def now_s(self) -> float:
        """The time in seconds."""
        return self._monotonic()

    def tail(self, of: TailOf, may_see_bodies: bool) -> Tail | None:
        """The tail, which begins if there is none; None if it has ended, once: the next call begins another one.

        Raises:
            TooManyError: there is no place for another one.
        """
        now_s = self._monotonic()
        self.expire()
        tail = self._tails.get(of)
        if tail is not None and now_s - tail.began_s >= LIFE_S:
            del self._tails[of]
            return None
        if tail is None:
            self._make_room(
                [one for one in self._tails.values() if one.of.visitor == of.visitor], OF_VISITOR_MAX, now_s
            )
            self._make_room(list(self._tails.values()), TAILS_MAX, now_s)
            tail = self._tails[of] = Tail(of, now_s, now_s, may_see_bodies)
        tail.asked_s = now_s
        return tail

    def expire(self) -> None:
        """Ends the tails that nobody has asked for."""
        now_s = self._monotonic()
        for of in [of for of, tail in self._tails.items() if now_s - tail.asked_s >= KEEP_S]:
            del self._tails[of]

    def _make_room(self, tails: list[Tail], count_max: int, now_s: float) -> None:
        if len(tails) < count_max:
            return
        oldest = min(tails, key=lambda tail: tail.asked_s)
        if now_s - oldest.asked_s < LEFT_S:
            raise TooManyError(_REFUSAL)
        del self._tails[oldest.of]
