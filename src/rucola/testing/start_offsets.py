"""Which queues the consumers of a group have begun to read, as a broker sees it in their requests.

A consumer that joins a group asks for the other members, then for the offset of each of its queues, and then it pulls.
From its first pull on, its start offset is certain: no message that is stored later is skipped, not even with
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
from rucola.remoting.peer import Peer

CODES = frozenset(
    (
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    )
)
"""The requests that ``StartOffsets.received`` takes."""

_Queue = tuple[str, str, str]
"""Group, topic and queue id, as they stand in a request."""


class StartOffsets:
    """The progress of consumers, as their requests have shown it. It is used on the broker's event loop only."""

    def __init__(self) -> None:
        self._informed: dict[str, set[Peer]] = {}
        """The consumers of each group that have asked for its members since these last changed."""
        self._beginning: dict[_Queue, Peer] = {}
        """The consumer that has asked for the offset of a queue and has not yet pulled from it."""
        self._readers: dict[_Queue, set[Peer]] = {}

    def received(self, peer: Peer, command: RemotingCommand) -> None:
        """Takes a request with one of ``CODES``."""
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
        """Takes a change of a group's members, after which they divide the queues again."""
        self._informed.pop(group.group, None)

    def all_known(self, group: ConsumerGroup, topics: Mapping[str, TopicConfig]) -> bool:
        """Whether every queue of the group has its reader, or with BROADCASTING every reader. Always true for consumers
        with POP, for which the broker keeps the offsets.
        """
        if group.consume_type == ConsumeType.CONSUME_POP.name:
            return True
        members = set(group.clients)
        broadcasting = group.message_model == BROADCASTING
        queues = [
            (group.group, topic, str(queue_id))
            for topic in group.subscriptions
            if topic in topics and not is_retry_topic(topic)  # retries are read from the first one on
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
