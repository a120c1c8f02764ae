"""A name server and a broker of ours, with faults of their processes and clocks."""

from __future__ import annotations

import os
import signal
import subprocess

from tools.peers.packages import ROOT
from tools.peers.servers import MixedServers


class FaultServers(MixedServers):
    """A name server and a broker that can each be killed, stopped and started."""

    def __init__(self) -> None:
        settings = {
            "flushDiskType": "ASYNC_FLUSH",  # acknowledged messages survive a killed process
            "registerNameServerPeriod": 10_000,
            "messageDelayLevel": "1s" + 17 * " 1s",
        }
        super().__init__("rucola", ("rucola",), settings)

    def kill_broker(self) -> None:
        """Kills the broker with SIGKILL."""
        self._kill(self._processes.pop())

    def start_broker(self) -> None:
        """Starts the broker again with the same store, on a different port."""
        self.broker = self._rucola_broker("broker-rucola")

    def restart_namesrv(self) -> None:
        """Kills the name server with SIGKILL and starts a new one on the same port, which knows no broker until one
        registers.
        """
        self._kill(self._processes.pop(0))
        self._rucola("namesrv", "--port", self.namesrv.rpartition(":")[2])
        self._processes.insert(0, self._processes.pop())

    def blackhole_broker(self, begins: bool) -> None:
        """Suspends or continues the broker's process. A suspended broker reads nothing, but no connection closes."""
        os.kill(self._processes[-1].pid, signal.SIGSTOP if begins else signal.SIGCONT)

    def set_back_clock_of_broker(self) -> None:
        """Sets the broker's clock back by ``tests.scenario.stepped_broker.STEP_MS`` milliseconds."""
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
