"""Kills driver, executors, Python workers and brokers of a stream at random: ``python -m tests.spark.kills``.

Messages are sent all the time, to two brokers. ``--to table``: a stream on two executors appends them to Parquet; in
the end the table must hold every position of the topic once. ``--to topic``: a stream copies them to another topic,
which must hold every message; repeated messages must have the same id, so that a reader can drop them. Prints what was
killed and what was found; the exit status is 1 if a message is missing or there twice.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
from tests.spark.conftest import BrokerProcess, SecondBroker

from rucola.common.message import Message
from rucola.errors import RucolaError
from rucola.spark.session import local_session
from rucola.store.offline.offline_store import OfflineStore
from rucola.sync import Producer

READ, WRITTEN = "read", "written"
PAUSE_S = (2.0, 8.0)
"""Range of seconds between two kills."""
AWAY_S = (0.0, 6.0)
"""Range of seconds that a killed broker is away."""
START_S = 25.0
"""Seconds that a driver runs before it may be killed, so that it begins to read."""
END_S = 600.0
MASTERS = {"table": "local-cluster[2,1,1024]", "topic": "local[2,8]"}
DAEMON, EXECUTOR = "daemon", "CoarseGrainedExecutorBackend"
"""Text in the command lines of Python workers' daemons and of executors."""


def drive(to: str, namesrv: str, directory: str, until_end: bool) -> None:
    """Runs the driver: writes until it is killed, or until all messages are written."""
    conf = {"spark.local.dir": f"{directory}/local", "spark.executor.memory": "1024m"}
    spark = local_session("kills", master=MASTERS[to], **conf)
    source = {"topic": READ, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20000", "minPartitions": "4"}
    rows = spark.readStream.format("rocketmq").options(nameServer=namesrv, **source).load()
    if to == "table":
        rows = rows.selectExpr("brokerName", "queueId", "queueOffset", "trim(cast(body as string)) AS number")
        writer = rows.writeStream.format("parquet").option("path", f"{directory}/table")
    else:
        sink = {"nameServer": namesrv, "topic": WRITTEN, "sendTimeoutMs": "1000"}
        writer = rows.writeStream.format("rocketmq").options(**sink)
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    query = (
        writer.trigger(availableNow=True) if until_end else writer.trigger(processingTime="200 milliseconds")
    ).start()
    query.awaitTermination()
    if to == "table":
        table = spark.read.parquet(f"{directory}/table").collect()
        Path(directory, "found").write_text("\n".join(" ".join(map(str, row)) for row in sorted(table)))
    spark.stop()


class Driver:
    """A driver: a process group with session, JVM, executors and Python workers."""

    def __init__(self, to: str, namesrv: str, directory: Path, until_end: bool = False) -> None:
        command = [sys.executable, "-m", "tests.spark.kills", "--drive", to, namesrv, str(directory), str(until_end)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with (directory / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=directory, start_new_session=True
            )
        self.began_s = time.monotonic()

    def kill(self) -> None:
        """Kills the whole process group at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_one(self, what: str, choose: random.Random) -> bool:
        """Kills one executor or one Python worker; returns False if none is running."""
        found = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                command, above = " ".join(one.cmdline()), one.parent()
                if what == "executor" and EXECUTOR in command and "java" in one.name():
                    found.append(one)
                elif what == "worker" and above is not None and DAEMON in command:
                    found += [one] if DAEMON in " ".join(above.cmdline()) else []
        if not found:
            return False
        with suppress(psutil.Error):
            choose.choice(found).kill()
        return True


class Sender(threading.Thread):
    """Sends numbered messages until it is stopped, whatever happens to the brokers."""

    def __init__(self, namesrv: str) -> None:
        super().__init__()
        self._namesrv = namesrv
        self.stopping = threading.Event()
        self.count = 0

    def run(self) -> None:
        """Sends until stopped; a batch that fails is sent again, so the topic that the stream reads contains
        duplicates.
        """
        with Producer("kills", self._namesrv) as producer:
            while not self.stopping.wait(0.05):
                batch = [Message(READ, str(self.count + number).encode() + b" " * 500) for number in range(200)]
                try:
                    producer.send_many(batch)
                except RucolaError:
                    continue
                self.count += len(batch)


class Scene:
    """Two brokers, a sender and a driver, which end with the ``with`` block."""

    def __init__(self, to: str, directory: Path, choose: random.Random) -> None:
        self.to = to
        self.directory = directory
        self._choose = choose
        self.first = BrokerProcess(directory)
        self.first.start()
        self.second = SecondBroker(directory, self.first.namesrv)
        self.second.start()
        with self.first.producer() as producer:
            for number in range(40):  # the topic is created on both brokers
                producer.send(Message(READ, str(-number - 1).encode()))
        self.sender = Sender(self.first.namesrv)
        self.sender.start()
        self.driver = Driver(to, self.first.namesrv, directory)
        kinds = ["driver", "worker", "broker", "second broker"]
        self.killed = dict.fromkeys([*kinds, "executor"] if to == "table" else kinds, 0)

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.sender.stopping.set()
        self.sender.join()
        self.driver.kill()
        self.second.kill()
        self.first.stop()

    def kill_something(self) -> None:
        """Kills one process, if the chosen one exists."""
        what = self._choose.choice(list(self.killed))
        if self.driver.process.poll() is not None:
            print("the driver ended by itself; see", (self.directory / "driver.log").read_text()[-4000:], flush=True)
            raise SystemExit(1)
        if what == "driver":
            time.sleep(max(0.0, START_S - (time.monotonic() - self.driver.began_s)))
            self.driver.kill()
            self.driver = Driver(self.to, self.first.namesrv, self.directory)
        elif what in ("worker", "executor"):
            if not self.driver.kill_one(what, self._choose):
                return
        else:
            broker = self.first if what == "broker" else self.second
            broker.kill()
            time.sleep(self._choose.uniform(*AWAY_S))
            broker.start()
        self.killed[what] += 1
        print(f"{sum(self.killed.values())}: {what}", flush=True)

    def finish(self) -> bool:
        """Reads the rest, then compares what was written with what was sent."""
        self.sender.stopping.set()
        self.sender.join()
        self.driver.kill()
        self.driver = Driver(self.to, self.first.namesrv, self.directory, until_end=True)
        self.driver.process.wait(END_S)
        return self._same_table() if self.to == "table" else self._same_topic()

    def _stored(self, topic: str) -> list[tuple[str, int, int, str, str]]:
        """Returns broker, queue, offset, number and id of every message in a topic."""
        found = []
        for broker_name, path in (("broker-a", self.first.store), ("broker-b", self.second.store)):
            store = OfflineStore(str(path))
            for queue in store.queues(topic):
                for one in store.messages(topic, queue, 0, 1 << 40):
                    text = one.body.decode().strip()
                    found.append((broker_name, queue, one.queue_offset, text, one.uniq_key or ""))
            store.close()
        return found

    def _same_table(self) -> bool:
        sent = sorted(" ".join(map(str, row[:4])) for row in self._stored(READ))
        found = sorted((self.directory / "found").read_text().split("\n"))
        print(f"killed {self.killed}; {len(sent)} messages, {len(found)} rows", flush=True)
        print(f"{len(set(sent) - set(found))} missing, {len(found) - len(set(found))} twice", flush=True)
        return sent == found

    def _same_topic(self) -> bool:
        read, written = self._stored(READ), self._stored(WRITTEN)
        once = {row[4]: row[3] for row in written}
        print(f"killed {self.killed}; {len(read)} messages, {len(written)} written", flush=True)
        print(f"{len(read) - len(once)} ids are missing, {len(written) - len(once)} repeats", flush=True)
        return sorted(row[3] for row in read) == sorted(once.values())


def main(arguments: list[str]) -> int:
    """Kills processes for the given time, then finishes and compares."""
    if arguments[:1] == ["--drive"]:
        to, namesrv, folder, until_end = arguments[1:]
        drive(to, namesrv, folder, until_end == "True")
        return 0
    parser = argparse.ArgumentParser(prog="python -m tests.spark.kills", description=__doc__)
    parser.add_argument("--to", choices=list(MASTERS), default="table")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    choose = random.Random(options.seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes below end with the block
    with tempfile.TemporaryDirectory() as name, Scene(options.to, Path(name), choose) as scene:
        while sum(scene.killed.values()) < options.kills:
            time.sleep(choose.uniform(*PAUSE_S))
            scene.kill_something()
        same = scene.finish()
    print("every message is there once" if same else "DIFFERENT", flush=True)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
