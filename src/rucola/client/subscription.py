"""A consumer's filter for a topic: tags or an SQL92 expression.

Source: RocketMQ 5.3.3, ``FilterAPI``, ``MessageSelector``.
"""

from __future__ import annotations

from collections.abc import Sequence

from rucola.client.message_selector import ExpressionType, MessageSelector, message_selector
from rucola.common.message import MessageExt
from rucola.filter import parse_tag_expression
from rucola.protocol.bodies.heartbeat import SubscriptionData


def subscription_data(topic: str, expression: str | MessageSelector, version: int) -> SubscriptionData:
    """Makes the subscription that is sent to brokers.

    Args:
        topic: the topic.
        expression: the filter.
        version: version of the subscription; grows with every change, because it is the time in ms since the epoch.

    Raises:
        ClientError: the expression is invalid.
    """
    selector = message_selector(expression)
    if selector.expression_type is ExpressionType.SQL92:
        return SubscriptionData(topic, selector.expression, sub_version=version, expression_type=ExpressionType.SQL92)
    parsed = parse_tag_expression(selector.expression)
    return SubscriptionData(topic, parsed.sub_string, frozenset(parsed.tags), parsed.codes, version)


def has_same_filter(one: SubscriptionData, other: SubscriptionData) -> bool:
    """Whether both subscriptions select the same messages by the same expression."""
    return (one.expression_type, one.sub_string) == (other.expression_type, other.sub_string)


def selected(messages: Sequence[MessageExt], subscription: SubscriptionData) -> Sequence[MessageExt]:
    """Returns the messages whose tag is in the subscription, or all messages if the subscription lists no tags. Brokers
    compare only the hashes of tags, so they may deliver other messages, too.
    """
    tags = subscription.tags_set
    return [message for message in messages if message.tags in tags] if tags else messages
