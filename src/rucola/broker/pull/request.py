"""A pull: its fields, its states, its one response, and the hold where it waits for messages (RocketMQ 5.3.3,
``PullRequestHoldService``). Event loop only.

The table says what may happen to a pull in which state. A dash means that it cannot happen; the method then raises
``TransitionError``.

    happens    new     held    woken   final   done    because
    ---------  ------  ------  ------  ------  ------  ------------------------------------------------------------
    hold       held    -       held    -       -       it has found no message and may wait
    wake       -       woken   -       -       -       a message has arrived that matches its tag codes
    end        -       final   final   final   -       its deadline, a re-check, a deleted topic, a reset, a stop; or
                                                       too many pulls wait
    answer     done    -       done    done    -       it has found messages, must not wait, or is refused
    forget     done    done    done    done    -       its connection is closed

A woken pull waits again only if none of the messages that woke it match. There are two such cases: several messages
that arrive together wake all pulls, and any message wakes the pulls that filter by properties.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from rucola.broker.pull.admission import Admission, PullForbiddenError, RepeatedFields
from rucola.broker.waiting_requests import Timer, TransitionError, WaitingRequests, WaitState
from rucola.errors import BrokerError, RucolaError
from rucola.protocol.answers import encode_pull_header
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import FLAG_RESPONSE, RemotingCommand
from rucola.remoting.channel import Channel
from rucola.remoting.fairness.turn import TURN_S
from rucola.runtime.logs import event
from rucola.store.reader import JOIN_BELOW_BYTES
from rucola.store.results import GetMessageResult, GetMessageStatus

logger = logging.getLogger(__name__)

AT_ONCE_MAX = 64
"""A message resumes at most this many requests at once, which takes 2 ms."""
RECHECK_INTERVAL_S = 5.0
"""Seconds between two re-checks (``PullRequestHoldService#run`` with long polling on)."""


_NEW, _HELD, _WOKEN = WaitState.NEW, WaitState.HELD, WaitState.WOKEN
_FINAL, _DONE = WaitState.FINAL, WaitState.DONE
_FOUND = GetMessageStatus.FOUND


@dataclass(slots=True, eq=False)
class PullRequest:
    """One decoded pull. The request outlives the receive buffer that it came in. Only the methods change ``state``."""

    channel: Channel
    opaque: int
    serialize: int
    fields: RepeatedFields
    queue_offset: int
    """The next message that the pull wants."""
    max_messages: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_ms: int
    """How long the client lets the pull wait."""
    state: WaitState = _NEW
    admission: Admission = field(init=False)
    """What the pull may read; set when the pull is admitted."""
    deadline_s: float = 0.0
    """Monotonic time until which the pull may wait; set when it waits for the first time."""
    skipped: bool = False
    """Whether ``queue_offset`` was moved past messages that did not match; the response must report this."""
    proof: object = None
    """``Senders.proof`` of the request when it began to wait."""

    def hold(self, deadline_s: float, queue_offset: int) -> None:
        """Begins to wait for a message at ``queue_offset`` or later; this moves it past messages that do not match."""
        if self.state is not _NEW and self.state is not _WOKEN:
            raise TransitionError(self.state, "hold")
        self.state = _HELD
        self.deadline_s = deadline_s
        self.skipped = self.skipped or queue_offset > self.queue_offset
        self.queue_offset = queue_offset

    def wake(self) -> None:
        """Ends the wait, because messages have arrived; the pull may wait again if it wants none of them."""
        if self.state is not _HELD:
            raise TransitionError(self.state, "wake")
        self.state = _WOKEN

    def end(self) -> None:
        """Ends the wait; the pull must be answered now."""
        if self.state is _NEW or self.state is _DONE:
            raise TransitionError(self.state, "end")
        self.state = _FINAL

    def forget(self) -> None:
        """Ends the pull without a response, because its connection is closed."""
        if self.state is _DONE:
            raise TransitionError(self.state, "forget")
        self.state = _DONE

    def answer(self, code: int, result: GetMessageResult, broker_id: int = 0) -> None:
        """Sends the response with the messages of ``result``, and the number of the broker to pull from next."""
        if self.state is _HELD or self.state is _DONE:
            raise TransitionError(self.state, "answer")
        remark = "FOUND" if result.status is _FOUND else result.status.value
        header = encode_pull_header(self.opaque, self.serialize, code, remark, result, broker_id)
        if not result.views:
            self.channel.send(header)
        elif result.message_bytes < JOIN_BELOW_BYTES * len(result.views):
            self.channel.send(b"".join((header, *result.views)))
        else:
            self.channel.send_parts((header, *result.views))
        self.state = _DONE

    def refuse(self, refusal: BrokerError) -> None:
        """Sends the code and the remark of ``refusal`` as the response."""
        if self.state is _HELD or self.state is _DONE:
            raise TransitionError(self.state, "refuse")
        fields = refusal.ext_fields if isinstance(refusal, PullForbiddenError) else {}
        answer = RemotingCommand(
            refusal.code, self.opaque, FLAG_RESPONSE, refusal.remark, fields, serialize=self.serialize
        )
        self.channel.send(answer.encode())
        self.state = _DONE

    def fail(self, error: Exception) -> None:
        """Refuses the pull because of ``error``; notes in the log whatever is no refusal."""
        if not isinstance(error, BrokerError):
            trace = None if isinstance(error, RucolaError) else error
            event(logger, logging.ERROR, "pull failed", trace, peer=self.channel.remote_address, error=error)
            error = BrokerError(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        self.refuse(error)


_Waiting = dict[frozenset[int] | None, dict[PullRequest, None]]
"""The pulls that wait for one queue, by their tag codes, in order of arrival."""


class PullRequestHold:
    """The waiting pulls. Holding, waking and ending a pull takes constant time, however many wait.

    If very many pulls wait for a message, the first ones run at once and the others in later iterations of the event
    loop.

    Args:
        max_offset: returns the maximum offset of a queue.
        resume: runs a pull again and answers or holds it; called once for each hold.
        monotonic: returns monotonic seconds.
        call_later: ``(seconds, callback) -> Timer``, the loop's method.
        account_of: see ``WaitingRequests``.

    Attributes:
        stopped: whether the broker is stopping; if so, no pull may wait.
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
        self._due: OrderedDict[PullRequest, None] = OrderedDict()
        """Woken and final pulls that do not run yet, because one message woke many pulls. They count as waiting."""
        self._turn_is_called = False
        self._queues: dict[tuple[bytes, int], _Waiting] = {}
        self._requests = WaitingRequests[PullRequest](monotonic, call_later, self._expired, account_of)
        self.stopped = False

    def __len__(self) -> int:
        return self._requests.count

    def hold(self, request: PullRequest, deadline_s: float, queue_offset: int) -> bool:
        """Makes ``request`` wait until ``deadline_s`` for a message at ``queue_offset`` or later. Returns False if it
        must be refused, because too many pulls of its connection or account wait.
        """
        request.hold(deadline_s, queue_offset)
        if not self._requests.add(request):
            request.end()
            return False
        admission = request.admission
        waiting = self._queues.get(admission.queue)
        if waiting is None:
            self._queues[admission.queue] = {admission.tag_codes: {request: None}}
        else:
            waiting.setdefault(admission.tag_codes, {})[request] = None
        return True

    def arrived(self, topic: bytes, queue_id: int, max_offset: int, tags_code: int | None) -> None:
        """Wakes the pulls for a queue that now ends at ``max_offset``; ``tags_code`` is None if messages with different
        tag codes came at once.
        """
        waiting = self._queues.get((topic, queue_id))
        if waiting is None:
            return
        woken = [
            request
            for wanted, requests in waiting.items()
            if tags_code is None or wanted is None or tags_code in wanted
            for request in requests
            if request.state is _HELD and request.queue_offset < max_offset
        ]
        for request in woken:
            request.wake()
        self._run_in_turns(woken)

    def recheck(self) -> None:
        """Ends the wait of all pulls whose queue has grown since they came, regardless of tags. Consumers thereby
        advance past messages that their filters skip.
        """
        for topic, queue_id in list(self._queues):
            max_offset = self._max_offset(topic, queue_id)
            self._end(
                [
                    request
                    for request in self._waiting_for(topic, queue_id)
                    if request.state is _HELD and (request.queue_offset < max_offset or request.skipped)
                ]
            )

    def end(self, topic: bytes, queue_id: int, group: str | None = None) -> None:
        """Ends the wait of all pulls for a queue, or of those of one group, whatever the queue holds."""
        waiting = self._waiting_for(topic, queue_id)
        self._end([request for request in waiting if group is None or request.admission.consumer[0] == group])

    def end_all(self) -> None:
        """Ends the wait of every pull, because a slave ceases to act: the master has what comes next."""
        self._end(self._requests.all())

    def channel_closed(self, channel: Channel) -> None:
        """Forgets the pulls of a closed connection."""
        for request in self._requests.of(channel):
            self._remove(request)
            request.forget()

    def release_all(self) -> None:
        """Ends the wait of every pull now, because the broker stops."""
        self.stopped = True
        requests = self._requests.all()
        for request in requests:
            request.end()
        self._run(requests)

    def _waiting_for(self, topic: bytes, queue_id: int) -> list[PullRequest]:
        waiting = self._queues.get((topic, queue_id), {})
        return [request for requests in waiting.values() for request in requests]

    def _end(self, requests: list[PullRequest]) -> None:
        for request in requests:
            request.end()
        self._run_in_turns(requests)

    def _expired(self, request: PullRequest) -> None:
        request.end()
        self._run([request])

    def _run_in_turns(self, requests: list[PullRequest]) -> None:
        """Runs pulls whose wait has ended: the first ones now, the others in later iterations of the event loop."""
        if len(requests) > AT_ONCE_MAX:
            self._due.update(dict.fromkeys(requests[AT_ONCE_MAX:]))
            del requests[AT_ONCE_MAX:]
            self._call_turn()
        self._run(requests)

    def _call_turn(self) -> None:
        if self._due and not self._turn_is_called:
            self._turn_is_called = True
            self._call_later(0, self._turn)

    def _turn(self) -> None:
        self._turn_is_called = False
        ends_s = self._monotonic() + TURN_S
        while self._due and self._monotonic() < ends_s:
            self._run([next(iter(self._due))])
        self._call_turn()

    def _run(self, requests: list[PullRequest]) -> None:
        """Runs pulls again. All are removed first, so that nothing that happens to one of them meets the others."""
        for request in requests:
            self._remove(request)
        for request in requests:
            try:
                self._resume(request)
            except Exception as error:  # noqa: BLE001 - a defect in one pull must not keep the others waiting
                event(logger, logging.ERROR, "pull not resumed", error, peer=request.channel.remote_address)

    def _remove(self, request: PullRequest) -> None:
        """Removes a pull from the waiting ones."""
        self._requests.remove(request)
        self._due.pop(request, None)
        admission = request.admission
        waiting = self._queues[admission.queue]
        requests = waiting[admission.tag_codes]
        del requests[request]
        if not requests:
            del waiting[admission.tag_codes]
            if not waiting:
                del self._queues[admission.queue]
