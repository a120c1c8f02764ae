"""The brokers of ``rucola up --brokers``: each has its own process; the name server runs in the parent process.

A broker process is ``rucola broker --under-up``. It writes its address to standard output, and stops when its standard
input ends. Standard input also ends when the parent process is killed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rucola.cli.exit_codes import BrokerStartError
from rucola.cli.serve import LogOptions
from rucola.common.java import format_properties
from rucola.common.json_library import orjson
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)
PORT_STEP = 10
"""Distance between the ports of two brokers. A RocketMQ broker with port P also uses P - 2 and P + 1."""
_STOP_S = 30.0
_PAUSE_S = 1.0
_PAUSE_MAX_S = 60.0
_SOUND_S = 60.0
"""Seconds for which a process must have served, so that its end counts as the first one."""


class BrokerProcess:
    """One broker, whose process is started again whenever it ends. Call ``start`` once, then ``stop`` once.

    Attributes:
        address: its address, which stays the same.
        http: address of its metrics; each process has another one.
        ended_with: exit status of the process that ended last; None while the broker serves requests.
    """

    def __init__(self, name: str, values: Mapping[str, str], log: LogOptions) -> None:
        self.name = name
        self.address = self.http = ""
        self.ended_with: int | None = None
        self._values = dict(values)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts the process; returns when the broker serves requests.

        Raises:
            BrokerStartError: the broker ended before it served requests.
        """
        await self._begin()
        self._watch = asyncio.create_task(self._keep_alive())

    async def stop(self) -> None:
        """Stops the broker; kills it if it does not stop in time."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            event(logger, logging.ERROR, "broker did not stop, killing it", name=self.name, pid=process.pid)
            process.kill()
            await process.wait()

    async def _begin(self) -> None:
        """See ``start``."""
        # The configuration may hold a password. A directory that outlives the start could be removed by the system, and
        # made again by another user.
        with tempfile.TemporaryDirectory(prefix="rucola-up-") as folder:
            config_file = Path(folder, f"{self.name}.conf")
            config_file.write_text(format_properties(self._values), encoding="utf-8")
            line = await self._first_line(config_file)
        if not line:
            assert self._process is not None
            status = await self._process.wait()
            raise BrokerStartError(status if status > 0 else 1)
        facts = orjson.loads(line)
        self.address, self.http = facts["brokers"][0], facts["http"]
        self._values["listenPort"] = self.address.rpartition(":")[2]

    async def _first_line(self, config_file: Path) -> bytes:
        """Starts the process; returns the line that it writes when it serves, empty if it ends before."""
        command = [sys.executable, "-P", "-m", "rucola", "broker", "-c", str(config_file), "--json", "--under-up"]
        command += ["--http-port", "0"]
        command += ["--log-level", self._log.level, "--log-format", self._log.form]
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def _keep_alive(self) -> None:
        """Starts the process again whenever it ends: after 1 s, then after pauses that double up to ``_PAUSE_MAX_S``,
        until a process has served for ``_SOUND_S``.
        """
        loop, pause_s = asyncio.get_running_loop(), _PAUSE_S
        while True:
            assert self._process is not None
            began_s = loop.time()
            self.ended_with = await self._process.wait()
            if loop.time() - began_s >= _SOUND_S:
                pause_s = _PAUSE_S
            while self.ended_with is not None:
                event(
                    logger,
                    logging.CRITICAL,
                    "broker ended and is started again, the other brokers continue",
                    name=self.name,
                    address=self.address,
                    pid=self._process.pid,
                    exit=self.ended_with,
                    pause_s=pause_s,
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                try:
                    await self._begin()
                except BrokerStartError as error:
                    self.ended_with = error.exit_status
                except OSError as error:  # no memory for a process, or no space for its file
                    event(logger, logging.ERROR, "broker cannot be started", name=self.name, error=error)
                else:
                    self.ended_with = None
            event(logger, logging.INFO, "broker serves again", name=self.name, pid=self._process.pid)


class BrokerProcesses:
    """All brokers that a ``rucola up`` starts. Call ``start`` once, then ``stop`` once.

    Args:
        configs: entries of each broker's ``broker.conf``, by broker name.
        log: log options of the processes, which write to this process's standard error.
    """

    def __init__(self, configs: Mapping[str, Mapping[str, str]], log: LogOptions) -> None:
        self._configs = configs
        self._log = log
        self.brokers: Sequence[BrokerProcess] = ()

    @property
    def ended(self) -> list[BrokerProcess]:
        """Brokers that ended without a ``stop``, and do not serve again yet."""
        return [broker for broker in self.brokers if broker.ended_with is not None]

    async def start(self) -> None:
        """Starts all brokers; returns when all serve requests.

        Raises:
            BrokerStartError: a broker did not start; the others have been stopped.
        """
        brokers = [BrokerProcess(name, values, self._log) for name, values in self._configs.items()]
        self.brokers = brokers
        outcomes = await asyncio.gather(*[broker.start() for broker in brokers], return_exceptions=True)
        failure = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
        if failure is not None:
            await self.stop()
            raise failure

    async def stop(self) -> None:
        """Stops the brokers that still run."""
        await asyncio.gather(*[broker.stop() for broker in self.brokers])


def configs_of(
    count: int, values: Mapping[str, str], root: str, first_port: int, namesrv: str
) -> dict[str, dict[str, str]]:
    """Entries of a ``broker.conf`` for each of ``count`` brokers, by name.

    Args:
        values: entries common to all brokers.
        root: parent directory of their stores.
        first_port: port of the first broker; 0 for any free ports.
        namesrv: address of the name server.
    """
    base = values.get("brokerName", "broker")
    configs = {}
    for number in range(count):
        name = f"{base}-{number}"
        port = first_port + PORT_STEP * number if first_port else 0
        own = {
            "brokerName": name,
            "storePathRootDir": f"{root}/{name}",
            "listenPort": str(port),
            "namesrvAddr": namesrv,
        }
        if values.get("aclEnable", "").strip() == "true" and not values.get("rocketmqHome"):
            own["rocketmqHome"] = root  # all brokers share the accounts
        configs[name] = {**values, **own}
    return configs
