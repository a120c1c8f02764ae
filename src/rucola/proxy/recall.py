"""Recalls delayed messages.

Source: RocketMQ 5.3.3, ``RecallMessageActivity``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rucola.common.recall_handle import RecallHandle
from rucola.errors import FormatError
from rucola.protocol.headers.recall import RecallMessageRequestHeader
from rucola.proxy import messages
from rucola.proxy.message_kind import MessageKind, check_kind
from rucola.proxy.names import check_topic
from rucola.proxy.refusal import RefusedError
from rucola.proxy.rpc import ok

if TYPE_CHECKING:
    from rucola.proxy.access import DoorAccess
    from rucola.proxy.brokers import Brokers
    from rucola.proxy.sessions import ClientSession

_TIMEOUT_MS = 3_000


class Recalls:
    """Answers RecallMessage. Event loop only.

    Args:
        brokers: have the messages.
        access: says what an account may do.
    """

    def __init__(self, brokers: Brokers, access: DoorAccess) -> None:
        self._brokers, self._access = brokers, access

    async def recall(
        self, session: ClientSession, request: messages.RecallMessageRequest
    ) -> messages.RecallMessageResponse:
        """Serves RecallMessage: the message is not delivered, if it still waits for its time.

        Raises:
            RefusedError: the topic has no delayed messages, or the handle is not one of its messages.
            BrokerError: recalls are switched off, or the time of the message has passed.
        """
        topic = request.topic.name
        check_topic(topic)
        self._access.check_publish(session.account, session.address, topic)
        view = await self._brokers.topic(topic)
        if view is None:
            raise RefusedError(messages.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
        check_kind(topic, MessageKind.DELAY, view.attributes)
        try:
            handle = RecallHandle.decode(request.recall_handle)
        except FormatError:
            raise RefusedError(messages.INTERNAL_SERVER_ERROR, "the recall handle is invalid") from None
        if handle.topic != topic:
            raise RefusedError(messages.INTERNAL_SERVER_ERROR, "the recall handle is of another topic")
        link = await self._brokers.link(session, handle.broker_name)
        header = RecallMessageRequestHeader(topic, request.recall_handle, topic)
        unique_key = await link.api.recall_message(link.address, header, _TIMEOUT_MS)
        return messages.RecallMessageResponse(status=ok(), message_id=unique_key)
