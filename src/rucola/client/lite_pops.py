"""The pops of a lite consumer: at each broker of the parent one at a time, for all lite topics together.

A pop that waits at a broker cannot be taken back. So it goes on until its time is over, and the messages that it brings
meanwhile are taken, or returned to the group. Used on one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import partial

from rucola.client.client_tasks import ClientTasks
from rucola.client.consumer_config import LiteConsumerConfig
from rucola.client.instance import ClientInstance
from rucola.client.lite_process_queue import LiteReceipt, LiteRoom
from rucola.client.lite_requests import LiteRequests
from rucola.client.pop_service import is_final
from rucola.common.message import MessageExt
from rucola.errors import RemotingError, RucolaError
from rucola.runtime.logs import Recurring, event

logger = logging.getLogger(__name__)

_REST_S = 0.1
"""A pop that ends without messages, and this much before its time, is followed by a pause."""
_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0
"""Pause after the first failed or cut pop in seconds, doubled after each further one; longest pause."""

Take = Callable[[str, LiteReceipt, Sequence[MessageExt]], None]


class LitePops:
    """Pops for one consumer.

    Args:
        instance: the client.
        requests: sends the requests.
        config: settings of the consumer.
        room: the room for messages.
        take: called with broker name, lease and messages of a pop.
        brokers: returns the names of the brokers to pop from.
    """

    def __init__(
        self,
        instance: ClientInstance,
        requests: LiteRequests,
        config: LiteConsumerConfig,
        room: LiteRoom,
        take: Take,
        brokers: Callable[[], Sequence[str]],
    ) -> None:
        self._instance, self._requests, self._config = instance, requests, config
        self._room, self._take, self._brokers = room, take, brokers
        self._running: set[str] = set()
        self._attempts = itertools.count()
        self._failures = Recurring()
        self._tasks = ClientTasks(requests.group)
        self._has_started = self._has_ended = False

    async def check(self) -> None:
        """Pops once from each broker, without a wait, to learn whether parent and group can be used.

        Raises:
            BrokerError, ClientError: a broker refuses for good, or has no such parent or group.
        """
        pops = [self._pop(broker, self._attempt_id(), 0) for broker in self._brokers()]
        for error in await asyncio.gather(*pops, return_exceptions=True):
            if isinstance(error, RemotingError):
                event(logger, logging.INFO, "broker does not respond", group=self._requests.group, error=error)
            elif isinstance(error, BaseException):
                raise error

    def start(self) -> None:
        """Begins to pop."""
        self._has_started = True
        self.route_changed()

    def route_changed(self) -> None:
        """Begins to pop from brokers that are new in the route; pops from others end when their time is over."""
        if not self._has_started or self._has_ended:
            return
        for broker in self._brokers():
            if broker not in self._running:
                self._running.add(broker)
                self._tasks.forever(f"pops from {broker}", partial(self._pop_forever, broker))

    def end(self) -> None:
        """Begins no further pop; ``stop`` follows."""
        self._has_ended = True

    async def stop(self) -> None:
        """Leaves the pops that still wait at brokers."""
        self._has_ended = True
        await self._tasks.stop()

    async def _pop_forever(self, broker_name: str) -> None:
        pause_s, attempt_id = 0.0, self._attempt_id()
        loop, poll_ms = asyncio.get_running_loop(), self._config.broker_suspend_max_time_ms
        while not self._has_ended and broker_name in self._brokers():
            await self._room.wait()
            began = loop.time()
            try:
                has_messages = await self._pop(broker_name, attempt_id, poll_ms)
            except RucolaError as error:
                count = self._failures.note(broker_name, error)
                if count:
                    about = {"broker": broker_name, "group": self._requests.group, "count": count}
                    level = logging.ERROR if is_final(error) else logging.WARNING
                    event(logger, level, "pop of lite topics failed", error=error, **about)
                await self._refresh()
                pause_s = _longer(pause_s)
            else:
                self._failures.end(broker_name)
                attempt_id = self._attempt_id()  # an answer that was lost is asked for again with the old one
                is_cut = not has_messages and loop.time() - began < poll_ms / 1000 - _REST_S
                pause_s = _longer(pause_s) if is_cut else 0.0
            if pause_s:
                await asyncio.sleep(pause_s)
        self._running.discard(broker_name)

    async def _pop(self, broker_name: str, attempt_id: str, poll_ms: int) -> bool:
        """Pops once; returns whether there were messages."""
        config = self._config
        count = max(min(config.pop_batch_nums, self._room.left), 1)
        receipt, messages = await self._requests.pop(
            broker_name, count, config.invisible_duration_ms, poll_ms, attempt_id
        )
        if messages:
            self._take(broker_name, receipt, messages)
        return bool(messages)

    async def _refresh(self) -> None:
        """Fetches the route, in which the broker may have another address, or be missing."""
        parent, routes = self._requests.parent, self._instance.routes
        if routes.refresh_wanted(parent):
            try:
                await routes.refresh(parent)
            except RucolaError as error:
                event(logger, logging.DEBUG, "route not refreshed", topic=parent, error=error)

    def _attempt_id(self) -> str:
        return f"{self._requests.client_id}-{next(self._attempts)}"


def _longer(pause_s: float) -> float:
    return min(max(2 * pause_s, _PAUSE_S), _PAUSE_MAX_S)
