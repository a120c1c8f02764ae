"""Heartbeats and goodbyes (RocketMQ 5.3.3, ``ClientManageProcessor``; requests 34, 35, 46)."""

from __future__ import annotations

from rucola.broker.client.client_channel import ClientChannel
from rucola.broker.filter.consumer_filter_manager import SQL92
from rucola.broker.processor.processor import success
from rucola.broker.processor.pull import check_expression_type
from rucola.broker.services import BrokerServices
from rucola.common.key_builder import retry_topic
from rucola.errors import BrokerError, FormatError
from rucola.filter.sql import compile_sql
from rucola.filter.tag import parse_tag_expression
from rucola.protocol.bodies.heartbeat import CheckClientRequestBody, ConsumerData, HeartbeatData
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.client import HeartbeatResponseHeader, UnregisterClientRequestHeader
from rucola.remoting.server import Channel

TAG = "TAG"
_LAST_HEARTBEAT = "heartbeat"
_LAST_CLIENTS = "clients"
_ANSWER = HeartbeatResponseHeader(is_support_heart_beat_v2=True, is_sub_change=True)


class ClientManageProcessor:
    """Keeps producers and consumers current.

    A client repeats the same body every 30 s, so the last one of each connection is kept and an equal one only renews
    the times.
    """

    def __init__(self, services: BrokerServices) -> None:
        self._config = services.config
        self._topics = services.topics
        self._groups = services.groups
        self._producers = services.producers
        self._consumers = services.consumers
        self._filters = services.filters
        self._monotonic = services.clock.monotonic

    def heartbeat(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """34."""
        now = self._monotonic()
        if channel.attributes.get(_LAST_HEARTBEAT) == command.body:
            for client in channel.attributes[_LAST_CLIENTS]:
                client.last_update_s = now
            return success(command, _ANSWER)
        data = HeartbeatData.decode(command.body)
        clients: list[ClientChannel] = []

        def new_client() -> ClientChannel:
            clients.append(ClientChannel(channel, data.client_id, command.language.name, command.version, now))
            return clients[-1]

        for producer in data.producer_data_set:
            self._producers.register(producer.group_name, new_client())
        for consumer in data.consumer_data_set:
            if self._prepare_group(consumer):
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
        channel.attributes[_LAST_HEARTBEAT] = bytes(command.body)
        channel.attributes[_LAST_CLIENTS] = clients
        return success(command, _ANSWER)

    def unregister(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """35."""
        header = UnregisterClientRequestHeader.from_ext_fields(command.ext_fields)
        channel.attributes.pop(_LAST_HEARTBEAT, None)
        if header.producer_group:
            self._producers.unregister(header.producer_group, channel)
        if header.consumer_group:
            self._consumers.unregister(header.consumer_group, channel)
        return success(command)

    def check_client_config(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """46: whether a consumer may subscribe like this."""
        subscription = CheckClientRequestBody.decode(command.body).subscription_data
        try:
            if subscription.expression_type == TAG:
                parse_tag_expression(subscription.sub_string)
            else:
                if self._config.enable_property_filter and subscription.expression_type != SQL92:
                    refusal = f"nothing filters by {subscription.expression_type}"
                    raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, refusal)
                check_expression_type(self._config, subscription.expression_type)
                compile_sql(subscription.sub_string)
        except FormatError as error:
            raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
        return success(command)

    def _prepare_group(self, consumer: ConsumerData) -> bool:
        """Group configuration and retry topic of a consumer; False when the group may not exist."""
        group = self._groups.find(consumer.group_name)
        if group is None:
            return False
        if group.retry_queue_nums > 0:
            self._topics.create_for_group(retry_topic(consumer.group_name), group.retry_queue_nums)
        return True
