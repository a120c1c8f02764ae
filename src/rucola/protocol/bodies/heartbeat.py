"""Bodies of requests 34 (HEART_BEAT) (``protocol.md`` 2.4, 5.2) and 46 (CHECK_CLIENT_CONFIG)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import ClassVar

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.bodies.body import Body


class ConsumeType(StrEnum):
    """How a consumer receives messages; members are in the order of Java's ordinals, which C++ clients send."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether each message goes to every consumer of the group or to only one."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without committed offsets starts."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


@late_dataclass
class SubscriptionData(Body):
    """The subscription of a consumer group to one topic.

    Attributes:
        sub_string: the expression.
        tags_set: the tags in the expression; empty for ``*``.
        code_set: hash codes of the tags; the broker filters by them.
        sub_version: version of the subscription; grows with every change. It is a time, in milliseconds from Java
            clients and in nanoseconds from Go clients, so it is only useful for comparisons.
        expression_type: ``TAG`` or ``SQL92``.
        class_filter_mode: whether a filter class of older versions is used; always false today.
    """

    topic: str = ""
    sub_string: str = ""
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[int] = frozenset()
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


@late_dataclass
class ProducerData(Body):
    """One producer group in a heartbeat."""

    group_name: str = ""


@late_dataclass
class ConsumerData(Body):
    """One consumer group in a heartbeat."""

    group_name: str = ""
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


@late_dataclass
class HeartbeatData(Body):
    """Body of request 34 (HEART_BEAT).

    Attributes:
        heartbeat_fingerprint: fingerprint of the subscriptions; 0 for heartbeat V1.
        without_sub: whether this is a heartbeat V2 without subscriptions, because the broker already has them.
    """

    json_names: ClassVar[Mapping[str, str]] = {"client_id": "clientID"}

    client_id: str = ""
    producer_data_set: list[ProducerData] = field(default_factory=list)
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: int = 0
    without_sub: bool = False


@late_dataclass
class CheckClientRequestBody(Body):
    """Body of request 46 (CHECK_CLIENT_CONFIG), which asks whether the broker accepts the client's subscription."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData = field(default_factory=SubscriptionData)
    namespace: str | None = None
