"""Headers of requests about topics, groups and statistics (``protocol.md`` 2.7, 2.8)."""

from __future__ import annotations

from rucola.common.late_dataclass import late_dataclass
from rucola.protocol.headers.header import CommandHeader, Int, Long


@late_dataclass
class CreateTopicRequestHeader(CommandHeader):
    """Request 17 (UPDATE_AND_CREATE_TOPIC).

    Attributes:
        perm: ``PermName`` bits.
        attributes: ``+name=value`` sets an attribute, ``-name`` removes it; items are joined by commas.
        force: whether to change a topic that the broker would otherwise refuse to change.
    """

    topic: str
    default_topic: str
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    topic_filter_type: str
    topic_sys_flag: Int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


@late_dataclass
class DeleteTopicRequestHeader(CommandHeader):
    """Request 215 (DELETE_TOPIC_IN_BROKER)."""

    topic: str


@late_dataclass
class DeleteSubscriptionGroupRequestHeader(CommandHeader):
    """Request 207 (DELETE_SUBSCRIPTIONGROUP). ``clean_offset``: whether to delete the group's offsets too."""

    group_name: str
    clean_offset: bool = False


@late_dataclass
class TopicRequestHeader(CommandHeader):
    """Requests 202 (GET_TOPIC_STATS_INFO), 300 (QUERY_TOPIC_CONSUME_BY_WHO) and 351 (GET_TOPIC_CONFIG)."""

    topic: str


@late_dataclass
class GroupRequestHeader(CommandHeader):
    """Requests 343 (QUERY_TOPICS_BY_CONSUMER) and 352 (GET_SUBSCRIPTIONGROUP_CONFIG)."""

    group: str


@late_dataclass
class GroupTopicRequestHeader(CommandHeader):
    """Requests 303 (QUERY_CONSUME_TIME_SPAN) and 345 (QUERY_SUBSCRIPTION_BY_CONSUMER)."""

    group: str
    topic: str


@late_dataclass
class GroupForbiddenRequestHeader(CommandHeader):
    """Request 353 (UPDATE_AND_GET_GROUP_FORBIDDEN). ``readable``: None to query without a change."""

    group: str
    topic: str
    readable: bool | None = None


@late_dataclass
class ConsumerGroupRequestHeader(CommandHeader):
    """Request 203 (GET_CONSUMER_CONNECTION_LIST)."""

    consumer_group: str


@late_dataclass
class ProducerGroupRequestHeader(CommandHeader):
    """Request 204 (GET_PRODUCER_CONNECTION_LIST)."""

    producer_group: str


@late_dataclass
class GetConsumeStatsRequestHeader(CommandHeader):
    """Request 208 (GET_CONSUME_STATS). ``topic_list``: names joined by ``;``, used in place of ``topic``; all topics if
    both are empty.
    """

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@late_dataclass
class ConsumerRunningInfoRequestHeader(CommandHeader):
    """Request 307 (GET_CONSUMER_RUNNING_INFO) to the broker, which forwards it to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@late_dataclass
class ConsumeMessageDirectlyRequestHeader(CommandHeader):
    """Request 309 (CONSUME_MESSAGE_DIRECTLY) to the broker, which forwards it to the client. ``msg_id``: offset id of
    the message.
    """

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None


@late_dataclass
class QueryCorrectionOffsetRequestHeader(CommandHeader):
    """Request 308 (QUERY_CORRECTION_OFFSET). ``filter_groups``: names of groups to leave out, joined by commas."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


@late_dataclass
class CloneGroupOffsetRequestHeader(CommandHeader):
    """Request 314 (CLONE_GROUP_OFFSET). ``offline``: whether to include topics that the group does not read now."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@late_dataclass
class ViewBrokerStatsDataRequestHeader(CommandHeader):
    """Request 315 (VIEW_BROKER_STATS_DATA)."""

    stats_name: str
    stats_key: str


@late_dataclass
class GetConsumeStatsInBrokerHeader(CommandHeader):
    """Request 317 (GET_BROKER_CONSUME_STATS). ``is_order``: whether to return only ordered topics."""

    is_order: bool = False


@late_dataclass
class QueryConsumeQueueRequestHeader(CommandHeader):
    """Request 321 (QUERY_CONSUME_QUEUE): asks for ``count`` consume queue units, starting at queue offset ``index``."""

    topic: str
    queue_id: Int
    index: Long
    count: Int
    consumer_group: str | None = None
