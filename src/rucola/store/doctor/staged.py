"""Runs work in phases of independent tasks. The results lie in a staging directory that all machines can access.

A task may run several times. The names of the files that an attempt writes contain the name of the attempt, so attempts
that run at the same time need different names. The file written last, ``PHASE-NUMBER.ATTEMPT.json``, describes the
result. All attempts at a task write the same bytes, so any result may be used: retries and speculative copies do no
harm. When work is started again, finished tasks are skipped, if their results are still whole (``staged_result``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from rucola.errors import StoreDamagedError
from rucola.formats.config_json import UNREADABLE_JSON
from rucola.runtime.files import Files
from rucola.store.doctor.staged_result import is_whole, read_result, write_result

TaskFunction = Callable[[Files, str, str, int, str], dict[str, Any]]
"""Does one task, and returns what describes its result: takes the phase, the path of the staging directory, the number
of the task and the name of the attempt, with which the names of all files that it writes begin. A function of a module,
so that it can be sent to other processes.
"""


class Phase(NamedTuple):
    """Independent tasks of one kind. Any process may run them, on any machine that can access the staging directory and
    the tasks' files.

    Attributes:
        name: the phase.
        staging: path of the staging directory.
        task: does a task.
    """

    name: str
    staging: str
    task: TaskFunction

    def run(self, number: int, attempt: str) -> None:
        """Runs one task.

        Args:
            attempt: the name of this attempt: letters, digits, ``-`` and ``_``. Another attempt at the same task may
                have this name only if it has ended.

        Raises:
            StoreDamagedError: a log is damaged.
            DiskError: a file cannot be read or written.
        """
        files, name = Files(), f"{self.name}-{number}.{attempt}"
        files.hold(self.staging)
        write_result(files, self.staging, name, self.task(files, self.name, self.staging, number, name))


Runner = Callable[[Phase, Sequence[int], Callable[[], None]], None]
"""Runs tasks of a phase: takes the phase, the numbers of the tasks, and a function to call from time to time. Calls
``Phase.run`` for each number; must not return before each task has succeeded at least once.
"""
Progress = Callable[[str, int, int], None]
"""Called with the phase, the number of tasks done and the number of all tasks."""


def run_serially(phase: Phase, numbers: Sequence[int], look: Callable[[], None]) -> None:
    """Runs tasks one after another in this process; a ``Runner``."""
    for number in numbers:
        phase.run(number, "local")
        look()


class Staged:
    """A staging directory.

    Args:
        files: access to the disk.
        path: path of the staging directory.
        task: does a task.
        run: runs the tasks.
        progress: called whenever tasks have ended.

    Attributes:
        resumed: number of tasks whose results existed already.
    """

    def __init__(self, files: Files, path: str, task: TaskFunction, run: Runner, progress: Progress) -> None:
        self.path = path
        self.resumed = 0
        self._files = files
        self._task = task
        self._run_tasks = run
        self._progress = progress

    def prepare(self, job: str, is_stale: bool = False) -> None:
        """Creates the directory; keeps the results of interrupted work on the same job, unless they are stale."""
        files, path, text = self._files, f"{self.path}/job.json", job.encode()
        if is_stale or files.read_file(path) != text:
            self.clear()
            files.make_directory(self.path)
            files.replace_file(path, text)

    def clear(self) -> None:
        """Removes the directory. The job's file is removed first, because no remaining result is used without it."""
        path = f"{self.path}/job.json"
        if self._files.exists(path):
            self._files.remove(path)
            self._files.sync_directory(self.path)
        self._files.remove_tree(self.path)

    @contextmanager
    def trusting_results(self) -> Iterator[None]:
        """In the block, results are used. They may be those of an interrupted run, left in a store by somebody else, so
        that an error which they cause is not a defect of this program.

        Raises:
            StoreDamagedError: a result that existed already cannot be used.
        """
        try:
            yield
        except UNREADABLE_JSON as error:
            if not self.resumed:
                raise
            problem = f"a result of an interrupted run cannot be used: {error}"
            raise StoreDamagedError(self.path, 0, problem, "remove this directory, then start again") from error

    def run_items(self, phase: str, items: list[Any], moved: str = "") -> list[dict[str, Any]]:
        """Writes ``items`` to ``PHASE.work`` and runs one task for each of them; returns the results of the tasks.

        Args:
            moved: the directory to which an interrupted run may have moved the tasks' files.
        """
        text = json.dumps(items).encode()
        if self._files.read_file(f"{self.path}/{phase}.work") != text:
            self._discard(phase)
            self._files.replace_file(f"{self.path}/{phase}.work", text)
        return self.run_phase(phase, len(items), moved)

    def run_phase(self, phase: str, count: int, moved: str = "") -> list[dict[str, Any]]:
        """Runs the tasks of a phase that have no whole result yet; returns all results.

        Raises:
            StoreDamagedError: a task reported damage, or has no result.
        """
        # An object of its own, as in a task: it keeps the directories that it has read open, and a task that runs again
        # replaces them.
        files = Files()
        files.hold(self.path)
        for name in self._names(phase):
            if not is_whole(files, self.path, name, moved):
                self._files.remove(f"{self.path}/{name}")
        known = self._results(phase)
        missing = [number for number in range(count) if number not in known]
        self.resumed += count - len(missing)
        self._progress(phase, count - len(missing), count)

        def look() -> None:
            self._progress(phase, len(self._results(phase)), count)

        if missing:
            self._run_tasks(Phase(phase, self.path, self._task), missing, look)
            known = self._results(phase)
        self._progress(phase, count, count)
        found = []
        for number in range(count):
            if number not in known:
                raise StoreDamagedError(self.path, 0, f"task {number} of {phase} has no result", "start again")
            result = read_result(self._files, f"{self.path}/{known[number]}")
            if result is None:
                raise StoreDamagedError(self.path, 0, f"the result of task {number} of {phase} changed", "start again")
            found.append(result[0])
        return found

    def _results(self, phase: str) -> dict[int, str]:
        """Returns, for each task with a result, the name of one result."""
        found: dict[int, str] = {}
        for name in self._names(phase):
            found.setdefault(int(name.partition(".")[0].removeprefix(f"{phase}-")[:9]), name)
        return found

    def _names(self, phase: str) -> list[str]:
        """Returns the names of the files of all results of a phase."""
        names = [name for name in self._files.list_files(self.path) if name.endswith(".json")]
        numbers = [name.partition(".")[0].removeprefix(f"{phase}-") for name in names]
        return [
            name
            for name, number in zip(names, numbers, strict=True)
            if name.startswith(f"{phase}-") and number.isascii() and number.isdigit()
        ]

    def _discard(self, phase: str) -> None:
        """Removes the results of an earlier run of the phase, because that run had different tasks."""
        for name in self._names(phase):
            self._files.remove(f"{self.path}/{name}")
        for name in self._files.list_directories(self.path):
            if name.startswith(f"{phase}-"):
                self._files.remove_tree(f"{self.path}/{name}")
