"""Serves pulls: checks, read, answer or wait (RocketMQ 5.3.3, ``PullMessageProcessor``; requests 11 and 361)."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from rucola.broker.client.consumer_manager import CONSUME_ACTIVELY
from rucola.broker.filter.filtered_read import FilterTime, read_filtered
from rucola.broker.longpolling.deadlines import Timer
from rucola.broker.longpolling.pull_request_hold import Admission, PullRequest, PullRequestHold
from rucola.broker.processor.pull_admission import (
    TAG,
    NotCompiledError,
    PullAdmissions,
    PullForbiddenError,
    RepeatedFields,
)
from rucola.broker.retry_owner import without_popped
from rucola.broker.services import BrokerServices
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.common.key_builder import RETRY_GROUP_TOPIC_PREFIX
from rucola.common.sysflag import PullSysFlag
from rucola.errors import BrokerError, RucolaError
from rucola.protocol.answers import encode_pull_header
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.remoting.channel import Channel
from rucola.remoting.processors import OVERLOAD
from rucola.runtime.logs import event
from rucola.store.reader import JOIN_BELOW_BYTES
from rucola.store.results import GetMessageResult, GetMessageStatus

logger = logging.getLogger(__name__)
_CODE = int(FrameColumn.CODE)
_OPAQUE = int(FrameColumn.OPAQUE)
_FLAG = int(FrameColumn.FLAG)
_SERIALIZE = int(FrameColumn.SERIALIZE)
_TOPIC_POS, _TOPIC_LEN = int(FrameColumn.TOPIC_POS), int(FrameColumn.TOPIC_LEN)
_GROUP_POS, _GROUP_LEN = int(FrameColumn.GROUP_POS), int(FrameColumn.GROUP_LEN)
_QUEUE_ID = int(FrameColumn.QUEUE_ID)
_QUEUE_OFFSET = int(FrameColumn.PULL_QUEUE_OFFSET)
_MAX_MESSAGES = int(FrameColumn.PULL_MAX_MESSAGES)
_SYS_FLAG = int(FrameColumn.SYS_FLAG)
_COMMIT_OFFSET = int(FrameColumn.PULL_COMMIT_OFFSET)
_SUSPEND_TIMEOUT = int(FrameColumn.PULL_SUSPEND_TIMEOUT)
_SUB_VERSION = int(FrameColumn.PULL_SUB_VERSION)
_EXPRESSION_POS, _EXPRESSION_LEN = int(FrameColumn.PULL_EXPRESSION_POS), int(FrameColumn.PULL_EXPRESSION_LEN)
_EXPRESSION_TYPE_POS = int(FrameColumn.PULL_EXPRESSION_TYPE_POS)
_EXPRESSION_TYPE_LEN = int(FrameColumn.PULL_EXPRESSION_TYPE_LEN)
_COMMIT = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)
_MAX_BYTES = 128 * 1024 * 1024
_RETRY = RETRY_GROUP_TOPIC_PREFIX.encode()
_FOUND = GetMessageStatus.FOUND
_NO_MATCHED = GetMessageStatus.NO_MATCHED_MESSAGE
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

    Attributes:
        hold: the pulls that wait for messages.
    """

    def __init__(self, services: BrokerServices, call_later: Callable[..., Timer]) -> None:
        self.hold = PullRequestHold(
            services.store.max_queue_offset,
            self.resume,
            services.clock.monotonic,
            call_later,
            services.senders.account_on,
        )
        self._cold_reads = services.cold_reads
        self._config = services.config
        self._store = services.store
        self._topics = services.topics
        self._offsets = services.offsets
        self._resets = services.resets
        self._consumers = services.consumers
        self._cold_flow = services.cold_flow
        self._senders = services.senders
        self._separates = services.config.guarded
        """Whether copies of popped messages in retry topics name their origin (``retry_owner``)."""
        self._admissions = PullAdmissions(services)
        self._expressions = services.expressions
        self._monotonic = services.clock.monotonic

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
        asked = (
            bytes(source[at : at + columns[_TOPIC_LEN]]),
            bytes(source[group_at : group_at + columns[_GROUP_LEN]]),
            columns[_QUEUE_ID],
            columns[_CODE],
            sub_version,
            expression,
            expression_type,
        )
        opaque, serialize = columns[_OPAQUE], columns[_SERIALIZE]
        try:
            admission = self._admitted(channel, opaque, serialize, asked)
        except NotCompiledError as missing:
            place = columns[_QUEUE_OFFSET], columns[_MAX_MESSAGES]
            wait = sys_flag, columns[_COMMIT_OFFSET], columns[_SUSPEND_TIMEOUT]
            self._compile(channel, opaque, serialize, asked, missing, place, wait)
            return
        if admission is not None:
            request = PullRequest(channel, opaque, serialize, admission, columns[_QUEUE_OFFSET], columns[_MAX_MESSAGES])
            self._begin(request, sys_flag, columns[_COMMIT_OFFSET], columns[_SUSPEND_TIMEOUT])

    def process_command(self, channel: Channel, command: RemotingCommand) -> None:
        """Processes a pull with an unusual header.

        Raises:
            FormatError: a required field is missing or not a number.
        """
        header = PullMessageRequestHeader.from_ext_fields(command.ext_fields)
        if command.is_oneway:
            return
        own = header.sys_flag & _SUBSCRIPTION
        asked = RepeatedFields(
            header.topic.encode(),
            header.consumer_group.encode(),
            header.queue_id,
            command.code,
            None if own else header.sub_version,
            (header.subscription or "").encode() if own else b"",
            (header.expression_type or "").encode() or TAG if own else b"",
        )
        opaque, serialize = command.opaque, command.serialize
        place = header.queue_offset, header.max_msg_nums
        wait = header.sys_flag, header.commit_offset, header.suspend_timeout_millis
        try:
            admission = self._admitted(channel, opaque, serialize, asked)
        except NotCompiledError as missing:
            self._compile(channel, opaque, serialize, asked, missing, place, wait)
            return
        if admission is not None:
            self._begin(PullRequest(channel, opaque, serialize, admission, *place), *wait)

    def _compile(
        self,
        channel: Channel,
        opaque: int,
        serialize: int,
        asked: tuple[Any, ...],
        missing: NotCompiledError,
        place: tuple[int, int],
        wait: tuple[int, int, int],
    ) -> None:
        """Serves a pull when its expression is compiled.

        Args:
            place: queue offset and largest number of messages.
            wait: sysFlag, offset to commit, and time to wait for messages in ms.
        """

        def resume() -> None:
            try:
                admission = self._admissions.find(asked, channel)
            except BrokerError as refusal:
                _refuse(channel, opaque, serialize, refusal)
                return
            request = PullRequest(channel, opaque, serialize, admission, *place)
            try:
                self._begin(request, *wait)
            except Exception as error:  # noqa: BLE001 - see resume
                _fail(request, error)

        try:
            self._expressions.start(channel, missing.text, resume)
        except BrokerError as refusal:
            _refuse(channel, opaque, serialize, refusal)

    def resume(self, request: PullRequest) -> None:
        """Runs a held request again.

        The group's subscription may have changed meanwhile, so a message that did not match before may match now and
        must not be skipped.

        If the topic was deleted meanwhile, the consumer must go on at offset 0, should the topic be created again.
        RocketMQ holds the request until its time is over, and then goes on at the old offset.
        """
        channel = request.channel
        if channel.closed:
            return
        group, name, _ = request.admission.consumer
        try:
            self._senders.check_still_reads(request.proof, channel, name, group)
            if not self._admissions.stands(request.admission):
                if self._topics.get(request.admission.consumer[1]) is None:
                    self._answer_reset(request, 0)
                    return
                try:
                    admission = self._admitted(channel, request.opaque, request.serialize, request.admission.asked)
                except NotCompiledError as missing:
                    self._expressions.start(channel, missing.text, partial(self.resume, request))
                    return
                if admission is None:
                    return
                request.admission = admission
            self._read(request, may_wait=False)
        except BrokerError as refusal:
            _refuse(channel, request.opaque, request.serialize, refusal)
        except Exception as error:  # noqa: BLE001 - one failure costs one request, which is answered all the same
            _fail(request, error)

    def _admitted(self, channel: Channel, opaque: int, serialize: int, asked: tuple[Any, ...]) -> Admission | None:
        """The part of the queue that a request may read; None if the request was refused."""
        try:
            return self._admissions.find(asked, channel)
        except BrokerError as refusal:
            _refuse(channel, opaque, serialize, refusal)
            return None

    def _fetched(self, request: PullRequest, may_wait: bool) -> None:
        if request.channel.closed:
            return
        try:
            self._read(request, may_wait, fetched=True)
        except Exception as error:  # noqa: BLE001 - see resume
            _fail(request, error)

    def _begin(self, request: PullRequest, sys_flag: int, commit_offset: int, suspend_timeout_ms: int) -> None:
        offsets = self._offsets
        if sys_flag & _COMMIT:
            where = request.admission.consumer
            if not self._resets.table or self._resets.find(*where) is None:
                offsets.commit(*where, commit_offset)
        if sys_flag & _SUSPEND:
            config = self._config
            request.timeout_ms = (
                max(suspend_timeout_ms, 0) if config.long_polling_enable else config.short_polling_time_ms
            )
        self._read(request, may_wait=request.timeout_ms > 0)

    def _read(self, request: PullRequest, may_wait: bool, fetched: bool = False) -> None:
        admission, offsets = request.admission, self._offsets
        if self._resets.table:
            reset = self._take_reset(request)
            if reset is not None:
                self._answer_reset(request, reset)
                return
        topic, queue_id = admission.queue
        if admission.expression is None:
            result = self._store.get_message(
                topic, queue_id, request.queue_offset, request.max_messages, _MAX_BYTES, admission.tag_codes, fetched
            )
        else:
            where = (topic, queue_id, request.queue_offset, request.max_messages)
            time = FilterTime(self._monotonic)
            result = read_filtered(self._store, admission.expression, *where, may_block=fetched, time=time)
            request.channel.costly = time.is_up()
        if result.cold is not None:
            if self._cold_flow.is_limited(admission.consumer[0]) and self._slow_down(request, may_wait):
                return
            if not self._cold_reads.start(request.channel, result.cold, partial(self._fetched, request, may_wait)):
                _refuse_busy(request)
            return
        if self._separates and topic.startswith(_RETRY):
            result = without_popped(topic, result)
        offsets.pulled[admission.consumer] = result.next_offset
        if fetched:
            self._cold_flow.count(admission.consumer[0], result.message_bytes)
        if result.status is _FOUND:
            _answer(request, 0, result)
            return
        code = _CODES.get(result.status)
        if code is None:
            code = ResponseCode.PULL_OFFSET_MOVED if request.queue_offset else ResponseCode.PULL_NOT_FOUND
        if request.moved and code == ResponseCode.PULL_NOT_FOUND:
            # The offset has moved past messages that do not match. RocketMQ reads again from the original offset, finds
            # these messages, and answers PULL_RETRY_IMMEDIATELY.
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        if self._prepare_wait(request, result, code, may_wait):
            if request.proof is None:
                request.proof = self._senders.proof(request.channel)
            if len(self.hold) >= self._config.pull_thread_pool_queue_capacity or not self.hold.hold(request):
                _refuse_busy(request)
            return
        _answer(request, int(code), result)

    def _slow_down(self, request: PullRequest, may_wait: bool) -> bool:
        """Slows down a group that has reached its limit of cold reads: refuses the pull, or reads again with a limit of
        one message. Returns False if it did neither.
        """
        info = self._consumers.group(request.admission.consumer[0])
        if info is None or info.consume_type != CONSUME_ACTIVELY:
            remark = "This consumer group is reading cold data. It has been flow control"
            _refuse(request.channel, request.opaque, request.serialize, BrokerError(ResponseCode.SYSTEM_BUSY, remark))
            return True
        if request.max_messages > 1:
            request.max_messages = 1
            self._read(request, may_wait)
            return True
        return False

    def _prepare_wait(self, request: PullRequest, result: GetMessageResult, code: int, may_wait: bool) -> bool:
        """Sets from where and until when the request waits, and returns True, if it should be held: either it is new
        and no message was found, or only messages that do not match woke it.
        """
        if may_wait:
            if code != ResponseCode.PULL_NOT_FOUND:
                return False
            request.until_s = self._monotonic() + request.timeout_ms / 1000
            return True
        caught_up = result.status is _NO_MATCHED and result.next_offset >= result.max_offset
        if not caught_up or request.timeout_ms <= 0 or request.until_s is None:
            return False
        request.timeout_ms = round((request.until_s - self._monotonic()) * 1000)
        request.queue_offset, request.moved = result.next_offset, True
        return request.timeout_ms > 0

    def _take_reset(self, request: PullRequest) -> int | None:
        """The offset to which the queue was reset, if the consumer must be told of it."""
        reset = self._resets.take(*request.admission.consumer, partial(self._client_id, request))
        # A consumer that asks for offset 0 has read nothing that a reset to 0 would give up.
        return None if reset == request.queue_offset == 0 else reset

    def _client_id(self, request: PullRequest) -> str | None:
        info = self._consumers.group(request.admission.consumer[0])
        client = None if info is None else info.clients.get(request.channel)
        return None if client is None else client.client_id

    def _answer_reset(self, request: PullRequest, consumer_offset: int) -> None:
        """Tells the consumer to continue at ``consumer_offset``, to which the offset was reset."""
        where = request.admission.queue
        minimum, maximum = self._store.first_queue_offset(*where), self._store.max_queue_offset(*where)
        result = GetMessageResult(GetMessageStatus.OFFSET_RESET, consumer_offset, minimum, maximum)
        _answer(request, ResponseCode.PULL_OFFSET_MOVED, result)


def _field(source: bytearray, position: int, length: int) -> bytes:
    return bytes(source[position : position + length]) if length > 0 else b""


def _refuse(channel: Channel, opaque: int, serialize: int, refusal: BrokerError) -> None:
    ext_fields = refusal.ext_fields if isinstance(refusal, PullForbiddenError) else {}
    answer = RemotingCommand(refusal.code, opaque, FLAG_RESPONSE, refusal.remark, ext_fields, serialize=serialize)
    channel.send(answer.encode())


def _refuse_busy(request: PullRequest) -> None:
    _refuse(request.channel, request.opaque, request.serialize, BrokerError(ResponseCode.SYSTEM_BUSY, OVERLOAD))


def _fail(request: PullRequest, error: Exception) -> None:
    channel = request.channel
    trace = None if isinstance(error, RucolaError) else error
    event(logger, logging.ERROR, "pull failed", trace, peer=channel.remote_address, error=error)
    refusal = BrokerError(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
    _refuse(channel, request.opaque, request.serialize, refusal)


def _answer(request: PullRequest, code: int, result: GetMessageResult) -> None:
    header = encode_pull_header(
        request.opaque,
        request.serialize,
        code,
        result.next_offset,
        result.min_offset,
        result.max_offset,
        0,
        result.message_bytes,
        "FOUND" if result.status is _FOUND else result.status.value,
    )
    if not result.views:
        request.channel.send(header)
    elif result.message_bytes < JOIN_BELOW_BYTES * len(result.views):
        request.channel.send(b"".join((header, *result.views)))
    else:
        request.channel.send_parts((header, *result.views))
