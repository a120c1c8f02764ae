"""Holds pops that found no message, and requests that only ask whether there is one (RocketMQ 5.3.3,
``PopLongPollingService``). Event loop only.

The key of a waiting request is its topic, group and queue id; queue id -1 means all queues. A message wakes at most two
requests for each key: one pop, because further pops would find nothing, and one request that only asks whether there
are messages. In both cases, the request with the earliest deadline is woken.

The table says what may happen to a request in which state. A dash means that it cannot happen; the method then raises
``TransitionError``. A woken request runs in a later iteration of the event loop. If it must wait again, it does so as a
new request.

    happens    new     held    woken      away       withdrawn  done    because
    ---------  ------  ------  ---------  ---------  ---------  ------  ------------------------------------------------
    hold       held    -       -          -          -          -       no message was found
    leave      away    -       -          -          -          -       the disk, or the parser of its expression, works
    wake       -       woken   -          -          -          -       a message, a free queue, its deadline, a deleted
                                                                        topic, a stop
    withdraw   -       done    withdrawn  withdrawn  -          -       its client no longer wants the response, or has
                                                                        sent the request again
    finish     -       done    done       done       done       -       it runs again; or its connection is closed, its
                                                                        client subscribes to something else, or too many
                                                                        requests wait

Each wait of a pop, for a message, the disk or the parser, is such a request, and ends in ``PopHold.resume``. There, a
request that is withdrawn or whose connection is closed does not run. A message may have woken it, so the next request
of its key is woken instead.

A client that has lost a response sends its pop again, with the same ``Attempt``, often on another connection. The older
pop would still take messages, for nobody, so the newer one ends it. "Newer" is what arrived later: the clocks of two
doors may differ. Both must have the same account, and no two different client ids (``is_same_client``): otherwise two
clients that choose the same attempt ids would keep each other busy.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rucola.broker.waiting_requests import Timer, TransitionError, WaitingRequests, WaitState
from rucola.common.pop_topics import pop_retry_topic
from rucola.remoting.channel import Channel
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

ALL_QUEUES = -1
ANSWER_AHEAD_MS = 50
"""Milliseconds between the response to a waiting request and the moment when the request's client gives up."""
_REMOVED_MIN = 16
"""A heap is cleaned up only when more than this number of its requests no longer wait."""
_NEW, _HELD, _WOKEN, _DONE = WaitState.NEW, WaitState.HELD, WaitState.WOKEN, WaitState.DONE
_AWAY, _WITHDRAWN = WaitState.AWAY, WaitState.WITHDRAWN
_Queue = tuple[str, int]
"""Topic and queue id."""
_Place = tuple[str, bool]
"""Consumer group of the requests, and whether these requests only ask whether there are messages."""


class Attempt(NamedTuple):
    """What a pop has in common with its repetitions.

    Attributes:
        attempt_id: chosen by the client, not empty.
        account: the account that has sent it: nobody ends or hides pops of another one.
    """

    attempt_id: str
    topic: str
    group: str
    queue_id: int
    account: str


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A request that only asks whether there are messages, or a ``WaitingPop``. Only the methods change ``state``.

    Attributes:
        deadline_s: monotonic time at which the request must be answered.
        resume: runs the request again.
        tag_codes: the tag codes of the messages that the request wants; None: it wants all messages.
    """

    channel: Channel
    topic: str
    group: str
    queue_id: int
    deadline_s: float
    resume: Callable[[], None]
    tag_codes: frozenset[int] | None = None
    state: WaitState = _NEW

    def hold(self) -> None:
        """Begins to wait."""
        if self.state is not _NEW:
            raise TransitionError(self.state, "hold")
        self.state = _HELD

    def leave(self) -> None:
        """Begins to wait for the disk or the parser."""
        if self.state is not _NEW:
            raise TransitionError(self.state, "leave")
        self.state = _AWAY

    def wake(self) -> None:
        """Ends the wait; the request runs again soon."""
        if self.state is not _HELD:
            raise TransitionError(self.state, "wake")
        self.state = _WOKEN

    def withdraw(self) -> None:
        """Ends the request without a response."""
        if self.state not in (_HELD, _WOKEN, _AWAY):
            raise TransitionError(self.state, "withdraw")
        self.state = _DONE if self.state is _HELD else _WITHDRAWN

    def finish(self) -> None:
        """Ends the life of this object: the request runs again, is answered, or is forgotten."""
        if self.state is _NEW or self.state is _DONE:
            raise TransitionError(self.state, "finish")
        self.state = _DONE


@dataclass(slots=True, eq=False, kw_only=True)
class WaitingPop(HeldRequest):
    """A pop that waits for the disk or the parser, or a ``HeldPop``.

    Attributes:
        opaque: the number by which its client finds the response.
        give_up: answers that there is no message, without a look.
        attempt: by what its repetition is known; None if the client has not said it.
    """

    opaque: int
    give_up: Callable[[], None]
    attempt: Attempt | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class HeldPop(WaitingPop):
    """A pop that waits for messages.

    Attributes:
        expression: type and text of its filter.
    """

    expression: tuple[str, str]


class _Waiting:
    """The waiting requests with the same topic, queue id and ``_Place``: a heap by deadline for each set of tag codes.
    A request that no longer waits stays in its heap until it comes first or the heap is cleaned up.
    """

    __slots__ = ("count", "heaps")

    def __init__(self) -> None:
        self.count = 0
        self.heaps: dict[frozenset[int] | None, list[tuple[float, int, HeldRequest]]] = {}

    def add(self, request: HeldRequest, number: int) -> None:
        """Adds a request. ``number`` rises with each call, so with equal deadlines the oldest request is first."""
        self.count += 1
        heap = self.heaps.setdefault(request.tag_codes, [])
        heapq.heappush(heap, (request.deadline_s, number, request))
        if len(heap) > 2 * self.count + _REMOVED_MIN:
            heap[:] = [entry for entry in heap if entry[2].state is _HELD]
            heapq.heapify(heap)

    def first(self, tags_code: int | None) -> HeldRequest | None:
        """The request with the earliest deadline among those that want messages with ``tags_code``."""
        found: tuple[float, int, HeldRequest] | None = None
        for wanted, heap in list(self.heaps.items()):
            while heap and heap[0][2].state is not _HELD:
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
        account_of: see ``WaitingRequests``.
        is_same_client: whether the clients of two connections, for a group, may be the same one.

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
        is_same_client: Callable[[Channel, Channel, str], bool] = lambda *_: True,
    ) -> None:
        self._is_same_client = is_same_client
        self._call_later = call_later
        self._waiting_max = waiting_max
        self._queue_max = queue_max
        self._queues: dict[_Queue, dict[_Place, _Waiting]] = {}
        self._retry_queues: dict[str, dict[_Queue, dict[_Place, None]]] = {}
        """Maps each retry topic to the topics and groups whose pops read it."""
        self._numbers = itertools.count()
        self._pops: dict[Channel, dict[int, WaitingPop]] = {}
        """The pops that wait for anything or are woken, by connection and opaque. If several pops of a connection have
        the same opaque, only the last one is here.
        """
        self._attempts: dict[Attempt, WaitingPop] = {}
        """Those of these pops that have an attempt. If several have the same one, only the last is here."""
        self._requests = WaitingRequests[HeldRequest](monotonic, call_later, self._wake, account_of)
        self.stopped = False

    def __len__(self) -> int:
        return self._requests.count

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

    def hold(self, request: HeldRequest) -> bool:
        """Holds the request until its deadline; returns False if too many requests wait or the broker is stopping."""
        queue, place = _key(request)
        waiting = self._queues.get(queue, {}).get(place)
        is_full = self._requests.count >= self._waiting_max
        if self.stopped or is_full or (waiting is not None and waiting.count > self._queue_max):
            return False
        request.hold()
        if not self._requests.add(request):
            request.finish()
            return False
        if waiting is None:
            waiting = self._queues.setdefault(queue, {})[place] = _Waiting()
            for retry_topic in _retry_topics(request):
                self._retry_queues.setdefault(retry_topic, {}).setdefault(queue, {})[place] = None
        waiting.add(request, next(self._numbers))
        if isinstance(request, WaitingPop):
            self._note(request)
        return True

    def leave(self, pop: WaitingPop) -> None:
        """Notes that a pop waits for the disk or the parser; ``resume`` must follow."""
        pop.leave()
        self._note(pop)

    def withdraw(self, channel: Channel, opaque: int) -> bool:
        """Takes out a waiting pop, which then pops nothing and gets no response. Returns whether there is one, whether
        it waits for a message, the disk or the parser of its expression, or is woken and runs soon.
        """
        pop = self._pops.get(channel, {}).get(opaque)
        if pop is None:
            return False
        self._take_out(pop)
        return True

    def end_older(self, channel: Channel, attempt: Attempt) -> None:
        """Answers the waiting pop that the client of ``channel`` now repeats, if there is one. It pops nothing,
        whatever it waits for.
        """
        older = self._attempts.get(attempt)
        if older is not None and self._is_same_client(older.channel, channel, attempt.group):
            self._take_out(older)
            older.give_up()

    def arrived(self, topic: bytes, queue_id: int, tags_code: int | None) -> None:
        """Handles the arrival of messages in a queue. ``tags_code`` is their tag code, or None if their tag codes
        differ.
        """
        name = topic.decode("utf-8", "replace")
        for queue in ((name, ALL_QUEUES), (name, queue_id)):
            for place in list(self._queues.get(queue, ())):
                self._wake_one(queue, place, tags_code)
        for queue, places in list(self._retry_queues.get(name, {}).items()):
            for place in list(places):
                self._wake_one(queue, place, None)

    def wake(self, topic: str, group: str, queue_id: int = ALL_QUEUES) -> None:
        """Wakes requests of a group that wait for this queue or for all queues, because the group can get messages
        again. For each key, at most one pop and one request that only asks are woken.
        """
        for waiting_for in {ALL_QUEUES, queue_id}:
            self._wake_one((topic, waiting_for), (group, False), None)
            self._wake_one((topic, waiting_for), (group, True), None)

    def end(self, topic: str) -> None:
        """Wakes all requests for a deleted topic."""
        for request in [request for request in self._requests.all() if request.topic == topic]:
            self._wake(request)

    def subscribed(self, channel: Channel, group: str, expressions: Mapping[str, tuple[str, str]]) -> None:
        """Answers the waiting pops of a client that now subscribes to their topics with other expressions. They would
        take or skip the messages that the client wants now.

        Args:
            expressions: type and text of the filter of each subscribed topic.
        """
        for pop in self._requests.of(channel):
            if not isinstance(pop, HeldPop) or pop.group != group:
                continue
            if expressions.get(pop.topic, pop.expression) != pop.expression:
                self._remove(pop)
                self._finish(pop)
                pop.give_up()

    def channel_closed(self, channel: Channel) -> None:
        """Forgets the requests of a closed connection."""
        for request in self._requests.of(channel):
            self._remove(request)
            self._finish(request)

    def release_all(self) -> None:
        """Runs all requests now, because the broker is stopping."""
        self.stopped = True
        requests = self._requests.all()
        for request in requests:
            self._remove(request)
            request.wake()
        for request in requests:
            self.resume(request)

    def _wake_one(self, queue: _Queue, place: _Place, tags_code: int | None) -> None:
        waiting = self._queues.get(queue, {}).get(place)
        request = None if waiting is None else waiting.first(tags_code)
        if request is not None:
            self._wake(request)

    def _wake(self, request: HeldRequest) -> None:
        """Wakes a request, which runs in a later iteration of the event loop: a pop appends to the log, and the caller
        may be in the middle of dispatching the log.
        """
        self._remove(request)
        request.wake()
        self._call_later(0, self.resume, request)

    def resume(self, request: HeldRequest) -> None:
        """Runs a request whose wait has ended, unless its client no longer wants the response."""
        withdrawn = request.state is _WITHDRAWN
        self._finish(request)
        if withdrawn or request.channel.closed:
            self._wake_one(*_key(request), None)
            return
        try:
            request.resume()
        except Exception as error:  # noqa: BLE001 - a defect in one request must not keep the others waiting
            event(logger, logging.ERROR, "pop not resumed", error, peer=request.channel.remote_address)

    def _take_out(self, pop: WaitingPop) -> None:
        if pop.state is _HELD:
            self._remove(pop)
        self._forget(pop)
        pop.withdraw()

    def _note(self, pop: WaitingPop) -> None:
        self._pops.setdefault(pop.channel, {})[pop.opaque] = pop
        if pop.attempt is not None:
            self._attempts[pop.attempt] = pop

    def _forget(self, pop: WaitingPop) -> None:
        if pop.attempt is not None and self._attempts.get(pop.attempt) is pop:
            del self._attempts[pop.attempt]
        pops = self._pops.get(pop.channel, {})
        if pops.get(pop.opaque) is pop:
            del pops[pop.opaque]
            if not pops:
                del self._pops[pop.channel]

    def _finish(self, request: HeldRequest) -> None:
        request.finish()
        if isinstance(request, WaitingPop):
            self._forget(request)

    def _remove(self, request: HeldRequest) -> None:
        """Removes a request from the waiting ones; the caller changes its state."""
        queue, place = _key(request)
        places = self._queues[queue]
        waiting = places[place]
        waiting.count -= 1
        self._requests.remove(request)
        if waiting.count:
            return
        del places[place]
        if not places:
            del self._queues[queue]
        for retry_topic in _retry_topics(request):
            queues = self._retry_queues[retry_topic]
            del queues[queue][place]
            if not queues[queue]:
                del queues[queue]
                if not queues:
                    del self._retry_queues[retry_topic]


def _key(request: HeldRequest) -> tuple[_Queue, _Place]:
    """Under which keys a request waits."""
    return (request.topic, request.queue_id), (request.group, not isinstance(request, WaitingPop))


def _retry_topics(request: HeldRequest) -> set[str]:
    """The retry topics that a pop also reads."""
    return {pop_retry_topic(request.topic, request.group, v2) for v2 in (False, True)}
