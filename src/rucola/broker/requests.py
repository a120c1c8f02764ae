"""The table of request codes and their processors, for all requests except sends and pulls."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from rucola.broker import lazy_processors
from rucola.broker.lazy_processors import LazyProcessor
from rucola.broker.running_services import RunningServices
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.processors import Answer, Processor, ProcessorTable
from rucola.remoting.server import Channel
from rucola.runtime.background_imports import is_imported
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
P = TypeVar("P")


class Request(NamedTuple):
    """How requests of one code are served. The method ``by`` creates an entry with checked types.

    Attributes:
        source: returns the processor that serves the requests.
        method: picks the processor's method.
        logged: whether the request and its sender are logged, because the request changes data that others rely on
            (S-43). False for changes of options, which their processor logs.
    """

    source: LazyProcessor[Any]
    method: Callable[[Any], Processor]
    logged: bool


def by(source: LazyProcessor[P], method: Callable[[P], Processor], logged: bool = False) -> Request:
    """A request that one method of the processor serves."""
    return Request(source, method, logged)


REQUESTS: Mapping[int, Request] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: by(lazy_processors.topics, lambda it: it.update_topic, logged=True),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: by(lazy_processors.topics, lambda it: it.update_topics, logged=True),
    RequestCode.DELETE_TOPIC_IN_BROKER: by(lazy_processors.topics, lambda it: it.delete_topic, logged=True),
    RequestCode.GET_ALL_TOPIC_CONFIG: by(lazy_processors.topics, lambda it: it.all_topics),
    RequestCode.GET_TOPIC_CONFIG: by(lazy_processors.topics, lambda it: it.topic_config),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: by(lazy_processors.topics, lambda it: it.system_topics),
    RequestCode.CLEAN_UNUSED_TOPIC: by(lazy_processors.topics, lambda it: it.clean_unused, logged=True),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: by(
        lazy_processors.groups, lambda it: it.update_group, logged=True
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: by(
        lazy_processors.groups, lambda it: it.update_groups, logged=True
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: by(lazy_processors.groups, lambda it: it.delete_group, logged=True),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: by(lazy_processors.groups, lambda it: it.all_groups),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: by(lazy_processors.groups, lambda it: it.group_config),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: by(lazy_processors.groups, lambda it: it.group_forbidden, logged=True),
    RequestCode.HEART_BEAT: by(lazy_processors.clients, lambda it: it.heartbeat),
    RequestCode.UNREGISTER_CLIENT: by(lazy_processors.clients, lambda it: it.unregister),
    RequestCode.CHECK_CLIENT_CONFIG: by(lazy_processors.clients, lambda it: it.check_client_config),
    RequestCode.QUERY_CONSUMER_OFFSET: by(lazy_processors.consumers, lambda it: it.query_offset),
    RequestCode.UPDATE_CONSUMER_OFFSET: by(lazy_processors.consumers, lambda it: it.update_offset),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: by(lazy_processors.consumers, lambda it: it.consumer_list),
    RequestCode.LOCK_BATCH_MQ: by(lazy_processors.queue_locks, lambda it: it.lock_queues),
    RequestCode.UNLOCK_BATCH_MQ: by(lazy_processors.queue_locks, lambda it: it.unlock_queues),
    RequestCode.QUERY_MESSAGE: by(lazy_processors.messages, lambda it: it.query_message),
    RequestCode.VIEW_MESSAGE_BY_ID: by(lazy_processors.messages, lambda it: it.view_message),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: by(lazy_processors.messages, lambda it: it.search_offset),
    RequestCode.GET_MAX_OFFSET: by(lazy_processors.messages, lambda it: it.max_offset),
    RequestCode.GET_MIN_OFFSET: by(lazy_processors.messages, lambda it: it.min_offset),
    RequestCode.GET_EARLIEST_MSG_STORETIME: by(lazy_processors.messages, lambda it: it.earliest_store_time),
    RequestCode.CONSUMER_SEND_MSG_BACK: by(lazy_processors.send_backs, lambda it: it.send_back),
    RequestCode.SEND_REPLY_MESSAGE: by(lazy_processors.replies, lambda it: it.reply),
    RequestCode.SEND_REPLY_MESSAGE_V2: by(lazy_processors.replies, lambda it: it.reply),
    RequestCode.END_TRANSACTION: by(lazy_processors.transactions, lambda it: it.end),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: by(lazy_processors.transactions, lambda it: it.resume_check),
    RequestCode.RECALL_MESSAGE: by(lazy_processors.recalls, lambda it: it.recall),
    RequestCode.GET_ALL_CONSUMER_OFFSET: by(lazy_processors.offset_tables, lambda it: it.all_offsets),
    RequestCode.GET_ALL_DELAY_OFFSET: by(lazy_processors.offset_tables, lambda it: it.delay_offsets),
    RequestCode.QUERY_CORRECTION_OFFSET: by(lazy_processors.offset_tables, lambda it: it.correction_offsets),
    RequestCode.CLONE_GROUP_OFFSET: by(lazy_processors.offset_tables, lambda it: it.clone_offsets, logged=True),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: by(
        lazy_processors.offset_resets, lambda it: it.reset_offset, logged=True
    ),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: by(lazy_processors.offset_resets, lambda it: it.consumer_status),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: by(lazy_processors.connections, lambda it: it.consumer_connections),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: by(lazy_processors.connections, lambda it: it.producer_connections),
    RequestCode.GET_ALL_PRODUCER_INFO: by(lazy_processors.connections, lambda it: it.all_producers),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: by(lazy_processors.connections, lambda it: it.groups_of_topic),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: by(lazy_processors.connections, lambda it: it.topics_of_group),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: by(lazy_processors.connections, lambda it: it.subscription),
    RequestCode.GET_CONSUMER_RUNNING_INFO: by(lazy_processors.connections, lambda it: it.running_info),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: by(lazy_processors.connections, lambda it: it.consume_directly, logged=True),
    RequestCode.GET_TOPIC_STATS_INFO: by(lazy_processors.statistics, lambda it: it.topic_stats),
    RequestCode.GET_CONSUME_STATS: by(lazy_processors.statistics, lambda it: it.consume_stats),
    RequestCode.QUERY_CONSUME_TIME_SPAN: by(lazy_processors.statistics, lambda it: it.time_span),
    RequestCode.VIEW_BROKER_STATS_DATA: by(lazy_processors.statistics, lambda it: it.broker_stats),
    RequestCode.GET_BROKER_CONSUME_STATS: by(lazy_processors.statistics, lambda it: it.all_consume_stats),
    RequestCode.QUERY_CONSUME_QUEUE: by(lazy_processors.statistics, lambda it: it.consume_queue),
    RequestCode.UPDATE_BROKER_CONFIG: by(lazy_processors.broker, lambda it: it.update_config),
    RequestCode.GET_BROKER_CONFIG: by(lazy_processors.broker, lambda it: it.config),
    RequestCode.GET_BROKER_RUNTIME_INFO: by(lazy_processors.broker, lambda it: it.runtime_info),
    RequestCode.GET_BROKER_HA_STATUS: by(lazy_processors.broker, lambda it: it.ha_status),
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: by(lazy_processors.group_of_brokers, lambda it: it.min_id_changed),
    RequestCode.EXCHANGE_BROKER_HA_INFO: by(lazy_processors.group_of_brokers, lambda it: it.exchange),
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: by(
        lazy_processors.cold_data, lambda it: it.update_thresholds, logged=True
    ),
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: by(
        lazy_processors.cold_data, lambda it: it.remove_threshold, logged=True
    ),
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: by(lazy_processors.cold_data, lambda it: it.info),
    RequestCode.SET_COMMITLOG_READ_MODE: by(lazy_processors.cold_data, lambda it: it.set_read_mode, logged=True),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: by(lazy_processors.broker, lambda it: it.expire),
    RequestCode.DELETE_EXPIRED_COMMITLOG: by(lazy_processors.broker, lambda it: it.expire),
    RequestCode.POP_MESSAGE: by(lazy_processors.pops, lambda it: it.messages.pop),
    RequestCode.PEEK_MESSAGE: by(lazy_processors.pops, lambda it: it.looks.peek),
    RequestCode.NOTIFICATION: by(lazy_processors.pops, lambda it: it.looks.notification),
    RequestCode.POLLING_INFO: by(lazy_processors.pops, lambda it: it.looks.polling_info),
    RequestCode.POP_ROLLBACK: by(lazy_processors.pops, lambda it: it.looks.roll_back),
    RequestCode.ACK_MESSAGE: by(lazy_processors.pops, lambda it: it.acks.ack),
    RequestCode.BATCH_ACK_MESSAGE: by(lazy_processors.pops, lambda it: it.acks.batch_ack),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: by(lazy_processors.pops, lambda it: it.acks.change_invisible_time),
    RequestCode.QUERY_ASSIGNMENT: by(lazy_processors.pops, lambda it: it.assignments.query),
    RequestCode.SET_MESSAGE_REQUEST_MODE: by(lazy_processors.pops, lambda it: it.assignments.set_mode),
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: by(lazy_processors.pops, lambda it: it.assignments.all_modes),
    RequestCode.POP_LITE_MESSAGE: by(lazy_processors.lite, lambda it: it.pops.pop),
    RequestCode.LITE_SUBSCRIPTION_CTL: by(lazy_processors.lite, lambda it: it.control.subscribe),
    RequestCode.GET_BROKER_LITE_INFO: by(lazy_processors.lite_admin, lambda it: it.broker_info),
    RequestCode.GET_PARENT_TOPIC_INFO: by(lazy_processors.lite_admin, lambda it: it.parent_info),
    RequestCode.GET_LITE_TOPIC_INFO: by(lazy_processors.lite_admin, lambda it: it.topic_info),
    RequestCode.GET_LITE_CLIENT_INFO: by(lazy_processors.lite_admin, lambda it: it.client_info),
    RequestCode.GET_LITE_GROUP_INFO: by(lazy_processors.lite_admin, lambda it: it.group_info),
    RequestCode.TRIGGER_LITE_DISPATCH: by(lazy_processors.lite, lambda it: it.control.dispatch),
    RequestCode.GET_TIMER_CHECK_POINT: by(lazy_processors.timers, lambda it: it.checkpoint),
    RequestCode.GET_TIMER_METRICS: by(lazy_processors.timers, lambda it: it.metrics),
}
"""The requests that every broker serves."""

ACCOUNT_REQUESTS: Mapping[int, Request] = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: by(lazy_processors.accounts, lambda it: it.update),
    RequestCode.DELETE_ACL_CONFIG: by(lazy_processors.accounts, lambda it: it.delete),
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: by(lazy_processors.accounts, lambda it: it.version),
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: by(lazy_processors.accounts, lambda it: it.update_global_addresses),
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: by(lazy_processors.accounts, lambda it: it.config),
}
"""The requests that a broker also serves if it has access control by accounts."""

USER_REQUESTS: Mapping[int, Request] = {
    RequestCode.AUTH_CREATE_USER: by(lazy_processors.users, lambda it: it.create_user),
    RequestCode.AUTH_UPDATE_USER: by(lazy_processors.users, lambda it: it.update_user),
    RequestCode.AUTH_DELETE_USER: by(lazy_processors.users, lambda it: it.delete_user),
    RequestCode.AUTH_GET_USER: by(lazy_processors.users, lambda it: it.get_user),
    RequestCode.AUTH_LIST_USER: by(lazy_processors.users, lambda it: it.list_users),
    RequestCode.AUTH_CREATE_ACL: by(lazy_processors.users, lambda it: it.put_rules),
    RequestCode.AUTH_UPDATE_ACL: by(lazy_processors.users, lambda it: it.put_rules),
    RequestCode.AUTH_DELETE_ACL: by(lazy_processors.users, lambda it: it.delete_rules),
    RequestCode.AUTH_GET_ACL: by(lazy_processors.users, lambda it: it.get_rules),
    RequestCode.AUTH_LIST_ACL: by(lazy_processors.users, lambda it: it.list_rules),
}
"""The requests that a broker also serves if it has access control by users and rules."""

_NAMES = ("topic", "group", "groupName", "consumerGroup", "srcGroup", "destGroup", "timestamp", "queueId", "offset")
"""Header fields that identify the subject of a request."""


def register_requests(running: RunningServices, table: ProcessorTable) -> None:
    """Registers every request in ``table``. A processor is created by the first request that it serves.

    A request that arrives before the processor's module is imported waits for the importing thread. Meanwhile the loop
    serves other requests.
    """
    services, requests = running.services, dict(REQUESTS)
    if services.access is not None:
        requests |= ACCOUNT_REQUESTS if services.access.users is None else USER_REQUESTS
    made: dict[LazyProcessor[Any], object] = {}

    def processor(request: Request) -> Processor | Awaitable[Processor]:
        source = request.source
        if source not in made:
            if not is_imported(source.module):
                return imported(request)
            made[source] = source.processor(running)
        method = request.method(made[source])
        return partial(_log_and_process, method) if request.logged else method

    async def imported(request: Request) -> Processor:
        await services.imports.get(request.source.module)
        method = processor(request)
        assert not isinstance(method, Awaitable)
        return method

    for code, request in requests.items():
        table.register_later(code, partial(processor, request))


def _log_and_process(processor: Processor, channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
    """Logs a request, whatever its outcome will be, and serves it."""
    about = {name: command.ext_fields[name] for name in _NAMES if name in command.ext_fields}
    name = RequestCode(command.code).name
    event(logger, logging.INFO, "change asked for", request=name, peer=channel.remote_address, **about)
    return processor(channel, command)
