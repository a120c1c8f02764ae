"""The brokers of ``rucola up --brokers``: each has its own process; the name server runs in the parent process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rucola.cli.serve import LogOptions
from rucola.cli.server_process import ServerProcess
from rucola.common.java import parse_boolean

PORT_STEP = 10
"""Distance between the ports of two brokers. A RocketMQ broker with port P also uses P - 2 and P + 1."""


class BrokerProcess(ServerProcess):
    """One broker."""

    _arguments: ClassVar = ("broker", "--http-port", "0")

    def _take(self, facts: Mapping[str, Any]) -> None:
        self.address, self.http = facts["brokers"][0], facts["http"]
        self._values["listenPort"] = self.address.rpartition(":")[2]


class BrokerProcesses:
    """All brokers that a ``rucola up`` starts, and the proxy in front of them. Call ``start`` once, then ``stop`` once.

    Args:
        configs: entries of each broker's ``broker.conf``, by broker name.
        proxy: serves gRPC clients; None for no such port.
        log: log options of the brokers, which write to this process's standard error.
        brokers_first: whether the proxy needs what the brokers write when they start.
    """

    def __init__(
        self,
        configs: Mapping[str, Mapping[str, str]],
        proxy: ServerProcess | None,
        log: LogOptions,
        brokers_first: bool = False,
    ) -> None:
        self.brokers = [BrokerProcess(name, values, log) for name, values in configs.items()]
        self.proxies = [proxy] if proxy is not None else []
        self._brokers_first = brokers_first

    @property
    def ended(self) -> list[ServerProcess]:
        """Servers that ended without a ``stop``, and do not serve again yet."""
        return [server for server in self._all if server.ended_with is not None]

    @property
    def _all(self) -> list[ServerProcess]:
        return [*self.brokers, *self.proxies]

    async def start(self) -> None:
        """Starts all servers; returns when all serve requests.

        Raises:
            ProcessStartError: a server did not start; the others have been stopped.
        """
        together: list[Sequence[ServerProcess]] = [self.brokers, self.proxies] if self._brokers_first else [self._all]
        for servers in together:
            outcomes = await asyncio.gather(*[server.start() for server in servers], return_exceptions=True)
            failure = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
            if failure is not None:
                await self.stop()
                raise failure

    async def stop(self) -> None:
        """Stops the servers that still run; the proxy first, because it serves what its clients have begun."""
        for proxy in self.proxies:
            await proxy.stop()
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
    common = {key: text for key, text in values.items() if key != "grpcServerPort"}  # one proxy serves it for all
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
        ha_port = values.get("haListenPort", "").strip()
        if ha_port.isdigit() and int(ha_port):
            own["haListenPort"] = str(int(ha_port) + PORT_STEP * number)
        if parse_boolean(values.get("aclEnable", "").strip()) and not values.get("rocketmqHome"):
            own["rocketmqHome"] = root  # all brokers share the accounts
        configs[name] = {**common, **own}
    return configs
