"""Owns the background tasks of a client, so that none of them ends in silence.

An exception that a task does not handle itself is logged as an ERROR with the name of the task, and counted. A task
that must go on is started again after a pause: 1 s, then twice as long after each further failure, up to 60 s. If the
task has run for longer than the pause before it, the next pause is 1 s again. The pauses pass on the event loop's
clock.

A task that somebody else cancels is started again, too: only ``ClientTasks.stop`` ends it. The tasks that
``asyncio.run`` cancels at its end do not start again, because their loop is closed before the pause is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rucola.client.application_call import is_failed_call
from rucola.errors import ClientError
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STUBBORN_S = 5.0
"""How long ``ClientTasks.stop`` waits for tasks that it has cancelled, in seconds."""

Work = Callable[[], Awaitable[object]]
"""The work of a background task; called again after a failure."""


class ClientTasks:
    """The background tasks of one client, or of a part of it. May be used on only one event loop.

    Args:
        owner: name of the client in log lines: its group or client id.

    Attributes:
        failures: number of failures by the name of the task.
    """

    def __init__(self, owner: str = "") -> None:
        self.failures: Counter[str] = Counter()
        self._owner = owner
        self._tasks: set[asyncio.Task[None]] = set()
        self._restarts: set[asyncio.TimerHandle] = set()
        self._stopped = False

    def forever(self, name: str, work: Work) -> None:
        """Starts ``work``, which runs until it is cancelled; starts it again after a failure. Does nothing after
        ``stop``.
        """
        if self._stopped:
            return
        task = self._start(name, self._repeat(name, work))
        task.add_done_callback(lambda done: self._ended(name, work, done))

    def until_cancelled(self, name: str, work: Work) -> asyncio.Task[None]:
        """Starts ``work``, which runs until it returns or the returned task is cancelled; starts it again after a
        failure.

        Raises:
            ClientError: ``stop`` was called.
        """
        if self._stopped:
            raise ClientError(f"{name}: {self._owner} is shut down")
        return self._start(name, self._repeat(name, work))

    def periodic(self, name: str, work: Work, interval_s: float) -> Periodic:
        """Calls ``work`` every ``interval_s`` seconds, and whenever ``Periodic.soon`` was called."""
        rounds = Periodic(work, interval_s)
        self.forever(name, rounds.run)
        return rounds

    def once(self, name: str, work: Coroutine[Any, Any, object]) -> None:
        """Starts ``work``, which ends by itself; logs its failure. Does nothing after ``stop``."""
        if self._stopped:
            work.close()
        else:
            task = self._start(name, self._watch(name, work))
            task.add_done_callback(lambda _: work.close())  # a task that is cancelled before it runs leaves it unused

    async def stop(self, timeout_s: float = 0.0) -> None:
        """Ends all tasks, and waits for their end. The task that calls ``stop`` may be one of them: it goes on.

        Args:
            timeout_s: how long the tasks may take to end by themselves before they are cancelled.
        """
        self._stopped = True
        for handle in self._restarts:
            handle.cancel()
        self._restarts.clear()
        ending = self._tasks - {asyncio.current_task()}
        try:
            if ending and timeout_s > 0:
                await asyncio.wait(ending, timeout=timeout_s)
        finally:
            for task in ending:
                task.cancel()
        if ending:
            _, left = await asyncio.wait(ending, timeout=STUBBORN_S)
            if left:
                names = sorted({task.get_name() for task in left})
                event(logger, logging.ERROR, "background tasks ignore that they are cancelled", tasks=names)

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=f"rucola: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _ended(self, name: str, work: Work, task: asyncio.Task[None]) -> None:
        """Starts a task again that was cancelled, or that Ctrl-C has ended, unless ``stop`` was called."""
        if self._stopped or not (task.cancelled() or task.exception() is not None):
            return

        def again() -> None:
            self._restarts.discard(handle)
            event(logger, logging.WARNING, "background task was cancelled, starts again", task=name, owner=self._owner)
            self.forever(name, work)

        handle = task.get_loop().call_later(FIRST_PAUSE_S, again)
        self._restarts.add(handle)

    async def _repeat(self, name: str, work: Work) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        pause_s = 0.0
        while True:
            began = loop.time()
            try:
                await work()
                return
            except BaseException as error:
                if not is_failed_call(error, task, stopping=self._stopped):
                    raise
                lasted = loop.time() - began > pause_s
                pause_s = FIRST_PAUSE_S if lasted else min(2 * pause_s, LONGEST_PAUSE_S)
                self._failed(name, error, pause_s)
            if task is not None and task.cancelling():
                raise asyncio.CancelledError  # the work has swallowed it
            await asyncio.sleep(pause_s)

    async def _watch(self, name: str, work: Awaitable[object]) -> None:
        task = asyncio.current_task()
        try:
            await work
        except BaseException as error:
            if not is_failed_call(error, task, stopping=self._stopped):
                raise
            self._failed(name, error)

    def _failed(self, name: str, error: BaseException, again_in_s: float | None = None) -> None:
        self.failures[name] += 1
        about = {"task": name, "owner": self._owner, "failures": self.failures[name], "again_in_s": again_in_s}
        event(logger, logging.ERROR, "background task failed", error, **about)


class Periodic:
    """Rounds of work at intervals. A round that failed is due at once when ``run`` is called again.

    Args:
        work: one round.
        interval_s: from the end of a round to the next one.
    """

    def __init__(self, work: Work, interval_s: float) -> None:
        self._work = work
        self._interval_s = interval_s
        self._wanted = asyncio.Event()
        self._due = False

    def soon(self) -> None:
        """Starts a round as soon as possible; if one is running, the next one follows at once."""
        self._wanted.set()

    async def run(self) -> None:
        """Runs rounds until it is cancelled or a round fails."""
        while True:
            if not self._due:
                try:
                    async with asyncio.timeout(self._interval_s):
                        await self._wanted.wait()
                except TimeoutError:
                    pass
            self._due = True
            self._wanted.clear()
            await self._work()
            self._due = False
