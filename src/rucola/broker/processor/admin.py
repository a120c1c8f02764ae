"""The administration of a broker: the processors of RocketMQ's ``AdminBrokerProcessor``, one module for each family."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rucola.broker.broker_stats import BrokerStats
from rucola.broker.client.consumer_manager import ConsumerManager
from rucola.broker.client.producer_manager import ProducerManager
from rucola.broker.client.rebalance_lock import RebalanceLockManager
from rucola.broker.config import BrokerConfig
from rucola.broker.offset.consumer_offset_manager import ConsumerOffsetManager
from rucola.broker.processor.broker_manage import BrokerManageProcessor
from rucola.broker.processor.connection_query import ConnectionQueryProcessor
from rucola.broker.processor.group_manage import GroupManageProcessor
from rucola.broker.processor.offset_manage import OffsetManageProcessor
from rucola.broker.processor.queue_lock import QueueLockProcessor
from rucola.broker.processor.statistics import StatisticsProcessor
from rucola.broker.processor.topic_manage import TopicManageProcessor
from rucola.broker.runtime_info import RuntimeInfo
from rucola.broker.schedule.schedule_message_service import ScheduleMessageService
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.broker.topic.topic_validator import system_names
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.processors import Answer, Processor, ProcessorTable
from rucola.remoting.server import Channel
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.store.message_store import MessageStore

_log = logging.getLogger(__name__)

CHANGES = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)
"""Requests that change what others rely on: who asks for one is logged (S-43). Options log their changes themselves."""
_NAMES = ("topic", "group", "groupName", "consumerGroup", "srcGroup", "destGroup", "timestamp", "queueId", "offset")
"""Fields that say what it is about."""


@dataclass(frozen=True)
class Administration:
    """The parts of a broker that its administration looks at and changes.

    Attributes:
        address: its own, ``host:port``.
        sends_waiting: how many groups of sends wait for the disk.
    """

    config: BrokerConfig
    address: str
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    producers: ProducerManager
    consumers: ConsumerManager
    offsets: ConsumerOffsetManager
    locks: RebalanceLockManager
    schedule: ScheduleMessageService
    stats: BrokerStats
    sends_waiting: Callable[[], int]
    files: Files
    clock: Clock

    def register_to(self, table: ProcessorTable) -> None:
        """Put every processor into ``table``."""
        config, store, topics, groups, offsets = self.config, self.store, self.topics, self.groups, self.offsets
        runtime_info = RuntimeInfo(config, store, self.files, self.schedule, self.stats, self.clock, self.sends_waiting)
        names = system_names(config.broker_cluster_name, config.broker_name)
        if config.trace_topic_enable:
            names |= {config.msg_trace_topic_name}
        for processor in (
            TopicManageProcessor(store, topics, offsets, names),
            GroupManageProcessor(groups, offsets),
            QueueLockProcessor(self.locks),
            OffsetManageProcessor(store, topics, self.consumers, offsets, self.schedule),
            BrokerManageProcessor(config, store, runtime_info, self.clock),
            ConnectionQueryProcessor(
                config,
                self.address,
                store,
                topics,
                groups,
                self.producers,
                self.consumers,
                offsets,
                self.clock,
            ),
            StatisticsProcessor(
                config, self.address, store, topics, groups, self.consumers, offsets, self.stats, self.clock
            ),
        ):
            processor.register_to(table)
        for code in CHANGES:
            table.wrap(code, _logged)


def _logged(processor: Processor) -> Processor:
    """``processor``, with a line in the log for each of its requests, whatever becomes of it."""

    def process(channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        about = {name: command.ext_fields[name] for name in _NAMES if name in command.ext_fields}
        name = RequestCode(command.code).name
        event(_log, logging.INFO, "change asked for", request=name, peer=channel.remote_address, **about)
        return processor(channel, command)

    return process
