"""The administration of a broker: the processors of RocketMQ's ``AdminBrokerProcessor``, one module for each family."""

from __future__ import annotations

from collections.abc import Callable
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
from rucola.remoting.processors import ProcessorTable
from rucola.runtime.clock import Clock
from rucola.runtime.files import Files
from rucola.store.message_store import MessageStore


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
