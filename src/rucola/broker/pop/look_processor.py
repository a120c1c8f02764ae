"""Shows which messages a pop would find, without popping them (RocketMQ 5.3.3, ``PeekMessageProcessor``,
``NotificationProcessor``, ``PollingInfoProcessor``; requests 200052, 200054, 200055 and 200056).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from rucola.broker.filter.filtered_read import READ_BYTES_MAX
from rucola.broker.pop.checks import check_place, if_still_reading, no_topic
from rucola.broker.pop.hold import ANSWER_AHEAD_MS, HeldRequest, PopHold
from rucola.broker.pop.order_info import OrderInfoManager
from rucola.broker.pop.order_locks import OrderLocks
from rucola.broker.pop.pop_offsets import PopOffsets, PoppedQueue
from rucola.broker.pop.queue_walk import BEGINS, QueueWalk
from rucola.broker.pop.request_age import BORN_TIME, RequestAges
from rucola.broker.processor.responses import NO_CODE
from rucola.broker.retry_owner import is_for, records_of
from rucola.broker.services import BrokerServices
from rucola.common.key_builder import is_retry_topic
from rucola.common.numbers import POP_MESSAGES_MAX
from rucola.common.sysflag import PermName
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pop import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageResponseHeader,
)
from rucola.remoting.processors import OVERLOAD, serve_again
from rucola.remoting.server import Channel
from rucola.store.message_store import MessageStore
from rucola.store.results import GetMessageStatus

_MOVED = {GetMessageStatus.OFFSET_TOO_SMALL, GetMessageStatus.OFFSET_OVERFLOW_BADLY}


class PopLookProcessor:
    """Serves requests that read or look for messages without popping them. Event loop only."""

    def __init__(
        self,
        services: BrokerServices,
        peeker: Peeker,
        orders: OrderInfoManager,
        hold: PopHold,
        locks: OrderLocks,
        walk: QueueWalk,
        ages: RequestAges,
    ) -> None:
        self._services = services
        self._peeker = peeker
        self._orders = orders
        self._hold = hold
        self._locks = locks
        self._walk = walk
        self._ages = ages

    def peek(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Request 200052: returns messages without popping them; None while the request waits for the disk."""
        header = PeekMessageRequestHeader.from_ext_fields(command.ext_fields)
        try:
            self._check(channel, header.topic, header.queue_id, header.consumer_group)
        except BrokerError as refusal:
            return command.answer(refusal.code, refusal.remark, PopMessageResponseHeader().to_ext_fields())
        return self._peek(channel, command, Peek(header, self._services.random_below(BEGINS)))

    def notification(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Request 200054: whether a pop would find a message; None if the request waits for one."""
        command.ext_fields.setdefault(BORN_TIME, "0")
        header = NotificationRequestHeader.from_ext_fields(command.ext_fields)
        return self._notify(channel, command, self._ages.began_ms(channel, header.born_time, header.poll_time))

    def _notify(self, channel: Channel, command: RemotingCommand, began_ms: int) -> RemotingCommand | None:
        """Serves a request whose client created it at ``began_ms``; also after a wait."""
        header = NotificationRequestHeader.from_ext_fields(command.ext_fields)
        self._check(channel, header.topic, header.queue_id, header.consumer_group)
        found = any(self._gives(header, *place) for place in self._places(header))
        waits = full = False
        if not found and header.poll_time > 0:
            waits, full = self._wait(channel, command, header, began_ms)
        if waits:
            return None
        fields = NotificationResponseHeader(found, full).to_ext_fields()
        return command.answer(ResponseCode.SUCCESS, NO_CODE, fields)

    def polling_info(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 200055: the number of waiting pops."""
        header = PollingInfoRequestHeader.from_ext_fields(command.ext_fields)
        if self._services.topics.get(header.topic) is None:
            raise no_topic(header.topic)
        count = self._hold.count(header.topic, header.consumer_group, header.queue_id)
        return command.answer(ResponseCode.SUCCESS, NO_CODE, PollingInfoResponseHeader(count).to_ext_fields())

    def roll_back(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """Request 200056: in RocketMQ, moves POP state from a key-value store to files. Here it changes nothing,
        because POP state is always in files.
        """
        return command.answer(ResponseCode.SUCCESS, NO_CODE)

    def _check(self, channel: Channel, topic: str, queue_id: int, group: str) -> None:
        services, config = self._services, self._services.config
        if not config.broker_permission & PermName.READ:
            broker = f"the broker[{config.client_host}]"
            raise BrokerError(ResponseCode.NO_PERMISSION, f"{broker} peeking message is forbidden")
        check_place(services.topics, services.groups, topic, queue_id, group, channel.remote_address)

    def _peek(self, channel: Channel, command: RemotingCommand, peek: Peek) -> RemotingCommand | None:
        header = peek.header
        room = min(header.max_msg_nums, POP_MESSAGES_MAX)
        for topic, queue_id in self._walk.places(
            header.topic, header.consumer_group, header.queue_id, False, peek.begin, lambda: peek.count >= room
        ):
            self._peeker.look(peek, PoppedQueue(topic, header.consumer_group, queue_id), room)
        code, remark = ResponseCode.SUCCESS, "FOUND"
        if not peek.count:
            code, remark = ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE"
            if peek.cold is not None:
                if self._services.cold_reads.start(channel, peek.cold, partial(self._fetched, channel, command, peek)):
                    return None
                code, remark = ResponseCode.SYSTEM_BUSY, OVERLOAD
        fields = PopMessageResponseHeader(rest_num=peek.rest).to_ext_fields()
        return command.answer(code, remark, fields, b"".join(peek.views))

    def _fetched(self, channel: Channel, command: RemotingCommand, peek: Peek) -> None:
        if not channel.closed:
            again = Peek(peek.header, peek.begin, peek.waited_for)
            serve_again(channel, command, lambda channel, command: self._peek(channel, command, again))

    def _places(self, header: NotificationRequestHeader) -> list[tuple[str, int]]:
        """The queues that a pop with the fields of ``header`` reads."""
        places = [(header.topic, header.queue_id)]
        if header.queue_id < 0:
            places = list(self._walk.queues(header.topic, 0))
        if not header.order:
            for retry_topic in self._walk.retry_topics(header.topic, header.consumer_group):
                places += self._walk.queues(retry_topic, 0)
        return places

    def _gives(self, header: NotificationRequestHeader, topic: str, queue_id: int) -> bool:
        queue = PoppedQueue(topic, header.consumer_group, queue_id)
        if header.order and self._orders.blocked_until_ms(queue, header.attempt_id, 0) is not None:
            return False
        return self._peeker.rest(queue) > 0

    def _wait(
        self, channel: Channel, command: RemotingCommand, header: NotificationRequestHeader, began_ms: int
    ) -> tuple[bool, bool]:
        """Tries to hold the request. Returns two values: whether the request is held, and whether it is refused because
        the broker holds too many requests.
        """
        deadline_ms = began_ms + header.poll_time - ANSWER_AHEAD_MS
        if deadline_ms <= self._ages.now_ms():
            return False, False
        serve = partial(self._notify, began_ms=began_ms)
        senders = self._services.senders
        again = if_still_reading(senders, senders.proof(channel), serve)
        held = HeldRequest(
            channel,
            header.topic,
            header.consumer_group,
            header.queue_id,
            deadline_ms / 1000,
            lambda: serve_again(channel, command, again),
        )
        waits = self._hold.hold(held)
        if waits and header.order:
            for topic, queue_id in self._places(header):
                queue = PoppedQueue(topic, header.consumer_group, queue_id)
                if self._orders.blocked_until_ms(queue, header.attempt_id, 0) is not None:
                    self._locks.changed(queue)
        return waits, not waits and not self._hold.stopped


@dataclass(slots=True)
class Peek:
    """A running peek.

    Attributes:
        begin: the queue to begin with.
        waited_for: queues whose messages an earlier attempt fetched from the disk.
        rest: number of messages that the group has not popped, including the messages found.
        cold: fetches the missing messages of the first queue whose messages were not in memory; any thread may
            call it.
    """

    header: PeekMessageRequestHeader
    begin: int
    waited_for: set[PoppedQueue] = field(default_factory=set)
    views: list[memoryview] = field(default_factory=list)
    count: int = 0
    rest: int = 0
    cold: Callable[[], None] | None = None


class Peeker:
    """Reads messages for peeks. Event loop only."""

    def __init__(self, store: MessageStore, popped: PopOffsets) -> None:
        self._store = store
        self._popped = popped

    def rest(self, queue: PoppedQueue) -> int:
        """Number of messages of a queue that the group has not popped; less than 1 if there are none."""
        return self._store.max_queue_offset(queue.topic.encode(), queue.queue_id) - self._first(queue)

    def look(self, peek: Peek, queue: PoppedQueue, room: int) -> None:
        """Adds messages of a queue to ``peek``, until ``peek`` holds ``room`` messages."""
        peek.rest += max(self.rest(queue), 0)
        if peek.count >= room:
            return
        queue_offset, may_block = self._first(queue), queue in peek.waited_for
        where = queue.topic.encode(), queue.queue_id
        result = self._store.get_message(*where, queue_offset, room - peek.count, READ_BYTES_MAX, may_block=may_block)
        if result.status in _MOVED:
            queue_offset = result.next_offset
            result = self._store.get_message(
                *where, queue_offset, room - peek.count, READ_BYTES_MAX, may_block=may_block
            )
        if result.cold is not None and peek.cold is None:
            peek.cold = result.cold
            peek.waited_for.add(queue)
        views = result.views
        if is_retry_topic(queue.topic):
            views = [record for view in views for record in records_of(view) if is_for(record, peek.header.topic)]
        peek.views += views
        peek.count += result.message_count if views is result.views else len(views)

    def _first(self, queue: PoppedQueue) -> int:
        known = self._popped.query(queue)
        return self._store.min_queue_offset(queue.topic.encode(), queue.queue_id) if known is None else known
