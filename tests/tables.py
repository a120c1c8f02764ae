"""Tables of a broker that are written when a test decides, with a loop and a thread that the test steps."""

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
    """Makes tables that pass their content to ``take``, and writes them in ``write``."""

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
        """Returns the arguments with which managers are created."""
        return partial(self.writer.table, "table.json", lambda pieces: self._take(b"".join(pieces)))

    def write(self) -> None:
        """Lets the thread write the changes once, after the pause that follows a write; waiting callers get the
        result.
        """
        self.clock.advance(1000)
        self.loop.run()
        worker = self.writer._worker
        assert isinstance(worker, ManualWorker)
        if worker.wanted:
            worker.run()
        self.loop.run()


def keep_nothing() -> Keep:
    """Returns tables that are never read again."""
    return Tables(lambda _: None).keep
