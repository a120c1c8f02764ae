"""The families of requests, a processor class each: imported and made when the first request of the family comes.

A broker that is never administered does not carry the administration. The table of requests is in ``requests``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rucola.broker.services import BrokerServices

if TYPE_CHECKING:
    from rucola.broker.popping import Popping
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


def topics(services: BrokerServices) -> TopicManageProcessor:
    from rucola.broker.processor.topic_manage import TopicManageProcessor

    return TopicManageProcessor(services)


def groups(services: BrokerServices) -> GroupManageProcessor:
    from rucola.broker.processor.group_manage import GroupManageProcessor

    return GroupManageProcessor(services)


def cold_data(services: BrokerServices) -> ColdDataProcessor:
    from rucola.broker.processor.cold_data import ColdDataProcessor

    return ColdDataProcessor(services)


def clients(services: BrokerServices) -> ClientManageProcessor:
    from rucola.broker.processor.client_manage import ClientManageProcessor

    return ClientManageProcessor(services)


def consumers(services: BrokerServices) -> ConsumerManageProcessor:
    from rucola.broker.processor.consumer_manage import ConsumerManageProcessor

    return ConsumerManageProcessor(services)


def queue_locks(services: BrokerServices) -> QueueLockProcessor:
    from rucola.broker.processor.queue_lock import QueueLockProcessor

    return QueueLockProcessor(services)


def messages(services: BrokerServices) -> QueryProcessor:
    from rucola.broker.processor.query import QueryProcessor

    return QueryProcessor(services)


def send_backs(services: BrokerServices) -> SendBackProcessor:
    from rucola.broker.processor.send_back import SendBackProcessor

    return SendBackProcessor(services)


def replies(services: BrokerServices) -> ReplyMessageProcessor:
    from rucola.broker.processor.reply import ReplyMessageProcessor

    return ReplyMessageProcessor(services)


def transactions(services: BrokerServices) -> EndTransactionProcessor:
    from rucola.broker.processor.end_transaction import EndTransactionProcessor

    return EndTransactionProcessor(services)


def recalls(services: BrokerServices) -> RecallMessageProcessor:
    from rucola.broker.processor.recall import RecallMessageProcessor

    return RecallMessageProcessor(services)


def offset_tables(services: BrokerServices) -> OffsetManageProcessor:
    from rucola.broker.processor.offset_manage import OffsetManageProcessor

    return OffsetManageProcessor(services)


def offset_resets(services: BrokerServices) -> OffsetResetProcessor:
    from rucola.broker.processor.offset_reset import OffsetResetProcessor

    return OffsetResetProcessor(services)


def connections(services: BrokerServices) -> ConnectionQueryProcessor:
    from rucola.broker.processor.connection_query import ConnectionQueryProcessor

    return ConnectionQueryProcessor(services)


def statistics(services: BrokerServices) -> StatisticsProcessor:
    from rucola.broker.processor.statistics import StatisticsProcessor

    return StatisticsProcessor(services)


def broker(services: BrokerServices) -> BrokerManageProcessor:
    from rucola.broker.processor.broker_manage import BrokerManageProcessor

    return BrokerManageProcessor(services)


def accounts(services: BrokerServices) -> AclProcessor:
    from rucola.broker.processor.acl import AclProcessor

    return AclProcessor(services)


def users(services: BrokerServices) -> AuthProcessor:
    from rucola.broker.processor.auth import AuthProcessor

    return AuthProcessor(services)


def pops(services: BrokerServices) -> Popping:
    return services.pops.get()


def timers(services: BrokerServices) -> TimerDelivery:
    return services.timers
