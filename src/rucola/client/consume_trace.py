"""Traces of consumption: records before and after each call of a listener.

Source: RocketMQ 5.3.3, ``ConsumeMessageTraceHookImpl``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from rucola.client.listener import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, Listener
from rucola.client.trace import TraceDispatcher
from rucola.common import message_const
from rucola.common.message import MessageExt
from rucola.protocol.trace import TraceRecord, TraceType

_SUCCESS, _EXCEPTION, _FAILED = 0, 2, 4
_GOOD = (
    None,
    ConsumeConcurrentlyStatus.CONSUME_SUCCESS,
    ConsumeOrderlyStatus.SUCCESS,
    ConsumeOrderlyStatus.COMMIT,
)


def traced_listener(listener: Listener, trace: TraceDispatcher, group: str) -> Listener:
    """Returns ``listener`` with tracing of its calls. Call this function on the consumer's event loop."""
    loop = asyncio.get_running_loop()
    inner: Callable[..., Any] = listener.function

    def begin(first: Any) -> _ConsumeTrace:
        return _ConsumeTrace(trace, group, first if listener.batch else [first])

    async def on_loop(*arguments: Any) -> Any:
        work = begin(arguments[0])
        trace.append(work.before())
        try:
            answer = await inner(*arguments)
        except BaseException:
            trace.append(work.after(_EXCEPTION))
            raise
        trace.append(work.after(_SUCCESS if answer in _GOOD else _FAILED))
        return answer

    def in_thread(*arguments: Any) -> Any:
        work = begin(arguments[0])
        loop.call_soon_threadsafe(trace.append, work.before())
        try:
            answer = inner(*arguments)
        except BaseException:
            loop.call_soon_threadsafe(trace.append, work.after(_EXCEPTION))
            raise
        loop.call_soon_threadsafe(trace.append, work.after(_SUCCESS if answer in _GOOD else _FAILED))
        return answer

    return Listener(on_loop if listener.on_loop else in_thread, listener.batch)


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
