"""A name server and a broker of ours with faults of processes and clocks."""

from __future__ import annotations

import os
import signal
import subprocess

from tools.peers.packages import ROOT
from tools.peers.servers import MixedServers


class FaultServers(MixedServers):
    """Name server and broker are killed, stopped and started one by one."""

    def __init__(self) -> None:
        settings = {
            "flushDiskType": "ASYNC_FLUSH",  # acknowledged messages survive a killed process
            "registerNameServerPeriod": 10_000,
            "messageDelayLevel": "1s" + 17 * " 1s",
        }
        super().__init__("rucola", ("rucola",), settings)

    def kill_broker(self) -> None:
        """SIGKILL."""
        self._kill(self._processes.pop())

    def start_broker(self) -> None:
        """Start it over the same store, on another port."""
        self.broker = self._rucola_broker("broker-rucola")

    def restart_namesrv(self) -> None:
        """SIGKILL and a start on the same port: the name server then knows no broker until one registers."""
        self._kill(self._processes.pop(0))
        self._rucola("namesrv", "--port", self.namesrv.rpartition(":")[2])
        self._processes.insert(0, self._processes.pop())

    def blackhole_broker(self, begins: bool) -> None:
        """Requests reach a socket that nobody reads; no connection closes."""
        os.kill(self._processes[-1].pid, signal.SIGSTOP if begins else signal.SIGCONT)

    def set_back_clock_of_broker(self) -> None:
        """By ``stepped_broker.STEP_MS``."""
        os.kill(self._processes[-1].pid, signal.SIGUSR1)

    def _spawn(
        self, command: list[str], log: str, environment: dict[str, str], capture: bool = False
    ) -> subprocess.Popen[bytes]:
        if "broker" in command:
            command = [command[0], "-m", "tests.scenario.stepped_broker", *command[3:]]
            environment = environment | {"PYTHONPATH": os.pathsep.join((str(ROOT), environment["PYTHONPATH"]))}
        return super()._spawn(command, log, environment, capture)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
