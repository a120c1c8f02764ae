"""Threads of which one runs at a time: at each call to the system a seed says which of them goes on.

The interpreter lets other threads go on wherever the lock is released, which every call to the system does, before the
call and after it. So the threads of a simulated process stand at such calls while another one runs, in an order that is
the same for the same seed. They are real threads that hand on one baton; locks that the code holds are kept, and a
thread that waits for one is not chosen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

_Lock = threading.Lock


class Deadlock(AssertionError):  # noqa: N818 - reads as what was found
    """Every thread waits for another one."""


class Dropped(BaseException):
    """The process is gone; its threads unwind, and nothing of what they still do reaches the disk."""


class Task:
    """Something that a thread does, from its begin to its end.

    Attributes:
        name: of the thread, for people.
        done: it has ended.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self.done = False
        self.work = work
        self.may_go_on: Callable[[], bool] | None = None
        self.baton = _Lock()
        self.baton.acquire()


class Interleaver:
    """The threads of one process; the one that makes it is the first of them.

    Attributes:
        open_to_start: says which work may begin by itself now: name and what to call.

    Args:
        random: makes all choices.
        chance: of another thread to go on, at each call to the system.
        on_switch: called whenever another one goes on.
        starts_max: so many pieces of work begin by themselves.
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
        """Name of the thread that runs."""
        return self._current.name

    def start(self, name: str, work: Callable[[], None]) -> Task:
        """``work`` begins when its thread is chosen."""
        task = Task(name, work)
        self._tasks.append(task)
        thread = self._idle.pop() if self._idle else _Thread(self)
        thread.give(task)
        return task

    def point(self) -> None:
        """Here another thread may go on.

        Raises:
            Dropped: the process is gone.
        """
        self._check()
        if self._random.random() < self._chance:
            self._let_go_on()

    def yield_to(self, task: Task) -> None:
        """``task`` goes on now, until it lets another one."""
        if not task.done and self._may(task):
            self._switch(task)

    def wait(self, may_go_on: Callable[[], bool]) -> None:
        """The running thread goes on when ``may_go_on``.

        Raises:
            Deadlock: no thread can go on.
            Dropped: the process is gone.
        """
        me = self._current
        while not may_go_on():
            self._check()
            others = [task for task in self._tasks if task is not me and self._may(task)]
            if not others:
                waiting = ", ".join(task.name for task in self._tasks)
                raise Deadlock(f"none of {waiting} can go on")
            me.may_go_on = may_go_on
            self._switch(self._random.choice(others))
            me.may_go_on = None

    def finish(self) -> None:
        """All other threads go on until they have done what they do."""
        for task in list(self._tasks):
            if task is not self._first:
                self.wait(lambda task=task: task.done)  # type: ignore[misc]

    def drop(self) -> None:
        """The process ends here; called by the first thread."""
        self._dropped = True
        for task in list(self._tasks):
            if task is not self._first and not task.done:
                task.may_go_on = None
                self._switch(task)
        for thread in self._idle:
            thread.end()
        self._idle.clear()

    def _let_go_on(self) -> None:
        me = self._current
        others = [task for task in self._tasks if task is not me and self._may(task)]
        starts = self.open_to_start() if self._starts_left else []
        if not others and not starts:
            return
        number = self._random.randrange(len(others) + len(starts))
        if number >= len(others):
            self._starts_left -= 1
            others.append(starts[number - len(others)]())
            number = -1
        self._switch(others[number])

    def _may(self, task: Task) -> bool:
        return task.may_go_on is None or task.may_go_on()

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
        """In the thread of ``task``: somebody else goes on; at once the first thread, when there was an error."""
        task.done = True
        self._tasks.remove(task)
        self._idle.append(thread)
        if error is not None and not self._dropped:
            self._error = self._error or error
        if error is not None or self._dropped:
            following = self._first
        else:
            others = [other for other in self._tasks if self._may(other)]
            if others:
                following = self._random.choice(others)
            else:
                following = self._first
                self._error = Deadlock(f"none of {', '.join(task.name for task in self._tasks)} can go on")
        self._hand_to(following)


class _Thread:
    """Does one task after the other."""

    def __init__(self, interleaver: Interleaver) -> None:
        self._interleaver = interleaver
        self._task: Task | None = None
        self._given = _Lock()
        self._given.acquire()
        threading.Thread(target=self._run, daemon=True).start()

    def give(self, task: Task) -> None:
        """The next task; it begins with its baton."""
        self._task = task
        self._given.release()

    def end(self) -> None:
        """No task follows."""
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
    """``threading.Lock`` among the threads of an ``Interleaver``."""

    def __init__(self, interleaver: Interleaver) -> None:
        self._interleaver = interleaver
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As of a lock; ``timeout`` never comes."""
        if self._held:
            if not blocking:
                return False
            self._interleaver.wait(lambda: not self._held)
        self._held = True
        return True

    def release(self) -> None:
        """As of a lock."""
        self._held = False

    def locked(self) -> bool:
        """As of a lock."""
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _nothing() -> None:
    """The first thread does what its caller says."""
