"""Parses long JSON bodies in a thread: 256 KiB of the slowest kind take most of a second.

One thread serves all connections: the interpreter runs only one thread at a time, and each further thread would take
time from the event loop. Event loop only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rucola.errors import BrokerError
from rucola.protocol.codes import RequestCode, ResponseCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.fastjson import ReadBody
from rucola.remoting.fairness.resumed import Resumed

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

SHORT_BYTES = 8 * 1024
"""Longest body that is parsed on the event loop; parsing it takes at most 20 ms."""
WAITING_BYTES_MAX = 32 * 1024 * 1024
"""Largest total size in bytes of the bodies that wait to be parsed or served; further requests are refused."""
AHEAD_MAX = 4
"""Largest total number of bodies that wait in the thread's queue, are being parsed, or are parsed but not yet served.
A parsed body takes ten times as much memory as its JSON text.
"""
JSON_CODES = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.LITE_SUBSCRIPTION_CTL,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.QUERY_DATA_VERSION,
    }
)
"""Requests with JSON bodies. Registrations of brokers are not listed: the name server parses them itself."""


def is_long(command: RemotingCommand) -> bool:
    """Whether the body of ``command`` is JSON that must be parsed in the thread before the request is served."""
    return len(command.body) > SHORT_BYTES and command.code in JSON_CODES and type(command.body) is not ReadBody


class JsonBodies:
    """The thread that parses long JSON bodies, and the requests whose bodies wait for this thread."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._waiting_bytes = 0
        self._resumed = Resumed()
        self._ahead = asyncio.Semaphore(AHEAD_MAX)

    async def read(self, command: RemotingCommand) -> None:
        """Replaces the body of ``command`` by its parsed form, and waits until the request may be served. Several
        bodies may be parsed during one turn of the event loop, but at most ``turn.RESUMED_A_TURN`` calls of ``read``
        return in each turn.

        Raises:
            BrokerError: SYSTEM_BUSY, because too many bodies wait.
            FormatError: the body is not valid JSON.
        """
        size = len(command.body)
        if self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY, f"more than {WAITING_BYTES_MAX} bytes of bodies wait to be parsed"
            )
        if self._thread is None:
            # Imported with the first long body, because many servers never get one.
            from concurrent.futures import ThreadPoolExecutor

            self._thread = ThreadPoolExecutor(1, "rucola-json")
        self._waiting_bytes += size
        try:
            async with self._ahead:
                loop = asyncio.get_running_loop()
                command.body = await loop.run_in_executor(self._thread, ReadBody, command.body)
                await self._resumed.turn()
        finally:
            self._waiting_bytes -= size

    def close(self) -> None:
        """Ends the thread. Waiting bodies are not parsed."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
