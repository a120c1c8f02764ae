"""Serves pops of lite topics (RocketMQ 5.5.0, ``PopLiteMessageProcessor``; request 200070): messages of any lite topics
to which the client has subscribed, in order within each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rucola.broker.lite.checks import ATTEMPT_ID_MAX, CLIENT_ID_MAX, check_parent
from rucola.broker.lite.event_dispatcher import LiteEventDispatcher
from rucola.broker.lite.hold import LiteHold, WaitingLitePop
from rucola.broker.lite.leases import LiteLeases
from rucola.broker.lite.reading_group import LiteClient, ReadingGroup
from rucola.broker.pop.checks import if_still_reading
from rucola.broker.pop.hold import ANSWER_AHEAD_MS
from rucola.broker.pop.request_age import BORN_TIME, RequestAges
from rucola.broker.retry_owner import records_of
from rucola.broker.services import BrokerServices
from rucola.broker.stored_copy import StoredRecord
from rucola.common.java import is_blank
from rucola.common.numbers import POP_MESSAGES_MAX
from rucola.common.pop_topics import ORDER_REVIVE_QUEUE
from rucola.common.sysflag import PermName
from rucola.errors import BrokerError
from rucola.formats.light_queue import light_queue_offsets, lite_topic
from rucola.formats.properties import encode_properties
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.lite import PopLiteMessageRequestHeader, PopLiteMessageResponseHeader
from rucola.remoting.processors import OVERLOAD, serve_again
from rucola.remoting.server import Channel
from rucola.store.message_store import MessageStore
from rucola.store.results import GetMessageResult

_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of a response from which on it gets no further lite topic. Clients take frames of up to 16 MiB."""
_LEASES_MAX, _LEASES_SHARE, _LEASES_KEPT = 1_000_000, 500_000, 1024
"""Lite topics with a batch in flight, from which on pops get nothing: of all groups, of one group, and those that each
group may have in any case.
"""
_LOOK_AGAIN_MS = 1000
"""Pause before a lite topic is looked at again whose messages cannot be read."""


@dataclass(slots=True)
class LitePop:
    """A running pop.

    Attributes:
        began_ms: monotonic time in ms at which the client created the request.
        waited_for: lite topics whose messages an earlier attempt fetched from the disk.
        batches: what was found: name and queue offsets.
        names: the lite topics that were looked at.
        parts: the records for the response.
        size: their number of bytes.
        cold: fetches messages that were not in memory; any thread may call it.
    """

    header: PopLiteMessageRequestHeader
    client: LiteClient
    began_ms: int
    waited_for: frozenset[bytes] = frozenset()
    batches: list[tuple[bytes, Sequence[int]]] = field(default_factory=list)
    names: set[bytes] = field(default_factory=set)
    parts: list[memoryview] = field(default_factory=list)
    count: int = 0
    size: int = 0
    cold: Callable[[], None] | None = None
    pop_time_ms: int = 0
    counts: list[int] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether the response gets no further messages."""
        return self.cold is not None or self.count >= self.header.max_msg_num or self.size >= _BYTES_MAX

    def answer_header(self) -> PopLiteMessageResponseHeader:
        """The header of the response: one count for each message."""
        return PopLiteMessageResponseHeader(
            self.pop_time_ms,
            self.header.invisible_time,
            ORDER_REVIVE_QUEUE,
            order_count_info=";".join(map(str, self.counts)),
        )


class LitePopReader:
    """Reads lite topics for pops. Event loop only; ``monotonic_ms`` is the time of leases."""

    def __init__(
        self, store: MessageStore, dispatcher: LiteEventDispatcher, leases: LiteLeases, monotonic_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._leases = leases
        self._monotonic_ms = monotonic_ms
        self._lease_max_ms = store.config.timer_max_delay_sec * 1000

    def read(self, pop: LitePop) -> None:
        """Finds messages for ``pop``, and notes that they are popped."""
        client, now_ms, attempt_id = pop.client, self._monotonic_ms(), pop.header.attempt_id
        if attempt_id:  # a repeated pop gets the same batches again
            for name in client.attempts.get(attempt_id, ()):
                block = client.group.blocks.get(name)
                if pop.is_full or block is None or not block.is_of(attempt_id):
                    continue
                start = self._leases.start_offset(client.group, name)
                self._read_name(pop, name, sum(offset >= start for offset in block.offsets))
        while not pop.is_full:
            taken = self._dispatcher.take(client, now_ms)
            if taken is None:
                break
            if taken not in pop.names:
                self._read_name(pop, taken, POP_MESSAGES_MAX)
        self._lease(pop)

    def _read_name(self, pop: LitePop, name: bytes, count_max: int) -> None:
        group = pop.client.group
        pop.names.add(name)
        start = self._leases.start_offset(group, name)
        result = self._get(pop, name, start, count_max)
        if result.cold is None and not result.views and result.next_offset != start:
            self._leases.correct(group, name, result.next_offset)
            start = result.next_offset
            result = self._get(pop, name, start, count_max)
        if result.cold is not None:
            pop.cold = result.cold
            pop.waited_for |= {name}
            self._dispatcher.put_back(pop.client, name)
        elif result.views:
            records = [record for view in result.views for record in records_of(view)]
            pop.batches.append((name, _offsets(result, start, records, lite_topic(name))))
            pop.parts += records
            pop.count += len(records)
            pop.size += result.message_bytes
        else:
            if result.next_offset > start:
                self._leases.correct(group, name, result.next_offset)
            self._dispatcher.look_again(group, name, self._monotonic_ms() + _LOOK_AGAIN_MS)

    def _get(self, pop: LitePop, name: bytes, start: int, count_max: int) -> GetMessageResult:
        count = min(pop.header.max_msg_num - pop.count, count_max)
        may_block = name in pop.waited_for
        return self._store.get_message(lite_topic(name), 0, start, count, _BYTES_MAX - pop.size, None, may_block)

    def _lease(self, pop: LitePop) -> None:
        """Notes that the messages are popped. The pop time differs from that of the pop before of each lite topic, so
        that its acknowledgements do not count any more.
        """
        group, attempt_id = pop.client.group, pop.header.attempt_id
        before = [group.blocks[name].pop_time_ms for name, _ in pop.batches if name in group.blocks]
        pop.pop_time_ms = max([self._store.now_ms(), *(time_ms + 1 for time_ms in before)])
        visible_ms = self._monotonic_ms() + min(max(pop.header.invisible_time, 0), self._lease_max_ms)
        for name, offsets in pop.batches:
            block = self._leases.popped(group, name, offsets, attempt_id, (pop.pop_time_ms, visible_ms))
            pop.counts += block.counts
        if pop.batches:
            pop.client.consumed_ms = pop.pop_time_ms
            if attempt_id:
                pop.client.note_attempt(attempt_id, tuple(name for name, _ in pop.batches))


class LitePopProcessor:
    """Serves request 200070. Event loop only.

    Args:
        client_of: returns the client of a group, by group, parent, client id and connection; raises ``BrokerError`` if
            it may not read.
        settle: called after each request, whatever it did.
    """

    def __init__(
        self,
        services: BrokerServices,
        reader: LitePopReader,
        dispatcher: LiteEventDispatcher,
        hold: LiteHold,
        ages: RequestAges,
        client_of: Callable[[str, str, str, Channel], LiteClient],
        settle: Callable[[LiteClient], None],
    ) -> None:
        self._services = services
        self._reader = reader
        self._dispatcher = dispatcher
        self._hold = hold
        self._ages = ages
        self._client_of = client_of
        self._settle = settle

    def pop(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Request 200070: pops messages; None if the request waits."""
        command.ext_fields.setdefault(BORN_TIME, "0")
        header = PopLiteMessageRequestHeader.from_ext_fields(command.ext_fields)
        began_ms = self._ages.began_ms(channel, header.born_time, header.poll_time)
        return self._pop(channel, command, header, began_ms, is_new=True)

    def _pop(
        self,
        channel: Channel,
        command: RemotingCommand,
        header: PopLiteMessageRequestHeader,
        began_ms: int,
        waited_for: frozenset[bytes] = frozenset(),
        *,
        is_new: bool = False,
    ) -> RemotingCommand | None:
        """Serves a pop whose client created it at ``began_ms``; also after a wait."""
        try:
            self._check(header, began_ms)
            client = self._client_of(header.consumer_group, header.topic, header.client_id, channel)
        except BrokerError as refusal:
            fields = PopLiteMessageResponseHeader().to_ext_fields()
            return command.answer(refusal.code, refusal.remark, fields)
        self._dispatcher.polled(client, self._ages.now_ms())
        if is_new:
            self._hold.end_older(client, header.attempt_id)
        pop = LitePop(header, client, began_ms, waited_for)
        answer: RemotingCommand | None
        if self._has_room(client.group):
            self._reader.read(pop)
            answer = self._answer(channel, command, pop)
        else:  # it must not wait: its events would wake it at once
            pop.pop_time_ms = self._services.store.now_ms()
            answer = command.answer(
                ResponseCode.POLLING_FULL, "too many messages in flight", pop.answer_header().to_ext_fields()
            )
        self._settle(client)
        return answer

    def _answer(self, channel: Channel, command: RemotingCommand, pop: LitePop) -> RemotingCommand | None:
        """Returns the response; None if it comes later."""
        fields = pop.answer_header().to_ext_fields()
        if pop.count:
            if pop.cold is not None:  # so that the next pop finds the messages in memory
                self._services.cold_reads.start(channel, pop.cold, lambda: None)
            return command.answer(ResponseCode.SUCCESS, "FOUND", fields, b"".join(pop.parts))
        if pop.cold is not None:
            waiting = self._waiting(channel, command, pop)
            if not self._services.cold_reads.start(channel, pop.cold, partial(self._hold.resume, waiting)):
                return command.answer(ResponseCode.SYSTEM_BUSY, OVERLOAD, fields)
            self._hold.leave(waiting)
            return None
        code = ResponseCode.POLLING_TIMEOUT
        if _deadline_ms(pop) > self._ages.now_ms():
            if self._hold.hold(self._waiting(channel, command, pop)):
                return None
            if pop.header.poll_time > 0 and not self._hold.stopped:
                code = ResponseCode.POLLING_FULL
        return command.answer(code, "NO_MESSAGE_IN_QUEUE", fields)

    def _has_room(self, group: ReadingGroup) -> bool:
        """Whether a group may have one more batch in flight."""
        own = len(group.blocks)
        return own < _LEASES_KEPT or (own < _LEASES_SHARE and self._dispatcher.lease_count < _LEASES_MAX)

    def _waiting(self, channel: Channel, command: RemotingCommand, pop: LitePop) -> WaitingLitePop:
        header, senders = pop.header, self._services.senders
        serve = partial(self._pop, header=header, began_ms=pop.began_ms, waited_for=pop.waited_for)
        again = if_still_reading(senders, senders.proof(channel), serve)

        def give_up() -> None:
            fields = pop.answer_header().to_ext_fields()
            code = ResponseCode.POLLING_TIMEOUT
            serve_again(channel, command, lambda _, it: it.answer(code, "NO_MESSAGE_IN_QUEUE", fields))

        return WaitingLitePop(
            channel,
            header.topic,
            header.consumer_group,
            0,
            _deadline_ms(pop) / 1000,
            partial(serve_again, channel, command, again),
            opaque=command.opaque,
            give_up=give_up,
            client=pop.client,
            attempt_id=header.attempt_id,
        )

    def _check(self, header: PopLiteMessageRequestHeader, began_ms: int) -> None:
        """Refuses invalid pops; makes the checks in RocketMQ's order."""
        config = self._services.config
        broker = f"the broker[{config.client_host}]"
        if self._ages.is_too_late(began_ms, header.poll_time):
            raise BrokerError(ResponseCode.POLLING_TIMEOUT, f"{broker} pop message is timeout too much")
        if not config.broker_permission & PermName.READ:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"{broker} pop message is forbidden")
        if not 0 < header.max_msg_num <= POP_MESSAGES_MAX:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"{broker} pop message's num is not in range(1, {POP_MESSAGES_MAX})"
            )
        if is_blank(header.client_id) or len(header.client_id) > CLIENT_ID_MAX:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"a client id has 1 to {CLIENT_ID_MAX} characters")
        if len(header.attempt_id or "") > ATTEMPT_ID_MAX:
            raise BrokerError(ResponseCode.INVALID_PARAMETER, f"an attempt id has at most {ATTEMPT_ID_MAX} characters")
        check_parent(self._services, header.topic)


def _deadline_ms(pop: LitePop) -> int:
    """The monotonic time in ms at which a waiting pop must be answered."""
    return pop.began_ms + pop.header.poll_time - ANSWER_AHEAD_MS


def _offsets(result: GetMessageResult, start: int, records: list[memoryview], topic: bytes) -> Sequence[int]:
    """Returns the offsets of ``records`` in the light queue ``topic``. The field of a record has its offset in the
    parent's queue.
    """
    if result.next_offset - start == len(records):
        return range(start, result.next_offset)
    found = []
    for record in records:
        properties = encode_properties(StoredRecord(record).properties)
        found += [place[1] for place in light_queue_offsets(properties) if place is not None and place[0] == topic]
    return found
