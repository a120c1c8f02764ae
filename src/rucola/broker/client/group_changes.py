"""Notifies the members of a consumer group when its clients or topics change, so that they rebalance. Event loop only.

A small group is notified of every change. In a large group, many changes share one round of notifications: a pause
follows each round, and all changes during the round or the pause together lead to one further round. The pause is
proportional to the number of members, so notifying a large group that starts up takes only a small share of the event
loop's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.client.consumer_manager import BROADCASTING, ConsumerGroup
from rucola.broker.config import BrokerConfig
from rucola.broker.filter.consumer_filter_manager import ConsumerFilterManager
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.key_builder import retry_topic
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import FLAG_ONEWAY, RemotingCommand
from rucola.protocol.headers.client import NotifyConsumerIdsChangedRequestHeader

_SMALL = 32
"""Largest number of members with which a group counts as small."""
_TOLD_IN_ONE_GO = 200
_REST_S = 0.0002
"""Seconds of pause for each member: ten times the time that notifying one member takes."""


@dataclass(slots=True)
class _Round:
    """One round of notifications to the members of a group."""

    info: ConsumerGroup
    frame: bytes
    again: bool = False
    members: list[ClientChannel] = field(default_factory=list)
    told: int = 0


class GroupChanges:
    """Notifies the members of groups that have changed (RocketMQ 5.3.3, ``DefaultConsumerIdsChangeListener``)."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        filters: ConsumerFilterManager,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._loop = loop
        self._rounds: dict[str, _Round] = {}

    def tell(self, info: ConsumerGroup) -> None:
        """Tells every member of the group to rebalance (request code 40). If the group's retry topic is still being
        registered, the members are told only after its registration, because they ask the name servers for this topic.
        """
        if not info.clients:
            self._filters.unregister(info.group)
        group = self._groups.table.get(info.group)
        if (
            not self._config.notify_consumer_ids_changed_enable
            or info.message_model == BROADCASTING
            or (group is not None and not group.notify_consumer_ids_changed_enable)
        ):
            return
        under_way = self._rounds.get(info.group)
        if under_way is not None:
            under_way.info, under_way.again = info, True
        elif len(info.clients) > _SMALL:
            self._begin(info)
        elif info.clients:
            self._when_retry_topic_is_known(info, partial(_tell_all, info.group, list(info.clients.values())))

    def _when_retry_topic_is_known(self, info: ConsumerGroup, tell: Callable[[], object]) -> None:
        made = self._topics.registering(retry_topic(info.group))
        if made is None or made.done():
            tell()
        else:
            made.add_done_callback(lambda _: tell())

    def _begin(self, info: ConsumerGroup) -> None:
        current = self._rounds[info.group] = _Round(info, _frame(info.group))
        begin = partial(self._loop.call_soon, self._take_members, current)
        self._when_retry_topic_is_known(info, begin)

    def _take_members(self, current: _Round) -> None:
        current.again = False
        current.members = list(current.info.clients.values())
        self._tell_some(current)

    def _tell_some(self, current: _Round) -> None:
        first, current.told = current.told, current.told + _TOLD_IN_ONE_GO
        for client in current.members[first : current.told]:
            client.channel.send_oneway(current.frame)
        if current.told < len(current.members):
            self._loop.call_soon(self._tell_some, current)
        else:
            self._loop.call_later(len(current.members) * _REST_S, self._end, current)

    def _end(self, current: _Round) -> None:
        del self._rounds[current.info.group]
        if current.again and current.info.clients:
            self._begin(current.info)


def _tell_all(group: str, members: list[ClientChannel]) -> None:
    frame = _frame(group)
    for client in members:
        client.channel.send_oneway(frame)


def _frame(group: str) -> bytes:
    header = NotifyConsumerIdsChangedRequestHeader(group)
    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    return RemotingCommand(code, flag=FLAG_ONEWAY, ext_fields=header.to_ext_fields()).encode()
