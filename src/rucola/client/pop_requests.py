"""The requests of one group about popped messages: pop, acknowledge, and change the invisible time."""

from __future__ import annotations

from rucola.client.instance import ClientInstance
from rucola.client.pop_receipt import PopReceipt
from rucola.protocol.headers.pop import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader
from rucola.remoting.consumer_api import ConsumerApi
from rucola.remoting.name_server_api import TIMEOUT_MS


class PopRequests:
    """Sends the requests to the masters of the brokers that the receipt handles name.

    Args:
        instance: the client; knows the addresses.
        api: sends the requests.
        group: the consumer group.
    """

    def __init__(self, instance: ClientInstance, api: ConsumerApi, group: str) -> None:
        self._routes, self._api, self._group = instance.routes, api, group

    async def ack(self, topic: str, receipt: PopReceipt) -> None:
        """Acknowledges a message of ``topic``.

        Raises:
            BrokerError, RemotingError, ClientError: the acknowledgement failed; after a ``RemotingError``, the broker
                may have carried it out.
        """
        header = AckMessageRequestHeader(
            self._group,
            receipt.real_topic(topic, self._group),
            receipt.queue_id,
            receipt.text,
            receipt.queue_offset,
        )
        if not self._routes.has_master(receipt.broker_name):
            await self._routes.route(topic)  # another consumer has received the message
        await self._api.ack(self._routes.master(receipt.broker_name), header)

    async def hide(
        self, topic: str, receipt: PopReceipt, invisible_ms: int, timeout_ms: int = TIMEOUT_MS
    ) -> PopReceipt:
        """Sets the invisible time of a message of ``topic``, counted from now; returns the new receipt handle.

        Raises:
            BrokerError, RemotingError, ClientError: the request failed; after a ``RemotingError``, the broker may have
                changed the invisible time.
        """
        header = ChangeInvisibleTimeRequestHeader(
            self._group,
            receipt.real_topic(topic, self._group),
            receipt.queue_id,
            receipt.text,
            receipt.queue_offset,
            invisible_ms,
        )
        if not self._routes.has_master(receipt.broker_name):
            await self._routes.route(topic)  # another consumer has received the message
        address = self._routes.master(receipt.broker_name)
        return receipt.changed(await self._api.change_invisible_time(address, header, timeout_ms))
