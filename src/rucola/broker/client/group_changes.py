"""Reacts to changes of a consumer group: its members are told to rebalance."""

from __future__ import annotations

from rucola.broker.client.consumer_manager import BROADCASTING, ConsumerGroup
from rucola.broker.config import BrokerConfig
from rucola.broker.filter.consumer_filter_manager import ConsumerFilterManager
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.client import NotifyConsumerIdsChangedRequestHeader


class GroupChanges:
    """Tells the members (RocketMQ 5.3.3, ``DefaultConsumerIdsChangeListener``)."""

    def __init__(self, config: BrokerConfig, groups: SubscriptionGroupManager, filters: ConsumerFilterManager) -> None:
        self._config = config
        self._groups = groups
        self._filters = filters

    def tell(self, info: ConsumerGroup) -> None:
        """Tells every member of the group to rebalance (request 40)."""
        if not info.clients:
            self._filters.unregister(info.group)
        group = self._groups.table.get(info.group)
        if (
            not self._config.notify_consumer_ids_changed_enable
            or info.message_model == BROADCASTING
            or (group is not None and not group.notify_consumer_ids_changed_enable)
        ):
            return
        fields = NotifyConsumerIdsChangedRequestHeader(info.group).to_ext_fields()
        for client in info.clients.values():
            client.channel.invoke_oneway(
                RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext_fields=dict(fields))
            )
