"""One encoded message in flight: sends it, repeats failed attempts, and sets the result or the error.

Source: protocol.md 4.4; RocketMQ 5.3.3, DefaultMQProducerImpl#sendDefaultImpl and MQClientAPIImpl#processSendResponse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from rucola.client.queue_selector import ChosenQueue
from rucola.client.send_result import SendResult, SendStatus
from rucola.common import message_const
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.common.message import Message
from rucola.common.message_queue import MessageQueue
from rucola.errors import (
    BrokerError,
    FormatError,
    NoRouteError,
    RemotingClosedError,
    RemotingConnectError,
    RemotingError,
    RemotingUnansweredError,
    RucolaError,
)
from rucola.protocol.codes import ResponseCode, response_name
from rucola.protocol.frame import FrameBatch, SendAnswer
from rucola.protocol.send_request import EncodedMessage, encode_send_head, retry_head, send_answers
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
_new_tuple = tuple.__new__  # avoids the named tuple's own constructor, which is slower


_REFUSED_PAUSE_S = 0.01
"""The second and later retries to connect wait at least this number of seconds, even if a shorter pause is
configured.
"""
MESSAGE, BATCH, REPLY = range(3)
"""Kind of a request: one message, a batch, or a reply to a request."""


class SendTarget:
    """A queue to send to: its broker's address, and the prepared header for each kind of request."""

    __slots__ = ("address", "heads", "queue", "queue_id")

    def __init__(self, queue: MessageQueue, address: str, heads: tuple[bytes, ...]) -> None:
        self.queue = queue
        self.address = address
        self.heads = heads
        self.queue_id = queue.queue_id


class SendRules(Protocol):
    """The attributes and methods of the producer that a message in flight uses."""

    client: RemotingClient
    in_flight: int
    in_flight_bytes: int
    epoch: int
    waited_for: bool
    backoff_ms: int
    backoff_max_ms: int
    attempt_timeout_ms: int
    retry_when_not_flushed: bool
    wall_ms: Callable[[], int]

    def next_target(self, send: PendingSend, failed: str | None) -> SendTarget:
        """The target of the next attempt; avoids broker ``failed`` if there is a different broker."""

    def broker_failed(self, send: PendingSend) -> None:
        """Called when the broker of ``send`` cannot be reached, or is a master no more; the route may have changed."""

    def broker_refused(self, send: PendingSend) -> None:
        """Called when the broker refused ``send``; a different broker may accept the message."""

    def wait_for_master(self, send: PendingSend, error: RucolaError) -> None:
        """Called when no broker is a master to which ``send`` could go. Later calls ``send.again``, or fails it with
        ``error`` when its time is up.
        """

    def succeeded(self, send: PendingSend) -> None:
        """Called when the message was stored, if ``waited_for`` is True; otherwise ``send`` itself lowers ``in_flight``
        and ``in_flight_bytes``.
        """

    def finished(self, send: PendingSend) -> None:
        """Called when ``send`` has failed or was cancelled, and is no longer in flight; wakes waiting callers."""


class SendTerms(NamedTuple):
    """What a send may take.

    Attributes:
        timeout_ms: for all attempts together.
        retries: number of attempts after the first one.
        kind: the kind of request: ``MESSAGE``, ``BATCH`` or ``REPLY``.
    """

    timeout_ms: int
    retries: int
    kind: int


class PendingSend(Waiter):
    """A message in flight, from ``submit`` to its result.

    Attributes:
        topic: destination topic.
        fixed_queue: the queue of the message; None if each attempt uses the topic's next queue. If a selector has
            yet to choose the queue, the ``ChosenQueue`` that calls the selector.
        msg_id: unique id, the same in every attempt.
        size: size of the body as sent, in bytes.
        epoch: number of calls of ``flush`` before the submission.
        future: receives the result.
        expires_at: the event loop's time at which the send ends, whatever it waits for.
    """

    __slots__ = (
        "_attempts",
        "_encoded",
        "_retries_left",
        "_rules",
        "_stored",
        "_target",
        "epoch",
        "expires_at",
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
        terms: SendTerms,
    ) -> None:
        self._rules = rules
        self.epoch = rules.epoch
        self.topic = topic
        self.fixed_queue = fixed_queue
        self.msg_id = msg_id
        self.size = len(encoded[0])
        timeout_ms, self._retries_left, self.kind = terms
        self._encoded = encoded
        self.deadline = self.expires_at = loop.time() + timeout_ms / 1000
        self.timeout_ms = timeout_ms
        self._attempts = 1  # number of the next or current attempt
        # target of the latest attempt
        self._target: SendTarget
        # outcome of an attempt in which the message was stored but not flushed
        self._stored: tuple[SendStatus, SendAnswer, SendTarget] | None = None
        self.future: asyncio.Future[SendResult] = loop.create_future()

    def ended(self) -> bool:
        """Whether the send was cancelled or timed out before its first attempt; if so, ends it with ``expire``."""
        if not self.future.done() and self._now() < self.expires_at:
            return False
        self.expire(NoRouteError(self.topic, f"none came within {self.timeout_ms} ms"))
        return True

    def expire(self, error: NoRouteError) -> None:
        """Ends a send that was cancelled, or timed out before its first attempt with ``error``."""
        if self.future.done():
            self._rules.finished(self)
        else:
            self.fail(error)

    def send(self, target: SendTarget) -> None:
        """Starts an attempt with the remaining time."""
        now = self._now()
        timeout_ms = max(1, round((self.expires_at - now) * 1000))
        if 0 < self._rules.attempt_timeout_ms < timeout_ms:
            timeout_ms = self._rules.attempt_timeout_ms
        self.wait_for(timeout_ms, now)
        self.send_at(target, self._rules.wall_ms())

    def send_at(self, target: SendTarget, wall_ms: int) -> None:
        """Starts an attempt with born timestamp ``wall_ms``, the current time. The attempt ends at ``deadline``."""
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
        """Handles the broker's response to the latest attempt."""
        answer = (batch.send_answers or send_answers(batch))[row]
        if answer is None or answer[0]:
            self._take(batch, row)
        else:
            self._succeed(_SEND_OK, answer)

    def _take(self, batch: FrameBatch, row: int) -> None:
        """Handles a response of any kind, including refusals and responses that ``send_answers`` cannot read."""
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
        """Handles an attempt without response; it is unknown whether the message was stored."""
        self._rules.broker_failed(self)
        self._retry(error)

    def fail(self, error: RucolaError) -> None:
        """Ends the send with ``error``. If a broker stored the message in an earlier attempt, the send ends with the
        result of that attempt instead, as in RocketMQ's producer.
        """
        if self._stored is not None:
            status, answer, self._target = self._stored
            self._succeed(status, answer)
            return
        if isinstance(error, RemotingUnansweredError) and not error.operation:
            error.set_operation(f"send to topic {self.topic}; the message may be stored")
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
            raise FormatError("response to a send", 0, "msgId, queueId and queueOffset", repr(error)) from error

    def _refused(self, batch: FrameBatch, row: int) -> None:
        try:
            answer = batch.command(row)
        except FormatError as error:
            self.fail(error)
            return
        refusal = self._refusal(answer.code, answer.remark)
        if refusal.retriable:
            if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:  # another broker may be the master now
                self._rules.broker_failed(self)
            else:
                self._rules.broker_refused(self)
            self._retry(refusal)
        else:
            self.fail(refusal)

    def _retry(self, error: RucolaError) -> None:
        """Makes the next attempt: the first retry is immediate, as in RocketMQ's producer; later retries follow after
        growing pauses.

        If no connection to a broker could be opened, nothing was sent. Such a failure does not use up a retry: the
        producer tries again until the send times out. RocketMQ's producer gives up within milliseconds, long before a
        restarted broker is available.
        """
        rules = self._rules
        sent = not isinstance(error, RemotingConnectError)
        pause_s = 0.0
        if self._attempts > 1:
            pause_s = min(rules.backoff_ms << min(self._attempts - 2, 16), rules.backoff_max_ms) / 1000
            if not sent:
                pause_s = max(pause_s, _REFUSED_PAUSE_S)
        if (sent and self._retries_left <= 0) or self._now() + pause_s >= self.expires_at or self.future.done():
            self.fail(error)
            return
        self._retries_left -= sent
        self._attempts += 1
        if pause_s:
            self.future.get_loop().call_later(pause_s, self.again, error, self.broker_name)
        else:
            self.again(error, self.broker_name)

    def again(self, error: RucolaError, failed: str | None = None) -> None:
        """Makes the next attempt.

        Args:
            error: the error of the attempt before, with which the send ends if there is no next one.
            failed: name of the broker that is avoided if there is a different one.
        """
        if self.future.done():
            self._rules.finished(self)
            return
        try:
            target = self._rules.next_target(self, failed)
        except NoRouteError:
            self._rules.wait_for_master(self, error)  # the attempt's own error is more useful than the missing route
        except RemotingClosedError as closed:
            self.fail(closed)
        except RucolaError:
            self.fail(error)
        else:
            self.send(target)

    def _now(self) -> float:
        return self.future.get_loop().time()

    def _refusal(self, code: int, remark: str) -> BrokerError:
        return BrokerError(code, remark, self._address(), response_name(code), self.broker_name)

    @property
    def broker_name(self) -> str:
        """The broker name of the latest attempt; an attempt must have been made."""
        return self._target.queue.broker_name

    def _address(self) -> str:
        return self._target.address


class TimedSend(PendingSend):
    """A send of a delayed message, whose full response is read for the recall handle."""

    __slots__ = ("_recall_handle",)

    def answered(self, batch: FrameBatch, row: int) -> None:
        """Handles the broker's response to the latest attempt."""
        self._recall_handle: str | None = None
        self._take(batch, row)

    def _read(self, batch: FrameBatch, row: int) -> SendAnswer:
        self._recall_handle = batch.command(row).ext_fields.get("recallHandle")
        return super()._read(batch, row)

    def _succeed(self, status: SendStatus, answer: SendAnswer, recall_handle: str | None = None) -> SendResult:
        return super()._succeed(status, answer, recall_handle or self._recall_handle)


class RetrySend(PendingSend):
    """A send to a retry topic. The header counts the message's redeliveries, this one included; if the count exceeds
    the maximum, the broker makes the message a dead letter.
    """

    __slots__ = ("_counts",)

    def __init__(self, counts: tuple[str, str | None], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counts = counts

    def send_at(self, target: SendTarget, wall_ms: int) -> None:
        """Starts an attempt with born timestamp ``wall_ms``, the current time. The attempt ends at ``deadline``."""
        heads = tuple(retry_head(head, *self._counts) for head in target.heads)
        super().send_at(SendTarget(target.queue, target.address, heads), wall_ms)


def retry_send(message: Message) -> Callable[..., PendingSend]:
    """Returns a function that creates the ``RetrySend`` of ``message``. Moves the retry counts from the message's
    properties to the request header, as RocketMQ's producer does.
    """
    times = message.properties.pop(message_const.RECONSUME_TIME)
    times_max = message.properties.pop(message_const.MAX_RECONSUME_TIMES, None)
    return partial(RetrySend, (times, times_max))
