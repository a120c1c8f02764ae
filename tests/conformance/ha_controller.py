"""Official brokers behind a controller, the official one and ours: ``python -m tests.conformance.ha_controller``.

Two official brokers in controller mode register and follow each other. The master is killed with SIGKILL: the other one
takes over, and messages are sent again. The old one comes back as a slave. The official ``mqadmin`` reads the
controller, elects the old master again, and removes a broker that is gone; ours reads the same. Both controllers must
have the same outcomes. With ours there are two controllers on a real etcd; the leader is killed with SIGKILL before the
next master is. No acknowledged message is lost. Exit status: 0 if all checks passed, 1 if one failed, 2 if the set-up
failed.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from tests.conformance.ha_master import SLAVE_HEAP
from tests.conformance.replica import SETTINGS, Checks, consumed, exit_status, wait
from tools.peers.etcd import Etcd
from tools.peers.packages import ROOT, SERVER_VERSION, PeerError, need
from tools.peers.servers import (
    JAVA_OPTIONS,
    JavaServers,
    environment_of,
    facts_of,
    free_port,
    port_of,
    wait_for_port,
)

from rucola import Message, Producer
from rucola.errors import RemotingError, RucolaError
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient

TOPIC, GROUP = "Copied", "broker-a"
KINDS = ("java", "rucola")
START_S = 180.0
"""Longest time for a broker to register and follow, while other work uses the processors."""


class Brokers(JavaServers):
    """Name server, controllers and two brokers, each a process of its own.

    Attributes:
        controllers: the addresses of the controllers.
        addresses: the addresses of the brokers.
    """

    def __init__(self, directory: Path, kind: str, etcd: Etcd | None) -> None:
        super().__init__(version=SERVER_VERSION, store=directory / "store")
        self._kind, self._directory, self._etcd = kind, directory, etcd
        self.controllers = [f"127.0.0.1:{free_port()}" for _ in range(1 if kind == "java" else 2)]
        self.addresses = [f"127.0.0.1:{free_port(neighbour=-2)}" for _ in range(2)]
        self._ha_ports = [free_port(), free_port()]
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def _start(self) -> None:
        directory = self.store.parent
        directory.mkdir(parents=True, exist_ok=True)
        (self._temporary / "home" / "conf").mkdir(parents=True)
        self.namesrv = self._start_namesrv()
        for number in range(len(self.controllers)):
            self.start_controller(number)
        self.start_broker(0)

    def start_controller(self, number: int) -> None:
        """Starts a controller."""
        address, name = self.controllers[number], f"controller-{number}"
        if self._etcd is not None:
            command = [sys.executable, "-m", "rucola", "controller", "--etcd", self._etcd.url, "--json"]
            command += ["--listen", address]
            self._running[name] = self._spawn(command, f"{name}.log", environment_of(ROOT), capture=True)
            facts_of(self._running[name], self)
            return
        self._configure(
            f"{name}.conf",
            controllerDLegerGroup="g1",
            controllerDLegerPeers=f"n0-{address}",
            controllerDLegerSelfId="n0",
            controllerStorePath=self._directory / name,
            mappedFileSize=1 << 20,
            bindAddress="127.0.0.1",
        )
        self._java("org.apache.rocketmq.controller.ControllerStartup", name, "-Xms128m", "-Xmx256m")
        self._running[name] = self._processes[-1]
        wait_for_port(port_of(address))

    def start_broker(self, number: int) -> None:
        """Starts a broker; its ports and its directory stay the same."""
        name, store = f"broker-{number}", self._directory / f"store-{number}"
        self._configure(
            f"{name}.conf",
            brokerClusterName="DefaultCluster",
            brokerName=GROUP,
            brokerId=-1,
            brokerIP1="127.0.0.1",
            brokerIP2="127.0.0.1",
            bindAddress="127.0.0.1",
            listenPort=port_of(self.addresses[number]),
            haListenPort=self._ha_ports[number],
            namesrvAddr=self.namesrv,
            enableControllerMode="true",
            controllerAddr=";".join(self.controllers),
            allAckInSyncStateSet="true",
            storePathRootDir=store,
            storePathCommitLog=store / "commitlog",
            **SETTINGS,
        )
        home = self._temporary / f"home-{name}"
        (home / "conf").mkdir(parents=True, exist_ok=True)
        command = [need("java", "install Java 17"), *JAVA_OPTIONS, *SLAVE_HEAP, f"-Duser.home={home}"]
        command += ["-cp", self._classpath, "org.apache.rocketmq.broker.BrokerStartup", "-c", f"{name}.conf"]
        self._running[name] = self._spawn(command, f"{name}.log", {"ROCKETMQ_HOME": str(home)})

    def kill(self, name: str) -> None:
        """Kills ``broker-0``, ``broker-1`` or a controller with SIGKILL."""
        process = self._running.pop(name)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._processes.remove(process)

    def label(self, address: str | None) -> str:
        """``broker-0`` or ``broker-1``, whatever their ports."""
        return f"broker-{self.addresses.index(address)}" if address in self.addresses else str(address)

    def leader(self) -> str:
        """The address of the controller that leads; empty if none does."""
        for address in self.controllers:
            try:
                found = ask(address, 1005).ext_fields
            except RemotingError:
                continue
            if found.get("isLeader") == "true":
                return address
        return ""

    def state(self) -> tuple[str, str, tuple[str, ...]]:
        """Master, epoch and who is in sync, as the controller says; empty without an answer."""
        leader = self.leader()
        if not leader:
            return "", "", ()
        answer = ask(leader, 1006, [GROUP])
        found = orjson.loads(answer.body)["replicasInfoTable"].get(GROUP) if answer.code == 0 else None
        if found is None:
            return "", "", ()
        members = tuple(sorted(self.label(each["brokerAddress"]) for each in found["inSyncReplicas"]))
        return self.label(found.get("masterAddress")), str(found["masterEpoch"]), members

    def mqadmin(self, command: str, *words: str) -> str:
        """Output of RocketMQ's ``mqadmin``."""
        home = self._temporary / "home"
        line = [need("java", "install Java 17"), "-Xmx256m", f"-Duser.home={home}"]
        line += ["-Drocketmq.client.logLevel=ERROR", "-cp", self._classpath]
        line += ["org.apache.rocketmq.tools.command.MQAdminStartup", command, *words]
        done = subprocess.run(
            line, cwd=home, capture_output=True, text=True, timeout=START_S, check=False,
            env={"ROCKETMQ_HOME": str(home), "NAMESRV_ADDR": self.namesrv, "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        return done.stdout + done.stderr

    def our_mqadmin(self, command: str, *words: str) -> list[dict[str, Any]]:
        """Rows that our ``mqadmin`` prints; its error, if it has one, as one row."""
        line = [sys.executable, "-m", "rucola", "mqadmin", "--json", command, *words]
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=START_S, check=False, env={**environment_of(ROOT)}
        )
        return [orjson.loads(each) for each in done.stdout.splitlines()] or [{"error": done.stderr}]

    def without_addresses(self, text: str) -> str:
        """A text in which brokers and controllers have names."""
        for address in self.addresses:
            text = text.replace(address, self.label(address))
        for address in self.controllers:
            text = text.replace(address, "controller")
        return text


def ask(address: str, code: int, body: Any = None) -> RemotingCommand:
    """The answer to a request."""

    async def work() -> RemotingCommand:
        client = RemotingClient()
        try:
            return await client.invoke(address, RemotingCommand(code, body=b"" if body is None else orjson.dumps(body)))
        finally:
            await client.close()

    return asyncio.run(work())


async def send(namesrv: str, count: int) -> int:
    """Sends messages with a fresh client; returns how many were acknowledged."""
    taken = 0
    async with Producer("controlled", namesrv) as producer:
        for number in range(count):
            try:
                await producer.send(Message(TOPIC, b"%d" % number))
                taken += 1
            except RucolaError:
                return taken
    return taken


class Story:
    """What happens with one kind of controller.

    Attributes:
        outcomes: what must be equal for both kinds.
        times: seconds, printed only.
    """

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self.outcomes: dict[str, object] = {}
        self.times: dict[str, float] = {}
        self.acknowledged = 0

    def play(self) -> None:
        """Plays it."""
        it = self._brokers
        self._reach("the first broker is the master", ("broker-0", "1", ("broker-0",)))
        it.start_broker(1)
        both = ("broker-0", "broker-1")
        self._reach("the second one follows", ("broker-0", "1", both))
        self._send("messages are taken", 200)
        it.kill("broker-0")
        self._reach("the other one takes over", ("broker-1", "2", ("broker-1",)))
        self._send("messages are taken again", 200)
        it.start_broker(0)
        self._reach("the old one follows", ("broker-1", "2", both))
        self._send("messages are taken by both", 100)
        self._read()
        if len(it.controllers) > 1:
            self._lose_leader()
        found = it.mqadmin("electMaster", "-a", it.leader(), "-b", "1", "-bn", GROUP, "-c", "DefaultCluster")
        self.outcomes["mqadmin electMaster"] = _lines(it.without_addresses(found))
        self._reach("the elected one is the master", ("broker-0", "3", both))
        self._send("messages are taken by the elected one", 100)
        it.kill("broker-1")
        self._reach("it is alone", ("broker-0", "3", ("broker-0",)))
        for ids in ("1", "2"):
            words = ("-a", it.leader(), "-b", ids, "-bn", GROUP, "-c", "DefaultCluster")
            found = it.mqadmin("cleanBrokerMetadata", *words)
            self.outcomes[f"mqadmin cleanBrokerMetadata {ids}"] = _lines(found)
        self.outcomes["members"] = _lines(
            it.without_addresses(it.mqadmin("getSyncStateSet", "-a", it.leader(), "-b", GROUP))
        )
        self.outcomes["consumed"] = consumed(it) >= self.acknowledged

    def _read(self) -> None:
        """Reads with both ``mqadmin``."""
        it = self._brokers
        leader = it.leader()
        found = it.without_addresses(it.mqadmin("getSyncStateSet", "-a", leader, "-b", GROUP))
        self.outcomes["mqadmin getSyncStateSet"] = sorted(_lines(found))  # a Java set has no order
        found = it.without_addresses(it.mqadmin("getControllerMetaData", "-a", leader))
        self.outcomes["mqadmin getControllerMetaData"] = [
            line for line in _lines(found) if line.startswith("#ControllerLeaderAddress")
        ]
        group, *members = it.our_mqadmin("getSyncStateSet", "-a", leader, "-b", GROUP)
        named = [it.label(row.get("#BrokerAddr")) for row in members if row.get("#InSync")]
        self.outcomes["our getSyncStateSet"] = group.get("#MasterEpoch", group), sorted(named)
        rows = it.our_mqadmin("getBrokerEpoch", "-n", it.namesrv, "-b", GROUP)
        self.outcomes["our getBrokerEpoch"] = [row["#Epoch"] for row in rows if "#Epoch" in row]

    def _lose_leader(self) -> None:
        """Kills the controller that leads; the other one leads, and nothing else changes."""
        it = self._brokers
        before, leader = it.state(), it.leader()
        it.kill(f"controller-{it.controllers.index(leader)}")
        began = time.monotonic()
        wait("another controller leads", lambda: it.leader() not in ("", leader), 30)
        self.times["another controller leads"] = time.monotonic() - began
        time.sleep(12)  # heartbeats were due meanwhile
        if it.state() != before:
            raise PeerError(f"the state of the group changed with the leader: {before}, {it.state()}")

    def _reach(self, what: str, state: tuple[str, str, tuple[str, ...]]) -> None:
        began = time.monotonic()
        it = self._brokers
        try:
            wait(what, lambda: it.state() == state, START_S)
        except PeerError as error:
            raise PeerError(f"{error}: {it.state()}, not {state}") from None
        self.times[what] = time.monotonic() - began
        self.outcomes[what] = state

    def _send(self, what: str, count: int) -> None:
        """Waits until the route has the master, then sends."""
        namesrv, began = self._brokers.namesrv, time.monotonic()

        def is_taken() -> bool:
            taken = asyncio.run(send(namesrv, 1))
            self.acknowledged += taken
            return taken == 1

        wait(what, is_taken, START_S)
        self.times[what] = time.monotonic() - began
        taken = asyncio.run(send(namesrv, count))
        self.acknowledged += taken
        self.outcomes[what] = taken


def _lines(text: str) -> list[str]:
    """The lines of an output, without those of Java's logger and of traces, and without how often the set has changed,
    which depends on the brokers' pauses.
    """
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    return [
        line
        for line in lines
        if line and "|-" not in line and not line.startswith(("at ", "...", "#SyncStateSetEpoch"))
    ]


def main(arguments: list[str]) -> int:
    """Plays the story with both kinds of controllers, and compares."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.ha_controller", description=__doc__)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this controller")
    options = parser.parse_args(arguments)

    def play(checks: Checks) -> None:
        stories = {}
        for kind in options.kind or KINDS:
            print(f"controller: {kind}", flush=True)
            with ExitStack() as stack:
                directory = Path(stack.enter_context(TemporaryDirectory(prefix="rucola-controller-")))
                etcd = stack.enter_context(Etcd()) if kind == "rucola" else None
                brokers = stack.enter_context(Brokers(directory, kind, etcd))
                story = stories[kind] = Story(brokers)
                try:
                    story.play()
                except (PeerError, subprocess.TimeoutExpired) as error:
                    raise PeerError(f"{error}\n{brokers.log()}") from None
            for what, seconds in story.times.items():
                print(f"     {what}: {seconds:.1f} s", flush=True)
            for what, outcome in story.outcomes.items():
                print(f"     {what}: {outcome}", flush=True)
            checks.check("no acknowledged message is lost", story.outcomes["consumed"], True)
        if len(stories) == 2:
            java, rucola = stories["java"].outcomes, stories["rucola"].outcomes
            for what in java:
                checks.check(what, rucola.get(what), java[what])

    return exit_status(play)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
