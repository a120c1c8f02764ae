"""Runs a name server: listens, removes silent brokers, stops (RocketMQ 5.3.3, ``NamesrvController``)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rucola.common.hosts import check_bind_address
from rucola.common.options import check_options, option
from rucola.common.tls_config import TlsConfig
from rucola.errors import ConfigError
from rucola.namesrv.administration import register_administration
from rucola.namesrv.kv_config import KVConfigManager
from rucola.namesrv.processor import NamesrvProcessor
from rucola.namesrv.route_info import RouteInfoManager, RouteLimits
from rucola.protocol.codes import RequestCode
from rucola.remoting.config_processor import ConfigProcessor
from rucola.remoting.guarded import GuardedHandler, Judge, judge_by_place
from rucola.remoting.processors import ProcessorTable
from rucola.remoting.server import Channel, RemotingServer, ServerOptions, server_tls
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.files import Files
from rucola.runtime.logs import event
from rucola.runtime.supervision import PeriodicWork, Supervisor
from rucola.runtime.table_writer import KeptTable, Pieces, TableWriter

if TYPE_CHECKING:
    from rucola.namesrv.min_broker_id import MinBrokerIdNotices

logger = logging.getLogger(__name__)
READING = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
    }
)
"""Requests that everybody may send. All others, including unknown codes, are for brokers and administrators (S-46)."""
REMOTE_KEYS = frozenset({"scanNotActiveBrokerInterval"})
"""Options that a request may change."""


@dataclass(frozen=True)
class NamesrvConfig(TlsConfig):
    """Options of the name server, with RocketMQ's keys (``NamesrvConfig``, ``NettyServerConfig``)."""

    bind_address: str = option("bindAddress", "127.0.0.1", "Address to listen on.")
    insecure: bool = option(
        "insecure",
        False,
        "Whether the name server may listen without TLS on an address that others can reach. Rucola's own.",
    )
    listen_port: int = option("listenPort", 9876, "Port to listen on; 0 for any free port.", minimum=0, maximum=65535)
    scan_not_active_broker_interval_ms: int = option(
        "scanNotActiveBrokerInterval",
        5000,
        "Pause between two searches for brokers whose registration expired.",
        unit="ms",
        minimum=10,
        maximum=600_000,
    )
    acl_enable: bool = option(
        "aclEnable",
        False,
        "Whether only accounts that `conf/plain_acl.yml` lists as administrators may change the name server's data. "
        "Then even brokers on this machine must sign their registrations (`innerClientAuthenticationCredentials`).",
    )
    acl_signed_addresses: str = option(
        "aclSignedAddresses",
        "",
        "Further addresses `host:port`, separated by commas, under which clients reach the name server. See the option "
        "of the broker with this name.",
    )
    rocketmq_home: str = option("rocketmqHome", "", "Directory with `conf/plain_acl.yml`. Needed with `aclEnable`.")
    kv_config_path: str = option(
        "kvConfigPath", "", "File of the key-value configuration. Empty: the configuration is kept in memory only."
    )

    support_acting_master: bool = option(
        "supportActingMaster",
        False,
        "Whether routes show the slave with the smallest number as the master, for reading only, while a group without "
        "master has `enableSlaveActingMaster`.",
    )
    notify_min_broker_id_changed: bool = option(
        "notifyMinBrokerIdChanged",
        False,
        "Whether the brokers of such a group are told at once that the smallest number has changed. They also ask for "
        "it every second.",
    )
    brokers_max: int = option(
        "brokersMax",
        1000,
        "Number of brokers that may be registered; further ones are refused. Rucola's own.",
        minimum=1,
        maximum=1_000_000,
    )
    brokers_per_connection_max: int = option(
        "brokersPerConnectionMax",
        64,
        "Number of brokers that may be registered over one connection. Rucola's own.",
        minimum=1,
        maximum=1_000_000,
    )
    topics_max: int = option(
        "topicsMax",
        500_000,
        "Maximum number of topics of all brokers together; a registration that would exceed this number is refused. "
        "Rucola's own.",
        minimum=1,
        maximum=100_000_000,
    )

    def __post_init__(self) -> None:
        check_options(self)
        self.check_tls()
        check_bind_address(self.bind_address, self.insecure or self.tls_mode != "disabled")
        if self.acl_enable and not self.rocketmq_home:
            raise ConfigError("rocketmqHome", "", "a directory, because aclEnable=true")


class NameServer(GuardedHandler):
    """One name server. It is started and stopped once, on an event loop.

    Args:
        judge: decides whether to serve requests that are not open to everybody; None trusts this machine and peers with
            a certificate.

    Attributes:
        routes: the registered brokers and their topics.
        supervisor: supervises all periodic work.
    """

    def __init__(
        self,
        config: NamesrvConfig,
        files: Files | None = None,
        clock: Clock | None = None,
        judge: Judge | None = None,
    ) -> None:
        self._config = config
        self._files = files or Files()
        self.supervisor = Supervisor()
        monotonic = (clock or SystemClock()).monotonic
        processors = ProcessorTable()
        judge = judge or judge_by_place(config.insecure, "the name server")
        super().__init__(processors, READING, judge, monotonic)
        self.routes = RouteInfoManager(monotonic, config.support_acting_master)
        self._kv_config = KVConfigManager()
        limits = RouteLimits(config.brokers_max, config.brokers_per_connection_max, config.topics_max)
        NamesrvProcessor(self.routes, self._kv_config, limits).register_to(processors)
        register_administration(processors, self.routes, self._kv_config, self._persist, limits)
        ConfigProcessor(config, REMOTE_KEYS).register_to(
            processors, RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.GET_NAMESRV_CONFIG
        )
        options = ServerOptions(tls=server_tls(config))
        self._server = RemotingServer(self, config.bind_address, config.listen_port, options, self.supervisor)
        self._writer = TableWriter(self.supervisor, monotonic)
        self._kept: KeptTable | None = None
        if config.kv_config_path:
            name = config.kv_config_path.rpartition("/")[2]
            self._kept = self._writer.table(name, self._replace, self._kv_config.pieces, lambda _error: None)
        self._notices: MinBrokerIdNotices | None = None
        self._scan: PeriodicWork | None = None
        self._removing: asyncio.Handle | None = None

    @property
    def address(self) -> str:
        """The address of the name server, ``host:port``."""
        return self._server.address

    async def start(self) -> None:
        """Loads the key-value configuration and starts to listen.

        Raises:
            AddressInUseError: the port is in use.
            FormatError: the key-value file is damaged.
        """
        path = self._config.kv_config_path
        text = self._files.read_file(path) if path else None
        if text is not None:
            self._kv_config.load(text, path)
        self.routes.on_left = self._remove_soon
        if self._config.notify_min_broker_id_changed:
            # Imported only here, because few name servers call brokers.
            from rucola.namesrv.min_broker_id import MinBrokerIdNotices

            self._notices = MinBrokerIdNotices()
            self.routes.on_min_id = self._notices.send
        self._writer.start(asyncio.get_running_loop())
        await self._server.start()
        self._scan = self.supervisor.every(
            "removal of lost brokers",
            lambda: self._config.scan_not_active_broker_interval_ms / 1000,
            self._scan_now,
            asyncio.get_running_loop(),
        )

    async def shutdown(self) -> None:
        """Writes what was changed, stops listening and closes every connection."""
        if self._scan is not None:
            await self._scan.stop()
        self._writer.stop()
        self._writer.write()
        await self._server.close()
        await self._processors.close()
        if self._notices is not None:
            await self._notices.close()

    def channel_closed(self, channel: Channel) -> None:
        """Removes the brokers that registered over ``channel``."""
        for address in self.routes.channel_closed(channel):
            event(logger, logging.WARNING, "broker lost: connection closed", address=address)

    async def _persist(self) -> None:
        if self._kept is not None:
            await self._kept.changed()

    def _replace(self, content: Pieces) -> None:
        self._files.replace_file(self._config.kv_config_path, b"".join(content))

    def _remove_soon(self) -> None:
        """Removes the data of absent brokers, some topics in each iteration of the event loop."""
        if self._removing is None:
            self._removing = asyncio.get_running_loop().call_soon(self._remove_left)

    def _remove_left(self) -> None:
        self._removing = None
        if self.routes.drop_left():
            self._remove_soon()

    def _scan_now(self) -> None:
        self._writer.write_failed_again()
        for address in self.routes.scan():
            event(logger, logging.WARNING, "broker lost: registration expired", address=address)
