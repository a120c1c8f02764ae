"""A master and its slave as processes: ours and the official ones. The slave's CPU time is counted apart."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

from tools.peers.packages import PeerError
from tools.peers.servers import OURS, JavaServers, RucolaServers, cpu_seconds, free_port, port_of

from rucola.protocol.bodies.ha import HARuntimeInfo
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.remoting.client import RemotingClient

JOIN_S = 90.0
"""An official slave asks the name server for its master every 10 to 30 s."""
SLAVE_HEAP = ("-Xms1g", "-Xmx1g", "-Xmn512m")


class RucolaPair(RucolaServers):
    """``rucola up``, and a broker of ours as its slave, with the same kind of flush.

    Attributes:
        slave: the process of the slave.
        ha: the master's port for slaves, ``host:port``.
    """

    slave: subprocess.Popen[bytes] | None = None

    def __init__(self, flush: str, role: str) -> None:
        self.ha = f"127.0.0.1:{free_port()}"
        super().__init__(flush, settings={"brokerRole": role, "inSyncReplicas": 2, "haListenPort": port_of(self.ha)})

    def cpu_seconds(self) -> float:
        """CPU time of the master."""
        return sum(cpu_seconds(pid) for pid in self.pids if self.slave is None or pid != self.slave.pid)

    def slave_cpu_seconds(self) -> float:
        """CPU time of the slave."""
        return 0.0 if self.slave is None else cpu_seconds(self.slave.pid)

    def _start(self) -> None:
        super()._start()
        self._configure(
            "slave.conf", **_slave_options(self.namesrv, self.flush, self._temporary / "copy"), haMasterAddress=self.ha
        )
        command = [sys.executable, "-m", "rucola", "broker", "-c", "slave.conf", "-n", self.namesrv, "--json"]
        self.slave = self._spawn(command, "slave.log", OURS)
        self.settle()

    def settle(self) -> None:
        """Returns when the slave has the whole log: a connection of which one side was stopped for long is closed."""
        wait_in_step(self.broker, self.log)


class JavaPair(JavaServers):
    """The official name server, master and slave.

    Attributes:
        slave: the process of the slave; None until it is started.
        slave_store: the slave's directory.
    """

    slave: subprocess.Popen[bytes] | None = None

    def __init__(self, flush: str, role: str, store: Path | None = None, with_slave: bool = True) -> None:
        """``with_slave`` is whether the slave starts with its master."""
        super().__init__(flush, store, settings={"brokerRole": role, "inSyncReplicas": 2})
        self.slave_store = self._temporary / "copy"
        self._with_slave = with_slave

    def cpu_seconds(self) -> float:
        """CPU time of name server and master."""
        return sum(cpu_seconds(pid) for pid in self.pids if self.slave is None or pid != self.slave.pid)

    def slave_cpu_seconds(self) -> float:
        """CPU time of the slave."""
        return 0.0 if self.slave is None else cpu_seconds(self.slave.pid)

    def start_slave(self) -> None:
        """Starts the slave."""
        options = _slave_options(self.namesrv, self.flush, self.slave_store)
        self._configure("slave.conf", **options, storePathCommitLog=self.slave_store / "commitlog")
        self._java("org.apache.rocketmq.broker.BrokerStartup", "slave", *SLAVE_HEAP)
        self.slave = self._processes[-1]

    def stop_slave(self) -> None:
        """Kills the slave."""
        assert self.slave is not None
        self.slave.kill()
        self.slave.wait()
        self._processes.remove(self.slave)
        self.slave = None

    def _start(self) -> None:
        super()._start()
        if self._with_slave:
            self.start_slave()
            self.settle()

    def settle(self) -> None:
        """Returns when the slave has the whole log, if there is one."""
        if self.slave is not None:
            wait_in_step(self.broker, self.log)


def _slave_options(namesrv: str, flush: str, store: Path) -> dict[str, object]:
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 1,
        "brokerRole": "SLAVE",
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": free_port(neighbour=-2),
        "haListenPort": free_port(),
        "namesrvAddr": namesrv,
        "flushDiskType": "SYNC_FLUSH" if flush == "sync" else "ASYNC_FLUSH",
        "storePathRootDir": store,
    }


def replica_command(ha: str, broker: str, store: Path) -> list[str]:
    """The command of a replica."""
    words = ["--hidden", "--json", "--master", ha, "--broker", broker, "--store", str(store)]
    return [sys.executable, "-m", "rucola", "replica", *words]


def held_offsets(broker: str) -> list[int]:
    """The physical offsets that the slaves of a master have reported, and last the end of its log."""

    async def ask() -> HARuntimeInfo:
        client = RemotingClient()
        try:
            answer = await client.invoke(broker, RemotingCommand(RequestCode.GET_BROKER_HA_STATUS), 5000)
        finally:
            await client.close()
        return HARuntimeInfo.decode(answer.body)

    status = asyncio.run(ask())
    held = [slave.slave_ack_offset for slave in status.ha_connection_info]
    return [*held, status.master_commit_log_max_offset]


def wait_in_step(broker: str, log: object) -> None:
    """Returns when a slave has the whole log of a master.

    Args:
        log: returns the ends of the logs of the processes, for the error.

    Raises:
        PeerError: none had it in time.
    """
    deadline = time.monotonic() + JOIN_S
    while time.monotonic() < deadline:
        *held, end = held_offsets(broker)
        if any(offset >= max(end, 0) for offset in held):
            return
        time.sleep(0.2)
    raise PeerError(f"no slave of {broker} has its log after {JOIN_S:g} s; {log() if callable(log) else log}")
