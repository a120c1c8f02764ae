"""Pops of lite topics that wait: for messages, or for the disk. Event loop only.

A pop waits for its client, not for a lite topic. ``pop.hold`` has the table of what may happen to a pop in which state.
The dispatcher decides which pop is woken (``LiteEventDispatcher.woken``); this module ends its wait and runs it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from rucola.broker.lite.event_dispatcher import LiteEventDispatcher
from rucola.broker.lite.reading_group import LiteClient
from rucola.broker.pop.hold import WaitingPop
from rucola.broker.waiting_requests import Timer, WaitingRequests, WaitState
from rucola.remoting.channel import Channel
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class WaitingLitePop(WaitingPop):
    """A pop of lite topics that waits; ``topic`` is the parent."""

    client: LiteClient
    attempt_id: str | None = None


class LiteHold:
    """The waiting pops.

    Args:
        monotonic: returns monotonic seconds.
        call_later: the event loop's method, called with ``(seconds, callback, *args)``.
        waiting_max: maximum number of waiting pops.
        client_max: a pop may not wait if more pops than this number of its client already do.
        account_of: see ``WaitingRequests``.
        ended: called with the client of each pop whose wait has ended without a further run.

    Attributes:
        stopped: whether the broker is stopping; if so, no pop may wait.
    """

    def __init__(
        self,
        dispatcher: LiteEventDispatcher,
        monotonic: Callable[[], float],
        call_later: Callable[..., Timer],
        waiting_max: int,
        client_max: int,
        account_of: Callable[[Channel], str],
        ended: Callable[[LiteClient], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._monotonic = monotonic
        self._call_later = call_later
        self._waiting_max = waiting_max
        self._client_max = client_max
        self._ended = ended
        self._pops: dict[Channel, dict[int, WaitingLitePop]] = {}
        """The pops that wait for anything or are woken, by connection and opaque."""
        self._requests = WaitingRequests[WaitingLitePop](monotonic, call_later, self._expired, account_of)
        self.stopped = False

    def __len__(self) -> int:
        return self._requests.count

    def hold(self, pop: WaitingLitePop) -> bool:
        """Holds a pop until its deadline; returns False if too many wait or the broker is stopping."""
        waiters = pop.client.waiters
        if self.stopped or self._requests.count >= self._waiting_max or len(waiters) > self._client_max:
            return False
        pop.hold()
        if not self._requests.add(pop):
            pop.finish()
            return False
        self._note(pop)
        self._dispatcher.wait(pop.client, pop)
        return True

    def leave(self, pop: WaitingLitePop) -> None:
        """Notes that a pop waits for the disk; ``resume`` must follow."""
        pop.leave()
        self._note(pop)

    def wake(self) -> None:
        """Ends the wait of the pops that the dispatcher has woken. They run in a later iteration of the event loop."""
        woken, self._dispatcher.woken = self._dispatcher.woken, []
        for pop in woken:
            assert isinstance(pop, WaitingLitePop)
            self._requests.remove(pop)
            pop.wake()
            self._call_later(0, self.resume, pop)

    def resume(self, pop: WaitingLitePop) -> None:
        """Runs a pop whose wait has ended, unless its client no longer wants the response."""
        withdrawn = pop.state is WaitState.WITHDRAWN
        self._forget(pop)
        pop.finish()
        if withdrawn or pop.channel.closed:
            self._ended(pop.client)
            return
        try:
            pop.resume()
        except Exception as error:  # noqa: BLE001 - a defect in one request must not keep the others waiting
            event(logger, logging.ERROR, "pop of lite topics not resumed", error, peer=pop.channel.remote_address)
            self._ended(pop.client)

    def withdraw(self, channel: Channel, opaque: int) -> bool:
        """Takes out a waiting pop, which then pops nothing and gets no response. Returns whether there is one."""
        pop = self._pops.get(channel, {}).get(opaque)
        if pop is None:
            return False
        self._take_out(pop)
        return True

    def end_older(self, client: LiteClient, attempt_id: str | None) -> None:
        """Answers the waiting pop that a client repeats, if there is one, without a look for messages."""
        for pop in list(client.waiters) if attempt_id else ():
            if isinstance(pop, WaitingLitePop) and pop.attempt_id == attempt_id:
                self._take_out(pop)
                pop.give_up()

    def channel_closed(self, channel: Channel) -> None:
        """Forgets the pops of a closed connection."""
        for pop in list(self._pops.get(channel, {}).values()):
            self._take_out(pop)

    def release_all(self) -> None:
        """Runs all pops now, because the broker is stopping."""
        self.stopped = True
        for pop in self._requests.all():
            self._remove(pop)
            pop.wake()
            self.resume(pop)

    def _expired(self, pop: WaitingLitePop) -> None:
        self._remove(pop)
        pop.wake()
        self._call_later(0, self.resume, pop)

    def _take_out(self, pop: WaitingLitePop) -> None:
        if pop.state is WaitState.HELD:
            self._remove(pop)
        self._forget(pop)
        pop.withdraw()
        if pop.state is WaitState.DONE:
            self._ended(pop.client)

    def _remove(self, pop: WaitingLitePop) -> None:
        self._requests.remove(pop)
        self._dispatcher.leave(pop.client, pop, round(self._monotonic() * 1000))

    def _note(self, pop: WaitingLitePop) -> None:
        self._pops.setdefault(pop.channel, {})[pop.opaque] = pop

    def _forget(self, pop: WaitingLitePop) -> None:
        pops = self._pops.get(pop.channel, {})
        if pops.get(pop.opaque) is pop:
            del pops[pop.opaque]
            if not pops:
                del self._pops[pop.channel]
