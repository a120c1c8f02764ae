"""The servers of ``rucola broker``: a broker and, on request, its HTTP port and its port for gRPC clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from rucola.broker import Broker
from rucola.cli.config_file import put, read_broker_conf
from rucola.cli.http import Health, HttpServer
from rucola.errors import ConfigError, MissingExtraError
from rucola.remoting.fairness.steps import in_turns
from rucola.runtime.supervision import Supervisor

if TYPE_CHECKING:
    from rucola.broker.config import BrokerConfig
    from rucola.proxy.beside import DoorBeside


class BrokerServers:
    """The servers of ``rucola broker``. Call ``start`` once, then ``stop`` once.

    Args:
        http_port: port of ``/livez``, ``/readyz`` and ``/metrics`` on the broker's address; None for no HTTP.

    Raises:
        ConfigError: a port for gRPC clients is wanted, but an option or a missing package prevents it.
    """

    def __init__(self, broker: Broker, http_port: int | None) -> None:
        self.broker = broker
        self.http = None if http_port is None else HttpServer(broker.config.bind_address, http_port)
        port = broker.config.grpc_server_port
        self.door = None if port < 0 else wanted_door(broker.config, port)

    async def start(self) -> None:
        """Starts everything. Raises the errors of ``Broker.start``, and leaves nothing running after an error."""
        try:
            if self.http is not None:
                self.http.bind()
            if self.door is not None:
                self.door.bind()
            await self.broker.start()
        except BaseException:
            if self.door is not None:
                await self.door.stop()
            if self.http is not None:
                self.http.close()
            raise
        self.broker.import_filters()
        if self.door is not None:
            self.door.start(self.broker)
        if self.http is not None:
            self.http.start(health_of(self.broker, door=self.door))

    async def stop(self) -> None:
        """Stops everything, the broker last."""
        if self.http is not None:
            await self.http.stop()
        if self.door is not None:
            await self.door.stop()
        await self.broker.shutdown()


def wanted_door(config: BrokerConfig, port: int) -> DoorBeside:
    """A port for gRPC clients that somebody has asked for.

    Raises:
        ConfigError: a package is missing, or a certificate cannot be used.
    """
    from rucola.proxy.beside import DoorBeside

    with asked_for(port):
        return DoorBeside(config, port)


@contextmanager
def asked_for(grpc_port: int) -> Iterator[None]:
    """Makes a ``MissingExtraError`` a ``ConfigError``, because somebody has asked for the port."""
    try:
        yield
    except MissingExtraError as error:
        raise ConfigError("--grpc-port", str(grpc_port), f"no port, because {error}") from None


def broker_values(
    config_path: str | None,
    namesrv: str | None,
    quarantine: bool,
    grpc_port: int | None = None,
    tls_dir: str | None = None,
) -> dict[str, str]:
    """The configuration of the broker that ``rucola broker`` starts."""
    values = read_broker_conf(config_path)
    if config_path is None:
        values["flushDiskType"] = "SYNC_FLUSH"
    put(values, "namesrvAddr", namesrv)
    put(values, "grpcServerPort", grpc_port)
    put(values, "grpcTlsDir", tls_dir)
    put(values, "quarantine", "true" if quarantine else None)
    return values


def _metrics_library() -> ModuleType:
    from rucola.cli import metrics

    return metrics


def health_of(broker: Broker, *others: Supervisor, door: DoorBeside | None = None) -> Health:
    """Content of ``/readyz`` and ``/metrics`` for the broker in this process.

    Args:
        others: supervisors of the process's other servers.
        door: its port for gRPC clients, if it has one.
    """

    async def metrics() -> tuple[bytes, str]:
        # Importing the metrics library and formatting the metrics would block the event loop too long, so both run in
        # threads. This is safe, because they use no data that the event loop changes.
        library = await asyncio.to_thread(_metrics_library)
        found = await in_turns(library.BrokerCollector(broker, *others, door=door).steps())
        return await asyncio.to_thread(library.text_of, found)

    def trouble() -> str:
        return broker.not_in_sync if broker.ready else f"store {broker.store.state.value}"

    return Health(trouble, metrics)
