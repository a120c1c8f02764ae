"""The servers of ``rucola up`` and the order in which they start.

All ports are reserved before the store is opened, so that nothing is changed if the start-up fails because of a port.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from rucola.broker import Broker
from rucola.broker.config import broker_options, credentials
from rucola.cli.broker_server import asked_for, health_of
from rucola.cli.config_file import put
from rucola.cli.http import Health, HttpServer, in_use
from rucola.cli.serve import LogOptions, port_from
from rucola.common.options import parse_options
from rucola.errors import AddressesInUseError, AddressInUseError, ConfigError, MissingExtraError
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.runtime.clock import SystemClock
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.runtime.supervision import PeriodicWork

if TYPE_CHECKING:
    from rucola.broker.acl.permission import AclSnapshot
    from rucola.broker.config import BrokerConfig
    from rucola.cli.account_files import AccountFiles
    from rucola.cli.broker_processes import BrokerProcesses
    from rucola.cli.namesrv_access import NamesrvAccess
    from rucola.cli.proxy_process import ProxyProcess
    from rucola.cli.server_process import ServerProcess
    from rucola.proxy.beside import DoorBeside

logger = logging.getLogger(__name__)
GRPC_PORT: Final = 8081
"""The port of RocketMQ's proxy."""
_FLUSH_TYPES = {"sync": "SYNC_FLUSH", "async": "ASYNC_FLUSH", "SYNC_FLUSH": "SYNC_FLUSH", "ASYNC_FLUSH": "ASYNC_FLUSH"}
_EPHEMERAL_SEGMENT_BYTES = 64 * 1024 * 1024
"""Segment size of a temporary store, which may lie in memory and should not allocate a GiB."""
_LITE_TOPICS = {"enableLmq": "true", "enableMultiDispatch": "true"}
"""What lite topics need."""


class UpOptions(NamedTuple):
    """The options of ``rucola up``. For an option that is None, the configuration file or the default decides.

    Attributes:
        grpc_port: port for gRPC clients; None takes 8081 if it is free and the packages are there.
        grpc: whether gRPC clients are served at all.
        tls_dir: directory for the certificate of that port.
        config: the entries of the configuration file; None if none was given.
    """

    store: str | None = None
    ephemeral: bool = False
    host: str | None = None
    namesrv_port: int = 9876
    broker_port: int | None = None
    http_port: int = 8088
    grpc_port: int | None = None
    grpc: bool = True
    tls_dir: str | None = None
    flush: str | None = None
    config: Mapping[str, str] | None = None
    brokers: int = 1
    quarantine: bool = False
    log: LogOptions = LogOptions()


class Addresses(NamedTuple):
    """Addresses of all servers, ``host:port``, and the store directory."""

    store: str
    namesrv: str
    brokers: dict[str, str]
    """Address of each broker by its name."""
    http: str
    grpc: str | None
    """Address for gRPC clients; None if they are not served."""
    grpc_text: str
    """The same, or why they are not served."""
    ha: str | None
    """Address for slaves; None if there cannot be any, or if there are several brokers."""
    slave: str | None
    """Which slave the broker is, and of which master; None if it is a master."""


class UpServers:
    """All servers of ``rucola up``. Call ``start`` once, then ``stop`` once.

    A single broker runs in this process, and so does the port for gRPC clients. Several brokers each have a process of
    their own, and so has the proxy that serves gRPC clients.
    """

    def __init__(self, options: UpOptions) -> None:
        values = dict(options.config or {})
        put(values, "storePathRootDir", options.store)
        put(values, "bindAddress", options.host)
        put(values, "listenPort", options.broker_port)
        put(values, "grpcServerPort", _grpc_port(options))
        put(values, "grpcTlsDir", options.tls_dir)
        put(values, "flushDiskType", _flush_type(options))
        put(values, "quarantine", "true" if options.quarantine else None)
        if options.config is None:  # whoever has a file decides there; RocketMQ's default is false
            values |= _LITE_TOPICS
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
                "--brokers", str(options.brokers), "1, because storePathCommitLog is set and brokers cannot share it"
            )
        if self._config.is_slave:
            _check_slave(self._config, options.brokers)
        host = self._config.bind_address
        self._access: NamesrvAccess | None = None
        self._account_files: AccountFiles | None = None
        self._reload: PeriodicWork | None = None
        if self._config.guarded:
            self._guard_namesrv()
        self._namesrv = NameServer(
            replace(
                parse_options(NamesrvConfig, {key: text for key, text in values.items() if key.startswith("tls")}),
                bind_address=host,
                listen_port=options.namesrv_port,
                insecure=self._config.insecure,
            ),
            judge=self._access.judge if self._access is not None else None,
        )
        self._http = HttpServer(host, options.http_port)
        self._host = host
        self._ports = {
            "--http-port": options.http_port,
            "--namesrv-port": options.namesrv_port,
            "--broker-port": self._config.listen_port,
        }
        self._broker: Broker | None = None
        self._processes: BrokerProcesses | None = None
        self._without_grpc = "off"
        self._is_grpc_asked = "grpcServerPort" in values
        self._door: DoorBeside | None = None
        self._proxy: ProxyProcess | None = None
        if self._is_grpc_asked:
            self._serve_grpc_as_asked()
        elif self._config.is_slave:
            self._do_without_grpc("off, a slave serves no POP")
        else:
            self._serve_grpc_if_possible()

    def _serve_grpc_as_asked(self) -> None:
        """Sets up the port for gRPC clients that an option names, unless the option says that there is none."""
        port = self._config.grpc_server_port
        if port < 0:
            return
        self._ports["--grpc-port"] = port
        with asked_for(port):
            self._serve_grpc_at(port)

    def _serve_grpc_if_possible(self) -> None:
        """Sets up the usual port for gRPC clients, unless something prevents it."""
        try:
            self._serve_grpc_at(GRPC_PORT)
        except MissingExtraError as error:
            self._do_without_grpc(f"off, {', '.join(error.modules)} not installed (extra {error.extra})")

    def _serve_grpc_at(self, port: int) -> None:
        if self._brokers_wanted > 1:
            from rucola.cli.proxy_process import ProxyProcess

            self._proxy = ProxyProcess(self._config, self._store_config.max_message_size, port, self._log)
        else:
            from rucola.proxy.beside import DoorBeside

            self._door = DoorBeside(self._config, port)

    def _bind_grpc(self) -> None:
        """Takes the port for gRPC clients, or checks that the proxy can take it."""
        try:
            if self._door is not None:
                self._door.bind()
            if self._proxy is not None:
                self._proxy.check_port()
        except AddressInUseError:
            if self._is_grpc_asked:
                raise
            self._door = self._proxy = None
            self._do_without_grpc(f"off, port {GRPC_PORT} in use")

    def _do_without_grpc(self, text: str) -> None:
        self._without_grpc = text
        event(logger, logging.INFO, "gRPC clients are not served", reason=text)

    def _guard_namesrv(self) -> None:
        """Lets only administrators and the brokers of this ``rucola up`` change the name server's data."""
        # Imported late: with its YAML reader, this module takes a tenth of the start-up time.
        from rucola.cli.account_files import plain_accounts
        from rucola.cli.namesrv_access import NamesrvAccess, credentials_of, own_brokers

        key = "innerClientAuthenticationCredentials"
        given = credentials(self._config.inner_client_authentication_credentials)
        own = own_brokers(given)
        if given is None:
            self._values[key] = credentials_of(own)
            self._config = replace(self._config, inner_client_authentication_credentials=self._values[key])
        if self._config.acl_enable and self._brokers_wanted > 1:
            home = self._config.rocketmq_home or self._store_config.store_path_root_dir
            self._account_files = plain_accounts(home, self._config.insecure, SystemClock())
        self._access = NamesrvAccess(
            self._accounts, SystemClock(), self._config.insecure, own, self._config.acl_signed_addresses
        )

    def _accounts(self) -> AclSnapshot | None:
        """Returns the accounts of the broker in this process, or those in the files that several brokers share."""
        if self._account_files is not None:
            return self._account_files.snapshot()
        access = self._broker.services.access if self._broker is not None else None
        return access.snapshot() if access is not None else None

    async def start(self) -> Addresses:
        """Starts everything.

        Raises the errors of ``NameServer.start``. A single broker also raises the errors of ``Broker.start``; if one of
        several processes does not start, the error is ``ProcessStartError``. After an error nothing is left running.
        """
        try:
            self._http.bind()
            self._bind_grpc()
            with port_from("--namesrv-port"):
                await self._namesrv.start()
            if self._account_files is not None:
                self._reload = self._account_files.watch(self._namesrv.supervisor)
            start = self._start_broker if self._brokers_wanted == 1 else self._start_processes
            store, brokers = await start(_reachable(self._namesrv.address))
        except AddressInUseError as error:
            await self.stop()
            raise self._all_in_use(error) from error.__cause__
        except BaseException:
            await self.stop()
            raise
        port = self._door or self._proxy
        grpc = port.address if port is not None else None
        ha = None if self._broker is None else self._broker.ha_address
        slave = self._broker.role_text if self._broker is not None and self._config.is_slave else None
        return Addresses(
            store, self._namesrv.address, brokers, self._http.address, grpc, grpc or self._without_grpc, ha, slave
        )

    def _all_in_use(self, first: AddressInUseError) -> AddressInUseError:
        """Returns one error for all ports that are in use, so that a user learns of them together."""
        taken = [error for option, port in self._ports.items() if (error := in_use(self._host, port, option))]
        return AddressesInUseError(tuple(taken)) if len(taken) > 1 else first

    async def _start_broker(self, namesrv: str) -> tuple[str, dict[str, str]]:
        broker = Broker(replace(self._config, namesrv_addr=namesrv), self._store_config)
        with port_from("--broker-port"):
            await broker.start()
        broker.import_filters()
        self._broker = broker
        if self._door is not None:
            self._door.start(broker)
        self._http.start(health_of(broker, self._namesrv.supervisor, door=self._door))
        return broker.store.root, {broker.config.broker_name: broker.address}

    async def _start_processes(self, namesrv: str) -> tuple[str, dict[str, str]]:
        from rucola.cli.broker_processes import BrokerProcesses, configs_of

        root = Files().expand(self._store_config.store_path_root_dir)
        port = self._config.listen_port
        configs = configs_of(self._brokers_wanted, self._values, root, port, namesrv)
        if self._proxy is not None:
            self._proxy.lead_to(namesrv, root, next(iter(configs)))
        has_users = self._config.authentication_enabled  # the first broker creates their file
        processes = BrokerProcesses(configs, self._proxy, self._log, brokers_first=has_users)
        self._processes = processes
        await processes.start()

        def asked() -> tuple[bytes, str]:
            from rucola.cli.figures import metrics_of
            from rucola.cli.merged_metrics import MergedCollector

            return metrics_of(MergedCollector(_http_of(processes.brokers), _http_of(processes.proxies)))

        async def metrics() -> tuple[bytes, str]:
            return await asyncio.to_thread(asked)

        def trouble() -> str:
            ended = [f"{server.name} ended with {server.ended_with}" for server in processes.ended]
            return f"{', '.join(ended)}; started again" if ended else ""

        self._http.start(Health(trouble, metrics))
        return root, {broker.name: broker.address for broker in processes.brokers}

    async def stop(self) -> None:
        """Stops everything, the brokers before the name server."""
        if self._reload is not None:
            await self._reload.stop()
        await self._http.stop()
        if self._door is not None:
            await self._door.stop()
        if self._broker is not None:
            await self._broker.shutdown()
        if self._processes is not None:
            await self._processes.stop()
        await self._namesrv.shutdown()


def _check_slave(config: BrokerConfig, brokers: int) -> None:
    """Checks whether ``rucola up`` can run this slave.

    Raises:
        ConfigError: it cannot.
    """
    if brokers > 1:
        raise ConfigError("--brokers", str(brokers), "1 with brokerRole=SLAVE")
    if not (config.ha_master_address and config.master_broker_address):
        raise ConfigError(
            "brokerRole",
            config.broker_role,
            "haMasterAddress and masterBrokerAddress with it, because the name server of `rucola up` knows no master; "
            "or use `rucola broker`",
        )


def _http_of(servers: Sequence[ServerProcess]) -> dict[str, str | None]:
    """Address of the metrics of each server by its name; None for one that ended."""
    return {one.name: one.http if one.ended_with is None else None for one in servers}


def _flush_type(options: UpOptions) -> str | None:
    """Returns the flush type that ``--flush`` names. Without ``--flush``, returns None if there is a ``broker.conf``,
    which then decides, and otherwise SYNC_FLUSH.
    """
    if options.flush is None:
        return "SYNC_FLUSH" if options.config is None else None
    if options.flush not in _FLUSH_TYPES:
        raise ConfigError("--flush", options.flush, ", ".join(_FLUSH_TYPES))
    return _FLUSH_TYPES[options.flush]


def _grpc_port(options: UpOptions) -> int | None:
    """The port for gRPC clients that the command line names; -1 for none, None if it says nothing."""
    if options.grpc:
        return options.grpc_port
    if options.grpc_port is not None:
        raise ConfigError("--grpc-port", str(options.grpc_port), "no value, because --no-grpc is given")
    return -1


def _reachable(address: str) -> str:
    """An address to connect to: loopback if the server listens on all addresses."""
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]") else address
