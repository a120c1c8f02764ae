"""asyncio's event loop of one simulated process: it runs when a test says so, and its time is the test's clock.

Coroutines and tasks of servers and clients run on it unchanged. Their connections are those of a ``SimulatedNetwork``.
What would run in a thread runs in the next iteration instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from rucola.testing.clock import ManualClock

if TYPE_CHECKING:
    from rucola.testing.simulated_network import SimulatedNetwork, SimulatedServer, SimulatedTransport

T = TypeVar("T")
_ITERATIONS_MAX = 10_000
_EARLY_S = 1e-6
"""Timers that are due so soon count as due: the clock counts whole milliseconds."""


class _NoSelector:
    """Waits for nothing."""

    def select(self, timeout: float | None) -> list[Any]:
        return []


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of a process, which lives until ``kill``.

    Attributes:
        host: name of the process on the network.
        alive: whether the process runs.
        unhandled: errors that no code has handled.

    Args:
        clock: the time.
        network: the network.
    """

    _ready: Any
    _scheduled: Any
    _run_once: Callable[[], None]

    def __init__(self, host: str, clock: ManualClock, network: SimulatedNetwork) -> None:
        super().__init__()
        self._selector = _NoSelector()
        self._clock_resolution = _EARLY_S
        self._clock_of_test = clock
        self._network = network
        self.host = host
        self.alive = True
        self.unhandled: list[str] = []

    # -- for the test --------------------------------------------------------------------------------------------------

    def run_due(self, iterations: int = _ITERATIONS_MAX) -> None:
        """Runs what is due, at most so many iterations.

        Raises:
            RuntimeError: the process does not come to rest.
        """
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            for _ in range(iterations):
                if not self.is_due:
                    return
                self._run_once()
        finally:
            asyncio._set_running_loop(before)
        if iterations == _ITERATIONS_MAX:
            raise RuntimeError(f"{self.host} has done something in {iterations} iterations in a row")

    def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs ``work``, which needs nobody else, to its end; returns its result.

        Raises:
            RuntimeError: it waits for something.
        """
        task = self.create_task(work)
        self.run_due()
        if not task.done():
            raise RuntimeError(f"{self.host} waits for something: {task}")
        return task.result()

    @property
    def is_due(self) -> bool:
        """Whether something can run now."""
        return bool(self._ready) or self.next_s <= self.time() + _EARLY_S

    @property
    def next_s(self) -> float:
        """The loop's time at which the next timer is due; infinite if there is none."""
        return min((call.when() for call in self._scheduled if not call.cancelled()), default=inf)

    def kill(self) -> None:
        """Ends the process between two callbacks. Its tasks end, and nothing else runs any more."""
        if not self.alive:
            return
        self.alive = False
        self._network.died(self)
        self._keep_tasks()
        tasks = asyncio.all_tasks(self)
        for task in tasks:
            task.cancel()
        for _ in range(100):
            if all(task.done() for task in tasks):
                break
            self._scheduled.clear()
            self.run_due(1)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # otherwise asyncio says that nobody has looked
        self.close()

    # -- asyncio -------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds of the test's clock."""
        return self._clock_of_test.monotonic()

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Runs ``func`` in the next iteration."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
                future.set_exception(error)

        self.call_soon(work)
        return future

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: object
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Connects to a server of the network."""
        return await self._network.connect(self, protocol_factory, (host, port))

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **_: object
    ) -> SimulatedServer:
        """Listens on the network."""
        return self._network.listen(self, protocol_factory, (host, port))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keeps errors of a living process for the test."""
        if self.alive:
            self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nothing sleeps that would have to be woken."""

    def _keep_tasks(self) -> None:
        """Drops all callbacks but the steps of tasks, which only end now."""
        steps = [call for call in self._ready if isinstance(getattr(call._callback, "__self__", None), asyncio.Future)]
        self._ready.clear()
        self._ready.extend(steps)
        self._scheduled.clear()
