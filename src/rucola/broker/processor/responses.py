"""Responses and errors that several request processors use."""

from __future__ import annotations

from rucola.errors import BrokerError
from rucola.protocol.bodies import Body
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.header import CommandHeader

FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

NO_CODE = "not set any response code"
"""The initial remark of RocketMQ's responses; it stays if RocketMQ sets only the code."""


def success(command: RemotingCommand, header: CommandHeader | None = None, body: Body | None = None) -> RemotingCommand:
    """The response to a request that was served."""
    return command.answer(
        ResponseCode.SUCCESS,
        ext_fields=header.to_ext_fields() if header is not None else None,
        body=body.encode() if body is not None else b"",
    )


def group_missing(group: str) -> BrokerError:
    """The error that answers a request for an unknown consumer group."""
    return BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group} {FAQ}")


def topic_missing(topic: str) -> BrokerError:
    """The error that answers a request for an unknown topic."""
    return BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}")
