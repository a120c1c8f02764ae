"""What ``rucola broker`` starts: a broker and, when asked for, its HTTP."""

from __future__ import annotations

from rucola.broker import Broker
from rucola.broker.config import broker_options
from rucola.cli.config_file import put, read_broker_conf
from rucola.cli.http import Health, HttpServer
from rucola.runtime.supervision import Supervisor


class BrokerServers:
    """A broker and its HTTP of ``rucola broker``. ``start`` once; ``stop`` once afterwards.

    Args:
        http_port: of ``/livez``, ``/readyz`` and ``/metrics``, on the broker's address; None without them.
    """

    def __init__(self, broker: Broker, http_port: int | None) -> None:
        self.broker = broker
        self.http = None if http_port is None else HttpServer(broker.config.bind_address, http_port)

    async def start(self) -> None:
        """Raises what ``Broker.start`` raises; nothing is left running then."""
        if self.http is not None:
            self.http.bind()
        try:
            await self.broker.start()
        except BaseException:
            if self.http is not None:
                self.http.close()
            raise
        if self.http is not None:
            self.http.start(health_of(self.broker))

    async def stop(self) -> None:
        """Stop both."""
        if self.http is not None:
            await self.http.stop()
        await self.broker.shutdown()


def broker_of(config_path: str | None, namesrv: str | None, quarantine: bool = False) -> Broker:
    """The broker of ``rucola broker``."""
    values = read_broker_conf(config_path)
    if config_path is None:
        values["flushDiskType"] = "SYNC_FLUSH"
    put(values, "namesrvAddr", namesrv)
    put(values, "quarantine", "true" if quarantine else None)
    return Broker(*broker_options(values))


def health_of(broker: Broker, *others: Supervisor) -> Health:
    """What ``/readyz`` and ``/metrics`` say of one broker of this process.

    Args:
        others: of the process's other servers.
    """

    def metrics() -> tuple[bytes, str]:
        from rucola.cli.metrics import BrokerCollector, metrics_of

        return metrics_of(BrokerCollector(broker, *others))

    def trouble() -> str:
        return "" if broker.ready else f"store {broker.store.state.value}"

    return Health(trouble, metrics)
