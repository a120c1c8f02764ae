"""Official slaves behind a master of ours: ``python -m tests.conformance.ha_master``.

A SYNC_MASTER of ours gets messages of all kinds, and each is acknowledged when an official slave has it. In the middle,
the slave is killed with SIGKILL and started again, then the master. At the end the master is killed for good: consumers
go on at the slave. Then the bytes of both logs are compared, and what the official store reads from both. At last, a
broker of ours starts with the slave's directory as its own, and an official consumer takes all messages from it. Exit
status: 0 if all checks passed, 1 if one failed, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conformance.replica import QUEUES, SETTINGS, TOPIC, Checks, compare, consumed, exit_status, produce, wait
from tools.peers.packages import ROOT, SERVER_VERSION, PeerError, need
from tools.peers.servers import (
    JAVA_OPTIONS,
    START_TIMEOUT_S,
    JavaServers,
    RucolaServers,
    environment_of,
    facts_of,
    free_port,
    port_of,
    python_of,
)
from tools.peers.wire import wait_for_route

from rucola.protocol.bodies.ha import HARuntimeInfo
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient

VERSIONS = ("4.9.7", "5.3.3", "5.5.0")
SLAVE_HEAP = ("-Xms256m", "-Xmx384m")
TABLES_S = 35.0


class Pair(JavaServers):
    """``rucola up`` as SYNC_MASTER, and an official slave.

    Attributes:
        slave_store: the slave's directory.
        slave_address: its address for clients.
    """

    def __init__(self, directory: Path, version: str) -> None:
        super().__init__(version=version, store=directory / "master")
        self.slave_store = directory / "copy"
        self.slave_address = f"127.0.0.1:{free_port(neighbour=-2)}"
        self.ha = f"127.0.0.1:{free_port()}"
        self._master: subprocess.Popen[bytes] | None = None
        self._slave: subprocess.Popen[bytes] | None = None

    def _start(self) -> None:
        self.start_master()
        self.start_slave()

    def start_master(self) -> None:
        """Starts name server and master; their ports stay the same."""
        values = {"brokerRole": "SYNC_MASTER", "haListenPort": port_of(self.ha), **SETTINGS}
        self._configure("master.conf", **values)
        command = [python_of(ROOT), "-m", "rucola", "up", "--json", "--store", str(self.store), "--no-grpc"]
        command += ["--namesrv-port", str(port_of(self.namesrv)), "--broker-port", str(port_of(self.broker))]
        command += ["--flush", "async", "--config", "master.conf"]
        self._master = self._spawn(command, "master.log", environment_of(ROOT), capture=True)
        facts = facts_of(self._master, self)
        self.namesrv, self.broker = facts["namesrv"], facts["brokers"][0]

    def start_slave(self) -> None:
        """Starts the slave."""
        self._configure(
            "slave.conf",
            brokerClusterName="DefaultCluster",
            brokerName="broker-a",
            brokerId=1,
            brokerRole="SLAVE",
            brokerIP1="127.0.0.1",
            brokerIP2="127.0.0.1",
            bindAddress="127.0.0.1",
            listenPort=port_of(self.slave_address),
            haListenPort=free_port(),
            namesrvAddr=self.namesrv,
            storePathRootDir=self.slave_store,
            storePathCommitLog=self.slave_store / "commitlog",
            slaveReadEnable="true",
            **SETTINGS,
        )
        home = self._temporary / "home"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        (home / "conf" / "logback_broker.xml").write_text("<configuration/>\n")  # 4.9.7 does not start without
        command = [need("java", "install Java 17"), *JAVA_OPTIONS, *SLAVE_HEAP, f"-Duser.home={home}"]
        command += ["-cp", self._classpath, "org.apache.rocketmq.broker.BrokerStartup", "-c", "slave.conf"]
        self._slave = self._spawn(command, "slave.log", {"ROCKETMQ_HOME": str(home)})

    def kill_slave(self) -> None:
        """Kills the slave."""
        self._kill(self._slave)

    def kill_master(self) -> None:
        """Kills name server and master."""
        self._kill(self._master)

    def _kill(self, process: subprocess.Popen[bytes] | None) -> None:
        assert process is not None
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._processes.remove(process)

    def stop_slave(self) -> None:
        """Stops the slave, so that its files are complete."""
        assert self._slave is not None
        self._slave.terminate()
        self._slave.wait(60)
        self._processes.remove(self._slave)


class Control(Pair):
    """The same scenario with an official master: it must pass without any part of ours."""

    def __init__(self, directory: Path, version: str) -> None:
        super().__init__(directory, version)
        # Without ``inSyncReplicas`` the official SYNC_MASTER waits for no slave.
        self.settings = {"brokerRole": "SYNC_MASTER", **SETTINGS}

    def start_master(self) -> None:
        """Starts name server and master; their ports stay the same."""
        if not self.namesrv:
            self.namesrv = self._start_namesrv()
        self.broker = self._start_broker("broker-a")
        self._master = self._processes[-1]
        wait_for_route(self.namesrv, "TBW102", START_TIMEOUT_S)


async def ask(address: str, code: int, fields: dict[str, str] | None = None) -> RemotingCommand:
    """One request."""
    client = RemotingClient()
    try:
        return await client.invoke(address, RemotingCommand(code, ext_fields=fields or {}), 5000)
    finally:
        await client.close()


def status(servers: JavaServers) -> HARuntimeInfo:
    """What the master says of its slaves."""
    return HARuntimeInfo.decode(asyncio.run(ask(servers.broker, RequestCode.GET_BROKER_HA_STATUS)).body)


def is_in_step(pair: Pair) -> bool:
    """Whether the slave has the whole log."""
    found = status(pair)
    return any(
        slave.diff == 0 and slave.slave_ack_offset == found.master_commit_log_max_offset
        for slave in found.ha_connection_info
    )


def maximums(address: str) -> list[int]:
    """The queue offsets after the newest messages."""
    fields = [{"topic": TOPIC, "queueId": str(queue)} for queue in range(QUEUES)]
    answers = [asyncio.run(ask(address, RequestCode.GET_MAX_OFFSET, each)) for each in fields]
    return [int(answer.ext_fields.get("offset", -1)) for answer in answers]


def knows_topic(address: str) -> bool:
    """Whether a broker has the topic in its table."""
    return asyncio.run(ask(address, RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC})).code == 0


def played(checks: Checks, pair: Pair, messages: int) -> None:
    """Sends, with kills; afterwards the slave has everything."""
    wait("the slave connects", lambda: status(pair).in_sync_slave_nums == 1)
    asyncio.run(produce(pair.namesrv, messages // 3))
    wait("the slave has everything", lambda: is_in_step(pair))
    pair.kill_slave()
    wait("the master notes it", lambda: not status(pair).ha_connection_info)
    asyncio.run(produce(pair.namesrv, messages // 3))
    pair.start_slave()
    wait("the slave is back", lambda: is_in_step(pair))
    pair.kill_master()
    pair.start_master()
    wait("the slave finds the master again", lambda: is_in_step(pair))
    asyncio.run(produce(pair.namesrv, messages // 3))
    time.sleep(6)  # delayed messages are delivered
    wait("the slave has everything", lambda: is_in_step(pair))
    checks.check("one slave, in sync", (len(status(pair).ha_connection_info), status(pair).in_sync_slave_nums), (1, 1))
    had = maximums(pair.broker)
    wait("the slave dispatches", lambda: maximums(pair.slave_address) == had)
    for _ in range(2):  # it copies tables once a minute
        if not knows_topic(pair.slave_address):
            time.sleep(TABLES_S)
    pair.kill_master()
    checks.check("the slave serves when the master is gone", maximums(pair.slave_address), had)
    checks.check("it has messages", all(offset > 0 for offset in had), True)
    pair.stop_slave()


def main(arguments: list[str]) -> int:
    """Runs the scenario once for each version."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.ha_master", description=__doc__)
    parser.add_argument("--messages", type=int, default=3000, help="number of messages")
    parser.add_argument("--version", action="append", choices=VERSIONS, help="only this version of the slave")
    parser.add_argument("--control", action="store_true", help="the master is official, too, as a control")
    options = parser.parse_args(arguments)

    def play(checks: Checks) -> None:
        for version in options.version or (SERVER_VERSION,):
            with TemporaryDirectory(prefix="rucola-pair-") as directory:
                with (Control if options.control else Pair)(Path(directory), version) as pair:
                    try:
                        played(checks, pair, options.messages)
                    except PeerError as error:
                        raise PeerError(f"{error}\n{pair.log()}") from None
                count = compare(checks, Path(directory), copy_lacks_keys=True)
                with RucolaServers(settings=SETTINGS, store=Path(directory) / "copy") as moved:
                    checks.check("a broker of ours on the slave's directory: messages consumed", consumed(moved), count)

    return exit_status(play)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
