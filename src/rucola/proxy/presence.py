"""Clients register at the brokers, say that they live, and leave.

There are no producer groups in this protocol: a producer registers for each of its topics, under the name of the topic.
It is registered as long as it has a telemetry stream, because brokers ask it about transactions, and give a message up
when they have asked too often.

Source: RocketMQ 5.3.3, ``ClientActivity``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rucola.client.message_selector import MessageSelector
from rucola.client.subscription import subscription_data
from rucola.errors import ClientError, RucolaError
from rucola.protocol.bodies.heartbeat import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from rucola.proxy import messages
from rucola.proxy.access import DoorAccess
from rucola.proxy.brokers import Brokers, DoorLink
from rucola.proxy.lite_subscriptions import DoorSubscriptions
from rucola.proxy.names import check_group
from rucola.proxy.refusal import RefusedError
from rucola.proxy.rpc import ok
from rucola.proxy.sessions import ClientSession, Sessions

_CONSUME_TYPES = {
    messages.PUSH_CONSUMER: ConsumeType.CONSUME_PASSIVELY,
    messages.SIMPLE_CONSUMER: ConsumeType.CONSUME_ACTIVELY,
    messages.LITE_PUSH_CONSUMER: ConsumeType.CONSUME_PASSIVELY,
    messages.LITE_SIMPLE_CONSUMER: ConsumeType.CONSUME_ACTIVELY,
}
_TIMEOUT_MS = 3_000


class Presence:
    """Registers clients. Event loop only.

    Args:
        brokers: where they register.
        access: says what an account may do.
        sessions: the clients.
        lite: has the subscriptions to lite topics.
        now_ms: the wall clock, for versions of subscriptions.
    """

    def __init__(
        self,
        brokers: Brokers,
        access: DoorAccess,
        sessions: Sessions,
        lite: DoorSubscriptions,
        now_ms: Callable[[], int],
    ) -> None:
        self._brokers, self._access, self._sessions, self._now_ms = brokers, access, sessions, now_ms
        self._lite = lite

    async def heartbeat(self, session: ClientSession, request: messages.HeartbeatRequest) -> messages.HeartbeatResponse:
        """Serves Heartbeat: the client registers again, with the settings that it has sent before.

        Raises:
            RefusedError: ``UNRECOGNIZED_CLIENT_TYPE``: its settings are not known, so the client sends them again; or
                it is of a kind that this server does not have. ``FORBIDDEN``: it has no right any more.
        """
        settings = _known(session)
        if not settings.HasField("publishing"):
            check_group(request.group.name)
        self.check_rights(session, settings)
        assert session.heartbeat is not None, "known settings have one"
        if session.stream is not None or not settings.HasField("publishing"):
            await self.register(session, settings, session.heartbeat)
        return messages.HeartbeatResponse(status=ok())

    async def terminate(
        self, session: ClientSession, request: messages.NotifyClientTerminationRequest
    ) -> messages.NotifyClientTerminationResponse:
        """Serves NotifyClientTermination: forgets the client.

        Raises:
            RefusedError: ``UNRECOGNIZED_CLIENT_TYPE``, as in ``heartbeat``.
        """
        try:
            settings = _known(session)
            if not settings.HasField("publishing"):
                check_group(request.group.name)
        finally:
            self._sessions.forget(session, has_said=True)
        return messages.NotifyClientTerminationResponse(status=ok())

    def check_rights(self, session: ClientSession, settings: messages.Settings) -> None:
        """Checks whether a client may use the topics and the group of its settings.

        Raises:
            RefusedError: ``FORBIDDEN``: it may not.
        """
        account, address = session.account, session.address
        if settings.HasField("publishing"):
            for topic in settings.publishing.topics:
                self._access.check_publish(account, address, topic.name)
        else:
            self._access.check_subscribe(account, address, "", settings.subscription.group.name)
            for entry in settings.subscription.subscriptions:
                self._access.check_subscribe(account, address, entry.topic.name, "")

    async def register(self, session: ClientSession, settings: messages.Settings, data: HeartbeatData) -> None:
        """Registers a client, whose rights are checked, at all brokers of its topics. One that cannot be reached does
        not keep the others from knowing it.

        Args:
            data: what ``heartbeat_of`` has returned for the settings; a broker does little for one that it knows.

        Raises:
            RucolaError: no broker has taken it.
        """
        names = await self._brokers.broker_names(_topics(settings))
        results = await asyncio.gather(*(self._tell(session, name, data) for name in names), return_exceptions=True)
        if session.stream is None and settings.HasField("publishing"):  # it was lost meanwhile
            await self.leave(session)
        errors = [result for result in results if isinstance(result, BaseException)]
        for error in errors:
            if not isinstance(error, RucolaError) or len(errors) == len(results):
                raise error

    async def leave(self, session: ClientSession) -> None:
        """Has brokers forget a client that has lost its stream. A consumer that is still here registers again with its
        next heartbeat; one that has moved to another door registers there.
        """
        settings = session.settings
        if session.stream is not None:
            return
        await self._lite.leave(session)
        if settings is None:
            return
        if settings.HasField("publishing"):
            groups: list[tuple[str | None, str | None]] = [(topic, None) for topic in _topics(settings)]
        else:
            groups = [(None, settings.subscription.group.name)]
        leaves = (self._leave(session, link, groups) for link in session.links.values())
        for result in await asyncio.gather(*leaves, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, RucolaError):
                raise result

    @staticmethod
    async def _leave(session: ClientSession, link: DoorLink, groups: list[tuple[str | None, str | None]]) -> None:
        """Leaves one group after another: a client may have named a thousand topics."""
        for producer, consumer in groups:
            if session.stream is not None:  # it has a new one, and is registered again
                return
            await link.api.unregister_client(link.address, session.client_id, producer, consumer, _TIMEOUT_MS)

    async def _tell(self, session: ClientSession, broker_name: str, data: HeartbeatData) -> None:
        link = await self._brokers.link(session, broker_name)
        await link.own.heartbeat(link.address, data, _TIMEOUT_MS)

    def heartbeat_of(self, session: ClientSession, settings: messages.Settings) -> HeartbeatData:
        """The heartbeat of a client, for brokers.

        Raises:
            RefusedError: the client is of a kind that this server does not have, or its filter is wrong.
        """
        data = HeartbeatData(session.client_id)
        if settings.HasField("publishing"):
            data.producer_data_set = [ProducerData(topic.name) for topic in settings.publishing.topics]
        else:
            consume_type = _CONSUME_TYPES.get(settings.client_type)
            if consume_type is None:
                raise _unknown_type(settings)
            consumer = ConsumerData(settings.subscription.group.name, consume_type)
            consumer.subscription_data_set = [
                subscription_of(entry.topic.name, entry.expression, self._now_ms())
                for entry in settings.subscription.subscriptions
            ]
            data.consumer_data_set = [consumer]
        return data


def subscription_of(topic: str, expression: messages.FilterExpression, version: int) -> SubscriptionData:
    """The subscription for a filter; one without a text takes all messages.

    Raises:
        RefusedError: ``ILLEGAL_FILTER_EXPRESSION``.
    """
    text = expression.expression or "*"
    try:
        if expression.type == messages.SQL:
            return subscription_data(topic, MessageSelector.by_sql(text), version)
        return subscription_data(topic, text, version)
    except ClientError as error:
        raise RefusedError(messages.ILLEGAL_FILTER_EXPRESSION, str(error)) from None


def _topics(settings: messages.Settings) -> list[str]:
    if settings.HasField("publishing"):
        return [topic.name for topic in settings.publishing.topics]
    return [entry.topic.name for entry in settings.subscription.subscriptions]


def _known(session: ClientSession) -> messages.Settings:
    settings = session.settings
    if settings is None:
        raise RefusedError(
            messages.UNRECOGNIZED_CLIENT_TYPE, f"the settings of client {session.client_id} are not known"
        )
    if not settings.HasField("publishing") and settings.client_type not in _CONSUME_TYPES:
        raise _unknown_type(settings)
    return settings


def _unknown_type(settings: messages.Settings) -> RefusedError:
    return RefusedError(
        messages.UNRECOGNIZED_CLIENT_TYPE,
        f"client type {settings.client_type} is not supported; allowed are producers, and push and simple consumers of "
        "topics and of lite topics",
    )
