"""One task of a write: reads its rows, sends messages, and checks every response before it ends."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from rucola.client.loop_thread import shared_loop
from rucola.common import message_const
from rucola.common.message import Message
from rucola.errors import RefusedRowError
from rucola.spark.dead_letters import DeadLetterFile
from rucola.spark.sink_options import SinkLayout, SinkOptions
from rucola.spark.sink_rows import Chunk, RowReader
from rucola.spark.sink_send import Refused, RowSender

if TYPE_CHECKING:
    import pyarrow as pa

REFUSED_TOPIC = "REFUSED_TOPIC"
"""Property of a dead letter: the intended topic of the row."""
REFUSED_REASON = "REFUSED_REASON"
"""Property of a dead letter: why the row could not be sent."""
NO_BODY = b"null"
"""Body of a dead letter whose row has no body; no message may be empty."""

Settled = Callable[["pa.RecordBatch", Refused], None]
"""Called with rows that are stored or became dead letters, and with the errors of the dead letters, by row index."""

logger = logging.getLogger(__name__)


class Written(NamedTuple):
    """Number of rows that a task handled, and number of rows among them that were refused."""

    rows: int
    refused: int


class TaskPlace(NamedTuple):
    """Identifies a task: each attempt at it has the same place, and no other task has it.

    Attributes:
        query_id: id of a streaming query, the same after a restart; or another name of the work.
        batch_id: number of the micro-batch; empty outside of streams.
        partition_id: number of the partition.
        run_id: id that no other run has. Empty in a streaming sink, because a micro-batch that Spark repeats after a
            restart is the same work.
    """

    query_id: str = ""
    batch_id: str = ""
    partition_id: int = 0
    run_id: str = ""

    def letters(self, path: str) -> DeadLetterFile:
        """The file in directory ``path`` for the task's dead letters. Without a micro-batch and a run, its name is new
        each time.
        """
        run = self.run_id or ("" if self.batch_id else uuid4().hex)
        names = [self.query_id or "batch", self.batch_id, run, f"{self.partition_id:05d}"]
        return DeadLetterFile(path, "-".join(filter(None, names)))


def write_rows(
    options: SinkOptions,
    layout: SinkLayout,
    batches: Iterator[pa.RecordBatch],
    place: TaskPlace,
    settled: Settled | None = None,
) -> Written:
    """Sends all rows; when it returns, each is stored by a broker or is a dead letter.

    Args:
        options: options of the sink.
        layout: the assignment of a row's fields to the parts of a message.
        batches: the rows.
        place: identifies the task.
        settled: is called, in the order of the rows, with rows that have been stored or become dead letters.

    Raises:
        RefusedRowError: a row cannot be sent, and the options name no topic or directory for dead letters.
        RucolaError: brokers failed for too long.
    """
    reader = RowReader(options, layout, place.query_id)
    loop = shared_loop()
    letters = place.letters(options.dead_letter_path)
    sender = RowSender(options)
    loop.run(sender.__aenter__())
    task = _Task(options, sender, letters, settled)
    try:
        for batch in batches:
            for chunk in reader.chunks(batch):
                task.send(chunk)
        task.settle(0)
        letters.close()
        return Written(task.rows, task.refused)
    finally:
        task.cancel()
        loop.run(sender.__aexit__(None, None, None))


class _Task:
    """Sends the chunks of one task; several chunks may be in flight at once.

    A chunk with rows that have a queue or a sharding key waits for all earlier chunks, and the next chunk waits for
    this one. So these rows keep their order.
    """

    def __init__(
        self, options: SinkOptions, sender: RowSender, letters: DeadLetterFile, settled: Settled | None
    ) -> None:
        self._options = options
        self._settled = settled
        self._sender = sender
        self._letters = letters
        self._loop = shared_loop()
        self._sent: deque[tuple[Future[Refused], Chunk]] = deque()
        self._bytes = 0
        self._ordered = False
        self.rows = 0
        self.refused = 0

    def send(self, chunk: Chunk) -> None:
        """Starts to send the rows of ``chunk``; first waits until the limit on bytes in flight allows this."""
        ordered = bool(chunk.queues) or any(message_const.SHARDING_KEY in one.properties for one in chunk.messages)
        self.settle(0 if ordered or self._ordered else max(0, self._options.in_flight_bytes_max - chunk.size))
        self._ordered = ordered
        self._bytes += chunk.size
        self._sent.append((self._loop.start(self._send(chunk)), chunk))

    def settle(self, bytes_max: int) -> None:
        """Waits until at most ``bytes_max`` bytes are in flight; handles refused rows of all chunks that are done."""
        while self._sent and (self._bytes > bytes_max or not bytes_max or self._sent[0][0].done()):
            future, chunk = self._sent.popleft()
            refused = future.result()
            self._bytes -= chunk.size
            self.rows += chunk.rows.num_rows
            if refused:
                self._put_aside(chunk, refused)
            if self._settled is not None:
                self._settled(chunk.rows, refused)

    def cancel(self) -> None:
        """Cancels the chunks in flight after the task failed, but first reports those that are already stored."""
        while self._sent and self._sent[0][0].done() and self._sent[0][0].exception() is None:
            future, chunk = self._sent.popleft()
            if future.result():
                break
            if self._settled is not None:
                self._settled(chunk.rows, {})
        for future, _ in self._sent:
            future.cancel()

    async def _send(self, chunk: Chunk) -> Refused:
        if chunk.packed:
            return await self._send_packed(chunk)
        if not chunk.invalid:
            return await self._sender.send(chunk.messages, chunk.queues)
        numbers = [number for number in range(len(chunk.messages)) if number not in chunk.invalid]
        queues = {at: chunk.queues[number] for at, number in enumerate(numbers) if number in chunk.queues}
        refused = await self._sender.send([chunk.messages[number] for number in numbers], queues)
        return chunk.invalid | {numbers[at]: error for at, error in refused.items()}

    async def _send_packed(self, chunk: Chunk) -> Refused:
        """Sends packed requests. If some requests fail, sends their messages again, unpacked and with the same ids."""
        failed = await self._sender.send_packed(chunk.topic, chunk.packed)
        numbers = [number for batch in failed for number in range(batch.first, batch.first + batch.rows)]
        if not numbers:
            return {}
        chunk.unpack()
        refused = await self._sender.send([chunk.messages[number] for number in numbers])
        return {numbers[at]: error for at, error in refused.items()}

    def _put_aside(self, chunk: Chunk, refused: Refused) -> None:
        """Makes dead letters of the refused rows, if the options ask for that."""
        number, error = min(refused.items(), key=lambda one: one[0])
        message = chunk.messages[number]
        if not self._options.dead_letter_topic and not self._options.dead_letter_path:
            raise RefusedRowError(len(refused), message.topic, message.uniq_key or "", str(error)) from error
        self.refused += len(refused)
        logger.warning("%d rows are refused; the first is for topic %s: %s", len(refused), message.topic, error)
        if self._options.dead_letter_path:
            self._letters.put(chunk, refused)
            return
        letters = [self._letter(chunk.messages[number], str(refused[number])) for number in sorted(refused)]
        again = self._loop.run(self._sender.send(letters))
        for number, error in again.items():
            letter = letters[number]
            raise RefusedRowError(len(again), letter.topic, letter.uniq_key or "", str(error), True) from error

    def _letter(self, message: Message, reason: str) -> Message:
        """The dead letter for a message that cannot be sent."""
        properties = {REFUSED_TOPIC: message.topic, REFUSED_REASON: _plain(reason)}
        for name in (message_const.UNIQ_KEY, message_const.KEYS, message_const.TAGS):
            value = message.properties.get(name)
            if value:
                properties[name] = _plain(value)
        properties = {name: value for name, value in properties.items() if value}
        return Message(self._options.dead_letter_topic, message.body or NO_BODY, properties=properties)


def _plain(text: str) -> str:
    """Returns ``text`` with escapes in place of the two characters that separate properties."""
    return text.replace("\x01", "\\x01").replace("\x02", "\\x02")
