"""The families of requests, a processor class each: imported in a thread, and made when the first request comes.

What every consumer asks for, and POP, is imported right after the broker began to serve. A broker that is never
administered does not carry the administration. The table of requests is in ``requests``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rucola.broker.services import BrokerServices

if TYPE_CHECKING:
    from rucola.broker.pop_services import PopServices
    from rucola.broker.processor.acl import AclProcessor
    from rucola.broker.processor.auth import AuthProcessor
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


class Family(Generic[P]):
    """One family.

    Args:
        module: where its processor is.
        name: the processor's class, made of the broker's rooms; or a function of the rooms that gives the processor.

    Attributes:
        module: as given; it must be imported before ``processor`` is called on the event loop.
    """

    def __init__(self, module: str, name: str | Callable[[BrokerServices], P]) -> None:
        self.module = f"rucola.broker.{module}"
        self._name = name

    def processor(self, services: BrokerServices) -> P:
        """The processor, made now."""
        if isinstance(self._name, str):
            make: Any = getattr(importlib.import_module(self.module), self._name)
            return make(services)  # type: ignore[no-any-return]
        return self._name(services)


topics: Family[TopicManageProcessor] = Family("processor.topic_manage", "TopicManageProcessor")
groups: Family[GroupManageProcessor] = Family("processor.group_manage", "GroupManageProcessor")
cold_data: Family[ColdDataProcessor] = Family("processor.cold_data", "ColdDataProcessor")
clients: Family[ClientManageProcessor] = Family("processor.client_manage", "ClientManageProcessor")
consumers: Family[ConsumerManageProcessor] = Family("processor.consumer_manage", "ConsumerManageProcessor")
queue_locks: Family[QueueLockProcessor] = Family("processor.queue_lock", "QueueLockProcessor")
messages: Family[QueryProcessor] = Family("processor.query", "QueryProcessor")
send_backs: Family[SendBackProcessor] = Family("processor.send_back", "SendBackProcessor")
replies: Family[ReplyMessageProcessor] = Family("processor.reply", "ReplyMessageProcessor")
transactions: Family[EndTransactionProcessor] = Family("processor.end_transaction", "EndTransactionProcessor")
recalls: Family[RecallMessageProcessor] = Family("processor.recall", "RecallMessageProcessor")
offset_tables: Family[OffsetManageProcessor] = Family("processor.offset_manage", "OffsetManageProcessor")
offset_resets: Family[OffsetResetProcessor] = Family("processor.offset_reset", "OffsetResetProcessor")
connections: Family[ConnectionQueryProcessor] = Family("processor.connection_query", "ConnectionQueryProcessor")
statistics: Family[StatisticsProcessor] = Family("processor.statistics", "StatisticsProcessor")
broker: Family[BrokerManageProcessor] = Family("processor.broker_manage", "BrokerManageProcessor")
accounts: Family[AclProcessor] = Family("processor.acl", "AclProcessor")
users: Family[AuthProcessor] = Family("processor.auth", "AuthProcessor")
pops: Family[PopServices] = Family("pop_services", lambda services: services.pops.get())
timers: Family[TimerDelivery] = Family("timer.timer_delivery", lambda services: services.timers)

SOON = (clients, consumers, queue_locks, messages, send_backs, transactions, pops)
"""Imported when the broker serves, in this order: what consumers ask for first."""
EVERY = (
    *SOON,
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
    accounts,
    users,
    timers,
)


def import_all() -> None:
    """Import them now, for whoever has no event loop that runs."""
    for family in EVERY:
        importlib.import_module(family.module)
