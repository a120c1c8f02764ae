"""Keeps Spark's reports about the micro-batches for the picture."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from rucola.spark.progress import reached

from .measure import Progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


class Listener(StreamingQueryListener):
    """Collects the reports of all named queries. Spark calls it in one thread; the job reads from it in another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, dict[int, Progress]] = {}

    def progress(self, query: str) -> list[Progress]:
        """The reports of micro-batches with records, in order."""
        with self._lock:
            found = dict(self._seen.get(query, {}))
        return [found[batch_id] for batch_id in sorted(found)]

    def records(self, query: str) -> int:
        """The number of records that the query has read."""
        return sum(one.records for one in self.progress(query))

    # The methods below have Spark's names.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Keeps the report of a micro-batch."""
        progress = event.progress
        if not progress.numInputRows:
            return
        found = Progress(
            batch_id=progress.batchId,
            records=progress.numInputRows,
            took_s=progress.durationMs.get("triggerExecution", 0) / 1000,
            behind=sum(reached(progress.sources).lag().values()),
        )
        with self._lock:
            self._seen.setdefault(progress.name or "", {})[progress.batchId] = found
