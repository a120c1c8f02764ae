"""What ``rucola namesrv`` starts: a name server and, with access control, who may change what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rucola.cli.config_file import put, read_properties
from rucola.common.options import ConfigProblems, options_of, parse_options, unknown_keys
from rucola.errors import ConfigError
from rucola.namesrv import NameServer, NamesrvConfig
from rucola.runtime.clock import SystemClock
from rucola.runtime.supervision import PeriodicWork

if TYPE_CHECKING:
    from rucola.cli.namesrv_access import AccountFiles


class NamesrvServer:
    """``start`` once; ``stop`` once afterwards.

    Raises:
        ConfigError: access control is on and there are no good accounts.
    """

    def __init__(self, config: NamesrvConfig) -> None:
        judge = None
        self._accounts: AccountFiles | None = None
        if config.acl_enable:
            from rucola.cli.namesrv_access import AccountFiles, NamesrvAccess

            clock = SystemClock()
            self._accounts = AccountFiles(config.rocketmq_home, config.insecure, clock)
            judge = NamesrvAccess(self._accounts.snapshot, clock, config.insecure).judge
        self.server = NameServer(config, judge=judge)
        self._reload: PeriodicWork | None = None

    async def start(self) -> None:
        """Raises what ``NameServer.start`` raises."""
        await self.server.start()
        if self._accounts is not None:
            self._reload = self._accounts.watch(self.server.supervisor)

    async def stop(self) -> None:
        """Stop it."""
        if self._reload is not None:
            await self._reload.stop()
        await self.server.shutdown()


def namesrv_config(config_path: str | None, host: str | None, port: int | None) -> NamesrvConfig:
    """The options of ``rucola namesrv``.

    Raises:
        ConfigError: an entry is not allowed. ``OptionsError`` when there are several, each named.
    """
    values = read_properties(config_path) if config_path is not None else {}
    put(values, "bindAddress", host)
    put(values, "listenPort", port)
    problems = ConfigProblems()
    for key in unknown_keys(values, NamesrvConfig):
        allowed = ", ".join(entry.key for entry in options_of(NamesrvConfig))
        problems.add(ConfigError(key, values[key], f"a key of the name server: {allowed}"))
    with problems:
        config = parse_options(NamesrvConfig, values)
    problems.report()
    return config
