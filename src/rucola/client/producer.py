"""The producer. Source: protocol.md 4.4; RocketMQ 5.3.3, DefaultMQProducer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import fields
from ipaddress import ip_address

from rucola.client.checks import check_number, check_queue_of
from rucola.client.config import ClientConfig, ProducerConfig
from rucola.client.instance import ClientInstance, check_group, check_topic
from rucola.client.send_pipeline import SendPipeline
from rucola.client.send_result import SendResult
from rucola.client.trace import TRACE_BYTES_MAX, TraceDispatcher, trace_group
from rucola.client.unique_id import UniqueIds
from rucola.common import message_const
from rucola.common.key_builder import is_retry_topic
from rucola.common.message import Message
from rucola.common.message_queue import MessageQueue
from rucola.common.sysflag import MessageSysFlag
from rucola.errors import ClientError
from rucola.formats.compression import compress
from rucola.protocol.send_request import (
    EncodedMessage,
    batch_body,
    encode_properties,
    properties_json,
    properties_text,
    unusual_properties,
)
from rucola.runtime.clock import Clock, SystemClock

_UNIQ_KEY = message_const.UNIQ_KEY
_COMPRESSED = int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB)


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
        ConfigError: a name server is not ``host:port``.
    """

    def __init__(
        self, group: str, namesrv: str, config: ProducerConfig | None = None, *, clock: Clock | None = None
    ) -> None:
        check_group(group)
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
        self._unique_ids = UniqueIds(
            ip_address(self._instance.address.partition("%")[0]).packed, os.getpid(), os.urandom(4), clock
        )
        first_turn = int.from_bytes(os.urandom(2), "big")
        self._wall_ms = clock.wall_ms
        self._pipeline = SendPipeline(group, self._config, self._instance, clock.wall_ms, first_turn)
        self._topics: set[str] = set()
        self._plain_body_bytes_max = min(self._config.compress_msg_body_over_howmuch, self._config.max_message_size)
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
            self._instance.start()
            self._pipeline.start()
            if self._trace is not None:
                await self._trace.start()

    async def shutdown(self) -> None:
        """Wait for the answers to everything submitted, then leave the brokers and close.

        When that wait is cancelled or interrupted, what has no answer yet fails with ``RemotingClosedError``.
        """
        if self._instance.running:
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
        self._check_topic(topic)
        return list((await self._instance.routes.route(topic)).publish_queues)

    async def send(
        self, message: Message, queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> SendResult:
        """Send one message and wait until the broker has it.

        Args:
            message: what to send; gets its UNIQ_KEY here unless it has one.
            queue: where to, a queue of the message's topic; by default the topic's queues in turn.
            timeout_ms: for all attempts together; by default as configured.

        Raises:
            ClientError: the message cannot be sent as it is, or its topic has no route.
            BrokerError: the broker refused it.
            RemotingError: no broker could be reached or answered in time; whether it was stored is unknown.
        """
        await self._pipeline.ready()
        return await self._submit(message, queue, timeout_ms, self._config.retry_times_when_send_failed)

    def submit(
        self, message: Message, queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> asyncio.Future[SendResult]:
        """Send one message without waiting; many may be on their way, and are stored in no promised order.

        Nothing limits how many: ``await ready()`` before each, or wait for the futures.

        Args:
            message: what to send; gets its UNIQ_KEY here unless it has one.
            queue: where to, a queue of the message's topic; by default the topic's queues in turn.
            timeout_ms: for all attempts together; by default as configured.

        Returns:
            A future that gives the result, or one of the errors of ``send``.

        Raises:
            ClientError: the message cannot be sent as it is.
        """
        return self._submit(message, queue, timeout_ms, self._config.retry_times_when_send_async_failed)

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
        if timeout_ms is None:
            timeout_ms = self._config.send_msg_timeout_ms
        check_number("timeout_ms", timeout_ms, 1)
        members = [(self._checked_body(message), message.flag, self._identified(message)) for message in messages]
        body = batch_body(members)
        if len(body) > self._config.max_message_size:
            raise ClientError(f"the batch takes {len(body)} bytes, the limit is {self._config.max_message_size}")
        wait = "true" if first.wait_store_ok else "false"
        properties = {message_const.UNIQ_KEY: self._unique_ids.next(), message_const.WAIT: wait}
        await self._pipeline.ready()
        return await self._pipeline.submit(
            first.topic,
            queue,
            ",".join(message.uniq_key or "" for message in messages),
            (body, 0, 0, properties_json(properties_text(properties))),
            timeout_ms,
            self._config.retry_times_when_send_failed,
            True,
            None if self._trace is None else self._trace.sending(messages),
            self._wall_ms(),
        )

    async def send_oneway(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Send one message and forget it: no answer comes, so a loss goes unnoticed.

        Raises:
            ClientError: the message cannot be sent as it is, or its topic has no route.
            RemotingError: no name server answers.
        """
        self._check_running()
        if queue is not None:
            check_queue_of(queue, message.topic)
        encoded = self._encode(message, self._wall_ms())
        await self._pipeline.send_oneway(message.topic, queue, encoded)

    def _submit(
        self, message: Message, queue: MessageQueue | None, timeout_ms: int | None, retries: int
    ) -> asyncio.Future[SendResult]:
        if not self._instance.running:
            self._check_running()
        if queue is not None:
            check_queue_of(queue, message.topic)
        if timeout_ms is None:
            timeout_ms = self._config.send_msg_timeout_ms
        else:
            check_number("timeout_ms", timeout_ms, 1)
        now_ms = self._wall_ms()
        encoded = self._encode(message, now_ms)
        return self._pipeline.submit(
            message.topic,
            queue,
            message.properties[_UNIQ_KEY],
            encoded,
            timeout_ms,
            retries,
            False,
            None if self._trace is None else self._trace.sending([message]),
            now_ms,
        )

    def _encode(self, message: Message, now_ms: int) -> EncodedMessage:
        """The message, checked, with a UNIQ_KEY."""
        body, properties, flag, sys_flag = message.body, message.properties, message.flag, 0
        if message.topic not in self._topics:
            self._check_topic(message.topic)
        if type(body) is not bytes or not 0 < len(body) <= self._plain_body_bytes_max or flag:
            body, sys_flag = self._transferred_body(message)
        if _UNIQ_KEY not in properties:
            properties[_UNIQ_KEY] = self._unique_ids.next_at(now_ms)
        return body, sys_flag, flag, encode_properties(properties) or unusual_properties(properties)

    def _transferred_body(self, message: Message) -> tuple[bytes, int]:
        """The body, checked and, when it is large, compressed, and the sysFlag for that."""
        body = self._checked_body(message)
        if len(body) > self._config.compress_msg_body_over_howmuch:
            packed = compress(body, self._config.compress_level)
            if len(packed) < len(body):  # the reference sends it packed even when that makes it longer
                return packed, _COMPRESSED
        return body, 0

    def _identified(self, message: Message) -> dict[str, str]:
        """The message's properties, with a UNIQ_KEY."""
        properties = message.properties
        if _UNIQ_KEY not in properties:
            properties[_UNIQ_KEY] = self._unique_ids.next()
        return properties

    def _checked_body(self, message: Message) -> bytes:
        body = message.body if type(message.body) is bytes else _copied_body(message.body)
        if not body:
            raise ClientError("a message body must not be empty")
        if len(body) > self._config.max_message_size:
            raise ClientError(f"the body takes {len(body)} bytes, the limit is {self._config.max_message_size}")
        if message.flag and not -(1 << 31) <= message.flag < 1 << 31:
            raise ClientError(f"message flag {message.flag} does not fit 32 bits")
        return body

    def _check_batch(self, messages: Sequence[Message]) -> Message:
        if not messages:
            raise ClientError("a batch must hold at least one message")
        first = messages[0]
        self._check_topic(first.topic)
        if is_retry_topic(first.topic):
            raise ClientError("retry topics take no batches")
        for message in messages:
            if message.topic != first.topic:
                raise ClientError(f"a batch is for one topic, not {first.topic} and {message.topic}")
            if message.delay_level > 0:
                raise ClientError("messages of a batch cannot be delayed")
            if message.wait_store_ok != first.wait_store_ok:
                raise ClientError("messages of a batch must agree in wait_store_ok")
        return first

    def _check_topic(self, topic: str) -> None:
        check_topic(topic)
        self._topics.add(topic)

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


def _copied_body(body: object) -> bytes:
    """``body`` at this moment, when it is a buffer the caller may change before it is sent."""
    if not isinstance(body, bytearray | memoryview):
        raise ClientError(f"a message body must be bytes, not {type(body).__name__}")
    return bytes(body)
