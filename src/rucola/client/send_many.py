"""Sends any number of messages for any topics: groups them into batches by topic and size, and sends these
concurrently.

A batch goes to one queue and is stored as a whole or not at all. Some messages are sent individually: messages that
RocketMQ does not accept in a batch (delayed messages and retries), messages with a sharding key, and messages that are
compressed.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterable

from rucola.client.checks import check_message
from rucola.client.message_encoder import MessageEncoder
from rucola.client.send_result import SendResult
from rucola.common import message_const
from rucola.common.key_builder import is_retry_topic
from rucola.common.message import Message
from rucola.common.system_properties import RESERVED
from rucola.errors import ClientError, RucolaError, SendManyError

_MESSAGES_MAX = 1_000
"""Largest number of messages in a batch, so that even many small messages are spread over several queues."""
_ALONE = message_const.DELAYING | {message_const.SHARDING_KEY, message_const.LITE_TOPIC} | RESERVED
"""Messages with these properties are sent alone; what is reserved is refused by ``submit``."""

Outcome = SendResult | RucolaError | None


class _Batch:
    """Messages for the same topic that are sent together."""

    def __init__(self, number: int = 0, message: Message | None = None) -> None:
        self.numbers = [] if message is None else [number]
        self.messages = [] if message is None else [message]
        self.members: list[bytes] = []
        self.size = 0


class ManyMessages:
    """The work of one ``send_many`` call.

    Args:
        encoder: the producer's encoder.
        ready: waits until another message may be sent.
        submit: sends one message.
        submit_batch: sends several messages, given with their encoded form.
        batch_bytes_max: largest body of a batch.
        body_bytes_max: largest body of a message in a batch.
    """

    def __init__(
        self,
        encoder: MessageEncoder,
        ready: Callable[[], Awaitable[None]],
        submit: Callable[[Message], asyncio.Future[SendResult]],
        submit_batch: Callable[[list[Message], list[bytes]], asyncio.Future[SendResult]],
        batch_bytes_max: int,
        body_bytes_max: int,
    ) -> None:
        self._encoder = encoder
        self._ready = ready
        self._submit = submit
        self._submit_batch = submit_batch
        self._batch_bytes_max = batch_bytes_max
        self._body_bytes_max = body_bytes_max
        self._open: dict[tuple[str, bool], _Batch] = {}
        self._outcomes: list[Outcome] = []
        self._sent: list[tuple[asyncio.Future[SendResult], _Batch]] = []

    async def send(self, messages: Iterable[Message]) -> list[SendResult]:
        """Sends all messages; returns the result of each message, in order.

        Raises:
            SendManyError: a message could not be sent; the error has all results.
        """
        try:
            await self._send_all(messages)
            for future, batch in self._sent:
                await self._await(future, batch)
        except BaseException:  # this call was cancelled, so the other results are not needed
            for future, _ in self._sent:
                future.cancel()
            raise
        results = [outcome for outcome in self._outcomes if isinstance(outcome, SendResult)]
        if len(results) < len(self._outcomes):
            raise SendManyError(list(self._outcomes))
        return results

    async def _send_all(self, messages: Iterable[Message]) -> None:
        """Sends all messages without waiting for their results.

        Raises:
            ClientError: ``messages`` cannot be iterated over.
        """
        if not isinstance(messages, Iterable):
            raise ClientError(f"messages must be an iterable of messages, not {messages!r}")
        iterator = iter(messages)
        while True:
            try:
                message = next(iterator)
            except StopIteration:
                break
            except Exception as error:
                await self._tell(error)
                raise
            full = self._take(message)
            if full is not None:
                await self._send(full)
        for batch in self._open.values():
            await self._send(batch)

    async def _tell(self, error: Exception) -> None:
        """Notes in ``error``, which the application's iterable raised, what became of the messages taken before."""
        for future, batch in self._sent:
            await self._await(future, batch)
        stored = sum(isinstance(outcome, SendResult) for outcome in self._outcomes)
        failed = sum(isinstance(outcome, RucolaError) for outcome in self._outcomes)
        left = len(self._outcomes) - stored - failed
        error.add_note(
            f"send_many had taken {len(self._outcomes)} messages: {stored} are stored, {failed} failed, {left} "
            f"{'was' if left == 1 else 'were'} not sent"
        )

    def _take(self, message: Message) -> _Batch | None:
        """Adds ``message`` to its batch; returns a batch that must be sent now, if any."""
        number = len(self._outcomes)
        self._outcomes.append(None)
        try:
            if self._goes_alone(message):
                return _Batch(number, message)
            member = self._encoder.batch_member(message)
        except RucolaError as error:
            self._outcomes[number] = error
            return None
        except AttributeError:
            check_message(message)
            raise
        wait = message.properties.get(message_const.WAIT)
        key = message.topic, wait is None or message.wait_store_ok
        batch = self._open.get(key)
        full = None
        if batch is not None and (
            batch.size + len(member) > self._batch_bytes_max or len(batch.members) >= _MESSAGES_MAX
        ):
            full, batch = batch, None
        if batch is None:
            batch = self._open[key] = _Batch()
        batch.numbers.append(number)
        batch.messages.append(message)
        batch.members.append(member)
        batch.size += len(member)
        return full

    def _goes_alone(self, message: Message) -> bool:
        return (
            type(message.body) is not bytes
            or len(message.body) > self._body_bytes_max
            or not _ALONE.isdisjoint(message.properties)
            or is_retry_topic(message.topic)
        )

    async def _send(self, batch: _Batch) -> None:
        try:
            await self._ready()
            if len(batch.messages) == 1:
                future = self._submit(batch.messages[0])
            else:
                future = self._submit_batch(batch.messages, batch.members)
        except RucolaError as error:
            self._failed(batch, error)
        else:
            self._sent.append((future, batch))

    async def _await(self, future: asyncio.Future[SendResult], batch: _Batch) -> None:
        try:
            result = await future
        except RucolaError as error:
            self._failed(batch, error)
            return
        if len(batch.messages) == 1:
            self._outcomes[batch.numbers[0]] = result
            return
        offset_ids = result.offset_msg_id.split(",")
        each = len(offset_ids) == len(batch.messages)  # a BatchCQ topic stores the batch as one record
        status, _, offset_id, queue, queue_offset, transaction_id, _ = result
        for place, number in enumerate(batch.numbers):
            self._outcomes[number] = SendResult(
                status,
                batch.messages[place].properties[message_const.UNIQ_KEY],
                offset_ids[place] if each else offset_id,
                queue,
                queue_offset + place,
                transaction_id,
            )

    def _failed(self, batch: _Batch, error: RucolaError) -> None:
        for number in batch.numbers:
            self._outcomes[number] = copy.copy(error)
