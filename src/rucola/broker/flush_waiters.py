"""Responses that wait for a sync of the log (SYNC_FLUSH; RocketMQ 5.3.3, ``GroupCommitService``).

A response is encoded when its message is appended, and kept here in append order until the flushed offset passes the
end of the record. One write per connection sends all responses that one sync covers. Every response is sent exactly
once: either unchanged, or as FLUSH_DISK_TIMEOUT after a timeout or a failed sync (reliability.md G-03 and G-05). Event
loop only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

from rucola.remoting.channel import Channel
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

Answers = bytes | bytearray
Entry = tuple[int, float, Channel, Answers]
"""End physical offset, deadline in monotonic seconds, channel, encoded responses."""


class FlushWaiters:
    """The queue of waiting responses.

    Args:
        monotonic: returns monotonic seconds.
        timeout_ms: ``syncFlushTimeout``.
        refuse: turns encoded responses into responses with FLUSH_DISK_TIMEOUT and the given remark.
        call_later: the loop's method, called with ``(seconds, callback)``.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        timeout_ms: int,
        refuse: Callable[[Answers, str], bytes],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._monotonic = monotonic
        self._timeout_s = timeout_ms / 1000
        self._refuse = refuse
        self._call_later = call_later
        self._timer_runs = False
        self._waiting: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end_physical_offset: int, channel: Channel, answers: Answers) -> None:
        """Keeps ``answers`` until everything below ``end_physical_offset`` is synced and all earlier responses have
        been sent.
        """
        self._waiting.append((end_physical_offset, self._monotonic() + self._timeout_s, channel, answers))
        channel.owe(len(answers))
        if not self._timer_runs:
            self._timer_runs = True
            self._call_later(self._timeout_s, self._expire)

    def release(self, flushed_offset: int) -> None:
        """Sends the responses whose messages end at or below ``flushed_offset``."""
        waiting = self._waiting
        parts: dict[Channel, list[Answers]] = {}
        while waiting and waiting[0][0] <= flushed_offset:
            _, _, channel, answers = waiting.popleft()
            channel.settle(len(answers))
            parts.setdefault(channel, []).append(answers)
        _send(parts)

    def fail_all(self, reason: str) -> None:
        """Answers FLUSH_DISK_TIMEOUT to every waiting request; called after a failed sync and when the broker stops."""
        failed = list(self._waiting)
        self._waiting.clear()
        self._answer_refused(failed, f"the message is stored, its flush failed: {reason}")

    def _expire(self) -> None:
        """Answers the requests that have waited too long, which are the oldest, and schedules the next check."""
        now = self._monotonic()
        expired = []
        while self._waiting and self._waiting[0][1] <= now:
            expired.append(self._waiting.popleft())
        self._answer_refused(expired, "the message is stored, its flush was not confirmed in time")
        self._timer_runs = bool(self._waiting)
        if self._waiting:
            self._call_later(max(self._waiting[0][1] - now, 0.001), self._expire)

    def _answer_refused(self, entries: Iterable[Entry], remark: str) -> None:
        parts: dict[Channel, list[Answers]] = {}
        for _, _, channel, answers in entries:
            channel.settle(len(answers))
            try:
                parts.setdefault(channel, []).append(self._refuse(answers, remark))
            except Exception as error:  # noqa: BLE001 - as in _send
                event(logger, logging.ERROR, "response cannot be decoded", error, peer=channel.remote_address)
        _send(parts)


def _send(parts: dict[Channel, list[Answers]]) -> None:
    for channel, answers in parts.items():
        try:
            channel.send(answers[0] if len(answers) == 1 else b"".join(answers))
        except Exception as error:  # noqa: BLE001 - a failed connection must not cost the others their responses
            event(logger, logging.ERROR, "response not sent", error, peer=channel.remote_address)
