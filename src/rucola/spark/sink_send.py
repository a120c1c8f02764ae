"""Sends the messages of a task to the brokers: checks each response, retries failed sends, reports refused messages.

Messages that may go to any queue are sent in batches, to the queues in turn. Messages for a specific queue, or with a
sharding key, are sent to their queue in order, one batch after another. Delayed messages are sent one by one, because
RocketMQ does not accept them in a batch; so are messages of lite topics, whose queue the producer chooses.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

from rucola.arrow.access import names_of_options, with_access
from rucola.client.config import ProducerConfig
from rucola.client.message_encoder import MessageEncoder
from rucola.client.producer import Producer
from rucola.client.queue_selector import by_sharding_key
from rucola.client.send_result import SendResult, SendStatus
from rucola.client.unique_id import UniqueIds
from rucola.common import message_const
from rucola.common.message import Message
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, ClientError, RucolaError, SendManyError
from rucola.protocol.codes import ResponseCode
from rucola.runtime.clock import Clock, SystemClock
from rucola.spark.sink_options import SinkOptions
from rucola.spark.sink_pack import PackedBatch

PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 1.0
BATCH_MESSAGES_MAX = 1_000
REFUSALS = frozenset({int(ResponseCode.NO_PERMISSION), int(ResponseCode.TOPIC_NOT_EXIST)})
"""Response codes whose cause may be temporary. If a broker still returns one of them at the time limit, the message
counts as refused.
"""
_STATUS_CODES = {
    SendStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    SendStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}

Outcome = SendResult | RucolaError
Refused = dict[int, RucolaError]
Attempt = Callable[[list[int]], Awaitable[list[Outcome]]]
"""Sends messages, identified by their indices, and returns the outcome of each."""

logger = logging.getLogger(__name__)


def producer_config(options: SinkOptions) -> ProducerConfig:
    """The settings of a task's producer.

    Raises:
        ConfigError: a setting is invalid.
    """
    config = ProducerConfig(
        send_msg_timeout_ms=options.send_timeout_ms,
        mq_client_api_timeout_ms=options.send_timeout_ms,
        max_message_size=options.message_bytes_max,
        compress_msg_body_over_howmuch=options.compress_over_bytes,
        send_many_batch_bytes=options.batch_bytes_max,
    )
    return with_access(config, options.access)


class RowSender:
    """Sends the messages of one task. Life cycle: Use the sender in an ``async with`` statement, on one event loop.

    Args:
        options: options of the sink.
        clock: measures how long failed requests are retried.

    Raises:
        ConfigError: the address of a name server is invalid, or the CA certificate cannot be read.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._clock = SystemClock()
        self._patience_s = options.retry_timeout_ms / 1000
        self._accepted = options.accepted
        self._batch_bytes_max = options.batch_bytes_max
        self._config = producer_config(options)
        with names_of_options():
            self._producer = Producer(options.producer_group, options.name_server, self._config, clock=self._clock)
        self._encoder = MessageEncoder(self._config, UniqueIds(bytes(4), 0, os.urandom(4), self._clock))
        self._missing: dict[str, RucolaError] = {}
        self._missing_queues: dict[tuple[str, str, int], RucolaError] = {}

    async def __aenter__(self) -> RowSender:
        await self._producer.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._producer.shutdown()

    async def send(self, messages: Sequence[Message], queues: Mapping[int, tuple[str, int]] | None = None) -> Refused:
        """Sends the messages; when it returns, each is stored or refused.

        Args:
            messages: the messages to send.
            queues: broker name and queue id for each message index; an empty broker name means the first broker that
                has the queue.

        Returns:
            The reason for each refusal, by the index of the refused message.

        Raises:
            RucolaError: brokers failed until the time limit; some of the messages may be stored.
        """
        refused: Refused = {}
        routes = {topic: await self._route(topic) for topic in {message.topic for message in messages}}
        free: list[int] = []
        alone: list[tuple[int, MessageQueue]] = []
        lanes: dict[MessageQueue, list[int]] = {}
        for number, message in enumerate(messages):
            wanted = queues.get(number) if queues else None
            route = routes[message.topic]
            if isinstance(route, RucolaError):
                refused[number] = route
            elif message_const.LITE_TOPIC in message.properties or (
                wanted is None and message_const.SHARDING_KEY not in message.properties
            ):
                free.append(number)
            else:
                queue = by_sharding_key(route, message) if wanted is None else await self._queue(message.topic, *wanted)
                if isinstance(queue, RucolaError):
                    refused[number] = queue
                elif message_const.DELAYING.isdisjoint(message.properties):
                    lanes.setdefault(queue, []).append(number)
                else:
                    alone.append((number, queue))
        works = [self._send_lane(messages, numbers, queue) for queue, numbers in lanes.items()]
        works += [self._send_free(messages, free)] if free else []
        works += [self._send_alone(messages, alone)] if alone else []
        for more in await _all(works):
            refused |= more
        return refused

    async def send_packed(self, topic: str, batches: Sequence[PackedBatch]) -> list[PackedBatch]:
        """Sends packed rows of one topic to its queues in turn.

        Returns:
            The requests that did not succeed; their messages must be sent with ``send``.
        """
        outcomes: list[asyncio.Future[SendResult] | RucolaError] = []
        for batch in batches:
            await self._producer.ready()
            try:
                outcomes.append(self._producer.submit_packed(topic, batch.body))
            except RucolaError as error:
                outcomes.append(error)
        failed: list[PackedBatch] = []
        for batch, outcome in zip(batches, outcomes, strict=True):
            why = self._error_of(outcome if isinstance(outcome, RucolaError) else await _outcome(outcome))
            if why is not None:
                logger.info("%d rows for topic %s are sent again: %s", batch.rows, topic, why)
                failed.append(batch)
        return failed

    async def _route(self, topic: str) -> list[MessageQueue] | RucolaError:
        """The queues of a topic, or the reason for a refusal if no broker has the topic within the time limit."""
        patience = _Patience(self._clock, self._patience_s)
        while topic not in self._missing:
            try:
                if queues := await self._producer.message_queues(topic):
                    return queues
                error: RucolaError = ClientError(f"topic {topic} has no writable queue")
            except RucolaError as caught:
                error = caught
            if isinstance(error, ClientError) and (patience.is_over or not self._can_be_topic(topic)):
                self._missing[topic] = error
            elif patience.is_over:
                raise error
            else:
                await patience.wait(error)
        return self._missing[topic]

    async def _queue(self, topic: str, broker_name: str, queue_id: int) -> MessageQueue | RucolaError:
        """The queue that is named in a row, or the reason for a refusal if it does not exist within the time limit."""
        place = topic, broker_name, queue_id
        patience = _Patience(self._clock, self._patience_s)
        while place not in self._missing_queues:
            for queue in await self._producer.message_queues(topic):
                if queue.queue_id == queue_id and broker_name in ("", queue.broker_name):
                    return queue
            whose = f" of broker {broker_name}" if broker_name else ""
            error = ClientError(f"topic {topic} has no writable queue {queue_id}{whose}")
            if patience.is_over:
                self._missing_queues[place] = error
            else:
                await patience.wait(error)
        return self._missing_queues[place]

    async def _send_free(self, messages: Sequence[Message], numbers: list[int]) -> Refused:
        """Sends messages that may go to any queue."""

        async def attempt(waiting: list[int]) -> list[Outcome]:
            try:
                return list(await self._producer.send_many([messages[number] for number in waiting]))
            except SendManyError as error:
                return list(error.outcomes)  # type: ignore[arg-type]

        return await self._until_settled(messages, numbers, attempt)

    async def _send_alone(self, messages: Sequence[Message], wanted: list[tuple[int, MessageQueue]]) -> Refused:
        """Sends messages that cannot be in a batch, each to its own queue."""
        queues = dict(wanted)

        async def attempt(waiting: list[int]) -> list[Outcome]:
            futures: list[asyncio.Future[SendResult] | RucolaError] = []
            for number in waiting:
                await self._producer.ready()
                try:
                    futures.append(self._producer.submit(messages[number], queues[number]))
                except RucolaError as error:
                    futures.append(error)
            return [one if isinstance(one, RucolaError) else await _outcome(one) for one in futures]

        return await self._until_settled(messages, list(queues), attempt)

    async def _send_lane(self, messages: Sequence[Message], numbers: list[int], queue: MessageQueue) -> Refused:
        """Sends messages for one queue in order: each batch waits until the previous batch is stored or refused."""

        async def attempt(waiting: list[int]) -> list[Outcome]:
            batch = [messages[number] for number in waiting]
            try:
                if len(batch) == 1:
                    return [await self._producer.send(batch[0], queue)]
                result = await self._producer.send_batch(batch, queue)
            except RucolaError as error:
                return [copy.copy(error) for _ in waiting]
            return [result] * len(waiting)

        refused: Refused = {}
        for part in self._batches(messages, numbers):
            refused |= await self._until_settled(messages, part, attempt)
        return refused

    def _batches(self, messages: Sequence[Message], numbers: list[int]) -> list[list[int]]:
        """Divides the messages into batches by an upper estimate of each message's size."""
        parts: list[list[int]] = []
        size, storing = self._batch_bytes_max + 1, True
        for number in numbers:
            message = messages[number]
            own = len(message.body) + 64 + 4 * sum(len(name) + len(value) for name, value in message.properties.items())
            full = size + own > self._batch_bytes_max or len(parts[-1]) >= BATCH_MESSAGES_MAX
            if full or message.wait_store_ok != storing:
                parts.append([])
                size, storing = 0, message.wait_store_ok
            parts[-1].append(number)
            size += own
        return parts

    async def _until_settled(self, messages: Sequence[Message], numbers: list[int], attempt: Attempt) -> Refused:
        """Repeats attempts until each message is stored or refused.

        A broker refuses a batch as a whole, whichever message is the reason. The messages of a refused batch are then
        sent one by one and in order, so that each gets its own response.
        """
        refused: Refused = {}
        suspects = await self._settle(messages, numbers, attempt, refused, alone=len(numbers) == 1)
        for number in suspects:
            await self._settle(messages, [number], attempt, refused, alone=True)
        return refused

    async def _settle(
        self, messages: Sequence[Message], numbers: list[int], attempt: Attempt, refused: Refused, *, alone: bool
    ) -> list[int]:
        """Sends the messages; adds refused ones to ``refused``; returns those that must be tried one by one."""
        waiting, suspects = numbers, []
        patience = _Patience(self._clock, self._patience_s)
        while waiting:
            failed: dict[int, RucolaError] = {}
            for number, outcome in zip(waiting, await attempt(waiting), strict=True):
                error = self._error_of(outcome)
                if error is None:
                    continue
                fault = self._fault_of(messages[number]) if isinstance(error, ClientError) else None
                if fault is not None:
                    refused[number] = fault
                elif error.retriable or isinstance(error, ClientError) or _is_status(error):
                    failed[number] = error
                elif not isinstance(error, BrokerError) or _is_about_account(error):
                    raise error
                elif alone:
                    refused[number] = error
                else:
                    suspects.append(number)
            if not failed:
                break
            error = next(iter(failed.values()))
            if len(failed) < len(waiting):
                patience = _Patience(self._clock, self._patience_s)
            elif patience.is_over:
                if not all(isinstance(one, BrokerError) and one.code in REFUSALS for one in failed.values()):
                    raise error
                refused |= failed
                break
            await patience.wait(error)
            waiting = list(failed)
        return sorted(suspects)

    def _error_of(self, outcome: Outcome) -> RucolaError | None:
        """The reason why ``outcome`` is not a success; None for a success."""
        if not isinstance(outcome, SendResult):
            return outcome
        if outcome.status in self._accepted:
            return None
        queue = outcome.message_queue
        remark = f"stored, but {outcome.status.value}; option acceptedStatus can allow that"
        return BrokerError(
            int(_STATUS_CODES[outcome.status]), remark, queue.topic, outcome.status.value, queue.broker_name
        )

    def _can_be_topic(self, topic: str) -> bool:
        try:
            self._encoder.check_topic(topic)
        except ClientError:
            return False
        return True

    def _fault_of(self, message: Message) -> ClientError | None:
        """The reason why no broker would accept ``message``; None if the message is valid."""
        try:
            self._encoder.encode(message, 0)
        except ClientError as error:
            return error
        return None


class _Patience:
    """Time limit for the attempts at one operation, with growing pauses between them."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._deadline_s = clock.monotonic() + seconds
        self._pause_s = PAUSE_FIRST_S

    @property
    def is_over(self) -> bool:
        """Whether the time limit is reached."""
        return self._clock.monotonic() >= self._deadline_s

    async def wait(self, error: RucolaError) -> None:
        """Pauses before the next attempt."""
        logger.info("next attempt in %.2f s: %s", self._pause_s, error)
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)


def _is_about_account(error: BrokerError) -> bool:
    """Whether the broker refused the account. If it did, no retry helps, although the response code often means a
    temporary error.
    """
    return error.code in error.RETRIABLE_CODES and not error.retriable


def _is_status(error: RucolaError) -> bool:
    return isinstance(error, BrokerError) and error.code in _STATUS_CODES.values()


async def _all(works: Sequence[Coroutine[None, None, Refused]]) -> list[Refused]:
    """Runs all coroutines and returns their results; the first error cancels the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _outcome(future: asyncio.Future[SendResult]) -> Outcome:
    try:
        return await future
    except RucolaError as error:
        return error
