"""Pops, and questions whether there is something to pop, that found nothing and wait (RocketMQ 5.3.3,
``PopLongPollingService``). Event loop only.

They wait under topic, group and queue, -1 for all queues. A message that comes into a queue resumes one pop of each
group, the one whose time is over first, since others would find nothing; and one question.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from rucola.broker.longpolling.connection_share import ConnectionShare
from rucola.broker.longpolling.pull_request_hold import Timer
from rucola.broker.pop.receipt import pop_retry_topic
from rucola.common.key_builder import is_retry_topic

ALL_QUEUES = -1
ANSWER_AHEAD_MS = 50
"""What waits is answered a little before its client gives up."""
_Place = tuple[str, int, bool]
"""Group, queue id, whether questions wait there."""


@dataclass(slots=True, eq=False)
class HeldPop:
    """A pop or a question that waits.

    Attributes:
        resume: runs it again.
        tag_codes: a message with another one does not concern it; None: every message does.
        question: whether it only asks.
    """

    channel: Any
    topic: str
    group: str
    queue_id: int
    deadline_ms: int
    resume: Callable[[], None]
    tag_codes: Collection[int] | None = None
    question: bool = False
    timer: Timer | None = None

    @property
    def place(self) -> _Place:
        """Where it waits within its topic."""
        return self.group, self.queue_id, self.question


class PopHold:
    """See the module.

    Args:
        call_later: ``(seconds, callback, *args)``, the loop's.
        waiting_max: so many of them at most, and ``queue_max`` of one group for one queue.

    Attributes:
        stopped: nothing may wait any more.
    """

    def __init__(self, call_later: Callable[..., Timer], waiting_max: int, queue_max: int) -> None:
        self._call_later = call_later
        self._waiting_max = waiting_max
        self._queue_max = queue_max
        self._topics: dict[str, dict[_Place, list[HeldPop]]] = {}
        self._count = 0
        self._share = ConnectionShare()
        self.stopped = False

    def __len__(self) -> int:
        return self._count

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """How many pops wait there."""
        return len(self._topics.get(topic, {}).get((group, queue_id, False), ()))

    def hold(self, pop: HeldPop, now_ms: int) -> bool:
        """Let it wait until its deadline; False when too many do, or the broker stops."""
        neighbours = self._topics.get(pop.topic, {}).get(pop.place, ())
        if self.stopped or self._count >= self._waiting_max or len(neighbours) > self._queue_max:
            return False
        if not self._share.enter(pop.channel):
            return False
        self._count += 1
        self._topics.setdefault(pop.topic, {}).setdefault(pop.place, []).append(pop)
        pop.timer = self._call_later(max(pop.deadline_ms - now_ms, 0) / 1000, self._leave, pop)
        return True

    def arrived(self, topic: bytes, queue_id: int, tags_code: int | None) -> None:
        """A message came; ``tags_code`` is None when several did."""
        name = topic.decode("utf-8", "replace")
        places = self._topics.get(name, {})
        for place in list(places):
            if place[1] in (ALL_QUEUES, queue_id):
                self._resume_one(places, place, tags_code)
        if is_retry_topic(name):
            self._retry_arrived(name)

    def wake(self, topic: str, group: str, queue_id: int = ALL_QUEUES) -> None:
        """Something of the group's can be had from a queue; -1: from whichever."""
        places = self._topics.get(topic, {})
        for waiting_for in {ALL_QUEUES, queue_id}:
            self._resume_one(places, (group, waiting_for, False), None)
            self._resume_one(places, (group, waiting_for, True), None)

    def channel_closed(self, channel: Any) -> None:
        """Forget those of a connection that is gone."""
        for pop in self._all():
            if pop.channel is channel:
                self._remove(pop)

    def release_all(self) -> None:
        """Resume all: the broker stops."""
        self.stopped = True
        for pop in self._all():
            self._remove(pop)
            _resume(pop)

    def _retry_arrived(self, retry_topic: str) -> None:
        """A message came into a retry topic, which pops of every queue of the topic and the group look into."""
        for topic, places in list(self._topics.items()):
            for place in list(places):
                if retry_topic in (pop_retry_topic(topic, place[0], False), pop_retry_topic(topic, place[0], True)):
                    self._resume_one(places, place, None)

    def _resume_one(self, places: dict[_Place, list[HeldPop]], place: _Place, tags_code: int | None) -> None:
        waiting = places.get(place, ())
        passing = [pop for pop in waiting if tags_code is None or pop.tag_codes is None or tags_code in pop.tag_codes]
        if passing:
            self._leave(min(passing, key=lambda pop: pop.deadline_ms))

    def _all(self) -> list[HeldPop]:
        return [pop for places in self._topics.values() for waiting in places.values() for pop in waiting]

    def _leave(self, pop: HeldPop) -> None:
        if self._remove(pop):
            self._call_later(0, _resume, pop)  # it appends to the log, which is just being read

    def _remove(self, pop: HeldPop) -> bool:
        places = self._topics.get(pop.topic, {})
        waiting = places.get(pop.place, [])
        if pop not in waiting:
            return False
        waiting.remove(pop)
        self._count -= 1
        self._share.leave(pop.channel)
        if not waiting:
            del places[pop.place]
            if not places:
                del self._topics[pop.topic]
        if pop.timer is not None:
            pop.timer.cancel()
        return True


def _resume(pop: HeldPop) -> None:
    if not pop.channel.closed:
        pop.resume()
