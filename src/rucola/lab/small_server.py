"""A small server over the real store. It answers a request at once, holds it, or pushes messages as they arrive."""

from __future__ import annotations

import asyncio
from struct import Struct

from rucola.common.message import StoreMessage
from rucola.lab.engine import HOST, TOPIC
from rucola.store.message_store import MessageStore

REQUEST, ANSWER = Struct(">cq"), Struct(">iq")
"""Request: kind of reading and queue offset. Answer: size of the records that follow, and next queue offset."""
SHORT, LONG, PUSH = b"s", b"l", b"p"


class SmallServer:
    """Serves one queue.

    Attributes:
        asked: gets an entry for each request.
    """

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.asked: list[int] = []
        self._held: dict[asyncio.StreamWriter, int] = {}
        self._pushed: dict[asyncio.StreamWriter, int] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        while data := await reader.read(REQUEST.size):
            how, queue_offset = REQUEST.unpack(data)
            self.asked.append(1)
            if how == PUSH:
                self._pushed[writer] = queue_offset
            elif how == LONG and queue_offset >= self.store.max_queue_offset(TOPIC, 0):
                self._held[writer] = queue_offset
            else:
                self._answer(writer, queue_offset)
        self._pushed.pop(writer, None)
        self._held.pop(writer, None)
        writer.close()

    async def append(self, body: bytes) -> None:
        """Appends a message, then sends it to the readers that wait for it."""
        self.store.put_message(StoreMessage(TOPIC, 0, body, b"", 0, HOST))
        self.store.dispatch()
        held, self._held = self._held, {}
        for writer, queue_offset in held.items():
            self._answer(writer, queue_offset)
        for writer, queue_offset in self._pushed.items():
            self._pushed[writer] = self._answer(writer, queue_offset)

    def _answer(self, writer: asyncio.StreamWriter, queue_offset: int) -> int:
        result = self.store.get_message(TOPIC, 0, queue_offset, 32, 1 << 20)
        records = b"".join(result.views)
        writer.write(ANSWER.pack(len(records), result.next_offset) + records)
        return result.next_offset
