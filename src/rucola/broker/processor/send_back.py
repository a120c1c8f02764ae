"""Takes back messages that a consumer could not process (RocketMQ 5.3.3,
``AbstractSendMessageProcessor#consumerSendMsgBack``; request 36).

The message is stored again, unless the group has no retry queues. It first waits in the schedule topic and then enters
the group's retry topic. If the message failed too often, or if the request has a negative delay level, it enters the
group's dead-letter topic instead, without a delay. Body and sysFlag stay unchanged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from rucola.broker.cold_reads import ColdReads
from rucola.broker.config import BrokerConfig
from rucola.broker.processor.dead_letter import DLQ_QUEUES, HONOURS_MAX_RECONSUME_TIMES
from rucola.broker.processor.responses import success
from rucola.broker.refusals import group_missing
from rucola.broker.registration import answer_when_told
from rucola.broker.retry_owner import popped_from
from rucola.broker.schedule.delay_rewrite import PARSED_MAP_CAPACITY, delay_rewrite
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.internal_topics import holds_waiting
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.key_builder import dlq_topic, group_of, retry_topic
from rucola.common.message import MessageExt, StoreMessage
from rucola.common.message_const import CRC32, DELAY, ORIGIN_MESSAGE_ID, RETRY_TOPIC, WAIT
from rucola.common.sysflag import PermName
from rucola.errors import BrokerError
from rucola.formats.message import decode_message
from rucola.formats.properties import encode_properties, java_order
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.client import ConsumerSendMsgBackRequestHeader
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel
from rucola.store.log.cold_read import ColdRecords
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus

FIRST_DELAY_LEVEL = 3


class SendBackProcessor:
    """Serves request 36."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        cold_reads: ColdReads,
        random_below: Callable[[int], int],
        level_max: int,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._random_below = random_below
        self._cold_reads = cold_reads
        self._level_max = level_max

    def send_back(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 36, with the checks in RocketMQ's order."""
        return self._cold_reads.serve(partial(self._send_back, command))

    def _send_back(self, command: RemotingCommand, cold: ColdRecords) -> Answer | Awaitable[Answer]:
        header = ConsumerSendMsgBackRequestHeader.from_ext_fields(command.ext_fields)
        group = self._groups.find(header.group)
        if group is None:
            raise group_missing(header.group)
        if not self._config.broker_permission & PermName.WRITE:
            raise BrokerError(
                ResponseCode.NO_PERMISSION, f"the broker[{self._config.client_host}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            return success(command)
        topic, registration = self._topics.create_for_group(retry_topic(header.group), group.retry_queue_nums)
        registrations = [registration]
        if not topic.perm & PermName.WRITE:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden")
        record = self._store.message_at(header.offset, cold)
        if record is None:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        message = decode_message(record, unpack=False)
        if holds_waiting(message.topic):  # no consumer has received it
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        times_max = group.retry_max_times
        if command.version >= HONOURS_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        if message.reconsume_times >= times_max or header.delay_level < 0:
            topic, registration = self._topics.create_for_group(dlq_topic(header.group), DLQ_QUEUES)
            registrations.append(registration)
            returned = returned_message(message, topic.topic_name, 0, 0)
        else:
            queue_id = self._topics.read_queue(topic.topic_name, self._random_below(group.retry_queue_nums))
            level = header.delay_level or FIRST_DELAY_LEVEL + message.reconsume_times
            returned = returned_message(message, topic.topic_name, queue_id, level)
        result = self._store.put_copy(delay_rewrite(returned, self._level_max))
        if result.status is not PutMessageStatus.PUT_OK:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, result.status.value)
        return answer_when_told(success(command), registrations)


def returned_message(message: MessageExt, topic: str, queue_id: int, delay_level: int) -> StoreMessage:
    """The copy of a returned message.

    Args:
        topic, queue_id: the destination of the copy.
        delay_level: the level of the delay before the copy arrives there; 0 means no delay.
    """
    properties = {name: value for name, value in message.properties.items() if name != CRC32}
    origin = {RETRY_TOPIC: message.topic, ORIGIN_MESSAGE_ID: message.offset_msg_id}
    # In any other topic, a producer wrote these properties; consumers would take its message for one of another topic.
    returned_before = group_of(message.topic) != message.topic and popped_from(message) is None
    properties = origin | properties if returned_before else properties | origin
    properties.update({WAIT: "false", DELAY: str(delay_level)})
    return StoreMessage(
        topic.encode(),
        queue_id,
        message.body,
        encode_properties(java_order(properties.items(), PARSED_MAP_CAPACITY)),
        message.born_timestamp_ms,
        message.born_host,
        message.flag,
        message.sys_flag,
        message.reconsume_times + 1,
    )
