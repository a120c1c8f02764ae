"""Pulls: checks, read, answer or wait (RocketMQ 5.3.3, ``PullMessageProcessor``; requests 11 and 361)."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from enum import IntEnum
from functools import partial

from rucola.broker.client.consumer_manager import BROADCASTING, CONSUME_ACTIVELY
from rucola.broker.config import BrokerConfig
from rucola.broker.filter.consumer_filter_manager import SQL92
from rucola.broker.filter.filtered_read import read_filtered
from rucola.broker.longpolling.cold_reads import ColdReads
from rucola.broker.longpolling.pull_request_hold import PullRequest, PullRequestHold
from rucola.broker.processor.processor import FAQ, topic_missing
from rucola.broker.services import BrokerServices
from rucola.broker.subscription.subscription_group_manager import is_system_group
from rucola.common.columns import ROW_WIDTH, FrameColumn
from rucola.common.subscription_group import SubscriptionGroupConfig
from rucola.common.sysflag import PermName, PullSysFlag
from rucola.errors import BrokerError, FormatError
from rucola.filter import sql
from rucola.filter.tag import parse_tags
from rucola.protocol.answers import encode_pull_header
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from rucola.protocol.headers.pull import PullMessageRequestHeader
from rucola.remoting.processors import OVERLOAD
from rucola.remoting.server import Channel
from rucola.store.reader import JOIN_BELOW_BYTES
from rucola.store.results import GetMessageResult, GetMessageStatus

TAG = "TAG"
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
_READ = int(PermName.READ)
_COMMIT = int(PullSysFlag.COMMIT_OFFSET)
_SUSPEND = int(PullSysFlag.SUSPEND)
_SUBSCRIPTION = int(PullSysFlag.SUBSCRIPTION)
_MAX_BYTES = 128 * 1024 * 1024
_EXPRESSIONS_MAX = 4096
_SQL_EXPRESSIONS_MAX = 256
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
"""Of what is not FOUND; the other statuses depend on the offset asked for: 19 at 0, else 21."""


class ForbiddenType(IntEnum):
    """What forbids a pull (RocketMQ 5.3.3)."""

    BROKER_FORBIDDEN = 1
    GROUP_FORBIDDEN = 2
    TOPIC_FORBIDDEN = 3
    BROADCASTING_DISABLE_FORBIDDEN = 4
    SUBSCRIPTION_FORBIDDEN = 5


class PullForbiddenError(BrokerError):
    """NO_PERMISSION for a pull, with the reason as a number that clients read."""

    def __init__(self, forbidden_type: ForbiddenType, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.ext_fields = {"forbiddenType": str(int(forbidden_type))}


class PullMessageProcessor:
    """Serves the rows of kind PULL. Event loop only; ``hold`` is set by the broker before the first request."""

    def __init__(self, services: BrokerServices) -> None:
        config = services.config
        self.hold: PullRequestHold
        self.cold_reads = ColdReads(lambda: config.pull_thread_pool_queue_capacity)
        self._config = config
        self._store = services.store
        self._topics = services.topics
        self._groups = services.groups
        self._consumers = services.consumers
        self._offsets = services.offsets
        self._filters = services.filters
        self._expressions: dict[str, Collection[int] | None] = {}
        self._sql_expressions: dict[str, sql.SqlExpression | None] = {}
        self._monotonic = services.clock.monotonic
        self._changes = 0
        services.topics.on_change(self._changed)
        services.groups.on_change(self._changed)

    def process_row(self, channel: Channel, source: bytearray, table: array[int], row: int) -> None:
        """Take row ``row`` of kind PULL."""
        base = row * ROW_WIDTH
        columns = table[base : base + ROW_WIDTH].tolist()

        def text(position: int, length: int) -> str:
            start, size = columns[position], columns[length]
            return str(source[start : start + size], "utf-8", "replace") if size > 0 else ""

        topic = text(_TOPIC_POS, _TOPIC_LEN)
        request = PullRequest(
            channel,
            columns[_OPAQUE],
            columns[_SERIALIZE],
            text(_GROUP_POS, _GROUP_LEN),
            topic,
            topic.encode(),
            columns[_QUEUE_ID],
            columns[_QUEUE_OFFSET],
            columns[_MAX_MESSAGES],
            None,
        )
        self._process(
            request,
            columns[_CODE],
            bool(columns[_FLAG] & FLAG_ONEWAY),
            columns[_SYS_FLAG],
            columns[_COMMIT_OFFSET],
            columns[_SUSPEND_TIMEOUT],
            columns[_SUB_VERSION],
            text(_EXPRESSION_POS, _EXPRESSION_LEN),
            text(_EXPRESSION_TYPE_POS, _EXPRESSION_TYPE_LEN) or TAG,
        )

    def process_command(self, channel: Channel, command: RemotingCommand) -> None:
        """Take a pull that came with an unusual header.

        Raises:
            FormatError: a required field is missing or no number.
        """
        header = PullMessageRequestHeader.from_ext_fields(command.ext_fields)
        request = PullRequest(
            channel,
            command.opaque,
            command.serialize,
            header.consumer_group,
            header.topic,
            header.topic.encode(),
            header.queue_id,
            header.queue_offset,
            header.max_msg_nums,
            None,
        )
        self._process(
            request,
            command.code,
            command.is_oneway,
            header.sys_flag,
            header.commit_offset,
            header.suspend_timeout_millis,
            header.sub_version,
            header.subscription or "",
            header.expression_type or TAG,
        )

    def resume(self, request: PullRequest) -> None:
        """Run a held request again.

        While it waited its group may have subscribed otherwise: what it would have skipped then, it must not skip now.
        """
        if request.channel.closed:
            return
        if request.admitted != self._changes + self._consumers.changes:
            try:
                self._admit(request)
            except BrokerError as refusal:
                _refuse(request, refusal)
                return
        self._read(request, may_wait=False)

    def _changed(self) -> None:
        self._changes += 1

    def _fetched(self, request: PullRequest, may_wait: bool) -> None:
        if not request.channel.closed:
            self._read(request, may_wait, fetched=True)

    def _process(
        self,
        request: PullRequest,
        code: int,
        oneway: bool,
        sys_flag: int,
        commit_offset: int,
        suspend_timeout_ms: int,
        sub_version: int,
        expression: str,
        expression_type: str,
    ) -> None:
        if oneway:
            return
        brings_its_own = sys_flag & _SUBSCRIPTION
        request.code = code
        request.sub_version = None if brings_its_own else sub_version
        try:
            self._admit(request)
            if brings_its_own and expression_type == TAG:
                request.tag_codes = self._tag_codes(expression)
            elif brings_its_own:
                request.expression = self._sql_expression(expression, expression_type)
        except BrokerError as refusal:
            _refuse(request, refusal)
            return
        if sys_flag & _COMMIT:
            where = (request.group, request.topic, request.queue_id)
            if not self._offsets.resets or not self._offsets.reset_pending(*where):
                self._offsets.commit(*where, commit_offset)
        if sys_flag & _SUSPEND:
            config = self._config
            request.timeout_ms = (
                max(suspend_timeout_ms, 0) if config.long_polling_enable else config.short_polling_time_ms
            )
        self._read(request, may_wait=request.timeout_ms > 0)

    def _admit(self, request: PullRequest) -> None:
        """Every check, and what the group subscribed to for a request that did not say what it wants.

        Raises:
            BrokerError: it may not be read.
        """
        self._check(request)
        if request.sub_version is not None:
            self._take_subscribed(request, request.sub_version)
        if self._config.reject_pull_consumer_enable:
            self._refuse_active(request)
        request.admitted = self._changes + self._consumers.changes

    def _check(self, request: PullRequest) -> None:
        """Refuse what may not be read, in the reference's order (protocol.md 3.4)."""
        config = self._config
        if not config.broker_permission & _READ:
            raise PullForbiddenError(
                ForbiddenType.BROKER_FORBIDDEN, f"the broker[{config.broker_ip1}] pulling message is forbidden"
            )
        if request.code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
            raise PullForbiddenError(
                ForbiddenType.BROKER_FORBIDDEN, f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden"
            )
        group = self._groups.find(request.group)
        if group is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{request.group}] does not exist, {FAQ}",
            )
        if not group.consume_enable:
            raise PullForbiddenError(
                ForbiddenType.GROUP_FORBIDDEN, f"subscription group no permission, {request.group}"
            )
        topic = self._topics.get(request.topic)
        if topic is None:
            raise topic_missing(request.topic)
        if not int(topic.perm) & _READ:  # operators of an enumeration are slow
            raise PullForbiddenError(
                ForbiddenType.TOPIC_FORBIDDEN, f"the topic[{request.topic}] pulling message is forbidden"
            )
        if not 0 <= request.queue_id < topic.read_queue_nums:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}] consumer:[{request.channel.remote_address}]",
            )

    def _refuse_active(self, request: PullRequest) -> None:
        """Let push consumers pull, and tools; a consumer that chose its queues itself no longer."""
        info = self._consumers.group(request.group)
        if info is not None and (info.consume_type != CONSUME_ACTIVELY or request.channel in info.clients):
            return
        if not is_system_group(request.group):
            remark = "the consumer's group info not exist, or the pull consumer is rejected by server." + FAQ
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)

    def _sql_expression(self, expression: str, expression_type: str) -> sql.SqlExpression | None:
        """An SQL92 expression sent with the pull.

        One that cannot be compiled lets every message through: the reference answers so (protocol.md 5.3).
        """
        if not expression:
            raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")
        check_expression_type(self._config, expression_type)
        if expression not in self._sql_expressions:
            if len(self._sql_expressions) >= _SQL_EXPRESSIONS_MAX:
                self._sql_expressions.clear()
            try:
                self._sql_expressions[expression] = sql.compile_sql(expression)
            except FormatError:
                self._sql_expressions[expression] = None
        return self._sql_expressions[expression]

    def _tag_codes(self, expression: str) -> Collection[int] | None:
        """Tag codes of an expression sent with the pull; None for all messages."""
        try:
            return self._expressions[expression]
        except KeyError:
            pass
        try:
            codes = parse_tags(expression)
        except FormatError:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            ) from None
        if len(self._expressions) < _EXPRESSIONS_MAX:  # a client may send a new one each time
            self._expressions[expression] = codes
        return codes

    def _take_subscribed(self, request: PullRequest, sub_version: int) -> None:
        """Let ``request`` ask for what the group's heartbeats said."""
        info = self._consumers.group(request.group)
        if info is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}")
        if info.message_model == BROADCASTING:
            group = self._groups.find(request.group) or SubscriptionGroupConfig(request.group)
            if not group.consume_broadcast_enable:
                raise PullForbiddenError(
                    ForbiddenType.BROADCASTING_DISABLE_FORBIDDEN,
                    f"the consumer group[{request.group}] can not consume by broadcast way",
                )
        forbidden = self._groups.forbidden
        if forbidden and forbidden.get(request.group, {}).get(request.topic, 0) & _READ:
            raise PullForbiddenError(
                ForbiddenType.SUBSCRIPTION_FORBIDDEN,
                f"the consumer group[{request.group}] is forbidden for topic[{request.topic}]",
            )
        subscription = info.subscriptions.get(request.topic)
        if subscription is None:
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}")
        if subscription.sub_version < sub_version:
            raise BrokerError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if subscription.expression_type == TAG:
            request.tag_codes = None if subscription.sub_string == "*" else frozenset(subscription.code_set)
            request.expression = None
            return
        known = self._filters.get(request.topic, request.group)
        if known is None:
            raise BrokerError(ResponseCode.FILTER_DATA_NOT_EXIST, "the consumer's filter data does not exist" + FAQ)
        if known[0].client_version < sub_version:
            raise BrokerError(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's filter data is not latest")
        check_expression_type(self._config, subscription.expression_type)
        request.tag_codes, request.expression = None, known[1]

    def _read(self, request: PullRequest, may_wait: bool, fetched: bool = False) -> None:
        if self._offsets.resets:
            reset = self._offsets.take_reset(request.group, request.topic, request.queue_id)
            if reset is not None:
                self._answer_reset(request, reset)
                return
        where = (request.topic_bytes, request.queue_id, request.queue_offset, request.max_messages)
        if request.expression is None:
            result = self._store.get_message(*where, _MAX_BYTES, request.tag_codes, may_block=fetched)
        else:
            result = read_filtered(self._store, request.expression, *where, may_block=fetched)
        if result.cold is not None:
            if not self.cold_reads.start(request.channel, result.cold, partial(self._fetched, request, may_wait)):
                _refuse(request, BrokerError(ResponseCode.SYSTEM_BUSY, OVERLOAD))
            return
        self._offsets.pulled[request.group, request.topic, request.queue_id] = result.next_offset
        if result.status is _FOUND:
            _answer(request, 0, result)
            return
        code = _CODES.get(result.status)
        if code is None:
            code = ResponseCode.PULL_OFFSET_MOVED if request.queue_offset else ResponseCode.PULL_NOT_FOUND
        if request.moved and code == ResponseCode.PULL_NOT_FOUND:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY  # as a read from where it began says
        if self._waits(request, result, code, may_wait):
            if len(self.hold) >= self._config.pull_thread_pool_queue_capacity or not self.hold.hold(request):
                _refuse(request, BrokerError(ResponseCode.SYSTEM_BUSY, OVERLOAD))
            return
        _answer(request, int(code), result)

    def _waits(self, request: PullRequest, result: GetMessageResult, code: int, may_wait: bool) -> bool:
        """Whether the request is held: a new one that found nothing, or one woken by messages that are not for it."""
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

    def _answer_reset(self, request: PullRequest, consumer_offset: int) -> None:
        """Send the consumer to where it was reset to."""
        where = (request.topic_bytes, request.queue_id)
        minimum, maximum = self._store.min_queue_offset(*where), self._store.max_queue_offset(*where)
        result = GetMessageResult(GetMessageStatus.OFFSET_RESET, consumer_offset, minimum, maximum)
        _answer(request, ResponseCode.PULL_OFFSET_MOVED, result)


def check_expression_type(config: BrokerConfig, expression_type: str) -> None:
    """Refuse what this broker does not filter by.

    Raises:
        BrokerError: SYSTEM_ERROR, no such type or ``enablePropertyFilter`` is off.
    """
    if not config.enable_property_filter or expression_type != SQL92:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {expression_type}"
        )


def _refuse(request: PullRequest, refusal: BrokerError) -> None:
    ext_fields = refusal.ext_fields if isinstance(refusal, PullForbiddenError) else {}
    answer = RemotingCommand(
        refusal.code, request.opaque, FLAG_RESPONSE, refusal.remark, ext_fields, serialize=request.serialize
    )
    request.channel.send(answer.encode())


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
