"""Bodies of the requests of lite topics, 200071 and 200074 to 200078, as in RocketMQ 5.5.0 (``lite.md`` 3)."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.bodies.body import Body
from rucola.protocol.bodies.statistics import OffsetWrapper, TopicOffset


class LiteSubscriptionAction(StrEnum):
    """What a subscription entry does; members are in the order of Java's ordinals."""

    PARTIAL_ADD = "PARTIAL_ADD"
    PARTIAL_REMOVE = "PARTIAL_REMOVE"
    COMPLETE_ADD = "COMPLETE_ADD"
    COMPLETE_REMOVE = "COMPLETE_REMOVE"


class OffsetOptionType(StrEnum):
    """What the value of an offset option is; members are in the order of Java's ordinals."""

    POLICY = "POLICY"
    OFFSET = "OFFSET"
    TAIL_N = "TAIL_N"
    TIMESTAMP = "TIMESTAMP"


@late_dataclass
class OffsetOption(Body):
    """Where a new subscription starts. ``value``: for a policy 0 = last, 1 = minimum, 2 = maximum; an offset; a number
    of messages; or a time in ms.
    """

    type: OffsetOptionType
    value: int = 0


@late_dataclass
class LiteSubscriptionDTO(Body):
    """One change of a client's subscription to lite topics. ``topic``: the parent."""

    action: LiteSubscriptionAction
    client_id: str = ""
    group: str = ""
    topic: str = ""
    lite_topic_set: frozenset[str] | None = None
    offset_option: OffsetOption | None = None
    version: int = 0


@late_dataclass
class LiteSubscriptionCtlRequestBody(Body):
    """Body of request 200071 (LITE_SUBSCRIPTION_CTL)."""

    subscription_set: list[LiteSubscriptionDTO] = field(default_factory=list)


@late_dataclass
class GetBrokerLiteInfoResponseBody(Body):
    """Response to 200074 (GET_BROKER_LITE_INFO).

    Attributes:
        topic_meta: time to live of the lite topics of each parent, in minutes; -1 = for ever.
        group_meta: groups of each parent.
    """

    store_type: str | None = None
    max_lmq_num: int = 0
    current_lmq_num: int = 0
    lite_subscription_count: int = 0
    order_info_count: int = 0
    cq_table_size: int = 0
    offset_table_size: int = 0
    event_map_size: int = 0
    topic_meta: dict[str, int] | None = None
    group_meta: dict[str, frozenset[str]] | None = None


@late_dataclass
class GetParentTopicInfoResponseBody(Body):
    """Response to 200075 (GET_PARENT_TOPIC_INFO). ``ttl`` is in minutes; ``lmq_num`` counts those of all parents."""

    topic: str | None = None
    ttl: int = 0
    groups: frozenset[str] | None = None
    lmq_num: int = 0
    lite_topic_count: int = 0


@late_dataclass
class ClientGroup(Body):
    """A client and its group; the client is ``*`` in a wildcard group."""

    client_id: str | None = None
    group: str | None = None


@late_dataclass
class GetLiteTopicInfoResponseBody(Body):
    """Response to 200076 (GET_LITE_TOPIC_INFO). ``sharding_to_broker``: whether this broker is the lite topic's own."""

    parent_topic: str | None = None
    lite_topic: str | None = None
    subscriber: list[ClientGroup] | None = None
    topic_offset: TopicOffset | None = None
    sharding_to_broker: bool = False


@late_dataclass
class GetLiteClientInfoResponseBody(Body):
    """Response to 200077 (GET_LITE_CLIENT_INFO). Times in ms.

    Attributes:
        lite_topic_count: number of the client's lite topics; -1 if the client is not known.
        lite_topic_set: names of their queues: ``%LMQ%$PARENT$LITE``.
    """

    parent_topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    last_access_time: int = 0
    last_consume_time: int = 0
    lite_topic_count: int = 0
    lite_topic_set: frozenset[str] | None = None


@late_dataclass
class LiteLagInfo(Body):
    """How far a group is behind in one lite topic; the time is the store time in ms of its first message that was not
    consumed.
    """

    lite_topic: str | None = None
    lag_count: int = 0
    earliest_unconsumed_timestamp: int = 0


@late_dataclass
class GetLiteGroupInfoResponseBody(Body):
    """Response to 200078 (GET_LITE_GROUP_INFO), of one lite topic or of all; times in ms."""

    group: str | None = None
    parent_topic: str | None = None
    lite_topic: str | None = None
    earliest_unconsumed_timestamp: int = 0
    total_lag_count: int = 0
    lite_topic_offset_wrapper: OffsetWrapper | None = None
    lag_count_top_k: list[LiteLagInfo] | None = None
    lag_timestamp_top_k: list[LiteLagInfo] | None = None


@late_dataclass
class LiteTopicRow(Body):
    """A lite topic in a list; Rucola's own. Without a group, its offset and lag are -1; a group that has no offset has
    the offset -1. ``last_time`` is the time of the newest message in ms, to the second.
    """

    lite_topic: str | None = None
    min_offset: int = 0
    max_offset: int = 0
    consumer_offset: int = -1
    lag_count: int = -1
    last_time: int = 0


@late_dataclass
class LiteTopicListBody(Body):
    """Response to 200075 with ``maxCount``, which is Rucola's own. ``following``: where the next page begins, -1 after
    the last one.
    """

    lite_topics: list[LiteTopicRow] = field(default_factory=list)
    following: int = -1
