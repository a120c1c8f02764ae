"""Pull requests that found nothing and wait for a message (RocketMQ 5.3.3, ``PullRequestHoldService``).

A request waits under its (topic, queue). It is resumed by the first of: a message that its tag codes let through, the
five-second re-check that covers a lost wake-up, or its own deadline. Resuming means running the pull again. Only one
that was woken by messages may wait once more, when none of them was for it: several that come at once wake everybody,
and each wakes those who filter by properties. Everything happens on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from rucola.broker.longpolling.connection_share import ConnectionShare
from rucola.filter import sql

RECHECK_INTERVAL_S = 5.0
"""Seconds between two re-checks (``PullRequestHoldService#run`` with long polling on)."""


class Timer(Protocol):
    """What ``loop.call_later`` returns."""

    def cancel(self) -> None:
        """Forget the call."""


@dataclass(slots=True, eq=False)
class Admission:
    """What a consumer may read of a queue (``processor.pull_admission``)."""

    asked: tuple[Any, ...]
    """What its requests say about it; it can be found again by that."""
    consumer: tuple[str, str, int]
    """Group, topic, queue id."""
    queue: tuple[bytes, int]
    """Topic, queue id."""
    tag_codes: Collection[int] | None = None
    """Codes that may pass; None lets everything pass."""
    expression: sql.SqlExpression | None = None
    """Of an SQL92 subscription; ``tag_codes`` is None then."""
    state: int = -1
    """Of topics, groups and subscriptions when it was found; -1: nobody knows for how long it stands."""


@dataclass(slots=True, eq=False)
class PullRequest:
    """One pull, decoded; it outlives the receive buffer it came in."""

    channel: Any
    opaque: int
    serialize: int
    admission: Admission
    queue_offset: int
    max_messages: int
    timeout_ms: int = 0
    """How long it may wait; 0: it is answered whatever there is."""
    timer: Timer | None = None
    until_s: float | None = None
    """Monotonic time at which it has waited long enough; None before it waits."""
    moved: bool = False
    """Whether ``queue_offset`` is behind messages that were not for it; its consumer has to hear of that."""


class PullRequestHold:
    """The waiting requests.

    Args:
        max_offset: ``(topic, queue id) -> next free queue offset``.
        resume: runs a request again; called at most once each time that it was held.
        call_later: ``(seconds, callback, *args) -> Timer``, the loop's.
    """

    def __init__(
        self,
        max_offset: Callable[[bytes, int], int],
        resume: Callable[[PullRequest], None],
        call_later: Callable[..., Timer],
    ) -> None:
        self._max_offset = max_offset
        self._resume = resume
        self._call_later = call_later
        self._waiting: dict[tuple[bytes, int], list[PullRequest]] = {}
        self._count = 0
        self._share = ConnectionShare()

    def __len__(self) -> int:
        return self._count

    def hold(self, request: PullRequest) -> bool:
        """Let ``request`` wait for at most its ``timeout_ms``; False when too many of its connection do."""
        if not self._share.enter(request.channel):
            return False
        self._count += 1
        request.timer = self._call_later(request.timeout_ms / 1000, self._expired, request)
        self._waiting.setdefault(request.admission.queue, []).append(request)
        return True

    def arrived(self, topic: bytes, queue_id: int, max_offset: int, tags_code: int | None, final: bool = False) -> None:
        """The queue now ends at ``max_offset``; ``tags_code`` is None when several messages came at once.

        Args:
            final: whoever is resumed does not wait again.
        """
        key = (topic, queue_id)
        waiting = self._waiting.get(key)
        if waiting is None:
            return
        staying: list[PullRequest] = []
        leaving: list[PullRequest] = []
        for request in waiting:
            wanted = request.admission.tag_codes
            let_through = tags_code is None or wanted is None or tags_code in wanted
            has_more = request.queue_offset < max_offset or (final and request.moved)
            (leaving if let_through and has_more else staying).append(request)
        if not leaving:
            return
        if staying:
            self._waiting[key] = staying
        else:
            del self._waiting[key]
        for request in leaving:
            self._leave(request, final)

    def wake(self, topic: bytes, queue_id: int, group: str) -> None:
        """Resume what ``group`` waits for in a queue, whatever the queue holds."""
        waiting = self._waiting.get((topic, queue_id), [])
        for request in [request for request in waiting if request.admission.consumer[0] == group]:
            self._expired(request)

    def recheck(self) -> None:
        """Resume whatever the queue has grown beyond, tags aside: messages filtered out must move the consumer on."""
        for topic, queue_id in list(self._waiting):
            self.arrived(topic, queue_id, self._max_offset(topic, queue_id), None, final=True)

    def channel_closed(self, channel: Any) -> None:
        """Forget the requests of a connection that is gone."""
        for key, waiting in list(self._waiting.items()):
            staying = [request for request in waiting if request.channel is not channel]
            if len(staying) == len(waiting):
                continue
            self._count -= len(waiting) - len(staying)
            for request in waiting:
                if request.channel is channel:
                    self._share.leave(channel)
                    if request.timer is not None:
                        request.timer.cancel()
            if staying:
                self._waiting[key] = staying
            else:
                del self._waiting[key]

    def release_all(self) -> None:
        """Resume every request: the broker stops."""
        waiting, self._waiting = self._waiting, {}
        for requests in waiting.values():
            for request in requests:
                self._leave(request, final=True)

    def _expired(self, request: PullRequest) -> None:
        key = request.admission.queue
        waiting = self._waiting.get(key)
        if waiting is None or request not in waiting:
            return
        waiting.remove(request)
        if not waiting:
            del self._waiting[key]
        self._leave(request, final=True)

    def _leave(self, request: PullRequest, final: bool) -> None:
        if final:
            request.timeout_ms = 0
        self._count -= 1
        self._share.leave(request.channel)
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None
        self._resume(request)
