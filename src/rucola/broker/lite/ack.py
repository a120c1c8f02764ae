"""Acknowledges messages of lite topics and changes their invisible time (RocketMQ 5.5.0; requests 200051 and 200053
with ``liteTopic``). The parent is the ``topic``, and the offset is that in the lite topic.

The response is sent at once: an acknowledgement that a crash undoes makes its message come again, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

from rucola.broker.lite.attributes import lite_group
from rucola.broker.lite.checks import name_of
from rucola.broker.lite.leases import Acknowledged, LiteLeases, ReadProgress
from rucola.broker.lite.reading_group import ReadingGroup
from rucola.broker.pop.checks import no_topic
from rucola.broker.pop.receipt import Receipt
from rucola.broker.processor.responses import NO_CODE
from rucola.broker.services import BrokerServices
from rucola.common.key_builder import lite_parts
from rucola.errors import BrokerError
from rucola.protocol.bodies.pop import BatchAck
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)

_ILLEGAL_OFFSET, _ILLEGAL_QUEUE = "ack offset illegal.", "ack queue illegal."


class LiteAckProcessor:
    """Serves acknowledgements. Event loop only.

    Args:
        group_of: returns a reading group by its name and parent; makes it if it is not known.
        monotonic_ms: the time of leases.
        settle: called after each request.
    """

    def __init__(
        self,
        services: BrokerServices,
        progress: ReadProgress,
        leases: LiteLeases,
        group_of: Callable[[str, str], ReadingGroup],
        monotonic_ms: Callable[[], int],
        settle: Callable[[], None],
    ) -> None:
        self._services = services
        self._progress = progress
        self._leases = leases
        self._group_of = group_of
        self._monotonic_ms = monotonic_ms
        self._settle = settle
        self._lease_max_ms = services.store.config.timer_max_delay_sec * 1000

    def ack(self, command: RemotingCommand) -> RemotingCommand:
        """Request 200051 with ``liteTopic``."""
        header = AckMessageRequestHeader.from_ext_fields(command.ext_fields)
        name = self._name(header.topic, header.lite_topic)
        receipt = Receipt.decode(header.extra_info)
        if header.queue_id != 0 or not receipt.ordered:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, _ILLEGAL_QUEUE)
        if not self._reads(header.consumer_group, header.topic) or name is None:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, "group type or bind topic not match.")
        group = self._group_of(header.consumer_group, header.topic)
        done = self._leases.acknowledge(group, name, header.offset, receipt.pop_time_ms, self._monotonic_ms())
        self._settle()
        if done is Acknowledged.BEYOND:
            raise BrokerError(ResponseCode.NO_MESSAGE, _ILLEGAL_OFFSET)
        if done is Acknowledged.NOT_IN_BATCH:
            raise BrokerError(ResponseCode.MESSAGE_ILLEGAL, _ILLEGAL_OFFSET)
        return command.answer(ResponseCode.SUCCESS)

    def ack_batch(self, batch: BatchAck) -> None:
        """Acknowledges messages of a lite topic that a request 200151 names by its light queue. Those that cannot be
        acknowledged are skipped. RocketMQ knows no lite topics there.
        """
        parent, lite = lite_parts(batch.topic) or ("", "")
        name = name_of(parent, lite)
        if name is None or not self._reads(batch.consumer_group, parent):
            return
        group, now_ms = self._group_of(batch.consumer_group, parent), self._monotonic_ms()
        for queue_offset in batch.queue_offsets():
            self._leases.acknowledge(group, name, queue_offset, batch.pop_time, now_ms)
        self._settle()

    def change_invisible_time(self, command: RemotingCommand) -> RemotingCommand:
        """Request 200053 with ``liteTopic``. What does not fit is answered as if it had been done, as in RocketMQ."""
        header = ChangeInvisibleTimeRequestHeader.from_ext_fields(command.ext_fields)
        try:
            name = self._name(header.topic, header.lite_topic)
            receipt = Receipt.decode(header.extra_info)
            if name is not None and header.offset > self._progress.max_offset(name):
                raise BrokerError(ResponseCode.NO_MESSAGE, NO_CODE)
        except BrokerError as refusal:
            return command.answer(refusal.code, refusal.remark, ChangeInvisibleTimeResponseHeader().to_ext_fields())
        lease_ms = min(max(header.invisible_time, 0), self._lease_max_ms)
        fits = header.queue_id == 0 and receipt.ordered and self._reads(header.consumer_group, header.topic)
        if fits and name is not None:
            group = self._group_of(header.consumer_group, header.topic)
            now_ms = self._monotonic_ms()
            if header.suspend:
                self._leases.suspend(group, name, header.offset, receipt.pop_time_ms, now_ms, now_ms + lease_ms)
            else:
                self._leases.hide(group, name, header.offset, receipt.pop_time_ms, now_ms, now_ms + lease_ms)
            self._settle()
        visible_ms = self._services.store.now_ms() + lease_ms
        answer = ChangeInvisibleTimeResponseHeader(
            receipt.pop_time_ms, visible_ms - receipt.pop_time_ms, receipt.revive_queue
        )
        return command.answer(ResponseCode.SUCCESS, NO_CODE, answer.to_ext_fields())

    def _name(self, parent: str, lite: str | None) -> bytes | None:
        if self._services.topics.get(parent) is None:
            raise no_topic(parent)
        return name_of(parent, lite or "")

    def _reads(self, group: str, parent: str) -> bool:
        """Whether a group reads the lite topics of a parent."""
        config = self._services.groups.table.get(group)
        settings = None if config is None else lite_group(config)
        return settings is not None and settings.bind_topic == parent
