"""The checks of POP requests, with RocketMQ's order and remarks (5.3.3, ``PopMessageProcessor``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from rucola.broker.refusals import FAQ
from rucola.broker.senders import Senders
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.sysflag import PermName
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.server import Channel

Serve: TypeAlias = Callable[[Channel, RemotingCommand], RemotingCommand | None]
"""Serves a request; returns the response, None if the request waits."""


def check_place(
    topics: TopicConfigManager, groups: SubscriptionGroupManager, topic: str, queue_id: int, group: str, peer: str
) -> None:
    """Refuses queues that the group may not read.

    Raises:
        BrokerError: the topic, the queue or the group is missing or may not be read.
    """
    config = topics.get(topic)
    if config is None:
        raise no_topic(topic)
    if not config.perm & PermName.READ:
        raise BrokerError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden")
    if queue_id >= config.read_queue_nums:
        raise BrokerError(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:"
            f"[{config.read_queue_nums}] consumer:[{peer}]",
        )
    known = groups.find(group)
    if known is None:
        raise BrokerError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist, {FAQ}"
        )
    if not known.consume_enable:
        raise BrokerError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")


def no_topic(topic: str) -> BrokerError:
    """The error that answers a POP request for an unknown topic."""
    return BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {FAQ}")


def if_still_reading(senders: Senders, proof: object, serve: Serve) -> Serve:
    """Wraps ``serve`` for a POP request that has waited: its account may have lost its rights meanwhile.

    Args:
        proof: ``Senders.proof`` of the request when it began to wait.
    """

    def served(channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        fields = command.ext_fields
        senders.check_still_reads(proof, channel, fields["topic"], fields["consumerGroup"])
        return serve(channel, command)

    return served
