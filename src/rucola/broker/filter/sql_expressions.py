"""Compiles the SQL92 expressions in requests. Event loop only.

An expression of 16 KiB takes a tenth of a second to compile, and a heartbeat may have a dozen of them. A request with
long expressions therefore waits until they are compiled, a few milliseconds in each turn of the event loop. One request
at a time is served in this way, and requests with the same expression share the result.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from rucola.broker.senders import Senders
from rucola.broker.shares import Shares
from rucola.errors import BrokerError, FormatError
from rucola.filter import sql
from rucola.protocol.codes import ResponseCode
from rucola.remoting.channel import Channel
from rucola.remoting.fairness.steps import at_once, in_turns
from rucola.remoting.processors import OVERLOAD

CHEAP_CHARS = 512
"""Largest total number of characters that one request may have compiled at once; this takes up to 4 ms."""
KEPT_CHARS_MAX = 1024 * 1024
"""Largest total number of characters of the expressions whose results are kept. The result of an expression takes about
a dozen times as many bytes. A request has at most 256 KiB, so the results for the one that is served next are kept.
"""
WAITING_CHARS_MAX = 1024 * 1024
"""Largest total number of characters of the requests that wait; further requests are refused. One account may have a
quarter of it, and the longest expression always; without accounts, this holds for each connection.
"""


class SqlExpressions:
    """The compiled expressions.

    Args:
        senders: returns the component that knows whose request is being served.
    """

    def __init__(self, senders: Callable[[], Senders]) -> None:
        self._senders = senders
        self._kept: OrderedDict[str, sql.SqlExpression | FormatError] = OrderedDict()
        self._kept_chars = 0
        self._waiting = Shares(WAITING_CHARS_MAX, WAITING_CHARS_MAX // 4, WAITING_CHARS_MAX // 64)
        self._one = asyncio.Lock()
        self._resuming: set[asyncio.Task[None]] = set()

    def compile(self, text: str) -> sql.SqlExpression:
        """Returns the compiled expression; compiles it now if it is not kept.

        Raises:
            FormatError: the expression cannot be compiled.
        """
        found = self._kept.get(text)
        if found is None:
            found = at_once(_compiled(text))
            self._keep(text, found)
        else:
            self._kept.move_to_end(text)
        if isinstance(found, FormatError):
            raise found.with_traceback(None)
        return found

    def must_wait(self, texts: Iterable[str]) -> bool:
        """Whether a request with these expressions must wait until they are compiled."""
        return sum(len(text) for text in set(texts) if text not in self._kept) > CHEAP_CHARS

    def compiled(
        self, channel: Channel, texts: Iterable[str], after: asyncio.Future[None] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Compiles expressions, in several turns, for the request of ``channel`` that is being served now. The request
        is then served inside the context, without a pause; otherwise ``compile`` might have to compile again.

        Args:
            after: what the request waits for first.

        Raises:
            BrokerError: SYSTEM_BUSY, too many expressions wait, or too many of the request's sender.
        """
        wanted, senders = list(dict.fromkeys(texts)), self._senders()
        owner, chars = senders.account_on(channel) or channel.remote_address, sum(map(len, wanted))
        if not self._waiting.take(owner, chars):
            raise BrokerError(ResponseCode.SYSTEM_BUSY, OVERLOAD)
        return self._compiled(wanted, after, senders.resumption(), partial(self._waiting.give_back, owner, chars))

    def start(self, channel: Channel, text: str, resume: Callable[[], None]) -> None:
        """Compiles an expression for a request of ``channel``, then calls ``resume``. The connection may have closed
        meanwhile.

        Raises:
            BrokerError: as in ``compiled``.
        """
        compiled = self.compiled(channel, [text])
        channel.owe(len(text))
        task = asyncio.get_running_loop().create_task(self._resume(channel, text, compiled, resume))
        self._resuming.add(task)
        task.add_done_callback(self._resuming.discard)

    async def close(self) -> None:
        """Ends the requests of ``start``; they get no response."""
        for task in self._resuming:
            task.cancel()
        await asyncio.gather(*self._resuming, return_exceptions=True)

    @asynccontextmanager
    async def _compiled(
        self,
        wanted: Iterable[str],
        after: asyncio.Future[None] | None,
        serve_on: Callable[[], None],
        end: Callable[[], None],
    ) -> AsyncIterator[None]:
        try:
            if after is not None:
                await asyncio.wait([after])
            async with self._one:
                for text in wanted:
                    if text in self._kept:
                        self._kept.move_to_end(text)
                    else:
                        self._keep(text, await in_turns(_compiled(text)))
                serve_on()
                yield
        finally:
            end()

    async def _resume(
        self, channel: Channel, text: str, compiled: AbstractAsyncContextManager[None], resume: Callable[[], None]
    ) -> None:
        async with compiled:
            channel.settle(len(text))
            resume()

    def _keep(self, text: str, result: sql.SqlExpression | FormatError) -> None:
        self._kept[text] = result
        self._kept_chars += len(text)
        while self._kept_chars > KEPT_CHARS_MAX and len(self._kept) > 1:
            dropped, _ = self._kept.popitem(last=False)
            self._kept_chars -= len(dropped)


def _compiled(text: str) -> sql.Steps[sql.SqlExpression | FormatError]:
    try:
        return (yield from sql.compile_steps(text))
    except FormatError as error:
        return error
