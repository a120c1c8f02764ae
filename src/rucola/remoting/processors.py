"""Decodes requests, calls the processor that is registered for the request code, and sends the response unless the
request is one-way (protocol.md 1.10).

A processor takes the channel and the request. The processor returns the response, or None if it will answer later. It
may also return an awaitable whose result is the response or None. A processor refuses a request by raising
``BrokerError``. Any other exception fails only that request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rucola.common.numbers import INT64_MAX, number_in
from rucola.errors import BrokerError, FormatError, RucolaError
from rucola.protocol.body_limits import body_bytes_max
from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import FrameBatch
from rucola.remoting.channel import Channel
from rucola.remoting.fairness.json_bodies import SHORT_BYTES, JsonBodies, is_long
from rucola.remoting.fairness.resumed import Resumed
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
"""Remark of the SYSTEM_BUSY response to a request that would have to wait behind too many others."""

_OVER_LIMIT = 2
_BORN_TIME = "bornTime"
Answer = RemotingCommand | None
Processor = Callable[[Channel, RemotingCommand], Answer | Awaitable[Answer]]


class ProcessorTable:
    """The processors of one server. Event loop only.

    Args:
        waiting_max: maximum number of waiting requests of all connections. Further requests are refused. A request of
            a connection with few waiting requests is refused only when twice this number of requests wait.

    Attributes:
        json_bodies: parses long bodies.
    """

    def __init__(self, waiting_max: int = 10_000) -> None:
        self._waiting_max = waiting_max
        self._processors: dict[int, Processor] = {}
        self._makers: dict[int, Callable[[], Processor | Awaitable[Processor]]] = {}
        """Functions that create processors, for codes that no request has used yet."""
        self._waiting: set[asyncio.Future[Answer]] = set()
        self._waiting_of: dict[Channel, int] = {}
        """Number of waiting requests by connection."""
        self._resumed = Resumed()
        self.json_bodies = JsonBodies()

    def register(self, code: int, processor: Processor) -> None:
        """Registers ``processor`` for requests with ``code``."""
        self._processors[code] = processor

    def register_later(self, code: int, make: Callable[[], Processor | Awaitable[Processor]]) -> None:
        """Registers the processor that ``make`` returns for requests with ``code``. The first request calls ``make``.

        If ``make`` returns an awaitable, requests wait for it; this wait does not count towards their time limit.
        """
        self._makers[code] = make

    @property
    def codes(self) -> frozenset[int]:
        """All registered codes."""
        return frozenset(self._processors) | frozenset(self._makers)

    def process_row(self, channel: Channel, batch: FrameBatch, row: int) -> None:
        """Serves frame ``row``. Its bytes are copied, so a processor may keep the request.

        Raises:
            FormatError: the header cannot be decoded, so the connection is useless.
        """
        self.process(channel, batch.command(row))

    def process(self, channel: Channel, command: RemotingCommand) -> None:
        """Serves a decoded request."""
        if command.code not in self._processors and command.code not in self._makers:
            remark = f" request type {command.code} not supported"
            _send(channel, command, command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark))
            return
        if len(self._waiting) >= self._waiting_max and not self._has_share(channel):
            _send(channel, command, command.answer(ResponseCode.SYSTEM_BUSY, OVERLOAD))
            return
        long_body = len(command.body) > SHORT_BYTES
        if long_body and len(command.body) > (limit := body_bytes_max(command.code)):
            remark = f"the body has {len(command.body)} bytes; at most {limit} bytes are allowed"
            _send(channel, command, command.answer(ResponseCode.INVALID_PARAMETER, remark))
            return
        try:
            if long_body and is_long(command):
                answer: Answer | Awaitable[Answer] = self._when_read(channel, command)
            else:
                answer = self._serve(channel, command)
        except Exception as error:  # noqa: BLE001 - a defect in one processor must not cost the connection
            _send(channel, command, error_answer(channel, command, error))
            return
        if answer is None or isinstance(answer, RemotingCommand):
            _send(channel, command, answer)
            return
        size = len(command.body)
        channel.owe(size)
        self._waiting_of[channel] = self._waiting_of.get(channel, 0) + 1

        def finished(answered: asyncio.Future[Answer]) -> None:
            self._waiting.discard(answered)
            self._waiting_of[channel] -= 1
            if not self._waiting_of[channel]:
                del self._waiting_of[channel]
            channel.settle(size)
            _send(channel, command, _result(channel, command, answered))

        answered = asyncio.ensure_future(answer)
        self._waiting.add(answered)
        answered.add_done_callback(finished)

    def _has_share(self, channel: Channel) -> bool:
        """True if one more request of ``channel`` may wait although the limit is reached, because ``channel`` has fewer
        waiting requests than its share of the limit.
        """
        part = self._waiting_max / (len(self._waiting_of) + 1)
        return self._waiting_of.get(channel, 0) < part and len(self._waiting) < _OVER_LIMIT * self._waiting_max

    def _serve(self, channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        processor = self._processors.get(command.code)
        return processor(channel, command) if processor is not None else self._begin(channel, command)

    async def _when_read(self, channel: Channel, command: RemotingCommand) -> Answer:
        await self.json_bodies.read(command)
        answer = self._serve(channel, command)
        return answer if answer is None or isinstance(answer, RemotingCommand) else await answer

    def _begin(self, channel: Channel, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Serves the first request with a certain code. If the processor for this code cannot be created, the next
        request tries again.
        """
        made = self._makers[command.code]()
        if isinstance(made, Awaitable):
            return self._when_made(made, channel, command)
        self._keep(command.code, made)
        return made(channel, command)

    async def _when_made(
        self, making: Awaitable[Processor], channel: Channel, command: RemotingCommand
    ) -> RemotingCommand | None:
        began = asyncio.get_running_loop().time()
        processor = await making
        self._keep(command.code, processor)
        await self._resumed.turn()
        _forgive(command, round((asyncio.get_running_loop().time() - began) * 1000))
        answer = processor(channel, command)
        return answer if answer is None or isinstance(answer, RemotingCommand) else await answer

    def _keep(self, code: int, processor: Processor) -> None:
        self._processors[code] = processor
        self._makers.pop(code, None)

    async def close(self) -> None:
        """Ends requests that are still being served; their clients receive an error."""
        waiting = list(self._waiting)
        for answered in waiting:
            answered.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        self.json_bodies.close()


def _forgive(command: RemotingCommand, waited_ms: int) -> None:
    """Updates the creation time in requests that state one; otherwise they would be refused as too old because of a
    delay in this server.
    """
    born_time = number_in(command.ext_fields.get(_BORN_TIME, ""), 1, INT64_MAX - waited_ms)
    if born_time is not None:
        command.ext_fields[_BORN_TIME] = str(born_time + waited_ms)


def error_answer(channel: Channel, command: RemotingCommand, error: Exception) -> RemotingCommand:
    """The response to a request whose processor raised ``error``. Logs ``error`` unless it is a ``BrokerError`` or a
    ``FormatError``.
    """
    if isinstance(error, BrokerError):
        return command.answer(error.code, error.remark)
    if not isinstance(error, FormatError):
        trace = None if isinstance(error, RucolaError) else error
        peer = channel.remote_address
        event(logger, logging.ERROR, "request failed", trace, peer=peer, code=command.code, error=error)
    return command.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def serve_again(
    channel: Channel, command: RemotingCommand, processor: Callable[[Channel, RemotingCommand], Answer]
) -> None:
    """Calls ``processor`` again for a request whose wait has ended; sends the response, if there is one."""
    try:
        answer = processor(channel, command)
    except Exception as error:  # noqa: BLE001 - see ProcessorTable.process
        answer = error_answer(channel, command, error)
    _send(channel, command, answer)


def _result(channel: Channel, command: RemotingCommand, answered: asyncio.Future[Answer]) -> Answer:
    if answered.cancelled():
        return command.answer(ResponseCode.SERVICE_NOT_AVAILABLE, "the server is stopping")
    error = answered.exception()
    if isinstance(error, Exception):
        return error_answer(channel, command, error)
    return answered.result()


def _send(channel: Channel, command: RemotingCommand, answer: Answer) -> None:
    if answer is not None and not command.is_oneway and not channel.closed:
        try:
            frame = answer.encode()
        except FormatError as error:  # for example, the response exceeds the size limit of a frame
            frame = error_answer(channel, command, error).encode()
        channel.send(frame)
