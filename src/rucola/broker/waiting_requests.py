"""Requests that wait for messages: what waiting pulls and waiting pops share. Event loop only.

``PullRequestHold`` and ``PopHold`` decide which request a message wakes. Here is what they need for it: the names of
the states, limits for each connection and each account, and deadlines.

No single connection can use up the broker's limit of waiting requests. An official client sends one waiting request for
each of its queues, and sends all of them through one connection. ``REQUESTS_MAX`` is therefore much larger than the
number of queues of one consumer. The broker still reads from a connection that has reached its limit, because the
connection's heartbeats must be served, too.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Callable
from enum import Enum
from typing import Generic, Protocol, TypeVar

from rucola.broker.shares import Shares
from rucola.remoting.channel import Channel
from rucola.remoting.fairness.turn import TURN_S
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

REQUESTS_MAX = 4096
"""Maximum number of waiting requests of one connection."""
ACCOUNT_MAX = 25_000
"""Maximum number of waiting requests of one account, on all its connections."""
STEP_S = 0.01
"""Deadlines are rounded up to a multiple of this."""
_PER_SECOND = round(1 / STEP_S)
_TAKEN_AT_ONCE = 256
_ROUNDING = 1e-3
"""Tolerance for the rounding error of floating-point sums, in units of ``STEP_S``."""


class WaitState(Enum):
    """Where a request is in its life. ``pull.request`` and ``pop.hold`` have the tables of transitions."""

    NEW = "new"
    """It runs for the first time."""
    HELD = "held"
    """It waits for messages."""
    WOKEN = "woken"
    """It runs again, or will soon, because messages have arrived."""
    AWAY = "away"
    """It waits for the disk, or for the parser of its expression."""
    WITHDRAWN = "withdrawn"
    """Its client no longer wants the response, but something is scheduled that would run the request again."""
    FINAL = "final"
    """It runs for the last time, or will soon: it must not wait again."""
    DONE = "done"
    """It was answered, or its connection is gone."""


class TransitionError(AssertionError):
    """Something happened to a request that cannot happen in its state: a defect of the broker."""

    def __init__(self, state: WaitState, happened: str) -> None:
        super().__init__(f"{happened}: impossible for a request that is {state.value}")


class Waiting(Protocol):
    """A request that waits. Requests are compared by identity.

    Attributes:
        deadline_s: monotonic time at which the request stops waiting; constant while it waits.
    """

    channel: Channel
    deadline_s: float


class Timer(Protocol):
    """The result of ``loop.call_later``."""

    def cancel(self) -> None:
        """Cancels the call."""


W = TypeVar("W", bound=Waiting)


class WaitingRequests(Generic[W]):
    """All waiting requests, by connection and by deadline. Adding and removing a request takes constant time.

    Args:
        monotonic: returns monotonic seconds.
        call_later: ``(seconds, callback) -> Timer``, the loop's method.
        expired: called with each request whose deadline has passed; must remove it.
        account_of: returns the account of a connection; empty without accounts, and then only connections have limits.

    Attributes:
        count: the number of waiting requests.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        call_later: Callable[..., Timer],
        expired: Callable[[W], None],
        account_of: Callable[[Channel], str] = lambda _: "",
    ) -> None:
        self._account_of = account_of
        self._connections: dict[Channel, dict[W, None]] = {}
        self._accounts: dict[Channel, str] = {}
        """The account of each connection when its first request began to wait."""
        self._shares = Shares(REQUESTS_MAX * ACCOUNT_MAX, ACCOUNT_MAX, 0)
        self._deadlines = Deadlines[W](monotonic, call_later, expired)
        self.count = 0

    def add(self, request: W) -> bool:
        """Adds a request until its deadline; returns False if too many of its connection or account wait."""
        channel = request.channel
        requests = self._connections.get(channel)
        account = self._account_of(channel) if requests is None else self._accounts.get(channel, "")
        if requests is not None and len(requests) >= REQUESTS_MAX:
            return False
        if account and not self._shares.take(account):
            return False
        if requests is None:
            requests = self._connections[channel] = {}
            if account:
                self._accounts[channel] = account
        requests[request] = None
        self.count += 1
        self._deadlines.add(request)
        return True

    def remove(self, request: W) -> None:
        """Removes a request, which ended early or is expiring right now."""
        channel = request.channel
        requests = self._connections[channel]
        del requests[request]
        self.count -= 1
        self._deadlines.remove(request)
        account = self._accounts.get(channel, "")
        if account:
            self._shares.give_back(account)
        if not requests:
            del self._connections[channel]
            self._accounts.pop(channel, None)

    def all(self) -> list[W]:
        """All waiting requests."""
        return [request for requests in self._connections.values() for request in requests]

    def of(self, channel: Channel) -> list[W]:
        """The waiting requests of ``channel``."""
        return list(self._connections.get(channel, ()))


class Deadlines(Generic[W]):
    """Calls ``expired`` with each request when its deadline has passed.

    Requests are grouped by their moment: their deadline in units of ``STEP_S``, rounded up. Adding and removing a
    request takes constant time, and the loop has one timer for all requests. When the last request of a moment is
    removed, the empty moment is kept, at most until that time.

    Args:
        monotonic: returns monotonic seconds.
        call_later: ``(seconds, callback) -> Timer``, the loop's method.
        expired: called with each expired request, after its removal.
    """

    def __init__(
        self, monotonic: Callable[[], float], call_later: Callable[..., Timer], expired: Callable[[W], None]
    ) -> None:
        self._monotonic = monotonic
        self._call_later = call_later
        self._expired = expired
        self._moments: dict[int, dict[W, None]] = {}
        self._order: list[int] = []
        """A heap of the keys of ``_moments``."""
        self._timer: Timer | None = None
        self._timer_moment = 0
        self._turning = False

    def add(self, request: W) -> None:
        """Makes ``request`` expire at its deadline."""
        moment = math.ceil(request.deadline_s * _PER_SECOND - _ROUNDING)
        requests = self._moments.get(moment)
        if requests is None:
            requests = self._moments[moment] = {}
            heapq.heappush(self._order, moment)
            if not self._turning and (self._timer is None or moment < self._timer_moment):
                self._arm()
        requests[request] = None

    def remove(self, request: W) -> None:
        """Removes ``request``, which ended early or is expiring right now."""
        self._moments[math.ceil(request.deadline_s * _PER_SECOND - _ROUNDING)].pop(request, None)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_moment = self._order[0]
        self._timer = self._call_later(max(self._timer_moment / _PER_SECOND - self._monotonic(), 0), self._turn)

    def _turn(self) -> None:
        self._timer = None
        self._turning = True
        try:
            began_s = self._monotonic()
            now = began_s * _PER_SECOND + _ROUNDING
            while self._order and (self._order[0] <= now or not self._moments[self._order[0]]):
                moment = self._order[0]
                requests = self._moments[moment]
                while requests:
                    # Takes several requests at once, because each search for the first entry of a dictionary passes the
                    # slots of all removed entries.
                    for request in list(itertools.islice(requests, _TAKEN_AT_ONCE)):
                        if self._monotonic() - began_s > TURN_S:
                            return  # the other requests expire in the next iteration of the event loop
                        if request in requests:
                            del requests[request]
                            self._expire(request)
                # The moment is removed only now, because the callback of an expired request may remove other requests
                # of the same moment.
                heapq.heappop(self._order)
                del self._moments[moment]
        finally:
            self._turning = False
            if self._order:
                self._arm()

    def _expire(self, request: W) -> None:
        try:
            self._expired(request)
        except Exception as error:  # noqa: BLE001 - a defect costs one request, not all that come after it
            event(logger, logging.ERROR, "expired request not resumed", error)
