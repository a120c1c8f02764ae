"""Recalls a message that waits for its delivery time (RocketMQ 5.3.3, ``RecallMessageProcessor``; request 370)."""

from __future__ import annotations

from rucola.broker.config import BrokerConfig
from rucola.broker.processor.responses import success
from rucola.broker.senders import Senders
from rucola.broker.timer.timer_rewrite import TimerRewriter
from rucola.broker.topic.internal_topics import only_broker_writes
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.broker.when_safe import WhenSafe
from rucola.common.message import StoreMessage
from rucola.common.message_const import MSG_REGION, PGROUP, SENDER, TAGS, TIMER_DEL_UNIQKEY, TIMER_DELIVER_MS, UNIQ_KEY
from rucola.common.recall_handle import RecallHandle
from rucola.common.sysflag import PermName
from rucola.errors import BrokerError, FormatError
from rucola.formats.properties import encode_properties
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.recall import RecallMessageRequestHeader, RecallMessageResponseHeader
from rucola.remoting.processors import Answer
from rucola.remoting.server import Channel
from rucola.store.message_store import MessageStore
from rucola.store.results import PutMessageStatus

_TAG = "_RECALL_TAG_"


class RecallMessageProcessor:
    """Serves request 370. The request stores a message in the timer topic. The stored message names the message to
    recall; both are due at the same time. With accounts, it recalls only a message of the same account.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigManager,
        timer: TimerRewriter,
        senders: Senders,
        when_safe: WhenSafe,
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._timer = timer
        self._now_ms = store.now_ms
        self._when_safe = when_safe
        self._senders = senders

    def recall(self, channel: Channel, command: RemotingCommand) -> Answer:
        """Request 370. The broker learns only at the due time whether the message is still waiting; if it is, it is not
        delivered.

        The request is refused if recalls are switched off, or if the handle cannot belong to a waiting message of this
        broker. For example, the delivery time in the handle may have passed.
        """
        region = {MSG_REGION: self._config.region_id}
        try:
            answer, end = self._recall(channel, command)
        except BrokerError as refusal:
            return command.answer(refusal.code, refusal.remark, region)
        answer.ext_fields |= region
        return self._when_safe(channel, command, answer, end)

    def _recall(self, channel: Channel, command: RemotingCommand) -> tuple[RemotingCommand, int]:
        """Returns the response, and the log offset up to which the log must be synced before the response is sent."""
        header = RecallMessageRequestHeader.from_ext_fields(command.ext_fields)
        handle = self._check(header)
        properties = {
            TIMER_DEL_UNIQKEY: f"{handle.topic}+{handle.unique_key}",
            UNIQ_KEY: handle.unique_key,
            TAGS: _TAG,
            TIMER_DELIVER_MS: str(handle.due_ms),
        }
        if mark := self._senders.recall_mark():
            properties[SENDER] = mark
        if header.producer_group:
            properties[PGROUP] = header.producer_group
        try:
            text = encode_properties(properties)
        except ValueError:
            raise _illegal("the request holds characters that are not allowed in messages") from None
        message = StoreMessage(handle.topic.encode(), 0, b"0", text, self._now_ms(), channel.host)
        result = self._store.put_message(self._timer.rewrite(message))
        if result.status is not PutMessageStatus.PUT_OK:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
        return success(command, RecallMessageResponseHeader(handle.unique_key)), result.physical_offset + result.size

    def _check(self, header: RecallMessageRequestHeader) -> RecallHandle:
        """The checks of RocketMQ, in RocketMQ's order."""
        if not self._config.recall_message_enable:
            raise BrokerError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if not self._config.broker_permission & PermName.WRITE:
            raise BrokerError(ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available")
        if self._topics.get(header.topic) is None or only_broker_writes(header.topic):
            raise BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist")
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except FormatError:
            raise _illegal("recall handle is invalid") from None
        if handle.topic != header.topic:
            raise _illegal("topic not match")
        if handle.broker_name != self._config.broker_name:
            raise _illegal("broker service not available")
        left_ms = handle.due_ms - self._now_ms()
        if not 0 < left_ms < self._store.config.timer_max_delay_sec * 1000:
            raise _illegal("timestamp invalid")
        return handle


def _illegal(problem: str) -> BrokerError:
    return BrokerError(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {problem}")
