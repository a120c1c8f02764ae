"""``rucola replica`` behind an official master: ``python -m tests.conformance.replica``.

Messages of all kinds go to the master. In the middle, the replica is killed with SIGKILL and started again, then the
master. A last run with ``--until now`` ends by itself. Then the bytes of both logs are compared, the copied tables,
what ``rucola store verify`` finds, and what the official store reads from copy and original. At last, an official
broker starts with the copied directory as its own, and an official consumer takes all messages from it. Exit status: 0
if all checks passed, 1 if one failed, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conformance.store.contents import GEOMETRY
from tests.conformance.store.run import Case, OfficialError, official
from tools.peers.packages import SERVER_VERSION, PeerError, java_program, need
from tools.peers.servers import OURS, JavaServers, Servers, port_of

from rucola import (
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    SimpleConsumer,
    TransactionProducer,
)
from rucola.broker.ha.master_broker import MasterBroker
from rucola.client.config import ClientConfig
from rucola.runtime.clock import SystemClock
from rucola.store.offline.offline_store import OfflineStore

SETTINGS = {
    **GEOMETRY,
    "messageDelayLevel": "1s 2s 3s 1h",
    "diskMaxUsedSpaceRatio": 95,
    "maxTransferBytesOnMessageInMemory": 1 << 20,
}
TOPIC, QUEUES = "Copied", 4
VERSIONS = ("4.9.7", "5.3.3", "5.5.0")
WAIT_S = 60.0
TOOLS = Path(__file__).resolve().parent / "admin" / "java"
TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")


PROCESSES: list[subprocess.Popen[str]] = []
"""All replicas; none may outlive the run."""


class Decides:
    """The local transactions: every third is rolled back, every fourth stays undecided."""

    def execute_local_transaction(self, message: Message, argument: object) -> LocalTransactionState:
        number = int(message.body.split()[0])
        if number % 4 == 3:
            return LocalTransactionState.UNKNOW
        return LocalTransactionState.ROLLBACK_MESSAGE if number % 3 == 2 else LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.UNKNOW


class Master(JavaServers):
    """The official servers of any version."""

    def __init__(self, version: str, store: Path) -> None:
        super().__init__(version=version, settings=SETTINGS, store=store)
        self._is_4 = version < "5"

    def _start(self) -> None:
        folder = self._temporary / "home" / "conf"
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("namesrv", "broker"):  # servers before 5.0 do not start without logging files
            (folder / f"logback_{name}.xml").write_text("<configuration/>\n")
        super()._start()
        if self._is_4:
            self.ha = f"127.0.0.1:{port_of(self.broker) + 1}"  # whatever haListenPort says


async def produce(namesrv: str, count: int, pops: bool = True) -> None:
    """Sends about ``count`` messages: plain, large, in batches, delayed, in transactions; and pops some."""
    keys = max(500, count // 4)  # the official store finds 64 messages of a key at most
    async with Producer("plain", namesrv) as producer:
        for number in range(0, count, 10):
            await asyncio.gather(
                *[
                    producer.send(Message(TOPIC, b"%d " % index * 20, keys=f"k{index % keys}", tags=f"tag{index % 3}"))
                    for index in range(number, number + 8)
                ]
            )
            await producer.send(Message(TOPIC, b"x" * (number % 40_000 + 1)))
            await producer.send_batch([Message(TOPIC, b"member %d" % index) for index in range(4)])
            if number % 50 == 0:
                await producer.send(Message(TOPIC, b"later", delay_level=1 + number % 4))
    async with TransactionProducer("transactions", namesrv, Decides()) as transactions:
        for number in range(count // 20):
            await transactions.send_message_in_transaction(Message(TOPIC, b"%d in a transaction" % number))
    if not pops:
        return
    consumer = SimpleConsumer("popping", namesrv)
    await consumer.subscribe(TOPIC)
    async with consumer:
        for _ in range(5):
            for message in await consumer.receive():
                if message.queue_offset % 2:
                    await consumer.ack(message)


class Copy:
    """A process of ``rucola replica``.

    Attributes:
        facts: what it said when it was ready.
    """

    def __init__(self, servers: JavaServers, store: Path, *more: str) -> None:
        command = [sys.executable, "-m", "rucola", "replica", "--master", servers.ha, "--broker", servers.broker]
        command += ["--store", str(store), "--hidden", "--json", *more]
        self.process = subprocess.Popen(
            command, env={**os.environ, **OURS}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        PROCESSES.append(self.process)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise PeerError(f"the replica did not start: {self.end()}")
        self.facts: dict[str, Any] = json.loads(line)

    def end(self, number: int | None = None) -> str:
        """Sends a signal, if one is given, and returns what the process wrote to standard error."""
        if number is not None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=WAIT_S)
        return errors


class Checks:
    """Counts and prints checks."""

    def __init__(self) -> None:
        self.failed = 0

    def check(self, name: str, found: object, expected: object) -> None:
        """Prints whether ``found`` is ``expected``."""
        self.failed += found != expected
        print(f"{'ok  ' if found == expected else 'FAIL'} {name}", end="")
        print("" if found == expected else f": found {str(found)[:300]}, expected {str(expected)[:300]}", flush=True)


def exit_status(play: Callable[[Checks], None]) -> int:
    """Plays scenarios, and ends all replicas; returns 0 if all checks passed, 1 if one failed, 2 without a set-up."""
    checks = Checks()
    try:
        play(checks)
    except PeerError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    finally:
        for process in PROCESSES:
            process.kill()
    return 1 if checks.failed else 0


def main(arguments: list[str]) -> int:
    """Runs the scenario."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.replica", description=__doc__)
    parser.add_argument("--messages", type=int, default=3000, help="number of messages")
    parser.add_argument("--version", action="append", choices=VERSIONS, help="only this version of the master")
    options = parser.parse_args(arguments)

    def play(checks: Checks) -> None:
        for version in options.version or (SERVER_VERSION,):
            print(f"a master of {version}", flush=True)
            with TemporaryDirectory(prefix="rucola-replica-") as name:
                directory = Path(name)
                with Master(version, directory / "master") as servers:
                    end = copied(checks, servers, directory, options.messages, pops=version >= "5")
                count = compare(checks, directory, version, end)
                with Master(version, directory / "copy") as servers:
                    checks.check("an official broker on the copy: messages consumed", consumed(servers), count)

    return exit_status(play)


def copied(checks: Checks, servers: JavaServers, directory: Path, messages: int, pops: bool) -> int:
    """Sends and copies, with kills; afterwards the copy has everything up to the offset that is returned."""
    store = directory / "copy"
    asyncio.run(produce(servers.namesrv, messages // 4, pops))
    first = Copy(servers, store)
    wait("the copy begins", lambda: size_of(store) > 0)
    first.end(signal.SIGKILL)
    second = Copy(servers, store)
    checks.check(
        "the segments have the master's size", second.facts["segmentBytes"], SETTINGS["mappedFileSizeCommitLog"]
    )
    asyncio.run(produce(servers.namesrv, messages // 4, pops))
    second.end(signal.SIGKILL)
    third = Copy(servers, store)
    servers.restart()
    asyncio.run(produce(servers.namesrv, messages // 2, pops))
    time.sleep(6)  # delayed messages are delivered
    other = subprocess.run(
        [sys.executable, "-m", "rucola", "replica", "--master", servers.ha, "--store", str(store), "--hidden"],
        env={**os.environ, **OURS},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    checks.check(
        "a second replica in the directory is refused", (other.returncode, "in use" in other.stderr), (4, True)
    )
    errors = third.end(signal.SIGTERM)
    checks.check(f"SIGTERM ends the replica ({errors[-300:]!r})", third.process.returncode, 0)
    end = asyncio.run(end_of(servers.broker))
    last = Copy(servers, store, "--until", "now")
    errors = last.end()
    checks.check(f"--until now ends by itself ({errors[-300:]!r})", last.process.returncode, 0)
    return end


async def end_of(broker: str) -> int:
    """Where the log of a broker ends."""
    asked = MasterBroker(broker, ClientConfig(), SystemClock())
    try:
        return (await asked.log_bounds()).max_offset
    finally:
        await asked.close()


def compare(
    checks: Checks,
    directory: Path,
    version: str = SERVER_VERSION,
    end: int | None = None,
    copy_lacks_keys: bool = False,
) -> int:
    """Compares the copy with the master's files; both have stopped.

    Args:
        version: of the official store that reads both.
        end: where the copy may end, because the master has gone on by itself; None if both must end at one place.
        copy_lacks_keys: whether the index of the copy may lack keys, because an official broker was killed there. That
            of the master always may: it was killed, and the official store opens it (docs/reference/store.md 7).

    Returns:
        Number of messages in the queues of the topic.
    """
    master, copy = directory / "master", directory / "copy"
    logs = [log_of(path) for path in (master, copy)]
    wanted = len(logs[0]) if end is None else end
    checks.check(f"the copy has {len(logs[1])} bytes, wanted {wanted}", len(logs[1]) >= wanted, True)
    checks.check("bytes of both logs", logs[0].startswith(logs[1]), True)
    for name in TABLES:
        checks.check(f"{name} is there", (copy / "config" / name).exists(), True)
    topics = json.loads((copy / "config" / "topics.json").read_text())["topicConfigTable"]
    checks.check("the topic is among the topics", TOPIC in topics, True)
    verified(checks, copy, copy_lacks_keys)
    lines = [f"queue\t{TOPIC}\t{queue_id}" for queue_id in range(QUEUES)]
    lines += [f"key\t{TOPIC}\tk{number}" for number in range(0, 500, 10)]
    (directory / "list").write_text("\n".join(lines))
    case = Case(version, False, False)
    try:
        answers = [official(case, store, directory / "list") for store in (master, copy)]
    except OfficialError as error:
        checks.check("the official store", str(error), "")
        return -1
    count = sum(len(answer.get("messages", ())) for answer in answers[1])
    print(f"the official store reads {count} messages from the copy")
    for line, found, expected in zip(lines, answers[1], answers[0], strict=False):
        if line.startswith("key"):
            copied = {one["physicalOffset"]: one for one in found["messages"]}
            wrong = [
                one
                for one in expected["messages"]
                if copied.get(one["physicalOffset"], one if copy_lacks_keys else None) != one
            ]
            if wrong or not copied:
                checks.check(f"{line}: {len(copied)} messages", wrong, [])
        else:
            checks.check(f"{line}: {len(found['messages'])} messages", found == expected, True)
    return sum(len(answer["messages"]) for line, answer in zip(lines, answers[1], strict=False) if line[0] == "q")


def verified(checks: Checks, store: Path, lacks_keys: bool) -> None:
    """Checks that ``rucola store verify`` finds nothing but, perhaps, records without keys in the index."""
    command = [sys.executable, "-m", "rucola", "store", "verify", "--json", str(store)]
    done = subprocess.run(command, env={**os.environ, **OURS}, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout or "{}")
    kinds = report.get("counts", {"no report": done.stderr[-200:]})
    if lacks_keys and (lost := kinds.pop("keys_missing", 0)):
        print(f"the official broker has lost the keys of {lost} records")
    checks.check(f"rucola store verify: {report.get('records')} records", kinds, {})


def consumed(servers: Servers) -> int:
    """Number of messages of the topic that the official ``mqadmin`` consumes."""
    home = servers.store.parent
    command = [need("java", "install Java 17"), "-Xmx256m", f"-Duser.home={home}", "-Drocketmq.client.logLevel=ERROR"]
    command += ["-cp", java_program(TOOLS, SERVER_VERSION), "org.apache.rocketmq.tools.command.MQAdminStartup"]
    command += ["consumeMessage", "-n", servers.namesrv, "-t", TOPIC, "-c", str(1 << 30)]
    done = subprocess.run(command, cwd=home, capture_output=True, timeout=WAIT_S * 10, check=False)
    return sum(line.startswith(b"MSGID: ") for line in done.stdout.splitlines())


def log_of(store: Path) -> bytes:
    """The bytes of a log up to its end."""
    segments = sorted((store / "commitlog").iterdir(), key=lambda path: int(path.name))
    opened = OfflineStore(str(store))
    end = opened.end_offset()
    opened.close()
    return b"".join(path.read_bytes() for path in segments)[: end - int(segments[0].name)]


def size_of(store: Path) -> int:
    """Number of segments of a log."""
    return len(list((store / "commitlog").glob("0*")))


def wait(what: str, reached: Callable[[], bool], seconds: float = WAIT_S) -> None:
    """Waits until ``reached`` returns True.

    Raises:
        PeerError: it did not within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise PeerError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
