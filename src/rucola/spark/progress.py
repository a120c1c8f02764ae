"""Publishes the progress of streams to brokers and Prometheus: a listener for ``spark.streams.addListener``.

After each micro-batch, the offsets that it reached become the progress of a consumer group, so that ``mqadmin
consumerProgress`` shows the pipeline like any consumer. The progress is advisory: a stream continues from its
checkpoint and never reads the progress. If publishing fails, the query continues.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from rucola.arrow.offsets import QueueOffsets, StreamOffsets
from rucola.client.config import PullConsumerConfig
from rucola.common.message_queue import MessageQueue
from rucola.errors import ConfigError, RucolaError
from rucola.sync import PullConsumer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger(__name__)


class Reached(NamedTuple):
    """The offsets that a progress report of Spark contains for sources of this format."""

    end: QueueOffsets
    """Offsets after the last message of the micro-batch."""
    newest: QueueOffsets
    """Offsets after the last message that existed when the micro-batch was planned."""

    def lag(self) -> dict[str, int]:
        """Number of unread messages of each topic."""
        found: dict[str, int] = {}
        for queue, at in self.end.items():
            found[queue.topic] = found.get(queue.topic, 0) + max(0, self.newest.get(queue, at) - at)
        return found


def reached(sources: Iterable[Any]) -> Reached:
    """Extracts the offsets from the reports of a query's sources; ignores sources of other formats."""
    found = Reached({}, {})
    for source in sources:
        try:
            end = StreamOffsets.from_document(json.loads(source.endOffset or "{}")).offsets
            newest = StreamOffsets.from_document(json.loads(source.latestOffset or "{}")).offsets
        except (ValueError, AttributeError, TypeError):
            continue
        found.end.update(end)
        found.newest.update(newest)
    return found


class ProgressPublisher(StreamingQueryListener):
    """Publishes the progress of the streams in a session.

    Life cycle: Pass the publisher to ``spark.streams.addListener``; at the end call ``removeListener`` and ``close``.
    Spark calls the publisher in a single thread.

    Args:
        name_server: name servers, ``host:port`` separated by ``;``; required with ``commit_group``.
        commit_group: consumer group that gets the progress; if empty, brokers get no progress. Brokers create the
            group if it does not exist.
        query_name: name of the only stream whose progress is published; None for all streams, no two of which may then
            read the same topic.
        registry: registry for the metrics, such as ``prometheus_client.REGISTRY``; None for no metrics. Metrics need
            prometheus-client.
        config: settings of the consumer, such as account and encryption.

    Raises:
        ConfigError: one of ``name_server`` and ``commit_group`` is given without the other.
    """

    def __init__(
        self,
        name_server: str = "",
        commit_group: str = "",
        *,
        query_name: str | None = None,
        registry: CollectorRegistry | None = None,
        config: PullConsumerConfig | None = None,
    ) -> None:
        if bool(name_server) != bool(commit_group):
            raise ConfigError("name_server, commit_group", "one", "both or neither")
        self._query_name = query_name
        self._metrics = _Metrics(registry) if registry is not None else None
        self._consumer = PullConsumer(commit_group, name_server, config) if commit_group else None
        self._started = False
        self._reached: dict[str, QueueOffsets] = {}
        self._committed: QueueOffsets = {}

    def close(self) -> None:
        """Closes the connections to the brokers."""
        if self._consumer is not None and self._started:
            self._consumer.shutdown()
            self._started = False

    # The methods below have the names that Spark expects.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Does nothing, because this event contains no offsets."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Sends the offsets that a broker did not accept earlier. While a stream is idle, Spark reports no progress, so
        ``onQueryProgress`` cannot send them.
        """
        self._commit(self._reached.get(str(event.id), {}), str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Publishes the offsets that a finished micro-batch reached."""
        progress = event.progress
        if self._query_name is not None and progress.name != self._query_name:
            return
        found = reached(progress.sources)
        if self._metrics is not None:
            self._metrics.show(progress, found.lag())
        self._reached[str(progress.id)] = found.end
        self._commit(found.end, str(progress.name or progress.id))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Forgets the stream and removes its metrics."""
        self._reached.pop(str(event.id), None)
        if self._metrics is not None:
            self._metrics.forget(str(event.id))

    def _commit(self, end: Mapping[MessageQueue, int], query: str) -> None:
        """Sends the changed offsets to the brokers. Tries all queues, then logs the first error."""
        consumer = self._consumer
        changed = end.items() - self._committed.items()
        if consumer is None or not changed:
            return
        failure: RucolaError | None = None
        try:
            if not self._started:
                consumer.start()
                self._started = True
        except RucolaError as error:
            failure, changed = error, set()
        for queue, at in changed:
            try:
                consumer.commit(queue, at)
                self._committed[queue] = at
            except RucolaError as error:
                failure = failure or error
        if failure is not None:
            logger.warning("progress of %s cannot be published at present: %s", query, failure)


class _Metrics:
    """The metrics of all streams. The label ``query`` is the stream's name, or its id if it has no name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge

        query = ["query"]
        self._lag = Gauge(
            "rucola_spark_lag_messages",
            "Unread messages at the end of the last micro-batch.",
            [*query, "topic"],
            registry=registry,
        )
        self._rows = Counter("rucola_spark_rows", "Rows read.", query, registry=registry)
        self._batches = Counter("rucola_spark_batches", "Micro-batches with rows.", query, registry=registry)
        self._rate = Gauge(
            "rucola_spark_processed_rows_per_second",
            "Rows per second during a micro-batch.",
            query,
            registry=registry,
        )
        self._seconds = Gauge(
            "rucola_spark_batch_seconds", "Duration of the last micro-batch.", query, registry=registry
        )
        self._observed = Gauge(
            "rucola_spark_observed",
            "Values that the query observed (``observe``) in the last micro-batch.",
            [*query, "name", "metric"],
            registry=registry,
        )
        self._labels: dict[str, dict[Any, set[tuple[str, ...]]]] = {}

    def show(self, progress: Any, lag: Mapping[str, int]) -> None:
        """Updates the metrics from a progress report."""
        name = str(progress.name or progress.id)
        labels = self._labels.setdefault(str(progress.id), {})

        def of(metric: Any, *more: str) -> Any:
            labels.setdefault(metric, set()).add((name, *more))
            return metric.labels(name, *more)

        for topic, count in lag.items():
            of(self._lag, topic).set(count)
        of(self._rows).inc(max(0, progress.numInputRows))
        of(self._batches).inc(1 if progress.numInputRows else 0)
        of(self._rate).set(progress.processedRowsPerSecond or 0.0)
        of(self._seconds).set(progress.durationMs.get("triggerExecution", 0) / 1000)
        for observation, row in progress.observedMetrics.items():
            for metric, value in row.asDict().items():
                if isinstance(value, int | float):
                    of(self._observed, observation, metric).set(value)

    def forget(self, query_id: str) -> None:
        """Removes the metrics of a stream."""
        for metric, labels in self._labels.pop(query_id, {}).items():
            for one in labels:
                metric.remove(*one)
