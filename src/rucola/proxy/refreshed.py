"""What the door knows of topics and groups of other servers. A value is looked up when it is first needed. When it is
older than 20 s, the next use begins another look-up, and still gets the old value; so does everybody until an answer
comes. What does not exist is looked up again after a short time.

Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from rucola.errors import RucolaError
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

FRESH_S: Final = 20.0
UNKNOWN_S: Final = 1.5
"""What does not exist is not looked up again for so long."""
FAILED_S: Final = 3.0
"""Pause after a look-up that failed."""
UNUSED_S: Final = 300.0
"""A value that nobody has used for so long is not used without a look-up."""
DOUBT_S: Final = 2.0
"""Shortest time between two doubts."""
ENTRIES_MAX: Final = 20_000
_AT_ONCE = 32
_WOKEN_AT_ONCE = 128
"""Of those who wait for a look-up, so many go on in one turn of the event loop."""
K = TypeVar("K", bound="bytes | str")
V = TypeVar("V")


class _Entry(Generic[V]):
    """Attributes:
    value: the newest value.
    asked_s: when its look-up began, or the latest one that failed.
    due_s: when it is looked up again.
    confirmed_s: when a look-up last gave a value.
    """

    __slots__ = ("asked_s", "confirmed_s", "due_s", "value")

    def __init__(self, value: V, asked_s: float, now_s: float) -> None:
        self.value, self.asked_s = value, asked_s
        self.due_s, self.confirmed_s = now_s + FRESH_S, now_s


class _LookUp(Generic[V]):
    """A look-up under way, and those who wait for it.

    Attributes:
        task: does the work.
    """

    __slots__ = ("_waiting", "task")

    def __init__(self, task: asyncio.Task[V | None]) -> None:
        self.task = task
        self._waiting: deque[asyncio.Future[V | None]] = deque()
        task.add_done_callback(self._wake)

    async def value(self) -> V | None:
        """Waits for the value; raises what the look-up raised. Who waits can be cancelled alone."""
        waiter = self.task.get_loop().create_future()
        self._waiting.append(waiter)
        return await waiter  # type: ignore[no-any-return]

    def _wake(self, task: asyncio.Task[V | None]) -> None:
        for _ in range(min(_WOKEN_AT_ONCE, len(self._waiting))):
            waiter = self._waiting.popleft()
            if waiter.done():
                continue
            if task.cancelled():
                waiter.cancel()
            elif (error := task.exception()) is not None:
                waiter.set_exception(error)
                waiter.exception()  # whoever is cancelled in this turn does not look at it
            else:
                waiter.set_result(task.result())
        if self._waiting:
            task.get_loop().call_soon(self._wake, task)


class Refreshed(Generic[K, V]):
    """Values by name.

    Args:
        kind: what the values are, for the log.
        look_up: gets a value; None if there is none. Any ``RucolaError`` leaves the known value in use.
        monotonic: the clock, in seconds.
        missing_kept_s: how long a known value stays in use although look-ups find none.
    """

    def __init__(
        self,
        kind: str,
        look_up: Callable[[K], Awaitable[V | None]],
        monotonic: Callable[[], float],
        missing_kept_s: float = 0.0,
    ) -> None:
        self._kind, self._look_up, self._monotonic = kind, look_up, monotonic
        self._missing_kept_s = missing_kept_s
        self._entries: dict[K, _Entry[V]] = {}  # the one that was looked up longest ago is first
        self._unknown: dict[K, float] = {}
        self._look_ups: dict[K, _LookUp[V]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._doubted_s = -math.inf
        self._is_failing = False

    def __len__(self) -> int:
        return len(self._entries)

    def known(self, name: K) -> V | None:
        """The value, if it need not be looked up first; else None."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        now_s = self._monotonic()
        if entry.due_s <= now_s or entry.asked_s < self._doubted_s:
            if entry.due_s + UNUSED_S <= now_s:
                del self._entries[name]
                return None
            if name not in self._look_ups:
                self._begin(name)
        return entry.value

    async def get(self, name: K) -> V | None:
        """The value; None if there is none.

        Raises:
            RucolaError: the look-up failed, and no value is known.
        """
        value = self.known(name)
        if value is not None or self._unknown.get(name, -math.inf) > self._monotonic():
            return value
        return await (self._look_ups.get(name) or self._begin(name)).value()

    def doubt(self) -> None:
        """Has every value looked up again when it is next used, because something has changed."""
        if self._monotonic() >= self._doubted_s + DOUBT_S:
            self._doubted_s = self._monotonic()

    async def close(self) -> None:
        """Ends all look-ups."""
        tasks = [look_up.task for look_up in self._look_ups.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, name: K) -> _LookUp[V]:
        task = asyncio.get_running_loop().create_task(self._ask(name))
        task.add_done_callback(lambda done: self._done(name, done))
        look_up = self._look_ups[name] = _LookUp(task)
        return look_up

    def _done(self, name: K, task: asyncio.Task[V | None]) -> None:
        del self._look_ups[name]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RucolaError):
            event(logger, logging.ERROR, "look-up failed", error, kind=self._kind)

    async def _ask(self, name: K) -> V | None:
        async with self._slots:
            asked_s = self._monotonic()
            try:
                value = await self._look_up(name)
            except RucolaError as error:
                entry = self._entries.get(name)
                if entry is None:
                    raise
                if not self._is_failing:
                    self._is_failing = True
                    event(logger, logging.WARNING, "not refreshed", kind=self._kind, name=_text(name), error=error)
                return self._keep(name, entry, FAILED_S, asked_s)
        self._is_failing = False
        return self._note(name, value, asked_s)

    def _note(self, name: K, value: V | None, asked_s: float) -> V | None:
        now_s, entry = self._monotonic(), self._entries.get(name)
        if value is None:
            if entry is not None and now_s < entry.confirmed_s + self._missing_kept_s:
                return self._keep(name, entry, UNKNOWN_S, asked_s)
            self._entries.pop(name, None)
            _put_last(self._unknown, name, now_s + UNKNOWN_S)
            return None
        self._unknown.pop(name, None)
        _put_last(self._entries, name, _Entry(value, asked_s, now_s))
        return value

    def _keep(self, name: K, entry: _Entry[V], pause_s: float, asked_s: float) -> V:
        entry.asked_s, entry.due_s = asked_s, self._monotonic() + pause_s
        _put_last(self._entries, name, entry)
        return entry.value


T = TypeVar("T")


def _put_last(table: dict[K, T], name: K, value: T) -> None:
    """Sets an item as the newest one; drops the oldest one if there are too many."""
    table.pop(name, None)
    table[name] = value
    if len(table) > ENTRIES_MAX:
        del table[next(iter(table))]


def _text(name: bytes | str) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name
