"""A broker with ``brokerRole=SLAVE``: finds its master, copies log and tables, and knows whether it is in step.

The name servers' answers to registrations tell the master's addresses; ``haMasterAddress`` and ``masterBrokerAddress``
count more. If the copy must not go on (another log, a damaged record, a full disk), the broker serves what it has, and
tries again later. Event loop only.

Source: RocketMQ 5.3.3, ``DefaultHAClient``, ``SlaveSynchronize``, ``BrokerController#doRegisterBrokerAll``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Final

from rucola.broker.ha.copying import Copying, CopyRules
from rucola.broker.ha.master_broker import MasterBroker
from rucola.broker.ha.slave_tables import SlaveTables
from rucola.broker.outer_api import peer_options
from rucola.client.config import ClientConfig
from rucola.common.hosts import split_address
from rucola.errors import ConfigError, DiskError, RucolaError
from rucola.protocol.bodies.ha import HAClientRuntimeInfo
from rucola.runtime.logs import event
from rucola.runtime.tls import client_context

if TYPE_CHECKING:
    from rucola.broker.config import BrokerConfig
    from rucola.broker.services import BrokerServices

logger = logging.getLogger(__name__)
TABLES_S: Final = 10.0
"""Pause between two copies of the master's tables."""
AGAIN_S: Final = 60.0
"""Pause before the next attempt after the copy was refused."""
_DISK_AGAIN_S = 10.0
_TICK_S = 0.05
_LAST_WORK = "last work of a slave"
_SAME_OPTIONS = ("messageDelayLevel", "enableLmq", "enableMultiDispatch")
"""Options that decide what dispatch makes of a record."""


class Slave:
    """Follows the master of a broker. Call ``start`` once, then ``stop`` once.

    Args:
        services: the broker's services; the store is loaded.
        loop: the broker's loop.

    Attributes:
        appended: called after bytes came; set before ``start``.
    """

    def __init__(self, services: BrokerServices, loop: asyncio.AbstractEventLoop) -> None:
        config = services.config
        self._services, self._config, self._store, self._loop = services, config, services.store, loop
        self.appended: Callable[[], None] = lambda: None
        self._ha_address, self._broker_address = config.ha_master_address, config.master_broker_address
        self._master: MasterBroker | None = None
        self._checked: MasterBroker | None = None
        """The master whose options were compared."""
        rules = CopyRules(
            passes_damage=False,
            reports_flushed=services.store.config.sync_flush,
            size_key="mappedFileSizeCommitLog",
            may_begin_anywhere=False,
            tls=_tls(config),
        )
        self._copying = Copying(
            services.store, lambda: self._ha_address, lambda: self._master, rules, self._took, self._check_options
        )
        self._tables = SlaveTables(services, self._synced)
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._trouble = ""
        """Why the copy was refused; empty while it goes on."""
        self._rate = (0, 0.0, 0)
        if self._broker_address:
            self._master = self._new_master(self._broker_address)

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to copy."""
        for work in (self._copy(), self._follow()):
            self._run(work)

    async def stop(self) -> None:
        """Ends the copy, and moves consumer offsets into the queues that are here: the broker may be the master next.
        The broker writes log and tables afterwards.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._master is not None:
            await self._master.close()
        self._services.supervisor.call(_LAST_WORK, self._store.dispatch)
        self._services.supervisor.call(_LAST_WORK, self._services.clamp_offsets)

    # -- what others ask -----------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether there is no record yet; the store is then started by the first one."""
        return self._copying.is_empty

    @property
    def is_linked(self) -> bool:
        """Whether the master can be reached and has the same log, so that consumers had better ask it."""
        return self._copying.client.is_copying

    @property
    def _is_in_touch(self) -> bool:
        """Whether there is a connection on which nothing is wrong."""
        return self.is_linked or self._copying.client.has_nothing_to_copy

    @property
    def behind_bytes(self) -> int:
        """Bytes of the master's log that are missing here, as far as it is known."""
        return self._copying.behind_bytes or 0

    @property
    def not_in_sync(self) -> str:
        """Why the slave is not in sync; empty if it is."""
        if self._trouble:
            return f"not in sync: {self._trouble}"
        if not self._is_in_touch:
            return "not in sync: not connected to the master"
        if self.behind_bytes > self._config.ha_max_gap_not_in_sync:
            return f"not in sync: {self.behind_bytes} bytes behind the master"
        return ""

    @property
    def master(self) -> str:
        """The master's port for slaves; empty if it is not known."""
        return self._ha_address

    def needed_from(self) -> int | None:
        """Physical offset at which the master's log begins: what it keeps is kept here, too. None if it was not asked.
        See ``LogHolder``.
        """
        bounds = self._copying.bounds
        return None if bounds is None else bounds.min_offset

    def move_on(self, _physical_offset: int) -> None:
        """Does nothing: a slave stores no message. See ``LogHolder``."""

    def status(self) -> HAClientRuntimeInfo:
        """What request 907 tells of the connection to the master."""
        client, now_s = self._copying.client, self._loop.time()
        wall_ms = self._services.clock.wall_ms()

        def wall_of(time_s: float) -> int:
            return round(wall_ms - (now_s - time_s) * 1000) if time_s else 0

        bounds = self._copying.bounds
        return HAClientRuntimeInfo(
            wall_of(client.read_s),
            wall_of(client.written_s),
            self._ha_address or None,
            0 if bounds is None else bounds.max_offset,
            self._store.max_offset,
            self._bytes_per_s(now_s),
        )

    # -- what others tell ----------------------------------------------------------------------------------------------

    def found(self, ha_address: str, broker_address: str) -> None:
        """Notes what the name servers say of the master.

        Args:
            ha_address: its port for slaves; empty if it is not registered, and the address that is known stays.
            broker_address: its port for clients; empty if it is not registered: tables are not copied meanwhile.
        """
        for address in filter(None, (ha_address, broker_address)):
            try:
                split_address(address)
            except ValueError as error:
                event(logger, logging.WARNING, "address of the master not understood", error=error)
                return
        if not self._config.master_broker_address and broker_address != self._broker_address:
            old, self._broker_address = self._master, broker_address
            self._master = self._new_master(broker_address) if broker_address else None
            if old is not None:
                self._run(old.close())
        ha_address = self._config.ha_master_address or ha_address or self._ha_address
        if ha_address != self._ha_address or (self._master is not None and self._checked is not self._master):
            if ha_address != self._ha_address:
                event(logger, logging.INFO, "master found", address=ha_address, broker=self._broker_address)
            self._ha_address = ha_address
            self._changed.set()
            self._copying.client.connect_soon()

    def told(self, ha_address: str, broker_address: str) -> None:
        """Like ``found``, but from a broker of the group: the master has just come, so the slave connects at once."""
        self.found(ha_address, broker_address)
        self._changed.set()
        self._copying.client.connect_soon()

    def grew(self) -> None:
        """Called when more of the log is synced."""
        self._copying.client.grew()

    # -- the log -------------------------------------------------------------------------------------------------------

    async def _copy(self) -> None:
        """Copies for ever. When the copy is refused, waits, or until there is another master."""
        while True:
            pause_s = AGAIN_S
            self._changed.clear()
            try:
                await self._copying.run()
            except DiskError as error:
                pause_s = _DISK_AGAIN_S
                self._note(error)
            except RucolaError as error:
                self._note(error)
            except Exception as error:  # noqa: BLE001 - even a defect must not end the copy unnoticed
                self._services.supervisor.failed("copy of the master's log", error)
                self._trouble = f"{type(error).__name__}: {error}"
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    def _note(self, error: RucolaError) -> None:
        if str(error) != self._trouble:
            self._trouble = str(error)
            event(logger, logging.ERROR, "copy of the master's log stopped, tried again later", error=error)

    def _took(self) -> None:
        if self._trouble and self._is_in_touch:
            self._trouble = ""
            event(logger, logging.INFO, "copy of the master's log goes on", end_offset=self._copying.end_offset)
        self.appended()
        if not self._store.config.sync_flush:
            self._copying.client.grew()

    async def _check_options(self, master: MasterBroker) -> None:
        """Compares options with those of a master that was not compared before.

        Raises:
            ConfigError: segments have another size.
        """
        if self._checked is master:
            return
        theirs, config = await master.store_options(), self._store.config
        key, ours = "mappedFileSizeCommitLog", str(config.mapped_file_size_commit_log)
        if theirs.get(key, ours) != ours:
            raise ConfigError(key, ours, f"{theirs[key]}, as on the master: segments must have the same size")
        own = {
            "messageDelayLevel": config.message_delay_level,
            "enableLmq": str(config.enable_lmq).lower(),
            "enableMultiDispatch": str(config.enable_multi_dispatch).lower(),
        }
        other = [name for name in _SAME_OPTIONS if theirs.get(name, own[name]) != own[name]]
        if other:
            event(logger, logging.WARNING, "options differ from the master's, and so will queues", keys=",".join(other))
        self._checked = master

    # -- the tables ----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Copies the tables from time to time, of a master that has proved to be the right one."""
        while True:
            master = self._master
            if master is not None and self._may_follow:
                try:
                    self._copying.bounds = await self._tables.copy(master)
                except RucolaError as error:
                    event(logger, logging.WARNING, "tables of the master not copied, tried again", error=error)
                except Exception as error:  # noqa: BLE001 - see ``_copy``
                    self._services.supervisor.failed("copy of the master's tables", error)
                await asyncio.sleep(TABLES_S)
            else:
                await asyncio.sleep(_TICK_S)

    @property
    def _may_follow(self) -> bool:
        return self._copying.is_proved or self._copying.client.has_nothing_to_copy

    async def _synced(self, physical_offset: int) -> bool:
        """Waits until the log is synced up to ``physical_offset``; returns False if the link is lost meanwhile."""
        store = self._store
        while store.flushed_offset < physical_offset:
            if not self._may_follow or store.queue_sync_failed:
                return False
            if self._copying.end_offset >= physical_offset:
                store.flush_soon()
            await asyncio.sleep(_TICK_S)
        return True

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _new_master(self, address: str) -> MasterBroker:
        clock = self._services.clock
        return MasterBroker(address, ClientConfig(), clock, peer_options(self._config, clock.wall_ms))

    def _bytes_per_s(self, now_s: float) -> int:
        """Bytes that came per second, since the last call or the last second."""
        count, since_s, rate = self._rate
        if now_s - since_s >= 1:
            received = self._copying.client.received_bytes
            rate = round((received - count) / (now_s - since_s)) if since_s else 0
            self._rate = received, now_s, rate
        return rate


def _tls(config: BrokerConfig) -> SSLContext | None:
    """How the slave connects to the port for slaves of its master; None for a plain connection."""
    if config.ha_tls_mode != "enforcing":
        return None
    return client_context(config.ha_tls_trust_cert_path, config.tls_cert_path, config.tls_key_path)
