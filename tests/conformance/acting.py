"""A slave that acts for its master, in groups of ours and official brokers: ``python -m tests.conformance.acting``.

Two official consumers, one of them orderly, read from the master. It is killed with SIGKILL: they go on at the slave,
whose offsets move. They are killed, too, and the master is started again: before it is in the route, it has the offsets
of the slave. The consumers start again, and get nothing that they have committed before; sends work. Exit status: 0 if
all checks passed, 1 if one failed, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conformance.ha_master import SLAVE_HEAP, ask
from tests.conformance.ha_slave import end_of, groups_of
from tests.conformance.replica import QUEUES, SETTINGS, Checks, exit_status, wait
from tools.peers.packages import ROOT, SERVER_VERSION, PeerError, need, server_classpath
from tools.peers.servers import (
    BROKER_HEAP,
    JAVA_OPTIONS,
    JavaServers,
    environment_of,
    facts_of,
    free_port,
    port_of,
    wait_for_port,
)

from rucola import Message, Producer
from rucola.errors import BrokerError, RemotingError, RucolaError
from rucola.formats.tables import decode_consumer_offsets
from rucola.protocol.codes import RequestCode
from rucola.remoting.client import RemotingClient
from rucola.remoting.name_server_api import NameServerApi

TOPIC, PLAIN, ORDERLY = "Acted", "plain-group", "orderly-group"
PAUSE_MS = 20
ACTS = {"enableSlaveActingMaster": "true", "totalReplicas": 2, "slaveReadEnable": "true"}
"""An official slave reads only with ``slaveReadEnable``; ours acts without."""
NAMESRV = {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"}
GROUPS = {
    "ours behind official servers": ("java", "java", "rucola"),
    "an official slave behind ours": ("rucola", "rucola", "java"),
    "ours": ("rucola", "rucola", "rucola"),
}
"""Which name server, master and slave each group has."""
TABLES_S = 90.0
"""An official slave copies the consumer offsets once a minute."""
Offsets = dict[str, dict[int, int]]


class Group(JavaServers):
    """A name server, a master and a slave, each a process of its own.

    Attributes:
        slave_address: the slave's address for clients.
    """

    def __init__(self, directory: Path, kinds: tuple[str, str, str]) -> None:
        super().__init__(version=SERVER_VERSION, store=directory / "master")
        self._kinds, self._directory = kinds, directory
        self.broker, self.slave_address = (f"127.0.0.1:{free_port(neighbour=-2)}" for _ in range(2))
        self.ha = f"127.0.0.1:{free_port()}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def _start(self) -> None:
        (self._temporary / "home" / "conf").mkdir(parents=True)
        port = free_port()
        self.namesrv = f"127.0.0.1:{port}"
        self._configure("namesrv.conf", listenPort=port, bindAddress="127.0.0.1", **NAMESRV)
        if self._kinds[0] == "java":
            self._java("org.apache.rocketmq.namesrv.NamesrvStartup", "namesrv", "-Xms256m", "-Xmx256m")
            wait_for_port(port)
        else:
            facts_of(self._rucola("namesrv", "namesrv.log", "-c", "namesrv.conf", "--json"), self)
        self.start_master()
        self._start_broker_of("slave", self._kinds[2], brokerRole="SLAVE", brokerId=1, haListenPort=free_port())

    def start_master(self) -> None:
        """Starts the master; its ports stay the same."""
        self._start_broker_of(
            "master", self._kinds[1], brokerRole="ASYNC_MASTER", brokerId=0, haListenPort=port_of(self.ha)
        )

    def kill(self, name: str) -> None:
        """Kills ``master`` or ``slave`` with SIGKILL."""
        process = self._running.pop(name)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._processes.remove(process)

    def _start_broker_of(self, name: str, kind: str, **values: Any) -> None:
        store = self._directory / name
        address = self.broker if name == "master" else self.slave_address
        self._configure(
            f"{name}.conf",
            brokerClusterName="DefaultCluster",
            brokerName="broker-a",
            brokerIP1="127.0.0.1",
            bindAddress="127.0.0.1",
            listenPort=port_of(address),
            namesrvAddr=self.namesrv,
            storePathRootDir=store,
            storePathCommitLog=store / "commitlog",
            **{"brokerIP2": "127.0.0.1"} if kind == "java" else {},
            **SETTINGS | ACTS | values,
        )
        if kind == "java":
            java, heap = need("java", "install Java 17"), BROKER_HEAP if name == "master" else SLAVE_HEAP
            home = self._temporary / f"home-{name}"
            (home / "conf").mkdir(parents=True, exist_ok=True)
            command = [java, *JAVA_OPTIONS, *heap, f"-Duser.home={home}", "-cp", self._classpath]
            command += ["org.apache.rocketmq.broker.BrokerStartup", "-c", f"{name}.conf"]
            self._running[name] = self._spawn(command, f"{name}.log", {"ROCKETMQ_HOME": str(home)})
            wait_for_port(port_of(address))
        else:
            self._running[name] = self._rucola("broker", f"{name}.log", "-c", f"{name}.conf", "--json")
            facts_of(self._running[name], self)

    def _rucola(self, command: str, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        whole = [sys.executable, "-m", "rucola", command, *arguments]
        return self._spawn(whole, log, environment_of(ROOT), capture=True)


class Consumers:
    """The two official consumers, in a process of their own; use it as ``with``.

    Attributes:
        consumed: group, queue and queue offset of each message, in order.
    """

    def __init__(self, namesrv: str) -> None:
        java = need("java", "install Java 17")
        source = str(Path(__file__).with_name("ha") / "Acting.java")
        command = [java, "-Xmx256m", "-Drocketmq.client.logLevel=ERROR", "-cp", server_classpath(SERVER_VERSION)]
        command += [source, namesrv, TOPIC, PLAIN, ORDERLY, str(PAUSE_MS)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.consumed: list[tuple[str, int, int]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Consumers:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def counts(self) -> tuple[int, int]:
        """How many different messages each group has consumed."""
        done = set(self.consumed)
        return sum(one[0] == PLAIN for one in done), sum(one[0] == ORDERLY for one in done)

    def _read(self) -> None:
        for line in self._process.stdout or ():
            group, _, rest = line.strip().partition(" ")
            if group in (PLAIN, ORDERLY):
                queue_id, queue_offset = rest.split()
                self.consumed.append((group, int(queue_id), int(queue_offset)))


async def route_of(namesrv: str) -> tuple[dict[int, str], int]:
    """The addresses of the brokers in the topic's route, by their numbers, and the permissions of its queues."""
    client = RemotingClient()
    try:
        route = await NameServerApi(client).route_info(namesrv, TOPIC)
        return dict(route.broker_datas[0].broker_addrs), route.queue_datas[0].perm
    except BrokerError:  # there is no route yet
        return {}, 0
    finally:
        await client.close()


async def send(namesrv: str, count: int) -> int:
    """Sends messages; returns how many were taken."""
    taken = 0
    async with Producer("acting", namesrv) as producer:
        for number in range(count):
            try:
                await producer.send(Message(TOPIC, b"%d" % number))
                taken += 1
            except RucolaError:
                return taken
    return taken


def offsets_of(address: str) -> Offsets:
    """The consumer offsets of both groups at a broker, by group and queue."""
    try:
        body = bytes(asyncio.run(ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)).body)
    except RemotingError:
        return {}
    table = decode_consumer_offsets(body)[1]
    return {group: dict(table.get(f"{TOPIC}@{group}", {})) for group in (PLAIN, ORDERLY)}


def is_at_least(offsets: Offsets, others: Offsets) -> bool:
    """Whether no offset is smaller than the other one."""
    return all(
        offsets.get(group, {}).get(queue_id, 0) >= offset
        for group, queues in others.items()
        for queue_id, offset in queues.items()
    )


def total(offsets: Offsets, group: str) -> int:
    """The sum of the offsets of a group."""
    return sum(offsets.get(group, {}).values())


def played(checks: Checks, servers: Group, messages: int) -> None:
    """Kills the master, and starts it again."""
    slave = servers.slave_address
    both = {0: servers.broker, 1: slave}
    wait("the master creates the topic", lambda: asyncio.run(send(servers.namesrv, 1)) == 1)
    checks.check("messages are sent", asyncio.run(send(servers.namesrv, messages)), messages)
    wait("master and slave are in the route", lambda: asyncio.run(route_of(servers.namesrv)) == (both, 6), 90)
    wait("the slave has the log", lambda: end_of(slave) == end_of(servers.broker), 90)
    with Consumers(servers.namesrv) as consumers:
        wait("the consumers begin", lambda: min(consumers.counts()) > messages // 10)
        wait("the slave knows the groups", lambda: {PLAIN, ORDERLY} <= set(groups_of(slave)[1]), TABLES_S)
        wait(
            "the slave has offsets of both",
            lambda: all(total(offsets_of(slave), g) for g in (PLAIN, ORDERLY)),
            TABLES_S,
        )
        checks.check("more messages are sent", asyncio.run(send(servers.namesrv, messages)), messages)
        wait("the slave has them", lambda: end_of(slave) == end_of(servers.broker), 90)
        at_kill = offsets_of(servers.broker)
        servers.kill("master")
        acting = ({0: slave}, 4)
        wait("the slave is shown as the master", lambda: asyncio.run(route_of(servers.namesrv)) == acting)
        before = consumers.counts()
        checks.check(f"{before} of {2 * messages} are consumed", max(before) < 3 * messages // 2, True)
        checks.check("sends are refused", asyncio.run(send(servers.namesrv, 1)), 0)
        more = messages // 5
        wait("the plain consumer goes on", lambda: consumers.counts()[0] >= before[0] + more, 120)
        wait("the orderly consumer goes on", lambda: consumers.counts()[1] >= before[1] + more, 120)
        for group in (PLAIN, ORDERLY):
            wait(f"offsets of {group} move", lambda g=group: total(offsets_of(slave), g) > total(at_kill, g))
    done = set(consumers.consumed)
    committed = offsets_of(slave)
    servers.start_master()
    wait("the master is in the route", lambda: asyncio.run(route_of(servers.namesrv)) == (both, 6), 90)
    checks.check("it has the offsets of the slave", is_at_least(offsets_of(servers.broker), committed), True)
    taken = asyncio.run(send(servers.namesrv, messages // 10))
    checks.check("sends work again", taken, messages // 10)
    with Consumers(servers.namesrv) as consumers:
        wait(
            "everything is consumed", lambda: len(done | set(consumers.consumed)) == 2 * (1 + 2 * messages + taken), 240
        )
    again = [one for one in consumers.consumed if one[2] < committed[one[0]].get(one[1], 0)]
    checks.check("nothing that was committed came again", again, [])
    twice = len(done & set(consumers.consumed))
    print(f"     {twice} of {2 * (1 + 2 * messages)} came again that were not committed", flush=True)
    wait("the slave has the log again", lambda: end_of(slave) == end_of(servers.broker), 90)
    checks.check("queues are numbered from 0", {one[1] for one in done}, set(range(QUEUES)))


def main(arguments: list[str]) -> int:
    """Runs the scenario once for each group."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.acting", description=__doc__)
    parser.add_argument("--messages", type=int, default=1500, help="number of messages")
    parser.add_argument("--group", action="append", choices=GROUPS, help="only this group")
    options = parser.parse_args(arguments)

    def play(checks: Checks) -> None:
        for name in options.group or GROUPS:
            print(f"a group of {name}" if name == "ours" else f"a group: {name}", flush=True)
            with (
                TemporaryDirectory(prefix="rucola-acting-") as directory,
                Group(Path(directory), GROUPS[name]) as group,
            ):
                try:
                    played(checks, group, options.messages)
                except PeerError as error:
                    raise PeerError(f"{error}\n{group.log()}") from None

    return exit_status(play)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
