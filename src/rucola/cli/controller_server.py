"""The servers of ``rucola controller``: a controller, its optional access control and its HTTP port."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import TYPE_CHECKING

from rucola.broker.config import credentials
from rucola.cli.config_file import read_config
from rucola.cli.http import Health, HttpServer
from rucola.cli.serve import port_from
from rucola.common.hosts import split_address
from rucola.controller import Controller, ControllerConfig
from rucola.errors import ConfigError
from rucola.remoting.client import ClientOptions
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.supervision import PeriodicWork
from rucola.runtime.tls import peer_context

if TYPE_CHECKING:
    from rucola.cli.account_files import AccountFiles


class ControllerServer:
    """A controller with its access control. Make it on an event loop; call ``start`` once, then ``stop`` once.

    Args:
        config: its options.
        http_port: port of ``/livez``, ``/readyz`` and ``/metrics`` on its address; None for no HTTP.

    Attributes:
        controller: the controller.
        http: the HTTP port; None if there is none.

    Raises:
        ConfigError: access control is on, but its files are missing or invalid; or a certificate cannot be used.
    """

    def __init__(self, config: ControllerConfig, http_port: int | None = None) -> None:
        judge, clock = None, SystemClock()
        self._accounts: AccountFiles | None = None
        if config.acl_enable:
            from rucola.cli.account_files import plain_accounts
            from rucola.cli.namesrv_access import NamesrvAccess

            self._accounts = plain_accounts(config.rocketmq_home, config.insecure, clock)
            judge = NamesrvAccess(
                self._accounts.snapshot,
                clock,
                config.insecure,
                addresses=config.acl_signed_addresses,
                server="a controller",
            ).judge
        self.controller = Controller(config, judge=judge, to_brokers=_to_brokers(config, clock))
        self.http = None if http_port is None else HttpServer(config.bind_address, http_port)
        self._reload: PeriodicWork | None = None

    async def start(self) -> None:
        """Starts to serve; raises the errors of ``HttpServer.bind`` and ``Controller.start``."""
        if self.http is not None:
            self.http.bind()
        try:
            with port_from("--listen"):
                await self.controller.start()
        except BaseException:
            if self.http is not None:
                self.http.close()
            raise
        if self._accounts is not None:
            self._reload = self._accounts.watch(self.controller.supervisor)
        if self.http is not None:
            self.http.start(Health(self._trouble, self._metrics))

    async def stop(self) -> None:
        """Stops serving; another controller leads at once."""
        if self._reload is not None:
            await self._reload.stop()
        await self.controller.shutdown()
        if self.http is not None:
            await self.http.stop()

    def _trouble(self) -> str:
        return self.controller.leadership.error

    async def _metrics(self) -> tuple[bytes, str]:
        # Importing the metrics library and formatting the metrics would block the event loop too long.
        library = await asyncio.to_thread(_metrics_library)
        found = library.ControllerCollector(self.controller).collect()
        return await asyncio.to_thread(library.text_of, found)


def _metrics_library() -> ModuleType:
    from rucola.cli import controller_metrics

    return controller_metrics


def _to_brokers(config: ControllerConfig, clock: Clock) -> ClientOptions:
    """Account and TLS of the connections to brokers."""
    signer = tls = None
    text = config.inner_client_authentication_credentials
    if text:
        from rucola.remoting.signer import RequestSigner

        keys = credentials(text)
        if keys is None:
            allowed = '{"accessKey": "...", "secretKey": "..."}'
            raise ConfigError("innerClientAuthenticationCredentials", "******", allowed)
        signer = RequestSigner(*keys, security_token="", version=1, wall_ms=clock.wall_ms)
    if config.use_tls:
        tls = peer_context(config.tls_client_trust_cert_path, config.tls_cert_path, config.tls_key_path)
    return ClientOptions(signer=signer, tls=tls)


def controller_config(
    config_path: str | None, etcd: str | None, prefix: str | None, listen: str | None, advertise: str | None
) -> ControllerConfig:
    """The options of ``rucola controller``.

    Raises:
        ConfigError: an entry is not allowed; ``OptionsError`` with all errors if there are several.
    """
    host = port = None
    if listen is not None:
        try:
            host, port = split_address(listen)
        except ValueError:
            raise ConfigError("--listen", listen, "host:port") from None
    return read_config(
        config_path,
        ControllerConfig,
        "controller",
        etcdEndpoints=etcd,
        etcdPrefix=prefix,
        bindAddress=host,
        listenPort=port,
        advertisedAddress=advertise,
    )
