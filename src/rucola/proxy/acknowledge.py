"""What consumers do with received messages: acknowledge them, hide them for another time, give them up.

A message of a lite topic is known by its handle and its lite topic. The handle has the lite topic, too, because some
clients do not send it everywhere.

Source: RocketMQ 5.3.3, ``AckMessageActivity``, ``ChangeInvisibleDurationActivity``,
``ForwardMessageToDLQActivity``, ``ConsumerProcessor``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rucola.broker.lite.attributes import lite_group
from rucola.errors import BrokerError, FormatError, RemotingError, RucolaError
from rucola.grpc.call import GrpcCall
from rucola.grpc.methods import Answer, UnaryMethod
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.protocol.headers.client import ConsumerSendMsgBackRequestHeader
from rucola.protocol.headers.pop import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader
from rucola.proxy import messages, wire
from rucola.proxy.names import check_group, check_topic
from rucola.proxy.receipt import NO_PHYSICAL_OFFSET, ReceiptHandle
from rucola.proxy.refusal import RefusedError, common_code
from rucola.proxy.rpc import decoded, ok, refusal_of, serialized
from rucola.proxy.timestamps import duration_ms
from rucola.remoting.response_future import Waiter

if TYPE_CHECKING:
    from rucola.proxy.access import DoorAccess
    from rucola.proxy.brokers import Brokers, DoorLink
    from rucola.proxy.renewals import Renewals
    from rucola.proxy.sessions import ClientSession, Sessions
    from rucola.remoting.consumer_api import ConsumerApi

ENTRIES_MAX: Final = 1024
INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000
VISIBLE_SOON_MS: Final = 1_000
_TIMEOUT_MS = 3_000
_CHECKED_MAX = 1024
_TO_DEAD_LETTERS = -1


class Acknowledgements:
    """Answers AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue. Event loop only.

    Args:
        sessions: the clients.
        brokers: have the messages.
        access: says what an account may do.
        now_ms: the wall clock by which handles expire.
    """

    renewals: Renewals

    def __init__(self, sessions: Sessions, brokers: Brokers, access: DoorAccess, now_ms: Callable[[], int]) -> None:
        self._sessions, self._brokers, self._access, self._now_ms = sessions, brokers, access, now_ms
        self._checked: set[tuple[str, str]] = set()
        """Names of topics and groups that are allowed."""

    def set_renewals(self, renewals: Renewals) -> None:
        """Sets what renews handles; it changes handles by ``change``."""
        self.renewals = renewals

    # -- AckMessage ----------------------------------------------------------------------------------------------------

    def method(self) -> UnaryMethod:
        """AckMessage."""
        return UnaryMethod(self._handle)

    def _handle(self, call: GrpcCall, data: bytes) -> Answer:
        request = decoded(messages.AckMessageRequest, data)
        try:
            session = self._sessions.of(call)
            topic, group = request.topic.name, request.group.name
            if (topic, group) not in self._checked:
                self._check_names(topic, group)
            if len(request.entries) != 1:
                return self._ack_all(session, topic, group, request)
            entry = request.entries[0]
            handle = ReceiptHandle.decode(entry.receipt_handle)
            link = self._brokers.open_link(session, handle.broker_name)
            if link is None or (entry.lite_topic and not handle.lite_topic):
                return self._ack_all(session, topic, group, request)
            handle = self.newest(session, group, handle)
            if not handle.lite_topic and link.acknowledge(handle.real_topic(topic, group), group, handle):
                return wire.acknowledged(entry.message_id.encode(), entry.receipt_handle.encode())
            link.request(ack_command(handle, topic, group), _AckWaiter(call, entry), _TIMEOUT_MS)
        except (RefusedError, RemotingError) as error:
            return self._refused(request, error)
        return None

    def _check_names(self, topic: str, group: str) -> None:
        check_topic(topic)
        check_group(group)
        if len(self._checked) >= _CHECKED_MAX:
            self._checked.clear()
        self._checked.add((topic, group))

    async def _ack_all(
        self, session: ClientSession, topic: str, group: str, request: messages.AckMessageRequest
    ) -> bytes:
        if len(request.entries) > ENTRIES_MAX:
            text = f"the request has {len(request.entries)} entries; allowed are {ENTRIES_MAX}"
            return self._refused(messages.AckMessageRequest(), RefusedError(messages.BAD_REQUEST, text))
        entries = await asyncio.gather(*(self._ack_entry(session, topic, group, entry) for entry in request.entries))
        code = common_code(entry.status.code for entry in entries)
        text = entries[0].status.message if entries else "the request has no entries"
        status = messages.Status(code=code, message="MULTIPLE_RESULTS" if code == messages.MULTIPLE_RESULTS else text)
        return serialized(messages.AckMessageResponse(status=status, entries=entries))

    async def _ack_entry(
        self, session: ClientSession, topic: str, group: str, entry: messages.AckMessageEntry
    ) -> messages.AckMessageResultEntry:
        try:
            named = await self._named(group, entry.receipt_handle, entry.lite_topic)
            handle = self.newest(session, group, named)
            link = await self._brokers.link(session, handle.broker_name)
            await link.api.ack(link.address, _ack_header(handle, topic, group), _TIMEOUT_MS)
            status = ok()
        except RucolaError as error:
            status = refusal_of(error).status()
        return messages.AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
        )

    @staticmethod
    def _refused(request: messages.AckMessageRequest, error: Exception) -> bytes:
        status = refusal_of(error).status()
        answer = messages.AckMessageResponse(status=status)
        for entry in request.entries:
            answer.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
        return serialized(answer)

    # -- the others ----------------------------------------------------------------------------------------------------

    async def change_invisible_duration(
        self, session: ClientSession, request: messages.ChangeInvisibleDurationRequest
    ) -> messages.ChangeInvisibleDurationResponse:
        """Serves ChangeInvisibleDuration; the handle is renewed no longer.

        Raises:
            RefusedError: ``ILLEGAL_INVISIBLE_TIME``, ``INVALID_RECEIPT_HANDLE`` and others.
        """
        topic, group = request.topic.name, request.group.name
        check_topic(topic)
        check_group(group)
        invisible_ms = duration_ms(request.invisible_duration)
        if invisible_ms is None or invisible_ms > INVISIBLE_MS_MAX:
            raise RefusedError(
                messages.ILLEGAL_INVISIBLE_TIME,
                f"the invisible time must be from 0 to {INVISIBLE_MS_MAX} ms",
            )
        named = await self._named(group, request.receipt_handle, request.lite_topic)
        handle = self.newest(session, group, named)
        try:
            link = await self._brokers.link(session, handle.broker_name)
            header = _change_header(group, topic, handle, invisible_ms)
            header.suspend = request.suspend or None
            changed = await _change(link, link.api, header, handle)
        except BrokerError as error:
            refusal = refusal_of(error)
            answer = messages.ChangeInvisibleDurationResponse(status=refusal.status())
            if refusal.code == messages.TOO_MANY_REQUESTS:
                answer.receipt_handle = handle.encode()
            return answer
        return messages.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=changed.encode())

    async def forward(
        self, session: ClientSession, request: messages.ForwardMessageToDeadLetterQueueRequest
    ) -> messages.ForwardMessageToDeadLetterQueueResponse:
        """Serves ForwardMessageToDeadLetterQueue.

        Raises:
            RefusedError: ``INVALID_RECEIPT_HANDLE`` and others.
        """
        topic, group = request.topic.name, request.group.name
        check_topic(topic)
        check_group(group)
        # The broker would refuse only the second of two requests, the acknowledgement.
        self._access.check_subscribe(session.account, session.address, topic, group)
        named = await self._named(group, request.receipt_handle, request.lite_topic)
        handle = self.newest(session, group, named)
        link = await self._brokers.link(session, handle.broker_name)
        await self._give_up(link, link.api, topic, group, handle, request.message_id)
        return messages.ForwardMessageToDeadLetterQueueResponse(status=ok())

    # -- for others ----------------------------------------------------------------------------------------------------

    def newest(self, session: ClientSession, group: str, handle: ReceiptHandle) -> ReceiptHandle:
        """The handle by which the broker knows a message now; it is renewed no longer.

        Raises:
            RefusedError: ``INVALID_RECEIPT_HANDLE``: the message may have been given to another consumer.
        """
        handle = self.renewals.take(session, group, handle)
        if handle.is_expired(self._now_ms()):
            raise RefusedError(messages.INVALID_RECEIPT_HANDLE, "the receipt handle is expired")
        return handle

    async def _named(self, group: str, text: str, lite_topic: str) -> ReceiptHandle:
        """The handle that a client hands back. Handles of official proxies do not have their lite topic, so it is the
        one that the client names, unless its group is an ordinary one that reads the parent.

        Raises:
            RefusedError: ``INVALID_RECEIPT_HANDLE``: the text is no handle, or the name is that of no lite topic.
            RucolaError: nobody could be asked for the group.
        """
        handle = ReceiptHandle.decode(text)
        if not lite_topic or handle.lite_topic or not handle.is_ordered:
            return handle
        config = await self._brokers.group(group)
        return handle if config is None or lite_group(config) is None else handle.of_lite_topic(lite_topic)

    async def drop(self, session: ClientSession, topic: str, group: str, handle: ReceiptHandle) -> None:
        """Acknowledges a message that a broker has just given the door, and that no client gets.

        Raises:
            RucolaError: the broker has not done it.
        """
        link = await self._brokers.link(session, handle.broker_name)
        await link.own.ack(link.address, _ack_header(handle, topic, group), _TIMEOUT_MS)

    async def show(
        self, session: ClientSession, group: str, topic: str, handle: ReceiptHandle, suspend: bool = False
    ) -> None:
        """Makes a message visible soon, for others. The handle is one that a broker has given the door.

        Args:
            suspend: whether the whole batch of its lite topic becomes visible, and the delivery does not count.

        Raises:
            RucolaError: the broker has not done it.
        """
        link = await self._brokers.link(session, handle.broker_name)
        header = _change_header(group, topic, handle, VISIBLE_SOON_MS)
        header.suspend = suspend or None
        await _change(link, link.own, header, handle)

    async def change(
        self, session: ClientSession, group: str, topic: str, handle: ReceiptHandle, invisible_ms: int
    ) -> ReceiptHandle:
        """Hides a message for another time; returns its new handle.

        Raises:
            RucolaError: the broker has not done it.
        """
        link = await self._brokers.link(session, handle.broker_name)
        return await _change(link, link.api, _change_header(group, topic, handle, invisible_ms), handle)

    async def give_up(
        self, session: ClientSession, topic: str, group: str, handle: ReceiptHandle, message_id: str
    ) -> None:
        """Copies a message that a broker has just given the door to the dead letters of the group, then acknowledges
        it.

        Raises:
            RucolaError: the broker has not done it.
        """
        link = await self._brokers.link(session, handle.broker_name)
        await self._give_up(link, link.own, topic, group, handle, message_id)

    async def _give_up(
        self, link: DoorLink, api: ConsumerApi, topic: str, group: str, handle: ReceiptHandle, message_id: str
    ) -> None:
        if handle.physical_offset == NO_PHYSICAL_OFFSET:
            raise RefusedError(messages.INVALID_RECEIPT_HANDLE, "the receipt handle lacks the place of the message")
        header = ConsumerSendMsgBackRequestHeader(
            handle.physical_offset,
            group,
            _TO_DEAD_LETTERS,
            message_id,
            handle.real_topic(topic, group),
            max_reconsume_times=0,
        )
        await api.send_back(link.address, header, _TIMEOUT_MS)
        await api.ack(link.address, _ack_header(handle, topic, group), _TIMEOUT_MS)


class _AckWaiter(Waiter):
    """Answers the call that acknowledges one message."""

    __slots__ = ("_call", "_entry")

    def __init__(self, call: GrpcCall, entry: messages.AckMessageEntry) -> None:
        super().__init__()
        self._call, self._entry = call, entry

    def answered(self, batch: FrameBatch, row: int) -> None:
        """See ``Waiter``."""
        try:
            command = batch.command(row)
        except FormatError as error:
            self._refuse(error)
            return
        if command.code == ResponseCode.SUCCESS:
            entry = self._entry
            self._call.answer(wire.acknowledged(entry.message_id.encode(), entry.receipt_handle.encode()))
        else:
            self._refuse(BrokerError(command.code, command.remark))

    def failed(self, error: RemotingError) -> None:
        """See ``Waiter``."""
        self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        request = messages.AckMessageRequest(entries=[self._entry])
        self._call.answer(Acknowledgements._refused(request, error))


async def _change(
    link: DoorLink, api: ConsumerApi, header: ChangeInvisibleTimeRequestHeader, handle: ReceiptHandle
) -> ReceiptHandle:
    changed = await api.change_invisible_time(link.address, header, _TIMEOUT_MS)
    return handle._replace(
        start_offset=handle.queue_offset,
        pop_time_ms=changed.pop_time,
        invisible_ms=changed.invisible_time,
        revive_queue_id=changed.revive_qid,
    )


def _change_header(
    group: str, topic: str, handle: ReceiptHandle, invisible_ms: int
) -> ChangeInvisibleTimeRequestHeader:
    return ChangeInvisibleTimeRequestHeader(
        group,
        handle.real_topic(topic, group),
        handle.queue_id,
        handle.extra_info,
        handle.queue_offset,
        invisible_ms,
        handle.lite_topic or None,
    )


def ack_command(handle: ReceiptHandle, topic: str, group: str) -> RemotingCommand:
    """The request by which a broker acknowledges a message."""
    return RemotingCommand(RequestCode.ACK_MESSAGE, ext_fields=_ack_header(handle, topic, group).to_ext_fields())


def _ack_header(handle: ReceiptHandle, topic: str, group: str) -> AckMessageRequestHeader:
    return AckMessageRequestHeader(
        group,
        handle.real_topic(topic, group),
        handle.queue_id,
        handle.extra_info,
        handle.queue_offset,
        handle.lite_topic or None,
    )
