"""What a client is told in answer to its settings: its own message, with the server's values set.

Source: RocketMQ 5.3.3, ``GrpcClientSettingsManager``, ``CustomizedRetryPolicy``, ``ExponentialRetryPolicy``; lite
topics: RocketMQ 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rucola.broker.lite.attributes import LiteGroup
from rucola.common.java import read_int64
from rucola.common.lite_door_config import LiteDoorConfig
from rucola.common.numbers import INT32_MAX
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.proxy import messages
from rucola.proxy.sending import BODY_BYTES_MAX
from rucola.proxy.timestamps import set_duration

PRODUCER_ATTEMPTS: Final = 3
RECEIVE_BATCH_SIZE: Final = 32
LONG_POLLING_MS_MAX: Final = 20_000
BACKOFF_MS: Final = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
"""Pauses before the deliveries of a message to a group without a policy of its own."""
_PRODUCER_BACKOFF = (10, 1000, 2.0)
_GROUP_BACKOFF = (5_000, 2 * 3600 * 1000, 2.0)
"""Initial and longest pause in ms, and multiplier, where the policy of a group does not say."""
_FIRST_STEP = 2
"""Deliveries that failed wait as long as messages that remoting clients send back: from the third step on."""
_DOUBLINGS_MAX = 32
CLIENT_PROPERTIES_MAX, CLIENT_PROPERTIES_BYTES_MAX = 32, 4096


def told(settings: messages.Settings, group: SubscriptionGroupConfig | None, body_bytes_max: int) -> messages.Settings:
    """Returns the settings for the client.

    Args:
        settings: what the client has sent.
        group: for a consumer, its group; None if it is not known yet.
        body_bytes_max: largest body that producers may send.
    """
    answer = messages.Settings()
    answer.CopyFrom(settings)
    if settings.HasField("publishing"):
        answer.publishing.validate_message_type = True
        answer.publishing.max_body_size = body_bytes_max or BODY_BYTES_MAX
        answer.backoff_policy.max_attempts = PRODUCER_ATTEMPTS
        _set_exponential(answer.backoff_policy.exponential_backoff, *_PRODUCER_BACKOFF)
    elif settings.HasField("subscription"):
        _set_group(answer, group or SubscriptionGroupConfig(settings.subscription.group.name))
    answer.metric.Clear()
    answer.metric.on = False
    return answer


def set_lite(subscription: messages.Subscription, lite: LiteGroup, config: LiteDoorConfig) -> None:
    """Sets what only a consumer of lite topics is told. It keeps its quota itself; without one, that is the largest
    number.
    """
    subscription.lite_subscription_quota = min(lite.quota, INT32_MAX) if lite.quota >= 0 else INT32_MAX
    subscription.max_lite_topic_size = config.max_lite_topic_size


def attempts_max(group: SubscriptionGroupConfig | None) -> int:
    """How often a message is delivered to a group before it becomes a dead letter."""
    return (group or SubscriptionGroupConfig("")).retry_max_times + 1


def _set_group(answer: messages.Settings, group: SubscriptionGroupConfig) -> None:
    subscription = answer.subscription
    subscription.fifo = group.consume_message_orderly
    subscription.receive_batch_size = RECEIVE_BATCH_SIZE
    set_duration(subscription.long_polling_timeout, LONG_POLLING_MS_MAX)
    policy = answer.backoff_policy
    policy.max_attempts = attempts_max(group)
    if group.group_retry_policy.get("type") == "EXPONENTIAL":
        _set_exponential(policy.exponential_backoff, *_exponential(group))
        return
    policy.customized_backoff.Clear()
    for step_ms in _steps_ms(group):
        set_duration(policy.customized_backoff.next.add(), step_ms)


def _set_exponential(
    backoff: messages.ExponentialBackoff, initial_ms: float, longest_ms: float, multiplier: float
) -> None:
    set_duration(backoff.initial, initial_ms)
    set_duration(backoff.max, longest_ms)
    backoff.multiplier = multiplier


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any, usual: float) -> float:
    if value is None:
        return usual
    try:
        return max(read_int64(value), 0)
    except (TypeError, ValueError):
        return usual


def pause_ms(group: SubscriptionGroupConfig | None, reconsume_times: int) -> int:
    """The pause in ms before a message is delivered again that failed after ``reconsume_times`` earlier deliveries."""
    group = group or SubscriptionGroupConfig("")
    if group.group_retry_policy.get("type") == "EXPONENTIAL":
        initial_ms, longest_ms, multiplier = _exponential(group)
        return int(min(initial_ms * max(multiplier, 1) ** min(reconsume_times, _DOUBLINGS_MAX), longest_ms))
    steps = _steps_ms(group)
    return int(steps[min(reconsume_times + _FIRST_STEP, len(steps) - 1)])


def _exponential(group: SubscriptionGroupConfig) -> tuple[float, float, float]:
    """Initial and longest pause in ms, and multiplier."""
    policy = _mapping(group.group_retry_policy.get("exponentialRetryPolicy"))
    initial_ms, longest_ms, multiplier = (
        _number(policy.get(name), usual)
        for name, usual in zip(("initial", "max", "multiplier"), _GROUP_BACKOFF, strict=True)
    )
    return initial_ms, longest_ms, multiplier


def _steps_ms(group: SubscriptionGroupConfig) -> list[float]:
    pauses = _mapping(group.group_retry_policy.get("customizedRetryPolicy")).get("next")
    return [_number(step, 0) for step in (pauses if isinstance(pauses, list) and pauses else BACKOFF_MS)]
