"""Pops: checks, read, answer or wait (RocketMQ 5.3.3, ``PopMessageProcessor``; requests 200050, 200054 and 200055)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

from rucola.broker.config import BrokerConfig
from rucola.broker.pop.pop_hold import HeldPop, PopHold
from rucola.broker.pop.pop_offsets import PoppedQueue
from rucola.broker.pop.pop_read import Pop, PopReader
from rucola.broker.pop.receipt import ORDER_REVIVE_QUEUE, pop_retry_topic
from rucola.broker.processor.processor import FAQ, success
from rucola.broker.subscription.subscription_group_manager import SubscriptionGroupManager
from rucola.broker.topic.topic_config_manager import TopicConfigManager
from rucola.common.sysflag import PermName
from rucola.errors import BrokerError, FormatError
from rucola.filter.sql import SqlExpression, compile_sql
from rucola.filter.tag import parse_tags
from rucola.formats.pop import MESSAGES_MAX
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.headers.pop import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from rucola.remoting.processors import ProcessorTable, error_answer
from rucola.remoting.server import Channel
from rucola.store.message_store import MessageStore

_TOO_LATE_MS = 500
_ANSWER_AHEAD_MS = 50
"""A waiting pop is answered a little before its client gives up."""
_PERCENT = 100
_TAG = "TAG"
_Filter = tuple[Collection[int] | None, SqlExpression | None]


class PopMessageProcessor:
    """See the module. Event loop only.

    Args:
        revive_queues: queues of the revive topic.
        random_below: ``n -> 0..n-1``; decides where a pop begins.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        reader: PopReader,
        hold: PopHold,
        revive_queues: int,
        wall_ms: Callable[[], int],
        random_below: Callable[[int], int],
    ) -> None:
        self._config = config
        self._store = store
        self._topics = topics
        self._groups = groups
        self._reader = reader
        self._hold = hold
        self._revive_queues = itertools.cycle(range(revive_queues))
        self._wall_ms = wall_ms
        self._random_below = random_below

    def register_to(self, table: ProcessorTable) -> None:
        """Put the processor into ``table``."""
        table.register(RequestCode.POP_MESSAGE, self.pop)
        table.register(RequestCode.NOTIFICATION, self.notification)
        table.register(RequestCode.POLLING_INFO, self.polling_info)

    def pop(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """200050; None when the request waits."""
        header = PopMessageRequestHeader.from_ext_fields(command.ext_fields)
        try:
            self._check(channel, header)
            tag_codes, expression = self._filter(header)
        except BrokerError as refusal:
            return command.answer(refusal.code, refusal.remark, PopMessageResponseHeader().to_ext_fields())
        revive_queue = ORDER_REVIVE_QUEUE if header.order else next(self._revive_queues)
        pop = Pop(header, self._wall_ms(), revive_queue, tag_codes, expression)
        self._read(pop)
        code, remark = ResponseCode.SUCCESS, "FOUND"
        if not pop.count:
            if self._wait(channel, command, pop):
                return None
            full = header.poll_time > 0 and self._deadline_ms(header) > self._wall_ms()
            code, remark = (ResponseCode.POLLING_FULL if full else ResponseCode.POLLING_TIMEOUT), "NO_MESSAGE_IN_QUEUE"
        elif pop.rest > 0:
            self._hold.wake(header.topic, header.consumer_group, header.queue_id)
        return command.answer(code, remark, _answer_header(pop).to_ext_fields(), b"".join(pop.parts))

    def notification(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """200054: whether a pop would find something. It never waits."""
        header = NotificationRequestHeader.from_ext_fields(command.ext_fields)
        config = self._topics.get(header.topic)
        if config is None:
            raise _topic_missing(header.topic)
        queue_ids = range(config.read_queue_nums) if header.queue_id < 0 else (header.queue_id,)
        places = [(header.topic, queue_id) for queue_id in queue_ids]
        if not header.order:
            places += [(topic, 0) for topic in self._retry_topics(header.topic, header.consumer_group)]
        found = any(self._holds_more(PoppedQueue(t, header.consumer_group, q)) for t, q in places)
        return success(command, NotificationResponseHeader(has_msg=found))

    def polling_info(self, channel: Channel, command: RemotingCommand) -> RemotingCommand:
        """200055: how many pops wait."""
        header = PollingInfoRequestHeader.from_ext_fields(command.ext_fields)
        if self._topics.get(header.topic) is None:
            raise _topic_missing(header.topic)
        count = self._hold.count(header.topic, header.consumer_group, header.queue_id)
        return success(command, PollingInfoResponseHeader(count))

    def _check(self, channel: Channel, header: PopMessageRequestHeader) -> None:
        """Refuse what may not be popped, in the reference's order."""
        broker = f"the broker[{self._config.broker_ip1}]"
        if self._wall_ms() - header.born_time - header.poll_time > _TOO_LATE_MS:
            raise BrokerError(ResponseCode.POLLING_TIMEOUT, f"{broker} pop message is timeout too much")
        if not self._config.broker_permission & PermName.READ:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"{broker} pop message is forbidden")
        if header.max_msg_nums > MESSAGES_MAX:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER, f"{broker} pop message's num is greater than {MESSAGES_MAX}"
            )
        if not self._store.config.timer_wheel_enable:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"{broker} pop message is forbidden because timerWheelEnable is false"
            )
        topic = self._topics.get(header.topic)
        if topic is None:
            raise _topic_missing(header.topic)
        if not topic.perm & PermName.READ:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] peeking message is forbidden")
        if header.queue_id >= topic.read_queue_nums:
            raise BrokerError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}] consumer:[{channel.remote_address}]",
            )
        group = self._groups.find(header.consumer_group)
        if group is None:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.consumer_group}] does not exist, {FAQ}",
            )
        if not group.consume_enable:
            raise BrokerError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {header.consumer_group}")

    def _filter(self, header: PopMessageRequestHeader) -> _Filter:
        try:
            if (header.exp_type or _TAG) == _TAG:
                return parse_tags(header.exp), None
            return None, compile_sql(header.exp) if header.exp else None
        except FormatError:
            raise BrokerError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            ) from None

    def _read(self, pop: Pop) -> None:
        """Look into the queues; into the retry topic first for a share of the pops, else when there is room left."""
        header = pop.header
        begin = self._random_below(_PERCENT)
        retry_topics = self._retry_topics(header.topic, header.consumer_group)
        retry_topic = retry_topics[begin % len(retry_topics)]
        retry_first = begin < self._config.pop_from_retry_probability
        if retry_first and not header.order:
            self._read_topic(pop, retry_topic, begin)
        if header.queue_id < 0:
            self._read_topic(pop, header.topic, begin)
        else:
            self._reader.read_queue(pop, header.topic, header.queue_id)
        if not retry_first and not header.order and pop.count < header.max_msg_nums:
            self._read_topic(pop, retry_topic, begin)

    def _read_topic(self, pop: Pop, topic: str, begin: int) -> None:
        config = self._topics.get(topic)
        queues = config.read_queue_nums if config is not None else 0
        for number in range(queues):
            self._reader.read_queue(pop, topic, (begin + number) % queues)

    def _retry_topics(self, topic: str, group: str) -> list[str]:
        kinds = (False, True) if self._config.enable_retry_topic_v2 else (False,)
        return [pop_retry_topic(topic, group, v2) for v2 in kinds]

    def _holds_more(self, queue: PoppedQueue) -> bool:
        known = self._reader.known_offset(queue)
        name = queue.topic.encode()
        low = self._store.min_queue_offset(name, queue.queue_id)
        return self._store.max_queue_offset(name, queue.queue_id) > (low if known is None else known)

    def _deadline_ms(self, header: PopMessageRequestHeader) -> int:
        return header.born_time + header.poll_time - _ANSWER_AHEAD_MS

    def _wait(self, channel: Channel, command: RemotingCommand, pop: Pop) -> bool:
        """Let the request wait; False when it may not."""
        header, now_ms = pop.header, self._wall_ms()
        deadline_ms = min(self._deadline_ms(header), now_ms + header.poll_time)
        if deadline_ms <= now_ms:
            return False
        if pop.free_at_ms is not None:
            deadline_ms = min(deadline_ms, pop.free_at_ms)
        held = HeldPop(
            channel,
            header.topic,
            header.consumer_group,
            header.queue_id,
            deadline_ms,
            lambda: self._again(channel, command),
            pop.tag_codes,
        )
        return self._hold.hold(held, now_ms)

    def _again(self, channel: Channel, command: RemotingCommand) -> None:
        try:
            answer = self.pop(channel, command)
        except Exception as error:  # noqa: BLE001 - as for a request that comes in
            answer = error_answer(channel, command, error)
        if answer is not None:
            channel.send(answer.encode())


def _answer_header(pop: Pop) -> PopMessageResponseHeader:
    return PopMessageResponseHeader(
        pop.pop_time_ms,
        pop.header.invisible_time,
        pop.revive_queue,
        pop.rest,
        pop.info.start_offsets,
        pop.info.message_offsets,
        pop.info.order_counts if pop.header.order else None,
    )


def _topic_missing(topic: str) -> BrokerError:
    return BrokerError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {FAQ}")
