"""Random kills of driver, Python workers and broker while a stream copies one topic to another; run by hand.

    python -m tests.spark.sink_kills [KILLS] [SEED]

Messages are sent all the time. In the end the copy must hold every one of them, and as many ids as messages: whatever
came twice can be dropped by its id. Prints what was killed and how many repeats came; the exit status is 1 when a
message is missing or two have one id.
"""

from __future__ import annotations

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
from tests.spark.conftest import BrokerProcess

from rucola.common.message import Message
from rucola.errors import RucolaError
from rucola.spark.session import local_session
from rucola.store.offline.offline_store import OfflineStore
from rucola.sync import Producer

READ, WRITTEN = "read", "written"
PAUSE_S = (4.0, 12.0)
"""Between two kills."""
START_S = 25.0
"""A driver gets this long before it is killed, so that it comes to sending."""


def drive(namesrv: str, directory: str, until_end: bool) -> None:
    """The driver: copies until it is killed, or until nothing is left."""
    spark = local_session("kills", master="local[2,8]", **{"spark.local.dir": f"{directory}/local"})
    source = {"topic": READ, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20000", "minPartitions": "4"}
    rows = spark.readStream.format("rocketmq").options(nameServer=namesrv, **source).load()
    sink = {"topic": WRITTEN, "checkpointLocation": f"{directory}/checkpoint", "sendTimeoutMs": "1000"}
    writer = rows.writeStream.format("rocketmq").options(nameServer=namesrv, **sink)
    query = (
        writer.trigger(availableNow=True) if until_end else writer.trigger(processingTime="200 milliseconds")
    ).start()
    query.awaitTermination()


class Driver:
    """A process group with session, JVM and Python workers."""

    def __init__(self, namesrv: str, directory: Path, until_end: bool = False) -> None:
        command = [sys.executable, "-m", "tests.spark.sink_kills", "drive", namesrv, str(directory), str(until_end)]
        with (directory / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.began_s = time.monotonic()

    def kill(self) -> None:
        """All of it at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kill_worker(self, choose: random.Random) -> bool:
        """One Python worker of a task; whether there was one."""
        forked = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                above = one.parent()
                if above is not None and "daemon" in " ".join(above.cmdline()) and "daemon" in " ".join(one.cmdline()):
                    forked.append(one)
        if not forked:
            return False
        with suppress(psutil.Error):
            choose.choice(forked).kill()
        return True


class Sender(threading.Thread):
    """Sends numbered messages until it is told to stop, whatever happens to the broker."""

    def __init__(self, namesrv: str) -> None:
        super().__init__()
        self._namesrv = namesrv
        self.stopping = threading.Event()
        self.count = 0

    def run(self) -> None:
        """Until stopped; a batch that fails is sent again, so that the source has repeats of its own."""
        with Producer("kills", self._namesrv) as producer:
            while not self.stopping.wait(0.05):
                batch = [Message(READ, str(self.count + number).encode() + b" " * 500) for number in range(200)]
                try:
                    producer.send_many(batch)
                except RucolaError:
                    continue
                self.count += len(batch)


def bodies_and_ids(store_path: Path, topic: str) -> list[tuple[int, str]]:
    """Number and id of every message of a topic."""
    store = OfflineStore(str(store_path))
    found = [
        (int(one.body), one.uniq_key or "")
        for queue in store.queues(topic)
        for one in store.messages(topic, queue, 0, 1 << 40)
    ]
    store.close()
    return found


def main(kills: int, seed: int) -> int:
    """Kill, finish, compare."""
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        broker = BrokerProcess(directory)
        broker.start()
        sender = Sender(broker.namesrv)
        sender.start()
        driver = Driver(broker.namesrv, directory)
        killed = {"driver": 0, "worker": 0, "broker": 0}
        try:
            while sum(killed.values()) < kills:
                time.sleep(choose.uniform(*PAUSE_S))
                what = choose.choice(list(killed))
                if driver.process.poll() is not None:
                    print("the driver ended by itself; see", (directory / "driver.log").read_text()[-2000:])
                    driver = Driver(broker.namesrv, directory)
                    continue
                if what == "driver":
                    time.sleep(max(0.0, START_S - (time.monotonic() - driver.began_s)))
                    driver.kill()
                    driver = Driver(broker.namesrv, directory)
                elif what == "worker":
                    if not driver.kill_worker(choose):
                        continue
                else:
                    broker.kill()
                    broker.start()
                killed[what] += 1
                print(f"{sum(killed.values())}: {what}", flush=True)
            sender.stopping.set()
            sender.join()
            driver.kill()
            last = Driver(broker.namesrv, directory, until_end=True)
            last.process.wait(600)
            return compare(broker, killed)
        finally:
            sender.stopping.set()
            if driver.process.poll() is None:
                driver.kill()
            broker.stop()


def compare(broker: BrokerProcess, killed: dict[str, int]) -> int:
    """Hold the copy against what was read."""
    read, written = bodies_and_ids(broker.store, READ), bodies_and_ids(broker.store, WRITTEN)
    once = {msg_id: number for number, msg_id in written}
    missing = len(read) - len(once)
    same = sorted(number for number, _ in read) == sorted(once.values())
    print(f"killed {killed}; {len(read)} messages, {len(written)} written, {len(written) - len(once)} repeats")
    print("every message is there once by its id" if same else f"DIFFERENT: {missing} ids are missing")
    return 0 if same else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["drive"]:
        drive(sys.argv[2], sys.argv[3], sys.argv[4] == "True")
    else:
        kills, seed = [*map(int, sys.argv[1:3]), *(20, 1)[len(sys.argv) - 1 :]]
        sys.exit(main(kills, seed))
