"""Responses that wait for a sync of the log (SYNC_FLUSH; RocketMQ 5.3.3, ``GroupCommitService``), or for slaves
(SYNC_MASTER; ``GroupTransferService``).

A response is encoded when its message is appended, and kept here in append order until the disk, or enough slaves, have
the end of the record. One write per connection sends all responses that one sync covers. Every response is sent exactly
once: either unchanged, or with another code after a timeout or a failure (reliability.md G-03 and G-05). Event loop
only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from typing import Protocol

from rucola.remoting.channel import Channel
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

Answers = bytes | bytearray
Entry = tuple[int, float, Channel, Answers, bool]
"""End physical offset, deadline in monotonic seconds, channel, encoded responses, and whether they are sent unchanged
although slaves are missing.
"""


class Confirmation(Protocol):
    """What a response must wait for before it says that its message is stored."""

    def passed(self, end_physical_offset: int) -> bool:
        """Whether everything below ``end_physical_offset`` is as safe as it must be."""
        ...

    def add(self, end_physical_offset: int, channel: Channel, answers: Answers, lenient: bool = False) -> None:
        """Sends ``answers`` when it is.

        Args:
            end_physical_offset: end of what was written.
            channel: whose request it was.
            answers: encoded responses.
            lenient: whether they are sent unchanged although slaves are missing.
        """
        ...


class FlushWaiters:
    """The queue of waiting responses.

    Args:
        monotonic: returns monotonic seconds.
        timeout_ms: ``syncFlushTimeout`` or ``slaveTimeout``.
        refuse: turns encoded responses into responses with the code of a failure and the given remark.
        call_later: the loop's method, called with ``(seconds, callback)``.
        reached: returns the physical offset up to which the log is safe.
        what: what was not confirmed, for remarks: ``"flush"`` or ``"copy"``.
        then: what the responses must wait for afterwards; None if for nothing.
        is_lenient: whether responses that were added as ``lenient`` are never refused.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        timeout_ms: int,
        refuse: Callable[[Answers, str], bytes],
        call_later: Callable[[float, Callable[[], None]], object],
        reached: Callable[[], int],
        what: str = "flush",
        then: Confirmation | None = None,
        is_lenient: bool = False,
    ) -> None:
        self._monotonic = monotonic
        self._timeout_s = timeout_ms / 1000
        self._refuse = refuse
        self._call_later = call_later
        self._reached, self._what, self._then, self._is_lenient = reached, what, then, is_lenient
        self._timer_runs = False
        self._waiting: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest_end(self) -> float:
        """Physical offset at which the message ends that has waited longest; infinite if none waits."""
        return self._waiting[0][0] if self._waiting else inf

    def passed(self, end_physical_offset: int) -> bool:
        """Whether everything below ``end_physical_offset`` is as safe as it must be."""
        return end_physical_offset <= self._reached() and (self._then is None or self._then.passed(end_physical_offset))

    def add(self, end_physical_offset: int, channel: Channel, answers: Answers, lenient: bool = False) -> None:
        """Keeps ``answers`` until everything below ``end_physical_offset`` is synced and all earlier responses have
        been sent.
        """
        if self._then is not None and not self._waiting and end_physical_offset <= self._reached():
            self._then.add(end_physical_offset, channel, answers, lenient)
            return
        self._waiting.append((end_physical_offset, self._monotonic() + self._timeout_s, channel, answers, lenient))
        channel.owe(len(answers))
        if not self._timer_runs:
            self._timer_runs = True
            self._call_later(self._timeout_s, self._expire)

    def release(self, flushed_offset: int) -> None:
        """Sends the responses whose messages end at or below ``flushed_offset``."""
        waiting, then = self._waiting, self._then
        parts: dict[Channel, list[Answers]] = {}
        while waiting and waiting[0][0] <= flushed_offset:
            end, _, channel, answers, lenient = waiting.popleft()
            channel.settle(len(answers))
            if then is not None and not then.passed(end):
                then.add(end, channel, answers, lenient)
            else:
                parts.setdefault(channel, []).append(answers)
        _send(parts)

    def fail_all(self, reason: str) -> None:
        """Answers every waiting request with the code of a failure."""
        failed = list(self._waiting)
        self._waiting.clear()
        self._answer_refused(failed, f"the message is stored, its {self._what} failed: {reason}")

    def _expire(self) -> None:
        """Answers the requests that have waited too long, which are the oldest, and schedules the next check."""
        now = self._monotonic()
        expired = []
        while self._waiting and self._waiting[0][1] <= now:
            expired.append(self._waiting.popleft())
        self._answer_refused(expired, f"the message is stored, its {self._what} was not confirmed in time")
        self._timer_runs = bool(self._waiting)
        if self._waiting:
            self._call_later(max(self._waiting[0][1] - now, 0.001), self._expire)

    def _answer_refused(self, entries: Iterable[Entry], remark: str) -> None:
        parts: dict[Channel, list[Answers]] = {}
        for _, _, channel, answers, lenient in entries:
            channel.settle(len(answers))
            try:
                refused = answers if lenient and self._is_lenient else self._refuse(answers, remark)
                parts.setdefault(channel, []).append(refused)
            except Exception as error:  # noqa: BLE001 - as in _send
                event(logger, logging.ERROR, "response cannot be decoded", error, peer=channel.remote_address)
        _send(parts)


def _send(parts: dict[Channel, list[Answers]]) -> None:
    for channel, answers in parts.items():
        try:
            channel.send(answers[0] if len(answers) == 1 else b"".join(answers))
        except Exception as error:  # noqa: BLE001 - a failed connection must not cost the others their responses
            event(logger, logging.ERROR, "response not sent", error, peer=channel.remote_address)
