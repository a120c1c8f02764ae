"""Heartbeats and unregistrations of clients (RocketMQ 5.3.3, ``ClientManageProcessor``; requests 34, 35, 46)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from rucola.broker.client.client_channel import LAST_HEARTBEAT, ClientChannel
from rucola.broker.client.consumer_manager import CONSUME_ACTIVELY, ConsumerGroup
from rucola.broker.filter.consumer_filter_manager import SQL92
from rucola.broker.processor.responses import success
from rucola.broker.pull.admission import check_expression_type
from rucola.broker.registration import answer_when_told
from rucola.broker.services import BrokerServices
from rucola.common.key_builder import retry_topic
from rucola.errors import BrokerError, FormatError
from rucola.filter.tag import parse_tag_expression
from rucola.protocol.bodies.heartbeat import CheckClientRequestBody, ConsumerData, HeartbeatData, SubscriptionData
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.client import HeartbeatResponseHeader, UnregisterClientRequestHeader
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel

TAG = "TAG"
_WAITING = "heartbeat-waiting"
"""Key of the attribute of a connection with the future of its newest heartbeat or unregistration that waits."""
CLIENT_ID_CHARACTERS_MAX, PRODUCER_GROUP_CHARACTERS_MAX = 1024, 255
"""What a connection's names may cost: registrations are counted, their bytes are not. Groups of consumers have shorter
names (``GROUP_CHARACTERS_MAX``).
"""
_DIGEST_BYTES = 32
_ANSWER = HeartbeatResponseHeader(is_support_heart_beat_v2=True, is_sub_change=True)


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    """The last heartbeat of a connection, and the result of processing it."""

    body: bytes
    """Digest of the body."""
    account: str
    clients: list[ClientChannel]
    groups: list[tuple[ConsumerGroup, int, str]]
    """For each group that the heartbeat named: the group, its ``changes`` after the heartbeat, and its retry topic; the
    topic is empty if the group has none.
    """


class ClientManageProcessor:
    """Registers producers and consumers.

    A client sends a heartbeat with the same body every 30 s. A digest of the last body of each connection is kept; the
    body itself may be long. If the next body equals it, only the times of the clients' last heartbeats are renewed. An
    equal body is processed again only if another client has changed one of the groups, a retry topic was deleted, or
    ``rejectPullConsumerEnable`` is set.
    """

    def __init__(self, services: BrokerServices) -> None:
        self._config = services.config
        self._topics = services.topics
        self._groups = services.groups
        self._registrations = services.registrations
        self._account_of = services.senders.account_of
        self._producers = services.producers
        self._consumers = services.consumers
        self._filters = services.filters
        self._expressions = services.expressions
        self._senders = services.senders
        self._pops = services.pops
        self._monotonic = services.clock.monotonic

    def heartbeat(self, channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 34: a heartbeat. The response waits until the name servers know the retry topics created by the
        request.

        The client is registered before that wait; if its connection closes during the wait, the close removes the
        client again. If the connection closed earlier, for example while a thread read a long body, the client is not
        registered, because nothing would remove it.

        A heartbeat with long new expressions waits until they are compiled. Later heartbeats and unregistrations of its
        connection wait for it, so that the newest one counts.

        Raises:
            BrokerError: a name is too long, another account uses the client id in a group, or there are too many
                registrations.
        """
        if channel.closed:
            return None
        if channel.attributes.get(_WAITING) is not None:
            return self._when_compiled(channel, command, HeartbeatData.decode(command.body))
        now = self._monotonic()
        last: _Heartbeat | None = channel.attributes.get(LAST_HEARTBEAT)
        account = self._account_of(command)
        if last is not None and last.body == _digest(command.body) and last.account == account and self._stands(last):
            for client in last.clients:
                client.last_update_s = now
            return success(command, _ANSWER)
        data = HeartbeatData.decode(command.body)
        if self._expressions.must_wait(_expressions(data)):
            return self._when_compiled(channel, command, data)
        return self._register(channel, command, data, account, now)

    def _when_compiled(self, channel: Channel, command: RemotingCommand, data: HeartbeatData) -> Awaitable[Answer]:
        """Processes a heartbeat after the earlier requests of its connection, when its expressions are compiled."""
        before, done = _queue_up(channel)
        try:
            compiled = self._expressions.compiled(channel, _expressions(data), before)
        except BrokerError:
            _leave(channel, done)
            raise

        async def process() -> Answer:
            try:
                async with compiled:
                    if channel.closed:
                        return None
                    account = self._account_of(command)
                    self._check_members(channel, data, account)
                    answer = self._register(channel, command, data, account, self._monotonic())
            finally:
                _leave(channel, done)
            return answer if answer is None or isinstance(answer, RemotingCommand) else await answer

        return process()

    def _check_members(self, channel: Channel, data: HeartbeatData, account: str) -> None:
        """Checks whether the account, whose rights may have ended during the wait, may still be in the groups."""
        client = ClientChannel(channel, data.client_id, "", 0, 0.0, account)
        for consumer in data.consumer_data_set:
            if not self._senders.is_member(client, consumer.group_name):
                raise BrokerError(ResponseCode.NO_PERMISSION, "access denied: no permission any more")

    def _register(
        self, channel: Channel, command: RemotingCommand, data: HeartbeatData, account: str, now: float
    ) -> Answer | Awaitable[Answer]:
        """Registers the client of a heartbeat."""
        channel.attributes.pop(LAST_HEARTBEAT, None)
        _check_lengths(data)
        members = {consumer.group_name: consumer for consumer in data.consumer_data_set}  # each group once
        for name in members:
            self._registrations.check(name, data.client_id, account)
        clients: list[ClientChannel] = []
        groups: list[tuple[ConsumerGroup, int, str]] = []
        registrations: list[asyncio.Future[None] | None] = []

        def new_client() -> ClientChannel:
            language = command.language.name
            clients.append(ClientChannel(channel, data.client_id, language, command.version, now, account))
            return clients[-1]

        if data.producer_data_set:
            producer = new_client()
            for group in data.producer_data_set:
                self._producers.register(group.group_name, producer)
        is_whole = True
        for consumer in members.values():
            retry = self._prepare_group(consumer)
            if retry is None:  # the group may exist when the same heartbeat comes again
                is_whole = False
                continue
            registrations.append(self._topics.registering(retry))
            self._consumers.register(
                new_client(),
                consumer.group_name,
                consumer.consume_type.name,
                consumer.message_model.name,
                consumer.consume_from_where.name,
                None if data.without_sub else consumer.subscription_data_set,
            )
            if not data.without_sub:
                self._filters.register(consumer.group_name, consumer.subscription_data_set)
                self._pops.subscribed(channel, consumer.group_name, consumer.subscription_data_set)
            info = self._consumers.group(consumer.group_name)
            if info is not None:
                groups.append((info, info.changes, retry))
        if is_whole:
            channel.attributes[LAST_HEARTBEAT] = _Heartbeat(_digest(command.body), account, clients, groups)
        return answer_when_told(success(command, _ANSWER), registrations)

    def unregister(self, channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 35: a client unregisters."""
        if channel.attributes.get(_WAITING) is None:
            return self._unregister(channel, command)
        return self._unregister_later(channel, command, *_queue_up(channel))

    async def _unregister_later(
        self,
        channel: Channel,
        command: RemotingCommand,
        before: asyncio.Future[None] | None,
        done: asyncio.Future[None],
    ) -> RemotingCommand:
        try:
            if before is not None:
                await asyncio.wait([before])
            return self._unregister(channel, command)
        finally:
            _leave(channel, done)

    def _unregister(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        header = UnregisterClientRequestHeader.from_ext_fields(command.ext_fields)
        channel.attributes.pop(LAST_HEARTBEAT, None)
        if header.producer_group:
            self._producers.unregister(header.producer_group, channel)
        if header.consumer_group:
            self._consumers.unregister(header.consumer_group, channel)
        return success(command)

    def check_client_config(self, channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 46: whether a consumer may subscribe with this expression."""
        subscription = CheckClientRequestBody.decode(command.body).subscription_data
        if subscription.expression_type == SQL92 and self._expressions.must_wait([subscription.sub_string]):
            return self._check_when(
                self._expressions.compiled(channel, [subscription.sub_string]), command, subscription
            )
        return self._check(command, subscription)

    async def _check_when(
        self, compiled: AbstractAsyncContextManager[None], command: RemotingCommand, subscription: SubscriptionData
    ) -> RemotingCommand:
        async with compiled:
            return self._check(command, subscription)

    def _check(self, command: RemotingCommand, subscription: SubscriptionData) -> RemotingCommand:
        try:
            if subscription.expression_type == TAG:
                parse_tag_expression(subscription.sub_string)
            else:
                if self._config.enable_property_filter and subscription.expression_type != SQL92:
                    refusal = f"nothing filters by {subscription.expression_type}"
                    raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, refusal)
                check_expression_type(self._config, subscription.expression_type)
                self._expressions.compile(subscription.sub_string)
        except FormatError as error:
            raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
        return success(command)

    def _stands(self, last: _Heartbeat) -> bool:
        return not self._config.reject_pull_consumer_enable and all(
            group.changes == changes and (not retry or self._topics.get(retry) is not None)
            for group, changes, retry in last.groups
        )

    def _prepare_group(self, consumer: ConsumerData) -> str | None:
        """Creates the configuration and the retry topic of a consumer's group, if they do not exist.

        Returns:
            The retry topic, empty for a group without one; None if the group does not exist and must not be created, or
            if ``rejectPullConsumerEnable`` excludes the consumer.
        """
        if self._config.reject_pull_consumer_enable and consumer.consume_type.name == CONSUME_ACTIVELY:
            return None
        group = self._groups.find(consumer.group_name)
        if group is None:
            return None
        if group.retry_queue_nums <= 0:
            return ""
        topic, _ = self._topics.create_for_group(retry_topic(consumer.group_name), group.retry_queue_nums)
        return topic.topic_name


def _expressions(data: HeartbeatData) -> Iterable[str]:
    """The SQL92 expressions of a heartbeat."""
    if not data.without_sub:
        for consumer in data.consumer_data_set:
            for subscription in consumer.subscription_data_set:
                if subscription.expression_type == SQL92:
                    yield subscription.sub_string


def _queue_up(channel: Channel) -> tuple[asyncio.Future[None] | None, asyncio.Future[None]]:
    """Lets later heartbeats and unregistrations of a connection wait for this one.

    Returns:
        The future of the request before this one, None if none waits, and that of this one; see ``_leave``.
    """
    before, done = channel.attributes.get(_WAITING), asyncio.get_running_loop().create_future()
    channel.attributes[_WAITING] = done
    return before, done


def _leave(channel: Channel, done: asyncio.Future[None]) -> None:
    done.set_result(None)
    if channel.attributes.get(_WAITING) is done:
        del channel.attributes[_WAITING]


def _digest(body: bytes | bytearray | memoryview) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


def _check_lengths(data: HeartbeatData) -> None:
    longest = max((len(group.group_name) for group in data.producer_data_set), default=0)
    for what, length, allowed in (
        ("client id", len(data.client_id), CLIENT_ID_CHARACTERS_MAX),
        ("producer group", longest, PRODUCER_GROUP_CHARACTERS_MAX),
    ):
        if length > allowed:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"a {what} of {length} characters, more than {allowed} are not allowed"
            )
