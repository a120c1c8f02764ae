"""Tables of a broker that are written only when a test runs the event loop and the writing thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from rucola.runtime.supervision import Supervisor
from rucola.runtime.table_writer import Keep, TableWriter
from rucola.testing.clock import ManualClock
from rucola.testing.manual_loop import ManualLoop
from rucola.testing.manual_worker import ManualWorker, manual_workers


class Tables:
    """Creates tables whose content is passed to ``take`` instead of a file, each time that ``write`` finds changes."""

    def __init__(self, take: Callable[[bytes], object]) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.supervisor = Supervisor()
        with manual_workers("rucola.runtime.table_writer"):
            self.writer = TableWriter(self.supervisor, self.clock.monotonic)
        self.writer.start(cast(Any, self.loop))
        self._take = take

    @property
    def keep(self) -> Keep:
        """The argument with which managers create their tables."""
        return partial(self.writer.table, "table.json", lambda pieces: self._take(b"".join(pieces)))

    def write(self) -> None:
        """Advances the clock by the pause between two writes, and lets the thread write the changes once; callers that
        wait for the write get its result.
        """
        self.clock.advance(1000)
        self.loop.run()
        worker = self.writer._worker
        assert isinstance(worker, ManualWorker)
        if worker.wanted:
            worker.run()
        self.loop.run()


def keep_nothing() -> Keep:
    """Returns a function that creates tables whose content is written nowhere."""
    return Tables(lambda _: None).keep
