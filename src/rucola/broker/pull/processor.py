"""Serves pulls (RocketMQ 5.3.3, ``PullMessageProcessor``; requests 11 and 361).

``_begin`` admits a new pull. ``_read`` reads for it, and answers it or lets it wait. After the wait, ``_read_again``
checks whether it is still admitted, and reads again. A pull may pause: its messages are fetched from the disk, or its
expression is compiled. ``_go_on`` then runs its next step.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial

from rucola.broker.client.consumer_manager import CONSUME_ACTIVELY
from rucola.broker.filter.filtered_read import READ_BYTES_MAX, FilteredRead
from rucola.broker.pull.admission import TAG, NotCompiledError, PullAdmissions, RepeatedFields
from rucola.broker.pull.read_rule import WAIT_S, ReadRule
from rucola.broker.pull.request import PullRequest, PullRequestHold
from rucola.broker.retry_owner import without_popped
from rucola.broker.services import BrokerServices
from rucola.broker.waiting_requests import Timer, WaitState
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.common.key_builder import RETRY_GROUP_TOPIC_PREFIX
from rucola.common.sysflag import PullSysFlag
from rucola.errors import BrokerError
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import FLAG_ONEWAY, RemotingCommand
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.remoting.channel import Channel
from rucola.remoting.processors import OVERLOAD
from rucola.store.results import GetMessageResult, GetMessageStatus

_CODE, _OPAQUE = int(FrameColumn.CODE), int(FrameColumn.OPAQUE)
_FLAG, _SERIALIZE = int(FrameColumn.FLAG), int(FrameColumn.SERIALIZE)
_TOPIC_POS, _TOPIC_LEN = int(FrameColumn.TOPIC_POS), int(FrameColumn.TOPIC_LEN)
_GROUP_POS, _GROUP_LEN = int(FrameColumn.GROUP_POS), int(FrameColumn.GROUP_LEN)
_QUEUE_ID, _QUEUE_OFFSET = int(FrameColumn.QUEUE_ID), int(FrameColumn.PULL_QUEUE_OFFSET)
_SYS_FLAG, _MAX_MESSAGES = int(FrameColumn.SYS_FLAG), int(FrameColumn.PULL_MAX_MESSAGES)
_COMMIT_OFFSET, _SUSPEND_TIMEOUT = int(FrameColumn.PULL_COMMIT_OFFSET), int(FrameColumn.PULL_SUSPEND_TIMEOUT)
_SUB_VERSION = int(FrameColumn.PULL_SUB_VERSION)
_EXPRESSION_POS, _EXPRESSION_LEN = int(FrameColumn.PULL_EXPRESSION_POS), int(FrameColumn.PULL_EXPRESSION_LEN)
_EXPRESSION_TYPE_POS = int(FrameColumn.PULL_EXPRESSION_TYPE_POS)
_EXPRESSION_TYPE_LEN = int(FrameColumn.PULL_EXPRESSION_TYPE_LEN)
_COMMIT, _SUSPEND = int(PullSysFlag.COMMIT_OFFSET), int(PullSysFlag.SUSPEND)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)
_new_tuple = tuple.__new__
"""Makes a ``NamedTuple`` without a call of a Python function."""
_RETRY = RETRY_GROUP_TOPIC_PREFIX.encode()
_NEW, _WOKEN = WaitState.NEW, WaitState.WOKEN
_FOUND, _NO_MATCHED = GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE
_CODES = {
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}
"""Response codes for statuses other than FOUND. A status that is not in this table has code 19 if the requested offset
is 0, and 21 otherwise.
"""


class PullMessageProcessor:
    """Serves pulls: rows of kind PULL in the frame table, and requests with unusual headers. Event loop only.

    Args:
        call_later: ``(seconds, callback) -> Timer``, the loop's method.
        rule: says from which broker consumers pull next; None if always from this one, a master.

    Attributes:
        hold: the pulls that wait for messages.
    """

    def __init__(
        self, services: BrokerServices, call_later: Callable[..., Timer], rule: ReadRule | None = None
    ) -> None:
        self.hold = PullRequestHold(
            services.store.max_queue_offset,
            self.resume,
            services.clock.monotonic,
            call_later,
            services.senders.account_on,
        )
        self._services = services
        self._config = services.config
        self._store = services.store
        self._offsets = services.offsets
        self._resets = services.resets
        self._separates = services.config.guarded
        """Whether copies of popped messages in retry topics name their origin (``retry_owner``)."""
        self._admissions = PullAdmissions(services)
        self._monotonic = services.clock.monotonic
        self._rule = rule

    def process_row(self, channel: Channel, source: bytearray, table: array[int], row: int) -> None:
        """Processes row ``row`` of kind PULL."""
        base = row * ROW_WIDTH
        columns = table[base : base + ROW_WIDTH].tolist()
        if columns[_FLAG] & FLAG_ONEWAY:
            return
        at, group_at = columns[_TOPIC_POS], columns[_GROUP_POS]
        sys_flag = columns[_SYS_FLAG]
        sub_version: int | None = columns[_SUB_VERSION]
        expression = expression_type = b""
        if sys_flag & _SUBSCRIPTION:
            sub_version = None
            expression = _field(source, columns[_EXPRESSION_POS], columns[_EXPRESSION_LEN])
            expression_type = _field(source, columns[_EXPRESSION_TYPE_POS], columns[_EXPRESSION_TYPE_LEN]) or TAG
        fields = _new_tuple(
            RepeatedFields,
            (
                bytes(source[at : at + columns[_TOPIC_LEN]]),
                bytes(source[group_at : group_at + columns[_GROUP_LEN]]),
                columns[_QUEUE_ID],
                columns[_CODE],
                sub_version,
                expression,
                expression_type,
            ),
        )
        request = PullRequest(
            channel,
            columns[_OPAQUE],
            columns[_SERIALIZE],
            fields,
            columns[_QUEUE_OFFSET],
            columns[_MAX_MESSAGES],
            sys_flag,
            columns[_COMMIT_OFFSET],
            columns[_SUSPEND_TIMEOUT],
        )
        self._begin(request)

    def process_command(self, channel: Channel, command: RemotingCommand) -> None:
        """Processes a pull with an unusual header.

        Raises:
            FormatError: a required field is missing or not a number.
        """
        header = PullMessageRequestHeader.from_ext_fields(command.ext_fields)
        if command.is_oneway:
            return
        own = header.sys_flag & _SUBSCRIPTION
        fields = RepeatedFields(
            header.topic.encode(),
            header.consumer_group.encode(),
            header.queue_id,
            command.code,
            None if own else header.sub_version,
            (header.subscription or "").encode() if own else b"",
            (header.expression_type or "").encode() or TAG if own else b"",
        )
        request = PullRequest(
            channel,
            command.opaque,
            command.serialize,
            fields,
            header.queue_offset,
            header.max_msg_nums,
            header.sys_flag,
            header.commit_offset,
            header.suspend_timeout_millis,
        )
        self._begin(request)

    def resume(self, request: PullRequest) -> None:
        """Runs a pull again whose wait has ended."""
        self._go_on(request, self._read_again)

    def _go_on(self, request: PullRequest, step: Callable[[PullRequest], None]) -> None:
        """Runs the next step of a pull after a pause. A failure costs this pull, which is answered all the same."""
        if request.channel.closed:
            request.forget()
            return
        try:
            step(request)
        except Exception as error:  # noqa: BLE001 - whoever ends the pause serves other requests too
            request.fail(error)

    def _begin(self, request: PullRequest) -> None:
        if not self._admit(request, self._begin):
            return
        if request.sys_flag & _COMMIT:
            where = request.admission.consumer
            if not self._resets.table or self._resets.find(*where) is None:
                self._offsets.commit(*where, request.commit_offset)
        self._read(request)

    def _read_again(self, request: PullRequest) -> None:
        """Reads for a pull that has waited.

        The group's subscription may have changed meanwhile, so a message that did not match before may match now and
        must not be skipped.

        If the topic was deleted meanwhile, the consumer must go on at offset 0, should the topic be created again.
        RocketMQ holds the request until its time is over, and then goes on at the old offset.
        """
        group, name, _ = request.admission.consumer
        self._services.senders.check_still_reads(request.proof, request.channel, name, group)
        if not self._admissions.stands(request.admission):
            if self._services.topics.get(name) is None:
                self._answer_reset(request, 0)
                return
            if not self._admit(request, self._read_again):
                return
        self._read(request)

    def _admit(self, request: PullRequest, again: Callable[[PullRequest], None]) -> bool:
        """Decides what the pull may read. Returns False if it is refused, or if its expression must be compiled first;
        ``again`` is called afterwards.
        """
        channel = request.channel
        try:
            request.admission = self._admissions.find(request.fields, channel)
            return True
        except NotCompiledError as missing:
            text = missing.text
        except BrokerError as refusal:
            request.refuse(refusal)
            return False
        try:
            self._services.expressions.start(channel, text, partial(self._go_on, request, again))
        except BrokerError as refusal:
            request.refuse(refusal)
        return False

    def _read(self, request: PullRequest, fetched: bool = False) -> None:
        """Reads the queue, then answers the pull or lets it wait.

        Args:
            fetched: whether the messages were fetched from the disk for this pull.
        """
        admission = request.admission
        if self._resets.table:
            reset = self._take_reset(request)
            if reset is not None:
                self._answer_reset(request, reset)
                return
        topic, queue_id = admission.queue
        if admission.expression is None:
            result = self._store.get_message(
                topic,
                queue_id,
                request.queue_offset,
                request.max_messages,
                READ_BYTES_MAX,
                admission.tag_codes,
                fetched,
            )
        else:
            read = FilteredRead(self._store, admission.expression, self._monotonic)
            result = read.get_message(topic, queue_id, request.queue_offset, request.max_messages, fetched)
            request.channel.costly = read.is_time_up()
        if result.cold is not None:
            self._fetch(request, result.cold)
            return
        if self._separates and topic.startswith(_RETRY):
            result = without_popped(topic, result)
        self._offsets.pulled[admission.consumer] = result.next_offset
        if fetched:
            self._services.cold_flow.count(admission.consumer[0], result.message_bytes)
        if result.status is _FOUND:
            rule = self._rule
            request.answer(0, result, 0 if rule is None else rule.broker_for(admission.consumer[0], result))
            return
        if self._rule is not None and self._rule.is_slave:
            if self._rule.sends_to_master:
                self._answer_elsewhere(self._rule, request, result)
                return
            result = self._rule.of_acting(request.queue_offset, result)
        code = _CODES.get(result.status)
        if code is None:
            code = ResponseCode.PULL_OFFSET_MOVED if request.queue_offset else ResponseCode.PULL_NOT_FOUND
        if request.skipped and code == ResponseCode.PULL_NOT_FOUND:
            # The offset has moved past messages that do not match. RocketMQ reads again from the original offset, finds
            # these messages, and answers PULL_RETRY_IMMEDIATELY.
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        if not self._wait(request, result, code):
            request.answer(int(code), result)

    def _answer_elsewhere(self, rule: ReadRule, request: PullRequest, result: GetMessageResult) -> None:
        """Sends a consumer for which this slave has no message to the master, at once or after a short wait."""
        result = rule.elsewhere(request.queue_offset, result)
        if request.state is _NEW and request.sys_flag & _SUSPEND and rule.may_wait(result) and not self.hold.stopped:
            wait_s = min(request.suspend_timeout_ms / 1000, WAIT_S)
            request.proof = self._services.senders.proof(request.channel)
            if self.hold.hold(request, self._monotonic() + wait_s, request.queue_offset):
                return
        request.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, result)

    def _wait(self, request: PullRequest, result: GetMessageResult, code: int) -> bool:
        """Lets a pull wait that has found no message, or refuses it if too many pulls wait. Returns False if it must be
        answered.
        """
        config = self._config
        if request.state is _NEW:
            if code != ResponseCode.PULL_NOT_FOUND or not request.sys_flag & _SUSPEND:
                return False
            timeout_ms = request.suspend_timeout_ms if config.long_polling_enable else config.short_polling_time_ms
            now_s, queue_offset = self._monotonic(), request.queue_offset
            deadline_s = now_s + timeout_ms / 1000
        else:
            caught_up = result.status is _NO_MATCHED and result.next_offset >= result.max_offset
            if request.state is not _WOKEN or not caught_up:
                return False
            now_s, queue_offset = self._monotonic(), result.next_offset
            deadline_s = request.deadline_s
        if deadline_s <= now_s or self.hold.stopped:
            return False
        if request.proof is None:
            request.proof = self._services.senders.proof(request.channel)
        hold, held_max = self.hold, config.pull_thread_pool_queue_capacity
        if len(hold) >= held_max or not hold.hold(request, deadline_s, queue_offset):
            request.refuse(BrokerError(ResponseCode.SYSTEM_BUSY, OVERLOAD))
        return True

    def _fetch(self, request: PullRequest, fetch: Callable[[], None]) -> None:
        """Fetches messages that are not in memory and reads again, unless the group reads too much from the disk."""
        if self._services.cold_flow.is_limited(request.admission.consumer[0]) and self._slow_down(request):
            return
        go_on = partial(self._go_on, request, partial(self._read, fetched=True))
        if not self._services.cold_reads.start(request.channel, fetch, go_on):
            request.refuse(BrokerError(ResponseCode.SYSTEM_BUSY, OVERLOAD))

    def _slow_down(self, request: PullRequest) -> bool:
        """Slows down a group that has reached its limit of cold reads: refuses the pull, or reads again with a limit of
        one message. Returns False if it did neither.
        """
        info = self._services.consumers.group(request.admission.consumer[0])
        if info is None or info.consume_type != CONSUME_ACTIVELY:
            remark = "This consumer group is reading cold data. It has been flow control"
            request.refuse(BrokerError(ResponseCode.SYSTEM_BUSY, remark))
            return True
        if request.max_messages > 1:
            request.max_messages = 1
            self._read(request)
            return True
        return False

    def _take_reset(self, request: PullRequest) -> int | None:
        """The offset to which the queue was reset, if the consumer must be told of it."""
        reset = self._resets.take(*request.admission.consumer, partial(self._client_id, request))
        # A consumer that asks for offset 0 has read nothing that a reset to 0 would give up.
        return None if reset == request.queue_offset == 0 else reset

    def _client_id(self, request: PullRequest) -> str | None:
        info = self._services.consumers.group(request.admission.consumer[0])
        client = None if info is None else info.clients.get(request.channel)
        return None if client is None else client.client_id

    def _answer_reset(self, request: PullRequest, consumer_offset: int) -> None:
        """Tells the consumer to continue at ``consumer_offset``, to which the offset was reset."""
        where = request.admission.queue
        minimum, maximum = self._store.first_queue_offset(*where), self._store.max_queue_offset(*where)
        result = GetMessageResult(GetMessageStatus.OFFSET_RESET, consumer_offset, minimum, maximum)
        request.answer(ResponseCode.PULL_OFFSET_MOVED, result)


def _field(source: bytearray, position: int, length: int) -> bytes:
    return bytes(source[position : position + length]) if length > 0 else b""
