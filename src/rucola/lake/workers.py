"""Who does the work of a job: this process, or whatever runs ``Workers``, such as Spark's executors."""

from __future__ import annotations

from collections.abc import Callable

Task = Callable[[int], str]
"""Runs the task with the given number; returns its result. A task may run several times, even in parallel."""
Workers = Callable[[Task, int], list[str]]
"""Runs the tasks 0 to the given number - 1; returns their results in order. The task may be pickled, with everything
that it refers to.
"""


def run_here(task: Task, count: int) -> list[str]:
    """Runs the tasks one after another in this process; a ``Workers``."""
    return [task(number) for number in range(count)]
