"""A slave of ours that serves, behind an official master or behind ours: ``python -m tests.conformance.ha_slave``.

Messages of all kinds go to the master. In the middle, the slave is killed with SIGKILL and started again, then the
master. At the end the master is killed for good, while a slow consumer of the official client still has messages to
read: it goes on at the slave. Then the bytes of both logs are compared, and what the official store reads from both.
Last, the slave becomes the master. Exit status: 0 if all checks passed, 1 if one failed, 2 if the set-up failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conformance.ha_master import ask, maximums
from tests.conformance.replica import QUEUES, SETTINGS, TOPIC, Checks, compare, exit_status, produce, wait
from tools.peers.packages import ROOT, SERVER_VERSION, PeerError, need, server_classpath
from tools.peers.servers import (
    OURS,
    JavaServers,
    environment_of,
    facts_of,
    free_port,
    port_of,
)

from rucola import Message, Producer
from rucola.errors import BrokerError
from rucola.protocol.bodies.configs import SubscriptionGroupWrapper
from rucola.protocol.bodies.ha import HARuntimeInfo
from rucola.protocol.bodies.registration import TopicConfigSerializeWrapper
from rucola.protocol.codes import RequestCode
from rucola.remoting.client import RemotingClient
from rucola.remoting.name_server_api import NameServerApi

MASTERS = ("rucola", "5.3.3", "4.9.7", "5.5.0")
GROUP = "following"
PAUSES_S = 60
"""Seconds for which the consumer pauses, over all messages: so it is still reading when the master dies."""


class SlavePair(JavaServers):
    """A name server, a master of one kind and a slave of ours, each a process of its own.

    Attributes:
        slave_store: the slave's directory.
        slave_address: its address for clients.
        pops: whether the master knows POP.
    """

    def __init__(self, directory: Path, master: str) -> None:
        super().__init__(version=SERVER_VERSION if master == "rucola" else master, store=directory / "master")
        self.settings = dict(SETTINGS)
        self.name = f"a slave of {master}"
        self.slave_store = directory / "copy"
        self.slave_address = f"127.0.0.1:{free_port(neighbour=-2)}"
        self._is_ours = master == "rucola"
        self.pops = not master.startswith("4.")
        self._master: subprocess.Popen[bytes] | None = None
        self._slave: subprocess.Popen[bytes] | None = None

    def _start(self) -> None:
        (self._temporary / "home" / "conf").mkdir(parents=True)
        for server in ("namesrv", "broker"):  # 4.9.7 does not start without
            (self._temporary / "home" / "conf" / f"logback_{server}.xml").write_text("<configuration/>\n")
        if self._is_ours:
            process = self._rucola("namesrv", "namesrv.log", "--port", "0", "--json")
            self.namesrv = facts_of(process, self)["namesrv"]
            self.broker = f"127.0.0.1:{free_port(neighbour=-2)}"
            self.ha = f"127.0.0.1:{free_port()}"
        else:
            self.namesrv = self._start_namesrv()
        self.start_master()

    def start_master(self) -> None:
        """Starts the master; its ports stay the same."""
        if not self._is_ours:
            self.broker = self._start_broker("broker-a")
            self._master = self._processes[-1]
        else:
            self._master = self._broker("master.conf", self.store, self.broker, haListenPort=port_of(self.ha))
        wait("the master is in the route", lambda: 0 in asyncio.run(brokers_of(self.namesrv)))

    def start_slave(self, **values: Any) -> None:
        """Starts the slave, or what it becomes."""
        slave = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true", "haListenPort": free_port()} | values
        self._slave = self._broker("slave.conf", self.slave_store, self.slave_address, **slave)

    def kill_master(self) -> None:
        """Kills the master, not the name server."""
        self._kill(self._master)

    def kill_slave(self) -> None:
        """Kills the slave."""
        self._kill(self._slave)

    def stop_slave(self) -> str:
        """Stops the slave, so that its files are complete."""
        assert self._slave is not None
        self._slave.terminate()
        self._slave.wait(60)
        self._forget(self._slave)
        return str(self._slave.returncode)

    def _broker(self, conf: str, store: Path, address: str, **values: Any) -> subprocess.Popen[bytes]:
        usual = {"brokerRole": "ASYNC_MASTER", "flushDiskType": "ASYNC_FLUSH", "storePathRootDir": store}
        self._configure(conf, listenPort=port_of(address), **usual | self.settings | values)
        process = self._rucola("broker", conf.replace("conf", "log"), "-c", conf, "-n", self.namesrv, "--json")
        facts_of(process, self)
        return process

    def _rucola(self, command: str, log: str, *arguments: str) -> subprocess.Popen[bytes]:
        whole = [sys.executable, "-m", "rucola", command, *arguments]
        return self._spawn(whole, log, environment_of(ROOT), capture=True)

    def _kill(self, process: subprocess.Popen[bytes] | None) -> None:
        assert process is not None
        process.kill()
        process.wait()
        self._forget(process)

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdout is not None:
            process.stdout.close()
        self._processes.remove(process)


class Consumer:
    """A consumer of the official client in a process of its own; use it as ``with``."""

    def __init__(self, namesrv: str, messages: int) -> None:
        java = need("java", "install Java 17")
        source = str(Path(__file__).with_name("ha") / "Following.java")
        command = [java, "-Xmx256m", "-Drocketmq.client.logLevel=ERROR", "-cp", server_classpath(SERVER_VERSION)]
        command += [source, namesrv, TOPIC, GROUP, str(PAUSES_S * 1_000_000 // messages)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.count = -1
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            if line.strip().isdigit():
                self.count = int(line)


async def brokers_of(namesrv: str) -> dict[int, str]:
    """The addresses of the brokers in the route, by their numbers."""
    client = RemotingClient()
    try:
        route = await NameServerApi(client).route_info(namesrv, "TBW102")
        return dict(route.broker_datas[0].broker_addrs)
    except BrokerError:  # there is no route yet
        return {}
    finally:
        await client.close()


def end_of(address: str) -> int:
    """Where a broker's log ends."""
    body = asyncio.run(ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)).body
    return int(json.loads(bytes(body))["table"]["commitLogMaxOffset"])


def is_in_step(pair: SlavePair) -> bool:
    """Whether the slave has the whole log."""
    return end_of(pair.slave_address) == end_of(pair.broker)


def groups_of(address: str) -> tuple[object, dict[str, Any]]:
    """The groups of a broker, with their version."""
    body = asyncio.run(ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
    table = SubscriptionGroupWrapper.decode(body)
    return table.data_version, dict(table.subscription_group_table)


def tables_of(address: str) -> tuple[object, object, object]:
    """Topics and groups of a broker, with their versions."""
    body = asyncio.run(ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)).body
    topics = TopicConfigSerializeWrapper.decode(body)
    return topics.data_version, topics.topic_config_table, groups_of(address)


def mqadmin(*arguments: str) -> str:
    """What the official tool prints."""
    java = need("java", "install Java 17")
    tool = "org.apache.rocketmq.tools.command.MQAdminStartup"
    command = [java, "-Xmx256m", "-cp", server_classpath(SERVER_VERSION), tool, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.stdout + done.stderr


def played(checks: Checks, pair: SlavePair, messages: int) -> None:
    """Sends, with kills; at the end the master is gone, and the slave is stopped."""
    asyncio.run(produce(pair.namesrv, messages // 3, pair.pops))
    pair.start_slave()
    wait("the slave has everything", lambda: is_in_step(pair))
    pair.kill_slave()
    asyncio.run(produce(pair.namesrv, messages // 3, pair.pops))
    pair.start_slave()
    wait("the slave is back", lambda: is_in_step(pair))
    pair.kill_master()
    pair.start_master()
    asyncio.run(produce(pair.namesrv, messages // 3, pair.pops))
    time.sleep(6)  # delayed messages are delivered
    wait("the slave finds the master again", lambda: is_in_step(pair))
    shown_by_tools(checks, pair)
    had = maximums(pair.broker)
    with Consumer(pair.namesrv, sum(had)) as consumer:
        wait("the consumer begins", lambda: consumer.count > 0)
        wait("the slave knows its group", lambda: GROUP in groups_of(pair.slave_address)[1])
        wait("the slave dispatches", lambda: maximums(pair.slave_address) == had)
        wait("the tables are in step", lambda: tables_of(pair.slave_address) == tables_of(pair.broker))
        before, total = consumer.count, sum(had)
        pair.kill_master()
        checks.check(f"the consumer has read {before} of {total}", before < total, True)
        while (count := consumer.count) < total:
            wait(f"the consumer reads the rest at the slave, {count} of {total}", lambda: consumer.count > count)
        checks.check("it has read every message", consumer.count, total)
    checks.check("the slave serves when the master is gone", maximums(pair.slave_address), had)
    checks.check("SIGTERM ends the slave", pair.stop_slave(), "0")


def shown_by_tools(checks: Checks, pair: SlavePair) -> None:
    """What the official tool shows of the slave."""
    listed = mqadmin("clusterList", "-n", pair.namesrv)
    line = next((line.split() for line in listed.splitlines() if pair.slave_address in line), [])
    checks.check("official clusterList shows the slave", line[1:4], ["broker-a", "1", pair.slave_address])
    status = HARuntimeInfo.decode(asyncio.run(ask(pair.slave_address, RequestCode.GET_BROKER_HA_STATUS)).body)
    master = str(status.ha_client_runtime_info.master_addr)
    # A broker of 4.9 listens for slaves at listenPort + 1, whatever haListenPort says.
    ports = {pair.ha, f"127.0.0.1:{port_of(pair.broker) + 1}"}
    checks.check("the slave names its master", (status.master, master in ports), (False, True))
    shown = mqadmin("haStatus", "-n", pair.namesrv, "-b", pair.slave_address)
    checks.check("official haStatus reads the slave", master in shown, True)


def promoted(checks: Checks, pair: SlavePair) -> None:
    """Makes the slave the master."""
    pair.start_slave(brokerRole="ASYNC_MASTER", brokerId=0)
    before = maximums(pair.slave_address)

    async def send() -> list[tuple[int, int]]:
        async with Producer("promoted", pair.namesrv) as producer:
            sent = [await producer.send(Message(TOPIC, b"%d" % number)) for number in range(4 * QUEUES)]
        return [(one.message_queue.queue_id, one.queue_offset) for one in sent]

    sent = asyncio.run(send())
    following = list(before)
    for queue_id, queue_offset in sent:
        checks.failed += queue_offset != following[queue_id]
        following[queue_id] += 1
    checks.check("sends get the queue offsets that follow", maximums(pair.slave_address), following)
    checks.check("SIGTERM ends the promoted broker", pair.stop_slave(), "0")
    done = subprocess.run(
        [sys.executable, "-m", "rucola", "store", "verify", str(pair.slave_store)],
        env={**OURS},
        capture_output=True,
        text=True,
        check=False,
    )
    checks.check(f"rucola store verify: {done.stdout[-200:]!r}", done.returncode, 0)


def main(arguments: list[str]) -> int:
    """Runs the scenario once for each master."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.ha_slave", description=__doc__)
    parser.add_argument("--messages", type=int, default=3000, help="number of messages")
    parser.add_argument("--master", action="append", choices=MASTERS, help="only this master")
    options = parser.parse_args(arguments)

    def play(checks: Checks) -> None:
        for master in options.master or MASTERS:
            print(f"a slave of {master}", flush=True)
            with TemporaryDirectory(prefix="rucola-slave-") as name, SlavePair(Path(name), master) as pair:
                try:
                    played(checks, pair, options.messages)
                    compare(checks, Path(name))
                    promoted(checks, pair)
                except PeerError as error:
                    raise PeerError(f"{error}\n{pair.log()}") from None

    return exit_status(play)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
