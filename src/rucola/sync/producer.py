"""``Producer`` with blocking calls.

Generated from rucola/client/producer.py by tools/async_to_sync.py: change that file and run the tool.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Sequence
from typing import Any

from rucola.client.config import ProducerConfig
from rucola.client.faces import Blocking
from rucola.client.loop_thread import shared_loop
from rucola.client.producer import Producer as AsyncProducer
from rucola.client.queue_selector import QueueSelector
from rucola.client.send_result import SendResult
from rucola.common.message import Message, MessageExt
from rucola.common.message_queue import MessageQueue
from rucola.runtime.clock import Clock


class Producer(Blocking):
    """Sends messages.

    Life cycle: ``with Producer(...)``, or ``start`` and ``shutdown``.

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
        self._loop = shared_loop()
        self._async = AsyncProducer(group, namesrv, config, clock=clock)

    def __enter__(self) -> Producer:
        # after an interruption, __exit__ does not run, but the start may have succeeded
        self._loop.run(self._async.__aenter__(), lambda client: client.shutdown())
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._loop.run(self._async.__aexit__(*exc_info))

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client."""
        return self._async.client_id

    @property
    def in_flight(self) -> int:
        """Number of messages that were submitted and are not confirmed yet."""
        return self._async.in_flight

    def start(self) -> None:
        """Starts the producer. Does nothing if the producer is started already.

        Connections are opened when needed, so a name server or broker that does not respond shows at the first send.

        Raises:
            ClientError: the producer was shut down before, or was started on another event loop.
        """
        self._loop.run(self._async.start())

    def shutdown(self) -> None:
        """Refuses further messages at once, waits for the results of those submitted, then unregisters and closes.
        Requests receive no further replies. Does nothing if the producer is not started.

        If the wait is cancelled or interrupted, messages without a result fail with ``RemotingClosedError``. A second
        call waits until the first one has ended; its cancellation ends only its own wait.
        """
        self._loop.run(self._async.shutdown())

    def message_queues(self, topic: str) -> list[MessageQueue]:
        """The queues of ``topic`` to which messages can be sent.

        Raises:
            ClientError: no broker has the topic, and none would create it.
            RemotingError: no name server responds.
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
        return self._loop.run(self._async.send(message, queue, selector=selector, timeout_ms=timeout_ms))

    def submit(
        self,
        message: Message,
        queue: MessageQueue | None = None,
        *,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Sends one message without waiting. Brokers store the messages in flight in no guaranteed order.

        The number of messages in flight is not limited: call ``ready()`` before each message, or wait for the
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
        return self._loop.submit(self._async.submit, message, queue, selector=selector, timeout_ms=timeout_ms)

    def send_many(self, messages: Iterable[Message], *, timeout_ms: int | None = None) -> list[SendResult]:
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
        return self._loop.run(self._async.send_many(messages, timeout_ms=timeout_ms))

    def ready(self) -> None:
        """Waits until the numbers of messages and bytes in flight are below the configured limits.

        Raises:
            ClientError: the producer is not started, or is shut down, also while this call waits.
        """
        self._loop.run(self._async.ready())

    def flush(self) -> None:
        """Waits until every message that was submitted before this call has its result or error. Messages that are
        submitted meanwhile do not prolong the wait.
        """
        self._loop.run(self._async.flush())

    def send_batch(
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
        return self._loop.run(self._async.send_batch(messages, queue, timeout_ms=timeout_ms))

    def submit_packed(
        self, topic: str, body: bytes, *, timeout_ms: int | None = None
    ) -> concurrent.futures.Future[SendResult]:
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
        return self._loop.submit(self._async.submit_packed, topic, body, timeout_ms=timeout_ms)

    def recall(self, topic: str, recall_handle: str, *, timeout_ms: int | None = None) -> str:
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
        return self._loop.run(self._async.recall(topic, recall_handle, timeout_ms=timeout_ms))

    def request(
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
        return self._loop.run(self._async.request(message, queue, selector=selector, timeout_ms=timeout_ms))

    def reply(self, request: MessageExt, body: bytes, *, timeout_ms: int | None = None) -> SendResult:
        """Replies to ``request``, a message that a client in any language sent as a request.

        Args:
            request: the message as it was consumed.
            body: body of the reply.
            timeout_ms: for all attempts together; by default as configured for a send.

        Raises:
            ClientError: the message is not a request.
            BrokerError: the requesting client is offline, or the broker refused. The errors of ``send`` apply too.
        """
        return self._loop.run(self._async.reply(request, body, timeout_ms=timeout_ms))

    def send_oneway(
        self, message: Message, queue: MessageQueue | None = None, *, selector: QueueSelector | None = None
    ) -> None:
        """Sends one message without requesting a response; a loss is not noticed.

        Raises:
            ClientError: the message cannot be sent as it is, or its topic has no route.
            RemotingError: no name server responds.
        """
        self._loop.run(self._async.send_oneway(message, queue, selector=selector))
