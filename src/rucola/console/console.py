"""The console as a whole: its directory, its watches and its HTTP server."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rucola.console.access.headers import Origins
from rucola.console.access.sessions import BrokerAccount, VisitSessions
from rucola.console.app import Application
from rucola.console.audit import AuditLog
from rucola.console.bounds import Places
from rucola.console.changes.desk import ChangeDesk
from rucola.console.cluster.watches import HistoryThread, Watch, Watches
from rucola.console.config import ConsoleConfig
from rucola.console.desks import Desks
from rucola.console.history import History
from rucola.console.http_server import ConsoleHttp
from rucola.console.messages.decoding import BodyDecoders
from rucola.console.messages.tail import TailDesk
from rucola.console.queries.desk import QueryDesk
from rucola.console.store.child import Child
from rucola.console.store.explorer import StoreExplorer
from rucola.console.views.access import JUDGE
from rucola.console.views.export import EXPORTS_MAX, OF_VISITOR_MAX
from rucola.errors import ConfigError, StoreLockedError
from rucola.runtime.clock import Clock, SystemClock
from rucola.runtime.files import DirectoryLock, Files
from rucola.runtime.supervision import PeriodicWork, Supervisor

_TIDY_S: Final = 15.0


class Console:
    """Call ``start`` once, then ``stop`` once.

    Args:
        config: its options.
        clock: gives the times.

    Attributes:
        supervisor: supervises the periodic work.
    """

    def __init__(self, config: ConsoleConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.supervisor = Supervisor()
        self._clock = clock or SystemClock()
        self._http = ConsoleHttp(config.bind_address, config.port)
        self._thread = ThreadPoolExecutor(1, "rucola-console")
        self._lock: DirectoryLock | None = None
        self._history: History | None = None
        self._watches: Watches | None = None
        self._changes: ChangeDesk | None = None
        self._tidy: PeriodicWork | None = None
        self._desks: Desks | None = None
        self.application: Application | None = None

    @property
    def address(self) -> str:
        """Its address, ``host:port``."""
        return self._http.address

    @property
    def watches(self) -> Watches:
        """Its watches; only after ``start``."""
        assert self._watches is not None
        return self._watches

    @property
    def directory(self) -> str:
        """Its directory."""
        if self.config.data:
            return Files().expand(self.config.data)
        state = os.environ.get("XDG_STATE_HOME") or Files().expand("~/.local/state")
        return f"{state}/rucola/console/{self._http.port}"

    def watch(self, cluster: str) -> Watch:
        """How a visitor without an account sees a cluster; for tests and tools in this process."""
        return self.watches.of(cluster, BrokerAccount())

    async def start(self) -> None:
        """Begins to serve. Name servers and brokers need not run yet.

        Raises:
            AddressInUseError: the port is taken.
            ConfigError: the address, the directory or a schema cannot be used.
            MissingExtraError: a schema needs packages that are not installed.
            DiskError: the directory cannot be written.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Ends pages, waits for changes that run, and closes everything."""
        await self._http.stop()
        if self._changes is not None:
            await self._changes.close()
        if self._desks is not None:
            await self._desks.close()
        if self._tidy is not None:
            await self._tidy.stop()
        if self._watches is not None:
            await self._watches.close()
        await asyncio.to_thread(self._thread.shutdown)
        if self._history is not None:
            self._history.close()
        if self._lock is not None:
            self._lock.release()

    async def _start(self) -> None:
        decoders = await asyncio.to_thread(BodyDecoders, self.config.body_schemas)
        self._http.bind()
        directory = self.directory
        files = Files()
        files.make_directory(directory)
        try:
            self._lock = files.lock_directory(directory)
        except StoreLockedError:
            raise ConfigError("--data", directory, "a directory that no other console uses") from None
        files.close_to_others(directory)
        self._history = history = History(directory)
        monotonic = self._clock.monotonic
        sessions = VisitSessions(monotonic)
        self._watches = watches = Watches(
            self.config, self._clock, HistoryThread(history, self._thread), self.supervisor, sessions.accounts
        )
        self._changes = ChangeDesk(AuditLog(directory, self._clock), self._thread, monotonic)
        self._desks = desks = Desks(
            TailDesk(monotonic),
            Places(OF_VISITOR_MAX, EXPORTS_MAX, "There are too many exports: wait until one has ended."),
            decoders,
            StoreExplorer(tuple(map(files.expand, self.config.store_list))),
            QueryDesk(monotonic),
            Child(JUDGE),
        )
        origins = Origins(self.config, self._http.port)
        self.application = Application(self.config, origins, watches, sessions, self._changes, desks, self._clock)
        watches.start()

        async def tidy() -> None:
            sessions.expire()
            desks.tails.expire()
            await watches.drop_idle()

        self._tidy = self.supervisor.every("end sessions", lambda: _TIDY_S, tidy, asyncio.get_running_loop())
        self._http.start(self.application)
