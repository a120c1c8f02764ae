"""Traces of consumption: records before and after each call of a listener. A defect in tracing fails no call.

Source: RocketMQ 5.3.3, ``ConsumeMessageTraceHookImpl``.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from rucola.client.listener import Listener, completed, is_pending
from rucola.client.trace import TraceDispatcher
from rucola.common import message_const
from rucola.common.message import MessageExt
from rucola.protocol.trace import TraceRecord, TraceType
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

_SUCCESS, _EXCEPTION, _FAILED = 0, 2, 4


def traced_listener(listener: Listener, trace: TraceDispatcher, group: str) -> Listener:
    """Returns ``listener`` with tracing of its calls. Call this function on the consumer's event loop."""
    calls = _TracedCalls(listener, trace, group)
    return Listener(calls.on_loop if listener.on_loop else calls.in_thread, listener.batch)


class _TracedCalls:
    """The calls of one listener, with tracing."""

    def __init__(self, listener: Listener, trace: TraceDispatcher, group: str) -> None:
        self._listener = listener
        self._function: Callable[..., Any] = listener.function
        self._trace = trace
        self._group = group
        self._loop = asyncio.get_running_loop()

    async def on_loop(self, first: Any, *context: Any) -> Any:
        """Calls a coroutine function."""
        work = self._begin(first)
        return await self._finish(work, self._outcome(work, first, context))

    def in_thread(self, first: Any, *context: Any) -> Any:
        """Calls a plain function."""
        work = self._begin(first)
        answer = self._outcome(work, first, context)
        if is_pending(answer):
            return self._finish(work, answer)
        self._end(work, answer)
        return answer

    def _outcome(self, work: _ConsumeTrace | None, first: Any, context: tuple[Any, ...]) -> Any:
        try:
            return self._function(first, *context)
        except BaseException:
            self._append(work, _EXCEPTION)
            raise

    async def _finish(self, work: _ConsumeTrace | None, pending: Any) -> Any:
        """Waits for the listener's work."""
        try:
            answer = await completed(pending)
        except BaseException:
            self._append(work, _EXCEPTION)
            raise
        self._end(work, answer)
        return answer

    def _begin(self, first: Any) -> _ConsumeTrace | None:
        try:
            work = _ConsumeTrace(self._trace, self._group, first if self._listener.batch else [first])
            self._hand_over(work.before())
        except Exception as error:  # noqa: BLE001 - a defect of ours; the call itself must not suffer
            event(logger, logging.WARNING, "call of a listener not traced", error, group=self._group)
            return None
        return work

    def _end(self, work: _ConsumeTrace | None, answer: object) -> None:
        self._append(work, _SUCCESS if self._listener.is_good(answer) else _FAILED)

    def _append(self, work: _ConsumeTrace | None, code: int) -> None:
        if work is None:
            return
        try:
            self._hand_over(work.after(code))
        except Exception as error:  # noqa: BLE001 - see ``_begin``
            event(logger, logging.WARNING, "call of a listener not traced", error, group=self._group)

    def _hand_over(self, records: list[TraceRecord]) -> None:
        if self._listener.on_loop:
            self._trace.append(records)
        else:  # raises RuntimeError after the loop was closed, while a thread still runs
            self._loop.call_soon_threadsafe(self._trace.append, records)


class _ConsumeTrace:
    """The trace of one listener call."""

    def __init__(self, trace: TraceDispatcher, group: str, messages: Sequence[MessageExt]) -> None:
        self._wall_ms = trace.wall_ms
        self._group = group
        self._messages = [one for one in messages if one.properties.get(message_const.TRACE_ON) != "false"]
        self._request_id = os.urandom(16).hex().upper()
        self._began_ms = self._wall_ms()

    def before(self) -> list[TraceRecord]:
        return [self._record(TraceType.SUB_BEFORE, message, _SUCCESS) for message in self._messages]

    def after(self, code: int) -> list[TraceRecord]:
        return [self._record(TraceType.SUB_AFTER, message, code) for message in self._messages]

    def _record(self, kind: TraceType, message: MessageExt, code: int) -> TraceRecord:
        now_ms = self._wall_ms()
        return TraceRecord(
            trace_type=kind,
            timestamp_ms=now_ms,
            region=message.properties.get(message_const.MSG_REGION, ""),
            group=self._group,
            topic=message.topic,
            request_id=self._request_id,
            msg_id=message.msg_id,
            retry_times=message.reconsume_times,
            keys=message.keys,
            cost_ms=max(now_ms - self._began_ms, 0) // max(len(self._messages), 1),
            success=code == _SUCCESS,
            context_code=code,
        )
