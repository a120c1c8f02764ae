"""The servers of ``rucola namesrv``: a name server and its optional access control."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rucola.cli.config_file import read_config
from rucola.cli.serve import port_from
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.runtime.clock import SystemClock
from rucola.runtime.supervision import PeriodicWork

if TYPE_CHECKING:
    from rucola.cli.account_files import AccountFiles


class NamesrvServer:
    """A name server with its access control. Call ``start`` once, then ``stop`` once.

    Raises:
        ConfigError: access control is on, but its files are missing or invalid.
    """

    def __init__(self, config: NamesrvConfig) -> None:
        judge = None
        self._accounts: AccountFiles | None = None
        if config.acl_enable:
            from rucola.cli.account_files import plain_accounts
            from rucola.cli.namesrv_access import NamesrvAccess

            clock = SystemClock()
            self._accounts = plain_accounts(config.rocketmq_home, config.insecure, clock)
            judge = NamesrvAccess(
                self._accounts.snapshot, clock, config.insecure, addresses=config.acl_signed_addresses
            ).judge
        self.server = NameServer(config, judge=judge)
        self._reload: PeriodicWork | None = None

    async def start(self) -> None:
        """Starts the name server; raises the errors of ``NameServer.start``."""
        with port_from("--port"):
            await self.server.start()
        if self._accounts is not None:
            self._reload = self._accounts.watch(self.server.supervisor)

    async def stop(self) -> None:
        """Stops the name server."""
        if self._reload is not None:
            await self._reload.stop()
        await self.server.shutdown()


def namesrv_config(config_path: str | None, host: str | None, port: int | None) -> NamesrvConfig:
    """The options of ``rucola namesrv``.

    Raises:
        ConfigError: an entry is not allowed; ``OptionsError`` with all errors if there are several.
    """
    return read_config(config_path, NamesrvConfig, "name server", bindAddress=host, listenPort=port)
