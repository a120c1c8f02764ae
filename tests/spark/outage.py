"""One of two brokers is away for a minute while a stream reads: ``python -m tests.spark.outage``.

Messages are sent to both all the time. While the second broker is away, the rows of the first must continue; when it is
back, every message of both must have been read once. ``--how kill`` ends the second broker with SIGKILL between two
micro-batches and starts it again; ``freeze`` suspends it, so that connections stay open without responses; ``planned``
kills it while a micro-batch with its messages is planned; this micro-batch must wait for the broker. Prints how long
rows took from store to stream. The exit status is 1 if a message is missing or there twice, or if rows of the first
broker did not continue.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from tests.spark.conftest import BrokerProcess, SecondBroker

from rucola.common.message import Message
from rucola.common.message_queue import MessageQueue
from rucola.errors import RucolaError
from rucola.spark.session import local_session
from rucola.store.offline.offline_store import OfflineStore
from rucola.sync import Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "pair"
QUEUES = 4
BATCH, PAUSE_S = 50, 0.05
"""Number of messages in a send, and seconds between two sends, for each broker."""
WAYS = ("kill", "freeze", "planned")
TRIGGER = "1 second"
CALM_S = 8.0
"""Seconds without a fault: before the outage, and after the stream has caught up."""
WAIT_S = 120.0
SETTLED_S = 5.0
"""Largest number of seconds until rows of the first broker come again after the second broker has gone."""
COLUMNS = "brokerName,queueId,queueOffset,storeTimestamp"


class Sender(threading.Thread):
    """Sends to one broker until stopped; a batch without a response is sent again."""

    def __init__(self, namesrv: str, broker_name: str) -> None:
        super().__init__()
        self._namesrv = namesrv
        self._broker_name = broker_name
        self.stopping = threading.Event()

    def run(self) -> None:
        """Sends until stopped."""
        number = 0
        with Producer(f"outage-{self._broker_name}", self._namesrv) as producer:
            while not self.stopping.wait(PAUSE_S):
                queue = MessageQueue(TOPIC, self._broker_name, number % QUEUES)
                with suppress(RucolaError):
                    producer.send_batch([Message(TOPIC, b"x" * 500) for _ in range(BATCH)], queue)
                    number += 1


class Rows:
    """The rows that the stream read, with the time of each micro-batch."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self.batches_s: list[float] = []
        self.began, self.done = threading.Event(), threading.Event()
        """Set when a micro-batch begins, and when it is over."""

    def take(self, rows: DataFrame, _batch_id: int) -> None:
        """Records the rows of a micro-batch; is passed to ``foreachBatch``."""
        self.began.set()
        table = rows.toArrow()
        seen_ms = pa.array([int(time.time() * 1000)] * table.num_rows, pa.int64())
        self.batches_s.append(time.time())
        self.tables.append(table.append_column("seen_ms", seen_ms))
        self.done.set()

    def count(self) -> int:
        """Returns the number of rows so far."""
        return sum(table.num_rows for table in self.tables)

    def delays_s(self, broker_name: str, from_s: float, to_s: float) -> list[float]:
        """Returns, shortest first, how long the broker's messages stored between two moments took to the stream."""
        rows = pa.concat_tables(self.tables)
        stored_ms = rows["storeTimestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        own = pc.and_(
            pc.equal(rows["brokerName"], broker_name),
            pc.and_(pc.greater_equal(stored_ms, int(from_s * 1000)), pc.less(stored_ms, int(to_s * 1000))),
        )
        return sorted(delay / 1000 for delay in pc.subtract(rows["seen_ms"], stored_ms).filter(own).to_pylist())

    def places(self) -> list[tuple[Any, ...]]:
        """Returns broker, queue and offset of every row."""
        rows = pa.concat_tables(self.tables)
        return list(zip(*(rows[name].to_pylist() for name in COLUMNS.split(",")[:3]), strict=True))


def _stored(stores: dict[str, Path]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for broker_name, path in stores.items():
        store = OfflineStore(str(path))
        for queue in store.queues(TOPIC):
            found += [(broker_name, queue, one.queue_offset) for one in store.messages(TOPIC, queue, 0, 1 << 40)]
        store.close()
    return found


def _wait(event: threading.Event) -> None:
    event.clear()
    if not event.wait(WAIT_S):
        raise TimeoutError("no micro-batch came")


def _outage(rows: Rows, second: SecondBroker, how: str, seconds: float) -> tuple[float, float]:
    """Kills or suspends the second broker for ``seconds``; returns the times of the beginning and the end."""
    _wait(rows.began if how == "planned" else rows.done)
    second.send_signal(signal.SIGSTOP) if how == "freeze" else second.kill()
    gone_s = time.time()
    time.sleep(seconds)
    second.send_signal(signal.SIGCONT) if how == "freeze" else second.start()
    return gone_s, time.time()


def _caught_up(query: StreamingQuery, rows: Rows, stores: dict[str, Path]) -> tuple[float, set[tuple[Any, ...]]]:
    """Waits until the stream has as many rows as there are messages; returns the seconds that this took, and broker,
    queue and offset of each message.
    """
    began_s = time.monotonic()
    stored = set(_stored(stores))
    while rows.count() < len(stored) and query.isActive and time.monotonic() - began_s < WAIT_S:
        time.sleep(0.1)
    return time.monotonic() - began_s, stored


def _say(what: str, delays_s: list[float]) -> None:
    shown = "none came"
    if delays_s:
        shown = f"{len(delays_s)} rows, {delays_s[len(delays_s) // 2]:.1f} s (median) to {delays_s[-1]:.1f} s (last)"
    print(f"{what}: {shown}", flush=True)


def run(directory: Path, how: str, seconds: float) -> bool:
    """Runs one outage; returns True if every message was read once and, unless ``how`` allows a pause, the rows of the
    first broker continued.
    """
    first = BrokerProcess(directory)
    first.start()
    second = SecondBroker(directory, first.namesrv)
    second.start()
    stores = {"broker-a": first.store, "broker-b": second.store}
    rows = Rows()
    spark = local_session("outage", **{"spark.local.dir": str(directory / "local")})
    senders = [Sender(first.namesrv, name) for name in stores]
    try:
        with first.producer() as producer:
            for _ in range(2 * QUEUES):  # the topic is created on both brokers
                producer.send(Message(TOPIC, b"x"))
        source = {"nameServer": first.namesrv, "topic": TOPIC, "startingOffsets": "earliest", "columns": COLUMNS}
        writer = spark.readStream.format("rocketmq").options(**source).load().writeStream.foreachBatch(rows.take)
        writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
        query = writer.trigger(processingTime=TRIGGER).start()
        for sender in senders:
            sender.start()
        time.sleep(CALM_S)
        gone_s, back_s = _outage(rows, second, how, seconds)
        came = [at for at in rows.batches_s if gone_s + SETTLED_S < at < back_s]
        time.sleep(CALM_S)
        for sender in senders:
            sender.stopping.set()
        for sender in senders:
            sender.join()
        after_s, stored = _caught_up(query, rows, stores)
        query.stop()
    finally:
        for sender in senders:
            sender.stopping.set()
        second.kill()
        first.stop()
        spark.stop()
    places = rows.places()
    print(f"{how}: broker-b was away for {back_s - gone_s:.0f} s; {len(came)} micro-batches came meanwhile", flush=True)
    _say("broker-a, stored meanwhile", rows.delays_s("broker-a", gone_s, back_s))
    _say("broker-b, stored after its return", rows.delays_s("broker-b", back_s, time.time()))
    missing, twice = len(stored - set(places)), len(places) - len(set(places))
    print(f"{len(stored)} messages, {len(places)} rows, {missing} missing, {twice} twice; ", end="")
    print(f"the rest was read {after_s:.1f} s after the last message", flush=True)
    return not missing and not twice and len(places) == len(stored) and (bool(came) or how == "planned")


def main(arguments: list[str]) -> int:
    """Runs every kind of outage, one after another."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.outage", description=__doc__)
    parser.add_argument("--how", choices=WAYS, help="only this kind of outage; all by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds that the broker is away")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes end with the blocks
    right = True
    for how in [options.how] if options.how else WAYS:
        with tempfile.TemporaryDirectory() as name:
            right = run(Path(name), how, options.seconds) and right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
