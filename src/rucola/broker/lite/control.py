"""Serves requests about subscriptions to lite topics (RocketMQ 5.5.0, ``LiteSubscriptionCtlProcessor``,
``LiteManagerProcessor``; requests 200071 and 200079).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rucola.broker.lite.attributes import LiteGroup, lite_group
from rucola.broker.lite.checks import CLIENT_ID_MAX, check_parent, name_of, reading_settings
from rucola.broker.lite.event_dispatcher import LiteEventDispatcher
from rucola.broker.lite.progress import LiteProgress
from rucola.broker.lite.reading_group import ReadingGroup, ReadingGroups
from rucola.broker.lite.subscriptions import LiteSubscriptions, Start, StartAt
from rucola.broker.refusals import FAQ
from rucola.broker.services import BrokerServices
from rucola.broker.topic_queues import TopicQueues
from rucola.common.java import is_blank
from rucola.common.lite_topics import LITE_ENTRIES_MAX, lite_shard
from rucola.errors import BrokerError
from rucola.protocol import fastjson
from rucola.protocol.bodies.lite import (
    LiteSubscriptionAction,
    LiteSubscriptionCtlRequestBody,
    LiteSubscriptionDTO,
    OffsetOption,
    OffsetOptionType,
)
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.lite import TriggerLiteDispatchRequestHeader
from rucola.remoting.fairness.steps import Steps, in_turns
from rucola.remoting.server import Channel

_ADDS = (LiteSubscriptionAction.PARTIAL_ADD, LiteSubscriptionAction.COMPLETE_ADD)
_NAMES_A_STEP = 64
_POLICIES = (StartAt.LAST, StartAt.MIN, StartAt.MAX)


class LiteControlProcessor:
    """Serves requests 200071 and 200079. Event loop only.

    The changes of one client take effect in the order in which they arrive, although each may take several turns.

    Args:
        queues: the write queues of topics on all brokers.
        group_of: returns a reading group by its name and parent; makes it if it is not known.
        monotonic_ms: the time of subscriptions.
        settle: called after each step.
    """

    def __init__(
        self,
        services: BrokerServices,
        groups: ReadingGroups,
        subscriptions: LiteSubscriptions,
        dispatcher: LiteEventDispatcher,
        progress: LiteProgress,
        queues: TopicQueues,
        group_of: Callable[[str, str], ReadingGroup],
        monotonic_ms: Callable[[], int],
        settle: Callable[[], None],
    ) -> None:
        self._services = services
        self._groups = groups
        self._subscriptions = subscriptions
        self._dispatcher = dispatcher
        self._progress = progress
        self._queues = queues
        self._group_of = group_of
        self._monotonic_ms = monotonic_ms
        self._settle = settle
        self._changing: dict[tuple[str, str], asyncio.Future[None]] = {}
        """The last change under way of each client."""

    async def subscribe(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 200071: changes subscriptions. The first entry that fails ends the request."""
        if not command.body:
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, "Request body is null.")
        entries = _entries(command.body)
        account = self._services.senders.account_on(channel)
        for number, entry in enumerate(entries):
            if number:  # each entry may fill a turn
                await asyncio.sleep(0)
            if is_blank(entry.client_id) or is_blank(entry.group) or is_blank(entry.topic):
                continue
            if len(entry.client_id) > CLIENT_ID_MAX:
                raise BrokerError(ResponseCode.INVALID_PARAMETER, f"a client id has 1 to {CLIENT_ID_MAX} characters")
            if entry.action in _ADDS:
                self._check(entry)
            await self._change(channel, entry, account)
        return command.answer(ResponseCode.SUCCESS)

    def _check(self, entry: LiteSubscriptionDTO) -> LiteGroup:
        """Refuses entries that add what the group may not read."""
        config = self._services.groups.table.get(entry.group)
        if config is not None and not config.consume_enable:
            raise BrokerError(
                ResponseCode.ILLEGAL_OPERATION, f"Consumer group is not allowed to consume, {entry.group}"
            )
        check_parent(self._services, entry.topic)
        settings = reading_settings(self._services, entry.group, entry.topic)
        if settings.wildcard and entry.action is LiteSubscriptionAction.PARTIAL_ADD:
            raise BrokerError(ResponseCode.ILLEGAL_OPERATION, f"the group reads all lite topics, {entry.group}")
        return settings

    async def _change(self, channel: Channel, entry: LiteSubscriptionDTO, account: str) -> None:
        """Makes one change, after those of the same client that are under way."""
        key = entry.group, entry.client_id
        before, done = self._changing.get(key), asyncio.get_running_loop().create_future()
        self._changing[key] = done
        try:
            if before is not None:
                await asyncio.shield(before)
            await self._change_now(channel, entry, account)
        finally:
            done.set_result(None)
            if self._changing.get(key) is done:
                del self._changing[key]
            self._settle()

    async def _change_now(self, channel: Channel, entry: LiteSubscriptionDTO, account: str) -> None:
        subscriptions, now_ms = self._subscriptions, self._monotonic_ms()
        if entry.action not in _ADDS:
            known = self._groups.get(entry.group)
            client = None if known is None else known.clients.get(entry.client_id)
            if client is None or client.group.settings.bind_topic != entry.topic:
                return
            subscriptions.client(client.group, entry.client_id, account, now_ms)  # refuses another account
            if entry.action is LiteSubscriptionAction.COMPLETE_REMOVE:
                await in_turns(subscriptions.complete_remove(client, now_ms))
            else:
                names = await in_turns(self._names(entry, None))
                await in_turns(subscriptions.partial_remove(client, names, now_ms))
            return
        settings = self._check(entry)
        shards = None if settings.wildcard else await self._shards(entry.topic)
        group = self._group_of(entry.group, entry.topic)
        client = subscriptions.client(group, entry.client_id, account, now_ms)
        client.bind(channel)
        if settings.wildcard:
            subscriptions.join(client, now_ms)
            return
        names = await in_turns(self._names(entry, shards))
        if entry.action is LiteSubscriptionAction.PARTIAL_ADD:
            await in_turns(subscriptions.partial_add(client, names, _start(entry.offset_option), now_ms))
        else:
            await in_turns(subscriptions.complete_add(client, names, now_ms))

    def _names(self, entry: LiteSubscriptionDTO, shards: list[str] | None) -> Steps[list[bytes]]:
        """Returns the names of an entry that are active here: this broker owns them, or has messages of them.

        Args:
            shards: the broker of each write queue of the parent; None if all are active.
        """
        own, names = self._services.config.broker_name, []
        for number, lite in enumerate(entry.lite_topic_set or (), 1):
            name = name_of(entry.topic, lite)
            is_own = shards is None or shards[lite_shard(lite, len(shards))] == own
            if name is not None and (is_own or self._progress.exists(name)):
                names.append(name)
            if number % _NAMES_A_STEP == 0:
                yield
        return names

    async def _shards(self, parent: str) -> list[str] | None:
        """Returns the broker of each write queue of a parent; None if this broker has them all, or no route is known
        that names it.
        """
        known = self._queues.known(parent)
        queues = (await self._queues.find(parent) if known is None else known.queues) or ()
        brokers = [queue.broker_name for queue in queues]
        own = self._services.config.broker_name
        return brokers if own in brokers and len(set(brokers)) > 1 else None

    async def owns(self, parent: str, lite_topic: str) -> bool:
        """Whether a lite topic shards to this broker."""
        shards = await self._shards(parent)
        return shards is None or shards[lite_shard(lite_topic, len(shards))] == self._services.config.broker_name

    async def dispatch(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 200079: looks through the lite topics of a client for messages; without a client id, of all clients
        of the group.
        """
        header = TriggerLiteDispatchRequestHeader.from_ext_fields(command.ext_fields)
        config = self._services.groups.table.get(header.group)
        settings = None if config is None else lite_group(config)
        if config is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{header.group}] does not exist, {FAQ}"
            )
        if settings is None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"the group [{header.group}] reads no lite topics")
        group = self._groups.get(header.group)
        clients = {} if group is None else dict(group.clients)
        wanted = clients.values() if not header.client_id else filter(None, [clients.get(header.client_id)])
        for client in wanted:
            await in_turns(self._dispatcher.look_through(client, self._monotonic_ms()))
            self._settle()
        return command.answer(ResponseCode.SUCCESS)


def _entries(source: bytes | bytearray | memoryview) -> list[LiteSubscriptionDTO]:
    """Reads the entries of a request; their number is checked before the first one costs anything."""
    body = fastjson.load_object(source, LiteSubscriptionCtlRequestBody.__name__)
    entries = body.get("subscriptionSet")
    if isinstance(entries, list) and len(entries) > LITE_ENTRIES_MAX:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER, f"subscriptionSet has {len(entries)} entries; at most {LITE_ENTRIES_MAX}"
        )
    read = LiteSubscriptionCtlRequestBody.from_dict(body).subscription_set
    if not read:
        raise BrokerError(ResponseCode.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty.")
    return read


def _start(option: OffsetOption | None) -> Start:
    """Where a subscription starts. In RocketMQ, a time changes nothing."""
    if option is None:
        return Start()
    if option.type is OffsetOptionType.TIMESTAMP:
        return Start(StartAt.TIME, option.value)
    if option.type is OffsetOptionType.POLICY:
        return Start(_POLICIES[option.value] if 0 <= option.value < len(_POLICIES) else StartAt.LAST)
    return Start(StartAt.OFFSET if option.type is OffsetOptionType.OFFSET else StartAt.TAIL, option.value)
