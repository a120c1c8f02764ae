"""The request processors, which are imported in a thread and created by their first request.

The processors that every consumer needs are imported right after the broker begins to serve, and so is POP. The
processors for administration are imported only if they are needed. ``requests`` maps request codes to processors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from rucola.broker.running_services import RunningServices

if TYPE_CHECKING:
    from rucola.broker.lite.admin import LiteAdminProcessor
    from rucola.broker.lite.delivery import LiteDelivery
    from rucola.broker.pop_services import PopServices
    from rucola.broker.processor.acl import AclProcessor
    from rucola.broker.processor.auth import AuthProcessor
    from rucola.broker.processor.broker_group import BrokerGroupProcessor
    from rucola.broker.processor.broker_manage import BrokerManageProcessor
    from rucola.broker.processor.client_manage import ClientManageProcessor
    from rucola.broker.processor.cold_data import ColdDataProcessor
    from rucola.broker.processor.connection_query import ConnectionQueryProcessor
    from rucola.broker.processor.consumer_manage import ConsumerManageProcessor
    from rucola.broker.processor.end_transaction import EndTransactionProcessor
    from rucola.broker.processor.group_manage import GroupManageProcessor
    from rucola.broker.processor.offset_manage import OffsetManageProcessor
    from rucola.broker.processor.offset_reset import OffsetResetProcessor
    from rucola.broker.processor.query import QueryProcessor
    from rucola.broker.processor.queue_lock import QueueLockProcessor
    from rucola.broker.processor.recall import RecallMessageProcessor
    from rucola.broker.processor.reply import ReplyMessageProcessor
    from rucola.broker.processor.send_back import SendBackProcessor
    from rucola.broker.processor.statistics import StatisticsProcessor
    from rucola.broker.processor.topic_manage import TopicManageProcessor
    from rucola.broker.timer.timer_delivery import TimerDelivery

P = TypeVar("P")


class LazyProcessor(Generic[P]):
    """A processor that is imported and created when it is first needed.

    Args:
        module: the processor's module, relative to ``rucola.broker``.
        name: the name of the processor's class.
        make: returns the processor, given its class and the services of the running broker.

    Attributes:
        module: the full name of the module. The module must be imported before ``processor`` is called on the event
            loop.
    """

    def __init__(self, module: str, name: str, make: Callable[[type[P], RunningServices], P]) -> None:
        self.module = f"rucola.broker.{module}"
        self._name = name
        self._make = make

    def processor(self, running: RunningServices) -> P:
        """Creates and returns the processor."""
        return self._make(getattr(importlib.import_module(self.module), self._name), running)


topics: LazyProcessor[TopicManageProcessor] = LazyProcessor(
    "processor.topic_manage", "TopicManageProcessor", lambda made, it: made(it.services, it.hold, it.lite_life)
)
groups: LazyProcessor[GroupManageProcessor] = LazyProcessor(
    "processor.group_manage",
    "GroupManageProcessor",
    lambda made, it: made(it.services.groups, it.services.offsets, it.services.resets, it.services.pops),
)
cold_data: LazyProcessor[ColdDataProcessor] = LazyProcessor(
    "processor.cold_data", "ColdDataProcessor", lambda made, it: made(it.services.cold_flow, it.services.store)
)
clients: LazyProcessor[ClientManageProcessor] = LazyProcessor(
    "processor.client_manage", "ClientManageProcessor", lambda made, it: made(it.services)
)
consumers: LazyProcessor[ConsumerManageProcessor] = LazyProcessor(
    "processor.consumer_manage",
    "ConsumerManageProcessor",
    lambda made, it: made(
        it.services.store,
        it.services.topics,
        it.services.groups,
        it.services.consumers,
        it.services.offsets,
        it.services.resets,
    ),
)
queue_locks: LazyProcessor[QueueLockProcessor] = LazyProcessor(
    "processor.queue_lock",
    "QueueLockProcessor",
    lambda made, it: made(it.services.locks, it.services.topics, it.services.consumers, it.services.senders),
)
messages: LazyProcessor[QueryProcessor] = LazyProcessor(
    "processor.query", "QueryProcessor", lambda made, it: made(it.services.store, it.services.cold_reads)
)
send_backs: LazyProcessor[SendBackProcessor] = LazyProcessor(
    "processor.send_back",
    "SendBackProcessor",
    lambda made, it: made(
        it.services.config,
        it.services.store,
        it.services.topics,
        it.services.groups,
        it.services.cold_reads,
        it.services.random_below,
        len(it.services.delay_levels_ms),
    ),
)
replies: LazyProcessor[ReplyMessageProcessor] = LazyProcessor(
    "processor.reply",
    "ReplyMessageProcessor",
    lambda made, it: made(
        it.services.config,
        it.services.store,
        it.services.checked_topics,
        it.services.producers,
        it.services.clock.wall_ms,
    ),
)
transactions: LazyProcessor[EndTransactionProcessor] = LazyProcessor(
    "processor.end_transaction",
    "EndTransactionProcessor",
    lambda made, it: made(
        it.transactions, it.transaction_checks, it.services.senders, it.services.cold_reads, it.when_safe
    ),
)
recalls: LazyProcessor[RecallMessageProcessor] = LazyProcessor(
    "processor.recall",
    "RecallMessageProcessor",
    lambda made, it: made(
        it.services.config,
        it.services.store,
        it.services.topics,
        it.services.timers.rewriter,
        it.services.senders,
        it.when_safe,
    ),
)
offset_tables: LazyProcessor[OffsetManageProcessor] = LazyProcessor(
    "processor.offset_manage",
    "OffsetManageProcessor",
    lambda made, it: made(
        it.services.store, it.services.topics, it.services.consumers, it.services.offsets, it.services.schedule
    ),
)
offset_resets: LazyProcessor[OffsetResetProcessor] = LazyProcessor(
    "processor.offset_reset", "OffsetResetProcessor", lambda made, it: made(it.services, it.hold)
)
connections: LazyProcessor[ConnectionQueryProcessor] = LazyProcessor(
    "processor.connection_query", "ConnectionQueryProcessor", lambda made, it: made(it.services, it.address)
)
statistics: LazyProcessor[StatisticsProcessor] = LazyProcessor(
    "processor.statistics", "StatisticsProcessor", lambda made, it: made(it.services, it.address)
)
broker: LazyProcessor[BrokerManageProcessor] = LazyProcessor(
    "processor.broker_manage",
    "BrokerManageProcessor",
    lambda made, it: made(it.services, it.sends_waiting, it.ha_status),
)
group_of_brokers: LazyProcessor[BrokerGroupProcessor] = LazyProcessor(
    "processor.broker_group", "BrokerGroupProcessor", lambda made, it: made(it)
)
accounts: LazyProcessor[AclProcessor] = LazyProcessor(
    "processor.acl", "AclProcessor", lambda made, it: made(it.services.config, it.services.control.accounts, it.address)
)
users: LazyProcessor[AuthProcessor] = LazyProcessor(
    "processor.auth", "AuthProcessor", lambda made, it: made(it.services.control.user_accounts)
)
pops: LazyProcessor[PopServices] = LazyProcessor(
    "pop_services", "PopServices", lambda _, it: cast("PopServices", it.services.pops.get())
)
lite_admin: LazyProcessor[LiteAdminProcessor] = LazyProcessor(
    "lite.admin", "LiteAdminProcessor", lambda made, it: made(it.services, *it.lite_parts(), it.lite_delivery())
)
lite: LazyProcessor[LiteDelivery] = LazyProcessor("lite.delivery", "LiteDelivery", lambda _, it: it.lite_delivery())
timers: LazyProcessor[TimerDelivery] = LazyProcessor(
    "timer.timer_delivery", "TimerDelivery", lambda _, it: it.services.timers
)

IMPORTED_FIRST = ("concurrent.futures.thread",)
"""Modules that are imported first, because any request may need a thread, which reads long bodies and builds long
responses.
"""
SQL_GRAMMAR = "rucola.filter.sql.grammar"
"""The module that parses SQL92 expressions."""
IMPORTED_EARLY = (clients, consumers, queue_locks, messages, send_backs, transactions, pops)
"""Processors that are imported after the broker has begun to serve requests, in this order: first the processors that
consumers need.
"""
ALL = (
    *IMPORTED_EARLY,
    topics,
    groups,
    cold_data,
    replies,
    recalls,
    offset_tables,
    offset_resets,
    connections,
    statistics,
    broker,
    group_of_brokers,
    accounts,
    users,
    lite,
    lite_admin,
    timers,
)


def import_all() -> None:
    """Imports all processors now, for callers without a running event loop."""
    for lazy in ALL:
        importlib.import_module(lazy.module)
