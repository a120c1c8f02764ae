"""Threads that run one at a time: at each system call a seeded choice decides which thread continues.

The interpreter releases its lock (the GIL) for every system call, so another thread may run just before or just after
the call. A thread of a simulated process may therefore pause at a system call while another thread of the process runs;
the order of the threads depends only on the seed. The threads are real, but each of them waits until the running thread
hands over to it. A paused thread keeps its locks, and a thread that waits for a lock is not chosen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

_Lock = threading.Lock


class Deadlock(AssertionError):  # noqa: N818 - the name says what was found
    """No thread can continue, because each waits for another one."""


class Dropped(BaseException):
    """Raised in the threads of a simulated process that has ended: they unwind, and nothing they do reaches the
    disk.
    """


class Task:
    """Work that one thread does from beginning to end.

    Attributes:
        name: name of the thread, for people.
        done: whether the work has ended.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.done = False
        self.work = work
        self._may_go_on: Callable[[], bool] | None = None
        self.baton = _Lock()
        self.baton.acquire()

    def wait_for(self, may_go_on: Callable[[], bool] | None) -> None:
        """Pauses the work until ``may_go_on`` returns true; None ends the pause."""
        self._may_go_on = may_go_on

    @property
    def may_go_on(self) -> bool:
        """Whether the work waits for nothing."""
        return self._may_go_on is None or self._may_go_on()


class Interleaver:
    """The threads of one process; the thread that creates the interleaver is the first.

    Attributes:
        open_to_start: returns functions, each of which starts background work that may begin now.

    Args:
        random: source of all choices.
        chance: probability that the running thread pauses for another thread at a system call.
        on_switch: called whenever the running thread pauses for another thread.
        starts_max: largest number of times that the interleaver itself starts background work (see ``open_to_start``).
    """

    def __init__(
        self, random: Random, chance: float, on_switch: Callable[[], None] | None = None, starts_max: int = 40
    ) -> None:
        self.open_to_start: Callable[[], list[Callable[[], Task]]] = list
        self._random = random
        self._chance = chance
        self._on_switch = on_switch or _nothing
        self._starts_left = starts_max
        self._first = self._current = Task("first", _nothing)
        self._tasks = [self._first]
        self._idle: list[_Thread] = []
        self._error: BaseException | None = None
        self._dropped = False

    @property
    def running(self) -> str:
        """Name of the thread that currently runs."""
        return self._current.name

    def start(self, name: str, work: Callable[[], None]) -> Task:
        """Adds a task; ``work`` begins when its thread is chosen."""
        task = Task(name, work)
        self._tasks.append(task)
        thread = self._idle.pop() if self._idle else _Thread(self)
        thread.give(task)
        return task

    def point(self) -> None:
        """Marks a point at which another thread may continue.

        Raises:
            Dropped: the process has ended.
        """
        self._check()
        if self._random.random() < self._chance:
            self._let_go_on()

    def yield_to(self, task: Task) -> None:
        """Lets ``task`` continue now, until it gives up its turn."""
        if not task.done and task.may_go_on:
            self._switch(task)

    def wait(self, may_go_on: Callable[[], bool]) -> None:
        """Pauses the running thread until ``may_go_on`` returns true.

        Raises:
            Deadlock: no thread can continue.
            Dropped: the process has ended.
        """
        me = self._current
        while not may_go_on():
            self._check()
            others = [task for task in self._tasks if task is not me and task.may_go_on]
            if not others:
                waiting = ", ".join(task.name for task in self._tasks)
                raise Deadlock(f"none of {waiting} can continue")
            me.wait_for(may_go_on)
            self._switch(self._random.choice(others))
            me.wait_for(None)

    def finish(self) -> None:
        """Runs all other threads until their tasks have ended."""
        for task in list(self._tasks):
            if task is not self._first:
                self.wait(lambda task=task: task.done)  # type: ignore[misc]

    def drop(self) -> None:
        """Ends the process; called by the first thread."""
        self._dropped = True
        for task in list(self._tasks):
            if task is not self._first and not task.done:
                task.wait_for(None)
                self._switch(task)
        for thread in self._idle:
            thread.end()
        self._idle.clear()

    def _let_go_on(self) -> None:
        me = self._current
        others = [task for task in self._tasks if task is not me and task.may_go_on]
        starts = self.open_to_start() if self._starts_left else []
        if not others and not starts:
            return
        number = self._random.randrange(len(others) + len(starts))
        if number >= len(others):
            self._starts_left -= 1
            others.append(starts[number - len(others)]())
            number = -1
        self._switch(others[number])

    def _switch(self, task: Task) -> None:
        me = self._current
        self._on_switch()
        self._hand_to(task)
        me.baton.acquire()
        self._check()

    def _hand_to(self, task: Task) -> None:
        self._current = task
        task.baton.release()

    def _check(self) -> None:
        if self._dropped and self._current is not self._first:
            raise Dropped
        if self._error is not None and self._current is self._first:
            error, self._error = self._error, None
            raise error

    def _ended(self, thread: _Thread, task: Task, error: BaseException | None) -> None:
        """Lets another thread continue (after an error: the first thread). Called in the thread of ``task``."""
        task.done = True
        self._tasks.remove(task)
        self._idle.append(thread)
        if error is not None and not self._dropped:
            self._error = self._error or error
        if error is not None or self._dropped:
            following = self._first
        else:
            others = [other for other in self._tasks if other.may_go_on]
            if others:
                following = self._random.choice(others)
            else:
                following = self._first
                self._error = Deadlock(f"none of {', '.join(task.name for task in self._tasks)} can continue")
        self._hand_to(following)


class _Thread:
    """A thread that runs one task after another."""

    def __init__(self, interleaver: Interleaver) -> None:
        self._interleaver = interleaver
        self._task: Task | None = None
        self._given = _Lock()
        self._given.acquire()
        threading.Thread(target=self._run, daemon=True).start()

    def give(self, task: Task) -> None:
        """Sets the next task, which begins when the running thread hands over to this thread."""
        self._task = task
        self._given.release()

    def end(self) -> None:
        """Ends the thread instead of giving it a task."""
        self._task = None
        self._given.release()

    def _run(self) -> None:
        while True:
            self._given.acquire()
            task, self._task = self._task, None
            if task is None:
                return
            task.baton.acquire()
            error: BaseException | None = None
            try:
                self._interleaver._check()
                task.work()
            except Dropped:
                pass
            except BaseException as caught:  # noqa: BLE001 - told to the first thread
                error = caught
            self._interleaver._ended(self, task, error)


class InterleavedLock:
    """A ``threading.Lock`` for the threads of an ``Interleaver``."""

    def __init__(self, interleaver: Interleaver) -> None:
        self._interleaver = interleaver
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """``threading.Lock.acquire``; the timeout never expires."""
        if self._held:
            if not blocking:
                return False
            self._interleaver.wait(lambda: not self._held)
        self._held = True
        return True

    def release(self) -> None:
        """``threading.Lock.release``."""
        self._held = False

    def locked(self) -> bool:
        """``threading.Lock.locked``."""
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _nothing() -> None:
    """Does nothing: the default of ``on_switch``, and a placeholder for the work of the first thread, which the
    interleaver does not start.
    """
