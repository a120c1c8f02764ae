"""One call that waits for popped messages, and the requests that may bring it some."""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple

from rucola.client.fetched_messages import Popped

Place = tuple[str, str]
"""Topic and broker name; without a broker name, it stands for the search for the topic's brokers."""

RENEWAL: Place = ("", "")
"""Place of the request that hides fetched messages for another time."""
STRAGGLERS_S = 0.5
"""How long a call still waits for other brokers when its time is over, in seconds."""
LOOK_S = 0.1
"""How long a call waits for the answer of one broker before it asks the next one, in seconds."""
REST_S = 0.1
"""A call with less time left than this does not ask a broker again, in seconds."""
_PAUSE_S = 1.0
"""How long a broker that failed or holds too many pops is not asked again, in seconds."""


class PopTerms(NamedTuple):
    """What two calls must have in common so that one may wait for the pop of the other.

    Attributes:
        expression: the subscription's type and expression.
    """

    place: Place
    expression: str
    max_messages: int
    invisible_ms: int


class Source:
    """A request that may bring messages. It goes on when its call has left, since a broker cannot be told to end it.

    Attributes:
        key: what it asks for.
        ends_at: the event loop's time until which a broker may hold it; at most the deadline of its first call.
        owner: the call that waits for it; None if the call has left.
        task: sends it.
    """

    __slots__ = ("ends_at", "key", "owner", "task")

    def __init__(self, key: PopTerms, ends_at: float, owner: PopCall, task: asyncio.Task[Popped | None]) -> None:
        self.key, self.task = key, task
        self.ends_at = min(ends_at, owner.deadline)
        self.owner: PopCall | None = owner

    @property
    def is_pop(self) -> bool:
        """Whether a broker is asked for messages."""
        return bool(self.key.place[1])


class PopCall:
    """One call.

    Args:
        max_messages: the most messages that a pop may bring.
        take_max: the most messages that the call takes.
        invisible_ms: how long the messages must be hidden, in ms.
        deadline: the event loop's time until which the call waits.

    Attributes:
        sources: the running requests of the call, by place.
        failures: the errors of the places whose last request failed.
        again_at: the event loop's time before which a place is not asked again.
        looked: places that were asked for messages that they have already.
        look_until: the event loop's time until which the call waits for the last of these answers.
        answered: whether a broker has answered.
    """

    __slots__ = (
        "_waiting",
        "again_at",
        "answered",
        "deadline",
        "failures",
        "invisible_ms",
        "look_until",
        "looked",
        "max_messages",
        "sources",
        "take_max",
    )

    def __init__(self, max_messages: int, take_max: int, invisible_ms: int, deadline: float) -> None:
        self.max_messages, self.take_max = max_messages, take_max
        self.invisible_ms, self.deadline = invisible_ms, deadline
        self.sources: dict[Place, Source] = {}
        self.failures: dict[Place, BaseException] = {}
        self.again_at: dict[Place, float] = {}
        self.looked: set[Place] = set()
        self.look_until = 0.0
        self.answered = False
        self._waiting: asyncio.Future[None] | None = None

    def key(self, place: Place, expression: str = "") -> PopTerms:
        """The key of a request of this call."""
        return PopTerms(place, expression, self.max_messages, self.invisible_ms)

    def may_ask(self, place: Place, now: float) -> bool:
        """Whether to send a request to ``place`` now. After the deadline, each place is asked at most once."""
        if place in self.sources:
            return False
        return self.again_at.get(place, now) <= now and (now < self.deadline or place not in self.again_at)

    @property
    def failure(self) -> BaseException | None:
        """The error of a broker that failed last."""
        return next((error for (_, broker_name), error in self.failures.items() if broker_name), None)

    def failed(self, place: Place, error: BaseException, now: float) -> None:
        """Notes that the request at ``place`` has failed."""
        self.failures[place] = error
        self.again_at[place] = now + _PAUSE_S

    def succeeded(self, source: Source, now: float) -> None:
        """Notes that a request has brought no message, and no error."""
        place = source.key.place
        self.failures.pop(place, None)
        if source.is_pop:
            self.answered = True
            if now < source.ends_at - REST_S:  # the broker holds too many pops, or stops
                self.again_at[place] = now + _PAUSE_S
            elif source.ends_at >= self.deadline - REST_S:
                self.again_at[place] = math.inf

    def wait_until(self, now: float) -> float | None:
        """The event loop's time until which to wait for the next event; None if the call is over."""
        if now < self.deadline:
            later = [at for at in (self.look_until, *self.again_at.values()) if at > now]
            return min([self.deadline, *later])
        if self.answered and now >= self.deadline + STRAGGLERS_S:
            return None
        awaited = [
            one for one in self.sources.values() if one.ends_at <= self.deadline and (one.is_pop or not self.answered)
        ]
        if not awaited:
            return None
        return self.deadline + STRAGGLERS_S if self.answered else math.inf

    @property
    def is_waiting(self) -> bool:
        """Whether ``wake`` would end a wait."""
        return self._waiting is not None and not self._waiting.done()

    def wake(self) -> None:
        """Ends a wait."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, until: float) -> None:
        """Waits for ``wake``, at most until the event loop's time ``until``."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_at(until, self.wake) if until < math.inf else None
        try:
            await self._waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()
