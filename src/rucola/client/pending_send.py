"""One message on its way: encoded, sent, sent again, answered or given up.

Source: protocol.md 4.4; RocketMQ 5.3.3, DefaultMQProducerImpl#sendDefaultImpl and MQClientAPIImpl#processSendResponse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import orjson

from rucola.client.send_frame import send_frame
from rucola.client.send_result import SendResult, SendStatus
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, FormatError, RemotingError, RucolaError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import JSON
from rucola.protocol.frame import FrameBatch
from rucola.remoting.client import RemotingClient
from rucola.remoting.response_future import Waiter

_CODE = int(FrameColumn.CODE)
_SERIALIZE = int(FrameColumn.SERIALIZE)
_HEADER_POS = int(FrameColumn.HEADER_POS)
_HEADER_LEN = int(FrameColumn.HEADER_LEN)

_STATUS = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


class SendTarget:
    """A queue to send to: where it is, and the beginning of every header for it, of a message and of a batch."""

    __slots__ = ("address", "batch_head", "head", "queue", "queue_id_text")

    def __init__(self, queue: MessageQueue, address: str, head: bytes, batch_head: bytes) -> None:
        self.queue = queue
        self.address = address
        self.head = head
        self.batch_head = batch_head
        self.queue_id_text = str(queue.queue_id)


class SendRules(Protocol):
    """What a message on its way asks of its producer."""

    client: RemotingClient
    backoff_ms: int
    backoff_max_ms: int
    attempt_timeout_ms: int
    retry_when_not_flushed: bool
    wall_ms: Callable[[], int]

    def next_target(self, send: PendingSend, failed: str | None) -> SendTarget:
        """Where to send next; another broker than ``failed`` when there is one."""

    def broker_failed(self, topic: str) -> None:
        """The broker of ``topic`` cannot be reached: its address may have changed."""

    def finished(self, send: PendingSend) -> None:
        """``send`` has its result or error."""


class PendingSend(Waiter):
    """A send from ``submit`` to its result.

    Attributes:
        topic: where to.
        fixed_queue: the queue the application chose; None lets the producer choose.
        msg_id: unique id, the same in every attempt.
        size: bytes of the body as transferred.
        future: gets the result.
    """

    __slots__ = (
        "_attempts",
        "_body",
        "_expires_at",
        "_loop",
        "_message_flag",
        "_properties",
        "_retries_left",
        "_rules",
        "_sys_flag",
        "_target",
        "batch",
        "fixed_queue",
        "future",
        "msg_id",
        "size",
        "topic",
    )

    def __init__(
        self,
        rules: SendRules,
        loop: asyncio.AbstractEventLoop,
        topic: str,
        fixed_queue: MessageQueue | None,
        msg_id: str,
        body: bytes,
        sys_flag: int,
        message_flag: int,
        properties: bytes,
        batch: bool,
        timeout_ms: int,
        retries: int,
    ) -> None:
        self._rules = rules
        self._loop = loop
        self.topic = topic
        self.fixed_queue = fixed_queue
        self.msg_id = msg_id
        self.size = len(body)
        self.batch = batch
        self._body = body
        self._sys_flag = sys_flag
        self._message_flag = message_flag
        self._properties = properties
        self._expires_at = loop.time() + timeout_ms / 1000
        self._retries_left = retries
        self._attempts = 0
        self._target: SendTarget | None = None
        self.future: asyncio.Future[SendResult] = loop.create_future()

    def send(self, target: SendTarget) -> None:
        """Make an attempt."""
        rules = self._rules
        timeout_ms = max(1, round((self._expires_at - self._loop.time()) * 1000))
        if 0 < rules.attempt_timeout_ms < timeout_ms:
            timeout_ms = rules.attempt_timeout_ms
        self._attempts += 1
        self._target = target
        client = rules.client
        opaque = client.next_opaque()
        frame = send_frame(
            target.batch_head if self.batch else target.head,
            self._sys_flag,
            rules.wall_ms(),
            self._message_flag,
            self._properties,
            0,
            opaque,
            self._body,
        )
        try:
            client.request(target.address, frame, opaque, self, timeout_ms)
        except RemotingError as error:  # the client is closed
            self.fail(error)

    def answered(self, batch: FrameBatch, row: int) -> None:
        """The broker's answer to the latest attempt."""
        code = batch.table[row * ROW_WIDTH + _CODE]
        status = _STATUS.get(code)
        if status is None:
            self._refused(batch, row)
        elif code and self._rules.retry_when_not_flushed and self._retries_left > 0:
            self._retry(BrokerError(code, status.value, self._address()))
        else:
            try:
                result = self._result(status, batch, row)
            except FormatError as error:
                self.fail(error)
                return
            if not self.future.done():
                self.future.set_result(result)
            self._rules.finished(self)

    def failed(self, error: RemotingError) -> None:
        """No answer to the latest attempt: whether it was stored is unknown."""
        self._rules.broker_failed(self.topic)
        self._retry(error)

    def fail(self, error: RucolaError) -> None:
        """Give up."""
        if self._attempts > 1:
            error.add_note(f"attempt {self._attempts} to send {self.msg_id} to topic {self.topic}")
        if not self.future.done():
            self.future.set_exception(error)
        self._rules.finished(self)

    def _result(self, status: SendStatus, batch: FrameBatch, row: int) -> SendResult:
        target = self._target
        assert target is not None
        table, base = batch.table, row * ROW_WIDTH
        fields: dict[str, str]
        try:
            if table[base + _SERIALIZE] == JSON:
                start = table[base + _HEADER_POS]
                fields = orjson.loads(batch.view[start : start + table[base + _HEADER_LEN]])["extFields"]
            else:
                fields = batch.command(row).ext_fields
            queue, queue_id = target.queue, fields["queueId"]
            if queue_id != target.queue_id_text:
                queue = MessageQueue(queue.topic, queue.broker_name, int(queue_id))
            return SendResult(
                status,
                fields.get("batchUniqId") or self.msg_id,
                fields["msgId"],
                queue,
                int(fields["queueOffset"]),
                fields.get("transactionId"),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError("answer to a send", 0, "msgId, queueId and queueOffset", repr(error)) from error

    def _refused(self, batch: FrameBatch, row: int) -> None:
        try:
            answer = batch.command(row)
        except FormatError as error:
            self.fail(error)
            return
        refusal = BrokerError(answer.code, answer.remark, self._address())
        if refusal.retriable:
            self._retry(refusal)
        else:
            self.fail(refusal)

    def _retry(self, error: RucolaError) -> None:
        """The first further attempt is made at once, as the reference does; the later ones after a growing pause."""
        rules = self._rules
        pause_s = 0.0
        if self._attempts > 1:
            pause_s = min(rules.backoff_ms << min(self._attempts - 2, 16), rules.backoff_max_ms) / 1000
        if self._retries_left <= 0 or self._loop.time() + pause_s >= self._expires_at or self.future.done():
            self.fail(error)
            return
        self._retries_left -= 1
        if pause_s:
            self._loop.call_later(pause_s, self._again, error)
        else:
            self._again(error)

    def _again(self, error: RucolaError) -> None:
        if self.future.done():
            self._rules.finished(self)
            return
        failed = self._target.queue.broker_name if self._target is not None else None
        try:
            target = self._rules.next_target(self, failed)
        except RucolaError:
            self.fail(error)  # why the attempt failed says more than that its route is gone
            return
        self.send(target)

    def _address(self) -> str:
        return self._target.address if self._target is not None else ""
