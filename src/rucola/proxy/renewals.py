"""Renews receipt handles of consumers that asked for it, so that a message stays hidden while it is being consumed.

A handle is renewed 10 s before its message would become visible, each time for longer. It ends with the
acknowledgement, three hours after the pop, or with its client, whose messages then become visible after a second. The
handles lie in a wheel with a slot for each second, so those that are not due cost nothing.

A client may move to another door, and acknowledge there what it has got here; a broker that then renews the message
delivers it again. So the handles of a client that may have moved are left alone: those that were not renewed yet end
within a minute. Only this door knows the newest handle of a renewed message.

Source: RocketMQ 5.3.3, ``DefaultReceiptHandleManager``, ``RenewStrategyPolicy``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from rucola.errors import RucolaError
from rucola.proxy.receipt import ReceiptHandle
from rucola.proxy.settings import pause_ms
from rucola.runtime.logs import event

if TYPE_CHECKING:
    from rucola.proxy.brokers import Brokers
    from rucola.proxy.sessions import ClientSession

logger = logging.getLogger(__name__)

HIDDEN_MS: Final = 60_000
"""How long a message is hidden at first."""
_AHEAD_S: Final = 10.0
_STEPS_MS: Final = tuple(60_000 * minutes for minutes in (1, 3, 5, 10, 30, 60))
_RENEWED_S_MAX: Final = 3 * 3600.0
_FAILURES_MAX: Final = 3
_AGAIN_S: Final = 2
_AT_ONCE: Final = 64

_Key = tuple[str, str, str, int, int]

Change = Callable[["ClientSession", str, str, ReceiptHandle, int], Awaitable[ReceiptHandle]]
"""Changes the invisible time: gets client, group, topic, handle and ms, and returns the new handle."""
Show = Callable[["ClientSession", str, str, ReceiptHandle], Awaitable[None]]
"""Makes a message visible soon: gets client, group, topic and handle."""


class _Held:
    """A handle that is renewed."""

    __slots__ = (
        "due_s",
        "failures",
        "group",
        "handle",
        "key",
        "popped_s",
        "reconsume_times",
        "renewed",
        "session",
        "topic",
    )

    def __init__(
        self,
        session: ClientSession,
        group: str,
        topic: str,
        key: _Key,
        handle: ReceiptHandle,
        popped_s: float,
        reconsume_times: int,
    ) -> None:
        self.session, self.group, self.topic, self.key, self.handle = session, group, topic, key, handle
        self.popped_s, self.reconsume_times = popped_s, reconsume_times
        self.due_s = self.renewed = self.failures = 0


class Renewals:
    """The handles of all clients. Event loop only.

    Args:
        brokers: know the groups.
        change: changes the invisible time of a message.
        show: makes a message visible soon.
        monotonic: the clock, in seconds.
    """

    def __init__(self, brokers: Brokers, change: Change, show: Show, monotonic: Callable[[], float]) -> None:
        self._brokers, self._change, self._show, self._monotonic = brokers, change, show, monotonic
        self._held: dict[ClientSession, dict[_Key, _Held]] = {}
        self._slots: defaultdict[int, list[_Held]] = defaultdict(list)
        self._looked_s = int(monotonic())

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def count(self, session: ClientSession) -> int:
        """Number of the messages of a client that it has neither acknowledged nor handed back."""
        return len(self._held.get(session, ()))

    def keep(self, session: ClientSession, group: str, topic: str, handle: ReceiptHandle, reconsume_times: int) -> None:
        """Renews a handle from now on."""
        held = _Held(session, group, topic, _key(group, handle), handle, self._monotonic(), reconsume_times)
        self._held.setdefault(session, {})[held.key] = held
        self._plan(held, handle.invisible_ms / 1000 - _AHEAD_S)

    def take(self, session: ClientSession, group: str, handle: ReceiptHandle) -> ReceiptHandle:
        """Renews a handle no longer; returns the newest one for its message."""
        of_session = self._held.get(session)
        if of_session is None:
            return handle
        held = of_session.pop(_key(group, handle), None)
        if not of_session:
            del self._held[session]
        return handle if held is None else held.handle

    async def release(self, session: ClientSession, has_said: bool = True) -> None:
        """Makes the messages of a client visible soon, because it has ended.

        Args:
            session: the client.
            has_said: whether it has said so itself, here; if not, it may be a client of another door now.
        """
        held = [one for one in self._held.pop(session, {}).values() if one.renewed or (has_said and _is_here(one))]
        for first in range(0, len(held), _AT_ONCE):
            await asyncio.gather(
                *(self._show(session, one.group, one.topic, one.handle) for one in held[first : first + _AT_ONCE]),
                return_exceptions=True,
            )

    async def look(self) -> None:
        """Renews what is due. To be called every second."""
        now_s = int(self._monotonic())
        due: list[_Held] = []
        for slot_s in range(self._looked_s, now_s + 1):
            due += self._slots.pop(slot_s, ())
        self._looked_s = now_s + 1
        waiting = [one for one in due if self._is_held(one)]
        for first in range(0, len(waiting), _AT_ONCE):
            await asyncio.gather(*map(self._renew, waiting[first : first + _AT_ONCE]))

    def _is_held(self, held: _Held) -> bool:
        return self._held.get(held.session, {}).get(held.key) is held

    def _plan(self, held: _Held, in_s: float) -> None:
        held.due_s = max(int(self._monotonic() + in_s), self._looked_s)
        self._slots[held.due_s].append(held)

    async def _renew(self, held: _Held) -> None:
        if not _is_here(held):
            self._let_be(held)
            return
        before = held.handle
        is_last = self._monotonic() - held.popped_s >= _RENEWED_S_MAX
        try:
            if is_last:
                hidden_ms = pause_ms(await self._brokers.group(held.group), held.reconsume_times)
            else:
                hidden_ms = _STEPS_MS[min(held.renewed, len(_STEPS_MS) - 1)]
            if not self._is_held(held):
                return
            handle = await self._change(held.session, held.group, held.topic, before, hidden_ms)
        except RucolaError as error:
            held.failures += 1
            if self._is_held(held):
                self._failed(held, error)
            return
        if not self._is_held(held):
            return  # acknowledged or handed back meanwhile, with the old handle: the broker decides
        held.handle, held.failures = handle, 0
        held.renewed += 1
        if is_last:
            self.take(held.session, held.group, handle)
        else:
            self._plan(held, handle.invisible_ms / 1000 - _AHEAD_S)

    def _let_be(self, held: _Held) -> None:
        """Renews a handle a little later, if its client has connected again by then, or no longer."""
        held.failures += 1
        if not held.session.is_away or held.failures >= _FAILURES_MAX:
            self.take(held.session, held.group, held.handle)
        else:
            self._plan(held, _AGAIN_S)

    def _failed(self, held: _Held, error: RucolaError) -> None:
        if held.failures >= _FAILURES_MAX:
            self.take(held.session, held.group, held.handle)
            event(logger, logging.WARNING, "handle not renewed", group=held.group, topic=held.topic, error=error)
        else:
            self._plan(held, _AGAIN_S)


def _is_here(held: _Held) -> bool:
    """Whether it is at this door that a client acknowledges a message."""
    session = held.session
    return not session.is_away and (held.renewed > 0 or held.popped_s >= session.here_since_s)


def _key(group: str, handle: ReceiptHandle) -> _Key:
    """What stays the same in all handles of a message."""
    place = f"{handle.topic_kind}{handle.broker_name}"
    return group, place, handle.lite_topic, handle.queue_id, handle.queue_offset
