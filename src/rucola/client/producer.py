"""The producer. Source: protocol.md 4.4; RocketMQ 5.3.3, DefaultMQProducer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import fields
from ipaddress import ip_address
from threading import get_ident as _get_ident
from typing import TYPE_CHECKING

from rucola.client.checks import check_lite_message, check_message, check_number, check_queue_of
from rucola.client.config import ClientConfig, ProducerConfig
from rucola.client.faces import Asynchronous
from rucola.client.instance import ClientInstance, check_group
from rucola.client.message_encoder import MessageEncoder
from rucola.client.pending_send import BATCH, MESSAGE, REPLY, PendingSend, SendTerms, TimedSend, retry_send
from rucola.client.queue_selector import ChosenQueue, QueueSelector, by_lite_topic, by_sharding_key
from rucola.client.request_reply import RequestTable, reply_message
from rucola.client.send_many import ManyMessages
from rucola.client.send_pipeline import SendPipeline, not_open
from rucola.client.send_result import SendResult
from rucola.client.unique_id import UniqueIds
from rucola.common import message_const
from rucola.common.key_builder import is_retry_topic
from rucola.common.message import Message, MessageExt, SystemMessage
from rucola.common.message_queue import MessageQueue
from rucola.common.options import checked_config
from rucola.common.recall_handle import RecallHandle
from rucola.common.sysflag import MessageSysFlag
from rucola.common.system_properties import RESERVED, refuse_reserved
from rucola.errors import ClientError, FormatError, RequestTimeoutError
from rucola.protocol.codes import RequestCode
from rucola.protocol.headers.recall import RecallMessageRequestHeader
from rucola.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rucola.client.trace import TraceDispatcher

_UNIQ_KEY = message_const.UNIQ_KEY
_TIMED = frozenset({message_const.TIMER_DELAY_SEC, message_const.TIMER_DELAY_MS, message_const.TIMER_DELIVER_MS})
_SPECIAL = _TIMED | {message_const.SHARDING_KEY, message_const.LITE_TOPIC} | RESERVED
"""These properties affect how a message is sent, or are refused. A message with one of them takes the slower general
path.
"""
_NOT_IN_BATCH = message_const.DELAYING | {message_const.LITE_TOPIC} | RESERVED


class Producer(Asynchronous):
    """Sends messages.

    Life cycle: ``async with Producer(...)``, or ``start`` and ``shutdown``, on one event loop.

    A failed send is repeated as configured: after connection losses and timeouts, and after the response codes for
    which RocketMQ's producer retries. A repeated message may be stored twice, with the same UNIQ_KEY.

    Args:
        group: producer group.
        namesrv: name servers, ``host:port`` separated by ``;``, or a list of them.
        config: settings.
        clock: gives the time for time stamps and ids.

    Raises:
        ClientError: the group's name is invalid.
        ConfigError: the address of a name server is not ``host:port``, or the compression's package is not installed.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str],
        config: ProducerConfig | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        check_group(group)
        self._group = group
        self._config = checked_config(config, ProducerConfig)
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
        timeout_ms, retries = self._config.send_msg_timeout_ms, self._config.retry_times_when_send_failed
        self._terms = SendTerms(timeout_ms, retries, MESSAGE)
        self._async_terms = self._terms._replace(retries=self._config.retry_times_when_send_async_failed)
        self._encoder = MessageEncoder(self._config, unique_ids)
        self._encode = self._encoder.encode
        self._requests = RequestTable(self._instance.client_id)
        self._met_brokers = False
        self._owner = self._instance.owner
        # Together with the thread, tells whether the producer's loop is the running one, and costs less per message
        # than asyncio.get_running_loop.
        self._is_loop_running: Callable[[], bool]
        self._ending = False  # whether shutdown was called
        self._ended = asyncio.Event()
        self._trace = tracing(group, "PRODUCE", namesrv, self._config, clock) if self._config.enable_trace else None

    async def __aenter__(self) -> Producer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.shutdown()

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client."""
        return self._instance.client_id

    @property
    def in_flight(self) -> int:
        """Number of messages that were submitted and are not confirmed yet."""
        return self._pipeline.in_flight

    async def start(self) -> None:
        """Starts the producer. Does nothing if the producer is started already.

        Connections are opened when needed, so a name server or broker that does not respond shows at the first send.

        Raises:
            ClientError: the producer was shut down before, or was started on another event loop.
        """
        self._owner.check()
        if self._ending:
            raise ClientError("a producer that was shut down cannot be started again; create a new one")
        if not self._instance.running:
            code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
            self._instance.client.register_processor(code, self._requests.replied)
            self._instance.start()
            self._is_loop_running = asyncio.get_running_loop().is_running
            self._pipeline.start()
            if self._trace is not None:
                await self._trace.start()

    async def shutdown(self) -> None:
        """Refuses further messages at once, waits for the results of those submitted, then unregisters and closes.
        Requests receive no further replies. Does nothing if the producer is not started.

        If the wait is cancelled or interrupted, messages without a result fail with ``RemotingClosedError``. A second
        call waits until the first one has ended; its cancellation ends only its own wait.
        """
        if not self._instance.running and not self._ending:
            return
        self._owner.check()
        if self._ending:
            await self._ended.wait()
            return
        self._ending = True
        self._pipeline.refuse()
        self._requests.close()
        async with AsyncExitStack() as ending:
            ending.callback(self._note_end)
            ending.callback(self._pipeline.abandon)
            ending.push_async_callback(self._instance.shutdown)
            if self._trace is not None:
                ending.push_async_callback(self._trace.shutdown)
            await self._settle()

    async def _settle(self) -> None:
        """Waits for everything that must end before the connections are closed."""
        await self._pipeline.flush()

    def _note_end(self) -> None:
        """Notes that the producer has ended, with or without an error."""
        self._ended.set()

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of ``topic`` to which messages can be sent.

        Raises:
            ClientError: no broker has the topic, and none would create it.
            RemotingError: no name server responds.
        """
        self._owner.check()
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
        """Sends one message and waits until the broker has stored it.

        Args:
            message: the message; gets a UNIQ_KEY unless it has one.
            queue: a queue of the message's topic. By default, a message with a sharding key or a lite topic goes to
                the queue of that, and other messages go to the queues in turn.
            selector: called with the queues of the topic and the message; returns one of the queues.
            timeout_ms: for all attempts together; by default as configured.

        Raises:
            ClientError: the message cannot be sent as it is, or its topic has no route.
            BrokerError: the broker refused the message.
            RemotingError: no broker could be reached, or none responded in time; the message may have been stored.
        """
        await self._pipeline.ready()
        return await self._submit(message, queue, selector, timeout_ms, self._terms)

    def submit(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """Sends one message without waiting. Brokers store the messages in flight in no guaranteed order.

        The number of messages in flight is not limited: call ``await ready()`` before each message, or wait for the
        futures.

        Args:
            message: the message; gets a UNIQ_KEY unless it has one.
            queue: see ``send``.
            selector: see ``send``.
            timeout_ms: for all attempts together; by default as configured.

        Returns:
            A future with the result, or one of the errors of ``send``.

        Raises:
            ClientError: the message cannot be sent as it is.
        """
        return self._submit(message, queue, selector, timeout_ms, self._async_terms)

    async def send_many(self, messages: Iterable[Message], *, timeout_ms: int | None = None) -> list[SendResult]:
        """Sends any number of messages to any topics, with several requests in flight at a time.

        Messages of the same topic are combined into batches of up to ``send_many_batch_bytes``. Each batch goes to one
        queue; the order of the batches is not guaranteed. A message with a sharding key goes to the queue of its key; a
        message with a lite topic goes to the queue of that, alone.

        Args:
            messages: the messages; each gets a UNIQ_KEY unless it has one.
            timeout_ms: for all attempts of one request together; by default as configured.

        Returns:
            The result of each message, in order.

        Raises:
            SendManyError: some messages were not sent, or their result is unknown; the other messages were sent.
                ``outcomes`` has the result or the error of every message.
            ClientError: ``timeout_ms`` is invalid, or the producer is not started.
        """
        self._check_open()
        if timeout_ms is not None:
            check_number("timeout_ms", timeout_ms, 1)
        many = ManyMessages(
            self._encoder,
            self._pipeline.ready,
            lambda message: self._submit(message, None, None, timeout_ms, self._terms),
            lambda batch, members: self._submit_batch(batch, members, None, timeout_ms),
            self._config.send_many_batch_bytes,
            min(self._config.compress_msg_body_over_howmuch, self._config.send_many_batch_bytes),
        )
        return await many.send(messages)

    async def ready(self) -> None:
        """Waits until the numbers of messages and bytes in flight are below the configured limits.

        Raises:
            ClientError: the producer is not started, or is shut down, also while this call waits.
        """
        await self._pipeline.ready()

    async def flush(self) -> None:
        """Waits until every message that was submitted before this call has its result or error. Messages that are
        submitted meanwhile do not prolong the wait.
        """
        self._owner.check()
        await self._pipeline.flush()

    async def send_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> SendResult:
        """Sends messages of the same topic to the same queue in a single request; all of them are stored, or none.

        Args:
            messages: the messages; each gets a UNIQ_KEY unless it has one. They must not be delayed or go to a retry
                topic, and all must have the same ``wait_store_ok``.
            queue: a queue of the messages' topic; by default the topic's queues in turn.
            timeout_ms: for all attempts together; by default as configured.

        Returns:
            One result; its ``msg_id`` and ``offset_msg_id`` are the ids of all messages, joined by commas.

        Raises:
            ClientError: the messages cannot be sent together. The errors of ``send`` apply too.
        """
        first = self._check_batch(messages)
        self._check_open()
        if queue is not None:
            check_queue_of(queue, first.topic)
        members = list(map(self._encoder.batch_member, messages))
        size = sum(map(len, members))
        if size > self._config.max_message_size:
            raise ClientError(f"the batch takes {size} bytes; the limit is {self._config.max_message_size}")
        await self._pipeline.ready()
        return await self._submit_batch(messages, members, queue, timeout_ms)

    def submit_packed(self, topic: str, body: bytes, *, timeout_ms: int | None = None) -> asyncio.Future[SendResult]:
        """Sends messages, packed by ``rucola.protocol.batch_members``, to the same queue without waiting.

        All of them are stored, or none. The messages are not checked, and no trace is written.

        Args:
            topic: topic of the messages; its queues are used in turn.
            body: the messages, each with a UNIQ_KEY.
            timeout_ms: for all attempts together; by default as configured.

        Returns:
            A future with one result, whose ``msg_id`` is empty, or one of the errors of ``send``.

        Raises:
            ClientError: the topic is invalid, or the body is too large.
        """
        self._check_open()
        self._encoder.check_topic(topic)
        if len(body) > self._config.max_message_size:
            raise ClientError(f"the batch takes {len(body)} bytes; the limit is {self._config.max_message_size}")
        encoded = self._encoder.batch([body], wait_store_ok=True)
        return self._pipeline.submit(
            topic, None, "", encoded, self._terms_of(timeout_ms, BATCH), PendingSend, self._wall_ms()
        )

    async def recall(self, topic: str, recall_handle: str, *, timeout_ms: int | None = None) -> str:
        """Recalls a delayed message. The broker responds before it knows whether it can still stop the delivery.

        Args:
            topic: topic of the message.
            recall_handle: ``SendResult.recall_handle`` of its send.
            timeout_ms: by default as configured for a send.

        Returns:
            The UNIQ_KEY of the message.

        Raises:
            ClientError: the handle is invalid, or its broker is not in the topic's route.
            BrokerError: the broker does not allow recalls, or the delivery time is too near or has passed.
            RemotingError: the broker could not be reached or did not respond in time.
        """
        self._check_open()
        self._encoder.check_topic(topic)
        timeout_ms = self._timeout_ms(timeout_ms)
        if not isinstance(recall_handle, str):
            raise ClientError(
                f"recall_handle must be SendResult.recall_handle of a message with delay or deliver_at, not "
                f"{recall_handle!r}; a message with delay_level cannot be recalled"
            )
        try:
            handle = RecallHandle.decode(recall_handle)
        except FormatError as error:
            raise ClientError(f"{recall_handle!r} is not a recall handle: {error}") from error
        if handle.topic != topic:
            raise ClientError(f"the recall handle belongs to a message of topic {handle.topic}, not {topic}")
        await self._instance.routes.route(topic)
        address = self._instance.routes.master(handle.broker_name)
        header = RecallMessageRequestHeader(topic, recall_handle, self._group, handle.broker_name)
        began_ms = self._wall_ms()
        msg_id = await self._instance.api.recall_message(address, header, timeout_ms)
        if self._trace is not None:
            self._trace.recalled(topic, msg_id, began_ms)
        return msg_id

    async def request(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> MessageExt:
        """Sends one message and waits for its consumer's reply.

        Args:
            message: the message; gets a UNIQ_KEY unless it has one.
            queue: see ``send``.
            selector: see ``send``.
            timeout_ms: for the send, the consumer and the reply together; by default as configured for a send.

        Returns:
            The reply, with the consumer's body and properties but without queue offset and physical offset.

        Raises:
            RequestTimeoutError: no reply arrived in time. The errors of ``send`` apply too.
        """
        self._check_open()
        check_message(message)
        refuse_reserved(message.properties)
        timeout_ms = self._timeout_ms(timeout_ms)
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / 1000
        if not self._met_brokers:  # any broker of the cluster may deliver the reply, so each must know this client
            await self._greet_brokers(timeout_ms / 2000)
        left_ms = max(1, round((until - loop.time()) * 1000))

        def send(request: Message) -> Awaitable[SendResult]:
            return self.send(request, queue, selector=selector, timeout_ms=left_ms)

        try:
            return await self._requests.request(message, timeout_ms, until, send)
        except RequestTimeoutError:
            self._met_brokers = False  # the reply may have gone to a new broker, which does not know this client
            raise

    async def reply(self, request: MessageExt, body: bytes, *, timeout_ms: int | None = None) -> SendResult:
        """Replies to ``request``, a message that a client in any language sent as a request.

        Args:
            request: the message as it was consumed.
            body: body of the reply.
            timeout_ms: for all attempts together; by default as configured for a send.

        Raises:
            ClientError: the message is not a request.
            BrokerError: the requesting client is offline, or the broker refused. The errors of ``send`` apply too.
        """
        self._check_open()
        message = reply_message(request, body)
        await self._pipeline.ready()
        return await self._submit_encoded(
            message.topic,
            None,
            request.uniq_key or "",
            self._encode(message, now_ms := self._wall_ms()),
            self._terms_of(timeout_ms, REPLY),
            PendingSend,
            now_ms,
        )

    async def send_oneway(
        self, message: Message, queue: MessageQueue | None = None, *, selector: QueueSelector | None = None
    ) -> None:
        """Sends one message without requesting a response; a loss is not noticed.

        Raises:
            ClientError: the message cannot be sent as it is, or its topic has no route.
            RemotingError: no name server responds.
        """
        self._check_open()
        check_message(message)
        chosen, _ = self._chosen(message, queue, selector)
        encoded = self._encode(message, self._wall_ms())
        await self._pipeline.send_oneway(message.topic, chosen, encoded)

    def _submit(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
        terms: SendTerms,
    ) -> asyncio.Future[SendResult]:
        if not self._pipeline.is_open or _get_ident() != self._owner.thread or not self._is_loop_running():
            self._check_open()
        chosen: MessageQueue | ChosenQueue | None = None
        make: Callable[..., PendingSend] = PendingSend
        try:
            properties = message.properties
        except AttributeError:
            check_message(message)
            raise
        if queue is not None or selector is not None or not _SPECIAL.isdisjoint(properties):
            chosen, make = self._chosen(message, queue, selector)
        if self._trace is not None:
            make = self._trace.traced([message], make)
        if timeout_ms is not None:
            check_number("timeout_ms", timeout_ms, 1)
            terms = terms._replace(timeout_ms=timeout_ms)
        now_ms = self._wall_ms()
        encoded = self._encode(message, now_ms)
        return self._submit_encoded(message.topic, chosen, properties[_UNIQ_KEY], encoded, terms, make, now_ms)

    async def _greet_brokers(self, patience_s: float) -> None:
        """Sends heartbeats to all brokers; waits for at most ``patience_s`` seconds."""
        with suppress(TimeoutError):  # if no name server responds, the send will report it
            async with asyncio.timeout(patience_s):
                await self._instance.meet_all_brokers()
                await self._instance.heartbeat()
        self._met_brokers = True

    def _submit_half(self, message: Message, timeout_ms: int | None) -> asyncio.Future[SendResult]:
        """Sends a half message, which no consumer sees until its transaction is committed."""
        self._check_open()
        check_message(message)
        marks = {message_const.TRAN_MSG: "true", message_const.PGROUP: self._group}
        refuse_reserved(message.properties)
        if message.lite_topic is not None:
            raise ClientError(f"a message of lite topic {message.lite_topic} cannot belong to a transaction")
        half = SystemMessage(message.topic, message.body, flag=message.flag, properties=message.properties | marks)
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
            self._terms_of(timeout_ms, MESSAGE),
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
            self._terms_of(timeout_ms, BATCH),
            PendingSend if self._trace is None else self._trace.traced(messages, PendingSend),
            self._wall_ms(),
        )

    def _chosen(
        self, message: Message, queue: MessageQueue | None, selector: QueueSelector | None
    ) -> tuple[MessageQueue | ChosenQueue | None, Callable[..., PendingSend]]:
        """Returns the queue of the message (None for the topic's queues in turn), and the constructor of its
        ``PendingSend``.
        """
        make: Callable[..., PendingSend] = PendingSend if _TIMED.isdisjoint(message.properties) else TimedSend
        if not isinstance(message, SystemMessage):
            refuse_reserved(message.properties)
        elif message_const.RECONSUME_TIME in message.properties and is_retry_topic(message.topic):
            make = retry_send(message)
        if message_const.LITE_TOPIC in message.properties and not isinstance(message, SystemMessage):
            check_lite_message(message, queue, selector)
            return ChosenQueue(message, by_lite_topic), make
        if queue is not None:
            check_queue_of(queue, message.topic)
            if selector is not None:
                raise ClientError("a message can have a queue or a selector, but not both")
            return queue, make
        if selector is None and message_const.SHARDING_KEY in message.properties:
            selector = by_sharding_key
        return (None if selector is None else ChosenQueue(message, selector)), make

    def _timeout_ms(self, timeout_ms: int | None) -> int:
        if timeout_ms is None:
            return self._config.send_msg_timeout_ms
        check_number("timeout_ms", timeout_ms, 1)
        return timeout_ms

    def _terms_of(self, timeout_ms: int | None, kind: int) -> SendTerms:
        return SendTerms(self._timeout_ms(timeout_ms), self._terms.retries, kind)

    def _check_batch(self, messages: Sequence[Message]) -> Message:
        if not isinstance(messages, Sequence):
            raise ClientError(f"messages must be a list of messages, not {messages!r}")
        if not messages:
            raise ClientError("a batch must hold at least one message")
        for message in messages:
            check_message(message)
        first = messages[0]
        self._encoder.check_topic(first.topic)
        if is_retry_topic(first.topic):
            raise ClientError("batches cannot be sent to retry topics")
        for message in messages:
            if message.topic != first.topic:
                raise ClientError(
                    f"all messages of a batch must have the same topic, not {first.topic} and {message.topic}"
                )
            if not _NOT_IN_BATCH.isdisjoint(message.properties):
                refuse_reserved(message.properties)
                if message.lite_topic is not None:
                    raise ClientError(
                        "messages of lite topics cannot be sent as a batch; send_many sends them one by one"
                    )
                raise ClientError("messages of a batch cannot be delayed")
            if message.wait_store_ok != first.wait_store_ok:
                raise ClientError("messages of a batch must have the same wait_store_ok")
        return first

    def _check_open(self) -> None:
        self._owner.check()
        if not self._pipeline.is_open:
            raise not_open()


def tracing(group: str, role: str, namesrv: str | Sequence[str], config: ClientConfig, clock: Clock) -> TraceDispatcher:
    """Makes the trace dispatcher of a client. The dispatcher has a producer of its own, with the same name servers,
    credentials and TLS settings as the client.

    Args:
        group: group of the client.
        role: PRODUCE or CONSUME.
        namesrv: name servers of the client.
        config: settings of the client.
        clock: clock of the client.
    """
    # This import is deferred, because few clients write traces.
    from rucola.client.trace import TRACE_BYTES_MAX, TraceDispatcher, trace_group

    settings = {each.name: getattr(config, each.name) for each in fields(ClientConfig)}
    inner = ProducerConfig(
        **settings | {"enable_trace": False, "send_msg_timeout_ms": 5_000, "max_message_size": 2 * TRACE_BYTES_MAX}
    )
    sender = Producer(trace_group(group, role), namesrv, inner, clock=clock)
    return TraceDispatcher(group, sender, config.trace_topic, config.trace_msg_batch_num, clock.wall_ms)
