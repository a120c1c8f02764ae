"""One message on its way: encoded, sent, sent again, answered or given up.

Source: protocol.md 4.4; RocketMQ 5.3.3, DefaultMQProducerImpl#sendDefaultImpl and MQClientAPIImpl#processSendResponse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from rucola.client.queue_selector import ChosenQueue
from rucola.client.send_result import SendResult, SendStatus
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.common.message_queue import MessageQueue
from rucola.errors import (
    BrokerError,
    ClientError,
    FormatError,
    RemotingConnectError,
    RemotingError,
    RucolaError,
)
from rucola.protocol.codes import ResponseCode, response_name
from rucola.protocol.frame import FrameBatch, SendAnswer
from rucola.protocol.send_request import EncodedMessage, encode_send_head, send_answers
from rucola.remoting.client import RemotingClient
from rucola.remoting.response_future import Waiter

_CODE = int(FrameColumn.CODE)

_STATUS = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
_SEND_OK = SendStatus.SEND_OK
_new_tuple = tuple.__new__  # past the constructor that a named tuple writes in Python


_REFUSED_PAUSE_S = 0.01
"""Between attempts to connect at least, also when no pauses are configured."""
MESSAGE, BATCH, REPLY = range(3)
"""What is sent: a message, several, the reply to one."""


class SendTarget:
    """A queue to send to: where it is, and the beginning of every header for it, by what is sent."""

    __slots__ = ("address", "heads", "queue", "queue_id")

    def __init__(self, queue: MessageQueue, address: str, heads: tuple[bytes, ...]) -> None:
        self.queue = queue
        self.address = address
        self.heads = heads
        self.queue_id = queue.queue_id


class SendRules(Protocol):
    """What a message on its way asks of its producer."""

    client: RemotingClient
    in_flight: int
    in_flight_bytes: int
    waited_for: bool
    backoff_ms: int
    backoff_max_ms: int
    attempt_timeout_ms: int
    retry_when_not_flushed: bool
    wall_ms: Callable[[], int]

    def next_target(self, send: PendingSend, failed: str | None) -> SendTarget:
        """Where to send next; another broker than ``failed`` when there is one."""

    def broker_failed(self, send: PendingSend) -> None:
        """The broker of ``send`` cannot be reached: its address may have changed."""

    def broker_refused(self, send: PendingSend) -> None:
        """The broker of ``send`` did not take it, though another may."""

    def succeeded(self, send: PendingSend) -> None:
        """Like ``finished``, for one that was stored; called while somebody waits for that."""

    def finished(self, send: PendingSend) -> None:
        """``send`` has its result or error: it no longer counts, and those are woken who waited for that."""


class PendingSend(Waiter):
    """A send from ``submit`` to its result.

    Attributes:
        topic: where to.
        fixed_queue: the queue the application chose, or how it will; None lets the producer choose.
        msg_id: unique id, the same in every attempt.
        size: bytes of the body as transferred.
        future: gets the result.
    """

    __slots__ = (
        "_attempts",
        "_encoded",
        "_expires_at",
        "_retries_left",
        "_rules",
        "_stored",
        "_target",
        "fixed_queue",
        "future",
        "kind",
        "msg_id",
        "size",
        "topic",
    )

    def __init__(
        self,
        rules: SendRules,
        loop: asyncio.AbstractEventLoop,
        topic: str,
        fixed_queue: MessageQueue | ChosenQueue | None,
        msg_id: str,
        encoded: EncodedMessage,
        kind: int,
        timeout_ms: int,
        retries: int,
    ) -> None:
        self._rules = rules
        self.topic = topic
        self.fixed_queue = fixed_queue
        self.msg_id = msg_id
        self.size = len(encoded[0])
        self.kind = kind
        self._encoded = encoded
        self.deadline = self._expires_at = loop.time() + timeout_ms / 1000
        self.timeout_ms = timeout_ms
        self._retries_left = retries
        self._attempts = 1  # that which comes, or is under way
        self._target: SendTarget  # of the latest attempt
        self._stored: tuple[SendStatus, SendAnswer, SendTarget] | None = None  # of an attempt, but not safe yet
        self.future: asyncio.Future[SendResult] = loop.create_future()

    @property
    def time_left_s(self) -> float:
        """Until its deadline; not positive when nobody waits any more."""
        return 0.0 if self.future.done() else self._expires_at - self._now()

    def ended(self) -> bool:
        """Whether it ends here, before its first attempt: it was cancelled, or its time is over."""
        if not self.future.done() and self._now() < self._expires_at:
            return False
        self.expire()
        return True

    def expire(self) -> None:
        """End before the first attempt."""
        if self.future.done():
            self._rules.finished(self)
        else:
            self.fail(ClientError(f"no route to topic {self.topic} within {self.timeout_ms} ms"))

    def send(self, target: SendTarget) -> None:
        """Make an attempt with the time that is left."""
        now = self._now()
        timeout_ms = max(1, round((self._expires_at - now) * 1000))
        if 0 < self._rules.attempt_timeout_ms < timeout_ms:
            timeout_ms = self._rules.attempt_timeout_ms
        self.wait_for(timeout_ms, now)
        self.send_at(target, self._rules.wall_ms())

    def send_at(self, target: SendTarget, wall_ms: int) -> None:
        """Make an attempt, the time being ``wall_ms``; it ends at the deadline."""
        self._target = target
        client = self._rules.client
        opaque = client.next_opaque()
        body, sys_flag, message_flag, properties = self._encoded
        head = encode_send_head(
            target.heads[self.kind], sys_flag, wall_ms, message_flag, properties, 0, opaque, self.size
        )
        try:
            client.request(target.address, opaque, self, head, body)
        except RemotingError as error:  # the client is closed
            self.fail(error)

    def answered(self, batch: FrameBatch, row: int) -> None:
        """The broker's answer to the latest attempt."""
        answer = (batch.send_answers or send_answers(batch))[row]
        if answer is None or answer[0]:
            self._take(batch, row)
        else:
            self._succeed(_SEND_OK, answer)

    def _take(self, batch: FrameBatch, row: int) -> None:
        """Any answer, also a refusal or one of an unusual shape."""
        code = batch.table[row * ROW_WIDTH + _CODE]
        status = _STATUS.get(code)
        if status is None:
            self._refused(batch, row)
            return
        try:
            answer = self._read(batch, row)
        except FormatError as error:
            self.fail(error)
            return
        if code and self._rules.retry_when_not_flushed and self._retries_left > 0:
            self._stored = status, answer, self._target
            self._retry(self._refusal(code, status.value))
        else:
            self._succeed(status, answer)

    def failed(self, error: RemotingError) -> None:
        """No answer to the latest attempt: whether it was stored is unknown."""
        self._rules.broker_failed(self)
        self._retry(error)

    def fail(self, error: RucolaError) -> None:
        """Give up; what an earlier attempt stored is still a result, as in the reference."""
        if self._stored is not None:
            status, answer, self._target = self._stored
            self._succeed(status, answer)
            return
        if self._attempts > 1:
            error.add_note(f"attempt {self._attempts} to send {self.msg_id} to topic {self.topic}")
        if not self.future.done():
            self.future.set_exception(error)
        self._rules.finished(self)

    def _succeed(self, status: SendStatus, answer: SendAnswer, recall_handle: str | None = None) -> SendResult:
        _, offset_msg_id, queue_id, queue_offset, transaction_id, batch_id = answer
        future, rules, target = self.future, self._rules, self._target
        queue = target.queue
        if queue_id != target.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        msg_id = batch_id or self.msg_id
        result = _new_tuple(
            SendResult, (status, msg_id, offset_msg_id, queue, queue_offset, transaction_id, recall_handle)
        )
        try:  # noqa: SIM105 - this is per message, and a context manager costs more
            future.set_result(result)
        except asyncio.InvalidStateError:
            pass  # cancelled
        if rules.waited_for:
            rules.succeeded(self)
        else:
            rules.in_flight -= 1
            rules.in_flight_bytes -= self.size
        return result

    def _read(self, batch: FrameBatch, row: int) -> SendAnswer:
        answer = send_answers(batch)[row]
        if answer is not None:
            return answer
        fields = batch.command(row).ext_fields
        try:
            return (
                0,
                fields["msgId"],
                int(fields["queueId"]),
                int(fields["queueOffset"]),
                fields.get("transactionId"),
                fields.get("batchUniqId"),
            )
        except (KeyError, ValueError) as error:
            raise FormatError("answer to a send", 0, "msgId, queueId and queueOffset", repr(error)) from error

    def _refused(self, batch: FrameBatch, row: int) -> None:
        try:
            answer = batch.command(row)
        except FormatError as error:
            self.fail(error)
            return
        refusal = self._refusal(answer.code, answer.remark)
        if refusal.retriable:
            self._rules.broker_refused(self)
            self._retry(refusal)
        else:
            self.fail(refusal)

    def _retry(self, error: RucolaError) -> None:
        """The first further attempt is made at once, as the reference does; the later ones after a growing pause.

        Where nobody could be connected to, nothing was sent: that is tried until the time is over, and counts as no
        attempt. The reference gives up within milliseconds, long before a broker that is restarted is back.
        """
        rules = self._rules
        sent = not isinstance(error, RemotingConnectError)
        pause_s = 0.0
        if self._attempts > 1:
            pause_s = min(rules.backoff_ms << min(self._attempts - 2, 16), rules.backoff_max_ms) / 1000
            if not sent:
                pause_s = max(pause_s, _REFUSED_PAUSE_S)
        if (sent and self._retries_left <= 0) or self._now() + pause_s >= self._expires_at or self.future.done():
            self.fail(error)
            return
        self._retries_left -= sent
        if pause_s:
            self.future.get_loop().call_later(pause_s, self._again, error)
        else:
            self._again(error)

    def _again(self, error: RucolaError) -> None:
        if self.future.done():
            self._rules.finished(self)
            return
        try:
            target = self._rules.next_target(self, self.broker_name)
        except RucolaError:
            self.fail(error)  # why the attempt failed says more than that its route is gone
            return
        self._attempts += 1
        self.send(target)

    def _now(self) -> float:
        return self.future.get_loop().time()

    def _refusal(self, code: int, remark: str) -> BrokerError:
        return BrokerError(code, remark, self._address(), response_name(code), self.broker_name)

    @property
    def broker_name(self) -> str:
        """The broker of the latest attempt; there was one."""
        return self._target.queue.broker_name

    def _address(self) -> str:
        return self._target.address


class TimedSend(PendingSend):
    """A send whose answer is read whole, for what it says of how to recall the message."""

    __slots__ = ("_recall_handle",)

    def answered(self, batch: FrameBatch, row: int) -> None:
        """The broker's answer to the latest attempt."""
        self._recall_handle: str | None = None
        self._take(batch, row)

    def _read(self, batch: FrameBatch, row: int) -> SendAnswer:
        self._recall_handle = batch.command(row).ext_fields.get("recallHandle")
        return super()._read(batch, row)

    def _succeed(self, status: SendStatus, answer: SendAnswer, recall_handle: str | None = None) -> SendResult:
        return super()._succeed(status, answer, recall_handle or self._recall_handle)
