"""Reads Spark's reports about the micro-batches for the picture, once, at the end of the run. A listener, called for
each micro-batch, would fetch values from Java one by one; this took a tenth of the run's CPU time.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rucola.spark.progress import reached

from .measure import Progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

REPORTS_KEPT = {"spark.sql.streaming.numRecentProgressUpdates": "1000"}
"""Setting of the session that makes Spark keep the reports of a whole run."""


def progress_of(query: StreamingQuery) -> list[Progress]:
    """The reports of all micro-batches with records, in order."""
    found = {}
    for report in query.recentProgress:
        values = json.loads(report.json)
        # In these reports the offsets are objects; a listener would get them as text.
        sources = [
            SimpleNamespace(endOffset=json.dumps(one["endOffset"]), latestOffset=json.dumps(one["latestOffset"]))
            for one in values["sources"]
        ]
        if values["numInputRows"]:
            found[values["batchId"]] = Progress(
                batch_id=values["batchId"],
                records=values["numInputRows"],
                took_s=values["durationMs"].get("triggerExecution", 0) / 1000,
                behind=sum(reached(sources).lag().values()),
            )
    return [found[batch_id] for batch_id in sorted(found)]
