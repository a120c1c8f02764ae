"""Pull requests that found no message wait here for messages (RocketMQ 5.3.3, ``PullRequestHoldService``).

A request waits under its (topic, queue). The first of these events resumes it: a message that matches its tag codes,
the re-check every five seconds that makes up for a lost wake-up, or its own deadline. Resuming runs the pull again. A
request may wait again only if messages woke it and none of them matched. There are two such cases: several messages
that arrive together wake all requests, and any message wakes the requests that filter by properties. Everything happens
on the event loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rucola.broker.longpolling.connection_share import ConnectionShare
from rucola.broker.longpolling.deadlines import Deadlines, Timer
from rucola.filter import sql
from rucola.remoting.channel import Channel
from rucola.remoting.fairness.turn import TURN_S
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

AT_ONCE_MAX = 64
"""A message resumes at most this many requests at once, which takes 2 ms."""
RECHECK_INTERVAL_S = 5.0
"""Seconds between two re-checks (``PullRequestHoldService#run`` with long polling on)."""


@dataclass(slots=True, eq=False)
class Admission:
    """The part of a queue that a consumer may read (``processor.pull_admission``)."""

    asked: tuple[Any, ...]
    """Key of this admission in ``PullAdmissions``: the fields of an ``Asked``. The consumer's next pull from the queue
    has the same key.
    """
    consumer: tuple[str, str, int]
    """Group, topic, queue id."""
    queue: tuple[bytes, int]
    """Topic, queue id."""
    tag_codes: frozenset[int] | None = None
    """Tag codes that match; None matches everything."""
    expression: sql.SqlExpression | None = None
    """The SQL92 expression; if it is set, ``tag_codes`` is None."""
    state: int = -1
    """Version of topics, groups and subscriptions at the time of the check; -1 if it is unknown whether the check is
    still valid.
    """


@dataclass(slots=True, eq=False)
class PullRequest:
    """One decoded pull. The request outlives the receive buffer that it came in."""

    channel: Channel
    opaque: int
    serialize: int
    admission: Admission
    queue_offset: int
    max_messages: int
    timeout_ms: int = 0
    """Milliseconds for which the request may wait; with 0 it is answered at once."""
    moment: int = 0
    """Key of the request's timeout in ``Deadlines``; needed to remove the request."""
    until_s: float | None = None
    """Monotonic time at which the request expires; None before the request waits."""
    moved: bool = False
    """Whether ``queue_offset`` was moved past messages that did not match; the response must report this."""
    woken: bool = False
    """Whether the request was woken and will be resumed in a later iteration of the event loop."""
    proof: object = None
    """``Senders.proof`` of the request when it began to wait."""


_Waiting = dict[frozenset[int] | None, dict[PullRequest, None]]
"""The requests that wait for one queue, by their tag codes, in order of arrival."""


class PullRequestHold:
    """The waiting requests. Holding, waking and ending a request takes constant time, however many requests wait.

    If very many requests wait for a message, the first ones are woken at once and the others in later iterations of the
    event loop.

    Args:
        max_offset: returns the maximum offset of a queue.
        resume: runs a request again and answers or holds it; called once for each hold.
        monotonic: returns monotonic seconds.
        call_later: ``(seconds, callback) -> Timer``, the loop's method.
        account_of: see ``ConnectionShare``.
    """

    def __init__(
        self,
        max_offset: Callable[[bytes, int], int],
        resume: Callable[[PullRequest], None],
        monotonic: Callable[[], float],
        call_later: Callable[..., Timer],
        account_of: Callable[[Channel], str] = lambda _: "",
    ) -> None:
        self._max_offset = max_offset
        self._resume = resume
        self._monotonic = monotonic
        self._call_later = call_later
        self._woken: deque[tuple[PullRequest, bool]] = deque()
        """Woken requests that are not resumed yet, because one message woke many requests. The flag of each is True if
        the request must not wait again.
        """
        self._woken_are_due = False
        self._waiting: dict[tuple[bytes, int], _Waiting] = {}
        self._count = 0
        self._share = ConnectionShare[PullRequest](account_of)
        self._deadlines = Deadlines[PullRequest](monotonic, call_later, self._end)

    def __len__(self) -> int:
        return self._count

    def hold(self, request: PullRequest) -> bool:
        """Holds ``request`` for at most its ``timeout_ms``; returns False if too many requests of its
        connection wait.
        """
        if not self._share.enter(request.channel, request):
            return False
        self._count += 1
        request.moment = self._deadlines.add(request, request.timeout_ms / 1000)
        admission = request.admission
        waiting = self._waiting.get(admission.queue)
        if waiting is None:
            self._waiting[admission.queue] = {admission.tag_codes: {request: None}}
        else:
            waiting.setdefault(admission.tag_codes, {})[request] = None
        return True

    def arrived(self, topic: bytes, queue_id: int, max_offset: int, tags_code: int | None, final: bool = False) -> None:
        """Wakes the requests for a queue that now ends at ``max_offset``; ``tags_code`` is None if messages with
        different tag codes came at once.

        Args:
            final: resumed requests must not wait again.
        """
        waiting = self._waiting.get((topic, queue_id))
        if waiting is None:
            return
        leaving = [
            request
            for wanted, requests in waiting.items()
            if tags_code is None or wanted is None or tags_code in wanted
            for request in requests
            if not request.woken and (request.queue_offset < max_offset or (final and request.moved))
        ]
        self._leave(leaving, final)

    def end(self, topic: bytes, queue_id: int) -> None:
        """Resumes all requests for a queue whose topic was deleted; they must not wait again."""
        waiting = self._waiting.get((topic, queue_id), {})
        self._leave([request for requests in waiting.values() for request in requests if not request.woken], final=True)

    def _leave(self, leaving: list[PullRequest], final: bool) -> None:
        """Resumes requests: the first ones now, the others in later iterations of the event loop."""
        if len(leaving) > AT_ONCE_MAX:
            for request in leaving[AT_ONCE_MAX:]:
                request.woken = True
                self._woken.append((request, final))
            del leaving[AT_ONCE_MAX:]
            self._run_woken_soon()
        for request in leaving:
            self._remove(request)
        for request in leaving:
            self._run(request, final)

    def wake(self, topic: bytes, queue_id: int, group: str) -> None:
        """Resumes the requests of ``group`` for a queue, whatever the queue holds."""
        waiting = self._waiting.get((topic, queue_id), {})
        for request in [request for requests in waiting.values() for request in requests]:
            if request.admission.consumer[0] == group:
                self._end(request)

    def recheck(self) -> None:
        """Resumes all requests whose queue has grown, regardless of tags. Consumers thereby advance past messages that
        their filters skip.
        """
        for topic, queue_id in list(self._waiting):
            self.arrived(topic, queue_id, self._max_offset(topic, queue_id), None, final=True)

    def channel_closed(self, channel: Channel) -> None:
        """Forgets the requests of a closed connection."""
        for request in self._share.of(channel):
            self._remove(request)

    def release_all(self) -> None:
        """Resumes every request, because the broker stops."""
        for waiting in list(self._waiting.values()):
            for request in [request for requests in waiting.values() for request in requests]:
                self._end(request)

    def _run_woken_soon(self) -> None:
        if self._woken and not self._woken_are_due:
            self._woken_are_due = True
            self._call_later(0, self._run_woken)

    def _run_woken(self) -> None:
        self._woken_are_due = False
        ends_s = self._monotonic() + TURN_S
        while self._woken and self._monotonic() < ends_s:
            request, final = self._woken.popleft()
            if request.woken:  # the request has not ended in the meantime
                self._remove(request)
                self._run(request, final)
        self._run_woken_soon()

    def _end(self, request: PullRequest) -> None:
        self._remove(request)
        self._run(request, final=True)

    def _run(self, request: PullRequest, final: bool) -> None:
        if final:
            request.timeout_ms = 0
        try:
            self._resume(request)
        except Exception as error:  # noqa: BLE001 - a defect in one request must not keep the others waiting
            event(logger, logging.ERROR, "pull not resumed", error, peer=request.channel.remote_address)

    def _remove(self, request: PullRequest) -> None:
        """Removes a request from the waiting requests; changes nothing else."""
        self._count -= 1
        request.woken = False
        self._share.leave(request.channel, request)
        self._deadlines.remove(request, request.moment)
        admission = request.admission
        waiting = self._waiting[admission.queue]
        requests = waiting[admission.tag_codes]
        del requests[request]
        if not requests:
            del waiting[admission.tag_codes]
            if not waiting:
                del self._waiting[admission.queue]
