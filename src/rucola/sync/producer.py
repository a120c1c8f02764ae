"""``Producer`` with blocking calls.

Generated from rucola/client/producer.py by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Sequence

from rucola.client.config import ProducerConfig
from rucola.client.loop_thread import shared_loop
from rucola.client.producer import Producer as AsyncProducer
from rucola.client.queue_selector import QueueSelector
from rucola.client.send_result import SendResult
from rucola.common.message import Message, MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.runtime.clock import Clock


class Producer:
    """Sends messages.

    Life cycle: ``with Producer(...)``, or ``start`` and ``shutdown``.

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
        self._loop = shared_loop()
        self._async = AsyncProducer(group, namesrv, config, clock=clock)

    def __enter__(self) -> Producer:
        self._loop.run(self._async.__aenter__())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.run(self._async.__aexit__(*exc_info))

    @property
    def client_id(self) -> str:
        """How brokers know this client."""
        return self._async.client_id

    @property
    def in_flight(self) -> int:
        """Messages submitted and not yet answered."""
        return self._async.in_flight

    def start(self) -> None:
        """Begin; connections are opened when they are needed."""
        self._loop.run(self._async.start())

    def shutdown(self) -> None:
        """Wait for the answers to everything submitted, then leave the brokers and close. Requests get no reply more.

        When that wait is cancelled or interrupted, what has no answer yet fails with ``RemotingClosedError``.
        """
        self._loop.run(self._async.shutdown())

    def message_queues(self, topic: str) -> list[MessageQueue]:
        """Queues of ``topic`` that can be sent to.

        Raises:
            ClientError: no broker has the topic, and none would create it.
            RemotingError: no name server answers.
        """
        return self._loop.run(self._async.message_queues(topic))

    def send(
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
        return self._loop.run(self._async.send(message, queue, selector=selector, timeout_ms=timeout_ms))

    def submit(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Send one message without waiting; many may be on their way, and are stored in no promised order.

        Nothing limits how many: ``ready()`` before each, or wait for the futures.

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
        return self._loop.submit(self._async.submit, message, queue, selector=selector, timeout_ms=timeout_ms)

    def send_many(self, messages: Iterable[Message], *, timeout_ms: int | None = None) -> list[SendResult]:
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
        return self._loop.run(self._async.send_many(messages, timeout_ms=timeout_ms))

    def ready(self) -> None:
        """Return at once while less is on its way than configured, else when some of it was answered."""
        self._loop.run(self._async.ready())

    def flush(self) -> None:
        """Return when everything submitted has its result or error."""
        self._loop.run(self._async.flush())

    def send_batch(
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
        return self._loop.run(self._async.send_batch(messages, queue, timeout_ms=timeout_ms))

    def recall(self, topic: str, recall_handle: str, *, timeout_ms: int | None = None) -> str:
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
        return self._loop.run(self._async.recall(topic, recall_handle, timeout_ms=timeout_ms))

    def request(
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
        return self._loop.run(self._async.request(message, queue, selector=selector, timeout_ms=timeout_ms))

    def reply(self, request: MessageExt, body: bytes, *, timeout_ms: int | None = None) -> SendResult:
        """Answer a message that was sent with ``request``, by this client or another, of any language.

        Args:
            request: the message as it was consumed.
            body: the answer.
            timeout_ms: for all attempts together; by default as configured for a send.

        Raises:
            ClientError: the message is no request.
            BrokerError: whoever asked is not there any more, or the broker refused; besides, the errors of ``send``.
        """
        return self._loop.run(self._async.reply(request, body, timeout_ms=timeout_ms))

    def send_oneway(
        self, message: Message, queue: MessageQueue | None = None, *, selector: QueueSelector | None = None
    ) -> None:
        """Send one message and forget it: no answer comes, so a loss goes unnoticed.

        Raises:
            ClientError: the message cannot be sent as it is, or its topic has no route.
            RemotingError: no name server answers.
        """
        self._loop.run(self._async.send_oneway(message, queue, selector=selector))
