"""Responses that contain a whole table, such as the configurations of all topics. A thread encodes them, because the
time grows with the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.fairness.turn import ANSWER_BYTES
from rucola.remoting.processors import Answer

Encode = Callable[[], bytes]
"""Encodes a copy of a table; runs in a thread."""
_Waiting = list[tuple[RemotingCommand, asyncio.Future[Answer]]]


class WholeTable:
    """Answers requests for one table. Event loop only.

    Requests that arrive while a copy is being encoded share the next copy, because the table may have changed in the
    meantime.

    Args:
        copy: copies the table and returns the function that encodes the copy.
        version: the table's version; the encoded table is kept until the version changes. None if some changes leave
            the version as it is, so that the encoded table must not be kept.
    """

    def __init__(self, copy: Callable[[], Encode], version: Callable[[], object] | None = None) -> None:
        self._copy = copy
        self._version = version
        self._kept: tuple[object, bytes] | None = None
        self._waiting: _Waiting = []
        self._encoding: asyncio.Task[None] | None = None

    def answer(self, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Answers ``command`` with the table as it is now, or with a later state."""
        if self._kept is not None and self._version is not None and self._version() == self._kept[0]:
            return command.answer(ResponseCode.SUCCESS, body=self._kept[1])
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((command, future))
        if self._encoding is None:
            self._encoding = loop.create_task(self._encode())
        return future

    async def _encode(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                version = self._version() if self._version is not None else None
                try:
                    text = await asyncio.to_thread(self._copy())
                except Exception as error:  # noqa: BLE001 - the requests end with the error
                    _fail(waiting, error)
                    continue
                if self._version is not None:
                    self._kept = version, text
                await _answer(waiting, text)
        finally:
            self._encoding = None


async def _answer(waiting: _Waiting, text: bytes) -> None:
    """Answers the requests; lets the event loop do other work whenever more than ``ANSWER_BYTES`` were answered."""
    gathered = 0
    for command, future in waiting:
        if not future.done():  # cancelled meanwhile
            future.set_result(command.answer(ResponseCode.SUCCESS, body=text))
            gathered += len(text)
        if gathered > ANSWER_BYTES:
            gathered = 0
            await asyncio.sleep(0)


def _fail(waiting: _Waiting, error: Exception) -> None:
    for _, future in waiting:
        if not future.done():
            future.set_exception(error)
