"""Handles requests that administrators send to a push consumer through its brokers.

Source: RocketMQ 5.3.3, ``ClientRemotingProcessor``.
"""

from __future__ import annotations

import asyncio
import traceback

from rucola.client.application_call import FailedCall
from rucola.client.consume_by_iteration import ConsumeByIteration
from rucola.client.consume_concurrently import ConsumeConcurrently
from rucola.client.consume_orderly import ConsumeOrderly
from rucola.client.consumer_config import PushConsumerConfig
from rucola.client.group_member import GroupMember
from rucola.client.listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Meaning,
    ReconsumeLater,
    Status,
)
from rucola.client.process_queue import OrderlyProcessQueue, ProcessQueue
from rucola.client.push_service import Consumption, PushService
from rucola.common import message_const
from rucola.common.message import MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.mq_version import CURRENT_VERSION
from rucola.common.options import options_of
from rucola.formats.message import decode_message
from rucola.protocol.bodies.consumer_running import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ProcessQueueInfo,
)
from rucola.protocol.bodies.offsets import GetConsumerStatusBody, ResetOffsetBody
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.admin import ConsumeMessageDirectlyRequestHeader, ConsumerRunningInfoRequestHeader
from rucola.protocol.headers.offset import GetConsumerStatusRequestHeader, ResetOffsetRequestHeader
from rucola.runtime.frames import current_frames

_MIB = 1024 * 1024
_RESULTS: dict[Status | None, str] = {
    None: "CR_SUCCESS",
    ConsumeConcurrentlyStatus.CONSUME_SUCCESS: "CR_SUCCESS",
    ConsumeConcurrentlyStatus.RECONSUME_LATER: "CR_LATER",
    ConsumeOrderlyStatus.SUCCESS: "CR_SUCCESS",
    ConsumeOrderlyStatus.COMMIT: "CR_COMMIT",
    ConsumeOrderlyStatus.ROLLBACK: "CR_ROLLBACK",
    ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT: "CR_LATER",
}


class ConsumerRequests:
    """Responds to the brokers' requests.

    Args:
        member: the consumer as a member of its group.
        config: settings of the consumer.
        service: reads the consumer's queues.
        consumption: calls the consumer's listener.
    """

    def __init__(
        self, member: GroupMember, config: PushConsumerConfig, service: PushService, consumption: Consumption
    ) -> None:
        self._member, self._config = member, config
        self._service, self._consumption = service, consumption

    def register(self) -> None:
        """Starts to handle requests."""
        client = self._member.instance.client
        client.register_processor(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset_offsets)
        client.register_processor(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._status)
        client.register_processor(RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info)
        client.register_processor(RequestCode.CONSUME_MESSAGE_DIRECTLY, self._consume_directly)

    async def _reset_offsets(self, address: str, command: RemotingCommand) -> None:
        header = ResetOffsetRequestHeader.from_ext_fields(command.ext_fields)
        if header.group == self._member.group and command.body:
            await self._service.reset(header.topic, ResetOffsetBody.decode(command.body).offset_table)

    def _status(self, address: str, command: RemotingCommand) -> RemotingCommand:
        header = GetConsumerStatusRequestHeader.from_ext_fields(command.ext_fields)
        table: dict[MessageQueue, int] = {}
        if header.group == self._member.group:
            self._service.note_progress()
            table = self._member.offsets.snapshot(header.topic)
        return command.answer(ResponseCode.SUCCESS, body=GetConsumerStatusBody(table).encode())

    def _running_info(self, address: str, command: RemotingCommand) -> RemotingCommand:
        header = ConsumerRunningInfoRequestHeader.from_ext_fields(command.ext_fields)
        if header.consumer_group != self._member.group:
            return self._no_such_group(command, header.consumer_group)
        return command.answer(ResponseCode.SUCCESS, body=self.running_info(header.jstack_enable).encode())

    async def _consume_directly(self, address: str, command: RemotingCommand) -> RemotingCommand:
        header = ConsumeMessageDirectlyRequestHeader.from_ext_fields(command.ext_fields)
        if header.consumer_group != self._member.group:
            return self._no_such_group(command, header.consumer_group)
        message = decode_message(command.body)
        message.broker_name = header.broker_name or ""
        message.topic = message.properties.get(message_const.RETRY_TOPIC, message.topic)
        result = await self.consume_directly(message)
        return command.answer(ResponseCode.SUCCESS, body=result.encode())

    def _no_such_group(self, command: RemotingCommand, group: str) -> RemotingCommand:
        return command.answer(ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group}> not exist in this consumer")

    async def consume_directly(self, message: MessageExt) -> ConsumeMessageDirectlyResult:
        """Calls the listener with one message; does not affect offsets."""
        loop = asyncio.get_running_loop()
        queue = MessageQueue(message.topic, message.broker_name, message.queue_id)
        result = ConsumeMessageDirectlyResult(order=self._config.consume_orderly)
        began = loop.time()
        answer: Meaning
        if isinstance(self._consumption, ConsumeOrderly):
            context = ConsumeOrderlyContext(queue)
            answer = await self._consumption.consume_directly(message, context)
            result.auto_commit = context.auto_commit
        elif isinstance(self._consumption, ConsumeConcurrently):
            answer = await self._consumption.consume_directly(message, ConsumeConcurrentlyContext(queue))
        else:
            assert isinstance(self._consumption, ConsumeByIteration)
            answer, result.remark = ConsumeConcurrentlyStatus.RECONSUME_LATER, "the consumer has no listener"
        if not isinstance(answer, FailedCall):
            result.consume_result = _RESULTS[answer]
        elif isinstance(answer.error, ReconsumeLater):
            result.consume_result = "CR_LATER"
        else:
            error = answer.error
            result.consume_result, result.remark = "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
        result.spent_time_mills = int((loop.time() - began) * 1000)
        return result

    def running_info(self, with_stacks: bool) -> ConsumerRunningInfo:
        """State of the consumer, for ``mqadmin consumerStatus``."""
        member, config = self._member, self._config
        self._service.note_progress()
        properties = {one.key: one.show(getattr(config, one.name)) for one in options_of(PushConsumerConfig)}
        properties |= {
            "PROP_NAMESERVER_ADDR": ";".join(member.instance.name_servers.addresses),
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": "true" if config.consume_orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(config.consume_thread_max),
            "PROP_CONSUMER_START_TIMESTAMP": str(member.started_ms),
            "PROP_CLIENT_VERSION": CURRENT_VERSION.name,
        }
        return ConsumerRunningInfo(
            properties=properties,
            subscription_set=list(member.subscriptions.values()),
            mq_table={queue: self._queue_info(held) for queue, held in self._service.queues.items()},
            status_table=self._service.rates.of(member.subscriptions),
            jstack=_stacks() if with_stacks else None,
        )

    def _queue_info(self, process_queue: ProcessQueue) -> ProcessQueueInfo:
        loop_now, now_ms = asyncio.get_running_loop().time(), self._member.wall_ms()

        def stamp(moment: float | None) -> int:
            return 0 if moment is None else now_ms - int((loop_now - moment) * 1000)

        low, high = process_queue.span_ends
        info = ProcessQueueInfo(
            commit_offset=-1 if (known := self._member.offsets.known(process_queue.message_queue)) is None else known,
            cached_msg_min_offset=low or 0,
            cached_msg_max_offset=high or 0,
            cached_msg_count=len(process_queue),
            cached_msg_size_in_mib=process_queue.size_bytes // _MIB,
            droped=process_queue.dropped,
            last_pull_timestamp=stamp(process_queue.last_pull_at),
            last_consume_timestamp=stamp(process_queue.last_consume_at),
        )
        if isinstance(process_queue, OrderlyProcessQueue):
            consuming = process_queue.consuming
            info.locked = process_queue.is_locked(loop_now)
            info.try_unlock_times = process_queue.try_unlock_times
            info.last_lock_timestamp = stamp(process_queue.locked_at)
            info.transaction_msg_count = len(consuming)
            if consuming:
                info.transaction_msg_min_offset = consuming[0].queue_offset
                info.transaction_msg_max_offset = consuming[-1].queue_offset
        return info


def _stacks() -> str:
    """Stack traces of every thread, and of every task of this event loop."""
    parts = []
    for number, frame in current_frames().items():
        parts.append(f"thread {number}\n{''.join(traceback.format_stack(frame))}")
    for task in asyncio.all_tasks():
        lines = [f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}" for frame in task.get_stack()]
        parts.append("\n".join([f"task {task.get_name()}", *lines]))
    return "\n".join(parts)
