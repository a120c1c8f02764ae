"""Sends: from a request to rows for a broker, and from its answers to the response.

The bytes of one NORMAL message go through a kernel into a row, and its answer into the response, without objects in
between. All others take the general path. Both end in the same rows.

Source: RocketMQ 5.3.3, ``SendMessageActivity``, ``ProducerProcessor``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, FormatError, RemotingError, RucolaError
from rucola.formats.message_id import parse_offset_message_id
from rucola.grpc.call import GrpcCall
from rucola.grpc.methods import Answer, UnaryMethod
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.headers.send import SendMessageResponseHeader
from rucola.protocol.send_request import send_answers
from rucola.proxy import messages, wire
from rucola.proxy.message_kind import MessageKind, check_kind
from rucola.proxy.queue_choice import queue_of_group
from rucola.proxy.receipt import TransactionId
from rucola.proxy.refusal import RefusedError, code_of_response, common_code
from rucola.proxy.rpc import decoded, ok, refusal_of, serialized
from rucola.proxy.sending import BODY_BYTES_MAX, Arrival, SentMessage, read_request
from rucola.remoting.response_future import ResponseFuture, Waiter

if TYPE_CHECKING:
    from rucola.proxy.access import DoorAccess
    from rucola.proxy.brokers import Brokers, TopicView
    from rucola.proxy.sessions import ClientSession, Sessions
    from rucola.proxy.transactions import Transactions

TIMEOUT_MS: Final = 10_000
REQUEST_BYTES_MAX: Final = 32 * (BODY_BYTES_MAX + 64 * 1024)
"""A request holds at most so many bytes as 32 messages of the largest size."""
_NOT_AS_SAFE = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
"""The message is stored, but not as safely as the broker promises."""


class Sends:
    """Answers SendMessage. Event loop only.

    Args:
        sessions: the clients.
        brokers: take the messages.
        access: says what an account may do.
        transactions: remembers where half messages are.
        now_ms: the wall clock.
        body_bytes_max: largest body.
        lite_topic_bytes_max: largest name of a lite topic.
    """

    def __init__(
        self,
        sessions: Sessions,
        brokers: Brokers,
        access: DoorAccess,
        transactions: Transactions,
        now_ms: Callable[[], int],
        body_bytes_max: int,
        lite_topic_bytes_max: int,
    ) -> None:
        self._sessions, self._brokers, self._access = sessions, brokers, access
        self._transactions = transactions
        self._now_ms = now_ms
        self._body_bytes_max, self._lite_topic_bytes_max = body_bytes_max, lite_topic_bytes_max

    def method(self) -> UnaryMethod:
        """SendMessage."""
        return UnaryMethod(self._handle, REQUEST_BYTES_MAX)

    def _handle(self, call: GrpcCall, data: bytes) -> Answer:
        try:
            session = self._sessions.of(call)
            if self._sent_by_kernel(session, call, data):
                return None
        except (RefusedError, RemotingError) as error:
            return _refused(error)
        return self._send_all(session, decoded(messages.SendMessageRequest, data))

    # -- one NORMAL message --------------------------------------------------------------------------------------------

    def _sent_by_kernel(self, session: ClientSession, call: GrpcCall, data: bytes) -> bool:
        """Sends the message of an ordinary request; returns False if it is one for the general path."""
        brokers = self._brokers
        rows = brokers.rows(session, len(data))
        if not rows.read(data, session.host, self._body_bytes_max):
            return False
        topic = rows.topic
        view = brokers.known_topic(topic)
        if view is None or not view.takes_normal or not view.writable:
            return False
        self._access.check_publish(session.account, session.address, view.name)
        queue = next(view.turns)
        link = brokers.open_link(session, queue.broker_name)
        if link is None:
            return False
        rows.place(topic, queue.queue_id)
        try:
            link.send(rows, _SendWaiter(call), TIMEOUT_MS)
        except RemotingError:
            rows.take_back()
            raise
        return True

    # -- all others ----------------------------------------------------------------------------------------------------

    async def _send_all(self, session: ClientSession, request: messages.SendMessageRequest) -> bytes:
        try:
            arrival = Arrival(self._now_ms(), session.address, self._body_bytes_max, self._lite_topic_bytes_max)
            accepted = read_request(request, arrival)
            topic = accepted[0].topic
            self._access.check_publish(session.account, session.address, topic)
            view = await self._brokers.topic(topic)
            if view is None:
                raise RefusedError(messages.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
            for message in accepted:
                check_kind(topic, message.kind, view.attributes)
            if not view.writable:
                raise RefusedError(messages.FORBIDDEN, f"topic {topic} has no writable queue")
            results = await asyncio.gather(
                *(self._send(session, view, message) for message in accepted), return_exceptions=True
            )
            entries = [_result(result, len(results) > 1) for result in results]
        except RucolaError as error:
            return _refused(error)
        code = common_code(entry.status.code for entry in entries)
        status = ok() if code == messages.OK else messages.Status(code=code, message=_texts(entries))
        return serialized(messages.SendMessageResponse(status=status, entries=entries))

    async def _send(self, session: ClientSession, view: TopicView, message: SentMessage) -> messages.SendResultEntry:
        queue = _queue_for(view, message)
        link = await self._brokers.link(session, queue.broker_name)
        rows = self._brokers.rows(session, len(message.body) + len(message.properties))
        rows.put(message)
        rows.place(message.topic.encode(), queue.queue_id)
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        try:
            link.send(rows, ResponseFuture(future), TIMEOUT_MS)
        except RemotingError:
            rows.take_back()
            raise
        answer = await future
        if answer.code != ResponseCode.SUCCESS and answer.code not in _NOT_AS_SAFE:
            raise BrokerError(answer.code, answer.remark)
        return self._entry(session, message, queue.broker_name, answer)

    def _entry(
        self, session: ClientSession, message: SentMessage, broker_name: str, answer: RemotingCommand
    ) -> messages.SendResultEntry:
        header = SendMessageResponseHeader.from_ext_fields(answer.ext_fields)
        entry = messages.SendResultEntry(
            status=_status(answer), message_id=message.unique_key, offset=header.queue_offset
        )
        if header.recall_handle:
            entry.recall_handle = header.recall_handle
        if message.kind is MessageKind.TRANSACTION:
            try:
                physical_offset = parse_offset_message_id(header.msg_id).physical_offset
            except ValueError as error:
                raise FormatError("msgId", 0, "an offset message id", str(error)) from None
            place = TransactionId(message.unique_key, broker_name, header.queue_offset, physical_offset)
            self._transactions.sent(session, message.topic, place)
            entry.transaction_id = place.encode()
        return entry


class _SendWaiter(Waiter):
    """Answers the call of one NORMAL message."""

    __slots__ = ("_call",)

    def __init__(self, call: GrpcCall) -> None:
        super().__init__()
        self._call = call

    def answered(self, batch: FrameBatch, row: int) -> None:
        """See ``Waiter``."""
        answer = send_answers(batch)[row]
        if answer is not None and answer[0] == ResponseCode.SUCCESS and answer[4] is not None:
            self._call.answer(wire.sent(answer[4].encode(), answer[3]))
            return
        try:
            self._call.answer(_unusual(batch.command(row)))
        except FormatError as error:
            self._call.answer(_refused(error))

    def failed(self, error: RemotingError) -> None:
        """See ``Waiter``."""
        self._call.answer(_refused(error))


def _unusual(answer: RemotingCommand) -> bytes:
    """The response for an answer other than SUCCESS, or one that only the general path reads."""
    if answer.code != ResponseCode.SUCCESS and answer.code not in _NOT_AS_SAFE:
        return _refused(BrokerError(answer.code, answer.remark))
    header = SendMessageResponseHeader.from_ext_fields(answer.ext_fields)
    status = _status(answer)
    entry = messages.SendResultEntry(status=status, message_id=header.transaction_id or "", offset=header.queue_offset)
    return serialized(messages.SendMessageResponse(status=status, entries=[entry]))


def _result(result: messages.SendResultEntry | BaseException, is_one_of_many: bool) -> messages.SendResultEntry:
    """The entry for a message; if the only message of a request was not stored, there is none, but the error."""
    if not isinstance(result, BaseException):
        return result
    if not is_one_of_many or not isinstance(result, RucolaError):
        raise result
    return messages.SendResultEntry(status=refusal_of(result).status())


def _status(answer: RemotingCommand) -> messages.Status:
    if answer.code == ResponseCode.SUCCESS:
        return ok()
    return messages.Status(code=code_of_response(answer.code), message=answer.remark or ResponseCode(answer.code).name)


def _refused(error: Exception) -> bytes:
    return serialized(messages.SendMessageResponse(status=refusal_of(error).status()))


def _texts(entries: list[messages.SendResultEntry]) -> str:
    return "; ".join(dict.fromkeys(entry.status.message for entry in entries))


def _queue_for(view: TopicView, message: SentMessage) -> MessageQueue:
    ordered_by = message.message_group or message.lite_topic
    if ordered_by is not None:
        return queue_of_group(ordered_by, view.writable)
    queue = next(view.turns)
    if message.kind is MessageKind.PRIORITY and message.priority is not None:
        highest = next(data.write_queue_nums for data in view.queues if data.broker_name == queue.broker_name) - 1
        return MessageQueue(view.name, queue.broker_name, min(message.priority, highest))
    return queue
