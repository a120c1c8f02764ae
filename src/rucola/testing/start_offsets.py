"""Watches the requests of consumers to learn which queues of their group they have begun to read.

A consumer that joins a group requests the list of members, then the offset of each of its queues, and then it pulls.
Its first pull from a queue fixes its start offset there: no message that is stored later is skipped, not even with
CONSUME_FROM_LAST_OFFSET.
"""

from __future__ import annotations

from collections.abc import Mapping

from rucola.broker.client.consumer_manager import BROADCASTING, ConsumerGroup
from rucola.common.key_builder import is_retry_topic
from rucola.common.topic_config import TopicConfig
from rucola.protocol.bodies.heartbeat import ConsumeType
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.channel import Channel

CODES = frozenset(
    (
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    )
)
"""Codes of the requests that ``StartOffsets.received`` records."""

_Queue = tuple[str, str, str]
"""Group, topic and queue id, in the form in which requests contain them."""


class StartOffsets:
    """The progress of consumers, as far as their requests have shown it. Used on the broker's event loop only."""

    def __init__(self) -> None:
        self._informed: dict[str, set[Channel]] = {}
        """For each group, the consumers that have requested the list of members since it last changed."""
        self._beginning: dict[_Queue, Channel] = {}
        """For each queue, the consumer that has requested its offset but has not pulled from it yet."""
        self._readers: dict[_Queue, set[Channel]] = {}

    def received(self, peer: Channel, command: RemotingCommand) -> None:
        """Records a request with one of ``CODES``."""
        fields = command.ext_fields
        group = fields.get("consumerGroup", "")
        queue = group, fields.get("topic", ""), fields.get("queueId", "")
        if command.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            self._informed.setdefault(group, set()).add(peer)
        elif command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            self._beginning[queue] = peer
        else:
            self._readers.setdefault(queue, set()).add(peer)
            if self._beginning.get(queue) is peer:
                del self._beginning[queue]

    def group_changed(self, group: ConsumerGroup) -> None:
        """Records that the members of a group changed; they will divide the queues again."""
        self._informed.pop(group.group, None)

    def all_known(self, group: ConsumerGroup, topics: Mapping[str, TopicConfig]) -> bool:
        """Whether every queue of the group's topics has a consumer that has begun to read it; with BROADCASTING,
        whether all consumers have begun to read every queue. Always true for POP consumers, whose offsets the broker
        keeps.
        """
        if group.consume_type == ConsumeType.CONSUME_POP.name:
            return True
        members = set(group.clients)
        broadcasting = group.message_model == BROADCASTING
        queues = [
            (group.group, topic, str(queue_id))
            for topic in group.subscriptions
            if topic in topics and not is_retry_topic(topic)  # retry topics are always read from their first message
            for queue_id in range(topics[topic].read_queue_nums)
        ]
        if queues and not broadcasting and not members <= self._informed.get(group.group, set()):
            return False
        for queue in queues:
            readers = self._readers.get(queue, set())
            if not (members <= readers if broadcasting else members & readers):
                return False
            if self._beginning.get(queue) in members:
                return False
        return True
