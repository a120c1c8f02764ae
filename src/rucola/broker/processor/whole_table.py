"""Responses that contain a whole table, such as the configurations of all topics. A thread encodes them, because the
time grows with the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rucola.protocol.codes import ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.processors import Answer

Encode = Callable[[], bytes]
"""Encodes a copy of a table; runs in a thread."""


class WholeTable:
    """Answers requests for one table. Event loop only.

    Requests that arrive during an encoding share the next one, because the table may have changed since the copy.

    Args:
        copy: copies the table and returns the function that encodes the copy.
        version: the table's version; while it is the same, the encoded table is kept. None: the table has no version
            that all changes raise.
    """

    def __init__(self, copy: Callable[[], Encode], version: Callable[[], object] | None = None) -> None:
        self._copy = copy
        self._version = version
        self._one = asyncio.Lock()
        self._copies = 0
        self._waiting = 0
        self._kept: tuple[object, bytes] | None = None

    def answer(self, command: RemotingCommand) -> Answer | Awaitable[Answer]:
        """Answers ``command`` with the table as it is now, or with a later state."""
        if self._kept is not None and self._is_same(self._kept[0]):
            return command.answer(ResponseCode.SUCCESS, body=self._kept[1])
        return self._when_encoded(command, self._copies)

    async def _when_encoded(self, command: RemotingCommand, copies_before: int) -> RemotingCommand:
        self._waiting += 1
        try:
            async with self._one:
                if self._kept is None or (self._copies == copies_before and not self._is_same(self._kept[0])):
                    self._kept = await self._encoded()
                return command.answer(ResponseCode.SUCCESS, body=self._kept[1])
        finally:
            self._waiting -= 1
            if not self._waiting and self._version is None:
                self._kept = None

    async def _encoded(self) -> tuple[object, bytes]:
        version = self._version() if self._version is not None else None
        self._copies += 1
        encode = self._copy()
        return version, await asyncio.to_thread(encode)

    def _is_same(self, version: object) -> bool:
        return self._version is not None and self._version() == version
