"""The producer. Source: protocol.md 4.4; RocketMQ 5.3.3, DefaultMQProducer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import fields
from ipaddress import ip_address

from rucola.client.checks import check_number, check_queue_of
from rucola.client.config import ClientConfig, ProducerConfig
from rucola.client.instance import ClientInstance, check_group
from rucola.client.message_encoder import MessageEncoder
from rucola.client.pending_send import BATCH, MESSAGE, REPLY, PendingSend, TimedSend
from rucola.client.queue_selector import ChosenQueue, QueueSelector, by_sharding_key
from rucola.client.request_reply import RequestTable, reply_message
from rucola.client.send_many import ManyMessages
from rucola.client.send_pipeline import SendPipeline
from rucola.client.send_result import SendResult
from rucola.client.trace import TRACE_BYTES_MAX, TraceDispatcher, trace_group
from rucola.client.unique_id import UniqueIds
from rucola.common import message_const
from rucola.common.key_builder import is_retry_topic
from rucola.common.message import Message, MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.common.recall_handle import RecallHandle
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import ClientError, FormatError, RequestTimeoutError
from rucola.protocol.codes import RequestCode
from rucola.protocol.headers.recall import RecallMessageRequestHeader
from rucola.protocol.trace import TraceRecord, TraceType
from rucola.runtime.clock import Clock, SystemClock

_UNIQ_KEY = message_const.UNIQ_KEY
_TIMED = frozenset({message_const.TIMER_DELAY_SEC, message_const.TIMER_DELAY_MS, message_const.TIMER_DELIVER_MS})
_SPECIAL = _TIMED | {message_const.SHARDING_KEY}
"""Properties that say more of a send than what to store."""


class Producer:
    """Sends messages.

    Life cycle: ``async with Producer(...)``, or ``start`` and ``shutdown``, on one event loop.

    A send that fails is made again as configured: after connection losses and timeouts, and after the answers that the
    reference's producer retries. What was sent again may be stored twice, under one UNIQ_KEY.

    Args:
        group: producer group.
        namesrv: name servers, ``host:port`` separated by ``;``.
        config: settings.
        clock: for time stamps and ids.

    Raises:
        ClientError: the group cannot be one.
        ConfigError: a name server is not ``host:port``, or the package for the compression is not installed.
    """

    def __init__(
        self, group: str, namesrv: str, config: ProducerConfig | None = None, *, clock: Clock | None = None
    ) -> None:
        check_group(group)
        self._group = group
        self._config = config or ProducerConfig()
        clock = clock or SystemClock()
        self._instance = ClientInstance(
            namesrv,
            self._config,
            clock,
            producer_group=group,
            create_topic_key=self._config.create_topic_key,
            default_topic_queue_nums=self._config.default_topic_queue_nums,
        )
        unique_ids = UniqueIds(
            ip_address(self._instance.address.partition("%")[0]).packed, os.getpid(), os.urandom(4), clock
        )
        first_turn = int.from_bytes(os.urandom(2), "big")
        self._wall_ms = clock.wall_ms
        self._pipeline = SendPipeline(group, self._config, self._instance, clock.wall_ms, first_turn)
        self._submit_encoded = self._pipeline.submit
        self._default_timeout_ms = self._config.send_msg_timeout_ms
        self._async_retries = self._config.retry_times_when_send_async_failed
        self._encoder = MessageEncoder(self._config, unique_ids)
        self._encode = self._encoder.encode
        self._requests = RequestTable(self._instance.client_id)
        self._met_brokers = False
        self._trace = tracing(group, "PRODUCE", namesrv, self._config, clock) if self._config.enable_trace else None

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.shutdown()

    @property
    def client_id(self) -> str:
        """How brokers know this client."""
        return self._instance.client_id

    @property
    def in_flight(self) -> int:
        """Messages submitted and not yet answered."""
        return self._pipeline.in_flight

    async def start(self) -> None:
        """Begin; connections are opened when they are needed."""
        if not self._instance.running:
            code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
            self._instance.client.register_processor(code, self._requests.replied)
            self._instance.start()
            self._pipeline.start()
            if self._trace is not None:
                await self._trace.start()

    async def shutdown(self) -> None:
        """Wait for the answers to everything submitted, then leave the brokers and close. Requests get no reply more.

        When that wait is cancelled or interrupted, what has no answer yet fails with ``RemotingClosedError``.
        """
        if self._instance.running:
            self._requests.close()
            async with AsyncExitStack() as ending:
                ending.push_async_callback(self._instance.shutdown)
                if self._trace is not None:
                    ending.push_async_callback(self._trace.shutdown)
                await self._pipeline.flush()

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """Queues of ``topic`` that can be sent to.

        Raises:
            ClientError: no broker has the topic, and none would create it.
            RemotingError: no name server answers.
        """
        self._encoder.check_topic(topic)
        return list((await self._instance.routes.route(topic)).publish_queues)

    async def send(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has it.

        Args:
            message: what to send; gets its UNIQ_KEY here unless it has one.
            queue: where to, a queue of the message's topic; by default that of its sharding key, or else the topic's
                queues in turn.
            selector: chooses the queue among those of the topic, which it is called with, and the message.
            timeout_ms: for all attempts together; by default as configured.

        Raises:
            ClientError: the message cannot be sent as it is, or its topic has no route.
            BrokerError: the broker refused it.
            RemotingError: no broker could be reached or answered in time; whether it was stored is unknown.
        """
        await self._pipeline.ready()
        return await self._submit(message, queue, selector, timeout_ms, self._config.retry_times_when_send_failed)

    def submit(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """Send one message without waiting; many may be on their way, and are stored in no promised order.

        Nothing limits how many: ``await ready()`` before each, or wait for the futures.

        Args:
            message: what to send; gets its UNIQ_KEY here unless it has one.
            queue: see ``send``.
            selector: see ``send``.
            timeout_ms: for all attempts together; by default as configured.

        Returns:
            A future that gives the result, or one of the errors of ``send``.

        Raises:
            ClientError: the message cannot be sent as it is.
        """
        return self._submit(message, queue, selector, timeout_ms, self._async_retries)

    async def send_many(self, messages: Iterable[Message], *, timeout_ms: int | None = None) -> list[SendResult]:
        """Send any number of messages of any topics in few requests, many of them on their way at a time.

        Messages of one topic go together in batches of ``send_many_batch_bytes``, each to one queue; in which order
        the batches are stored is not promised. The queue of a message with a sharding key is that of its key.

        Args:
            messages: what to send; each gets a UNIQ_KEY unless it has one.
            timeout_ms: for all attempts of one request together; by default as configured.

        Returns:
            The result of each message, in order.

        Raises:
            SendManyError: some were not sent; it has the result or the error of each. The others are sent.
            ClientError: ``timeout_ms`` makes no sense, or the producer is not started.
        """
        self._check_running()
        if timeout_ms is not None:
            check_number("timeout_ms", timeout_ms, 1)
        retries = self._config.retry_times_when_send_failed
        many = ManyMessages(
            self._encoder,
            self._pipeline.ready,
            lambda message: self._submit(message, None, None, timeout_ms, retries),
            lambda batch, members: self._submit_batch(batch, members, None, timeout_ms),
            self._config.send_many_batch_bytes,
            min(self._config.compress_msg_body_over_howmuch, self._config.send_many_batch_bytes),
        )
        return await many.send(messages)

    async def ready(self) -> None:
        """Return at once while less is on its way than configured, else when some of it was answered."""
        await self._pipeline.ready()

    async def flush(self) -> None:
        """Return when everything submitted has its result or error."""
        await self._pipeline.flush()

    async def send_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> SendResult:
        """Send messages of one topic to one queue, in one request; they are stored all together or not at all.

        Args:
            messages: what to send; each gets a UNIQ_KEY unless it has one. None may be delayed or a retry, and all
                must agree in ``wait_store_ok``.
            queue: where to, a queue of the message's topic; by default the topic's queues in turn.
            timeout_ms: for all attempts together; by default as configured.

        Returns:
            One result; its ids are lists, joined by commas.

        Raises:
            ClientError: the messages cannot be sent together; besides, the errors of ``send``.
        """
        first = self._check_batch(messages)
        self._check_running()
        if queue is not None:
            check_queue_of(queue, first.topic)
        members = list(map(self._encoder.batch_member, messages))
        size = sum(map(len, members))
        if size > self._config.max_message_size:
            raise ClientError(f"the batch takes {size} bytes, the limit is {self._config.max_message_size}")
        await self._pipeline.ready()
        return await self._submit_batch(messages, members, queue, timeout_ms)

    async def recall(self, topic: str, recall_handle: str, *, timeout_ms: int | None = None) -> str:
        """Withdraw a message that waits for its time; whether it still did shows when it does not come.

        Args:
            topic: of the message.
            recall_handle: ``SendResult.recall_handle`` of its send.
            timeout_ms: by default as configured for a send.

        Returns:
            The UNIQ_KEY of the message.

        Raises:
            ClientError: the handle is none, or its broker is in no route of the topic.
            BrokerError: the broker refused: it does not allow that, or the time of the message is too near or over.
            RemotingError: the broker could not be reached or did not answer in time.
        """
        self._check_running()
        self._encoder.check_topic(topic)
        timeout_ms = self._timeout_ms(timeout_ms)
        try:
            handle = RecallHandle.decode(recall_handle)
        except FormatError as error:
            raise ClientError(f"{recall_handle!r} is no recall handle: {error}") from error
        if handle.topic != topic:
            raise ClientError(f"the recall handle is of a message of topic {handle.topic}, not {topic}")
        await self._instance.routes.route(topic)
        address = self._instance.routes.master(handle.broker_name)
        header = RecallMessageRequestHeader(topic, recall_handle, self._group, handle.broker_name)
        began_ms = self._wall_ms()
        msg_id = await self._instance.api.recall_message(address, header, timeout_ms)
        if self._trace is not None:
            kind = TraceType.RECALL
            record = TraceRecord(trace_type=kind, timestamp_ms=began_ms, group=self._group, topic=topic, msg_id=msg_id)
            self._trace.append([record])
        return msg_id

    async def request(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> MessageExt:
        """Send one message and wait for the reply of its consumer.

        Args:
            message: what to send; gets its UNIQ_KEY here unless it has one.
            queue: see ``send``.
            selector: see ``send``.
            timeout_ms: for the way there, the consumer, and the way back; by default as configured for a send.

        Returns:
            The reply. It has what the consumer gave, but no place in a queue.

        Raises:
            RequestTimeoutError: no reply came in time; besides, the errors of ``send``.
        """
        self._check_running()
        timeout_ms = self._timeout_ms(timeout_ms)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        if not self._met_brokers:  # a reply comes from any broker of the cluster, which must know this client
            await self._greet_brokers(timeout_ms / 2000)
        left_ms = max(1, round((until - loop.time()) * 1000))

        def send(request: Message) -> Awaitable[SendResult]:
            return self.send(request, queue, selector=selector, timeout_ms=left_ms)

        try:
            return await self._requests.request(message, timeout_ms, until, send)
        except RequestTimeoutError:
            self._met_brokers = False  # the reply may have gone to one that has come since
            raise

    async def reply(self, request: MessageExt, body: bytes, *, timeout_ms: int | None = None) -> SendResult:
        """Answer a message that was sent with ``request``, by this client or another, of any language.

        Args:
            request: the message as it was consumed.
            body: the answer.
            timeout_ms: for all attempts together; by default as configured for a send.

        Raises:
            ClientError: the message is no request.
            BrokerError: whoever asked is not there any more, or the broker refused; besides, the errors of ``send``.
        """
        self._check_running()
        message = reply_message(request, body)
        await self._pipeline.ready()
        return await self._submit_encoded(
            message.topic,
            None,
            request.uniq_key or "",
            self._encode(message, now_ms := self._wall_ms()),
            self._timeout_ms(timeout_ms),
            self._config.retry_times_when_send_failed,
            REPLY,
            PendingSend,
            now_ms,
        )

    async def send_oneway(
        self, message: Message, queue: MessageQueue | None = None, *, selector: QueueSelector | None = None
    ) -> None:
        """Send one message and forget it: no answer comes, so a loss goes unnoticed.

        Raises:
            ClientError: the message cannot be sent as it is, or its topic has no route.
            RemotingError: no name server answers.
        """
        self._check_running()
        chosen, _ = self._chosen(message, queue, selector)
        encoded = self._encode(message, self._wall_ms())
        await self._pipeline.send_oneway(message.topic, chosen, encoded)

    def _submit(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
        retries: int,
    ) -> asyncio.Future[SendResult]:
        if not self._instance.running:
            self._check_running()
        chosen: MessageQueue | ChosenQueue | None = None
        make: Callable[..., PendingSend] = PendingSend
        if queue is not None or selector is not None or not _SPECIAL.isdisjoint(message.properties):
            chosen, make = self._chosen(message, queue, selector)
        if self._trace is not None:
            make = self._trace.traced([message], make)
        if timeout_ms is None:
            timeout_ms = self._default_timeout_ms
        else:
            check_number("timeout_ms", timeout_ms, 1)
        now_ms = self._wall_ms()
        encoded = self._encode(message, now_ms)
        return self._submit_encoded(
            message.topic,
            chosen,
            message.properties[_UNIQ_KEY],
            encoded,
            timeout_ms,
            retries,
            MESSAGE,
            make,
            now_ms,
        )

    async def _greet_brokers(self, patience_s: float) -> None:
        """Tell all brokers of this client. One that does not answer holds up nobody for longer than that."""
        with suppress(TimeoutError):  # they have the heartbeat, or the send will tell that no name server answers
            async with asyncio.timeout(patience_s):
                await self._instance.meet_all_brokers()
                await self._instance.heartbeat()
        self._met_brokers = True

    def _submit_half(self, message: Message, timeout_ms: int | None) -> asyncio.Future[SendResult]:
        """Send a message that no consumer sees until its transaction is committed."""
        self._check_running()
        marks = {message_const.TRAN_MSG: "true", message_const.PGROUP: self._group}
        half = Message(message.topic, message.body, flag=message.flag, properties=message.properties | marks)
        chosen, make = self._chosen(half, None, None)
        if self._trace is not None:
            make = self._trace.traced([half], make)
        now_ms = self._wall_ms()
        body, sys_flag, flag, properties = self._encode(half, now_ms)
        message.uniq_key = half.uniq_key
        return self._submit_encoded(
            message.topic,
            chosen,
            half.properties[_UNIQ_KEY],
            (body, sys_flag | MessageSysFlag.TRANSACTION_PREPARED, flag, properties),
            self._timeout_ms(timeout_ms),
            self._config.retry_times_when_send_failed,
            MESSAGE,
            make,
            now_ms,
        )

    def _submit_batch(
        self, messages: Sequence[Message], members: list[bytes], queue: MessageQueue | None, timeout_ms: int | None
    ) -> asyncio.Future[SendResult]:
        first = messages[0]
        return self._pipeline.submit(
            first.topic,
            queue,
            ",".join(message.uniq_key or "" for message in messages),
            self._encoder.batch(members, first.wait_store_ok),
            self._timeout_ms(timeout_ms),
            self._config.retry_times_when_send_failed,
            BATCH,
            PendingSend if self._trace is None else self._trace.traced(messages, PendingSend),
            self._wall_ms(),
        )

    def _chosen(
        self, message: Message, queue: MessageQueue | None, selector: QueueSelector | None
    ) -> tuple[MessageQueue | ChosenQueue | None, Callable[..., PendingSend]]:
        """Where the message goes, if not to the queues in turn, and what reads the answer."""
        make = PendingSend if _TIMED.isdisjoint(message.properties) else TimedSend
        if queue is not None:
            check_queue_of(queue, message.topic)
            if selector is not None:
                raise ClientError("a message has a queue or a selector, not both")
            return queue, make
        if selector is None and message_const.SHARDING_KEY in message.properties:
            selector = by_sharding_key
        return (None if selector is None else ChosenQueue(message, selector)), make

    def _timeout_ms(self, timeout_ms: int | None) -> int:
        if timeout_ms is None:
            return self._config.send_msg_timeout_ms
        check_number("timeout_ms", timeout_ms, 1)
        return timeout_ms

    def _check_batch(self, messages: Sequence[Message]) -> Message:
        if not messages:
            raise ClientError("a batch must hold at least one message")
        first = messages[0]
        self._encoder.check_topic(first.topic)
        if is_retry_topic(first.topic):
            raise ClientError("retry topics take no batches")
        for message in messages:
            if message.topic != first.topic:
                raise ClientError(f"a batch is for one topic, not {first.topic} and {message.topic}")
            if not message_const.DELAYING.isdisjoint(message.properties):
                raise ClientError("messages of a batch cannot be delayed")
            if message.wait_store_ok != first.wait_store_ok:
                raise ClientError("messages of a batch must agree in wait_store_ok")
        return first

    def _check_running(self) -> None:
        if not self._instance.running:
            raise ClientError("the producer is not started, or is shut down")


def tracing(group: str, role: str, namesrv: str, config: ClientConfig, clock: Clock) -> TraceDispatcher:
    """What writes the traces of a client: an inner producer with the same servers, credentials and encryption.

    Args:
        group: of the client.
        role: PRODUCE or CONSUME.
        namesrv: name servers, as for the client.
        config: the client's.
        clock: the client's.
    """
    settings = {each.name: getattr(config, each.name) for each in fields(ClientConfig)}
    inner = ProducerConfig(
        **settings | {"enable_trace": False, "send_msg_timeout_ms": 5_000, "max_message_size": 2 * TRACE_BYTES_MAX}
    )
    sender = Producer(trace_group(group, role), namesrv, inner, clock=clock)
    return TraceDispatcher(group, sender, config.trace_topic, config.trace_msg_batch_num, clock.wall_ms)
