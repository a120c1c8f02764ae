"""Pulls one piece of a queue from its broker, in a task.

A broker returns at most about 32 messages per pull, however many are requested. Therefore several pulls run at a time,
each for its own part of the queue. If a pull fails, its part is requested again. Rows are passed on in order, each
exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rucola.arrow.broker_link import BrokerLink
from rucola.arrow.catalog import Bounds, clamp
from rucola.arrow.columns import BatchBuilder
from rucola.arrow.expression import SqlCondition
from rucola.arrow.offsets import queue_text
from rucola.arrow.ranges import QueueRange
from rucola.arrow.read_options import ReadOptions
from rucola.arrow.scanner import BATCH_ROWS, RowChooser, Scanned, Scanner
from rucola.client.message_selector import ExpressionType, MessageSelector
from rucola.client.pull_consumer import PullConsumer
from rucola.client.pull_result import PullStatus
from rucola.common.message_queue import MessageQueue
from rucola.errors import BrokerError, ClientError, DataLossError, RucolaError
from rucola.protocol.codes import ResponseCode

if TYPE_CHECKING:
    import pyarrow as pa

NO_FILTER = "does not support consumer to filter message by"
"""Part of the remark with which brokers refuse SQL92 if ``enablePropertyFilter`` is off, RocketMQ's default."""
PULLS_AT_A_TIME = 8
CHUNK_BYTES = 8 << 20
"""Size in bytes of the records that are gathered before batches are built from them."""
MISSING_PATIENCE_S = 10.0
"""Seconds for which a task waits for missing messages of its piece. A broker that has just started may not serve them
yet.
"""
PAUSE_S = 0.1
WARNING_PAUSE_S = 60.0
"""Pause between two warnings about an unavailable broker, in seconds."""

logger = logging.getLogger(__name__)


class _Missing(Exception):  # noqa: N818 - never leaves this module
    """The broker has no message at ``queue_offset``; ``bounds`` holds the offsets that it has."""

    def __init__(self, queue_offset: int, bounds: Bounds) -> None:
        super().__init__(queue_offset, bounds)
        self.queue_offset, self.bounds = queue_offset, bounds


def pull_queue(
    options: ReadOptions, builder: BatchBuilder, piece: QueueRange, scanned: Scanned | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of ``piece``.

    Raises:
        DataLossError: messages are gone, and ``failOnDataLoss`` is set.
        RucolaError: the broker did not respond in time, or refused the request.
    """
    # With tags or a condition, a pull skips messages that do not match, and so may go past the end of the piece.
    wanted = None if options.expression.matches_all else [piece]
    # The rows are filtered here, too: brokers compare only the hashes of tags, and return every message if they cannot
    # compile a condition.
    scanner = Scanner(builder, RowChooser(options.expression, wanted, options.keys, lite=options.lite))
    name = f"{queue_text(piece.queue)} through {options.name_server}"
    with BrokerLink(options) as link:
        puller = _Puller(options, link, piece)
        while puller.queue_offset < piece.end:
            begin = puller.queue_offset
            chunk = puller.chunk()
            yield from scanner.batches(chunk, 0, len(chunk), 0, name, 0)
            if scanned is not None:
                scanned(min(puller.queue_offset, piece.end) - begin)


def _has_no_topic(error: RucolaError) -> bool:
    return isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST


class _Puller:
    """Reads a piece of a queue from ``queue_offset`` on."""

    def __init__(self, options: ReadOptions, link: BrokerLink, piece: QueueRange) -> None:
        self.queue_offset = piece.start
        self._options = options
        self._link = link
        self._piece = piece
        is_sql = isinstance(options.expression, SqlCondition)
        self._selector = MessageSelector(
            options.expression.sub_string, ExpressionType.SQL92 if is_sql else ExpressionType.TAG
        )
        self._filters = not options.expression.matches_all
        """Whether the broker chooses messages, so that a pull may skip some."""
        self._quiet_until_s = 0.0
        self._stretch = 0
        """Number of messages that the broker returns in one pull; 0 until the first response."""

    def chunk(self) -> bytearray:
        """The next consecutive records; ``queue_offset`` moves past them."""
        chunk = bytearray()
        target = min(self.queue_offset + BATCH_ROWS, self._piece.end)
        while self.queue_offset < target and len(chunk) < CHUNK_BYTES:
            for body in self._patient_pulls():
                chunk += body
        return chunk

    def _patient_pulls(self) -> list[bytes]:
        patience_s = min(MISSING_PATIENCE_S, self._options.retry_timeout_ms / 1000)
        deadline_s: float | None = None
        while True:
            try:
                bodies, self.queue_offset = self._link.ask(self._pulls)
                return bodies
            except (_Missing, RucolaError) as error:
                missing = error if isinstance(error, _Missing) else self._missing(error)
            now = self._link.seconds()
            if missing is None:
                deadline_s = None  # A broker that is back gets the full time limit again.
            elif missing.queue_offset < missing.bounds.min or (deadline_s is not None and now >= deadline_s):
                self._skip_missing(missing)
                return []
            else:
                deadline_s = deadline_s or now + patience_s
            self._link.wait(PAUSE_S)

    def _missing(self, error: RucolaError) -> _Missing | None:
        """Returns a ``_Missing`` if ``error`` means that the queue does not exist; None if the broker is unavailable.

        Raises:
            RucolaError: ``error`` itself, if it means something else, or if the reader does not wait for brokers.
        """
        queue = self._piece.queue
        if self._link.is_away(queue, error):
            if not self._options.waits_for_brokers:
                raise error
            now = self._link.seconds()
            if now >= self._quiet_until_s:
                self._quiet_until_s = now + WARNING_PAUSE_S
                logger.warning(
                    "the read of offset %d of %s waits for its broker: %s", self.queue_offset, queue_text(queue), error
                )
            return None
        if isinstance(error, ClientError) or _has_no_topic(error):
            return _Missing(self.queue_offset, Bounds(0, 0))
        raise error

    def _skip_missing(self, missing: _Missing) -> None:
        """Moves to the next message that exists; raises ``DataLossError`` if ``failOnDataLoss`` is set."""
        left = QueueRange(self._piece.queue, missing.queue_offset, self._piece.end)
        kept = clamp(left, missing.bounds, self._options.fail_on_data_loss)
        if kept == left:
            # The broker has the offset but does not return its message.
            lost = left.start, left.end, left.start, left.start
            raise DataLossError(queue_text(left.queue), *lost, "check the broker's store with rucola store verify")
        self.queue_offset = kept.start if kept.count > 0 else self._piece.end

    async def _pulls(self, consumer: PullConsumer) -> tuple[list[bytes], int]:
        """The response bodies from ``queue_offset`` on, and the offset after them."""
        queue, end, at = self._piece.queue, self._piece.end, self.queue_offset
        if not self._stretch or self._filters:
            body, after = await self._pull(consumer, queue, at, end)
            self._stretch = after - at
            return [body], after
        cuts = range(at, min(end, at + PULLS_AT_A_TIME * self._stretch), self._stretch)
        stretches = [self._fill(consumer, queue, cut, min(cut + self._stretch, end)) for cut in cuts]
        filled = await asyncio.gather(*stretches)
        return [body for bodies in filled for body in bodies], min(cuts[-1] + self._stretch, end)

    async def _fill(self, consumer: PullConsumer, queue: MessageQueue, start: int, end: int) -> list[bytes]:
        bodies = []
        while start < end:
            body, start = await self._pull(consumer, queue, start, end)
            bodies.append(body)
        return bodies

    async def _pull(self, consumer: PullConsumer, queue: MessageQueue, start: int, end: int) -> tuple[bytes, int]:
        count = min(self._options.pull_batch_size, end - start)
        try:
            result = await consumer.pull_raw(queue, start, count, self._selector)
        except BrokerError as error:
            if not self._filters or NO_FILTER not in error.remark:
                raise
            # Another try would get the same answer. The rows are filtered here, too, so the broker need not do it.
            logger.info("%s; this reader filters the messages itself", error)
            self._selector, self._filters = MessageSelector.by_tag("*"), False
            result = await consumer.pull_raw(queue, start, count, self._selector)
        moved = result.next_begin_offset > start
        if result.status is PullStatus.FOUND and moved:
            return result.body, result.next_begin_offset
        if result.status is PullStatus.NO_MATCHED_MSG and moved:
            return b"", result.next_begin_offset
        raise _Missing(start, Bounds(result.min_offset, result.max_offset))
