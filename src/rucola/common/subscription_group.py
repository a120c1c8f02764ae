"""Configuration of one consumer group on a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rucola.common.java import read_int32, read_int64
from rucola.common.numbers import INT64_MAX, number_in

PRIORITY_FACTOR: Final = "priority.factor"
"""Attribute of a group: percentage of its pops that read the queues of a priority topic in the order of priority."""
PRIORITY_FACTOR_MAX: Final = 100
"""The largest value, and the default."""


def _customized() -> dict[str, Any]:
    return {"type": "CUSTOMIZED"}


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """RocketMQ's ``SubscriptionGroupConfig``, with its defaults.

    Args:
        retry_max_times: number of times that a failed message is delivered again before it goes to the dead-letter
            topic.
        consume_timeout_minute: number of minutes after which an unfinished consumption counts as failed.
        group_retry_policy: the JSON object ``groupRetryPolicy``; not interpreted here.
        subscription_data_set: the group's ``SimpleSubscriptionData`` as JSON objects; None if not set.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: Mapping[str, Any] = field(default_factory=_customized)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: Sequence[Mapping[str, Any]] | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def priority_factor(self) -> int:
        """Value of the attribute ``priority.factor``; 100 if it is absent or no number."""
        value = number_in(self.attributes.get(PRIORITY_FACTOR, ""), -INT64_MAX - 1, INT64_MAX)
        return PRIORITY_FACTOR_MAX if value is None else value

    def to_dict(self) -> dict[str, Any]:
        """Returns the form of RocketMQ's JSON, with fields in the order of their names."""
        result: dict[str, Any] = {
            "attributes": dict(self.attributes),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minute,
            "groupName": self.group_name,
            "groupRetryPolicy": dict(self.group_retry_policy),
            "groupSysFlag": self.group_sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
        }
        if self.subscription_data_set is not None:
            result["subscriptionDataSet"] = [dict(data) for data in self.subscription_data_set]
        result["whichBrokerWhenConsumeSlowly"] = self.which_broker_when_consume_slowly
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SubscriptionGroupConfig:
        """Reads RocketMQ's JSON; absent fields take their defaults, unknown fields are ignored.

        Raises:
            ValueError: a number is invalid.
        """
        name = data.get("groupName")
        if {**data, "groupName": ""} == _USUAL_GROUP:
            return cls(str(name or ""))
        subscriptions = data.get("subscriptionDataSet")
        return cls(
            group_name=str(name or ""),
            consume_enable=bool(data.get("consumeEnable", True)),
            consume_from_min_enable=bool(data.get("consumeFromMinEnable", True)),
            consume_broadcast_enable=bool(data.get("consumeBroadcastEnable", True)),
            consume_message_orderly=bool(data.get("consumeMessageOrderly", False)),
            retry_queue_nums=read_int32(data.get("retryQueueNums", 1)),
            retry_max_times=read_int32(data.get("retryMaxTimes", 16)),
            group_retry_policy=dict(data.get("groupRetryPolicy") or _customized()),
            broker_id=read_int64(data.get("brokerId", 0)),
            which_broker_when_consume_slowly=read_int64(data.get("whichBrokerWhenConsumeSlowly", 1)),
            notify_consumer_ids_changed_enable=bool(data.get("notifyConsumerIdsChangedEnable", True)),
            group_sys_flag=read_int32(data.get("groupSysFlag", 0)),
            consume_timeout_minute=read_int32(data.get("consumeTimeoutMinute", 15)),
            subscription_data_set=None if subscriptions is None else list(subscriptions),
            attributes=dict(data.get("attributes") or {}),
        )


_USUAL_GROUP = SubscriptionGroupConfig("").to_dict()
"""JSON object of a group with default values. Most groups have these values in all fields but ``groupName``; of such a
group, ``from_dict`` reads only the name.
"""
