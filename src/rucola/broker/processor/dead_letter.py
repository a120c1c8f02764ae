"""Handles sends to retry topics (RocketMQ 5.3.3, ``SendMessageProcessor#handleRetryAndDLQ``).

A client usually gives a message back to the broker with request 36. The client itself sends the message to the retry
topic of its group if request 36 has failed, or if the client consumes in order.
"""

from __future__ import annotations

from rucola.broker.client.rebalance_lock import RebalanceLockManager
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.key_builder import dlq_topic, group_of, is_retry_topic
from rucola.common.message_const import DELAY
from rucola.formats.properties import decode_properties, encode_properties
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.send import SendMessageRequestHeader, SendMessageRequestHeaderV2

DLQ_QUEUES = 1
HONOURS_MAX_RECONSUME_TIMES = 121
"""V3_4_9. From this version on, the client's ``maxReconsumeTimes`` overrides the limit of the group."""


class DeadLetterRule:
    """Redirects a send from the retry topic to the dead-letter topic of the group if the message was retried too often,
    or if the group consumes in order. A group consumes in order if its clients hold queue locks.
    """

    def __init__(
        self, topics: TopicConfigManager, groups: SubscriptionGroupManager, locks: RebalanceLockManager
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._locks = locks

    def apply(self, command: RemotingCommand) -> None:
        """Changes the header of ``command`` if its message belongs in the dead-letter topic. If the group is unknown,
        the header stays unchanged, because the check of the topic then refuses the send.

        Raises:
            FormatError: a required field is missing or not a number.
        """
        v1 = command.code == RequestCode.SEND_MESSAGE
        if not is_retry_topic(command.ext_fields.get("topic" if v1 else "b", "")):
            return
        header_class = SendMessageRequestHeader if v1 else SendMessageRequestHeaderV2
        header = header_class.from_ext_fields(command.ext_fields)
        if header.batch:
            return
        name = group_of(header.topic)
        group = self._groups.find(name)
        if group is None:
            return
        times_max = group.retry_max_times
        if command.version >= HONOURS_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        if (header.reconsume_times or 0) <= times_max and not self._locks.holds_any(name):
            return
        topic, _ = self._topics.create_for_group(dlq_topic(name), DLQ_QUEUES)
        properties = decode_properties((header.properties or "").encode())
        properties[DELAY] = "-1"
        header.topic, header.queue_id = topic.topic_name, 0
        header.properties = encode_properties(properties).decode()
        command.ext_fields = header.to_ext_fields()
