"""Holds pops that found no message, and requests that only ask whether there is one (RocketMQ 5.3.3,
``PopLongPollingService``). Event loop only.

The key of a waiting request is its topic, group and queue id; queue id -1 means all queues. A message resumes at most
two requests for each key: one pop, because further pops would find nothing, and one request that only asks whether
there are messages. In both cases, the request with the earliest deadline is resumed.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rucola.broker.longpolling.connection_share import ConnectionShare
from rucola.broker.longpolling.deadlines import Deadlines, Timer
from rucola.broker.pop.receipt import pop_retry_topic
from rucola.remoting.channel import Channel
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

ALL_QUEUES = -1
ANSWER_AHEAD_MS = 50
"""Milliseconds between the response to a waiting request and the moment when the request's client gives up."""
_REMOVED_MIN = 16
"""A heap is cleaned up only when more than this number of its requests no longer wait."""
_Queue = tuple[str, int]
"""Topic and queue id."""
_Place = tuple[str, bool]
"""Consumer group of the requests, and whether these requests only ask whether there are messages."""


@dataclass(slots=True, eq=False)
class HeldPop:
    """A waiting request, which pops messages or only asks whether there are any.

    Attributes:
        resume: runs the request again.
        tag_codes: the tag codes of the messages that the request wants; None: it wants all messages.
        question: whether the request only asks and does not pop.
        expression: type and text of the filter; None if the request has none.
        give_up: answers that there is no message, without a look; None if the request only asks.
        moment: key of the deadline in ``Deadlines``.
        waits: whether the request is waiting.
    """

    channel: Channel
    topic: str
    group: str
    queue_id: int
    deadline_ms: int
    resume: Callable[[], None]
    tag_codes: frozenset[int] | None = None
    question: bool = False
    expression: tuple[str, str] | None = None
    give_up: Callable[[], None] | None = None
    moment: int = 0
    waits: bool = False


class _Waiting:
    """The waiting requests with the same topic, queue id and ``_Place``: a heap by deadline for each set of tag codes.
    A request that no longer waits stays in its heap until it comes first or the heap is cleaned up.
    """

    __slots__ = ("count", "heaps")

    def __init__(self) -> None:
        self.count = 0
        self.heaps: dict[frozenset[int] | None, list[tuple[int, int, HeldPop]]] = {}

    def add(self, pop: HeldPop, number: int) -> None:
        """Adds a request. ``number`` rises with each call, so with equal deadlines the oldest request is first."""
        self.count += 1
        heap = self.heaps.setdefault(pop.tag_codes, [])
        heapq.heappush(heap, (pop.deadline_ms, number, pop))
        if len(heap) > 2 * self.count + _REMOVED_MIN:
            heap[:] = [entry for entry in heap if entry[2].waits]
            heapq.heapify(heap)

    def first(self, tags_code: int | None) -> HeldPop | None:
        """The request with the earliest deadline among those that want messages with ``tags_code``."""
        found: tuple[int, int, HeldPop] | None = None
        for wanted, heap in list(self.heaps.items()):
            while heap and not heap[0][2].waits:
                heapq.heappop(heap)
            if not heap:
                del self.heaps[wanted]
            elif (tags_code is None or wanted is None or tags_code in wanted) and (found is None or heap[0] < found):
                found = heap[0]
        return None if found is None else found[2]


class PopHold:
    """The waiting requests. Holding, waking and ending a request takes the same time, however many requests wait.

    Args:
        monotonic: returns monotonic seconds.
        call_later: the event loop's method, called with ``(seconds, callback, *args)``.
        waiting_max: maximum number of waiting requests.
        queue_max: a pop may not wait if more pops than this number already wait for the same topic, group and queue id.
            The same limit applies to requests that only ask whether there are messages.
        account_of: see ``ConnectionShare``.

    Attributes:
        stopped: whether the broker is stopping; if so, no request may wait.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        call_later: Callable[..., Timer],
        waiting_max: int,
        queue_max: int,
        account_of: Callable[[Channel], str] = lambda _: "",
    ) -> None:
        self._call_later = call_later
        self._waiting_max = waiting_max
        self._queue_max = queue_max
        self._queues: dict[_Queue, dict[_Place, _Waiting]] = {}
        self._retry_queues: dict[str, dict[_Queue, dict[_Place, None]]] = {}
        """Maps each retry topic to the topics and groups whose pops read it."""
        self._count = 0
        self._numbers = itertools.count()
        self._share = ConnectionShare[HeldPop](account_of)
        self._deadlines = Deadlines[HeldPop](monotonic, call_later, self._leave)
        self.stopped = False

    def __len__(self) -> int:
        return self._count

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Number of pops that wait for the queue."""
        waiting = self._queues.get((topic, queue_id), {}).get((group, False))
        return 0 if waiting is None else waiting.count

    def waits_for(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether a request of the group waits for messages of the queue, to pop them or only to report that there are
        any.
        """
        return any(
            place in self._queues.get((topic, waiting_for), ())
            for waiting_for in (ALL_QUEUES, queue_id)
            for place in ((group, False), (group, True))
        )

    def hold(self, pop: HeldPop, now_ms: int) -> bool:
        """Holds the request until its deadline; returns False if too many requests wait or the broker is stopping."""
        queue, place = (pop.topic, pop.queue_id), (pop.group, pop.question)
        waiting = self._queues.get(queue, {}).get(place)
        if self.stopped or self._count >= self._waiting_max:
            return False
        if waiting is not None and waiting.count > self._queue_max:
            return False
        if not self._share.enter(pop.channel, pop):
            return False
        if waiting is None:
            waiting = self._queues.setdefault(queue, {})[place] = _Waiting()
            for retry_topic in _retry_topics(pop):
                self._retry_queues.setdefault(retry_topic, {}).setdefault(queue, {})[place] = None
        self._count += 1
        pop.waits = True
        waiting.add(pop, next(self._numbers))
        pop.moment = self._deadlines.add(pop, max(pop.deadline_ms - now_ms, 0) / 1000)
        return True

    def arrived(self, topic: bytes, queue_id: int, tags_code: int | None) -> None:
        """Handles the arrival of messages in a queue. ``tags_code`` is their tag code, or None if their tag codes
        differ.
        """
        name = topic.decode("utf-8", "replace")
        for queue in ((name, ALL_QUEUES), (name, queue_id)):
            for place in list(self._queues.get(queue, ())):
                self._resume_one(queue, place, tags_code)
        for queue, places in list(self._retry_queues.get(name, {}).items()):
            for place in list(places):
                self._resume_one(queue, place, None)

    def wake(self, topic: str, group: str, queue_id: int = ALL_QUEUES) -> None:
        """Resumes requests of a group that wait for this queue or for all queues, because the group can get messages
        again. For each key, at most one pop and one request that only asks are resumed.
        """
        for waiting_for in {ALL_QUEUES, queue_id}:
            self._resume_one((topic, waiting_for), (group, False), None)
            self._resume_one((topic, waiting_for), (group, True), None)

    def end(self, topic: str) -> None:
        """Resumes all requests for a deleted topic."""
        for pop in [pop for pop in self._all() if pop.topic == topic]:
            self._leave(pop)

    def subscribed(self, channel: Channel, group: str, expressions: Mapping[str, tuple[str, str]]) -> None:
        """Answers the waiting pops of a client that now subscribes to their topics with other expressions. They would
        take or skip the messages that the client wants now.

        Args:
            expressions: type and text of the filter of each subscribed topic.
        """
        for pop in self._share.of(channel):
            is_other = pop.group == group and expressions.get(pop.topic, pop.expression) != pop.expression
            if is_other and pop.give_up is not None:
                self._remove(pop)
                pop.give_up()

    def channel_closed(self, channel: Channel) -> None:
        """Forgets the requests of a closed connection."""
        for pop in self._share.of(channel):
            self._remove(pop)

    def release_all(self) -> None:
        """Resumes all requests, because the broker is stopping."""
        self.stopped = True
        for pop in list(self._all()):
            self._remove(pop)
            self._resume(pop)

    def _resume_one(self, queue: _Queue, place: _Place, tags_code: int | None) -> None:
        waiting = self._queues.get(queue, {}).get(place)
        pop = None if waiting is None else waiting.first(tags_code)
        if pop is not None:
            self._leave(pop)

    def _all(self) -> Iterator[HeldPop]:
        for places in self._queues.values():
            for waiting in places.values():
                for heap in waiting.heaps.values():
                    yield from (pop for _, _, pop in heap if pop.waits)

    def _leave(self, pop: HeldPop) -> None:
        """Resumes a request in a separate iteration of the event loop. A pop appends to the log, and the caller may be
        in the middle of dispatching the log.
        """
        self._remove(pop)
        self._call_later(0, self._resume, pop)

    def _resume(self, pop: HeldPop) -> None:
        if pop.channel.closed:  # the connection was closed in the meantime; the message goes to another request
            self._resume_one((pop.topic, pop.queue_id), (pop.group, pop.question), None)
            return
        try:
            pop.resume()
        except Exception as error:  # noqa: BLE001 - a defect in one request must not keep the others waiting
            event(logger, logging.ERROR, "pop not resumed", error, peer=pop.channel.remote_address)

    def _remove(self, pop: HeldPop) -> None:
        queue, place = (pop.topic, pop.queue_id), (pop.group, pop.question)
        places = self._queues[queue]
        waiting = places[place]
        pop.waits = False
        waiting.count -= 1
        self._count -= 1
        self._share.leave(pop.channel, pop)
        self._deadlines.remove(pop, pop.moment)
        if waiting.count:
            return
        del places[place]
        if not places:
            del self._queues[queue]
        for retry_topic in _retry_topics(pop):
            queues = self._retry_queues[retry_topic]
            del queues[queue][place]
            if not queues[queue]:
                del queues[queue]
                if not queues:
                    del self._retry_queues[retry_topic]


def _retry_topics(pop: HeldPop) -> set[str]:
    """The retry topics that a pop also reads."""
    return {pop_retry_topic(pop.topic, pop.group, v2) for v2 in (False, True)}
