"""Shows, compares and copies the progress of groups (RocketMQ 5.3.3, ``AdminBrokerProcessor``; requests 43, 45, 308,
314).
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from rucola.broker.client.consumer_manager import ConsumerManager
from rucola.broker.lite import slave_rows
from rucola.broker.offset.consumer_offset_manager import (
    LITE_EXPORTED_MAX,
    ConsumerOffsetManager,
    topics_by_group,
)
from rucola.broker.processor.responses import success
from rucola.broker.processor.whole_table import Encode, WholeTable
from rucola.broker.schedule.schedule_message_service import ScheduleMessageService
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.broker.topic.topic_validator import is_group_name
from rucola.common.data_version import DataVersion
from rucola.common.numbers import INT64_MAX
from rucola.errors import BrokerError
from rucola.protocol.bodies.offsets import ConsumerOffsetSerializeWrapper, CorrectionOffsetBody
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.admin import CloneGroupOffsetRequestHeader, QueryCorrectionOffsetRequestHeader
from rucola.protocol.headers.lite import LiteRowsRequestHeader, LiteRowsResponseHeader
from rucola.remoting.fairness.steps import in_turns
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel
from rucola.store.message_store import MessageStore

if TYPE_CHECKING:
    from rucola.broker.lite.offsets import LiteOffsets


class OffsetManageProcessor:
    """Answers from the table of consumer offsets."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicConfigManager,
        consumers: ConsumerManager,
        offsets: ConsumerOffsetManager,
        schedule: ScheduleMessageService,
    ) -> None:
        self._store = store
        self._topics = topics
        self._consumers = consumers
        self._offsets = offsets
        self._schedule = schedule
        self._whole = WholeTable(self._copy)

    def all_offsets(self, _channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Request 43: all consumer offsets; a slave of ours may ask for rows of lite topics instead."""
        if slave_rows.ROW in command.ext_fields and self._offsets.lite is not None:
            return self._lite_rows(command, self._offsets.lite)
        return self._whole.answer(command)

    async def _lite_rows(self, command: RemotingCommand, lite: LiteOffsets) -> RemotingCommand:
        first = LiteRowsRequestHeader.from_ext_fields(command.ext_fields).lite_row
        rows, following = await in_turns(slave_rows.page(self._store, lite, first))
        fields = LiteRowsResponseHeader(following).to_ext_fields()
        return command.answer(ResponseCode.SUCCESS, ext_fields=fields, body=rows)

    def _copy(self) -> Encode:
        return partial(_encoded, self._offsets.copied_table(), self._offsets.data_version, self._offsets.lite)

    def delay_offsets(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 45: the progress of the delay levels. A slave writes the body to its ``delayOffset.json``
        unchanged.
        """
        return command.answer(ResponseCode.SUCCESS, body=self._schedule.encode())

    def correction_offsets(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 308: for each queue, the smallest offset of all groups except those in ``filterGroups``. Offsets of
        removed messages are not considered. If the offset of ``compareGroup`` is smaller than the result, 2^63 - 1 is
        returned for the queue.
        """
        header = QueryCorrectionOffsetRequestHeader.from_ext_fields(command.ext_fields)
        left_out = {group.strip() for group in (header.filter_groups or "").split(",")}
        slowest: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic):
            if group in left_out:
                continue
            for queue_id, consumer_offset in self._offsets.table[f"{header.topic}@{group}"].items():
                if consumer_offset >= self._store.min_queue_offset(header.topic.encode(), queue_id):
                    slowest[queue_id] = min(slowest.get(queue_id, INT64_MAX), consumer_offset)
        for queue_id, consumer_offset in self._offsets.table.get(f"{header.topic}@{header.compare_group}", {}).items():
            if slowest.get(queue_id, 0) > consumer_offset:
                slowest[queue_id] = INT64_MAX
        return success(command, None, CorrectionOffsetBody(slowest))

    def clone_offsets(self, _channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 314: copies the progress of one group to another."""
        header = CloneGroupOffsetRequestHeader.from_ext_fields(command.ext_fields)
        if not is_group_name(header.dest_group):
            raise BrokerError(ResponseCode.INVALID_PARAMETER, "destGroup is not the name of a group")
        topics = [header.topic] if header.topic else self._offsets.topics_of(header.src_group)
        for topic in topics:
            if self._topics.get(topic) is None:
                continue
            if header.offline or self._consumers.reads(header.src_group, topic):
                self._offsets.clone(header.src_group, header.dest_group, topic)
        return success(command)


def _encoded(table: dict[str, dict[int, int]], version: DataVersion, lite: LiteOffsets | None) -> bytes:
    """Runs in a thread. Offsets in lite topics are for slaves, unless there are very many."""
    if lite is not None and 0 < len(lite) <= LITE_EXPORTED_MAX:
        table |= lite.table()
    return ConsumerOffsetSerializeWrapper(table, version, topics_by_group(table)).encode()
