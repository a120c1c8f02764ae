"""Traces: the history of each message, written as messages to the trace topic.

Records are collected and sent together when their number reaches ``batch_size``, or 5 s after the first record. No
send and no listener waits for this; failures are only logged. A dispatcher may be used on only one event loop.

A burst of records is not dropped as long as the broker responds, whatever its size. Records are dropped only if the
broker has not responded for some seconds and ``PENDING_MAX`` records wait, or if the unconfirmed messages take
``PENDING_BYTES_MAX``. So a failing broker cannot fill the client's memory. RocketMQ's client drops all records beyond
2,048.

Source: protocol.md 4.11; RocketMQ 5.3.3, AsyncTraceDispatcher, SendMessageTraceHookImpl, ConsumeMessageTraceHookImpl.
Unlike in RocketMQ, each message of a batch has a record of its own, so that it can be found by its id.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Protocol

from rucola.client.pending_send import PendingSend, SendTarget, TimedSend
from rucola.client.send_result import SendResult, SendStatus
from rucola.common import message_const
from rucola.common.message import Message, MessageExt, SystemMessage
from rucola.errors import RucolaError
from rucola.protocol.frame import FrameBatch, SendAnswer
from rucola.protocol.trace import MessageType, TraceRecord, TraceType, encode_trace, trace_keys
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

PENDING_MAX = 2048
"""Largest number of records that wait or are in flight while the broker does not respond."""
PENDING_BYTES_MAX = 64 * 1024 * 1024
"""Largest size of the trace messages in flight, in bytes, even if the broker responds."""
TRACE_BYTES_MAX = 128_000
"""Largest size of a trace message's body, in bytes."""
KEYS_CHARACTERS_MAX = 8_000
"""Largest number of characters in a trace message's keys; all its properties together may have 32,767 bytes."""
FLUSH_INTERVAL_S = 5.0
SILENCE_S = 10.0
"""A broker that confirms nothing for so long, although a message was in flight, does not respond."""
_SHUTDOWN_S = 5.0
_instances = count(1)


class TraceSender(Protocol):
    """The inner producer that sends the trace messages; it is not traced itself."""

    async def start(self) -> None:
        """Starts the sender."""

    async def shutdown(self) -> None:
        """Waits for the results of all submitted messages, then stops."""

    def submit(self, message: Message) -> asyncio.Future[SendResult]:
        """Sends a message without waiting."""


def trace_group(group: str, role: str) -> str:
    """Name of the inner producer's group; ``role`` is PRODUCE or CONSUME."""
    suffix = f"-{role}-{next(_instances)}"
    prefix = "_INNER_TRACE_PRODUCER-"
    return prefix + group[: 120 - len(prefix) - len(suffix)] + suffix


class TraceDispatcher:
    """Collects the trace records of one producer or consumer.

    Args:
        group: group of the producer or consumer.
        sender: sends the trace messages; started and shut down by the dispatcher.
        topic: topic of the traces.
        batch_size: number of records per message.
        wall_ms: clock, in milliseconds since the epoch.
    """

    def __init__(
        self, group: str, sender: TraceSender, topic: str, batch_size: int, wall_ms: Callable[[], int]
    ) -> None:
        self._group = group
        self._sender = sender
        self._topic = topic
        self._batch_size = batch_size
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[TraceRecord] = []
        self._on_their_way = 0
        self._bytes_on_their_way = 0
        self._confirmed = False  # whether the broker has confirmed a message since the latest look
        self._is_silent = False
        self._look_timer: asyncio.TimerHandle | None = None  # set while messages are in flight
        self.wall_ms = wall_ms
        self.dropped = 0

    async def start(self) -> None:
        """Starts the sender."""
        await self._sender.start()

    async def shutdown(self) -> None:
        """Sends waiting records, then stops. Records not accepted by a broker within 5 s are lost; this is logged."""
        self._flush()
        with suppress(TimeoutError):
            async with asyncio.timeout(_SHUTDOWN_S):
                await self._sender.shutdown()
        if self._look_timer is not None:
            self._look_timer.cancel()

    def traced(self, messages: Sequence[Message], make: Callable[..., PendingSend]) -> Callable[..., PendingSend]:
        """Returns the constructor of a traced send of ``messages``; ``make`` is the constructor of an untraced send."""
        if messages[0].topic == self._topic:
            return make
        return partial(TracedSend, SentTrace(self, self._group, messages))

    def consumed(self, messages: Iterable[MessageExt]) -> None:
        """Traces ``messages`` as consumed: the application receives them now (pull, lite pull and simple consumers)."""
        traced = [one for one in messages if one.properties.get(message_const.TRACE_ON) != "false"]
        if not traced:
            return
        now_ms, request_id = self.wall_ms(), os.urandom(16).hex().upper()
        for kind in (TraceType.SUB_BEFORE, TraceType.SUB_AFTER):
            self.append(
                TraceRecord(
                    trace_type=kind,
                    timestamp_ms=now_ms,
                    region=message.properties.get(message_const.MSG_REGION, ""),
                    group=self._group,
                    topic=message.topic,
                    request_id=request_id,
                    msg_id=message.msg_id,
                    retry_times=message.reconsume_times,
                    keys=message.keys,
                )
                for message in traced
            )

    def recalled(self, topic: str, msg_id: str, began_ms: int) -> None:
        """Traces the recall of a delayed message, which began at ``began_ms``."""
        kind = TraceType.RECALL
        record = TraceRecord(trace_type=kind, timestamp_ms=began_ms, group=self._group, topic=topic, msg_id=msg_id)
        self.append([record])

    def append(self, records: Iterable[TraceRecord]) -> None:
        """Adds ``records``; drops those beyond the limits."""
        for record in records:
            if self._is_full():
                self.dropped += 1
                if self.dropped & (self.dropped - 1) == 0:  # the counts 1, 2, 4, 8, ... are logged
                    event(logger, logging.WARNING, "trace dropped", group=self._group, records=self.dropped)
                continue
            self._waiting.append(record)
            if len(self._waiting) >= self._batch_size:
                self._flush()
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_INTERVAL_S, self._flush)

    def _is_full(self) -> bool:
        if self._bytes_on_their_way >= PENDING_BYTES_MAX:
            return True
        return self._is_silent and len(self._waiting) + self._on_their_way >= PENDING_MAX

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        topics: dict[str, list[TraceRecord]] = {}
        for record in waiting:
            topics.setdefault(record.topic, []).append(record)
        for records in topics.values():
            for part in _parts(records, self._batch_size):
                self._send(part)

    def _send(self, records: list[TraceRecord]) -> None:
        keys = message_const.KEY_SEPARATOR.join(filter(None, trace_keys(records)))
        if len(keys) > KEYS_CHARACTERS_MAX:  # one message with very many keys: its trace is found by its id only
            keys = " ".join(filter(None, (record.msg_id for record in records)))
        body = encode_trace(records).encode("utf-8", "replace")
        message = SystemMessage(self._topic, body, properties={message_const.KEYS: keys} if keys else {})
        try:
            future = self._sender.submit(message)
        except RucolaError as error:
            event(logger, logging.WARNING, "trace not sent", group=self._group, records=len(records), error=error)
            return
        self._on_their_way += len(records)
        self._bytes_on_their_way += len(body)
        if self._look_timer is None:
            self._look_later()
        future.add_done_callback(partial(self._sent, len(records), len(body)))

    def _sent(self, records: int, size: int, future: asyncio.Future[SendResult]) -> None:
        self._on_their_way -= records
        self._bytes_on_their_way -= size
        error = None if future.cancelled() else future.exception()
        if error is not None:
            event(logger, logging.WARNING, "trace not sent", group=self._group, records=records, error=error)
        elif not future.cancelled():
            self._confirmed, self._is_silent = True, False

    def _look_later(self) -> None:
        self._confirmed = False
        self._look_timer = asyncio.get_running_loop().call_later(SILENCE_S, self._look)

    def _look(self) -> None:
        """Looks whether the broker has responded since the last look. A timer does this, rather than a comparison of
        times: if the application has blocked the event loop, the responses are read before the timer fires.
        """
        self._look_timer = None
        if self._on_their_way:
            self._is_silent = not self._confirmed
            self._look_later()


class SentTrace:
    """The trace of one send."""

    __slots__ = ("_dispatcher", "_group", "_messages")

    def __init__(self, dispatcher: TraceDispatcher, group: str, messages: Sequence[Message]) -> None:
        self._dispatcher = dispatcher
        self._group = group
        self._messages = messages

    def stored(self, result: SendResult, address: str, region: str, began_ms: int) -> None:
        """Traces the messages as stored by a broker. As in RocketMQ, a refused or unanswered send is not traced."""
        cost_ms = max(0, self._dispatcher.wall_ms() - began_ms)
        offset_ids = result.offset_msg_id.split(",")
        if len(offset_ids) != len(self._messages):
            offset_ids = [result.offset_msg_id] * len(self._messages)
        self._dispatcher.append(
            TraceRecord(
                trace_type=TraceType.PUB,
                timestamp_ms=began_ms,
                region=region,
                group=self._group,
                topic=message.topic,
                msg_id=message.uniq_key or result.msg_id,
                tags=message.tags,
                keys=message.keys,
                store_host=address,
                body_length=len(message.body),
                cost_ms=cost_ms,
                msg_type=_message_type(message).value,
                offset_msg_id=offset_id,
                success=result.status is SendStatus.SEND_OK,
            )
            for message, offset_id in zip(self._messages, offset_ids, strict=True)
        )


class TracedSend(TimedSend):
    """A traced send; the arguments after ``trace`` are those of ``PendingSend``."""

    __slots__ = ("_began_ms", "_region", "_trace")

    def __init__(self, trace: SentTrace, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._trace = trace
        self._began_ms = 0
        self._region: str | None = None

    def send_at(self, target: SendTarget, wall_ms: int) -> None:
        """Starts an attempt now; ``wall_ms``, the current time, becomes the time stamp of the trace record."""
        self._began_ms = wall_ms
        super().send_at(target, wall_ms)

    def _read(self, batch: FrameBatch, row: int) -> SendAnswer:
        fields = batch.command(row).ext_fields
        self._region = fields.get(message_const.MSG_REGION) if fields.get(message_const.TRACE_ON) == "true" else None
        return super()._read(batch, row)

    def _succeed(self, status: SendStatus, answer: SendAnswer, recall_handle: str | None = None) -> SendResult:
        result = super()._succeed(status, answer, recall_handle)
        if self._region is not None:
            self._trace.stored(result, self._address(), self._region, self._began_ms)
        return result


def _message_type(message: Message) -> MessageType:
    if not message_const.DELAYING.isdisjoint(message.properties):
        return MessageType.DELAY
    if message.properties.get(message_const.TRAN_MSG) == "true":
        return MessageType.TRANSACTION_HALF
    return MessageType.NORMAL


def _parts(records: list[TraceRecord], size: int) -> Iterable[list[TraceRecord]]:
    """Divides ``records`` into parts that each fit into one message."""
    part: list[TraceRecord] = []
    body = keys = 0
    for record in records:
        body_more, keys_more = (
            len(encode_trace([record]).encode("utf-8", "replace")),
            len(" ".join(trace_keys([record]))),
        )
        full = len(part) >= size or body + body_more > TRACE_BYTES_MAX or keys + keys_more > KEYS_CHARACTERS_MAX
        if part and full:
            yield part
            part, body, keys = [], 0, 0
        part.append(record)
        body += body_more
        keys += keys_more + 1
    if part:
        yield part
