"""Messages of a producer that wait until a broker is the master of their queue. Event loop only.

One task fetches the routes of their topics. All messages look again when a route has changed: a message costs nothing
while it waits but a timer for its own time-out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from rucola.client.pending_send import PendingSend
from rucola.client.route import RouteTable
from rucola.errors import ClientError, RucolaError

_PAUSE_S = 0.1
"""Pause between two looks at the routes, in seconds."""


class _Waiting(NamedTuple):
    """Why a message waits: the error with which it ends, and the timer that ends it."""

    error: RucolaError
    timer: asyncio.TimerHandle


class MasterWait:
    """The messages that wait.

    Args:
        routes: the routes of the client.
        keep: runs a coroutine in the background.
        refresh_soon: begins to fetch the route of a topic, unless that was done a moment ago.
        finished: called with a message that was cancelled while it waited.
    """

    def __init__(
        self,
        routes: RouteTable,
        keep: Callable[[Coroutine[Any, Any, object]], None],
        refresh_soon: Callable[[str], None],
        finished: Callable[[PendingSend], None],
    ) -> None:
        self._routes, self._keep = routes, keep
        self._refresh_soon, self._finished = refresh_soon, finished
        self._waiting: dict[PendingSend, _Waiting] = {}
        self._is_looking = False

    def add(self, send: PendingSend, error: RucolaError) -> None:
        """Makes ``send`` wait. It ends with ``error`` if its time is up before there is a master."""
        timer = send.future.get_loop().call_at(send.expires_at, self._expire, send)
        self._waiting[send] = _Waiting(error, timer)
        if not self._is_looking:
            self._is_looking = True
            # What changes from now on counts, also before the task begins.
            self._keep(self._look(self._routes.version))

    def fail_all(self, error_of: Callable[[str], RucolaError]) -> None:
        """Ends all messages with the error that ``error_of`` makes for their topic."""
        for send, one in self._take_all().items():
            one.timer.cancel()
            send.fail(error_of(send.topic))

    async def _look(self, version: int) -> None:
        try:
            while self._waiting:
                for topic in {send.topic for send in self._waiting}:
                    self._refresh_soon(topic)
                await asyncio.sleep(_PAUSE_S)
                self._drop_cancelled()
                if self._routes.version != version:
                    version = self._routes.version
                    self._send_all()
        finally:
            self._is_looking = False

    def _send_all(self) -> None:
        """Lets all messages look for a master; those without one wait again. KeyboardInterrupt in the queue selector
        of one message must not keep the others waiting; it is raised afterwards.
        """
        interrupt: BaseException | None = None
        for send, one in self._take_all().items():
            one.timer.cancel()
            try:
                send.again(one.error)
            except BaseException as error:  # noqa: BLE001 - raised again below
                send.fail(ClientError(f"the queue selector for topic {send.topic} was interrupted"))
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _drop_cancelled(self) -> None:
        for send in [send for send in self._waiting if send.future.done()]:
            self._waiting.pop(send).timer.cancel()
            self._finished(send)

    def _expire(self, send: PendingSend) -> None:
        send.fail(self._waiting.pop(send).error)

    def _take_all(self) -> dict[PendingSend, _Waiting]:
        taken, self._waiting = self._waiting, {}
        return taken
