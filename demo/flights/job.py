"""The whole job: start, publish and follow, kill and restart, catch up, compare, show."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rucola.errors import RucolaError
from rucola.spark.layers import BRONZE_COLUMNS
from rucola.spark.session import local_session
from rucola.sync import PullConsumer

from .compare import Difference, differences
from .data import TOPIC, data_directory
from .deadline import deadline
from .expected import expected_figures
from .figures import FIGURES, CarrierMonth
from .measure import QUANTILES, Measurements, Sample, own_rate, quantile
from .picture import draw
from .processes import BrokerProcess, DemoError, Processes, ProducerProcess, stderr_to
from .produce import FIRST_ROWS
from .reports import REPORTS_KEPT, progress_of
from .screen import Screen, closing_table
from .tables import Tables
from .workplace import workplace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PRODUCERS = 2
KILL_AT_SHARE = 0.45
"""Fraction of the rows that are acknowledged when the broker is killed."""

QUERY = "flights"
TRIGGER = "700 milliseconds"
"""Shorter intervals make more micro-batches, and each of them has a fixed cost."""
WARM_UP_BATCHES = 10
"""Number of warm-up micro-batches over the first rows, until Java has compiled the plan. Nobody reads their tables."""
CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
RECORDS_PER_BATCH_MAX = 50_000
"""Largest number of records in a micro-batch, so that the first micro-batch after an outage does not take long."""

SPARK_TIMEOUT_S = 120.0
FIRST_ROWS_TIMEOUT_S = 120.0
PUBLISH_TIMEOUT_S = 180.0
"""Time that the run may take in addition to what the rate requires, in seconds."""

CATCH_UP_TIMEOUT_S = 120.0
_POLL_S = 0.1
_DIFFERENCES_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices from the command line. ``rate`` is in messages per second over all producers; 0 means no limit."""

    rows: int
    rate: float
    kill: bool
    keep: bool
    directory: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the run."""

    gold: list[CarrierMonth]
    wrong: list[Difference]
    records: int
    poison: int
    resent: int


class Job:
    """One run. `run` is called once."""

    def __init__(self, settings: Settings, screen: Screen | None = None) -> None:
        self._settings = settings
        self._directory = settings.directory.resolve()
        self._screen = screen or Screen()
        self._seen = Measurements()

    def run(self) -> int:
        """Runs the whole job and shows its progress.

        Returns: 0 if every figure is equal, otherwise 1.
        """
        try:
            with workplace(self._directory):
                with Processes() as processes:
                    outcome = self._work(processes)
                return self._conclude(outcome)
        except (DemoError, RucolaError) as error:
            self._screen.error(f"{error}")
            return 1

    def _work(self, processes: Processes) -> Outcome:
        screen, settings = self._screen, self._settings
        with screen.step("starting rucola up"):
            broker = BrokerProcess(processes, self._directory)
            addresses = broker.start()
        screen.note(f"name server {addresses.namesrv}, broker {addresses.broker}, process {addresses.pid}", "dim")
        rate = settings.rate / PRODUCERS
        producers = [
            ProducerProcess(processes, self._directory, addresses.namesrv, part, PRODUCERS, settings.rows, rate)
            for part in range(PRODUCERS)
        ]
        with screen.step("starting Spark"), deadline("starting Spark", SPARK_TIMEOUT_S):
            spark = self._session()
        try:
            return self._follow(spark, broker, producers)
        finally:
            with screen.step("stopping Spark"), deadline("stopping Spark", SPARK_TIMEOUT_S):
                spark.stop()

    def _follow(self, spark: SparkSession, broker: BrokerProcess, producers: list[ProducerProcess]) -> Outcome:
        """Runs the part between the start and the stop of Spark."""
        tables = Tables(self._directory / "tables", data_directory())
        with self._screen.step("first rows through the pipeline"):
            query = self._first_rows(spark, broker, producers, tables)
        try:
            self._publish(broker, producers, query, tables)
            records = self._catch_up(broker, query, tables)
            self._seen.progress = progress_of(query)
        finally:
            with deadline("stopping the Spark stream", SPARK_TIMEOUT_S):
                query.stop()
        with self._screen.step("comparing gold with the CSV"), deadline("comparing", SPARK_TIMEOUT_S):
            self._check_bronze(tables.bronze(spark), records)
            gold = tables.gold()
            wrong = differences(gold, expected_figures(data_directory(), self._settings.rows))
            self._seen.born_s = tables.born_s()
        self._seen.batches = [batch for batch in tables.reports() if batch.started_s >= self._seen.begin_s]
        poison = sum(one.poison for one in tables.reports())
        return Outcome(gold, wrong, records, poison, sum(producer.progress.resent for producer in producers))

    def _session(self) -> SparkSession:
        conf = {
            **REPORTS_KEPT,
            # The default file system, without Hadoop's native library, starts a program to set the permissions of each
            # file.
            "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
            "spark.driver.memory": "2g",
            # Adaptive execution would plan each stage of a micro-batch anew. That costs more than it can save on 10,000
            # rows.
            "spark.sql.adaptive.enabled": "false",
            "spark.local.dir": str(self._directory / "spark"),
            "spark.sql.warehouse.dir": str(self._directory / "spark" / "warehouse"),
        }
        # The standard error of Java and of the workers goes to a file, so that it does not disturb the progress bars.
        with stderr_to(self._directory / "spark.log"):
            return local_session("flights", **conf)

    def _first_rows(
        self, spark: SparkSession, broker: BrokerProcess, producers: list[ProducerProcess], tables: Tables
    ) -> StreamingQuery:
        """Starts the stream and brings the producers' first rows to gold. Then the topic exists and Spark is warm."""
        for _ in self._waiting(FIRST_ROWS_TIMEOUT_S, "acknowledging the first rows", broker):
            if all(not producer.done() and producer.progress.waiting for producer in producers):
                break
        self._warm_up(spark, broker)
        records = spark.readStream.format("rocketmq").options(**self._source(broker), startingOffsets="earliest")
        writer = records.option("maxOffsetsPerTrigger", RECORDS_PER_BATCH_MAX).load().writeStream
        writer = writer.queryName(QUERY).option("checkpointLocation", str(self._directory / "checkpoint"))
        query = writer.foreachBatch(tables.apply).trigger(processingTime=TRIGGER).start()
        for _ in self._waiting(FIRST_ROWS_TIMEOUT_S, "bringing the first rows to gold", broker, query):
            if _flights(tables) >= PRODUCERS * FIRST_ROWS:
                break
        return query

    def _warm_up(self, spark: SparkSession, broker: BrokerProcess) -> None:
        """Runs the plan of a micro-batch over the first rows, so that Java compiles it."""
        tables = Tables(self._directory / "warm-up", data_directory())
        with deadline("warming up", SPARK_TIMEOUT_S):
            for number in range(WARM_UP_BATCHES):
                tables.apply(spark.read.format("rocketmq").options(**self._source(broker)).load(), number)

    @staticmethod
    def _source(broker: BrokerProcess) -> dict[str, str]:
        return {"nameServer": broker.addresses.namesrv, "topic": TOPIC, "columns": ",".join(BRONZE_COLUMNS)}

    def _publish(
        self, broker: BrokerProcess, producers: list[ProducerProcess], query: StreamingQuery, tables: Tables
    ) -> None:
        """Lets the producers continue, and meanwhile kills and restarts the broker."""
        rows, seen = self._settings.rows, self._seen
        timeout_s = PUBLISH_TIMEOUT_S + (rows / self._settings.rate if self._settings.rate else 0.0)
        seen.begin_s = time.time()
        for producer in producers:
            producer.go()
        with self._screen.bars(rows) as bars:
            for _ in self._waiting(timeout_s, "publishing", broker, query):
                acknowledged = sum(producer.progress.acknowledged for producer in producers)
                self._sample(acknowledged, tables)
                bars.update(acknowledged, _flights(tables))
                if self._settings.kill and seen.killed_s is None and acknowledged >= KILL_AT_SHARE * rows:
                    self._kill_and_restart(broker, acknowledged)
                if all(producer.done() for producer in producers) and acknowledged == rows:
                    break
        seen.published_s = time.time()
        took_s = seen.published_s - seen.begin_s
        self._screen.finished("publishing", took_s, f"{rows:,} acknowledged, {rows / took_s:,.0f} a second")

    def _kill_and_restart(self, broker: BrokerProcess, acknowledged: int) -> None:
        seen = self._seen
        seen.killed_s = time.time()
        broker.kill()
        self._screen.note(f"broker killed with SIGKILL after {acknowledged:,} acknowledged messages")
        broker.start()
        seen.ready_again_s = time.time()
        gone_s = seen.ready_again_s - seen.killed_s
        self._screen.note(f"broker ready again on the same store after {gone_s:.1f} s, process {broker.addresses.pid}")

    def _sample(self, acknowledged: int, tables: Tables) -> None:
        first = PRODUCERS * FIRST_ROWS
        self._seen.samples.append(Sample(time.time(), acknowledged - first, _flights(tables) - first))

    def _catch_up(self, broker: BrokerProcess, query: StreamingQuery, tables: Tables) -> int:
        """Waits until the query has read as many records as the broker's queues hold.

        Returns:
            That number.
        """
        begin_s = time.monotonic()
        wanted = _records_in_broker(broker.addresses.namesrv)
        rows = self._settings.rows
        with self._screen.bars(rows) as bars:
            for _ in self._waiting(CATCH_UP_TIMEOUT_S, "catching up with the broker's last offsets", broker, query):
                if _flights(tables) < rows:
                    self._sample(rows, tables)
                bars.update(rows, _flights(tables))
                if sum(report.records for report in tables.reports()) >= wanted:
                    break
        with deadline("committing the last micro-batch", SPARK_TIMEOUT_S):
            query.processAllAvailable()
        self._screen.finished(
            "catching up with the broker's last offsets", time.monotonic() - begin_s, f"{wanted:,} records"
        )
        return wanted

    def _check_bronze(self, bronze: DataFrame, records: int) -> None:
        """Checks that bronze has every record of the broker once: as many records as the queues hold, no two of them
        with the same queue and offset.
        """
        rows = bronze.select("brokerName", "queueId", "queueOffset")
        count, places = rows.count(), rows.distinct().count()
        if (count, places) != (records, records):
            raise DemoError(f"the broker holds {records:,} records, bronze {count:,} at {places:,} different offsets")

    def _waiting(
        self, timeout_s: float, what: str, broker: BrokerProcess, query: StreamingQuery | None = None
    ) -> Iterator[None]:
        """Yields, with pauses, until the caller stops iterating.

        Raises:
            DemoError: the caller iterates for too long, the broker ended, or the query failed.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            broker.check()
            if query is not None and not query.isActive:
                raise DemoError(f"while {what}: the Spark stream failed: {self._stream_error(query)}")
            yield
            time.sleep(_POLL_S)
        raise DemoError(f"{what} took longer than {timeout_s:.0f} s")

    def _stream_error(self, query: StreamingQuery) -> str:
        """The cause of the failure in one line; writes the full text, some pages, to a file."""
        lines = str(query.exception() or "it was stopped").splitlines()
        file = self._directory / "stream-error.txt"
        file.write_text("\n".join(lines))
        causes = [line.strip() for line in lines if line.startswith("Caused by:")]
        return f"{(causes or lines)[-1 if causes else 0]} (all of it: {file})"

    def _conclude(self, outcome: Outcome) -> int:
        """Shows figures and picture, and cleans up.

        Returns:
            The exit code.
        """
        screen, settings = self._screen, self._settings
        figures = len(outcome.gold) * len(FIGURES)
        verdict = (
            f"all {figures:,} figures equal to the CSV" if not outcome.wrong else f"{len(outcome.wrong)} figures differ"
        )
        duplicates = outcome.records - settings.rows
        killed = "broker killed with SIGKILL and restarted" if settings.kill else "broker not killed"
        headline = f"{settings.rows:,} messages, {killed}, {duplicates:,} duplicates dropped by key, {verdict}"
        page = self._directory / "flights.png"
        with screen.step("drawing the page of pictures"):
            draw(page, outcome.gold, self._seen, headline)
        screen.console.print(closing_table(outcome.gold))
        screen.note(
            f"records in the log {outcome.records:,}, sends repeated because no response came {outcome.resent:,}",
            "none",
        )
        screen.note(f"duplicates dropped by key {duplicates:,}", "none")
        self._show_latency()
        screen.note(f"pictures: {page}", "bold")
        if outcome.poison:
            screen.error(f"{outcome.poison:,} records are no flight; their bodies are in bronze")
        for difference in outcome.wrong[:_DIFFERENCES_SHOWN]:
            screen.error(f"{difference}")
        if len(outcome.wrong) > _DIFFERENCES_SHOWN:
            screen.error(f"... and {len(outcome.wrong) - _DIFFERENCES_SHOWN} more")
        if outcome.wrong:
            screen.error(f"{verdict}; everything that the run left is in {self._directory}")
            return 1
        if not settings.keep:
            for name in ("store", "checkpoint", "spark"):
                shutil.rmtree(self._directory / name, ignore_errors=True)
        screen.note(verdict, "bold green")
        return 0

    def _show_latency(self) -> None:
        seen = self._seen
        latencies, rate = seen.all_latencies_s(), own_rate(seen)
        if not latencies or rate is None:
            return
        shown = ", ".join(f"p{share * 100:.0f} {quantile(latencies, share):.1f} s" for share in QUANTILES)
        self._screen.note(f"from birth to gold, {len(latencies):,} flights: {shown}", "none")
        self._screen.note(
            f"the pipeline's own rate: {rate.records:,} records in micro-batches of {rate.took_s:.1f} s together, "
            f"{rate.per_second:,.0f} a second",
            "none",
        )


def _flights(tables: Tables) -> int:
    """Number of flights in gold."""
    return sum(report.new_flights for report in tables.reports())


def _records_in_broker(namesrv: str) -> int:
    """Number of records in all queues of the topic, according to the broker's offsets."""
    with PullConsumer("flights_check", namesrv) as consumer:
        return sum(consumer.max_offset(queue) - consumer.min_offset(queue) for queue in consumer.message_queues(TOPIC))
