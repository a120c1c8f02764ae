"""Answers what administrators ask about lite topics (RocketMQ 5.5.0, ``LiteManagerProcessor``; requests 200074 to
200078). The list of lite topics, which RocketMQ has not, is asked for by 200075 with ``maxCount``. Event loop only.

Long answers are built in steps. The lag of a group is that of the lite topics in which it has an offset.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from heapq import heappush, heapreplace
from typing import Final

from rucola.broker.lite.attributes import EXPIRATION, EXPIRATION_MAX, LiteGroup, is_parent, lite_group
from rucola.broker.lite.delivery import LiteDelivery
from rucola.broker.lite.offsets import LiteOffsets
from rucola.broker.processor.pieces import Pieces
from rucola.broker.processor.responses import success
from rucola.broker.services import BrokerServices
from rucola.common.lite_topics import lite_queue_topic
from rucola.common.numbers import number_in
from rucola.common.topic_config import TopicConfig
from rucola.errors import BrokerError
from rucola.formats.light_queue import lite_topic
from rucola.formats.lite_offsets import NO_OFFSET
from rucola.protocol.bodies import Body
from rucola.protocol.bodies.lite import (
    ClientGroup,
    GetBrokerLiteInfoResponseBody,
    GetLiteClientInfoResponseBody,
    GetLiteGroupInfoResponseBody,
    GetLiteTopicInfoResponseBody,
    GetParentTopicInfoResponseBody,
    LiteLagInfo,
    LiteTopicListBody,
    LiteTopicRow,
)
from rucola.protocol.bodies.statistics import OffsetWrapper, TopicOffset
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.lite import (
    GetLiteClientInfoRequestHeader,
    GetLiteGroupInfoRequestHeader,
    GetLiteTopicInfoRequestHeader,
    GetParentTopicInfoRequestHeader,
    ListLiteTopicsRequestHeader,
)
from rucola.remoting.fairness.steps import Steps
from rucola.remoting.server import Channel
from rucola.store.lite.lite_topics import LiteTopics
from rucola.store.log.cold_read import ColdRecords, NotInMemoryError

STORE_TYPE: Final = "rucola"
NAMES_MAX: Final = 10_000
"""Most names in an answer."""
TOP_MAX: Final = 1000
"""Most lite topics of a group in an answer; the first unread message of each is read."""


class LiteAdminProcessor:
    """Answers from the lite topics, the offsets of groups, and what delivery knows of clients.

    Args:
        topics, offsets: those of the broker.
        delivery: knows the clients.
    """

    def __init__(
        self, services: BrokerServices, topics: LiteTopics, offsets: LiteOffsets, delivery: LiteDelivery
    ) -> None:
        self._services = services
        self._store = services.store
        self._topics = topics
        self._offsets = offsets
        self._delivery = delivery
        self._pieces = Pieces(services.cold_reads)

    def broker_info(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 200074: numbers of the broker, and all parents and groups of lite topics."""
        services = self._services
        groups: dict[str, set[str]] = {}
        for name, config in services.groups.table.items():
            settings = lite_group(config)
            if settings is not None:
                groups.setdefault(settings.bind_topic, set()).add(name)
        parents = {name: _expiration(config) for name, config in services.topics.table.items() if is_parent(config)}
        live = self._topics.live_count
        body = GetBrokerLiteInfoResponseBody(
            STORE_TYPE,
            services.config.max_lmq_consume_queue_num,
            live,
            self._delivery.subscription_count,
            self._delivery.block_count,
            live,
            len(services.offsets.table) + len(self._offsets),
            self._delivery.event_count,
            parents,
            {parent: frozenset(names) for parent, names in groups.items()},
        )
        return success(command, None, body)

    def parent_info(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Request 200075: a parent and its groups; with ``maxCount``, lite topics of it."""
        if "maxCount" in command.ext_fields:
            return self._pieces.answer(command, partial(self._list, command))
        topic = GetParentTopicInfoRequestHeader.from_ext_fields(command.ext_fields).topic
        parent = self._parent(topic)
        table = self._services.groups.table
        groups = {name: lite_group(config) for name, config in table.items()}
        readers = frozenset(name for name, own in groups.items() if own is not None and own.bind_topic == topic)
        count = self._topics.parents().get(_bytes(topic), 0)
        body = GetParentTopicInfoResponseBody(topic, _expiration(parent), readers, self._topics.live_count, count)
        return success(command, None, body)

    def topic_info(self, _channel: Channel, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        """Request 200076: offsets and readers of a lite topic."""
        return self._topic_info(command)

    async def _topic_info(self, command: RemotingCommand) -> RemotingCommand:
        header = GetLiteTopicInfoRequestHeader.from_ext_fields(command.ext_fields)
        self._parent(header.parent_topic)
        is_own = await self._delivery.control.owns(header.parent_topic, header.lite_topic)
        return await self._pieces.answer(command, partial(self._topic_body, header, is_own))

    def client_info(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 200077: a client and its lite topics; -1 of them if the client is not known."""
        header = GetLiteClientInfoRequestHeader.from_ext_fields(command.ext_fields)
        if header.max_count <= 0:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"maxCount {header.max_count}: 1 or more is allowed")
        self._parent(header.parent_topic)
        if self._group(header.group).bind_topic != header.parent_topic:
            what = f"Subscription [{header.group}]-[{header.parent_topic}] not match."
            raise BrokerError(ResponseCode.INVALID_PARAMETER, what)
        body = GetLiteClientInfoResponseBody(header.parent_topic, header.group, header.client_id)
        found = self._delivery.client_info(header.group, header.client_id, min(header.max_count, NAMES_MAX))
        if found is None:
            body.last_access_time, body.lite_topic_count = -1, -1
        else:
            body.last_access_time, body.last_consume_time = found.accessed_ms, found.consumed_ms
            body.lite_topic_count = found.names_count
            body.lite_topic_set = frozenset(_text(lite_topic(name)) for name in found.names)
        return success(command, None, body)

    def group_info(self, _channel: Channel, command: RemotingCommand) -> Awaitable[RemotingCommand]:
        """Request 200078: how far a group is behind, in one lite topic or in all."""
        header = GetLiteGroupInfoRequestHeader.from_ext_fields(command.ext_fields)
        settings = self._group(header.group)
        build = self._group_body if not header.lite_topic else self._lag_body
        return self._pieces.answer(command, partial(build, header, settings.bind_topic))

    # -- bodies --------------------------------------------------------------------------------------------------------

    def _topic_body(self, header: GetLiteTopicInfoRequestHeader, is_own: bool, cold: ColdRecords) -> Steps[Body]:
        yield
        topic = _bytes(lite_queue_topic(header.parent_topic, header.lite_topic))
        low, high = self._store.queue_range(topic, 0)
        readers = self._delivery.readers_of(_bytes(f"{header.parent_topic}${header.lite_topic}"))
        return GetLiteTopicInfoResponseBody(
            header.parent_topic,
            header.lite_topic,
            [ClientGroup(reader.client_id, reader.group) for reader in readers],
            TopicOffset(low, high, max(self._time_of(topic, high - 1, cold), 0)),
            is_own,
        )

    def _lag_body(self, header: GetLiteGroupInfoRequestHeader, parent: str, cold: ColdRecords) -> Steps[Body]:
        yield
        body = GetLiteGroupInfoResponseBody(header.group, parent, header.lite_topic, -1, -1)
        name_id = self._topics.names.find(_bytes(f"{parent}${header.lite_topic}"))
        if name_id < 0:
            return body
        body.total_lag_count = 0
        consumed = self._offsets.get(header.group, name_id)
        if consumed == NO_OFFSET:
            return body
        topic = lite_topic(self._topics.names.name(name_id))
        body.total_lag_count = self._lag(name_id, consumed)
        if body.total_lag_count:
            body.earliest_unconsumed_timestamp = self._first_unread_ms(name_id, consumed, cold)
        end = self._topics.columns.nexts[name_id]
        last_ms = max(self._time_of(topic, consumed - 1, cold), 0)
        body.lite_topic_offset_wrapper = OffsetWrapper(end, consumed, 0, last_ms)
        return body

    def _group_body(self, header: GetLiteGroupInfoRequestHeader, parent: str, cold: ColdRecords) -> Steps[Body]:
        body = GetLiteGroupInfoResponseBody(header.group, parent, None, -1)
        count = min(max(header.top_k, 0), TOP_MAX)
        number, times = self._topics.names.find_parent(_bytes(parent)), self._topics.columns.times
        by_lag: list[tuple[int, int, int]] = []
        by_time: list[tuple[int, int, int]] = []
        for rows in self._offsets.rows_of(header.group):
            for name_id, consumed in rows:
                lag = self._lag(name_id, consumed) if self._topics.names.parents[name_id] == number else 0
                if lag:
                    body.total_lag_count += lag
                    _keep_largest(by_lag, (lag, name_id, consumed), count)
                    _keep_largest(by_time, (-times[name_id], name_id, consumed), count)
            yield
        body.lag_count_top_k = [self._row(name_id, at, cold) for _, name_id, at in sorted(by_lag, reverse=True)]
        yield
        oldest = [self._row(name_id, at, cold) for _, name_id, at in by_time]
        oldest.sort(key=lambda row: row.earliest_unconsumed_timestamp)
        body.lag_timestamp_top_k = oldest
        known = [row.earliest_unconsumed_timestamp for row in (*body.lag_count_top_k, *oldest)]
        body.earliest_unconsumed_timestamp = min((at for at in known if at > 0), default=-1)
        return body

    def _list(self, command: RemotingCommand, cold: ColdRecords) -> Steps[Body]:
        header = ListLiteTopicsRequestHeader.from_ext_fields(command.ext_fields)
        self._parent(header.topic)
        if header.group and self._group(header.group).bind_topic != header.topic:
            what = f"Subscription [{header.group}]-[{header.topic}] not match."
            raise BrokerError(ResponseCode.INVALID_PARAMETER, what)
        count = min(max(header.max_count, 1), NAMES_MAX)
        prefix = _bytes(f"{header.topic}${header.prefix or ''}")
        rows: list[LiteTopicRow] = []
        first: int | None = max(header.start, 0)
        while first is not None and len(rows) < count:
            found = self._topics.names_of(_bytes(header.topic), first, min(65_536, count - len(rows)))
            rows += [self._list_row(name, header.group) for name in found.names if name.startswith(prefix)]
            first = found.following
            yield
        return LiteTopicListBody(rows, -1 if first is None else first)

    def _list_row(self, name: bytes, group: str | None) -> LiteTopicRow:
        name_id = self._topics.names.find(name)
        consumed = self._offsets.get(group, name_id) if group else NO_OFFSET
        low, end = self._topics.min_offset(name_id), self._topics.columns.nexts[name_id]
        lag = end - min(max(consumed, low), end) if group else -1
        lite = _text(name.partition(b"$")[2])
        return LiteTopicRow(lite, low, end, consumed, lag, self._topics.columns.times[name_id] * 1000)

    def _row(self, name_id: int, consumed: int, cold: ColdRecords) -> LiteLagInfo:
        name = self._topics.names.name(name_id)
        lite = _text(name.partition(b"$")[2])
        return LiteLagInfo(lite, self._lag(name_id, consumed), self._first_unread_ms(name_id, consumed, cold))

    # -- numbers -------------------------------------------------------------------------------------------------------

    def _lag(self, name_id: int, consumed: int) -> int:
        """Number of messages that a group has not consumed; those that expired with the log may count."""
        end = self._topics.columns.nexts[name_id]
        return end - min(max(consumed, self._topics.columns.starts[name_id]), end)

    def _first_unread_ms(self, name_id: int, consumed: int, cold: ColdRecords) -> int:
        topic = lite_topic(self._topics.names.name(name_id))
        return self._time_of(topic, max(consumed, self._topics.min_offset(name_id)), cold) or -1

    def _time_of(self, topic: bytes, queue_offset: int, cold: ColdRecords) -> int:
        """Store time of a message; 0 if there is none, or if it must be fetched, which ``cold`` notes."""
        with suppress(NotInMemoryError):
            return max(self._store.store_time_at(topic, 0, queue_offset, cold), 0) if queue_offset >= 0 else 0
        return 0

    def _parent(self, topic: str) -> TopicConfig:
        config = self._services.topics.get(topic)
        if config is None:
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{topic}] not exist.")
        if not is_parent(config):
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"Topic [{topic}] type not match.")
        return config

    def _group(self, group: str) -> LiteGroup:
        config = self._services.groups.table.get(group)
        if config is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{group}] not exist.")
        settings = lite_group(config)
        if settings is None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"Group [{group}] is not a LITE group.")
        return settings


def _keep_largest(heap: list[tuple[int, int, int]], entry: tuple[int, int, int], count: int) -> None:
    if len(heap) < count:
        heappush(heap, entry)
    elif heap and heap[0] < entry:
        heapreplace(heap, entry)


def _expiration(config: TopicConfig) -> int:
    minutes = number_in(config.attributes.get(EXPIRATION, ""), -1, EXPIRATION_MAX)
    return -1 if minutes is None else minutes


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
