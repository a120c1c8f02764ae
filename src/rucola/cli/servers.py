"""What ``up``, ``namesrv`` and ``broker`` start, and in which order.

Every port is taken before the store is opened: a start that finds a port taken has touched nothing.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rucola.broker import Broker
from rucola.broker.config import broker_options
from rucola.cli.http import Health, HttpServer
from rucola.cli.serve import LogOptions
from rucola.common.java import parse_properties
from rucola.common.options import ConfigProblems, options_of, parse_options, unknown_keys
from rucola.errors import ConfigError
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.runtime.files import Files

if TYPE_CHECKING:
    from rucola.cli.broker_processes import BrokerProcesses

_FLUSH_TYPES = {"sync": "SYNC_FLUSH", "async": "ASYNC_FLUSH", "SYNC_FLUSH": "SYNC_FLUSH", "ASYNC_FLUSH": "ASYNC_FLUSH"}
_EPHEMERAL_SEGMENT_BYTES = 64 * 1024 * 1024
"""A store that is thrown away need not allocate a GiB first; it may lie in memory."""


class UpOptions(NamedTuple):
    """The options of ``up``; None stands for what the configuration file or the default says."""

    store: str | None = None
    ephemeral: bool = False
    host: str | None = None
    namesrv_port: int = 9876
    broker_port: int | None = None
    http_port: int = 8088
    flush: str | None = None
    config: str | None = None
    brokers: int = 1
    quarantine: bool = False
    log: LogOptions = LogOptions()


class Addresses(NamedTuple):
    """Where everything listens, ``host:port`` each, and where the data lies."""

    store: str
    namesrv: str
    brokers: dict[str, str]
    """By broker name."""
    http: str


class UpServers:
    """Name server, brokers and HTTP of ``up``. ``start`` once; ``stop`` once afterwards.

    One broker lives in this process, several have one each.
    """

    def __init__(self, options: UpOptions) -> None:
        values = read_broker_conf(options.config)
        _put(values, "storePathRootDir", options.store)
        _put(values, "bindAddress", options.host)
        _put(values, "listenPort", options.broker_port)
        _put(values, "flushDiskType", _flush_type(options))
        _put(values, "quarantine", "true" if options.quarantine else None)
        if options.ephemeral:
            values.setdefault("mappedFileSizeCommitLog", str(_EPHEMERAL_SEGMENT_BYTES))
        self._values = values
        self._brokers_wanted = options.brokers
        self._log = options.log
        if values.get("tlsMode") == "enforcing":
            values.setdefault("useTLS", "true")
        self._config, self._store_config = broker_options(values)
        if options.brokers > 1 and self._store_config.store_path_commit_log:
            raise ConfigError(
                "--brokers", str(options.brokers), "1 when storePathCommitLog is set: they would share it"
            )
        host = self._config.bind_address
        self._namesrv = NameServer(
            replace(
                parse_options(NamesrvConfig, {key: text for key, text in values.items() if key.startswith("tls")}),
                bind_address=host,
                listen_port=options.namesrv_port,
                insecure=self._config.insecure,
            )
        )
        self._http = HttpServer(host, options.http_port)
        self._broker: Broker | None = None
        self._processes: BrokerProcesses | None = None

    async def start(self) -> Addresses:
        """Start everything.

        Raises what ``Broker.start`` and ``NameServer.start`` raise, and ``BrokerStartError`` with several brokers;
        nothing is left running then.
        """
        self._http.bind()
        try:
            await self._namesrv.start()
            start = self._start_broker if self._brokers_wanted == 1 else self._start_processes
            store, brokers = await start(_reachable(self._namesrv.address))
        except BaseException:
            await self.stop()
            raise
        return Addresses(store, self._namesrv.address, brokers, self._http.address)

    async def _start_broker(self, namesrv: str) -> tuple[str, dict[str, str]]:
        broker = Broker(replace(self._config, namesrv_addr=namesrv), self._store_config)
        await broker.start()
        self._broker = broker

        self._http.start(health_of(broker))
        return broker.store.root, {broker.config.broker_name: broker.address}

    async def _start_processes(self, namesrv: str) -> tuple[str, dict[str, str]]:
        from rucola.cli.broker_processes import BrokerProcesses, configs_of

        root = Files().expand(self._store_config.store_path_root_dir)
        port = self._config.listen_port
        processes = BrokerProcesses(configs_of(self._brokers_wanted, self._values, root, port, namesrv), self._log)
        self._processes = processes
        await processes.start()

        def metrics() -> tuple[bytes, str]:
            from rucola.cli.merged_metrics import MergedCollector
            from rucola.cli.metrics import metrics_of

            return metrics_of(
                MergedCollector({one.name: one.http if one.ended_with is None else None for one in processes.brokers})
            )

        def trouble() -> str:
            return ", ".join([f"{broker.name} ended with {broker.ended_with}" for broker in processes.ended])

        self._http.start(Health(trouble, metrics, metrics_wait=True))
        return root, {broker.name: broker.address for broker in processes.brokers}

    async def stop(self) -> None:
        """Stop everything, the brokers before the name server."""
        await self._http.stop()
        if self._broker is not None:
            await self._broker.shutdown()
        if self._processes is not None:
            await self._processes.stop()
        await self._namesrv.shutdown()


def health_of(broker: Broker) -> Health:
    """What ``/readyz`` and ``/metrics`` say of one broker of this process."""

    def metrics() -> tuple[bytes, str]:
        from rucola.cli.metrics import BrokerCollector, metrics_of

        return metrics_of(BrokerCollector(broker))

    def trouble() -> str:
        return "" if broker.ready else f"store {broker.store.state.value}"

    return Health(trouble, metrics)


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
    _put(values, "namesrvAddr", namesrv)
    _put(values, "quarantine", "true" if quarantine else None)
    return Broker(*broker_options(values))


def namesrv_of(config_path: str | None, host: str | None, port: int | None) -> NameServer:
    """The name server of ``rucola namesrv``."""
    values = _read_properties(config_path) if config_path is not None else {}
    _put(values, "bindAddress", host)
    _put(values, "listenPort", port)
    problems = ConfigProblems()
    for key in unknown_keys(values, NamesrvConfig):
        allowed = ", ".join(entry.key for entry in options_of(NamesrvConfig))
        problems.add(ConfigError(key, values[key], f"a key of the name server: {allowed}"))
    with problems:
        config = parse_options(NamesrvConfig, values)
    problems.report()
    return NameServer(config)


def read_broker_conf(path: str | None) -> dict[str, str]:
    """The entries of a ``broker.conf``, none without a file.

    Raises:
        ConfigError: no such file, or not such a file.
    """
    return _read_properties(path) if path is not None else {}


def _read_properties(path: str) -> dict[str, str]:
    content = None if Path(path).is_dir() else Files().read_file(path)
    if content is None:
        raise ConfigError("--config", path, "an existing file")
    try:
        return parse_properties(content.decode())
    except ValueError as error:  # not UTF-8, or an escape that is none
        raise ConfigError("--config", path, f"a Java properties file in UTF-8 ({error})") from None


def _flush_type(options: UpOptions) -> str | None:
    """SYNC_FLUSH unless told otherwise; a given ``broker.conf`` is obeyed, its silence too."""
    if options.flush is None:
        return "SYNC_FLUSH" if options.config is None else None
    if options.flush not in _FLUSH_TYPES:
        raise ConfigError("--flush", options.flush, ", ".join(_FLUSH_TYPES))
    return _FLUSH_TYPES[options.flush]


def _put(values: dict[str, str], key: str, value: str | int | None) -> None:
    if value is not None:
        values[key] = str(value)


def _reachable(address: str) -> str:
    """An address to connect to: who listens on all addresses is asked on loopback."""
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]") else address
