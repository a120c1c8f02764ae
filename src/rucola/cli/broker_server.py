"""The servers of ``rucola broker``: a broker and, on request, its HTTP port."""

from __future__ import annotations

import asyncio
from types import ModuleType

from rucola.broker import Broker
from rucola.cli.config_file import put, read_broker_conf
from rucola.cli.http import Health, HttpServer
from rucola.remoting.fairness.steps import in_turns
from rucola.runtime.supervision import Supervisor


class BrokerServers:
    """The broker and the HTTP port of ``rucola broker``. Call ``start`` once, then ``stop`` once.

    Args:
        http_port: port of ``/livez``, ``/readyz`` and ``/metrics`` on the broker's address; None for no HTTP.
    """

    def __init__(self, broker: Broker, http_port: int | None) -> None:
        self.broker = broker
        self.http = None if http_port is None else HttpServer(broker.config.bind_address, http_port)

    async def start(self) -> None:
        """Starts the broker and its HTTP port. Raises the errors of ``Broker.start``, and leaves nothing running after
        an error.
        """
        if self.http is not None:
            self.http.bind()
        try:
            await self.broker.start()
        except BaseException:
            if self.http is not None:
                self.http.close()
            raise
        self.broker.import_filters()
        if self.http is not None:
            self.http.start(health_of(self.broker))

    async def stop(self) -> None:
        """Stops the HTTP port and the broker."""
        if self.http is not None:
            await self.http.stop()
        await self.broker.shutdown()


def broker_values(config_path: str | None, namesrv: str | None, quarantine: bool) -> dict[str, str]:
    """The configuration of the broker that ``rucola broker`` starts."""
    values = read_broker_conf(config_path)
    if config_path is None:
        values["flushDiskType"] = "SYNC_FLUSH"
    put(values, "namesrvAddr", namesrv)
    put(values, "quarantine", "true" if quarantine else None)
    return values


def _metrics_library() -> ModuleType:
    from rucola.cli import metrics

    return metrics


def health_of(broker: Broker, *others: Supervisor) -> Health:
    """Content of ``/readyz`` and ``/metrics`` for the broker in this process.

    Args:
        others: supervisors of the process's other servers.
    """

    async def metrics() -> tuple[bytes, str]:
        # Importing the metrics library and formatting the metrics would block the event loop too long, so both run in
        # threads. This is safe, because they use no data that the event loop changes.
        library = await asyncio.to_thread(_metrics_library)
        found = await in_turns(library.BrokerCollector(broker, *others).steps())
        return await asyncio.to_thread(library.text_of, found)

    def trouble() -> str:
        return "" if broker.ready else f"store {broker.store.state.value}"

    return Health(trouble, metrics)
