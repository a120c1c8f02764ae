"""What answers say, as parts of a snapshot. Pure functions over answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from rucola.common.key_builder import SYSTEM_GROUP_PREFIX
from rucola.common.message_queue import MessageQueue
from rucola.common.mq_version import MQVersion
from rucola.common.numbers import INT64_MAX, number_in
from rucola.common.topic_config import MESSAGE_TYPE, TopicConfig
from rucola.console.cluster.asking import Unknown
from rucola.console.cluster.snapshot import BrokerState, GroupOnTopic, Member, ReplicaState, TopicOn
from rucola.protocol.bodies.connections import Connection
from rucola.protocol.bodies.ha import HARuntimeInfo
from rucola.protocol.bodies.statistics import ConsumeStats, ConsumeStatsList, OffsetWrapper, TopicStatsTable

_SYSTEM_GROUPS = frozenset(
    {"TOOLS_CONSUMER", "SCHEDULE_CONSUMER", "FILTERSRV_CONSUMER", "__MONITOR_CONSUMER", "SELF_TEST_C_GROUP"}
    | {"CLIENT_ONSAPI_OWNER", "CLIENT_ONSAPI_PERMISSION", "CLIENT_ONSAPI_INNER_GROUP", "CID_ONSAPI_OWNER"}
    | {"CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONS-HTTP-PROXY", "CID_SYS_RMQ_TRANS", "CID_ONS_HTTP_PROXY"}
)
"""Groups that every broker of RocketMQ has (5.3.3, ``SubscriptionGroupManager#init``)."""


def is_system_group(name: str) -> bool:
    """Whether a group belongs to brokers or tools."""
    return name in _SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


def version_text(ordinal: int) -> str:
    """The release of a version ordinal, such as ``5.3.3``; the ordinal itself if it is none that is known."""
    try:
        return MQVersion(ordinal).name.removeprefix("V").replace("_", ".")
    except ValueError:
        return f"#{ordinal}"


def with_runtime(broker: BrokerState, answer: Mapping[str, str] | Unknown, now_ms: int) -> BrokerState:
    """A broker after an answer to GET_BROKER_RUNTIME_INFO; without one, its figures stay and get older."""
    if isinstance(answer, Unknown):
        return replace(broker, unknown=answer)
    return replace(
        broker,
        unknown=None,
        seen_ms=now_ms,
        version=answer.get("brokerVersionDesc", "").removeprefix("V").replace("_", ".") or None,
        in_rate=_first_number(answer.get("putTps")),
        out_rate=_first_number(answer.get("getTransferredTps")),
        disk_ratio=_ratio(answer.get("commitLogDiskRatio")),
        log_min_offset=_whole(answer.get("commitLogMinOffset")),
        log_max_offset=_whole(answer.get("commitLogMaxOffset")),
        earliest_ms=_time(answer.get("earliestMessageTimeStamp")),
        boot_ms=_time(answer.get("bootTimestamp")),
        longest_turn_ms=_first_number(answer.get("longestTurnMs")),
        runtime=dict(answer),
    )


def slaves_of(answer: HARuntimeInfo) -> tuple[ReplicaState, ...] | None:
    """The slaves of a master; None if the answer is a slave's."""
    if not answer.master:
        return None
    return tuple(ReplicaState(one.addr, one.diff, one.in_sync) for one in answer.ha_connection_info)


def topic_on(broker: str, config: TopicConfig) -> TopicOn:
    """A topic's configuration on one broker."""
    return TopicOn(broker, config.read_queue_nums, config.write_queue_nums, int(config.perm))


def message_type(configs: Iterable[TopicConfig]) -> str:
    """The attribute ``message.type`` of a topic."""
    return next((kind for config in configs if (kind := config.attributes.get(MESSAGE_TYPE))), "")


def queue_sums(answers: Iterable[TopicStatsTable]) -> tuple[int, int, int | None]:
    """Messages, sum of the maximum offsets, and newest store time of a topic's queues."""
    offsets = [offset for answer in answers for offset in answer.offset_table.values()]
    newest = max((offset.last_update_timestamp for offset in offsets), default=0)
    messages = sum(offset.max_offset - offset.min_offset for offset in offsets)
    return messages, sum(offset.max_offset for offset in offsets), newest if newest > 0 else None


def progress(answers: Iterable[ConsumeStatsList]) -> dict[str, tuple[list[ConsumeStats], dict[str, GroupOnTopic]]]:
    """The progress of each group, by name: the statistics of the brokers, and one entry for each topic."""
    found: dict[str, list[ConsumeStats]] = {}
    for answer in answers:
        for groups in answer.consume_stats_list:
            for group, stats in groups.items():
                found.setdefault(group, []).extend(stats)
    return {group: (stats, _by_topic(stats)) for group, stats in found.items()}


def lag_of(wrapper: OffsetWrapper) -> int:
    """Messages of a queue that a group has not consumed. Offsets of a group may lie behind a queue that was deleted."""
    return max(wrapper.broker_offset - wrapper.consumer_offset, 0)


def member(connection: Connection, broker: str) -> Member:
    """A client of a group."""
    return Member(
        connection.client_id,
        connection.client_addr,
        connection.language,
        version_text(connection.version),
        broker,
    )


def _by_topic(stats: list[ConsumeStats]) -> dict[str, GroupOnTopic]:
    queues: dict[str, dict[MessageQueue, OffsetWrapper]] = {}
    for one in stats:
        for queue, wrapper in one.offset_table.items():
            queues.setdefault(queue.topic, {})[queue] = wrapper
    return {topic: group_on_topic(topic, list(table.values())) for topic, table in sorted(queues.items())}


def group_on_topic(topic: str, wrappers: list[OffsetWrapper]) -> GroupOnTopic:
    """A group's progress in one topic, from all its queues."""
    consumed = [one.last_timestamp for one in wrappers if lag_of(one) and one.last_timestamp > 0]
    return GroupOnTopic(topic, sum(map(lag_of, wrappers)), min(consumed, default=None), len(wrappers))


def _first_number(text: str | None) -> float | None:
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return None


def _ratio(text: str | None) -> float | None:
    value = _first_number(text)
    return value if value is not None and 0 <= value <= 1 else None


def _whole(text: str | None) -> int | None:
    return number_in(text or "", 0, INT64_MAX)


def _time(text: str | None) -> int | None:
    return number_in(text or "", 1, INT64_MAX)
