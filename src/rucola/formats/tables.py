"""The tables that a broker keeps in ``config/``: topics, groups, filters, offsets of consumers and of delay levels.

Each pair of functions decodes and encodes the content of one file. The code that owns a file replaces it as a whole,
and reads its ``.bak`` when the file is damaged. Unknown members are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from rucola.common.data_version import DataVersion
from rucola.common.java import hash_map_order
from rucola.common.key_builder import is_light_queue
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.topic_config import TopicConfig
from rucola.errors import FormatError
from rucola.formats.config_json import (
    ENTRY_LINE,
    dump_entry,
    dump_text,
    dump_value,
    dumps_pretty,
    dumps_table,
    loads_object,
)

_Value = TypeVar("_Value")
_FIELD_LINE = ENTRY_LINE + "\t"


def topic_pieces(version: DataVersion, topics: Mapping[str, TopicConfig]) -> Iterator[bytes]:
    """Yields the content of ``topics.json`` piece by piece."""
    entries = (dump_entry(name, _topic_text(topic)) for name, topic in topics.items())
    return dumps_table({"dataVersion": version.to_dict()}, "topicConfigTable", entries)


def decode_topics(text: bytes) -> tuple[DataVersion, dict[str, TopicConfig]]:
    """Decodes ``topics.json``.

    Raises:
        FormatError: ``text`` does not have this format.
    """
    root = loads_object(text, "topics.json")
    return _version(root, "topics.json"), _table(root, "topicConfigTable", TopicConfig.from_dict, "topics.json")


class SubscriptionGroupTable(NamedTuple):
    """The content of ``subscriptionGroup.json``; ``forbidden`` maps each group to a bit mask per topic."""

    data_version: DataVersion
    groups: dict[str, SubscriptionGroupConfig]
    forbidden: dict[str, dict[str, int]]


def subscription_group_pieces(
    version: DataVersion,
    groups: Mapping[str, SubscriptionGroupConfig],
    forbidden: Mapping[str, Mapping[str, int]],
) -> Iterator[bytes]:
    """Yields the content of ``subscriptionGroup.json`` piece by piece."""
    entries = (dump_entry(name, _group_text(group)) for name, group in groups.items())
    return dumps_table(
        {"dataVersion": version.to_dict(), "forbiddenTable": forbidden}, "subscriptionGroupTable", entries
    )


def decode_subscription_groups(text: bytes) -> SubscriptionGroupTable:
    """Decodes ``subscriptionGroup.json``.

    Raises:
        FormatError: ``text`` does not have this format.
    """
    what = "subscriptionGroup.json"
    root = loads_object(text, what)
    return SubscriptionGroupTable(
        _version(root, what),
        _table(root, "subscriptionGroupTable", SubscriptionGroupConfig.from_dict, what),
        _table(root, "forbiddenTable", _integers, what),
    )


def consumer_offset_pieces(
    version: DataVersion, offsets: Mapping[str, Mapping[int, int]], light: bool = False
) -> Iterator[bytes]:
    """Yields the content of ``consumerOffset.json`` or ``lmqConsumerOffset.json`` piece by piece.

    Args:
        offsets: for each ``topic@group``, a map from queue id to consumer offset.
        light: whether to write ``lmqConsumerOffset.json``. In this file, groups that begin with ``%LMQ%`` have a single
            offset per topic, because the queue id of a light queue is always 0.
    """
    topics: dict[str, list[str]] = {}
    tables: dict[str, Mapping[int, int]] = {}
    light_table: dict[str, int] = {}
    for key, queues in offsets.items():
        topic, _, group = key.partition("@")
        if light and is_light_queue(group):
            if 0 in queues:
                light_table[key] = queues[0]
            continue
        tables[key] = queues
        topics.setdefault(group, []).append(topic)
    head = {
        "dataVersion": version.to_dict(),
        # For people who read the file: the topics of each group, on one line, in HashSet order, as in RocketMQ.
        "groupTopicMap": {group: tuple(hash_map_order(names, 2)) for group, names in topics.items()},
        **({"lmqOffsetTable": light_table} if light else {}),
    }
    entries = (dump_entry(key, _queues_text(queues)) for key, queues in tables.items())
    yield from dumps_table(head, "offsetTable", entries)


def decode_consumer_offsets(text: bytes) -> tuple[DataVersion, dict[str, dict[int, int]]]:
    """Decodes ``consumerOffset.json`` or ``lmqConsumerOffset.json``.

    Raises:
        FormatError: ``text`` does not have this format.
    """
    what = "consumerOffset.json"
    root = loads_object(text, what)
    light = _table(root, "lmqOffsetTable", lambda consumer_offset: {0: int(consumer_offset)}, what)
    return _version(root, what), light | _table(root, "offsetTable", _by_integer, what)


def encode_delay_offsets(version: DataVersion, offsets: Mapping[int, int]) -> bytes:
    """Returns the content of ``delayOffset.json``.

    Args:
        offsets: the next queue offset of each delay level.
    """
    return dumps_pretty({"dataVersion": version.to_dict(), "offsetTable": dict(offsets)})


def decode_delay_offsets(text: bytes) -> tuple[DataVersion, dict[int, int]]:
    """Decodes ``delayOffset.json``.

    Raises:
        FormatError: ``text`` does not have this format.
    """
    what = "delayOffset.json"
    root = loads_object(text, what)
    try:
        return _version(root, what), _by_integer(root.get("offsetTable") or {})
    except (TypeError, ValueError, AttributeError) as error:
        raise FormatError(what, 0, "offsets by level", str(error)) from error


class ConsumerFilter(NamedTuple):
    """Entry of ``consumerFilter.json`` for a group that reads a topic with an SQL92 expression.

    Attributes:
        bits: size of the bloom filter in bits, 0 without a filter.
        bit_positions: the group's bits in the bloom filter.
        born_ms, dead_ms: when the group subscribed, and when its last member left (0 while it has members).
        client_version: version of the subscription.
    """

    group: str
    topic: str
    expression: str
    expression_type: str
    born_ms: int
    dead_ms: int
    client_version: int
    bits: int = 0
    bit_positions: tuple[int, ...] = ()

    @property
    def dead(self) -> bool:
        """Whether all members have left (RocketMQ 5.3.3, ``ConsumerFilterData#isDead``)."""
        return self.dead_ms >= self.born_ms


def consumer_filter_pieces(filters: Mapping[str, Mapping[str, ConsumerFilter]]) -> Iterator[bytes]:
    """Yields the content of ``consumerFilter.json`` piece by piece.

    Args:
        filters: for each topic, a map from group to filter.
    """

    def entry(topic: str, groups: Mapping[str, ConsumerFilter]) -> str:
        data = {"groupFilterData": {name: _filter_dict(each) for name, each in groups.items()}, "topic": topic}
        return dump_entry(topic, dump_value(data, ENTRY_LINE))

    return dumps_table({}, "filterDataByTopic", (entry(topic, groups) for topic, groups in filters.items()))


def decode_consumer_filters(text: bytes) -> dict[str, dict[str, ConsumerFilter]]:
    """Decodes ``consumerFilter.json``; for each topic, a map from group to filter.

    Raises:
        FormatError: ``text`` does not have this format.
    """
    what = "consumerFilter.json"
    root = loads_object(text, what)
    return _table(
        root,
        "filterDataByTopic",
        lambda entry: {name: _filter(data) for name, data in (entry.get("groupFilterData") or {}).items()},
        what,
    )


def _topic_text(topic: TopicConfig) -> str:
    """Returns what ``dump_value`` returns for ``topic.to_dict()``, but takes a tenth of the time."""
    line = _FIELD_LINE
    return (
        f'{{{line}"attributes":{dump_value(dict(topic.attributes), line) if topic.attributes else "{}"},'
        f'{line}"order":{"true" if topic.order else "false"},{line}"perm":{int(topic.perm)},'
        f'{line}"readQueueNums":{topic.read_queue_nums},{line}"topicFilterType":"{topic.topic_filter_type.value}",'
        f'{line}"topicName":{dump_text(topic.topic_name)},{line}"topicSysFlag":{topic.topic_sys_flag},'
        f'{line}"writeQueueNums":{topic.write_queue_nums}{ENTRY_LINE}}}'
    )


_USUAL_GROUP = SubscriptionGroupConfig("")
_USUAL_GROUP_TEXT = dump_value(_USUAL_GROUP.to_dict(), ENTRY_LINE)
_GROUP_NAME = '"groupName":""'


def _group_text(group: SubscriptionGroupConfig) -> str:
    """Returns what ``dump_value`` returns for ``group.to_dict()``. Most groups have only default options; their names
    are inserted into one prepared text.
    """
    if replace(group, group_name="") == _USUAL_GROUP:
        return _USUAL_GROUP_TEXT.replace(_GROUP_NAME, f'"groupName":{dump_text(group.group_name)}', 1)
    return dump_value(group.to_dict(), ENTRY_LINE)


def _queues_text(queues: Mapping[int, int]) -> str:
    if not queues:
        return "{}"
    return "{" + ",".join([f"{queue_id}:{offset}" for queue_id, offset in queues.items()]) + ENTRY_LINE + "}"


def _filter_dict(data: ConsumerFilter) -> dict[str, Any]:
    bloom = {"bloomFilterData": {"bitNum": data.bits, "bitPos": data.bit_positions}} if data.bits else {}
    return bloom | {
        "bornTime": data.born_ms,
        "clientVersion": data.client_version,
        "consumerGroup": data.group,
        "dead": data.dead,
        "deadTime": data.dead_ms,
        "expression": data.expression,
        "expressionType": data.expression_type,
        "topic": data.topic,
    }


def _filter(data: Mapping[str, Any]) -> ConsumerFilter:
    bloom = data.get("bloomFilterData") or {}
    return ConsumerFilter(
        str(data["consumerGroup"]),
        str(data["topic"]),
        str(data["expression"]),
        str(data["expressionType"]),
        int(data.get("bornTime") or 0),
        int(data.get("deadTime") or 0),
        int(data.get("clientVersion") or 0),
        int(bloom.get("bitNum") or 0),
        tuple(map(int, bloom.get("bitPos") or ())),
    )


def _version(root: Mapping[str, Any], what: str) -> DataVersion:
    try:
        return DataVersion.from_dict(root.get("dataVersion") or {})
    except (TypeError, ValueError, AttributeError) as error:
        raise FormatError(what, 0, "a dataVersion whose members are integers", str(error)) from error


def _table(root: Mapping[str, Any], name: str, value_of: Callable[[Any], _Value], what: str) -> dict[str, _Value]:
    """Returns the member ``name``, a map; ``value_of`` converts its values."""
    key = ""
    result: dict[str, _Value] = {}
    try:
        for key, value in (root.get(name) or {}).items():
            result[key] = value_of(value)
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        raise FormatError(what, 0, f"a valid entry {key!r} in {name}", str(error)) from error
    return result


def _by_integer(data: Mapping[str, Any]) -> dict[int, int]:
    return {int(key): int(value) for key, value in data.items()}


def _integers(data: Mapping[str, Any]) -> dict[str, int]:
    return {key: int(value) for key, value in data.items()}
