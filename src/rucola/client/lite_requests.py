"""The requests of one consumer about lite topics: subscriptions, pops, acknowledgements and invisible times."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from rucola.client.instance import ClientInstance
from rucola.client.lite_process_queue import LiteProcessQueue, LiteReceipt
from rucola.client.received import PullOrigin, ReceivedMessage
from rucola.common.lite_topics import lite_queue_topic
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.numbers import INT32_MAX, INT64_MAX, number_in
from rucola.errors import BrokerError, ClientError
from rucola.protocol.bodies.lite import (
    LiteSubscriptionAction,
    LiteSubscriptionDTO,
    OffsetOption,
)
from rucola.protocol.codes import ResponseCode
from rucola.protocol.headers.lite import PopLiteMessageRequestHeader, PopLiteMessageResponseHeader
from rucola.protocol.headers.pop import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader
from rucola.remoting.consumer_api import ConsumerApi
from rucola.remoting.name_server_api import TIMEOUT_MS

_MARGIN_MS = 5_000
"""How long after the broker's waiting time a response may arrive, in ms."""
Entry = tuple[Collection[str], OffsetOption | None]
"""Lite topics, and where the group continues to read them."""


class LiteRequests:
    """Sends the requests to the masters of brokers.

    Args:
        instance: the client; knows the addresses.
        api: sends the requests.
        group: the consumer group.
        parent: the parent topic.
    """

    def __init__(self, instance: ClientInstance, api: ConsumerApi, group: str, parent: str) -> None:
        self._instance, self._api = instance, api
        self.group, self.parent = group, parent

    @property
    def client_id(self) -> str:
        """The id by which brokers know the subscriptions."""
        return self._instance.client_id

    async def change(self, broker_name: str, action: LiteSubscriptionAction, *entries: Entry) -> None:
        """Changes the client's subscription at one broker.

        Raises:
            BrokerError, RemotingError, ClientError: the request failed.
        """
        changes = [
            LiteSubscriptionDTO(action, self.client_id, self.group, self.parent, frozenset(names), option)
            for names, option in entries
        ]
        address = self._instance.routes.master(broker_name)
        with self._explained(broker_name):
            await self._api.change_lite_subscriptions(address, changes)

    async def has_offset(self, broker_name: str, lite_topic: str) -> bool:
        """Whether the group has a consumer offset for a lite topic at a broker; True if the broker does not tell.

        Raises:
            RemotingError, ClientError: the request failed.
        """
        queue = MessageQueue(lite_queue_topic(self.parent, lite_topic), broker_name, 0)
        address = self._instance.routes.master(broker_name)
        try:
            return await self._api.query_consumer_offset(address, self.group, queue, False) is not None
        except BrokerError:
            return True

    async def pop(
        self, broker_name: str, count: int, invisible_ms: int, poll_ms: int, attempt_id: str
    ) -> tuple[LiteReceipt, list[MessageExt]]:
        """Pops messages of any lite topics to which the client has subscribed; none if none came in time.

        Raises:
            BrokerError, RemotingError, ClientError, FormatError: the request failed.
        """
        header = PopLiteMessageRequestHeader(
            self.client_id, self.group, self.parent, count, invisible_ms, poll_ms, 0, attempt_id
        )
        address = self._instance.routes.master(broker_name)
        with self._explained(broker_name):
            found, records = await self._api.pop_lite(address, header, poll_ms + _MARGIN_MS)
        messages: list[MessageExt] = []
        if records:
            messages = ReceivedMessage.of_records(records, PullOrigin(broker_name, 0, 0, self.group))
            set_attempts(messages, found)
        return LiteReceipt(found.pop_time, found.invisible_time, found.revive_qid), messages

    async def ack(self, queue: LiteProcessQueue, lite_offset: int) -> None:
        """Acknowledges a message.

        Raises:
            BrokerError, RemotingError, ClientError: the request failed.
        """
        text = queue.receipt.text(queue.broker_name, lite_offset)
        header = AckMessageRequestHeader(self.group, self.parent, 0, text, lite_offset, queue.lite_topic)
        await self._api.ack(self._instance.routes.master(queue.broker_name), header)

    async def hide(
        self,
        queue: LiteProcessQueue,
        lite_offset: int,
        invisible_ms: int,
        *,
        suspend: bool,
        timeout_ms: int = TIMEOUT_MS,
    ) -> LiteReceipt:
        """Sets the invisible time of a message or, with ``suspend``, of the whole batch, counted from now; returns the
        new lease.

        Raises:
            BrokerError, RemotingError, ClientError: the request failed.
        """
        receipt = queue.receipt
        text = receipt.text(queue.broker_name, lite_offset)
        header = ChangeInvisibleTimeRequestHeader(
            self.group, self.parent, 0, text, lite_offset, invisible_ms, queue.lite_topic, suspend
        )
        address = self._instance.routes.master(queue.broker_name)
        answer = await self._api.change_invisible_time(address, header, timeout_ms)
        # The pop time stays: by it the broker knows the batch.
        return LiteReceipt(receipt.pop_time, answer.invisible_time or invisible_ms, receipt.revive_qid)

    @contextmanager
    def _explained(self, broker_name: str) -> Iterator[None]:
        """Says what is missing if a broker has no lite topics."""
        try:
            yield
        except BrokerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise ClientError(
                f"broker {broker_name} ({error.address}) has no lite topics: RocketMQ 5.5 and newer have them"
            ) from error


def set_attempts(messages: Sequence[MessageExt], header: PopLiteMessageResponseHeader) -> None:
    """Sets ``reconsume_times`` of popped messages.

    The header counts earlier deliveries: a number, or ``0 qo0%OFFSET NUMBER``, for each message. In a lite topic with
    old and new messages, RocketMQ 5.5.0 leaves out the new ones; so an entry with an offset belongs to the next message
    that has this offset.
    """
    position = 0
    for entry in (header.order_count_info or "").split(";"):
        place, _, text = entry.rpartition(" ")
        count = number_in(text, 0, INT32_MAX)
        if count is None:
            continue
        if place:
            offset = number_in(place.rpartition("%")[2], 0, INT64_MAX)
            while position < len(messages) and messages[position].lite_offset != offset:
                position += 1
        if position < len(messages):
            messages[position].reconsume_times = count
        position += 1
