"""Errors that answer requests for what does not exist; several parts of the broker raise them."""

from __future__ import annotations

from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


def group_missing(group: str) -> BrokerError:
    """The error that answers a request for an unknown consumer group."""
    return BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group} {FAQ}")


def topic_missing(topic: str) -> BrokerError:
    """The error that answers a request for an unknown topic."""
    return BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}")
