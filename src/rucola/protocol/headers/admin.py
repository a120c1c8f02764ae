"""Headers of requests about topics, groups and statistics (``protocol.md`` 2.7, 2.8)."""

from __future__ import annotations

from dataclasses import dataclass

from rucola.protocol.headers.header import CommandHeader, Int, Long


@dataclass(slots=True)
class CreateTopicRequestHeader(CommandHeader):
    """17.

    Attributes:
        perm: or of ``PermName`` bits.
        attributes: ``+name=value`` to set and ``-name`` to remove, joined by commas.
        force: change a topic even where the broker would refuse it.
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


@dataclass(slots=True)
class DeleteTopicRequestHeader(CommandHeader):
    """215."""

    topic: str


@dataclass(slots=True)
class DeleteSubscriptionGroupRequestHeader(CommandHeader):
    """207. ``clean_offset``: forget the group's progress too."""

    group_name: str
    clean_offset: bool = False


@dataclass(slots=True)
class TopicRequestHeader(CommandHeader):
    """202, 300 and 351."""

    topic: str


@dataclass(slots=True)
class GroupRequestHeader(CommandHeader):
    """343 and 352."""

    group: str


@dataclass(slots=True)
class GroupTopicRequestHeader(CommandHeader):
    """303 and 345."""

    group: str
    topic: str


@dataclass(slots=True)
class GroupForbiddenRequestHeader(CommandHeader):
    """353. ``readable``: None only asks."""

    group: str
    topic: str
    readable: bool | None = None


@dataclass(slots=True)
class ConsumerGroupRequestHeader(CommandHeader):
    """203."""

    consumer_group: str


@dataclass(slots=True)
class ProducerGroupRequestHeader(CommandHeader):
    """204."""

    producer_group: str


@dataclass(slots=True)
class GetConsumeStatsRequestHeader(CommandHeader):
    """208. ``topic_list``: names joined by ``;``, instead of one topic; none of either: all topics of the group."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@dataclass(slots=True)
class ConsumerRunningInfoRequestHeader(CommandHeader):
    """307, to the broker and on to the client."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


@dataclass(slots=True)
class ConsumeMessageDirectlyRequestHeader(CommandHeader):
    """309, to the broker and on to the client. ``msg_id``: the offset id of the message."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int | None = None
    group_sys_flag: Int | None = None


@dataclass(slots=True)
class QueryCorrectionOffsetRequestHeader(CommandHeader):
    """308. ``filter_groups``: groups that do not count, joined by commas."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


@dataclass(slots=True)
class CloneGroupOffsetRequestHeader(CommandHeader):
    """314. ``offline``: also topics that the group does not read now."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@dataclass(slots=True)
class ViewBrokerStatsDataRequestHeader(CommandHeader):
    """315."""

    stats_name: str
    stats_key: str


@dataclass(slots=True)
class GetConsumeStatsInBrokerHeader(CommandHeader):
    """317. ``is_order``: ordered topics only."""

    is_order: bool = False


@dataclass(slots=True)
class QueryConsumeQueueRequestHeader(CommandHeader):
    """321: ``count`` units from queue offset ``index`` on."""

    topic: str
    queue_id: Int
    index: Long
    count: Int
    consumer_group: str | None = None
